"""Writes the leader-epoch-checkpoint files of logs after their appends, so that no append waits for the device.

    step                                               state after a crash
    -------------------------------------------------  ---------------------------------------------------------------
    the first record of an epoch is appended           the epoch is not in the file; recovery finds it in the records,
                                                       which are above the recovery point
    the file is replaced (kcli.log.disk.flush_request) the complete old file or the complete new one
    the log is flushed and the file is up to date      the epoch is in the file; only now does the recovery point rise

Kafka writes the file before the append and waits for the device. One file is written at a time, so that other flushes run in
between when many partitions get their first record together. A future log is not in service and writes its file at once. The
file of a log that has left service is not written, because a new log may have the same directory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.format.file_names import FileKind
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.flush_request import FlushRequest, FlushSequence, begin_flushes, replace_file
from kcli.log.disk.port import Disk, join_path
from kcli.log.unified_log import UnifiedLog


class LeaderEpochFileWriter:
    """The logs whose leader-epoch-checkpoint is out of date.

    `queue` requests a flush, `fail(log, error)` handles a disk error, `is_live(log)` returns whether a log is in service.
    """

    def __init__(
        self,
        disk: Disk,
        queue: Callable[[FlushRequest | None], None],
        fail: Callable[[UnifiedLog, OSError | None], None],
        is_live: Callable[[UnifiedLog], bool],
    ) -> None:
        self._disk = disk
        self._queue = queue
        self._fail = fail
        self._is_live = is_live
        self._waiting: dict[UnifiedLog, None] = {}
        self._is_busy = False
        self._wake: Callable[[int], None] | None = None

    def on_work(self, wake: Callable[[int], None]) -> None:
        """Call `wake(due_ms)` when there is work; before this is set, files are written at once."""
        self._wake = wake

    def defer_writes(self, log: UnifiedLog) -> None:
        """Write the file of a log after its appends from now on."""
        log.leader_epochs.defer = partial(self._note, log)

    def _note(self, log: UnifiedLog) -> bool:
        if self._wake is None:
            return False
        self._waiting[log] = None
        self._wake(0)
        return True

    def run(self, now_ms: int) -> int:
        """Start writing the outdated files unless a write is in progress. Always returns NEVER_MS."""
        if not self._is_busy:
            self._is_busy = True
            self._queue(begin_flushes(self._write_waiting()))
        return NEVER_MS

    def _write_waiting(self) -> FlushSequence[None]:
        while self._waiting:
            log = next(iter(self._waiting))
            del self._waiting[log]
            yield from self.write(log)
        self._is_busy = False

    def write(self, log: UnifiedLog) -> FlushSequence[None]:
        """Write a log's file if it is behind and the log is in service; `fail` gets an error of the disk."""
        epochs = log.leader_epochs
        if not epochs.is_unwritten or not self._is_live(log):
            return
        version = epochs.begin_write()

        def is_wanted() -> bool:
            return epochs.version == version and self._is_live(log)

        path = join_path(log.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        try:
            yield from replace_file(self._disk, path, epochs.encoded(), is_wanted)
        except OSError as error:
            if is_wanted():  # else the directory may have another name by now
                self._fail(log, error)
        else:
            if is_wanted():
                epochs.written()
