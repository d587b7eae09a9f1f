"""DeleteRecords: the log start offset of partitions raised; what lies below is gone for readers at once.

    offset                                     answered with
    -----------------------------------------  -------------------------------------------------------------------------
    -1                                         the high watermark is the new log start offset
    from 0 up to the high watermark            low watermark: the log start offset, which never falls
    above the high watermark, or below -1      OFFSET_OUT_OF_RANGE
    of an internal topic                       INVALID_TOPIC_EXCEPTION
    of a topic that is only compacted          POLICY_VIOLATION: the cleaner needs what lies below

The files are removed by retention. The low watermark is the least log start offset of all replicas: with one replica, which
is this one, nobody has to be waited for.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.log.append_errors import OffsetOutOfRangeError
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import SliceBudget, answer_in_slices
from kcli.server.replication.partition import PartitionError
from kcli.state.topic_names import INTERNAL_TOPICS

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1
_DELETE_US = 15


def handle_delete_records(context: RequestContext, request: Message) -> Message | None:
    """Answer a DeleteRecordsRequest, in slices where it names many partitions."""
    response = context.new("DeleteRecordsResponse")
    answer_in_slices(context, _delete_all(context, request, response.topics), response)
    return None


def _delete_all(context: RequestContext, request: Message, topics: list[Message]) -> Iterator[None]:
    budget = SliceBudget()
    for topic in request.topics:
        code = _refusal(context, topic.name)
        # As in Kafka, the last of those that name a partition counts.
        offsets = {wanted.partition_index: wanted.offset for wanted in topic.partitions}
        partitions: list[Message] = []
        topics.append(context.new("DeleteRecordsTopicResult", name=topic.name, partitions=partitions))
        for index, offset in offsets.items():
            answer = context.new("DeleteRecordsPartitionResult", partition_index=index, low_watermark=INVALID_LOW_WATERMARK)
            partitions.append(answer)
            if code:
                answer.error_code = code
            else:
                _delete(context, topic.name, offset, answer)
                if budget.is_spent(_DELETE_US):
                    yield


def _refusal(context: RequestContext, topic: str) -> int:
    if not context.is_allowed("DELETE", "TOPIC", topic):
        return error_codes.TOPIC_AUTHORIZATION_FAILED
    if topic not in context.broker.metadata.image.topic_ids:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if topic in INTERNAL_TOPICS:
        return error_codes.INVALID_TOPIC_EXCEPTION
    return error_codes.NONE


def _delete(context: RequestContext, topic: str, offset: int, answer: Message) -> None:
    partition = context.broker.replica_manager.partition(topic, answer.partition_index)
    if partition is None:
        answer.error_code = context.broker.replica_manager.missing_partition_code(topic, answer.partition_index)
        return
    try:
        log = partition.leader_log()
        if log.config.cleanup_policy == {"compact"}:
            answer.error_code = error_codes.POLICY_VIOLATION
            return
        if offset == HIGH_WATERMARK:
            offset = log.high_watermark
        if offset < 0:
            raise OffsetOutOfRangeError(f"{topic}-{answer.partition_index} has no offset {offset}")
        log.maybe_increment_log_start_offset(offset)
        answer.low_watermark = log.log_start_offset
    except OffsetOutOfRangeError:
        answer.error_code = error_codes.OFFSET_OUT_OF_RANGE
    except PartitionError as error:
        answer.error_code = error.code
    except OSError as error:
        answer.error_code = error_codes.KAFKA_STORAGE_ERROR
        context.broker.replica_manager.handle_log_dir_failure(partition, error)
