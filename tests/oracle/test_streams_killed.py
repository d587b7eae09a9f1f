"""Protects exactly-once processing by Kafka Streams 4.3.1: instances are killed, and every word is counted once all the same.

Both group protocols; word_counts.py says how the counts are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle import word_counts
from tests.oracle.conftest import Served
from tests.oracle.peer import Peer
from tests.oracle.word_counts import Counting

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

BROKER_SETTINGS = (
    *word_counts.BROKER_SETTINGS,
    "group.streams.min.session.timeout.ms=1000",
    "group.streams.session.timeout.ms=6000",
    "group.streams.min.heartbeat.interval.ms=100",
    "group.streams.heartbeat.interval.ms=500",
    "group.streams.initial.rebalance.delay.ms=500",
    "group.streams.assignment.interval.ms=0",
    "group.streams.num.standby.replicas=1",
)


@pytest.fixture(params=["classic", "streams"])
def counting(served: Served, kafka_peer: Peer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Counting]:
    kafka_peer.add_libraries("org.apache.kafka:kafka-streams:4.3.1")
    protocol: str = request.param
    command = kafka_peer.java_command("StreamsInstance", [served.bootstrap, f"killed-{protocol}", protocol])
    made = Counting(served.bootstrap, f"killed-{protocol}", lambda number, state: [*command, str(state), str(number)], tmp_path)
    yield made
    made.close()


def test_killed_instances_count_every_word_once(counting: Counting) -> None:
    """One of two instances is killed, comes back with its state, the other one is killed, and then both."""
    counting.start(0)
    counting.start(1)
    counting.go_on("two instances")
    counting.kill(0)
    counting.go_on("the first one is killed")
    counting.start(0)
    counting.go_on("the first one is back")
    counting.kill(1)
    counting.go_on("the second one is killed")
    counting.start(1)
    counting.go_on("the second one is back")
    counting.kill(0)
    counting.kill(1)
    counting.start(0)
    counting.go_on("both are killed, and one is back")
    counting.end()
