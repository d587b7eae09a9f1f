"""RaftCore: one replica of the metadata quorum, as a state machine (Kafka: KafkaRaftClient; KIP-595, 853, 996, 1186).

Events go in, effects come out (messages.py); the core has no clock, no disk and no random numbers of its own, and holds no
callbacks, so that it can be copied and digested. The shell calls `handle` for each event and once when `deadline_ms` has
passed. What must be durable before what leaves is the table at the head of replica.py.

    role                      what it does                                                             until
    ------------------------  -----------------------------------------------------------------------  ----------------------
    Unattached                asks random bootstrap servers for the leader                             election timeout
    Prospective, Candidate    asks the voters for pre-votes, votes (elections.py); does not fetch      election timeout
    Follower                  fetches (fetching.py), sends UpdateRaftVoter (voter_changes.py)          fetch timeout
    Leader                    answers, sends BeginQuorumEpoch to voters that do not fetch              1.5 fetch timeouts
                                                                                                       without a majority
    Resigned                  sends EndQuorumEpoch until each voter has acknowledged it                election timeout

    answer, in this order                                     what follows
    --------------------------------------------------------  -----------------------------------------------------------------
    top-level error; UNSUPPORTED_VERSION to a PreVote         the connection backs off; the election begins without pre-votes
    an epoch below the own one; UNKNOWN_LEADER_EPOCH          ignored
    a higher epoch, FENCED_LEADER_EPOCH,                      the named epoch and leader are entered
    NOT_LEADER_OR_FOLLOWER
    the epoch's leader, which was not known                   it is followed; the payload counts only without an error
    another error                                             logged, the connection backs off
    none                                                      the payload counts, if it can be used

After every error and every answer that is ignored the connection backs off, unless the role has changed, which makes all
connections new.
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.server.raft.elections import (
    handle_begin_quorum_epoch,
    handle_end_quorum_epoch,
    handle_end_quorum_epoch_answer,
    handle_vote,
    handle_vote_answer,
    lose_pre_vote,
    pre_vote_is_unsupported,
    send_begin_of_epoch,
    send_end_of_epoch,
    send_votes,
)
from kcli.server.raft.fetching import (
    complete_waiting,
    expire_waiting,
    handle_fetch,
    handle_fetch_answer,
    handle_fetch_snapshot,
    handle_fetch_snapshot_answer,
    note_leaderless,
    send_fetch,
    snapshot_flush_deadline_ms,
    snapshot_flushed,
    unasked_voters,
)
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import (
    LAST_EPOCH,
    NO_NODE,
    NO_OFFSET,
    TOP_LEVEL_ERRORS,
    AddRaftVoter,
    AnswerArrived,
    AnyAnswer,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    BeginQuorumEpoch,
    ChangeVotersAnswer,
    Effect,
    Election,
    ElectionStored,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    EpochAnswer,
    Event,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    LogFlushed,
    Random,
    Records,
    RemoveRaftVoter,
    ReplicatedLog,
    Request,
    RequestArrived,
    RequestFailed,
    SnapshotFlushed,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    Vote,
    VoteAnswer,
)
from kcli.server.raft.quorum_state import NEVER_MS, Role
from kcli.server.raft.replica import RaftCoreConfig, Replica, is_real_snapshot
from kcli.server.raft.voter_changes import (
    advance_change,
    handle_add_voter,
    handle_probe_answer,
    handle_remove_voter,
    handle_update_voter,
    has_update,
    may_join,
    send_if_due,
    send_probe,
    upgrade_kraft_version,
)
from kcli.server.raft.voter_set import voter_ids


class NotLeaderError(Exception):
    """An append on a node that is not the leader."""


class RaftCore(Replica):
    """One replica. `start` comes first; `handle`, `take_effects`, `shutdown` and `resign` return effects for the shell."""

    __slots__ = ("_answered_to", "_shutdown_epoch", "deadline_ms")

    def __init__(self, config: RaftCoreConfig, log: ReplicatedLog, rng: Random) -> None:
        super().__init__(config, log, rng)
        self.deadline_ms = NEVER_MS
        # The end of the log and the high watermark for which the fetches that wait were checked last.
        self._answered_to = (NO_OFFSET, NO_OFFSET)
        self._shutdown_epoch = -1

    def copy(self, log: ReplicatedLog, rng: Random) -> RaftCore:
        """Return a copy that shares nothing that changes, with a log and random numbers of its own."""
        twin = RaftCore(self.config, log, rng)
        self._copy_into(twin)
        for name in RaftCore.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    # ------------------------------------------------------------------------------------------------------- start, stop

    def start(self, stored: Election | None, now_ms: int) -> list[Effect]:
        """Begin with what quorum-state and the log have (QuorumState.initialize); the only voter leads at once."""
        self.history.reload(self.log.control_entries())
        self.log_is_durable()
        latest = self.log.latest_snapshot
        if latest is not None and is_real_snapshot(latest):
            self.high_watermark = latest.end_offset
        quorum = self.quorum
        quorum.restore(stored, self.log.last_epoch, is_voter=self.is_voter)
        self._requested_election = stored
        if quorum.role is Role.CANDIDATE:
            quorum.restart_candidacy(voter_ids(self.voters), self.election_deadline_ms(now_ms))
            self.advance_election(now_ms)
        elif quorum.role is Role.RESIGNED:
            self._start_as_resigned(now_ms)
        elif quorum.leader_id != NO_NODE and self.voter_destination(quorum.leader_id) is not None:
            endpoints = self.endpoints_of_leader(quorum.leader_id, ())
            self.become_follower(quorum.epoch, quorum.leader_id, endpoints, now_ms)
        else:
            quorum.deadline_ms = self.election_deadline_ms(now_ms)
        others = [node_id for node_id in voter_ids(self.voters) if node_id != self.local_id]
        if self.config.elects_at_once and self.is_voter and others and self.local_id < min(others):
            # Only one voter does so, since several at once could split the votes.
            self.leaderless = frozenset()
        if self.is_only_voter and not quorum.is_leader:
            quorum.role = Role.UNATTACHED  # also from Resigned and Follower: there is no other node to wait for
            self.become_prospective(now_ms)
        return self.take_effects(now_ms)

    def _start_as_resigned(self, now_ms: int) -> None:
        others = frozenset(node_id for node_id in voter_ids(self.voters) if node_id != self.local_id)
        self.quorum.unacknowledged = others
        self.quorum.leader_endpoints = self.config.endpoints
        self.quorum.deadline_ms = self.new_election_deadline_ms(now_ms)

    def shutdown(self, now_ms: int) -> list[Effect]:
        """Begin to stop: a leader hands over, another voter waits for a leader; `is_stopped` returns when that is done."""
        if self.shutdown_deadline_ms is None:
            self.shutdown_deadline_ms = now_ms + self.config.shutdown_timeout_ms
            self._shutdown_epoch = self.quorum.epoch
        return self.take_effects(now_ms)

    def is_stopped(self, now_ms: int) -> bool:
        """Return True if a shutdown is complete: a successor is found or cannot be found in time, and all answers have left."""
        if self.shutdown_deadline_ms is None:
            return False
        if now_ms >= self.shutdown_deadline_ms:
            return True
        role = self.quorum.role
        is_free = role is Role.FOLLOWER or self.is_only_voter or (not self.is_voter and role is not Role.RESIGNED)
        has_successor = self.quorum.epoch > self._shutdown_epoch and role is not Role.LEADER
        return not self._held and (is_free or has_successor)

    def resign_epoch(self, epoch: int, now_ms: int) -> list[Effect]:
        """Stop leading an epoch; nothing happens if this node leads another one or none."""
        if self.quorum.is_leader and self.quorum.epoch == epoch:
            self.resign(now_ms)
        return self.take_effects(now_ms)

    # ----------------------------------------------------------------------------------------------------------- appending

    def append(self, epoch: int, records: Records, now_ms: int) -> int:
        """Append a batch of records and return the offset of the last; call `take_effects` after one or several appends.

        Raises NotLeaderError if this node does not lead that epoch, and what the log raises.
        """
        if not self.quorum.is_leader or self.quorum.epoch != epoch:
            raise NotLeaderError("this node is not the leader of the metadata quorum")
        return self.log.append_as_leader(epoch, records, now_ms)

    def upgrade_kraft_version(self, level: int, now_ms: int, *, validates_only: bool = False) -> ChangeVotersAnswer:
        """Upgrade kraft.version and return an error with its text; call `take_effects` then."""
        return upgrade_kraft_version(self, level, now_ms, validates_only=validates_only)

    # -------------------------------------------------------------------------------------------------------------- events

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Process an event."""
        match event:
            case RequestArrived(request_id, request):
                self._handle_request(request_id, request, now_ms)
            case AnswerArrived(correlation_id, answer):
                self._handle_answer(correlation_id, answer, now_ms)
            case RequestFailed(correlation_id, error):
                self._request_failed(correlation_id, error, now_ms)
            case ElectionStored(version):
                self.election_stored(version)
            case LogFlushed(end_offset):
                self.log_flushed(end_offset)
            case SnapshotFlushed(snapshot, damage):
                snapshot_flushed(self, snapshot, damage, now_ms)
        return self.take_effects(now_ms)

    def take_effects(self, now_ms: int) -> list[Effect]:
        """Do what is due, and return all effects."""
        self.requests.expire(now_ms)
        before = None
        while before != (self.quorum.role, self.quorum.epoch):
            before = (self.quorum.role, self.quorum.epoch)
            self._step(now_ms)
        self.deadline_ms = self._next_deadline_ms(now_ms)
        return self._finish(now_ms)

    def _handle_request(self, request_id: int, request: Request, now_ms: int) -> None:
        match request:
            case Vote():
                handle_vote(self, request_id, request, now_ms)
            case BeginQuorumEpoch():
                handle_begin_quorum_epoch(self, request_id, request, now_ms)
            case EndQuorumEpoch():
                handle_end_quorum_epoch(self, request_id, request, now_ms)
            case Fetch():
                handle_fetch(self, request_id, request, now_ms)
            case FetchSnapshot():
                handle_fetch_snapshot(self, request_id, request, now_ms)
            case AddRaftVoter():
                handle_add_voter(self, request_id, request, now_ms)
            case RemoveRaftVoter():
                handle_remove_voter(self, request_id, request, now_ms)
            case UpdateRaftVoter():
                handle_update_voter(self, request_id, request, now_ms)
            case ApiVersionsProbe():
                low, high = self.config.lowest_kraft_version, self.config.highest_kraft_version
                self.answer(request_id, ApiVersionsProbeAnswer(error_codes.NONE, low, high))

    def _request_failed(self, correlation_id: int, error: int, now_ms: int) -> None:
        found = self.requests.end(correlation_id)
        if found is None:
            return
        self.requests.failed(found.node_id, now_ms)
        if isinstance(found.request, ApiVersionsProbe):
            handle_probe_answer(self, correlation_id, ApiVersionsProbeAnswer(error_codes.NETWORK_EXCEPTION, 0, 0), now_ms)
        elif error == error_codes.UNSUPPORTED_VERSION:
            self._unsupported(found.request, now_ms)

    def _unsupported(self, request: Request, now_ms: int) -> None:
        """Do without a request that a peer of an earlier version does not have."""
        if isinstance(request, Vote) and request.is_pre_vote and request.epoch == self.quorum.epoch:
            pre_vote_is_unsupported(self, now_ms)
        elif isinstance(request, UpdateRaftVoter):
            self.has_updated_leader = True

    def _handle_answer(self, correlation_id: int, answer: AnyAnswer, now_ms: int) -> None:
        found = self.requests.end(correlation_id)
        if found is None:
            return
        request, before, is_used = found.request, (self.quorum.role, self.quorum.epoch), True
        if isinstance(answer, ApiVersionsProbeAnswer):
            handle_probe_answer(self, correlation_id, answer, now_ms)
        elif isinstance(answer, ChangeVotersAnswer):
            if answer.error != error_codes.NONE:
                self.report(f"the leader does not change the voters of the metadata quorum: {answer.message}")
        else:
            is_used = self._may_use(answer, request, now_ms) and self._use(found.node_id, request, answer, now_ms)
        if isinstance(answer, FetchAnswer):
            note_leaderless(self, found.node_id, answer)
        is_same_role = before == (self.quorum.role, self.quorum.epoch)
        if is_same_role and (answer.error != error_codes.NONE or not is_used):
            self.requests.failed(found.node_id, now_ms)
            if answer.error == error_codes.UNSUPPORTED_VERSION:
                self._unsupported(request, now_ms)

    def _may_use(self, answer: EpochAnswer, request: Request, now_ms: int) -> bool:
        """Apply the rules of all answers; return True if the payload counts (KafkaRaftClient.maybeHandleCommonResponse)."""
        quorum, error = self.quorum, answer.error
        if error in TOP_LEVEL_ERRORS:
            if error == error_codes.CLUSTER_AUTHORIZATION_FAILED:
                self.report(f"a peer of the metadata quorum answers {type(request).__name__} with {error_codes.NAMES[error]}")
            return False
        if answer.epoch < quorum.epoch or error == error_codes.UNKNOWN_LEADER_EPOCH:
            return False
        is_moved = error in (error_codes.FENCED_LEADER_EPOCH, error_codes.NOT_LEADER_OR_FOLLOWER)
        if answer.epoch > quorum.epoch or is_moved:
            self.follow_message(answer.epoch, answer.leader_id, answer.endpoints, now_ms)
            return False
        if not self.follow_message(answer.epoch, answer.leader_id, answer.endpoints, now_ms):
            return False
        if error == error_codes.NONE:
            return True
        if isinstance(answer, FetchSnapshotAnswer) and error in (
            error_codes.SNAPSHOT_NOT_FOUND,
            error_codes.POSITION_OUT_OF_RANGE,
        ):
            return True
        if error != error_codes.BROKER_NOT_AVAILABLE:
            self.report(f"a peer of the metadata quorum answers {type(request).__name__} with {error_codes.NAMES[error]}")
        return False

    def _use(self, node_id: int, request: Request, answer: EpochAnswer, now_ms: int) -> bool:
        """Take the payload; return False if it cannot be used."""
        match request, answer:
            case Vote(), VoteAnswer():
                handle_vote_answer(self, node_id, request, answer, now_ms)
            case EndQuorumEpoch(), EndQuorumEpochAnswer():
                handle_end_quorum_epoch_answer(self, node_id)
            case Fetch(), FetchAnswer():
                return handle_fetch_answer(self, request, answer, now_ms)
            case FetchSnapshot(), FetchSnapshotAnswer():
                return handle_fetch_snapshot_answer(self, request, answer, now_ms)
            case UpdateRaftVoter(), UpdateRaftVoterAnswer():
                self.has_updated_leader = True
        return True

    # ---------------------------------------------------------------------------------------------------------- what is due

    def _step(self, now_ms: int) -> None:
        """Do what is due in the present role, and perhaps leave it."""
        quorum, is_stopping = self.quorum, self.shutdown_deadline_ms is not None
        is_over = now_ms >= quorum.deadline_ms and not is_stopping
        match quorum.role:
            case Role.UNATTACHED if self.is_voter and not is_stopping and (is_over or self._may_elect_at_once):
                self.leaderless = None
                self.become_prospective(now_ms)
            case Role.UNATTACHED:
                send_fetch(self, now_ms)
            case Role.PROSPECTIVE if is_over:
                lose_pre_vote(self, now_ms)
            case Role.CANDIDATE if is_over:
                self.become_prospective(now_ms)
            case Role.PROSPECTIVE | Role.CANDIDATE:
                send_votes(self, now_ms)
            case Role.LEADER if quorum.leader is not None:
                self._lead(quorum.leader, now_ms)
            case Role.FOLLOWER if is_over and self.is_voter:
                self.become_prospective(now_ms)
            case Role.FOLLOWER:
                leader = self.destination(quorum.leader_id)
                if leader is None or not send_if_due(self, leader, now_ms):
                    send_fetch(self, now_ms)
            case Role.RESIGNED if is_over and quorum.epoch < LAST_EPOCH:
                self.become_unattached(quorum.epoch + 1, now_ms)
            case Role.RESIGNED:
                send_end_of_epoch(self, now_ms)

    @property
    def _may_elect_at_once(self) -> bool:
        return self.leaderless is not None and self.quorum.leader_id == NO_NODE and not unasked_voters(self)

    def _lead(self, leader: LeaderState, now_ms: int) -> None:
        if self.is_election_stored:
            leader.update_local(self.durable_end_offset, self.log.end_offset, now_ms)
        self.move_high_watermark(leader.high_watermark)
        if leader.change is not None:
            advance_change(self, leader, now_ms)
            send_probe(self, leader, now_ms)
        if self._answered_to != (self.log.end_offset, leader.high_watermark):
            self._answered_to = (self.log.end_offset, leader.high_watermark)
            complete_waiting(self, leader, now_ms)
        if leader.waiting:
            expire_waiting(self, leader, now_ms)
        if leader.observers:
            leader.forget_observers(self.config.observer_session_ms, now_ms)
        is_removed = not leader.is_voter and self.history.voters_offset < leader.high_watermark
        is_stopping = self.shutdown_deadline_ms is not None and not self.is_only_voter
        if is_removed or is_stopping:
            self.resign(now_ms)
        elif not leader.is_alone and now_ms >= leader.check_quorum_deadline_ms:
            self.report(
                f"this node stops leading epoch {self.quorum.epoch} of the metadata quorum: no majority of the voters "
                f"has fetched for {self.config.check_quorum_ms} ms"
            )
            self.resign(now_ms)
        else:
            send_begin_of_epoch(self, now_ms)

    def _next_deadline_ms(self, now_ms: int) -> int:
        quorum = self.quorum
        times = [self.requests.next_deadline_ms()]
        if self.shutdown_deadline_ms is not None:
            times.append(self.shutdown_deadline_ms)
        leader = quorum.leader
        if leader is not None:
            times += (one.deadline_ms for one in leader.waiting)
            if leader.change is not None:
                times.append(leader.change.deadline_ms)
            if not leader.is_alone:
                times += (leader.check_quorum_deadline_ms, leader.begin_deadline_ms)
        elif self.shutdown_deadline_ms is None and (self.is_voter or quorum.role is Role.RESIGNED):
            times.append(quorum.deadline_ms)
        if quorum.role is Role.FOLLOWER:
            times.append(self.snapshot_retry_ms)
            if self.is_snapshot_flushing:
                times.append(snapshot_flush_deadline_ms(self))
            if has_update(self):
                times.append(self.update_deadline_ms)
            if may_join(self):
                times.append(self.join_deadline_ms)
        # A time that has passed waits for an answer, not for the clock.
        return min((time_ms for time_ms in times if time_ms > now_ms), default=NEVER_MS)
