"""Segments read apart from their partition, in another process perhaps: what its partition needs to put them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.inspect.verification.facts import PartitionOptions, SegmentFacts, SegmentOptions
from kcli.inspect.verification.findings import Finding, FindingList
from kcli.inspect.verification.producers import ProducerStep
from kcli.inspect.verification.segments import SegmentVerifier
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory, Segment


class SegmentReading(NamedTuple):
    """What a segment gave that was read apart from its partition; `steps` is None where there were too many to keep."""

    facts: SegmentFacts
    steps: list[ProducerStep] | None
    findings: list[Finding]


ReadAhead = Callable[[Segment], SegmentReading | None]
# The steps that are kept of a segment read ahead: 20 MB; a segment with more is read again when it is its turn.
MOST_STEPS = 100_000


def log_start_offset(partition: PartitionDirectory, options: PartitionOptions) -> int:
    """Where the partition's log starts: at the checkpointed offset, at least at its first segment."""
    base = partition.segments[0].base_offset if partition.segments else 0
    return max(options.log_start_offset or 0, base)


def segment_options(partition: PartitionDirectory, segment: Segment, options: PartitionOptions) -> SegmentOptions:
    """What is known about one segment of a partition before it is read."""
    is_last = segment == partition.segments[-1]
    start = log_start_offset(partition, options)
    return SegmentOptions(
        is_last=is_last,
        is_live=options.is_live,
        is_closed=not is_last or (options.is_clean is True and not options.is_live),
        zeros_allowed=is_last and not options.is_clean,
        stops=tuple(sorted({*(file.base_offset for file in partition.snapshots), start})),
        log_start_offset=start,
    )


def read_segment(disk: Disk, segment: Segment, options: SegmentOptions, on_bytes: Callable[[int], None]) -> SegmentReading:
    """Verify a segment apart from its partition -> what its partition needs to know of it. Raises OSError."""
    findings = FindingList(is_live=options.is_live)
    steps: list[ProducerStep] = []

    def keep(step: ProducerStep) -> None:
        if len(steps) <= MOST_STEPS:
            steps.append(step)

    facts = SegmentVerifier(disk, segment, options, findings, keep, on_bytes).run()
    if len(steps) > MOST_STEPS:
        return SegmentReading(facts, None, [])
    return SegmentReading(facts, steps, findings.finish())
