"""Protects what becomes of partitions while their brokers come and go: leaders, ISR and eligible leader replicas (KIP-966).

The situations are those of Kafka's ReplicationControlManagerTest; kafka_names.txt says which test has which.
"""

from __future__ import annotations

from pathlib import Path

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_PARTITION,
    API_KEYS,
    ASSIGN_REPLICAS_TO_DIRS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    UPDATE_FEATURES,
)
from tests.server.controller.controllers import ControllerNode
from tests.server.controller.test_administration import elect, move, static_controller
from tests.server.controller.test_cluster_control_manager import alter, partition
from tests.server.controller.test_periodic_tasks import QUIET, cluster
from tests.server.controller.test_replication_control_manager import create, grow, topic


def leader_isr_elr(node: ControllerNode, index: int = 0) -> tuple[int, list[int], list[int]]:
    found = partition(node, index=index)
    return found.leader, sorted(found.isr), sorted(found.eligible_leader_replicas)


def make(node: ControllerNode, *assignments: list[int], min_isr: int = 1) -> None:
    """Create "orders" with these replicas."""
    settings = [("min.insync.replicas", str(min_isr))]
    (made,) = create(node, topic("orders", -1, -1, assignments=list(enumerate(assignments)), configs=settings))
    assert made.error_code == 0


def fence(node: ControllerNode, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        assert node.beat(broker_id, want_fence=True).is_fenced


def unfence(node: ControllerNode, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        assert not node.beat(broker_id).is_fenced


def set_min_isr(node: ControllerNode, value: str, name: str = "orders", kind: int = 2) -> int:
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    config = request.classes["AlterableConfig"](name="min.insync.replicas", config_operation=0, value=value)
    resource = request.classes["AlterConfigsResource"](resource_type=kind, resource_name=name, configs=[config])
    code: int = node.ask(INCREMENTAL_ALTER_CONFIGS, request.new(resources=[resource])).responses[0].error_code
    return code


# ---------------------------------------------------------------------------------------------------------- new partitions


def test_new_partitions_have_the_active_brokers_in_sync(tmp_path: Path) -> None:
    """Neither those that are fenced nor those that stop; a partition that has only such ones is refused."""
    node = cluster(tmp_path, QUIET, brokers=4)
    create(node, topic("other", -1, -1, assignments=[(0, [3, 1])]))
    fence(node, 2)
    assert not node.beat(3, want_shut_down=True).should_shut_down
    make(node, [2, 3, 1], [1, 2, 3])
    assert [leader_isr_elr(node, index)[:2] for index in (0, 1)] == [(1, [1]), (1, [1])]
    assert grow(node, "orders", 3, [[3, 2, 1]]).error_code == 0
    assert leader_isr_elr(node, 2)[:2] == (1, [1])
    assert grow(node, "orders", 4, [[3, 2]]).error_code == error_codes.INVALID_REPLICA_ASSIGNMENT
    create(node, topic("narrow", -1, -1, assignments=[(0, [1])]))
    assert grow(node, "narrow", 2, [[2]]).error_code == error_codes.INVALID_REPLICA_ASSIGNMENT
    fence(node, 1, 4)
    assert grow(node, "narrow", 2).error_code == error_codes.INVALID_REPLICATION_FACTOR


# ------------------------------------------------------------------------------------------------------- brokers that go


def test_brokers_are_fenced_and_come_back(tmp_path: Path) -> None:
    """Without ELR the last member stays in the ISR; another is never added. Leaders move, and leaderless partitions wait."""
    node = cluster(tmp_path, QUIET, brokers=5)
    without_elr(node)
    make(node, [1, 2, 3], [2, 3, 4], [5, 2, 1])
    fence(node, 2, 3)
    assert [leader_isr_elr(node, index)[:2] for index in range(3)] == [(1, [1]), (4, [4]), (5, [1, 5])]
    fence(node, 1)
    assert [leader_isr_elr(node, index)[:2] for index in range(3)] == [(-1, [1]), (4, [4]), (5, [5])]
    unfence(node, 2)
    assert leader_isr_elr(node)[:2] == (-1, [1]), "it may lack records"
    unfence(node, 1)
    assert leader_isr_elr(node)[:2] == (1, [1])


def test_without_elr_an_unclean_stop_is_a_stop(tmp_path: Path) -> None:
    """The broker leaves the ISR when it registers again, and stays in it if it was the last member."""
    node = cluster(tmp_path, "broker.session.timeout.ms=9000")
    without_elr(node)
    make(node, [1, 2], [2, 1])
    node.run(8_000)
    node.beat(1)
    node.run(4_000)
    node.beat(1)
    assert node.register(2, 9).error_code == 0
    assert [leader_isr_elr(node, index) for index in (0, 1)] == [(1, [1], []), (1, [1], [])]
    node.run(10_000)
    assert node.register(1, 9).error_code == 0
    assert leader_isr_elr(node) == (-1, [1], [])
    unfence(node, 1)
    assert (leader_isr_elr(node), partition(node).leader_recovery_state) == ((1, [1], []), "RECOVERED")


def without_elr(node: ControllerNode) -> None:
    request = API_KEYS[UPDATE_FEATURES].request
    off = request.classes["FeatureUpdateKey"](feature="eligible.leader.replicas.version", max_version_level=0, upgrade_type=2)
    assert node.ask(UPDATE_FEATURES, request.new(feature_updates=[off])).error_code == 0


def test_unclean_leaders_are_elected_when_asked(tmp_path: Path) -> None:
    """An unclean election needs a replica that is there; a preferred one never is unclean."""
    node = cluster(tmp_path, QUIET, brokers=3)
    without_elr(node)
    make(node, [1, 2], [3, 2])
    fence(node, 2, 1)
    assert leader_isr_elr(node)[:2] == (-1, [1])
    assert elect(node, 1) == [("orders", 0, error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    unfence(node, 2)
    assert elect(node, 0, ("orders", [0])) == [("orders", 0, error_codes.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert leader_isr_elr(node)[:2] == (-1, [1])
    not_needed = ("orders", 1, error_codes.ELECTION_NOT_NEEDED)
    assert elect(node, 1, ("orders", [0, 1])) == [("orders", 0, 0), not_needed]
    assert leader_isr_elr(node)[:2] == (2, [2])
    assert partition(node).leader_recovery_state == "RECOVERING"


# ------------------------------------------------------------------------------------------------ eligible leader replicas


def test_the_isr_shrinks_and_expands(tmp_path: Path) -> None:
    """Below the minimum those that leave are eligible; at the minimum again none is."""
    node = cluster(tmp_path, QUIET, brokers=3)
    make(node, [1, 2, 3], min_isr=3)
    assert alter(node, partition(node), [1, 2]).error_code == 0
    assert leader_isr_elr(node) == (1, [1, 2], [3])
    assert alter(node, partition(node), [1]).error_code == 0
    assert leader_isr_elr(node) == (1, [1], [2, 3])
    assert alter(node, partition(node), [1, 2, 3]).error_code == 0
    assert leader_isr_elr(node) == (1, [1, 2, 3], [])


def test_the_isr_shrinks_to_nothing_and_one_of_the_eligible_leads(tmp_path: Path) -> None:
    """By fencing, below the effective minimum; the eligible broker that is back leads with all records."""
    node = cluster(tmp_path, QUIET, brokers=4)
    make(node, [1, 2, 3, 4], min_isr=3)
    fence(node, 2)
    assert leader_isr_elr(node) == (1, [1, 3, 4], [])
    fence(node, 3, 4)
    assert leader_isr_elr(node) == (1, [1], [3, 4])
    fence(node, 1)
    assert leader_isr_elr(node) == (-1, [], [1, 3, 4])
    assert partition(node).last_known_elr == [1]
    unfence(node, 2)
    assert leader_isr_elr(node) == (-1, [], [1, 3, 4]), "it left above the minimum"
    unfence(node, 3)
    assert leader_isr_elr(node) == (3, [3], [1, 4])
    assert (partition(node).last_known_elr, partition(node).leader_recovery_state) == ([], "RECOVERED")


def test_the_minimum_is_at_most_the_number_of_replicas(tmp_path: Path) -> None:
    """With min.insync.replicas=5 of two replicas both are needed, and both are enough."""
    node = cluster(tmp_path, QUIET, brokers=2)
    make(node, [1, 2], min_isr=5)
    fence(node, 2)
    assert leader_isr_elr(node) == (1, [1], [2])
    unfence(node, 2)
    assert alter(node, partition(node), [1, 2]).error_code == 0
    assert leader_isr_elr(node) == (1, [1, 2], [])


def test_a_broker_that_stopped_uncleanly_is_not_eligible(tmp_path: Path) -> None:
    """Its registration states another epoch than its last: it lost what was not flushed. A clean one stays eligible."""
    node = cluster(tmp_path, "broker.session.timeout.ms=9000", brokers=3)
    make(node, [1, 2, 3], min_isr=3)
    node.run(8_000)
    node.beat(1)
    node.run(4_000)
    node.beat(1)
    assert leader_isr_elr(node) == (1, [1], [2, 3])
    epoch = node.core.state.image.brokers[2].broker_epoch
    assert node.register(2, 9, previous_broker_epoch=epoch).error_code == 0
    assert leader_isr_elr(node) == (1, [1], [2, 3])
    assert node.register(3, 9).error_code == 0
    assert leader_isr_elr(node) == (1, [1], [2])


def test_a_deleted_topic_is_not_eligible_anywhere(tmp_path: Path) -> None:
    """Unregistering the broker afterwards touches no partition of it."""
    node = cluster(tmp_path, QUIET, brokers=2)
    make(node, [1, 2], min_isr=2)
    fence(node, 2)
    assert node.core.state.image.index.in_sync_or_eligible_on(2)
    assert node.ask(DELETE_TOPICS, API_KEYS[DELETE_TOPICS].request.new(topic_names=["orders"]), 5).responses[0].error_code == 0
    assert not node.core.state.image.index.in_sync_or_eligible_on(2)


def test_a_change_of_the_minimum_clears_the_eligible(tmp_path: Path) -> None:
    """Of the topic, or of all if it is the cluster's. Partitions without any keep their epoch."""
    node = cluster(tmp_path, QUIET, brokers=3)
    make(node, [1, 2, 3], [3, 1, 2], min_isr=3)
    assert alter(node, partition(node), [1]).error_code == 0
    epochs = [partition(node, index=index).partition_epoch for index in (0, 1)]
    assert set_min_isr(node, "1") == 0
    assert leader_isr_elr(node) == (1, [1], [])
    assert [partition(node, index=index).partition_epoch for index in (0, 1)] == [epochs[0] + 1, epochs[1]]
    assert set_min_isr(node, "3") == 0
    assert alter(node, partition(node), [1, 2]).error_code == 0
    assert leader_isr_elr(node) == (1, [1, 2], [])
    assert alter(node, partition(node), [1]).error_code == 0
    assert leader_isr_elr(node) == (1, [1], [2])
    assert set_min_isr(node, "2", "", 4) == 0
    assert leader_isr_elr(node) == (1, [1], [])
    assert set_min_isr(node, "2", "1", 4) == error_codes.INVALID_CONFIG


# --------------------------------------------------------------------------------------------------------- AlterPartition


def test_brokers_that_may_not_join_the_isr(tmp_path: Path) -> None:
    """Fenced ones, those that stop, and another incarnation than the leader has seen."""
    node = cluster(tmp_path, QUIET, brokers=3)
    create(node, topic("other", -1, -1, assignments=[(0, [3, 1])]))
    make(node, [1, 2, 3])
    assert alter(node, partition(node), [1]).error_code == 0
    fence(node, 2)
    assert alter(node, partition(node), [1, 2]).error_code == error_codes.INELIGIBLE_REPLICA
    unfence(node, 2)
    made = API_KEYS[ALTER_PARTITION].request.classes["BrokerState"]
    epoch = node.core.state.image.brokers[2].broker_epoch
    members = [made(broker_id=1, broker_epoch=-1), made(broker_id=2, broker_epoch=epoch - 1)]
    assert alter(node, partition(node), [], new_isr_with_epochs=members).error_code == error_codes.INELIGIBLE_REPLICA
    assert not node.beat(3, want_shut_down=True).should_shut_down
    assert alter(node, partition(node), [1, 3]).error_code == error_codes.INELIGIBLE_REPLICA
    assert alter(node, partition(node), [1, 2]).error_code == 0


# ------------------------------------------------------------------------------------------- reassignments and directories


def test_a_reassignment_is_replaced_by_another(tmp_path: Path) -> None:
    """The replicas that the first one added and the second does not want are removed, like the old ones."""
    node = cluster(tmp_path, QUIET, brokers=5)
    make(node, [1, 2])
    assert move(node, [3, 4]) == 0
    assert move(node, [5, 1]) == 0
    found = partition(node)
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ([5, 1, 2, 3, 4], [5], [2, 3, 4])
    assert alter(node, partition(node), [1, 2, 5]).error_code in (0, error_codes.NEW_LEADER_ELECTED)
    found = partition(node)
    assert (found.replicas, found.adding_replicas, found.removing_replicas, sorted(found.isr)) == ([5, 1], [], [], [1, 5])


def test_an_older_metadata_version_has_no_directories(tmp_path: Path) -> None:
    """AssignReplicasToDirs is refused below 3.7-IV2."""
    node = static_controller(tmp_path / "data", 14)
    request = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].request
    epoch = node.core.state.image.brokers[1].broker_epoch
    response = node.ask(ASSIGN_REPLICAS_TO_DIRS, request.new(broker_id=1, broker_epoch=epoch, directories=[]))
    assert response.error_code == error_codes.UNSUPPORTED_VERSION


def test_a_directory_that_fails_takes_its_partitions_along(tmp_path: Path) -> None:
    """Those of the broker's other directory stay; what it led gets another leader, and the registration loses it."""
    node = cluster(tmp_path, QUIET)
    first, second = Uuid(b"\x21" * 16), Uuid(b"\x22" * 16)
    assert node.register(3, 3, log_dirs=[first, second]).error_code == 0
    unfence(node, 3)
    make(node, [3, 1], [3, 1], [1, 3])
    request = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].request
    topic_id = node.core.state.image.topic_ids["orders"]
    for directory, indexes in ((first, (0, 2)), (second, (1,))):
        parts = [request.classes["PartitionData"](partition_index=index) for index in indexes]
        named = request.classes["TopicData"](topic_id=topic_id, partitions=parts)
        asked = request.classes["DirectoryData"](id=directory, topics=[named])
        epoch = node.core.state.image.brokers[3].broker_epoch
        node.ask(ASSIGN_REPLICAS_TO_DIRS, request.new(broker_id=3, broker_epoch=epoch, directories=[asked]))
    assert node.beat(3, offline_log_dirs=[first]).error_code == 0
    assert [leader_isr_elr(node, index)[:2] for index in range(3)] == [(1, [1]), (3, [1, 3]), (1, [1])]
    assert node.broker.image.brokers[3].log_dirs == [second]


def test_no_partitions_while_all_brokers_stop(tmp_path: Path) -> None:
    """Fenced or in controlled shutdown: there is no leader for them."""
    node = cluster(tmp_path, QUIET)
    make(node, [1], [2])
    fence(node, 2)
    assert not node.beat(1, want_shut_down=True).should_shut_down
    assert grow(node, "orders", 3).error_code == error_codes.INVALID_REPLICATION_FACTOR
