"""How far groups are behind the ends of their partitions (Kafka: ConsumerGroupCommand, ShareGroupCommand).

    type               current offset            lag
    -----------------  ------------------------  -------------------------------------------
    classic, consumer  the committed offset      log end offset - current offset
    streams            the committed offset      the same
    share              the start offset          as the coordinator reports it (KIP-1226)

A partition is shown if the group has an offset for it, or if it is assigned to a member. Ends of partitions that do not exist
any more, or have no leader, are not known: they are left out of the request, since it would wait for a leader. Any other error
of an offset or an end is that of the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.client.admin.error_sentences import kafka_error
from kcli.client.admin.group_offsets import (
    SharePartitionOffset,
    list_consumer_group_offsets,
    list_share_group_offsets,
)
from kcli.client.admin.groups import (
    CONSUMER,
    SHARE,
    STREAMS,
    GroupDescription,
    GroupListing,
    GroupMember,
    describe_consumer_groups,
    describe_share_groups,
)
from kcli.client.admin.operation import Operation, Outcomes, run_together
from kcli.client.admin.partitions import ListedOffset, OffsetSpec, list_offsets
from kcli.client.admin.streams import StreamsGroupDescription, describe_streams_groups
from kcli.client.admin.topics import describe_topics
from kcli.client.cluster import NO_LEADER
from kcli.client.errors import ClientError, KafkaError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes

# The errors of partitions whose ends nothing knows at the moment.
_NO_END = frozenset((error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.LEADER_NOT_AVAILABLE))
AnyDescription = GroupDescription | StreamsGroupDescription
AnyOffsets = Mapping[TopicPartition, OffsetAndMetadata | SharePartitionOffset | ClientError | None]


class PartitionLag(NamedTuple):
    """A partition of a group; None: there is no offset, the end is not known, or it is assigned to no member."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member: GroupMember | None
    error: ClientError | None = None


class GroupLag(NamedTuple):
    """A group with its partitions, sorted by topic and number."""

    description: AnyDescription
    partitions: tuple[PartitionLag, ...]


def describe_groups(listings: Iterable[GroupListing]) -> Operation[Outcomes[str, AnyDescription]]:
    """Return the groups of a list, of all types, with their members.

    The types are asked for at the same time: coordinators that do not answer for one type cost the others no time.
    """
    wanted = {one.group_id: one.type for one in listings}
    found: Outcomes[str, AnyDescription] = {}
    for part in (yield from run_together([_describe(groups, kind) for kind, groups in _by_kind(wanted).items()])):
        found |= part
    return {group: found[group] for group in wanted}


def _by_kind(types: Mapping[str, str]) -> dict[str, list[str]]:
    """Return groups by what they are described and listed as; an empty type is that of an old broker, without share groups."""
    kinds: dict[str, list[str]] = {}
    for group, group_type in types.items():
        kinds.setdefault(group_type if group_type in (SHARE, STREAMS) else CONSUMER, []).append(group)
    return kinds


def _describe(groups: list[str], kind: str) -> Operation[Outcomes[str, AnyDescription]]:
    found: Outcomes[str, AnyDescription] = {}
    if kind == SHARE:
        found.update((yield from describe_share_groups(groups)))
    elif kind == STREAMS:
        found.update((yield from describe_streams_groups(groups)))
    else:
        found.update((yield from describe_consumer_groups(groups)))
    return found


def check_partitions(partitions: Iterable[TopicPartition]) -> Operation[Outcomes[TopicPartition, None]]:
    """Return None for each partition that exists and has a leader, the error for each other one."""
    wanted = set(partitions)
    described = yield from describe_topics(sorted({topic for topic, _ in wanted}))
    leaders = {
        (topic, each.partition): each.leader
        for topic, one in described.items()
        if not isinstance(one, ClientError)
        for each in one.partitions
    }
    found: Outcomes[TopicPartition, None] = {}
    for at in sorted(wanted):
        one = described[at[0]]
        if isinstance(one, ClientError):
            found[at] = one
        elif at not in leaders:
            found[at] = kafka_error(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            found[at] = kafka_error(error_codes.LEADER_NOT_AVAILABLE) if leaders[at] == NO_LEADER else None
    return found


def log_end_offsets(partitions: Iterable[TopicPartition]) -> Operation[Outcomes[TopicPartition, int]]:
    """Return the ends of partitions, of those that exist and have a leader, or the errors."""
    checked = yield from check_partitions(partitions)
    ends = yield from list_offsets({at: int(OffsetSpec.LATEST) for at, error in checked.items() if error is None})
    found: Outcomes[TopicPartition, int] = {
        at: error
        for at, error in checked.items()
        if error is not None and not (isinstance(error, KafkaError) and error.code in _NO_END)
    }
    return found | {at: end.offset if isinstance(end, ListedOffset) else end for at, end in ends.items()}


def describe_group_lags(listings: Iterable[GroupListing]) -> Operation[Outcomes[str, GroupLag]]:
    """Return the groups of a list, of all types, with the lags of their partitions, as `describe_groups`."""
    wanted = {one.group_id: one.type for one in listings}
    found: Outcomes[str, GroupLag] = {}
    for part in (yield from run_together([_lags(groups, kind) for kind, groups in _by_kind(wanted).items()])):
        found |= part
    return {group: found[group] for group in wanted}


def _lags(groups: list[str], kind: str) -> Operation[Outcomes[str, GroupLag]]:
    described = yield from _describe(groups, kind)
    offsets: Outcomes[str, AnyOffsets] = {}
    if kind == SHARE:
        offsets.update((yield from list_share_group_offsets(dict.fromkeys(groups))))
    else:
        offsets.update((yield from list_consumer_group_offsets(dict.fromkeys(groups))))
    asked: set[TopicPartition] = set()
    for group, description in described.items():
        asked |= _assigned(description).keys()
        found = offsets[group]
        if isinstance(found, dict):
            asked |= found.keys()
    ends = yield from log_end_offsets(asked)
    return {group: _lag(description, offsets[group], ends) for group, description in described.items()}


def _assigned(description: AnyDescription | ClientError) -> dict[TopicPartition, GroupMember]:
    """Return the members by their partitions; those of a streams group have tasks, and a share group's share partitions."""
    if not isinstance(description, GroupDescription):
        return {}
    return {partition: member for member in description.members for partition in member.assignment}


def _lag(
    description: AnyDescription | ClientError,
    offsets: AnyOffsets | ClientError,
    ends: Outcomes[TopicPartition, int],
) -> GroupLag | ClientError:
    if isinstance(description, ClientError):
        return description
    if isinstance(offsets, ClientError):
        return offsets
    owners = _assigned(description)
    found = []
    for topic, partition in sorted({*offsets, *owners}):
        offset = offsets.get((topic, partition))
        listed_end = ends.get((topic, partition))
        end = listed_end if isinstance(listed_end, int) else None
        error = next((one for one in (offset, listed_end) if isinstance(one, ClientError)), None)
        current: int | None = None
        lag: int | None = None
        if isinstance(offset, OffsetAndMetadata):
            current = offset.offset
            lag = None if end is None else max(end - current, 0)
        elif isinstance(offset, SharePartitionOffset):
            current = offset.start_offset
            lag = offset.lag if offset.lag >= 0 else None
        owner = owners.get((topic, partition))
        found.append(PartitionLag(topic, partition, current, end, lag, owner, error))
    return GroupLag(description, tuple(found))
