"""The state of one replica of the metadata log, its transitions, and its way out: what leaves when.

RaftCore (consensus.py) takes the events; elections.py, fetching.py and voter_changes.py handle the requests of each family on
this state. A copy of a replica shares nothing that changes, and `digest` returns its state as a value.

    leaves                            only when this is durable
    --------------------------------  -------------------------------------------------------------------------------------
    every request and every answer    quorum-state as of its making: an answer to Vote the vote, a request for votes the own
                                      one, any message of an epoch that epoch
    a Fetch of a voter or controller  the log up to its offset: the leader counts the offset as acknowledged
    a request for votes (no pre-vote) the log up to the end that it states: the vote stays granted after a crash
    first Fetch after FetchSnapshot   the snapshot under its name, before the log is emptied; the log's new start

    counts for the high watermark     only when this is durable
    --------------------------------  -------------------------------------------------------------------------------------
    the leader's own end              quorum-state of its leadership, and the log up to that end

Records may be sent before the leader has flushed them: a majority of others that has is enough. What a node knows to be
committed it may deliver before it is flushed here. Messages that are not sent when the role changes are dropped with the
connections of that role (an offset that the log had then may be truncated); answers stay, since an answer only states what was
true, and a later quorum-state covers an earlier one. One write of quorum-state and one flush of the log are outstanding; a
truncation takes back what a flush that it overtook has covered.

Where Kafka ends the process because of a message ("dies"), a Report is logged, and:

    message                                                   what follows here
    --------------------------------------------------------  -----------------------------------------------------------------
    names another leader for the epoch, or this node though   ignored; the answer to a request is UNKNOWN_LEADER_EPOCH and
    it does not lead                                          names no leader, which a Kafka node ignores
    names a leader without an endpoint                        its epoch is entered without a leader
    the answer INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED  ignored; the connection backs off
    a diverging epoch or a snapshot below the high watermark  ignored: to follow it would remove committed records
    a part of another snapshot, size, or position             the part file is dropped, and the fetch begins again
    a part without bytes, or behind the end of the snapshot   ignored; the connection backs off
    a snapshot that is damaged when all of it is received     the part file is dropped, the log stays, and the fetch begins
                                                              again after a backoff that grows
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import (
    BOOTSTRAP_SNAPSHOT_ID,
    LAST_EPOCH,
    MOST_EPOCHS_AHEAD,
    NO_NODE,
    NO_OFFSET,
    Answer,
    AnyAnswer,
    AppendedControl,
    ChangeVotersAnswer,
    ControlEntry,
    Destination,
    Effect,
    Election,
    Endpoints,
    FetchAnswer,
    FlushLog,
    FlushSnapshot,
    HighWatermarkMoved,
    KRaftVersionEntry,
    LeaderChanged,
    LeaderChangeEntry,
    LogTruncated,
    Random,
    ReplicaKey,
    ReplicatedLog,
    Report,
    Request,
    Send,
    SnapshotId,
    StoreElection,
    VoterNode,
    Voters,
    VotersEntry,
)
from kcli.server.raft.quorum_state import NEVER_MS, QuorumState, Role
from kcli.server.raft.voter_set import BEFORE_THE_LOG, VoterHistory, address_on, find_voter, is_voter, voter_ids, with_voter


class RaftCoreConfig(NamedTuple):
    """The settings of a replica; the times are Kafka's keys controller.quorum.*.

    `listener` is the first of controller.listener.names, on which the others are reached; `endpoints` are this node's own,
    empty on a broker. `static_voters` are those of controller.quorum.voters. With `elects_at_once` the voter with the lowest
    id, which at its start reaches all others and finds that none knows a leader, does not wait for the election timeout: an
    election is always allowed.
    """

    local: ReplicaKey
    cluster_id: str
    listener: str
    endpoints: Endpoints = ()
    static_voters: Voters = ()
    bootstrap_servers: tuple[Destination, ...] = ()
    is_controller: bool = True
    elects_at_once: bool = False
    joins_automatically: bool = False
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1024 * 1024
    fetch_snapshot_max_bytes: int = 1024 * 1024
    fetch_max_wait_ms: int = 500
    observer_session_ms: int = 300_000
    shutdown_timeout_ms: int = 5000
    lowest_kraft_version: int = 0
    highest_kraft_version: int = 1

    @property
    def check_quorum_ms(self) -> int:
        """The time after which a leader resigns that too few voters fetch from."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def own_voter(self) -> VoterNode:
        """This node as a voter."""
        return VoterNode(self.local, self.endpoints, self.lowest_kraft_version, self.highest_kraft_version)


class LeaderFields(NamedTuple):
    """What each answer says about the epoch."""

    epoch: int
    leader_id: int
    endpoints: Endpoints


class _Held(NamedTuple):
    """A message that waits until quorum-state of this version and the log up to this offset are durable."""

    effect: Send | Answer
    version: int
    flushed_offset: int


class _Connection(NamedTuple):
    """The state of a connection that is not ready: a request is in flight, or (no correlation id) it backs off."""

    correlation_id: int | None
    deadline_ms: int


class _InFlight(NamedTuple):
    node_id: int
    request: Request


class RequestManager:
    """One request in flight for each connection, its timeout, and the backoff after an error."""

    __slots__ = ("_backoff_ms", "_connections", "_in_flight", "_next_correlation_id", "_timeout_ms")

    def __init__(self, timeout_ms: int, backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._connections: dict[int, _Connection] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._next_correlation_id = 0

    def copy(self) -> RequestManager:
        """Return a copy that shares nothing that changes."""
        twin = RequestManager(self._timeout_ms, self._backoff_ms)
        twin._connections, twin._in_flight = dict(self._connections), dict(self._in_flight)
        twin._next_correlation_id = self._next_correlation_id
        return twin

    def digest(self, now_ms: int) -> tuple[object, ...]:
        """Return the state as a value; times are relative to `now_ms`."""
        connections = ((key, value.correlation_id, value.deadline_ms - now_ms) for key, value in self._connections.items())
        return (tuple(sorted(connections, key=lambda one: one[0])), tuple(sorted(self._in_flight)))

    def is_expected(self, correlation_id: int) -> bool:
        """Return True if an answer with this correlation id is used."""
        return correlation_id in self._in_flight

    def reuse_above(self, correlation_id: int) -> None:
        """Continue with the correlation ids above one: those were answered and are free (the search of small worlds)."""
        self._next_correlation_id = correlation_id + 1

    def reset(self) -> None:
        """Make all connections ready and forget what is in flight, as at a change of the role."""
        self._connections.clear()
        self._in_flight.clear()

    def expire(self, now_ms: int) -> None:
        """Let connections back off whose request has timed out, and make those ready whose backoff is over."""
        for node_id, connection in list(self._connections.items()):
            if connection.deadline_ms > now_ms:
                continue
            del self._connections[node_id]
            if connection.correlation_id is not None:
                del self._in_flight[connection.correlation_id]
                self._back_off(node_id, now_ms)

    def is_ready(self, node_id: int) -> bool:
        """Return True if a request may be sent now."""
        return node_id not in self._connections

    def is_backing_off(self, node_id: int) -> bool:
        """Return True after a request that failed or timed out."""
        connection = self._connections.get(node_id)
        return connection is not None and connection.correlation_id is None

    @property
    def has_any_in_flight(self) -> bool:
        """True if a request to any node has no answer yet."""
        return bool(self._in_flight)

    def next_deadline_ms(self) -> int:
        """Return when the state of a connection changes by itself."""
        return min((connection.deadline_ms for connection in self._connections.values()), default=NEVER_MS)

    def begin(self, node_id: int, request: Request, now_ms: int) -> int:
        """Note that a request is sent and return its correlation id."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self._connections[node_id] = _Connection(correlation_id, now_ms + self._timeout_ms)
        self._in_flight[correlation_id] = _InFlight(node_id, request)
        return correlation_id

    def end(self, correlation_id: int) -> _InFlight | None:
        """Note an answer; return what it answers, None if it is not expected any more."""
        found = self._in_flight.pop(correlation_id, None)
        if found is not None:
            del self._connections[found.node_id]
        return found

    def failed(self, node_id: int, now_ms: int) -> None:
        """Let a connection back off after an error, if it is still that of the role in which the request was sent."""
        if node_id not in self._connections:
            self._back_off(node_id, now_ms)

    def _back_off(self, node_id: int, now_ms: int) -> None:
        self._connections[node_id] = _Connection(None, now_ms + self._backoff_ms)


class Replica:
    """The state of one replica; see the head of the module."""

    __slots__ = (
        *("_effects", "_flush_limit", "_flushed_offset", "_held", "_is_flushing", "_last_report", "_leader_shown"),
        *("_requested_election", "_stored_version", "_storing_version", "_version", "config", "high_watermark", "history"),
        *("is_snapshot_flushing", "join_deadline_ms", "leaderless", "log", "quorum", "requests", "rng", "shutdown_deadline_ms"),
        *("snapshot", "snapshot_bytes", "snapshot_position", "stale_snapshot", "update_deadline_ms", "has_updated_leader"),
        *("catch_up_offset", "snapshot_backoff_ms", "snapshot_retry_ms"),
    )

    def __init__(self, config: RaftCoreConfig, log: ReplicatedLog, rng: Random) -> None:
        self.config = config
        self.log = log
        self.rng = rng
        self.history = VoterHistory(config.static_voters)
        self.quorum = QuorumState(config.local)
        self.requests = RequestManager(config.request_timeout_ms, config.retry_backoff_ms)
        self.high_watermark = NO_OFFSET
        # The first high watermark that a leader stated to this process. The own one is not above the own end, so that after the
        # first part of a long log it looks as if nothing were missing. It decides nothing here, and is not in the digest.
        self.catch_up_offset = NO_OFFSET
        self.shutdown_deadline_ms: int | None = None
        # A follower that fetches a snapshot; one whose part file is being flushed though the role has changed.
        self.snapshot: SnapshotId | None = None
        self.snapshot_bytes = 0  # its size by its first part
        self.snapshot_position = 0
        self.is_snapshot_flushing = False
        self.stale_snapshot: SnapshotId | None = None
        self.snapshot_backoff_ms = self.snapshot_retry_ms = 0  # after one that was damaged
        # A follower that is a voter sends UpdateRaftVoter, one that is not may join.
        self.update_deadline_ms = NEVER_MS
        self.join_deadline_ms = NEVER_MS
        self.has_updated_leader = False
        # The voters that know no leader, while the first election may begin at once; None later.
        self.leaderless: frozenset[int] | None = None
        self._effects: list[Effect] = []
        self._held: list[_Held] = []
        self._version = 0
        self._stored_version = 0
        self._storing_version: int | None = None
        self._requested_election: Election | None = None
        self._flushed_offset = 0
        self._is_flushing = False
        self._flush_limit = NEVER_MS
        self._leader_shown = (NO_NODE, -1)
        self._last_report = ""

    def _copy_into(self, twin: Replica) -> None:
        """Give a new replica a copy of the state; `log`, `rng` and `config` are its own."""
        for name in Replica.__slots__:
            if name not in ("log", "rng", "config"):
                setattr(twin, name, getattr(self, name))
        twin.history, twin.quorum, twin.requests = self.history.copy(), self.quorum.copy(), self.requests.copy()
        twin._effects, twin._held = list(self._effects), list(self._held)

    def digest(self, now_ms: int) -> tuple[object, ...]:
        """Return the state, without the log, as a value that can be hashed; times are relative to `now_ms`."""
        timers = (self.update_deadline_ms, self.join_deadline_ms)
        return (
            *(self.quorum.digest(now_ms), self.history.digest(), self.requests.digest(now_ms), self.high_watermark),
            *(self.snapshot, self.snapshot_bytes, self.snapshot_position, self.is_snapshot_flushing, self.stale_snapshot),
            *(self.has_updated_leader, self.leaderless),
            *(self.snapshot_backoff_ms, max(0, self.snapshot_retry_ms - now_ms)),
            tuple(timer if timer == NEVER_MS else max(0, timer - now_ms) for timer in timers),
            tuple((one.effect, self._version - one.version, one.flushed_offset) for one in self._held),
            *(self._version - self._stored_version, self._storing_version is not None, self._requested_election),
            *(self._flushed_offset, self._is_flushing, self._flush_limit, self.shutdown_deadline_ms is not None),
        )

    # ------------------------------------------------------------------------------------------------------- what it is

    @property
    def local_id(self) -> int:
        """The id of this node."""
        return self.config.local.node_id

    @property
    def voters(self) -> Voters:
        """The voters at the end of the log."""
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        """True if this replica is a voter."""
        return is_voter(self.voters, self.config.local)

    @property
    def is_only_voter(self) -> bool:
        """True if this replica is the only voter."""
        return self.is_voter and len(self.voters) == 1

    @property
    def durable_end_offset(self) -> int:
        """The end of what this replica has flushed."""
        return self._flushed_offset

    @property
    def is_election_stored(self) -> bool:
        """True if quorum-state on the disk is the present one."""
        return self._stored_version == self._version and self.quorum.election == self._requested_election

    def leader_fields(self) -> LeaderFields:
        """Return epoch and leader for an answer.

        A leader that the receiver cannot find is not named: a Kafka node would end (its endpoints are neither in the answer nor
        in the voter set).
        """
        quorum = self.quorum
        if quorum.leader_id == NO_NODE or not (quorum.leader_endpoints or find_voter(self.voters, quorum.leader_id)):
            return LeaderFields(quorum.epoch, NO_NODE, ())
        return LeaderFields(quorum.epoch, quorum.leader_id, quorum.leader_endpoints)

    def destination(self, node_id: int) -> Destination | None:
        """Return where a voter or the leader is reached, None if its endpoint is not known."""
        if node_id != self.quorum.leader_id or not self.quorum.leader_endpoints:
            return self.voter_destination(node_id)
        address = address_on(self.quorum.leader_endpoints, self.config.listener)
        return None if address is None else Destination(node_id, *address)

    def voter_destination(self, node_id: int) -> Destination | None:
        """Return where a voter is reached by the voter set."""
        voter = find_voter(self.voters, node_id)
        address = None if voter is None else address_on(voter.endpoints, self.config.listener)
        return None if address is None else Destination(node_id, *address)

    def bootstrap_servers(self) -> tuple[Destination, ...]:
        """Return where a node asks that does not know the leader: the configured servers, else the other voters."""
        if self.config.bootstrap_servers:
            return self.config.bootstrap_servers
        found = (self.destination(node_id) for node_id in voter_ids(self.voters) if node_id != self.local_id)
        return tuple(destination for destination in found if destination is not None)

    def election_deadline_ms(self, now_ms: int) -> int:
        """Return the end of a new election timeout; observers have none."""
        return self.new_election_deadline_ms(now_ms) if self.is_voter else NEVER_MS

    def new_election_deadline_ms(self, now_ms: int) -> int:
        """Return a random end between one and two election timeouts from now."""
        timeout_ms = self.config.election_timeout_ms
        return now_ms + timeout_ms + self.rng.randint(0, max(0, timeout_ms - 1))

    # ------------------------------------------------------------------------------------------------------- the way out

    def report(self, text: str, *, is_fault: bool = False) -> None:
        """Log a sentence; one that is repeated is logged once."""
        if text != self._last_report:
            self._last_report = text
            self._effects.append(Report(text, is_fault))

    def answer(self, request_id: int, answer: AnyAnswer) -> None:
        """Answer a request when the present state is durable."""
        # The version is that of the end of this event, which `_finish` sets.
        self._held.append(_Held(Answer(request_id, answer), -1, 0))

    def send(self, destination: Destination, request: Request, now_ms: int, flushed_offset: int = 0) -> int:
        """Send a request, when the state and the log up to `flushed_offset` are durable; return its correlation id."""
        correlation_id = self.requests.begin(destination.node_id, request, now_ms)
        self._held.append(_Held(Send(correlation_id, destination, request), -1, flushed_offset))
        return correlation_id

    def emit(self, effect: Effect) -> None:
        """Add an effect that waits for nothing."""
        self._effects.append(effect)

    def _finish(self, now_ms: int) -> list[Effect]:
        """Store, flush and release what can leave; return all effects since the last call."""
        quorum = self.quorum
        if quorum.election != self._requested_election:
            self._requested_election = quorum.election
            self._version += 1
        if self._held:
            self._held = [held._replace(version=self._version) if held.version < 0 else held for held in self._held]
        if self._storing_version is None and self._stored_version < self._version:
            self._storing_version = self._version
            ids = voter_ids(self.voters)
            self._effects.append(StoreElection(self._version, quorum.election, self.history.kraft_version, ids))
        if not self._is_flushing and self._flushed_offset < self.log.end_offset and self._must_flush:
            self._is_flushing, self._flush_limit = True, NEVER_MS
            self._effects.append(FlushLog(self.log.end_offset))
        leader_id = NO_NODE if quorum.role is Role.RESIGNED else quorum.leader_id
        if (leader_id, quorum.epoch) != self._leader_shown:
            self._leader_shown = (leader_id, quorum.epoch)
            start_offset = quorum.leader.epoch_start_offset if quorum.leader is not None else NO_OFFSET
            self._effects.append(LeaderChanged(leader_id, quorum.epoch, start_offset))
        self._release()
        effects, self._effects = self._effects, []
        return effects

    @property
    def _must_flush(self) -> bool:
        # A broker keeps nothing that only it has.
        return self.config.is_controller or self.is_voter

    def _release(self) -> None:
        if not self._held:
            return
        still_held = []
        for held in self._held:
            is_flushed = held.flushed_offset <= self._flushed_offset or not self._must_flush
            if held.version <= self._stored_version and is_flushed:
                self._effects.append(held.effect)
            else:
                still_held.append(held)
        self._held = still_held

    def election_stored(self, version: int) -> None:
        """Note that quorum-state is durable."""
        self._storing_version = None
        self._stored_version = max(self._stored_version, version)

    def log_flushed(self, end_offset: int) -> None:
        """Note that the log is durable, but not what was truncated after the flush began."""
        self._is_flushing = False
        self._flushed_offset = max(self._flushed_offset, min(end_offset, self._flush_limit, self.log.end_offset))

    def log_is_durable(self) -> None:
        """Note at the start that the log is durable: it was recovered, and its end counts after the first flush only."""
        self._flushed_offset = self.log.start_offset

    def log_was_cut(self, offset: int) -> None:
        """Note that the log was truncated, or replaced by a snapshot (0), so that what follows has to be flushed again."""
        self._flush_limit = min(self._flush_limit, offset)
        self._flushed_offset = min(self._flushed_offset, offset)

    def flush_snapshot(self, snapshot: SnapshotId) -> None:
        """Have a part file made durable."""
        self.is_snapshot_flushing = True
        self._effects.append(FlushSnapshot(snapshot))

    # ------------------------------------------------------------------------------------------------------- high watermark

    def move_high_watermark(self, offset: int) -> None:
        """Learn what is committed; an offset below the one before is ignored."""
        offset = min(offset, self.log.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.log.update_high_watermark(offset)
            self._effects.append(HighWatermarkMoved(offset))

    def truncate_to(self, offset: int) -> None:
        """Remove records that are not committed, and the voters in them."""
        self.log.truncate_to(offset)
        self.history.truncate_to(offset)
        self.log_was_cut(offset)
        self._effects.append(LogTruncated(offset))

    def log_was_cleaned(self) -> None:
        """Note that the start of the log has moved behind a snapshot."""
        self.history.trim_to(self.log.start_offset)

    def append_control(self, entries: tuple[ControlEntry, ...], now_ms: int) -> int:
        """Append control records as the leader; they count at once. Return the offset of the first."""
        offset = self.log.append_control(self.quorum.epoch, entries, now_ms)
        for delta, entry in enumerate(entries):
            self.history.apply(AppendedControl(offset + delta, entry))
        if self.quorum.leader is not None and any(isinstance(entry, VotersEntry) for entry in entries):
            self.quorum.leader.set_voters(self.voters)
        return offset

    # ---------------------------------------------------------------------------------------------------------- transitions

    def _leave_role(self) -> None:
        """Forget what belongs to the role that ends; `_join_role` answers those who waited for a leader."""
        self.requests.reset()
        self._held = [held for held in self._held if isinstance(held.effect, Answer)]
        self.drop_snapshot()
        self.update_deadline_ms = self.join_deadline_ms = NEVER_MS
        self.has_updated_leader = False
        self.snapshot_backoff_ms = self.snapshot_retry_ms = 0
        if self.leaderless is not None:
            self.leaderless = frozenset()

    def drop_snapshot(self) -> None:
        """Stop the fetch of a snapshot; a part file that is being flushed is removed later."""
        if self.snapshot is None:
            return
        if self.is_snapshot_flushing:
            self.stale_snapshot = self.snapshot
        else:
            self.log.drop_snapshot(self.snapshot)
        self.forget_snapshot()

    def forget_snapshot(self) -> None:
        """End the fetch of a snapshot."""
        self.snapshot, self.snapshot_bytes, self.snapshot_position, self.is_snapshot_flushing = None, 0, 0, False

    def _leadership_lost(self, leader: LeaderState | None) -> None:
        """Answer those who waited for this node as the leader; the new role is taken already."""
        if leader is None:
            return
        fields = self.leader_fields()
        for waiting in leader.waiting:
            self.answer(waiting.request_id, FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, *fields))
        if leader.change is not None and leader.change.request_id is not None:
            text = "this node is not the leader of the metadata quorum any more"
            self.answer(leader.change.request_id, ChangeVotersAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, text))

    def become_unattached(self, epoch: int, now_ms: int, leader_id: int = NO_NODE, voted: ReplicaKey | None = None) -> None:
        """Enter an epoch without a leader, or stay in it and vote for a candidate."""
        quorum, leader = self.quorum, self.quorum.leader
        deadline_ms = self.election_deadline_ms(now_ms)
        has_lost = quorum.role is Role.PROSPECTIVE and quorum.ballot is not None and quorum.ballot.is_rejected
        has_timer = quorum.role in (Role.CANDIDATE, Role.UNATTACHED, Role.RESIGNED, Role.PROSPECTIVE) and not has_lost
        if has_timer and voted is None and quorum.deadline_ms != NEVER_MS and deadline_ms != NEVER_MS:
            # A node that gets messages of higher epochs all the time still has its election.
            deadline_ms = quorum.deadline_ms
        self._leave_role()
        quorum.become_unattached(epoch, deadline_ms, leader_id, voted)
        self._leadership_lost(leader)

    def become_follower(self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int) -> None:
        """Follow a leader whose endpoints are known."""
        quorum, leader = self.quorum, self.quorum.leader
        if epoch > quorum.epoch:
            self._last_report = ""
        self._leave_role()
        fetch_deadline_ms = now_ms + self.config.fetch_timeout_ms
        quorum.become_follower(epoch, leader_id, endpoints, fetch_deadline_ms)
        self.update_deadline_ms = self.join_deadline_ms = fetch_deadline_ms
        self._leadership_lost(leader)

    def become_prospective(self, now_ms: int) -> None:
        """Ask for pre-votes; the only voter becomes a candidate and the leader at once."""
        self._leave_role()
        self.quorum.become_prospective(voter_ids(self.voters), self.election_deadline_ms(now_ms))
        self.advance_election(now_ms)

    def vote_as_prospective(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Vote for a candidate of the epoch while this node asks for pre-votes; it asks again."""
        self._leave_role()
        self.quorum.vote_as_prospective(candidate, self.election_deadline_ms(now_ms))

    def become_candidate(self, now_ms: int) -> None:
        """Ask for votes in the next epoch; the last one is not followed by another."""
        if self.quorum.epoch >= LAST_EPOCH:
            self.report(
                f"the epoch of the metadata quorum is {LAST_EPOCH}, the last that there can be: no leader can be elected. "
                "Restore the quorum-state files of all voters from before",
                is_fault=True,
            )
            return
        self._leave_role()
        self.quorum.become_candidate(voter_ids(self.voters), self.election_deadline_ms(now_ms))
        self.advance_election(now_ms)

    def advance_election(self, now_ms: int) -> None:
        """Become a candidate, or the leader, if a majority has granted its votes."""
        quorum = self.quorum
        if quorum.ballot is None or not quorum.ballot.is_granted:
            return
        if quorum.role is Role.PROSPECTIVE:
            self.become_candidate(now_ms)
        elif quorum.role is Role.CANDIDATE:
            self._become_leader(now_ms)

    def _become_leader(self, now_ms: int) -> None:
        """Begin the epoch with LeaderChange, and with the voters where the log does not have them as they are."""
        quorum, config, log = self.quorum, self.config, self.log
        granting = quorum.ballot.granting() if quorum.ballot is not None else ()
        start_offset = log.end_offset
        log.start_epoch(quorum.epoch)
        leader = LeaderState(config.local, start_offset, self.voters, config.check_quorum_ms, now_ms)
        own = find_voter(self.voters, self.local_id)
        endpoints = config.endpoints or (own.endpoints if own is not None else ())
        self._leave_role()
        quorum.become_leader(leader, endpoints)
        if self.history.kraft_version == 0:
            leader.updated = (config.own_voter._replace(endpoints=endpoints),)
        change = LeaderChangeEntry(self.local_id, voter_ids(self.voters), granting)
        self.append_control((change, *self._voters_at_start(own, endpoints)), now_ms)

    def _voters_at_start(self, own: VoterNode | None, endpoints: Endpoints) -> tuple[ControlEntry, ...]:
        level = self.history.kraft_version
        if level == 0 or own is None:
            return ()
        updated = self.config.own_voter._replace(endpoints=endpoints)
        if self.history.voters_offset != BEFORE_THE_LOG and updated == own:
            return ()
        # 0-0.checkpoint is not sent to the others: they learn the voters from the log.
        return (KRaftVersionEntry(level), VotersEntry(with_voter(self.voters, updated)))

    def resign(self, now_ms: int) -> None:
        """Stop leading and ask the others for a successor."""
        leader = self.quorum.leader
        if leader is None:
            return
        successors = leader.successors()
        self._leave_role()
        others = frozenset(node_id for node_id in voter_ids(self.voters) if node_id != self.local_id)
        # A removed leader is not a voter, and waits all the same for the epoch of its successor.
        self.quorum.become_resigned(successors, others, self.new_election_deadline_ms(now_ms))
        self._leadership_lost(leader)

    # ------------------------------------------------------------------------------------------------- epochs of others

    def endpoints_of_leader(self, leader_id: int, endpoints: Endpoints) -> Endpoints:
        """Return the endpoints in a message or, if there are none, those of the voter."""
        if endpoints:
            return endpoints
        voter = find_voter(self.voters, leader_id)
        return () if voter is None else voter.endpoints

    def follow_message(self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int) -> bool:
        """Move to the epoch and the leader of a message; return False if it contradicts what is known."""
        quorum = self.quorum
        if not self._is_consistent(epoch, leader_id):
            return False
        known = self.endpoints_of_leader(leader_id, endpoints)
        if epoch > quorum.epoch:
            if leader_id != NO_NODE and known:
                self.become_follower(epoch, leader_id, known, now_ms)
                return True
            if leader_id != NO_NODE:
                self.report(f"node {leader_id} leads epoch {epoch} of the metadata quorum, but its endpoint is not known")
            self.become_unattached(epoch, now_ms)
            return True
        is_new = quorum.leader_id == NO_NODE or len(known) > len(quorum.leader_endpoints)
        if epoch == quorum.epoch and leader_id not in (NO_NODE, self.local_id) and is_new and known:
            self.become_follower(epoch, leader_id, known, now_ms)
        return True

    def may_be_epoch(self, epoch: int) -> bool:
        """Return False, and report it, for an epoch that no peer can have reached since this node was heard."""
        own = self.quorum.epoch
        if own == 0 or epoch - own <= MOST_EPOCHS_AHEAD:
            return True
        self.report(
            f"a peer names epoch {epoch} of the metadata quorum, which is not possible after epoch {own}: it is ignored",
            is_fault=True,
        )
        return False

    def _is_consistent(self, epoch: int, leader_id: int) -> bool:
        """Check that a message names no other leader for this epoch, nor this node if it does not lead (KIP-595)."""
        quorum = self.quorum
        if not self.may_be_epoch(epoch):
            return False
        if leader_id == NO_NODE or epoch < quorum.epoch:
            return True
        if leader_id == self.local_id:
            is_right = epoch == quorum.epoch and quorum.leader_id == self.local_id
        else:
            is_right = epoch != quorum.epoch or quorum.leader_id in (NO_NODE, leader_id)
        if not is_right:
            self.report(
                f"a peer names node {leader_id} as the leader of epoch {epoch} of the metadata quorum; here the leader of "
                f"epoch {quorum.epoch} is {quorum.leader_id}: the message is ignored. Two nodes may have the same node.id",
                is_fault=True,
            )
        return is_right


def is_real_snapshot(snapshot: SnapshotId | None) -> bool:
    """Return True for a snapshot that peers may fetch."""
    return snapshot is not None and snapshot != BOOTSTRAP_SNAPSHOT_ID
