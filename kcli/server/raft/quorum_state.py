"""The election state of a node: its role, the epoch, the leader and its vote; and the file that stores them (KIP-595, 996).

    from                     to           when
    -----------------------  -----------  ---------------------------------------------------------------------------------
    any                      Unattached   a message with a higher epoch that names no leader
    any                      Follower     a message with a higher epoch that names the leader, or with the same epoch when the
                                          leader becomes known
    Unattached               Unattached   it votes for a candidate of the epoch: the election timer starts again
    Unattached               Prospective  the election timeout has passed (voters only)
    Follower                 Prospective  the fetch timeout has passed (voters only)
    Candidate                Prospective  the election timeout has passed
    Prospective              Candidate    a majority would vote for it, or a voter does not know PreVote: epoch + 1
    Prospective              Follower     a majority would not, or the election timeout has passed, and the leader is known
    Prospective              Unattached   the same, and the leader is not known
    Candidate                Leader       a majority of votes
    Leader                   Resigned     shutdown, resign(), or too few voters fetch
    Resigned                 Unattached   the election timeout has passed: epoch + 1

Only a prospective node becomes a candidate, and only this step and the end of Resigned raise the epoch without a message. In
one epoch the vote survives all changes between Unattached, Prospective and Follower. An observer is Unattached or Follower and
has no timeout. There is no role Voted any more, and neither Prospective nor Resigned is stored: the file of a prospective node
is that of its state before, the file of a resigned one names it as the leader, so that it starts as resigned: it must neither
vote for another in that epoch nor append in it, because records that it wrote and did not flush may be lost.

quorum-state is durable before anything leaves that depends on it (see consensus.py): temporary file, flush, rename. If the last
epoch in the log is higher than the file's, the log's is used.
"""

from __future__ import annotations

from enum import StrEnum

from kcli.format.file_names import FileKind
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import QuorumStateData, decode_quorum_state, encode_quorum_state
from kcli.format.primitives import FormatError
from kcli.log.disk.port import Disk
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import NO_NODE, Election, Endpoints, ReplicaKey
from kcli.server.raft.metadata_log import MetadataLogError

# A timer that does not run.
NEVER_MS = 2**63 - 1


class Role(StrEnum):
    """The role of a node in the quorum."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


_TRANSITIONS = {
    Role.UNATTACHED: {Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER},
    Role.PROSPECTIVE: {Role.PROSPECTIVE, Role.CANDIDATE, Role.FOLLOWER, Role.UNATTACHED},
    Role.CANDIDATE: {Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER, Role.UNATTACHED},
    Role.FOLLOWER: {Role.FOLLOWER, Role.PROSPECTIVE, Role.UNATTACHED},
    Role.LEADER: {Role.RESIGNED, Role.FOLLOWER, Role.UNATTACHED},
    Role.RESIGNED: {Role.FOLLOWER, Role.UNATTACHED},
}


class QuorumStateError(Exception):
    """A transition that the table above does not allow; the message is one sentence."""


class Ballot:
    """The votes that a prospective node or a candidate got: its own, and the answers of the voters of that time."""

    __slots__ = ("answers", "voter_ids")

    def __init__(self, voter_ids: tuple[int, ...], answers: dict[int, bool]) -> None:
        self.voter_ids = voter_ids
        self.answers = answers

    @property
    def majority(self) -> int:
        """How many voters elect a leader."""
        return len(self.voter_ids) // 2 + 1

    @property
    def is_granted(self) -> bool:
        """True if a majority granted its vote."""
        return sum(self.answers.values()) >= self.majority

    @property
    def is_rejected(self) -> bool:
        """True if a majority cannot be reached any more."""
        rejected = len(self.answers) - sum(self.answers.values())
        return len(self.voter_ids) - rejected < self.majority

    def unanswered(self) -> tuple[int, ...]:
        """Return the voters that have not answered."""
        return tuple(voter_id for voter_id in self.voter_ids if voter_id not in self.answers)

    def granting(self) -> tuple[int, ...]:
        """Return the voters that granted their vote."""
        return tuple(sorted(voter_id for voter_id, is_granted in self.answers.items() if is_granted))

    def add(self, voter_id: int, *, is_granted: bool) -> None:
        """Add the answer of a voter."""
        if voter_id in self.voter_ids:
            self.answers[voter_id] = is_granted


class QuorumState:
    """The state of one node. Only the `become_...` methods change it; each raises QuorumStateError for a wrong transition.

    `deadline_ms` is the end of the election timeout or, of a follower, of the fetch timeout.
    """

    __slots__ = (
        *("ballot", "deadline_ms", "epoch", "has_fetched", "leader", "leader_endpoints", "leader_id", "local", "role"),
        *("successors", "unacknowledged", "voted"),
    )

    def __init__(self, local: ReplicaKey) -> None:
        self.local = local
        self.role = Role.UNATTACHED
        self.epoch = 0
        self.leader_id = NO_NODE
        self.leader_endpoints: Endpoints = ()
        self.voted: ReplicaKey | None = None
        self.deadline_ms = NEVER_MS
        self.has_fetched = False  # follower: from this leader, without an error
        self.ballot: Ballot | None = None  # prospective, candidate
        self.leader: LeaderState | None = None  # leader
        self.successors: tuple[ReplicaKey, ...] = ()  # resigned: the best first
        self.unacknowledged: frozenset[int] = frozenset()  # resigned: voters that have not acknowledged EndQuorumEpoch

    def __repr__(self) -> str:
        return f"<{self.role} in epoch {self.epoch}, leader {self.leader_id}, voted {self.voted}>"

    def copy(self) -> QuorumState:
        """Return a copy that shares nothing that changes."""
        twin = QuorumState(self.local)
        for name in QuorumState.__slots__:
            setattr(twin, name, getattr(self, name))
        if self.ballot is not None:
            twin.ballot = Ballot(self.ballot.voter_ids, dict(self.ballot.answers))
        if self.leader is not None:
            twin.leader = self.leader.copy()
        return twin

    def digest(self, now_ms: int) -> tuple[object, ...]:
        """Return the state as a value that can be hashed; times are relative to `now_ms`."""
        ballot, leader = self.ballot, self.leader
        return (
            *(self.role, self.epoch, self.leader_id, self.leader_endpoints, self.voted, self.has_fetched, self.successors),
            self.deadline_ms if self.deadline_ms == NEVER_MS else max(0, self.deadline_ms - now_ms),
            self.unacknowledged,
            None if ballot is None else (ballot.voter_ids, tuple(sorted(ballot.answers.items()))),
            None if leader is None else leader.digest(now_ms),
        )

    @property
    def election(self) -> Election:
        """What quorum-state contains."""
        return Election(self.epoch, self.leader_id, self.voted)

    @property
    def is_leader(self) -> bool:
        """True for the leader."""
        return self.role is Role.LEADER

    def restore(self, stored: Election | None, last_log_epoch: int, *, is_voter: bool) -> None:
        """Restore the state from the file and the log; the caller sets the endpoints of a leader, and the timer."""
        if stored is None or stored.epoch < last_log_epoch:
            self.epoch = last_log_epoch
            return
        self.epoch, self.voted = stored.epoch, stored.voted
        if stored.leader_id == self.local.node_id:
            self.role, self.leader_id = Role.RESIGNED, stored.leader_id
        elif stored.leader_id != NO_NODE:
            self.leader_id = stored.leader_id
        elif is_voter and self.voted in (self.local, ReplicaKey(self.local.node_id)):
            # A vote for another directory of this node was given before its disk was exchanged.
            self.role = Role.CANDIDATE

    def become_unattached(
        self, epoch: int, deadline_ms: int, leader_id: int = NO_NODE, voted: ReplicaKey | None = None
    ) -> None:
        """Enter an epoch, or stay in it and vote. Raises QuorumStateError for an earlier epoch."""
        if epoch < self.epoch:
            raise QuorumStateError(f"epoch {epoch} is over: the epoch is {self.epoch}")
        is_vote = self.role is Role.UNATTACHED and voted is not None
        if epoch == self.epoch and self.role is not Role.PROSPECTIVE and not is_vote:
            raise QuorumStateError(f"a node that is {self.role} in epoch {epoch} cannot become unattached in it")
        kept = self.voted if epoch == self.epoch else None
        if kept is not None and voted is not None and kept != voted:
            raise QuorumStateError(f"node {self.local.node_id} has voted for node {kept.node_id} in epoch {epoch}")
        self._move(Role.UNATTACHED, epoch, deadline_ms)
        self.leader_id, self.leader_endpoints, self.voted = leader_id, (), voted or kept

    def become_follower(self, epoch: int, leader_id: int, endpoints: Endpoints, deadline_ms: int) -> None:
        """Follow the leader of an epoch. Raises QuorumStateError for an earlier epoch, and if the epoch has another leader."""
        if leader_id == self.local.node_id:
            raise QuorumStateError(f"node {leader_id} cannot follow itself")
        if epoch < self.epoch or (epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id)):
            raise QuorumStateError(
                f"node {leader_id} cannot be the leader of epoch {epoch}: the epoch is {self.epoch}, led by {self.leader_id}"
            )
        kept = self.voted if epoch == self.epoch else None
        self._move(Role.FOLLOWER, epoch, deadline_ms)
        self.leader_id, self.leader_endpoints, self.voted = leader_id, endpoints, kept
        self.has_fetched = False

    def become_prospective(self, voter_ids: tuple[int, ...], deadline_ms: int) -> None:
        """Ask the voters whether they would vote for this node; epoch, leader and vote stay. Raises QuorumStateError."""
        if self.role is Role.CANDIDATE:
            self.leader_id = NO_NODE
        self._move(Role.PROSPECTIVE, self.epoch, deadline_ms)
        self.ballot = Ballot(voter_ids, {self.local.node_id: True})

    def vote_as_prospective(self, voted: ReplicaKey, deadline_ms: int) -> None:
        """Vote for a candidate of the epoch; the own election starts again."""
        self.voted = voted
        if self.ballot is not None:
            self.become_prospective(self.ballot.voter_ids, deadline_ms)

    def become_candidate(self, voter_ids: tuple[int, ...], deadline_ms: int) -> None:
        """Begin an election in the next epoch, with this node's own vote. Raises QuorumStateError."""
        self._move(Role.CANDIDATE, self.epoch + 1, deadline_ms)
        self.leader_id, self.leader_endpoints, self.voted = NO_NODE, (), self.local
        self.ballot = Ballot(voter_ids, {self.local.node_id: True})

    def restart_candidacy(self, voter_ids: tuple[int, ...], deadline_ms: int) -> None:
        """Continue, after a restart, the election of the epoch in which this node has voted for itself."""
        self.ballot, self.deadline_ms = Ballot(voter_ids, {self.local.node_id: True}), deadline_ms

    def become_leader(self, leader: LeaderState, endpoints: Endpoints) -> None:
        """Become the leader of the epoch in which this node was a candidate. Raises QuorumStateError."""
        if self.role is Role.CANDIDATE and self.ballot is not None and not self.ballot.is_granted:
            raise QuorumStateError(f"node {self.local.node_id} does not have a majority of the votes in epoch {self.epoch}")
        self._move(Role.LEADER, self.epoch, NEVER_MS)
        self.leader_id, self.leader_endpoints, self.voted = self.local.node_id, endpoints, None
        self.leader = leader

    def become_resigned(self, successors: tuple[ReplicaKey, ...], unacknowledged: frozenset[int], deadline_ms: int) -> None:
        """Stop leading; the epoch stays. Raises QuorumStateError."""
        self._move(Role.RESIGNED, self.epoch, deadline_ms)
        self.successors, self.unacknowledged = successors, unacknowledged

    def _move(self, role: Role, epoch: int, deadline_ms: int) -> None:
        if role not in _TRANSITIONS[self.role]:
            raise QuorumStateError(f"a node that is {self.role} cannot become {role}")
        self.role, self.epoch, self.deadline_ms = role, epoch, deadline_ms
        self.ballot, self.leader, self.has_fetched = None, None, False
        self.successors, self.unacknowledged = (), frozenset()


def stored_election(data: QuorumStateData) -> Election:
    """Return the election in a quorum-state file."""
    voted = None if data.voted_id == NO_NODE else ReplicaKey(data.voted_id, data.voted_directory_id)
    return Election(data.leader_epoch, data.leader_id, voted)


def quorum_state_data(election: Election, kraft_version: int, voter_ids: tuple[int, ...]) -> QuorumStateData:
    """Return the contents of quorum-state, in the version for the quorum's kraft.version."""
    voted = election.voted or ReplicaKey(NO_NODE)
    if kraft_version == 0:
        return QuorumStateData(0, election.leader_id, election.epoch, voted.node_id, current_voters=voter_ids)
    return QuorumStateData(1, election.leader_id, election.epoch, voted.node_id, voted.directory_id)


class QuorumStateStore:
    """The file quorum-state in the metadata log's directory; methods raise OSError as the disk does."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.path = f"{directory}/{FileKind.QUORUM_STATE}"
        self._temporary = f"{self.path}.tmp"

    def read(self) -> QuorumStateData | None:
        """Return the contents of the file, None if it is missing. Raises MetadataLogError if it cannot be read."""
        try:
            return decode_quorum_state(self._disk.read_file(self.path, MAX_TEXT_FILE_BYTES))
        except FileNotFoundError:
            return None
        except FormatError as error:
            raise MetadataLogError(
                f"{self.path} cannot be read: {error.message}; without it this node may vote twice in an epoch. Restore it "
                "from a copy, or remove it if this node is the only voter"
            ) from error

    def write(self, state: QuorumStateData) -> tuple[str, ...]:
        """Write a state into a temporary file and return the paths to flush before `publish`."""
        if self._disk.exists(self._temporary):
            self._disk.remove(self._temporary)
        self._disk.append(self._temporary, encode_quorum_state(state))
        return (self._temporary,)

    def publish(self) -> tuple[str, ...]:
        """Rename the temporary file, which is flushed, and return the paths to flush to make this durable."""
        if self._disk.exists(self._temporary):
            self._disk.rename(self._temporary, self.path)
        return (self._directory,)
