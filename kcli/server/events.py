"""What comes into a node and what goes out of it: the seam between the cores, which decide, and the shells, which move bytes.

    event             means
    ----------------  ------------------------------------------------------------------------------------------------------
    RequestReceived   one whole request came on a connection; its frame (without the 4 bytes of its size) is the shell's
                      buffer and may be patched in place, but is valid only until `handle` returns
    ResponseReceived  the answer to a SendRequest; None: the connection failed or the destination cannot be reached
    Flushed           what a Flush asked for is on the device, or the error that came instead
    Computed          what a Compute gave
    DeadlineReached   the time that `next_deadline_ms` named has come
    ConnectionClosed  a connection is gone; nothing can be sent on it any more

    effect            asks the shell to
    ----------------  ------------------------------------------------------------------------------------------------------
    SendResponse      send a frame (with its size); then the next request of this connection may be read
    SendFile          the same of parts: bytes, and regions of files that need not pass through Python
    NoResponse        read the next request of this connection: the one before gets no answer (acks=0)
    SendRequest       send a frame (with its size) to a node; a node's requests to itself are looped back
    Flush             make files durable and answer with Flushed
    Compute           call a function beside the loop, which it would hold for long, and answer with Computed; it knows only
                      what it was given, touches nothing else, and does not raise
    HoldMemory        count bytes of requests that the node keeps among those of the requests that come in; a negative number
                      releases as many
    CloseConnection   close a connection; `reason` is for the log

A connection has at most one request inside the core at a time, as in Kafka: answers leave in the order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kcli.format.primitives import Buffer


class Connection:
    """A client's connection as the core knows it; the shell makes one and hands the same object in with each event.

    `is_internal` marks the node's own: of broker and controller to each other; `is_closed` one whose ConnectionClosed came.
    `shell` is the shell's own and opaque here.
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


class RequestReceived(NamedTuple):
    """A whole request, without the 4 bytes of its size."""

    connection: Connection
    frame: memoryview


class ResponseReceived(NamedTuple):
    """The answer to the SendRequest of that id, without the 4 bytes of its size; None where none will come."""

    request_id: int
    frame: bytes | None


class Flushed(NamedTuple):
    """The Flush of that id is done, or failed."""

    flush_id: int
    error: OSError | None = None


class Computed(NamedTuple):
    """The Compute of that id is done."""

    compute_id: int
    result: object


class DeadlineReached(NamedTuple):
    """Time has come to what was to be done at `next_deadline_ms`."""


class ConnectionClosed(NamedTuple):
    """A connection is gone."""

    connection: Connection


Event = RequestReceived | ResponseReceived | Flushed | Computed | DeadlineReached | ConnectionClosed


class ReadableFile(Protocol):
    """What a shell needs of a file to send bytes of it; a LogFile has more."""

    name: str

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 where there is none."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from byte `position` on."""
        ...


class FileRegion:
    """Bytes of a file, to be sent as they are; its length is theirs, as that of bytes in their place would be."""

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
    """Send a whole frame, its size included, that is made of bytes and of regions of files."""

    connection: Connection
    parts: Sequence[Buffer | FileRegion]


class NoResponse(NamedTuple):
    """The request gets no answer; the next may come."""

    connection: Connection


class SendRequest(NamedTuple):
    """Send a whole frame, its size included, to a node and answer with ResponseReceived."""

    request_id: int
    destination_id: int
    frame: bytes


class Flush(NamedTuple):
    """Make the files and directories of these paths durable, in this order, and answer with Flushed."""

    flush_id: int
    paths: tuple[str, ...]


class Compute(NamedTuple):
    """Call `work` beside the loop and answer with Computed."""

    compute_id: int
    work: Callable[[], object]


class HoldMemory(NamedTuple):
    """Count so many bytes, or so many less, as memory of requests."""

    size_bytes: int


class CloseConnection(NamedTuple):
    """Close a connection and say why in the log."""

    connection: Connection
    reason: str


Effect = SendResponse | SendFile | NoResponse | SendRequest | Flush | Compute | HoldMemory | CloseConnection
