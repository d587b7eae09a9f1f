"""Seeking by offset and time: with sound indexes, with none and with lying ones the answer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk import OsDisk
from kcli.log.header_walk import HeaderWalk
from kcli.log.log_directory import Segment, read_log_directory, read_partition
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.segment_seek import SegmentSeeker
from tests.conftest import every_log_set
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

INDEXES = ["sound", "missing", "unsorted", "behind the end", "between batches", "preallocated"]


def build(directory: Path, index: str) -> tuple[Segment, PartitionBuilder]:
    """Forty batches of one to five records; .index in the state that is asked for."""
    log = PartitionBuilder(directory, first_offset=100)
    for batch in range(40):
        log.append([(b"k", b"v" * (batch * 37 % 300))] * (batch % 5 + 1), codec=4 if batch % 7 == 0 else 0)
    log.flush()
    path = log.path(".index")
    data = path.read_bytes()
    if index == "missing":
        path.unlink()
    elif index == "unsorted":
        path.write_bytes(data[8:] + data[:8])
    elif index == "behind the end":
        path.write_bytes(data[:-4] + (2**31 - 1).to_bytes(4, "big"))
    elif index == "between batches":
        entries = [data[i : i + 8] for i in range(0, len(data), 8)]
        path.write_bytes(b"".join(e[:4] + (int.from_bytes(e[4:], "big") + 3).to_bytes(4, "big") for e in entries))
    elif index == "preallocated":
        path.write_bytes(data + bytes(800))
    return read_partition(OsDisk(), str(directory)).segments[0], log


def batches_of(segment: Segment) -> list[LogBatch]:
    with SegmentReader(OsDisk(), segment.log) as reader:
        return [batch for batch in reader.batches() if isinstance(batch, LogBatch)]


@pytest.mark.parametrize("index", INDEXES)
def test_every_offset_is_found(tmp_path: Path, index: str) -> None:
    """The first batch that reaches an offset, for every offset in, before and behind the segment."""
    segment, log = build(tmp_path / "t-0", index)
    headers = [batch.header for batch in batches_of(segment)]
    with SegmentSeeker(OsDisk(), segment) as seeker:
        for offset in range(95, log.offset + 3):
            expected = next((header.position for header in headers if header.last_offset >= offset), len(log.log))
            assert seeker.first_batch(offset) == expected
        assert seeker.end_offset() == log.offset


@pytest.mark.parametrize("index", INDEXES)
def test_times_are_found(tmp_path: Path, index: str) -> None:
    """The first record at or after a time, also behind a given offset; None behind the last."""
    segment, log = build(tmp_path / "t-0", index)
    with SegmentSeeker(OsDisk(), segment) as seeker:
        for row in log.rows:
            assert seeker.offset_of_time(row.timestamp, 0) == row.offset
            assert seeker.offset_of_time(row.timestamp - 3, 0) == row.offset
            assert seeker.offset_of_time(row.timestamp, row.offset - 2) == row.offset
        assert seeker.offset_of_time(BASE_TIMESTAMP, 150) == 150
        assert seeker.offset_of_time(log.rows[-1].timestamp + 1, 0) is None
        assert seeker.max_timestamp() == log.rows[-1].timestamp


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("target", [1, 500, 4000, 10**9])
def test_cuts_begin_batches(tmp_path: Path, index: str, target: int) -> None:
    """Every cut is a batch's first byte, strictly inside and ascending: the ranges cover each batch once."""
    segment, log = build(tmp_path / "t-0", index)
    starts = {batch.position for batch in batches_of(segment)}
    with SegmentSeeker(OsDisk(), segment) as seeker:
        cuts = seeker.boundaries(0, len(log.log), target)
    assert set(cuts) <= starts - {0}
    assert cuts == sorted(set(cuts))
    if index in ("sound", "missing", "preallocated") and target < 4000:
        assert cuts


def test_the_walk_stops_where_bytes_are_no_batch(tmp_path: Path) -> None:
    """Damage ends the hopping with the position at hand, whatever the damage."""
    segment, log = build(tmp_path / "t-0", "sound")
    third = sorted(batch.position for batch in batches_of(segment))[3]
    for change, at in ((b"\x00\x00\x00\x01", 8), (b"\x7f\xff\xff\xff", 8), (b"\x09", 16), (b"\x00\x00\x00\x10", 8)):
        data = bytearray(log.log)
        data[third + at : third + at + len(change)] = change
        Path(segment.log).write_bytes(data)
        file = OsDisk().open_file(segment.log)
        walk = HeaderWalk(file, 0, file.size())
        assert len(list(walk.headers())) == 3
        assert walk.position == third
        file.close()


@pytest.mark.parametrize("tail", [0, 5000])
def test_a_wrong_length_does_not_move_the_end_into_a_batch(tmp_path: Path, tail: int) -> None:
    """It leads to a sound batch in the last batch's value, behind which are a zero of that batch and zeros of the file."""
    inner = NewRecordBatch(7, 0, 10, 10, 1, encode_records([Record(0, 0, b"k", b"v")])).encode()
    first = NewRecordBatch(0, 0, 10, 10, 1, encode_records([Record(0, 0, b"k", b"v")])).encode()
    last = NewRecordBatch(1, 0, 10, 10, 1, encode_records([Record(0, 0, b"k", inner)])).encode()
    inside = len(first) + last.index(inner)
    data = first[:8] + (inside - 12).to_bytes(4, "big") + first[12:] + last
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(data + bytes(tail))
    segment = read_partition(OsDisk(), str(path)).segments[0]
    with SegmentSeeker(OsDisk(), segment) as seeker:
        assert seeker.sound_end() == (len(data), False)


def test_given_segments_walk_as_they_read() -> None:
    """Hopping sees the headers that the reader sees, on every segment that Kafka wrote."""
    disk = OsDisk()
    seen = 0
    for log_set in every_log_set():
        for partition in read_log_directory(disk, str(log_set.data)).partitions:
            for segment in partition.segments:
                with SegmentReader(disk, segment.log) as reader:
                    walk = HeaderWalk(reader.file, 0, reader.end_position())
                    headers = list(walk.headers())
                    assert headers == [batch.header for batch in reader.batches() if isinstance(batch, LogBatch)]
                    assert walk.position == walk.end
                    seen += len(headers)
    assert seen
