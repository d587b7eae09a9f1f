"""Protects the election's table of steps, and that quorum-state is what a node begins with again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import QuorumStateData
from kcli.log.disk.os_disk import OsDisk
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.server.raft.quorum_state import OneVoterState, QuorumStateError, QuorumStateStore, Role

DIRECTORY = Uuid(b"\1" * 16)


def node(*, is_voter: bool = True) -> OneVoterState:
    return OneVoterState(1, DIRECTORY, is_voter=is_voter, is_only_voter=is_voter)


def test_the_only_voter_goes_from_epoch_to_epoch() -> None:
    """Candidate with its own vote, leader without one, resigned in the same epoch, candidate in the next."""
    state = node()
    state.become_candidate()
    assert (state.role, state.epoch, state.voted_id, state.voted_directory_id) == (Role.CANDIDATE, 1, 1, DIRECTORY)
    state.become_leader()
    assert (state.role, state.epoch, state.leader_id, state.voted_id) == (Role.LEADER, 1, 1, -1)
    state.become_resigned()
    assert (state.epoch, state.leader_id) == (1, -1)
    state.become_candidate()
    assert state.epoch == 2


def test_wrong_steps_are_refused() -> None:
    """Who did not stand does not lead; who leads does not follow in its epoch; no epoch comes twice; observers do not stand."""
    with pytest.raises(QuorumStateError, match="cannot become leader"):
        node().become_leader()
    state = node()
    state.become_follower(3, 2)
    with pytest.raises(QuorumStateError, match="cannot be the leader of epoch 3"):
        state.become_follower(3, 4)
    with pytest.raises(QuorumStateError, match="is over"):
        state.become_unattached(2)
    state.become_unattached(4)
    assert (state.role, state.leader_id) == (Role.UNATTACHED, -1)
    with pytest.raises(QuorumStateError, match="not a voter"):
        node(is_voter=False).become_candidate()
    leader = node()
    leader.become_candidate()
    leader.become_leader()
    with pytest.raises(QuorumStateError, match="cannot become candidate"):
        leader.become_candidate()


@pytest.mark.parametrize(
    ("stored", "log_epoch", "role", "epoch"),
    [
        (None, 0, Role.UNATTACHED, 0),
        (QuorumStateData(1, 1, 5, -1), 5, Role.RESIGNED, 5),
        (QuorumStateData(1, -1, 5, 1, DIRECTORY), 4, Role.CANDIDATE, 5),
        (QuorumStateData(1, 2, 5, -1), 5, Role.FOLLOWER, 5),
        (QuorumStateData(1, -1, 5, 2), 5, Role.UNATTACHED, 5),
        (QuorumStateData(1, 1, 5, -1), 6, Role.UNATTACHED, 6),
    ],
)
def test_a_node_begins_where_it_stopped(stored: QuorumStateData | None, log_epoch: int, role: Role, epoch: int) -> None:
    """A leader begins as resigned, a candidate as such; a log of a later epoch overrides the file."""
    state = node()
    state.restore(stored, log_epoch)
    assert (state.role, state.epoch) == (role, epoch)


def test_the_file_has_the_form_of_the_kraft_version(tmp_path: Path) -> None:
    """Version 0 names the voters of a static quorum, version 1 the voted directory; a resigned leader is still its epoch's."""
    state = node()
    state.become_candidate()
    state.become_leader()
    assert state.stored(0, (1,)) == QuorumStateData(0, 1, 1, -1, current_voters=(1,))
    state.become_resigned()
    assert state.stored(1, (1,)) == QuorumStateData(1, 1, 1, -1)
    store = QuorumStateStore(OsDisk(), str(tmp_path))
    assert store.read() is None
    store.write(state.stored(1, (1,)))
    assert store.read() is None, "what is not flushed has no name yet"
    store.publish()
    assert store.read() == state.stored(1, (1,))
    (tmp_path / "quorum-state").write_text("{")
    with pytest.raises(MetadataLogError, match="cannot be read"):
        store.read()
