"""`spark.readStream.format("kafka-log")`: micro-batches over log directories that grow.

    offset in the checkpoint              {"topic":{"0":1500,"1":20}}: for each partition the next offset to be read
    a micro-batch                         records with offsets in [start, end) of each partition; the same rows whenever it
                                          is repeated, so a sink that Spark makes idempotent has each record exactly once
    where a stream begins                 startingOffsets and its kin, `earliest` unless they say otherwise
    how far it reads                      the last whole batch; under read_committed the last stable offset; with
                                          stopAtHighWatermark the checkpointed high watermark
    maxOffsetsPerTrigger                  shared out in proportion to what each partition has waiting, as Spark's Kafka source
                                          does; each partition that has records waiting gets one at least
    partitions and topics that appear     join the stream at their earliest offset
    offsets or partitions that are gone   the query fails (failOnDataLoss), or goes on behind the gap
    Trigger.AvailableNow                  reads what is there when it starts, in as many batches as the limit asks, and stops

Only `records` can be streamed. Filters are not pushed down: Spark does not offer them to streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kcli.log.disk import Disk, OsDisk
from kcli.spark import schema as tables
from kcli.spark.options import OptionError, ReadOptions
from kcli.spark.partitions import LogPartition, PlanError, find_partitions
from kcli.spark.planning import OffsetRange, earliest_offset, latest_offset, offset_ranges, plan_splits
from kcli.spark.splits import LogSplit

Key = tuple[str, int]
Offsets = dict[Key, int]
StreamOffset = dict[str, dict[str, int]]


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
        found = offset_ranges(find_partitions(self._disk, self.options), self.options)
        return to_json({part.key: first for part, first, _ in found})

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger as Spark puts it."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: nothing that comes later is read by this run."""
        self._target = self._latest(find_partitions(self._disk, self.options))

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """How far the next micro-batch reads from `start`. Raises PlanError where data was lost and that is to be told."""
        partitions = find_partitions(self._disk, self.options)
        begun = from_json(start)
        self._check_for_loss(partitions, begun)
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
        return to_json(begun | reached)

    def reportLatestOffset(self) -> StreamOffset | None:
        """How far the logs reach, for the query's progress."""
        return to_json(self._latest(find_partitions(self._disk, self.options)))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[LogSplit]:
        """The splits of a micro-batch, the same records whenever it is asked for. Raises PlanError as latestOffset does."""
        begun, reached = from_json(start), from_json(end)
        there = {part.key: part for part in find_partitions(self._disk, self.options)}
        wanted = []
        for key, until in reached.items():
            part = there.get(key)
            if part is None:
                if until > begun.get(key, 0):
                    self._lost(f"the partition {key[0]}-{key[1]}, of which records up to {until} were to be read, is gone")
                continue
            earliest = earliest_offset(part, self.options)
            first = begun.get(key, earliest)
            if first < earliest and first < until:
                self._lost(_gap(part, first, min(earliest, until)))
            if until > part.log_end_offset:
                self._lost(f"{part.name}: records up to {until} were to be read, and the log ends at {part.log_end_offset}")
            wanted.append(OffsetRange(part, max(first, earliest), until))
        with_transactions = self.options.read_committed or "aborted" in self.schema.fieldNames()
        return plan_splits(self._disk, wanted, self.options, with_transactions=with_transactions, with_torn_tail=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, in a task. Raises CorruptLogError for corrupt bytes where the job is to fail."""
        from kcli.spark.tables import read_split

        return read_split(partition, self.schema, self.options)

    def _latest(self, partitions: list[LogPartition]) -> Offsets:
        return {part.key: latest_offset(part, self.options) for part in partitions}

    def _check_for_loss(self, partitions: list[LogPartition], begun: Offsets) -> None:
        there = {part.key: part for part in partitions}
        for key, first in begun.items():
            part = there.get(key)
            if part is None:
                self._lost(f"the partition {key[0]}-{key[1]}, read up to {first}, is gone")
            elif first < (earliest := earliest_offset(part, self.options)):
                self._lost(_gap(part, first, earliest))
            elif first > part.log_end_offset:
                self._lost(f"{part.name}: read up to {first} before, and the log ends at {part.log_end_offset} now")

    def _lost(self, sentence: str) -> None:
        if self.options.fail_on_data_loss:
            raise PlanError(f"{sentence}; option failOnDataLoss=false goes on without these records")


def _gap(part: LogPartition, first: int, earliest: int) -> str:
    return f"{part.name}: the records with offsets {first} to {earliest - 1} are gone, the log begins at {earliest}"


def to_json(offsets: Offsets) -> StreamOffset:
    """Offsets as the checkpoint holds them, sorted: equal offsets are equal texts."""
    out: StreamOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    return out


def from_json(offset: Any) -> Offsets:
    """The offsets that a checkpoint holds; none for None."""
    return {
        (topic, int(partition)): number for topic, of_topic in (offset or {}).items() for partition, number in of_topic.items()
    }


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
