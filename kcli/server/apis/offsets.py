"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: offsets by time, by leader epoch, and the log start offset.

timestamp  since  ListOffsets answers the offset (read committed: not beyond the last stable offset)
---------  -----  --------------------------------------------------------------------------------------------------
>= 0       1      of the first record at or after that time; none: -1
-1         1      latest: the high watermark, or the last stable offset
-2         1      earliest: the log start offset
-3         7      of the record with the largest timestamp (KIP-734)
-4         8      earliest local (KIP-405): without tiered storage the log start offset
-5         9      latest tiered: without tiered storage -1
-6         11     earliest pending upload: without tiered storage -1

A client that asks for the latest offset, or for a time after which no record is below that offset, gets OFFSET_NOT_AVAILABLE
while the high watermark is below the begin of the leader epoch (before version 5 LEADER_NOT_AVAILABLE; KIP-207): after a crash,
with flush.messages, until the records that were recovered are flushed.

Any other timestamp below 0: UNSUPPORTED_VERSION. A partition that is asked for twice is answered once, with INVALID_REQUEST.
A search that inflates a batch or reads through much of a segment is a Compute effect, and the answer waits for it. The log may
change while it runs: the result is compared with the log afterwards, and if the file is deleted the search begins again, up to
MAX_SEARCHES times; then the client has to ask again (NOT_LEADER_OR_FOLLOWER).

leader epoch asked for             OffsetForLeaderEpoch answers
---------------------------------  ------------------------------------------------------------------------------
a known one                        it, and the offset after its last record (of the latest: the log end)
one without records                the next lower one with records, and where that ended
an unknown one, -1                 epoch -1, offset -1

A follower (`replica_id` of 0 or more) needs CLUSTER_ACTION, or else what a client needs, DESCRIBE on the topic. To ListOffsets
of a follower the latest offset is the log end.

offset of DeleteRecords            answered with
---------------------------------  -------------------------------------------------------------------------------
-1                                 the high watermark becomes the log start offset
0 up to the high watermark         low watermark: the log start offset, which never decreases
above it, or below -1              OFFSET_OUT_OF_RANGE
of an internal topic               INVALID_TOPIC_EXCEPTION
of a topic that is only compacted  POLICY_VIOLATION: the cleaner needs the records below

Readers no longer see the deleted records; retention removes the files. The low watermark is the lowest log start offset of all
replicas on brokers that are not fenced. The answer waits until it has reached the offset, for timeout_ms at most
(REQUEST_TIMED_OUT), as long as this broker leads (NOT_LEADER_OR_FOLLOWER).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from kcli.log.disk.port import Disk
from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.time_lookup import LongScanError, SegmentScan, TimestampAndOffset
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import PARTITION_US, RequestContext
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation
from kcli.server.scheduler import SliceBudget
from kcli.state.topic_names import INTERNAL_TOPICS

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version in which each may be asked for.
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
# From this version on the answer has the leader epoch.
LEADER_EPOCH_VERSION = 4
# Before this version clients do not know OFFSET_NOT_AVAILABLE.
NOT_AVAILABLE_VERSION = 5
_NO_REPLICA = -1  # the replica_id of a client
_READ_COMMITTED = 1
_NONE = (-1, -1, -1)
_LOOKUP_US = 100  # of a time, in files
_DELETE_US = 15
MAX_SEARCHES = 3
_TO_HIGH_WATERMARK = -1  # as the offset of DeleteRecords
_NO_LOW_WATERMARK = -1


def handle_list_offsets(context: RequestContext, request: Message) -> None:
    """Answer a ListOffsetsRequest, later if it asks for the times of many partitions, or of large batches."""
    answer = _ListOffsets(context, request)
    context.run(answer.answer_all(), answer.search_next, context.now_ms)


class _Search:
    """A search outside the event loop for one partition's part of the answer."""

    __slots__ = ("answer", "scan", "searches", "topic", "wanted")

    def __init__(self, topic: str, wanted: Message, answer: Message) -> None:
        self.topic = topic
        self.wanted = wanted
        self.answer = answer
        self.scan: SegmentScan | None = None
        self.searches = 0


class _ListOffsets:
    """One ListOffsets that is being handled."""

    def __init__(self, context: RequestContext, request: Message) -> None:
        self._context = context
        self._request = request
        self._response = context.new("ListOffsetsResponse")
        self._searches: list[_Search] = []

    def answer_all(self) -> Iterator[None]:
        """Answer each partition, or add it to the searches; a step is a slice."""
        context, budget = self._context, SliceBudget()
        for topic in self._request.topics:
            is_allowed = context.is_allowed("DESCRIBE", "TOPIC", topic.name)
            by_index = {wanted.partition_index: wanted for wanted in topic.partitions}
            counts = Counter(wanted.partition_index for wanted in topic.partitions)
            partitions: list[Message] = []
            self._response.topics.append(context.new("ListOffsetsTopicResponse", name=topic.name, partitions=partitions))
            for index, wanted in by_index.items():
                answer = context.new("ListOffsetsPartitionResponse", partition_index=index, error_code=0)
                partitions.append(answer)
                if not is_allowed:
                    answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
                elif counts[index] > 1:
                    answer.error_code = error_codes.INVALID_REQUEST
                else:
                    self._answer(_Search(topic.name, wanted, answer))
                    # All special times but MAX_TIMESTAMP are known; the other times are looked up in files.
                    if budget.is_spent(_LOOKUP_US if _is_lookup(wanted) else PARTITION_US):
                        yield

    def search_next(self, now_ms: int) -> None:
        """Run one of the searches outside the event loop; respond when none is left."""
        context = self._context
        if not self._searches:
            context.respond(self._response)
            return
        search = self._searches.pop()

        def searched(result: TimestampAndOffset | Exception | None, now_ms: int) -> None:
            try:
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    raise result
                self._searched(search, result)
                self.search_next(now_ms)
            except Exception as error:
                context.failed(error)

        assert search.scan is not None
        context.broker.computations.compute(partial(_run, search.scan, context.broker.disk), searched)

    def _answer(self, search: _Search) -> None:
        """Fill in the answer of a partition, or add it to the searches."""
        answer, wanted = search.answer, search.wanted
        if wanted.timestamp < 0 and self._context.version < _SINCE.get(wanted.timestamp, self._context.version + 1):
            answer.error_code = error_codes.UNSUPPORTED_VERSION
            return
        partition = self._partition(search)
        if partition is None:
            return
        try:
            log = partition.leader_log(wanted.current_leader_epoch)
            if not _is_lookup(wanted):
                self._found(search, partition, _special(log, wanted.timestamp, self._limit(log), partition.leader_epoch))
                return
            scan = log.scan_for_largest() if wanted.timestamp == MAX_TIMESTAMP else log.scan_by_time(wanted.timestamp)
            search.scan = scan
            self._found(search, partition, None if scan is None else scan.run(self._context.broker.disk, is_hurried=True))
        except LongScanError:
            self._searches.append(search)
        except PartitionError as error:
            answer.error_code = self._code_of(error)
        except OSError as error:
            self._failed(search, partition, error)

    def _searched(self, search: _Search, result: TimestampAndOffset | OSError | None) -> None:
        """Answer with the result of a search, if the log still has the file and the offset."""
        partition = self._partition(search)
        if partition is None:
            return
        try:
            log, scan = partition.leader_log(search.wanted.current_leader_epoch), search.scan
            assert scan is not None
            is_there = any(
                segment.log_path == scan.path and segment.size_bytes >= scan.end for segment in log.local_log().segments
            )
            if is_there and isinstance(result, OSError):
                self._failed(search, partition, result)
            elif is_there and not (isinstance(result, TimestampAndOffset) and result.offset < log.log_start_offset):
                assert not isinstance(result, OSError)
                self._found(search, partition, result)
            elif search.searches < MAX_SEARCHES:
                search.searches += 1
                self._answer(search)
            else:
                search.answer.error_code = error_codes.NOT_LEADER_OR_FOLLOWER
        except PartitionError as error:
            search.answer.error_code = self._code_of(error)

    def _code_of(self, error: PartitionError) -> int:
        is_unknown = error.code == error_codes.OFFSET_NOT_AVAILABLE and self._context.version < NOT_AVAILABLE_VERSION
        return error_codes.LEADER_NOT_AVAILABLE if is_unknown else error.code

    def _partition(self, search: _Search) -> Partition | None:
        broker, index = self._context.broker, search.wanted.partition_index
        partition: Partition | None = broker.replica_manager.partition(search.topic, index)
        if partition is None:
            search.answer.error_code = broker.replica_manager.missing_partition_code(search.topic, index)
        return partition

    def _limit(self, log: UnifiedLog) -> int:
        if self._request.replica_id != _NO_REPLICA:
            return log.log_end_offset
        return log.last_stable_offset if self._request.isolation_level == _READ_COMMITTED else log.high_watermark

    def _found(self, search: _Search, partition: Partition, found: tuple[int, int, int] | None) -> None:
        log = partition.leader_log(search.wanted.current_leader_epoch)
        is_lookup = _is_lookup(search.wanted)
        if found is None or (is_lookup and found[1] >= self._limit(log)):
            found = _NONE
        if self._request.replica_id == _NO_REPLICA and (search.wanted.timestamp == LATEST or (is_lookup and found is _NONE)):
            partition.check_end_is_known(log)
        answer = search.answer
        answer.timestamp, answer.offset, epoch = found
        if self._context.version >= LEADER_EPOCH_VERSION:
            answer.leader_epoch = epoch

    def _failed(self, search: _Search, partition: Partition, error: OSError) -> None:
        search.answer.error_code = error_codes.KAFKA_STORAGE_ERROR
        self._context.broker.replica_manager.handle_log_dir_failure(partition, error)


def _is_lookup(wanted: Message) -> bool:
    """Return whether records are searched for that time; the other times are known."""
    return bool(wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP)


def _special(log: UnifiedLog, timestamp: int, limit_offset: int, leader_epoch: int) -> tuple[int, int, int]:
    """Return (timestamp, offset, leader epoch) of a time that needs no search."""
    if timestamp == LATEST:
        return -1, limit_offset, leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return -1, log.log_start_offset, -1 if epoch is None else epoch
    return _NONE


def _run(scan: SegmentScan, disk: Disk) -> TimestampAndOffset | Exception | None:
    """Search outside the event loop; an exception is returned, because none may be raised there."""
    try:
        return scan.run(disk)
    except Exception as error:
        return error


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
                _answer_epoch(context, topic.topic, wanted, answer)
            else:
                answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
        topics.append(context.new("OffsetForLeaderTopicResult", topic=topic.topic, partitions=partitions))
    return context.new("OffsetForLeaderEpochResponse", topics=topics)


def _answer_epoch(context: RequestContext, topic: str, wanted: Message, answer: Message) -> None:
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


# A partition, the offset that its low watermark must reach, its part of the response.
_Deleting = tuple[Partition, int, Message]


class _DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords that waits until all replicas have deleted the records."""

    __slots__ = ("_context", "_response", "_waiting")

    def __init__(self, context: RequestContext, response: Message, waiting: list[_Deleting]) -> None:
        super().__init__()
        self._context = context
        self._response = response
        self._waiting = waiting

    def can_complete(self, now_ms: int) -> bool:
        """Return whether all low watermarks have reached the offsets, or no longer can."""
        self._waiting = [entry for entry in self._waiting if self._waits(*entry)]
        return not self._waiting

    @staticmethod
    def _waits(partition: Partition, offset: int, answer: Message) -> bool:
        try:
            answer.low_watermark = partition.low_watermark(partition.leader_log())
        except PartitionError as error:
            answer.error_code, answer.low_watermark = error.code, _NO_LOW_WATERMARK
            return False
        return bool(answer.low_watermark < offset)

    def on_complete(self, now_ms: int) -> None:
        """Answer; the partitions that still wait have timed out."""
        for _, _, answer in self._waiting:
            answer.error_code = error_codes.REQUEST_TIMED_OUT
        self._context.respond(self._response)

    def failed(self, error: Exception) -> None:
        """End the request after an exception."""
        self._context.failed(error)


def handle_delete_records(context: RequestContext, request: Message) -> None:
    """Answer a DeleteRecordsRequest when all replicas have deleted the records; it is done in slices for many partitions."""
    response = context.new("DeleteRecordsResponse")
    waiting: list[_Deleting] = []

    def deleted(now_ms: int) -> None:
        delayed = _DelayedDeleteRecords(context, response, waiting)
        keys, deadline_ms = [partition.key for partition, _, _ in waiting], now_ms + max(0, request.timeout_ms)
        context.broker.replica_manager.delete_purgatory.try_complete_else_watch(delayed, keys, deadline_ms, now_ms)

    context.run(_delete_all(context, request, response.topics, waiting), deleted, context.now_ms)


def _delete_all(context: RequestContext, request: Message, topics: list[Message], waiting: list[_Deleting]) -> Iterator[None]:
    budget = SliceBudget()
    for topic in request.topics:
        code = _delete_refusal(context, topic.name)
        # As in Kafka, the last offset for a partition counts.
        offsets = {wanted.partition_index: wanted.offset for wanted in topic.partitions}
        partitions: list[Message] = []
        topics.append(context.new("DeleteRecordsTopicResult", name=topic.name, partitions=partitions))
        for index, offset in offsets.items():
            answer = context.new("DeleteRecordsPartitionResult", partition_index=index, low_watermark=_NO_LOW_WATERMARK)
            partitions.append(answer)
            if code:
                answer.error_code = code
            else:
                _delete_records(context, topic.name, offset, answer, waiting)
                if budget.is_spent(_DELETE_US):
                    yield


def _delete_refusal(context: RequestContext, topic: str) -> int:
    if not context.is_allowed("DELETE", "TOPIC", topic):
        return error_codes.TOPIC_AUTHORIZATION_FAILED
    if topic not in context.broker.metadata.image.topic_ids:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if topic in INTERNAL_TOPICS:
        return error_codes.INVALID_TOPIC_EXCEPTION
    return error_codes.NONE


def _delete_records(context: RequestContext, topic: str, offset: int, answer: Message, waiting: list[_Deleting]) -> None:
    partition = context.broker.replica_manager.partition(topic, answer.partition_index)
    if partition is None:
        answer.error_code = context.broker.replica_manager.missing_partition_code(topic, answer.partition_index)
        return
    try:
        log = partition.leader_log()
        if log.config.cleanup_policy == {"compact"}:
            answer.error_code = error_codes.POLICY_VIOLATION
            return
        if offset == _TO_HIGH_WATERMARK:
            offset = log.high_watermark
        if offset < 0:
            raise OffsetOutOfRangeError(f"{topic}-{answer.partition_index} has no offset {offset}")
        log.maybe_increment_log_start_offset(offset)
        waiting.append((partition, offset, answer))
    except OffsetOutOfRangeError:
        answer.error_code = error_codes.OFFSET_OUT_OF_RANGE
    except PartitionError as error:
        answer.error_code = error.code
    except OSError as error:
        answer.error_code = error_codes.KAFKA_STORAGE_ERROR
        context.broker.replica_manager.handle_log_dir_failure(partition, error)
