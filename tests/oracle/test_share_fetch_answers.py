"""Protects the answers of partition leaders to share groups against Apache Kafka's own: the same exchange with both.

The states of the share partitions are begun with InitializeShareGroupState, as a group coordinator does. Left out of the
comparison: ids of topics, the order of partitions, the wording of messages, and an unknown topic id in a ShareFetch, where
Kafka's handler fails with a NullPointerException after it has found UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import read_header
from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import raise_features
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient, running_kcli, until, wait_for_metadata
from tests.server.apis.share_requests import share_acknowledge_request, share_fetch_request
from tests.server.whole_node import batch

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    "share.coordinator.state.topic.num.partitions=1",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "group.share.min.record.lock.duration.ms=1000",
    "group.share.record.lock.duration.ms=2500",
    "group.share.max.share.sessions=4",
    "group.share.max.size=4",
)
LOCK_S = 2.5
UNKNOWN_ID = Uuid(b"\x09" * 16)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
ZERO = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}

Acks = Sequence[tuple[int, int, Sequence[int]]]
# A partition: of the exchange's topic by its index, or any topic id and index.
Named = int | tuple[Uuid, int]


class Exchange:
    """The exchange with one broker; `answers` has a label and plain values for each request."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.client = RawClient(address)
        self.answers: list[tuple[str, Any]] = []
        self._sessions: dict[str, tuple[RawClient, int]] = {}
        self.topic_id = UNKNOWN_ID
        self.group_id = ""

    def begin(
        self, name: str, *sizes: int, partitions: int = 2, configs: Mapping[str, str] | None = None, start_offset: int = 0
    ) -> None:
        """Make a topic and a group of that name; produce batches of these sizes to partition 0."""
        struct = self.client.struct
        topic = struct(apis.CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1)
        created = self.client.ask(apis.CREATE_TOPICS, 7, topics=[topic], timeout_ms=10_000)
        assert created.topics[0].error_code == 0
        self.topic_id, self.group_id, self.name = created.topics[0].topic_id, f"group-{name}", name
        if configs:
            values = [
                struct(apis.INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=key, config_operation=0, value=value)
                for key, value in configs.items()
            ]
            resource = struct(
                apis.INCREMENTAL_ALTER_CONFIGS,
                "AlterConfigsResource",
                resource_type=32,
                resource_name=self.group_id,
                configs=values,
            )
            altered = self.client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            assert altered.responses[0].error_code == 0, altered.responses[0].error_message
            wait_for_metadata(self.client)
        for size in sizes:
            self.produce(size, timestamp=int(time.time() * 1000))
        for index in range(partitions):
            self.initialize(index, start_offset)

    def produce(self, size: int, index: int = 0, **fields: Any) -> None:
        """Produce one batch."""
        struct = self.client.struct
        records = batch(*[b"value %03d" % number for number in range(size)], **fields)
        part = struct(apis.PRODUCE, "PartitionProduceData", index=index, records=records)
        topic = struct(apis.PRODUCE, "TopicProduceData", name=self.name, partition_data=[part])
        fields = {"transactional_id": "txn"} if "producer_id" in fields else {}

        def is_produced() -> bool:
            answer = self.client.ask(apis.PRODUCE, 11, acks=-1, timeout_ms=10_000, topic_data=[topic], **fields)
            return bool(answer.responses[0].partition_responses[0].error_code == 0)

        until(is_produced)

    def initialize(self, index: int, start_offset: int) -> None:
        """Begin the state of a share partition."""
        struct, key = self.client.struct, apis.INITIALIZE_SHARE_GROUP_STATE
        part = struct(key, "PartitionData", partition=index, state_epoch=1, start_offset=start_offset)
        topic = struct(key, "InitializeStateData", topic_id=self.topic_id, partitions=[part])

        def is_done() -> bool:
            coordinator = f"{self.group_id}:{self.topic_id}:{index}"
            self.client.ask(apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[coordinator])
            answer = self.client.ask(key, 0, group_id=self.group_id, topics=[topic])
            return bool(answer.results[0].partitions[0].error_code == 0)

        until(is_done)

    def _named(self, named: Mapping[Named, Acks]) -> dict[tuple[Uuid, int], Acks]:
        return {(self.topic_id, key) if isinstance(key, int) else key: acks for key, acks in named.items()}

    def _session(self, member_id: str) -> tuple[RawClient, int]:
        if member_id not in self._sessions:
            self._sessions[member_id] = RawClient(self._address), 0
        return self._sessions[member_id]

    def fetch(
        self,
        label: str,
        named: Mapping[Named, Acks] | Sequence[Named] = (),
        member_id: str = "one",
        epoch: int | None = None,
        version: int = 2,
        is_noted: bool = True,
        **fields: Any,
    ) -> Message:
        """Send a ShareFetch of the member's session and note the answer."""
        client, known = self._session(member_id)
        epoch = known if epoch is None else epoch
        given = named if isinstance(named, Mapping) else dict.fromkeys(named, ())
        fields = {"group_id": self.group_id, "member_id": member_id, "max_wait_ms": 400} | fields
        request = share_fetch_request(self._named(given), epoch, **fields)
        answer = self._ask(client, apis.SHARE_FETCH, version, request)
        if answer.error_code == 0:
            self._sessions[member_id] = client, epoch + 1
        if is_noted:
            self.answers.append(
                (label, (answer.error_code, answer.error_message, answer.acquisition_lock_timeout_ms, _fetched(answer)))
            )
        return answer

    def acknowledge(
        self,
        label: str,
        named: Mapping[Named, Acks],
        member_id: str = "one",
        epoch: int | None = None,
        version: int = 2,
        **fields: Any,
    ) -> None:
        """Send a ShareAcknowledge of the member's session and note the answer."""
        client, known = self._session(member_id)
        epoch = known if epoch is None else epoch
        fields = {"group_id": self.group_id, "member_id": member_id} | fields
        answer = self._ask(
            client, apis.SHARE_ACKNOWLEDGE, version, share_acknowledge_request(self._named(named), epoch, **fields)
        )
        if answer.error_code == 0:
            self._sessions[member_id] = client, epoch + 1
        parts = sorted(
            (part.partition_index, part.error_code, part.error_message is None)
            for topic in answer.responses
            for part in topic.partitions
        )
        timeout_ms = answer.acquisition_lock_timeout_ms if version >= 2 else 0
        self.answers.append((label, (answer.error_code, answer.error_message, timeout_ms, parts)))

    @staticmethod
    def _ask(client: RawClient, key: int, version: int, request: Message) -> Message:
        names = [field.attribute for field in apis.API_KEYS[key].request.schema.root.fields if field.versions.has(version)]
        return client.ask(key, version, **{name: getattr(request, name) for name in names})

    def load(self, *indexes: int, member_id: str = "one", **fields: Any) -> None:
        """Begin a session, and wait until its share partitions are loaded; nothing is acquired."""
        fields = {"max_records": -1, "min_bytes": 0, "max_wait_ms": 5000} | fields
        self.fetch("", list(indexes), member_id, 0, is_noted=False, **fields)

    def end(self, *member_ids: str) -> None:
        """Close the connections of the members."""
        for member_id in member_ids or tuple(self._sessions):
            self._sessions.pop(member_id)[0].close()


def _fetched(answer: Message) -> list[Any]:
    return sorted(
        (
            part.partition_index,
            part.error_code,
            part.error_message,
            part.acknowledge_error_code,
            part.acknowledge_error_message is None,
            list(_bases(bytes(part.records or b""))),
            [(one.first_offset, one.last_offset, one.delivery_count) for one in part.acquired_records],
        )
        for topic in answer.responses
        for part in topic.partitions
    )


def _bases(records: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(records):
        header = read_header(records, position)
        yield header.base_offset, header.last_offset
        position += header.size_bytes


def sessions(exchange: Exchange) -> None:
    exchange.begin("sessions", 3)
    fetch, acknowledge = exchange.fetch, exchange.acknowledge
    fetch("no session", [0], epoch=1)
    fetch("no session to end", [0], epoch=-1)
    fetch("first with acknowledgements", {0: [(0, 0, [ACCEPT])]}, epoch=0)
    fetch("no group", [0], epoch=0, group_id=None)
    fetch("no member", [0], member_id="", epoch=0)
    fetch("long member", [0], member_id="m" * 37, epoch=0)
    fetch("unknown mode", [0], member_id="mode", epoch=0, share_acquire_mode=5)
    fetch("renewal that fetches", [0], epoch=0, is_renew_ack=True)
    acknowledge("no session", {0: [(0, 0, [ACCEPT])]}, epoch=1)
    acknowledge("epoch 0", {0: [(0, 0, [ACCEPT])]}, epoch=0)
    acknowledge("no group", {0: [(0, 0, [ACCEPT])]}, epoch=0, group_id=None)
    acknowledge("no session to end", {}, epoch=-1)
    fetch("unknown partition first", [7, 0], epoch=0)
    fetch("another unknown partition", [8])
    fetch("unknown partitions again", [])
    fetch("forgotten", [], forgotten=[(exchange.topic_id, 7)])
    fetch("unknown partition with acknowledgements", {8: [(0, 0, [ACCEPT])]})
    fetch("no max records", [0], epoch=0, max_records=0)
    fetch("records", [], max_wait_ms=5000)
    fetch("nothing new", [])
    fetch("nothing new, another partition", [1])
    fetch("epoch too high", [], epoch=9)
    acknowledge("epoch too high", {}, epoch=9)
    fetch("final", {0: [(0, 0, [ACCEPT])]}, epoch=-1)
    fetch("after the end", [], epoch=5)
    exchange.load(0, member_id="two")
    fetch("released", [], member_id="two", max_wait_ms=2000)
    acknowledge("final", {0: [(1, 1, [ACCEPT])]}, member_id="two", epoch=-1)
    exchange.load(0, member_id="three")
    fetch("released again", [], member_id="three", max_wait_ms=2000)
    exchange.end()


def limits_of_sessions(exchange: Exchange) -> None:
    time.sleep(0.5)
    for member in ("a", "b", "c", "d", "e"):
        exchange.fetch(f"session {member}", [0], member_id=member, epoch=0, max_records=0)
    exchange.fetch("after one has left", [], member_id="a", epoch=-1)
    exchange.fetch("there is room", [0], member_id="e", epoch=0, max_records=0)
    exchange.end()


def acknowledgements(exchange: Exchange) -> None:
    exchange.begin("acks", 10)
    exchange.load(0)
    fetch, acknowledge = exchange.fetch, exchange.acknowledge
    fetch("acquired")
    acknowledge("first above last", {0: [(3, 2, [ACCEPT])]})
    acknowledge("overlap", {0: [(0, 3, [ACCEPT]), (2, 4, [ACCEPT])]})
    acknowledge("touching", {0: [(0, 3, [ACCEPT]), (3, 4, [ACCEPT])]})
    acknowledge("no types", {0: [(0, 3, [])]})
    acknowledge("too few types", {0: [(0, 3, [ACCEPT, ACCEPT])]})
    acknowledge("type 5", {0: [(0, 3, [5])]})
    acknowledge("type -1", {0: [(0, 3, [-1])]})
    acknowledge("renew without the flag", {0: [(0, 3, [RENEW])]})
    acknowledge("renew in version 1", {0: [(0, 3, [RENEW])]}, version=1)
    acknowledge("too far", {0: [(0, 10, [ACCEPT])]})
    acknowledge("beyond", {0: [(12, 14, [ACCEPT])]})
    acknowledge("unknown partitions", {7: [(0, 0, [ACCEPT])], (UNKNOWN_ID, 0): [(0, 0, [ACCEPT])]})
    acknowledge("no batches", {0: []})
    acknowledge("no batches beside batches", {0: [(0, 0, [ACCEPT])], 1: []})
    acknowledge("twice", {0: [(0, 0, [ACCEPT])]})
    acknowledge("not the partition's", {1: [(0, 0, [ACCEPT])]})
    acknowledge("some of each", {0: [(1, 4, [ACCEPT, RELEASE, REJECT, 0])]})
    fetch("piggybacked", {0: [(5, 6, [ACCEPT])]})
    fetch("piggybacked, wrong", {0: [(5, 6, [ACCEPT])], 1: []})
    exchange.fetch("other begins", [0], member_id="two", epoch=0)
    acknowledge("not the owner", {0: [(7, 7, [ACCEPT])]}, member_id="two")
    fetch("renewal", {0: [(7, 9, [RENEW])]}, is_renew_ack=True, **ZERO)
    acknowledge("renewal and others", {0: [(7, 9, [RENEW, RELEASE, ACCEPT])]}, is_renew_ack=True)
    fetch("version 1", version=1)
    exchange.end()


def amounts(exchange: Exchange) -> None:
    exchange.begin("amounts", *[5] * 6)
    exchange.load(0)
    fetch = exchange.fetch
    fetch("max records", max_records=7)
    fetch("batch size", batch_size=4, max_records=10)
    fetch("record limit", max_records=2, share_acquire_mode=1)
    fetch("record limit again", max_records=2, share_acquire_mode=1)
    fetch("the rest", max_bytes=100)
    fetch("no more")
    exchange.acknowledge("released", {0: [(2, 3, [RELEASE]), (8, 16, [RELEASE]), (22, 22, [RELEASE])]})
    fetch("again", max_records=4)
    fetch("again, record limit", max_records=3, share_acquire_mode=1)
    fetch("again, all")
    exchange.end()


def deliveries(exchange: Exchange) -> None:
    exchange.begin("deliveries", 8, configs={"share.delivery.count.limit": "5", "share.partition.max.record.locks": "100"})
    exchange.load(0)
    for count in range(1, 9):
        answer = exchange.fetch(f"delivery {count}")
        acquired = [found for topic in answer.responses for part in topic.partitions for found in part.acquired_records]
        if not acquired:
            break
        released = [(found.first_offset, found.last_offset, [RELEASE]) for found in acquired]
        exchange.acknowledge(f"release {count}", {0: released})
    for _ in range(12):
        exchange.produce(10)
    exchange.fetch("beyond the records in flight", max_records=500)
    exchange.fetch("none left")
    exchange.end()


def locks(exchange: Exchange) -> None:
    exchange.begin("locks", 4)
    exchange.load(0)
    exchange.fetch("acquired")
    exchange.load(0, member_id="two")
    exchange.fetch("waits for the locks", member_id="two", max_wait_ms=6000)
    exchange.acknowledge("too late", {0: [(0, 3, [ACCEPT])]})
    exchange.acknowledge("in time", {0: [(0, 1, [ACCEPT])]}, member_id="two")
    exchange.end("two")
    exchange.fetch("after the connection has closed", max_wait_ms=2000)
    exchange.end()


def starts(exchange: Exchange) -> None:
    for reset in ("earliest", "latest", "by_duration:PT1H"):
        exchange.begin(
            f"starts-{reset.partition(':')[0]}", 4, partitions=1, configs={"share.auto.offset.reset": reset}, start_offset=-1
        )
        exchange.load(0)
        exchange.fetch(f"{reset}, first")
        exchange.produce(2)
        exchange.fetch(f"{reset}, then")
        exchange.end()


def deletions(exchange: Exchange) -> None:
    exchange.begin("deletions", 5, 5, 5)
    exchange.load(0)
    exchange.fetch("acquired", max_records=5)
    struct, key = exchange.client.struct, apis.DELETE_RECORDS
    part = struct(key, "DeleteRecordsPartition", partition_index=0, offset=7)
    topic = struct(key, "DeleteRecordsTopic", name=exchange.name, partitions=[part])
    assert exchange.client.ask(key, 2, topics=[topic], timeout_ms=10_000).topics[0].partitions[0].error_code == 0
    exchange.acknowledge("of deleted records", {0: [(3, 4, [ACCEPT])]})
    exchange.fetch("deleted")
    exchange.fetch("behind the deleted")
    exchange.acknowledge("below the start", {0: [(0, 4, [ACCEPT])]})
    exchange.acknowledge("across the start", {0: [(0, 8, [ACCEPT])]})
    exchange.acknowledge("the rest", {0: [(7, 14, [ACCEPT])]})
    exchange.end()


def last_offset(exchange: Exchange, *, committed: bool) -> int:
    """The end of the partition, or its last stable offset."""
    key, struct = apis.LIST_OFFSETS, exchange.client.struct
    part = struct(key, "ListOffsetsPartition", partition_index=0, timestamp=-1)
    topic = struct(key, "ListOffsetsTopic", name=exchange.name, partitions=[part])
    answer = exchange.client.ask(key, 6, replica_id=-1, isolation_level=int(committed), topics=[topic])
    return int(answer.topics[0].partitions[0].offset)


def transactions(exchange: Exchange) -> None:
    exchange.begin("transactions", 2, partitions=1, configs={"share.isolation.level": "read_committed"})
    client = exchange.client
    until(lambda: not client.ask(apis.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["txn"]).coordinators[0].error_code)
    found: list[Message] = []

    def has_id() -> bool:
        found.append(client.ask(apis.INIT_PRODUCER_ID, 4, transactional_id="txn", transaction_timeout_ms=60_000))
        return bool(found[-1].error_code == 0)

    until(has_id)
    owner = {"producer_id": found[-1].producer_id, "producer_epoch": found[-1].producer_epoch}
    topic = client.struct(apis.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnTopic", name=exchange.name, partitions=[0])
    for sequence, committed in ((0, False), (3, True)):
        added = {f"v3_and_below_{name}": value for name, value in owner.items()}
        fields = {"v3_and_below_transactional_id": "txn", "v3_and_below_topics": [topic], **added}

        def is_added(fields: dict[str, Any] = fields) -> bool:
            answer = client.ask(apis.ADD_PARTITIONS_TO_TXN, 3, **fields)
            return bool(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0)

        until(is_added)
        exchange.produce(3, base_sequence=sequence, attributes=0x10, **owner)
        if sequence == 0:
            exchange.load(0)
            exchange.fetch("before the end of the transaction")
        ended = client.ask(apis.END_TXN, 3, transactional_id="txn", **owner, committed=committed)
        assert ended.error_code == 0
    # Kafka answers before the marker is written.
    until(lambda: last_offset(exchange, committed=True) == last_offset(exchange, committed=False))
    exchange.produce(1)
    exchange.fetch("what is committed", max_wait_ms=3000)
    exchange.fetch("the rest", max_wait_ms=1000)
    exchange.end()


PARTS = (deletions, transactions, sessions, limits_of_sessions, acknowledgements, amounts, deliveries, locks, starts)


def test_answers(each_kafka: Peer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The whole exchange, with a topic and a group of its own for each part."""
    homes = tmp_path_factory.mktemp("share-fetches")
    (homes / "kafka").mkdir()
    with new_broker(each_kafka, homes / "kafka", *SETTINGS) as theirs, running_kcli(homes / "kcli", *SETTINGS) as ours:
        if each_kafka.version == "4.4.0":
            raise_features(ours)
        mine, kafkas = Exchange(ours), Exchange(theirs)
        for part in PARTS:
            for exchange in (mine, kafkas):
                part(exchange)
            for (label, found), (_, expected) in zip(mine.answers, kafkas.answers, strict=True):
                assert found == expected, f"{part.__name__}: {label}"
        mine.client.close()
        kafkas.client.close()
