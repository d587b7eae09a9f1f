"""`spark.readStream.format("kafka-log")`: micro-batches over log directories that grow.

    offset in the checkpoint              {"topic":{"0":1500,"1":20,"topicId":"..."}}: for each partition the next offset to be
                                          read, and the topic's id if partition.metadata has it
    a micro-batch                         records with offsets in [start, end) of each partition; the same rows whenever it
                                          is repeated, so an idempotent sink has each record exactly once
    first offset of a stream              startingOffsets or the options by time, `earliest` by default
    end of a micro-batch                  the last whole batch; the checkpointed high watermark if it is known (see
                                          stopAtHighWatermark); under read_committed the last stable offset
    maxOffsetsPerTrigger                  divided in proportion to the unread offsets of each partition, as in Spark's Kafka
                                          source; each partition with unread offsets gets at least one
    new partitions and topics             are read from their earliest offset
    offsets or partitions that are gone   the query fails (failOnDataLoss), or continues after the gap
    a topic that was recreated            the same: its offsets begin at 0 again, and those of the old topic are gone
    partitions no longer subscribed       keep their offset in the checkpoint, and are not read
    Trigger.AvailableNow                  reads the records that exist when it starts, in one or more micro-batches, and stops

Only `records` can be streamed. Filters are not pushed down: Spark does not offer them to streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kcli.format.primitives import TopicPartition
from kcli.log.disk.os_disk import OsDisk
from kcli.spark import table_schemas as tables
from kcli.spark.log_partitions import DATA_LOSS_HINT, LogPartition, PlanError, is_read, retry_planning
from kcli.spark.planning import (
    OffsetRange,
    RangeChoice,
    earliest_offset,
    find_partitions,
    gap,
    latest_offset,
    offset_ranges,
    plan_splits,
)
from kcli.spark.read_options import OptionError, ReadOptions
from kcli.spark.splits import LogSplit

Offsets = dict[TopicPartition, int]
StreamOffset = dict[str, dict[str, int | str]]
TopicIds = dict[str, str]

TOPIC_ID = "topicId"


class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The stream reader of one query; its offsets have the form of the checkpoint."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table != tables.RECORDS:
            raise OptionError(f"only the table records can be streamed, not {options.table}")
        if options.of_cluster:
            raise OptionError("a running cluster cannot be streamed by the format kafka-log; use Spark's format kafka")
        if (
            options.ending_timestamp is not None
            or options.ending_by_timestamp is not None
            or options.ending_offsets != "latest"
        ):
            raise OptionError("endingOffsets and endingTimestamp are for batch queries: a stream has no end")
        tables.check_schema(schema, options.table, options.report_column)
        self.options = options
        self.schema = schema
        self._target: Offsets | None = None

    @retry_planning
    def initialOffset(self) -> StreamOffset:
        """Return the first offsets of a new query. Raises PlanError for options that do not fit the files."""
        partitions = self._partitions()
        found = offset_ranges(partitions, self.options)
        return to_json({part.key: first for part, first, _ in found}, topic_ids(partitions))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxOffsetsPerTrigger as Spark's ReadLimit."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @retry_planning
    def prepareForTriggerAvailableNow(self) -> None:
        """Determine the present ends of the logs, at which this run stops."""
        self._target = self._latest(self._partitions())

    @retry_planning
    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Return the end of the micro-batch that begins at `start`. Raises PlanError for lost data with failOnDataLoss."""
        partitions = self._partitions()
        ids = topic_ids(partitions)
        begun = self._known_offsets(start, ids)
        for sentence in losses(partitions, begun, self.options):
            self._report_loss(sentence)
        ends = self._latest(partitions)
        if self._target is not None:
            ends = {key: min(end, self._target.get(key, begun.get(key, end))) for key, end in ends.items()}
        earliest = {part.key: earliest_offset(part, self.options) for part in partitions}
        # A new partition begins at its earliest offset; one that is gone keeps its offset.
        starts = {key: max(begun.get(key, earliest[key]), 0) for key in ends}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = share_out(starts, {key: max(end, starts[key]) for key, end in ends.items()}, most)
        if self._target is not None:
            reached = {key: end for key, end in reached.items() if key in begun or key in self._target}
        return to_json(begun | reached, ids_in(start) | ids)

    @retry_planning
    def reportLatestOffset(self) -> StreamOffset | None:
        """Return the ends of the logs, for the query's progress."""
        partitions = self._partitions()
        return to_json(self._latest(partitions), topic_ids(partitions))

    @retry_planning
    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[LogSplit]:
        """Return the splits of a micro-batch. Raises PlanError as latestOffset does."""
        partitions = self._partitions()
        ids = topic_ids(partitions)
        begun, reached = self._known_offsets(start, ids_in(end)), from_json(end)
        there = {part.key: part for part in partitions}
        wanted = []
        for key, until in reached.items():
            part = there.get(key)
            if part is None:
                if until > begun.get(key, 0) and is_read(*key, self.options):
                    self._report_loss(f"the partition {key[0]}-{key[1]} is gone, before it was read up to offset {until}")
                continue
            if is_other_topic(key[0], ids_in(end), ids):
                self._report_loss(recreated(key[0], ids_in(end)[key[0]], ids[key[0]]))
                continue
            earliest = earliest_offset(part, self.options)
            first = begun.get(key, earliest)
            if first < earliest and first < until:
                self._report_loss(gap(part, first, min(earliest, until)))
            if until > part.log_end_offset:
                self._report_loss(f"{part.name}: the batch ends at offset {until}, but the log ends at {part.log_end_offset}")
            wanted.append(OffsetRange(part, max(first, earliest), until))
        with_transactions = self.options.read_committed or "aborted" in self.schema.fieldNames()
        # All transactions below the last stable offset have ended; others may end between two reads of the same micro-batch.
        only_markers_read = not self.options.cuts_at_last_stable_offset
        choice = RangeChoice(with_transactions, only_markers_read, with_torn_tail=False)
        return plan_splits(OsDisk(), wanted, self.options, choice)

    def _known_offsets(self, start: StreamOffset, ids: TopicIds) -> Offsets:
        """Return the offsets of `start`, without those of topics that were recreated since."""
        recreated_topics = {topic for topic in ids if is_other_topic(topic, ids_in(start), ids)}
        for topic in sorted(recreated_topics):
            self._report_loss(recreated(topic, ids_in(start)[topic], ids[topic]))
        return {key: offset for key, offset in from_json(start).items() if key[0] not in recreated_topics}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one split, in a task. Raises CorruptLogError for corrupt bytes with onCorrupt=fail."""
        from kcli.spark.tables import read_split

        return read_split(partition, self.schema, self.options)

    def _partitions(self) -> list[LogPartition]:
        return find_partitions(OsDisk(), self.options)

    def _latest(self, partitions: list[LogPartition]) -> Offsets:
        return {part.key: latest_offset(part, self.options) for part in partitions}

    def _report_loss(self, sentence: str) -> None:
        if self.options.fail_on_data_loss:
            raise PlanError(sentence + DATA_LOSS_HINT)


def losses(partitions: Iterable[LogPartition], begun: Offsets, options: ReadOptions) -> Iterator[str]:
    """Yield a clause for each partition whose next records, according to `begun`, are gone."""
    there = {part.key: part for part in partitions}
    for key, first in begun.items():
        part = there.get(key)
        if not is_read(*key, options):
            continue
        if part is None:
            yield f"the partition {key[0]}-{key[1]}, which was read up to offset {first}, is gone"
        elif first < (earliest := earliest_offset(part, options)):
            yield gap(part, first, earliest)
        elif first > part.log_end_offset:
            yield f"{part.name}: the log was read up to offset {first} before, but ends at {part.log_end_offset} now"


def recreated(topic: str, before: str, now: str) -> str:
    """Return the clause that reports a topic as deleted and recreated, with its two ids."""
    return f"the topic {topic} was recreated: its topic id was {before} and is {now}, so the offsets belong to another log"


def topic_ids(partitions: list[LogPartition]) -> TopicIds:
    """Return the topic ids in the partitions' directories, as text."""
    return {part.topic: topic_id for part in partitions if (topic_id := part.topic_id) is not None}


def is_other_topic(topic: str, before: TopicIds, now: TopicIds) -> bool:
    """Return True if both have an id for the topic and the ids differ."""
    return topic in before and topic in now and before[topic] != now[topic]


def to_json(offsets: Offsets, ids: TopicIds | None = None) -> StreamOffset:
    """Return offsets in the form of the checkpoint, sorted, so that equal offsets are equal texts."""
    out: StreamOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    for topic, topic_id in (ids or {}).items():
        if topic in out:
            out[topic][TOPIC_ID] = topic_id
    return out


def from_json(offset: Any) -> Offsets:
    """Return the offsets in a checkpoint; none for None."""
    return {
        (topic, int(partition)): number
        for topic, of_topic in (offset or {}).items()
        for partition, number in of_topic.items()
        if partition != TOPIC_ID
    }


def ids_in(offset: Any) -> TopicIds:
    """Return the topic ids in a checkpoint; that of an earlier version of kcli has none."""
    return {topic: of_topic[TOPIC_ID] for topic, of_topic in (offset or {}).items() if TOPIC_ID in of_topic}


def share_out(starts: Offsets, ends: Offsets, limit: int | None) -> Offsets:
    """Return the offsets up to which the partitions are read if at most `limit` offsets are, divided in proportion.

    Each partition with unread offsets advances by at least one.
    """
    unread = {key: end - starts[key] for key, end in ends.items()}
    total = sum(unread.values())
    if limit is None or total <= limit:
        return dict(ends)
    reached = {}
    for key, count in unread.items():
        share = max(limit * count // total, 1) if count else 0
        reached[key] = starts[key] + min(share, count)
    return reached
