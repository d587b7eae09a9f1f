"""Protects what a round writes of segments, records, tombstones and damage: Kafka's LogCleanerTest, by name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where. A "pretended" map has keys at an offset behind every
record: as Kafka's tests do, it says what is to go without a log that says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.compression import GZIP, deflate
from kcli.format.primitives import CorruptRecordError
from kcli.log.cleaner.cleaner import CleaningAbortedError
from kcli.log.cleaner.throttler import SLICE_BYTES
from kcli.log.log_config import DAY_MS
from tests.log.cleaner.logs import CompactedLog, PretendedMap, map_of
from tests.log.live_logs import NOW_MS, new_batch
from tests.message_sets import NewLegacyRecord, encode_message

LARGE_BYTES = 4 * SLICE_BYTES
MAGIC_AT = 16


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path / "t-0")


def large_log(log: CompactedLog) -> None:
    """Two segments of records that are larger than what a slice of a round reads; larger ones than the topic takes now."""
    log.set(segment_bytes=8 * LARGE_BYTES, max_message_bytes=2 * LARGE_BYTES)
    while log.log.segment_count < 2:
        log.put(log.log.log_end_offset, bytes(LARGE_BYTES))
    assert log.keys() == list(range(log.log.log_end_offset))
    log.set(max_message_bytes=LARGE_BYTES // 2)


def test_clean_segments(log: CompactedLog) -> None:
    """Three segments of keys of which some are obsolete: the others stay, and every byte was read once."""
    log.fill(segments=4)
    sizes, before = log.sizes(), log.keys()
    assert before == list(range(log.log.log_end_offset))
    gone = (1, 3, 5, 7, 9)
    done = log.clean(offsets=PretendedMap(gone))
    assert log.keys() == [key for key in before if key not in gone]
    assert done.stats.bytes_read == sum(sizes[:3])


def test_clean_segments_with_concurrent_segment_deletion(log: CompactedLog) -> None:
    """Retention deletes segments while their replacement is written: the round is aborted, and nothing is renamed twice."""
    log.set(cleanup_policy=frozenset(("compact", "delete")))
    for _ in range(2):
        log.put(0, log.log.log_end_offset)
        log.roll()
    under_way = log.round()
    steps = under_way.run()
    while not list(log.directory.glob("*.swap")):
        next(steps)
    log.log.maybe_increment_log_start_offset(log.active)
    renamed = log.log.delete_old_segments(NOW_MS)
    assert str(log.directory / f"{0:020}.log.deleted") in renamed
    with pytest.raises(CleaningAbortedError):
        for _ in steps:
            pass
    assert log.log.base_offsets == (2,)
    assert not [path.name for path in log.directory.iterdir() if path.suffix in (".swap", ".cleaned")]
    assert all(Path(path).exists() for path in renamed) and under_way.take_removed() == []


def test_size_trimmed_for_preallocated_and_compacted_topic(log: CompactedLog) -> None:
    """Whether or not segments are preallocated, one that was cleaned has the size of what is in it."""
    log.set(preallocate=True)
    for number in range(5):
        log.put(number % 2, number % 2)
    log.roll()
    log.clean(2, offsets=map_of(1))
    assert log.sizes()[0] == log.log.local_log().segments[0].size_bytes < 1024


def test_large_message(log: CompactedLog) -> None:
    """Records larger than what is read in a go are cleaned as others."""
    large_log(log)
    log.set(max_message_bytes=2 * LARGE_BYTES)
    before = log.keys()
    log.clean(offsets=PretendedMap((1, 3, 5, 7, 9)))
    assert log.keys() == [key for key in before if key % 2 == 0 or key >= log.active]


def test_message_larger_than_max_message_size(log: CompactedLog) -> None:
    """So are records larger than the topic takes now."""
    large_log(log)
    before = log.keys()
    log.clean(offsets=PretendedMap((1, 3, 5, 7, 9)))
    assert log.keys() == [key for key in before if key % 2 == 0 or key >= log.active]


def test_message_larger_than_max_message_size_with_corrupt_header(log: CompactedLog) -> None:
    """A first batch of no known format ends the round, and the log is as it was."""
    large_log(log)
    path = log.directory / f"{0:020}.log"
    with path.open("r+b") as file:
        file.seek(MAGIC_AT)
        file.write(b"\xff")
    before = log.sizes()
    with pytest.raises(CorruptRecordError):
        log.clean(offsets=PretendedMap((1, 3, 5, 7, 9)))
    assert log.sizes() == before


def test_corrupt_message_size_larger_than_bytes_available(log: CompactedLog) -> None:
    """A batch that its file does not hold whole ends the round, though the log believes that it does."""
    large_log(log)
    with (log.directory / f"{0:020}.log").open("r+b") as file:
        file.truncate(1024)
    before = log.sizes()
    with pytest.raises(CorruptRecordError):
        log.clean(offsets=PretendedMap((1, 3, 5, 7, 9)))
    assert log.sizes() == before


def test_cleaning_with_deletes(log: CompactedLog) -> None:
    """No key that a tombstone has deleted has a value still."""
    log.fill(segments=2)
    end = log.log.log_end_offset
    for key in range(0, end, 2):
        log.put(key, None)
    log.fill(segments=4)
    log.clean()
    assert not set(log.keys()) & set(range(0, end, 2))
    assert set(log.keys()) >= set(range(1, end, 2))


def test_log_cleaner_stats(log: CompactedLog) -> None:
    """What a round says of itself: where it ended, what it read and what it kept."""
    for number in range(5):
        log.put(number % 2, number % 2)
    log.roll()
    size = log.log.size_bytes
    done = log.clean(2, offsets=map_of(3))
    assert done.end_offset == 5
    assert (done.stats.records_read, done.stats.bytes_read) == (5, size)
    assert (done.stats.records_kept, done.stats.bytes_kept) == (2, log.log.size_bytes)
    assert done.stats.without_key == 0


def test_partial_segment_clean(log: CompactedLog) -> None:
    """A map of one key: a round gets on by one record at least, and loses nothing."""
    for number in range(5):
        log.put(number % 2, number % 2)
    log.roll()
    for first_dirty, keys, offsets in ((2, [1, 0, 1, 0], [1, 2, 3, 4]), (3, [0, 1, 0], [2, 3, 4]), (4, [1, 0], [3, 4])):
        done = log.clean(first_dirty, offsets=map_of(1))
        assert done.end_offset == first_dirty + 1
        assert log.keys() == keys
        assert log.offsets() == offsets


def test_cleaning_with_uncleanable_section(log: CompactedLog) -> None:
    """Only whole segments below the first offset that may not be cleaned yet are."""

    def values_by_segment() -> list[int]:
        found: dict[int, set[bytes | None]] = {base: set() for base in log.log.base_offsets}
        for _, rows in log.batches():
            for offset, _, _, value in rows:
                found[max(base for base in found if base <= offset)].add(value)
        return list(map(len, found.values()))

    log.fill(segments=3, keys=10)
    uncleanable = log.log.log_end_offset + 1
    log.fill(segments=6, keys=10)
    before, bases = values_by_segment(), log.log.base_offsets
    assert min(before[:-1]) > 10
    log.set(segment_bytes=700)  # so that neighbours are not cleaned into one
    log.clean(end=uncleanable)
    after = values_by_segment()
    assert log.log.base_offsets == bases
    assert [one < other for one, other in zip(after[:2], before[:2], strict=True)] == [True, True]
    assert after[3:] == before[3:]


def test_cleaning_with_unkeyed_messages(log: CompactedLog) -> None:
    """Records without a key, from before the topic was compacted, go, and are counted."""
    log.set(cleanup_policy=frozenset(("delete",)))
    while log.log.segment_count < 2:
        log.put(None, log.log.log_end_offset)
    unkeyed, size = log.log.log_end_offset, log.log.size_bytes
    log.fill(segments=3)
    expected = log.log.size_bytes - size
    done = log.clean()
    assert all(row[2] is not None for _, rows in log.batches() for row in rows)
    # The last one without a key has begun the segment in which the first with one are.
    assert log.log.size_bytes == expected
    assert done.stats.without_key == unkeyed


def test_clean_segments_with_abort(log: CompactedLog) -> None:
    """A round that somebody ends leaves the log as it was."""
    log.fill(segments=4)
    before, names = log.keys(), sorted(path.name for path in log.directory.iterdir())
    under_way = log.round(offsets=PretendedMap(before))
    steps = under_way.run()
    while not list(log.directory.glob("*.cleaned")):
        next(steps)
    under_way.discard()
    assert log.keys() == before
    assert sorted(path.name for path in log.directory.iterdir()) == names


def test_clean_segments_retaining_last_empty_batch(log: CompactedLog) -> None:
    """All records go: the last batch that the round may clean stays without them, so that the log's end does."""
    log.fill(segments=4)
    log.set(segment_bytes=4096)
    log.clean(offsets=PretendedMap(log.keys()))
    assert log.log.segment_count == 2
    (header, rows), *_ = log.batches()
    assert [one.last_offset for one, _ in log.batches() if one.last_offset < log.active] == [log.active - 1]
    assert (header.last_offset, rows) == (log.active - 1, [])


def test_clean_segments_not_retaining_last_empty_batch(log: CompactedLog) -> None:
    """The last batch of a round that ends below the high watermark: Kafka 4.3 keeps it without records (4.4: no more)."""
    log.fill(segments=4)
    assert log.log.high_watermark > log.active
    end = log.log.base_offsets[2]
    log.clean(end=end, offsets=PretendedMap(log.keys()))
    assert [header.last_offset for header, rows in log.batches() if not rows] == [end - 1]


def test_clean_corrupt_message_set(log: CompactedLog, tmp_path: Path) -> None:
    """A compressed set of format 1 around messages of format 0, as an old cleaner wrote them, is one of format 2 then."""
    directory = tmp_path / "old-0"
    directory.mkdir()
    sets = [invalid_set(25, (0, 1, 0, 1)), invalid_set(50, (3, 4))]
    (directory / f"{0:020}.log").write_bytes(b"".join(sets))
    log = CompactedLog(directory)
    before = [row for _, rows in log.batches() for row in rows]
    assert [(row[0], row[3]) for row in before] == [(at, b"%d" % at) for at in (25, 26, 27, 28, 50, 51)]
    log.roll()
    log.clean(offsets=map_of(7))
    found = log.batches()
    assert [header.magic for header, _ in found] == [2, 2]
    assert [(row[0], row[3]) for _, rows in found for row in rows] == [(at, b"%d" % at) for at in (27, 28, 50, 51)]


def invalid_set(first_offset: int, keys: tuple[int, ...]) -> bytes:
    """Messages whose values are their offsets; the wrapper's format is 1, theirs is 0."""
    inner = b"".join(
        encode_message(NewLegacyRecord(at, -1, b"%d" % key, b"%d" % (first_offset + at)), 0) for at, key in enumerate(keys)
    )
    wrapper = NewLegacyRecord(first_offset + len(keys) - 1, -1, None, deflate(GZIP, inner))
    return encode_message(wrapper, 1, GZIP)


def test_clean_tombstone(log: CompactedLog) -> None:
    """A tombstone's age is that since a round has seen it: neither its own timestamp counts, nor that of others."""
    log.set(segment_bytes=1 << 20, message_timestamp_after_max_ms=2 * DAY_MS)

    def put(key: bytes, value: bytes | None, timestamp: int) -> None:
        log.append(new_batch([value], keys=[key], timestamps=[timestamp]))
        log.roll()

    put(b"0", b"0", NOW_MS + DAY_MS + 10_000)
    log.clean(offsets=map_of(7))
    put(b"0", None, NOW_MS - DAY_MS - 10_000)
    log.clean(1, offsets=map_of(7))
    assert log.last_offsets()[0] == 1
    put(b"1", b"1", NOW_MS)
    log.clean(2, offsets=map_of(7))
    assert log.last_offsets()[0] == 1


def test_cleaning_beyond_missing_offsets_single_segment(log: CompactedLog) -> None:
    """Offsets that no record has, before the next segment: the round ends behind them."""
    for at in range(10):
        log.follow(at, at)
    log.roll(11)
    log.follow(1015, 11)
    assert log.clean().end_offset == log.active == 11


def test_cleaning_beyond_missing_offsets_multiple_segments(log: CompactedLog) -> None:
    """The same before two segments."""
    log.set(segment_bytes=1 << 20)
    for first, following in ((0, 15), (15, 30)):
        for at in range(first, first + 10):
            log.follow(at, at)
        log.roll(following)
    log.follow(1015, 30)
    assert log.clean().end_offset == log.active == 30
    assert log.offsets() == [*range(10), *range(15, 25), 30]
