"""One client's connection: receives requests, and sends answers as bytes or straight from files.

    state      reads                          reason
    ---------  -----------------------------  ----------------------------------------------------------------------------
    idle       and passes requests on
    answering  until its buffer is full       the core has a request of this connection, or its answer is not yet fully sent
    waiting    nothing                        its request needs a large buffer, and their limit is reached
    closed

Requests are parsed in place: the core gets a view of the receive buffer. One request of a connection is in the core at a
time, as in Kafka, so answers leave in order and a slow reader costs one answer and one buffer. After REQUESTS_PER_TURN
requests, or SEND_SLICE_BYTES of an answer, the other connections are served.

The bytes of a file go from the page cache to the socket by sendfile; the header before them by send with MSG_MORE. Both bypass
asyncio's transport, while the transport's own buffer is empty. If the socket accepts no more bytes, its descriptor is
duplicated so that the loop can watch it, and so are those of the files, which the log may close or delete before they are sent.

Clients of other protocols that a PLAINTEXT listener recognises, and the log line for each.

protocol  recognised by                                  remedy
--------  ---------------------------------------------  -----------------------------------------------
TLS       a size that begins like a handshake record     security.protocol=PLAINTEXT in the client
HTTP      a size that is the beginning of a method       a browser or health check uses the wrong port

A client that uses SASL is answered instead: kcli.server.apis.security.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Sequence
from fcntl import ioctl
from termios import FIONREAD
from typing import TYPE_CHECKING, Protocol

from kcli.format.primitives import Buffer
from kcli.server.events import Connection, FileRegion, ReadableFile
from kcli.server.metrics.broker_metrics import ListenerMetrics
from kcli.server.shell.receive_buffers import (
    LARGE_BUFFER_BYTES,
    LEAST_PROGRESS_BYTES,
    SMALL_BUFFER_BYTES,
    STALLED_AFTER_S,
    BufferPool,
    WritableBuffer,
)

if TYPE_CHECKING:
    from kcli.server.shell.request_times import RequestTimes

_TLS_HANDSHAKE = 0x16
# Methods of HTTP/1, and the preface of HTTP/2 ("PRI * HTTP/2.0").
_HTTP_STARTS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
_SIZE = struct.Struct(">i")
_NO_BUFFER = bytearray(0)
# Less free space than this in a receive buffer is not worth a system call.
LEAST_ROOM_BYTES = 1024
# Small answers to requests that came together are sent together: the largest size of one, and how many.
GATHERED_BYTES = 1024
GATHERED_ANSWERS = 32
# How much is sent to one connection before others are served.
SEND_SLICE_BYTES = 4 * 1024 * 1024
# How many requests of one connection are handled before others are served.
REQUESTS_PER_TURN = 16
NOT_SEEN = -1


class HeldFile:
    """A file that is read through a descriptor of its own, which is closed with the last reference."""

    def __init__(self, file: ReadableFile) -> None:
        self.name = file.name
        self._fd = -1
        self._fd = os.dup(file.fileno())

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def read_at(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes from byte `position` on."""
        return os.pread(self._fd, size, position)


def bytes_of(part: Buffer | FileRegion) -> Buffer:
    """Return a part of an answer as bytes; a region is read from its file. Raises OSError."""
    if not isinstance(part, FileRegion):
        return part
    data = part.file.read_at(part.position, part.size)
    if len(data) != part.size:
        raise _too_short(part)
    return data


def _too_short(part: FileRegion) -> OSError:
    return OSError(f"{part.file.name} ends before byte {part.position + part.size}")


class ServerPort(Protocol):
    """The interface of the server that a connection belongs to."""

    buffers: BufferPool
    max_request_bytes: int
    # The number of the current check for idle connections.
    idle_round: int
    request_times: RequestTimes | None

    def request_received(self, connection: Connection, frame: memoryview) -> None:
        """Handle a whole request."""
        ...

    def connection_made(self, client: ClientConnection) -> None:
        """Register a new connection."""
        ...

    def connection_lost(self, client: ClientConnection) -> None:
        """Forget a connection that has ended."""
        ...

    def of_listener(self, listener: str) -> ListenerMetrics:
        """Return the counters of a listener's connections."""
        ...

    def log_closing(self, connection: Connection, reason: str) -> None:
        """Log why this side closes a connection."""
        ...


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one connection: `connection` in the core, last active during the idle check `active_round`."""

    __slots__ = (
        "_buffer",
        "_can_send_files",
        "_end",
        "_gathered",
        "_is_answering",
        "_is_closed",
        "_is_parsing",
        "_is_paused",
        "_is_sending",
        "_is_waiting",
        "_loop",
        "_parts",
        "_seen_bytes",
        "_server",
        "_socket",
        "_start",
        "_view",
        "_wants_large",
        "_watched",
        "active_round",
        "connection",
        "metrics",
        "transport",
    )

    def __init__(self, server: ServerPort, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self.connection = connection
        connection.shell = self
        self.metrics = server.of_listener(connection.listener)
        self._loop = loop
        self._set_buffer(_NO_BUFFER)
        self._wants_large = False  # the last request did not fit a small buffer
        self._start = 0  # of the bytes not yet parsed
        self._end = 0
        self._is_answering = False
        self._is_paused = False
        self._is_sending = False  # an answer that the socket did not accept as a whole
        self._gathered: list[Buffer] = []  # answers that are sent together
        self._is_closed = False
        self._is_parsing = False
        self._is_waiting = False  # for a large buffer
        self._seen_bytes = NOT_SEEN  # of its request at the last check for stalled requests
        self._parts: list[Buffer | FileRegion] = []  # of an answer that the socket did not accept at once
        self._socket: socket.socket | None = None  # the transport's own, for calls that it does not offer
        self._watched: socket.socket | None = None  # a duplicate, while the socket accepts no more
        self.active_round = server.idle_round
        self._can_send_files = False
        self.transport: asyncio.Transport

    # ------------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._can_send_files = transport.get_extra_info("sslcontext") is None
        transport.set_write_buffer_limits(high=0)
        self._server.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if len(self._buffer) - self._end < LEAST_ROOM_BYTES:
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that came."""
        self._end += nbytes
        self.metrics.incoming_bytes += nbytes
        self.active_round = self._server.idle_round
        if not self._is_answering:
            self.parse()
        if not self._may_read():
            self._pause()

    def eof_received(self) -> bool:
        """Close the connection, as Kafka does when a client sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the buffer and the descriptors."""
        self._is_closed = True
        self._parts.clear()
        self._release_socket()
        self._drop_buffer()
        self._server.connection_lost(self)

    def pause_writing(self) -> None:
        """Do nothing: the transport keeps the bytes that the socket did not accept."""

    def resume_writing(self) -> None:
        """Continue after the transport has sent its buffer."""
        self.active_round = self._server.idle_round
        if self._parts:
            self._send_some()
        elif self._is_sending:
            self._is_sending = False
            self.answered()

    # --------------------------------------------------------------------------------------------------- requests

    def parse(self) -> None:
        """Pass the received requests to the core one by one, until one must wait or others should be served."""
        if self._is_parsing:
            return
        self._is_parsing = True
        left, is_paused = REQUESTS_PER_TURN, False
        try:
            while not self._is_answering and not self._is_closed:
                have = self._end - self._start
                if have < 4:
                    break
                size = _SIZE.unpack_from(self._buffer, self._start)[0]
                if size < 0 or size > self._server.max_request_bytes:
                    self.close(self._bad_size(size))
                    break
                if have < size + 4:
                    break
                if not left:
                    is_paused = True
                    self._loop.call_soon(self.parse)
                    break
                left -= 1
                self._seen_bytes = NOT_SEEN
                begin = self._start + 4
                self._start = begin + size
                self._is_answering = True
                self._wants_large = size > SMALL_BUFFER_BYTES - LEAST_ROOM_BYTES
                self._server.request_received(self.connection, self._view[begin : begin + size])
        finally:
            self._is_parsing = False
            self._write_gathered()
        if self._start == self._end:
            self._drop_buffer()
        if self._is_paused and not (self._is_answering or self._is_waiting or is_paused) and self._may_read():
            self._resume()

    def _bad_size(self, size: int) -> str:
        return foreign_protocol_by_size(size) or (
            f"it states a request of {size} bytes; socket.request.max.bytes allows {self._server.max_request_bytes}"
        )

    def _needed(self) -> int:
        """Return the stated bytes of the current request, its size included."""
        if self._end - self._start < 4:
            return 4
        return min(int(_SIZE.unpack_from(self._buffer, self._start)[0]), self._server.max_request_bytes) + 4

    def _may_read(self) -> bool:
        """Return whether more bytes can be received; without memory for them, wait or close the connection."""
        have, free = self._end - self._start, len(self._buffer) - self._end + self._start
        if free >= LEAST_ROOM_BYTES or not self._buffer or self._is_closed:
            return True
        need, buffers = self._needed(), self._server.buffers
        if self._is_answering or have >= need:
            return False
        if need <= len(self._buffer):
            return True
        is_small = len(self._buffer) < LARGE_BUFFER_BYTES
        if buffers.can_grow(len(self._buffer)) if is_small else buffers.has_room(self._huge(need) - len(self._buffer)):
            self._make_room()
            return True
        if is_small:
            self._is_waiting = True
            buffers.wait(self, need)
        else:
            self.close(f"requests of {buffers.taken_bytes} bytes are in memory already, and its own has {need - 4}")
        return False

    def close_if_stalled(self) -> None:
        """Close the connection if its request holds or awaits a large buffer and has made no progress since the last call.

        It is called every STALLED_AFTER_S while connections wait for a buffer.
        """
        is_held = len(self._buffer) >= LARGE_BUFFER_BYTES and not self._is_waiting
        if self._is_answering or self._is_closed or not (is_held or (self._is_waiting and not self.has_bytes())):
            self._seen_bytes = NOT_SEEN
            return
        have, seen = self._end - self._start + (0 if is_held else self._pending_bytes()), self._seen_bytes
        self._seen_bytes = have
        if seen <= have < seen + LEAST_PROGRESS_BYTES and seen != NOT_SEEN:
            awaited = "the memory that it holds" if is_held else "memory, too"
            self.close(
                f"its request of {self._needed() - 4} bytes has {have} bytes, of which {have - seen} came in the last "
                f"{STALLED_AFTER_S:.0f} s, and other clients wait for {awaited}"
            )

    def _pending_bytes(self) -> int:
        """Return the number of bytes that the operating system has for this connection, while it is not read."""
        try:
            return int.from_bytes(ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, bytes(4)), sys.byteorder)
        except (OSError, ValueError):
            return 0  # it has ended

    def has_bytes(self) -> bool:
        """Return whether it would make progress with a buffer."""
        pending = self._pending_bytes()
        return pending >= min(LEAST_PROGRESS_BYTES, self._needed() - (self._end - self._start))

    def buffer_available(self) -> None:
        """Take a large buffer, and continue to read."""
        self._is_waiting = False
        if not self._is_closed:
            self._make_room()
            self._resume()

    def _huge(self, need: int) -> int:
        return min(need, max(2 * len(self._buffer), LARGE_BUFFER_BYTES))

    def _make_room(self) -> None:
        """Make room for more bytes: move the unparsed ones to the front of the buffer, or into a larger one."""
        buffers = self._server.buffers
        if not self._buffer:
            self._set_buffer(buffers.first(self._wants_large))
            return
        have, need = self._end - self._start, self._needed()
        if need <= len(self._buffer) or len(self._buffer) - have >= LEAST_ROOM_BYTES:
            if self._start:
                self._view[:have] = bytes(self._view[self._start : self._end])
        else:
            is_small = len(self._buffer) < LARGE_BUFFER_BYTES
            buffer = buffers.take_larger(len(self._buffer)) if is_small else buffers.take_huge(self._huge(need))
            self._seen_bytes = NOT_SEEN
            buffer[:have] = self._view[self._start : self._end]
            self._drop_buffer()
            self._set_buffer(buffer)
        self._start, self._end = 0, have

    def _set_buffer(self, buffer: WritableBuffer) -> None:
        self._buffer, self._view = buffer, memoryview(buffer)

    def _drop_buffer(self) -> None:
        buffer = self._buffer
        self._start = self._end = 0
        if buffer:
            self._set_buffer(_NO_BUFFER)
            self._server.buffers.give_back(buffer)

    def _pause(self) -> None:
        if not self._is_paused and not self._is_closed:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self.transport.resume_reading()

    # ----------------------------------------------------------------------------------------------------- answers

    def send(self, frame: Buffer) -> None:
        """Send an answer; answers to requests that came together are sent by one system call."""
        if self._is_closed:
            return
        if self._is_parsing:
            self._gathered.append(frame)
            if len(frame) <= GATHERED_BYTES and len(self._gathered) < GATHERED_ANSWERS:
                self.answered()
                return
            frame = self._take_gathered()
        self.metrics.outgoing_bytes += len(frame)
        self.transport.write(frame)
        if self.transport.get_write_buffer_size():
            self._is_sending = True
        else:
            self.answered()

    def _take_gathered(self) -> Buffer:
        gathered = self._gathered
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        gathered.clear()
        return data

    def _write_gathered(self) -> None:
        """Send the gathered answers; what the socket does not accept at once must be sent before more requests are handled."""
        if not self._gathered or self._is_closed:
            return
        frame = self._take_gathered()
        self.metrics.outgoing_bytes += len(frame)
        self.transport.write(frame)
        if self.transport.get_write_buffer_size() and not self._is_answering:
            self._is_answering = self._is_sending = True

    def send_parts(self, parts: Sequence[Buffer | FileRegion]) -> None:
        """Send an answer with regions of files."""
        if self._is_closed:
            return
        if not self._can_send_files:
            try:
                self.send(b"".join(map(bytes_of, parts)))
            except OSError as error:
                self.close(f"its answer cannot be read: {error.strerror or error}")
            return
        self._parts = [self._take_gathered(), *parts] if self._gathered else list(parts)
        if self.transport.get_write_buffer_size():
            return  # earlier answers first: resume_writing continues
        self._send_some()

    def answered(self) -> None:
        """Finish the current request: the next one may be handled."""
        times = self._server.request_times
        if times is not None:
            times.end(self.connection.connection_id)
        self._is_answering = False
        if self._is_parsing or self._is_closed:
            return
        if self._end - self._start >= 4:
            self._loop.call_soon(self.parse)
        elif self._is_paused:
            self._resume()

    def _send_some(self) -> None:
        """Send parts until all are sent, the socket accepts no more, or other connections should be served."""
        if self._is_closed:
            return
        raw = self._own_socket()
        self.active_round = self._server.idle_round
        budget = SEND_SLICE_BYTES
        try:
            while self._parts and budget > 0:
                sent = self._send_part(raw)
                self.metrics.outgoing_bytes += sent
                budget -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(f"sending failed: {error.strerror or error}")
            return
        if not self._parts:
            self._stop_watching()
            self.answered()
        elif self._watched is None:
            try:
                self._hold_files()
                self._watched = raw.dup()
            except OSError as error:
                self.close(f"cannot duplicate descriptors to send its answer later: {error.strerror or error}")
                return
            self._loop.add_writer(self._watched, self._send_some)

    def _own_socket(self) -> socket.socket:
        """Return the transport's socket, for calls that the transport does not offer."""
        if self._socket is None:
            raw = self.transport.get_extra_info("socket")
            self._socket = socket.socket(raw.family, raw.type, raw.proto, fileno=raw.fileno())
            # A new object assumes that it blocks, and its duplicates would make the transport's socket blocking.
            self._socket.setblocking(False)
        return self._socket

    def _send_part(self, raw: socket.socket) -> int:
        part = self._parts[0]
        if not isinstance(part, FileRegion):
            sent = raw.send(part, socket.MSG_MORE if len(self._parts) > 1 else 0)
            if sent == len(part):
                del self._parts[0]
            else:
                self._parts[0] = memoryview(part)[sent:]
            return sent
        fd = part.file.fileno()
        if fd < 0:
            sent = raw.send(bytes_of(part))
        else:
            sent = os.sendfile(raw.fileno(), fd, part.position, part.size)
        if sent == 0 and part.size:
            raise _too_short(part)
        if sent == part.size:
            del self._parts[0]
        else:
            self._parts[0] = FileRegion(part.file, part.position + sent, part.size - sent)
        return sent

    def _hold_files(self) -> None:
        """Duplicate the descriptors of the files that are left to send, because the log may close or delete them."""
        for at, part in enumerate(self._parts):
            if isinstance(part, FileRegion) and not isinstance(part.file, HeldFile) and part.file.fileno() >= 0:
                self._parts[at] = FileRegion(HeldFile(part.file), part.position, part.size)

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._loop.remove_writer(self._watched)
            self._watched.close()
            self._watched = None

    def _release_socket(self) -> None:
        self._stop_watching()
        if self._socket is not None:
            # The descriptor is the transport's, which closes it.
            self._socket.detach()
            self._socket = None

    def close(self, reason: str) -> None:
        """Close the connection from this side, and log the reason."""
        if not self._is_closed:
            self._server.log_closing(self.connection, reason)
            self._write_gathered()
            self.abort()

    def abort(self) -> None:
        """Close the connection from this side without a log line."""
        self._is_closed = True
        self.transport.abort()


def foreign_protocol_by_size(size: int) -> str | None:
    """Return the log text for a client that sent an impossible `size`; None if its protocol is not recognised."""
    first = size.to_bytes(4, "big", signed=True)
    if first[0] == _TLS_HANDSHAKE:
        return "it uses TLS, but the listener is PLAINTEXT: set security.protocol=PLAINTEXT in the client"
    if first in _HTTP_STARTS:
        return "it uses HTTP, but the listener serves the Kafka protocol; metrics are served at --metrics-port"
    return None
