"""Events and effects: the interface between the cores of a node, which decide, and the shells, which do input and output.

    event             means
    ----------------  ------------------------------------------------------------------------------------------------------
    RequestReceived   one whole request came on a connection; its frame (without the 4 bytes of its size) is the shell's
                      buffer and may be patched in place, but is valid only until `handle` returns
    ResponseReceived  the answer to a SendRequest; None: the node closed the request to itself without an answer
    PeerClosed        the connection to a peer ended, or could not be made: no request on it will be answered
    Flushed           the files of a Flush are durable, or the error that prevented it
    Computed          the result of a Compute
    DeadlineReached   the time that `next_deadline_ms` returned has come
    ConnectionClosed  a client's connection is closed; nothing can be sent on it any more

    effect            asks the shell to
    ----------------  ------------------------------------------------------------------------------------------------------
    SendResponse      send a frame (with its size); then the next request of this connection may be read
    SendFile          the same for parts: bytes, and regions of files that need not pass through Python
    NoResponse        read the next request of this connection: the one before gets no answer (acks=0)
    SendRequest       send a frame (with its size) to a peer, after connecting if there is no connection to it yet; requests
                      of a node to itself are looped back (kcli.server.loopback)
    ClosePeer         close the connection to a peer; no PeerClosed follows
    Flush             make files durable and answer with Flushed
    Compute           call a function outside the loop, which it would block for long, and answer with Computed; the function
                      uses only its arguments, changes nothing else, and does not raise
    HoldMemory        count bytes of requests that the node keeps as if they were still being received; a negative number
                      releases them
    CloseConnection   close a client's connection; `reason` is for the log

The core has at most one request of a client's connection at a time, as in Kafka: answers leave in the order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from kcli.format.primitives import Buffer


class Connection:
    """A client's connection; the shell makes one and passes the same object in each event.

    `is_internal` is set for requests of the node to itself, `is_closed` after ConnectionClosed. `shell` belongs to the shell.
    """

    __slots__ = (
        "client_host",
        "client_port",
        "connection_id",
        "is_closed",
        "is_internal",
        "listener",
        "principal",
        "security_protocol",
        "shell",
        "software_name",
        "software_version",
    )

    def __init__(
        self,
        connection_id: int,
        listener: str,
        client_host: str,
        client_port: int = 0,
        *,
        security_protocol: str = "PLAINTEXT",
        principal: str = "User:ANONYMOUS",
        is_internal: bool = False,
    ) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.client_host = client_host
        self.client_port = client_port
        self.security_protocol = security_protocol
        self.principal = principal
        self.is_internal = is_internal
        self.is_closed = False
        self.software_name = ""
        self.software_version = ""
        self.shell: object = None

    def __repr__(self) -> str:
        return f"<connection {self.connection_id} of {self.client_host}:{self.client_port} on {self.listener}>"


class NodeRole(Enum):
    """A role of a node in the cluster: both have listeners of their own, also in one process."""

    BROKER = "broker"
    CONTROLLER = "controller"


class PeerNode(NamedTuple):
    """A node of the cluster in one of its roles."""

    node_id: int
    role: NodeRole


class PeerAddress(NamedTuple):
    """An address whose node id is not known, as in controller.quorum.bootstrap.servers."""

    host: str
    port: int


class Peer(NamedTuple):
    """One connection to another node, or the node itself (`address` is None): at most one is open for each value."""

    destination: PeerNode | PeerAddress
    listener: str
    address: PeerAddress | None


class RequestReceived(NamedTuple):
    """A whole request, without the 4 bytes of its size."""

    connection: Connection
    frame: memoryview


class ResponseReceived(NamedTuple):
    """The answer to the SendRequest of that id, without the 4 bytes of its size; None if there will be none."""

    request_id: int
    frame: bytes | None


class PeerClosed(NamedTuple):
    """The end of a connection to a peer, whose cause is in `reason`."""

    peer: Peer
    reason: str


class Flushed(NamedTuple):
    """The end of the Flush of that id."""

    flush_id: int
    error: OSError | None = None


class Computed(NamedTuple):
    """The result of the Compute of that id."""

    compute_id: int
    result: object


class DeadlineReached(NamedTuple):
    """The time that `next_deadline_ms` returned has come."""


class ConnectionClosed(NamedTuple):
    """The end of a client's connection."""

    connection: Connection


Event = RequestReceived | ResponseReceived | PeerClosed | Flushed | Computed | DeadlineReached | ConnectionClosed


class ReadableFile(Protocol):
    """The part of a LogFile that a shell needs to send bytes of it."""

    name: str

    def fileno(self) -> int:
        """Return the descriptor for sendfile, -1 if there is none."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes from byte `position` on."""
        ...


class FileRegion:
    """Bytes of a file that are sent unchanged; its length is their number, as if it were the bytes."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: ReadableFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size


class SendResponse(NamedTuple):
    """Send a whole frame, its size included."""

    connection: Connection
    frame: Buffer


class SendFile(NamedTuple):
    """Send a whole frame, its size included, that consists of bytes and of regions of files."""

    connection: Connection
    parts: Sequence[Buffer | FileRegion]


class NoResponse(NamedTuple):
    """Send no answer; the next request may be read."""

    connection: Connection


class SendRequest(NamedTuple):
    """Send a whole frame, its size included, to a peer and answer with ResponseReceived or PeerClosed.

    Deadlines are timers of the core (kcli.server.peers), which closes a peer that is too late.
    """

    request_id: int
    peer: Peer
    frame: bytes


class ClosePeer(NamedTuple):
    """Close the connection to a peer, if there is one."""

    peer: Peer


class Flush(NamedTuple):
    """Make the files and directories of these paths durable, in this order, and answer with Flushed."""

    flush_id: int
    paths: tuple[str, ...]


class Compute(NamedTuple):
    """Call `work` outside the loop and answer with Computed."""

    compute_id: int
    work: Callable[[], object]


class HoldMemory(NamedTuple):
    """Count this number of bytes as memory of requests; a negative number releases them."""

    size_bytes: int


class CloseConnection(NamedTuple):
    """Close a client's connection and log the reason."""

    connection: Connection
    reason: str


Effect = SendResponse | SendFile | NoResponse | SendRequest | ClosePeer | Flush | Compute | HoldMemory | CloseConnection
