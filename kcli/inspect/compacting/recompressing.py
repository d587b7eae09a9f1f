"""Re-compression: the data batches of a partition get another codec; nothing else of them changes.

    batch                                     what becomes of it
    ----------------------------------------  --------------------------------------------------------------------------
    data, format 2, of another codec          its records, the same bytes, under the new codec: length, CRC and the
                                              codec in the attributes change, all else of the header stays
    data, format 2, of the same codec         its bytes; where a level is asked for, as above
    markers, and batches without records      its bytes
    format 0 and 1                            its bytes: there the offsets themselves lie under the codec

All segments are rewritten from the first to the last that has such a batch, the active one too: a crash while they are put in
place is mended by removing what lies between (kcli.log.leftovers), so nothing may lie between. Where a segment would grow
beyond segment.bytes, another begins. Every CRC is checked on the way; a batch that is not sound leaves the partition alone.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format import limits
from kcli.format.compression import CODECS, codec_id, deflate, inflate
from kcli.format.file_names import FileState
from kcli.format.index_entries import AbortedTxn, TransactionIndex
from kcli.format.primitives import Buffer, CorruptRecordError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, NewRecordBatch, RecordBatch
from kcli.inspect.compacting.jobs import PartitionJob, PartitionPlan, Recompression
from kcli.inspect.compacting.staged_disk import StagedDisk
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.map_builder import located
from kcli.log.header_walk import HeaderWalk
from kcli.log.indexes import IndexSettings
from kcli.log.leftovers import finish_leftovers
from kcli.log.load_disk import LiveDisk
from kcli.log.log_directory import Segment, read_partition
from kcli.log.log_reader import Damage, LogBatch, SegmentReader

# The levels that Kafka allows, by codec; the others have none.
LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}


def parse_recompression(text: str) -> Recompression:
    """The codec and level of CODEC[:LEVEL]. Raises ValueError with one sentence."""
    name, colon, level = text.partition(":")
    if name not in CODECS.values():
        raise ValueError(f"{name!r} is no codec; there are {', '.join(CODECS.values())}")
    if not colon:
        return Recompression(codec_id(name), None)
    if name not in LEVELS:
        raise ValueError(f"{name} has no levels: leave {colon}{level} out")
    least, most = LEVELS[name]
    if not level.removeprefix("-").isdecimal() or not least <= int(level) <= most:
        raise ValueError(f"{name} has the levels {least} to {most}, not {level!r}")
    return Recompression(codec_id(name), int(level))


def recompress(disk: StagedDisk, job: PartitionJob, target: Recompression, on_moved: Callable[[int], None]) -> PartitionPlan:
    """Rewrite a partition's batches on a staged disk -> what changed. Raises FormatError and OSError."""
    config = job.config
    finish_leftovers(LiveDisk(disk), job.path, IndexSettings(config.index_interval_bytes, config.segment_index_bytes))
    work = _Recompressing(disk, job, target, on_moved)
    segments = read_partition(disk, job.path).segments
    sizes = {segment.base_offset: disk.size(segment.log) for segment in segments}
    asked = [slot for slot, segment in enumerate(segments) if work.has_work(segment)]
    for segment in segments[asked[0] : asked[-1] + 1] if asked else ():
        work.rewrite(segment)
    left_bytes = sum(sizes.values()) - work.size_bytes + work.size_bytes_left
    return PartitionPlan(
        records=work.records,
        records_left=work.records,
        size_bytes=work.size_bytes,
        size_bytes_left=work.size_bytes_left,
        segments=len(segments),
        segments_left=len(segments) + work.segments_more,
        log_bytes=sum(sizes.values()),
        log_bytes_left=left_bytes,
        batches=work.batches,
        legacy_batches=work.legacy_batches,
    )


class _Recompressing:
    """The segments of a partition, one after the other, and what was met."""

    def __init__(self, disk: StagedDisk, job: PartitionJob, target: Recompression, on_moved: Callable[[int], None]) -> None:
        self._disk = disk
        self._job = job
        self._target = target
        self._on_moved = on_moved
        self.batches = self.legacy_batches = self.records = 0
        self.size_bytes = self.size_bytes_left = self.segments_more = 0

    def has_work(self, segment: Segment) -> bool:
        """Whether a batch of the segment is to get another codec, by the headers alone."""
        file = self._disk.open_file(segment.log)
        try:
            found = False
            for header in HeaderWalk(file, 0, file.size()).headers():
                if not isinstance(header, RecordBatch):
                    self.legacy_batches += 1
                elif self._is_asked(header):
                    found = True
            return found
        finally:
            file.close()

    def _is_asked(self, header: RecordBatch) -> bool:
        if header.is_control or not header.record_count:
            return False
        return header.codec != self._target.codec or self._target.level is not None

    def rewrite(self, segment: Segment) -> None:
        """Write a segment anew, and put it in its place on the staged disk."""
        mtime_ms = self._disk.mtime_ms(segment.log)
        waiting = self._aborted_in(segment)
        news = [self._begin(segment.base_offset)]
        with SegmentReader(self._disk, segment.log) as reader:
            for batch in reader.batches(resynchronise=False):
                if isinstance(batch, Damage) or not batch.is_valid:
                    position = batch.position
                    raise CorruptRecordError(f"{reader.path}: the batch at byte {position} is damaged", position)
                header = batch.header
                with located(reader, batch):
                    data = self._converted(batch)
                if not self._fits(news[-1], len(data), header.last_offset):
                    news.append(self._begin(header.base_offset))
                news[-1].append(data, header.last_offset, header.max_timestamp)
                # A transaction's entry lies in the segment of its marker.
                while waiting and waiting[0].last_offset <= header.last_offset:
                    news[-1].add_aborted([waiting.pop(0)])
                self.size_bytes += header.size_bytes
                self.size_bytes_left += len(data)
                self._on_moved(2 * header.size_bytes)
        news[-1].add_aborted(waiting)
        for new in news:
            new.finish(mtime_ms)
        self._put(segment, news)
        self.segments_more += len(news) - 1

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

    def _converted(self, batch: LogBatch) -> Buffer:
        """A batch under the codec asked for."""
        header = batch.header
        data: Buffer = batch.read_whole() if batch.data is None else batch.data
        if not isinstance(header, RecordBatch):
            return data
        self.records += header.record_count
        if not self._is_asked(header):
            return data
        self.batches += 1
        records = inflate(header.codec, memoryview(data)[HEADER_BYTES:], limit=limits.MAX_INFLATED_BATCH_BYTES)
        return NewRecordBatch(
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            record_count=header.record_count,
            records=deflate(self._target.codec, records, level=self._target.level),
            attributes=header.attributes & ~CODEC_MASK | self._target.codec,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        ).encode()
