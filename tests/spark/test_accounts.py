"""Counts and memory: the rows agree with what verify counts; a task's memory does not grow with its segment."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.spark.planning import count_left_out, find_partitions
from kcli.spark.read_options import parse_options
from kcli.spark.report import ABORTED, BELOW_LOG_START, BEYOND_LAST_STABLE, CONTROL, Report
from tests.conftest import ROOT, every_log_set
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of


def verified(data: Path) -> dict[tuple[str, int], dict[str, int]]:
    """What `kcli verify` counts in each partition."""
    command = [sys.executable, "-m", "kcli.commands.app", "verify", "--output", "json", str(data)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {(line["topic"], line["partition"]): line for line in lines if line["type"] == "partition"}


def accounted(data: Path, isolation: str) -> tuple[Counter[tuple[str, int]], Report]:
    """The rows of each partition, and the report of a read with the records that planning leaves out."""
    options = {"kafka.isolation.level": isolation, "reportColumn": "told", "includeInternal": "true"}
    rows = rows_of(data, columns="topic,partition", **{name.replace(".", "_"): value for name, value in options.items()})
    report = Report.sum(row["told"] for row in rows if row["told"] is not None)
    read = parse_options({"path": str(data), **options})
    for partition in find_partitions(OsDisk(), read):
        count_left_out(partition, read, report)
    return Counter((row["topic"], row["partition"]) for row in rows if row["told"] is None), report


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_rows_agree_with_verify(isolation: str) -> None:
    """In every partition that Kafka wrote: rows and records left out add up to the records that verify counts."""
    for log_set in every_log_set():
        counted = verified(log_set.data)
        rows, report = accounted(log_set.data, isolation)
        assert counted and set(rows) <= set(counted)
        assert dict(report.rows) == dict(rows)
        for key, found in counted.items():
            left = {reason: report.left_out[*key, reason] for reason in (CONTROL, ABORTED, BELOW_LOG_START, BEYOND_LAST_STABLE)}
            assert rows[key] + sum(left.values()) == found["dataRecords"] + found["controlRecords"], (key, left, found)
            assert left[BELOW_LOG_START] == found["recordsBelowStart"], key
            if isolation == "read_committed" and not left[BEYOND_LAST_STABLE]:
                assert left[ABORTED] == found["abortedRecords"], key
            if isolation == "read_uncommitted":
                assert left[CONTROL] == found["controlRecords"], key


MEASURE = """
import resource, sys
import kcli.spark.tables
from kcli.spark.data_source import KafkaLogDataSource

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = KafkaLogDataSource({"path": sys.argv[1], "maxPartitionBytes": "10g", "minPartitions": "1"})
reader = source.reader(source.schema())
(split,) = reader.partitions()
rows = sum(batch.num_rows for batch in reader.read(split))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.ci
@pytest.mark.parametrize("codec", [0, 4])
def test_memory_of_a_task(tmp_path: Path, codec: int) -> None:
    """One task over a whole segment of some 300 MB stays within 64 MiB of what it had after its imports and Arrow's own."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"key-%d" % i, bytes((i * 7 + j * j) % 251 for j in range(1000))) for i in range(100)], codec=codec)
    batch = bytes(log.log)
    copies = 300_000_000 // 100_000
    with log.path(".log").open("wb") as file:
        for number in range(copies):
            # The base offset lies outside the CRC: the same batch serves again and again.
            file.write(struct.pack(">q", number * 100) + batch[8:])
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "t-0")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    rows, grown_kib = map(int, ran.stdout.split())
    assert rows == copies * 100
    assert grown_kib < 64 * 1024
