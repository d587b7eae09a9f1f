"""Protects `kcli serve --brokers`: its nodes start, die, come back, grow and stop as a person expects who runs them at home."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kcli.client import Admin, Consumer, NewTopic, Producer
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import OffsetSpec
from kcli.client.errors import ClientError
from kcli.commands.app import main
from kcli.server.supervisor.control import node_of, request
from tests.server.live import PATIENCE_S, wait_for
from tests.server.test_quorum_live import leaders_of

pytestmark = pytest.mark.ci


class LocalCluster:
    """`kcli serve --brokers N` in `home`/cluster, on free ports; its log is a file in `home`."""

    def __init__(self, home: Path, brokers: int, *options: str, overrides: tuple[str, ...] = (), port: int = 0) -> None:
        self.directory = home / "cluster"
        self.log_path = home / f"log-{len(list(home.glob('log-*')))}"
        words = ["serve", "--brokers", str(brokers), "--port", str(port), "--data-dir", str(self.directory), *options]
        words += [word for override in overrides for word in ("--override", override)]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "kcli", *words], stderr=log)

    def __enter__(self) -> LocalCluster:
        self.wait_for_line("the cluster is ready after")
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()  # its nodes end with it

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_for_line(self, *texts: str) -> None:
        """Wait for a line with all the texts."""

        def is_there() -> bool:
            if any(all(text in line for text in texts) for line in self.log().splitlines()):
                return True
            assert self.process.poll() is None, self.log()
            return False

        wait_for(is_there)

    def status(self) -> dict[str, object]:
        return request(str(self.directory), "status")

    def pids(self) -> dict[int, int]:
        return {node["node"]: node["pid"] for node in self.status()["nodes"]}  # type: ignore[attr-defined]

    def is_ready(self, node_id: int, starts: int = 1) -> bool:
        node = node_of(self.status(), node_id)
        return node["state"] == "ready" and node["starts"] >= starts

    @property
    def settings(self) -> dict[str, str | int]:
        return {"bootstrap.servers": str(self.status()["bootstrapServers"]), "default.api.timeout.ms": 60_000}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def write(settings: dict[str, str | int], topic: str, partitions: int, values: list[bytes]) -> None:
    with Producer(settings) as producer:
        errors: list[object] = []
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions, on_delivery=lambda _, error: errors.append(error))
        producer.flush(PATIENCE_S)
    assert errors == [None] * len(values)


def test_three_nodes_are_a_cluster_that_stops_in_order(tmp_path: Path) -> None:
    """All take part; brokers stop before controllers, none by force; the next start has the topic and the ports."""
    with LocalCluster(tmp_path, 3) as cluster, Admin(cluster.settings) as admin:
        before = cluster.settings
        assert [node.node_id for node in admin.describe_cluster().nodes] == [1, 2, 3]
        assert sorted(one.replica_id for one in admin.describe_metadata_quorum().voters) == [1, 2, 3]
        value_of(admin.create_topics([NewTopic("t", 3, 1)])["t"])
        wait_for(lambda: set(leaders_of(admin, "t").values()) == {1, 2, 3})
        write(cluster.settings, "t", 3, [b"kept"] * 3)
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(PATIENCE_S) == 0
    lines = cluster.log().splitlines()
    assert "the cluster has stopped" in lines[-1]
    assert [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|has not approved|again: ending", line)] == []
    assert len([line for line in lines if "has stopped (exit code 0)" in line]) == 3
    # Each line has the name of a node or of the cluster, padded, and no colour.
    assert {line.partition(" | ")[0] for line in lines} == {"node-1 ", "node-2 ", "node-3 ", "cluster"}
    with LocalCluster(tmp_path, 3) as cluster, Admin(cluster.settings) as admin:
        assert cluster.settings == before
        wait_for(lambda: set(leaders_of(admin, "t").values()) == {1, 2, 3})
        assert "recover" not in cluster.log()


def test_a_node_that_dies_is_reported_and_started_again(tmp_path: Path) -> None:
    """By a signal with its name; a person's kill stays until a start, and --no-restart leaves it as it is.
    A leader of the quorum that is stopped is not shown as its leader."""
    settings = ("broker.session.timeout.ms=2000",)
    with LocalCluster(tmp_path, 3, overrides=settings) as cluster:
        os.kill(cluster.pids()[2], signal.SIGKILL)
        cluster.wait_for_line("cluster |", "WARN", "node-2 died: signal SIGKILL; it is started again in 0.5 s")
        wait_for(lambda: cluster.is_ready(2, starts=2))
        where = ["--data-dir", str(cluster.directory)]
        assert main(["cluster", "kill", "2", *where]) == 0
        assert node_of(cluster.status(), 2)["state"] == "stopped"
        assert main(["cluster", "kill", "2", *where]) == 2
        assert main(["cluster", "start", "2", *where]) == 0
        assert cluster.is_ready(2, starts=3)
        # One voter of three is left: it elects no leader, and keeps on its disk that the stopped one was it.
        leader = int(str(cluster.status()["leader"]))
        for node_id in (leader % 3 + 1, leader):
            assert main(["cluster", "kill", str(node_id), *where]) == 0
        assert cluster.status()["leader"] is None
        for node_id in (leader % 3 + 1, leader):
            assert main(["cluster", "start", str(node_id), *where]) == 0
    with LocalCluster(tmp_path, 3, "--no-restart", overrides=settings) as cluster:
        os.kill(cluster.pids()[3], signal.SIGSEGV)
        cluster.wait_for_line("node-3 died: signal SIGSEGV")
        assert node_of(cluster.status(), 3)["state"] == "died"
        assert main(["cluster", "start", "3", "--data-dir", str(cluster.directory)]) == 0


def test_the_commands_on_its_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What they do is what the processes do; what cannot be done is a sentence and exit code 2."""
    with LocalCluster(tmp_path, 3) as cluster:
        where = ["--data-dir", str(cluster.directory)]

        def run(*words: str) -> str:
            code = main(["cluster", *words, *where])
            printed, errors = capfd.readouterr()
            assert code == (2 if errors else 0), (printed, errors)
            return errors or printed

        assert run("status").count("  ready  ") == 3
        shown = json.loads(run("stop", "3", "--output", "json"))
        assert [node["state"] for node in shown["nodes"]] == ["ready", "ready", "stopped"]
        assert (shown["nodes"][2]["pid"], shown["nodes"][2]["ended"]) == (None, "exit code 0")
        assert "kcli: node-3 is stopped: kcli cluster start 3 starts it" in run("pause", "3")
        assert run("start", "node-3").count("  ready  ") == 3
        leader = shown["leader"]
        other = next(node for node in (1, 2) if node != leader)
        run("pause", str(other))
        state = Path(f"/proc/{cluster.pids()[other]}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        assert f"node-{other} is paused: it cannot be paused again" in run("pause", str(other))
        run("resume", str(other))
        assert "it cannot be resumed" in run("resume", str(other))
        assert "the cluster has no node 7; it has 1, 2, 3" in run("kill", "7")
        run("pause", str(other))  # the end of the cluster does not hang at it
        assert "has stopped" in run("stop")
        assert cluster.process.wait(PATIENCE_S) == 0
        assert "no cluster runs in" in run("status")


def test_clients_that_start_while_a_leader_is_stopped_use_the_next_one(tmp_path: Path) -> None:
    """A stopped process (SIGSTOP) accepts connections and never answers. It also leads the quorum."""
    with LocalCluster(tmp_path, 3, overrides=("broker.session.timeout.ms=6000",)) as cluster:
        where = ["--data-dir", str(cluster.directory)]
        leader = int(str(cluster.status()["leader"]))
        settings = cluster.settings
        replicas = [leader, *({1, 2, 3} - {leader})]
        with Admin(settings) as admin:
            value_of(admin.create_topics([NewTopic("t", assignments={0: replicas, 1: replicas})])["t"])
            wait_for(lambda: leaders_of(admin, "t") == {0: leader, 1: leader})
        write(settings, "t", 2, [b"before"] * 2)
        assert main(["cluster", "pause", str(leader), *where]) == 0
        write(settings, "t", 2, [b"after"] * 2)
        with Admin(settings) as admin, Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
            ends = admin.list_offsets(dict.fromkeys((("t", 0), ("t", 1)), int(OffsetSpec.LATEST)))
            assert [value_of(one).offset for one in ends.values()] == [2, 2]
            consumer.subscribe(["t"])
            found: list[object] = []

            def is_read() -> bool:
                found.extend(one.value for one in consumer.poll(1.0))
                return len(found) >= 4

            wait_for(is_read)
            assert sorted(map(str, found)) == ["b'after'"] * 2 + ["b'before'"] * 2
        assert main(["cluster", "resume", str(leader), *where]) == 0


def test_it_grows(tmp_path: Path) -> None:
    """From one node to three, whose controllers become voters, and to four; a record of the first start is there."""
    with LocalCluster(tmp_path, 1) as cluster, Admin(cluster.settings) as admin:
        value_of(admin.create_topics([NewTopic("t", 1, 1)])["t"])
        write(cluster.settings, "t", 1, [b"kept"])
    for brokers, voters in ((3, [1, 2, 3]), (4, [1, 2, 3])):
        with LocalCluster(tmp_path, brokers) as cluster, Admin(cluster.settings) as admin:
            wait_for(lambda: sorted(one.replica_id for one in admin.describe_metadata_quorum().voters) == voters)  # noqa: B023
            assert [node.node_id for node in admin.describe_cluster().nodes] == [*range(1, brokers + 1)]
            found = value_of(admin.list_offsets({("t", 0): -1})["t", 0])
            assert found.offset == 1


def test_a_replaced_disk_is_filled_again(tmp_path: Path) -> None:
    """A controller whose directory is gone gets another directory id, follows, and takes the place of its voter."""
    with LocalCluster(tmp_path, 3):
        pass
    shutil.rmtree(tmp_path / "cluster" / "node-2")
    with LocalCluster(tmp_path, 3) as cluster, Admin(cluster.settings) as admin:
        meta = (tmp_path / "cluster" / "node-2" / "meta.properties").read_text()

        def is_voter() -> bool:
            try:
                voters = admin.describe_metadata_quorum().voters
            except ClientError:
                return False
            return any(one.replica_id == 2 and str(one.directory_id) in meta for one in voters) and len(voters) == 3

        wait_for(is_voter)
        assert "node-2 is empty; it is formatted for the cluster" in cluster.log()


def test_dedicated_controllers_and_json_lines(tmp_path: Path) -> None:
    """Each line is an object with the name of its node."""
    with LocalCluster(tmp_path, 1, "--controllers", "1", "--log-format", "json") as cluster:
        roles = {node["node"]: node["roles"] for node in cluster.status()["nodes"]}  # type: ignore[attr-defined]
        assert roles == {1: "broker", 101: "controller"}
    lines = [json.loads(line) for line in cluster.log().splitlines()]
    assert {line["node_name"] for line in lines} == {"cluster", "node-1", "node-101"}
    stopped = [line["node_name"] for line in lines if line["message"] == "stopped"]
    assert stopped == ["node-1", "node-101"]


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """Also if a broker cannot stop, because no controller is left to approve it."""
    with LocalCluster(tmp_path, 1, "--controllers", "1") as cluster:
        pids = cluster.pids()
        assert main(["cluster", "kill", "101", "--data-dir", str(cluster.directory)]) == 0
        cluster.process.send_signal(signal.SIGINT)
        cluster.wait_for_line("0 of 1 controllers run, too few to approve the stop of the brokers")

        def has_ended() -> bool:  # a signal within half a second is taken for the same one
            cluster.process.send_signal(signal.SIGINT)
            return cluster.process.poll() is not None

        wait_for(has_ended)
        assert cluster.process.wait(PATIENCE_S) == 1
        wait_for(lambda: not any(map(is_alive, pids.values())))


def test_the_nodes_end_with_their_parent(tmp_path: Path) -> None:
    """A parent that is killed leaves no process that has the ports; the next start is as any other."""
    with LocalCluster(tmp_path, 3) as cluster:
        pids = cluster.pids()
        cluster.process.kill()
        cluster.process.wait(PATIENCE_S)
        wait_for(lambda: not any(map(is_alive, pids.values())))
    with LocalCluster(tmp_path, 3):
        pass


def test_a_cluster_that_cannot_start(tmp_path: Path) -> None:
    """A port that another process has: the node's sentence, the others stop, exit code 2. The directory has one cluster at a
    time."""
    with ExitStack() as sockets:
        while True:  # the controllers' ports are 10,000 above those of the brokers
            taken = sockets.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            if taken.getsockname()[1] < 55_000:
                break
        taken.listen()
        cluster = LocalCluster(tmp_path, 2, port=taken.getsockname()[1])
        try:
            assert cluster.process.wait(PATIENCE_S) == 2
        finally:
            cluster.process.kill()
    assert "another process has it" in cluster.log()
    assert "node-1 cannot start (exit code 2)" in cluster.log()
    assert "node-2 has stopped (exit code 0)" in cluster.log()
    home = tmp_path / "other"
    home.mkdir()
    with LocalCluster(home, 1):
        again = LocalCluster(home, 1)
        assert again.process.wait(PATIENCE_S) == 2
        assert re.fullmatch(r"kcli: the cluster in \S+ runs already: kcli cluster stop --data-dir .*\n", again.log())


def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    """The names have colours; the nodes write also after `stty tostop`, and only the parent gets the signal."""
    own, terminal = pty.openpty()
    settings = termios.tcgetattr(terminal)
    settings[3] |= termios.TOSTOP
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    command = [sys.executable, "-m", "kcli", "serve", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path / "cluster")]
    process = subprocess.Popen(
        command,
        stdin=terminal,
        stderr=terminal,
        env={**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    seen = b""

    def has(text: bytes) -> bool:
        nonlocal seen
        if select.select([own], [], [], 0.1)[0]:
            with suppress(OSError):  # the end of the last process
                seen += os.read(own, 1 << 16)
        return text in seen

    try:
        wait_for(lambda: has(b"the cluster is ready"))
        os.write(own, b"\x03")
        wait_for(lambda: has(b"the cluster has stopped"))
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        os.close(own)
    assert seen.count(b"has stopped (exit code 0)") == 3
    assert {b"\x1b[36mnode-1 ", b"\x1b[33mnode-2 ", b"\x1b[32mnode-3 "} <= set(re.findall(rb"\x1b\[\d+mnode-\d ", seen))
