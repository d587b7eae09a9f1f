"""Protects the life of one batch: its result, its callbacks, retries, expiry and splits."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.producer.buffer_pool import BufferPool
from kcli.client.producer.producer_batch import RecordMetadata
from kcli.format.compression import CODECS
from tests.client.producer.batches import TIMESTAMP, values_of
from tests.client.producer.ways import WAYS

POOL = BufferPool(0)


def batch_of(way: str, count: int = 3, codec: int = 0, log: list[Any] | None = None) -> Any:
    """A batch of `count` records; those with an even index have a callback that appends to `log`."""
    builder = WAYS[way].builder.MemoryRecordsBuilder(5000, codec)
    batch = WAYS[way].batch.ProducerBatch("t", 2, builder, 50)
    for index in range(count):
        callback = None
        if log is not None and index % 2 == 0:
            callback = lambda found, error, index=index: log.append((index, found, error))  # noqa: E731
        key = b"k" * index if index % 3 else None
        assert batch.try_append(TIMESTAMP + index, key, b"v%d" % index, ((b"h", None),), callback, POOL)
    return batch


def call(batch: Any) -> None:
    for callback, found, error in batch.deliveries():
        callback(found, error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_callbacks_get_offsets_times_and_sizes(way: str, codec: int) -> None:
    log: list[Any] = []
    batch = batch_of(way, 5, codec, log)
    batch.close(POOL)
    assert batch.complete(100)
    call(batch)
    call(batch)
    assert log == [
        (index, RecordMetadata("t", 2, 100 + index, TIMESTAMP + index, size, 2), None)
        for index, size in ((0, -1), (2, 2), (4, 4))
    ]
    assert [type(found) for _, found, _ in log] == [RecordMetadata if way == "as installed" else type(log[0][1])] * 3
    assert (batch.offset_of(1), batch.error_of(1)) == (101, None)


@pytest.mark.parametrize("way", WAYS)
def test_the_brokers_time_and_no_offset(way: str) -> None:
    """With LogAppendTime all records have the broker's timestamp; with acks=0 no record has an offset."""
    log: list[Any] = []
    batch = batch_of(way, 3, 0, log)
    batch.complete(7, 12345)
    call(batch)
    assert [(found.offset, found.timestamp) for _, found, _ in log] == [(7, 12345), (9, 12345)]
    batch = batch_of(way, 3, 0, log)
    batch.complete(-1)
    call(batch)
    assert [found.offset for _, found, _ in log[2:]] == [-1, -1] and batch.offset_of(2) == -1


@pytest.mark.parametrize("way", WAYS)
def test_errors_of_records(way: str) -> None:
    """A record has its own error if the broker names one (KIP-467), the others have that of the batch."""
    log: list[Any] = []
    batch = batch_of(way, 5, 0, log)
    one, other = ValueError("one"), ValueError("other")
    assert batch.fail(other, {2: one})
    call(batch)
    assert log == [(0, None, other), (2, None, one), (4, None, other)]
    assert (batch.error_of(1), batch.error_of(2)) == (other, one)


@pytest.mark.parametrize("way", WAYS)
def test_a_result_is_final(way: str) -> None:
    """After an expired or aborted batch the broker's response does not count; a success never changes."""
    error = ValueError("timed out")
    failed = batch_of(way)
    assert not failed.is_done and failed.fail(error) and failed.is_done
    assert not failed.complete(5) and not failed.fail(ValueError("late"))
    assert (failed.error, failed.base_offset) == (error, -1)
    aborted = batch_of(way)
    aborted.abort(error)
    assert not aborted.complete(5) and aborted.error is error
    with pytest.raises(ValueError, match=r"cannot be aborted twice: ProducerBatch\(t-2, 3 records, attempts=0, ABORTED\)"):
        aborted.abort(error)
    succeeded = batch_of(way)
    assert succeeded.complete(5)
    for change in (lambda: succeeded.complete(5), lambda: succeeded.fail(error)):
        with pytest.raises(ValueError, match="cannot become"):
            change()


@pytest.mark.parametrize("way", WAYS)
def test_a_retry_waits_unless_the_leader_changes(way: str) -> None:
    """KIP-951: a new leader does not suffer from the errors of the old one, but it does from its own."""
    batch = batch_of(way)
    batch.update_leader_epoch(3)
    assert not batch.is_backing_off(50)
    batch.reenqueued(60, 100)
    assert (batch.attempts, batch.retry_at_ms) == (1, 160)
    batch.update_leader_epoch(3)
    assert batch.is_backing_off(159) and not batch.is_backing_off(160)
    batch.update_leader_epoch(4)
    assert not batch.is_backing_off(100)
    batch.reenqueued(110, 100)
    batch.update_leader_epoch(4)
    assert batch.is_backing_off(209) and not batch.is_backing_off(210)


@pytest.mark.parametrize("way", WAYS)
def test_the_delivery_timeout_counts_from_the_first_record(way: str) -> None:
    batch = batch_of(way)
    batch.reenqueued(1000, 100)
    assert not batch.has_reached_delivery_timeout(3000, 3049) and batch.has_reached_delivery_timeout(3000, 3050)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_split_keeps_records_sequences_and_callbacks(way: str, codec: int) -> None:
    log: list[Any] = []
    batch = batch_of(way, 20, codec, log)
    batch.builder.set_producer_state(9, 4, 2**31 - 5, True)
    before = values_of(batch)
    parts = batch.split(200, 1.0)
    assert len(parts) > 2 and [value for part in parts for value in values_of(part)] == before
    sequence = 2**31 - 5
    for part in parts:
        assert part.is_split_batch and part.created_ms == 50 and part.reserved_bytes == part.attempts == 0
        assert (part.builder.producer_id, part.builder.producer_epoch, part.builder.is_transactional) == (9, 4, True)
        assert part.base_sequence == sequence
        sequence = (sequence + part.record_count) % 2**31
    assert not batch.is_done and list(batch.deliveries()) == []
    offset = 1000
    for part in parts:
        part.complete(offset)
        offset += part.record_count
        call(part)
    assert batch.is_done
    assert [(index, found.offset, found.timestamp) for index, found, _ in log] == [
        (index, 1000 + index, TIMESTAMP + index) for index in range(0, 20, 2)
    ]
    for index in range(20):
        part, at = batch.locate(index)
        assert part.offset_of(at) == 1000 + index


@pytest.mark.parametrize("way", WAYS)
def test_a_split_into_single_records_and_again(way: str) -> None:
    batch = batch_of(way, 4)
    first, last = batch.split(100, 1.0)
    assert (first.record_count, last.record_count) == (3, 1)
    assert [part.record_count for part in first.split(1, 1.0)] == [1] * 3
    parts = [batch.locate(index) for index in range(4)]
    assert [values_of(part)[at] for part, at in parts] == [b"v0", b"v1", b"v2", b"v3"]
