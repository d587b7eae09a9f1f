"""`kcli to-parquet --incremental`: which offsets a run reads, based on the state of the runs before it, and when it is refused.

    between two runs                      the next run
    ------------------------------------  -----------------------------------------------------------------------------
    records were appended                 reads them: from the state's offset to the end of the log when the run was planned
    a transaction was open                (read_committed) the state's offset is the last stable offset: the transaction's
                                          records are read by the first run after its end
    a partition or a topic was added      reads it from its earliest offset
    the log was compacted                 keeps the rows that are written, and does not read offsets below the state again
    retention deleted unread records      fails; with failOnDataLoss=false it continues after the gap and reports it
    a partition is gone; the log ends     the same; a log that ends below the state is read from the state's offset on
      below the state
    the topic was recreated               fails; with failOnDataLoss=false it begins at the new log's start
    the log directory belongs to another  is refused
      cluster
    options that determine the rows       is refused
      differ

kcli.spark.run_commit stages and moves the files, kcli.spark.run_state has the state.

onCorrupt=skip skips and lists a whole batch with a wrong CRC at the end of a log, but the state's offset stays below it: a
broker removes such a batch when it starts, and assigns its offsets to new records. So a run may find a corrupt place that is
listed already; it is not listed twice.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kcli.format.primitives import TopicPartition
from kcli.log.disk.port import Disk
from kcli.log.files.log_dir_owner import Owner
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.spark import table_schemas as tables
from kcli.spark.json_schema import INFERRED
from kcli.spark.log_partitions import (
    DATA_LOSS_HINT,
    LogPartition,
    PlanError,
    UnknownPartitionError,
    UnknownTopicError,
    retry_planning,
)
from kcli.spark.parquet_output import CORRUPT_SUFFIX, UNDECODED_SUFFIX, local_path
from kcli.spark.planning import OffsetRange, PlanCounts, count_plan, earliest_offset, find_partitions, offset_ranges
from kcli.spark.read_options import ALL, EARLIEST, SKIP, ReadOptions
from kcli.spark.run_commit import Recovery, RunError, RunOutput, state_of
from kcli.spark.run_state import ROWS, RunFile, RunState, TopicState
from kcli.spark.streaming import TopicIds, is_other_topic, losses, recreated, topic_ids

SUFFIXES = (ROWS, CORRUPT_SUFFIX, UNDECODED_SUFFIX)


class RunPlan(NamedTuple):
    """What a run reads: a range of each partition, empty if there is nothing new, and the state's topics after the run.

    `losses` are clauses about records that are gone, if failOnDataLoss is false.
    """

    ranges: list[OffsetRange]
    topics: dict[str, TopicState]
    losses: list[str]
    counts: PlanCounts

    @property
    def new_ranges(self) -> list[OffsetRange]:
        """The ranges that are not empty."""
        return [wanted for wanted in self.ranges if wanted.end > wanted.first]

    def new_by_partition(self) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges that are not empty, by partition."""
        return {wanted.partition.key: wanted for wanted in self.new_ranges}


# -------------------------------------------------------------------------------------------------------------- options


def check_incremental(out: str, mode: str, read: ReadOptions) -> None:
    """Check that runs with these options can be incremental. Raises RunError."""
    if local_path(out) is None:
        raise RunError(
            f"--incremental needs an output on a file system of this machine, and {out} is not; run without --incremental"
        )
    if mode not in ("error", "append"):
        raise RunError(f"--incremental adds to the output; it cannot be used with --mode {mode}")
    if read.table != tables.RECORDS:
        raise RunError(f"--incremental writes the table records; it cannot be used with the table {read.table}")
    if read.duplicate_partitions == ALL:
        raise RunError(
            "--incremental keeps one offset of each partition; it cannot be used with duplicatePartitions=all; use longest"
        )
    if read.exact_offsets:
        raise RunError("--incremental determines the offsets itself; it cannot be used with exactOffsets")
    if read.cuts_at_last_stable_offset != read.read_committed:
        raise RunError(
            "--incremental cannot be used with includeOpen: it would write the records of a transaction that is open now, and "
            "could not remove them if the transaction is aborted"
        )


def row_options(read: ReadOptions, written: Mapping[str, str]) -> dict[str, str]:
    """Return the options that determine which rows are written and how, by name; `written` are those of the files."""
    found = {
        "columns": ",".join(read.columns),
        "subscribe": ",".join(sorted(read.topics)),
        "subscribePattern": read.pattern or "",
        "assign": _text(read.assignment),
        "kafka.isolation.level": read.isolation,
        "startingOffsets": _text(read.starting_offsets),
        "startingTimestamp": _text(read.starting_timestamp),
        "startingOffsetsByTimestamp": _text(read.starting_by_timestamp),
        "includeHeaders": _text(read.include_headers),
        "includeControl": _text(read.include_control),
        "includeAborted": _text(read.include_aborted),
        "includeInternal": _text(read.include_internal),
        "includeBelowLogStart": _text(read.include_below_log_start),
    }
    return found | dict(written)


def _text(value: object) -> str:
    """Return an option's value as text, the same text for equal values, an empty one for None."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, sort_keys=True)


def check_options(before: RunState, now: Mapping[str, str], out: str) -> None:
    """Check that a run has the row options of the runs before it. Raises RunError with the names of those that differ."""
    names = sorted(before.options.keys() | now.keys())
    pairs = [(name, before.options.get(name) or "not set", now.get(name) or "not set") for name in names]
    differing = [f"{name} was {was} and is {given}" for name, was, given in pairs if was != given]
    if differing:
        raise RunError(
            f"this run has other options than earlier runs that wrote to {out}: {', '.join(differing)}; use the same options, "
            "or write to a new directory"
        )


# ----------------------------------------------------------------------------------------------------------------- plan


def state_before(disk: Disk, out: str) -> RunState | None:
    """Return the state of the runs before this one, without a lock on the output. Raises RunError, OSError."""
    local = local_path(out)
    return None if local is None else state_of(disk, local, SUFFIXES)


def known_partitions(disk: Disk, read: ReadOptions, before: RunState | None) -> list[LogPartition]:
    """Return the partitions that the options choose; with failOnDataLoss=false without those that are gone since `before`.

    The starting offsets apply to the first run only, so later runs may name a partition that is gone in them.
    Raises PlanError, UnknownTopicError, OSError.
    """
    if before is not None:
        read = _from_earliest(read)
    try:
        return find_partitions(disk, read)
    except (UnknownTopicError, UnknownPartitionError) as error:
        gone = set(error.missing)
        known = set() if before is None else {*before.topics, *before.offsets}
        if read.fail_on_data_loss or not gone <= known:
            raise
    topics = tuple(topic for topic in read.topics if topic not in gone)
    named = {topic: [at for at in numbers if (topic, at) not in gone] for topic, numbers in (read.assignment or {}).items()}
    if not topics and not any(named.values()):
        return []
    return find_partitions(disk, read._replace(topics=topics, assignment=named or None))


def _from_earliest(read: ReadOptions) -> ReadOptions:
    """Return the options of a later run: a new partition begins at its earliest offset."""
    return read._replace(starting_offsets=EARLIEST, starting_timestamp=None, starting_by_timestamp=None)


@retry_planning
def plan_run(disk: Disk, read: ReadOptions, before: RunState | None) -> RunPlan:
    """Decide what a run reads. Raises PlanError for losses with failOnDataLoss, and for logs of another cluster; OSError."""
    partitions = known_partitions(disk, read, before)
    ids, clusters = topic_ids(partitions), _cluster_ids(partitions)
    lost: list[str] = []
    if before is None:
        begun: dict[TopicPartition, int] = {}
        ranges = offset_ranges(partitions, read)
    else:
        _check_clusters(before, clusters)
        begun, lost = _known_offsets(before, ids)
        lost += losses(partitions, begun, read)
        if lost and read.fail_on_data_loss:
            raise PlanError(lost[0] + DATA_LOSS_HINT)
        ranges = [
            OffsetRange(part, max(begun.get(part.key, 0), earliest_offset(part, read)), end)
            for part, _, end in offset_ranges(partitions, _from_earliest(read))
        ]
    ranges = [wanted._replace(end=max(wanted.first, wanted.end)) for wanted in ranges]
    reached = begun | {wanted.partition.key: _next_offset(wanted, read) for wanted in ranges}
    return RunPlan(ranges, _topics(before, reached, ids, clusters), lost, count_plan(ranges, read, begun))


def _known_offsets(before: RunState, ids: TopicIds) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the state's offsets without those of topics that were recreated since, and a clause for each of these."""
    known = {topic: found.topic_id for topic, found in before.topics.items() if found.topic_id is not None}
    recreated_topics = {topic for topic in ids if is_other_topic(topic, known, ids)}
    begun = {key: offset for key, offset in before.offsets.items() if key[0] not in recreated_topics}
    return begun, [
        f"{recreated(topic, known[topic], ids[topic])}; write it to another directory" for topic in sorted(recreated_topics)
    ]


def _next_offset(wanted: OffsetRange, read: ReadOptions) -> int:
    """Return where the next run begins; see the module on a last batch with a wrong CRC."""
    part = wanted.partition
    if read.on_corrupt != SKIP or part.is_live or wanted.end != part.log_end_offset or not part.segments:
        return wanted.end
    with OffsetLookup(part.disk, part.segments[-1], part.log_end.size_bytes) as lookup:
        return max(wanted.first, min(wanted.end, lookup.end_offset()))


def _cluster_ids(partitions: list[LogPartition]) -> dict[str, Owner]:
    """Return, for each topic, the owner of a partition that states a cluster."""
    found: dict[str, Owner] = {}
    for part in partitions:
        if part.topic not in found and part.owner.cluster_id is not None:
            found[part.topic] = part.owner
    return found


def _check_clusters(before: RunState, clusters: Mapping[str, Owner]) -> None:
    for topic, owner in sorted(clusters.items()):
        known = before.topics[topic].cluster_id if topic in before.topics else None
        if known is not None and known != owner.cluster_id:
            raise PlanError(
                f"earlier runs wrote {topic} of the cluster {known}, but {owner.sentence}; write to another directory"
            )


def _topics(
    before: RunState | None, reached: Mapping[TopicPartition, int], ids: TopicIds, clusters: Mapping[str, Owner]
) -> dict[str, TopicState]:
    topics: dict[str, TopicState] = {}
    for (topic, partition), offset in sorted(reached.items()):
        was = before.topics.get(topic) if before is not None else None
        owner = clusters.get(topic)
        topic_id = ids.get(topic) or (was.topic_id if was is not None else None)
        cluster_id = owner.cluster_id if owner is not None else was.cluster_id if was is not None else None
        topics.setdefault(topic, TopicState(topic_id, cluster_id, {})).offsets[partition] = offset
    return topics


# ------------------------------------------------------------------------------------------------------------------ run


class IncrementalRun:
    """A run on an output that it has locked: its plan, its staged files and its commit."""

    def __init__(
        self, output: RunOutput, options: dict[str, str], before: RunState | None, plan: RunPlan, recovery: Recovery
    ) -> None:
        self.plan = plan
        self.before = before
        self.number = before.run + 1 if before is not None else 1
        self.recovery = recovery
        self._output = output
        self._options = options
        self._folder = ""
        self._schema: str | None = None

    def __enter__(self) -> IncrementalRun:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the next run discards them
            self._output.discard()
        self._output.close()

    def remarks(self) -> list[str]:
        """Return sentences about an interrupted run before this one, and about the plan's losses."""
        found = [f"{clause}; this run continues without these records" for clause in self.plan.losses]
        if self.recovery.completed_run is not None:
            number, out = self.recovery.completed_run, self.directory(ROWS)
            found.insert(
                0, f"run {number} on {out} was interrupted while its files were moved into place; it has been completed"
            )
        elif self.recovery.removed_staging:
            found.insert(0, f"an earlier run on {self.directory(ROWS)} was interrupted; its staged files have been removed")
        return found

    def is_schema_unknown(self, value_schema: str) -> bool:
        """Return True if Spark must compare a schema of --value-schema with that of the runs before."""
        known = self.before.value_schema if self.before is not None else None
        return known is not None and value_schema not in (INFERRED, known)

    def directory(self, suffix: str) -> str:
        """Return the path of a table's directory."""
        return self._output.directory(suffix)

    def begin(self, folder: str, schema: str) -> None:
        """Begin to write files of `schema` to `folder` of the staging directories, a name that no other run has used.

        So files that the JVM of an interrupted run still writes are not among them.
        Raises RunError if earlier runs had other columns.
        """
        self._folder, self._schema = folder, schema
        known = self.before.schema if self.before is not None else None
        if known is not None and known != schema:
            raise RunError(
                f"the files in {self.directory(ROWS)} have the columns {known}, this run has the columns {schema}; write to a "
                "new directory"
            )

    def stage(self, suffix: str) -> str:
        """Return the URI at which Spark is to write a table's files."""
        return f"file:{self._output.staging(suffix)}/{self._folder}"

    def not_listed(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """Return the corrupt places that no earlier run has listed; the directories of their segments may differ."""
        directory = self.directory(CORRUPT_SUFFIX)
        if not any(Path(directory).glob("*.parquet")):
            return frame
        name = F.element_at(F.split("segment", "/"), -1)
        # Spark interprets these characters as a pattern.
        path = re.sub(r"([\\\[\]{}*?])", r"\\\1", directory)
        listed = spark.read.schema(frame.schema).parquet(f"file:{path}").withColumn("segment", name).alias("listed")
        found = frame.withColumn("_name", name).alias("found")
        columns = [(name, name) for name in frame.columns if name not in ("segment", "message")] + [("_name", "segment")]
        same = [F.col(f"found.{left}").eqNullSafe(F.col(f"listed.{right}")) for left, right in columns]
        return found.join(listed, functools.reduce(operator.and_, same), "left_anti").drop("_name")

    def commit(self, rows: int, value_schema: str | None = None) -> None:
        """Move the staged files into place, and replace the state. Raises RunError if they do not have `rows` rows, OSError."""
        files: list[RunFile] = []
        for suffix in SUFFIXES:
            counts = {name: self._rows_in(suffix, name) for name in self._output.staged_files(suffix)}
            if suffix == ROWS and sum(counts.values()) != rows:
                raise RunError(
                    f"{rows} rows were read, but the files in {self._output.staging(suffix)} have {sum(counts.values())}; "
                    "nothing was added to the output; run the command again"
                )
            files += (self._output.target(suffix, name, self.number) for name, count in counts.items() if count)
        before = self.before
        self._output.commit(
            RunState(
                self.number,
                self._options,
                self._schema or (before.schema if before is not None else None),
                value_schema or (before.value_schema if before is not None else None),
                self.plan.topics,
                tuple(files),
            )
        )

    def commit_nothing(self) -> None:
        """Write the offsets, if they have changed though there is nothing to read. Raises OSError."""
        if self.before is None or self.before.topics != self.plan.topics:
            self.commit(0)

    def _rows_in(self, suffix: str, name: str) -> int:
        return int(pq.read_metadata(f"{self._output.directory(suffix)}/{name}").num_rows)


def start_run(disk: Disk, out: str, read: ReadOptions, written: Mapping[str, str]) -> IncrementalRun:
    """Lock the output, recover from an interrupted run, and plan a run; `written` as in row_options.

    Raises RunError, PlanError, UnknownTopicError, OSError.
    """
    local = local_path(out)
    assert local is not None
    output = RunOutput(disk, str(Path(local).absolute()), SUFFIXES)
    try:
        recovery = output.recover()
        before = output.read_state()
        options = row_options(read, written)
        if before is None:
            output.check_is_new()
        else:
            check_options(before, options, out)
        return IncrementalRun(output, options, before, plan_run(disk, read, before), recovery)
    except BaseException:
        output.close()
        raise
