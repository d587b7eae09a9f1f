"""Verifies one partition: its segments in their order, and what only all of them together show.

what                                    module
--------------------------------------  --------------------------------------------------------
batches, offsets, indexes of a segment  segments, batches, index_checks
producers, transactions, .txnindex      producer_tracker, transaction_index
snapshots                               snapshots, when the walk reaches their offsets
overlaps between segments,              here
  checkpoints against the log
missing offsets                         missing_offsets, evidence
the base offset of the last batch       evidence
leader epochs                           epochs, at the end
names and leftovers                     names
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcli.format.file_names import DirectoryState, FileKind
from kcli.inspect.quantities import format_count
from kcli.inspect.verification.evidence import Evidence, find_moved_batch
from kcli.inspect.verification.facts import (
    EpochRun,
    PartitionOptions,
    PartitionResult,
    SegmentFacts,
    log_start_offset,
    segment_options,
)
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.missing_offsets import MissingOffsets
from kcli.inspect.verification.producer_tracker import (
    ProducerStep,
    ProducerTracker,
    SnapshotCheck,
    TransactionIndexCheck,
    read_snapshot,
)
from kcli.inspect.verification.segments import ReadAhead, SegmentVerifier
from kcli.inspect.verification.small_file_checks import (
    check_leader_epochs,
    check_metadata_snapshot,
    check_names,
    check_small_file,
)
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, Segment, read_partition

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
        self._missing = MissingOffsets(disk, partition, options, self._facts, self.findings)
        base = partition.segments[0].base_offset if partition.segments else 0
        self.log_start_offset = log_start_offset(partition, options)
        self.end_offset = base
        self.tracker = ProducerTracker(self.findings, knows_all=base == 0)
        self._snapshots = SnapshotCheck(self.tracker, self.findings)
        self._snapshots_ahead = list(partition.snapshots)  # the walk has not reached their offsets

    def run(self) -> PartitionResult:
        """Read the partition. What is wrong with its files is a finding, not an error."""
        check_names(self.partition, self.findings, is_live=self.options.is_live)
        self._begin_producers()
        for segment in self.partition.segments:
            self._verify_segment(segment)
        self._finish_snapshots()
        self._add_open_transactions()
        if self.options.is_whole:
            evidence = self._missing.check()
            self._check_epochs()
            self._check_checkpoints(evidence)
            self._check_last_batch()
            self._check_other_files()
        return self._result()

    # ------------------------------------------------------------------------------------------------------ segments

    def _begin_producers(self) -> None:
        """Load the producers from the snapshot at the start of the first segment, if there is one."""
        base = self.end_offset
        while self._snapshots_ahead and self._snapshots_ahead[0].base_offset <= base:
            file = self._snapshots_ahead.pop(0)
            snapshot = read_snapshot(self.disk, file.path, self.findings)
            if snapshot is not None and file.base_offset == base and base > 0:
                self.tracker.load(snapshot.entries())
                self.tracker.knows_all = True

    def _verify_segment(self, segment: Segment) -> None:
        is_last = segment is self.partition.segments[-1]
        self._check_missing_indexes(segment, is_last)
        index = TransactionIndexCheck(
            self.disk,
            segment,
            self.findings,
            log_start_offset=self.log_start_offset,
            tail_may_be_missing=is_last and self.options.is_live,
        )
        self.tracker.begin_segment(segment.log, index)
        try:
            facts = self._read_segment(segment)
        except OSError as error:
            self.findings.add_unreadable(segment.log, error)
            self.tracker.gap_offset = max(self.tracker.gap_offset, segment.base_offset, self.end_offset)
            return
        index.finish(facts.damaged)
        self._join(facts)

    def _read_segment(self, segment: Segment) -> SegmentFacts:
        """Read a segment, or use what was read ahead of it, and apply its steps to the producers. Raises OSError."""
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
        """Advance to the end of a segment that was read, and report it if it overlaps the one before."""
        if facts.first_offset >= 0:
            self._pass_start(facts)
        elif facts.base_offset < self.end_offset:
            self._add_overlap(facts, facts.base_offset)
        elif facts.base_offset > self.end_offset:
            # A cleaner removed all batches of the segment before, so what their producers did is not known.
            self.tracker.gap_offset = max(self.tracker.gap_offset, facts.base_offset)
        if facts.is_damaged:
            self.tracker.gap_offset = max(self.tracker.gap_offset, facts.end_offset)
        self.tracker.gap_offset = max(self.tracker.gap_offset, facts.gap_offset)
        self.end_offset = max(self.end_offset, facts.end_offset)

    def _pass_start(self, facts: SegmentFacts) -> None:
        """Compare the first batch of a segment with the end of the one before; done once for each segment."""
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
        while self._snapshots_ahead and self._snapshots_ahead[0].base_offset <= offset:
            self._compare(self._snapshots_ahead.pop(0))

    def _compare(self, file: FoundFile) -> None:
        snapshot = read_snapshot(self.disk, file.path, self.findings)
        if snapshot is not None:
            self._snapshots.compare(file.path, file.base_offset, snapshot)

    def _finish_snapshots(self) -> None:
        self._reach(self.end_offset)
        if not self.options.is_whole:
            return
        for file in self._snapshots_ahead:
            if self.options.is_live:
                continue
            if read_snapshot(self.disk, file.path, self.findings) is not None:
                message = f"the snapshot is of offset {file.base_offset}; the log ends at {self.end_offset}"
                self.findings.add("snapshot-beyond-end", file.path, message, offset=file.base_offset)
        has_producers = any(facts.producer_batches for facts in self._facts)
        # A broker writes one when it rolls a segment and when it stops cleanly; before either there is none.
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
                f"the transaction of producer {txn.producer_id} (epoch {txn.producer_epoch}), with "
                f"{format_count(txn.records, 'record')} so far, has no end in the log",
                offset=txn.first_offset,
            )

    # ------------------------------------------------------------------------------------------------ the whole log

    def missing_since_repair(self, lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the parts of the offsets `lost` by a repair that are missing and that no finding of `run` names."""
        return self._missing.missing_since_repair(lost)

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
        """Compare the checkpoints with the end of the log; those of a running broker are behind it.

        A checkpoint that the `evidence` confirms is right: the offsets that are missing before it are a finding of their own.
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

    def _check_last_batch(self) -> None:
        """Compare the base offset of the last batch, which no CRC covers, with the files that have the log's end."""
        segments, facts = self.partition.segments, self._facts
        if self.options.is_live or self.findings.vanished or self.partition.state is DirectoryState.DELETE:
            return
        if not facts or facts[-1].path != segments[-1].log:
            return
        log_end = max((one.end_offset for one in facts[:-1] if one.first_offset >= 0), default=0)
        try:
            moved = find_moved_batch(self.disk, self.partition, self.options, segments[-1], facts[-1], log_end)
        except OSError as error:
            self.findings.add_unreadable(segments[-1].log, error)
            return
        if moved is not None:
            message = moved.sentence()
            self.findings.add("offset-mismatch", segments[-1].log, message, position=moved.position, offset=moved.base_offset)

    def _check_other_files(self) -> None:
        """Check the metadata log's snapshots and quorum-state."""
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
            findings=[] if self.options.is_being_deleted else self.findings.finish(),
            missing=[] if self.options.is_being_deleted else self._missing.ranges,
        )


def verify_partition(
    disk: Disk,
    partition: PartitionDirectory,
    options: PartitionOptions,
    on_bytes: Callable[[int], None] = lambda count: None,
    read_ahead: ReadAhead | None = None,
) -> PartitionResult:
    """Verify one partition directory.

    `on_bytes` is called with the number of bytes after each read. `read_ahead` returns what another process read of a segment,
    or None. If a broker is running, only what is found at the same place a second time counts, because its files change between
    one read and the next.
    """
    result = PartitionVerifier(disk, partition, options, on_bytes, read_ahead).run()
    if not options.is_live or all(finding.severity == INFO for finding in result.findings):
        return result
    try:
        again = PartitionVerifier(disk, read_partition(disk, partition.path), options).run()
    except OSError:
        return result._replace(findings=[])  # the partition was deleted
    first = {finding[:-1] for finding in result.findings}
    lasting = [finding for finding in again.findings if finding.severity == INFO or finding[:-1] in first]
    return again._replace(findings=lasting)
