"""Vote, BeginQuorumEpoch and EndQuorumEpoch: the handlers of requests and answers, and what a node sends (KIP-595, 853, 996).

    state of the receiver     PreVote                                          Vote
    ------------------------  -----------------------------------------------  --------------------------------------------
    Leader                    no                                               no
    Follower                  before its first successful fetch from this      no
                              leader, if the candidate's log is up to date
    Candidate, Resigned       if up to date                                    no
    Unattached, Prospective   if up to date                                    the candidate of its vote again; else no if
                                                                               it voted or a leader is known; else if up to
                                                                               date

A log is up to date if its last epoch and its end are not below the own ones; the epoch is compared first. A PreVote leaves
nothing behind, except that a higher epoch is entered. The receiver checks neither that it nor that the candidate is a voter: a
node may not know yet that it is one.

EndQuorumEpoch sets the fetch timeout of a follower by its place among the successors of the resigned leader: the first begins
its election at once, the next ones after a time that doubles from place to place.

A message whose epoch is MOST_EPOCHS_AHEAD above the own one is ignored and reported, which Kafka does not: with an epoch near
the last, 2^31 - 1, no leader could be elected any more. A node of epoch 0 takes any.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.server.raft.messages import (
    NO_NODE,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    Destination,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    ReplicaKey,
    Request,
    Vote,
    VoteAnswer,
)
from kcli.server.raft.quorum_state import Role
from kcli.server.raft.replica import LeaderFields, Replica
from kcli.server.raft.voter_set import find_voter

# ------------------------------------------------------------------------------------------------------------- requests


def handle_vote(replica: Replica, request_id: int, request: Vote, now_ms: int) -> None:
    """Answer Vote."""
    error = cluster_error(replica, request.cluster_id) or _vote_error(replica, request)
    is_granted = False
    if error == error_codes.NONE:
        if request.epoch > replica.quorum.epoch:
            replica.become_unattached(request.epoch, now_ms)
        if not is_addressed(replica, request.voter):
            error = error_codes.INVALID_VOTER_KEY
        else:
            is_granted = _decide(replica, request, now_ms)
    fields = _fields(replica, error)
    replica.answer(request_id, VoteAnswer(error, fields.epoch, fields.leader_id, is_granted, fields.endpoints))


def cluster_error(replica: Replica, cluster_id: str | None) -> int:
    """Return INCONSISTENT_CLUSTER_ID for a request of another cluster; a request without an id is accepted."""
    is_own = cluster_id is None or cluster_id == replica.config.cluster_id
    return error_codes.NONE if is_own else error_codes.INCONSISTENT_CLUSTER_ID


def _fields(replica: Replica, error: int) -> LeaderFields:
    if error == error_codes.INCONSISTENT_CLUSTER_ID:
        return LeaderFields(-1, NO_NODE, ())
    return replica.leader_fields()


def is_addressed(replica: Replica, voter: ReplicaKey | None) -> bool:
    """Return True if a request is for this replica; an id or a directory that is not stated is not checked."""
    if voter is None or voter.node_id < 0:
        return True
    local = replica.config.local
    return voter.node_id == local.node_id and voter.directory_id in (ZERO_UUID, local.directory_id)


def _vote_error(replica: Replica, request: Vote) -> int:
    # A prospective candidate sends its present epoch, a candidate the one behind that of its log.
    is_wrong_epoch = request.last_epoch > request.epoch if request.is_pre_vote else request.last_epoch >= request.epoch
    if request.end_offset < 0 or request.last_epoch < 0 or is_wrong_epoch or not replica.may_be_epoch(request.epoch):
        return error_codes.INVALID_REQUEST
    if request.epoch < replica.quorum.epoch:
        return error_codes.FENCED_LEADER_EPOCH
    return error_codes.INVALID_REQUEST if request.candidate.node_id < 0 else error_codes.NONE


def _decide(replica: Replica, request: Vote, now_ms: int) -> bool:
    quorum = replica.quorum
    is_up_to_date = (request.last_epoch, request.end_offset) >= (replica.log.last_epoch, replica.log.end_offset)
    if request.is_pre_vote:
        # After its fetch timeout a voter does not follow any more, but an observer does. It may be a new voter that does not
        # know it yet, and whose vote is needed. (Kafka's refuses for ever.)
        has_leader = quorum.role is Role.FOLLOWER and quorum.has_fetched and now_ms < quorum.deadline_ms
        if quorum.role is Role.LEADER or has_leader:
            return False
        return is_up_to_date
    if quorum.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
        return False
    if quorum.voted is not None:
        node_id, directory_id = quorum.voted
        return node_id == request.candidate.node_id and directory_id in (ZERO_UUID, request.candidate.directory_id)
    if quorum.leader_id != NO_NODE or not is_up_to_date:
        return False
    if quorum.role is Role.PROSPECTIVE:
        replica.vote_as_prospective(request.candidate, now_ms)
    else:
        replica.become_unattached(request.epoch, now_ms, voted=request.candidate)
    return True


def handle_begin_quorum_epoch(replica: Replica, request_id: int, request: BeginQuorumEpoch, now_ms: int) -> None:
    """Follow a new leader and answer it; it is followed even if it has the key of this voter wrong."""
    error = cluster_error(replica, request.cluster_id)
    if error == error_codes.NONE:
        error = _leader_message_error(replica, request.leader_id, request.epoch)
    if error == error_codes.NONE and not replica.follow_message(request.epoch, request.leader_id, request.endpoints, now_ms):
        error = error_codes.UNKNOWN_LEADER_EPOCH
    if error == error_codes.NONE and not is_addressed(replica, request.voter):
        error = error_codes.INVALID_VOTER_KEY
    replica.answer(request_id, BeginQuorumEpochAnswer(error, *_answer_fields(replica, error)))


def _leader_message_error(replica: Replica, leader_id: int, epoch: int) -> int:
    if epoch < replica.quorum.epoch:
        return error_codes.FENCED_LEADER_EPOCH
    return error_codes.INVALID_REQUEST if leader_id < 0 else error_codes.NONE


def _answer_fields(replica: Replica, error: int) -> LeaderFields:
    """Return the fields of an answer; a message that contradicts this node gets none: two leaders end a Kafka node."""
    if error == error_codes.UNKNOWN_LEADER_EPOCH:
        return LeaderFields(replica.quorum.epoch, NO_NODE, ())
    return _fields(replica, error)


def handle_end_quorum_epoch(replica: Replica, request_id: int, request: EndQuorumEpoch, now_ms: int) -> None:
    """Prepare an election, since the leader has resigned."""
    error = cluster_error(replica, request.cluster_id)
    if error == error_codes.NONE:
        error = _leader_message_error(replica, request.leader_id, request.epoch)
    if error == error_codes.NONE and not replica.follow_message(request.epoch, request.leader_id, request.endpoints, now_ms):
        error = error_codes.UNKNOWN_LEADER_EPOCH
    quorum = replica.quorum
    if error == error_codes.NONE and quorum.role is Role.FOLLOWER and quorum.leader_id == request.leader_id:
        quorum.deadline_ms = now_ms + election_backoff_ms(replica, request.preferred_successors)
    replica.answer(request_id, EndQuorumEpochAnswer(error, *_answer_fields(replica, error)))


def election_backoff_ms(replica: Replica, successors: tuple[ReplicaKey, ...]) -> int:
    """Return how long this node waits before its election (KafkaRaftClient.strictExponentialElectionBackoffMs)."""
    max_ms, local = replica.config.election_backoff_max_ms, replica.config.local
    if not successors:
        return 0
    for position, key in enumerate(successors):
        if key.node_id == local.node_id and key.directory_id in (ZERO_UUID, local.directory_id):
            return 0 if position == 0 else min(max_ms, (max_ms >> (len(successors) - 1)) << (position - 1))
    return max_ms


# -------------------------------------------------------------------------------------------------------------- answers


def handle_vote_answer(replica: Replica, node_id: int, request: Vote, answer: VoteAnswer, now_ms: int) -> None:
    """Count a vote; the common rules of answers are applied already."""
    quorum = replica.quorum
    wanted = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
    if quorum.role is not wanted or quorum.ballot is None or request.epoch != quorum.epoch:
        return
    quorum.ballot.add(node_id, is_granted=answer.is_granted)
    if wanted is Role.PROSPECTIVE and quorum.ballot.is_rejected:
        lose_pre_vote(replica, now_ms)
    else:
        replica.advance_election(now_ms)


def pre_vote_is_unsupported(replica: Replica, now_ms: int) -> None:
    """Begin the election without pre-votes, since a voter does not know them."""
    if replica.quorum.role is Role.PROSPECTIVE:
        replica.become_candidate(now_ms)


def lose_pre_vote(replica: Replica, now_ms: int) -> None:
    """Follow the leader of the epoch if it is known; else wait for the next election."""
    quorum = replica.quorum
    ballot = quorum.ballot
    if ballot is not None and len(ballot.answers) < ballot.majority:
        replica.report(
            f"{len(ballot.answers)} of the {len(ballot.voter_ids)} voters of the metadata quorum can be reached, this node "
            f"included; {ballot.majority} are needed to elect a leader, and until then the metadata does not change"
        )
    if quorum.leader_id != NO_NODE and quorum.leader_endpoints:
        replica.become_follower(quorum.epoch, quorum.leader_id, quorum.leader_endpoints, now_ms)
    else:
        replica.become_unattached(quorum.epoch, now_ms, leader_id=quorum.leader_id)


def handle_end_quorum_epoch_answer(replica: Replica, node_id: int) -> None:
    """Note that a voter knows of the resignation."""
    if replica.quorum.role is Role.RESIGNED:
        replica.quorum.unacknowledged = replica.quorum.unacknowledged - {node_id}


# -------------------------------------------------------------------------------------------------------------- sending


def send_votes(replica: Replica, now_ms: int) -> None:
    """Ask the voters that have not answered for their votes."""
    quorum, log = replica.quorum, replica.log
    if quorum.ballot is None or quorum.ballot.is_rejected:
        return
    config = replica.config
    for node_id in quorum.ballot.unanswered():
        voter = find_voter(replica.voters, node_id)
        request = Vote(
            config.cluster_id,
            config.local,
            quorum.epoch,
            voter.key if voter is not None else ReplicaKey(node_id),
            log.last_epoch,
            log.end_offset,
            is_pre_vote=quorum.role is Role.PROSPECTIVE,
        )
        # A vote is for the log that it was granted for: after a crash this candidate begins anew in the same epoch, and its
        # voters grant their votes again, whatever its log is then.
        flushed_offset = 0 if request.is_pre_vote else log.end_offset
        send_if_ready(replica, replica.voter_destination(node_id), request, now_ms, flushed_offset)


def send_if_ready(
    replica: Replica, destination: Destination | None, request: Request, now_ms: int, flushed_offset: int = 0
) -> bool:
    """Send a request, when the log up to `flushed_offset` is durable, if its connection is ready; return True if it is sent."""
    if destination is None or not replica.requests.is_ready(destination.node_id):
        return False
    replica.send(destination, request, now_ms, flushed_offset)
    return True


def send_end_of_epoch(replica: Replica, now_ms: int) -> None:
    """Send EndQuorumEpoch to the voters that have not acknowledged it."""
    quorum = replica.quorum
    request = EndQuorumEpoch(replica.config.cluster_id, replica.local_id, quorum.epoch, quorum.successors)
    for node_id in sorted(quorum.unacknowledged):
        send_if_ready(replica, replica.voter_destination(node_id), request, now_ms)


def send_begin_of_epoch(replica: Replica, now_ms: int) -> None:
    """Send BeginQuorumEpoch to the voters that do not fetch, each half of the fetch timeout."""
    quorum, config = replica.quorum, replica.config
    leader = quorum.leader
    if leader is None or now_ms < leader.begin_deadline_ms:
        return
    interval_ms = max(1, config.fetch_timeout_ms // 2)
    leader.begin_deadline_ms = now_ms + interval_ms
    for node_id in leader.silent_voters(interval_ms, now_ms):
        voter = find_voter(replica.voters, node_id)
        key = voter.key if voter is not None else ReplicaKey(node_id)
        request = BeginQuorumEpoch(config.cluster_id, replica.local_id, quorum.epoch, key, quorum.leader_endpoints)
        destination = replica.voter_destination(node_id)
        if destination is not None and not send_if_ready(replica, destination, request, now_ms):
            # The connection backs off, or an earlier request has no answer yet.
            leader.begin_deadline_ms = min(leader.begin_deadline_ms, now_ms + config.retry_backoff_ms)
