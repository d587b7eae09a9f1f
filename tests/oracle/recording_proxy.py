"""A proxy between clients and a broker that remembers every frame that goes through it."""

from __future__ import annotations

import socket
from functools import partial
from typing import NamedTuple

from tests.frame_proxy import SIZE_BYTES, Carrier, FrameProxy


class Exchange(NamedTuple):
    """The frames of one connection in their order, without their sizes."""

    requests: list[bytes]
    responses: list[bytes]


class RecordingProxy(FrameProxy):
    """Passes on everything; `exchanges` has one entry a connection."""

    def __init__(self, target_port: int) -> None:
        self.exchanges: list[Exchange] = []
        super().__init__(lambda: target_port)

    def carriers(self) -> tuple[Carrier, Carrier]:
        """See FrameProxy."""
        exchange = Exchange([], [])
        self.exchanges.append(exchange)
        return partial(_record, exchange.requests), partial(_record, exchange.responses)


def _record(frames: list[bytes], frame: bytes, target: socket.socket) -> bool:
    frames.append(frame[SIZE_BYTES:])
    target.sendall(frame)
    return True
