"""OffsetForLeaderEpoch: where a leader epoch ended in a partition's log, so that a reader can tell whether it read the same.

    asked for                          answered with
    ---------------------------------  ------------------------------------------------------------------------------
    an epoch that is known             it, and the offset behind its last record (of the latest: the log's end)
    one that wrote nothing             the next lower one that did, and where that ended
    one that is not known (yet), -1    epoch -1, offset -1

A follower (`replica_id` of 0 or more) asks as part of the cluster: CLUSTER_ACTION is what it needs, or else what a client
needs, DESCRIBE on the topic.
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.replication.partition import PartitionError


def handle_offset_for_leader_epoch(context: RequestContext, request: Message) -> Message:
    """Answer an OffsetForLeaderEpochRequest."""
    is_follower = request.replica_id >= 0 and context.is_allowed("CLUSTER_ACTION", "CLUSTER")
    topics = []
    for topic in request.topics:
        is_allowed = is_follower or context.is_allowed("DESCRIBE", "TOPIC", topic.topic)
        partitions = []
        for wanted in topic.partitions:
            answer = context.new("EpochEndOffset", partition=wanted.partition)
            partitions.append(answer)
            if is_allowed:
                _answer(context, topic.topic, wanted, answer)
            else:
                answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
        topics.append(context.new("OffsetForLeaderTopicResult", topic=topic.topic, partitions=partitions))
    return context.new("OffsetForLeaderEpochResponse", topics=topics)


def _answer(context: RequestContext, topic: str, wanted: Message, answer: Message) -> None:
    partition = context.broker.replica_manager.partition(topic, wanted.partition)
    if partition is None:
        answer.error_code = context.broker.replica_manager.missing_partition_code(topic, wanted.partition)
        return
    try:
        log = partition.leader_log(wanted.current_leader_epoch)
    except PartitionError as error:
        answer.error_code = error.code
        return
    answer.leader_epoch, answer.end_offset = log.leader_epochs.end_offset_for(wanted.leader_epoch, log.log_end_offset)
