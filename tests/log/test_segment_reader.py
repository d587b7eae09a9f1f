"""Protects the walk over a segment: every byte is told of once, as a batch or as damage, and behind damage it goes on at the
next sound batch. Judged by how the file was made, whatever is cut off, flipped, or claimed."""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.primitives import CorruptRecordError, RecordTooLargeError, crc32c
from kcli.format.record_batch import CRC_START, HEADER_BYTES, NewRecordBatch, RecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.log.reading.segment_reader import (
    BAD_MAGIC,
    BAD_SIZE,
    SHORT_HEADER,
    TRUNCATED,
    ZEROS,
    Damage,
    LogBatch,
    SegmentReader,
)
from tests.format.damaged_bytes import damaged
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set


def batch(offset: int, value: bytes = b"value") -> bytes:
    return NewRecordBatch(offset, 0, 10, 10, 1, encode_records([Record(0, 0, b"key", value)])).encode()


def message(offset: int, magic: int = 1) -> bytes:
    return encode_message_set([NewLegacyRecord(offset, 10, b"key", b"value")], magic=magic, codec=offset % 2)


class Told(NamedTuple):
    """What the reader told of: batches as (position, base offset, is valid), damage as (kind, position, end)."""

    batches: list[tuple[int, int, bool]]
    damage: list[tuple[str, int, int]]


def walk(data: bytes | Path, position: int = 0, *, end: int | None = None, **how: bool) -> Told:
    """Read it all, and hold what is told of each batch against the bytes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.log") if isinstance(data, bytes) else data
        if isinstance(data, bytes):
            path.write_bytes(data)
        told = Told([], [])
        with SegmentReader(OsDisk(), str(path), end=end) as reader:
            for found in reader.batches(position, **how):
                if isinstance(found, Damage):
                    assert found.message
                    told.damage.append((found.kind, found.position, found.end_position))
                else:
                    check_bytes(found, path)
                    told.batches.append((found.position, found.header.base_offset, found.is_valid))
        return told


def check_bytes(found: LogBatch, path: Path) -> None:
    whole = path.read_bytes()[found.position : found.end_position]
    assert found.read_whole() == whole and b"".join(map(bytes, found.payload_chunks(5))) == whole[5:]
    if found.data is not None:
        assert bytes(found.data) == whole
    if isinstance(found.header, RecordBatch) and len(whole) >= HEADER_BYTES:
        assert found.computed_crc == crc32c(whole[CRC_START:])


ENTRIES = [batch(0), message(1), batch(2, bytes(300)), message(3, 0), message(4), batch(5), batch(6)]
STARTS = [0, *accumulate(map(len, ENTRIES))]
LOG = b"".join(ENTRIES)


def test_sound_logs() -> None:
    """Batches of every format, each where it lies; from any batch on; up to any end."""
    expected = [(start, offset, True) for offset, start in enumerate(STARTS[:-1])]
    assert walk(LOG) == Told(expected, [])
    for index, start in enumerate(STARTS):
        assert walk(LOG, start) == Told(expected[index:], [])
        assert walk(LOG, end=start) == Told(expected[:index], [])
    assert walk(b"") == Told([], [])


def test_every_truncation() -> None:
    """Whole batches, then the torn one as damage to the end of the file; byte by byte."""
    for size in range(len(LOG)):
        told = walk(LOG[:size])
        whole = sum(start <= size for start in STARTS) - 1
        assert [offset for _, offset, _ in told.batches] == list(range(whole))
        torn = [] if size == STARTS[whole] else [(TRUNCATED, STARTS[whole], size)]
        if torn and not any(LOG[STARTS[whole] : size]):
            torn = [(ZEROS, STARTS[whole], size)]
        assert told.damage == torn


KINDS = {
    "magic 3": (16, b"\x03", BAD_MAGIC),
    "magic -1": (16, b"\xff", BAD_MAGIC),
    "size 13": (8, (13).to_bytes(4, "big"), BAD_SIZE),
    "size 0": (8, bytes(4), BAD_SIZE),
    "size -1": (8, b"\xff" * 4, BAD_SIZE),
    "size 48": (8, (48).to_bytes(4, "big"), SHORT_HEADER),
    "size of 2 GB": (8, (2**31 - 1).to_bytes(4, "big"), TRUNCATED),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", [0, 2, 5])
def test_each_kind_of_damage(kind: str, victim: int) -> None:
    """It has its name and its place; the reader goes on at the batch behind it, or ends there where it is told to."""
    at, replacement, expected = KINDS[kind]
    data = bytearray(LOG)
    data[STARTS[victim] + at : STARTS[victim] + at + len(replacement)] = replacement
    told = walk(bytes(data))
    # Messages of format 0 and 1 are looked for only behind one of them, and in the beginning of a file.
    goes_on = next(
        index
        for index in range(victim + 1, len(ENTRIES))
        if ENTRIES[index][16] == 2 or victim == 0 or ENTRIES[victim - 1][16] < 2
    )
    assert told.damage == [(expected, STARTS[victim], STARTS[goes_on])]
    assert [offset for _, offset, _ in told.batches] == [*range(victim), *range(goes_on, len(ENTRIES))]
    stopped = walk(bytes(data), resynchronise=False)
    assert [offset for _, offset, _ in stopped.batches] == list(range(victim)) and len(stopped.damage) == 1


def test_a_wrong_crc_is_no_damage_of_the_walk() -> None:
    """The batch is told of as it is, with what its CRC should be."""
    data = bytearray(LOG)
    data[STARTS[2] + 70] ^= 1
    told = walk(bytes(data))
    assert [valid for *_, valid in told.batches] == [index != 2 for index in range(len(ENTRIES))] and not told.damage


def test_a_length_that_leads_past_a_sound_batch() -> None:
    """Its CRC is right for another length, so it is known where it ends: the batches that the length lies over are found."""
    data = bytearray(batch(0) + batch(1) + batch(2) + batch(3))
    size = len(batch(0))
    data[8:12] = (2 * size - 12 + 30).to_bytes(4, "big")
    told = walk(bytes(data))
    assert told == Told([(index * size, index, True) for index in (1, 2, 3)], [(BAD_SIZE, 0, size)])
    data[8:12] = (3 * size - 12).to_bytes(4, "big")  # to a sound batch: the two between are not hidden
    assert walk(bytes(data)) == told


@pytest.mark.parametrize("zeros", [1, 11, 12, 17, 100, 5_000_000])
def test_zeros_at_the_end(zeros: int) -> None:
    """Preallocated bytes are told as one stretch, however many they are."""
    assert walk(LOG + bytes(zeros)).damage == [(ZEROS, len(LOG), len(LOG) + zeros)]
    behind = walk(LOG + bytes(zeros) + batch(9))
    assert behind.batches[-1] == (len(LOG) + zeros, 9, True) and len(behind.damage) == 1


@pytest.mark.parametrize("how", [{}, {"resynchronise": False}, {"lenient": True}])
@given(data=damaged(st.just(LOG)) | st.binary(max_size=400) | damaged(st.just(LOG + bytes(40) + LOG)))
@settings(max_examples=150)
def test_any_bytes(how: dict[str, bool], data: bytes) -> None:
    """Nothing is raised; what is told lies in the file; no damage hides a batch that the rest of the file shows to be one."""
    told = walk(data, **how)
    places = sorted([(at, at) for at, *_ in told.batches] + [(at, end) for _, at, end in told.damage])
    assert all(0 <= at <= len(data) and end <= len(data) for at, end in places)
    if how:
        return
    passed = {at for at, _, valid in told.batches if valid}
    unsound = [at for at, _, valid in told.batches if not valid] + [at for _, at, _ in told.damage]
    for at in range(len(data)):
        floor = next((offset + 1 for start, offset, valid in reversed(told.batches) if valid and start < at), 0)
        if at not in passed and leads_to_the_end(data, at, floor):
            assert any(start < at < stated_end(data, start) for start in unsound), "behind what the damaged batch states"


def leads_to_the_end(data: bytes, at: int, floor: int) -> bool:
    """True where nothing but whole batches with rising offsets from `floor` on follows from byte `at` to the end."""
    while at < len(data):
        offset = next((offset for offset in (0, 5, 6) if data.startswith(ENTRIES[offset], at)), None)
        if offset is None or offset < floor:
            return False
        at += len(ENTRIES[offset])
        floor = offset + 1
    return True


def stated_end(data: bytes, at: int) -> int:
    """Where an entry says that it ends; the file's end where that cannot be, or where the next offset does not follow there.

    The entry's start where it is none.
    """
    if len(data) < at + 17 or data[at + 16] > 2:
        return at
    size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if not 14 <= size <= len(data) - at - 12:
        return len(data)
    end = at + 12 + size
    base, delta = (int.from_bytes(data[at + start : at + start + width], "big") for start, width in ((0, 8), (23, 4)))
    follows = int.from_bytes(data[end : end + 8], "big") == base + (delta if data[at + 16] == 2 else 0) + 1
    return end if follows or end == len(data) else len(data)


def test_lenient_reads_as_kafka() -> None:
    """An unknown magic is taken by its size, as format 2 or 1. The CRC of format 2 does not cover it."""
    data = bytearray(batch(0) + batch(1) + batch(2))
    size = len(batch(0))
    data[size + 16] = 9
    told = walk(bytes(data), lenient=True)
    assert told == Told([(0, 0, True), (size, 1, True), (2 * size, 2, True)], [])


@pytest.mark.parametrize("codec", [0, 2])
def test_large_batches_are_not_held(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit: the same CRC and the same bytes, in pieces, of any format."""
    monkeypatch.setattr(limits, "STREAMED_BATCH_BYTES", 100)
    monkeypatch.setattr(limits, "READ_CHUNK_BYTES", 128)
    wrapped = encode_message_set([NewLegacyRecord(1, 10, None, bytes(range(256)) * 3)], magic=1, codec=codec)
    data = batch(0, bytes(range(256)) * 4) + wrapped + batch(2) + batch(3, bytes(1000))
    assert [row[1:] for row in walk(data).batches] == [(offset, True) for offset in range(4)]
    flipped = bytearray(data)
    flipped[500] ^= 1
    assert [row[1:] for row in walk(bytes(flipped)).batches] == [(offset, offset != 0) for offset in range(4)]


def test_a_large_batch_is_held_only_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants it whole is refused above that limit, and told where the file has shrunk."""
    monkeypatch.setattr(limits, "STREAMED_BATCH_BYTES", 100)
    path = tmp_path / "a.log"
    path.write_bytes(batch(0, bytes(1000)))
    with SegmentReader(OsDisk(), str(path)) as reader:
        found = next(reader.batches())
        assert isinstance(found, LogBatch) and found.data is None
        monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 500)
        with pytest.raises(RecordTooLargeError, match="larger than is held"):
            found.read_whole()
        monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 5000)
        with open(path, "r+b") as file:
            file.truncate(70)
        with pytest.raises(CorruptRecordError, match="shrank"):
            found.read_whole()
        with pytest.raises(CorruptRecordError, match="shrank"):
            list(found.payload_chunks())


def test_one_entry_at_a_place(tmp_path: Path) -> None:
    """By its header alone, or as a batch; what does not fit is refused with its place."""
    path = tmp_path / "a.log"
    path.write_bytes(LOG + LOG[:40])
    with SegmentReader(OsDisk(), str(path)) as reader:
        for offset, start in enumerate(STARTS[:-1]):
            header, found = reader.header_at(start), reader.batch_at(start)
            assert isinstance(found, LogBatch) and found.header == header and header.base_offset == offset
            assert isinstance(header, LegacyBatch if ENTRIES[offset][16] < 2 else RecordBatch)
            with pytest.raises(CorruptRecordError):
                reader.header_at(start, start + len(ENTRIES[offset]) - 1)
        torn = reader.batch_at(len(LOG))
        assert isinstance(torn, Damage) and torn.kind == TRUNCATED
        assert reader.batch_at(len(LOG) + 40) is None
        for place in (len(LOG), len(LOG) + 30, len(LOG) + 40, 10**9, -1):
            with pytest.raises(CorruptRecordError):
                reader.header_at(place)


def test_bytes_at_hand(tmp_path: Path) -> None:
    """A buffer from any byte on, filled as far as it is; fresh where that is asked."""
    path = tmp_path / "a.log"
    path.write_bytes(LOG)
    with SegmentReader(OsDisk(), str(path)) as reader:
        for position in (0, 100, len(LOG) - 1):
            buffer, start, end = reader.buffered(position)
            assert bytes(buffer[start:end]) == LOG[position:]
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"changed")
        buffer, start, end = reader.buffered(100, fresh=True)
        assert bytes(buffer[start : start + 7]) == b"changed"


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    """Cut within the batch that comes next, between two batches, or to nothing: damage, and the end."""
    for size in (0, 30, len(ENTRIES[0]) * 2, len(ENTRIES[0]) * 2 + 20):
        path = tmp_path / "a.log"
        path.write_bytes(batch(0) * 100_000)

        class Cut(OsFile):
            def read_into(self, position: int, buffer: memoryview) -> int:
                count = super().read_into(position, buffer)
                with open(self.name, "r+b") as file:
                    file.truncate(size)  # noqa: B023 - used before the next round
                return count

        class CuttingDisk(OsDisk):
            def open_file(self, name: str) -> OsFile:
                return Cut(name)

        with SegmentReader(CuttingDisk(), str(path)) as reader:
            found = list(reader.batches())
        assert isinstance(found[-1], Damage) and "shrank" in found[-1].message
        assert all(isinstance(one, LogBatch) for one in found[:-1]) and len(found) > 1


def test_a_message_too_short_for_its_format() -> None:
    """A message of format 1 without room for its timestamp is damage, and the next one is found."""
    short = bytearray(encode_message(NewLegacyRecord(0, 10, None, None), 0))
    short[16] = 1
    told = walk(bytes(short) + message(1))
    assert told.damage == [(SHORT_HEADER, 0, len(short))] and [row[1:] for row in told.batches] == [(1, True)]
