"""Protects that each situation which Kafka tests in the life of a broker has a counterpart here, or a reason why not."""

from __future__ import annotations

from pathlib import Path

from tests.server.kafka_names import counterparts

BROKER = Path(__file__).parent
# The classes with their number of test methods in Kafka 4.3.1.
CLASSES = {"BrokerLifecycleManagerTest": 9}


def test_every_name_has_a_counterpart_or_a_reason() -> None:
    """The counterparts exist, by file and function."""
    assert list(counterparts(BROKER / "kafka_names.txt", CLASSES, (BROKER, BROKER.parent / "controller")))
