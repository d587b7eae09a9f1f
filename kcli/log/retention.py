"""The segments that retention deletes, from the oldest on (Kafka: UnifiedLog.deleteOldSegments).

    reason             a segment is deleted if                                         cleanup.policy
    -----------------  --------------------------------------------------------------  -----------------------------------
    log start offset   the next one begins at or before the log start offset           any
    retention.bytes    the log without it still has at least that many bytes           delete
    retention.ms       its largest timestamp, else the mtime of its file, is older     delete

A segment is deleted only if it ends at or below the high watermark and all earlier ones are deleted. An empty active segment is
kept; before all segments are deleted, the caller begins a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from kcli.log.local_log import LocalLog
from kcli.log.log_segment import LogSegment
from kcli.log.time_lookup import largest_timestamp

Predicate = Callable[[LogSegment, LogSegment | None], bool]


def breached_segments(
    local: LocalLog, high_watermark: int, log_start_offset: int, now_ms: int, most: int | None = None
) -> list[LogSegment]:
    """Return at most `most` segments to delete now, the oldest first. Raises OSError."""
    found: list[LogSegment] = []
    for predicate in _predicates(local, log_start_offset, now_ms):
        # Each predicate continues at the first segment that the one before has kept.
        left = None if most is None else most - len(found)
        found += islice(_deletable(local, high_watermark, predicate, len(found)), left)
    return found


def _predicates(local: LocalLog, log_start_offset: int, now_ms: int) -> Iterator[Predicate]:
    config = local.config
    yield lambda segment, following: following is not None and following.base_offset <= log_start_offset
    if not config.is_retained:
        return
    if config.retention_bytes >= 0:
        excess = sum(segment.size_bytes for segment in local.segments) - config.retention_bytes
        ends = _ends(local)
        yield lambda segment, following: excess - ends[segment.base_offset] >= 0
    if config.retention_ms >= 0:
        yield lambda segment, following: now_ms - largest_timestamp(local, segment) > config.retention_ms


def _ends(local: LocalLog) -> dict[int, int]:
    """Return by base offset the size of all segments up to and including this one."""
    ends: dict[int, int] = {}
    total = 0
    for segment in local.segments:
        total += segment.size_bytes
        ends[segment.base_offset] = total
    return ends


def _deletable(local: LocalLog, high_watermark: int, predicate: Predicate, start: int) -> Iterator[LogSegment]:
    segments = local.segments
    for at in range(start, len(segments)):
        segment = segments[at]
        following = segments[at + 1] if at + 1 < len(segments) else None
        end_offset = local.end_offset if following is None else following.base_offset
        is_empty_active = following is None and not segment.size_bytes
        if high_watermark < end_offset or is_empty_active or not predicate(segment, following):
            return
        yield segment
