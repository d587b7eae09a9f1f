"""The offsets that a log lacks after a repair: named one by one, none of them twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from kcli.format.file_names import parse_file_name
from kcli.format.primitives import INT64_MAX
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.verification.facts import PartitionResult
from kcli.inspect.verification.finding_kinds import HOLES
from kcli.inspect.verification.findings import serious
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import Disk, base_name
from kcli.log.files.log_directory import read_partition
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.segment_reader import LogBatch, SegmentReader


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
        self._offsets = OffsetRanges()

    def __bool__(self) -> bool:
        return bool(self._holes)

    def in_order(self) -> list[Hole]:
        """Return the holes, by their first offsets."""
        return sorted(self._holes, key=lambda hole: hole.first_offset)

    def append(self, hole: Hole) -> None:
        """Add a hole as it is."""
        self._holes.append(hole)
        self._offsets.add(hole.first_offset, INT64_MAX if hole.end_offset is None else hole.end_offset)

    def close(self, end_offset: int) -> None:
        """End the holes whose end is not known at `end_offset`."""
        self._holes = [
            hole._replace(end_offset=end_offset) if hole.end_offset is None and hole.first_offset < end_offset else hole
            for hole in self._holes
        ]
        self._offsets = OffsetRanges(
            (hole.first_offset, INT64_MAX if hole.end_offset is None else hole.end_offset) for hole in self._holes
        )

    def add(self, first_offset: int, end_offset: int, why: str, path: str = "") -> None:
        """Add offsets that are missing, as far as no hole has them yet."""
        for first, end in self._offsets.missing(first_offset, end_offset):
            self.append(Hole(path or self._directory, first, end, why))


def known_ranges(holes: Iterable[Hole]) -> list[tuple[int, int]]:
    """Return the offsets [first, end) of the holes whose end is known."""
    return [(hole.first_offset, hole.end_offset) for hole in holes if hole.end_offset is not None]


def without(ranges: Iterable[tuple[int, int]], kept: OffsetRanges) -> list[tuple[int, int]]:
    """Return the offsets of `ranges` [first, end) that are not in `kept`, ascending; neighbours are joined."""
    return [part for first, end in OffsetRanges(ranges) for part in kept.missing(first, end)]


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


def readable_ranges(disk: Disk, directory: str, log_start_offset: int) -> OffsetRanges:
    """Return the offsets of the sound batches of a log, those below its start left out. Raises OSError."""
    found = [one for segment in read_partition(disk, directory).segments for one in _sound_ranges(disk, segment.log)]
    return OffsetRanges((max(first, log_start_offset), end) for first, end in found)


def _sound_ranges(disk: Disk, path: str) -> list[tuple[int, int]]:
    """The offsets [first, end) of the sound batches of a .log file."""
    with SegmentReader(disk, path) as reader:
        return [
            (one.header.base_offset, one.header.last_offset + 1)
            for one in reader.batches()
            if isinstance(one, LogBatch) and one.is_valid
        ]


def batch_ranges(disk: Disk, directory: str) -> OffsetRanges:
    """Return the offsets of all batches of a log that is sound. Raises OSError."""
    found = OffsetRanges()
    for segment in read_partition(disk, directory).segments:
        file = disk.open_file(segment.log)
        try:
            for head in HeaderReader(file, 0, file.size()).headers():
                found.add(head.base_offset, head.last_offset + 1)
        finally:
            file.close()
    return found
