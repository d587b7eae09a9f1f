"""Protects idempotent producers: a batch stands once, gaps and old epochs are refused, and a restart forgets nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.file_names import FileKind
from kcli.format.structs import ABORTED_TXN
from kcli.log.disk.os_disk import OsDisk, OsLogFile
from kcli.log.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from kcli.log.log_config import LogConfig
from kcli.log.log_validator import AppendOrigin
from kcli.log.producer_state_manager import VerificationStateEntry
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch, of_producer


class _CountingDisk(OsDisk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def read_file(self, path: str, limit: int) -> bytes:
        """Count the file."""
        data = super().read_file(path, limit)
        self.read_bytes += len(data)
        return data

    def open_log_file(self, path: str, *, create: bool) -> OsLogFile:
        """Open one that counts what is read of it."""
        return _CountedFile(self, path, create=create)


class _CountedFile(OsLogFile):
    def __init__(self, disk: _CountingDisk, path: str, *, create: bool) -> None:
        super().__init__(path, create=create)
        self._counting = disk

    def read_at(self, position: int, size: int) -> bytes:
        """Count the bytes."""
        data = super().read_at(position, size)
        self._counting.read_bytes += len(data)
        return data


def test_duplicates_get_the_first_copys_offsets(live: LiveLog) -> None:
    """Of the last five batches each is known again; the sixth is out of order. Nothing is written."""
    for at in range(6):
        live.append(of_producer(7, 10 * at, 10))
    size = live.log.size_bytes
    for at in range(1, 6):
        info = live.log.append_as_leader(of_producer(7, 10 * at, 10), 0, NOW_MS)
        assert (info.duplicate, info.first_offset, info.last_offset) == (True, 10 * at, 10 * at + 9)
        assert info.log_append_time_ms == NOW_MS
    assert live.log.size_bytes == size
    assert type(live.refused(of_producer(7, 0, 10))) is OutOfOrderSequenceError
    # Part of a batch is no duplicate.
    assert type(live.refused(of_producer(7, 50, 9))) is OutOfOrderSequenceError


def test_sequences_go_on_and_wrap(live: LiveLog) -> None:
    """A gap is refused, the next is taken; behind 2**31 - 1 comes 0; a producer not known begins anywhere."""
    live.append(of_producer(7, 2**31 - 3, 2))
    assert type(live.refused(of_producer(7, 5))) is OutOfOrderSequenceError
    live.append(of_producer(7, 2**31 - 1))
    live.append(of_producer(7, 0, 3))
    live.append(of_producer(7, 3))
    info = live.log.append_as_leader(of_producer(7, 0, 3), 0, NOW_MS)
    assert info.duplicate


def test_epochs_rise(live: LiveLog) -> None:
    """A new epoch begins at sequence 0; an older one is fenced, and its batches are no duplicates."""
    live.append(of_producer(7, 0, 3))
    assert type(live.refused(of_producer(7, 3, 1, epoch=1))) is OutOfOrderSequenceError
    live.append(of_producer(7, 0, 3, epoch=1))
    assert type(live.refused(of_producer(7, 0, 3))) is InvalidProducerEpochError
    assert type(live.refused(of_producer(7, 3))) is InvalidProducerEpochError
    live.append(of_producer(7, 3, epoch=1))


def test_a_refused_batch_leaves_the_producer_as_it_was(live: LiveLog) -> None:
    """After an error the next in sequence is taken."""
    live.append(of_producer(7, 0, 3))
    live.refused(of_producer(7, 9))
    live.refused(new_batch(producer=(7, 0, 3), timestamps=[NOW_MS * 2]))
    live.append(of_producer(7, 3))


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_knows_the_producers(live: LiveLog, clean: bool) -> None:
    """The snapshot of a clean stop has the last batch; all five are known again, whether the log was rebuilt or not."""
    for at in range(7):
        live.append(of_producer(7, at), of_producer(8, 2 * at, 2))
    if clean:
        live.stop()
    else:
        live.crash()
    assert live.log.append_as_leader(of_producer(7, 6), 0, NOW_MS).duplicate
    assert live.log.append_as_leader(of_producer(8, 12, 2), 0, NOW_MS).last_offset == 20
    assert type(live.refused(of_producer(7, 8))) is OutOfOrderSequenceError
    for at in (2, 4):
        repeated = live.log.append_as_leader(of_producer(7, at), 0, NOW_MS)
        assert (repeated.duplicate, repeated.first_offset, repeated.last_offset) == (True, 3 * at, 3 * at)
    assert type(live.refused(of_producer(7, 1))) is OutOfOrderSequenceError
    live.append(of_producer(7, 7), of_producer(8, 14))


def test_batches_under_way_at_a_restart_stand_once(tmp_path: Path) -> None:
    """Those before the last one are found in the log: in earlier segments, and also after newer batches of the producer."""
    live = LiveLog(tmp_path, LogConfig(segment_bytes=1000, index_interval_bytes=100))
    for at in range(6):
        live.append(of_producer(7, 3 * at, 3), *(new_batch() for _ in range(9)), of_producer(8, at))
    assert len(live.sizes()) > 5
    live.stop()
    live.append(of_producer(7, 18), of_producer(7, 19))
    for at in (3, 4, 5):
        info = live.log.append_as_leader(of_producer(7, 3 * at, 3), 0, NOW_MS)
        assert (info.duplicate, info.first_offset, info.last_offset) == (True, 13 * at, 13 * at + 2)
    # The sixth from the end; another size; another epoch.
    assert type(live.refused(of_producer(7, 6, 3))) is OutOfOrderSequenceError
    assert type(live.refused(of_producer(7, 9, 2))) is OutOfOrderSequenceError
    assert type(live.refused(of_producer(7, 9, 3, epoch=1))) is OutOfOrderSequenceError
    assert live.log.append_as_leader(of_producer(8, 2), 0, NOW_MS).duplicate


def test_earlier_batches_are_those_of_the_epoch(live: LiveLog) -> None:
    """A batch of an earlier epoch is not taken for one of the present epoch, nor is a marker."""
    live.append(of_producer(7, 0), of_producer(7, 1), of_producer(7, 0, epoch=1, transactional=True))
    live.append(marker(7, abort=False, epoch=1), of_producer(7, 1, epoch=1), of_producer(7, 2, epoch=1))
    live.stop()
    for at, offset in ((0, 2), (1, 4)):
        info = live.log.append_as_leader(of_producer(7, at, epoch=1, transactional=not at), 0, NOW_MS)
        assert (info.duplicate, info.first_offset) == (True, offset)
    entry = live.log.producers.producers[7]
    assert [batch.last_offset for batch in entry.batches] == [2, 4, 5]


@pytest.mark.parametrize(("others", "is_found"), [(998, True), (1000, False)])
def test_the_search_for_earlier_batches_is_short(tmp_path: Path, others: int, is_found: bool) -> None:
    """It reads 1,000 headers, once for each producer, and is not repeated by a client that goes on to send such batches."""
    disk = _CountingDisk()
    live = LiveLog(tmp_path, disk=disk)
    live.append(of_producer(7, 0), *(new_batch([b"v" * 100]) for _ in range(others)), of_producer(7, 1))
    live.stop()
    before = disk.read_bytes
    if is_found:
        assert live.log.append_as_leader(of_producer(7, 0), 0, NOW_MS).duplicate
    else:
        live.refused(of_producer(7, 0))
    assert 0 < disk.read_bytes - before < 1000 * 256
    before = disk.read_bytes
    live.refused(of_producer(7, 0, 2))
    assert disk.read_bytes == before


def test_producers_expire(live: LiveLog) -> None:
    """Idle ones are forgotten after producer.id.expiration.ms, and may then begin with any sequence; not in a transaction."""
    live.append(of_producer(7, 0), of_producer(8, 0, transactional=True))
    live.log.producers.remove_expired(NOW_MS + 999, 1000)
    assert type(live.refused(of_producer(7, 5))) is OutOfOrderSequenceError
    live.log.producers.remove_expired(NOW_MS + 1000, 1000)
    assert set(live.log.producers.producers) == {8}
    live.append(of_producer(7, 5))


def test_transactions_hold_the_last_stable_offset(live: LiveLog) -> None:
    """An open transaction holds it; a commit releases it; a read returns the aborted transactions of its offsets."""
    live.append(new_batch(), of_producer(7, 0, 2, transactional=True), of_producer(8, 0, 2, transactional=True), new_batch())
    assert (live.log.last_stable_offset, live.log.high_watermark) == (1, 6)
    live.append(marker(7, abort=False))
    assert live.log.last_stable_offset == 3
    assert live.log.aborted_transactions(0, 7) == []
    live.append(marker(8, abort=True))
    assert live.log.last_stable_offset == live.log.log_end_offset == 8
    (aborted,) = live.log.aborted_transactions(0, 8)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (8, 3, 7)
    assert live.log.aborted_transactions(0, 3) == []
    live.stop()
    assert live.log.aborted_transactions(4, 5) == [aborted]
    assert live.faults() == []


def test_aborted_transactions_are_found_among_very_many(tmp_path: Path) -> None:
    """Any range has those that touch it, as a scan of all of them finds; the file is read only where they are."""
    disk = _CountingDisk()
    live = LiveLog(tmp_path / "t-0", LogConfig(segment_bytes=100_000), disk=disk)
    rng = random.Random("aborted")
    open_since: dict[int, int] = {}
    known: list[tuple[int, int, int]] = []
    for turn in range(1500):
        producer_id = rng.randrange(4) if turn % 50 == 0 else 9
        if producer_id in open_since:
            known.append((producer_id, open_since.pop(producer_id), live.log.log_end_offset))
            live.append(marker(producer_id, abort=True))
        else:
            open_since[producer_id] = live.append(of_producer(producer_id, 0, epoch=0, transactional=True))
            entry = live.log.producers.producers[producer_id]
            entry.batches.clear()
    assert live.log.segment_count > 1 and len(known) > 600
    for _ in range(300):
        start = rng.randrange(live.log.log_end_offset)
        end = start + rng.choice([1, 2, 30, 1000])
        found = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in live.log.aborted_transactions(start, end)]
        assert found == [txn for txn in known if txn[2] >= start and txn[1] < end], (start, end)


def test_a_search_for_aborted_transactions_reads_little(tmp_path: Path) -> None:
    """A `.txnindex` with 20,000 entries costs a reader of one batch a bisection, wherever in the log that is."""
    disk = _CountingDisk()
    live = LiveLog(tmp_path / "t-0", disk=disk)
    live.append(of_producer(7, 0, transactional=True), marker(7, abort=True))
    path = live.log.local_log().active.segment.path(FileKind.TXN_INDEX)
    count = 20_000
    disk.write_file(path, b"".join(ABORTED_TXN.pack(0, 7, 2 * at, 2 * at + 1, 2 * at + 2) for at in range(count)))
    for at in (0, 1, count // 3, count - 1):
        disk.read_bytes = 0
        assert [txn.first_offset for txn in live.log.aborted_transactions(2 * at, 2 * at + 2)] == [2 * at]
        assert disk.read_bytes < 8000


def test_transactions_outlive_a_crash(live: LiveLog) -> None:
    """An open one is open again, an aborted one stands in the rebuilt index."""
    live.append(of_producer(7, 0, 2, transactional=True), of_producer(8, 0, 1, transactional=True), marker(7, abort=True))
    live.crash()
    live.log.update_high_watermark(live.log.log_end_offset)
    assert live.log.last_stable_offset == 2
    assert [txn.producer_id for txn in live.log.aborted_transactions(0, 4)] == [7]
    assert type(live.refused(of_producer(8, 1))) is InvalidTransactionStateError


def test_a_marker_has_the_time_of_its_append_where_all_records_do(tmp_path: Path) -> None:
    """LogAppendTime applies to markers, too: recovery and the snapshot of a live log have the same timestamp."""
    live = LiveLog(tmp_path / "t-0", LogConfig(message_timestamp_type="LogAppendTime"))
    live.append(of_producer(1, 0, transactional=True), now_ms=NOW_MS + 500)
    live.append(marker(1, abort=False), now_ms=NOW_MS + 700)
    assert live.log.producers.producers[1].last_timestamp == NOW_MS + 700
    live.stop()
    assert live.faults() == []
    assert live.crash().producers.producers[1].last_timestamp == NOW_MS + 700


def test_markers_are_checked(live: LiveLog) -> None:
    """Old producer and coordinator epochs are refused; version 2 wants a higher epoch, but takes a marker again."""
    live.append(of_producer(7, 0, 1, epoch=5, transactional=True), marker(7, abort=False, epoch=5, coordinator_epoch=3))
    origin = AppendOrigin.COORDINATOR
    assert type(live.refused(marker(7, abort=False, epoch=4), origin=origin)) is InvalidProducerEpochError
    assert type(live.refused(marker(7, abort=False, epoch=6, coordinator_epoch=2), origin=origin)) is CoordinatorFencedError
    live.log.append_as_leader(
        marker(7, abort=False, epoch=5, coordinator_epoch=3), 0, NOW_MS, origin=origin, transaction_version=2
    )
    live.append(of_producer(7, 1, 1, epoch=5, transactional=True))
    with pytest.raises(InvalidProducerEpochError):
        live.log.append_as_leader(
            marker(7, abort=False, epoch=5, coordinator_epoch=3), 0, NOW_MS, origin=origin, transaction_version=2
        )
    assert (
        "marker" in live.refused(new_batch([b"x"], keys=[b"\0"], producer=(7, 5, -1), attributes=0x30), origin=origin).message
    )


@pytest.mark.parametrize(("epoch", "transactional"), [(5, True), (6, True), (5, False)])
def test_no_batch_of_a_producer_is_appended_before_the_one_that_waits(live: LiveLog, epoch: int, transactional: bool) -> None:
    """Not one of another epoch, nor one of no transaction, as in Kafka (ProducerAppendInfo.checkSequence)."""
    live.log.producers.verifications[7] = VerificationStateEntry(6, NOW_MS, 2, is_epoch_bumped=False)
    assert type(live.refused(of_producer(7, 3, 1, epoch=epoch, transactional=transactional))) is OutOfOrderSequenceError
    live.append(of_producer(7, 2, 1, epoch=epoch, transactional=transactional))


def test_snapshots_are_taken_when_segments_are_rolled(tmp_path: Path) -> None:
    """One a segment, with the producers up to its start; a crash that loses the rest rebuilds from it."""
    live = LiveLog(tmp_path / "t-0", LogConfig(segment_bytes=200))
    for at in range(6):
        live.append(of_producer(7, at))
    bases = [base for base in live.log.base_offsets if base]
    assert bases
    assert sorted(int(path.name[:20]) for path in live.directory.glob("*.snapshot")) == bases
    live.crash(recovery_point=bases[-1])
    live.append(of_producer(7, 6))
    assert live.log.append_as_leader(of_producer(7, 5), 0, NOW_MS).duplicate
