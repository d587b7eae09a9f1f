"""What must hold in a quorum after each event, whatever was lost, delayed or doubled; each violation is a QuorumFailure.

    check                    what must hold
    -----------------------  ------------------------------------------------------------------------------------------
    one leader an epoch      no two replicas lead one epoch, nor one replica twice
    one vote an epoch        a voter grants its vote of an epoch to one candidate; its own candidacy counts as a vote
    complete leaders         the log of a new leader has everything that was committed in earlier epochs (Raft, section 5.4.3).
                             Its votes may come late, when leaders of later epochs have committed more
    equal commits            what a replica takes for committed has the same records everywhere, for ever
    an epoch's own commit    a leader commits only with a record of its own epoch (Raft, section 5.4.2): the epoch begins
                             with LeaderChange, and the high watermark that the leader finds is above it
    a majority has it        what a leader commits is durable on a majority of the voters of its log
    no step back             the high watermark of a running replica does not fall, and no committed record is removed
    snapshots                a snapshot has what was committed below its end
    durable first            what a message says is durable when it leaves: the epoch, a vote (the candidate's own, too), the
                             end of the log for which votes are asked, the offset of a voter's Fetch, which acknowledges all
                             records below
    pre-votes                a voter grants a pre-vote in its own epoch only
    appends                  only the leader of an epoch appends in it
    no fault of a peer       no replica reports that another one broke the protocol

The checks know everything that happened; `digest` has what decides about the future, for the search of small worlds.
"""

from __future__ import annotations

from kcli.server.raft.messages import (
    AnyAnswer,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    Election,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    LeaderChangeEntry,
    ReplicaKey,
    Request,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    Vote,
    VoteAnswer,
)
from kcli.simulator.quorum.memory_log import LogState, MemoryLog, Snapshot

EPOCH_REQUESTS = (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, UpdateRaftVoter)
EPOCH_ANSWERS = (
    VoteAnswer,
    BeginQuorumEpochAnswer,
    EndQuorumEpochAnswer,
    FetchAnswer,
    FetchSnapshotAnswer,
    UpdateRaftVoterAnswer,
)


class QuorumFailure(Exception):
    """A guarantee that was violated; the message is one sentence."""


class QuorumChecks:
    """The votes, leaders and committed records of a run."""

    __slots__ = ("commit_ends", "committed", "committed_end", "leaders", "votes")

    def __init__(self) -> None:
        self.leaders: dict[int, ReplicaKey] = {}
        self.votes: dict[tuple[int, ReplicaKey], ReplicaKey] = {}
        self.committed: dict[int, int] = {0: 0}  # the digest of the log by the offset where a committed batch ends
        self.committed_end = 0
        self.commit_ends: dict[int, int] = {}  # by the epoch in which that was committed

    def copy(self) -> QuorumChecks:
        """Return a copy that changes on its own."""
        copied = QuorumChecks()
        copied.leaders, copied.votes = self.leaders.copy(), self.votes.copy()
        copied.committed, copied.committed_end = self.committed.copy(), self.committed_end
        copied.commit_ends = self.commit_ends.copy()
        return copied

    def digest(self) -> tuple[object, ...]:
        """Return what decides about later failures."""
        return (
            self.committed_end,
            self.committed[self.committed_end],
            *sorted(self.leaders.items()),
            *sorted(self.votes.items()),
            *self.commit_ends.items(),
        )

    def vote(self, epoch: int, voter: ReplicaKey, candidate: ReplicaKey) -> None:
        """Check a vote that leaves. Raises QuorumFailure."""
        earlier = self.votes.setdefault((epoch, voter), candidate)
        if earlier != candidate:
            raise QuorumFailure(
                f"one vote an epoch: {name_of(voter)} votes for {name_of(candidate)} in epoch {epoch}, after {name_of(earlier)}"
            )

    def leads(self, epoch: int, leader: ReplicaKey, log: LogState) -> None:
        """Check a new leader. Raises QuorumFailure."""
        earlier = self.leaders.setdefault(epoch, leader)
        if earlier != leader:
            raise QuorumFailure(f"one leader an epoch: {name_of(earlier)} and {name_of(leader)} lead epoch {epoch}")
        end_offset = max((end for earlier, end in self.commit_ends.items() if earlier < epoch), default=0)
        if not self._has_committed(log, end_offset):
            raise QuorumFailure(
                f"complete leaders: {name_of(leader)} leads epoch {epoch}, its log ends at {log.end_offset}, without the "
                f"records below {end_offset}, which earlier leaders have committed"
            )

    def _has_committed(self, log: LogState, end_offset: int) -> bool:
        return log.start_offset > end_offset or log.chain_at(end_offset) == self.committed[end_offset]

    def commits(self, replica: ReplicaKey, epoch: int, offset: int, log: LogState) -> None:
        """Check what a replica takes for committed in an epoch. Raises QuorumFailure."""
        name = name_of(replica)
        chain = log.chain_at(offset)
        if chain is None:
            raise QuorumFailure(f"equal commits: {name} commits up to {offset}, which is not the end of a batch of its log")
        if offset <= self.committed_end:
            if self.committed.get(offset) != chain:
                raise QuorumFailure(f"equal commits: {name} commits other records below {offset} than were committed")
            return
        if not self._has_committed(log, self.committed_end):
            raise QuorumFailure(
                f"equal commits: {name} commits up to {offset}, but its log differs from what was committed below "
                f"{self.committed_end}"
            )
        for batch in log.batches:
            if self.committed_end < batch.last_offset + 1 <= offset:
                self.committed[batch.last_offset + 1] = batch.chain
        self.committed_end = self.commit_ends[epoch] = offset
        self.committed.setdefault(offset, chain)

    def leader_commits(self, leader: ReplicaKey, epoch: int, offset: int, log: LogState) -> None:
        """Check that a leader commits with its LeaderChange, not by a count of replicas alone. Raises QuorumFailure."""
        if log.start_epoch == epoch:
            return  # a snapshot of this epoch replaces the record
        first = next((batch for batch in log.batches if batch.epoch == epoch), None)
        entry = None if first is None else first.records[0]
        if first is None or not isinstance(entry, LeaderChangeEntry) or offset <= first.base_offset:
            raise QuorumFailure(
                f"an epoch's own commit: {name_of(leader)} commits up to {offset} without a LeaderChange of epoch {epoch} below"
            )

    def keeps(self, replica: ReplicaKey, before: LogState, now: LogState) -> None:
        """Check that a step removed nothing that is committed, except what a snapshot replaces. Raises QuorumFailure."""
        if before is now or now.batches[: len(before.batches)][-1:] == before.batches[-1:]:
            return
        for batch in before.batches:
            end_offset = batch.last_offset + 1
            is_committed = end_offset <= self.committed_end and self.committed.get(end_offset) == batch.chain
            if is_committed and end_offset > now.start_offset and now.chain_at(end_offset) != batch.chain:
                raise QuorumFailure(
                    f"no step back: the log of {name_of(replica)} loses the committed records from {batch.base_offset} on"
                )

    def snapshot(self, replica: ReplicaKey, snapshot: Snapshot) -> None:
        """Check a snapshot that was made or received. Raises QuorumFailure."""
        if self.committed.get(snapshot.id.end_offset) != snapshot.chain:
            raise QuorumFailure(
                f"snapshots: {snapshot.id.end_offset}-{snapshot.id.epoch} of {name_of(replica)} is not what was committed"
            )

    def high_watermark(self, replica: ReplicaKey, earlier_offset: int, offset: int) -> None:
        """Check a step of a high watermark. Raises QuorumFailure."""
        if offset < earlier_offset:
            raise QuorumFailure(
                f"no step back: the high watermark of {name_of(replica)} falls from {earlier_offset} to {offset}"
            )

    def leaves(self, replica: ReplicaKey, election: Election | None, log: MemoryLog, request: Request) -> None:
        """Check what must be durable before a request leaves. Raises QuorumFailure."""
        if isinstance(request, EPOCH_REQUESTS):
            self._epoch_is_durable(replica, request.epoch, election, log)
        if isinstance(request, Vote) and not request.is_pre_vote:
            self._vote_is_durable(replica, request.epoch, request.candidate, election)
            if log.durable_end_offset < request.end_offset:
                raise QuorumFailure(
                    f"durable first: {name_of(replica)} asks for votes with a log up to {request.end_offset}, but its log is "
                    f"durable up to {log.durable_end_offset}"
                )
        if isinstance(request, Fetch) and log.durable_end_offset < request.fetch_offset:
            raise QuorumFailure(
                f"durable first: {name_of(replica)} fetches from {request.fetch_offset}, but its log is durable up to "
                f"{log.durable_end_offset}"
            )

    def answer_leaves(
        self, replica: ReplicaKey, election: Election | None, log: MemoryLog, request: Request, answer: AnyAnswer
    ) -> None:
        """Check what must be durable before an answer leaves. Raises QuorumFailure."""
        if isinstance(answer, EPOCH_ANSWERS):
            self._epoch_is_durable(replica, answer.epoch, election, log)
        if not isinstance(request, Vote) or not isinstance(answer, VoteAnswer) or not answer.is_granted:
            return
        if not request.is_pre_vote:
            self._vote_is_durable(replica, request.epoch, request.candidate, election)
        elif request.epoch != answer.epoch:
            raise QuorumFailure(
                f"pre-votes: {name_of(replica)}, in epoch {answer.epoch}, grants {name_of(request.candidate)} a pre-vote of "
                f"epoch {request.epoch}"
            )

    def _epoch_is_durable(self, replica: ReplicaKey, epoch: int, election: Election | None, log: MemoryLog) -> None:
        durable_epoch = max(0 if election is None else election.epoch, log.durable.last_epoch)
        if epoch > durable_epoch:
            raise QuorumFailure(
                f"durable first: {name_of(replica)} speaks of epoch {epoch}, but its quorum-state has epoch {durable_epoch}"
            )

    def _vote_is_durable(self, replica: ReplicaKey, epoch: int, candidate: ReplicaKey, election: Election | None) -> None:
        self.vote(epoch, replica, candidate)
        stored = Election() if election is None else election
        # A later epoch covers the vote: a voter that starts with it votes in no earlier one.
        if stored.epoch < epoch or (stored.epoch == epoch and stored.voted != candidate):
            raise QuorumFailure(
                f"durable first: the vote of {name_of(replica)} for {name_of(candidate)} in epoch {epoch} leaves before it is "
                "stored"
            )


def name_of(replica: ReplicaKey) -> str:
    """Return how a replica is called in a trace: its node, with a letter for each later disk."""
    disk = replica.directory_id[-1]
    return f"n{replica.node_id}" + ("abcdefghijklmnopqrstuvwxyz"[disk % 26] if disk > 1 else "")
