"""A network in virtual time: links between clients and machines, which delay bytes, split frames, and break.

    what                    how
    ----------------------  --------------------------------------------------------------------------------------------
    order                   bytes of one link and direction arrive in the order in which they were sent; bytes of
                            different links may overtake one another
    delay                   mostly a few ms, sometimes much longer; the bytes of one send may arrive in several pieces
    a link that is closed   bytes that were sent before arrive first, then the other side hears of the end
    a link that is cut      bytes under way are lost, perhaps a part of a frame; each side hears of the end some time later,
                            or, as with a machine without power, never: then only a timeout helps
    a partition             all links between two machines are cut, and neither side hears of it; new ones are not made
                            until the partition is healed. One of one way only loses what is sent that way: what is under
                            way in the other direction arrives
    a slow way              the bytes between two machines take longer by a number of ms

Machines are known by their ids and by the addresses of their listeners. `FrameReader` puts frames together again; a frame is
its bytes without the four of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from kcli.network.events import Peer, PeerAddress
from kcli.simulator.virtual_time import VirtualTime

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


class Host(Protocol):
    """A machine, as others connect to it."""

    machine_id: int

    def accept_peer(self, end: End, peer: Peer, from_machine_id: int) -> Link | None:
        """Accept a connection of another machine to the listener of `peer`; return the link, None if nothing listens there."""
        ...


class Link:
    """A connection; `ends` are (client, server), `machines` the ids of both in this order if both are machines.

    A side that has heard of the end gets no events any more.
    """

    def __init__(self, network: Network, client: End, server: End, machines: tuple[int, ...]) -> None:
        self.ends = (client, server)
        self.machines = machines
        self.is_open = [True, True]
        self._network = network
        self._arrival_ms = [0, 0]
        self._is_cut = False
        self._loses = [False, False]  # what a side sends

    def send(self, side: int, data: bytes) -> None:
        """Send bytes from one side (0: the client) to the other."""
        if self._is_cut or self._loses[side] or not self.is_open[side]:
            return
        for piece in self._network.pieces(data):
            self._later(1 - side, lambda piece=piece: self._deliver(1 - side, piece))  # type: ignore[misc]

    def close(self, side: int) -> None:
        """Close the link from one side; the other side gets `closed` after all bytes that were sent."""
        if self.is_open[side]:
            self.is_open[side] = False
            if not (self._is_cut or self._loses[side]):
                self._later(1 - side, lambda: self._end(1 - side))

    def cut(self, *silent_sides: int) -> None:
        """Break the link; `silent_sides` do not notice it."""
        if self._is_cut:
            return
        self._is_cut = True
        for side in (0, 1):
            if side not in silent_sides and self.is_open[side]:
                self._network.later(self._network.delay_ms(), lambda side=side: self._end(side))  # type: ignore[misc]

    def lose(self, side: int) -> None:
        """Lose what a side sends from now on; the bytes after it could not be read any more, so this does not end."""
        self._loses[side] = True

    def notice_end(self) -> None:
        """Let both sides hear of the end of a link that is cut, or that one side has closed."""
        if self._is_cut or any(self._loses) or not all(self.is_open):
            for side in (0, 1):
                self._end(side)

    def _later(self, side: int, run: Callable[[], None]) -> None:
        """Run something when all earlier bytes of the link have arrived at that side."""
        network = self._network
        delay_ms = network.delay_ms() + network.slow_ms.get(frozenset(self.machines), 0)
        at_ms = max(self._arrival_ms[side] + 1, network.virtual_time.now_ms + delay_ms)
        self._arrival_ms[side] = at_ms
        network.virtual_time.at(at_ms, run)

    def _deliver(self, side: int, piece: bytes) -> None:
        if self.is_open[side] and not self._is_cut:
            self.ends[side].received(self, piece)

    def _end(self, side: int) -> None:
        if self.is_open[side]:
            self.is_open[side] = False
            self.ends[side].closed(self)


class Network:
    """All links and machines of a simulation."""

    def __init__(self, virtual_time: VirtualTime, rng: Random, conditions: NetworkConditions) -> None:
        self.virtual_time = virtual_time
        self.conditions = conditions
        self.links: list[Link] = []
        self._rng = rng
        self._hosts: dict[PeerAddress, Host] = {}
        self._partitions: set[frozenset[int]] = set()
        self.slow_ms: dict[frozenset[int], int] = {}  # how much longer the way between two machines is

    def add_host(self, host: Host, address: PeerAddress) -> None:
        """Let a machine be reached at an address."""
        self._hosts[address] = host

    def host_at(self, address: PeerAddress) -> Host | None:
        """Return the machine at an address, None if there is none."""
        return self._hosts.get(address)

    def partition(self, one: int, other: int) -> None:
        """Lose everything between two machines from now on."""
        self._partitions.add(frozenset((one, other)))
        for link in self.links:
            if {*link.machines} == {one, other}:
                link.cut(0, 1)

    def partition_one_way(self, sender: int, receiver: int) -> None:
        """Lose what one machine sends to another from now on; without its packets no new connection is made, either."""
        self._partitions.add(frozenset((sender, receiver)))
        for link in self.links:
            if {*link.machines} == {sender, receiver}:
                link.lose(link.machines.index(sender))

    def heal(self, one: int, other: int) -> None:
        """End a partition; links that were cut stay so."""
        self._partitions.discard(frozenset((one, other)))

    def is_partitioned(self, one: int, other: int) -> bool:
        """Return whether two machines cannot reach each other."""
        return frozenset((one, other)) in self._partitions

    def connect(self, client: End, server: End, machines: tuple[int, ...] = ()) -> Link:
        """Open a link between a client and a server that is up; `machines` as in Link."""
        self.links = [link for link in self.links if any(link.is_open)]
        self.links.append(Link(self, client, server, machines))
        return self.links[-1]

    def cut_one(self) -> None:
        """Cut a random link; one side may not notice it."""
        links = [link for link in self.links if all(link.is_open)]
        if links:
            silent = (self._rng.randrange(2),) if self._rng.random() < self.conditions.silence_share else ()
            self._rng.choice(links).cut(*silent)

    def end_dead_links(self) -> None:
        """Let both sides notice all links that are broken or closed, as a keepalive does."""
        for link in self.links:
            link.notice_end()

    def is_announced(self) -> bool:
        """Return, at random, whether the other side of a link notices the death of a process."""
        return self._rng.random() >= self.conditions.silence_share

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
        self.virtual_time.after(delay_ms, run)


class FrameReader:
    """Assembles frames from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytearray]:
        """Take bytes; return the frames that are complete now. Raises ValueError for an invalid size."""
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
