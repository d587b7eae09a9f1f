"""The clean stop of a broker's logs, after which the next start needs no recovery.

    steps for each log directory, in order
    ---------------------------------------------------------------------------------------------
    close its logs, one in a step: trim the indexes, take a producer snapshot
    flush their unflushed files
    write the offset checkpoints and kcli-uncleanable-partitions
    write `.kafka_cleanshutdown` with the broker epoch, if all logs of the directory were loaded
    release the lock

This waits for the device, because the broker serves no requests any more. A directory with an error gets no
`.kafka_cleanshutdown`, so that the next start recovers it.

Each fsync of a dirty file commits the file system's journal, which takes two milliseconds, for five files of each partition.
After one syncfs(2) the files are clean and an fsync takes a twentieth of that time. The fsyncs are still necessary, because
syncfs does not report all errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.file_names import FileKind
from kcli.log.disk.port import LogFile, parent_path
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogCheckpoints, LogRegistry
from kcli.log.report_line import WarningLine

# With this many files or more, syncfs comes first.
MANY_FILES = 64
FLUSHES_PER_STEP = 8


def close_logs(registry: LogRegistry, checkpoints: LogCheckpoints, broker_epoch: int) -> Iterator[None]:
    """Close all logs in time slices; see LogManager.shutdown."""
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
    offsets = {kind: checkpoints.offsets_in(log_dir, kind, are_closed=True) for kind in log_dir.checkpoints}
    log_dir.finish(broker_epoch, offsets)


def _not_marked(path: str, error: OSError) -> WarningLine:
    reason = error.strerror or error
    return WarningLine(
        f"{path}: {reason}: the stop of this log directory was not clean; the next start recovers its logs",
        path=path,
        error=reason,
    )


def _write_back_file_system(file: LogFile) -> bool:
    """Write back all dirty pages of the file system of `file`; return whether the system supports this."""
    descriptor = file.fileno()
    if descriptor < 0:
        return False
    import ctypes

    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    return syncfs is not None and syncfs(descriptor) == 0
