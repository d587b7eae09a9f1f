"""A proxy that cuts, delays and swallows what clients and a broker send each other, at random.

with FaultyProxy(random.Random(1)) as proxy:
    with LiveServer(home, f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}") as server:
        proxy.target = lambda: server.port
        proxy.share = 0.05      # of the frames; 0 passes on everything

fault    what happens to a frame, a request or an answer
-------  -------------------------------------------------------------------------------------------
cut      some of its bytes are passed on, none to all, then both connections end
delay    it is passed on later, in at most DELAY_S
swallow  it is lost, with all that follows in its direction; the connection remains open
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter

from tests.frame_proxy import Carrier, FrameProxy

DELAY_S = 0.6
FAULTS = ("cut", "cut", "delay", "swallow")


class FaultyProxy(FrameProxy):
    """Passes on frames; `counts` says how often each fault was met."""

    def __init__(self, rng: random.Random) -> None:
        self.share = 0.0
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._lock = threading.Lock()
        super().__init__(lambda: 0)

    def carriers(self) -> tuple[Carrier, Carrier]:
        """See FrameProxy."""
        return self._carrier(), self._carrier()

    def _carrier(self) -> Carrier:
        is_swallowing = False

        def carry(frame: bytes, target: socket.socket) -> bool:
            nonlocal is_swallowing
            fault, share = self._draw()
            is_swallowing |= fault == "swallow"
            if is_swallowing:
                return True
            if fault == "delay":
                self.closing.wait(share * DELAY_S)
            target.sendall(frame[: int(share * (len(frame) + 1))] if fault == "cut" else frame)
            return fault != "cut"

        return carry

    def _draw(self) -> tuple[str, float]:
        """Return the fault of the next frame, '' for none, and a random number for it."""
        with self._lock:
            if self._rng.random() >= self.share:
                return "", 1.0
            fault = self._rng.choice(FAULTS)
            self.counts[fault] += 1
            return fault, self._rng.random()
