"""Protects: what stands around a file does no harm either: no permission, pipes, sockets, devices and directories where files
should be, links in circles, readers that go away, a full disk behind stdout, a file that shrinks while it is read."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.format import limits
from kcli.log.disk import os_disk as disk
from kcli.log.disk.os_disk import OsFile
from tests.bad_cases import COMMANDS, DESCRIBE, DUMPS, JSON, KAFKA, TEXT, VERIFY, Check, checker, names
from tests.forked_commands import CommandServer
from tests.inspect.verified import batch, partition, root_files
from tests.log_builder import PartitionBuilder

ROOT = Path(__file__).resolve().parents[1]
LOG = f"{0:020d}.log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory with two sound partitions."""
    root = tmp_path / "data"
    partition(root, "sound-0", [batch(0, 2), batch(2)])
    partition(root, "t-0", [batch(0, 2), batch(2)], snapshots={3: []})
    root_files(root)
    return root


# ---------------------------------------------------------------------------------------------------------- permission


DENIED = [
    "t-0/" + LOG,
    f"t-0/{0:020d}.index",
    f"t-0/{3:020d}.snapshot",
    "t-0/leader-epoch-checkpoint",
    "t-0",
    "meta.properties",
    "",
]


@pytest.mark.parametrize("denied", DENIED)
def test_no_permission(command_server: CommandServer, data: Path, denied: str) -> None:
    """What may not be read is told by its name, with exit code 1 or 2; everything beside it is shown."""
    place = data / denied
    mode = place.stat().st_mode
    place.chmod(0)
    try:
        refused_by_all(checker(command_server, data.parent, as_root=False), data, denied)
    finally:
        place.chmod(mode)


def refused_by_all(check: Check, root: Path, denied: str) -> None:
    """Demand of every command that it tells of what it may not read."""
    for command in COMMANDS:
        run = check(command, root)
        ignored = command == KAFKA and denied.endswith(("checkpoint", "properties"))
        unread = command == DESCRIBE and denied.endswith(("index", "snapshot"))
        if not ignored and not unread:
            assert run.code in (1, 2), f"{command}: {run.told}"
            assert names(run, root / denied) and "ermission denied" in run.told, f"{command}: {run.told}"
        if command in (TEXT, KAFKA) and denied:
            assert b"sound-0" in run.out


# ------------------------------------------------------------------------------------------------- files that are none

NAMES = [LOG, f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.txnindex", f"{3:020d}.snapshot", "leader-epoch-checkpoint"]


def put(kind: str, path: Path) -> None:
    """Something that is no file, under a file's name."""
    path.unlink(missing_ok=True)
    match kind:
        case "directory":
            path.mkdir()
            (path / LOG).write_bytes(batch(0).encode())
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.getcwd()
            os.chdir(path.parent)  # the name of a socket may have 108 bytes at most
            try:
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(path.name)
            finally:
                os.chdir(here)
        case "endless device":
            path.symlink_to("/dev/zero")
        case "dangling link":
            path.symlink_to("nowhere")
        case _:
            path.symlink_to(path.name)


KINDS = ("directory", "pipe", "socket", "endless device", "dangling link", "link to itself")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file(command_server: CommandServer, data: Path, kind: str, tmp_path: Path) -> None:
    """In the place of each file of a partition and of the log directory: nothing waits, the other partition is shown."""
    for name in NAMES:
        put(kind, data / "t-0" / name)
    for name in ("meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        put(kind, data / name)
    check = checker(command_server, tmp_path)
    for command in COMMANDS:
        run = check(command, data)
        if command in DUMPS:
            assert b"sound-0" in run.out or command[2] == "csv"
        if command != DESCRIBE:
            alone = check(command, data / "t-0" / LOG)
            assert kind == "directory" or (alone.code != 0 and names(alone, data / "t-0" / LOG)), f"{command}: {alone.told}"


def test_links_in_circles(command_server: CommandServer, data: Path, tmp_path: Path) -> None:
    """Directories that link to themselves, to each other and to those above are walked once."""
    (data / "u-0").symlink_to("t-0")
    (data / "t-0" / "up-0").symlink_to("..")
    (data / "here-0").symlink_to(".")
    (data / "a-0").symlink_to("b-0")
    (data / "b-0").symlink_to("a-0")
    check = checker(command_server, tmp_path)
    for command in COMMANDS:
        assert len(check(command, data).out) < 1_000_000


# ----------------------------------------------------------------------------------------------------- where output goes


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory whose every output is longer than a pipe and kcli's own buffer hold: 40,000 records, 300 partitions."""
    data = tmp_path_factory.mktemp("long") / "data"
    builder = PartitionBuilder(data / "t-0")
    for _ in range(400):
        builder.append([(b"key", b"value %d" % i) for i in range(100)])
    builder.flush()
    for number in range(300):
        partition(data, f"a-topic-of-a-very-long-name-{number}-0", [batch(0, 2), batch(9), batch(9).encode()])
    root_files(data)
    return data


@pytest.mark.parametrize("command", [*COMMANDS, ("--help",), ("dump-log", "--help")], ids=" ".join)
def test_a_pipe_that_is_closed(long_log: Path, command: tuple[str, ...]) -> None:
    """`kcli ... | head -1` gets its line, and nothing is said."""
    words = [
        sys.executable,
        "-m",
        "kcli",
        *command,
        *([] if command[-1] == "--help" else [str(long_log / "t-0" if command in DUMPS else long_log)]),
    ]
    kcli = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert kcli.stdout is not None and kcli.stderr is not None
    line = kcli.stdout.readline()
    kcli.stdout.close()
    told = kcli.stderr.read()
    assert told == b"" and line.endswith(b"\n")
    assert kcli.wait(60) in ((0, 1) if command[:1] == ("verify",) else (0,))
    kcli.stderr.close()


HELP = [("--help",), ("--version",), ("dump-log", "--help")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [*COMMANDS, *HELP], ids=" ".join)
def test_a_full_disk_behind_stdout(long_log: Path, command: tuple[str, ...]) -> None:
    """That output is lost is no success, and no fault of the file that was being read: exit code 2 and one sentence."""
    words = [
        sys.executable,
        "-m",
        "kcli",
        *command,
        *([] if command in HELP else [str(long_log / "t-0" if command in DUMPS else long_log)]),
    ]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1:] == [b"kcli: stdout cannot be written: No space left on device"]
    assert done.stderr.count(b"No space left") == 1


# ------------------------------------------------------------------------------------------------------- shrinking files


def make_shrinking(monkeypatch: pytest.MonkeyPatch, victim: Path, reads: int, size: int) -> None:
    """Let the disk cut `victim` to `size` bytes once so many reads of it have been answered."""
    left = reads

    class Shrinking(OsFile):
        def read_into(self, position: int, buffer: memoryview) -> int:
            nonlocal left
            count = super().read_into(position, buffer)
            if self.name.endswith(f"{victim.parent.name}/{victim.name}"):
                left -= 1
                if left == 0:
                    os.truncate(victim, size)
            return count

    monkeypatch.setattr(disk, "OsFile", Shrinking)


@pytest.fixture(scope="module")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of 5 MB: batches that are held, compressed ones, one that is streamed."""
    builder = PartitionBuilder(tmp_path_factory.mktemp("large") / "data" / "t-0")
    for number in range(12):
        builder.append([(b"key", bytes(100_000)), (b"key", b"value")], codec=4 if number % 3 == 2 else 0)
    builder.append([(b"large", bytes(1_500_000))])
    builder.append([(b"key", b"value")])
    builder.flush()
    root_files(builder.directory.parent)
    return builder.directory.parent


def run_on_shrinking_file(
    command: tuple[str, ...], original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int, size: int
) -> tuple[int, bool]:
    """Run a command in this process -> its exit code, and whether the file did shrink."""
    data = tmp_path / "data"
    shutil.copytree(original, data)
    log = data / "t-0" / LOG
    whole = log.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(limits, "STREAMED_BATCH_BYTES", 1_000_000)
        patch.setattr(limits, "READ_CHUNK_BYTES", 300_000)
        patch.setenv("KCLI_TRACEBACK", "1")
        make_shrinking(patch, log, reads, size)
        try:
            code = main([*command, str(data)])
        except SystemExit as ended:
            code = int(str(ended.code))
    shrank = log.stat().st_size < whole
    shutil.rmtree(data)
    return code, shrank


@pytest.mark.parametrize("command", [KAFKA, JSON, VERIFY], ids=" ".join)
@pytest.mark.parametrize("reads", [1, 3])
def test_a_file_that_shrinks(
    command: tuple[str, ...],
    large_log: Path,
    tmp_path: Path,
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Gone behind the first or third read: told of by name, as damage."""
    code, shrank = run_on_shrinking_file(command, large_log, tmp_path, monkeypatch, reads, 0)
    told = "".join(capfd.readouterr())
    assert shrank and code == 1 and LOG in told and "Traceback" not in told


@pytest.mark.ci
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_that_shrinks_at_any_read(
    command: tuple[str, ...],
    large_log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Cut to nothing, in a header, in a batch, before its last byte, behind every read there is: always a promised end."""
    whole = (large_log / "t-0" / LOG).stat().st_size
    for size in (0, 30, 800_000, whole - 1):
        for reads in range(1, 40):
            code, shrank = run_on_shrinking_file(command, large_log, tmp_path, monkeypatch, reads, size)
            assert code in (0, 1, 2) and "Traceback" not in "".join(capfd.readouterr()), (size, reads)
            if not shrank:
                break
