"""A member of a group whose coordinator assigns (KIP-848, KIP-932): its states, its epoch and its heartbeats.

(Kafka: AbstractMembershipManager, AbstractHeartbeatRequestManager, MemberState.)

    state          the member                                     left by                                   then
    -------------  ---------------------------------------------  ----------------------------------------  -------------
    UNSUBSCRIBED   sends nothing                                  `join`                                    JOINING
    JOINING        heartbeats with epoch 0                        an assignment                             RECONCILING
                                                                  an answer without one                     STABLE
    STABLE         has its assignment; heartbeats each interval   an assignment                             RECONCILING
    RECONCILING    gives partitions back, then takes new ones;    `acknowledge`                             ACKNOWLEDGING
                   heartbeats each interval
    ACKNOWLEDGING  has to say so in a heartbeat, at once          it is sent                                STABLE, or
                                                                                                            RECONCILING
    FENCED         loses its partitions; sends nothing            `join`                                    JOINING
    STALE          left because the application did not poll      `join`                                    JOINING
    FATAL          failed for good                                -

    answer                                                then
    ----------------------------------------------------  -----------------------------------------------------------------
    NONE                                                  the epoch; the next heartbeat after the interval of the answer
    FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID                FENCED; it joins again with the same member id
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, none      again, to the new coordinator, with all fields
    COORDINATOR_LOAD_IN_PROGRESS                          again after retry.backoff.ms
    UNRELEASED_INSTANCE_ID after a join without an        the group may have taken in this member: it leaves with epoch -2
    answer                                                and joins again (the Java client fails)
    TOPIC_AUTHORIZATION_FAILED                            the application gets the error; again
    any other                                             FATAL; the application gets the error

    last epoch   -1: the member leaves    -2: a static member comes back (its partitions stay assigned)

A heartbeat has the fields that changed since the last one that was answered; after a failure it has all of them. So has the one
after the next change of the epoch without an assignment: the coordinator may have executed the lost heartbeat late, and then
the assignment was in its answer. One heartbeat is under way at a time. The member makes its id itself, from version 1 on; in
version 0 the coordinator does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from kcli.client.coordinator_lookup import CoordinatorLookup
from kcli.client.errors import AuthenticationError, ClientError, KafkaError, UnsupportedVersionError
from kcli.client.network_client import NetworkClient
from kcli.format.kafka_uuid import random_uuid
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.message import Message

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
FENCED_CODES = frozenset((error_codes.FENCED_MEMBER_EPOCH, error_codes.UNKNOWN_MEMBER_ID))
# No answer, or one that says that the coordinator is another broker or not ready.
AGAIN = frozenset(
    (error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.COORDINATOR_LOAD_IN_PROGRESS)
)


class MemberState(Enum):
    """The states of a member; the module has the transitions."""

    UNSUBSCRIBED = 0
    JOINING = 1
    RECONCILING = 2
    ACKNOWLEDGING = 3
    STABLE = 4
    FENCED = 5
    STALE = 6
    FATAL = 7


ACTIVE = frozenset((MemberState.JOINING, MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE))


class EpochGroup(Protocol):
    """The membership that has an EpochMember."""

    heartbeat_api: int

    def heartbeat_request(self, is_full: bool) -> Message:
        """Return a heartbeat with the fields that changed, or with all; the EpochMember adds its id and epoch."""
        ...

    def last_heartbeat(self) -> Message:
        """Return a heartbeat for a member that leaves."""
        ...

    def heartbeat_sent(self) -> None:
        """Take note that a heartbeat with the changed fields is under way."""
        ...

    def assigned(self, assignment: Message, now_ms: int) -> None:
        """Take a new target assignment."""
        ...

    def fenced_by_group(self, now_ms: int) -> None:
        """Lose all partitions, then `join` again."""
        ...

    def failed(self, error: ClientError, now_ms: int) -> None:
        """Take an error for the application."""
        ...


class EpochMember:
    """The heartbeats of one member; `epoch` is 0 before it joined."""

    def __init__(self, network: NetworkClient, coordinator: CoordinatorLookup, group: EpochGroup) -> None:
        self.state = MemberState.UNSUBSCRIBED
        self.epoch = JOIN_EPOCH
        self.member_id = str(random_uuid(network.rng.randbytes))
        self._network = network
        self._coordinator = coordinator
        self._group = group
        self._backoff = ExponentialBackoff(network.config.retry_backoff_ms, network.config.retry_backoff_max_ms)
        self._failures = 0
        self._interval_ms = 0
        self._next: TimerTask | None = None
        self._run = 0  # answers to heartbeats of earlier lives are ignored
        self._is_under_way = False
        self._is_wanted = False
        self._is_full = True
        self._is_join_lost = False  # a join had no answer
        self._may_miss_assignment = False  # a heartbeat had no answer, and no epoch has come without an assignment since

    @property
    def is_active(self) -> bool:
        """Whether the member takes part in its group."""
        return self.state in ACTIVE

    # ------------------------------------------------------------------------------------------------------- transitions

    def join(self, now_ms: int) -> None:
        """Join the group, as a new member or again."""
        self._stop()
        self.state = MemberState.JOINING
        self.epoch = JOIN_EPOCH
        self.send_soon(now_ms)

    def acknowledge(self, now_ms: int) -> None:
        """Report to the coordinator at once that the assignment is reconciled."""
        if self.state is MemberState.RECONCILING:
            self.state = MemberState.ACKNOWLEDGING
            self.send_soon(now_ms)

    def leave(self, epoch: int, state: MemberState, done: Callable[[int], None], now_ms: int) -> None:
        """Send the last heartbeat and enter `state`; `done` is called after its answer, or at once if there is none."""
        was_active = self.is_active and (self.epoch > 0 or self._is_under_way) and self._coordinator.node_id is not None
        self._stop()
        self.state, self.epoch = state, JOIN_EPOCH
        if was_active:
            self._send_last(epoch, done, now_ms)
        else:
            done(now_ms)

    def _send_last(self, epoch: int, done: Callable[[int], None], now_ms: int) -> None:
        message = self._group.last_heartbeat()
        message.member_id, message.member_epoch = self.member_id, epoch
        self._coordinator.send(self._group.heartbeat_api, message, lambda answer, now_ms: done(now_ms), now_ms)

    def stop(self) -> None:
        """Send nothing more: the coordinator finds out by the session's timeout."""
        self._stop()
        self.state, self.epoch = MemberState.UNSUBSCRIBED, JOIN_EPOCH

    def _stop(self) -> None:
        """Send no more heartbeats of this life."""
        self._run += 1
        self._is_under_way = self._is_wanted = False
        self._is_full, self._may_miss_assignment = True, False
        if self._next is not None:
            self._next.cancel()
            self._next = None

    # -------------------------------------------------------------------------------------------------------- heartbeats

    def send_soon(self, now_ms: int) -> None:
        """Send a heartbeat as soon as none is under way."""
        if self.is_active:
            self._is_wanted = True
            if not self._is_under_way:
                self._send(now_ms)

    def _send(self, now_ms: int) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._is_under_way, self._is_wanted = True, False
        sent_ms, run = now_ms, self._run

        def answered(answer: Message | ClientError, now_ms: int) -> None:
            if run == self._run:
                self._is_under_way = False
                self._answered(answer, sent_ms, now_ms)

        message = self._group.heartbeat_request(self._is_full)
        message.member_id, message.member_epoch = self.member_id, self.epoch
        self._coordinator.send(self._group.heartbeat_api, message, answered, now_ms)
        if self.state is MemberState.ACKNOWLEDGING:
            self.state = MemberState.STABLE
        self._group.heartbeat_sent()

    def _answered(self, answer: Message | ClientError, sent_ms: int, now_ms: int) -> None:
        if isinstance(answer, ClientError):
            # A refusal by TLS or SASL is an error of the consumer, which goes on to connect.
            if answer.is_retriable or isinstance(answer, AuthenticationError):
                self._is_join_lost |= self.state is MemberState.JOINING
                self._again(now_ms)
            else:
                self._fail(_explain(answer), now_ms)
            return
        code = answer.error_code
        if code:
            self._refused(code, answer.error_message, now_ms)
            return
        is_missed = self._may_miss_assignment and answer.assignment is None and answer.member_epoch != self.epoch
        self._failures, self._is_full = 0, is_missed
        self._may_miss_assignment &= not is_missed
        self._interval_ms = answer.heartbeat_interval_ms
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._schedule(max(sent_ms + self._interval_ms, now_ms + 1))
        if answer.assignment is not None:
            self.state = MemberState.RECONCILING
            self._group.assigned(answer.assignment, now_ms)
        elif self.state is MemberState.JOINING:
            self.state = MemberState.STABLE
        if self._is_wanted and not self._is_under_way:
            self._send(now_ms)

    def _refused(self, code: int, message: str | None, now_ms: int) -> None:
        self._coordinator.check(code)
        error = KafkaError(code, message)
        if code in FENCED_CODES:
            self._stop()
            self.state, self.epoch = MemberState.FENCED, JOIN_EPOCH
            self._group.fenced_by_group(now_ms)
        elif code in AGAIN:
            self._again(now_ms)
        elif code == error_codes.UNRELEASED_INSTANCE_ID and self._is_join_lost:
            self._release_instance(now_ms)
        elif code == error_codes.TOPIC_AUTHORIZATION_FAILED:
            self._again(now_ms)
            self._group.failed(error, now_ms)
        else:
            self._fail(_explain(error), now_ms)

    def _release_instance(self, now_ms: int) -> None:
        """Leave and join again: the group took in this static member with a join whose answer was lost."""
        self._is_join_lost = False
        run = self._run

        def released(now_ms: int) -> None:
            if run == self._run and self.state is MemberState.JOINING:
                self._again(now_ms)

        self._send_last(LEAVE_STATIC_EPOCH, released, now_ms)

    def _fail(self, error: ClientError, now_ms: int) -> None:
        self._stop()
        self.state = MemberState.FATAL
        self._group.failed(error, now_ms)

    def _again(self, now_ms: int) -> None:
        """Send the heartbeat again, with all fields: it is not known which ones the coordinator got."""
        self._is_full = self._may_miss_assignment = True
        delay_ms = self._backoff.delay_ms(self._failures, self._network.rng)
        self._failures += 1
        self._schedule(now_ms + delay_ms)

    def _schedule(self, at_ms: int) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._network.timer.schedule(at_ms, self._due)

    def _due(self, now_ms: int) -> None:
        self._next = None
        if self.is_active and not self._is_under_way:
            self._send(now_ms)


def _explain(error: ClientError) -> ClientError:
    is_missing = isinstance(error, KafkaError) and error.code == error_codes.UNSUPPORTED_VERSION
    if is_missing or isinstance(error, UnsupportedVersionError):
        return UnsupportedVersionError(
            f"the brokers do not support this kind of group or subscription ({error}); with group.protocol=classic a consumer "
            "needs nothing of them that is newer than Kafka 0.10"
        )
    return error
