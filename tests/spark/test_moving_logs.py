"""Reading a log while a broker writes it: no read fails, and no record is missing or returned twice.

between planning and reading          must become of it
------------------------------------  ------------------------------------------------------------------------------
batches are appended, one is half     the offsets up to the end that was found at first, each once
  written
the segment is rolled                 the same
the segment is cleaned                the records that are left of the offsets planned
the segment is deleted                the data-loss rule: the job fails, or goes on without the records
the topic is created anew             the same
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kcli.log.disk.os_disk import OsDisk
from kcli.spark.data_source import KafkaLogDataSource
from kcli.spark.log_partitions import PlanError
from kcli.spark.range_reader import CorruptLogError
from kcli.spark.read_options import parse_options
from kcli.spark.tables import plan_table
from tests.conftest import ROOT
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of, splits_of
from tests.spark.test_streaming_offsets import read, reader

PARTITIONS = 4
# Appends batches in two parts each until its stdin is closed, and holds .lock as a broker does; slow enough for the reader.
WRITER = """
import fcntl, pathlib, select, sys, time
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
root = pathlib.Path(sys.argv[1])
lock = open(root / ".lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
logs = [open(path / "00000000000000000000.log", "ab", buffering=0) for path in sorted(root.glob("t-*"))]
records = encode_records([Record(i, i, b"k", b"v" * 20) for i in range(5)])
offset = 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    batch = NewRecordBatch(base_offset=offset, last_offset_delta=4, base_timestamp=0, max_timestamp=4, record_count=5,
                           records=records, attributes=0, partition_leader_epoch=0).encode()
    for log in logs:
        log.write(batch[:70])
        log.write(batch[70:])
    offset += 5
    time.sleep(0.001)
print(offset, flush=True)
"""


@contextmanager
def writer(root: Path) -> Iterator[None]:
    """A process that appends to the partitions of `root` all the time; it is stopped at the end."""
    for partition in range(PARTITIONS):
        (root / f"t-{partition}").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(root)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.stdin.close()
        process.wait(30)


def ends_of(rows: list[dict[str, Any]]) -> dict[int, int]:
    """The end offset of each partition, where its rows are all the offsets from 0 on, each once."""
    by_partition: dict[int, list[int]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append(row["offset"])
    for offsets in by_partition.values():
        assert sorted(offsets) == list(range(len(offsets)))
    return {partition: len(offsets) for partition, offsets in by_partition.items()}


def test_batch_reads_beside_a_writer(tmp_path: Path) -> None:
    """Each of twenty reads gives a prefix of each log, and never less than the read before."""
    with writer(tmp_path):
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for _ in range(20):
            found = ends_of(rows_of(tmp_path, columns="partition,offset"))
            assert all(found.get(partition, 0) >= end for partition, end in ends.items())
            ends |= found
    assert min(ends.values()) > 0


def test_micro_batches_beside_a_writer(tmp_path: Path) -> None:
    """Fifty micro-batches give each record once."""
    with writer(tmp_path):
        stream = reader(tmp_path)
        at, rows = stream.initialOffset(), []
        for _ in range(50):
            end = stream.latestOffset(at, ReadAllAvailable())
            rows += read(stream, at, end)
            at = end
    ends = ends_of([{"partition": partition, "offset": offset} for _, partition, offset in rows])
    assert ends == {partition: at["t"][str(partition)] for partition in range(PARTITIONS)}


def log_of(directory: Path, batches: int) -> PartitionBuilder:
    log = PartitionBuilder(directory)
    for batch in range(batches):
        log.append([(b"%d" % batch, b"v" * 30)] * 3)
    log.flush()
    return log


def offsets_read(stream: Any, splits: list[Any]) -> list[int]:
    return [row["offset"] for split in splits for batch in stream.read(split) for row in batch.to_pylist()]


def replace_log(log: PartitionBuilder, data: bytes) -> None:
    """Put other bytes in the place of a segment as the cleaner does: by a rename, under the same name."""
    swap = log.path(".log.swap")
    swap.write_bytes(data)
    swap.rename(log.path(".log"))


@pytest.mark.parametrize("max_bytes", ["64m", "300"])
def test_a_segment_that_is_cleaned_after_planning(tmp_path: Path, max_bytes: str) -> None:
    """The task looks the offsets up again: what the cleaner left of them comes out, each once, whatever bytes were planned."""
    log = log_of(tmp_path / "t-0", 10)
    stream, splits = splits_of(tmp_path, maxPartitionBytes=max_bytes)
    assert len(splits) > 1 or max_bytes == "64m"
    cleaned = PartitionBuilder(tmp_path / "cleaned" / "t-0")
    for batch in range(10):
        if batch % 3:
            cleaned.offset = batch * 3
            cleaned.append([(b"%d" % batch, b"v" * 30)] * 3)
    cleaned.flush()
    replace_log(log, bytes(cleaned.log))
    log.path(".index").unlink()
    assert offsets_read(stream, splits) == [offset for offset in range(30) if (offset // 3) % 3]


def test_a_log_that_is_rolled_after_planning(tmp_path: Path) -> None:
    """New segments after the planned ones change nothing."""
    log = log_of(tmp_path / "t-0", 4)
    stream, splits = splits_of(tmp_path)
    log.roll()
    log.append([(b"k", b"v")] * 3)
    log.flush()
    assert offsets_read(stream, splits) == list(range(12))


@pytest.mark.parametrize("what", ["segment", "partition"])
def test_a_segment_that_is_deleted_after_planning(tmp_path: Path, what: str) -> None:
    """The job fails with the offsets that are gone, or continues after them with failOnDataLoss=false."""
    log = log_of(tmp_path / "t-0", 4)
    log.roll()
    log.append([(b"k", b"v")] * 3)
    log.flush()
    strict, splits = splits_of(tmp_path)
    lenient, _ = splits_of(tmp_path, failOnDataLoss="false")
    if what == "segment":
        log.path(".log", 0).unlink()
    else:
        shutil.rmtree(tmp_path / "t-0")
    with pytest.raises(PlanError, match=r"t-0: offsets 0 to 11 were deleted while the job ran; option failOnDataLoss=false"):
        offsets_read(strict, splits)
    assert offsets_read(lenient, splits) == ([12, 13, 14] if what == "segment" else [])


def test_a_segment_that_vanishes_while_a_read_is_planned(tmp_path: Path) -> None:
    """The plan is made again from the present segments."""
    log = log_of(tmp_path / "t-0", 4)
    log.roll()
    log.append([(b"k", b"v")] * 3)
    log.flush()
    gone = log.path(".log", 0)

    class DeletingDisk(OsDisk):
        def file_id(self, path: str) -> int:
            if path == str(gone):
                gone.unlink(missing_ok=True)
            return super().file_id(path)

    splits = plan_table(DeletingDisk(), parse_options({"path": str(tmp_path)}), {"offset"})
    stream, _ = splits_of(tmp_path)
    assert offsets_read(stream, splits) == [12, 13, 14]


def test_a_preallocated_header_without_its_payload(tmp_path: Path) -> None:
    """With preallocate=true the header of the last batch may be there before its records: it is not read yet."""
    log = log_of(tmp_path / "t-0", 4)
    end = len(log.log)
    log.append([(b"k", b"v" * 30)] * 3)
    data = bytes(log.log)
    log.path(".log").write_bytes(data[: end + 61] + bytes(len(data) - end - 61 + 1000))
    with pytest.raises(CorruptLogError):
        rows_of(tmp_path)
    lock = tmp_path / ".lock"
    lock.touch()
    with held(lock):
        assert [row["offset"] for row in rows_of(tmp_path)] == list(range(12))
        stream = reader(tmp_path)
        assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable()) == {"t": {"0": 12}}


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Another process holds a lock, as a broker does."""
    code = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f,fcntl.LOCK_EX); print(1,flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        process.wait(30)


def metadata(directory: Path, topic_id: str) -> None:
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


FIRST_ID, SECOND_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


def test_a_topic_that_is_recreated_under_a_stream(tmp_path: Path) -> None:
    """Its offsets are of another log: the query fails, or begins at the new log's start."""
    log_of(tmp_path / "t-0", 4)
    metadata(tmp_path / "t-0", FIRST_ID)
    stream = reader(tmp_path)
    at = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert at == {"t": {"0": 12, "topicId": FIRST_ID}}
    shutil.rmtree(tmp_path / "t-0")
    log_of(tmp_path / "t-0", 5)
    metadata(tmp_path / "t-0", SECOND_ID)
    with pytest.raises(PlanError, match=f"its topic id was {FIRST_ID} and is {SECOND_ID}"):
        stream.latestOffset(at, ReadAllAvailable())
    with pytest.raises(PlanError, match="was recreated"):
        stream.partitions({}, at)
    lenient = reader(tmp_path, failOnDataLoss="false")
    end = lenient.latestOffset(at, ReadAllAvailable())
    assert end == {"t": {"0": 15, "topicId": SECOND_ID}}
    assert [row[2] for row in read(lenient, at, end)] == list(range(15))


def test_a_partition_that_is_no_longer_subscribed(tmp_path: Path) -> None:
    """A query that is started again with fewer topics has lost nothing."""
    log_of(tmp_path / "t-0", 2)
    log_of(tmp_path / "u-0", 2)
    both = reader(tmp_path)
    at = both.latestOffset(both.initialOffset(), ReadAllAvailable())
    one = reader(tmp_path, subscribe="t")
    assert one.latestOffset(at, ReadAllAvailable()) == at
    assert read(one, at, at) == []


def test_a_micro_batch_says_the_same_when_it_is_repeated(tmp_path: Path) -> None:
    """`aborted` uses the markers up to the end of the micro-batch: a later marker does not change its rows."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"k", b"v")] * 2, producer=1, transactional=True)
    log.flush()
    source = KafkaLogDataSource({"path": str(tmp_path), "columns": "offset,aborted"})
    stream = source.streamReader(source.schema())
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())

    def rows(first: dict[str, Any], last: dict[str, Any]) -> list[tuple[int, bool]]:
        splits = stream.partitions(first, last)
        return [(row["offset"], row["aborted"]) for split in splits for part in stream.read(split) for row in part.to_pylist()]

    before = rows({}, end)
    log.append([(b"k", b"v")], producer=1, transactional=True)
    log.end_transaction(1, commit=False)
    log.flush()
    assert rows({}, end) == before == [(0, False), (1, False)]
    assert rows(end, stream.latestOffset(end, ReadAllAvailable())) == [(2, True)]


def test_a_single_segment_knows_transactions_that_end_later(tmp_path: Path) -> None:
    """The marker is in the next segment: the records are aborted, too."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"k", b"v")] * 2, producer=1, transactional=True)
    log.append([(b"k", b"v")])
    log.roll()
    log.end_transaction(1, commit=False)
    log.flush()
    first = log.path(".log", 0)
    assert [row["aborted"] for row in rows_of(first)] == [True, True, False]
    assert [row["offset"] for row in rows_of(first, kafka_isolation_level="read_committed")] == [2]


@pytest.mark.parametrize(
    ("state", "option", "end"),
    [
        ("stopped", "auto", 6),
        ("running", "auto", 6),
        ("killed", "auto", 12),
        ("stopped", "false", 12),
        ("killed", "true", 6),
        ("no checkpoint", "auto", 12),
        ("no checkpoint", "true", 0),
    ],
)
def test_reading_ends_at_the_high_watermark(tmp_path: Path, state: str, option: str, end: int) -> None:
    """What is not committed may be taken back by a new leader: it is read only where nothing is known, or on request.

    After a kill the checkpoint may be older than the records that were committed.
    """
    log_of(tmp_path / "t-0", 4)
    if state != "no checkpoint":
        (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 6\n")
    if state == "stopped":
        (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (tmp_path / ".lock").touch()
    with held(tmp_path / ".lock") if state == "running" else nullcontext():
        assert [row["offset"] for row in rows_of(tmp_path, stopAtHighWatermark=option)] == list(range(end))
        stream = reader(tmp_path, stopAtHighWatermark=option)
        assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable()) == {"t": {"0": end}}
        assert {row["lastOffset"] for row in rows_of(tmp_path, table="batches")} == {2, 5, 8, 11}
