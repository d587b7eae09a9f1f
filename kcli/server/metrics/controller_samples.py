"""What a controller and its replica of the metadata quorum tell of themselves, in Kafka's names.

Elections, missed heartbeats and faults count since the process began, while this node leads; commit latencies are of the
commits since they were last asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.server.controller.controller_server import ControllerServer
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.state.metadata_values import BrokerRegistration

Tell = Callable[..., None]

# Kafka's states of a registration.
_FENCED, _IN_CONTROLLED_SHUTDOWN, _ACTIVE = 10, 20, 30


def sample_controller(controller: ControllerServer, tell: Tell, now_ms: int) -> None:
    """Read a controller."""
    _sample_brokers(controller, tell, now_ms)
    _sample_topics(controller, tell)
    _sample_decisions(controller, tell, now_ms)
    _sample_quorum(controller.raft, tell)


def _sample_brokers(controller: ControllerServer, tell: Tell, now_ms: int) -> None:
    brokers, sessions = controller.state.image.brokers, controller.state.sessions
    fenced = sum(broker.is_fenced for broker in brokers.values())
    leaving = sum(broker.is_in_controlled_shutdown for broker in brokers.values())
    tell("kafka_controller_kafkacontroller_activebrokercount", len(brokers) - fenced)
    tell("kafka_controller_kafkacontroller_fencedbrokercount", fenced)
    tell("kafka_controller_kafkacontroller_controlledshutdownbrokercount", leaving)
    for broker_id, broker in brokers.items():
        tell("kafka_controller_kafkacontroller_brokerregistrationstate", _state(broker), str(broker_id))
    if controller.controller.is_active:
        for broker_id, session in sessions.items():
            silent_ms = now_ms - session.last_heartbeat_ms
            tell("kafka_controller_kafkacontroller_timesincelastheartbeatreceivedms", silent_ms, str(broker_id))


def _state(broker: BrokerRegistration) -> int:
    if broker.is_fenced:
        return _FENCED
    return _IN_CONTROLLED_SHUTDOWN if broker.is_in_controlled_shutdown else _ACTIVE


def _sample_topics(controller: ControllerServer, tell: Tell) -> None:
    image = controller.state.image
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


def _sample_decisions(controller: ControllerServer, tell: Tell, now_ms: int) -> None:
    raft, counts = controller.raft, controller.controller.metrics
    tell("kafka_controller_kafkacontroller_activecontrollercount", raft.is_leader)
    tell("kafka_controller_kafkacontroller_newactivecontrollerscount", counts.new_leaders)
    tell("kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount", counts.timed_out_heartbeats)
    tell("kafka_controller_kafkacontroller_metadataerrorcount", counts.metadata_errors)
    tell("kafka_controller_controllerstats_uncleanleaderelections_total", counts.unclean_elections)
    tell("kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total", counts.elections_from_eligible)
    tell("kafka_controller_kafkacontroller_lastappliedrecordoffset", raft.high_watermark - 1)
    tell("kafka_controller_kafkacontroller_lastcommittedrecordoffset", raft.high_watermark - 1)
    tell_delivered(raft, tell, now_ms, "kafka_controller_kafkacontroller_lastappliedrecord{}", joined=True)


def tell_delivered(raft: KafkaRaftClient, tell: Tell, now_ms: int, name: str, *, joined: bool = False) -> None:
    """When the last batch that was handed to the listeners was appended; how long ago, where this node does not lead."""
    if raft.delivered_timestamp_ms < 0:
        return
    tell(name.format("timestamp"), raft.delivered_timestamp_ms)
    tell(
        name.format("lagms" if joined else "lag_ms"),
        0 if raft.is_leader else max(0, raft.wall.at(now_ms) - raft.delivered_timestamp_ms),
    )


def _sample_quorum(raft: KafkaRaftClient, tell: Tell) -> None:
    quorum, history = raft.quorum, raft.history
    is_ignored = bool(raft.config.static_voters) and history.kraft_version > 0
    tell("kafka_controller_kafkacontroller_ignoredstaticvoters", is_ignored)
    tell("kafka_server_broker_metadata_metrics_ignored_static_voters", is_ignored)
    tell("kafka_server_raft_metrics_current_leader", raft.leader_id)
    tell("kafka_server_raft_metrics_current_vote", raft.config.node_id if raft.is_leader else quorum.voted_id)
    tell("kafka_server_raft_metrics_current_epoch", raft.epoch)
    tell("kafka_server_raft_metrics_high_watermark", raft.high_watermark)
    tell("kafka_server_raft_metrics_log_end_offset", raft.log.end_offset)
    tell("kafka_server_raft_metrics_log_end_epoch", raft.log.last_epoch)
    tell("kafka_server_raft_metrics_number_of_voters", len(history.voters))
    tell("kafka_server_raft_metrics_number_of_observers", 0)
    times = raft.commit_times.take()
    if times is not None:
        tell("kafka_server_raft_metrics_commit_latency_avg", times[0])
        tell("kafka_server_raft_metrics_commit_latency_max", times[1])
