"""A network in virtual time: links between clients and nodes that are slow, cut frames in two, and break.

    what                  how
    --------------------  ----------------------------------------------------------------------------------------------
    order                 bytes of one link and direction come as they were sent; links overtake one another
    delay                 mostly a few ms, now and then much longer; a send may come in several pieces
    a link that is closed  what was sent before comes first, then the other side is told
    a link that is cut    what is under way is lost, a frame perhaps half delivered; each side is told some time later, or,
                          as with a machine without power, not at all: then only a timeout helps

`FrameReader` puts frames together again; a frame is its bytes without the four of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from kcli.simulator.scheduler import Scheduler

SIZE_BYTES = 4
MAX_FRAME_BYTES = 100 * 1024 * 1024


class Weather(NamedTuple):
    """How bad the network is. Times in ms, shares of 1."""

    usual_delay_ms: int = 4
    long_delay_ms: int = 400
    long_delay_share: float = 0.02
    split_share: float = 0.1
    silence_share: float = 0.2  # of cuts that a side is not told of


class End(Protocol):
    """One side of a link."""

    def received(self, link: Link, data: bytes) -> None:
        """Bytes came."""
        ...

    def closed(self, link: Link) -> None:
        """The other side closed the link, or it broke."""
        ...


class Link:
    """A connection; `ends` are (client, server). A side that was told of its end hears nothing any more."""

    def __init__(self, network: Network, client: End, server: End) -> None:
        self.ends = (client, server)
        self.is_open = [True, True]
        self._network = network
        self._arrival_ms = [0, 0]
        self._is_cut = False

    def send(self, side: int, data: bytes) -> None:
        """Bytes from one side (0: the client) to the other."""
        if self._is_cut or not self.is_open[side]:
            return
        for piece in self._network.pieces(data):
            self._later(1 - side, lambda piece=piece: self._deliver(1 - side, piece))  # type: ignore[misc]

    def close(self, side: int) -> None:
        """One side closes: the other is told when all that was sent has come."""
        if self.is_open[side]:
            self.is_open[side] = False
            if not self._is_cut:
                self._later(1 - side, lambda: self._end(1 - side))

    def cut(self, silent_side: int | None = None) -> None:
        """The link breaks; `silent_side` is never told."""
        if self._is_cut:
            return
        self._is_cut = True
        for side in (0, 1):
            if side != silent_side and self.is_open[side]:
                self._network.later(self._network.delay_ms(), lambda side=side: self._end(side))  # type: ignore[misc]

    def _later(self, side: int, run: Callable[[], None]) -> None:
        """When it is that side's turn: behind all that it gets from this link."""
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

    def __init__(self, scheduler: Scheduler, rng: Random, weather: Weather) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self.links: list[Link] = []
        self._rng = rng

    def connect(self, client: End, server: End) -> Link:
        """A link between a client and a server that is up."""
        self.links = [link for link in self.links if any(link.is_open)]
        self.links.append(Link(self, client, server))
        return self.links[-1]

    def cut_one(self) -> None:
        """Cut a link, whichever; perhaps one side does not hear of it."""
        links = [link for link in self.links if all(link.is_open)]
        if links:
            silent = self._rng.randrange(2) if self._rng.random() < self.weather.silence_share else None
            self._rng.choice(links).cut(silent)

    def delay_ms(self) -> int:
        """How long something takes now."""
        if self._rng.random() < self.weather.long_delay_share:
            return self._rng.randrange(self.weather.long_delay_ms + 1)
        return self._rng.randrange(self.weather.usual_delay_ms + 1)

    def pieces(self, data: bytes) -> list[bytes]:
        """What is sent at once, as it comes."""
        if len(data) < 2 or self._rng.random() >= self.weather.split_share:
            return [data]
        at = self._rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    def later(self, delay_ms: int, run: Callable[[], None]) -> None:
        """Let something happen in so many ms."""
        self.scheduler.after(delay_ms, run)


class FrameReader:
    """Frames out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytearray]:
        """Take bytes -> the frames that are whole now. Raises ValueError for a size that no frame has."""
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
