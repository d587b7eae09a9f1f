"""Protects the rule by which batches get index entries, and how index files are opened and closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import FormatError
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.indexes import IndexAppender, IndexSettings, close_index, open_offset_index, open_time_index


def appender(interval_bytes: int = 100) -> IndexAppender:
    return IndexAppender(OffsetIndex.of(50), TimeIndex.of(50), interval_bytes)


def test_an_entry_comes_before_the_batch_that_more_than_the_interval_lies_before() -> None:
    """Exactly the interval is not enough; the count begins anew at each entry's batch."""
    found = appender()
    for i, size in enumerate([100, 1, 99, 3, 500, 1]):
        found.add(sum([100, 1, 99, 3, 500, 1][:i]), size, 50 + i, 1000 + i)
    assert list(found.offset_index.entries()) == [(52, 101), (54, 203), (55, 703)]


def test_the_time_index_has_the_largest_timestamp_so_far_and_only_when_it_rose() -> None:
    """Its offset is that of the batch that has it, not of the batch at the entry; closing adds what came since."""
    found = appender(0)
    for i, timestamp in enumerate([30, 20, 10, 40, 35, 50]):
        found.add(i, 1, 50 + i, timestamp)
    assert [tuple(entry) for entry in found.time_index.entries()] == [(30, 50), (40, 53), (50, 55)]
    late = appender()
    late.add(0, 10, 50, 7)
    assert list(late.time_index.entries()) == []
    late.close()
    late.close()
    assert [tuple(entry) for entry in late.time_index.entries()] == [(7, 50)]


def test_no_timestamps_no_entries() -> None:
    """Message format 0 has none."""
    found = appender(0)
    for i in range(3):
        found.add(i, 1, 50 + i, -1)
    found.close()
    assert list(found.time_index.entries()) == []
    assert len(found.offset_index) == 2


def test_offsets_that_do_not_rise_raise_at_an_entry_only() -> None:
    """As in Kafka, where recovery then empties the segment, and misses it between two entries."""
    found = appender(10)
    found.add(0, 11, 60, 1)
    found.add(11, 5, 55, 1)
    found.add(16, 6, 55, 1)
    with pytest.raises(FormatError, match="not above"):
        found.add(22, 5, 55, 1)


def test_a_missing_index_is_created_at_full_size_and_closed_at_its_own(tmp_path: Path) -> None:
    """What Kafka leaves while a segment is active, and when it is stopped."""
    settings = IndexSettings(max_bytes=1001)
    path = tmp_path / "0.index"
    index = open_offset_index(OsDisk(), str(path), 0, settings)
    assert (len(index), path.stat().st_size) == (0, 1000)
    index.append(5, 100)
    close_index(OsDisk(), str(path), index)
    assert path.read_bytes() == bytes([0, 0, 0, 5, 0, 0, 0, 100])
    times = open_time_index(OsDisk(), str(tmp_path / "0.timeindex"), 0, settings)
    assert (len(times), (tmp_path / "0.timeindex").stat().st_size) == (0, 996)
    path.write_bytes(path.read_bytes() + b"torn")
    again = open_offset_index(OsDisk(), str(path), 0, settings)
    close_index(OsDisk(), str(path), again)
    assert path.stat().st_size == 8
