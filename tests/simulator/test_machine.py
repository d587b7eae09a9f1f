"""Protects the machinery: time that is the seed's, links that keep their order and break, frames, the trace."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcli.log.disk.port import parent_path
from kcli.log.wall_time import WallTime
from kcli.server.events import CloseConnection, ConnectionClosed, Effect, Event, RequestReceived
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.machine import Machine
from kcli.simulator.network import FrameReader, Link, Network, NetworkConditions
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.trace import Trace
from kcli.simulator.virtual_time import VirtualTime, WallClock


def test_time_jumps_and_ties_are_cast() -> None:
    """Actions run at their times; the order within a millisecond is the seed's, and the same for the same seed."""

    def order(seed: int) -> str:
        virtual_time, done = VirtualTime(Random(seed), 100), []
        for name in "abcdefgh":
            virtual_time.at(120, lambda name=name: done.append(name))  # type: ignore[misc]
        virtual_time.after(5, lambda: done.append(f"{virtual_time.now_ms} "))
        cancelled = virtual_time.after(6, lambda: done.append("never"))
        cancelled.cancel()
        virtual_time.at(3, lambda: done.append(f"{virtual_time.now_ms} "))
        while virtual_time.run_next():
            pass
        return "".join(done)

    orders = {order(seed) for seed in range(20)}
    assert all(one.startswith("100 105 ") and sorted(one[8:]) == list("abcdefgh") for one in orders)
    assert len(orders) > 15 and order(3) == order(3)


class Side:
    """One end of a link: what it got."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False
        self.arrivals: list[tuple[int, bytes]] = []
        self.clock: VirtualTime

    def received(self, link: Link, data: bytes) -> None:
        assert not self.is_closed
        self.data += data

    def closed(self, link: Link) -> None:
        assert not self.is_closed
        self.is_closed = True


def storm(seed: int, *, cut: bool) -> tuple[list[bytes], list[Side], list[Side]]:
    rng = Random(seed)
    virtual_time = VirtualTime(rng, 0)
    network = Network(virtual_time, rng, NetworkConditions(5, 300, 0.2, 0.5, 0.5))
    clients, servers = [Side() for _ in range(3)], [Side() for _ in range(3)]
    links = [network.connect(client, server) for client, server in zip(clients, servers)]
    sent = [b""] * 3
    for number in range(30):
        at = rng.randrange(3)
        piece = b"<%d>" % number
        sent[at] += piece
        links[at].send(0, piece)
        links[at].send(1, piece)
    if cut:
        for _ in range(15):
            virtual_time.run_next()
        network.cut_one()
    else:
        for link in links:
            link.close(0)
    while virtual_time.run_next():
        pass
    return sent, clients, servers


def test_a_link_keeps_its_order_and_a_close_comes_last() -> None:
    """All bytes come, in order, whatever the delays; then the other side hears of the end."""
    for seed in range(30):
        sent, _, servers = storm(seed, cut=False)
        assert [server.data for server in servers] == sent
        assert all(server.is_closed for server in servers)


def test_a_cut_loses_what_is_under_way() -> None:
    """A prefix has come, perhaps half a frame; each side is told, or one of them is not."""
    halves = told = untold = 0
    for seed in range(60):
        sent, clients, servers = storm(seed, cut=True)
        for whole, client, server in zip(sent, clients, servers):
            assert whole.startswith(server.data) and whole.startswith(client.data)
            halves += server.data != b"" and not server.data.endswith(b">")
            told += client.is_closed and server.is_closed
            untold += client.is_closed != server.is_closed
    assert halves and told and untold


class ClosingNode:
    """A node that closes each connection with its first request; `events` are those of connections."""

    is_ready = True
    is_stopped = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def start(self, now_ms: int) -> list[Effect]:
        return []

    def stop(self, now_ms: int) -> list[Effect]:
        return []

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        return [CloseConnection(event.connection, "a test")] if isinstance(event, RequestReceived) else []

    def next_deadline_ms(self) -> int | None:
        return None

    def is_open(self, listener: str) -> bool:
        return True


def test_a_node_is_informed_of_the_end_of_a_connection_that_it_closes() -> None:
    """As in the real shell, where asyncio reports the end of each connection."""
    virtual_time, node, client = VirtualTime(Random(1), 0), ClosingNode(), Side()
    network = Network(virtual_time, Random(2), NetworkConditions(5, 50, 0.0, 0.0, 0.0))
    trace, wall = Trace(lambda: virtual_time.now_ms), WallClock(virtual_time)
    machine = Machine(virtual_time, network, SimulatedDisk(Random(3)), Random(4), trace, lambda *_: node, wall)
    machine.start()
    link = machine.accept(lambda end: network.connect(client, end), 40_000)
    assert link is not None
    link.send(0, (1).to_bytes(4, "big") + b"x")
    while virtual_time.run_next():
        pass
    assert [type(event) for event in node.events] == [RequestReceived, ConnectionClosed]
    assert node.events[0].connection is node.events[1].connection
    assert client.is_closed and not any(link.is_open)


def test_frames_are_put_together() -> None:
    """However the bytes come."""
    frames = [b"", b"a", b"bc" * 100]
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    for step in (1, 2, 3, 7, len(data)):
        reader, found = FrameReader(), []
        for at in range(0, len(data), step):
            found += [bytes(frame) for frame in reader.feed(data[at : at + step])]
        assert found == frames


def test_a_trace_is_its_lines() -> None:
    """The digest is that of the lines; times count from the start."""
    now = [1000]
    lines: list[str] = []
    traces = [Trace(lambda: now[0], lines.append), Trace(lambda: now[0])]
    for trace in traces:
        trace.add("node", "begins")
    assert traces[0].digest() == traces[1].digest()
    now[0] = 1010
    traces[0].add("node", "ends")
    assert lines == ["       0 node         begins", "      10 node         ends"]
    assert traces[0].digest() != traces[1].digest() and list(traces[0].tail) == lines


def test_a_wall_clock_that_is_set_leaves_the_nodes_time_alone() -> None:
    """Milliseconds are whole ones; a step is seen on the wall alone; a new process begins with the wall's time."""
    virtual_time = VirtualTime(Random(1), 1_750_000_000_000)
    wall = WallClock(virtual_time)
    clock, start_ms = wall.process_clock(), virtual_time.now_ms

    def pass_by(ms: int) -> tuple[int, int]:
        virtual_time.at(virtual_time.now_ms + ms, lambda: None)
        virtual_time.run_next()
        now_ms = clock.now_ms()
        assert clock.wall_time.at(now_ms) == wall.wall_ms()
        return now_ms - start_ms, wall.wall_ms() - start_ms

    assert [pass_by(1) for _ in range(1000)] == [(ms, ms) for ms in range(1, 1001)]
    wall.set_error(3_600_000)
    assert pass_by(0) == (1000, 3_601_000)
    wall.set_error(-3_600_000)
    assert pass_by(1000) == (2000, 2000 - 3_600_000)
    assert wall.process_clock().now_ms() == wall.wall_ms() and wall.max_behind_ms == 3_600_000


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_wall_clock_ends_no_session_of_a_whole_node(off_ms: int) -> None:
    """Nobody is fenced in the minute behind a step of an hour, no timer is stuck, and the node stops in order."""
    virtual_time = VirtualTime(Random(1), 1_750_000_000_000)
    wall, make_node, nodes = WallClock(virtual_time), NodeMaker(5), []
    disk = SimulatedDisk(Random(2), wall.wall_ms)
    for directory in make_node.directories:
        disk.make_directory(parent_path(directory))

    def make(disk: SimulatedDisk, rng: Random, now_ms: int, wall_time: WallTime) -> Any:
        nodes.append(make_node(disk, rng, now_ms, lambda line: None, wall_time))
        return nodes[-1]

    def run_for(ms: int) -> None:
        end_ms = virtual_time.now_ms + ms
        virtual_time.at(end_ms, lambda: None)
        while virtual_time.now_ms < end_ms:
            assert virtual_time.run_next()

    network = Network(virtual_time, Random(3), NetworkConditions(1, 50, 0.0, 0.0, 0.0))
    machine = Machine(virtual_time, network, disk, Random(4), Trace(lambda: virtual_time.now_ms), make, wall)
    machine.start()
    run_for(20_000)
    assert machine.is_ready
    controller = nodes[0].controller.controller
    for off in (off_ms, 0, -off_ms):
        wall.set_error(off)
        run_for(60_000)
        assert controller.metrics.timed_out_heartbeats == 0
        assert virtual_time.now_ms - controller.state.sessions[1].last_heartbeat_ms < 5000
        assert not controller.state.image.brokers[1].is_fenced
    machine.stop()
    run_for(10_000)
    assert not machine.is_up
