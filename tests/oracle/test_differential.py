"""Protects the answers to random requests against Apache Kafka 4.3.1: classic groups, KIP-848, share groups, streams groups,
transactions, fetch sessions, a controller with invented brokers, and a leader with invented followers.

Three fixed seeds of each in the ci tier; the slow tier draws others, whose number a failure names: KCLI_SEEDS=12,13 tries these
again. One Kafka and one kcli serve all of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from tests.oracle.brokers import new_broker
from tests.oracle.differential import Rivals, Traffic
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import running_kcli
from tests.oracle.traffic.classic_groups import ClassicGroups
from tests.oracle.traffic.consumer_groups import ConsumerGroups
from tests.oracle.traffic.controllers import Controllers
from tests.oracle.traffic.fetch_sessions import FetchSessions
from tests.oracle.traffic.followers import Followers
from tests.oracle.traffic.share_groups import ShareGroups
from tests.oracle.traffic.streams_groups import StreamsGroups
from tests.oracle.traffic.transactions import Transactions

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    "auto.leader.rebalance.enable=false",
    "broker.heartbeat.interval.ms=150",
    "broker.session.timeout.ms=600000",
    "controlled.shutdown.enable=false",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.assignors=range,uniform",
    "group.consumer.max.size=5",
    "group.consumer.migration.policy=bidirectional",
    "group.consumer.min.assignment.interval.ms=0",
    "group.initial.rebalance.delay.ms=0",
    "group.max.size=4",
    "group.min.session.timeout.ms=1000",
    "group.share.assignment.interval.ms=0",
    "group.share.delivery.count.limit=3",
    "group.share.max.size=3",
    "group.share.min.assignment.interval.ms=0",
    "group.share.min.delivery.count.limit=2",
    "group.share.record.lock.duration.ms=60000",
    "group.share.session.timeout.ms=60000",
    "group.streams.assignment.interval.ms=0",
    "group.streams.initial.rebalance.delay.ms=0",
    # Of a full group Kafka 4.3 refuses also a member that joins again, since its answer may have been lost; kcli does not.
    "group.streams.max.size=5",
    "group.streams.min.assignment.interval.ms=0",
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=1",
    "replica.lag.time.max.ms=600000",
    "share.coordinator.state.topic.min.isr=1",
    "share.coordinator.state.topic.num.partitions=1",
    "share.coordinator.state.topic.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.replication.factor=1",
    # The records of a round have old timestamps: retention would delete them in one broker before the other.
    "log.retention.ms=-1",
)
# So that a request is handled after those that were sent before it, on any connection.
ONE_THREAD = ("num.network.threads=1", "num.io.threads=1")
# The last ones invent brokers, which would be given topics that have no assignment.
KINDS: tuple[Callable[[], Traffic], ...] = (
    ClassicGroups,
    ConsumerGroups,
    ShareGroups,
    StreamsGroups,
    Transactions,
    FetchSessions,
    Controllers,
    Followers,
)
DRAWN = 40


@pytest.fixture(scope="module")
def rivals(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    home = tmp_path_factory.mktemp("differential")
    (home / "kafka").mkdir()
    with (
        new_broker(kafka_peer, home / "kafka", *SETTINGS, *ONE_THREAD) as kafka,
        running_kcli(home / "kcli", *SETTINGS, "node.id=1") as kcli,
    ):
        yield Rivals(kcli, kafka)


def seeds() -> list[int]:
    """The seeds of KCLI_SEEDS, or the fixed ones."""
    named = os.environ.get("KCLI_SEEDS")
    return [int(seed) for seed in named.split(",")] if named else [1, 2, 3]


@pytest.mark.parametrize("make", KINDS)
def test_fixed_seeds(rivals: Rivals, make: Callable[[], Traffic]) -> None:
    for seed in seeds():
        rivals.check(make, seed)


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS)
def test_drawn_seeds(rivals: Rivals, make: Callable[[], Traffic]) -> None:
    for _ in range(DRAWN):
        rivals.check(make, random.randrange(10**9))
