"""Requests of a node to itself: the events that a shell makes of them and of their answers.

effect                                        event
--------------------------------------------  ----------------------------------------------------------------
SendRequest to the node itself                RequestReceived, on an internal connection for this request alone
SendResponse or SendFile on that connection   ResponseReceived with the answer
NoResponse or CloseConnection on it           ResponseReceived without an answer

A connection for each request: a heartbeat must not wait for the answer to a CreateTopics that was sent before it.
"""

from __future__ import annotations

from kcli.network.events import ResponseReceived, SendRequest
from kcli.server.events import Connection, RequestReceived

SIZE_BYTES = 4  # of the size before a frame


class _LoopbackCall:
    """The `shell` attribute of an internal connection: the request that its answer belongs to."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


def request_event(effect: SendRequest, connection_id: int) -> RequestReceived:
    """Return the event for a request of the node to itself, on a new connection with that id."""
    connection = Connection(connection_id, effect.peer.listener, "127.0.0.1", is_internal=True)
    connection.shell = _LoopbackCall(effect.request_id)
    return RequestReceived(connection, memoryview(bytearray(effect.frame))[SIZE_BYTES:])


def answer_event(connection: Connection, frame: bytes | None) -> ResponseReceived | None:
    """Return the event for an answer (with its size), or for its absence (None); None for a client's connection."""
    call = connection.shell
    if not isinstance(call, _LoopbackCall):
        return None
    return ResponseReceived(call.request_id, None if frame is None else frame[SIZE_BYTES:])
