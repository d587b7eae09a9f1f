"""What one Spark task reads: ranges of segments, cut at batches, with everything that the task needs to know of them.

A split is pickled into the task: it holds paths and numbers only, and of the partition's transactions just those that touch
its offsets. The executor opens the files itself; the log directories must be where the driver saw them.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from kcli.format.primitives import INT64_MAX
from kcli.log.reading.transaction_filter import AbortedTransactions

# What opening one more range costs a task, in bytes that it could have read instead.
OPEN_COST_BYTES = 512 * 1024


class SegmentRange(NamedTuple):
    """Bytes [position, end_position) of a segment, which begin and end at batches, and the offsets wanted of them.

    Records with offsets in [first_offset, end_offset) are wanted. No batch in the range may end below `least_offset` or reach
    `bound_offset`. For the tables of other files than segments `file` is such a file, whole. `file_id` is the number of the
    file that the bytes are in (Disk.file_id), 0 where it does not matter.
    """

    topic: str
    partition: int
    file: str
    least_offset: int
    position: int
    end_position: int
    first_offset: int
    end_offset: int
    bound_offset: int = INT64_MAX
    transactions: AbortedTransactions | None = None
    file_id: int = 0

    @property
    def size_bytes(self) -> int:
        """How many bytes are read."""
        return self.end_position - self.position

    @property
    def cost_bytes(self) -> int:
        """What reading it costs, in bytes: small ranges are packed together, but opening each costs too."""
        return self.size_bytes + OPEN_COST_BYTES


class LogSplit(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads, one after the other; `number` tells it from the other splits of the read."""

    def __init__(self, ranges: list[SegmentRange], number: int) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.number = number

    def __repr__(self) -> str:
        return f"LogSplit({', '.join(f'{part.file}[{part.position}:{part.end_position}]' for part in self.ranges)})"


def pack(ranges: list[SegmentRange], split_bytes: int) -> list[LogSplit]:
    """Put ranges into splits that cost at most `split_bytes`, in order; a range that costs more makes a split of its own."""
    splits: list[LogSplit] = []
    held: list[SegmentRange] = []
    size = 0
    for part in ranges:
        if held and size + part.cost_bytes > split_bytes:
            splits.append(LogSplit(held, len(splits)))
            held, size = [], 0
        held.append(part)
        size += part.cost_bytes
    if held:
        splits.append(LogSplit(held, len(splits)))
    return splits
