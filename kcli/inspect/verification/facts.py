"""What is known before segments and partitions are verified, and what is known of them afterwards: plain values.

They pass between processes, so they hold numbers and paths and nothing open.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.file_names import DirectoryState
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.verification.findings import Finding
from kcli.inspect.verification.producers import OpenTransactionCount
from kcli.log.files.quarantine import LostOffsets

# Kafka's own topics that are compacted, whatever their settings say.
COMPACTED_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


class EpochRun(NamedTuple):
    """Batches of one leader epoch, one after the other: the base offsets of the first and the last, the first one's byte."""

    epoch: int
    first_offset: int
    last_offset: int
    position: int


class SegmentOptions(NamedTuple):
    """What is known about a segment before it is read.

    `is_last` of its partition; `is_live`: a broker may be writing to it; `is_closed`: none will go on where it ends;
    `zeros_allowed`: its indexes may be preallocated;
    `stops`: offsets at which no two batches count as one step (snapshots, the log start), rising; `log_start_offset`: records
    below it are counted apart.
    """

    is_last: bool = True
    is_live: bool = False
    is_closed: bool = False
    zeros_allowed: bool = True
    stops: tuple[int, ...] = ()
    log_start_offset: int = 0


# How many gaps in the offsets of a segment are kept one by one.
MOST_GAPS = 1000


class SegmentFacts:
    """What a segment holds; offsets are -1 where it has no batch. `gap_offset` as in ProducerStep, for the whole segment."""

    def __init__(self, base_offset: int, path: str) -> None:
        self.base_offset = base_offset
        self.path = path
        self.size_bytes = 0
        self.first_offset = -1
        self.first_position = 0
        self.end_offset = base_offset
        self.batches = 0
        self.data_records = 0
        self.data_records_below_start = 0
        self.control_records = 0
        self.producer_batches = 0
        self.gap_offset = -1
        self.gaps = 0
        self.first_gap: tuple[int, int, int] | None = None  # from offset, to offset, byte
        self.gap_ranges: list[tuple[int, int]] = []  # the first MOST_GAPS of them
        self.is_thinned = False  # batches have fewer records than offsets, or a delete horizon: a cleaner was here
        self.is_damaged = False
        self.starts_damaged = False  # before the first sound batch
        self.ends_damaged = False  # behind the last sound batch, or without one
        self.stated_end: int | None = None  # the offset behind the damaged batches at the end, by their headers
        self.damaged: list[tuple[int, int]] = []  # ranges of offsets that damage may have held
        self.epochs: list[EpochRun] = []
        self.joined = False  # set with the next by who puts segments together
        self.gap_before: tuple[int, int] | None = None
        self.control_types: list[int] = []  # of KRaft's control records: the first and the last few

    def missing_offsets(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the parts of a range [first, end) that are not between the segment's first and last batch, or in a gap of it.

        If all batches are below the base offset in the name, only the name is above them: the range ends at the first batch.
        """
        if self.first_offset < 0:
            return [(first_offset, end_offset)] if first_offset < end_offset else []
        if self.end_offset <= self.base_offset:
            end_offset = min(end_offset, self.first_offset)
        batches = OffsetRanges(self.gap_ranges).missing(self.first_offset, self.end_offset)
        return OffsetRanges(batches).missing(first_offset, end_offset)


class PartitionOptions(NamedTuple):
    """What is known about a partition before it is read: the state of its log directory, the checkpoints' words on it.

    `is_whole` is False where single segments are looked at, without what belongs to the whole partition.
    `is_clean` is None where the log directory is not known; `is_compacted` says that the topic's own setting is so,
    `is_never_compacted` that the cluster's metadata know the topic and it is not. Offsets are None where no checkpoint has one.
    """

    is_whole: bool = True
    is_live: bool = False
    is_clean: bool | None = None
    is_compacted: bool = False
    is_never_compacted: bool = False
    recovery_point: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    cleaner_offset: int | None = None
    lost: tuple[LostOffsets, ...] = ()  # what repairs of the log directory have named as lost


class PartitionResult(NamedTuple):
    """What a partition holds and what is wrong with it.

    Records are counted as data or control; `aborted_records` are those data records that belong to aborted transactions,
    `records_below_start` those below the log start offset. `end_offset` is the offset behind the last batch. `missing` are
    the offsets [first, end) that findings of the kinds HOLES and records-missing are about.
    """

    path: str
    topic: str
    partition: int
    state: DirectoryState
    segments: int
    size_bytes: int
    batches: int
    data_records: int
    control_records: int
    aborted_records: int
    records_below_start: int
    log_start_offset: int
    end_offset: int
    last_stable_offset: int
    committed_transactions: int
    aborted_transactions: int
    open_transactions: list[OpenTransactionCount]
    findings: list[Finding]
    missing: list[tuple[int, int]]
