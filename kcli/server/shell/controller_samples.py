"""The metrics of a controller and of its replica of the metadata quorum, by Kafka's names.

Elections, missed heartbeats and faults are counted since the start of the process, while this node leads; commit latencies are
those of the commits since the last scrape.
"""

from __future__ import annotations

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
    _sample_quorum(controller.raft, raw)


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
    raw.add("kafka_controller_kafkacontroller_activecontrollercount", raft.is_leader)
    raw.add("kafka_controller_kafkacontroller_newactivecontrollerscount", counts.new_leaders)
    raw.add("kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount", counts.timed_out_heartbeats)
    raw.add("kafka_controller_kafkacontroller_metadataerrorcount", counts.metadata_errors)
    raw.add("kafka_controller_controllerstats_uncleanleaderelections_total", counts.unclean_elections)
    raw.add("kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total", counts.elections_from_eligible)
    raw.add("kafka_controller_kafkacontroller_lastappliedrecordoffset", raft.high_watermark - 1)
    raw.add("kafka_controller_kafkacontroller_lastcommittedrecordoffset", raft.high_watermark - 1)
    add_delivered(raft, raw, now_ms, "kafka_controller_kafkacontroller_lastappliedrecord{}", joined=True)


def add_delivered(raft: KafkaRaftClient, raw: RawSamples, now_ms: int, name: str, *, joined: bool = False) -> None:
    """Add when the last delivered batch was appended, and how long ago; 0 on the leader."""
    if raft.delivered_timestamp_ms < 0:
        return
    raw.add(name.format("timestamp"), raft.delivered_timestamp_ms)
    raw.add(
        name.format("lagms" if joined else "lag_ms"),
        0 if raft.is_leader else max(0, raft.wall.at(now_ms) - raft.delivered_timestamp_ms),
    )


def _sample_quorum(raft: KafkaRaftClient, raw: RawSamples) -> None:
    voted, leader = raft.quorum.voted, raft.quorum.leader
    is_ignored = bool(raft.config.core.static_voters) and raft.core.history.kraft_version > 0
    raw.add("kafka_controller_kafkacontroller_ignoredstaticvoters", is_ignored)
    raw.add("kafka_server_broker_metadata_metrics_ignored_static_voters", is_ignored)
    raw.add("kafka_server_raft_metrics_current_leader", raft.leader_id)
    raw.add(
        "kafka_server_raft_metrics_current_vote",
        raft.config.node_id if raft.is_leader else -1 if voted is None else voted.node_id,
    )
    raw.add("kafka_server_raft_metrics_current_epoch", raft.epoch)
    raw.add("kafka_server_raft_metrics_high_watermark", raft.high_watermark)
    raw.add("kafka_server_raft_metrics_log_end_offset", raft.log.end_offset)
    raw.add("kafka_server_raft_metrics_log_end_epoch", raft.log.last_epoch)
    raw.add("kafka_server_raft_metrics_number_of_voters", len(raft.voters))
    raw.add("kafka_server_raft_metrics_number_of_observers", 0 if leader is None else len(leader.observers))
    times = raft.commit_times.take()
    if times is not None:
        raw.add("kafka_server_raft_metrics_commit_latency_avg", times[0])
        raw.add("kafka_server_raft_metrics_commit_latency_max", times[1])
