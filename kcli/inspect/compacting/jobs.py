"""What is to be done to a partition, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from kcli.inspect.compacting.staged_disk import Outcome
from kcli.log.cleaner.offset_map import LOAD_FACTOR
from kcli.log.files.log_directory import PartitionDirectory
from kcli.log.log_config import LogConfig


class Recompression(NamedTuple):
    """The codec that data batches are to have, and its level, None for Kafka's default."""

    codec: int
    level: int | None


class CompactOptions(NamedTuple):
    """How partitions are compacted; times in ms. With `recompression` they are re-compressed instead, and nothing else.

    `memory_bytes` is what keys may take, 0 for as much as the node's configuration says, filled up to `load_factor`. Active
    segments are rolled, and so cleaned, `with_active`, or whose first records are older than the topic's max.compaction.lag.ms.
    `from_start` cleans anew what was cleaned before. `random_bytes(n)` gives n bytes that nobody can guess. With
    `assume_committed` the caller vouches that every record up to the log end is committed, whatever the high watermark is.
    """

    now_ms: int
    random_bytes: Callable[[int], bytes]
    memory_bytes: int = 0
    load_factor: float = LOAD_FACTOR
    with_active: bool = False
    from_start: bool = False
    recompression: Recompression | None = None
    is_unclean: bool = False
    assume_committed: bool = False


class PartitionJob(NamedTuple):
    """A partition to work on; offsets are those of its log directory's checkpoints, None where they have none of it.

    `watermark_fault` is a clause that says why `high_watermark` is None. New files go to `store_directory`. In a dry run it is
    a scratch directory, and only what is needed is kept there.
    """

    partition: PartitionDirectory
    size_bytes: int
    config: LogConfig
    options: CompactOptions
    store_directory: str
    is_dry_run: bool
    cleaned_offset: int | None = None
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int | None = None
    watermark_fault: str = ""

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self.partition.path


class PartitionPlan(NamedTuple):
    """What goes from a partition and what is left, of the segments that are rewritten; sizes in bytes.

    `keys` are those of the part that was cleaned for the first time; where that took several rounds, a key counts once in each.
    `batches` are those that get another codec, `converted_batches` how many of these were of format 0 or 1 and become format 2;
    `legacy_batches` are those of format 0 and 1 in the whole log that have the codec already, and stay.
    """

    records: int = 0
    records_left: int = 0
    tombstones: int = 0
    tombstones_left: int = 0
    without_key: int = 0
    keys: int = 0
    size_bytes: int = 0
    size_bytes_left: int = 0
    segments: int = 0
    segments_left: int = 0
    log_bytes: int = 0
    log_bytes_left: int = 0
    rounds: int = 0
    batches: int = 0
    converted_batches: int = 0
    legacy_batches: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether the partition stays as it is."""
        return not self.rounds and not self.batches


class Reason(StrEnum):
    """Why nothing of a partition is changed, as --output json names it."""

    EMPTY = "empty"
    CLEANED_BEFORE = "cleaned-before"
    ACTIVE_SEGMENT = "active-segment"
    NO_HIGH_WATERMARK = "no-high-watermark"
    HIGH_WATERMARK = "high-watermark"
    OPEN_TRANSACTION = "open-transaction"
    MIN_COMPACTION_LAG = "min-compaction-lag"
    HAS_CODEC = "has-codec"


class Obstacle(NamedTuple):
    """One reason: a clause about the partition, the option that removes the obstacle ("" for none) and what to do."""

    reason: Reason
    clause: str
    option: str = ""
    remedy: str = ""


class PartitionOutcome(NamedTuple):
    """A partition's plan and the files that make it true; `problem` is one sentence where it is left alone.

    `cleaned_offset` is up to where it is cleaned then, None where that is not known better than before. `obstacles` say why
    nothing is changed, and are empty where something is. `assumes_committed` is True where records were cleaned that the
    high watermark does not prove to be committed.
    """

    job: PartitionJob
    plan: PartitionPlan
    files: Outcome | None = None
    cleaned_offset: int | None = None
    problem: str | None = None
    obstacles: tuple[Obstacle, ...] = ()
    assumes_committed: bool = False

    @property
    def lacks_high_watermark(self) -> bool:
        """Whether records were left alone because no high watermark of the partition is known."""
        return any(one.reason is Reason.NO_HIGH_WATERMARK for one in self.obstacles)
