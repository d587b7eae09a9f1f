"""A node's requests to itself: how a shell hands them in and takes their answers back (SendRequest, ResponseReceived).

effect                                       event that it leads to
-------------------------------------------  -----------------------------------------------------------------------
SendRequest to the node itself               RequestReceived, on an internal connection of its own
SendRequest to another node                  ResponseReceived without an answer: peers of a cluster are served later
what answers or closes such a connection     ResponseReceived, with the answer or without one
"""

from __future__ import annotations

from kcli.server.events import Connection, RequestReceived, ResponseReceived, SendRequest

SIZE_BYTES = 4  # of the size before a frame


class _LoopbackCall:
    """What an internal connection is to its shell: the request whose answer goes back to whoever asked."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


def request_event(effect: SendRequest, node_id: int, connection_id: int) -> RequestReceived | ResponseReceived:
    """The event that a node's request leads to; it has `connection_id` where it is one to the node `node_id` itself."""
    if effect.destination_id != node_id:
        return ResponseReceived(effect.request_id, None)
    connection = Connection(connection_id, "internal", "127.0.0.1", is_internal=True)
    connection.shell = _LoopbackCall(effect.request_id)
    return RequestReceived(connection, memoryview(bytearray(effect.frame))[SIZE_BYTES:])


def answer_event(connection: Connection, frame: bytes | None) -> ResponseReceived | None:
    """The event that the answer (with its size) on a connection leads to, or its end (None); None for a client's."""
    call = connection.shell
    if not isinstance(call, _LoopbackCall):
        return None
    return ResponseReceived(call.request_id, None if frame is None else frame[SIZE_BYTES:])
