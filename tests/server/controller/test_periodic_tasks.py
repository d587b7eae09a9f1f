"""Protects what the active controller decides without a request: sessions that expire, preferred leaders, unclean elections.

Kafka: QuorumControllerTest, ReplicationControlManagerTest.testBalancePartitionLeaders and
testMaybeTriggerUncleanLeaderElectionForLeaderlessPartitions, ClusterControlManagerTest of duplicate registrations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, INCREMENTAL_ALTER_CONFIGS
from kcli.server.controller import quorum_controller
from kcli.state.metadata_values import PartitionRegistration
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted

QUIET = "broker.session.timeout.ms=100000000"


def cluster(directory: Path, *overrides: str, brokers: int = 2) -> ControllerNode:
    """A controller with this many brokers that are not fenced."""
    node = ControllerNode(formatted(directory / "data"), *overrides).start_with_broker()
    for broker_id in range(2, brokers + 1):
        node.register(broker_id, broker_id)
        assert not node.beat(broker_id).is_fenced
    return node


def partitions(node: ControllerNode, name: str = "orders") -> list[PartitionRegistration]:
    topic = node.broker.image.topic(name)
    assert topic is not None
    return list(topic.partitions.values())


def fail_over(node: ControllerNode) -> None:
    """Lose the leadership and get it again, in the same process."""
    controller = node.core.controller
    controller._resign()
    controller.on_leader_change(1, node.core.raft.epoch, node.now_ms)
    node.run()


def set_unclean(node: ControllerNode, name: str, value: str) -> None:
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    config = request.classes["AlterableConfig"](name="unclean.leader.election.enable", config_operation=0, value=value)
    resource = request.classes["AlterConfigsResource"](resource_type=2, resource_name=name, configs=[config])
    assert node.ask(INCREMENTAL_ALTER_CONFIGS, request.new(resources=[resource])).responses[0].error_code == 0


# ------------------------------------------------------------------------------------------------------------- sessions


def test_stale_brokers_are_fenced_one_by_one(tmp_path: Path) -> None:
    """The one that was silent for longest first; each check, an eighth of the session timeout, fences one."""
    node = cluster(tmp_path, "broker.session.timeout.ms=8000", brokers=3)
    for broker_id in (2, 1, 3):
        node.run(100)
        node.beat(broker_id)
    fenced: list[set[int]] = []
    for _ in range(16):
        node.run(1_000)
        now = {broker_id for broker_id, broker in node.broker.image.brokers.items() if broker.is_fenced}
        if not fenced or fenced[-1] != now:
            fenced.append(now)
    assert fenced == [set(), {2}, {1, 2}, {1, 2, 3}]


def test_a_new_leader_gives_each_broker_a_session(tmp_path: Path) -> None:
    """Also its own: a second broker with its id is refused until that session expires (it once was admitted)."""
    node = cluster(tmp_path)
    node.run(8_000)
    fail_over(node)
    node.run(8_000)
    assert not any(broker.is_fenced for broker in node.broker.image.brokers.values())
    assert [node.register(broker_id, 9).error_code for broker_id in (1, 2)] == [error_codes.DUPLICATE_BROKER_REGISTRATION] * 2
    node.run(4_000)
    assert all(broker.is_fenced for broker in node.broker.image.brokers.values())
    assert [node.register(broker_id, 9).error_code for broker_id in (1, 2)] == [0, 0]


def test_a_restarted_node_need_not_wait_for_its_own_session(tmp_path: Path) -> None:
    """Its earlier process has ended; that of another broker may not have."""
    node = cluster(tmp_path)
    node.stop()
    again = ControllerNode(tmp_path / "data").start()
    assert again.register(2, 9).error_code == error_codes.DUPLICATE_BROKER_REGISTRATION
    assert again.register(1, 9).error_code == 0
    assert not again.beat(1).is_fenced
    assert again.register(1, 8).error_code == error_codes.DUPLICATE_BROKER_REGISTRATION


def test_a_new_leader_waits_for_all_before_a_broker_stops(tmp_path: Path) -> None:
    """It does not know what they have applied; a broker that leads nothing any more may go, as in Kafka."""
    node = cluster(tmp_path, brokers=3)
    node.create_topic("orders", 6, 3)
    assert not node.beat(1, want_shut_down=True).should_shut_down
    fail_over(node)
    assert node.beat(1, want_shut_down=True).should_shut_down, "its shutdown is not known, and it leads nothing"
    assert not node.beat(2, want_shut_down=True).should_shut_down
    assert not node.beat(2, want_shut_down=True).should_shut_down, "broker 3 was not heard of since the election"
    node.beat(3)
    assert node.beat(2, want_shut_down=True).should_shut_down


def test_a_stopped_broker_may_get_replicas(tmp_path: Path) -> None:
    """As every fenced one: it is in controlled shutdown until it is fenced (BrokerHeartbeatManager.usableBrokers)."""
    node = cluster(tmp_path, brokers=3)
    node.create_topic("orders", 6, 3)
    assert not node.beat(3, want_shut_down=True).should_shut_down
    assert node.create_topic("early", 1, 3).error_code == error_codes.INVALID_REPLICATION_FACTOR
    for broker_id in (1, 2):
        node.beat(broker_id)
    assert node.beat(3, want_shut_down=True).should_shut_down
    assert node.create_topic("late", 1, 3).error_code == 0
    assert sorted(partitions(node, "late")[0].isr) == [1, 2]


# ------------------------------------------------------------------------------------------------------------ elections


def imbalanced(node: ControllerNode) -> int:
    return sum(partition.leader != partition.replicas[0] for partition in partitions(node))


def let_broker_2_pass(node: ControllerNode) -> None:
    """Take all leaders from broker 2, and let it be in sync again."""
    node.beat(2, want_fence=True)
    node.beat(2)
    for partition in partitions(node):
        assert partition.leader != 2
    for topic in node.core.state.image.topics.values():
        for partition in topic.partitions.values():
            partition.isr = list(partition.replicas)


def test_preferred_leaders_are_elected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each interval; what exceeds the elections of a run follows at once, in a batch of its own."""
    monkeypatch.setattr(quorum_controller, "MAX_ELECTIONS", 3)
    node = cluster(tmp_path, QUIET, "leader.imbalance.check.interval.seconds=10")
    node.create_topic("orders", 16, 2)
    node.run(4_000)
    let_broker_2_pass(node)
    assert imbalanced(node) == 8
    node.run(5_900)
    assert imbalanced(node) == 8
    end_offset = node.core.raft.next_offset
    node.run(200)
    assert imbalanced(node) == 0
    changes = [len(batch.records) for batch in node.core.raft.log.batches(end_offset, node.core.raft.next_offset)]
    assert [count for count in changes if count > 1] == [3, 3, 2]


def test_preferred_leaders_wait_where_that_is_disabled(tmp_path: Path) -> None:
    """auto.leader.rebalance.enable=false, and replicas that are not in sync."""
    node = cluster(tmp_path, QUIET, "leader.imbalance.check.interval.seconds=1", "auto.leader.rebalance.enable=false")
    node.create_topic("orders", 4, 2)
    let_broker_2_pass(node)
    node.run(10_000)
    assert imbalanced(node) == 2


def test_unclean_leaders_are_elected_where_that_is_allowed(tmp_path: Path) -> None:
    """Also if it is allowed only afterwards; of another topic's partitions the ISR is waited for."""
    node = cluster(tmp_path, QUIET, "unclean.leader.election.interval.ms=5000")
    for name in ("orders", "others"):
        node.create_topic(name, 2, 2)
    node.beat(2, want_fence=True)
    node.beat(1, want_fence=True)
    node.beat(2)
    assert [partition.leader for name in ("orders", "others") for partition in partitions(node, name)] == [-1] * 4
    set_unclean(node, "orders", "true")
    node.run(4_900)
    assert [partition.leader for partition in partitions(node)] == [-1, -1]
    node.run(200)
    found = partitions(node)
    assert [(partition.leader, partition.isr, partition.leader_recovery_state) for partition in found] == [
        (2, [2], "RECOVERING")
    ] * 2
    assert [partition.leader for partition in partitions(node, "others")] == [-1, -1]
    assert "elected leaders of 2 partition(s) that had none" in node.lines[-1]
    assert node.core.controller.metrics.unclean_elections == 2
