"""The answers to Fetch that the application has not taken yet (Kafka: FetchBuffer, FetchCollector).

A partition may have several answers: they are a chain in which each begins where the one before ends, and the first one begins
at the position of the partition. An answer that does not fit the chain any more (a seek, a reset, a truncation, another
assignment) is stale and is dropped.

    records are taken           of
    --------------------------  -------------------------------------------------------------------------------------------
    from the oldest answer on   partitions that are fetchable; those of paused partitions wait and keep their place
    up to max.poll.records      as many answers as it takes

An error of one answer is raised if no record was taken of the others; else the next poll raises it. If the process runs out of
memory, or is interrupted, the positions are again what they were, so that the records are returned by another poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kcli.client.consumer.arrow_records import ArrowBuilder, ArrowColumns
from kcli.client.consumer.completed_fetch import CompletedFetch
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.fetch_metrics import FetchMetrics
from kcli.client.consumer.subscription_state import FetchPosition, FetchState, SubscriptionState
from kcli.client.errors import FetchedRecordError
from kcli.client.serializers import Deserializer
from kcli.format.primitives import TopicPartition

# The size of an empty record; compressed ones may be smaller, for which the columns grow.
LEAST_RECORD_BYTES = 7
# How many bytes of keys, values and headers one call returns, about. The allocator reuses buffers of this size. For larger
# ones the kernel clears new pages in each call, which takes longer than the records themselves.
ENOUGH_BYTES = 1024 * 1024
MOST_EXPECTED_ROWS = 16 * 1024


class _Buffered:
    """One answer of one partition, with the offsets of its begin and end; without an end nothing is fetched ahead of it."""

    __slots__ = ("end_offset", "fetch", "partition", "start_offset", "taken")

    def __init__(self, partition: TopicPartition, fetch: CompletedFetch) -> None:
        self.partition = partition
        self.fetch = fetch
        self.start_offset = fetch.next_offset
        self.end_offset = fetch.end_offset()
        self.taken = 0


class FetchBuffer:
    """The answers of one consumer, in the order in which they came; `size_bytes` is their memory."""

    def __init__(self, subscriptions: SubscriptionState, metrics: FetchMetrics, is_read_committed: bool) -> None:
        self.size_bytes = 0
        self.removals = 0  # counts the answers that were taken or dropped: there is room for others
        self._subscriptions = subscriptions
        self._metrics = metrics
        self._is_read_committed = is_read_committed
        self._order: deque[_Buffered] = deque()
        self._chains: dict[TopicPartition, deque[_Buffered]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def count(self, partition: TopicPartition) -> int:
        """Return how many answers of a partition wait."""
        return len(self._chains.get(partition, ()))

    def next_fetch_offset(self, partition: TopicPartition, position: int) -> int | None:
        """Return the offset from which the partition is to be fetched, None if that is not known before records are taken.

        Stale answers are dropped.
        """
        chain = self._chains.get(partition)
        if chain is None:
            return position
        if chain[0].fetch.next_offset != position:
            self.drop(partition)
            return position
        last = chain[-1]
        return last.end_offset if last.end_offset > last.start_offset else None

    def add(self, partition: TopicPartition, fetch: CompletedFetch) -> None:
        """Add an answer, which begins where the last one of the partition ends."""
        one = _Buffered(partition, fetch)
        self._order.append(one)
        self._chains.setdefault(partition, deque()).append(one)
        self.size_bytes += fetch.size_bytes

    def drop(self, partition: TopicPartition) -> None:
        """Drop all answers of a partition."""
        for one in self._chains.pop(partition, ()):
            self.size_bytes -= one.fetch.size_bytes
            one.fetch.discard()
            self._order.remove(one)
            self.removals += 1

    def drop_unassigned(self) -> None:
        """Drop the answers of partitions that are not assigned any more."""
        for partition in [one for one in self._chains if not self._subscriptions.is_assigned(one)]:
            self.drop(partition)

    def clear(self) -> None:
        """Drop everything."""
        for partition in list(self._chains):
            self.drop(partition)

    @property
    def has_records(self) -> bool:
        """Whether an answer waits whose records may be returned."""
        return self._first_ready() is not None

    def _first_ready(self) -> _Buffered | None:
        """Return the oldest answer whose records may be returned now; stale ones before it are dropped."""
        stale: list[TopicPartition] = []
        found = None
        for one in self._order:
            state = self._subscriptions.find(one.partition)
            chain = self._chains[one.partition]
            if chain[0] is not one:
                continue
            if state is None:
                stale.append(one.partition)
            elif state.state is FetchState.FETCHING and state.position is not None:
                if one.fetch.next_offset != state.position.offset:
                    stale.append(one.partition)
                elif state.is_fetchable:
                    found = one
                    break
        for partition in stale:
            self.drop(partition)
        return found

    def _remove(self, one: _Buffered, now_ms: int) -> None:
        """Remove an answer of which all was taken."""
        self._order.remove(one)
        chain = self._chains[one.partition]
        chain.popleft()
        if not chain:
            del self._chains[one.partition]
        self.size_bytes -= one.fetch.size_bytes
        self.removals += 1
        self._metrics.bytes_consumed += one.fetch.size_bytes
        self._metrics.records.record(one.taken, now_ms)

    def _move(self, one: _Buffered) -> None:
        """Take the offset of an answer as the position of its partition."""
        fetch = one.fetch
        state = self._subscriptions.state_of(one.partition)
        if state.position is not None and state.position.offset != fetch.next_offset:
            self._subscriptions.advance(one.partition, fetch.next_offset, fetch.last_epoch)

    def _took(self, one: _Buffered, count: int, now_ms: int) -> None:
        """Count records that were taken; an answer of which all was taken is removed. Raises FetchedRecordError."""
        fetch = one.fetch
        one.taken += count
        self._metrics.records_consumed += count
        lag = self._subscriptions.lag(one.partition, self._is_read_committed)
        if lag is not None:
            self._metrics.lag.record(lag, now_ms)
        if not fetch.is_drained:
            return
        if fetch.next_offset == one.start_offset and fetch.size_bytes:
            topic, partition = one.partition
            reason = f"the broker sent {fetch.size_bytes} bytes and no whole batch"
            raise FetchedRecordError(topic, partition, one.start_offset, one.start_offset + 1, reason)
        self._remove(one, now_ms)

    def collect(
        self,
        most: int,
        now_ms: int,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> list[ConsumerRecord]:
        """Return up to `most` records. Raises FetchedRecordError if the first one cannot be read."""
        out: list[ConsumerRecord] = []
        before: dict[TopicPartition, FetchPosition] = {}
        try:
            while len(out) < most and (one := self._first_ready()) is not None:
                count = len(out)
                with self._taking(one, before):
                    one.fetch.take(out, most - count, key_deserializer, value_deserializer)
                self._took(one, len(out) - count, now_ms)
                if one.fetch.error is not None:
                    break
        except FetchedRecordError:
            if not out:
                raise
        except BaseException:
            self._undo(before)
            raise
        return out

    def collect_columns(self, most: int, now_ms: int) -> list[ArrowColumns]:
        """Return up to `most` records, and not many more than ENOUGH_BYTES, as columns, a set of them for each answer.

        Raises as `collect`.
        """
        found: list[ArrowColumns] = []
        taken_bytes = 0
        before: dict[TopicPartition, FetchPosition] = {}
        try:
            while most > 0 and taken_bytes < ENOUGH_BYTES and (one := self._first_ready()) is not None:
                builder = ArrowBuilder(*one.partition)
                size_bytes = min(one.fetch.size_bytes + one.fetch.size_bytes // 8, 2 * ENOUGH_BYTES)
                rows = min(most, one.end_offset - one.start_offset, size_bytes // LEAST_RECORD_BYTES, MOST_EXPECTED_ROWS)
                builder.expect(rows, size_bytes)
                with self._taking(one, before):
                    one.fetch.take_columns(builder, most, ENOUGH_BYTES)
                if builder.rows:
                    found.append(builder.finish())
                    most -= builder.rows
                    taken_bytes += builder.size_bytes()
                self._took(one, builder.rows, now_ms)
        except FetchedRecordError:
            if not found:
                raise
        except BaseException:
            self._undo(before)
            raise
        return found

    @contextmanager
    def _taking(self, one: _Buffered, before: dict[TopicPartition, FetchPosition]) -> Iterator[None]:
        """Advance the position by what is taken, and put the one before into `before`. Raises FetchedRecordError."""
        position = self._subscriptions.position(one.partition)
        if position is not None:
            before.setdefault(one.partition, position)
        try:
            yield
        except (FetchedRecordError, MemoryError):
            raise
        except Exception as error:
            offset = one.fetch.next_offset
            reason = f"the record cannot be read: {type(error).__name__}: {error}"
            one.fetch.error = FetchedRecordError(*one.partition, offset, offset + 1, reason)
            raise one.fetch.error from error
        finally:
            self._move(one)

    def _undo(self, before: Mapping[TopicPartition, FetchPosition]) -> None:
        """Go back to the positions before records that cannot be returned, which are fetched again."""
        for partition, position in before.items():
            self.drop(partition)
            self._subscriptions.seek(partition, position)
