"""The operations of consumer groups of one shard (KIP-848; Kafka: the consumer part of GroupMetadataManager).

    operation              decides
    ---------------------  ---------------------------------------------------------------------------------------------
    heartbeat, epoch 0     a new member, or one that begins again; a static one takes the place of the member that has left
    heartbeat, above 0     changes of the subscription, a new target if the group has changed, the member's next assignment
    heartbeat, -1          the member leaves
    heartbeat, -2          a static member leaves for a time; its partitions stay its own until its session ends
    session timeout        the member is removed
    rebalance timeout      a member that has not revoked partitions in time is removed

Group epoch, target epoch and member epoch follow each other: a change begins a group epoch, a target is made for it at most
once in consumer.assignment.interval.ms, and members reach it by their own heartbeats (`current_assignment`). All of that is
in records; only the timers are not. A heartbeat does not wait for the topics of its pattern: they are found in time slices
(`regex_resolver`) and written by an operation of its own, which begins a group epoch if there are others than before.

A heartbeat of a member that has nothing to do makes no record. The timers are in `member_sessions`. A first heartbeat to a
classic group makes it a consumer group, and the removal of the last member of the consumer protocol makes the group a classic
one if it has other members (`group_migration`).

    refused                                                       error
    ------------------------------------------------------------  ------------------------------------------------------
    epoch above 0, group or member unknown                        GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID
    epoch of another time (the last one is accepted with the      FENCED_MEMBER_EPOCH
    partitions of the member: its answer may have been lost)
    instance id of a member that has not left, of another member  UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID
    a new member of a full group                                  GROUP_MAX_SIZE_REACHED
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_messages import LeaveResult, LeavingMember
from kcli.server.coordinator.group.classic_rebalances import Records
from kcli.server.coordinator.group.consumer_group_change import (
    FIRST_GROUP_EPOCH,
    ConsumerGroupChange,
    changed_subscription,
)
from kcli.server.coordinator.group.consumer_members import (
    check_epoch,
    check_static,
    committing_member,
    find_leaving,
    left_for_a_time,
    static_member,
    unknown_member,
)
from kcli.server.coordinator.group.current_assignment import UNREVOKED
from kcli.server.coordinator.group.group_manager import ModernGroupManager, ShardParts
from kcli.server.coordinator.group.group_migration import GroupMigration, group_of
from kcli.server.coordinator.group.group_records import consumer_current_record, consumer_group_tombstones
from kcli.server.coordinator.group.regex_resolver import RegexResolver, ResolvedRegexes, compile_regex
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.features import is_4_4
from kcli.server.log_lines import Line
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember, Partitions

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
_UUID_BYTES = 16


class ConsumerHeartbeat(NamedTuple):
    """A heartbeat; None is a field that has not changed; `topic_names` are sorted, as in records.

    `may_describe` says whether the client may see a topic.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int | None
    client_id: str
    client_host: str
    topic_names: list[str] | None
    topic_regex: str | None
    assignor: str | None
    owned: Partitions | None
    may_describe: Callable[[str], bool]

    @property
    def is_full(self) -> bool:
        """True if the member states everything: it is then answered with its whole assignment."""
        has_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms is not None and has_topics and self.owned is not None


class HeartbeatResult(NamedTuple):
    """The answer to a heartbeat; `assignment` is None if it is as before."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: dict[Uuid, list[int]] | None = None


class ConsumerGroupManager(ModernGroupManager[ConsumerGroup, ConsumerHeartbeat, HeartbeatResult]):
    """The consumer groups of one shard."""

    def __init__(self, parts: ShardParts, migration: GroupMigration) -> None:
        super().__init__(ConsumerGroup, parts)
        self._rng = parts.rng
        self._migration = migration
        self._checked: dict[str, tuple[int, int]] = {}  # when a group's topics were compared: topics_version and group epoch
        self._resolver = RegexResolver(
            *(parts.config, parts.metadata, parts.hashes, parts.timer, parts.scheduler), self._write_regexes, parts.report
        )

    def loaded(self) -> None:
        """Begin the sessions of all members, and the rebalance timeouts of those that must revoke partitions."""
        for group in self._groups():
            self._begin_sessions(group)

    def _begin_sessions(self, group: ConsumerGroup) -> None:
        for member_id in group.members:
            self._begin_timers(group, member_id)

    def _begin_timers(self, group: ConsumerGroup, member_id: str) -> None:
        self._extend_session(group.group_id, member_id)
        self._watch_revocation(group.group_id, group.members[member_id])

    def unloaded(self) -> None:
        """Cancel all timers."""
        self.sessions.close()
        self._resolver.close()
        self._checked.clear()

    def begin_change(self, group: ConsumerGroup) -> ConsumerGroupChange:
        """Return an empty change of a group."""
        return ConsumerGroupChange(group, self._metadata, self._hashes, self._wall_ms())

    # ------------------------------------------------------------------------------------------------------- heartbeat

    def _decide(self, request: ConsumerHeartbeat) -> Decision[HeartbeatResult]:
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        records: Records = ()
        group = self._state.groups.get(request.group_id)
        if request.member_epoch == 0 and not isinstance(group, ConsumerGroup):
            self._check_new(request.group_id)
            records = self._migration.upgrade(request.group_id)
            group = group_of(request.group_id, records)
        elif group is None:
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        else:
            group = self.find(request.group_id)
        self.check_size(group, request.member_id)
        change = self.begin_change(group)
        change.records += records
        member = self._find_member(change, request)
        moved = self._advance(change, member, request)
        settled = self._upgraded(group) if records else None
        if moved.member_id not in group.members:
            self.report_joined(group, moved)
        self._extend_session(request.group_id, moved.member_id)
        if moved is not member and (moved.state, moved.member_epoch) != (member.state, member.member_epoch):
            self._watch_revocation(request.group_id, moved)
        is_new = request.is_full or moved.assigned_partitions != member.assigned_partitions
        result = HeartbeatResult(
            moved.member_id,
            moved.member_epoch,
            self._group_int(request.group_id, "group.consumer.heartbeat.interval.ms"),
            {topic_id: sorted(found) for topic_id, found in moved.assigned_partitions.items()} if is_new else None,
        )
        return Decision(result, change.records, settled)

    def check_size(self, group: ConsumerGroup, member_id: str) -> None:
        """Check that a group has a member, or may get it. Raises CoordinatorError: GROUP_MAX_SIZE_REACHED."""
        max_size = self._config.get_int("group.consumer.max.size")
        if len(group.members) >= max_size and member_id not in group.members:
            text = f"The consumer group has reached its maximum capacity of {max_size} members."
            raise CoordinatorError(error_codes.GROUP_MAX_SIZE_REACHED, text)

    def _advance(
        self, change: ConsumerGroupChange, member: ConsumerGroupMember, request: ConsumerHeartbeat
    ) -> ConsumerGroupMember:
        """Take over what the member states, and let the group and the member go on from there."""
        updated = changed_subscription(
            member,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            server_assignor=request.assignor,
            subscribed_topic_names=request.topic_names,
            subscribed_topic_regex=request.topic_regex,
            client_id=request.client_id,
            client_host=request.client_host,
        )
        if updated.classic_protocols is not None:
            updated = replace(updated, classic_protocols=None, session_timeout_ms=None)
        is_new = member.member_id not in change.members
        if updated is not member or is_new:
            change.put_member(updated)
        has_new_regex = (updated.subscribed_topic_regex or "") != (member.subscribed_topic_regex or "")
        has_new_names = updated.subscribed_topic_names != member.subscribed_topic_names
        is_unresolved = False
        if has_new_regex:
            change.drop_unused_regexes()
            is_unresolved = self._check_regex(change, updated.subscribed_topic_regex or "")
        has_patterns = updated.subscribed_topic_regex or change.regexes
        if has_patterns and (is_unresolved or self._resolver.is_due(request.group_id)):
            self._resolver.begin(request.group_id, change.patterns(), request.may_describe)
        # A pattern begins a group epoch when it is resolved, except in a new group, which needs an epoch.
        is_later = is_unresolved and change.group.group_epoch >= FIRST_GROUP_EPOCH
        self.update_epoch(change, has_new_names or (has_new_regex and not is_later))
        self.update_target(change)
        return change.reconcile(updated, request.owned, has_new_names or has_new_regex)

    def _check_regex(self, change: ConsumerGroupChange, regex: str) -> bool:
        """Return whether a pattern has to be resolved. Raises CoordinatorError: INVALID_REGULAR_EXPRESSION."""
        if not regex or regex in change.regexes:
            return False
        compile_regex(regex)
        return True

    def _write_regexes(self, group_id: str, resolved: ResolvedRegexes) -> None:
        self.sessions.execute(partial(self._put_regexes, group_id, resolved), "the topics that match patterns")

    def _put_regexes(self, group_id: str, resolved: ResolvedRegexes) -> Decision[None]:
        """Take the topics of patterns, and begin a group epoch if they are others than before."""
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            self._resolver.forget(group_id)
            return Decision(None)
        change = self.begin_change(group)
        has_changed = change.put_regexes(resolved)
        if has_changed:
            self.update_epoch(change, True)
        if not change.patterns() <= change.regexes.keys():
            self._resolver.refresh_again(group_id, at_once=True)  # a member has joined with a pattern since
        return Decision(None, change.records, partial(self._regexes_written, group_id) if has_changed else None)

    def _regexes_written(self, group_id: str, code: int) -> None:
        if code and not self.sessions.is_closed:
            self._resolver.refresh_again(group_id, at_once=False)

    def update_epoch(self, change: ConsumerGroupChange, is_changed: bool) -> None:
        """Begin the next group epoch if a subscription or a topic has changed."""
        group_id, version, before = change.group.group_id, self._metadata.topics_version, change.epoch
        checked = self._checked.get(group_id)
        # A later epoch was decided, and its record could not be written.
        is_old = checked is None or checked[0] != version or checked[1] > change.epoch
        if is_changed or is_old:
            change.update_epoch(is_changed)
            self._metrics.consumer_rebalances += change.epoch != before
            self._checked[group_id] = version, change.epoch

    def update_target(self, change: ConsumerGroupChange) -> None:
        """Assign the partitions again if the group is in a later epoch, and the assignment interval is over."""
        interval_ms = self._group_int(change.group.group_id, "group.consumer.assignment.interval.ms")
        change.update_target(self._default_assignor(), interval_ms)

    def _default_assignor(self) -> str:
        return self._config.get_list("group.consumer.assignors")[0]

    def _find_member(self, change: ConsumerGroupChange, request: ConsumerHeartbeat) -> ConsumerGroupMember:
        """Return the member that sends a heartbeat, a new one if it joins. Raises CoordinatorError."""
        group, is_joining = change.group, request.member_epoch == 0
        member_id = request.member_id or str(Uuid(self._rng.randbytes(_UUID_BYTES)))
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and not is_joining:
                raise unknown_member(group.group_id, member_id)
        else:
            member = static_member(group, request.instance_id, member_id)
            if member is not None and is_joining:
                if member.member_epoch != LEAVE_STATIC_EPOCH and member.classic_protocols is None:
                    text = (
                        f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
                        f"instance id is owned by {member.member_id} member."
                    )
                    raise CoordinatorError(error_codes.UNRELEASED_INSTANCE_ID, text)
                return change.replace_member(member, member_id)
            if member is None and is_joining:
                member = group.members.get(member_id)
            else:
                check_static(member, request.instance_id, member_id)
        if member is None:
            return ConsumerGroupMember(member_id, member_epoch=0, subscribed_topic_regex="")
        check_epoch(member, request.member_epoch, request.owned)
        return member

    # ----------------------------------------------------------------------------------------------------- leave, fence

    def _leave(self, request: ConsumerHeartbeat) -> Decision[HeartbeatResult]:
        group = self.find(request.group_id)
        result = HeartbeatResult(request.member_id, request.member_epoch)
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise unknown_member(request.group_id, request.member_id)
        else:
            member = check_static(
                static_member(group, request.instance_id, request.member_id), request.instance_id, request.member_id
            )
            if request.member_epoch == LEAVE_STATIC_EPOCH:
                return Decision(result, (consumer_current_record(group.group_id, left_for_a_time(member, LEAVE_STATIC_EPOCH)),))
        fenced = self._fence(group, (member,), "it has left")
        return Decision(result, fenced.records, fenced.settled)

    def remove_members(self, group: ConsumerGroup, leaving: Sequence[LeavingMember]) -> Decision[list[LeaveResult]]:
        """Remove members that leave (LeaveGroup), all of them in one group epoch; each one has its own error."""
        results: list[LeaveResult] = []
        removed: dict[str, ConsumerGroupMember] = {}
        for one in leaving:
            code = error_codes.NONE
            try:
                member = find_leaving(group, one)
                removed[member.member_id] = member
            except CoordinatorError as error:
                code = error.code
            results.append(LeaveResult(code, one.member_id, one.instance_id))
        if not removed:
            return Decision(results)
        fenced = self._fence(group, list(removed.values()), "it is removed")
        return Decision(results, fenced.records, fenced.settled)

    def _fence(self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember], reason: str) -> Decision[None]:
        """Remove members."""
        removed = [member.member_id for member in members]
        for member_id in removed:
            self._report_removed(group.group_id, member_id, reason)
        change = self.begin_change(group)
        if self._migration.can_downgrade(group, removed, is_replaced=False):
            return Decision(None, change.records, self.downgrade(change, removed, None, "the last consumer has left"))
        change.remove_members(removed)
        change.update_epoch(True)
        if is_4_4(self._metadata.image.features):
            change.end_target()
        return Decision(None, change.records, self._removed(group.group_id, removed))

    # -------------------------------------------------------------------------------------------------------- migration

    def _upgraded(self, group: ConsumerGroup) -> Callable[[int], None]:
        """End a classic group that is a consumer group now; return what is to be called when that is committed, or is not."""
        self._migration.classic.end(group.group_id, error_codes.REBALANCE_IN_PROGRESS)
        for member in group.members.values():
            if member.session_timeout_ms is not None:
                self.sessions.extend(group.group_id, member.member_id, member.session_timeout_ms)
        self._report(Line(f"group {group.group_id} is a consumer group now", group=group.group_id))
        return partial(self._migrated, group.group_id)

    def downgrade(
        self, change: ConsumerGroupChange, removed: Sequence[str], successor: ConsumerGroupMember | None, reason: str | None
    ) -> Callable[[int], None]:
        """Make a group a classic one, which rebalances if there is a reason; return what is to be called as by _upgraded."""
        group = change.group
        made, records = self._migration.downgrade(group, removed, successor, self._wall_ms())
        change.records += records
        for member_id in group.members:
            self.sessions.remove(group.group_id, member_id)
        self._checked.pop(group.group_id, None)
        self._resolver.forget(group.group_id)
        self._report(Line(f"group {group.group_id} is a classic group now", group=group.group_id))
        self._migration.classic.adopt(made, reason)
        return partial(self._migrated, group.group_id)

    def _migrated(self, group_id: str, code: int) -> None:
        """Coordinate a group as its records describe it if its migration could not be written."""
        if not code or self.sessions.is_closed:
            return
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._migration.classic.end(group_id, code)
            self._begin_sessions(group)
        else:
            self._migration.classic.restore(group_id)

    # --------------------------------------------------------------------------------------------------------- timeouts

    def _extend_session(self, group_id: str, member_id: str) -> None:
        self.sessions.extend(group_id, member_id, self._group_int(group_id, "group.consumer.session.timeout.ms"))

    def _watch_revocation(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Begin the rebalance timeout of a member that must revoke partitions, end that of any other."""
        if member.state == UNREVOKED and member.classic_protocols is None:
            timeout_ms = member.rebalance_timeout_ms
            self.sessions.begin_rebalance(group_id, member.member_id, member.member_epoch, timeout_ms, "partitions")
        else:
            self.sessions.end_rebalance(group_id, member.member_id)

    def _remove(self, group: ConsumerGroup, member_id: str, reason: str) -> Decision[None]:
        return self._fence(group, (group.members[member_id],), reason)

    # ------------------------------------------------------------------------------------------------- offsets, admin

    def validate_offset_commit(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int | None,
        partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Check that a member may commit offsets of partitions; `version` is that of OffsetCommit, None in a transaction.

        An epoch before the present one is accepted for partitions that the member has had since then. Raises CoordinatorError.
        """
        member = committing_member(group, member_id, instance_id, epoch, version)
        if member is not None:
            for topic, index in partitions:
                self._check_assigned(member, epoch, topic, index)

    def _check_assigned(self, member: ConsumerGroupMember, epoch: int, topic: str, index: int) -> None:
        topic_id = self._metadata.image.topic_ids.get(topic)
        for found in (member.assigned_partitions, member.partitions_pending_revocation):
            since = found.get(topic_id, {}).get(index) if topic_id is not None else None
            if since is not None and since <= epoch:
                return
        text = f"Partition {topic}-{index} was not assigned to the member in epoch {epoch}."
        raise CoordinatorError(error_codes.STALE_MEMBER_EPOCH, text)

    def subscribed_topics(self, group: ConsumerGroup) -> frozenset[str]:
        """Return the names of the topics that a group is subscribed to: their offsets are kept."""
        return frozenset(self.begin_change(group).all_names())

    def assignor_name(self, group: ConsumerGroup) -> str:
        """Return the name of the assignor that a group uses."""
        return self.begin_change(group).preferred_assignor(self._default_assignor())

    def delete(self, group: ConsumerGroup) -> Iterator[CoordinatorRecord]:
        """Return the records that delete a group. Raises CoordinatorError: NON_EMPTY_GROUP."""
        if group.members:
            raise CoordinatorError(error_codes.NON_EMPTY_GROUP, f"group {group.group_id} is not empty")
        self._checked.pop(group.group_id, None)
        self._resolver.forget(group.group_id)
        return consumer_group_tombstones(group, {})
