"""Protects elections on request, reassignments, features and configurations as the controller decides them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    API_KEYS,
    API_VERSIONS,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_REGISTRATION,
    CONTROLLER_REGISTRATION,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    ENVELOPE,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from kcli.protocol.message_errors import MessageError
from kcli.server.config import config_results
from kcli.server.config.loading import load_config
from kcli.server.controller.formatting import FormatPlan, format_directories
from kcli.server.events import Connection
from kcli.server.raft.messages import ReplicaKey
from kcli.state.metadata_values import ConfigResource, PartitionRegistration
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import START_MS, formatted

TOPIC, BROKER = 2, 4


def request(key: int, **fields: Any) -> Any:
    return API_KEYS[key].request.new(**fields)


def struct(key: int, name: str, /, **fields: Any) -> Any:
    return API_KEYS[key].request.classes[name](**fields)


def partition(node: ControllerNode, index: int = 0) -> PartitionRegistration:
    found = node.broker.image.topic("orders")
    assert found is not None
    return found.partitions[index]


# ----------------------------------------------------------------------------------------------------- leaders, moves


def elect(node: ControllerNode, kind: int, *topics: tuple[str, list[int]]) -> list[tuple[str, int, int]]:
    named = [struct(ELECT_LEADERS, "TopicPartitions", topic=name, partitions=indexes) for name, indexes in topics]
    response = node.ask(ELECT_LEADERS, request(ELECT_LEADERS, election_type=kind, topic_partitions=named or None))
    return [
        (topic.topic, result.partition_id, result.error_code)
        for topic in response.replica_election_results
        for result in topic.partition_result
    ]


def test_leaders_are_elected(node: ControllerNode) -> None:
    """Those that need none say so, unless all are asked for; what is not there and who is not there have codes."""
    node.register(2, 2)
    node.beat(2)
    node.create_topic("orders", 2, 2)
    assert elect(node, 0, ("orders", [0, 7]), ("absent", [0])) == [
        ("orders", 0, error_codes.ELECTION_NOT_NEEDED),
        ("orders", 7, error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        ("absent", 0, error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert elect(node, 0) == []
    node.run(6_000)
    node.beat(2)
    node.run(4_000)
    node.beat(2)
    assert partition(node).leader == partition(node, 1).leader == 2, "broker 1 was fenced"
    preferred = next(index for index in range(2) if partition(node, index).replicas[0] == 1)
    assert elect(node, 0) == [("orders", preferred, error_codes.PREFERRED_LEADER_NOT_AVAILABLE)]
    response = node.ask(ELECT_LEADERS, request(ELECT_LEADERS, election_type=5, topic_partitions=None))
    assert response.error_code == error_codes.INVALID_REQUEST


def move(node: ControllerNode, replicas: list[int] | None, name: str = "orders", **fields: Any) -> Any:
    asked = struct(ALTER_PARTITION_REASSIGNMENTS, "ReassignablePartition", partition_index=0, replicas=replicas)
    topic = struct(ALTER_PARTITION_REASSIGNMENTS, "ReassignableTopic", name=name, partitions=[asked])
    response = node.ask(ALTER_PARTITION_REASSIGNMENTS, request(ALTER_PARTITION_REASSIGNMENTS, topics=[topic], **fields))
    return response.responses[0].partitions[0].error_code


def moving(node: ControllerNode, **fields: Any) -> list[tuple[list[int], list[int], list[int]]]:
    response = node.ask(LIST_PARTITION_REASSIGNMENTS, request(LIST_PARTITION_REASSIGNMENTS, **fields))
    return [(one.replicas, one.adding_replicas, one.removing_replicas) for topic in response.topics for one in topic.partitions]


def test_partitions_may_be_moved_to_brokers_that_are_fenced(node: ControllerNode) -> None:
    """They move when these are back, as in Kafka (ReplicationControlManager.changePartitionReassignment)."""
    node.create_topic("orders")
    node.register(2, 2)
    assert node.broker.image.brokers[2].is_fenced
    assert move(node, [2]) == 0
    assert moving(node) == [([2, 1], [2], [1])]
    assert partition(node).leader == 1


def test_partitions_move_and_come_back(node: ControllerNode) -> None:
    """To another broker, listed while under way, and back; on one broker nothing can move."""
    node.create_topic("orders")
    assert move(node, [1]) == 0
    assert move(node, None) == error_codes.NO_REASSIGNMENT_IN_PROGRESS
    assert move(node, [2]) == error_codes.INVALID_REPLICA_ASSIGNMENT
    assert move(node, [1], "absent") == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    node.register(2, 2)
    node.beat(2)
    assert move(node, [1, 2], allow_replication_factor_change=False) == error_codes.INVALID_REPLICATION_FACTOR
    assert move(node, [2]) == 0
    assert moving(node) == moving(
        node,
        topics=[struct(LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignmentsTopics", name="orders", partition_indexes=[0])],
    )
    assert moving(node) == [([2, 1], [2], [1])]
    assert move(node, None) == 0
    assert moving(node) == []
    assert partition(node).replicas == [1]


def test_the_factor_of_a_reassignment_under_way_is_that_of_its_target(node: ControllerNode) -> None:
    """Without a change of the factor, what is compared is what the partition will have, not what it had before."""
    for broker_id in (2, 3):
        node.register(broker_id, broker_id)
        node.beat(broker_id)
    node.create_topic("orders", 1, 3)
    node.beat(3, want_fence=True)
    assert move(node, [3, 1]) == 0
    assert move(node, [1, 2, 3], allow_replication_factor_change=False) == error_codes.INVALID_REPLICATION_FACTOR
    assert move(node, [3, 2], allow_replication_factor_change=False) == 0


def test_a_reassignment_never_elects_the_replica_that_it_adds(node: ControllerNode) -> None:
    """Where unclean elections are allowed, too: the added replica is empty, and the one that is offline has the records."""
    node.register(2, 2)
    node.beat(2)
    node.create_topic("orders", 1, 2, unclean_leader_election_enable="true")
    assert move(node, [2]) == 0
    elect(node, 0)
    node.beat(2, want_fence=True)
    node.run(1)
    before = partition(node)
    assert (before.replicas, before.leader) == ([2], -1)
    assert move(node, [1, 2]) == 0
    assert moving(node) == [([1, 2], [1], [])]
    assert partition(node).leader == -1


def test_replicas_are_assigned_to_directories(node: ControllerNode) -> None:
    """What a broker says of its replicas is kept; a directory that is not online takes the broker out of the ISR."""
    node.create_topic("orders", 2)
    topic_id = node.broker.image.topic_ids["orders"]

    def assign(directory: Uuid, index: int, topic: Uuid = topic_id) -> int:
        key = ASSIGN_REPLICAS_TO_DIRS
        asked = struct(key, "PartitionData", partition_index=index)
        named = struct(key, "TopicData", topic_id=topic, partitions=[asked])
        told = struct(key, "DirectoryData", id=directory, topics=[named])
        epoch = node.core.state.image.brokers[1].broker_epoch
        response = node.ask(key, request(key, broker_id=1, broker_epoch=epoch, directories=[told]))
        return int(response.directories[0].topics[0].partitions[0].error_code)

    assert node.meta.directory_id is not None
    assert assign(node.meta.directory_id, 0) == 0
    assert assign(node.meta.directory_id, 9) == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(node.meta.directory_id, 0, Uuid(b"\7" * 16)) == error_codes.UNKNOWN_TOPIC_ID
    elsewhere = Uuid(b"\7" * 16)
    assert assign(elsewhere, 1) == 0
    assert (partition(node, 1).directories, partition(node, 1).leader) == ([elsewhere], -1)


# ------------------------------------------------------------------------------------------------------------ features


def update(node: ControllerNode, *updates: tuple[str, int, int], **fields: Any) -> tuple[int, str | None]:
    asked = [
        struct(UPDATE_FEATURES, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=upgrade_type)
        for name, level, upgrade_type in updates
    ]
    response = node.ask(UPDATE_FEATURES, request(UPDATE_FEATURES, feature_updates=asked, **fields))
    return response.error_code, response.error_message


def test_features_go_up_and_safely_down(node: ControllerNode) -> None:
    """Down only when asked for, up only without; never where metadata would be lost, nor beyond what all nodes support."""
    assert update(node, ("group.version", 0, 2)) == (0, None)
    assert "group.version" not in node.broker.image.features
    assert update(node, ("group.version", 1, 1), validate_only=True) == (0, None)
    assert "group.version" not in node.broker.image.features
    assert update(node, ("group.version", 1, 1), ("transaction.version", 2, 1)) == (0, None)
    for refused in (
        ("group.version", 0, 1),
        ("group.version", 2, 1),
        ("transaction.version", 2, 9),
        ("no.version", 1, 1),
        ("metadata.version", 29, 2),
        ("metadata.version", 29, 3),
        ("metadata.version", 34, 1),
        ("kraft.version", 0, 2),
    ):
        code, sentence = update(node, ("group.version", 1, 1), refused)
        assert code == error_codes.INVALID_UPDATE_VERSION, refused
        assert sentence
    assert node.broker.image.features["group.version"] == 1
    assert update(node, ("eligible.leader.replicas.version", 0, 2)) == (0, None)
    assert update(node, ("eligible.leader.replicas.version", 1, 1)) == (0, None)
    assert node.broker.image.configs[ConfigResource("BROKER", "")] == {"min.insync.replicas": "1"}


def test_the_levels_of_4_4(node: ControllerNode) -> None:
    """From 4.4-IV0 back to 4.3-IV0 no metadata is lost; 4.4-IV1 and 4.4-IV2 changed it (MetadataVersion.didMetadataChange)."""
    assert update(node, ("metadata.version", 31, 1), ("share.version", 2, 1)) == (0, None)
    assert update(node, ("metadata.version", 30, 2), ("share.version", 1, 2)) == (0, None)
    for level in (32, 33):
        assert update(node, ("metadata.version", level, 1)) == (0, None)
        for lower in range(30, level):
            assert update(node, ("metadata.version", lower, 2))[0] == error_codes.INVALID_UPDATE_VERSION
    assert node.broker.image.features["metadata.version"] == 33


@pytest.mark.parametrize("is_fenced", [False, True])
def test_each_node_must_support_a_level(node: ControllerNode, is_fenced: bool) -> None:
    """Brokers, fenced ones, too, and other controllers; what was refused is accepted when they are gone (KIP-584)."""
    made = API_KEYS[BROKER_REGISTRATION].request.classes["Feature"]
    kinds = {"metadata.version": (7, 30), "group.version": (0, 1), "share.version": (0, 1), "kraft.version": (0, 1)}
    kinds |= {"transaction.version": (0, 2), "eligible.leader.replicas.version": (0, 1), "streams.version": (0, 1)}
    old = [made(name=name, min_supported_version=low, max_supported_version=high) for name, (low, high) in kinds.items()]
    assert node.register(2, 2, features=old).error_code == 0
    node.beat(2, want_fence=is_fenced)
    registered = request(CONTROLLER_REGISTRATION, controller_id=3, incarnation_id=Uuid(b"\3" * 16))
    assert node.ask(CONTROLLER_REGISTRATION, registered).error_code == 0
    code, sentence = update(node, ("metadata.version", 31, 1))
    assert code == error_codes.INVALID_UPDATE_VERSION and "broker 2" in sentence
    assert node.ask(UNREGISTER_BROKER, request(UNREGISTER_BROKER, broker_id=2)).error_code == 0
    code, sentence = update(node, ("metadata.version", 31, 1))
    assert code == error_codes.INVALID_UPDATE_VERSION and "controller 3" in sentence, "it has stated no features"


def static_controller(directory: Path, metadata_version: int = 25) -> ControllerNode:
    """A controller of a static quorum whose metadata.version is that of 4.0."""
    features = {"metadata.version": metadata_version}
    plan = FormatPlan("kcliKcliKcliKcliKcliKg", 1, (str(directory),), str(directory), features)
    format_directories(OsDisk(), plan, random.Random(1).randbytes, START_MS)
    return ControllerNode(directory, "controller.quorum.voters=1@127.0.0.1:19093").start_with_broker()


def test_the_voters_of_a_static_quorum_must_be_registered(tmp_path: Path) -> None:
    """Before an upgrade: which levels another one supports is not known."""
    node = static_controller(tmp_path / "data")
    static = node.core.state.dynamic.static
    node.core.state.dynamic.static = load_config(None, ["node.id=1", "controller.quorum.voters=1@h:1,2@h:2"], serving=False)
    code, sentence = update(node, ("metadata.version", 30, 1))
    assert code == error_codes.INVALID_UPDATE_VERSION and "controller 2 has not registered" in sentence
    node.core.state.dynamic.static = static
    assert update(node, ("metadata.version", 30, 1)) == (0, None)


def test_the_quorum_becomes_dynamic_with_its_kraft_version(tmp_path: Path) -> None:
    """Before the other levels of the request, all of which wait for the disk; not to validate, not twice, and never back."""
    node = static_controller(tmp_path / "data")
    raft = node.core.raft
    assert update(node, ("kraft.version", 1, 1), ("metadata.version", 30, 1), validate_only=True) == (0, None)
    assert update(node, ("kraft.version", 1, 1), ("group.version", 7, 1))[0] == error_codes.INVALID_UPDATE_VERSION
    assert raft.core.history.kraft_version == 0
    first_offset = raft.next_offset
    assert update(node, ("metadata.version", 30, 1), ("kraft.version", 1, 1)) == (0, None)
    assert (raft.core.history.voters_offset, raft.next_offset) == (first_offset + 1, first_offset + 3)
    assert node.broker.image.features["metadata.version"] == 30
    assert node.broker.image.kraft_version == node.core.state.image.kraft_version == 1
    assert node.broker.image.voters[1].directory_id == node.meta.directory_id
    assert update(node, ("kraft.version", 1, 1)) == (0, None)
    for kind in (1, 2, 3):
        assert update(node, ("kraft.version", 0, kind))[0] == error_codes.INVALID_UPDATE_VERSION
    assert raft.next_offset == first_offset + 3
    node.stop()


def test_a_voter_needs_the_id_of_its_directory(tmp_path: Path) -> None:
    """A directory of before there were such ids: another id would be made for it, and it would be no voter any more."""
    node = static_controller(tmp_path / "data")
    config = node.core.raft.config
    node.core.raft.config = config._replace(core=config.core._replace(local=ReplicaKey(config.node_id)))
    end_offset = node.core.raft.next_offset
    code, sentence = update(node, ("kraft.version", 1, 1), ("metadata.version", 30, 1))
    assert (code, node.core.raft.next_offset) == (error_codes.INVALID_UPDATE_VERSION, end_offset)
    assert "meta.properties" in sentence
    node.stop()


# -------------------------------------------------------------------------------------------------------------- configs


def incremental(
    node: ControllerNode, *resources: tuple[int, str, list[tuple[str, int, str | None]]], **fields: Any
) -> list[int]:
    asked = [
        struct(
            INCREMENTAL_ALTER_CONFIGS,
            "AlterConfigsResource",
            resource_type=kind,
            resource_name=name,
            configs=[
                struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=key, config_operation=operation, value=value)
                for key, operation, value in configs
            ],
        )
        for kind, name, configs in resources
    ]
    response = node.ask(INCREMENTAL_ALTER_CONFIGS, request(INCREMENTAL_ALTER_CONFIGS, resources=asked, **fields))
    return [one.error_code for one in response.responses]


def test_configs_of_nodes(node: ControllerNode) -> None:
    """Brokers and controllers that are registered have some; what a broker forwards, it has checked itself."""
    registered = request(CONTROLLER_REGISTRATION, controller_id=3, incarnation_id=Uuid(b"\3" * 16))
    assert node.ask(CONTROLLER_REGISTRATION, registered).error_code == 0
    node.register(2, 2)
    changes = [(BROKER, name, [("log.retention.ms", 0, "99")]) for name in ("1", "2", "3", "7", "x")]
    codes = [0, 0, 0, error_codes.BROKER_ID_NOT_REGISTERED, error_codes.INVALID_REQUEST]
    assert incremental(node, *changes) == codes
    node.connection.is_forwarded = True
    assert incremental(node, *changes) == codes
    assert incremental(node, (BROKER, "2", [("log.retention.ms", 9, "99")])) == [error_codes.INVALID_REQUEST]
    wrong = (BROKER, "1", [("log.retention.ms", 0, "soon")])
    assert incremental(node, wrong) == [0]
    node.connection.is_forwarded = False
    assert incremental(node, wrong) == [error_codes.INVALID_REQUEST]


def test_configs_are_described_in_slices(node: ControllerNode) -> None:
    """As a broker describes them: by the image and this node's configuration; what cannot be is told beside the rest."""
    node.create_topic("orders", retention_ms="77")
    assert incremental(node, (BROKER, "", [("log.retention.ms", 0, "99")])) == [0]
    resources = [
        struct(DESCRIBE_CONFIGS, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((TOPIC, "orders"), (BROKER, "1"), (BROKER, ""), (TOPIC, "absent"), (BROKER, "7"))
    ]
    asked = request(DESCRIBE_CONFIGS, resources=resources, include_synonyms=True)
    answers = node.send(DESCRIBE_CONFIGS, asked)
    assert answers == [], "a broker has more keys than a slice"
    node.run()
    assert len(answers) == 1
    results = node.ask(DESCRIBE_CONFIGS, asked).results
    assert [result.error_code for result in results] == [
        *[error_codes.NONE] * 3, error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.INVALID_REQUEST
    ]  # fmt: skip
    topic, own, cluster = ({config.name: config for config in result.configs} for result in results[:3])
    shown = topic["retention.ms"]
    assert [(one.name, one.value) for one in shown.synonyms][:2] == [("retention.ms", "77"), ("log.retention.ms", "99")]
    assert (own["log.retention.ms"].value, own["node.id"].value) == ("99", "1")
    assert cluster["log.retention.ms"].value == "99"


def test_a_fault_in_describing_ends_one_connection(node: ControllerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an answer would pass for a whole one."""
    resource = struct(DESCRIBE_CONFIGS, "DescribeConfigsResource", resource_type=BROKER, resource_name="1")
    answers = node.send(DESCRIBE_CONFIGS, request(DESCRIBE_CONFIGS, resources=[resource, resource]))
    monkeypatch.setattr(config_results, "describe", lambda *args: 1 // 0)
    node.run()
    assert answers == [None]
    assert "a fault of kcli in serving DescribeConfigs" in node.lines[-1]


def test_configs_change_resource_by_resource(node: ControllerNode) -> None:
    """What is valid of a request is done; defaults of new topics follow those of all brokers."""
    node.create_topic("orders")
    codes = incremental(
        node,
        (TOPIC, "orders", [("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")]),
        (TOPIC, "absent", [("retention.ms", 0, "5")]),
        (BROKER, "", [("num.partitions", 0, "3")]),
        (BROKER, "", [("log.retention.ms", 0, "7")]),
    )
    assert codes == [0, error_codes.UNKNOWN_TOPIC_OR_PARTITION, *[error_codes.INVALID_REQUEST] * 2]
    assert node.broker.image.configs[ConfigResource("TOPIC", "orders")] == {
        "retention.ms": "5",
        "cleanup.policy": "delete,compact",
    }
    assert incremental(node, (BROKER, "", [("log.retention.ms", 0, "7")]), validate_only=True) == [0]
    assert incremental(node, (BROKER, "", [("log.retention.ms", 0, "7")])) == [0]
    made = {config.name: config for config in node.create_topic("more").configs}
    assert (made["retention.ms"].value, made["retention.ms"].config_source) == ("7", 3)
    assert incremental(node, (TOPIC, "orders", [("retention.ms", 0, "soon")])) == [error_codes.INVALID_CONFIG]


def test_configs_are_replaced(node: ControllerNode) -> None:
    """AlterConfigs takes away what it does not name."""
    node.create_topic("orders", retention_ms="5", segment_ms="7000")
    config = struct(ALTER_CONFIGS, "AlterableConfig", name="retention.bytes", value="9")
    resource = struct(ALTER_CONFIGS, "AlterConfigsResource", resource_type=TOPIC, resource_name="orders", configs=[config])
    assert node.ask(ALTER_CONFIGS, request(ALTER_CONFIGS, resources=[resource])).responses[0].error_code == 0
    assert node.broker.image.configs[ConfigResource("TOPIC", "orders")] == {"retention.bytes": "9"}


# ------------------------------------------------------------------------------------------------------------ the quorum


def test_the_quorum_is_described(node: ControllerNode) -> None:
    """Leader, epoch, high watermark and voters; another partition is unknown."""
    key = DESCRIBE_QUORUM
    asked = struct(
        key, "TopicData", topic_name="__cluster_metadata", partitions=[struct(key, "PartitionData", partition_index=0)]
    )
    response = node.ask(key, request(key, topics=[asked]))
    (told,) = response.topics[0].partitions
    assert (told.leader_id, told.leader_epoch, told.high_watermark) == (1, 1, node.core.raft.high_watermark)
    assert [(voter.replica_id, voter.replica_directory_id) for voter in told.current_voters] == [(1, node.meta.directory_id)]
    assert [(one.name, one.port) for one in response.nodes[0].listeners] == [("CONTROLLER", 19093)]
    asked.topic_name = "orders"
    response = node.ask(key, request(key, topics=[asked]))
    assert response.topics[0].partitions[0].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


CLIENT = {"client_software_name": "test", "client_software_version": "1"}


def test_the_controller_says_what_it_serves(node: ControllerNode) -> None:
    """Exactly what it answers, and Envelope, which the node opens; an unknown version of ApiVersions gets version 0."""
    response = node.ask(API_VERSIONS, request(API_VERSIONS, **CLIENT), 4)
    served = {one.api_key for one in response.api_keys}
    assert {feature.name: feature.max_version_level for feature in response.finalized_features}["kraft.version"] == 1
    assert ENVELOPE in served
    for key in (API_KEYS.keys() - served) | {ENVELOPE}:
        with pytest.raises(MessageError, match="does not serve"):
            node.send(key, request(key))
    assert node.ask(DESCRIBE_CLUSTER, request(DESCRIBE_CLUSTER, endpoint_type=2)).brokers == []  # not with this listener
    node.connection = Connection(2, "CONTROLLER", "127.0.0.1")
    response = node.ask(DESCRIBE_CLUSTER, request(DESCRIBE_CLUSTER, endpoint_type=2))
    assert [(one.broker_id, one.port) for one in response.brokers] == [(1, 19093)]
    assert (response.endpoint_type, response.controller_id, response.cluster_authorized_operations) == (2, 1, -(2**31))
    may = node.ask(DESCRIBE_CLUSTER, request(DESCRIBE_CLUSTER, endpoint_type=2, include_cluster_authorized_operations=True))
    assert may.cluster_authorized_operations == 8096  # of Kafka without an authorizer
    codes = [
        node.ask(DESCRIBE_CLUSTER, request(DESCRIBE_CLUSTER, endpoint_type=kind), version).error_code
        for version, kind in ((1, 1), (2, 3), (0, 1))
    ]
    assert codes == [
        error_codes.MISMATCHED_ENDPOINT_TYPE,
        error_codes.UNSUPPORTED_ENDPOINT_TYPE,
        error_codes.INVALID_REQUEST,  # version 0 does not have the endpoint type, and its clients not the error
    ]


@pytest.mark.parametrize("level", [None, 14])
def test_a_controller_without_registrations_does_not_describe_the_others(node: ControllerNode, level: int | None) -> None:
    """Below metadata.version 3.7-IV0, and while a controller that starts does not know it: UNSUPPORTED_VERSION, as Kafka's."""
    features = node.core.state.image.features
    del features["metadata.version"]
    features.update({} if level is None else {"metadata.version": level})
    answer = node.ask(DESCRIBE_CLUSTER, request(DESCRIBE_CLUSTER, endpoint_type=2))
    assert (answer.error_code, answer.brokers) == (error_codes.UNSUPPORTED_VERSION, [])


def test_features_that_begin_at_0_are_left_out_for_older_clients(node: ControllerNode) -> None:
    """KAFKA-17492, as on a broker's listener: version 3 must not show another range than the real one."""
    ranges = {
        version: {
            feature.name: (feature.min_version, feature.max_version)
            for feature in node.ask(API_VERSIONS, request(API_VERSIONS, **CLIENT), version).supported_features
        }
        for version in (3, 4)
    }
    assert ranges[3] == {name: levels for name, levels in ranges[4].items() if levels[0] > 0}
    assert "metadata.version" in ranges[3] and ranges[4]["kraft.version"] == (0, 1)


@pytest.mark.parametrize(("idle", "count"), [("500", 5), ("0", 0)])
def test_an_idle_log_moves(tmp_path: Path, idle: str, count: int) -> None:
    """A NoOp record each half second without others; none where that is switched off."""
    node = ControllerNode(formatted(tmp_path / "data"), f"metadata.max.idle.interval.ms={idle}").start_with_broker()
    before = node.core.raft.next_offset
    node.run(2_600)
    assert node.core.raft.next_offset == before + count
    node.stop()


def test_who_does_not_lead_decides_nothing(node: ControllerNode) -> None:
    """After the disk failed: NOT_CONTROLLER to those that wait and to those that ask."""
    from kcli.protocol.apis import CREATE_TOPICS
    from kcli.server.events import Flushed

    create = API_KEYS[CREATE_TOPICS].request
    topic = create.classes["CreatableTopic"](name="orders", num_partitions=1, replication_factor=1)
    answers = node.send(CREATE_TOPICS, create.new(topics=[topic]))
    effect = node.effects.pop(0)
    node.flushes.flushed(Flushed(effect.flush_id, OSError(5, "Input/output error")), node.now_ms)  # type: ignore[union-attr]
    assert len(answers) == 1
    assert answers[0] is not None
    response, _ = API_KEYS[CREATE_TOPICS].response.decode(answers[0][9:], 7)
    assert response.topics[0].error_code == error_codes.NOT_CONTROLLER
    assert node.create_topic("more").error_code == error_codes.NOT_CONTROLLER
    assert node.broker.image.topic("orders") is None
