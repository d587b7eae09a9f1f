"""ListOffsets: the offset that belongs to a time, or to one of the special times.

timestamp  since  offset (read committed: not beyond the last stable offset)
---------  -----  --------------------------------------------------------------------------------------------------
>= 0       1      of the first record at or after that time; none: -1
-1         1      latest: the high watermark, or the last stable offset
-2         1      earliest: the log start offset
-3         7      of the record with the largest timestamp (KIP-734)
-4         8      earliest local (KIP-405): without tiered storage the log start offset
-5         9      latest tiered: without tiered storage -1
-6         11     earliest pending upload: without tiered storage -1

Any other below 0: UNSUPPORTED_VERSION. A partition that is asked for twice is answered once, with INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import PARTITION_US, Pace, answer_in_slices
from kcli.server.replication.partition import PartitionError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version from which on each may be asked for.
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
# From this version on the leader epoch is answered; in older ones the message cannot carry it.
LEADER_EPOCH_VERSION = 4
_READ_COMMITTED = 1
_NONE = (-1, -1, -1)
_LOOKUP_US = 100  # of a time, in files


def handle_list_offsets(context: RequestContext, request: Message) -> None:
    """Answer a ListOffsetsRequest, after a while where it asks for the times of many partitions."""
    response = context.new("ListOffsetsResponse")
    answer_in_slices(context, _answer_all(context, request, response.topics), response)


def _answer_all(context: RequestContext, request: Message, topics: list[Message]) -> Iterator[None]:
    pace = Pace()
    for topic in request.topics:
        is_allowed = context.is_allowed("DESCRIBE", "TOPIC", topic.name)
        by_index = {wanted.partition_index: wanted for wanted in topic.partitions}
        counts = Counter(wanted.partition_index for wanted in topic.partitions)
        partitions: list[Message] = []
        topics.append(context.new("ListOffsetsTopicResponse", name=topic.name, partitions=partitions))
        for index, wanted in by_index.items():
            answer = context.new("ListOffsetsPartitionResponse", partition_index=index, error_code=0)
            partitions.append(answer)
            if not is_allowed:
                answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            elif counts[index] > 1:
                answer.error_code = error_codes.INVALID_REQUEST
            else:
                _answer(context, request, topic.name, wanted, answer)
                # The special times but one are at hand; the others are looked up in files.
                is_lookup = wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP
                if pace.is_due(_LOOKUP_US if is_lookup else PARTITION_US):
                    yield


def _answer(context: RequestContext, request: Message, topic: str, wanted: Message, answer: Message) -> None:
    if wanted.timestamp < 0 and context.version < _SINCE.get(wanted.timestamp, context.version + 1):
        answer.error_code = error_codes.UNSUPPORTED_VERSION
        return
    partition = context.broker.partition(topic, wanted.partition_index)
    if partition is None:
        answer.error_code = context.broker.missing_partition_code(topic, wanted.partition_index)
        return
    try:
        log = partition.leader_log(wanted.current_leader_epoch)
        limit_offset = log.last_stable_offset if request.isolation_level == _READ_COMMITTED else log.high_watermark
        answer.timestamp, answer.offset, epoch = _offset(log, wanted.timestamp, limit_offset, partition.leader_epoch)
        if context.version >= LEADER_EPOCH_VERSION:
            answer.leader_epoch = epoch
    except PartitionError as error:
        answer.error_code = error.code
    except OSError as error:
        answer.error_code = error_codes.KAFKA_STORAGE_ERROR
        context.broker.storage_failed(partition, error)


def _offset(log: UnifiedLog, timestamp: int, limit_offset: int, leader_epoch: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) of what is asked for."""
    if timestamp == LATEST:
        return -1, limit_offset, leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return -1, log.log_start_offset, -1 if epoch is None else epoch
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NONE
    found = log.offset_for_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= limit_offset:
        return _NONE
    return found
