"""Protects sound records from what is wrong beside them: of all damages that explain a directory a repair takes the cheapest.

A wrong base offset or leader epoch, which no CRC covers, and files that are no segments cost themselves, never the sound
batches next to them; and what contradicts a wrong header is not rebuilt from it.
"""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import pytest

from kcli.format.compression import deflate
from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.inspect.repairing.repair import CLEAN
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading import explanation
from kcli.log.reading.explanation import (
    BIT,
    BYTE,
    FIELD,
    Batch,
    Batches,
    LogWitnesses,
    OffsetExplanation,
    SegmentWitnesses,
    difference,
)
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.damage.layout import patch
from tests.fuzz import outputs
from tests.fuzz.outputs import dumped_json, spark_rows
from tests.inspect.repaired import holes, repair, segments
from tests.inspect.verified import batch, codes, entry, partition, root_files, verify

TENS = range(0, 150, 10)


def sound(path: Path, name: str = "") -> dict[str, bytes]:
    """The files of a partition's directory whose names end so."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name.endswith(name)}


def ten(offset: int) -> bytes:
    """A batch of ten records."""
    return batch(offset, 10).encode()


@pytest.mark.parametrize(
    ("stated", "right", "cost"),
    [(5, 5, 0), (5, 4, BIT), (5, 6, BYTE), (0x0500, 0xFE00, BYTE), (0x05FF, 0x0600, FIELD), (-1 << 63, 0, BIT)],
)
def test_the_cost_of_a_field_is_that_of_its_bits_and_bytes(stated: int, right: int, cost: int) -> None:
    assert difference(stated, right) == cost


@pytest.mark.parametrize("mask", [4, 1 << 26, 3 << 24, 0x5A << 32, 0x0102030405060700])
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_last_batch_gets_the_offset_that_other_files_name(tmp_path: Path, mask: int, is_clean: bool) -> None:
    """The index has it at that byte. Neither the indexes nor the leader epochs are made again from the wrong header."""
    path = partition(tmp_path, "t-0", [batch(offset, 10) for offset in TENS])
    root_files(tmp_path, clean=is_clean, recovery_point={"t-0": 150 if is_clean else 0}, replication={"t-0": 120})
    before = sound(path)
    patch(path / f"{0:020d}.log", sum(len(ten(offset)) for offset in TENS[:-1]), struct.pack(">q", 140 ^ mask))
    plan, _ = repair(tmp_path)
    assert sound(path) == {**before, **sound(path, ".snapshot")}
    assert (plan.log_end_offset, holes(plan), codes(verify(tmp_path)) & {"index-mismatch", "offset-hole"}) == (150, [], set())


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("mask", [1, 0x5A])
@pytest.mark.parametrize("where", ["the only batch", "the last batch"])
def test_a_batch_that_fills_its_segment_keeps_it(tmp_path: Path, at: int, mask: int, where: str) -> None:
    """One byte of its offset is wrong, and the next segment's name says which one: the segment is not renamed."""
    first = [batch(0, 16)] if where == "the only batch" else [batch(0, 3), batch(3, 13)]
    path = partition(tmp_path, "t-0", first, [batch(16, 4), batch(20, 2)])
    root_files(tmp_path, recovery_point={"t-0": 22}, replication={"t-0": 22})
    before = sound(path, ".log")
    log = path / f"{0:020d}.log"
    position = 0 if len(first) == 1 else len(first[0].encode())
    patch(log, position + at, bytes([log.read_bytes()[position + at] ^ mask]))
    plan, shutdown = repair(tmp_path)
    assert (sound(path, ".log"), holes(plan), shutdown) == (before, [], CLEAN)


@pytest.mark.parametrize("wrong", [5, 4, 7, 2, 0])
@pytest.mark.parametrize("is_split", [True, False])
def test_a_wrong_offset_costs_no_batch_before_it(tmp_path: Path, wrong: int, is_split: bool) -> None:
    """With 6 read as 5 the batch of offset 5 seemed to be the wrong one."""
    head, tail = [batch(offset) for offset in range(6)], [batch(11, 2), batch(13, 2), batch(15, 5)]
    parts = [[*head, batch(6, 5)], tail] if is_split else [[*head, batch(6, 5), *tail]]
    path = partition(tmp_path, "t-0", *parts)
    before = sound(path, ".log")
    root_files(tmp_path, recovery_point={"t-0": 20}, replication={"t-0": 20})
    patch(path / f"{0:020d}.log", sum(len(one.encode()) for one in head), struct.pack(">q", wrong))
    plan, _ = repair(tmp_path)
    assert (sound(path, ".log"), holes(plan)) == (before, [])


STRAYS = {
    "garbage": b"garbage",
    "zeros": bytes(100_000),
    "a rotten batch": ten(100)[:-1] + b"\xff",
    "a copy of one batch": ten(100),
    "nothing": b"",
}


@pytest.mark.parametrize("content", STRAYS)
@pytest.mark.parametrize("is_between", [True, False])
def test_a_file_that_is_no_segment_costs_itself(tmp_path: Path, content: str, is_between: bool) -> None:
    """It has the name of a segment within the offsets of another one."""
    parts = [TENS[:12], TENS[12:]] if is_between else [TENS]
    path = partition(tmp_path, "t-0", *([batch(offset, 10) for offset in part] for part in parts))
    before = segments(tmp_path)
    (path / f"{100:020d}.log").write_bytes(STRAYS[content])
    root_files(tmp_path, recovery_point={"t-0": 150}, replication={"t-0": 150})
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset, shutdown) == (before, [], 150, CLEAN)


@pytest.mark.parametrize("name", [105, 140, 41])
def test_a_segment_whose_name_is_too_low_gets_its_own(tmp_path: Path, name: int) -> None:
    """Its name is within the segment before it, whose batches stay."""
    path = partition(tmp_path, "t-0", [batch(offset, 10) for offset in TENS], [batch(150, 3), batch(153, 2)])
    before = segments(tmp_path)
    for file in path.glob(f"{150:020d}.*"):
        file.rename(file.with_name(f"{name:020d}{file.suffix}"))
    root_files(tmp_path, recovery_point={"t-0": 155}, replication={"t-0": 155})
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset) == (before, [], 155)


@pytest.mark.parametrize("beyond", [1, 5])
def test_a_segment_whose_offsets_overflow_its_name_is_split(tmp_path: Path, beyond: int) -> None:
    """As Kafka does at a start after a crash: all batches stay. The next segment and the checkpoints show the same offsets."""
    far = 5_000_000_000
    log = b"".join(batch(offset, 10).encode() for offset in (*TENS, *range(far, far + 10 * beyond, 10)))
    path = partition(tmp_path, "t-0", [batch(0, 10)], [batch(far + 100, 5)])
    (path / f"{0:020d}.log").write_bytes(log)
    root_files(tmp_path, clean=False, recovery_point={"t-0": far + 105}, replication={"t-0": far + 105})
    repair(tmp_path)
    assert sorted(offset for found in segments(tmp_path).values() for offset in found) == [
        *TENS, *range(far, far + 10 * beyond, 10), far + 100,
    ]  # fmt: skip


@pytest.mark.parametrize("bit", [31, 34, 44, 62, 63])
def test_an_only_batch_whose_offset_overflows_its_name_gets_the_offset_of_the_name(tmp_path: Path, bit: int) -> None:
    """One bit is wrong, and no other file names the offset: a split would keep the wrong one, as an end that never was."""
    path = partition(tmp_path, "t-0", [batch(898, 5)], epochs=())
    for name in ("index", "timeindex"):
        (path / f"{898:020d}.{name}").write_bytes(b"")
    root_files(tmp_path, clean=False, recovery_point={}, replication={})
    patch(path / f"{898:020d}.log", 0, struct.pack(">Q", 898 ^ 1 << bit))
    plan, _ = repair(tmp_path)
    assert (plan.log_end_offset, holes(plan), segments(tmp_path)) == (903, [], {898: [898]})


@pytest.mark.parametrize("wrong", [0, 1, 4, 6, 1 << 30])
@pytest.mark.parametrize("index", [0, 1])
def test_a_wrong_leader_epoch_spreads_to_no_other_batch(tmp_path: Path, wrong: int, index: int) -> None:
    """Two batches are the whole segment, so that neither is the majority: the file and the segments before decide."""
    five = [batch(offset, 10)._replace(partition_leader_epoch=5) for offset in (20, 30)]
    path = partition(
        tmp_path, "t-0", [batch(0, 10), batch(10, 10)._replace(partition_leader_epoch=5)], five, epochs=[(0, 0), (5, 10)]
    )
    before = sound(path)
    root_files(tmp_path, recovery_point={"t-0": 40}, replication={"t-0": 40})
    patch(path / f"{20:020d}.log", 12 + index * len(ten(20)), struct.pack(">i", wrong))
    plan, shutdown = repair(tmp_path)
    assert (sound(path), holes(plan), shutdown) == ({**before, **sound(path, ".snapshot")}, [], CLEAN)


def test_two_exchanged_batches_get_no_offsets_of_each_other(tmp_path: Path) -> None:
    """One bit tells their offsets apart: two wrong bits would explain the log as well, and give records wrong offsets."""
    path = partition(tmp_path, "t-0", [batch(0, 8), batch(8, 4), batch(12, 4), batch(16, 4)])
    root_files(tmp_path, recovery_point={"t-0": 20}, replication={"t-0": 20})
    log = path / f"{0:020d}.log"
    rows = [batch(8, 4).encode(), batch(12, 4).encode()]
    log.write_bytes(log.read_bytes().replace(b"".join(rows), b"".join(reversed(rows))))
    repair(tmp_path)
    (found,) = segments(tmp_path).values()
    assert found in ([0, 8, 16], [0, 12, 16])


@pytest.mark.parametrize("seed", range(12))
def test_one_wrong_byte_of_a_header_field_is_always_found(tmp_path: Path, seed: int) -> None:
    """Of any batch of a log without gaps, the last one of the log too where the index has it."""
    rng = random.Random(seed)
    counts = [rng.randrange(1, 6) for _ in range(10)]
    batches = [batch(sum(counts[:index]), count) for index, count in enumerate(counts)]
    path = partition(tmp_path, "t-0", batches[:5], batches[5:])
    end = sum(counts)
    root_files(tmp_path, recovery_point={"t-0": end}, replication={"t-0": end})
    before = sound(path, ".log")
    base = rng.choice([0, sum(counts[:5])])
    log = path / f"{base:020d}.log"
    chosen = rng.randrange(5)
    position = sum(len(one.encode()) for one in (batches[:5] if base == 0 else batches[5:])[:chosen])
    at = position + rng.choice([*range(8), *range(12, 16)])
    patch(log, at, bytes([log.read_bytes()[at] ^ rng.randrange(1, 256)]))
    repair(tmp_path)
    assert sound(path, ".log") == before


@pytest.mark.parametrize("stated", [36, 35, 20])
@pytest.mark.parametrize("is_followed", [True, False])
def test_a_batch_at_the_end_of_damage_may_be_payload(tmp_path: Path, stated: int, is_followed: bool) -> None:
    """The last value of a batch is one itself, and the header before it is lost: it gets no offset of the log."""
    value = batch(stated).encode()
    outer = batch(20, 18)
    tail = [batch(38, 2), batch(40, 3), batch(43, 3)]
    path = partition(tmp_path, "t-0", [batch(0, 20)], [outer, *(tail if is_followed else [])])
    log = path / f"{20:020d}.log"
    data = log.read_bytes()
    size = len(outer.encode())
    log.write_bytes(value.rjust(size, b"\0") + data[size:])
    root_files(tmp_path, recovery_point={"t-0": 46 if is_followed else 38}, replication={"t-0": 38})
    plan, _ = repair(tmp_path)
    kept = [38, 40, 43] if is_followed else []
    assert [offset for found in segments(tmp_path).values() for offset in found if offset not in (0, stated)] == kept
    if is_followed:
        assert [offset for found in segments(tmp_path).values() for offset in found] == [0, *kept]
        assert holes(plan) == [(20, 38)]
        assert any("--take-inner" in remark.message for remark in plan.remarks)


@pytest.mark.parametrize("ends", [38, (1 << 40) + 1])
def test_a_batch_behind_damage_that_nothing_continues_ends_no_log(tmp_path: Path, ends: int) -> None:
    """Its offset overflows the segment's name. A checkpoint shows where the log did reach it."""
    path = partition(tmp_path, "t-0", [batch(0, 20)], [batch(20, 18)])
    log = path / f"{20:020d}.log"
    log.write_bytes(bytes(len(batch(20, 18).encode())) + batch(1 << 40).encode())
    root_files(tmp_path, recovery_point={"t-0": ends}, replication={"t-0": ends})
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == ends
    assert ((1 << 40) in {offset for found in segments(tmp_path).values() for offset in found}) == (ends > 38)


def test_offsets_that_an_earlier_repair_lost_are_no_sign_of_payload(tmp_path: Path) -> None:
    """The batch before them is the first one after other damage, which hides its own end."""
    path = partition(tmp_path, "t-0", [batch(offset) for offset in range(10)])
    root_files(tmp_path, recovery_point={"t-0": 10}, replication={"t-0": 10})
    size = len(batch(0).encode())
    log = path / f"{0:020d}.log"
    patch(log, 5 * size - 2, b"\xff")
    repair(tmp_path)
    assert segments(tmp_path) == {0: [0, 1, 2, 3, 5, 6, 7, 8, 9]}
    patch(log, 2 * size, bytes(size))
    repair(tmp_path)
    assert segments(tmp_path) == {0: [0, 1, 3, 5, 6, 7, 8, 9]}


@pytest.mark.parametrize("named", [149, 145])
@pytest.mark.parametrize("mask", [1, 2, 3, 16, 1 << 40])
def test_the_time_index_names_the_record_of_the_last_batch(tmp_path: Path, mask: int, named: int) -> None:
    """A few offsets too high, the batch still contains the named offset, but of another record; no other file has the batch."""
    records = encode_records(Record(i, 5 if 140 + i == named else i - 10, b"key", None) for i in range(10))
    path = partition(tmp_path, "t-0", [batch(offset, 10) for offset in TENS[:-1]])
    time_index = path / f"{0:020d}.timeindex"
    log = path / f"{0:020d}.log"
    size = log.stat().st_size
    (entry,) = struct.iter_unpack(">qi", time_index.read_bytes()[-12:])
    last = batch(140, 10)._replace(base_timestamp=entry[0] + 20, max_timestamp=entry[0] + 25, records=records)
    log.write_bytes(log.read_bytes() + last.encode())
    time_index.write_bytes(time_index.read_bytes() + struct.pack(">qi", entry[0] + 25, named))
    for file in path.glob("*.snapshot"):
        file.unlink()
    root_files(tmp_path, clean=False)
    assert "timeindex-mismatch" not in codes(verify(tmp_path))
    patch(log, size, struct.pack(">q", 140 ^ mask))
    assert "timeindex-mismatch" in codes(verify(tmp_path))
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path)[0], plan.log_end_offset, holes(plan)) == ([*TENS], 150, [])


def test_a_batch_at_the_end_of_a_damaged_segment_may_be_payload(tmp_path: Path) -> None:
    """One bit of its offset would fill the gap before the next segment."""
    value, outer = batch(42, 4).encode(), batch(20, 18)
    path = partition(tmp_path, "t-0", [batch(0, 10), batch(10, 10)], [outer], [batch(38, 2), batch(40, 3)])
    (path / f"{20:020d}.log").write_bytes(value.rjust(len(outer.encode()), b"\0"))
    root_files(tmp_path, recovery_point={"t-0": 43}, replication={"t-0": 43})
    plan, _ = repair(tmp_path)
    assert [one for found in segments(tmp_path).values() for one in found] == [0, 10, 38, 40]
    assert (20, 38) in holes(plan)


@pytest.mark.parametrize("wrong", [38, 36 + 8, 99])
def test_the_only_batch_behind_an_emptied_segment_ends_where_the_checkpoints_do(tmp_path: Path, wrong: int) -> None:
    """The segment's name alone would not show its offset: the segment before it is empty."""
    path = partition(tmp_path, "t-0", [batch(0, 10)], [batch(10, 26)], [batch(36, 5)], snapshots={41: []})
    root_files(tmp_path, recovery_point={"t-0": 41}, replication={"t-0": 41})
    (path / f"{10:020d}.log").write_bytes(b"")
    patch(path / f"{36:020d}.log", 0, struct.pack(">q", wrong))
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path)[36], plan.log_end_offset) == ([36], 41)


def test_sound_batches_between_two_damaged_ones_at_the_end_stay(tmp_path: Path) -> None:
    """The last one begins with the offset that follows, whatever else of its header is wrong: payload ends otherwise."""
    parts = [batch(0, 3), batch(3, 8), batch(11, 3), batch(14)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, clean=False)
    log = path / f"{0:020d}.log"
    patch(log, 31, b"\xff\xff\xff\xff")
    patch(log, sum(len(one.encode()) for one in parts[:3]) + 21, b"\xff\xff")
    assert segments(tmp_path) == {0: [3, 11]}
    plan, _ = repair(tmp_path)
    assert segments(tmp_path)[0] == [3, 11]
    assert (0, 3) in holes(plan)


def test_offsets_of_what_may_be_batches_in_a_damaged_end_are_named(tmp_path: Path) -> None:
    """A batch became shorter and seems to contain the next one, and the end is damaged: nothing shows where the log goes on."""
    parts = [batch(0, 8), batch(8, 2), batch(10, 5), batch(15, 2), batch(17)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, clean=False, replication={"t-0": 10})
    log = path / f"{0:020d}.log"
    data = log.read_bytes()
    end = sum(len(one.encode()) for one in parts[:4])
    log.write_bytes(data[:150] + data[151:end] + b"\xaa" * (len(data) - end))
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        (path / name).unlink()
    plan, _ = repair(tmp_path)
    named = {offset for first, last in holes(plan) for offset in range(first, last or first)}
    readable = {offset for found in segments(tmp_path).values() for offset in found}
    assert named | readable >= {*range(17)}
    assert not named & readable
    assert plan.log_end_offset == 17  # a broker does not give the named offsets to other records


def _keyless(offset: int, count: int = 1) -> NewRecordBatch:
    records = encode_records(Record(i, i, None, b"value %d" % (offset + i)) for i in range(count))
    return batch(offset, count)._replace(records=records)


@pytest.mark.parametrize(("kind", "is_shown", "is_kept"), [("keys", True, False), ("cleaned", True, True), ("", False, False)])
@pytest.mark.parametrize("cut", [False, True])
def test_all_readers_of_a_segment_see_the_same_batches_behind_damage(
    tmp_path: Path, kind: str, is_shown: bool, is_kept: bool, cut: bool
) -> None:
    """Payload at the end of a batch whose header is lost: dump-log, Spark and verify hide it, or none of them does.

    A gap behind it shows that it is payload, unless the cleaner was there: it made other gaps in the segment, or the topic,
    which a reader does not know, may be compacted because all records have keys. A repair without the topic's policy does not
    take what may be payload. The same is true of a task that reads the bytes up to the next index entry only.
    """
    value, outer = batch(36).encode(), batch(20, 18)
    head = [batch(0, 2), batch(5, 5), batch(10, 10)] if kind == "cleaned" else [batch(0, 10), batch(10, 10)]
    tail = [(38, 2), (40, 3), (43, 3)]
    path = partition(tmp_path, "t-0", [*head, outer, *(batch(*one) if kind else _keyless(*one) for one in tail)])
    root_files(tmp_path, recovery_point={"t-0": 46}, replication={"t-0": 46})
    log = path / f"{0:020d}.log"
    at, size = sum(len(one.encode()) for one in head), len(outer.encode())
    patch(log, at, value.rjust(size, b"\0"))
    with SegmentReader(OsDisk(), str(log), end=at + size if cut else None) as reader:
        read = [one.header.base_offset for one in reader.batches() if isinstance(one, LogBatch) and one.is_valid]
    assert read == [*(one.base_offset for one in head), *([36] if is_shown else []), *([] if cut else [38, 40, 43])]
    dumped = {one.record.offset for one in dumped_json(path)}
    assert (36 in dumped, len(dumped)) == (is_shown, sum(one.data_records for one in verify(tmp_path).partitions))
    assert {one.record.offset for one in spark_rows(path)} == dumped
    plan, _ = repair(tmp_path)
    assert {one.record.offset for one in dumped_json(path)} == (dumped if is_kept else dumped - {36})
    assert any("--take-inner" in remark.message for remark in plan.remarks) != is_kept


def test_the_last_batch_behind_a_damaged_one_gets_the_offset_that_other_files_name(tmp_path: Path) -> None:
    """Its offset is not between two sound batches; the index, the leader epochs and the checkpoints agree about it."""
    parts = [batch(0, 2), batch(2, 8), batch(10, 5), batch(15, 2)]
    path = partition(tmp_path, "t-0", parts, snapshots={17: []})
    root_files(tmp_path, recovery_point={"t-0": 17}, replication={"t-0": 17})
    log, sizes = path / f"{0:020d}.log", [len(one.encode()) for one in parts]
    (path / f"{0:020d}.index").write_bytes(struct.pack(">ii", 16, sum(sizes[:3])))
    patch(log, sum(sizes[:3]) - 20, b"\xff\xff\xff")
    patch(log, sum(sizes[:3]) + 1, b"\xb3\x0a\x11")
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path), plan.log_end_offset, holes(plan)) == ({0: [0, 2, 15]}, 17, [(10, 15)])


def test_a_write_that_damaged_length_and_offset_damaged_one_header(tmp_path: Path) -> None:
    """The CRC shows the length; then the high watermark alone shows the offset, though two bytes of it are wrong."""
    parts = [batch(0), batch(1, 3), batch(4), batch(5, 5)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, clean=False, replication={"t-0": 10})
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        (path / name).unlink()
    patch(path / f"{0:020d}.log", sum(len(one.encode()) for one in parts[:3]) + 6, b"\x3d\x46\x01\x01")
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path), plan.log_end_offset, holes(plan)) == ({0: [0, 1, 4, 5]}, 10, [])


TWOS = range(0, 20, 2)  # batches of two records, the last one of one
# The index of the batch that contains the payload, the one before it if its end is destroyed too, and the payload.
PAYLOAD = {
    "a leader epoch that the checkpoint does not have": (5, 4, batch(11)._replace(partition_leader_epoch=4)),
    "above a clean end": (9, 8, batch(25)),
    "far above a clean end": (9, 8, batch(1_000_059)),
    "no offset is left for the bytes before it": (6, 5, batch(12, 2)),
    "no offset is left, and it is the end": (9, 8, batch(18)),
}


@pytest.mark.parametrize("case", PAYLOAD)
def test_payload_of_a_batch_of_which_nothing_is_left_is_contradicted(tmp_path: Path, case: str) -> None:
    """A torn sector destroyed the records of a batch, and all of the next one but its payload, up to the next batch."""
    outer, before, payload = PAYLOAD[case]
    large = encode_records(Record(i, 0, b"key", b"v" * 200) for i in range(2))
    parts = [batch(one, 2 if one < 18 else 1) for one in TWOS]
    parts[outer] = parts[outer]._replace(records=large)
    path = partition(tmp_path, "t-0", parts, snapshots={19: []})
    root_files(tmp_path, recovery_point={"t-0": 19}, replication={"t-0": 19})
    (path / f"{0:020d}.index").write_bytes(b"")
    ends = [*itertools.accumulate(len(one.encode()) for one in parts)]
    patch(path / f"{0:020d}.log", ends[before] - 9, b"\xff" * (ends[outer] - ends[before] + 9))
    patch(path / f"{0:020d}.log", ends[outer] - len(payload.encode()), payload.encode())
    plan, _ = repair(tmp_path)
    kept = [one.base_offset for at, one in enumerate(parts) if at not in (before, outer)]
    assert (segments(tmp_path)[0], plan.log_end_offset) == (kept, 19)
    assert any("--take-inner" in remark.message for remark in plan.remarks)


@pytest.mark.parametrize("more", [1, 7, 64])
def test_bytes_that_were_inserted_into_a_batch_cost_no_sound_batch(tmp_path: Path, more: int) -> None:
    """No offset is left for the bytes between its stated end and the next batch, and no batch fits there."""
    path = partition(tmp_path, "t-0", [batch(one, 2) for one in TWOS])
    root_files(tmp_path, clean=False)
    log, size = path / f"{0:020d}.log", len(batch(0, 2).encode())
    data = log.read_bytes()
    log.write_bytes(data[: 3 * size - 9] + b"\xff" * more + data[3 * size - 9 :])
    repair(tmp_path)
    assert segments(tmp_path)[0] == [one for one in TWOS if one != 4]


@pytest.mark.parametrize("codec", [0, 2])
def test_a_wrong_length_and_a_wrong_record_cost_no_batch_behind_them(tmp_path: Path, codec: int) -> None:
    """The lengths of the records show the end; those of compressed ones nothing, so the next batch is not doubted either."""
    records = encode_records([Record(0, 0, b"key", random.Random(1).randbytes(300))])
    large = batch(4)._replace(records=deflate(codec, records) if codec else records, attributes=codec)
    parts = [batch(0, 4), large, batch(5, 8), batch(13, 2), batch(15, 2)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, clean=False)
    at = len(parts[0].encode())
    patch(path / f"{0:020d}.log", at + 8, struct.pack(">i", 62))
    patch(path / f"{0:020d}.log", at + 200, b"\0\1\2")
    repair(tmp_path)
    assert segments(tmp_path)[0] == [0, 5, 13, 15]


def test_payload_that_leaves_a_gap_before_the_next_segment_is_no_batch(tmp_path: Path) -> None:
    """It fits between the names of the segments, but for the last offset of its segment."""
    path = partition(tmp_path, "t-0", [batch(0), batch(1, 3)], [batch(4, 2)])
    root_files(tmp_path, recovery_point={"t-0": 6}, replication={"t-0": 6})
    log, payload = path / f"{0:020d}.log", batch(0, 3).encode()
    log.write_bytes(payload.rjust(log.stat().st_size + 50, b"\xff"))
    plan, _ = repair(tmp_path)
    assert ([one for found in segments(tmp_path).values() for one in found], holes(plan)) == ([4], [(0, 4)])


@pytest.mark.parametrize("counts", [[[3], [3], [3]], [[3, 3, 3]], [[2, 2], [2, 2]], [[3]]])
@pytest.mark.parametrize("mask", [1, 8, 1 << 9])
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_files_with_the_end_of_the_log_contradict_a_last_batch_behind_a_gap(
    tmp_path: Path, counts: list[list[int]], mask: int, is_clean: bool
) -> None:
    """Nothing else is damaged, and no index has the batch: verify found missing offsets or nothing, and repair did nothing."""
    starts = [*itertools.accumulate((count for some in counts for count in some), initial=0)]
    ahead = iter(starts)
    parts = [[batch(next(ahead), count) for count in some] for some in counts]
    end, last = starts[-1], parts[-1][-1]
    path = partition(tmp_path, "t-0", *parts)
    for file in path.glob("*.timeindex"):
        file.write_bytes(b"")
    root_files(tmp_path, clean=is_clean, recovery_point={"t-0": end if is_clean else 0}, replication={"t-0": end})
    before, position = sound(path, ".log"), sum(len(one.encode()) for one in parts[-1][:-1])
    patch(path / f"{parts[-1][0].base_offset:020d}.log", position, struct.pack(">q", last.base_offset ^ mask))
    assert "offset-mismatch" in codes(verify(tmp_path))
    plan, _ = repair(tmp_path)
    assert (sound(path, ".log"), holes(plan), plan.log_end_offset) == (before, [], end)
    assert not codes(verify(tmp_path)) & {"offset-mismatch", "segment-gap", "offset-hole", "offset-gap"}


@pytest.mark.parametrize(("recovery_point", "high_watermark"), [(13, 13), (8, 8), (0, 4), (0, 0)])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_gap_before_a_last_batch_that_no_file_contradicts_stays(
    tmp_path: Path, recovery_point: int, high_watermark: int, is_clean: bool
) -> None:
    """One bit of its offset would close the gap, but the records before it may be lost: consumers have seen its offset."""
    partition(tmp_path, "t-0", [batch(0, 4), batch(4, 4), batch(12)])
    root_files(tmp_path, clean=is_clean, recovery_point={"t-0": recovery_point}, replication={"t-0": high_watermark})
    assert "offset-mismatch" not in codes(verify(tmp_path))
    repair(tmp_path)
    assert segments(tmp_path) == {0: [0, 4, 12]}


def test_a_gap_is_not_closed_against_the_end_that_the_files_have(tmp_path: Path) -> None:
    """An index is damaged, so that the offsets are explained: the batch stays where the checkpoints have the log's end."""
    path = partition(tmp_path, "t-0", [batch(0, 4), batch(4, 4), batch(12)])
    root_files(tmp_path, clean=False, recovery_point={"t-0": 8}, replication={"t-0": 13})
    (path / f"{0:020d}.timeindex").write_bytes(b"\0\1")
    (path / f"{0:020d}.index").unlink()
    repair(tmp_path)
    assert segments(tmp_path) == {0: [0, 4, 12]}


def test_a_plan_names_the_explanations_that_cost_the_same(tmp_path: Path) -> None:
    """Nothing shows which of two exchanged batches goes. A wrong offset that one value explains has no other explanation."""
    parts = [batch(0, 8), batch(8, 4), batch(12, 4), batch(16, 4)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, recovery_point={"t-0": 20}, replication={"t-0": 20})
    (path / f"{0:020d}.index").write_bytes(b"")
    log, rows = path / f"{0:020d}.log", [one.encode() for one in parts]
    sound_log = log.read_bytes()
    log.write_bytes(b"".join([rows[0], rows[2], rows[1], rows[3]]))
    before = log.read_bytes()
    printed = outputs.run("verify", "--repair", "--output", "json", tmp_path)
    (named,) = [line for line in printed.json_lines() if line["type"] == "alternative"]
    first, second = len(rows[0]), len(rows[0] + rows[2])
    rest = [{"position": first, "baseOffset": 12}, {"position": second, "baseOffset": None}]
    assert named["batches"] in (rest, [{"position": first, "baseOffset": None}, {"position": second, "baseOffset": 8}])
    assert named["path"] == str(log)
    assert f"note {log.name}: {named['message']}" in outputs.run("verify", "--repair", tmp_path).stdout.decode()
    assert log.read_bytes() == before
    log.write_bytes(sound_log)
    patch(log, first, struct.pack(">q", 9))
    lines = outputs.run("verify", "--repair", "--output", "json", tmp_path).json_lines()
    assert lines[-1]["changes"] and not [line for line in lines if line["type"] == "alternative"]


def test_a_segment_exchanged_with_the_empty_one_at_the_end_gets_its_name(tmp_path: Path) -> None:
    """One byte makes its offset that of its name; but then the log lacks exactly the offsets that its batch states."""
    path = partition(tmp_path, "t-0", [batch(0, 24)], [batch(24, 8)], [batch(32, 10)])
    root_files(tmp_path, recovery_point={"t-0": 42}, replication={"t-0": 42})
    (path / f"{24:020d}.log").rename(path / f"{42:020d}.log")
    (path / f"{24:020d}.log").write_bytes(b"")
    plan, _ = repair(tmp_path)
    assert ({name: found for name, found in segments(tmp_path).items() if found}, plan.log_end_offset, holes(plan)) == (
        {0: [0], 24: [24], 32: [32]}, 42, [],
    )  # fmt: skip


def test_a_torn_snapshot_shows_the_end_of_a_log_without_segments(tmp_path: Path) -> None:
    """Its name is written before its bytes; to give out offsets twice is worse than to begin a little later."""
    path = partition(tmp_path, "t-0", [batch(0, 70), batch(70, 5)], snapshots={70: [entry(5, 0, 69)], 75: [entry(5, 1, 74)]})
    root_files(tmp_path, clean=False, recovery_point={"t-0": 0}, replication={"t-0": 70})
    torn = path / f"{75:020d}.snapshot"
    torn.write_bytes(torn.read_bytes()[:-9])
    for suffix in ("log", "index", "timeindex"):
        (path / f"{0:020d}.{suffix}").unlink()
    plan, _ = repair(tmp_path)
    assert (plan.log_end_offset, holes(plan)) == (75, [(0, 75)])


def test_offsets_that_a_repair_loses_do_not_contradict_the_last_batch(tmp_path: Path) -> None:
    """An old end of the log is in the gap that the repair leaves, and one bit of the offset after it would fill the gap."""
    parts = [batch(0, 8), batch(8), batch(9, 3), batch(12)]
    path = partition(tmp_path, "t-0", parts)
    root_files(tmp_path, clean=False, recovery_point={"t-0": 9}, replication={"t-0": 9})
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        (path / name).unlink()
    ends = [*itertools.accumulate(len(one.encode()) for one in parts)]
    for end in ends[1:3]:
        patch(path / f"{0:020d}.log", end - 6, b"\xff\xff\xff")
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path)[0], holes(plan)) == ([0, 12], [(8, 12)])
    assert "offset-mismatch" not in {finding.code for finding in plan.left} | codes(verify(tmp_path))


@pytest.mark.parametrize("seed", range(6))
def test_windows_of_a_large_segment_choose_what_all_of_it_does(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Wrong base offsets here and there, one of them far above all others: no window is led astray by it."""
    rng, batches, right = random.Random(seed), Batches(), list[int]()
    for number in range(200):
        base_offset = 10 * number
        right.append(base_offset)
        if number % 23 == seed:
            base_offset ^= rng.choice((1, 1 << 4, 1 << 40, 0x7F << 16))
        batches.insert(number, Batch(100 * number, 100 * number + 100, base_offset, base_offset + 9, 0))
    chosen = OffsetExplanation(batches, SegmentWitnesses(0, INT64_MAX, 0), LogWitnesses()).choose()
    assert [one.base_offset for one in chosen] == [right[one.row] for one in chosen]
    monkeypatch.setattr(explanation, "WINDOW", 20)
    assert OffsetExplanation(batches, SegmentWitnesses(0, INT64_MAX, 0), LogWitnesses()).choose() == chosen
