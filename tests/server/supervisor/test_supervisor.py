"""Protects the lines of a cluster, each with the name of its node, and that no fault around it ends or blocks a supervisor."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcli.server.shell.supervised import Supervised
from kcli.server.supervisor import supervisor as supervisor_module
from kcli.server.supervisor.control import NodeState
from kcli.server.supervisor.layout import configure_node, plan_cluster
from kcli.server.supervisor.supervisor import FIRST_BACKOFF_S, REQUEST_S, RunOptions, Supervisor


def supervisor(directory: Path, options: RunOptions) -> Supervisor:
    layout = plan_cluster(str(directory), 10, None, None)
    return Supervisor(layout, [configure_node(layout, node, None, [], strict=False) for node in layout.nodes], options, 0.0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (RunOptions(), r"node-1  \| \S+Z INFO a sentence"),
        (RunOptions(has_colours=True), "\x1b\\[36mnode-1  \\|\x1b\\[0m \\S+Z INFO a sentence"),
    ],
)
def test_names_are_padded_and_coloured(
    options: RunOptions, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor(tmp_path, options).log_writer("node-1", 36)("a sentence")
    assert re.fullmatch(line + "\n", capfd.readouterr().err)


def test_a_field_of_json_has_the_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Colours are not for programs."""
    supervisor(tmp_path, RunOptions("json", has_colours=True)).log_writer("node-1", 36)("a sentence", node=1)
    found = json.loads(capfd.readouterr().err)
    assert (found["node_name"], found["message"], found["node"]) == ("node-1", "a sentence", 1)


PID = 999_999_999  # of no process: above the largest id of Linux


class Clock:
    """The time of the supervisor, in s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The sockets between the supervisor and its nodes: its own end, then the node's, for each start."""
    made: list[socket.socket] = []
    create = socket.socketpair

    def socketpair() -> tuple[socket.socket, socket.socket]:
        pair = create()
        made.extend(pair)
        return pair

    monkeypatch.setattr(socket, "socketpair", socketpair)
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("call", ["fork", "socketpair"])
def test_a_node_that_cannot_be_forked_is_started_again_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    clock: Clock,
    pairs: list[socket.socket],
    call: str,
) -> None:
    """Neither the supervisor nor the other nodes end when the machine has no process or descriptor left."""
    made = supervisor(tmp_path, RunOptions())
    member = made._members[1]

    def fails() -> Any:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(os if call == "fork" else socket, call, fails)
        for backoff_s in (FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S):
            member.starts_at = clock.now
            made._start_due()
            assert (member.state, member.pid, member.starts_at) == (NodeState.DIED, None, clock.now + backoff_s)
            (line,) = capfd.readouterr().err.splitlines()
            assert "node-1 cannot be started: Resource temporarily unavailable" in line and f"again in {backoff_s:g} s" in line
    assert all(one.fileno() == -1 for one in pairs)
    monkeypatch.setattr(os, "fork", lambda: PID)
    made._start_due()
    assert member.pid is None, "it is not due yet"
    clock.now += 2 * FIRST_BACKOFF_S
    made._start_due()
    (node, *_) = made.status()["nodes"]
    assert (node["state"], node["pid"], node["starts"], member.starts_at) == (NodeState.STARTING, PID, 1, None)


def test_a_node_that_becomes_ready_as_it_is_paused_is_ready_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], pairs: list[socket.socket]
) -> None:
    """Its word is read after the request; the line that all are ready follows the end of the pause."""
    made = supervisor(tmp_path, RunOptions())
    member = made._members[1]

    def fork() -> int:
        pairs.append(pairs[-1].dup())
        return PID

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    made._start(member)
    for other in made._members.values():
        if other is not member:
            other.state = NodeState.READY
    pairs[-1].send(Supervised.READY)
    assert made._answer(b'{"action": "pause", "node": 1}')["nodes"][0]["state"] == NodeState.PAUSED
    made._receive(member)
    assert member.state == NodeState.PAUSED and "the cluster is ready" not in capfd.readouterr().err
    assert made._answer(b'{"action": "resume", "node": 1}')["nodes"][0]["state"] == NodeState.READY
    assert "the cluster is ready" in capfd.readouterr().err


def test_a_request_that_comes_byte_by_byte_is_read_for_a_second_in_all(tmp_path: Path, clock: Clock) -> None:
    """Signals and restarts wait while a request is read."""
    timeouts: list[float] = []

    class Dribbling:
        """A connection with a byte every 0.3 s, and none within a shorter timeout."""

        settimeout = timeouts.append
        is_open = True

        def recv(self, size: int) -> bytes:
            assert len(timeouts) < 100
            clock.now += min(0.3, timeouts[-1])
            if timeouts[-1] < 0.3:
                raise TimeoutError
            return b" "

        def __enter__(self) -> Dribbling:
            return self

        def __exit__(self, *error: object) -> None:
            self.is_open = False

    connection, began = Dribbling(), clock.now
    control: Any = SimpleNamespace(accept=lambda: (connection, None))
    supervisor(tmp_path, RunOptions())._accept(control)
    assert not connection.is_open
    assert len(timeouts) == 4 and clock.now - began == pytest.approx(REQUEST_S)
