"""The metrics of a controller and of its replica of the metadata quorum, by Kafka's names.

Elections, missed heartbeats and faults are counted since the start of the process, while this node leads; the times of commits,
elections and operations are those since the last scrape. As in Kafka, only a leader has the numbers of observers and of
uncommitted changes of the voters, and only an active controller those of heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcli.server.controller.controller_server import ControllerServer
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.state.metadata_values import BrokerRegistration

if TYPE_CHECKING:
    from kcli.server.shell.metrics_collector import RawSamples

# Kafka's states of a registration.
_FENCED, _IN_CONTROLLED_SHUTDOWN, _ACTIVE = 10, 20, 30


def sample_controller(controller: ControllerServer, raw: RawSamples, now_ms: int) -> None:
    """Sample a controller."""
    _sample_brokers(controller, raw, now_ms)
    _sample_topics(controller, raw)
    _sample_decisions(controller, raw, now_ms)


def _sample_brokers(controller: ControllerServer, raw: RawSamples, now_ms: int) -> None:
    brokers, sessions = controller.state.image.brokers, controller.state.sessions
    fenced = sum(broker.is_fenced for broker in brokers.values())
    leaving = sum(broker.is_in_controlled_shutdown for broker in brokers.values())
    raw.add("kafka_controller_kafkacontroller_activebrokercount", len(brokers) - fenced)
    raw.add("kafka_controller_kafkacontroller_fencedbrokercount", fenced)
    raw.add("kafka_controller_kafkacontroller_controlledshutdownbrokercount", leaving)
    for broker_id, broker in brokers.items():
        raw.add("kafka_controller_kafkacontroller_brokerregistrationstate", _state(broker), str(broker_id))
    if controller.controller.is_active:
        for broker_id, session in sessions.items():
            silent_ms = now_ms - session.last_heartbeat_ms
            raw.add("kafka_controller_kafkacontroller_timesincelastheartbeatreceivedms", silent_ms, str(broker_id))


def _state(broker: BrokerRegistration) -> int:
    if broker.is_fenced:
        return _FENCED
    return _IN_CONTROLLED_SHUTDOWN if broker.is_in_controlled_shutdown else _ACTIVE


def _sample_topics(controller: ControllerServer, raw: RawSamples) -> None:
    image = controller.state.image
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    offline, imbalanced = image.index.counts
    raw.add("kafka_controller_kafkacontroller_globaltopiccount", len(image.topics))
    raw.add("kafka_controller_kafkacontroller_globalpartitioncount", partitions)
    raw.add("kafka_controller_kafkacontroller_offlinepartitionscount", offline)
    raw.add("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", imbalanced)


def _sample_decisions(controller: ControllerServer, raw: RawSamples, now_ms: int) -> None:
    raft, counts = controller.raft, controller.controller.metrics
    raw.add("kafka_controller_kafkacontroller_activecontrollercount", controller.controller.is_active)
    raw.add("kafka_controller_kafkacontroller_ignoredstaticvoters", _ignores_static_voters(raft))
    raw.add("kafka_controller_kafkacontroller_newactivecontrollerscount", counts.new_leaders)
    raw.add("kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount", counts.timed_out_heartbeats)
    raw.add("kafka_controller_kafkacontroller_metadataerrorcount", counts.metadata_errors)
    raw.add("kafka_controller_controllerstats_uncleanleaderelections_total", counts.unclean_elections)
    raw.add("kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total", counts.elections_from_eligible)
    raw.add("kafka_controller_kafkacontroller_lastappliedrecordoffset", counts.applied_offset)
    raw.add("kafka_controller_kafkacontroller_lastcommittedrecordoffset", counts.committed_offset)
    raw.add("kafka_controller_kafkacontroller_lastappliedrecordtimestamp", counts.applied_timestamp_ms)
    lag_ms = 0 if controller.controller.is_active else max(0, raft.wall.at(now_ms) - counts.applied_timestamp_ms)
    raw.add("kafka_controller_kafkacontroller_lastappliedrecordlagms", lag_ms)
    raw.add("kafka_controller_kafkacontroller_eventqueueoperationsstartedcount", counts.operations)
    raw.add("kafka_controller_kafkacontroller_eventqueueoperationstimedoutcount", 0)
    raw.add_times("kafka_controller_controllereventmanager_eventqueuetimems", counts.queue_times)
    raw.add_times("kafka_controller_controllereventmanager_eventqueueprocessingtimems", counts.processing_times)


def sample_features(raw: RawSamples, levels: Mapping[str, int]) -> None:
    """Sample the levels of the features that the metadata of this node has."""
    raw.add("kafka_server_metadataloader_currentmetadataversion", levels.get("metadata.version", 0))
    for feature, level in levels.items():
        raw.add("kafka_server_metadataloader_finalizedlevel", level, feature)


def sample_loaded_metadata(raft: KafkaRaftClient, raw: RawSamples, now_ms: int) -> None:
    """Sample what the broker of this node has got of the metadata log."""
    counts = raft.metrics
    timestamp_ms = counts.delivered_timestamp_ms
    if timestamp_ms >= 0:
        lag_ms = 0 if raft.is_leader else max(0, raft.wall.at(now_ms) - timestamp_ms)
        raw.add("kafka_server_broker_metadata_metrics_last_applied_record_timestamp", timestamp_ms)
        raw.add("kafka_server_broker_metadata_metrics_last_applied_record_lag_ms", lag_ms)
    raw.add("kafka_server_broker_metadata_metrics_ignored_static_voters", _ignores_static_voters(raft))
    raw.add("kafka_server_broker_metadata_metrics_metadata_load_error_count", 0)
    raw.add("kafka_server_broker_metadata_metrics_metadata_apply_error_count", 0)
    raw.add_times("kafka_server_brokermetadatalistener_metadatabatchsizes", counts.batch_sizes)


def _ignores_static_voters(raft: KafkaRaftClient) -> bool:
    return bool(raft.config.core.static_voters) and raft.core.history.kraft_version > 0


def sample_quorum(raft: KafkaRaftClient, raw: RawSamples, now_ms: int) -> None:
    """Sample a replica of the metadata log, of a voter or an observer."""
    voted, leader = raft.quorum.voted, raft.quorum.leader
    raw.add("kafka_server_raft_metrics_current_leader", raft.leader_id)
    raw.add(
        "kafka_server_raft_metrics_current_vote",
        raft.config.node_id if raft.is_leader else -1 if voted is None else voted.node_id,
    )
    raw.add("kafka_server_raft_metrics_current_epoch", raft.epoch)
    raw.add("kafka_server_raft_metrics_high_watermark", raft.core.high_watermark)
    raw.add("kafka_server_raft_metrics_log_end_offset", raft.log.end_offset)
    raw.add("kafka_server_raft_metrics_log_end_epoch", raft.log.last_epoch)
    raw.add("kafka_server_raft_metrics_number_of_voters", len(raft.voters))
    others = [voter.key.node_id for voter in raft.voters if voter.key.node_id != raft.config.node_id]
    unknown = sum(raft.core.voter_destination(node_id) is None for node_id in others)
    raw.add("kafka_server_raft_metrics_number_unknown_voter_connections", unknown)
    if leader is not None:
        raw.add("kafka_server_raft_metrics_number_of_observers", len(leader.observers))
        is_uncommitted = raft.core.history.voters_offset >= max(raft.core.high_watermark, 0)
        raw.add("kafka_server_raft_metrics_uncommitted_voter_change", is_uncommitted)
    raw.add("kafka_server_raft_metrics_append_records", raft.log.appended_records)
    raw.add("kafka_server_raft_metrics_fetch_records", raft.log.fetched_records)
    for name, latency in (("commit", raft.metrics.commits), ("election", raft.metrics.elections)):
        average_ms, most_ms = latency.take()
        raw.add(f"kafka_server_raft_metrics_{name}_latency_avg", average_ms)
        raw.add(f"kafka_server_raft_metrics_{name}_latency_max", most_ms)
    raw.add("kafka_server_metadataloader_currentcontrollerid", raft.leader_id)
    raw.add("kafka_server_metadataloader_handleloadsnapshotcount", raft.metrics.snapshots_loaded)
    raw.add("kafka_server_snapshotemitter_latestsnapshotgeneratedbytes", raft.metrics.snapshot_bytes)
    raw.add("kafka_server_snapshotemitter_latestsnapshotgeneratedagems", now_ms - raft.metrics.snapshot_made_ms)
