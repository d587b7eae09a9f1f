"""Protects the snapshot of metadata that the accumulator and the partitioners read."""

from __future__ import annotations

from kcli.client.cluster import NO_EPOCH, NO_LEADER, Cluster, PartitionInfo

INFOS = [
    PartitionInfo("b", 1, 7, 3),
    PartitionInfo("b", 0),
    PartitionInfo("a", 0, 7, 1),
    PartitionInfo("b", 2, 8, 2),
]


def test_what_a_snapshot_answers() -> None:
    cluster = Cluster(INFOS)
    assert [one.partition for one in cluster.partitions_for_topic("b")] == [0, 1, 2]
    assert [one.partition for one in cluster.available_partitions_for_topic("b")] == [1, 2]
    assert [(one.topic, one.partition) for one in cluster.partitions_for_node(7)] == [("a", 0), ("b", 1)]
    assert (cluster.leader_for("b", 1), cluster.leader_epoch_for("b", 1)) == (7, 3)
    assert (cluster.leader_for("b", 0), cluster.leader_epoch_for("b", 0)) == (NO_LEADER, NO_EPOCH)


def test_what_it_does_not_know() -> None:
    cluster = Cluster(INFOS)
    assert cluster.partitions_for_topic("c") == cluster.available_partitions_for_topic("c") == ()
    assert cluster.partitions_for_node(9) == cluster.partitions_for_node(NO_LEADER) == ()
    assert (cluster.leader_for("b", 9), cluster.leader_epoch_for("b", 9)) == (NO_LEADER, NO_EPOCH)
