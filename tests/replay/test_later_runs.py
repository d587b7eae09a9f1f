"""Protects "nothing is lost and nothing is sent twice" if something changes between two runs whose batches are joined."""

from __future__ import annotations

from pathlib import Path

from kcli.inspect.dumping.selection import Selection
from kcli.log.disk.os_disk import OsDisk
from tests.log_builder import PartitionBuilder
from tests.replay.test_cluster_source import Reader
from tests.replay.test_replayer import FaultyDisk, Scene

VALUES = [b"%03d" % at * 30 for at in range(30)]


def test_records_before_an_error_are_sent(tmp_path: Path) -> None:
    """They are not kept back to be joined with records that cannot be read."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for value in VALUES[:5]:
        builder.append([(b"k", value)])
    builder.roll()
    builder.append([(b"k", VALUES[5])])
    builder.flush()
    last = sorted((tmp_path / "t-0").glob("*.log"))[-1]
    scene = Scene(tmp_path, 1, 0.0)
    scene.join_bytes = 10_000
    scene.selection = Selection()
    scene.disk = FaultyDisk({str(last)})
    scene.run()
    assert scene.problems.damages and scene.arrived()["t", 0] == VALUES[:5]
    scene.disk = OsDisk()
    scene.run()
    assert scene.arrived()["t", 0] == VALUES[:6]


def test_records_before_the_end_of_a_truncated_source_are_sent(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 10_000)
    reader.log.truncate(6)
    stream = reader.read(0)
    assert stream.is_cut and [batch.record_count for batch in stream.queue] == [6]
