"""Requests of one client to the brokers, and the metadata that they need (Kafka: NetworkClient, ConsumerNetworkClient).

Each client (producer, consumer, admin) has one NetworkClient. Like a node of the server it takes events with the time and gives
effects, which a shell executes (kcli.client.shell, or the simulator); it never waits and never reads a clock.

    call                   destination
    ---------------------  ------------------------------------------------------------------------------------------------
    `send(node_id, ...)`   a broker; `COORDINATOR` connections are apart from `DATA`, so that no fetch delays a heartbeat
    `send_to_any(...)`     the broker with the fewest requests under way that does not back off (Kafka: leastLoadedNode),
                           and whose connections did not fail; TIMED_OUT, to be sent to another one, if the connection is
                           not set up within HURRIED_SETUP_MS;
                           before the first metadata, an address of bootstrap.servers; the next one if it has not
                           answered within HURRIED_SETUP_MS (kcli.network.peer_connection)

    the metadata are asked for           when
    -----------------------------------  ----------------------------------------------------------------------------------
    at once                              `request_update`, or a connection ended or is not set up within HURRIED_SETUP_MS;
                                         but not while a request is under way, nor within retry.backoff.ms (growing to
                                         retry.backoff.max.ms) of the last one
    each metadata.max.age.ms             otherwise
    again                                a topic that was asked for has an error that may pass, or no leader; for one with an
                                         error that stays, a consumer requests the update when its application got the error
    of bootstrap.servers (rebootstrap:   no known broker can be reached (KIP-899); no answer has come for
    all that is known is forgotten)      metadata.recovery.rebootstrap.trigger.ms, or a broker answered
                                         REBOOTSTRAP_REQUIRED (KIP-1102); not with metadata.recovery.strategy=none

With bootstrap.controllers (KIP-919) the nodes are the controllers: DescribeCluster is asked instead of Metadata, first at these
addresses. An answer that shows that a node is not a controller ends what waits for metadata.

Requests are not sent again here. An answer is a Message or a PeerFailure; `failure_error` makes an error of the latter.
A node that TLS or SASL does not let the client use ends what waits for metadata at once, too: `add_refusal_listener`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kcli.client.client_config import ClientConfig, parse_address
from kcli.client.errors import (
    AuthenticationError,
    ClientError,
    ConfigError,
    DisconnectedError,
    KafkaError,
    KafkaTimeoutError,
    RequestEncodingError,
    UnsupportedVersionError,
)
from kcli.client.metadata import Metadata, Node, controllers_request
from kcli.log.rng import Random
from kcli.log.wall_time import WallTime
from kcli.network.events import ClientEffect, ClientEvent, NodeRole, Peer, PeerAddress, PeerClosed, PeerNode, TokenObtained
from kcli.network.peer_request import Answer, AnswerCallback, AuthenticationFailure, InvalidRequest, PeerFailure, Request
from kcli.network.peers import Peers, PeerSettings
from kcli.network.security import PLAINTEXT, Security
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, METADATA

# The connections of a client to a broker; Kafka, too, has one of its own to the coordinator.
DATA, COORDINATOR = "data", "coordinator"
BOOTSTRAP = "bootstrap"
REBOOTSTRAP = "rebootstrap"  # metadata.recovery.strategy
# Takes the error, the id of the broker with which no connection has worked, None for another one, and the time.
RefusalListener = Callable[[ClientError, "int | None", int], None]
# These answers to DescribeCluster show that bootstrap.controllers does not name controllers.
_NOT_CONTROLLERS = (error_codes.MISMATCHED_ENDPOINT_TYPE, error_codes.UNSUPPORTED_ENDPOINT_TYPE)


class NetworkClient:
    """The connections and metadata of one client; `log(line)` gets a sentence for each connection that fails,
    and what the parts of a client have to report."""

    def __init__(
        self,
        config: ClientConfig,
        rng: Random,
        log: Callable[[str], None],
        start_ms: int = 0,
        wall: WallTime | None = None,
        security: Security = PLAINTEXT,
        controllers: Sequence[str] = (),
    ) -> None:
        """Raises ConfigError for bootstrap.servers or bootstrap.controllers (`controllers`) that are not addresses, or both."""
        if controllers and config.bootstrap_servers:
            raise ConfigError("bootstrap.servers and bootstrap.controllers cannot both be set: name brokers or controllers")
        if not controllers and not config.bootstrap_servers:
            raise ConfigError("bootstrap.servers is empty: name at least one broker, such as localhost:9092")
        self.config = config
        self.uses_controllers = bool(controllers)
        self._role = NodeRole.CONTROLLER if controllers else NodeRole.BROKER
        self.rng = rng
        self.effects: list[ClientEffect] = []
        self.timer = Timer(start_ms, wall)
        self.metadata = Metadata(config.allow_auto_create_topics)
        settings = PeerSettings(
            config.reconnect_backoff_ms,
            config.reconnect_backoff_max_ms,
            config.socket_connection_setup_timeout_ms,
            config.connections_max_idle_ms,
        )
        self.log = log
        self.security = security
        self.peers = Peers(
            *(None, config.client_id, self.effects, self.timer, rng, self.metadata, settings, log),
            sasl=security.sasl,
            obtain_token=self.effects.append,
            on_refusal=self._refused,
        )
        self.peers.on_unready = self._connection_failed
        self._refusal_listeners: list[RefusalListener] = []
        self._bootstrap = [parse_address(text) for text in controllers or config.bootstrap_servers]
        if len(self._bootstrap) > 1:
            self.peers.hurried_listener = BOOTSTRAP
        self._backoff = config.retry_backoff()
        self._is_asking = False
        self._is_update_wanted = False
        self._failures = 0  # in a row, of requests without an answer that has all
        self._refusals = 0  # in a row, of answers that lack only topics with an error that stays
        self._refusal: str | None = None  # why the last metadata were not answered by a node that can be reached
        self._asked_ms: int | None = None
        self._answered_ms = start_ms
        self._next_request: TimerTask | None = None
        self._is_closed = False

    # ------------------------------------------------------------------------------------------------------- the shell

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Take an event of a connection."""
        self.timer.observe(now_ms)
        if isinstance(event, PeerClosed):
            # What was to be sent on that connection fails now, and must not be sent on the next one.
            self.effects[:] = [effect for effect in self.effects if effect.peer != event.peer]
            self.peers.peer_closed(event, now_ms)
            self._connection_failed(event.peer)
        elif isinstance(event, TokenObtained):
            self.peers.token_obtained(event, now_ms)
        else:
            self.peers.response_received(event, now_ms)
        self.timer.advance(now_ms)

    def _connection_failed(self, peer: Peer) -> None:
        """Have the metadata asked for: other brokers may lead the partitions of one that does not answer."""
        if peer.listener != BOOTSTRAP:
            self.request_update()

    def advance(self, now_ms: int) -> None:
        """Run what is due."""
        self.timer.advance(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when `advance` must be called, None for never."""
        return self.timer.next_deadline_ms()

    def take_effects(self) -> list[ClientEffect]:
        """Return the effects since the last call."""
        effects = self.effects.copy()
        self.effects.clear()
        return effects

    def close(self) -> None:
        """Ask for metadata no longer; the shell closes the connections."""
        self._is_closed = True
        if self._next_request is not None:
            self._next_request.cancel()

    # ---------------------------------------------------------------------------------------------------------- sending

    def send(
        self,
        node_id: int,
        api_key: int,
        request: Request,
        callback: AnswerCallback,
        timeout_ms: int | None = None,
        connection: str = DATA,
        has_answer: bool = True,
        max_version: int | None = None,
    ) -> None:
        """Send a request to a broker; `callback(answer, now_ms)` is called once, after at most `timeout_ms`.

        Without `timeout_ms` it is request.timeout.ms. `max_version` is for values that later versions do not have.
        """
        deadline_ms = self.timer.clock_ms + (self.config.request_timeout_ms if timeout_ms is None else timeout_ms)
        self.peers.send(self._node(node_id), connection, api_key, request, callback, deadline_ms, has_answer, max_version)

    def send_to_any(
        self,
        api_key: int,
        request: Request,
        callback: AnswerCallback,
        timeout_ms: int | None = None,
        max_version: int | None = None,
    ) -> None:
        """Send a request to any broker, as `send`."""
        destination, connection = self._least_loaded()
        deadline_ms = self.timer.clock_ms + (self.config.request_timeout_ms if timeout_ms is None else timeout_ms)
        is_for_any = connection != BOOTSTRAP and len(self.metadata.nodes) > 1
        self.peers.send(
            *(destination, connection, api_key, request, callback, deadline_ms), max_version=max_version, is_for_any=is_for_any
        )

    def make_ready(self, node_id: int, connection: str = DATA) -> bool:
        """Return whether a request to a broker would be sent at once; if it would not, begin to connect (Kafka: ready)."""
        return self.peers.make_ready(self._node(node_id), connection)

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature of the cluster, 0 if it has none or no broker has reported it."""
        return self.peers.finalized_features.get(name, 0)

    def in_flight_count(self, node_id: int, connection: str = DATA) -> int:
        """Return how many requests to a broker have no answer yet."""
        return self.peers.in_flight_count(self._node(node_id), connection)

    def is_backing_off(self, node_id: int, connection: str = DATA) -> bool:
        """Return whether the last connection to a broker failed and the next one has to wait."""
        return self.peers.is_backing_off(self._node(node_id), connection)

    def version_for(self, node_id: int, api_key: int, connection: str = DATA) -> int | None:
        """Return the version of an API for a broker: -1 if there is none, None before the first answer of the broker."""
        return self.peers.version_for(self._node(node_id), connection, api_key)

    def failure_reason(self) -> str:
        """Describe why no broker can be reached, or what the last answer lacked, for an error message.

        Addresses of bootstrap.servers, or of bootstrap.controllers, count until the nodes are known.
        """
        if nodes := self.metadata.nodes.values():
            found = [(self._name(node), self.peers.failure_reason(self._node(node.node_id), DATA)) for node in nodes]
        else:
            found = [(str(address), self.peers.failure_reason(address, BOOTSTRAP)) for address in self._bootstrap]
        reasons = [f"{name}: {reason}" for name, reason in found if reason is not None]
        if self._refusal is not None and not any(reason in self._refusal for _, reason in found if reason is not None):
            reasons.append(self._refusal)
        return "; ".join(reasons) or "the connections are open, and no answer came"

    def controller_reason(self, node_id: int) -> str:
        """Describe why a broker has not answered a request that it forwards to the controller, for an error message."""
        if self.peers.failure_reason(self._node(node_id), DATA) is not None:
            return self.failure_reason()
        name = self._name(self.metadata.nodes[node_id])
        return f"{name} is connected, and waits for the controller: the quorum of controllers may have no leader"

    def _name(self, node: Node) -> str:
        return f"{self._role.value} {node.node_id} at {PeerAddress(node.host, node.port)}"

    def unready(self) -> list[str]:
        """Return a sentence for each broker to which a connection is needed and not there; threads may call this.

        Addresses of bootstrap.servers, or of bootstrap.controllers, count until the nodes are known.
        """
        nodes = list(self.metadata.nodes.values())
        if not nodes:
            found = [(f"{one.host}:{one.port}", self.peers.unready_reason(one, BOOTSTRAP)) for one in self._bootstrap]
        else:
            found = []
            for node in nodes:
                peer = self._node(node.node_id)
                reasons = (self.peers.unready_reason(peer, connection) for connection in (DATA, COORDINATOR))
                found.append((self._name(node), next((reason for reason in reasons if reason is not None), None)))
        return [f"{name}: {reason}" for name, reason in found if reason is not None]

    def add_refusal_listener(self, listener: RefusalListener) -> None:
        """Have a function called when TLS or SASL does not let the client use a broker: what waits for metadata should end."""
        self._refusal_listeners.append(listener)

    def _refused(self, failure: AuthenticationFailure, now_ms: int) -> None:
        destination = failure.peer.destination
        node_id = destination.node_id if failure.is_first and isinstance(destination, PeerNode) else None
        self._end_waiting(AuthenticationError(failure.reason), now_ms, node_id)

    def _end_waiting(self, error: ClientError, now_ms: int, node_id: int | None = None) -> None:
        for listener in self._refusal_listeners:
            listener(error, node_id, now_ms)

    def _node(self, node_id: int) -> PeerNode:
        return PeerNode(node_id, self._role)

    def _least_loaded(self) -> tuple[PeerNode | PeerAddress, str]:
        known: list[tuple[PeerNode | PeerAddress, str]] = [(self._node(node_id), DATA) for node_id in self.metadata.nodes]
        usable = [one for one in known if not self.peers.is_backing_off(*one)]
        if known and not usable and self.config.metadata_recovery_strategy == REBOOTSTRAP:
            known = []
        if not known:
            known = [(address, BOOTSTRAP) for address in self._bootstrap]
            fewest = min(self.peers.failure_count(*one) for one in known)
            known = [one for one in known if self.peers.failure_count(*one) == fewest]
            usable = [one for one in known if not self.peers.is_backing_off(*one)]
        candidates = usable or known
        for count in (self.peers.failure_count, self.peers.in_flight_count):
            fewest = min(count(*one) for one in candidates)
            candidates = [one for one in candidates if count(*one) == fewest]
        return candidates[int(self.rng.random() * len(candidates))]

    # --------------------------------------------------------------------------------------------------------- metadata

    def request_update(self) -> None:
        """Ask for metadata as soon as the backoff allows."""
        self._is_update_wanted = True
        self._plan()

    @property
    def is_update_wanted(self) -> bool:
        """Whether metadata were requested and have not come yet."""
        return self._is_update_wanted or self._is_asking

    def _plan(self) -> None:
        """Ask now, or arm the timer for the time to ask."""
        if self._is_asking or self._is_closed:
            return
        now_ms = self.timer.clock_ms
        at_ms = self._answered_ms + self.config.metadata_max_age_ms
        if self._is_update_wanted:
            at_ms = now_ms
            if self._asked_ms is not None:
                retries = max(self._failures + self._refusals - 1, 0)
                at_ms = max(now_ms, self._asked_ms + self._backoff.delay_ms(retries, self.rng))
        if self._next_request is not None:
            self._next_request.cancel()
        if at_ms <= now_ms:
            self._ask()
        else:
            self._next_request = self.timer.schedule(at_ms, lambda now_ms: self._ask())

    def _ask(self) -> None:
        if self._is_asking or self._is_closed:
            return
        now_ms = self.timer.clock_ms
        if self._must_rebootstrap(now_ms):
            self._rebootstrap(now_ms)
        self._is_asking, self._is_update_wanted, self._asked_ms = True, False, now_ms
        if self.uses_controllers:
            self.send_to_any(DESCRIBE_CLUSTER, controllers_request, partial(self._answered, frozenset()))
        else:
            self.send_to_any(METADATA, self.metadata.request, partial(self._answered, self.metadata.wanted_topics))

    def _must_rebootstrap(self, now_ms: int) -> bool:
        trigger_ms = self.config.metadata_recovery_rebootstrap_trigger_ms
        return (
            self.config.metadata_recovery_strategy == REBOOTSTRAP
            and bool(self._failures)
            and now_ms - self._answered_ms >= trigger_ms
        )

    def _rebootstrap(self, now_ms: int) -> None:
        self.metadata.nodes = {}
        self._answered_ms = now_ms

    def _answered(self, wanted: frozenset[str], answer: Answer, now_ms: int) -> None:
        self._is_asking = False
        self._refusal = None
        if isinstance(answer, PeerFailure):
            self._failures += 1
            self._is_update_wanted = True
            if answer.is_lasting and self.uses_controllers and not isinstance(answer, AuthenticationFailure):
                sentence = "a node of bootstrap.controllers is not a controller, or of a release before Kafka 3.7"
                self._end_waiting(UnsupportedVersionError(sentence), now_ms)
            elif answer.is_lasting:
                self._refusal = str(failure_error(answer, METADATA))
        elif answer.error_code == error_codes.UNSUPPORTED_VERSION and self.uses_controllers:
            # A controller that starts does not know the cluster's metadata.version yet. Kafka's client fails at once.
            self._failures += 1
            self._is_update_wanted = True
            self._refusal = answer.error_message
        elif answer.error_code in _NOT_CONTROLLERS and self.uses_controllers:
            self._failures += 1
            self._is_update_wanted = True
            sentence = answer.error_message or "a node of bootstrap.controllers is not a controller"
            self._end_waiting(KafkaError(answer.error_code, sentence), now_ms)
        elif answer.error_code == error_codes.REBOOTSTRAP_REQUIRED:
            self._failures += 1
            self._is_update_wanted = True
            if self.config.metadata_recovery_strategy == REBOOTSTRAP:
                self._rebootstrap(now_ms)
        elif not answer.brokers:
            self._failures += 1  # a broker that starts may know none
            self._is_update_wanted = True
            self._refusal = f"the {self._role.value} that answered knows none that runs: the quorum may have no leader"
        else:
            self._answered_ms = now_ms
            if self.uses_controllers:
                self.metadata.update_controllers(answer, now_ms)
            else:
                self.metadata.update(answer, now_ms)
            is_incomplete = self._is_incomplete()
            self._failures = self._failures + 1 if is_incomplete else 0
            self._refusals = self._refusals + 1 if self.metadata.topic_errors and not is_incomplete else 0
            self._is_update_wanted |= is_incomplete or not self.metadata.wanted_topics <= wanted
        self._plan()

    def _is_incomplete(self) -> bool:
        """Return whether a topic has no answer yet that stays."""
        return any(code in error_codes.RETRIABLE for code in self.metadata.topic_errors.values()) or any(
            not self.metadata.cluster.available_partitions_for_topic(topic)
            for topic in self.metadata.wanted_topics
            if self.metadata.cluster.partitions_for_topic(topic)
        )


def failure_error(failure: PeerFailure, api_key: int, reason: str | None = None) -> ClientError:
    """Return the error for a request that has no answer."""
    api = API_KEYS[api_key].name
    detail = f" ({reason})" if reason else ""
    if failure is PeerFailure.TIMED_OUT:
        return KafkaTimeoutError(f"{api} was not answered in time{detail}")
    if isinstance(failure, AuthenticationFailure):
        return AuthenticationError(failure.reason)
    if isinstance(failure, InvalidRequest):
        return RequestEncodingError(f"{api} is not sent, since it cannot be encoded: {failure.reason}")
    if failure is PeerFailure.UNSUPPORTED_VERSION and api_key == METADATA:
        sentence = "it may be a controller (bootstrap.controllers), not a broker"
        return UnsupportedVersionError(f"the node does not serve {api} to clients: {sentence}")
    if failure is PeerFailure.UNSUPPORTED_VERSION:
        return UnsupportedVersionError(f"the broker does not support {api} in a version that is needed here")
    return DisconnectedError(f"the connection ended before the answer to {api}{detail}")
