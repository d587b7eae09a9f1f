"""Protects which segments are cleaned into one, how far a map goes, and how output splits: Kafka's LogCleanerTest, by name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.primitives import INT32_MAX
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.cleaner import SegmentSize, group_segments
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.cleaner.offset_map import ABSENT
from tests.log.cleaner.logs import CompactedLog, PretendedMap, as_bytes, map_of
from tests.log.live_logs import NOW_MS, new_batch


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path / "t-0")


def sizes_of(log: CompactedLog) -> list[SegmentSize]:
    """The segments that may be cleaned, as a round measures them."""
    return [
        SegmentSize(one.base_offset, *(Path(path).stat().st_size for path in one.paths[:3]))
        for one in log.log.local_log().segments[:-1]
    ]


def groups_of(log: CompactedLog, segment_bytes: int = INT32_MAX, index_bytes: int = INT32_MAX) -> list[list[int]]:
    """Their groups, which must be in order and have each segment once."""
    sizes = sizes_of(log)
    groups = group_segments(sizes, segment_bytes, index_bytes, log.active)
    assert [base for group in groups for base in group] == [one.base_offset for one in sizes]
    return groups


def test_segment_grouping(log: CompactedLog) -> None:
    """All in one group where the bounds are large, each alone where they are small, by log and by index bytes between."""
    log.set(segment_bytes=300, index_interval_bytes=1)
    while log.log.segment_count < 11:
        log.append(new_batch([b"hello"], keys=[b"hello"]))
    sizes = sizes_of(log)
    assert len(groups_of(log)) == 1
    assert list(map(len, groups_of(log, segment_bytes=1))) == [1] * 10
    assert list(map(len, groups_of(log, index_bytes=1))) == [1] * 10
    assert list(map(len, groups_of(log, segment_bytes=sum(one.log_bytes for one in sizes[:3]) + 1))) == [3, 3, 3, 1]
    assert list(map(len, groups_of(log, index_bytes=sum(one.index_bytes for one in sizes[:3]) + 1)))[:-1] == [3, 3, 3]


def test_segment_grouping_with_sparse_offsets_and_empty_segments(log: CompactedLog) -> None:
    """Segments far apart are cleaned each alone; those that have become empty go into one then."""
    log.set(segment_bytes=1 << 30)
    for number in range(3):
        log.put(1, 1)
        log.follow(1, (number + 1) * (INT32_MAX + 1) - 1)
        assert log.log.segment_count == number + 1
    log.put(1, 1)
    assert log.log.segment_count == 4
    end = log.log.log_end_offset - 1
    assert len(groups_of(log)) == 3
    log.clean(end=end)
    assert log.sizes()[:2] == [0, 0] and log.log.segment_count == 4
    assert len(groups_of(log)) == 2
    log.clean(end=end)
    assert log.log.segment_count == 3
    assert log.offsets() == [end - 1, end]


def test_segment_grouping_with_sparse_offsets(log: CompactedLog) -> None:
    """A group reaches 2**31 - 1 behind its base offset, not one further."""
    log.set(segment_bytes=400, index_interval_bytes=1)
    log.fill(segments=2)
    log.follow(1, INT32_MAX)
    assert log.log.base_offsets[1] < INT32_MAX
    log.roll()
    assert list(map(len, groups_of(log))) == [2]
    log.put(1, 1)
    log.roll()
    assert len(groups_of(log)) == 2
    while log.log.segment_count < 6:
        log.put(1, 1)
    bases = [*log.log.base_offsets[:-1], log.active]
    groups = groups_of(log)
    assert len(groups) == 2 and len(groups[1]) == 3
    for group in groups:
        assert bases[bases.index(group[-1]) + 1] - 1 - group[0] <= INT32_MAX


def test_segment_grouping_following_load_of_zero_index(log: CompactedLog) -> None:
    """The records of a segment count, not its index: an index without entries does not know the last offset."""
    log.set(segment_bytes=400, index_interval_bytes=400)
    log.follow(1, 0)
    log.follow(1, 1)
    log.roll(INT32_MAX // 2)
    log.follow(1, INT32_MAX // 2)
    log.follow(1, INT32_MAX + 1)
    log.roll()
    assert [one.index_bytes for one in sizes_of(log)] == [0, 0]
    assert groups_of(log) == [[0], [INT32_MAX // 2]]


def test_build_offset_map(log: CompactedLog) -> None:
    """It has every key of the range at its offset, none from before or behind, and ends where the range does."""
    for number in range(500):
        log.put(number, number)
    log.roll()
    bases = log.log.base_offsets
    for start, end in ((0, bases[1]), (bases[1], bases[3]), (bases[3], log.log.log_end_offset)):
        offsets = map_of(1000)
        assert log.clean(start, end=end, offsets=offsets).end_offset == offsets.latest_offset + 1 == end
        assert len(offsets) == end - start
        assert [offsets.get(as_bytes(key)) for key in range(start, end)] == list(range(start, end))
        assert offsets.get(as_bytes(start - 1)) == offsets.get(as_bytes(end)) == ABSENT


def test_build_offset_map_fake_large(log: CompactedLog) -> None:
    """A gap of millions of offsets between two records."""
    log.set(segment_bytes=120, segment_index_bytes=120)
    log.follow(0, 0)
    log.follow(1, 7_206_178)
    log.roll()
    offsets = map_of(1000)
    assert log.clean(offsets=offsets).end_offset == 7_206_179
    assert (len(offsets), offsets.get(b"0"), offsets.get(b"1")) == (2, 0, 7_206_178)


def test_build_partial_offset_map(log: CompactedLog) -> None:
    """A map of two keys ends behind the second key, though that is amid a segment."""
    for number in range(5):
        log.put(number, number)
    log.roll()
    offsets = map_of(2)
    assert log.clean(2, offsets=offsets).end_offset == 4
    assert len(offsets) == 2 and offsets.is_full
    assert [offsets.get(as_bytes(key)) for key in range(5)] == [ABSENT, ABSENT, 2, 3, ABSENT]


def test_log_to_clean(log: CompactedLog) -> None:
    """All but the active segment counts."""
    log.set(segment_bytes=100)
    for _ in range(6):
        log.put(1, bytes(25))
    found = log_to_clean(log.log, log.active, NOW_MS)
    assert found.clean_bytes + found.cleanable_bytes == log.log.size_bytes - log.sizes()[-1] > 0


def test_log_to_clean_with_uncleanable_section(log: CompactedLog) -> None:
    """Two segments that are clean, two that may be cleaned, two that may not: the ratio is of the first four."""
    log.set(segment_bytes=100)
    for _ in range(6):
        log.put(1, bytes(25))
    sizes, bases = log.sizes(), log.log.base_offsets
    assert len(sizes) == 6
    log.log.update_high_watermark(bases[4])
    found = log_to_clean(log.log, bases[2], NOW_MS)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (bases[2], bases[4])
    assert (found.clean_bytes, found.cleanable_bytes) == (sum(sizes[:2]), sum(sizes[2:4]))
    assert found.dirty_ratio == pytest.approx(sum(sizes[2:4]) / sum(sizes[:4]))


def two_segments(log: CompactedLog) -> list[int]:
    """A record a segment, and the active one -> their sizes."""
    log.set(segment_bytes=4096)
    for number in range(2):
        log.put(number, number)
        log.roll()
    return log.sizes()


def assert_split(log: CompactedLog) -> None:
    """Two segments were cleaned as one group, and are two again; nothing is lost, now and after a start."""
    assert len(groups_of(log, 4096, 4096)) == 1
    log.clean(offsets=PretendedMap(()))
    assert log.log.base_offsets == (0, 1, 2)
    assert log.keys() == [0, 1]
    log.live.crash()
    assert log.log.base_offsets == (0, 1, 2) and log.keys() == [0, 1]
    assert log.live.faults(is_compacted=True) == []


def test_cleaned_segment_size_overflow(log: CompactedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a group is larger than a segment may be: another begins (here the limit is one batch)."""
    size = two_segments(log)[0]
    monkeypatch.setattr(CleanedSegment, "fits", lambda made, more, last_offset: made.size_bytes + more <= size + 1)
    assert_split(log)


def test_cleaned_segment_offset_overflow(log: CompactedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output has offsets that an index cannot hold: another begins (here it can hold none)."""
    two_segments(log)
    monkeypatch.setattr(CleanedSegment, "fits", lambda made, more, last_offset: last_offset - made.base_offset <= 0)
    assert_split(log)


def test_a_cleaned_segment_holds_what_its_indexes_can_tell(log: CompactedLog) -> None:
    """The bounds themselves, which the two tests above replace."""
    segment = CleanedSegment(log.live.disk, str(log.directory), 5, 4096)
    assert segment.fits(INT32_MAX, 5 + INT32_MAX)
    assert not segment.fits(INT32_MAX + 1, 5)
    assert not segment.fits(61, 5 + INT32_MAX + 1)
    segment.discard()


def test_segment_with_offset_overflow(tmp_path: Path) -> None:
    """A segment whose offsets outgrow it, as old brokers wrote them: a start splits it, and each part is cleaned."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    offsets = [0, 1, 2, INT32_MAX + 10, INT32_MAX + 11]
    (directory / f"{0:020}.log").write_bytes(
        b"".join(new_batch([b"v"], keys=[as_bytes(at)], base_offset=at, leader_epoch=0) for at in offsets)
    )
    log = CompactedLog(directory)
    assert log.log.base_offsets == (0, INT32_MAX + 10)
    assert log.keys() == offsets
    log.roll()
    log.clean(offsets=PretendedMap((1, INT32_MAX + 10)))
    assert log.keys() == [0, 2, INT32_MAX + 11]
    assert log.live.faults(is_compacted=True) == []
