"""Protects kcli's own consumer as a member of groups, alone and together with the Java client, librdkafka and kafka-python.

The judge is that of test_groups_live.py: each record is read, no partition belongs to two members at the same time, commits go
forward only, and the members that are left share all partitions. The broker is kcli and, in the slow tier, Apache Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import test_groups_live as live
from tests.oracle.brokers import KcliBroker
from tests.oracle.test_groups_of_clients_live import (
    START_SECONDS,
    Group,
    come_go_and_die,
    command_of,
    group_of,
    grow_to_ten_and_shrink,
    share_a_group,
)

pytestmark = [pytest.mark.oracle]

__all__ = ["command_of", "group_of"]
BROKER_SETTINGS = live.BROKER_SETTINGS
CLASSIC = ("range", "roundrobin", "sticky", "cooperative-sticky")
TEN = ("cooperative-sticky", "consumer protocol")  # of ten members, in the ci tier
MAX_POLL_MS = 6000
STALL_S = 8.0
ALONE: dict[str, dict[str, Any]] = {
    **{name: {"assignor": name} for name in CLASSIC},
    "consumer protocol": {"protocol": "consumer"},
}
MIXED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "range": (("kcli", "java", "confluent", "kafka-python"), {"assignor": "range"}),
    "roundrobin": (("java", "kcli", "confluent", "kafka-python"), {"assignor": "roundrobin"}),
    "sticky": (("kcli", "java", "kcli"), {"assignor": "sticky"}),
    "cooperative-sticky": (("java", "kcli", "confluent"), {"assignor": "cooperative-sticky"}),
    "consumer protocol": (("kcli", "java", "confluent"), {"protocol": "consumer"}),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", ALONE)
def test_members_come_go_and_die(group_of: Callable[..., Group], name: str) -> None:
    """Three members join, one leaves, and one is killed."""
    come_go_and_die(group_of(**ALONE[name]), "kcli")


@pytest.mark.ci
@pytest.mark.parametrize("name", MIXED)
def test_clients_share_a_group(group_of: Callable[..., Group], name: str) -> None:
    """One member of each client joins; the first one leaves, and the second one is killed."""
    clients, settings = MIXED[name]
    share_a_group(group_of(**settings), clients)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["cooperative-sticky", "consumer protocol"])
def test_the_broker_is_killed(tmp_path: Path, kcli_serves: None, command_of: Callable[[str], list[str]], name: str) -> None:
    """The broker dies and comes back: the members find their coordinator and their partitions again."""
    with KcliBroker(tmp_path, *BROKER_SETTINGS) as broker:
        group = Group(broker.bootstrap, command_of, **ALONE[name])
        try:
            group.add("kcli")
            group.add("kcli")
            group.settle("two members", START_SECONDS)
            for _ in range(2):
                broker.kill()
                broker.start()
                group.settle("the broker is back", START_SECONDS)
            group.end()
        finally:
            group.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
def test_a_long_life(group_of: Callable[..., Group], name: str, is_static: bool) -> None:
    """Up to six members join, leave, are killed and come back; one is paused past its session and goes on."""
    live.test_a_long_life(group_of, "kcli", ALONE[name], is_static)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if name in TEN else pytest.mark.slow) for name in ALONE],
)
def test_ten_members(group_of: Callable[..., Group], name: str) -> None:
    """Ten members join; they leave, are killed, are paused past their sessions, and do not poll for max.poll.interval.ms."""
    group = group_of(partitions=12, max_poll_ms=MAX_POLL_MS, **ALONE[name])
    grow_to_ten_and_shrink(group, ["kcli"], random.Random(name), STALL_S)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
def test_ten_members_of_many_clients(group_of: Callable[..., Group], name: str) -> None:
    """The same with the Java client, librdkafka and kafka-python; only members of kcli do not poll for a time."""
    clients, settings = MIXED[name]
    group = group_of(partitions=12, max_poll_ms=MAX_POLL_MS, **settings)
    grow_to_ten_and_shrink(group, clients, random.Random(name), STALL_S)
