"""Protects readers of a partition with a stray copy of a segment: each record is given once, and the copy's name hides none.

dump-log and replay gave the records of both files, the Spark source left sound ones out at a bound that was the copy's name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.log.log_config import LogConfig
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.selecting.lookup import Copies, find_time
from kcli.selecting.selection import Selection
from tests.fuzz.outputs import dumped_json
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, flush, stop
from tests.spark.source import rows_of

OFFSETS = list(range(24))  # two segments of two batches of six records


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    node = Node(tmp_path)
    node.config = LogConfig(segment_bytes=2 * batch(6, b"v" * 100).nbytes)
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, node.config, now_ms=NOW_MS, is_new=True)
    for at in range(4):
        log.append_as_leader(batch(6, b"%d" % at * 100), 0, NOW_MS)
    flush(manager)
    stop(manager)
    return tmp_path / "t-0"


def copied(partition: Path, base_offset: int, name: int) -> Path:
    return Path(shutil.copyfile(partition / f"{base_offset:020}.log", partition / f"{name:020}.log"))


def spark(partition: Path, **options: str) -> list[int]:
    return [row["offset"] for row in rows_of(partition, stopAtHighWatermark="false", **options)]


def replayed(partition: Path, selection: Selection = Selection()) -> list[int]:  # noqa: B008
    """The offsets of the records that a replay sends, by the timestamps of its batches."""
    source = DirectorySource(OsDisk(), [str(partition)], selection, lambda topic: True, Problems(lambda sentence: None))
    stream = source.open(("t", 0), 0, [])
    found: list[int] = []
    while (sent := stream.peek()) is not None:
        stream.take()
        found += range(sent.next_offset - sent.record_count, sent.next_offset)
    return found


@pytest.mark.parametrize(
    ("base_offset", "name"),
    [
        pytest.param(0, 6, id="between two batches of the segment itself"),
        pytest.param(0, 3, id="within a batch of the segment itself"),
        pytest.param(0, 18, id="within the next segment"),
        pytest.param(0, 24, id="at the end of the log"),
        pytest.param(0, 500, id="behind the end of the log"),
        pytest.param(12, 9, id="before the segment, within a batch of the one before"),
        pytest.param(12, 400, id="of the last segment, behind its end"),
    ],
)
def test_each_record_is_given_once(partition: Path, base_offset: int, name: int) -> None:
    copy = copied(partition, base_offset, name)
    assert [one.record.offset for one in dumped_json(partition)] == OFFSETS
    assert [one.record.offset for one in dumped_json(partition, options=("--offset", "7..13"))] == list(range(7, 13))
    assert [one.record.offset for one in dumped_json(partition, options=("--tail", "14"))] == OFFSETS[-14:]
    assert replayed(partition) == OFFSETS
    for on_corrupt in ("skip", "fail"):
        assert spark(partition, onCorrupt=on_corrupt) == OFFSETS
        assert spark(partition, onCorrupt=on_corrupt, maxPartitionBytes="200") == OFFSETS
    assert len(dumped_json(copy)) == 12  # a file that is named is shown


@pytest.mark.parametrize("name", [3, 18, 500])
def test_a_copy_of_which_the_other_file_lacks_a_batch_is_read(partition: Path, name: int) -> None:
    """Its batch is the only one with these records."""
    copied(partition, 0, name)
    original = partition / f"{0:020}.log"
    damaged = bytearray(original.read_bytes())
    damaged[-5] ^= 1
    original.write_bytes(damaged)
    segments = read_partition(OsDisk(), str(partition)).segments
    assert not any(map(Copies(OsDisk(), segments).is_copy, segments))
    assert {one.record.offset for one in dumped_json(partition)} == set(OFFSETS)


def test_two_copies_without_the_original_are_read(partition: Path) -> None:
    """Neither file makes the other one a copy."""
    for name in (18, 500):
        copied(partition, 0, name)
    (partition / f"{0:020}.log").unlink()
    segments = read_partition(OsDisk(), str(partition)).segments
    assert not any(map(Copies(OsDisk(), segments).is_copy, segments))


def test_a_time_is_found_behind_the_name_of_a_copy(partition: Path) -> None:
    copied(partition, 0, 3)
    segments = read_partition(OsDisk(), str(partition)).segments
    assert find_time(OsDisk(), segments, NOW_MS, 8).offset == 8
