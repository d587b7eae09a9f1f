"""The segments of one partition: appending bytes, finding offsets, rolling, cutting, removing (Kafka: LocalLog).

    question                          answered by
    --------------------------------  ----------------------------------------------------------------------------------
    where does this offset begin      where an earlier read ended (READ_HINTS of them are kept); else the offset index of
                                      its segment, and the headers of the batches from there on
    where does a read end that is     the last batch below its limit that has an index entry, so that the next read is
      smaller than what is there        known to begin there; without one within the limit, the batches' headers
    where does a high watermark lie   remembered for the last one asked for; the log end is known

Offsets, producers and epochs are UnifiedLog's. A file that goes is renamed to `*.deleted`; its caller removes it later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn, OffsetIndex
from kcli.format.record_batch import ENTRY_HEAD_BYTES, HEADER_BYTES, LOG_OVERHEAD_BYTES
from kcli.format.structs import ABORTED_TXN, BATCH_LAST_OFFSET_DELTA_AT, LOG_OVERHEAD
from kcli.log.disk.port import LogDisk, LogFile
from kcli.log.file_cache import FileCache
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.producer_state_loader import rebuild_producer_state
from kcli.log.loading.recovering_segment import RecoveringSegment
from kcli.log.log_config import LogConfig, append_rules
from kcli.log.log_segment import LogSegment
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.segment_appender import SegmentAppender

# How many places are remembered at which reads ended: a reader each, in a partition.
READ_HINTS = 32
# How many headers are read at most to find where a read ends; beyond that it ends inside a batch, which clients allow.
HEADERS_TO_CUT = 64

_DELTA = Struct(">i")


class FetchDataInfo(NamedTuple):
    """Bytes [position, position + size) of an open segment: whole batches, or the start of one; none where `size` is 0.

    The first batch holds or follows the offset that was asked for, and may begin before it. No record of the slice is at or
    above `end_offset`, which is -1 where there is none.
    """

    file: LogFile | None
    position: int
    size: int
    end_offset: int


EMPTY_FETCH = FetchDataInfo(None, 0, 0, -1)


class LocalLog:
    """Segments in order of their offsets; the last one is active. Methods raise OSError as the disk does.

    `bases` are their base offsets. `new_paths` are files whose bytes or names no flush has seen yet, besides the `.log` files
    of segments behind the recovery point; each with the log end that a flush must have begun with to see them.
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
        """The topic's settings; `rules` follow them."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Go by other settings from now on."""
        self._config = config
        self.rules = append_rules(config)

    # --------------------------------------------------------------------------------------------------------- appending

    def append(self, data: Sequence[memoryview]) -> None:
        """Write whole batches at the end of the active segment, by one call; where it fails, what came is cut off again."""
        segment = self.active.segment
        file = self.files.get(segment.log_path, create=True)
        try:
            file.append(data)
        except OSError:
            self._cut_torn(file, segment)
            raise

    def _cut_torn(self, file: LogFile, segment: LogSegment) -> None:
        """A part of a batch may stand at the end now; what is appended next must not stand behind it."""
        try:
            file.truncate(segment.size_bytes)
        except OSError:
            # The directory goes offline then, and its next start cuts it.
            self.files.close(segment.log_path)

    def roll(self, base_offset: int, now_ms: int, roll_jitter_ms: int = 0) -> None:
        """Close the active segment and begin one at `base_offset`, above the active one's."""
        self.active.close()
        # What is appended next stands in the new segment: only a flush of that has surely seen these.
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
        """Note an aborted transaction in the active segment's `.txnindex`, made with its first."""
        path = self.active.segment.path(FileKind.TXN_INDEX)
        self.disk.append(path, ABORTED_TXN.pack(*txn))
        self.active.segment.may_have_aborted = True
        self.new_paths[path] = self.end_offset

    # ----------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, min_one_message: bool) -> FetchDataInfo:
        """Bytes from the batch that holds `offset` on; see UnifiedLog.read. `offset` must be in the log, below the limit."""
        hints = self._hints
        if hints is None:
            hints = self._hints = {}
        found = hints.get(offset)
        segment, position = self.locate(offset) if found is None else found
        while position >= segment.size_bytes and segment is not self.segments[-1]:
            segment, position = self.segments[bisect_right(self.bases, segment.base_offset)], 0
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

    def _offset_behind(self, segment: LogSegment, position: int, end_offset: int) -> int:
        """An offset that the records before byte `position` do not reach, at most `end_offset`; by the offset index.

        Kafka's LogSegment.fetchUpperBoundOffset.
        """
        index = self.index_of(segment)
        slot = bisect_left(index.positions, position)
        return index.base_offset + index.relative_offsets[slot] if slot < len(index.positions) else end_offset

    def _next_offset(self, segment: LogSegment) -> int:
        """The offset behind a segment's last one, or above it where offsets are missing."""
        if segment is self.segments[-1]:
            return self.end_offset
        return self.bases[bisect_right(self.bases, segment.base_offset)]

    def _cut(self, segment: LogSegment, file: LogFile, position: int, limit: int, end: int) -> tuple[int, int]:
        """Where a read from `position` on ends that may not reach behind `limit` -> (byte, the offset there or -1).

        At least the first batch is in it.
        """
        positions = self.index_of(segment).positions
        slot = bisect_right(positions, limit) - 1
        if slot >= 0 and positions[slot] > position:
            cut = positions[slot]
            return cut, LOG_OVERHEAD.unpack(file.read_at(cut, LOG_OVERHEAD_BYTES))[0]
        at, next_offset = position, -1
        for _ in range(HEADERS_TO_CUT):
            if at >= end:
                break
            base_offset, length = LOG_OVERHEAD.unpack(file.read_at(at, LOG_OVERHEAD_BYTES))
            size = length + LOG_OVERHEAD_BYTES
            if at + size > limit and at > position:
                next_offset = base_offset
                break
            at += size
        else:
            return max(limit, at), -1
        return at, next_offset

    def index_of(self, segment: LogSegment) -> OffsetIndex:
        """The entries of a segment's offset index."""
        return self.active.offset_index() if segment is self.active.segment else self.files.indexes.get(segment)

    def _locate_limit(self, offset: int) -> tuple[LogSegment, int]:
        limit = self._limit
        if limit is None or limit[0] != offset:
            limit = self._limit = (offset, *self.locate(offset))
        return limit[1], limit[2]

    def locate(self, offset: int) -> tuple[LogSegment, int]:
        """The segment and byte of the first batch that ends at or behind `offset`; the log's end where there is none."""
        if offset >= self.end_offset:
            return self.segments[-1], self.segments[-1].size_bytes
        at = max(bisect_right(self.bases, offset) - 1, 0)
        for segment in self.segments[at:]:
            position = self._find(segment, offset)
            if position >= 0:
                return segment, position
        return self.segments[-1], self.segments[-1].size_bytes

    def _find(self, segment: LogSegment, offset: int) -> int:
        """The byte of the first batch of a segment that ends at or behind `offset`, -1 where none does.

        It reads the headers behind one index entry, index.interval.bytes of batches, and does not yield: where an index is
        lost while the broker runs, those are all of the segment's, as in Kafka (FileRecords.searchForOffsetFromPosition). The
        next start rebuilds such an index, so this is left as it is.
        """
        position = self.index_of(segment).lookup(offset).position
        file = self.files.get(segment.log_path)
        while position < segment.size_bytes:
            head = file.read_at(position, HEADER_BYTES)
            if len(head) < ENTRY_HEAD_BYTES:
                break
            base_offset, length = LOG_OVERHEAD.unpack_from(head)
            if base_offset + _last_offset_delta(head) >= offset:
                return position
            position += length + LOG_OVERHEAD_BYTES
        return -1

    def forget_reads(self) -> None:
        """Offsets have moved: what was remembered of reads is void."""
        self._hints = None
        self._limit = None

    def floor(self, offset: int) -> int:
        """Where in `segments` the one stands that holds `offset`, or the first."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    # ---------------------------------------------------------------------------------------------------------- removing

    def remove_segments(self, doomed: Sequence[LogSegment]) -> list[str]:
        """Take segments out and rename their files to `*.deleted` -> the new paths. The active one may be among them."""
        renamed: list[str] = []
        for segment in doomed:
            at = self.segments.index(segment)
            del self.segments[at], self.bases[at]
            for path in segment.paths:
                self.files.close(path)
                self.new_paths.pop(path, None)
                if self.disk.exists(path):
                    self.disk.rename(path, path + FileState.DELETED.value)
                    renamed.append(path + FileState.DELETED.value)
        if renamed:
            self.forget_reads()
        return renamed

    def replace_segments(self, news: Sequence[tuple[int, int]], olds: Sequence[LogSegment]) -> list[str]:
        """Put cleaned segments, complete as `*.swap`, in the place of others, none of them active -> the paths that go.

        `news` are base offsets and sizes. A crash on the way leaves `*.swap` files, which the next start puts in place.
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
        self.forget_reads()
        return renamed

    def start_anew(self, base_offset: int, now_ms: int, roll_jitter_ms: int = 0) -> list[str]:
        """Remove every segment and begin at `base_offset` -> the paths of the files that go."""
        renamed = self.remove_segments(list(self.segments))
        self._begin(base_offset, now_ms, roll_jitter_ms)
        self.end_offset = base_offset
        self.forget_reads()
        return renamed

    def truncate_to(self, offset: int, now_ms: int) -> list[str]:
        """Cut everything from `offset` on; it must be at or above the first base offset -> the paths of files that go."""
        renamed = self.remove_segments(self.segments[bisect_right(self.bases, offset) :])
        segment = self.segments[-1]
        if segment is not self.active.segment:
            # Another one from now on: whoever is reading the closed one, as a cleaner does, is to find it gone.
            segment = self.segments[-1] = LogSegment(self.directory, segment.base_offset, segment.size_bytes)
            self.active = SegmentAppender(self.disk, segment, now_ms, self.roll_jitter_ms)
        position = self._find(segment, offset)
        if position >= 0:
            self.files.get(segment.log_path).truncate(position)
            segment.size_bytes = position
        self.active.truncate_to(offset, now_ms)
        self.files.indexes.forget(segment.log_path)
        self.end_offset = offset
        self.forget_reads()
        return renamed

    def move(self, directory: str) -> None:
        """The partition's directory was renamed."""
        for segment in self.segments:
            self.files.close(segment.log_path)
            segment.move(directory)
        old, self.directory = self.directory, directory
        # What no flush has seen under its old name none has seen under the new one.
        self.new_paths = {
            directory + path.removeprefix(old) if path == old or path.startswith(f"{old}/") else path: since
            for path, since in self.new_paths.items()
        }

    def flushed(self, end_offset: int) -> None:
        """What was new when the log ended at `end_offset` is on the device."""
        if self.new_paths:
            self.new_paths = {path: since for path, since in self.new_paths.items() if since > end_offset}

    def rebuild_producers(self, producers: ProducerStateManager, log_start_offset: int) -> None:
        """Bring the producers to the log's end, after it was cut. Raises LogRefusedError."""
        settings = IndexSettings(self.config.index_interval_bytes, self.config.segment_index_bytes)
        segments = {base: RecoveringSegment(self.disk, self.directory, base, settings) for base in self.bases}
        rebuild_producer_state(producers, segments, log_start_offset, self.end_offset)

    def close(self) -> list[str]:
        """Write what waits, cut the indexes to their entries and give the files back -> the files that this changed."""
        changed = self.active.segment.paths[1:3] if self.active.close() else ()
        self.close_files()
        return list(changed)

    def close_files(self) -> None:
        """Give the files back."""
        for segment in self.segments:
            self.files.close(segment.log_path)


def _last_offset_delta(head: bytes) -> int:
    """Of a batch of format 2; messages of format 0 and 1 state their last offset already."""
    if head[ENTRY_HEAD_BYTES - 1] < 2 or len(head) < HEADER_BYTES:
        return 0
    return int(_DELTA.unpack_from(head, BATCH_LAST_OFFSET_DELTA_AT)[0])
