"""Re-compression: the data batches of a partition get another codec (conversion); the records stay as they are.

All segments from the first to the last one with a batch to convert are rewritten, the active segment too: after a crash
while they are put in place, a start removes all files between the new segments (leftovers), so there must not be
any. A segment that would grow beyond segment.bytes is split. Every CRC is checked; a partition with a damaged batch is not
changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs
from kcli.format.compression import CODECS, codec_id
from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn, TransactionIndex
from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.primitives import CorruptCheckpointError, CorruptRecordError
from kcli.inspect.compacting.conversion import Converted, Converter
from kcli.inspect.compacting.jobs import CompactionPlan, PartitionJob, Recompression
from kcli.inspect.compacting.staged_disk import StagedDisk
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.offset_map_builder import located
from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.port import join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import Segment, read_partition
from kcli.log.loading.leftovers import finish_leftovers
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.segment_reader import Damage, SegmentReader

# The lowest and highest level that Kafka allows, by codec; the other codecs have no levels.
LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}


def parse_recompression(text: str) -> Recompression:
    """Parse CODEC[:LEVEL]. Raises ValueError with one sentence."""
    name, colon, level = text.partition(":")
    if name not in CODECS.values():
        raise ValueError(f"{name!r} is not a codec; the codecs are {', '.join(CODECS.values())}")
    if not colon:
        return Recompression(codec_id(name), None)
    if name not in LEVELS:
        raise ValueError(f"{name} has no levels: leave {colon}{level} out")
    lowest, highest = LEVELS[name]
    if not level.removeprefix("-").isdecimal() or not lowest <= int(level) <= highest:
        raise ValueError(f"{name} has the levels {lowest} to {highest}, not {level!r}")
    return Recompression(codec_id(name), int(level))


def recompress(disk: StagedDisk, job: PartitionJob, target: Recompression, on_moved: Callable[[int], None]) -> CompactionPlan:
    """Rewrite the batches of a partition on a staged disk and return the plan. Raises FormatError and OSError."""
    config = job.config
    finish_leftovers(LiveDisk(disk), job.path, IndexSettings(config.index_interval_bytes, config.segment_index_bytes))
    work = _Recompressing(disk, job, target, on_moved)
    segments = read_partition(disk, job.path).segments
    sizes = {segment.base_offset: disk.size(segment.log) for segment in segments}
    asked = [slot for slot, segment in enumerate(segments) if work.has_work(segment)]
    for segment in segments[asked[0] : asked[-1] + 1] if asked else ():
        work.rewrite(segment)
    left_bytes = sum(sizes.values()) - work.size_bytes + work.size_bytes_left
    return CompactionPlan(
        records=work.converter.records,
        records_left=work.converter.records,
        size_bytes=work.size_bytes,
        size_bytes_left=work.size_bytes_left,
        segments=len(segments),
        segments_left=len(segments) + work.segments_more,
        log_bytes=sum(sizes.values()),
        log_bytes_left=left_bytes,
        batches=work.converter.batches,
        converted_batches=work.converter.converted_batches,
        legacy_batches=work.legacy_batches,
        large_batches=work.converter.large_batches,
    )


class _Recompressing:
    """Rewrites the segments of a partition one after the other, and counts."""

    def __init__(self, disk: StagedDisk, job: PartitionJob, target: Recompression, on_moved: Callable[[int], None]) -> None:
        self._disk = disk
        self._job = job
        self._on_moved = on_moved
        self._news: list[CleanedSegment] = []
        self._waiting: list[AbortedTxn] = []
        self.converter = Converter(target, _cuts(disk, job))
        self.legacy_batches = 0
        self.size_bytes = self.size_bytes_left = self.segments_more = 0

    def has_work(self, segment: Segment) -> bool:
        """Return True if a batch of the segment is to get another codec; only headers are read."""
        file = self._disk.open_file(segment.log)
        try:
            found = False
            for header in HeaderReader(file, 0, file.size()).headers():
                if self.converter.is_asked(header):
                    found = True
                elif isinstance(header, LegacyBatch):
                    self.legacy_batches += 1
            return found
        finally:
            file.close()

    def rewrite(self, segment: Segment) -> None:
        """Rewrite a segment, and replace it on the staged disk. Raises CorruptRecordError, OSError."""
        mtime_ms = self._disk.mtime_ms(segment.log)
        self._waiting = self._aborted_in(segment)
        self._news = [self._begin(segment.base_offset)]
        with SegmentReader(self._disk, segment.log) as reader:
            for batch in reader.batches(resynchronise=False):
                if isinstance(batch, Damage) or not batch.is_valid:
                    position = batch.position
                    raise CorruptRecordError(f"{reader.path}: the batch at byte {position} is damaged", position)
                with located(reader, batch):
                    for converted in self.converter.convert(batch):
                        self._append(converted)
                self.size_bytes += batch.header.size_bytes
                self._on_moved(2 * batch.header.size_bytes)
        for converted in self.converter.take_gathered():
            self._append(converted)
        self._news[-1].add_aborted(self._waiting)
        for new in self._news:
            new.finish(mtime_ms)
        self._put(segment, self._news)
        self.segments_more += len(self._news) - 1

    def _append(self, batch: Converted) -> None:
        """Append a batch to the last new segment, or to another new one if it does not fit."""
        if not self._fits(self._news[-1], len(batch.data), batch.last_offset):
            self._news.append(self._begin(batch.base_offset))
        self._news[-1].append(batch.data, batch.last_offset, batch.max_timestamp)
        # The entry of a transaction belongs to the segment of its marker.
        while self._waiting and self._waiting[0].last_offset <= batch.last_offset:
            self._news[-1].add_aborted([self._waiting.pop(0)])
        self.size_bytes_left += len(batch.data)

    def _begin(self, base_offset: int) -> CleanedSegment:
        return CleanedSegment(self._disk, self._job.path, base_offset, self._job.config.index_interval_bytes)

    def _fits(self, segment: CleanedSegment, size_bytes: int, last_offset: int) -> bool:
        if segment.size_bytes and segment.size_bytes + size_bytes > self._job.config.segment_bytes:
            return False
        return segment.fits(size_bytes, last_offset)

    def _aborted_in(self, segment: Segment) -> list[AbortedTxn]:
        if segment.transaction_index is None:
            return []
        data = self._disk.read_file(segment.transaction_index, limits.MAX_INDEX_FILE_BYTES)
        return list(TransactionIndex.decode(data, segment.base_offset).aborted)

    def _put(self, segment: Segment, news: list[CleanedSegment]) -> None:
        for path in (segment.log, segment.offset_index, segment.time_index, segment.transaction_index):
            if path is not None:
                self._disk.remove(path)
        for new in news:
            for path in new.paths:
                self._disk.rename(path, path.removesuffix(FileState.CLEANED.value))


def _cuts(disk: StagedDisk, job: PartitionJob) -> set[int]:
    """Return the offsets where a log may be cut or begin.

    A leader epoch file that cannot be read is ignored: the next start of a broker handles it.
    """
    cuts = {job.log_start_offset, job.log_start_offset if job.high_watermark is None else job.high_watermark}
    path = join_path(job.path, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    if disk.exists(path):
        with suppress(CorruptCheckpointError):
            epochs = decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
            cuts.update(epoch.start_offset for epoch in epochs)
    return cuts
