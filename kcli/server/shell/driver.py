"""The asyncio shell around a node: sockets, the timer, flushes. It moves bytes and decides nothing.

    effect           what the shell does
    ---------------  -------------------------------------------------------------------------------------------------
    SendResponse     writes the frame to the client's connection, or loops it back as a ResponseReceived
    SendFile         the same with sendfile
    NoResponse       reads the connection's next request
    SendRequest      to another node: kcli.network.shell.peer_connections; to the node itself: kcli.server.loopback
    ClosePeer        closes the connection to another node
    Flush            fsync in a thread, then Flushed
    Compute          calls the function in a thread, one at a time, then Computed
    HoldMemory       counts it in the buffer pool, whose limit pauses reading
    CloseConnection  closes it; to the node's own requests it is a ResponseReceived without an answer

Clients' connections without bytes for max_idle_ms are found in IDLE_ROUNDS rounds in that time, and closed.
One timer is armed, for the node's next deadline; if it fires before anything is due, it is armed again.

An exception that leaves the node ends it: the driver closes all that is open, passes no more events to the node, and calls
`on_failure(error)` once. Several drivers, each with a node, can share a loop: what follows is decided by the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from kcli.log.disk.os_disk import flush_paths
from kcli.network.events import ClosePeer, PeerAddress, SendRequest
from kcli.network.shell.clock import Clock
from kcli.network.shell.peer_connections import PeerConnections
from kcli.server.events import (
    CloseConnection,
    Compute,
    Computed,
    Connection,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flush,
    Flushed,
    HoldMemory,
    NoResponse,
    RequestReceived,
    SendFile,
    SendResponse,
)
from kcli.server.log_lines import Line, WarningLine
from kcli.server.loopback import answer_event, request_event
from kcli.server.metrics.broker_metrics import ListenerMetrics
from kcli.server.shell.acceptor import Acceptor
from kcli.server.shell.client_connection import ClientConnection, bytes_of
from kcli.server.shell.connection_quotas import ConnectionQuotas, Limits
from kcli.server.shell.receive_buffers import STALLED_AFTER_S, BufferPool

if TYPE_CHECKING:
    from kcli.server.shell.request_times import RequestTimes

# The number of rounds in which connections are found to be idle; each is closed at most one round late.
IDLE_ROUNDS = 8


class NodePort(Protocol):
    """The part of kcli.server.node that the driver calls."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event and return the effects."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when DeadlineReached is due, None for never."""
        ...


class Driver:
    """Runs one node on the running event loop; `log(line)` writes a line of the log.

    `on_change()` is called after each event that is not a client's request, `on_failure(error)` when the node has ended.
    `request_times` is given if metrics are served.
    """

    def __init__(
        self,
        node: NodePort,
        log: Callable[[str], None],
        limits: Limits,
        clock: Clock,
        on_change: Callable[[], None],
        on_failure: Callable[[Exception], None],
        request_times: RequestTimes | None = None,
    ) -> None:
        self.node = node
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.clock = clock
        self.buffers = BufferPool(limits.max_receive_bytes)
        self.buffers.on_wait = self._watch_stalled_clients
        self._stalled_timer: asyncio.TimerHandle | None = None
        self.max_request_bytes = limits.max_request_bytes
        self.quotas = ConnectionQuotas(limits, log)
        self.idle_round = 0
        self.request_times = request_times
        self._on_change = on_change
        self._on_failure = on_failure
        self._peers = PeerConnections(self.loop, self.dispatch)
        self._clients: set[ClientConnection] = set()
        self.listeners: dict[str, ListenerMetrics] = {}
        self._next_connection_id = 0
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._is_due = False
        self._acceptors: dict[str, Acceptor] = {}  # by open listener
        self._idle_timer: asyncio.TimerHandle | None = None
        self._computer: ThreadPoolExecutor | None = None
        self.is_stopping = False  # set by the owner of the node

    # -------------------------------------------------------------------------------------------------- the node's loop

    def execute(self, effects: Sequence[Effect]) -> None:
        """Execute effects, and pass the events that follow at once to the node."""
        for effect in effects:
            self._execute(effect)
        self._drain()
        self._arm()

    def dispatch(self, event: Event) -> None:
        """Pass one event to the node and execute its effects; after `close`, do nothing."""
        self.step(lambda now_ms: self.node.handle(event, now_ms))

    def step(self, run: Callable[[int], Sequence[Effect]]) -> None:
        """Run one step of the node, `run(now_ms)`, and execute its effects; after `close`, do nothing."""
        if self._is_closed:
            return
        try:
            self.execute(run(self.clock.now_ms()))
        except Exception as error:
            self._fail(error)
            return
        self._on_change()

    def _fail(self, error: Exception) -> None:
        """End the node: its state is not known any more."""
        if not self._is_closed:
            try:
                self.close()
            finally:
                self._on_failure(error)

    def request_received(self, connection: Connection, frame: memoryview) -> None:
        """Pass a client's request to the node; the most frequent event, so the path is short."""
        if self._is_closed:
            return
        if self.request_times is not None:
            self.request_times.begin(connection.connection_id, frame)
        try:
            effects = self.node.handle(RequestReceived(connection, frame), self.clock.now_ms())
            if self.request_times is not None:
                self.request_times.handled(connection.connection_id)
            for effect in effects:
                self._execute(effect)
            if self._events:
                self._drain()
        except Exception as error:
            self._fail(error)
            return
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
                if self.request_times is not None:
                    self.request_times.ready(effect.connection.connection_id)
                shell.send(effect.frame)
            else:
                self._loop_back(effect.connection, bytes(effect.frame))
        elif isinstance(effect, SendFile):
            self._send_file(effect)
        elif isinstance(effect, NoResponse):
            if isinstance(effect.connection.shell, ClientConnection):
                effect.connection.shell.answered()
            else:
                self._loop_back(effect.connection, None)
        elif isinstance(effect, SendRequest):
            if effect.peer.address is None:
                self._events.append(request_event(effect, self._connection_id()))
            else:
                self._peers.send(effect)
        elif isinstance(effect, ClosePeer):
            self._peers.close(effect.peer)
        elif isinstance(effect, Flush):
            self._flush(effect)
        elif isinstance(effect, Compute):
            self._compute(effect)
        elif isinstance(effect, HoldMemory):
            self.buffers.hold(effect.size_bytes)
        elif isinstance(effect, CloseConnection):
            if isinstance(effect.connection.shell, ClientConnection):
                effect.connection.shell.close(effect.reason)
            else:
                self.log(WarningLine(f"a request of the node to itself is not answered: {effect.reason}", error=effect.reason))
                self._loop_back(effect.connection, None)

    def _loop_back(self, connection: Connection, frame: bytes | None) -> None:
        """Pass the answer to a request of the node to itself, None for none."""
        event = answer_event(connection, frame)
        if event is not None:
            self._events.append(event)

    def _send_file(self, effect: SendFile) -> None:
        shell = effect.connection.shell
        if isinstance(shell, ClientConnection):
            if self.request_times is not None:
                self.request_times.ready(effect.connection.connection_id)
            shell.send_parts(effect.parts)
        else:
            self._loop_back(effect.connection, b"".join(map(bytes_of, effect.parts)))

    def _connection_id(self) -> int:
        self._next_connection_id += 1
        return self._next_connection_id

    def _flush(self, effect: Flush) -> None:
        if not effect.paths:  # the end of a time slice
            self.loop.call_soon(self.dispatch, Flushed(effect.flush_id, None))
            return
        begin_ns = perf_counter_ns()

        def flushed(done: asyncio.Future[OSError | None]) -> None:
            if self.request_times is not None:
                self.request_times.flushed(perf_counter_ns() - begin_ns)
            self.dispatch(Flushed(effect.flush_id, done.result()))

        self.loop.run_in_executor(None, flush_paths, effect.paths).add_done_callback(flushed)

    def _compute(self, effect: Compute) -> None:
        if self._computer is None:
            # One thread: the interpreter runs only one at a time, and flushes do not wait for it.
            self._computer = ThreadPoolExecutor(1, "kcli-compute")
        self.loop.run_in_executor(self._computer, effect.work).add_done_callback(
            lambda done: None if done.cancelled() else self.dispatch(Computed(effect.compute_id, done.result()))
        )

    def _arm(self) -> None:
        """Have the node's next deadline reached in time.

        A deadline that has come waits for the requests that were received with this one, so that their records make one batch.
        A timer that is set is not moved back: the node may be called too early, and most deadlines move with every request.
        """
        deadline_ms = self.node.next_deadline_ms()
        if deadline_ms is None or self._is_due or (self._armed_ms is not None and self._armed_ms <= deadline_ms):
            return
        delay_ms = deadline_ms - self.clock.now_ms()
        if delay_ms <= 0:
            self._is_due = True
            self.loop.call_soon(self._deadline_reached)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        self._timer = self.loop.call_later(delay_ms / 1000, self._timer_ended)

    def _timer_ended(self) -> None:
        self._armed_ms = self._timer = None
        self._deadline_reached()

    def _deadline_reached(self) -> None:
        self._is_due = False
        self.dispatch(DeadlineReached())

    # ----------------------------------------------------------------------------------------------------- connections

    def listen(self, listener: str, bound: socket.socket) -> None:
        """Accept connections on a listener's socket, which is bound and listens."""

        def serve(host: str, port: int) -> ClientConnection:
            return ClientConnection(self, Connection(self._connection_id(), listener, host, port), self.loop)

        self.of_listener(listener)
        self._acceptors[listener] = Acceptor(bound, self.quotas, serve)
        if self._idle_timer is None and self.quotas.limits.max_idle_ms > 0:
            self._close_idle_clients()

    def connection_made(self, client: ClientConnection) -> None:
        """Count a client's connection."""
        self._clients.add(client)
        client.metrics.created += 1

    def connection_lost(self, client: ClientConnection) -> None:
        """Drop a client's connection, and pass its end to the node."""
        if self.request_times is not None:
            self.request_times.forget(client.connection.connection_id)
        self._clients.discard(client)
        client.metrics.closed += 1
        self.quotas.remove(client.connection.client_host)
        self.dispatch(ConnectionClosed(client.connection))

    def _close_idle_clients(self) -> None:
        max_idle_ms = self.quotas.limits.max_idle_ms
        idle = [client for client in self._clients if self.idle_round - client.active_round > IDLE_ROUNDS]
        for client in idle:
            client.metrics.expired += 1
            client.abort()
        if idle:
            text = f"closed {len(idle)} connections that were idle for {max_idle_ms} ms (connections.max.idle.ms)"
            self.log(Line(text, connections=len(idle), idle_ms=max_idle_ms, key="connections.max.idle.ms"))
        self.idle_round += 1
        self._idle_timer = self.loop.call_later(max_idle_ms / IDLE_ROUNDS / 1000, self._close_idle_clients)

    def _watch_stalled_clients(self) -> None:
        if self._stalled_timer is None and not self._is_closed:
            self._close_stalled_clients()

    def _close_stalled_clients(self) -> None:
        """Close the clients whose requests make no progress, while others wait for memory (receive_buffers)."""
        self._stalled_timer = None
        if self.buffers.is_awaited:
            # Set first: a closed client returns its buffer, and the next one that waits may need a larger one.
            self._stalled_timer = self.loop.call_later(STALLED_AFTER_S, self._close_stalled_clients)
            for client in list(self._clients):
                client.close_if_stalled()

    @property
    def connection_count(self) -> int:
        """The number of clients that are connected."""
        return len(self._clients)

    def of_listener(self, listener: str) -> ListenerMetrics:
        """Return the metrics of a listener's connections."""
        return self.listeners.setdefault(listener, ListenerMetrics())

    def log_closing(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed, unless the node stops and all of them end."""
        if self.is_stopping:
            return
        peer = str(PeerAddress(connection.client_host, connection.client_port))
        text = f"closing the connection of {peer} to {connection.listener}: {reason}"
        self.log(WarningLine(text, peer=peer, listener=connection.listener, error=reason))

    def stop_listening(self, is_open: Callable[[str], bool]) -> None:
        """Accept no more connections on the listeners for which `is_open` returns False."""
        for listener in [listener for listener in self._acceptors if not is_open(listener)]:
            self._acceptors.pop(listener).close()

    def close(self) -> None:
        """Close all connections; the node gets no more events."""
        self._is_closed = True
        self.stop_listening(lambda listener: False)
        for timer in (self._timer, self._idle_timer, self._stalled_timer):
            if timer is not None:
                timer.cancel()
        for client in list(self._clients):
            client.abort()
        self._peers.close_all()
        if self._computer is not None:
            self._computer.shutdown(wait=False, cancel_futures=True)
