"""The clients that drivers are there for, how each is started, and what it cannot do.

    client         comes by                                              missing where
    -------------  ----------------------------------------------------  --------------------------------
    confluent      pip, the extra `dev`                                  never
    kafka-python   pip, the extra `dev`                                  never
    aiokafka       pip, the extra `dev`                                  never
    kcat           the system's package of that name                     it is not installed
    franz-go       go, modules pinned by franz_go/go.sum                 there is no go, or no module proxy
    java           the peer's jars (kafka-clients of the broker judged)  there is no peer
    kafkajs        npm, packages pinned by kafkajs/package-lock.json     there is no npm, or no registry

What is built or fetched goes to a folder of the test session, and to the caches of go and npm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT, missing
from tests.oracle.clients.plan import Record
from tests.oracle.peer import Peer

HERE = Path(__file__).resolve().parent
BUILD_SECONDS = 600


class Client(NamedTuple):
    """A client, and which of its limits a comparison must know."""

    name: str
    codecs: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    reads: bool = True
    sets_timestamps: bool = True
    tells_offsets: bool = True
    sends_nothing: bool = True  # a record that has neither key nor value
    sends_null_headers: bool = True
    creates_topics: bool = True

    def sendable(self, records: Sequence[Record]) -> list[Record]:
        """These records, less what the client cannot send: some, and headers without value."""
        kept = [record for record in records if self.sends_nothing or record.key is not None or record.value is not None]
        if self.sends_null_headers:
            return kept
        return [record._replace(headers=tuple(one for one in record.headers if one[1] is not None)) for record in kept]


CLIENTS = {
    client.name: client
    for client in (
        Client("confluent"),
        Client("kafka-python", sends_nothing=False, sends_null_headers=False),
        Client("aiokafka", sends_nothing=False),
        Client("java"),
        Client("franz-go"),
        Client("kcat", sets_timestamps=False, tells_offsets=False, creates_topics=False),
        Client("kafkajs", codecs=("none", "gzip", "snappy"), reads=False, sends_null_headers=False),
    )
}


def command_of(name: str, peer: Callable[[], Peer], work_dir: Path) -> list[str]:
    """The words that start a client's driver; the test is skipped, or fails under KCLI_STRICT, where it cannot be had.

    `peer` is asked only for the Java client; `work_dir` takes what is built.
    """
    if name == "java":
        return peer().java_command("JavaClient")
    if name == "franz-go":
        return [str(_built_franz_go(work_dir))]
    if name == "kafkajs":
        return ["node", str(_fetched_kafkajs(work_dir) / "driver.js")]
    if name == "kcat" and shutil.which("kcat") is None:
        missing("kcat is not installed (the system's package of that name has it)")
    module = f"tests.oracle.clients.{name.replace('-', '_')}_driver"
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", code]


def member_command_of(name: str, peer: Callable[[], Peer], work_dir: Path) -> list[str]:
    """The words that start a member of a group (see group_member.py); its settings, as JSON, follow them.

    Where it cannot be had, the test is skipped, or fails under KCLI_STRICT.
    """
    if name == "java":
        return peer().java_command("GroupMember")
    if name == "franz-go":
        return [str(_built_franz_go(work_dir, "member"))]
    return ["node", str(_fetched_kafkajs(work_dir) / "member.js")]


def _built_franz_go(work_dir: Path, package: str = "") -> Path:
    program = work_dir / f"franz_go_{package or 'driver'}"
    if not program.exists():
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            missing("no go on the PATH to build the franz-go driver with")
        _run([go, "build", "-mod=readonly", "-o", str(program), f"./{package}"], HERE / "franz_go")
    return program


def _fetched_kafkajs(work_dir: Path) -> Path:
    folder = work_dir / "kafkajs"
    if not (folder / "node_modules").is_dir():
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            missing("no node and npm on the PATH to run the KafkaJS driver with")
        shutil.copytree(HERE / "kafkajs", folder, dirs_exist_ok=True)
        _run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
    return folder


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if ran.returncode:
        missing(f"{' '.join(command[:2])} failed: {(ran.stdout + ran.stderr).strip()[-500:]}")
