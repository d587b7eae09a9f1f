"""Finds segments whose names do not fit their batches: copies, renamed and exchanged files.

    the batches of a .log file                            the file
    ----------------------------------------------------  ------------------------------------------------------------------
    fit its name, or it has no sound batch                stays; kcli.inspect.repairing.salvage repairs what is damaged in it
    the segment before has the offsets of its name        the cheaper one of explanation's damages: the file is not a segment
                                                            or has a wrong name, or those batches have wrong offsets
    do not fit it, and all are in other segments          is removed: it is a copy under another name
    do not fit it, and are those of one other segment     replaces that segment: it is a copy from before the damage
      and some that this one has lost
    do not fit it, and no other segment has any of them   gets the name of its first batch
    do not fit it, and other segments have some of them   is removed; the offsets that no other file has are named as lost

A name is wrong if the first sound batch is outside of its range and the second one confirms that: it follows the first, or is
outside too. Of one batch alone the base offset may be wrong, which the CRC does not cover, or the name: the costs of
kcli.log.reading.explanation decide. Two files are exchanged if each of them begins with the offset in the name of the
other. A file whose name does not have the 20 digits of a segment (`backup.log`) has no range: the same rules decide about it.
Indexes are removed if no segment has their name any more.

A *.log.tmp is a complete segment that an interrupted repair had planned (file_changes), and its records may be only
there. The same rules decide about it, but its name is right. If it is not needed, it is a leftover.

A name beyond the batches does not show that the log reached it: see kcli.inspect.verification.evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.format.record_batch import ENTRY_HEAD_BYTES, RecordBatch
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.repairing.holes import Remark
from kcli.inspect.verification.small_file_checks import INDEX_KINDS
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import base_name, join_path
from kcli.log.reading.batch_search import least_offset, stated_next_offset
from kcli.log.reading.explanation import BATCH, COMPANION, FILE, GAP, difference
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# Why a temporary file is removed.
LEFTOVER = "it was being written when the broker stopped"


class RemovedOffsets(NamedTuple):
    """Offsets [first_offset, end_offset) of the file at `path` that a repair removes from the log."""

    path: str
    first_offset: int
    end_offset: int


class Placement(NamedTuple):
    """The result: names (base offsets) that no segment has any more, remarks, and offsets of removed files."""

    gone_names: frozenset[int]
    remarks: list[Remark]
    removed: list[RemovedOffsets]


class _Found(NamedTuple):
    """A .log file: its name's offset (None: irregular) and its sound batches as (first offset, last offset, CRC).

    `start_offset` is the offset of the first sound batch, or of the damaged batches before it if their headers lead exactly to
    it; None if the file has no sound batch. `damaged` has the offsets (first, last) from the headers of damaged batches.
    `planned_base` is the offset in the name of a *.log.tmp.
    """

    path: str
    base_offset: int | None
    batches: list[tuple[int, int, int]]
    start_offset: int | None
    damaged: list[tuple[int, int]]
    planned_base: int | None = None

    @property
    def target(self) -> int | None:
        """The offset of the name that fits its batches, None if it has none."""
        return None if not self.batches else self.start_offset if self.planned_base is None else self.planned_base


class SegmentPlacer:
    """Gives every segment of a partition's directory the name that fits its batches, in the plan.

    `overlapping` are the .log files that begin before the one before them ends, by their batches or names.
    """

    def __init__(self, planned: PlannedDisk, directory: str, overlapping: frozenset[str] = frozenset()) -> None:
        self._overlapping = overlapping
        self._planned = planned
        self._directory = directory
        self._remarks: list[Remark] = []
        self._removed: list[RemovedOffsets] = []
        self._gone_names: set[int] = set()

    def place(self) -> Placement:
        """Do all steps. If the names are right, only one header of each segment is read. Raises OSError."""
        paths = self._log_paths()
        bases = sorted(base for base in paths.values() if base is not None)
        suspects = [path for path, base in paths.items() if base is None or self._looks_misplaced(path, base, bases)]
        if suspects or self._overlapping.intersection(paths):
            surveyed = {path: self._survey(path, base) for path, base in paths.items()}
            suspects = self._copies(suspects, surveyed, bases)
            known = {row for path, found in surveyed.items() if path not in suspects for row in found.batches}
            found = [surveyed[path] for path in suspects]
            lacking = self._names_without_log(bases)
            ends = [
                (one.base_offset, one.batches[-1][1] + 1)
                for one in surveyed.values()
                if one.base_offset is not None and one.batches
            ]
            misplaced = [one for one in found if _is_misplaced(one, bases, known, lacking, ends) or _is_exchanged(one, found)]
            misplaced += self._strays([one for one in surveyed.values() if one not in misplaced])
            self._move(misplaced, [found for found in surveyed.values() if found not in misplaced])
        return Placement(frozenset(self._gone_names), self._remarks, self._removed)

    def _strays(self, surveyed: list[_Found]) -> list[_Found]:
        """Return the files that are no segments, or have a wrong name: to keep them would cost more batches of those before.

        Not among them are files whose name shows that the last batch before them has a wrong offset.
        """
        strays: list[_Found] = []
        rows: set[tuple[int, int, int]] = set()  # of the segments before
        beyond: list[tuple[int, int]] = []  # last offset and cost of those that may reach beyond later names
        named = [(one.base_offset, one) for one in surveyed if one.base_offset is not None]
        for base, found in sorted(named, key=lambda one: one[0]):
            beyond = [one for one in beyond if one[0] >= base]
            own = [row for row in found.batches if row not in rows]
            is_below = bool(own) and own == found.batches and all(last < own[0][0] for last, _ in beyond)
            cost = FILE + (0 if is_below else COMPANION * self._companions(base) + BATCH * len(own))
            if found.path in self._overlapping and cost < sum(lost for _, lost in beyond):
                strays.append(found)
            else:
                rows.update(found.batches)
                beyond += _costs(found)
        return strays

    def _companions(self, base_offset: int) -> int:
        """Return how many other files with entries have the name of a segment."""
        paths = [self._path(base_offset, kind) for kind in (*INDEX_KINDS, FileKind.PRODUCER_SNAPSHOT)]
        return sum(self._planned.exists(path) and self._planned.size(path) > 0 for path in paths)

    def _log_paths(self) -> dict[str, int | None]:
        """Return the .log files by path, with the offset in the name; None where it is not a name that a broker writes."""
        found: dict[str, int | None] = {}
        for name in self._planned.list_directory(self._directory):
            path, parsed = join_path(self._directory, name), parse_file_name(name)
            if parsed.kind is not FileKind.LOG or not self._planned.is_regular(path):
                continue
            if parsed.state is FileState.CURRENT:
                found[path] = parsed.base_offset if parsed.is_regular else None
            elif parsed.state is FileState.TEMPORARY and parsed.is_regular:
                found[path] = None
        return found

    def _names_without_log(self, bases: list[int]) -> set[int]:
        """Return the offsets in the names of indexes that have no .log."""
        parsed = (parse_file_name(name) for name in self._planned.list_directory(self._directory))
        names = {
            file.base_offset
            for file in parsed
            if file.kind in INDEX_KINDS and file.state is FileState.CURRENT and file.base_offset is not None
        }
        return names.difference(bases)

    def _looks_misplaced(self, path: str, base_offset: int, bases: list[int]) -> bool:
        size = self._planned.size(path)
        if size < ENTRY_HEAD_BYTES:
            return False
        file = self._planned.open_file(path)
        try:
            header = next(HeaderReader(file, 0, size).headers(), None)
        finally:
            file.close()
        return header is None or not base_offset <= least_offset(header) <= header.last_offset < _name_end(base_offset, bases)

    def _copies(self, suspects: list[str], surveyed: dict[str, _Found], bases: list[int]) -> list[str]:
        """Return for each suspect the copy: of two files with the same batches the one whose name fits fewer of them.

        The first batch of both may have a wrong offset that fits the name of the copy. If both names fit the same number of
        batches, the copy is the file that has no index, else the suspect: a segment that the cleaner thinned out may begin so
        late that the name of its copy fits its batches too. If the batches of the suspect are below its name, the suspect is
        the copy, with or without an index. Another suspect is never the copy of this one, and each file is returned once: a
        segment may have been copied several times.
        """
        copies: list[str] = []
        for path in suspects:
            found = surveyed[path]
            is_own = found.base_offset is None or not found.batches or found.batches[0][0] < found.base_offset
            same = [
                other.path
                for other in surveyed.values()
                if not is_own
                and other.base_offset is not None
                and other.batches == found.batches
                and other.path not in (*suspects, *copies)
            ]
            fitting = _batches_within_name(found, bases)
            worse = [other for other in same if _batches_within_name(surveyed[other], bases) < fitting]
            without_index = [other for other in same if not self._has_index(surveyed[other])] if self._has_index(found) else []
            copies.append(next(iter([*worse, *without_index]), path))
        return copies

    def _has_index(self, found: _Found) -> bool:
        return found.base_offset is not None and self._planned.exists(self._path(found.base_offset, FileKind.INDEX))

    def _survey(self, path: str, base_offset: int | None) -> _Found:
        batches: list[tuple[int, int, int]] = []
        damaged: list[tuple[int, int]] = []
        start_offset: int | None = None
        before: tuple[int, int] | None = None  # offsets [first, end) of the damaged batches at the start
        with SegmentReader(self._planned, path) as reader:
            for found in reader.batches():
                if isinstance(found, LogBatch) and found.is_valid:
                    first = found.first_offset()
                    batches.append((first, found.header.last_offset, found.header.crc))
                    if start_offset is None:
                        start_offset = before[0] if before is not None and before[1] == first else first
                elif isinstance(header := found.header, RecordBatch):
                    end = stated_next_offset(header, header.base_offset)
                    if end is not None:
                        damaged.append((header.base_offset, end - 1))
                        is_next = before is not None and before[1] == header.base_offset
                        before = (before[0] if before is not None and is_next else header.base_offset, end)
        name = parse_file_name(base_name(path))
        planned_base = name.base_offset if name.state is FileState.TEMPORARY else None
        return _Found(path, base_offset, batches, start_offset, damaged, planned_base)

    # --------------------------------------------------------------------------------------------------------- moving

    def _move(self, misplaced: list[_Found], others: list[_Found]) -> None:
        """Remove copies and rename other files; names may be exchanged, so all contents are taken first."""
        kept = {row for found in others for row in found.batches}
        offsets = OffsetRanges((first, last + 1) for first, last, _ in kept)
        moves: dict[int, _Found] = {}
        for found in sorted(misplaced, key=lambda one: (one.base_offset is None, one.path)):
            rows = set(found.batches)
            target = found.target
            taken = {other.base_offset for other in others if other.batches}.union(moves)
            is_free = target is not None and target not in taken and not rows & kept
            if target is not None and is_free and _fits(found, target, offsets):
                moves[target] = found
                _keep(rows, kept, offsets)
                continue
            damaged = self._damaged_original(rows, others)
            if damaged is None or found.planned_base not in (None, damaged.base_offset):
                self._drop(found, kept, offsets)
                continue
            self._planned.explain(damaged.path, f"{base_name(found.path)} is a copy of it and has batches that it has lost")
            self._planned.put(damaged.path, self._planned.content(found.path))
            self._planned.explain(found.path, f"it is a copy of {base_name(damaged.path)} and replaces it")
            _keep(rows, kept, offsets)
        contents = {target: self._planned.content(found.path) for target, found in moves.items()}
        for found in misplaced:
            self._planned.remove(found.path)
            if found.base_offset is not None and found.base_offset not in moves:
                self._remove_indexes(found.base_offset)
        for target, found in moves.items():
            path = self._path(target, FileKind.LOG)
            why = f"its batches begin at offset {target}"
            if found.planned_base is not None:
                why = "an interrupted repair had completed it, and no other segment has its batches"
            self._planned.explain(path, why)
            self._planned.put(path, contents[target])
            self._remarks.append(Remark(path, f"it was named {base_name(found.path)}, and {why}"))

    def _damaged_original(self, rows: set[tuple[int, int, int]], others: list[_Found]) -> _Found | None:
        """Return the one segment of which `rows` are a copy with more batches, None if other segments have some of them."""
        sharing = [other for other in others if rows.intersection(other.batches)]
        if len(sharing) != 1 or not set(sharing[0].batches) < rows or sharing[0].base_offset is None:
            return None
        inside = all(sharing[0].base_offset <= first for first, _, _ in rows)
        last_offset = max(last for _, last, _ in rows)
        behind = [other for other in others if other.batches and other.batches[0][0] > sharing[0].base_offset]
        return sharing[0] if inside and all(other.batches[0][0] > last_offset for other in behind) else None

    def _drop(self, found: _Found, kept: set[tuple[int, int, int]], offsets: OffsetRanges) -> None:
        if not found.batches:
            why = "it has no sound batch, and the segment before it has the offset of its name"
            if found.base_offset is None:
                why = "its name is not one that a broker writes, and it has no sound batch"
            self._add_damaged(found, kept)
            self._planned.explain(found.path, why if found.planned_base is None else LEFTOVER)
            return
        lost = [row for row in found.batches if row not in kept and not offsets.covers(row[0], row[1] + 1)]
        self._add_damaged(found, kept)
        if not lost:
            why = "all its batches are in another segment: it is a copy under another name"
            self._planned.explain(found.path, why if found.planned_base is None else LEFTOVER)
            return
        self._planned.explain(found.path, "its name does not fit its batches, and other segments have some of their offsets")
        for first, last, _ in lost:
            self._removed.append(RemovedOffsets(found.path, first, last + 1))

    def _add_damaged(self, found: _Found, kept: set[tuple[int, int, int]]) -> None:
        end = max((last for _, last, _ in kept), default=-1)
        for first, last in found.damaged:
            # It may be a copy or the only one: the batches of the repaired log show which.
            if 0 <= first <= last < end:
                self._removed.append(RemovedOffsets(found.path, first, last + 1))

    def _remove_indexes(self, base_offset: int) -> None:
        self._gone_names.add(base_offset)
        for kind in INDEX_KINDS:
            path = self._path(base_offset, kind)
            if self._planned.exists(path):
                self._planned.explain(path, "the segment of this name was a copy, or has another name now")
                self._planned.remove(path)

    def _path(self, base_offset: int, kind: FileKind) -> str:
        return join_path(self._directory, segment_file_name(base_offset, kind))


def _name_end(base_offset: int, bases: list[int]) -> int:
    index = bisect_right(bases, base_offset)
    return bases[index] if index < len(bases) else INT64_MAX


def _batches_within_name(found: _Found, bases: list[int]) -> int:
    """Return how many batches of a file are in the range of its name."""
    if found.base_offset is None:
        return 0
    end = _name_end(found.base_offset, bases)
    return sum(found.base_offset <= first and last < end for first, last, _ in found.batches)


def _keep(rows: set[tuple[int, int, int]], kept: set[tuple[int, int, int]], offsets: OffsetRanges) -> None:
    kept |= rows
    for first, last, _ in rows:
        offsets.add(first, last + 1)


def _fits(found: _Found, target: int, offsets: OffsetRanges) -> bool:
    """Return True if no other segment has offsets in the range of the file under the name `target`."""
    end = found.batches[-1][1] + 1
    return end - target <= INT32_MAX + 1 and not offsets.overlaps(target, end)


def _is_exchanged(found: _Found, suspects: Sequence[_Found]) -> bool:
    """Return True if another file begins with the offset in the name of `found`, and `found` with that in the other's name.

    The same wrong bit in the base offsets of both files would look the same; exchanged files are more likely.
    """
    return any(
        found.batches
        and other.batches
        and (found.base_offset, found.start_offset) == (other.start_offset, other.base_offset)
        and other is not found
        for other in suspects
    )


def _is_one_bit_from(offset: int, base: int, end: int) -> bool:
    """Return True if an offset with one bit changed is in [base, end); False if `end` is INT64_MAX, for no end."""
    return end < INT64_MAX and any(base <= offset ^ (1 << bit) < end for bit in range(63))


def _costs(found: _Found) -> Iterator[tuple[int, int]]:
    """Yield the last offset of each batch of a file, and the cost if the batch does not belong there.

    A batch that does not follow the one before it may have a wrong offset.
    """
    before = (found.base_offset or 0) - 1
    for first, last, _ in found.batches:
        yield last, BATCH if first == before + 1 else BATCH - GAP
        before = last


def _is_renamed(found: _Found, bases: list[int], ends: Sequence[tuple[int, int]]) -> bool:
    """Return True if a wrong name explains the only batch of a file, and not a wrong base offset.

    `ends` are the names of the files with batches and the offsets after these.
    """
    assert found.base_offset is not None
    base, end, (first, last, _) = found.base_offset, _name_end(found.base_offset, bases), found.batches[0]
    others = [one for one in ends if one[0] != base]

    def gaps(start: int, stop: int, name_end: int) -> int:
        ended = max((offset for name, offset in others if name < start), default=start)
        return GAP * (ended != start) + GAP * (name_end not in (stop, INT64_MAX))

    moved_end = base + last - first + 1
    moved = difference(first, base) + gaps(base, moved_end, end) if moved_end <= end else BATCH + GAP
    others_behind = [name for name in bases if name > first and name != base]
    # With another base offset the batch would leave the gap between two other segments that it fills as it is.
    is_filling = any(name < first == ended for name, ended in others) and last + 1 in others_behind
    moved += GAP if is_filling else 0
    renamed = FILE + gaps(first, last + 1, min(others_behind, default=INT64_MAX))
    return renamed < min(moved, BATCH + GAP)


def _is_misplaced(
    found: _Found, bases: list[int], known: set[tuple[int, int, int]], lacking: set[int], ends: Sequence[tuple[int, int]]
) -> bool:
    """Return True if the name of a file does not fit its batches; `known` are the batches of the other segments.

    `lacking` are the names of indexes whose .log is missing: a file whose first batch has such an offset was renamed. `ends`
    are those of _is_renamed.
    """
    if found.base_offset is None:
        return True
    if not found.batches:
        return False
    if all(row in known for row in found.batches):
        return True
    base, end = found.base_offset, _name_end(found.base_offset, bases)
    first, last, _ = found.batches[0]
    if base <= first < end:
        return False
    if found.batches[0] in known or first in lacking:
        return True
    if len(found.batches) == 1:
        is_beyond = first > max((last for _, last, _ in known), default=first)
        return not (is_beyond and _is_one_bit_from(first, base, end)) and _is_renamed(found, bases, ends)
    second = found.batches[1]
    return second[0] == last + 1 or not (base <= second[1] and second[0] < end)
