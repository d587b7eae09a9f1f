"""The coordinator of one group, transactional id or share partition: who it is, and requests to it.

(Kafka: AbstractCoordinator.lookupCoordinator, CoordinatorRequestManager, TransactionManager.lookupCoordinator.)

    event                                           the coordinator is         then
    ----------------------------------------------  -------------------------  -------------------------------------------
    `find` or `send`, it is not known               not known                  FindCoordinator is sent to any broker
    FindCoordinator names a broker                  known                      callers that wait get it
    an error that may pass, or no answer            not known                  again after retry.backoff.ms, which grows up
                                                                               to retry.backoff.max.ms
    any other error, such as a refused              not known                  callers that wait get the error
    authorization
    a request to it has no answer, or its answer    not known                  the next `find` or `send` looks it up again
    has NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE
    (`check`)

    FindCoordinator  version 0  groups only
                     1-3        one key with a type
                     4 and on   several keys of one type
                     6          share partitions: group:topic id:partition

`coordinator_request` and `coordinators_by_key` handle all of these versions; the admin client uses them, too.

Requests to a coordinator use a connection of their own, so that no fetch delays a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import COORDINATOR, NetworkClient, failure_error
from kcli.network.peer_request import Answer, PeerFailure, Request
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR
from kcli.protocol.message import Message

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
FIRST_VERSION_WITH_LISTS = 4

MOVED = frozenset((error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE))

# Get the coordinator's node id, or the error, once; or the answer to a request, or the error.
FoundCallback = Callable[[int | ClientError, int], None]
AnswerDone = Callable[[Message | ClientError, int], None]


def coordinator_request(version: int, key_type: int, keys: Sequence[str]) -> Message:
    """Return the request for the coordinators of keys; before FIRST_VERSION_WITH_LISTS only one key can be encoded."""
    kind = API_KEYS[FIND_COORDINATOR].request
    if version >= FIRST_VERSION_WITH_LISTS or len(keys) > 1:
        return kind.new(key_type=key_type, coordinator_keys=list(keys))
    return kind.new(key_type=key_type, key=keys[0])


def coordinators_by_key(answer: Message, keys: Sequence[str]) -> dict[str, Message]:
    """Return what an answer says of each key: node_id, host, port, error_code, error_message; `keys` were asked for."""
    if answer.schema_version < FIRST_VERSION_WITH_LISTS:
        return {keys[0]: answer}
    return {one.key: one for one in answer.coordinators}


class CoordinatorLookup:
    """The coordinator of one key; `node_id` is None while it is not known."""

    def __init__(self, network: NetworkClient, key_type: int, key: str) -> None:
        self.node_id: int | None = None
        self.last_error: ClientError | None = None  # why the last lookup failed, None after one that did not
        self._network = network
        self._key_type = key_type
        self._key = key
        self._backoff = network.config.retry_backoff()
        self._failures = 0
        self._is_asking = False
        self._retry: TimerTask | None = None
        self._waiting: list[FoundCallback] = []

    def find(self, found: FoundCallback, now_ms: int) -> None:
        """Call `found(node_id or error, now_ms)` as soon as the coordinator is known; at once if it is."""
        if self.node_id is not None:
            found(self.node_id, now_ms)
            return
        self._waiting.append(found)
        self._ask()

    def send(
        self,
        api_key: int,
        request: Request,
        done: AnswerDone,
        now_ms: int,
        timeout_ms: int | None = None,
        max_version: int | None = None,
        connection: str = COORDINATOR,
    ) -> None:
        """Send a request to the coordinator, after it is found; `done` gets the answer or an error, once.

        Nothing is sent again. A broker answers one request of a connection after the other: what must not wait for the answer
        to a JoinGroup uses another `connection`. The time for the answer, request.timeout.ms by default, also counts for the
        lookup.
        """
        timeout_ms = self._network.config.request_timeout_ms if timeout_ms is None else timeout_ms
        if self.node_id is not None:
            self._send_to(self.node_id, api_key, request, done, timeout_ms, max_version, connection)
            return
        deadline_ms = now_ms + timeout_ms

        def found(node_id: int | ClientError, now_ms: int) -> None:
            expiry.cancel()
            if isinstance(node_id, ClientError):
                done(node_id, now_ms)
            else:
                self._send_to(node_id, api_key, request, done, max(deadline_ms - now_ms, 1), max_version, connection)

        def expired(now_ms: int) -> None:
            self._waiting.remove(found)
            reason = self.last_error or self._network.failure_reason()
            done(KafkaTimeoutError(f"the coordinator of {self._key} was not found in {timeout_ms} ms: {reason}"), now_ms)

        expiry = self._network.timer.schedule(deadline_ms, expired)
        self.find(found, now_ms)

    def _send_to(
        self,
        node_id: int,
        api_key: int,
        request: Request,
        done: AnswerDone,
        timeout_ms: int,
        max_version: int | None,
        connection: str,
    ) -> None:
        def answered(answer: Answer, now_ms: int) -> None:
            if not isinstance(answer, PeerFailure):
                done(answer, now_ms)
                return
            if not answer.is_lasting and self.node_id == node_id:
                self.node_id = None
            done(failure_error(answer, api_key), now_ms)

        self._network.send(node_id, api_key, request, answered, timeout_ms, connection, max_version=max_version)

    def check(self, error_code: int) -> None:
        """Take the error code of an answer: some say that the coordinator is another broker."""
        if error_code in MOVED:
            self.node_id = None

    def supports(self, api_key: int, version: int) -> bool | None:
        """Return whether the coordinator has a version of an API, None if its versions are not known."""
        if self.node_id is None:
            return None
        highest = self._network.version_for(self.node_id, api_key, COORDINATOR)
        return None if highest is None else highest >= version

    # ---------------------------------------------------------------------------------------------------------- lookups

    def _ask(self) -> None:
        if self._is_asking or self._retry is not None:
            return
        self._is_asking = True
        request = partial(coordinator_request, key_type=self._key_type, keys=[self._key])
        self._network.send_to_any(FIND_COORDINATOR, request, self._answered)

    def _answered(self, answer: Answer, now_ms: int) -> None:
        self._is_asking = False
        if isinstance(answer, PeerFailure):
            self._failed(failure_error(answer, FIND_COORDINATOR), now_ms)
            return
        found = coordinators_by_key(answer, [self._key]).get(self._key)
        if found is None:
            missing = KafkaError(error_codes.COORDINATOR_NOT_AVAILABLE, f"the broker's answer does not contain {self._key}")
            self._failed(missing, now_ms)
            return
        if found.error_code:
            self._failed(KafkaError(found.error_code, found.error_message or None), now_ms)
            return
        self._failures, self.last_error = 0, None
        self._network.metadata.add_node(found.node_id, found.host, found.port)
        self.node_id = found.node_id
        self._settle(found.node_id, now_ms)

    def _failed(self, error: ClientError, now_ms: int) -> None:
        self.last_error = error
        if not error.is_retriable:
            self._settle(error, now_ms)
            return
        delay_ms = self._backoff.delay_ms(self._failures, self._network.rng)
        self._failures += 1
        self._retry = self._network.timer.schedule(now_ms + delay_ms, self._again)

    def _again(self, now_ms: int) -> None:
        self._retry = None
        if self._waiting:
            self._ask()

    def _settle(self, result: int | ClientError, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for found in waiting:
            found(result, now_ms)
