"""Reads what a node counts and is, and gives it Kafka's names: samples first, text of the Prometheus exposition then.

step      runs                    cost
--------  ----------------------  -------------------------------------------------------------------------------------
sample    in the node's loop      some microseconds a partition; nothing is formatted, nothing imported
expose    in a thread of its own  prometheus-client makes the text; it is imported when it is first asked for (59 ms)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kcli.protocol.apis import API_KEYS
from kcli.server.broker import Broker
from kcli.server.controller.controller_core import ControllerCore
from kcli.server.metric_catalog import BY_NAME, METRICS, QUANTILES
from kcli.server.metrics import BrokerMetrics, TopicMetrics

METADATA_TOPIC = "__cluster_metadata"
# The processor of a listener's connections: there is one loop.
ONLY_PROCESSOR = "0"


class TimesOfRequests(NamedTuple):
    """How long the requests of one API took: quantiles in ms by QUANTILES, how many there were, their sum in ms."""

    quantiles: tuple[float, ...]
    requests: int
    sum_ms: float


Sample = tuple[tuple[str, ...], float]
Samples = dict[str, list[Sample]]
Summaries = Mapping[str, TimesOfRequests]

_TOPIC_COUNTERS = {
    "messagesin": "messages_in",
    "bytesin": "bytes_in",
    "bytesout": "bytes_out",
    "bytesrejected": "bytes_rejected",
    "totalproducerequests": "total_produce_requests",
    "failedproducerequests": "failed_produce_requests",
    "totalfetchrequests": "total_fetch_requests",
    "failedfetchrequests": "failed_fetch_requests",
    "invalidmessagecrcrecords": "invalid_message_crc_records",
}


def sample(broker: Broker | None, controller: ControllerCore | None, connections: Mapping[str, int]) -> Samples:
    """The samples of a node now, by metric; `connections` is by listener."""
    samples: Samples = {}

    def tell(name: str, value: float, *labels: str) -> None:
        samples.setdefault(name, []).append((labels, value))

    for listener, count in connections.items():
        tell("kafka_server_socket_server_metrics_connection_count", count, listener, ONLY_PROCESSOR)
    if broker is not None:
        tell("kafka_network_requestchannel_requestqueuesize", 0)
        _sample_counters(broker.metrics, tell)
        _sample_broker(broker, tell)
        _sample_partitions(broker, tell)
        _sample_logs(broker.log_manager, tell)
    if controller is not None:
        _sample_controller(controller, tell)
    return samples


Tell = Callable[..., None]


def _sample_counters(metrics: BrokerMetrics, tell: Tell) -> None:
    def tell_topic(topic: TopicMetrics, *labels: str) -> None:
        for name, field in _TOPIC_COUNTERS.items():
            tell(f"kafka_server_brokertopicmetrics_{name}_total", getattr(topic, field), *labels)

    tell_topic(metrics.all_topics())
    for name, topic in metrics.topics.items():
        tell_topic(topic, name)
    for (key, version), count in metrics.requests.items():
        tell("kafka_network_requestmetrics_requests_total", count, API_KEYS[key].name, str(version))


def _sample_broker(broker: Broker, tell: Tell) -> None:
    for kind, purgatory in (("Produce", broker.produce_purgatory), ("Fetch", broker.fetch_purgatory)):
        tell("kafka_server_delayedoperationpurgatory_purgatorysize", purgatory.size, kind)
        tell("kafka_server_delayedoperationpurgatory_numdelayedoperations", purgatory.size, kind)
    tell("kafka_server_delayedproducemetrics_expires_total", broker.produce_purgatory.expired_count)
    tell("kafka_server_fetchsessioncache_numincrementalfetchsessions", len(broker.fetch_sessions))
    tell("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", broker.fetch_sessions.partition_count)
    lifecycle = getattr(broker, "lifecycle", None)  # the broker has one once it starts
    tell("kafka_server_kafkaserver_brokerstate", 0 if lifecycle is None else int(lifecycle.state))
    tell("kafka_server_broker_metadata_metrics_last_applied_record_offset", broker.metadata_offset)
    tell("kafka_server_metadataloader_currentmetadataversion", broker.image.features.get("metadata.version", 0))
    leader_id = broker.image.leader_id
    tell("kafka_server_metadataloader_currentcontrollerid", -1 if leader_id is None else leader_id)


def _sample_partitions(broker: Broker, tell: Tell) -> None:
    leaders = under_replicated = under_min = at_min = offline = 0
    for (topic, index), partition in broker.partitions.items():
        log = partition.log
        offline += log is None
        if not partition.is_leader:
            continue
        leaders += 1
        in_sync, replicas = len(partition.isr), len(partition.replicas)
        min_isr = 1 if log is None else log.config.min_insync_replicas
        labels = (topic, str(index))
        tell("kafka_cluster_partition_replicascount", replicas, *labels)
        tell("kafka_cluster_partition_insyncreplicascount", in_sync, *labels)
        tell("kafka_cluster_partition_underreplicated", in_sync < replicas, *labels)
        tell("kafka_cluster_partition_underminisr", in_sync < min_isr, *labels)
        tell("kafka_cluster_partition_atminisr", in_sync == min_isr, *labels)
        if log is not None:
            tell("kafka_cluster_partition_laststableoffsetlag", log.high_watermark - log.last_stable_offset, *labels)
        under_replicated += in_sync < replicas
        under_min += in_sync < min_isr
        at_min += in_sync == min_isr
    tell("kafka_server_replicamanager_partitioncount", len(broker.partitions))
    tell("kafka_server_replicamanager_leadercount", leaders)
    tell("kafka_server_replicamanager_underreplicatedpartitions", under_replicated)
    tell("kafka_server_replicamanager_underminisrpartitioncount", under_min)
    tell("kafka_server_replicamanager_atminisrpartitioncount", at_min)
    tell("kafka_server_replicamanager_offlinereplicacount", offline)


def _sample_logs(log_manager: Any, tell: Tell) -> None:
    producers = 0
    for (topic, index), log in log_manager.logs.items():
        _sample_log(log, tell, topic, str(index))
        producers += len(log.producers.producers)
    tell("kafka_server_replicamanager_produceridcount", producers)
    offline = {path: log_dir.offline_reason is not None for path, log_dir in log_manager.dirs.items()}
    tell("kafka_log_logmanager_offlinelogdirectorycount", sum(offline.values()))
    for path, is_offline in offline.items():
        tell("kafka_log_logmanager_logdirectoryoffline", is_offline, path)


def _sample_log(log: Any, tell: Tell, topic: str, index: str) -> None:
    tell("kafka_log_log_size", log.size_bytes, topic, index)
    tell("kafka_log_log_logstartoffset", log.log_start_offset, topic, index)
    tell("kafka_log_log_logendoffset", log.log_end_offset, topic, index)
    tell("kafka_log_log_numlogsegments", log.segment_count, topic, index)


def _sample_controller(controller: ControllerCore, tell: Tell) -> None:
    raft, image = controller.raft, controller.state.image
    _sample_log(raft.log.log, tell, METADATA_TOPIC, "0")
    tell("kafka_controller_kafkacontroller_activecontrollercount", raft.is_leader)
    tell("kafka_controller_kafkacontroller_activebrokercount", sum(not broker.is_fenced for broker in image.brokers.values()))
    tell("kafka_controller_kafkacontroller_fencedbrokercount", sum(broker.is_fenced for broker in image.brokers.values()))
    partitions = offline = imbalanced = 0
    for topic in image.topics.values():
        partitions += len(topic.partitions)
        for partition in topic.partitions.values():
            offline += partition.leader < 0
            imbalanced += partition.leader != partition.replicas[0]
    tell("kafka_controller_kafkacontroller_globaltopiccount", len(image.topics))
    tell("kafka_controller_kafkacontroller_globalpartitioncount", partitions)
    tell("kafka_controller_kafkacontroller_offlinepartitionscount", offline)
    tell("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", imbalanced)
    tell("kafka_controller_kafkacontroller_lastappliedrecordoffset", raft.high_watermark - 1)
    tell("kafka_controller_kafkacontroller_lastcommittedrecordoffset", raft.high_watermark - 1)
    tell("kafka_server_raft_metrics_current_leader", raft.leader_id)
    tell("kafka_server_raft_metrics_current_epoch", raft.epoch)
    tell("kafka_server_raft_metrics_high_watermark", raft.high_watermark)
    tell("kafka_server_raft_metrics_log_end_offset", raft.log.end_offset)


# -------------------------------------------------------------------------------------------------------------------- text


class _Collected:
    """What prometheus-client calls a collector."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        """The families of samples."""
        yield from self._families


def expose(samples: Samples, summaries: Summaries) -> bytes:
    """The text of the exposition; prometheus-client adds the process itself: memory, time of the CPU, open files."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import Metric as Family

    def families() -> Iterator[Family]:
        for metric in METRICS:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in samples.get(metric.name, ()):
                # A sample with fewer labels than its metric is the sum over them.
                family.add_sample(metric.name, dict(zip(metric.labels, labels)), value)
            if metric.kind == "summary":
                _add_summaries(family, metric.name, summaries)
            if family.samples:
                yield family

    registry = CollectorRegistry()
    registry.register(_Collected(families()))
    ProcessCollector(registry=registry)
    text: bytes = generate_latest(registry)
    return text


def _add_summaries(family: Any, name: str, summaries: Summaries) -> None:
    for request, times in summaries.items():
        labels = {BY_NAME[name].labels[0]: request}
        for quantile, value in zip(QUANTILES, times.quantiles):
            family.add_sample(name, {**labels, "quantile": quantile}, value)
        family.add_sample(f"{name}_count", labels, times.requests)
        family.add_sample(f"{name}_sum", labels, times.sum_ms)
