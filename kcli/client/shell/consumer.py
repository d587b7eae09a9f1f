"""The blocking consumer (Kafka: KafkaConsumer), over a ConsumerCore on a thread of its own.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["topic"])
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.key, record.value)

The thread receives and sends. The caller's thread decodes the records, in `poll`, and calls the rebalance listener, the
interceptors and the callbacks of commit_async; what a callback raises is raised by the call that called it. One thread uses a
consumer at a time, only `wakeup` may be called by others. A `with` block that ends with an exception commits nothing
automatically, since the records of the last poll may not be worked on. Times are in seconds. Calls raise a ClientError
(kcli.client.errors); those that ask a broker raise KafkaTimeoutError after `timeout`, default.api.timeout.ms by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from kcli.client.cluster import PartitionInfo
from kcli.client.consumer.arrow_export import ArrowBatches
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.membership import CloseOption
from kcli.client.consumer.offset_fetcher import OffsetAndTimestamp
from kcli.client.consumer.subscription_state import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ConsumerRebalanceListener,
)
from kcli.client.errors import ClientError, IllegalStateError
from kcli.client.shell.client_thread import ClientThread
from kcli.client.shell.consumer_base import ConsumerBase, offsets_of
from kcli.client.shell.consumer_builder import ARROW_ROWS, MILLISECONDS, by_name, milliseconds
from kcli.client.shell.open_operations import Done
from kcli.client.shell.record_slices import collect_in_slices
from kcli.client.shell.single_user import SingleThread
from kcli.client.value_checks import OffsetAndMetadata, check_callable, check_offsets, check_times
from kcli.format.primitives import TopicPartition as Pair

_Result = TypeVar("_Result")
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], ClientError | None], object]


class Consumer(ConsumerBase):
    """A consumer for callers that block; ConsumerBase has the calls that wait for nothing."""

    def _start(self) -> None:
        self._use = SingleThread()
        # The commits of commit_async whose callbacks were not called yet.
        self._commits: deque[tuple[Future[None], dict[Pair, OffsetAndMetadata], CommitCallback | None]] = deque()
        self._thread = ClientThread(self._core, self._clock, f"kcli consumer {self._core.network.config.client_id}")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the consumer; after an exception but WakeupError nothing is committed automatically."""
        self._leave_block(kind)
        self.close()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records for ever. A record is consumed when it is yielded: later ones are not committed."""
        held, lock = self._core.subscriptions.held, self._thread.lock
        while True:
            self._thread.check_process()
            with lock:
                record = None if self._is_closed else held.take()
            if record is not None:
                yield record
                continue
            found = self._poll(self._collect, 1.0)
            with self._put_back_on_error(found):
                seen = self._interceptors.on_consume(found) if found else found
                with lock:
                    self._core.hold(seen)

    def _call(self, function: Callable[[int], _Result]) -> _Result:
        with self._use.used():
            return self._thread.call(function)

    def _call_lightly(self, function: Callable[[int], _Result]) -> _Result:
        with self._use.used():
            return self._thread.call_lightly(function)

    def _ask(self, function: Callable[[Done[_Result], int], None]) -> _Result:
        """Start an operation and wait for its result."""
        with self._use.used():
            started: Future[_Result] = self._thread.start(partial(self._core.waits.start, function))
            try:
                return started.result()
            except KeyboardInterrupt:
                with self._thread.lock:
                    self._core.waits.abandon(function)
                raise

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None) -> None:
        """Let the group assign partitions of topics; this replaces the subscription before.

        Without topics it is `unsubscribe`.
        """
        wanted = topics if isinstance(topics, str) else list(topics)
        if not wanted and self._core.subscriptions.has_auto_assigned_partitions:
            self.unsubscribe()
        else:
            super().subscribe(wanted, listener)

    def unsubscribe(self) -> None:
        """Read nothing; the listener is called for the partitions, and a member leaves its group."""
        with self._use.used():
            self._finish(self._core.leave_group, self._api_ms / MILLISECONDS)
            self._call(self._core.unsubscribe)
            self._raise_listener_error()

    # ---------------------------------------------------------------------------------------------------------- records

    def poll(self, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Return the next records, up to max.poll.records, after at most `timeout` seconds without records an empty list.

        Raises FetchedRecordError for a record that cannot be read, until the caller seeks past it.
        """
        found = self._poll(self._take_records, timeout)
        with self._put_back_on_error(found):
            return self._intercept(found)

    def _take_records(self) -> list[ConsumerRecord]:
        """Return records that an iterator has left, or else new ones."""
        with self._thread.lock:
            left = self._core.subscriptions.held.take_all()
        self._is_seen = bool(left)
        return left or self._collect()

    def _collect(self) -> list[ConsumerRecord]:
        if self._deserializers == (None, None):
            return self._thread.call_lightly(self._core.collect)
        found: list[ConsumerRecord] = []
        with self._put_back_on_error(found):
            # The next poll raises the error of a later record again.
            most = self._core.config.max_poll_records
            thread = self._thread
            for _ in collect_in_slices(thread.call_lightly, thread.clock, self._collect_some, found, most, lambda error: None):
                thread.let_in()
        return found

    @contextmanager
    def _put_back_on_error(self, found: Sequence[ConsumerRecord]) -> Iterator[None]:
        """Have records fetched again that are not returned because of an interruption: they must not be committed."""
        try:
            yield
        except BaseException:
            with self._thread.lock:
                self._core.put_back(found)
            raise

    def poll_arrow(self, timeout: float = 1.0, max_rows: int = ARROW_ROWS) -> ArrowBatches:
        """Return the next records as Arrow record batches, one for each answer, after at most `timeout` seconds none.

        They have at most `max_rows` rows and about 1 MB of keys, values and headers in all, if no single record is larger.
        Keys and values are the bytes: deserializers and interceptors are not used.
        """
        take = partial(self._take_arrow, max_rows)
        return ArrowBatches(self._poll(lambda: self._thread.call_lightly(take), timeout))

    def _poll(self, take: Callable[[], list[_Result]], timeout: float) -> list[_Result]:
        thread, core = self._thread, self._core
        with self._use.used():
            thread.call_lightly(core.begin_poll)
            end_ms = thread.clock.now_ms() + milliseconds(timeout)
            while True:
                self._call_committed()
                self._call_listener()
                thread.call_lightly(core.raise_error)
                found = take()
                if core.fetcher.is_due:
                    with thread.lock:
                        thread.wake()
                left_ms = end_ms - thread.clock.now_ms()
                if found or left_ms <= 0:
                    return found
                thread.start(partial(core.await_work, timeout_ms=left_ms)).result()
                thread.call_lightly(core.polled)

    def _call_listener(self) -> None:
        """Call the rebalance listener as long as the membership wants it."""
        while (call := self._begin_listener_call()) is not None:
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
                if not isinstance(raised, Exception):
                    raise  # KeyboardInterrupt
            finally:
                self._end_listener_call(error)

    def wakeup(self) -> None:
        """End the waiting call under way, or the next one, with WakeupError; other threads may call this.

        A close is not ended, and after it nothing happens.
        """
        with suppress(IllegalStateError):
            self._thread.call(self._core.wakeup)

    # -------------------------------------------------------------------------------------------------------- positions

    def position(self, partition: Pair, timeout: float | None = None) -> int:
        """Return the offset of the next record of a partition; it is looked up if it is not known."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        found: int = self._ask(partial(self._core.position, partition, timeout_ms=timeout_ms))
        return found

    # ---------------------------------------------------------------------------------------------------------- offsets

    def commit_sync(self, offsets: Mapping[Pair, OffsetAndMetadata] | None = None, timeout: float | None = None) -> None:
        """Commit offsets, by default those after the records that poll returned, and wait until the group has them."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        with self._use.used():
            wanted = self._wanted(offsets)
            try:
                self._ask(partial(self._core.commit, wanted, timeout_ms=timeout_ms))
                self._interceptors.on_commit(wanted)
            finally:
                self._call_committed()

    def commit_async(
        self, offsets: Mapping[Pair, OffsetAndMetadata] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit offsets once, without waiting.

        A later poll, commit_sync or close calls `callback(offsets, error)`, in the order of the commits.
        """
        check_callable(callback, "the callback of commit_async")
        with self._use.used():
            wanted = self._wanted(offsets)
            self._commits.append((self._thread.start(partial(self._core.commit, wanted)), wanted, callback))

    def _wanted(self, offsets: Mapping[Pair, OffsetAndMetadata] | None) -> dict[Pair, OffsetAndMetadata]:
        if offsets is not None:
            check_offsets(offsets)
            return dict(offsets)
        return self._thread.call_lightly(lambda now_ms: self._core.subscriptions.all_consumed())

    def _call_committed(self) -> None:
        """Call what waits for commits that have ended: the automatic ones, then those of commit_async."""
        self._report_auto_commits()
        while self._commits and self._commits[0][0].done():
            ended, offsets, callback = self._commits.popleft()
            error = ended.exception()
            if error is None:
                self._interceptors.on_commit(offsets)
            if callback is not None:
                callback(by_name(offsets), error if isinstance(error, ClientError) else None)

    def committed(
        self, partitions: Iterable[Pair], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of partitions, None for those without one."""
        wanted, timeout_ms = list(partitions), milliseconds(timeout, self._api_ms)
        found = self._ask(partial(self._core.committed, wanted, timeout_ms=timeout_ms))
        return by_name(found)

    def _list_offsets(
        self, timestamps: Mapping[Pair, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        timeout_ms = milliseconds(timeout, self._api_ms)
        found = self._ask(partial(self._core.list_offsets, timestamps, timeout_ms=timeout_ms))
        return by_name(found)

    def offsets_for_times(
        self, timestamps: Mapping[Pair, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset with a timestamp (ms) of at least that of each partition, None if there is none."""
        check_times(timestamps)
        return self._list_offsets(timestamps, timeout)

    def beginning_offsets(self, partitions: Iterable[Pair], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the first offsets of partitions."""
        return offsets_of(self._list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), timeout))

    def end_offsets(self, partitions: Iterable[Pair], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the offsets after the last records of partitions, with read_committed after those that it returns."""
        return offsets_of(self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout))

    # ------------------------------------------------------------------------------------------------------------ others

    def partitions_for(self, topic: str, timeout: float | None = None) -> Collection[PartitionInfo]:
        """Return the partitions of a topic, none if the topic does not exist."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        return self._ask(partial(self._core.partitions_for, topic, timeout_ms=timeout_ms))

    def list_topics(self, timeout: float | None = None) -> dict[str, tuple[PartitionInfo, ...]]:
        """Return all topics with their partitions."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        return self._ask(partial(self._core.list_topics, timeout_ms=timeout_ms))

    def close(self, timeout: float = 30.0, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Commit consumed offsets if enable.auto.commit is set, leave the group, and end; this may be called again."""
        with self._use.used():
            if self._is_closed:
                return
            self._is_closed = True
            if self._thread.is_forked:
                return
            end_ms = self._thread.clock.now_ms() + milliseconds(timeout)
            try:
                wait([ended for ended, _, _ in self._commits], milliseconds(timeout) / MILLISECONDS)
                self._finish(partial(self._core.close, option=option), (end_ms - self._thread.clock.now_ms()) / MILLISECONDS)
            finally:
                self._thread.close()
                try:
                    self._call_committed()
                finally:
                    self._interceptors.close()
            self._raise_listener_error()

    def _finish(self, operation: Callable[[Done[None], int], None], timeout: float) -> None:
        """Wait for an operation at the end of a membership, and call the listener for it."""
        core, thread = self._core, self._thread
        end_ms = thread.clock.now_ms() + milliseconds(timeout)
        left = thread.start(operation)
        while not left.done() and (left_ms := end_ms - thread.clock.now_ms()) > 0:
            self._call_listener()
            work = thread.start(partial(core.await_callback, timeout_ms=left_ms))
            wait((left, work), left_ms / MILLISECONDS, FIRST_COMPLETED)
        if left.done():
            left.result()
