"""Samples of groups: of a group coordinator, and of the share partitions of a broker.

Kafka: GroupCoordinatorMetrics; ShareSessionCache, ShareGroupMetrics, SharePartitionMetrics, DelayedShareFetchMetrics and
ShareCoordinatorMetrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from kcli.server.broker.broker import Broker
from kcli.server.coordinator.group.group_coordinator import GroupCoordinator
from kcli.server.replication.share.acknowledgement import ACCEPT, REJECT, RELEASE, RENEW

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


def sample_loads(broker: Broker, add: Add) -> None:
    """Sample the times in which partitions of the internal topics were loaded."""
    groups, transactions, shares = broker.groups.runtime, broker.transactions.runtime, broker.share_coordinator.runtime
    for kind, times in (
        ("group", groups.load_times),
        ("transaction", transactions.load_times),
        ("share", shares.load_times),
    ):
        average_ms, most_ms = times.take()
        add(f"kafka_server_{kind}_coordinator_metrics_partition_load_time_avg", average_ms)
        add(f"kafka_server_{kind}_coordinator_metrics_partition_load_time_max", most_ms)


_SESSIONS = "kafka_server_sharesessioncache_sharesession"
_COORDINATOR = "kafka_server_share_coordinator_metrics_"
_GROUPS = "kafka_server_sharegroupmetrics_"
_PARTITIONS = "kafka_server_sharepartitionmetrics_"
_TYPES = {"Accept": ACCEPT, "Release": RELEASE, "Reject": REJECT, "Renew": RENEW}
# The rate of each of these values.
SHARE_RATES = {f"{_COORDINATOR}write": f"{_COORDINATOR}write_rate"}
_PARTITIONS_PER_STEP = 500

Add = Callable[..., None]  # of RawSamples


def sample_shares(broker: Broker, add: Add) -> Iterator[None]:
    """Sample a broker, one slice of work at a step."""
    sessions = broker.share_partitions.sessions
    add(f"{_SESSIONS}scount", len(sessions))
    add("kafka_server_sharesessioncache_sharepartitionscount", sessions.partition_count)
    add(f"{_SESSIONS}evictions_total", 0)
    for name, kind in _TYPES.items():
        add(f"{_GROUPS}recordacknowledgements_total", broker.metrics.share_acknowledgements[kind], name)
    for group_id, counts in list(broker.dead_letters.counts.items()):
        add(f"{_GROUPS}deadletterqueuerecordcount_count", counts.records, group_id)
        add(f"{_GROUPS}deadletterqueuetotalproducerequests_total", counts.requests, group_id)
        add(f"{_GROUPS}deadletterqueuefailedproducerequests_total", counts.failed_requests, group_id)
    add(f"{_COORDINATOR}write", broker.share_coordinator.written_count)
    add(f"{_COORDINATOR}event_queue_size", 0)
    add("kafka_server_delayedsharefetchmetrics_expires_total", broker.replica_manager.share_fetch_purgatory.expired_count)
    for number, (key, partition) in enumerate(list(broker.share_partitions.partitions.items()), 1):
        labels = key.group_id, partition.topic, str(key.partition)
        add(f"{_PARTITIONS}inflightbatchcount", len(partition.records), *labels)
        add(f"{_PARTITIONS}inflightmessagecount", partition.records.record_count, *labels)
        add(f"{_PARTITIONS}acquisitionlocktimeout_total", partition.lock_timeout_count, *labels)
        if number % _PARTITIONS_PER_STEP == 0:
            yield
