"""Protects: whatever stands in a file of Kafka's name, each command ends as promised: exit code 0, 1 or 2, a sentence that
names the file and the byte, no traceback, nothing changed on disk, 100 MB of memory and a minute at most.

One file of each kind that Kafka has, in the directory that Kafka wrote around it, becomes empty, cut in half, random bytes,
zeros, a hole of 1 TB, or its own bytes with such a hole behind them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_cases import COMMANDS, CSV, DESCRIBE, DUMPS, JSON, KAFKA, REPAIR, TEXT, VERIFY, checker, names, names_byte
from tests.conftest import FIXTURES
from tests.forked_commands import CommandServer

TERABYTE = 1 << 40
# Kind of file -> where one is in fixtures/.
FILES = {
    "log": "kafka-logs/data/transactions-out-0/*0.log",
    "metadata-log": "kafka-logs/data/__cluster_metadata-0/*.log",
    "legacy-log": "kafka-logs-legacy/data/magic1-gzip-0/*.log",
    "index": "kafka-logs/data/transactions-out-0/*.index",
    "timeindex": "kafka-logs/data/transactions-out-0/*.timeindex",
    "txnindex": "kafka-logs/data/transactions-out-0/*.txnindex",
    "snapshot": "kafka-logs/data/transactions-out-0/*.snapshot",
    "leader-epochs": "kafka-logs/data/transactions-out-0/leader-epoch-checkpoint",
    "partition-metadata": "kafka-logs/data/transactions-out-0/partition.metadata",
    "quorum-state": "kafka-logs/data/__cluster_metadata-0/quorum-state",
    "metadata-snapshot": "kafka-logs/data/__cluster_metadata-0/*-*.checkpoint",
    "meta-properties": "kafka-logs/data/meta.properties",
    "recovery-points": "kafka-logs/data/recovery-point-offset-checkpoint",
    "high-watermarks": "kafka-logs/data/replication-offset-checkpoint",
    "clean-shutdown": "kafka-logs/data/.kafka_cleanshutdown",
    "bootstrap-checkpoint": "kafka-logs/data/bootstrap.checkpoint",
}


def hole(path: Path) -> None:
    os.truncate(path, TERABYTE)


BODIES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2 + 1),
    "random": lambda path: path.write_bytes(random.Random(path.name).randbytes(5000)),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "sparse": lambda path: (path.write_bytes(b""), hole(path)),
    "sound-then-sparse": hole,
}
# Bodies that are sound by themselves, or may be: indexes are preallocated with zeros, a lone entry tells nothing, a
# properties file may hold anything.
MAY_BE_SOUND = {
    *((kind, "empty") for kind in FILES),
    *(("index", body) for body in BODIES if body != "truncated"),
    *(("meta-properties", body) for body in ("random", "zeros")),
}


def damaged_directory(kind: str, body: str, tmp_path: Path) -> tuple[Path, Path]:
    """A log directory with one bad file -> it, the file."""
    original = sorted(path for path in FIXTURES.glob(FILES[kind]) if path.stat().st_size)[0]
    data = tmp_path / "data"
    data.mkdir()
    if original.parent.name == "data":
        for path in original.parent.iterdir():
            if path.is_file():
                shutil.copyfile(path, data / path.name)
        shutil.copytree(original.parent / "empty-0", data / "empty-0", copy_function=shutil.copyfile)
        bad = data / original.name
    else:
        shutil.copytree(original.parent, data / original.parent.name, copy_function=shutil.copyfile)
        bad = data / original.parent.name / original.name
    BODIES[body](bad)
    return data, bad


def survives(command_server: CommandServer, kind: str, body: str, tmp_path: Path) -> None:
    """Demand of all commands what the module promises, on the file and on the directory around it."""
    data, bad = damaged_directory(kind, body, tmp_path)
    check = checker(command_server, tmp_path)
    for command in COMMANDS if kind.endswith("log") else (*DUMPS, VERIFY, REPAIR, DESCRIBE):
        whole = check(command, data)
        if command == DESCRIBE:
            continue  # it takes directories alone
        run = check(command, bad)
        if (kind, body) not in MAY_BE_SOUND and command in (TEXT, JSON, CSV, VERIFY):
            # A mark of a clean stop that cannot be read counts as none: verify notes it, and the logs are sound.
            assert run.code == 1 or (kind, command) == ("clean-shutdown", VERIFY), f"{command}: {run.told}"
            assert names(run, bad) and names(whole, bad), command
        if kind.endswith("log") and body != "empty" and command in (*DUMPS, VERIFY):
            assert names_byte(run), f"{command}: {run.told}"
        if command == JSON:
            assert all(isinstance(json.loads(line), dict) for line in run.out.splitlines())
        if command == KAFKA and not bad.name.endswith((".log", "index", ".snapshot", ".checkpoint")):
            assert f"Ignoring unknown file {bad}" in run.err


@pytest.mark.parametrize("body", BODIES)
def test_a_bad_log(command_server: CommandServer, body: str, tmp_path: Path) -> None:
    """The file that everything is about."""
    survives(command_server, "log", body, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "log"])
def test_a_bad_file(command_server: CommandServer, kind: str, body: str, tmp_path: Path) -> None:
    """Each other kind of file."""
    survives(command_server, kind, body, tmp_path)


# Names that are nearly Kafka's, of files and of partitions' directories.
FILE_NAMES = (
    *(
        "0.log",
        "-1.log",
        ".log",
        "log",
        "foo.log",
        "99999999999999999999.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
    ),
    *("00000000000000000000.LOG", "00000000000000000000.log.bak", "00000000000000000000.log.deleted.deleted", "٣.log"),
    *("00000000000000000000.index.swap", "00000000000000000000", "0" * 240 + ".log", "a b\n\x1b[31m.log", "\udcff\udcfe.log"),
    *(
        "1.snapshot",
        "99999999999999999999.snapshot",
        "1-2.checkpoint",
        "-.checkpoint",
        "leader-epoch-checkpoint.tmp",
        "~",
        "*",
        "[a",
    ),
)
DIRECTORY_NAMES = (
    *("t", "-0", "t--1", "t-99999999999", "t-0-delete", "t-0.x-delete", "t-0-future", "t-0-stray", "a-0 ", "t-٣"),
    *("t-00", "\udcff-0", "a\nb-0", "\x1b[2J-1", "x" * 250 + "-0"),
)


@pytest.mark.parametrize("content", ["a log", "random bytes"])
def test_names_that_are_not_kafkas(command_server: CommandServer, tmp_path: Path, content: str) -> None:
    """Every such file and directory is passed over or told of; none is taken for what it is not, none ends the run."""
    log = next(FIXTURES.glob(FILES["log"])).read_bytes()[:4096] if content == "a log" else random.Random(1).randbytes(300)
    data = tmp_path / "data"
    for name in DIRECTORY_NAMES:
        (data / name).mkdir(parents=True)
        (data / name / f"{0:020d}.log").write_bytes(log)
    (data / "sound-0").mkdir()
    for name in FILE_NAMES:
        (data / "sound-0" / name).write_bytes(log)
        (data / name).write_bytes(log)
    check = checker(command_server, tmp_path)
    for command in COMMANDS:
        for path in (data, data / "sound-0", data / DIRECTORY_NAMES[1]):
            run = check(command, path)
            assert b"\x1b" not in run.out or command in DUMPS, f"an escape of a name reaches the terminal: {command}"
    for name in FILE_NAMES:
        assert names_of(check(KAFKA, data / "sound-0" / name).out, name)


def names_of(out: bytes, name: str) -> bool:
    return os.fsencode(name) in out
