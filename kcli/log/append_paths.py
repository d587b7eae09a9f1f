"""Appends outside of the fast path: with every check one after the other, and of followers (Kafka: UnifiedLog.append).

    path                         batches                                     checked
    ---------------------------  ------------------------------------------  ---------------------------------------------------
    UnifiedLog.append_as_leader  one of a client that is not compressed,     in one compiled pass; other batches, and those that
                                 nearly all                                  fail it, take the next path
    `check_carefully`, then      one of a client or coordinator              by kcli.log.log_validator, record_validator and
    `append_checked`                                                         the checks below, which raise the exact error
    `append_replicated`          several, with offsets and epochs, which     size, magic, CRC; offsets must be possible, and
                                 a leader has checked                        not go back; markers are sound, and in an open
                                                                             transaction all batches of its producer are
                                                                             transactional

If a batch has several faults, the error is the one that Kafka would return.

A producer's batch is checked before it is written, and updates its entry after that (Kafka: ProducerAppendInfo).

    batch                     before the write                          after it
    ------------------------  ----------------------------------------  -------------------------------------------------------
    records, no transaction   duplicate, epoch and sequence             the producer's entry keeps it
    records of a transaction  the same                                  the transaction is open from its first batch on
    a marker                  epochs of producer and coordinator        the transaction is completed; an aborted one is added to
                                                                        the transaction index of the active segment

The first case is the common one; its only new object is the BatchMetadata.

    the batch                                           answer
    --------------------------------------------------  -------------------------------------------------------------------
    has the epoch, first and last sequence of one of    it is a duplicate: the offsets of the kept batch
      the five kept batches
    its epoch is below the producer's                   InvalidProducerEpochError
    of a new epoch, its sequence is not 0               OutOfOrderSequenceError
    of the same epoch, its sequence does not continue   OutOfOrderSequenceError
      the last one
    of an unknown producer                              appended with any sequence (KIP-360): its state may have expired
    the first of a transaction, its sequence is not 0   OutOfOrderSequenceError: with transaction.version 2 the epoch is new
      and the producer is unknown
    the first of a transaction, one before it waits     OutOfOrderSequenceError
      for its verification
    not transactional while a transaction is open       InvalidTransactionStateError

After a start the entry of a producer has one batch, as in its snapshot, though the client may send several again that were
under way when the broker stopped. Kafka refuses them with OUT_OF_ORDER_SEQUENCE_NUMBER, whereupon clients write them again with
a new epoch: the records are in the log twice. Here such a batch is looked for in the log, once for each producer and start.

Sequences are checked in batches of clients only, epochs in all but replicated batches. A marker's epoch must not be below the
producer's (with transaction version 2 it must be above, unless the marker repeats one), nor the coordinator's epoch below its
last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, Protocol

from kcli.format.end_transaction_marker import EndTransactionMarker, decode_marker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import INT32_MAX, INT64_MAX, FormatError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, NO_PRODUCER_EPOCH, RecordBatch, read_header
from kcli.format.records import read_record
from kcli.format.structs import BATCH_PARTITION_LEADER_EPOCH_AT
from kcli.log.errors import (
    CoordinatorFencedError,
    CorruptMessageError,
    InvalidProducerEpochError,
    InvalidRecordsError,
    InvalidTransactionStateError,
    NotOneBatchError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    UnexpectedAppendOffsetError,
)
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_validator import AppendOrigin, ValidBatch, validated_batch, whole_batch
from kcli.log.producer_state_manager import (
    BATCHES_RETAINED,
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
    ProducerStateManager,
    VerificationStateEntry,
)
from kcli.log.record_validator import validate_records

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")


class LogAppendInfo(NamedTuple):
    """The result of an append (Kafka: LogAppendInfo); a duplicate has the offsets of the batch that it repeats.

    `log_append_time_ms` is -1 unless message.timestamp.type is LogAppendTime; `last_epoch` is the leader epoch.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int
    last_epoch: int
    duplicate: bool
    size_bytes: int
    record_count: int


class AppendableLog(Protocol):
    """The part of UnifiedLog that an append uses."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    leader_epochs: LeaderEpochFileCache
    producers: ProducerStateManager

    @property
    def config(self) -> LogConfig:
        """The topic's settings."""
        ...

    def local_log(self) -> LocalLog:
        """Return the segments."""
        ...

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Begin a new segment."""
        ...


def check_carefully(
    records: memoryview,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    is_hurried: bool = False,
) -> ValidBatch:
    """Check the one batch in `records`, and convert it as the topic's settings require; this uses no log.

    Raises AppendError, and with `is_hurried` LongCheckError if the check would take long.
    """
    size = whole_batch(records)
    if not size:
        raise NotOneBatchError("the records contain no complete batch")
    if len(records) > size and whole_batch(records, size):
        raise NotOneBatchError("the records contain more than one batch")
    batch = validated_batch(records, size, config, origin)
    validate_records(batch, config, now_ms, is_hurried=is_hurried)
    return batch


def append_checked(
    log: AppendableLog,
    batch: ValidBatch,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    transaction_version: int = 0,
) -> LogAppendInfo:
    """Assign the offsets of a checked batch and append it. Raises AppendError and OSError."""
    if origin is AppendOrigin.RAFT_LEADER and batch.leader_epoch != leader_epoch:
        raise InvalidRecordsError(f"the batch has leader epoch {batch.leader_epoch}, but the leader's epoch is {leader_epoch}")
    local, config = log.local_log(), log.config
    size, data = batch.size_bytes, batch.data
    _check_segment_bytes(log, size)
    first_offset = log.log_end_offset
    batch.base_offset = first_offset
    _BASE_OFFSET.pack_into(data, 0, first_offset)
    _LEADER_EPOCH.pack_into(data, BATCH_PARTITION_LEADER_EPOCH_AT, leader_epoch)
    pending = None
    if batch.producer_id >= 0:
        known = find_repeated(log.producers, batch, local) if origin is AppendOrigin.CLIENT else None
        if known is not None:
            return _duplicate(log, known, batch, leader_epoch)
        pending = begin_append(log.producers, batch, origin, transaction_version)
    if leader_epoch >= 0 and leader_epoch != log.leader_epochs.written_epoch:
        log.leader_epochs.assign(leader_epoch, first_offset)
    last_offset = first_offset + batch.last_offset_delta
    if local.active.must_roll(local.rules, size, last_offset, batch.max_timestamp, now_ms):
        log.roll(now_ms)
    local.append((data,))
    local.active.add(local.rules, size, last_offset, batch.max_timestamp)
    log.log_end_offset = local.end_offset = last_offset + 1
    if pending is not None:
        finish_append(log.producers, batch, pending, local)
    log.producers.map_end_offset = last_offset + 1
    return LogAppendInfo(
        first_offset,
        last_offset,
        batch.max_timestamp,
        now_ms if config.message_timestamp_type == LOG_APPEND_TIME else -1,
        log.log_start_offset,
        leader_epoch,
        False,
        size,
        batch.record_count,
    )


def _check_segment_bytes(log: AppendableLog, size_bytes: int) -> None:
    if size_bytes > log.config.segment_bytes:
        raise RecordListTooLargeError(
            f"the append has {size_bytes} bytes, more than segment.bytes of this topic, {log.config.segment_bytes}"
        )


def _duplicate(log: AppendableLog, known: BatchMetadata, batch: ValidBatch, leader_epoch: int) -> LogAppendInfo:
    """Return the result for a batch that was appended before; like Kafka's, with its timestamp as the log append time."""
    return LogAppendInfo(
        known.last_offset - known.offset_delta,
        known.last_offset,
        known.timestamp,
        known.timestamp,
        log.log_start_offset,
        leader_epoch,
        True,
        batch.size_bytes,
        batch.record_count,
    )


def append_replicated(log: AppendableLog, records: memoryview, now_ms: int, leader_epoch: int) -> LogAppendInfo:
    """See UnifiedLog.append_as_follower. Raises AppendError and OSError."""
    batches = _batches_of(log, records, leader_epoch)
    check_replicated(log.producers, batches)
    size = sum(batch.size_bytes for batch in batches)
    local = log.local_log()
    last_offset = batches[-1].base_offset + batches[-1].last_offset_delta
    max_timestamp = max(batch.max_timestamp for batch in batches)
    for batch in batches:
        if batch.leader_epoch >= 0 and batch.leader_epoch != log.leader_epochs.written_epoch:
            log.leader_epochs.assign(batch.leader_epoch, batch.base_offset)
    if local.active.must_roll(local.rules, size, last_offset, max_timestamp, now_ms):
        log.roll(now_ms, batches[0].base_offset)
    local.append((records[:size],))
    for batch in batches:
        last = batch.base_offset + batch.last_offset_delta
        local.active.add(local.rules, batch.size_bytes, last, batch.max_timestamp)
    log.log_end_offset = local.end_offset = last_offset + 1
    for batch in batches:
        if batch.producer_id >= 0:
            # One after the other, because each batch may continue the sequence of the one before.
            finish_append(log.producers, batch, begin_append(log.producers, batch, AppendOrigin.REPLICATION, 0), local)
    log.producers.map_end_offset = last_offset + 1
    return LogAppendInfo(
        batches[0].base_offset,
        last_offset,
        max_timestamp,
        -1,
        log.log_start_offset,
        batches[-1].leader_epoch,
        False,
        size,
        sum(batch.record_count for batch in batches),
    )


def _batches_of(log: AppendableLog, records: memoryview, leader_epoch: int) -> list[ValidBatch]:
    """Return the batches to append together, which fit into a segment, but at least one."""
    batches: list[ValidBatch] = []
    at, next_offset, most = 0, log.log_end_offset, log.config.segment_bytes
    while at < len(records) and (size := whole_batch(records, at)):
        if batches and at + size > most:
            break
        batch = validated_batch(records[at : at + size], size, log.config, AppendOrigin.REPLICATION)
        if batch.leader_epoch > leader_epoch:
            # KAFKA-18723: the leader has changed since the follower asked, and the batches may be cut off there (again).
            if batches:
                break
            raise InvalidRecordsError(
                f"the batch has leader epoch {batch.leader_epoch}, above that of the leader, {leader_epoch}"
            )
        last_offset = batch.base_offset + batch.last_offset_delta
        if not 0 <= batch.base_offset <= last_offset < INT64_MAX:
            raise CorruptMessageError(f"the batch has the offsets {batch.base_offset} to {last_offset}, which no log can have")
        if batch.base_offset < next_offset:
            raise UnexpectedAppendOffsetError(
                f"cannot append offset {batch.base_offset} to {log.topic}-{log.partition}: the next offset is {next_offset}"
            )
        next_offset = last_offset + 1
        batches.append(batch)
        at += size
    if not batches:
        raise InvalidRecordsError("the records contain no complete batch")
    return batches


_INT16_MAX = 2**15 - 1
# The most batch headers, of all producers, that are read to find a producer's earlier batches; each takes some microseconds.
HEADERS_SEARCHED = 1000


class PendingTransaction(NamedTuple):
    """A checked batch or marker of a transaction, before it is written."""

    info: ProducerAppendInfo
    completed: CompletedTxn | None


Pending = ProducerStateEntry | PendingTransaction


def find_repeated(producers: ProducerStateManager, batch: ValidBatch, local: LocalLog) -> BatchMetadata | None:
    """Return the kept batch that a client's batch repeats, or None. Raises OSError."""
    entry = producers.producers.get(batch.producer_id)
    if entry is None:
        return None
    known = find_duplicate(entry, batch)
    if known is None and _may_be_earlier(entry, batch):
        entry.may_have_earlier_batches = False
        _restore_batches(entry, local)
        known = find_duplicate(entry, batch)
    return known


def _may_be_earlier(entry: ProducerStateEntry, batch: ValidBatch) -> bool:
    """Return whether the log may contain a batch of a client before the kept ones."""
    is_of_epoch = entry.may_have_earlier_batches and batch.producer_epoch == entry.producer_epoch
    return is_of_epoch and batch.last_sequence < entry.batches[0].last_sequence


def _restore_batches(entry: ProducerStateEntry, local: LocalLog) -> None:
    """Add the batches of the log before the first kept one, until there are five, or its epoch ends."""
    first = entry.batches[0]
    for header in local.headers_before(first.last_offset - first.offset_delta, HEADERS_SEARCHED):
        if not isinstance(header, RecordBatch) or header.producer_id != entry.producer_id:
            continue
        if header.producer_epoch != entry.producer_epoch or len(entry.batches) == BATCHES_RETAINED:
            return
        if not header.is_control:
            entry.batches.appendleft(BatchMetadata.of(header))


def begin_append(producers: ProducerStateManager, batch: ValidBatch, origin: AppendOrigin, transaction_version: int) -> Pending:
    """Check a producer's batch, which has its final `base_offset`; return the argument for `finish_append`.

    Raises the errors in the table of this module, and InvalidRecordsError.
    """
    entry = producers.producers.get(batch.producer_id)
    if entry is None:
        entry = ProducerStateEntry(batch.producer_id)
    if batch.is_control:
        marker = _marker_of(batch)
        if marker is not None and origin is not AppendOrigin.REPLICATION:
            check_marker(entry, batch, marker, batch.base_offset, transaction_version)
        return _in_transaction(producers, batch, marker)
    check_data_batch(entry, batch, batch.base_offset, origin, producers.verifications.get(batch.producer_id))
    if batch.is_transactional or entry.current_txn_first_offset is not None:
        return _in_transaction(producers, batch, None)
    return entry


def check_replicated(producers: ProducerStateManager, batches: Iterable[ValidBatch]) -> None:
    """Check a leader's batches, in their order, so that `begin_append` raises nothing after they are written.

    Raises InvalidRecordsError and InvalidTransactionStateError.
    """
    txn_first_offsets: dict[int, int | None] = {}
    for batch in batches:
        producer_id = batch.producer_id
        if producer_id < 0:
            continue
        if producer_id not in txn_first_offsets:
            entry = producers.producers.get(producer_id)
            txn_first_offsets[producer_id] = None if entry is None else entry.current_txn_first_offset
        if batch.is_control:
            if _marker_of(batch) is not None:
                txn_first_offsets[producer_id] = None
        elif not batch.is_transactional:
            _check_no_transaction(batch, txn_first_offsets[producer_id])
        elif txn_first_offsets[producer_id] is None:
            txn_first_offsets[producer_id] = batch.base_offset


def _check_no_transaction(batch: ValidBatch, txn_first_offset: int | None) -> None:
    if txn_first_offset is not None:
        raise InvalidTransactionStateError(
            f"the batch of producer {batch.producer_id} at offset {batch.base_offset} is not transactional, but the producer "
            f"has a transaction open since offset {txn_first_offset}"
        )


def _in_transaction(
    producers: ProducerStateManager, batch: ValidBatch, marker: EndTransactionMarker | None
) -> PendingTransaction:
    info = producers.prepare_update(batch.producer_id)
    return PendingTransaction(info, info.append(read_header(batch.data), marker))


def _marker_of(batch: ValidBatch) -> EndTransactionMarker | None:
    """Return the marker in a control batch, None if the batch has no records."""
    if batch.record_count == 0:
        return None
    if batch.attributes & CODEC_MASK:
        raise InvalidRecordsError(f"the marker of producer {batch.producer_id} is in a compressed batch")
    try:
        record, _ = read_record(batch.data, HEADER_BYTES)
        timestamp = read_header(batch.data).log_append_time_ms
        if timestamp is None:
            timestamp = batch.base_timestamp + record.timestamp_delta
        return decode_marker(record.key, record.value, timestamp)
    except FormatError as error:
        raise InvalidRecordsError(f"cannot decode the marker of producer {batch.producer_id}: {error.message}") from error


def finish_append(producers: ProducerStateManager, batch: ValidBatch, pending: Pending, local: LocalLog) -> None:
    """Update the producer's state after the batch was written. Raises OSError if the transaction index cannot be written."""
    if isinstance(pending, PendingTransaction):
        completed = pending.completed
        producers.update(pending.info)
        if completed is not None:
            if completed.is_aborted:
                last_stable_offset = producers.last_stable_offset(completed)
                local.add_aborted(AbortedTxn(0, *completed[:3], last_stable_offset))
            producers.complete(completed)
        return
    delta = batch.last_offset_delta
    metadata = BatchMetadata(batch.last_sequence, batch.base_offset + delta, delta, batch.max_timestamp)
    pending.add_batch(batch.producer_epoch, metadata)
    if batch.producer_id not in producers.producers:
        producers.add(pending)


def find_duplicate(entry: ProducerStateEntry, batch: ValidBatch) -> BatchMetadata | None:
    """Return the kept batch with the same epoch and sequences, or None."""
    if batch.producer_epoch == entry.producer_epoch:
        last_sequence, delta = batch.last_sequence, batch.last_offset_delta
        for known in entry.batches:
            if known.last_sequence == last_sequence and known.offset_delta == delta:
                return known
    return None


def check_data_batch(
    entry: ProducerStateEntry,
    batch: ValidBatch,
    offset: int,
    origin: AppendOrigin,
    verification: VerificationStateEntry | None = None,
) -> None:
    """Check a batch of records that will have `offset`. Raises the errors of the table."""
    if origin is AppendOrigin.REPLICATION:
        return
    epoch, known_epoch = batch.producer_epoch, entry.producer_epoch
    if epoch < known_epoch:
        raise InvalidProducerEpochError(
            f"the epoch of producer {batch.producer_id} at offset {offset} is {epoch}, below its current epoch, {known_epoch}"
        )
    if origin is AppendOrigin.CLIENT:
        sequence = batch.base_sequence
        if verification is not None:
            _check_first_sequence(entry, batch, offset, verification)
        if epoch != known_epoch:
            if sequence != 0 and known_epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} begins epoch {epoch} at offset {offset} with sequence {sequence}, not 0"
                )
        else:
            last = entry.batches[-1].last_sequence if entry.batches else -1
            if sequence != last + 1 and not (sequence == 0 and last == INT32_MAX):
                raise OutOfOrderSequenceError(
                    f"the sequence of producer {batch.producer_id} at offset {offset} is {sequence}; its last one was {last}"
                )
    if not batch.is_transactional:
        _check_no_transaction(batch, entry.current_txn_first_offset)


def _check_first_sequence(
    entry: ProducerStateEntry, batch: ValidBatch, offset: int, verification: VerificationStateEntry
) -> None:
    """Check a batch while a batch of its producer waits for its verification (KIP-890): none is appended before that one.

    As in Kafka, this holds for all batches of the producer, whatever their epoch, also for those of no transaction.
    """
    is_new = verification.is_epoch_bumped and not entry.batches
    lowest = 0 if is_new else verification.lowest_sequence
    if batch.base_sequence > lowest:
        raise OutOfOrderSequenceError(
            f"the sequence of producer {batch.producer_id} at offset {offset} is {batch.base_sequence}; the first one that "
            f"waits for the verification of its transaction is {lowest}"
        )


def check_marker(
    entry: ProducerStateEntry, batch: ValidBatch, marker: EndTransactionMarker, offset: int, transaction_version: int
) -> None:
    """Check a marker that will have `offset`. Raises InvalidProducerEpochError and CoordinatorFencedError."""
    epoch, known_epoch = batch.producer_epoch, entry.producer_epoch
    if epoch < known_epoch or (transaction_version >= 2 and epoch == known_epoch):
        is_retry = epoch == known_epoch and (entry.current_txn_first_offset is None or epoch == _INT16_MAX)
        if not is_retry:
            raise InvalidProducerEpochError(
                f"the marker of producer {batch.producer_id} at offset {offset} has epoch {epoch}, "
                f"but the producer's epoch is {known_epoch}"
            )
    if entry.coordinator_epoch > marker.coordinator_epoch:
        raise CoordinatorFencedError(
            f"the marker of producer {batch.producer_id} at offset {offset} has coordinator epoch "
            f"{marker.coordinator_epoch}, below the last one, {entry.coordinator_epoch}"
        )
