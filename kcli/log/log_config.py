"""The settings of a topic that its logs use, typed, with the defaults of Kafka 4.3 (Kafka: LogConfig).

topic config                             field                          default
---------------------------------------  -----------------------------  ---------------------
segment.bytes                            segment_bytes                  1 GiB
internal.segment.bytes                   the same; it has precedence    not set
segment.ms                               segment_ms                     7 days
segment.jitter.ms                        segment_jitter_ms              0
segment.index.bytes                      segment_index_bytes            10 MiB
index.interval.bytes                     index_interval_bytes           4096
flush.messages, flush.ms                 flush_messages, flush_ms       never
retention.bytes                          retention_bytes                -1: no limit
retention.ms                             retention_ms                   7 days
file.delete.delay.ms                     file_delete_delay_ms           1 minute
max.message.bytes                        max_message_bytes              1 MiB and 12 bytes
compression.type                         compression_type               producer
compression.gzip/lz4/zstd.level          gzip_level, lz4_level ...      -1, 9, 3
message.timestamp.type                   message_timestamp_type         CreateTime
message.timestamp.before.max.ms          message_timestamp_before_...   no limit
message.timestamp.after.max.ms           message_timestamp_after_...    1 hour
cleanup.policy                           cleanup_policy                 delete
min.insync.replicas                      min_insync_replicas            1
preallocate                              preallocate                    false
delete.retention.ms                      delete_retention_ms            1 day
min/max.compaction.lag.ms                min/max_compaction_lag_ms      0, no limit
min.cleanable.dirty.ratio                min_cleanable_dirty_ratio      0.5
unclean.leader.election.enable           unclean_leader_election_...    false

AppendRules are the values that each append compares with; the logs that share a LogConfig share them.

rule                    derived from
----------------------  --------------------------------------------------------------------------------------------------
takes_plain             compression.type and message.timestamp.type: an uncompressed batch is written as it is
max_plain_bytes         the smaller of max.message.bytes and segment.bytes
max_segment_ms          segment.ms, for compacted topics at most max.compaction.lag.ms
max_index_entries,      segment.index.bytes; the time index reserves one entry for the roll
  max_time_entries
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kcli.format.primitives import INT64_MAX
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY

LOG_APPEND_TIME = "LogAppendTime"
CREATE_TIME = "CreateTime"
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
DAY_MS = 24 * 60 * 60 * 1000


class LogConfig(NamedTuple):
    """A topic's settings; times are ms, sizes are bytes, -1 disables a retention limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1024 * 1024 + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset(("delete",))
    min_insync_replicas: int = 1
    preallocate: bool = False
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5

    @property
    def is_compacted(self) -> bool:
        """Whether cleanup.policy contains compact: every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def is_retained(self) -> bool:
        """Whether cleanup.policy contains delete: retention.ms and retention.bytes apply."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The time after which a segment is rolled: for compacted topics at most max.compaction.lag.ms."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @classmethod
    def of(cls, config: Mapping[str, str]) -> LogConfig:
        """Make the settings from the values of a topic config by Kafka's keys; unknown keys are ignored.

        Raises ValueError for a value of the wrong type; ranges are checked when configs are set.
        """
        values: dict[str, Any] = {}
        for field, default in cls._field_defaults.items():
            text = config.get(field.replace("_", "."))
            if text is not None:
                values[field] = _parse(text.strip(), default)
        # Kafka's own tests set it, because it has no lower limit.
        if (internal := config.get(INTERNAL_SEGMENT_BYTES)) is not None:
            values["segment_bytes"] = int(internal.strip())
        return cls(**values)


def _parse(text: str, default: object) -> object:
    if isinstance(default, bool):
        return text.lower() == "true"
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float):
        return float(text)
    if isinstance(default, frozenset):
        return frozenset(word.strip().lower() for word in text.split(",") if word.strip())
    return text


class AppendRules:
    """The values that appends compare with, see the head of this module; times are ms, sizes bytes."""

    __slots__ = (
        "index_interval_bytes",
        "is_compacted",
        "max_index_entries",
        "max_plain_bytes",
        "max_segment_ms",
        "max_time_entries",
        "segment_bytes",
        "takes_plain",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
    )

    def __init__(self, config: LogConfig) -> None:
        self.takes_plain = (
            config.compression_type in ("producer", "uncompressed") and config.message_timestamp_type == CREATE_TIME
        )
        self.max_plain_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.is_compacted = config.is_compacted
        self.timestamp_before_max_ms = config.message_timestamp_before_max_ms
        self.timestamp_after_max_ms = config.message_timestamp_after_max_ms
        self.segment_bytes = config.segment_bytes
        self.max_segment_ms = config.max_segment_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.max_index_entries = config.segment_index_bytes // OFFSET_INDEX_ENTRY.size
        self.max_time_entries = config.segment_index_bytes // TIME_INDEX_ENTRY.size - 1


@lru_cache(maxsize=1024)
def append_rules(config: LogConfig) -> AppendRules:
    """Return the rules of a topic's settings; equal settings share them."""
    return AppendRules(config)
