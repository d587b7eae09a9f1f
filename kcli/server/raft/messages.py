"""The values that go into and out of the raft core (RaftCore in consensus.py), and the log that it uses.

Requests and answers are in the terms of KIP-595, 630, 853 and 996, without the versions of the wire: the wire translation
leaves out what a version does not have, and fills in what a peer did not send. It also answers what is not addressed to the
metadata partition (several partitions, another topic: INVALID_REQUEST or UNKNOWN_TOPIC_OR_PARTITION) without the core.

    error                                         place in an answer
    --------------------------------------------  ---------------------------------------------------------------------
    INCONSISTENT_CLUSTER_ID, UNSUPPORTED_VERSION  top level; the wire translation brings top-level errors of a peer here, too
    CLUSTER_AUTHORIZATION_FAILED                  top level
    any other                                     the partition; of AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter: top level

All values are immutable and can be hashed, so that a state of the core can be copied and digested: endpoints are tuples, not
mappings. `endpoints` in an answer are those of the leader that it names, for each listener; the wire translation sends the
one of the listener on which the request came. Offsets, epochs and ids that are not known are -1, as in the protocol.

    event             comes                                         effect               asks the shell to
    ----------------  --------------------------------------------  -------------------  --------------------------------------
    RequestArrived    a peer or a tool sent a request               StoreElection        make quorum-state durable
    AnswerArrived     the answer to a Send                          FlushLog             make the log durable up to its end
    RequestFailed     no answer to a Send: not connected, closed    FlushSnapshot        make a received snapshot durable
    ElectionStored    a StoreElection is done                       Send, Answer         send a request, answer one
    LogFlushed        a FlushLog is done                            HighWatermarkMoved   deliver what is committed
    SnapshotFlushed   a FlushSnapshot is done                       LeaderChanged        inform the listeners
    TimeReached       `deadline_ms` has passed                      LogTruncated         forget what was read above an offset
                                                                    SnapshotLoaded       load a snapshot instead of the log
                                                                    Report               log a line

At most one StoreElection, one FlushLog and one FlushSnapshot are outstanding. A Send that gets no answer needs no
RequestFailed: the core has its own request timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes

NO_NODE = -1
NO_OFFSET = -1
LAST_EPOCH = (1 << 31) - 1
MOST_EPOCHS_AHEAD = 1 << 30  # of a peer: 34 years with an election each second
# The errors of a whole answer; any other is that of the partition.
TOP_LEVEL_ERRORS = frozenset(
    (error_codes.INCONSISTENT_CLUSTER_ID, error_codes.UNSUPPORTED_VERSION, error_codes.CLUSTER_AUTHORIZATION_FAILED)
)
# The high watermark in a Fetch whose version does not have the field: it is never behind the leader's (KIP-1166).
HIGH_WATERMARK_NOT_SENT = 2**63 - 1


class ReplicaKey(NamedTuple):
    """A replica of the metadata log: its node, and the directory of its disk, ZERO_UUID if it is not known."""

    node_id: int
    directory_id: Uuid = ZERO_UUID


class EpochEnd(NamedTuple):
    """An epoch and the offset behind its last record."""

    epoch: int
    offset: int


class SnapshotId(NamedTuple):
    """The name of a snapshot: it replaces all records below `end_offset`, the last of which is of `epoch`."""

    end_offset: int
    epoch: int


# 0-0.checkpoint, which formatting writes: it has the first voters, and no peer gets it.
BOOTSTRAP_SNAPSHOT_ID = SnapshotId(0, 0)


class ListenerEndpoint(NamedTuple):
    """The address of a node on one of its listeners; names of listeners are in upper case."""

    listener: str
    host: str
    port: int


Endpoints = tuple[ListenerEndpoint, ...]


class VoterNode(NamedTuple):
    """A voter of the quorum, with its endpoints and the levels of kraft.version that it supports."""

    key: ReplicaKey
    endpoints: Endpoints = ()
    lowest_kraft_version: int = 0
    highest_kraft_version: int = 0


Voters = tuple[VoterNode, ...]  # by ascending node id


# ------------------------------------------------------------------------------------------------------ control records


class LeaderChangeEntry(NamedTuple):
    """The control record that begins an epoch; only ids are in it."""

    leader_id: int
    voter_ids: tuple[int, ...]
    granting_voter_ids: tuple[int, ...]


class KRaftVersionEntry(NamedTuple):
    """The control record with the level of kraft.version."""

    level: int


class VotersEntry(NamedTuple):
    """The control record with the voters."""

    voters: Voters


ControlEntry = LeaderChangeEntry | KRaftVersionEntry | VotersEntry


class AppendedControl(NamedTuple):
    """A control record of the log with its offset; those of a snapshot have the offset before its end (0-0: -1)."""

    offset: int
    entry: ControlEntry


# ------------------------------------------------------------------------------------------------------------- requests


class Vote(NamedTuple):
    """A candidate, or with `is_pre_vote` a prospective candidate, asks a voter for its vote (KIP-595, 996)."""

    cluster_id: str | None
    candidate: ReplicaKey
    epoch: int
    voter: ReplicaKey | None  # the receiver; None if the version does not have it
    last_epoch: int
    end_offset: int
    is_pre_vote: bool = False


class VoteAnswer(NamedTuple):
    """The answer to Vote."""

    error: int
    epoch: int
    leader_id: int
    is_granted: bool
    endpoints: Endpoints = ()


class BeginQuorumEpoch(NamedTuple):
    """A new leader announces itself to a voter; `endpoints` is empty in version 0."""

    cluster_id: str | None
    leader_id: int
    epoch: int
    voter: ReplicaKey | None
    endpoints: Endpoints = ()


class BeginQuorumEpochAnswer(NamedTuple):
    """The answer to BeginQuorumEpoch."""

    error: int
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()


class EndQuorumEpoch(NamedTuple):
    """A leader that resigned asks the voters to elect a successor; the best successor is first.

    `preferred_successors` has the directory ids in version 1 only.
    """

    cluster_id: str | None
    leader_id: int
    epoch: int
    preferred_successors: tuple[ReplicaKey, ...]
    endpoints: Endpoints = ()


class EndQuorumEpochAnswer(NamedTuple):
    """The answer to EndQuorumEpoch."""

    error: int
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()


class Fetch(NamedTuple):
    """A follower or an observer fetches from the leader; its offset acknowledges everything below.

    `last_fetched_epoch` is the epoch of the record before `fetch_offset`. A replica with a negative id is not tracked.
    """

    cluster_id: str | None
    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = HIGH_WATERMARK_NOT_SENT
    max_wait_ms: int = 0
    max_bytes: int = 1024 * 1024


class FetchAnswer(NamedTuple):
    """The answer to Fetch: records, or the end of an epoch to truncate to, or a snapshot to fetch."""

    error: int
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    records: Records | None = None  # None: there are none


class FetchSnapshot(NamedTuple):
    """A follower or an observer fetches a part of a snapshot."""

    cluster_id: str | None
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    max_bytes: int = 1024 * 1024


class FetchSnapshotAnswer(NamedTuple):
    """The answer to FetchSnapshot; `size` is that of the whole snapshot."""

    error: int
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()
    snapshot: SnapshotId = SnapshotId(-1, -1)
    size: int = 0
    position: int = 0
    data: Records | None = None


class AddRaftVoter(NamedTuple):
    """A tool, or an observer that joins by itself, adds a voter (KIP-853, 1186)."""

    cluster_id: str | None
    voter: ReplicaKey
    endpoints: Endpoints
    timeout_ms: int = 30_000
    is_acknowledged_when_committed: bool = True


class RemoveRaftVoter(NamedTuple):
    """A tool, or an observer that joins with a new directory, removes a voter."""

    cluster_id: str | None
    voter: ReplicaKey


class ChangeVotersAnswer(NamedTuple):
    """The answer to AddRaftVoter and RemoveRaftVoter; `message` is empty without an error."""

    error: int
    message: str = ""


class UpdateRaftVoter(NamedTuple):
    """A voter sends the leader its endpoints and the levels of kraft.version that it supports."""

    cluster_id: str | None
    epoch: int
    voter: ReplicaKey
    endpoints: Endpoints
    lowest_kraft_version: int
    highest_kraft_version: int


class UpdateRaftVoterAnswer(NamedTuple):
    """The answer to UpdateRaftVoter."""

    error: int
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()


class ApiVersionsProbe(NamedTuple):
    """ApiVersions (version 4 or later: earlier ones hide kraft.version), which a leader sends to a voter that is added."""


class ApiVersionsProbeAnswer(NamedTuple):
    """The kraft.version levels that a node supports; (0, 0) if it does not list the feature."""

    error: int
    lowest_kraft_version: int
    highest_kraft_version: int


Request = (
    Vote
    | BeginQuorumEpoch
    | EndQuorumEpoch
    | Fetch
    | FetchSnapshot
    | AddRaftVoter
    | RemoveRaftVoter
    | UpdateRaftVoter
    | ApiVersionsProbe
)
# The answers that have the epoch and the leader of the peer.
EpochAnswer = (
    VoteAnswer | BeginQuorumEpochAnswer | EndQuorumEpochAnswer | FetchAnswer | FetchSnapshotAnswer | UpdateRaftVoterAnswer
)
AnyAnswer = EpochAnswer | ChangeVotersAnswer | ApiVersionsProbeAnswer


# --------------------------------------------------------------------------------------------------------------- events


class RequestArrived(NamedTuple):
    """A request; the core answers it once with Answer(request_id), perhaps later."""

    request_id: int
    request: Request


class AnswerArrived(NamedTuple):
    """The answer to the request that was sent with this correlation id."""

    correlation_id: int
    answer: AnyAnswer


class RequestFailed(NamedTuple):
    """A request that gets no answer. `error` is UNSUPPORTED_VERSION if the peer does not have the version that it needs."""

    correlation_id: int
    error: int = error_codes.NETWORK_EXCEPTION


class ElectionStored(NamedTuple):
    """The contents of this version are durable in quorum-state."""

    version: int


class LogFlushed(NamedTuple):
    """The log is durable as it was when FlushLog was returned."""

    end_offset: int


class SnapshotFlushed(NamedTuple):
    """A snapshot that was received is durable under its name; or `damage` says, with its file, why it cannot be used."""

    snapshot: SnapshotId
    damage: str = ""


class TimeReached(NamedTuple):
    """The time is `deadline_ms` or later."""


Event = RequestArrived | AnswerArrived | RequestFailed | ElectionStored | LogFlushed | SnapshotFlushed | TimeReached


# -------------------------------------------------------------------------------------------------------------- effects


class Election(NamedTuple):
    """What quorum-state contains. With kraft.version 0 the file has the ids of the voters and no directory id."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted: ReplicaKey | None = None


class StoreElection(NamedTuple):
    """Write quorum-state, flush and rename it, then return ElectionStored(version)."""

    version: int
    election: Election
    kraft_version: int
    voter_ids: tuple[int, ...]


class FlushLog(NamedTuple):
    """Flush the log, whose end is `end_offset` now, then return LogFlushed."""

    end_offset: int


class FlushSnapshot(NamedTuple):
    """Make the part file of a snapshot durable and, if it is undamaged, its name, then return SnapshotFlushed."""

    snapshot: SnapshotId


class Destination(NamedTuple):
    """Where a request goes; bootstrap servers have the ids -2, -3 and so on, as in Kafka."""

    node_id: int
    host: str
    port: int


class Send(NamedTuple):
    """Send a request, then return AnswerArrived or RequestFailed with its correlation id."""

    correlation_id: int
    destination: Destination
    request: Request


class Answer(NamedTuple):
    """Answer the request that arrived with this id."""

    request_id: int
    answer: AnyAnswer


class HighWatermarkMoved(NamedTuple):
    """Everything below this offset is committed."""

    offset: int


class LeaderChanged(NamedTuple):
    """The leader of an epoch is known, or (-1) not yet. If it is this node, `start_offset` is the offset of its LeaderChange.

    A listener of a node that leads is informed when it has read what precedes `start_offset`.
    """

    leader_id: int
    epoch: int
    start_offset: int = NO_OFFSET


class LogTruncated(NamedTuple):
    """The records from this offset on were removed; they were not committed."""

    offset: int


class SnapshotLoaded(NamedTuple):
    """The log was emptied and continues behind this snapshot, which the listeners load."""

    snapshot: SnapshotId


class Report(NamedTuple):
    """One sentence for the node's log; `is_fault` if a peer or this node broke a rule of the protocol."""

    text: str
    is_fault: bool = False


Effect = (
    StoreElection
    | FlushLog
    | FlushSnapshot
    | Send
    | Answer
    | HighWatermarkMoved
    | LeaderChanged
    | LogTruncated
    | SnapshotLoaded
    | Report
)


# ---------------------------------------------------------------------------------------------------------------- ports


class Records(Protocol):
    """Records of the log or bytes of a snapshot. The core only asks for their length (bytes of a snapshot, else above 0)."""

    def __len__(self) -> int:
        """Return the length."""


class Random(Protocol):
    """What the core uses of kcli.log.rng.Random."""

    def randint(self, a: int, b: int) -> int:
        """Return an integer N with a <= N <= b."""


class ReplicatedLog(Protocol):
    """The metadata log with its snapshots. Methods raise OSError; nothing is durable before FlushLog is done."""

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record or, if the log is empty, of the latest snapshot; 0 if there is none."""

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The earliest snapshot, BOOTSTRAP_SNAPSHOT_ID included."""

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The latest snapshot, BOOTSTRAP_SNAPSHOT_ID included."""

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch of the log that is not above `epoch`, and its end.

        Above all known epochs this is (last epoch, end offset); below all known ones (the earliest snapshot's or 0, the start).
        """

    def control_entries(self) -> Sequence[AppendedControl]:
        """Return the control records of the latest snapshot and of the log behind it."""

    def start_epoch(self, epoch: int) -> None:
        """Record that an epoch begins at the end of the log, before its leader appends."""

    def append_control(self, epoch: int, entries: Sequence[ControlEntry], now_ms: int) -> int:
        """Append control records as one batch; return the offset of the first."""

    def append_as_leader(self, epoch: int, records: Records, now_ms: int) -> int:
        """Append records as one batch; return the offset of the last. Raises AppendError for a batch that is too large."""

    def append_as_follower(self, epoch: int, records: Records, now_ms: int) -> Sequence[AppendedControl]:
        """Append the batches of a leader and return their control records.

        The first batch of a later epoch (KAFKA-18723), a damaged one or one that does not continue the log ends the append.
        """

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on."""

    def update_high_watermark(self, offset: int) -> None:
        """Learn what is committed."""

    def read(self, offset: int, max_bytes: int) -> Records | None:
        """Return complete batches from `offset` on, at least one; None at the end of the log."""

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """Return the size of a snapshot in bytes, None if there is no such snapshot."""

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Records:
        """Return bytes of a snapshot."""

    def begin_snapshot(self, snapshot: SnapshotId) -> None:
        """Begin the part file of a snapshot that is received; an earlier part file is removed."""

    def append_snapshot(self, snapshot: SnapshotId, data: Records) -> None:
        """Append to the part file."""

    def drop_snapshot(self, snapshot: SnapshotId) -> None:
        """Remove the part file."""

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        """Empty the log and let it begin at the end of a snapshot, which is durable under its name since FlushSnapshot."""
