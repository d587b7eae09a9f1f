"""Protects that all commands count a damaged log alike: the records of sound batches, and a word on those that are left out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from kcli.commands.app import main
from tests.log_builder import PartitionBuilder

FIRST, RECORDS = 5, 3  # the batch that is damaged, and how many records each has


def damaged(root: Path, damage: str) -> Path:
    """A partition of ten batches, one of them damaged -> its directory."""
    builder = PartitionBuilder(root / "t-0")
    ends = []
    for number in range(10):
        builder.append([(b"key", b"the value of %d" % number)] * RECORDS, codec=4 if number % 2 else 0)
        ends.append(len(builder.log))
    builder.flush()
    log = builder.path(".log")
    data = bytearray(log.read_bytes())
    if damage == "crc":
        data[ends[FIRST] + 17] ^= 1
    elif damage == "payload":
        data[ends[FIRST + 1] - 3] ^= 1
    elif damage == "codec":
        data[ends[FIRST] + 22] ^= 1
    elif damage == "record count":
        data[ends[FIRST] + 60] ^= 64
    elif damage == "length":
        data[ends[FIRST] + 11] ^= 1
    elif damage == "magic":
        data[ends[FIRST] + 16] = 9
    elif damage == "torn":
        del data[-5:]
    log.write_bytes(data)
    (root / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return root / "t-0"


def rows_of(out: str, kind: str) -> list[dict[str, object]]:
    return [row for row in map(json.loads, out.splitlines()) if row["type"] == kind]


@pytest.mark.parametrize("damage", ["none", "crc", "payload", "codec", "record count", "length", "magic", "torn"])
def test_every_command_counts_the_records_of_sound_batches(
    damage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = damaged(tmp_path, damage)
    batches = 10 if damage == "none" else 9
    code = 0 if damage == "none" else 1
    counted = {}
    assert main(["verify", "--output", "json", str(path)]) == code
    (row,) = rows_of(capfd.readouterr().out, "partition")
    counted["verify"] = (row["batches"], row["dataRecords"])
    for words in (["describe", "--show", "segments"], ["describe", "--show", "segments", "--deep"], ["dump-log", "--stats"]):
        assert main([*words, "--output", "json", str(path)]) == code
        out, err = capfd.readouterr()
        (row,) = rows_of(out, "statistics" if words[0] == "dump-log" else "segment")
        counted[" ".join(words)] = (row["batches"], row["records"])
        assert (": 1 damaged batch left out, " in err) == (damage != "none"), err
        assert row.get("batchesLeftOut", 10 - batches) == 10 - batches
    assert main(["dump-log", "--stats", "--output", "csv", str(path)]) == code
    out, err = capfd.readouterr()
    numbers = dict(csv.reader(io.StringIO(out)))
    counted["csv of statistics"] = (int(numbers["batches"]), int(numbers["records"]))
    assert (": 1 damaged batch left out, " in err) == (damage != "none") and numbers["batchesLeftOut"] == str(10 - batches)
    assert main(["dump-log", "--output", "csv", str(path)]) == code
    out, err = capfd.readouterr()
    counted["csv"] = (batches, len(list(csv.DictReader(io.StringIO(out)))))
    assert (": 1 damaged batch left out, " in err) == (damage != "none")
    assert main(["dump-log", "--stats", str(path)]) == code
    assert ("\n1 damaged batch left out\n" in capfd.readouterr().out) == (damage != "none")
    assert set(counted.values()) == {(batches, batches * RECORDS)}, counted


@pytest.mark.parametrize(
    ("left", "evidence"),
    [
        (["index"], f"{0:020d}.index is there"),
        (["snapshot", "recovery-point"], "the log once reached offset 30 (the recovery point is 30, the offset of 0"),
        (
            ["replication", "recovery-point"],
            "the log once reached offset 30 (the high watermark is 30, the recovery point is 30)",
        ),
        (["leader-epoch"], "the log once reached offset 12 (the start of the last leader epoch is 12)"),
    ],
)
def test_a_partition_whose_log_is_missing(
    left: list[str], evidence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its other files and the checkpoints show that it had records: zero records and exit code 0 would hide the loss."""
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"key", b"value")] * 30)
    builder.flush()
    builder.snapshot()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 12\n")
    for name in ("replication", "recovery-point"):
        (tmp_path / f"{name}-offset-checkpoint").write_text("0\n1\nt 0 30\n")
    for path in (*tmp_path.glob("*checkpoint"), *(tmp_path / "t-0").iterdir()):
        if not any(word in path.name.replace("timeindex", "") for word in left):
            path.unlink()
    for path in (tmp_path / "t-0", tmp_path):
        for words in (["--stats"], ["--stats", "--output", "csv"], ["--output", "csv"], ["--output", "json"], ["--limit", "1"]):
            assert main(["dump-log", *words, str(path)]) == 1, words
            err = capfd.readouterr().err
            assert err.startswith(f"kcli: {tmp_path}/t-0: the .log is missing, although {evidence}"), words
            assert err.count("\n") == 1
        assert main(["verify", str(path)]) == 1
        capfd.readouterr()


def test_a_partition_that_never_had_records(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is missing there."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: iRUOBBUCTcicMC3Stf-rzg")
    for name in ("replication", "recovery-point"):
        (tmp_path / f"{name}-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    assert main(["dump-log", "--stats", str(tmp_path)]) == 0
    assert capfd.readouterr().err == ""


def test_what_is_left_out_uses_up_no_limit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--limit and --tail count what is shown."""
    path = damaged(tmp_path, "payload")
    for words in (["--limit", "21"], ["--tail", "15"]):
        assert main(["dump-log", "--stats", "--output", "json", *words, str(path)]) == 1
        (row,) = rows_of(capfd.readouterr().out, "statistics")
        assert row["records"] == int(words[1])
