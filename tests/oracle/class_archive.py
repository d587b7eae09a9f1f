"""Kafka's classes in an archive that each JVM of the tests maps, instead of loading and checking them anew.

A start of a broker takes half the CPU time so, and a tool of Kafka, too: the tests start hundreds of them. Three programs list
what they load (StorageTool, a broker, and one JVM with the tools and clients below); the JVM writes an archive of these classes
(class data sharing), in half a minute. It is made once for a version of Kafka and of Java, and kept next to the jars. The JVM
ignores it if the jars or Java are others than those it was made of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer, ToolCase

TOOLS = "org.apache.kafka.tools."
DUMP_SECONDS = 300


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process makes `path` at a time."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def class_archive(peer: Peer) -> Path | None:
    """The archive for the jars of `peer`, made if it is missing; None where this Java makes none."""
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    source = Path(__file__).read_bytes()
    archive = peer.libs_dir.parent / f"classes-{peer.version}-{hashlib.sha256(java + source).hexdigest()[:12]}.jsa"
    with alone(archive):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=peer.work_dir) as work:
                make_archive(peer, Path(work), archive)
    return archive if archive.stat().st_size else None


def make_archive(peer: Peer, work: Path, archive: Path) -> None:
    """Write the archive, or an empty file where this Java cannot."""
    classes: set[str] = set()
    for loaded in loaded_classes(peer, work):
        # The first lines are comments; a program of ours is not in the jars.
        classes.update(line for line in loaded.read_text().splitlines() if line[:1] != "#" and not line.startswith("RunTools"))
    listed, made = work / "classes", work / "archive"
    listed.write_text("\n".join(sorted(classes)) + "\n")
    flags = ["-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={made}"]
    command = [str(peer.script), "java", *flags]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DUMP_SECONDS, check=False)
    # The temporary directory may be on another file system, and a process that is killed leaves no half of an archive.
    copy = archive.with_suffix(".new")
    copy.write_bytes(made.read_bytes() if ran.returncode == 0 and made.exists() else b"")
    copy.replace(archive)


def loaded_classes(peer: Peer, work: Path) -> list[Path]:
    """Run a broker and tools of Kafka -> the lists of the classes that each of their JVMs loaded."""
    before = os.environ.get("KAFKA_PEER_OPTS")
    os.environ["KAFKA_PEER_OPTS"] = f"-Xmx1g -XX:DumpLoadedClassList={work}/%p.loaded"
    try:
        home = work / "broker"
        with new_broker(peer, home) as bootstrap:
            peer.run_tools(list(tool_cases(bootstrap, home / "data")))
    finally:
        del os.environ["KAFKA_PEER_OPTS"]
        if before is not None:
            os.environ["KAFKA_PEER_OPTS"] = before
    return list(work.glob("*.loaded"))


def tool_cases(bootstrap: str, data: Path) -> Iterator[ToolCase]:
    """A few tools, with the Java admin client, producer and consumer."""
    at = ("--bootstrap-server", bootstrap)
    reading = (*at, "--topic", "t", "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000")
    yield ToolCase(f"{TOOLS}TopicCommand", (*at, "--create", "--topic", "t"))
    yield ToolCase(f"{TOOLS}ConsoleProducer", (*at, "--topic", "t"), "a\nb\n")
    yield ToolCase(f"{TOOLS}consumer.ConsoleConsumer", (*reading, "--group", "classic"))
    yield ToolCase(f"{TOOLS}consumer.ConsoleConsumer", (*reading, "--command-property", "group.protocol=consumer"))
    yield ToolCase(f"{TOOLS}consumer.group.ConsumerGroupCommand", (*at, "--describe", "--all-groups"))
    yield ToolCase("kafka.admin.ConfigCommand", (*at, "--describe", "--entity-type", "brokers"))
    yield ToolCase(f"{TOOLS}DumpLogSegments", ("--print-data-log", "--files", str(data / "t-0" / f"{0:020}.log")))
