"""Protects groups of clients in other languages: Java, franz-go and KafkaJS, alone and together with those of Python.

The judge is that of test_groups_live.py. Members of different clients are in one group where they have an assignor of the
same name, or where the broker assigns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.oracle import test_groups_live as live
from tests.oracle.clients.installed import member_command_of
from tests.oracle.conftest import Served

pytestmark = [pytest.mark.oracle]

BROKER_SETTINGS = live.BROKER_SETTINGS
START_SECONDS = 60  # until a JVM or two have joined on a machine that has other work
OF_PROGRAMS = ("java", "franz-go", "kafkajs")
# The clients that can be in one group, and its settings.
MIXED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "range": (("java", "franz-go", "confluent", "kafka-python", "aiokafka"), {"assignor": "range"}),
    "consumer protocol": (("java", "franz-go", "confluent"), {"protocol": "consumer"}),
}
LONG_MIXED = {
    **MIXED,
    "roundrobin": (MIXED["range"][0], {"assignor": "roundrobin"}),
    "cooperative-sticky": (("java", "franz-go", "confluent"), {"assignor": "cooperative-sticky"}),
    "consumer protocol, range": (MIXED["consumer protocol"][0], {"protocol": "consumer", "assignor": "range"}),
}
SHORT = {
    "kafkajs": ("kafkajs", {}),
    "java": ("java", {"assignor": "cooperative-sticky"}),
    "java, consumer protocol": ("java", {"protocol": "consumer"}),
    "franz-go": ("franz-go", {"assignor": "cooperative-sticky"}),
    "franz-go, consumer protocol": ("franz-go", {"protocol": "consumer"}),
}
LONG = [
    (client, settings)
    for client in ("java", "franz-go")
    for settings in (
        *({"assignor": one} for one in ("range", "roundrobin", "sticky", "cooperative-sticky")),
        *({"protocol": "consumer", "assignor": one} for one in ("uniform", "range")),
    )
]


class Group(live.Judge):
    """A group with members of any client."""

    def __init__(self, bootstrap: str, command_of: Callable[[str], list[str]], **settings: Any) -> None:
        self._command_of = command_of
        super().__init__(bootstrap, **settings)

    def add(self, client: str, **settings: Any) -> live.Member:
        if client in OF_PROGRAMS:
            return super().add("program", command=self._command_of(client), **settings)
        return super().add(client, **settings)

    def alive(self) -> list[live.Member]:
        return [member for member in self.members if member.is_alive]


@pytest.fixture(scope="module")
def command_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The words that start a member with a client; it is built, or fetched, when it is asked for the first time."""
    work_dir = tmp_path_factory.mktemp("members")
    known: dict[str, list[str]] = {}

    def command(client: str) -> list[str]:
        if client not in known:
            known[client] = member_command_of(client, lambda: request.getfixturevalue("kafka_peer"), work_dir)
        return known[client]

    return command


@pytest.fixture
def group_of(served: Served, command_of: Callable[[str], list[str]]) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(**settings: Any) -> Group:
        made.append(Group(served.bootstrap, command_of, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ci if name == "kafkajs" else pytest.mark.slow) for name in SHORT]
)
def test_members_come_go_and_die(group_of: Callable[..., Group], name: str) -> None:
    """Three members of one client join, one leaves, and one is killed."""
    client, settings = SHORT[name]
    come_go_and_die(group_of(**settings), client)


def come_go_and_die(group: Group, client: str) -> None:
    first = group.add(client)
    group.settle("the first member", START_SECONDS)
    second, third = group.add(client), group.add(client)
    group.settle("three members", START_SECONDS)
    first.leave()
    group.settle("the first one has left")
    second.kill()
    group.settle("the second one is dead")
    assert len(third.owned) == live.PARTITIONS
    group.end()


@pytest.mark.ci
@pytest.mark.parametrize("name", MIXED)
def test_clients_share_a_group(group_of: Callable[..., Group], name: str) -> None:
    """One member of each client joins; the first one leaves, and the second one is killed."""
    clients, settings = MIXED[name]
    share_a_group(group_of(**settings), clients)


def share_a_group(group: Group, clients: tuple[str, ...]) -> None:
    for client in clients:
        group.add(client)
    group.settle("all clients", START_SECONDS)
    group.members[0].leave()
    group.settle("the first one has left")
    group.members[1].kill()
    group.settle("the second one is dead")
    group.end()


@pytest.mark.slow
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("client", "settings"), [pytest.param(*one, id=f"{one[0]} {' '.join(one[1].values())}") for one in LONG]
)
def test_a_long_life(group_of: Callable[..., Group], client: str, settings: dict[str, Any], is_static: bool) -> None:
    """Up to six members of one client join, leave, are killed and come back; one is paused past its session and goes on."""
    live.test_a_long_life(group_of, client, settings, is_static)


@pytest.mark.slow
def test_a_long_life_of_kafkajs(group_of: Callable[..., Group]) -> None:
    """It has no static members, and one assignor."""
    live.test_a_long_life(group_of, "kafkajs", {}, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_MIXED)
def test_ten_members_of_many_clients(group_of: Callable[..., Group], name: str) -> None:
    """Ten members join; then they leave, are killed and are paused in a random order until two are left."""
    clients, settings = LONG_MIXED[name]
    grow_to_ten_and_shrink(group_of(**settings), clients, random.Random(name))


def grow_to_ten_and_shrink(group: Group, clients: Iterable[str], rng: random.Random, stall_s: float = 0) -> None:
    """Let ten members join, and leave, die, pause or, with `stall_s`, not poll for a time, until two are left."""
    for client in itertools.islice(itertools.cycle(clients), 10):
        group.add(client)
    group.settle("ten members", START_SECONDS * 3)
    paused: list[live.Member] = []
    stalled: set[live.Member] = set()
    while len(group.alive()) > 2:
        member = rng.choice(group.alive())
        action = rng.choice(("leave", "kill", "pause"))
        if stall_s and len(stalled) < 2 and member.client == "kcli" and member not in stalled:
            action = "stall"
        where = f"{action} of member {group.members.index(member)}"
        if action == "stall":
            member.stall(stall_s)
            stalled.add(member)
            group.settle(where, live.SETTLE_SECONDS * 2)
            group.until(lambda one=member: one.is_alive, "the stalled one is back")
            where = f"the end of the {where}"
        else:
            getattr(member, action)()
        if action == "pause":
            paused.append(member)
        group.settle(where, live.SETTLE_SECONDS * 2)
    for member in paused:
        before = len(member.events)
        member.resume()
        # It goes on with what it had read; it may leave before it has joined again.
        group.until(lambda one=member, first=before: len(one.events) > first, "the paused one is back")
        member.leave()
        group.settle("without it", live.SETTLE_SECONDS * 2)
    group.end()
    assert not stall_s or stalled
