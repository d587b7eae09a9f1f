"""A TCP proxy on 127.0.0.1 that cuts, delays and swallows what clients and a broker send each other, at random.

with FaultyProxy(random.Random(1)) as proxy:
    with LiveServer(home, f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}") as server:
        proxy.target_port = server.port
        proxy.share = 0.05      # of the frames; 0 passes on everything

fault    what happens to a frame, a request or an answer
-------  -------------------------------------------------------------------------------------------
cut      some of its bytes are passed on, none to all, then both connections end
delay    it is passed on later, in at most DELAY_S
swallow  it is lost, with all that follows in its direction; the connection remains open
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable

DELAY_S = 0.6
FAULTS = ("cut", "cut", "delay", "swallow")
SIZE_BYTES = 4
PATIENCE_S = 20.0


class FaultyProxy:
    """Passes on frames; `counts` says how often each fault was met."""

    def __init__(self, rng: random.Random) -> None:
        self.target: Callable[[], int] = lambda: 0  # the port of the broker, which is asked for with each connection
        self.share = 0.0
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        _shut(self._listener)
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in (self._listener, *self._sockets):
            one.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
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
                self._start(self._copy, client, broker)
                self._start(self._copy, broker, client)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Pass on the frames of one direction."""
        data = bytearray()
        is_swallowing = False
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                data += part
                while len(data) >= SIZE_BYTES and len(data) >= (end := int.from_bytes(data[:SIZE_BYTES], "big") + SIZE_BYTES):
                    frame = bytes(data[:end])
                    del data[:end]
                    fault, share = self._draw()
                    is_swallowing |= fault == "swallow"
                    if is_swallowing:
                        continue
                    if fault == "delay":
                        self._closing.wait(share * DELAY_S)
                    target.sendall(frame[: int(share * (end + 1))] if fault == "cut" else frame)
                    if fault == "cut":
                        return _shut(source, target)
        return _shut(source, target)

    def _draw(self) -> tuple[str, float]:
        """Return the fault of the next frame, '' for none, and a random number for it."""
        with self._lock:
            if self._rng.random() >= self.share:
                return "", 1.0
            fault = self._rng.choice(FAULTS)
            self.counts[fault] += 1
            return fault, self._rng.random()


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
