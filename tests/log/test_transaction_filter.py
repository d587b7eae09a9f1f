"""Aborted and open transactions: from indexes, snapshots and markers, which must all tell the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_log_directory, read_partition
from kcli.log.reading.transaction_filter import AbortedTransaction, AbortedTransactions, OpenTransaction
from tests.conftest import every_log_set
from tests.log_builder import PartitionBuilder

PLAIN = [(b"k", b"v")]


def build(directory: Path) -> PartitionBuilder:
    """Three segments: producer 1 aborts over a roll, 2 commits, 3 stays open behind one plain batch."""
    log = PartitionBuilder(directory)
    log.append(PLAIN * 2)  # 0..1
    log.append(PLAIN * 3, producer=1, transactional=True)  # 2..4
    log.append(PLAIN, producer=2, transactional=True)  # 5
    log.roll()
    log.append(PLAIN, producer=1, transactional=True)  # 6
    log.end_transaction(1, commit=False)  # 7
    log.end_transaction(2, commit=True)  # 8
    log.append(PLAIN, producer=1, transactional=True)  # 9
    log.end_transaction(1, commit=True)  # 10
    log.roll()
    log.append(PLAIN * 2)  # 11..12
    log.append(PLAIN * 2, producer=3, transactional=True)  # 13..14
    log.append(PLAIN)  # 15
    log.flush()
    return log


def load(directory: Path) -> AbortedTransactions:
    return AbortedTransactions.for_partition(OsDisk(), read_partition(OsDisk(), str(directory)))


def check(found: AbortedTransactions) -> None:
    assert found.aborted == [AbortedTransaction(1, 2, 7)]
    assert found.open_transactions == [OpenTransaction(3, 0, 13)]
    assert found.log_end_offset == 16
    assert found.last_stable_offset == 13


def test_indexes_and_snapshots_tell_all(tmp_path: Path) -> None:
    """The ordinary case; ranges include the marker and end there, and another producer's offsets are not touched."""
    build(tmp_path / "t-0")
    found = load(tmp_path / "t-0")
    check(found)
    assert not found.problems
    assert [found.is_aborted(1, offset) for offset in (1, 2, 4, 6, 7, 8, 9)] == [False, True, True, True, True, False, False]
    assert not found.is_aborted(2, 5)
    assert [found.is_open(3, offset) for offset in (12, 13, 14)] == [False, True, True]
    assert not found.is_open(1, 14)


def test_a_copied_log_without_companions_is_scanned(tmp_path: Path) -> None:
    """A backup of .log files alone gives the same answer, from the markers."""
    build(tmp_path / "t-0")
    for path in (tmp_path / "t-0").iterdir():
        if path.suffix != ".log":
            path.unlink()
    check(load(tmp_path / "t-0"))


@pytest.mark.parametrize("kept", [0, 20, 40])
def test_a_damaged_transaction_index_is_made_up_for(tmp_path: Path, kept: int) -> None:
    """An index cut inside an entry, or with bytes behind it, or emptied of meaning, is replaced by a scan and reported."""
    build(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{6:020d}.txnindex"
    data = path.read_bytes()
    path.write_bytes(data[:kept] if kept < len(data) else data + bytes(kept - len(data)))
    if kept == 0:
        path.write_bytes(b"\xff" * 34)
    found = load(tmp_path / "t-0")
    check(found)
    assert found.problems


def test_a_damaged_snapshot_is_made_up_for(tmp_path: Path) -> None:
    """Without the snapshot at a segment's base the scan begins a segment earlier."""
    build(tmp_path / "t-0")
    for base in (6, 11):
        path = tmp_path / "t-0" / f"{base:020d}.snapshot"
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    (tmp_path / "t-0" / f"{6:020d}.txnindex").write_bytes(b"\xff" * 34)
    found = load(tmp_path / "t-0")
    check(found)
    assert len(found.problems) >= 2


def test_the_index_lacks_what_a_crash_took(tmp_path: Path) -> None:
    """An abort behind the newest snapshot counts though its index entry never reached the disk."""
    log = build(tmp_path / "t-0")
    at = log.end_transaction(3, commit=False)
    log.flush()
    log.path(".txnindex").unlink()
    found = load(tmp_path / "t-0")
    assert found.aborted == [AbortedTransaction(1, 2, 7), AbortedTransaction(3, 13, at)]
    assert found.last_stable_offset == found.log_end_offset == at + 1


def test_a_snapshot_at_the_end_spares_the_scan(tmp_path: Path) -> None:
    """After a clean shutdown the open transactions come from the snapshot at the log's end: its word counts, not a scan's."""
    log = build(tmp_path / "t-0")
    log._open[99] = 1
    log.snapshot()
    assert OpenTransaction(99, 0, 1) in load(tmp_path / "t-0").open_transactions


def test_a_flipped_bit_opens_no_transaction(tmp_path: Path) -> None:
    """A batch that turned transactional by damage must not hide the records behind it."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append(PLAIN, producer=4)
    log.append(PLAIN)
    log.flush()
    data = bytearray(log.log)
    data[22] |= 0x10
    log.path(".log").write_bytes(data)
    found = load(tmp_path / "t-0")
    assert found.last_stable_offset == 2
    assert "wrong CRC" in found.problems[0]


def test_damage_in_the_middle_does_not_end_the_scan(tmp_path: Path) -> None:
    """Behind a batch with a lying length the markers are still found."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append(PLAIN, producer=1, transactional=True)
    start = len(log.log)
    log.append(PLAIN)
    log.end_transaction(1, commit=False)
    log.flush()
    data = bytearray(log.log)
    data[start + 8 : start + 12] = (5).to_bytes(4, "big")
    log.path(".log").write_bytes(data)
    found = load(tmp_path / "t-0")
    assert found.aborted == [AbortedTransaction(1, 0, 2)]
    assert found.log_end_offset == 3


def test_within_keeps_what_touches() -> None:
    """A task gets only the ranges that its offsets need."""
    found = AbortedTransactions([AbortedTransaction(1, 0, 5), AbortedTransaction(1, 10, 15)], [], 20)
    assert found.within(5, 10).aborted == [AbortedTransaction(1, 0, 5)]
    assert found.within(6, 10).aborted == []
    assert found.within(15, 16).aborted == [AbortedTransaction(1, 10, 15)]


def test_an_empty_partition(tmp_path: Path) -> None:
    """No segment: nothing aborted, nothing stable, no error."""
    (tmp_path / "t-0").mkdir()
    found = load(tmp_path / "t-0")
    assert (found.aborted, found.open_transactions, found.last_stable_offset) == ([], [], 0)


def test_given_logs_agree_with_their_markers() -> None:
    """On what Kafka wrote, the indexes and a scan of every marker tell the same wherever the cleaner has not been."""
    disk = OsDisk()
    compared = 0
    for log_set in every_log_set():
        for partition in read_log_directory(disk, str(log_set.data)).partitions:
            if partition.topic.startswith("compacted"):
                continue
            bare = [segment._replace(offset_index=None, transaction_index=None) for segment in partition.segments]
            indexed = AbortedTransactions.for_partition(disk, partition)
            scanned = AbortedTransactions.for_partition(disk, partition._replace(segments=bare, snapshots=[]))
            assert indexed.aborted == scanned.aborted, partition.path
            assert indexed.open_transactions == scanned.open_transactions, partition.path
            assert indexed.log_end_offset == scanned.log_end_offset, partition.path
            compared += len(indexed.aborted) + len(indexed.open_transactions)
    assert compared
