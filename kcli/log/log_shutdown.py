"""Stopping a broker's logs cleanly, so that the next start need not read them again.

    of each log directory, in order
    ---------------------------------------------------------------------------------------------
    its logs are closed, one a step: indexes are cut to their entries, the producers are saved
    what of them is not on the device is flushed
    the three offset checkpoints
    `.kafka_cleanshutdown`, with the broker epoch, if all logs of the directory had been loaded
    the lock is given back

This waits for the device: nobody is served any more. A directory that fails on the way gets no mark, and recovers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcli.format.file_names import FileKind
from kcli.log.file_system_sync import write_back_file_system
from kcli.log.log_dir import LogDir
from kcli.log.log_directory import parent_path

if TYPE_CHECKING:
    from kcli.log.log_manager import LogManager

# From so many files on the whole file system is written back first.
MANY_FILES = 64
FLUSHES_PER_STEP = 8


def close_logs(manager: LogManager, broker_epoch: int) -> Iterator[None]:
    """Close all logs, one a step; see LogManager.shutdown."""
    for log_dir in manager.online_dirs():
        try:
            yield from _close_dir(manager, log_dir, broker_epoch)
        except OSError as error:
            manager.report(f"{log_dir.path}: {error.strerror or error}: it is not marked as cleanly stopped")
            log_dir.unlock()
    manager.logs.clear()
    manager.future_logs.clear()
    manager.files.close_all()


def _close_dir(manager: LogManager, log_dir: LogDir, broker_epoch: int) -> Iterator[None]:
    logs = [log for log in manager.all_logs() if parent_path(log.directory) == log_dir.path]
    dirty: dict[str, None] = {}
    for log in logs:
        dirty.update(dict.fromkeys(log.close()))
        yield
    some_log = next((path for path in dirty if path.endswith("." + FileKind.LOG.value)), None)
    if some_log is not None and len(dirty) >= MANY_FILES:
        write_back_file_system(manager.files.get(some_log))
    for number, path in enumerate(dirty, 1):
        manager.disk.flush(path)
        if number % FLUSHES_PER_STEP == 0:
            yield
    for log in logs:
        log.mark_flushed(log.log_end_offset)
    checkpoints = manager.checkpoints
    log_dir.finish(broker_epoch, {kind: checkpoints.offsets_in(log_dir, kind) for kind in log_dir.checkpoints})
