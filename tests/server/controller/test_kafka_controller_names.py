"""Protects that each situation which Kafka tests in its controller has a counterpart here, or a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

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
    tests = {
        f"{path.stem}::{name}"
        for folder in (FOLDER, FOLDER.parent / "broker", TESTS / "state")
        for path in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    rows = (FOLDER / "test_partition_change_builder.py").read_text()
    counts: dict[str, int] = {}
    class_name, wrong = "", []
    for line in (FOLDER / "kafka_names.txt").read_text().splitlines()[2:]:
        if line in CLASSES:
            class_name = line
        elif line:
            counts[class_name] = counts.get(class_name, 0) + 1
            name, sign, rest = line.split(" ", 2)
            if sign == "=":
                wrong += [f"{name}: {one}" for one in rest.split(", ") if one not in tests]
                if rest.endswith("::test_kafkas_situations") and f'"{name.removeprefix("test")}"' not in rows:
                    wrong.append(f"{name} is not a row of test_kafkas_situations")
            elif sign != "-" or len(rest) < 10:
                wrong.append(line)
    assert not wrong, "\n".join(["", *wrong])
    assert counts == CLASSES
