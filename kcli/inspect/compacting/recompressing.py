"""Re-compression: the data batches of a partition get another codec; the records stay as they are.

All segments from the first to the last one with a batch to convert are rewritten, the active segment too: after a crash
while they are put in place, a start removes all files between the new segments (leftovers), so there must not be
any. A segment that would grow beyond segment.bytes is split. Every CRC is checked; a partition with a damaged batch is not
changed.

    batch                                     result
    ----------------------------------------  --------------------------------------------------------------------------
    has the codec, and no level is given      unchanged
    markers, and batches without records      unchanged
    more than MAX_RECOMPRESSED_BYTES of       unchanged, and counted; a set of format 0 or 1 becomes several batches
      records
    data, format 2                            the same bytes of records with the new codec: length, CRC and the codec in
                                              the attributes change, the rest of the header stays
    a compressed set of format 0 or 1         a batch of format 2 with the same messages (kcli.format.legacy_message_set)
    single messages of format 0 or 1          batches of format 2 with several messages: a single one hardly compresses

Adjacent single messages go into one batch of up to GATHERED_BYTES if they have the same format and timestamp type (with
LogAppendTime also the same timestamp) and their offsets ascend. Such a batch never spans an offset where a log may be cut or
begin: the start of a leader epoch, the log start offset, the high watermark.

Every CRC is checked, also inside compressed sets: a rewritten batch gets a new CRC, which would hide damage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs
from kcli.format.compression import CODECS, codec_id, deflate, inflate
from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn, TransactionIndex
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord, UpgradedBatch, iter_records
from kcli.format.primitives import INT32_MAX, Buffer, CorruptCheckpointError, CorruptRecordError, InflationLimitError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, RecordBatch, with_records
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
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader

# The lowest and highest level that Kafka allows, by codec; the other codecs have no levels.
LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}


class Converted(NamedTuple):
    """A batch to write; `data` may be a view of the reader's buffer."""

    data: Buffer
    base_offset: int
    last_offset: int
    max_timestamp: int


class Converter:
    """Converts the batches of a log in their order, and counts what a CompactionPlan contains.

    `cuts` are the offsets that a batch of gathered messages must not span.
    """

    def __init__(self, target: Recompression, cuts: Iterable[int]) -> None:
        self.batches = self.converted_batches = self.records = self.large_batches = 0
        self._target = target
        self._cuts = sorted(cuts)
        self._gathered: UpgradedBatch | None = None
        self._kind: tuple[int, int | None] = (0, None)  # of the gathered messages: format, timestamp if LogAppendTime

    def is_asked(self, header: RecordBatch | LegacyBatch) -> bool:
        """Return True if a batch is to get another codec."""
        if isinstance(header, RecordBatch) and (header.is_control or not header.record_count):
            return False
        return header.codec != self._target.codec or self._target.level is not None

    def convert(self, batch: LogBatch) -> Iterator[Converted]:
        """Yield the batches to write for a batch with a valid CRC. Raises FormatError if its records are damaged."""
        header = batch.header
        if isinstance(header, LegacyBatch):
            yield from self._convert_legacy(batch, header)
            return
        yield from self.take_gathered()
        data: Buffer = batch.read_whole() if batch.data is None else batch.data
        self.records += header.record_count
        if self.is_asked(header):
            converted = self._recompressed(header, data)
            self.batches += converted is not None
            self.large_batches += converted is None
            data = data if converted is None else converted
        yield Converted(data, header.base_offset, header.last_offset, header.max_timestamp)

    def take_gathered(self) -> Iterator[Converted]:
        """Yield the batch of gathered messages, if there are any; to be called at the end of a segment."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            yield self._finished(gathered)

    def _recompressed(self, header: RecordBatch, data: Buffer) -> bytes | None:
        """Return the batch with the new codec, None if its records are too large. Raises FormatError."""
        try:
            records = inflate(header.codec, memoryview(data)[HEADER_BYTES:], limit=limits.MAX_RECOMPRESSED_BYTES)
        except InflationLimitError:
            return None
        deflated = deflate(self._target.codec, records, level=self._target.level)
        return with_records(header, deflated)._replace(attributes=header.attributes & ~CODEC_MASK | self._target.codec).encode()

    # ------------------------------------------------------------------------------------------------- format 0 and 1

    def _convert_legacy(self, batch: LogBatch, header: LegacyBatch) -> Iterator[Converted]:
        data = batch.read_whole()
        if not self.is_asked(header):
            yield from self.take_gathered()
            offsets = [record.offset for record in _sound_records(header, data)]
            self.records += len(offsets)
            yield Converted(data, offsets[0], header.last_offset, header.max_timestamp)
            return
        self.batches += 1
        self.converted_batches += 1
        if not header.codec:
            (record,) = _sound_records(header, data)
            yield from self._gather(header, record)
            return
        yield from self.take_gathered()
        upgraded = UpgradedBatch(is_log_append_time=header.is_log_append_time)
        for record in _sound_records(header, data):
            if not upgraded.has_room(record, limits.MAX_RECOMPRESSED_BYTES):
                yield self._finished(upgraded)
                upgraded = UpgradedBatch(is_log_append_time=header.is_log_append_time)
            upgraded.add(record)
            self.records += 1
        upgraded.end_at(header.offset)
        yield self._finished(upgraded)

    def _gather(self, header: LegacyBatch, record: LegacyRecord) -> Iterator[Converted]:
        """Add a single message to the gathered ones, or start a new batch if it does not fit."""
        kind = header.magic, header.timestamp if header.is_log_append_time else None
        if self._gathered is None or kind != self._kind or not self._may_follow(self._gathered, record):
            yield from self.take_gathered()
            self._gathered = UpgradedBatch(is_log_append_time=header.is_log_append_time)
            self._kind = kind
        self._gathered.add(record)
        self.records += 1

    def _may_follow(self, gathered: UpgradedBatch, record: LegacyRecord) -> bool:
        if not gathered.has_room(record) or not gathered.last_offset < record.offset <= gathered.base_offset + INT32_MAX:
            return False
        return bisect_right(self._cuts, gathered.last_offset) == bisect_right(self._cuts, record.offset)

    def _finished(self, upgraded: UpgradedBatch) -> Converted:
        data = upgraded.encode(self._target.codec, self._target.level)
        return Converted(data, upgraded.base_offset, upgraded.last_offset, upgraded.max_timestamp)


def _sound_records(header: LegacyBatch, data: Buffer) -> Iterator[LegacyRecord]:
    """Yield the messages of a batch. Raises FormatError, also for a message inside the batch with a wrong CRC."""
    for record in iter_records(header, data):
        if not record.is_valid:
            raise CorruptRecordError(f"the message of offset {record.offset} inside it has a wrong CRC")
        yield record


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
