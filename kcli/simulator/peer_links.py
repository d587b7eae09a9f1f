"""The connections of a simulated machine or client to others: what kcli.network.shell.peer_connections is to sockets.

what                          then
----------------------------  -------------------------------------------------------------------------------------
SendRequest to a peer         the frame is sent on the link; if there is none, one is made first, a little later
no process listens there      PeerClosed, a little later
the two are partitioned       connecting is tried again each CONNECT_RETRY_MS, as TCP does; frames are lost, and only a
                              deadline of the core ends it
a whole frame comes           ResponseReceived for the oldest request that waits for its answer
a request that has no answer  ResponseReceived with an empty frame, a little later
is on the link
the link ends                 PeerClosed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from kcli.network.events import Peer, PeerClosed, PeerEvent, ResponseReceived, SendRequest
from kcli.simulator.network import FrameReader, Link, Network

CONNECT_RETRY_MS = 1000


class PeerLinks:
    """The links of machine `machine_id` to others; `later` and `handle` do nothing after the death of its process.

    `name` is that of a client, whose `machine_id` is its port.
    """

    def __init__(
        self,
        network: Network,
        machine_id: int,
        later: Callable[[int, Callable[[], None]], None],
        handle: Callable[[PeerEvent], None],
        name: str = "",
    ) -> None:
        self.network = network
        self.name = name
        self.machine_id = machine_id
        self.later = later
        self.handle = handle
        self._ends: dict[Peer, PeerEnd] = {}

    def send(self, effect: SendRequest) -> None:
        """Send a request, connecting first if needed."""
        end = self._ends.get(effect.peer)
        if end is None:
            end = self._ends[effect.peer] = PeerEnd(self, effect.peer)
            self.later(self.network.delay_ms(), end.connect)
        end.send(effect)

    def close(self, peer: Peer) -> None:
        """Close the link to a peer, if there is one."""
        end = self._ends.pop(peer, None)
        if end is not None and end.link is not None:
            end.link.close(0)

    def close_all(self) -> None:
        """Close all links."""
        for peer in list(self._ends):
            self.close(peer)

    def forget(self) -> None:
        """Drop all links: the process is dead. The other sides hear of it, or not."""
        ends, self._ends = self._ends, {}
        for end in ends.values():
            if end.link is not None:
                end.link.cut(*((0,) if self.network.is_announced() else (0, 1)))

    def is_current(self, end: PeerEnd) -> bool:
        """Return whether an end is the one that its peer has now."""
        return self._ends.get(end.peer) is end

    def lost(self, end: PeerEnd, reason: str) -> None:
        """Take the end of a link."""
        if self.is_current(end):
            del self._ends[end.peer]
            self.handle(PeerClosed(end.peer, reason))


class PeerEnd:
    """This machine's end of a link to a peer; the requests on it in their order."""

    def __init__(self, links: PeerLinks, peer: Peer) -> None:
        self.peer = peer
        self.name = links.name
        self.link: Link | None = None
        self._links = links
        self._unsent: list[SendRequest] = []
        self._request_ids: deque[int] = deque()
        self._reader = FrameReader()

    def connect(self) -> None:
        """Make the link, unless it was closed before."""
        links = self._links
        assert self.peer.address is not None
        if not links.is_current(self):
            return
        host = links.network.host_at(self.peer.address)
        if host is not None and links.network.is_partitioned(links.machine_id, host.machine_id):
            links.later(CONNECT_RETRY_MS, self.connect)
            return
        if host is not None:
            self.link = host.accept_peer(self, self.peer, links.machine_id)
        if self.link is None:
            links.later(links.network.delay_ms(), lambda: links.lost(self, "Connection refused"))
            return
        unsent, self._unsent = self._unsent, []
        for effect in unsent:
            self._write(self.link, effect)

    def send(self, effect: SendRequest) -> None:
        """Send a frame, or keep it until the link is made."""
        if effect.has_answer:
            self._request_ids.append(effect.request_id)
        if self.link is None:
            self._unsent.append(effect)
        else:
            self._write(self.link, effect)

    def _write(self, link: Link, effect: SendRequest) -> None:
        link.send(0, bytes(effect.frame))
        if not effect.has_answer:
            self._links.later(0, partial(self._written, effect.request_id))

    def _written(self, request_id: int) -> None:
        if self._links.is_current(self):
            self._links.handle(ResponseReceived(request_id, b""))

    def received(self, link: Link, data: bytes) -> None:
        """Take bytes; each whole frame is an answer."""
        for frame in self._reader.feed(data):
            if self._links.is_current(self):
                self._links.handle(ResponseReceived(self._request_ids.popleft(), bytes(frame)))

    def closed(self, link: Link) -> None:
        """Take the end of the link."""
        self._links.lost(self, "the other side closed the connection")
