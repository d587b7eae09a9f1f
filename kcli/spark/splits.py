"""What one Spark task reads: ranges of segments, cut at batches.

A split is pickled into the task: it has paths and numbers only, and of the partition's transactions only those with offsets in
the range. The executor opens the files, so the log directories must have the same paths as for the driver.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from kcli.format.primitives import INT64_MAX
from kcli.log.reading.transaction_filter import AbortedTransactions

# The cost of opening a range, as the number of bytes that a task can read in the same time.
OPEN_COST_BYTES = 512 * 1024


class SegmentRange(NamedTuple):
    """Bytes [position, end_position) of a segment, which begin and end at batches, and the wanted offsets.

    Records with offsets in [first_offset, end_offset) are wanted. All offsets of the batches must be in [least_offset,
    bound_offset). For the tables of other files than segments it is the whole of such a file. `file_id` is Disk.file_id of the
    planned file, of a cluster's partition the topic's id as a number; 0 if a replaced file is allowed.
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
        """The number of bytes in the range."""
        return self.end_position - self.position

    @property
    def cost_bytes(self) -> int:
        """The cost of reading the range, with that of opening it, in bytes."""
        return self.size_bytes + OPEN_COST_BYTES


class LogSplit(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads, in order; `number` is unique among the splits of a read."""

    def __init__(self, ranges: list[SegmentRange], number: int) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.number = number

    def __repr__(self) -> str:
        return f"LogSplit({', '.join(f'{part.file}[{part.position}:{part.end_position}]' for part in self.ranges)})"


def pack(ranges: list[SegmentRange], split_bytes: int) -> list[LogSplit]:
    """Pack ranges, in order, into splits that cost at most `split_bytes`; a range that costs more is a split of its own."""
    splits: list[LogSplit] = []
    packed: list[SegmentRange] = []
    size = 0
    for part in ranges:
        if packed and size + part.cost_bytes > split_bytes:
            splits.append(LogSplit(packed, len(splits)))
            packed, size = [], 0
        packed.append(part)
        size += part.cost_bytes
    if packed:
        splits.append(LogSplit(packed, len(splits)))
    return splits
