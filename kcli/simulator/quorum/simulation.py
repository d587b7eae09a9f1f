"""One quorum from a seed: replicas on a bad network and on bad disks, then a healed world in which all must become equal.

    what fails      how
    --------------  --------------------------------------------------------------------------------------------------
    network         messages are delayed, overtake one another, are lost, or arrive twice; links are cut one way or both;
                    a request to a node that is down may fail at once or get no answer
    replicas        crash, with and without a loss of power at any point between two flushes; pause; resign
    disks           flush slowly, a snapshot for longer than the fetch timeout; are replaced by empty ones, if the voters
                    that are left are a majority (dynamic quorums)
    tools           add and remove voters; values are appended at the leader, or a former one; snapshots are made and
                    the log below is removed

The seed chooses the number of voters and observers, static or dynamic voters, and how bad it all is. The checks
(kcli.simulator.quorum.checks) are made after each event. At the end nothing fails any more: within ELECTION_BOUND_MS one
leader is followed by all, and within as much again all logs are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from kcli.server.raft.messages import AddRaftVoter, RemoveRaftVoter, ReplicaKey
from kcli.server.raft.quorum_state import NEVER_MS
from kcli.simulator.quorum.checks import QuorumFailure, name_of
from kcli.simulator.quorum.message_text import CLIENT
from kcli.simulator.quorum.world import CLUSTER_ID, Message, QuorumWorld, SimulatedReplica, WorldConfig, endpoints_of
from kcli.simulator.trace import Trace, failure_of
from kcli.simulator.virtual_time import Action, VirtualTime

START_MS = 1_000_000
DEFAULT_STEPS = 1500
ELECTION_BOUND_MS = 20_000
MAX_EVENTS = 100_000


class Conditions(NamedTuple):
    """How bad the world of a seed is; shares are between 0 and 1."""

    delay_ms: int
    long_delay_ms: int
    long_delay_share: float
    lost_share: float
    doubled_share: float
    flush_ms: int
    fault_interval_ms: int
    append_interval_ms: int


class QuorumResult(NamedTuple):
    """The result of a seed; `failure` is empty if no guarantee was violated."""

    seed: int
    failure: str
    digest: str
    tail: list[str]
    epochs: int  # that had a leader
    committed: int
    crashes: int
    snapshots: int
    voter_changes: int
    virtual_ms: int

    @property
    def summary(self) -> str:
        """What happened, in one line."""
        return (
            f"{self.epochs} leaders, {self.committed} records committed, {self.crashes} crashes, {self.snapshots} snapshots, "
            f"{self.voter_changes} changes of voters, {self.virtual_ms / 1000:.1f} s of virtual time"
        )


class QuorumSimulation:
    """One run."""

    def __init__(self, seed: int, *, steps: int = DEFAULT_STEPS, write: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.steps = steps
        self._rng = Random(f"{seed} quorum")
        self.time = VirtualTime(Random(f"{seed} order"), START_MS)
        self.trace = Trace(lambda: self.time.now_ms, write)
        self.conditions = _conditions(self._rng)
        self.world = QuorumWorld(_world_config(self._rng), Random(f"{seed} cores"), self.trace.add)
        self._cuts: set[tuple[int, int]] = set()
        self._paused_until_ms: dict[int, int] = {}
        self._timers: dict[int, tuple[int, Action]] = {}
        self._flushes: dict[tuple[int, str], object] = {}
        # A disk is not lost while a sound voter may be removed, or the rest may be no majority.
        self._loses_disks = self.world.config.is_dynamic and self._rng.random() < 0.5
        self._is_calm = False
        self._events = self._values = self._crashes = self._snapshots = self._voter_changes = 0

    def run(self) -> QuorumResult:
        """Run the seed and return the outcome; a failure is returned, not raised."""
        is_led = partial(self._until, "one leader that all follow", self._is_led)
        is_equal = partial(self._until, "equal logs", self._is_equal)
        failure = failure_of([self._run_faults, self._heal, is_led, is_equal], QuorumFailure)
        checks = self.world.checks
        return QuorumResult(
            self.seed,
            failure,
            self.trace.digest(),
            list(self.trace.tail),
            len(checks.leaders),
            checks.committed_end,
            self._crashes,
            self._snapshots,
            self._voter_changes,
            self.time.now_ms - START_MS,
        )

    # ---------------------------------------------------------------------------------------------------------- phases

    def _run_faults(self) -> None:
        for replica in self.world.replicas.values():
            self.time.after(self._rng.randrange(200), lambda replica=replica: self._start(replica))  # type: ignore[misc]
        self.time.after(self._rng.randrange(2000), self._append)
        self.time.after(self._rng.randrange(2000), self._fault)
        for _ in range(self.steps):
            self._run_next()

    def _heal(self) -> None:
        self.trace.add("world", "heals")
        self._is_calm = True
        self._cuts.clear()
        self._paused_until_ms.clear()
        for replica in self.world.replicas.values():
            self._start(replica)

    def _until(self, what: str, is_done: Callable[[], bool]) -> None:
        end_ms = self.time.now_ms + ELECTION_BOUND_MS
        while not is_done():
            if self.time.now_ms > end_ms or not self._run_next():
                raise QuorumFailure(f"a healed world: no {what} after {ELECTION_BOUND_MS} ms")

    def _run_next(self) -> bool:
        self._events += 1
        if self._events > MAX_EVENTS:
            raise QuorumFailure(f"a healed world: {MAX_EVENTS} events, and no end")
        return self.time.run_next()

    def _is_led(self) -> bool:
        cores = [replica.core for replica in self.world.replicas.values()]
        return (
            all(core is not None and core.quorum.leader_id >= 0 for core in cores)
            and len({core.quorum.epoch for core in cores if core is not None}) == 1
            and any(core is not None and core.quorum.is_leader for core in cores)
        )

    def _is_equal(self) -> bool:
        logs = [replica.log.now for replica in self.world.replicas.values()]
        end_offset = logs[0].end_offset
        chain = logs[0].chain_at(end_offset)
        return (
            self._is_led()
            and all(log.end_offset == end_offset and log.chain_at(end_offset) == chain for log in logs)
            and all(replica.high_watermark == end_offset for replica in self.world.replicas.values())
        )

    # ---------------------------------------------------------------------------------------------------------- events

    def _step(self, replica: SimulatedReplica, run: Callable[[], object]) -> None:
        """Run a step of a replica that is up, or later if it is paused; then schedule what it led to."""
        paused_until_ms = self._paused_until_ms.get(replica.node_id, 0)
        if self.time.now_ms < paused_until_ms:
            self.time.at(paused_until_ms, lambda: self._step(replica, run))
            return
        replica.clock_ms = self.time.now_ms
        run()
        self._schedule(replica)

    def _schedule(self, replica: SimulatedReplica) -> None:
        outbox, self.world.outbox = self.world.outbox, []
        for message in outbox:
            self._send(message)
        self._schedule_flush(replica, "election", replica.storing, self.world.store)
        self._schedule_flush(replica, "log", replica.log.flushing, self.world.flush)
        self._schedule_flush(replica, "snapshot", replica.flushing_snapshot, self.world.receive)
        core = replica.core
        deadline_ms = NEVER_MS if core is None else core.deadline_ms
        earlier = self._timers.get(replica.node_id)
        if earlier is not None and earlier[0] != deadline_ms:
            earlier[1].cancel()
        if earlier is None or earlier[0] != deadline_ms:
            action = self.time.at(deadline_ms, lambda: self._reach(replica, deadline_ms))
            self._timers[replica.node_id] = (deadline_ms, action)

    def _reach(self, replica: SimulatedReplica, deadline_ms: int) -> None:
        def reach() -> None:
            if replica.core is not None:
                del self._timers[replica.node_id]
                self.world.time(replica)

        if self._timers.get(replica.node_id, (0,))[0] == deadline_ms:
            self._step(replica, reach)

    def _schedule_flush(
        self, replica: SimulatedReplica, what: str, flushing: object, run: Callable[[SimulatedReplica], bool]
    ) -> None:
        place = (replica.node_id, what)
        if flushing is None or self._flushes.get(place) is flushing:
            return
        self._flushes[place] = flushing
        rng, flush_ms = self._rng, self.conditions.flush_ms
        most_ms = (300 if what == "snapshot" else 100) * flush_ms
        delay_ms = rng.randrange(flush_ms + 1) if rng.random() < 0.95 else rng.randrange(most_ms + 1)

        def flushed() -> None:
            if self._flushes.get(place) is flushing:
                del self._flushes[place]
                run(replica)

        self.time.after(delay_ms, lambda: self._step(replica, flushed))

    def _send(self, message: Message) -> None:
        conditions, rng = self.conditions, self._rng
        is_lossy = not self._is_calm and CLIENT not in (message.source, message.target)
        if is_lossy and rng.random() < conditions.lost_share:
            return
        copies = 2 if is_lossy and rng.random() < conditions.doubled_share else 1
        for _ in range(copies):
            is_long = not self._is_calm and rng.random() < conditions.long_delay_share
            delay_ms = rng.randrange(conditions.long_delay_ms if is_long else conditions.delay_ms + 1)
            self.time.after(delay_ms, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        if (message.source, message.target) in self._cuts:
            return
        if message.target == CLIENT:
            self.world.deliver(message)
            return
        if isinstance(message.body, AddRaftVoter) and message.body.voter in self.world.lost_disks:
            return  # a voter that can never be heard: the others could be too few, as those of Kafka
        replica = self.world.replicas[message.target]
        if replica.core is None:
            if message.request is None and message.source != CLIENT and self._rng.random() < 0.7:
                sender = self.world.replicas[message.source]
                self.time.after(1, lambda: self._step(sender, lambda: self.world.fail(message)))
            return
        self._step(replica, lambda: self.world.deliver(message))

    # ---------------------------------------------------------------------------------------------------------- faults

    def _append(self) -> None:
        if self._is_calm:
            return
        for replica in self.world.replicas.values():
            if replica.leading_epoch is not None:
                self._values += 1
                value = self._values
                self._step(replica, lambda replica=replica, value=value: self.world.append(replica, value))  # type: ignore[misc]
        self.time.after(self._rng.randrange(2 * self.conditions.append_interval_ms), self._append)

    def _fault(self) -> None:
        if self._is_calm:
            return
        faults = (
            *(self._crash, self._crash, self._pause, self._pause, self._cut, self._cut, self._heal_cuts, self._heal_cuts),
            *(self._snapshot, self._snapshot, self._resign, self._add_voter, self._remove_voter, self._replace_disk),
        )
        self._rng.choice(faults)(self._rng.choice(list(self.world.replicas.values())))
        self.time.after(self._rng.randrange(2 * self.conditions.fault_interval_ms), self._fault)

    def _start(self, replica: SimulatedReplica) -> None:
        if replica.core is None:
            self._step(replica, lambda: self.world.start(replica))

    def _crash(self, replica: SimulatedReplica) -> None:
        if replica.core is None:
            return
        rng = self._rng
        self._crashes += 1
        is_power_lost = rng.random() < 0.6
        survivor = rng.randrange(len(replica.log.states)) if is_power_lost else -1
        self.world.crash(replica, survivor, is_stored=rng.random() < 0.5)
        for what in ("election", "log", "snapshot"):
            self._flushes.pop((replica.node_id, what), None)
        self._paused_until_ms.pop(replica.node_id, None)
        self.time.after(rng.choice((10, 500, 4000)), lambda: self._start(replica))

    def _pause(self, replica: SimulatedReplica) -> None:
        pause_ms = self._rng.choice((50, 1000, 3000, 6000))
        self.trace.add(name_of(replica.key), f"pauses for {pause_ms} ms")
        self._paused_until_ms[replica.node_id] = self.time.now_ms + pause_ms

    def _cut(self, replica: SimulatedReplica) -> None:
        """Cut a replica off, from all or from one, in one direction or both."""
        others = [one for one in self.world.replicas if one != replica.node_id]
        if not others:
            return
        cut_off = others if self._rng.random() < 0.5 else [self._rng.choice(others)]
        directions = self._rng.choice(("from", "to", "from and to"))
        self.trace.add("network", f"loses what goes {directions} n{replica.node_id} ({' '.join(f'n{one}' for one in cut_off)})")
        for other in cut_off:
            if "from" in directions:
                self._cuts.add((replica.node_id, other))
            if "to" in directions:
                self._cuts.add((other, replica.node_id))

    def _heal_cuts(self, replica: SimulatedReplica) -> None:
        self.trace.add("network", "heals")
        self._cuts.clear()

    def _snapshot(self, replica: SimulatedReplica) -> None:
        if replica.core is not None and self.world.snapshot(replica):
            self._snapshots += 1

    def _resign(self, replica: SimulatedReplica) -> None:
        self._step(replica, lambda: self.world.resign(replica))

    def _add_voter(self, replica: SimulatedReplica) -> None:
        leader = self._leader()
        if leader is None or replica.core is None or replica.key in self.world.voters_of(leader):
            return
        self._voter_changes += 1
        self.world.request(leader, AddRaftVoter(CLUSTER_ID, replica.key, endpoints_of(replica.node_id)))
        self._schedule(leader)

    def _remove_voter(self, replica: SimulatedReplica) -> None:
        leader = self._leader()
        voters = [] if leader is None else self.world.voters_of(leader)
        if leader is None or not voters:
            return
        # A node whose disk was lost is removed first, as an administrator does.
        lost = [key for key in voters if key in self.world.lost_disks]
        removed = self._rng.choice(lost or voters)
        if not lost and (self._loses_disks or not self._has_majority_without(removed)):
            return
        self._voter_changes += 1
        self.world.request(leader, RemoveRaftVoter(CLUSTER_ID, removed))
        self._schedule(leader)

    def _replace_disk(self, replica: SimulatedReplica) -> None:
        """Replace the disk of a node, if the others can go on without it whatever the voters are."""
        leaders = (one.core.quorum.leader for one in self.world.replicas.values() if one.core is not None)
        is_added = any(one.change is not None and one.change.voter == replica.key for one in leaders if one is not None)
        if is_added or not self._loses_disks or not self._has_majority_without(replica.key):
            return
        if self.world.config.voter_ids == (replica.node_id,):
            return  # all have this node as their only bootstrap server: with an empty disk it would find no other one
        if replica.core is not None:
            self._crash(replica)
        self.world.lose_disk(replica)

    def _has_majority_without(self, key: ReplicaKey) -> bool:
        for replica in self.world.replicas.values():
            voters = self.world.voters_of(replica)
            sound = [one for one in voters if one != key and one not in self.world.lost_disks]
            if voters and (len(sound) * 2 <= len(voters) or len(sound) < 2):
                return False
        return True

    def _leader(self) -> SimulatedReplica | None:
        leaders = [one for one in self.world.replicas.values() if one.core is not None and one.core.quorum.is_leader]
        return self._rng.choice(leaders) if leaders else None


def _conditions(rng: Random) -> Conditions:
    return Conditions(
        delay_ms=rng.choice((1, 5, 30)),
        long_delay_ms=rng.choice((50, 500, 3000)),
        long_delay_share=rng.choice((0.0, 0.02, 0.1)),
        lost_share=rng.choice((0.0, 0.01, 0.1)),
        doubled_share=rng.choice((0.0, 0.05)),
        flush_ms=rng.choice((0, 5, 20)),
        fault_interval_ms=rng.choice((300, 1000, 3000)),
        append_interval_ms=rng.choice((50, 200, 1000)),
    )


def _world_config(rng: Random) -> WorldConfig:
    voters = rng.choice((1, 2, 3, 3, 3, 3, 5))
    is_dynamic = rng.random() < 0.6
    nodes = voters + rng.choice((0, 1, 2) if is_dynamic else (0, 0, 1))
    return WorldConfig(
        tuple(range(1, nodes + 1)),
        tuple(range(1, voters + 1)),
        is_dynamic,
        is_auto_joining=is_dynamic and rng.random() < 0.3,
        # Short ones, so that several voters are candidates in one epoch.
        election_timeout_ms=rng.choice((50, 300, 1000)),
    )
