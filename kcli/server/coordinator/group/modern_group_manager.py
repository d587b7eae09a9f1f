"""What the managers of consumer, share and streams groups have in common (Kafka: ModernGroup)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Generic

from kcli.protocol import error_codes
from kcli.server.coordinator.group.member_sessions import MemberSessions, group_int
from kcli.server.coordinator.group.shard_parts import ShardParts
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.state.group_state import AnyGroup


class ModernGroupManager(ABC, Generic[AnyGroup]):
    """The groups of one kind in one shard, and the sessions of their members."""

    def __init__(self, group_type: type[AnyGroup], parts: ShardParts) -> None:
        self._group_type: type[AnyGroup] = group_type
        self._state = parts.state
        self._config = parts.config
        self._metadata = parts.metadata
        self._hashes = parts.hashes
        self._timer = parts.timer
        self._metrics = parts.metrics
        self._report = parts.report
        self._check_new = parts.check_new
        self.sessions = MemberSessions(parts.timer, parts.write, self._expire, parts.report)

    def _groups(self) -> Iterator[AnyGroup]:
        return (group for group in self._state.groups.values() if isinstance(group, self._group_type))

    def find(self, group_id: str, missing: str = "Group {} not found.") -> AnyGroup:
        """Return a group. Raises CoordinatorError: GROUP_ID_NOT_FOUND, with the text `missing` if there is no such group."""
        group = self._state.groups.get(group_id)
        if isinstance(group, self._group_type):
            return group
        text = missing.format(group_id) if group is None else f"Group {group_id} is not a {self._group_type.kind} group."
        raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, text)

    def _group_int(self, group_id: str, broker_key: str) -> int:
        return group_int(self._config, self._metadata, group_id, broker_key)

    def _wall_ms(self) -> int:
        return self._timer.wall.at(self._timer.clock_ms)

    def _expire(self, group_id: str, member_id: str, epoch: int | None, reason: str) -> Decision[None]:
        """Remove a member whose time is over, if it is still there, in this epoch if one is given."""
        group = self._state.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, self._group_type) else None
        if not isinstance(group, self._group_type) or member is None:
            self.sessions.remove(group_id, member_id)
            return Decision(None)
        return self._remove(group, member_id, reason) if epoch in (None, member.member_epoch) else Decision(None)

    def _removed(self, group_id: str, member_ids: Collection[str]) -> Callable[[int], None]:
        """Cancel the timers of members that are removed; return what is to be called with 0 or the error code of the write.

        After an error the members are still in the group, and their timers begin again.
        """
        for member_id in member_ids:
            self.sessions.remove(group_id, member_id)
        return partial(self._restore, group_id, member_ids)

    def _restore(self, group_id: str, member_ids: Collection[str], code: int) -> None:
        group = self._state.groups.get(group_id)
        if not code or self.sessions.is_closed or not isinstance(group, self._group_type):
            return
        for member_id in member_ids:
            if member_id in group.members:
                self._begin_timers(group, member_id)

    @abstractmethod
    def _begin_timers(self, group: AnyGroup, member_id: str) -> None:
        """Begin the session of a member, which the group has, and the rebalance timeout if it must revoke anything."""

    @abstractmethod
    def _remove(self, group: AnyGroup, member_id: str, reason: str) -> Decision[None]:
        """Remove a member, which the group has."""
