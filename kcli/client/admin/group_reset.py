"""Resetting the offsets of a group: first a plan, which changes nothing, then its commit (Kafka: ConsumerGroupCommand).

    ResetTo      new offset of a partition
    -----------  --------------------------------------------------------------------------------------------------
    EARLIEST     its first offset
    LATEST       its end
    CURRENT      the committed offset; the end if there is none
    OFFSET       the value, but not before the first offset and not after the end
    SHIFT        the committed offset plus the value, within the same bounds
    TIME         the first record at or after the value, a timestamp in ms; the end if there is none

New offsets have no leader epoch, as those of Kafka's tool: the next consumer does not compare its log with another one.
A group with members cannot be reset: they would commit their own offsets again. A share group knows EARLIEST, LATEST and TIME.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from kcli.client.admin.error_sentences import kafka_error
from kcli.client.admin.group_lag import AnyDescription, check_partitions
from kcli.client.admin.group_offsets import (
    SharePartitionOffset,
    alter_consumer_group_offsets,
    alter_share_group_offsets,
    list_consumer_group_offsets,
    list_share_group_offsets,
)
from kcli.client.admin.operation import Operation, Outcomes, value_of
from kcli.client.admin.partitions import NO_OFFSET, ListedOffset, OffsetSpec, list_offsets
from kcli.client.cluster import NO_EPOCH
from kcli.client.errors import ClientError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes


class ResetTo(Enum):
    """What the new offsets follow from; the table is at the head of this module."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


SHARE_RESETS = frozenset((ResetTo.EARLIEST, ResetTo.LATEST, ResetTo.TIME))


class PlannedOffset(NamedTuple):
    """The new offset of a partition, and what the group has now, None if it has nothing."""

    current: int | None
    new: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


def check_inactive(description: AnyDescription | ClientError) -> None:
    """Raise KafkaError for a group with members, and the error if the group could not be described.

    A group that does not exist has no members.
    """
    if isinstance(description, ClientError):
        if getattr(description, "code", None) != error_codes.GROUP_ID_NOT_FOUND:
            raise description
    elif description.members:
        what = f"group {description.group_id} is {description.state} and has {len(description.members)} members"
        raise kafka_error(error_codes.NON_EMPTY_GROUP, f"{what}; stop them before its offsets are reset")


def current_offsets(group_id: str, *, is_share: bool = False) -> Operation[dict[TopicPartition, PlannedOffset]]:
    """Return the offsets that a group has, as a plan that changes nothing. Raises KafkaError."""
    if is_share:
        starts = value_of((yield from list_share_group_offsets({group_id: None}))[group_id])
        shares = [(at, one.start_offset) for at, one in starts.items() if isinstance(one, SharePartitionOffset)]
        return {at: PlannedOffset(offset, offset) for at, offset in shares}
    committed = value_of((yield from list_consumer_group_offsets({group_id: None}))[group_id])
    return {
        at: PlannedOffset(one.offset, one.offset, one.leader_epoch, one.metadata)
        for at, one in committed.items()
        if isinstance(one, OffsetAndMetadata)
    }


def plan_reset(
    group_id: str,
    partitions: Iterable[TopicPartition],
    to: ResetTo,
    value: int = 0,
    *,
    is_share: bool = False,
) -> Operation[Outcomes[TopicPartition, PlannedOffset]]:
    """Return the new offsets of partitions of a group. Raises KafkaError if the group's offsets cannot be read."""
    return (yield from _plan(group_id, dict.fromkeys(sorted(set(partitions)), value), to, is_share=is_share))


def _plan(
    group_id: str, wanted: Mapping[TopicPartition, int], to: ResetTo, *, is_share: bool = False
) -> Operation[Outcomes[TopicPartition, PlannedOffset]]:
    """Return the new offsets of partitions, each with a value of its own."""
    current = yield from current_offsets(group_id, is_share=is_share)
    checked = yield from check_partitions(wanted)
    asked = [at for at in wanted if checked[at] is None]
    ends = yield from list_offsets(dict.fromkeys(asked, int(OffsetSpec.LATEST)))
    starts: Outcomes[TopicPartition, ListedOffset] = {}
    if to in (ResetTo.EARLIEST, ResetTo.OFFSET, ResetTo.SHIFT):
        starts = yield from list_offsets(dict.fromkeys(asked, int(OffsetSpec.EARLIEST)))
    elif to is ResetTo.TIME:
        starts = yield from list_offsets({at: wanted[at] for at in asked})
    found: Outcomes[TopicPartition, PlannedOffset] = {}
    for at, value in wanted.items():
        start, end = starts.get(at), ends.get(at) or checked[at]
        assert end is not None
        if isinstance(end, ClientError):
            found[at] = end
        elif isinstance(start, ClientError):
            found[at] = start
        else:
            found[at] = _planned(to, value, current.get(at), start, end)
    return found


def plan_offsets(group_id: str, offsets: Mapping[TopicPartition, int]) -> Operation[Outcomes[TopicPartition, PlannedOffset]]:
    """Return a plan with an offset for each partition, within its bounds, as from a file."""
    return (yield from _plan(group_id, dict(sorted(offsets.items())), ResetTo.OFFSET))


def _planned(
    to: ResetTo, value: int, current: PlannedOffset | None, start: ListedOffset | None, end: ListedOffset
) -> PlannedOffset | ClientError:
    was = None if current is None else current.new
    if to is ResetTo.CURRENT and current is not None:
        return current
    if to in (ResetTo.LATEST, ResetTo.CURRENT) or start is None:
        return PlannedOffset(was, end.offset)
    if to is ResetTo.EARLIEST:
        return PlannedOffset(was, start.offset)
    if to is ResetTo.TIME:
        return PlannedOffset(was, end.offset if start.offset == NO_OFFSET else start.offset)
    if to is ResetTo.SHIFT:
        if was is None:
            return kafka_error(error_codes.RESOURCE_NOT_FOUND, "the group has no offset of this partition that can be shifted")
        value += was
    return PlannedOffset(was, min(max(value, start.offset), end.offset))


def commit_plan(
    group_id: str, plan: Mapping[TopicPartition, PlannedOffset], *, is_share: bool = False
) -> Operation[Outcomes[TopicPartition, None]]:
    """Set the offsets of a plan."""
    if is_share:
        return (yield from alter_share_group_offsets(group_id, {at: one.new for at, one in plan.items()}))
    offsets = {at: OffsetAndMetadata(one.new, one.leader_epoch, one.metadata) for at, one in plan.items()}
    return (yield from alter_consumer_group_offsets(group_id, offsets))
