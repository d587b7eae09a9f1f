"""The plan to repair one partition's directory: what becomes of which file, decided without touching any.

    step                         by itself                                     with like_kafka
    ---------------------------  --------------------------------------------  -----------------------------------------
    0  verification              a partition without findings is left alone    not asked
       names of segments         those of their batches                        believed
                                 (kcli.inspect.repairing.misplaced_segments)
    1  *.tmp and *.part; names   taken away                                    where Kafka refuses to start with them
       of segment files that no
       broker writes
    2  swaps                     finished where the .log.swap is sound or the  finished
                                 old segments are gone, else dropped
    3  bad batches               cut out, what can be put right is             the log is cut at the first one, and all
                                 (kcli.inspect.repairing.salvage)                        segments behind it go
       the end of the log        where the log once reached, or the last       the last batch
                                 batch (kcli.inspect.repairing.log_end)
    4  leader epochs             rebuilt where the batches contradict them     believed
    5  recovery of all segments  kcli.log.loading.log_loader, from offset 0 on, as after a crash: indexes, snapshots, epochs
    6  files that were sound     stay as they are (kcli.inspect.verification.sound_files)   are rebuilt
    7  partition.metadata        restored from the metadata log where it is missing or cannot be read

Where Kafka itself would refuse to load the log, what stands in its way is taken away (a file, or the bytes of a batch; with
like_kafka all behind them too) and the recovery is tried again. The log of __cluster_metadata is always treated as Kafka
does: a hole in it would produce metadata that never existed, while a node that lost its end gets it from the others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, OFFSET_DIGITS, FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError
from kcli.inspect.quantities import format_offsets
from kcli.inspect.repairing.holes import Hole, Holes, batch_ranges, known_ranges, lost_like_kafka, readable_ranges, without
from kcli.inspect.repairing.leader_epochs import begin_epochs_at, rebuild_epochs
from kcli.inspect.repairing.log_end import LogEnd, find_log_end, known_ends
from kcli.inspect.repairing.misplaced_segments import LEFTOVER, Placement, place_segments
from kcli.inspect.repairing.salvage import Cut, LogSalvager, SegmentSalvage, mend_epochs_across
from kcli.inspect.repairing.topic_ids import restore_topic_id
from kcli.inspect.verification.evidence import start_by_epochs
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult
from kcli.inspect.verification.finding_kinds import HOLES
from kcli.inspect.verification.findings import Finding, FindingList, serious
from kcli.inspect.verification.known_holes import lost_finding
from kcli.inspect.verification.partitions import PartitionVerifier, verify_partition
from kcli.inspect.verification.sound_files import keep_sound_files
from kcli.log.disk.planned_disk import REMOVE, WRITE, Change, PlannedDisk, is_zeros
from kcli.log.disk.port import Disk, base_name, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, is_file_name, read_partition
from kcli.log.loading.leftovers import finish_leftovers
from kcli.log.loading.log_loader import LoadedLog, LoadSettings, load_log
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.inspect.description.cluster_topics import OtherReplicas

# How often what stands in the way of a recovery is taken away before the log is cut there for good.
MOST_SINGLE_CUTS = 64
MOST_REFUSALS = 4096
_SEGMENT_KINDS = (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
_NO_BATCH = "no batch of the log has them"
_METADATA_CUT = (
    "the log of the cluster's metadata is cut at the first bad batch: with a hole the metadata would be wrong. Another "
    "controller has the lost records; if there is none, restore the directory from a backup first",
    "partitions of topics that only the lost records name are topic-unknown after the repair, and a broker sets them aside",
)


class RepairSettings(NamedTuple):
    """How one partition is repaired; `options` are what the verifier knows of it, `take_inner` that of LogSalvager.

    `also_check` adds what the log directory's own checks find in the partition, on the disk as planned.

    `topic_id` is what the cluster's metadata say, None where they are not at hand; `needs_topic_id` is False for clusters
    from before KRaft, whose partitions may lack one. `replicas` say who else has the records, None where that is not known.
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


class Remark(NamedTuple):
    """Something to know about a plan: the file that it is about and a sentence without a full stop."""

    path: str
    message: str


class PartitionPlan(NamedTuple):
    """What is to be done to a partition's directory, and what its log is afterwards.

    `loses_records` is True where records are missing afterwards or may be; `holes` are the offsets that are lost, as far as
    they are known. `left` is what a verifier finds afterwards (errors and warnings), `drops_log_start` says that the
    checkpointed log start offset is wrong.
    """

    directory: str
    changes: list[Change]
    remarks: list[Remark]
    holes: list[Hole]
    log_start_offset: int
    log_end_offset: int
    loses_records: bool
    left: list[Finding]
    drops_log_start: bool = False


class RepairError(Exception):
    """No plan could be made; the message names the file."""


def plan_partition(disk: Disk, directory: str, settings: RepairSettings = RepairSettings()) -> PartitionPlan:  # noqa: B008
    """Decide what becomes of the files of a partition's directory -> PartitionPlan. Raises RepairError and OSError."""
    return _Planner(disk, directory, settings).plan()


class _Planner:
    def __init__(self, disk: Disk, directory: str, settings: RepairSettings) -> None:
        self.planned = PlannedDisk(disk)
        self.directory = directory
        self.settings = settings
        self.remarks: list[Remark] = []
        self.holes = Holes(directory)
        self.like_kafka = settings.like_kafka or base_name(directory) == f"{METADATA_TOPIC}-0"
        self.single_cuts = 0
        self.misleading: set[str] = set()
        self.displaced: list[tuple[str, int, int]] = []  # path, first and last offset of sound batches that go
        self.takes_inner = False
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
            placement = place_segments(self.planned, self.directory)
            self.remarks += [Remark(path, message) for path, message in placement.remarks]
            self._remove_odd_files()
            self._decide_swaps()
            self._try(lambda: finish_leftovers(self.planned, self.directory, self.settings.indexes))
            evident_end = self._salvage(placement, before)
            if log_start_offset > evident_end:
                self.drops_log_start, log_start_offset = True, start_by_epochs(self.planned.disk, self.directory, evident_end)
        load_settings = LoadSettings(False, log_start_offset, 0, self.settings.indexes)
        loaded: list[LoadedLog] = []
        self._try(lambda: loaded.append(load_log(self.planned, self.directory, load_settings)))
        if not self.settings.like_kafka:
            keep_sound_files(self.planned, self.directory, loaded[-1].log_start_offset)
            begin_epochs_at(self.planned, self.directory, loaded[-1].log_start_offset)
        self._restore_topic_id()
        return self._finished(loaded[-1], before)

    def _unchanged(self, before: PartitionResult) -> PartitionPlan:
        """The plan for a partition in which nothing is damaged, though offsets may be missing."""
        self._restore_topic_id()
        self._name_candidates(before)
        for first_offset, end_offset in before.missing:
            self.holes.add(first_offset, end_offset, _NO_BATCH)
        return PartitionPlan(
            self.directory,
            self.planned.changes(),
            self.remarks,
            self.holes.in_order(),
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
        if (cut or self.holes) and self.like_kafka and not self.settings.like_kafka:
            self.remarks += [Remark(self.directory, message) for message in _METADATA_CUT]
        verifier = PartitionVerifier(self.planned, read_partition(self.planned, self.directory), self._options_afterwards(end))
        after = verifier.run()
        missing = [*before.missing, *after.missing]
        if self.like_kafka:
            self.holes = Holes(self.directory)
            why = "the log is cut at its first bad batch" if cut else _NO_BATCH
            lost_end = max([before.end_offset, *(last for _, last in missing)])
            lost = lost_like_kafka(self.planned, self.directory, self.settings.log_start_offset, before, after)
            missing = [*lost, *missing, (end, lost_end)]
            kept = readable_ranges(self.planned, self.directory, start)
        else:
            self._name_displaced()
            why, kept = _NO_BATCH, batch_ranges(self.planned, self.directory)
            # A batch with a wrong offset, which is correct now, made offsets missing that the log never reached.
            reached = max([end, *(last for _, last in known_ranges(self.holes.in_order()))])
            missing = [(first, min(last, reached)) for first, last in missing if first < reached]
        for first_offset, end_offset in without(missing, kept):
            self.holes.add(first_offset, end_offset, why)
        known = verifier.known_holes(known_ranges(self.holes.in_order()))
        found = [*after.findings, *(lost_finding(self.directory, offsets) for offsets in known)]
        return PartitionPlan(
            self.directory,
            changes,
            self.remarks,
            self.holes.in_order(),
            start,
            end,
            cut or bool(self.holes) or self.takes_inner,
            self._left(found),
            self.drops_log_start,
        )

    def _left(self, findings: list[Finding]) -> list[Finding]:
        """What is left for people of a verifier's findings in the planned state."""
        also = FindingList()
        self.settings.also_check(self.planned, also)
        return serious([*findings, *also.finish()])

    def _options_afterwards(self, end_offset: int) -> PartitionOptions:
        """What the verifier will know of the partition once the checkpoints of the log directory are lowered."""
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
        """Point at files that look like copies of a segment whose records are missing; they are not taken by themselves."""
        bases = set(self._bases())
        for name in self._names():
            stem, dot, _ = name.partition(".log.")
            base_offset = int(stem) if dot and len(stem) == OFFSET_DIGITS and stem.isdecimal() else None
            if base_offset is None or base_offset in bases or parse_file_name(name).kind is not FileKind.UNKNOWN:
                continue
            if base_offset >= before.end_offset or any(first <= base_offset < end for first, end in before.missing):
                log = segment_file_name(base_offset, FileKind.LOG)
                message = f"it looks like the missing segment: rename it to {log} and run kcli verify again"
                self.remarks.append(Remark(join_path(self.directory, name), message))

    def _name_displaced(self) -> None:
        """Name the offsets of sound batches that go and that no other batch has."""
        if not self.displaced:
            return
        kept = batch_ranges(self.planned, self.directory)
        for path, first_offset, last_offset in self.displaced:
            why = f"the batch of offsets {first_offset} to {last_offset} contradicts the rest of the log"
            for first, end in without([(first_offset, last_offset + 1)], kept):
                self.holes.add(first, end, why, path)

    def _explain_snapshots(self, loaded: LoadedLog) -> None:
        """A recovery drops snapshots on its way; what counts in the end is how the log ended."""
        for change in self.planned.changes():
            file = parse_file_name(base_name(change.path))
            if change.kind == REMOVE and file.kind is FileKind.PRODUCER_SNAPSHOT and file.base_offset is not None:
                if file.base_offset > loaded.log_end_offset:
                    self.planned.explain(change.path, f"the log ends before it, at offset {loaded.log_end_offset}")
                elif not change.why or "as far as it is sound" in change.why:
                    self.planned.explain(change.path, "no segment starts at its offset")

    def _was_cut(self, base_offset: int, changes: list[Change]) -> bool:
        """Whether what a recovery cut off a segment was more than zeros."""
        path = self._path(base_offset, FileKind.LOG)
        dropped = [change.dropped for change in changes if change.path == path]
        disk = self.planned.disk
        if not dropped or not disk.exists(path):
            return True
        return any(not is_zeros(disk, path, *part) for parts in dropped for part in parts)

    def _path(self, base_offset: int, kind: FileKind, state: FileState = FileState.CURRENT) -> str:
        return join_path(self.directory, segment_file_name(base_offset, kind, state))

    def _names(self) -> list[str]:
        listed = self.planned.list_directory(self.directory)
        return [name for name in listed if self.planned.is_regular(join_path(self.directory, name))]

    def _bases(self, state: FileState = FileState.CURRENT) -> list[int]:
        """The base offsets of the segments in a state, ascending."""
        parsed = (parse_file_name(name) for name in self._names())
        return sorted(
            file.base_offset
            for file in parsed
            if file.kind is FileKind.LOG and file.state is state and file.is_regular and file.base_offset is not None
        )

    def _remove(self, path: str, why: str) -> None:
        self.planned.explain(path, why)
        self.planned.remove(path)

    # ---------------------------------------------------------------------------------------------- what Kafka refuses
    def _try(self, step: Callable[[], object]) -> None:
        """Run a step; what makes Kafka refuse to load the log is taken away, and the step run again."""
        for _ in range(MOST_REFUSALS):
            try:
                step()
            except LogRefusedError as refusal:
                self._take_away(refusal)
            except FormatError as error:
                raise RepairError(f"{self.directory}: a broker does not load the log: {error.message}") from error
            else:
                return
        raise RepairError(f"{self.directory}: a broker does not load this log after any cut; take another replica")

    def _take_away(self, refusal: LogRefusedError) -> None:
        path, name = refusal.path, parse_file_name(base_name(refusal.path))
        if name.kind is FileKind.LOG and name.base_offset is not None:
            index = self._path(name.base_offset, FileKind.INDEX, name.state)
            # Once: looking for the segment's end makes a new one, which leads nowhere.
            if self.planned.exists(index) and index not in self.misleading:
                self.misleading.add(index)
                self._remove(index, "it points at bytes of its segment that are not a batch")
                return
        self.remarks.append(Remark(path, f"a broker does not load the log: {refusal.message}"))
        position, end = refusal.position, refusal.end_position
        if name.kind is not FileKind.LOG or position is None or end is None or name.base_offset is None:
            self._remove(path, refusal.message)
            return
        size_bytes = self.planned.size(path)
        if position >= min(end, size_bytes):
            raise RepairError(f"{path}: {refusal.message}, and nothing can be cut to change that")
        self.planned.explain(path, refusal.message)
        if self.like_kafka or self.single_cuts >= MOST_SINGLE_CUTS:
            end = size_bytes
        self.single_cuts += 1
        self.holes.append(self._hole(path, name.base_offset, position, end, refusal.message))
        self.planned.cut_out(path, [(position, end)])
        if end == size_bytes and name.state is FileState.CURRENT:
            self._remove_segments_behind(name.base_offset)

    def _hole(self, path: str, base_offset: int, position: int, end: int, why: str) -> Hole:
        """Which offsets bytes [position, end) of a segment stand for."""
        first_offset, end_offset = base_offset, None
        with SegmentReader(self.planned, path) as reader:
            for found in reader.batches():
                if not isinstance(found, LogBatch):
                    continue
                if found.position < position:
                    first_offset = found.header.next_offset
                elif found.position >= end:
                    end_offset = found.header.base_offset
                    break
        return Hole(path, first_offset, end_offset, why)

    def _remove_segments_behind(self, base_offset: int) -> None:
        for behind in [base for base in self._bases() if base > base_offset]:
            self._remove_segment(behind, "the segment before it was cut, and this one would follow a hole")

    # ------------------------------------------------------------------------------------------------ 1, 2: names, swaps

    def _remove_odd_files(self) -> None:
        for name in self._names():
            file = parse_file_name(name)
            path = join_path(self.directory, name)
            if file.kind in (*_SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT) and not file.is_regular:
                self._remove(path, "a broker does not write such a name, and may not start with it")
            elif file.kind is not FileKind.UNKNOWN and file.state in (FileState.TEMPORARY, FileState.PARTIAL):
                self._remove(path, LEFTOVER)

    def _decide_swaps(self) -> None:
        """Drop the swap of a segment that is damaged while what it was made of is still there."""
        for base_offset in self._bases(FileState.SWAP):
            path = self._path(base_offset, FileKind.LOG, FileState.SWAP)
            if self._is_sound(path):
                continue
            bases = set(self._bases())
            deleted = [base for base in self._bases(FileState.DELETED) if base >= base_offset and base not in bases]
            if not any(base >= base_offset for base in bases) and not deleted:
                continue
            for kind in _SEGMENT_KINDS:
                swap = self._path(base_offset, kind, FileState.SWAP)
                if self.planned.exists(swap):
                    self._remove(swap, "the cleaned segment is damaged, and the segments that it was made from exist")
            for base in deleted:
                target = self._path(base, FileKind.LOG)
                self.planned.explain(target, "the cleaned segment that was to take its place is damaged")
                self.planned.rename(self._path(base, FileKind.LOG, FileState.DELETED), target)

    def _is_sound(self, path: str) -> bool:
        with SegmentReader(self.planned, path) as reader:
            return all(isinstance(found, LogBatch) and found.is_valid for found in reader.batches(resynchronise=False))

    # --------------------------------------------------------------------------------------------- 3, 4: batches, epochs

    def _salvage(self, placement: Placement, before: PartitionResult) -> int:
        """Cut out and fix what is damaged in the segments -> the offset at which the log ends then."""
        salvager = LogSalvager(self.planned, take_inner=self.settings.take_inner)
        bases = self._bases()
        found: list[SegmentSalvage] = []
        next_offset = 0
        for base_offset, next_base in zip_longest(bases, bases[1:]):
            path = self._path(base_offset, FileKind.LOG)
            end_offset = 2**63 - 1 if next_base is None else next_base
            ends = known_ends(self.planned.disk, self.directory, self.settings.options) if next_base is None else []
            found.append(salvager.salvage(path, base_offset, next_offset, end_offset, ends))
            next_offset = max(next_offset, found[-1].next_offset)
        mend_epochs_across(found)
        for base_offset, next_base, salvage in zip_longest(bases, bases[1:], found):
            path = self._path(base_offset, FileKind.LOG)
            for mend in salvage.mends:
                self.remarks.append(Remark(path, mend.why))
                self.planned.explain(path, "header fields are wrong, and their values follow from the rest of the log")
                self.planned.write_at(path, mend.position, mend.data)
            self.remarks += [Remark(path, inner.message(self.settings.take_inner)) for inner in salvage.inner]
            self.takes_inner |= self.settings.take_inner and bool(salvage.inner)
            for inner in salvage.inner if self.settings.take_inner else ():
                first_offset, last_offset = inner.batches[0].base_offset, inner.batches[-1].last_offset
                self.holes.add(first_offset, last_offset + 1, "what is kept may be payload of the damaged batch", path)
            self.displaced += [(path, first, last) for first, last in salvage.displaced]
            self._cut(path, salvage.cuts, next_base)
            if salvage.cuts and not salvage.kept and next_base is not None:
                self._remove_segment(base_offset, "no batch of the segment is left")
        self.displaced += [(lost.path, lost.first_offset, lost.end_offset - 1) for lost in placement.lost]
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
        """Let the log end where that is decided, and name what is missing before its evident end -> where it ends."""
        batch_end, evidence, end_offset = log_end.batch_end, log_end.evidence, log_end.end_offset
        replicas = "" if self.settings.replicas is None else f"; {self.settings.replicas.sentence}"
        for base_offset in log_end.unproven:
            if base_offset != end_offset:
                why = f"it has no sound batch, and nothing else shows that the log reached {base_offset}"
                if log_end.is_fetched and base_offset <= evidence.end_offset:
                    why = f"it has no sound batch, and the broker fetches what is missing before it{replicas}"
                self._remove_segment(base_offset, why)
        path, first_missing = self._path(end_offset, FileKind.LOG), max(batch_end, self.settings.log_start_offset)
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
            self.holes.close(evidence.end_offset)
            self.holes.add(first_missing, evidence.end_offset, f"{_NO_BATCH}: {evidence.sentence()}")
        return end_offset

    def _cut(self, path: str, cuts: list[Cut], next_base: int | None) -> None:
        if not cuts:
            return
        for start, end, first_offset, end_offset, why in cuts:
            # Zeros at the very end were allocated ahead; anywhere else they are what is left of batches.
            is_end = end_offset is None and next_base is None
            end_offset = next_base if end_offset is None else end_offset
            if end_offset != first_offset and not (is_end and is_zeros(self.planned, path, start, end)):
                self.holes.append(Hole(path, first_offset, end_offset, why))
            self.planned.explain(path, why)
        self.planned.cut_out(path, [(cut.start, cut.end) for cut in cuts])

    def _remove_segment(self, base_offset: int, why: str) -> None:
        for kind in _SEGMENT_KINDS:
            if self.planned.exists(self._path(base_offset, kind)):
                self._remove(self._path(base_offset, kind), why)

    def _restore_topic_id(self) -> None:
        is_needed = self.settings.needs_topic_id
        found = restore_topic_id(self.planned, self.directory, self.settings.topic_id, is_needed=is_needed)
        self.remarks += [Remark(path, message) for path, message in found]


def _is_new_empty_epoch_file(change: Change) -> bool:
    """Kafka creates the file when it loads a log; that is no repair."""
    is_new = change.kind == WRITE and not change.replaces and not change.size_bytes
    return is_new and base_name(change.path) == FileKind.LEADER_EPOCH_CHECKPOINT.value
