"""Small quorums, searched completely: every order of what can happen, up to a bound, on the raft core itself.

A state is a world (kcli.simulator.quorum.world) with the messages under way and what may still happen (Bounds). From each state
all steps are taken, and the checks are made after each:

    step                                       bounded by
    -----------------------------------------  ---------------------------------------------------------------------------
    a message arrives, in any order            nothing: all that are under way
    quorum-state, the log or a snapshot is     nothing: what is requested
    durable
    the deadline of a replica is reached       `timeouts`, and epochs up to `epochs`
    a value is appended at each leader or      `appends`
    former leader
    a replica ends and starts again            `crashes`; once with everything that it wrote, once with what it flushed only
    a message is lost                          `losses`
    a tool adds or removes a voter             `changes`, each one once

A follower that has fetched grants no pre-vote. So another election needs two timeouts, or the crash of a leader, which then
resigns.

Time is abstract: each replica has its own clock, which only its own deadlines move. So a deadline may be reached whenever it is
set, before or after everything that happens elsewhere; of one replica the deadlines are reached in their order.

States with one digest are merged. Numbers that only identify (correlation ids, ids of requests) are given out again as soon as
they are free, versions and times are relative, so that paths that differ in them meet. An answer that its receiver does not
expect any more is removed, since the core ignores it. The digest is a hash of 64 bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kcli.server.raft.messages import AddRaftVoter, RemoveRaftVoter, ReplicaKey, Request
from kcli.server.raft.quorum_state import NEVER_MS
from kcli.simulator.quorum.checks import QuorumFailure
from kcli.simulator.quorum.memory_log import LogState
from kcli.simulator.quorum.message_text import CLIENT, text_of
from kcli.simulator.quorum.world import (
    CLUSTER_ID,
    Message,
    QuorumWorld,
    SimulatedReplica,
    WorldConfig,
    directory_id_of,
    endpoints_of,
)


class Bounds(NamedTuple):
    """What may still happen."""

    timeouts: int = 2
    epochs: int = 2
    appends: int = 1
    crashes: int = 0
    losses: int = 0
    changes: tuple[Request, ...] = ()
    snapshots: int = 0


class Step(NamedTuple):
    """A step: its kind, the replica, and the message or the number that it is about."""

    kind: str
    node_id: int
    message: Message | None = None
    number: int = 0

    def __str__(self) -> str:
        """The step in words."""
        text = f"{self.kind} n{self.node_id}"
        return (
            text
            if self.message is None
            else f"{self.kind} {text_of(self.message.body)} of {self.message.source} to n{self.node_id}"
        )


class State(NamedTuple):
    """A state of the search."""

    world: QuorumWorld
    under_way: tuple[Message, ...]
    left: Bounds


class Found(NamedTuple):
    """The result of a search; `failure` is empty if no guarantee was violated, `trace` is that of the shortest way to it."""

    states: int
    steps: int
    is_complete: bool
    failure: str
    trace: list[str]


_TWO = WorldConfig((1, 2), (1, 2))
_THREE = WorldConfig()
_DYNAMIC = WorldConfig(is_dynamic=True)
_TWO_OF_THREE = WorldConfig(voter_ids=(1, 2), is_dynamic=True)
_REMOVAL = RemoveRaftVoter(CLUSTER_ID, ReplicaKey(3, directory_id_of(3, 1)))
_ADDITION = AddRaftVoter(CLUSTER_ID, ReplicaKey(3, directory_id_of(3, 1)), endpoints_of(3))

# name -> (the quorum, the bounds, whether a leader is elected first); `SMALL` is searched in each run of CI, with the first
# states of `TOGETHER`, and `LARGE` by hand.
SMALL = {
    "two voters elect a leader": (_TWO, Bounds(timeouts=2, epochs=1, appends=0), False),
    "three voters; an append and a pre-vote": (_THREE, Bounds(timeouts=1, appends=1), True),
    "two voters; an append, a crash": (_TWO, Bounds(timeouts=0, crashes=1), True),
    "two voters; an append, a lost message, a pre-vote": (_TWO, Bounds(timeouts=1, losses=1), True),
    "three voters; one is removed, an append": (_DYNAMIC, Bounds(timeouts=0, changes=(_REMOVAL,)), True),
    "two voters; two appends, a crash, a lost message": (_TWO, Bounds(timeouts=0, appends=2, crashes=1, losses=1), True),
    "two voters; a third is added, an append, a lost message": (
        _TWO_OF_THREE,
        Bounds(timeouts=0, losses=1, changes=(_ADDITION,)),
        True,
    ),
    "three voters; one is removed, an append, a lost message": (
        _DYNAMIC,
        Bounds(timeouts=0, losses=1, changes=(_REMOVAL,)),
        True,
    ),
}
# Everything together: two elections after the first, two appends, a crash, a lost message, a change of the voters.
_EVERYTHING = Bounds(timeouts=2, epochs=3, appends=2, crashes=1, losses=1)
TOGETHER = {
    "two voters; a third is added, and everything else": (_TWO_OF_THREE, _EVERYTHING._replace(changes=(_ADDITION,)), True),
    "three voters; one is removed, and everything else": (_DYNAMIC, _EVERYTHING._replace(changes=(_REMOVAL,)), True),
}
LARGE = {
    "two voters; an append, the leader crashes, another election": (_TWO, Bounds(timeouts=1, crashes=1), True),
    "three voters; two elections at once": (_THREE, Bounds(timeouts=2, appends=0), True),
    "three voters elect a leader": (_THREE, Bounds(timeouts=2, epochs=2, appends=1), False),
    "two voters; two elections, two appends, a crash, a lost message": (
        _TWO,
        Bounds(timeouts=2, epochs=3, appends=2, crashes=1, losses=1),
        True,
    ),
    "three voters; two elections, two appends, a crash, a lost message": (
        _THREE,
        Bounds(timeouts=2, epochs=3, appends=2, crashes=1, losses=1),
        True,
    ),
    "three voters; one is removed, two elections, an append, a crash": (
        _DYNAMIC,
        Bounds(timeouts=2, epochs=3, appends=1, crashes=1, changes=(_REMOVAL,)),
        True,
    ),
    "two voters; a third is added, two elections, an append, a crash": (
        _TWO_OF_THREE,
        Bounds(timeouts=2, epochs=3, appends=1, crashes=1, changes=(_ADDITION,)),
        True,
    ),
    **TOGETHER,
}


class FirstChoice:
    """The random numbers of a small world: timeouts are abstract, and the first of several nodes is asked."""

    def randint(self, a: int, b: int) -> int:
        """Return the least number."""
        return a


def _no_trace(actor: str, text: str) -> None:
    pass


def begin(config: WorldConfig, bounds: Bounds, *, is_led: bool, trace: Callable[[str, str], None] = _no_trace) -> State:
    """Start all replicas; with `is_led`, let the first one be elected, all others follow it, and everything arrive."""
    world = QuorumWorld(config._replace(is_time_abstract=True), FirstChoice(), trace)
    state = State(world, (), bounds)
    for replica in world.replicas.values():
        world.start(replica)
    state = _settled(state)
    if is_led:
        while not any(_leads(replica) for replica in world.replicas.values()):
            state = _settled(_apply(state, Step("time", config.voter_ids[0])))
            world = state.world
        while (lost := next((one for one in state.world.replicas.values() if not _has_leader(one)), None)) is not None:
            state = _settled(_apply(state, Step("time", lost.node_id)))
    return state._replace(left=bounds)


def _has_leader(replica: SimulatedReplica) -> bool:
    return replica.core is not None and replica.core.quorum.leader_id >= 0


def _leads(replica: SimulatedReplica) -> bool:
    return replica.core is not None and replica.core.quorum.is_leader


def _settled(state: State) -> State:
    """Let everything arrive and be flushed, in the order in which it was sent."""
    state = _collected(state)
    while True:
        step = next((step for step in _steps(state) if step.kind in ("deliver", "store", "flush", "receive")), None)
        if step is None:
            return state
        state = _apply(state, step)


# ----------------------------------------------------------------------------------------------------------------- steps


def _steps(state: State) -> Iterator[Step]:
    """Yield all steps that are possible in a state."""
    world, left = state.world, state.left
    for message in state.under_way:
        yield Step("deliver", message.target, message)
        if left.losses:
            yield Step("lose", message.target, message)
    for node_id, replica in world.replicas.items():
        core = replica.core
        if core is None:
            continue
        if replica.storing is not None:
            yield Step("store", node_id)
        if replica.log.flushing is not None:
            yield Step("flush", node_id)
        if replica.flushing_snapshot is not None:
            yield Step("receive", node_id)
        if left.timeouts and core.deadline_ms < NEVER_MS:
            yield Step("time", node_id)
        if left.appends and replica.leading_epoch is not None:
            yield Step("append", node_id)
        if left.snapshots and replica.high_watermark > 0:
            yield Step("snapshot", node_id)
        if left.crashes:
            yield Step("crash", node_id, number=-1)
            if len(replica.log.states) > 1 or replica.storing is not None:
                yield Step("crash", node_id, number=0)
        if replica.leading_epoch is not None:
            for number in range(len(left.changes)):
                yield Step("change", node_id, number=number)


def _apply(state: State, step: Step) -> State:
    """Return the state after a step. Raises QuorumFailure."""
    world = state.world.copy_with(step.node_id) if step.kind != "lose" else state.world
    under_way, left = state.under_way, state.left
    if step.message is not None:
        at = under_way.index(step.message)
        under_way = (*under_way[:at], *under_way[at + 1 :])
    replica = world.replicas[step.node_id]
    match step.kind:
        case "deliver":
            assert step.message is not None
            world.deliver(step.message)
        case "lose":
            left = left._replace(losses=left.losses - 1)
        case "store":
            world.store(replica)
        case "flush":
            world.flush(replica)
        case "receive":
            world.receive(replica)
        case "time":
            assert replica.core is not None
            replica.clock_ms = replica.core.deadline_ms
            world.time(replica)
            left = left._replace(timeouts=left.timeouts - 1)
        case "append":
            world.append(replica, left.appends)
            left = left._replace(appends=left.appends - 1)
        case "snapshot":
            world.snapshot(replica)
            left = left._replace(snapshots=left.snapshots - 1)
        case "crash":
            world.crash(replica, step.number, is_stored=step.number < 0)
            world.start(replica)
            left = left._replace(crashes=left.crashes - 1)
        case "change":
            world.request(replica, left.changes[step.number])
            left = left._replace(changes=(*left.changes[: step.number], *left.changes[step.number + 1 :]))
    return _collected(State(world, under_way, left), step.node_id if step.kind != "lose" else None)


def _collected(state: State, node_id: int | None = None) -> State:
    """Take the messages that were sent, without the answers that no replica expects; reuse the free numbers of a replica."""
    world = state.world
    sent, world.outbox, world.answers = world.outbox, [], []
    under_way = [message for message in (*state.under_way, *sent) if _is_expected(world, message)]
    if node_id is not None:
        _reuse_numbers(world, world.replicas[node_id], under_way)
    return state._replace(under_way=tuple(sorted(under_way, key=_order)))


def _order(message: Message) -> tuple[int, int, int, int, bool]:
    return (*message[:4], message.correlation_id, message.request is None)  # type: ignore[return-value]


def _is_expected(world: QuorumWorld, message: Message) -> bool:
    if message.target == CLIENT:
        return False
    if message.request is None:
        return True
    replica = world.replicas[message.target]
    core = replica.core
    return core is not None and replica.life == message.target_life and core.requests.is_expected(message.correlation_id)


def _reuse_numbers(world: QuorumWorld, replica: SimulatedReplica, under_way: list[Message]) -> None:
    """Let the numbers that a replica gives out next be the lowest ones above those in use."""
    core, own = replica.core, (replica.node_id, replica.life)
    if core is None:
        return
    used = [one.correlation_id for one in under_way if own in ((one.source, one.source_life), (one.target, one.target_life))]
    for other in world.replicas.values():
        used += [one.correlation_id for one in other.waiting.values() if (one.source, one.source_life) == own]
    core.requests.reuse_above(max(used, default=-1))
    replica.request_count = max(replica.waiting, default=0)


def _digest(state: State) -> int:
    world = state.world
    replicas = tuple(_replica_digest(replica) for replica in world.replicas.values())
    return hash((replicas, state.under_way, state.left, world.checks.digest()))


def _replica_digest(replica: SimulatedReplica) -> int:
    if replica.known_digest is None:
        core, log = replica.core, replica.log
        replica.known_digest = hash(
            (
                *(replica.life, replica.election, replica.flushing_snapshot, replica.high_watermark, replica.leading_epoch),
                None if replica.storing is None else replica.storing.election,
                tuple(replica.waiting.items()),
                tuple(_log_digest(one) for one in log.states),
                *(None if log.flushing is None else _log_digest(log.flushing), log.snapshots, log.part),
                None if core is None else core.digest(replica.clock_ms),
            )
        )
    return replica.known_digest


def _log_digest(log: LogState) -> tuple[object, ...]:
    return (log.start_offset, log.end_offset, log.chain_at(log.end_offset))


# ---------------------------------------------------------------------------------------------------------------- search


def search(config: WorldConfig, bounds: Bounds, *, is_led: bool, most_states: int = 10**9) -> Found:
    """Take all steps from all states, in the order of the number of steps to them, until `most_states` were found."""
    try:
        first = begin(config, bounds, is_led=is_led)
    except QuorumFailure as error:
        return Found(0, 0, False, str(error), _trace_of(config, bounds, [], is_led=is_led))
    ways: dict[int, tuple[int, Step | None]] = {_digest(first): (0, None)}
    queue = deque([(_digest(first), first)])
    steps = 0
    while queue and len(ways) < most_states:
        key, state = queue.popleft()
        for step in _steps(state):
            steps += 1
            try:
                following = _apply(state, step)
            except Exception as error:
                failure = str(error) if isinstance(error, QuorumFailure) else f"{type(error).__name__}: {error}"
                way = [*_way_to(key, ways), step]
                return Found(len(ways), steps, False, failure, _trace_of(config, bounds, way, is_led=is_led))
            digest = _digest(following)
            if digest not in ways and _epoch(following.world) <= bounds.epochs:
                ways[digest] = (key, step)
                queue.append((digest, following))
    return Found(len(ways), steps, not queue, "", [])


def _epoch(world: QuorumWorld) -> int:
    return max(0 if replica.core is None else replica.core.quorum.epoch for replica in world.replicas.values())


def _way_to(key: int, ways: dict[int, tuple[int, Step | None]]) -> list[Step]:
    way: list[Step] = []
    while True:
        key, step = ways[key]
        if step is None:
            return way[::-1]
        way.append(step)


def _trace_of(config: WorldConfig, bounds: Bounds, way: list[Step], *, is_led: bool) -> list[str]:
    """Return what happens on the way to a failure."""
    lines: list[str] = []
    try:
        state = begin(config, bounds, is_led=is_led, trace=lambda actor, text: lines.append(f"{actor:<4} {text}"))
        for step in way:
            lines.append(f"---- {step}")
            state = _apply(state, step)
    except Exception as error:
        lines.append(f"{type(error).__name__}: {error}")
    return lines
