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
from kcli.log.disk.flush_request import Flushed, FlushRequest, replace_file
from kcli.log.disk.port import Disk, join_path
from kcli.log.unified_log import UnifiedLog


class EpochFollower:
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

    def follow(self, log: UnifiedLog) -> None:
        """Write the file of a log after its appends from now on."""
        log.leader_epochs.defer = partial(self._note, log)

    def _note(self, log: UnifiedLog) -> bool:
        if self._wake is None:
            return False
        self._waiting[log] = None
        self._wake(0)
        return True

    def run(self, now_ms: int) -> int:
        """Begin to write files, unless a write is under way; return NEVER_MS, because each write begins the next."""
        if not self._is_busy:
            self._queue(self._next(None))
        return NEVER_MS

    def _next(self, error: OSError | None) -> FlushRequest | None:
        request = None
        while self._waiting and request is None:
            log = next(iter(self._waiting))
            del self._waiting[log]
            request = self.request(log, self._next)
        self._is_busy = request is not None
        return request

    def request(self, log: UnifiedLog, done: Flushed) -> FlushRequest | None:
        """Return the flush that writes a log's file and calls `done`; None if this is not necessary or has failed."""
        epochs = log.leader_epochs
        if not epochs.is_behind or not self._is_live(log):
            return None
        version = epochs.begin_to_follow()

        def is_wanted() -> bool:
            return epochs.version == version and self._is_live(log)

        def ended(error: OSError | None) -> FlushRequest | None:
            if not is_wanted():
                return done(None)  # the directory may have been renamed
            if error is None:
                epochs.followed()
            else:
                self._fail(log, error)
            return done(error)

        path = join_path(log.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        try:
            return replace_file(self._disk, path, epochs.encoded(), ended, is_wanted=is_wanted)
        except OSError as error:
            self._fail(log, error)
            return None
