"""Protects docs/repair.md: the commands of its worked examples are run, and print what the page shows.

An example is a console block under the marker `<!-- example: NAME -->`. Its commands run in the directory that contains LOGDIR,
a log directory that Kafka wrote, with the damage of DAMAGES[NAME]. KCLI_WRITE_DOCS=1 writes their output into the page.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.format.record_batch import HEADER_BYTES
from kcli.log.reading import explanation
from kcli.log.reading.explanation import (
    BATCH,
    BIT,
    BYTE,
    CLEANED_GAP,
    COMPANION,
    CORRECTED,
    DAMAGE,
    ENTRY,
    EXACT_END,
    FIELD,
    FILE,
    GAP,
    GAP_LARGE,
    HEADER,
    INSERTED,
    LARGE_GAP,
    LATER_CHAIN,
    LED,
    LOG_END,
    LONG_ENOUGH,
    LOST,
    LOST_HEADER,
    MOST_DOUBTED,
    MOST_SEARCHED,
    OLDER_FORMAT,
    OTHER_END,
    OVERFLOW,
    PAYLOAD,
    SECTOR,
    SHIFTED,
    TORN,
    WALKED,
)
from tests.conftest import every_log_set
from tests.damage.layout import flip
from tests.doc_examples import WRITES, run_console

PAGE = Path(__file__).resolve().parents[1] / "docs" / "repair.md"
BLOCK = re.compile(r"(<!-- example: ([a-z-]+) -->\n\n```console\n)(.*?)(```\n)", re.DOTALL)
PARTITIONS = ("__cluster_metadata-0", "odd-records-0", "orders-0")


def torn_tail(logs: Path) -> None:
    """The machine lost power: the last batch is not complete, and the stop was not clean."""
    log = logs / "orders-0/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-400])
    (logs / ".kafka_cleanshutdown").unlink()


def rotten_batch(logs: Path) -> None:
    """One bit of the second batch, offsets 21 to 54, changed on the disk."""
    log = logs / "orders-0/00000000000000000000.log"
    flip(log, 2000, 4)


def lost_segment(logs: Path) -> None:
    """The last segment of a partition was deleted by mistake."""
    for path in (logs / "odd-records-0").glob("00000000000000000004.*"):
        if path.suffix != ".snapshot":
            path.unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "torn-tail": torn_tail,
    "rotten-batch": rotten_batch,
    "lost-segment": lost_segment,
}


def make_log_directory(logs: Path) -> None:
    """Copy some partitions of a KRaft broker that was stopped cleanly, with their entries of the checkpoints."""
    data = next((found.data for found in every_log_set() if (found.data / "__cluster_metadata-0").is_dir()), None)
    if data is None:
        pytest.skip("neither ../shared nor fixtures/ holds a log directory of a KRaft cluster")
    for name in PARTITIONS:
        shutil.copytree(data / name, logs / name)
    for name in ("meta.properties", "bootstrap.checkpoint"):
        shutil.copy(data / name, logs)
    names = {name.rpartition("-")[0] + " " + name.rpartition("-")[2] for name in PARTITIONS}
    for path in data.glob("*-offset-checkpoint"):
        entries = [line for line in path.read_text().splitlines()[2:] if line.rpartition(" ")[0] in names]
        (logs / path.name).write_text("\n".join(["0", str(len(entries)), *entries, ""]))
    (logs / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    for path in logs.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("name", DAMAGES)
def test_the_example_prints_what_the_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each command of the example, one after the other; the exit codes too."""
    page = PAGE.read_text()
    match = next(found for found in BLOCK.finditer(page) if found[2] == name)
    make_log_directory(tmp_path / "LOGDIR")
    DAMAGES[name](tmp_path / "LOGDIR")
    monkeypatch.chdir(tmp_path)
    block = run_console(match[3], capfd)
    if WRITES:
        PAGE.write_text(page[: match.start(3)] + block + page[match.end(3) :])
    assert match[3] == block or WRITES
    assert block.endswith("$ echo $?\n3\n"), "the example ends with a directory that is sound but for known offsets"


def test_every_example_is_run() -> None:
    """No console block of the page is left out."""
    page = PAGE.read_text()
    assert [found[2] for found in BLOCK.finditer(page)] == list(DAMAGES)
    assert page.count("```console") == len(DAMAGES)


def wrong_offset(logs: Path) -> None:
    """One bit of a base offset, which no CRC covers; and a segment under another name."""
    log = logs / "orders-0/00000000000000000000.log"
    flip(log, 1548 + 6)
    for path in (logs / "odd-records-0").glob("00000000000000000004.*"):
        path.rename(path.with_name(f"{9:020}{path.suffix}"))


def files_of(logs: Path) -> dict[str, bytes]:
    """All files of a log directory but .lock, which a repair takes."""
    return {
        str(path.relative_to(logs)): path.read_bytes() for path in logs.rglob("*") if path.is_file() and path.name != ".lock"
    }


def undo(logs: Path, plan: str, printed: str, quarantine: Path) -> None:
    """The three steps of the page, by the plan as text, what the repair printed as JSON, and its manifest."""
    changes = [line for line in map(json.loads, printed.splitlines()) if line["type"] == "change"]
    for change in changes:
        if change["kind"] == "write":
            Path(change["path"]).unlink()
    for change in reversed(changes):
        if change["kind"] == "rename":
            Path(change["target"]).rename(change["path"])
    kept = json.loads((quarantine / "manifest.json").read_text())["kept"]
    for entry in kept:
        if entry["bytes"] is None:
            shutil.copy(quarantine / entry["kept_as"], logs / entry["file"])
    corrected = {words[1].rstrip(":") for line in plan.splitlines() if (words := line.split())[:1] == ["correct"]}
    for entry in kept:
        if entry["bytes"] is not None:
            path, (start, end) = logs / entry["file"], entry["bytes"]
            data, gone = path.read_bytes(), (quarantine / entry["kept_as"]).read_bytes()
            path.write_bytes(data[:start] + gone + data[end if path.name in corrected else start :])


@pytest.mark.parametrize("damage", [*DAMAGES.values(), wrong_offset])
def test_a_repair_is_undone_as_the_page_says(
    damage: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every file is as before, byte for byte."""
    logs = tmp_path / "LOGDIR"
    make_log_directory(logs)
    damage(logs)
    before = files_of(logs)
    main(["verify", "--repair", str(logs)])
    plan = capfd.readouterr().out
    main(["verify", "--repair", "--apply", "--output", "json", str(logs)])
    assert files_of(logs) != before
    undo(logs, plan, capfd.readouterr().out, tmp_path / "LOGDIR.quarantine" / "1")
    assert files_of(logs) == before


# How each row of the table of costs begins, and the numbers of its second column, in their order.
COSTS = {
    "one bit, one byte, more of a base offset": [BIT, BYTE, FIELD, BIT],
    "a sound batch that does not belong to the log": [BATCH, BATCH - GAP],
    "offsets missing in a log that was not cleaned": [GAP],
    f"{LARGE_GAP:,} offsets or more missing": [GAP_LARGE],
    "offsets missing in a cleaned log": [CLEANED_GAP],
    "a checkpoint, or a snapshot's name": [LOG_END, LOG_END],
    "an entry of .timeindex or leader-epoch-checkpoint that does not fit": [ENTRY],
    "an entry of leader-epoch-checkpoint with another epoch": [1],
    "offsets that overflow": [OVERFLOW],
    "the first batch after damaged bytes": [PAYLOAD],
    "nothing is left of a batch": [LOST],
    "a batch with a wrong CRC": [DAMAGE, BIT, SHIFTED, HEADER_BYTES, OTHER_END, TORN],
    "a damaged batch of which the header": [FIELD, DAMAGE + BIT, LOST_HEADER, LONG_ENOUGH, SECTOR],
    "a sound batch behind damage is": [PAYLOAD, 1, LONG_ENOUGH, LATER_CHAIN, PAYLOAD],
    "a further batch of such a chain": [1, CLEANED_GAP],
    "such payload ends exactly": [EXACT_END],
    "what looks like a header is payload": [HEADER, BIT],
    "the length of a damaged batch leads": [LED],
    "a batch inside of a record": [WALKED],
    "bytes were inserted": [INSERTED],
    "behind damage a sound batch has another": [CORRECTED, LONG_ENOUGH],
    "a message of format 0 or 1 is behind": [OLDER_FORMAT],
    "a segment renamed": [FILE, COMPANION],
}


def test_the_costs_of_damages_are_those_of_the_code() -> None:
    """The page and kcli.log.reading.explanation have one table each; a cost without a row is found, too."""
    text = PAGE.read_text()
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", text.partition("| damage | cost |\n|---|---|\n")[2].partition("\n\n")[0], re.M)
    assert {name: [int(at) for at in re.findall(r"\d+", cost)] for name, cost in rows} == {
        next(name for name, _ in rows if name.startswith(begin)): numbers for begin, numbers in COSTS.items()
    }
    assert f"To remove a sound batch costs {BATCH}," in text
    assert f"for the first {MOST_DOUBTED} batches of a segment" in text and f"up to {MOST_SEARCHED:,} batches" in text
    named = {name for name, value in vars(explanation).items() if re.fullmatch("[A-Z_]+", name) and isinstance(value, int)}
    used = re.findall("[A-Z_]{3,}", Path(__file__).read_text().partition("# How each row")[2])
    assert {name for name in named if name in (explanation.__doc__ or "")} <= set(used)
