"""Stopping a broker's logs cleanly, so that the next start need not read them again.

    of each log directory, in order
    ---------------------------------------------------------------------------------------------
    its logs are closed, one a step: indexes are cut to their entries, the producers are saved
    what of them is not on the device is flushed
    the offset checkpoints, and what the cleaner has given up
    `.kafka_cleanshutdown`, with the broker epoch, if all logs of the directory had been loaded
    the lock is given back

This waits for the device: nobody is served any more. A directory that fails on the way gets no mark, and recovers.

Each fsync of a file that is dirty commits the file system's journal: two milliseconds, times the five files of each of a
thousand partitions. After one syncfs(2) they are clean, and an fsync takes a twentieth of that. The fsyncs stay: they are
what counts, and what tells of errors; this only makes them quick.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.file_names import FileKind
from kcli.log.disk.port import LogFile, parent_path
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogCheckpoints, LogRegistry
from kcli.log.report_line import WarningLine

# From so many files on the whole file system is written back first.
MANY_FILES = 64
FLUSHES_PER_STEP = 8


def close_logs(registry: LogRegistry, checkpoints: LogCheckpoints, broker_epoch: int) -> Iterator[None]:
    """Close all logs, one a step; see LogManager.shutdown."""
    for log_dir in registry.online_dirs():
        try:
            yield from _close_dir(registry, checkpoints, log_dir, broker_epoch)
        except OSError as error:
            registry.report(_not_marked(log_dir.path, error))
            log_dir.unlock()
    registry.logs.clear()
    registry.future_logs.clear()
    registry.files.close_all()


def _close_dir(registry: LogRegistry, checkpoints: LogCheckpoints, log_dir: LogDir, broker_epoch: int) -> Iterator[None]:
    logs = [log for log in registry.all_logs() if parent_path(log.directory) == log_dir.path]
    dirty: dict[str, None] = {}
    for log in logs:
        dirty.update(dict.fromkeys(log.close()))
        yield
    some_log = next((path for path in dirty if path.endswith("." + FileKind.LOG.value)), None)
    if some_log is not None and len(dirty) >= MANY_FILES:
        _write_back_file_system(registry.files.get(some_log))
    for number, path in enumerate(dirty, 1):
        registry.disk.flush(path)
        if number % FLUSHES_PER_STEP == 0:
            yield
    for log in logs:
        log.mark_flushed(log.log_end_offset)
    log_dir.finish(broker_epoch, {kind: checkpoints.offsets_in(log_dir, kind) for kind in log_dir.checkpoints})


def _not_marked(path: str, error: OSError) -> WarningLine:
    reason = error.strerror or error
    return WarningLine(f"{path}: {reason}: it is not marked as cleanly stopped", path=path, error=reason)


def _write_back_file_system(file: LogFile) -> bool:
    """Write back all that is dirty on the file system that `file` lies on -> False where the system has no way to."""
    descriptor = file.fileno()
    if descriptor < 0:
        return False
    import ctypes

    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    return syncfs is not None and syncfs(descriptor) == 0
