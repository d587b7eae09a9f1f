"""Exchanges about transactions, right and wrong, that are held with Apache Kafka and with kcli: what each request is answered.

An exchange has transactional ids, a topic and a group of its own. Its wrong requests (`wrong`) must not change the state that
DescribeTransactions, DescribeProducers and ListOffsets show; others (`right`) may, and the state after them is part of the
answers. Producer ids are chosen by the brokers: p1, p2 and so on, by the order in which they appear. Left out: throttle times,
sentences, and the times of transactions, of which only is kept whether there is one.

Each exchange is held with both kinds of clients: those of transaction.version 2, and those before, which add partitions
themselves. At level 0 it is held with the older ones alone: Kafka cannot write the records of the others, and blocks their
transactional ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.server.apis.asking import struct

LEVELS = (2, 1, 0)  # of transaction.version, in the order in which a cluster gets them
LEFT_OUT = frozenset(("error_message", "throttle_time_ms", "batch_index_error_message", "topic_id"))
TIMES = frozenset(("transaction_start_time_ms", "last_timestamp", "log_append_time_ms"))
BATCH_MS = 1_750_000_000_000
NOT_READY = (error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_LOAD_IN_PROGRESS)
PREPARED = ("PrepareCommit", "PrepareAbort")
GROUP_TOPIC = "__consumer_offsets"
UNKNOWN_ID = 1_000_000_000_000

# Sends a request and returns its answer; `pause` lets some milliseconds go by.
Ask = Callable[..., Message]
Answers = list[list[Any]]


class Ids(NamedTuple):
    """What a client knows of itself."""

    producer_id: int
    epoch: int


class Client:
    """A producer with a transactional id; `bumps` are those of transaction.version 2."""

    def __init__(self, exchange: Exchange, name: str) -> None:
        self.exchange = exchange
        self.name = f"{exchange.name}.{name}"
        self.ids = Ids(-1, -1)

    def init(self, timeout_ms: int = 60_000) -> Client:
        """Get the next epoch; asked again while a transaction is ending."""
        fields = {"transactional_id": self.name, "transaction_timeout_ms": timeout_ms}
        answer = self.exchange.until_settled(apis.INIT_PRODUCER_ID, 5, **fields)
        assert answer.error_code == 0, error_codes.NAMES[answer.error_code]
        self.ids = Ids(answer.producer_id, answer.producer_epoch)
        return self

    def changed(self, **fields: Any) -> Client:
        """The client with other ids or another name: a wrong one."""
        made = Client(self.exchange, "")
        made.name = fields.pop("name", self.name)
        made.ids = self.ids._replace(**fields)
        return made

    @property
    def fields(self) -> dict[str, Any]:
        """What most requests say of it."""
        return {"transactional_id": self.name, "producer_id": self.ids.producer_id, "producer_epoch": self.ids.epoch}

    def begin(self, *indexes: int, value: bytes = b"value") -> Client:
        """Open a transaction in partitions, with one record in each, the first of this epoch."""
        for index in indexes or (0,):
            if not self.exchange.bumps:
                self.exchange.send(self.add_request({self.exchange.topic: [index]}))
            key, version, fields = self.produce_request(index=index, version=12 if self.exchange.bumps else 11, value=value)
            answer = self.exchange.until_settled(key, version, **fields)
            (part,) = answer.responses[0].partition_responses
            assert part.error_code == 0, error_codes.NAMES[part.error_code]
        return self

    def end(self, is_commit: bool) -> Client:
        """End the transaction; wait until its markers are written."""
        answer = self.exchange.send(self.end_request(is_commit, 5 if self.exchange.bumps else 4))
        assert answer.error_code == 0, error_codes.NAMES[answer.error_code]
        if self.exchange.bumps:
            self.ids = Ids(answer.producer_id, answer.producer_epoch)
        self.exchange.settle()
        return self

    # ------------------------------------------------------------------------------------------------------- requests

    def add_request(self, topics: dict[str, list[int]], version: int = 3) -> Any:
        key = apis.ADD_PARTITIONS_TO_TXN
        made = [struct(key, "AddPartitionsToTxnTopic", name=name, partitions=indexes) for name, indexes in topics.items()]
        fields = {f"v3_and_below_{name}": value for name, value in self.fields.items()}
        return key, version, {**fields, "v3_and_below_topics": made}

    def transaction(self, topics: dict[str, list[int]], *, verify_only: bool = False) -> Message:
        """A transaction of an AddPartitionsToTxn of a broker."""
        key = apis.ADD_PARTITIONS_TO_TXN
        made = [struct(key, "AddPartitionsToTxnTopic", name=name, partitions=indexes) for name, indexes in topics.items()]
        return struct(key, "AddPartitionsToTxnTransaction", **self.fields, topics=made, verify_only=verify_only)

    def end_request(self, is_commit: bool, version: int) -> Any:
        return apis.END_TXN, version, {**self.fields, "committed": is_commit}

    def offsets_request(
        self,
        version: int,
        *,
        topic: str | None = None,
        index: int = 0,
        offset: int = 5,
        metadata: str = "",
        generation_id: int = -1,
        **fields: Any,
    ) -> Any:
        key = apis.TXN_OFFSET_COMMIT
        values = {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        part = struct(key, "TxnOffsetCommitRequestPartition", **values)
        found = struct(key, "TxnOffsetCommitRequestTopic", name=topic or self.exchange.topic, partitions=[part])
        named = {"group_id": self.exchange.group, "topics": [found], "generation_id_or_member_epoch": generation_id}
        return key, version, {**self.fields, **named, **fields}

    def produce_request(
        self,
        *,
        index: int = 0,
        version: int = 12,
        sequence: int = 0,
        attributes: int = TRANSACTIONAL_FLAG,
        topic: str | None = None,
        acks: int = -1,
        transactional_id: str | None = "same",
        value: bytes = b"value",
        **fields: Any,
    ) -> Any:
        key, exchange = apis.PRODUCE, self.exchange
        batch = {"producer_id": self.ids.producer_id, "producer_epoch": self.ids.epoch, "base_sequence": sequence, **fields}
        data = struct(key, "PartitionProduceData", index=index, records=encode_batch(value, attributes, batch))
        named = {"topic_id": exchange.topic_id} if version >= 13 else {"name": topic or exchange.topic}
        found = struct(key, "TopicProduceData", partition_data=[data], **named)
        name = self.name if transactional_id == "same" else transactional_id
        return key, version, {"transactional_id": name, "acks": acks, "timeout_ms": 5_000, "topic_data": [found]}

    def marker(self, is_commit: bool, topics: dict[str, list[int]], **fields: Any) -> Message:
        key = apis.WRITE_TXN_MARKERS
        made = [struct(key, "WritableTxnMarkerTopic", name=name, partition_indexes=found) for name, found in topics.items()]
        values = {"producer_id": self.ids.producer_id, "producer_epoch": self.ids.epoch, **fields}
        return struct(key, "WritableTxnMarker", transaction_result=is_commit, topics=made, **values)


def encode_batch(value: bytes, attributes: int, fields: dict[str, Any]) -> bytes:
    """One batch with one record."""
    body = encode_records([Record(0, 0, None, value)])
    return NewRecordBatch(0, 0, BATCH_MS, BATCH_MS, 1, body, attributes)._replace(**fields).encode()


class Exchange:
    """One exchange with one broker; `answers` has a label, the answer and the state after it for each request that counts."""

    def __init__(self, name: str, ask: Ask, pause: Callable[[], None], *, bumps: bool, level: int = 2) -> None:
        self.level = level
        self.name = f"{name}.{'new' if bumps else 'old'}"
        self.bumps = bumps
        self.ask = ask
        self.pause = pause
        self.answers: Answers = []
        self.topic = self.name
        self.group = f"{self.name}.g"
        self.clients: list[Client] = []
        self._producers: dict[int, str] = {}
        topic = struct(apis.CREATE_TOPICS, "CreatableTopic", name=self.topic, num_partitions=2, replication_factor=1)
        (made,) = ask(apis.CREATE_TOPICS, 7, topics=[topic], timeout_ms=10_000).topics
        assert made.error_code == 0, made.error_message
        self.topic_id = made.topic_id
        self._wait_for_topic()

    def _wait_for_topic(self) -> None:
        while any(answer["error_code"] for answer in self._offsets()):
            self.pause()

    def client(self, name: str = "x") -> Client:
        """A client that is not initialised yet."""
        made = Client(self, name)
        self.clients.append(made)
        return made

    # -------------------------------------------------------------------------------------------------------- answers

    def wrong(self, label: str, request: Any) -> None:
        """A request that should change nothing; if it does, the state after it is part of the answers."""
        before = self.state()
        self._note(label, request)
        after = self.state()
        if after != before:
            self.answers[-1].append(after)

    def right(self, label: str, request: Any) -> Message:
        """A request that may change the state: that is noted, once no transaction is ending."""
        answer = self._note(label, request)
        self.settle()
        self.answers[-1].append(self.state())
        return answer

    def _note(self, label: str, request: Any) -> Message:
        answer = self.send(request)
        self.answers.append([label, self.plain(answer)])
        return answer

    def send(self, request: Any) -> Message:
        """The answer to a request."""
        key, version, fields = request
        return self.ask(key, version, **fields)

    def plain(self, value: Any, name: str = "") -> Any:
        """An answer as JSON has it."""
        if isinstance(value, Message):
            found = {field.attribute: getattr(value, field.attribute) for field in value.STRUCT.fields}
            return {key: self.plain(inner, key) for key, inner in found.items() if key not in LEFT_OUT}
        if isinstance(value, list):
            return sorted((self.plain(inner) for inner in value), key=repr)
        if name in TIMES:
            return value > 0
        if name.endswith("error_code"):
            return error_codes.NAMES[value]
        if name == "producer_id" and value >= 0:
            return self._producers.setdefault(value, f"p{len(self._producers) + 1}")
        return value

    def state(self) -> Any:
        """What the broker says of the transactional ids, the producers and the offsets of the exchange."""
        ids = sorted({client.name for client in self.clients})
        described = self.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids)
        topic = struct(apis.DESCRIBE_PRODUCERS, "TopicRequest", name=self.topic, partition_indexes=[0, 1])
        producers = self.ask(apis.DESCRIBE_PRODUCERS, 0, topics=[topic])
        committed = self.ask(apis.OFFSET_FETCH, 7, group_id=self.group, topics=None, require_stable=True)
        return [self.plain(described), self.plain(producers), self._offsets(), self.plain(committed)]

    def _offsets(self) -> list[Any]:
        answers = []
        for isolation in (0, 1):
            parts = [struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=index, timestamp=-1) for index in (0, 1)]
            topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name=self.topic, partitions=parts)
            answer = self.ask(apis.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation, topics=[topic])
            for part in sorted(answer.topics[0].partitions, key=lambda part: part.partition_index):
                answers.append({"error_code": part.error_code, "offset": part.offset})
        return answers

    def settle(self) -> None:
        """Wait until no transaction of the exchange is ending."""
        ids = [client.name for client in self.clients]
        while any(
            found.transaction_state in PREPARED
            for found in self.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids).transaction_states
        ):
            self.pause()

    def until_settled(self, key: int, version: int, **fields: Any) -> Message:
        """The answer that is neither CONCURRENT_TRANSACTIONS nor that of a coordinator that is not ready."""
        while True:
            answer = self.ask(key, version, **fields)
            code = answer.responses[0].partition_responses[0].error_code if key == apis.PRODUCE else answer.error_code
            if code not in (*NOT_READY, error_codes.CONCURRENT_TRANSACTIONS, error_codes.NOT_ENOUGH_REPLICAS):
                return answer
            self.pause()


# ------------------------------------------------------------------------------------------------------------ exchanges


def _impostors(client: Client) -> Iterator[tuple[str, Client]]:
    """Clients that have something wrong, with what."""
    yield "unknown transactional id", client.changed(name="nobody")
    yield "empty transactional id", client.changed(name="")
    yield from _other_producers(client)


def _other_producers(client: Client) -> Iterator[tuple[str, Client]]:
    """Clients with a wrong producer id or epoch: the only ones that a partition with an open transaction refuses."""
    yield "another producer id", client.changed(producer_id=client.ids.producer_id + UNKNOWN_ID)
    yield "no producer id", client.changed(producer_id=-1)
    yield "an epoch before", client.changed(epoch=client.ids.epoch - 1)
    yield "an epoch after", client.changed(epoch=client.ids.epoch + 1)
    yield "no ids", client.changed(producer_id=-1, epoch=-1)


def init_producer_id(x: Exchange) -> None:
    """InitProducerId that is refused, and that gives the next epoch."""
    client = x.client().init()
    fields = {"transactional_id": client.name, "transaction_timeout_ms": 60_000}
    for version in range(6):
        key = (apis.INIT_PRODUCER_ID, version)
        for wrong in ({"transactional_id": ""}, *({"transaction_timeout_ms": ms} for ms in (0, -1, 900_001))):
            x.wrong(f"init {version} {wrong}", (*key, {**fields, **wrong}))
        if version < 3:
            continue
        mine, other = client.ids, client.ids.producer_id + UNKNOWN_ID
        for label, ids in (
            ("an id without an epoch", Ids(mine.producer_id, -1)),
            ("an epoch without an id", Ids(-1, mine.epoch)),
            ("another id", Ids(other, mine.epoch)),
            ("another id, exhausted", Ids(other, 32766)),
            ("an epoch after", Ids(mine.producer_id, mine.epoch + 1)),
            ("negative", Ids(mine.producer_id, -2)),
        ):
            expected = {"producer_id": ids.producer_id, "producer_epoch": ids.epoch}
            x.wrong(f"init {version} {label}", (*key, {**fields, **expected}))
            if -1 in ids:
                x.wrong(
                    f"init {version} {label}, no transactional id", (*key, {**fields, **expected, "transactional_id": None})
                )
        expected = {"producer_id": mine.producer_id, "producer_epoch": mine.epoch}
        answer = x.right(f"init {version} the next epoch", (*key, {**fields, **expected}))
        x.right(f"init {version} the same again", (*key, {**fields, **expected}))
        client.ids = Ids(answer.producer_id, answer.producer_epoch)
        old = {"producer_id": mine.producer_id, "producer_epoch": mine.epoch - 1}
        x.wrong(f"init {version} two epochs before", (*key, {**fields, **old}))
    x.right("init of a new instance", (apis.INIT_PRODUCER_ID, 5, fields))
    x.wrong("init of the old one", (apis.INIT_PRODUCER_ID, 5, {**fields, **client.fields}))
    x.wrong("init 3 of the old one", (apis.INIT_PRODUCER_ID, 3, {**fields, **client.fields}))


def init_while_open(x: Exchange) -> None:
    """InitProducerId with an open transaction: it is aborted, and the client asks again."""
    client = x.client().init().begin(0, 1)
    fields = {"transactional_id": client.name, "transaction_timeout_ms": 60_000}
    wrong = client.changed(epoch=client.ids.epoch + 5).fields
    x.right("init of the same instance with a later epoch", (apis.INIT_PRODUCER_ID, 5, {**fields, **wrong}))
    client.init().begin(0)
    x.right("init of the same instance", (apis.INIT_PRODUCER_ID, 5, {**fields, **client.fields}))
    x.right("init of the same instance again", (apis.INIT_PRODUCER_ID, 5, {**fields, **client.fields}))
    client.init().begin(0)
    x.wrong("init of another id", (apis.INIT_PRODUCER_ID, 5, {**fields, "producer_id": UNKNOWN_ID, "producer_epoch": 0}))
    x.right("init of a new instance", (apis.INIT_PRODUCER_ID, 5, fields))
    x.wrong("produce of the old instance", client.produce_request(sequence=1))
    x.wrong("end 4 of the old instance", client.end_request(True, 4))
    x.wrong("end 5 of the old instance", client.end_request(True, 5))
    x.right("init of a new instance again", (apis.INIT_PRODUCER_ID, 5, fields))


def add_partitions(x: Exchange) -> None:
    """AddPartitionsToTxn of clients."""
    client = x.client().init().begin(0)
    here = {x.topic: [1]}
    for version in range(4):
        for label, wrong in _impostors(client):
            x.wrong(f"add {version} {label}", wrong.add_request(here, version))
        for topics in ({"none": [0]}, {x.topic: [0, 9]}, {x.topic: [1, -1]}, {GROUP_TOPIC: [0]}, {x.topic: [1], "none": [0]}):
            x.wrong(f"add {version} {sorted(map(repr, topics.values()))}", client.add_request(topics, version))
        x.wrong(f"add {version} what is added", client.add_request({x.topic: [0, 0]}, version))
        x.wrong(f"add {version} nothing", client.add_request({}, version))
    x.right("add the other", client.add_request(here))
    client.end(True)
    for label, wrong in _impostors(client):
        x.wrong(f"add after the end: {label}", wrong.add_request(here))
    x.right("add nothing", client.add_request({}))
    x.right("end of nothing", client.end_request(True, 5 if x.bumps else 4))


def add_partitions_of_brokers(x: Exchange) -> None:
    """AddPartitionsToTxn of several transactions, and verified only."""
    key, here = apis.ADD_PARTITIONS_TO_TXN, {x.topic: [1]}
    one, two = x.client("one").init().begin(0), x.client("two").init()
    for version in (4, 5):
        for only in (True, False):
            for label, wrong in _impostors(one):
                request = {"transactions": [wrong.transaction(here, verify_only=only)]}
                x.wrong(f"add {version} only={only} {label}", (key, version, request))
            for topics in ({"none": [0]}, {x.topic: [0, 9]}, {x.topic: [1], "none": [0]}):
                request = {"transactions": [one.transaction(topics, verify_only=only)]}
                x.wrong(f"add {version} only={only} {sorted(map(repr, topics.values()))}", (key, version, request))
        for topics in (here, {x.topic: [0, 1]}, {x.topic: [0]}, {}):
            request = {"transactions": [one.transaction(topics, verify_only=True), two.transaction(topics, verify_only=True)]}
            x.wrong(f"verify {version} {sorted(map(repr, topics.values()))} of two", (key, version, request))
    wrong = two.changed(epoch=7)
    request = {"transactions": [one.transaction(here), wrong.transaction(here), two.changed(name="nobody").transaction(here)]}
    if x.level > 0:  # else the first of the three ends Kafka's handling of the request
        x.right("add of three, two of them wrong", (key, 5, request))


def add_offsets(x: Exchange) -> None:
    """AddOffsetsToTxn."""
    client = x.client().init()
    key, group = apis.ADD_OFFSETS_TO_TXN, {"group_id": "g"}  # of one partition in all runs
    for version in range(5):
        for label, wrong in _impostors(client):
            x.wrong(f"add offsets {version} {label}", (key, version, {**wrong.fields, **group}))
    x.right("add offsets", (key, 4, {**client.fields, **group}))
    x.wrong("add offsets again", (key, 4, {**client.fields, **group}))
    client.end(False)
    for label, wrong in _impostors(client):
        x.wrong(f"add offsets after the end: {label}", (key, 4, {**wrong.fields, **group}))
    x.right("add offsets of a group without a name", (key, 4, {**client.fields, "group_id": ""}))


def offset_commits(x: Exchange) -> None:
    """TxnOffsetCommit: outside of a transaction, with wrong ids, members, topics."""
    client = x.client().init()
    for version in range(6):
        for label, wrong in _impostors(client):
            x.wrong(f"commit {version} {label}", wrong.offsets_request(version))
        for fields in ({"topic": "none"}, {"index": 9}, {"index": -1}, {"group_id": ""}):
            x.wrong(f"commit {version} {fields}", client.offsets_request(version, **fields))
        if version < 5:
            x.wrong(f"commit {version} outside of a transaction", client.offsets_request(version))
    x.ask(apis.ADD_OFFSETS_TO_TXN, 4, **client.fields, group_id=x.group)
    x.right("commit, open", client.offsets_request(3))
    for version in range(6):
        for label, wrong in _other_producers(client):
            x.wrong(f"commit {version}, open: {label}", wrong.offsets_request(version, offset=99))
        x.wrong(f"commit {version}, open: metadata", client.offsets_request(version, metadata="m" * 4097))
        if version < 3:
            continue
        for fields in (
            {"member_id": "nobody"},
            {"generation_id": 3},
            {"generation_id": 3, "member_id": "nobody"},
            {"group_instance_id": "i"},
            {"group_instance_id": "i", "member_id": "nobody", "generation_id": 1},
        ):
            x.wrong(f"commit {version}, open: {fields}", client.offsets_request(version, **fields))
    for version in range(6):
        x.right(f"commit {version}, open", client.offsets_request(version, index=version % 2))
    for fields in ({"member_id": "nobody"}, {"generation_id": 3, "member_id": "nobody"}):
        x.wrong(f"commit to a group: {fields}", client.offsets_request(5, **fields))
    client.end(True)
    x.wrong("commit 4 after the end", client.changed(epoch=client.ids.epoch - 1).offsets_request(4))
    x.wrong("commit 3 after the end", client.offsets_request(3))


def ends(x: Exchange) -> None:
    """EndTxn in each state, of each kind of client, with epochs before and after."""
    for state in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort"):
        for is_commit in (True, False):
            for step in (-2, -1, 0, 1):
                for version in (1, 4, 5) if step in (0, -1) else (5,):
                    client = x.client(f"{state}-{is_commit}-{step}-{version}").init()
                    if state != "Empty":
                        client.begin()
                    if state.startswith("Complete"):
                        client.end(state == "CompleteCommit")
                    request = client.changed(epoch=client.ids.epoch + step).end_request(is_commit, version)
                    x.right(f"end in {state}, {version}, commit={is_commit}, epoch {step}", request)
                    x.clients.clear()


def ends_of_impostors(x: Exchange) -> None:
    """EndTxn with something wrong, when a transaction is open and when none is."""
    client = x.client().init().begin()
    for phase in ("open", "ended"):
        for version in range(6):
            for is_commit in (True, False):
                for label, wrong in _impostors(client):
                    if phase == "ended" and label == "an epoch before":
                        continue  # a retry: see `ends`
                    x.wrong(f"end {version}, {phase}, commit={is_commit}: {label}", wrong.end_request(is_commit, version))
        if phase == "open":
            client.end(True)


def late_ends(x: Exchange) -> None:
    """The end of a transaction comes when the next one is open: new clients are fenced, older ones end it."""
    client = x.client().init().begin()
    first = client.changed()
    client.end(True).begin(1)
    x.right("the first end again", first.end_request(True, 5 if x.bumps else 4))
    x.right("the first end as an abort", first.end_request(False, 5 if x.bumps else 4))
    x.right("the second end", client.end_request(True, 5 if x.bumps else 4))


def produced(x: Exchange) -> None:
    """Produce with transactional batches, outside of a transaction and in one."""
    client = x.client().init()
    for version in (3, 9, 10, 11):
        x.wrong(f"produce {version} outside of a transaction", client.produce_request(version=version))
    for version in (3, 10, 11, 12, 13) if x.level else (3, 10, 11):
        for label, wrong in _impostors(client):
            x.wrong(f"produce {version} {label}", wrong.produce_request(version=version))
        x.wrong(f"produce {version} without an id", client.produce_request(version=version, transactional_id=None))
        x.wrong(f"produce {version} by another's id", client.produce_request(version=version, transactional_id="nobody"))
        x.wrong(f"produce {version} partition 9", client.produce_request(version=version, index=9))
        if version < 13:
            x.wrong(f"produce {version} no topic", client.produce_request(version=version, topic="none"))
            x.wrong(f"produce {version} internal", client.produce_request(version=version, topic=GROUP_TOPIC))
    client.begin(0)
    for version in (3, 11, 12, 13):
        for label, wrong in _other_producers(client):
            x.wrong(f"produce {version}, open: {label}", wrong.produce_request(version=version, sequence=1))
        for sequence in (2, 100, -1):
            x.wrong(f"produce {version}, open: sequence {sequence}", client.produce_request(version=version, sequence=sequence))
        x.wrong(f"produce {version}, open: again", client.produce_request(version=version))
        for label, attributes in (
            ("not transactional", 0),
            ("control", TRANSACTIONAL_FLAG | CONTROL_FLAG),
            ("control only", 32),
        ):
            request = client.produce_request(version=version, sequence=1, attributes=attributes)
            x.wrong(f"produce {version}, open: {label}", request)
    x.right("the next record", client.produce_request(sequence=1, acks=1))
    if not x.bumps:
        x.send(client.add_request({x.topic: [1]}))
    version = 12 if x.bumps else 11
    x.right("sequence 5 in another partition", client.produce_request(sequence=5, index=1, version=version))
    client.end(False)
    before = client.changed(epoch=client.ids.epoch - 1)
    x.wrong("produce of the epoch before", before.produce_request(sequence=2, version=version))
    x.wrong("produce 11 after the end", client.produce_request(version=11, sequence=2 if not x.bumps else 0))
    x.wrong("produce 10 after the end", client.produce_request(version=10, sequence=2 if not x.bumps else 0))
    x.right("not transactional after the end", client.produce_request(attributes=0, sequence=2, transactional_id=None))


def markers(x: Exchange) -> None:
    """WriteTxnMarkers of coordinators and tools."""
    client = x.client().init().init().begin(0)
    key, here, epoch = apis.WRITE_TXN_MARKERS, {x.topic: [0]}, client.ids.epoch

    def request(version: int, *found: Message) -> Any:
        return key, version, {"markers": list(found)}

    for version in (1, 2):
        x.wrong(f"{version} none", request(version))
        x.wrong(f"{version} of no topic", request(version, client.marker(True, {})))
        for topics in ({"none": [0]}, {x.topic: [9]}, {x.topic: [-1], "none": [0]}):
            x.wrong(f"{version} {sorted(map(repr, topics.values()))}", request(version, client.marker(True, topics)))
        x.wrong(f"{version} an epoch before", request(version, client.marker(True, here, producer_epoch=epoch - 1)))
    x.wrong("the same epoch", request(2, client.marker(True, here, transaction_version=2)))
    two = [client.marker(True, {"none": [0]}), client.marker(False, {"none": [1], x.topic: [9]})]
    x.wrong("two of a producer", request(2, *two))
    abort = client.marker(False, here, producer_epoch=epoch + 1, transaction_version=2, coordinator_epoch=5)
    x.right("an abort of the next epoch", request(2, abort))
    x.wrong("a coordinator before", request(2, client.marker(True, here, producer_epoch=epoch + 2, coordinator_epoch=4)))
    x.wrong(
        "version 2, the epoch again", request(2, client.marker(True, here, producer_epoch=epoch + 1, transaction_version=2))
    )
    unknown = x.client("never").changed(producer_id=UNKNOWN_ID, epoch=3)
    for name, fields in (("producer", {"producer_id": -1}), ("epoch", {"producer_epoch": -1})):
        for topics in ({"none": [0]}, {x.topic: [1], "none": [0]}, {"__consumer_offsets": [0], x.topic: [9]}):
            x.wrong(f"no {name}, {sorted(topics)}", request(2, unknown.marker(True, topics, **fields)))
    after = [unknown.marker(True, {x.topic: [1]}), unknown.marker(True, here, producer_id=-1)]
    x.right("a marker before one of no producer", request(2, *after))
    x.right("a producer without records", request(2, unknown.marker(True, {x.topic: [1]})))
    x.right(
        "version 2, without records", request(2, unknown.marker(True, {x.topic: [1]}, producer_epoch=4, transaction_version=2))
    )


def described(x: Exchange) -> None:
    """DescribeTransactions, ListTransactions and DescribeProducers."""
    one, two = x.client("one").init().begin(0, 1), x.client("two").init()
    for ids in ([], ["nobody"], [""], [one.name, "nobody", one.name, two.name]):
        x.wrong(f"describe {len(ids)}", (apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ids}))
    for topics in ({x.topic: [0, 1, 9, -1]}, {"none": [0]}, {"": [0]}, {"not/valid": [0]}, {"..": [0]}, {"n" * 250: [0]}, {}):
        made = [
            struct(apis.DESCRIBE_PRODUCERS, "TopicRequest", name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
        x.wrong(
            f"producers of {[name[:9] for name in topics if name != x.topic]}", (apis.DESCRIBE_PRODUCERS, 0, {"topics": made})
        )
    ids = [one.ids.producer_id, UNKNOWN_ID]
    pattern = "transactional_id_pattern"
    filters: list[dict[str, Any]] = [
        *({"state_filters": states} for states in (["Ongoing"], ["Empty", "Odd"], ["Odd"], ["ongoing"])),
        *({"producer_id_filters": found} for found in (ids, [UNKNOWN_ID], [-1])),
        *({"duration_filter": ms} for ms in (0, 100_000_000_000_000, -1, -5)),
        *({pattern: text} for text in ("", "one", f"{x.name}\\.o.e", ".*\\.one", f"(?i){x.name.upper()}\\.TWO", "no.*")),
        *(
            {pattern: text}
            for text in ("(", "a{2,1}", "[a", "a**", "(?=a)", "(a)\\1", "\\pL+", "(?P<n>.*)one", "\\Qone\\E", ".*\\z")
        ),
        {"state_filters": ["Ongoing"], "producer_id_filters": ids, "duration_filter": 0, pattern: ".*one"},
    ]
    for fields in filters:
        version = 2 if pattern in fields else 1
        answer = x.ask(apis.LIST_TRANSACTIONS, version, **fields)
        answer.transaction_states = [one for one in answer.transaction_states if one.transactional_id.startswith(x.name)]
        label = {name: value for name, value in fields.items() if name != "producer_id_filters"}
        x.answers.append([f"list {label}".replace(x.name, "NAME"), x.plain(answer)])


EXCHANGES: tuple[Callable[[Exchange], None], ...] = (
    *(init_producer_id, init_while_open, add_partitions, add_partitions_of_brokers, add_offsets, offset_commits),
    *(ends, ends_of_impostors, late_ends, produced, markers, described),
)


# -------------------------------------------------------------------------------------------------------------- running


def prepare(ask: Ask, pause: Callable[[], None]) -> None:
    """Make the topics of the coordinators; wait until all of their partitions are loaded."""
    for name in range(20):
        client: dict[str, Any] = {"transactional_id": f"warm-{name}", "transaction_timeout_ms": 1_000}
        while ask(apis.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[f"warm-{name}"]).coordinators[0].error_code:
            pause()
        while ask(apis.INIT_PRODUCER_ID, 5, **client).error_code:
            pause()
        while ask(apis.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[f"warm-{name}"]).coordinators[0].error_code:
            pause()
        while ask(apis.OFFSET_FETCH, 7, group_id=f"warm-{name}", topics=None).error_code:
            pause()


def set_level(ask: Ask, level: int) -> None:
    """Set transaction.version of a cluster."""
    key = apis.UPDATE_FEATURES
    wanted = struct(key, "FeatureUpdateKey", feature="transaction.version", max_version_level=level, upgrade_type=2)
    answer = ask(key, 1, timeout_ms=10_000, feature_updates=[wanted])
    assert answer.error_code == 0 or "already" in str(answer.error_message), answer.error_message


def hold(exchange: Callable[[Exchange], None], level: int, ask: Ask, pause: Callable[[], None]) -> dict[str, Answers]:
    """Hold an exchange with a broker whose cluster has that transaction.version -> the answers by the kind of clients."""
    found = {}
    for bumps in (True, False) if level else (False,):
        made = Exchange(f"{exchange.__name__}-{level}", ask, pause, bumps=bumps, level=level)
        try:
            exchange(made)
        except AssertionError as error:
            error.add_note(f"in {made.name} after {made.answers[-1:]}")
            raise
        found[made.name] = made.answers
    return found
