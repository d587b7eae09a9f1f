"""Real brokers for tests: one that runs on a copy of a given log directory and leaves it as old as it is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.oracle.peer import Peer, free_ports

TOOL_SECONDS = 120
# Nothing expires, no members either, nothing is cleaned or deleted, and no transaction is aborted for its age.
_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
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
    with started_broker(peer, home):
        yield f"127.0.0.1:{port}"


@contextmanager
def new_broker(peer: Peer, home: Path, *settings: str) -> Iterator[str]:
    """Runs a new broker, whose log directory is home/data; `settings` are KEY=VALUE -> its address. It stops cleanly."""
    port = free_ports()
    command = [str(peer.script), "format", str(home), str(port), *settings]
    subprocess.run(command, check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    with started_broker(peer, home):
        yield f"127.0.0.1:{port}"


@contextmanager
def started_broker(peer: Peer, home: Path) -> Iterator[None]:
    """Runs a broker on home/server.properties. It stops cleanly."""
    script = str(peer.script)
    subprocess.run([script, "start", str(home)], check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([script, "stop", str(home)], check=True, timeout=TOOL_SECONDS)


def ask(script: str, bootstrap: str, tool: str, *arguments: str) -> str:
    """What a tool of Kafka prints of the broker."""
    command = [script, "java", tool, "--bootstrap-server", bootstrap, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
