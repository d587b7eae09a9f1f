"""Protects kcli's own share consumer as a member of share groups, alone and together with the Java client and librdkafka.

The judge is that of test_share_live.py: each record is acknowledged once, none is delivered to two members at the same time,
locks and renewals have their time. The broker is kcli and, in the slow tier, Apache Kafka.
"""

from __future__ import annotations

import pytest

from tests.oracle import test_share_live as live

pytestmark = [pytest.mark.oracle]

broker = live.broker
judge = live.judge
Make = live.Make


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_members_come_go_and_die(judge: Make, mode: str) -> None:
    """Four members; one leaves, one is killed, and one is paused past its locks and its session."""
    live.come_go_and_die(judge(mode), "kcli", "kcli")


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
