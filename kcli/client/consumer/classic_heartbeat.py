"""The heartbeats of a member of a classic group (Kafka: AbstractCoordinator.HeartbeatThread).

answer                                    then
----------------------------------------  --------------------------------------------------------------------------
NONE                                      the next one after heartbeat.interval.ms; session.timeout.ms begins again
REBALANCE_IN_PROGRESS                     the same, and the member joins again if it is STABLE
UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION,    the generation is lost
FENCED_INSTANCE_ID
NOT_COORDINATOR, no answer, any other     the next one after retry.backoff.ms; the coordinator may be looked up again
none succeeds in session.timeout.ms       the coordinator is looked up again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcli.client.consumer.classic_requests import heartbeat_request
from kcli.client.errors import ClientError
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import HEARTBEAT
from kcli.protocol.message import Message

if TYPE_CHECKING:
    from kcli.client.consumer.classic_membership import ClassicMembership

FATAL = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION, error_codes.FENCED_INSTANCE_ID))


class ClassicHeartbeat:
    """The heartbeats of one member, from `start` to `stop`."""

    def __init__(self, member: ClassicMembership) -> None:
        self._member = member
        self._next: TimerTask | None = None
        self._answered_ms = 0
        self._run = 0  # answers to heartbeats before the last `stop` are ignored

    def start(self, now_ms: int) -> None:
        """Send the first one after heartbeat.interval.ms."""
        self.stop()
        self._answered_ms = now_ms
        self._schedule(now_ms + self._member.config.heartbeat_interval_ms)

    def stop(self) -> None:
        """Send no more."""
        self._run += 1
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self, at_ms: int) -> None:
        self._next = self._member.network.timer.schedule(at_ms, self._send)

    def _send(self, now_ms: int) -> None:
        member, run = self._member, self._run
        if now_ms - self._answered_ms >= member.config.session_timeout_ms:
            member.coordinator.node_id = None
            self._answered_ms = now_ms
        request = heartbeat_request(member.group_metadata())

        def answered(answer: Message | ClientError, now_ms: int) -> None:
            if run == self._run:
                self._answered(answer, now_ms)

        timeout_ms = min(member.config.session_timeout_ms, member.network.config.request_timeout_ms)
        member.coordinator.send(HEARTBEAT, request, answered, now_ms, timeout_ms)

    def _answered(self, answer: Message | ClientError, now_ms: int) -> None:
        member = self._member
        code = error_codes.NETWORK_EXCEPTION if isinstance(answer, ClientError) else answer.error_code
        if code in FATAL:
            member.lose_generation(code, now_ms)
            return
        if code not in (error_codes.NONE, error_codes.REBALANCE_IN_PROGRESS):
            member.coordinator.check(code)
            self._schedule(now_ms + member.network.config.retry_backoff_ms)
            return
        self._answered_ms = now_ms
        if code == error_codes.REBALANCE_IN_PROGRESS:
            member.rebalance_in_progress()
        self._schedule(now_ms + member.config.heartbeat_interval_ms)
