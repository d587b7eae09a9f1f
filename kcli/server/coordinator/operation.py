"""The operations of coordinators: what they decide, how they are refused, and how they are answered (Kafka: CoordinatorResult).

part              is
----------------  ----------------------------------------------------------------------------------------------------
CoordinatorShard  the coordinator of one partition of the internal topic; an operation reads its state
Decision          what an operation has decided: a response, and records
CoordinatorError  the refusal of an operation, with Kafka's error code
Respond           takes the response or the refusal, once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from kcli.protocol import error_codes
from kcli.server.coordinator.coordinator_record import ShardRecord
from kcli.state.speculative_state import RevertibleState

Response = TypeVar("Response")
# What an operation is refused with after an error of its append; any other error stays.
OPERATION_ERRORS = {
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_ENOUGH_REPLICAS: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.REQUEST_TIMED_OUT: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_LEADER_OR_FOLLOWER: error_codes.NOT_COORDINATOR,
    error_codes.KAFKA_STORAGE_ERROR: error_codes.NOT_COORDINATOR,
    error_codes.MESSAGE_TOO_LARGE: error_codes.UNKNOWN_SERVER_ERROR,
    error_codes.RECORD_LIST_TOO_LARGE: error_codes.UNKNOWN_SERVER_ERROR,
}


class CoordinatorError(Exception):
    """An operation that a coordinator refuses; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CoordinatorShard(Protocol):
    """The coordinator of one partition. `state` is what the partition's records make."""

    @property
    def state(self) -> RevertibleState:
        """The state that `apply` changes."""
        ...

    def apply(self, record: ShardRecord, offset: int) -> None:
        """Apply a record with this offset in the partition. Raises StateError."""
        ...

    def loaded(self, now_ms: int) -> None:
        """Begin to coordinate: all records are applied."""
        ...

    def unloaded(self) -> None:
        """Stop: cancel timers, and answer waiting requests with NOT_COORDINATOR."""
        ...


class Decision(NamedTuple, Generic[Response]):
    """What an operation has decided: its response, and the records that must be committed before it is sent.

    `settled` is called before the response is sent, with 0 or the error code of an operation whose records failed. Records that
    are not atomic may be in several batches, of which the later ones may fail.
    """

    response: Response
    records: Sequence[ShardRecord] = ()
    settled: Callable[[int], None] | None = None
    is_atomic: bool = True


Respond = Callable[[Response | CoordinatorError, int], None]


def settle(
    settled: Callable[[int], None], respond: Respond[Response], response: Response | CoordinatorError, now_ms: int
) -> None:
    """Call `settled`, then `respond`."""
    settled(response.code if isinstance(response, CoordinatorError) else error_codes.NONE)
    respond(response, now_ms)
