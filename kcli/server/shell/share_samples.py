"""Samples of share groups on a broker: sessions, share partitions, acknowledgements and written states.

Kafka: ShareSessionCache, ShareGroupMetrics, SharePartitionMetrics, DelayedShareFetchMetrics and ShareCoordinatorMetrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.server.broker.broker import Broker
from kcli.server.replication.share.acknowledgement import ACCEPT, REJECT, RELEASE, RENEW

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
