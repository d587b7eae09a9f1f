"""Finds why a log cannot be cleaned: the obstacles to cleaning its first dirty segment.

    reason                the first segment with records that were not cleaned                           option
    --------------------  ---------------------------------------------------------------------------  -------------------
    empty                 does not exist: the log has no bytes
    cleaned-before        does not exist: a round has reached the end                                    --from-start
    active-segment        is the active segment                                                          --active
    no-high-watermark     ends above the log start, and no high watermark of the partition is known      --assume-committed
    high-watermark        ends above the high watermark: a follower may have to cut its records          --assume-committed
    open-transaction      ends above the first record of a transaction that is still open
    min-compaction-lag    has a record younger than min.compaction.lag.ms                                --min-compaction-
                                                                                                           lag-ms 0

The cleaner takes whole segments in order, so while the first dirty segment cannot be cleaned, no later one can be
(kcli.log.cleaner.log_cleaner_manager). All obstacles of this segment are reported, since each of them alone stops the round.

Without a checkpointed high watermark, Kafka starts a partition with the log start offset as its high watermark, and cleans
nothing until the leader or the fetches of the followers raise it. Here no broker runs that could raise it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcli.inspect.compacting.jobs import Obstacle, PartitionJob, Reason
from kcli.log.cleaner.log_cleaner_manager import closed_from, first_dirty_offset
from kcli.log.time_lookup import largest_timestamp
from kcli.log.unified_log import UnifiedLog

ASSUME_COMMITTED = "--assume-committed"
# The only reason for which re-compression does not change a partition.
HAS_CODEC = Obstacle(
    Reason.HAS_CODEC, "all data batches have this codec already", remedy="with a level, as in zstd:6, they are written again"
)


def sentence(obstacles: Sequence[Obstacle]) -> str:
    """Return one sentence that says why nothing is cleaned, and what to do."""
    if len(obstacles) == 1:
        (only,) = obstacles
        return f"{only.clause}; {only.remedy}" if only.remedy else only.clause
    # Of the reasons that can occur together, only an open transaction has no option.
    options = [one.option for one in obstacles if one.option]
    steps = [f"give {' and '.join(options)}"] if options else []
    if len(options) < len(obstacles):
        steps.append("let the transaction end")
    return f"{', and '.join(one.clause for one in obstacles)}; to clean it, {' and '.join(steps)}"


def find_obstacles(log: UnifiedLog, job: PartitionJob, checkpoint: int | None) -> tuple[Obstacle, ...]:
    """Return why no round can run over a log that is cleaned up to `checkpoint`. Raises OSError, FormatError."""
    local, end_offset = log.local_log(), log.log_end_offset
    segments = local.segments
    first_dirty = first_dirty_offset(log, checkpoint)
    ends = [*log.base_offsets[1:], end_offset]
    slot = next((at for at, one in enumerate(segments) if one.size_bytes and ends[at] > first_dirty), None)
    if slot is None:
        return (_CLEANED_BEFORE if log.size_bytes else _EMPTY,)
    found = [_ACTIVE_SEGMENT] if slot == len(segments) - 1 else []
    if log.high_watermark < ends[slot]:
        found.append(_not_committed(log, job))
    first_unstable = log.producers.first_unstable_offset
    if first_unstable is not None and first_unstable < ends[slot]:
        found.append(_open_transaction(first_unstable))
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        first = len(segments) - 1 - len(closed_from(segments, first_dirty))
        up_to_it = segments[min(first, slot) : slot + 1]
        if any(largest_timestamp(local, one) > job.options.now_ms - lag_ms for one in up_to_it):
            found.append(_too_young(lag_ms))
    return tuple(found)


_EMPTY = Obstacle(Reason.EMPTY, "there are no records")
_CLEANED_BEFORE = Obstacle(
    Reason.CLEANED_BEFORE,
    "all records were cleaned before",
    "--from-start",
    "--from-start cleans them again, which removes tombstones whose retention time is over",
)
_ACTIVE_SEGMENT = Obstacle(
    Reason.ACTIVE_SEGMENT,
    "all records that were not cleaned yet are in the active segment",
    "--active",
    "--active cleans it, too",
)


def _not_committed(log: UnifiedLog, job: PartitionJob) -> Obstacle:
    if job.high_watermark is None:
        return Obstacle(
            Reason.NO_HIGH_WATERMARK,
            f"no high watermark is known ({job.watermark_fault}), so no record counts as committed",
            ASSUME_COMMITTED,
            f"start the broker and stop it cleanly, which writes the high watermarks again, or give {ASSUME_COMMITTED} if "
            "every record is committed, as in topics with one replica",
        )
    return Obstacle(
        Reason.HIGH_WATERMARK,
        f"the high watermark is {job.high_watermark} and the log end {log.log_end_offset}, and records between them may not be "
        "committed",
        ASSUME_COMMITTED,
        f"if you know that they are committed, {ASSUME_COMMITTED} cleans them",
    )


def _open_transaction(first_offset: int) -> Obstacle:
    return Obstacle(
        Reason.OPEN_TRANSACTION,
        f"a transaction is open from offset {first_offset} on",
        remedy="start the broker: the transaction coordinator ends the transaction",
    )


def _too_young(lag_ms: int) -> Obstacle:
    return Obstacle(
        Reason.MIN_COMPACTION_LAG,
        f"records that were not cleaned yet are younger than min.compaction.lag.ms, {lag_ms}",
        "--min-compaction-lag-ms 0",
        "--min-compaction-lag-ms 0 cleans them now",
    )
