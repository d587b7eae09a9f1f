"""A cluster for tests: the nodes of `kcli serve --brokers`, in an own directory and on free ports.

    from kcli.testing import Cluster

    with Cluster(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        ...
        cluster.kill(2)     # as a crash does; cluster.stop(2) stops in order
        cluster.start(2)    # returns when it serves again

The nodes are processes, as users run them: a kill is a SIGKILL, a pause a SIGSTOP, and no node shares a lock, a thread or a
garbage collector with the test. They are forked from one process that has imported the server, so a cluster of three is ready
after less than a second. A node that dies by itself is not started again, and `check()` reports it. Nodes in one process, in
virtual time and with disks that lose writes, are those of the simulator (`kcli simulate --workload cluster`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from kcli.server.supervisor.control import NodeAction, NodeState, Status, act, node_of, request
from kcli.server.supervisor.layout import ClusterError as ClusterError

START_S = 60.0
LOG = "log"
_POLL_S = 0.01


class Cluster:
    """A cluster that runs until the end of a `with`; nodes are named by their node.id: brokers from 1, controllers from 101.

    `settings` are keys of server.properties for all nodes. `controllers` are nodes that are only controllers; without any, the
    first three brokers are controllers as well. `directory` keeps the data; without it a temporary one is removed at the end.
    """

    def __init__(
        self,
        brokers: int = 3,
        controllers: int | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
        directory: str | os.PathLike[str] | None = None,
        timeout_s: float = START_S,
    ) -> None:
        self._is_temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="kcli-cluster-") if directory is None else directory)
        self.timeout_s = timeout_s
        self._command = [sys.executable, "-m", "kcli", "serve", "--brokers", str(brokers), "--port", "0", "--no-restart"]
        self._command += ["--data-dir", str(self.directory)]
        if controllers is not None:
            self._command += ["--controllers", str(controllers)]
        for key, value in settings.items():
            self._command += ["--override", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap_servers = ""

    def __enter__(self) -> Cluster:
        """Start all nodes. Raises ClusterError with the end of the log if they are not ready in time."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOG).open("ab") as log:
            began = (self.directory / LOG).stat().st_size
            self._process = subprocess.Popen(self._command, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._wait_until_ready(began)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_until_ready(self, began: int) -> None:
        assert self._process is not None
        tries = int(self.timeout_s / _POLL_S)
        for _ in range(tries):
            text = (self.directory / LOG).read_bytes()[began:].decode(errors="replace")
            if "the cluster is ready" in text:
                self.bootstrap_servers = self.status()["bootstrapServers"]
                return
            try:
                code = self._process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            raise ClusterError(f"the cluster did not start (exit code {code}): {text[-2000:]}")
        raise ClusterError(f"the cluster is not ready after {self.timeout_s:g} s: {text[-2000:]}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop all nodes in order, at once if that takes longer than the timeout, and remove a temporary directory."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                process.wait(self.timeout_s)
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def status(self) -> Status:
        """Return what `kcli cluster status --output json` prints. Raises ClusterError."""
        return request(str(self.directory), "status")

    def state(self, node_id: int) -> NodeState:
        """Return the state of a node. Raises ClusterError."""
        return NodeState(node_of(self.status(), node_id)["state"])

    @property
    def leader(self) -> int | None:
        """The node that leads the metadata quorum, None if there is none."""
        found: int | None = self.status()["leader"]
        return found

    def log(self) -> str:
        """Return the log of all nodes."""
        return (self.directory / LOG).read_text(errors="replace")

    def kill(self, node_id: int) -> None:
        """End a node at once, as a crash would. Raises ClusterError."""
        self._act(NodeAction.KILL, node_id)

    def stop(self, node_id: int) -> None:
        """Stop a node in order, and return when it has ended. Raises ClusterError."""
        self._act(NodeAction.STOP, node_id)

    def start(self, node_id: int) -> None:
        """Start a node that has ended, and return when it serves. Raises ClusterError."""
        self._act(NodeAction.START, node_id)

    def pause(self, node_id: int) -> None:
        """Stop the process of a node where it is, as a machine that hangs. Raises ClusterError."""
        self._act(NodeAction.PAUSE, node_id)

    def resume(self, node_id: int) -> None:
        """Let a paused node go on. Raises ClusterError."""
        self._act(NodeAction.RESUME, node_id)

    def check(self) -> None:
        """Raise ClusterError if a node has died by itself."""
        died = [f"{one['name']} died: {one['ended']}" for one in self.status()["nodes"] if one["state"] == NodeState.DIED]
        if died:
            raise ClusterError(f"{'; '.join(died)}; {self.directory / LOG} has the reason")

    def _act(self, action: NodeAction, node_id: int) -> None:
        act(str(self.directory), action, node_id, self.timeout_s)
