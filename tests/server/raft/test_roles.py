"""Protects the roles: where a node starts, which steps exist, and how it stops; LeaderState and VoterHistory."""

from __future__ import annotations

import pytest

from kcli.protocol import error_codes
from kcli.server.raft.consensus import NotLeaderError
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import (
    NO_NODE,
    AppendedControl,
    BeginQuorumEpoch,
    Election,
    Endpoints,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    KRaftVersionEntry,
    LeaderChanged,
    LeaderChangeEntry,
    ReplicaKey,
    Vote,
    VoteAnswer,
    VotersEntry,
)
from kcli.server.raft.quorum_state import Ballot, QuorumState, QuorumStateError, Role
from kcli.server.raft.voter_set import VoterHistory
from tests.server.raft.quorum_context import (
    CLUSTER,
    Batches,
    Context,
    Entry,
    MemoryLog,
    commit_epoch,
    endpoints,
    fetch,
    key,
    ready,
    voter,
)


@pytest.mark.parametrize(
    ("stored", "log_epoch", "expected"),
    [
        (None, 0, ("unattached", 0, NO_NODE)),
        (None, 3, ("unattached", 3, NO_NODE)),
        (Election(5), 5, ("unattached", 5, NO_NODE)),
        (Election(5, NO_NODE, key(2)), 4, ("unattached", 5, NO_NODE)),
        (Election(5, NO_NODE, key(2)), 6, ("unattached", 6, NO_NODE)),
        (Election(5, NO_NODE, key(1)), 4, ("candidate", 5, NO_NODE)),
        (Election(5, NO_NODE, ReplicaKey(1, key(9).directory_id)), 4, ("unattached", 5, NO_NODE)),
        (Election(5, 2, None), 5, ("follower", 5, 2)),
        (Election(5, 2, key(2)), 5, ("follower", 5, 2)),
        (Election(5, 2, key(3)), 5, ("follower", 5, 2)),
        (Election(5, 8, key(3)), 5, ("unattached", 5, 8)),
        (Election(5, 1, None), 5, ("resigned", 5, 1)),
        (Election(5, 1, None), 7, ("unattached", 7, NO_NODE)),
    ],
)
def test_where_a_voter_starts(stored: Election | None, log_epoch: int, expected: tuple[str, int, int]) -> None:
    """By quorum-state and by the last epoch of the log; the vote and the leader of the file stay."""
    log = MemoryLog([Entry(log_epoch, "a", 0)] if log_epoch else [])
    node = Context(1, kraft_version=0, log=log, stored=stored)
    assert node.state == expected
    if stored is not None and stored.epoch == expected[1]:
        assert node.core.quorum.voted == stored.voted
        assert node.stored == stored
    else:
        assert node.stored == Election(expected[1]), "the file is written before anything leaves"


@pytest.mark.parametrize(
    "stored", [None, Election(2), Election(2, 1, None), Election(2, NO_NODE, key(1)), Election(2, 2, None)]
)
def test_the_only_voter_starts_as_leader(stored: Election | None) -> None:
    """From every state of its file, in an epoch that it has not led."""
    node = Context(1, (1,), stored=stored)
    assert node.state[0] == "leader"
    epoch = 1 if stored is None else 2 if stored.voted == key(1) else 3
    assert node.state[1] == epoch
    assert node.effects_of(LeaderChanged) == [LeaderChanged(1, epoch, 0)]


def test_a_resigned_leader_that_cannot_reach_the_others() -> None:
    """After a restart it asks them for a successor, without a list; then it begins the next epoch, and asks for pre-votes."""
    node = Context(1, stored=Election(5, 1, None))
    assert [request.preferred_successors for _, request in node.sent(EndQuorumEpoch)] == [(), ()]
    with pytest.raises(NotLeaderError):
        node.append("a")
    assert node.ask(Vote(CLUSTER, key(2), 5, key(1), 4, 9)) == VoteAnswer(0, 5, 1, False, endpoints(1))
    node.advance(1000)
    assert node.state == ("prospective", 6, NO_NODE)
    assert node.ask(Vote(CLUSTER, key(2), 6, key(1), 5, 9)) == VoteAnswer(0, 6, NO_NODE, True)


def test_appends_of_a_stale_epoch() -> None:
    """Only the leader of the epoch appends; what it appended and has not committed stays in the log until the next leader's."""
    node = ready("leader")
    assert node.append("a", "b") == 4
    for epoch in (0, 2):
        with pytest.raises(NotLeaderError):
            node.core.append(epoch, Batches("c"), node.now_ms)  # type: ignore[arg-type]
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 3, key(1), endpoints(2)))
    with pytest.raises(NotLeaderError):
        node.core.append(1, Batches("c"), node.now_ms)  # type: ignore[arg-type]
    assert node.log.end_offset == 5


def test_who_leads_is_reported_once() -> None:
    """The leader of each epoch when it is known; a resigned leader is none."""
    node = ready("leader")
    node._take(node.core.resign_epoch(1, node.now_ms))
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 3, key(1), endpoints(2)))
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 3, key(1), endpoints(2)))
    node.ask(Vote(CLUSTER, key(3), 4, key(1), 1, 99))
    changes = [(one.leader_id, one.epoch) for one in node.effects_of(LeaderChanged)]
    assert changes == [(NO_NODE, 1), (1, 1), (NO_NODE, 1), (2, 3), (NO_NODE, 4)][-len(changes) :]
    assert len(changes) >= 4


# ------------------------------------------------------------------------------------------------------------- shutdown


def test_a_leader_hands_over_at_shutdown() -> None:
    """It resigns, refuses fetches, asks for a successor, still votes, and stops when another epoch begins or after 5 s."""
    for ends_with in ("successor", "time"):
        node = ready("leader")
        commit_epoch(node, 2)
        node._take(node.core.shutdown(node.now_ms))
        assert node.state[0] == "resigned"
        assert not node.core.is_stopped(node.now_ms)
        assert len(node.sent(EndQuorumEpoch)) == 2
        node.reply(node.sent(EndQuorumEpoch)[0][0], EndQuorumEpochAnswer(error_codes.NONE, 1, 1))
        answer = node.ask(fetch(node, 2))
        assert answer is not None
        assert answer.error == error_codes.NOT_LEADER_OR_FOLLOWER
        if ends_with == "successor":
            assert node.ask(Vote(CLUSTER, key(2), 2, key(1), 1, 99)) == VoteAnswer(0, 2, NO_NODE, True)
            assert node.core.is_stopped(node.now_ms)
        else:
            node.advance(4999)
            assert node.state == ("resigned", 1, 1)
            assert not node.core.is_stopped(node.now_ms)
            node.advance(1)
            assert node.core.is_stopped(node.now_ms)


@pytest.mark.parametrize("role", ["unattached", "prospective", "candidate", "follower", "observer", "only voter"])
def test_others_at_shutdown(role: str) -> None:
    """A follower, an observer and the only voter stop at once; another voter waits for a leader, or 5 s."""
    if role == "observer":
        node = Context(9)
    elif role == "only voter":
        node = Context(1, (1,))
    else:
        node = ready(role)
    node._take(node.core.shutdown(node.now_ms))
    is_free = role in ("follower", "observer", "only voter")
    assert node.core.is_stopped(node.now_ms) is is_free
    if not is_free:
        node.advance(3000)
        assert node.state[0] == role
        node.ask(BeginQuorumEpoch(CLUSTER, 2, 9, key(1), endpoints(2)))
        assert node.core.is_stopped(node.now_ms)


# ---------------------------------------------------------------------------------------------------------- QuorumState


def state_in(role: Role, voted: ReplicaKey | None = None) -> QuorumState:
    """Node 1 of three voters in a role, in epoch 5, the vote of which a candidate gives to itself; a follower's leader is 2."""
    state = QuorumState(key(1))
    state.become_unattached(4 if role in (Role.CANDIDATE, Role.LEADER, Role.RESIGNED) else 5, 0, voted=voted)
    if role is Role.FOLLOWER:
        state.become_follower(5, 2, endpoints(2), 0)
    elif role is not Role.UNATTACHED:
        state.become_prospective((1, 2, 3), 0)
    if role in (Role.CANDIDATE, Role.LEADER, Role.RESIGNED):
        state.become_candidate((1, 2, 3), 0)
    if role in (Role.LEADER, Role.RESIGNED):
        assert state.ballot is not None
        state.ballot.add(2, is_granted=True)
        state.become_leader(LeaderState(key(1), 0, (voter(1),), 1, 0), endpoints(1))
    if role is Role.RESIGNED:
        state.become_resigned((), frozenset(), 0)
    assert (state.role, state.epoch) == (role, 5)
    return state


def step(state: QuorumState, to: str) -> None:
    if to == "unattached 5":
        state.become_unattached(5, 0)
    elif to == "unattached 6":
        state.become_unattached(6, 0)
    elif to in ("voted 5", "voted 6"):
        state.become_unattached(int(to[-1]), 0, voted=key(3))
    elif to == "follower 5":
        state.become_follower(5, 2, endpoints(2), 0)
    elif to == "follower 6":
        state.become_follower(6, 3, endpoints(3), 0)
    elif to == "prospective":
        state.become_prospective((1, 2, 3), 0)
    elif to == "candidate":
        state.become_candidate((1, 2, 3), 0)
    elif to == "leader":
        state.become_leader(LeaderState(key(1), 0, (voter(1),), 1, 0), endpoints(1))
    elif to == "resigned":
        state.become_resigned((), frozenset(), 0)


STEPS = {
    Role.UNATTACHED: {"voted 5", "follower 5", "prospective"},
    Role.PROSPECTIVE: {"unattached 5", "voted 5", "follower 5", "prospective", "candidate"},
    Role.CANDIDATE: {"follower 5", "prospective"},
    Role.LEADER: {"resigned"},
    Role.FOLLOWER: {"follower 5", "prospective"},
    Role.RESIGNED: set(),
}


TO = ("unattached 5", "unattached 6", "voted 5", "voted 6", "follower 5", "follower 6")


@pytest.mark.parametrize("voted", [None, key(3)])
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("to", [*TO, "prospective", "candidate", "leader", "resigned"])
def test_the_steps_between_roles(role: Role, to: str, voted: ReplicaKey | None) -> None:
    """Those of the table in quorum_state.py and no others; a higher epoch is entered from every role, without the old vote,
    and the vote of an epoch stays in it."""
    state = state_in(role, voted)
    if to.endswith("6") or to in STEPS[role]:
        before = state.voted
        step(state, to)
        assert state.role == to.split()[0].replace("voted", "unattached")
        if to.endswith("6") or to == "voted 5":
            assert state.voted == (key(3) if to.startswith("voted") else None)
        elif to != "candidate":
            assert state.voted == before
    else:
        with pytest.raises(QuorumStateError):
            step(state, to)
        assert (state.role, state.epoch) == (role, 5)


@pytest.mark.parametrize(
    ("role", "leader_id", "shown"),
    [
        ("unattached", NO_NODE, ()),
        ("prospective", NO_NODE, ()),
        ("candidate", NO_NODE, ()),
        ("follower", 2, endpoints(2)),
        ("leader", 1, endpoints(1)),
        ("resigned", 1, endpoints(1)),
    ],
)
def test_the_endpoints_of_the_leader(role: str, leader_id: int, shown: Endpoints) -> None:
    """Answers have those of the leader that a node knows, its own if it leads or has resigned; none without a leader."""
    node = ready(role)
    assert (node.core.quorum.leader_id, node.core.quorum.leader_endpoints) == (leader_id, shown)
    answer = node.ask(Vote(CLUSTER, key(3), node.state[1], key(1), 0, 0, True))
    assert isinstance(answer, VoteAnswer)
    assert (answer.leader_id, answer.endpoints) == (leader_id, shown)


def test_a_prospective_node_shows_the_leader_that_it_had() -> None:
    node = ready("follower")
    node.advance(2000)
    assert node.state == ("prospective", 5, 2)
    assert node.core.quorum.leader_endpoints == endpoints(2)


def test_a_node_that_is_no_voter_is_no_candidate() -> None:
    """Also if it has voted for itself, when it was one."""
    node = Context(9, (1, 2, 3), stored=Election(5, NO_NODE, key(9)))
    assert node.state == ("unattached", 5, NO_NODE)
    node.advance(60_000)
    assert node.state == ("unattached", 5, NO_NODE)
    assert not node.sent(Vote)


@pytest.mark.parametrize("role", list(Role))
def test_steps_that_no_role_has(role: Role) -> None:
    """An earlier epoch, another leader of the epoch, following itself, a second vote."""
    with pytest.raises(QuorumStateError, match="is over"):
        state_in(role).become_unattached(4, 0)
    with pytest.raises(QuorumStateError):
        state_in(role).become_follower(4, 2, endpoints(2), 0)
    with pytest.raises(QuorumStateError, match="cannot follow itself"):
        state_in(role).become_follower(9, 1, endpoints(1), 0)
    state = state_in(Role.FOLLOWER)
    with pytest.raises(QuorumStateError, match="cannot be the leader of epoch 5"):
        state.become_follower(5, 3, endpoints(3), 0)
    state = state_in(Role.UNATTACHED)
    state.become_unattached(5, 0, voted=key(2))
    with pytest.raises(QuorumStateError, match="has voted for node 2 in epoch 5"):
        state.become_unattached(5, 0, voted=key(3))
    state.become_follower(5, 3, endpoints(3), 0)
    state.become_prospective((1, 2, 3), 0)
    assert state.election == Election(5, 3, key(2)), "vote and leader survive, and the file is the same"


@pytest.mark.parametrize(("size", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_ballot(size: int, majority: int) -> None:
    """The own vote counts; granted with a majority, rejected when none is possible; others than the voters do not count."""
    ids = tuple(range(1, size + 1))
    ballot = Ballot(ids, {1: True})
    for one in (*ids[1:], 99):
        assert ballot.is_granted is (len(ballot.granting()) >= majority)
        ballot.add(one, is_granted=True)
        ballot.add(one, is_granted=True)
    assert (ballot.is_granted, ballot.granting()) == (True, ids)
    ballot = Ballot(ids, {1: True})
    for rejected, one in enumerate(ids[1:], 1):
        assert one in ballot.unanswered()
        ballot.add(one, is_granted=False)
        assert ballot.is_rejected is (size - rejected < majority)
    assert ballot.unanswered() == ()


# ---------------------------------------------------------------------------------------------------------- LeaderState


def led(*ids: int, start: int = 5) -> LeaderState:
    return LeaderState(key(1), start, tuple(map(voter, ids)), 3000, 0)


@pytest.mark.parametrize(
    ("ids", "ends", "expected"),
    [
        ((1,), {1: 5}, -1),
        ((1,), {1: 6}, 6),
        ((1, 2), {1: 9}, -1),
        ((1, 2), {1: 9, 2: 5}, -1),
        ((1, 2), {1: 9, 2: 7}, 7),
        ((1, 2, 3), {1: 9, 3: 7}, 7),
        ((1, 2, 3), {1: 9, 2: 8, 3: 7}, 8),
        ((1, 2, 3, 4), {1: 9, 2: 8, 3: 7}, 7),
        ((2, 3), {1: 9, 2: 8}, -1),
        ((2, 3), {1: 9, 2: 8, 3: 7}, 7),
    ],
)
def test_the_high_watermark_of_a_leader(ids: tuple[int, ...], ends: dict[int, int], expected: int) -> None:
    """The median of the voters' ends, above the start of the epoch; a leader that is no voter does not count itself."""
    state = led(*ids)
    for one, end in ends.items():
        moved = state.update_local(end, end, 1) if one == 1 else state.update_replica(key(one), end, 9, 1)
        assert not (moved and state.high_watermark <= 5)
    assert state.high_watermark == expected
    assert not state.update_local(ends.get(1, 0), 9, 1), "the same again moves nothing"


def test_the_high_watermark_when_voters_change() -> None:
    """It may rise with a removed or an added voter, and never falls."""
    state = led(1, 2, 3)
    state.update_local(20, 20, 1)
    state.update_replica(key(4), 19, 20, 1)
    state.update_replica(key(2), 10, 20, 1)
    assert state.high_watermark == 10
    state.set_voters(tuple(map(voter, (1, 2, 3, 4))))
    assert state.voters[4].end_offset == 19
    state.update_local(20, 20, 1)
    assert state.high_watermark == 10
    state.set_voters(tuple(map(voter, (1, 2, 4))))
    assert state.update_local(20, 20, 1)
    assert state.high_watermark == 19
    assert key(3) in state.observers
    state.set_voters(tuple(map(voter, (1, 2, 3, 5, 6))))
    assert not state.update_local(21, 21, 1)
    assert state.high_watermark == 19
    # From static voters, which have no directory ids, to dynamic ones.
    static = LeaderState(key(1), 0, (voter(1, is_static=True), voter(2, is_static=True)), 3000, 0)
    static.update_replica(key(2), 3, 3, 1)
    static.set_voters((voter(1), voter(2)))
    assert static.voters[2] == static.voters[2]._replace(key=key(2), end_offset=3)


@pytest.mark.parametrize(
    ("ids", "rounds"),
    [
        ((1, 2), [(2,)]),
        ((1, 2, 3), [(2,), (3,)]),
        ((1, 2, 3, 4, 5), [(2, 3), (4, 5)]),
        ((2, 3), [(2, 3)]),
        ((2, 3, 4), [(2, 4)]),
    ],
)
def test_check_quorum(ids: tuple[int, ...], rounds: list[tuple[int, ...]]) -> None:
    """The timer starts again with a majority; the leader is one of it while it is a voter; one voter twice is one."""
    state = led(*ids)
    for at, voters in enumerate(rounds, 1):
        before = state.check_quorum_deadline_ms
        for one in voters[:-1]:
            state.heard_of(key(one), 1000 * at)
            state.heard_of(key(one), 1000 * at)
        state.heard_of(key(99), 1000 * at)
        state.heard_of(key(1), 1000 * at)
        assert state.check_quorum_deadline_ms == before
        state.heard_of(key(voters[-1]), 1000 * at)
        assert state.check_quorum_deadline_ms == 1000 * at + 3000
    changed = led(1, 2, 3, 4, 5)
    changed.heard_of(key(2), 500)
    changed.set_voters(tuple(map(voter, (1, 3, 4))))
    changed.heard_of(key(2), 600)
    assert changed.check_quorum_deadline_ms == 3000, "a removed voter does not count"
    changed.heard_of(key(4), 700)
    assert changed.check_quorum_deadline_ms == 3700
    assert led(1).is_alone
    assert not led(2).is_alone


def test_the_time_of_a_second_voter_begins_with_its_last_fetch() -> None:
    """A leader that was alone for longer than the timeout resigned when it got a second voter, as the add-controller of a new
    quorum does; Kafka counts a fetch of an observer if no other voter is needed for a majority."""
    state = led(1)
    state.update_replica(key(2), 5, 5, 9000)
    state.set_voters((voter(1), voter(2)))
    assert state.check_quorum_deadline_ms == 12_000
    state.update_replica(key(3), 5, 5, 9500)
    assert state.check_quorum_deadline_ms == 12_000, "an observer does not count once another voter is needed"


def test_successors_and_observers() -> None:
    """The other voters by their ends, the longest first; observers are forgotten after a time without a fetch."""
    state = led(1, 2, 3, 4)
    for one, end in ((2, 7), (4, 9), (8, 3)):
        state.update_replica(key(one), end, 10, 100)
    assert state.successors() == (key(4), key(2), key(3))
    assert state.silent_voters(50, 120) == [3]
    state.forget_observers(300, 399)
    assert list(state.observers) == [key(8)]
    state.forget_observers(300, 400)
    assert not state.observers


def test_times_of_a_replica() -> None:
    """It was caught up when it reached the end that the leader had at its fetch before (DescribeQuorum)."""
    state = led(1, 2)
    for offset, end, now_ms, caught_up_ms in ((6, 10, 100, -1), (10, 12, 200, 100), (10, 12, 300, 100), (12, 12, 400, 400)):
        state.update_replica(key(2), offset, end, now_ms)
        assert (state.voters[2].last_fetch_ms, state.voters[2].last_caught_up_ms) == (now_ms, caught_up_ms)


# --------------------------------------------------------------------------------------------------------- VoterHistory


def test_the_history_of_the_voters() -> None:
    """Static voters until the first record; each record from its offset on; a truncation takes records back."""
    static, second, third = ((voter(one),) for one in (1, 2, 3))
    history = VoterHistory(static)
    assert (history.voters, history.kraft_version, history.voters_offset) == (static, 0, -1)
    assert VoterHistory(()).voters == ()
    log = [
        AppendedControl(-1, KRaftVersionEntry(1)),
        AppendedControl(-1, VotersEntry(second)),
        AppendedControl(6, LeaderChangeEntry(1, (1,), (1,))),
        AppendedControl(7, VotersEntry(third)),
    ]
    history.reload(log)
    assert (history.voters, history.kraft_version, history.voters_offset) == (third, 1, 7)
    assert (history.voters_before(7), history.voters_before(8), history.voters_before(-1)) == (second, third, static)
    assert (history.kraft_version_before(0), history.kraft_version_before(-1)) == (1, 0)
    twin = history.copy()
    history.truncate_to(7)
    assert (history.voters, twin.voters) == (second, third)
    history.truncate_to(-1)
    assert (history.voters, history.kraft_version) == (static, 0)
    history.reload(log[:2])
    assert history.voters == second


def test_the_history_forgets_what_is_below_the_start_of_the_log() -> None:
    """The last voters below it are those of a snapshot there; nothing is lost where there is only one record."""
    first, second, third = ((voter(one),) for one in (1, 2, 3))
    history = VoterHistory(first)
    history.trim_to(5)
    assert history.voters == first
    history.reload(AppendedControl(offset, VotersEntry(voters)) for offset, voters in ((2, first), (4, second), (8, third)))
    history.apply(AppendedControl(3, KRaftVersionEntry(1)))
    history.trim_to(2)
    assert history.voters_before(3) == first
    history.trim_to(5)
    assert (history.voters_before(5), history.voters_before(9), history.kraft_version) == (second, third, 1)
    assert history.digest() == (first, ((4, second), (8, third)), ((3, 1),))
    history.trim_to(100)
    assert (history.voters, history.kraft_version) == (third, 1)
    history.truncate_to(100)
    assert history.voters == third
