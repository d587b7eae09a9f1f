"""Protects `kcli verify --repair`: a plan touches nothing, refusals come before any change, codes mean what they say."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.verification.finding_kinds import KINDS
from kcli.log.disk.os_disk import OsDisk
from tests.conftest import every_log_set
from tests.damage import DAMAGES
from tests.inspect.verified import batch, partition, root_files

HOLD_LOCK = (
    "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f,fcntl.LOCK_EX); print('held',flush=True); sys.stdin.read()"
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with one damaged partition."""
    for log_set in every_log_set():
        if (log_set.data / "codec-zstd-0").is_dir():
            copy = tmp_path / "logs"
            shutil.copytree(log_set.data / "codec-zstd-0", copy / "codec-zstd-0")
            shutil.copy(log_set.data / "meta.properties", copy)
            for path in copy.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
            DAMAGES["flip_compressed_payload"](copy / "codec-zstd-0", random.Random(2))
            return copy
    pytest.skip("neither ../shared nor fixtures/ holds codec-zstd-0")


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def run(*words: str) -> int:
    return main(["verify", "--repair", *words])


def test_a_plan_touches_nothing(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even a lock file; and it says how to go on."""
    before = tree(logs.parent)
    assert run(str(logs)) == run("--dry-run", str(logs)) == 1
    assert tree(logs.parent) == before
    printed = capfd.readouterr().out
    assert "without bytes" in printed
    assert "--apply carries it out" in printed
    assert "lost" in printed


def test_what_the_plan_says_is_done_and_then_nothing_is_left(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same changes, then a directory with a known hole: 1, 3, 3, and `verify` agrees.

    No metadata log is there; the records have no keys, so the hole cannot be the log cleaner's.
    """
    assert run(str(logs)) == 1
    planned = [line for line in capfd.readouterr().out.splitlines() if line.startswith("  ")]
    assert run("--apply", str(logs)) == 3
    printed = capfd.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("  ")] == planned
    assert str(logs) + ".quarantine/1" in printed
    assert run(str(logs)) == 3
    assert "\n0 changes, 1 partition checked, 1 range of offsets lost\n" in capfd.readouterr().out
    assert main(["verify", str(logs)]) == 3
    assert "offset-hole: missing: offsets 100 to 199; 1 gap in the segment\n" in capfd.readouterr().out


def test_a_plan_that_removes_the_mark_alone_repairs_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A broker that ran on a log with a hole made the mark: nothing is damaged, for the plan as for `kcli verify`."""
    root = tmp_path / "logs"
    partition(root, "t-0", [batch(0)], [batch(5)])
    root_files(root)
    assert main(["verify", str(root)]) == run(str(root)) == 3
    assert ".kafka_cleanshutdown" in capfd.readouterr().out
    assert run("--apply", str(root)) == 3
    assert main(["verify", str(root)]) == run(str(root)) == 3


def test_json_says_the_same(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One object a line, the schema first, the summary last."""
    assert run("--output", "json", "--like-kafka", str(logs / "codec-zstd-0")) == 1
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert rows[0] == {"type": "schema", "name": "kcli.repair", "version": 1}
    assert rows[-1]["type"] == "summary"
    assert rows[-1]["applied"] is False
    changes = [row for row in rows if row["type"] == "change"]
    assert len(changes) == rows[-1]["changes"] > 2
    (cut,) = [row for row in changes if row["path"].endswith(".log")]
    assert (cut["kind"], cut["dropped"][0][0]) == ("truncate", cut["sizeInBytes"])
    (directory,) = [row for row in rows if row["type"] == "directory"]
    assert directory["shutdown"] == "unclean"


def test_json_is_what_the_page_says(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every type and member is in docs/repair.md, also those of findings that are left and of problems."""
    (logs / "lost+found").mkdir()
    (logs / "replication-offset-checkpoint").write_text("torn")
    (logs / "recovery-point-offset-checkpoint").write_text("torn")
    run("--output", "json", str(logs))
    (logs / "codec-zstd-0/leader-epoch-checkpoint").unlink()
    (logs / "codec-zstd-0/leader-epoch-checkpoint").mkdir()
    run("--output", "json", str(logs))
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    types = ("schema", "change", "hole", "remark", "left", "partition", "directory", "problem", "summary")
    assert {row["type"] for row in rows} == set(types)
    page = (Path(__file__).parents[2] / "docs" / "repair.md").read_text()
    lines = {kind: next(line for line in page.splitlines() if line.startswith(f"| `{kind}` |")) for kind in types}
    for row in rows:
        for member in row.keys() - {"type"}:
            assert f"`{member}`" in lines[row["type"]], (row["type"], member)


def test_what_is_left_says_what_to_do_once(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two directories that do not belong there, and one line of what to do about such."""
    for name in ("lost+found", "backup"):
        (logs / name).mkdir()
    assert run("--apply", str(logs)) == 1
    lines = capfd.readouterr().out.splitlines()
    assert sum("left for you" in line and "directory-name" in line for line in lines) == 2
    said = [line for line in lines if line.startswith("what to do about ")]
    assert said[-1] == f"what to do about directory-name: {KINDS['directory-name'].to_do}"
    assert len(said) == len({line.split(":")[0] for line in said})


def test_a_problem_is_not_nothing_to_repair(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A part that cannot be read is counted; with --apply nothing was carried out where there was nothing to do."""
    shutil.rmtree(logs / "codec-zstd-0")
    (logs / "codec-zstd-0").mkdir()
    (logs / "codec-zstd-0" / f"{0:020d}.log").mkdir()
    (logs / "codec-zstd-0" / f"{0:020d}.index").write_bytes(b"")
    assert run("--apply", str(logs)) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "0 changes, 1 partition checked, 1 problem"


def test_a_directory_in_use_is_refused(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Java's lock, a POSIX record lock: seen, and nothing touched."""
    lock = logs / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        before = tree(logs)
        assert run(str(logs)) == run("--apply", str(logs)) == 2
        assert tree(logs) == before
        holder.stdin.close()
    assert "is locked" in capfd.readouterr().err
    assert run("--apply", str(logs)) == 3


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_lock_on_the_second_directory_is_seen_first(
    logs: Path, tmp_path: Path, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the first directory changes, not even a lock file; a program gets its closing line all the same."""
    second = tmp_path / "second"
    shutil.copytree(logs, second)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(second / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        before = tree(tmp_path)
        assert run("--apply", "--output", output, str(logs), str(second)) == 2
        assert tree(tmp_path) == before
        holder.stdin.close()
    printed, errors = capfd.readouterr()
    assert f"{second}/.lock is locked" in errors
    if output == "json":
        rows = [json.loads(line) for line in printed.splitlines()]
        assert [row["type"] for row in rows] == ["schema", "problem", "summary"]
        assert (rows[-1]["problems"], rows[-1]["changes"], rows[-1]["partitions"]) == (1, 0, 0)
    else:
        assert printed == ""
    assert run("--apply", str(logs), str(second)) == 1, "the copy is left: it has the partition and the id of the first"
    assert Path(f"{logs}.quarantine/1").is_dir()
    assert Path(f"{second}.quarantine/1").is_dir()


def test_a_directory_under_two_names_is_refused(logs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The lock would be gone with the first of the two."""
    (tmp_path / "link").symlink_to(logs)
    before = tree(logs)
    assert run("--apply", str(logs), str(tmp_path / "link")) == 2
    assert "are the same log directory: name it once" in capfd.readouterr().err
    assert tree(logs) == before


def test_a_small_device_for_the_quarantine_is_seen_before_anything_is_touched(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Moved files are copied there too; the folder itself does not exist yet."""
    kept = tmp_path / "mounted"
    kept.mkdir()
    monkeypatch.setattr(OsDisk, "device", lambda disk, path: int(path.startswith(str(kept))))
    monkeypatch.setattr(OsDisk, "free_bytes", lambda disk, path: 100 if path.startswith(str(kept)) else 10**9)
    before = tree(tmp_path)
    assert run("--apply", "--quarantine", str(kept / "folder"), str(logs)) == 1
    after = tree(tmp_path)
    del after["logs/.lock"]
    assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}
    printed = capfd.readouterr().out
    assert f"{kept}/folder: the quarantine needs " in printed
    assert "100 are free; nothing was touched" in printed


def test_a_quarantine_that_cannot_be_made_leaves_all_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And the report says so: no change counts as carried out, the mark of the clean stop and the checkpoints stay."""
    root = tmp_path / "logs"
    partition(root, "t-0", [batch(0, 5), b"garbage"])
    root_files(root, recovery_point={"t-0": 9}, replication={"t-0": 9})
    (tmp_path / "logs.quarantine").write_bytes(b"a file")
    before = tree(tmp_path)
    assert run("--apply", str(root)) == 1
    after = tree(tmp_path)
    del after["logs/.lock"]
    assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}
    printed = capfd.readouterr().out
    assert "problem" in printed
    assert f"{root}: counts as cleanly shut down" in printed
    for claim in ("carried out", "remove ", "the quarantine, with", "no longer counts"):
        assert claim not in printed


def test_a_disk_that_fills_names_the_file_and_claims_no_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The manifest cannot be written; the other partition needs none, and its repair is not all that was to be done."""
    root = tmp_path / "logs"
    partition(root, "t-0", [batch(0, 5), b"garbage"])
    partition(root, "u-0", [batch(0, 5)])
    root_files(root, clean=False)
    (root / "u-0" / f"{0:020d}.timeindex").unlink()
    write = os.write

    def write_no_manifest(fd: int, data: bytes) -> int:
        if b'"log_directory"' in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    before = tree(root / "t-0")
    monkeypatch.setattr(os, "write", write_no_manifest)
    assert run("--apply", str(root)) == 1
    printed = capfd.readouterr().out
    assert tree(root / "t-0") == before
    assert f"problem {tmp_path}/logs.quarantine/1/manifest.json: No space left on device" in printed
    assert "the quarantine, with" not in printed and not (tmp_path / "logs.quarantine/1").exists()
    assert "carried out except for the problems" in printed and not printed.endswith(", carried out\n")


def test_a_directory_in_place_of_the_lock_is_refused(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence that names it; a program gets its closing line."""
    (logs / ".lock").mkdir()
    before = tree(logs)
    assert run("--apply", "--output", "json", str(logs)) == 2
    assert tree(logs) == before
    printed, errors = capfd.readouterr()
    assert f"{logs}/.lock is a directory, and a broker locks a file of that name: move it away" in errors
    assert json.loads(printed.splitlines()[-1])["type"] == "summary"
    assert main(["verify", str(logs)]) == 1
    assert f"{logs}/.lock: error directory-name: '.lock'" in capfd.readouterr().out


def test_a_directory_in_place_of_the_mark_is_no_mark(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is left, for its name; the partitions are repaired as after a crash."""
    (logs / ".kafka_cleanshutdown").mkdir()
    for words in (["verify"], ["verify", "--repair"], ["verify", "--repair", "--apply"]):
        assert main([*words, str(logs)]) == 1
        printed = capfd.readouterr().out
        assert "directory-name: '.kafka_cleanshutdown'" in printed
        assert "problem" not in printed
        assert "file-" not in printed
    assert "carried out" in printed
    assert "does not count as cleanly shut down, as before" in printed


def test_a_directory_in_place_of_a_segment_is_left(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody knows what is in it, so nothing is decided about the partition; every command says what is wrong."""
    log = logs / "codec-zstd-0" / f"{0:020d}.log"
    log.unlink()
    log.mkdir()
    before = tree(logs)
    said = f"{log}: a directory, and Kafka has a file of this name: move it away"
    assert main(["verify", str(logs)]) == 1
    printed = capfd.readouterr().out
    assert f"{log}: error file-unreadable: a directory, and Kafka has a file of this name: move it away\n" in printed
    assert "index-orphan" not in printed
    for words in (["--repair"], ["--repair", "--apply"], ["--repair", "--like-kafka", "--apply"]):
        assert main(["verify", *words, str(logs)]) == 1
        assert f"{said}, then repair\n" in capfd.readouterr().out
    (logs / ".lock").unlink()
    assert tree(logs).keys() == before.keys()
    for words in (["--output", "kafka"], ["--output", "text"], ["--output", "json"]):
        assert main(["dump-log", *words, str(logs / "codec-zstd-0")]) == 1
        assert said in "".join(capfd.readouterr())
        assert main(["dump-log", *words, str(log)]) == 2
        assert said in capfd.readouterr().err
    assert main(["verify", str(log)]) == 2
    assert said in capfd.readouterr().err


def test_the_lock_is_held_while_files_change(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process cannot take it meanwhile, and can afterwards."""
    probe = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)"
    codes = []

    def apply(*_: object) -> None:
        codes.append(subprocess.run([sys.executable, "-c", probe, str(logs / ".lock")], capture_output=True).returncode)

    monkeypatch.setattr("kcli.inspect.repairing.repair.apply_changes", apply)
    run("--apply", str(logs))
    assert codes
    assert all(codes)
    assert subprocess.run([sys.executable, "-c", probe, str(logs / ".lock")], check=False).returncode == 0


@pytest.mark.parametrize("where", ["inside", "inside/deeper", "codec-zstd-0/q"])
def test_a_quarantine_inside_of_a_log_directory_is_refused(logs: Path, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A broker does not start with such a directory."""
    assert run("--apply", "--quarantine", str(logs / where), str(logs)) == 2
    assert "is in the log directory" in capfd.readouterr().err
    assert not (logs / ".lock").exists()


def test_a_quarantine_elsewhere_is_used(logs: Path, tmp_path: Path) -> None:
    """And numbered, so that one repair does not mix with another."""
    kept = tmp_path / "kept"
    (kept / "1").mkdir(parents=True)
    assert run("--apply", "--quarantine", str(kept), str(logs)) == 3
    manifest = json.loads((kept / "2/manifest.json").read_text())
    assert manifest["complete"] is True
    for entry in manifest["kept"]:
        assert (kept / "2" / entry["kept_as"]).is_file()
        if entry["bytes"]:
            assert (kept / "2" / entry["kept_as"]).stat().st_size == entry["bytes"][1] - entry["bytes"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repair"], "name what to repair"),
        (["--repair", "--processes", "2", "/"], "--processes is for verifying"),
        (["--repair", "/nonexistent/x"], "there is no such file or directory"),
        (["--apply", "/"], "add --repair"),
        (["--like-kafka", "/"], "add --repair"),
    ],
)
def test_what_cannot_run_says_why(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence and exit code 2."""
    assert main(["verify", *words]) == 2
    assert message in capfd.readouterr().err


def test_no_permission_is_a_problem_of_one_partition(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Told, and the rest goes on."""
    if os.geteuid() == 0:
        (logs / "codec-zstd-0/leader-epoch-checkpoint").unlink()
        (logs / "codec-zstd-0/leader-epoch-checkpoint").mkdir()
    else:
        (logs / "codec-zstd-0").chmod(0)
    try:
        assert run(str(logs)) == 1
    finally:
        (logs / "codec-zstd-0").chmod(0o755)
    assert "problem" in capfd.readouterr().out


@pytest.mark.parametrize("stray", [f"{0:020d}.log", "server.log", "leader-epoch-checkpoint", "quorum-state"])
def test_a_stray_file_in_the_root_is_left_where_it_is(logs: Path, stray: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The directory is repaired as a log directory: verify finds the damage, and nothing is written into its root."""
    (logs / stray).write_bytes(b"of no partition")
    before = {path.name for path in logs.iterdir()} | {".lock"}
    assert main(["verify", str(logs)]) == 1
    printed = capfd.readouterr().out
    assert "batch-" in printed and f"{logs / stray}: info file-unknown: " in printed
    assert run("--apply", str(logs)) == 3
    assert main(["verify", str(logs)]) == 3
    assert {path.name for path in logs.iterdir()} <= before
    assert (logs / stray).read_bytes() == b"of no partition"
    assert {path.name for path in logs.parent.iterdir()} == {"logs", "logs.quarantine"}
    assert run(str(logs / stray)) == 2  # no partition has it
