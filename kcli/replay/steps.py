"""Several requests one after the other, written as a generator that yields what it waits for.

    yielded                 what comes back
    ----------------------  --------------------------------------------------------------
    Call(...)               the answer, or the PeerFailure instead of it
    Pause(ms)               None, after that time
    Execute(operation)      the result of an operation of the admin client, or its ClientError
    ToCoordinator(...)      the answer of a coordinator, or the ClientError instead of it

A `StepRunner` runs any number of generators at once over one NetworkClient. `execute` raises the error of an operation, and
`ask` sends a request again until it is answered or the time for it (default.api.timeout.ms) is over. Any exception ends its
steps, and `done` gets it.

Below it are the requests that all of a replay uses: the first contact with a cluster, its metadata, offsets of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kcli.client.admin import partitions as admin_partitions
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation, value_of
from kcli.client.admin.partitions import IsolationLevel, OffsetSpec
from kcli.client.client_config import FIRST_CONTACT_MS
from kcli.client.coordinator_lookup import CoordinatorLookup
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient, failure_error
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, PeerFailure, Request
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, METADATA
from kcli.protocol.message import Message
from kcli.replay.source import BatchStream, OutgoingBatch

_Result = TypeVar("_Result")
STREAM_PAUSE_MS = 5


# The end of a message on progress that cannot be used.
RESTART = "to send all records again, use --restart"


class ReplayError(ClientError):
    """A replay that cannot go on; the message is one sentence."""


def as_client_error(error: Exception) -> ClientError:
    """Return an error as one that the caller of an operation gets: a fault of the program must end it, too."""
    if isinstance(error, ClientError):
        return error
    unexpected = ReplayError(f"an error that was not expected, {type(error).__name__}: {error}")
    unexpected.__cause__ = error
    return unexpected


class Call(NamedTuple):
    """A request; without a `node_id` any broker gets it."""

    api_key: int
    request: Request
    node_id: int | None = None


class Pause(NamedTuple):
    """A time to wait."""

    ms: int


class Execute(NamedTuple):
    """An operation of the admin client."""

    operation: Operation[Any]


class ToCoordinator(NamedTuple):
    """A request to the coordinator that `lookup` finds."""

    lookup: CoordinatorLookup
    api_key: int
    request: Request


Step = Call | Pause | Execute | ToCoordinator
Steps = Generator[Step, Any, _Result]
# Gets the result of steps, or their error, once, and the time.
Done = Callable[[_Result | ClientError, int], None]


class StepRunner:
    """Runs generators of steps."""

    def __init__(self, network: NetworkClient) -> None:
        self.network = network
        self._admin = AdminCore(network)

    def start(self, steps: Steps[_Result], done: Done[_Result]) -> None:
        """Run a generator; `done` gets its result, or the ClientError that it raised."""
        self._advance(steps, done, None, self.network.timer.clock_ms)

    def _advance(
        self,
        steps: Steps[_Result],
        done: Done[_Result],
        result: object,
        now_ms: int,
    ) -> None:
        try:
            wanted = steps.send(result)
        except StopIteration as end:
            done(end.value, now_ms)
            return
        except Exception as error:
            done(as_client_error(error), now_ms)
            return
        go_on = partial(self._advance, steps, done)
        if isinstance(wanted, Pause):
            self.network.timer.schedule(now_ms + max(wanted.ms, 1), lambda now_ms: go_on(None, now_ms))
        elif isinstance(wanted, Execute):
            self._admin.start(wanted.operation, go_on, now_ms)
        elif isinstance(wanted, ToCoordinator):
            wanted.lookup.send(wanted.api_key, wanted.request, go_on, now_ms)
        elif wanted.node_id is None:
            self.network.send_to_any(wanted.api_key, wanted.request, go_on)
        else:
            self.network.send(wanted.node_id, wanted.api_key, wanted.request, go_on)


def execute(operation: Operation[_Result]) -> Steps[_Result]:
    """Execute an operation of the admin client. Raises its ClientError."""
    result: _Result | ClientError = yield Execute(operation)
    return value_of(result)


def next_batch(stream: BatchStream) -> Steps[OutgoingBatch | None]:
    """Take the next batch of a stream, waiting for it; return None at the end of the stream."""
    while True:
        batch = stream.peek()
        if batch is not None:
            stream.take()
            return batch
        if stream.is_ended:
            return None
        yield Pause(STREAM_PAUSE_MS)


def ask(
    network: NetworkClient,
    api_key: int,
    request: Request,
    limit_ms: int | None = None,
) -> Steps[Message]:
    """Send a request to any broker until it is answered.

    Without `limit_ms` the time is default.api.timeout.ms. Raises KafkaTimeoutError, UnsupportedVersionError,
    RequestEncodingError.
    """
    config = network.config
    deadline_ms = network.timer.clock_ms + (config.default_api_timeout_ms if limit_ms is None else limit_ms)
    while True:
        answer: Answer = yield Call(api_key, request)
        if not isinstance(answer, PeerFailure):
            return answer
        if answer.is_lasting:
            raise failure_error(answer, api_key)
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"{API_KEYS[api_key].name} was not answered in time: {network.failure_reason()}")
        yield Pause(config.retry_backoff_ms)


def connect(network: NetworkClient, what: str) -> Steps[None]:
    """Ask for metadata for the first time; `what` names the cluster. Raises ReplayError if it cannot be reached in time."""
    limit_ms = min(FIRST_CONTACT_MS, network.config.default_api_timeout_ms)
    try:
        yield from refresh(network, limit_ms)
    except KafkaTimeoutError as error:
        servers = ",".join(network.config.bootstrap_servers)
        reason = error if isinstance(error, NoBrokersError) else network.failure_reason()
        raise ReplayError(f"the {what} {servers} cannot be reached: {reason}") from None


class NoBrokersError(KafkaTimeoutError):
    """Metadata that had no broker in any answer, such as those of a broker that is starting."""


def refresh(network: NetworkClient, limit_ms: int | None = None) -> Steps[None]:
    """Ask for the metadata of the topics that are wanted. Raises KafkaTimeoutError."""
    limit_ms = network.config.default_api_timeout_ms if limit_ms is None else limit_ms
    deadline_ms = network.timer.clock_ms + limit_ms
    while True:
        answer = yield from ask(network, METADATA, network.metadata.request, limit_ms=limit_ms)
        if answer.brokers:
            network.metadata.update(answer, network.timer.clock_ms)
            return
        if network.timer.clock_ms >= deadline_ms:
            code = f", but {error_codes.NAMES.get(answer.error_code, answer.error_code)}" if answer.error_code else ""
            raise NoBrokersError(f"the answers to Metadata had no brokers for {limit_ms} ms{code}")
        yield Pause(network.config.retry_backoff_ms)


def list_offsets(
    partitions: Iterable[TopicPartition],
    spec: OffsetSpec = OffsetSpec.LATEST,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Steps[dict[TopicPartition, int]]:
    """Return the first offsets or the ends of partitions. Raises KafkaError, KafkaTimeoutError."""
    wanted = dict.fromkeys(partitions, spec)
    found = {}
    for where, outcome in (yield from execute(admin_partitions.list_offsets(wanted, isolation_level=isolation))).items():
        if isinstance(outcome, KafkaError):
            raise KafkaError(outcome.code, f"{where[0]}-{where[1]}")
        found[where] = value_of(outcome).offset
    return found


def topic_id(network: NetworkClient, name: str) -> Uuid:
    """Return the id of a topic, zero if it is not known."""
    return Uuid(network.metadata.topic_ids.get(name, ZERO_UUID))
