"""Protects reading by Spark's source beside a broker that writes at its full rate: no failure, no record lost or read twice.

    reader                    what must hold
    ------------------------  ------------------------------------------------------------------------------------------
    batch reads               each partition gives its offsets from where the read begins, without a gap
    micro-batches             together they give every offset once; after a stop of the broker, every record that was
                              acknowledged
    kcli to-parquet, once     as a batch read

100 batch reads and 500 micro-batches in the slow tier, fewer in ci. Readers are called as Spark's workers call them, without a
JVM, but for to-parquet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.spark.data_source import KafkaLogDataSource
from tests.conftest import ROOT
from tests.oracle.brokers import KcliBroker, new_broker
from tests.oracle.peer import Peer
from tests.server.live import wait_for

pytestmark = pytest.mark.oracle

TOPIC, PARTITIONS = "live", 8
# Of each batch read, so that the reads keep up with the writer: offsets before the end of the read before.
OVERLAP = 1000
CHECKPOINTS = "replica.high.watermark.checkpoint.interval.ms=500"

# Makes the topic and sends, at most so many records a second, until its stdin is closed; prints how many were acknowledged.
# Without a limit the many reads of the slow tier would take 50 GB.
MOST_PER_SECOND = 30_000
WRITER = """
import select, sys, time
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
topic, partitions, most_per_second = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
admin.create_topics([NewTopic(topic, partitions, 1, config={"segment.bytes": "4194304"})])[topic].result(60)
count = 0
def delivered(error, message):
    global count
    assert error is None, error
    count += 1
producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 1, "queue.buffering.max.messages": 20000})
number = 0
begin = time.monotonic()
print("ready", flush=True)
while number % 100 or not select.select([sys.stdin], [], [], 0)[0]:
    try:
        producer.produce(topic, b"v" * 100, partition=number % partitions, on_delivery=delivered)
        number += 1
    except BufferError:
        producer.poll(0.01)
    producer.poll(0)
    if number % 1000 == 0:
        time.sleep(max(0, begin + number / most_per_second - time.monotonic()))
assert producer.flush(60) == 0 and count == number
print(count, flush=True)
"""


class Writer:
    """The process that writes."""

    def __init__(self, bootstrap: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WRITER, bootstrap, TOPIC, str(PARTITIONS), str(MOST_PER_SECOND)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self) -> int:
        """End it -> how many records were acknowledged."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        return int(out)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def broker(kind: str, request: pytest.FixtureRequest, home: Path) -> Iterator[tuple[str, Path]]:
    """A broker of kcli or of Apache Kafka -> its address and its log directory. It stops cleanly."""
    if kind == "kcli":
        request.getfixturevalue("kcli_serves")
        with KcliBroker(home, CHECKPOINTS) as running:
            yield running.bootstrap, running.data
        return
    peer: Peer = request.getfixturevalue("kafka_peer")
    with new_broker(peer, home, CHECKPOINTS) as bootstrap:
        yield bootstrap, home / "data"


def source(data: Path, **options: str) -> KafkaLogDataSource:
    return KafkaLogDataSource({"path": str(data), "subscribe": TOPIC, "columns": "partition,offset", **options})


def offsets_of(reader: Any, splits: list[Any]) -> dict[int, list[range]]:
    """The offsets that a read gives, by partition, in ranges without a gap, in the order in which they come."""
    found: dict[int, list[range]] = {partition: [] for partition in range(PARTITIONS)}
    for split in splits:
        for batch in reader.read(split):
            partitions, offsets = batch["partition"], batch["offset"]
            if not len(offsets):
                continue
            # Where a range ends, by row: in Python the reads would be slower than the writer, and each larger than the last.
            is_end = pc.or_kleene(pc.not_equal(pc.pairwise_diff(partitions), 0), pc.not_equal(pc.pairwise_diff(offsets), 1))
            ends = [*pc.indices_nonzero(is_end).to_pylist(), len(offsets)]
            for start, end in zip([0, *ends], ends, strict=False):
                ranges = found[partitions[start].as_py()]
                first, behind = offsets[start].as_py(), offsets[end - 1].as_py() + 1
                if ranges and ranges[-1].stop == first:
                    ranges[-1] = range(ranges[-1].start, behind)
                else:
                    ranges.append(range(first, behind))
    return found


def batch_reads(data: Path, reads: int) -> None:
    """Each read gives every partition from where it begins, without a gap.

    And never less than the read before, once the broker has checkpointed its high watermarks: before that, logs are read to
    their ends. All reads may end before the broker writes its next checkpoint.
    """
    ends = dict.fromkeys(range(PARTITIONS), 0)
    wait_for(lambda: least_high_watermark(data) > OVERLAP)
    for _ in range(reads):
        starts = {str(partition): max(end - OVERLAP, 0) for partition, end in ends.items()}
        table = source(data, startingOffsets=json.dumps({TOPIC: starts}))
        reader = table.reader(table.schema())
        for partition, ranges in offsets_of(reader, reader.partitions()).items():
            first = starts[str(partition)]
            assert ranges in ([], [range(first, ranges[0].stop if ranges else first)])
            assert (ranges[0].stop if ranges else first) >= ends[partition]
            ends[partition] = ranges[0].stop if ranges else ends[partition]
    assert min(ends.values()) > OVERLAP


def least_high_watermark(data: Path) -> int:
    """The lowest high watermark that the broker has checkpointed of the topic's partitions, -1 if one of them is missing."""
    path = data / "replication-offset-checkpoint"
    offsets = decode_offset_checkpoint(path.read_bytes()).offsets() if path.exists() else {}
    return min(offsets.get((TOPIC, partition), -1) for partition in range(PARTITIONS))


def micro_batch(stream: Any, at: Any, ends: dict[int, int]) -> Any:
    """Read one micro-batch behind `ends`, and raise them -> where the stream is then."""
    until = json.loads(json.dumps(stream.latestOffset(at, ReadAllAvailable())))
    for partition, ranges in offsets_of(stream, stream.partitions(at, until)).items():
        assert ranges == ([range(ends[partition], until[TOPIC][str(partition)])] if ranges else [])
        assert ranges or ends[partition] == until[TOPIC][str(partition)]
        ends[partition] = until[TOPIC][str(partition)]
    return until


@pytest.mark.parametrize(
    ("reads", "micro_batches"),
    [pytest.param(15, 40, marks=pytest.mark.ci), pytest.param(100, 500, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", ["kcli", "kafka"])
def test_reading_beside_a_broker(
    kind: str, reads: int, micro_batches: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Batch reads, then micro-batches, while a producer sends; at the end nothing that was acknowledged is missing."""
    with broker(kind, request, tmp_path / "broker") as (bootstrap, data):
        writer = Writer(bootstrap)
        try:
            batch_reads(data, reads)
            table = source(data)
            stream = table.streamReader(table.schema())
            at, ends = stream.initialOffset(), dict.fromkeys(range(PARTITIONS), 0)
            for _ in range(micro_batches):
                at = micro_batch(stream, at, ends)
            if kind == "kcli":
                export(data, tmp_path / "out")
            acknowledged = writer.stop()
        finally:
            writer.kill()
    micro_batch(stream, at, ends)
    assert sum(ends.values()) == acknowledged


def export(data: Path, out: Path) -> None:
    """kcli to-parquet beside the broker: each partition's offsets from 0 on, each once."""
    command = [sys.executable, "-m", "kcli", "to-parquet", str(data), "--topic", TOPIC, "--out", str(out)]
    # Not the JVM of a session of these tests.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment = {**own, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--columns", "partition,offset"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(out)
    for partition in range(PARTITIONS):
        offsets = rows.filter(pc.equal(rows["partition"], partition))["offset"].combine_chunks().sort()
        assert offsets[0].as_py() == 0 and pc.all(pc.equal(pc.pairwise_diff(offsets)[1:], 1)).as_py()
