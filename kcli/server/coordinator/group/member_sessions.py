"""The timers of the members of groups whose assignment the coordinator computes (KIP-848, KIP-1071).

    timer      of                         runs for                      begins with
    ---------  -------------------------  ----------------------------  ------------------------------------------------
    session    every member               the session timeout           each heartbeat, and the load of the group
    rebalance  members of the consumer    the member's rebalance        an assignment with partitions or tasks to revoke
               and streams protocols      timeout
    join       members of the classic     the member's rebalance        the answer REBALANCE_IN_PROGRESS
               protocol                   timeout
    sync       members of the classic     the member's rebalance        the answer to a join
               protocol                   timeout

A member whose timer ends is removed from its group, by that of a rebalance only if it is still in the same epoch. If that
cannot be written, it is tried again 500 ms later, as in Kafka. A heartbeat sets the deadline of the session and leaves its task
alone; the task checks the deadline and is scheduled again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from kcli.network.timing_wheel import Timer, TimerTask
from kcli.server.coordinator.group.classic_rebalances import WriteShard
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.log_lines import LimitedLines, WarningLine

RETRY_MS = 500
# (group id, member id, the epoch in which the member must still be, or None, reason) -> what removes the member
Expire = Callable[[str, str, int | None, str], Decision[None]]

_TimerName = Literal["join", "rebalance", "sync"]


class _Session:
    """The timers of a member."""

    __slots__ = ("deadline_ms", "join", "rebalance", "sync", "task")

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.task: TimerTask | None = None
        self.rebalance: TimerTask | None = None
        self.join: TimerTask | None = None
        self.sync: TimerTask | None = None

    def cancel(self) -> None:
        """Cancel the timers."""
        for task in (self.task, self.rebalance, self.join, self.sync):
            if task is not None:
                task.cancel()


class MemberSessions:
    """The timers of the members of one kind of group in a shard; `write` executes what `expire` decides when a timer ends."""

    def __init__(self, timer: Timer, write: WriteShard, expire: Expire, report: Callable[[str], None]) -> None:
        self._timer = timer
        self._write = write
        self._expire = expire
        self._report = report
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._failures = LimitedLines(report)
        self.is_closed = False

    def close(self) -> None:
        """Cancel all timers: the shard is unloaded."""
        self.is_closed = True
        for session in self._sessions.values():
            session.cancel()
        self._sessions.clear()

    def remove(self, group_id: str, member_id: str) -> None:
        """Cancel the timers of a member, if it has any."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            session.cancel()

    def _get(self, group_id: str, member_id: str) -> _Session:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = self._sessions[group_id, member_id] = _Session()
        return session

    def extend(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Begin the session of a member anew."""
        session = self._get(group_id, member_id)
        deadline_ms = self._timer.clock_ms + timeout_ms
        session.deadline_ms = deadline_ms
        if session.task is None or deadline_ms < session.task.at_ms:
            if session.task is not None:
                session.task.cancel()
            session.task = self._timer.schedule(deadline_ms, partial(self._check, group_id, member_id, session))

    def _check(self, group_id: str, member_id: str, session: _Session, now_ms: int) -> None:
        if now_ms < session.deadline_ms:
            session.task = self._timer.schedule(session.deadline_ms, partial(self._check, group_id, member_id, session))
            return
        session.task = None
        again = partial(self.extend, group_id, member_id, RETRY_MS)
        self.execute(partial(self._expire, group_id, member_id, None, "its session has expired"), again=again)

    def begin_rebalance(self, group_id: str, member_id: str, epoch: int, timeout_ms: int, what: str) -> None:
        """Begin the rebalance timeout of a member that must revoke `what` in an epoch."""
        reason = f"it has not revoked its {what} of epoch {epoch} within {timeout_ms} ms"
        self._begin("rebalance", group_id, member_id, epoch, reason, timeout_ms)

    def end_rebalance(self, group_id: str, member_id: str) -> None:
        """Cancel the rebalance timeout of a member, if one runs."""
        session = self._get(group_id, member_id)
        if session.rebalance is not None:
            session.rebalance.cancel()
            session.rebalance = None

    def begin_join(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Begin the join timeout of a member that is asked to join again, unless it runs already."""
        if self._get(group_id, member_id).join is None:
            self._begin("join", group_id, member_id, None, "it has not joined again in time", timeout_ms)

    def begin_sync(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """End the join timeout of a member that has joined, and begin its sync timeout."""
        session = self._get(group_id, member_id)
        if session.join is not None:
            session.join.cancel()
            session.join = None
        self._begin("sync", group_id, member_id, None, "it has not synced in time", timeout_ms)

    def end_sync(self, group_id: str, member_id: str) -> None:
        """Cancel the sync timeout of a member, if one runs."""
        session = self._get(group_id, member_id)
        if session.sync is not None:
            session.sync.cancel()
            session.sync = None

    def _begin(self, timer: _TimerName, group_id: str, member_id: str, epoch: int | None, reason: str, timeout_ms: int) -> None:
        """Begin a timer of a member in place of the one that runs."""
        session = self._get(group_id, member_id)
        running: TimerTask | None = getattr(session, timer)
        if running is not None:
            running.cancel()
        expire = partial(self._expire, group_id, member_id, epoch, reason)
        again = partial(self._begin, timer, group_id, member_id, epoch, reason, RETRY_MS)
        at_ms = self._timer.clock_ms + timeout_ms
        setattr(session, timer, self._timer.schedule(at_ms, lambda now_ms: self.execute(expire, again=again)))

    def execute(
        self,
        operation: Callable[[], Decision[None]],
        what: str = "that a member is removed",
        again: Callable[[], None] | None = None,
    ) -> None:
        """Write what an operation decides; if that is not possible, report it and call `again`."""

        def respond(result: CoordinatorError | None, now_ms: int) -> None:
            if result is None:
                return
            message = result.message
            self._failures.report(
                lambda count: WarningLine(f"cannot write {what}: {message}", error=message, count=count), now_ms
            )
            if again is not None and not self.is_closed:
                again()

        self._write(operation, respond)
