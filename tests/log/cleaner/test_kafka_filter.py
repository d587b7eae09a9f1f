"""Protects how a round writes a batch anew: MemoryRecordsTest of Kafka, as far as it filters, each test by its name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where. Records without a key are those that go: such came
before the topic was compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kcli.format.record_batch import HEADER_BYTES, LOG_APPEND_TIME_FLAG, TRANSACTIONAL_FLAG
from kcli.format.records import Header
from kcli.log.log_config import DAY_MS
from tests.log.cleaner.logs import CompactedLog, PretendedMap, Row
from tests.log.live_logs import NOW_MS, marker, new_batch
from tests.message_sets import NewLegacyRecord, encode_message_set

CODECS = range(5)
LEGACY_CODECS = range(4)  # zstd came with format 2

Given = tuple[int | None, str | None, str | None]  # timestamp, key, value


def batch_of(rows: Sequence[Given], **facts: Any) -> memoryview:
    """A batch of these records."""
    return new_batch(
        [None if value is None else value.encode() for _, _, value in rows],
        keys=[None if key is None else key.encode() for _, key, _ in rows],
        timestamps=[timestamp or 0 for timestamp, _, _ in rows],
        **facts,
    )


def with_offsets(rows: Sequence[Row]) -> list[tuple[int, int, str, str]]:
    """Records as they are read: offset, timestamp, key, value."""
    return [(offset, timestamp, (key or b"").decode(), (value or b"").decode()) for offset, timestamp, key, value in rows]


class Filtered:
    """A log of batches with their offsets, cleaned: its first segment."""

    def __init__(self, directory: Path, *batches: memoryview, gone: Sequence[int] = ()) -> None:
        self.log = CompactedLog(directory, cleanup_policy=frozenset(("delete",)), segment_bytes=1 << 20, retention_ms=-1)
        for batch in batches:
            self.log.log.append_as_follower(batch, NOW_MS)
        self.log.log.update_high_watermark(self.log.log.log_end_offset)
        # The last batch that a round may clean stays in any case: it must not be one of these.
        self.log.put(10**6, 1)
        self.log.roll()
        self.done = self.log.clean(offsets=PretendedMap(gone))
        self.found = [(header, rows) for header, rows in self.log.batches() if header.last_offset < self.log.active - 1]


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_preserves_partition_leader_epoch(codec: int, tmp_path: Path) -> None:
    rows: list[Given] = [(10, None, "a"), (11, "1", "b"), (12, None, "c")]
    ((header, _),) = Filtered(tmp_path / "t-0", batch_of(rows, codec=codec, leader_epoch=67)).found
    assert header.partition_leader_epoch == 67


@pytest.mark.parametrize("magic", (0, 1))
def test_filter_to_preserves_partition_leader_epoch_of_formats_without(magic: int, tmp_path: Path) -> None:
    ((header, _),) = legacy(tmp_path, magic, 0, [(0, 10, None, "a"), (1, 11, "1", "b")])
    assert header.partition_leader_epoch == -1


@pytest.mark.parametrize("is_transactional", (False, True))
@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_empty_batch_retention(codec: int, is_transactional: bool, tmp_path: Path) -> None:
    """A header of no records: no codec any more, all else as it was."""
    batch = batch_of(
        [(11, "2", "b"), (12, "3", "c")],
        codec=codec,
        attributes=TRANSACTIONAL_FLAG if is_transactional else 0,
        producer=(23, 5, 10),
        base_offset=3,
        leader_epoch=293,
    )
    ((header, rows),) = Filtered(tmp_path / "t-0", batch, gone=(2, 3)).found
    assert (header.record_count, rows, header.size_bytes, header.codec) == (0, [], HEADER_BYTES, 0)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (3, 4, 12)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (23, 5, 10)
    assert (header.is_transactional, header.is_log_append_time, header.is_control) == (is_transactional, False, False)
    assert (header.partition_leader_epoch, header.delete_horizon_ms) == (293, None)


def test_empty_batch_retention(tmp_path: Path) -> None:
    """A header of no records, still the last of its producer, is the same a round later."""
    batch = batch_of([(11, "2", "b")], producer=(23, 5, 10), base_offset=3, leader_epoch=293)
    filtered = Filtered(tmp_path / "t-0", batch, gone=(2,))
    before = filtered.log.batches()
    assert before[0][1] == []
    done = filtered.log.clean()
    assert filtered.log.batches() == before
    assert done.stats.records_read == done.stats.records_kept == 1


def test_empty_batch_deletion(tmp_path: Path) -> None:
    """It goes once its producer has written again."""
    first = batch_of([(11, "2", "b")], producer=(23, 5, 10), base_offset=3)
    filtered = Filtered(tmp_path / "t-0", first, gone=(2,))
    filtered.log.append(batch_of([(NOW_MS, "4", "d")], producer=(23, 5, 11)))
    filtered.log.roll()
    filtered.log.clean()
    assert all(rows for _, rows in filtered.log.batches())


@pytest.mark.parametrize("codec", CODECS)
def test_base_timestamp_to_delete_horizon_conversion(codec: int, tmp_path: Path) -> None:
    """The base timestamp is the horizon then; those of the records are what they were, though that be before it."""
    rows: list[Given] = [(5, "0", "0"), (10, "1", None), (15, "2", "2")]
    ((header, found),) = Filtered(tmp_path / "t-0", batch_of(rows, codec=codec)).found
    assert header.delete_horizon_ms == header.base_timestamp == NOW_MS + DAY_MS
    assert [row[1] for row in found] == [5, 10, 15]
    assert header.codec == codec


def legacy(tmp_path: Path, magic: int, codec: int, *sets: list[tuple[int, int, str | None, str | None]]) -> list[Any]:
    """What a round leaves of message sets of format 0 or 1; records are offset, timestamp, key, value."""
    directory = tmp_path / "t-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(
        b"".join(
            encode_message_set(
                [
                    NewLegacyRecord(offset, timestamp, key and key.encode(), value and value.encode())  # type: ignore[arg-type]
                    for offset, timestamp, key, value in rows
                ],
                magic=magic,
                codec=codec,
            )
            for rows in sets
        )
    )
    return Filtered(directory).found


BATCHES: list[list[Given]] = [
    [(10, None, "a")],
    [(11, "1", "b"), (12, None, "c")],
    [(13, None, "d"), (20, "4", "e"), (15, "5", "f")],
    [(16, "6", "g")],
]
BASES = (0, 1, 3, 6)


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to(codec: int, tmp_path: Path) -> None:
    """A batch goes, two lose records, one is as it was: bounds, greatest timestamps and records."""
    batches = [batch_of(rows, codec=codec, base_offset=base) for rows, base in zip(BATCHES, BASES, strict=True)]
    whole = bytes(batches[3])
    filtered = Filtered(tmp_path / "t-0", *batches)
    counts = filtered.done.stats
    assert (counts.records_read, counts.records_kept, counts.without_key) == (8, 5, 3)
    assert counts.bytes_kept == filtered.log.log.size_bytes
    headers = [header for header, _ in filtered.found]
    assert [(one.base_offset, one.last_offset, one.max_timestamp) for one in headers] == [(1, 2, 11), (3, 5, 20), (6, 6, 16)]
    assert {one.codec for one in headers} == {codec}
    rows = [row for _, rows in filtered.found for row in rows]
    assert with_offsets(rows) == [(1, 11, "1", "b"), (4, 20, "4", "e"), (5, 15, "5", "f"), (6, 16, "6", "g")]
    assert whole in (filtered.log.directory / f"{0:020}.log").read_bytes()


@pytest.mark.parametrize("magic", (0, 1))
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_filter_to_of_formats_0_and_1(codec: int, magic: int, tmp_path: Path) -> None:
    """They become format 2, which Kafka's test of the filter alone does not ask for: its cleaner does."""
    sets = [
        [(base + at, timestamp or 0, key, value) for at, (timestamp, key, value) in enumerate(rows)]
        for rows, base in zip(BATCHES, BASES, strict=True)
    ]
    found = legacy(tmp_path, magic, codec, *sets)
    bounds = [(1, 1), (4, 5), (6, 6)] if codec else [(1, 1), (4, 4), (5, 5), (6, 6)]
    assert [(header.base_offset, header.last_offset) for header, _ in found] == bounds
    assert {(header.magic, header.codec) for header, _ in found} == {(2, codec)}
    stamps = (11, 20, 15, 16) if magic else (-1,) * 4
    expected = zip((1, 4, 5, 6), stamps, ("1", "4", "5", "6"), ("b", "e", "f", "g"), strict=True)
    assert with_offsets([row for _, rows in found for row in rows]) == list(expected)


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_batch_discard(codec: int, tmp_path: Path) -> None:
    """Whole batches go, the others stay, bytes and all: here the second and the fourth were aborted."""
    rows: list[list[Given]] = [
        [(10, "1", "a")],
        [(11, "2", "b"), (12, "3", "c")],
        [(13, "4", "d"), (20, "5", "e"), (15, "6", "f")],
        [(16, "7", "g")],
    ]
    log = CompactedLog(tmp_path / "t-0", segment_bytes=1 << 20)
    kept = []
    for number, told_rows in enumerate(rows):
        is_aborted = number in (1, 3)
        producer = (7, 0, number) if is_aborted else None
        batch = batch_of(
            told_rows, codec=codec, base_offset=BASES[number], producer=producer, attributes=16 if is_aborted else 0
        )
        kept += [] if is_aborted else [bytes(batch)]
        log.log.append_as_follower(batch, NOW_MS)
    log.live.append(marker(7, abort=True))
    log.append(batch_of([(NOW_MS, "7", "h")], producer=(7, 0, 4)))
    log.roll()
    log.clean()
    assert [header.last_offset for header, _ in log.batches()] == [0, 5, 7, 8]
    assert (log.directory / f"{0:020}.log").read_bytes().startswith(b"".join(kept))


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_already_compacted_log(codec: int, tmp_path: Path) -> None:
    """A batch that a round has thinned already is thinned again, within the bounds that it began with."""
    rows: list[Given] = [(10 + at, "9" if at not in (5, 8, 10) else str(at), "x") for at in range(11)]
    filtered = Filtered(tmp_path / "t-0", batch_of(rows, codec=codec), gone=(9,))
    assert [row[0] for row in filtered.found[0][1]] == [5, 8, 10]
    filtered.log.clean(offsets=PretendedMap((5, 10)))
    (header, found), *_ = filtered.log.batches()
    assert with_offsets(found) == [(8, 18, "8", "x")]
    assert (header.base_offset, header.last_offset, header.codec) == (0, 10, codec)


@pytest.mark.parametrize("magic", (0, 1))
@pytest.mark.parametrize("codec", range(1, 4))
def test_filter_to_already_compacted_log_of_formats_0_and_1(codec: int, magic: int, tmp_path: Path) -> None:
    """A set with gaps, as old cleaners left them; the batch that it becomes begins with its first record."""
    ((header, rows),) = legacy(tmp_path, magic, codec, [(5, 10, None, "a"), (8, 11, "1", "b"), (10, 12, None, "c")])
    assert with_offsets(rows) == [(8, 11 if magic else -1, "1", "b")]
    assert (header.base_offset, header.last_offset) == (8, 8)


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_preserves_producer_info(codec: int, tmp_path: Path) -> None:
    """No producer, an idempotent one, one with a transaction: id, epoch, sequences and flag stay."""
    plain = batch_of([(10, None, "a"), (11, "1", "b"), (12, None, "c")], codec=codec)
    idempotent = batch_of([(13, None, "d"), (14, "4", "e"), (15, "5", "f")], codec=codec, base_offset=3, producer=(23, 5, 10))
    transactional = batch_of(
        [(16, "6", "g"), (17, "7", "h"), (18, None, "i")],
        codec=codec,
        base_offset=6,
        producer=(99384, 234, 15),
        attributes=TRANSACTIONAL_FLAG,
    )
    found = Filtered(tmp_path / "t-0", plain, idempotent, transactional).found
    assert [
        (one.record_count, one.base_offset, one.last_offset, one.producer_id, one.producer_epoch, one.base_sequence)
        for one, _ in found
    ] == [(1, 0, 2, -1, -1, -1), (2, 3, 5, 23, 5, 10), (2, 6, 8, 99384, 234, 15)]
    assert [one.is_transactional for one, _ in found] == [False, False, True]
    assert with_offsets([row for _, rows in found for row in rows]) == [
        (1, 11, "1", "b"),
        (4, 14, "4", "e"),
        (5, 15, "5", "f"),
        (6, 16, "6", "g"),
        (7, 17, "7", "h"),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_preserves_log_append_time(codec: int, tmp_path: Path) -> None:
    """Batches whose timestamp the broker gave keep it, whatever their records say, and though a horizon is set."""
    batches = [
        batch_of(rows, codec=codec, base_offset=base, attributes=LOG_APPEND_TIME_FLAG, max_timestamp=NOW_MS - 5)
        for rows, base in zip([*BATCHES[:3], [(16, "6", None)]], BASES, strict=True)
    ]
    found = Filtered(tmp_path / "t-0", *batches).found
    assert [header.is_log_append_time for header, _ in found] == [True] * 3
    assert [header.max_timestamp for header, _ in found] == [NOW_MS - 5] * 3
    assert [header.delete_horizon_ms for header, _ in found] == [None, None, NOW_MS + DAY_MS]


@pytest.mark.parametrize("codec", CODECS)
def test_filter_to_with_undersized_buffer(codec: int, tmp_path: Path) -> None:
    """Nothing is lost if a batch is larger than a window of records."""
    rows: list[Given] = [(10, None if at % 3 == 0 else f"k{at}", "x" * 50) for at in range(10_000)]
    headers = (Header(b"h", b"1"),)
    ((_, found),) = Filtered(tmp_path / "t-0", batch_of(rows, codec=codec, headers=headers)).found
    assert with_offsets(found) == [(at, 10, f"k{at}", "x" * 50) for at in range(10_000) if at % 3]
