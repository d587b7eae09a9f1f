"""Protects: a share consumer has one user at a time, and a closed one refuses calls instead of waiting for ever.

No broker runs: the calls wait for one until they are ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import pytest

from kcli.client.consumer.share_records import Run, ShareFetched
from kcli.client.errors import IllegalStateError, RecordDeserializationError, WakeupError
from kcli.client.shell.async_share_consumer import AsyncShareConsumer
from kcli.client.shell.client_builder import Setting
from kcli.client.shell.share_consumer import ShareConsumer
from kcli.format.record_scan import RecordColumns
from tests.client.consumer.test_consumer_shells import Ticks
from tests.server.whole_node import batch

SETTINGS: dict[str, Setting] = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g"}


def test_two_tasks_do_not_use_a_share_consumer_at_the_same_time() -> None:
    """The second poll would end the wait of the first one, and what it acquires."""

    async def run() -> None:
        consumer = AsyncShareConsumer(SETTINGS)
        consumer.subscribe(["t"])
        polling = asyncio.ensure_future(consumer.poll(60.0))
        await asyncio.sleep(0)
        for call in (consumer.poll(0), consumer.commit(0), consumer.close()):
            with pytest.raises(IllegalStateError, match="another task polls, commits or closes the consumer"):
                await call
        assert consumer._core.fetcher.is_wanted and not polling.done()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await polling
        await consumer.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_two_threads_do_not_use_a_share_consumer_at_the_same_time() -> None:
    with ShareConsumer(SETTINGS) as consumer:
        consumer.subscribe(["t"])
        waits = threading.Event()
        await_work = consumer._core.await_work

        def noted(done: object, now_ms: int, timeout_ms: int) -> None:
            waits.set()
            await_work(done, now_ms, timeout_ms)  # type: ignore[arg-type]

        consumer._core.await_work = noted  # type: ignore[method-assign, assignment]
        errors: list[BaseException] = []

        def poll() -> None:
            try:
                consumer.poll(60.0)
            except WakeupError as error:
                errors.append(error)

        polling = threading.Thread(target=poll)
        polling.start()
        assert waits.wait(30)
        for call in (lambda: consumer.poll(0), consumer.commit_sync, consumer.unsubscribe, consumer.close):
            with pytest.raises(IllegalStateError, match="another thread"):
                call()
        consumer.wakeup()
        polling.join(30)
        assert len(errors) == 1


def test_wakeup_ends_a_commit() -> None:
    """Of acknowledgements that no broker answers; without a call under way it ends the next one."""
    with ShareConsumer(SETTINGS) as consumer:

        def unanswered(done: object, now_ms: int) -> None:
            threading.Thread(target=consumer.wakeup).start()

        consumer._core.fetcher.flush = unanswered  # type: ignore[method-assign]
        with pytest.raises(WakeupError):
            consumer.commit_sync(60.0)
        del consumer._core.fetcher.flush
        assert consumer.commit_sync(60.0) == {}
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.commit_sync(60.0)
        assert consumer.commit_sync(60.0) == {}

    async def run() -> None:
        async with AsyncShareConsumer(SETTINGS) as awaiting:
            committed: list[object] = []
            awaiting._core.fetcher.flush = lambda done, now_ms: committed.append(done)  # type: ignore[method-assign]
            committing = asyncio.ensure_future(awaiting.commit(60.0))
            await asyncio.sleep(0)
            assert committed
            awaiting.wakeup()
            with pytest.raises(WakeupError):
                await committing

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_closed_share_consumer_refuses_calls() -> None:
    consumer = ShareConsumer(SETTINGS)
    consumer.close()
    consumer.close()
    consumer.wakeup()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.subscribe(["t"])

    async def run() -> None:
        awaiting = AsyncShareConsumer(SETTINGS)
        awaiting.subscribe(["t"])
        await awaiting.close()
        await awaiting.close()
        awaiting.wakeup()
        for call in (awaiting.poll(60.0), awaiting.commit()):
            with pytest.raises(IllegalStateError, match="closed"):
                await call
        with pytest.raises(IllegalStateError, match="closed"):
            awaiting.subscribe(["t"])

    asyncio.run(asyncio.wait_for(run(), 30))


def fetched(values: Iterable[bytes]) -> ShareFetched:
    """An answer to ShareFetch with records from offset 0 on, which are all acquired."""
    found = list(values)
    data = memoryview(batch(*found))
    return ShareFetched(("t", 0), b"i" * 16, 1, data, [Run(0, len(found) - 1, 1)], RecordColumns(64), False)


def test_slow_deserializers_let_the_network_thread_work() -> None:
    """It sends the heartbeats: without them the member is taken out of its group."""
    worked = threading.Event()
    seen: list[bool] = []

    def work() -> None:
        with consumer._thread._own_lock:
            worked.set()

    def deserialize(data: bytes) -> bytes:
        if not seen:
            consumer._thread.call_soon(work)
        seen.append(worked.wait(0.01))
        return data

    with ShareConsumer(SETTINGS, value_deserializer=deserialize) as consumer:
        consumer.subscribe(["t"])
        consumer._core.fetcher.buffer.append(fetched([b"value"] * 12))
        assert len(consumer.poll(0)) == 12 and seen[-1]


def test_slow_deserializers_let_the_event_loop_work() -> None:
    """It sends the heartbeats. Records of a poll that is cancelled are released, not accepted by the next one."""

    async def run() -> None:
        consumer = AsyncShareConsumer(SETTINGS, value_deserializer=lambda data: ticks.deserialize(data))
        ticks = Ticks(consumer._clock)
        consumer.subscribe(["t"])
        consumer._core.fetcher.buffer.append(fetched([b"value"] * 12))
        assert len(await consumer.poll(0)) == 12
        assert ticks.seen[-1] >= ticks.seen[0] + 4, "after the first records there is time before each one"
        consumer._core._held.clear()
        consumer._core.fetcher.buffer.append(fetched([b"value"] * 12))
        polling = asyncio.ensure_future(consumer.poll(0))
        while len(ticks.seen) < 12 + 10:
            await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert not consumer._core._held
        ticks.stop()
        await consumer.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_later_slice_that_fails_costs_no_error_and_no_record() -> None:
    """With one record in each slice after the first one, the error is not lost; after an interruption, nothing is accepted."""
    interrupts = False

    def deserialize(data: bytes) -> bytes:
        if data == b"8":
            raise KeyboardInterrupt if interrupts else ValueError("not this one")
        return data

    with ShareConsumer(SETTINGS, value_deserializer=deserialize) as consumer:
        consumer.subscribe(["t"])
        consumer._core.fetcher.buffer.append(fetched(b"%d" % number for number in range(10)))
        assert [one.offset for one in consumer.poll(0)] == list(range(8))
        with pytest.raises(RecordDeserializationError, match="t-0@8"):
            consumer.poll(0)
        assert [one.offset for one in consumer.poll(0)] == [9]
        consumer._core._held.clear()
        interrupts = True
        consumer._core.fetcher.buffer.append(fetched(b"%d" % number for number in range(10)))
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(0)
        assert not consumer._core._held
