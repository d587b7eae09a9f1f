"""Protects: a share consumer has one user at a time, and a closed one refuses calls instead of waiting for ever.

No broker runs: the calls wait for one until they are ended.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from kcli.client.errors import IllegalStateError, WakeupError
from kcli.client.shell.async_share_consumer import AsyncShareConsumer
from kcli.client.shell.client_builder import Setting
from kcli.client.shell.share_consumer import ShareConsumer

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
