"""A log directory of a broker: locked, read at the start, marked after a clean stop, offline after an error.

    when                 what (Kafka: LogManager)
    -------------------  ------------------------------------------------------------------------------------------------
    open                 the directory is made if necessary and locked: `.lock` has a POSIX record lock, as Kafka's, so that
                         kcli and Kafka exclude each other; `.kafka_cleanshutdown` has the broker epoch of a clean stop
    begin_loading        `.kafka_cleanshutdown` is removed first, so that a crash during loading is an unclean stop; then the
                         offset checkpoints are read; the kcli-uncleanable-partitions of an earlier kcli is removed
    finish               after a clean stop: the checkpoints are replaced together, then `.kafka_cleanshutdown` is written if
                         all logs were loaded; the lock is released
    fail                 the directory is offline until the broker restarts; the lock is released

`kcli.log.files.log_directory` reads the files of a log directory without a broker.

The offset checkpoints of a log directory, which a broker replaces as a whole while it runs, without waiting for the device.

    file                               contents, per partition                          missing or malformed
    ---------------------------------  -----------------------------------------------  ------------------------------
    recovery-point-offset-checkpoint   the offset below which the log is on the device  0: the whole log is recovered
    log-start-offset-checkpoint        the log start offset, if it is above the base    that base offset
                                       offset of the first segment
    replication-offset-checkpoint      the high watermark                               the log start offset
    cleaner-offset-checkpoint          the end of the cleaned part of the log           the log start offset

Everything in an offset checkpoint can be derived from the logs at some cost. A malformed one is therefore reported and treated
as empty, as Kafka does with the first two. (With a malformed third file Kafka takes the log directory offline; a leader raises
the high watermark again by itself.)

    write                                    effect
    ---------------------------------------  ---------------------------------------------------------------------
    while no other write is in progress      by way of `<name>.tmp`, see kcli.log.disk.flush_request
    while another write is in progress       begins when that one has ended; of several writes only the last is done
    of the bytes that the file has           none
    at a start (`write_now`)                 waits for the device
    at a clean stop (`last_bytes`)           the caller replaces the file; a write in progress ends without effect
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import CleanShutdown, decode_clean_shutdown, encode_clean_shutdown
from kcli.format.primitives import FormatError, TopicPartition
from kcli.log.disk.flush_request import FlushRequest, FlushSequence, begin_flushes, replace_files
from kcli.log.disk.port import Disk, join_path
from kcli.log.errors import LogDirLockedError
from kcli.log.report_line import WarningLine
from kcli.log.slices import Slices

CLEAN_SHUTDOWN_VERSION = 0
CHECKPOINT_KINDS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)
OnError = Callable[[OSError], None]


class OffsetCheckpointFile:
    """One of the four offset checkpoints; `_written` are the bytes that it is known to have."""

    __slots__ = ("_disk", "_in_flight", "_next", "_times_written_now", "_written", "path")

    def __init__(self, disk: Disk, directory: str, kind: FileKind) -> None:
        self.path = join_path(directory, kind.value)
        self._disk = disk
        self._written: bytes | None = None
        self._in_flight = False
        self._next: bytes | None = None
        self._times_written_now = 0

    def read(self, report: Callable[[str], None]) -> dict[TopicPartition, int]:
        """Return the offsets; a malformed file is reported and treated as empty. Raises OSError."""
        if not self._disk.exists(self.path):
            return {}
        data = self._disk.read_file(self.path, limits.MAX_TEXT_FILE_BYTES)
        try:
            offsets = decode_offset_checkpoint(data).offsets()
        except FormatError as error:
            text = f"{self.path}: {error.message}; it is treated as empty and will be rewritten"
            report(WarningLine(text, path=self.path, error=error.message))
            return {}
        self._written = data
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int], on_error: OnError) -> FlushRequest | None:
        """Begin to replace the file; None if nothing changed or an earlier write has to end first.

        `on_error` is called if the disk refuses the file.
        """
        data = _encode(offsets)
        if self._in_flight:
            self._next = data
            return None
        return begin_flushes(self._replace(data, on_error))

    def write_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file and wait for the device. Raises OSError."""
        data = self.last_bytes(offsets)
        if data is not None:
            self._disk.write_file(self.path, data)
            self._written = data

    def last_bytes(self, offsets: Mapping[TopicPartition, int]) -> bytes | None:
        """Return the bytes with which the caller replaces the file, None if it has them; a write in progress has no effect."""
        data = _encode(offsets)
        self._next = None
        if not self._in_flight and data == self._written:
            return None
        self._times_written_now += 1
        self._in_flight = False
        return data

    def _replace(self, data: bytes, on_error: OnError) -> FlushSequence[None]:
        times = self._times_written_now
        while data != self._written:
            self._in_flight, self._written = True, None
            try:
                yield from replace_files(self._disk, {self.path: data}, lambda: times == self._times_written_now)
            except OSError as error:
                self._in_flight, self._next = False, None
                on_error(error)
                return
            if times != self._times_written_now:
                return  # `last_bytes` were written, and the temporary file of this write was replaced by theirs
            self._written = data
            data, self._next = data if self._next is None else self._next, None
        self._in_flight = False


def _encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_offset_checkpoint(PartitionOffset(topic, partition, offset) for (topic, partition), offset in offsets.items())


class LogDir:
    """One entry of log.dirs, by its path and the directory id of its meta.properties.

    `offline_reason` is None while it is online. `clean_broker_epoch` is the epoch in `.kafka_cleanshutdown`, None without one.
    `is_loaded` is set when all its logs are open.
    """

    __slots__ = (
        "_clean_path",
        "_disk",
        "_unlock",
        "checkpoints",
        "clean_broker_epoch",
        "directory_id",
        "had_clean_shutdown",
        "is_loaded",
        "offline_reason",
        "path",
    )

    def __init__(self, disk: Disk, path: str, directory_id: Uuid | None) -> None:
        self.path = path
        self.directory_id = directory_id
        self.offline_reason: str | None = None
        self.had_clean_shutdown = False
        self.clean_broker_epoch: int | None = None
        self.is_loaded = False
        self.checkpoints = {kind: OffsetCheckpointFile(disk, path, kind) for kind in CHECKPOINT_KINDS}
        self._disk = disk
        self._clean_path = join_path(path, FileKind.CLEAN_SHUTDOWN.value)
        self._unlock: Callable[[], None] | None = None

    @property
    def is_online(self) -> bool:
        """Whether the directory is in use."""
        return self.offline_reason is None

    def open(self) -> None:
        """Make the directory if necessary, lock it and read `.kafka_cleanshutdown`.

        Raises LogDirLockedError if another process holds the lock, and OSError.
        """
        if not self._disk.is_directory(self.path):
            self._disk.make_directory(self.path)
        self._unlock = self._disk.lock(join_path(self.path, FileKind.LOCK.value))
        if self._unlock is None:
            raise LogDirLockedError(
                f"{self.path}: another process uses this log directory (it holds the lock on .lock): stop that broker, "
                "or name another directory in log.dirs"
            )
        self.had_clean_shutdown = self._disk.exists(self._clean_path)
        if self.had_clean_shutdown:
            try:
                data = self._disk.read_file(self._clean_path, limits.MAX_TEXT_FILE_BYTES)
                self.clean_broker_epoch = decode_clean_shutdown(data).broker_epoch
            except FormatError:
                self.clean_broker_epoch = None  # as in Kafka: a clean stop of an unknown epoch

    def begin_loading(self, report: Callable[[str], None]) -> Slices[dict[FileKind, dict[TopicPartition, int]]]:
        """Remove `.kafka_cleanshutdown`, read the checkpoints and return the offsets by kind. Raises OSError."""
        if self.had_clean_shutdown:
            self._disk.remove(self._clean_path)
            self._disk.flush_directory(self.path)
        # It states which logs an earlier broker did not clean any more; this start cleans them again.
        leftover = join_path(self.path, FileKind.UNCLEANABLE_PARTITIONS.value)
        if self._disk.exists(leftover):
            self._disk.remove(leftover)
        found = {}
        for kind, checkpoint in self.checkpoints.items():
            found[kind] = checkpoint.read(report)
            yield
        return found

    def finish(self, broker_epoch: int, offsets: Mapping[FileKind, Mapping[TopicPartition, int]]) -> FlushSequence[None]:
        """Write the checkpoints and `.kafka_cleanshutdown`, flush them and release the lock. Raises OSError."""
        files = {}
        for kind, checkpoint in self.checkpoints.items():
            data = checkpoint.last_bytes(offsets[kind])
            if data is not None:
                files[checkpoint.path] = data
            yield ()
        yield from replace_files(self._disk, files)
        if self.had_clean_shutdown or self.is_loaded:
            mark = encode_clean_shutdown(CleanShutdown(CLEAN_SHUTDOWN_VERSION, broker_epoch))
            yield from replace_files(self._disk, {self._clean_path: mark})
        self.unlock()

    def fail(self, reason: str) -> None:
        """Take the directory offline; `reason` is a sentence."""
        self.offline_reason = reason
        self.unlock()

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
