"""Differential fuzzing: the same random requests to kcli and to Apache Kafka 4.3.1, whose answers are compared step by step.

    part            what it is
    --------------  ------------------------------------------------------------------------------------------------------
    Step            one request as data: its fields may contain `Struct`, and what differs between the brokers (`Var`, `Own`)
    Traffic         a kind of requests: it draws the next step, and learns from answers what later steps refer to
    Broker          one of the two: its connections, and the values that it has chosen (ids, epochs), by the names of the trace
    Rivals.run      one round: a seed gives the steps; the first difference ends it
    shrink          leaves out steps of a round that differs, as long as it still differs; the trace of what is left is printed

A round has topics, groups and transactional ids of its own (`Own`), so rounds do not disturb each other and one start of the
two brokers serves all of them. Answers are compared without the order of lists, and with ids replaced by their names.

Nothing is waited for by time: a request whose answer may wait for others (`may_wait`) is followed by two requests that each
broker answers at once. Kafka has one network and one I/O thread here, so after these the first one has been handled. Answers
that come later are awaited by their number: a broker that has answered less is given ANSWER_SECONDS.
"""

from __future__ import annotations

import random
import re
import select
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, read_header
from kcli.format.records import Record, encode_records
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from tests.oracle.raw_requests import BUSY, RawClient, until

ANSWER_SECONDS = 20
SHRINK_RUNS = 60
BATCH_MS = 1_750_000_000_000
CLOSED = "closed"
# A member id that a broker has chosen and not told yet.
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LEFT_OUT = frozenset(("error_message", "throttle_time_ms", "schema_version", "client_host", "node_endpoints"))


class Struct(NamedTuple):
    """A struct of the request, by Kafka's name."""

    name: str
    fields: dict[str, Any]


class Var(NamedTuple):
    """A value that a broker has chosen, and that its traffic has learned; `default` before."""

    name: str
    default: Any = None
    plus: int = 0


class Own(NamedTuple):
    """A name of this round: of a topic, a group or a transactional id."""

    name: str


class Made(NamedTuple):
    """A value that is made for each broker; `words` show it in a trace."""

    words: str
    make: Callable[[Broker], Any]


class Batch(NamedTuple):
    """One batch of records of a producer."""

    count: int = 1
    producer_id: Any = -1
    epoch: Any = -1
    sequence: int = -1
    attributes: int = 0


class Step(NamedTuple):
    """One request on a named connection; `tag` is what the traffic needs to learn from its answer."""

    key: int
    version: int
    fields: dict[str, Any]
    tag: Any = None
    connection: str = "a"
    may_wait: bool = False
    is_for_controller: bool = False


def shown(step: Step) -> str:
    """The step in one line of a trace."""
    return f"{step.connection}: {API_KEYS[step.key].name} {step.version} {_words(step.fields)}"


def _words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _words(inner) for key, inner in value.items() if inner not in (None, [])}
    if isinstance(value, Struct):
        return _words(value.fields)
    if isinstance(value, Var):
        return f"<{value.name}{value.plus:+d}>" if value.plus else f"<{value.name}>"
    if isinstance(value, Own):
        return f"~{value.name}"
    if isinstance(value, Made):
        return value.words
    return [_words(inner) for inner in value] if isinstance(value, list) else value


class Connection:
    """A connection on which requests are sent without waiting for their answers."""

    def __init__(self, address: str) -> None:
        client = RawClient(address, "fuzz")
        client.ask(apis.API_VERSIONS, 0)  # the broker has accepted the connection, so that requests on it are in order
        self.socket = client.socket
        self.waiting: list[Step] = []
        self._data = b""

    def send(self, step: Step, message: Message) -> None:
        self.waiting.append(step)
        try:
            self.socket.sendall(encode_request(7, API_KEYS[step.key], step.version, "fuzz", message))
        except OSError:
            pass  # `receive` finds that it is closed

    def receive(self) -> list[tuple[Step, Message | str]]:
        """What has come so far; the end of the connection answers all that wait."""
        found: list[tuple[Step, Message | str]] = []
        while self.waiting and select.select([self.socket], [], [], 0)[0]:
            try:
                part = self.socket.recv(1 << 20)
            except OSError:
                part = b""
            if not part:
                found += [(step, CLOSED) for step in self.waiting]
                self.waiting.clear()
                return found
            self._data += part
            while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack(">i", self._data[:4])[0]):
                frame, self._data = self._data[4 : 4 + size], self._data[4 + size :]
                step = self.waiting.pop(0)
                _, position = read_response_header(frame, API_KEYS[step.key], step.version)
                found.append((step, API_KEYS[step.key].response.decode(frame, step.version, position)[0]))
        return found


class Broker:
    """One of the two; `values` has what it has chosen in this round by name, `names` the same the other way round."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        host, _, port = address.rpartition(":")
        self.controller_address = f"{host}:{int(port) + 1}"
        self.client = RawClient(address, "fuzz")
        self.lasting: dict[str, Any] = {}  # values that outlive a round
        self.prefix = ""
        self.values: dict[str, Any] = {}
        self.names: dict[Any, str] = {}
        self._connections: dict[str, Connection] = {}
        self._controller: RawClient | None = None

    def begin(self, prefix: str) -> None:
        """Begin a round."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections = {}
        self.prefix, self.values, self.names = prefix, {}, {}

    def learn(self, name: str, value: Any) -> None:
        """Give a value that the broker has chosen its name in the trace."""
        self.values[name] = value
        self.names.setdefault(value, name)

    def count(self, kind: str) -> int:
        """How many values of a kind have been learned: m1, m2 and so on are of kind m."""
        return sum(name[: len(kind)] == kind and name[len(kind) :].isdigit() for name in self.values)

    def own(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def resolve(self, key: int, value: Any) -> Any:
        """A value of a step as this broker is to get it."""
        if isinstance(value, Var):
            found = self.values.get(value.name, value.default)
            return found + value.plus if value.plus else found
        if isinstance(value, Own):
            return self.own(value.name)
        if isinstance(value, Struct):
            return RawClient.struct(key, value.name, **{name: self.resolve(key, inner) for name, inner in value.fields.items()})
        if isinstance(value, Made):
            return value.make(self)
        if isinstance(value, Batch):
            return self._batch(key, value)
        if isinstance(value, list):
            return [self.resolve(key, inner) for inner in value]
        return value

    def _batch(self, key: int, batch: Batch) -> bytes:
        body = encode_records(Record(index, 0, None, b"v" * 20) for index in range(batch.count))
        producer = (self.resolve(key, batch.producer_id), self.resolve(key, batch.epoch), batch.sequence)
        made = NewRecordBatch(0, batch.count - 1, BATCH_MS, BATCH_MS, batch.count, body, batch.attributes, 0, *producer)
        return bytes(made.encode())

    def send(self, step: Step) -> None:
        message = API_KEYS[step.key].request.new(**{name: self.resolve(step.key, inner) for name, inner in step.fields.items()})
        name = f"controller {step.connection}" if step.is_for_controller else step.connection
        if name not in self._connections:
            self._connections[name] = Connection(self.controller_address if step.is_for_controller else self.address)
        self._connections[name].send(step, message)

    def receive(self) -> list[tuple[str, Step, Message | str]]:
        """What has come so far, by connection."""
        found = []
        for name, connection in sorted(self._connections.items()):
            found += [(name, step, answer) for step, answer in connection.receive()]
            if found and found[-1][2] == CLOSED:
                del self._connections[name]
                return found
        return found

    def is_busy(self, connection: str) -> bool:
        """Whether a request waits on a connection."""
        known = self._connections.get(connection)
        return known is not None and bool(known.waiting)

    def is_waiting(self, key: int) -> bool:
        """Whether a request of an API waits on any connection."""
        return any(step.key == key for connection in self._connections.values() for step in connection.waiting)

    def must_answer(self) -> bool:
        """Whether a request waits whose answer waits for nothing else."""
        return any(not step.may_wait for connection in self._connections.values() for step in connection.waiting)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        """Ask at once, outside of the comparison."""
        return self.client.ask(key, version, **{name: self.resolve(key, inner) for name, inner in fields.items()})

    def ask_controller(self, key: int, version: int, /, **fields: Any) -> Message:
        """Ask on the controller's listener, outside of the comparison."""
        if self._controller is None:
            self._controller = RawClient(self.controller_address, "fuzz")
        return self._controller.ask(key, version, **{name: self.resolve(key, inner) for name, inner in fields.items()})

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic of this round, on broker 1, which is the real one; its id is learned as id:NAME."""
        assigned = [
            Struct("CreatableReplicaAssignment", {"partition_index": index, "broker_ids": [1]}) for index in range(partitions)
        ]
        fields = {"name": Own(name), "num_partitions": -1, "replication_factor": -1, "assignments": assigned}
        answer = self.ask(apis.CREATE_TOPICS, 7, topics=[Struct("CreatableTopic", fields)], timeout_ms=10_000).topics[0]
        assert answer.error_code == 0, answer.error_message
        self.learn(f"id:{name}", answer.topic_id)
        parts = [Struct("ListOffsetsPartition", {"partition_index": index, "timestamp": -1}) for index in range(partitions)]
        topic = Struct("ListOffsetsTopic", {"name": Own(name), "partitions": parts})

        def is_led() -> bool:
            found = self.ask(apis.LIST_OFFSETS, 7, replica_id=-1, topics=[topic]).topics[0]
            return not any(part.error_code for part in found.partitions)

        until(is_led)

    def find_coordinator(self) -> None:
        """Have the topics of the coordinators made, and wait until the one of the round's group is loaded."""
        for key_type in (0, 1):
            self._until_found(key_type)
        unknown = {"group_id": Own("g"), "generation_id": 1, "member_id": "nobody"}
        until(lambda: self.ask(apis.HEARTBEAT, 4, **unknown).error_code not in BUSY)

    def _until_found(self, key_type: int) -> None:
        fields = {"key_type": key_type, "coordinator_keys": [Own("g")]}
        until(lambda: self.ask(apis.FIND_COORDINATOR, 4, **fields).coordinators[0].error_code == 0)


class Traffic(ABC):
    """Random requests of one kind. `leader` is kcli, whose values say which requests are worth while."""

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset()
    # Fields of numbers that a broker has chosen; text and ids are found by their value.
    NUMBERED: ClassVar[frozenset[str]] = frozenset()
    STEPS = 40

    @abstractmethod
    def prepare(self, broker: Broker) -> None:
        """Make what the requests of a round refer to."""

    @abstractmethod
    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """The next step, None for another try."""

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:  # noqa: B027  (not every traffic has to)
        """Learn from an answer what later steps refer to."""

    def seen(self, step: Step, answer: Any) -> Any:
        """What is compared of an answer as plain values."""
        return answer

    def settle(self, rivals: Rivals) -> tuple[Any, Any] | None:
        """Wait for what a step changes after its answer; return what differs then, None for nothing."""
        return None

    def plain(self, broker: Broker, value: Any, field: str = "") -> Any:
        """An answer as plain values: without order, and with the names of what the broker has chosen."""
        if isinstance(value, Message):
            names = [one.attribute for one in value.STRUCT.fields]
            left_out = LEFT_OUT | self.LEFT_OUT
            return {name: self.plain(broker, getattr(value, name), name) for name in names if name not in left_out}
        if isinstance(value, list):
            return sorted((self.plain(broker, inner, field) for inner in value), key=repr)
        if field == "records":
            return _headers(broker, bytes(value or b""))
        if isinstance(value, str):
            return UUID.sub("UUID", broker.names.get(value, value).replace(broker.prefix, "~"))
        if isinstance(value, int) and field not in self.NUMBERED:
            return value
        try:
            return broker.names.get(value, value)
        except TypeError:
            return bytes(value)


def produce_step(topic: str, index: int, batch: Batch, version: int = 9, transactional_id: Any = None, tag: Any = None) -> Step:
    """Produce one batch."""
    records = Made(repr(batch), lambda broker: broker.resolve(apis.PRODUCE, batch))
    data = Struct("PartitionProduceData", {"index": index, "records": records})
    topics = [Struct("TopicProduceData", {"name": Own(topic), "partition_data": [data]})]
    fields = {"transactional_id": transactional_id, "acks": -1, "timeout_ms": 5000, "topic_data": topics}
    return Step(apis.PRODUCE, version, fields, tag)


def delete_records_step(topic: str, index: int, offset: int) -> Step:
    """Delete records up to an offset, -1 for the high watermark."""
    parts = [Struct("DeleteRecordsPartition", {"partition_index": index, "offset": offset})]
    topics = [Struct("DeleteRecordsTopic", {"name": Own(topic), "partitions": parts})]
    return Step(apis.DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 5000})


def _headers(broker: Broker, data: bytes) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while len(data) >= HEADER_BYTES:
        batch = read_header(data)
        producer = broker.names.get(batch.producer_id, batch.producer_id)
        found.append(
            (batch.base_offset, batch.last_offset, batch.attributes, producer, batch.producer_epoch, batch.base_sequence)
        )
        data = data[batch.end_position :]
    return found


class Difference(NamedTuple):
    """Where the two brokers part: the steps so far, and what each answered to the last one."""

    steps: list[Step]
    kcli: Any
    kafka: Any


class Rivals:
    """kcli and Apache Kafka."""

    def __init__(self, kcli_address: str, kafka_address: str) -> None:
        self.kcli = Broker("kcli", kcli_address)
        self.kafka = Broker("Kafka", kafka_address)
        self.both = (self.kcli, self.kafka)
        self._rounds = 0

    def check(self, make: Callable[[], Traffic], seed: int) -> None:
        """One round of a seed. Raises AssertionError with the shortest trace that was found."""
        found = self.run(make(), seed)
        if found is None:
            return
        shortest = self.shrink(make, found)
        trace = "\n  ".join(map(shown, shortest.steps))
        raise AssertionError(f"seed {seed}:\n  {trace}\n kcli {shortest.kcli}\nKafka {shortest.kafka}")

    def run(self, traffic: Traffic, seed: int) -> Difference | None:
        """Draw and compare the steps of a seed."""
        rng = random.Random(seed)
        self._begin(traffic)
        steps: list[Step] = []
        while len(steps) < traffic.STEPS:
            step = traffic.draw(rng, self.kcli)
            if step is None or self.kcli.is_busy(step.connection):
                continue
            steps.append(step)
            found = self._compare(traffic, step)
            if found is not None:
                return Difference(steps, *found)
        return None

    def again(self, traffic: Traffic, steps: Sequence[Step]) -> Difference | None:
        """Compare these steps in a new round."""
        self._begin(traffic)
        for at, step in enumerate(steps):
            found = self._compare(traffic, step)
            if found is not None:
                return Difference(list(steps[: at + 1]), *found)
        return None

    def shrink(self, make: Callable[[], Traffic], found: Difference) -> Difference:
        """Leave out steps, in halves, quarters and so on, as long as the brokers still differ."""
        size, runs = len(found.steps) // 2, 0
        while size and runs < SHRINK_RUNS:
            at = 0
            while at < len(found.steps) - 1 and runs < SHRINK_RUNS:
                shorter = self.again(make(), found.steps[:at] + found.steps[at + size :])
                runs += 1
                if shorter is not None:
                    found = shorter
                else:
                    at += size
            size //= 2
        return found

    def wait_for_topics(self, names: Sequence[Own]) -> None:
        """Wait until the metadata of both brokers agree on these topics, and each partition has its leader."""

        def found(broker: Broker) -> Any:
            topics = [Struct("MetadataRequestTopic", {"name": name}) for name in names]
            answer = broker.ask(apis.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
            return sorted((one.name, one.error_code, [part.leader_id for part in one.partitions]) for one in answer.topics)

        def is_same() -> bool:
            mine, theirs = map(found, self.both)
            return bool(mine == theirs and not any(-1 in leaders for _, _, leaders in mine))

        until(is_same)

    def _begin(self, traffic: Traffic) -> None:
        self._rounds += 1
        for broker in self.both:
            broker.begin(f"r{self._rounds}")
            traffic.prepare(broker)

    def _compare(self, traffic: Traffic, step: Step) -> tuple[Any, Any] | None:
        for broker in self.both:
            broker.send(step)
        if step.may_wait:
            for broker in self.both:
                for _ in range(2):
                    broker.ask(apis.DESCRIBE_GROUPS, 5, groups=[Own("g")])
        came = self._gather()
        mine, theirs = (self._seen(traffic, broker, found) for broker, found in zip(self.both, came))
        return traffic.settle(self) if mine == theirs else (mine, theirs)

    def _gather(self) -> list[list[tuple[str, Step, Message | str]]]:
        """Receive until nothing is missing that does not wait, and both brokers have answered as much."""
        came: list[list[tuple[str, Step, Message | str]]] = [[], []]
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            for broker, found in zip(self.both, came):
                found += broker.receive()
            is_missing = any(broker.must_answer() for broker in self.both)
            if not is_missing and len(came[0]) == len(came[1]):
                return came
            if time.monotonic() > end:
                return came
            time.sleep(0.001)  # a poll of two other processes, which give no other sign

    @staticmethod
    def _seen(traffic: Traffic, broker: Broker, came: list[tuple[str, Step, Message | str]]) -> list[Any]:
        for _, step, answer in came:
            if isinstance(answer, Message):
                traffic.learn(broker, step, answer)
        found = [
            (name, API_KEYS[step.key].name, traffic.seen(step, traffic.plain(broker, answer))) for name, step, answer in came
        ]
        return sorted(found, key=lambda one: one[0])
