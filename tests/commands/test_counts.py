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


def test_what_is_left_out_uses_up_no_limit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--limit and --tail count what is shown."""
    path = damaged(tmp_path, "payload")
    for words in (["--limit", "21"], ["--tail", "15"]):
        assert main(["dump-log", "--stats", "--output", "json", *words, str(path)]) == 1
        (row,) = rows_of(capfd.readouterr().out, "statistics")
        assert row["records"] == int(words[1])
