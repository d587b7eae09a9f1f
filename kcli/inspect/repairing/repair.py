"""Repairs a log directory: its partitions one by one, then its own files.

    file of the log directory                 what a repair does
    ----------------------------------------  --------------------------------------------------------------------------
    recovery-point- and                       lowers entries beyond a repaired log's end to it; removes a file that cannot
      replication-offset-checkpoint           be read (a broker starts from 0, or the log start, and writes a new one)
    cleaner- and                              removes entries beyond the end, and a file that cannot be read: the cleaner
      log-start-offset-checkpoint             begins at the log's start; deleted records that still exist can be read again
    .kafka_cleanshutdown                      moves it to the quarantine while files change, and back if no records are
                                              missing: with its broker epoch, a broker reports that it has all records
    .lock                                     holds the lock while files change, as a broker does

A repair reads all segments from offset 0 on, whatever .kafka_cleanshutdown and the recovery points are. Whether the directory
was stopped cleanly only decides what its checkpoints show of lost records, also after an earlier repair removed the file. A
plan is made again right before it is applied, under the lock. Each partition's plan is applied before the next one is made,
so memory holds one at a time.

What a repair leaves is what `kcli verify` finds in the planned state: the same checks before and after. If only some
partitions of a log directory are repaired, only their entries in the directory's files change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import DirectoryState, FileKind
from kcli.format.metadata_files import decode_meta_properties
from kcli.format.primitives import CorruptCheckpointError, FormatError
from kcli.inspect.repairing.holes import Remark, known_ranges
from kcli.inspect.repairing.planned_partition import RepairError
from kcli.inspect.repairing.repair_plan import PartitionPlan, RepairSettings, plan_partition
from kcli.inspect.verification.directories import (
    Root,
    check_across,
    check_log_directory,
    check_topic_id,
    read_root,
    read_topics,
)
from kcli.inspect.verification.findings import Finding, FindingList, serious
from kcli.log.disk.file_changes import apply_changes, kept_bytes
from kcli.log.disk.planned_disk import REMOVE, REWRITE, WRITE, Change, PlannedDisk
from kcli.log.disk.port import Disk, base_name, join_path, parent_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import (
    LOCK_HOLDERS,
    LogDirectory,
    PartitionDirectory,
    ResolvedPath,
    is_partition_directory,
    read_log_directory,
    read_partition,
    read_topic_id,
)
from kcli.log.files.quarantine import LostOffsets, Quarantine, checkpoint_digests

# How many partitions the reason for a changed checkpoint names.
MOST_NAMED = 5
CLEAN = "clean"
UNCLEAN = "unclean"
NO_LONGER_CLEAN = "no-longer-clean"
# The checkpoints whose offsets must not be beyond the end of a log, and why such an entry is changed or removed.
_BOUNDED = {
    FileKind.RECOVERY_POINT_CHECKPOINT: "lowered, so that a broker recovers from the log end",
    FileKind.REPLICATION_CHECKPOINT: "a high watermark must not be beyond the log end",
    FileKind.CLEANER_CHECKPOINT: "dropped, so that the cleaner starts again from the beginning",
    FileKind.LOG_START_OFFSET_CHECKPOINT: "a broker would empty the log",
}
_LOWERED = (FileKind.RECOVERY_POINT_CHECKPOINT, FileKind.REPLICATION_CHECKPOINT)


class RootPlan(NamedTuple):
    """The changes of the log directory's own files.

    `shutdown`: the directory counts afterwards as CLEAN, UNCLEAN (as before) or NO_LONGER_CLEAN. `left` are the errors and
    warnings of a verification of the directory afterwards, without those of its partitions.
    """

    directory: str
    changes: list[Change]
    remarks: list[Remark]
    shutdown: str
    left: list[Finding]


class DirectoryLockedError(Exception):
    """The log directory cannot be locked, because a broker or another repair holds its lock, for example."""


class LogDirectoryRepair:
    """The repair of one log directory, or of some partitions in it (`is_whole` False).

    `indexes` are the settings of rebuilt indexes; None: those of each topic in the metadata log. `take_inner` is that of
    kcli.inspect.repairing.salvage. `root` is what the directory's own files contain, None to read them.
    """

    def __init__(
        self,
        disk: Disk,
        log_directory: str,
        *,
        like_kafka: bool = False,
        indexes: IndexSettings | None = None,
        is_whole: bool = True,
        take_inner: bool = False,
        root: Root | None = None,
    ) -> None:
        self.disk = disk
        self.directory = log_directory
        self.like_kafka = like_kafka
        self.indexes = indexes
        self.is_whole = is_whole
        self.take_inner = take_inner
        self.root = root or read_root(disk, log_directory, FindingList())
        self._topics_afterwards = self.root.topics
        self._is_kraft = self.root.topics is not None or self._has_kraft_properties()
        self._ends: dict[tuple[str, int], int] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._cut: set[tuple[str, int]] = set()  # the partitions whose log ends before offsets that are lost
        self._loses_records = False
        self._has_failed = False
        self._mark: bytes | None = None  # the contents of .kafka_cleanshutdown while it is in the quarantine

    def _has_kraft_properties(self) -> bool:
        path = self._root(FileKind.META_PROPERTIES)
        if not self.disk.exists(path):
            return False
        try:
            return decode_meta_properties(self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).version == 1
        except FormatError:
            return False

    def check_unlocked(self) -> None:
        """Raise DirectoryLockedError if another process holds the directory's .lock."""
        if self.disk.is_locked(self._root(FileKind.LOCK)):
            raise DirectoryLockedError(self._locked())

    def lock(self) -> Callable[[], None]:
        """Take .lock; return the function that releases it. Raises DirectoryLockedError and OSError."""
        path = self._root(FileKind.LOCK)
        if self.disk.is_directory(path):
            raise DirectoryLockedError(
                f"{path} is a directory, and a broker locks a file of that name: move it away, then repair"
            )
        release = self.disk.lock(path)
        if release is None:
            raise DirectoryLockedError(self._locked())
        return release

    def _locked(self) -> str:
        return f"{self._root(FileKind.LOCK)} is locked: {LOCK_HOLDERS}, then repair"

    def _root(self, kind: FileKind) -> str:
        return join_path(self.directory, kind.value)

    def plan(self, partition: PartitionDirectory) -> PartitionPlan:
        """Plan the repair of one partition. Raises RepairError and OSError."""
        plan = self._plan(partition)
        self._take(partition, plan)
        return plan

    def _plan(self, partition: PartitionDirectory) -> PartitionPlan:
        key = (partition.topic, partition.partition)
        topics = self.root.topics
        # The options with which `kcli verify` checks the partition if no broker is running.
        options = self.root._replace(is_live=False).options(partition)
        settings = RepairSettings(
            self.like_kafka,
            self.root.checkpoints.log_start_offsets.get(key, 0),
            needs_topic_id=self._is_kraft and not partition.is_metadata_log,
            take_inner=self.take_inner,
            options=options,
            also_check=partial(self._check_topic_id, partition),
        )
        if topics is not None:
            topic_id = None if partition.is_metadata_log else topics.ids.get(partition.topic)
            node_id = self.root.meta.node_id if self.root.meta is not None else None
            settings = settings._replace(
                topic_id=topic_id,
                indexes=topics.index_settings(partition.topic),
                replicas=topics.other_replicas(partition.topic, partition.partition, node_id),
            )
        if self.indexes is not None:
            settings = settings._replace(indexes=self.indexes)
        return plan_partition(self.disk, partition.path, settings)

    def _take(self, partition: PartitionDirectory, plan: PartitionPlan) -> None:
        """Take a plan for carried out: the directory's own files follow from the partitions afterwards."""
        key = (partition.topic, partition.partition)
        if partition.state is DirectoryState.CURRENT:
            self._ends[key] = plan.log_end_offset
            self._starts[key] = plan.log_start_offset
            if any(hole.end_offset is None or hole.end_offset > plan.log_end_offset for hole in plan.holes):
                self._cut.add(key)
        self._loses_records |= plan.loses_records

    def _check_topic_id(self, partition: PartitionDirectory, disk: Disk, findings: FindingList) -> None:
        now = read_partition(disk, partition.path)
        check_topic_id(disk, now, self.root._replace(is_live=False), self._topics_afterwards, findings)

    def plan_root(self) -> RootPlan:
        """Plan the changes of the directory's own files, after its partitions were planned. Raises OSError."""
        return self._plan_root()[0]

    def _plan_root(self) -> tuple[RootPlan, PlannedDisk]:
        planned = PlannedDisk(self.disk)
        remarks: list[Remark] = []
        if self.is_whole:
            self._remove_unreadable(planned, remarks)
        for kind, effect in _BOUNDED.items():
            if planned.exists(self._root(kind)):
                self._bound_offsets(planned, kind, effect)
        mark = self._root(FileKind.CLEAN_SHUTDOWN)
        is_there = planned.is_regular(mark)
        judged = planned
        if self._mark is not None and not is_there:
            # The verifier recognizes a log directory by this file, also while it is in the quarantine.
            judged = PlannedDisk(planned)
            judged.write_file(mark, self._mark)
        changes, left = planned.changes(), self._left(judged)
        lost_partition = any(finding.code == "partition-missing" for finding in left)
        if not is_there and self._mark is None:
            shutdown = UNCLEAN
        elif not self._loses_records and not lost_partition:
            shutdown = CLEAN
        else:
            shutdown = NO_LONGER_CLEAN
            size = planned.size(mark) if is_there else len(self._mark or b"")
            why = "records are missing, so the directory must not count as cleanly shut down"
            changes.append(Change(REMOVE, mark, why, size))
            if is_there:
                planned.remove(mark)
        return RootPlan(self.directory, changes, remarks, shutdown, left), planned

    def _remove_unreadable(self, planned: PlannedDisk, remarks: list[Remark]) -> None:
        unreadable = dict(self.root.checkpoints.problems)
        effects = {
            FileKind.LOG_START_OFFSET_CHECKPOINT: "records that were deleted, and are still in a segment, can be read again",
            FileKind.REPLICATION_CHECKPOINT: "no record counts as committed until a broker has run",
            FileKind.CLEANER_CHECKPOINT: "the cleaner starts again from the beginning",
            FileKind.RECOVERY_POINT_CHECKPOINT: "a broker recovers every segment at its next start after a crash",
        }
        for path, message in unreadable.items():
            planned.explain(path, message)
            planned.remove(path)
            effect = next((effect for kind, effect in effects.items() if path == self._root(kind)), None)
            if effect is not None:
                remarks.append(Remark(path, f"without it {effect}"))

    def _left(self, planned: PlannedDisk) -> list[Finding]:
        """Return what a verification of the directory's own files finds afterwards, if the whole directory is repaired."""
        if not self.is_whole:
            return []
        findings = FindingList()
        directory = read_log_directory(planned, self.directory)
        root = read_root(planned, self.directory, findings, with_topics=False, asks_lock=False)
        check_log_directory(planned, directory, root, findings)
        return serious(findings.finish())

    def _bound_offsets(self, planned: PlannedDisk, kind: FileKind, effect: str) -> None:
        """Lower or remove the entries of one checkpoint that are beyond the end of a log."""
        path = self._root(kind)
        try:
            entries = decode_offset_checkpoint(planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
        except FormatError:
            return
        kept: list[PartitionOffset] = []
        whys: list[str] = []
        for entry in entries:
            end_offset = self._ends.get((entry.topic, entry.partition))
            if end_offset is None or entry.offset <= end_offset:
                kept.append(entry)
                continue
            whys.append(f"{entry.topic}-{entry.partition}: {entry.offset} is beyond the log end {end_offset}")
            start_offset = self._starts[entry.topic, entry.partition]
            if (
                kind is FileKind.REPLICATION_CHECKPOINT
                and not self.like_kafka
                and (entry.topic, entry.partition) not in self._cut
            ):
                # Nothing confirms this high watermark, so it does not show which records are committed.
                kept.append(entry._replace(offset=start_offset))
                whys[-1] += (
                    " and nothing shows that the log reached it (set to the log start: no record counts as committed yet)"
                )
            elif kind in _LOWERED:
                kept.append(entry._replace(offset=end_offset))
            elif kind is FileKind.LOG_START_OFFSET_CHECKPOINT and start_offset > 0:
                kept.append(entry._replace(offset=start_offset))
                whys[-1] += f" (the log starts at {start_offset}, by its leader epochs or its first segment)"
        if whys:
            more = f" and {len(whys) - MOST_NAMED} more" if len(whys) > MOST_NAMED else ""
            planned.explain(path, f"{', '.join(whys[:MOST_NAMED])}{more}; {effect}")
            planned.write_file(path, encode_offset_checkpoint(kept))

    # ----------------------------------------------------------------------------------------------------- applying

    def apply(self, partition: PartitionDirectory, quarantine: Quarantine) -> PartitionPlan:
        """Plan the repair of one partition and apply it; the lock must be held. Raises RepairError and OSError."""
        plan = self._plan(partition)
        lost = self._lost(partition, plan)
        if not plan.changes and lost.offsets:
            quarantine.note_lost(lost)
        elif plan.changes:
            self._check_space(plan, quarantine)
            self._set_mark_aside(quarantine)
            quarantine.announce(plan.changes, lost)
            try:
                apply_changes(self.disk, plan.changes, quarantine)
            except BaseException:
                self._loses_records = True  # as far as is known
                raise
        self._take(partition, plan)
        if plan.changes and partition.is_metadata_log:
            # The final checks use the repaired metadata log; topic ids are restored from all that was readable before.
            self._topics_afterwards = read_topics(self.disk, self.directory)
        return plan

    def _lost(self, partition: PartitionDirectory, plan: PartitionPlan) -> LostOffsets:
        """Return what the manifest of the quarantine has of a partition: nothing in the log may show it afterwards."""
        topic_id = None
        with suppress(CorruptCheckpointError):
            topic_id = read_topic_id(self.disk, partition)
        name = base_name(partition.path)
        return LostOffsets(name, str(topic_id) if topic_id else "", tuple(known_ranges(plan.holes)), plan.log_end_offset)

    def note_failure(self) -> None:
        """Note that a partition could not be repaired, so the repair is not complete.

        If it failed amid its changes, `apply` has noted that the directory does not count as clean any more. A partition that
        cannot be read, or for which the disk has no space, is as it was before.
        """
        self._has_failed = True

    def _check_space(self, plan: PartitionPlan, quarantine: Quarantine) -> None:
        """Raise RepairError unless the disk has space for the new files next to the old ones, and for the quarantine."""
        needed = sum(change.size_bytes for change in plan.changes if change.kind in (REWRITE, WRITE))
        copied, moved = kept_bytes(plan.changes)
        free_for_kept = quarantine.free_bytes(plan.directory)
        if free_for_kept is None:
            needed += copied
        elif free_for_kept < copied + moved:
            raise RepairError(
                f"{quarantine.folder}: the quarantine needs {copied + moved} bytes of disk and {free_for_kept} are free; "
                "nothing was touched"
            )
        free = self.disk.free_bytes(plan.directory)
        if free < needed:
            raise RepairError(
                f"{plan.directory}: the repair needs {needed} bytes of disk and {free} are free; nothing was touched"
            )

    def _set_mark_aside(self, quarantine: Quarantine) -> None:
        """Move .kafka_cleanshutdown to the quarantine: a crash from now on must not leave a directory that counts as clean."""
        path = self._root(FileKind.CLEAN_SHUTDOWN)
        digests = checkpoint_digests([self.disk], self.directory)
        quarantine.note_checkpoints(digests)
        if self.root.was_stopped_cleanly:
            quarantine.note_clean_stop(digests)
        if self._mark is None and self.disk.is_regular(path):
            mark = self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)
            why = "set aside while files change; written again where no records were lost"
            quarantine.announce([Change(REMOVE, path, why, len(mark))])
            quarantine.keep_file(path)
            self._mark = mark
            self.disk.flush_directory(self.directory)

    def apply_root(self, quarantine: Quarantine) -> RootPlan:
        """Change the directory's own files, the last step of a repair. Raises OSError."""
        plan, planned = self._plan_root()
        digests = checkpoint_digests([self.disk, planned], self.directory)
        quarantine.note_checkpoints(digests)
        if self.root.was_stopped_cleanly:
            quarantine.note_clean_stop(digests)
        # .kafka_cleanshutdown was moved before the first change.
        changes = [
            change for change in plan.changes if self._mark is None or change.path != self._root(FileKind.CLEAN_SHUTDOWN)
        ]
        quarantine.announce(changes)
        apply_changes(self.disk, changes, quarantine)
        if self._mark is not None and plan.shutdown == CLEAN:
            self.disk.write_file(self._root(FileKind.CLEAN_SHUTDOWN), self._mark)
            quarantine.note_clean_stop({})
        if not self._has_failed:
            quarantine.finish()
        return plan


def is_whole(log_directory: str, targets: Iterable[ResolvedPath]) -> bool:
    """Return True if a log directory is to be repaired with its own files, not only some partitions in it."""
    path = log_directory.rstrip("/") or "/"
    return any(target.log_directory is not None and (target.path.rstrip("/") or "/") == path for target in targets)


def left_across(disk: Disk, directories: Sequence[LogDirectory]) -> list[Finding]:
    """Return what a verification finds between several log directories: a partition twice on one broker, for example."""
    findings = FindingList()
    roots = [read_root(disk, directory.path, FindingList(), with_topics=False) for directory in directories]
    check_across(directories, roots, findings)
    return serious(findings.finish())


def repair_targets(disk: Disk, targets: Iterable[ResolvedPath]) -> list[tuple[str, list[PartitionDirectory]]]:
    """Return the log directories to repair, each with its partitions; a file means its partition. Raises OSError.

    Partitions that are being deleted are left out. The metadata log is the first: the others are checked against it.
    """
    found: dict[str, dict[str, PartitionDirectory]] = {}
    for target in targets:
        if target.log_directory is not None:
            partitions = target.log_directory.partitions
            into = found.setdefault(target.log_directory.path.rstrip("/") or "/", {})
        else:
            partition = target.partition
            if partition is None:
                assert target.file is not None
                directory = parent_path(target.file.path)
                if not is_partition_directory(disk, directory):
                    continue  # a file of the log directory itself
                partition = read_partition(disk, directory)
            partitions = [partition]
            into = found.setdefault(parent_path(partition.path), {})
        for partition in partitions:
            if partition.state is not DirectoryState.DELETE:
                into[partition.path] = partition
    return [
        (directory, sorted(partitions.values(), key=lambda partition: not partition.is_metadata_log))
        for directory, partitions in found.items()
    ]
