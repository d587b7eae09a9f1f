"""Converts batches to another codec, one after the other.

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
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcli.format import limits
from kcli.format.compression import deflate, inflate
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord, UpgradedBatch, iter_records
from kcli.format.primitives import INT32_MAX, Buffer, CorruptRecordError, InflationLimitError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, RecordBatch, with_records
from kcli.inspect.compacting.jobs import Recompression
from kcli.log.reading.segment_reader import LogBatch


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
