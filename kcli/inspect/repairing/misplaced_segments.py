"""Segments whose names are not those of their batches: stray copies, renamed and exchanged files.

    the batches of a .log file                            what becomes of the file
    ----------------------------------------------------  ------------------------------------------------------------------
    are where its name says, or it has no sound batch     stays: what is damaged in it is for kcli.inspect.repairing.salvage
    are elsewhere, and all of them are in other segments  goes: it is a copy under another name
    are elsewhere, and are those of one other segment     takes that segment's place: it is a copy from before the damage
      and some that this one has lost
    are elsewhere, and no other segment has any of them   gets the name of its first batch
    are elsewhere, and other segments have some of them   goes; the offsets that nothing else holds are named as lost

A name is wrong if the first sound batch is not within it and the second one confirms that: it follows the first, or is not
within the name either. One batch alone may have one wrong bit in its base offset, which the CRC does not cover. So the file
keeps its name if that bit explains the offset in it, or if it explains an offset beyond all others of the log. Two files are
exchanged if each of them begins with the offset in the name of the other. A file whose name has not the 20 digits of a segment
(`backup.log`) has no place of its own: the same is asked of it. Indexes of a name that no segment has any more go.

A *.log.tmp is a segment as a repair that died had planned it, complete (file_changes), and its records may be nowhere
else: the same is asked of it, but its place is that of its own name. Else it is a leftover.

A name beyond the batches is no evidence that the log reached it, see kcli.inspect.verification.evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.format.record_batch import ENTRY_HEAD_BYTES, RecordBatch
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import join_path
from kcli.log.reading.batch_search import least_offset, stated_next_offset
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# Why a temporary file goes.
LEFTOVER = "it was being written when the broker stopped"
_INDEX_KINDS = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class LostCopy(NamedTuple):
    """Offsets [first_offset, end_offset) that only a file had that goes."""

    path: str
    first_offset: int
    end_offset: int


class Placement(NamedTuple):
    """What was found: names (base offsets) that no segment has any more, remarks as (path, sentence), offsets that go."""

    gone_names: frozenset[int]
    remarks: list[tuple[str, str]]
    lost: list[LostCopy]


class _Found(NamedTuple):
    """A .log file: its name's offset (None: irregular) and its sound batches as (first offset, last offset, CRC).

    `start_offset` is that of the first sound batch, or of damaged ones before it whose headers lead on to it exactly (None:
    there is no sound batch); `damaged` are the offsets (first, last) in the headers of damaged batches. `planned_base` is the
    offset in the name of a *.log.tmp.
    """

    path: str
    base_offset: int | None
    batches: list[tuple[int, int, int]]
    start_offset: int | None
    damaged: list[tuple[int, int]]
    planned_base: int | None = None

    @property
    def target(self) -> int | None:
        """The offset of the name that its batches want, None where it has none."""
        return None if not self.batches else self.start_offset if self.planned_base is None else self.planned_base


def place_segments(planned: PlannedDisk, directory: str) -> Placement:
    """Give every segment of a partition's directory the name of its batches, in the plan. Raises OSError."""
    return _Placer(planned, directory).place()


class _Placer:
    def __init__(self, planned: PlannedDisk, directory: str) -> None:
        self._planned = planned
        self._directory = directory
        self._remarks: list[tuple[str, str]] = []
        self._lost: list[LostCopy] = []
        self._gone: set[int] = set()

    def place(self) -> Placement:
        """All steps; nothing is read but a header of each segment where the names are right."""
        self._remove_empty_in_between()
        paths = self._log_paths()
        bases = sorted(base for base in paths.values() if base is not None)
        suspects = [path for path, base in paths.items() if base is None or self._looks_misplaced(path, base, bases)]
        if suspects:
            surveyed = {path: self._survey(path, base) for path, base in paths.items()}
            suspects = self._copies(suspects, surveyed, bases)
            known = {row for path, found in surveyed.items() if path not in suspects for row in found.batches}
            found = [surveyed[path] for path in suspects]
            lacking = self._names_without_log(bases)
            misplaced = [one for one in found if _is_misplaced(one, bases, known, lacking) or _is_exchanged(one, found)]
            self._move(misplaced, [found for found in surveyed.values() if found not in misplaced])
        return Placement(frozenset(self._gone), self._remarks, self._lost)

    def _remove_empty_in_between(self) -> None:
        """Remove an empty last segment whose name is below the end of the sound batches before it."""
        paths = sorted((base, path) for path, base in self._log_paths().items() if base is not None)
        if len(paths) < 2 or self._planned.size(paths[-1][1]):
            return
        (_, before), (base_offset, path) = paths[-2:]
        batches = self._survey(before, None).batches
        # One batch alone may have a wrong offset.
        is_sure = len(batches) > 1 and batches[-1][0] == batches[-2][1] + 1
        if is_sure and base_offset <= batches[-1][1]:
            self._planned.explain(path, f"it is empty, and batches of {_name(before)} reach beyond its name")
            self._planned.remove(path)
            self._remove_beside(base_offset)

    def _log_paths(self) -> dict[str, int | None]:
        """The .log files, by path, with the offset in the name; None where that is not one that a broker writes."""
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
        """The offsets in the names of indexes that have no .log beside them."""
        parsed = (parse_file_name(name) for name in self._planned.list_directory(self._directory))
        names = {
            file.base_offset
            for file in parsed
            if file.kind in _INDEX_KINDS and file.state is FileState.CURRENT and file.base_offset is not None
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
        """Return for each suspect the copy: of two files with the same batches the one whose name suits fewer of them.

        The first batch of both may have a wrong offset that suits the name of the copy. If both names suit as many batches, the
        copy is the file that has no index, else the suspect: a segment that the cleaner thinned out may begin so late that the
        name of its copy suits its batches as well. A segment whose batches are below its name is not theirs, index or not.
        Another suspect is never the copy of this one, and no file is named twice: a segment may have been copied several times.
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
            suits = _batches_within_name(found, bases)
            worse = [other for other in same if _batches_within_name(surveyed[other], bases) < suits]
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
        name = parse_file_name(_name(path))
        planned_base = name.base_offset if name.state is FileState.TEMPORARY else None
        return _Found(path, base_offset, batches, start_offset, damaged, planned_base)

    # --------------------------------------------------------------------------------------------------------- moving

    def _move(self, misplaced: list[_Found], others: list[_Found]) -> None:
        """Remove what is a copy, rename what is not; names may be exchanged, so all contents are taken first."""
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
            self._planned.explain(damaged.path, f"{_name(found.path)} is a copy of it and has batches that it has lost")
            self._planned.put(damaged.path, self._planned.content(found.path))
            self._planned.explain(found.path, f"it is a copy of {_name(damaged.path)} and replaces it")
            _keep(rows, kept, offsets)
        contents = {target: self._planned.content(found.path) for target, found in moves.items()}
        for found in misplaced:
            self._planned.remove(found.path)
            if found.base_offset is not None and found.base_offset not in moves:
                self._remove_beside(found.base_offset)
        for target, found in moves.items():
            path = self._path(target, FileKind.LOG)
            why = f"its batches begin at offset {target}"
            if found.planned_base is not None:
                why = "a repair that died has left it complete, and no other segment has its batches"
            self._planned.explain(path, why)
            self._planned.put(path, contents[target])
            self._remarks.append((path, f"it was named {_name(found.path)}, and {why}"))

    def _damaged_original(self, rows: set[tuple[int, int, int]], others: list[_Found]) -> _Found | None:
        """The one segment of which `rows` are a copy with more batches, where no other has any of them."""
        sharing = [other for other in others if rows.intersection(other.batches)]
        if len(sharing) != 1 or not set(sharing[0].batches) < rows or sharing[0].base_offset is None:
            return None
        inside = all(sharing[0].base_offset <= first for first, _, _ in rows)
        last_offset = max(last for _, last, _ in rows)
        behind = [other for other in others if other.batches and other.batches[0][0] > sharing[0].base_offset]
        return sharing[0] if inside and all(other.batches[0][0] > last_offset for other in behind) else None

    def _drop(self, found: _Found, kept: set[tuple[int, int, int]], offsets: OffsetRanges) -> None:
        if not found.batches:
            why = "its name is not one that a broker writes, and it has no sound batch"
            self._planned.explain(found.path, why if found.planned_base is None else LEFTOVER)
            return
        lost = [row for row in found.batches if row not in kept and not offsets.covers(row[0], row[1] + 1)]
        end = max((last for _, last, _ in kept), default=-1)
        for first, last in found.damaged:
            # It may be a copy, or the batch itself: only what is there afterwards shows which.
            if 0 <= first <= last < end:
                self._lost.append(LostCopy(found.path, first, last + 1))
        if not lost:
            why = "every batch of it is in another segment: it is a copy under another name"
            self._planned.explain(found.path, why if found.planned_base is None else LEFTOVER)
            return
        self._planned.explain(found.path, "its name does not fit its batches, and other segments have some of their offsets")
        for first, last, _ in lost:
            self._lost.append(LostCopy(found.path, first, last + 1))

    def _remove_beside(self, base_offset: int) -> None:
        self._gone.add(base_offset)
        for kind in _INDEX_KINDS:
            path = self._path(base_offset, kind)
            if self._planned.exists(path):
                self._planned.explain(path, "the segment of this name was a copy, or has another name now")
                self._planned.remove(path)

    def _path(self, base_offset: int, kind: FileKind) -> str:
        return join_path(self._directory, segment_file_name(base_offset, kind))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _name_end(base_offset: int, bases: list[int]) -> int:
    index = bisect_right(bases, base_offset)
    return bases[index] if index < len(bases) else INT64_MAX


def _batches_within_name(found: _Found, bases: list[int]) -> int:
    """Return how many batches of a file are where its name says."""
    if found.base_offset is None:
        return 0
    end = _name_end(found.base_offset, bases)
    return sum(found.base_offset <= first and last < end for first, last, _ in found.batches)


def _keep(rows: set[tuple[int, int, int]], kept: set[tuple[int, int, int]], offsets: OffsetRanges) -> None:
    kept |= rows
    for first, last, _ in rows:
        offsets.add(first, last + 1)


def _fits(found: _Found, target: int, offsets: OffsetRanges) -> bool:
    """True where no other segment has offsets in between."""
    end = found.batches[-1][1] + 1
    return end - target <= INT32_MAX + 1 and not offsets.overlaps(target, end)


def _is_exchanged(found: _Found, suspects: Sequence[_Found]) -> bool:
    """True where another file begins with the offset in the name of `found`, and `found` with that in the other's name.

    The same bit of two base offsets, wrong in two files, would look like that; exchanged files are more likely.
    """
    return any(
        found.batches
        and other.batches
        and (found.base_offset, found.start_offset) == (other.start_offset, other.base_offset)
        and other is not found
        for other in suspects
    )


def _is_one_bit_from(offset: int, base: int, end: int) -> bool:
    """True where one wrong bit explains an offset that is not in [base, end), an end being known."""
    return end < INT64_MAX and any(base <= offset ^ (1 << bit) < end for bit in range(63))


def _is_misplaced(found: _Found, bases: list[int], known: set[tuple[int, int, int]], lacking: set[int]) -> bool:
    """True where the name of a file is not that of its batches; `known` are the batches of segments that are in place.

    `lacking` are the names of indexes whose .log is missing: a file whose first batch has such an offset was renamed.
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
        return (first ^ base).bit_count() != 1 and not (is_beyond and _is_one_bit_from(first, base, end))
    second = found.batches[1]
    return second[0] == last + 1 or not (base <= second[1] and second[0] < end)
