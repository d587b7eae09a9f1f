"""What an operation of an administrator is made of: calls, in a generator that the driver resumes (Kafka: AdminApiFuture).

    def describe_cluster() -> Operation[ClusterDescription]:
        answers = yield from run(CALL, ["cluster"])
        ...
        return ClusterDescription(...)

An operation is a generator function: it yields calls through `run`, gets their outcomes, and returns its result. It raises a
ClientError if it fails as a whole. An operation about several items never raises for one of them: it returns Outcomes, a dict
that has a ClientError in the place of the result of an item that failed, since the others may have been changed (in Kafka a
future for each item). The caller uses `value_of` or `values_of`. kcli.client.admin.driver executes it without waiting.

A `Call` is a table row that says how one API is asked about many keys:

    field            meaning
    ---------------  -----------------------------------------------------------------------------------------------------
    route            which node answers for a key (below)
    place            the part of a key that the route needs: a group id, a partition, a broker's id
    controller_place the same with bootstrap.controllers, if it is another one
    request          makes the request for the keys of one node
    read             yields the outcome of each key in an answer; a KafkaError with a code of `retried` is tried again
    is_single        one key a request, for APIs that take no more
    max_version      of the API, if later ones do not suit
    fallback         another API of the same node, which answers for the keys that the first one does not know
    settled          error codes that are an outcome at once, although the route has them looked up again

    route        the node                            forgotten, and looked up again, after
    -----------  ----------------------------------  ----------------------------------------------------------------
    ANY          the least loaded broker             -
    CONTROLLER   the controller of the metadata      NOT_CONTROLLER
    GROUP        FindCoordinator of a group          NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE
    TRANSACTION  FindCoordinator of a transactional  the same
                 id
    LEADER       the leader of a partition           NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, ... of an
                                                     answer or of Metadata
    BROKER       the broker with the id; ANY_BROKER  a broker that is not in new metadata fails with
                 for the least loaded one            BROKER_ID_NOT_REGISTERED

With bootstrap.controllers (KIP-919) the nodes are the controllers: ANY and ANY_BROKER are the active one, as CONTROLLER is, and
it is looked up again after NOT_LEADER_OR_FOLLOWER, too. An API that is not in CONTROLLER_APIS has UNSUPPORTED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from kcli.client.errors import ClientError
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message

if TYPE_CHECKING:
    from kcli.client.admin.driver import AdminCore

Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

ANY_BROKER = -1

# What a step calls with its outcome, and the time.
StepDone = Callable[[object, int], None]
# Starts one step of an operation: gets the core, the time at which the operation ends, and where the outcome goes.
Step = Callable[["AdminCore", int, StepDone], None]
Operation = Generator[Step, object, Result]


class Route(Enum):
    """How the node for a key is found."""

    ANY = "any broker"
    CONTROLLER = "the controller"
    GROUP = "the coordinator of the group"
    TRANSACTION = "the coordinator of the transactional id"
    LEADER = "the leader of the partition"
    BROKER = "the broker"


_COORDINATOR_MOVED = frozenset((error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE))
# After these errors the node of a key is looked up again.
MOVED: dict[Route, frozenset[int]] = {
    Route.ANY: frozenset(),
    Route.CONTROLLER: frozenset((error_codes.NOT_CONTROLLER,)),
    Route.GROUP: _COORDINATOR_MOVED,
    Route.TRANSACTION: _COORDINATOR_MOVED,
    Route.LEADER: frozenset(
        (
            error_codes.NOT_LEADER_OR_FOLLOWER,
            error_codes.LEADER_NOT_AVAILABLE,
            error_codes.BROKER_NOT_AVAILABLE,
            error_codes.REPLICA_NOT_AVAILABLE,
            error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            error_codes.KAFKA_STORAGE_ERROR,
            error_codes.FENCED_LEADER_EPOCH,
            error_codes.UNKNOWN_LEADER_EPOCH,
            error_codes.OFFSET_NOT_AVAILABLE,
        )
    ),
    Route.BROKER: frozenset(),
}
# After these errors a key is tried again on the same node: the default of `Call.retried`.
TRIED_AGAIN = frozenset(
    (error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.REQUEST_TIMED_OUT, error_codes.THROTTLING_QUOTA_EXCEEDED)
)
# The same for changes that must not be made twice: after REQUEST_TIMED_OUT the broker may have made them, or make them later.
NOT_EXECUTED = TRIED_AGAIN - {error_codes.REQUEST_TIMED_OUT}
# The same for Metadata: an answer with the error has no brokers and no topics (KIP-1102).
METADATA_RETRIED = TRIED_AGAIN | {error_codes.REBOOTSTRAP_REQUIRED}


# The APIs that clients may send to controllers (in Kafka's client the calls whose NodeProvider supportsUseControllers).
CONTROLLER_APIS = frozenset(
    (
        apis.ADD_RAFT_VOTER,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.API_VERSIONS,
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.DESCRIBE_ACLS,
        apis.DESCRIBE_CLUSTER,
        apis.DESCRIBE_CONFIGS,
        apis.DESCRIBE_QUORUM,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.REMOVE_RAFT_VOTER,
        apis.UNREGISTER_BROKER,
        apis.UNREGISTER_CONTROLLER,
        apis.UPDATE_FEATURES,
    )
)
# After these errors of a controller, the active one is looked up again.
CONTROLLER_MOVED = frozenset((error_codes.NOT_CONTROLLER, error_codes.NOT_LEADER_OR_FOLLOWER))


class RequestContext(NamedTuple):
    """What a request may depend on: its version, how long the node may take, in ms, and whether it goes to a controller."""

    version: int
    timeout_ms: int
    is_for_controller: bool = False


def itself(key: object) -> object:
    """Return the key: it is what the route needs."""
    return key


class Fallback(NamedTuple, Generic[Key, Value]):
    """The API that is asked about a key next, if `is_needed` returns True for its outcome."""

    is_needed: Callable[[Value | ClientError], bool]
    api_key: int
    request: Callable[[Sequence[Key], RequestContext], Message]
    read: Callable[[Sequence[Key], Message], Iterable[tuple[Key, Value | ClientError]]]


class Call(NamedTuple, Generic[Key, Value]):
    """How an API is asked about keys; the fields are at the head of this module."""

    api_key: int
    route: Route
    request: Callable[[Sequence[Key], RequestContext], Message]
    read: Callable[[Sequence[Key], Message], Iterable[tuple[Key, Value | ClientError]]]
    place: Callable[[Key], object] = itself
    retried: frozenset[int] = TRIED_AGAIN
    is_single: bool = False
    max_version: int | None = None
    fallback: Fallback[Key, Value] | None = None
    settled: frozenset[int] = frozenset()
    controller_place: Callable[[Key], object] | None = None


Outcomes = dict[Key, Value | ClientError]


def run(call: Call[Key, Value], keys: Iterable[Key]) -> Operation[Outcomes[Key, Value]]:
    """Make a call about keys; return the outcome of each, in their order."""
    wanted = list(dict.fromkeys(keys))

    def step(core: AdminCore, deadline_ms: int, done: StepDone) -> None:
        core.begin(call, wanted, deadline_ms, done)

    return cast("Outcomes[Key, Value]", (yield step))


def run_one(call: Call[Key, Value], key: Key) -> Operation[Value]:
    """Make a call about one key and return its value. Raises the ClientError of its outcome."""
    outcomes = yield from run(call, [key])
    return value_of(outcomes[key])


def run_all(call: Call[Key, Value], keys: Iterable[Key]) -> Operation[dict[Key, Value]]:
    """Make a call whose keys must all succeed; return their values. Raises the first ClientError."""
    return values_of((yield from run(call, keys)))


def run_together(operations: Iterable[Operation[Result]]) -> Operation[list[Result]]:
    """Execute operations at the same time, so that none uses up the time of the others; return their results in that order.

    Raises the ClientError of the first one that raised one, after all have ended.
    """
    started = list(operations)

    def step(core: AdminCore, deadline_ms: int, done: StepDone) -> None:
        core.begin_together(started, deadline_ms, done)

    results = cast("list[Result | ClientError]", (yield step))
    return [value_of(result) for result in results]


def values_of(outcomes: Mapping[Key, Value | ClientError]) -> dict[Key, Value]:
    """Return the value of each outcome (Kafka: all() of a result). Raises the first ClientError among them."""
    return {key: value_of(outcome) for key, outcome in outcomes.items()}


def value_of(outcome: Value | ClientError) -> Value:
    """Return the value of an outcome. Raises the ClientError that it is instead."""
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome
