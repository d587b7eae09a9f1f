"""A server on 127.0.0.1 that is not a broker: it does one thing with each connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

SLACK_S = 10.0  # of a loaded machine


@contextlib.contextmanager
def answering_server(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Run a server that does this with each connection -> its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                accepted.append(connection)
                with contextlib.suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in accepted:
            connection.close()
        thread.join(SLACK_S)
