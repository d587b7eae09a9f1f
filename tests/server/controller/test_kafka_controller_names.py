"""Protects that each situation which Kafka tests in its controller has a counterpart here, or a reason why not."""

from __future__ import annotations

from pathlib import Path

from tests.server.kafka_names import counterparts

FOLDER = Path(__file__).parent
TESTS = FOLDER.parents[1]
# The classes with their number of test methods in Kafka 4.3.1.
CLASSES = {
    "ReplicationControlManagerTest": 58,
    "ClusterControlManagerTest": 20,
    "BrokerHeartbeatManagerTest": 6,
    "PartitionChangeBuilderTest": 32,
    "QuorumControllerTest": 28,
}


def test_every_name_has_a_counterpart_or_a_reason() -> None:
    """The counterparts exist, by file and function; a row of test_kafkas_situations has Kafka's name."""
    rows = (FOLDER / "test_partition_change_builder.py").read_text()
    folders = (FOLDER, FOLDER.parent / "broker", TESTS / "state")
    for name, tests in counterparts(FOLDER / "kafka_names.txt", CLASSES, folders):
        is_row = any(one.endswith("::test_kafkas_situations") for one in tests)
        assert not is_row or f'"{name.removeprefix("test")}"' in rows, f"{name} is not a row of test_kafkas_situations"
