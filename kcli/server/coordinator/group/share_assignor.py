"""The assignor of share groups: partitions are spread over members, and shared if there are fewer than members (KIP-932).

Kafka: SimpleAssignor.

    step               what happens
    -----------------  -------------------------------------------------------------------------------------------------
    sharing            each partition gets ceil(members / partitions) members, so that each member has one at least
    quota              the members' numbers of partitions differ by one at most
    keep               a member keeps its present partitions up to its quota, a partition its members up to the sharing
    assign the rest    to the members below their quota, in turn

If all members have the same subscription, this is done once for all topics, otherwise for each topic and its subscribers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from kcli.format.kafka_uuid import TopicIdPartition, Uuid
from kcli.server.coordinator.group.assignors import MemberSpec, Targets
from kcli.state.groups import Partitions


def assign_shares(members: list[MemberSpec], assignable: Mapping[Uuid, Iterable[int]]) -> Targets:
    """Return the targets; only these partitions are newly assigned."""
    topics = sorted({topic_id for member in members for topic_id in member.topics})
    held = [[(topic_id, index) for topic_id, found in member.target.items() for index in found] for member in members]
    kept: list[list[TopicIdPartition]]
    if all(len(member.topics) == len(topics) for member in members):
        wanted = [(topic_id, index) for topic_id in topics for index in assignable.get(topic_id, ())]
        before = [[share for share in shares if share[0] in set(topics)] for shares in held]
        kept = _spread(before, list(range(len(members))), wanted)
    else:
        kept = [[share for share in shares if share[0] not in set(topics)] for shares in held]
        for topic_id in topics:
            subscribers = [number for number, member in enumerate(members) if topic_id in member.topics]
            before = [[share for share in shares if share[0] == topic_id] for shares in held]
            wanted = [(topic_id, index) for index in assignable.get(topic_id, ())]
            for number, shares in enumerate(_spread(before, subscribers, wanted)):
                kept[number] += shares
    return {member.member_id: _partitions(shares) for member, shares in zip(members, kept)}


def _spread(
    before: list[list[TopicIdPartition]], subscribers: list[int], wanted: list[TopicIdPartition]
) -> list[list[TopicIdPartition]]:
    """Return the shares of each member (a number): those of `before` that it keeps, and new ones of `wanted`."""
    count = len(subscribers)
    sharing = -(-count // len(wanted)) if wanted else 0
    ratio = sharing * len(wanted) / count if count else 0.0
    quotas = dict.fromkeys(range(len(before)), 0)
    quotas |= {number: ceil(ratio * (at + 1)) - ceil(ratio * at) for at, number in enumerate(subscribers)}
    # An overfilled member loses its first shares.
    after = [shares[max(len(shares) - quotas[number], 0) :] for number, shares in enumerate(before)]
    owners: dict[TopicIdPartition, list[int]] = {}
    for number, shares in enumerate(after):
        for share in shares:
            owners.setdefault(share, []).append(number)
    for share, numbers in owners.items():
        while len(numbers) > sharing:
            after[numbers.pop(0)].remove(share)
    for share in wanted:
        owners.setdefault(share, [])
    _assign_rest(owners, after, [number for number in subscribers if len(after[number]) < quotas[number]], quotas, sharing)
    return after


def _assign_rest(
    owners: dict[TopicIdPartition, list[int]],
    after: list[list[TopicIdPartition]],
    unfilled: list[int],
    quotas: dict[int, int],
    sharing: int,
) -> None:
    """Assign shares that have too few members to the unfilled members in turn; `at` is the next one."""
    at, has_assigned = 0, False
    for share, numbers in owners.items():
        while len(numbers) < sharing and unfilled:
            if at == len(unfilled):
                if not has_assigned:
                    break
                at, has_assigned = 0, False
            number = unfilled[at]
            at += 1
            if number in numbers:
                continue
            numbers.append(number)
            after[number].append(share)
            has_assigned = True
            if len(after[number]) >= quotas[number]:
                at -= 1
                del unfilled[at]


def _partitions(shares: list[TopicIdPartition]) -> Partitions:
    found: Partitions = {}
    for topic_id, index in shares:
        found.setdefault(topic_id, []).append(index)
    return {topic_id: sorted(indexes) for topic_id, indexes in found.items()}
