"""Wrong nodes: each replaces one function of kcli's logs or cleaner with one that has a fault. The simulator must find all."""

from __future__ import annotations

from typing import Any

from built_in_faults import Fault, FaultList, patched
from wrong_clients import simulate_logs

from kcli.log import log_opener
from kcli.log.cleaner import cleaner, log_cleaner_manager
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.retained_offsets import RetainedOffsets
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.log_manager import LogManager
from kcli.log.managing.replica_mover import ReplicaMover
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.unified_log import UnifiedLog
from kcli.network.shell.clock import Clock
from kcli.simulator.disk import SimulatedDisk


def skips_every_third(real: Any) -> Any:
    count = iter(range(1 << 60))
    return lambda self, data: None if next(count) % 3 == 2 else real(self, data)


def commits_before_the_flush(real: Any) -> Any:
    return lambda self: self.log_end_offset


def forgets_producers(real: Any) -> Any:
    def truncate_and_reload(self: ProducerStateManager, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.producers.clear()

    return truncate_and_reload


def skips_recovery(real: Any) -> Any:
    return lambda disk, path, settings, journal: real(
        disk, path, settings._replace(recovery_point=1 << 40, had_clean_shutdown=True), journal
    )


def gives_one_offset_twice(real: Any) -> Any:
    def append(self: UnifiedLog, *args: Any, **kwargs: Any) -> Any:
        info = real(self, *args, **kwargs)
        return info._replace(first_offset=max(0, info.first_offset - 1)) if info.first_offset % 5 == 4 else info

    return append


def reads_above(real: Any) -> Any:
    return lambda self, offset, *args, **kwargs: real(self, min(offset + 1, self.log_end_offset), *args, **kwargs)


def ends_epochs_early(real: Any) -> Any:
    return lambda self, epoch, log_end_offset: real(self, epoch, max(0, log_end_offset - 1))


def never_copies(real: Any) -> Any:
    return lambda self, now_ms: now_ms + 1000


def leaves_the_old_one(real: Any) -> Any:
    """Has a moved replica's old directory keep its name, so that the partition lies twice."""
    return lambda self, log, now_ms, *state: real(self, log, now_ms, *state) if state else log.close_files()


def follows_the_wall(real: Any) -> Any:
    return lambda self: int(self._wall() * 1000)


def loses_names(real: Any) -> Any:
    return lambda self, path: None


def forgets_a_retained_offset(real: type[RetainedOffsets]) -> type[RetainedOffsets]:
    """The first one of each window."""

    class Forgetful(real):  # type: ignore[misc, valid-type]
        def move_window(self, offset: int) -> bool:
            is_unfinished: bool = super().move_window(offset)
            word = next((at for at, word in enumerate(self.words) if word), None)
            if not is_unfinished and word is not None:
                self.words[word] &= self.words[word] - 1
            return is_unfinished

    return Forgetful


def gives_tombstones_no_time(real: Any) -> Any:
    return lambda now_ms, delete_retention_ms, *facts: real(now_ms, 0, *facts)


def ignores_the_lag(real: Any) -> Any:
    return lambda log, first_dirty, now_ms: min(log.last_stable_offset, log.active_base_offset)


def flushes_no_cleaned_segment(real: Any) -> Any:
    return lambda self, mtime_ms: real(self, mtime_ms)[:0]


FAULTS = {
    "acknowledges without an append": Fault(patched(log_opener.LocalLog, "append", skips_every_third)),
    "acknowledges before the flush": Fault(patched(UnifiedLog, "committable_offset", commits_before_the_flush)),
    "forgets producers at a start": Fault(patched(ProducerStateManager, "truncate_and_reload", forgets_producers)),
    "skips the recovery": Fault(patched(log_opener, "_load", skips_recovery)),
    "answers with a wrong offset": Fault(patched(UnifiedLog, "append_as_leader", gives_one_offset_twice)),
    "reads from the next batch": Fault(patched(UnifiedLog, "read", reads_above)),
    "says that an epoch ends before it does": Fault(patched(LeaderEpochFileCache, "end_offset_for", ends_epochs_early)),
    "never moves a replica": Fault(patched(ReplicaMover, "run", never_copies)),
    "leaves a moved replica behind": Fault(patched(LogManager, "set_aside", leaves_the_old_one)),
    "goes back in time with the wall clock": Fault(patched(Clock, "now_ms", follows_the_wall)),
    "flushes no directory": Fault(patched(SimulatedDisk, "flush_directory", loses_names)),
    "cleans away the last value of a key": Fault(patched(cleaner, "RetainedOffsets", forgets_a_retained_offset)),
    "cleans tombstones away at once": Fault(patched(cleaner, "FilterSettings", gives_tombstones_no_time)),
    "cleans what min.compaction.lag.ms keeps": Fault(patched(log_cleaner_manager, "first_uncleanable_offset", ignores_the_lag)),
    "does not flush what it has cleaned": Fault(patched(CleanedSegment, "finish", flushes_no_cleaned_segment)),
}
NODES = FaultList("nodes", FAULTS, simulate_logs)
