"""What is told of the log cleaner, as Kafka's LogCleaner and LogCleanerManager have it: of each thread's last round
(the greatest of them, and of what is kept their sum), and of the last look.

Percent and seconds are whole numbers, as in Kafka. Kafka counts threads that have died of an error, which then clean nothing;
here there is none: an error costs the log in whose round it came, which is uncleanable then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcli.log.log_manager import LogManager

MS_PER_SECOND = 1000


def sample_cleaner(log_manager: LogManager, tell: Callable[..., None], now_ms: int) -> None:
    """Tell of the cleaner; nothing where the broker has none (log.cleaner.enable=false)."""
    if not log_manager.settings.cleaner_enable:
        return
    cleaner = log_manager.cleaner
    threads, look = cleaner.thread_stats(), cleaner.manager.last_run
    rounds = [thread.last_round for thread in threads]
    copied = sum(last.bytes_kept for last in rounds) / max(sum(last.bytes_read for last in rounds), 1)
    tell("kafka_log_logcleaner_cleaner_recopy_percent", int(100 * copied))
    tell("kafka_log_logcleaner_max_clean_time_secs", max((last.took_ms for last in rounds), default=0) // MS_PER_SECOND)
    tell("kafka_log_logcleaner_max_buffer_utilization_percent", int(100 * max((last.map_used for last in rounds), default=0.0)))
    tell(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        max((thread.delay_ms for thread in threads), default=0) // MS_PER_SECOND,
    )
    tell("kafka_log_logcleaner_deadthreadcount", 0)
    dirtiest_ratio, looked_ms = (0.0, log_manager.tasks_began_ms) if look is None else (look.dirtiest_ratio, look.at_ms)
    tell("kafka_log_logcleanermanager_max_dirty_percent", int(100 * dirtiest_ratio))
    tell("kafka_log_logcleanermanager_time_since_last_run_ms", max(0, now_ms - looked_ms))
    uncleanable = cleaner.manager.uncleanable_by_directory(now_ms)
    for path in log_manager.dirs:
        found = uncleanable.get(path)
        tell("kafka_log_logcleanermanager_uncleanable_partitions_count", 0 if found is None else found.logs, path)
        tell("kafka_log_logcleanermanager_uncleanable_bytes", 0 if found is None else found.size_bytes, path)
