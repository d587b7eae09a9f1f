"""DescribeQuorum: leader, epoch, high watermark, and the voters with the ends of their logs (KIP-595, KIP-853)."""

from __future__ import annotations

from kcli.format.file_names import METADATA_TOPIC
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_QUORUM
from kcli.protocol.message import Message
from kcli.server.raft.kafka_raft_client import KafkaRaftClient


def describe_quorum(request: Message, raft: KafkaRaftClient, now_ms: int) -> Message:
    """Answer DescribeQuorum, which only the leader can."""
    api = API_KEYS[DESCRIBE_QUORUM]
    classes = api.response.classes
    asked = [(topic.topic_name, [part.partition_index for part in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        return _unknown_partitions(asked)
    if not raft.is_leader:
        return api.response.new(
            error_code=error_codes.NOT_LEADER_OR_FOLLOWER, error_message="this node is not the leader of the metadata quorum"
        )
    wall_ms = raft.wall.at(now_ms)
    voters = []
    for voter in raft.history.voters.values():
        is_self = voter.voter_id == raft.config.node_id
        state = classes["ReplicaState"](
            replica_id=voter.voter_id,
            replica_directory_id=voter.directory_id,
            log_end_offset=raft.next_offset if is_self else -1,
            last_fetch_timestamp=wall_ms if is_self else -1,
            last_caught_up_timestamp=wall_ms if is_self else -1,
        )
        voters.append(state)
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
