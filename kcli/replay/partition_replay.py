"""One partition while it is replayed: its stream, its batches in flight, its progress.

    a batch is   until
    -----------  --------------------------------------------------------------------------------------------------------------
    WAITING      it is sent; after a failure again, in order, as soon as no later one is under way
    SENT         its answer comes
    FAILED       all batches in flight are answered, and the backoff is over
    ACKED        those before it are, too: then it counts as progress

At most MAX_IN_FLIGHT batches are under way, since a broker remembers as many sequences of a producer: it recognises a batch
that it has already and answers as if it were new. Until a run's first acknowledgement it is one: a broker that has no state of
the producer takes any sequence, so that the second batch could be appended though the first one was refused.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from kcli.format.primitives import INT64_MAX, TopicPartition
from kcli.inspect.quantities import format_count
from kcli.replay.progress import NO_BATCH, LastBatch, PartitionProgress
from kcli.replay.source import UNKNOWN_CRC, BatchStream, EarlierRun, OutgoingBatch, Source, sequence_after
from kcli.replay.steps import RESTART, ReplayError

MAX_IN_FLIGHT = 5
MAX_MESSAGE_BYTES = "max.message.bytes"
UNKNOWN_OFFSET = -1


class FoundBatch(NamedTuple):
    """A batch of the replay that the target has; `base_offset` is UNKNOWN_OFFSET if only its sequence is known."""

    sequence: int
    record_count: int
    base_offset: int


class Found(NamedTuple):
    """The batches of the replay after the saved progress, or, without them, the number of their records."""

    batches: list[FoundBatch]
    records: int = 0


def truncated(where: TopicPartition, end_offset: int, expected: int) -> ReplayError:
    """Return the error of a target that has lost records."""
    return ReplayError(
        f"{where[0]}-{where[1]}: the target's log ends at {end_offset}, but the records up to {expected} were "
        f"acknowledged: it was truncated; {RESTART}"
    )


class BatchState(Enum):
    """The states of the table above."""

    WAITING = 0
    SENT = 1
    FAILED = 2
    ACKED = 3


class InFlightBatch:
    """A batch that was taken from the stream and has no final answer yet."""

    __slots__ = ("base_offset", "batch", "replay", "sequence", "state")

    def __init__(self, replay: PartitionReplay, batch: OutgoingBatch, sequence: int) -> None:
        self.replay = replay
        self.batch = batch
        self.sequence = sequence
        self.state = BatchState.WAITING
        self.base_offset = UNKNOWN_OFFSET


class PartitionReplay:
    """The replay of the partition `source` into `target`. Counts are those of this run."""

    def __init__(self, source: TopicPartition, target: TopicPartition, progress: PartitionProgress, watched: list[int]) -> None:
        self.source = source
        self.target = target
        self.progress = progress
        self.stream: BatchStream | None = None
        self.in_flight: deque[InFlightBatch] = deque()
        self.next_sequence = sequence_after(0, progress.records)
        self.records = self.bytes = self.batches = self.source_bytes = self.found_records = 0
        self.max_message_bytes: int | None = None
        self.most_joined_bytes: int | None = None
        self.paused_until_ms = 0
        self.failing_since_ms: int | None = None
        self.leaderless_since_ms: int | None = None
        self.is_saved = True
        # Offsets of the source, ascending; the places in the target of those that became known and are not taken yet.
        self.watched = [offset for offset in watched if offset >= progress.source_offset]
        self.passed = frozenset(offset for offset in watched if offset < progress.source_offset)
        self._places: dict[int, int] = {}
        self._unplaced = set(self.watched)
        self._found: deque[FoundBatch] = deque()
        self._found_left = 0
        # The batch that the stream has first, to be compared with the one that an earlier run has passed.
        self._last: LastBatch | None = None
        self._lowest = 0  # the offset of the source from which this run reads

    @property
    def name(self) -> str:
        """The partition of the target, as orders-0."""
        return f"{self.target[0]}-{self.target[1]}"

    @property
    def is_ended(self) -> bool:
        """Whether all batches are acknowledged."""
        return self.stream is not None and self._last is None and self.stream.is_ended and not self.in_flight

    def open(self, source: Source) -> None:
        """Open the stream where the progress ends. Raises ReplayError if the source has less than an earlier run has sent."""
        progress, bounds = self.progress, source.bounds(self.source)
        self._lowest = max(bounds.start, progress.source_offset)
        if progress.source_offset:
            last = progress.last
            if bounds.end < progress.source_offset:
                raise ReplayError(
                    f"{self.name}: {self.source[0]}-{self.source[1]} of the source ends at offset {bounds.end}, but its "
                    f"records up to {progress.source_offset} were sent already: it was truncated or replaced; {RESTART}"
                )
            self._last = last if last != NO_BATCH and last.offset >= bounds.start else None
        counts = [one.record_count for one in self._found]
        if self._last is None:
            earlier = EarlierRun(None, tuple(counts), self.most_joined_bytes)
        else:
            earlier = EarlierRun(self._last.offset, (self._last.record_count, *counts), self.most_joined_bytes)
        self.stream = source.open(self.source, progress.source_offset, self.watched, earlier)

    def skip_found(self, found: Found) -> None:
        """Take what the target has above the saved progress."""
        self._found = deque(found.batches)
        self._found_left = found.records

    def peek(self) -> OutgoingBatch | None:
        """Return the next batch to send, None if there is none now. Raises ReplayError if the source is another one now."""
        assert self.stream is not None
        while True:
            batch = self.stream.peek()
            if self._last is not None and (batch is not None or self.stream.is_ended):
                self._compare_last(batch, self._last)
            elif batch is None:
                return None
            elif self._found:
                self._pass_over(batch, self._found.popleft())
            elif self._found_left > 0:
                self._found_left -= batch.record_count
                self._pass_over(batch, FoundBatch(self.next_sequence, batch.record_count, UNKNOWN_OFFSET))
            else:
                return batch

    def _compare_last(self, batch: OutgoingBatch | None, last: LastBatch) -> None:
        """Compare the first batch of the stream with the last one of the earlier runs, and remove it."""
        assert self.stream is not None
        self._last = None
        if batch is None and self.stream.is_cut:
            return
        if batch is not None:
            progress = self.progress
            sequence = sequence_after(0, progress.records - batch.record_count)
            batch.stamp(progress.producer_id, progress.producer_epoch, sequence)
            if (batch.first_offset, batch.record_count) == last[:2] and (
                UNKNOWN_CRC in (last.crc, batch.crc) or batch.crc == last.crc
            ):
                self.stream.take()
                return
        raise ReplayError(
            f"{self.name}: the last batch that was sent, {format_count(last.record_count, 'record')} at offset {last.offset} "
            f"of {self.source[0]}-{self.source[1]}, is not in the source any more: since then, the source was replaced, "
            f"truncated or cleaned; {RESTART}"
        )

    def _pass_over(self, batch: OutgoingBatch, found: FoundBatch) -> None:
        """Count a batch that an earlier run has sent."""
        assert self.stream is not None
        if (found.sequence, found.record_count) != (self.next_sequence, batch.record_count) or self._found_left < 0:
            stored, read = format_count(found.record_count, "record"), format_count(batch.record_count, "record")
            raise ReplayError(
                f"{self.name}: the target has a batch of {stored} with the sequence number {found.sequence}, but the source "
                f"now has a batch of {read} with the sequence number {self.next_sequence}: the source or the options were "
                f"changed since the last run; {RESTART}"
            )
        self.stream.take()
        batch.stamp(self.progress.producer_id, self.progress.producer_epoch, self.next_sequence)
        self.next_sequence = sequence_after(self.next_sequence, batch.record_count)
        self.found_records += batch.record_count
        self.source_bytes += batch.source_bytes
        self._advance(batch, found.base_offset)

    def take(self, producer_id: int, producer_epoch: int) -> InFlightBatch:
        """Move the batch of `peek` from the stream into flight."""
        assert self.stream is not None
        batch = self.stream.peek()
        assert batch is not None
        self.stream.take()
        batch.stamp(producer_id, producer_epoch, self.next_sequence)
        taken = InFlightBatch(self, batch, self.next_sequence)
        self.next_sequence = sequence_after(self.next_sequence, batch.record_count)
        self.in_flight.append(taken)
        return taken

    def next_waiting(self) -> InFlightBatch | None:
        """Return the first batch that has to be sent (again), None if there is none or later ones are under way."""
        states = [one.state for one in self.in_flight]
        if BatchState.FAILED in states:
            if BatchState.SENT in states:
                return None
            for one in self.in_flight:
                if one.state is BatchState.FAILED:
                    one.state = BatchState.WAITING
        return next((one for one in self.in_flight if one.state is BatchState.WAITING), None)

    @property
    def most_in_flight(self) -> int:
        """How many batches may be under way now."""
        return MAX_IN_FLIGHT if self.batches else 1

    @property
    def has_failed(self) -> bool:
        """Whether a batch has to be sent again first."""
        return any(one.state in (BatchState.FAILED, BatchState.WAITING) for one in self.in_flight)

    def acknowledge(self) -> None:
        """Count the acknowledged batches at the front as progress."""
        while self.in_flight and self.in_flight[0].state is BatchState.ACKED:
            done = self.in_flight.popleft()
            self.failing_since_ms = None
            self.records += done.batch.record_count
            self.bytes += len(done.batch.data)
            self.batches += 1
            self.source_bytes += done.batch.source_bytes
            self._advance(done.batch, done.base_offset)

    def _advance(self, batch: OutgoingBatch, base_offset: int) -> None:
        progress = self.progress
        at = base_offset if base_offset != UNKNOWN_OFFSET else progress.target_offset
        for watched in batch.watched:
            self.place(watched.offset, at + watched.slot)
        # The CRC does not cover the offset of a batch. One that is too low would have all records above it sent again.
        is_wrong = not self._lowest <= batch.first_offset < batch.next_offset <= INT64_MAX
        self.progress = progress._replace(
            source_offset=progress.source_offset if is_wrong else batch.next_offset,
            records=progress.records + batch.record_count,
            target_offset=max(at + batch.record_count, progress.target_offset),
            last=progress.last if is_wrong else LastBatch(batch.first_offset, batch.record_count, batch.crc),
        )
        self.is_saved = False

    def place_rest(self) -> None:
        """Give the watched offsets that no record follows the end of the replay in the target."""
        if self.stream is not None and self.stream.is_cut:
            return
        for offset in sorted(self._unplaced):
            self.place(offset, self.progress.target_offset)

    def place(self, offset: int, target_offset: int) -> None:
        """Note the place of a watched offset in the target."""
        self._places[offset] = target_offset
        self._unplaced.discard(offset)

    def take_places(self) -> dict[int, int]:
        """Return the places in the target, by the watched offset, that became known since the last call."""
        places, self._places = self._places, {}
        return places
