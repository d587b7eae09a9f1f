"""Splits of damaged segments: the rows do not depend on where a segment is cut, and none of them is invented.

Protects reads with many tasks: a cut at an index entry whose batch had a wrong base offset gave out rows at wrong offsets, and
dropped sound ones.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of, splits_of

Damage = Callable[[random.Random, bytearray, int, int], None]


def base_offset(rng: random.Random, data: bytearray, position: int, end: int) -> None:
    """Change the offset of a batch by a few batches, between the entries of the index around it."""
    (offset,) = struct.unpack_from(">q", data, position)
    struct.pack_into(">q", data, position, max(offset + rng.choice((-9, -8, -4, -1, 1, 2, 5, 11)), 0))


def one_byte(rng: random.Random, data: bytearray, position: int, end: int) -> None:
    data[rng.randrange(position, end)] ^= rng.randrange(1, 256)


def sector(rng: random.Random, data: bytearray, position: int, end: int) -> None:
    start = rng.randrange(position, end) // 128 * 128
    data[start : start + 128] = bytes(len(data[start : start + 128]))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("damage", [base_offset, one_byte, sector])
def test_the_rows_of_one_split(tmp_path: Path, damage: Damage, seed: int) -> None:
    """With onCorrupt=skip, two sizes of splits give the rows of one, and each is a record of the log."""
    rng = random.Random(f"{damage.__name__}-{seed}")
    log = PartitionBuilder(tmp_path / "t-0", index_every=rng.choice((2, 4)))
    for _ in range(14):
        log.append([(b"k", rng.randbytes(rng.randrange(20, 60)))] * 3, codec=rng.choice((0, 0, 4)))
    log.flush()
    path = log.path(".log")
    with SegmentReader(OsDisk(), str(path)) as reader:
        places = [(found.position, found.end_position) for found in reader.batches() if isinstance(found, LogBatch)]
    data = bytearray(path.read_bytes())
    damage(rng, data, *rng.choice(places))
    path.write_bytes(data)

    def read(**options: str) -> list[tuple[int, bytes]]:
        return [(row["offset"], row["value"]) for row in rows_of(tmp_path, onCorrupt="skip", **options)]

    whole = read()
    assert len(splits_of(tmp_path, onCorrupt="skip", maxPartitionBytes="400")[1]) > 1
    assert read(maxPartitionBytes="400") == read(maxPartitionBytes="900") == whole
    written = {(row.offset, row.value) for row in log.rows}
    assert set(whole) <= written and len(set(whole)) == len(whole) >= len(written) - 9


def test_a_segment_that_reaches_into_the_next_one(tmp_path: Path) -> None:
    """The first batches of a file that another one follows by its name are faults; a split that ended at one believed it.

    It is a copy of the segment but for one batch, which only this file has: a whole copy is left out.
    """
    log = PartitionBuilder(tmp_path / "t-0", index_every=1)
    for _ in range(6):
        log.append([(b"k", b"v" * 40)] * 3)
    log.flush()
    copy = bytearray(log.path(".log").read_bytes())
    copy[7] = 100  # the base offset of the first batch
    (tmp_path / "t-0" / f"{10:020}.log").write_bytes(copy)
    whole = [row["offset"] for row in rows_of(tmp_path, onCorrupt="skip")]
    split = [row["offset"] for row in rows_of(tmp_path, onCorrupt="skip", maxPartitionBytes="200")]
    assert split == whole and whole[:9] == list(range(9)) and 9 not in whole
