"""The election state of this node: its role, the epoch, the leader and its vote; and the file that stores them.

    from          to            when
    ------------  ------------  --------------------------------------------------------------------------------------
    unattached    candidate     the election timeout expired, or this node is the only voter
    unattached    follower      the leader of the epoch became known
    candidate     leader        a majority of the voters granted their votes; if this is the only voter: at once
    candidate     follower      another voter won the epoch
    follower      candidate     the fetch timeout expired
    leader        resigned      it stops, or lost its majority
    resigned      candidate     the election timeout expired, or this node is the only voter
    any           unattached    a higher epoch became known

A node that was the leader when it stopped starts as resigned: it must neither vote for another voter in that epoch nor append
in it, because records that it wrote and did not flush may be lost. A node that is not a voter never becomes a candidate.

quorum-state is durable before the state is sent to another node: temporary file, flush, rename. If the last epoch in the log is
higher than the file's, the log's is used.
"""

from __future__ import annotations

from enum import StrEnum

from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import QuorumStateData, decode_quorum_state, encode_quorum_state
from kcli.format.primitives import FormatError
from kcli.log.disk.port import Disk
from kcli.server.raft.messages import NO_NODE
from kcli.server.raft.metadata_log import MetadataLogError


class Role(StrEnum):
    """The role of a node in the quorum."""

    UNATTACHED = "unattached"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


_TRANSITIONS = {
    Role.UNATTACHED: {Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER},
    Role.CANDIDATE: {Role.CANDIDATE, Role.LEADER, Role.FOLLOWER, Role.UNATTACHED},
    Role.FOLLOWER: {Role.FOLLOWER, Role.CANDIDATE, Role.UNATTACHED},
    Role.LEADER: {Role.RESIGNED, Role.UNATTACHED},
    Role.RESIGNED: {Role.CANDIDATE, Role.FOLLOWER, Role.UNATTACHED},
}


class QuorumStateError(Exception):
    """A transition that the table above does not allow; the message is one sentence."""


class QuorumState:
    """The state of one node. Only the `become_...` methods change it; each raises QuorumStateError for a wrong transition."""

    def __init__(self, node_id: int, directory_id: Uuid, *, is_voter: bool, is_only_voter: bool) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.is_voter = is_voter
        self.is_only_voter = is_only_voter
        self.role = Role.UNATTACHED
        self.epoch = 0
        self.leader_id = NO_NODE
        self.voted_id = NO_NODE
        self.voted_directory_id = ZERO_UUID

    def __repr__(self) -> str:
        return f"<{self.role} in epoch {self.epoch}, leader {self.leader_id}>"

    def restore(self, stored: QuorumStateData | None, last_log_epoch: int) -> None:
        """Restore the state from the file and the log."""
        if stored is None or stored.leader_epoch < last_log_epoch:
            self.epoch = last_log_epoch
            return
        self.epoch = stored.leader_epoch
        self.voted_id, self.voted_directory_id = stored.voted_id, stored.voted_directory_id
        if stored.leader_id == self.node_id:
            self.role = Role.RESIGNED
        elif stored.voted_id == self.node_id and stored.leader_id == NO_NODE and self.is_voter:
            self.role = Role.CANDIDATE
        elif stored.leader_id != NO_NODE:
            self.role, self.leader_id = Role.FOLLOWER, stored.leader_id

    def become_candidate(self) -> None:
        """Begin an election in the next epoch, with this node's own vote. Raises QuorumStateError."""
        if not self.is_voter:
            raise QuorumStateError(f"node {self.node_id} is not a voter and cannot be a candidate")
        self._move(Role.CANDIDATE, self.epoch + 1, NO_NODE)
        self.voted_id, self.voted_directory_id = self.node_id, self.directory_id

    def become_leader(self) -> None:
        """Become the leader of the epoch in which this node was a candidate. Raises QuorumStateError."""
        self._move(Role.LEADER, self.epoch, self.node_id)
        self.voted_id, self.voted_directory_id = NO_NODE, ZERO_UUID

    def become_follower(self, epoch: int, leader_id: int) -> None:
        """Follow the leader of an epoch. Raises QuorumStateError for an earlier epoch, and if the epoch has another leader."""
        if epoch < self.epoch or (epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id)):
            raise QuorumStateError(
                f"node {leader_id} cannot be the leader of epoch {epoch}: the epoch is {self.epoch}, led by {self.leader_id}"
            )
        if epoch > self.epoch:
            self.become_unattached(epoch)
        self._move(Role.FOLLOWER, epoch, leader_id)

    def become_unattached(self, epoch: int) -> None:
        """Enter an epoch whose leader is not known. Raises QuorumStateError for an earlier epoch."""
        if epoch < self.epoch:
            raise QuorumStateError(f"epoch {epoch} is over: the epoch is {self.epoch}")
        if epoch > self.epoch:
            self.voted_id, self.voted_directory_id = NO_NODE, ZERO_UUID
        self._move(Role.UNATTACHED, epoch, NO_NODE)

    def become_resigned(self) -> None:
        """Stop leading; the epoch stays. Raises QuorumStateError."""
        self._move(Role.RESIGNED, self.epoch, NO_NODE)

    def _move(self, role: Role, epoch: int, leader_id: int) -> None:
        if role not in _TRANSITIONS[self.role]:
            raise QuorumStateError(f"a node that is {self.role} cannot become {role}")
        self.role, self.epoch, self.leader_id = role, epoch, leader_id

    def stored(self, kraft_version: int, voter_ids: tuple[int, ...]) -> QuorumStateData:
        """Return the contents of quorum-state, in the version for the quorum's kraft.version."""
        # The file of a resigned node names it as the leader, so that it starts as resigned again.
        leader_id = self.node_id if self.role is Role.RESIGNED else self.leader_id
        if kraft_version == 0:
            return QuorumStateData(0, leader_id, self.epoch, self.voted_id, current_voters=voter_ids)
        return QuorumStateData(1, leader_id, self.epoch, self.voted_id, self.voted_directory_id)


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
