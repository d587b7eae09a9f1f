"""Checks of what an application passes to a consumer, so that it fails in its own call and not in a later request.

value             range
----------------  ---------------------------------
topic             kcli.state.topic_names; as from a broker, the error is INVALID_TOPIC_EXCEPTION
partition         0 to 2**31 - 1
offset            0 to 2**63 - 1
leader epoch      -1 (not known) to 2**31 - 1
timestamp (ms)    -2**63 to 2**63 - 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcli.client.cluster import NO_EPOCH, TopicPartition
from kcli.client.consumer.subscription_state import OffsetAndMetadata
from kcli.client.errors import KafkaError
from kcli.protocol import error_codes
from kcli.state.topic_names import topic_name_fault

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1


def _check(value: int, lowest: int, highest: int, what: str) -> None:
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{what} must be a whole number from {lowest} to {highest}, not {value!r}")


def check_topic(topic: str) -> None:
    """Check the name of a topic. Raises TypeError, KafkaError."""
    if not isinstance(topic, str):
        raise TypeError(f"the name of a topic is a text, not {topic!r}")
    fault = topic_name_fault(topic)
    if fault is not None:
        raise KafkaError(error_codes.INVALID_TOPIC_EXCEPTION, fault)


def checked_topics(topics: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription. Raises TypeError, also for a text, whose letters would be topics; KafkaError."""
    if isinstance(topics, str):
        raise TypeError(f"subscribe takes a list of topics, not a text: [{topics!r}]")
    wanted = list(topics)
    for topic in wanted:
        check_topic(topic)
    return frozenset(wanted)


def checked_partitions(partitions: Iterable[TopicPartition] | str) -> list[TopicPartition]:
    """Return partitions as plain pairs. Raises TypeError, ValueError, KafkaError."""
    if isinstance(partitions, str):
        raise TypeError(f"partitions are a list of (topic, number), not a text: [({partitions!r}, 0)]")
    found = []
    for one in partitions:
        if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 2:
            raise TypeError(f"a partition is a pair (topic, number), not {one!r}")
        topic, number = one
        check_topic(topic)
        _check(number, 0, MAX_INT32, f"the number of a partition of {topic}")
        found.append((topic, number))
    return found


def check_offset(offset: int, leader_epoch: int = NO_EPOCH) -> None:
    """Check a position. Raises ValueError."""
    _check(offset, 0, MAX_INT64, "an offset")
    _check(leader_epoch, NO_EPOCH, MAX_INT32, "a leader epoch")


def check_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Check offsets that are to be committed. Raises TypeError, ValueError, KafkaError."""
    checked_partitions(offsets)
    for one in offsets.values():
        if not isinstance(one, OffsetAndMetadata):
            raise TypeError(f"an offset to commit is an OffsetAndMetadata, not {one!r}")
        check_offset(one.offset, one.leader_epoch)


def check_times(times: Mapping[TopicPartition, int]) -> None:
    """Check times of records, in ms. Raises ValueError."""
    for time in times.values():
        _check(time, 0, MAX_INT64, "a timestamp")


def check_timestamps(timestamps: Mapping[TopicPartition, int]) -> None:
    """Check timestamps to find offsets by. Raises TypeError, ValueError, KafkaError."""
    checked_partitions(timestamps)
    for timestamp in timestamps.values():
        _check(timestamp, -MAX_INT64 - 1, MAX_INT64, "a timestamp")
