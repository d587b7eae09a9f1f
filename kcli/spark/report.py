"""The tasks' reports: how many rows they returned, and which records they left out, found corrupt or lost.

A Spark task can return a report only in its rows or in a file:

    option          each task ends with                                       for
    --------------  --------------------------------------------------------  --------------------------------------------
    `reportPath`    a file DIR/<split>.json; until then DIR/<split>.bytes     executors on this machine
                      has its progress (kcli.spark.task_progress)
    `reportColumn`  one more row, in which only this column is not null       executors elsewhere; `kcli to-parquet` filters
                                                                              these rows out while it writes, which takes
                                                                              0.1 us for each row

Neither needs a second pass over the data. A task that is repeated writes the same file again; Spark drops the rows of the first
attempt.

These offsets are reported as lost: those between the sound batches around a corrupt place, those after the last readable
record of a batch, and those that were deleted before the task read them. The log cleaner may have removed some of them before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from kcli.format.primitives import TopicPartition
from kcli.spark.splits import SegmentRange

# The reasons for which records are left out.
CONTROL = "control"
ABORTED = "aborted"
OPEN_TRANSACTION = "openTransaction"
BELOW_LOG_START = "belowLogStart"
BEYOND_LAST_STABLE = "beyondLastStableOffset"
ABOVE_HIGH_WATERMARK = "aboveHighWatermark"

REASONS = {
    CONTROL: "control records",
    ABORTED: "records of aborted transactions",
    OPEN_TRANSACTION: "records of open transactions",
    BELOW_LOG_START: "records below the log start offset",
    BEYOND_LAST_STABLE: "records at or above the last stable offset",
    ABOVE_HIGH_WATERMARK: "records at or above the checkpointed high watermark",
}


class Report:
    """Counts by partition: rows returned, records left out by reason, corrupt places and their bytes.

    `lost` has the first MAX_LOST_RANGES ranges [first, end) of lost offsets; `lost_offsets` counts all lost offsets.
    """

    def __init__(self) -> None:
        self.rows: Counter[TopicPartition] = Counter()
        self.left_out: Counter[tuple[str, int, str]] = Counter()
        self.corrupt: Counter[TopicPartition] = Counter()
        self.corrupt_bytes: Counter[TopicPartition] = Counter()
        self.lost: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.lost_offsets: Counter[TopicPartition] = Counter()
        self.corrupt_files: set[str] = set()
        self.first_faults: list[str] = []

    def add_left_out(self, topic: str, partition: int, reason: str, records: int) -> None:
        """Count records as left out for `reason`, one of REASONS."""
        if records:
            self.left_out[topic, partition, reason] += records

    def add_lost(self, part: SegmentRange, first_offset: int, end_offset: int) -> None:
        """Count those of the offsets [first_offset, end_offset) as lost that the range was to read."""
        first, end = max(first_offset, part.first_offset), min(end_offset, part.end_offset, part.bound_offset)
        if first < end:
            self.lost_offsets[part.topic, part.partition] += end - first
            if sum(map(len, self.lost.values())) < MAX_LOST_RANGES:
                self.lost.setdefault((part.topic, part.partition), []).append((first, end))

    def add_corrupt(self, part: SegmentRange, size_bytes: int, sentence: str) -> None:
        """Count a corrupt place in the file of a range."""
        self.corrupt[part.topic, part.partition] += 1
        self.corrupt_bytes[part.topic, part.partition] += size_bytes
        self.corrupt_files.add(part.file)
        self.first_faults.append(sentence)

    def left_out_of(self) -> dict[TopicPartition, dict[str, int]]:
        """Return the number of records left out by partition and reason, sorted."""
        found: dict[TopicPartition, dict[str, int]] = {}
        for (topic, partition, reason), count in sorted(self.left_out.items()):
            found.setdefault((topic, partition), {})[reason] = count
        return found

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(
            {
                "rows": [[*key, count] for key, count in self.rows.items()],
                "leftOut": [[*key, count] for key, count in self.left_out.items()],
                "corrupt": [[*key, count, self.corrupt_bytes[key]] for key, count in self.corrupt.items()],
                "lost": [[*key, count, self.lost.get(key, [])] for key, count in self.lost_offsets.items()],
                "corruptFiles": sorted(self.corrupt_files),
                "firstFaults": self.first_faults[:MAX_FAULTS],
            },
            separators=(",", ":"),
        )

    def add_json(self, text: str) -> None:
        """Add another report, made by to_json."""
        other = json.loads(text)
        for topic, partition, count in other["rows"]:
            self.rows[topic, partition] += count
        for topic, partition, reason, count in other["leftOut"]:
            self.left_out[topic, partition, reason] += count
        for topic, partition, count, size in other["corrupt"]:
            self.corrupt[topic, partition] += count
            self.corrupt_bytes[topic, partition] += size
        for topic, partition, count, ranges in other["lost"]:
            self.lost_offsets[topic, partition] += count
            known = self.lost.setdefault((topic, partition), [])
            known[:] = sorted([*known, *((first, end) for first, end in ranges)])
        self.corrupt_files.update(other["corruptFiles"])
        self.first_faults += other["firstFaults"][: MAX_FAULTS - len(self.first_faults)]

    @classmethod
    def sum(cls, texts: Iterable[str]) -> Report:
        """Return the sum of reports."""
        total = cls()
        for text in texts:
            total.add_json(text)
        return total


MAX_FAULTS = 20  # corrupt places that are described; the table `corrupt` lists all
MAX_LOST_RANGES = 1000
