"""Protects what a partition knows of its producers (expectations: Kafka's ProducerStateManager under replication)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, RecordBatch
from kcli.log.disk.os_disk import OsDisk
from kcli.log.producer_state_manager import (
    CompletedTxn,
    InvalidTxnStateError,
    ProducerStateManager,
)


def batch(
    offset: int, count: int = 1, *, producer: int = 1, epoch: int = 0, sequence: int = 0, flags: int = 0, at: int = 1000
) -> RecordBatch:
    return RecordBatch(0, offset, 49, 0, 2, 0, flags, count - 1, at, at, producer, epoch, sequence, count)


ABORT = EndTransactionMarker(True, 3, 2000)
COMMIT = EndTransactionMarker(False, 3, 2000)


@pytest.fixture
def manager(tmp_path: Path) -> ProducerStateManager:
    return ProducerStateManager(OsDisk(), str(tmp_path))


def apply(manager: ProducerStateManager, one: RecordBatch, marker: EndTransactionMarker | None = None) -> CompletedTxn | None:
    info = manager.prepare_update(one.producer_id)
    completed = info.append(one, marker)
    manager.update(info)
    if completed is not None:
        manager.complete(completed)
    manager.map_end_offset = one.next_offset
    return completed


def marker_at(offset: int, **fields: int) -> RecordBatch:
    return batch(offset, sequence=-1, flags=TRANSACTIONAL_FLAG | CONTROL_FLAG, **fields)


def test_five_batches_are_kept_and_another_epoch_forgets_them(manager: ProducerStateManager) -> None:
    """Sequences are not checked: what is in the log was accepted by a leader."""
    for i in range(7):
        apply(manager, batch(10 * i, 10, sequence=1000 * i))
    state = manager.producers[1]
    assert [found.last_offset for found in state.batches] == [29, 39, 49, 59, 69]
    assert (state.batches[-1].last_sequence, state.batches[-1].offset_delta) == (6009, 9)
    apply(manager, batch(70, epoch=1))
    assert [found.last_offset for found in state.batches] == [70]
    apply(manager, batch(71, epoch=0))
    assert (state.producer_epoch, len(state.batches)) == (0, 1)


def test_a_transaction_begins_ends_and_holds_the_stable_offset(manager: ProducerStateManager) -> None:
    """The first unstable offset is that of the oldest open one, and of a completed one until the high watermark passes."""
    apply(manager, batch(10, flags=TRANSACTIONAL_FLAG))
    apply(manager, batch(11, producer=2, flags=TRANSACTIONAL_FLAG))
    assert manager.first_unstable_offset == 10
    info = manager.prepare_update(1)
    completed = info.append(marker_at(12), ABORT)
    assert completed == CompletedTxn(1, 10, 12, True)
    assert manager.last_stable_offset(completed) == 11
    manager.update(info)
    manager.complete(completed)
    assert manager.first_unstable_offset == 10
    manager.on_high_watermark(13)
    assert manager.first_unstable_offset == 11
    state = manager.producers[1]
    assert (state.coordinator_epoch, state.current_txn_first_offset, state.last_timestamp) == (3, None, 2000)
    assert apply(manager, marker_at(13), COMMIT) is None, "a marker without records before it completes nothing"


def test_data_outside_of_an_open_transaction_is_refused_and_changes_nothing(manager: ProducerStateManager) -> None:
    """Kafka does not load such a log; nothing of the batch may count."""
    apply(manager, batch(10, flags=TRANSACTIONAL_FLAG))
    with pytest.raises(InvalidTxnStateError):
        apply(manager, batch(11))
    assert [found.last_offset for found in manager.producers[1].batches] == [10]
    assert manager.map_end_offset == 11


def test_an_empty_control_batch_changes_nothing_but_is_a_producer(manager: ProducerStateManager) -> None:
    """The cleaner took the marker with its transaction and left the batch for the producer's sake."""
    apply(manager, marker_at(5), None)
    state = manager.producers[1]
    assert (state.producer_epoch, state.coordinator_epoch, list(state.batches)) == (-1, -1, [])


def test_a_snapshot_brings_the_state_back(manager: ProducerStateManager, tmp_path: Path) -> None:
    """Of the batches only the last; open transactions begin where they began."""
    for i in range(3):
        apply(manager, batch(i, sequence=i))
    apply(manager, batch(3, producer=2, flags=TRANSACTIONAL_FLAG))
    manager.take_snapshot()
    manager.take_snapshot()
    (path,) = tmp_path.iterdir()
    assert path.name == "00000000000000000004.snapshot"
    again = ProducerStateManager(OsDisk(), str(tmp_path))
    again.truncate_and_reload(0, 9)
    assert again.map_end_offset == 4
    assert [found.last_offset for found in again.producers[1].batches] == [2]
    assert again.first_unstable_offset == 3
    assert again.snapshot_entries() == manager.snapshot_entries()
    assert list(decode_producer_snapshot(path.read_bytes()).entries) == again.snapshot_entries()


def test_open_transactions_of_a_snapshot_are_in_the_order_of_their_offsets(
    manager: ProducerStateManager, tmp_path: Path
) -> None:
    """A snapshot has its producers in the order of a hash map."""
    for offset, producer in enumerate((40, 33, 17, 2)):
        apply(manager, batch(offset, producer=producer, flags=TRANSACTIONAL_FLAG))
    manager.take_snapshot()
    again = ProducerStateManager(OsDisk(), str(tmp_path))
    again.truncate_and_reload(0, 9)
    assert [entry.producer_id for entry in again.snapshot_entries()] != [40, 33, 17, 2]
    assert again.first_unstable_offset == 0
    completed = CompletedTxn(40, 0, 4, True)
    assert again.last_stable_offset(completed) == 1
    again.complete(completed)
    again.on_high_watermark(5)
    assert again.first_unstable_offset == 1


def test_snapshots_outside_of_the_log_go_and_a_bad_one_too(tmp_path: Path) -> None:
    """The last good one that is left is loaded; without one the state begins empty at the log's start."""
    said: dict[str, str] = {}
    manager = ProducerStateManager(OsDisk(), str(tmp_path))
    for offset in (5, 10, 20, 30):
        apply(manager, batch(offset - 1, sequence=offset))
        manager.take_snapshot()
    (tmp_path / "00000000000000000020.snapshot").write_bytes(b"\x00\x01garbage")
    again = ProducerStateManager(OsDisk(), str(tmp_path), said.__setitem__)
    again.truncate_and_reload(5, 25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000000000000010.snapshot"]
    assert (again.map_end_offset, again.producers[1].batches[-1].last_offset) == (10, 9)
    assert len(said) == 3
    again.truncate_fully(40)
    assert (list(tmp_path.iterdir()), again.map_end_offset, again.is_empty) == ([], 40, True)


@pytest.mark.parametrize(
    ("snapshots", "bases", "left"),
    [
        ([3, 5, 8], [0, 5], [5, 8]),  # the last one may be of the log's end
        ([3, 5, 8], [0, 5, 9], [5]),
        ([3, 7, 8], [0], [8]),
        ([3], [], [3]),
    ],
)
def test_stray_snapshots(tmp_path: Path, snapshots: list[int], bases: list[int], left: list[int]) -> None:
    """Of those at which no segment starts only the last one stays, and only behind the last segment's start."""
    for offset in snapshots:
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(b"")
    (tmp_path / "00000000000000000001.snapshot.deleted").write_bytes(b"")
    manager = ProducerStateManager(OsDisk(), str(tmp_path))
    manager.remove_stray_snapshots(bases)
    assert list(manager.snapshots) == left


def test_a_snapshot_without_an_offset_is_refused(tmp_path: Path) -> None:
    """Kafka throws a NumberFormatException; the name must be in ours."""
    (tmp_path / "backup.snapshot").write_bytes(b"")
    with pytest.raises(FormatError, match=r"backup\.snapshot"):
        ProducerStateManager(OsDisk(), str(tmp_path))
