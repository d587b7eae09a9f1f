"""A log read from a position, as events: the batches and records that a Selection selects, and damage.

The walk ends when two batches in a row begin after the offsets asked for: the offset of one may be a flipped bit.
kcli.selecting.lookup finds the position to begin at. Damage is reported also in batches that are not selected, because
their headers cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format import limits
from kcli.format.record_batch import RecordBatch
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.selecting.record_filter import ALL, NONE, Indexes, RecordFilter

# Kinds of Damage in addition to those of kcli.log.reading.segment_reader: a whole batch with a wrong CRC, or with offsets that
# something else contradicts; records in a batch.
BAD_CRC = "bad-crc"
BAD_OFFSETS = "bad-offsets"
BAD_RECORDS = "bad-records"


class SelectedRecords(NamedTuple):
    """The selected records of a window: `indexes` into its columns, ascending and not empty."""

    batch: LogBatch
    window: RecordWindow
    indexes: Indexes


class Note(NamedTuple):
    """A remark on a log that is not damage; one sentence."""

    message: str


# A LogBatch comes before its records. Batches and windows are valid until the next event.
Event = LogBatch | SelectedRecords | Damage | Note


class Limit:
    """How many selected records may still be given out; None for any number."""

    __slots__ = ("left",)

    def __init__(self, left: int | None = None) -> None:
        self.left = left


class Budget:
    """How many selected records of a log to skip first, and the limit, which several logs may share, on the ones after."""

    __slots__ = ("limit", "skip")

    def __init__(self, limit: Limit | None = None) -> None:
        self.limit = Limit() if limit is None else limit
        self.skip = 0

    def is_spent(self) -> bool:
        """Return True if no more records are to be given out."""
        return self.limit.left is not None and self.limit.left <= 0

    def take(self, indexes: Indexes) -> Indexes:
        """Return those of the records that are to be given out, and count them."""
        if self.skip:
            skipped = min(self.skip, len(indexes))
            self.skip -= skipped
            indexes = indexes[skipped:]
        if self.limit.left is not None:
            indexes = indexes[: self.limit.left]
            self.limit.left -= len(indexes)
        return indexes


class Selector:
    """Turns batches into events: a batch, then its selected records.

    With `only_sound` a batch with a wrong CRC gives nothing but Damage, as needed where records are counted, or shown without
    their batch. The window of a record above `large_bytes` is `left_out`: it has offset, timestamp and sizes only.
    """

    def __init__(
        self,
        record_filter: RecordFilter,
        budget: Budget,
        *,
        only_sound: bool = False,
        large_bytes: int = limits.MAX_SHOWN_RECORD_BYTES,
    ) -> None:
        self.filter = record_filter
        self.budget = budget
        self._only_sound = only_sound
        self._large_bytes = large_bytes
        self._scanner = RecordScanner()

    def events(self, batch: LogBatch) -> Iterator[Event]:
        """Yield the selected parts of one batch, and its damage."""
        verdict = self._verdict(batch)
        # A damaged batch is shown before its damage, whatever is selected: else the batch before seems to be damaged.
        is_shown = (verdict == ALL and not self.budget.skip) or not (batch.is_valid or self._only_sound)
        if is_shown:
            yield batch
        if not batch.is_valid:
            yield batch_damage(batch, with_offsets=self._only_sound)
        if verdict == NONE:
            return
        for window in self._windows(batch):
            if window.left_out and self.filter.looks_inside:
                offset = window.columns.offset[0]
                yield Note(f"the record at offset {offset} is larger than {self._large_bytes} bytes and was not searched")
            indexes = self.budget.take(self.filter.indexes(batch.header, window, verdict))
            if indexes:
                if not is_shown:
                    is_shown = True
                    yield batch
                yield SelectedRecords(batch, window, indexes)
            if window.error is not None:
                yield Damage(batch.position, batch.end_position, BAD_RECORDS, str(window.error))
            if self.budget.is_spent():
                return

    def count(self, batch: LogBatch) -> int:
        """Return how many records of a batch are selected."""
        verdict = self._verdict(batch)
        if verdict == NONE:
            return 0
        if verdict == ALL and isinstance(batch.header, RecordBatch) and batch.is_valid:
            return batch.header.record_count
        return sum(len(self.filter.indexes(batch.header, window, verdict)) for window in self._windows(batch))

    def _verdict(self, batch: LogBatch) -> int:
        return NONE if self._only_sound and not batch.is_valid else self.filter.verdict(batch.header)

    def _windows(self, batch: LogBatch) -> Iterator[RecordWindow]:
        return batch.windows(self._scanner, skip_large=True, large_bytes=self._large_bytes)


def batch_damage(batch: LogBatch, *, with_offsets: bool) -> Damage:
    """Return the damage that an unsound batch is; its sentence has the offsets in its header if they are not shown."""
    if batch.contradiction is not None:
        return Damage(batch.position, batch.end_position, BAD_OFFSETS, batch.contradiction)
    message, header = f"the stored CRC is {batch.header.crc}, the computed one {batch.computed_crc}", batch.header
    if with_offsets:
        first, last = header.base_offset, header.last_offset
        message += f"; its header states offset {first}" if first == last else f"; its header states offsets {first} to {last}"
    return Damage(batch.position, batch.end_position, BAD_CRC, message)


def walk(reader: SegmentReader, position: int, selector: Selector) -> Iterator[Event]:
    """Yield the events of one segment from byte `position`, where a batch must begin. Raises OSError as the disk does."""
    end_offset = selector.filter.selection.offsets.end
    beyond = 0
    if selector.budget.is_spent():
        return
    for found in reader.batches(position):
        if isinstance(found, Damage):
            yield found
            continue
        if end_offset is not None and found.header.base_offset >= end_offset:
            beyond += 1
            if beyond > 1:
                return
        else:
            beyond = 0
        yield from selector.events(found)
        if selector.budget.is_spent():
            return
