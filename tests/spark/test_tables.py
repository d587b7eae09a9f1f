"""The tables beside `records`, on built logs and on what Kafka wrote, held against Kafka's own dumps."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import LogSet, every_log_set
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder
from tests.spark.source import rows_of


def dump_lines(log_set: LogSet, pattern: str, suffix: str) -> list[tuple[str, re.Match[str]]]:
    """(file, match) of each line of Kafka's dumps of files with that suffix."""
    expression = re.compile(pattern)
    found = []
    for path in log_set.dumped_paths():
        if path.endswith(suffix) and "/" in path:
            lines = log_set.golden(path).decode("utf-8", "replace").splitlines()
            found += [(path, match) for line in lines if (match := expression.match(line))]
    return found


def test_batches_as_kafka_dumps_them() -> None:
    """Every batch of format 2 that Kafka's tool shows, with all that it shows of it."""
    pattern = (
        r"baseOffset: (?P<baseOffset>-?\d+) lastOffset: (?P<lastOffset>-?\d+) count: (?P<recordCount>\d+) "
        r"baseSequence: (?P<baseSequence>-?\d+) lastSequence: (?P<lastSequence>-?\d+) producerId: (?P<producerId>-?\d+) "
        r"producerEpoch: (?P<producerEpoch>-?\d+) partitionLeaderEpoch: (?P<leaderEpoch>-?\d+) .*?"
        r"position: (?P<position>\d+) .*?size: (?P<size>\d+) magic: (?P<magic>\d) compresscodec: (?P<compression>\w+) "
        r"crc: (?P<crc>\d+) isvalid: true"
    )
    for log_set in every_log_set():
        expected = [
            {"file": path} | {name: value if name == "compression" else int(value) for name, value in match.groupdict().items()}
            for path, match in dump_lines(log_set, pattern, ".log")
        ]
        rows = [row for row in rows_of(log_set.data, table="batches") if row["magic"] == 2]
        got = [{name: row[name] for name in expected[0] if name != "file"} for row in rows]
        files = [Path(row["segment"]).relative_to(log_set.data).as_posix() for row in rows]
        order = sorted(range(len(rows)), key=lambda i: (files[i], got[i]["position"]))
        assert [{"file": files[i]} | got[i] for i in order] == sorted(expected, key=lambda b: (b["file"], b["position"]))
        assert all(row["isValid"] and row["computedCrc"] == row["crc"] for row in rows)


@pytest.mark.parametrize(
    ("table", "suffix", "pattern", "columns"),
    [
        ("offset_index", ".index", r"offset: (\d+) position: (\d+)", ("offset", "position")),
        ("producers", ".snapshot", r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+)",
         ("producerId", "producerEpoch", "coordinatorEpoch")),
        ("aborted_transactions", ".txnindex", r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)",
         ("producerId", "firstOffset", "lastOffset")),
    ],
)  # fmt: skip
def test_files_as_kafka_dumps_them(table: str, suffix: str, pattern: str, columns: tuple[str, ...]) -> None:
    """The entries of indexes and snapshots are those that Kafka's tool shows."""
    compared = 0
    for log_set in every_log_set():
        expected = sorted(
            (path.partition("/")[0], *map(int, match.groups())) for path, match in dump_lines(log_set, pattern, suffix)
        )
        rows = rows_of(log_set.data, table=table)
        assert sorted((f"{row['topic']}-{row['partition']}", *(row[name] for name in columns)) for row in rows) == expected
        compared += len(expected)
    assert compared


def test_time_index_and_leader_epochs(tmp_path: Path) -> None:
    """Times are times, files are named; leader epochs come from their checkpoint."""
    log = PartitionBuilder(tmp_path / "t-0", index_every=1)
    for _ in range(5):
        log.append([(b"k", b"v")])
    log.roll()
    log.flush()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 4\n")
    rows = rows_of(tmp_path, table="time_index")
    assert [row["entry"] for row in rows] == list(range(len(rows))) and len(rows) >= 4
    assert rows[-1]["timestamp"] == datetime.fromtimestamp((BASE_TIMESTAMP + 40) / 1000, UTC)
    assert {Path(row["segment"]).name for row in rows} == {f"{0:020d}.log"}
    assert [(row["leaderEpoch"], row["startOffset"]) for row in rows_of(tmp_path, table="leader_epochs")] == [(0, 0), (3, 4)]


def test_the_index_of_an_active_segment_has_no_entry_of_zeros(tmp_path: Path) -> None:
    """A broker preallocates an index: without entries it has no row, with one it has that row."""
    for number, batches in enumerate((1, 3)):
        log = PartitionBuilder(tmp_path / f"t-{number}", index_every=2)
        for _ in range(batches):
            log.append([(b"k", b"v")])
        log.flush()
        for suffix in (".index", ".timeindex"):
            path = log.path(suffix)
            path.write_bytes((path.read_bytes() if batches > 1 else b"") + bytes(1200))
    assert [(row["partition"], row["offset"]) for row in rows_of(tmp_path, table="offset_index")] == [(1, 1)]
    assert {row["partition"] for row in rows_of(tmp_path, table="time_index")} == {1}


def test_internal_records_are_decoded() -> None:
    """Group, transaction and metadata records as JSON that says what they say; each record that Kafka shows has a row."""
    for log_set in every_log_set():
        rows = rows_of(log_set.data, table="internal_records", includeBelowLogStart="true")
        if not any(path.name.startswith("__") for path in log_set.data.iterdir()):
            assert rows == []
            continue
        assert {row["error"] for row in rows} == {None}
        types = {row["valueType"] or row["keyType"] for row in rows}
        assert {"OffsetCommitValue", "TransactionLogValue", "TopicRecord"} <= types
        topics = [json.loads(row["value"])["name"] for row in rows if row["valueType"] == "TopicRecord"]
        assert "orders" in topics
        commits = [json.loads(row["key"]) for row in rows if row["keyType"] == "OffsetCommitKey"]
        assert commits and all({"group", "topic", "partition"} <= set(commit) for commit in commits)
        assert any(row["isTombstone"] and row["value"] is None for row in rows)
        control = rows_of(log_set.data, table="internal_records", includeControl="true")
        assert {"LEADER_CHANGE"} <= {row["valueType"] for row in control}
