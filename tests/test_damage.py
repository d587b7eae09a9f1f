"""The kinds of damage that verify and repair are judged on: each one changes its copy, the same way every time."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import crc32c
import pytest

from tests.damage import DAMAGES, NotApplicableError, copy_partition, damaged_copy

LEAST_KINDS = 36


def make_batch(base_offset: int, producer: tuple[int, int, int], attributes: int, records: bytes, count: int) -> bytes:
    """One batch of format 2 with a CRC that fits; `producer` is id, epoch, base sequence."""
    timestamp = 1_700_000_000_000 + base_offset
    covered = struct.pack(">hiqqqhii", attributes, count - 1, timestamp, timestamp, *producer, count) + records
    return struct.pack(">qiibI", base_offset, 9 + len(covered), 0, 2, crc32c.crc32c(covered)) + covered


def make_segment(base_offset: int, batches: int) -> tuple[bytes, int]:
    """A segment of two-batch transactions with a marker behind each, and the offset behind it."""
    data = bytearray()
    offset = base_offset
    for i in range(batches):
        record = bytes([2 * 107]) + bytes(106)
        if i % 3 == 2:
            marker = bytes([32, 0, 0, 0, 8, 0, 0, 0, 0, 12]) + bytes(7)
            data += make_batch(offset, (7, 0, -1), 0x30, marker, 1)
        else:
            codec = 4 if i % 3 else 0
            data += make_batch(offset, (7, 0, i), 0x10 | codec, record * 10, 10)
        offset += 1 if i % 3 == 2 else 10
    return bytes(data), offset


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition that offers something for every kind: three segments, transactions, a codec, all side files."""
    directory = tmp_path_factory.mktemp("data") / "topic-0"
    directory.mkdir()
    offset = 0
    for _ in range(3):
        data, end_offset = make_segment(offset, 24)
        files = {
            ".log": data,
            ".index": struct.pack(">iiii", 20, 4096, 50, 9000),
            ".timeindex": struct.pack(">qiqi", 1, 20, 2, 50),
            ".txnindex": struct.pack(">hqqqq", 0, 7, offset, offset + 20, offset + 21),
            ".snapshot": struct.pack(">hIi", 1, crc32c.crc32c(bytes(4)), 0) + bytes(46),
        }
        for suffix, content in files.items():
            (directory / f"{offset:020d}{suffix}").write_bytes(content)
        offset = end_offset
    (directory / f"{offset:020d}.snapshot").write_bytes(bytes(10))
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0 0\n")
    (directory / "partition.metadata").write_bytes(b"version: 0\ntopic_id: kcliKcliKcliKcliKcliKQ")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative name."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_there_are_enough_kinds_and_each_says_what_it_does() -> None:
    """The promised number of kinds, each with a sentence."""
    assert len(DAMAGES) >= LEAST_KINDS
    assert [name for name, kind in DAMAGES.items() if not (kind.__doc__ or "").strip().endswith(".")] == []


def test_each_kind_changes_its_copy_in_the_same_way_for_the_same_seed(partition: Path, tmp_path: Path) -> None:
    """No kind is a no-op, which every repair would pass, and a failure that a seed shows can be shown again."""
    before = contents(partition)
    for name in DAMAGES:
        first, again = (contents(damaged_copy(name, partition, tmp_path / name / turn, 3)) for turn in ("first", "again"))
        assert first != before, name
        assert again == first, name
        shutil.rmtree(tmp_path / name)
    assert contents(partition) == before


def test_damage_that_does_not_apply_leaves_no_copy(partition: Path, tmp_path: Path) -> None:
    """A partition of one segment has no older one to damage: said, not skipped in silence."""
    lonely = copy_partition(partition, tmp_path / "lonely")
    for path in lonely.glob("0*"):
        if not path.name.startswith("0" * 20):
            path.unlink()
    with pytest.raises(NotApplicableError):
        damaged_copy("bad_batch_in_old_segment", lonely, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_forged_fields_keep_a_crc_that_fits(partition: Path, tmp_path: Path) -> None:
    """A forged batch must pass the checksum, or it is only another flipped bit."""
    for name in ("forged_count", "forged_sequence", "forged_codec", "forged_record_length", "marker_of_unknown_version"):
        copy = damaged_copy(name, partition, tmp_path / name)
        for log in copy.glob("*.log"):
            data = log.read_bytes()
            position = 0
            while position < len(data):
                length, crc = struct.unpack_from(">i5xI", data, position + 8)
                assert crc32c.crc32c(data[position + 21 : position + 12 + length]) == crc, name
                position += 12 + length
        shutil.rmtree(copy)


def test_damage_differs_between_seeds(partition: Path, tmp_path: Path) -> None:
    """The dice decide where the damage goes: else many seeds would try one case only."""
    found = {
        tuple(sorted(contents(damaged_copy("flip_crc", partition, tmp_path / str(seed), seed)).items())) for seed in range(4)
    }
    assert len(found) > 1
