"""Those of Kafka's metrics that a node does not tell, by group, and why; docs/metrics.md is made of this.

A pattern stands for the names that it matches (`*` for anything) and, of summaries, their _count. A test holds the patterns to
all that Kafka was seen to tell: each name is either told or in one of these groups.
"""

from __future__ import annotations

from typing import NamedTuple


class MissingGroup(NamedTuple):
    """Metrics that are left out together; `patterns` are without the kafka_ that each name begins with."""

    patterns: tuple[str, ...]
    reason: str


# patterns | why
_TABLE = """
server_*_channel_metrics_* | Connections of Kafka's own clients to other nodes: a node here has none
server_group_coordinator_metrics_* server_transaction_coordinator_metrics_* server_addpartitionstotxnmanager_* \
server_replicamanager_partitionswithlatetransactionscount | Groups and transactions have no coordinator here
server_share* server_brokertopicmetrics_*share* | Share groups are not served
server_brokertopicmetrics_replication* server_brokertopicmetrics_reassignment* server_replicafetchermanager_* \
| Nothing is replicated from or to other nodes
server_replicaalterlogdirsmanager_* server_assignmentsmanager_* | Moves between log directories are copies, without a fetcher
server_brokertopicmetrics_*conversions_total network_requestmetrics_messageconversions* \
network_requestmetrics_temporarymemory* | Records are never converted
server_brokertopicmetrics_invalidmagicnumberrecords_total server_brokertopicmetrics_invalidoffsetorsequencerecords_total \
server_brokertopicmetrics_nokeycompactedtopicrecords_total | Not told apart from other refusals, which failedproducerequests has
network_requestmetrics_requestqueuetimems* network_requestmetrics_responsequeuetimems* \
| There is one loop, and no queue before or behind
network_requestmetrics_throttletimems* server_request_* server_fetch_queue_size server_produce_queue_size \
server_controllermutation_queue_size | There are no quotas, so nobody is throttled
network_acceptor_* server_socket_server_metrics_broker_connection_accept_rate | Who has to wait does so in the system's backlog
network_socketserver_memorypool* | Not kept count of: the memory of requests
server_kafkarequesthandlerpool_brokerrequesthandler* server_kafkarequesthandlerpool_controllerrequesthandler* \
server_metadataloader_avgidleratio server_raft_metrics_poll_idle_ratio_avg controller_controllereventmanager_avgidleratio \
| One loop does all of it: requesthandleravgidlepercent
server_socket_server_metrics_io_* server_socket_server_metrics_select* server_socket_server_metrics_network_io* | All \
listeners share the one loop: idlepercent tells of it
server_socket_server_metrics_request* server_socket_server_metrics_response* | Counted by API, not by listener: requestmetrics
server_socket_server_metrics_*authentication* | Listeners are plain: nobody authenticates
controller_controllereventmanager_eventqueue* controller_kafkacontroller_eventqueue* | Decisions are taken in the one loop; \
remotetimems has what they take
server_brokermetadatalistener_* server_metadataloader_handleloadsnapshotcount \
server_broker_metadata_metrics_metadata_*_error_count server_snapshotemitter_* \
| Not kept count of: how the broker reads and writes the metadata
server_raft_metrics_election_latency_* server_raft_metrics_fetch_records_rate \
server_raft_metrics_number_unknown_voter_connections server_raft_metrics_uncommitted_voter_change \
| Things of a quorum of several voters
log_log_retentionsizeinpercent utils_throttler_cleaner_io_count | Not kept count of: retention, and the cleaner's bytes
log_logmanager_cordonedlogdirectorycount log_logmanager_logdirectorycordoned | Not kept count of: cordoned log directories
server_kafkaserver_linux_disk_* server_controllerserver_linux_disk_* server_app_info_* | Of the process: /proc/PID/io, \
process_start_time_seconds
server_kafka_metrics_count_count server_*server_yammer_metrics_count | Of Java's libraries
server_client_metrics_unknown_subscription_request_rate | rate() of the count
"""


def _parse(line: str) -> MissingGroup:
    patterns, reason = line.split("| ")
    return MissingGroup(tuple(patterns.split()), reason)


MISSING = tuple(_parse(line) for line in _TABLE.strip().splitlines())


def missing_page() -> str:
    """The second table of docs/metrics.md."""
    lines = ["", "## Not told", "", "| Kafka's metrics (without `kafka_`) | why they are left out |", "|---|---|"]
    for group in MISSING:
        lines.append(f"| {', '.join(f'`{pattern}`' for pattern in group.patterns)} | {group.reason} |")
    return "\n".join(lines) + "\n"
