"""The share consumer for asyncio: kcli.client.shell.share_consumer with coroutines, on the running event loop.

async with AsyncShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "workers"}) as consumer:
    consumer.subscribe(["jobs"])
    while True:
        for record in await consumer.poll():
            await work(record)

One task uses `poll`, `commit` and `close` at a time. To close a consumer while another task polls, call `wakeup` and wait for
that task first. Deserializers are called on the event loop, which has time between the records if they are slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

from kcli.client.consumer.share_records import ShareRecord
from kcli.client.errors import IllegalStateError
from kcli.client.shell.client_loop import ClientLoop
from kcli.client.shell.consumer_builder import MILLISECONDS, milliseconds
from kcli.client.shell.open_operations import Done
from kcli.client.shell.record_slices import collect_in_slices
from kcli.client.shell.share_consumer_base import Results, ShareConsumerBase
from kcli.client.shell.single_user import SingleTask

_Result = TypeVar("_Result")


class AsyncShareConsumer(ShareConsumerBase):
    """A share consumer that is made inside a running event loop; ShareConsumerBase has the calls that wait for nothing."""

    def _start(self) -> None:
        self._use = SingleTask("polls, commits or closes")
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
        self._client.check_process()
        return self._client

    def _call(self, function: Callable[[int], _Result]) -> _Result:
        return self._loop().call(function)

    async def poll(self, timeout: float = 1.0) -> list[ShareRecord]:
        """Return the next records, after at most `timeout` seconds without records an empty list."""
        self._loop()  # raises an error in a forked process, which has no task
        with self._use.used():
            return await self._poll(timeout)

    async def _poll(self, timeout: float) -> list[ShareRecord]:
        client, core = self._loop(), self._core
        client.call(core.polled)
        end_ms = self._clock.now_ms() + milliseconds(timeout)
        try:
            while True:
                self._call_back()
                found = await self._collect()
                left_ms = end_ms - self._clock.now_ms()
                if found or left_ms <= 0:
                    return found
                await client.start(partial(core.await_work, timeout_ms=left_ms))
                client.call(core.waiting)
        finally:
            core.poll_ended()

    async def _collect(self) -> list[ShareRecord]:
        client, core = self._loop(), self._core
        if self._deserializers == (None, None):
            return client.call(core.collect)
        found: list[ShareRecord] = []
        try:
            most, keep = core.config.max_poll_records, core.fetcher.keep_unread
            for _ in collect_in_slices(client.call, self._clock, self._collect_some, found, most, keep):
                await asyncio.sleep(0)
        except BaseException:
            core.put_back(found)  # the task was cancelled, or an interrupt
            raise
        return found

    async def commit(self, timeout: float | None = None) -> Results:
        """Send the acknowledgements and return the error of each partition, None where they succeeded."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        self._loop()
        with self._use.used():
            commit: Callable[[Done[Results], int], None] = partial(self._core.commit, timeout_ms=timeout_ms)
            waits = self._core.waits
            results: Results = await self._loop().start(partial(waits.start, commit), partial(waits.abandon, commit))
            self._call_back()
            return results

    def wakeup(self) -> None:
        """End the poll or commit under way, or the next one, with WakeupError; after a close nothing happens."""
        if not self._is_closed:
            self._client.call(self._core.wakeup)

    async def close(self, timeout: float = 30.0) -> None:
        """Send explicit acknowledgements, release the other records of the last poll, and leave the group."""
        if self._client.is_forked:
            self._is_closed = True
            return
        with self._use.used():
            if self._is_closed:
                return
            self._is_closed = True
            try:
                await asyncio.wait_for(self._client.start(self._core.close), milliseconds(timeout) / MILLISECONDS)
            except TimeoutError:
                pass  # the broker finds out by its timeouts
            finally:
                self._client.close()
                self._call_back()
