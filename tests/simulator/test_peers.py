"""Protects requests between simulated machines: delays, refusals, losses and partitions, all by the seed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kcli.log.disk.port import parent_path
from kcli.log.wall_time import WallTime
from kcli.network.events import PeerAddress
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol.apis import API_KEYS, METADATA, PRODUCE
from kcli.server.events import DeadlineReached
from kcli.server.node import Node
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.machine import Machine
from kcli.simulator.network import Network, NetworkConditions
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.trace import Trace
from kcli.simulator.virtual_time import VirtualTime, WallClock

START_MS = 1_750_000_000_000
TIMEOUT_MS = 1000


class Machines:
    """Two machines with nodes of clusters of their own on one network; the first asks the second."""

    def __init__(self, seed: int, weather: NetworkConditions) -> None:
        self.virtual_time = VirtualTime(Random(f"{seed} time"), START_MS)
        self.network = Network(self.virtual_time, Random(f"{seed} network"), weather)
        self.trace = Trace(lambda: self.virtual_time.now_ms)
        self.nodes: dict[int, Node] = {}
        self.answers: list[str] = []
        self.machines = {machine_id: self._machine(seed, machine_id) for machine_id in (1, 2)}
        for machine in self.machines.values():
            machine.start()
        self.run_until(lambda: all(machine.is_ready for machine in self.machines.values()))

    def _machine(self, seed: int, machine_id: int) -> Machine:
        make_node = NodeMaker(seed, machine_id)
        wall_clock = WallClock(self.virtual_time)
        disk = SimulatedDisk(Random(f"{seed} disk {machine_id}"), wall_clock.wall_ms)
        for directory in make_node.directories:
            disk.make_directory(parent_path(directory))

        def make(disk: SimulatedDisk, rng: Random, now_ms: int, wall: WallTime) -> Node:
            self.nodes[machine_id] = make_node(disk, rng, now_ms, lambda line: self.trace.add(f"node {machine_id}", line), wall)
            return self.nodes[machine_id]

        rng = Random(f"{seed} machine {machine_id}")
        addresses = {"PLAINTEXT": address_of(machine_id)}
        return Machine(self.virtual_time, self.network, disk, rng, self.trace, make, wall_clock, machine_id, addresses)

    def run_for(self, ms: int) -> None:
        end_ms = self.virtual_time.now_ms + ms
        self.run_until(lambda: self.virtual_time.now_ms >= end_ms, ms)

    def run_until(self, is_so: object, within_ms: int = 60_000) -> None:
        assert callable(is_so)
        end_ms = self.virtual_time.now_ms + within_ms
        self.virtual_time.at(end_ms, lambda: None)
        while not is_so():
            assert self.virtual_time.now_ms <= end_ms and self.virtual_time.run_next()

    def ask(self) -> None:
        """Send a request from machine 1 to the broker of machine 2."""
        node = self.nodes[1]

        def answered(answer: Answer, now_ms: int) -> None:
            self.answers.append(answer.name if isinstance(answer, PeerFailure) else str(answer.brokers[0].node_id))

        def send(now_ms: int) -> None:
            request = API_KEYS[METADATA].request.new(topics=[])
            node.peers.send(address_of(2), "PLAINTEXT", METADATA, request, answered, now_ms + TIMEOUT_MS)

        node.timer.schedule(node.timer.clock_ms, send)
        self.machines[1].handle(DeadlineReached())

    def answer(self) -> str:
        """Send a request -> its answer, or the name of its failure."""
        count = len(self.answers)
        self.ask()
        self.run_until(lambda: len(self.answers) > count)
        return self.answers[-1]


def address_of(machine_id: int) -> PeerAddress:
    return PeerAddress(f"machine{machine_id}", 9092)


CALM = NetworkConditions(4, 400, 0.02, 0.1, 0.0)


def test_a_partition_loses_requests_until_it_is_healed() -> None:
    """A connection that was there and one that is to be made: both end at a deadline; afterwards answers come again."""
    machines = Machines(1, CALM)
    assert machines.answer() == "2"
    machines.network.partition(1, 2)
    assert [machines.answer() for _ in range(3)] == ["TIMED_OUT"] * 3
    machines.network.heal(1, 2)
    machines.run_for(2 * TIMEOUT_MS)
    machines.ask()
    machines.run_for(15_000)
    assert machines.answer() == "2"


def test_a_process_that_died_refuses_connections_until_it_is_back() -> None:
    machines = Machines(2, CALM)
    assert machines.answer() == "2"
    machines.machines[2].die_now()
    machines.machines[2].disk.kill()
    assert [machines.answer() for _ in range(3)] == ["DISCONNECTED"] * 3
    machines.machines[2].start()
    machines.run_until(lambda: machines.machines[2].is_ready)
    assert "2" in [machines.answer() for _ in range(3)]


def test_several_requests_are_under_way_at_once() -> None:
    machines = Machines(3, CALM)
    for _ in range(20):
        machines.ask()
    machines.run_until(lambda: len(machines.answers) == 20)
    assert machines.answers == ["2"] * 20


def stormy_run(seed: int) -> tuple[str, Counter[str]]:
    """Cuts, partitions and deaths for a while -> the digest of the trace, and how often each answer came."""
    machines, rng = Machines(seed, NetworkConditions(4, 400, 0.1, 0.3, 0.5)), Random(f"{seed} storm")
    for _ in range(120):
        die = rng.random()
        machines.ask()
        if die < 0.2:
            machines.network.cut_one()
        elif die < 0.25:
            machines.network.partition(1, 2)
        elif die < 0.4:
            machines.network.heal(1, 2)
        machines.run_for(rng.randrange(200))
    machines.network.heal(1, 2)
    machines.run_for(30_000)
    assert len(machines.answers) == 120, "each request is answered once"
    assert machines.answer() == "2"
    return machines.trace.digest(), Counter(machines.answers)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_does_the_same(seed: int) -> None:
    first, second = stormy_run(seed), stormy_run(seed)
    assert first == second
    assert set(first[1]) <= {"2", "TIMED_OUT", "DISCONNECTED"}


def test_storms_show_all_answers_and_differ_by_seed() -> None:
    runs = [stormy_run(seed) for seed in range(5)]
    assert len({digest for digest, _ in runs}) == 5
    assert set().union(*(counts for _, counts in runs)) == {"2", "TIMED_OUT", "DISCONNECTED"}


def test_a_request_without_answer_ends_when_it_is_on_the_link() -> None:
    """Produce with acks=0; before there is a link it waits, and its deadline counts."""
    machines = Machines(1, CALM)
    node = machines.nodes[1]

    def produce() -> str:
        def answered(answer: Answer, now_ms: int) -> None:
            machines.answers.append(answer.name if isinstance(answer, PeerFailure) else "written")

        def send(now_ms: int) -> None:
            request = API_KEYS[PRODUCE].request.new(acks=0, timeout_ms=TIMEOUT_MS)
            deadline_ms = now_ms + TIMEOUT_MS
            node.peers.send(address_of(2), "PLAINTEXT", PRODUCE, request, answered, deadline_ms, has_answer=False)

        count = len(machines.answers)
        node.timer.schedule(node.timer.clock_ms, send)
        machines.machines[1].handle(DeadlineReached())
        machines.run_until(lambda: len(machines.answers) > count)
        return machines.answers[-1]

    machines.network.partition(1, 2)
    assert produce() == "TIMED_OUT"
    machines.network.heal(1, 2)
    machines.run_for(15_000)
    assert produce() == "written"
