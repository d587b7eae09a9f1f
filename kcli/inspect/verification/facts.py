"""What is known about segments and partitions before they are verified, and what a verification returns: plain values.

They are sent between processes, so they contain numbers and paths and no open files.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.file_names import DirectoryState
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.verification.findings import Finding
from kcli.inspect.verification.producer_tracker import OpenTransactionCount
from kcli.log.disk.port import base_name
from kcli.log.files.log_directory import PartitionDirectory, Segment
from kcli.log.files.quarantine import LostOffsets

# Kafka's internal topics that are always compacted.
COMPACTED_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


class EpochRun(NamedTuple):
    """Successive batches of one leader epoch: the base offsets of the first and the last batch, the first one's byte."""

    epoch: int
    first_offset: int
    last_base_offset: int
    position: int


class PartitionOptions(NamedTuple):
    """What is known about a partition before it is read: the state of its log directory, and its checkpointed offsets.

    `is_whole` is False where single segments are verified without the checks of the whole partition. `is_clean`: the log
    directory was stopped cleanly, None where the log directory is not known. `is_compacted`: the topic's own cleanup.policy
    has compact. `is_never_compacted`: the cluster's metadata have the topic, and it is not compacted. Offsets are None where
    no checkpoint has one. `lost` are the offsets that repairs of the log directory have named as lost. `is_being_deleted`: a
    broker was deleting the files when it stopped, and removes the rest at its start, whatever they contain.
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
    lost: tuple[LostOffsets, ...] = ()
    is_being_deleted: bool = False


class SegmentOptions(NamedTuple):
    """What is known about a segment before it is read.

    `is_last`: it is the last one of its partition. `is_live`: a broker may be writing to it. `is_closed`: nothing will be
    appended to it. `zeros_allowed`: its indexes may be preallocated. `stops`: ascending offsets of snapshots and of the log
    start; the batches before and after one are not joined to one ProducerStep. Records below `log_start_offset` are counted
    separately. `lost` are offsets [first, end) that repairs have named as lost.
    """

    is_last: bool = True
    is_live: bool = False
    is_closed: bool = False
    zeros_allowed: bool = True
    stops: tuple[int, ...] = ()
    log_start_offset: int = 0
    lost: tuple[tuple[int, int], ...] = ()


def log_start_offset(partition: PartitionDirectory, options: PartitionOptions) -> int:
    """Return the checkpointed log start offset, or the base offset of the first segment if that is higher."""
    base = partition.segments[0].base_offset if partition.segments else 0
    return max(options.log_start_offset or 0, base)


def segment_options(partition: PartitionDirectory, segment: Segment, options: PartitionOptions) -> SegmentOptions:
    """Return what is known about one segment of a partition before it is read."""
    is_last = segment == partition.segments[-1]
    start = log_start_offset(partition, options)
    return SegmentOptions(
        is_last=is_last,
        is_live=options.is_live,
        is_closed=not is_last or (options.is_clean is True and not options.is_live),
        zeros_allowed=is_last and not options.is_clean,
        stops=tuple(sorted({*(file.base_offset for file in partition.snapshots), start})),
        log_start_offset=start,
        lost=tuple(offsets for one in options.lost if one.partition == base_name(partition.path) for offsets in one.offsets),
    )


# How many gaps in the offsets of a segment are kept one by one.
MOST_GAPS = 1000


class SegmentFacts:
    """What a segment contains; offsets are -1 where it has no batch. `gap_offset` is that of ProducerStep at its end."""

    def __init__(self, base_offset: int, path: str) -> None:
        self.base_offset = base_offset
        self.path = path
        self.size_bytes = 0
        self.first_offset = -1
        self.end_offset = base_offset
        self.batches = 0
        self.data_records = 0
        self.data_records_below_start = 0
        self.control_records = 0
        self.producer_batches = 0
        self.gap_offset = -1
        self.gaps = 0
        self.first_gap: tuple[int, int, int] | None = None  # first offset, end offset, byte
        self.gap_ranges: list[tuple[int, int]] = []  # [first, end) of the first MOST_GAPS gaps
        self.legacy_gap_ranges: list[tuple[int, int]] = []  # the same before messages of format 0 and 1, where gaps are usual
        self.lost_gaps: list[tuple[int, int]] = []  # all gaps with offsets that a repair has named as lost
        self.is_thinned = False  # the cleaner was here: batches have fewer records than offsets, or a delete horizon
        self.is_damaged = False
        self.starts_damaged = False  # before the first sound batch
        self.ends_damaged = False  # after the last sound batch, or without one
        self.stated_end: int | None = None  # the offset after the damaged batches at the end, by their headers
        self.damaged: list[tuple[int, int]] = []  # offsets [first, end) that the damaged bytes may have had
        # The byte of the last batch, and the offset that would follow the one before it (-1: none), if it has another one.
        self.last_jump: tuple[int, int] | None = None
        self.epochs: list[EpochRun] = []
        self.control_types: list[int] = []  # of KRaft's control records: the first and the last four
        # Set by PartitionVerifier:
        self.joined = False
        self.gap_before: tuple[int, int] | None = None  # offsets [first, end) missing between the segment before and this one

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


class PartitionResult(NamedTuple):
    """What a partition contains and what is wrong with it.

    Records are counted as data or control; `aborted_records` are the data records of aborted transactions,
    `records_below_start` those below the log start offset. `end_offset` is the offset after the last batch. `missing` are
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
