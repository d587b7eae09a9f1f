"""Protects who gets a vote, what BeginQuorumEpoch and EndQuorumEpoch do, and what a node sends in each role."""

from __future__ import annotations

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.server.raft.consensus import NotLeaderError
from kcli.server.raft.messages import (
    LAST_EPOCH,
    MOST_EPOCHS_AHEAD,
    NO_NODE,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    Election,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    Fetch,
    FetchAnswer,
    ListenerEndpoint,
    ReplicaKey,
    Report,
    RequestFailed,
    Vote,
    VoteAnswer,
)
from tests.server.raft.quorum_context import CLUSTER, Context, Entry, MemoryLog, commit_epoch, endpoints, grant, key, ready

ROLES = ("unattached", "prospective", "candidate", "leader", "follower", "resigned")


def vote(node: Context, by: int = 3, *, is_pre_vote: bool = False, **changes: object) -> Vote:
    """A Vote of the node's epoch by a candidate with the same log."""
    log, epoch = node.log, node.core.quorum.epoch
    request = Vote(CLUSTER, key(by), epoch, key(1), log.last_epoch, log.end_offset, is_pre_vote)
    return request._replace(**changes)  # type: ignore[arg-type]


def in_epoch(role: str) -> Context:
    """A node whose log ends in an earlier epoch than its own, so that a candidate of its epoch can have the same log."""
    log = MemoryLog([Entry(1, "a", 0), Entry(1, "b", 1)])
    return ready(role, kraft_version=0, log=log, stored=Election(3))


@pytest.mark.parametrize(
    ("role", "pre_vote", "same_epoch"),
    [
        ("unattached", True, True),
        ("prospective", True, True),
        ("candidate", True, False),
        ("resigned", True, False),
        ("follower", True, False),
        ("leader", False, False),
    ],
)
def test_who_gets_a_vote(role: str, pre_vote: bool, same_epoch: bool) -> None:
    """The table of elections.py for a candidate whose log is up to date, of the same epoch and (Vote) of a higher one."""
    node = in_epoch(role)
    before = node.state
    epoch = node.core.quorum.epoch
    last = (1, 50) if role in ("leader", "resigned") else (1, 2)
    changes = {"last_epoch": epoch if role in ("leader", "resigned") else last[0], "end_offset": last[1]}
    answer = node.ask(vote(node, is_pre_vote=True, **changes))
    assert isinstance(answer, VoteAnswer)
    assert (answer.error, answer.is_granted, answer.epoch) == (error_codes.NONE, pre_vote, epoch)
    assert node.state == before, "a pre-vote leaves nothing behind"
    if role not in ("leader", "resigned"):
        if role == "unattached":
            node.ask(vote(node, is_pre_vote=True, epoch=epoch + 1))
            assert node.state == ("unattached", epoch + 1, NO_NODE), "a higher epoch is entered for a pre-vote, too"
            epoch += 1
        answer = node.ask(vote(node, last_epoch=1, end_offset=2))
        assert isinstance(answer, VoteAnswer)
        assert answer.is_granted is same_epoch
    answer = node.ask(vote(node, epoch=epoch + 1, last_epoch=epoch, end_offset=50))
    assert isinstance(answer, VoteAnswer)
    assert (answer.is_granted, answer.epoch) == (True, epoch + 1)
    assert node.stored == Election(epoch + 1, NO_NODE, key(3))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_a_candidate_whose_log_is_behind_gets_no_vote(role: str, is_pre_vote: bool) -> None:
    """The epoch of the last record decides, then the end."""
    for last_epoch, end_offset in ((0, 100), (1, 1)):
        node = in_epoch(role)
        epoch = node.core.quorum.epoch + (not is_pre_vote)
        request = vote(node, is_pre_vote=is_pre_vote, epoch=epoch, last_epoch=last_epoch, end_offset=end_offset)
        answer = node.ask(request)
        assert isinstance(answer, VoteAnswer)
        assert (answer.error, answer.is_granted) == (error_codes.NONE, False)


@pytest.mark.parametrize("role", ["prospective", "unattached"])
def test_an_epoch_that_has_a_leader_has_no_other(role: str) -> None:
    """A node that knows the leader of the epoch gives nobody its vote in it, but a pre-vote, and a vote in the next one."""
    log = MemoryLog([Entry(1, "a", 0)])
    if role == "prospective":
        node = ready("follower", kraft_version=0, log=log)
        node.advance(2000)
    else:
        node = Context(1, stored=Election(5, 8), kraft_version=0, log=log)
    assert node.state == (role, 5, 2 if role == "prospective" else 8)
    for is_pre_vote in (False, True):
        answer = node.ask(vote(node, is_pre_vote=is_pre_vote, end_offset=9))
        assert isinstance(answer, VoteAnswer)
        assert (answer.error, answer.is_granted) == (error_codes.NONE, is_pre_vote)
    answer = node.ask(vote(node, epoch=6, end_offset=9))
    assert isinstance(answer, VoteAnswer)
    assert answer.is_granted


def test_one_vote_an_epoch() -> None:
    """The same candidate gets its vote again, by the directory that is stored; another does not; also as prospective."""
    node = in_epoch("unattached")
    assert node.ask(vote(node, 3, epoch=6)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, True)
    node.advance(900)
    again = node.ask(vote(node, 3, end_offset=0))
    assert again == VoteAnswer(error_codes.NONE, 6, NO_NODE, True), "the log is not compared again"
    assert node.ask(vote(node, 2, end_offset=9)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, False)
    other_disk = ReplicaKey(3, Uuid(bytes([9] * 16)))
    assert node.ask(vote(node, 3, candidate=other_disk)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, False)
    assert node.ask(vote(node, 2, is_pre_vote=True)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, True)
    node.advance(100)
    assert node.state[0] == "prospective"
    assert node.stored == Election(6, NO_NODE, key(3)), "the vote survives the change of the role"
    assert node.ask(vote(node, 2, end_offset=9)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, False)
    assert node.ask(vote(node, 3)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, True)
    # A vote of the time before directory ids.
    node = Context(1, stored=Election(6, NO_NODE, ReplicaKey(3, ZERO_UUID)), log=MemoryLog(), kraft_version=0)
    assert node.ask(vote(node, 3)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, True)


def test_a_vote_starts_the_timer_again() -> None:
    """Who voted waits a whole election timeout, as unattached and as prospective."""
    node = in_epoch("unattached")
    node.advance(900)
    node.ask(vote(node, 3, epoch=6))
    node.advance(900)
    assert node.state == ("unattached", 6, NO_NODE)
    node.advance(100)
    assert node.state[0] == "prospective"
    node = in_epoch("prospective")
    node.advance(900)
    assert node.ask(vote(node, 3, epoch=6)) == VoteAnswer(error_codes.NONE, 6, NO_NODE, True)


def test_a_minority_says_that_it_cannot_elect_a_leader() -> None:
    """Once for a time without a leader; not if enough voters answer, whatever they say."""
    node = ready("follower")
    for _ in range(2):
        node.forget()
        node.advance(20_000)
        (report,) = node.effects_of(Report)
        assert report.text.startswith(
            "1 of the 3 voters of the metadata quorum can be reached, this node included; 2 are needed"
        )
        node.ask(BeginQuorumEpoch(CLUSTER, 2, node.state[1] + 1, key(1), endpoints(2)))
    node = ready("prospective")
    grant(node, 2, is_granted=False)
    node.advance(1000)
    assert not node.effects_of(Report)


@pytest.mark.parametrize("role", ["unattached", "prospective", "candidate", "follower", "leader", "resigned"])
def test_epochs_near_the_last_one_are_ignored(role: str) -> None:
    """A peer that names one would leave no epoch for an election: quorum-state had an epoch that could not be read again."""
    node = ready(role, stored=Election(4), kraft_version=0) if role != "follower" else ready(role)
    before = node.state
    for epoch in (LAST_EPOCH, before[1] + MOST_EPOCHS_AHEAD + 1):
        for request, error in (
            (Vote(CLUSTER, key(2), epoch, key(1), 1, 99), error_codes.INVALID_REQUEST),
            (Vote(CLUSTER, key(2), epoch, key(1), 1, 99, True), error_codes.INVALID_REQUEST),
            (BeginQuorumEpoch(CLUSTER, 2, epoch, key(1), endpoints(2)), error_codes.UNKNOWN_LEADER_EPOCH),
            (EndQuorumEpoch(CLUSTER, 2, epoch, (key(1),), endpoints(2)), error_codes.UNKNOWN_LEADER_EPOCH),
        ):
            answer = node.ask(request)
            assert answer is not None
            assert answer.error == error
            assert node.state == before
    reports = node.effects_of(Report)
    assert [f"is not possible after epoch {before[1]}" in report.text for report in reports if report.is_fault] == [True] * 2
    assert node.ask(BeginQuorumEpoch(CLUSTER, 2, before[1] + MOST_EPOCHS_AHEAD, key(1), endpoints(2))) is not None
    assert node.state == ("follower", before[1] + MOST_EPOCHS_AHEAD, 2)


def test_an_answer_of_an_epoch_near_the_last_one_is_ignored() -> None:
    node = ready("follower")
    send, _ = node.sent(Fetch)[-1]
    node.reply(send, FetchAnswer(error_codes.FENCED_LEADER_EPOCH, LAST_EPOCH, 3, endpoints(3)))
    assert node.state == ("follower", 5, 2)


def test_there_is_no_epoch_behind_the_last_one() -> None:
    """A node that has it, by its quorum-state, says that it cannot elect a leader, and changes nothing; it follows one."""
    node = ready("prospective", stored=Election(LAST_EPOCH), kraft_version=0)
    grant(node, 2)
    node.advance(10_000)
    assert node.state == ("prospective", LAST_EPOCH, NO_NODE)
    assert node.stored == Election(LAST_EPOCH)
    assert [report.text.partition(":")[0] for report in node.effects_of(Report) if report.is_fault] == [
        f"the epoch of the metadata quorum is {LAST_EPOCH}, the last that there can be"
    ]
    node.ask(BeginQuorumEpoch(CLUSTER, 2, LAST_EPOCH, key(1), endpoints(2)))
    assert node.state == ("follower", LAST_EPOCH, 2)


@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_votes_that_cannot_be(is_pre_vote: bool) -> None:
    """The errors in Kafka's order; none of them changes the node, except that a higher epoch precedes a wrong key."""
    node = ready("follower")
    before = node.state
    bad = (
        ({"cluster_id": "other", "epoch": 1}, error_codes.INCONSISTENT_CLUSTER_ID),
        ({"end_offset": -1, "epoch": 1}, error_codes.INVALID_REQUEST),
        ({"last_epoch": -1}, error_codes.INVALID_REQUEST),
        ({"last_epoch": 6}, error_codes.INVALID_REQUEST),
        ({"epoch": 3}, error_codes.FENCED_LEADER_EPOCH),
        ({"candidate": ReplicaKey(-1)}, error_codes.INVALID_REQUEST),
        ({"voter": key(2)}, error_codes.INVALID_VOTER_KEY),
        ({"voter": ReplicaKey(1, key(2).directory_id)}, error_codes.INVALID_VOTER_KEY),
    )
    for changes, error in bad:
        answer = node.ask(vote(node, is_pre_vote=is_pre_vote, **changes))
        assert isinstance(answer, VoteAnswer)
        assert (answer.error, answer.is_granted) == (error, False), changes
        assert node.state == before
        assert (answer.leader_id, answer.endpoints) == ((-1, ()) if error == 104 else (2, endpoints(2)))
    assert vote(node, last_epoch=5).last_epoch == 5
    answer = node.ask(vote(node, is_pre_vote=is_pre_vote, last_epoch=5))
    assert isinstance(answer, VoteAnswer)
    assert answer.error == (error_codes.NONE if is_pre_vote else error_codes.INVALID_REQUEST)
    for voter in (None, ReplicaKey(-1), ReplicaKey(1)):
        answer = node.ask(vote(node, cluster_id=None, voter=voter, is_pre_vote=is_pre_vote))
        assert isinstance(answer, VoteAnswer)
        assert answer.error == error_codes.NONE, "what is not stated is not checked"
    node.ask(vote(node, is_pre_vote=is_pre_vote, voter=key(2), epoch=9))
    assert node.state == ("unattached", 9, NO_NODE)


def test_observers_vote_and_get_votes() -> None:
    """Neither side checks whether it is a voter: a node may not know yet that it is one."""
    node = Context(9, (1, 2, 3))
    for is_pre_vote in (True, False):
        answer = node.ask(Vote(CLUSTER, key(8), 3, key(9), 0, 0, is_pre_vote))
        assert isinstance(answer, VoteAnswer)
        assert (answer.error, answer.is_granted) == (error_codes.NONE, True)
    node.advance(60_000)
    assert node.state == ("unattached", 3, NO_NODE)
    assert not node.sent(Vote)


def test_an_observer_moves_with_the_epochs() -> None:
    """A vote takes it from its leader to the next epoch, in which it follows whom it hears of, and it is never a candidate."""
    node = Context(9, (1, 2, 3))
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 5, None, endpoints(2)))
    assert node.state == ("follower", 5, 2)
    node.advance(60_000)
    assert node.state == ("follower", 5, 2)
    answer = node.ask(Vote(CLUSTER, key(1), 7, key(9), 0, 0))
    assert answer == VoteAnswer(error_codes.NONE, 7, NO_NODE, True)
    assert (node.state, node.stored) == (("unattached", 7, NO_NODE), Election(7, NO_NODE, key(1)))
    node.ask(Vote(CLUSTER, key(3), 8, key(9), -1, 0))
    node.ask(BeginQuorumEpoch(CLUSTER, 1, 7, None, endpoints(1)))
    assert node.state == ("follower", 7, 1)
    assert not node.sent(Vote)


def test_a_follower_grants_pre_votes_until_it_has_fetched() -> None:
    """It does not end a leader that serves it (KIP-996), and its leader's successor gets its pre-vote."""
    node = ready("follower")
    assert node.ask(vote(node, is_pre_vote=True)) == VoteAnswer(error_codes.NONE, 5, 2, True, endpoints(2))
    send, request = node.sent(Fetch)[-1]
    assert send.destination.node_id == 2
    assert (request.epoch, request.fetch_offset) == (5, 0)
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, endpoints(2), 0, 0))
    assert node.ask(vote(node, is_pre_vote=True)) == VoteAnswer(error_codes.NONE, 5, 2, False, endpoints(2))


def test_an_observer_grants_pre_votes_again_when_its_leader_is_silent() -> None:
    """It may be a voter that does not know yet that it was added: without its vote the others elect no leader, for ever."""
    node = Context(9)
    send, _ = node.sent(Fetch)[-1]
    node.reply(send, FetchAnswer(error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2)))
    send, _ = node.sent(Fetch)[-1]
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, endpoints(2), 0, 0))
    request = Vote(CLUSTER, key(1), 5, key(9), 3, 10, True)
    node.advance(node.config.fetch_timeout_ms - 1)
    assert node.ask(request) == VoteAnswer(error_codes.NONE, 5, 2, False, endpoints(2))
    node.advance(1)
    assert node.ask(request) == VoteAnswer(error_codes.NONE, 5, 2, True, endpoints(2))
    assert node.state == ("follower", 5, 2)


# -------------------------------------------------------------------------------------------------- elections of its own


def test_from_unattached_to_leader() -> None:
    """Pre-votes in the present epoch, then votes in the next; each voter gets its key; a majority is enough."""
    node = ready("prospective")
    asked = node.sent(Vote)
    assert [(send.destination.node_id, request.voter) for send, request in asked] == [(2, key(2)), (3, key(3))]
    assert {(request.epoch, request.is_pre_vote, request.candidate) for _, request in asked} == {(0, True, key(1))}
    assert node.stored == Election(0)
    node.forget()
    grant_to = asked[1][0]
    node.reply(grant_to, VoteAnswer(error_codes.NONE, 0, NO_NODE, True))
    assert node.state == ("candidate", 1, NO_NODE)
    assert node.stored == Election(1, NO_NODE, key(1))
    assert {(request.epoch, request.is_pre_vote) for _, request in node.sent(Vote)} == {(1, False)}
    stale = asked[0][0]
    node.reply(stale, VoteAnswer(error_codes.NONE, 0, NO_NODE, True))
    assert node.state[0] == "candidate", "an answer to a pre-vote is not a vote"
    grant(node, 3)
    assert node.state == ("leader", 1, 1)
    assert node.stored == Election(1, 1, None)
    assert node.log.started_epochs == [1]


@pytest.mark.parametrize("how", ["answer", "failure"])
def test_a_voter_without_pre_vote(how: str) -> None:
    """UNSUPPORTED_VERSION begins the election itself, since an old voter could never grant a pre-vote (KIP-996)."""
    node = ready("prospective")
    send, _ = node.sent(Vote)[0]
    if how == "answer":
        node.reply(send, VoteAnswer(error_codes.UNSUPPORTED_VERSION, -1, NO_NODE, False))
    else:
        node.handle(RequestFailed(send.correlation_id, error_codes.UNSUPPORTED_VERSION))
    assert node.state == ("candidate", 1, NO_NODE)


def test_a_lost_pre_vote_returns_to_the_leader_or_waits() -> None:
    """With a known leader it follows again, in the same epoch; else it is unattached with a new timer."""
    node = ready("follower")
    node.forget()
    node.advance(2000)
    assert node.state == ("prospective", 5, 2)
    assert not [send for send, _ in node.sent(Fetch) if send.destination.node_id == 3], "a prospective node does not fetch"
    grant(node, 3, is_granted=False)
    assert node.state[0] == "prospective", "one of three may still grant"
    grant(node, 2, is_granted=False)
    assert node.state == ("follower", 5, 2)
    assert node.core.quorum.leader_endpoints == endpoints(2)
    node = ready("prospective")
    node.advance(900)
    grant(node, 2, 3, is_granted=False)
    assert node.state == ("unattached", 0, NO_NODE)
    node.advance(900)
    assert node.state[0] == "unattached"
    node.advance(100)
    assert node.state[0] == "prospective"


def test_a_prospective_node_whose_time_is_over() -> None:
    """Without a majority either way it asks again, after it followed the leader that it knows."""
    node = ready("prospective")
    node.forget()
    node.advance(1000)
    assert node.state == ("prospective", 0, NO_NODE)
    assert len(node.sent(Vote)) == 2
    node = ready("follower")
    node.advance(2000)
    assert node.state[0] == "prospective"
    node.advance(1000)
    assert node.state == ("follower", 5, 2)


def test_a_candidate_waits_for_the_rest_of_its_time() -> None:
    """After a majority of rejections it sends no more votes; then it is prospective in the same epoch, with its vote."""
    node = ready("candidate")
    grant(node, 2, 3, is_granted=False)
    node.forget()
    node.advance(999)
    assert node.state[0] == "candidate"
    assert not node.sent(Vote)
    node.advance(1)
    assert node.state == ("prospective", 1, NO_NODE)
    assert node.stored == Election(1, NO_NODE, key(1))
    assert node.sent(Vote)[0][1].epoch == 1
    node = ready("candidate")
    node.forget()
    node.advance(1000)
    assert node.state == ("prospective", 1, NO_NODE), "also without an answer"


def test_votes_are_sent_again() -> None:
    """After the request timeout and the backoff, until the voter answers."""
    node = ready("prospective")
    send, _ = node.sent(Vote)[0]
    node.forget()
    node.handle(RequestFailed(send.correlation_id))
    assert not node.sent(Vote)
    node.advance(20)
    assert [again.destination.node_id for again, _ in node.sent(Vote)] == [2]


def test_stale_answers_are_ignored() -> None:
    """Votes that come after the node follows, or for another correlation id, change nothing."""
    node = ready("candidate")
    sends = [send for send, _ in node.sent(Vote)][-2:]
    node.ask(BeginQuorumEpoch(CLUSTER, 3, 1, key(1), endpoints(3)))
    assert node.state == ("follower", 1, 3)
    for send in sends:
        node.reply(send, VoteAnswer(error_codes.NONE, 1, NO_NODE, True))
    assert node.state == ("follower", 1, 3)
    assert node.stored == Election(1, 3, key(1)), "the vote of the epoch stays"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (VoteAnswer(error_codes.FENCED_LEADER_EPOCH, 7, NO_NODE, False), ("unattached", 7, NO_NODE)),
        (VoteAnswer(error_codes.NONE, 7, 3, False, endpoints(3)), ("follower", 7, 3)),
        (VoteAnswer(error_codes.NONE, 7, 3, False), ("follower", 7, 3)),
        (VoteAnswer(error_codes.NONE, 7, 8, False), ("unattached", 7, NO_NODE)),
        (VoteAnswer(error_codes.NONE, 1, 3, False, endpoints(3)), ("follower", 1, 3)),
        (VoteAnswer(error_codes.UNKNOWN_LEADER_EPOCH, 7, 3, True, endpoints(3)), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.NONE, 0, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.INVALID_VOTER_KEY, 1, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.INVALID_REQUEST, 1, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.CLUSTER_AUTHORIZATION_FAILED, -1, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.INCONSISTENT_CLUSTER_ID, -1, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.BROKER_NOT_AVAILABLE, 1, NO_NODE, True), ("candidate", 1, NO_NODE)),
        (VoteAnswer(error_codes.NONE, 1, 1, True, endpoints(1)), ("candidate", 1, NO_NODE)),
    ],
)
def test_the_rules_of_all_answers(answer: VoteAnswer, state: tuple[str, int, int]) -> None:
    """The table of consensus.py. What ends a Kafka node is reported, ignored, and asked again after the backoff."""
    node = ready("candidate")
    send, _ = node.sent(Vote)[-1]
    node.forget()
    node.reply(send, answer)
    assert node.state == state
    if state[0] == "candidate" and answer.error not in (0, error_codes.UNKNOWN_LEADER_EPOCH):
        assert not node.sent(Vote)
        node.advance(20)
        assert [again.destination.node_id for again, _ in node.sent(Vote)] == [send.destination.node_id]


# ------------------------------------------------------------------------------------------ BeginQuorumEpoch, EndQuorumEpoch


def test_begin_quorum_epoch() -> None:
    """The errors in Kafka's order; the leader is followed before the key is checked; more endpoints are taken, fewer not."""
    node = ready("follower")
    more = (*endpoints(2), ListenerEndpoint("SSL", "other", 1))

    def begin(**changes: object) -> BeginQuorumEpochAnswer:
        request = BeginQuorumEpoch(CLUSTER, 2, 5, key(1), endpoints(2))._replace(**changes)  # type: ignore[arg-type]
        answer = node.ask(request)
        assert isinstance(answer, BeginQuorumEpochAnswer)
        return answer

    assert begin(cluster_id="other").error == error_codes.INCONSISTENT_CLUSTER_ID
    assert begin(epoch=4) == (error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2))
    assert begin(leader_id=-1).error == error_codes.INVALID_REQUEST
    assert begin(voter=key(2)) == (error_codes.INVALID_VOTER_KEY, 5, 2, endpoints(2))
    assert begin(endpoints=more) == (error_codes.NONE, 5, 2, more)
    assert begin(cluster_id=None) == (error_codes.NONE, 5, 2, more)
    assert begin(leader_id=3, epoch=6, endpoints=(), voter=None) == (error_codes.NONE, 6, 3, endpoints(3))
    assert node.state == ("follower", 6, 3)
    assert node.stored == Election(6, 3, None)
    assert begin(leader_id=3, epoch=7, voter=key(2)).error == error_codes.INVALID_VOTER_KEY
    assert node.state == ("follower", 7, 3)


@pytest.mark.parametrize("role", ["follower", "leader", "resigned"])
def test_two_leaders_of_one_epoch(role: str) -> None:
    """A Kafka node ends; this one reports it, names no leader in its answer (that would end a Kafka node), and stays."""
    node = ready(role)
    before = node.state
    node.forget()
    answer = node.ask(BeginQuorumEpoch(CLUSTER, 3, before[1], key(1), endpoints(3)))
    assert answer == BeginQuorumEpochAnswer(error_codes.UNKNOWN_LEADER_EPOCH, before[1], NO_NODE)
    assert node.state == before
    (report,) = node.effects_of(Report)
    assert report.is_fault
    assert "node 3 as the leader" in report.text


def test_the_leader_announces_itself_until_it_is_fetched_from() -> None:
    """To each other voter at once, then each half of the fetch timeout to those that have not fetched in that time."""
    node = ready("leader")
    asked = node.sent(BeginQuorumEpoch)
    assert [(send.destination.node_id, request.voter) for send, request in asked] == [(2, key(2)), (3, key(3))]
    assert {(request.leader_id, request.epoch, request.endpoints) for _, request in asked} == {(1, 1, endpoints(1))}
    for send, _ in asked:
        node.reply(send, BeginQuorumEpochAnswer(error_codes.NONE, 1, 1))
    node.advance(500)
    node.forget()
    commit_epoch(node, 2)
    node.advance(500)
    assert [send.destination.node_id for send, _ in node.sent(BeginQuorumEpoch)] == [3]
    node.forget()
    node.advance(1000)
    assert {send.destination.node_id for send, _ in node.sent(BeginQuorumEpoch)} == {2}, "3 has a request in flight"


def test_a_leader_without_a_majority_resigns() -> None:
    """After 1.5 fetch timeouts, though one of four others fetches; not if a majority does; not the only voter."""
    node = ready("leader")
    node.advance(2999)
    assert node.state[0] == "leader"
    commit_epoch(node, 2)
    node.advance(2999)
    assert node.state[0] == "leader"
    node.advance(1)
    assert node.state == ("resigned", 1, 1)
    assert node.stored == Election(1, 1, None)


def test_a_resigned_leader_asks_for_a_successor() -> None:
    """EndQuorumEpoch with the best successor first, to each voter until it acknowledges; then the next epoch."""
    node = ready("leader")
    commit_epoch(node, 3)
    node.forget()
    node._take(node.core.resign_epoch(1, node.now_ms))
    asked = node.sent(EndQuorumEpoch)
    assert [send.destination.node_id for send, _ in asked] == [2, 3]
    assert asked[0][1] == EndQuorumEpoch(CLUSTER, 1, 1, (key(3), key(2)))
    node.reply(asked[0][0], EndQuorumEpochAnswer(error_codes.NONE, 1, 1, endpoints(1)))
    node.forget()
    node.handle(RequestFailed(asked[1][0].correlation_id))
    node.advance(20)
    assert [send.destination.node_id for send, _ in node.sent(EndQuorumEpoch)] == [3]
    with pytest.raises(NotLeaderError):
        node.append("a")
    node.advance(979)
    assert node.state[0] == "resigned"
    node.advance(1)
    assert node.state[:2] == ("prospective", 2)


def test_who_may_be_resigned() -> None:
    """Only the leader of that epoch; another epoch, and any other role, change nothing."""
    node = ready("leader")
    for epoch in (0, 2):
        node._take(node.core.resign_epoch(epoch, node.now_ms))
        assert node.state[0] == "leader"
    for role in ("follower", "unattached"):
        node = ready(role)
        before = node.state
        node._take(node.core.resign_epoch(before[1], node.now_ms))
        assert node.state == before


@pytest.mark.parametrize(
    ("successors", "wait_ms"),
    [
        ((), 0),
        ((key(1), key(3)), 0),
        ((key(3), key(1)), 500),
        ((key(3), key(4), key(1)), 500),
        ((key(3), key(4), key(5), key(1)), 500),
        ((key(3), key(1), key(5), key(4)), 125),
        ((key(3), key(4)), 1000),
        ((ReplicaKey(3), ReplicaKey(1)), 500),
        ((key(3), ReplicaKey(1, key(9).directory_id)), 1000),
    ],
)
def test_end_quorum_epoch_sets_the_time_of_the_election(successors: tuple[ReplicaKey, ...], wait_ms: int) -> None:
    """The first successor is prospective at once, the others after a time that doubles; version 0 has no directory ids."""
    node = ready("follower")
    answer = node.ask(EndQuorumEpoch(CLUSTER, 2, 5, successors))
    assert isinstance(answer, EndQuorumEpochAnswer)
    assert (answer.error, answer.epoch) == (error_codes.NONE, 5)
    if wait_ms:
        node.advance(wait_ms - 1)
        assert node.state == ("follower", 5, 2)
        node.advance(1)
    assert node.state == ("prospective", 5, 2)


def test_end_quorum_epoch_of_others() -> None:
    """An earlier epoch is fenced; the end of an epoch that was not known makes the node follow, then stand for election."""
    node = ready("candidate")
    assert node.ask(EndQuorumEpoch("other", 2, 1, ())) == EndQuorumEpochAnswer(error_codes.INCONSISTENT_CLUSTER_ID, -1, NO_NODE)
    assert node.ask(EndQuorumEpoch(CLUSTER, -1, 1, ())) == EndQuorumEpochAnswer(error_codes.INVALID_REQUEST, 1, NO_NODE)
    assert node.ask(EndQuorumEpoch(CLUSTER, 2, 0, ())) == EndQuorumEpochAnswer(error_codes.FENCED_LEADER_EPOCH, 1, NO_NODE)
    assert node.state[0] == "candidate"
    node = ready("leader")
    node.ask(EndQuorumEpoch(CLUSTER, 2, 0, ()))
    assert node.state[0] == "leader"
    node = ready("unattached")
    node.ask(EndQuorumEpoch(CLUSTER, 2, 3, (key(1),)))
    assert node.state == ("prospective", 3, 2)


def test_a_resigned_leader_follows_its_successor() -> None:
    """BeginQuorumEpoch of a later epoch; one that names itself for its own epoch changes nothing."""
    node = ready("resigned")
    node.ask(BeginQuorumEpoch(CLUSTER, 1, 1, key(1), endpoints(1)))
    assert node.state == ("resigned", 1, 1)
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 2, key(1), endpoints(2)))
    assert node.state == ("follower", 2, 2)


def test_a_leader_hears_of_a_later_epoch() -> None:
    """By an answer to BeginQuorumEpoch: it is not the leader any more; by its own epoch nothing changes."""
    node = ready("leader")
    first, second = [send for send, _ in node.sent(BeginQuorumEpoch)]
    node.reply(first, BeginQuorumEpochAnswer(error_codes.NONE, 1, 1, endpoints(1)))
    assert node.state == ("leader", 1, 1)
    node.reply(second, BeginQuorumEpochAnswer(error_codes.FENCED_LEADER_EPOCH, 2, 3, endpoints(3)))
    assert node.state == ("follower", 2, 3)


def test_a_leader_hears_votes_of_observers() -> None:
    """A candidate that is no voter ends the leader's epoch, as one that is not known yet may; it gets the vote."""
    for is_pre_vote in (True, False):
        node = ready("leader")
        answer = node.ask(vote(node, 9, is_pre_vote=is_pre_vote, epoch=2, end_offset=50))
        assert answer == VoteAnswer(error_codes.NONE, 2, NO_NODE, True)
        assert node.state == ("unattached", 2, NO_NODE)


def test_a_prospective_node_follows_a_new_leader() -> None:
    """Also in its own epoch, if it knew none; with the leader that it knows, it stays in its election."""
    node = ready("prospective")
    node.ask(BeginQuorumEpoch(CLUSTER, 3, 0, key(1), endpoints(3)))
    assert node.state == ("follower", 0, 3)
    node.advance(2000)
    assert node.state == ("prospective", 0, 3)
    node.ask(BeginQuorumEpoch(CLUSTER, 3, 0, key(1), endpoints(3)))
    assert node.state == ("prospective", 0, 3)
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 1, key(1), endpoints(2)))
    assert node.state == ("follower", 1, 2)


def test_a_leader_that_is_no_voter_is_followed() -> None:
    """It is named with its endpoints: the record with it may not be here yet, or it leads until its removal."""
    node = ready("unattached")
    node.ask(BeginQuorumEpoch(CLUSTER, 8, 4, key(1), endpoints(8)))
    assert node.state == ("follower", 4, 8)
    assert node.sent(Fetch)[-1][0].destination.port == 9998


def test_a_leader_without_an_endpoint_is_kept() -> None:
    """Quorum-state names one that is no voter: others do not hear of it, a lost pre-vote keeps it, its message is followed."""
    node = Context(1, stored=Election(5, 8, None))
    assert node.state == ("unattached", 5, 8)
    answer = node.ask(vote(node, 3))
    assert isinstance(answer, VoteAnswer)
    assert (answer.is_granted, answer.leader_id) == (False, NO_NODE)
    node.forget()
    node.advance(1000)
    assert node.state == ("prospective", 5, 8)
    grant(node, 2, 3, is_granted=False)
    assert node.state == ("unattached", 5, 8)
    assert node.stored == Election(5, 8, None)
    node.ask(BeginQuorumEpoch(CLUSTER, 8, 5, key(1), endpoints(8)))
    assert node.state == ("follower", 5, 8)
