"""Controllers and brokers of a cluster as processes of their own, on directories formatted for a static or dynamic quorum."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kcli.format.metadata_files import QuorumStateData, decode_quorum_state
from kcli.format.primitives import FormatError
from kcli.server.controller.formatting import METADATA_PARTITION
from kcli.server.raft.metadata_batches import decode_batches
from tests.server.live import PATIENCE_S, wait_for

CLUSTER_ID = "kcliKcliKcliKcliKcliKg"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def addresses(ports: list[int]) -> str:
    """The addresses of controllers, as bootstrap.controllers has them."""
    return ",".join(f"127.0.0.1:{port}" for port in ports)


class Controller:
    """One node; `command` starts it with its server.properties as the last argument.

    It is the controller number `node_id` of those with `ports`, a broker on `broker_port`, or both. Its quorum is static, or
    dynamic (KIP-853) with `is_dynamic`: then its directory is formatted with the first voters.
    """

    def __init__(
        self,
        home: Path,
        node_id: int,
        ports: list[int],
        command: list[str],
        *settings: str,
        is_dynamic: bool = False,
        broker_port: int | None = None,
    ) -> None:
        self.home = home / str(node_id)
        self.home.mkdir(parents=True)
        self.node_id = node_id
        self.command = command
        self.properties = self.home / "server.properties"
        voters = "controller.quorum.voters=" + ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))
        if is_dynamic:
            voters = f"controller.quorum.bootstrap.servers={addresses(ports)}"
        roles, listeners = [], []
        if broker_port is not None:
            roles.append("broker")
            listeners.append(f"PLAINTEXT://127.0.0.1:{broker_port}")
        if node_id <= len(ports):
            roles.append("controller")
            listeners.append(f"CONTROLLER://127.0.0.1:{ports[node_id - 1]}")
        self.broker_port = broker_port
        lines = (
            f"process.roles={','.join(roles)}",
            f"node.id={node_id}",
            f"listeners={','.join(listeners)}",
            "controller.listener.names=CONTROLLER",
            voters,
            f"log.dirs={self.home / 'data'}",
            *settings,
        )
        self.properties.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def format_by_kcli(self, *options: str, cluster_id: str = CLUSTER_ID) -> Controller:
        """Format the directory; a dynamic quorum needs an option for its first voters."""
        return self.format_by([sys.executable, "-m", "kcli", "format"], *options, cluster_id=cluster_id)

    def format_by(self, tool: list[str], *options: str, cluster_id: str = CLUSTER_ID) -> Controller:
        """Format the directory by a tool with the options of Kafka's StorageTool."""
        command = [*tool, "-c", str(self.properties), "--cluster-id", cluster_id, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=2 * PATIENCE_S)
        return self

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen([*self.command, str(self.properties)], stdout=log, stderr=log, cwd=self.home)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the process, if it runs."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE_S)
            self.process = None

    def ended(self) -> tuple[int, str]:
        """Wait until the process ends by itself, and return its exit code and the last line of its log."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code, self.log().splitlines()[-1]

    @property
    def bootstrap(self) -> str:
        """The address of its broker."""
        return f"127.0.0.1:{self.broker_port}"

    def log(self) -> str:
        """What it has said."""
        return (self.home / "log").read_text(errors="replace")

    @property
    def metadata_log(self) -> bytes:
        """The segments of the metadata log, which begins behind a snapshot that was fetched. FileNotFoundError without any."""
        segments = sorted((self.home / "data" / METADATA_PARTITION).glob("*.log"))
        if not segments:
            raise FileNotFoundError(f"{self.home}: no segment of the metadata log")
        return b"".join(segment.read_bytes() for segment in segments)

    def has_records_of(self, epoch: int) -> bool:
        """Return whether the metadata log has records of an epoch; its end may be in the middle of an append, or replaced."""
        try:
            return any(batch.leader_epoch == epoch for batch in decode_batches(self.metadata_log))
        except (FormatError, FileNotFoundError):
            return False

    @property
    def election(self) -> QuorumStateData:
        """Its quorum-state; one of epoch 0 before there is any."""
        try:
            return decode_quorum_state((self.home / "data" / METADATA_PARTITION / "quorum-state").read_bytes())
        except FileNotFoundError:
            return QuorumStateData(0, -1, 0, -1)


class Quorum:
    """Controllers that run until the end of a `with`."""

    def __init__(self, controllers: list[Controller]) -> None:
        self.controllers = {one.node_id: one for one in controllers}

    def __enter__(self) -> Quorum:
        for one in self.controllers.values():
            one.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.controllers.values():
            one.end()

    def elected(self, above_epoch: int = 0) -> Controller:
        """Wait until all that run have the same leader in an epoch above one, and records of its epoch; return it."""

        up = [one for one in self.controllers.values() if one.process is not None]
        elected: list[Controller] = []

        def is_elected() -> bool:
            for one in up:
                assert one.process is not None
                assert one.process.poll() is None, one.log()
            found = {(one.election.leader_epoch, one.election.leader_id) for one in up}
            ((epoch, leader_id), *others) = found
            if others or epoch <= above_epoch or leader_id < 0 or self.controllers[leader_id].process is None:
                return False
            elected.append(self.controllers[leader_id])
            return all(one.has_records_of(epoch) for one in up)

        wait_for(is_elected)
        return elected[-1]

    def common_log(self) -> bytes:
        """What all logs begin with, as long as the shortest is; AssertionError if they differ."""
        logs = [one.metadata_log for one in self.controllers.values()]
        shortest = min(map(len, logs))
        assert len({log[:shortest] for log in logs}) == 1
        return logs[0][:shortest]


def kcli_command() -> list[str]:
    """The command of a controller of kcli."""
    return [sys.executable, "-m", "kcli", "serve"]


def faults(controllers: list[Controller]) -> list[str]:
    """The lines in which controllers of kcli report errors."""
    lines = (line for one in controllers for line in one.log().splitlines())
    return [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|Traceback", line)]
