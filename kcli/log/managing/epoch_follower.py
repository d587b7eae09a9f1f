"""Has the leader-epoch-checkpoints of logs follow behind their appends, so that no append waits for the device.

    step                                               a crash then leaves
    -------------------------------------------------  ---------------------------------------------------------------
    the first record of an epoch is appended           the file without the epoch, which recovery finds in the records:
                                                       they lie above the recovery point
    the file is replaced (kcli.log.disk.flush_request)      the old file or the new one, whole
    a flush of the log is done, and the file follows   the epoch in the file: only now may the recovery point rise

Kafka writes the file before the append, and waits for the device. One file is written at a time, for the flushes of others to
come in between: many partitions get their first record together. Replicas that move here are not in service, and write theirs
at once. A log that went out of service is let be: its directory may be that of another of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.format.file_names import FileKind
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.flush_request import Flushes, FlushRequest, begin_flushes, replace_file
from kcli.log.disk.port import Disk, join_path
from kcli.log.unified_log import UnifiedLog


class EpochFollower:
    """The logs whose files are behind.

    `queue` asks for a flush, `fail(log, error)` is told what the disk refused, `is_live(log)` whether it is in service.
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
        """Have `wake(due_ms)` called when there is something to do; until this is said, files are written at once."""
        self._wake = wake

    def follow(self, log: UnifiedLog) -> None:
        """From now on a log's file follows its appends by itself."""
        log.leader_epochs.defer = partial(self._note, log)

    def _note(self, log: UnifiedLog) -> bool:
        if self._wake is None:
            return False
        self._waiting[log] = None
        self._wake(0)
        return True

    def run(self, now_ms: int) -> int:
        """Begin to write the files that are behind, unless that is in progress; return that no other call is needed."""
        if not self._is_busy:
            self._is_busy = True
            self._queue(begin_flushes(self._write_waiting()))
        return NEVER_MS

    def _write_waiting(self) -> Flushes:
        while self._waiting:
            log = next(iter(self._waiting))
            del self._waiting[log]
            yield from self.write(log)
        self._is_busy = False

    def write(self, log: UnifiedLog) -> Flushes:
        """Write a log's file if it is behind and the log is in service; `fail` gets an error of the disk."""
        epochs = log.leader_epochs
        if not epochs.is_behind or not self._is_live(log):
            return
        version = epochs.begin_to_follow()

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
                epochs.followed()
