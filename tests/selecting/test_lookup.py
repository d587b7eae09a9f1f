"""Where a time begins: with sound, missing and wrong indexes, and behind damage, the answer is that of a read of every record.

Protects Spark, to-parquet, dump-log, replay and describe from a search that ends at damage: the rest of the segment was
skipped without an error.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import Segment, read_partition
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.selecting.lookup import TimeOffset, find_time, largest_timestamp, start_position
from kcli.selecting.selection import Range, Selection
from tests.log.test_offset_lookup import INDEXES, build
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

PER_BATCH = 3


def three_segments(directory: Path, rng: random.Random) -> PartitionBuilder:
    """Build twelve batches in three segments, with times that rise, and now and then go back."""
    log = PartitionBuilder(directory, index_every=rng.choice((1, 2, 100)))
    for number in range(12):
        if number in (4, 8):
            log.roll()
        back = rng.random() < 0.2
        log.append(
            [(b"k", b"v" * rng.randrange(40))] * PER_BATCH,
            codec=rng.choice((0, 0, 4)),
            timestamp=BASE_TIMESTAMP + 10 * (number - 3 * back),
        )
    log.flush()
    return log


def segments_of(directory: Path) -> list[Segment]:
    return read_partition(OsDisk(), str(directory)).segments


@pytest.mark.parametrize("index", INDEXES)
def test_times_are_found(tmp_path: Path, index: str) -> None:
    """The first record at or after a time, also from a given offset on; None behind the last."""
    segment, log = build(tmp_path / "t-0", index)

    def offset_of(timestamp_ms: int, from_offset: int) -> int | None:
        return find_time(OsDisk(), [segment], timestamp_ms, from_offset).offset

    for row in log.rows:
        assert offset_of(row.timestamp, 0) == row.offset
        assert offset_of(row.timestamp - 3, 0) == row.offset
        assert offset_of(row.timestamp, row.offset - 2) == row.offset
    assert offset_of(BASE_TIMESTAMP, 150) == 150
    assert find_time(OsDisk(), [segment], log.rows[-1].timestamp + 1, 0) == TimeOffset(None, None)
    assert largest_timestamp(OsDisk(), segment) == log.rows[-1].timestamp


@pytest.mark.parametrize("seed", range(30))
def test_a_search_reads_on_behind_damage(tmp_path: Path, seed: int) -> None:
    """One batch of any segment is damaged: the first sound record of each time is found, and the damage before it is named."""
    rng = random.Random(seed)
    log = three_segments(tmp_path / "t-0", rng)
    segments = segments_of(tmp_path / "t-0")
    bad = rng.randrange(12)
    segment = segments[bad // 4]
    with SegmentReader(OsDisk(), segment.log) as reader:
        batches = [(found.position, found.end_position) for found in reader.batches() if isinstance(found, LogBatch)]
    position, end_position = batches[bad % 4]
    data = bytearray(Path(segment.log).read_bytes())
    damage = rng.choice(("length", "crc", "magic", "offset"))
    match damage:
        case "length":
            struct.pack_into(">i", data, position + 8, 2**31 - 1)
        case "crc":
            data[end_position - 1] ^= 1
        case "magic":
            data[position + 16] = 9
        case "offset":
            struct.pack_into(">q", data, position, 2**40)
    Path(segment.log).write_bytes(data)
    for timestamp_ms in range(BASE_TIMESTAMP - 1, BASE_TIMESTAMP + 112, 7):
        sound = [row for row in log.rows if row.offset // PER_BATCH != bad]
        expected = next((row.offset for row in sound if row.timestamp >= timestamp_ms), None)
        found = find_time(OsDisk(), segments, timestamp_ms, 0)
        assert found.offset == expected
        following = PER_BATCH * (bad + 1)
        if expected == following or (expected is None and following == log.offset):
            assert found.damage_offset == PER_BATCH * bad
        else:
            assert found.damage_offset is None
    # The CRC covers a batch's times, not its offset.
    counted = log.rows if damage == "offset" else sound
    largest = max(row.timestamp for row in counted if row.offset // PER_BATCH // 4 == bad // 4)
    assert largest_timestamp(OsDisk(), segment) == largest


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_skips_nothing_of_a_time(tmp_path: Path, seed: int) -> None:
    """No record at or after a time is before the position at which a walk over its segment begins."""
    rng = random.Random(seed)
    log = three_segments(tmp_path / "t-0", rng)
    for segment in segments_of(tmp_path / "t-0"):
        for timestamp_ms in range(BASE_TIMESTAMP, BASE_TIMESTAMP + 120, 11):
            position = start_position(OsDisk(), segment, Selection(times=Range(timestamp_ms)))
            with SegmentReader(OsDisk(), segment.log) as reader:
                skipped = [at.header for at in reader.batches() if isinstance(at, LogBatch) and at.position < position]
            offsets = {offset for header in skipped for offset in range(header.base_offset, header.last_offset + 1)}
            assert not [row for row in log.rows if row.offset in offsets and row.timestamp >= timestamp_ms]
