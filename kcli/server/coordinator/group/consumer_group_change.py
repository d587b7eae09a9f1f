"""A change of a consumer group by one operation: what it decides, as records, in Kafka's order.

    step                        records
    --------------------------  ----------------------------------------------------------------------------------------
    put, replace, remove        the member and its subscription, or tombstones
    put_regexes, drop           the topics that match a pattern, or a tombstone
    update_epoch                the next group epoch, if a subscription, a topic or the racks of one have changed
    update_target               the target of each member that has another one, and the epoch of the target
    reconcile                   the next assignment of the member

The group itself does not change: the records are applied when the operation is decided. A heartbeat that changes nothing copies
nothing and costs the same in groups of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from kcli.format.kafka_uuid import Uuid
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.assignors import ASSIGNORS, MemberSpec
from kcli.server.coordinator.group.current_assignment import Target, is_reconciled, next_assignment
from kcli.server.coordinator.group.group_records import (
    consumer_current_record,
    consumer_group_record,
    consumer_member_record,
    consumer_member_tombstones,
    consumer_target_epoch_record,
    consumer_target_record,
    partition_metadata_tombstone,
    regex_record,
    regex_tombstone,
)
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.group.regex_resolver import ResolvedRegexes
from kcli.server.metadata_cache import MetadataCache
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember, Partitions, StreamsGroupMember

FIRST_GROUP_EPOCH = 1
_AnyMember = TypeVar("_AnyMember", ConsumerGroupMember, StreamsGroupMember)


def is_assignment_early(since_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether a group whose last assignment was at `since_ms` (0: none) must wait for the assignment interval.

    A later time than now is from before the clock was set back.
    """
    return bool(since_ms and interval_ms) and since_ms <= now_ms < since_ms + interval_ms


class ConsumerGroupChange:
    """A change of `group` at `now_ms` on the wall clock. `records`, `epoch`, `members` and `regexes` are those after it."""

    def __init__(self, group: ConsumerGroup, metadata: MetadataCache, hashes: TopicHashes, now_ms: int) -> None:
        self.group = group
        self.records: list[CoordinatorRecord] = []
        self.epoch = max(group.group_epoch, FIRST_GROUP_EPOCH)
        self.members = group.members
        self.regexes = group.resolved_regexes
        self._targets = group.target_assignment
        self._target_epoch = max(group.assignment_epoch, 0)
        self._metadata = metadata
        self._hashes = hashes
        self._now_ms = now_ms

    # --------------------------------------------------------------------------------------------------------- members

    def put_member(self, member: ConsumerGroupMember) -> None:
        """Add a member, or change its subscription."""
        self.members = self.members | {member.member_id: member}
        self.records.append(consumer_member_record(self.group.group_id, member))

    def replace_member(self, replaced: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
        """Let a static member with a new id take the place of the one with the same instance id; return the new member."""
        group_id, old_id = self.group.group_id, replaced.member_id
        member = replace(replaced, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        target = self._targets.get(old_id, {})
        self.records += consumer_member_tombstones(group_id, old_id)
        self.members = {key: found for key, found in self.members.items() if key != old_id} | {member.member_id: member}
        self._targets = {key: found for key, found in self._targets.items() if key != old_id} | {member.member_id: target}
        self.records += (
            consumer_member_record(group_id, member),
            consumer_target_record(group_id, member.member_id, target),
            consumer_current_record(group_id, member),
        )
        return member

    def remove_members(self, member_ids: Iterable[str]) -> None:
        """Remove members, and the patterns that only they were subscribed to."""
        removed = dict.fromkeys(member_ids)
        for member_id in removed:
            self.records += consumer_member_tombstones(self.group.group_id, member_id)
        self.members = {key: member for key, member in self.members.items() if key not in removed}
        self.drop_unused_regexes()

    def drop_unused_regexes(self) -> None:
        """Remove the patterns to which no member is subscribed any longer."""
        used = {member.subscribed_topic_regex for member in self.members.values()}
        for regex in self.regexes.keys() - used:
            self.records.append(regex_tombstone(self.group.group_id, regex))
        self.regexes = {regex: topics for regex, topics in self.regexes.items() if regex in used}

    # ------------------------------------------------------------------------------------------------------- subscriptions

    def patterns(self) -> set[str]:
        """Return the patterns to which members are subscribed."""
        return {member.subscribed_topic_regex for member in self.members.values() if member.subscribed_topic_regex}

    def put_regexes(self, resolved: ResolvedRegexes) -> bool:
        """Take the topics of patterns to which members are subscribed; return whether they are others than before."""
        patterns = self.patterns()
        has_changed = False
        for regex, topics in resolved.topics.items():
            if regex in patterns and self.regexes.get(regex) != topics:
                has_changed = True
                self.regexes = self.regexes | {regex: topics}
                self.records.append(regex_record(self.group.group_id, regex, topics, resolved.metadata_offset, self._now_ms))
        return has_changed

    def subscribed_names(self, member: ConsumerGroupMember) -> set[str]:
        """Return the names of the topics that a member is subscribed to; not all of them need exist."""
        return {*member.subscribed_topic_names, *self.regexes.get(member.subscribed_topic_regex or "", ())}

    def all_names(self) -> set[str]:
        """Return the names of the topics that any member is subscribed to."""
        names: set[str] = set()
        regexes: set[str] = set()
        for member in self.members.values():
            names.update(member.subscribed_topic_names)
            if member.subscribed_topic_regex:
                regexes.add(member.subscribed_topic_regex)
        return names.union(*(self.regexes.get(regex, ()) for regex in regexes))

    def update_epoch(self, is_changed: bool) -> None:
        """Begin the next group epoch if subscriptions have changed, or the topics that the group is subscribed to."""
        found = self._hashes.group_hash(self.all_names())
        if is_changed or found != self.group.metadata_hash:
            self.epoch += 1
            self.records.append(consumer_group_record(self.group.group_id, self.epoch, found))
        if self.group.has_partition_metadata:
            self.records.append(partition_metadata_tombstone(self.group.group_id))

    def end_target(self) -> None:
        """Let the target of a group that is now empty be of the group's epoch; the next assignment does not wait."""
        if not self.members:
            self.records.append(consumer_target_epoch_record(self.group.group_id, self.epoch, 0))

    # ------------------------------------------------------------------------------------------------------ assignment

    def update_target(self, default_assignor: str, interval_ms: int) -> None:
        """Assign the partitions again if the group is in a later epoch, and `interval_ms` after the last assignment."""
        group = self.group
        is_early = is_assignment_early(group.assignment_timestamp_ms, interval_ms, self._now_ms)
        if self.epoch <= self._target_epoch or is_early:
            return
        image = self._metadata.image
        members = [
            MemberSpec(
                member_id,
                member.instance_id,
                self._topic_ids(member),
                self._targets.get(member_id, {}),
            )
            for member_id, member in self.members.items()
        ]
        topics = {topic_id for member in members for topic_id in member.topics}
        counts = {topic_id: len(image.topics[topic_id].partitions) for topic_id in topics}
        targets = ASSIGNORS[self.preferred_assignor(default_assignor)](members, counts)
        for member_id, target in targets.items():
            known = self._targets.get(member_id)
            if known is None or not _is_same(known, target):
                self.records.append(consumer_target_record(group.group_id, member_id, target))
        self._targets, self._target_epoch = targets, self.epoch
        self.records.append(consumer_target_epoch_record(group.group_id, self.epoch, self._now_ms))

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members ask for, `default` if none does.

        Of two with as many votes, the first one that had votes before this change: the order of Kafka's hash maps.
        """
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor in ASSIGNORS)
        if not votes:
            return default
        before = {member.server_assignor for member in self.group.members.values()}
        return max(sorted(ASSIGNORS, key=lambda name: name not in before), key=votes.__getitem__)

    def reconcile(
        self, member: ConsumerGroupMember, reported: Partitions | None, has_new_subscription: bool
    ) -> ConsumerGroupMember:
        """Return the member with its next assignment; the change has its record if it is another one."""
        if is_reconciled(member, self._target_epoch) and not has_new_subscription:
            return member
        partitions = self._targets.get(member.member_id, {})
        target = Target(self._target_epoch, partitions, self._topic_ids(member))
        # What the member itself has not revoked yet is free for it: it may get it back.
        free, owners = (None, member.member_id), self.group.owners
        moved = next_assignment(
            member, target, lambda topic_id, index: owners.get((topic_id, index)) not in free, reported, has_new_subscription
        )
        if moved != member:
            self.records.append(consumer_current_record(self.group.group_id, moved))
            return moved
        return member

    def _topic_ids(self, member: ConsumerGroupMember) -> frozenset[Uuid]:
        ids = self._metadata.image.topic_ids
        return frozenset(ids[name] for name in self.subscribed_names(member) if name in ids)


def changed_subscription(member: _AnyMember, **fields: Any) -> _AnyMember:
    """Return the member with those fields changed that are not None, the same member if nothing changes."""
    changes = {name: value for name, value in fields.items() if value is not None and getattr(member, name) != value}
    return replace(member, **changes) if changes else member


def _is_same(first: Partitions, second: Partitions) -> bool:
    return first.keys() == second.keys() and all(set(first[topic_id]) == set(second[topic_id]) for topic_id in first)
