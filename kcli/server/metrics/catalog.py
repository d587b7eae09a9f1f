"""Every metric that a node tells: its name, kind, labels and meaning; docs/metrics.md is made of this.

Names are those that Prometheus' jmx_exporter gives the MBeans of Apache Kafka with its usual rules: the domain, the type and
the name of a bean joined by "_" in small letters, "PerSec" meters as counters ending in _total, histograms with a label
`quantile` and a _count. So dashboards and alerts for Kafka work. What is left out is in kcli.server.metrics.missing.

    kind       is
    ---------  -----------------------------------------------------------------------------------
    counter    only grows while the process lives
    gauge      as it is now
    summary    quantiles of what came since the scrape before, and how many there were since the start
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.server.metrics.missing import missing_page


class Metric(NamedTuple):
    """One metric; `labels` in the order in which samples have their values."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


# name | kind | labels | meaning; * stands for ALL_TOPICS.
_TABLE = """
kafka_server_brokertopicmetrics_messagesin_total | counter | topic | Records appended*
kafka_server_brokertopicmetrics_bytesin_total | counter | topic | Bytes appended*
kafka_server_brokertopicmetrics_bytesout_total | counter | topic | Bytes fetched*
kafka_server_brokertopicmetrics_bytesrejected_total | counter | topic | Bytes too large to append*
kafka_server_brokertopicmetrics_totalproducerequests_total | counter | topic | Appends asked for, one a partition of a request*
kafka_server_brokertopicmetrics_failedproducerequests_total | counter | topic | Those refused*
kafka_server_brokertopicmetrics_totalfetchrequests_total | counter | topic | Reads asked for, one a partition of a request*
kafka_server_brokertopicmetrics_failedfetchrequests_total | counter | topic | Those refused*
kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total | counter |  | Batches refused for their CRC, of all topics
kafka_network_requestmetrics_requests_total | counter | request version | Requests by API and version
kafka_network_requestmetrics_errors_total | counter | request error | Errors answered, NONE too; not of Produce and Fetch
kafka_network_requestmetrics_requestbytes | summary | request | Bytes of requests
kafka_network_requestmetrics_totaltimems | summary | request | Milliseconds from the whole request to the sent answer
kafka_network_requestmetrics_localtimems | summary | request | Of these, until the broker has looked at it
kafka_network_requestmetrics_remotetimems | summary | request | From then until its answer is there
kafka_network_requestmetrics_responsesendtimems | summary | request | From then until it is sent
kafka_network_requestchannel_requestqueuesize | gauge |  | Requests that wait for a thread: none ever does
kafka_network_requestchannel_responsequeuesize | gauge |  | Answers that wait for a thread: none ever does
kafka_network_processor_idlepercent | gauge | networkProcessor | Share that the loop was idle, 0 to 1, since the scrape before
kafka_network_socketserver_networkprocessoravgidlepercent | gauge |  | The same
kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count | gauge |  | Nanoseconds that the loop was idle
kafka_network_socketserver_expiredconnectionskilledcount | gauge |  | Connections closed since they were idle
kafka_server_replicamanager_partitioncount | gauge |  | Partitions hosted
kafka_server_replicamanager_leadercount | gauge |  | Partitions led
kafka_server_replicamanager_underreplicatedpartitions | gauge |  | Led, with replicas that are not in sync
kafka_server_replicamanager_underminisrpartitioncount | gauge |  | Led, with fewer in sync than min.insync.replicas
kafka_server_replicamanager_atminisrpartitioncount | gauge |  | Led, with just min.insync.replicas in sync
kafka_server_replicamanager_offlinereplicacount | gauge |  | Partitions in log directories that are offline
kafka_server_replicamanager_produceridcount | gauge |  | Idempotent producers remembered
kafka_server_replicamanager_reassigningpartitions | gauge |  | Led, with replicas that are to come or go
kafka_server_replicamanager_isrshrinks_total | counter |  | ISRs made smaller by leaders here, who are alone in theirs
kafka_server_replicamanager_isrexpands_total | counter |  | ISRs made larger by them
kafka_server_replicamanager_failedisrupdates_total | counter |  | ISRs that they could not change
kafka_cluster_partition_replicascount | gauge | topic partition | Replicas of a partition led here
kafka_cluster_partition_insyncreplicascount | gauge | topic partition | Those in sync
kafka_cluster_partition_underreplicated | gauge | topic partition | 1 where not all replicas are in sync
kafka_cluster_partition_underminisr | gauge | topic partition | 1 where fewer than min.insync.replicas are in sync
kafka_cluster_partition_atminisr | gauge | topic partition | 1 where just min.insync.replicas are in sync
kafka_cluster_partition_laststableoffsetlag | gauge | topic partition | High watermark minus last stable offset
kafka_log_log_size | gauge | topic partition | Bytes of a log's segments
kafka_log_log_logstartoffset | gauge | topic partition | The first offset that can be read
kafka_log_log_logendoffset | gauge | topic partition | The offset of the next record
kafka_log_log_numlogsegments | gauge | topic partition | Segments of a log
kafka_log_logmanager_offlinelogdirectorycount | gauge |  | Log directories that failed
kafka_log_logmanager_logdirectoryoffline | gauge | logDirectory | 1 for a log directory that failed
kafka_log_logflushstats_logflushrateandtimems | summary |  | Milliseconds of flushes to the disk
kafka_log_logcleaner_cleaner_recopy_percent | gauge |  | Of the bytes that the threads' last rounds read, those they kept
kafka_log_logcleaner_max_clean_time_secs | gauge |  | Seconds of the longest of the threads' last rounds, with its waits
kafka_log_logcleaner_max_buffer_utilization_percent | gauge |  | Of a thread's log.cleaner.dedupe.buffer.size, what keys took
kafka_log_logcleaner_max_compaction_delay_secs | gauge |  | How overdue (max.compaction.lag.ms) the latest log was before them
kafka_log_logcleaner_deadthreadcount | gauge |  | 0: an error costs a log its cleaning, see uncleanable-partitions-count
kafka_log_logcleanermanager_max_dirty_percent | gauge |  | The largest dirty ratio of a compacted log when all were looked at
kafka_log_logcleanermanager_time_since_last_run_ms | gauge |  | Milliseconds since then
kafka_log_logcleanermanager_uncleanable_partitions_count | gauge | logDirectory | Compacted logs given up; describe says why
kafka_log_logcleanermanager_uncleanable_bytes | gauge | logDirectory | Their bytes that should be cleaned
kafka_server_kafkaserver_brokerstate | gauge |  | 0 not running, 1 starting, 2 recovery, 3 running, 6 and 7 leaving
kafka_server_delayedoperationpurgatory_purgatorysize | gauge | delayedOperation | Requests that wait, by kind
kafka_server_delayedoperationpurgatory_numdelayedoperations | gauge | delayedOperation | The same
kafka_server_delayedproducemetrics_expires_total | counter |  | Produce requests that waited too long
kafka_server_fetchsessioncache_numincrementalfetchsessions | gauge |  | Fetch sessions
kafka_server_fetchsessioncache_numincrementalfetchpartitionscached | gauge |  | Partitions in all of them
kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total | counter |  | Sessions that had to make room for others
kafka_server_client_metrics_instance_count | gauge |  | Clients known that push metrics
kafka_server_client_metrics_unknown_subscription_request_count | gauge |  | Their pushes for a subscription that has changed
kafka_server_metadataloader_currentmetadataversion | gauge |  | The level of metadata.version
kafka_server_metadataloader_finalizedlevel | gauge | featureName | The level of a feature
kafka_server_metadataloader_currentcontrollerid | gauge |  | The node that leads the quorum, -1 for none
kafka_server_broker_metadata_metrics_last_applied_record_offset | gauge |  | How far the broker has read the metadata
kafka_server_broker_metadata_metrics_last_applied_record_timestamp | gauge |  | When that was appended, in ms since 1970
kafka_server_broker_metadata_metrics_last_applied_record_lag_ms | gauge |  | How long ago; 0 where the quorum is led
kafka_server_broker_metadata_metrics_ignored_static_voters | gauge |  | 1 where the log has the voters, and the file, too
kafka_server_socket_server_metrics_connection_count | gauge | listener networkProcessor | Connections open
kafka_server_socket_server_metrics_connection_creation | gauge | listener networkProcessor | Connections taken
kafka_server_socket_server_metrics_connection_creation_rate | gauge | listener networkProcessor | Those a second
kafka_server_socket_server_metrics_connection_close | gauge | listener networkProcessor | Connections ended
kafka_server_socket_server_metrics_connection_close_rate | gauge | listener networkProcessor | A second
kafka_server_socket_server_metrics_expired_connections_killed_count | gauge | listener networkProcessor | Those that were idle
kafka_server_socket_server_metrics_incoming_byte | gauge | listener networkProcessor | Bytes received
kafka_server_socket_server_metrics_incoming_byte_rate | gauge | listener networkProcessor | A second
kafka_server_socket_server_metrics_outgoing_byte | gauge | listener networkProcessor | Bytes sent
kafka_server_socket_server_metrics_outgoing_byte_rate | gauge | listener networkProcessor | A second
kafka_controller_kafkacontroller_activecontrollercount | gauge |  | 1 on the node that leads the quorum
kafka_controller_kafkacontroller_activebrokercount | gauge |  | Brokers that serve, as this controller sees it
kafka_controller_kafkacontroller_fencedbrokercount | gauge |  | Brokers that are registered and do not serve
kafka_controller_kafkacontroller_controlledshutdownbrokercount | gauge |  | Brokers that are leaving
kafka_controller_kafkacontroller_brokerregistrationstate | gauge | broker | 10 fenced, 20 leaving, 30 active
kafka_controller_kafkacontroller_timesincelastheartbeatreceivedms | gauge | broker | Since it was heard of
kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount | gauge |  | Brokers fenced for their silence, since the start
kafka_controller_kafkacontroller_newactivecontrollerscount | gauge |  | Leaders of the quorum seen since the start
kafka_controller_kafkacontroller_metadataerrorcount | gauge |  | Records that could not be applied
kafka_controller_controllerstats_uncleanleaderelections_total | counter |  | Leaders elected that were not in sync
kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total | counter |  | Of the eligible ones
kafka_controller_kafkacontroller_globaltopiccount | gauge |  | Topics of the cluster
kafka_controller_kafkacontroller_globalpartitioncount | gauge |  | Partitions of the cluster
kafka_controller_kafkacontroller_offlinepartitionscount | gauge |  | Partitions without a leader
kafka_controller_kafkacontroller_preferredreplicaimbalancecount | gauge |  | Led by another than their first replica
kafka_controller_kafkacontroller_lastappliedrecordoffset | gauge |  | How far the controller has applied the metadata
kafka_controller_kafkacontroller_lastcommittedrecordoffset | gauge |  | How far the metadata is committed
kafka_controller_kafkacontroller_lastappliedrecordtimestamp | gauge |  | When that was appended, in ms since 1970
kafka_controller_kafkacontroller_lastappliedrecordlagms | gauge |  | How long ago; 0 where the quorum is led
kafka_controller_kafkacontroller_ignoredstaticvoters | gauge |  | 1 where the log has the voters, and the file, too
kafka_server_raft_metrics_current_leader | gauge |  | The node that leads the quorum, -1 for none
kafka_server_raft_metrics_current_epoch | gauge |  | Its epoch
kafka_server_raft_metrics_high_watermark | gauge |  | Behind the last committed record of the metadata log
kafka_server_raft_metrics_log_end_offset | gauge |  | Behind the last record of the metadata log
kafka_server_raft_metrics_log_end_epoch | gauge |  | The epoch of the last record of the metadata log
kafka_server_raft_metrics_append_records_rate | gauge |  | Records appended a second, since the scrape before
kafka_server_raft_metrics_current_vote | gauge |  | The node that this one voted for in the epoch, -1 for none
kafka_server_raft_metrics_number_of_voters | gauge |  | Voters of the quorum
kafka_server_raft_metrics_number_of_observers | gauge |  | Nodes that follow the metadata log and do not vote: none is served
kafka_server_raft_metrics_commit_latency_avg | gauge |  | Milliseconds to a commit, since the scrape before
kafka_server_raft_metrics_commit_latency_max | gauge |  | The longest of those
"""
ALL_TOPICS = "; without a label: of all topics"


def _parse(line: str) -> Metric:
    name, kind, labels, meaning = line.split(" | ")
    return Metric(name, kind, tuple(labels.split()), meaning.replace("*", ALL_TOPICS))


METRICS = tuple(_parse(line) for line in _TABLE.strip().splitlines())
BY_NAME = {metric.name: metric for metric in METRICS}
QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def metrics_page() -> str:
    """The tables of docs/metrics.md."""
    lines = ["", "| metric | kind | labels | what it tells |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n" + missing_page()
