"""Every metric of a node: its name, kind, labels and meaning; docs/metrics.md lists them.

Names are those that Prometheus' jmx_exporter gives the MBeans of Apache Kafka with its default rules: the domain, the type and
the name of a bean joined by "_" in lower case, "PerSec" meters as counters ending in _total, histograms with a label
`quantile` and a _count. So dashboards and alerts for Kafka work. A test compares the names with those of a real Kafka.

    kind       is
    ---------  -----------------------------------------------------------------------------------
    counter    a number that only grows while the process lives
    gauge      the present value
    summary    quantiles of the values since the last scrape, and their number since the start
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One metric; `labels` in the order in which samples have their values."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


# name | kind | labels | meaning; * is replaced by ALL_TOPICS.
_TABLE = """
kafka_server_brokertopicmetrics_messagesin_total | counter | topic | Records appended*
kafka_server_brokertopicmetrics_bytesin_total | counter | topic | Bytes appended*
kafka_server_brokertopicmetrics_bytesout_total | counter | topic | Bytes fetched*
kafka_server_brokertopicmetrics_bytesrejected_total | counter | topic | Bytes too large to append*
kafka_server_brokertopicmetrics_totalproducerequests_total | counter | topic | Appends, one per partition of a request*
kafka_server_brokertopicmetrics_failedproducerequests_total | counter | topic | Refused appends*
kafka_server_brokertopicmetrics_totalfetchrequests_total | counter | topic | Reads, one per partition of a request*
kafka_server_brokertopicmetrics_failedfetchrequests_total | counter | topic | Refused reads*
kafka_server_brokertopicmetrics_totalsharefetchrequests_total | counter | topic | Share fetches, one per topic of a request*
kafka_server_brokertopicmetrics_failedsharefetchrequests_total | counter | topic | Refused share fetches*
kafka_server_brokertopicmetrics_totalshareacknowledgementrequests_total | counter | topic | Acknowledging requests, by topic*
kafka_server_brokertopicmetrics_failedshareacknowledgementrequests_total | counter | topic | Refused acknowledgements*
kafka_server_brokertopicmetrics_replicationbytesout_total | counter |  | Bytes sent to followers, of all topics
kafka_server_brokertopicmetrics_replicationbytesin_total | counter |  | Bytes copied from leaders, of all topics
kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total | counter |  | Batches with a wrong CRC, of all topics
kafka_network_requestmetrics_requests_total | counter | request version | Requests by API and version
kafka_network_requestmetrics_errors_total | counter | request error | Error codes in responses, except of Produce and Fetch
kafka_network_requestmetrics_requestbytes | summary | request | Bytes of requests
kafka_network_requestmetrics_totaltimems | summary | request | Milliseconds from the received request to the sent response
kafka_network_requestmetrics_localtimems | summary | request | Milliseconds until the broker has handled the request
kafka_network_requestmetrics_remotetimems | summary | request | Milliseconds from then until the response is ready
kafka_network_requestmetrics_responsesendtimems | summary | request | Milliseconds from then until the response is sent
kafka_network_requestchannel_requestqueuesize | gauge |  | Requests that wait for a thread: always 0
kafka_network_requestchannel_responsequeuesize | gauge |  | Responses that wait for a thread: always 0
kafka_network_processor_idlepercent | gauge | networkProcessor | Idle share of the event loop, 0 to 1, since the last scrape
kafka_network_socketserver_networkprocessoravgidlepercent | gauge |  | The same, as there is one network processor
kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count | gauge |  | Nanoseconds that the event loop was idle
kafka_network_socketserver_expiredconnectionskilledcount | gauge |  | Connections closed because they were idle
kafka_server_replicamanager_partitioncount | gauge |  | Hosted partitions
kafka_server_replicamanager_leadercount | gauge |  | Partitions that this broker leads
kafka_server_replicamanager_underreplicatedpartitions | gauge |  | Led partitions with replicas that are not in sync
kafka_server_replicamanager_underminisrpartitioncount | gauge |  | Led partitions below min.insync.replicas
kafka_server_replicamanager_atminisrpartitioncount | gauge |  | Led partitions at min.insync.replicas
kafka_server_replicamanager_offlinereplicacount | gauge |  | Partitions in log directories that are offline
kafka_server_replicamanager_produceridcount | gauge |  | Idempotent producers that partitions remember
kafka_server_replicamanager_reassigningpartitions | gauge |  | Led partitions with replicas being added or removed
kafka_server_replicamanager_isrshrinks_total | counter |  | ISRs that leaders here have shrunk
kafka_server_replicamanager_isrexpands_total | counter |  | ISRs that leaders here have expanded
kafka_server_replicamanager_failedisrupdates_total | counter |  | Changes of ISRs that the controller has refused
kafka_server_replicafetchermanager_maxlag | gauge | clientId | The largest lag of a followed partition, in records
kafka_server_replicafetchermanager_failedpartitionscount | gauge | clientId | Partitions not copied until their next leader
kafka_server_replicafetchermanager_deadthreadcount | gauge | clientId | Always 0: an error only ends the copy of its partition
kafka_server_fetcherlagmetrics_consumerlag | gauge | clientId topic partition | The lag of a followed partition
kafka_server_fetcherstats_requests_total | counter | clientId brokerHost brokerPort | Answered fetches of a fetcher
kafka_server_fetcherstats_bytes_total | counter | clientId brokerHost brokerPort | Bytes copied by a fetcher
kafka_cluster_partition_replicascount | gauge | topic partition | Replicas of a led partition
kafka_cluster_partition_insyncreplicascount | gauge | topic partition | In-sync replicas of a led partition
kafka_cluster_partition_underreplicated | gauge | topic partition | 1 if not all replicas are in sync
kafka_cluster_partition_underminisr | gauge | topic partition | 1 if fewer than min.insync.replicas are in sync
kafka_cluster_partition_atminisr | gauge | topic partition | 1 if exactly min.insync.replicas are in sync
kafka_cluster_partition_laststableoffsetlag | gauge | topic partition | High watermark minus last stable offset
kafka_log_log_size | gauge | topic partition | Bytes of a log's segments
kafka_log_log_logstartoffset | gauge | topic partition | The first offset that can be read
kafka_log_log_logendoffset | gauge | topic partition | The offset of the next record
kafka_log_log_numlogsegments | gauge | topic partition | Segments of a log
kafka_log_logmanager_offlinelogdirectorycount | gauge |  | Log directories that failed
kafka_log_logmanager_logdirectoryoffline | gauge | logDirectory | 1 for a log directory that failed
kafka_log_logmanager_cordonedlogdirectorycount | gauge |  | Log directories that get no new replicas
kafka_log_logmanager_logdirectorycordoned | gauge | logDirectory | 1 for a log directory that gets no new replicas
kafka_log_logflushstats_logflushrateandtimems | summary |  | Milliseconds of flushes to the disk
kafka_log_logcleaner_cleaner_recopy_percent | gauge |  | Percentage of bytes that the threads' last rounds kept
kafka_log_logcleaner_max_clean_time_secs | gauge |  | Seconds of the longest of the threads' last rounds, with throttling
kafka_log_logcleaner_max_buffer_utilization_percent | gauge |  | Percentage of a thread's log.cleaner.dedupe.buffer.size in use
kafka_log_logcleaner_max_compaction_delay_secs | gauge |  | Seconds that the most overdue log was late (max.compaction.lag.ms)
kafka_log_logcleaner_deadthreadcount | gauge |  | Always 0: an error only makes its log uncleanable
kafka_log_logcleanermanager_max_dirty_percent | gauge |  | The largest dirty percentage of a compacted log at the last scan
kafka_log_logcleanermanager_time_since_last_run_ms | gauge |  | Milliseconds since the last scan
kafka_log_logcleanermanager_uncleanable_partitions_count | gauge | logDirectory | Uncleanable logs; the broker's log says why
kafka_log_logcleanermanager_uncleanable_bytes | gauge | logDirectory | Dirty bytes of uncleanable logs
kafka_server_sharesessioncache_sharesessionscount | gauge |  | Share sessions
kafka_server_sharesessioncache_sharepartitionscount | gauge |  | Partitions of all share sessions
kafka_server_sharesessioncache_sharesessionevictions_total | counter |  | Evicted share sessions: always 0
kafka_server_delayedsharefetchmetrics_expires_total | counter |  | Share fetches that timed out
kafka_server_sharepartitionmetrics_inflightbatchcount | gauge | group topic partition | Batches in flight
kafka_server_sharepartitionmetrics_inflightmessagecount | gauge | group topic partition | Offsets from start to end offset
kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total | counter | group topic partition | Records whose lock expired
kafka_server_sharegroupmetrics_recordacknowledgements_total | counter | ackType | Acknowledgements, one per range of a request
kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count | gauge | group | Records written to the dead letter queue
kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequests_total | counter | group | Requests that write them
kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total | counter | group | Those that failed for good
kafka_server_share_coordinator_metrics_write | gauge |  | Written states of share partitions
kafka_server_share_coordinator_metrics_write_rate | gauge |  | Written states of share partitions per second
kafka_server_share_coordinator_metrics_event_queue_size | gauge |  | Operations that wait for a thread: always 0
kafka_server_kafkaserver_brokerstate | gauge |  | 0 not running, 1 starting, 2 recovery, 3 running, 6 and 7 leaving
kafka_server_delayedoperationpurgatory_purgatorysize | gauge | delayedOperation | Waiting requests, by kind
kafka_server_delayedoperationpurgatory_numdelayedoperations | gauge | delayedOperation | The same
kafka_server_delayedproducemetrics_expires_total | counter |  | Produce requests that timed out
kafka_server_delayedfetchmetrics_expires_total | counter | fetcherType | Fetches that timed out, of followers and consumers
kafka_server_fetchsessioncache_numincrementalfetchsessions | gauge |  | Fetch sessions
kafka_server_fetchsessioncache_numincrementalfetchpartitionscached | gauge |  | Partitions of all fetch sessions
kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total | counter |  | Evicted fetch sessions
kafka_server_client_metrics_instance_count | gauge |  | Known clients that push metrics
kafka_server_client_metrics_unknown_subscription_request_count | gauge |  | Pushes for a subscription that has changed
kafka_server_metadataloader_currentmetadataversion | gauge |  | The level of metadata.version
kafka_server_metadataloader_finalizedlevel | gauge | featureName | The level of a feature
kafka_server_metadataloader_currentcontrollerid | gauge |  | The node that leads the quorum, -1 for none
kafka_server_metadataloader_handleloadsnapshotcount | gauge |  | Snapshots of the metadata log that this node has loaded
kafka_server_snapshotemitter_latestsnapshotgeneratedbytes | gauge |  | Bytes of the latest snapshot that this node has written
kafka_server_snapshotemitter_latestsnapshotgeneratedagems | gauge |  | Milliseconds since then; before the first since the start
kafka_server_brokermetadatalistener_metadatabatchsizes | summary |  | Records of a batch of the metadata log
kafka_server_broker_metadata_metrics_last_applied_record_offset | gauge |  | Offset of the last applied metadata record
kafka_server_broker_metadata_metrics_last_applied_record_timestamp | gauge |  | When that record was appended, in ms since 1970
kafka_server_broker_metadata_metrics_last_applied_record_lag_ms | gauge |  | Milliseconds since then, 0 on the leader
kafka_server_broker_metadata_metrics_metadata_load_error_count | gauge |  | Always 0: a broker that cannot read a record ends
kafka_server_broker_metadata_metrics_metadata_apply_error_count | gauge |  | Always 0: a broker that cannot apply a record ends
kafka_server_broker_metadata_metrics_ignored_static_voters | gauge |  | 1 if the file sets voters and the log has others
kafka_server_socket_server_metrics_connection_count | gauge | listener networkProcessor | Connections open
kafka_server_socket_server_metrics_connection_creation | gauge | listener networkProcessor | Accepted connections
kafka_server_socket_server_metrics_connection_creation_rate | gauge | listener networkProcessor | Accepted per second
kafka_server_socket_server_metrics_connection_close | gauge | listener networkProcessor | Closed connections
kafka_server_socket_server_metrics_connection_close_rate | gauge | listener networkProcessor | Closed connections per second
kafka_server_socket_server_metrics_expired_connections_killed_count | gauge | listener networkProcessor | Closed idle ones
kafka_server_socket_server_metrics_incoming_byte | gauge | listener networkProcessor | Bytes received
kafka_server_socket_server_metrics_incoming_byte_rate | gauge | listener networkProcessor | Bytes received per second
kafka_server_socket_server_metrics_outgoing_byte | gauge | listener networkProcessor | Bytes sent
kafka_server_socket_server_metrics_outgoing_byte_rate | gauge | listener networkProcessor | Bytes sent per second
kafka_server_group_coordinator_metrics_offset_commit_count | gauge |  | Committed offsets
kafka_server_group_coordinator_metrics_offset_commit_rate | gauge |  | Committed offsets per second
kafka_server_group_coordinator_metrics_offset_expiration_count | gauge |  | Expired offsets
kafka_server_group_coordinator_metrics_offset_expiration_rate | gauge |  | Expired offsets per second
kafka_server_group_coordinator_metrics_offset_deletion_count | gauge |  | Offsets that administrators deleted
kafka_server_group_coordinator_metrics_offset_deletion_rate | gauge |  | Offsets that administrators deleted per second
kafka_server_group_coordinator_metrics_group_completed_rebalance_count | gauge |  | Completed rebalances of classic groups
kafka_server_group_coordinator_metrics_group_completed_rebalance_rate | gauge |  | Such rebalances per second
kafka_server_group_coordinator_metrics_consumer_group_rebalance_count | gauge |  | Rebalances of consumer groups
kafka_server_group_coordinator_metrics_consumer_group_rebalance_rate | gauge |  | Rebalances of consumer groups per second
kafka_server_group_coordinator_metrics_share_group_rebalance_count | gauge |  | Rebalances of share groups
kafka_server_group_coordinator_metrics_share_group_rebalance_rate | gauge |  | Rebalances of share groups per second
kafka_server_group_coordinator_metrics_streams_group_rebalance_count | gauge |  | Rebalances of streams groups
kafka_server_group_coordinator_metrics_streams_group_rebalance_rate | gauge |  | Rebalances of streams groups per second
kafka_server_group_coordinator_metrics_partition_load_time_avg | gauge |  | Average milliseconds to load a partition of groups
kafka_server_group_coordinator_metrics_partition_load_time_max | gauge |  | The longest of them, since the last scrape
kafka_server_transaction_coordinator_metrics_partition_load_time_avg | gauge |  | The same of __transaction_state
kafka_server_transaction_coordinator_metrics_partition_load_time_max | gauge |  | The longest of them, since the last scrape
kafka_server_share_coordinator_metrics_partition_load_time_avg | gauge |  | The same of __share_group_state
kafka_server_share_coordinator_metrics_partition_load_time_max | gauge |  | The longest of them, since the last scrape
kafka_server_group_coordinator_metrics_event_queue_size | gauge |  | Operations that wait for a thread: always 0
kafka_server_group_coordinator_metrics_num_partitions | gauge | state | Led partitions of __consumer_offsets by state
kafka_server_group_coordinator_metrics_group_count | gauge | protocol | Groups by protocol: classic, consumer, share, streams
kafka_server_group_coordinator_metrics_consumer_group_count | gauge | state | Consumer groups by state
kafka_server_group_coordinator_metrics_share_group_count | gauge | state | Share groups by state
kafka_server_group_coordinator_metrics_streams_group_count | gauge | state | Streams groups by state
kafka_coordinator_group_groupmetadatamanager_numoffsets | gauge |  | Committed offsets of all groups
kafka_coordinator_group_groupmetadatamanager_numgroups | gauge |  | Classic groups
kafka_coordinator_group_groupmetadatamanager_numgroupsempty | gauge |  | Classic groups that are Empty
kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance | gauge |  | Classic groups in PreparingRebalance
kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance | gauge |  | Classic groups in CompletingRebalance
kafka_coordinator_group_groupmetadatamanager_numgroupsstable | gauge |  | Classic groups that are Stable
kafka_coordinator_group_groupmetadatamanager_numgroupsdead | gauge |  | Classic groups that are Dead
kafka_controller_kafkacontroller_activecontrollercount | gauge |  | 1 on the active controller
kafka_controller_kafkacontroller_activebrokercount | gauge |  | Registered brokers that are not fenced
kafka_controller_kafkacontroller_fencedbrokercount | gauge |  | Registered brokers that are fenced
kafka_controller_kafkacontroller_controlledshutdownbrokercount | gauge |  | Brokers in controlled shutdown
kafka_controller_kafkacontroller_brokerregistrationstate | gauge | broker | 10 fenced, 20 controlled shutdown, 30 active
kafka_controller_kafkacontroller_timesincelastheartbeatreceivedms | gauge | broker | Milliseconds since the last heartbeat
kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount | gauge |  | Brokers fenced for missing heartbeats since the start
kafka_controller_kafkacontroller_newactivecontrollerscount | gauge |  | Leaders of the quorum seen since the start
kafka_controller_kafkacontroller_metadataerrorcount | gauge |  | Records that could not be applied
kafka_controller_kafkacontroller_eventqueueoperationsstartedcount | gauge |  | Operations of the controller that have begun
kafka_controller_kafkacontroller_eventqueueoperationstimedoutcount | gauge |  | Always 0: operations that wait have no deadline
kafka_controller_controllereventmanager_eventqueuetimems | summary |  | Milliseconds that an operation of the controller waited
kafka_controller_controllereventmanager_eventqueueprocessingtimems | summary |  | Milliseconds until its records were appended
kafka_controller_controllerstats_uncleanleaderelections_total | counter |  | Elected leaders that were not in sync
kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total | counter |  | Eligible leader replicas elected
kafka_controller_kafkacontroller_globaltopiccount | gauge |  | Topics of the cluster
kafka_controller_kafkacontroller_globalpartitioncount | gauge |  | Partitions of the cluster
kafka_controller_kafkacontroller_offlinepartitionscount | gauge |  | Partitions without a leader
kafka_controller_kafkacontroller_preferredreplicaimbalancecount | gauge |  | Partitions whose leader is not their first replica
kafka_controller_kafkacontroller_lastappliedrecordoffset | gauge |  | Offset of the last record that the controller applied
kafka_controller_kafkacontroller_lastcommittedrecordoffset | gauge |  | Offset of the last committed metadata record
kafka_controller_kafkacontroller_lastappliedrecordtimestamp | gauge |  | When that record was appended, in ms since 1970
kafka_controller_kafkacontroller_lastappliedrecordlagms | gauge |  | Milliseconds since then, 0 on the leader
kafka_controller_kafkacontroller_ignoredstaticvoters | gauge |  | 1 if the file sets voters and the log has others
kafka_server_raft_metrics_current_leader | gauge |  | The node that leads the quorum, -1 for none
kafka_server_raft_metrics_current_epoch | gauge |  | The epoch of the quorum
kafka_server_raft_metrics_high_watermark | gauge |  | Offset after the last committed record of the metadata log
kafka_server_raft_metrics_log_end_offset | gauge |  | Offset after the last record of the metadata log
kafka_server_raft_metrics_log_end_epoch | gauge |  | The epoch of the last record of the metadata log
kafka_server_raft_metrics_append_records_rate | gauge |  | Records appended per second as the leader, since the last scrape
kafka_server_raft_metrics_fetch_records_rate | gauge |  | Records fetched per second from leaders, since the last scrape
kafka_server_raft_metrics_current_vote | gauge |  | The node that this one voted for in the epoch, -1 for none
kafka_server_raft_metrics_number_of_voters | gauge |  | Voters of the quorum
kafka_server_raft_metrics_number_of_observers | gauge |  | Observers that fetch the metadata log; on the leader only
kafka_server_raft_metrics_uncommitted_voter_change | gauge |  | 1 if a change of the voters is not committed; on the leader only
kafka_server_raft_metrics_number_unknown_voter_connections | gauge |  | Voters whose address is not known
kafka_server_raft_metrics_commit_latency_avg | gauge |  | Average milliseconds from append to commit, since the last scrape
kafka_server_raft_metrics_commit_latency_max | gauge |  | The longest of them
kafka_server_raft_metrics_election_latency_avg | gauge |  | Average milliseconds from a request for votes to a leader
kafka_server_raft_metrics_election_latency_max | gauge |  | The longest of them, since the last scrape
"""
ALL_TOPICS = "; without a label: for all topics"


def _parse(line: str) -> Metric:
    name, kind, labels, meaning = line.split(" | ")
    return Metric(name, kind, tuple(labels.split()), meaning.replace("*", ALL_TOPICS))


METRICS = tuple(_parse(line) for line in _TABLE.strip().splitlines())
QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
