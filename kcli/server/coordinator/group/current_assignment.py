"""The steps of a member from its current assignment to its target (Kafka: CurrentAssignmentBuilder, KIP-848).

    state                  the member                                   leaves the state
    ---------------------  -------------------------------------------  ------------------------------------------------
    STABLE                 has its target of its epoch                  when there is a target of a later epoch
    UNREVOKED_PARTITIONS   must revoke partitions, in its old epoch     when a heartbeat no longer lists them as owned
    UNRELEASED_PARTITIONS  is in the target's epoch, and waits for      when other members have revoked them
                           partitions that other members have

A partition has an owner from its assignment until the owner has revoked it, so that no two members have it. Each partition
keeps the epoch in which its member got it: offsets are accepted from that epoch on (KIP-1251). A partition that a member has
just revoked, and that its new target gives back to it, is assigned again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import AssignedPartitions, ConsumerGroupMember, Partitions

STABLE, UNREVOKED, UNRELEASED = "STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS"


class Target(NamedTuple):
    """The target of a member: `topics` are those that it is subscribed to, other partitions are not assigned."""

    epoch: int
    partitions: Partitions
    topics: Collection[Uuid]


def is_reconciled(member: ConsumerGroupMember, epoch: int) -> bool:
    """Return whether a member has its target of this epoch."""
    return member.state == STABLE and member.member_epoch == epoch


def next_assignment(
    member: ConsumerGroupMember,
    target: Target,
    is_owned: Callable[[Uuid, int], bool],
    reported: Partitions | None,
    has_new_subscription: bool,
) -> ConsumerGroupMember:
    """Return the member with its next assignment, the same member if nothing changes.

    `is_owned` says whether another member has a partition; `reported` are the partitions that the member says it has, if it
    does. Raises CoordinatorError for a state of a later Kafka.
    """
    if member.state == STABLE and member.member_epoch == target.epoch:
        return _drop_unsubscribed(member, target, reported) if has_new_subscription else member
    if member.state == UNREVOKED and _still_has(reported, member.partitions_pending_revocation):
        return _drop_unsubscribed(member, target, reported) if has_new_subscription else member
    if member.state not in (STABLE, UNREVOKED, UNRELEASED) and (reported is None or reported):
        text = "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        raise CoordinatorError(error_codes.FENCED_MEMBER_EPOCH, text)
    return _reconcile(member, target, is_owned, reported)


def _still_has(reported: Partitions | None, revoked: AssignedPartitions) -> bool:
    """Return whether the member may still have partitions that it is to revoke."""
    if reported is None:
        return True
    return any(index in revoked.get(topic_id, ()) for topic_id, indexes in reported.items() for index in indexes)


def _reconcile(
    member: ConsumerGroupMember, target: Target, is_owned: Callable[[Uuid, int], bool], reported: Partitions | None
) -> ConsumerGroupMember:
    assigned: AssignedPartitions = {}
    revoked: AssignedPartitions = {}
    added: AssignedPartitions = {}
    is_unreleased = False
    for topic_id in dict.fromkeys((*target.partitions, *member.assigned_partitions)):
        wanted = set(target.partitions.get(topic_id, ())) if topic_id in target.topics else set()
        current = member.assigned_partitions.get(topic_id, {})
        missing = sorted(wanted - current.keys())
        free = [index for index in missing if not is_owned(topic_id, index)]
        is_unreleased = is_unreleased or len(free) < len(missing)
        for found, part in (
            ({index: epoch for index, epoch in current.items() if index in wanted}, assigned),
            ({index: epoch for index, epoch in current.items() if index not in wanted}, revoked),
            (dict.fromkeys(free, target.epoch), added),
        ):
            if found:
                part[topic_id] = found
    if revoked and _still_has(reported, revoked):
        return _moved(member, UNREVOKED, member.member_epoch, assigned, revoked)
    for topic_id, indexes in added.items():
        assigned[topic_id] = assigned.get(topic_id, {}) | indexes
    return _moved(member, UNRELEASED if is_unreleased else STABLE, target.epoch, assigned, {})


def _drop_unsubscribed(member: ConsumerGroupMember, target: Target, reported: Partitions | None) -> ConsumerGroupMember:
    """Revoke the partitions of topics to which the member is no longer subscribed, without waiting for the next target."""
    kept = {topic_id: found for topic_id, found in member.assigned_partitions.items() if topic_id in target.topics}
    if len(kept) == len(member.assigned_partitions):
        return member
    revoked = dict(member.partitions_pending_revocation)
    for topic_id, found in member.assigned_partitions.items():
        if topic_id not in target.topics:
            revoked[topic_id] = revoked.get(topic_id, {}) | found
    if _still_has(reported, revoked):
        return _moved(member, UNREVOKED, member.member_epoch, kept, revoked)
    return _moved(member, member.state, member.member_epoch, kept, member.partitions_pending_revocation)


def _moved(
    member: ConsumerGroupMember, state: str, epoch: int, assigned: AssignedPartitions, revoked: AssignedPartitions
) -> ConsumerGroupMember:
    moved = copy(member)
    moved.state = state
    moved.previous_member_epoch, moved.member_epoch = member.member_epoch, epoch
    moved.assigned_partitions, moved.partitions_pending_revocation = assigned, revoked
    return moved
