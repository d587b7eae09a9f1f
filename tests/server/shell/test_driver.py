"""Protects the shell around a node: its timer, its requests to itself, its flushes, and who is let in and for how long."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import flush_paths
from kcli.network.events import NodeRole, Peer, PeerNode, ResponseReceived, SendRequest
from kcli.server.config.loading import load_config
from kcli.server.events import (
    CloseConnection,
    Compute,
    Computed,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flush,
    Flushed,
    NoResponse,
    RequestReceived,
    SendFile,
    SendResponse,
)
from kcli.server.shell.acceptor import plain_host
from kcli.server.shell.connection_quotas import (
    ConnectionQuotas,
    Limits,
    UnknownHostError,
    limits_of,
    parse_overrides,
    resolve_overrides,
)
from tests.conftest import open_descriptors
from tests.server.shell.sockets import PATIENCE_S, Shell, framed, run, silent

ITSELF = Peer(PeerNode(1, NodeRole.CONTROLLER), "CONTROLLER", None)

# --------------------------------------------------------------------------------------------------------------- timer


def test_the_nodes_deadline_wakes_it() -> None:
    async def test(shell: Shell) -> None:
        woken: list[int] = []

        def on_event(event: Event) -> list[Effect]:
            if isinstance(event, DeadlineReached):
                woken.append(shell.driver.clock.now_ms())
                if len(woken) < 3:
                    shell.node.deadline_ms = woken[-1] + 20
            return []

        shell.node.on_event = on_event
        began_ms = shell.driver.clock.now_ms()
        shell.node.deadline_ms = began_ms + 30
        shell.driver.execute([])
        await shell.until(lambda: len(woken) == 3)
        assert woken[0] >= began_ms + 30 and woken[1] >= woken[0] + 20 and woken[2] >= woken[1] + 20

    run(test)


def test_a_request_that_brings_an_earlier_deadline_arms_the_timer_anew() -> None:
    async def test(shell: Shell) -> None:
        shell.node.deadline_ms = shell.driver.clock.now_ms() + 3_600_000
        shell.driver.execute([])

        def serve(event: RequestReceived) -> list[Effect]:
            shell.node.deadline_ms = shell.driver.clock.now_ms() + 5
            return []

        shell.node.serve = serve
        client = await shell.connect()
        await client.send(framed(b"x"))
        await shell.until(lambda: bool(shell.node.of_kind(DeadlineReached)))

    run(test)


def test_a_node_that_fails_ends_alone() -> None:
    """Its connections are closed, nothing is handed in any more, and another node on the same loop is served."""

    async def test(shell: Shell) -> None:
        def fail(event: Event) -> list[Effect]:
            shell.node.deadline_ms = shell.driver.clock.now_ms() + 5
            raise RuntimeError("a fault")

        other = Shell(Limits())
        client, client_of_other = await shell.connect(), await other.connect()
        assert await client.ask(b"a") == b"a" and await client_of_other.ask(b"b") == b"b"
        shell.node.on_event = fail
        shell.node.deadline_ms = shell.driver.clock.now_ms()
        shell.driver.execute([])
        assert await client.is_closed()
        with pytest.raises(OSError):
            await shell.connect()
        shell.driver.step(lambda now_ms: pytest.fail("a step after the end"))
        await shell.turns()
        assert [str(fault) for fault in shell.faults] == ["a fault"]
        assert len(shell.node.events) == 1
        assert await client_of_other.ask(b"c") == b"c"
        other.driver.close()

    run(test)


def test_a_request_on_which_the_node_fails_ends_it_too() -> None:
    async def test(shell: Shell) -> None:
        def fail(event: RequestReceived) -> list[Effect]:
            raise OSError(errno.EIO, "Input/output error")

        shell.node.serve = fail
        first, second = await shell.connect(), await shell.connect()
        await first.send(framed(b"a"))
        assert await first.is_closed() and await second.is_closed()
        assert [fault.args for fault in shell.faults] == [(errno.EIO, "Input/output error")]

    run(test)


# ------------------------------------------------------------------------------------------------- requests to itself


@pytest.mark.parametrize(("kind", "answer"), [("response", b"answer"), ("file", b"answer"), ("none", None), ("close", None)])
def test_a_request_to_itself_is_answered_once(kind: str, answer: bytes | None) -> None:
    async def test(shell: Shell) -> None:
        def serve(event: RequestReceived) -> list[Effect]:
            connection = event.connection
            assert connection.is_internal and connection.listener == "CONTROLLER"
            answers: dict[str, Effect] = {
                "response": SendResponse(connection, framed(b"answer")),
                "file": SendFile(connection, [framed(b"answer")[:4], b"answer"]),
                "none": NoResponse(connection),
                "close": CloseConnection(connection, "it is bad"),
            }
            return [answers[kind]]

        shell.node.serve = serve
        shell.driver.execute([SendRequest(7, ITSELF, framed(b"ask"))])
        assert shell.node.frames == [b"ask"]
        assert shell.node.of_kind(ResponseReceived) == [ResponseReceived(7, answer)]

    run(test)


def test_what_a_request_to_itself_leads_to_is_done_in_order() -> None:
    async def test(shell: Shell) -> None:
        def serve(event: RequestReceived) -> list[Effect]:
            return [SendResponse(event.connection, framed(bytes(event.frame)))]

        def on_event(event: Event) -> list[Effect]:
            if isinstance(event, ResponseReceived) and event.request_id < 3:
                return [SendRequest(event.request_id + 1, ITSELF, framed(b"next"))]
            return []

        shell.node.serve, shell.node.on_event = serve, on_event
        shell.driver.execute([SendRequest(1, ITSELF, framed(b"a")), SendRequest(10, ITSELF, framed(b"b"))])
        assert [event.request_id for event in shell.node.of_kind(ResponseReceived)] == [1, 10, 2, 3]

    run(test)


# -------------------------------------------------------------------------------------------------------------- flushes


def test_flushes_come_back_with_what_became_of_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    async def test(shell: Shell) -> None:
        paths = (str(tmp_path / "file"), str(tmp_path))
        shell.driver.execute([Flush(1, paths), Flush(2, (str(tmp_path / "gone"), *paths))])
        await shell.until(lambda: len(shell.node.of_kind(Flushed)) == 2)
        errors = {event.flush_id: event.error for event in shell.node.of_kind(Flushed)}
        assert errors[1] is None
        assert isinstance(errors[2], FileNotFoundError) and errors[2].filename == str(tmp_path / "gone")

    run(test)


def test_computations_run_beside_the_loop_one_after_the_other() -> None:
    """While one takes its time requests are answered; it comes back with what it gave, or not at all once all is closed."""
    go_on = threading.Event()

    async def test(shell: Shell) -> None:
        order: list[int] = []

        def work(number: int) -> int:
            assert go_on.wait(PATIENCE_S)
            order.append(number)
            return -number

        shell.driver.execute([Compute(1, partial(work, 1)), Compute(2, partial(work, 2))])
        client = await shell.connect()
        await client.send(framed(b"hello"))
        assert await client.receive(9) == framed(b"hello")
        assert not shell.node.of_kind(Computed)
        go_on.set()
        await shell.until(lambda: len(shell.node.of_kind(Computed)) == 2)
        assert order == [1, 2] and [event.result for event in shell.node.of_kind(Computed)] == [-1, -2]
        go_on.clear()
        shell.driver.execute([Compute(3, partial(work, 3)), Compute(4, partial(work, 4))])
        shell.driver.close()
        go_on.set()
        await shell.turns()
        assert len(shell.node.of_kind(Computed)) == 2

    run(test)


def test_what_stands_behind_a_path_that_fails_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the simulator: an active segment on the device behind a rolled one that is not would be a hole."""
    done: list[int] = []

    def fsync(fd: int) -> None:
        done.append(fd)
        if len(done) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    before = open_descriptors()
    error = flush_paths([str(tmp_path)] * 3)
    assert error is not None and error.errno == errno.EIO
    assert len(done) == 1
    assert open_descriptors() == before


def test_what_happens_after_the_end_is_not_handed_in(tmp_path: Path) -> None:
    async def test(shell: Shell) -> None:
        client = await shell.connect()
        await client.ask(b"x")
        shell.driver.execute([Flush(1, (str(tmp_path),))])
        shell.driver.close()
        assert await client.is_closed()
        await shell.turns()
        assert not shell.node.of_kind(ConnectionClosed) and not shell.node.of_kind(Flushed)

    run(test)


# ------------------------------------------------------------------------------------------------------ who is let in


def test_at_the_limit_new_ones_wait_until_one_ends() -> None:
    async def test(shell: Shell) -> None:
        first, second = await shell.connect(), await shell.connect()
        assert await first.ask(b"1") == b"1" and await second.ask(b"2") == b"2"
        third, fourth = await shell.connect(), await shell.connect()
        await third.send(framed(b"3"))
        await fourth.send(framed(b"4"))
        await shell.turns()
        assert shell.node.frames == [b"1", b"2"]
        first.close()
        assert await third.frame() == b"3"
        assert b"4" not in shell.node.frames
        third.close()
        assert await fourth.frame() == b"4"
        assert shell.driver.quotas.count == 2
        (line,) = shell.lines
        assert "max.connections" in line and "wait" in line

    run(test, Limits(max_connections=2))


@pytest.mark.parametrize(
    ("stated", "descriptors", "limit", "why"),
    [(10, 10_000, 10, "max.connections"), (2**31 - 1, 1_000, 836, "1000 open files; raise it by ulimit -n")],
)
def test_the_line_about_the_limit_names_what_sets_it(stated: int, descriptors: int, limit: int, why: str) -> None:
    """With few descriptors it named max.connections, which was not set."""
    limits = limits_of(load_config(None, [f"max.connections={stated}"]), descriptors, 100)
    assert limits.max_connections == limit
    lines: list[str] = []
    quotas = ConnectionQuotas(limits, lines.append)
    quotas.count = limit
    assert quotas.is_full(lambda: None)
    assert len(lines) == 1 and why in lines[0]


def test_each_time_that_the_limit_is_reached_is_reported() -> None:
    """One line for each time, not one for the life of the process: connections come to the limit, go, and come again."""

    async def test(shell: Shell) -> None:
        for times in (1, 2, 3):
            clients = [await shell.connect() for _ in range(4)]
            assert await clients[2].ask(b"x") == b"x"
            await shell.until(lambda at=times: len(shell.lines) == at)  # type: ignore[misc]
            for client in clients:
                client.close()
            await shell.until(lambda: shell.driver.quotas.count == 0)
            last = await shell.connect()
            assert await last.ask(b"y") == b"y"
            last.close()
            await shell.until(lambda: shell.driver.quotas.count == 0)
        assert all("max.connections" in line for line in shell.lines)

    run(test, Limits(max_connections=3))


def test_a_host_has_so_many_and_no_more() -> None:
    async def test(shell: Shell) -> None:
        clients = [await shell.connect() for _ in range(3)]
        assert await clients[0].ask(b"x") == b"x"
        assert await clients[2].is_closed()
        assert "max.connections.per.ip" in shell.lines[0]
        clients[0].close()
        await shell.until(lambda: shell.driver.quotas.count == 1)
        assert await (await shell.connect()).ask(b"y") == b"y"

    run(test, Limits(max_connections_per_host=2))


def test_a_host_name_stands_for_its_addresses() -> None:
    """Kafka resolves the names of max.connections.per.ip.overrides; compared as names they never applied."""
    hosts = resolve_overrides(parse_overrides("localhost:1,[0:0:0:0:0:0:0:2]:3"))
    assert hosts["127.0.0.1"] == 1 and hosts["::2"] == 3
    assert resolve_overrides({"127.0.0.1": 5, "localhost": 1})["127.0.0.1"] == 5
    with pytest.raises(UnknownHostError, match=r"the host no-such-host\.invalid cannot be resolved"):
        resolve_overrides({"no-such-host.invalid": 1})


def test_hosts_have_limits_of_their_own() -> None:
    lines: list[str] = []
    quotas = ConnectionQuotas(
        Limits(max_connections_per_host=1, hosts=parse_overrides("10.0.0.1:2, [::1]:3,  host.name:0")), lines.append
    )
    entered = [quotas.add(host) for host in ["10.0.0.1"] * 3 + ["10.0.0.2"] * 2 + ["::1"] * 4 + ["host.name"]]
    assert entered == [True, True, False, True, False, True, True, True, False, False]
    assert quotas.count == 6 and len(lines) == 4
    quotas.remove("10.0.0.1")
    assert quotas.add("10.0.0.1")


@pytest.mark.parametrize(
    ("host", "plain"), [("::ffff:10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1"), ("::ffff:1:2", "::ffff:1:2")]
)
def test_an_ipv4_address_is_one_on_an_ipv6_socket_too(host: str, plain: str) -> None:
    assert plain_host(host) == plain


def test_more_in_a_second_than_may_be_come_in_the_next() -> None:
    quotas = ConnectionQuotas(Limits(connections_per_second=2), lambda line: None)
    assert quotas.delay_s(100.25) == 0
    quotas.add("a")
    assert quotas.delay_s(100.5) == 0
    quotas.add("b")
    assert quotas.delay_s(100.75) == 0.25
    assert quotas.delay_s(101.0) == 0

    async def test(shell: Shell) -> None:
        clients = [await shell.connect() for _ in range(3)]
        for client in clients:
            await client.send(framed(b"x"))
        for client in clients:
            assert await client.frame() == b"x"

    run(test, Limits(connections_per_second=2))


def test_a_system_without_descriptors_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept

    def exhausted(self: socket.socket) -> object:
        monkeypatch.setattr(socket.socket, "accept", accept)
        raise OSError(errno.EMFILE, "Too many open files")

    async def test(shell: Shell) -> None:
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        client = await shell.connect()
        assert await client.ask(b"x") == b"x"
        assert shell.lines == ["cannot accept connections: Too many open files; trying again"]

    run(test)


def test_who_is_idle_is_closed_and_who_is_not_is_not() -> None:
    async def test(shell: Shell) -> None:
        idle, half, busy, waiting = [await shell.connect() for _ in range(4)]
        await half.send(b"\0\0\0")
        assert await idle.ask(b"x") == b"x"
        shell.node.serve = silent
        await waiting.send(framed(b"x"))
        await shell.until(lambda: len(shell.node.frames) == 2)
        shell.node.serve = lambda event: [SendResponse(event.connection, framed(b"ok"))]

        async def keep_busy() -> None:
            while True:
                assert await busy.ask(b"x") == b"ok"
                await asyncio.sleep(0.02)

        task = asyncio.get_running_loop().create_task(keep_busy())
        for client in (idle, half, waiting):
            assert await client.is_closed()
        assert shell.driver.connection_count == 1
        task.cancel()
        assert 1 <= len(shell.lines) <= 3
        assert all("connections.max.idle.ms" in line for line in shell.lines)

    run(test, Limits(max_idle_ms=400))


def test_when_the_node_stops_nobody_is_let_in_and_nothing_is_said_of_each() -> None:
    async def test(shell: Shell) -> None:
        client = await shell.connect()
        shell.node.serve = lambda event: [CloseConnection(event.connection, "the broker stops")]
        await shell.until(lambda: shell.driver.connection_count == 1)
        shell.driver.is_stopping = True
        shell.driver.stop_listening(lambda listener: False)
        with pytest.raises(OSError):
            await shell.connect()
        await client.send(framed(b"x"))
        assert await client.is_closed()
        assert shell.lines == []

    run(test)


def test_many_come_and_go() -> None:
    """Connects and drops, in all ways: nothing is left behind, and one who stays is served all the while."""

    async def test(shell: Shell) -> None:
        before = open_descriptors()
        staying = await shell.connect()
        for count in range(600):
            client = await shell.connect()
            if count % 3 == 1:
                await client.send(b"\0\0\0\5hello"[: count % 9])
            client.close(reset=count % 2 == 0)
            if count % 50 == 0:
                assert await staying.ask(b"here") == b"here"
        staying.close()
        await shell.until(lambda: shell.driver.quotas.count == 0 and len(shell.node.of_kind(ConnectionClosed)) == 601)
        await shell.turns()
        assert open_descriptors() == before
        assert not shell.driver.quotas._by_host

    run(test)
