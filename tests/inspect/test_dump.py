"""The dump as a whole: any mix of paths, and nothing that is wrong with one file keeps the others from being shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.renderers.csv_rows import CsvRows
from kcli.inspect.renderers.human_text import HumanText
from kcli.inspect.renderers.json_lines import JsonLines
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.selecting.selection import Selection, parse_selection
from tests.conftest import every_log_set
from tests.inspect.seen import Seen, dumped
from tests.log_builder import PartitionBuilder


def partition(directory: Path, batches: int = 3) -> PartitionBuilder:
    log = PartitionBuilder(directory)
    for _ in range(batches):
        log.append([(b"k%d" % log.offset, b"v")] * 2)
    log.flush()
    return log


def test_mixed_paths(tmp_path: Path) -> None:
    """Files, partitions, a log directory and patterns, in the order given, each path once."""
    root = tmp_path / "data"
    partition(root / "a-0")
    partition(root / "b-1")
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    (root / "lost+found").mkdir()
    (root / "remote-log-index-cache").mkdir()
    (root / "remote-log-index-cache" / "5_abcDEF.index").write_bytes(bytes(8))
    one = root / "a-0" / "00000000000000000000.log"
    seen = dumped(one, root / "b-*", root, str(one))
    names = [os.path.relpath(file.path, root) for file in seen.files]
    assert names[0] == "a-0/00000000000000000000.log"
    assert names[1:4] == [f"b-1/00000000000000000000.{end}" for end in ("index", "log", "timeindex")]
    assert "meta.properties" in names and "remote-log-index-cache/5_abcDEF.index" in names
    assert [(file.topic, file.partition, file.base_offset) for file in seen.files[:2]] == [("a", 0, 0), ("b", 1, 0)]
    assert seen.result is not None and seen.result.is_sound


def test_only_logs_where_records_are_selected(tmp_path: Path) -> None:
    """A selection asks for records: indexes and checkpoints are left out, and files where nothing was found."""
    root = tmp_path / "data"
    partition(root / "a-0")
    partition(root / "b-0")
    (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    seen = dumped(root, keys=["k2"])
    assert {Path(file.path).suffix for file in seen.files} == {".log"}
    assert not dumped(root, keys=["no such key"]).files
    assert dumped(root, limit=5).offsets == [0, 1, 2, 3, 4]
    assert dumped(root, tail=1).offsets == [5, 5]


def damaged(directory: Path) -> tuple[Path, list[int]]:
    """A log of five batches with damage between and in them -> its path, and the offsets that are sound."""
    log = PartitionBuilder(directory)
    log.append([(b"a", b"0")])
    log.log += b"\x00" * 5 + b"between two batches, longer than any header is" * 2
    log.append([(b"a", b"1")])
    at = len(log.log)
    log.append([(b"a", b"2" * 40)])
    log.log[at + 80] ^= 0xFF  # in the value: the record parses, the CRC is wrong
    at = len(log.log)
    log.append([(b"a", b"3")])
    log.log[at + 61] = 0x7F  # the record's length
    log.append([(b"a", b"4")])
    log.log += b"\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x10\x00torn"
    log.flush()
    return log.path(".log"), [0, 1, 2, 4]


def test_damage_ends_nothing(tmp_path: Path) -> None:
    """Each damage is told with its kind and place; the sound records before, between and behind are shown."""
    path, offsets = damaged(tmp_path / "a-0")
    partition(tmp_path / "b-0")
    seen = dumped(tmp_path / "a-0", tmp_path / "b-0")
    assert seen.offsets == [*offsets, 0, 1, 2, 3, 4, 5]
    kinds = [damage.kind for at, damage in seen.damages if at == str(path)]
    assert kinds.count("bad-crc") == 2
    assert set(kinds) == {"bad-crc", "bad-records", "bad-size", "truncated"} or set(kinds) == {
        "bad-crc",
        "bad-records",
        "truncated",
    }
    assert seen.damages[-1][1].end_position == path.stat().st_size
    assert seen.result is not None and seen.result.damages == len(seen.damages) and not seen.result.is_sound


def test_a_codec_that_nobody_knows(tmp_path: Path) -> None:
    """Codec 7 is damage of that batch, and no more."""
    log = PartitionBuilder(tmp_path / "a-0")
    log.append([(b"a", b"0")])
    log.append([(b"a", b"1")])
    log.log[22] |= 7
    log.flush()
    seen = dumped(tmp_path / "a-0", keys=["a"])
    assert seen.offsets == [1]
    assert {damage.kind for _, damage in seen.damages} == {"bad-crc", "bad-records"}
    assert any("Unknown compression type id: 7" in damage.message for _, damage in seen.damages)


def test_damage_is_seen_by_selections_too(tmp_path: Path) -> None:
    """A batch whose header cannot be trusted is told of even where it is not selected."""
    path, _ = damaged(tmp_path / "a-0")
    assert dumped(path, keys=["no such key"]).damages
    assert dumped(path, options=DumpOptions(statistics=True)).result is not None


def test_unreadable_paths(tmp_path: Path) -> None:
    """What is missing, no plain file, or not Kafka's directory is a problem; the rest is shown."""
    log = partition(tmp_path / "a-0")
    os.mkfifo(tmp_path / "a-0" / "00000000000000000099.log")
    os.symlink("nowhere", tmp_path / "dangling.log")
    (tmp_path / "nothing").mkdir()
    seen = dumped(
        tmp_path / "missing", tmp_path / "nothing", tmp_path / "no-*-match", tmp_path / "dangling.log", tmp_path / "a-0"
    )
    assert seen.offsets == [row.offset for row in log.rows]
    assert len(seen.problems) == 5
    told = dict(seen.problems)
    assert "no such file" in told[str(tmp_path / "missing")]
    assert str(tmp_path / "missing") not in told[str(tmp_path / "missing")], "the sentence does not repeat the path"
    assert seen.result is not None and seen.result.problems == 5


class FailingDisk(OsDisk):
    """Reads of the files named fail."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def open_file(self, path: str) -> OsFile:
        if path.endswith(self.names):
            raise PermissionError(13, "Permission denied", path)
        return super().open_file(path)

    def read_file(self, path: str, limit: int) -> bytes:
        if path.endswith(self.names):
            raise PermissionError(13, "Permission denied", path)
        return super().read_file(path, limit)


@pytest.mark.parametrize("selection", [{}, {"tail": 2}, {"offset": "1.."}, {"isolation": "read_committed"}], ids=str)
def test_no_permission(tmp_path: Path, selection: dict) -> None:
    """A file that may not be read is one problem; the other partitions are shown."""
    partition(tmp_path / "data" / "a-0")
    partition(tmp_path / "data" / "b-0")
    denied = "a-0/00000000000000000000.log"
    seen = dumped(tmp_path / "data", disk=FailingDisk(denied), **selection)
    assert {Path(record.path).parent.name for record in seen.records_seen} == {"b-0"}
    assert [(path.endswith(denied), message) for path, message in seen.problems] == [(True, "Permission denied")]


def test_single_files_know_their_partition(tmp_path: Path) -> None:
    """A segment by itself still uses its indexes, and the transactions of its partition."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"a", b"1")] * 2, producer=5, transactional=True)
    log.roll()
    log.append([(b"a", b"2")] * 2, producer=5, transactional=True)
    log.append([(b"b", b"3")])
    log.end_transaction(5, commit=False)
    log.flush()
    second = log.path(".log")
    assert dumped(second, isolation="read_committed").offsets == [4]
    assert dumped(second, aborted=True).offsets == [2, 3]
    alone = tmp_path / "copied segment.log"
    alone.write_bytes(second.read_bytes())
    assert dumped(alone).offsets == [2, 3, 4, 5]
    assert dumped(alone, isolation="read_committed").offsets == [4]


def test_relative_paths_know_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """From within a partition's directory the topic is known by the absolute path, and its records are decoded."""
    monkeypatch.chdir(every_log_set()[0].data / "__consumer_offsets-0")
    seen = Seen()
    name = "00000000000000000000.log"
    dump([name], Selection(), seen, DumpOptions(), OsDisk(), report=print, absolute=os.path.abspath)
    assert (seen.files[0].path, seen.files[0].topic, seen.files[0].partition) == (name, "__consumer_offsets", 0)
    assert seen.files[0].decoder is not None


def test_max_bytes(tmp_path: Path) -> None:
    """Only so much of each log is read."""
    log = partition(tmp_path / "a-0")
    size = len(log.log) // 3
    assert dumped(log.path(".log"), options=DumpOptions(max_bytes=2 * size)).offsets == [0, 1, 2, 3]


def test_nothing_is_written(tmp_path: Path) -> None:
    """Dumping, selecting and counting create and change no file."""
    partition(tmp_path / "data" / "a-0")
    (tmp_path / "data" / "a-0" / "00000000000000000000.index").unlink()

    def state() -> list[tuple[str, int, int]]:
        return sorted((str(at), at.stat().st_size, at.stat().st_mtime_ns) for at in tmp_path.rglob("*"))

    before = state()
    dumped(tmp_path / "data")
    dumped(tmp_path / "data", tail=2, isolation="read_committed")
    dumped(tmp_path / "data", options=DumpOptions(statistics=True))
    assert state() == before


@pytest.mark.parametrize("selection", [{}, {"tail": 2}, {"offset": "1.."}, {"isolation": "read_committed"}], ids=str)
def test_a_partition_without_segments(tmp_path: Path, selection: dict) -> None:
    """Nothing to show is no problem."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    seen = dumped(tmp_path / "t-0", **selection)
    assert seen.result is not None and seen.result.is_sound and not seen.offsets


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_records_too_large_to_hold(tmp_path: Path, codec: int) -> None:
    """A record above the limit has offset, time and sizes; what stands before and behind it in its batch is whole."""
    log = PartitionBuilder(tmp_path / "a-0")
    records = [(b"small", b"1"), (b"k", bytes(12_000_000)), (b"small", b"2")]
    log.append(records, codec=codec)
    log.append([(b"k", b"3")])
    log.flush()
    path = log.path(".log")
    out: dict[str, bytearray] = {"json": bytearray(), "csv": bytearray(), "text": bytearray()}
    renderers = [JsonLines(out["json"].extend), CsvRows(out["csv"].extend), HumanText(out["text"].extend)]
    for renderer in renderers:
        dump([str(path)], Selection(), renderer, DumpOptions(), OsDisk(), report=print)
    assert max(map(len, out.values())) < 20_000
    rows = [json.loads(line) for line in out["json"].splitlines() if line.startswith(b'{"type":"record"')]
    assert [row.get("value") for row in rows] == ["1", None, "2", "3"]
    assert [(row["valueSize"], row.get("contentsLeftOut")) for row in rows[:2]] == [(1, None), (12_000_000, True)]
    assert "contentsLeftOut" not in rows[3] and "key" not in rows[1]
    assert b",leftOut," in out["csv"] and b"too large to be shown" in out["text"]

    seen = Seen()
    dump([str(path)], parse_selection(keys=["k"]), seen, DumpOptions(), OsDisk(), report=print)
    assert seen.offsets == [3]
    assert [note for _, note in seen.notes if "offset 1 " in note and "was not searched" in note]
    assert dumped(path, tail=3, options=DumpOptions(max_record_bytes=16_000_000)).offsets == [1, 2, 3]
    report = dumped(path, options=DumpOptions(statistics=True)).report
    assert report is not None and report["valueSize"]["max"] == 12_000_000 and report["records"] == 4
