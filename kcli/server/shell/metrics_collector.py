"""Samples the counters and state of a node, and formats them by Kafka's names as a Prometheus exposition.

step      runs                    cost
--------  ----------------------  -------------------------------------------------------------------------------------
sample    in the node's loop, in  some microseconds for a partition; nothing is formatted or imported. All topics of a
          slices                  controller are one slice
expose    in a thread             prometheus-client makes the text; it is imported at the first scrape (59 ms)

The cleaner's metrics are those of Kafka's LogCleaner and LogCleanerManager: of the last round of each thread (the largest
value, and for recopied bytes the sum), and of the last scan for dirty logs. Percentages and seconds are integers, as in Kafka.
Kafka counts threads that died of an error and clean no more; here an error only makes its log uncleanable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS
from kcli.server.broker.broker import Broker
from kcli.server.controller.controller_server import ControllerServer
from kcli.server.metrics.broker_metrics import TOPIC_COUNTS, BrokerMetrics, ErrorCounts, ListenerMetrics
from kcli.server.metrics.catalog import METRICS, QUANTILES, Metric
from kcli.server.metrics.sampled import Sampled, Summary
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.shell.controller_samples import sample_controller, sample_features, sample_loaded_metadata, sample_quorum
from kcli.server.shell.group_samples import GROUP_RATES, SHARE_RATES, sample_groups, sample_loads, sample_shares

# The network processor of all connections: there is one event loop.
ONLY_PROCESSOR = "0"


class PartitionSample(NamedTuple):
    """A partition that this broker leads; `last_stable_lag` is None if its log is offline."""

    topic: str
    partition: int
    replicas: int
    in_sync: int
    min_isr: int
    last_stable_lag: int | None


class LogSample(NamedTuple):
    """The size and offsets of a log."""

    topic: str
    partition: int
    size: int
    logstartoffset: int
    logendoffset: int
    numlogsegments: int


class RawSamples:
    """The sample of a node; `values` are the metrics with one or few values."""

    def __init__(self) -> None:
        self.values: list[tuple[str, tuple[str, ...], float]] = []
        self.summaries: dict[str, dict[tuple[str, ...], Summary]] = {}
        self.topics: list[tuple[str | None, tuple[int, ...]]] = []
        self.partitions: list[PartitionSample] = []
        self.logs: list[LogSample] = []

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a value of a metric."""
        self.values.append((name, labels, value))

    def add_times(self, name: str, sampled: Sampled) -> None:
        """Add the summary of what was sampled since the last time."""
        self.summaries[name] = {(): sampled.take(0, 1)}
        sampled.clear()


Sample = tuple[tuple[str, ...], float]
Samples = dict[str, list[Sample]]
Summaries = Mapping[str, Mapping[tuple[str, ...], Summary]]  # by metric and the values of its labels

# The number of partitions or topics in a slice.
READ_PER_STEP = 500
# Always 0: no request or response waits for a thread, and leaders here, alone in their ISRs, never change them.
ALWAYS_ZERO = (
    "kafka_network_requestchannel_requestqueuesize",
    "kafka_network_requestchannel_responsequeuesize",
)
_REPLICA = "Replica"  # the clientId of what all fetchers have together
# The TOPIC_COUNTS that Kafka has for all topics together only.
_OF_ALL_TOPICS_ONLY = frozenset(("invalid_message_crc_records",))


def sample(
    raw: RawSamples, broker: Broker | None, controller: ControllerServer | None, raft: KafkaRaftClient, now_ms: int
) -> Iterator[None]:
    """Sample a node, one slice of work at a step."""
    cores = [core for core in (broker and broker.metrics.errors, controller and controller.errors) if core]
    _add_errors(cores, raw)
    if broker is not None:
        _sample_broker(broker, raw)
        yield from sample_shares(broker, raw.add)
        yield from sample_groups(broker.groups, raw.add)
        sample_loads(broker, raw.add)
        yield from _sample_topics(broker.metrics, raw)
        yield from _sample_partitions(broker, raw)
        yield from _sample_fetchers(broker, raw)
        yield from _sample_logs(broker.log_manager, raw)
        yield
        sample_cleaner(broker.log_manager, raw, now_ms)
    yield
    raw.logs.append(_log_sample(raft.log.log))
    if controller is not None:
        sample_controller(controller, raw, now_ms)
    sample_quorum(raft, raw, now_ms)
    if broker is not None:
        # Broker and controller read the metadata log through the same raft client.
        sample_loaded_metadata(raft, raw, now_ms)
        sample_features(raw, broker.image.features)
    elif controller is not None:
        sample_features(raw, controller.state.image.features)


def sample_listeners(raw: RawSamples, listeners: Mapping[str, ListenerMetrics]) -> None:
    """Sample the counters of listeners, by name."""
    expired = 0
    for name, of in listeners.items():
        counts = {"connection_count": of.created - of.closed, "connection_creation": of.created, "connection_close": of.closed}
        counts |= {"incoming_byte": of.incoming_bytes, "outgoing_byte": of.outgoing_bytes}
        counts["expired_connections_killed_count"] = of.expired
        for metric, count in counts.items():
            raw.add(f"kafka_server_socket_server_metrics_{metric}", count, name, ONLY_PROCESSOR)
        expired += of.expired
    raw.add("kafka_network_socketserver_expiredconnectionskilledcount", expired)


def _add_errors(cores: Iterable[ErrorCounts], raw: RawSamples) -> None:
    total: dict[tuple[int, int], int] = {}
    for core in cores:
        for key, count in core.counts.items():
            total[key] = total.get(key, 0) + count
    for (api_key, code), count in total.items():
        error = error_codes.NAMES.get(code, str(code))
        raw.add("kafka_network_requestmetrics_errors_total", count, API_KEYS[api_key].name, error)


def _sample_topics(metrics: BrokerMetrics, raw: RawSamples) -> Iterator[None]:
    for (key, version), count in metrics.requests.items():
        raw.add("kafka_network_requestmetrics_requests_total", count, API_KEYS[key].name, str(version))
    raw.topics.append((None, metrics.deleted.counts()))
    for number, (name, topic) in enumerate(list(metrics.topics.items()), 1):
        raw.topics.append((name, topic.counts()))
        if number % READ_PER_STEP == 0:
            yield


def _sample_broker(broker: Broker, raw: RawSamples) -> None:
    for name in ALWAYS_ZERO:
        raw.add(name, 0)
    replicas, sessions = broker.replica_manager, broker.fetch.sessions
    fetches = {"consumer": replicas.fetch_purgatory, "follower": replicas.follower_fetch_purgatory}
    for kind, size in (
        ("Produce", replicas.produce_purgatory.size),
        ("Fetch", sum(purgatory.size for purgatory in fetches.values())),
        ("ShareFetch", replicas.share_fetch_purgatory.size),
        ("DeleteRecords", replicas.delete_purgatory.size),
    ):
        raw.add("kafka_server_delayedoperationpurgatory_purgatorysize", size, kind)
        raw.add("kafka_server_delayedoperationpurgatory_numdelayedoperations", size, kind)
    raw.add("kafka_server_delayedproducemetrics_expires_total", replicas.produce_purgatory.expired_count)
    for fetcher, purgatory in fetches.items():
        raw.add("kafka_server_delayedfetchmetrics_expires_total", purgatory.expired_count, fetcher)
    raw.add("kafka_server_replicamanager_isrshrinks_total", replicas.isr_shrinks)
    raw.add("kafka_server_replicamanager_isrexpands_total", replicas.isr_expands)
    raw.add("kafka_server_replicamanager_failedisrupdates_total", replicas.failed_isr_updates)
    raw.add("kafka_server_fetchsessioncache_numincrementalfetchsessions", len(sessions))
    raw.add("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", sessions.partition_count)
    raw.add("kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", sessions.evicted_count)
    clients = broker.client_metrics
    raw.add("kafka_server_client_metrics_instance_count", len(clients))
    raw.add("kafka_server_client_metrics_unknown_subscription_request_count", clients.unknown_subscription_count)
    raw.add("kafka_server_kafkaserver_brokerstate", int(broker.lifecycle.state))
    raw.add("kafka_server_broker_metadata_metrics_last_applied_record_offset", broker.metadata_offset)
    raw.add("kafka_server_replicamanager_partitioncount", len(replicas.partitions))


def _sample_partitions(broker: Broker, raw: RawSamples) -> Iterator[None]:
    offline = reassigning = 0
    for number, ((topic, index), partition) in enumerate(list(broker.replica_manager.partitions.items()), 1):
        log = partition.log
        offline += log is None
        if partition.is_leader:
            registration = broker.metadata.partition(partition.topic_id, index)
            adding = [] if registration is None else registration.adding_replicas
            reassigning += registration is not None and bool(adding or registration.removing_replicas)
            # Those being added do not count, so that a reassignment does not look like a failure.
            in_sync, replicas = len(partition.isr), len(partition.replicas) - len(adding)
            if log is None:
                found = PartitionSample(topic, index, replicas, in_sync, 1, None)
            else:
                lag = log.high_watermark - log.last_stable_offset
                found = PartitionSample(topic, index, replicas, in_sync, partition.min_isr(log), lag)
            raw.partitions.append(found)
        if number % READ_PER_STEP == 0:
            yield
    raw.add("kafka_server_replicamanager_offlinereplicacount", offline)
    raw.add("kafka_server_replicamanager_reassigningpartitions", reassigning)


def _sample_fetchers(broker: Broker, raw: RawSamples) -> Iterator[None]:
    raw.add("kafka_server_brokertopicmetrics_replicationbytesin_total", broker.metrics.replication_bytes_in)
    raw.add("kafka_server_brokertopicmetrics_replicationbytesout_total", broker.metrics.replication_bytes_out)
    manager, brokers, largest = broker.fetchers, broker.image.brokers, 0
    for fetcher in list(manager.fetchers.values()):
        registration = brokers.get(fetcher.leader_id)
        endpoint = None if registration is None else registration.endpoints.get(manager.listener)
        if endpoint is not None:
            labels = fetcher.client_id, endpoint.host, str(endpoint.port)
            raw.add("kafka_server_fetcherstats_requests_total", fetcher.requests, *labels)
            raw.add("kafka_server_fetcherstats_bytes_total", fetcher.bytes_read, *labels)
        for number, ((topic, index), follower) in enumerate(list(fetcher.followers.items()), 1):
            lag = follower.lag or 0
            largest = max(largest, lag)
            raw.add("kafka_server_fetcherlagmetrics_consumerlag", lag, fetcher.client_id, topic, str(index))
            if number % READ_PER_STEP == 0:
                yield
    raw.add("kafka_server_replicafetchermanager_maxlag", largest, _REPLICA)
    raw.add("kafka_server_replicafetchermanager_failedpartitionscount", len(manager.failed), _REPLICA)
    raw.add("kafka_server_replicafetchermanager_deadthreadcount", 0, _REPLICA)


def _sample_logs(log_manager: LogManager, raw: RawSamples) -> Iterator[None]:
    producers = 0
    for number, log in enumerate(list(log_manager.logs.values()), 1):
        raw.logs.append(_log_sample(log))
        producers += len(log.producers.producers)
        if number % READ_PER_STEP == 0:
            yield
    raw.add("kafka_server_replicamanager_produceridcount", producers)
    offline = {path: log_dir.offline_reason is not None for path, log_dir in log_manager.dirs.items()}
    raw.add("kafka_log_logmanager_offlinelogdirectorycount", sum(offline.values()))
    for path, is_offline in offline.items():
        raw.add("kafka_log_logmanager_logdirectoryoffline", is_offline, path)
    cordoned = log_manager.cordoned_dirs()
    raw.add("kafka_log_logmanager_cordonedlogdirectorycount", len(cordoned))
    for path in log_manager.dirs:
        raw.add("kafka_log_logmanager_logdirectorycordoned", path in cordoned, path)


def _log_sample(log: UnifiedLog) -> LogSample:
    return LogSample(log.topic, log.partition, log.size_bytes, log.log_start_offset, log.log_end_offset, log.segment_count)


MS_PER_SECOND = 1000


def sample_cleaner(log_manager: LogManager, raw: RawSamples, now_ms: int) -> None:
    """Sample the cleaner; nothing if log.cleaner.enable=false."""
    if not log_manager.settings.cleaner_enable:
        return
    cleaner = log_manager.cleaner
    threads, look = cleaner.thread_stats(), cleaner.manager.last_run
    rounds = [thread.last_round for thread in threads]
    copied = sum(last.bytes_kept for last in rounds) / max(sum(last.bytes_read for last in rounds), 1)
    raw.add("kafka_log_logcleaner_cleaner_recopy_percent", int(100 * copied))
    raw.add("kafka_log_logcleaner_max_clean_time_secs", max((last.took_ms for last in rounds), default=0) // MS_PER_SECOND)
    raw.add(
        "kafka_log_logcleaner_max_buffer_utilization_percent", int(100 * max((last.map_used for last in rounds), default=0.0))
    )
    raw.add(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        max((thread.delay_ms for thread in threads), default=0) // MS_PER_SECOND,
    )
    raw.add("kafka_log_logcleaner_deadthreadcount", 0)
    dirtiest_ratio, scanned_ms = (0.0, log_manager.tasks_began_ms) if look is None else (look.dirtiest_ratio, look.at_ms)
    raw.add("kafka_log_logcleanermanager_max_dirty_percent", int(100 * dirtiest_ratio))
    raw.add("kafka_log_logcleanermanager_time_since_last_run_ms", max(0, now_ms - scanned_ms))
    uncleanable = cleaner.manager.uncleanable_by_directory(now_ms)
    for path in log_manager.dirs:
        found = uncleanable.get(path)
        raw.add("kafka_log_logcleanermanager_uncleanable_partitions_count", 0 if found is None else found.logs, path)
        raw.add("kafka_log_logcleanermanager_uncleanable_bytes", 0 if found is None else found.size_bytes, path)


_SOCKETS = "kafka_server_socket_server_metrics_"
# The rate of each of these values.
RATES = {
    f"{_SOCKETS}connection_creation": f"{_SOCKETS}connection_creation_rate",
    f"{_SOCKETS}connection_close": f"{_SOCKETS}connection_close_rate",
    f"{_SOCKETS}incoming_byte": f"{_SOCKETS}incoming_byte_rate",
    f"{_SOCKETS}outgoing_byte": f"{_SOCKETS}outgoing_byte_rate",
    "kafka_server_raft_metrics_append_records": "kafka_server_raft_metrics_append_records_rate",
    "kafka_server_raft_metrics_fetch_records": "kafka_server_raft_metrics_fetch_records_rate",
    **GROUP_RATES,
    **SHARE_RATES,
}


class Rates:
    """Rates per second since the last scrape, the first ones since the start; `now_s` is monotonic."""

    def __init__(self, now_s: float) -> None:
        self._then_s = now_s
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, raw: RawSamples, now_s: float) -> None:
        """Add the rates of the values in a sample."""
        elapsed_s = max(now_s - self._then_s, 1e-3)
        for name, labels, value in list(raw.values):
            rate = RATES.get(name)
            if rate is not None:
                before = self._values.get((name, labels), 0)
                raw.add(rate, (value - before) / elapsed_s, *labels)
                self._values[name, labels] = value
        self._then_s = now_s


# ------------------------------------------------------------------------------------------------------ raw values, named


def named(raw: RawSamples) -> Samples:
    """Return the samples by metric."""
    samples: Samples = {}
    for name, labels, value in raw.values:
        samples.setdefault(name, []).append((labels, value))
    _name_topics(raw, samples)
    _name_partitions(raw, samples)
    for log in raw.logs:
        labels = (log.topic, str(log.partition))
        for field in LogSample._fields[2:]:
            samples.setdefault(f"kafka_log_log_{field}", []).append((labels, getattr(log, field)))
    return samples


def _name_topics(raw: RawSamples, samples: Samples) -> None:
    if not raw.topics:
        return
    for index, count_name in enumerate(TOPIC_COUNTS):
        name = f"kafka_server_brokertopicmetrics_{count_name.replace('_', '')}_total"
        found: list[Sample] = [((), sum(counts[index] for _, counts in raw.topics))]
        if count_name not in _OF_ALL_TOPICS_ONLY:
            found += [((topic,), counts[index]) for topic, counts in raw.topics if topic is not None]
        samples[name] = found


def _name_partitions(raw: RawSamples, samples: Samples) -> None:
    def add(name: str, value: float, *labels: str) -> None:
        samples.setdefault(name, []).append((labels, value))

    for one in raw.partitions:
        labels = (one.topic, str(one.partition))
        add("kafka_cluster_partition_replicascount", one.replicas, *labels)
        add("kafka_cluster_partition_insyncreplicascount", one.in_sync, *labels)
        add("kafka_cluster_partition_underreplicated", one.in_sync < one.replicas, *labels)
        add("kafka_cluster_partition_underminisr", one.in_sync < one.min_isr, *labels)
        add("kafka_cluster_partition_atminisr", one.in_sync == one.min_isr, *labels)
        if one.last_stable_lag is not None:
            add("kafka_cluster_partition_laststableoffsetlag", one.last_stable_lag, *labels)
    manager = "kafka_server_replicamanager_"
    add(f"{manager}leadercount", len(raw.partitions))
    add(f"{manager}underreplicatedpartitions", sum(one.in_sync < one.replicas for one in raw.partitions))
    add(f"{manager}underminisrpartitioncount", sum(one.in_sync < one.min_isr for one in raw.partitions))
    add(f"{manager}atminisrpartitioncount", sum(one.in_sync == one.min_isr for one in raw.partitions))


# -------------------------------------------------------------------------------------------------------------------- text


class _Collected:
    """A collector of prometheus-client."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        """Yield the families of samples."""
        yield from self._families


def expose(raw: RawSamples, summaries: Summaries) -> bytes:
    """Return the text of the exposition; prometheus-client adds memory, CPU time and open files of the process."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import Metric as Family

    samples = named(raw)

    def families() -> Iterator[Family]:
        for metric in METRICS:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in samples.get(metric.name, ()):
                # A sample with fewer labels than its metric is the sum over the others.
                family.add_sample(metric.name, dict(zip(metric.labels, labels)), value)
            for labels, summary in summaries.get(metric.name, {}).items():
                _add_summary(family, metric, labels, summary)
            if family.samples:
                yield family

    registry = CollectorRegistry()
    registry.register(_Collected(families()))
    ProcessCollector(registry=registry)
    text: bytes = generate_latest(registry)
    return text


def _add_summary(family: Any, metric: Metric, values: tuple[str, ...], summary: Summary) -> None:
    labels = dict(zip(metric.labels, values))
    for quantile, value in zip(QUANTILES, summary.quantiles):
        family.add_sample(metric.name, {**labels, "quantile": quantile}, value)
    family.add_sample(f"{metric.name}_count", labels, summary.total)
