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
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
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
        "import kcli.inspect.compacting.workers, kcli.inspect.verification.workers; progress.LEAST_BYTES = 0; "
        "compacting.workers.SMALL_BYTES = verification.workers.SMALL_BYTES = 0; "
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
