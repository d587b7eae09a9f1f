"""AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, the upgrade to kraft.version 1, and joining without a tool (KIP-853, 1186).

    what the leader finds, in this order                              add                remove             update
    ----------------------------------------------------------------  -----------------  -----------------  -----------------
    another cluster                                                   INCONSISTENT_CLUSTER_ID (all three)
    another epoch; not the leader; it shuts down                      as for Fetch; only update has an epoch
    no node id or directory id                                        INVALID_REQUEST    INVALID_REQUEST    INVALID_REQUEST
    no endpoint on the leader's listener; levels that cannot be       INVALID_REQUEST                       INVALID_REQUEST
    a change that is not done; an unknown high watermark              REQUEST_TIMED_OUT (all three)
    kraft.version 0                                                   UNSUPPORTED_VERS.  UNSUPPORTED_VERS.  kept in memory
    the last voters are not committed                                 REQUEST_TIMED_OUT (all three)
    the node id is a voter's; the voter is unknown, or is the last    DUPLICATE_VOTER    VOTER_NOT_FOUND    VOTER_NOT_FOUND
    no answer to ApiVersions                                          REQUEST_TIMED_OUT
    the levels do not have the present kraft.version                  INVALID_REQUEST                       INVALID_REQUEST
    the new voter has not reached the end of the log                  REQUEST_TIMED_OUT
    answered                                                          at the commit, or  at the commit      at the append
                                                                      at the append

REQUEST_TIMED_OUT means "try again". A change is a single record: the voters that it names count as soon as it is appended, on
every replica, and two sets that follow each other differ by one voter, so that their majorities overlap. The next change waits
for the commit. A leader that removes itself leads until that is committed, does not count itself, and resigns then.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.server.raft.elections import cluster_error
from kcli.server.raft.fetching import leader_error
from kcli.server.raft.leader_state import LeaderState, VoterChange
from kcli.server.raft.messages import (
    NO_OFFSET,
    AddRaftVoter,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    ChangeVotersAnswer,
    Destination,
    KRaftVersionEntry,
    RemoveRaftVoter,
    ReplicaKey,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    VoterNode,
    VotersEntry,
)
from kcli.server.raft.replica import Replica
from kcli.server.raft.voter_set import address_on, find_voter, with_voter

# A replica that was caught up and has fetched in this time is so still (LeaderState.isReplicaCaughtUp).
_CAUGHT_UP_MS = 60 * 60 * 1000

_MESSAGES = {
    error_codes.INCONSISTENT_CLUSTER_ID: "the request is for another cluster",
    error_codes.NOT_LEADER_OR_FOLLOWER: "this node is not the leader of the metadata quorum",
    error_codes.BROKER_NOT_AVAILABLE: "the leader of the metadata quorum shuts down",
    error_codes.UNSUPPORTED_VERSION: "the voters can be changed from kraft.version 1 on: upgrade the feature kraft.version",
}


def handle_add_voter(replica: Replica, request_id: int, request: AddRaftVoter, now_ms: int) -> None:
    """Begin to add a voter."""
    error, text = _change_error(replica, request.cluster_id, request.voter)
    listener = replica.config.listener
    if error == error_codes.INVALID_REQUEST or (error == error_codes.NONE and address_on(request.endpoints, listener) is None):
        error = error_codes.INVALID_REQUEST
        text = text or f"the new voter has no endpoint on the listener {listener}"
    elif error == error_codes.NONE:
        error, text = _pending_error(replica)
    if error == error_codes.NONE and find_voter(replica.voters, request.voter.node_id) is not None:
        error, text = error_codes.DUPLICATE_VOTER, f"node {request.voter.node_id} is a voter already"
    leader = replica.quorum.leader
    if error != error_codes.NONE or leader is None:
        replica.answer(request_id, ChangeVotersAnswer(error, text))
        return
    leader.change = VoterChange(
        request_id,
        request.voter,
        now_ms + replica.config.request_timeout_ms,
        endpoints=request.endpoints,
        is_acknowledged_when_committed=request.is_acknowledged_when_committed,
    )
    send_probe(replica, leader, now_ms)


def _change_error(replica: Replica, cluster_id: str | None, voter: ReplicaKey) -> tuple[int, str]:
    error = cluster_error(replica, cluster_id) or leader_error(replica, None)
    if error != error_codes.NONE:
        return error, _MESSAGES.get(error, "")
    if voter.node_id < 0 or voter.directory_id == ZERO_UUID:
        return error_codes.INVALID_REQUEST, "a voter is named by its node id and its directory id"
    return error_codes.NONE, ""


def _pending_error(replica: Replica, *, is_update: bool = False) -> tuple[int, str]:
    """Return why the voters cannot be changed now."""
    leader, again = replica.quorum.leader, error_codes.REQUEST_TIMED_OUT
    if leader is None:
        return error_codes.NOT_LEADER_OR_FOLLOWER, _MESSAGES[error_codes.NOT_LEADER_OR_FOLLOWER]
    if leader.change is not None:
        return again, "another change of the voters is not done yet: try again"
    if leader.high_watermark < 0:
        return again, "the leader has not committed a record of its epoch yet: try again"
    if replica.history.kraft_version == 0 and not is_update:
        return error_codes.UNSUPPORTED_VERSION, _MESSAGES[error_codes.UNSUPPORTED_VERSION]
    if replica.history.voters_offset >= leader.high_watermark:
        return again, "the last change of the voters is not committed yet: try again"
    return error_codes.NONE, ""


def send_probe(replica: Replica, leader: LeaderState, now_ms: int) -> None:
    """Ask a new voter for the levels of kraft.version that it supports, as soon as its connection is ready."""
    change = leader.change
    if change is None or change.is_removal or change.correlation_id is not None or change.offset != NO_OFFSET:
        return
    address = address_on(change.endpoints, replica.config.listener)
    if address is not None and replica.requests.is_ready(change.voter.node_id):
        destination = Destination(change.voter.node_id, *address)
        leader.change = change._replace(correlation_id=replica.send(destination, ApiVersionsProbe(), now_ms))


def handle_probe_answer(replica: Replica, correlation_id: int, answer: ApiVersionsProbeAnswer, now_ms: int) -> None:
    """Append the voters with the new one, if it can be one."""
    leader = replica.quorum.leader
    change = leader.change if leader is not None else None
    if leader is None or change is None or change.correlation_id != correlation_id:
        return
    level = replica.history.kraft_version
    progress = leader.observers.get(change.voter)
    if answer.error != error_codes.NONE:
        _end_change(replica, leader, error_codes.REQUEST_TIMED_OUT, "the new voter does not answer ApiVersions: try again")
    elif not answer.lowest_kraft_version <= level <= answer.highest_kraft_version:
        text = (
            f"node {change.voter.node_id} supports the levels {answer.lowest_kraft_version} to "
            f"{answer.highest_kraft_version} of kraft.version, and the quorum has {level}"
        )
        _end_change(replica, leader, error_codes.INVALID_REQUEST, text)
    elif progress is None or progress.last_caught_up_ms < 0 or now_ms - progress.last_fetch_ms >= _CAUGHT_UP_MS:
        text = f"node {change.voter.node_id} has not fetched the metadata log up to its end yet: try again"
        _end_change(replica, leader, error_codes.REQUEST_TIMED_OUT, text)
    else:
        levels = (answer.lowest_kraft_version, answer.highest_kraft_version)
        voters = with_voter(replica.voters, VoterNode(change.voter, change.endpoints, *levels))
        offset = replica.append_control((VotersEntry(voters),), now_ms)
        leader.change = change._replace(correlation_id=None, offset=offset)
        if not change.is_acknowledged_when_committed and change.request_id is not None:
            replica.answer(change.request_id, ChangeVotersAnswer(error_codes.NONE))
            leader.change = leader.change._replace(request_id=None)


def _end_change(replica: Replica, leader: LeaderState, error: int, text: str = "") -> None:
    change, leader.change = leader.change, None
    if change is not None and change.request_id is not None:
        replica.answer(change.request_id, ChangeVotersAnswer(error, text))


def advance_change(replica: Replica, leader: LeaderState, now_ms: int) -> None:
    """Answer a change that is committed, or that takes too long; its record stays in the log."""
    change = leader.change
    if change is None:
        return
    if change.offset != NO_OFFSET and leader.high_watermark > change.offset:
        _end_change(replica, leader, error_codes.NONE)
    elif now_ms >= change.deadline_ms:
        _end_change(replica, leader, error_codes.REQUEST_TIMED_OUT, "the change of the voters was not committed in time")


def handle_remove_voter(replica: Replica, request_id: int, request: RemoveRaftVoter, now_ms: int) -> None:
    """Append the voters without one of them."""
    error, text = _change_error(replica, request.cluster_id, request.voter)
    if error == error_codes.NONE:
        error, text = _pending_error(replica)
    found = find_voter(replica.voters, request.voter.node_id)
    if error == error_codes.NONE and (found is None or found.key != request.voter or len(replica.voters) == 1):
        error = error_codes.VOTER_NOT_FOUND
        text = f"node {request.voter.node_id} with the directory {request.voter.directory_id} is not a voter, or the last one"
    leader = replica.quorum.leader
    if error != error_codes.NONE or leader is None:
        replica.answer(request_id, ChangeVotersAnswer(error, text))
        return
    voters = tuple(voter for voter in replica.voters if voter.key != request.voter)
    offset = replica.append_control((VotersEntry(voters),), now_ms)
    deadline_ms = now_ms + replica.config.request_timeout_ms
    leader.change = VoterChange(request_id, request.voter, deadline_ms, is_removal=True, offset=offset)


def handle_update_voter(replica: Replica, request_id: int, request: UpdateRaftVoter, now_ms: int) -> None:
    """Take the endpoints and the levels of a voter."""
    error = _update_error(replica, request)
    leader = replica.quorum.leader
    if error == error_codes.NONE and leader is not None:
        levels = (request.lowest_kraft_version, request.highest_kraft_version)
        updated = VoterNode(request.voter, request.endpoints, *levels)
        if replica.history.kraft_version == 0:
            leader.updated = with_voter(leader.updated, updated)
        elif find_voter(replica.voters, request.voter.node_id) != updated:
            replica.append_control((VotersEntry(with_voter(replica.voters, updated)),), now_ms)
        leader.heard_of(request.voter, now_ms)
    fields = replica.leader_fields()
    if error == error_codes.INCONSISTENT_CLUSTER_ID:
        fields = fields._replace(epoch=-1, leader_id=-1, endpoints=())
    replica.answer(request_id, UpdateRaftVoterAnswer(error, *fields))


def _update_error(replica: Replica, request: UpdateRaftVoter) -> int:
    error = cluster_error(replica, request.cluster_id) or leader_error(replica, request.epoch)
    if error != error_codes.NONE:
        return error
    low, high = request.lowest_kraft_version, request.highest_kraft_version
    is_known = request.voter.node_id >= 0 and request.voter.directory_id != ZERO_UUID
    if not is_known or address_on(request.endpoints, replica.config.listener) is None or not 0 <= low <= high:
        return error_codes.INVALID_REQUEST
    error, _ = _pending_error(replica, is_update=True)
    level = replica.history.kraft_version
    if error == error_codes.NONE and not low <= level <= high:
        return error_codes.INVALID_REQUEST
    found = find_voter(replica.voters, request.voter.node_id)
    # Static voters have no directory ids.
    if error == error_codes.NONE and (found is None or found.key.directory_id not in (ZERO_UUID, request.voter.directory_id)):
        return error_codes.VOTER_NOT_FOUND
    return error


def upgrade_kraft_version(replica: Replica, level: int, now_ms: int, *, validates_only: bool) -> ChangeVotersAnswer:
    """Upgrade to a level of kraft.version, by UpdateFeatures; return an error and its text (LeaderState)."""
    leader, present = replica.quorum.leader, replica.history.kraft_version
    refused = error_codes.INVALID_UPDATE_VERSION
    if leader is None:
        return ChangeVotersAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, _MESSAGES[error_codes.NOT_LEADER_OR_FOLLOWER])
    if level == present:
        return ChangeVotersAnswer(error_codes.NONE)
    if level < present:
        return ChangeVotersAnswer(refused, f"kraft.version cannot be downgraded from {present} to {level}")
    voters = []
    for voter in replica.voters:
        updated = find_voter(leader.updated, voter.key.node_id)
        if updated is None:
            text = f"the voter {voter.key.node_id} has not sent its endpoints to the leader yet: start it, and try again"
            return ChangeVotersAnswer(refused, text)
        if not updated.lowest_kraft_version <= level <= updated.highest_kraft_version:
            return ChangeVotersAnswer(refused, f"the voter {voter.key.node_id} does not support level {level} of kraft.version")
        voters.append(updated)
    if leader.high_watermark < 0 or leader.change is not None:
        return ChangeVotersAnswer(error_codes.REQUEST_TIMED_OUT, "the leader is not ready for the upgrade: try again")
    if not validates_only:
        replica.append_control((KRaftVersionEntry(level), VotersEntry(tuple(voters))), now_ms)
    return ChangeVotersAnswer(error_codes.NONE)


# --------------------------------------------------------------------------------------------------------- the follower


def has_update(replica: Replica) -> bool:
    """Return True if a follower that is a voter has to send UpdateRaftVoter: at kraft.version 0 once to each leader."""
    if not replica.is_voter or not replica.config.endpoints:
        return False
    if replica.history.kraft_version == 0:
        return not replica.has_updated_leader
    return find_voter(replica.voters, replica.local_id) != replica.config.own_voter


def may_join(replica: Replica) -> bool:
    """Return True for an observer that makes itself a voter."""
    config = replica.config
    is_set = config.is_controller and config.joins_automatically
    return is_set and bool(config.endpoints) and replica.history.kraft_version > 0 and not replica.is_voter


def send_if_due(replica: Replica, leader: Destination, now_ms: int) -> bool:
    """Send UpdateRaftVoter or what lets an observer join, each fetch timeout; return True if the next Fetch waits for it."""
    config = replica.config
    if has_update(replica) and now_ms >= replica.update_deadline_ms:
        if not replica.requests.is_ready(leader.node_id):
            return not replica.requests.is_backing_off(leader.node_id)
        own, epoch = config.own_voter, replica.quorum.epoch
        levels = (own.lowest_kraft_version, own.highest_kraft_version)
        replica.send(leader, UpdateRaftVoter(config.cluster_id, epoch, own.key, own.endpoints, *levels), now_ms)
        replica.update_deadline_ms = now_ms + config.fetch_timeout_ms
        return True
    if may_join(replica) and now_ms >= replica.join_deadline_ms:
        if not replica.requests.is_ready(leader.node_id):
            return not replica.requests.is_backing_off(leader.node_id)
        old = find_voter(replica.voters, replica.local_id)
        if old is not None:
            # The disk of this voter was exchanged.
            replica.send(leader, RemoveRaftVoter(config.cluster_id, old.key), now_ms)
        else:
            endpoints, timeout_ms = config.endpoints, config.request_timeout_ms
            replica.send(leader, AddRaftVoter(config.cluster_id, config.local, endpoints, timeout_ms, False), now_ms)
        replica.join_deadline_ms = now_ms + config.fetch_timeout_ms
        return True
    return False
