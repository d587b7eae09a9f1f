"""The sections on topics, partitions, segments, leader epochs and producers, as rows of docs/describe.md.

Offsets, sizes and counts come from the directories; ids, leaders and replicas from the metadata image, if there is one. Unknown
numbers are None, and so is a sum over several logs if one of its parts is.

The section on compaction shows up to where each partition of a compacted topic is cleaned.

    figure                  source
    ----------------------  --------------------------------------------------------------------------------------------
    cleaned to              cleaner-offset-checkpoint
    dirty bytes and ratio   as a cleaner would count them now (log_cleaner_manager); unknown without the last stable
                            offset or the high watermark, and with min.compaction.lag.ms without the current time

Settings are those of the topic, else of the node (kcli.inspect.node_defaults), else Kafka's defaults. A log directory does not
contain what server.properties sets for all topics; therefore a partition with an entry in the cleaner's checkpoint has a row
even if its topic is not known to be compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kcli.format.file_names import METADATA_TOPIC, DirectoryState
from kcli.format.primitives import FormatError
from kcli.inspect.description.describe_options import DescribeOptions
from kcli.inspect.description.partition_log import Logs, PartitionLog
from kcli.inspect.description.segment_survey import COST_PER_RUN, CodecUse, HeaderBudget, SegmentSurvey
from kcli.inspect.json_text import JsonObject as Row
from kcli.log.disk.port import base_name
from kcli.log.files.log_directory import Segment
from kcli.log.log_config import LogConfig
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ConfigResource, PartitionRegistration, Topic
from kcli.state.topic_names import COMPACTED_INTERNAL_TOPICS, INTERNAL_TOPICS

if TYPE_CHECKING:
    from kcli.log.cleaner.log_cleaner_manager import LogToClean
    from kcli.state.metadata_image import MetadataImage

_NEEDS_HEADERS = frozenset(("topics", "partitions", "segments"))


class Surveyed:
    """The replicas that are asked for, in the order of their names, with the surveys of their segments.

    `surveys` is empty unless a section needs the headers of batches.
    """

    def __init__(self, logs: Logs, options: DescribeOptions) -> None:
        replicas = [replica for replica in logs.sources.replicas if options.wants_topic(replica.directory.topic)]
        replicas.sort(key=lambda replica: (replica.directory.topic, replica.directory.partition, replica.directory.path))
        self.logs = [logs.of(replica) for replica in replicas]
        self.surveys: dict[str, list[SegmentSurvey]] = {}
        self.sampled = self.segments = 0
        if options.show is not None and not options.show & _NEEDS_HEADERS:
            return
        self._survey(None if options.deep else COST_PER_RUN)
        if self.sampled:
            logs.remarks.unknown(
                f"Of {self.sampled} of {self.segments} segments only some batch headers were read: their batches and records "
                "are not counted, and codecs are those that were seen; --deep reads all batches."
            )

    def _survey(self, limit: int | None) -> None:
        """Survey all segments, the smallest first: they leave the rest of their shares to the larger ones."""
        found: dict[tuple[str, int], SegmentSurvey] = {}
        places = [(log, slot) for log in self.logs for slot in range(len(log.segments))]
        budget = HeaderBudget(limit, len(places))
        for log, slot in sorted(places, key=lambda place: place[0].segment_sizes[place[1]]):
            found[log.directory.path, slot] = log.survey(slot, budget)
        for log, slot in places:
            self.surveys.setdefault(log.directory.path, []).append(found[log.directory.path, slot])
        self.segments = len(found)
        self.sampled = sum(not survey.is_complete and survey.is_readable for survey in found.values())

    def of(self, log: PartitionLog) -> list[SegmentSurvey]:
        """Return the surveys of the segments of a replica."""
        return self.surveys.get(log.directory.path, [])

    def of_partitions(self, logs: list[PartitionLog]) -> list[SegmentSurvey]:
        """Return the surveys of several logs, for each partition those of the replica with the largest end offset."""
        best: dict[int, PartitionLog] = {}
        for log in logs:
            before = best.get(log.directory.partition)
            if before is None or (log.end_offset or 0) > (before.end_offset or 0):
                best[log.directory.partition] = log
        return [survey for log in best.values() for survey in self.of(log)]


def topic_rows(surveyed: Surveyed, image: MetadataImage | None, options: DescribeOptions) -> list[Row]:
    """Return a row for each topic of the directories and of the metadata, by name."""
    here: dict[str, list[PartitionLog]] = {}
    foreign: dict[tuple[str, str], list[PartitionLog]] = {}  # by name and topic id
    for log in surveyed.logs:
        if log.is_foreign:
            foreign.setdefault((log.directory.topic, str(log.topic_id)), []).append(log)
        elif log.directory.is_named:
            here.setdefault(log.directory.topic, []).append(log)
    known = {} if image is None else {name: image.topics[topic_id] for name, topic_id in image.topic_ids.items()}
    names = sorted(here.keys() | {name for name in known if options.wants_topic(name)})
    rows = [_topic_row(name, here.get(name, []), known.get(name), surveyed, image is not None) for name in names]
    rows += [_topic_row(name, logs, None, surveyed, image is not None) for (name, _), logs in foreign.items()]
    return sorted(rows, key=lambda row: row["name"]) if foreign else rows


def _topic_row(name: str, logs: list[PartitionLog], topic: Topic | None, surveyed: Surveyed, has_image: bool) -> Row:
    partitions = topic.partitions if topic is not None else {}
    first = next(iter(sorted(partitions.items())), None)
    ids = [log.topic_id for log in logs if log.topic_id is not None]
    topic_id = topic.topic_id if topic is not None else next(iter(ids), None)
    is_metadata = name == METADATA_TOPIC
    return {
        "name": name,
        "id": None if topic_id is None else str(topic_id),
        "isInternal": is_metadata or name in INTERNAL_TOPICS,
        "isInMetadata": None if not has_image or is_metadata else topic is not None,
        "partitions": len(partitions) if topic is not None else None,
        "replicationFactor": None if first is None else len(first[1].replicas),
        "partitionsHere": len({log.directory.partition for log in logs}),
        "replicasHere": len(logs),
        "segments": sum(len(log.segments) for log in logs),
        "sizeInBytes": sum(log.size_bytes for log in logs),
        **_survey_members(surveyed.of_partitions(logs)),
    }


def partition_rows(surveyed: Surveyed, image: MetadataImage | None) -> list[Row]:
    """Return a row for each replica in the given directories."""
    return [_partition_row(log, surveyed.of(log), image) for log in surveyed.logs]


def _partition_row(log: PartitionLog, surveys: list[SegmentSurvey], image: MetadataImage | None) -> Row:
    topic = None if image is None or log.is_foreign else image.topic(log.directory.topic)
    partition = None if topic is None else topic.partitions.get(log.directory.partition)
    epochs = log.leader_epochs
    return {
        **place(log),
        "path": log.directory.path,
        "state": log.directory.state.name.lower(),
        "topicId": None if log.topic_id is None else str(log.topic_id),
        **_registration(partition),
        "logStartOffset": log.start_offset,
        "highWatermark": log.high_watermark,
        "lastStableOffset": log.last_stable_offset,
        "logEndOffset": log.end_offset,
        "recoveryPoint": log.recovery_point,
        "cleanedOffset": log.cleaned_offset,
        "lastLeaderEpoch": epochs[-1].epoch if epochs else None,
        "openTransactions": None if log.producers is None else len(log.open_transactions),
        "segments": len(log.segments),
        "sizeInBytes": log.size_bytes,
        **_survey_members(surveys),
    }


def _registration(partition: PartitionRegistration | None) -> Row:
    """Return the members of a partition that come from the metadata."""
    return {
        "leader": None if partition is None else partition.leader,
        "leaderEpoch": None if partition is None else partition.leader_epoch,
        "replicas": None if partition is None else partition.replicas,
        "isr": None if partition is None else partition.isr,
        "directories": None if partition is None else [str(directory) for directory in partition.directories],
        "addingReplicas": None if partition is None else partition.adding_replicas,
        "removingReplicas": None if partition is None else partition.removing_replicas,
        "eligibleLeaderReplicas": None if partition is None else partition.eligible_leader_replicas,
        "lastKnownElr": None if partition is None else partition.last_known_elr,
    }


def segment_rows(surveyed: Surveyed) -> list[Row]:
    """Return a row for each segment."""
    return [
        {
            **place(log),
            "file": base_name(segment.log),
            "baseOffset": survey.base_offset,
            "endOffset": survey.end_offset,
            "sizeInBytes": survey.size_bytes,
            **_survey_members([survey]),
            "hasOffsetIndex": segment.offset_index is not None,
            "hasTimeIndex": segment.time_index is not None,
            "hasTransactionIndex": segment.transaction_index is not None,
            "hasProducerSnapshot": segment.snapshot is not None,
        }
        for log in surveyed.logs
        for segment, survey in _matched(log, surveyed.of(log))
    ]


def _matched(log: PartitionLog, surveys: list[SegmentSurvey]) -> Iterable[tuple[Segment, SegmentSurvey]]:
    by_base = {survey.base_offset: survey for survey in surveys}
    for segment in log.segments:
        if segment.base_offset in by_base:
            yield segment, by_base[segment.base_offset]


def epoch_rows(surveyed: Surveyed) -> list[Row]:
    """Return a row for each leader epoch of each replica."""
    return [
        {**place(log), "epoch": entry.epoch, "startOffset": entry.start_offset}
        for log in surveyed.logs
        for entry in log.leader_epochs
    ]


def producer_rows(surveyed: Surveyed) -> list[Row]:
    """Return a row for each producer of each replica, by producer id."""
    rows = []
    for log in surveyed.logs:
        for producer_id, entry in sorted((log.producers or {}).items()):
            batch = entry.batches[-1] if entry.batches else None
            rows.append(
                {
                    **place(log),
                    "producerId": producer_id,
                    "producerEpoch": entry.producer_epoch,
                    "lastSequence": None if batch is None or batch.last_sequence < 0 else batch.last_sequence,
                    "lastOffset": None if batch is None else batch.last_offset,
                    "lastTimestamp": known_time(entry.last_timestamp),
                    "coordinatorEpoch": None if entry.coordinator_epoch < 0 else entry.coordinator_epoch,
                    "currentTxnFirstOffset": entry.current_txn_first_offset,
                }
            )
    return rows


def known_time(timestamp_ms: int) -> int | None:
    """Return a timestamp, None for Kafka's -1."""
    return timestamp_ms if timestamp_ms >= 0 else None


def place(log: PartitionLog) -> Row:
    """Return the members topic and partition of a row."""
    return {"topic": log.directory.topic, "partition": log.directory.partition}


def _survey_members(surveys: list[SegmentSurvey]) -> Row:
    """Return the members that come from batch headers, summed over segments."""
    is_complete = all(survey.is_complete for survey in surveys)
    codecs: dict[str, CodecUse] = {}
    for survey in surveys:
        for name, use in survey.codecs.items():
            before = codecs.get(name, CodecUse(0, 0))
            codecs[name] = CodecUse(before.batches + use.batches, before.size_bytes + use.size_bytes)
    return {
        "isComplete": is_complete,
        "batches": _sum(survey.batches for survey in surveys),
        "records": _sum(survey.records for survey in surveys),
        "controlRecords": _sum(survey.control_records for survey in surveys),
        "codecs": [
            {
                "name": name,
                "batches": use.batches if is_complete else None,
                "sizeInBytes": use.size_bytes if is_complete else None,
            }
            for name, use in sorted(codecs.items())
        ],
        "formats": sorted({magic for survey in surveys for magic in survey.formats}),
        "timestampTypes": sorted({name for survey in surveys for name in survey.timestamp_types}),
        "firstTimestamp": min((s.first_timestamp for s in surveys if s.first_timestamp is not None), default=None),
        "maxTimestamp": max((s.max_timestamp for s in surveys if s.max_timestamp is not None), default=None),
    }


def _sum(parts: Iterable[int | None]) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


# Returns what the node of a partition, by its path, sets for all topics.
SettingsOf = Callable[[str], Mapping[str, str]]


def compaction_rows(surveyed: Surveyed, image: MetadataImage | None, now_ms: int | None, defaults_of: SettingsOf) -> list[Row]:
    """Return a row for each partition that is compacted, or in which the cleaner has been."""
    rows = []
    for log in surveyed.logs:
        directory = log.directory
        if directory.state is not DirectoryState.CURRENT or not directory.is_named or directory.topic == METADATA_TOPIC:
            continue
        config = None if log.is_foreign else _settings_of(directory.topic, image, defaults_of(directory.path))
        if _is_compacted(directory.topic, config) or log.cleaned_offset is not None:
            rows.append(_compaction_row(log, config, now_ms))
    return rows


def is_compacted_topic(log: PartitionLog, image: MetadataImage | None) -> bool:
    """Return True if a log is of a topic that is compacted by its name or by its own settings."""
    topic = log.directory.topic
    return _is_compacted(topic, None if log.is_foreign else _settings_of(topic, image, {}))


def _is_compacted(topic: str, config: LogConfig | None) -> bool:
    return topic in COMPACTED_INTERNAL_TOPICS or (config is not None and config.is_compacted)


def _settings_of(topic: str, image: MetadataImage | None, defaults: Mapping[str, str]) -> LogConfig | None:
    """Return a topic's settings; None if it is not in the metadata, or has an invalid setting there."""
    if image is None or image.topic(topic) is None:
        return None
    try:
        return LogConfig.of({**defaults, **image.configs.get(ConfigResource("TOPIC", topic), {})})
    except ValueError:
        return None


def _compaction_row(log: PartitionLog, config: LogConfig | None, now_ms: int | None) -> Row:
    found = _measured(log, config or LogConfig(), now_ms)
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
    }


def _measured(log: PartitionLog, config: LogConfig, now_ms: int | None) -> LogToClean | None:
    """Return what a cleaner would find now, or None if that is not known."""
    from kcli.log.cleaner.log_cleaner_manager import dirty_from, measure, uncleanable_from

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
