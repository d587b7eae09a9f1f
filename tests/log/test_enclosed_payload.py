"""Protects the rule that the records of a damaged batch enclose their payload: no batch inside of a record comes out as one.

the damaged batch                      what else there is
-------------------------------------  ----------------------------------------------------------------------------
a value or a header's value is a       the batch is the last of the log, or another one follows; the payload has the
  sound batch, with offsets of its      batch's own offsets, the next ones or any others; a value is followed by the
  own                                  number of headers, one zero byte
has a wrong CRC                        the next batch has an impossible length, its payload ends with the file
has a wrong CRC, and its length leads  the next batch of the log, with the same offset as the payload
  to a batch within its payload
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Header, Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

FORGED = b"forged"


def batch(base_offset: int, value: bytes, last_value: bytes, headers: tuple[Header, ...] = ()) -> bytes:
    """Five records; the last one has the last value and the headers."""
    records = [Record(i, i, b"k", value if i < 4 else last_value, headers if i == 4 else ()) for i in range(5)]
    return NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=4,
        base_timestamp=0,
        max_timestamp=4,
        record_count=5,
        records=encode_records(records),
        attributes=0,
        partition_leader_epoch=0,
    ).encode()


def flipped(*bits: tuple[int, int]) -> Callable[[bytearray], None]:
    """Flip bits of a batch's header: (byte, mask)."""

    def damage(header: bytearray) -> None:
        for index, mask in bits:
            header[index] ^= mask

    return damage


def zeroed(start: int, end: int) -> Callable[[bytearray], None]:
    """Zero bytes of a batch's header."""

    def damage(header: bytearray) -> None:
        header[start:end] = bytes(end - start)

    return damage


DAMAGES: dict[str, Callable[[bytearray], None]] = {
    "length a byte less, a producer id that cannot be": flipped((11, 1), (48, 64)),
    "length far behind the end, and the CRC": flipped((9, 32), (17, 1)),
    "length, CRC and the largest timestamp": flipped((10, 16), (17, 1), (40, 1)),
    "length and magic are zeros": zeroed(10, 18),
    "all of the header is zeros": zeroed(0, 61),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_last", [True, False], ids=["at the end", "in the middle"])
@pytest.mark.parametrize("inner_offset", [5, 7, 10, 1000])
@pytest.mark.parametrize("where", ["value", "header"])
def test_no_payload_comes_out_as_a_batch(tmp_path: Path, damage: str, is_last: bool, inner_offset: int, where: str) -> None:
    """Neither where the payload ends with the file, nor where one zero byte follows it, nor before the next batch."""
    before, behind = batch(0, b"v", b"v"), b"" if is_last else batch(10, b"v", b"v")
    inner = batch(inner_offset, FORGED, FORGED)
    outer = batch(5, b"v", inner) if where == "value" else batch(5, b"v", b"v", (Header(b"h", inner),))
    header = bytearray(outer[:61])
    DAMAGES[damage](header)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(before + bytes(header) + outer[61:] + behind)
    with SegmentReader(OsDisk(), str(path)) as reader:
        found = [one.position for one in reader.batches() if isinstance(one, LogBatch) and one.is_valid]
    assert set(found) <= {0, len(before + outer)} and found[0] == 0


@pytest.mark.parametrize("is_last", [True, False], ids=["at the end", "in the middle"])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(
    "bit",
    [(17, 1), (27, 16), (61, 2), (22, 0xFF), (23, 0xF0), (57, 0xA5)],
    ids=["CRC", "timestamp", "records", "attributes", "last offset", "count"],
)
def test_a_damaged_batch_behind_a_lost_one_encloses_its_payload(
    tmp_path: Path, bit: tuple[int, int], is_compressed: bool, is_last: bool
) -> None:
    """Nothing is known of a batch that is all zeros; the search behind it meets a damaged batch before the payload in it."""
    inner, behind = batch(6, FORGED, FORGED), b"" if is_last else batch(11, b"v", b"v")
    lost = bytes(len(batch(0, b"v", b"v")))
    outer = compressed(5, b"?" * 30 + inner) if is_compressed else bytearray(batch(5, b"v", inner))
    flipped(bit)(outer)
    found = read_batches(tmp_path / f"{0:020}.log", lost + outer + behind)
    assert [at for at, is_sound in found if is_sound] == ([] if is_last else [len(lost) + len(outer)])


def compressed(base_offset: int, body: bytes) -> bytearray:
    """A batch of one record whose records no reader without a codec can look into."""
    new = NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=4,
        record_count=1,
        records=body,
        attributes=2,
        partition_leader_epoch=0,
    )
    return bytearray(new.encode())


def read_batches(path: Path, data: bytes) -> list[tuple[int, bool]]:
    """Write a segment and read it -> (byte, is sound) of each of its batches and damaged places."""
    path.write_bytes(data)
    with SegmentReader(OsDisk(), str(path)) as reader:
        return [(one.position, isinstance(one, LogBatch) and one.is_valid) for one in reader.batches()]


@pytest.mark.parametrize("damaged_before", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 11, 70])
def test_a_wrong_length_behind_damaged_batches_hides_payload_at_the_end(
    tmp_path: Path, damaged_before: int, length: int
) -> None:
    """The CRC of the last batch is right up to the file's end; a payload in it is not the batch that has its offset."""
    damaged = [compressed(5 + at, b"any") for at in range(damaged_before)]
    for one in damaged:
        one[17] ^= 1  # of the CRC
    next_offset = 5 + damaged_before
    last = compressed(next_offset, b"stored " + bytes(compressed(next_offset, FORGED)))
    last[8:12] = length.to_bytes(4, "big")
    before = batch(0, b"v", b"v")
    found = read_batches(tmp_path / f"{0:020}.log", before + b"".join(damaged) + last)
    assert [position for position, is_sound in found if is_sound] == [0]


def test_a_wrong_length_that_leads_to_payload_with_the_next_offset_is_not_believed(tmp_path: Path) -> None:
    """A sound batch at the stated end is no proof where another one with the same offset is behind it."""
    before, inner, behind = batch(0, b"v", b"v"), bytes(compressed(6, FORGED)), bytes(compressed(6, b"own"))
    outer = compressed(5, b"stored " + inner + b" rest")
    outer[8:12] = (len(outer) - len(inner) - len(b" rest") - 12).to_bytes(4, "big")
    outer[17] ^= 1
    found = read_batches(tmp_path / f"{0:020}.log", before + outer + behind)
    inner_position = len(before) + outer.find(inner)
    assert (inner_position, True) not in found


def with_fault(outer: bytes, length_bytes: int | None = None) -> bytearray:
    """A batch with one wrong bit in the value of its last record, and another length."""
    damaged = bytearray(outer)
    damaged[-3] ^= 1
    if length_bytes is not None:
        damaged[8:12] = (length_bytes - 12).to_bytes(4, "big", signed=True)
    return damaged


def test_the_last_batch_behind_a_damaged_one_and_a_gap_is_kept(tmp_path: Path) -> None:
    """A cleaner took offsets 10 to 13. The records of the damaged batch end where its length says: that is no payload."""
    before, behind = batch(0, b"v", b"v"), batch(14, b"v", b"v")
    damaged = with_fault(batch(5, b"v", b"last value"))
    found = read_batches(tmp_path / f"{0:020}.log", before + damaged + behind)
    assert found == [(0, True), (len(before), False), (len(before + damaged), True)]


@pytest.mark.parametrize("length_bytes", [None, 1 << 20, 70, 0], ids=["right", "beyond the end", "into a record", "none"])
def test_the_records_lengths_show_where_a_damaged_batch_ends(tmp_path: Path, length_bytes: int | None) -> None:
    """Also where the stated length leads nowhere, and no index tells of the batch behind."""
    before, behind = batch(0, b"v", b"v"), batch(10, b"v", b"v")
    damaged = with_fault(batch(5, b"v", b"last value"), length_bytes)
    found = read_batches(tmp_path / f"{0:020}.log", before + damaged + behind)
    assert [at for at, is_sound in found if is_sound] == [0, len(before + damaged)]


def test_a_length_that_leads_into_the_next_batch_is_not_believed(tmp_path: Path) -> None:
    """It leads to payload with the next offset that ends with the file; but the batch around it has that offset too."""
    before = batch(0, b"v", b"v")
    inner = batch(10, FORGED, FORGED)
    # The forged batch is the value of the last record: its number of headers, zero, is behind it.
    behind = batch(10, b"v", inner)
    outer = batch(5, b"v", b"last value")
    damaged = with_fault(outer, len(outer) + behind.find(inner))
    found = read_batches(tmp_path / f"{0:020}.log", before + damaged + behind)
    assert [at for at, is_sound in found if is_sound] == [0, len(before + outer)]


def test_a_length_that_leads_into_the_next_batch_is_not_believed_of_compressed_records_either(tmp_path: Path) -> None:
    """The forged batch ends with the batch that it is in, and another one follows: only what is around it shows what it is."""
    before, inner = batch(0, b"v", b"v"), batch(6, FORGED, FORGED)
    behind, last = compressed(6, b"stored " + inner), compressed(11, b"any")
    outer = compressed(5, b"any")
    damaged = bytearray(outer)
    damaged[-1] ^= 1
    damaged[8:12] = (len(outer) + behind.find(inner) - 12).to_bytes(4, "big")
    found = read_batches(tmp_path / f"{0:020}.log", before + damaged + behind + last)
    starts = [len(before + outer), len(before + outer + behind)]
    assert [at for at, is_sound in found if is_sound] == [0, *starts]


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("tail", [b"", b" rest"])
def test_a_length_that_ends_within_payload_leads_to_none(tmp_path: Path, is_last: bool, tail: bytes) -> None:
    """The payload is a sound batch with the next offset around the stated end; the CRC shows where the batch ends."""
    before, inner = batch(0, b"v", b"v"), bytes(compressed(6, FORGED))
    outer = compressed(5, b"stored " + inner + tail)
    outer[8:12] = (outer.find(inner) + 20 - 12).to_bytes(4, "big")
    behind = b"" if is_last else bytes(compressed(6, b"own"))
    found = read_batches(tmp_path / f"{0:020}.log", before + outer + behind)
    assert [at for at, is_sound in found if is_sound] == [0, *([] if is_last else [len(before + outer)])]


def test_a_length_that_leads_into_the_own_records_is_not_believed(tmp_path: Path) -> None:
    """It leads to payload with the next offset that ends with its record; a cleaner took the batch with that offset."""
    before, inner, behind = batch(0, b"v", b"v"), batch(10, FORGED, FORGED), batch(15, b"v", b"v")
    outer = batch(5, b"a value", b"v", (Header(b"h", inner),))
    damaged = bytearray(outer)
    damaged[outer.find(b"a value")] ^= 1
    damaged[8:12] = (outer.find(inner) - 12).to_bytes(4, "big")
    found = read_batches(tmp_path / f"{0:020}.log", before + damaged + behind)
    assert [at for at, is_sound in found if is_sound] == [0, len(before + outer)]


TWO_WRONG_BITS: dict[str, tuple[tuple[int, int], ...]] = {
    "base offset, record count": ((5, 2), (58, 4)),
    "base offset, timestamp": ((7, 1), (33, 64)),
    "base offset, last offset delta": ((7, 8), (25, 2)),
    "length, last offset delta": ((9, 128), (25, 2)),
    "length, codec": ((9, 128), (22, 2)),
    "length negative, CRC": ((8, 128), (17, 1)),
    "length negative, timestamp": ((8, 128), (27, 1)),
}


@pytest.mark.parametrize("bits", TWO_WRONG_BITS)
@pytest.mark.parametrize("behind", [1, 3])
def test_two_wrong_bits_of_a_header_hide_no_batch_behind_it(tmp_path: Path, bits: str, behind: int) -> None:
    """There is no index. The records' lengths, or the stated length and what follows it, show where the batch ends."""
    before, outer = batch(0, b"v", b"v"), bytearray(batch(5, b"v", b"v"))
    flipped(*TWO_WRONG_BITS[bits])(outer)
    others = [batch(10 + 5 * at, b"v", b"v") for at in range(behind)]
    found = read_batches(tmp_path / f"{0:020}.log", before + outer + b"".join(others))
    starts = [len(before + outer) + sum(map(len, others[:at])) for at in range(behind)]
    assert [at for at, is_sound in found if is_sound] == [0, *starts]


@pytest.mark.parametrize("bits", ["base offset, record count", "base offset, timestamp"])
def test_two_wrong_bits_of_a_compressed_batch_hide_no_batch_behind_it(tmp_path: Path, bits: str) -> None:
    """Its stated length leads to a sound batch that would have the next offset but for one bit."""
    before, outer = batch(0, b"v", b"v"), compressed(5, b"any")
    flipped(*TWO_WRONG_BITS[bits])(outer)
    others = [bytes(compressed(6, b"any")), bytes(compressed(7, b"any"))]
    found = read_batches(tmp_path / f"{0:020}.log", before + outer + b"".join(others))
    starts = [len(before + outer), len(before + outer + others[0])]
    assert [at for at, is_sound in found if is_sound] == [0, *starts]


@pytest.mark.parametrize("is_last", [True, False], ids=["at the end", "in the middle"])
def test_a_length_with_one_wrong_bit_leads_to_the_next_batch_though_a_record_is_damaged_too(
    tmp_path: Path, is_last: bool
) -> None:
    """No CRC and no record shows the end; the payload ends where the batch does."""
    before, outer, behind = batch(0, b"v", b"v"), compressed(5, b"?" * 30 + batch(7, FORGED, FORGED)), batch(6, b"v", b"v")
    outer[8] ^= 0x80
    outer[61] ^= 0x02
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(before + outer + (b"" if is_last else behind))
    with SegmentReader(OsDisk(), str(path)) as reader:
        found = [one.position for one in reader.batches() if isinstance(one, LogBatch) and one.is_valid]
    assert found == [0] + ([] if is_last else [len(before) + len(outer)])


def test_records_that_reach_over_the_stated_end_do_not_hide_the_next_batch(tmp_path: Path) -> None:
    """The stated end is four bytes before the next batch, and the first record's length goes beyond it."""
    before, outer, behind = batch(0, b"v", b"v"), bytearray(batch(5, b"v" * 200, b"v")), batch(10, b"v" * 200, b"v")
    outer[11] ^= 0x04
    outer[62] ^= 0x10
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(before + outer + behind)
    with SegmentReader(OsDisk(), str(path)) as reader:
        found = [one.position for one in reader.batches() if isinstance(one, LogBatch) and one.is_valid]
    assert found == [0, len(before) + len(outer)]
