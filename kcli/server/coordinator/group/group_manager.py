"""What the managers of the groups of one shard have in common.

part                of
------------------  --------------------------------------------------------------------------------
ShardParts          all managers: the shard's state, and the parts of its broker
ModernGroupManager  those of consumer, share and streams groups (Kafka: ModernGroup)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from kcli.log.rng import Random
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.group_config import GroupConfigs
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.group.classic_rebalances import WriteShard
from kcli.server.coordinator.group.member_sessions import MemberSessions
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.log_lines import LimitedLines, Line
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.scheduler import Scheduler
from kcli.state.group_state import AnyGroup, GroupState
from kcli.state.groups import ModernGroupMember

# A client gets one of these for an epoch or an instance id that another one has now.
_FENCED = frozenset((error_codes.FENCED_MEMBER_EPOCH, error_codes.FENCED_INSTANCE_ID, error_codes.UNRELEASED_INSTANCE_ID))


class ShardParts(NamedTuple):
    """The parts of a shard and of its broker; `write` executes the operations of timers, `report` writes a log line.

    `limit` is that of the groups of the broker; `scheduler` runs long work in time slices.
    """

    state: GroupState
    config: ConfigReader
    metadata: MetadataCache
    hashes: TopicHashes
    timer: Timer
    rng: Random
    write: WriteShard
    metrics: GroupMetrics
    report: Callable[[str], None]
    limit: CoordinatorLimit
    scheduler: Scheduler

    def check_new(self, group_id: str) -> None:
        """Check that a group exists, or that one more may be made. Raises CoordinatorError: POLICY_VIOLATION."""
        if group_id not in self.state.groups:
            self.limit.check(f"the new group {group_id}")


class Heartbeat(Protocol):
    """What the heartbeats of all kinds of groups have."""

    @property
    def group_id(self) -> str:
        """The group."""
        ...

    @property
    def member_id(self) -> str:
        """The member, "" if the group gives a new one its id."""
        ...


AnyHeartbeat = TypeVar("AnyHeartbeat", bound=Heartbeat)
AnyResult = TypeVar("AnyResult")


class ModernGroupManager(ABC, Generic[AnyGroup, AnyHeartbeat, AnyResult]):
    """The groups of one kind in one shard, and the sessions of their members."""

    def __init__(self, group_type: type[AnyGroup], parts: ShardParts) -> None:
        self._group_type: type[AnyGroup] = group_type
        self._state = parts.state
        self._config = parts.config
        self._metadata = parts.metadata
        self._group_configs = GroupConfigs(parts.config, parts.metadata)
        self._hashes = parts.hashes
        self._timer = parts.timer
        self._metrics = parts.metrics
        self._report = parts.report
        self._check_new = parts.check_new
        self._fenced = LimitedLines(parts.report)
        self._noun = "share group" if group_type.kind == "share" else "group"
        self.sessions = MemberSessions(parts.timer, parts.write, self._expire, parts.report)

    def heartbeat(self, request: AnyHeartbeat) -> Decision[AnyResult]:
        """Decide a heartbeat, and report if it is refused because the member is fenced. Raises CoordinatorError."""
        try:
            return self._decide(request)
        except CoordinatorError as error:
            if error.code in _FENCED:
                self._fenced.report(partial(self._fenced_line, request, error.message), self._timer.clock_ms)
            raise

    @abstractmethod
    def _decide(self, request: AnyHeartbeat) -> Decision[AnyResult]:
        """Decide a heartbeat. Raises CoordinatorError."""

    def _fenced_line(self, request: AnyHeartbeat, message: str, count: int) -> Line:
        more = f" ({count} heartbeats since the last such line)" if count > 1 else ""
        text = f"{self._noun} {request.group_id} fences member {request.member_id}: {message}{more}"
        return Line(text, group=request.group_id, member=request.member_id, count=count)

    def report_joined(self, group: AnyGroup, member: ModernGroupMember) -> None:
        """Report a member that the group does not have yet."""
        group_id, member_id, client = group.group_id, member.member_id, f"{member.client_id} at {member.client_host}"
        instance = "" if member.instance_id is None else f", instance id {member.instance_id}"
        text = f"{self._noun} {group_id} gets member {member_id} in epoch {member.member_epoch}: client {client}{instance}"
        self._report(Line(text, group=group_id, member=member_id, epoch=member.member_epoch, client=member.client_id))

    def _report_removed(self, group_id: str, member_id: str, reason: str) -> None:
        text = f"{self._noun} {group_id} loses member {member_id}: {reason}"
        self._report(Line(text, group=group_id, member=member_id, reason=reason))

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
        return self._group_configs.get_int(group_id, broker_key)

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
