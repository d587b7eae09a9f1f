"""Who leads the metadata quorum, as this node knows it: its role, the epoch, its vote; and the file that remembers them.

    from          to            when
    ------------  ------------  --------------------------------------------------------------------------------------
    unattached    candidate     the election timeout ran out, or this node is the only voter
    unattached    follower      a leader of the epoch made itself known
    candidate     leader        a majority of the voters granted its vote; of one voter: at once
    candidate     follower      another won the epoch
    follower      candidate     the leader was silent for the fetch timeout
    leader        resigned      it was told to stop, or lost its majority
    resigned      candidate     the election timeout ran out, or this node is the only voter
    any           unattached    a higher epoch was seen

A node that led when it stopped begins as resigned: it must not vote for another in that epoch, nor write in it again, for
records that it wrote and did not flush may be gone. A node that is no voter goes the same ways but never to candidate.

quorum-state is written before what it promises is said to anyone: a temporary file, a flush, a rename. A log whose last
epoch is higher than the file's overrides it.
"""

from __future__ import annotations

from enum import StrEnum

from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import QuorumState as QuorumStateFile
from kcli.format.metadata_files import decode_quorum_state, encode_quorum_state
from kcli.format.primitives import FormatError
from kcli.log.disk import Disk
from kcli.server.raft.metadata_log import MetadataLogError

NO_NODE = -1


class Role(StrEnum):
    """What a node is in the quorum."""

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
    """A step that the election does not allow; the message is a sentence."""


class QuorumState:
    """A node's part in the election. Only the `become_...` methods change it; each raises QuorumStateError for a wrong step."""

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

    def restore(self, stored: QuorumStateFile | None, last_log_epoch: int) -> None:
        """Begin where the file and the log say that this node stopped."""
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
        """Stand for election in the next epoch, with this node's own vote. Raises QuorumStateError."""
        if not self.is_voter:
            raise QuorumStateError(f"node {self.node_id} is no voter and cannot be a candidate")
        self._move(Role.CANDIDATE, self.epoch + 1, NO_NODE)
        self.voted_id, self.voted_directory_id = self.node_id, self.directory_id

    def become_leader(self) -> None:
        """Lead the epoch in which this node was a candidate. Raises QuorumStateError."""
        self._move(Role.LEADER, self.epoch, self.node_id)
        self.voted_id, self.voted_directory_id = NO_NODE, ZERO_UUID

    def become_follower(self, epoch: int, leader_id: int) -> None:
        """Follow the leader of an epoch. Raises QuorumStateError for an epoch that is over or has another leader."""
        if epoch < self.epoch or (epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id)):
            raise QuorumStateError(
                f"node {leader_id} cannot lead epoch {epoch}: this is epoch {self.epoch} of {self.leader_id}"
            )
        if epoch > self.epoch:
            self.become_unattached(epoch)
        self._move(Role.FOLLOWER, epoch, leader_id)

    def become_unattached(self, epoch: int) -> None:
        """Know of a later epoch and not of its leader. Raises QuorumStateError for an epoch that is over."""
        if epoch < self.epoch:
            raise QuorumStateError(f"epoch {epoch} is over: this is epoch {self.epoch}")
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

    def stored(self, kraft_version: int, voter_ids: tuple[int, ...]) -> QuorumStateFile:
        """What quorum-state has to hold now, in the form of the quorum's kraft.version."""
        # Who resigned is still the epoch's leader to the file: so it begins as resigned again.
        leader_id = self.node_id if self.role is Role.RESIGNED else self.leader_id
        if kraft_version == 0:
            return QuorumStateFile(0, leader_id, self.epoch, self.voted_id, current_voters=voter_ids)
        return QuorumStateFile(1, leader_id, self.epoch, self.voted_id, self.voted_directory_id)


class QuorumStateStore:
    """The file quorum-state in the metadata log's directory; methods raise OSError as the disk does."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.path = f"{directory}/{FileKind.QUORUM_STATE}"
        self._temporary = f"{self.path}.tmp"

    def read(self) -> QuorumStateFile | None:
        """What the file holds, None where it is missing. Raises MetadataLogError where it cannot be read."""
        try:
            return decode_quorum_state(self._disk.read_file(self.path, MAX_TEXT_FILE_BYTES))
        except FileNotFoundError:
            return None
        except FormatError as error:
            raise MetadataLogError(
                f"{self.path} cannot be read: {error.message}; without it this node may vote twice in an epoch. Restore it "
                "from a copy, or remove it where this node is the only voter"
            ) from error

    def write(self, state: QuorumStateFile) -> tuple[str, ...]:
        """Write a state beside the file -> the paths to flush before `publish`."""
        if self._disk.exists(self._temporary):
            self._disk.remove(self._temporary)
        self._disk.append(self._temporary, encode_quorum_state(state))
        return (self._temporary,)

    def publish(self) -> tuple[str, ...]:
        """Give what was written and flushed its name -> the paths to flush for that to last."""
        if self._disk.exists(self._temporary):
            self._disk.rename(self._temporary, self.path)
        return (self._directory,)
