"""The persister of share groups: reads and writes the state of share partitions (KIP-932; Kafka: DefaultStatePersister).

The state of a share partition, (group, topic id, partition), is kept by a share coordinator: the leader of its partition of
__share_group_state. Any broker may be the client: leaders of the topic's partitions read and write the progress of deliveries,
and the group coordinator initializes, deletes and summarizes.

    step      what happens
    --------  ----------------------------------------------------------------------------------------------------------
    find      the metadata names the coordinator; if the topic does not exist, its creation is requested
    send      calls for one group, API and coordinator share a request; a share partition is in a request once
    retry     after an error that may pass, at most 5 attempts; the delays are Kafka's (2 s, doubled, up to 30 s, jitter 20 %)
    done      with the result or an error code
    next      the next call for the share partition; the writes that have waited are one

Calls for a share partition are executed in their order, with all retries, except for summaries. Otherwise a write could undo
the start offset of a later one, and records would be delivered again that were accepted.

    errors that may pass: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR,
    UNKNOWN_TOPIC_OR_PARTITION, NETWORK_EXCEPTION, REQUEST_TIMED_OUT
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, cast

from kcli.network.events import NodeRole, PeerNode
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.config.server_config import ConfigReader
from kcli.state.share_group_state import SharePartitionKey, StateBatch

ShareKey = SharePartitionKey

_BACKOFF = ExponentialBackoff(1_000, 30_000)
_MAX_ATTEMPTS = 5
_FIND_FIRST_MS = 100  # the delay of the first look-up that is repeated: the topic is being created
_PASSING = frozenset(
    (
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.NOT_COORDINATOR,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.NETWORK_EXCEPTION,
        error_codes.REQUEST_TIMED_OUT,
    )
)
_FAILURES = {
    PeerFailure.TIMED_OUT: error_codes.REQUEST_TIMED_OUT,
    PeerFailure.DISCONNECTED: error_codes.NETWORK_EXCEPTION,
    PeerFailure.UNKNOWN_ADDRESS: error_codes.COORDINATOR_NOT_AVAILABLE,
    PeerFailure.UNSUPPORTED_VERSION: error_codes.UNSUPPORTED_VERSION,
}
# The struct of a topic in each request.
_TOPIC_STRUCTS = {
    apis.INITIALIZE_SHARE_GROUP_STATE: "InitializeStateData",
    apis.READ_SHARE_GROUP_STATE: "ReadStateData",
    apis.WRITE_SHARE_GROUP_STATE: "WriteStateData",
    apis.DELETE_SHARE_GROUP_STATE: "DeleteStateData",
    apis.READ_SHARE_GROUP_STATE_SUMMARY: "ReadStateSummaryData",
}


class ShareState(NamedTuple):
    """The state of a share partition. `start_offset` is -1 if it has none yet; batches are in the order of their offsets."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class ShareUpdateBatches(NamedTuple):
    """A change of the state of a share partition; `start_offset` is -1 if it stays, `delivery_complete_count` if not known."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareSummary(NamedTuple):
    """The state of a share partition without its batches."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class SharePersister(Protocol):
    """What reads and writes the state of share partitions. `done` is called once, with an error code for a failure."""

    def read(self, key: ShareKey, leader_epoch: int, done: Callable[[ShareState | int], None]) -> None:
        """Read a state for the leader of the partition in `leader_epoch`; leaders of earlier epochs are fenced from then on."""
        ...

    def write(self, key: ShareKey, update: ShareUpdateBatches, done: Callable[[int], None]) -> None:
        """Write a change of a state; the code is NONE when it is committed."""
        ...

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, done: Callable[[int], None]) -> None:
        """Begin a state, or begin it again in a higher state epoch."""
        ...

    def delete(self, key: ShareKey, done: Callable[[int], None]) -> None:
        """Delete a state; NONE if there is none."""
        ...

    def read_summary(self, key: ShareKey, done: Callable[[ShareSummary | int], None]) -> None:
        """Read the start offset and the epochs of a state; a start offset of -1 if there is none."""
        ...


class _Call:
    """One call; `part` is its partition in a request, `done` gets the partition of the response or an error code."""

    __slots__ = ("api_key", "attempts", "done", "key", "look_ups", "part")

    def __init__(self, api_key: int, key: ShareKey, part: dict[str, object], done: Callable[[Message | int], None]) -> None:
        self.api_key = api_key
        self.key = key
        self.part = part
        self.done = done
        self.attempts = 0
        self.look_ups = 0


class DefaultStatePersister:
    """The persister of one broker.

    `coordinator_of` returns the broker that coordinates a share partition, None if there is none; it may begin to make the
    topic. `listener` is the listener that brokers use for each other.
    """

    def __init__(
        self,
        config: ConfigReader,
        coordinator_of: Callable[[ShareKey], int | None],
        peers: Peers,
        listener: str,
        timer: Timer,
    ) -> None:
        self._config = config
        self._coordinator_of = coordinator_of
        self._peers = peers
        self._listener = listener
        self._timer = timer
        self._queues: dict[tuple[int, int, str], list[_Call]] = {}  # by broker, API and group
        self._waiting: dict[ShareKey, list[_Call]] = {}  # behind the call that is being executed
        self._is_closed = False

    def close(self) -> None:
        """Answer no call any more: the node stops."""
        self._is_closed = True

    # ----------------------------------------------------------------------------------------------------------- calls

    def read(self, key: ShareKey, leader_epoch: int, done: Callable[[ShareState | int], None]) -> None:
        """Read a state; see SharePersister."""

        def answered(part: Message | int) -> None:
            done(part if isinstance(part, int) else ShareState(part.state_epoch, part.start_offset, _batches(part)))

        self._begin(_Call(apis.READ_SHARE_GROUP_STATE, key, {"leader_epoch": leader_epoch}, answered))

    def write(self, key: ShareKey, update: ShareUpdateBatches, done: Callable[[int], None]) -> None:
        """Write a change of a state; see SharePersister."""
        make = API_KEYS[apis.WRITE_SHARE_GROUP_STATE].request.classes["StateBatch"]
        part = update._asdict() | {"state_batches": [make(**batch._asdict()) for batch in update.batches]}
        del part["batches"]
        self._begin(_Call(apis.WRITE_SHARE_GROUP_STATE, key, part, partial(_done, done)))

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, done: Callable[[int], None]) -> None:
        """Begin a state; see SharePersister."""
        part: dict[str, object] = {"state_epoch": state_epoch, "start_offset": start_offset}
        self._begin(_Call(apis.INITIALIZE_SHARE_GROUP_STATE, key, part, partial(_done, done)))

    def delete(self, key: ShareKey, done: Callable[[int], None]) -> None:
        """Delete a state; see SharePersister."""
        self._begin(_Call(apis.DELETE_SHARE_GROUP_STATE, key, {}, partial(_done, done)))

    def read_summary(self, key: ShareKey, done: Callable[[ShareSummary | int], None]) -> None:
        """Read a summary; see SharePersister."""

        def answered(part: Message | int) -> None:
            if isinstance(part, int):
                done(part)
            else:
                done(ShareSummary(part.state_epoch, part.leader_epoch, part.start_offset, part.delivery_complete_count))

        self._call(_Call(apis.READ_SHARE_GROUP_STATE_SUMMARY, key, {"leader_epoch": 0}, answered))

    # -------------------------------------------------------------------------------------------------------- requests

    def _begin(self, call: _Call) -> None:
        """Execute a call after those before it for its share partition."""
        waiting = self._waiting.get(call.key)
        if waiting is not None:
            waiting.append(call)
            return
        self._waiting[call.key] = []
        self._call(call)

    def _finish(self, call: _Call, result: Message | int) -> None:
        """End a call, and begin those that have waited for it."""
        if call.api_key != apis.READ_SHARE_GROUP_STATE_SUMMARY:
            waiting = self._waiting[call.key]
            if waiting:
                self._call(_take_joined(waiting))
            else:
                del self._waiting[call.key]
        call.done(result)

    def _call(self, call: _Call) -> None:
        node_id, now_ms = self._coordinator_of(call.key), self._timer.clock_ms
        if node_id is None:
            call.look_ups += 1
            self._try_again(call, call.look_ups, error_codes.COORDINATOR_NOT_AVAILABLE)
            return
        call.look_ups = 0
        where = (node_id, call.api_key, call.key.group_id)
        queue = self._queues.get(where)
        if queue is None:
            queue = self._queues[where] = []
            self._timer.schedule(now_ms, partial(self._send, where))
        queue.append(call)

    def _try_again(self, call: _Call, attempts: int, code: int) -> None:
        """Repeat a call after a delay, or end it if it was tried often enough."""
        if attempts >= _MAX_ATTEMPTS:
            self._finish(call, code)
            return
        delay_ms = _BACKOFF.delay_ms(attempts, self._peers.rng)
        if call.look_ups == 1:
            delay_ms = _FIND_FIRST_MS
        self._timer.schedule(self._timer.clock_ms + delay_ms, partial(self._again, call))

    def _again(self, call: _Call, now_ms: int) -> None:
        if not self._is_closed:
            self._call(call)

    def _send(self, where: tuple[int, int, str], now_ms: int) -> None:
        node_id, api_key, group_id = where
        sent: dict[ShareKey, _Call] = {}
        queued = self._queues.pop(where)
        if self._is_closed:
            return
        for call in queued:
            if call.key in sent:
                self._call(call)
            else:
                sent[call.key] = call
        request = API_KEYS[api_key].request
        topics: dict[bytes, Message] = {}
        for call in sent.values():
            topic = topics.get(call.key.topic_id)
            if topic is None:
                made = request.classes[_TOPIC_STRUCTS[api_key]](topic_id=call.key.topic_id, partitions=[])
                topic = topics[call.key.topic_id] = made
            topic.partitions.append(request.classes["PartitionData"](partition=call.key.partition, **call.part))
        message = request.new(group_id=group_id, topics=list(topics.values()))
        deadline_ms = now_ms + self._config.get_int("request.timeout.ms")
        node = PeerNode(node_id, NodeRole.BROKER)
        self._peers.send(node, self._listener, api_key, message, partial(self._answered, group_id, sent), deadline_ms)

    def _answered(self, group_id: str, sent: dict[ShareKey, _Call], answer: Answer, now_ms: int) -> None:
        if self._is_closed:
            return
        parts: dict[ShareKey, Message] = {}
        if not isinstance(answer, PeerFailure):
            for topic in answer.results:
                for part in topic.partitions:
                    parts[ShareKey(group_id, topic.topic_id, part.partition)] = part
        for key, call in sent.items():
            part = parts.get(key)
            if isinstance(answer, PeerFailure):
                code = _FAILURES.get(answer, error_codes.INVALID_REQUEST)
            else:
                code = error_codes.UNKNOWN_SERVER_ERROR if part is None else part.error_code
            if code in _PASSING:
                call.attempts += 1
                self._try_again(call, call.attempts, code)
            else:
                self._finish(call, code if part is None or code else part)


def _take_joined(waiting: list[_Call]) -> _Call:
    """Take the first call that waits, or one write for all of the first ones that are writes of the same epochs."""
    first = waiting.pop(0)
    if first.api_key != apis.WRITE_SHARE_GROUP_STATE:
        return first
    calls = [first]
    while waiting and waiting[0].api_key == first.api_key and _epochs(waiting[0]) == _epochs(first):
        calls.append(waiting.pop(0))
    batches = [batch for call in calls for batch in cast("list[Message]", call.part["state_batches"])]

    def done(result: Message | int) -> None:
        for call in calls:
            call.done(result)

    return _Call(first.api_key, first.key, calls[-1].part | {"state_batches": batches}, done)


def _epochs(call: _Call) -> tuple[object, object]:
    return call.part["state_epoch"], call.part["leader_epoch"]


def _done(done: Callable[[int], None], part: Message | int) -> None:
    done(part if isinstance(part, int) else error_codes.NONE)


def _batches(part: Message) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in part.state_batches
    )
