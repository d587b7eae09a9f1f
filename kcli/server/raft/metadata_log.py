"""The log of __cluster_metadata-0 with its snapshots: what lies on the disk of a KRaft node, below the election.

    file                                     is
    ---------------------------------------  -------------------------------------------------------------------------
    <offset>.log .index .timeindex ...       segments, as of any partition; always recovered whole, as by Kafka
    <end offset>-<epoch>.checkpoint          a snapshot: all records below its end offset, the last of them of its epoch
    <end offset>-<epoch>-<n>.checkpoint.part a snapshot being written; removed at start
    <...>.checkpoint.deleted                 a snapshot about to be removed; removed at start

The log begins at the offset of the oldest snapshot that is kept: a node that lacks more loads that and goes on behind it.
A node whose disk fails a flush of it ends, and its next start writes what no snapshot holds once more (see `_write_again`).
The epoch of the last record is the log's, or the snapshot's where the log holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, FileKind, FileState, metadata_snapshot_name, parse_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.format.record_batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, read_header
from kcli.log.disk import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.flush_request import write_unflushed
from kcli.log.log_config import LogConfig
from kcli.log.log_directory import parent_path
from kcli.log.log_opener import open_log
from kcli.log.log_segment import LogRefusedError
from kcli.log.recovery_journal import KnownOffsets, RecoveryJournal, quarantine_in
from kcli.log.unified_log import UnifiedLog
from kcli.server.raft.metadata_batches import MAX_SNAPSHOT_BATCH_BYTES, MetadataBatch, decode_batches

METADATA_TOPIC_ID = Uuid((1).to_bytes(16, "big"))
# How much of the log or of a snapshot is read at a time.
READ_BYTES = 256 * 1024
# A batch of records has a little more than its records.
_MAX_BATCH_BYTES = MAX_SNAPSHOT_BATCH_BYTES + 64 * 1024


_LOG_SUFFIX = ".log"


class MetadataLogError(Exception):
    """A metadata log that cannot be opened or read; the message is one sentence that names the file."""


class SnapshotId(NamedTuple):
    """A snapshot: of all records below `end_offset`, the last of which is of `epoch`."""

    end_offset: int
    epoch: int


class MetadataLogConfig(NamedTuple):
    """The settings of the metadata log, by Kafka's keys metadata.log.* and metadata.max.*; -1 stands for no bound."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = 100 * 1024 * 1024
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    recovery_quarantine_dir: str = ""

    def log_config(self) -> LogConfig:
        """The same as the settings of a log: nothing goes by age or size but below a snapshot."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            max_message_bytes=_MAX_BATCH_BYTES,
            retention_bytes=-1,
            retention_ms=-1,
        )


def _write_partition_metadata(disk: LogDisk, directory: str) -> None:
    """Write partition.metadata where it is missing, or torn by a power cut: it is not waited for."""
    path = f"{directory}/{FileKind.PARTITION_METADATA}"
    try:
        decode_partition_metadata(disk.read_file(path, MAX_TEXT_FILE_BYTES))
    except (FileNotFoundError, FormatError):
        # What it says of this log is known anyway.
        write_unflushed(disk, path, encode_partition_metadata(PartitionMetadata(0, METADATA_TOPIC_ID)))


class _RecoveredDisk:
    """The disk as the log itself gets it: the small files beside its segments are not waited for.

    A metadata log is recovered whole at each start, and they with it; waiting for the device would only hold the node.
    """

    def __init__(self, disk: LogDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file whole, without a flush."""
        write_unflushed(self._disk, path, data)


class MetadataLog:
    """The log and the snapshots in one directory. Methods raise OSError as the disk does."""

    def __init__(self, disk: LogDisk, log: UnifiedLog, snapshots: list[SnapshotId], config: MetadataLogConfig) -> None:
        self.disk = disk
        self.log = log
        self.snapshots = snapshots
        self.config = config
        self.directory = log.directory
        self._flushed_segment: str | None = None
        self._unflushed_directories: list[str] = []

    @classmethod
    def open(
        cls,
        disk: LogDisk,
        files: FileCache,
        directory: str,
        config: MetadataLogConfig,
        now_ms: int,
        report: Callable[[str], None] = lambda line: None,
    ) -> MetadataLog:
        """Open what is in `directory`, recover it, remove what was left half done; `report` takes a line for what goes.

        Raises MetadataLogError for what cannot be opened, and OSError.
        """
        is_new = not disk.is_directory(directory)
        disk.make_directory(directory)
        _write_partition_metadata(disk, directory)
        _forget_epochs(disk, directory)
        own: Any = _RecoveredDisk(disk)
        settings = config.log_config()
        quarantine = quarantine_in(disk, config.recovery_quarantine_dir, parent_path(directory))
        journal = RecoveryJournal(METADATA_TOPIC, 0, KnownOffsets(), report, quarantine)
        try:
            topic_id = METADATA_TOPIC_ID
            log = open_log(own, files, directory, METADATA_TOPIC, 0, settings, now_ms, topic_id=topic_id, journal=journal)
        except LogRefusedError as error:
            raise MetadataLogError(f"{error.path}: {error.message}; `kcli verify --repair` tells what can be done") from error
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
        opened = cls(disk, log, sorted(snapshots), config)
        if is_new:
            opened._unflushed_directories.append(directory.rpartition("/")[0] or "/")
        if log.log_start_offset > 0 and not snapshots:
            raise MetadataLogError(
                f"{directory}: the log begins at offset {log.log_start_offset} and there is no snapshot of what lies below; "
                "restore the snapshot (a .checkpoint) from a copy"
            )
        opened._start_behind_latest_snapshot(now_ms)
        opened._write_again()
        return opened

    def _start_behind_latest_snapshot(self, now_ms: int) -> None:
        """A log that ends below the latest snapshot has nothing to add to it: it begins anew behind it."""
        latest = self.latest_snapshot
        log_epoch = self.log.leader_epochs.latest_epoch or 0
        if latest is not None and (latest.epoch > log_epoch or latest.end_offset > self.end_offset) and latest.end_offset > 0:
            for path in self.log.truncate_fully_and_start_at(latest.end_offset, now_ms):
                self.disk.remove(path)

    def _write_again(self) -> None:
        """Write what lies behind the latest snapshot once more, in its place, so that the next flush brings it to the device.

        A process before this one may have ended because a flush failed. Of the pages that are lost then Linux shows the bytes
        and no longer writes them, so that a later flush succeeds without them; behind such a hole nothing that is committed
        would outlast a loss of power. What a snapshot holds was committed, and flushed, when that began.
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
        """The first offset in the log."""
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot, or None."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        epoch = self.log.leader_epochs.latest_epoch
        if epoch is not None:
            return epoch
        return self.snapshots[-1].epoch if self.snapshots else 0

    def unflushed_paths(self) -> list[str]:
        """What a flush must take for the records to last: the segments, and the directory where a new one was made."""
        segments = [path for path in self.log.unflushed_paths() if path.endswith(_LOG_SUFFIX)]
        if segments and segments[-1] != self._flushed_segment:
            self._flushed_segment = segments[-1]
            segments += (self.directory, *self._unflushed_directories)
            self._unflushed_directories.clear()
        return segments

    def append(self, batches: bytes, now_ms: int) -> None:
        """Append whole batches that have their offsets and epochs. Raises AppendError."""
        self.log.append_as_follower(memoryview(batches), now_ms)

    def read(self, offset: int, limit_offset: int, *, control_only: bool = False) -> Iterator[MetadataBatch]:
        """The batches from the one that holds `offset` on, below `limit_offset`; or those of control records alone.

        Raises MetadataLogError for damage.
        """
        while offset < limit_offset:
            found = self.log.read(offset, READ_BYTES, limit_offset=limit_offset)
            if found.file is None or not found.size:
                return
            data = found.file.read_at(found.position, found.size)
            whole = _whole_batches(data)
            if not whole:
                raise MetadataLogError(f"{found.file.name}: no whole batch at byte {found.position}")
            try:
                for batch in decode_batches(memoryview(data)[:whole], control_only=control_only):
                    if batch.last_offset >= offset and (batch.control_records or not control_only):
                        yield batch
                    offset = max(offset, batch.last_offset + 1)
            except FormatError as error:
                raise MetadataLogError(f"{found.file.name}: {error.message}, near byte {found.position}") from error

    def snapshot_path(self, snapshot: SnapshotId, state: FileState = FileState.CURRENT) -> str:
        """Where a snapshot lies."""
        return f"{self.directory}/{metadata_snapshot_name(snapshot.end_offset, snapshot.epoch, state)}"

    def read_snapshot(self, snapshot: SnapshotId) -> Iterator[MetadataBatch]:
        """The batches of a snapshot. Raises MetadataLogError for damage."""
        path = self.snapshot_path(snapshot)
        yield from read_snapshot_file(self.disk, path)

    def part_path(self, snapshot: SnapshotId) -> str:
        """Where a snapshot is written before it is whole."""
        stem, dot, suffix = metadata_snapshot_name(snapshot.end_offset, snapshot.epoch).rpartition(".")
        return f"{self.directory}/{stem}-0{dot}{suffix}{FileState.PARTIAL.value}"

    def publish_snapshot(self, snapshot: SnapshotId) -> None:
        """Give a snapshot that was written and flushed its name."""
        self.disk.rename(self.part_path(snapshot), self.snapshot_path(snapshot))
        self.snapshots = sorted({*self.snapshots, snapshot})

    # ---------------------------------------------------------------------------------------------------------- cleaning

    def clean(self, now_ms: int) -> list[str]:
        """Let go of snapshots beyond the retention and of the log below the oldest kept -> files to be removed later."""
        removable: list[str] = []
        while len(self.snapshots) > 1 and self._is_expired(self.snapshots[0], now_ms):
            self.log.maybe_increment_log_start_offset(self.snapshots[1].end_offset)
            removable += self.log.delete_old_segments(now_ms)
            oldest = self.snapshots.pop(0)
            deleted = self.snapshot_path(oldest, FileState.DELETED)
            self.disk.rename(self.snapshot_path(oldest), deleted)
            removable.append(deleted)
        return removable

    def _is_expired(self, snapshot: SnapshotId, now_ms: int) -> bool:
        config = self.config
        if config.retention_bytes >= 0:
            total = self.log.size_bytes + sum(self.disk.size(self.snapshot_path(kept)) for kept in self.snapshots)
            if total > config.retention_bytes:
                return True
        if config.retention_ms < 0:
            return False
        header = next(self.read_snapshot(snapshot), None)
        if header is None or not header.control_records or header.control_records[0].message is None:
            return True
        return bool(now_ms - header.control_records[0].message.last_contained_log_timestamp > config.retention_ms)

    def close(self) -> None:
        """Close the log, as a clean stop does."""
        self.log.close()


def _forget_epochs(disk: LogDisk, directory: str) -> None:
    """Have the recovery make leader-epoch-checkpoint anew: a power cut may leave it torn, and torn it may still read well."""
    path = f"{directory}/{FileKind.LEADER_EPOCH_CHECKPOINT}"
    if disk.exists(path):
        disk.remove(path)


def _whole_batches(data: bytes) -> int:
    """How many bytes of `data` are whole batches."""
    end = 0
    while end + HEADER_BYTES <= len(data):
        size_bytes = read_header(data, end).batch_length + LOG_OVERHEAD_BYTES
        if size_bytes < HEADER_BYTES or end + size_bytes > len(data):
            break
        end += size_bytes
    return end


def read_snapshot_file(disk: LogDisk, path: str) -> Iterator[MetadataBatch]:
    """The batches of a snapshot or of bootstrap.checkpoint. Raises MetadataLogError for damage, OSError as the disk does."""
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
                raise MetadataLogError(f"{path}: no whole batch at byte {position}")
            try:
                yield from decode_batches(memoryview(data)[:whole])
            except FormatError as error:
                raise MetadataLogError(f"{path}: {error.message}, near byte {position}") from error
            position += whole
    finally:
        file.close()
