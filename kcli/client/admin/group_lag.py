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
    GroupOffsets,
    OffsetAndMetadata,
    SharePartitionOffset,
    list_consumer_group_offsets,
    list_share_group_offsets,
)
from kcli.client.admin.groups import (
    SHARE,
    STREAMS,
    GroupDescription,
    GroupListing,
    GroupMember,
    describe_consumer_groups,
    describe_share_groups,
)
from kcli.client.admin.operation import Operation, Outcomes
from kcli.client.admin.partitions import ListedOffset, OffsetSpec, list_offsets
from kcli.client.admin.streams import StreamsGroupDescription, describe_streams_groups
from kcli.client.admin.topics import describe_topics
from kcli.client.cluster import NO_LEADER, TopicPartition
from kcli.client.errors import ClientError, KafkaError
from kcli.protocol import error_codes

# The errors of partitions whose ends nothing knows at the moment.
_NO_END = frozenset((error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.LEADER_NOT_AVAILABLE))
AnyDescription = GroupDescription | StreamsGroupDescription


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
    """Return the groups of a list, of all types, with their members."""
    wanted = {one.group_id: one.type for one in listings}
    found: dict[str, AnyDescription | ClientError] = {}
    share = [group for group, kind in wanted.items() if kind == SHARE]
    streams = [group for group, kind in wanted.items() if kind == STREAMS]
    found.update((yield from describe_share_groups(share)))
    found.update((yield from describe_streams_groups(streams)))
    found.update((yield from describe_consumer_groups([group for group in wanted if group not in found])))
    return {group: found[group] for group in wanted}


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
    """Return the groups of a list, of all types, with the lags of their partitions."""
    wanted = list(listings)
    described = yield from describe_groups(wanted)
    share = [one.group_id for one in wanted if one.type == SHARE]
    others = [one.group_id for one in wanted if one.type != SHARE]
    starts = yield from list_share_group_offsets(dict.fromkeys(share))
    offsets = yield from list_consumer_group_offsets(dict.fromkeys(others))
    asked: set[TopicPartition] = set()
    for group, description in described.items():
        asked |= _assigned(description).keys()
        found = starts.get(group) or offsets.get(group)
        if isinstance(found, dict):
            asked |= found.keys()
    ends = yield from log_end_offsets(asked)
    return {
        group: _lag(description, starts.get(group) if group in starts else offsets.get(group), ends)
        for group, description in described.items()
    }


def _assigned(description: AnyDescription | ClientError) -> dict[TopicPartition, GroupMember]:
    """Return the members by their partitions; those of a streams group have tasks, and a share group's share partitions."""
    if not isinstance(description, GroupDescription):
        return {}
    return {partition: member for member in description.members for partition in member.assignment}


def _lag(
    description: AnyDescription | ClientError,
    offsets: GroupOffsets | Mapping[TopicPartition, SharePartitionOffset | ClientError | None] | ClientError | None,
    ends: Outcomes[TopicPartition, int],
) -> GroupLag | ClientError:
    if isinstance(description, ClientError):
        return description
    if isinstance(offsets, ClientError):
        return offsets
    owners = _assigned(description)
    found = []
    for topic, partition in sorted({*(offsets or {}), *owners}):
        offset = (offsets or {}).get((topic, partition))
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
