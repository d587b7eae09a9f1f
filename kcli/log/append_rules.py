"""What appends ask of a topic's settings, worked out once for all logs that share them.

rule                    of which settings
----------------------  --------------------------------------------------------------------------------------------------
takes_plain             compression.type and message.timestamp.type: a plain batch is written as it came
max_plain_bytes         the smaller of max.message.bytes and segment.bytes
max_segment_ms          segment.ms, of compacted topics bounded by max.compaction.lag.ms
max_index_entries,      segment.index.bytes; the time index keeps one entry for the roll
  max_time_entries
"""

from __future__ import annotations

from functools import lru_cache

from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.log_config import CREATE_TIME, LogConfig


class AppendRules:
    """See the head of this module; times are ms, sizes bytes."""

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
def rules_of(config: LogConfig) -> AppendRules:
    """The rules of a topic's settings."""
    return AppendRules(config)
