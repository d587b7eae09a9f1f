"""Protects `kcli verify` as a program: its exit codes, its lines, its JSON, and what it does with paths that are nothing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.verification.finding_kinds import KINDS
from tests.damage.layout import flip
from tests.inspect.verified import batch, entry, partition, root_files


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A sound log directory of two partitions, one of them with an open transaction."""
    root = tmp_path / "logs"
    partition(root, "t-0", [batch(0, 3), batch(3, 2, codec=4)], [batch(5)])
    opened = [batch(0, producer=7, sequence=0, transactional=True)]
    partition(root, "u-1", opened, snapshots={1: [entry(7, 0, 0, open_from=0)]})
    root_files(root, log_start={"t-0": 1})
    return root


def damage(logs: Path) -> Path:
    log = logs / "t-0" / f"{0:020d}.log"
    flip(log, 70)
    return log


def test_a_sound_directory(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and counts."""
    assert main(["verify", str(logs)]) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith(f"{logs}/u-1: offset 0: info transaction-open: ")
    assert lines[1].startswith("1 log directory, 2 partitions, 3 segments, ") and lines[1].endswith(" 4 batches, 7 records")
    assert lines[2] == "sound: 1 note" and err == ""


def test_a_damaged_directory(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, one line with file, byte, severity, code and sentence, and what a broker does."""
    log = damage(logs)
    assert main(["verify", str(logs)]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(f"{log}: byte 0: error batch-crc: the stored CRC of the batch is ")
    assert lines[0].endswith("; its header states offsets 0 to 2")
    assert lines[2] == f"a Kafka broker at start, about batch-crc: {KINDS['batch-crc'].broker_does}"
    assert lines[-2] == "not sound: 1 error, 1 note"
    assert lines[-1].startswith(f"next: kcli verify --repair {logs} ")


def test_json_is_what_the_page_says(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every line an object, every member in docs/verify.md, the schema first and the summary last."""
    damage(logs)
    assert main(["verify", "--output", "json", str(logs), str(logs / "nothing")]) == 2
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[0] == {"type": "schema", "name": "kcli.verify", "version": 1}
    assert [row["type"] for row in rows[1:]] == [
        *("finding", "finding", "directory", "partition", "partition", "problem", "summary"),
    ]
    page = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    for row in rows:
        assert f"| `{row['type']}` |" in page
        for member in (*row, *(name for txn in row.get("openTransactions", ()) for name in txn)):
            assert member == "type" or member in page
    assert rows[-1]["errors"] == 1 and rows[-1]["sound"] is False and rows[-1]["problems"] == 1
    partitions = [row for row in rows if row["type"] == "partition"]
    assert [row["dataRecords"] for row in partitions] == [3, 1] and partitions[0]["recordsBelowStart"] == 0
    assert partitions[1]["openTransactions"] == [{"producerId": 7, "producerEpoch": 0, "firstOffset": 0, "records": 1}]
    assert "no such file" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to verify"),
        (["/nowhere/at/all"], "there is no such file or directory"),
        (["--processes", "0", "."], "--processes takes a number of cores"),
    ],
)
def test_what_cannot_run(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence on stderr."""
    assert main(["verify", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and message in err and "Traceback" not in err


def test_names_that_no_terminal_should_act_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A path may hold any bytes: escaped as text, base64 as JSON where it is not UTF-8."""
    partition(tmp_path, "t-0", [batch(0)])
    root_files(tmp_path)
    (tmp_path / "t-0" / "a\x1b[31m").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path / "t-0") + b"/b\xff")).write_bytes(b"")
    assert main(["verify", str(tmp_path)]) == 0
    assert "\x1b" not in capfd.readouterr().out
    assert main(["verify", "--output", "json", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert ["pathBase64" in row for row in rows if row["type"] == "finding"] == [False, True]


def run_with_stderr_on_a_terminal(arguments: list[str]) -> tuple[int, bytes]:
    """Run kcli in a process whose stderr is a terminal, and little work is much -> its exit code, what the terminal got."""
    parent, child = pty.openpty()
    program = (
        "import sys; from kcli.commands import progress; from kcli.inspect import compacting, verification; "
        "import kcli.inspect.compacting.compaction, kcli.inspect.verification.verifier; progress.MIN_BYTES = 0; "
        "compacting.compaction.SMALL_BYTES = verification.verifier.SMALL_BYTES = 0; "
        "from kcli.commands.app import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=child,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(child)
    shown = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(parent)
    return process.wait(), shown


@pytest.mark.parametrize("options", [["--processes", "1"], ["--processes", "2"], ["--repair"]])
def test_a_progress_bar_only_on_terminals(logs: Path, options: list[str]) -> None:
    """A terminal on stderr sees one; a pipe never does (the other tests), and stdout stays plain."""
    code, shown = run_with_stderr_on_a_terminal(["verify", *options, str(logs)])
    assert code in (0, 1) and b"\x1b[" in shown and "\u2501".encode() in shown and b"Traceback" not in shown


def test_a_reader_that_goes_away_is_no_error(logs: Path) -> None:
    """`kcli verify | head -0` ends quietly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kcli", "verify", str(logs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() in (0, 1)
    process.stderr.close()


def two_directories(tmp_path: Path) -> tuple[Path, Path]:
    """A sound log directory, and one with a damaged batch."""
    roots = (tmp_path / "a", tmp_path / "b")
    for number, root in enumerate(roots):
        partition(root, f"t-{number}", [batch(0), batch(1)])
        root_files(root)
    log = roots[1] / "t-1" / f"{0:020d}.log"
    flip(log, -1)
    return roots


def test_the_next_command_names_what_is_damaged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And not the first of the directories that were given."""
    sound, damaged = two_directories(tmp_path)
    assert main(["verify", str(sound), str(damaged)]) == 1
    assert f"next: kcli verify --repair {damaged} shows" in capfd.readouterr().out
    assert main(["verify", str(sound / "t-0"), str(damaged / "t-1")]) == 1
    assert f"next: kcli verify --repair {damaged / 't-1'} shows" in capfd.readouterr().out


def test_what_is_left_is_said_as_a_sentence_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A directory in the place of a .log: verify and repair name the same way out, and nothing that does not apply."""
    root = tmp_path / "a"
    path = partition(root, "t-0", [batch(0)])
    root_files(root)
    (path / f"{5:020d}.log").mkdir()
    assert main(["verify", str(root)]) == 1
    printed = capfd.readouterr().out
    to_do = next(line for line in printed.splitlines() if line.startswith("what to do about file-unreadable: "))
    assert "index" not in to_do and "move away a directory that has the name of a file" in to_do
    assert "Left for you: " not in printed


def test_the_mark_names_the_partitions_that_it_is_wrong_about(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At most three; one that two checkpoints name counts once. A plan says what will be, not what is."""
    root = tmp_path / "a"
    partition(root, "t-0", [batch(0)])
    gone = {f"gone-{number}": 1 for number in range(4)}
    root_files(root, recovery_point=gone, replication=gone)
    assert main(["verify", str(root)]) == 1
    assert "records are missing in gone-0, gone-1, gone-2 and 1 more\n" in capfd.readouterr().out
    assert main(["verify", "--repair", str(root)]) == 1
    assert f"{root}: will no longer count as cleanly shut down" in capfd.readouterr().out
    assert main(["verify", "--repair", "--apply", str(root)]) == 1
    assert f"{root}: no longer counts as cleanly shut down" in capfd.readouterr().out


def test_no_count_of_bytes_is_negative(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged batch may state more bytes than it has: the next sound one then begins inside of what it claims."""
    root = tmp_path / "a"
    path = partition(root, "t-0", [batch(offset) for offset in range(20)])
    root_files(root)
    log = path / f"{0:020d}.log"
    size = len(batch(0).encode())
    data = bytearray(log.read_bytes())
    data[size + 8 : size + 12] = (size - 12 + 3 * size - 7).to_bytes(4, "big")
    data[2 * size - 1] ^= 1
    log.write_bytes(data)
    assert main(["verify", str(root)]) == 1
    printed = capfd.readouterr().out
    assert "; -" not in printed
    assert f"the next sound batch begins at byte {2 * size}, inside of the size that the damaged batch states" in printed


def test_one_zero_is_not_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And what is said of a broker is true of one zero too."""
    root = tmp_path / "a"
    partition(root, "t-0", [batch(0), bytes(1)])
    root_files(root)
    assert main(["verify", str(root)]) == 1
    printed = capfd.readouterr().out
    assert "log-zero-tail: the last byte is zero\n" in printed
    assert "it appends after up to 16 zeros" in printed


def test_the_mark_of_a_clean_stop_in_a_partition_is_out_of_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "a"
    path = partition(root, "t-0", [batch(0)])
    root_files(root)
    (path / ".kafka_cleanshutdown").write_bytes(b"")
    assert main(["verify", str(root)]) == 0
    assert ".kafka_cleanshutdown belongs in a log directory, not in a partition's directory\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "is_named"), [(f"{5:020d}.log.bak", True), (f"{0:020d}.log.bak", False), ("5.log.bak", False)]
)
def test_a_copy_of_a_lost_segment_is_pointed_at(
    tmp_path: Path, name: str, is_named: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """The plan names it, and takes nothing: what is in it is not known."""
    root = tmp_path / "a"
    path = partition(root, "t-0", [batch(0, 5)], [batch(10, 5)])
    root_files(root)
    (path / name).write_bytes(batch(5, 5).encode())
    assert main(["verify", "--repair", str(root)]) == 3
    printed = capfd.readouterr().out
    hint = f"note {name}: it looks like the missing segment: rename it to {5:020d}.log and run kcli verify again\n"
    assert (hint in printed) is is_named
    assert main(["verify", "--repair", "--apply", str(root)]) == 3
    assert (path / name).read_bytes() == batch(5, 5).encode()
