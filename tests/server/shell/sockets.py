"""A driver on real sockets of this machine with a node that does what a test says, for tests of the shell."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from kcli.network.events import ResponseReceived
from kcli.network.shell.clock import Clock
from kcli.server.events import (
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flushed,
    NoResponse,
    RequestReceived,
    SendResponse,
)
from kcli.server.shell.connection_quotas import Limits
from kcli.server.shell.driver import Driver

# So long a test waits for what must come; nothing takes so long.
PATIENCE_S = 20.0


class FakeNode:
    """A node that answers each request with what `serve(event)` gives; by default an echo."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.frames: list[bytes] = []
        self.deadline_ms: int | None = None
        self.serve: Callable[[RequestReceived], list[Effect]] = echo
        self.on_event: Callable[[Event], list[Effect]] = lambda event: []

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, RequestReceived):
            self.frames.append(bytes(event.frame))
            return self.serve(event)
        self.events.append(event)
        if isinstance(event, DeadlineReached):
            self.deadline_ms = None
        return self.on_event(event)

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def echo(event: RequestReceived) -> list[Effect]:
    return [SendResponse(event.connection, framed(bytes(event.frame)))]


def silent(event: RequestReceived) -> list[Effect]:
    """The answer comes later, if at all."""
    return []


def unanswered(event: RequestReceived) -> list[Effect]:
    return [NoResponse(event.connection)]


class Shell:
    """A driver that listens; `lines` is its log."""

    def __init__(self, limits: Limits) -> None:
        self.node = FakeNode()
        self.lines: list[str] = []
        self.faults: list[Exception] = []
        self.driver = Driver(self.node, self.lines.append, limits, Clock(), lambda: None, self.faults.append)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        bound.listen(128)
        bound.setblocking(False)
        self.port: int = bound.getsockname()[1]
        self.driver.listen("PLAINTEXT", bound)

    async def connect(self, receive_bytes: int | None = None) -> Client:
        raw = socket.socket()
        if receive_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        return Client(raw)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop go on until something is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.001)

    async def turns(self, count: int = 20) -> None:
        """Let the loop turn, so that whatever is ready happens."""
        for _ in range(count):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)


class Client:
    """The other end of a connection."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.port: int = raw.getsockname()[1]

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(self.raw, data)

    async def receive(self, size: int) -> bytes:
        """Exactly so many bytes, fewer at the end of the connection."""
        got = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < size:
                try:
                    data = await asyncio.get_running_loop().sock_recv(self.raw, min(1 << 20, size - len(got)))
                except ConnectionResetError:
                    break
                if not data:
                    break
                got += data
        return bytes(got)

    async def frame(self) -> bytes:
        """The next answer."""
        return await self.receive(int.from_bytes(await self.receive(4), "big"))

    async def ask(self, data: bytes) -> bytes:
        await self.send(framed(data))
        return await self.frame()

    async def is_closed(self) -> bool:
        """Wait for the other end to close."""
        return await self.receive(1) == b""

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.raw.close()


def run(test: Callable[[Shell], Awaitable[None]], limits: Limits | None = None) -> Shell:
    """Run a test on a loop of its own; whatever the loop complains of fails it."""
    complaints: list[dict[str, Any]] = []

    async def main() -> Shell:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        shell = Shell(limits or Limits())
        try:
            await test(shell)
        finally:
            shell.driver.close()
            await shell.turns()
        return shell

    shell = asyncio.run(main())
    assert not complaints, complaints
    return shell


__all__ = ["ConnectionClosed", "DeadlineReached", "Flushed", "ResponseReceived"]
