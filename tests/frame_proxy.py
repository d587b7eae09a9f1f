"""A TCP proxy on 127.0.0.1 between clients and a broker that handles each request and each answer as a whole.

A subclass decides what becomes of them: FaultyProxy (tests/client) loses some, RecordingProxy (tests/oracle) keeps a copy.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

SIZE_BYTES = 4
PATIENCE_S = 20.0

# Takes a frame, with its size, and the connection that it is for; False ends both connections.
Carrier = Callable[[bytes, socket.socket], bool]


class FrameProxy(ABC):
    """Listens on `port`, which it picks; `target` returns the port of the broker and is called for each connection."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.target = target
        self.closing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End all connections and wait for the threads."""
        self.closing.set()
        _shut(self._listener)
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in (self._listener, *self._sockets):
            one.close()

    @abstractmethod
    def carriers(self) -> tuple[Carrier, Carrier]:
        """Return what carries the requests of a new connection, and what carries its answers."""

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target()))
                except OSError:  # it is not there yet
                    client.close()
                    continue
                for one in (client, broker):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, broker]
                requests, answers = self.carriers()
                self._start(_copy, client, broker, requests)
                self._start(_copy, broker, client, answers)


def _copy(source: socket.socket, target: socket.socket, carry: Carrier) -> None:
    """Carry the frames of one direction."""
    data = bytearray()
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            data += part
            while len(data) >= SIZE_BYTES and len(data) >= (end := int.from_bytes(data[:SIZE_BYTES], "big") + SIZE_BYTES):
                frame = bytes(data[:end])
                del data[:end]
                if not carry(frame, target):
                    return _shut(source, target)
    return _shut(source, target)


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
