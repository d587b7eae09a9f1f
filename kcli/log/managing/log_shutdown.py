"""Stopping a broker's logs cleanly, so that the next start need not read them again.

    of each log directory, in order
    ---------------------------------------------------------------------------------------------
    its logs are closed, one a step: indexes are cut to their entries, the producers are saved
    what of them is not on the device is flushed
    the offset checkpoints, and what the cleaner has given up
    `.kafka_cleanshutdown`, with the broker epoch, if all logs of the directory had been loaded
    the lock is given back

This waits for the device: nobody is served any more. A directory that fails on the way gets no mark, and recovers.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.file_names import FileKind
from kcli.log.disk.file_system_sync import write_back_file_system
from kcli.log.disk.port import parent_path
from kcli.log.managing.log_checkpoints import LogCheckpoints
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogRegistry
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
        write_back_file_system(registry.files.get(some_log))
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
