"""Reads what a node counts and is, and gives it Kafka's names: raw values first, text of the Prometheus exposition then.

step      runs                    cost
--------  ----------------------  -------------------------------------------------------------------------------------
sample    in the node's loop, in  some microseconds a partition; nothing is formatted, nothing imported. The controller's
          slices                  topics are one slice, however many there are
expose    in a thread of its own  prometheus-client makes the text; it is imported when it is first asked for (59 ms)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS
from kcli.server.broker.broker import Broker
from kcli.server.controller.controller_core import ControllerCore
from kcli.server.metrics.answer_errors import AnswerErrors
from kcli.server.metrics.broker_metrics import TOPIC_COUNTS, BrokerMetrics, ListenerMetrics
from kcli.server.metrics.catalog import METRICS, QUANTILES, Metric
from kcli.server.metrics.cleaner_samples import sample_cleaner
from kcli.server.metrics.controller_samples import sample_controller, tell_delivered

# The processor of a listener's connections: there is one loop.
ONLY_PROCESSOR = "0"


class Summary(NamedTuple):
    """How long something took, or how large it was: quantiles by QUANTILES, and how many there were since the start."""

    quantiles: tuple[float, ...]
    total: int


class PartitionSample(NamedTuple):
    """A partition that this broker leads; `last_stable_lag` is None where its log is offline."""

    topic: str
    partition: int
    replicas: int
    in_sync: int
    min_isr: int
    last_stable_lag: int | None


class LogSample(NamedTuple):
    """A log."""

    topic: str
    partition: int
    size: int
    logstartoffset: int
    logendoffset: int
    numlogsegments: int


class RawSamples:
    """What was read of a node; `values` are the metrics with one value, or few."""

    def __init__(self) -> None:
        self.values: list[tuple[str, tuple[str, ...], float]] = []
        self.topics: list[tuple[str | None, tuple[int, ...]]] = []
        self.partitions: list[PartitionSample] = []
        self.logs: list[LogSample] = []

    def tell(self, name: str, value: float, *labels: str) -> None:
        """Note a value of a metric."""
        self.values.append((name, labels, value))


Sample = tuple[tuple[str, ...], float]
Samples = dict[str, list[Sample]]
Summaries = Mapping[str, Mapping[tuple[str, ...], Summary]]  # by metric and the values of its labels
Tell = Callable[..., None]

# So many partitions or topics are read before others have their turn.
READ_PER_STEP = 500
# What never is: no request and no answer waits for a thread, and no leader here asks for another ISR, since it is alone in it.
NEVER_HERE = (
    "kafka_network_requestchannel_requestqueuesize",
    "kafka_network_requestchannel_responsequeuesize",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_server_replicamanager_failedisrupdates_total",
)
# Of TOPIC_COUNTS, those that Kafka has of all topics only.
_OF_ALL_TOPICS_ONLY = frozenset(("invalid_message_crc_records",))


def sample(raw: RawSamples, broker: Broker | None, controller: ControllerCore | None, now_ms: int) -> Iterator[None]:
    """Read a node, a slice of work a step."""
    cores = [core for core in (broker and broker.metrics.errors, controller and controller.errors) if core]
    _tell_errors(cores, raw.tell)
    if broker is not None:
        _sample_broker(broker, raw.tell)
        yield from _sample_topics(broker.metrics, raw)
        yield from _sample_partitions(broker, raw)
        yield from _sample_logs(broker.log_manager, raw)
        yield
        sample_cleaner(broker.log_manager, raw.tell, now_ms)
    if controller is not None:
        yield
        raw.logs.append(_log_sample(controller.raft.log.log))
        sample_controller(controller, raw.tell, now_ms)
        if broker is not None:
            # Both read the metadata log through the raft client of the process.
            tell_delivered(controller.raft, raw.tell, now_ms, "kafka_server_broker_metadata_metrics_last_applied_record_{}")


def sample_listeners(raw: RawSamples, listeners: Mapping[str, ListenerMetrics]) -> None:
    """Read the listeners' counters, by their names."""
    expired = 0
    for name, of in listeners.items():
        counts = {"connection_count": of.created - of.closed, "connection_creation": of.created, "connection_close": of.closed}
        counts |= {"incoming_byte": of.incoming_bytes, "outgoing_byte": of.outgoing_bytes}
        counts["expired_connections_killed_count"] = of.expired
        for metric, count in counts.items():
            raw.tell(f"kafka_server_socket_server_metrics_{metric}", count, name, ONLY_PROCESSOR)
        expired += of.expired
    raw.tell("kafka_network_socketserver_expiredconnectionskilledcount", expired)


def _tell_errors(cores: Iterable[AnswerErrors], tell: Tell) -> None:
    total: dict[tuple[int, int], int] = {}
    for core in cores:
        for key, count in core.counts.items():
            total[key] = total.get(key, 0) + count
    for (api_key, code), count in total.items():
        error = error_codes.NAMES.get(code, str(code))
        tell("kafka_network_requestmetrics_errors_total", count, API_KEYS[api_key].name, error)


def _sample_topics(metrics: BrokerMetrics, raw: RawSamples) -> Iterator[None]:
    for (key, version), count in metrics.requests.items():
        raw.tell("kafka_network_requestmetrics_requests_total", count, API_KEYS[key].name, str(version))
    raw.topics.append((None, metrics.gone.counts()))
    for number, (name, topic) in enumerate(list(metrics.topics.items()), 1):
        raw.topics.append((name, topic.counts()))
        if number % READ_PER_STEP == 0:
            yield


def _sample_broker(broker: Broker, tell: Tell) -> None:
    for name in NEVER_HERE:
        tell(name, 0)
    replicas, sessions = broker.replica_manager, broker.fetch.sessions
    for kind, purgatory in (("Produce", replicas.produce_purgatory), ("Fetch", replicas.fetch_purgatory)):
        tell("kafka_server_delayedoperationpurgatory_purgatorysize", purgatory.size, kind)
        tell("kafka_server_delayedoperationpurgatory_numdelayedoperations", purgatory.size, kind)
    tell("kafka_server_delayedproducemetrics_expires_total", replicas.produce_purgatory.expired_count)
    tell("kafka_server_fetchsessioncache_numincrementalfetchsessions", len(sessions))
    tell("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", sessions.partition_count)
    tell("kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", sessions.evicted_count)
    clients = broker.client_metrics
    tell("kafka_server_client_metrics_instance_count", len(clients))
    tell("kafka_server_client_metrics_unknown_subscription_request_count", clients.unknown_subscription_count)
    for feature, level in broker.image.features.items():
        tell("kafka_server_metadataloader_finalizedlevel", level, feature)
    tell("kafka_server_kafkaserver_brokerstate", int(broker.lifecycle.state))
    tell("kafka_server_broker_metadata_metrics_last_applied_record_offset", broker.metadata_offset)
    tell("kafka_server_metadataloader_currentmetadataversion", broker.image.features.get("metadata.version", 0))
    leader_id = broker.image.leader_id
    tell("kafka_server_metadataloader_currentcontrollerid", -1 if leader_id is None else leader_id)
    tell("kafka_server_replicamanager_partitioncount", len(replicas.partitions))


def _sample_partitions(broker: Broker, raw: RawSamples) -> Iterator[None]:
    offline = reassigning = 0
    for number, ((topic, index), partition) in enumerate(list(broker.replica_manager.partitions.items()), 1):
        log = partition.log
        offline += log is None
        if partition.is_leader:
            reassigning += _is_reassigning(broker, partition.topic_id, index)
            in_sync, replicas = len(partition.isr), len(partition.replicas)
            if log is None:
                found = PartitionSample(topic, index, replicas, in_sync, 1, None)
            else:
                lag = log.high_watermark - log.last_stable_offset
                found = PartitionSample(topic, index, replicas, in_sync, partition.min_isr(log), lag)
            raw.partitions.append(found)
        if number % READ_PER_STEP == 0:
            yield
    raw.tell("kafka_server_replicamanager_offlinereplicacount", offline)
    raw.tell("kafka_server_replicamanager_reassigningpartitions", reassigning)


def _is_reassigning(broker: Broker, topic_id: Uuid, index: int) -> bool:
    registration = broker.metadata.partition(topic_id, index)
    return registration is not None and bool(registration.adding_replicas or registration.removing_replicas)


def _sample_logs(log_manager: LogManager, raw: RawSamples) -> Iterator[None]:
    producers = 0
    for number, log in enumerate(list(log_manager.logs.values()), 1):
        raw.logs.append(_log_sample(log))
        producers += len(log.producers.producers)
        if number % READ_PER_STEP == 0:
            yield
    raw.tell("kafka_server_replicamanager_produceridcount", producers)
    offline = {path: log_dir.offline_reason is not None for path, log_dir in log_manager.dirs.items()}
    raw.tell("kafka_log_logmanager_offlinelogdirectorycount", sum(offline.values()))
    for path, is_offline in offline.items():
        raw.tell("kafka_log_logmanager_logdirectoryoffline", is_offline, path)


def _log_sample(log: UnifiedLog) -> LogSample:
    return LogSample(log.topic, log.partition, log.size_bytes, log.log_start_offset, log.log_end_offset, log.segment_count)


# ------------------------------------------------------------------------------------------------------ raw values, named


def named(raw: RawSamples) -> Samples:
    """The samples by metric."""
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
    def tell(name: str, value: float, *labels: str) -> None:
        samples.setdefault(name, []).append((labels, value))

    for one in raw.partitions:
        labels = (one.topic, str(one.partition))
        tell("kafka_cluster_partition_replicascount", one.replicas, *labels)
        tell("kafka_cluster_partition_insyncreplicascount", one.in_sync, *labels)
        tell("kafka_cluster_partition_underreplicated", one.in_sync < one.replicas, *labels)
        tell("kafka_cluster_partition_underminisr", one.in_sync < one.min_isr, *labels)
        tell("kafka_cluster_partition_atminisr", one.in_sync == one.min_isr, *labels)
        if one.last_stable_lag is not None:
            tell("kafka_cluster_partition_laststableoffsetlag", one.last_stable_lag, *labels)
    manager = "kafka_server_replicamanager_"
    tell(f"{manager}leadercount", len(raw.partitions))
    tell(f"{manager}underreplicatedpartitions", sum(one.in_sync < one.replicas for one in raw.partitions))
    tell(f"{manager}underminisrpartitioncount", sum(one.in_sync < one.min_isr for one in raw.partitions))
    tell(f"{manager}atminisrpartitioncount", sum(one.in_sync == one.min_isr for one in raw.partitions))


# -------------------------------------------------------------------------------------------------------------------- text


class _Collected:
    """What prometheus-client calls a collector."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        """The families of samples."""
        yield from self._families


def expose(raw: RawSamples, summaries: Summaries) -> bytes:
    """The text of the exposition; prometheus-client adds the process itself: memory, time of the CPU, open files."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import Metric as Family

    samples = named(raw)

    def families() -> Iterator[Family]:
        for metric in METRICS:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in samples.get(metric.name, ()):
                # A sample with fewer labels than its metric is the sum over them.
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
