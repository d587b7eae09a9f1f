"""Protects what a round leaves of transactions and of producers' sequences: Kafka's LogCleanerTest, each test by its name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where. Where Kafka's go on at a round's end though nothing is
dirty there, which only the map of those tests makes a round of, the round here begins at offset 0 again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.end_transaction_marker import encode_marker
from kcli.format.index_entries import AbortedTxn
from kcli.format.record_batch import TRANSACTIONAL_FLAG
from tests.log.cleaner.logs import LATER_MS, CompactedLog, map_of
from tests.log.live_logs import NOW_MS, marker, new_batch


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path / "t-0")


def test_duplicate_check_after_cleaning(log: CompactedLog) -> None:
    """Batches that lost records, and one that lost all, still show after a reload whether a batch is a retry."""
    log.set(segment_bytes=2048)
    first, second, third = (log.producer(number) for number in (1, 2, 3))
    first.put(1, 2, 3)
    second.put(3, 1, 4)
    third.put(1, 4)
    log.roll()
    log.clean()
    assert log.last_offsets() == [2, 5, 7]
    assert log.last_sequences() == {1: 2, 2: 2, 3: 1}
    assert log.keys() == [2, 3, 1, 4]
    assert log.offsets() == [1, 3, 6, 7]

    def assert_duplicates(*expected: tuple[int, int]) -> None:
        found = [first.put(1, 2, 3, sequence=0), third.put(1, 4, sequence=0), second.put(3, 1, 4, sequence=0)]
        assert all(info.duplicate for info in found)
        assert [(info.first_offset, info.last_offset) for info in found] == list(expected)

    log.live.crash()
    assert_duplicates((0, 2), (6, 7), (3, 5))
    log.producer(4).put(2)
    log.roll()
    log.clean()
    assert log.last_sequences() == {1: 2, 2: 2, 3: 1, 4: 0}
    assert log.last_offsets() == [2, 5, 7, 8]
    assert log.keys() == [3, 1, 4, 2]
    assert log.offsets() == [3, 6, 7, 8]
    log.live.crash()
    assert_duplicates((0, 2), (6, 7), (3, 5))


def test_multi_pass_segment_cleaning_with_aborted_transactions(log: CompactedLog) -> None:
    """A map of three keys: aborted data goes in the first pass, index entries in the second, their markers in time."""
    log.set(delete_retention_ms=50_000)
    one, two = log.producer(1, transactional=True), log.producer(2, transactional=True)
    one.put(1, 2)  # 0
    two.put(2, 3)  # 2
    one.put(3, 4)  # 4
    one.commit()  # 6
    two.commit()  # 7
    one.put(2, 3)  # 8
    one.abort()  # 10
    two.put(4, 5)  # 11
    one.put(5, 6)  # 13
    one.commit()  # 15
    two.abort()  # 16
    two.put(6, 7)  # 17
    two.commit()  # 19
    log.roll()
    aborted = [AbortedTxn(0, 1, 8, 10, 11), AbortedTxn(0, 2, 11, 16, 17)]
    assert log.aborted() == aborted

    def clean(first_dirty: int, now_ms: int) -> int:
        end = log.clean(first_dirty, offsets=map_of(3), now_ms=now_ms).end_offset
        producers = log.log.producers.producers.values()
        assert [one.current_txn_first_offset for one in producers] == [None, None]
        return end

    assert clean(0, NOW_MS) == 4
    assert log.base_offsets() == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert log.offsets() == [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert log.aborted() == aborted
    assert clean(4, NOW_MS) == 14
    assert log.base_offsets() == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert log.offsets() == [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert log.aborted() == []
    assert clean(14, NOW_MS + 50_000) == 20
    assert log.base_offsets() == [0, 2, 4, 6, 7, 13, 15, 17, 19]
    assert log.offsets() == [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19]
    assert log.aborted() == []


def test_basic_transaction_aware_cleaning(log: CompactedLog) -> None:
    """Aborted records go and obsolete nothing; every marker and the transaction index stay."""
    log.set(segment_bytes=2048)
    one, two = log.producer(1, transactional=True), log.producer(2, transactional=True)
    one.put(1, 2)
    two.put(2, 3)
    one.put(3, 4)
    one.abort()
    two.commit()
    one.put(2)
    one.commit()
    aborted = log.aborted()
    log.roll()
    log.clean()
    assert log.keys() == [3, 2]
    assert log.offsets() == [3, 6, 7, 8, 9]
    assert log.aborted() == aborted != []


def test_clean_with_transactions_spanning_segments(log: CompactedLog) -> None:
    """A transaction that ends behind the cleaned part was aborted: what it has within goes, and later the rest."""
    one, two, three = (log.producer(number, transactional=True) for number in (1, 2, 3))
    one.put(1, 2)
    three.put(2, 3)
    two.put(3, 4)
    log.roll()
    two.put(5, 6)
    three.put(6, 7)
    one.put(7, 8)
    two.abort()
    three.put(8, 9)
    three.commit()
    one.put(9, 10)
    one.abort()
    done = log.clean()
    assert log.keys() == [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]
    log.roll()
    two.put(11)
    one.put(12)
    log.clean(done.end_offset)
    assert log.keys() == [2, 3, 6, 7, 8, 9, 11, 12]


def test_commit_marker_removal(log: CompactedLog) -> None:
    """A marker stays while its transaction has records, then until the horizon that the round after those has set."""
    log.set(segment_bytes=256)
    one = log.producer(1, transactional=True)
    one.put(1)
    one.put(2, 3)
    one.commit()
    one.put(2)
    one.commit()
    log.roll()
    dirty = log.clean().end_offset
    assert log.keys() == [1, 3, 2]
    assert log.offsets() == [0, 2, 3, 4, 5]
    one.put(1, 3)
    one.commit()
    log.roll()
    for first_dirty in (dirty, 0):
        log.clean(first_dirty)
        assert log.keys() == [2, 1, 3]
        assert log.offsets() == [3, 4, 5, 6, 7, 8]
    log.clean(now_ms=LATER_MS)
    assert log.keys() == [2, 1, 3]
    assert log.offsets() == [4, 5, 6, 7, 8]


def test_deleted_batches_with_no_messages_read(log: CompactedLog) -> None:
    """Whole batches that go, one behind the other, do not end a round; batches are no larger than a message may be."""
    log.set(segment_bytes=1000, max_message_bytes=100)
    one = log.producer(1, transactional=True)
    one.put(1)
    one.abort()
    one.put(2)
    one.put(2)
    one.commit()
    log.roll()
    log.clean()
    assert log.keys() == [2]
    assert log.offsets() == [1, 3, 4]
    log.clean_twice()
    assert log.keys() == [2]
    assert log.offsets() == [3, 4]


def test_commit_marker_retention_with_empty_batch(log: CompactedLog) -> None:
    """A batch without records that keeps a sequence keeps its transaction's marker, too; both go when it is not needed."""
    log.set(segment_bytes=256)
    one, two = log.producer(1, transactional=True), log.producer(2, transactional=True)
    one.put(2, 3)  # 0
    log.roll()
    two.put(2, 3)  # 2
    two.commit()  # 4
    log.roll()
    log.put(2, 2)  # 5
    log.put(3, 3)  # 6
    one.commit()  # 7
    log.roll()
    for _ in range(2):
        dirty = log.clean().end_offset
        assert log.keys() == [2, 3]
        assert log.offsets() == [4, 5, 6, 7]
        assert log.last_offsets() == [1, 3, 4, 5, 6, 7]
    two.put(1)  # 8
    two.commit()  # 9
    log.roll()
    log.clean(dirty)
    assert log.keys() == [2, 3, 1]
    assert log.offsets() == [4, 5, 6, 7, 8, 9]
    assert log.last_offsets() == [1, 4, 5, 6, 7, 8, 9]
    log.clean_twice()
    assert log.keys() == [2, 3, 1]
    assert log.offsets() == [5, 6, 7, 8, 9]
    assert log.last_offsets() == [1, 5, 6, 7, 8, 9]


def test_clean_empty_control_batch(log: CompactedLog) -> None:
    """The marker of a producer that wrote nothing else goes in time; its batch stays for the epoch, and can be cleaned."""
    log.set(segment_bytes=256)
    log.live.append(marker(1, abort=False))
    log.put(2, 2)
    log.put(3, 3)
    log.roll()
    log.clean_twice()
    for _ in range(2):
        assert log.keys() == [2, 3]
        assert log.offsets() == [1, 2]
        assert log.last_offsets() == [0, 1, 2]
        log.clean(now_ms=LATER_MS * 2)


def test_committed_transaction_spanning_segments(log: CompactedLog) -> None:
    """Its record in one segment, its marker in the next: both stay."""
    log.set(segment_bytes=128)
    one = log.producer(1, transactional=True)
    one.put(1)
    log.roll()
    one.commit()
    log.roll()
    log.clean_twice()
    assert log.offsets() == [0, 1]
    assert log.last_offsets() == [0, 1]


def test_aborted_transaction_spanning_segments(log: CompactedLog) -> None:
    """The batch stays without its record for the sequence, so the marker in the next segment stays, however late it is."""
    log.set(segment_bytes=128)
    one = log.producer(1, transactional=True)
    one.put(1)
    log.roll()
    one.abort()
    log.roll()
    for now_ms in (NOW_MS, LATER_MS * 2):
        log.clean(now_ms=now_ms)
        assert log.offsets() == [1]
        assert log.last_offsets() == [0, 1]


def test_abort_marker_removal(log: CompactedLog) -> None:
    """Aborted records go at once; their marker in two passes once no batch of the transaction is left."""
    log.set(segment_bytes=256)
    one = log.producer(1, transactional=True)
    one.put(1)
    one.put(2, 3)
    one.abort()
    one.put(3)
    one.commit()
    log.roll()
    log.clean()
    assert log.keys() == [3]
    assert log.offsets() == [3, 4, 5]
    log.clean_twice()
    assert log.keys() == [3]
    assert log.offsets() == [4, 5]


def test_empty_batch_removal_with_sequence_reuse(log: CompactedLog) -> None:
    """A producer whose batches all have sequence 0, as a group coordinator's: only the last one is kept for it."""
    log.set(segment_bytes=2048)
    for number, key in enumerate((1, 2)):
        data = new_batch(
            [b"%d" % key], keys=[b"%d" % key], producer=(1, 0, 0), attributes=TRANSACTIONAL_FLAG, base_offset=2 * number
        )
        log.log.append_as_follower(data, NOW_MS)
        log.live.append(marker(1, abort=False))
    log.put(1, 1)
    log.put(2, 1)
    log.roll()
    log.clean()
    assert log.offsets() == [1, 3, 4, 5]
    assert log.last_offsets() == [1, 2, 3, 4, 5]
    log.clean_twice()
    assert log.offsets() == [3, 4, 5]
    assert log.last_offsets() == [2, 3, 4, 5]


def test_abort_marker_retention_with_empty_batch(log: CompactedLog) -> None:
    """The marker and the index entry stay as long as a batch of the transaction does, though it has no records."""
    log.set(segment_bytes=256)
    one = log.producer(1, transactional=True)
    one.put(2, 3)
    one.abort()
    log.roll()
    aborted = [AbortedTxn(0, 1, 0, 2, 3)]
    assert log.aborted() == aborted
    dirty = log.clean().end_offset
    for _ in range(2):
        assert log.aborted() == aborted
        assert log.keys() == []
        assert log.offsets() == [2]
        assert log.last_offsets() == [1, 2]
        log.clean_twice()
    one.put(1)
    log.roll()
    log.clean(dirty)
    assert log.aborted() == aborted
    assert log.keys() == [1]
    assert log.offsets() == [2, 3]
    assert log.last_offsets() == [2, 3]
    log.clean_twice()
    assert log.keys() == [1]
    assert log.offsets() == [3]
    assert log.last_offsets() == [3]
    assert log.aborted() == []


def test_log_cleaner_retains_producer_last_sequence(log: CompactedLog) -> None:
    """The last batch of each idempotent producer stays, with its record or without; those before it may go."""
    log.put(0, 0)
    for number in (1, 2, 3):
        log.producer(number).put(0)
    log.append(new_batch([b"1"], keys=[b"1"], producer=(2, 0, 1)))
    log.roll()
    log.clean(offsets=map_of(7))
    assert log.last_offsets() == [1, 3, 4]
    assert log.last_sequences() == {1: 0, 2: 1, 3: 0}
    assert log.keys() == [0, 1]
    assert log.offsets() == [3, 4]


def test_log_cleaner_retains_last_sequence_even_if_transaction_aborted(log: CompactedLog) -> None:
    """The last batch of a producer stays without its records, though it was aborted, until the next one of the producer."""
    one = log.producer(1, transactional=True)
    one.put(1)
    one.put(2, 3)
    one.abort()
    log.roll()
    log.clean(offsets=map_of(7))
    assert log.last_offsets() == [2, 3]
    assert log.last_sequences() == {1: 2}
    assert log.keys() == []
    assert log.offsets() == [3]
    one.put(1, 5)
    log.roll()
    log.clean(offsets=map_of(7))
    assert log.last_offsets() == [3, 5]
    assert log.last_sequences() == {1: 4}
    assert log.keys() == [1, 5]
    assert log.offsets() == [3, 4, 5]


def test_cleaning_with_keys_conflicting_with_txn_marker_keys(log: CompactedLog) -> None:
    """A record whose key is that of a COMMIT marker obsoletes no marker, and none obsoletes it."""
    one = log.producer(1, transactional=True)
    one.put(1)
    one.commit()
    key, _ = encode_marker(is_abort=False, coordinator_epoch=0)
    log.append(new_batch([b"foo"], keys=[key], producer=(2, 0, 0), attributes=TRANSACTIONAL_FLAG), epoch=5)
    log.live.append(marker(2, abort=False), epoch=5)
    log.roll()
    assert log.offsets() == [0, 1, 2, 3]
    log.clean(offsets=map_of(7))
    assert log.last_offsets() == [0, 1, 2, 3]
    assert log.offsets() == [0, 1, 2, 3]
