"""Connections to other nodes with asyncio: SendRequest and ClosePeer in, ResponseReceived and PeerClosed out.

    what                      then
    ------------------------  ------------------------------------------------------------------------------------------
    SendRequest to a peer     the frame is sent. Without a connection, one is made, and the frames wait until it exists.
                              If a host has several addresses, the next one is tried after NEXT_ADDRESS_S, too
    a request without answer  ResponseReceived with an empty frame, when the operating system has taken all its bytes;
                              with TLS when they are encrypted and at most one write waits for the operating system
    TLS is configured         its handshake follows the connection; kcli.network.shell.tls says what its errors mean
    a frame arrives           ResponseReceived for the oldest request that waits for its answer: a peer answers in order
    a frame arrives, but no   the connection is closed -> PeerClosed
    request waits, or its
    size is impossible
    the first bytes are       the connection is closed -> PeerClosed, whose reason names the protocol
    those of TLS, HTTP, SSH
    the connection fails,     PeerClosed; no request on it is answered any more
    or the peer closes it
    ClosePeer                 the connection is closed, and bytes that are not written yet are dropped; no event
    `close_all`               the same, but the bytes are written for at most DRAIN_S more, while the event loop runs

A small frame is received into the buffer of the connection, and passed on as bytes. A large frame is received into a bytearray
of its own, which is passed on without a copy. At first, this bytearray has at most LARGEST_AT_ONCE bytes, even if the
peer announces more; it grows as the bytes arrive.

kcli.network.peers decides on backoff, deadlines, idle times and versions.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kcli.network.events import Closing, Peer, PeerAddress, PeerClosed, PeerEvent, ResponseReceived, SendRequest

if TYPE_CHECKING:
    from kcli.network.shell.tls import Tls

SIZE_BYTES = 4  # of the size before a frame
SMALL_BUFFER_BYTES = 16 * 1024  # a frame that does not fit has memory of its own
LARGEST_AT_ONCE = 64 * 1024 * 1024
NEXT_ADDRESS_S = 0.25
MAX_PORT = 65535
DRAIN_S = 1.0
# The first answer has the versions of the APIs, some kilobytes.
LARGEST_FIRST_ANSWER = 1024 * 1024
_EXPECTS_TLS = "it expects TLS"
# The first bytes of servers that are not brokers, or expect TLS. As sizes they would be frames of 300 MB and more, and the
# client would wait for them until its timeout.
_OTHER_PROTOCOLS = {
    b"\x15\x03": _EXPECTS_TLS,  # a fatal alert
    b"HTTP": "it is an HTTP server and not a Kafka broker",
    b"SSH-": "it is an SSH server and not a Kafka broker",
    b"<htm": "it is an HTTP server and not a Kafka broker",
}


def other_protocol(first_bytes: bytes) -> str | None:
    """Return what the sender of these first bytes is, None if they may be an answer of a broker."""
    return next((what for start, what in _OTHER_PROTOCOLS.items() if first_bytes.startswith(start)), None)


def _closing_of(reason: str) -> Closing:
    """Return how the connection to a server of another protocol ends: another attempt would end in the same way."""
    if reason == _EXPECTS_TLS:
        return Closing.EXPECTS_TLS
    return Closing.REFUSED if reason in _OTHER_PROTOCOLS.values() else Closing.ENDED


class PeerConnections:
    """The connections of one node; `dispatch` takes events."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatch: Callable[[PeerEvent], None], tls: Tls | None = None) -> None:
        self._loop = loop
        self._dispatch = dispatch
        self.tls = tls
        self._connections: dict[Peer, _PeerConnection] = {}
        self._draining: list[_PeerConnection] = []

    def send(self, effect: SendRequest, *others: SendRequest) -> None:
        """Send a request, or several to one peer with one system call; connect first if needed."""
        connection = self._connections.get(effect.peer)
        if connection is None:
            connection = self._connections[effect.peer] = _PeerConnection(self, effect.peer)
            connection.connecting = self._loop.create_task(connection.connect(self._loop))
        connection.send(effect, *others)

    def close(self, peer: Peer) -> None:
        """Close the connection to a peer, if there is one; no event follows."""
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.abort()

    def close_all(self) -> None:
        """Close all connections, after what was sent has left; no events follow."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
            if connection.is_draining:
                self._draining.append(connection)

    async def drained(self) -> None:
        """Wait, after `close_all`, until what was sent has left, at most DRAIN_S."""
        until_s = self._loop.time() + DRAIN_S
        while any(connection.is_draining for connection in self._draining) and self._loop.time() < until_s:
            await asyncio.sleep(DRAIN_S / 100)
        for connection in self._draining:
            if connection.is_draining or self.tls is not None:  # no peer is waited for to end TLS
                connection.abort()

    def written_soon(self, connection: _PeerConnection, request_ids: list[int]) -> None:
        """Report requests that have no answer, and that the operating system has."""

        def report() -> None:
            for request_id in request_ids:
                self.received(connection, request_id, b"")

        self._loop.call_soon(report)

    def received(self, connection: _PeerConnection, request_id: int, frame: bytes | bytearray) -> None:
        """Pass an answer on."""
        if self._connections.get(connection.peer) is connection:
            self._dispatch(ResponseReceived(request_id, frame))

    def lost(self, connection: _PeerConnection, reason: str, closing: Closing = Closing.ENDED) -> None:
        """Take the end of a connection that this side did not close."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            connection.abort()
            self._dispatch(PeerClosed(connection.peer, reason, closing))

    def failed(self, connection: _PeerConnection, error: Exception) -> None:
        """Take the error that has ended a connection."""
        failure = None if self.tls is None else self.tls.failure(error, connection.is_connected)
        self.lost(connection, *(failure or (reason_of(error),)))


class _PeerConnection(asyncio.BufferedProtocol):
    """One connection, which is made as soon as it exists."""

    def __init__(self, connections: PeerConnections, peer: Peer) -> None:
        self.peer = peer
        self.connecting: asyncio.Task[None] | None = None
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._socket_transport: asyncio.Transport | None = None  # below that of TLS
        self._unsent: list[bytes | bytearray] = []
        self._request_ids: deque[int] = deque()
        self._unwritten_ids: list[int] = []  # of requests that have no answer
        self._is_paused = False  # the transport has bytes that the operating system has not taken
        self._has_answered = False
        self._small = memoryview(bytearray(SMALL_BUFFER_BYTES))
        self._end = 0  # of the bytes in the small buffer
        self._frame: bytearray | None = None  # a large frame, of which `_filled` of `_size` bytes have come
        self._filled = 0
        self._size = 0

    async def connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect to the peer's address."""
        assert self.peer.address is not None
        host, port = self.peer.address
        try:
            if not 0 < port <= MAX_PORT:
                raise ValueError(f"{port} is not a port number")
            tls = self._connections.tls
            if tls is None:
                await loop.create_connection(lambda: self, host, port, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1)
            else:
                await self._connect_with_tls(loop, self.peer.address, tls)
        except (OSError, ValueError) as error:  # a ValueError: also names that IDNA does not have
            self._connections.failed(self, error)

    async def _connect_with_tls(self, loop: asyncio.AbstractEventLoop, address: PeerAddress, tls: Tls) -> None:
        # Not `create_connection(ssl=...)`: it hides the transport below, which knows what the operating system has not taken,
        # and says of a connection that ends in the handshake only that it ended.
        below, _ = await loop.create_connection(
            asyncio.Protocol, address.host, address.port, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1
        )
        self._socket_transport = below
        below.set_write_buffer_limits(high=0)
        try:
            above = await loop.start_tls(
                below, self, tls.context, server_hostname=address.host, ssl_handshake_timeout=tls.timeout_s
            )
        except ConnectionResetError:  # asyncio's error for an end without bytes, too
            above = None
        if above is None:
            closing = Closing.CLOSED_IN_HANDSHAKE
            self._connections.lost(self, "it closed the connection during the TLS handshake", closing)
            return
        self.connection_made(above)

    def send(self, *effects: SendRequest) -> None:
        """Send frames, or keep them until the connection is made."""
        for effect in effects:
            (self._request_ids if effect.has_answer else self._unwritten_ids).append(effect.request_id)
        if self._transport is None:
            self._unsent.extend(effect.frame for effect in effects)
        elif len(effects) == 1:
            # From a view, asyncio copies the bytes that it cannot send at once only one time.
            self._transport.write(memoryview(effects[0].frame))
        else:
            self._transport.writelines([effect.frame for effect in effects])
        self._written_soon()

    def close(self) -> None:
        """Close the connection after what was sent has left."""
        if self._transport is not None and self.is_draining:
            self._transport.close()
        else:
            self.abort()

    @property
    def is_connected(self) -> bool:
        """Whether the connection was made, with its TLS handshake."""
        return self._transport is not None

    @property
    def is_draining(self) -> bool:
        """Whether the transport has bytes that the operating system has not taken."""
        transports = (self._transport, self._socket_transport)
        return any(one is not None and one.get_write_buffer_size() > 0 for one in transports)

    def abort(self) -> None:
        """Close the connection at once, or do not make it any more."""
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    # ---------------------------------------------------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the frames that wait."""
        self._transport = cast(asyncio.Transport, transport)
        # So that `resume_writing` says when all is written. (TLS with 0 would pause at each write, and not resume.)
        self._transport.set_write_buffer_limits(high=0 if self._socket_transport is None else 1)
        self._transport.writelines(self._unsent)
        self._unsent.clear()
        self._written_soon()

    def pause_writing(self) -> None:
        """Note that bytes wait in the transport."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Report that all is written."""
        self._is_paused = False
        self._written_soon()

    def _written_soon(self) -> None:
        """Report the requests that have no answer, if all is written; later, since the core may be in the middle of a call."""
        if self._unwritten_ids and not self._is_paused and self._transport is not None:
            written, self._unwritten_ids = self._unwritten_ids, []
            self._connections.written_soon(self, written)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if self._frame is None:
            return self._small[self._end :]
        if self._filled == len(self._frame):
            self._frame += bytes(min(self._size - self._filled, self._filled))
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes; each whole frame is an answer."""
        if self._frame is None:
            self._end += nbytes
            self._take_small_frames()
            return
        self._filled += nbytes
        if self._filled == self._size:
            frame, self._frame = self._frame, None
            self._connections.received(self, self._request_ids.popleft(), frame)

    def _take_small_frames(self) -> None:
        """Pass on the whole frames of the small buffer; an incomplete one is moved to its begin, or to a bytearray."""
        start = 0
        while self._end - start >= SIZE_BYTES:
            size = int.from_bytes(self._small[start : start + SIZE_BYTES], "big", signed=True)
            wrong = self._wrong_frame(size)
            if wrong is not None:
                self._connections.lost(self, wrong, _closing_of(wrong))
                return
            begin = start + SIZE_BYTES
            if self._end - begin < size:
                if size > SMALL_BUFFER_BYTES - SIZE_BYTES:
                    self._begin_frame(size, self._small[begin : self._end])
                    return
                break
            start = begin + size
            self._has_answered = True
            self._connections.received(self, self._request_ids.popleft(), bytes(self._small[begin:start]))
        if start:
            rest = bytes(self._small[start : self._end])
            self._small[: len(rest)] = rest
            self._end = len(rest)

    def _wrong_frame(self, size: int) -> str | None:
        """Return what is wrong with a frame of a size, None if it can be an answer."""
        if size < 0:
            return f"it sent a frame of {size} bytes"
        if size > LARGEST_FIRST_ANSWER and not self._has_answered:
            other = other_protocol(size.to_bytes(SIZE_BYTES, "big"))
            return other or "it did not answer like a Kafka broker; check that the port is a Kafka listener without TLS"
        return None if self._request_ids else "it sent an answer without a request"

    def _begin_frame(self, size: int, head: memoryview) -> None:
        self._frame = bytearray(min(size, LARGEST_AT_ONCE))
        self._frame[: len(head)] = head
        self._filled, self._size = len(head), size
        self._end = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end; one in a TLS handshake is reported by `connect`."""
        if self._socket_transport is not None and self._transport is None:
            return
        if exc is None:
            self._connections.lost(self, "it closed the connection", Closing.CLOSED)
        else:
            self._connections.failed(self, exc)


def reason_of(error: Exception) -> str:
    """Return the system's words for an error; asyncio replaces them by the address, and names that are not found have none."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    return os.strerror(number) if number else str(getattr(error, "strerror", None) or error)
