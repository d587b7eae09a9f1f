"""Offsets that an earlier repair has named as lost, and that are missing still: what only the quarantine remembers.

A hole that a repair leaves in a compacted topic looks like the cleaner's work afterwards, and `--like-kafka` leaves a log that
ends before the lost offsets. The manifest of the quarantine (quarantine) says which offsets were lost, of which topic
id. They are missing as long as no batch has them: a broker that gives them out again, or a log start offset behind them, ends
that; so does removing the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcli.format.primitives import CorruptCheckpointError
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.quantities import format_offsets
from kcli.inspect.verification.facts import SegmentFacts
from kcli.inspect.verification.findings import Finding
from kcli.log.disk.port import Disk, base_name
from kcli.log.files.log_directory import PartitionDirectory, read_topic_id
from kcli.log.files.quarantine import LostOffsets


def lost_of(disk: Disk, lost: Sequence[LostOffsets], partition: PartitionDirectory) -> list[tuple[int, int]]:
    """Return the offsets [first, end) that repairs have named as lost of a partition. Raises OSError."""
    of_name = [one for one in lost if one.partition == base_name(partition.path)]
    if not of_name:
        return []
    try:
        topic_id = read_topic_id(disk, partition)
    except CorruptCheckpointError:
        return []
    # A repair may have restored partition.metadata after it noted what was lost.
    return [found for one in of_name if one.topic_id in ("", str(topic_id)) for found in one.offsets]


def lost_finding(path: str, lost: tuple[int, int]) -> Finding:
    """Return the finding for offsets [first, end) of the partition at `path` that are missing since a repair."""
    return Finding("offset-hole", path, None, lost[0], f"missing since a repair: {format_offsets(*lost)}")


def still_missing(
    lost: Sequence[tuple[int, int]],
    segments: Sequence[SegmentFacts],
    missing: Iterable[tuple[int, int]],
    log_start_offset: int,
    end_offset: int,
) -> list[tuple[int, int]]:
    """Return the parts of `lost` that no batch of the segments has and that are not in `missing`."""
    base = segments[0].base_offset if segments else log_start_offset
    gaps = [gap for facts in segments for gap in (facts.gap_before, *facts.gap_ranges) if gap is not None]
    absent = OffsetRanges([*gaps, (end_offset, max([end_offset, *(end for _, end in lost)]))])
    named = OffsetRanges(missing)
    found: list[tuple[int, int]] = []
    for first, end in lost:
        for start, stop in absent:
            part = max(first, start, base, log_start_offset), min(end, stop)
            found += named.missing(*part) if part[0] < part[1] else []
    return list(OffsetRanges(found))
