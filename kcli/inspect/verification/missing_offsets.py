"""Finds the offsets that a partition's log should have and does not have.

    missing                                     finding            shown by
    ------------------------------------------  -----------------  ------------------------------------------------------
    inside a segment                            offset-hole        the topic's cleanup.policy, which is known and not
                                                                     compact; or a record without a key before the gap
                                                offset-gap         only the gap: the cleaner may have made it
    between two segments, and nothing shows     segment-gap        the segments; an index whose .log is missing; indexes
      that the log was compacted                                     that continue after the last batch
    before the first segment                    segment-gap        what is known of the log's start (evidence)
    at the end of the log                       records-missing    what is known of the log's end (evidence)
    anywhere, since an earlier repair           offset-hole        the manifest of the quarantine (kcli.log.files.quarantine)

Missing offsets alone are not a fault: the log cleaner removes records, and a broker accepts every gap. A log was cleaned if
one of these shows it: the cleaner's checkpoint, batches with fewer records than offsets, a delete horizon, a *.log.deleted
with the name of a segment, the topic's policy, the name of an internal topic.

A record without a key shows that a later gap is not the cleaner's work. A round of the cleaner starts at the first segment and
removes every record without a key below the offset that the round reaches, and a gap that it leaves is below that offset too.
This is true of every broker, so also of the leader from which a follower copied the log.

An earlier repair may have lost offsets that nothing in the log shows: a hole in a compacted topic looks like the cleaner's
work, and --like-kafka leaves a log that ends before the lost offsets. They count as missing until a batch has them, the log
start offset is after them, or the quarantine is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kcli.format.file_names import DirectoryState, FileKind, FileState
from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.record_batch import RecordBatch
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.quantities import format_count, format_offsets
from kcli.inspect.verification.evidence import Evidence, collect_claims, evident_end, evident_start, lost_of, segment_index_ends
from kcli.inspect.verification.facts import COMPACTED_TOPICS, PartitionOptions, SegmentFacts, log_start_offset
from kcli.inspect.verification.findings import Finding, FindingList
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory, Segment, was_swapped
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# How much of a log is searched for a record without a key, from its start.
_MOST_BYTES_FOR_KEYS = 16 * 1024 * 1024


class MissingOffsets:
    """The missing offsets of one partition whose segments were read; `ranges` [first, end) are those that errors are about."""

    def __init__(
        self,
        disk: Disk,
        partition: PartitionDirectory,
        options: PartitionOptions,
        segments: Sequence[SegmentFacts],
        findings: FindingList,
    ) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._disk = disk
        self._partition = partition
        self._options = options
        self._segments = segments
        self._findings = findings
        self._log_start_offset = log_start_offset(partition, options)

    @property
    def _end_offset(self) -> int:
        base = self._partition.segments[0].base_offset if self._partition.segments else 0
        return max([base, *(facts.end_offset for facts in self._segments)])

    @property
    def _may_have_changed(self) -> bool:
        """True if files may have been created or deleted while the partition was read."""
        return self._options.is_live or self._findings.vanished

    def check(self) -> Evidence:
        """Add a finding for each missing range; return how far the log once reached, if its end is missing."""
        self._check_gaps()
        if not self._may_have_changed:
            self._check_indexes_without_log()
            self._check_index_ends()
            self._check_start()
        evidence = self._check_end()
        if not self._may_have_changed:
            lost = lost_of(self._disk, self._options.lost, self._partition)
            found = self.missing_since_repair([offsets for one in lost for offsets in one.offsets])
            self.ranges += found
            self._findings.extend(lost_finding(self._partition.path, offsets) for offsets in found)
        return evidence

    def _add(self, code: str, path: str, message: str, missing: tuple[int, int], position: int | None = None) -> None:
        self._findings.add(code, path, message, position=position, offset=missing[0])
        if code != "offset-gap":
            self.ranges.append(missing)

    def _is_reported(self, offset: int) -> bool:
        return any(first <= offset < end for first, end in self.ranges)

    def _is_cleaned_up_to(self, offset: int) -> bool:
        """Return True if the log shows that a cleaner removed records below `offset`."""
        if self._options.is_compacted or self._partition.topic in COMPACTED_TOPICS:
            return True
        if (self._options.cleaner_offset or 0) >= offset:
            return True
        return any(facts.is_thinned for facts in self._segments) or was_swapped(self._disk, self._partition)

    # ------------------------------------------------------------------------------------------- in and between segments

    def _check_gaps(self) -> None:
        inner_gaps = any(facts.gaps and not facts.is_damaged for facts in self._segments)
        keyless_offset = self._first_keyless_offset()
        for before, facts in zip([None, *self._segments], self._segments, strict=False):
            self._check_inner_gaps(facts, keyless_offset)
            gap = facts.gap_before
            if gap is not None and facts.starts_damaged:
                # The damage is a finding of its own; only the offsets up to the segment's name are not part of it.
                gap = (gap[0], facts.base_offset) if gap[0] < facts.base_offset else None
            if gap is None or self._is_cleaned_up_to(gap[1]):
                continue
            if before is None:
                # The name of a segment is its first offset, unless a cleaner removed the first batches.
                code = "offset-hole" if self._options.is_never_compacted else "offset-gap"
                self._add(code, facts.path, f"missing at the start of the log: {format_offsets(*gap)}", gap)
            elif not before.ends_damaged and not inner_gaps:
                self._add("segment-gap", facts.path, f"missing before the segment: {format_offsets(*gap)}", gap)

    def _check_inner_gaps(self, facts: SegmentFacts, keyless_offset: int | None) -> None:
        if facts.first_gap is None:
            return
        first, end, position = facts.first_gap
        if self._is_cleaned_up_to(end):
            return
        message = f"missing: {format_offsets(first, end)}; {format_count(facts.gaps, 'gap')} in the segment"
        is_hole = self._options.is_never_compacted or (keyless_offset is not None and keyless_offset < first)
        code = "offset-hole" if is_hole else "offset-gap"
        self._findings.add(code, facts.path, message, position=position, offset=first)
        self.ranges += facts.gap_ranges if is_hole else []

    def _first_keyless_offset(self) -> int | None:
        """Return the offset of the first record without a key, where that decides about a gap; None if there is none."""
        gaps = [facts.first_gap[0] for facts in self._segments if facts.first_gap is not None]
        if not gaps or self._options.is_never_compacted or self._is_cleaned_up_to(max(gaps)):
            return None
        return _first_keyless_offset(self._disk, self._partition.segments, max(gaps))

    def _check_indexes_without_log(self) -> None:
        """Report the offsets of segments that have an .index and no .log; a broker that deletes a segment removes both."""
        if not self._segments:
            return
        others = self._partition.others
        being_deleted = {file.base_offset for file in others if file.state is not FileState.CURRENT}
        for file in others:
            base = file.base_offset
            if file.kind is not FileKind.INDEX or not file.is_current or base < 0 or base in being_deleted:
                continue
            before = [facts.end_offset for facts in self._segments if facts.base_offset < base and facts.first_offset >= 0]
            behind = [facts.base_offset for facts in self._segments if facts.base_offset > base]
            start, end = max([base, *before]), min(behind, default=base)
            if start < end and before and not self._is_reported(start):
                message = f"the .log of this index is missing, and with it: {format_offsets(start, end)}"
                self._add("segment-gap", file.path, message, (start, end))

    def _check_index_ends(self) -> None:
        """Report the offsets of segments whose indexes continue after the last batch; a cleaner writes new indexes."""
        segments = {segment.base_offset: segment for segment in self._partition.segments}
        for facts, behind in pairwise(self._segments):
            start = max(facts.end_offset, self._log_start_offset)
            if start >= behind.base_offset or self._is_reported(start) or (facts.size_bytes and facts.ends_damaged):
                continue
            ends = segment_index_ends(self._disk, segments[facts.base_offset])
            # An empty .log does not show how many batches it had after the last index entry.
            end = min(max((one.offset for one in ends), default=0) if facts.size_bytes else INT64_MAX, behind.base_offset)
            if ends and start < end:
                what = "the indexes continue after the last batch"
                if not facts.size_bytes:
                    what = "the .log is empty, its indexes are not"
                self._add("segment-gap", facts.path, f"{what}; missing: {format_offsets(start, end)}", (start, end))

    # ------------------------------------------------------------------------------------------------- start and end

    def _check_start(self) -> None:
        """Report the offsets before the first segment that the log once had."""
        if not self._segments:
            return
        base = self._segments[0].base_offset
        options = self._options._replace(log_start_offset=self._plausible_log_start(self._end_offset))
        start = evident_start(self._disk, self._partition, options, base)
        # A cleaner keeps the name of the first segment. A segment with a wrong name may have the offsets.
        for missing in self._segments[0].missing_offsets(start, base):
            message = f"missing before the first segment, which begins at offset {base}: {format_offsets(*missing)}"
            self._add("segment-gap", self._partition.path, message, missing)

    def _plausible_log_start(self, end_offset: int) -> int:
        """Return the checkpointed log start offset; 0 where there is none, or where it is after the end of the log."""
        log_start = self._options.log_start_offset or 0
        return log_start if log_start <= end_offset else 0

    def _check_end(self) -> Evidence:
        """Compare the end of the batches with how far the log once reached; return what shows that something is missing."""
        segments, end_offset = self._segments, self._end_offset
        first = segments[0].base_offset if segments else self._log_start_offset if self._options.is_clean is None else 0
        batch_end = max([first, *(facts.end_offset for facts in segments if facts.first_offset >= 0)])
        if self._may_have_changed or self._partition.state is DirectoryState.DELETE:
            return Evidence(batch_end)
        claims = collect_claims(
            self._disk,
            self._partition,
            self._options,
            batch_end=batch_end,
            is_end_damaged=not segments or segments[-1].ends_damaged,
            stated_end=segments[-1].stated_end if segments else None,
            empty_names=[facts.base_offset for facts in segments if not facts.size_bytes],
            unproven_names=[facts.base_offset for facts in segments if facts.first_offset < 0 and facts.size_bytes],
        )
        evidence = evident_end(claims, batch_end)
        if evidence.end_offset > end_offset:
            # Without a segment the log start offset counts for the end; alone it does not show that records were deleted.
            is_alone = not segments and len(evidence.sources) == 1
            start = batch_end if is_alone else max(batch_end, self._plausible_log_start(evidence.end_offset))
            if start < evidence.end_offset:
                message = (
                    f"the log ends at offset {end_offset}, and it once reached {evidence.end_offset} "
                    f"({evidence.sentence()}); lost: {format_offsets(start, evidence.end_offset)}"
                )
                self._add("records-missing", self._partition.path, message, (start, evidence.end_offset))
                return evidence
        elif segments and end_offset > batch_end and not self._is_cleaned_up_to(end_offset):
            message = f"missing before the segment: {format_offsets(batch_end, end_offset)}"
            self._add("segment-gap", segments[-1].path, message, (batch_end, end_offset))
        return Evidence(end_offset)

    # ---------------------------------------------------------------------------------------------- lost by repairs

    def missing_since_repair(self, lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the parts of the offsets `lost` by a repair that no batch has and that are not in `ranges`."""
        if self._partition.is_metadata_log or self._partition.state is not DirectoryState.CURRENT:
            return []
        end_offset = self._end_offset
        log_start = self._plausible_log_start(end_offset)
        base = self._segments[0].base_offset if self._segments else log_start
        gaps = [gap for facts in self._segments for gap in (*facts.gap_ranges, *facts.legacy_gap_ranges, *facts.lost_gaps)]
        gaps += [facts.gap_before for facts in self._segments if facts.gap_before is not None]
        absent = OffsetRanges([*gaps, (end_offset, max([end_offset, *(end for _, end in lost)]))])
        reported = OffsetRanges(self.ranges)
        found: list[tuple[int, int]] = []
        for first, end in OffsetRanges(lost):
            start = max(first, base, log_start)
            found += [part for one in absent.common(start, end) for part in reported.missing(*one)]
        return list(OffsetRanges(found))


def lost_finding(path: str, lost: tuple[int, int]) -> Finding:
    """Return the finding for offsets [first, end) of the partition at `path` that are missing since a repair."""
    return Finding("offset-hole", path, None, lost[0], f"missing since a repair: {format_offsets(*lost)}")


def _first_keyless_offset(disk: Disk, segments: Sequence[Segment], below: int) -> int | None:
    """Return the offset of the first data record without a key below the offset `below`, None if none is found.

    Only the first _MOST_BYTES_FOR_KEYS of the log are searched.
    """
    left, scanner = _MOST_BYTES_FOR_KEYS, RecordScanner()
    try:
        for segment in segments:
            with SegmentReader(disk, segment.log) as reader:
                for found in reader.batches():
                    if left <= 0 or segment.base_offset >= below:
                        return None
                    left -= found.end_position - found.position
                    offset = _keyless_in(found, scanner) if isinstance(found, LogBatch) and found.is_valid else None
                    if offset is not None:
                        return offset if offset < below else None
    except (OSError, FormatError):
        return None  # what cannot be read is a finding of the segment
    return None


def _keyless_in(batch: LogBatch, scanner: RecordScanner) -> int | None:
    if isinstance(batch.header, RecordBatch) and batch.header.is_control:
        return None
    for window in batch.windows(scanner, skip_large=True):
        for index in range(window.count):
            if window.columns.key_size[index] < 0:
                return window.columns.offset[index]
    return None
