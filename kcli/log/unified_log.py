"""The log of one partition, live: append, read, roll, cut, close (Kafka: UnifiedLog, LocalLog).

    offset               meaning
    -------------------  ------------------------------------------------------------------------------------------------
    log_start_offset     the first that may be read; raised by retention and DeleteRecords
    recovery_point       all below is on the device; a recovery begins there
    high_watermark       all below is committed: what consumers may read; never below the start, never behind the end
    last_stable_offset   all below is decided: what consumers of isolation read_committed may read
    log_end_offset       the offset that the next record gets

The producer's bytes are patched in place (base offset and leader epoch, which lie before the CRC's range), and written by one
append to the active segment. Nothing is flushed here: `unflushed_paths` tells what a flush has to take.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct

from kcli.format.record_batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES
from kcli.log.append_errors import (
    InvalidRecordsError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    UnexpectedAppendOffsetError,
)
from kcli.log.disk import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.leader_epoch_cache import LeaderEpochCache
from kcli.log.live_segment import LiveSegment
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_directory import join_path
from kcli.log.log_slices import EMPTY_SLICE, AppendInfo, LogSlice
from kcli.log.log_validator import AppendOrigin, ValidBatch, check_batch, whole_batch
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.segment_appender import SegmentAppender

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_LEADER_EPOCH_AT = HEADER.offset_of("partition_leader_epoch")
# Where reads ended, of so many readers of a partition.
READ_HINTS = 16


class UnifiedLog:
    """One partition's log; `directory` is its path. Methods raise OSError as the disk does.

    It is made by kcli.log.log_opener.open_log.
    """

    __slots__ = (
        "_active",
        "_disk",
        "_files",
        "_hints",
        "_segments",
        "config",
        "directory",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        disk: LogDisk,
        files: FileCache,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        segments: list[LiveSegment],
        active: SegmentAppender,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochCache,
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        topic_id: bytes | None = None,
    ) -> None:
        self._disk = disk
        self._files = files
        self._segments = segments
        self._active = active
        self._hints: dict[int, tuple[LiveSegment, int]] | None = None
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark = log_start_offset

    def __repr__(self) -> str:
        return f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    # ------------------------------------------------------------------------------------------------------- the offsets

    @property
    def last_stable_offset(self) -> int:
        """All below is decided."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def first_base_offset(self) -> int:
        """Where the first segment begins: at the log start offset or before it."""
        return self._segments[0].base_offset

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark; it is kept within [log start offset, log end offset]."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.producers.on_high_watermark(self.high_watermark)

    # --------------------------------------------------------------------------------------------------------- appending

    def append_as_leader(
        self, records: memoryview, leader_epoch: int, now_ms: int, *, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Check a batch, give it offsets and append it; `records` is writable and patched in place. Raises AppendError."""
        size = whole_batch(records)
        if not size:
            raise InvalidRecordsError("the records hold no whole batch")
        batch = check_batch(records, size, self.config, origin)
        if len(records) > size and whole_batch(records, size):
            raise InvalidRecordsError("the records hold more than one batch")
        first_offset = self.log_end_offset
        last_offset = first_offset + batch.last_offset_delta
        _BASE_OFFSET.pack_into(batch.data, 0, first_offset)
        _LEADER_EPOCH.pack_into(batch.data, _LEADER_EPOCH_AT, leader_epoch)
        self._append([batch], first_offset, last_offset, leader_epoch, now_ms)
        append_time = now_ms if self.config.message_timestamp_type == LOG_APPEND_TIME else -1
        return AppendInfo(
            first_offset,
            last_offset,
            batch.max_timestamp,
            append_time,
            self.log_start_offset,
            leader_epoch,
            False,
            size,
            batch.record_count,
        )

    def append_as_follower(self, records: memoryview, now_ms: int) -> AppendInfo:
        """Append batches that have their offsets and leader epochs. Raises AppendError."""
        batches: list[ValidBatch] = []
        at, next_offset = 0, self.log_end_offset
        while at < len(records) and (size := whole_batch(records, at)):
            batch = check_batch(records[at : at + size], size, self.config, AppendOrigin.RAFT_LEADER)
            if batch.base_offset < next_offset:
                raise UnexpectedAppendOffsetError(
                    f"offset {batch.base_offset} is below {next_offset}, which is next in {self.topic}-{self.partition}"
                )
            next_offset = batch.base_offset + batch.last_offset_delta + 1
            batches.append(batch)
            at += size
        if not batches:
            raise InvalidRecordsError("the records hold no whole batch")
        for batch in batches:
            last_offset = batch.base_offset + batch.last_offset_delta
            self._append([batch], batch.base_offset, last_offset, batch.leader_epoch, now_ms)
        return AppendInfo(
            batches[0].base_offset,
            next_offset - 1,
            max(batch.max_timestamp for batch in batches),
            -1,
            self.log_start_offset,
            batches[-1].leader_epoch,
            False,
            at,
            sum(batch.record_count for batch in batches),
        )

    def _append(self, batches: Sequence[ValidBatch], first_offset: int, last_offset: int, epoch: int, now_ms: int) -> None:
        size = sum(batch.size_bytes for batch in batches)
        config, active = self.config, self._active
        if size > config.segment_bytes:
            raise RecordListTooLargeError(f"{size} bytes are more than a segment of this topic holds ({config.segment_bytes})")
        max_timestamp = max(batch.max_timestamp for batch in batches)
        if epoch >= 0 and epoch != self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(epoch, first_offset)
        active.load()
        if active.must_roll(config, size, last_offset, max_timestamp, now_ms):
            self.roll(now_ms, first_offset)
            active = self._active
        self._files.get(active.segment.log_path, create=True).append([batch.data for batch in batches])
        for batch in batches:
            active.add(config, batch.size_bytes, last_offset, batch.max_timestamp)
        self.log_end_offset = last_offset + 1
        self.producers.map_end_offset = last_offset + 1

    # ----------------------------------------------------------------------------------------------------------- rolling

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Close the active segment and begin the next at the log end offset, or at `base_offset` behind it."""
        base = max(self.log_end_offset, base_offset or 0)
        if base == self._active.segment.base_offset:
            return
        self._active.close()
        segment = LiveSegment(self.directory, base)
        for path in segment.paths:
            if self._disk.exists(path):
                self._disk.remove(path)
        self._active = SegmentAppender(self._disk, segment, now_ms)
        self._active.create(self.config)
        self._disk.append(segment.log_path, b"")
        self._segments.append(segment)
        self.producers.map_end_offset = base
        self.producers.take_snapshot()

    # ----------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, min_one_message: bool = True) -> LogSlice:
        """Bytes from the batch that holds `offset` on, at most `max_bytes`, of batches below `limit_offset`.

        With `min_one_message` the first batch comes whole, however large. Raises OffsetOutOfRangeError.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside of [{self.log_start_offset}, {self.log_end_offset}] "
                f"of {self.topic}-{self.partition}"
            )
        if offset >= limit_offset:
            return EMPTY_SLICE
        segment, position = self._locate(offset)
        end = segment.size_bytes
        if limit_offset < self.log_end_offset:
            limit_segment, limit_position = self._locate(limit_offset)
            if limit_segment is segment:
                end = limit_position
        size = min(end - position, max_bytes)
        file = self._files.get(segment.log_path)
        if size < end - position and min_one_message:
            head = file.read_at(position, LOG_OVERHEAD_BYTES)
            size = max(size, LOG_OVERHEAD_BYTES + int.from_bytes(head[8:], "big"))
        return LogSlice(file, position, size)

    def _locate(self, offset: int) -> tuple[LiveSegment, int]:
        """The segment and byte of the first batch that ends at or behind `offset`; the end of the log behind the last."""
        at = max(bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
        for segment in self._segments[at:]:
            index = self._active.offset_index() if segment is self._active.segment else segment.read_offset_index(self._disk)
            position = index.lookup(offset).position
            file = self._files.get(segment.log_path)
            while position < segment.size_bytes:
                head = file.read_at(position, HEADER_BYTES)
                base, length = _BASE_OFFSET.unpack_from(head)[0], int.from_bytes(head[8:12], "big")
                if base + int.from_bytes(head[23:27], "big") >= offset:
                    return segment, position
                position += length + LOG_OVERHEAD_BYTES
        return self._segments[-1], self._segments[-1].size_bytes

    # ------------------------------------------------------------------------------------------------------------- closing

    def unflushed_paths(self) -> list[str]:
        """The files with bytes at or behind the recovery point, for a flush."""
        at = max(bisect_right(self._segments, self.recovery_point, key=lambda segment: segment.base_offset) - 1, 0)
        return [segment.log_path for segment in self._segments[at:]]

    def mark_flushed(self, offset: int) -> None:
        """All below `offset` is on the device: the recovery point moves there."""
        self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    def close(self) -> None:
        """Write what waits, trim the indexes, save the producers and give the files back."""
        self._active.close()
        self.producers.map_end_offset = self.log_end_offset
        self.producers.take_snapshot()
        self.close_files()

    def close_files(self) -> None:
        """Give the files back and nothing else: the directory is about to be renamed, or has failed."""
        for segment in self._segments:
            self._files.close(segment.log_path)

    def path(self, name: str) -> str:
        """The path of a file of the partition's directory."""
        return join_path(self.directory, name)
