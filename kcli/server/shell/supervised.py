"""What a node and the process that supervises it (kcli.server.supervisor) send to each other, each message one byte.

    from    message          means
    ------  ---------------  ------------------------------------------------------------------------------------------------
    node    READY            the node serves
            BROKER_STOPPED   its broker has shut down; its controller, if it is one, still takes part in the quorum
    parent  STOP_BROKER      shut the broker down, and wait
            LEAVE_QUORUM     stop what is left, and end
            the end          stop in order: the parent has died

A node that has both roles leaves the quorum after its broker. If all nodes of a cluster did that, the last ones could not stop:
a controller has to approve the shutdown of a broker, and too few would be left to elect one. So all brokers stop first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress


def receive_words(channel: socket.socket) -> bytes | None:
    """Return what has come, none if the other end is gone; None if nothing has come."""
    try:
        return channel.recv(64)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Supervised:
    """The node's end of the socket to its parent."""

    READY, BROKER_STOPPED = b"r", b"b"
    STOP_BROKER, LEAVE_QUORUM = b"s", b"q"

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def report(self, message: bytes) -> None:
        """Send READY or BROKER_STOPPED."""
        with suppress(OSError):
            self._channel.send(message)

    def watch(self, stop_broker: Callable[[], None], leave_quorum: Callable[[], None], end: Callable[[], None]) -> None:
        """Call these functions when the parent says so, and `end` when it has died."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)

        def receive() -> None:
            received = receive_words(self._channel)
            if received is None:
                return
            if not received:
                loop.remove_reader(self._channel)
                end()
            elif self.STOP_BROKER in received:
                stop_broker()
            if self.LEAVE_QUORUM in received:
                leave_quorum()

        loop.add_reader(self._channel, receive)
