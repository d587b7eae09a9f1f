"""Real brokers for tests: one that runs on a copy of a given log directory and leaves it as old as it is; and kcli's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tests.conftest import ROOT
from tests.oracle.peer import Peer, free_ports
from tests.oracle.raw_requests import RawClient, wait_for_metadata

TOOL_SECONDS = 120
CLUSTER_ID = "kcliKcliKcliKcliKcliKg"  # of all that the peer formats
# A broker that is its own controller.
NODE = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
"""
STATIC_QUORUM = "controller.quorum.voters=1@127.0.0.1:{controller}\n"
DYNAMIC_QUORUM = "controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
# Nothing expires, no members either, nothing is cleaned or deleted, and no transaction is aborted for its age.
_CONFIG = (
    NODE
    + STATIC_QUORUM
    + """
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.consumer.session.timeout.ms=1000000
group.consumer.max.session.timeout.ms=1000000
group.share.session.timeout.ms=1000000
group.share.max.session.timeout.ms=1000000
group.streams.session.timeout.ms=1000000
group.streams.max.session.timeout.ms=1000000
log.retention.ms=-1
log.cleaner.enable=false
offsets.retention.minutes=2000000
transaction.abort.timed.out.transaction.cleanup.interval.ms=100000000
transactional.id.expiration.ms=2000000000
producer.id.expiration.ms=2000000000
metadata.max.idle.interval.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""
)


def release_options(peer: Peer) -> list[str]:
    """The options of `kcli format` for the features of a Kafka's release; those of 4.3 are the default."""
    return ["--release-version", peer.version] if peer.version != "4.3.1" else []


def copy_of_given(source: Path, target: Path) -> Path:
    """A copy of a given log directory that may be written to -> `target`."""
    shutil.copytree(source, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    return target


@contextmanager
def running_broker(peer: Peer, home: Path, data: Path) -> Iterator[str]:
    """Runs a broker on `data`; its settings and its output, broker.log, lie in `home` -> its address. It stops cleanly."""
    port = free_ports()
    (home / "server.properties").write_text(_CONFIG.format(port=port, controller=port + 1, data=data))
    with started_broker(peer, home, port) as bootstrap:
        yield bootstrap


@contextmanager
def new_broker(peer: Peer, home: Path, *settings: str, properties: str | None = None) -> Iterator[str]:
    """Runs a new broker, whose log directory is home/data; `settings` are KEY=VALUE -> its address. It stops cleanly.

    Where `properties` is given, it is the text of a server.properties in which {port}, {controller} and {data} are filled in,
    and the quorum is a dynamic one; `settings` are then more options of StorageTool.
    """
    port = free_ports()
    command = [str(peer.script), "format", str(home), str(port), *settings]
    if properties is not None:
        file = home / "server.properties"
        file.write_text(properties.format(port=port, controller=port + 1, data=home / "data"))
        formatting = ["format", "--standalone", "-t", CLUSTER_ID, "-c", str(file), *settings]
        command = [str(peer.script), "java", "kafka.tools.StorageTool", *formatting]
    subprocess.run(command, check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    with started_broker(peer, home, port) as bootstrap:
        yield bootstrap


@contextmanager
def broker_at(peer: Peer, home: Path, properties: str, data: Path) -> Iterator[str]:
    """Runs a broker on a directory that is formatted; `properties` as of new_broker -> its address. It stops cleanly."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_ports()
    (home / "server.properties").write_text(properties.format(port=port, controller=port + 1, data=data))
    with started_broker(peer, home, port) as bootstrap:
        yield bootstrap


@contextmanager
def started_broker(peer: Peer, home: Path, port: int) -> Iterator[str]:
    """Runs a broker on home/server.properties, which has its port -> its address. It stops cleanly.

    It may start before it knows which partitions it leads, which the controller decides when it has unfenced the broker.
    """
    _tell_broker(peer, "start", home)
    try:
        with closing(RawClient(f"127.0.0.1:{port}")) as client:
            wait_for_metadata(client)
        yield client.address
    finally:
        _tell_broker(peer, "stop", home)


def _tell_broker(peer: Peer, what: str, home: Path) -> None:
    """Start or stop the broker of `home`. Where that fails or takes long it is killed: AssertionError with its last words."""
    try:
        subprocess.run([peer.script, what, str(home)], check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        log = home / "broker.log"
        last_words = log.read_text(errors="replace")[-3000:] if log.exists() else "nothing"
        raise AssertionError(f"Apache Kafka did not {what}, and was killed: {error}; it said: {last_words}") from None


def ask(script: str, bootstrap: str, tool: str, *arguments: str) -> str:
    """What a tool of Kafka prints of the broker."""
    command = [script, "java", tool, "--bootstrap-server", bootstrap, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


class KcliBroker:
    """`kcli serve` on home/data as a process; it can be stopped as a person does, killed, and started again on the same port.

    `settings` are KEY=VALUE over the defaults. Where `properties` is given, it is the text of a server.properties in which
    {port}, {controller} and {data} are filled in; `data` is the log directory, home/data without it. `advertised` sets
    advertised.listeners, too, to the same address.
    """

    START_SECONDS = 60
    STOP_SECONDS = 30

    def __init__(
        self,
        home: Path,
        *settings: str,
        properties: str | None = None,
        data: Path | None = None,
        advertised: bool = False,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.data = data or home / "data"
        self.port = free_ports()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.log = home / "broker.log"
        own: tuple[str, ...] = (f"listeners=PLAINTEXT://{self.bootstrap}", f"log.dirs={self.data}")
        self._command = [sys.executable, "-m", "kcli", "serve"]
        if properties is not None:
            file = home / "server.properties"
            file.write_text(properties.format(port=self.port, controller=self.port + 1, data=self.data))
            self._command.append(str(file))
            own = ()
        if advertised:
            own = (*own, f"advertised.listeners=PLAINTEXT://{self.bootstrap}")
        self._command += [word for setting in (*own, *settings) for word in ("--override", setting)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KcliBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    @property
    def pid(self) -> int:
        """The process that serves."""
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """What it has told on stderr and stdout so far."""
        return self.log.read_text(errors="replace")

    def start(self) -> None:
        """Start and wait until it answers. Raises AssertionError with its last words where it does not."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + self.START_SECONDS
        while not answers(self.port):
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"kcli serve does not answer: {self.said()[-3000:]}")

    def stop(self) -> None:
        """End it by SIGTERM. Raises AssertionError where that takes long, or ends in another way than by exit code 0."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(self.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"kcli serve did not end within {self.STOP_SECONDS} s: {self.said()[-3000:]}") from None
        self._process = None
        assert code == 0, f"kcli serve ended with {code}: {self.said()[-3000:]}"

    def kill(self) -> None:
        """End it by SIGKILL, as a machine may."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def answers(port: int) -> bool:
    """Whether a broker answers ApiVersions version 0 on a port of this machine; waits a moment where none does."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return len(connection.recv(4)) == 4
    except OSError:
        time.sleep(0.02)  # a poll of another process, which gives no other sign
        return False
