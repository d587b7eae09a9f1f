"""The sessions of the members of one shard's groups: a member without a heartbeat for a time is removed.

A heartbeat sets a deadline; the one task of a session checks the deadline and is scheduled again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.server.timing_wheel import Timer, TimerTask


class _Session:
    __slots__ = ("deadline_ms", "task")

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.task: TimerTask | None = None


class MemberSessions:
    """Sessions by group and member. `timeout_ms` is that of a group; `expire(group_id, member_id)` ends a session."""

    def __init__(self, timer: Timer, timeout_ms: Callable[[str], int], expire: Callable[[str, str], None]) -> None:
        self._timer = timer
        self._timeout_ms = timeout_ms
        self._expire = expire
        self._sessions: dict[tuple[str, str], _Session] = {}

    def extend(self, group_id: str, member_id: str) -> None:
        """Begin a session, or let it last for its timeout from now on."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = self._sessions[group_id, member_id] = _Session()
        session.deadline_ms = self._timer.clock_ms + self._timeout_ms(group_id)
        if session.task is None or session.deadline_ms < session.task.at_ms:
            if session.task is not None:
                session.task.cancel()
            self._schedule(group_id, member_id, session)

    def _schedule(self, group_id: str, member_id: str, session: _Session) -> None:
        session.task = self._timer.schedule(session.deadline_ms, partial(self._check, group_id, member_id, session))

    def _check(self, group_id: str, member_id: str, session: _Session, now_ms: int) -> None:
        if now_ms < session.deadline_ms:
            self._schedule(group_id, member_id, session)
        else:
            session.task = None
            self._expire(group_id, member_id)

    def end(self, group_id: str, member_id: str) -> None:
        """End the session of a member that leaves."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None and session.task is not None:
            session.task.cancel()

    def end_all(self) -> None:
        """End all sessions: the shard is unloaded."""
        for group_id, member_id in list(self._sessions):
            self.end(group_id, member_id)
