"""Protects groups of real clients: members that come, go, die and pause read each record together, and none twice at once.

A member is a process (clients/group_member.py). The judge checks the times of events: every record is read; a partition has
one owner at a time among members that are alive; a member reads its partitions forward; committed offsets never go back; and
after each change all partitions have owners within a time that Apache Kafka keeps, too (in the slow tier).
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.conftest import Served
from tests.oracle.member_process import Event, MemberProcess

pytestmark = [pytest.mark.oracle]

BROKER_SETTINGS = (
    "auto.create.topics.enable=false",
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=5000",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=300",
    "group.consumer.assignment.interval.ms=0",
)
SESSION_MS = 5000
PARTITIONS = 6
SETTLE_SECONDS = 40  # a process that starts on a busy machine may take 20
ASK_SECONDS = 60  # a client that has lost its broker waits up to 10 s before it connects again
PAUSE_S = 0.02  # of a poll of other processes, which give no other sign
_NAMES = itertools.count()


class Member(MemberProcess):
    """A member that reads partitions as their owner."""

    def __init__(self, client: str, **settings: Any) -> None:
        self.client = client
        self._stalls = 0
        super().__init__([sys.executable, "-m", "tests.oracle.clients.group_member", client, json.dumps(settings)])

    @property
    def is_alive(self) -> bool:
        """Whether it runs and polls."""
        return super().is_alive and sum(event.kind == "resumed" for event in list(self.events)) == self._stalls

    def stall(self, seconds: float) -> None:
        """Let it not poll for a time, as an application does that works long on its records; only kcli's members do."""
        self._stalls += 1
        self.write(f"stall {seconds}")

    @property
    def owned(self) -> set[int]:
        """What it has now, by its own account."""
        found: set[int] = set()
        for event in list(self.events):
            if event.kind == "assigned":
                found |= set(event.numbers)
            elif event.kind in ("revoked", "lost"):
                found -= set(event.numbers)
        return found

    def intervals(self) -> Iterator[tuple[int, int, int]]:
        """The partitions that it had, each with the times of its assignment and of the end."""
        since: dict[int, int] = {}
        for event in [*self.events, Event(time.monotonic_ns(), "closed", ())]:
            is_end = event.kind in ("closed", "stalled")  # it does not know from then on
            ended = set(since) if is_end else set(event.numbers) if event.kind in ("revoked", "lost") else set()
            for index in ended & since.keys():
                yield index, since.pop(index), event.at_ns
            if event.kind == "assigned":
                since |= {index: event.at_ns for index in event.numbers if index not in since}


class Judge:
    """A group, and the records that a producer sends all the time."""

    def __init__(self, bootstrap: str, partitions: int = PARTITIONS, **settings: Any) -> None:
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.group = self.topic = f"live-{next(_NAMES)}"
        self.settings = {"bootstrap": bootstrap, "group": self.group, "topic": self.topic, "session_ms": SESSION_MS, **settings}
        self.members: list[Member] = []
        self.committed = [0] * self.partitions
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(self.topic, self.partitions, 1)]).values():
            made.result(60)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self.sent = [0] * self.partitions
        self._is_ending = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()
        # A consumer without a subscription is no member: it only asks what is committed.
        self._asker = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, "enable.auto.commit": False})

    def _send(self) -> None:
        while not self._is_ending.wait(PAUSE_S):
            for index in range(self.partitions):
                self._producer.produce(self.topic, b"x", partition=index)
                self.sent[index] += 1
            self._producer.poll(0)
        self._producer.flush(SETTLE_SECONDS)

    def add(self, client: str, **settings: Any) -> Member:
        member = Member(client, **self.settings, **settings)
        self.members.append(member)
        return member

    def until(self, is_so: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            owned = [sorted(member.owned) for member in self.members if member.is_alive]
            errors = [member.errors for member in self.members if member.errors]
            assert time.monotonic() < end, f"{what}: not within {seconds} s; owned are {owned}; errors are {errors}"
            time.sleep(PAUSE_S)

    def settle(self, what: str, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until the members that are alive have all partitions, and each one has its share."""

        def is_settled() -> bool:
            owned = [member.owned for member in self.members if member.is_alive]
            share = self.partitions // len(owned)
            return sorted(itertools.chain(*owned)) == list(range(self.partitions)) and all(len(one) >= share for one in owned)

        self.until(is_settled, what, seconds)
        self.check_committed()

    def check_committed(self) -> None:
        """Committed offsets only go forward."""
        found = self._asker.committed([TopicPartition(self.topic, index) for index in range(self.partitions)], ASK_SECONDS)
        offsets = [max(one.offset, 0) for one in found]
        assert all(now >= before for now, before in zip(offsets, self.committed, strict=True)), (offsets, self.committed)
        self.committed = offsets

    def end(self) -> None:
        """Send no more, wait until all is read, and judge."""
        self._is_ending.set()
        self._sender.join(SETTLE_SECONDS)
        wanted = {(index, offset) for index, count in enumerate(self.sent) for offset in range(count)}
        self.until(lambda: wanted <= self.read(), "all records are read")
        self.until(lambda: self._all_committed(), "all records are committed")
        for member in self.members:
            if member.is_alive:
                member.leave()
        self.check_owners()
        self.check_order()

    def _all_committed(self) -> bool:
        self.check_committed()
        # A broker that is killed may have written a record that it has not acknowledged: more is committed than was counted.
        return all(committed >= sent for committed, sent in zip(self.committed, self.sent, strict=True))

    def read(self) -> set[tuple[int, int]]:
        return {event.numbers for member in self.members for event in list(member.events) if event.kind == "read"}  # type: ignore[misc]

    def check_owners(self) -> None:
        """No partition had two members at a time that were there."""
        owners: dict[int, list[tuple[int, int, int]]] = {}
        for number, member in enumerate(self.members):
            for index, start, end in member.intervals():
                end = end if member.gone_ns is None or end < member.gone_ns else max(start, member.gone_ns)
                owners.setdefault(index, []).append((start, end, number))
        for index, found in owners.items():
            for one, other in itertools.pairwise(sorted(found)):
                assert one[1] <= other[0] or one[2] == other[2], f"partition {index} had two members: {one}, {other}"

    def check_order(self) -> None:
        """From an assignment on, a member reads each partition forward, and nothing that it does not have."""
        for member in self.members:
            positions: dict[int, int] = {}
            for event in member.events:
                if event.kind == "assigned":
                    positions |= dict.fromkeys(event.numbers, -1)
                elif event.kind == "read" and member.gone_ns is None:
                    index, offset = event.numbers
                    assert offset > positions[index], f"partition {index} goes back to {offset}"
                    positions[index] = offset

    def close(self) -> None:
        self._is_ending.set()
        for member in self.members:
            member.close()
        self._asker.close()


@pytest.fixture
def judge(served: Served) -> Iterator[Callable[..., Judge]]:
    made: list[Judge] = []

    def make(**settings: Any) -> Judge:
        made.append(Judge(served.bootstrap, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


SHORT = {
    "librdkafka": ("confluent", {"assignor": "cooperative-sticky"}),
    "librdkafka, consumer protocol": ("confluent", {"protocol": "consumer"}),
    "kafka-python": ("kafka-python", {}),
    "aiokafka": ("aiokafka", {}),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", SHORT)
def test_members_come_go_and_die(judge: Callable[..., Judge], name: str) -> None:
    """Three members join, one leaves, and one is killed."""
    client, settings = SHORT[name]
    group = judge(**settings)
    first = group.add(client)
    group.settle("the first member")
    second, third = group.add(client), group.add(client)
    group.settle("three members")
    first.leave()
    group.settle("the first one has left")
    second.kill()
    group.settle("the second one is dead")
    assert len(third.owned) == PARTITIONS
    group.end()


LONG = {
    "librdkafka": ("confluent", ({}, {"assignor": "roundrobin"}, {"assignor": "cooperative-sticky"})),
    "librdkafka, consumer protocol": (
        "confluent",
        ({"protocol": "consumer", "assignor": "uniform"}, {"protocol": "consumer", "assignor": "range"}),
    ),
    "kafka-python": ("kafka-python", tuple({"assignor": one} for one in ("roundrobin", "sticky", "cooperative-sticky"))),
    "aiokafka": ("aiokafka", ({"assignor": "roundrobin"}, {"assignor": "sticky"})),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("client", "settings"),
    [
        pytest.param(client, settings, id=f"{name} {settings.get('assignor', '')}")
        for name, (client, variants) in LONG.items()
        for settings in variants
    ],
)
def test_a_long_life(judge: Callable[..., Judge], client: str, settings: dict[str, Any], is_static: bool) -> None:
    """Up to six members join, leave, are killed and come back; one is paused past its session and goes on."""
    rng = random.Random(f"{client}{settings}{is_static}")
    group = judge(**settings)
    instances = itertools.count()

    def add() -> Member:
        return group.add(client, **({"instance": f"i{next(instances)}"} if is_static else {}))

    for _ in range(3):
        add()
    group.settle("three members")
    for step in range(6):
        alive = [member for member in group.members if member.is_alive]
        action = rng.choice(("add", "leave", "kill")) if 1 < len(alive) < PARTITIONS else "add" if len(alive) < 2 else "leave"
        if action == "add":
            add()
        elif action == "leave":
            rng.choice(alive).leave()
        else:
            rng.choice(alive).kill()
        group.settle(f"step {step}: {action}", SETTLE_SECONDS * (3 if is_static else 1))
    if len([member for member in group.members if member.is_alive]) < 2:
        add()
        group.settle("another one")
    paused = next(member for member in group.members if member.is_alive)
    paused.pause()
    group.settle("one is paused", SETTLE_SECONDS * 2)
    before = len(paused.events)
    paused.resume()
    group.until(lambda: any(event.kind == "assigned" for event in paused.events[before:]), "the paused one is back")
    group.until(
        lambda: (
            sorted(itertools.chain(*(one.owned for one in group.members if one.is_alive or one is paused)))
            == list(range(PARTITIONS))
        ),
        "all together",
    )
    paused.leave()
    group.settle("without it")
    group.end()
