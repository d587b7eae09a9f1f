"""`spark.readStream.format("kafka-log")`: micro-batches over log directories that grow.

    offset in the checkpoint              {"topic":{"0":1500,"1":20,"topicId":"..."}}: for each partition the next offset to be
                                          read, and the topic's id where partition.metadata has it
    a micro-batch                         records with offsets in [start, end) of each partition; the same rows whenever it
                                          is repeated, so a sink that Spark makes idempotent has each record exactly once
    where a stream begins                 startingOffsets and its kin, `earliest` unless they say otherwise
    how far it reads                      the last whole batch; the checkpointed high watermark where it is known (see
                                          stopAtHighWatermark); under read_committed the last stable offset
    maxOffsetsPerTrigger                  shared out in proportion to what each partition has waiting, as Spark's Kafka source
                                          does; each partition that has records waiting gets one at least
    partitions and topics that appear     join the stream at their earliest offset
    offsets or partitions that are gone   the query fails (failOnDataLoss), or goes on behind the gap
    a topic that was created anew         the same: its offsets begin again, and those of the old topic are gone
    partitions no longer subscribed       they stay where they are in the checkpoint, and are not read
    Trigger.AvailableNow                  reads what is there when it starts, in as many batches as the limit asks, and stops

Only `records` can be streamed. Filters are not pushed down: Spark does not offer them to streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk
from kcli.spark import schema as tables
from kcli.spark.options import OptionError, ReadOptions
from kcli.spark.partitions import LogPartition, PlanError, find_partitions, is_read, plan_anew
from kcli.spark.planning import (
    GOES_ON,
    OffsetRange,
    RangeChoice,
    earliest_offset,
    gap,
    latest_offset,
    offset_ranges,
    plan_splits,
)
from kcli.spark.splits import LogSplit

Key = tuple[str, int]
Offsets = dict[Key, int]
StreamOffset = dict[str, dict[str, int | str]]
TopicIds = dict[str, str]

TOPIC_ID = "topicId"


class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The stream reader of one query; the offsets that it is given and gives are those in the checkpoint."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table != tables.RECORDS:
            raise OptionError(f"only the table records can be streamed, not {options.table}")
        if (
            options.ending_timestamp is not None
            or options.ending_by_timestamp is not None
            or options.ending_offsets != "latest"
        ):
            raise OptionError("a stream has no end: endingOffsets and endingTimestamp are for batch queries")
        tables.check_schema(schema, options.table, options.report_column)
        self.options = options
        self.schema = schema
        self._target: Offsets | None = None

    @property
    def _disk(self) -> Disk:
        return OsDisk()

    def initialOffset(self) -> StreamOffset:
        """Where a new query begins. Raises PlanError for options that do not fit what is on the disk."""
        return plan_anew(self._initial)

    def _initial(self) -> StreamOffset:
        partitions = find_partitions(self._disk, self.options)
        found = offset_ranges(partitions, self.options)
        return to_json({part.key: first for part, first, _ in found}, topic_ids(partitions))

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger as Spark puts it."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: nothing that comes later is read by this run."""
        self._target = plan_anew(lambda: self._latest(find_partitions(self._disk, self.options)))

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """How far the next micro-batch reads from `start`. Raises PlanError where data was lost and that is to be told."""
        return plan_anew(lambda: self._next(start, limit))

    def _next(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        partitions = find_partitions(self._disk, self.options)
        ids = topic_ids(partitions)
        begun = self._begun(start, ids)
        for sentence in losses(partitions, begun, self.options):
            self._lost(sentence)
        ends = self._latest(partitions)
        if self._target is not None:
            ends = {key: min(end, self._target.get(key, begun.get(key, end))) for key, end in ends.items()}
        earliest = {part.key: earliest_offset(part, self.options) for part in partitions}
        # A partition that is new to the stream begins at its earliest offset; one that is gone stays where it was.
        starts = {key: max(begun.get(key, earliest[key]), 0) for key in ends}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = share_out(starts, {key: max(end, starts[key]) for key, end in ends.items()}, most)
        if self._target is not None:
            reached = {key: end for key, end in reached.items() if key in begun or key in self._target}
        return to_json(begun | reached, ids_in(start) | ids)

    def reportLatestOffset(self) -> StreamOffset | None:
        """How far the logs reach, for the query's progress."""
        return plan_anew(self._reached)

    def _reached(self) -> StreamOffset:
        partitions = find_partitions(self._disk, self.options)
        return to_json(self._latest(partitions), topic_ids(partitions))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[LogSplit]:
        """The splits of a micro-batch, the same records whenever it is asked for. Raises PlanError as latestOffset does."""
        return plan_anew(lambda: self._splits(start, end))

    def _splits(self, start: StreamOffset, end: StreamOffset) -> list[LogSplit]:
        partitions = find_partitions(self._disk, self.options)
        ids = topic_ids(partitions)
        begun, reached = self._begun(start, ids_in(end)), from_json(end)
        there = {part.key: part for part in partitions}
        wanted = []
        for key, until in reached.items():
            part = there.get(key)
            if part is None:
                if until > begun.get(key, 0) and is_read(*key, self.options):
                    self._lost(f"the partition {key[0]}-{key[1]}, of which records up to {until} were to be read, is gone")
                continue
            if is_other_topic(key[0], ids_in(end), ids):
                self._lost(created_anew(key[0], ids_in(end)[key[0]], ids[key[0]]))
                continue
            earliest = earliest_offset(part, self.options)
            first = begun.get(key, earliest)
            if first < earliest and first < until:
                self._lost(gap(part, first, min(earliest, until)))
            if until > part.log_end_offset:
                self._lost(f"{part.name}: records up to {until} were to be read, and the log ends at {part.log_end_offset}")
            wanted.append(OffsetRange(part, max(first, earliest), until))
        with_transactions = self.options.read_committed or "aborted" in self.schema.fieldNames()
        # Under read_committed every transaction below the last stable offset has ended; else its marker may come later.
        only_markers_read = not self.options.cuts_at_last_stable_offset
        choice = RangeChoice(with_transactions, only_markers_read, with_torn_tail=False)
        return plan_splits(self._disk, wanted, self.options, choice)

    def _begun(self, start: StreamOffset, ids: TopicIds) -> Offsets:
        """The offsets of `start`, without those of topics that were created anew since."""
        anew = {topic for topic in ids if is_other_topic(topic, ids_in(start), ids)}
        for topic in sorted(anew):
            self._lost(created_anew(topic, ids_in(start)[topic], ids[topic]))
        return {key: offset for key, offset in from_json(start).items() if key[0] not in anew}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, in a task. Raises CorruptLogError for corrupt bytes where the job is to fail."""
        from kcli.spark.tables import read_split

        return read_split(partition, self.schema, self.options)

    def _latest(self, partitions: list[LogPartition]) -> Offsets:
        return {part.key: latest_offset(part, self.options) for part in partitions}

    def _lost(self, sentence: str) -> None:
        if self.options.fail_on_data_loss:
            raise PlanError(sentence + GOES_ON)


def losses(partitions: Iterable[LogPartition], begun: Offsets, options: ReadOptions) -> Iterator[str]:
    """Yield a clause for each partition of which records are gone that come next by `begun`."""
    there = {part.key: part for part in partitions}
    for key, first in begun.items():
        part = there.get(key)
        if not is_read(*key, options):
            continue
        if part is None:
            yield f"the partition {key[0]}-{key[1]}, read up to {first}, is gone"
        elif first < (earliest := earliest_offset(part, options)):
            yield gap(part, first, earliest)
        elif first > part.log_end_offset:
            yield f"{part.name}: read up to {first} before, and the log ends at {part.log_end_offset} now"


def created_anew(topic: str, before: str, now: str) -> str:
    """Return the clause that reports a topic as deleted and created anew, with its two ids."""
    return f"the topic {topic} was created anew: its topic id was {before} and is {now}, so the offsets are of another log"


def topic_ids(partitions: list[LogPartition]) -> TopicIds:
    """The topic ids that the partitions' directories state, as text."""
    return {part.topic: topic_id for part in partitions if (topic_id := part.topic_id) is not None}


def is_other_topic(topic: str, before: TopicIds, now: TopicIds) -> bool:
    """True where both know the topic's id, and they differ."""
    return topic in before and topic in now and before[topic] != now[topic]


def to_json(offsets: Offsets, ids: TopicIds | None = None) -> StreamOffset:
    """Offsets as the checkpoint holds them, sorted: equal offsets are equal texts."""
    out: StreamOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    for topic, topic_id in (ids or {}).items():
        if topic in out:
            out[topic][TOPIC_ID] = topic_id
    return out


def from_json(offset: Any) -> Offsets:
    """The offsets that a checkpoint holds; none for None."""
    return {
        (topic, int(partition)): number
        for topic, of_topic in (offset or {}).items()
        for partition, number in of_topic.items()
        if partition != TOPIC_ID
    }


def ids_in(offset: Any) -> TopicIds:
    """The topic ids that a checkpoint holds; one of an earlier version of kcli has none."""
    return {topic: of_topic[TOPIC_ID] for topic, of_topic in (offset or {}).items() if TOPIC_ID in of_topic}


def share_out(starts: Offsets, ends: Offsets, most: int | None) -> Offsets:
    """How far each partition is read when at most `most` offsets are: in proportion to what each has waiting.

    Partitions with something waiting advance by one at least, so that none waits for ever.
    """
    waiting = {key: end - starts[key] for key, end in ends.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(ends)
    reached = {}
    for key, count in waiting.items():
        share = max(most * count // total, 1) if count else 0
        reached[key] = starts[key] + min(share, count)
    return reached
