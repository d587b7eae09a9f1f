"""The segments of one partition: append bytes, find offsets, roll, truncate, delete (Kafka: LocalLog).

    question                          answered by
    --------------------------------  ----------------------------------------------------------------------------------
    at which byte does a read begin   the end of an earlier read (READ_HINTS of them are kept); else the offset index of the
                                      segment, and the headers of the batches from there on
    at which byte does a read end     the last batch below max_bytes that has an index entry, so that the position of the
                                      next read is known; if there is none, the headers of the batches
    at which byte is the high         the answer for the last high watermark is kept
      watermark

Log start offset, producers and leader epochs belong to UnifiedLog. A deleted file is renamed to `*.deleted`; the caller removes
it later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn, OffsetIndex
from kcli.format.record_batch import ENTRY_HEAD_BYTES, HEADER_BYTES, LOG_OVERHEAD_BYTES, RecordBatch
from kcli.format.structs import ABORTED_TXN, BATCH_LAST_OFFSET_DELTA_AT, LOG_OVERHEAD
from kcli.log.disk.port import LogDisk, LogFile
from kcli.log.file_cache import FileCache
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.log_loader import rebuild_producer_state
from kcli.log.loading.recovering_segment import RecoveringSegment
from kcli.log.log_config import LogConfig, append_rules
from kcli.log.log_segment import LogSegment
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.segment_appender import SegmentAppender

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

# The number of positions at which reads ended that are kept: one for each reader of a partition.
READ_HINTS = 32
# The most headers that are read to find the end of a read; after that it ends inside a batch, which clients accept.
HEADERS_TO_CUT = 64

_DELTA = Struct(">i")


class FetchDataInfo(NamedTuple):
    """The result of a read: bytes [position, position + size) of a segment, none if `size` is 0 (Kafka: FetchDataInfo).

    The first batch contains the requested offset, or is the next one after it; the last batch may be incomplete. All records
    are below `end_offset`, which is -1 if there are none.
    """

    file: LogFile | None
    position: int
    size: int
    end_offset: int


EMPTY_FETCH = FetchDataInfo(None, 0, 0, -1)


class LocalLog:
    """Segments in order of their offsets; the last one is active. Methods raise OSError as the disk does.

    `bases` are their base offsets. `new_paths` are unflushed files and directories other than the `.log` files above the
    recovery point. Each has the log end offset that a flush must reach to include it.
    """

    __slots__ = (
        "_config",
        "_hints",
        "_limit",
        "active",
        "bases",
        "directory",
        "disk",
        "end_offset",
        "files",
        "new_paths",
        "roll_jitter_ms",
        "rules",
        "segments",
    )

    def __init__(
        self,
        disk: LogDisk,
        files: FileCache,
        directory: str,
        config: LogConfig,
        segments: list[LogSegment],
        active: SegmentAppender,
        end_offset: int,
    ) -> None:
        self.disk = disk
        self.files = files
        self.directory = directory
        self._config = config
        self.rules = append_rules(config)
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = active
        self.end_offset = end_offset
        self.roll_jitter_ms = 0
        self.new_paths: dict[str, int] = {}
        self._hints: dict[int, tuple[LogSegment, int]] | None = None
        self._limit: tuple[int, LogSegment, int] | None = None

    @property
    def config(self) -> LogConfig:
        """The topic's settings; `rules` are derived from them."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Apply other settings from the next append on."""
        self._config = config
        self.rules = append_rules(config)

    # --------------------------------------------------------------------------------------------------------- appending

    def append(self, data: Sequence[memoryview]) -> None:
        """Write whole batches to the end of the active segment with one call; remove what was written if it fails."""
        segment = self.active.segment
        file = self.files.get(segment.log_path, create=True)
        try:
            file.append(data)
        except OSError:
            self._cut_torn(file, segment)
            raise

    def _cut_torn(self, file: LogFile, segment: LogSegment) -> None:
        """Remove a part of a batch from the end of the segment, so that the next append does not follow it."""
        try:
            file.truncate(segment.size_bytes)
        except OSError:
            # The log directory goes offline then, and recovery truncates the segment at the next start.
            self.files.close(segment.log_path)

    def roll(self, base_offset: int, now_ms: int, roll_jitter_ms: int = 0) -> None:
        """Close the active segment and begin one at `base_offset`, which must be above the active one's."""
        self.active.close()
        # The next append goes to the new segment: a flush that includes it includes these files, too.
        self.new_paths.update(dict.fromkeys(self.active.segment.paths[:3], self.end_offset + 1))
        self._begin(base_offset, now_ms, roll_jitter_ms)

    def _begin(self, base_offset: int, now_ms: int, roll_jitter_ms: int) -> None:
        segment = LogSegment(self.directory, base_offset)
        for path in segment.paths:
            if self.disk.exists(path):
                self.files.close(path)
                self.disk.remove(path)
        self.active = SegmentAppender(self.disk, segment, now_ms, roll_jitter_ms)
        self.active.create(self.rules)
        self.files.get(segment.log_path, create=True)
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.new_paths[self.directory] = self.end_offset + 1

    def add_aborted(self, txn: AbortedTxn) -> None:
        """Append an aborted transaction to the active segment's `.txnindex`, which is created for the first one."""
        path = self.active.segment.path(FileKind.TXN_INDEX)
        if not self.disk.exists(path):
            self.new_paths[self.directory] = self.end_offset
        self.disk.append(path, ABORTED_TXN.pack(*txn))
        self.active.segment.may_have_aborted = True
        self.new_paths[path] = self.end_offset

    # ----------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, min_one_message: bool) -> FetchDataInfo:
        """Read from the batch that contains `offset`, which must be below `limit_offset`; see UnifiedLog.read."""
        hints = self._hints
        if hints is None:
            hints = self._hints = {}
        found = hints.get(offset)
        segment, position = self.locate(offset) if found is None else found
        while position >= segment.size_bytes and segment is not self.segments[-1]:
            segment, position = self.segments[bisect_right(self.bases, segment.base_offset)], 0
            if segment is not self.segments[-1] and not self._begins_whole(segment):
                position = segment.size_bytes
        end, next_offset = segment.size_bytes, self._next_offset(segment)
        if limit_offset < self.end_offset:
            limit_segment, limit_position = self._locate_limit(limit_offset)
            if limit_segment is segment:
                end, next_offset = limit_position, limit_offset
        if end <= position:
            return EMPTY_FETCH
        file = self.files.get(segment.log_path)
        end_offset = next_offset
        if end - position > max_bytes:
            whole = end
            end, next_offset = self._cut(segment, file, position, position + max_bytes, end)
            if not min_one_message and end - position > max_bytes:
                return EMPTY_FETCH
            if end < whole:
                end_offset = next_offset if next_offset >= 0 else self._offset_behind(segment, end, end_offset)
            else:
                next_offset = end_offset
        if len(hints) >= READ_HINTS and next_offset >= 0:
            del hints[next(iter(hints))]
        if next_offset >= 0:
            hints[next_offset] = segment, end
        return FetchDataInfo(file, position, end - position, end_offset)

    def _begins_whole(self, segment: LogSegment) -> bool:
        """Return whether the first batch of a closed segment was not cut while no broker ran."""
        head = self.files.get(segment.log_path).read_at(0, LOG_OVERHEAD_BYTES)
        return len(head) == LOG_OVERHEAD_BYTES and LOG_OVERHEAD_BYTES + LOG_OVERHEAD.unpack(head)[1] <= segment.size_bytes

    def _offset_behind(self, segment: LogSegment, position: int, end_offset: int) -> int:
        """Return an offset above all records before byte `position`: by the offset index, else `end_offset`.

        Kafka: LogSegment.fetchUpperBoundOffset.
        """
        index = self.index_of(segment)
        slot = bisect_left(index.positions, position)
        return index.base_offset + index.relative_offsets[slot] if slot < len(index.positions) else end_offset

    def _next_offset(self, segment: LogSegment) -> int:
        """Return the base offset of the next segment, or the log end offset."""
        if segment is self.segments[-1]:
            return self.end_offset
        return self.bases[bisect_right(self.bases, segment.base_offset)]

    def _cut(self, segment: LogSegment, file: LogFile, position: int, limit: int, end: int) -> tuple[int, int]:
        """Find the end of a read from `position` up to `limit`; return its byte and the offset there.

        The offset is -1 if it is unknown, or that of a batch that was cut. The first batch is always included.
        """
        positions = self.index_of(segment).positions
        slot = bisect_right(positions, limit) - 1
        if slot >= 0 and positions[slot] > position:
            cut = positions[slot]
            base_offset, length = LOG_OVERHEAD.unpack(file.read_at(cut, LOG_OVERHEAD_BYTES))
            return cut, base_offset if cut + length + LOG_OVERHEAD_BYTES <= end else -1
        at, next_offset = position, -1
        for _ in range(HEADERS_TO_CUT):
            if at >= end:
                break
            base_offset, length = LOG_OVERHEAD.unpack(file.read_at(at, LOG_OVERHEAD_BYTES))
            size = length + LOG_OVERHEAD_BYTES
            if at + size > limit and at > position:
                next_offset = base_offset if at + size <= end else -1
                break
            at += size
        else:
            return max(limit, at), -1
        return at, next_offset

    def index_of(self, segment: LogSegment) -> OffsetIndex:
        """Return the offset index of a segment."""
        return self.active.offset_index() if segment is self.active.segment else self.files.indexes.get(segment)

    def _locate_limit(self, offset: int) -> tuple[LogSegment, int]:
        limit = self._limit
        if limit is None or limit[0] != offset:
            limit = self._limit = (offset, *self.locate(offset))
        return limit[1], limit[2]

    def locate(self, offset: int) -> tuple[LogSegment, int]:
        """Return segment and byte of the first batch that ends at or above `offset`, the log's end if there is none."""
        if offset >= self.end_offset:
            return self.segments[-1], self.segments[-1].size_bytes
        at = max(bisect_right(self.bases, offset) - 1, 0)
        for segment in self.segments[at:]:
            position = self._find(segment, offset)
            if position >= 0:
                return segment, position
        return self.segments[-1], self.segments[-1].size_bytes

    def _find(self, segment: LogSegment, offset: int) -> int:
        """Return the byte of the first batch of a segment with a last offset at or above `offset`, -1 if there is none.

        It reads the headers that follow one index entry, usually index.interval.bytes of batches, without yielding. If an index
        is lost while the broker runs, it reads all headers of the segment, as Kafka does
        (FileRecords.searchForOffsetFromPosition); the next start rebuilds the index.
        """
        position = self.index_of(segment).lookup(offset).position
        file = self.files.get(segment.log_path)
        while position < segment.size_bytes:
            head = file.read_at(position, HEADER_BYTES)
            if len(head) < ENTRY_HEAD_BYTES:
                break
            base_offset, length = LOG_OVERHEAD.unpack_from(head)
            end = position + length + LOG_OVERHEAD_BYTES
            if base_offset + _last_offset_delta(head) >= offset:
                # A batch that was cut is not there: the read continues in the next segment, as in Kafka (FileLogInputStream).
                return position if end <= segment.size_bytes else -1
            position = end
        return -1

    def headers_before(self, offset: int, most: int) -> Iterator[RecordBatch | LegacyBatch]:
        """Yield the headers of the batches before the one that contains `offset`, the last one first. Raises OSError.

        At most `most` headers are read. Those between two index entries are read at once, usually index.interval.bytes.
        """
        segment, end = self.locate(offset)
        for at in range(self.segments.index(segment), -1, -1):
            segment = self.segments[at]
            file, positions = self.files.get(segment.log_path), self.index_of(segment).positions
            for start in (*reversed(positions[: bisect_left(positions, end)]), 0):
                headers = list(islice(HeaderReader(file, start, end).headers(), most + 1))
                most -= len(headers)
                if most < 0:
                    return
                yield from reversed(headers)
                end = start
            end = self.segments[at - 1].size_bytes

    def clear_read_hints(self) -> None:
        """Discard the kept positions: the positions of offsets have changed."""
        self._hints = None
        self._limit = None

    def floor(self, offset: int) -> int:
        """Return the index in `segments` of the segment that contains `offset`, 0 if it is below all."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    # ---------------------------------------------------------------------------------------------------------- removing

    def remove_segments(self, deletable: Sequence[LogSegment]) -> list[str]:
        """Remove segments, possibly the active one, and rename their files to `*.deleted`; return the new paths."""
        renamed: list[str] = []
        for segment in deletable:
            at = self.segments.index(segment)
            del self.segments[at], self.bases[at]
            for path in segment.paths:
                self.files.close(path)
                self.new_paths.pop(path, None)
                if self.disk.exists(path):
                    self.disk.rename(path, path + FileState.DELETED.value)
                    renamed.append(path + FileState.DELETED.value)
        if renamed:
            self.clear_read_hints()
        return renamed

    def replace_segments(self, news: Sequence[tuple[int, int]], olds: Sequence[LogSegment]) -> list[str]:
        """Replace inactive segments by cleaned ones, which are complete as `*.swap`; return the paths of the files to remove.

        `news` are base offsets and sizes. A crash leaves `*.swap` files, and the next start completes the replacement.
        """
        renamed = self.remove_segments(olds)
        for base_offset, size_bytes in news:
            segment = LogSegment(self.directory, base_offset, size_bytes)
            for path in segment.paths:
                if self.disk.exists(path + FileState.SWAP.value):
                    self.disk.rename(path + FileState.SWAP.value, path)
            at = bisect_right(self.bases, base_offset)
            self.segments.insert(at, segment)
            self.bases.insert(at, base_offset)
        self.clear_read_hints()
        return renamed

    def truncate_fully_and_start_at(self, base_offset: int, now_ms: int, roll_jitter_ms: int = 0) -> list[str]:
        """Remove every segment and begin at `base_offset`; return the paths of the files to remove."""
        renamed = self.remove_segments(list(self.segments))
        self._begin(base_offset, now_ms, roll_jitter_ms)
        self.end_offset = base_offset
        self.clear_read_hints()
        return renamed

    def truncate_to(self, offset: int, now_ms: int) -> list[str]:
        """Remove everything from `offset` on, which must not be below the first base offset; return the files to remove."""
        renamed = self.remove_segments(self.segments[bisect_right(self.bases, offset) :])
        segment = self.segments[-1]
        if segment is not self.active.segment:
            # A new object: the cleaner, which may hold the old one, must notice that the segment has changed.
            segment = self.segments[-1] = LogSegment(self.directory, segment.base_offset, segment.size_bytes)
            self.active = SegmentAppender(self.disk, segment, now_ms, self.roll_jitter_ms)
        position = self._find(segment, offset)
        if position >= 0:
            self.files.get(segment.log_path).truncate(position)
            segment.size_bytes = position
        self.active.truncate_to(offset, now_ms)
        self.files.indexes.forget(segment.log_path)
        self.end_offset = offset
        self.clear_read_hints()
        return renamed

    def move(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        for segment in self.segments:
            self.files.close(segment.log_path)
            segment.move(directory)
        old, self.directory = self.directory, directory
        # Files that were not flushed under the old name are not flushed under the new one.
        self.new_paths = {
            directory + path.removeprefix(old) if path == old or path.startswith(f"{old}/") else path: since
            for path, since in self.new_paths.items()
        }

    def flushed(self, end_offset: int) -> None:
        """Forget the new paths that a flush up to `end_offset` has included."""
        if self.new_paths:
            self.new_paths = {path: since for path, since in self.new_paths.items() if since > end_offset}

    def rebuild_producers(self, producers: ProducerStateManager, log_start_offset: int) -> None:
        """Rebuild the producer state up to the log end after a truncation. Raises LogRefusedError."""
        settings = IndexSettings(self.config.index_interval_bytes, self.config.segment_index_bytes)
        segments = {base: RecoveringSegment(self.disk, self.directory, base, settings) for base in self.bases}
        rebuild_producer_state(producers, segments, log_start_offset, self.end_offset)

    def close(self) -> list[str]:
        """Write pending index entries, trim the indexes and close the files; return the paths that have changed."""
        changed = self.active.segment.paths[1:3] if self.active.close() else ()
        self.close_files()
        return list(changed)

    def close_files(self) -> None:
        """Close the segments' files."""
        for segment in self.segments:
            self.files.close(segment.log_path)


def _last_offset_delta(head: bytes) -> int:
    """Return the field of a batch with magic 2; the offset of a message set with magic 0 or 1 is its last offset."""
    if head[ENTRY_HEAD_BYTES - 1] < 2 or len(head) < HEADER_BYTES:
        return 0
    return int(_DELTA.unpack_from(head, BATCH_LAST_OFFSET_DELTA_AT)[0])
