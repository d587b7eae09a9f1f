"""Protects Kafka Streams 4.3.1 and 4.4.0 on kcli: words are counted by group.protocol=streams.

An instance stops in the middle. Two instances share the tasks of two subtopologies with a repartition topic, a changelog and
standby tasks, which the broker makes and assigns; with transactions, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.conftest import Served
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

BROKER_SETTINGS = (
    "group.streams.min.heartbeat.interval.ms=100",
    "group.streams.heartbeat.interval.ms=200",
    "group.streams.initial.rebalance.delay.ms=500",
    "group.streams.assignment.interval.ms=0",
)
LINES = 200  # of each half of the input


def counted(halves: int) -> str:
    """The counts of the words, as Java prints a sorted map."""
    counts = {"all": LINES * halves} | {f"half{half}": LINES for half in range(halves)}
    counts |= {f"w{word}": halves * len(range(word, LINES, 7)) for word in range(7)}
    return "{" + ", ".join(f"{word}={count}" for word, count in sorted(counts.items())) + "}"


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_words_are_counted(served: Served, each_kafka: Peer, tmp_path: Path, guarantee: str) -> None:
    """Every word is counted once, and the group is as Kafka's tools see it."""
    each_kafka.add_libraries(f"org.apache.kafka:kafka-streams:{each_kafka.version}")
    application = f"count-{guarantee.replace('_', '-')}-{each_kafka.version}"
    arguments = [served.bootstrap, application, guarantee, str(tmp_path)]
    ran = each_kafka.run_java("StreamsWordCount", arguments, timeout_seconds=240)
    seen = dict(line.split(" ", 1) for line in ran.stdout.decode().splitlines())
    assert ran.exit_code == 0, (seen, ran.stderr[-4000:])
    committed = str(2 * LINES) if guarantee == "at_least_once" else "true"
    expected = {"half": counted(1), "state": "Stable", "subtopologies": "2", "members": "3", "all": counted(2)}
    assert seen == expected | {"committed": committed, "deleted": "true"}
