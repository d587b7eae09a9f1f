"""The asyncio consumer, over a ConsumerCore on the running event loop.

    async with AsyncConsumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["topic"])
        async for record in consumer:
            print(record.topic, record.partition, record.offset, record.key, record.value)

The calls are those of kcli.client.shell.consumer.Consumer; what waits for a broker is a coroutine. A rebalance listener may
have coroutine methods; they are called inside `poll` and `close`.

One task uses `poll`, `unsubscribe` and `close` at a time. To close a consumer while another task polls, call `wakeup` and wait
for that task first. Deserializers are called on the event loop, which has time between the records if they are slow.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TypeVar

from kcli.client.cluster import PartitionInfo
from kcli.client.consumer.arrow_export import ArrowBatch, ArrowBatches
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.membership import CloseOption
from kcli.client.consumer.offset_fetcher import OffsetAndTimestamp
from kcli.client.consumer.subscription_state import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ConsumerRebalanceListener,
)
from kcli.client.errors import IllegalStateError
from kcli.client.shell.client_loop import ClientLoop
from kcli.client.shell.consumer_base import ConsumerBase, offsets_of
from kcli.client.shell.consumer_builder import ARROW_ROWS, MILLISECONDS, by_name, milliseconds
from kcli.client.shell.open_operations import Done
from kcli.client.shell.record_slices import collect_in_slices
from kcli.client.shell.single_user import SingleTask
from kcli.client.value_checks import OffsetAndMetadata, check_times
from kcli.format.primitives import TopicPartition as Pair

_Result = TypeVar("_Result")
_CANNOT_AWAIT = "the rebalance listener has coroutine methods, which subscribe([]) cannot await: await unsubscribe() instead"


def _methods_at_the_end(listener: ConsumerRebalanceListener) -> tuple[Callable[..., object], ...]:
    """Return the methods that may be called for partitions that are taken away."""
    return listener.on_partitions_revoked, listener.on_partitions_lost


class AsyncConsumer(ConsumerBase):
    """A consumer on the event loop that runs when it is first used; ConsumerBase has the calls that wait for nothing."""

    def _start(self) -> None:
        self._client: ClientLoop | None = None
        self._use = SingleTask("polls, unsubscribes or closes")

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the consumer; after an exception but WakeupError nothing is committed automatically."""
        self._leave_block(kind)
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records for ever. A record is consumed when it is yielded: later ones are not committed."""
        held = self._core.subscriptions.held
        while True:
            record = None if self._is_closed else held.take()
            if record is not None:
                yield record
                continue
            found = await self._poll(self._collect, 1.0)
            self._core.hold(self._interceptors.on_consume(found) if found else ())

    def _loop(self) -> ClientLoop:
        """Return the shell. Raises IllegalStateError after close."""
        if self._is_closed:
            raise IllegalStateError("the client is closed")
        if self._client is None:
            self._client = ClientLoop(self._core, self._clock)
        self._client.check_process()
        return self._client

    def _call(self, function: Callable[[int], _Result]) -> _Result:
        return self._loop().call(function)

    async def _ask(self, function: Callable[[Done[_Result], int], None]) -> _Result:
        waits = self._core.waits
        return await self._loop().start(partial(waits.start, function), partial(waits.abandon, function))

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None) -> None:
        """Let the group assign partitions of topics; this replaces the subscription before.

        Without topics it is `unsubscribe` without waiting for the broker; a listener with coroutine methods cannot be awaited
        then: IllegalStateError.
        """
        wanted = topics if isinstance(topics, str) else list(topics)
        subscriptions = self._core.subscriptions
        if wanted or subscriptions.listener is None or not subscriptions.has_auto_assigned_partitions:
            super().subscribe(wanted, listener)
            return
        if any(map(inspect.iscoroutinefunction, _methods_at_the_end(subscriptions.listener))):
            raise IllegalStateError(_CANNOT_AWAIT)
        with self._use.used():
            self._call(lambda now_ms: self._core.leave_group(lambda error, now_ms: None, now_ms))
            self._call_plain_listener()
            self._call(self._core.unsubscribe)
            self._raise_listener_error()

    async def unsubscribe(self) -> None:
        """Read nothing; the listener is called for the partitions, and a member leaves its group."""
        with self._use.used():
            await self._finish(self._loop(), self._core.leave_group, self._api_ms / MILLISECONDS)
            self._call(self._core.unsubscribe)
            self._raise_listener_error()

    # ---------------------------------------------------------------------------------------------------------- records

    async def poll(self, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Return the next records, up to max.poll.records, after at most `timeout` seconds without records an empty list.

        Raises FetchedRecordError for a record that cannot be read, until the caller seeks past it.
        """
        return self._intercept(await self._poll(self._take_records, timeout))

    async def _take_records(self) -> list[ConsumerRecord]:
        """Return records that an iterator has left, or else new ones."""
        left = self._core.subscriptions.held.take_all()
        self._is_seen = bool(left)
        return left or await self._collect()

    async def _collect(self) -> list[ConsumerRecord]:
        loop, core = self._loop(), self._core
        if self._deserializers == (None, None):
            return loop.call(core.collect)
        found: list[ConsumerRecord] = []
        try:
            # The next poll raises the error of a later record again.
            most = core.config.max_poll_records
            for _ in collect_in_slices(loop.call, self._clock, self._collect_some, found, most, lambda error: None):
                await asyncio.sleep(0)
        except BaseException:
            core.put_back(found)  # the task was cancelled
            raise
        return found

    async def poll_arrow(self, timeout: float = 1.0, max_rows: int = ARROW_ROWS) -> ArrowBatches:
        """Return the next records as Arrow record batches, one for each answer, after at most `timeout` seconds none.

        They have at most `max_rows` rows and about 1 MB of keys and values in all, if no single record is larger.
        Keys and values are the bytes: deserializers and interceptors are not used.
        """

        async def take() -> list[ArrowBatch]:
            return self._call(partial(self._take_arrow, max_rows))

        return ArrowBatches(await self._poll(take, timeout))

    async def _poll(self, take: Callable[[], Awaitable[list[_Result]]], timeout: float) -> list[_Result]:
        core, loop = self._core, self._loop()
        with self._use.used():
            loop.call(core.begin_poll)
            end_ms = self._clock.now_ms() + milliseconds(timeout)
            while True:
                self._report_auto_commits()
                await self._call_listener()
                loop.call(core.raise_error)
                found = await take()
                left_ms = end_ms - self._clock.now_ms()
                if found or left_ms <= 0:
                    return found
                await loop.start(partial(core.await_work, timeout_ms=left_ms))
                loop.call(core.polled)

    async def _call_listener(self) -> None:
        """Call the rebalance listener as long as the membership wants it."""
        while (call := self._begin_listener_call()) is not None:
            error: BaseException | None = None
            try:
                returned = call()
                if inspect.isawaitable(returned):
                    await returned
            except BaseException as raised:
                error = raised
                if not isinstance(raised, Exception):
                    raise  # the task was cancelled
            finally:
                self._end_listener_call(error)

    def _call_plain_listener(self) -> None:
        """Call the rebalance listener, whose methods are no coroutines."""
        while (call := self._begin_listener_call()) is not None:
            error: Exception | None = None
            try:
                returned = call()
                if inspect.isawaitable(returned):
                    error = IllegalStateError(_CANNOT_AWAIT)
            except Exception as raised:
                error = raised
            finally:
                self._end_listener_call(error)

    def wakeup(self) -> None:
        """End the waiting calls under way, or the next one, with WakeupError; a close is not ended."""
        if not self._is_closed:
            self._call(self._core.wakeup)

    # -------------------------------------------------------------------------------------------------------- positions

    async def position(self, partition: Pair, timeout: float | None = None) -> int:
        """Return the offset of the next record of a partition; it is looked up if it is not known."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        found: int = await self._ask(partial(self._core.position, partition, timeout_ms=timeout_ms))
        return found

    # ---------------------------------------------------------------------------------------------------------- offsets

    async def commit(self, offsets: Mapping[Pair, OffsetAndMetadata] | None = None, timeout: float | None = None) -> None:
        """Commit offsets, by default those after the records that poll returned, and wait until the group has them."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        wanted = self._core.subscriptions.all_consumed() if offsets is None else dict(offsets)
        await self._ask(partial(self._core.commit, wanted, timeout_ms=timeout_ms))
        self._interceptors.on_commit(wanted)

    async def committed(
        self, partitions: Iterable[Pair], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of partitions, None for those without one."""
        wanted, timeout_ms = list(partitions), milliseconds(timeout, self._api_ms)
        found = await self._ask(partial(self._core.committed, wanted, timeout_ms=timeout_ms))
        return by_name(found)

    async def _list_offsets(
        self, timestamps: Mapping[Pair, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        timeout_ms = milliseconds(timeout, self._api_ms)
        found = await self._ask(partial(self._core.list_offsets, timestamps, timeout_ms=timeout_ms))
        return by_name(found)

    def offsets_for_times(
        self, timestamps: Mapping[Pair, int], timeout: float | None = None
    ) -> Awaitable[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """Return the first offset with a timestamp (ms) of at least that of each partition, None if there is none."""
        check_times(timestamps)
        return self._list_offsets(timestamps, timeout)

    async def beginning_offsets(self, partitions: Iterable[Pair], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the first offsets of partitions."""
        return offsets_of(await self._list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), timeout))

    async def end_offsets(self, partitions: Iterable[Pair], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the offsets after the last records of partitions, with read_committed after those that it returns."""
        return offsets_of(await self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout))

    # ------------------------------------------------------------------------------------------------------------ others

    async def partitions_for(self, topic: str, timeout: float | None = None) -> Collection[PartitionInfo]:
        """Return the partitions of a topic, none if the topic does not exist."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        return await self._ask(partial(self._core.partitions_for, topic, timeout_ms=timeout_ms))

    async def list_topics(self, timeout: float | None = None) -> dict[str, tuple[PartitionInfo, ...]]:
        """Return all topics with their partitions."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        return await self._ask(partial(self._core.list_topics, timeout_ms=timeout_ms))

    async def close(self, timeout: float = 30.0, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Commit consumed offsets if enable.auto.commit is set, leave the group, and end; this may be called again."""
        if self._is_closed:
            return
        if self._client is not None and self._client.is_forked:
            self._is_closed = True
            return
        loop = self._loop()
        with self._use.used():
            try:
                await self._finish(loop, partial(self._core.close, option=option), timeout)
            finally:
                self._is_closed = True
                loop.close()
                self._report_auto_commits()
                self._interceptors.close()
            self._raise_listener_error()

    async def _finish(self, loop: ClientLoop, operation: Callable[[Done[None], int], None], timeout: float) -> None:
        """Wait for an operation at the end of a membership, and call the listener for it."""
        end_ms = self._clock.now_ms() + milliseconds(timeout)
        left = loop.start(operation)
        while not left.done() and (left_ms := end_ms - self._clock.now_ms()) > 0:
            await self._call_listener()
            work = loop.start(partial(self._core.await_callback, timeout_ms=left_ms))
            await asyncio.wait((left, work), timeout=left_ms / MILLISECONDS, return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            left.result()
