"""The tables of a replay: what would go (--dry-run) and what has gone.

column           meaning
---------------  --------------------------------------------------------------------------------------------------------
topic            of the source
partition        of the source and the target
target           the topic's name in the target
records          those sent by all runs of this replay
this run         those sent by this run
size             of the batches that this run has sent, with their headers, as in the target's log (unless it compresses
                 them in another way)
source offsets   the first and the last of the selected records
target offsets   from the first of them to the end of the log after the last one: describe's `end offset` of that partition
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kcli.inspect.quantities import format_bytes
from kcli.inspect.renderers.terminal_text import table_lines
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.source import Source, TopicPartition


class PlannedRow(NamedTuple):
    """What a partition of the source would send."""

    source: TopicPartition
    target: TopicPartition
    records: int
    batches: int
    bytes: int
    first_offset: int | None
    last_offset: int | None


def plan(source: Source, names: Mapping[str, str], wait: Callable[[], None]) -> Iterator[PlannedRow]:
    """Yield what each partition would send; all is read, nothing is sent. `wait` is called while a source has nothing yet."""
    for where in source.partitions():
        stream = source.open(where, 0, [])
        records = batches = size = 0
        first: int | None = None
        last: int | None = None
        while not stream.is_ended:
            batch = stream.peek()
            if batch is None:
                wait()
                continue
            stream.take()
            records += batch.record_count
            batches += 1
            size += len(batch.data)
            first = batch.first_offset if first is None else first
            last = batch.next_offset - 1
        stream.close()
        yield PlannedRow(where, (names[where[0]], where[1]), records, batches, size, first, last)


def plan_lines(rows: Iterable[PlannedRow]) -> Iterator[str]:
    """Yield the table of a dry run."""
    columns = ("topic", "partition", "target", "records", "batches", "size", "source offsets")
    cells = [
        (
            row.source[0],
            str(row.source[1]),
            row.target[0],
            f"{row.records:,}",
            f"{row.batches:,}",
            format_bytes(row.bytes),
            "" if row.first_offset is None else f"{row.first_offset} to {row.last_offset}",
        )
        for row in rows
    ]
    yield from table_lines(columns, cells)


def result_lines(partitions: Iterable[PartitionReplay]) -> Iterator[str]:
    """Yield the table of a run."""
    columns = ("topic", "partition", "target", "records", "this run", "size", "next source offset", "target offsets")
    cells = []
    for one in partitions:
        progress = one.progress
        cells.append(
            (
                one.source[0],
                str(one.source[1]),
                one.target[0],
                f"{progress.records:,}",
                f"{one.records:,}",
                format_bytes(one.bytes),
                str(progress.source_offset),
                f"{progress.start_offset} to {progress.target_offset}" if progress.records else f"end {progress.target_offset}",
            )
        )
    yield from table_lines(columns, cells)
