"""What else shows the offsets of a batch: no CRC covers the base offset, so that a wrong bit in it may move a batch.

    witness                           supports the header if it             contradicts the header if it
    --------------------------------  ------------------------------------  -----------------------------------------------
    the batch before, the name of     ends directly before the batch        never: the cleaner makes gaps
      the segment for the first one
    the entry of .index at the        has the last offset, or in a batch    has another offset; one above the last offset
      batch's byte                      that was cleaned one of its           only if the batch is the last one: an entry
                                        offsets                               of several batches has the offset of the last
    the entry of .timeindex with the  has an offset of the batch            has another one that no batch before has, and
      batch's largest timestamp                                               if it is above, the batch is the last one

A batch is contradicted if a witness contradicts it and none supports it. So a wrong entry of an index costs no sound batch: the
log goes on directly before it. Readers treat a contradicted batch as damage. It is looked for where it is known to hurt most:

- the last batch of a segment, for all readers: it alone decides where the log ends, and no batch behind it shows its fault;
- each batch with an entry of .index, for `kcli compact`, which writes the indexes anew by what the headers state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.index_entries import OffsetIndex, OffsetIndexEntry, TimeIndex, TimeIndexEntry
from kcli.format.record_batch import HEADER_BYTES, MAGIC, MAGIC_POSITION, RecordBatch, read_header
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk, DiskFile
from kcli.log.reading.explanation import is_thinned
from kcli.log.reading.header_reader import HeaderReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

# How much of the end of an index is read, if its end is in use, and how many batches may follow the entry before the last one.
_TAIL_ENTRIES = 512
_MOST_BATCHES = 10_000


class Contradiction(NamedTuple):
    """The batch at byte `position` has other offsets than its header states; `message` is a clause."""

    position: int
    message: str


def last_contradiction(disk: Disk, log_path: str, file: DiskFile, end: int) -> Contradiction | None:
    """Return what contradicts the offsets of the batch that ends a segment at byte `end`, None if nothing does.

    Raises OSError as the disk does for the segment; an index that cannot be read is no witness.
    """
    found = _Indexes.of(disk, log_path)
    if found is None or end != file.size():
        return None
    entries = [entry for entry in found.tail_of_offsets() if entry.position < end]
    if not entries or any(left.position >= right.position for left, right in pairwise(entries)):
        return None
    start = entries[-2].position if len(entries) > 1 else 0
    walk = HeaderReader(file, start, end)
    before, last = None, None
    for count, header in enumerate(walk.headers()):
        if count > _MOST_BATCHES:
            return None
        before, last = last, header
    if not isinstance(last, RecordBatch) or walk.position != end:
        return None
    named = entries[-1].offset if entries[-1].position == last.position else None
    floor = before.next_offset if before is not None else None if start else found.base_offset
    return found.contradiction(last, floor, named, is_last=True)


def contradictions(disk: Disk, log_path: str, file: DiskFile) -> Iterator[Contradiction]:
    """Yield what contradicts the batches to which entries of a segment's .index point. Raises OSError as the disk does.

    Only headers are read, one for each entry; those after it only where it does not fit.
    """
    found = _Indexes.of(disk, log_path)
    if found is None:
        return
    end, start = file.size(), 0
    for entry in found.offsets():
        if not start <= entry.position < end:
            return
        head = file.read_at(entry.position, HEADER_BYTES)
        header = read_header(head, 0, entry.position) if len(head) == HEADER_BYTES and head[MAGIC_POSITION] == MAGIC else None
        if header is not None and header.last_offset != entry.offset:
            floor, walk = None if start else found.base_offset, HeaderReader(file, start, entry.position)
            for before in walk.headers():
                floor = before.next_offset
            if walk.position != entry.position:
                continue  # the entry points into a batch
            contradiction = found.contradiction(header, floor, entry.offset, is_last=header.end_position == end)
            if contradiction is not None:
                yield contradiction
        start = entry.position


class _Indexes:
    """The indexes of the segment `log_path`, as witnesses."""

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._disk = disk
        self._directory = directory

    @classmethod
    def of(cls, disk: Disk, log_path: str) -> _Indexes | None:
        """Return those of a segment in use, None for another file."""
        directory, slash, name = log_path.rpartition("/")
        parsed = parse_file_name(name)
        if parsed.kind is not FileKind.LOG or parsed.state is not FileState.CURRENT or parsed.base_offset is None:
            return None
        return cls(disk, directory + slash, parsed.base_offset)

    def offsets(self) -> Iterator[OffsetIndexEntry]:
        """Yield the entries of `.index`."""
        return OffsetIndex.decode(self._read(FileKind.INDEX), self.base_offset).entries()

    def tail_of_offsets(self) -> list[OffsetIndexEntry]:
        """Return the last entries of `.index`."""
        data = self._read(FileKind.INDEX, OFFSET_INDEX_ENTRY.size)
        return list(OffsetIndex.decode(data, self.base_offset).trimmed().entries())[-_TAIL_ENTRIES:]

    def _offset_of_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the entry with a timestamp among the last ones of `.timeindex`."""
        data = self._read(FileKind.TIME_INDEX, TIME_INDEX_ENTRY.size)
        entries: list[TimeIndexEntry] = list(TimeIndex.decode(data, self.base_offset).trimmed().entries())
        return next((one.offset for one in reversed(entries) if one.timestamp == timestamp_ms >= 0), None)

    def _read(self, kind: FileKind, entry_bytes: int = 0) -> bytes:
        """Return an index; with `entry_bytes` only its last entries, unless they are zeros: a preallocated file has many."""
        path = self._directory + segment_file_name(self.base_offset, kind)
        try:
            if entry_bytes:
                file = self._disk.open_file(path)
                try:
                    used = file.size() // entry_bytes
                    first = max(used - _TAIL_ENTRIES, 0)
                    data = file.read_at(first * entry_bytes, (used - first) * entry_bytes)
                finally:
                    file.close()
                if not first or any(data[-entry_bytes:]):
                    return data
            return self._disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
        except OSError:
            return b""

    def contradiction(
        self, header: RecordBatch | LegacyBatch, floor: int | None, named: int | None, *, is_last: bool
    ) -> Contradiction | None:
        """Return what contradicts a batch. `floor` is the offset after the one before, `named` that of its entry of .index."""
        first, last = header.base_offset, header.last_offset
        if floor == first or not isinstance(header, RecordBatch):
            return None
        against = []
        if named is not None:
            if named == last or (is_thinned(header) and first <= named < last):
                return None
            if named > last and not is_last:
                return None
            against.append(f"the entry of {segment_file_name(self.base_offset, FileKind.INDEX)} at its byte has offset {named}")
        of_time = self._offset_of_time(header.max_timestamp)
        if of_time is not None and (floor is None or of_time >= floor):
            if first <= of_time <= last:
                return None
            if of_time < first or is_last:
                name = segment_file_name(self.base_offset, FileKind.TIME_INDEX)
                against.append(f"the entry of {name} with its timestamp has offset {of_time}")
        if not against:
            return None
        return Contradiction(header.position, f"the batch states offsets {first} to {last}, but {' and '.join(against)}")
