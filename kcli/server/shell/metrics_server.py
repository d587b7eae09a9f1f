"""Serves the metrics over HTTP: GET /metrics on --metrics-port, and nothing else.

    request                answer
    ---------------------  ------------------------------------------------------------------------------
    GET /metrics, GET /    200, the Prometheus text exposition
    GET anything else      404
    another method         405
    not HTTP, or too long  400; after one answer the connection is always closed

It listens on the host of the first listener. A request may have MAX_REQUEST_BYTES and take REQUEST_SECONDS.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from time import perf_counter, perf_counter_ns

from kcli.server.controller.controller_server import ControllerServer
from kcli.server.node import Node
from kcli.server.shell.driver import Driver
from kcli.server.shell.metrics_collector import ONLY_PROCESSOR, Rates, RawSamples, expose, sample, sample_listeners

MAX_REQUEST_BYTES = 16 * 1024
REQUEST_SECONDS = 10
SWITCH_SECONDS = 0.0005
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


Sampler = Callable[[], Awaitable[Callable[[], bytes]]]


def sampler(node: Node, driver: Driver, listeners: Iterable[str], idle: IdleTime) -> Sampler:
    """Return the function that samples a node for a MetricsServer; `listeners` are the names of the clients' listeners."""
    for listener in listeners:
        driver.of_listener(listener)
    rates = Rates(perf_counter())

    async def take() -> Callable[[], bytes]:
        controller = node.controller if isinstance(node.controller, ControllerServer) else None
        raw = RawSamples()
        sample_listeners(raw, driver.listeners)
        _sample_loop(raw, idle)
        for _ in sample(raw, node.broker, controller, node.quorum.client, driver.clock.now_ms()):
            await asyncio.sleep(0)
        rates.add(raw, perf_counter())
        summaries = {} if driver.request_times is None else driver.request_times.take()
        return partial(expose, raw, {**summaries, **raw.summaries})

    return take


def _sample_loop(raw: RawSamples, idle: IdleTime) -> None:
    share = idle.share()
    raw.add("kafka_network_processor_idlepercent", share, ONLY_PROCESSOR)
    raw.add("kafka_network_socketserver_networkprocessoravgidlepercent", share)
    raw.add("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count", idle.wait_ns)


class MetricsServer:
    """The HTTP server. `sample()` is awaited in the loop; the function that it returns makes the text in a thread."""

    def __init__(self, sample: Sampler) -> None:
        self._sample = sample
        self._server: asyncio.Server | None = None

    async def listen(self, bound: socket.socket) -> int:
        """Serve on a bound socket that listens, and return its port."""
        # So that the node's loop gets the interpreter within 0.5 ms, not 5 ms, while a thread makes the text.
        sys.setswitchinterval(SWITCH_SECONDS)
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=MAX_REQUEST_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            status, body = await self._answer(reader)
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {CONTENT_TYPE}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return 400, b"this is the metrics of a broker; GET /metrics\n"
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return 400, b"this is the metrics of a broker; GET /metrics\n"
        if words[0] != b"GET":
            return 405, b"GET is served\n"
        if words[1].partition(b"?")[0] not in (b"/metrics", b"/"):
            return 404, b"/metrics is served\n"
        expose = await self._sample()
        return 200, await asyncio.get_running_loop().run_in_executor(None, expose)


class IdleTime(selectors.DefaultSelector):
    """The selector of a loop; `wait_ns` is the total time that it has waited."""

    def __init__(self) -> None:
        super().__init__()
        self.wait_ns = 0
        self._taken = 0, perf_counter_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events; a call that may not wait is not measured."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begin = perf_counter_ns()
        try:
            return super().select(timeout)
        finally:
            self.wait_ns += perf_counter_ns() - begin

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop that uses this selector."""
        return asyncio.SelectorEventLoop(self)

    def share(self) -> float:
        """Return the share of the time since the last call that was waited, 0 to 1."""
        (wait_ns, then), now = self._taken, perf_counter_ns()
        self._taken = self.wait_ns, now
        return min(1.0, (self.wait_ns - wait_ns) / max(1, now - then))
