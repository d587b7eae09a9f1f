"""TCP proxies on 127.0.0.1 between clients and a broker.

TcpProxy has the sockets and threads; SecuredProxy (tests/client) adds TLS and SASL. FrameProxy carries each request and each
answer as a whole, and a subclass decides what becomes of them: FaultyProxy (tests/client) loses some, RecordingProxy
(tests/oracle) keeps a copy.
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


class TcpProxy(ABC):
    """Listens on `port`, which it picks; `target` returns the port of the broker."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.target = target
        self.closing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End all connections and wait for the threads."""
        self.closing.set()
        _shut(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in (self._listener, *self._sockets):
            one.close()

    @abstractmethod
    def serve(self, client: socket.socket) -> None:
        """Serve a new connection, on a thread of its own, which may end with an OSError."""

    def start(self, target: Callable[..., None], *args: object) -> None:
        """Run a function on a thread."""
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def connect(self) -> socket.socket:
        """Return a connection to the broker. Raises OSError."""
        broker = socket.create_connection(("127.0.0.1", self.target()))
        self.keep(broker)
        return broker

    def keep(self, one: socket.socket) -> None:
        """Close a socket at the end."""
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.keep(client)
                self.start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.serve(client)


class FrameProxy(TcpProxy):
    """Carries frames."""

    @abstractmethod
    def carriers(self) -> tuple[Carrier, Carrier]:
        """Return what carries the requests of a new connection, and what carries its answers."""

    def serve(self, client: socket.socket) -> None:
        """Connect, and carry what comes from both ends."""
        try:
            broker = self.connect()
        except OSError:  # it is not there yet
            _shut(client)
            return
        requests, answers = self.carriers()
        self.start(_copy, broker, client, answers)
        _copy(client, broker, requests)


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
