"""The offsets that a log lacks after a repair: named one by one, none of them twice."""

from __future__ import annotations

from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple

from kcli.format.file_names import parse_file_name
from kcli.inspect.verification.facts import PartitionResult
from kcli.inspect.verification.finding_kinds import HOLES
from kcli.inspect.verification.findings import serious
from kcli.log.disk import Disk
from kcli.log.header_walk import HeaderWalk
from kcli.log.log_directory import base_name, read_partition
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.planned_disk import PlannedDisk


class Hole(NamedTuple):
    """Offsets [first_offset, end_offset) that no batch has any more, lost by this repair or before it. None: not known."""

    path: str
    first_offset: int
    end_offset: int | None
    why: str


class Holes:
    """The holes of one partition; a hole without a path of its own is that of the partition's `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._holes: list[Hole] = []

    def __bool__(self) -> bool:
        return bool(self._holes)

    def in_order(self) -> list[Hole]:
        """Return the holes, by their first offsets."""
        return sorted(self._holes, key=lambda hole: hole.first_offset)

    def append(self, hole: Hole) -> None:
        """Add a hole as it is."""
        self._holes.append(hole)

    def close(self, end_offset: int) -> None:
        """End the holes whose end is not known at `end_offset`."""
        self._holes = [
            hole._replace(end_offset=end_offset) if hole.end_offset is None and hole.first_offset < end_offset else hole
            for hole in self._holes
        ]

    def add(self, first_offset: int, end_offset: int, why: str, path: str = "") -> None:
        """Add offsets that are missing, as far as no hole has them yet."""
        path = path or self._directory
        for hole in self.in_order():
            hole_end = end_offset if hole.end_offset is None else hole.end_offset
            if hole.first_offset <= first_offset < hole_end:
                first_offset = hole_end
            elif first_offset < hole.first_offset < end_offset:
                self._holes.append(Hole(path, first_offset, hole.first_offset, why))
                first_offset = hole_end
        if first_offset < end_offset:
            self._holes.append(Hole(path, first_offset, end_offset, why))


def without(ranges: list[tuple[int, int]], kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the offsets of `ranges` [first, end) that no batch (first, last) of `kept` has; neighbours are joined."""
    left: list[tuple[int, int]] = []
    inside = sorted(kept)
    starts = [first for first, _ in inside]
    for first, end in ranges:
        for kept_first, kept_last in inside[max(bisect_right(starts, first) - 1, 0) :]:
            if kept_first >= end or first >= end:
                break
            if kept_last < first:
                continue
            if first < kept_first:
                left.append((first, kept_first))
            first = max(first, kept_last + 1)
        if first < end:
            left.append((first, end))
    joined: list[tuple[int, int]] = []
    for first, end in sorted(left):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined


def lost_like_kafka(
    planned: PlannedDisk, directory: str, log_start_offset: int, before: PartitionResult, after: PartitionResult
) -> list[tuple[int, int]]:
    """Return the offsets [first, end) of sound batches, and all offsets of segments with damage. Raises OSError.

    Kafka keeps a batch with a wrong offset where it is, and a gap in a segment with damage need not be the cleaner's work.
    Records below `log_start_offset` were deleted; one that the log never reached says nothing.
    """
    log_start = log_start_offset if log_start_offset < before.end_offset else 0
    findings = [finding for finding in serious([*before.findings, *after.findings]) if finding.code not in HOLES]
    damaged = {parse_file_name(base_name(finding.file)).base_offset for finding in findings}
    lost: list[tuple[int, int]] = []
    for disk in (planned.disk, planned):
        segments = read_partition(disk, directory).segments
        for segment, behind in zip_longest(segments, segments[1:]):
            ranges = _sound_ranges(disk, segment.log)
            lost += ranges
            if segment.base_offset in damaged:
                ends = [end for _, end in ranges] if behind is None else [behind.base_offset]
                lost.append((segment.base_offset, max(ends, default=segment.base_offset)))
    return [(max(first, log_start), end) for first, end in lost if end > max(first, log_start)]


def readable_ranges(disk: Disk, directory: str, log_start_offset: int) -> list[tuple[int, int]]:
    """Return the first and last offsets of the sound batches of a log, those below its start left out. Raises OSError."""
    found = [one for segment in read_partition(disk, directory).segments for one in _sound_ranges(disk, segment.log)]
    return [(max(first, log_start_offset), end - 1) for first, end in found if end > log_start_offset]


def _sound_ranges(disk: Disk, path: str) -> list[tuple[int, int]]:
    """The offsets [first, end) of the sound batches of a .log file."""
    with SegmentReader(disk, path) as reader:
        return [
            (one.header.base_offset, one.header.last_offset + 1)
            for one in reader.batches()
            if isinstance(one, LogBatch) and one.is_valid
        ]


def batch_ranges(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """Return the first and last offsets of all batches of a log that is sound. Raises OSError."""
    found: list[tuple[int, int]] = []
    for segment in read_partition(disk, directory).segments:
        file = disk.open_file(segment.log)
        try:
            found += [(head.base_offset, head.last_offset) for head in HeaderWalk(file, 0, file.size()).headers()]
        finally:
            file.close()
    return found
