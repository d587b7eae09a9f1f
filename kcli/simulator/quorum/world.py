"""Replicas of the metadata log in one process: the raft cores of kcli.server.raft, each on a log in memory, and their messages.

A world does nothing by itself. Its driver (seeds, the search of small worlds, a script) chooses what happens next:

    step                      what happens
    ------------------------  ------------------------------------------------------------------------------------------
    deliver                   a message arrives; what is sent to a replica that is down, or to an earlier life of it, is lost
    fail                      a request is not answered: its sender is informed
    time                      the deadline of a replica is reached
    store, flush, receive     quorum-state, the log, or the part file of a snapshot is durable
    append, request           a client appends at a replica, or sends a request to it
    snapshot                  a replica makes a snapshot of what is committed, and removes the log below
    crash, start              a replica ends, with or without a loss of power, and starts again, perhaps with an empty disk

After each step all checks of kcli.simulator.quorum.checks are made. Messages that were sent since are in `outbox`. Each replica
has its own clock, since only its own deadlines use it; the driver sets it with each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from kcli.format.kafka_uuid import Uuid
from kcli.server.raft.consensus import NotLeaderError, RaftCore
from kcli.server.raft.messages import (
    BOOTSTRAP_SNAPSHOT_ID,
    Answer,
    AnswerArrived,
    AnyAnswer,
    Destination,
    Effect,
    Election,
    ElectionStored,
    Event,
    FlushLog,
    FlushSnapshot,
    HighWatermarkMoved,
    KRaftVersionEntry,
    LeaderChanged,
    ListenerEndpoint,
    LogFlushed,
    LogTruncated,
    Random,
    ReplicaKey,
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
    VotersEntry,
)
from kcli.server.raft.replica import RaftCoreConfig
from kcli.simulator.quorum.checks import QuorumChecks, QuorumFailure, name_of
from kcli.simulator.quorum.memory_log import SNAPSHOT_BYTES, MemoryLog, Snapshot
from kcli.simulator.quorum.message_text import CLIENT, actor, text_of

CLUSTER_ID = "quorum"
LISTENER = "CONTROLLER"
PORT = 9093
_FOR_EVER_MS = 10**9


class Message(NamedTuple):
    """A message under way: a request, or an answer, which only the life of the replica gets that sent the request."""

    source: int
    source_life: int
    target: int
    target_life: int  # 0 for a request: any life
    correlation_id: int
    body: Request | AnyAnswer
    request: Request | None = None  # of an answer: what it answers


class Sender(NamedTuple):
    """Who waits for the answer to a request that has arrived."""

    source: int
    source_life: int
    correlation_id: int
    request: Request


class WorldConfig(NamedTuple):
    """The quorum as it begins. `voter_ids` are of nodes in `node_ids`; the others are observers, controllers all the same."""

    node_ids: tuple[int, ...] = (1, 2, 3)
    voter_ids: tuple[int, ...] = (1, 2, 3)
    is_dynamic: bool = False
    is_auto_joining: bool = False
    election_timeout_ms: int = 1000
    is_time_abstract: bool = False  # requests do not time out, and waiting fetches are answered by an event only


def endpoints_of(node_id: int) -> tuple[ListenerEndpoint, ...]:
    """Return the endpoints of a node."""
    return (ListenerEndpoint(LISTENER, f"n{node_id}", PORT),)


def voter_of(key: ReplicaKey, *, is_dynamic: bool) -> VoterNode:
    """Return a voter as the log names it."""
    return VoterNode(key, endpoints_of(key.node_id), 0, 1 if is_dynamic else 0)


class SimulatedReplica:
    """A node: its disk, and the core while it is up."""

    __slots__ = (
        "clock_ms",
        "core",
        "directory",
        "election",
        "flushing_snapshot",
        "high_watermark",
        "key",
        "known_digest",
        "leading_epoch",
        "life",
        "log",
        "node_id",
        "request_count",
        "storing",
        "waiting",
    )

    def __init__(self, node_id: int, log: MemoryLog) -> None:
        self.node_id = node_id
        self.directory = 1  # counts the disks that the node has had
        self.key = ReplicaKey(node_id, directory_id_of(node_id, 1))
        self.log = log
        self.election: Election | None = None  # as quorum-state has it
        self.life = 0
        self.clock_ms = 0
        self.known_digest: int | None = None  # of this state, which the search of small worlds copies before it changes it
        self.end_life()

    def end_life(self) -> None:
        """Forget what only the process has."""
        self.core: RaftCore | None = None
        self.storing: StoreElection | None = None
        self.flushing_snapshot: SnapshotId | None = None
        self.waiting: dict[int, Sender] = {}
        self.request_count = 0
        self.high_watermark = 0
        self.leading_epoch: int | None = None  # as its clients know, who learn the end of a leadership later

    def replace_disk(self) -> None:
        """Give the node an empty disk, with a directory id of its own."""
        self.directory += 1
        self.key = ReplicaKey(self.node_id, directory_id_of(self.node_id, self.directory))
        self.log, self.election = MemoryLog(), None

    def copy(self) -> SimulatedReplica:
        """Return a copy that changes on its own."""
        copied = SimulatedReplica(self.node_id, self.log.copy())
        for name in ("directory", "key", "election", "life", "clock_ms", "storing", "flushing_snapshot", "request_count"):
            setattr(copied, name, getattr(self, name))
        copied.high_watermark, copied.leading_epoch = self.high_watermark, self.leading_epoch
        copied.waiting = self.waiting.copy()
        copied.core = None if self.core is None else self.core.copy(copied.log, self.core.rng)
        return copied


def directory_id_of(node_id: int, disk: int) -> Uuid:
    """Return the directory id of a node's first, second or later disk."""
    return Uuid(bytes((*(0 for _ in range(13)), 1, node_id, disk)))


class QuorumWorld:
    """All replicas, and what the checks know. `trace(actor, text)` gets a line for each step and each effect."""

    __slots__ = ("answers", "checks", "config", "lost_disks", "outbox", "random", "replicas", "trace")

    def __init__(self, config: WorldConfig, random: Random, trace: Callable[[str, str], None]) -> None:
        self.config = config
        self.random = random
        self.trace = trace
        self.checks = QuorumChecks()
        self.outbox: list[Message] = []
        self.answers: list[tuple[Request, AnyAnswer]] = []  # those that tools got
        self.lost_disks: set[ReplicaKey] = set()
        self.replicas = {
            node_id: SimulatedReplica(node_id, MemoryLog(self._first_snapshots(node_id))) for node_id in config.node_ids
        }

    def _first_voters(self) -> tuple[VoterNode, ...]:
        keys = (ReplicaKey(node_id, directory_id_of(node_id, 1)) for node_id in self.config.voter_ids)
        return tuple(voter_of(key, is_dynamic=True) for key in keys)

    def _first_snapshots(self, node_id: int) -> tuple[Snapshot, ...]:
        """Return what formatting writes: the voters of a dynamic quorum, on the voters."""
        if not self.config.is_dynamic or node_id not in self.config.voter_ids:
            return ()
        return (Snapshot(BOOTSTRAP_SNAPSHOT_ID, (KRaftVersionEntry(1), VotersEntry(self._first_voters())), 0),)

    def copy_with(self, node_id: int) -> QuorumWorld:
        """Return a copy in which one replica and the checks may change; the other replicas are shared."""
        copied = QuorumWorld.__new__(QuorumWorld)
        copied.config, copied.random, copied.trace = self.config, self.random, self.trace
        copied.checks = self.checks.copy()
        copied.outbox, copied.answers, copied.lost_disks = [], [], self.lost_disks
        copied.replicas = {**self.replicas, node_id: self.replicas[node_id].copy()}
        return copied

    # ---------------------------------------------------------------------------------------------------------- the steps

    def start(self, replica: SimulatedReplica) -> None:
        """Start a replica that is down."""
        replica.life += 1
        replica.core = self._make_core(replica)
        self.trace(name_of(replica.key), "starts")
        effects = replica.core.start(replica.election, replica.clock_ms)
        latest = replica.log.latest_snapshot
        replica.high_watermark = 0 if latest is None else latest.end_offset
        self._perform(replica, effects)

    def crash(self, replica: SimulatedReplica, survivor: int = -1, *, is_stored: bool = False) -> None:
        """End a replica. Its log survives as MemoryLog.restart has it; `is_stored`: so does a new quorum-state."""
        if is_stored and replica.storing is not None:
            replica.election = replica.storing.election
        self.trace(name_of(replica.key), "crashes")
        replica.end_life()
        replica.log.restart(survivor)

    def lose_disk(self, replica: SimulatedReplica) -> None:
        """Give a replica that is down an empty disk."""
        self.lost_disks.add(replica.key)
        replica.replace_disk()
        self.trace(name_of(replica.key), "has an empty disk")

    def deliver(self, message: Message) -> bool:
        """Deliver a message; return False if it is lost, because the replica is down or has started again."""
        if message.target == CLIENT:
            self.answers.append((_request_of(message), _answer_of(message)))
            return True
        replica = self.replicas[message.target]
        if replica.core is None or message.target_life not in (0, replica.life):
            return False
        self.trace(name_of(replica.key), f"gets {text_of(message.body)} of {actor(message.source)}")
        if message.request is not None:
            return self._handle(replica, AnswerArrived(message.correlation_id, _answer_of(message)))
        replica.request_count += 1
        request = cast(Request, message.body)
        replica.waiting[replica.request_count] = Sender(message.source, message.source_life, message.correlation_id, request)
        return self._handle(replica, RequestArrived(replica.request_count, request))

    def fail(self, message: Message) -> bool:
        """Inform the sender of a request that there is no answer; return False if it is down or has started again."""
        replica = self.replicas.get(message.source)
        if replica is None or replica.core is None or replica.life != message.source_life:
            return False
        self.trace(name_of(replica.key), f"gets no answer to {text_of(message.body)} of {actor(message.target)}")
        return self._handle(replica, RequestFailed(message.correlation_id))

    def time(self, replica: SimulatedReplica) -> bool:
        """Let the deadline of a replica pass."""
        return self._handle(replica, TimeReached())

    def store(self, replica: SimulatedReplica) -> bool:
        """Make quorum-state durable, as the last StoreElection wants it."""
        storing = replica.storing
        if storing is None:
            return False
        replica.storing, replica.election = None, storing.election
        return self._handle(replica, ElectionStored(storing.version))

    def flush(self, replica: SimulatedReplica) -> bool:
        """Make the log durable, as it was when the last FlushLog came."""
        flushing = replica.log.flushing
        if flushing is None:
            return False
        replica.log.end_flush()
        return self._handle(replica, LogFlushed(flushing.end_offset))

    def receive(self, replica: SimulatedReplica) -> bool:
        """Make the part file of a snapshot durable."""
        snapshot, replica.flushing_snapshot = replica.flushing_snapshot, None
        return snapshot is not None and self._handle(replica, SnapshotFlushed(snapshot))

    def append(self, replica: SimulatedReplica, *values: int) -> bool:
        """Append values at a replica that leads, or did; return False if it refuses that. Raises QuorumFailure."""
        core, epoch = replica.core, replica.leading_epoch
        if core is None or epoch is None:
            return False
        before = replica.log.now
        try:
            core.append(epoch, values, replica.clock_ms)
        except NotLeaderError:
            self.trace(name_of(replica.key), f"refuses to append {', '.join(map(str, values))} in epoch {epoch}")
            replica.leading_epoch = None
            return False
        self.trace(name_of(replica.key), f"appends {', '.join(map(str, values))} at offset {before.end_offset}")
        if core.quorum.epoch != epoch or not core.quorum.is_leader:
            raise QuorumFailure(f"appends: {name_of(replica.key)} appends in epoch {epoch}, which it does not lead any more")
        self._perform(replica, core.take_effects(replica.clock_ms))
        return True

    def request(self, replica: SimulatedReplica, request: Request) -> None:
        """Send a request of a tool."""
        self.outbox.append(Message(CLIENT, 0, replica.node_id, 0, len(self.answers), request))

    def snapshot(self, replica: SimulatedReplica) -> bool:
        """Make a snapshot of all that is committed, and remove the log below; return False if nothing is new."""
        offset = snapshot_offset(replica)
        latest = replica.log.latest_snapshot
        if offset <= (0 if latest is None else latest.end_offset):
            return False
        snapshot = replica.log.snapshot_at(offset)
        self.trace(name_of(replica.key), f"makes snapshot {snapshot.id.end_offset}-{snapshot.id.epoch}")
        self.checks.snapshot(replica.key, snapshot)
        replica.log.add_snapshot(snapshot)
        replica.log.clean()
        return True

    def resign(self, replica: SimulatedReplica) -> bool:
        """Let a leader stop leading; return False if it does not lead."""
        core = replica.core
        if core is None or not core.quorum.is_leader:
            return False
        self.trace(name_of(replica.key), "resigns")
        self._perform(replica, core.resign_epoch(core.quorum.epoch, replica.clock_ms))
        return True

    # ---------------------------------------------------------------------------------------------------------- effects

    def _make_core(self, replica: SimulatedReplica) -> RaftCore:
        config = self.config
        static = () if config.is_dynamic else tuple(voter_of(_static_key(one), is_dynamic=False) for one in config.voter_ids)
        bootstrap = () if static else tuple(Destination(-2 - at, f"n{one}", PORT) for at, one in enumerate(config.voter_ids))
        settings = RaftCoreConfig(
            replica.key,
            CLUSTER_ID,
            LISTENER,
            endpoints_of(replica.node_id),
            static,
            bootstrap,
            joins_automatically=config.is_auto_joining,
            election_timeout_ms=config.election_timeout_ms,
            request_timeout_ms=_FOR_EVER_MS if config.is_time_abstract else 2000,
            fetch_max_wait_ms=_FOR_EVER_MS if config.is_time_abstract else 500,
            fetch_snapshot_max_bytes=SNAPSHOT_BYTES // 2,
        )
        return RaftCore(settings, replica.log, self.random)

    def _handle(self, replica: SimulatedReplica, event: Event) -> bool:
        if replica.core is None:
            return False
        before = replica.log.now
        self._perform(replica, replica.core.handle(event, replica.clock_ms))
        self.checks.keeps(replica.key, before, replica.log.now)
        return True

    def _perform(self, replica: SimulatedReplica, effects: Iterable[Effect]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, replica, effect)
        core = replica.core
        assert core is not None
        self.checks.high_watermark(replica.key, replica.high_watermark, max(0, core.high_watermark))

    def _store(self, replica: SimulatedReplica, effect: StoreElection) -> None:
        election = effect.election
        voted = "" if election.voted is None else f", vote for {name_of(election.voted)}"
        self.trace(name_of(replica.key), f"stores epoch {election.epoch}, leader {actor(election.leader_id)}{voted}")
        replica.storing = effect

    def _flush_log(self, replica: SimulatedReplica, effect: FlushLog) -> None:
        self.trace(name_of(replica.key), f"flushes its log up to {effect.end_offset}")
        replica.log.begin_flush()

    def _flush_snapshot(self, replica: SimulatedReplica, effect: FlushSnapshot) -> None:
        self.trace(name_of(replica.key), f"flushes snapshot {effect.snapshot.end_offset}-{effect.snapshot.epoch}")
        replica.flushing_snapshot = effect.snapshot

    def _send(self, replica: SimulatedReplica, effect: Send) -> None:
        target, request = int(effect.destination.host.removeprefix("n")), effect.request
        self.trace(name_of(replica.key), f"sends {text_of(request)} to n{target}")
        self.checks.leaves(replica.key, replica.election, replica.log, request)
        self.outbox.append(Message(replica.node_id, replica.life, target, 0, effect.correlation_id, request))

    def _answer(self, replica: SimulatedReplica, effect: Answer) -> None:
        sender = replica.waiting.pop(effect.request_id, None)
        if sender is None:
            raise QuorumFailure(f"{name_of(replica.key)} answers request {effect.request_id} twice, or one that it did not get")
        self.trace(name_of(replica.key), f"answers {actor(sender.source)}: {text_of(effect.answer)}")
        self.checks.answer_leaves(replica.key, replica.election, replica.log, sender.request, effect.answer)
        message = Message(
            replica.node_id,
            replica.life,
            sender.source,
            sender.source_life,
            sender.correlation_id,
            effect.answer,
            sender.request,
        )
        self.outbox.append(message)

    def _commit(self, replica: SimulatedReplica, effect: HighWatermarkMoved) -> None:
        self.trace(name_of(replica.key), f"commits up to {effect.offset}")
        self.checks.high_watermark(replica.key, replica.high_watermark, effect.offset)
        core = replica.core
        assert core is not None
        self.checks.commits(replica.key, core.quorum.epoch, effect.offset, replica.log.now)
        replica.high_watermark = effect.offset
        if core.quorum.is_leader:
            self.checks.leader_commits(replica.key, core.quorum.epoch, effect.offset, replica.log.now)
            self._check_majority(replica, effect.offset)

    def _change_leader(self, replica: SimulatedReplica, effect: LeaderChanged) -> None:
        key = replica.key
        if effect.leader_id == replica.node_id:
            self.trace(name_of(key), f"leads epoch {effect.epoch} from offset {effect.start_offset}")
            self.checks.leads(effect.epoch, key, replica.log.now)
            replica.leading_epoch = effect.epoch
        elif effect.leader_id < 0:
            self.trace(name_of(key), f"knows no leader of epoch {effect.epoch}")
        else:
            self.trace(name_of(key), f"follows {actor(effect.leader_id)} in epoch {effect.epoch}")

    def _truncate(self, replica: SimulatedReplica, effect: LogTruncated) -> None:
        self.trace(name_of(replica.key), f"truncates its log to {effect.offset}")
        if effect.offset < replica.high_watermark:
            raise QuorumFailure(
                f"no step back: {name_of(replica.key)} truncates to {effect.offset}, below its high watermark "
                f"{replica.high_watermark}"
            )

    def _load(self, replica: SimulatedReplica, effect: SnapshotLoaded) -> None:
        self.trace(name_of(replica.key), f"loads snapshot {effect.snapshot.end_offset}-{effect.snapshot.epoch}")
        self.checks.snapshot(replica.key, replica.log.snapshots[-1])

    def _report(self, replica: SimulatedReplica, effect: Report) -> None:
        self.trace(name_of(replica.key), effect.text)
        # The others may still follow a node whose disk was lost since.
        if effect.is_fault and not self.lost_disks:
            raise QuorumFailure(f"no fault of a peer: {name_of(replica.key)}: {effect.text}")

    def _check_majority(self, leader: SimulatedReplica, offset: int) -> None:
        """Check that what a leader commits survives on a majority of the voters."""
        chain = leader.log.now.chain_at(offset)
        voters = self.voters_of(leader)
        having = [key for key in voters if self._has_durable(key, offset, chain)]
        if len(having) * 2 <= len(voters):
            raise QuorumFailure(
                f"a majority has it: {name_of(leader.key)} commits up to {offset}, which is durable on {len(having)} of "
                f"{len(voters)} voters"
            )

    def voters_of(self, replica: SimulatedReplica) -> list[ReplicaKey]:
        """Return the voters by a replica's log; of a static quorum, those of the configuration."""
        entries = [one.entry for one in replica.log.control_entries()]
        voters = next((one.voters for one in reversed(entries) if isinstance(one, VotersEntry)), None)
        if voters is None:
            voter_ids = () if self.config.is_dynamic else self.config.voter_ids
            return [self.replicas[node_id].key for node_id in voter_ids]
        return [voter.key for voter in voters]

    def _has_durable(self, key: ReplicaKey, offset: int, chain: int | None) -> bool:
        replica = self.replicas[key.node_id]
        if key in self.lost_disks:
            return True  # it may have acknowledged before
        log = replica.log
        return replica.key == key and log.durable_end_offset >= offset and log.now.chain_at(offset) in (chain, None)


def snapshot_offset(replica: SimulatedReplica) -> int:
    """Return where a snapshot of a replica ends: it contains what is committed."""
    return replica.high_watermark


def _static_key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id)


def _request_of(message: Message) -> Request:
    assert message.request is not None
    return message.request


def _answer_of(message: Message) -> AnyAnswer:
    assert message.request is not None
    return cast(AnyAnswer, message.body)


_PERFORM: dict[type[Effect], Callable[[QuorumWorld, SimulatedReplica, Any], None]] = {
    StoreElection: QuorumWorld._store,
    FlushLog: QuorumWorld._flush_log,
    FlushSnapshot: QuorumWorld._flush_snapshot,
    Send: QuorumWorld._send,
    Answer: QuorumWorld._answer,
    HighWatermarkMoved: QuorumWorld._commit,
    LeaderChanged: QuorumWorld._change_leader,
    LogTruncated: QuorumWorld._truncate,
    SnapshotLoaded: QuorumWorld._load,
    Report: QuorumWorld._report,
}
