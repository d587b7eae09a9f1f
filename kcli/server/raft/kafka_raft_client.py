"""KRaft on one node: the shell of the raft core, and the delivery of what is committed (Kafka: KafkaRaftClient).

The core (kcli.server.raft.consensus) decides; this module carries out its effects and brings it what follows from them:

    effect of the core                     is carried out by                        what follows
    -------------------------------------  ---------------------------------------  -------------------------------------------
    StoreElection                          quorum-state: write, flush, rename,      ElectionStored
                                           flush of the directory
    FlushLog, FlushSnapshot                a flush of the log, of the part file     LogFlushed, SnapshotFlushed
    Send                                   kcli.network.peers                       AnswerArrived, RequestFailed
    Answer                                 the response to the request              -
    HighWatermarkMoved, LeaderChanged      the delivery, see below                  -
    LogTruncated, SnapshotLoaded           the delivery                             -
    Report                                 a line of the node's log                 -

Effects are carried out in their order; what follows from one at once is carried out behind the others. A flush begins when
nothing else is left to do, so that it includes what listeners append: the only voter begins its epoch, registers itself and
stores the election with one flush. There the new name of quorum-state need not be durable before the records count: the epoch
in the log is enough.

    step      what happens
    --------  ---------------------------------------------------------------------------------------------------------------
    start     the log is recovered; voters and kraft.version are read from its control records, epoch and vote from quorum-state
    commit    listeners get the batches of the snapshot, then those of the log, in order, each once, in time slices; they are
              notified of the leader, of this node when they have all before its epoch. The metadata records of the snapshot at
              offset 0 are left out: the first leader appends them (kcli.server.controller.controller_server)
    snapshot  written by kcli.server.raft.snapshot_writer; one that the leader sends replaces what the listeners have

A disk error on the metadata log ends the part that this node takes in the quorum, because what was written may be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from kcli.format.file_names import metadata_snapshot_name
from kcli.format.primitives import FormatError
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.rng import Random
from kcli.network.events import PeerAddress, PeerNode
from kcli.network.peer_request import Answer as PeerAnswer
from kcli.network.peer_request import AnswerCallback, PeerFailure
from kcli.network.peer_request import Request as PeerRequest
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.control_records import ControlRecord
from kcli.protocol.message import Message
from kcli.server.log_lines import FailureLine, Line, WarningLine
from kcli.server.metrics.sampled import Latency, Sampled
from kcli.server.outstanding import FlushCallback
from kcli.server.raft.consensus import NotLeaderError as NotLeaderError
from kcli.server.raft.consensus import RaftCore
from kcli.server.raft.messages import (
    NO_NODE,
    TOP_LEVEL_ERRORS,
    Answer,
    AnswerArrived,
    AnyAnswer,
    ApiVersionsProbeAnswer,
    ChangeVotersAnswer,
    Effect,
    ElectionStored,
    Event,
    FlushLog,
    FlushSnapshot,
    HighWatermarkMoved,
    LeaderChanged,
    LeaderChangeEntry,
    LogFlushed,
    LogTruncated,
    Report,
    Request,
    RequestArrived,
    RequestFailed,
    Send,
    SnapshotFlushed,
    SnapshotId,
    SnapshotLoaded,
    StoreElection,
    TimeReached,
    VoterNode,
    Voters,
)
from kcli.server.raft.metadata_batches import EncodedRecords, MetadataBatch
from kcli.server.raft.metadata_log import FETCHED_PART, MetadataLog, MetadataLogConfig, MetadataLogError
from kcli.server.raft.quorum_state import NEVER_MS, QuorumState, QuorumStateStore, Role, quorum_state_data, stored_election
from kcli.server.raft.replica import RaftCoreConfig, is_real_snapshot
from kcli.server.raft.voter_set import address_on, find_voter, voter_ids
from kcli.server.raft.wire import Wire, api_key_of, read_answer, read_request, write_answer, write_request
from kcli.server.scheduler import Scheduler, Work

# The number of records that are delivered to the listeners in one time slice, about 5 ms of work.
SLICE_RECORDS = 250

_NOT_LEADING = "this node is not the leader of the metadata quorum"


class RaftConfig(NamedTuple):
    """The settings of a replica: its directory, the core's settings, and those of the log."""

    directory: str
    core: RaftCoreConfig
    log: MetadataLogConfig = MetadataLogConfig()

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.core.local.node_id


class Network(Protocol):
    """The way to other nodes: kcli.network.peers.Peers. The addresses of raft and a PeerNode have connections of their own."""

    def send(
        self,
        destination: PeerNode | PeerAddress,
        listener: str,
        api_key: int,
        message: PeerRequest,
        callback: AnswerCallback,
        deadline_ms: int,
    ) -> None:
        """Send a request; `callback(answer, now_ms)` is called once, later."""
        ...

    def is_backing_off(self, destination: PeerAddress, listener: str) -> bool:
        """Return whether a request would wait because the last connection failed."""
        ...


class RaftListener(Protocol):
    """A user of the metadata log: a broker, the controller, the generator of snapshots."""

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Prepare for a snapshot, which replaces all state.

        Its batches are delivered next, each by `on_commit` with the offset before the snapshot's end; the last one has the
        control record SnapshotFooter (`MetadataBatch.ends_snapshot`). At the start this precedes everything else. A node that
        falls behind the leader's log gets a snapshot while it runs; a leader never does.
        """
        ...

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Process a committed batch."""
        ...

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Learn the leader (-1 for none). If it is this node, what was committed before its epoch is delivered already."""
        ...


class RaftMetrics:
    """What a replica counts since the start of the process (Kafka: KafkaRaftMetrics); averages are since they were taken.

    The time of an election is from the request for votes, or for pre-votes if it gets no further, until this node leads or
    follows; an only voter, which leads at once, has none. The time of a commit is from the leader's append to the delivery.
    `snapshot_made_ms` is when the latest snapshot was written here, or when the replica started.
    """

    __slots__ = (
        *("_election_began_ms", "batch_sizes", "commits", "delivered_timestamp_ms", "elections", "snapshot_bytes"),
        *("snapshot_made_ms", "snapshots_loaded"),
    )

    def __init__(self) -> None:
        self.commits = Latency()
        self.elections = Latency()
        self.batch_sizes = Sampled()  # the number of records of each batch that was delivered
        self.delivered_timestamp_ms = -1
        self.snapshots_loaded = 0
        self.snapshot_bytes = self.snapshot_made_ms = 0
        self._election_began_ms: int | None = None

    def snapshot_made(self, size_bytes: int, now_ms: int) -> None:
        """Note that this node has written a snapshot."""
        self.snapshot_bytes, self.snapshot_made_ms = size_bytes, now_ms

    def role_taken(self, role: Role, now_ms: int) -> None:
        """Note a new role, or the same one in a new epoch."""
        if role in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._election_began_ms = now_ms
        elif role in (Role.LEADER, Role.FOLLOWER) and self._election_began_ms is not None:
            self.elections.add(now_ms - self._election_began_ms)
            self._election_began_ms = None


class _Asked(NamedTuple):
    """A request of another node or a tool that the core has not answered yet."""

    request: Request
    wire: Wire
    respond: Callable[[Message], None]


class KafkaRaftClient:
    """One replica. `flush(paths, callback(error, now_ms))` makes files durable; `report` writes a line to the node's log.

    `on_storage_failure(error, now_ms)` is called once if the metadata log cannot be written any more.
    """

    def __init__(
        self,
        config: RaftConfig,
        disk: LogDisk,
        files: FileCache,
        timer: Timer,
        flush: Callable[[tuple[str, ...], FlushCallback], object],
        scheduler: Scheduler,
        network: Network,
        rng: Random,
        report: Callable[[str], None],
        on_storage_failure: Callable[[OSError, int], None],
    ) -> None:
        self.config = config
        self._disk = disk
        self._files = files
        self._timer = timer
        self.wall = timer.wall
        self._flush = flush
        self._scheduler = scheduler
        self._network = network
        self._rng = rng
        self._report = report
        self._on_storage_failure = on_storage_failure
        self._listeners: list[RaftListener] = []
        self._effects: deque[Effect] = deque()
        self._events: deque[Event] = deque()
        self._is_running = False
        self._asked: dict[int, _Asked] = {}
        self._last_request_id = 0
        self._deadline: TimerTask | None = None
        self._store_due: StoreElection | None = None
        self._is_flush_due = False
        self._flush_limit = 0  # the end of the records that the flush under way includes
        self._has_failed = False
        self._stopped: Callable[[int], None] | None = None
        self._role = (Role.UNATTACHED, -1)
        self._logged_leader = (NO_NODE, -1)
        self._seen_voters: Voters = ()
        self._foreign: set[PeerAddress] = set()  # nodes of other clusters
        self._is_cluster_open = True  # no node of this cluster has answered since the start
        self.metrics = RaftMetrics()
        self._prepare_delivery()

    def register(self, listener: RaftListener) -> None:
        """Add a listener, behind those that are registered, before `start`."""
        self._listeners.append(listener)

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self, now_ms: int) -> None:
        """Open the log and quorum-state, and take part in the quorum; the only voter becomes the leader.

        Raises MetadataLogError for files that cannot be read, OSError as the disk does.
        """
        config = self.config
        self.log = MetadataLog.open(self._disk, self._files, config.directory, config.log, self.wall, now_ms, self._report)
        self._store = QuorumStateStore(self._disk, config.directory)
        stored = self._store.read()
        recorded: tuple[int, ...] = ()
        for control in self.log.control_entries():
            if isinstance(control.entry, LeaderChangeEntry):
                recorded = control.entry.voter_ids
        if stored is not None and stored.current_voters:
            recorded = stored.current_voters
        self.recorded_voter_ids = recorded
        self.metrics.snapshot_made_ms = now_ms
        core_config = config.core
        if not core_config.static_voters and recorded == (config.node_id,):
            # A static quorum whose only voter is this node needs no controller.quorum.voters.
            core_config = core_config._replace(static_voters=(VoterNode(core_config.local, core_config.endpoints),))
        self.core = RaftCore(core_config, self.log, self._rng)
        latest = self.log.latest_snapshot
        if latest is not None:
            self._load_snapshot(latest, now_ms)
        effects = self.core.start(None if stored is None else stored_election(stored), now_ms)
        self._note_role(now_ms)
        self._run(effects, now_ms)
        self._deliver(now_ms)

    # -------------------------------------------------------------------------------------------------------- the state

    @property
    def quorum(self) -> QuorumState:
        """The election state of this node."""
        return self.core.quorum

    @property
    def voters(self) -> Voters:
        """The voters at the end of the log."""
        return self.core.voters

    @property
    def leader_id(self) -> int:
        """The leader of the quorum, -1 if none is known."""
        return self._leader.leader_id

    def address_of(self, node_id: int, listener: str) -> PeerAddress | None:
        """Return where the leader or a voter listens, None if it is not known."""
        quorum, voter = self.core.quorum, find_voter(self.voters, node_id)
        endpoints = quorum.leader_endpoints if node_id == quorum.leader_id else ()
        address = address_on(endpoints, listener)
        if address is None and voter is not None:
            address = address_on(voter.endpoints, listener)
        return None if address is None else PeerAddress(*address)

    @property
    def epoch(self) -> int:
        """The epoch of the quorum."""
        return self.core.quorum.epoch

    @property
    def is_leader(self) -> bool:
        """True if this node is the leader."""
        return not self._has_failed and self.core.quorum.is_leader

    def is_caught_up(self) -> bool:
        """Return whether the listeners have what was committed when this process first heard of it.

        A leader has it when it is notified of its leadership, a follower when it has all below the high watermark that the
        leader stated first.
        """
        if self.is_leader:
            return (self._reported_leader.leader_id, self._reported_leader.epoch) == (self.config.node_id, self.epoch)
        return self._snapshot_reader is None and 0 <= self.core.catch_up_offset <= self._delivered_offset

    @property
    def delivered_offset(self) -> int | None:
        """The offset below which the listeners have everything; None while they get a snapshot."""
        return self._delivered_offset if self._snapshot_reader is None else None

    @property
    def next_offset(self) -> int:
        """The offset that the next appended record gets."""
        return self.log.end_offset

    # -------------------------------------------------------------------------------------------------------- leading

    def append(self, records: Sequence[Message], now_ms: int, encoded: EncodedRecords | None = None) -> int:
        """Append metadata records as one batch and return the offset of the last; `encoded` has them if they are encoded.

        They are committed when `on_commit` delivers them. Raises NotLeaderError, EncodeError and AppendError; OSError as the
        disk does, which ends the leadership: the records are not committed.
        """
        if not self.is_leader:
            raise NotLeaderError(_NOT_LEADING)
        base_offset, size_bytes = self.log.end_offset, self.log.log.size_bytes
        if encoded is None:
            encoded = EncodedRecords(records)
        try:
            last_offset = self.core.append(self.epoch, encoded, now_ms)
        except OSError as error:
            self.storage_failed(error, now_ms)
            raise
        batch = MetadataBatch(
            base_offset, last_offset, self.epoch, self.wall.at(now_ms), list(records), [], self.log.log.size_bytes - size_bytes
        )
        self._appended.append(batch)
        self._run(self.core.take_effects(now_ms), now_ms)
        return last_offset

    def upgrade_kraft_version(self, level: int, now_ms: int) -> tuple[ChangeVotersAnswer, list[ControlRecord]]:
        """Upgrade to a kraft.version; return the error, if there is one, and the control records that were appended.

        They are committed as other records are. Raises OSError as `append` does.
        """
        base_offset = self.log.end_offset
        try:
            answer = self.core.upgrade_kraft_version(level, now_ms)
        except OSError as error:
            self.storage_failed(error, now_ms)
            raise
        batches = self.log.batches(base_offset, self.log.end_offset, control_only=True)
        records = [record for batch in batches for record in batch.control_records]
        self._run(self.core.take_effects(now_ms), now_ms)
        return answer, records

    def resign(self, now_ms: int) -> None:
        """Stop leading, because this node cannot decide any more."""
        self._run(self.core.resign_epoch(self.epoch, now_ms), now_ms)

    # ------------------------------------------------------------------------------------------------------- stopping

    def stop(self, stopped: Callable[[int], None], now_ms: int, *, hands_over: bool = True) -> None:
        """Hand over the leadership, close the log, as a clean stop does, and call `stopped(now_ms)`.

        Without `hands_over` another voter is not waited for: all of them stop.
        """

        def close(now_ms: int) -> None:
            self._has_failed = True  # nothing is read or written any more
            if self._deadline is not None:
                self._deadline.cancel()
            self.log.close()
            stopped(now_ms)

        if self._has_failed or not hands_over:
            close(now_ms)
            return
        self._stopped = close
        self._run(self.core.shutdown(now_ms), now_ms)

    # ------------------------------------------------------------------------------------------------ requests of others

    def receive(self, api_key: int, message: Message, wire: Wire, respond: Callable[[Message], None], now_ms: int) -> None:
        """Take a request of another node or a tool; `respond` is called once, now or later."""
        request = read_request(api_key, message, wire)
        if isinstance(request, Message):
            respond(request)
            return
        self._last_request_id += 1
        self._asked[self._last_request_id] = _Asked(request, wire, respond)
        self._happened(RequestArrived(self._last_request_id, request), now_ms)

    def _answer(self, effect: Answer) -> None:
        asked = self._asked.pop(effect.request_id, None)
        if asked is not None:
            asked.respond(write_answer(asked.request, effect.answer, asked.wire))

    def _send(self, effect: Send, now_ms: int) -> None:
        config, request = self.config.core, effect.request
        destination = PeerAddress(effect.destination.host, effect.destination.port)
        if self._network.is_backing_off(destination, config.listener):
            # To wait would only make the request old: the core makes a new one.
            self._events.append(RequestFailed(effect.correlation_id))
            return
        answered = partial(self._answered, effect.correlation_id, destination, request)
        deadline_ms = now_ms + config.request_timeout_ms
        self._network.send(
            destination, config.listener, api_key_of(request), partial(write_request, request), answered, deadline_ms
        )

    def _answered(self, correlation_id: int, address: PeerAddress, request: Request, answer: PeerAnswer, now_ms: int) -> None:
        if answer is PeerFailure.UNSUPPORTED_VERSION:
            event: Event = RequestFailed(correlation_id, error_codes.UNSUPPORTED_VERSION)
        elif isinstance(answer, PeerFailure):
            event = RequestFailed(correlation_id)
        else:
            try:
                event = AnswerArrived(correlation_id, read_answer(request, answer, self.config.core.listener))
                self._check_cluster(address, event.answer)
            except FormatError as error:
                text = f"an answer of a node of the metadata quorum is not understood: {error.message}"
                self._report(WarningLine(text, error=error.message))
                event = RequestFailed(correlation_id)
        self._happened(event, now_ms)

    def _check_cluster(self, address: PeerAddress, answer: AnyAnswer) -> None:
        """Log each node that has another cluster id. Raises MetadataLogError if all that were asked since the start have."""
        if answer.error == error_codes.INCONSISTENT_CLUSTER_ID:
            directory, cluster_id = self.config.directory, self.config.core.cluster_id
            if address not in self._foreign:
                self._foreign.add(address)
                text = f"{directory}: the node at {address} belongs to another cluster than this directory ({cluster_id})"
                self._report(WarningLine(text, address=str(address), cluster_id=cluster_id))
            asked = {PeerAddress(at.host, at.port) for at in self.core.bootstrap_servers()}
            if self._is_cluster_open and asked and asked <= self._foreign:
                raise MetadataLogError(
                    f"{directory} belongs to cluster {cluster_id}, and all nodes of the metadata quorum that are configured "
                    f"({', '.join(map(str, sorted(asked)))}) to another one: correct the addresses, or format an empty "
                    "directory with `kcli format --cluster-id` and their cluster id"
                )
        elif not isinstance(answer, ApiVersionsProbeAnswer) and answer.error not in TOP_LEVEL_ERRORS:
            self._is_cluster_open = False

    # -------------------------------------------------------------------------------------------------- events and effects

    def _happened(self, event: Event, now_ms: int) -> None:
        self._events.append(event)
        self._run((), now_ms)

    def _run(self, effects: Sequence[Effect], now_ms: int) -> None:
        """Carry out effects and all that follows from them now; a call in the midst of that only adds to it."""
        self._effects += effects
        if self._is_running:
            return
        self._is_running = True
        try:
            while not self._has_failed:
                if self._effects:
                    self._perform(self._effects.popleft(), now_ms)
                elif self._events:
                    self._effects += self.core.handle(self._events.popleft(), now_ms)
                    self._note_role(now_ms)
                elif self._store_due is not None or self._is_flush_due:
                    self._begin_flush()
                else:
                    break
        except OSError as error:
            self.storage_failed(error, now_ms)
        finally:
            self._is_running = False
        self._set_deadline(now_ms)

    def _note_role(self, now_ms: int) -> None:
        quorum = self.core.quorum
        # After a start the leader is that of quorum-state, which may be gone: the log names it when it has answered a Fetch.
        leader = (quorum.leader_id, quorum.epoch)
        if (quorum.is_leader or quorum.has_fetched) and leader != self._logged_leader and len(self.voters) > 1:
            self._logged_leader = leader
            self._report(f"node {quorum.leader_id} leads epoch {quorum.epoch} of the metadata quorum")
        if self.voters != self._seen_voters:
            if quorum.is_leader and self._seen_voters:
                self._report_voters(voter_ids(self._seen_voters), voter_ids(self.voters))
            self._seen_voters = self.voters
            self._check_directory()
        role = (quorum.role, quorum.epoch)
        if role != self._role:
            self._role = role
            self.metrics.role_taken(role[0], now_ms)

    def _report_voters(self, before: Collection[int], now: Collection[int]) -> None:
        """Log which nodes became voters, or are voters no more: a controller may join without a command (KIP-1186)."""
        for node_id in sorted(set(before) ^ set(now)):
            change = "becomes a voter" if node_id in now else "is no voter any more"
            voters = ", ".join(map(str, now))
            self._report(Line(f"node {node_id} {change} of the metadata quorum; its voters are {voters}", node=node_id))

    def _check_directory(self) -> None:
        """Log that this node is a voter with another directory, for example after its disk was exchanged."""
        core, own = self.config.core, find_voter(self.voters, self.config.node_id)
        if own is None or self.core.is_voter or core.joins_automatically or not core.is_controller:
            return
        directory, id_ = own.key.directory_id, self.config.node_id
        text = (
            f"{self.config.directory}: voter {id_} of the metadata quorum has the directory id {directory}, and this directory "
            f"has {core.local.directory_id}: this node has no vote. If the other directory is lost, remove its voter with "
            f"`kcli cluster remove-controller --controller-id {id_} --controller-directory-id {directory}`, and add this one "
            "with `kcli cluster add-controller`"
        )
        self._report(WarningLine(text, directory=str(directory)))

    def _perform(self, effect: Effect, now_ms: int) -> None:
        if isinstance(effect, Send):
            self._send(effect, now_ms)
        elif isinstance(effect, Answer):
            self._answer(effect)
        elif isinstance(effect, StoreElection):
            self._store_due = effect
        elif isinstance(effect, FlushLog):
            self._is_flush_due = True
        elif isinstance(effect, FlushSnapshot):
            self._flush_snapshot(effect.snapshot)
        elif isinstance(effect, HighWatermarkMoved):
            self.high_watermark = effect.offset
            self._deliver(now_ms)
        elif isinstance(effect, LeaderChanged):
            self._leader = effect
            self._deliver(now_ms)
        elif isinstance(effect, LogTruncated):
            self._truncated(effect.offset)
        elif isinstance(effect, SnapshotLoaded):
            self._truncated(0)
            self._load_snapshot(effect.snapshot, now_ms)
            self._deliver(now_ms)
        elif isinstance(effect, Report):
            self._report(WarningLine(effect.text) if effect.is_fault else effect.text)

    def _set_deadline(self, now_ms: int) -> None:
        deadline_ms = NEVER_MS if self._has_failed else self.core.deadline_ms
        if self._deadline is not None:
            if self._deadline.at_ms == deadline_ms:
                return
            self._deadline.cancel()
            self._deadline = None
        if deadline_ms != NEVER_MS:
            self._deadline = self._timer.schedule(deadline_ms, self._deadline_reached)
        if self._stopped is not None and (self._has_failed or self.core.is_stopped(now_ms)):
            stopped, self._stopped = self._stopped, None
            stopped(now_ms)

    def _deadline_reached(self, now_ms: int) -> None:
        self._deadline = None
        self._happened(TimeReached(), now_ms)

    # ----------------------------------------------------------------------------------------------------------- flushing

    def _begin_flush(self) -> None:
        """Flush quorum-state and the log, whichever is due, in one go."""
        store, self._store_due = self._store_due, None
        paths: list[str] = []
        if store is not None:
            paths += self._store.write(quorum_state_data(store.election, store.kraft_version, store.voter_ids))
        end_offset = None
        if self._is_flush_due:
            self._is_flush_due = False
            end_offset = self._flush_limit = self.log.end_offset
            paths += self.log.unflushed_paths()

        def flushed(error: OSError | None, now_ms: int) -> None:
            if error is not None:
                self.storage_failed(error, now_ms)
                return
            if store is not None:
                self._rename_quorum_state(store, now_ms)
            if end_offset is not None:
                self.log.log.mark_flushed(min(end_offset, self._flush_limit))
                self._events.append(LogFlushed(end_offset))
            self._run((), now_ms)

        self._flush(tuple(paths), flushed)

    def _rename_quorum_state(self, store: StoreElection, now_ms: int) -> None:
        """Give quorum-state its name, and note that it is stored when that is durable; see the module's head for one voter."""
        is_alone = store.voter_ids == (self.config.node_id,)
        try:
            paths = self._store.publish()
        except OSError as error:
            self.storage_failed(error, now_ms)
            return
        if is_alone:
            self._events.append(ElectionStored(store.version))

        def flushed(error: OSError | None, now_ms: int) -> None:
            if error is not None:
                self.storage_failed(error, now_ms)
            elif not is_alone:
                self._happened(ElectionStored(store.version), now_ms)

        self._flush(paths, flushed)

    def _flush_snapshot(self, snapshot: SnapshotId) -> None:
        """Flush the part file of a fetched snapshot, read it, name it, and flush its directory."""

        def named(error: OSError | None, now_ms: int) -> None:
            if error is not None:
                self.storage_failed(error, now_ms)
            else:
                self._happened(SnapshotFlushed(snapshot), now_ms)

        def check() -> Work:
            try:
                yield from self.log.check_snapshot(snapshot)
                if not self._has_failed:
                    self._flush(self.log.name_snapshot(snapshot), named)
            except MetadataLogError as error:
                self._happened(SnapshotFlushed(snapshot, str(error)), self._scheduler.now_ms)
            except OSError as failed:
                self.storage_failed(failed, self._scheduler.now_ms)

        def flushed(error: OSError | None, now_ms: int) -> None:
            if error is not None:
                self.storage_failed(error, now_ms)
            else:
                self._scheduler.run(check(), now_ms)

        self._flush((self.log.part_path(snapshot, FETCHED_PART),), flushed)

    def storage_failed(self, error: OSError, now_ms: int) -> None:
        """Leave the quorum after a disk error on the metadata log or a file next to it. Only the first call has an effect."""
        if self._has_failed:
            return
        self._has_failed = True
        self._leader = LeaderChanged(NO_NODE, self.epoch)
        path, reason = self.config.directory, error.strerror or error
        text = f"{path}: the metadata log cannot be written: {reason}; this node leaves the metadata quorum"
        self._report(FailureLine(text, path=path, error=reason))
        for listener in self._listeners:
            listener.on_leader_change(NO_NODE, self.epoch, now_ms)
        self._on_storage_failure(error, now_ms)

    # ----------------------------------------------------------------------------------------------------------- delivery

    def _prepare_delivery(self) -> None:
        self.high_watermark = 0
        self._delivered_offset = 0
        self._appended: deque[MetadataBatch] = deque()
        self._reader: Iterator[MetadataBatch] | None = None
        self._snapshot_reader: Iterator[MetadataBatch] | None = None
        self._snapshot_epoch = 0
        self._has_footer = False
        self._leader = self._reported_leader = LeaderChanged(NO_NODE, -1)
        self._is_delivering = False

    def _load_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Have the listeners begin with a snapshot, which `_deliver` then delivers."""
        self._delivered_offset = snapshot.end_offset
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        self.metrics.snapshots_loaded += is_real_snapshot(snapshot)
        self._snapshot_reader, self._snapshot_epoch = self.log.snapshot_batches(snapshot), snapshot.epoch
        self._has_footer = False
        for listener in self._listeners:
            listener.on_snapshot(snapshot, now_ms)

    def _truncated(self, offset: int) -> None:
        """Forget what was read or appended from an offset on; it was not committed, or a snapshot replaces it."""
        self._flush_limit = min(self._flush_limit, offset)
        self._reader = None
        while self._appended and self._appended[-1].last_offset >= offset:
            self._appended.pop()
        for path in self.log.take_removable():
            self._disk.remove(path)

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
                batch = self._next_batch(now_ms) if self._delivered_offset < self.high_watermark else None
                if batch is None:
                    break
                self._delivered_offset = batch.last_offset + 1
                self.metrics.delivered_timestamp_ms = batch.timestamp_ms
                self.metrics.batch_sizes.add(len(batch.records))
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
            if not self._has_footer:
                path = f"{self.config.directory}/{metadata_snapshot_name(self._delivered_offset, self._snapshot_epoch)}"
                raise MetadataLogError(f"{path} has no footer, so records may be missing: restore it from another node")
            return None
        self._has_footer = batch.ends_snapshot
        # Everything in a snapshot has the offset before its end.
        last_offset = self._delivered_offset - 1
        records = batch.records if self._delivered_offset > 0 else []
        return batch._replace(base_offset=last_offset, last_offset=last_offset, records=records)

    def _next_batch(self, now_ms: int) -> MetadataBatch | None:
        """Return the batch that is delivered next, None if it is not committed; those that this node appended are in memory."""
        appended = self._appended
        while appended and appended[0].base_offset < self._delivered_offset:
            appended.popleft()
        if appended and appended[0].base_offset == self._delivered_offset:
            if appended[0].last_offset >= self.high_watermark:
                return None
            self._reader = None
            batch = appended.popleft()
            self.metrics.commits.add(max(0, self.wall.at(now_ms) - batch.timestamp_ms))
            return batch
        found = None if self._reader is None else next(self._reader, None)
        if found is None:
            limit_offset = min(self.high_watermark, appended[0].base_offset) if appended else self.high_watermark
            self._reader = self.log.batches(self._delivered_offset, limit_offset)
            found = next(self._reader, None)
        return found

    def _report_leader(self, now_ms: int) -> None:
        """Notify the listeners of the leader; of this node only when they have what is before its epoch."""
        leader = self._leader
        is_early = leader.leader_id == self.config.node_id and self._delivered_offset < leader.start_offset
        if leader == self._reported_leader or is_early:
            return
        self._reported_leader = leader
        for listener in self._listeners:
            listener.on_leader_change(leader.leader_id, leader.epoch, now_ms)
