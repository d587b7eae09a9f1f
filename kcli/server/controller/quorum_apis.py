"""What a controller answers about itself and the cluster: DescribeCluster and DescribeQuorum on its listener.

API              answered from
---------------  --------------------------------------------------------------------------------------------
DescribeCluster  the registered controllers (endpoint type 2); brokers must be asked for brokers (KIP-919)
DescribeQuorum   the raft client: leader, epoch, high watermark, voters with their log ends (KIP-595, KIP-853)
"""

from __future__ import annotations

from kcli.format.file_names import METADATA_TOPIC
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, DESCRIBE_QUORUM
from kcli.protocol.message import Message
from kcli.server.controller.raft_client import RaftClient
from kcli.state.metadata_image import MetadataImage

CONTROLLER_ENDPOINTS = 2


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


def describe_quorum(request: Message, raft: RaftClient, now_ms: int) -> Message:
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
