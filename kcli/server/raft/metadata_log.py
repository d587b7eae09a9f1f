"""The log of __cluster_metadata-0 with its snapshots: the files of a KRaft node except quorum-state.

    file                                     contains
    ---------------------------------------  -------------------------------------------------------------------------
    <offset>.log .index .timeindex ...       segments, as of any partition; always recovered completely, as by Kafka
    <end offset>-<epoch>.checkpoint          a snapshot: all records below its end offset, the last of them of its epoch
    <end offset>-<epoch>-<n>.checkpoint.part a snapshot that is written (n = 0) or fetched (n = 1); removed at start
    <...>.checkpoint.deleted                 a snapshot about to be removed; removed at start

The log begins at the offset of the oldest snapshot that is kept: a node that lacks older records loads that snapshot.

    a follower                         the log
    ---------------------------------  --------------------------------------------------------------------------------
    gets batches of the leader         takes those before the first one that is incomplete, damaged, or of a later epoch than
                                       the node's (KAFKA-18723: the leader of such a batch is not the one that was asked)
    diverges from the leader           is truncated. Removed segments are durably gone before later records are durable: the
                                       directory is the first path of the next flush
    has fetched a snapshot             is emptied, and begins at the end of the snapshot, if that is undamaged

A node that fails to flush the log stops, and its next start writes again what no snapshot contains (see `_write_again`).
The epoch of the last record is the log's, or the snapshot's if the log is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from kcli.format.file_names import METADATA_TOPIC, FileKind, FileState, metadata_snapshot_name, parse_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.format.record_batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, read_header
from kcli.log.disk.flush_request import write_unflushed
from kcli.log.disk.port import LogDisk, parent_path
from kcli.log.errors import MessageTooLargeError
from kcli.log.file_cache import FileCache
from kcli.log.files.leader_epoch_file_cache import UNDEFINED_OFFSET
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.loading.recovery_journal import KnownOffsets, RecoveryJournal, quarantine_in
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.report_line import WarningLine
from kcli.log.unified_log import UnifiedLog
from kcli.log.wall_time import WallTime
from kcli.server.raft.messages import AppendedControl, ControlEntry, EpochEnd, Records, SnapshotId
from kcli.server.raft.metadata_batches import (
    MAX_BATCH_BYTES,
    EncodedRecords,
    MetadataBatch,
    control_entries_of,
    control_record_of,
    decode_batches,
    encode_control_batch,
)

METADATA_TOPIC_ID = Uuid((1).to_bytes(16, "big"))
# The number of bytes of the log or of a snapshot that are read at a time.
READ_BYTES = 256 * 1024
# A batch is somewhat larger than its records.
_MAX_BATCH_BYTES = MAX_BATCH_BYTES + 64 * 1024
_LOG_SUFFIX = ".log"
# The number in the name of a snapshot that is not complete: a node may write one while it fetches another.
WRITTEN_PART = 0
FETCHED_PART = 1


class MetadataLogError(Exception):
    """A metadata log that cannot be opened or read; the message is one sentence that names the file."""


class MetadataLogConfig(NamedTuple):
    """The settings of the metadata log: Kafka's keys metadata.log.* and metadata.max.*; -1 is no limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = 100 * 1024 * 1024
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    recovery_quarantine_dir: str = ""

    def log_config(self) -> LogConfig:
        """Return the settings of the log: segments are deleted only below a snapshot, not by age or size."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            max_message_bytes=_MAX_BATCH_BYTES,
            retention_bytes=-1,
            retention_ms=-1,
        )


def _write_partition_metadata(disk: LogDisk, directory: str) -> None:
    """Write partition.metadata, without a flush, if it is missing or incomplete after a loss of power."""
    path = f"{directory}/{FileKind.PARTITION_METADATA}"
    try:
        decode_partition_metadata(disk.read_file(path, MAX_TEXT_FILE_BYTES))
    except (FileNotFoundError, FormatError):
        # Its contents are the same for every metadata log.
        write_unflushed(disk, path, encode_partition_metadata(PartitionMetadata(0, METADATA_TOPIC_ID)))


class _RecoveredDisk:
    """The disk that the log uses: the small files next to its segments are not flushed.

    The recovery at each start makes them again, and a flush would only delay the node.
    """

    def __init__(self, disk: LogDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file without a flush."""
        write_unflushed(self._disk, path, data)


class MetadataLog:
    """The log and the snapshots in one directory (ReplicatedLog). Methods raise OSError as the disk does."""

    def __init__(
        self,
        disk: LogDisk,
        log: UnifiedLog,
        snapshots: list[SnapshotId],
        config: MetadataLogConfig,
        wall: WallTime,
        report: Callable[[str], None],
    ) -> None:
        self.disk = disk
        self.log = log
        self.snapshots = snapshots
        self.config = config
        self.directory = log.directory
        self._wall = wall
        self._report = report
        self._appended_ms = 0  # the wall time of the last append
        # For metrics: what was appended as the leader, and what was fetched from leaders.
        self.appended_records = self.fetched_records = 0
        self._flushed_segment: str | None = None
        self._has_removed_files = False
        self._removable: list[str] = []
        self._last_refusal = ""

    @classmethod
    def open(
        cls,
        disk: LogDisk,
        files: FileCache,
        directory: str,
        config: MetadataLogConfig,
        wall: WallTime,
        now_ms: int,
        report: Callable[[str], None] = lambda line: None,
    ) -> MetadataLog:
        """Open and recover the log in `directory` and remove incomplete files; `report` gets a line for what is removed.

        Raises MetadataLogError for a log that cannot be opened, and OSError.
        """
        disk.make_directory(directory)
        _write_partition_metadata(disk, directory)
        _forget_epochs(disk, directory)
        own = cast(LogDisk, _RecoveredDisk(disk))
        settings = config.log_config()
        quarantine = quarantine_in(disk, config.recovery_quarantine_dir, parent_path(directory))
        journal = RecoveryJournal(METADATA_TOPIC, 0, KnownOffsets(), report, quarantine)
        try:
            topic_id = METADATA_TOPIC_ID
            wall_ms = wall.at(now_ms)
            log = open_log(own, files, directory, METADATA_TOPIC, 0, settings, wall_ms, topic_id=topic_id, journal=journal)
        except LogRefusedError as error:
            raise MetadataLogError(
                f"{error.path}: {error.message}; run `kcli verify --repair`, which shows what can be repaired"
            ) from error
        if quarantine is not None:
            quarantine.finish()
        snapshots = []
        for name in disk.list_directory(directory):
            found = parse_file_name(name)
            if found.kind is not FileKind.METADATA_SNAPSHOT or found.base_offset is None or found.epoch is None:
                continue
            if found.state is FileState.CURRENT and found.base_offset >= log.log_start_offset:
                snapshots.append(SnapshotId(found.base_offset, found.epoch))
            else:
                disk.remove(f"{directory}/{name}")
        opened = cls(disk, log, sorted(snapshots), config, wall, report)
        opened._appended_ms = wall_ms
        if not log.log_end_offset:
            # The directory may be new, and the first vote comes before the first record: a voter must not forget it.
            disk.flush_directory(parent_path(directory))
        if log.log_start_offset > 0 and not snapshots:
            raise MetadataLogError(
                f"{directory}: the log begins at offset {log.log_start_offset}, and there is no snapshot of the records below; "
                "restore the snapshot (a .checkpoint) from a copy"
            )
        opened._start_behind_latest_snapshot()
        opened._write_again()
        return opened

    def _start_behind_latest_snapshot(self) -> None:
        """Empty a log that ends below the latest snapshot, and let it begin behind the snapshot."""
        latest = self.latest_snapshot
        log_epoch = self.log.leader_epochs.latest_epoch or 0
        if latest is not None and (latest.epoch > log_epoch or latest.end_offset > self.end_offset) and latest.end_offset > 0:
            self._start_at(latest)
            for path in self.take_removable():
                self.disk.remove(path)

    def _write_again(self) -> None:
        """Write the records behind the latest snapshot again, in place, so that the next flush makes them durable.

        An earlier process may have ended because a flush failed. Linux keeps such pages readable but marks them as clean: a
        later flush succeeds without writing them, and a loss of power would lose what is committed from there on. The records
        in a snapshot were flushed before it was begun.
        """
        latest, log = self.latest_snapshot, self.log.local_log()
        offset = max(self.start_offset, latest.end_offset if latest is not None else 0)
        if offset >= self.end_offset:
            return
        first, position = log.locate(offset)
        for segment in log.segments[log.floor(first.base_offset) :]:
            file = log.files.get(segment.log_path)
            begin = position if segment is first else 0
            for at in range(begin, segment.size_bytes, READ_BYTES):
                self.disk.write_at(segment.log_path, at, file.read_at(at, min(READ_BYTES, segment.size_bytes - at)))

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The latest snapshot, or None."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The earliest snapshot, at whose end the log begins, or None."""
        return self.snapshots[0] if self.snapshots else None

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        epoch = self.log.leader_epochs.latest_epoch
        if epoch is not None:
            return epoch
        return self.snapshots[-1].epoch if self.snapshots else 0

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch of the log that is not above `epoch`, and the offset where it ends (Kafka: RaftLog).

        For an epoch above all of the log: the last epoch and the end of the log. For one below all: that of the earliest
        snapshot, if the log begins behind one, else `epoch` and the start of the log.
        """
        found, end_offset = self.log.leader_epochs.end_offset_for(epoch, self.end_offset)
        if end_offset == UNDEFINED_OFFSET:
            return EpochEnd(self.last_epoch, self.end_offset)
        earliest = self.earliest_snapshot
        if earliest is not None and end_offset == earliest.end_offset and found == epoch:
            return EpochEnd(earliest.epoch, earliest.end_offset)
        return EpochEnd(found, end_offset)

    def control_entries(self) -> list[AppendedControl]:
        """Return the control records of the latest snapshot and of the log behind it. Raises MetadataLogError and OSError."""
        latest = self.latest_snapshot
        found: list[AppendedControl] = []
        if latest is not None:
            first = next(self.snapshot_batches(latest), None)
            if first is not None:
                found += (at._replace(offset=latest.end_offset - 1) for at in control_entries_of(first))
        behind = max(latest.end_offset if latest is not None else 0, self.start_offset)
        for batch in self.batches(behind, self.end_offset, control_only=True):
            found += control_entries_of(batch)
        return found

    def unflushed_paths(self) -> list[str]:
        """Return the paths to flush to make the records durable: segments, and the directory if its files have changed."""
        segments = [path for path in self.log.unflushed_paths() if path.endswith(_LOG_SUFFIX)]
        if self._has_removed_files:
            self._has_removed_files = False
            segments = [self.directory, *(segments or [self.log.local_log().segments[-1].log_path])]
        if segments and segments[-1] != self._flushed_segment:
            self._flushed_segment = segments[-1]
            segments += (self.directory,)
        return segments

    def append(self, batches: bytes, wall_ms: int) -> None:
        """Append complete batches with offsets and epochs. Raises AppendError."""
        self._appended_ms = wall_ms
        self.log.append_as_follower(memoryview(batches), wall_ms)

    def start_epoch(self, epoch: int) -> None:
        """Record that an epoch begins at the end of the log, before its leader appends."""
        self.log.leader_epochs.assign(epoch, self.end_offset, is_written=False)

    def append_control(self, epoch: int, entries: Sequence[ControlEntry], now_ms: int) -> int:
        """Append control records as one batch; return the offset of the first."""
        base_offset, wall_ms = self.end_offset, self._wall.at(now_ms)
        records = [control_record_of(entry) for entry in entries]
        self.append(encode_control_batch(records, base_offset, epoch, wall_ms), wall_ms)
        self.appended_records += len(records)
        return base_offset

    def append_as_leader(self, epoch: int, records: Records, now_ms: int) -> int:
        """Append EncodedRecords as one batch; return the offset of the last. Raises AppendError, also above MAX_BATCH_BYTES."""
        encoded, wall_ms = cast(EncodedRecords, records), self._wall.at(now_ms)
        if encoded.size_bytes > MAX_BATCH_BYTES:
            text = f"a batch of {encoded.size_bytes} bytes of metadata; the largest has {MAX_BATCH_BYTES}"
            raise MessageTooLargeError(text)
        self.append(encoded.batch(self.end_offset, epoch, wall_ms), wall_ms)
        self.appended_records += len(encoded)
        return self.end_offset - 1

    def append_as_follower(self, epoch: int, records: Records, now_ms: int) -> list[AppendedControl]:
        """Append those of the leader's batches that continue the log, as the module's table says; `epoch` is the node's.

        Return their control records.
        """
        data = cast(bytes, records)
        control_entries: list[AppendedControl] = []
        accepted, next_offset, refusal = 0, self.end_offset, ""
        try:
            for batch in decode_batches(memoryview(data)[: _whole_batches(data)], control_only=True):
                if batch.leader_epoch > epoch:
                    break
                if batch.base_offset != next_offset:
                    refusal = f"a batch begins at offset {batch.base_offset} instead of {next_offset}"
                    break
                control_entries += control_entries_of(batch)
                next_offset = batch.last_offset + 1
                accepted += batch.size_bytes
        except FormatError as error:
            refusal = f"the batch of offset {next_offset} is damaged: {error.message}"
        if accepted:
            self.fetched_records += next_offset - self.end_offset
            self.append(data[:accepted], self._wall.at(now_ms))
        text = f"{self.directory}: records of the leader of epoch {epoch} are refused: {refusal}"
        if refusal and text != self._last_refusal:
            # They are fetched again after each backoff.
            self._last_refusal = text
            self._report(WarningLine(text, path=self.directory, error=refusal))
        return control_entries

    def truncate_to(self, offset: int) -> None:
        """Remove the records from `offset` on, which is not below the log's start. Raises MetadataLogError and OSError."""
        if offset < self.start_offset:
            raise MetadataLogError(
                f"{self.directory}: cannot truncate the log to offset {offset}, which is below its start, {self.start_offset}"
            )
        if offset < self.end_offset:
            self._removed(self.log.truncate_to(offset, self._appended_ms))

    def update_high_watermark(self, offset: int) -> None:
        """Learn what is committed: only that may be removed for a snapshot."""
        self.log.update_high_watermark(offset)

    def _start_at(self, snapshot: SnapshotId) -> None:
        """Empty the log, and let it begin behind a snapshot, which becomes the earliest one."""
        self._removed(self.log.truncate_fully_and_start_at(snapshot.end_offset, self._appended_ms))
        while self.snapshots and self.snapshots[0] < snapshot:
            self._removable.append(self._set_aside(self.snapshots.pop(0)))

    def _removed(self, paths: list[str]) -> None:
        self._removable += paths
        self._has_removed_files = True

    def take_removable(self) -> list[str]:
        """Return the files that truncations have renamed, for their removal, and forget them."""
        paths, self._removable = self._removable, []
        return paths

    def _set_aside(self, snapshot: SnapshotId) -> str:
        """Rename a snapshot that is to be removed, and return its new path."""
        deleted = self.snapshot_path(snapshot, FileState.DELETED)
        self.disk.rename(self.snapshot_path(snapshot), deleted)
        return deleted

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Read whole batches from the one that contains `offset` on: at most `max_bytes`, but at least one; None at the end.

        They are copied: a region of a file could be truncated while it is sent. Raises OffsetOutOfRangeError and OSError.
        """
        found = self.log.read(offset, max_bytes, limit_offset=self.end_offset)
        return None if found.file is None else found.file.read_at(found.position, found.size)

    def batches(self, offset: int, limit_offset: int, *, control_only: bool = False) -> Iterator[MetadataBatch]:
        """Yield the batches from the one that contains `offset` to `limit_offset`, or only those with control records.

        Raises MetadataLogError for damage.
        """
        while offset < limit_offset:
            found = self.log.read(offset, READ_BYTES, limit_offset=limit_offset)
            if found.file is None or not found.size:
                return
            data = found.file.read_at(found.position, found.size)
            whole = _whole_batches(data)
            if not whole:
                raise MetadataLogError(f"{found.file.name}: no complete batch at byte {found.position}")
            try:
                for batch in decode_batches(memoryview(data)[:whole], control_only=control_only):
                    if batch.last_offset >= offset and (batch.control_records or not control_only):
                        yield batch
                    offset = max(offset, batch.last_offset + 1)
            except FormatError as error:
                raise MetadataLogError(f"{found.file.name}: {error.message}, near byte {found.position}") from error

    def snapshot_path(self, snapshot: SnapshotId, state: FileState = FileState.CURRENT) -> str:
        """Return the path of a snapshot."""
        return f"{self.directory}/{metadata_snapshot_name(snapshot.end_offset, snapshot.epoch, state)}"

    def snapshot_batches(self, snapshot: SnapshotId) -> Iterator[MetadataBatch]:
        """Yield the batches of a snapshot. Raises MetadataLogError for damage."""
        path = self.snapshot_path(snapshot)
        yield from read_snapshot_file(self.disk, path)

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """Return the size in bytes of a snapshot that FetchSnapshot may ask for, None if this node does not have it.

        The snapshot at offset 0 is of the node that was formatted with it, and no other node gets it.
        """
        if snapshot.end_offset == 0 or snapshot not in self.snapshots:
            return None
        return self.disk.size(self.snapshot_path(snapshot))

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Read a piece of a snapshot."""
        file = self.disk.open_file(self.snapshot_path(snapshot))
        try:
            return file.read_at(position, max_bytes)
        finally:
            file.close()

    def part_path(self, snapshot: SnapshotId, number: int = WRITTEN_PART) -> str:
        """Return the path of a snapshot while it is written by this node, or fetched (FETCHED_PART)."""
        stem, dot, suffix = metadata_snapshot_name(snapshot.end_offset, snapshot.epoch).rpartition(".")
        return f"{self.directory}/{stem}-{number}{dot}{suffix}{FileState.PARTIAL.value}"

    def begin_snapshot(self, snapshot: SnapshotId) -> None:
        """Begin the file of a snapshot that is fetched from the leader."""
        self.drop_snapshot(snapshot)
        self.disk.append(self.part_path(snapshot, FETCHED_PART), b"")

    def append_snapshot(self, snapshot: SnapshotId, data: Records) -> None:
        """Append the next bytes of a snapshot that is fetched."""
        self.disk.append(self.part_path(snapshot, FETCHED_PART), cast(bytes, data))

    def drop_snapshot(self, snapshot: SnapshotId) -> None:
        """Remove what was fetched of a snapshot."""
        paths = [self.part_path(snapshot, FETCHED_PART)]
        if snapshot not in self.snapshots:
            paths.append(self.snapshot_path(snapshot))
        for path in paths:
            if self.disk.exists(path):
                self.disk.remove(path)

    def check_snapshot(self, snapshot: SnapshotId) -> Iterator[None]:
        """Read a snapshot that is fetched, READ_BYTES in each step. Raises MetadataLogError for damage, and OSError.

        A voter whose log made room for a damaged snapshot would have lost what it has acknowledged.
        """
        path, left = self.part_path(snapshot, FETCHED_PART), READ_BYTES
        last: MetadataBatch | None = None
        for batch in read_snapshot_file(self.disk, path, control_only=True):
            if last is None and not batch.begins_snapshot:
                raise MetadataLogError(f"{path}: the first batch is not the header of a snapshot")
            last, left = batch, left - batch.size_bytes
            if left <= 0:
                yield
                left = READ_BYTES
        if last is None or not last.ends_snapshot:
            raise MetadataLogError(f"{path}: there is no footer at the end, so records may be missing")

    def name_snapshot(self, snapshot: SnapshotId) -> tuple[str, ...]:
        """Rename a snapshot that is fetched and flushed; return the paths to flush before it replaces the log.

        A loss of power could else keep the removal of the log without the snapshot, and with it lose what is acknowledged.
        """
        self.disk.rename(self.part_path(snapshot, FETCHED_PART), self.snapshot_path(snapshot))
        return (self.directory,)

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        """Let a snapshot whose file is durable under its name replace the log, which begins behind it."""
        self.snapshots = sorted({*self.snapshots, snapshot})
        self._start_at(snapshot)

    def publish_snapshot(self, snapshot: SnapshotId) -> None:
        """Rename a snapshot that is complete and flushed."""
        self.disk.rename(self.part_path(snapshot), self.snapshot_path(snapshot))
        self.snapshots = sorted({*self.snapshots, snapshot})

    # ---------------------------------------------------------------------------------------------------------- cleaning

    def clean(self, now_ms: int) -> list[str]:
        """Drop the snapshots beyond the retention, and the log below the oldest one left; return the files to remove later."""
        removable: list[str] = []
        while len(self.snapshots) > 1 and self._is_expired(self.snapshots[0], now_ms):
            self.log.maybe_increment_log_start_offset(self.snapshots[1].end_offset)
            removable += self.log.delete_old_segments(now_ms)
            removable.append(self._set_aside(self.snapshots.pop(0)))
        return removable

    def _is_expired(self, snapshot: SnapshotId, now_ms: int) -> bool:
        config = self.config
        if config.retention_bytes >= 0:
            total = self.log.size_bytes + sum(self.disk.size(self.snapshot_path(kept)) for kept in self.snapshots)
            if total > config.retention_bytes:
                return True
        if config.retention_ms < 0:
            return False
        try:
            header = next(self.snapshot_batches(snapshot), None)
        except MetadataLogError as error:
            # No node can load it. A later one has all that is in it.
            text = f"{error}: this old snapshot is damaged, and is removed before its time"
            self._report(WarningLine(text, path=self.snapshot_path(snapshot), error=str(error)))
            return True
        if header is None or not header.control_records or header.control_records[0].message is None:
            return True
        return bool(now_ms - header.control_records[0].message.last_contained_log_timestamp > config.retention_ms)

    def close(self) -> None:
        """Close the log, as a clean stop does."""
        self.log.close()


def _forget_epochs(disk: LogDisk, directory: str) -> None:
    """Remove leader-epoch-checkpoint, which the recovery makes again: after a loss of power a part of it may look complete."""
    path = f"{directory}/{FileKind.LEADER_EPOCH_CHECKPOINT}"
    if disk.exists(path):
        disk.remove(path)


def _whole_batches(data: bytes) -> int:
    """Return the number of bytes of `data` that are complete batches."""
    end = 0
    while end + HEADER_BYTES <= len(data):
        size_bytes = read_header(data, end).batch_length + LOG_OVERHEAD_BYTES
        if size_bytes < HEADER_BYTES or end + size_bytes > len(data):
            break
        end += size_bytes
    return end


def read_snapshot_file(disk: LogDisk, path: str, *, control_only: bool = False) -> Iterator[MetadataBatch]:
    """Yield the batches of a snapshot or of bootstrap.checkpoint; with `control_only` data batches have no records.

    Raises MetadataLogError for damage, and OSError.
    """
    file = disk.open_file(path)
    try:
        position, size_bytes = 0, file.size()
        chunk_bytes = READ_BYTES
        while position < size_bytes:
            data = file.read_at(position, chunk_bytes)
            whole = _whole_batches(data)
            if not whole and len(data) < size_bytes - position and chunk_bytes <= 2 * _MAX_BATCH_BYTES:
                chunk_bytes *= 2
                continue
            if not whole:
                raise MetadataLogError(f"{path}: no complete batch at byte {position}")
            try:
                yield from decode_batches(memoryview(data)[:whole], control_only=control_only)
            except FormatError as error:
                raise MetadataLogError(f"{path}: {error.message}, near byte {position}") from error
            position += whole
    finally:
        file.close()
