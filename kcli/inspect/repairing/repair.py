"""Repairing a log directory: plan each partition, carry the plan out, then bring the directory's own files in line.

    file of the log directory                 what becomes of it
    ----------------------------------------  --------------------------------------------------------------------------
    recovery-point-, replication- and         entries behind a repaired log's end are lowered to it; one that cannot be
      cleaner-offset-checkpoint               read is taken away (a broker starts from 0 and writes it anew)
    log-start-offset-checkpoint               one that cannot be read is taken away: records deleted before reappear
    .kafka_cleanshutdown                      aside while files change; back where no records were lost, else it stays in
                                              the quarantine: its broker epoch vouches that all records are there
    kcli-uncleanable-partitions               one that cannot be read is taken away; else it stays until a broker starts
    .lock                                     held while files change, as a broker holds it

The directory is treated as unclean from its start, whatever .kafka_cleanshutdown and the recovery points say. A plan is made
again right before it is carried out, under the lock. Each partition's plan is carried out before the next one is made, so
memory holds one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import DirectoryState, FileKind
from kcli.format.metadata_files import decode_meta_properties
from kcli.format.primitives import FormatError
from kcli.inspect.description.cluster_topics import ClusterTopics, read_cluster_topics
from kcli.inspect.repairing.quarantine import Quarantine
from kcli.inspect.repairing.repair_plan import PartitionPlan, Remark, RepairError, RepairSettings, plan_partition
from kcli.log.disk import Disk
from kcli.log.file_changes import apply_changes
from kcli.log.indexes import IndexSettings
from kcli.log.log_directory import (
    PartitionDirectory,
    Target,
    join_path,
    parent_path,
    read_checkpoints,
    read_partition,
    read_uncleanable_partitions,
)
from kcli.log.planned_disk import REMOVE, REWRITE, WRITE, Change, PlannedDisk

CLEAN = "clean"
UNCLEAN = "unclean"
NO_LONGER_CLEAN = "no-longer-clean"
# The checkpoints whose offsets must not lie behind the end of a log.
_BOUND_CHECKPOINTS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)


class RootPlan(NamedTuple):
    """What is to be done to the files of the log directory itself.

    `shutdown` says how the directory counts afterwards: CLEAN, UNCLEAN (it did not before either) or NO_LONGER_CLEAN.
    """

    directory: str
    changes: list[Change]
    remarks: list[Remark]
    shutdown: str


class DirectoryLockedError(Exception):
    """A running broker, or another repair, holds the log directory; the message is one sentence."""


class LogDirectoryRepair:
    """The repair of one log directory, or of some partitions in it.

    `indexes` are the settings for indexes that are built anew; None: each topic's own, as the metadata log beside tells them.
    """

    def __init__(
        self, disk: Disk, log_directory: str, *, like_kafka: bool = False, indexes: IndexSettings | None = None
    ) -> None:
        self.disk = disk
        self.directory = log_directory
        self.like_kafka = like_kafka
        self.indexes = indexes
        self.checkpoints = read_checkpoints(disk, log_directory)
        self.topics: ClusterTopics | None = read_cluster_topics(disk, log_directory)
        self._is_kraft = self.topics is not None or self._has_kraft_properties()
        self._ends: dict[tuple[str, int], int] = {}
        self._loses_records = False
        self._mark: bytes | None = None  # what stood in .kafka_cleanshutdown when it was set aside

    def _has_kraft_properties(self) -> bool:
        path = self._root(FileKind.META_PROPERTIES)
        if not self.disk.exists(path):
            return False
        try:
            return decode_meta_properties(self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).version == 1
        except FormatError:
            return False

    def check_unlocked(self) -> None:
        """Raises DirectoryLockedError where another process holds the directory's .lock."""
        if self.disk.is_locked(self._root(FileKind.LOCK)):
            raise DirectoryLockedError(self._locked())

    def lock(self) -> Callable[[], None]:
        """Take .lock -> what gives it back. Raises DirectoryLockedError and OSError."""
        release = self.disk.lock(self._root(FileKind.LOCK))
        if release is None:
            raise DirectoryLockedError(self._locked())
        return release

    def _locked(self) -> str:
        return f"{self._root(FileKind.LOCK)} is locked: a broker is running on this directory; stop it, then repair"

    def _root(self, kind: FileKind) -> str:
        return join_path(self.directory, kind.value)

    def plan(self, partition: PartitionDirectory) -> PartitionPlan:
        """Plan the repair of one partition. Raises RepairError and OSError."""
        key = (partition.topic, partition.partition)
        topics = self.topics
        settings = RepairSettings(
            self.like_kafka,
            self.checkpoints.log_start_offsets.get(key, 0),
            needs_topic_id=self._is_kraft and not partition.is_metadata_log,
        )
        if topics is not None:
            topic_id = None if partition.is_metadata_log else topics.ids.get(partition.topic)
            settings = settings._replace(topic_id=topic_id, indexes=topics.index_settings(partition.topic))
        if self.indexes is not None:
            settings = settings._replace(indexes=self.indexes)
        plan = plan_partition(self.disk, partition.path, settings)
        if partition.state is DirectoryState.CURRENT:
            self._ends[key] = plan.log_end_offset
        self._loses_records |= plan.loses_records
        return plan

    def plan_root(self) -> RootPlan:
        """Plan what becomes of the directory's own files, after its partitions were planned. Raises OSError."""
        planned = PlannedDisk(self.disk)
        remarks: list[Remark] = []
        unreadable = dict(self.checkpoints.problems)
        try:
            read_uncleanable_partitions(self.disk, self.directory)
        except FormatError as error:
            unreadable[self._root(FileKind.UNCLEANABLE_PARTITIONS)] = error.message
        for path, message in unreadable.items():
            planned.explain(path, message)
            planned.remove(path)
            if path == self._root(FileKind.LOG_START_OFFSET_CHECKPOINT):
                remarks.append(Remark(path, "records that were deleted, and are still in a segment, can be read again"))
        for kind in _BOUND_CHECKPOINTS:
            if planned.exists(self._root(kind)):
                self._lower_offsets(planned, self._root(kind))
        mark = self._root(FileKind.CLEAN_SHUTDOWN)
        is_there = planned.exists(mark)
        if not is_there and self._mark is None:
            return RootPlan(self.directory, planned.changes(), remarks, UNCLEAN)
        if not self._loses_records:
            return RootPlan(self.directory, planned.changes(), remarks, CLEAN)
        if is_there:
            planned.explain(mark, "records are lost: the directory must not count as cleanly shut down")
            planned.remove(mark)
        return RootPlan(self.directory, planned.changes(), remarks, NO_LONGER_CLEAN)

    def _lower_offsets(self, planned: PlannedDisk, path: str) -> None:
        try:
            entries = decode_offset_checkpoint(planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
        except FormatError:
            return
        lowered = [self._lowered(entry) for entry in entries]
        if lowered != list(entries):
            planned.explain(path, "it has offsets behind the end of a log")
            planned.write_file(path, encode_offset_checkpoint(lowered))

    def _lowered(self, entry: PartitionOffset) -> PartitionOffset:
        end_offset = self._ends.get((entry.topic, entry.partition))
        return entry if end_offset is None or entry.offset <= end_offset else entry._replace(offset=end_offset)

    # ------------------------------------------------------------------------------------------------- carrying out

    def apply(self, partition: PartitionDirectory, quarantine: Quarantine) -> PartitionPlan:
        """Plan the repair of one partition and carry it out; the lock must be held. Raises RepairError and OSError."""
        plan = self.plan(partition)
        if plan.changes:
            self._check_space(plan)
            self._take_mark(quarantine)
            quarantine.announce(plan.changes)
            apply_changes(self.disk, plan.changes, quarantine)
        return plan

    def _check_space(self, plan: PartitionPlan) -> None:
        """Files are written beside those that they replace, and what goes is kept: both must fit before anything is touched."""
        needed = sum(change.size_bytes for change in plan.changes if change.kind in (REWRITE, WRITE))
        needed += sum(end - start for change in plan.changes if change.kind != WRITE for start, end in change.dropped)
        free = self.disk.free_bytes(plan.directory)
        if free < needed:
            raise RepairError(
                f"{plan.directory}: the repair needs {needed} bytes of disk and {free} are free; nothing was touched"
            )

    def _take_mark(self, quarantine: Quarantine) -> None:
        """Before the first change: a crash from now on must not leave a directory that counts as clean."""
        path = self._root(FileKind.CLEAN_SHUTDOWN)
        if self._mark is None and self.disk.exists(path):
            self._mark = self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)
            why = "set aside while files change; written again where no records were lost"
            quarantine.announce([Change(REMOVE, path, why, len(self._mark))])
            quarantine.keep_file(path)
            self.disk.flush_directory(self.directory)

    def apply_root(self, quarantine: Quarantine) -> RootPlan:
        """Carry out what becomes of the directory's own files, the last step of a repair. Raises OSError."""
        plan = self.plan_root()
        quarantine.announce(plan.changes)
        apply_changes(self.disk, plan.changes, quarantine)
        if self._mark is not None and plan.shutdown == CLEAN:
            self.disk.write_file(self._root(FileKind.CLEAN_SHUTDOWN), self._mark)
        quarantine.finish()
        return plan


def repair_targets(disk: Disk, targets: Iterable[Target]) -> list[tuple[str, list[PartitionDirectory]]]:
    """What paths to repair mean -> for each log directory its partitions to repair; a file stands for its partition.

    Directories about to be deleted are left out. Raises OSError.
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
                partition = read_partition(disk, parent_path(target.file.path))
                if not partition.segments and not partition.is_named:
                    continue  # a file of the log directory itself
            partitions = [partition]
            into = found.setdefault(parent_path(partition.path), {})
        for partition in partitions:
            if partition.state is not DirectoryState.DELETE:
                into[partition.path] = partition
    return [(directory, list(partitions.values())) for directory, partitions in found.items()]
