"""Rebalances of classic groups: when they begin and end, and the timers of groups and members (Kafka: GroupMetadataManager).

    timer              runs for                                        when it expires
    -----------------  ----------------------------------------------  ----------------------------------------------------
    session            the session timeout after a member's request    the member is removed, unless it waits for an answer
    (of a new member)  5 minutes, until its first rebalance is done    the member is removed; a live client joins again
    pending member     its session timeout                             the member id is forgotten
    join, initial      group.initial.rebalance.delay.ms, again while   the rebalance ends with the members that have joined
                       members join, up to the rebalance timeout
    join, later        the longest rebalance timeout of the members    dynamic members that have not joined are removed
    sync               the same, from the end of the joins             members that have not synced are removed, and the
                                                                       group rebalances again

A heartbeat only sets the deadline of its member. The task of the session, when it runs before the deadline, is scheduled again
for the deadline: a member costs one task in a session timeout, whatever the number of its heartbeats.

Methods that may end the last generation of a group return records to be written: that of the group which is now empty. If that
record is lost, the last generation with members is loaded by the next coordinator, where its members time out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from kcli.server.coordinator.group.classic_messages import JoinResult, RespondJoin, SyncResult
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.server.log_lines import Line, WarningLine
from kcli.server.metrics.group_metrics import GroupMetrics

_INITIAL_DELAY = "group.initial.rebalance.delay.ms"
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

Records = Sequence[CoordinatorRecord]
# Executes an operation of the shard and calls the function with its response when the records are committed.
WriteShard = Callable[[Callable[[], Decision[None]], Respond[None]], None]


class ClassicRebalances:
    """The rebalances of the groups of one shard; `write` executes the operations of its timers."""

    def __init__(
        self, config: ConfigReader, timer: Timer, write: WriteShard, metrics: GroupMetrics, report: Callable[[str], None]
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._timer = timer
        self._write = write
        self._report = report

    def wall_ms(self) -> int:
        """Return the wall clock's time, for records."""
        return self._timer.wall.at(self._timer.clock_ms)

    # -------------------------------------------------------------------------------------------------------- sessions

    def extend_session(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Let the session of a member begin again."""
        self._set_deadline(group, member, self._timer.clock_ms + member.session_timeout_ms)

    def _set_deadline(self, group: ClassicGroup, member: ClassicGroupMember, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        task = member.session_task
        if task is None or deadline_ms < task.at_ms:
            if task is not None:
                task.cancel()
            member.session_task = self._timer.schedule(deadline_ms, partial(self._check_session, group, member))

    def _check_session(self, group: ClassicGroup, member: ClassicGroupMember, now_ms: int) -> None:
        member.session_task = None
        if now_ms < member.deadline_ms:
            self._set_deadline(group, member, member.deadline_ms)
            return
        is_waiting = member.member_id in group.awaiting_join or member.member_id in group.awaiting_sync
        if member.is_new or not is_waiting:
            self._execute(partial(self._expire_member, group, member.member_id))

    def _expire_member(self, group: ClassicGroup, member_id: str) -> Records:
        group.remove(member_id)
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return self.prepare(group, f"the session of member {member_id} has expired")
        return self.complete_join(group) if group.has_all_members_joined else ()

    def add_pending_member(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Keep the id of a member that is to join with it within a time."""
        expire = partial(self._expire_pending_member, group, member_id)
        group.pending_join[member_id] = self._timer.schedule(
            self._timer.clock_ms + timeout_ms, lambda now_ms: self._execute(expire)
        )

    def _expire_pending_member(self, group: ClassicGroup, member_id: str) -> Records:
        group.remove(member_id)
        is_complete = group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined
        return self.complete_join(group) if is_complete else ()

    def _execute(self, operation: Callable[[], Records]) -> None:
        """Execute the operation of a timer."""

        def respond(result: CoordinatorError | None, now_ms: int) -> None:
            if result is not None:
                self._report(WarningLine(f"cannot write a change of a group: {result.message}", error=result.message))

        self._write(lambda: Decision(None, operation()), respond)

    # ------------------------------------------------------------------------------------------------------------ join

    def add_member(
        self, group: ClassicGroup, member: ClassicGroupMember, protocol_type: str, respond: RespondJoin, reason: str
    ) -> Records:
        """Add a new member whose join waits, and rebalance the group.

        A session does not matter yet: the client has no member id for heartbeats. Clients whose requests have timed out join
        again as other members, so new members are removed after a time.
        """
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.previous_state is ClassicGroupState.EMPTY:
            group.new_member_added = True
        member.is_new = True
        group.add(member, protocol_type, respond)
        self._set_deadline(group, member, self._timer.clock_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self.rebalance(group, reason)

    def rebalance(self, group: ClassicGroup, reason: str) -> Records:
        """Begin a rebalance, or end the one that has begun if all members have joined."""
        return self.prepare(group, reason) if group.can_rebalance else self.end_join_phase(group)

    def prepare(self, group: ClassicGroup, reason: str, refusal: int = error_codes.REBALANCE_IN_PROGRESS) -> Records:
        """Begin a rebalance: all members have to join; syncs that wait are answered with the error `refusal`."""
        refused: list[str] = []
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            refused = list(group.awaiting_sync)
            for member in group.members.values():
                member.assignment = b""
        for member_id in refused:
            self.extend_session(group, group.members[member_id])
        if group.sync_task is not None:
            group.sync_task.cancel()
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE, self.wall_ms())
        text = f"group {group.group_id} prepares to rebalance, after generation {group.generation_id}: {reason}"
        self._report(Line(text, group=group.group_id, generation=group.generation_id, reason=reason))
        records: Records = ()
        if group.previous_state is ClassicGroupState.EMPTY:
            delay_ms = self._config.get_int(_INITIAL_DELAY)
            self._wait_for_more_members(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.has_all_members_joined:
            records = self.complete_join(group)
        else:
            self._wait_for_joins(group)
        for member_id in refused:
            group.respond_sync(member_id, SyncResult(refusal))
        return records

    def _schedule_join(self, group: ClassicGroup, delay_ms: int, operation: Callable[[], Records]) -> None:
        if group.join_task is not None:
            group.join_task.cancel()
        group.join_task = self._timer.schedule(self._timer.clock_ms + delay_ms, lambda now_ms: self._execute(operation))

    def _wait_for_joins(self, group: ClassicGroup) -> None:
        self._schedule_join(group, group.rebalance_timeout_ms, partial(self.complete_join, group))

    def _wait_for_more_members(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        self._schedule_join(group, delay_ms, partial(self._end_initial_delay, group, delay_ms, remaining_ms))

    def _end_initial_delay(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> Records:
        if not group.new_member_added or not remaining_ms:
            return self.complete_join(group)
        group.new_member_added = False
        next_ms = min(self._config.get_int(_INITIAL_DELAY), remaining_ms)
        self._wait_for_more_members(group, next_ms, max(remaining_ms - delay_ms, 0))
        return ()

    def end_join_phase(self, group: ClassicGroup) -> Records:
        """End the joins if all members have joined; the initial rebalance always takes its time."""
        is_open = group.state is ClassicGroupState.PREPARING_REBALANCE and group.previous_state is not ClassicGroupState.EMPTY
        return self.complete_join(group) if is_open and group.has_all_members_joined else ()

    def complete_join(self, group: ClassicGroup) -> Records:
        """Begin the next generation with the members that have joined, and with static members that have not.

        If only static members are left and none has joined, they get another rebalance timeout; their sessions may expire.
        """
        if group.join_task is not None:
            group.join_task.cancel()
        for member in list(group.members.values()):
            if member.instance_id is None and member.member_id not in group.awaiting_join:
                group.remove(member.member_id)
        if not group.elect_leader() and group.members:
            self._wait_for_joins(group)
            return ()
        group.next_generation(self.wall_ms())
        count = len(group.members)
        members = "1 member" if count == 1 else f"{count} members"
        text = f"group {group.group_id} has {members} in generation {group.generation_id}"
        self._report(Line(text, group=group.group_id, generation=group.generation_id, members=count))
        if not group.members:
            return (group.record({}),)
        results = [(member_id, group.join_result(member_id)) for member_id in group.awaiting_join]
        for member in group.members.values():
            member.is_new = False
            self.extend_session(group, member)
        group.pending_sync = set(group.members)
        group.sync_task = self._timer.schedule(
            self._timer.clock_ms + group.rebalance_timeout_ms, lambda now_ms: self._execute(partial(self._expire_syncs, group))
        )
        for member_id, result in results:
            group.respond_join(member_id, result)
        return ()

    # ------------------------------------------------------------------------------------------------------------ sync

    def _expire_syncs(self, group: ClassicGroup) -> Records:
        late = sorted(group.pending_sync)
        for member_id in late:
            group.remove(member_id)
        return self.prepare(group, f"members have not synced in time: {', '.join(late)}") if late else ()

    def stabilize(self, group: ClassicGroup, assignment: Mapping[str, bytes]) -> None:
        """Give all members their assignments, which are committed, and answer the syncs that wait."""
        for member in group.members.values():
            member.assignment = assignment.get(member.member_id, b"")
        group.transition_to(ClassicGroupState.STABLE, self.wall_ms())
        self._metrics.completed_rebalances += 1
        synced = [group.members[member_id] for member_id in group.awaiting_sync]
        for member in synced:
            self.extend_session(group, member)
        for member in synced:
            group.respond_sync(member.member_id, group.sync_result(member))

    # ------------------------------------------------------------------------------------------------------------- end

    def end(self, group: ClassicGroup, code: int) -> None:
        """End a group that is not coordinated any longer: cancel its timers and answer what waits with an error."""
        group.transition_to(ClassicGroupState.DEAD, self.wall_ms())
        tasks = [group.join_task, group.sync_task, *group.pending_join.values()]
        for task in (*tasks, *(member.session_task for member in group.members.values())):
            if task is not None:
                task.cancel()
        for member_id in list(group.awaiting_join):
            group.respond_join(member_id, JoinResult(code, member_id))
        for member_id in list(group.awaiting_sync):
            group.respond_sync(member_id, SyncResult(code))
