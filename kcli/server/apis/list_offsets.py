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

A search that inflates a batch or reads through much of a segment is a Compute effect, and the answer waits for it. The log may
change while it runs: what was found counts by the state of the log afterwards, and where the file is gone the search begins
anew, up to MAX_SEARCHES times; then the client has to ask again (NOT_LEADER_OR_FOLLOWER).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from kcli.log.disk import Disk
from kcli.log.time_lookup import LongScanError, SegmentScan, TimestampAndOffset
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import PARTITION_US, SliceBudget, in_slices
from kcli.server.replication.partition import Partition, PartitionError

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


MAX_SEARCHES = 3


def handle_list_offsets(context: RequestContext, request: Message) -> None:
    """Answer a ListOffsetsRequest, after a while where it asks for the times of many partitions, or of large batches."""
    answer = _ListOffsets(context, request)
    in_slices(context, answer.answer_all(), answer.search_next, context.now_ms)


class _Search:
    """A search that is to be done beside the loop, of one partition's part of the answer."""

    __slots__ = ("answer", "scan", "searches", "topic", "wanted")

    def __init__(self, topic: str, wanted: Message, answer: Message) -> None:
        self.topic = topic
        self.wanted = wanted
        self.answer = answer
        self.scan: SegmentScan | None = None
        self.searches = 0


class _ListOffsets:
    """One ListOffsets under way."""

    def __init__(self, context: RequestContext, request: Message) -> None:
        self._context = context
        self._request = request
        self._response = context.new("ListOffsetsResponse")
        self._searches: list[_Search] = []

    def answer_all(self) -> Iterator[None]:
        """Answer each partition, or note that it has to be searched; a step is a slice."""
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
                    # The special times but one are at hand; the others are looked up in files.
                    if budget.is_spent(_LOOKUP_US if _is_lookup(wanted) else PARTITION_US):
                        yield

    def search_next(self, now_ms: int) -> None:
        """Do one of the searches beside the loop; respond when there is none left."""
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
        """Fill in a partition's answer, or put it to those that have to be searched."""
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
            answer.error_code = error.code
        except OSError as error:
            self._failed(search, partition, error)

    def _searched(self, search: _Search, result: TimestampAndOffset | OSError | None) -> None:
        """Take what was found beside the loop, if the log still has it."""
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
            search.answer.error_code = error.code

    def _partition(self, search: _Search) -> Partition | None:
        broker, index = self._context.broker, search.wanted.partition_index
        partition: Partition | None = broker.replica_manager.partition(search.topic, index)
        if partition is None:
            search.answer.error_code = broker.replica_manager.missing_partition_code(search.topic, index)
        return partition

    def _limit(self, log: UnifiedLog) -> int:
        return log.last_stable_offset if self._request.isolation_level == _READ_COMMITTED else log.high_watermark

    def _found(self, search: _Search, partition: Partition, found: tuple[int, int, int] | None) -> None:
        log = partition.leader_log(search.wanted.current_leader_epoch)
        if found is None or (_is_lookup(search.wanted) and found[1] >= self._limit(log)):
            found = _NONE
        answer = search.answer
        answer.timestamp, answer.offset, epoch = found
        if self._context.version >= LEADER_EPOCH_VERSION:
            answer.leader_epoch = epoch

    def _failed(self, search: _Search, partition: Partition, error: OSError) -> None:
        search.answer.error_code = error_codes.KAFKA_STORAGE_ERROR
        self._context.broker.replica_manager.handle_log_dir_failure(partition, error)


def _is_lookup(wanted: Message) -> bool:
    """Whether records are searched for; the other times are known."""
    return bool(wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP)


def _special(log: UnifiedLog, timestamp: int, limit_offset: int, leader_epoch: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) of a time that needs no search."""
    if timestamp == LATEST:
        return -1, limit_offset, leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return -1, log.log_start_offset, -1 if epoch is None else epoch
    return _NONE


def _run(scan: SegmentScan, disk: Disk) -> TimestampAndOffset | Exception | None:
    """Search beside the loop, where nothing may be raised."""
    try:
        return scan.run(disk)
    except Exception as error:
        return error
