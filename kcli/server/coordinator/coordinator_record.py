"""Records of the coordinators' topics: what a coordinator decides, what its state applies, and the batches in its log.

    record             is                                   in the log
    -----------------  -----------------------------------  ------------------------------------------------------------
    CoordinatorRecord  a key and a value (None: tombstone)  a record of a data batch; with a producer, of a transactional one
    EndTransaction     the end of a producer's transaction  a marker: a control batch of its own

Like Kafka's, data batches of groups have base sequence 0 even without a producer, those of __transaction_state -1. A value is
encoded in its `schema_version`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.end_transaction_marker import encode_marker
from kcli.format.memory_records_builder import MemoryRecordsBuilder, estimate_size_upper_bound
from kcli.format.record_batch import CONTROL_FLAG, NO_PRODUCER_ID, TRANSACTIONAL_FLAG, NewRecordBatch, Producer
from kcli.format.records import Record, encode_record
from kcli.protocol.message import Message


class CoordinatorRecord(NamedTuple):
    """A record of a coordinator's topic; `producer_id` is -1 outside of transactions."""

    key: Message
    value: Message | None
    producer_id: int = NO_PRODUCER_ID


class EndTransaction(NamedTuple):
    """The end of a producer's transaction, as the transaction coordinator of `coordinator_epoch` has decided it.

    With `transaction_version` 2 the epoch of a marker is above that of the records. The log does not have the version.
    """

    producer: Producer
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


ShardRecord = CoordinatorRecord | EndTransaction


class EncodedRecord(NamedTuple):
    """A record's key and value, and its time in ms."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


def encode_data_batch(
    records: Sequence[EncodedRecord], producer: Producer, codec: int = 0, base_sequence: int = 0
) -> bytearray:
    """Encode a batch of records, compressed by `codec`, transactional if it has a producer; the log sets its offsets."""
    size_bytes = sum(estimate_size_upper_bound(record.key, record.value, ()) for record in records)
    # More than any codec's estimate of the size, so that no record is refused.
    builder = MemoryRecordsBuilder(2 * size_bytes if codec else size_bytes, codec)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, ())
    is_transactional = producer.producer_id != NO_PRODUCER_ID
    builder.set_producer_state(producer.producer_id, producer.producer_epoch, base_sequence, is_transactional)
    return builder.build()


def encode_marker_batch(end: EndTransaction, now_ms: int) -> bytearray:
    """Encode the batch with the marker of a transaction."""
    key, value = encode_marker(is_abort=not end.is_commit, coordinator_epoch=end.coordinator_epoch)
    batch = NewRecordBatch(
        base_offset=0,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        record_count=1,
        records=encode_record(Record(0, 0, key, value)),
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        producer_id=end.producer.producer_id,
        producer_epoch=end.producer.producer_epoch,
    )
    return bytearray(batch.encode())
