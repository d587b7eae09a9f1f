"""Protects that each situation which Kafka tests in its module raft has a counterpart here, or a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

RAFT = Path(__file__).parent
# The classes with their number of test methods in Kafka 4.3.1.
CLASSES = {
    "KafkaRaftClientTest": 122,
    "KafkaRaftClientSnapshotTest": 39,
    "KafkaRaftClientPreVoteTest": 24,
    "KafkaRaftClientReconfigTest": 58,
    "KafkaRaftClientFetchTest": 14,
    "KafkaRaftClientAutoJoinTest": 6,
    "QuorumStateTest": 98,
    "LeaderStateTest": 25,
    "CandidateStateTest": 15,
    "ProspectiveStateTest": 17,
    "FollowerStateTest": 7,
    "UnattachedStateTest": 5,
    "ResignedStateTest": 4,
    "RaftEventSimulationTest": 9,
    "VoterSetHistoryTest": 9,
    "KRaftControlRecordStateMachineTest": 8,
}


def test_every_name_has_a_counterpart_or_a_reason() -> None:
    """The counterparts exist, by file and function."""
    tests = {
        f"{path.stem}::{name}"
        for folder in (RAFT, RAFT.parent / "controller")
        for path in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    counts: dict[str, int] = {}
    name_of_class = ""
    wrong = []
    for line in (RAFT / "kafka_names.txt").read_text().splitlines()[2:]:
        if line in CLASSES:
            name_of_class = line
        elif line:
            counts[name_of_class] = counts.get(name_of_class, 0) + 1
            name, sign, rest = line.split(" ", 2)
            if sign == "=":
                wrong += [f"{name}: {one}" for one in rest.split(", ") if one not in tests]
            elif sign != "-" or len(rest) < 10:
                wrong.append(line)
    assert not wrong, "\n".join(["", *wrong])
    assert counts == CLASSES
