"""Protects the election's table of steps, and that quorum-state is what a node begins with again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import QuorumStateData
from kcli.log.disk.os_disk import OsDisk
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import Election, ListenerEndpoint, ReplicaKey
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.server.raft.quorum_state import (
    NEVER_MS,
    QuorumState,
    QuorumStateError,
    QuorumStateStore,
    Role,
    quorum_state_data,
    stored_election,
)

DIRECTORY = Uuid(b"\1" * 16)
LOCAL = ReplicaKey(1, DIRECTORY)
ENDPOINTS = (ListenerEndpoint("CONTROLLER", "localhost", 9093),)
VOTERS = (1, 2, 3)


def candidate() -> QuorumState:
    """A candidate of epoch 1, with the vote of node 2."""
    state = QuorumState(LOCAL)
    state.become_prospective(VOTERS, 100)
    state.become_candidate(VOTERS, 200)
    assert state.ballot is not None
    state.ballot.add(2, is_granted=True)
    return state


def leader() -> QuorumState:
    state = candidate()
    state.become_leader(LeaderState(LOCAL, 0, (), 3000, 0), ENDPOINTS)
    return state


def test_a_voter_goes_from_epoch_to_epoch() -> None:
    """Candidate with its own vote, leader without one, resigned in the same epoch, whose leader it still is in its file."""
    assert candidate().election == Election(1, -1, LOCAL)
    state = leader()
    assert state.election == Election(1, 1, None)
    assert state.deadline_ms == NEVER_MS
    state.become_resigned((), frozenset({2, 3}), 500)
    assert (state.role, state.election) == (Role.RESIGNED, Election(1, 1, None))
    state.become_unattached(2, 900)
    assert state.election == Election(2)


def test_wrong_steps_are_refused() -> None:
    """Without a majority none leads; who leads does not follow in its epoch; no epoch comes twice and none has two leaders."""
    state = QuorumState(LOCAL)
    with pytest.raises(QuorumStateError, match="cannot become leader"):
        state.become_leader(LeaderState(LOCAL, 0, (), 3000, 0), ENDPOINTS)
    state.become_prospective(VOTERS, 100)
    state.become_candidate(VOTERS, 200)
    with pytest.raises(QuorumStateError, match="does not have a majority"):
        state.become_leader(LeaderState(LOCAL, 0, (), 3000, 0), ENDPOINTS)
    state.become_follower(3, 2, ENDPOINTS, 300)
    with pytest.raises(QuorumStateError, match="cannot be the leader of epoch 3"):
        state.become_follower(3, 4, ENDPOINTS, 300)
    with pytest.raises(QuorumStateError, match="cannot follow itself"):
        state.become_follower(4, 1, ENDPOINTS, 300)
    with pytest.raises(QuorumStateError, match="is over"):
        state.become_unattached(2, 300)
    with pytest.raises(QuorumStateError, match="cannot become unattached in it"):
        leader().become_unattached(1, 300)


def test_the_vote_of_an_epoch_stays() -> None:
    """Through all roles that the node has in it; a second vote is refused; the next epoch has none."""
    other = ReplicaKey(2, DIRECTORY)
    state = QuorumState(LOCAL)
    state.become_unattached(1, 100, voted=other)
    state.become_prospective(VOTERS, 200)
    assert state.voted == other
    state.become_unattached(1, 300)
    with pytest.raises(QuorumStateError, match="has voted for node 2"):
        state.become_unattached(1, 300, voted=ReplicaKey(3, DIRECTORY))
    state.become_follower(1, 3, ENDPOINTS, 400)
    assert state.election == Election(1, 3, other)
    state.become_unattached(2, 500)
    assert state.voted is None


@pytest.mark.parametrize(
    ("stored", "log_epoch", "role", "expected"),
    [
        (None, 0, Role.UNATTACHED, Election()),
        (QuorumStateData(1, 1, 5, -1), 5, Role.RESIGNED, Election(5, 1)),
        (QuorumStateData(1, -1, 5, 1, DIRECTORY), 4, Role.CANDIDATE, Election(5, -1, LOCAL)),
        (QuorumStateData(1, -1, 5, 1, Uuid(b"\2" * 16)), 4, Role.UNATTACHED, Election(5, -1, ReplicaKey(1, Uuid(b"\2" * 16)))),
        (QuorumStateData(1, 2, 5, -1), 5, Role.UNATTACHED, Election(5, 2)),
        (QuorumStateData(1, -1, 5, 2), 5, Role.UNATTACHED, Election(5, -1, ReplicaKey(2))),
        (QuorumStateData(1, 1, 5, -1), 6, Role.UNATTACHED, Election(6)),
    ],
)
def test_a_node_begins_where_it_stopped(stored: QuorumStateData | None, log_epoch: int, role: Role, expected: Election) -> None:
    """A leader as resigned, a candidate as such unless its disk was exchanged; a log of a later epoch overrides the file."""
    state = QuorumState(LOCAL)
    state.restore(None if stored is None else stored_election(stored), log_epoch, is_voter=True)
    assert (state.role, state.election) == (role, expected)


def test_the_file_has_the_form_of_the_kraft_version(tmp_path: Path) -> None:
    """Version 0 names the voters of a static quorum, version 1 the voted directory."""
    election = Election(7, -1, ReplicaKey(2, DIRECTORY))
    assert quorum_state_data(election, 0, (1, 2)) == QuorumStateData(0, -1, 7, 2, current_voters=(1, 2))
    data = quorum_state_data(election, 1, (1, 2))
    assert data == QuorumStateData(1, -1, 7, 2, DIRECTORY)
    assert stored_election(data) == election
    store = QuorumStateStore(OsDisk(), str(tmp_path))
    assert store.read() is None
    store.write(data)
    assert store.read() is None, "what is not flushed has no name yet"
    store.publish()
    assert store.read() == data
    (tmp_path / "quorum-state").write_text("{")
    with pytest.raises(MetadataLogError, match="cannot be read"):
        store.read()
