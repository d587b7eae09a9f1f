"""`kcli to-parquet`: what is written, the summary at the end, corrupt bytes, decoding, modes, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from kcli.commands import to_parquet
from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun
from kcli.format.kafka_uuid import Uuid
from kcli.inspect.description.metadata_view import ClusterTopics
from kcli.inspect.quantities import format_bytes
from kcli.spark import parquet_export, session
from kcli.spark.parquet_export import DEFAULT_COMPRESSION, ExportOptions, check_export, export
from kcli.spark.parquet_output import NEW_SUFFIX, OutputDirectory
from kcli.spark.report import Report
from kcli.spark.session import SparkError
from kcli.spark.spark_errors import ExportError
from tests.damage.layout import flip
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder
from tests.option_effects import check_differences
from tests.spark.source import rows_of
from tests.spark.to_parquet_run import Run, parse


def build(root: Path) -> PartitionBuilder:
    """Transactions, JSON, text and other bytes in two partitions; records below the log start offset."""
    other = PartitionBuilder(root / "text-1")
    other.append([(b"a", b"plain"), (b"b", "grün".encode()), (None, b"\xff\xfe"), (b"c", None)])
    other.flush()
    log = PartitionBuilder(root / "events-0")
    for number in range(10):
        log.append([(b"k%d" % number, json.dumps({"id": number, "name": f"n{number}"}).encode())])
    log.append([(b"x", b'{"id": "many", "name": "x"}'), (b"y", b"not json"), (b"z", None)])  # 10..12
    log.append([(b"t", b'{"id": 13}')] * 2, producer=1, transactional=True)  # 13..14
    log.end_transaction(1, commit=False)  # 15
    log.append([(b"t", b'{"id": 16, "more": [1, 2]}')], producer=1, transactional=True)  # 16
    log.end_transaction(1, commit=True)  # 17
    log.flush()
    (root / "log-start-offset-checkpoint").write_text("0\n1\nevents 0 3\n")
    return log


# ------------------------------------------------------------------------------------------------------------ no Spark


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partition_by": ("nothing",)}, "cannot partition by nothing"),
        ({"partition_by": ("date",), "source": {"columns": "offset"}}, "without the column timestamp"),
        ({"partition_by": ("topic",), "source": {"columns": "topic"}}, "cannot partition by all columns"),
        ({"source": {"columns": "topic,nope"}}, "the table records has no column nope; it has key, value"),
        ({"source": {"columns": "key", "table": "batches"}}, "the table batches has no column key; it has topic"),
        ({"decode_value": "json", "source": {"columns": "key"}}, "no column value"),
        ({"compression": "brotli"}, "zstd:LEVEL, snappy, gzip, lz4 or none, not 'brotli'"),
        ({"compression": "gzip:9"}, "not 'gzip:9'"),
        ({"compression": "zstd:23"}, "level of zstd must be 1 to 22, not '23'"),
        ({"compression": "zstd:"}, "not ''"),
        ({"source": {"startingOffsets": "x"}}, "startingOffsets must be"),
        ({"value_schema": "id bigint"}, "--value-schema is for JSON values: add --decode-value json"),
        ({"infer_from": 5, "decode_value": "utf8"}, "--infer-from is for JSON values: add --decode-value json"),
        ({"infer_from": 5, "decode_value": "json", "value_schema": "id bigint"}, "use one of the two"),
        ({"infer_from": 0, "decode_value": "json"}, "--infer-from must be 1 or more, not 0"),
        ({"source": {"table": "batches", "kafka.isolation.level": "read_committed"}}, "has everything in the files"),
        ({"source": {"table": "time_index", "startingTimestamp": "0"}}, "offsets and times choose none of them"),
        ({"source": {"table": "producers", "startingOffsets": '{"text":{"0":1}}'}}, "offsets and times choose none of them"),
        ({"source": {"assign": '{"text":[]}'}}, "the options choose no partition of"),
    ],
)
def test_checked_before_spark_starts(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    """Wrong options and paths are told at once, not after a JVM has started."""
    build(tmp_path)
    source = {"paths": str(tmp_path), **options.pop("source", {})}
    with pytest.raises(ExportError, match=says):
        check_export(ExportOptions(out="x", source=source, **options))


def digests(root: Path) -> dict[Path, str]:
    """What a directory tree holds, to the byte."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("mode", ["error", "overwrite", "append", "ignore"])
@pytest.mark.parametrize(
    ("paths", "out", "says"),
    [
        ("logs", "logs", "is the input"),
        ("logs", "logs/", "is the input"),
        ("logs", "file:{root}/logs", "is the input"),
        ("logs", "file://{root}/logs", "is the input"),
        ("logs", "logs/events-0", "is in the input"),
        ("logs", "logs/new/deep", "is in the input"),
        ("logs", "other/../logs/new", "is in the input"),
        ("logs", "link", "is the input"),
        ("logs", "link/new", "is in the input"),
        ("link", "logs/new", "is in the input"),
        ("logs", ".", "contains the input"),
        ("logs", "/", "contains the input"),
        ("logs/events-0", "logs", "contains the input"),
        ("logs/events-0", "logs/new", "is in the input"),
        ("logs/events-0/00000000000000000000.log", "logs/events-0/new", "is in the input"),
        ("logs.corrupt", "logs", "is the input"),
        ("logs.kcli-new", "logs", "is the input"),
        ("logs.undecoded", "logs", "is the input"),
        ("logs", "backup", "contains a file of Kafka"),
    ],
)
def test_an_output_that_would_touch_kafka_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, paths: str, out: str, says: str
) -> None:
    """A log directory must not be deleted by the export that reads it: refused before Spark starts, by whatever path."""
    monkeypatch.chdir(tmp_path)
    build(tmp_path / "logs")
    (tmp_path / "logs" / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("logs")
    build(tmp_path / "backup" / "2026")
    for copy in ("logs.corrupt", "logs.kcli-new", "logs.undecoded"):
        if paths == copy:
            shutil.copytree(tmp_path / "logs", tmp_path / copy)
            shutil.rmtree(tmp_path / "logs")
    before = digests(tmp_path)
    with pytest.raises(ExportError, match=says):
        check_export(ExportOptions(out=out.format(root=tmp_path), source={"paths": paths}, mode=mode))
    assert digests(tmp_path) == before


def test_an_output_elsewhere_is_taken(tmp_path: Path) -> None:
    """Next to the input, behind a URL that is not on this machine, or a directory with other files: nothing of Kafka's."""
    build(tmp_path / "logs")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "application.log").write_text("a line")
    for out in (tmp_path / "new", tmp_path / "out", "s3a://bucket/logs", "hdfs://host/logs"):
        assert check_export(ExportOptions(out=str(out), source={"paths": str(tmp_path / "logs")}, mode="append"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--topic", "event"), "{path}: no topic here is called 'event'; did you mean 'events'?"),
        (("--topic", "text", "--topic", "nope"), "{path}: no topic here is called 'nope'; there are events, text"),
        (("--topic-pattern", "nope.*"), "no topic in {path} matches 'nope.*'"),
    ],
)
def test_a_topic_that_is_not_there(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and what may have been meant, as of describe and compact; neither Spark nor a file is needed for that."""
    build(tmp_path / "logs")
    code = to_parquet.run(parse(str(tmp_path / "logs"), "--out", str(tmp_path / "out"), *words))
    assert code == EXIT_FINDINGS and not (tmp_path / "out").exists()
    assert capfd.readouterr() == ("", f"kcli: {sentence.format(path=tmp_path / 'logs')}\n")


def test_words_that_make_no_sense(tmp_path: Path) -> None:
    """NAME=VALUE, times: one sentence that quotes what was typed."""
    for words in (("--option", "novalue"), ("--starting-time", "yesterday")):
        with pytest.raises(CannotRun, match=r"novalue|yesterday"):
            to_parquet._export_options(parse(str(tmp_path), "--out", "x", *words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--starting-time", "2023-11-14", "--starting-offsets", '{"t":{"0":5}}'), "--starting-time and --starting-offsets"),
        (("--ending-time", "2023-11-14", "--ending-offsets", "latest"), "--ending-time and --ending-offsets"),
        (("--option", "minPartitions=2", "--option", "minpartitions=3"), "--option minpartitions is given twice"),
        (("--starting-offsets", "earliest", "--option", "startingoffsets=latest"), "--option startingoffsets repeats"),
    ],
)
def test_options_of_which_one_would_be_ignored(words: tuple[str, ...], says: str) -> None:
    """Two options for one setting: which one counts would be a guess."""
    with pytest.raises(CannotRun, match=says):
        to_parquet._export_options(parse("logs", "--out", "x", *words))


def test_a_day_is_read_to_its_end(tmp_path: Path) -> None:
    """As --starting-time it is its first ms, as --ending-time the first ms of the next day; as dump-log's --time has it."""
    words = ("--starting-time", "2023-11-14", "--ending-time", "2023-11-14")
    source = to_parquet._export_options(parse(str(tmp_path), "--out", "x", *words)).source
    assert (source["startingTimestamp"], source["endingTimestamp"]) == ("1699920000000", "1700006400000")
    with pytest.raises(CannotRun, match="--ending-time: '2030' is not milliseconds"):
        to_parquet._export_options(parse(str(tmp_path), "--out", "x", "--ending-time", "2030"))


def test_the_default_compression_is_one() -> None:
    """The command's default, written there so that --help is quick, is the export's."""
    assert parse("x", "--out", "y").compression == ExportOptions("y", {}).compression == DEFAULT_COMPRESSION


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("master", ["local[2]", "spark://elsewhere:7077"])
def test_spark_draws_its_progress_on_terminals_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, master: str
) -> None:
    """Where the executors are not on this machine; ours is drawn here. --conf has the last word."""
    build(tmp_path / "logs")
    asked: list[dict[str, str]] = []

    def started(master: str, name: str, conf: dict[str, str], **_: object) -> None:
        asked.append(conf)
        raise SparkError("enough")

    monkeypatch.setattr("kcli.spark.session.start_session", started)
    monkeypatch.setattr(to_parquet, "is_terminal", lambda stream: terminal and stream == 2)
    words = [str(tmp_path / "logs"), "--out", str(tmp_path / "out"), "--master", master]
    for more in ([], ["--conf", "spark.ui.showConsoleProgress=false"]):
        with pytest.raises(CannotRun, match="enough"):
            to_parquet.run(parse(*words, *more))
    assert asked[0].get("spark.ui.showConsoleProgress") == ("true" if terminal and "elsewhere" in master else None)
    assert asked[1]["spark.ui.showConsoleProgress"] == "false"


@pytest.mark.parametrize("is_named", [False, True])
def test_a_partition_of_another_topic_of_the_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_named: bool
) -> None:
    """Its topic id is not the one in the metadata log beside it; who names its directory means it."""
    build(tmp_path / "logs")
    (tmp_path / "logs/text-1/partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    topics = ClusterTopics("/there", {"text": Uuid.parse("AAAAAAAAAAAAAAAAAAAAAg")}, {}, {}, "", {})
    monkeypatch.setattr("kcli.inspect.verification.directories.read_topics", lambda disk, path: topics)

    def started(*_: object) -> None:
        raise ExportError("enough")

    monkeypatch.setattr(to_parquet, "_export", started)
    paths = [str(tmp_path / "logs/text-1")] if is_named else [str(tmp_path / "logs")]
    code = to_parquet.run(parse(*paths, "--out", str(tmp_path / "out")))
    err = capfd.readouterr().err
    assert code == EXIT_CANNOT_RUN
    assert ("belongs to a deleted topic of that name" in err) == (not is_named) == ("enough" not in err)


def test_reports_add_up() -> None:
    """Reports of tasks sum, in any order, to one summary."""
    reports = []
    for number in range(3):
        report = Report()
        report.rows["t", 0] += 5 + number
        report.add_left_out("t", 0, "control", number)
        report.corrupt["t", 1] += 1
        report.corrupt_bytes["t", 1] += 10
        report.corrupt_files.add(f"file-{number}")
        report.first_faults.append(f"fault {number}")
        reports.append(report.to_json())
    total = Report.sum(reports)
    assert total.rows == {("t", 0): 18}
    assert total.left_out == {("t", 0, "control"): 3}
    assert (total.corrupt, total.corrupt_bytes) == ({("t", 1): 3}, {("t", 1): 30})
    assert total.corrupt_files == {"file-0", "file-1", "file-2"}
    assert len(total.first_faults) == 3


# ---------------------------------------------------------------------------------------------------------- with Spark


@pytest.mark.spark
def test_the_account(run: Run, tmp_path: Path) -> None:
    """Every partition with its rows, and every record that is not among them with the reason."""
    build(tmp_path / "logs")
    code, out, _ = run(tmp_path / "logs", "--out", tmp_path / "out", "--isolation", "read_committed")
    assert code == EXIT_OK
    assert out.splitlines() == [
        "events-0: 11 rows; 2 records of aborted transactions left out; 3 records below the log start offset left out; "
        "2 control records left out",
        "text-1: 4 rows",
        f"15 rows written to {tmp_path / 'out'}",
    ]
    written = pq.read_table(tmp_path / "out")
    assert written.num_rows == 15
    expected = rows_of(tmp_path / "logs", isolation_level="read_committed", columns="topic,offset,value")
    assert sorted(written.select(["topic", "offset", "value"]).to_pylist(), key=str) == sorted(expected, key=str)
    first = next((tmp_path / "out").glob("*.parquet"))
    footer = pq.ParquetFile(first)
    assert footer.metadata.row_group(0).column(0).compression == "ZSTD"
    assert str(footer.schema_arrow.field("timestamp").type) == "timestamp[us, tz=UTC]"


@pytest.mark.spark
def test_the_account_as_json(run: Run, tmp_path: Path) -> None:
    """--report has what the lines say, for programs; of a job that fails it has the error and the exit code."""
    log = build(tmp_path / "logs")
    report = tmp_path / "report.json"
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--isolation", "read_committed", "--report", report)
    assert run(*words)[0] == EXIT_OK
    summary = json.loads(report.read_text())
    files = list((tmp_path / "out").glob("*.parquet"))
    assert (summary["type"], summary["exitCode"], summary["rows"], summary["out"]) == (
        "to-parquet",
        0,
        15,
        str(tmp_path / "out"),
    )
    assert summary["partitions"][0] == {
        "topic": "events",
        "partition": 0,
        "rows": 11,
        "leftOut": {"aborted": 2, "belowLogStart": 3, "control": 2},
        "corruptPlaces": 0,
        "corruptSizeInBytes": 0,
        "lostOffsets": 0,
        "lostRanges": [],
    }
    assert (summary["outputFiles"], summary["outputSizeInBytes"]) == (len(files), sum(file.stat().st_size for file in files))
    first = log.path(".log", 0)
    flip(first, first.stat().st_size // 2)
    assert run(*words, "--mode", "overwrite")[0] == EXIT_FINDINGS
    summary = json.loads(report.read_text())
    assert summary["exitCode"] == EXIT_FINDINGS and str(first) in summary["error"]


@pytest.mark.parametrize("name", ["out/report.json", "logs/report.json", "meta.properties", "nope/report.json"])
def test_the_report_is_no_file_of_the_log_or_the_output(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It is refused before Spark starts, and nothing is written."""
    build(tmp_path / "logs")
    (tmp_path / "out").mkdir()
    before = digests(tmp_path)
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--mode", "append", "--report", tmp_path / name)
    assert to_parquet.run(parse(*map(str, words))) == EXIT_CANNOT_RUN
    assert "--report" in capfd.readouterr().err
    assert digests(tmp_path) == before


@pytest.mark.spark
def test_the_account_says_where_reading_ended(run: Run, tmp_path: Path) -> None:
    """Partitions whose high watermark is known end there; of the others all is read, and the summary says so."""
    build(tmp_path / "logs")
    (tmp_path / "logs" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (tmp_path / "logs" / "replication-offset-checkpoint").write_text("0\n1\ntext 1 3\n")
    code, out, _ = run(tmp_path / "logs", "--out", tmp_path / "out", "--isolation", "read_committed")
    assert code == EXIT_OK
    assert "text-1: 3 rows; 1 record at or above the checkpointed high watermark left out\n" in out
    assert "1 partition read up to the high watermark, 1 up to the end of the log\n" in out


@pytest.mark.spark
def test_the_bar_goes_from_the_first_byte_to_the_last(spark: Any, tmp_path: Path) -> None:
    """Of two segments in two splits, each byte once."""
    build(tmp_path / "logs")
    told: list[int] = []
    source = {"paths": json.dumps([str(tmp_path / "logs")]), "minPartitions": "2", "includeBelowLogStart": "true"}
    export(spark, ExportOptions(str(tmp_path / "out"), source), on_bytes=told.append)
    assert sum(told) == sum(path.stat().st_size for path in (tmp_path / "logs").glob("*-*/*.log"))


@pytest.mark.spark
def test_the_last_line_tells_of_time_and_bytes(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The segments that were read, and what the output has."""
    build(tmp_path / "logs")
    out = tmp_path / "out"
    monkeypatch.setattr("kcli.spark.session.start_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None, raising=False)
    assert to_parquet.run(parse(str(tmp_path / "logs"), "--out", str(out))) == EXIT_OK
    line = capfd.readouterr().out.splitlines()[-1]
    files = list(out.glob("*.parquet"))
    read = format_bytes(sum(path.stat().st_size for path in (tmp_path / "logs").glob("*-*/*.log")))
    has = f"{out} has {len(files)} Parquet files, {format_bytes(sum(path.stat().st_size for path in files))}"
    assert re.fullmatch(rf"{re.escape(read)} of segments read in [0-9]+\.[0-9] s; {re.escape(has)}", line)


@pytest.mark.spark
def test_the_summary_of_a_log_that_grows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of each log is decided once: rows and what was left out are about the same offsets though a broker goes on."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b"v")] * 3)
    log.append([(b"k", b"v")] * 2, producer=1, transactional=True)
    log.flush()
    write = parquet_export._write

    def write_later(*words: Any, **options: Any) -> bool:
        log.end_transaction(1, commit=True)
        log.append([(b"k", b"v")] * 4)
        log.flush()
        return write(*words, **options)

    monkeypatch.setattr(parquet_export, "_write", write_later)
    code, out, _ = run(tmp_path / "logs", "--out", tmp_path / "out", "--isolation", "read_committed")
    assert code == EXIT_OK
    assert out == (
        f"t-0: 3 rows; 2 records at or above the last stable offset left out\n3 rows written to {tmp_path / 'out'}\n"
    )
    assert pq.read_table(tmp_path / "out").num_rows == 3


@pytest.mark.spark
def test_the_summary_of_executors_elsewhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tasks cannot write files for the driver they tell by a row of their own, and that row is not written."""
    build(tmp_path / "logs")
    words = (tmp_path / "logs", "--isolation", "read_committed")
    code, here, _ = run(*words, "--out", tmp_path / "here")
    monkeypatch.setattr("kcli.spark.parquet_export.is_on_this_machine", lambda master: False)
    assert (code, run(*words, "--out", tmp_path / "there")[1]) == (EXIT_OK, here.replace("/here", "/there"))
    tables = [pq.read_table(tmp_path / name) for name in ("here", "there")]
    assert tables[0].schema.equals(tables[1].schema)
    assert sorted(map(str, tables[0].to_pylist())) == sorted(map(str, tables[1].to_pylist()))


@pytest.mark.spark
def test_directories_and_modes(run: Run, tmp_path: Path) -> None:
    """Hive-style directories by topic, date and partition; error, ignore, append and overwrite."""
    build(tmp_path / "logs")
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--partition-by", "topic,date,partition", "--topic", "text")
    assert run(*words)[0] == EXIT_OK
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert file.parent.relative_to(tmp_path / "out").as_posix() == "topic=text/date=2023-11-14/partition=1"
    code, _, err = run(*words)
    assert code == EXIT_CANNOT_RUN and "already exists" in err
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 1
    assert run(*words, "--mode", "append")[0] == EXIT_OK
    assert pq.read_table(tmp_path / "out").num_rows == 8
    assert run(*words, "--mode", "ignore")[0] == EXIT_OK
    assert pq.read_table(tmp_path / "out").num_rows == 8
    codecs = {"snappy": "SNAPPY", "gzip": "GZIP", "lz4": "LZ4", "none": "UNCOMPRESSED", "zstd": "ZSTD", "zstd:22": "ZSTD"}
    for name, codec in codecs.items():
        assert run(*words, "--mode", "overwrite", "--compression", name)[0] == EXIT_OK
        assert pq.read_table(tmp_path / "out").num_rows == 4
        (file,) = (tmp_path / "out").rglob("*.parquet")
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == codec


@pytest.mark.spark
def test_a_directory_has_a_file_and_not_one_of_each_task(run: Run, tmp_path: Path) -> None:
    """Four tasks that read three days each write three files; the rows are in the order of offsets."""
    for number in range(4):
        log = PartitionBuilder(tmp_path / "logs" / f"t-{number}")
        for day in range(3):
            log.append([(b"k", b"v")] * 2, timestamp=BASE_TIMESTAMP + day * 86_400_000)
        log.flush()
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--partition-by", "date", "--option", "minPartitions=4")
    assert run(*words)[0] == EXIT_OK
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    assert [file.parent.name for file in files] == [f"date=2023-11-{day}" for day in (14, 15, 16)]
    for number, file in enumerate(files):
        found = [(row["partition"], row["offset"]) for row in pq.ParquetFile(file).read(["partition", "offset"]).to_pylist()]
        assert found == [(partition, 2 * number + at) for partition in range(4) for at in range(2)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("key", "says"),
    [
        (b"", "that of t-0 at offset 1 is empty, which has the directory of null"),
        (b"\xff\xfe", "that of t-0 at offset 1 is not UTF-8"),
        (b"\0\0\0\1", "that of t-0 at offset 1 contains the character NUL"),
    ],
)
def test_keys_that_cannot_name_a_directory(run: Run, tmp_path: Path, key: bytes, says: str) -> None:
    """They would be replaced, lost, or written to the directory of null: the job fails and names the record; null has one."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([("grün/a".encode(), b"1"), (key, b"2"), (None, b"3")])
    log.flush()
    words = (tmp_path / "logs", "--partition-by", "key", "--columns", "key,topic,partition,offset")
    code, _, err = run(*words, "--out", tmp_path / "out")
    assert (code, err) == (EXIT_CANNOT_RUN, f"kcli: cannot partition by key: {says}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_an_overwritten_link_stays(run: Run, tmp_path: Path) -> None:
    """OUT may be a link to another disk: what it names is replaced there."""
    build(tmp_path / "logs")
    (tmp_path / "disk" / "orders").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "orders")
    (tmp_path / "disk" / "orders" / "old.parquet").write_bytes(b"")
    assert run(tmp_path / "logs", "--out", tmp_path / "out", "--mode", "overwrite")[0] == EXIT_OK
    assert (tmp_path / "out").is_symlink() and pq.read_table(tmp_path / "disk" / "orders").num_rows == 17
    assert not (tmp_path / "disk" / "orders" / "old.parquet").exists()
    assert [entry.name for entry in (tmp_path / "disk").iterdir()] == ["orders"]


@pytest.mark.spark
def test_a_failed_overwrite_leaves_the_old_output(run: Run, spark: Any, tmp_path: Path) -> None:
    """The new files are written next to the old ones; a job that fails changes nothing, one that is done takes their place.

    What a process left behind that died between the two renames is put right by the next run.
    """
    log = build(tmp_path / "logs")
    out = tmp_path / "out"
    words = (tmp_path / "logs", "--out", out, "--mode", "overwrite")
    assert run(*words)[0] == EXIT_OK
    before = digests(out)
    path = log.path(".log")
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b'"n7"', b'"n8"'))
    assert run(*words)[0] == EXIT_FINDINGS
    assert digests(out) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["logs", "out"]
    assert run(*words, "--on-corrupt", "skip")[0] == EXIT_FINDINGS
    assert pq.read_table(out).num_rows == pq.read_table(out.with_name("out")).num_rows == 16
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["logs", "out", "out.corrupt"]
    path.write_bytes(sound)
    assert run(*words)[0] == EXIT_OK
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["logs", "out"]
    now = digests(out)
    out.rename(tmp_path / "out.kcli-old")
    (tmp_path / "out.kcli-new").mkdir()
    code, _, err = run(tmp_path / "logs", "--out", out)
    assert code == EXIT_CANNOT_RUN and "already exists" in err
    assert digests(out) == now


@pytest.mark.spark
def test_dynamic_overwrite_replaces_partitions_only(run: Run, spark: Any, tmp_path: Path) -> None:
    """spark.sql.sources.partitionOverwriteMode=dynamic keeps its meaning: partitions without new rows stay."""
    build(tmp_path / "logs")
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--partition-by", "topic", "--mode", "overwrite")
    assert run(*words)[0] == EXIT_OK
    rows = pq.read_table(tmp_path / "out").num_rows
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        assert run(*words, "--topic", "text")[0] == EXIT_OK
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert pq.read_table(tmp_path / "out").num_rows == rows


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_killed_tasks_leave_nothing(spark: Any, tmp_path: Path, mode: str) -> None:
    """A task that is killed with its job, and begins to write after Spark has cleaned the output, leaves no files there."""
    out = tmp_path / "out"
    if mode != "error":
        spark.range(3, numPartitions=1).write.parquet(str(out))
    before = sorted(out.rglob("*"))
    failing = str(out) + (NEW_SUFFIX if mode == "overwrite" else "")

    def rows(number: int) -> int:
        unfinished = Path(failing, "_temporary")
        deadline = time.monotonic() + (30 if number == 0 else 1.5)
        while unfinished.exists() and time.monotonic() < deadline:
            if number == 0 and Path(tmp_path, "runs").exists():
                raise ValueError("the job fails")
            Path(tmp_path, "runs").touch()
            time.sleep(0.01)
        return number

    frame = spark.range(2, numPartitions=2).select(F.udf(rows, "long", useArrow=False)("id"))
    with pytest.raises(Exception, match="the job fails"):
        OutputDirectory(spark, str(out)).write(mode, lambda path, mode: frame.write.mode(mode).parquet(path))
    assert sorted(out.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "runs"}


@pytest.mark.spark
def test_corrupt_bytes(run: Run, tmp_path: Path) -> None:
    """A corrupt batch fails the job with file and byte and leaves nothing; skipped, it stands in a table beside and is told."""
    log = build(tmp_path / "logs")
    path = log.path(".log")
    data = bytearray(path.read_bytes())
    at = data.index(b'"n7"')
    data[at] ^= 1
    path.write_bytes(data)
    words = (tmp_path / "logs", "--out", tmp_path / "out")
    code, _, err = run(*words)
    assert code == EXIT_FINDINGS
    assert f"{path}: byte " in err and "CRC" in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()
    code, out, err = run(*words, "--on-corrupt", "skip")
    assert code == EXIT_FINDINGS
    assert "events-0: 12 rows; " in out and "1 corrupt place skipped" in out
    assert f"1 corrupt place is listed in {tmp_path / 'out'}.corrupt" in out
    assert "; lost: offset 7\n" in out
    assert f"{path}: byte " in err
    (listed,) = pq.read_table(f"{tmp_path / 'out'}.corrupt").to_pylist()
    assert (listed["segment"], listed["kind"], listed["baseOffset"]) == (str(path), "bad-crc", 7)
    offsets = {row["offset"] for row in pq.read_table(tmp_path / "out").to_pylist() if row["topic"] == "events"}
    assert 7 not in offsets and {6, 8} <= offsets


@pytest.mark.spark
def test_another_table(spark: Any, tmp_path: Path) -> None:
    """Tables other than records are written as well, and counted."""
    build(tmp_path / "logs")
    options = ExportOptions(str(tmp_path / "out"), {"paths": str(tmp_path / "logs"), "table": "batches"})
    result = export(spark, options)
    assert result.rows == pq.read_table(tmp_path / "out").num_rows == 16
    shutil.rmtree(tmp_path / "out")


@pytest.mark.ci
@pytest.mark.spark
def test_an_option_changes_the_output_or_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and pairs of them, drawn from the parser: the files, the rows, the summary or Spark's settings differ."""
    build(tmp_path / "data")
    out, report, schema = (tmp_path / name for name in ("out", "report", "schema"))
    start, settings = session.start_session, list[object]()

    def started(*given: Any, log_level: str) -> Any:
        settings.append(given)
        return start(*given, log_level=log_level)

    monkeypatch.setattr("kcli.spark.session.start_session", started)

    def observe(words: list[str]) -> tuple[int, object]:
        settings.clear()
        try:
            code, printed, errors = run(tmp_path / "data", "--out", out, *words)
        except CannotRun:
            return EXIT_CANNOT_RUN, None
        names = {re.sub(r"part-[0-9a-z-]*", "part", str(path.relative_to(tmp_path))) for path in tmp_path.rglob("*")}
        rows, columns = list[str](), ""
        if code == EXIT_OK:
            rows, columns = sorted(map(repr, pq.read_table(out).to_pylist())), str(pq.read_schema(next(out.rglob("*.parquet"))))
        for path in (*tmp_path.glob("out*"), report, schema):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        return code, (printed, errors, sorted(names), rows, columns, list(settings))

    values = {
        "--topic": "events",
        "--topic-pattern": "text|none",
        "--starting-offsets": '{"events": {"0": 5}, "text": {"1": 1}}',
        "--ending-offsets": '{"events": {"0": 9}, "text": {"1": 3}}',
        "--starting-time": str(BASE_TIMESTAMP + 45),
        "--ending-time": str(BASE_TIMESTAMP + 75),
        "--isolation": "read_committed",
        "--table": "batches",
        "--columns": "topic,offset,value",
        "--option": "includeControl=true",
        "--partition-by": "topic",
        "--decode-value": "json",
        "--decode-key": "utf8",
        "--value-schema": "id bigint",
        "--save-schema": str(schema),
        "--infer-from": "1",
        "--compression": "none",
        "--report": str(report),
        "--master": "local[1]",
        "--driver-memory": "1g",
        "--conf": "spark.sql.x=1",
        "--command-config": str(tmp_path / "none"),
    }
    choices = {name: [name, value] for name, value in values.items()} | {
        name: [name] for name in ("--flatten", "--incremental")
    }
    # The effects of two are on damage, and on an output that exists: other tests have them.
    check_differences("to-parquet", choices, observe, pairs=16, without=("--out", "--on-corrupt", "--mode"))
