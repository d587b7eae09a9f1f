"""The core of an admin client: executes operations (Kafka: KafkaAdminClient, AdminApiDriver).

    state of a key  what happens
    --------------  ----------------------------------------------------------------------------------------------------
    waiting         its node is looked up if it is not known: keys of one route together, so that one FindCoordinator or
                    Metadata serves all; then the keys of a node are sent in one request
    sent            the answer has its outcome, or an error after which it waits again after the backoff
    done            the outcome stays

    what goes wrong                          then
    ---------------------------------------  ---------------------------------------------------------------------------
    an error code of `Call.retried`          again on the same node
    an error code of MOVED (operation)       the node is looked up again
    no answer, a connection that ended       the node is looked up again
    an API or version that the broker does   the fallback of the call is asked. Without one, a request about several keys is
    not have                                 sent again for each key alone, since old versions take one key; a request about
                                             one key fails
    TLS or SASL does not let the client use  each key without an outcome has AuthenticationError, as in Kafka's client
    a broker
    an API that controllers are not asked,   each key has UNSUPPORTED_ENDPOINT_TYPE, as in Kafka's client
    with bootstrap.controllers
    default.api.timeout.ms is over           each key without an outcome has KafkaTimeoutError with the last reason

The delays between tries are retry.backoff.ms to retry.backoff.max.ms. An operation that changes something may be sent again
after a connection ended, as by Kafka's client: creating a topic may then answer TOPIC_ALREADY_EXISTS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from kcli.client.admin.error_sentences import kafka_error
from kcli.client.admin.operation import (
    ANY_BROKER,
    CONTROLLER_APIS,
    CONTROLLER_MOVED,
    MOVED,
    Call,
    Key,
    Operation,
    Outcomes,
    RequestContext,
    Route,
    StepDone,
    Value,
)
from kcli.client.coordinator_lookup import (
    FIRST_VERSION_WITH_LISTS,
    GROUP_KEY,
    TRANSACTION_KEY,
    coordinator_request,
    coordinators_by_key,
)
from kcli.client.errors import ClientError, IllegalStateError, KafkaError, KafkaTimeoutError
from kcli.client.metadata import NO_CONTROLLER
from kcli.client.network_client import NetworkClient, failure_error
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR, METADATA
from kcli.protocol.message import Message

_Result = TypeVar("_Result")

_KEY_TYPES = {Route.GROUP: GROUP_KEY, Route.TRANSACTION: TRANSACTION_KEY}
# Errors of a lookup after which it is tried again.
_LOOKUP_RETRIED = MOVED[Route.GROUP] | MOVED[Route.LEADER] | {error_codes.COORDINATOR_LOAD_IN_PROGRESS}


class AdminCore:
    """Executes operations over one NetworkClient; several may be under way."""

    def __init__(self, network: NetworkClient) -> None:
        self.network = network
        self.backoff = network.config.retry_backoff()
        self._waiting: list[Callable[[], None]] = []
        self._in_progress: dict[Callable[[ClientError, int], None], None] = {}  # what ends each call with an error
        self.is_closed = False
        network.metadata.add_listener(lambda _cluster, _now_ms: self._updated())
        network.add_refusal_listener(lambda error, _node_id, now_ms: self._end_all(error, now_ms))

    def poll(self, now_ms: int) -> None:
        """Do nothing: all work follows from calls and events."""

    def start(self, operation: Operation[_Result], done: Callable[[_Result | ClientError, int], None], now_ms: int) -> None:
        """Execute an operation; `done` gets its result or the error that it raises."""
        if self.is_closed:
            done(IllegalStateError("the admin client is closed"), now_ms)
            return
        deadline_ms = now_ms + self.network.config.default_api_timeout_ms
        self._resume(operation, deadline_ms, done, None, now_ms)

    def close(self, now_ms: int) -> None:
        """End all operations with IllegalStateError."""
        self.is_closed = True
        self._end_all(IllegalStateError("the admin client was closed before the answer"), now_ms)

    def _end_all(self, error: ClientError, now_ms: int) -> None:
        for end in list(self._in_progress):
            end(error, now_ms)

    def _resume(
        self,
        operation: Operation[_Result],
        deadline_ms: int,
        done: Callable[[_Result | ClientError, int], None],
        outcome: object,
        now_ms: int,
    ) -> None:
        try:
            step = operation.send(outcome)
        except StopIteration as stop:
            done(stop.value, now_ms)
        except ClientError as error:
            done(error, now_ms)
        else:
            step(self, deadline_ms, partial(self._resume, operation, deadline_ms, done))

    def begin(self, call: Call[Key, Value], keys: list[Key], deadline_ms: int, done: StepDone) -> None:
        """Make a call about keys; `done` gets the outcomes by key."""
        started = _CallInProgress(self, call, keys, deadline_ms, done)
        if self.is_closed:
            started.end(IllegalStateError("the admin client is closed"), self.network.timer.clock_ms)
            return
        self._in_progress[started.end] = None
        started.begin()

    def begin_together(self, operations: Sequence[Operation[_Result]], deadline_ms: int, done: StepDone) -> None:
        """Execute operations at the same time; `done` gets their results, or the errors that they raised, in that order."""
        results: dict[int, _Result | ClientError] = {}

        def ended(number: int, result: _Result | ClientError, now_ms: int) -> None:
            results[number] = result
            if len(results) == len(operations):
                done([results[one] for one in range(len(operations))], now_ms)

        if not operations:
            done([], self.network.timer.clock_ms)
        for number, operation in enumerate(operations):
            self._resume(operation, deadline_ms, partial(ended, number), None, self.network.timer.clock_ms)

    def ended(self, end: Callable[[ClientError, int], None]) -> None:
        """Forget a call that has its outcomes."""
        self._in_progress.pop(end, None)

    def when_updated(self, callback: Callable[[], None]) -> None:
        """Ask for metadata, and have a function called once when they have come."""
        self._waiting.append(callback)
        self.network.request_update()

    def _updated(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


class _Found(NamedTuple):
    """The outcome of a lookup: the node, or the error if there is none."""

    node_id: int | None
    error: KafkaError | None


class _CallInProgress(Generic[Key, Value]):
    """One call with the states of its keys, which are at the head of this module."""

    def __init__(self, core: AdminCore, call: Call[Key, Value], keys: list[Key], deadline_ms: int, done: StepDone) -> None:
        self._core = core
        self._network = core.network
        self._call = call
        self._keys = keys
        self._place = call.place
        self._moved = MOVED[call.route] - call.settled
        if self._network.uses_controllers:
            self._place = call.controller_place or call.place
            self._moved |= CONTROLLER_MOVED
        self._deadline_ms = deadline_ms
        self._done = done
        self._outcomes: Outcomes[Key, Value] = {}
        self._waiting: dict[Key, None] = dict.fromkeys(keys)
        self._nodes: dict[object, int] = {}  # by the place of a key
        self._looked_up: set[object] = set()  # places whose lookup is under way
        self._fallback: Call[Key, Value] | None = None
        if call.fallback is not None:
            other = call.fallback
            self._fallback = call._replace(api_key=other.api_key, request=other.request, read=other.read, fallback=None)
        self._fallen_back: set[Key] = set()  # keys that the fallback is asked about
        self._is_single = call.is_single
        self._is_lookup_single = False
        self._attempts = 0
        self._last_error: ClientError | None = None
        self._asked: int | None = None  # the node of the newest request
        self._deadline: TimerTask | None = None
        self._is_over = False
        self._is_updated = False  # metadata have come since the call began

    def begin(self) -> None:
        """Send what can be sent."""
        if self._network.uses_controllers and self._call.api_key not in CONTROLLER_APIS:
            name = API_KEYS[self._call.api_key].name
            sentence = f"controllers do not answer {name}: use bootstrap.servers (--bootstrap-server)"
            self.end(kafka_error(error_codes.UNSUPPORTED_ENDPOINT_TYPE, sentence), self._network.timer.clock_ms)
            return
        self._deadline = self._network.timer.schedule(self._deadline_ms, self._expired)
        self._advance()

    def _advance(self) -> None:
        if self._is_over:
            return
        by_node: dict[tuple[int, bool], list[Key]] = {}
        unknown: dict[object, None] = {}
        for key in list(self._waiting):
            place = self._place(key)
            node_id = self._node_of(place)
            if node_id is not None:
                by_node.setdefault((node_id, key in self._fallen_back), []).append(key)
            elif self._is_missing(place):
                kind = "controller" if self._network.uses_controllers else "broker"
                message = f"the cluster has no {kind} {place} that is running"
                self._settle(key, kafka_error(error_codes.BROKER_ID_NOT_REGISTERED, message))
            else:
                unknown[place] = None
        self._look_up([place for place in unknown if place not in self._looked_up])
        for (node_id, _), keys in by_node.items():
            for part in [[key] for key in keys] if self._is_single else [keys]:
                self._send(node_id, part)
        self._finish_if_all()

    # ---------------------------------------------------------------------------------------------------------- lookups

    def _node_of(self, place: object) -> int | None:
        """Return the node for a place, ANY_BROKER for any, None if it is not known yet."""
        route, metadata = self._call.route, self._network.metadata
        if self._is_of_controller(place):
            node_id = metadata.controller_id
            return node_id if node_id in metadata.nodes and place not in self._looked_up else None
        if route is Route.ANY:
            return ANY_BROKER
        if route is Route.BROKER:
            assert isinstance(place, int)
            return place if place == ANY_BROKER or place in metadata.nodes else None
        return self._nodes.get(place)

    def _is_of_controller(self, place: object) -> bool:
        """Return whether the controller answers for a place."""
        route = self._call.route
        is_any = route is Route.ANY or place == ANY_BROKER
        return route is Route.CONTROLLER or (is_any and self._network.uses_controllers)

    def _is_missing(self, place: object) -> bool:
        return self._call.route is Route.BROKER and self._is_updated and not self._is_of_controller(place)

    def _look_up(self, places: list[object]) -> None:
        if not places:
            return
        self._looked_up.update(places)
        route = self._call.route
        if route in (Route.CONTROLLER, Route.BROKER) or self._network.uses_controllers:
            self._core.when_updated(partial(self._metadata_came, places))
        elif route is Route.LEADER:
            self._ask_leaders(places)
        else:
            for part in [[place] for place in places] if self._is_lookup_single else [places]:
                self._ask_coordinators(part)

    def _metadata_came(self, places: list[object]) -> None:
        self._is_updated = True
        self._looked_up.difference_update(places)
        is_of_controller = any(map(self._is_of_controller, places))
        if is_of_controller and self._network.metadata.controller_id == NO_CONTROLLER:
            self._last_error = kafka_error(error_codes.NOT_CONTROLLER, "the cluster has no controller at the moment")
        self._advance()

    def _ask_coordinators(self, places: list[object]) -> None:
        key_type = _KEY_TYPES[self._call.route]
        names = [str(place) for place in places]

        def request(version: int) -> Message:
            return coordinator_request(version, key_type, names if version >= FIRST_VERSION_WITH_LISTS else names[:1])

        self._network.send_to_any(FIND_COORDINATOR, request, partial(self._coordinators_came, places), self._patience_ms())

    def _coordinators_came(self, places: list[object], answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            self._lookup_failed(places, FIND_COORDINATOR, answer, now_ms)
            return
        if answer.schema_version < FIRST_VERSION_WITH_LISTS and len(places) > 1:
            self._is_lookup_single = True
            self._looked_up.difference_update(places[1:])
        by_name = {str(place): place for place in places}
        known = {}
        for name, one in coordinators_by_key(answer, list(by_name)).items():
            if name not in by_name:
                continue
            if one.error_code:
                known[by_name[name]] = _Found(None, kafka_error(one.error_code, one.error_message))
            else:
                self._network.metadata.add_node(one.node_id, one.host, one.port)
                known[by_name[name]] = _Found(one.node_id, None)
        self._lookup_came(places, known, now_ms)

    def _ask_leaders(self, places: list[object]) -> None:
        topics = sorted({place[0] for place in places if isinstance(place, tuple)})
        kind = API_KEYS[METADATA].request
        of_topic = kind.classes["MetadataRequestTopic"]

        def request(version: int) -> Message:
            return kind.new(topics=[of_topic(name=name) for name in topics], allow_auto_topic_creation=version < 4)

        self._network.send_to_any(METADATA, request, partial(self._leaders_came, places), self._patience_ms())

    def _leaders_came(self, places: list[object], answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            self._lookup_failed(places, METADATA, answer, now_ms)
            return
        for node in answer.brokers:
            self._network.metadata.add_node(node.node_id, node.host, node.port)
        known: dict[object, _Found] = {}
        for topic in answer.topics:
            if topic.error_code:
                error = kafka_error(topic.error_code)
                known |= {place: _Found(None, error) for place in places if isinstance(place, tuple) and place[0] == topic.name}
                continue
            for one in topic.partitions:
                has_leader = one.leader_id >= 0
                code = one.error_code or error_codes.LEADER_NOT_AVAILABLE
                known[topic.name, one.partition_index] = _Found(
                    one.leader_id if has_leader else None, None if has_leader else kafka_error(code)
                )
        self._lookup_came(places, known, now_ms)

    def _lookup_came(self, places: list[object], known: dict[object, _Found], now_ms: int) -> None:
        """Take what a lookup found; a place that it does not name is not known to the cluster (yet)."""
        again = []
        for place in places:
            if place not in self._looked_up:
                continue
            node_id, error = known.get(place) or _Found(None, kafka_error(error_codes.UNKNOWN_TOPIC_OR_PARTITION))
            if node_id is not None:
                self._nodes[place] = node_id
                self._looked_up.discard(place)
            elif error is not None and error.code not in _LOOKUP_RETRIED - self._call.settled:
                self._looked_up.discard(place)
                self._settle_place(place, error)
            else:
                self._last_error = error
                again.append(place)
        if again:
            self._later(partial(self._looked_up.difference_update, again), now_ms)
        self._advance()

    def _lookup_failed(self, places: list[object], api_key: int, failure: PeerFailure, now_ms: int) -> None:
        if failure.is_lasting:
            for place in places:
                self._settle_place(place, failure_error(failure, api_key))
            self._finish_if_all()
            return
        self._last_error = failure_error(failure, api_key)
        self._later(partial(self._looked_up.difference_update, places), now_ms)

    def _settle_place(self, place: object, error: ClientError) -> None:
        for key in list(self._waiting):
            if self._place(key) == place:
                self._settle(key, error)

    # --------------------------------------------------------------------------------------------------------- requests

    def _patience_ms(self) -> int:
        """Return how long an answer is waited for, in ms."""
        left_ms = self._deadline_ms - self._network.timer.clock_ms
        return max(min(left_ms, self._network.config.request_timeout_ms), 1)

    def _send(self, node_id: int, keys: list[Key]) -> None:
        self._asked = node_id
        for key in keys:
            self._waiting.pop(key, None)
        patience_ms = self._patience_ms()
        call = self._fallback if self._fallback is not None and keys[0] in self._fallen_back else self._call

        def request(version: int) -> Message:
            return call.request(keys, RequestContext(version, patience_ms, self._network.uses_controllers))

        answered = partial(self._answered, call, keys)
        if node_id == ANY_BROKER:
            self._network.send_to_any(call.api_key, request, answered, patience_ms, call.max_version)
        else:
            self._network.send(node_id, call.api_key, request, answered, patience_ms, max_version=call.max_version)

    def _answered(self, call: Call[Key, Value], keys: list[Key], answer: Answer, now_ms: int) -> None:
        if self._is_over:
            return
        if isinstance(answer, PeerFailure):
            self._failed(call, keys, answer, now_ms)
            return
        again: list[Key] = []
        unanswered = dict.fromkeys(keys)
        for key, outcome in call.read(keys, answer):
            if key not in unanswered:
                continue
            del unanswered[key]
            if isinstance(outcome, KafkaError) and outcome.code in self._call.retried | self._moved:
                self._last_error = outcome
                again.append(key)
                if outcome.code in self._moved:
                    self._forget(key)
            elif not self._falls_back(call, [key], outcome):
                self._settle(key, outcome)
        for key in unanswered:
            self._settle(key, kafka_error(error_codes.UNKNOWN_SERVER_ERROR, "the answer of the broker does not contain it"))
        self._try_again(again, now_ms)
        self._advance()

    def _falls_back(self, call: Call[Key, Value], keys: list[Key], outcome: Value | ClientError) -> bool:
        """Return whether the fallback is asked about keys that a call has this outcome for."""
        if call.fallback is None or not call.fallback.is_needed(outcome):
            return False
        self._fallen_back.update(keys)
        self._waiting.update(dict.fromkeys(keys))
        return True

    def _failed(self, call: Call[Key, Value], keys: list[Key], failure: PeerFailure, now_ms: int) -> None:
        if failure.is_lasting:
            error = failure_error(failure, call.api_key)
            if self._falls_back(call, keys, error):
                self._advance()
                return
            if len(keys) > 1:
                self._is_single = True
                self._waiting.update(dict.fromkeys(keys))
                self._advance()
                return
            self._settle(keys[0], error)
            self._finish_if_all()
            return
        self._last_error = failure_error(failure, call.api_key)
        for key in keys:
            self._forget(key)
        self._try_again(keys, now_ms)

    def _forget(self, key: Key) -> None:
        """Have the node of a key looked up again."""
        place = self._place(key)
        self._nodes.pop(place, None)
        if self._is_of_controller(place):
            self._network.metadata.controller_id = NO_CONTROLLER

    # ---------------------------------------------------------------------------------------------------------- endings

    def _try_again(self, keys: list[Key], now_ms: int) -> None:
        if keys:
            self._later(partial(self._waiting.update, dict.fromkeys(keys)), now_ms)

    def _later(self, change: Callable[[], object], now_ms: int) -> None:
        """Make a change after the backoff, and go on."""

        def due(now_ms: int) -> None:
            change()
            self._advance()

        delay_ms = self._core.backoff.delay_ms(self._attempts, self._network.rng)
        self._attempts += 1
        self._network.timer.schedule(now_ms + delay_ms, due)

    def _settle(self, key: Key, outcome: Value | ClientError) -> None:
        self._waiting.pop(key, None)
        self._outcomes.setdefault(key, outcome)

    def _finish_if_all(self) -> None:
        if not self._is_over and len(self._outcomes) == len(self._keys):
            self._finish(self._network.timer.clock_ms)

    def _expired(self, now_ms: int) -> None:
        api = API_KEYS[self._call.api_key].name
        last = self._last_error
        timeout_ms = self._network.config.default_api_timeout_ms
        if isinstance(last, KafkaError):
            sentence = f"{api} did not succeed within {timeout_ms} ms: {last}"
        else:  # the reasons of the connections say more than the last failed request
            kind = "controller" if self._network.uses_controllers else "broker"
            sentence = f"no {kind} answered {api} within {timeout_ms} ms: {self._why_unanswered()}"
        self.end(KafkaTimeoutError(sentence), now_ms)

    def _why_unanswered(self) -> str:
        """Describe what the call waits for: a broker answers a request that it forwards only when the controller has."""
        asked = self._asked
        is_forwarded = self._call.route is Route.CONTROLLER and not self._network.uses_controllers
        if is_forwarded and asked is not None and asked in self._network.metadata.nodes:
            return self._network.controller_reason(asked)
        return self._network.failure_reason()

    def end(self, error: ClientError, now_ms: int) -> None:
        """End the call; the keys without an outcome get the error."""
        for key in self._keys:
            self._settle(key, error)
        self._finish(now_ms)

    def _finish(self, now_ms: int) -> None:
        self._is_over = True
        self._core.ended(self.end)
        if self._deadline is not None:
            self._deadline.cancel()
        self._done({key: self._outcomes[key] for key in self._keys}, now_ms)


def refused(keys: Iterable[Key], code: int, message: str | None = None) -> Iterable[tuple[Key, KafkaError]]:
    """Yield the same error for all keys, for an answer whose error is not that of a key."""
    return ((key, kafka_error(code, message)) for key in keys)


def answer_or_error(keys: Sequence[str], answer: Message) -> Iterable[tuple[str, Message | ClientError]]:
    """Yield the answer as the value of its only key, or its error."""
    if answer.error_code:
        return refused(keys, answer.error_code, getattr(answer, "error_message", None))
    return [(keys[0], answer)]
