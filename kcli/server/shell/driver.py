"""The asyncio shell around a node: sockets, the timer, the disk's flushes. It moves bytes and decides nothing.

    effect           what the shell does
    ---------------  -------------------------------------------------------------------------------------------------
    SendResponse     writes the frame to the client's connection, or loops it back as a ResponseReceived
    SendFile         the same with sendfile
    NoResponse       lets the connection's next request in
    SendRequest      to the node itself: loops it back as a RequestReceived on an internal connection
    Flush            fsync in a thread, then Flushed
    CloseConnection  closes it

One timer is armed, for the node's next deadline; one that comes too early finds nothing due and is armed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from kcli.server.events import (
    CloseConnection,
    Connection,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flush,
    Flushed,
    NoResponse,
    RequestReceived,
    ResponseReceived,
    SendFile,
    SendRequest,
    SendResponse,
)
from kcli.server.shell.client_connection import ClientConnection, bytes_of
from kcli.server.shell.clock import Clock
from kcli.server.shell.receive_buffers import BufferPool


class NodePort(Protocol):
    """What the shell drives: see kcli.server.node."""

    node_id: int

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event -> what is to be done."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When DeadlineReached is to be handed in."""
        ...


class _LoopbackCall:
    """A request of the node to itself: its answer goes back to whoever asked."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


class Driver:
    """Runs one node on the running event loop; `tell(line)` writes a line of the log."""

    def __init__(self, node: NodePort, tell: Callable[[str], None], max_request_bytes: int, max_connections: int) -> None:
        self.node = node
        self.tell = tell
        self.loop = asyncio.get_running_loop()
        self.clock = Clock()
        self.buffers = BufferPool()
        self.max_request_bytes = max_request_bytes
        self.max_connections = max_connections
        self.on_change: Callable[[], None] = lambda: None
        self.on_fault: Callable[[Exception], None] = self._raise
        self._clients: set[ClientConnection] = set()
        self._next_connection_id = 0
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._servers: list[asyncio.Server] = []

    # -------------------------------------------------------------------------------------------------- the node's loop

    def execute(self, effects: Sequence[Effect]) -> None:
        """Do what the node asks for, and hand in what comes back at once."""
        for effect in effects:
            self._execute(effect)
        self._drain()
        self._arm()

    def dispatch(self, event: Event) -> None:
        """Hand one event in and do what it leads to; once all is closed, nothing."""
        if self._is_closed:
            return
        try:
            self.execute(self.node.handle(event, self.clock.now_ms()))
        except Exception as error:
            self.on_fault(error)
        self.on_change()

    @staticmethod
    def _raise(error: Exception) -> None:
        raise error

    def request_received(self, connection: Connection, frame: memoryview) -> None:
        """A client's request came; the common case, so it is short."""
        try:
            for effect in self.node.handle(RequestReceived(connection, frame), self.clock.now_ms()):
                self._execute(effect)
            if self._events:
                self._drain()
        except Exception as error:
            self.on_fault(error)
        deadline_ms = self.node.next_deadline_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._arm()

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._events:
                for effect in self.node.handle(self._events.popleft(), self.clock.now_ms()):
                    self._execute(effect)
        finally:
            self._is_draining = False

    def _execute(self, effect: Effect) -> None:
        kind = type(effect)
        if kind is SendResponse:
            assert isinstance(effect, SendResponse)
            shell = effect.connection.shell
            if type(shell) is ClientConnection:
                shell.send(effect.frame)
            elif isinstance(shell, _LoopbackCall):
                self._events.append(ResponseReceived(shell.request_id, bytes(effect.frame[4:])))
        elif isinstance(effect, SendFile):
            self._send_file(effect)
        elif isinstance(effect, NoResponse):
            if isinstance(effect.connection.shell, ClientConnection):
                effect.connection.shell.answered()
        elif isinstance(effect, SendRequest):
            self._send_request(effect)
        elif isinstance(effect, Flush):
            self._flush(effect)
        elif isinstance(effect, CloseConnection) and isinstance(effect.connection.shell, ClientConnection):
            effect.connection.shell.close(effect.reason)

    def _send_file(self, effect: SendFile) -> None:
        shell = effect.connection.shell
        if isinstance(shell, ClientConnection):
            shell.send_parts(effect.parts)
        elif isinstance(shell, _LoopbackCall):
            self._events.append(ResponseReceived(shell.request_id, b"".join(map(bytes_of, effect.parts))[4:]))

    def _send_request(self, effect: SendRequest) -> None:
        if effect.destination_id != self.node.node_id:
            # Other nodes are peers of a cluster, which is served later; the sender is told that nothing came.
            self._events.append(ResponseReceived(effect.request_id, None))
            return
        connection = Connection(self._connection_id(), "internal", "127.0.0.1", is_internal=True)
        connection.shell = _LoopbackCall(effect.request_id)
        self._events.append(RequestReceived(connection, memoryview(bytearray(effect.frame))[4:]))

    def _connection_id(self) -> int:
        self._next_connection_id += 1
        return self._next_connection_id

    def _flush(self, effect: Flush) -> None:
        self.loop.run_in_executor(None, flush_paths, effect.paths).add_done_callback(
            lambda done: self.dispatch(Flushed(effect.flush_id, done.result()))
        )

    def _arm(self) -> None:
        deadline_ms = self.node.next_deadline_ms()
        if deadline_ms == self._armed_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        if deadline_ms is None:
            self._timer = None
            return
        self._timer = self.loop.call_later(max(0, deadline_ms - self.clock.now_ms()) / 1000, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._armed_ms = self._timer = None
        self.dispatch(DeadlineReached())

    # ----------------------------------------------------------------------------------------------------- connections

    async def listen(self, listener: str, bound: socket.socket) -> None:
        """Take connections on a listener's socket, which is bound and listens."""

        def make(peer: tuple[str, int]) -> Connection:
            return Connection(self._connection_id(), listener, *peer)

        def protocol() -> ClientConnection:
            return ClientConnection(self, make, self.loop)

        self._servers.append(await self.loop.create_server(protocol, sock=bound))

    def connection_made(self, client: ClientConnection) -> bool:
        """Count a connection in; False: there are max.connections already."""
        if len(self._clients) >= self.max_connections:
            self.log_closing(client.connection, f"there are {self.max_connections} connections already (max.connections)")
            return False
        self._clients.add(client)
        return True

    def connection_lost(self, client: ClientConnection) -> None:
        """Count it out, and tell the node."""
        self._clients.discard(client)
        self.dispatch(ConnectionClosed(client.connection))

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def log_closing(self, connection: Connection, reason: str) -> None:
        """Say in the log why a connection is closed."""
        peer = f"{connection.client_host}:{connection.client_port}"
        self.tell(f"closing the connection of {peer} to {connection.listener}: {reason}")

    def stop_listening(self) -> None:
        """Take no more connections."""
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Close all that is open; what still happens is not handed in."""
        self._is_closed = True
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        for client in list(self._clients):
            client.transport.abort()


def flush_paths(paths: Sequence[str]) -> OSError | None:
    """fsync files and directories, in their order -> the error that came, if any; a path that is gone is none."""
    try:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
    except OSError as error:
        return error
    return None
