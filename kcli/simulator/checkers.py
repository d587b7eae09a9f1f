"""Checks of the disk: at each death the records that must survive are noted, at each start they are compared with the logs.

event             what is noted or checked
----------------  ----------------------------------------------------------------------------------------------------
a process dies    must survive: every record that was completely written, since the page cache survives
power is lost     must survive: every record on the device; with flush.messages=1 every acknowledged one
a clean stop      must survive: every record
a start           the logs have the records that had to survive, unchanged; `kcli verify` finds no error

For a compacted log the records are compared; for any other log, which has no gaps, the offset that it reaches.

LogImage is the log of a partition on a disk: its records by offset, up to the first damaged or missing one. It also shows what
a power loss left. It does not use the code of the log that is under test: it reads the directory listing, the batch headers and
the CRCs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kcli.format.file_names import DirectoryState
from kcli.format.record_batch import RecordBatch
from kcli.inspect.verification.finding_kinds import ERROR, HOLES
from kcli.inspect.verification.verifier import Verifier
from kcli.log.disk.port import parent_path
from kcli.log.files.log_directory import read_partition, resolve_paths
from kcli.simulator.compacted_ledger import Clocks, CompactedLedger
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.ledger import Ledger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.sent_records import SentRecord, placed_records, whole_batches

# Directories that are not used any more, and so are not recovered.
_SET_ASIDE = re.compile(r"-(delete|stray)(/|$)")


class _Kept(NamedTuple):
    """What must survive of a partition: all offsets below `reached`; of a compacted one `records`, offset -> identity."""

    reached: int = 0
    records: dict[int, bytes] = {}  # noqa: RUF012

    def and_also(self, other: _Kept) -> _Kept:
        return _Kept(max(self.reached, other.reached), self.records | other.records)


_NOTHING = _Kept()


class DiskChecker:
    """Checks of the log directories of one machine; `is_here` chooses its partitions among those of all machines."""

    # Findings of `kcli verify` that a node may cause, for a moment, by what it appends during its start.
    allowed_at_start: tuple[str, ...] = ()

    def __init__(
        self,
        disk: SimulatedDisk,
        directories: list[str],
        ledger: Ledger,
        clocks: Callable[[], Clocks],
        is_here: Callable[[PartitionLedger], bool] = lambda partition: True,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._ledger = ledger
        self._clocks = clocks
        self._is_here = is_here  # whether this machine has the partition
        self._must_reach: dict[PartitionLedger, _Kept] = {}
        self._on_device: dict[PartitionLedger, _Kept] = {}
        # Those that were not checked since the last power loss: what readers see is what the device has.
        self._lost_power: set[PartitionLedger] = set()
        # After a power loss there may be holes in records that were not flushed. If the process is killed after retention has
        # renamed segments and before it has written the leader epochs, the epochs keep their entries, as in Kafka.
        self._has_crashed = False
        self.checked_records = 0
        self._was_ready = False  # the running process has accepted clients; before that it guarantees nothing new
        self.dead_directory: str | None = None  # a directory that the running node cannot read

    def process_died(self) -> None:
        """Note what must survive the death of the process: all that it wrote."""
        self._has_crashed = True
        self._note_device()
        if not self._was_ready:
            return
        self._was_ready = False
        for partition in self._served():
            self._must_reach[partition] = self._kept(self._disk, partition)

    def power_lost(self) -> None:
        """Note what must survive a power loss; to be called before the disk loses anything."""
        self._has_crashed = True
        self._note_device()
        self._was_ready = False
        self._lost_power = set(self._partitions())
        self._must_reach = dict(self._on_device)

    def stopped(self) -> None:
        """Note what must survive after a clean stop: every record."""
        self._was_ready = False
        for partition in self._served():
            self._must_reach[partition] = self._on_device[partition] = self._kept(self._disk, partition)

    def _served(self) -> list[PartitionLedger]:
        """Return the partitions that the running process has; the others are in a directory that it could not read.

        Of those it is not known yet what they lost when power was lost before, if it was.
        """
        return [partition for partition in self._partitions() if partition not in self._must_reach]

    def _note_device(self) -> None:
        if not self._was_ready:
            return
        device = self._disk.flushed_image()
        for partition in self._partitions():
            kept = self._kept_on(device, partition)
            # Writes that a failed flush lost are seen until a power loss; no program can detect it, and a later flush succeeds.
            if partition.facts.flushes_each and not self._disk.has_lost_writes:
                acknowledged = {at: one for at, one in partition.known.items() if at < partition.acknowledged_end}
                kept = kept.and_also(_Kept(partition.acknowledged_end, acknowledged))
            self._on_device[partition] = self._on_device.get(partition, _NOTHING).and_also(kept)

    def started(self) -> None:
        """Check the disk after a start, before the node serves clients. Raises SimulationFailure.

        The partitions in a directory that the node cannot read are checked after a later start; until then the node must not
        create them in another directory.
        """
        self._was_ready = True
        with self._disk.without_faults():
            self._check_start()

    def _check_start(self) -> None:
        for partition in self._partitions():
            path = self._path(self._disk, partition)
            if self.dead_directory is not None and self._is_in(self.dead_directory, partition, path):
                continue
            if self.dead_directory is None:
                self._check_place(partition)
            image = self._image(self._disk, partition)
            if not image.is_whole:
                partition.fail(f"after the start, there are bytes after offset {image.end} that do not belong to its log")
            must = self._must_reach.pop(partition, _NOTHING)
            partition.restarted(image.start, image.end, must.reached, image.holes)
            self._on_device.pop(partition, None)
            self._check_records(partition, image, "is on the disk after the start")
            if isinstance(partition, CompactedLedger):
                found = image.identities()
                last_batch_end = image.batches[-1][1].next_offset if image.batches else 0
                has_lost_power = partition in self._lost_power
                partition.recovered(found, must.records, last_batch_end, self._clocks(), has_lost_power=has_lost_power)
            self._lost_power.discard(partition)
        # A power loss takes records that were never flushed, but not the checkpoints with their offsets.
        self.verify(*self.allowed_at_start, may_miss_records=True, may_have_holes=self._has_crashed)

    def finished(self) -> None:
        """Check the disk at the end of the simulation, after a clean stop. Raises SimulationFailure."""
        for partition in self._partitions():
            self._check_place(partition)
            image = self._image(self._disk, partition)
            if image.end < partition.acknowledged_end:
                partition.fail(
                    f"at the end the log ends at {image.end}, but all below {partition.acknowledged_end} are acknowledged"
                )
            self._check_records(partition, image, "is on the disk at the end")
            if isinstance(partition, CompactedLedger):
                partition.ended(image.identities(), image.start, self._clocks())
        self.verify(may_have_holes=self._has_crashed)

    def _check_records(self, partition: PartitionLedger, image: LogImage, how: str) -> None:
        for offset, record in image.records():
            partition.read(offset, record, how)
            self.checked_records += 1

    def verify(self, *also_allowed: str, may_miss_records: bool = False, may_have_holes: bool = False) -> None:
        """Run `kcli verify` on all directories. Raises SimulationFailure for an error that it finds, but for `also_allowed`.

        With `may_miss_records` a log may end below the offset of a checkpoint; with `may_have_holes` offsets may be missing
        inside the log. A log that was compacted once may have them, too: its settings do not explain them any more.
        """
        directories = [path for path in self._directories if path != self.dead_directory]
        targets, problems = resolve_paths(self._disk, directories)
        if problems:
            raise SimulationFailure(f"verify cannot read the disk: {problems[0].message}")
        findings = Verifier(self._disk, targets).run().findings
        errors = [finding for finding in findings if finding.severity == ERROR and not _SET_ASIDE.search(finding.file)]
        allowed = [*also_allowed, *(("records-missing",) if may_miss_records else ()), *(HOLES if may_have_holes else ())]
        compacted = tuple(f"/{topic.facts.name}-" for topic in self._ledger.live_topics() if topic.facts.is_compacted)
        errors = [
            one
            for one in errors
            if one.code not in allowed and not (one.code in HOLES and any(name in one.file for name in compacted))
        ]
        if errors:
            raise SimulationFailure("verify: " + "; ".join(f"{one.code} {one.file}: {one.message}" for one in errors[:3]))

    def _partitions(self) -> list[PartitionLedger]:
        return [one for topic in self._ledger.live_topics() for one in topic.partitions if self._is_here(one)]

    def end_of(self, partition: PartitionLedger) -> int:
        """Return the present end of a partition's log, flushed or not."""
        with self._disk.without_faults():
            return self._image(self._disk, partition).end

    def _check_place(self, partition: PartitionLedger) -> None:
        """Check that a partition is in one log directory. Raises SimulationFailure."""
        paths = self._paths(self._disk, partition)
        if len(paths) > 1:
            partition.fail(f"it exists twice: {' and '.join(paths)}")

    def _paths(self, disk: SimulatedDisk, partition: PartitionLedger) -> list[str]:
        """Return the paths of a partition; there are two if the node died while a moved replica replaced the old one."""
        paths = (f"{directory}/{partition}" for directory in self._directories)
        return [path for path in paths if disk.is_directory(path)]

    def _path(self, disk: SimulatedDisk, partition: PartitionLedger) -> str | None:
        """Return the path of a partition, or None."""
        return next(iter(self._paths(disk, partition)), None)

    def _is_in(self, directory: str, partition: PartitionLedger, path: str | None) -> bool:
        """Return True if the partition is in a log directory, at `path` or, if that is None, as a future replica.

        A power loss may keep the rename of the old replica to -delete, and lose the rename of the future replica.
        """
        if path is not None:
            return directory == parent_path(path)
        names = self._disk.list_directory(directory)
        return any(name.startswith(f"{partition}.") and name.endswith(DirectoryState.FUTURE.value) for name in names)

    def _kept(self, disk: SimulatedDisk, partition: PartitionLedger) -> _Kept:
        """Return what a partition has on a disk."""
        image = self._image(disk, partition)
        if isinstance(partition, CompactedLedger):
            # A process may die while segments are renamed, so known records count although they are not in the image.
            return _Kept(image.end, partition.known | image.identities())
        return _Kept(partition.reached(image.end, image.holes))

    def _kept_on(self, device: SimulatedDisk, partition: PartitionLedger) -> _Kept:
        """Return what a partition has on the device."""
        if not isinstance(partition, CompactedLedger):
            return self._kept(device, partition)
        path = self._path(device, partition)
        if path is None or path != self._path(self._disk, partition):
            return _Kept(0, partition.durable)
        image = read_device_image(self._disk, device, path)
        return _Kept(image.end, partition.durable | image.identities())

    def _image(self, disk: SimulatedDisk, partition: PartitionLedger) -> LogImage:
        """Return the log of a partition; an empty one if the partition does not exist."""
        path = self._path(disk, partition)
        is_compacted = partition.facts.is_compacted
        return LogImage(0, 0, [], True, []) if path is None else read_log_image(disk, path, is_compacted=is_compacted)


MAX_SEGMENT_BYTES = 1 << 30


class LogImage(NamedTuple):
    """The offsets `start` to `end`; `is_whole`: there are no further bytes that do not belong to them.

    `holes` are offsets [from, to) that are missing between two segments: a power loss took the end of the first one. In a
    compacted topic (`is_compacted`) any offsets may be missing, and these are not holes.
    """

    start: int
    end: int
    batches: list[tuple[bytes, RecordBatch]]  # the segment's bytes, the batch in them
    is_whole: bool
    holes: list[tuple[int, int]]
    is_compacted: bool = False

    def records(self) -> list[tuple[int, SentRecord]]:
        """Return all records with their offsets."""
        return [
            placed for data, batch in self.batches for placed in placed_records(data, batch, is_compacted=self.is_compacted)
        ]

    def identities(self) -> dict[int, bytes]:
        """Return the identity of each record by its offset."""
        return {offset: record.identity for offset, record in self.records()}


def read_log_image(disk: SimulatedDisk, path: str, *, is_compacted: bool = False) -> LogImage:
    """Read the directory of a partition. Raises OSError if it does not exist."""
    start = end = -1
    batches: list[tuple[bytes, RecordBatch]] = []
    holes: list[tuple[int, int]] = []
    is_whole = True
    for segment in read_partition(disk, path).segments:
        if start < 0:
            start = end = segment.base_offset
        if segment.base_offset < end:
            is_whole = False
            break
        if segment.base_offset > end:
            if not is_compacted:
                holes.append((end, segment.base_offset))
            end = segment.base_offset
        data = disk.read_file(segment.log, MAX_SEGMENT_BYTES)
        position = 0
        for batch in whole_batches(data):
            if batch.base_offset != end and not (is_compacted and batch.base_offset > end):
                break
            batches.append((data, batch))
            end, position = batch.next_offset, batch.end_position
        if position != len(data):
            is_whole = False
            break
    return LogImage(max(start, 0), max(end, 0), batches, is_whole, holes, is_compacted)


def read_device_image(seen: SimulatedDisk, device: SimulatedDisk, path: str) -> LogImage:
    """Read what is certainly on the device of a compacted log: up to the first segment that is not completely flushed."""
    image = read_log_image(device, path, is_compacted=True)
    end = image.end
    for segment in read_partition(seen, path).segments:
        data = seen.read_file(segment.log, MAX_SEGMENT_BYTES)
        stored = device.read_file(segment.log, MAX_SEGMENT_BYTES) if device.exists(segment.log) else b""
        if data != stored:
            last = [batch.next_offset for batch in whole_batches(stored)]
            end = last[-1] if last else segment.base_offset
            break
    kept = [(data, batch) for data, batch in image.batches if batch.next_offset <= end]
    return image._replace(end=min(end, image.end), batches=kept)
