"""Protects the sound batches between two damaged places of a segment: nothing leads from them to the end of the file, and still
every reader gives them out, and a repair keeps them. What a damaged batch may contain as payload is not taken for such batches.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import HEADER_BYTES
from kcli.inspect.repairing.salvage import LogSalvager
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.columnar_reader import ColumnarReader
from kcli.log.reading.explanation import SECTOR_BYTES
from kcli.log.reading.segment_reader import Damage, SegmentReader
from tests.inspect.test_payload_batches import forged
from tests.log_builder import PartitionBuilder

BATCHES, PER_BATCH = 60, 5
FIRST, SECOND = 10, 50  # the numbers of the batches that are damaged


class TwiceDamaged:
    """A segment without index entries; `hit` are the numbers of batches whose bytes are not all right."""

    def __init__(self, directory: Path, codec: int = 0, index_every: int = 10**6) -> None:
        rng, builder = random.Random(5), PartitionBuilder(directory, index_every=index_every)
        self.starts: list[int] = []
        for number in range(BATCHES):
            self.starts.append(len(builder.log))
            builder.append([(b"k%d" % number, rng.randbytes(100)) for _ in range(PER_BATCH)], codec=codec)
        self.starts.append(len(builder.log))
        builder.flush()
        self.path = builder.path(".log")
        self.data = bytearray(self.path.read_bytes())
        self.hit: set[int] = set()

    def change(self, start: int, data: bytes) -> None:
        """Overwrite bytes."""
        end = start + len(data)
        self.hit |= {number for number in range(BATCHES) if self.starts[number] < end and self.starts[number + 1] > start}
        self.data[start:end] = data

    def replace(self, number: int, values: list[bytes]) -> None:
        """Let a batch have other values; the batches behind it move."""
        around = PartitionBuilder(self.path.parent.with_name(f"t-{len(values[0])}"), first_offset=number * PER_BATCH)
        around.append([(b"k", value) for value in values])
        start, end = self.starts[number : number + 2]
        self.data[start:end] = around.log
        self.starts[number + 1 :] = [one + len(around.log) - (end - start) for one in self.starts[number + 1 :]]

    def zero_sector(self, at: int) -> None:
        """A sector that was not written, the one of byte `at`."""
        self.change(at // SECTOR_BYTES * SECTOR_BYTES, bytes(SECTOR_BYTES))

    def put_at_sector_end(self, number: int) -> None:
        """Let a batch begin three bytes before a sector, behind a batch of another size."""
        self.replace(FIRST, [b"v" * 100] * PER_BATCH)
        left = -(self.starts[number] + 3) % SECTOR_BYTES
        self.replace(FIRST, [b"v" * (100 + left), *[b"v" * 100] * (PER_BATCH - 1)])

    def check(self) -> None:
        """Read the segment in three ways: all batches are there that are whole."""
        self.path.write_bytes(self.data)
        whole = [number * PER_BATCH for number in range(BATCHES) if number not in self.hit]
        with SegmentReader(OsDisk(), str(self.path)) as reader:
            read = [one.header.base_offset for one in reader.batches() if not isinstance(one, Damage) and one.is_valid]
        assert read == whole
        columns, rows = ColumnarReader(OsDisk(), str(self.path)), list[int]()
        for step in columns.steps():
            if not isinstance(step, Damage) and (step.batch is None or step.batch.is_valid):
                rows += columns.rows.base_offset[: step.rows]
        columns.close()
        assert rows == whole
        salvage = LogSalvager(OsDisk()).salvage(str(self.path), 0, 0, INT64_MAX)
        assert (salvage.kept, salvage.next_offset) == (len(whole), whole[-1] + PER_BATCH)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("first", [0, 200])
@pytest.mark.parametrize("second", [0, 200])
def test_between_two_sectors_that_were_not_written(tmp_path: Path, codec: int, first: int, second: int) -> None:
    """They begin in a header or in records; no index entry is between them."""
    log = TwiceDamaged(tmp_path / "t-0", codec)
    log.zero_sector(log.starts[FIRST] + first)
    log.zero_sector(log.starts[SECOND] + second)
    log.check()


@pytest.mark.parametrize("wrong", [7, 0, 16, 60], ids=["offset, bit", "offset, byte", "magic", "record count"])
def test_before_a_batch_with_a_wrong_header(tmp_path: Path, wrong: int) -> None:
    """One byte of its header is wrong, and so are its length and a record: no chain leads on from the batches before it."""
    log = TwiceDamaged(tmp_path / "t-0")
    log.zero_sector(log.starts[FIRST] + 200)
    at = log.starts[SECOND]
    log.change(at + wrong, bytes([log.data[at + wrong] ^ (1 if wrong else 0x55)]))
    log.change(at + 8, bytes(4))
    log.change(at + 200, b"\x55" * 20)
    log.check()


def test_after_bytes_that_were_inserted(tmp_path: Path) -> None:
    """All index entries behind them are wrong."""
    log = TwiceDamaged(tmp_path / "t-0", index_every=4)
    log.zero_sector(log.starts[SECOND] + 200)
    log.hit.add(FIRST)
    at = log.starts[FIRST] + 200
    log.data[at:at] = b"\x11" * 61
    log.check()


def test_before_the_damaged_end_of_the_file(tmp_path: Path) -> None:
    """Nothing sound is behind the second damaged batch."""
    log = TwiceDamaged(tmp_path / "t-0")
    log.zero_sector(log.starts[FIRST] + 200)
    log.change(log.starts[-2] + 8, bytes(4) + b"\x55" * (log.starts[-1] - log.starts[-2] - 12))
    log.check()


@pytest.mark.parametrize("gone", [64, 200, 512])
def test_a_length_that_ends_in_a_later_batch(tmp_path: Path, gone: int) -> None:
    """Bytes of a batch are missing, so its length ends inside of one of the next batches: all of these are whole."""
    builder, starts = PartitionBuilder(tmp_path / "t-0", index_every=10**6), list[int]()
    for number in range(30):
        starts.append(len(builder.log))
        builder.append([(b"k", b"v" * 100)] * 5 if number % 2 else [(b"m", b"x")])
    builder.flush()
    data = builder.path(".log").read_bytes()
    at = starts[11] + 70
    builder.path(".log").write_bytes(data[:at] + data[at + gone :])
    with SegmentReader(OsDisk(), str(builder.path(".log"))) as reader:
        read = [one.header.base_offset for one in reader.batches() if not isinstance(one, Damage) and one.is_valid]
    assert len(read) == 29
    assert LogSalvager(OsDisk()).salvage(str(builder.path(".log")), 0, 0, INT64_MAX).kept == 29


@pytest.mark.parametrize("inner", [2, 4])
def test_payload_between_two_damaged_places_is_not_taken(tmp_path: Path, inner: int) -> None:
    """Batches in a record, with offsets of the batch around them that continue each other; its header and first record are not
    readable, and a later record is damaged, too."""
    log = TwiceDamaged(tmp_path / "t-0")
    payload = b"".join(forged(FIRST * PER_BATCH + 1 + number, 1) for number in range(inner - 1))
    log.replace(FIRST, [b"v" * 700, payload + b"rest", *[b"v" * 100] * 3])
    log.change(log.starts[FIRST], bytes(HEADER_BYTES + 10))
    log.change(log.starts[FIRST + 1] - 150, bytes(20))
    log.change(log.starts[SECOND] + 8, bytes(4) + b"\x55" * 100)
    log.check()


def positions(path: Path, start: int, end: int | None) -> list[int]:
    """The bytes of the sound batches in a part of a segment."""
    with SegmentReader(OsDisk(), str(path), end=end) as reader:
        return [one.position for one in reader.batches(start) if not isinstance(one, Damage) and one.is_valid]


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_segment_have_the_batches_of_all_of_it(tmp_path: Path, seed: int) -> None:
    """Spark reads parts that begin at an index entry: what is behind a part counts for the batches at its end, too."""
    rng, log = random.Random(seed), TwiceDamaged(tmp_path / "t-0", index_every=8)
    for _ in range(4):
        log.zero_sector(rng.randrange(len(log.data)))
    log.change(rng.choice(log.starts[:-1]) + 8, rng.randbytes(4) + rng.randbytes(200))
    log.path.write_bytes(log.data)
    whole = positions(log.path, 0, None)
    for number in range(7, BATCHES, 8):
        if number not in log.hit:
            at = log.starts[number]
            assert positions(log.path, 0, at) + positions(log.path, at, None) == whole


def test_payload_at_the_end_of_a_part_is_not_taken(tmp_path: Path) -> None:
    """What looks like a batch before a damaged one is above the offset of the batch behind the part."""
    log = TwiceDamaged(tmp_path / "t-0", index_every=8)
    broken = bytearray(forged(1_001, 1))
    broken[-1] ^= 1
    log.replace(14, [b"v" * 700, forged(1_000, 1) + broken + b"rest"])
    log.change(log.starts[14], bytes(HEADER_BYTES + 10))
    log.change(log.starts[15] - 20, bytes(20))
    log.path.write_bytes(log.data)
    assert positions(log.path, 0, log.starts[15]) == log.starts[:14]


@pytest.mark.parametrize(
    ("batches", "damage", "is_log"),
    [
        (4, "offset, bit", False),
        (5, "offset, bit", True),
        (1, "nothing but the length", True),
        (7, "header", False),
        (8, "header", True),
        (2, "zeros from a sector on", False),
        (3, "zeros from a sector on", True),
    ],
)
def test_a_run_between_two_damaged_places_is_of_the_log_if_that_is_cheaper(
    tmp_path: Path, batches: int, damage: str, is_log: bool
) -> None:
    """Nothing is left of the header before it; what is behind it decides, and how many batches continue each other."""
    log = TwiceDamaged(tmp_path / "t-0", codec=1)
    second = FIRST + 1 + batches
    if damage == "zeros from a sector on":
        log.put_at_sector_end(second)
    at = log.starts[second]
    log.change(log.starts[FIRST], b"\x11" * (log.starts[FIRST + 1] - log.starts[FIRST]))
    if damage == "offset, bit":
        log.change(at + 7, bytes([log.data[at + 7] ^ 0x80]))
    if damage == "header":
        log.change(at, b"\x11" * HEADER_BYTES)
    if damage == "zeros from a sector on":
        log.zero_sector(at + 3)
    else:
        log.change(at + 8, bytes(4))
        log.change(at + 200, b"\x55" * 20)
    if not is_log:
        log.hit |= set(range(FIRST, second))
    log.check()


@pytest.mark.parametrize("is_far", [False, True])
def test_far_above_the_log_nothing_bounds_payload(tmp_path: Path, is_far: bool) -> None:
    """The last batch of a log may hold a batch far above it, and behind it what looks like a torn header."""
    log = TwiceDamaged(tmp_path / "t-0", codec=1)
    last = log.starts[-2]
    base_offset = (1 << 21) if is_far else BATCHES * PER_BATCH
    inner, rest = forged(base_offset, 1), forged(base_offset + 1, 1)[:30]
    log.data[last + 200 :] = inner + b"?" * len(rest)
    log.hit.add(BATCHES - 1)
    log.starts[-1] = len(log.data)
    log.check()
