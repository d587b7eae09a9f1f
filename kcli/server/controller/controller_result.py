"""The results of the controller's handlers: an ApiError, or records to append and the response to send after their commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.protocol.message import Message


class ApiError(Exception):
    """A request, or a part of one, that is refused: Kafka's error code, and a sentence for the client."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ControllerRequestContext(NamedTuple):
    """The context of a request: version, principal, the time in ms, and whether a broker forwarded it, which checked it."""

    version: int
    principal: str
    now_ms: int
    is_forwarded: bool = False


class ControllerResult(NamedTuple):
    """The records of a decision, and its response, which is sent when they are committed.

    Many records are an iterator that makes each one when the controller asks for it, in time slices, and that may complete the
    response as well; None in their place is something that was checked and needs no record. Until all of them are made (all of
    one batch, if they may be split) the state does not change. `kraft_version` is a level to which the quorum is upgraded
    before the records are appended.
    """

    records: Iterable[Message | None]
    response: Message
    kraft_version: int | None = None
