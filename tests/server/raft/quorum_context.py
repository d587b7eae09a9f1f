"""A raft core in a test's hands: its log in memory, its effects by class, and a small network of several cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.error_codes import NONE
from kcli.server.raft.consensus import RaftCore
from kcli.server.raft.messages import (
    BOOTSTRAP_SNAPSHOT_ID,
    NO_NODE,
    Answer,
    AnswerArrived,
    AnyAnswer,
    AppendedControl,
    BeginQuorumEpoch,
    ControlEntry,
    Effect,
    Election,
    ElectionStored,
    EpochEnd,
    Fetch,
    FlushLog,
    FlushSnapshot,
    KRaftVersionEntry,
    ListenerEndpoint,
    LogFlushed,
    ReplicaKey,
    Request,
    RequestArrived,
    RequestFailed,
    Send,
    SnapshotFlushed,
    SnapshotId,
    StoreElection,
    TimeReached,
    Vote,
    VoteAnswer,
    VoterNode,
    VotersEntry,
)
from kcli.server.raft.replica import RaftCoreConfig

LISTENER = "CONTROLLER"
CLUSTER = "a cluster"
T = TypeVar("T")


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, Uuid(bytes([node_id]) * 16))


def endpoints(node_id: int) -> tuple[ListenerEndpoint, ...]:
    return (ListenerEndpoint(LISTENER, "localhost", 9990 + node_id),)


def voter(node_id: int, *, is_static: bool = False) -> VoterNode:
    if is_static:
        return VoterNode(ReplicaKey(node_id), endpoints(node_id))
    return VoterNode(key(node_id), endpoints(node_id), 0, 1)


class Entry(NamedTuple):
    """One record: of a control record its entry, else any value."""

    epoch: int
    value: object
    batch: int  # the offset of the first record of its batch


class Batches(tuple[Entry, ...]):
    """The records of a Fetch answer, or the bytes of a snapshot: opaque to the core."""

    base_offset = 0


def is_control(value: object) -> bool:
    return isinstance(value, KRaftVersionEntry | VotersEntry) or type(value).__name__ == "LeaderChangeEntry"


class MemoryLog:
    """A log of values. A crash keeps what is below `flushed`."""

    def __init__(self, entries: Sequence[Entry] = (), snapshots: dict[SnapshotId, tuple[object, ...]] | None = None) -> None:
        self.entries = list(entries)
        self.start_offset = 0
        self.snapshots = dict(snapshots or {})
        self.parts: dict[SnapshotId, list[object]] = {}
        self.started_epochs: list[int] = []
        self.high_watermark = 0

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.latest_snapshot.epoch if self.latest_snapshot else 0

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return min(self.snapshots, default=None)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self.snapshots, default=None)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        if epoch >= self.last_epoch:
            return EpochEnd(self.last_epoch, self.end_offset)
        earliest = self.earliest_snapshot
        found = EpochEnd(earliest.epoch if earliest else 0, self.start_offset)
        for delta, entry in enumerate(self.entries):
            if entry.epoch <= epoch:
                found = EpochEnd(entry.epoch, self.start_offset + delta + 1)
        return found

    def control_entries(self) -> list[AppendedControl]:
        latest = self.latest_snapshot
        found = []
        if latest is not None:
            found = [AppendedControl(latest.end_offset - 1, value) for value in self.snapshots[latest] if is_control(value)]  # type: ignore[arg-type]
        for delta, entry in enumerate(self.entries):
            offset = self.start_offset + delta
            if is_control(entry.value) and (latest is None or offset >= latest.end_offset):
                found.append(AppendedControl(offset, entry.value))  # type: ignore[arg-type]
        return found

    def start_epoch(self, epoch: int) -> None:
        self.started_epochs.append(epoch)

    def _append(self, epoch: int, values: Sequence[object]) -> int:
        base = self.end_offset
        self.entries += [Entry(epoch, value, base) for value in values]
        return base

    def append_control(self, epoch: int, entries: Sequence[ControlEntry], now_ms: int) -> int:
        return self._append(epoch, entries)

    def append_as_leader(self, epoch: int, records: Sequence[object], now_ms: int) -> int:
        return self._append(epoch, records) + len(records) - 1

    def append_as_follower(self, epoch: int, records: Sequence[Entry], now_ms: int) -> list[AppendedControl]:
        found = []
        for entry in records:
            if entry.epoch > epoch:
                break
            if is_control(entry.value):
                found.append(AppendedControl(self.end_offset, entry.value))  # type: ignore[arg-type]
            self.entries.append(entry)
        return found

    def truncate_to(self, offset: int) -> None:
        del self.entries[offset - self.start_offset :]

    def update_high_watermark(self, offset: int) -> None:
        assert offset >= self.high_watermark
        self.high_watermark = offset

    def read(self, offset: int, max_bytes: int) -> Batches | None:
        """A record counts as a byte; a batch is read whole, and at least one."""
        found: list[Entry] = []
        for entry in self.entries[offset - self.start_offset :]:
            if found and len(found) >= max_bytes and entry.batch != found[-1].batch:
                break
            found.append(entry)
        return Batches(found) or None

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return len(self.snapshots[snapshot]) if snapshot in self.snapshots else None

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[object, ...]:
        return self.snapshots[snapshot][position : position + max_bytes]

    def begin_snapshot(self, snapshot: SnapshotId) -> None:
        self.parts[snapshot] = []

    def append_snapshot(self, snapshot: SnapshotId, data: Sequence[object]) -> None:
        self.parts[snapshot] += data

    def drop_snapshot(self, snapshot: SnapshotId) -> None:
        del self.parts[snapshot]

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        self.snapshots = {snapshot: tuple(self.parts.pop(snapshot))}
        self.entries, self.start_offset = [], snapshot.end_offset


class FixedRandom:
    """Random numbers that a test sets."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def randint(self, a: int, b: int) -> int:
        return min(a + self.value, b)


class Context:
    """One core; its disk answers at once unless `holds_disk` is set."""

    def __init__(
        self,
        node_id: int = 1,
        voters: Sequence[int] = (1, 2, 3),
        *,
        stored: Election | None = None,
        kraft_version: int = 1,
        log: MemoryLog | None = None,
        random: int = 0,
        starts: bool = True,
        **settings: object,
    ) -> None:
        self.now_ms = 10_000
        if log is None:
            bootstrap = (KRaftVersionEntry(1), VotersEntry(tuple(map(voter, voters))))
            log = MemoryLog(snapshots={BOOTSTRAP_SNAPSHOT_ID: bootstrap} if kraft_version else {})
        self.log = log
        self.rng = FixedRandom(random)
        static = () if kraft_version else tuple(voter(one, is_static=True) for one in voters)
        self.config = RaftCoreConfig(key(node_id), CLUSTER, LISTENER, endpoints(node_id), static)._replace(**settings)  # type: ignore[arg-type]
        self.core = RaftCore(self.config, self.log, self.rng)
        self.stored = stored
        self.holds_disk = False
        self.effects: list[Effect] = []
        self._disk: list[Effect] = []
        self._request_id = 0
        if starts:
            self._take(self.core.start(stored, self.now_ms))

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, StoreElection | FlushLog | FlushSnapshot):
                self._disk.append(effect)
        if not self.holds_disk:
            self.finish_disk()

    def finish_disk(self) -> None:
        """Let all that is being stored and flushed become durable."""
        while self._disk:
            effect = self._disk.pop(0)
            if isinstance(effect, StoreElection):
                self.stored = effect.election
                self.handle(ElectionStored(effect.version))
            elif isinstance(effect, FlushLog):
                self.handle(LogFlushed(effect.end_offset))
            elif isinstance(effect, FlushSnapshot):
                self.handle(SnapshotFlushed(effect.snapshot))

    def handle(self, event: object) -> None:
        self._take(self.core.handle(event, self.now_ms))  # type: ignore[arg-type]

    def effects_of(self, kind: type[T]) -> list[T]:
        """Return the effects of a class since the last call of `forget`."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def forget(self) -> None:
        self.effects = []

    # ------------------------------------------------------------------------------------------------- scripted peers

    def sent(self, kind: type[T]) -> list[tuple[Send, T]]:
        """Return the requests of a class that were sent since `forget`."""
        return [(send, send.request) for send in self.effects_of(Send) if isinstance(send.request, kind)]

    def ask(self, request: Request) -> AnyAnswer | None:
        """Hand a request in and return the answer, None if it waits."""
        self._request_id += 1
        self.handle(RequestArrived(self._request_id, request))
        return self.answered(self._request_id)

    def answered(self, request_id: int | None = None) -> AnyAnswer | None:
        wanted = self._request_id if request_id is None else request_id
        return next((one.answer for one in self.effects_of(Answer) if one.request_id == wanted), None)

    def reply(self, send: Send, answer: AnyAnswer) -> None:
        self.handle(AnswerArrived(send.correlation_id, answer))

    def advance(self, ms: int) -> None:
        """Let time pass, with each deadline on the way."""
        until_ms = self.now_ms + ms
        while self.core.deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.core.deadline_ms)
            self.handle(TimeReached())
        self.now_ms = until_ms
        self.handle(TimeReached())

    def append(self, *values: object) -> int:
        offset = self.core.append(self.core.quorum.epoch, Batches(values), self.now_ms)  # type: ignore[arg-type]
        self._take(self.core.take_effects(self.now_ms))
        return offset

    @property
    def state(self) -> tuple[str, int, int]:
        quorum = self.core.quorum
        return (quorum.role.value, quorum.epoch, quorum.leader_id)


class Network:
    """Several cores whose messages arrive at once, unless a link is cut."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.nodes = {context.config.local.node_id: context for context in contexts}
        self.cut: Callable[[int, int], bool] = lambda source, target: False
        self._pending: dict[tuple[int, int], tuple[int, Send]] = {}
        self._next_id = 1000
        self.settle()

    def settle(self) -> None:
        """Deliver until there is no message left."""
        moved = True
        while moved:
            moved = False
            for node_id, node in list(self.nodes.items()):
                effects, node.effects = node.effects, []
                for effect in effects:
                    moved = self._deliver(node_id, effect) or moved

    def _deliver(self, source: int, effect: Effect) -> bool:
        if isinstance(effect, Send):
            target = effect.destination.port - 9990
            if target not in self.nodes:
                self.nodes[source].handle(RequestFailed(effect.correlation_id))
                return True
            if not self.cut(source, target):
                self._next_id += 1
                self._pending[target, self._next_id] = (source, effect)
                self.nodes[target].handle(RequestArrived(self._next_id, effect.request))
                return True
        elif isinstance(effect, Answer) and (source, effect.request_id) in self._pending:
            asker, send = self._pending.pop((source, effect.request_id))
            if asker in self.nodes and not self.cut(source, asker):
                self.nodes[asker].handle(AnswerArrived(send.correlation_id, effect.answer))
                return True
        return False

    def advance(self, ms: int) -> None:
        """Let time pass on all nodes, each deadline in its order."""
        until_ms = max(node.now_ms for node in self.nodes.values()) + ms
        while True:
            node = min(self.nodes.values(), key=lambda one: one.core.deadline_ms)
            if node.core.deadline_ms > until_ms:
                break
            for one in self.nodes.values():
                one.now_ms = max(one.now_ms, node.core.deadline_ms)
            node.handle(TimeReached())
            self.settle()
        for one in self.nodes.values():
            one.now_ms = until_ms
        self.settle()

    @property
    def leaders(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.items() if node.core.quorum.is_leader]


# ----------------------------------------------------------------------------------------------- a core in a given role


def ready(role: str, **settings: object) -> Context:
    """Return node 1 of the voters 1, 2 and 3 in a role, by the messages that lead there; a follower has leader 2 in epoch 5."""
    node = Context(1, (1, 2, 3), **settings)  # type: ignore[arg-type]
    if role == "follower":
        node.ask(BeginQuorumEpoch(CLUSTER, 2, 5, key(1), endpoints(2)))
    if role in ("prospective", "candidate", "leader", "resigned"):
        node.forget()
        node.advance(1000)
    if role in ("candidate", "leader", "resigned"):
        grant(node, 2)
    if role in ("leader", "resigned"):
        grant(node, 2)
    if role == "resigned":
        node._take(node.core.resign_epoch(node.core.quorum.epoch, node.now_ms))
    assert node.state[0] == role, node.state
    return node


def grant(node: Context, *voters: int, is_granted: bool = True) -> None:
    """Answer the latest Vote to each of these voters."""
    for one in voters:
        send = next(send for send, _ in reversed(node.sent(Vote)) if send.destination.node_id == one)
        node.reply(send, VoteAnswer(NONE, node.core.quorum.epoch, NO_NODE, is_granted))


def commit_epoch(node: Context, *voters: int) -> None:
    """Let voters fetch to the end of the leader's log."""
    for one in voters or (2,):
        node.ask(fetch(node, one))


def fetch(node: Context, replica: int, offset: int | None = None, **changes: object) -> Fetch:
    """Return the Fetch of a replica whose log equals the leader's up to `offset`."""
    log, epoch = node.log, node.core.quorum.epoch
    offset = log.end_offset if offset is None else offset
    last_epoch = log.entries[offset - log.start_offset - 1].epoch if offset > log.start_offset else 0
    return Fetch(CLUSTER, key(replica), epoch, offset, last_epoch)._replace(**changes)  # type: ignore[arg-type]
