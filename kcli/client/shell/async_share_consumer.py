"""The share consumer for asyncio: kcli.client.shell.share_consumer with coroutines, on the running event loop.

async with AsyncShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "workers"}) as consumer:
    consumer.subscribe(["jobs"])
    while True:
        for record in await consumer.poll():
            await work(record)

One task uses `poll`, `commit` and `close` at a time. To close a consumer while another task polls, call `wakeup` and wait for
that task first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType

from kcli.client.consumer.completed_fetch import Deserializer
from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import IllegalStateError
from kcli.client.shell.client_builder import Setting
from kcli.client.shell.client_loop import ClientLoop
from kcli.client.shell.consumer_builder import MILLISECONDS, ignore_line, milliseconds
from kcli.client.shell.share_consumer import AcknowledgementCommitCallback, Results, build_share_core
from kcli.client.shell.single_user import SingleTask
from kcli.network.shell.clock import Clock


class AsyncShareConsumer:
    """A share consumer; it is made inside a running event loop. ShareConsumer describes the methods."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        log: Callable[[str], None] = ignore_line,
    ) -> None:
        """Raises ConfigError."""
        self._clock = Clock()
        self._core = build_share_core(settings, self._clock, log)
        self._deserializers = (key_deserializer, value_deserializer)
        self._api_ms = self._core.network.config.default_api_timeout_ms
        self._callback: AcknowledgementCommitCallback | None = None
        self._use = SingleTask("polls, commits or closes")
        self._is_closed = False
        self._client = ClientLoop(self._core, self._clock)

    async def __aenter__(self) -> AsyncShareConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _loop(self) -> ClientLoop:
        """Return the shell. Raises IllegalStateError after close."""
        if self._is_closed:
            raise IllegalStateError("the client is closed")
        return self._client

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics; this replaces the subscription before."""
        self._loop().call(partial(self._core.subscribe, topics))

    def unsubscribe(self) -> None:
        """Read nothing; the member leaves its group."""
        self._loop().call(partial(self._core.subscribe, ()))

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return set(self._core.subscription)

    async def poll(self, timeout: float = 1.0) -> list[ShareRecord]:
        """Return the next records, after at most `timeout` seconds without records an empty list."""
        with self._use.used():
            return await self._poll(timeout)

    async def _poll(self, timeout: float) -> list[ShareRecord]:
        client, core = self._loop(), self._core
        client.call(core.polled)
        end_ms = self._clock.now_ms() + round(timeout * MILLISECONDS)
        try:
            while True:
                self._call_back()
                found = client.call(lambda now_ms: core.collect(now_ms, *self._deserializers))
                left_ms = end_ms - self._clock.now_ms()
                if found or left_ms <= 0:
                    return found
                await client.start(partial(core.await_work, timeout_ms=left_ms))
                client.call(core.waiting)
        finally:
            core.poll_ended()

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record of the last poll; it is sent with the next poll or commit. Raises IllegalStateError."""
        self.acknowledge_offset(record.topic, record.partition, record.offset, kind)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Say what became of the record at an offset, as `acknowledge`."""
        self._core.acknowledge(topic, partition, offset, kind)

    async def commit(self, timeout: float | None = None) -> Results:
        """Send the acknowledgements and return the error of each partition, None where they succeeded."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        with self._use.used():
            results: Results = await self._loop().start(partial(self._core.commit, timeout_ms=timeout_ms))
            self._call_back()
            return results

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have a function called with the results of acknowledgements, inside later calls of the consumer."""
        self._callback = callback
        self._core.keeps_results = callback is not None

    def _call_back(self) -> None:
        while self._core.results:
            result = self._core.results.popleft()
            if self._callback is not None:
                self._callback(*result)

    def acquisition_lock_timeout(self) -> float | None:
        """Return for how many seconds records are acquired, None before the first fetch was answered."""
        timeout_ms = self._core.fetcher.lock_timeout_ms
        return None if timeout_ms is None else timeout_ms / MILLISECONDS

    def wakeup(self) -> None:
        """End the poll under way, or the next one, with WakeupError; after a close nothing happens."""
        if not self._is_closed:
            self._client.call(self._core.wakeup)

    async def close(self, timeout: float = 30.0) -> None:
        """Send explicit acknowledgements, release the other records of the last poll, and leave the group."""
        with self._use.used():
            if self._is_closed:
                return
            self._is_closed = True
            try:
                await asyncio.wait_for(self._client.start(self._core.close), timeout)
            except TimeoutError:
                pass  # the broker finds out by its timeouts
            finally:
                self._client.close()
                self._call_back()
