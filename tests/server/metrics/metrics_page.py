"""The tables of docs/metrics.md: the metrics of a node, and Kafka's metrics that are missing, with the reasons."""

from __future__ import annotations

from typing import NamedTuple

from kcli.server.metrics.catalog import METRICS


class MissingGroup(NamedTuple):
    """Metrics that are missing for one reason; `patterns` (`*` for any text) omit the prefix kafka_ and the suffix _count."""

    patterns: tuple[str, ...]
    reason: str


# patterns | why
_MISSING_TABLE = """
server_*_channel_metrics_* | Connections to other nodes share the event loop and are not counted
server_group_coordinator_metrics_b* server_group_coordinator_metrics_event_[!q]* server_group_coordinator_metrics_thread_* \
server_group_coordinator_metrics_event_queue_time* | Operations of coordinators wait for no thread, and batches for no other
coordinator_transaction_* server_addpartitionstotxnmanager_* \
server_replicamanager_partitionswithlatetransactionscount | Transactions have no metrics yet
server_share_coordinator_metrics_b* server_share_coordinator_metrics_event_[!q]* server_share_coordinator_metrics_thread_* \
server_share_coordinator_metrics_event_queue_time* | As of group coordinators
server_share_coordinator_metrics_write_latency_* \
server_sharegroupmetrics_partitionloadtimems* server_sharegroupmetrics_requesttopicpartitionsfetchratio* \
server_sharegroupmetrics_topicpartitionsacquiretimems* server_sharepartitionmetrics_fetchlock* \
server_sharepartitionmetrics_inflightbatchmessagecount* | Fetches of \
share groups take no lock; they and writes of states are not timed
server_brokertopicmetrics_reassignment* server_replicafetchermanager_minfetchrate | Only bytes of all replicas are counted
server_replicaalterlogdirsmanager_* server_assignmentsmanager_* | Moves between log directories are copies, without a fetcher
server_brokertopicmetrics_*conversions_total network_requestmetrics_messageconversions* \
network_requestmetrics_temporarymemory* | Records are never converted
server_brokertopicmetrics_invalidmagicnumberrecords_total server_brokertopicmetrics_invalidoffsetorsequencerecords_total \
server_brokertopicmetrics_nokeycompactedtopicrecords_total | Not counted separately; see failedproducerequests
network_requestmetrics_requestqueuetimems* network_requestmetrics_responsequeuetimems* \
| There is one event loop and no queue
network_requestmetrics_throttletimems* server_request_* server_fetch_queue_size server_produce_queue_size \
server_controllermutation_queue_size | Quotas are not served
network_acceptor_* server_socket_server_metrics_broker_connection_accept_rate \
| Connections that must wait do so in the backlog of the system
network_socketserver_memorypool* | The memory of requests is not counted
server_kafkarequesthandlerpool_brokerrequesthandler* server_kafkarequesthandlerpool_controllerrequesthandler* \
server_metadataloader_avgidleratio server_raft_metrics_poll_idle_ratio_avg controller_controllereventmanager_avgidleratio \
| One event loop does all of it: see requesthandleravgidlepercent
server_socket_server_metrics_io_* server_socket_server_metrics_select* server_socket_server_metrics_network_io* | All \
listeners share one event loop: see idlepercent
server_socket_server_metrics_request* server_socket_server_metrics_response* | Counted by API: see requestmetrics
server_socket_server_metrics_*authentication* | All listeners are PLAINTEXT: clients are not authenticated
server_brokermetadatalistener_metadatabatchprocessingtimeus* | Metadata is applied between other work of the event loop
log_log_retentionsizeinpercent utils_throttler_cleaner_io_count | Retention and the cleaner's bytes are not counted
server_kafkaserver_linux_disk_* server_controllerserver_linux_disk_* server_app_info_* | See /proc/PID/io and \
process_start_time_seconds
server_kafka_metrics_count_count server_*server_yammer_metrics_count | Metrics of Java's libraries
server_client_metrics_unknown_subscription_request_rate | Use rate() of the count
"""


def _parse_group(line: str) -> MissingGroup:
    patterns, reason = line.split("| ")
    return MissingGroup(tuple(patterns.split()), reason)


MISSING = tuple(_parse_group(line) for line in _MISSING_TABLE.strip().splitlines())


def missing_page() -> str:
    """Return the table of missing metrics in docs/metrics.md."""
    lines = ["", "## Missing metrics", "", "| Kafka's metrics (without `kafka_`) | reason |", "|---|---|"]
    for group in MISSING:
        lines.append(f"| {', '.join(f'`{pattern}`' for pattern in group.patterns)} | {group.reason} |")
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Return the tables of docs/metrics.md."""
    lines = ["", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n" + missing_page()
