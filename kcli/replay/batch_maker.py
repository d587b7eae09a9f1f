"""Makes the batches to send from those of a log.

    batch of the source                                   what is sent
    ----------------------------------------------------  ------------------------------------------------------------------
    format 2, all records selected, no gaps, CreateTime   its bytes; only the header changes (kcli.replay.source)
    format 2, else                                        its selected records, not decoded, with the offset deltas 0, 1, 2,
                                                          compressed again with the same codec; of LogAppendTime each record
                                                          gets the broker's timestamp, as CreateTime
    compressed set of format 0 or 1                       a batch of format 2 of its selected messages
    single messages of format 0 or 1                      batches of format 2 of up to GATHERED_BYTES
    control batch, empty batch                            nothing: a producer cannot write them
    wrong CRC                                             nothing; Damage
    with `join_bytes` (--join): adjacent batches of the   one batch of up to that size: a partition takes one batch a
    first row that are small and not compressed           request, so that small batches cost a broker more than their bytes

A broker refuses a batch whose offsets have gaps, such as one that a cleaner has left, and one with LogAppendTime.

The batches depend on the log and the selection only: a run that goes on makes the same ones, which is how it finds out what the
target has (kcli.replay.preparation).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcli.format import loop_results
from kcli.format.batch_join import JoinedBatch, JoinSpace
from kcli.format.compression import deflate
from kcli.format.legacy_message_set import GATHERED_BYTES, LegacyBatch, LegacyRecord, UpgradedBatch
from kcli.format.primitives import INT64_MAX, FormatError, InvalidRecordError, crc32c
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_FLAG, NewRecordBatch, RecordBatch, read_header
from kcli.format.record_copy import renumber_records
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.replay.source import EarlierRun, OutgoingBatch, WatchedOffset
from kcli.selecting.record_filter import ALL, NONE, Indexes, RecordFilter
from kcli.selecting.selected_log import BAD_CRC, BAD_RECORDS, Budget, batch_damage
from kcli.selecting.selection import Range, Selection

# A larger batch is not joined: the time for its request is shorter than the time for its bytes.
SMALL_BATCH_BYTES = 65536
MOST_JOIN_BYTES = 64 * 1024 * 1024

Made = OutgoingBatch | Damage


class Joining(NamedTuple):
    """How batches are joined: up to `most_bytes` bytes; 0: not at all.

    Earlier runs have sent batches of `sent_counts` records from `cut_offset` on. They are made again with the same records,
    even if the log has grown since or `most_bytes` has changed. No batch has records from before and after `cut_offset`.
    """

    most_bytes: int = 0
    cut_offset: int = 0
    sent_counts: tuple[int, ...] = ()

    @classmethod
    def after(cls, earlier: EarlierRun, from_offset: int, join_bytes: int) -> Joining:
        """Return how batches of up to `join_bytes` are joined after an earlier run."""
        most_bytes = join_bytes if earlier.most_bytes is None else min(join_bytes, earlier.most_bytes)
        cut_offset = from_offset if earlier.last_offset is None else earlier.last_offset
        return cls(most_bytes, cut_offset, earlier.sent_counts)


NO_JOINING = Joining()


class _EarlierCuts:
    """Where earlier runs have cut, so that this one cuts there, too: the two values of Joining, the counts one by one."""

    def __init__(self, joining: Joining) -> None:
        self.offset = joining.cut_offset
        self._counts = deque(joining.sent_counts)

    @property
    def are_left(self) -> bool:
        """Whether a batch comes that an earlier run has sent: how many records it has depends on where it begins."""
        return bool(self._counts)

    def was_sent(self, first_offset: int) -> bool:
        """Return whether an earlier run has sent the next batch, if that begins at an offset."""
        return bool(self._counts) and first_offset >= self.offset

    def most_records(self, first_offset: int) -> int:
        """Return how many records the next batch may have."""
        return self._counts[0] if self.was_sent(first_offset) else INT64_MAX

    def lacks_records(self, joined: JoinedBatch) -> bool:
        """Return whether an earlier run, which may have had another limit, has sent this batch with more records."""
        return self.was_sent(joined.first_offset) and joined.count < self._counts[0] and joined.size < MOST_JOIN_BYTES

    def divides(self, first_offset: int, next_record: int) -> bool:
        """Return whether a batch that begins at an offset has to end before a record."""
        return first_offset < self.offset <= next_record

    def passed(self, batch: OutgoingBatch) -> OutgoingBatch:
        """Return a batch that is sent now; the next one is the one after it."""
        if self.was_sent(batch.first_offset):
            self._counts.popleft()
        return batch


class BatchMaker:
    """Makes the batches of one partition, in the order of its log.

    `watched` are offsets of the source, ascending; the batches report where in the target each of them is.
    """

    def __init__(
        self,
        record_filter: RecordFilter,
        budget: Budget,
        watched: Sequence[int] = (),
        joining: Joining = NO_JOINING,
    ) -> None:
        self.filter = record_filter
        self.budget = budget
        self._join_bytes = joining.most_bytes
        self._small_bytes = min(joining.most_bytes, SMALL_BATCH_BYTES)
        self._cuts = _EarlierCuts(joining)
        self._join_space = JoinSpace() if joining.most_bytes or joining.sent_counts else None
        self._joined: JoinedBatch | None = None
        self._joined_timestamp: int | None = None  # of the first record, if that is not the base timestamp
        self._joined_watched: list[WatchedOffset] = []
        self.joined_offset = 0  # the offset after the batch that `join_run` has joined last
        self._takes_whole = record_filter.selection._replace(offsets=Range(), read_committed=False) == Selection()
        self._watched = list(watched)
        self._next_watched = 0
        self._scanner = RecordScanner()
        self._gathered: _Gathered | None = None

    def make(self, batch: LogBatch) -> Iterator[Made]:
        """Yield what is sent for the next batch of the log, and its damage."""
        header = batch.header
        if not batch.is_valid:
            yield batch_damage(batch, with_offsets=True)
            return
        if isinstance(header, RecordBatch):
            yield from self._take_gathered()
            if not header.is_control and header.record_count > 0:
                yield from self._of_format_2(batch, header)
        else:
            yield from self._legacy(batch, header)

    def join_run(
        self, buffer: memoryview, position: int, limit: int, first_offset: int, end_offset: int | None
    ) -> tuple[int, list[OutgoingBatch]]:
        """Join the plain batches at buffer[position:limit] within offsets; return the position of the first other one.

        Also return what is sent now. That is what `make` returns for these batches; `make` has to take the other one.
        """
        space = self._join_space
        if space is None or not self._takes_whole or self.budget.skip or self.budget.limit.left is not None:
            return position, []
        if limit - position < HEADER_BYTES or read_header(buffer, position).base_offset < first_offset:
            return position, []
        made = list(self._take_gathered())
        while True:
            joined = self._joined
            if joined is None:
                joined = self._joined = self._new_joined(space)
            if joined.first_offset < 0 and self._cuts.are_left:
                return position, made
            joined.most_records = self._cuts.most_records(joined.first_offset)
            joined.least_offset = self.filter.selection.offsets.first or 0
            joined.stop_offset = self._stop_offset(joined.first_offset, INT64_MAX if end_offset is None else end_offset)
            position = joined.take(buffer, buffer, position, limit, crc32c)
            if joined.next_offset >= 0:
                self.joined_offset = joined.next_offset
            if joined.status != loop_results.FULL or self._cuts.lacks_records(joined):
                return position, made
            made += self._take_joined()

    def _new_joined(self, space: JoinSpace) -> JoinedBatch:
        return JoinedBatch(space, max(self._join_bytes, HEADER_BYTES), self._small_bytes)

    def _stop_offset(self, joined_from: int, stop: int) -> int:
        """Return the first offset of which `make` has to see the batch."""
        if self.filter.selection.read_committed and self.filter.transactions is not None:
            stop = min(stop, self.filter.transactions.last_stable_offset)
        if self._next_watched < len(self._watched):
            stop = min(stop, self._watched[self._next_watched])
        return min(stop, self._cuts.offset) if max(joined_from, 0) < self._cuts.offset else stop

    def may_join_after(self, batch: LogBatch) -> bool:
        """Return whether `join_run` may take the batch that follows one that `make` has taken."""
        header = batch.header
        return (
            self._join_space is not None
            and self._takes_whole
            and isinstance(header, RecordBatch)
            and not header.attributes
            and batch.is_valid
            and header.size_bytes < self._small_bytes
        )

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
            # How small a batch had to be in an earlier run depends on `most_bytes` of that run.
            small_bytes = SMALL_BATCH_BYTES if self._cuts.was_sent(header.base_offset) else self._small_bytes
            if self._join_space is not None and not header.codec and header.size_bytes < small_bytes:
                yield from self._join(batch, header, self._join_space)
                return
            yield from self._take_joined()
            yield self._cuts.passed(self._whole(batch, header, self._passed(header.next_offset)))
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
            self._first_timestamp(batch, header),
            header.size_bytes,
            watched,
        )

    def _first_timestamp(self, batch: LogBatch, header: RecordBatch) -> int:
        """Return the timestamp of the first record: the base timestamp, unless that is a delete horizon (KIP-534)."""
        if header.delete_horizon_ms is None:
            return header.base_timestamp
        window = next(batch.windows(self._scanner), None)
        return window.columns.timestamp[0] if window is not None and window.count else header.max_timestamp

    def _join(self, batch: LogBatch, header: RecordBatch, space: JoinSpace) -> Iterator[Made]:
        """Add a whole batch to those that are joined."""
        joined = self._joined
        if joined is not None:
            joined.most_records = self._cuts.most_records(joined.first_offset)
            if self._cuts.lacks_records(joined):
                fits = joined.count + header.record_count <= joined.most_records
            else:
                fits = joined.fits(header.size_bytes, header.record_count)
            if not fits or (joined.first_offset >= 0 and self._cuts.divides(joined.first_offset, header.base_offset)):
                yield from self._take_joined()
                joined = None
        if joined is None:
            joined = self._joined = self._new_joined(space)
        if joined.first_offset < 0:
            joined.begin(header.base_offset, header.base_timestamp, header.max_timestamp)
            self._joined_timestamp = self._first_timestamp(batch, header)
        size, count = joined.size, joined.count
        try:
            fault = self._append(joined, batch)
        except InvalidRecordError:  # no batch has timestamps that are so far apart, as those of these two
            joined.size, joined.count = size, count
            yield from self._take_joined()
            yield self._cuts.passed(self._whole(batch, header, self._passed(header.next_offset)))
            return
        joined.pass_batch(header.next_offset, header.max_timestamp, header.size_bytes)
        for offset in self._passed(header.next_offset):
            # The record after the damaged ones is in their place.
            slot = min(count + max(offset - header.base_offset, 0), joined.count)
            self._joined_watched.append(WatchedOffset(offset, slot))
        if fault is not None:
            yield Damage(batch.position, batch.end_position, BAD_RECORDS, str(fault))

    def _append(self, joined: JoinedBatch, batch: LogBatch) -> FormatError | None:
        """Append the records of a batch; return the error of the first that is damaged. Raises InvalidRecordError."""
        fault: FormatError | None = None
        for window in batch.windows(self._scanner):
            columns, count = window.columns, window.count
            kept, timestamps = bytearray(b"\1") * count, columns.timestamp[:count]
            joined.append(
                renumber_records(window.buffer, columns, count, kept, joined.base_timestamp, timestamps, joined.count), count
            )
            fault = window.error
        return fault

    def _take_joined(self) -> Iterator[OutgoingBatch]:
        joined = self._joined
        if joined is None or joined.first_offset < 0:
            return
        self._joined = None
        watched, self._joined_watched = self._joined_watched, []
        timestamp, self._joined_timestamp = self._joined_timestamp, None
        if not joined.count:  # all its records are damaged: the next batch of any kind is in their place
            self._next_watched -= len(watched)
        else:
            count, first, next_offset = joined.count, joined.first_offset, joined.next_offset
            stamp, size = joined.base_timestamp if timestamp is None else timestamp, joined.source_bytes
            yield self._cuts.passed(OutgoingBatch(joined.finish(), count, first, next_offset, stamp, size, tuple(watched)))

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
            yield self._cuts.passed(copy.finished(self._places(copy.offsets, header.next_offset)))
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
            yield self._cuts.passed(self._finished(gathered))

    def _gather(self, header: LegacyBatch, record: LegacyRecord) -> Iterator[OutgoingBatch]:
        gathered = self._gathered
        if gathered is not None and (
            not gathered.may_take(header, record)
            or self._cuts.divides(gathered.offsets[0], record.offset)
            or len(gathered.offsets) == self._cuts.most_records(gathered.offsets[0])
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
        return header.codec == self._codec and self._batch.has_room(record, INT64_MAX if self._codec else GATHERED_BYTES)

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
