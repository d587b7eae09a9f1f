"""What a controller tells of itself and of the cluster: ApiVersions, DescribeCluster, DescribeQuorum on its listener.

API              answered from
---------------  --------------------------------------------------------------------------------------------
ApiVersions      the table of what the controller serves; the features of the image, its epoch the log's offset
DescribeCluster  the registered controllers (endpoint type 2); brokers must be asked for brokers (KIP-919)
DescribeQuorum   the raft client: leader, epoch, high watermark, voters with their log ends (KIP-595, KIP-853)
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.format.file_names import METADATA_TOPIC
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, DESCRIBE_CLUSTER, DESCRIBE_QUORUM
from kcli.protocol.message import Message
from kcli.server.controller.features import KRAFT_VERSION, supported_features
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.state.metadata_image import MetadataImage

CONTROLLER_ENDPOINTS = 2
_FEATURES_SINCE = 3
_FEATURES_FROM_ZERO_SINCE = 4


def describe_api_versions(version: int, served: Iterable[int], image: MetadataImage, epoch: int) -> Message:
    """The answer to ApiVersions; version 0 with an error where the version asked for is not known."""
    api = API_KEYS[API_VERSIONS]
    classes = api.response.classes
    is_known = api.lowest_version <= version <= api.highest_version
    listed = sorted(served) if is_known else [API_VERSIONS]
    response = api.response.new(
        error_code=error_codes.NONE if is_known else error_codes.UNSUPPORTED_VERSION,
        api_keys=[
            classes["ApiVersion"](
                api_key=key,
                min_version=API_KEYS[key].lowest_version,
                max_version=API_KEYS[key].highest_version - API_KEYS[key].is_latest_unstable,
            )
            for key in listed
        ],
    )
    if is_known and version >= _FEATURES_SINCE:
        first = 0 if version >= _FEATURES_FROM_ZERO_SINCE else 1
        response.supported_features = [
            classes["SupportedFeatureKey"](name=name, min_version=levels.lowest, max_version=levels.highest)
            for name, levels in supported_features().items()
            if levels.lowest >= first  # KAFKA-17492: an older client may fail to read a range that begins at 0
        ]
        finalized = dict(image.features)
        if image.kraft_version > 0:
            finalized[KRAFT_VERSION] = image.kraft_version
        response.finalized_features_epoch = epoch
        response.finalized_features = [
            classes["FinalizedFeatureKey"](name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.items()
        ]
    return response


def describe_cluster(request: Message, image: MetadataImage, cluster_id: str, leader_id: int, listener: str) -> Message:
    """The answer to DescribeCluster on a controller's listener."""
    api = API_KEYS[DESCRIBE_CLUSTER]
    if request.endpoint_type != CONTROLLER_ENDPOINTS:
        return api.response.new(
            error_code=error_codes.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a controller: it can be asked for controllers only (--bootstrap-controller)",
            cluster_id=cluster_id,
        )
    made = api.response.classes["DescribeClusterBroker"]
    nodes = []
    for controller in image.controllers.values():
        at = controller.endpoints.get(listener) or next(iter(controller.endpoints.values()), None)
        if at is not None:
            nodes.append(made(broker_id=controller.controller_id, host=at.host, port=at.port))
    return api.response.new(endpoint_type=CONTROLLER_ENDPOINTS, cluster_id=cluster_id, controller_id=leader_id, brokers=nodes)


def describe_quorum(request: Message, raft: KafkaRaftClient, now_ms: int) -> Message:
    """The answer to DescribeQuorum, which only the leader can give."""
    api = API_KEYS[DESCRIBE_QUORUM]
    classes = api.response.classes
    asked = [(topic.topic_name, [part.partition_index for part in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        return _unknown_partitions(asked)
    if not raft.is_leader:
        return api.response.new(
            error_code=error_codes.NOT_LEADER_OR_FOLLOWER, error_message="this node does not lead the quorum"
        )
    voters = [
        classes["ReplicaState"](
            replica_id=voter.voter_id,
            replica_directory_id=voter.directory_id,
            log_end_offset=raft.next_offset if voter.voter_id == raft.config.node_id else -1,
            last_fetch_timestamp=raft.wall.at(now_ms) if voter.voter_id == raft.config.node_id else -1,
            last_caught_up_timestamp=raft.wall.at(now_ms) if voter.voter_id == raft.config.node_id else -1,
        )
        for voter in raft.history.voters.values()
    ]
    partition = classes["PartitionData"](
        partition_index=0,
        error_code=error_codes.NONE,
        leader_id=raft.leader_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        current_voters=voters,
    )
    nodes = [
        classes["Node"](
            node_id=voter.voter_id,
            listeners=[classes["Listener"](name=name, host=host, port=port) for name, (host, port) in voter.endpoints.items()],
        )
        for voter in raft.history.voters.values()
    ]
    topic = classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])
    return api.response.new(topics=[topic], nodes=nodes)


def _unknown_partitions(asked: list[tuple[str, list[int]]]) -> Message:
    api = API_KEYS[DESCRIBE_QUORUM]
    classes = api.response.classes
    code, text = error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_TOPIC}-0 is replicated by a quorum"
    topics = []
    for name, indexes in asked:
        partitions = [classes["PartitionData"](partition_index=index, error_code=code, error_message=text) for index in indexes]
        topics.append(classes["TopicData"](topic_name=name, partitions=partitions))
    return api.response.new(topics=topics)
