"""The plan to repair one partition's directory: what becomes of which file, decided without touching any.

    step                         by itself                                     with like_kafka
    ---------------------------  --------------------------------------------  -----------------------------------------
    1  *.tmp and *.part; names   taken away                                    where Kafka refuses to start with them
       of segment files that no
       broker writes
    2  swaps                     finished where the .log.swap is sound or the  finished
                                 old segments are gone, else dropped
    3  bad batches               cut out, what can be put right is             the log is cut at the first one, and all
                                 (kcli.inspect.repairing.salvage)                        segments behind it go
    4  leader epochs             rebuilt where the batches contradict them     believed
    5  recovery of all segments  kcli.log.log_loader, from offset 0 on, as after a crash: indexes, snapshots, epochs
    6  files that were sound     stay as they are (kcli.inspect.verification.sound_files)   are rebuilt
    7  partition.metadata        restored from the metadata log where it is missing or cannot be read

Where Kafka itself would refuse to load the log, what stands in its way is taken away (a file, or the bytes of a batch; with
like_kafka all behind them too) and the recovery is tried again. The log of __cluster_metadata is always treated as Kafka
does: a hole in it would make a cluster of a kind that never was, while a node that lost its end gets it from the others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs, encode_leader_epochs
from kcli.format.file_names import METADATA_TOPIC, FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.inspect.repairing.salvage import Cut, EpochRun, LogSalvager, SegmentSalvage, mend_epochs_across
from kcli.inspect.verification.sound_files import keep_sound_files
from kcli.log.disk import Disk
from kcli.log.indexes import IndexSettings
from kcli.log.leader_epoch_cache import LeaderEpochCache
from kcli.log.leftovers import finish_leftovers
from kcli.log.log_directory import base_name, join_path
from kcli.log.log_loader import LoadedLog, LoadSettings, load_log
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.log_segment import LogRefusedError
from kcli.log.planned_disk import REMOVE, WRITE, Change, PlannedDisk, is_zeros

# How often what stands in the way of a recovery is taken away before the log is cut there for good.
MOST_SINGLE_CUTS = 64
MOST_REFUSALS = 4096
_SEGMENT_KINDS = (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class RepairSettings(NamedTuple):
    """How one partition is repaired.

    `topic_id` is what the cluster's metadata say, None where they are not at hand; `needs_topic_id` is False for clusters
    from before KRaft, whose partitions may lack one.
    """

    like_kafka: bool = False
    log_start_offset: int = 0
    indexes: IndexSettings = IndexSettings()
    topic_id: Uuid | None = None
    needs_topic_id: bool = False


class Remark(NamedTuple):
    """Something to know about a plan: the file that it is about and a sentence without a full stop."""

    path: str
    message: str


class Hole(NamedTuple):
    """Offsets [first_offset, end_offset) that go: bytes [start, end) of `path`, or files whole. None: not known."""

    path: str
    first_offset: int
    end_offset: int | None
    why: str


class PartitionPlan(NamedTuple):
    """What is to be done to a partition's directory, and what its log is afterwards.

    `loses_records` is True where bytes go that may have been records; `holes` are the offsets that go with them.
    """

    directory: str
    changes: list[Change]
    remarks: list[Remark]
    holes: list[Hole]
    log_start_offset: int
    log_end_offset: int
    loses_records: bool


class RepairError(Exception):
    """No plan could be made; the message is one sentence that names the file."""


def plan_partition(disk: Disk, directory: str, settings: RepairSettings = RepairSettings()) -> PartitionPlan:  # noqa: B008
    """Decide what becomes of the files of a partition's directory -> PartitionPlan. Raises RepairError and OSError."""
    return _Planner(disk, directory, settings).plan()


class _Planner:
    def __init__(self, disk: Disk, directory: str, settings: RepairSettings) -> None:
        self.planned = PlannedDisk(disk)
        self.directory = directory
        self.settings = settings
        self.remarks: list[Remark] = []
        self.holes: list[Hole] = []
        self.like_kafka = settings.like_kafka or base_name(directory) == f"{METADATA_TOPIC}-0"
        self.single_cuts = 0
        self.misleading: set[str] = set()

    def plan(self) -> PartitionPlan:
        if not self.like_kafka:
            self._remove_odd_files()
            self._decide_swaps()
            self._try(lambda: finish_leftovers(self.planned, self.directory, self.settings.indexes))
            self._salvage()
        load_settings = LoadSettings(False, self.settings.log_start_offset, 0, self.settings.indexes)
        loaded: list[LoadedLog] = []
        self._try(lambda: loaded.append(load_log(self.planned, self.directory, load_settings)))
        if not self.settings.like_kafka:
            keep_sound_files(self.planned, self.directory, loaded[-1].log_start_offset)
        self._restore_partition_metadata()
        return self._finished(loaded[-1])

    def _finished(self, loaded: LoadedLog) -> PartitionPlan:
        self._explain_snapshots(loaded)
        changes = self.planned.changes()
        if not self.settings.like_kafka:
            changes = [change for change in changes if not _is_new_empty_epoch_file(change)]
        cut = bool(self.holes) or any(self._was_cut(base_offset, changes) for base_offset in loaded.cut_segments)
        if cut and self.like_kafka and not self.settings.like_kafka:
            message = "the log of the cluster's metadata is cut at the first bad batch: with a hole it would tell lies"
            self.remarks.append(Remark(self.directory, message))
        start, end = loaded.log_start_offset, loaded.log_end_offset
        return PartitionPlan(self.directory, changes, self.remarks, self.holes, start, end, cut)

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

    # ----------------------------------------------------------------------------------------------- what Kafka refuses

    def _try(self, step: Callable[[], object]) -> None:
        """Run a step; what makes Kafka refuse to load the log is taken away, and the step run again."""
        for _ in range(MOST_REFUSALS):
            try:
                step()
            except LogRefusedError as refusal:
                self._take_away(refusal)
            else:
                return
        raise RepairError(f"{self.directory}: there is no end of what keeps Kafka from loading this log")

    def _take_away(self, refusal: LogRefusedError) -> None:
        path, name = refusal.path, parse_file_name(base_name(refusal.path))
        self.remarks.append(Remark(path, f"a broker does not load the log: {refusal.message}"))
        if name.state is FileState.SWAP and name.kind is FileKind.LOG and name.base_offset is not None:
            index = self._path(name.base_offset, FileKind.INDEX, FileState.SWAP)
            # Once: looking for the segment's end makes a new one, which leads nowhere.
            if self.planned.exists(index) and index not in self.misleading:
                self.misleading.add(index)
                self._remove(index, "it leads to bytes of its segment that are no batch")
                return
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
            for kind in _SEGMENT_KINDS:
                if self.planned.exists(self._path(behind, kind)):
                    self._remove(self._path(behind, kind), "the segment before it was cut: what follows would leave a hole")

    # ------------------------------------------------------------------------------------------------ 1, 2: names, swaps

    def _remove_odd_files(self) -> None:
        for name in self._names():
            file = parse_file_name(name)
            path = join_path(self.directory, name)
            if file.kind in (*_SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT) and not file.is_regular:
                self._remove(path, "its name is none that a broker writes, and may keep one from starting")
            elif file.kind is not FileKind.UNKNOWN and file.state in (FileState.TEMPORARY, FileState.PARTIAL):
                self._remove(path, "it was being written when the broker stopped")

    def _decide_swaps(self) -> None:
        """Drop the swap of a segment that is damaged while what it was made of is still there."""
        for base_offset in self._bases(FileState.SWAP):
            path = self._path(base_offset, FileKind.LOG, FileState.SWAP)
            if self._is_sound(path):
                continue
            deleted = [base for base in self._bases(FileState.DELETED) if base >= base_offset and base not in self._bases()]
            if not any(base >= base_offset for base in self._bases()) and not deleted:
                continue
            for kind in _SEGMENT_KINDS:
                swap = self._path(base_offset, kind, FileState.SWAP)
                if self.planned.exists(swap):
                    self._remove(swap, "the cleaned segment is damaged, the segments that it was made of are there")
            for base in deleted:
                target = self._path(base, FileKind.LOG)
                self.planned.explain(target, "the cleaned segment that was to take its place is damaged")
                self.planned.rename(self._path(base, FileKind.LOG, FileState.DELETED), target)

    def _is_sound(self, path: str) -> bool:
        with SegmentReader(self.planned, path) as reader:
            return all(isinstance(found, LogBatch) and found.is_valid for found in reader.batches(resynchronise=False))

    # --------------------------------------------------------------------------------------------- 3, 4: batches, epochs

    def _salvage(self) -> None:
        salvager = LogSalvager(self.planned)
        bases = self._bases()
        found: list[SegmentSalvage] = []
        next_offset = 0
        for base_offset, next_base in zip_longest(bases, bases[1:]):
            path = self._path(base_offset, FileKind.LOG)
            end_offset = 2**63 - 1 if next_base is None else next_base
            found.append(salvager.salvage(path, base_offset, next_offset, end_offset))
            next_offset = max(next_offset, found[-1].next_offset)
        mend_epochs_across(found)
        for base_offset, next_base, salvage in zip_longest(bases, bases[1:], found):
            path = self._path(base_offset, FileKind.LOG)
            for mend in salvage.mends:
                self.remarks.append(Remark(path, mend.why))
                self.planned.explain(path, "what is wrong in the headers of batches follows from the rest of them")
                self.planned.write_at(path, mend.position, mend.data)
            self._cut(path, salvage.cuts, next_base)
            if salvage.cuts and not salvage.kept and next_base is not None:
                self._remove_emptied(base_offset)
        self._check_epochs([run for salvage in found for run in salvage.epochs if run.epoch >= 0])

    def _cut(self, path: str, cuts: list[Cut], next_base: int | None) -> None:
        if not cuts:
            return
        for start, end, first_offset, end_offset, why in cuts:
            end_offset = next_base if end_offset is None else end_offset
            if end_offset != first_offset and not is_zeros(self.planned, path, start, end):
                self.holes.append(Hole(path, first_offset, end_offset, why))
            self.planned.explain(path, why)
        self.planned.cut_out(path, [(cut.start, cut.end) for cut in cuts])

    def _remove_emptied(self, base_offset: int) -> None:
        for kind in _SEGMENT_KINDS:
            if self.planned.exists(self._path(base_offset, kind)):
                self._remove(self._path(base_offset, kind), "no batch of the segment is left")

    def _check_epochs(self, runs: list[EpochRun]) -> None:
        """Write leader-epoch-checkpoint anew where it and the batches contradict each other."""
        path = join_path(self.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        if not self.planned.exists(path):
            why = "it is missing"
        else:
            try:
                entries = decode_leader_epochs(self.planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
                cache = LeaderEpochCache(entries)
            except FormatError as error:
                why = error.message
            else:
                if cache.entries == entries and all(
                    cache.epoch_for_offset(run.first_offset) == run.epoch == cache.epoch_for_offset(run.last_offset)
                    for run in runs
                ):
                    return
                why = "the batches have other leader epochs"
        rebuilt = LeaderEpochCache()
        for run in runs:
            if rebuilt.latest_epoch is None or run.epoch > rebuilt.latest_epoch:
                rebuilt.assign(run.epoch, run.first_offset)
        self.planned.explain(path, why)
        self.planned.write_file(path, encode_leader_epochs(rebuilt.entries) if runs else b"")

    # --------------------------------------------------------------------------------------------- 7: partition.metadata

    def _restore_partition_metadata(self) -> None:
        path = join_path(self.directory, FileKind.PARTITION_METADATA.value)
        topic_id = self.settings.topic_id
        present = None
        if self.planned.exists(path):
            present = decode_partition_metadata(self.planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).topic_id
        if present is None and topic_id is not None:
            self.planned.explain(path, "the metadata log tells the topic's id")
            self.planned.write_file(path, encode_partition_metadata(PartitionMetadata(0, topic_id)))
        elif present is None and self.settings.needs_topic_id:
            message = (
                "partition.metadata is missing and no metadata log tells the topic's id: a broker sets the partition aside"
            )
            self.remarks.append(Remark(path, message))
        elif present is not None and topic_id is not None and present != topic_id:
            message = (
                f"it names topic id {present}, the metadata log {topic_id}: left as it is, it may be of a topic since deleted"
            )
            self.remarks.append(Remark(path, message))


def _is_new_empty_epoch_file(change: Change) -> bool:
    """Kafka creates the file when it loads a log; that is no repair."""
    is_new = change.kind == WRITE and not change.replaces and not change.size_bytes
    return is_new and base_name(change.path) == FileKind.LEADER_EPOCH_CHECKPOINT.value
