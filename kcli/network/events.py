"""Events and effects of requests to other nodes: the interface of a broker, controller or client to its connections.

    effect                       event that follows
    ---------------------------  --------------------------------------------------------------------------------------
    SendRequest                  ResponseReceived or PeerClosed
    SendRequest without answer   ResponseReceived with an empty frame, as soon as the operating system has all its bytes,
                                 or PeerClosed
    ClosePeer                    none
    ObtainToken                  TokenObtained

kcli.network.peers makes the effects and takes the events; the shells are kcli.network.shell.peer_connections (asyncio) and
kcli.simulator.peer_links.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol


class NodeRole(Enum):
    """A role of a node in the cluster: both have listeners of their own, also in one process."""

    BROKER = "broker"
    CONTROLLER = "controller"


class PeerNode(NamedTuple):
    """A node of the cluster in one of its roles; each `channel` has a connection of its own, to the same address.

    The client id of its requests ends with the name of the channel.
    """

    node_id: int
    role: NodeRole
    channel: str = ""


class PeerAddress(NamedTuple):
    """An address whose node id is not known, as in controller.quorum.bootstrap.servers."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host:port, with an IPv6 address in brackets, as settings and options take it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer(NamedTuple):
    """One connection to another node, or the node itself (`address` is None): at most one is open for each value."""

    destination: PeerNode | PeerAddress
    listener: str
    address: PeerAddress | None


class SendRequest(NamedTuple):
    """Send a whole frame, its size included, to a peer, after connecting if there is no connection to it yet.

    Requests of a node to itself are looped back (kcli.server.loopback). Deadlines are timers of the core (kcli.network.peers).
    """

    request_id: int
    peer: Peer
    frame: bytes | bytearray
    has_answer: bool = True  # no: Produce with acks=0


class ClosePeer(NamedTuple):
    """Close the connection to a peer, if there is one; no PeerClosed follows."""

    peer: Peer


class ResponseReceived(NamedTuple):
    """The answer to a SendRequest, without the 4 bytes of its size; None if the node closed a request to itself.

    For a request that has no answer it says that the request was written; the frame is empty.
    """

    request_id: int
    frame: bytes | bytearray | None


class Closing(Enum):
    """What a shell knows of the end of a connection, as far as it may be a matter of TLS or SASL."""

    ENDED = 0  # it was not made, or broke
    CLOSED = 1  # the peer closed it
    CLOSED_IN_HANDSHAKE = 2  # the peer closed it during the TLS handshake
    EXPECTS_TLS = 3  # the peer answered plain bytes with those of TLS
    REFUSED = 4  # another attempt would fail, too: TLS with a wrong certificate, or a server of HTTP or SSH


class PeerClosed(NamedTuple):
    """The end of a connection to a peer, or a failure to make it: no request on it will be answered."""

    peer: Peer
    reason: str
    closing: Closing = Closing.ENDED


class ObtainToken(NamedTuple):
    """Obtain a token for the SASL mechanism OAUTHBEARER, for a connection to a peer."""

    request_id: int
    peer: Peer


class TokenObtained(NamedTuple):
    """The token of an ObtainToken, or the reason why there is none."""

    request_id: int
    token: str | None
    reason: str = ""

    def __repr__(self) -> str:
        return f"<TokenObtained {self.request_id}>"  # a token is a secret


PeerEvent = ResponseReceived | PeerClosed
PeerEffect = SendRequest | ClosePeer
# Of a client, which may authenticate.
ClientEvent = PeerEvent | TokenObtained
ClientEffect = PeerEffect | ObtainToken


class PeerEffects(Protocol):
    """Where the effects go: the list of all effects of a node or client."""

    def append(self, effect: PeerEffect, /) -> None:
        """Add an effect; the shell executes them in their order."""
        ...
