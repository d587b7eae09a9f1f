"""What else shows the offsets of a batch: no CRC covers the base offset, so that a wrong bit in it may move a batch.

    witness                           supports the header if it             contradicts the header if it
    --------------------------------  ------------------------------------  -----------------------------------------------
    the batch before, the name of     ends directly before the batch        never: the cleaner makes gaps
      the segment for the first one
    the entry of .index at the        has the last offset, or in a batch    has another offset; one above the last offset
      batch's byte                      that was cleaned one of its           only if the batch is the last one, or the batch
                                        offsets                               behind begins above it: an entry of several
                                                                              batches has the offset of the last
    the entry of .timeindex with the  has an offset of the batch            has another one that no batch before has, and
      batch's largest timestamp                                               if it is above, the batch is the last one

The last batch of a segment is contradicted if a witness contradicts it and none supports it: no batch behind it shows its
fault, and it alone decides where the log ends. So a wrong entry of an index costs no sound batch that directly follows another.

Any other batch is contradicted if its entry of .index contradicts it and is the cheaper explanation, by the costs of
kcli.log.reading.explanation: the entry's offset fits between the batches before and behind, and what else is wrong then (the
damaged field, gaps, an entry of .timeindex) costs less than with the header, or as much while no batch supports the header. A
repair decides the same. A batch to which no entry points, in the middle of a cleaned log, has no witness.

Readers treat a contradicted batch as damage. Only entries of .index are compared, with headers that are read anyway: a sound
log costs a look for each entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kcli.format.batch_scan import match_headers
from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.index_entries import OffsetIndex
from kcli.format.primitives import Buffer
from kcli.format.record_batch import HEADER_BYTES, MAGIC, MAGIC_POSITION, RecordBatch, read_header
from kcli.log.disk.port import DiskFile
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.index_positions import IndexPositions

# How many batches may follow an entry.
_MOST_BATCHES = 10_000


class Contradiction(NamedTuple):
    """The batch at byte `position` has other offsets than its header states; `message` is a clause."""

    position: int
    message: str


class OffsetWitnesses:
    """What the indexes show of the segment `file`. The methods raise OSError as the disk does for the segment."""

    def __init__(self, file: DiskFile, indexes: IndexPositions) -> None:
        self._file = file
        self._indexes = indexes

    def of_last(self, end: int) -> Contradiction | None:
        """Return what contradicts the batch that ends the segment at byte `end`, None if nothing does."""
        base_offset = self._indexes.base_offset
        if base_offset is None or end != self._file.size():
            return None
        index = self._indexes.near(end, end, before=2)
        slots = range(bisect_left(index.positions, end))[-2:]
        if not slots:
            return None
        entry = index.entry(slots[-1])
        start = index.positions[slots[0]] if len(slots) > 1 else 0
        walk = HeaderReader(self._file, start, end)
        before, last = None, None
        for count, header in enumerate(walk.headers()):
            if count > _MOST_BATCHES:
                return None
            before, last = last, header
        if not isinstance(last, RecordBatch) or walk.position != end:
            return None
        named = entry.offset if entry.position == last.position else None
        floor = before.next_offset if before is not None else None if start else base_offset
        if floor == last.base_offset or named == last.last_offset or (named is not None and _is_inside(last, named)):
            return None
        against = [] if named is None else [self._by_index(named)]
        of_time = self._of_time(last.max_timestamp, floor)
        if of_time is not None:
            if last.base_offset <= of_time <= last.last_offset:
                return None
            name = segment_file_name(base_offset, FileKind.TIME_INDEX)
            against.append(f"the entry of {name} with its timestamp has offset {of_time}")
        return _contradiction(last, against) if against else None

    def of_read(self, buffer: Buffer, start: int, filled: int, position: int) -> Contradiction | None:
        """Return what contradicts the first contradicted batch, but the last one, whose header is in buffer[start:filled].

        These bytes are those of the segment from byte `position` on.
        """
        end = position + filled - start - HEADER_BYTES
        index = self._indexes.near(position, end)
        slot = bisect_left(index.positions, position)
        while slot < len(index):
            columns = index.relative_offsets, index.positions
            slot = match_headers(buffer, start, filled, position, *columns, slot, index.base_offset)
            if slot == len(index) or index.positions[slot] > end:
                break
            found = self._of_slot(index, slot)
            if found is not None:
                return found
            slot += 1
        return None

    def all(self) -> Iterator[Contradiction]:
        """Yield what contradicts the batches to which entries of .index point, and the last one.

        One header is read for each entry; those around it only where it does not fit.
        """
        index = self._indexes.index
        yield from (found for slot in range(len(index)) if (found := self._of_slot(index, slot)) is not None)
        last = self.of_last(self._file.size())
        if last is not None:
            yield last

    def _of_slot(self, index: OffsetIndex, slot: int) -> Contradiction | None:
        """Return what contradicts the batch to which the entry in `slot` points, unless it is the last one."""
        named, position = index.entry(slot)
        head = self._file.read_at(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[MAGIC_POSITION] != MAGIC:
            return None
        header = read_header(head, 0, position)
        first, last, end = header.base_offset, header.last_offset, header.end_position
        if named == last or _is_inside(header, named) or not position < end < self._file.size():
            return None
        from kcli.log.reading.explanation import CLEANED_GAP, ENTRY, OFFSET_BYTES, difference

        behind = int.from_bytes(self._file.read_at(end, OFFSET_BYTES), "big", signed=True)
        if named >= behind:
            return None  # the entry is that of several batches, or wrong
        start = index.positions[slot - 1] if slot else 0
        walk, floor = HeaderReader(self._file, start, position), index.base_offset
        for before in islice(walk.headers(), _MOST_BATCHES):
            floor = before.next_offset
        right = first + named - last
        if walk.position != position or right < floor:
            return None  # the entry points into a batch, or is wrong
        of_time = self._of_time(header.max_timestamp, floor)

        def others(base_offset: int) -> int:
            next_offset = base_offset + last - first + 1
            is_of_time = of_time is None or base_offset <= of_time < next_offset
            return CLEANED_GAP * ((base_offset != floor) + (next_offset != behind)) + (0 if is_of_time else ENTRY)

        saved = difference(named, last) + others(first) - difference(first, right) - others(right)
        is_read_possible = floor <= first <= last < behind
        if is_read_possible and (saved < 0 or (saved == 0 and first == floor)):
            return None
        return _contradiction(header, [self._by_index(named)])

    def _of_time(self, timestamp_ms: int, floor: int | None) -> int | None:
        """Return the offset of the entry of .timeindex with a timestamp, if no batch before has it."""
        offset = self._indexes.times.get(timestamp_ms) if timestamp_ms >= 0 else None
        return None if offset is None or (floor is not None and offset < floor) else offset

    def _by_index(self, named: int) -> str:
        return (
            f"the entry of {segment_file_name(self._indexes.base_offset or 0, FileKind.INDEX)} at its byte has offset {named}"
        )


def _is_inside(header: RecordBatch, named: int) -> bool:
    """Return True if an entry may have an offset of a batch that was cleaned."""
    from kcli.log.reading.explanation import is_thinned  # few logs need it, and importing it takes a millisecond

    return is_thinned(header) and header.base_offset <= named <= header.last_offset


def _contradiction(header: RecordBatch, against: list[str]) -> Contradiction:
    message = f"the batch states offsets {header.base_offset} to {header.last_offset}, but {' and '.join(against)}"
    return Contradiction(header.position, message)
