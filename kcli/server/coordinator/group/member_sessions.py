"""The timers of the members of groups whose assignment the coordinator computes (KIP-848, KIP-1071); the settings of a group.

    timer              begins                                            when it ends
    -----------------  ------------------------------------------------  -------------------------------------------
    session            each heartbeat, and the load of the group         the member is removed
    rebalance timeout  the member gets an assignment with revocations    the member is removed if it is in the same
                                                                         epoch

A heartbeat sets the deadline of the session and leaves its task alone; the task checks the deadline and is scheduled again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.group.classic_rebalances import Records, Write
from kcli.server.coordinator.runtime import CoordinatorError, Decision
from kcli.server.log_lines import WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.timing_wheel import Timer, TimerTask

# (group id, member id, the epoch in which the member must still be, or None, reason) -> the records that remove the member
Expire = Callable[[str, str, int | None, str], Records]


def group_int(config: ConfigReader, metadata: MetadataCache, group_id: str, broker_key: str) -> int:
    """Return a setting of a group, or the broker's, whose key begins with `group.`."""
    overrides = metadata.image.configs_of("GROUP").get(group_id, {})
    text = overrides.get(broker_key.removeprefix("group."))
    return config.get_int(broker_key) if text is None else int(text)


class _Session:
    """The timers of a member."""

    __slots__ = ("deadline_ms", "rebalance", "task")

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.task: TimerTask | None = None
        self.rebalance: TimerTask | None = None

    def cancel(self) -> None:
        """Cancel the timers."""
        for task in (self.task, self.rebalance):
            if task is not None:
                task.cancel()


class MemberSessions:
    """The timers of the members of one kind of group in a shard; `write` executes what `expire` decides when a timer ends."""

    def __init__(self, timer: Timer, write: Write, expire: Expire, report: Callable[[str], None]) -> None:
        self._timer = timer
        self._write = write
        self._expire = expire
        self._report = report
        self._sessions: dict[tuple[str, str], _Session] = {}

    def clear(self) -> None:
        """Cancel all timers."""
        for session in self._sessions.values():
            session.cancel()
        self._sessions.clear()

    def remove(self, group_id: str, member_id: str) -> None:
        """Cancel the timers of a member, if it has any."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            session.cancel()

    def extend(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Begin the session of a member anew."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = self._sessions[group_id, member_id] = _Session()
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
        self.execute(partial(self._expire, group_id, member_id, None, "its session has expired"))

    def begin_rebalance(self, group_id: str, member_id: str, epoch: int, timeout_ms: int, what: str) -> None:
        """Begin the rebalance timeout of a member that must revoke `what` in an epoch; it has a session."""
        self.end_rebalance(group_id, member_id)
        reason = f"it has not revoked its {what} of epoch {epoch} within {timeout_ms} ms"
        expire = partial(self._expire, group_id, member_id, epoch, reason)
        at_ms = self._timer.clock_ms + timeout_ms
        self._sessions[group_id, member_id].rebalance = self._timer.schedule(at_ms, lambda now_ms: self.execute(expire))

    def end_rebalance(self, group_id: str, member_id: str) -> None:
        """Cancel the rebalance timeout of a member, if one runs."""
        session = self._sessions[group_id, member_id]
        if session.rebalance is not None:
            session.rebalance.cancel()
            session.rebalance = None

    def execute(self, operation: Callable[[], Records], what: str = "that a member is removed") -> None:
        """Write what an operation decides; report it if that is not possible."""

        def respond(result: CoordinatorError | None, now_ms: int) -> None:
            if result is not None:
                self._report(WarningLine(f"cannot write {what}: {result.message}", error=result.message))

        self._write(lambda: Decision(None, operation()), respond)
