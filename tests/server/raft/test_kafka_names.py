"""Protects that each situation which Kafka tests in its module raft has a counterpart here, or a reason why not."""

from __future__ import annotations

from pathlib import Path

from tests.server.kafka_names import counterparts

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
    assert list(counterparts(RAFT / "kafka_names.txt", CLASSES, (RAFT, RAFT.parent / "controller")))
