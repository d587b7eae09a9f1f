"""The log of a replica: its offsets, producers, open transactions and segments, each read once.

value                    source
-----------------------  ------------------------------------------------------------------------------------------
log start offset         log-start-offset-checkpoint, or the name of the first segment if that is higher
log end offset           headers of the last segment, from the last entry of its .index on; the CRC of the last batch is
                         computed
high watermark           replication-offset-checkpoint: right after a clean stop, some seconds old after a crash
producers, open          the newest sound producer snapshot, and the headers after it; after a clean stop there are none.
  transactions             A batch that begins a transaction counts only if its CRC is right. Without a snapshot the whole
                           log must be read: above a limit only with --deep. The metadata log has no producers
last stable offset       the first offset of the oldest open transaction, or the log end offset
segments                 kcli.inspect.description.segment_survey
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import EpochStart, decode_leader_epochs
from kcli.format.file_names import METADATA_TOPIC, FileKind
from kcli.format.metadata_files import decode_partition_metadata
from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.inspect.description.remarks import Remarks
from kcli.inspect.description.segment_survey import (
    HeaderBudget,
    SegmentSurvey,
    header_cost,
    survey_segment,
    unreadable_segment,
)
from kcli.inspect.description.sources import Replica, Sources, read_small
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment, was_swapped
from kcli.log.producer_state_manager import ProducerAppendInfo, ProducerStateEntry
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.batch_search import begins_below
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.segment_reader import ZEROS, Damage, LogBatch, SegmentReader
from kcli.selecting.lookup import largest_timestamp

if TYPE_CHECKING:
    from kcli.format.kafka_uuid import Uuid
    from kcli.format.legacy_message_set import LegacyBatch

# The limit on the cost of headers after producer snapshots in a run without --deep (see segment_survey), for all partitions.
PRODUCER_COST_PER_RUN = 16_384


class TransactionAtLogEnd(NamedTuple):
    """A transaction that has begun in a partition and has not ended at the end of its log."""

    producer: ProducerStateEntry
    first_offset: int


class MeasuredSegment(NamedTuple):
    """A segment as the cleaner counts it."""

    base_offset: int
    size_bytes: int
    segment: Segment


class Logs:
    """The logs of all replicas that were given, each created when it is first used."""

    def __init__(self, disk: Disk, sources: Sources, remarks: Remarks, *, deep: bool) -> None:
        self.disk = disk
        self.sources = sources
        self.remarks = remarks
        self.deep = deep
        self.producer_budget = HeaderBudget(None if deep else PRODUCER_COST_PER_RUN, len(sources.replicas))
        self._logs: dict[str, PartitionLog] = {}

    def of(self, replica: Replica) -> PartitionLog:
        """Return the log of a replica."""
        path = replica.directory.path
        if path not in self._logs:
            self._logs[path] = PartitionLog(self, replica)
        return self._logs[path]

    def best(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the replica of a partition with the largest end offset, or None without a replica."""
        found = [self.of(replica) for replica in self.sources.current(topic, partition)]
        if len(found) < 2:
            return found[0] if found else None
        return max(found, key=lambda log: -1 if log.end_offset is None else log.end_offset)


class PartitionLog:
    """The log of one replica. Unknown values are None, and the remarks say why. Raises nothing for bad files."""

    def __init__(self, logs: Logs, replica: Replica) -> None:
        self._logs = logs
        self._disk = logs.disk
        self._remarks = logs.remarks
        self.replica = replica
        self.directory = replica.directory
        self._key = (self.directory.topic, self.directory.partition)

    @property
    def is_foreign(self) -> bool:
        """Whether the partition is of another topic than the one of its name (`set_foreign_aside`)."""
        return self.directory.path in self._logs.sources.foreign

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments without copies: those whose batches begin below the offset in their names."""
        return [segment for segment in self.directory.segments if not self._is_copy(segment)]

    def _is_copy(self, segment: Segment) -> bool:
        if not segment.base_offset:
            return False
        try:
            with SegmentReader(self._disk, segment.log) as reader:
                is_copy = begins_below(reader.file, segment.base_offset)
        except OSError:
            return False  # its survey reports the reason
        if is_copy:
            self._remarks.problem(
                segment.log,
                f"the batches begin below the offset {segment.base_offset} in the name: the segment is a copy or was renamed, "
                "and does not count; kcli verify --repair shows what to do",
            )
        return is_copy

    @property
    def was_swapped(self) -> bool:
        """Whether a file shows that a cleaner has just replaced a segment; True if the file cannot be read."""
        try:
            return was_swapped(self._disk, self.directory)
        except OSError:
            return True

    # ------------------------------------------------------------------------------------------------------ offsets

    @property
    def start_offset(self) -> int | None:
        """The first offset that a consumer may read."""
        if not self.segments:
            return None
        checkpointed = self.replica.source.checkpoints.log_start_offsets.get(self._key, 0)
        return max(checkpointed, self.segments[0].base_offset)

    @property
    def high_watermark(self) -> int | None:
        """The checkpointed high watermark."""
        return self.replica.source.checkpoints.high_watermarks.get(self._key)

    @property
    def recovery_point(self) -> int | None:
        """The offset up to which the log is known to be flushed."""
        return self.replica.source.checkpoints.recovery_points.get(self._key)

    @property
    def cleaned_offset(self) -> int | None:
        """The offset up to which the log is cleaned."""
        return self.replica.source.checkpoints.cleaner_offsets.get(self._key)

    @cached_property
    def end_offset(self) -> int | None:
        """The offset after the last batch."""
        if not self.segments:
            return None
        segment = self.segments[-1]
        try:
            return self._read_end(segment)
        except OSError as error:
            self._remarks.unreadable(segment.log, error)
            return None

    def _read_end(self, segment: Segment) -> int:
        end_offset, last = segment.base_offset, None
        with OffsetLookup(self._disk, segment) as lookup:
            reader = lookup.reader
            walk = HeaderReader(reader.file, lookup.hint(INT64_MAX), reader.end_position())
            doubt = reader.last_contradiction()
            for header in walk.headers():
                if doubt is not None and header.position == doubt.position:
                    self._remarks.problem(segment.log, f"byte {doubt.position}: {doubt.message}; it does not count")
                elif self._is_plausible(header, segment):
                    end_offset, last = max(end_offset, header.last_offset + 1), header.position
            if walk.position < walk.end:
                for found in reader.batches(walk.position):
                    if isinstance(found, LogBatch):
                        end_offset = max(end_offset, found.header.last_offset + 1) if found.is_valid else end_offset
                    elif found.kind != ZEROS:
                        self._remarks.problem(segment.log, f"byte {found.position}: {found.message}")
            elif last is not None:
                batch = reader.batch_at(last)
                if not isinstance(batch, LogBatch) or not batch.is_valid:
                    self._remarks.problem(segment.log, f"byte {last}: the last batch has a wrong CRC")
        return end_offset

    def _is_plausible(self, header: RecordBatch | LegacyBatch, segment: Segment) -> bool:
        if segment.base_offset <= header.base_offset <= header.last_offset < INT64_MAX:
            return True
        self._remarks.problem(
            segment.log,
            f"byte {header.position}: the batch states offsets {header.base_offset} to {header.last_offset}, which cannot "
            f"be in the segment with base offset {segment.base_offset}; they do not count",
        )
        return False

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset that a read_committed consumer does not receive."""
        if self.producers is None or self.end_offset is None:
            return None
        return min((txn.first_offset for txn in self.open_transactions), default=self.end_offset)

    # ------------------------------------------------------------------------------------------------- small files

    @cached_property
    def topic_id(self) -> Uuid | None:
        """The topic's id by partition.metadata."""
        path = self.directory.file(FileKind.PARTITION_METADATA)
        found = read_small(self._disk, path, decode_partition_metadata, self._remarks)
        return None if found is None else found.topic_id

    @cached_property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        """The leader epochs by leader-epoch-checkpoint, the oldest first."""
        path = self.directory.file(FileKind.LEADER_EPOCH_CHECKPOINT)
        found = read_small(self._disk, path, decode_leader_epochs, self._remarks)
        return () if found is None else found.entries

    # ---------------------------------------------------------------------------------------------------- segments

    @cached_property
    def segment_sizes(self) -> list[int]:
        """The size of each `.log` in bytes."""
        sizes = []
        for segment in self.segments:
            try:
                sizes.append(self._disk.size(segment.log))
            except OSError as error:
                self._remarks.unreadable(segment.log, error)
                sizes.append(0)
        return sizes

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` files."""
        return sum(self.segment_sizes)

    def largest_timestamp(self, sized: MeasuredSegment) -> int:
        """Return the largest timestamp of a closed segment as a broker uses it, in ms. Raises OSError, FormatError."""
        largest = largest_timestamp(self._disk, sized.segment, is_closed=True)
        return largest if largest >= 0 else self._disk.mtime_ms(sized.segment.log)

    @cached_property
    def sized_segments(self) -> list[MeasuredSegment]:
        """The segments with the bytes of their `.log`."""
        sizes = zip(self.segments, self.segment_sizes, strict=True)
        return [MeasuredSegment(segment.base_offset, size, segment) for segment, size in sizes]

    def survey(self, slot: int, budget: HeaderBudget) -> SegmentSurvey:
        """Survey segment number `slot`; if it cannot be read, that is a problem."""
        segments = self.segments
        segment, is_last = segments[slot], slot + 1 == len(segments)
        end_offset = (self.end_offset or segment.base_offset) if is_last else segments[slot + 1].base_offset
        try:
            return survey_segment(self._disk, segment, end_offset, is_last=is_last, budget=budget, remarks=self._remarks)
        except (OSError, FormatError) as error:
            self.report_unreadable(error, segment.log)
            return unreadable_segment(segment, end_offset)

    def report_unreadable(self, error: OSError | FormatError, path: str = "") -> None:
        """Report that the file of the log at `path` cannot be read."""
        path = path or self.directory.path
        if isinstance(error, OSError):
            self._remarks.unreadable(error.filename or path, error)
        else:
            self._remarks.problem(path, error.message)

    # --------------------------------------------------------------------------------------------------- producers

    @property
    def open_transactions(self) -> list[TransactionAtLogEnd]:
        """The transactions that have not ended, the oldest first; none if the producers are unknown."""
        found = [
            TransactionAtLogEnd(entry, entry.current_txn_first_offset)
            for entry in (self.producers or {}).values()
            if entry.current_txn_first_offset is not None
        ]
        return sorted(found, key=lambda txn: (txn.first_offset, txn.producer.producer_id))

    @cached_property
    def producers(self) -> dict[int, ProducerStateEntry] | None:
        """The idempotent and transactional producers by id; None if too much of the log must be read for them.

        The metadata log has none: controllers write its batches without producer ids.
        """
        end_offset = self.end_offset
        if end_offset is None:
            return None
        if self.directory.topic == METADATA_TOPIC:
            return {}
        producers, offset = self._snapshot(end_offset)
        budget = self._logs.producer_budget
        limit, cost = budget.share(), 0
        try:
            for header, lookup, scanner in self._headers_after_snapshot(offset) if offset < end_offset else ():
                cost += header_cost(header.size_bytes)
                if limit is not None and cost > limit:
                    self._too_many()
                    return None
                self._apply(header, producers, lookup, scanner)
        except OSError as error:
            self._remarks.unreadable(error.filename or self.directory.path, error)
        finally:
            budget.spend(cost)
        return producers

    def _headers_after_snapshot(self, offset: int) -> Iterator[tuple[RecordBatch, OffsetLookup, RecordScanner]]:
        """Yield the headers from `offset` in all segments; a segment that cannot be read is a problem."""
        segments = self.segments
        first = max((slot for slot, segment in enumerate(segments) if segment.base_offset <= offset), default=0)
        scanner = RecordScanner(16)
        for segment in segments[first:]:
            try:
                with OffsetLookup(self._disk, segment) as lookup:
                    for header in self._headers_from(lookup, offset):
                        yield header, lookup, scanner
            except (OSError, FormatError) as error:
                self.report_unreadable(error, segment.log)

    def _too_many(self) -> None:
        self._remarks.unknown(
            "Some partitions have more batches after the last producer snapshot than are read by default: their producers, "
            "open transactions and last stable offsets are not shown; --deep reads all headers."
        )

    def _snapshot(self, end_offset: int) -> tuple[dict[int, ProducerStateEntry], int]:
        """Return the producers and the offset of the newest sound snapshot, or none and the start of the log."""
        for file in reversed(self.directory.snapshots):
            if file.base_offset > end_offset:
                continue
            try:
                snapshot = decode_producer_snapshot(self._disk.read_file(file.path, limits.MAX_INDEX_FILE_BYTES))
            except OSError as error:
                self._remarks.unreadable(file.path, error)
            except FormatError as error:
                self._remarks.problem(file.path, error.message)
            else:
                entries = (ProducerStateEntry.from_snapshot(entry) for entry in snapshot.entries)
                return {entry.producer_id: entry for entry in entries}, file.base_offset
        return {}, self.segments[0].base_offset

    def _headers_from(self, lookup: OffsetLookup, offset: int) -> Iterator[RecordBatch]:
        """Yield the headers of format 2 from `offset`; after damage only those of batches with the right CRC."""
        reader = lookup.reader
        start = 0 if offset <= lookup.segment.base_offset else lookup.first_batch(offset)
        walk = HeaderReader(reader.file, start, reader.end_position())
        for header in walk.headers():
            if isinstance(header, RecordBatch):
                yield header
        if walk.position < walk.end:
            for found in reader.batches(walk.position):
                if isinstance(found, LogBatch) and isinstance(found.header, RecordBatch) and found.is_valid:
                    yield found.header

    def _apply(
        self, header: RecordBatch, producers: dict[int, ProducerStateEntry], lookup: OffsetLookup, scanner: RecordScanner
    ) -> None:
        if not header.has_producer:
            return
        entry = producers.get(header.producer_id)
        begins = header.is_transactional and (entry is None or entry.current_txn_first_offset is None)
        batch: LogBatch | Damage | None = None
        if header.is_control or begins:
            batch = lookup.reader.batch_at(header.position)
            if not isinstance(batch, LogBatch) or not batch.is_valid:
                self._remarks.problem(
                    lookup.segment.log, f"byte {header.position}: a batch of a transaction has a wrong CRC and does not count"
                )
                return
        info = ProducerAppendInfo(entry or ProducerStateEntry(header.producer_id))
        try:
            info.append(header, batch.read_marker(scanner) if header.is_control and isinstance(batch, LogBatch) else None)
        except FormatError as error:
            self._remarks.problem(lookup.segment.log, f"byte {header.position}: {error.message}")
        if entry is None:
            producers[header.producer_id] = info.updated
        else:
            entry.update(info.updated)
