"""Protects segments under wrong names: no record and no offset is lost in silence where a name and the batches disagree."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kcli.inspect.repairing.repair import CLEAN, NO_LONGER_CLEAN
from tests.damage.layout import patch
from tests.inspect.repaired import holes, repair, segments
from tests.inspect.verified import batch, codes, partition, root_files, verify


def exchange(root: Path, one: int, other: int) -> None:
    logs = [root / "t-0" / f"{base:020d}.log" for base in (one, other)]
    contents = [log.read_bytes() for log in logs]
    for log, content in zip(logs, reversed(contents), strict=True):
        log.write_bytes(content)


@pytest.mark.parametrize("behind", [1, 2])
def test_exchanged_segments_whose_names_differ_in_one_bit(tmp_path: Path, behind: int) -> None:
    """One batch may have a wrong bit in its offset, but not two files the same one: they get their names back."""
    partition(tmp_path, "t-0", [batch(0, 8)], [batch(8 + index) for index in range(behind)])
    root_files(tmp_path, recovery_point={"t-0": 8 + behind}, replication={"t-0": 8 + behind})
    before = segments(tmp_path)
    exchange(tmp_path, 0, 8)
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset, shutdown) == (before, [], 8 + behind, CLEAN)


def test_a_wrong_bit_in_the_only_batch_of_a_segment_is_no_name(tmp_path: Path) -> None:
    """Renamed to its offset the segment would be the end of the log, 16 million offsets beyond the last record.

    A cleaner took the first batches of the segment, so its batch does not begin at the offset in the name.
    """
    path = partition(tmp_path, "t-0", [batch(0, 3)], [batch(4)], [batch(13, 3)])
    path.joinpath(f"{4:020d}.log").write_bytes(batch((1 << 24) + 6, 5).encode())
    root_files(tmp_path, recovery_point={"t-0": 16}, replication={"t-0": 16}, cleaner={"t-0": 13})
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), plan.log_end_offset, shutdown) == ({0: [0], 13: [13]}, 16, NO_LONGER_CLEAN)
    assert any(first <= 6 and end is not None and end >= 11 for first, end in holes(plan))


def test_a_damaged_batch_goes_with_a_copy_and_is_named(tmp_path: Path) -> None:
    """All sound batches of a file are in other segments. Its damaged one is not: the file is no mere copy."""
    path = partition(tmp_path, "t-0", [batch(0, 5)], [batch(5, 3)], [batch(8, 9)])
    logs = sorted(path.glob("*.log"))
    contents = [log.read_bytes() for log in logs]
    damaged = contents[1][:-1] + bytes([contents[1][-1] ^ 1])
    logs[1].write_bytes(contents[0] + damaged + contents[2])
    root_files(tmp_path, recovery_point={"t-0": 17}, replication={"t-0": 17}, cleaner={"t-0": 8})
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), shutdown) == ({0: [0], 8: [8]}, [(5, 8)], NO_LONGER_CLEAN)


def test_a_damaged_first_batch_has_its_part_in_the_name(tmp_path: Path) -> None:
    """The name of its first sound batch would put the batch before it outside of the segment."""
    partition(tmp_path, "t-0", [batch(5, 2), batch(7, 2)], [batch(9, 8), batch(17)], epochs=[(0, 5)])
    root_files(tmp_path, recovery_point={"t-0": 18}, replication={"t-0": 18})
    exchange(tmp_path, 5, 9)
    patch(tmp_path / "t-0" / f"{9:020d}.log", 8, struct.pack(">i", 5000))
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), shutdown) == ({5: [5, 7], 9: [9, 17]}, [], CLEAN)


def test_of_two_copies_of_a_segment_each_goes_once(tmp_path: Path) -> None:
    """One copy has an index and the other has none: neither of them makes the other the original."""
    path = partition(tmp_path, "t-0", [batch(0, 8), batch(8, 9)])
    root_files(tmp_path, recovery_point={"t-0": 17}, replication={"t-0": 17})
    for suffix, names in ((".log", (1, 500)), (".index", (500,)), (".timeindex", (500,))):
        for name in names:
            (path / f"{name:020d}{suffix}").write_bytes((path / f"{0:020d}{suffix}").read_bytes())
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.left, shutdown) == ({0: [0, 8]}, [], [], CLEAN)


def test_of_two_copies_with_a_wrong_first_offset_the_one_whose_name_suits_fewer_batches_goes(tmp_path: Path) -> None:
    """The wrong offset, which the CRC does not cover, is beyond the name of the copy: only the other batches show the copy."""
    path = partition(tmp_path, "t-0", [batch(0, 8), batch(8), batch(9, 3)])
    root_files(tmp_path, recovery_point={"t-0": 12}, replication={"t-0": 12})
    patch(path / f"{0:020}.log", 0, struct.pack(">q", 1 << 31))
    for suffix in (".log", ".index", ".timeindex"):
        (path / f"{12:020}{suffix}").write_bytes((path / f"{0:020}{suffix}").read_bytes())
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset, shutdown) == ({0: [0, 8, 9]}, [], 12, CLEAN)


def test_an_empty_segment_with_a_name_within_the_batches_does_not_cut_them(tmp_path: Path) -> None:
    """It was the active one, and renamed: sound batches are more than a name."""
    path = partition(tmp_path, "t-0", [batch(0, 8), batch(8), batch(9, 3)])
    root_files(tmp_path, clean=False)
    (path / f"{0:020}.index").write_bytes(b"\xff" * 8)
    for suffix in (".log", ".index", ".timeindex"):
        (path / f"{11:020}{suffix}").write_bytes(b"")
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset) == ({0: [0, 8, 9]}, [], 12)


@pytest.mark.parametrize("log_start", [855, 856])
def test_a_partition_of_which_nothing_is_left_ends_at_its_log_start_or_beyond(tmp_path: Path, log_start: int) -> None:
    """A wrong log start offset deletes a log; of this one nothing is left to be deleted."""
    partition(tmp_path, "t-0")
    root_files(tmp_path, clean=False, recovery_point={"t-0": 855}, log_start={"t-0": log_start})
    plan, _ = repair(tmp_path)
    assert (plan.log_end_offset, plan.log_start_offset) == (log_start, log_start)


def test_a_batch_of_an_overlapping_segment_that_continues_a_damaged_one_counts_for_the_end(tmp_path: Path) -> None:
    """It goes, for the other segment has the name of its offsets; they were given out all the same."""
    last = batch(10, 8)
    path = partition(tmp_path, "t-0", [batch(0, 5), batch(5, 3), batch(8, 2), last], epochs=[(0, 0)])
    torn = [batch(5, 3).encode(), batch(8, 2).encode()]
    root_files(tmp_path, clean=False)
    (path / f"{5:020}.log").write_bytes(torn[0] + torn[1][:-3])
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == 18


def test_a_renamed_segment_whose_indexes_kept_their_name_gets_it_back(tmp_path: Path) -> None:
    """A cleaner took the batch behind the first one, so that nothing but the indexes shows which of the two names is right."""
    path = partition(tmp_path, "t-0", [batch(7, 10)], [batch(17, 3), batch(21, 2)], [batch(23)], epochs=[(0, 7)])
    root_files(tmp_path, recovery_point={"t-0": 24}, replication={"t-0": 24}, cleaner={"t-0": 23})
    (path / f"{17:020}.log").rename(path / f"{18:020}.log")
    plan, shutdown = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), shutdown) == ({7: [7], 17: [17, 21], 23: [23]}, [], CLEAN)


def test_the_indexes_of_a_torn_copy_are_no_evidence(tmp_path: Path) -> None:
    """Its first batch is torn and begins below the name: the offsets in its indexes count from a wrong name."""
    path = partition(tmp_path, "t-0", [batch(0, 6)], [batch(6, 8), batch(14, 5)])
    root_files(tmp_path, clean=False)
    (path / f"{6:020d}.log").write_bytes(batch(6, 8).encode()[:-7])
    for suffix in (".log", ".index", ".timeindex"):
        (path / f"{516:020d}{suffix}").write_bytes((path / f"{6:020d}{suffix}").read_bytes())
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset is not None
    assert plan.log_end_offset <= 516


def test_a_batch_that_contradicts_its_segments_name_counts_for_the_end(tmp_path: Path) -> None:
    """It goes, for its offset or the name is wrong. Its offsets were given out all the same."""
    partition(tmp_path, "t-0", [batch(0, 3)])
    for file in (tmp_path / "t-0").glob(f"{0:020d}.*"):
        file.rename(file.with_name(f"{2:020d}{file.suffix}"))
    root_files(tmp_path, clean=False, replication={"t-0": 2})
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == 3
    assert holes(plan) == [(0, 2), (2, 3)]


@pytest.mark.parametrize("offset", [2, 10 + (1 << 17)])
def test_like_kafka_names_the_offsets_of_a_batch_with_a_wrong_one(tmp_path: Path, offset: int) -> None:
    """Kafka leaves the batch where it is: no record has the offsets that it had, and the stop was not a clean one."""
    path = partition(tmp_path, "t-0", [batch(0, 10), batch(10, 3), batch(13, 4)])
    root_files(tmp_path, recovery_point={"t-0": 17}, replication={"t-0": 17})
    patch(path / f"{0:020d}.log", len(batch(0, 10).encode()), struct.pack(">q", offset))
    plan, shutdown = repair(tmp_path, like_kafka=True)
    assert shutdown == NO_LONGER_CLEAN
    assert any(first <= 10 and end is not None and end >= 13 for first, end in holes(plan))
    assert not any(end is None or (first <= 13 and end > 13) for first, end in holes(plan))


def test_like_kafka_names_the_records_below_a_wrong_name(tmp_path: Path) -> None:
    """A name above the first batch moves the start of the log behind records, which no consumer can read then."""
    path = partition(tmp_path, "t-0", [batch(20, 8)], epochs=[(0, 20)])
    for file in path.glob(f"{20:020d}.*"):
        file.rename(file.with_name(f"{21:020d}{file.suffix}"))
    root_files(tmp_path, recovery_point={"t-0": 28}, replication={"t-0": 28})
    plan, shutdown = repair(tmp_path, like_kafka=True)
    assert (holes(plan), shutdown) == ([(20, 21)], NO_LONGER_CLEAN)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_displaced_batch_is_lost_where_no_other_has_its_offsets(tmp_path: Path, indexed: bool) -> None:
    """A wrong bit lets it reach over the next batch: that one is there, and no hole names its offset.

    In a compacted log only an index entry at its byte shows which offset it had.
    """
    path = partition(tmp_path, "t-0", [batch(0, 3), batch(6, 5), batch(11, 2), batch(13, 3)])
    patch(path / f"{0:020d}.log", len(batch(0, 3).encode()), struct.pack(">q", 7))
    root_files(tmp_path, recovery_point={"t-0": 16}, replication={"t-0": 16}, cleaner={"t-0": 16})
    if not indexed:
        path.joinpath(f"{0:020d}.index").unlink()
        path.joinpath(f"{0:020d}.timeindex").unlink()
    plan, _ = repair(tmp_path)
    expected: tuple[list[int], list[tuple[int, int]]] = ([0, 6, 11, 13], []) if indexed else ([0, 11, 13], [(3, 11)])
    assert (segments(tmp_path), holes(plan)) == ({0: expected[0]}, expected[1])


def test_verify_does_not_miss_offsets_that_a_segment_with_a_wrong_name_has(tmp_path: Path) -> None:
    """A repair renames the segment: the advice that the records cannot be restored was wrong."""
    path = partition(tmp_path, "t-0", [batch(3, 5), batch(8), batch(9, 3)], epochs=[(0, 0)])
    root_files(tmp_path, recovery_point={"t-0": 12}, replication={"t-0": 12})
    for file in path.glob(f"{3:020}.*"):
        file.rename(file.with_name(f"{50:020}{file.suffix}"))
    report = verify(tmp_path)
    assert "segment-overlap" not in codes(report)
    assert [finding.message for finding in report.findings if finding.code == "segment-gap"] == [
        "missing before the first segment, which begins at offset 50: offsets 0 to 2"
    ]
    plan, _ = repair(tmp_path)
    assert (segments(tmp_path), holes(plan), plan.log_end_offset) == ({3: [3, 8, 9]}, [(0, 3)], 12)
