"""Protects transactions on a whole node: what is written, read and refused, also when appends fail and leaders change."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.record_batch import TRANSACTIONAL_FLAG, Producer
from kcli.protocol import apis, error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.coordinator.transaction.marker_channel import TransactionMarkerChannelManager
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.transaction_verification import TransactionSupportedOperation
from kcli.state.transaction_state import TransactionMetadata
from tests.server.apis.asking import Refusing, ask, struct
from tests.server.whole_node import Pending, WholeNode, batch, partitions_of

NAMES = error_codes.NAMES


class Client:
    """A transactional producer that sends one request at a time, with the versions of transaction.version 2 or before."""

    def __init__(self, node: WholeNode, name: str = "x", *, bumps: bool = True, timeout_ms: int = 60_000) -> None:
        self.node = node
        self.name = name
        self.bumps = bumps
        self.timeout_ms = timeout_ms
        self.producer = Producer(-1, -1)
        self.sequences: dict[int, int] = {}

    def init(self, version: int = 5, **fields: Any) -> str:
        """InitProducerId, which is sent again while a transaction is ending."""
        for _ in range(20):
            fields = {"transactional_id": self.name, "transaction_timeout_ms": self.timeout_ms, **fields}
            answer = ask(self.node, apis.INIT_PRODUCER_ID, version, **fields)
            if answer.error_code != error_codes.CONCURRENT_TRANSACTIONS:
                break
            self.node.advance(10)
        if not answer.error_code:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return NAMES[answer.error_code]

    def add(self, *indexes: int, topic: str = "t") -> list[str]:
        """AddPartitionsToTxn of a client."""
        key = apis.ADD_PARTITIONS_TO_TXN
        answer = ask(
            self.node,
            key,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.producer_epoch,
            v3_and_below_topics=[struct(key, "AddPartitionsToTxnTopic", name=topic, partitions=list(indexes))],
        )
        (result,) = answer.results_by_topic_v3_and_below
        return [NAMES[part.partition_error_code] for part in result.results_by_partition]

    def send(self, value: bytes, index: int = 0, version: int | None = None) -> str:
        """Produce one record; without a version it is added to the transaction first if the client must do so."""
        pending = self.begin_send(value, index, version)
        self.node.until(lambda: pending.answer is not None)
        answer = pending.result().responses[0].partition_responses[0]
        if not answer.error_code:
            self.sequences[index] = self.sequences.get(index, 0) + 1
        return NAMES[answer.error_code]

    def begin_send(self, value: bytes, index: int = 0, version: int | None = None) -> Pending:
        """Send the request of `send`."""
        if version is None:
            version = 12 if self.bumps else 11
            if not self.bumps:
                self.add(index)
        sequence = self.sequences.get(index, 0)
        producer_id, epoch = self.producer
        flags = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        records = batch(value, attributes=TRANSACTIONAL_FLAG, **flags)
        request = apis.API_KEYS[apis.PRODUCE].request
        data = request.classes["PartitionProduceData"](index=index, records=records)
        topic = request.classes["TopicProduceData"](name="t", partition_data=[data])
        message = request.new(acks=-1, timeout_ms=1000, transactional_id=self.name, topic_data=[topic])
        return self.node.send(apis.PRODUCE, version, message)

    def end(self, is_commit: bool = True) -> str:
        """EndTxn."""
        producer_id, epoch = self.producer
        fields = {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch, "committed": is_commit}
        answer = ask(self.node, apis.END_TXN, 5 if self.bumps else 4, **fields)
        if not answer.error_code and self.bumps:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return NAMES[answer.error_code]

    def commit_offset(
        self, offset: int, group: str = "g", version: int | None = None, topic_id: Uuid = ZERO_UUID, **fields: Any
    ) -> str:
        """TxnOffsetCommit of partition 0."""
        pending = self.begin_commit_offset(offset, group, version, topic_id, **fields)
        self.node.until(lambda: pending.answer is not None)
        return NAMES[pending.result().topics[0].partitions[0].error_code]

    def begin_commit_offset(
        self, offset: int, group: str = "g", version: int | None = None, topic_id: Uuid = ZERO_UUID, **fields: Any
    ) -> Pending:
        """Send the request of `commit_offset`."""
        key = apis.TXN_OFFSET_COMMIT
        part = struct(key, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=offset, committed_metadata="")
        producer_id, epoch = self.producer
        message = apis.API_KEYS[key].request.new(
            transactional_id=self.name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[struct(key, "TxnOffsetCommitRequestTopic", name="t", topic_id=topic_id, partitions=[part])],
            **fields,
        )
        return self.node.send(key, version or (5 if self.bumps else 4), message)

    def entry(self) -> TransactionMetadata:
        """The coordinator's entry."""
        return self.node.broker.transactions.describe(self.name)


def find(node: WholeNode, key_type: int, key: str) -> None:
    """Ask for a coordinator until there is one."""

    def is_found() -> bool:
        answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=[key])
        return answer.coordinators[0].error_code == 0

    node.until(is_found)
    node.advance(10)


SETTINGS = ("transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=2")


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data", *SETTINGS)
    made.create_topic("t", 3)
    find(made, 1, "x")
    return made


@pytest.fixture(params=[True, False], ids=["version 2", "version 1"])
def client(node: WholeNode, request: pytest.FixtureRequest) -> Client:
    made = Client(node, bumps=request.param)
    assert made.init() == "NONE"
    return made


def partition(node: WholeNode, index: int = 0, topic: str = "t") -> Partition:
    found = node.broker.replica_manager.partition(topic, index)
    assert found is not None and found.log is not None
    return found


def state_partition(node: WholeNode) -> Partition:
    return partition(node, node.broker.transactions.partition_for("x"), "__transaction_state")


def fetched(node: WholeNode, index: int = 0) -> tuple[int, list[tuple[int, int]]]:
    """What a read_committed fetch says: the last stable offset, and the aborted transactions."""
    part = partitions_of(node.fetch({("t", index): 0}, isolation_level=1).result())["t", index]
    return part.last_stable_offset, [(found.producer_id, found.first_offset) for found in part.aborted_transactions or ()]


def test_a_commit_and_an_abort(node: WholeNode, client: Client) -> None:
    assert client.send(b"a") == client.send(b"b", 1) == "NONE"
    assert client.entry().state == "Ongoing" and client.entry().partitions == {("t", 0), ("t", 1)}
    assert fetched(node) == (0, [])
    assert client.end() == "NONE"
    node.advance(10)
    assert client.entry().state == "CompleteCommit" and not client.entry().partitions
    assert fetched(node) == (2, []) and fetched(node, 1) == (2, [])
    assert client.send(b"c") == client.end(is_commit=False) == "NONE"
    node.advance(10)
    assert client.entry().state == "CompleteAbort"
    assert fetched(node) == (4, [(client.producer.producer_id, 2)])
    epochs = partition(node).log.producers.producers[client.producer.producer_id]  # type: ignore[union-attr]
    assert epochs.producer_epoch == (2 if client.bumps else 0)


def test_a_delayed_end_does_not_end_the_next_transaction(node: WholeNode, client: Client) -> None:
    """With transaction.version 2; before it does, as in Kafka."""
    before = client.producer
    assert client.send(b"a") == client.end() == "NONE"
    node.advance(10)
    assert client.send(b"b") == "NONE"
    after, client.producer = client.producer, before
    assert client.end(is_commit=False) == ("PRODUCER_FENCED" if client.bumps else "NONE")
    node.advance(10)
    client.producer = after
    assert client.entry().state == ("Ongoing" if client.bumps else "CompleteAbort")


def test_an_end_is_repeated(node: WholeNode, client: Client) -> None:
    before = client.producer
    assert client.send(b"a") == client.end() == "NONE"
    node.advance(10)
    client.producer = before
    assert client.end() == "NONE" and partition(node).log.log_end_offset == 2  # type: ignore[union-attr]
    client.producer = before
    assert client.end(is_commit=False) == "INVALID_TXN_STATE"


def test_batches_outside_of_a_transaction_are_refused(node: WholeNode) -> None:
    client = Client(node)
    client.init()
    assert client.send(b"a", version=10) == "INVALID_TXN_STATE"
    assert client.send(b"a", version=11) == "TRANSACTION_ABORTABLE"
    assert partition(node).log.log_end_offset == 0  # type: ignore[union-attr]
    known = client.producer
    client.producer = Producer(known.producer_id, known.producer_epoch + 1)
    assert client.send(b"a", version=12) == "INVALID_PRODUCER_EPOCH"
    client.producer = Producer(known.producer_id + 1, 0)
    assert client.send(b"a", version=12) == "INVALID_PRODUCER_ID_MAPPING"
    client.producer, client.name = known, ""
    assert client.send(b"a", version=11) == "INVALID_REQUEST"
    assert partition(node).log.log_end_offset == 0 and node.held_bytes == 0  # type: ignore[union-attr]


def test_a_batch_after_the_abort_does_not_open_a_transaction_again(node: WholeNode) -> None:
    """KIP-890: a hanging transaction. A marker may also come while the batch is being verified."""
    client = Client(node, bumps=False)
    client.init()
    assert client.send(b"a") == client.end(is_commit=False) == "NONE"
    node.advance(10)
    assert client.send(b"late", version=11) == "TRANSACTION_ABORTABLE"
    client.add(0)
    verify = node.broker.parts.txn_verification.verify

    def verify_slowly(*arguments: Any) -> None:
        node.broker.parts.txn_verification.verify = verify  # type: ignore[method-assign]
        log = partition(node).log
        assert log is not None
        log.producers.verifications.clear()  # as the marker of an abort does
        verify(*arguments)

    node.broker.parts.txn_verification.verify = verify_slowly  # type: ignore[method-assign]
    assert client.send(b"late", version=11) == "INVALID_TXN_STATE"
    assert fetched(node)[0] == 2


def test_a_late_batch_of_an_older_epoch_is_refused_before_its_coordinator_is_asked(node: WholeNode) -> None:
    """So it does not wait for a verification, during which batches of the open transaction would be compared with it."""
    find(node, 1, "x")
    client = Client(node)
    client.init()
    old = client.producer
    assert client.send(b"a") == client.end() == client.send(b"b") == "NONE"
    assert client.producer.producer_epoch > old.producer_epoch
    log = partition(node).log
    assert log is not None
    with pytest.raises(PartitionError) as refused:
        node.broker.parts.txn_verification.begin(log.producers, old, TransactionSupportedOperation.ADD, 0)
    assert refused.value.code == error_codes.INVALID_PRODUCER_EPOCH
    client.producer, current = old, client.producer
    for version in (3, 11, 12):
        assert client.send(b"z", version=version) == "INVALID_PRODUCER_EPOCH"
    client.name, name = "another", client.name
    assert client.send(b"z", version=11) == "INVALID_PRODUCER_EPOCH"
    client.producer, client.name = current, name
    assert client.send(b"c") == client.end() == "NONE"


def test_an_older_epoch_commits_no_offsets_where_the_groups_partition_has_a_newer_one(node: WholeNode) -> None:
    """It is refused before the transaction coordinator is asked, as a produce is."""
    find(node, 1, "x")
    find(node, 0, "g")
    client = Client(node)
    client.init()
    old = client.producer
    assert client.commit_offset(1) == client.end() == client.commit_offset(2) == "NONE"
    current, client.producer, client.name, name = client.producer, old, "another", client.name
    assert client.commit_offset(3) == "INVALID_PRODUCER_EPOCH"
    client.producer, client.name = current, name
    assert client.end() == "NONE"


def test_the_next_transaction_begins_while_the_last_one_is_completed(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first batch waits for the marker, which removes the guard of the first try, and no longer than for the end."""
    ends, add = list[partial[None]](), TransactionMarkerChannelManager.add
    find(node, 0, "g")
    client = Client(node)
    client.init()
    assert client.send(b"a") == client.end() == client.send(b"b") == "NONE"
    monkeypatch.setattr(TransactionMarkerChannelManager, "add", lambda *arguments: ends.append(partial(add, *arguments)))
    for begin in (lambda: client.begin_send(b"c"), lambda: client.begin_commit_offset(7)):
        assert client.end() == "NONE"
        pending = begin()
        node.advance(5)
        assert pending.answer is None, "the transaction before is not complete"
        began_ms = node.now_ms
        ends.pop()()
        node.until(lambda pending=pending: pending.answer is not None)
        assert node.now_ms - began_ms < 10
        answer = pending.result()
        parts = (
            answer.topics[0].partitions
            if pending.api.key == apis.TXN_OFFSET_COMMIT
            else answer.responses[0].partition_responses
        )
        assert NAMES[parts[0].error_code] == "NONE"


def test_verification_may_be_off(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data", "transaction.partition.verification.enable=false", *SETTINGS)
    node.create_topic("t")
    find(node, 1, "x")
    client = Client(node)
    client.init()
    assert client.send(b"a", version=11) == "NONE"


def test_a_coordinator_that_is_not_there_makes_the_client_send_again(node: WholeNode) -> None:
    client = Client(node)
    client.init()
    node.broker.transactions.runtime.resign(state_partition(node).index)
    assert client.send(b"a") == "NOT_ENOUGH_REPLICAS"
    assert client.end() == "NOT_COORDINATOR"


def test_a_produce_that_is_being_verified_ends_with_the_node(node: WholeNode) -> None:
    """Its logs are being closed: the answer of the coordinator must not append to them."""
    client = Client(node)
    client.init()
    found, log = node.broker.parts.txn_verification, partition(node).log
    assert log is not None
    answer = found._answered
    held: list[tuple[Any, ...]] = []
    found._answered = lambda *arguments: held.append(arguments)  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        client.send(b"a")
    node.stop()
    answer(*held[0])
    assert log.log_end_offset == 0


def test_a_new_instance_fences_the_old_one(node: WholeNode, client: Client) -> None:
    assert client.send(b"a") == "NONE"
    second = Client(node, bumps=client.bumps)
    assert second.init() == "NONE" and second.producer.producer_id == client.producer.producer_id
    assert second.producer.producer_epoch == client.producer.producer_epoch + 2
    assert client.send(b"b") == ("INVALID_PRODUCER_EPOCH")
    assert client.end() == "PRODUCER_FENCED" and client.add(1) == ["PRODUCER_FENCED"]
    old = {"producer_id": client.producer.producer_id, "producer_epoch": client.producer.producer_epoch}
    assert client.init(**old) == "PRODUCER_FENCED" and client.init(3, **old) == "INVALID_PRODUCER_EPOCH"
    assert fetched(node) == (2, [(client.producer.producer_id, 0)])
    producer_id, epoch = client.producer
    (aborted,) = (line for line in node.lines if "is aborted" in line)
    assert aborted.endswith("another producer has begun with this id, which fences the one before")
    (fenced,) = (line for line in node.lines if "is fenced" in line)  # the others are counted
    assert fenced.startswith(f"producer {producer_id} with epoch {epoch} is fenced: transactional id ")
    assert fenced.endswith(f"with producer id {producer_id} and epoch {epoch + 2}")
    node.advance(60_000)
    assert client.add(1) == ["PRODUCER_FENCED"]
    assert [line for line in node.lines if "is fenced" in line][1].endswith("requests since the last such line)")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"transactional_id": ""}, "INVALID_REQUEST"),
        ({"transaction_timeout_ms": 0}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"transaction_timeout_ms": 900_001}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"producer_id": 3}, "INVALID_REQUEST"),
        ({"producer_epoch": 3}, "INVALID_REQUEST"),
    ],
)
def test_wrong_requests_for_an_id(node: WholeNode, fields: dict[str, Any], expected: str) -> None:
    client = Client(node)
    assert client.init(**fields) == expected
    with pytest.raises(CoordinatorError):
        client.entry()


def test_two_phase_commit_is_refused_unless_it_is_enabled(tmp_path: Path) -> None:
    """KIP-939."""
    for is_enabled in (False, True):
        settings = ("unstable.api.versions.enable=true", f"transaction.two.phase.commit.enable={str(is_enabled).lower()}")
        node = WholeNode(tmp_path / str(is_enabled), *SETTINGS, *settings)
        node.create_topic("t")
        find(node, 1, "x")
        client = Client(node, timeout_ms=0)
        assert client.init(6, enable2_pc=True) == ("NONE" if is_enabled else "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        assert client.init(6, keep_prepared_txn=True) == "UNSUPPORTED_VERSION"
        if is_enabled:
            assert client.send(b"a") == "NONE"
            node.advance(3_600_000)
            assert client.entry().state == "Ongoing"


def test_partitions_that_do_not_exist_are_not_added(node: WholeNode, client: Client) -> None:
    assert client.add(0, 9) == ["OPERATION_NOT_ATTEMPTED", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert client.add(0, topic="__consumer_offsets") == ["TOPIC_AUTHORIZATION_FAILED"]
    assert client.entry().state == "Empty" and client.end() == "INVALID_TXN_STATE"


def test_a_failing_append_changes_nothing(node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.send(b"a") == "NONE"
    before, log = client.entry(), state_partition(node)

    def refuse(self: Partition, *arguments: Any) -> None:
        if self is log:
            raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, "too few replicas")
        return append(self, *arguments)  # type: ignore[return-value]

    append = Partition.append
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", refuse)
        assert client.end() == "COORDINATOR_NOT_AVAILABLE" and client.add(1) == ["COORDINATOR_NOT_AVAILABLE"]
        assert client.init() == "COORDINATOR_NOT_AVAILABLE"
        assert client.entry() == before and not node.broker.transactions.runtime.shard(log.index).changing
    assert client.end() == "NONE"
    node.advance(10)
    assert client.entry().state == "CompleteCommit"


def hold_markers(node: WholeNode, patch: pytest.MonkeyPatch) -> list[Any]:
    """Keep requests to other nodes back; the list has their arguments."""
    held: list[Any] = []
    patch.setattr(node.broker.transactions._markers._peers, "send", lambda *arguments: held.append(arguments))
    return held


def test_a_load_continues_a_transaction_that_was_ending(
    node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.send(b"a") == "NONE"
    runtime, log = node.broker.transactions.runtime, state_partition(node)
    with monkeypatch.context() as patch:
        held = hold_markers(node, patch)
        assert client.end() == "NONE"
        node.advance(1)
        assert len(held) == 1 and client.entry().state == "PrepareCommit"
        assert client.end() == "CONCURRENT_TRANSACTIONS" == client.add(1)[0]
        runtime.resign(log.index)
    assert client.end() == "NOT_COORDINATOR" == client.add(1)[0]
    assert client.init() == "NOT_COORDINATOR"
    monkeypatch.setattr("kcli.server.scheduler.SLICE_US", 1)
    runtime.leadership_changed(log, node.now_ms)
    assert runtime.loading_count()
    assert ask(node, apis.LIST_TRANSACTIONS, 2).error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS
    node.advance(10)
    assert client.entry().state == "CompleteCommit" and fetched(node) == (2, [])


def test_markers_are_sent_again(node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.send(b"a") == client.send(b"b", 1) == "NONE"
    append, target = Partition.append, partition(node, 1)

    def refuse(self: Partition, *arguments: Any) -> Any:
        if self is target:
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, "moved")
        return append(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", refuse)
        assert client.end() == "NONE"
        node.advance(500)
        assert client.entry().state == "PrepareCommit" and fetched(node) == (2, []) and fetched(node, 1) == (0, [])
    node.advance(200)
    assert client.entry().state == "CompleteCommit" and fetched(node, 1) == (2, [])


def test_a_deleted_topic_needs_no_marker(node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.send(b"a") == "NONE"
    node.delete_topic("t")
    node.advance(10)
    assert client.end() == "NONE"
    node.advance(10)
    assert client.entry().state == "CompleteCommit"


def test_a_transaction_that_is_open_too_long_is_aborted(node: WholeNode) -> None:
    client = Client(node, timeout_ms=5_000)
    client.init()
    assert client.send(b"a") == "NONE"
    node.advance(4_000)
    assert client.entry().state == "Ongoing"
    node.advance(12_000)
    assert client.entry().state == "CompleteAbort" and client.end() == "INVALID_TXN_STATE"
    assert client.send(b"b") == "INVALID_PRODUCER_EPOCH"
    assert fetched(node) == (2, [(client.producer.producer_id, 0)])
    assert any("is aborted: it was open for more than 5000 ms" in line for line in node.lines)


def test_an_unused_transactional_id_expires(tmp_path: Path) -> None:
    times = ("transactional.id.expiration.ms=20000", "transaction.remove.expired.transaction.cleanup.interval.ms=5000")
    node = WholeNode(tmp_path / "data", *SETTINGS, *times)
    node.create_topic("t")
    find(node, 1, "x")
    idle, busy = Client(node), Client(node, "busy", timeout_ms=600_000)
    assert idle.init() == busy.init() == busy.send(b"a") == "NONE"
    node.advance(15_000)
    assert idle.entry().state == "Empty"
    node.advance(15_000)
    with pytest.raises(CoordinatorError, match="no transactional id x"):
        idle.entry()
    assert busy.entry().state == "Ongoing" and idle.add(0) == ["INVALID_PRODUCER_ID_MAPPING"]


def test_offsets_of_a_transaction(node: WholeNode, client: Client) -> None:
    """They are effective when it is committed; until then they are not stable."""
    find(node, 0, "g")

    def offset(require_stable: bool = False) -> Any:
        key = apis.OFFSET_FETCH
        topic = struct(key, "OffsetFetchRequestTopics", name="t", partition_indexes=[0])
        group = struct(key, "OffsetFetchRequestGroup", group_id="g", topics=[topic])
        part = ask(node, key, 9, groups=[group], require_stable=require_stable).groups[0].topics[0].partitions[0]
        return NAMES[part.error_code] if part.error_code else part.committed_offset

    def add_offsets() -> None:
        if not client.bumps:
            producer_id, epoch = client.producer
            fields = {"transactional_id": "x", "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
            assert ask(node, apis.ADD_OFFSETS_TO_TXN, 4, **fields).error_code == 0

    for is_commit, expected in ((True, 5), (False, 5)):
        add_offsets()
        assert client.commit_offset(5 if is_commit else 6) == "NONE"
        assert offset(require_stable=True) == "UNSTABLE_OFFSET_COMMIT"
        assert client.end(is_commit) == "NONE"
        node.advance(10)
        assert offset(require_stable=True) == expected
    add_offsets()
    assert client.commit_offset(7, generation_id_or_member_epoch=3, member_id="nobody") == "UNKNOWN_MEMBER_ID"
    if client.bumps:
        unknown = client.commit_offset(7, group="none", generation_id_or_member_epoch=3, member_id="nobody")
        assert unknown == "ILLEGAL_GENERATION"
    assert client.commit_offset(7, group="") == "INVALID_GROUP_ID"
    client.end(is_commit=False)


def test_offsets_of_topics_by_id(node: WholeNode) -> None:
    """Version 6 names topics by their ids only (KIP-1319)."""
    find(node, 0, "g")
    client = Client(node)
    client.init()
    topic_id = node.broker.metadata.image.topic_ids["t"]
    assert client.commit_offset(5, version=6, topic_id=topic_id) == "NONE"
    assert client.commit_offset(5, version=6, topic_id=Uuid(b"\5" * 16)) == "UNKNOWN_TOPIC_ID"
    unknown = {"member_id": "nobody", "generation_id_or_member_epoch": 3}
    assert client.commit_offset(5, "none", version=6, topic_id=topic_id, **unknown) == "GROUP_ID_NOT_FOUND"
    assert client.end() == "NONE"
    key = apis.OFFSET_FETCH
    topic = struct(key, "OffsetFetchRequestTopics", topic_id=topic_id, partition_indexes=[0])
    group = struct(key, "OffsetFetchRequestGroup", group_id="g", topics=[topic])
    node.advance(10)
    assert ask(node, key, 10, groups=[group]).groups[0].topics[0].partitions[0].committed_offset == 5


def test_a_member_of_a_consumer_group_commits_offsets_in_a_transaction(node: WholeNode) -> None:
    """With its member epoch; before version 6 Kafka's error for any other is ILLEGAL_GENERATION, which old clients know."""
    find(node, 0, "g")
    topics = {"subscribed_topic_names": ["t"], "topic_partitions": [], "rebalance_timeout_ms": 5000}
    joined = ask(node, apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=0, **topics)
    client = Client(node)
    client.init()
    member = {"generation_id_or_member_epoch": joined.member_epoch, "member_id": "m"}
    later = {"generation_id_or_member_epoch": joined.member_epoch + 1, "member_id": "m"}
    by_id = {"version": 6, "topic_id": node.broker.metadata.image.topic_ids["t"]}
    assert joined.member_epoch > 0
    assert client.commit_offset(5, **member) == client.commit_offset(5, **by_id, **member) == "NONE"
    assert client.commit_offset(5, **later) == "ILLEGAL_GENERATION"
    assert client.commit_offset(5, **by_id, **later) == "STALE_MEMBER_EPOCH"
    assert client.commit_offset(5, **{**member, "member_id": "n"}) == "UNKNOWN_MEMBER_ID"
    assert client.commit_offset(5) == "NONE", "without a member, as by clients before version 3"


def test_offsets_outside_of_a_transaction_are_refused(node: WholeNode) -> None:
    find(node, 0, "g")
    client = Client(node)
    client.init()
    assert client.commit_offset(5, version=3) == "INVALID_TXN_STATE"
    assert client.commit_offset(5, version=4) == "TRANSACTION_ABORTABLE"
    client.producer = Producer(client.producer.producer_id, 9)
    assert client.commit_offset(5) == "INVALID_PRODUCER_EPOCH"


def write_marker(node: WholeNode, producer: Producer, index: int, version: int = 2, *, name: str = "t", **fields: Any) -> str:
    key = apis.WRITE_TXN_MARKERS
    topic = struct(key, "WritableTxnMarkerTopic", name=name, partition_indexes=[index])
    marker = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "topics": [topic], **fields}
    answer = ask(node, key, version, markers=[struct(key, "WritableTxnMarker", **marker)])
    return NAMES[answer.markers[0].topics[0].partitions[0].error_code]


def test_markers_of_other_coordinators(node: WholeNode) -> None:
    """kafka-transactions aborts a hanging transaction by a marker of its own."""
    client = Client(node)
    client.init()
    assert client.send(b"a") == "NONE"
    producer_id, epoch = client.producer
    assert write_marker(node, client.producer, 9) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert write_marker(node, client.producer, 0, transaction_version=2) == "INVALID_PRODUCER_EPOCH"
    assert write_marker(node, Producer(producer_id, epoch + 1), 0, transaction_version=2, coordinator_epoch=5) == "NONE"
    assert write_marker(node, Producer(producer_id, epoch + 2), 0, coordinator_epoch=4) == "TRANSACTION_COORDINATOR_FENCED"
    assert fetched(node) == (2, [(producer_id, 0)])


def test_markers_without_a_producer(node: WholeNode) -> None:
    """A marker of producer -1 or epoch -1 was written as a batch that no broker can have; it ends the request, as in Kafka."""
    client = Client(node)
    client.init()
    assert client.send(b"a") == "NONE"
    find(node, 0, "g")  # makes __consumer_offsets
    for producer in (Producer(-1, 0), Producer(client.producer.producer_id, -1), Producer(-1, -1)):
        assert write_marker(node, producer, 9) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert write_marker(node, producer, 0) == "UNKNOWN_SERVER_ERROR"
        assert write_marker(node, producer, 0, name="__consumer_offsets") == "UNKNOWN_SERVER_ERROR"
    assert fetched(node) == (0, [])


def test_markers_before_one_without_a_producer_are_written(node: WholeNode) -> None:
    client = Client(node)
    client.init()
    assert client.send(b"a") == "NONE"
    key, (producer_id, epoch) = apis.WRITE_TXN_MARKERS, client.producer
    topics = [struct(key, "WritableTxnMarkerTopic", name="t", partition_indexes=[0, 9])]
    markers = [
        struct(key, "WritableTxnMarker", producer_id=one, producer_epoch=epoch, topics=topics, transaction_result=True)
        for one in (producer_id, -1)
    ]
    answer = ask(node, key, 1, markers=markers)
    codes = [part.error_code for marker in answer.markers for part in marker.topics[0].partitions]
    assert codes == [error_codes.UNKNOWN_SERVER_ERROR] * 4
    assert fetched(node) == (2, [])


def test_transactions_are_listed_and_described(node: WholeNode) -> None:
    one, two = Client(node, "x"), Client(node, "y")
    assert one.init() == two.init() == two.send(b"a", 2) == "NONE"
    node.advance(50)

    def listed(**fields: Any) -> tuple[list[str], list[str]]:
        answer = ask(node, apis.LIST_TRANSACTIONS, 2, **fields)
        assert answer.error_code == 0
        names = [f"{found.transactional_id} {found.transaction_state}" for found in answer.transaction_states]
        return sorted(names), answer.unknown_state_filters

    assert listed() == (["x Empty", "y Ongoing"], [])
    assert listed(state_filters=["Ongoing", "Odd"]) == (["y Ongoing"], ["Odd"])
    assert listed(producer_id_filters=[one.producer.producer_id]) == (["x Empty"], [])
    assert listed(duration_filter=1_000, state_filters=["Ongoing"]) == ([], [])
    assert listed(transactional_id_pattern="[xz]") == (["x Empty"], []) and listed(transactional_id_pattern="") == listed()
    assert listed(transactional_id_pattern="(?i)[[:alpha:]]", state_filters=["Empty"]) == (["x Empty"], [])
    for pattern in ("(", "(x)\\1", "(?=x)x"):  # the syntax is RE2's
        answer = ask(node, apis.LIST_TRANSACTIONS, 2, transactional_id_pattern=pattern)
        assert answer.error_code == error_codes.INVALID_REGULAR_EXPRESSION
    found = ask(node, apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["y", "z", ""]).transaction_states
    codes = [NAMES[state.error_code] for state in found]
    assert codes == ["NONE", "TRANSACTIONAL_ID_NOT_FOUND", "INVALID_REQUEST"]
    assert [(topic.topic, topic.partitions) for topic in found[0].topics] == [("t", [2])]
    assert (found[0].producer_id, found[0].transaction_timeout_ms) == (two.producer.producer_id, 60_000)


def test_what_is_not_allowed_is_refused(node: WholeNode, client: Client) -> None:
    authorizer, allow_all = Refusing(), node.broker.parts.authorizer
    for method in ("is_allowed", "is_allowed_by_type"):
        setattr(allow_all, method, getattr(authorizer, method))
    authorizer.refused = {("WRITE", "TRANSACTIONAL_ID", "x"), ("DESCRIBE", "TRANSACTIONAL_ID", "x")}
    refused = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert client.init() == refused == client.end() == client.send(b"a", version=12) == client.commit_offset(1)
    assert client.add(0) == [refused] and ask(node, apis.LIST_TRANSACTIONS, 2).transaction_states == []
    (state,) = ask(node, apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["x"]).transaction_states
    assert NAMES[state.error_code] == refused
    fields = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "group_id": "g"}
    assert NAMES[ask(node, apis.ADD_OFFSETS_TO_TXN, 4, **fields).error_code] == refused
    authorizer.refused = {("READ", "GROUP", "g")}
    assert NAMES[ask(node, apis.ADD_OFFSETS_TO_TXN, 4, **fields).error_code] == "GROUP_AUTHORIZATION_FAILED"
    assert client.commit_offset(1) == "GROUP_AUTHORIZATION_FAILED"
    authorizer.refused = {("WRITE", "TOPIC", "t")}
    assert client.add(0) == ["TOPIC_AUTHORIZATION_FAILED"]
    authorizer.refused = {("ALTER", "CLUSTER", "kafka-cluster"), ("CLUSTER_ACTION", "CLUSTER", "kafka-cluster")}
    assert write_marker(node, client.producer, 0) == "CLUSTER_AUTHORIZATION_FAILED"
    assert client.entry().state == "Empty"


def test_what_is_not_committed_is_not_described_and_a_late_commit_is_carried_on(tmp_path: Path) -> None:
    """A record that is committed after request.timeout.ms: the end goes on then; until then the entry before it is shown."""
    settings = ("log.flush.interval.messages=1", "metadata.max.idle.interval.ms=0", "request.timeout.ms=1000")
    node = WholeNode(tmp_path / "data", *SETTINGS, *settings)
    node.create_topic("t")
    find(node, 1, "x")
    client = Client(node)
    assert client.init() == client.send(b"a") == "NONE"
    node.holds_flushes = True
    producer_id, epoch = client.producer
    request = apis.API_KEYS[apis.END_TXN].request
    fields = {"transactional_id": "x", "producer_id": producer_id, "producer_epoch": epoch, "committed": True}
    pending = node.send(apis.END_TXN, 5, request.new(**fields))
    node.advance(900)
    assert pending.answer is None and client.entry().state == "Ongoing"
    listed = ask(node, apis.LIST_TRANSACTIONS, 2, state_filters=["Ongoing"]).transaction_states
    assert [found.transactional_id for found in listed] == ["x"]
    node.advance(200)
    assert NAMES[pending.result().error_code] == "COORDINATOR_NOT_AVAILABLE"
    assert client.entry().state == "Ongoing" and client.end() == "CONCURRENT_TRANSACTIONS"
    node.holds_flushes = False
    node.release_flushes()
    node.advance(200)
    assert client.entry().state == "CompleteCommit" and fetched(node) == (2, [])
    assert client.end() == "NONE" and client.producer.producer_epoch == epoch + 1


def test_an_id_without_permission_is_refused_before_its_fields_are_checked(tmp_path: Path) -> None:
    """KafkaApis.handleInitProducerIdRequest; KIP-939 has a permission of its own."""
    settings = ("unstable.api.versions.enable=true", "transaction.two.phase.commit.enable=true")
    node = WholeNode(tmp_path / "data", *SETTINGS, *settings)
    authorizer, allow_all = Refusing(), node.broker.parts.authorizer
    for method in ("is_allowed", "is_allowed_by_type"):
        setattr(allow_all, method, getattr(authorizer, method))
    find(node, 1, "x")
    client = Client(node)
    authorizer.refused = {("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster"), ("WRITE", "TOPIC", "?")}
    assert client.init(transactional_id=None, producer_id=3) == "CLUSTER_AUTHORIZATION_FAILED"
    authorizer.refused = {("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", "x")}
    assert client.init(6, enable2_pc=True, producer_id=3) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert client.init() == "NONE"


def test_cleaning_keeps_the_entry_of_each_transactional_id(tmp_path: Path) -> None:
    """__transaction_state is compacted: a load after it finds what was there, open transactions and tombstones included."""
    cleaning = ("log.cleaner.backoff.ms=500", "log.initial.task.delay.ms=500")
    expiry = ("transactional.id.expiration.ms=10000", "transaction.remove.expired.transaction.cleanup.interval.ms=3000")
    node = WholeNode(tmp_path / "data", "transaction.state.log.num.partitions=1", *cleaning, *expiry)
    node.create_topic("t", 2)
    find(node, 1, "x")
    key = apis.INCREMENTAL_ALTER_CONFIGS
    small = struct(key, "AlterableConfig", name="internal.segment.bytes", config_operation=0, value="3000")
    topic = struct(key, "AlterConfigsResource", resource_type=2, resource_name="__transaction_state", configs=[small])
    assert ask(node, key, 1, resources=[topic]).responses[0].error_code == 0
    gone, busy, held = Client(node, "gone"), Client(node, "x"), Client(node, "held", timeout_ms=600_000)
    assert gone.init() == busy.init() == held.init() == held.send(b"open", 1) == "NONE"
    for number in range(100):
        assert busy.send(b"%d" % number) == busy.end(number % 2 == 0) == "NONE"
        node.advance(200)
    runtime, log = node.broker.transactions.runtime, state_partition(node)
    before = dict(runtime.shard(log.index).state.transactions)
    assert set(before) == {"x", "held"} and log.log is not None
    assert node.broker.log_manager.cleaner.totals.rounds > 0 and log.log.size_bytes < 60 * log.log.log_end_offset
    runtime.resign(log.index)
    runtime.leadership_changed(log, node.now_ms)
    node.until(lambda: not runtime.loading_count())
    assert {name: entry._replace(last_producer_epoch=-1) for name, entry in before.items()} == {
        name: entry._replace(last_producer_epoch=-1) for name, entry in runtime.shard(log.index).state.transactions.items()
    }
    assert held.end() == busy.send(b"more") == busy.end() == "NONE"
