"""What a leader knows of its epoch: the ends of the voters' logs, the high watermark, who still fetches, who waits.

The high watermark is the offset that a majority of the voters has reached: the element `voters / 2` of their ends in descending
order, unknown ones last. It counts only above the start of the epoch: the records of earlier epochs are committed with the
LeaderChange of this one, never by a count of replicas (section 5.4.2 of the Raft paper). It never falls, also not when a new
set of voters gives a smaller one. The leader counts itself only while it is a voter, and only what it has flushed.

Check quorum: the timer starts again when enough other voters have fetched to be a majority together with the leader
(or without it, if it is not a voter any more). When it expires, the leader resigns.

One change of the voters at a time: `change` is the one that waits for an answer of the new voter, or for its commit. Fetches
that wait (`waiting`) are answered when records are appended, when the high watermark moves, or at their deadline.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.server.raft.messages import NO_OFFSET, Endpoints, Fetch, FetchAnswer, ReplicaKey, VoterNode, Voters

NO_TIME_MS = -1


class ReplicaProgress(NamedTuple):
    """How far a replica is, by its fetches; times are -1 if there was none."""

    key: ReplicaKey
    end_offset: int = NO_OFFSET
    last_fetch_ms: int = NO_TIME_MS
    last_caught_up_ms: int = NO_TIME_MS
    leader_end_at_fetch: int = NO_OFFSET

    def fetched(self, offset: int, leader_end_offset: int, now_ms: int) -> ReplicaProgress:
        """Return the progress after a fetch at `offset`."""
        caught_up_ms = self.last_caught_up_ms
        if offset >= leader_end_offset:
            caught_up_ms = now_ms
        elif self.leader_end_at_fetch >= 0 and offset >= self.leader_end_at_fetch:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return ReplicaProgress(self.key, offset, now_ms, caught_up_ms, leader_end_offset)


class WaitingFetch(NamedTuple):
    """A fetch that waits; `first` is the answer when its time is over (KafkaRaftClient: that of its arrival)."""

    request_id: int
    request: Fetch
    deadline_ms: int
    first: FetchAnswer


class VoterChange(NamedTuple):
    """AddRaftVoter (with `endpoints`) or RemoveRaftVoter on its way. `request_id` is None when it is answered."""

    request_id: int | None
    voter: ReplicaKey
    deadline_ms: int
    is_removal: bool = False
    endpoints: Endpoints = ()
    is_acknowledged_when_committed: bool = True
    correlation_id: int | None = None  # of ApiVersions, until it is answered
    offset: int = NO_OFFSET  # of the record, once it is appended


class LeaderState:
    """The state of the leader of one epoch."""

    __slots__ = (
        *("begin_deadline_ms", "change", "check_quorum_deadline_ms", "check_quorum_ms", "epoch_start_offset", "fetched"),
        *("high_watermark", "local", "observers", "updated", "voters", "waiting"),
    )

    def __init__(self, local: ReplicaKey, epoch_start_offset: int, voters: Voters, check_quorum_ms: int, now_ms: int) -> None:
        self.local = local
        self.epoch_start_offset = epoch_start_offset
        self.voters = {voter.key.node_id: ReplicaProgress(voter.key) for voter in voters}
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        self.high_watermark = NO_OFFSET
        self.check_quorum_ms = check_quorum_ms
        self.check_quorum_deadline_ms = now_ms + check_quorum_ms
        self.fetched: frozenset[int] = frozenset()
        self.begin_deadline_ms = now_ms
        self.waiting: tuple[WaitingFetch, ...] = ()
        self.change: VoterChange | None = None
        # At kraft.version 0: the voters that have sent UpdateRaftVoter, which an upgrade needs.
        self.updated: tuple[VoterNode, ...] = ()

    def copy(self) -> LeaderState:
        """Return a copy that shares nothing that changes."""
        twin = LeaderState(self.local, self.epoch_start_offset, (), self.check_quorum_ms, 0)
        for name in LeaderState.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.voters, twin.observers = dict(self.voters), dict(self.observers)
        return twin

    def digest(self, now_ms: int) -> tuple[object, ...]:
        """Return the state as a value that can be hashed; times are relative to `now_ms`."""
        return (
            *(self.epoch_start_offset, self.high_watermark, self.fetched, self.updated),
            tuple((key, self.voters[key].end_offset, _age(self.voters[key], now_ms)) for key in sorted(self.voters)),
            tuple((key, self.observers[key].end_offset, _age(self.observers[key], now_ms)) for key in sorted(self.observers)),
            tuple((one.request_id, one.request, one.deadline_ms - now_ms, one.first) for one in self.waiting),
            None if self.change is None else self.change._replace(deadline_ms=self.change.deadline_ms - now_ms),
            (max(0, self.check_quorum_deadline_ms - now_ms), max(0, self.begin_deadline_ms - now_ms)),
        )

    # ---------------------------------------------------------------------------------------------------------- replicas

    @property
    def is_voter(self) -> bool:
        """True while this node is a voter; a leader that was removed leads until that is committed."""
        return self.local.node_id in self.voters

    def set_voters(self, voters: Voters) -> None:
        """Learn a new set of voters: a new voter brings what it fetched as an observer, a removed one becomes an observer."""
        old = self.voters
        self.voters = {}
        for voter in voters:
            node_id, directory_id = voter.key
            known = old.pop(node_id, None)
            if known is not None and known.key.directory_id not in (ZERO_UUID, directory_id) and directory_id != ZERO_UUID:
                self.observers[known.key] = known
                known = None
            if known is None:
                known = self.observers.pop(voter.key, None)
            self.voters[node_id] = ReplicaProgress(voter.key) if known is None else known._replace(key=voter.key)
        self.observers |= {known.key: known for known in old.values() if known.key.node_id != self.local.node_id}
        self.fetched = self.fetched & frozenset(self.voters)

    def is_voter_key(self, key: ReplicaKey) -> bool:
        """Return True if this replica is a voter; a voter without a directory id is known by its node id."""
        known = self.voters.get(key.node_id)
        return known is not None and known.key.directory_id in (ZERO_UUID, key.directory_id)

    def update_local(self, durable_end_offset: int, end_offset: int, now_ms: int) -> bool:
        """Count this node's own flushed log; return True if the high watermark moves."""
        own = self.voters.get(self.local.node_id)
        if own is not None and (own.end_offset, own.leader_end_at_fetch) != (durable_end_offset, end_offset):
            self.voters[self.local.node_id] = ReplicaProgress(own.key, durable_end_offset, now_ms, now_ms, end_offset)
        return self._advance()

    def update_replica(self, key: ReplicaKey, offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """Count a valid fetch; return True if the high watermark moves. An end below the one before is counted, too."""
        if not self.is_voter_key(key):
            known = self.observers.get(key, ReplicaProgress(key))
            self.observers[key] = known.fetched(offset, leader_end_offset, now_ms)
            self.heard_of(key, now_ms)
            return False
        self.voters[key.node_id] = self.voters[key.node_id].fetched(offset, leader_end_offset, now_ms)
        self.heard_of(key, now_ms)
        return self._advance()

    def _advance(self) -> bool:
        ends = sorted((known.end_offset for known in self.voters.values()), reverse=True)
        if not ends:
            return False
        offset = ends[len(ends) // 2]
        if offset <= self.epoch_start_offset or offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def forget_observers(self, session_ms: int, now_ms: int) -> None:
        """Forget observers that have not fetched for `session_ms`."""
        self.observers = {key: known for key, known in self.observers.items() if now_ms - known.last_fetch_ms < session_ms}

    def successors(self) -> tuple[ReplicaKey, ...]:
        """Return the other voters, the one with the longest log first."""
        others = [known for known in self.voters.values() if known.key.node_id != self.local.node_id]
        return tuple(known.key for known in sorted(others, key=lambda known: (-known.end_offset, known.key.node_id)))

    # ------------------------------------------------------------------------------------------------------ check quorum

    def heard_of(self, key: ReplicaKey, now_ms: int) -> None:
        """Count that a voter still follows this leader.

        If no other voter is needed for a majority, an observer counts: when it becomes the second voter, the time begins with
        its last fetch, and not with the election.
        """
        if key.node_id == self.local.node_id:
            return
        if self.is_voter_key(key):
            self.fetched = self.fetched | {key.node_id}
        majority = len(self.voters) // 2 + 1
        if len(self.fetched) >= (majority - 1 if self.is_voter else majority):
            self.fetched = frozenset()
            self.check_quorum_deadline_ms = now_ms + self.check_quorum_ms

    @property
    def is_alone(self) -> bool:
        """True if this node is the only voter: no other voter can be lost."""
        return self.is_voter and len(self.voters) == 1

    def silent_voters(self, interval_ms: int, now_ms: int) -> list[int]:
        """Return the other voters that have not fetched for `interval_ms`, which get BeginQuorumEpoch."""
        return [
            node_id
            for node_id, known in sorted(self.voters.items())
            if node_id != self.local.node_id and (known.last_fetch_ms < 0 or now_ms - known.last_fetch_ms >= interval_ms)
        ]


def _age(known: ReplicaProgress, now_ms: int) -> tuple[int, int]:
    fetch_ms = known.last_fetch_ms
    caught_up_ms = known.last_caught_up_ms
    return (NO_TIME_MS if fetch_ms < 0 else now_ms - fetch_ms, NO_TIME_MS if caught_up_ms < 0 else now_ms - caught_up_ms)
