"""A cluster that a test scripts, for a ConsumerCore in virtual time: requests are decoded, answers are what the test says.

`handlers` has, by API key, a function (node id, request, version) -> the answer, or None for no answer yet: `held` then keeps
the request, which `answer` answers later. Metadata and ApiVersions are answered from `leaders` and `versions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from kcli.client.client_config import ClientConfig
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.network_client import NetworkClient
from kcli.network.events import Peer, PeerClosed, PeerNode, ResponseReceived, SendRequest
from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, METADATA
from kcli.protocol.framing import encode_response, read_request_header

START_MS = 1_000_000
TOPIC_ID = bytes(15) + b"\x01"
Handler = Callable[[int, Any, int], Any]


class Request(NamedTuple):
    """A request that has no answer yet."""

    node_id: int
    api_key: int
    version: int
    correlation_id: int
    message: Any
    request_id: int
    peer: Peer


class FakeCluster:
    """Brokers 1 and 2; `leaders` are (leader, epoch) of the partitions of topic `t`."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        client = {key: settings.pop(key) for key in list(settings) if key in ClientConfig._fields}
        self.now_ms = START_MS
        self.leaders = dict.fromkeys(range(partitions), (1, 0))
        self.versions: dict[int, tuple[int, int]] = {}
        self.lines: list[str] = []
        self.asked: list[Request] = []
        self.held: list[Request] = []
        self.silent: set[int] = set()  # nodes that accept connections and never answer
        self.handlers: dict[int, Handler] = {}
        config = ClientConfig(bootstrap_servers=("127.0.0.1:9",))._replace(**client)
        network = NetworkClient(config, random.Random(1), self.lines.append, START_MS)
        consumer = ConsumerConfig(auto_offset_reset="earliest")._replace(**settings)
        self.core = ConsumerCore(network, consumer, log=self.lines.append)

    # -------------------------------------------------------------------------------------------------------- driving

    def call(self, function: Callable[[int], Any]) -> Any:
        """Call the core as a shell does."""
        self.core.network.timer.observe(self.now_ms)
        try:
            return function(self.now_ms)
        finally:
            self.pump()

    def poll(self) -> list[Any]:
        """What an application's poll returns now."""
        self.call(self.core.begin_poll)
        self.call(self.core.raise_error)
        return self.call(self.core.collect)  # type: ignore[no-any-return]

    def pump(self) -> None:
        """Carry requests and answers until none is left."""
        is_busy = True
        while is_busy:
            self.core.poll(self.now_ms)
            effects = self.core.network.take_effects()
            is_busy = bool(effects)
            for effect in effects:
                if isinstance(effect, SendRequest):
                    self._received(effect)

    def advance(self, ms: int) -> None:
        """Let time go by."""
        until_ms = self.now_ms + ms
        while (at_ms := self.core.network.next_deadline_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.core.network.advance(self.now_ms)
            self.pump()
        self.now_ms = until_ms

    def _received(self, effect: SendRequest) -> None:
        frame = memoryview(bytes(effect.frame))[4:]
        key, version, correlation_id, _, at = read_request_header(frame)
        message, _ = API_KEYS[key].request.decode(frame, version, at)
        node_id = effect.peer.destination.node_id if isinstance(effect.peer.destination, PeerNode) else 1
        request = Request(node_id, key, version, correlation_id, message, effect.request_id, effect.peer)
        self.asked.append(request)
        if node_id in self.silent:
            return
        handler = {API_VERSIONS: self._versions, METADATA: self._metadata}.get(key) or self.handlers.get(key)
        answer = None if handler is None else handler(node_id, message, version)
        if answer is None:
            self.held.append(request)
        else:
            self._send(request, answer)

    def _send(self, request: Request, answer: Any) -> None:
        frame = bytes(encode_response(request.correlation_id, API_KEYS[request.api_key], request.version, answer))[4:]
        self.core.network.handle(ResponseReceived(request.request_id, frame), self.now_ms)

    def answer(self, answer: Any) -> None:
        """Answer the oldest request that waits."""
        self._send(self.held.pop(0), answer)
        self.pump()

    def disconnect(self) -> None:
        """End the connection of the oldest request that waits."""
        self.core.network.handle(PeerClosed(self.held.pop(0).peer, "the test ended it"), self.now_ms)
        self.pump()

    def requests(self, api_key: int) -> list[Request]:
        """All requests of an API."""
        return [one for one in self.asked if one.api_key == api_key]

    # -------------------------------------------------------------------------------------------------------- answers

    def _versions(self, node_id: int, message: Any, version: int) -> Any:
        kind = API_KEYS[API_VERSIONS].response
        keys = [
            kind.classes["ApiVersion"](api_key=key, min_version=low, max_version=high)
            for key, api in API_KEYS.items()
            for low, high in [self.versions.get(key, (api.lowest_version, api.highest_version - api.is_latest_unstable))]
        ]
        return kind.new(api_keys=keys)

    def _metadata(self, node_id: int, message: Any, version: int) -> Any:
        kind = API_KEYS[METADATA].response
        partitions = [
            kind.classes["MetadataResponsePartition"](
                partition_index=index, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
            )
            for index, (leader, epoch) in self.leaders.items()
        ]
        brokers = [kind.classes["MetadataResponseBroker"](node_id=one, host="h", port=9000 + one) for one in (1, 2)]
        topics = [kind.classes["MetadataResponseTopic"](name="t", topic_id=TOPIC_ID, partitions=partitions)]
        wanted = None if message.topics is None else [one.name for one in message.topics]
        return kind.new(brokers=brokers, controller_id=1, topics=topics if wanted is None or "t" in wanted else [])


def fetch_answer(session_id: int = 0, error_code: int = 0, **partitions: dict[str, Any]) -> Any:
    """An answer to Fetch; the partitions are `p0=dict(records=..., error_code=...)`."""
    kind = API_KEYS[FETCH].response
    found = []
    for name, fields in partitions.items():
        leader = fields.pop("leader", None)
        one = kind.classes["PartitionData"](partition_index=int(name[1:]), high_watermark=fields.pop("high_watermark", 100))
        if leader is not None:
            one.current_leader = kind.classes["LeaderIdAndEpoch"](leader_id=leader[0], leader_epoch=leader[1])
        for field, value in fields.items():
            setattr(one, field, value)
        found.append(one)
    topics = [kind.classes["FetchableTopicResponse"](topic="t", topic_id=TOPIC_ID, partitions=found)] if found else []
    return kind.new(session_id=session_id, error_code=error_code, responses=topics)
