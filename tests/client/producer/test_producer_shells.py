"""Protects callers of the two producers from waiting for ever: closing in a callback, exceptions of the thread, cancellation.

No broker answers here: a listening socket accepts connections, and no more.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from kcli.client.errors import ClientError, IllegalStateError, ProducerClosedError
from kcli.client.shell.producer import AsyncProducer, Producer
from tests.server.shell.driven_node import silent_port

PATIENCE_S = 20.0


@pytest.fixture(name="server")
def _server() -> Iterator[str]:
    listening, address = silent_port()
    yield f"{address.host}:{address.port}"
    listening.close()


class _Caller(threading.Thread):
    """A thread that asks for partitions, which nobody tells; `error` is how that ended."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._producer = producer

    def run(self) -> None:
        try:
            self._producer.partitions_for("t")
        except BaseException as error:
            self.error = error

    def begin(self) -> None:
        self.start()
        limit = threading.Event()
        for _ in range(2000):
            if self._producer.metrics()["waiting-threads"]:
                return
            limit.wait(0.01)
        raise AssertionError("the call does not wait")


def test_closing_in_a_callback_ends_the_calls_of_other_threads(server: str) -> None:
    producer = Producer({"bootstrap.servers": server})
    caller = _Caller(producer)
    caller.begin()
    later = threading.Event()
    with producer._lock:
        producer._defer(producer.close)
        producer._defer(later.set)
    caller.join(PATIENCE_S)
    assert isinstance(caller.error, ProducerClosedError)
    assert later.wait(PATIENCE_S), "callbacks that are left come, too"


def test_an_exception_of_the_thread_ends_the_calls_that_wait(server: str) -> None:
    producer = Producer({"bootstrap.servers": server})
    caller = _Caller(producer)
    caller.begin()
    poll = producer._core.poll
    problem = RuntimeError("a bug")

    def failing(now_ms: int) -> None:
        producer._core.poll = poll  # type: ignore[method-assign]
        raise problem

    with producer._lock:
        producer._core.poll = failing  # type: ignore[method-assign]
        producer._thread.wake()
    caller.join(PATIENCE_S)
    assert caller.error is problem
    producer.close(0)


def test_a_callback_that_ends_the_thread_ends_the_calls_that_wait(server: str) -> None:
    """sys.exit() in a callback of delivery; a caller in flush would wait for ever."""
    producer = Producer({"bootstrap.servers": server})
    caller = _Caller(producer)
    caller.begin()
    with producer._lock:
        producer._defer(sys.exit)
    caller.join(PATIENCE_S)
    assert isinstance(caller.error, IllegalStateError) and "SystemExit" in str(caller.error)
    with pytest.raises(IllegalStateError):
        producer.flush()
    with pytest.raises(IllegalStateError):
        producer.close()


def test_a_callback_that_ends_the_thread_ends_send_and_wait(server: str) -> None:
    producer = Producer({"bootstrap.servers": server})
    is_sent = threading.Event()
    errors: list[BaseException] = []
    producer.send = lambda *args, **words: is_sent.set()  # type: ignore[method-assign]

    def send() -> None:
        try:
            producer.send_and_wait("t", b"a")
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=send, daemon=True)
    caller.start()
    assert is_sent.wait(PATIENCE_S)
    with producer._lock:
        producer._defer(sys.exit)
    caller.join(PATIENCE_S)
    assert [type(one) for one in errors] == [IllegalStateError]


def test_a_send_that_is_cancelled_is_taken_back(server: str) -> None:
    async def test() -> None:
        producer = AsyncProducer({"bootstrap.servers": server})
        sending = [asyncio.create_task(producer.send("t", b"%d" % number)) for number in range(2)]
        await asyncio.sleep(0)
        assert producer.metrics()["waiting-threads"] == 2
        sending[0].cancel()
        assert producer.metrics()["waiting-threads"] == 1, "at once, and not when the task runs again"
        await producer.close(0)
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError) and isinstance(results[1], ProducerClosedError)

    asyncio.run(test())


def test_a_call_of_transactions_that_is_cancelled_is_left_to_be_repeated(server: str) -> None:
    """Otherwise the repeated call would fail after the first one has succeeded without a caller."""

    async def test() -> None:
        producer = AsyncProducer({"bootstrap.servers": server, "transactional.id": "x"})
        requests = producer._core._requests
        assert requests is not None
        calling = asyncio.create_task(producer.init_transactions())
        await asyncio.sleep(0)
        assert len(requests._waiting) == 1 and not requests._left
        calling.cancel()
        assert requests._left == requests._waiting
        with pytest.raises(asyncio.CancelledError):
            await calling
        await producer.close(0)

    asyncio.run(test())


def test_a_close_that_is_cancelled_closes_at_once(server: str) -> None:
    """What is left fails, and no connection and no timer stays behind."""

    async def test() -> None:
        producer = AsyncProducer({"bootstrap.servers": server, "transactional.id": "x"})
        calling = asyncio.create_task(producer.init_transactions())
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        assert not calling.done() and not closing.done()
        closing.cancel()
        async with asyncio.timeout(PATIENCE_S):
            results = await asyncio.gather(calling, closing, return_exceptions=True)
        assert isinstance(results[0], ProducerClosedError) and isinstance(results[1], asyncio.CancelledError)
        assert producer._client._is_closed

    asyncio.run(test())


def test_an_exception_of_the_loop_ends_the_operations_that_wait(server: str) -> None:
    async def test() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["exception"]))
        producer = AsyncProducer({"bootstrap.servers": server})
        asking = asyncio.create_task(producer.partitions_for("t"))
        await asyncio.sleep(0)
        poll = producer._core.poll
        problem = RuntimeError("a bug")

        def failing(now_ms: int) -> None:
            producer._core.poll = poll  # type: ignore[method-assign]
            raise problem

        producer._core.poll = failing  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(producer._client.execute)
        with pytest.raises(RuntimeError, match="a bug"):
            async with asyncio.timeout(PATIENCE_S):
                await asking
        assert complaints == [problem]
        await producer.close(0)

    asyncio.run(test())


def test_a_closed_producer_refuses_calls(server: str) -> None:
    producer = Producer({"bootstrap.servers": server})
    producer.close(0)
    with pytest.raises(ClientError):
        producer.partitions_for("t")
