"""Corrupt bytes: the job fails with file and byte, or they are counted and listed; sound records around them are kept."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from kcli.format.codec_streams import GZIP
from kcli.format.compression import deflate
from kcli.format.primitives import crc32c
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.spark.log_partitions import PlanError
from kcli.spark.range_reader import CorruptLogError
from kcli.spark.report import Report
from tests.damage import DAMAGES, NotApplicableError, damaged_copy
from tests.inspect.verified import batch as sound_batch
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set
from tests.spark.source import rows_of

BATCHES = 12
TARGET = 5


def build(directory: Path) -> tuple[Path, list[LogBatch], bytearray]:
    """Twelve batches of three records -> (the segment, its batches, its bytes)."""
    log = PartitionBuilder(directory)
    for batch in range(BATCHES):
        log.append([(b"k", b"v" * 50)] * 3, codec=4 if batch % 3 == 0 else 0)
    log.flush()
    with SegmentReader(OsDisk(), str(log.path(".log"))) as reader:
        batches = [found for found in reader.batches() if isinstance(found, LogBatch)]
        headers = [LogBatch(found.header, None, found.computed_crc, reader.file) for found in batches]
    return log.path(".log"), headers, bytearray(log.log)


def report_of(directory: Path, **options: str) -> dict[str, list[list[object]]]:
    """The sum of the tasks' reports."""
    rows = rows_of(directory, columns="offset", reportColumn="told", onCorrupt="skip", **options)
    return json.loads(Report.sum(row["told"] for row in rows if row["told"] is not None).to_json())


DAMAGE = {
    "bad-crc": lambda data, batch: data.__setitem__(batch.end_position - 1, data[batch.end_position - 1] ^ 1),
    "bad-size": lambda data, batch: struct.pack_into(">i", data, batch.position + 8, 3),
    "bad-magic": lambda data, batch: data.__setitem__(batch.position + 16, 7),
    "truncated": lambda data, batch: struct.pack_into(">i", data, batch.position + 8, 2**30),
    "short-header": lambda data, batch: struct.pack_into(">i", data, batch.position + 8, 20),
    "base offset too high": lambda data, batch: struct.pack_into(">q", data, batch.position, 2**40),
    "base offset a little high": lambda data, batch: struct.pack_into(">q", data, batch.position, 3 * TARGET + 4),
    "base offset too low": lambda data, batch: struct.pack_into(">q", data, batch.position, 1),
    "base offset negative": lambda data, batch: struct.pack_into(">q", data, batch.position, -1),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("options", [{}, {"maxPartitionBytes": "250"}])
def test_a_corrupt_batch(tmp_path: Path, damage: str, options: dict[str, str]) -> None:
    """Each fault of one batch fails the job with file and byte, or only this batch is missing and listed."""
    path, batches, data = build(tmp_path / "t-0")
    batch = batches[TARGET]
    DAMAGE[damage](data, batch)
    path.write_bytes(data)
    with pytest.raises(CorruptLogError) as failure:
        rows_of(tmp_path / "t-0", **options)
    assert f"{path}: byte {batch.position}: " in str(failure.value)
    assert "onCorrupt=skip" in str(failure.value)
    lost = set(range(3 * TARGET, 3 * TARGET + 3))
    kept = [row["offset"] for row in rows_of(tmp_path / "t-0", onCorrupt="skip", **options)]
    assert sorted(kept) == sorted(set(range(3 * BATCHES)) - lost)
    assert report_of(tmp_path / "t-0", **options)["lost"] == [["t", 0, 3, [[3 * TARGET, 3 * TARGET + 3]]]]
    listed = rows_of(tmp_path / "t-0", table="corrupt", **options)
    assert [(row["segment"], row["position"]) for row in listed] == [(str(path), batch.position)]
    assert listed[0]["bytes"][: 61 - 12] == bytes(data[batch.position : batch.position + 61 - 12])


def test_a_wrong_offset_at_the_end(tmp_path: Path) -> None:
    """No batch contradicts the last one, but an index does: its records came out at offsets that they never had."""
    path, batches, data = build(tmp_path / "t-0")
    last = batches[-1]
    struct.pack_into(">q", data, last.position, last.header.base_offset + 64)
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match=f"byte {last.position}: the batch states offsets 97 to 99, but the entry of "):
        rows_of(tmp_path / "t-0")
    assert [row["offset"] for row in rows_of(tmp_path / "t-0", onCorrupt="skip")] == list(range(33))
    assert [row["isValid"] for row in rows_of(tmp_path / "t-0", table="batches")] == [True] * 11 + [False]
    (listed,) = rows_of(tmp_path / "t-0", table="corrupt")
    assert (listed["position"], listed["kind"]) == (last.position, "bad-offsets")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("asked", [TARGET - 1, TARGET, TARGET + 3])
def test_a_time_behind_damage(tmp_path: Path, damage: str, asked: int) -> None:
    """A time that begins before, in or behind a corrupt batch: no sound row from it on is missing, none before the end is.

    The corrupt batch fails the job if it may have had records of that time.
    """
    path, batches, data = build(tmp_path / "t-0")
    DAMAGE[damage](data, batches[TARGET])
    path.write_bytes(data)
    time_ms, damaged = str(BASE_TIMESTAMP + 30 * asked), range(3 * TARGET, 3 * TARGET + 3)
    sound = [offset for offset in range(3 * BATCHES) if offset not in damaged]
    behind = [offset for offset in sound if offset >= 3 * asked]
    assert [row["offset"] for row in rows_of(tmp_path, startingTimestamp=time_ms, onCorrupt="skip")] == behind
    before = [offset for offset in sound if offset < 3 * asked]
    assert [row["offset"] for row in rows_of(tmp_path, endingTimestamp=time_ms, onCorrupt="skip")] == before
    if asked <= TARGET:
        with pytest.raises(CorruptLogError, match=f"byte {batches[TARGET].position}: "):
            rows_of(tmp_path, startingTimestamp=time_ms)
    else:
        assert [row["offset"] for row in rows_of(tmp_path, startingTimestamp=time_ms)] == behind


def test_a_time_that_only_an_unreadable_end_may_have(tmp_path: Path) -> None:
    """A read that begins in a torn batch fails, and is not empty; it is empty if corrupt bytes are to be skipped."""
    path, batches, data = build(tmp_path / "t-0")
    path.write_bytes(data[:-20])
    options = {
        "startingTimestamp": str(BASE_TIMESTAMP + 30 * (BATCHES - 1)),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    with pytest.raises(PlanError, match=f"the bytes behind offset {batches[-2].header.last_offset} cannot be read"):
        rows_of(tmp_path, **options)
    assert rows_of(tmp_path, onCorrupt="skip", **options) == []


def test_the_report_counts_what_was_skipped(tmp_path: Path) -> None:
    """Rows, corrupt places and their bytes add up in the report, with the first faults in words."""
    path, batches, data = build(tmp_path / "t-0")
    for number in (2, 8):
        DAMAGE["bad-crc"](data, batches[number])
    path.write_bytes(data)
    told = report_of(tmp_path / "t-0")
    size = sum(batches[number].end_position - batches[number].position for number in (2, 8))
    assert told["rows"] == [["t", 0, 3 * (BATCHES - 2)]]
    assert told["corrupt"] == [["t", 0, 2, size]]
    assert told["lost"] == [["t", 0, 6, [[6, 9], [24, 27]]]]
    assert told["corruptFiles"] == [str(path)]
    assert [f"byte {batches[number].position}" in str(told["firstFaults"]) for number in (2, 8)] == [True, True]


def test_records_that_do_not_parse(tmp_path: Path) -> None:
    """A batch with a right CRC and wrong records fails the job too; the records before the fault are kept when skipping."""
    path, batches, data = build(tmp_path / "t-0")
    batch = batches[TARGET]
    last_record = batch.end_position - 62
    data[last_record + 3] ^= 0x40
    covered = bytes(data[batch.position + 21 : batch.end_position])
    struct.pack_into(">I", data, batch.position + 17, crc32c(covered))
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match="records that cannot be read"):
        rows_of(tmp_path / "t-0")
    kept = [row["offset"] for row in rows_of(tmp_path / "t-0", onCorrupt="skip")]
    assert len(kept) in range(3 * BATCHES - 3, 3 * BATCHES)
    ((_, _, count, ((first, end),)),) = report_of(tmp_path / "t-0")["lost"]
    assert sorted([*kept, *range(first, end)]) == list(range(3 * BATCHES))
    assert count == end - first
    (listed,) = rows_of(tmp_path / "t-0", table="corrupt")
    assert (listed["kind"], listed["position"]) == ("bad-records", batch.position)


def test_a_torn_tail(tmp_path: Path) -> None:
    """An incomplete batch after a crash is corrupt; one that a live broker is writing, and preallocated zeros, are not."""
    path, batches, data = build(tmp_path / "t-0")
    path.write_bytes(data[:-20])
    with pytest.raises(CorruptLogError, match=f"byte {batches[-1].position}: "):
        rows_of(tmp_path / "t-0")
    assert len(rows_of(tmp_path / "t-0", onCorrupt="skip")) == 3 * (BATCHES - 1)
    assert report_of(tmp_path / "t-0")["lost"] == []  # how many records the torn batch had is not said by anything sound
    path.write_bytes(bytes(data) + bytes(100_000))
    assert len(rows_of(tmp_path / "t-0")) == 3 * BATCHES


def test_a_live_broker(tmp_path: Path) -> None:
    """While another process holds .lock, the half-written batch at the end is no damage: reading ends before it."""
    import subprocess
    import sys

    path, _, data = build(tmp_path / "t-0")
    path.write_bytes(data[:-20])
    hold = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f,fcntl.LOCK_EX); print('held',flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None and broker.stdin is not None
        assert broker.stdout.readline() == b"held\n"
        assert len(rows_of(tmp_path / "t-0")) == 3 * (BATCHES - 1)
        broker.stdin.close()
    with pytest.raises(CorruptLogError):
        rows_of(tmp_path / "t-0")


def test_a_message_of_an_old_set(tmp_path: Path) -> None:
    """A bad CRC inside a compressed set of format 1, the wrapper's own being right, is corrupt as well."""
    (tmp_path / "t-0").mkdir()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    records = [NewLegacyRecord(offset, 1_700_000_000_000, b"k", b"v" * 9) for offset in range(3)]
    path.write_bytes(encode_message_set(records, magic=1, codec=GZIP))
    assert len(rows_of(tmp_path)) == 3
    inner = [bytearray(encode_message(record, 1)) for record in records]
    inner[1][-1] ^= 1
    wrapper = NewLegacyRecord(2, 1_700_000_000_000, None, deflate(GZIP, b"".join(inner), magic=1))
    path.write_bytes(encode_message(wrapper, 1, GZIP))
    with pytest.raises(CorruptLogError, match="message 1 of the set has a wrong CRC"):
        rows_of(tmp_path)


def test_every_kind_of_damage(tmp_path: Path) -> None:
    """Every kind of damage in the tests: only errors of kcli, with skip no error, and no row that the log does not have."""
    log = PartitionBuilder(tmp_path / "orig" / "t-0")
    for batch in range(60):
        log.append([(b"k%d" % batch, b"v" * 200)] * 5, codec=batch % 5, producer=7)
        if batch % 20 == 19 and batch < 59:
            log.roll()
    log.snapshot()
    log.flush()
    known = {(row.offset, row.key, row.value) for row in log.rows}
    tried = 0
    for name in DAMAGES:
        try:
            copy = damaged_copy(name, tmp_path / "orig" / "t-0", tmp_path / name.replace(" ", "-"))
        except NotApplicableError:
            continue
        tried += 1
        for options in ({}, {"onCorrupt": "skip"}, {"onCorrupt": "skip", "isolation_level": "read_committed"}):
            try:
                rows = rows_of(copy, **options)
            except CorruptLogError as error:
                assert not options and str(copy) in str(error)
                continue
            assert {(row["offset"], row["key"], row["value"]) for row in rows} <= known or "forge" in name, name
    assert tried > 20


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits(tmp_path: Path, seed: int) -> None:
    """A flipped bit anywhere never changes a row unseen: the rows are the same, or the job fails, or they are listed."""
    path, _, data = build(tmp_path / "t-0")
    whole = rows_of(tmp_path / "t-0", columns="key,value,offset,timestamp")
    rng = random.Random(seed)
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    skipped = rows_of(tmp_path / "t-0", columns="key,value,offset,timestamp", onCorrupt="skip")
    listed = rows_of(tmp_path / "t-0", table="corrupt")
    if listed:
        assert all(row in whole for row in skipped)
        with pytest.raises(CorruptLogError):
            rows_of(tmp_path / "t-0")
    else:
        assert skipped == whole


@pytest.fixture
def payload_log(tmp_path: Path) -> Path:
    """A log of offsets 0 to 11 without an index. The batch of 5 and 6 has a payload of offsets 8 and 9, and a wrong length that
    leads to it; a bit of its records is wrong, too."""
    inner = sound_batch(8, 2)._replace(records=encode_records([Record(i, i, b"key", b"forged") for i in range(2)])).encode()
    records = encode_records([Record(0, 0, b"key", b"value"), Record(1, 1, b"key", inner + b" rest")])
    outer = sound_batch(5, 2)._replace(records=records).encode()
    damaged = bytearray(outer)
    damaged[8:12] = (outer.find(inner) - 12).to_bytes(4, "big")
    damaged[70] ^= 1
    directory = tmp_path / "t-0"
    directory.mkdir()
    before, behind = ([sound_batch(offset).encode() for offset in some] for some in (range(5), range(7, 12)))
    (directory / f"{0:020}.log").write_bytes(b"".join([*before, damaged, *behind]))
    return directory


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 8, 20])
def test_no_split_begins_within_payload(payload_log: Path, splits: int) -> None:
    """Without an index the places of batches are known by lengths alone, and one of them is wrong."""
    rows = rows_of(payload_log, onCorrupt="skip", minPartitions=str(splits))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert b"forged" not in {row["value"] for row in rows}


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("first", range(7, 12))
def test_no_read_begins_within_payload(payload_log: Path, first: int, on_corrupt: str) -> None:
    """A read from an offset begins after the last sound batch below it, and not where a wrong length leads."""
    offsets = json.dumps({"t": {"0": first}})
    if first == 7 and on_corrupt == "fail":
        with pytest.raises(CorruptLogError):  # the damaged bytes may hold that offset
            rows_of(payload_log, onCorrupt=on_corrupt, startingOffsets=offsets)
        return
    rows = rows_of(payload_log, onCorrupt=on_corrupt, startingOffsets=offsets)
    assert [row["offset"] for row in rows] == list(range(first, 12))
    assert b"forged" not in {row["value"] for row in rows}


def test_a_batch_is_not_held_for_wrong_where_the_next_one_leaves_it_no_room(tmp_path: Path) -> None:
    """A cleaner took what was before it; the base offset behind it is zeros, and the wrong one of the two."""
    batches = [sound_batch(10, 2).encode(), bytearray(sound_batch(12, 2).encode()), sound_batch(17, 3).encode()]
    batches[1][:16] = bytes(16)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(b"".join(batches))
    assert [row["offset"] for row in rows_of(tmp_path / "t-0", onCorrupt="skip")] == [10, 11, 17, 18, 19]
