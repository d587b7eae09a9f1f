"""A broker of a few lines that answers as a test says, and a network in virtual time between it and a client.

Every request is decoded by kcli's codecs. `Broker.results` are error codes for the next batches, in order; without them a batch
is written to `Broker.written`. `Network` carries frames; a test may hold or drop answers, or end connections.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from kcli.client.client_config import ClientConfig
from kcli.client.network_client import NetworkClient
from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from kcli.network.events import Peer, PeerClosed, ResponseReceived, SendRequest
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message

NODES = (1, 2)
TOPIC_ID = bytes(range(16))


class Broker:
    """A cluster of two brokers behind one object; topic t has `leaders`."""

    def __init__(self, leaders: tuple[int, ...] = (1,), versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.leaders = list(leaders)
        self.epochs = [0] * len(leaders)
        self.versions = {key: (api.lowest_version, api.highest_version) for key, api in API_KEYS.items()} | (versions or {})
        self.features: dict[str, int] = {}
        self.topic_id = TOPIC_ID
        self.results: deque[dict[str, Any]] = deque()
        self.written: dict[int, list[bytes]] = {index: [] for index in range(len(leaders))}
        self.throttle_time_ms = 0
        self.requests: list[tuple[int, int, int, Message]] = []  # node, api key, version, message
        self.handlers: dict[int, Callable[[Message, int], Message]] = {
            apis.API_VERSIONS: self._api_versions,
            apis.METADATA: self._metadata,
            apis.PRODUCE: self._produce,
        }

    def answer(self, node: int, frame: bytes) -> bytes | None:
        key, version, correlation_id, _, position = read_request_header(frame[4:])
        request, _ = API_KEYS[key].request.decode(frame[4:], version, position)
        self.requests.append((node, key, version, request))
        response = self.handlers[key](request, version)
        if key == apis.PRODUCE and request.acks == 0:
            return None
        return bytes(encode_response(correlation_id, API_KEYS[key], version, response))[4:]

    def seen(self, key: int) -> list[Message]:
        return [message for _, one, _, message in self.requests if one == key]

    def versions_seen(self, key: int) -> list[int]:
        return [version for _, one, version, _ in self.requests if one == key]

    def _api_versions(self, request: Message, version: int) -> Message:
        kind = API_KEYS[apis.API_VERSIONS].response
        entry, feature = kind.classes["ApiVersion"], kind.classes["FinalizedFeatureKey"]
        return kind.new(
            api_keys=[entry(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()],
            finalized_features_epoch=1 if self.features else -1,
            finalized_features=[feature(name=name, max_version_level=level) for name, level in self.features.items()],
        )

    def _metadata(self, request: Message, version: int) -> Message:
        kind = API_KEYS[apis.METADATA].response
        broker, topic = kind.classes["MetadataResponseBroker"], kind.classes["MetadataResponseTopic"]
        partition = kind.classes["MetadataResponsePartition"]
        partitions = [
            partition(
                partition_index=index, leader_id=leader, leader_epoch=self.epochs[index], error_code=0 if leader > 0 else 5
            )
            for index, leader in enumerate(self.leaders)
        ]
        named = [one.name for one in request.topics or []]
        topics = [topic(name="t", topic_id=self.topic_id, partitions=partitions)] if "t" in named else []
        topics += [topic(name=name, error_code=3) for name in named if name != "t"]
        return kind.new(
            brokers=[broker(node_id=node, host="broker", port=node) for node in NODES],
            controller_id=1,
            cluster_id="c",
            topics=topics,
        )

    def _produce(self, request: Message, version: int) -> Message:
        kind = API_KEYS[apis.PRODUCE].response
        of_topic, of_partition = kind.classes["TopicProduceResponse"], kind.classes["PartitionProduceResponse"]
        endpoint = kind.classes["NodeEndpoint"]
        topics = []
        for topic in request.topic_data:
            entries = [
                of_partition(index=one.index, **self.write(one.index, bytes(one.records))) for one in topic.partition_data
            ]
            topics.append(of_topic(name=topic.name, topic_id=topic.topic_id, partition_responses=entries))
        nodes = [endpoint(node_id=node, host="broker", port=node) for node in NODES]
        return kind.new(responses=topics, throttle_time_ms=self.throttle_time_ms, node_endpoints=nodes if version >= 10 else [])

    def write(self, partition: int, data: bytes) -> dict[str, Any]:
        """Write a batch, unless a result is due; return the fields of its answer."""
        if self.results:
            fields = self.results.popleft()
            if fields.get("error_code"):
                return fields
        written = self.written[partition]
        base_offset = len(written)
        written += values_in(data)
        return {"base_offset": base_offset}


def values_in(data: bytes) -> list[bytes]:
    header = check_batch(data)
    payload = inflate(header.codec, data[HEADER_BYTES:], limit=2**24)
    return [record.value or b"" for record in read_records(payload, header.record_count)]


class Network:
    """Carries requests of one client, and answers after `delay_ms`."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        config = ClientConfig(bootstrap_servers=("broker:1",))._replace(**settings)
        self.broker = broker
        self.now_ms = 0
        self.client = NetworkClient(config, random.Random(1), lambda line: None)
        self.poll: Callable[[int], object] = lambda now_ms: None
        self.holds = False  # answers are kept until `release`
        self.drops = False  # nothing comes through
        self.held: list[tuple[Peer, ResponseReceived]] = []
        self.refused: set[int] = set()  # nodes that cannot be reached
        self.silent: set[int] = set()  # nodes that accept connections and never answer

    def pump(self) -> None:
        """Carry requests and answers until none is left."""
        while True:
            self.poll(self.now_ms)
            effects = self.client.take_effects()
            if not effects:
                return
            for effect in effects:
                if isinstance(effect, SendRequest):
                    self._carry(effect)

    def _carry(self, effect: SendRequest) -> None:
        assert effect.peer.address is not None
        node = effect.peer.address.port
        if node in self.refused:
            self.client.handle(PeerClosed(effect.peer, "connection refused"), self.now_ms)
            return
        if self.drops or node in self.silent:
            return
        frame = self.broker.answer(node, bytes(effect.frame))
        event = ResponseReceived(effect.request_id, b"" if frame is None else frame)
        if self.holds and self.broker.requests[-1][1] not in (apis.API_VERSIONS, apis.METADATA):
            self.held.append((effect.peer, event))
        else:
            self.client.handle(event, self.now_ms)

    def release(self) -> None:
        """Bring the answers that were held."""
        self.holds = False
        held, self.held = self.held, []
        for _, event in held:
            self.client.handle(event, self.now_ms)
        self.pump()

    def disconnect(self) -> None:
        """End the connections whose answers are held; these are lost."""
        self.holds = False
        held, self.held = self.held, []
        for peer in {peer for peer, _ in held}:
            self.client.handle(PeerClosed(peer, "the test ended it"), self.now_ms)
        self.pump()

    def advance(self, ms: int) -> None:
        """Let time go by, with every deadline on the way."""
        until_ms = self.now_ms + ms
        self.pump()
        while True:
            at_ms = self.client.next_deadline_ms()
            if at_ms is None or at_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, at_ms)
            self.client.advance(self.now_ms)
            self.pump()
        self.now_ms = until_ms
        self.client.timer.observe(until_ms)
