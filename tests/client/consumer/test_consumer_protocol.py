"""Protects the bytes of subscriptions, assignments and user data; tests/oracle compares them with the Java consumer's."""

from __future__ import annotations

import pytest

from kcli.client.consumer.assignors.sticky_user_data import (
    MemberData,
    encode_cooperative,
    encode_sticky,
    read_cooperative,
    read_sticky,
)
from kcli.client.consumer.consumer_protocol import (
    NO_GENERATION,
    Assignment,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kcli.protocol.message_errors import DecodeError

PARTITIONS = [TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("b", 0)]
SUBSCRIPTION = Subscription(["b", "a"], b"\x07", PARTITIONS, 5, "r")
TOPICS = "00000002 0001 61 0001 62"
USER_DATA = "00000001 07"
OWNED = "00000002 0001 61 00000001 00000002 0001 62 00000002 00000000 00000001"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, f"0000 {TOPICS} {USER_DATA}"),
        (1, f"0001 {TOPICS} {USER_DATA} {OWNED}"),
        (2, f"0002 {TOPICS} {USER_DATA} {OWNED} 00000005"),
        (3, f"0003 {TOPICS} {USER_DATA} {OWNED} 00000005 0001 72"),
    ],
)
def test_a_subscription_has_what_its_version_has(version: int, expected: str) -> None:
    """Topics and partitions are sorted."""
    data = encode_subscription(SUBSCRIPTION, version)
    assert data == bytes.fromhex(expected)
    owned = sorted(PARTITIONS) if version >= 1 else []
    generation = 5 if version >= 2 else NO_GENERATION
    rack = "r" if version >= 3 else None
    assert decode_subscription(data, "i") == Subscription(["a", "b"], b"\x07", owned, generation, rack, "i")


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_lists_topics_in_the_order_of_their_first_partitions(version: int) -> None:
    data = encode_assignment(Assignment(PARTITIONS), version)
    topics = "0001 62 00000002 00000001 00000000 0001 61 00000001 00000002"
    assert data == version.to_bytes(2, "big") + bytes.fromhex(f"00000002 {topics} ffffffff")
    grouped = [TopicPartition("b", 1), TopicPartition("b", 0), TopicPartition("a", 2)]
    assert decode_assignment(data) == Assignment(grouped)


def test_a_later_version_is_read_as_the_latest_known_one() -> None:
    data = encode_subscription(SUBSCRIPTION)
    later = b"\0\x09" + data[2:] + b"what version 9 adds"
    assert decode_subscription(later) == decode_subscription(data)
    assert decode_assignment(b"\0\x09" + encode_assignment(Assignment(PARTITIONS))[2:]).partitions


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\x03", b"\0\0\0\0\0\x01\0\x05ab"])
def test_bytes_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_subscription(data)
    with pytest.raises(DecodeError):
        decode_assignment(data)


def test_an_empty_rack_and_a_negative_generation_are_none() -> None:
    decoded = decode_subscription(encode_subscription(Subscription(["a"], generation=-7, rack="")))
    assert (decoded.rack, decoded.generation) == (None, NO_GENERATION)


def test_user_data_of_the_sticky_assignor() -> None:
    data = encode_sticky(PARTITIONS, 9)
    assert data.hex(" ", 1).replace(" ", "") == (
        "00000002" + "000161" + "00000001" + "00000002" + "000162" + "00000002" + "00000001" + "00000000" + "00000009"
    )
    partitions = [TopicPartition("a", 2), TopicPartition("b", 1), TopicPartition("b", 0)]
    assert read_sticky(Subscription([], data)) == MemberData(partitions, 9)
    # KIP-54 had no generation.
    assert read_sticky(Subscription([], data[:-4])) == MemberData(partitions, None)
    assert read_sticky(Subscription([], data[:-1])) == MemberData(partitions, None)
    assert read_sticky(Subscription([], data[:9])) == MemberData((), NO_GENERATION)
    assert read_sticky(Subscription([], b"")) == read_sticky(Subscription([])) == MemberData((), None)


def test_user_data_of_the_cooperative_sticky_assignor() -> None:
    """The generation of the subscription is preferred."""
    data = encode_cooperative(9)
    assert data == bytes.fromhex("00000009")
    assert read_cooperative(Subscription([], data, PARTITIONS)) == MemberData(PARTITIONS, 9)
    assert read_cooperative(Subscription([], data, PARTITIONS, 10)) == MemberData(PARTITIONS, 10)
    assert read_cooperative(Subscription([], data[:3], PARTITIONS)) == MemberData(PARTITIONS, NO_GENERATION)
    assert read_cooperative(Subscription([], None, PARTITIONS)) == MemberData(PARTITIONS, None)
