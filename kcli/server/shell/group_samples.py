"""Samples of a group coordinator: its counters, and its groups by protocol and state (Kafka: GroupCoordinatorMetrics)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from kcli.server.coordinator.group.group_coordinator import GroupCoordinator

_COUNTERS = {
    "offset_commit": "offset_commits",
    "offset_expiration": "offset_expirations",
    "offset_deletion": "offset_deletions",
    "group_completed_rebalance": "completed_rebalances",
    "consumer_group_rebalance": "consumer_rebalances",
    "share_group_rebalance": "share_rebalances",
    "streams_group_rebalance": "streams_rebalances",
}
_PREFIX = "kafka_server_group_coordinator_metrics_"
_GAUGES = "kafka_coordinator_group_groupmetadatamanager_num"
CLASSIC_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
# The states of the kinds of groups that Kafka counts by state, under PROTOCOL_group_count.
STATES = {
    "consumer": ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    "share": ("Empty", "Stable", "Dead"),
    "streams": ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead"),
}
# The rate of each of these values.
GROUP_RATES = {f"{_PREFIX}{name}_count": f"{_PREFIX}{name}_rate" for name in _COUNTERS}
_GROUPS_PER_STEP = 500

Add = Callable[..., None]  # of RawSamples


def sample_groups(coordinator: GroupCoordinator, add: Add) -> Iterator[None]:
    """Sample the coordinator, one slice of work at a step."""
    for name, attribute in _COUNTERS.items():
        add(f"{_PREFIX}{name}_count", getattr(coordinator.metrics, attribute))
    add(f"{_PREFIX}event_queue_size", 0)
    for state, count in (("loading", coordinator.runtime.loading_count()), ("active", len(coordinator.runtime.shards()))):
        add(f"{_PREFIX}num_partitions", count, state)
    states: dict[str, Counter[str]] = {protocol: Counter() for protocol in ("classic", *STATES)}
    offsets = number = 0
    for shard in coordinator.runtime.shards():
        for group in list(shard.list_groups()):
            states[group.group_type][group.state] += 1
            number += 1
            if number % _GROUPS_PER_STEP == 0:
                yield
        offsets += sum(map(len, shard.state.offsets_by_group.values()))
        yield
    for protocol, found in states.items():
        add(f"{_PREFIX}group_count", found.total(), protocol)
    for protocol, known in STATES.items():
        for state in known:
            add(f"{_PREFIX}{protocol}_group_count", states[protocol][state], state)
    add(f"{_GAUGES}offsets", offsets)
    add(f"{_GAUGES}groups", states["classic"].total())
    for state in CLASSIC_STATES:
        add(f"{_GAUGES}groups{state.lower()}", states["classic"][state])
