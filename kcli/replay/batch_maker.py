"""Makes the batches to send from those of a log.

    batch of the source                                   what is sent
    ----------------------------------------------------  ------------------------------------------------------------------
    format 2, all records selected, no gaps, CreateTime   its bytes; only the header changes (kcli.replay.outgoing_batch)
    format 2, else                                        its selected records, not decoded, with the offset deltas 0, 1, 2,
                                                          compressed again with the same codec; of LogAppendTime each record
                                                          gets the broker's timestamp, as CreateTime
    compressed set of format 0 or 1                       a batch of format 2 of its selected messages
    single messages of format 0 or 1                      batches of format 2 of up to GATHERED_BYTES
    control batch, empty batch                            nothing: a producer cannot write them
    wrong CRC                                             nothing; Damage
    with `join_bytes` (--join): adjacent batches of the   one batch of up to that size: a partition takes one batch a
    first row that are not compressed                     request, so that small batches cost a broker more than their bytes

A broker refuses a batch whose offsets have gaps, such as one that a cleaner has left, and one with LogAppendTime.

The batches depend on the log and the selection only: a run that goes on makes the same ones, which is how it finds out what the
target has (kcli.replay.recovery).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kcli.format.compression import deflate
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord
from kcli.format.legacy_upgrade import UpgradedBatch
from kcli.format.primitives import FormatError, InvalidRecordError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_FLAG, NewRecordBatch, RecordBatch
from kcli.format.record_copy import renumber_records
from kcli.inspect.dumping.record_filter import ALL, NONE, Indexes, RecordFilter
from kcli.inspect.dumping.selected_log import BAD_RECORDS, Budget
from kcli.inspect.quantities import format_offsets
from kcli.inspect.sound_batches import BAD_CRC
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.replay.outgoing_batch import OutgoingBatch, WatchedOffset

# The default of the producer's batch.size.
GATHERED_BYTES = 16384

Made = OutgoingBatch | Damage


class BatchMaker:
    """Makes the batches of one partition, in the order of its log.

    `watched` are offsets of the source, ascending; the batches report where in the target each of them is. No batch is joined
    across `cut_offset`, where an earlier run ended.
    """

    def __init__(
        self,
        record_filter: RecordFilter,
        budget: Budget,
        watched: Sequence[int] = (),
        join_bytes: int = 0,
        cut_offset: int = 0,
    ) -> None:
        self.filter = record_filter
        self.budget = budget
        self._join_bytes = join_bytes
        self._cut_offset = cut_offset
        self._joined: _Joined | None = None
        self._watched = list(watched)
        self._next_watched = 0
        self._scanner = RecordScanner()
        self._gathered: _Gathered | None = None

    def make(self, batch: LogBatch) -> Iterator[Made]:
        """Yield what is sent for the next batch of the log, and its damage."""
        header = batch.header
        if not batch.is_valid:
            message = f"the stored CRC is {header.crc}, the computed one {batch.computed_crc}"
            stated = format_offsets(header.base_offset, header.next_offset)
            yield Damage(batch.position, batch.end_position, BAD_CRC, f"{message}; its header states {stated}")
            return
        if isinstance(header, RecordBatch):
            yield from self._take_gathered()
            if not header.is_control and header.record_count > 0:
                yield from self._of_format_2(batch, header)
        else:
            yield from self._legacy(batch, header)

    def finish(self) -> Iterator[OutgoingBatch]:
        """Yield what waits for more: gathered messages, joined batches; to be called at the end of the log."""
        yield from self._take_gathered()
        yield from self._take_joined()

    # ---------------------------------------------------------------------------------------------------------- format 2

    def _of_format_2(self, batch: LogBatch, header: RecordBatch) -> Iterator[Made]:
        verdict = self.filter.verdict(header)
        if verdict == NONE:
            return
        limit = self.budget.limit
        if (
            verdict == ALL
            and header.last_offset_delta + 1 == header.record_count
            and not header.is_log_append_time
            and not self.budget.skip
            and (limit.left is None or limit.left >= header.record_count)
        ):
            if limit.left is not None:
                limit.left -= header.record_count
            if self._join_bytes and not header.codec and header.size_bytes < self._join_bytes:
                yield from self._join(batch, header)
                return
            yield from self._take_joined()
            yield self._whole(batch, header, self._passed(header.next_offset))
            return
        yield from self._take_joined()
        yield from self._copied(batch, header, verdict)

    def _whole(self, batch: LogBatch, header: RecordBatch, passed: Sequence[int]) -> OutgoingBatch:
        data = bytearray(batch.read_whole() if batch.data is None else batch.data)
        watched = tuple(WatchedOffset(offset, max(offset - header.base_offset, 0)) for offset in passed)
        return OutgoingBatch(
            data,
            header.record_count,
            header.base_offset,
            header.next_offset,
            header.base_timestamp,
            header.size_bytes,
            watched,
        )

    def _join(self, batch: LogBatch, header: RecordBatch) -> Iterator[Made]:
        """Add a whole batch to those that are joined."""
        joined = self._joined
        if joined is not None and (
            joined.size_bytes + header.size_bytes > self._join_bytes
            or joined.first_offset < self._cut_offset <= header.base_offset
        ):
            yield from self._take_joined()
        if self._joined is None:
            self._joined = _Joined(header)
        watched = self._passed(header.next_offset)
        try:
            fault = self._joined.add(batch, header, self._scanner, watched)
        except InvalidRecordError:  # no batch has timestamps that are so far apart, as those of these two
            yield from self._take_joined()
            yield self._whole(batch, header, watched)
            return
        if fault is not None:
            yield Damage(batch.position, batch.end_position, BAD_RECORDS, str(fault))

    def _take_joined(self) -> Iterator[OutgoingBatch]:
        joined, self._joined = self._joined, None
        if joined is not None and joined.count:
            yield joined.finished()

    def _copied(self, batch: LogBatch, header: RecordBatch, verdict: int) -> Iterator[Made]:
        """Yield a batch of the selected records."""
        copy = _Copy(header)
        damage: Damage | None = None
        for window in batch.windows(self._scanner):
            indexes = self.budget.take(self.filter.indexes(header, window, verdict))
            fault: FormatError | None = window.error
            try:
                if len(indexes):
                    copy.add(window, indexes)
            except InvalidRecordError as error:
                fault = error
            if fault is not None:
                damage = Damage(batch.position, batch.end_position, BAD_RECORDS, str(fault))
                break
            if self.budget.is_spent():
                break
        if copy.offsets:
            yield copy.finished(self._places(copy.offsets, header.next_offset))
        if damage is not None:
            yield damage

    # ------------------------------------------------------------------------------------------------- formats 0 and 1

    def _legacy(self, batch: LogBatch, header: LegacyBatch) -> Iterator[Made]:
        verdict = self.filter.verdict(header)
        if verdict == NONE:
            return
        yield from self._take_joined()
        if header.codec:
            yield from self._take_gathered()
        for window in batch.windows(self._scanner):
            indexes = self.budget.take(self.filter.indexes(header, window, verdict))
            for index in indexes:
                record = (window.legacy or [])[index]
                if not record.is_valid:
                    message = f"the message of offset {record.offset} has a wrong CRC"
                    yield Damage(batch.position, batch.end_position, BAD_CRC, message)
                    continue
                yield from self._gather(header, record)
            if window.error is not None:
                yield Damage(batch.position, batch.end_position, BAD_RECORDS, str(window.error))
            if self.budget.is_spent():
                break
        if self._gathered is not None:
            self._gathered.source_bytes += header.size_bytes
        if header.codec:
            yield from self._take_gathered()

    def _take_gathered(self) -> Iterator[OutgoingBatch]:
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            yield self._finished(gathered)

    def _gather(self, header: LegacyBatch, record: LegacyRecord) -> Iterator[OutgoingBatch]:
        gathered = self._gathered
        if gathered is not None and (
            not gathered.may_take(header, record) or gathered.offsets[0] < self._cut_offset <= record.offset
        ):
            yield from self._take_gathered()
        if self._gathered is None:
            self._gathered = _Gathered(header.codec)
        self._gathered.add(record)

    def _finished(self, gathered: _Gathered) -> OutgoingBatch:
        return gathered.finished(self._places(gathered.offsets, gathered.offsets[-1] + 1))

    # -------------------------------------------------------------------------------------------------- watched offsets

    def _passed(self, next_offset: int) -> list[int]:
        """Return the watched offsets below the end of a batch that no batch before has passed."""
        first = self._next_watched
        self._next_watched = bisect_left(self._watched, next_offset, first)
        return self._watched[first : self._next_watched]

    def _places(self, offsets: Sequence[int], next_offset: int) -> tuple[WatchedOffset, ...]:
        return tuple(WatchedOffset(offset, bisect_left(offsets, offset)) for offset in self._passed(next_offset))


class _Copy:
    """A batch in the making of records of another one; `offsets` are those of its records in the source."""

    def __init__(self, header: RecordBatch) -> None:
        self.offsets: list[int] = []
        self._header = header
        self._records = bytearray()
        self._base_timestamp = header.max_timestamp
        self._max_timestamp = header.max_timestamp

    def add(self, window: RecordWindow, indexes: Indexes) -> None:
        """Add records of a window. Raises InvalidRecordError for timestamps that are too far apart."""
        columns, count = window.columns, window.count
        if self._header.is_log_append_time:
            timestamps = array("q", [self._header.max_timestamp]) * count
        else:
            timestamps = columns.timestamp[:count]
        stamps = [timestamps[index] for index in indexes]
        if not self.offsets:
            self._base_timestamp, self._max_timestamp = stamps[0], max(stamps)
        kept = bytearray(count)
        for index in indexes:
            kept[index] = 1
        if len(stamps) < count:
            # Timestamps that are not copied must not stop the copy.
            timestamps = array("q", (stamp if kept[at] else self._base_timestamp for at, stamp in enumerate(timestamps)))
        self._records += renumber_records(
            window.buffer, columns, count, kept, self._base_timestamp, timestamps, len(self.offsets)
        )
        self._max_timestamp = max(self._max_timestamp, *stamps) if len(stamps) > 1 else max(self._max_timestamp, stamps[0])
        self.offsets += [columns.offset[index] for index in indexes]

    def finished(self, watched: tuple[WatchedOffset, ...]) -> OutgoingBatch:
        """Return the batch."""
        header, count = self._header, len(self.offsets)
        codec = header.attributes & CODEC_MASK
        data = NewRecordBatch(
            base_offset=0,
            last_offset_delta=count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            record_count=count,
            records=deflate(codec, self._records) if codec else self._records,
            attributes=header.attributes & ~LOG_APPEND_TIME_FLAG,
        ).encode()
        first, size = self.offsets[0], header.size_bytes
        stamp = self._base_timestamp
        return OutgoingBatch(bytearray(data), count, first, header.next_offset, stamp, size, watched, bool(codec))


class _Joined:
    """Adjacent batches that become one; `count` records in `size_bytes`."""

    def __init__(self, header: RecordBatch) -> None:
        self.count = 0
        self._first = self._last = header
        self._max_timestamp = header.max_timestamp
        self._source_bytes = 0
        self._watched: list[WatchedOffset] = []
        self._records = bytearray()

    @property
    def size_bytes(self) -> int:
        """The size of the batch, about: deltas may grow by some bytes."""
        return HEADER_BYTES + len(self._records)

    @property
    def first_offset(self) -> int:
        """The offset of the first batch."""
        return self._first.base_offset

    def add(self, batch: LogBatch, header: RecordBatch, scanner: RecordScanner, watched: Sequence[int]) -> FormatError | None:
        """Add the records of a batch; return the error of the first that is damaged.

        Raises InvalidRecordError for timestamps that are too far from those of the first batch; then nothing is added.
        """
        places = [WatchedOffset(offset, self.count + max(offset - header.base_offset, 0)) for offset in watched]
        fault: FormatError | None = None
        size_before, count_before = len(self._records), self.count
        try:
            for window in batch.windows(scanner):
                columns, count = window.columns, window.count
                self._records += renumber_records(
                    window.buffer,
                    columns,
                    count,
                    bytearray(b"\1") * count,
                    self._first.base_timestamp,
                    columns.timestamp[:count],
                    self.count,
                )
                self.count += count
                fault = window.error
        except InvalidRecordError:
            del self._records[size_before:]
            self.count = count_before
            raise
        self._watched += places
        self._last = header
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._source_bytes += header.size_bytes
        return fault

    def finished(self) -> OutgoingBatch:
        """Return the batch."""
        first = self._first
        data = NewRecordBatch(
            base_offset=0,
            last_offset_delta=self.count - 1,
            base_timestamp=first.base_timestamp,
            max_timestamp=self._max_timestamp,
            record_count=self.count,
            records=self._records,
        ).encode()
        return OutgoingBatch(
            bytearray(data),
            self.count,
            first.base_offset,
            self._last.next_offset,
            first.base_timestamp,
            self._source_bytes,
            tuple(self._watched),
        )


class _Gathered:
    """A batch in the making of messages of format 0 or 1."""

    def __init__(self, codec: int) -> None:
        self.offsets: list[int] = []
        self.source_bytes = 0
        self._codec = codec
        self._timestamp = 0
        self._batch = UpgradedBatch(is_log_append_time=False)

    def may_take(self, header: LegacyBatch, record: LegacyRecord) -> bool:
        """Return whether a message belongs in this batch."""
        if header.codec != self._codec or not self._batch.holds(record.timestamp):
            return False
        size = self._batch.size_bytes + len(record.key or b"") + len(record.value or b"")
        return bool(self._codec) or size <= GATHERED_BYTES

    def add(self, record: LegacyRecord) -> None:
        """Add a message."""
        if not self.offsets:
            self._timestamp = record.timestamp
        self._batch.add(record._replace(offset=len(self.offsets)))
        self.offsets.append(record.offset)

    def finished(self, watched: tuple[WatchedOffset, ...]) -> OutgoingBatch:
        """Return the batch."""
        data = bytearray(self._batch.encode(self._codec))
        first, next_offset = self.offsets[0], self.offsets[-1] + 1
        count, size = len(self.offsets), self.source_bytes
        return OutgoingBatch(data, count, first, next_offset, self._timestamp, size, watched, bool(self._codec))
