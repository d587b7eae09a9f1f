"""A network in virtual time: links between clients and nodes that are slow, split frames, and break.

    property        behaviour
    --------------  ----------------------------------------------------------------------------------------------------
    order           the bytes of one link and direction arrive in order; different links have different delays
    delay           mostly a few ms, sometimes much longer; the bytes of one send may arrive in several pieces
    a closed link   all bytes that were sent before arrive, then the other side gets `closed`
    a cut link      bytes in flight are lost, perhaps half of a frame; each side gets `closed` some time later or, as with
                    a machine without power, never: then the client needs its timeout

`FrameReader` assembles frames; a frame is returned without the four bytes of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from kcli.simulator.scheduler import Scheduler

SIZE_BYTES = 4
MAX_FRAME_BYTES = 100 * 1024 * 1024


class NetworkConditions(NamedTuple):
    """How slow and unreliable the network is; shares are between 0 and 1."""

    short_delay_ms: int = 4
    long_delay_ms: int = 400
    long_delay_share: float = 0.02
    split_share: float = 0.1
    silence_share: float = 0.2  # of cuts that one side does not notice


class End(Protocol):
    """One side of a link."""

    def received(self, link: Link, data: bytes) -> None:
        """Take received bytes."""
        ...

    def closed(self, link: Link) -> None:
        """Handle the end of the link: the other side closed it, or it broke."""
        ...


class Link:
    """A connection; `ends` are (client, server). After `closed` an end gets no more calls."""

    def __init__(self, network: Network, client: End, server: End) -> None:
        self.ends = (client, server)
        self.is_open = [True, True]
        self._network = network
        self._arrival_ms = [0, 0]
        self._is_cut = False

    def send(self, side: int, data: bytes) -> None:
        """Send bytes from one side (0: the client) to the other."""
        if self._is_cut or not self.is_open[side]:
            return
        for piece in self._network.pieces(data):
            self._later(1 - side, lambda piece=piece: self._deliver(1 - side, piece))  # type: ignore[misc]

    def close(self, side: int) -> None:
        """Close the link from one side; the other side gets `closed` after all bytes that were sent."""
        if self.is_open[side]:
            self.is_open[side] = False
            if not self._is_cut:
                self._later(1 - side, lambda: self._end(1 - side))

    def cut(self, silent_side: int | None = None) -> None:
        """Break the link; `silent_side` does not notice it."""
        if self._is_cut:
            return
        self._is_cut = True
        for side in (0, 1):
            if side != silent_side and self.is_open[side]:
                self._network.later(self._network.delay_ms(), lambda side=side: self._end(side))  # type: ignore[misc]

    def _later(self, side: int, run: Callable[[], None]) -> None:
        """Run something when all earlier bytes of the link have arrived at that side."""
        network = self._network
        at_ms = max(self._arrival_ms[side] + 1, network.scheduler.now_ms + network.delay_ms())
        self._arrival_ms[side] = at_ms
        network.scheduler.at(at_ms, run)

    def _deliver(self, side: int, piece: bytes) -> None:
        if self.is_open[side] and not self._is_cut:
            self.ends[side].received(self, piece)

    def _end(self, side: int) -> None:
        if self.is_open[side]:
            self.is_open[side] = False
            self.ends[side].closed(self)


class Network:
    """All links of a simulation."""

    def __init__(self, scheduler: Scheduler, rng: Random, conditions: NetworkConditions) -> None:
        self.scheduler = scheduler
        self.conditions = conditions
        self.links: list[Link] = []
        self._rng = rng

    def connect(self, client: End, server: End) -> Link:
        """Open a link between a client and a server."""
        self.links = [link for link in self.links if any(link.is_open)]
        self.links.append(Link(self, client, server))
        return self.links[-1]

    def cut_one(self) -> None:
        """Cut a random link; one side may not notice it."""
        links = [link for link in self.links if all(link.is_open)]
        if links:
            silent = self._rng.randrange(2) if self._rng.random() < self.conditions.silence_share else None
            self._rng.choice(links).cut(silent)

    def delay_ms(self) -> int:
        """Return a random delay."""
        if self._rng.random() < self.conditions.long_delay_share:
            return self._rng.randrange(self.conditions.long_delay_ms + 1)
        return self._rng.randrange(self.conditions.short_delay_ms + 1)

    def pieces(self, data: bytes) -> list[bytes]:
        """Return the pieces in which bytes that are sent together arrive."""
        if len(data) < 2 or self._rng.random() >= self.conditions.split_share:
            return [data]
        at = self._rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    def later(self, delay_ms: int, run: Callable[[], None]) -> None:
        """Run something after a delay."""
        self.scheduler.after(delay_ms, run)


class FrameReader:
    """Assembles frames from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytearray]:
        """Take bytes -> the frames that are complete now. Raises ValueError for an invalid size."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= SIZE_BYTES:
            size = int.from_bytes(self._buffer[:SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._buffer) < SIZE_BYTES + size:
                break
            frames.append(self._buffer[SIZE_BYTES : SIZE_BYTES + size])
            del self._buffer[: SIZE_BYTES + size]
        return frames
