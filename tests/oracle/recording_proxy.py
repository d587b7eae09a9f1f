"""A proxy between clients and a broker that remembers every frame that goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import NamedTuple


class Exchange(NamedTuple):
    """The frames of one connection in their order, without their sizes."""

    requests: list[bytes]
    responses: list[bytes]


class RecordingProxy:
    """Listens on `port`, which it picks, and passes on to `target_port`, both on 127.0.0.1.

    `exchanges` has one entry a connection.
    """

    def __init__(self, target_port: int) -> None:
        self.exchanges: list[Exchange] = []
        self._target_port = target_port
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._target_port))
                except ConnectionRefusedError:  # it is not there yet
                    client.close()
                    continue
                self._sockets += [client, broker]
                exchange = Exchange([], [])
                self.exchanges.append(exchange)
                self._start(self._copy, client, broker, exchange.requests)
                self._start(self._copy, broker, client, exchange.responses)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, frames: list[bytes]) -> None:
        """Pass on what comes, cut into frames on the way."""
        data = bytearray()
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                data += part
                while len(data) >= 4 and len(data) >= (size := struct.unpack_from(">i", data)[0]) + 4:
                    frames.append(bytes(data[4 : size + 4]))
                    del data[: size + 4]
                target.sendall(part)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections; what has come is in `exchanges` then."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in self._sockets:
            one.close()
