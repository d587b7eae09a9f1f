"""What a handler of the controller answers with: a refusal, or records to append and the response that follows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.protocol.message import Message


class ApiError(Exception):
    """A request, or a part of one, that is refused: Kafka's error code and a sentence for whoever asked."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ControllerRequestContext(NamedTuple):
    """What a handler knows of a request besides its message."""

    version: int
    principal: str
    now_ms: int


class ControllerResult(NamedTuple):
    """The records that a request asks for, and its response, which leaves when they are committed and applied.

    Where they may be many they are an iterator, which makes each when it is drawn: the controller draws them in slices. The
    state is the same until all are drawn, or, of a decision in parts, until those of its part are. With a `kraft_version` the
    quorum goes up to that first, before the records.
    """

    records: Iterable[Message]
    response: Message
    kraft_version: int | None = None
