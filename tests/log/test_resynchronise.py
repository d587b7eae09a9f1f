"""Protects the reading of logs with many damaged batches: its cost is proportional to their number, and what the reader keeps
to reach that changes no decision."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.index_entries import OffsetIndex
from kcli.format.record_batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, read_header
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.log.reading import resynchronise
from kcli.log.reading.segment_reader import Damage, SegmentReader
from tests.log_builder import PartitionBuilder

READS_PER_BATCH = 40
READS_PER_WALK = 100
STEPS_PER_WALK = 4  # the batches between two entries of an index


class CountedFile(OsFile):
    """An OsFile that counts its reads."""

    reads = 0

    def read_into(self, position: int, buffer: memoryview) -> int:
        self.reads += 1
        return super().read_into(position, buffer)


class CountingDisk(OsDisk):
    """Opens CountedFiles."""

    def open_file(self, path: str) -> CountedFile:
        return CountedFile(path)


def damaged_log(directory: Path, batches: int, how: str, *, value_bytes: int = 10, index_every: int = 10**6) -> Path:
    """A log of one-record batches of which every second is damaged: its payload, its length, or a random bit."""
    builder = PartitionBuilder(directory, index_every=index_every)
    for number in range(batches):
        builder.append([(b"k", b"%d" % number * (value_bytes // 3))])
    builder.flush()
    path = builder.path(".log")
    data, position, rng = bytearray(path.read_bytes()), 0, random.Random(7)
    for number in range(batches):
        size = read_header(bytes(data[position : position + 100]), 0).size_bytes
        if number % 2:
            if how == "a random bit":
                data[position + rng.randrange(size)] ^= 1 << rng.randrange(8)
            else:
                data[position + 64] ^= 0x55
            if how == "length 0":
                data[position + 8 : position + 12] = bytes(4)
        position += size
    path.write_bytes(data)
    return path


def seen(reader: SegmentReader, position: int, most: int = 10**6) -> list[tuple[int, int, bool]]:
    """What a walk from a byte yields: first byte, end, whether it is a sound batch."""
    found = []
    for step in reader.batches(position):
        found.append((step.position, step.end_position, not isinstance(step, Damage) and step.is_valid))
        if len(found) == most:
            break
    return found


@pytest.mark.parametrize("how", ["payload", "a random bit"])
def test_reads_are_proportional_to_damaged_batches(tmp_path: Path, how: str) -> None:
    """The chain of headers behind each of 300 damaged batches is not walked again for each of them."""
    batches = 600
    path = damaged_log(tmp_path / "t-0", batches, how, value_bytes=9_000)
    with SegmentReader(CountingDisk(), str(path)) as reader:
        assert seen(reader, 0)
        assert isinstance(reader.file, CountedFile)
        assert reader.file.reads < READS_PER_BATCH * batches


def test_reads_are_proportional_to_walks(tmp_path: Path) -> None:
    """dump-log starts a walk at each entry of an index; none leads to the end, and the first search shows it for all."""
    batches = 600
    path = damaged_log(tmp_path / "t-0", batches, "length 0")
    starts = range(0, path.stat().st_size, path.stat().st_size // batches)
    with SegmentReader(CountingDisk(), str(path)) as reader:
        for start in starts:
            assert seen(reader, start, STEPS_PER_WALK)
        assert isinstance(reader.file, CountedFile)
        assert reader.file.reads < READS_PER_WALK * batches


@pytest.mark.parametrize("is_indexed", [False, True])
def test_the_searches_of_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_indexed: bool) -> None:
    """A hostile file has a header every 61 bytes: after some of them the rest is one damage, up to an entry of .index."""
    monkeypatch.setattr(resynchronise, "MOST_SEARCHES", 100)
    monkeypatch.setattr(resynchronise, "BYTES_OF_SEARCH", 1 << 20)
    builder = PartitionBuilder(tmp_path / "t-0", first_offset=5_000)
    builder.append([(b"k", b"v")])
    size, rest = (HEADER_BYTES - LOG_OVERHEAD_BYTES).to_bytes(4, "big"), bytes(builder.log[12:HEADER_BYTES])
    headers = b"".join(number.to_bytes(8, "big") + size + rest for number in range(2_000))
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(headers + builder.log)
    index = OffsetIndex.of(0)
    index.append(5_000, len(headers))
    path.with_suffix(".index").write_bytes(index.encode() if is_indexed else b"")
    with SegmentReader(OsDisk(), str(path)) as reader:
        found = seen(reader, 0)
    assert len(found) <= 102 + is_indexed
    assert found[-1][2] is is_indexed
    assert found[-1][1] == path.stat().st_size


@pytest.mark.parametrize("index_every", [7, 10, 10**6])
@pytest.mark.parametrize("how", ["payload", "length 0", "a random bit"])
def test_what_is_kept_changes_no_decision(tmp_path: Path, how: str, index_every: int) -> None:
    """A reader that has walked from everywhere sees what a new one sees, whatever the order."""
    path = damaged_log(tmp_path / "t-0", 60, how, index_every=index_every)
    starts = list(range(0, path.stat().st_size, 29))
    random.Random(3).shuffle(starts)
    with SegmentReader(OsDisk(), str(path)) as reader:
        for start in starts:
            with SegmentReader(OsDisk(), str(path)) as fresh:
                assert seen(reader, start, 30) == seen(fresh, start, 30), start
