"""One simulation from a seed: a machine, clients, faults, and final checks.

    phase    actions
    -------  ----------------------------------------------------------------------------------------------------
    faults   clients work while faults are injected, for a number of steps (actions in virtual time)
    calm     no more faults; the node is up again, clients finish, the administrator audits
    reading  every partition is read from start to end
    end      the node stops cleanly; the disk is checked and verified

All random numbers come from the seed. Each part has its own generator, so that one more random number in one part does not
change the others. The same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from kcli.log.disk.port import parent_path
from kcli.log.wall_time import WallTime
from kcli.simulator.administrator import Administrator
from kcli.simulator.chaos import Chaos
from kcli.simulator.checkers import DiskChecker
from kcli.simulator.compacted_ledger import CompactedLedger
from kcli.simulator.consumer import SimulatedConsumer
from kcli.simulator.core_log_clients import CoreLogAdmin, CoreLogConsumer, CoreLogProducer
from kcli.simulator.curator import Curator, has_compaction
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.machine import Machine, NodeProcess
from kcli.simulator.network import Network, NetworkConditions
from kcli.simulator.operator import Operator
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.producer import SimulatedProducer
from kcli.simulator.trace import Trace, failure_of
from kcli.simulator.virtual_time import VirtualTime, WallClock
from kcli.simulator.world import World

START_MS = 1_750_000_000_000
DEFAULT_STEPS = 1500
# Additional steps for the clients of compacted topics.
COMPACTION_STEPS = 2000
# Some seeds run for a few busy seconds, others for an hour with cache expiry, checkpoints and retention.
PAUSE_FACTORS = (1, 1, 20, 200)

NodeFactory = Callable[[SimulatedDisk, Random, int, Callable[[str], None], WallTime], NodeProcess]


class SimulationResult(NamedTuple):
    """The result of a seed; `failure` is empty if no guarantee was violated."""

    seed: int
    failure: str
    digest: str
    tail: list[str]
    deaths: int
    starts: int
    batches: int
    records_read: int
    records_checked: int
    cleaning_rounds: int
    whole_views: int  # compacted partitions that were read from start to end, counted each time
    virtual_ms: int

    @property
    def summary(self) -> str:
        """What happened, in one line."""
        return (
            f"{self.starts} starts, {self.deaths} deaths, {self.batches} batches, {self.records_read} records read, "
            f"{self.cleaning_rounds} cleaning rounds, {self.virtual_ms / 1000:.1f} s of virtual time"
        )


class Simulation:
    """One run. `make_node(disk, rng, now_ms, log, wall)` creates a node, and formats the disk if it is empty.

    `cleaning_rounds` returns the number of rounds that the node's cleaner has finished.
    """

    has_core_clients = True  # the node serves kcli's own client
    max_quiet_steps = 150_000  # a phase without faults that takes more is a failure

    def __init__(
        self,
        seed: int,
        make_node: NodeFactory,
        directories: list[str],
        *,
        steps: int = DEFAULT_STEPS,
        write: Callable[[str], None] | None = None,
        cleaning_rounds: Callable[[], int] = lambda: 0,
    ) -> None:
        self.seed = seed
        self.steps = steps + (COMPACTION_STEPS if has_compaction(seed) else 0)
        self._cleaning_rounds = cleaning_rounds
        self.virtual_time = VirtualTime(self._rng("time"), START_MS)
        self.trace = Trace(lambda: self.virtual_time.now_ms, write)
        network = Network(self.virtual_time, self._rng("network"), self._network_conditions())
        wall_clock = WallClock(self.virtual_time)
        self.disk = SimulatedDisk(self._rng("disk"), wall_clock.wall_ms)
        for directory in directories:
            # The parents of the log directories exist before the node is formatted.
            self.disk.make_directory(parent_path(directory))
        self.disk.flush_directory("/")
        self.machine = Machine(
            self.virtual_time,
            network,
            self.disk,
            self._rng("machine"),
            self.trace,
            lambda disk, rng, now_ms, wall: make_node(disk, rng, now_ms, self._log, wall),
            wall_clock,
        )
        self.world = World(self.virtual_time, network, [self.machine], self.trace, self._pause_factor())
        self.checker = DiskChecker(self.disk, directories, self.world.ledger, self.world.clocks)
        self.chaos = self._make_chaos(directories)
        self.producers: list[SimulatedProducer] = []
        self.consumers: list[SimulatedConsumer] = []
        self.keyed_readers: list[SimulatedConsumer] = []
        self.core_producers: list[CoreLogProducer] = []
        self.core_consumers: list[CoreLogConsumer] = []
        self.core_admin: CoreLogAdmin | None = None
        self._add_clients(directories)

    def _pause_factor(self) -> int:
        return self._rng("pace").choice(PAUSE_FACTORS)

    def _make_chaos(self, directories: list[str]) -> Chaos:
        return Chaos(self.world, self.checker, self._rng("chaos"), directories)

    def _add_clients(self, directories: list[str]) -> None:
        """Create the clients of the workload."""
        self.administrator = Administrator(self.world, self._rng("admin"))
        self.operator = Operator(self.world, self._rng("operator"), self.checker, directories)
        rng = self._rng("clients")
        self.producers = [
            SimulatedProducer(self.world, f"p{number}", self._rng(f"p{number}"), is_idempotent=number % 2 == 0)
            for number in range(rng.choice((1, 2, 3)))
        ]
        self.consumers = [SimulatedConsumer(self.world, f"r{number}", self._rng(f"r{number}")) for number in range(2)]
        if self.has_core_clients:
            self.core_producers = [CoreLogProducer(self.world, "cp", self._rng("cp"))]
            self.core_consumers = [CoreLogConsumer(self.world, "cr", self._rng("cr"))]
            self.core_admin = CoreLogAdmin(self.world, self._rng("ca"))
        self._add_compaction()

    def _add_compaction(self) -> None:
        """Add the clients of compacted topics, if the seed has such topics."""
        self.curator: Curator | None = None
        if has_compaction(self.seed):
            world = self.world
            self.curator = Curator(world, self._rng("curator"))
            self.producers += [
                SimulatedProducer(world, name, self._rng(name), is_idempotent=True, is_keyed=True)
                for name in ("k0", "k1", "k2")
            ]
            self.keyed_readers.append(SimulatedConsumer(world, "kr", self._rng("kr")))

    def _rng(self, name: str) -> Random:
        """Create the generator of one part; a changed name would change the runs of all seeds."""
        return Random(f"{self.seed} {name}")

    def _network_conditions(self) -> NetworkConditions:
        rng = self._rng("weather")
        return NetworkConditions(
            rng.choice((1, 4, 20)), rng.choice((50, 400, 3000)), rng.choice((0.0, 0.02, 0.1)), rng.choice((0.0, 0.1, 0.5))
        )

    def _log(self, line: str) -> None:
        self.trace.add("node", line)
        if "a fault of kcli" in line:
            raise SimulationFailure(line)

    def run(self) -> SimulationResult:
        """Run all phases and return the outcome; a failure is returned, not raised."""
        failure = failure_of([self._inject_faults, self._calm, self._read_all, self._end], SimulationFailure)
        return SimulationResult(
            seed=self.seed,
            failure=failure,
            digest=self.trace.digest(),
            tail=list(self.trace.tail),
            deaths=self.chaos.deaths,
            starts=self.machine.start_count,
            batches=self._batches(),
            records_read=self._records_read(),
            records_checked=self.checker.checked_records,
            cleaning_rounds=self._cleaning_rounds(),
            whole_views=sum(
                partition.whole_views
                for topic in self.world.ledger.topics.values()
                for partition in topic.partitions
                if isinstance(partition, CompactedLedger)
            ),
            virtual_ms=self.virtual_time.now_ms - START_MS,
        )

    def _batches(self) -> int:
        """Return the number of acknowledged batches."""
        by_cores = sum(producer.acknowledged_batches for producer in self.core_producers)
        return sum(producer.acknowledged_batches for producer in self.producers) + by_cores

    def _records_read(self) -> int:
        by_cores = sum(consumer.record_count for consumer in self.core_consumers)
        return sum(consumer.record_count for consumer in (*self.consumers, *self.keyed_readers)) + by_cores

    def _inject_faults(self) -> None:
        self.chaos.start()
        world = self.world
        world.run(self.administrator.run())
        world.run(self.operator.run())
        world.run(self.chaos.run())
        for producer in self.producers:
            world.run(producer.run())
        for consumer in self.consumers:
            world.run(consumer.run())
        for core_producer in self.core_producers:
            world.run(core_producer.run())
        for core_consumer in self.core_consumers:
            world.run(core_consumer.run())
        if self.core_admin is not None:
            world.run(self.core_admin.run())
        if self.curator is not None:
            world.run(self.curator.run())
        for reader in self.keyed_readers:
            world.run(reader.run_keyed())
        for _ in range(self.steps):
            self.virtual_time.run_next()

    def _calm(self) -> None:
        self.trace.add("runner", "calm")
        self.world.is_ending = True
        self.machine.die_never()
        self.chaos.calm()
        self._until(lambda: self.machine.is_ready and not self.world.tasks_running, "the node is up and the clients are done")
        self.world.is_ending = False
        self.world.run(self.administrator.audit())
        self._until(lambda: not self.world.tasks_running, "the audit is done")

    def _read_all(self) -> None:
        self.trace.add("runner", "read all")
        reader = SimulatedConsumer(self.world, "reader", self._rng("reader"))
        self.consumers.append(reader)
        for topic in self.world.ledger.live_topics():
            self.world.run(reader.read_whole(topic))
            self._until(lambda: not self.world.tasks_running, f"topic {topic.facts.name} is read")

    def _end(self) -> None:
        self.trace.add("runner", "end")
        self.world.is_ending = True
        self.world.run(self.chaos.stop())
        self._until(lambda: not self.machine.is_up, "the node has stopped")
        self.checker.finished()

    def _until(self, is_done: Callable[[], bool], what: str) -> None:
        for _ in range(self.max_quiet_steps):
            if is_done():
                return
            if not self.virtual_time.run_next():
                break
        if not is_done():
            raise SimulationFailure(f"timed out waiting until {what}")
