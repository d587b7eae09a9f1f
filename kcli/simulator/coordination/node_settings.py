"""The settings of the nodes of a coordination workload: short timeouts, and few and small partitions of internal topics."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.simulator.node_maker import NodeMaker

DAY_MS = 86_400_000
POWER_LOSS_SHARE = 0.3  # of all seeds
SESSIONS_MS = (1500, 3000)


def loses_power(seed: int) -> bool:
    """Return True if power may be lost in the seed."""
    return Random(f"{seed} power").random() < POWER_LOSS_SHARE


def make_coordination_node(seed: int) -> NodeMaker:
    """Return the nodes of a seed."""
    settings: dict[str, object] = {
        **group_settings(Random(f"{seed} coordination")),
        **share_settings(_share_rng(seed)),
        **_streams_settings(Random(f"{seed} streams groups")),
    }
    if loses_power(seed):
        settings["log.flush.interval.messages"] = 1
    return NodeMaker(seed, extra_settings=settings)


def group_settings(rng: Random) -> dict[str, object]:
    """Return the settings of groups of consumers and of transactions."""
    return {
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": rng.choice((1, 2, 3)),
        "offsets.topic.segment.bytes": 1 << 20,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": rng.choice((1, 2)),
        "transaction.state.log.segment.bytes": 1 << 20,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": rng.choice((200, 1000, 3000)),
        "group.initial.rebalance.delay.ms": rng.choice((0, 0, 300)),
        "group.min.session.timeout.ms": 100,
        "group.consumer.min.session.timeout.ms": 100,
        "group.consumer.session.timeout.ms": rng.choice(SESSIONS_MS),
        "group.consumer.min.heartbeat.interval.ms": 50,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.assignment.interval.ms": rng.choice((0, 300)),
        "group.coordinator.append.linger.ms": rng.choice((-1, -1, 0, 5)),
        "log.index.size.max.bytes": 4096,  # each start preallocates the indexes
        "log.message.timestamp.after.max.ms": DAY_MS,
        "log.retention.check.interval.ms": 300_000,
    }


def share_settings(rng: Random) -> dict[str, object]:
    """Return the settings of share groups and of the share coordinator; the locks are as short as Kafka allows."""
    return {
        "group.share.min.session.timeout.ms": 100,
        "group.share.session.timeout.ms": rng.choice(SESSIONS_MS),
        "group.share.min.heartbeat.interval.ms": 50,
        "group.share.heartbeat.interval.ms": 300,
        "group.share.assignment.interval.ms": rng.choice((0, 300)),
        "group.share.min.record.lock.duration.ms": 1000,
        "group.share.record.lock.duration.ms": rng.choice((1000, 2000)),
        "group.share.delivery.count.limit": rng.choice((2, 4, 5)),
        "group.share.partition.max.record.locks": rng.choice((100, 2000)),
        "group.share.initialize.retry.interval.ms": 1000,
        "share.coordinator.state.topic.num.partitions": rng.choice((1, 2)),
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.segment.bytes": 1 << 20,
        "share.coordinator.snapshot.update.records.per.snapshot": rng.choice((0, 3, 20, 500)),
        "share.coordinator.state.topic.prune.interval.ms": rng.choice((700, 300_000)),
        "share.coordinator.cold.partition.snapshot.interval.ms": rng.choice((1000, 300_000)),
        "share.coordinator.append.linger.ms": rng.choice((-1, -1, 0, 5)),
    }


def _streams_settings(rng: Random) -> dict[str, object]:
    return {
        "group.streams.min.session.timeout.ms": 100,
        "group.streams.session.timeout.ms": rng.choice(SESSIONS_MS),
        "group.streams.min.heartbeat.interval.ms": 50,
        "group.streams.heartbeat.interval.ms": 300,
        "group.streams.assignment.interval.ms": rng.choice((0, 300)),
        "group.streams.initial.rebalance.delay.ms": rng.choice((0, 300)),
        "group.streams.num.standby.replicas": rng.choice((0, 1)),
    }


def _share_rng(seed: int) -> Random:
    return Random(f"{seed} share groups")


def share_terms(seed: int) -> tuple[int, int]:
    """Return the delivery count limit and the lock duration in ms of the share groups of a seed."""
    return share_terms_of(share_settings(_share_rng(seed)))


def share_terms_of(settings: Mapping[str, object]) -> tuple[int, int]:
    """Return the delivery count limit and the lock duration in ms that settings have."""
    limit, lock_ms = settings["group.share.delivery.count.limit"], settings["group.share.record.lock.duration.ms"]
    assert isinstance(limit, int) and isinstance(lock_ms, int)
    return limit, lock_ms
