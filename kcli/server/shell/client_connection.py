"""One client's connection: bytes in, requests out of them; answers as bytes, or straight from files.

    state      reads                          because
    ---------  -----------------------------  ----------------------------------------------------------------------------
    idle       and hands requests to the core
    answering  until its buffer is full       the core has a request of this connection, or its answer is not yet sent whole
    closed

Requests are parsed in place: the core gets a view of the receive buffer. One request of a connection is in the core at a
time, as in Kafka, so answers leave in order and a slow reader costs one answer and one buffer.

A file's bytes go from the page cache to the socket by sendfile; the header before them by send with MSG_MORE, on a duplicate
of the descriptor, which asyncio's transport does not know of. That is only done while the transport's own buffer is empty.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from kcli.format.primitives import Buffer
from kcli.server.events import Connection, FileRegion, ReadableFile
from kcli.server.shell.receive_buffers import SMALL_BUFFER_BYTES, BufferPool

_SIZE = struct.Struct(">i")
# Less room than this in a receive buffer is not worth a call of the system.
LEAST_ROOM_BYTES = 1024
# How much is sent to one connection before the others get their turn.
SEND_SLICE_BYTES = 4 * 1024 * 1024


class HeldFile:
    """A file by a descriptor of its own, for reading. It is closed with the last reference."""

    def __init__(self, file: ReadableFile) -> None:
        self.name = file.name
        self._fd = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from byte `position` on."""
        return os.pread(self._fd, size, position)


def bytes_of(part: Buffer | FileRegion) -> Buffer:
    """A part of an answer as bytes, read from its file where it lies in one. Raises OSError as the file does."""
    return part.file.read_at(part.position, part.size) if isinstance(part, FileRegion) else part


class ServerPort(Protocol):
    """What a connection needs of the server that it belongs to."""

    buffers: BufferPool
    max_request_bytes: int

    def request_received(self, connection: Connection, frame: memoryview) -> None:
        """A whole request came."""
        ...

    def connection_made(self, client: ClientConnection) -> bool:
        """A connection is there; False: it must be closed, a limit is reached."""
        ...

    def connection_lost(self, client: ClientConnection) -> None:
        """A connection is gone."""
        ...

    def log_closing(self, connection: Connection, reason: str) -> None:
        """A connection is closed by this side; the reason is for the log."""
        ...


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one connection; `connection` is what the core knows it by."""

    def __init__(
        self, server: ServerPort, make: Callable[[tuple[str, int]], Connection], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._server = server
        self._make = make
        self._loop = loop
        self._buffer = bytearray(0)
        self._view = memoryview(self._buffer)
        self._start = 0  # of the bytes not yet parsed
        self._end = 0
        self._is_answering = False
        self._is_paused = False
        self._is_closed = False
        self._is_parsing = False
        self._parts: list[Buffer | FileRegion] = []  # of an answer that the socket did not take at once
        self._socket: socket.socket | None = None
        self._can_send_files = False
        self._waits_to_write = False
        self.connection: Connection
        self.transport: asyncio.Transport

    # ------------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over, or close it where a limit is reached."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        self.connection = self._make((str(peer[0]), int(peer[1])))
        self.connection.shell = self
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._can_send_files = transport.get_extra_info("sslcontext") is None
        transport.set_write_buffer_limits(high=0)
        if not self._server.connection_made(self):
            self._is_closed = True
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if len(self._buffer) - self._end < LEAST_ROOM_BYTES:
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._end += nbytes
        if not self._is_answering:
            self.parse()
        elif len(self._buffer) - (self._end - self._start) < LEAST_ROOM_BYTES:
            self._pause()

    def eof_received(self) -> bool:
        """The client sends no more: as Kafka, close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back."""
        self._is_closed = True
        self._parts.clear()
        self._release_socket()
        self._drop_buffer()
        self._server.connection_lost(self)

    def pause_writing(self) -> None:
        """The transport holds bytes that the socket did not take."""

    def resume_writing(self) -> None:
        """The transport's buffer is empty: the answer is sent whole."""
        if self._is_answering and not self._parts:
            self.answered()

    # --------------------------------------------------------------------------------------------------- requests

    def parse(self) -> None:
        """Hand the requests at hand to the core, one after the other, until one has to wait."""
        if self._is_parsing:
            return
        self._is_parsing = True
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
            begin = self._start + 4
            self._start = begin + size
            self._is_answering = True
            self._server.request_received(self.connection, self._view[begin : begin + size])
        self._is_parsing = False
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > SMALL_BUFFER_BYTES and not self._is_closed:
                self._drop_buffer()
        if self._is_paused and not self._is_answering:
            self._resume()

    def _bad_size(self, size: int) -> str:
        if size >> 24 == 0x16:
            return "it speaks TLS, and this listener is plain; give the client security.protocol=PLAINTEXT"
        return f"it states a request of {size} bytes; socket.request.max.bytes allows {self._server.max_request_bytes}"

    def _make_room(self) -> None:
        """The buffer is full: move what is left to its front, or into a larger one."""
        have = self._end - self._start
        need = SMALL_BUFFER_BYTES
        if have >= 4:
            need = max(need, min(_SIZE.unpack_from(self._buffer, self._start)[0], self._server.max_request_bytes) + 4)
        if not self._buffer:
            self._set_buffer(bytearray(SMALL_BUFFER_BYTES))
            return
        if self._start and need <= len(self._buffer):
            self._view[:have] = bytes(self._view[self._start : self._end])
        else:
            buffer = self._server.buffers.take(need, have)
            buffer[:have] = self._view[self._start : self._end]
            self._drop_buffer()
            self._set_buffer(buffer)
        self._start, self._end = 0, have

    def _set_buffer(self, buffer: bytearray) -> None:
        self._buffer, self._view = buffer, memoryview(buffer)

    def _drop_buffer(self) -> None:
        buffer = self._buffer
        self._set_buffer(bytearray(0))
        if buffer:
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
        """Send an answer."""
        if self._is_closed:
            return
        self.transport.write(frame)
        if not self.transport.get_write_buffer_size():
            self.answered()

    def send_parts(self, parts: Sequence[Buffer | FileRegion]) -> None:
        """Send an answer that has regions of files in it."""
        if self._is_closed:
            return
        if not self._can_send_files:
            self.send(b"".join(map(bytes_of, parts)))
            return
        self._parts = list(parts)
        self._send_some()

    def answered(self) -> None:
        """The request at hand is done with: the next may come."""
        self._is_answering = False
        if self._is_parsing or self._is_closed:
            return
        if self._end - self._start >= 4:
            self._loop.call_soon(self.parse)
        elif self._is_paused:
            self._resume()

    def _send_some(self) -> None:
        """Send parts until all are sent, the socket takes no more, or others should have their turn."""
        if self._is_closed:
            return
        raw = self._duplicate()
        budget = SEND_SLICE_BYTES
        try:
            while self._parts and budget > 0:
                budget -= self._send_part(raw)
        except (BlockingIOError, InterruptedError):
            budget = 0
        except OSError as error:
            self.close(f"sending failed: {error.strerror or error}")
            return
        if self._parts:
            self._hold_files()
            if not self._waits_to_write:
                self._waits_to_write = True
                self._loop.add_writer(raw.fileno(), self._send_some)
            return
        self._stop_waiting(raw)
        self.answered()

    def _stop_waiting(self, raw: socket.socket) -> None:
        if self._waits_to_write:
            self._waits_to_write = False
            self._loop.remove_writer(raw.fileno())

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
            sent = raw.send(part.file.read_at(part.position, part.size))
        else:
            sent = os.sendfile(raw.fileno(), fd, part.position, part.size)
        if sent == 0 and part.size:
            raise OSError(f"{part.file.name} ends before byte {part.position + part.size}")
        if sent == part.size:
            del self._parts[0]
        else:
            self._parts[0] = FileRegion(part.file, part.position + sent, part.size - sent)
        return sent

    def _hold_files(self) -> None:
        """What is left of an answer is sent later: keep its files, which the log may close or delete meanwhile."""
        for at, part in enumerate(self._parts):
            if isinstance(part, FileRegion) and not isinstance(part.file, HeldFile) and part.file.fileno() >= 0:
                self._parts[at] = FileRegion(HeldFile(part.file), part.position, part.size)

    def _duplicate(self) -> socket.socket:
        if self._socket is None:
            raw = self.transport.get_extra_info("socket")
            self._socket = socket.socket(raw.family, raw.type, raw.proto, fileno=os.dup(raw.fileno()))
            self._socket.setblocking(False)
        return self._socket

    def _release_socket(self) -> None:
        if self._socket is not None:
            self._stop_waiting(self._socket)
            self._socket.close()
            self._socket = None

    def close(self, reason: str) -> None:
        """Close the connection from this side."""
        if not self._is_closed:
            self._is_closed = True
            self._server.log_closing(self.connection, reason)
            self.transport.abort()
