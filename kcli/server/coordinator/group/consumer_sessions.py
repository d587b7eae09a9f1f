"""The timers of the members of consumer groups.

    timer      of                         runs for                                      begins with
    ---------  -------------------------  --------------------------------------------  ---------------------------------
    session    every member               the session timeout                           every heartbeat, and a load
    rebalance  members of the consumer    the member's rebalance timeout                the state UNREVOKED_PARTITIONS
               protocol
    join       members of the classic     the member's rebalance timeout                the answer REBALANCE_IN_PROGRESS
               protocol
    sync       members of the classic     the member's rebalance timeout                the answer to a join
               protocol

A member whose timer expires is removed from its group. A heartbeat only sets the deadline of a session: the one task of the
session checks the deadline and is scheduled again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.server.coordinator.group.current_assignment import UNREVOKED
from kcli.server.timing_wheel import Timer, TimerTask
from kcli.state.groups import ConsumerMember

# Removes a member of a group whose time is over, in this epoch if one is given; the last argument is the reason.
Expire = Callable[[str, str, int | None, str], None]


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


class ConsumerSessions:
    """The timers of the members of one shard's consumer groups."""

    def __init__(self, timer: Timer, expire: Expire) -> None:
        self._timer = timer
        self._expire = expire
        self._sessions: dict[tuple[str, str], _Session] = {}

    def clear(self) -> None:
        """Cancel all timers."""
        for session in self._sessions.values():
            session.cancel()
        self._sessions.clear()

    def remove(self, group_id: str, member_id: str) -> None:
        """Cancel the timers of a member."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            session.cancel()

    def _get(self, group_id: str, member_id: str) -> _Session:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = self._sessions[group_id, member_id] = _Session()
        return session

    def extend(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Let the session of a member begin again."""
        session = self._get(group_id, member_id)
        session.deadline_ms = deadline_ms = self._timer.clock_ms + timeout_ms
        if session.task is None or deadline_ms < session.task.at_ms:
            if session.task is not None:
                session.task.cancel()
            session.task = self._timer.schedule(deadline_ms, partial(self._check, group_id, member_id, session))

    def _check(self, group_id: str, member_id: str, session: _Session, now_ms: int) -> None:
        if now_ms < session.deadline_ms:
            session.task = self._timer.schedule(session.deadline_ms, partial(self._check, group_id, member_id, session))
            return
        session.task = None
        self._expire(group_id, member_id, None, "its session has expired")

    def watch_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """Begin the rebalance timeout of a member that must revoke partitions, end that of any other."""
        session = self._get(group_id, member.member_id)
        if session.rebalance is not None:
            session.rebalance.cancel()
            session.rebalance = None
        if member.state == UNREVOKED and member.classic_protocols is None:
            epoch, timeout_ms = member.member_epoch, member.rebalance_timeout_ms
            reason = f"it has not revoked its partitions of epoch {epoch} within {timeout_ms} ms"
            session.rebalance = self._schedule(group_id, member.member_id, epoch, timeout_ms, reason)

    def wait_for_join(self, group_id: str, member: ConsumerMember) -> None:
        """Begin the join timeout of a member that is asked to join again, unless it runs already."""
        session = self._get(group_id, member.member_id)
        if session.join is None:
            timeout_ms = member.rebalance_timeout_ms
            session.join = self._schedule(group_id, member.member_id, None, timeout_ms, "it has not joined again in time")

    def wait_for_sync(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """End the join timeout of a member that has joined, and begin its sync timeout."""
        session = self._get(group_id, member_id)
        if session.join is not None:
            session.join.cancel()
            session.join = None
        if session.sync is not None:
            session.sync.cancel()
        session.sync = self._schedule(group_id, member_id, None, timeout_ms, "it has not synced in time")

    def synced(self, group_id: str, member_id: str) -> None:
        """End the sync timeout of a member."""
        session = self._get(group_id, member_id)
        if session.sync is not None:
            session.sync.cancel()
            session.sync = None

    def _schedule(self, group_id: str, member_id: str, epoch: int | None, timeout_ms: int, reason: str) -> TimerTask:
        at_ms = self._timer.clock_ms + timeout_ms
        return self._timer.schedule(at_ms, lambda now_ms: self._expire(group_id, member_id, epoch, reason))
