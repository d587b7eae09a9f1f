"""Connections to other nodes with asyncio: SendRequest and ClosePeer in, ResponseReceived and PeerClosed out.

    what                      then
    ------------------------  ------------------------------------------------------------------------------------------
    SendRequest to a peer     the frame is sent; if there is no connection, one is made first, and frames wait for it
    a frame comes             ResponseReceived for the oldest request without an answer: a peer answers in order
    a frame that was not      the connection is closed -> PeerClosed
    asked for, or whose
    size is negative
    the connection fails,     PeerClosed; no request on it is answered any more
    or the peer closes it
    ClosePeer                 the connection is closed; no event

Nothing is decided here: backoff, deadlines, idle times and versions belong to kcli.network.peers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from kcli.network.events import Peer, PeerClosed, PeerEvent, ResponseReceived, SendRequest

SIZE_BYTES = 4  # of the size before a frame


class PeerConnections:
    """The connections of one node; `dispatch` takes events."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatch: Callable[[PeerEvent], None]) -> None:
        self._loop = loop
        self._dispatch = dispatch
        self._connections: dict[Peer, _PeerConnection] = {}

    def send(self, effect: SendRequest) -> None:
        """Send a request, connecting first if needed."""
        connection = self._connections.get(effect.peer)
        if connection is None:
            connection = self._connections[effect.peer] = _PeerConnection(self, effect.peer)
            connection.connecting = self._loop.create_task(connection.connect(self._loop))
        connection.send(effect)

    def close(self, peer: Peer) -> None:
        """Close the connection to a peer, if there is one; no event follows."""
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.abort()

    def close_all(self) -> None:
        """Close all connections; no events follow."""
        for peer in list(self._connections):
            self.close(peer)

    def received(self, connection: _PeerConnection, request_id: int, frame: bytes) -> None:
        """Pass an answer on."""
        if self._connections.get(connection.peer) is connection:
            self._dispatch(ResponseReceived(request_id, frame))

    def lost(self, connection: _PeerConnection, reason: str) -> None:
        """Take the end of a connection that this side did not close."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            connection.abort()
            self._dispatch(PeerClosed(connection.peer, reason))


class _PeerConnection(asyncio.Protocol):
    """One connection, which is made as soon as it exists."""

    def __init__(self, connections: PeerConnections, peer: Peer) -> None:
        self.peer = peer
        self.connecting: asyncio.Task[None] | None = None
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._request_ids: deque[int] = deque()
        self._buffer = bytearray()

    async def connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect to the peer's address."""
        assert self.peer.address is not None
        try:
            await loop.create_connection(lambda: self, self.peer.address.host, self.peer.address.port)
        except OSError as error:
            self._connections.lost(self, reason_of(error))

    def send(self, effect: SendRequest) -> None:
        """Send a frame, or keep it until the connection is made."""
        if effect.has_answer:
            self._request_ids.append(effect.request_id)
        if self._transport is None:
            self._unsent.append(effect.frame)
        else:
            self._transport.write(effect.frame)

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
        self._transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Take bytes; each whole frame is an answer."""
        self._buffer += data
        while len(self._buffer) >= SIZE_BYTES:
            size = int.from_bytes(self._buffer[:SIZE_BYTES], "big", signed=True)
            if size < 0 or not self._request_ids:
                what = f"it sent a frame of {size} bytes" if size < 0 else "it sent an answer without a request"
                self._connections.lost(self, what)
                return
            end = SIZE_BYTES + size
            if len(self._buffer) < end:
                return
            frame = bytes(memoryview(self._buffer)[SIZE_BYTES:end])
            del self._buffer[:end]
            self._connections.received(self, self._request_ids.popleft(), frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._connections.lost(self, "it closed the connection" if exc is None else reason_of(exc))


def reason_of(error: Exception) -> str:
    """Return the system's words for an error; asyncio replaces them by the address, and names that are not found have none."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    return os.strerror(number) if number else str(getattr(error, "strerror", None) or error)
