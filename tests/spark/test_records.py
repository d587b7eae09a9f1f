"""The table `records`, read through the source's classes: every column, every option that chooses, on built and given logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kcli.format.java_text import decode_utf8
from kcli.format.records import Header
from kcli.log.disk.os_disk import OsDisk
from kcli.spark.arrow_spans import arrow_schema
from kcli.spark.log_partitions import PlanError
from kcli.spark.read_options import OptionError, parse_options
from kcli.spark.table_schemas import TableError, table_schema
from kcli.spark.tables import plan_table, read_table
from tests.conftest import LogSet, every_log_set
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder
from tests.spark.source import rows_of, splits_of

PLAIN: list[tuple[bytes | None, bytes | None]] = [(b"k", b"v")]


def build(directory: Path, *, batches: int = 30) -> PartitionBuilder:
    """Batches of all codecs, nulls, headers, LogAppendTime, over two rolled segments and one open."""
    log = PartitionBuilder(directory)
    for batch in range(batches):
        rows = [
            (None if (batch + i) % 5 == 0 else b"key-%d" % i, None if i % 7 == 6 else b"v" * (batch * 31 % 200))
            for i in range(batch % 9 + 1)
        ]
        headers = (Header(b"h", b"x"), Header("é".encode(), None), Header(b"\xff", b"")) if batch % 4 == 1 else ()
        log.append(rows, codec=batch % 5, append_time=batch % 6 == 5, headers=headers, producer=batch % 3 - 1)
        if batch in (9, 19):
            log.epoch += 1
            log.roll()
    log.flush()
    return log


def offsets_of(path: Path | str, **options: str) -> list[int]:
    return sorted(row["offset"] for row in rows_of(path, **options))


# ------------------------------------------------------------------------------------------------------------- contents


@pytest.mark.parametrize("options", [{}, {"arrowBatchRows": "7"}, {"arrowBatchBytes": "300"}, {"maxPartitionBytes": "400"}])
def test_every_column(tmp_path: Path, options: dict[str, str]) -> None:
    """Keys, values, headers, times and the columns that only the log has are unchanged, in Arrow batches of any size."""
    log = build(tmp_path / "orders-3")
    rows = rows_of(tmp_path / "orders-3", **options)
    assert [row["offset"] for row in rows] == [row.offset for row in log.rows]
    for got, want in zip(rows, log.rows, strict=True):
        assert (got["key"], got["value"]) == (want.key, want.value)
        assert round(got["timestamp"].timestamp() * 1000) == want.timestamp
        headers = [{"key": decode_utf8(h.key), "value": h.value} for h in want.headers]
        assert got["headers"] == (headers or None)
        assert (got["topic"], got["partition"]) == ("orders", 3)
        assert (got["keySize"], got["valueSize"]) == tuple(-1 if b is None else len(b) for b in (want.key, want.value))
        assert got["recordSize"] > max(got["keySize"], 0) + max(got["valueSize"], 0)
        assert got["magic"] == 2
    assert {row["compression"] for row in rows} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert {row["timestampType"] for row in rows} == {0, 1}
    assert {row["leaderEpoch"] for row in rows} == {0, 1, 2}
    assert {row["producerId"] for row in rows} == {-1, 0, 1}
    assert all((row["sequence"] == row["offset"]) == (row["producerId"] >= 0) for row in rows)


@pytest.mark.parametrize(
    "columns", ["offset", "value,offset", "headers", "segment,position", "aborted,key,recordSize,sequence"]
)
def test_columns_alone(tmp_path: Path, columns: str) -> None:
    """A choice of columns gives these, in that order, with the same contents as all of them together."""
    build(tmp_path / "t-0")
    names = columns.split(",")
    whole = rows_of(tmp_path / "t-0")
    chosen = rows_of(tmp_path / "t-0", columns=columns)
    assert [list(row) for row in chosen[:1]] == [names]
    assert chosen == [{name: row[name] for name in names} for row in whole]


def test_a_large_record(tmp_path: Path) -> None:
    """A record above the size of an Arrow batch is whole, and what follows it begins the next batch."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append(PLAIN * 3)
    log.append([(b"big", b"\x00\x01" * 6_000_000)])
    log.append(PLAIN)
    log.flush()
    reader, splits = splits_of(tmp_path / "t-0", arrowBatchBytes="100000")
    sizes = [batch.num_rows for split in splits for batch in reader.read(split)]
    assert sizes == [4, 1]
    assert rows_of(tmp_path / "t-0")[3]["value"] == b"\x00\x01" * 6_000_000


def dumped_offsets(log_set: LogSet, directory: Path) -> dict[int, tuple[int, int]]:
    """offset -> (keySize, valueSize) of the data records that Kafka's own tool shows for a partition."""
    found = {}
    for log in sorted(directory.glob("*.log")):
        control = False
        for line in log_set.golden(f"{directory.name}/{log.name}").decode("utf-8", "replace").splitlines():
            if line.startswith("baseOffset:"):
                control = "isControl: true" in line
            match = re.match(r"\| offset: (\d+) .*?keySize: (-?\d+) valueSize: (-?\d+)", line)
            if match and not control:
                found[int(match[1])] = (int(match[2]), int(match[3]))
    return found


def test_given_logs_hold_what_kafka_dumps() -> None:
    """Of every partition that Kafka wrote: the offsets and sizes of Kafka's own dump, all formats and codecs."""
    compared = 0
    for log_set in every_log_set():
        options = {
            "includeBelowLogStart": "true",
            "includeInternal": "true",
            "columns": "topic,partition,offset,keySize,valueSize",
        }
        rows = rows_of(log_set.data, **options)
        by_directory: dict[str, dict[int, tuple[int, int]]] = {}
        for row in rows:
            sizes = by_directory.setdefault(f"{row['topic']}-{row['partition']}", {})
            assert row["offset"] not in sizes
            sizes[row["offset"]] = (row["keySize"], row["valueSize"])
        for directory in sorted(path for path in log_set.data.iterdir() if path.is_dir()):
            expected = dumped_offsets(log_set, directory)
            assert by_directory.get(directory.name, {}) == expected, directory
            compared += len(expected)
    assert compared


# ------------------------------------------------------------------------------------------------------------- left out


def transactional(directory: Path) -> PartitionBuilder:
    log = PartitionBuilder(directory)
    log.append(PLAIN * 2)  # 0..1
    log.append(PLAIN * 3, producer=1, transactional=True)  # 2..4 aborted
    log.append(PLAIN, producer=2, transactional=True)  # 5 committed
    log.end_transaction(1, commit=False)  # 6
    log.end_transaction(2, commit=True)  # 7
    log.append(PLAIN, producer=3, transactional=True)  # 8 open
    log.append(PLAIN)  # 9 behind the last stable offset
    log.flush()
    return log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 8, 9]),
        ({"includeControl": "true"}, list(range(10))),
        ({"kafka_isolation_level": "read_committed"}, [0, 1, 5]),
        ({"isolationLevel": "read_committed", "includeControl": "true"}, [0, 1, 5, 6, 7]),
        ({"isolation_level": "read_committed", "includeAborted": "true"}, [0, 1, 2, 3, 4, 5]),
        ({"isolation_level": "read_committed", "includeOpen": "true"}, [0, 1, 5, 8, 9]),
    ],
)
def test_isolation(tmp_path: Path, options: dict[str, str], expected: list[int]) -> None:
    """Control records only on request; under read_committed the rows of Kafka's consumer, and those on request."""
    transactional(tmp_path / "t-0")
    assert offsets_of(tmp_path / "t-0", **options) == expected


def test_the_column_aborted(tmp_path: Path) -> None:
    """Aborted records are marked whatever the isolation, markers of their transactions with them."""
    transactional(tmp_path / "t-0")
    rows = rows_of(tmp_path / "t-0", includeControl="true", columns="offset,aborted,isControl,isTransactional")
    assert [row["offset"] for row in rows if row["aborted"]] == [2, 3, 4, 6]
    assert [row["offset"] for row in rows if row["isControl"]] == [6, 7]
    assert [row["offset"] for row in rows if row["isTransactional"]] == [2, 3, 4, 5, 6, 7, 8]


def test_log_start_and_high_watermark(tmp_path: Path) -> None:
    """Records below the checkpointed log start offset are read only on request; the high watermark is used on request."""
    build(tmp_path / "t-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 33\n")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 77\n")
    whole = offsets_of(tmp_path / "t-0", includeBelowLogStart="true")
    assert whole[0] == 0 and whole[-1] > 77
    assert offsets_of(tmp_path) == [offset for offset in whole if offset >= 33]
    assert offsets_of(tmp_path / "t-0", stopAtHighWatermark="true") == [offset for offset in whole if 33 <= offset < 77]
    (tmp_path / "log-start-offset-checkpoint").write_text("nonsense")
    with pytest.raises(PlanError, match="log-start-offset-checkpoint"):
        rows_of(tmp_path)


# --------------------------------------------------------------------------------------------------------------- chosen


@pytest.mark.parametrize("split_bytes", ["64m", "300"])
def test_offsets(tmp_path: Path, split_bytes: str) -> None:
    """Starting and ending offsets cut exactly, also inside batches and segments; with splits, each record is read once."""
    log = build(tmp_path / "t-0")
    for first, end in ((0, 5), (13, 14), (40, 41), (44, 95), (60, log.offset), (90, 400)):
        chosen = offsets_of(
            tmp_path / "t-0",
            startingOffsets=json.dumps({"t": {"0": first}}),
            endingOffsets=json.dumps({"t": {"0": end}}),
            maxPartitionBytes=split_bytes,
            failOnDataLoss="false",
        )
        assert chosen == list(range(first, min(end, log.offset)))
    assert offsets_of(tmp_path / "t-0", startingOffsets="latest") == []
    assert offsets_of(tmp_path / "t-0", startingOffsets='{"t":{"0":-1}}') == []
    assert offsets_of(tmp_path / "t-0", startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":-1}}')[0] == 0
    for option in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(PlanError, match=f"{option} names other-0, t-3, which is not read from"):
            rows_of(tmp_path / "t-0", **{option: '{"other":{"0":9},"t":{"0":1,"3":1}}'})


def test_times(tmp_path: Path) -> None:
    """Times resolve to offsets as Kafka's offsetsForTimes does; both ends, by partition or for all."""
    log = PartitionBuilder(tmp_path / "t-0")
    for _ in range(20):
        log.append(PLAIN * 3)
        if log.offset % 21 == 0:
            log.roll()
    log.flush()
    time = BASE_TIMESTAMP + 10 * 31
    assert offsets_of(tmp_path / "t-0", startingTimestamp=str(time)) == list(range(31, 60))
    assert offsets_of(tmp_path / "t-0", endingTimestamp=str(time - 5)) == list(range(31))
    by_partition = json.dumps({"t": {"0": time}})
    assert offsets_of(tmp_path / "t-0", startingOffsetsByTimestamp=by_partition)[0] == 31
    assert offsets_of(tmp_path / "t-0", endingOffsetsByTimestamp=by_partition)[-1] == 30
    late = str(BASE_TIMESTAMP * 2)
    assert offsets_of(tmp_path / "t-0", startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(offsets_of(tmp_path / "t-0", endingTimestamp=late)) == 60
    with pytest.raises(PlanError, match="startingOffsetsByTimestampStrategy=latest"):
        rows_of(tmp_path / "t-0", startingTimestamp=late)
    for text in ("2023-11-14T22:13:20.310Z", "2023-11-14T22:13:20.310", "2023-11-14T23:13:20.310+01:00"):
        assert offsets_of(tmp_path / "t-0", startingTimestamp=text) == list(range(31, 60))
    assert len(offsets_of(tmp_path / "t-0", startingTimestamp="2023-11-14")) == 60


def test_topics_and_paths(tmp_path: Path) -> None:
    """Log directories, partitions, segments, globs and lists of them; topics by name, pattern and assignment."""
    for directory, name in (("a", "x-0"), ("a", "x-1"), ("a", "y-0"), ("b", "z-0")):
        build(tmp_path / directory / name, batches=12)

    def partitions(path: Path | str, **options: str) -> set[str]:
        return {f"{row['topic']}-{row['partition']}" for row in rows_of(path, columns="topic,partition", **options)}

    a, b = tmp_path / "a", tmp_path / "b"
    assert partitions(a) == {"x-0", "x-1", "y-0"}
    assert partitions(f"{a},{b}") == {"x-0", "x-1", "y-0", "z-0"}
    assert partitions(a, paths=f'["{b}"]') == {"x-0", "x-1", "y-0", "z-0"}
    assert partitions(f"{tmp_path}/*/x-*") == {"x-0", "x-1"}
    assert partitions(f"file://{a}/x-0") == {"x-0"}
    assert partitions(f"{a},{b}", subscribe="x,z") == {"x-0", "x-1", "z-0"}
    assert partitions(a, subscribePattern="x|yy") == {"x-0", "x-1"}
    assert partitions(a, assign='{"x":[1],"y":[0]}') == {"x-1", "y-0"}
    first, second = sorted((a / "x-0").glob("*.log"))
    alone = offsets_of(second)
    assert alone and alone[0] == int(second.stem)
    assert offsets_of(f"{first},{second}") == offsets_of(a / "x-0")
    for options in ({"subscribe": "nope"}, {"assign": '{"x":[7]}'}):
        with pytest.raises(PlanError, match=r"nope|x-7"):
            rows_of(a, **options)
    with pytest.raises(PlanError, match=r"not a segment.*\.index|\.index.*not a segment"):
        rows_of(next((a / "x-0").glob("*.index")))
    with pytest.raises(PlanError, match="no such file"):
        rows_of(tmp_path / "nothing")


def test_duplicates(tmp_path: Path) -> None:
    """Two replicas of a partition do not give each record twice, unless that is asked for."""
    build(tmp_path / "broker-1" / "t-0", batches=8)
    build(tmp_path / "broker-2" / "t-0", batches=16)
    both = f"{tmp_path}/broker-1,{tmp_path}/broker-2"
    with pytest.raises(PlanError, match=r"the partition t-0 is in .* and in "):
        rows_of(both)
    longest = offsets_of(tmp_path / "broker-2")
    assert offsets_of(both, duplicatePartitions="longest") == longest
    assert len(offsets_of(both, duplicatePartitions="all")) == len(longest) + len(offsets_of(tmp_path / "broker-1"))
    # One wrong bit in the offset of the shorter log's last batch, which its index contradicts: it was the longest then.
    for path in (tmp_path / "broker-1").rglob("*.log"):
        data = bytearray(path.read_bytes())
        data[int.from_bytes(path.with_suffix(".index").read_bytes()[-4:], "big") + 5] ^= 1
        path.write_bytes(data)
    assert offsets_of(both, duplicatePartitions="longest") == longest


def test_removed_directories_are_not_read(tmp_path: Path) -> None:
    """What Kafka has marked for deletion is read only when it is named itself."""
    build(tmp_path / "t-0", batches=4)
    marked = tmp_path / "u-0.0123456789abcdef0123456789abcdef-delete"
    build(marked, batches=4)
    assert {row["topic"] for row in rows_of(tmp_path)} == {"t"}
    assert {row["topic"] for row in rows_of(marked)} == {"u"}


# ------------------------------------------------------------------------------------------------------ pruning, splits


def test_options_prune_segments(tmp_path: Path) -> None:
    """A read of late offsets opens no early segment, and not the start of its own."""
    log = build(tmp_path / "t-0")
    _, splits = splits_of(tmp_path / "t-0", startingOffsets=json.dumps({"t": {"0": log.offset - 3}}))
    (part,) = [part for split in splits for part in split.ranges]
    assert part.file.endswith(log.path(".log").name)
    assert 0 < part.position < part.end_position == len(log.log)


@pytest.mark.parametrize("least", [1, 2, 3, 8])
def test_one_segment_becomes_many_splits(tmp_path: Path, least: int) -> None:
    """One large segment gives work to as many tasks as are asked for; together they read each record once."""
    log = PartitionBuilder(tmp_path / "t-0", index_every=4)
    for _ in range(600):
        log.append([(b"k", b"x" * 4000)])
    log.flush()
    reader, splits = splits_of(tmp_path / "t-0", minPartitions=str(least), columns="offset")
    assert len(splits) >= least
    seen = [row["offset"] for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
    assert sorted(seen) == list(range(600))
    assert all(len(split.ranges) == 1 for split in splits)
    # Cut where index entries point, so that nobody reads the segment to find batches.
    indexed = {row["position"] for row in rows_of(tmp_path / "t-0", table="offset_index")}
    assert {split.ranges[0].position for split in splits} - {0} <= indexed


class StoreDisk(OsDisk):
    """A store of objects whose names begin with `store:`; any other path is not in it."""

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name.startswith("_"):
            return method

        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            assert path.startswith("store:"), f"{name} of {path}"
            return method(path.removeprefix("store:"), *args, **kwargs)

        return call


def test_bytes_come_through_one_port(tmp_path: Path) -> None:
    """Planning and reading touch files through kcli.log.disk.port alone: another disk under it serves as well."""
    log = build(tmp_path / "t-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    options = parse_options({"path": f"store:{tmp_path}", "kafka.isolation.level": "read_committed"})
    schema = table_schema("records")
    splits = plan_table(StoreDisk(), options, set(schema.fieldNames()))
    batches = [batch for split in splits for batch in read_table(StoreDisk(), split, arrow_schema(schema), options)]
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [row.offset for row in log.rows[5:]]


def test_kafka_s_own_topics_are_read_where_they_are_named(tmp_path: Path) -> None:
    """The metadata log grows by itself: its records are read only on request."""
    for name in ("__consumer_offsets-0", "__cluster_metadata-0", "t-0", "__mine-0"):
        log = PartitionBuilder(tmp_path / name)
        log.append(PLAIN)
        log.flush()

    def topics(path: Path = tmp_path, **options: str) -> set[str]:
        return {row["topic"] for row in rows_of(path, **options)}

    assert topics() == topics(subscribePattern=".*") == {"t", "__mine"}
    assert topics(subscribe="__consumer_offsets,t") == {"__consumer_offsets", "t"}
    assert topics(assign='{"__cluster_metadata":[0]}') == {"__cluster_metadata"}
    assert topics(tmp_path / "__consumer_offsets-0") == {"__consumer_offsets"}
    assert topics(includeInternal="true") == {"__consumer_offsets", "__cluster_metadata", "t", "__mine"}
    assert topics(table="batches") == topics(includeInternal="true")


def test_paths_with_commas_and_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory whose name has a comma is one path, a pattern may begin with a bracket, and paths come out absolute."""
    for name in ("logs,old", "logs", "[x]"):
        log = PartitionBuilder(tmp_path / name / "t-0")
        log.append(PLAIN)
        log.flush()
    monkeypatch.chdir(tmp_path)
    for path in ("logs,old", str(tmp_path / "logs,old"), json.dumps(["logs,old"])):
        assert {row["segment"] for row in rows_of(path)} == {str(tmp_path / "logs,old" / "t-0" / f"{0:020}.log")}
    both = rows_of("logs , [l]ogs,", duplicatePartitions="all")
    assert {row["segment"] for row in both} == {str(tmp_path / "logs" / "t-0" / f"{0:020}.log")}
    assert {row["segment"] for row in rows_of("[a-m]ogs")} == {str(tmp_path / "logs" / "t-0" / f"{0:020}.log")}


def test_small_segments_share_a_task(tmp_path: Path) -> None:
    """A hundred tiny partitions do not become a hundred tasks."""
    for number in range(100):
        log = PartitionBuilder(tmp_path / f"t-{number}")
        log.append(PLAIN)
        log.flush()
    _, splits = splits_of(tmp_path)
    assert len(splits) <= 4
    _, splits = splits_of(tmp_path, minPartitions="10")
    assert 10 <= len(splits) <= 20


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "1"}, "did you mean startingOffsets"),
        ({"startingOffsets": "soon"}, "startingOffsets must be"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "below -2"),
        ({"startingOffsets": '{"t":5}'}, "must look like"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "cannot be earliest"),
        ({"subscribe": "a", "assign": '{"t":[0]}'}, "only one of"),
        ({"assign": '{"t":0}'}, "must look like"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"includeControl": "yes"}, "true or false"),
        ({"onCorrupt": "ignore"}, "fail or skip"),
        ({"isolation_level": "serializable"}, "read_uncommitted or read_committed"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxPartitionBytes": "64 parsecs"}, "must be a size"),
        ({"startingTimestamp": "noon"}, "ms since 1970 or an ISO 8601 time"),
        ({"table": "tables"}, "table must be"),
        ({"exactOffsets": "true", "startingOffsets": '{"t":{"0":-2}}', "endingOffsets": '{"t":{"0":5}}'}, "0 or more"),
        ({"pushdown": "false"}, "Spark keeps the filters of one query for later uses of the DataFrame"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, str], says: str) -> None:
    """A wrong option is refused with its name and what it may be, before anything is read."""
    with pytest.raises(OptionError, match=re.escape(says)):
        rows_of(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "says", "rows"),
    [
        ({"startingOffsets": '{"t":{"0":11}}'}, "the read begins at offset 11, but the log ends at 10", 0),
        ({"endingOffsets": '{"t":{"0":11}}'}, "the read ends at offset 11, but the log ends at 10", 10),
    ],
)
def test_offsets_above_the_log_s_end_are_data_loss(tmp_path: Path, options: dict[str, str], says: str, rows: int) -> None:
    """Offsets that the log never had, or has no more, fail the job unless data loss is accepted; its end is an offset."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"k", b"v")] * 10)
    log.flush()
    with pytest.raises(PlanError, match=says):
        rows_of(tmp_path, **options)
    assert len(rows_of(tmp_path, failOnDataLoss="false", **options)) == rows
    assert len(rows_of(tmp_path, **{name: value.replace("11", "10") for name, value in options.items()})) == rows


def test_options_of_a_connection_are_ignored(tmp_path: Path) -> None:
    """A job written for a broker keeps its kafka. options."""
    build(tmp_path / "t-0", batches=2)
    assert rows_of(tmp_path, kafka_bootstrap_servers="127.0.0.1:9092")


def test_schemas_are_checked(tmp_path: Path) -> None:
    """A user's schema must name columns of the table, with their types."""
    from pyspark.sql.types import IntegerType, LongType, StructType

    from kcli.spark.data_source import KafkaLogDataSource

    source: Any = KafkaLogDataSource({"path": str(tmp_path)})
    assert source.reader(StructType().add("offset", LongType(), False))
    with pytest.raises(TableError, match=r"offset .* bigint, not int"):
        source.reader(StructType().add("offset", IntegerType()))
    with pytest.raises(TableError, match="no column nope"):
        source.reader(StructType().add("nope", IntegerType()))
    with pytest.raises(TableError, match="no column nope"):
        KafkaLogDataSource({"path": str(tmp_path), "columns": "nope"}).schema()
