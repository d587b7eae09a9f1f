"""KRaft: one replica of the metadata log. It takes part in elections, appends, commits, and delivers what is committed.

    step                what happens
    ------------------  ----------------------------------------------------------------------------------------------
    start               the log is recovered; voters and kraft.version are read from its control records, epoch and vote
                        from quorum-state. The only voter becomes a candidate and wins at once, in the next epoch
    a new epoch leads   quorum-state is written; LeaderChange is appended (in the first epoch of a dynamic quorum with
                        KRaftVersion and Voters, and with Voters again if the endpoints of this node have changed)
    append              records get their offsets, are written to the log, and a flush is requested
    upgrade             a static quorum becomes a dynamic one: KRaftVersion and Voters are appended and valid at once;
                        quorum-state has its new version from the next epoch on
    flushed             the high watermark moves to the end of what was flushed: one voter is a majority of one
    commit              listeners get the batches of the snapshot, then those of the log, in order, each once, in time
                        slices; when they have all earlier epochs, they are notified of the leader. The metadata records of
                        the snapshot at offset 0 are left out: the first leader appends them (kcli.server.controller.activation)
    snapshot            kcli.server.raft.snapshot_writer

With more voters the same steps wait for other nodes: a candidate for votes, the high watermark for fetches of followers. Their
requests (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot) are not served yet, so such a quorum has no leader here,
and the controller refuses to start (kcli.server.raft.startable_quorum). A failed flush ends the leadership, because what was
written may be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.wall_time import WallTime
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, ControlRecord
from kcli.protocol.message import Message
from kcli.server.log_lines import FailureLine
from kcli.server.outstanding import FlushCallback
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import (
    MetadataBatch,
    control_message,
    encode_control_batch,
    encode_data_batch,
    encode_metadata_record,
    leader_change_message,
)
from kcli.server.raft.metadata_log import MetadataLog, MetadataLogConfig
from kcli.server.raft.quorum_state import OneVoterState, QuorumStateStore, Role
from kcli.server.raft.voter_set import BEFORE_THE_LOG, VoterSetHistory, voters_message
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_values import Voter

# The number of records that are delivered to the listeners in one time slice, about 5 ms of work.
SLICE_RECORDS = 250

_NOT_LEADING = "this node is not the leader of the metadata quorum"


class RaftConfig(NamedTuple):
    """The settings of a replica. `endpoints` are its controller listeners; `static_voters` is empty in a dynamic quorum."""

    node_id: int
    directory_id: Uuid
    directory: str
    endpoints: dict[str, tuple[str, int]]
    static_voters: Sequence[Voter] = ()
    log: MetadataLogConfig = MetadataLogConfig()


class RaftListener(Protocol):
    """A user of the metadata log: a broker, the controller, the generator of snapshots."""

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Drop all state, because a snapshot replaces it.

        Its batches are delivered next, each by `on_commit` with the offset before the snapshot's end; the last one has the
        control record SnapshotFooter. At the start this precedes everything else. A node that falls behind the leader's log
        gets a snapshot while it runs; a leader never does.
        """
        ...

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Process a committed batch."""
        ...

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Learn the leader (-1 for none). What was committed before its epoch is delivered already."""
        ...


class NotLeaderError(Exception):
    """An append on a node that is not the leader."""


class CommitTimes:
    """Average and maximum of the times in ms between the append of a batch and its delivery, since they were last taken."""

    __slots__ = ("_batches", "_max_ms", "_sum_ms")

    def __init__(self) -> None:
        self._batches = self._sum_ms = self._max_ms = 0

    def add(self, ms: int) -> None:
        """Add the time of one batch."""
        self._batches += 1
        self._sum_ms += ms
        self._max_ms = max(self._max_ms, ms)

    def take(self) -> tuple[float, float] | None:
        """Return the average and the maximum and reset them; None if nothing was committed."""
        if not self._batches:
            return None
        found = self._sum_ms / self._batches, float(self._max_ms)
        self._batches = self._sum_ms = self._max_ms = 0
        return found


def _kraft_version_records(level: int, voters: Iterable[Voter]) -> list[tuple[int, Message]]:
    """Return the control records that state a kraft.version above 0 and its voters."""
    version = control_message("KRaftVersionRecord", kraft_version=level)
    return [(KRAFT_VERSION, version), (KRAFT_VOTERS, voters_message(voters))]


class KafkaRaftClient:
    """One replica. `flush(paths, callback(error, now_ms))` makes files durable; `report` writes a line to the node's log.

    `on_storage_failure(error, now_ms)` is called once if the metadata log cannot be written any more.
    """

    def __init__(
        self,
        config: RaftConfig,
        disk: LogDisk,
        files: FileCache,
        wall: WallTime,
        flush: Callable[[tuple[str, ...], FlushCallback], object],
        scheduler: Scheduler,
        report: Callable[[str], None],
        on_storage_failure: Callable[[OSError, int], None],
    ) -> None:
        self.config = config
        self._disk = disk
        self._files = files
        self.wall = wall
        self._flush = flush
        self._scheduler = scheduler
        self._report = report
        self._on_storage_failure = on_storage_failure
        self._listeners: list[RaftListener] = []
        self.high_watermark = 0
        self.epoch_start_offset = 0
        self._delivered_offset = 0
        self._appended: deque[MetadataBatch] = deque()
        self._reader: Iterator[MetadataBatch] | None = None
        self._snapshot_reader: Iterator[MetadataBatch] | None = None
        self._is_flushing = True  # until the first flush is requested, which takes all that is appended before it
        self._reported_epoch = -1
        self._is_delivering = False
        self._has_failed = False
        # For metrics: the timestamp of the last batch that was delivered, and the times of commits.
        self.delivered_timestamp_ms = -1
        self.commit_times = CommitTimes()

    def register(self, listener: RaftListener) -> None:
        """Add a listener, behind those that are registered, before `start`."""
        self._listeners.append(listener)

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self, now_ms: int) -> None:
        """Open the log and quorum-state, and become the leader if this node is the only voter.

        Raises MetadataLogError for files that cannot be read, OSError as the disk does.
        """
        config = self.config
        self.log = MetadataLog.open(self._disk, self._files, config.directory, config.log, self.wall, now_ms, self._report)
        self.history = VoterSetHistory(config.static_voters)
        self._read_control_records()
        self._store = QuorumStateStore(self._disk, config.directory)
        stored_state = self._store.read()
        if stored_state is not None and stored_state.current_voters:
            self.history.recorded_voter_ids = stored_state.current_voters
        self.history.use_recorded_voter(Voter(config.node_id, ZERO_UUID, dict(config.endpoints)))
        own = self.history.voters.get(config.node_id)
        is_voter = own is not None and (self.history.kraft_version == 0 or own.directory_id == config.directory_id)
        is_only_voter = is_voter and len(self.history.voters) == 1
        self.quorum = OneVoterState(config.node_id, config.directory_id, is_voter=is_voter, is_only_voter=is_only_voter)
        self.quorum.restore(stored_state, self.log.last_epoch)
        latest = self.log.latest_snapshot
        if latest is not None:
            self._load_snapshot(latest, now_ms)
        if is_only_voter:
            if self.quorum.role is not Role.CANDIDATE:
                self.quorum.become_candidate()
            self._become_leader(now_ms)
            self._deliver(now_ms)
            # The records that listeners append at once, such as the first ones of a cluster, are part of the first flush.
            stored = self.quorum.stored(self.history.kraft_version, tuple(self.history.voters))
            paths = self._store.write(stored)
            self._is_flushing = False
            self._begin_flush(paths, self._publish_quorum_state)

    def _load_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Have the listeners begin with a snapshot, which `_deliver` then delivers."""
        self._delivered_offset = snapshot.end_offset
        self._snapshot_reader = self.log.snapshot_batches(snapshot)
        for listener in self._listeners:
            listener.on_snapshot(snapshot, now_ms)

    def _read_control_records(self) -> None:
        """Read the voters from the latest snapshot and from the log."""
        latest = self.log.latest_snapshot
        start_offset = 0
        if latest is not None:
            start_offset = latest.end_offset
            first = next(self.log.snapshot_batches(latest), None)
            for record in first.control_records if first is not None else ():
                self.history.apply(latest.end_offset - 1, record)
        for batch in self.log.batches(max(start_offset, self.log.start_offset), self.log.end_offset, control_only=True):
            for delta, record in enumerate(batch.control_records):
                self.history.apply(batch.base_offset + delta, record)

    # -------------------------------------------------------------------------------------------------------- leading

    @property
    def leader_id(self) -> int:
        """The leader of the quorum, -1 if none is known."""
        return self.quorum.leader_id

    @property
    def epoch(self) -> int:
        """The epoch of the quorum."""
        return self.quorum.epoch

    @property
    def is_leader(self) -> bool:
        """True if this node is the leader."""
        return self.quorum.role is Role.LEADER

    def _become_leader(self, now_ms: int) -> None:
        self.quorum.become_leader()
        self.epoch_start_offset = self.log.end_offset
        self._append_control(self._start_of_epoch(), now_ms)

    def _publish_quorum_state(self) -> None:
        paths = self._store.publish()
        self._flush(paths, lambda error, now_ms: self.storage_failed(error, now_ms) if error is not None else None)

    def _start_of_epoch(self) -> list[tuple[int, Message]]:
        """Return the control records that a new leader begins its epoch with."""
        voters = self.history.voters
        records = [(LEADER_CHANGE, leader_change_message(self.config.node_id, voters, [self.config.node_id]))]
        if self.history.kraft_version > 0:
            own = voters[self.config.node_id]
            if self.history.voters_offset == BEFORE_THE_LOG or (
                self.config.endpoints and own.endpoints != self.config.endpoints
            ):
                updated = Voter(own.voter_id, own.directory_id, dict(self.config.endpoints or own.endpoints))
                voters = {**voters, own.voter_id: updated}
                records += _kraft_version_records(self.history.kraft_version, voters.values())
        return records

    def upgrade_kraft_version(self, level: int, now_ms: int) -> list[ControlRecord]:
        """Upgrade to a kraft.version; return the control records that were appended, none if the quorum has the level already.

        They are committed as other records are. Raises NotLeaderError, and OSError as `append` does.
        """
        if level <= self.history.kraft_version:
            return []
        if not self.is_leader or self._has_failed:
            raise NotLeaderError(_NOT_LEADING)
        config, own = self.config, self.history.voters[self.config.node_id]
        dynamic = Voter(own.voter_id, config.directory_id, dict(config.endpoints or own.endpoints))
        voters = {**self.history.voters, own.voter_id: dynamic}
        try:
            records = self._append_control(_kraft_version_records(level, voters.values()), now_ms)
        except OSError as error:
            self.storage_failed(error, now_ms)
            raise
        self._begin_flush()
        return records

    def _append_control(self, records: list[tuple[int, Message]], now_ms: int) -> list[ControlRecord]:
        base_offset, wall_ms = self.log.end_offset, self.wall.at(now_ms)
        self.log.append(encode_control_batch(records, base_offset, self.epoch, wall_ms), wall_ms)
        named = [ControlRecord(type_id, "", message) for type_id, message in records]
        for delta, record in enumerate(named):
            self.history.apply(base_offset + delta, record)
        self._appended.append(MetadataBatch(base_offset, base_offset + len(records) - 1, self.epoch, wall_ms, [], named))
        return named

    def append(self, records: Sequence[Message], now_ms: int, values: Sequence[bytes] | None = None) -> int:
        """Append metadata records as one batch and return the offset of the last; `values` are the records encoded.

        They are committed when `on_commit` delivers them. Raises NotLeaderError, EncodeError and AppendError; OSError as the
        disk does, which ends the leadership: the records are not committed.
        """
        if not self.is_leader or self._has_failed:
            raise NotLeaderError(_NOT_LEADING)
        base_offset = self.log.end_offset
        if values is None:
            values = [encode_metadata_record(record) for record in records]
        wall_ms = self.wall.at(now_ms)
        batch = encode_data_batch(values, base_offset, self.epoch, wall_ms)
        try:
            self.log.append(batch, wall_ms)
        except OSError as error:
            self.storage_failed(error, now_ms)
            raise
        last_offset = base_offset + len(records) - 1
        self._appended.append(MetadataBatch(base_offset, last_offset, self.epoch, wall_ms, list(records), [], len(batch)))
        self._begin_flush()
        return last_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next appended record gets."""
        return self.log.end_offset

    # ------------------------------------------------------------------------------------------------------ committing

    def _begin_flush(self, more_paths: tuple[str, ...] = (), then: Callable[[], None] | None = None) -> None:
        """Flush the log up to its present end. During a flush nothing is done: the next one follows it."""
        if self._is_flushing:
            return
        self._is_flushing = True
        end_offset = self.log.end_offset

        def flushed(error: OSError | None, now_ms: int) -> None:
            self._is_flushing = False
            if error is not None:
                self.storage_failed(error, now_ms)
                return
            if then is not None:
                then()
            self._flushed(end_offset, now_ms)

        self._flush((*more_paths, *self.log.unflushed_paths()), flushed)

    def _flushed(self, end_offset: int, now_ms: int) -> None:
        self.log.log.mark_flushed(end_offset)
        if self.log.end_offset > end_offset:
            self._begin_flush()
        # The disk of the only voter is a majority.
        if self.is_leader and self.quorum.is_only_voter and end_offset > self.high_watermark:
            self.high_watermark = end_offset
            self.log.log.update_high_watermark(end_offset)
            self._deliver(now_ms)

    def storage_failed(self, error: OSError, now_ms: int) -> None:
        """Stop leading after a disk error on the metadata log or a file next to it. Only the first call has an effect."""
        if self._has_failed:
            return
        self._has_failed = True
        if self.is_leader:
            self.quorum.become_resigned()
        path, reason = self.config.directory, error.strerror or error
        text = f"{path}: the metadata log cannot be written: {reason}; this node stops leading"
        self._report(FailureLine(text, path=path, error=reason))
        for listener in self._listeners:
            listener.on_leader_change(self.leader_id, self.epoch, now_ms)
        self._on_storage_failure(error, now_ms)

    def _deliver(self, now_ms: int) -> None:
        """Deliver committed batches to the listeners, in time slices."""
        if not self._is_delivering:
            self._is_delivering = True
            self._scheduler.run(self._deliver_all(), now_ms)

    def _deliver_all(self) -> Iterator[None]:
        left, now_ms = SLICE_RECORDS, self._scheduler.now_ms
        while True:
            batch = self._next_snapshot_batch()
            if batch is None:
                self._report_leader(now_ms)
                if self._delivered_offset >= self.high_watermark:
                    break
                batch = self._next_batch(now_ms)
                self._delivered_offset = batch.last_offset + 1
                self.delivered_timestamp_ms = batch.timestamp_ms
            for listener in self._listeners:
                listener.on_commit(batch, now_ms)
            left -= len(batch.records) + 1
            if left <= 0:
                yield
                left, now_ms = SLICE_RECORDS, self._scheduler.now_ms
        self._is_delivering = False

    def _next_snapshot_batch(self) -> MetadataBatch | None:
        if self._snapshot_reader is None:
            return None
        batch = next(self._snapshot_reader, None)
        if batch is None:
            self._snapshot_reader = None
            return None
        # Everything in a snapshot has the offset before its end.
        last_offset = self._delivered_offset - 1
        records = batch.records if self._delivered_offset > 0 else []
        return batch._replace(base_offset=last_offset, last_offset=last_offset, records=records)

    def _next_batch(self, now_ms: int) -> MetadataBatch:
        """Return the batch that is delivered next; those that this node appended are in memory."""
        if self._appended and self._appended[0].base_offset == self._delivered_offset:
            self._reader = None
            batch = self._appended.popleft()
            self.commit_times.add(max(0, self.wall.at(now_ms) - batch.timestamp_ms))
            return batch
        if self._reader is None:
            limit_offset = self._appended[0].base_offset if self._appended else self.high_watermark
            self._reader = self.log.batches(self._delivered_offset, limit_offset)
        return next(self._reader)

    def _report_leader(self, now_ms: int) -> None:
        if self._reported_epoch < self.epoch and self._delivered_offset >= self.epoch_start_offset:
            self._reported_epoch = self.epoch
            for listener in self._listeners:
                listener.on_leader_change(self.leader_id, self.epoch, now_ms)

    def close(self) -> None:
        """Close the log, as a clean stop does."""
        if self.is_leader:
            self.quorum.become_resigned()
        self.log.close()
