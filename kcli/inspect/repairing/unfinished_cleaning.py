"""Decides about the files of an interrupted cleaning, split or `kcli compact`, before the segments are repaired.

    file                  if its batches are in the log's other segments       if it is the only copy
    --------------------  ---------------------------------------------------  ---------------------------------------------
    a sound *.log.swap    takes the place of the old segments, if the swap     the same
                            was complete (Kafka: LogLoader)
    any other *.log.swap  is removed, with every *.log.swap above it           becomes a segment: its damage is that of a
    a *.log.cleaned       is removed                                             segment, and the lost offsets are named

A swap was complete if no *.cleaned file is at or below its offset: `kcli compact` and a broker rename the last segment first. A
swap above one that is not used is not used either: its cleaner may have dropped the tombstones of keys whose records are still
in the old segments, and deleted keys would come back. A *.log.deleted whose segment is missing is an old segment again if the
swap that was to take its place is removed.

A broker removes every unfinished file; a repair keeps the only copy of a record.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.format.java_text import parse_integer
from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import RecordBatch
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.repairing.planned_partition import PlannedPartition
from kcli.inspect.verification.small_file_checks import SEGMENT_KINDS
from kcli.log.disk.port import base_name, join_path
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

_ONLY_COPY = "no other file has its batches: the interrupted cleaning had the only copy"
_COMPLETE = "a cleaned segment, complete as *.swap, takes its place"


class _Found(NamedTuple):
    """A .log file in any state: its sound batches as offsets [first, end), and whether it has nothing else."""

    path: str
    base_offset: int
    batches: list[tuple[int, int]]
    is_sound: bool

    @property
    def end_offset(self) -> int:
        return max((end for _, end in self.batches), default=self.base_offset)


def settle_cleaning(partition: PlannedPartition) -> None:
    """Put unfinished segments in place or remove them, in the plan; leave what a start of Kafka does itself. Raises OSError."""
    swaps = _logs(partition, FileState.SWAP)
    cleaned = _logs(partition, FileState.CLEANED)
    if swaps or cleaned:
        _Cleaning(partition, swaps, cleaned).settle()


def _logs(partition: PlannedPartition, state: FileState) -> list[tuple[int, str]]:
    """Return the base offsets and paths of the .log files in a state that are not empty, ascending."""
    parsed = [parse_file_name(name) for name in partition.names()]
    paths = [
        (file.base_offset, join_path(partition.directory, file.name))
        for file in parsed
        if file.kind is FileKind.LOG and file.state is state and file.base_offset is not None and file.base_offset >= 0
    ]
    return sorted((base, path) for base, path in paths if partition.disk.size(path))


def _has_ends(offsets: OffsetRanges, found: _Found) -> bool:
    """Return True if the last offset of each batch is among `offsets`; batches of old formats may be joined by a cleaning."""
    return all(offsets.covers(end - 1, end) for _, end in found.batches)


class _Cleaning:
    def __init__(self, partition: PlannedPartition, swaps: list[tuple[int, str]], cleaned: list[tuple[int, str]]) -> None:
        self._partition = partition
        self._disk = partition.disk
        self._swaps = [self._survey(base, path) for base, path in swaps]
        # Of several files of one segment, which the rounds of `kcli compact` write, the one with the most batches is first.
        found = [self._survey(base, path) for base, path in cleaned]
        self._cleaned = sorted(found, key=lambda one: (one.base_offset, -len(one.batches)))
        self._bases = set(partition.bases())
        deleted = [base for base in partition.bases(FileState.DELETED) if base not in self._bases]
        self._deleted = {base: partition.path(base, FileKind.LOG, FileState.DELETED) for base in deleted}
        old = [self._survey(base, partition.path(base, FileKind.LOG)) for base in sorted(self._bases)]
        self._current = OffsetRanges(part for one in old for part in one.batches)
        restorable = [self._survey(base, path) for base, path in self._deleted.items() if swaps and base >= swaps[0][0]]
        self._old = OffsetRanges(part for one in (*old, *restorable) for part in one.batches)

    def _survey(self, base_offset: int, path: str) -> _Found:
        batches: list[tuple[int, int]] = []
        is_sound = True
        with SegmentReader(self._disk, path) as reader:
            for found in reader.batches():
                if not isinstance(found, LogBatch) or not found.is_valid:
                    is_sound = False
                    continue
                header = found.header
                first = header.base_offset if isinstance(header, RecordBatch) else header.last_offset
                if header.codec and not isinstance(header, RecordBatch):  # its header has only the last offset
                    first = min(first, batches[-1][1] if batches else base_offset)
                batches.append((first, header.last_offset + 1))
        return _Found(path, base_offset, batches, is_sound)

    def _is_covered(self, found: _Found) -> bool:
        """Return True if the old segments have the batches of a file; without batches, if they have its name."""
        if not found.batches:
            return found.base_offset in self._bases or found.base_offset in self._deleted
        return _has_ends(self._old, found)

    def settle(self) -> None:
        """Decide about each file, the lowest offset first."""
        names = [name for name in self._partition.names() if name.endswith(FileState.CLEANED.value)]
        offsets = [parse_integer(name.partition(".")[0], 64) for name in names]
        lowest_cleaned = min((offset for offset in offsets if offset is not None), default=INT64_MAX)
        runs: list[list[_Found]] = [[]]  # swaps that take the place of old segments together
        is_plain = True
        for at, swap in enumerate(self._swaps):
            is_complete = swap.base_offset < lowest_cleaned and len(runs) == 1
            if is_complete and swap.is_sound:
                runs[-1].append(swap)
                continue
            is_plain = False
            if self._is_covered(swap):
                self._remove(swap, self._swaps[at + 1].base_offset if at + 1 < len(self._swaps) else INT64_MAX)
                runs.append([])
            else:
                self._partition.disk.explain(swap.path, _ONLY_COPY)
                runs[-1].append(swap)
        # What all have in common with the start of a broker is left to that (kcli.log.loading.leftovers).
        for run in runs if not is_plain else ():
            self._put_in_place(run)
        for found in self._cleaned:
            self._keep_only_copy(found)

    def _remove(self, swap: _Found, next_base: int) -> None:
        """Remove the files of a swap, and restore the old segments below `next_base` that were about to be deleted."""
        why = "it belongs to a swap that was not complete, and the segments that it was made from exist"
        if not swap.is_sound:
            why = "the cleaned segment is damaged, and the segments that it was made from exist"
        for kind in SEGMENT_KINDS:
            path = self._partition.path(swap.base_offset, kind, FileState.SWAP)
            if self._disk.exists(path):
                self._partition.remove(path, why)
        for base, path in self._deleted.items():
            if swap.base_offset <= base < next_base:
                target = self._partition.path(base, FileKind.LOG)
                self._disk.explain(target, "the cleaned segment that was to take its place is not used")
                self._disk.rename(path, target)

    def _put_in_place(self, run: list[_Found]) -> None:
        """Remove the files in the range of some swaps, as a start of Kafka does, and give the swaps their names."""
        if not run:
            return
        swaps = {
            base_name(self._partition.path(swap.base_offset, kind, FileState.SWAP)) for swap in run for kind in SEGMENT_KINDS
        }
        lowest, end = run[0].base_offset, max(swap.end_offset for swap in run)
        for name in self._partition.names():
            offset = parse_integer(name.partition(".")[0], 64) if "." in name else None
            is_unfinished = name.endswith((FileState.SWAP.value, FileState.CLEANED.value))
            if offset is not None and (lowest <= offset < end or offset == lowest) and not is_unfinished:
                self._partition.remove(join_path(self._partition.directory, name), _COMPLETE)
        for name in sorted(swaps):
            path = join_path(self._partition.directory, name)
            if self._disk.exists(path):
                self._rename(path, path.removesuffix(FileState.SWAP.value))

    def _keep_only_copy(self, found: _Found) -> None:
        """Give a *.cleaned its segment's name if the segment is missing and no other file has its batches."""
        target = self._partition.path(found.base_offset, FileKind.LOG)
        current = OffsetRanges([*self._current, *(part for swap in self._swaps for part in swap.batches)])
        if self._disk.exists(target) or _has_ends(current, found):
            return
        self._rename(found.path, target)
        for first, end in found.batches:
            self._current.add(first, end)

    def _rename(self, path: str, target: str) -> None:
        self._disk.explain(target, _ONLY_COPY if path.endswith(FileState.CLEANED.value) else _COMPLETE)
        self._disk.rename(path, target)
