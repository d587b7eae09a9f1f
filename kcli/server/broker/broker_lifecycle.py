"""The registration of a broker in the cluster and its heartbeats (KIP-631; Kafka: BrokerLifecycleManager).

    state                         until                                       heartbeats
    ----------------------------  ------------------------------------------  ------------------------------------------
    NOT_RUNNING                   the broker has loaded its logs              none
    STARTING                      it is registered and has an epoch           none
    RECOVERY                      it has applied the metadata up to its own   at once, and at each change of metadata:
                                  registration; the controller unfences it    want_fence = False
    RUNNING                       it is stopped                               every broker.heartbeat.interval.ms
    PENDING_CONTROLLED_SHUTDOWN   the controller has moved its leaderships    at once and on: want_shut_down = True
    SHUTTING_DOWN                                                             none

These requests have a connection of their own (kcli.server.broker.node_to_controller_channel).

A request that the controller does not answer, or refuses, is sent again after RETRY_MS, twice as long each time, up to
broker.heartbeat.interval.ms; a refusal is logged once for each error. A broker that is not registered
initial.broker.registration.timeout.ms after its first request ends: another one may have its node.id. When another controller
leads, the request is sent to it at once, and the answer of the earlier one, which may be paused or cut off, does not count any
more. A broker that was unregistered while it runs registers again (Kafka's goes on sending heartbeats), and so does one whose
registration lacks its directories when an upgrade of metadata.version to 3.7-IV2 or above has them (Kafka:
BrokerRegistrationTracker). A broker that is stopped waits SHUTDOWN_TIMEOUT_MS for the controller. Heartbeats contain the
directories that are offline and, from metadata.version 4.3-IV0 on, those that are cordoned (KIP-1066); a change of these is
sent at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from kcli.format.kafka_uuid import Uuid
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, BROKER_HEARTBEAT, BROKER_REGISTRATION
from kcli.protocol.message import Message
from kcli.server.broker.node_to_controller_channel import HEARTBEAT
from kcli.server.log_lines import Line, WarningLine
from kcli.state.image_records import CORDONED_LOG_DIRS_SINCE, DIRECTORIES_SINCE

if TYPE_CHECKING:
    from kcli.server.broker.broker import Broker

RETRY_MS = 20
# As BrokerServer.shutdown of Kafka, which waits five minutes.
SHUTDOWN_TIMEOUT_MS = 5 * 60_000
# A change of metadata is reported in the heartbeat after it, without a heartbeat for each change.
FENCED_HEARTBEAT_MS = 10


class RegistrationError(Exception):
    """The controllers do not register a broker that starts; the message is one sentence."""


class BrokerState(IntEnum):
    """Kafka's states of a broker, as its metric kafka_server_kafkaserver_brokerstate shows them."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerLifecycleManager:
    """The registration of one broker."""

    def __init__(self, broker: Broker, incarnation_id: Uuid) -> None:
        self._broker = broker
        self.incarnation_id = incarnation_id
        self._interval_ms = broker.config.get_int("broker.heartbeat.interval.ms")
        self.channel = broker.controller.separate(HEARTBEAT, self._interval_ms)
        self._backoff = ExponentialBackoff(RETRY_MS, self._interval_ms, jitter=0)
        self._on_released: Callable[[int], None] | None = None
        self._task: TimerTask | None = None
        self._attempt = 0  # the number of the request whose answer counts
        self._is_asking = False
        self._logged_refusal = error_codes.NONE
        self._failed_attempts = 0
        self._registration_limit: TimerTask | None = None
        self._has_news = False  # metadata was applied after the last heartbeat
        self._stated_cordoned: list[Uuid] | None = None  # in the last heartbeat
        self._are_directories_stated = False  # in a registration after an upgrade
        self.has_been_unfenced = False
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1

    def start(self, now_ms: int) -> None:
        """Register, for the first time or again."""
        if self.state is BrokerState.NOT_RUNNING:
            limit_ms = self._broker.config.get_int("initial.broker.registration.timeout.ms")
            self._registration_limit = self._broker.timer.schedule(now_ms + limit_ms, self._registration_timed_out)
        self.state = BrokerState.STARTING
        request = API_KEYS[BROKER_REGISTRATION].request.new(
            broker_id=self._broker.node_id, cluster_id=self._broker.cluster_id, incarnation_id=self.incarnation_id
        )
        self._broker.describe_registration(request)
        self._send(BROKER_REGISTRATION, request, self._registered)

    def _send(self, api_key: int, request: Message, answered: Callable[[Message | None, int], None]) -> None:
        """Send a request to the active controller; `answered` is called unless another request has been sent before that."""
        self._attempt += 1
        attempt = self._attempt
        self._is_asking = True

        def answer(response: Message | None, now_ms: int) -> None:
            if attempt == self._attempt:
                self._is_asking = False
                answered(response, now_ms)

        self.channel.send(api_key, request, answer)

    def leader_changed(self, now_ms: int) -> None:
        """Ask the new leader, if an earlier one has not answered, or has not been reached."""
        if self.state in (BrokerState.NOT_RUNNING, BrokerState.SHUTTING_DOWN) or not (self._is_asking or self._failed_attempts):
            return
        self._is_asking = False
        if self._task is not None:
            self._task.cancel()
        if self.state is BrokerState.STARTING:
            self.start(now_ms)
        else:
            self._beat(now_ms)

    def _registration_timed_out(self, now_ms: int) -> None:
        if self.state is BrokerState.STARTING:
            broker, key = self._broker, "initial.broker.registration.timeout.ms"
            is_duplicate = self._logged_refusal == error_codes.DUPLICATE_BROKER_REGISTRATION
            hint = f" (another broker with node.id={broker.node_id} is running)" if is_duplicate else ""
            raise RegistrationError(
                f"broker {broker.node_id} is not registered {broker.config.get_int(key)} ms after its start ({key}): "
                f"{self.awaited()}{hint}"
            )

    def _registered(self, response: Message | None, now_ms: int) -> None:
        if self.state is BrokerState.SHUTTING_DOWN:
            return
        if response is None or response.error_code:
            self._failed("the registration", response, now_ms, self.start)
            return
        self._succeeded()
        if self._registration_limit is not None:
            self._registration_limit.cancel()
        self.broker_epoch = response.broker_epoch
        self.state = BrokerState.RECOVERY
        if self.has_been_unfenced:
            epoch = self.broker_epoch
            self._broker.report(Line(f"registered again, with broker epoch {epoch}", broker_epoch=epoch))
        self._beat(now_ms)

    def _failed(self, what: str, response: Message | None, now_ms: int, retry: Callable[[int], None]) -> None:
        """Log an error of the controller unless it was the last one logged, and send the request again later."""
        code = error_codes.NOT_CONTROLLER if response is None else response.error_code
        if code not in (error_codes.NOT_CONTROLLER, self._logged_refusal):
            self._logged_refusal = code
            name = error_codes.NAMES.get(code, code)
            self._broker.report(WarningLine(f"the controller refuses {what}: {name}; asking again", error=name))
        delay_ms = self._backoff.delay_ms(self._failed_attempts, self._broker.rng)
        self._failed_attempts += 1
        self._again(delay_ms, now_ms, retry)

    def _succeeded(self) -> None:
        self._failed_attempts, self._logged_refusal = 0, error_codes.NONE

    def awaited(self) -> str:
        """Return what the broker waits for before it is unfenced, for a log line."""
        refused = error_codes.NAMES.get(self._logged_refusal, self._logged_refusal) if self._logged_refusal else ""
        if self.state is BrokerState.STARTING:
            if refused:
                return f"the controller refuses the registration: {refused}"
            return "the controller has not answered the registration"
        if refused:
            return f"the controller refuses the heartbeats: {refused}"
        return "the controller keeps the broker fenced"

    def metadata_changed(self, now_ms: int) -> None:
        """Note that metadata was applied; a broker that is still fenced sends a heartbeat at once."""
        self._has_news = True
        if self.state is BrokerState.RUNNING and not self._are_directories_stated and self._lacks_directories():
            self._are_directories_stated = True
            text = f"metadata.version {self._broker.image.metadata_version} has log directories: registering again with them"
            self._broker.report(text)
            if self._task is not None:
                self._task.cancel()
            self.start(now_ms)
            return
        if self.state is BrokerState.RECOVERY or (self.state is BrokerState.RUNNING and self._is_cordoned_changed()):
            self._beat(now_ms)

    def _lacks_directories(self) -> bool:
        """Return whether the registration in the metadata is older than the metadata.version that has directories."""
        image = self._broker.image
        own = image.brokers.get(self._broker.node_id)
        return own is not None and not own.log_dirs and image.metadata_version >= DIRECTORIES_SINCE

    def _is_cordoned_changed(self) -> bool:
        return self._cordoned() != self._stated_cordoned

    def _cordoned(self) -> list[Uuid] | None:
        """Return the ids of the cordoned directories, None if the metadata.version does not have them."""
        if self._broker.image.metadata_version < CORDONED_LOG_DIRS_SINCE:
            return None
        paths, dirs = self._broker.cordoned_log_dirs, self._broker.log_manager.dirs
        return [directory_id for path in paths if path in dirs and (directory_id := dirs[path].directory_id)]

    def stop(self, now_ms: int, on_released: Callable[[int], None]) -> None:
        """Ask the controller for a shutdown; then `on_released(now_ms)`. A second call is ignored."""
        if self.state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN):
            return
        self._on_released = on_released
        if self.state is not BrokerState.RUNNING or not self._broker.config["controlled.shutdown.enable"]:
            self._release(now_ms)
            return
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._broker.timer.schedule(now_ms + SHUTDOWN_TIMEOUT_MS, self._shutdown_timed_out)
        self._beat(now_ms)

    def _shutdown_timed_out(self, now_ms: int) -> None:
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            seconds = SHUTDOWN_TIMEOUT_MS // 1000
            what = f"the controller has not approved the controlled shutdown for {seconds} s: stopping without it"
            self._broker.report(WarningLine(what, seconds=seconds))
            self._release(now_ms)

    def _release(self, now_ms: int) -> None:
        if self.state is not BrokerState.SHUTTING_DOWN:
            self.state = BrokerState.SHUTTING_DOWN
            if self._task is not None:
                self._task.cancel()
            if self._on_released is not None:
                self._on_released(now_ms)

    def _again(self, after_ms: int, now_ms: int, what: Callable[[int], None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._broker.timer.schedule(now_ms + after_ms, what)

    def _beat(self, now_ms: int) -> None:
        if self._is_asking or self.state is BrokerState.SHUTTING_DOWN:
            return
        self._has_news = False
        self._stated_cordoned = self._cordoned()
        request = API_KEYS[BROKER_HEARTBEAT].request.new(
            broker_id=self._broker.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._broker.metadata_offset,
            want_fence=False,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=self._broker.log_manager.offline_directory_ids(),
            cordoned_log_dirs=self._stated_cordoned,
        )
        self._send(BROKER_HEARTBEAT, request, self._beaten)

    def _beaten(self, response: Message | None, now_ms: int) -> None:
        if self.state is BrokerState.SHUTTING_DOWN:
            return
        is_stale = response is not None and response.error_code == error_codes.STALE_BROKER_EPOCH
        if is_stale and self._is_unregistered:
            self._unregistered(now_ms)
            return
        if response is None or response.error_code:
            self._failed("the heartbeats", response, now_ms, self._beat)
            return
        self._succeeded()
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and response.should_shut_down:
            self._release(now_ms)
            return
        if self.state is BrokerState.RECOVERY and not response.is_fenced:
            self.state = BrokerState.RUNNING
            self.has_been_unfenced = True
        after_ms = self._interval_ms
        if self.state is not BrokerState.RUNNING:
            after_ms = 0 if self._has_news else FENCED_HEARTBEAT_MS
        elif self._is_cordoned_changed():
            after_ms = 0
        self._again(after_ms, now_ms, self._beat)

    @property
    def _is_unregistered(self) -> bool:
        """True if the metadata lacks this broker, or a late copy of its request has registered it in another epoch."""
        own = self._broker.image.brokers.get(self._broker.node_id)
        return own is None or (own.incarnation_id == self.incarnation_id and own.broker_epoch > self.broker_epoch)

    def _unregistered(self, now_ms: int) -> None:
        """Register again: kafka-cluster unregister has removed this broker from the metadata."""
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._release(now_ms)
            return
        what = f"broker {self._broker.node_id} was unregistered while it runs; registering again"
        self._broker.report(WarningLine(what, broker=self._broker.node_id))
        self.state = BrokerState.STARTING
        self._again(self._interval_ms, now_ms, self.start)
