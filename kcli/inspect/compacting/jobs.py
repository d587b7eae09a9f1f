"""The job of compacting one partition, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from kcli.inspect.compacting.staged_disk import StagedChanges
from kcli.log.cleaner.offset_map import LOAD_FACTOR
from kcli.log.files.log_directory import PartitionDirectory
from kcli.log.log_config import LogConfig


class Recompression(NamedTuple):
    """The codec for the data batches, and its level; None is Kafka's default level."""

    codec: int
    level: int | None


class CompactOptions(NamedTuple):
    """How partitions are compacted; times in ms. With `recompression` they are only re-compressed.

    `memory_bytes` is the memory for keys, 0 for the node's configuration; it is filled up to `load_factor`. An active segment
    is rolled, and then cleaned, if `with_active` is set or its first records are older than the topic's max.compaction.lag.ms.
    `from_start` cleans again what was cleaned before. `random_bytes(n)` returns n bytes that cannot be predicted.
    `assume_committed`: the user states that every record up to the log end is committed, whatever the high watermark is.
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
    """A partition to work on; the offsets are from the checkpoints of its log directory.

    `watermark_fault` is a clause that says why `high_watermark` is None. New files are kept in `store_directory`; in a dry run
    this is a scratch directory for the files that later rounds read.
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
        """The directory of the partition."""
        return self.partition.path


class CompactionPlan(NamedTuple):
    """Counts of the segments that are rewritten, before and after (`..._left`); sizes in bytes.

    `keys` counts the keys of the part that is cleaned for the first time; a key counts once in each round. `batches` get
    another codec; `converted_batches` of them are converted from format 0 or 1 to format 2. `legacy_batches` of format 0 and
    1 in the whole log have the codec already, and are kept. `large_batches` keep their codec, because their records are larger
    than MAX_RECOMPRESSED_BYTES.
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
    large_batches: int = 0

    @property
    def is_nothing(self) -> bool:
        """True if the partition does not change."""
        return not self.rounds and not self.batches


class Reason(StrEnum):
    """Why a partition does not change; the values are those of --output json."""

    EMPTY = "empty"
    CLEANED_BEFORE = "cleaned-before"
    ACTIVE_SEGMENT = "active-segment"
    NO_HIGH_WATERMARK = "no-high-watermark"
    HIGH_WATERMARK = "high-watermark"
    OPEN_TRANSACTION = "open-transaction"
    MIN_COMPACTION_LAG = "min-compaction-lag"
    HAS_CODEC = "has-codec"


class Obstacle(NamedTuple):
    """One reason why a partition does not change, as a clause.

    `option` is the option that removes the obstacle, "" if there is none; `remedy` says what to do.
    """

    reason: Reason
    clause: str
    option: str = ""
    remedy: str = ""


class PartitionOutcome(NamedTuple):
    """The plan of a partition, and the files that carry it out; `problem` is one sentence if the partition is not changed.

    The partition is cleaned up to `cleaned_offset`, None if that does not change. `obstacles` is empty if the partition
    changes. `assumes_committed`: records were cleaned that are not below a known high watermark.
    """

    job: PartitionJob
    plan: CompactionPlan
    files: StagedChanges | None = None
    cleaned_offset: int | None = None
    problem: str | None = None
    obstacles: tuple[Obstacle, ...] = ()
    assumes_committed: bool = False

    @property
    def lacks_high_watermark(self) -> bool:
        """True if records are not cleaned because no high watermark of the partition is known."""
        return any(one.reason is Reason.NO_HIGH_WATERMARK for one in self.obstacles)
