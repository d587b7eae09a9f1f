"""Protects the driver that runs cores of kcli's own client in virtual time: every fault of a link reaches the core, and ends.

A producer and a consumer on a real node: what they see after cuts, silence, deaths and repeated requests.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from kcli.client.client_config import ClientConfig
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_config import ProducerConfig
from kcli.log.disk.port import parent_path
from kcli.protocol.apis import PRODUCE
from kcli.protocol.message import Message
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.machine import Machine
from kcli.simulator.network import Network, NetworkConditions
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.trace import Trace
from kcli.simulator.virtual_time import VirtualTime, WallClock
from kcli.simulator.world import World

START_MS = 1_750_000_000_000
CALM = NetworkConditions(4, 400, 0.02, 0.1, 0.0)
COMMON = ClientConfig(request_timeout_ms=1000, reconnect_backoff_max_ms=200, socket_connection_setup_timeout_ms=1000)
P = ("t", 0)


class Stage:
    """A machine with a node, a producer that notes its results, and a consumer of what is in the log."""

    def __init__(self, seed: int, conditions: NetworkConditions = CALM, repeated: int | None = None) -> None:
        self.virtual_time = VirtualTime(Random(f"{seed} time"), START_MS)
        self.network = Network(self.virtual_time, Random(f"{seed} network"), conditions)
        self.trace = Trace(lambda: self.virtual_time.now_ms)
        make_node, clock = NodeMaker(seed), WallClock(self.virtual_time)
        disk = SimulatedDisk(Random(f"{seed} disk"), clock.wall_ms)
        for directory in make_node.directories:
            disk.make_directory(parent_path(directory))
        self.machine = Machine(
            self.virtual_time,
            self.network,
            disk,
            Random(f"{seed} machine"),
            self.trace,
            lambda disk, rng, now_ms, wall: make_node(disk, rng, now_ms, lambda line: self.trace.add("node", line), wall),
            clock,
        )
        self.world = World(self.virtual_time, self.network, [self.machine], self.trace, 1)
        self.start()
        self.rng = Random(f"{seed} producer")
        self.client = self.world.core_client("p", self.rng, COMMON, lambda request: request.api_key == repeated)
        self.core = ProducerCore(self.client.network, ProducerConfig(linger_ms=0, delivery_timeout_ms=60_000), self.client.log)
        self.client.run(self.core.poll)
        self.results: dict[bytes, Any] = {}
        self.count = 0

    def start(self) -> None:
        self.machine.start()
        self.until(lambda: self.machine.is_ready)

    def die(self) -> None:
        self.machine.die_now()
        self.machine.disk.kill()

    def until(self, is_so: Any, within_ms: int = 60_000) -> None:
        end_ms = self.virtual_time.now_ms + within_ms
        self.virtual_time.at(end_ms + 1, lambda: None)
        while not is_so():
            assert self.virtual_time.now_ms <= end_ms and self.virtual_time.run_next()

    def wait(self, ms: int) -> None:
        end_ms = self.virtual_time.now_ms + ms
        self.virtual_time.at(end_ms, lambda: None)
        self.until(lambda: self.virtual_time.now_ms >= end_ms, ms)

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            value = b"%d" % self.count
            self.count += 1

            def delivered(found: Any, error: Any, value: bytes = value) -> None:
                assert value not in self.results, "a record has two results"
                self.results[value] = error or found.offset

            self.client.start(partial(self.core.send, Record("t", value, partition=0, on_delivery=delivered)))

    def flush(self) -> None:
        done = self.client.start(self.core.flush)
        self.until(lambda: done.is_done and len(self.results) == self.count)

    def read(self) -> list[bytes]:
        """What is in the log, by a consumer of its own."""
        client = self.world.core_client("r", Random(1), COMMON)
        core = ConsumerCore(client.network, ConsumerConfig(auto_offset_reset="earliest", fetch_max_wait_ms=100))
        client.run(core.poll)
        client.call(partial(core.assign, [P]))
        found: list[bytes] = []
        waits = 0
        while waits < 5:  # an idle consumer waits for the end of its fetch
            client.call(core.begin_poll)
            client.call(core.raise_error)
            records = client.call(core.collect)
            found += [record.value for record in records if isinstance(record.value, bytes)]
            waits = 0 if records else waits + 1
            woken = client.start(partial(core.await_work, timeout_ms=500))
            self.until(lambda woken=woken: woken.is_done)
        client.close()
        return found


def test_records_are_in_the_log_in_their_order() -> None:
    """And the answer to each is its offset."""
    stage = Stage(1)
    stage.send(30)
    stage.flush()
    assert stage.results == {b"%d" % at: at for at in range(30)}
    assert stage.read() == [b"%d" % at for at in range(30)]


def stormy_run(seed: int, repeated: int | None = None) -> tuple[Stage, str]:
    """Cuts, silence and deaths of the node while an idempotent producer sends."""
    stage = Stage(seed, NetworkConditions(4, 400, 0.1, 0.3, 0.5), repeated)
    storm = Random(f"{seed} storm")
    for _ in range(40):
        fault = storm.random()
        stage.send(storm.randrange(3))
        if fault < 0.3:
            stage.network.cut_one()
        elif fault < 0.4:
            stage.die()
            stage.wait(storm.randrange(1000))
            stage.start()
        stage.wait(storm.randrange(200))
    stage.flush()
    return stage, stage.trace.digest()


def test_an_idempotent_producer_writes_each_record_once() -> None:
    """Through cuts and deaths, with and without requests that come a second time; and a run is that of its seed."""
    runs = [stormy_run(seed, repeated) for seed in range(3) for repeated in (None, PRODUCE)]
    for stage, _ in runs:
        assert stage.read() == [b"%d" % at for at in range(stage.count)]
    assert sum(stage.client.stray_counts[PRODUCE] for stage, _ in runs) > 5, "no request was lost: the runs prove nothing"
    assert stormy_run(1)[1] == runs[2][1]


def test_a_request_comes_a_second_time() -> None:
    """Without idempotence the log has its record twice: so the broker had the request twice, and the client one answer."""
    stage = Stage(4, repeated=PRODUCE)
    config = ProducerConfig(linger_ms=0, enable_idempotence=False, max_in_flight_requests_per_connection=1)
    stage.core = ProducerCore(stage.client.network, config, stage.client.log)
    stage.client.run(stage.core.poll)
    for _ in range(60):
        stage.send()
        stage.flush()
    stage.wait(5000)
    assert stage.client.stray_counts[PRODUCE] > 0
    found = stage.read()
    assert len(found) == 60 + stage.client.stray_counts[PRODUCE]
    assert set(found) == {b"%d" % at for at in range(60)}


def test_a_node_that_is_down_refuses_connections_until_it_is_back() -> None:
    """The core hears of it, backs off, and connects again."""
    stage = Stage(2)
    stage.send()
    stage.flush()
    stage.die()
    stage.send(3)
    stage.wait(3000)
    assert len(stage.results) == 1
    stage.start()
    stage.flush()
    assert stage.read() == [b"0", b"1", b"2", b"3"]


def test_a_silent_link_ends_by_the_request_timeout() -> None:
    """Neither side hears of the cut: the client's deadline is what goes on."""
    stage = Stage(3)
    stage.send()
    stage.flush()
    for link in stage.network.links:
        link.cut(0, 1)
    begin_ms = stage.virtual_time.now_ms
    stage.send()
    stage.flush()
    assert stage.virtual_time.now_ms >= begin_ms + COMMON.request_timeout_ms
    assert stage.client.stray_counts[PRODUCE] == 1


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_dead_process_does_nothing_more(is_silent: bool) -> None:
    """The broker keeps the link of a silent death only."""
    stage = Stage(5)
    stage.send()
    stage.flush()
    stage.send()
    stage.client.kill(is_silent=is_silent)
    sent = stage.client.sent_counts.copy()
    stage.wait(20_000)
    assert stage.client.sent_counts == sent and len(stage.results) == 1
    assert any(link.is_open[1] for link in stage.network.links) == is_silent


def test_observers_see_each_request_and_its_end() -> None:
    """An answer, or None for a request that was lost."""
    stage = Stage(6)
    seen: list[str] = []

    def observe(request: WireRequest) -> None:
        batches = request.decode().topic_data[0].partition_data
        assert len(batches) == 1

        def end(answer: Message | None) -> None:
            seen.append("lost" if answer is None else f"offset {answer.responses[0].partition_responses[0].base_offset}")

        request.on_end = end

    stage.client.observers[PRODUCE] = observe
    stage.send()
    stage.flush()
    for link in stage.network.links:
        link.cut(0, 1)
    stage.send()
    stage.flush()
    assert seen == ["offset 0", "lost", "offset 1"]


def test_a_client_of_another_name_has_links_of_its_own() -> None:
    stage = Stage(7)
    other: CoreClient = stage.world.core_client("q", Random(2), COMMON)
    core = ProducerCore(other.network, ProducerConfig(linger_ms=0), other.log)
    other.run(core.poll)
    stage.send()
    stage.flush()
    other.kill()
    stage.send()
    stage.flush()
    assert stage.read() == [b"0", b"1"]
