"""A whole node on a real directory, driven by hand: requests in, answers out, time only as a test lets it go by."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogDisk
from kcli.log.wall_time import WallTime
from kcli.network.events import ClosePeer, SendRequest
from kcli.protocol.apis import API_KEYS, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, FETCH, PRODUCE, Api
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.config.loading import load_config
from kcli.server.events import (
    CloseConnection,
    Compute,
    Computed,
    Connection,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flush,
    Flushed,
    HoldMemory,
    NoResponse,
    RequestReceived,
    SendFile,
    SendResponse,
)
from kcli.server.log_lines import Loggers
from kcli.server.loopback import answer_event, request_event
from kcli.server.node_builder import build_node
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.shell.client_connection import bytes_of
from kcli.state.image_records import message_type, new_record

START_MS = 1_750_000_000_000
NOTHING = object()  # no answer, and none will come: acks=0


class Closed(Exception):
    """The broker closed the connection; the message is its reason."""


class Pending:
    """A request under way: `answer` is None until one comes."""

    def __init__(self, api: Api, version: int) -> None:
        self.api = api
        self.version = version
        self.answer: Any = None
        self.frame: bytes | None = None

    def result(self) -> Message:
        """The answer. Raises Closed where the connection was closed instead."""
        assert self.answer is not None, "there is no answer yet"
        if isinstance(self.answer, Closed):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


# A start has an incarnation id of its own: with one from before, a controller takes the broker for one that is stopping.
_STARTS = itertools.count(7)


class WholeNode:
    """One node; `lines` is what it said in its log. Flushes and computations are done at once unless `holds_flushes`."""

    def __init__(
        self,
        directory: Path,
        *overrides: str,
        disk: LogDisk | None = None,
        max_open_files: int = 256,
        is_awaited: bool = True,
        accepts_stray: bool = False,
    ) -> None:
        listeners = "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"
        config = load_config(None, [f"log.dirs={directory}", f"listeners={listeners}", *overrides])
        self.now_ms = START_MS
        self.lines: list[str] = []
        self.held_bytes = 0  # of requests, as the node says
        self.wall = WallTime()
        self.turns = 0  # how often deadlines had come
        self.node = build_node(
            config,
            disk or OsDisk(),
            random.Random(next(_STARTS)),
            self.now_ms,
            Loggers(self.lines.append),
            max_open_files,
            wall=self.wall,
            accepts_stray=accepts_stray,
        )
        assert self.node.broker is not None
        self.broker = self.node.broker
        self.holds_flushes = False
        self.held: list[Flush] = []
        self.computing: list[Compute] = []
        self.flush_error: OSError | None = None
        self._pending: dict[int, Pending] = {}
        self._next_id = 0
        self._do(self.node.start(self.now_ms))
        if is_awaited:
            self.until(lambda: self.node.is_ready)

    # ---------------------------------------------------------------------------------------------------------- driving

    def connection(self, host: str = "127.0.0.1") -> Connection:
        """A new client."""
        self._next_id += 1
        return Connection(self._next_id, "PLAINTEXT", host, 40_000)

    def handle(self, event: Event) -> None:
        """Hand an event in and do what it leads to."""
        self.turns += isinstance(event, DeadlineReached)
        self._do(self.node.handle(event, self.now_ms))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._loop_back(effect)
            elif isinstance(effect, Flush):
                if self.holds_flushes:
                    self.held.append(effect)
                else:
                    self.handle(Flushed(effect.flush_id, self.flush_error))
            elif isinstance(effect, Compute):
                if self.holds_flushes:
                    self.computing.append(effect)
                else:
                    self.handle(Computed(effect.compute_id, effect.work()))
            elif isinstance(effect, SendResponse):
                self._answered(effect.connection, bytes(effect.frame))
            elif isinstance(effect, SendFile):
                self._answered(effect.connection, b"".join(map(bytes_of, effect.parts)))
            elif isinstance(effect, NoResponse):
                self._settle(effect.connection, NOTHING)
            elif isinstance(effect, HoldMemory):
                self.held_bytes += effect.size_bytes
                assert self.held_bytes >= 0
            elif not isinstance(effect, ClosePeer):  # of a connection to another node
                assert isinstance(effect, CloseConnection)
                self._settle(effect.connection, Closed(effect.reason))

    def _loop_back(self, effect: SendRequest) -> None:
        if effect.peer.address is not None:
            return  # another node, which does not answer
        self._next_id += 1
        self.handle(request_event(effect, self._next_id))

    def _answered(self, connection: Connection, frame: bytes) -> None:
        event = answer_event(connection, frame)
        if event is not None:
            self.handle(event)
            return
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        pending = self._pending[connection.connection_id]
        pending.frame = frame
        api = pending.api
        answered = 0 if api.key == API_VERSIONS and pending.version > api.highest_version else pending.version
        _, position = read_response_header(frame[4:], api, answered)
        message, end = api.response.decode(frame[4:], answered, position)
        assert end == len(frame) - 4
        self._settle(connection, message)

    def _settle(self, connection: Connection, answer: Any) -> None:
        event = answer_event(connection, None)
        if event is not None:
            self.handle(event)
            return
        pending = self._pending.pop(connection.connection_id, None)
        assert pending is not None, f"an answer that nobody waits for: {answer!r}"
        pending.answer = answer

    def release_flushes(self, error: OSError | None = None) -> None:
        """Do the flushes that were held back, or let them fail."""
        held, self.held = self.held, []
        for effect in held:
            self.handle(Flushed(effect.flush_id, error))

    def release_computations(self) -> None:
        """Do the computations that were held back."""
        while self.computing:
            effect = self.computing.pop(0)
            self.handle(Computed(effect.compute_id, effect.work()))

    def publish(self, records: list[Message]) -> None:
        """Let the broker apply records as if they were committed."""
        offset = self.broker.metadata_offset
        self.broker.publisher.apply(MetadataBatch(offset, offset, 0, self.now_ms, records, []), self.now_ms)

    def add_broker(
        self, broker_id: int, *, is_fenced: bool = False, rack: str | None = None, broker_epoch: int | None = None
    ) -> None:
        """Let the broker apply the registration of a broker that does not exist; its epoch is 10 times its id by default."""
        made = message_type("metadata_records", "RegisterBrokerRecord")
        endpoint = made.classes["BrokerEndpoint"](name="PLAINTEXT", host=f"host-{broker_id}", port=9092)
        epoch = 10 * broker_id if broker_epoch is None else broker_epoch
        record = made.new(broker_id=broker_id, broker_epoch=epoch, end_points=[endpoint], fenced=is_fenced, rack=rack)
        self.publish([record])

    def replicate(self, topic: str, isr: Sequence[int] = (1, 2), index: int = 0, **changes: Any) -> None:
        """Let the broker apply that a partition has two replicas more, 2 and 3, and an ISR; the controller does not know it."""
        for broker_id in {2, 3} - self.broker.image.brokers.keys():
            self.add_broker(broker_id)
        fields: dict[str, Any] = {"replicas": [1, 2, 3], "directories": [Uuid(bytes(16))] * 3, "isr": list(isr), **changes}
        topic_id = self.broker.image.topic_ids[topic]
        self.publish([new_record("PartitionChangeRecord", topic_id=topic_id, partition_id=index, **fields)])
        self.advance(10)

    def follow(self, offsets: dict[tuple[str, int], int], broker_id: int, *, version: int = 17, **options: Any) -> Pending:
        """Fetch as a broker that follows partitions of topics by name."""
        by_id = {(self.broker.image.topic_ids[name], index): offset for (name, index), offset in offsets.items()}
        state = {"replica_id": broker_id, "replica_epoch": 10 * broker_id, **options}
        return self.fetch(by_id, version=version, **state)

    def advance(self, ms: int) -> None:
        """Let time go by, with every deadline on the way."""
        until_ms = self.now_ms + ms
        while True:
            deadline_ms = self.node.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.handle(DeadlineReached())
        self.now_ms = until_ms

    def until(self, is_so: Callable[[], bool], within_ms: int = 10_000) -> None:
        """Let time go by until something is so."""
        end_ms = self.now_ms + within_ms
        while not is_so():
            assert self.now_ms < end_ms, "it did not come to be so"
            self.advance(1)

    def stop(self) -> None:
        """Leave in order."""
        self._do(self.node.stop(self.now_ms))
        self.until(lambda: self.node.is_stopped)

    # --------------------------------------------------------------------------------------------------------- requests

    def send(self, key: int, version: int, request: Message, connection: Connection | None = None) -> Pending:
        """Send a request -> what becomes of it."""
        frame = encode_request(77, API_KEYS[key], version, "test", request)
        return self.send_frame(frame[4:], key, version, connection)

    def send_frame(self, frame: bytes, key: int, version: int, connection: Connection | None = None) -> Pending:
        """Send the bytes of a request."""
        connection = connection or self.connection()
        pending = self._pending[connection.connection_id] = Pending(API_KEYS[key], version)
        self.handle(RequestReceived(connection, memoryview(bytearray(frame))))
        return pending

    def close(self, connection: Connection) -> None:
        """The client goes."""
        self._pending.pop(connection.connection_id, None)
        self.handle(ConnectionClosed(connection))

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Uuid:
        """Make a topic -> its id."""
        classes = API_KEYS[CREATE_TOPICS].request.classes
        make = classes["CreatableTopicConfig"]
        wanted = [make(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = classes["CreatableTopic"](name=name, num_partitions=partitions, replication_factor=1, configs=wanted)
        pending = self.send(CREATE_TOPICS, 7, API_KEYS[CREATE_TOPICS].request.new(topics=[topic], timeout_ms=5000))
        self.until(lambda: pending.answer is not None)
        (answer,) = pending.result().topics
        assert answer.error_code == 0, answer.error_message
        self.until(lambda: self.broker.replica_manager.partition(name, partitions - 1) is not None)
        return self.broker.image.topic_ids[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        state = API_KEYS[DELETE_TOPICS].request.classes["DeleteTopicState"](name=name)
        pending = self.send(DELETE_TOPICS, 6, API_KEYS[DELETE_TOPICS].request.new(topics=[state], timeout_ms=5000))
        self.until(lambda: pending.answer is not None)
        assert pending.result().responses[0].error_code == 0

    def produce(self, topic: str, index: int, records: bytes | None, **options: Any) -> Pending:
        """Produce to one partition, of a topic by name."""
        return self.produce_all({(topic, index): records}, **options)

    def produce_all(
        self,
        batches: dict[tuple[str, int], bytes | None],
        *,
        acks: int = -1,
        timeout_ms: int = 1000,
        version: int = 12,
        connection: Connection | None = None,
    ) -> Pending:
        """Produce to several partitions."""
        topic_ids = self.broker.image.topic_ids if version >= 13 else None
        return self.send(PRODUCE, version, produce_request(batches, acks, timeout_ms, topic_ids), connection)

    def fetch(
        self, offsets: dict[tuple[Any, int], int], *, version: int = 12, connection: Connection | None = None, **options: Any
    ) -> Pending:
        """Fetch from partitions (of topics by name, or by id from version 13 on) at offsets; see `fetch_request`."""
        return self.send(FETCH, version, fetch_request(offsets, version, **options), connection)


def produce_request(
    batches: dict[tuple[str, int], bytes | None],
    acks: int,
    timeout_ms: int = 1000,
    topic_ids: Mapping[str, Uuid] | None = None,
) -> Message:
    """A ProduceRequest; with `topic_ids` of a version that names topics by them."""
    classes = API_KEYS[PRODUCE].request.classes
    topics: dict[str, Message] = {}
    for (name, index), records in batches.items():
        if name not in topics:
            named = {"name": name} if topic_ids is None else {"topic_id": topic_ids.get(name, Uuid(b"\7" * 16))}
            topics[name] = classes["TopicProduceData"](**named, partition_data=[])
        topics[name].partition_data.append(classes["PartitionProduceData"](index=index, records=records))
    return API_KEYS[PRODUCE].request.new(acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))


def fetch_request(
    offsets: dict[tuple[Any, int], int],
    version: int = 12,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    log_start_offset: int = -1,
    replica_id: int = -1,
    replica_epoch: int = -1,
    rack_id: str = "",
    forgotten: tuple[tuple[Any, int], ...] = (),
) -> Message:
    """A FetchRequest."""
    classes = API_KEYS[FETCH].request.classes
    key = "topic_id" if version >= 13 else "topic"
    topics = [
        classes["FetchTopic"](
            **{key: name},
            partitions=[
                classes["FetchPartition"](
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                    current_leader_epoch=current_leader_epoch,
                    last_fetched_epoch=last_fetched_epoch,
                    log_start_offset=log_start_offset,
                )
            ],
        )
        for (name, index), offset in offsets.items()
    ]
    state = classes["ReplicaState"](replica_id=replica_id, replica_epoch=replica_epoch)
    reader = {"replica_state": state} if version >= 15 else {"replica_id": replica_id}
    return API_KEYS[FETCH].request.new(
        **reader,
        rack_id=rack_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=[classes["ForgottenTopic"](**{key: name}, partitions=[index]) for name, index in forgotten],
    )


def partitions_of(answer: Message, key: str = "topic") -> dict[tuple[Any, int], Message]:
    """The partitions of a FetchResponse by topic and index."""
    return {(getattr(topic, key), part.partition_index): part for topic in answer.responses for part in topic.partitions}


def batch(*values: bytes, timestamp: int = START_MS, attributes: int = 0, **fields: Any) -> bytes:
    """One batch of records with these values."""
    body = encode_records(Record(index, 0, None, value) for index, value in enumerate(values))
    made = NewRecordBatch(0, len(values) - 1, timestamp, timestamp, len(values), body, attributes)
    return made._replace(**fields).encode()
