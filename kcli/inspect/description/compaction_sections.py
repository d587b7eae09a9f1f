"""The section on compaction: up to where each partition of a compacted topic is cleaned, and which are no longer cleaned.

    figure                  source
    ----------------------  --------------------------------------------------------------------------------------------
    cleaned to              cleaner-offset-checkpoint
    dirty bytes and ratio   as a cleaner would count them now (log_cleaner_manager); unknown without the last stable
                            offset or the high watermark, and with min.compaction.lag.ms without the current time
    not cleaned since       kcli-uncleanable-partitions, unless the partition was cleaned since

Settings are those of the topic, else of the node (kcli.inspect.node_defaults), else Kafka's defaults. A log directory does not
contain what server.properties sets for all topics; therefore a partition with an entry in the cleaner's checkpoint has a row
even if its topic is not known to be compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kcli.format.file_names import METADATA_TOPIC, DirectoryState
from kcli.format.primitives import FormatError
from kcli.inspect.description.partition_log import PartitionLog
from kcli.inspect.description.topic_sections import Surveyed, place
from kcli.inspect.json_text import JsonObject as Row
from kcli.log.cleaner.log_cleaner_manager import LogToClean, dirty_from, measure, uncleanable_from
from kcli.log.log_config import LogConfig
from kcli.state.metadata_values import ConfigResource
from kcli.state.topic_names import COMPACTED_INTERNAL_TOPICS

if TYPE_CHECKING:
    from kcli.state.metadata_image import MetadataImage


# Returns what the node of a partition, by its path, sets for all topics.
SettingsOf = Callable[[str], Mapping[str, str]]


def compaction_rows(surveyed: Surveyed, image: MetadataImage | None, now_ms: int | None, defaults_of: SettingsOf) -> list[Row]:
    """Return a row for each partition that is compacted, or in which the cleaner has been."""
    rows = []
    for log in surveyed.logs:
        directory = log.directory
        if directory.state is not DirectoryState.CURRENT or not directory.is_named or directory.topic == METADATA_TOPIC:
            continue
        config = None if log.is_foreign else _config(directory.topic, image, defaults_of(directory.path))
        is_compacted = directory.topic in COMPACTED_INTERNAL_TOPICS or (config is not None and config.is_compacted)
        if is_compacted or log.cleaned_offset is not None or log.uncleanable is not None:
            rows.append(_row(log, config, now_ms))
    return rows


def _config(topic: str, image: MetadataImage | None, defaults: Mapping[str, str]) -> LogConfig | None:
    """Return a topic's settings; None if it is not in the metadata, or has an invalid setting there."""
    if image is None or image.topic(topic) is None:
        return None
    try:
        return LogConfig.of({**defaults, **image.configs.get(ConfigResource("TOPIC", topic), {})})
    except ValueError:
        return None


def _row(log: PartitionLog, config: LogConfig | None, now_ms: int | None) -> Row:
    found = _measured(log, config or LogConfig(), now_ms)
    uncleanable = log.uncleanable
    return {
        **place(log),
        "path": log.directory.path,
        "cleanupPolicy": None if config is None else sorted(config.cleanup_policy),
        "cleanedOffset": log.cleaned_offset,
        "firstDirtyOffset": None if found is None else found.first_dirty_offset,
        "firstUncleanableOffset": None if found is None else found.first_uncleanable_offset,
        "cleanBytes": None if found is None else found.clean_bytes,
        "dirtyBytes": None if found is None else found.cleanable_bytes,
        "dirtyRatio": None if found is None else round(found.dirty_ratio, 4),
        "minCleanableDirtyRatio": None if config is None else config.min_cleanable_dirty_ratio,
        "isUncleanable": uncleanable is not None,
        "uncleanableSince": None if uncleanable is None else uncleanable.time_ms,
        "uncleanableReason": None if uncleanable is None else uncleanable.reason,
    }


def _measured(log: PartitionLog, config: LogConfig, now_ms: int | None) -> LogToClean | None:
    """Return what a cleaner would find now, or None if that is not known."""
    start_offset, end_offset, last_stable_offset = log.start_offset, log.end_offset, log.last_stable_offset
    # Without a checkpoint a broker starts with the log start offset as high watermark, and raises it as replicas fetch.
    if start_offset is None or end_offset is None or last_stable_offset is None or log.high_watermark is None:
        return None
    lag_ms = config.min_compaction_lag_ms
    if now_ms is None and lag_ms > 0:
        return None
    last_stable_offset = min(last_stable_offset, max(log.high_watermark, start_offset))
    segments = log.sized_segments
    first_dirty = dirty_from(start_offset, end_offset, log.cleaned_offset)
    try:
        bound = uncleanable_from(segments, first_dirty, last_stable_offset, now_ms or 0, lag_ms, log.largest_timestamp)
    except (OSError, FormatError) as error:
        log.report_unreadable(error)
        return None
    return measure(segments, first_dirty, bound)
