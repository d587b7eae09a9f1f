"""Events and effects: the interface between the cores of a node, which decide, and the shells, which do input and output.

A node takes events and returns effects, which the shell executes. All other events come from outside.

    effect       event that follows
    -----------  -------------------------------------------
    SendRequest  ResponseReceived or PeerClosed
    Flush        Flushed
    Compute      Computed

The core has at most one request of a client's connection at a time, as in Kafka: answers leave in the order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kcli.format.primitives import Buffer
from kcli.network.events import ClosePeer, PeerAddress, PeerClosed, ResponseReceived, SendRequest


class Connection:
    """A client's connection; the shell makes one and passes the same object in each event.

    `is_internal` is set for requests of the node to itself, `is_forwarded` for the request in an Envelope, `is_closed` after
    ConnectionClosed. `shell` belongs to the shell.
    """

    __slots__ = (
        "client_host",
        "client_port",
        "connection_id",
        "is_closed",
        "is_forwarded",
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
        is_forwarded: bool = False,
    ) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.client_host = client_host
        self.client_port = client_port
        self.security_protocol = security_protocol
        self.principal = principal
        self.is_internal = is_internal
        self.is_forwarded = is_forwarded
        self.is_closed = False
        self.software_name = ""
        self.software_version = ""
        self.shell: object = None

    def __repr__(self) -> str:
        return f"<connection {self.connection_id} of {PeerAddress(self.client_host, self.client_port)} on {self.listener}>"


# Answers a request with a whole frame, its size included; None closes the connection.
Respond = Callable[[bytes | None], None]


class RequestReceived(NamedTuple):
    """A whole request on a connection, without the 4 bytes of its size.

    The frame is the shell's buffer: it may be patched in place, and is valid only until `handle` returns.
    """

    connection: Connection
    frame: memoryview


class Flushed(NamedTuple):
    """The end of a Flush: the files are durable, or the error that prevented it."""

    flush_id: int
    error: OSError | None = None


class Computed(NamedTuple):
    """The result of a Compute."""

    compute_id: int
    result: object


class DeadlineReached(NamedTuple):
    """The time that `next_deadline_ms` returned has come."""


class ConnectionClosed(NamedTuple):
    """The end of a client's connection: nothing can be sent on it any more."""

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
    """Send a whole frame, its size included; then the next request of this connection may be read."""

    connection: Connection
    frame: Buffer


class SendFile(NamedTuple):
    """Send a whole frame that consists of bytes, and of regions of files that need not pass through Python."""

    connection: Connection
    parts: Sequence[Buffer | FileRegion]


class NoResponse(NamedTuple):
    """Send no answer (acks=0) and read the next request of this connection."""

    connection: Connection


class Flush(NamedTuple):
    """Make the files and directories of these paths durable, in this order."""

    flush_id: int
    paths: tuple[str, ...]


class Compute(NamedTuple):
    """Call `work` outside the loop, which it would block. It changes nothing but its result, and does not raise."""

    compute_id: int
    work: Callable[[], object]


class HoldMemory(NamedTuple):
    """Count bytes of requests that the node keeps as if they were still being received; a negative number releases them."""

    size_bytes: int


class CloseConnection(NamedTuple):
    """Close a client's connection and log the reason."""

    connection: Connection
    reason: str


Effect = SendResponse | SendFile | NoResponse | SendRequest | ClosePeer | Flush | Compute | HoldMemory | CloseConnection
