"""Seeking by offset: with sound indexes, with none and with lying ones the answer is the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.index_entries import OffsetIndex
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import Segment, read_log_directory, read_partition
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.offset_lookup import OffsetLookup, holds_entry
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.conftest import every_log_set
from tests.log_builder import PartitionBuilder

INDEXES = ["sound", "of a follower", "missing", "unsorted", "behind the end", "between batches", "preallocated"]


def build(directory: Path, index: str) -> tuple[Segment, PartitionBuilder]:
    """Forty batches of one to five records; .index in the state that is asked for."""
    log = PartitionBuilder(directory, first_offset=100)
    for batch in range(40):
        log.append([(b"k", b"v" * (batch * 37 % 300))] * (batch % 5 + 1), codec=4 if batch % 7 == 0 else 0)
    log.flush()
    path = log.path(".index")
    data = path.read_bytes()
    if index == "of a follower":
        # Before 4.0 a follower wrote one entry for an append of several batches: its last offset, its first batch's position.
        entries = [data[i : i + 8] for i in range(0, len(data), 8)]
        path.write_bytes(b"".join(later[:4] + first[4:] for first, later in zip(entries[::2], entries[1::2], strict=True)))
    elif index == "missing":
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
    with OffsetLookup(OsDisk(), segment) as lookup:
        for offset in range(95, log.offset + 3):
            expected = next((header.position for header in headers if header.last_offset >= offset), len(log.log))
            assert lookup.first_batch(offset) == expected
        assert lookup.end_offset() == log.offset


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("target", [1, 500, 4000, 10**9])
def test_cuts_begin_batches(tmp_path: Path, index: str, target: int) -> None:
    """Every cut is a batch's first byte, strictly inside and ascending: the ranges cover each batch once."""
    segment, log = build(tmp_path / "t-0", index)
    starts = {batch.position for batch in batches_of(segment)}
    with OffsetLookup(OsDisk(), segment) as lookup:
        cuts = lookup.boundaries(0, len(log.log), target)
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
        walk = HeaderReader(file, 0, file.size())
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
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert lookup.end()[1::2] == (len(data), False)


def test_given_segments_walk_as_they_read() -> None:
    """Hopping sees the headers that the reader sees, on every segment that Kafka wrote."""
    disk = OsDisk()
    seen = 0
    for log_set in every_log_set():
        for partition in read_log_directory(disk, str(log_set.data)).partitions:
            for segment in partition.segments:
                with SegmentReader(disk, segment.log) as reader:
                    walk = HeaderReader(reader.file, 0, reader.end_position())
                    headers = list(walk.headers())
                    assert headers == [batch.header for batch in reader.batches() if isinstance(batch, LogBatch)]
                    assert walk.position == walk.end
                    seen += len(headers)
    assert seen


def test_the_index_of_a_follower_is_used(tmp_path: Path) -> None:
    """One entry for an append of several batches saves as much as an entry for each: no seek reads from the first byte."""
    segment, log = build(tmp_path / "t-0", "of a follower")
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert lookup.hint(log.offset - 1) > len(log.log) // 2
        assert len(lookup.boundaries(0, len(log.log), 100)) > 5


def test_an_entry_before_its_time_is_not_used(tmp_path: Path) -> None:
    """The batch of an entry must begin behind the entry before: a base offset that rotted is no follower's entry."""
    segment, log = build(tmp_path / "t-0", "sound")
    index = OffsetIndex.decode(log.path(".index").read_bytes(), 100)
    slot = len(index) // 2
    data = bytearray(log.path(".log").read_bytes())
    position = index.positions[slot]
    data[position : position + 8] = (101).to_bytes(8, "big")
    log.path(".log").write_bytes(data)
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert not holds_entry(lookup.reader, index, slot)


@pytest.mark.parametrize("index", ["sound", "of a follower"])
def test_no_range_is_cut_at_a_wrong_base_offset(tmp_path: Path, index: str) -> None:
    """Above the entry before, a wrong offset may be one of a follower's append: the batches after it contradict that."""
    segment, log = build(tmp_path / "t-0", index)
    entries = OffsetIndex.decode(log.path(".index").read_bytes(), 100)
    _, position = entries.entry(len(entries) // 2)
    data = bytearray(log.path(".log").read_bytes())
    data[position : position + 8] = (entries.entry(len(entries) // 2 - 1).offset + 1).to_bytes(8, "big")
    log.path(".log").write_bytes(data)
    with OffsetLookup(OsDisk(), segment) as lookup:
        cuts = lookup.boundaries(0, len(data), 1)
    assert cuts
    assert position not in cuts


def test_reads_from_a_boundary_see_what_a_whole_read_sees(tmp_path: Path) -> None:
    """Bytes, sectors and lengths are damaged at random: two ranges of a segment have the batches of one."""
    for seed in range(40):
        rng = random.Random(seed)
        builder = PartitionBuilder(tmp_path / f"{seed}-0", index_every=rng.choice([2, 4]))
        for _ in range(16):
            builder.append([(b"key", rng.randbytes(rng.choice([10, 150])))] * rng.choice([1, 3]))
        builder.flush()
        data = bytearray(builder.log)
        for _ in range(rng.choice([1, 2])):
            at = rng.randrange(len(data))
            size = rng.choice([1, 1, 8, 200])
            data[at : at + size] = rng.choice([bytes, rng.randbytes])(len(data[at : at + size]))
        builder.path(".log").write_bytes(data)
        (segment,) = read_partition(OsDisk(), str(builder.directory)).segments
        with OffsetLookup(OsDisk(), segment) as lookup:
            whole = sound_positions(lookup.reader, 0)
            for cut in lookup.boundaries(0, len(data), 1, by_headers=False):
                assert sound_positions(lookup.reader, cut) == [at for at in whole if at >= cut], f"seed {seed}, byte {cut}"


def sound_positions(reader: SegmentReader, position: int) -> list[int]:
    """The bytes at which the sound batches from a byte on begin."""
    return [found.position for found in reader.batches(position) if isinstance(found, LogBatch) and found.is_valid]


def test_a_seeker_sees_what_was_there_when_it_was_opened(tmp_path: Path) -> None:
    """The end offset and the end byte belong together, whatever is appended behind them, entries of the index included."""
    log = PartitionBuilder(tmp_path / "t-0")
    for _ in range(20):
        log.append([(b"k", b"v" * 50)])
    log.flush()
    segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
    size = len(log.log)
    with OffsetLookup(OsDisk(), segment) as before:
        for _ in range(20):
            log.append([(b"k", b"v" * 50)])
        log.flush()
        assert before.end()[:3] == (20, size, size)
    with OffsetLookup(OsDisk(), segment, size) as bounded:
        assert bounded.end()[:3] == (20, size, size)


@pytest.mark.parametrize("tail", ["torn", "not written", "rotten"])
def test_the_end_is_that_of_the_last_sound_batch(tmp_path: Path, tail: str) -> None:
    """A last batch that is cut short, or whose payload is not written yet, or that is damaged, is not of the log's end."""
    log = PartitionBuilder(tmp_path / "t-0", index_every=1)
    for _ in range(10):
        log.append([(b"k", b"v" * 50)])
    size = len(log.log)
    log.append([(b"k", b"w" * 50)])
    log.flush()
    data = bytearray(log.log)
    if tail == "torn":
        del data[-20:]
    elif tail == "not written":
        data[size + 61 :] = bytes(len(data) - size - 61)
    else:
        data[-10] ^= 1
    log.path(".log").write_bytes(data)
    segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert lookup.end() == (10, size, len(data), True)
        # A reader must come to a rotten batch, or it would wait for it for ever.
        assert lookup.end(counts_damaged=True) == (
            (11, len(data), len(data), False) if tail != "torn" else (10, size, len(data), True)
        )


@pytest.mark.parametrize("index_every", [1, 100])
def test_an_offset_that_the_segment_cannot_have_does_not_move_the_end(tmp_path: Path, index_every: int) -> None:
    """A flipped bit of the last base offset: below the name it must not hide the batch before, far above not be the end.

    A higher offset that the segment may have is believed, unless an index contradicts it: a cleaner may have made the gap.
    """
    log = PartitionBuilder(tmp_path / "t-0", first_offset=1000, index_every=index_every)
    log.append([(b"k", b"v" * 50)] * 3)
    log.append([(b"k", b"v" * 50)] * 3)
    size = len(log.log)
    log.append([(b"k", b"v")])
    log.flush()
    for bit in range(64):
        data = bytearray(log.log)
        stated = 1006 ^ 1 << bit
        data[size : size + 8] = stated.to_bytes(8, "big")
        log.path(".log").write_bytes(data)
        segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
        with OffsetLookup(OsDisk(), segment) as lookup:
            end = lookup.end()
        if index_every == 1:
            assert end == (1006, size, len(data), True)
        elif 1006 < stated <= 1000 + 2**31 - 1:
            assert end == (stated + 1, len(data), len(data), False)
        elif stated < 1000 or stated > 1006:
            assert end == (1006, len(data), len(data), False)
