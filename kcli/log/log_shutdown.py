"""Stopping a broker's logs cleanly, so that the next start need not read them again.

    of each log directory, in order
    ---------------------------------------------------------------------------------------------
    its logs, one a step: the log is closed (indexes are cut to their entries, the producers are saved), and what of it is
    not on the device is flushed
    the three offset checkpoints
    `.kafka_cleanshutdown`, with the broker epoch, if all logs of the directory had been loaded
    the lock is given back

This waits for the device: nobody is served any more. A directory that fails on the way gets no mark, and recovers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcli.log.log_dir import LogDir
from kcli.log.log_directory import parent_path

if TYPE_CHECKING:
    from kcli.log.log_manager import LogManager


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
    for log in manager.all_logs():
        if parent_path(log.directory) == log_dir.path:
            for path in log.close():
                manager.disk.flush(path)
            log.mark_flushed(log.log_end_offset)
            yield
    checkpoints = manager.checkpoints
    log_dir.finish(broker_epoch, {kind: checkpoints.offsets_in(log_dir, kind) for kind in log_dir.checkpoints})
