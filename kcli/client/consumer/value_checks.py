"""Checks of what an application passes to a consumer, so that it fails in its own call and not in a later request.

value             range, as the protocol encodes it
----------------  ---------------------------------
partition         0 to 2**31 - 1
offset            0 to 2**63 - 1
leader epoch      -1 (not known) to 2**31 - 1
timestamp (ms)    -2**63 to 2**63 - 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.client.cluster import NO_EPOCH, TopicPartition
from kcli.client.consumer.subscription_state import OffsetAndMetadata

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1


def _check(value: int, lowest: int, highest: int, what: str) -> None:
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{what} must be a whole number from {lowest} to {highest}, not {value!r}")


def checked_topics(topics: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription. Raises TypeError for a text, whose letters would be topics."""
    if isinstance(topics, str):
        raise TypeError(f"subscribe takes a list of topics, not a text: [{topics!r}]")
    return frozenset(topics)


def checked_partitions(partitions: Iterable[TopicPartition] | str) -> list[TopicPartition]:
    """Return partitions as plain pairs. Raises TypeError, ValueError."""
    if isinstance(partitions, str):
        raise TypeError(f"partitions are a list of (topic, number), not a text: [({partitions!r}, 0)]")
    found = []
    for one in partitions:
        if isinstance(one, str) or len(one) != 2:
            raise TypeError(f"a partition is a pair (topic, number), not {one!r}")
        topic, number = one
        _check(number, 0, MAX_INT32, f"the number of a partition of {topic}")
        found.append((topic, number))
    return found


def check_offset(offset: int, leader_epoch: int = NO_EPOCH) -> None:
    """Check a position. Raises ValueError."""
    _check(offset, 0, MAX_INT64, "an offset")
    _check(leader_epoch, NO_EPOCH, MAX_INT32, "a leader epoch")


def check_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Check offsets that are to be committed. Raises TypeError, ValueError."""
    checked_partitions(offsets)
    for one in offsets.values():
        check_offset(one.offset, one.leader_epoch)


def check_timestamps(timestamps: Mapping[TopicPartition, int]) -> None:
    """Check timestamps to find offsets by. Raises TypeError, ValueError."""
    checked_partitions(timestamps)
    for timestamp in timestamps.values():
        _check(timestamp, -MAX_INT64 - 1, MAX_INT64, "a timestamp")
