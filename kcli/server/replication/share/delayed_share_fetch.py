"""A share fetch that reads the log, and waits until there is enough to acquire (Kafka: DelayedShareFetch, ShareFetchUtils).

    answered when                                                      with
    -----------------------------------------------------------------  -------------------------------------------------------
    min_bytes can be read from the partitions that have records to     what can be acquired of them
      acquire; or one of them cannot be read
    max_wait_ms are over                                               what can be acquired then
    max_wait_ms is 0, and the states of share partitions that were     what can be acquired then
      being read are there, or LOAD_WAIT_MS are over

A partition has records to acquire if some in flight are available, or fewer are in flight than its limit. max_bytes are
divided evenly among these partitions; the first one with records returns at least one batch. The answer has whole batches of
the log, from the one with the first acquired record to the one with the last, as regions of files: records never pass through
Python, only the headers of batches are read. An answer has records of at most as many partitions as files may be used together
(FileCache.max_held). If it waits for acknowledgements, records whose file was closed since are read again (`read_again`).

If the log start offset has passed the next fetch offset, the share partition follows it, and the answer is empty: the client
asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import RecordBatch
from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.local_log import FetchDataInfo
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.server.events import FileRegion
from kcli.server.replication.partition import PartitionError
from kcli.server.replication.purgatory import DelayedOperation
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.share.acknowledgement import ShareError
from kcli.server.replication.share.acquisition import AcquiredRecords, AcquireRequest, FetchedBatch
from kcli.server.replication.share.share_partition import SharePartition, ShareStatus
from kcli.server.replication.share.share_session import ShareTarget

# How long a fetch with max_wait_ms=0 waits for the states of share partitions that are being read. In Kafka such a fetch waits
# for its own expiration by a timer, and the states are usually there before.
LOAD_WAIT_MS = 100


class ShareFetchParams(NamedTuple):
    """What a member asks for; `targets` has the partitions in the order of their reads, with the names of their topics."""

    group_id: str
    member_id: str
    targets: list[tuple[ShareTarget, str]]
    acquire_mode: int
    batch_size: int
    max_records: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool


class ShareFetchResult(NamedTuple):
    """The answer for one partition."""

    error: ShareError | None = None
    records: FileRegion | None = None
    acquired: tuple[AcquiredRecords, ...] = ()


class _Read(NamedTuple):
    """What was read of a partition: `data`, or an error."""

    target: ShareTarget
    partition: SharePartition
    fetch_offset: int
    log: UnifiedLog | None = None
    data: FetchDataInfo | None = None
    is_enough: bool = False
    error: ShareError | None = None


Results = dict[ShareTarget, ShareFetchResult]


class DelayedShareFetch(DelayedOperation):
    """One share fetch. `errors` are those of partitions that are not read; `done(results, now_ms)` answers."""

    __slots__ = ("_done", "_failed", "_params", "_partitions", "_reads", "_replica_manager", "errors")

    def __init__(
        self,
        params: ShareFetchParams,
        partitions: dict[ShareTarget, SharePartition],
        errors: dict[ShareTarget, ShareError],
        replica_manager: ReplicaManager,
        done: Callable[[Results, int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.errors = errors
        self._params = params
        self._partitions = partitions
        self._replica_manager = replica_manager
        self._done = done
        self._failed = failed
        self._reads: list[_Read] | None = None

    def can_complete(self, now_ms: int) -> bool:
        """Return whether enough can be acquired now, or a partition cannot be read, or nothing is to be waited for."""
        if self._params.max_wait_ms <= 0:
            return not any(found.status is ShareStatus.INITIALIZING for found in self._partitions.values())
        reads = self._read_all()
        if not reads:
            return False
        size = sum(read.data.size for read in reads if read.data is not None)
        if size < self._params.min_bytes and not any(read.is_enough or read.error is not None for read in reads):
            return False
        self._reads = reads
        return True

    def on_complete(self, now_ms: int) -> None:
        """Acquire records of what was read, and answer."""
        reads, self._reads = self._reads, None
        self._done(self._acquire_all(self._read_all() if reads is None else reads), now_ms)

    def failed(self, error: Exception) -> None:
        """End the request after an exception."""
        self._failed(error)

    # ------------------------------------------------------------------------------------------------------------ read

    def _read_all(self) -> list[_Read]:
        """Read the partitions that have records to acquire."""
        found = [
            (target, partition)
            for target, partition in self._partitions.items()
            if target not in self.errors and partition.can_acquire
        ]
        if not found:
            return []
        left_bytes, is_first = self._params.max_bytes, True
        share, rest = divmod(left_bytes, len(found))
        reads: list[_Read] = []
        left_files = self._replica_manager.log_manager.files.max_held
        for slot, (target, partition) in enumerate(found):
            if not left_files:
                # The next fetch of the session begins with another partition.
                reads[-1] = reads[-1]._replace(is_enough=True)
                break
            max_bytes = share + rest if slot == 0 and share else share or int(slot < left_bytes)
            read = self._read(target, partition, min(max_bytes, left_bytes), is_first=is_first)
            if read.data is not None and read.data.size:
                is_first = False
                left_files -= 1
                left_bytes = max(0, left_bytes - read.data.size)
            reads.append(read)
        return reads

    def _read(self, target: ShareTarget, partition: SharePartition, max_bytes: int, *, is_first: bool) -> _Read:
        fetch_offset = partition.records.next_fetch_offset()
        hosted = self._replica_manager.partition(partition.topic, target[1])
        if hosted is None:
            code = self._replica_manager.missing_partition_code(partition.topic, target[1])
            return _Read(target, partition, fetch_offset, error=ShareError(code, "this broker does not host the partition"))
        try:
            log = hosted.leader_log()
            limit_offset = log.last_stable_offset if self._params.is_read_committed else log.high_watermark
            data = log.read(fetch_offset, max_bytes, limit_offset=limit_offset, min_one_message=is_first)
        except OffsetOutOfRangeError as error:
            found = ShareError(error_codes.OFFSET_OUT_OF_RANGE, str(error))
            return _Read(target, partition, fetch_offset, log, error=found)
        except PartitionError as error:
            return _Read(target, partition, fetch_offset, error=ShareError(error.code, str(error)))
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(hosted, error)
            return _Read(target, partition, fetch_offset, error=ShareError(error_codes.KAFKA_STORAGE_ERROR, str(error)))
        # What ends at the end of an older segment, or at max_bytes, is not waited with.
        return _Read(target, partition, fetch_offset, log, data, is_enough=0 <= data.end_offset < limit_offset)

    # --------------------------------------------------------------------------------------------------------- acquire

    def _acquire_all(self, reads: list[_Read]) -> Results:
        results: Results = {}
        left = self._params.max_records
        for read in reads:
            if read.error is not None and read.error.code == error_codes.OFFSET_OUT_OF_RANGE and read.log is not None:
                read.partition.log_start_moved(read.log.log_start_offset)
                results[read.target] = ShareFetchResult()
            elif read.error is not None:
                results[read.target] = ShareFetchResult(read.error)
            else:
                result = results[read.target] = self._acquire(read, left)
                left -= sum(found.last_offset - found.first_offset + 1 for found in result.acquired)
        for target, error in self.errors.items():
            results[target] = ShareFetchResult(error)
        return results

    def _acquire(self, read: _Read, max_records: int) -> ShareFetchResult:
        params, data, log = self._params, read.data, read.log
        if data is None or log is None or not data.size or max_records <= 0:
            return ShareFetchResult()
        batches = _headers(data, max(read.partition.records.end_offset, read.fetch_offset) + max_records)
        aborted = log.aborted_transactions(read.fetch_offset, data.end_offset) if params.is_read_committed else []
        request = AcquireRequest(params.member_id, params.acquire_mode, params.batch_size, max_records, read.fetch_offset)
        acquired = read.partition.acquire(request, batches, aborted)
        if not acquired:
            return ShareFetchResult()
        return ShareFetchResult(None, _region(data, batches, acquired), tuple(acquired))


def read_again(log: UnifiedLog, acquired: Sequence[AcquiredRecords]) -> FileRegion | None:
    """Return the region of acquired records whose file was closed since they were read; None if they are deleted.

    They may be in another file, or elsewhere in it, if the segment was cleaned.
    """
    first_offset, last_offset = max(acquired[0].first_offset, log.log_start_offset), acquired[-1].last_offset
    if first_offset > last_offset:
        return None
    data = log.read(first_offset, INT32_MAX, limit_offset=log.high_watermark)
    return _region(data, _headers(data, last_offset), acquired) if data.size else None


def _headers(data: FetchDataInfo, last_wanted: int) -> list[FetchedBatch]:
    """Return the headers of the batches that were read, up to the first one above the last offset that may be acquired."""
    found: list[FetchedBatch] = []
    assert data.file is not None
    for header in HeaderReader(data.file, data.position, data.position + data.size).headers():
        if isinstance(header, RecordBatch):
            batch = FetchedBatch(
                header.position,
                header.end_position,
                header.base_offset,
                header.last_offset,
                header.producer_id,
                header.is_transactional,
                header.is_control,
            )
        else:
            batch = FetchedBatch(header.position, header.end_position, header.base_offset, header.last_offset)
        found.append(batch)
        if batch.base_offset > last_wanted:
            break
    return found


def _region(data: FetchDataInfo, batches: list[FetchedBatch], acquired: Sequence[AcquiredRecords]) -> FileRegion:
    """Return the bytes of the batches from the first acquired record to the last."""
    assert data.file is not None
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    start, end = data.position, data.position + data.size if len(batches) == 1 else batches[-1].end_position
    for batch in batches[1:]:
        if batch.base_offset <= first_offset:
            start = batch.position
        elif batch.base_offset > last_offset:
            end = batch.position
            break
    return FileRegion(data.file, start, end - start)
