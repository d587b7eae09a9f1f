"""Plans the repair of one partition's directory, on a PlannedDisk: no file changes.

    step                         default                                       with like_kafka
    ---------------------------  --------------------------------------------  -----------------------------------------
    0  verification              a partition without findings is not repaired  always repaired
    1  names of segments         those of their batches (misplaced_segments)   not checked
    2  *.tmp and *.part; names   removed                                       removed if Kafka does not start with them
       of segment files that no
       broker writes
    3  *.swap, *.cleaned files   finished if complete and sound, else removed  as by a start of Kafka
                                 if the old segments exist, else made a
                                 segment (unfinished_cleaning)
    4  bad batches               corrected, or removed (salvage)               the log is cut at the first one, and all
                                                                               later segments are removed
    5  the end of the log        where the log once ended, or the last batch   the last batch
                                 (log_end)
    6  leader epochs             rebuilt if the batches contradict them        not checked
    7  recovery of all segments  kcli.log.loading.log_loader, from offset 0 on, as after a crash: indexes, snapshots, epochs
    8  sound files               kept (partition_files)                        rebuilt
    9  partition.metadata        restored from the metadata log if it is missing or cannot be read

If Kafka would refuse to load the log, the cause is removed (planned_partition; with like_kafka the rest of the log too). The
log of __cluster_metadata is always repaired with like_kafka in steps 1 to 7: a hole in it would produce metadata that never
existed, and a node that lost its end fetches it from the other controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, OFFSET_DIGITS, FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT64_MAX
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.quantities import format_offsets
from kcli.inspect.repairing.holes import (
    Hole,
    Holes,
    Remark,
    batch_ranges,
    known_ranges,
    lost_like_kafka,
    readable_ranges,
    without,
)
from kcli.inspect.repairing.log_end import LogEnd, find_log_end
from kcli.inspect.repairing.misplaced_segments import LEFTOVER, Placement, RemovedOffsets, SegmentPlacer
from kcli.inspect.repairing.partition_files import begin_epochs_at, keep_sound_files, rebuild_epochs, restore_topic_id
from kcli.inspect.repairing.planned_partition import PlannedPartition, RepairError
from kcli.inspect.repairing.salvage import Alternative, LogSalvager, SalvageCut, SegmentSalvage, fix_leader_epochs
from kcli.inspect.repairing.unfinished_cleaning import settle_cleaning
from kcli.inspect.verification.evidence import log_witnesses, start_by_epochs
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult
from kcli.inspect.verification.finding_kinds import HOLES
from kcli.inspect.verification.findings import Finding, FindingList, serious
from kcli.inspect.verification.missing_offsets import lost_finding
from kcli.inspect.verification.partition_verifier import PartitionVerifier, verify_partition
from kcli.inspect.verification.small_file_checks import SEGMENT_KINDS
from kcli.log.disk.planned_disk import REMOVE, WRITE, Change, is_zeros
from kcli.log.disk.port import Disk, base_name, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, is_file_name, read_partition
from kcli.log.loading.leftovers import finish_leftovers
from kcli.log.loading.log_loader import LoadedLog, LoadSettings, load_log

if TYPE_CHECKING:
    from kcli.inspect.description.metadata_view import OtherReplicas

_NO_BATCH = "no batch of the log has them"
_METADATA_CUT = (
    "the log of the cluster's metadata is cut at the first bad batch: with a hole the metadata would be wrong. Another "
    "controller has the lost records; if there is none, restore the directory from a backup first",
    "partitions of topics that only the lost records name are topic-unknown after the repair, and a broker sets them aside",
)


class RepairSettings(NamedTuple):
    """How one partition is repaired; `options` are those of its verification, `take_inner` that of LogSalvager.

    `topic_id` is that of the cluster's metadata, None if they are not known; `needs_topic_id` is False for ZooKeeper clusters,
    whose partitions may lack one. `replicas` are the other replicas, None if they are not known. `also_check` adds the
    findings of the log directory's checks of the partition, on the planned disk.
    """

    like_kafka: bool = False
    log_start_offset: int = 0
    indexes: IndexSettings = IndexSettings()
    topic_id: Uuid | None = None
    needs_topic_id: bool = False
    take_inner: bool = False
    options: PartitionOptions = PartitionOptions()
    replicas: OtherReplicas | None = None
    also_check: Callable[[Disk, FindingList], None] = lambda disk, findings: None


class PartitionPlan(NamedTuple):
    """The changes of a partition's directory, and its log afterwards.

    `loses_records` is True if records are missing afterwards, or may be. `holes` are the lost offsets, as far as they are
    known. `left` are the errors and warnings of a verification afterwards. `alternatives` are other explanations of the damage
    that cost the same, each with the path of its segment.
    """

    directory: str
    changes: list[Change]
    remarks: list[Remark]
    holes: list[Hole]
    log_start_offset: int
    log_end_offset: int
    loses_records: bool
    left: list[Finding]
    alternatives: Sequence[tuple[str, Alternative]] = ()


def plan_partition(disk: Disk, directory: str, settings: RepairSettings = RepairSettings()) -> PartitionPlan:  # noqa: B008
    """Plan the repair of the partition at `directory`. Raises RepairError and OSError."""
    return _Planner(disk, directory, settings).plan()


class _Planner:
    def __init__(self, disk: Disk, directory: str, settings: RepairSettings) -> None:
        self.directory = directory
        self.settings = settings
        self.like_kafka = settings.like_kafka or base_name(directory) == f"{METADATA_TOPIC}-0"
        self.partition = PlannedPartition(disk, directory, cuts_rest=self.like_kafka)
        self.planned = self.partition.disk
        self.remarks = self.partition.remarks
        self.removed: list[RemovedOffsets] = []  # of sound batches
        self.inner: list[RemovedOffsets] = []  # of what looks like sound batches inside of damaged ones, and is removed
        self.takes_inner = False
        self.alternatives: list[tuple[str, Alternative]] = []
        self.evident_end = 0
        self.drops_log_start = False

    def plan(self) -> PartitionPlan:
        for name in read_partition(self.planned.disk, self.directory).directories:
            if is_file_name(name):
                raise RepairError(f"{join_path(self.directory, name)}: {DIRECTORY_NOT_FILE}, then repair")
        before = self._verify(self.planned.disk, self.settings.options)
        if not self.settings.like_kafka and all(finding.code in HOLES for finding in serious(before.findings)):
            return self._unchanged(before)
        log_start_offset = self.settings.log_start_offset
        if not self.like_kafka:
            overlapping = frozenset(finding.file for finding in before.findings if finding.code == "segment-overlap")
            placement = SegmentPlacer(self.planned, self.directory, overlapping).place()
            self.remarks += placement.remarks
            self._remove_irregular_files()
            settle_cleaning(self.partition)
            self.partition.run(lambda: finish_leftovers(self.planned, self.directory, self.settings.indexes))
            evident_end = self._salvage(placement, before)
            if log_start_offset > evident_end:
                self.drops_log_start, log_start_offset = True, start_by_epochs(self.planned.disk, self.directory, evident_end)
        load_settings = LoadSettings(False, log_start_offset, 0, self.settings.indexes)
        loaded: list[LoadedLog] = []
        self.partition.run(lambda: loaded.append(load_log(self.planned, self.directory, load_settings)))
        if not self.settings.like_kafka:
            keep_sound_files(self.planned, self.directory, loaded[-1].log_start_offset)
            begin_epochs_at(self.planned, self.directory, loaded[-1].log_start_offset)
        self._restore_topic_id()
        return self._finished(loaded[-1], before)

    def _unchanged(self, before: PartitionResult) -> PartitionPlan:
        """Return the plan for a partition without damage, though offsets may be missing."""
        self._restore_topic_id()
        self._name_candidates(before)
        for first_offset, end_offset in before.missing:
            self.partition.holes.add(first_offset, end_offset, _NO_BATCH)
        return PartitionPlan(
            self.directory,
            self.planned.changes(),
            self.remarks,
            self.partition.holes.in_order(),
            before.log_start_offset,
            before.end_offset,
            bool(before.missing),
            self._left(before.findings),
        )

    def _verify(self, disk: Disk, options: PartitionOptions) -> PartitionResult:
        return verify_partition(disk, read_partition(disk, self.directory), options)

    def _finished(self, loaded: LoadedLog, before: PartitionResult) -> PartitionPlan:
        self._explain_snapshots(loaded)
        self._name_candidates(before)
        changes = self.planned.changes()
        if not self.settings.like_kafka:
            changes = [change for change in changes if not _is_new_empty_epoch_file(change)]
        start, end = loaded.log_start_offset, loaded.log_end_offset
        cut = any(self._was_cut(base_offset, changes) for base_offset in loaded.cut_segments)
        if (cut or self.partition.holes) and self.like_kafka and not self.settings.like_kafka:
            self.remarks += [Remark(self.directory, message) for message in _METADATA_CUT]
        verifier = PartitionVerifier(self.planned, read_partition(self.planned, self.directory), self._options_afterwards(end))
        after = verifier.run()
        missing = [*before.missing, *after.missing]
        if self.like_kafka:
            self.partition.holes = Holes(self.directory)
            why = "the log is cut at its first bad batch" if cut else _NO_BATCH
            lost_end = max([before.end_offset, *(last for _, last in missing)])
            lost = lost_like_kafka(self.planned, self.directory, self.settings.log_start_offset, before, after)
            missing = [*lost, *missing, (end, lost_end)]
            kept = readable_ranges(self.planned, self.directory, start)
        else:
            self._add_removed()
            self._add_inner()
            why, kept = _NO_BATCH, batch_ranges(self.planned, self.directory)
            # If a corrected batch had an offset that is too high, offsets seemed to be missing that the log never reached.
            reached = max([end, *(last for _, last in known_ranges(self.partition.holes.in_order()))])
            missing = [(first, min(last, reached)) for first, last in missing if first < reached]
        for first_offset, end_offset in without(missing, kept):
            self.partition.holes.add(first_offset, end_offset, why)
        known = verifier.missing_since_repair(known_ranges(self.partition.holes.in_order()))
        found = [*after.findings, *(lost_finding(self.directory, offsets) for offsets in known)]
        return PartitionPlan(
            self.directory,
            changes,
            self.remarks,
            self.partition.holes.in_order(),
            start,
            end,
            cut or bool(self.partition.holes) or self.takes_inner,
            self._left(found),
            self.alternatives,
        )

    def _left(self, findings: list[Finding]) -> list[Finding]:
        """Return what is left for the operator of the findings in the planned state."""
        also = FindingList()
        self.settings.also_check(self.planned, also)
        return serious([*findings, *also.finish()])

    def _options_afterwards(self, end_offset: int) -> PartitionOptions:
        """Return the options of a verification after the checkpoints of the log directory are lowered."""
        options = self.settings.options

        def lowered(offset: int | None) -> int | None:
            return None if offset is None else min(offset, end_offset)

        return options._replace(
            recovery_point=lowered(options.recovery_point),
            high_watermark=lowered(options.high_watermark),
            cleaner_offset=None if (options.cleaner_offset or 0) > end_offset else options.cleaner_offset,
            log_start_offset=None if self.drops_log_start else options.log_start_offset,
        )

    def _name_candidates(self, before: PartitionResult) -> None:
        """Add a remark for each file that looks like a copy of a missing segment; a repair does not use it."""
        bases = set(self.partition.bases())
        for name in self.partition.names():
            stem, dot, _ = name.partition(".log.")
            base_offset = int(stem) if dot and len(stem) == OFFSET_DIGITS and stem.isdecimal() else None
            if base_offset is None or base_offset in bases or parse_file_name(name).kind is not FileKind.UNKNOWN:
                continue
            if base_offset >= before.end_offset or any(first <= base_offset < end for first, end in before.missing):
                log = segment_file_name(base_offset, FileKind.LOG)
                message = f"it looks like the missing segment: rename it to {log} and run kcli verify again"
                self.remarks.append(Remark(join_path(self.directory, name), message))

    def _add_removed(self) -> None:
        """Add the offsets of removed sound batches that no other batch has."""
        if not self.removed:
            return
        kept = batch_ranges(self.planned, self.directory)
        for path, first_offset, end_offset in self.removed:
            why = f"the batch of offsets {first_offset} to {end_offset - 1} contradicts the rest of the log"
            for first, end in without([(first_offset, end_offset)], kept):
                self.partition.holes.add(first, end, why, path)

    def _add_inner(self) -> None:
        """Add the offsets of batches inside of damaged ones that continue the lost offsets: they may be batches of the log."""
        for path, first_offset, end_offset in self.inner:
            lost = known_ranges(self.partition.holes.in_order())
            if first_offset < self.evident_end and any(first <= first_offset <= end for first, end in lost):
                self.partition.holes.add(first_offset, end_offset, "what is removed may be batches of the log", path)

    def _explain_snapshots(self, loaded: LoadedLog) -> None:
        """Add the reason for removed snapshots that follows from the end of the log, which a recovery learns last."""
        for change in self.planned.changes():
            file = parse_file_name(base_name(change.path))
            if change.kind == REMOVE and file.kind is FileKind.PRODUCER_SNAPSHOT and file.base_offset is not None:
                if file.base_offset > loaded.log_end_offset:
                    self.planned.explain(change.path, f"the log ends before it, at offset {loaded.log_end_offset}")
                elif not change.why:
                    self.planned.explain(change.path, "no segment starts at its offset")

    def _was_cut(self, base_offset: int, changes: list[Change]) -> bool:
        """Return whether the recovery cut more than zeros off a segment."""
        path = self.partition.path(base_offset, FileKind.LOG)
        dropped = [change.dropped for change in changes if change.path == path]
        disk = self.planned.disk
        if not dropped or not disk.exists(path):
            return True
        return any(not is_zeros(disk, path, *part) for parts in dropped for part in parts)

    # ------------------------------------------------------------------------------------------------ 2, 3: names, swaps

    def _remove_irregular_files(self) -> None:
        for name in self.partition.names():
            file = parse_file_name(name)
            path = join_path(self.directory, name)
            if file.state is FileState.CLEANED and file.base_offset is not None:
                continue  # any name of this kind shows that a swap was not complete
            if file.kind in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT) and not file.is_regular:
                self.partition.remove(path, "a broker does not write such a name, and may not start with it")
            elif file.kind is not FileKind.UNKNOWN and file.state in (FileState.TEMPORARY, FileState.PARTIAL):
                self.partition.remove(path, LEFTOVER)

    # ------------------------------------------------------------------------------------------ 4, 5, 6: batches, epochs

    def _salvage(self, placement: Placement, before: PartitionResult) -> int:
        """Remove or correct the bad batches of all segments; return the offset at which the log ends afterwards."""
        salvager = LogSalvager(self.planned, take_inner=self.settings.take_inner)
        bases = self.partition.bases()
        disk = self.planned.disk
        witnesses = log_witnesses(disk, read_partition(disk, self.directory), self.settings.options)
        found: list[SegmentSalvage] = []
        next_offset = 0
        for base_offset, next_base in zip_longest(bases, bases[1:]):
            path = self.partition.path(base_offset, FileKind.LOG)
            end_offset = INT64_MAX if next_base is None else next_base
            found.append(salvager.salvage(path, base_offset, next_offset, end_offset, witnesses))
            next_offset = max(next_offset, found[-1].next_offset)
        fix_leader_epochs(found, witnesses)
        for base_offset, next_base, salvage in zip_longest(bases, bases[1:], found):
            path = self.partition.path(base_offset, FileKind.LOG)
            for fix in salvage.fixes:
                self.remarks.append(Remark(path, fix.why))
                self.planned.explain(path, "header fields are wrong, and their values follow from the rest of the log")
                self.planned.write_at(path, fix.position, fix.data)
            self.remarks += [Remark(path, inner.message(self.settings.take_inner)) for inner in salvage.inner]
            self.inner += [] if self.settings.take_inner else _inner_offsets(path, salvage)
            self.takes_inner |= self.settings.take_inner and bool(salvage.inner)
            for inner in salvage.inner if self.settings.take_inner else ():
                first_offset, last_offset = inner.batches[0].base_offset, inner.batches[-1].last_offset
                self.partition.holes.add(
                    first_offset, last_offset + 1, "what is kept may be payload of the damaged batch", path
                )
            self.alternatives += [(path, alternative) for alternative in salvage.alternatives]
            self.removed += [RemovedOffsets(path, first, last + 1) for first, last in salvage.displaced]
            self._cut(path, salvage.cuts, next_base)
            if salvage.cuts and not salvage.kept and next_base is not None:
                self.partition.remove_segment(base_offset, "no batch of the segment is left")
        self.removed += placement.removed
        rebuild_epochs(self.planned, self.directory, [run for salvage in found for run in salvage.epochs if run.epoch >= 0])
        log_end = find_log_end(
            self.planned.disk,
            before,
            self.settings.options,
            list(zip(bases, found, strict=True)),
            gone_names=placement.gone_names,
            log_start_offset=self.settings.log_start_offset,
            replicas=self.settings.replicas,
        )
        return self._keep_end(log_end)

    def _keep_end(self, log_end: LogEnd) -> int:
        """Let the log end as decided, add the hole before its former end, and return where it ends."""
        batch_end, evidence, end_offset = log_end.batch_end, log_end.evidence, log_end.end_offset
        self.evident_end = evidence.end_offset
        replicas = "" if self.settings.replicas is None else f"; {self.settings.replicas.sentence}"
        for base_offset in log_end.unproven:
            if base_offset != end_offset:
                why = f"it has no sound batch, and nothing else shows that the log reached {base_offset}"
                if log_end.is_fetched and base_offset <= evidence.end_offset:
                    why = f"it has no sound batch, and the broker fetches what is missing before it{replicas}"
                self.partition.remove_segment(base_offset, why)
        path, first_missing = self.partition.path(end_offset, FileKind.LOG), max(batch_end, self.settings.log_start_offset)
        if log_end.is_fetched:
            missing = format_offsets(first_missing, evidence.end_offset)
            message = f"the log ends at offset {end_offset}, and the broker fetches {missing} from the leader{replicas}"
            self.remarks.append(Remark(self.directory, message))
        if end_offset > batch_end and not self.planned.exists(path):
            why = f"an empty segment starts at {end_offset}, because the log once reached it ({evidence.sentence()})"
            if log_end.is_fetched:
                why = "the log starts there"
            self.planned.explain(path, f"{why}{replicas}")
            self.planned.put(path, ())
        if evidence.end_offset > batch_end:
            self.partition.holes.close(evidence.end_offset)
            self.partition.holes.add(first_missing, evidence.end_offset, f"{_NO_BATCH}: {evidence.sentence()}")
        return end_offset

    def _cut(self, path: str, cuts: list[SalvageCut], next_base: int | None) -> None:
        if not cuts:
            return
        for start, end, first_offset, end_offset, why in cuts:
            # Zeros at the very end were preallocated; anywhere else there were batches.
            is_end = end_offset is None and next_base is None
            end_offset = next_base if end_offset is None else end_offset
            if end_offset != first_offset and not (is_end and is_zeros(self.planned, path, start, end)):
                self.partition.holes.append(Hole(path, first_offset, end_offset, why))
            self.planned.explain(path, why)
        self.planned.cut_out(path, [(cut.start, cut.end) for cut in cuts])

    def _restore_topic_id(self) -> None:
        settings = self.settings
        self.remarks += restore_topic_id(self.planned, self.directory, settings.topic_id, is_needed=settings.needs_topic_id)


def _inner_offsets(path: str, salvage: SegmentSalvage) -> list[RemovedOffsets]:
    batches = [batch for inner in salvage.inner for batch in inner.batches]
    ranges = without([(batch.base_offset, batch.last_offset + 1) for batch in batches], OffsetRanges())
    return [RemovedOffsets(path, first, end) for first, end in ranges]


def _is_new_empty_epoch_file(change: Change) -> bool:
    """Return True for the file that Kafka creates whenever it loads a log."""
    is_new = change.kind == WRITE and not change.replaces and not change.size_bytes
    return is_new and base_name(change.path) == FileKind.LEADER_EPOCH_CHECKPOINT.value
