"""Protects: new partitions get the committed offset of their group, of their own time in the assignment and no earlier one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kcli.client.consumer.initial_positions import InitialPositions
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    EARLIEST,
    FetchPosition,
    FetchState,
    SubscriptionState,
)
from kcli.client.errors import KafkaError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.protocol import error_codes
from tests.client.clients_of_node import Client

T0, T1 = ("t", 0), ("t", 1)


class Answering:
    """A membership whose answers the test gives."""

    is_ready_to_fetch = True

    def __init__(self) -> None:
        self.asked: list[tuple[list[tuple[str, int]], Callable[[Any, int], None]]] = []

    def committed(self, partitions: Collection[tuple[str, int]], done: Any, now_ms: int, timeout_ms: int) -> None:
        self.asked.append((sorted(partitions), done))


def consumer(*partitions: tuple[str, int]) -> tuple[SubscriptionState, Answering, InitialPositions]:
    subscriptions, group = SubscriptionState(EARLIEST), Answering()
    subscriptions.subscribe(["t"])
    subscriptions.assign_from_subscribed(partitions)
    network = Client("one", 0).network
    found = InitialPositions(
        network,
        subscriptions,
        group,
        PositionErrors(),
        subscriptions.seek,
        lambda: None,  # type: ignore[arg-type]
    )
    subscriptions.add_assignment_listener(found.keep)
    return subscriptions, group, found


def test_an_answer_of_an_earlier_assignment_is_not_used() -> None:
    """Another member may have had the partition in between, and have committed."""
    subscriptions, group, positions = consumer(T0, T1)
    positions.poll(0)
    subscriptions.assign_from_subscribed((T1,))
    subscriptions.assign_from_subscribed((T0, T1))
    positions.poll(0)
    (_, earlier), (partitions, later) = group.asked
    assert partitions == [T0]
    earlier({T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)}, 0)
    assert subscriptions.state_of(T0).state is FetchState.INITIALIZING
    assert subscriptions.position(T1) == FetchPosition(6)
    positions.poll(0)
    assert len(group.asked) == 2
    later({T0: OffsetAndMetadata(9)}, 0)
    assert subscriptions.position(T0) == FetchPosition(9)


def test_before_the_assignment_is_settled_only_awaited_positions_are_found() -> None:
    """The listener may ask for the position of a new partition, which would never come: its call has not ended."""
    subscriptions, group, positions = consumer(T0, T1)
    group.is_ready_to_fetch = False
    positions.poll(0)
    assert group.asked == []
    positions.poll(0, [T1])
    positions.poll(0, [T1])
    ((partitions, done),) = group.asked
    assert partitions == [T1]
    done({T1: OffsetAndMetadata(3)}, 0)
    assert subscriptions.position(T1) == FetchPosition(3) and subscriptions.position(T0) is None


def test_a_member_that_is_in_its_group_no_longer_gets_no_error() -> None:
    """It finds that out with its next heartbeat, and joins again; the application can do nothing about it."""
    subscriptions, group, positions = consumer(T0)
    errors = positions._errors
    positions.poll(0)
    group.asked.pop()[1](KafkaError(error_codes.UNKNOWN_MEMBER_ID), 0)
    assert not errors
    positions.poll(1000)
    group.asked.pop()[1](KafkaError(error_codes.GROUP_AUTHORIZATION_FAILED), 1000)
    assert isinstance(errors.take(), KafkaError)
    positions.poll(2000)
    group.asked.pop()[1]({T0: OffsetAndMetadata(3)}, 2000)
    assert subscriptions.position(T0) == FetchPosition(3)
