"""Protects kcli's own share consumer as a member of share groups, alone and together with the Java client and librdkafka.

The judge is that of test_share_live.py: each record is acknowledged once, none is delivered to two members at the same time,
locks and renewals have their time. The broker is kcli and, in the slow tier, Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.oracle import test_share_live as live

pytestmark = [pytest.mark.oracle]

broker = live.broker
Make = Callable[..., live.Judge]


@pytest.fixture
def judge(broker: live.Broker, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[live.Judge] = []

    def make(mode: str, **settings: str) -> live.Judge:
        made.append(live.Judge(broker, lambda: request.getfixturevalue("kafka_peer"), mode, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_members_come_go_and_die(judge: Make, mode: str) -> None:
    """Four members; one leaves, one is killed, and one is paused past its locks and its session."""
    group = judge(mode)
    group.start_sending()
    first, second = group.add("kcli"), group.add("kcli")
    group.settle("two members")
    third = group.add("kcli")
    group.add("java")
    group.settle("four members")
    second.leave()
    group.settle("one has left")
    first.kill()
    group.settle("one is dead")
    third.pause()
    time.sleep(live.LOCK_MS / 1000 + 3)
    group.settle("one is paused")
    third.resume()
    group.settle("it goes on")
    group.end()


@pytest.mark.ci
@pytest.mark.parametrize("acquire_mode", ["batch_optimized", "record_limit"])
def test_one_member_acknowledges_everything(judge: Make, acquire_mode: str) -> None:
    """One member reads what is renewed, held past its lock, released and rejected."""
    group = judge("explicit", acquire_mode=acquire_mode)
    for value in ("renew", "hold", "release", "reject", "poison", *["accept"] * 60):
        group.send(0, value)
    group.start_sending()
    group.add("kcli")
    group.settle("it reads")
    group.end()


@pytest.mark.slow
def test_the_broker_is_killed(judge: Make) -> None:
    """The broker dies and comes back: members go on."""
    group = judge("explicit")
    group.start_sending()
    for client in ("kcli", "java", "kcli"):
        group.add(client)
    group.settle("three members")
    group.restart_broker(1.0)
    group.settle("the broker is back")
    group.end()
