"""Verifies one partition: its segments in their order, and what can only be seen across them.

    what                                    where it is decided
    --------------------------------------  --------------------------------------------------------
    batches, offsets, indexes of a segment  segments, batches, indexes
    producers, transactions, .txnindex      producers, transaction_index
    snapshots                               snapshots, when the producers stand at their offsets
    leader epochs                           epochs, at the end
    gaps and overlaps between segments,     here
      checkpoints against the log
    how far the log once reached            evidence
    names and leftovers                     names

Offsets that are missing are no fault by themselves: the log cleaner takes records away, and a broker accepts it all. Whether a
log was cleaned is shown by the cleaner's checkpoint, by batches with fewer records than offsets, by a delete horizon, by gaps
inside of a segment, by a *.log.deleted whose name a segment has, or by the topic's name; without any of these a gap between two
segments is a finding. A gap inside of a segment is a finding if the topic's policy is known and not compact, or if a record
without a key is before it (keyless).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from kcli.format.file_names import DirectoryState, FileKind, FileState
from kcli.format.primitives import INT64_MAX
from kcli.inspect.quantities import format_count, format_offsets
from kcli.inspect.verification.epochs import check_leader_epochs
from kcli.inspect.verification.evidence import Evidence, collect_claims, evident_end, evident_start
from kcli.inspect.verification.facts import COMPACTED_TOPICS, EpochRun, PartitionOptions, PartitionResult, SegmentFacts
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.index_ends import segment_index_ends
from kcli.inspect.verification.known_holes import lost_finding, lost_of, still_missing
from kcli.inspect.verification.missing_offsets import first_keyless_offset
from kcli.inspect.verification.names import check_names
from kcli.inspect.verification.producers import ProducerStep, ProducerTracker
from kcli.inspect.verification.readings import ReadAhead, log_start_offset, segment_options
from kcli.inspect.verification.segments import SegmentVerifier
from kcli.inspect.verification.small_files import check_metadata_snapshot, check_small_file
from kcli.inspect.verification.snapshots import SnapshotCheck, read_snapshot
from kcli.inspect.verification.transaction_index import TransactionIndexCheck
from kcli.log.disk import Disk
from kcli.log.log_directory import FoundFile, PartitionDirectory, Segment, read_partition

_CONFIRMED_BY_EVIDENCE = ("recovery-point-beyond-end", "high-watermark-beyond-end")


class PartitionVerifier:
    """Verifies one partition directory."""

    def __init__(
        self,
        disk: Disk,
        partition: PartitionDirectory,
        options: PartitionOptions,
        on_bytes: Callable[[int], None] = lambda count: None,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self.disk = disk
        self.partition = partition
        self.options = options
        self.findings = FindingList(is_live=options.is_live)
        self._on_bytes = on_bytes
        self._read_ahead = read_ahead
        self._facts: list[SegmentFacts] = []
        self._missing: list[tuple[int, int]] = []
        base = partition.segments[0].base_offset if partition.segments else 0
        self.log_start_offset = log_start_offset(partition, options)
        self.end_offset = base
        self.tracker = ProducerTracker(self.findings, knows_all=base == 0)
        self._snapshots = SnapshotCheck(self.tracker, self.findings)
        self._ahead = list(partition.snapshots)  # snapshots whose offset the walk has not reached

    def run(self) -> PartitionResult:
        """Read the partition -> what it holds. Raises nothing for what is wrong with it."""
        check_names(self.partition, self.findings, is_live=self.options.is_live)
        self._begin_producers()
        for segment in self.partition.segments:
            self._verify_segment(segment)
        self._finish_snapshots()
        self._add_open_transactions()
        if self.options.is_whole:
            self._check_gaps()
            self._check_orphans()
            self._check_index_ends()
            self._check_start()
            self._check_epochs()
            self._check_checkpoints(self._check_end())
            self._check_known_holes()
            self._check_own_files()
        return self._result()

    # ------------------------------------------------------------------------------------------------------ segments

    def _begin_producers(self) -> None:
        """Load the producers from the snapshot at the first segment's start, where there is one."""
        base = self.end_offset
        while self._ahead and self._ahead[0].base_offset <= base:
            file = self._ahead.pop(0)
            snapshot = read_snapshot(self.disk, file.path, self.findings)
            if snapshot is not None and file.base_offset == base and base > 0:
                self.tracker.load(snapshot.entries())
                self.tracker.knows_all = True

    def _verify_segment(self, segment: Segment) -> None:
        is_last = segment is self.partition.segments[-1]
        self._check_missing_indexes(segment, is_last)
        index = TransactionIndexCheck(self.disk, segment.transaction_index, segment.log, segment.base_offset, self.findings)
        index.tail_may_be_missing = is_last and self.options.is_live
        index.log_start_offset = self.log_start_offset
        self.tracker.path, self.tracker.index = segment.log, index
        try:
            facts = self._read_segment(segment)
        except OSError as error:
            self.findings.add_unreadable(segment.log, error)
            self.tracker.gap_offset = max(self.tracker.gap_offset, segment.base_offset, self.end_offset)
            return
        index.finish(facts.damaged)
        self._join(facts)

    def _read_segment(self, segment: Segment) -> SegmentFacts:
        """Read a segment, or take what was read ahead of it; its steps move the producers on. Raises OSError."""
        ahead = None if self._read_ahead is None else self._read_ahead(segment)
        if ahead is not None and ahead.steps is not None:
            self.findings.extend(ahead.findings)
            self._facts.append(ahead.facts)
            for step in ahead.steps:
                self._on_step(step)
            return ahead.facts
        options = segment_options(self.partition, segment, self.options)
        verifier = SegmentVerifier(self.disk, segment, options, self.findings, self._on_step, self._on_bytes)
        self._facts.append(verifier.facts)
        try:
            return verifier.run()
        except OSError:
            self._facts.pop()
            raise

    def _check_missing_indexes(self, segment: Segment, is_last: bool) -> None:
        if self.options.is_live and is_last:
            return
        for path, code in ((segment.offset_index, "index-missing"), (segment.time_index, "timeindex-missing")):
            if path is None:
                self.findings.add(
                    code, segment.log, f"the segment has no .{code.split('-')[0]} file", offset=segment.base_offset
                )

    def _join(self, facts: SegmentFacts) -> None:
        """Move on to the end of a segment that was read; where it does not begin where the one before ended, say so."""
        if facts.first_offset >= 0:
            self._pass_start(facts)
        elif facts.base_offset < self.end_offset:
            self._add_overlap(facts, facts.base_offset)
        elif facts.base_offset > self.end_offset:
            # A cleaner has left nothing of the segment before: what its producers did is gone with their batches.
            self.tracker.gap_offset = max(self.tracker.gap_offset, facts.base_offset)
        if facts.is_damaged:
            self.tracker.gap_offset = max(self.tracker.gap_offset, facts.end_offset)
        self.tracker.gap_offset = max(self.tracker.gap_offset, facts.gap_offset)
        self.end_offset = max(self.end_offset, facts.end_offset)

    def _pass_start(self, facts: SegmentFacts) -> None:
        """Note, once a segment, how its first batch continues the segment before."""
        if facts.joined:
            return
        facts.joined = True
        self._reach(min(self.end_offset, facts.first_offset))
        if facts.first_offset > self.end_offset:
            facts.gap_before = (self.end_offset, facts.first_offset)
            self.tracker.gap_offset = max(self.tracker.gap_offset, facts.first_offset)
        elif min(facts.first_offset, facts.base_offset) < self.end_offset and facts is not self._facts[0]:
            self._add_overlap(facts, facts.first_offset)

    def _add_overlap(self, facts: SegmentFacts, offset: int) -> None:
        self.findings.add(
            "segment-overlap",
            facts.path,
            f"the segment begins at offset {min(offset, facts.base_offset)}; the one before it ends at offset "
            f"{self.end_offset - 1}",
            offset=offset,
        )

    # ----------------------------------------------------------------------------------------------------- producers

    def _on_step(self, step: ProducerStep) -> None:
        self._pass_start(self._facts[-1])
        self.tracker.note_gap(step)
        self._reach(step.first_offset)
        self.tracker.apply(step)

    def _reach(self, offset: int) -> None:
        """Compare the snapshots up to `offset`, which the producers have reached."""
        while self._ahead and self._ahead[0].base_offset <= offset:
            self._compare(self._ahead.pop(0))

    def _compare(self, file: FoundFile) -> None:
        snapshot = read_snapshot(self.disk, file.path, self.findings)
        if snapshot is not None:
            self._snapshots.compare(file.path, file.base_offset, snapshot)

    def _finish_snapshots(self) -> None:
        self._reach(self.end_offset)
        if not self.options.is_whole:
            return
        for file in self._ahead:
            if self.options.is_live:
                continue
            if read_snapshot(self.disk, file.path, self.findings) is not None:
                message = f"the snapshot is of offset {file.base_offset}; the log ends at {self.end_offset}"
                self.findings.add("snapshot-beyond-end", file.path, message, offset=file.base_offset)
        has_producers = any(facts.producer_batches for facts in self._facts)
        # A roll and a clean stop write one; a crash before either has none to lose.
        should_have = (self.options.is_clean is True or len(self._facts) > 1) and not self.options.is_live
        if has_producers and should_have and not self.partition.snapshots:
            self.findings.add("snapshot-missing", self.partition.path, "the log has batches of producers and no .snapshot")
        elif has_producers and self.options.is_clean and self.partition.snapshots[-1].base_offset < self.end_offset:
            message = (
                f"the last snapshot is of offset {self.partition.snapshots[-1].base_offset}; the log ends at {self.end_offset}"
            )
            self.findings.add("snapshot-behind", self.partition.path, message)

    def _add_open_transactions(self) -> None:
        """Add a note for each transaction that has no end in the log."""
        for txn in self.tracker.open_transactions():
            self.findings.add(
                "transaction-open",
                self.partition.path,
                f"the transaction of producer {txn.producer_id} (epoch {txn.producer_epoch}), {txn.records} records so far, "
                "has no end in the log",
                offset=txn.first_offset,
            )

    # ------------------------------------------------------------------------------------------------ the whole log

    def _is_cleaned_up_to(self, offset: int) -> bool:
        """True where the log shows that a cleaner took records below `offset`."""
        if self.options.is_compacted or self.partition.topic in COMPACTED_TOPICS:
            return True
        if (self.options.cleaner_offset or 0) >= offset:
            return True
        return any(facts.is_thinned for facts in self._facts) or self._was_swapped()

    def _was_swapped(self) -> bool:
        """True where a cleaner has put a segment in the place of one that is still to be deleted."""
        bases = {facts.base_offset for facts in self._facts[:-1]}
        swapped = [file for file in self.partition.others if file.state is FileState.DELETED and file.base_offset in bases]
        return any(file.kind is FileKind.LOG and self.disk.size(file.path) for file in swapped)

    def _check_gaps(self) -> None:
        inner_gaps = any(facts.gaps and not facts.is_damaged for facts in self._facts)
        keyless = self._first_keyless_offset()
        for before, facts in zip([None, *self._facts], self._facts, strict=False):
            if facts.first_gap is not None:
                start, end, position = facts.first_gap
                if not self._is_cleaned_up_to(end):
                    message = f"missing: {format_offsets(start, end)}; {format_count(facts.gaps, 'gap')} in the segment"
                    is_hole = self.options.is_never_compacted or (keyless is not None and keyless < start)
                    code = "offset-hole" if is_hole else "offset-gap"
                    self.findings.add(code, facts.path, message, position=position, offset=start)
                    self._missing += facts.gap_ranges if is_hole else []
            gap = facts.gap_before
            if gap is not None and facts.starts_damaged:
                # The damage is named; the offsets up to the segment's name are not among it.
                gap = (gap[0], facts.base_offset) if gap[0] < facts.base_offset else None
            if gap is None:
                continue
            start, end = gap
            if before is None:
                # A segment's name is its first offset, except where a cleaner took the first batches.
                if not self._is_cleaned_up_to(end):
                    message = f"missing at the start of the log: {format_offsets(start, end)}"
                    code = "offset-hole" if self.options.is_never_compacted else "offset-gap"
                    self.findings.add(code, facts.path, message, offset=start)
                    self._missing += [(start, end)] if self.options.is_never_compacted else []
            elif not before.ends_damaged and not inner_gaps and not self._is_cleaned_up_to(end):
                message = f"missing before the segment: {format_offsets(start, end)}"
                self.findings.add("segment-gap", facts.path, message, offset=start)
                self._missing.append((start, end))

    def _first_keyless_offset(self) -> int | None:
        """Return the offset of a record without a key that proves that later gaps are not the cleaner's, if one is needed."""
        gaps = [facts.first_gap[0] for facts in self._facts if facts.first_gap is not None]
        if not gaps or self.options.is_never_compacted or self._is_cleaned_up_to(max(gaps)):
            return None
        return first_keyless_offset(self.disk, self.partition.segments, max(gaps))

    def _check_orphans(self) -> None:
        """Name what the segments held whose index is there and whose .log is not: a broker removes both, the .log first."""
        if self.options.is_live or self.findings.vanished or not self._facts:
            return
        others = self.partition.others
        going = {file.base_offset for file in others if file.state is not FileState.CURRENT}
        for file in others:
            base = file.base_offset
            if file.kind is not FileKind.INDEX or not file.is_current or base < 0 or base in going:
                continue
            before = [facts.end_offset for facts in self._facts if facts.base_offset < base and facts.first_offset >= 0]
            behind = [facts.base_offset for facts in self._facts if facts.base_offset > base]
            start, end = max([base, *before]), min(behind, default=base)
            if start < end and before and not any(first <= start < last for first, last in self._missing):
                message = f"the .log of this index is missing, and with it: {format_offsets(start, end)}"
                self.findings.add("segment-gap", file.path, message, offset=start)
                self._missing.append((start, end))

    def _check_index_ends(self) -> None:
        """Name what the segments held whose indexes go on behind their last batch: a cleaner writes the indexes anew."""
        if self.options.is_live or self.findings.vanished:
            return
        segments = {segment.base_offset: segment for segment in self.partition.segments}
        for facts, behind in pairwise(self._facts):
            start = max(facts.end_offset, self.log_start_offset)
            is_named = any(first <= start < last for first, last in self._missing)
            if start >= behind.base_offset or is_named or (facts.size_bytes and facts.ends_damaged):
                continue
            ends = segment_index_ends(self.disk, segments[facts.base_offset])
            # An empty .log does not show how many batches it had behind the last entry.
            end = min(max((one.offset for one in ends), default=0) if facts.size_bytes else INT64_MAX, behind.base_offset)
            if ends and start < end:
                what = (
                    "the indexes continue after the last batch"
                    if facts.size_bytes
                    else "the .log is empty, its indexes are not"
                )
                message = f"{what}; missing: {format_offsets(start, end)}"
                self.findings.add("segment-gap", facts.path, message, offset=start)
                self._missing.append((start, end))

    def _check_start(self) -> None:
        """Hold the first segment against how early the log once began: a first segment may be missing."""
        if not self._facts or self.options.is_live or self.findings.vanished:
            return
        base = self._facts[0].base_offset
        options = self.options._replace(log_start_offset=self._possible_log_start(self.end_offset))
        start = evident_start(self.disk, self.partition, options, base)
        # A cleaner keeps the name of the first segment. A segment with a wrong name may have the offsets.
        for first, end in self._facts[0].missing_offsets(start, base):
            message = f"missing before the first segment, which begins at offset {base}: {format_offsets(first, end)}"
            self.findings.add("segment-gap", self.partition.path, message, offset=first)
            self._missing.append((first, end))

    def _possible_log_start(self, end_offset: int) -> int:
        """The checkpointed log start offset; 0 where there is none, or where it is beyond the end of the log."""
        log_start = self.options.log_start_offset or 0
        return log_start if log_start <= end_offset else 0

    def _check_end(self) -> Evidence:
        """Hold the end of the batches against how far the log once reached -> what shows that something is missing."""
        first = self._facts[0].base_offset if self._facts else self.log_start_offset if self.options.is_clean is None else 0
        batch_end = max([first, *(facts.end_offset for facts in self._facts if facts.first_offset >= 0)])
        if self.options.is_live or self.findings.vanished or self.partition.state is DirectoryState.DELETE:
            return Evidence(batch_end)
        last = self._facts[-1] if self._facts else None
        claims = collect_claims(
            self.disk,
            self.partition,
            self.options,
            batch_end=batch_end,
            is_end_damaged=last is None or last.ends_damaged,
            stated_end=None if last is None else last.stated_end,
            empty_names=[facts.base_offset for facts in self._facts if not facts.size_bytes],
            unproven_names=[facts.base_offset for facts in self._facts if facts.first_offset < 0 and facts.size_bytes],
        )
        evidence = evident_end(claims, batch_end)
        if evidence.end_offset > self.end_offset:
            # Without a segment the log start offset counts for the end; alone it does not show that records were deleted.
            is_alone = not self._facts and len(evidence.sources) == 1
            start = batch_end if is_alone else max(batch_end, self._possible_log_start(evidence.end_offset))
            if start < evidence.end_offset:
                message = (
                    f"the log ends at offset {self.end_offset}, and it once reached {evidence.end_offset} "
                    f"({evidence.sentence()}); lost: {format_offsets(start, evidence.end_offset)}"
                )
                self.findings.add("records-missing", self.partition.path, message, offset=start)
                self._missing.append((start, evidence.end_offset))
                return evidence
        elif self._facts and self.end_offset > batch_end and not self._is_cleaned_up_to(self.end_offset):
            message = f"missing before the segment: {format_offsets(batch_end, self.end_offset)}"
            self.findings.add("segment-gap", self._facts[-1].path, message, offset=batch_end)
            self._missing.append((batch_end, self.end_offset))
        return Evidence(self.end_offset)

    def _check_known_holes(self) -> None:
        """Name what an earlier repair has lost, where nothing else shows it."""
        if not self.options.is_live and not self.findings.vanished:
            found = self.known_holes(lost_of(self.disk, self.options.lost, self.partition))
            self._missing += found
            self.findings.extend(lost_finding(self.partition.path, offsets) for offsets in found)

    def known_holes(self, lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the parts of the offsets `lost` by a repair that are missing and that no finding names yet."""
        if self.partition.is_metadata_log or self.partition.state is not DirectoryState.CURRENT:
            return []
        start = self._possible_log_start(self.end_offset)
        return still_missing(lost, self._facts, self._missing, start, self.end_offset)

    def _check_epochs(self) -> None:
        if not self._facts:
            return
        runs: list[tuple[str, EpochRun]] = []
        for facts in self._facts:
            for run in facts.epochs:
                if runs and 0 <= run.epoch < runs[-1][1].epoch:
                    message = f"the batch is of leader epoch {run.epoch}; the one before it of {runs[-1][1].epoch}"
                    self.findings.add("leader-epoch-back", facts.path, message, position=run.position, offset=run.first_offset)
                runs.append((facts.path, run))
        check_leader_epochs(
            self.disk,
            self.partition.file(FileKind.LEADER_EPOCH_CHECKPOINT),
            self.partition.path,
            runs,
            self.log_start_offset,
            self.end_offset,
            self.findings,
            is_live=self.options.is_live,
            is_start_known=self.options.is_clean is True,
        )

    def _check_checkpoints(self, evidence: Evidence) -> None:
        """Hold the checkpoints against the log's end; a running broker's are old ones, and never ahead.

        One that the `evidence` confirms is right: what is missing up to its offset is a finding of its own.
        """
        options, end = self.options, self.end_offset
        if self.findings.vanished:
            return
        for code, offset, what in (
            ("recovery-point-beyond-end", options.recovery_point, "recovery point"),
            ("high-watermark-beyond-end", options.high_watermark, "high watermark"),
            ("log-start-beyond-end", options.log_start_offset, "log start offset"),
            ("cleaner-offset-beyond-end", options.cleaner_offset, "cleaner's first dirty offset"),
        ):
            is_confirmed = code in _CONFIRMED_BY_EVIDENCE and offset is not None and offset <= evidence.end_offset
            if offset is not None and offset > end and not is_confirmed:
                message = f"the checkpointed {what} is {offset}; the log ends at {self.end_offset}"
                self.findings.add(code, self.partition.path, message, offset=offset)

    def _check_own_files(self) -> None:
        """Check what a partition has beside its log: little, but for KRaft's."""
        partition = self.partition
        if not partition.segments and partition.state is DirectoryState.CURRENT and not self.options.is_live:
            self.findings.add("partition-empty", partition.path, "there is no .log in the partition's directory")
        for file in partition.metadata_snapshots:
            check_metadata_snapshot(self.disk, file.path, self.findings)
        quorum_state = partition.file(FileKind.QUORUM_STATE)
        if quorum_state is not None:
            check_small_file(self.disk, quorum_state, FileKind.QUORUM_STATE, self.findings)

    def _result(self) -> PartitionResult:
        facts, counts = self._facts, self.tracker.counts
        open_transactions = self.tracker.open_transactions()
        first_open = open_transactions[0].first_offset if open_transactions else self.end_offset
        return PartitionResult(
            path=self.partition.path,
            topic=self.partition.topic,
            partition=self.partition.partition,
            state=self.partition.state,
            segments=len(self.partition.segments),
            size_bytes=sum(one.size_bytes for one in facts),
            batches=sum(one.batches for one in facts),
            data_records=sum(one.data_records for one in facts),
            control_records=sum(one.control_records for one in facts),
            aborted_records=counts.aborted_records,
            records_below_start=sum(one.data_records_below_start for one in facts),
            log_start_offset=self.log_start_offset,
            end_offset=self.end_offset,
            last_stable_offset=min(first_open, self.end_offset),
            committed_transactions=counts.committed,
            aborted_transactions=counts.aborted,
            open_transactions=open_transactions,
            findings=self.findings.finish(),
            missing=self._missing,
        )


def verify_partition(
    disk: Disk,
    partition: PartitionDirectory,
    options: PartitionOptions,
    on_bytes: Callable[[int], None] = lambda count: None,
    read_ahead: ReadAhead | None = None,
) -> PartitionResult:
    """Verify one partition directory -> what it holds and what is wrong with it.

    `on_bytes` is told of the progress; `read_ahead` gives what was read of a segment elsewhere, or None. Where a broker is at
    work, only what is found at the same place a second time counts: its files change between one read and the next.
    """
    result = PartitionVerifier(disk, partition, options, on_bytes, read_ahead).run()
    if not options.is_live or all(finding.severity == INFO for finding in result.findings):
        return result
    try:
        again = PartitionVerifier(disk, read_partition(disk, partition.path), options).run()
    except OSError:
        return result._replace(findings=[])  # the partition was deleted meanwhile
    first = {finding[:-1] for finding in result.findings}
    lasting = [finding for finding in again.findings if finding.severity == INFO or finding[:-1] in first]
    return again._replace(findings=lasting)
