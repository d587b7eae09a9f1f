"""A log directory of a broker: locked, read at the start, marked after a clean stop, offline after an error.

    when                 what (Kafka: LogManager)
    -------------------  ------------------------------------------------------------------------------------------------
    open                 the directory is made if necessary and locked: `.lock` has a POSIX record lock, as Kafka's, so that
                         kcli and Kafka exclude each other; `.kafka_cleanshutdown` has the broker epoch of a clean stop
    begin_loading        `.kafka_cleanshutdown` is removed first, so that a crash during loading is an unclean stop; then the
                         offset checkpoints are read; the kcli-uncleanable-partitions of an earlier kcli is removed
    finish               after a clean stop: the checkpoints are written, then `.kafka_cleanshutdown` if all logs were loaded;
                         the lock is released
    fail                 the directory is offline until the broker restarts; the lock is released

`kcli.log.files.log_directory` reads the files of a log directory without a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import CleanShutdown, decode_clean_shutdown, encode_clean_shutdown
from kcli.format.primitives import FormatError, TopicPartition
from kcli.log.disk.port import Disk, join_path
from kcli.log.errors import LogDirLockedError
from kcli.log.files.checkpoint_files import OffsetCheckpointFile

CLEAN_SHUTDOWN_VERSION = 0
CHECKPOINT_KINDS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)


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

    def begin_loading(self, report: Callable[[str], None]) -> dict[FileKind, dict[TopicPartition, int]]:
        """Remove `.kafka_cleanshutdown`, read the checkpoints and return the offsets by kind. Raises OSError."""
        if self.had_clean_shutdown:
            self._disk.remove(self._clean_path)
            self._disk.flush_directory(self.path)
        # It states which logs an earlier broker did not clean any more; this start cleans them again.
        leftover = join_path(self.path, FileKind.UNCLEANABLE_PARTITIONS.value)
        if self._disk.exists(leftover):
            self._disk.remove(leftover)
        return {kind: checkpoint.read(report) for kind, checkpoint in self.checkpoints.items()}

    def finish(self, broker_epoch: int, offsets: Mapping[FileKind, Mapping[TopicPartition, int]]) -> None:
        """Write the checkpoints and `.kafka_cleanshutdown`, flush them and release the lock. Raises OSError."""
        try:
            for kind, checkpoint in self.checkpoints.items():
                checkpoint.write_now(offsets[kind])
            if self.had_clean_shutdown or self.is_loaded:
                mark = encode_clean_shutdown(CleanShutdown(CLEAN_SHUTDOWN_VERSION, broker_epoch))
                self._disk.write_file(self._clean_path, mark)
        finally:
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
