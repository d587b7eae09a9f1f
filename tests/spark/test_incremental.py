"""Incremental runs, no JVM: what each reads, by the state of earlier runs, over retention, compaction, crashes and changes.

The rows are read by the source's own classes, as Spark's Python workers do, and staged by pyarrow; plan and commit are kcli's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.spark.incremental import IncrementalRun, check_incremental, start_run
from kcli.spark.log_partitions import PlanError
from kcli.spark.planning import pinned
from kcli.spark.read_options import parse_options
from kcli.spark.report import BELOW_LOG_START, BEYOND_LAST_STABLE
from kcli.spark.run_commit import RunError
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of
from tests.spark.test_moving_logs import FIRST_ID, SECOND_ID, held, metadata, replace_log

Row = tuple[str, int, int]
READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


def start(root: Path, **source: str) -> IncrementalRun:
    given = {"path": str(root / "logs"), "columns": "topic,partition,offset,value", **source}
    return start_run(OsDisk(), str(root / "out"), parse_options(given), {"--decode-value": ""})


def write(root: Path, run: IncrementalRun, **source: str) -> list[Row]:
    """Read what the run has planned, stage and commit it -> the rows, sorted."""
    if not run.plan.new_ranges:
        run.commit_nothing()
        return []
    given = pinned({"columns": "topic,partition,offset,value", **source}, run.plan.ranges)
    rows = rows_of(root / "logs", **given)
    run.begin("attempt", "columns")
    path = Path(run.stage("").removeprefix("file:"), "part-0.parquet")
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    run.commit(len(rows))
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def run_once(root: Path, **source: str) -> list[Row]:
    with start(root, **source) as run:
        return write(root, run, **source)


def in_output(root: Path) -> list[Row]:
    files = sorted((root / "out").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def log_of(root: Path, name: str = "t-0", records: int = 6, first_offset: int = 0) -> PartitionBuilder:
    log = PartitionBuilder(root / "logs" / name, first_offset=first_offset)
    append(log, records)
    return log


def append(log: PartitionBuilder, records: int) -> None:
    for _ in range(records):
        log.append([(b"k", b"v" * 20)])
    log.flush()


def rows(end: int, first: int = 0, topic: str = "t", partition: int = 0) -> list[Row]:
    return [(topic, partition, offset) for offset in range(first, end)]


def test_each_record_once(tmp_path: Path) -> None:
    """Runs add what came since the run before; a partition and a topic that are new are read from their beginning."""
    log = log_of(tmp_path)
    assert run_once(tmp_path) == rows(6)
    assert run_once(tmp_path) == []
    append(log, 3)
    log.roll()
    append(log, 2)
    log_of(tmp_path, "t-1", 4)
    log_of(tmp_path, "u-0", 2, first_offset=7)
    assert run_once(tmp_path) == [*rows(11, 6), *rows(4, partition=1), *rows(9, 7, "u")]
    assert run_once(tmp_path) == []
    assert in_output(tmp_path) == [*rows(11), *rows(4, partition=1), *rows(9, 7, "u")]
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2, "a run without rows leaves no file"


def test_a_log_that_grows_between_plan_and_read(tmp_path: Path) -> None:
    """The end is fixed once: the tasks read up to the offset that the state will have, the next run reads the rest."""
    log = log_of(tmp_path)
    with start(tmp_path) as run:
        append(log, 5)
        log_of(tmp_path, "t-1", 2)
        assert write(tmp_path, run) == rows(6)
    assert run_once(tmp_path) == [*rows(11, 6), *rows(2, partition=1)]


@pytest.mark.parametrize("change", ["truncated", "deleted", "anew"])
def test_a_log_that_shrinks_between_plan_and_read(tmp_path: Path, change: str) -> None:
    """The run fails before its commit, since the state would include offsets that were not read."""
    log_of(tmp_path)
    with start(tmp_path) as run:
        shutil.rmtree(tmp_path / "logs" / "t-0")
        if change == "truncated":
            log_of(tmp_path, records=4)
        elif change == "deleted":
            log_of(tmp_path, records=4, first_offset=4)
        else:
            log_of(tmp_path, "u-0")
        says = {
            "truncated": "the plan ends at offset 6, but the log now ends at",
            "deleted": "offsets 0 to 3 are gone",
            "anew": "t-0 is gone",
        }
        with pytest.raises(PlanError, match=says[change]):
            write(tmp_path, run)
    assert in_output(tmp_path) == []


def test_a_failure_before_the_commit(tmp_path: Path) -> None:
    """The next run reads the same records; the failed one leaves no file."""
    log_of(tmp_path)
    with pytest.raises(KeyboardInterrupt), start(tmp_path) as run:
        run.begin("attempt", "columns")
        path = Path(run.stage("").removeprefix("file:"))
        path.mkdir(parents=True)
        (path / "part-0.parquet").touch()
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "out" / "_kcli_state").iterdir()] == ["lock"]
    assert run_once(tmp_path) == rows(6)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_is_open_during_a_run(tmp_path: Path, commit: bool) -> None:
    """A run ends at the last stable offset; the whole transaction is in the first run after its end."""
    log = log_of(tmp_path)
    log.append([(b"a", b"1")] * 2, producer=1, transactional=True)  # 6, 7
    append(log, 2)  # 8, 9
    with start(tmp_path, **READ_COMMITTED) as run:
        assert run.plan.counts.left_out.left_out == {("t", 0, BEYOND_LAST_STABLE): 4}
        assert write(tmp_path, run, **READ_COMMITTED) == rows(6)
    log.append([(b"a", b"2")], producer=1, transactional=True)  # 10
    log.flush()
    assert run_once(tmp_path, **READ_COMMITTED) == []
    log.end_transaction(1, commit=commit)  # 11
    append(log, 1)  # 12
    assert run_once(tmp_path, **READ_COMMITTED) == (rows(11, 6) + rows(13, 12) if commit else rows(10, 8) + rows(13, 12))
    assert run_once(tmp_path, **READ_COMMITTED) == []


def test_the_high_watermark_ends_a_run(tmp_path: Path) -> None:
    """What is above it is read when it is committed; one that is known later and is below the state is no loss."""
    log_of(tmp_path, records=10)
    checkpoint, clean = tmp_path / "logs" / "replication-offset-checkpoint", tmp_path / "logs" / ".kafka_cleanshutdown"
    clean.write_text('{"version":0,"brokerEpoch":1}')
    checkpoint.write_text("0\n1\nt 0 4\n")
    assert run_once(tmp_path) == rows(4)
    checkpoint.write_text("0\n1\nt 0 7\n")
    assert run_once(tmp_path) == rows(7, 4)
    clean.unlink()
    assert run_once(tmp_path) == rows(10, 7)
    clean.write_text('{"version":0,"brokerEpoch":1}')
    assert run_once(tmp_path) == []
    assert in_output(tmp_path) == rows(10)


def test_retention_between_runs(tmp_path: Path) -> None:
    """Records that were deleted before they were read fail the run; with failOnDataLoss=false it reports them, once."""
    log = log_of(tmp_path)
    assert run_once(tmp_path) == rows(6)
    append(log, 3)
    log.roll()
    append(log, 2)
    log.path(".log", 0).unlink()
    with pytest.raises(PlanError, match=r"offsets 6 to 8 are gone, the log begins at 9; option failOnDataLoss=false"):
        start(tmp_path)
    with start(tmp_path, failOnDataLoss="false") as run:
        assert "offsets 6 to 8 are gone" in run.remarks()[0] and run.remarks()[0].endswith("continues without these records")
        assert write(tmp_path, run) == rows(11, 9)
    with start(tmp_path) as run:
        assert run.remarks() == [] and run.plan.new_ranges == []
    assert in_output(tmp_path) == rows(6) + rows(11, 9)


def test_a_loss_without_new_records_is_reported_once(tmp_path: Path) -> None:
    """The state advances past the gap even if there is nothing to read."""
    log = log_of(tmp_path)
    assert run_once(tmp_path) == rows(6)
    append(log, 3)
    (tmp_path / "logs" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 9\n")
    with start(tmp_path, failOnDataLoss="false") as run:
        assert len(run.remarks()) == 1
        assert run.plan.counts.left_out.left_out == {("t", 0, BELOW_LOG_START): 3}
        run.commit_nothing()
    with start(tmp_path) as run:
        assert run.remarks() == [] and not run.plan.counts.left_out.left_out


def test_retention_of_what_is_written(tmp_path: Path) -> None:
    """Deleting records that a run has read is no loss, and they are not counted as left out."""
    log = log_of(tmp_path)
    log.roll()
    append(log, 2)
    assert run_once(tmp_path) == rows(8)
    log.path(".log", 0).unlink()
    (tmp_path / "logs" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    with start(tmp_path) as run:
        assert run.plan.new_ranges == [] and not run.plan.counts.left_out.left_out
    append(log, 1)
    assert run_once(tmp_path) == rows(9, 8)


def test_compaction_between_runs(tmp_path: Path) -> None:
    """Rows that are written stay, and the compacted records are not written again."""
    log = log_of(tmp_path, records=10)
    assert run_once(tmp_path) == rows(10)
    append(log, 4)
    cleaned = PartitionBuilder(tmp_path / "cleaned" / "t-0")
    for offset in (3, 8, 11, 13):
        cleaned.offset = offset
        cleaned.append([(b"k", b"v" * 20)])
    cleaned.flush()
    replace_log(log, bytes(cleaned.log))
    log.path(".index").unlink()
    assert run_once(tmp_path) == [*rows(12, 11), *rows(14, 13)]
    assert run_once(tmp_path) == []
    assert in_output(tmp_path) == [*rows(10), *rows(12, 11), *rows(14, 13)]


def test_a_topic_that_is_recreated(tmp_path: Path) -> None:
    """Its offsets are of another log: refused with both ids; with failOnDataLoss=false it is read from its beginning."""
    log_of(tmp_path)
    metadata(tmp_path / "logs" / "t-0", FIRST_ID)
    assert run_once(tmp_path) == rows(6)
    shutil.rmtree(tmp_path / "logs" / "t-0")
    log_of(tmp_path, records=8)
    metadata(tmp_path / "logs" / "t-0", SECOND_ID)
    with pytest.raises(PlanError, match=rf"topic id was {FIRST_ID} and is {SECOND_ID}.*write it to another directory"):
        start(tmp_path)
    assert run_once(tmp_path, failOnDataLoss="false") == rows(8)
    assert run_once(tmp_path) == []


def test_a_topic_id_that_is_missing_in_between(tmp_path: Path) -> None:
    """A copy without partition.metadata does not make the state forget which topic it is of."""
    log = log_of(tmp_path)
    metadata(tmp_path / "logs" / "t-0", FIRST_ID)
    assert run_once(tmp_path) == rows(6)
    (tmp_path / "logs" / "t-0" / "partition.metadata").unlink()
    append(log, 1)
    assert run_once(tmp_path) == rows(7, 6)
    metadata(tmp_path / "logs" / "t-0", SECOND_ID)
    with pytest.raises(PlanError, match=f"topic id was {FIRST_ID} and is {SECOND_ID}"):
        start(tmp_path)


def test_a_log_that_ends_below_the_state(tmp_path: Path) -> None:
    """Records that are written were truncated: refused; with failOnDataLoss=false a run reads from the state's offset on."""
    log_of(tmp_path)
    assert run_once(tmp_path) == rows(6)
    shutil.rmtree(tmp_path / "logs" / "t-0")
    log = log_of(tmp_path, records=4)
    with pytest.raises(PlanError, match="read up to offset 6 before, but ends at 4 now; option failOnDataLoss=false"):
        start(tmp_path)
    assert run_once(tmp_path, failOnDataLoss="false") == []
    append(log, 4)
    assert run_once(tmp_path) == rows(8, 6)


def test_a_partition_that_is_gone(tmp_path: Path) -> None:
    """A directory that was left out by mistake fails the run; with failOnDataLoss=false the state keeps its offset."""
    log_of(tmp_path)
    log_of(tmp_path, "t-1")
    run_once(tmp_path)
    (tmp_path / "logs" / "t-1").rename(tmp_path / "t-1")
    with pytest.raises(PlanError, match="the partition t-1, which was read up to offset 6, is gone"):
        start(tmp_path)
    assert run_once(tmp_path, failOnDataLoss="false") == []
    (tmp_path / "t-1").rename(tmp_path / "logs" / "t-1")
    assert run_once(tmp_path) == []


@pytest.mark.parametrize(
    "named",
    [
        {"startingOffsets": '{"t":{"0":2,"1":0}}'},
        {"startingOffsetsByTimestamp": '{"t":{"0":5,"1":5}}'},
        {"assign": '{"t":[0,1]}'},
        {"subscribe": "t,u"},
    ],
)
def test_a_partition_that_the_options_name_is_gone(tmp_path: Path, named: dict[str, str]) -> None:
    """The options of the first run stay on the command line; with failOnDataLoss=false the runs go on with what is there."""
    log_of(tmp_path)
    other = log_of(tmp_path, "t-1")
    log_of(tmp_path, "u-0")
    run_once(tmp_path, **named)
    append(other, 2)
    for name in ("t-0", "u-0"):
        shutil.rmtree(tmp_path / "logs" / name)
    with pytest.raises(PlanError, match=r"t-0|topic u"):
        start(tmp_path, **named)
    assert run_once(tmp_path, **named, failOnDataLoss="false") == rows(8, 6, partition=1)
    assert run_once(tmp_path, **named, failOnDataLoss="false") == []


def test_logs_of_another_cluster(tmp_path: Path) -> None:
    """Refused in any case: both topics have the name, and a row has only the name of its topic."""
    log_of(tmp_path)
    meta = tmp_path / "logs" / "meta.properties"
    meta.write_text("version=1\ncluster.id=first\nnode.id=1\n")
    run_once(tmp_path)
    meta.write_text("version=1\ncluster.id=second\nnode.id=1\n")
    for flag in ("true", "false"):
        with pytest.raises(PlanError, match=r"earlier runs wrote t of the cluster first, but .* cluster\.id second"):
            start(tmp_path, failOnDataLoss=flag)
    meta.write_text("version=1\ncluster.id=first\nnode.id=2\n")
    assert run_once(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("columns", "offset", "columns was topic,partition,offset,value and is offset"),
        ("subscribe", "t", "subscribe was not set and is t"),
        ("subscribePattern", "t", "subscribePattern was not set and is t"),
        ("assign", '{"t":[0]}', "assign was not set and is"),
        ("kafka.isolation.level", "read_committed", "was read_uncommitted and is read_committed"),
        ("includeHeaders", "false", "includeHeaders was true and is false"),
        ("includeControl", "true", "includeControl was false and is true"),
        ("includeBelowLogStart", "true", "includeBelowLogStart was"),
        ("includeInternal", "true", "includeInternal was"),
        ("startingOffsets", '{"t":{"0":3}}', "startingOffsets was earliest and is"),
        ("startingTimestamp", "5", "startingTimestamp was not set and is 5"),
    ],
)
def test_options_that_change_the_rows(tmp_path: Path, option: str, value: str, says: str) -> None:
    """Files of one output that were chosen by different options could not be used: refused, with the names."""
    log_of(tmp_path)
    run_once(tmp_path)
    with pytest.raises(RunError, match=f"other options than earlier runs.*{says}.*use the same options"):
        start(tmp_path, **{option: value})
    for kept in ({"maxPartitionBytes": "1m"}, {"onCorrupt": "skip"}, {"stopAtHighWatermark": "false"}):
        assert run_once(tmp_path, **kept) == []


def test_other_columns_of_the_files(tmp_path: Path) -> None:
    """The columns of a later kcli, or of a decoded value, may differ though no option does."""
    log = log_of(tmp_path)
    run_once(tmp_path)
    append(log, 1)
    with start(tmp_path) as run, pytest.raises(RunError, match="have the columns columns, this run has the columns others"):
        run.begin("attempt", "others")


@pytest.mark.parametrize(
    ("out", "mode", "source", "says"),
    [
        ("s3a://bucket/out", "error", {}, "s3a://bucket/out is not; run without --incremental"),
        ("hdfs://host/out", "append", {}, "file system of this machine"),
        ("out", "overwrite", {}, "--mode overwrite"),
        ("out", "ignore", {}, "--mode ignore"),
        ("out", "error", {"table": "batches"}, "the table batches"),
        ("out", "error", {"duplicatePartitions": "all"}, "duplicatePartitions=all"),
        ("out", "error", {"exactOffsets": "true", "startingOffsets": "{}", "endingOffsets": "{}"}, "exactOffsets"),
        ("out", "error", {"includeOpen": "true", **READ_COMMITTED}, "includeOpen"),
    ],
)
def test_what_incremental_does_not_fit(out: str, mode: str, source: dict[str, str], says: str) -> None:
    """Each combination that cannot be incremental is refused with a sentence."""
    with pytest.raises(RunError, match=says):
        check_incremental(out, mode, parse_options({"path": "x", **source}))


def test_where_the_first_run_begins(tmp_path: Path) -> None:
    """The starting offsets are the first run's: with `latest` it only records the ends of the logs."""
    log = log_of(tmp_path)
    latest = {"startingOffsets": "latest"}
    assert run_once(tmp_path, **latest) == []
    append(log, 2)
    log_of(tmp_path, "t-1", 3)
    assert run_once(tmp_path, **latest) == [*rows(8, 6), *rows(3, partition=1)]


def test_runs_that_end_earlier(tmp_path: Path) -> None:
    """Ending offsets may differ from run to run: each continues at the end of the one before."""
    log_of(tmp_path, records=10)
    assert run_once(tmp_path, endingOffsets='{"t":{"0":4}}') == rows(4)
    assert run_once(tmp_path, endingOffsets='{"t":{"0":2}}') == []
    assert run_once(tmp_path, endingOffsets='{"t":{"0":5}}') == rows(5, 4)
    assert run_once(tmp_path) == rows(10, 5)


def test_a_rotten_last_batch_that_a_broker_removes(tmp_path: Path) -> None:
    """After onCorrupt=skip, its offsets are given to new records by the broker: these are not lost."""
    log = log_of(tmp_path, records=4)
    sound = bytes(log.log)
    log.append([(b"k", b"rotten")] * 2)
    path = log.path(".log")
    path.write_bytes(bytes(log.log).replace(b"rotten", b"Rotten"))
    assert run_once(tmp_path, onCorrupt="skip") == rows(4)
    path.write_bytes(sound)
    shutil.rmtree(tmp_path / "logs" / "t-0")
    log_of(tmp_path, records=7)
    assert run_once(tmp_path, onCorrupt="skip") == rows(7, 4)


def test_files_with_other_rows_than_were_read(tmp_path: Path) -> None:
    """Files that were lost or added while Spark wrote fail the run before its commit."""
    log_of(tmp_path)
    with start(tmp_path) as run:
        run.begin("attempt", "columns")
        path = Path(run.stage("").removeprefix("file:"))
        path.mkdir(parents=True)
        pq.write_table(pa.table({"offset": [1, 2]}), path / "part-0.parquet")
        with pytest.raises(RunError, match=r"3 rows were read, but the files in .* have 2"):
            run.commit(3)
    assert run_once(tmp_path) == rows(6)


def test_an_output_that_is_moved_or_removed(tmp_path: Path) -> None:
    """The state is a part of the output: it is copied and removed with it."""
    log = log_of(tmp_path)
    run_once(tmp_path)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert run_once(tmp_path) == rows(6)
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").symlink_to("elsewhere")
    append(log, 1)
    assert run_once(tmp_path) == rows(7, 6)
    assert in_output(tmp_path) == rows(7)


def test_an_output_with_data_and_no_state(tmp_path: Path) -> None:
    """Which records it has is not known: refused."""
    log_of(tmp_path)
    run_once(tmp_path)
    shutil.rmtree(tmp_path / "out" / "_kcli_state")
    with pytest.raises(RunError, match="is not empty and has no state of incremental runs"):
        start(tmp_path)


def test_the_lock_is_released(tmp_path: Path) -> None:
    """After a run, and after one that was refused, another process can take it; while it is held, a run is refused."""
    log_of(tmp_path)
    run_once(tmp_path)
    lock = tmp_path / "out" / "_kcli_state" / "lock"
    with held(lock), pytest.raises(RunError, match="another run writes to"):
        start(tmp_path)
    with pytest.raises(RunError, match="other options"):
        start(tmp_path, subscribe="t")
    assert not OsDisk().is_locked(str(lock))
    with held(lock):
        pass


def test_readers_do_not_see_the_state(tmp_path: Path) -> None:
    """pyarrow takes no file of the state or of the staging directory for data, also where an interrupted run left one."""
    log_of(tmp_path)
    run_once(tmp_path)
    staged = tmp_path / "out" / "_kcli_state" / "staging" / "attempt"
    staged.mkdir(parents=True)
    pq.write_table(pa.table({"other": [1]}), staged / "part-0.parquet")
    assert pq.read_table(tmp_path / "out").num_rows == 6


def test_exact_offsets_need_both_ends() -> None:
    """exactOffsets is for a plan's offsets."""
    with pytest.raises(ValueError, match="exactOffsets needs startingOffsets and endingOffsets as JSON"):
        parse_options({"path": "x", "exactOffsets": "true", "endingOffsets": json.dumps({"t": {"0": 1}})})


def test_pinned_options_replace_what_chose_the_offsets(tmp_path: Path) -> None:
    """A timestamp beats offsets: none of them may be left."""
    log_of(tmp_path)
    with start(tmp_path) as run:
        given = {"STARTINGtimestamp": "5", "endingOffsetsByTimestamp": "{}", "subscribe": "t"}
        found = pinned(given, run.plan.ranges)
    assert sorted(found) == ["endingOffsets", "exactOffsets", "startingOffsets", "subscribe"]
