"""DescribeQuorum: leader, epoch, high watermark, and the voters with the ends of their logs (KIP-595, KIP-853).

Version 2 has the directory ids of replicas and the endpoints of voters, too.
"""

from __future__ import annotations

from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_QUORUM
from kcli.protocol.message import Message
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.leader_state import ReplicaProgress

IDS_VERSION = 2


def describe_quorum(request: Message, version: int, raft: KafkaRaftClient, now_ms: int) -> Message:
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
    leader = raft.quorum.leader
    assert leader is not None
    leader.forget_observers(raft.config.core.observer_session_ms, now_ms)
    partition = classes["PartitionData"](
        partition_index=0,
        error_code=error_codes.NONE,
        leader_id=raft.leader_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        current_voters=[_replica_state(version, raft, leader.voters[node_id], now_ms) for node_id in sorted(leader.voters)],
        observers=[_replica_state(version, raft, leader.observers[key], now_ms) for key in sorted(leader.observers)],
    )
    nodes = [
        classes["Node"](
            node_id=voter.key.node_id,
            listeners=[classes["Listener"](name=at.listener, host=at.host, port=at.port) for at in voter.endpoints],
        )
        for voter in raft.voters
    ]
    topic = classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])
    return api.response.new(topics=[topic], nodes=nodes if version >= IDS_VERSION else [])


def _replica_state(version: int, raft: KafkaRaftClient, progress: ReplicaProgress, now_ms: int) -> Message:
    """Return how far a replica is; times are -1 if it has not fetched. The leader itself is at its end, now."""
    struct = API_KEYS[DESCRIBE_QUORUM].response.classes["ReplicaState"]
    end_offset, times = progress.end_offset, (progress.last_fetch_ms, progress.last_caught_up_ms)
    if progress.key.node_id == raft.config.node_id:
        end_offset, times = raft.next_offset, (now_ms, now_ms)
    fetched_ms, caught_up_ms = (at_ms if at_ms < 0 else raft.wall.at(at_ms) for at_ms in times)
    return struct(
        replica_id=progress.key.node_id,
        replica_directory_id=progress.key.directory_id if version >= IDS_VERSION else ZERO_UUID,
        log_end_offset=end_offset,
        last_fetch_timestamp=fetched_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


def _unknown_partitions(asked: list[tuple[str, list[int]]]) -> Message:
    api = API_KEYS[DESCRIBE_QUORUM]
    classes = api.response.classes
    code, text = error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_TOPIC}-0 is replicated by a quorum"
    topics = []
    for name, indexes in asked:
        partitions = [classes["PartitionData"](partition_index=index, error_code=code, error_message=text) for index in indexes]
        topics.append(classes["TopicData"](topic_name=name, partitions=partitions))
    return api.response.new(topics=topics)
