"""Protects the states of share partitions on a whole node: records, epochs that fence, snapshots, pruning, and the persister.

What is expected follows Kafka 4.3.1's ShareCoordinatorShard; one test is of 4.4.0's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.protocol import apis, error_codes
from kcli.protocol.internal_records import SHARE_GROUP_STATE
from kcli.protocol.message import Message
from kcli.server.coordinator.share.share_coordinator import coordinator_key, parse_coordinator_key
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.share_persister import ShareKey, ShareState, ShareSummary, ShareUpdateBatches
from kcli.state.share_group_state import StateBatch
from tests.server.apis.asking import Refusing, ask, struct, upgrade
from tests.server.whole_node import WholeNode

NAMES = error_codes.NAMES
TOPIC = "__share_group_state"
SETTINGS = ("share.coordinator.state.topic.num.partitions=1", "share.coordinator.snapshot.update.records.per.snapshot=2")


class Client:
    """A broker that reads and writes the state of partition 0 of a topic for group g."""

    def __init__(self, node: WholeNode, topic_id: Uuid) -> None:
        self.node = node
        self.topic_id = topic_id
        self.key = ShareKey("g", topic_id, 0)

    def ask(self, key: int, version: int, kind: str, partition: int = 0, **fields: Any) -> Message:
        """The answer for one partition."""
        part = struct(key, "PartitionData", partition=partition, **fields)
        topic = struct(key, kind, topic_id=self.topic_id, partitions=[part])
        answer = ask(self.node, key, version, group_id="g", topics=[topic])
        return answer.results[0].partitions[0]  # type: ignore[no-any-return]

    def initialize(self, state_epoch: int = 0, start_offset: int = -1, **fields: Any) -> str:
        fields = {"state_epoch": state_epoch, "start_offset": start_offset, **fields}
        key = apis.INITIALIZE_SHARE_GROUP_STATE
        return NAMES[self.ask(key, 0, "InitializeStateData", **fields).error_code]

    def read(self, leader_epoch: int, **fields: Any) -> Message:
        return self.ask(apis.READ_SHARE_GROUP_STATE, 0, "ReadStateData", leader_epoch=leader_epoch, **fields)

    def write(
        self, *batches: tuple[int, int, int, int], start: int = -1, state: int = 0, leader: int = 0, count: int = 0
    ) -> str:
        key = apis.WRITE_SHARE_GROUP_STATE
        found = [
            struct(key, "StateBatch", first_offset=first, last_offset=last, delivery_state=what, delivery_count=times)
            for first, last, what, times in batches
        ]
        answer = self.ask(
            key,
            1,
            "WriteStateData",
            state_epoch=state,
            leader_epoch=leader,
            start_offset=start,
            delivery_complete_count=count,
            state_batches=found,
        )
        return NAMES[answer.error_code]

    def summary(self) -> tuple[int, int, int, int]:
        found = self.ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, 1, "ReadStateSummaryData", leader_epoch=0)
        assert not found.error_code
        return found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count

    def delete(self, **fields: Any) -> str:
        return NAMES[self.ask(apis.DELETE_SHARE_GROUP_STATE, 0, "DeleteStateData", **fields).error_code]


def find(node: WholeNode, key: str) -> None:
    """Ask for the coordinator until there is one."""

    def is_found() -> bool:
        answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key])
        return not answer.coordinators[0].error_code

    node.until(is_found)
    node.advance(10)


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data", *SETTINGS)


@pytest.fixture
def client(node: WholeNode) -> Client:
    made = Client(node, node.create_topic("t", 2))
    find(node, coordinator_key(made.key))
    return made


def records(node: WholeNode) -> list[str]:
    """The kinds of the records in the log, and the snapshot epoch of each."""
    partition = node.broker.replica_manager.partition(TOPIC, 0)
    assert partition is not None and partition.log is not None
    local, scanner, out = partition.log.local_log(), RecordScanner(), []
    for segment in list(local.segments):
        with SegmentReader(local.disk, segment.log_path) as reader:
            for found in reader.batches():
                assert isinstance(found, LogBatch)
                for window in found.windows(scanner):
                    for index in range(window.count):
                        key, value = SHARE_GROUP_STATE.decode(window.key(index), window.value(index))
                        assert key is not None
                        kind = key.STRUCT.name.removeprefix("Share").removesuffix("Key")
                        out.append(f"{kind} {'deleted' if value is None else value.snapshot_epoch}")
    return out


def test_the_topic_is_made_on_demand_with_its_configuration(node: WholeNode, client: Client) -> None:
    configs = node.broker.image.configs_of("TOPIC")[TOPIC]
    assert {name: configs[name] for name in ("cleanup.policy", "retention.ms", "min.insync.replicas")} == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "min.insync.replicas": "1",
    }


def test_a_state_is_initialized_written_read_and_deleted(client: Client) -> None:
    assert client.summary() == (0, 0, -1, -1)
    assert client.initialize(0, 10) == "NONE"
    assert client.summary() == (0, 0, 10, 0)
    assert client.write((10, 14, 2, 1), (15, 19, 0, 1), leader=0, count=5) == "NONE"
    found = client.read(-1)
    assert (found.state_epoch, found.start_offset) == (0, 10)
    assert [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found.state_batches] == [
        (10, 14, 2, 1),
        (15, 19, 0, 1),
    ]
    assert client.summary() == (0, 0, 10, 5)
    assert client.delete() == "NONE"
    assert client.delete() == "NONE", "nothing is left to delete"
    assert client.summary() == (0, 0, -1, -1)


def test_a_state_that_is_not_initialized_is_neither_read_nor_written(client: Client) -> None:
    assert client.write((0, 1, 0, 1)) == "INVALID_REQUEST"
    found = client.read(0)
    assert found.error_code == error_codes.INVALID_REQUEST
    assert found.error_message == "Read operation on uninitialized share partition not allowed."


def test_a_read_in_a_later_leader_epoch_fences_the_earlier_leader(client: Client) -> None:
    client.initialize(0, 0)
    assert not client.read(5).error_code
    assert client.summary()[1] == 5
    assert client.read(4).error_code == error_codes.FENCED_LEADER_EPOCH
    assert client.write((0, 1, 0, 1), leader=4) == "FENCED_LEADER_EPOCH"
    assert client.write((0, 1, 0, 1), leader=7) == "NONE"
    assert client.summary()[1] == 5, "a write keeps the leader epoch"


def test_a_later_state_epoch_begins_the_state_again_and_fences_the_earlier_one(client: Client) -> None:
    client.initialize(3, 0)
    client.write((0, 9, 2, 1), state=3, count=10)
    assert client.initialize(2, 5) == "FENCED_STATE_EPOCH"
    assert client.initialize(4, 50) == "NONE"
    assert client.write((0, 1, 0, 1), state=3) == "FENCED_STATE_EPOCH"
    assert client.write((50, 51, 0, 1), state=-1) == "NONE", "-1 is not compared"
    found = client.read(-1)
    assert (found.state_epoch, found.start_offset) == (4, 50)
    assert [b.first_offset for b in found.state_batches] == [50]


def test_partitions_that_do_not_exist_are_refused(client: Client) -> None:
    assert client.initialize(0, 0, partition=2) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert client.initialize(0, 0, partition=-1) == "INVALID_REQUEST"
    assert client.delete(partition=-1) == "INVALID_REQUEST"
    assert client.read(0, partition=2).error_code == error_codes.INVALID_REQUEST, "it is not initialized either"


def test_a_snapshot_follows_when_there_are_enough_updates(node: WholeNode, client: Client) -> None:
    client.initialize(0, 0)
    for offset in range(6):
        assert client.write((offset, offset, 2, 1)) == "NONE"
    expected = ["Snapshot 0", "Update 0", "Update 0", "Snapshot 1", "Update 1", "Update 1", "Snapshot 2"]
    assert records(node) == expected
    found = client.read(-1)
    assert [(b.first_offset, b.last_offset) for b in found.state_batches] == [(0, 5)]


def test_a_write_that_cannot_be_appended_is_reverted(node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.initialize(1, 0)
    client.write((0, 4, 0, 1), state=1)
    state = node.broker.share_coordinator.runtime.shard(0).state
    before = [dict(found) for found in (state.partitions, state.epochs, state.update_counts, state.snapshot_offsets)]

    def fail(*given: Any, **named: Any) -> None:
        raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, "too few")

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", fail)
        assert client.write((0, 4, 2, 1), state=1) == "COORDINATOR_NOT_AVAILABLE"
        assert client.initialize(5, 0) == "COORDINATOR_NOT_AVAILABLE"
        assert client.delete() == "COORDINATOR_NOT_AVAILABLE"
    assert [state.partitions, state.epochs, state.update_counts, state.snapshot_offsets] == before
    assert client.write((0, 4, 2, 1), state=1) == "NONE"


def test_a_restart_restores_states_and_fences(tmp_path: Path, node: WholeNode, client: Client) -> None:
    client.initialize(2, 7)
    client.read(3)
    client.write((7, 9, 0, 2), leader=3, state=2)
    node.stop()
    client.node = again = WholeNode(tmp_path / "data", *SETTINGS)
    again.until(lambda: not again.broker.share_coordinator.runtime.loading_count())
    assert client.summary() == (2, 3, 7, 0)
    assert client.write((7, 9, 0, 2), leader=2, state=2) == "FENCED_LEADER_EPOCH"
    assert client.initialize(1, 0) == "FENCED_STATE_EPOCH"


def test_records_below_the_oldest_snapshot_are_pruned(node: WholeNode, client: Client) -> None:
    client.initialize(0, 0)
    for offset in range(4):
        client.write((offset, offset, 2, 1))
    partition = node.broker.replica_manager.partition(TOPIC, 0)
    assert partition is not None and partition.log is not None
    assert partition.log.log_start_offset == 0
    node.advance(300_001)
    assert partition.log.log_start_offset >= 3, "the second snapshot has offset 3"


def test_a_share_partition_without_changes_gets_a_snapshot(node: WholeNode, client: Client) -> None:
    client.initialize(0, 0)
    node.advance(700_000)
    # One after the first interval; as all are such snapshots then, none follows.
    assert records(node) == ["Snapshot 0", "Snapshot 1"]


def test_a_deleted_topic_takes_its_states_with_it(node: WholeNode, client: Client) -> None:
    client.initialize(0, 0)
    node.delete_topic("t")
    node.until(lambda: records(node)[-1] == "Snapshot deleted")
    assert not node.broker.share_coordinator.runtime.shard(0).state.partitions


def test_only_brokers_may_ask(node: WholeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(("CLUSTER_ACTION", "CLUSTER", "kafka-cluster"))
    monkeypatch.setattr(node.broker.router, "_parts", node.broker.parts._replace(authorizer=refusing))
    assert client.initialize(0, 0) == "CLUSTER_AUTHORIZATION_FAILED"
    answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[coordinator_key(client.key)])
    assert answer.coordinators[0].error_code == error_codes.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("key", ["", "g", "g:x", "g:tttttttttttttttttttttg:x", ":tttttttttttttttttttttg:0", "g:t:0", "g:t:"])
def test_a_key_of_another_form_has_no_coordinator(node: WholeNode, client: Client, key: str) -> None:
    answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key])
    assert answer.coordinators[0].error_code == error_codes.INVALID_REQUEST


def test_a_group_id_may_have_colons() -> None:
    key = "a:b:tttttttttttttttttttttg:3"
    assert parse_coordinator_key(key) == key


def test_the_persister_makes_the_topic_and_goes_to_its_leader(node: WholeNode) -> None:
    key, persister = ShareKey("g", node.create_topic("t"), 0), node.broker.share_persister
    found: list[Any] = []
    persister.initialize(key, 1, 5, found.append)
    node.until(lambda: found == [error_codes.NONE])
    batches = (StateBatch(5, 6, 0, 1), StateBatch(7, 7, 4, 3))
    persister.write(key, ShareUpdateBatches(1, 0, -1, 1, batches), found.append)
    persister.write(key, ShareUpdateBatches(1, 0, 6, 2, ()), found.append)
    node.until(lambda: found == [0, 0, 0])
    persister.read(key, 2, found.append)
    persister.read_summary(key, found.append)
    node.until(lambda: len(found) == 5)
    assert found[3] == ShareState(1, 6, (StateBatch(6, 6, 0, 1), StateBatch(7, 7, 4, 3)))
    assert found[4] == ShareSummary(1, 0, 6, 2) or found[4] == ShareSummary(1, 2, 6, 2)
    persister.delete(key, found.append)
    node.until(lambda: len(found) == 6)
    persister.read(key, 3, found.append)
    node.until(lambda: len(found) == 7)
    assert found[5:] == [error_codes.NONE, error_codes.INVALID_REQUEST]


def test_the_persister_ends_a_call_after_five_attempts(node: WholeNode, client: Client) -> None:
    found: list[Any] = []
    node.broker.share_persister.initialize(ShareKey("g", Uuid(b"\3" * 16), 0), 0, 0, found.append)
    node.advance(20_000)
    assert not found, "the last attempt is 30 s after the first, give or take a fifth"
    node.advance(20_000)
    assert found == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_state_does_not_go_back_in_a_cluster_of_4_4(node: WholeNode, client: Client) -> None:
    """Neither its start offset nor the count of records that are done; epochs below 0 are refused."""
    upgrade(node)
    assert client.initialize(state_epoch=-1) == "INVALID_REQUEST"
    assert client.initialize(start_offset=10) == "NONE"
    assert NAMES[client.read(-1).error_code] == client.write(leader=-1) == client.write(state=-1) == "INVALID_REQUEST"
    for start, count, summary in ((10, 5, (10, 5)), (10, 3, (10, 5)), (4, 9, (10, 5)), (-1, 9, (10, 5)), (12, 2, (12, 2))):
        assert client.write((8, 11, 0, 1), start=start, count=count) == "NONE"
        assert client.summary()[2:] == summary
    assert [(one.first_offset, one.last_offset) for one in client.read(0).state_batches] == []
