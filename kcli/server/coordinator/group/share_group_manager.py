"""The operations of share groups of one shard (KIP-932; Kafka: the share part of GroupMetadataManager).

    operation              decides
    ---------------------  ---------------------------------------------------------------------------------------------
    heartbeat, epoch 0     a new member, or one that begins again
    heartbeat, above 0     changes of the subscription, a new target if the group has changed, the member's next assignment
    heartbeat, -1          the member leaves
    session timeout        the member is removed
    topics                 which partitions are being initialized, are initialized, or are being deleted

A partition is assigned when the share coordinator has its state. So a heartbeat also decides which subscribed partitions are
to be initialized; the caller has the persister do that, then `complete_initialization` or `abandon_initialization`. What has
been initializing for group.share.initialize.retry.interval.ms is initialized again. When more partitions are initialized than
the target has, the next heartbeat begins a group epoch. Members have no partitions to revoke: a member has its target at once.

    refused                                                       error
    ------------------------------------------------------------  ------------------------------------------------------
    epoch above 0, group or member unknown; a group of another    GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID
    protocol, also if it is empty
    epoch that is neither the present nor the previous one        FENCED_MEMBER_EPOCH
    a new member of a full group                                  GROUP_MAX_SIZE_REACHED
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.assignors import MemberSpec, Targets
from kcli.server.coordinator.group.classic_rebalances import Records
from kcli.server.coordinator.group.consumer_group_change import FIRST_GROUP_EPOCH, is_assignment_early
from kcli.server.coordinator.group.consumer_members import unknown_member
from kcli.server.coordinator.group.group_manager import ModernGroupManager, ShardParts
from kcli.server.coordinator.group.group_records import (
    ShareIndexes,
    ShareTopics,
    merge,
    share_current_record,
    share_group_record,
    share_group_tombstones,
    share_member_record,
    share_member_tombstones,
    share_target_epoch_record,
    share_target_record,
    share_topics_record,
)
from kcli.server.coordinator.group.share_assignor import assign_shares
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.features import is_4_4
from kcli.state.groups import Partitions, ShareGroup, ShareGroupMember

LEAVE_EPOCH = -1
FIRST_TARGET_EPOCH = 1  # of a group that has no target yet
_NON_EMPTY = "The group is not empty."


class ShareHeartbeat(NamedTuple):
    """A heartbeat; None is a field that has not changed; `topic_names` are sorted, as in records."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: list[str] | None


class Initialization(NamedTuple):
    """Partitions whose states are to be initialized in a state epoch; `known_topics` are those that the group already read."""

    group_id: str
    state_epoch: int
    partitions: ShareIndexes
    known_topics: frozenset[Uuid] = frozenset()


class ShareHeartbeatResult(NamedTuple):
    """The answer to a heartbeat; `assignment` is None if it is as before. `initialization` follows the answer."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    initialization: Initialization | None = None


class _Change:
    """A change of `group` by one heartbeat: its records, and its epoch and members after it."""

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.records: list[CoordinatorRecord] = []
        self.epoch = max(group.group_epoch, FIRST_GROUP_EPOCH)
        self.target_epoch = max(group.assignment_epoch, FIRST_TARGET_EPOCH)
        self.members = group.members
        self.targets: Targets = group.target_assignment

    def names(self) -> set[str]:
        """Return the names of the topics that any member is subscribed to."""
        return {name for member in self.members.values() for name in member.subscribed_topic_names}


class ShareGroupManager(ModernGroupManager[ShareGroup, ShareHeartbeat, ShareHeartbeatResult]):
    """The share groups of one shard."""

    def __init__(self, parts: ShardParts) -> None:
        super().__init__(ShareGroup, parts)
        self._checked: dict[str, tuple[int, int]] = {}  # when a group's topics were compared: topics_version and group epoch
        self._initializing_since: dict[str, dict[Uuid, int]] = {}  # by group and topic
        # What _is_assignment_pending returned for a group, and the topics, members and targets that it was called with.
        self._pending: dict[str, tuple[tuple[object, ...], bool]] = {}
        self._loaded_ms = 0

    def loaded(self) -> None:
        """Begin the sessions of all members."""
        self._loaded_ms = self._timer.clock_ms
        for group in self._groups():
            for member_id in group.members:
                self._begin_timers(group, member_id)

    def unloaded(self) -> None:
        """Cancel all timers."""
        self.sessions.close()
        self._checked.clear()
        self._pending.clear()
        self._initializing_since.clear()

    def find_empty(self, group_id: str) -> ShareGroup:
        """Return a group without members. Raises CoordinatorError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.find(group_id)
        if group.members:
            raise CoordinatorError(error_codes.NON_EMPTY_GROUP, _NON_EMPTY)
        return group

    def _find_or_make(self, group_id: str) -> ShareGroup:
        self._check_new(group_id)
        return ShareGroup(group_id) if group_id not in self._state.groups else self.find(group_id)

    # ------------------------------------------------------------------------------------------------------- heartbeat

    def _decide(self, request: ShareHeartbeat) -> Decision[ShareHeartbeatResult]:
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        group_id, is_joining = request.group_id, request.member_epoch == 0
        if request.group_id not in self._state.groups and not is_joining:
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        group = self._find_or_make(group_id)
        max_size = self._config.get_int("group.share.max.size")
        member = group.members.get(request.member_id)
        if len(group.members) >= max_size and member is None:
            text = f"The share group has reached its maximum capacity of {max_size} members."
            raise CoordinatorError(error_codes.GROUP_MAX_SIZE_REACHED, text)
        if member is None and not is_joining:
            raise unknown_member(group_id, request.member_id)
        if member is None:
            member = ShareGroupMember(request.member_id, member_epoch=0)
        _check_epoch(member, request.member_epoch)
        change = _Change(group)
        has_changed = self._subscribe(change, member, request)
        updated = change.members[request.member_id]
        has_changed = self._update_epoch(change, has_changed)
        self._update_target(change)
        moved = self._reconcile(change, updated, has_changed)
        self._begin_timers(group, moved.member_id)
        if moved.member_id not in group.members:
            self.report_joined(group, moved)
        initialization = self._begin_initialization(change)
        is_new = is_joining or request.topic_names is not None or moved.assigned_partitions != member.assigned_partitions
        result = ShareHeartbeatResult(
            moved.member_id,
            moved.member_epoch,
            self._group_int(group_id, "group.share.heartbeat.interval.ms"),
            moved.assigned_partitions if is_new else None,
            initialization,
        )
        return Decision(result, change.records)

    def _subscribe(self, change: _Change, member: ShareGroupMember, request: ShareHeartbeat) -> bool:
        """Take over what the member states; return whether its topics have changed."""
        updated = replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            subscribed_topic_names=member.subscribed_topic_names if request.topic_names is None else request.topic_names,
            client_id=request.client_id,
            client_host=request.client_host,
        )
        if member.member_id not in change.members or updated != member:
            change.members = change.members | {member.member_id: updated}
            change.records.append(share_member_record(change.group.group_id, updated))
        return updated.subscribed_topic_names != member.subscribed_topic_names

    def _update_epoch(self, change: _Change, has_changed: bool) -> bool:
        """Begin the next group epoch if subscriptions, topics or initialized partitions have changed; return whether so."""
        group, version = change.group, self._metadata.topics_version
        if change.epoch <= change.target_epoch:
            has_changed = has_changed or self._has_pending_assignment(group)
        checked = self._checked.get(group.group_id)
        is_old = checked is None or checked[0] != version or checked[1] > change.epoch
        if not has_changed and not is_old:
            return False
        found = self._hashes.group_hash(change.names())
        has_changed = has_changed or found != group.metadata_hash
        if has_changed:
            change.epoch += 1
            self._metrics.share_rebalances += 1
            change.records.append(share_group_record(group.group_id, change.epoch, found))
        self._checked[group.group_id] = version, change.epoch
        return has_changed

    def _has_pending_assignment(self, group: ShareGroup) -> bool:
        """Return what _is_assignment_pending does, from memory if the topics, members and targets are the same.

        Records replace these objects. A group epoch would not do: after a failed append it is given to another change.
        """
        parts = (group.topics, tuple(group.members.values()), tuple(group.target_assignment.values()))
        known = self._pending.get(group.group_id)
        if known is None or known[0] != parts:
            known = self._pending[group.group_id] = parts, _is_assignment_pending(group)
        return known[1]

    def _update_target(self, change: _Change) -> None:
        """Assign again if the group is in a later epoch, and the interval since the last assignment is over."""
        group, now_ms = change.group, self._wall_ms()
        interval_ms = self._group_int(group.group_id, "group.share.assignment.interval.ms")
        is_early = is_assignment_early(group.assignment_timestamp_ms, interval_ms, now_ms)
        if change.epoch <= change.target_epoch or is_early:
            return
        image = self._metadata.image
        members = [
            MemberSpec(member_id, None, self._topic_ids(member.subscribed_topic_names), change.targets.get(member_id, {}))
            for member_id, member in change.members.items()
        ]
        assignable = {
            topic_id: [index for index in sorted(indexes) if index < len(image.topics[topic_id].partitions)]
            for topic_id, indexes in ShareTopics.of(group).initialized.items()
            if topic_id in image.topics
        }
        targets = assign_shares(members, assignable)
        for member_id, target in targets.items():
            if change.targets.get(member_id) != target:
                change.records.append(share_target_record(group.group_id, member_id, target))
        change.targets, change.target_epoch = targets, change.epoch
        change.records.append(share_target_epoch_record(group.group_id, change.epoch, now_ms))

    def _topic_ids(self, names: Iterable[str]) -> frozenset[Uuid]:
        ids = self._metadata.image.topic_ids
        return frozenset(ids[name] for name in names if name in ids)

    def _reconcile(self, change: _Change, member: ShareGroupMember, has_changed: bool) -> ShareGroupMember:
        """Return the member with its target; the change has its record if that is another one."""
        is_behind = member.member_epoch != change.target_epoch
        if not is_behind and not has_changed:
            return member
        topics = self._topic_ids(member.subscribed_topic_names)
        target = change.targets.get(member.member_id, {})
        moved = copy(member)
        moved.assigned_partitions = {topic_id: found for topic_id, found in target.items() if topic_id in topics}
        if is_behind:
            moved.previous_member_epoch, moved.member_epoch = member.member_epoch, change.target_epoch
        if moved == member:
            return member
        change.records.append(share_current_record(change.group.group_id, moved))
        return moved

    # ----------------------------------------------------------------------------------------------------- leave, fence

    def _leave(self, request: ShareHeartbeat) -> Decision[ShareHeartbeatResult]:
        group = self.find(request.group_id)
        if request.member_id not in group.members:
            raise unknown_member(request.group_id, request.member_id)
        result = ShareHeartbeatResult(request.member_id, request.member_epoch)
        removed = self._remove(group, request.member_id, "it has left")
        return Decision(result, removed.records, removed.settled)

    def _remove(self, group: ShareGroup, member_id: str, reason: str) -> Decision[None]:
        self._report_removed(group.group_id, member_id, reason)
        change = _Change(group)
        change.members = {key: member for key, member in group.members.items() if key != member_id}
        found = self._hashes.group_hash(change.names())
        records = [
            *share_member_tombstones(group.group_id, member_id),
            share_group_record(group.group_id, change.epoch + 1, found),
        ]
        if not change.members and is_4_4(self._metadata.image.features):
            records.append(share_target_epoch_record(group.group_id, change.epoch + 1, 0))  # the next assignment does not wait
        return Decision(None, records, self._removed(group.group_id, (member_id,)))

    def _begin_timers(self, group: ShareGroup, member_id: str) -> None:
        timeout_ms = self._group_int(group.group_id, "group.share.session.timeout.ms")
        self.sessions.extend(group.group_id, member_id, timeout_ms)

    # ---------------------------------------------------------------------------------------------------------- topics

    def _begin_initialization(self, change: _Change) -> Initialization | None:
        """Decide which partitions of subscribed topics are to be initialized."""
        group_id = change.group.group_id
        topics = ShareTopics.of(change.group)
        known: ShareIndexes = dict(topics.initialized)
        merge(known, {key: found for key, found in topics.initializing.items() if self._is_recent(group_id, key)})
        image, added = self._metadata.image, ShareIndexes()
        for name in sorted(change.names()):
            topic = image.topic(name)
            if topic is not None and len(known.get(topic.topic_id, ())) < len(topic.partitions):
                added[topic.topic_id] = set(range(len(topic.partitions))) - known.get(topic.topic_id, set())
        if not added:
            return None
        known_topics = frozenset((*topics.initialized, *topics.initializing))
        change.records.append(self._begun(group_id, topics, added))
        return Initialization(group_id, change.epoch, added, known_topics)

    def _is_recent(self, group_id: str, topic_id: Uuid) -> bool:
        """Return whether the initialization of a topic need not be repeated yet."""
        since_ms = self._initializing_since.get(group_id, {}).get(topic_id, self._loaded_ms)
        interval_ms = self._config.get_int("group.share.initialize.retry.interval.ms")
        return self._timer.clock_ms < since_ms + interval_ms

    def _begun(self, group_id: str, topics: ShareTopics, added: ShareIndexes) -> CoordinatorRecord:
        topics.begin(added)
        self._initializing_since.setdefault(group_id, {}).update(dict.fromkeys(added, self._timer.clock_ms))
        return self._topics_record(group_id, topics)

    def _topics_record(self, group_id: str, topics: ShareTopics) -> CoordinatorRecord:
        """Make the record of a group's topics; those that are being deleted and do not exist any more are left out."""
        found = self._metadata.image.topics
        topics.deleting &= found.keys()
        for topic_id in (*topics.initializing, *topics.initialized, *topics.deleting):
            if topic_id in found:
                topics.names[topic_id] = found[topic_id].name
        return share_topics_record(group_id, topics)

    def complete_initialization(self, done: Initialization) -> Decision[None]:
        """Take partitions as initialized; the next heartbeat assigns them."""
        group = self._state.groups.get(done.group_id)
        if not isinstance(group, ShareGroup):
            return Decision(None)
        self._end_initialization(done.group_id, done.partitions)
        topics = ShareTopics.of(group)
        # A deletion of offsets may have taken some of them over.
        begun = {key: found & topics.initializing.get(key, set()) for key, found in done.partitions.items()}
        topics.complete({key: found for key, found in begun.items() if found})
        return Decision(None, (self._topics_record(done.group_id, topics),))

    def _end_initialization(self, group_id: str, topic_ids: Iterable[Uuid]) -> None:
        since = self._initializing_since.get(group_id, {})
        for topic_id in topic_ids:
            since.pop(topic_id, None)
        if not since:
            self._initializing_since.pop(group_id, None)

    def abandon_initialization(self, failed: Initialization) -> Decision[None]:
        """Take partitions as not being initialized any more; the next heartbeat initializes them again."""
        group = self._state.groups.get(failed.group_id)
        if not isinstance(group, ShareGroup):
            return Decision(None)
        topics = ShareTopics.of(group)
        if not topics.initializing or not failed.partitions:
            return Decision(None)
        topics.abandon(failed.partitions)
        return Decision(None, (self._topics_record(failed.group_id, topics),))

    def topics_removed(self, topic_ids: Collection[Uuid]) -> Records:
        """Return the records that remove deleted topics from all groups."""
        records = []
        for group_id in list(self._initializing_since):
            self._end_initialization(group_id, topic_ids)
        for group in self._groups():
            topics = ShareTopics.of(group)
            if not topics.names.keys().isdisjoint(topic_ids):
                topics.forget(topic_ids)
                records.append(self._topics_record(group.group_id, topics))
        return records

    # ------------------------------------------------------------------------------------------------------------ admin

    def initialized(self, group_id: str) -> ShareIndexes:
        """Return the partitions of a group that are initialized; none if there is no such group."""
        group = self._state.groups.get(group_id)
        return ShareTopics.of(group).initialized if isinstance(group, ShareGroup) else {}

    def begin_deletion(self, group_id: str) -> Decision[ShareIndexes]:
        """Decide which states are deleted before a group; all its topics are being deleted then. Raises CoordinatorError."""
        group = self.find_empty(group_id)
        if not group.topics:
            return Decision({})
        topics, image = ShareTopics.of(group), self._metadata.image
        found: ShareIndexes = dict(topics.initialized)
        merge(found, topics.initializing)
        for topic_id in topics.deleting & image.topics.keys():
            merge(found, {topic_id: set(range(len(image.topics[topic_id].partitions)))})
        topics.initialized, topics.initializing, topics.deleting = {}, {}, set(found)
        return Decision(found, (self._topics_record(group_id, topics),))

    def begin_offset_deletion(self, group_id: str, topic_ids: Iterable[Uuid]) -> Decision[ShareIndexes]:
        """Decide which states of topics are deleted; topics without any are not in the result. Raises CoordinatorError.

        States that are being initialized are deleted, too: the persister does it when they are. Kafka leaves them.
        """
        group = self.find_empty(group_id)
        if not group.topics:
            return Decision({})
        topics, image = ShareTopics.of(group), self._metadata.image
        found: ShareIndexes = {}
        for topic_id in topic_ids:
            if topic_id in topics.initialized:
                found[topic_id] = topics.initialized.pop(topic_id) | topics.initializing.pop(topic_id, set())
                topics.deleting.add(topic_id)
            elif topic_id in topics.deleting and topic_id in image.topics:
                found[topic_id] = set(range(len(image.topics[topic_id].partitions)))
        return Decision(found, (self._topics_record(group_id, topics),))

    def complete_offset_deletion(self, group_id: str, topic_ids: Collection[Uuid]) -> Decision[None]:
        """Take the states of topics as deleted."""
        group = self._state.groups.get(group_id)
        if not isinstance(group, ShareGroup) or not group.topics:
            return Decision(None)
        topics = ShareTopics.of(group)
        topics.deleting -= set(topic_ids)
        return Decision(None, (self._topics_record(group_id, topics),))

    def begin_alteration(self, group_id: str, partitions: ShareIndexes) -> Decision[Initialization]:
        """Decide the state epoch in which offsets are set; a group that does not exist is made. Raises CoordinatorError."""
        group = self._find_or_make(group_id)
        if group.members:
            raise CoordinatorError(error_codes.NON_EMPTY_GROUP, _NON_EMPTY)
        epoch = max(group.group_epoch, FIRST_GROUP_EPOCH)
        result = Initialization(group_id, epoch, partitions)
        return Decision(result, (self._begun(group_id, ShareTopics.of(group), partitions),) if partitions else ())

    def delete(self, group_id: str) -> Iterator[CoordinatorRecord]:
        """Return the records that delete a group. Raises CoordinatorError: NON_EMPTY_GROUP."""
        group = self.find_empty(group_id)
        self._checked.pop(group_id, None)
        self._pending.pop(group_id, None)
        self._initializing_since.pop(group_id, None)
        return share_group_tombstones(group)


def _is_assignment_pending(group: ShareGroup) -> bool:
    """Return whether partitions of a subscribed topic are initialized and not assigned to any member, or the reverse."""
    topics = ShareTopics.of(group)
    names = {name for member in group.members.values() for name in member.subscribed_topic_names}
    assigned: ShareIndexes = {}
    for target in group.target_assignment.values():
        merge(assigned, {topic_id: set(indexes) for topic_id, indexes in target.items()})
    return any(
        topics.names[topic_id] in names and assigned.get(topic_id) != indexes
        for topic_id, indexes in topics.initialized.items()
    )


def _check_epoch(member: ShareGroupMember, epoch: int) -> None:
    """Check the epoch of a heartbeat: 0, the present one, or the previous one. Raises CoordinatorError."""
    if epoch in (0, member.member_epoch):
        return
    if epoch > member.member_epoch:
        text = f"greater member epoch ({epoch}) than the one known by the group coordinator ({member.member_epoch})."
    elif epoch == member.previous_member_epoch:
        return
    else:
        text = (
            f"smaller member epoch ({epoch}) than the one known by the group coordinator ({member.member_epoch}), "
            f"and it does not match the previous member epoch ({member.previous_member_epoch})."
        )
    raise CoordinatorError(
        error_codes.FENCED_MEMBER_EPOCH,
        f"The share group member has a {text} The member must abandon all its partitions and rejoin.",
    )
