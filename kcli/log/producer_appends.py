"""A producer's batch on its way into the log: what is checked before it is written, and what counts after.

    batch                     before the write                          after it
    ------------------------  ----------------------------------------  -------------------------------------------------------
    records, no transaction   a duplicate? epoch and sequence           the producer's entry remembers it
    records of a transaction  the same                                  and the transaction is open from its first batch on
    a marker                  its epoch and its coordinator's           the transaction is decided; aborted ones go into the
                                                                        transaction index of the active segment

The common case is the first; it makes no object but the remembered batch.

    the batch                                           answer
    --------------------------------------------------  -------------------------------------------------------------------
    has the epoch, first and last sequence of one of    it is a duplicate: the offsets that this one got
      the five remembered
    its epoch is below the producer's                   InvalidProducerEpochError
    of another epoch, its sequence is not 0             OutOfOrderSequenceError
    of the same epoch, its sequence does not continue   OutOfOrderSequenceError
      the last one
    of a producer that is not known                     taken, whatever its sequence (KIP-360): its state may have expired
    not transactional while a transaction is open       InvalidTransactionStateError

Sequences are checked of clients' batches, epochs of all but replicated ones. A marker's epoch may not be below the producer's
(transaction version 2: must be above, unless it is a marker that was already written), nor its coordinator's epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.end_transaction_marker import EndTransactionMarker, decode_marker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, NO_PRODUCER_EPOCH, read_header
from kcli.format.records import read_record
from kcli.log.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidRecordsError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from kcli.log.local_log import LocalLog
from kcli.log.log_validator import AppendOrigin, ValidBatch
from kcli.log.producer_state_manager import (
    BatchMetadata,
    CompletedTxn,
    InvalidTxnStateError,
    ProducerAppendInfo,
    ProducerStateEntry,
    ProducerStateManager,
)

_INT16_MAX = 2**15 - 1


class PendingTransaction(NamedTuple):
    """A transactional batch or marker that was checked; nothing counts yet."""

    info: ProducerAppendInfo
    completed: CompletedTxn | None


Pending = ProducerStateEntry | PendingTransaction


def find_repeated(producers: ProducerStateManager, batch: ValidBatch) -> BatchMetadata | None:
    """The remembered batch that this one of a client repeats, or None."""
    entry = producers.producers.get(batch.producer_id)
    return None if entry is None else find_duplicate(entry, batch)


def begin_append(producers: ProducerStateManager, batch: ValidBatch, origin: AppendOrigin, transaction_version: int) -> Pending:
    """Check the batch of a producer; its `base_offset` is the one that it will have -> what `finish_append` needs.

    Raises the errors of this module, and InvalidRecordsError.
    """
    entry = producers.producers.get(batch.producer_id)
    if entry is None:
        entry = ProducerStateEntry(batch.producer_id)
    if batch.is_control:
        marker = _marker_of(batch)
        if marker is not None and origin is not AppendOrigin.REPLICATION:
            check_marker(entry, batch, marker, batch.base_offset, transaction_version)
        return _in_transaction(producers, batch, marker)
    check_data_batch(entry, batch, batch.base_offset, origin)
    if batch.is_transactional or entry.current_txn_first_offset is not None:
        return _in_transaction(producers, batch, None)
    return entry


def _in_transaction(
    producers: ProducerStateManager, batch: ValidBatch, marker: EndTransactionMarker | None
) -> PendingTransaction:
    info = producers.prepare_update(batch.producer_id)
    try:
        return PendingTransaction(info, info.append(read_header(batch.data), marker))
    except InvalidTxnStateError as error:
        raise InvalidTransactionStateError(error.message) from error


def _marker_of(batch: ValidBatch) -> EndTransactionMarker | None:
    """The marker in a control batch of a producer; None in an empty one."""
    if batch.record_count == 0:
        return None
    if batch.attributes & CODEC_MASK:
        raise InvalidRecordsError("a marker stands in a batch that is not compressed")
    try:
        record, _ = read_record(batch.data, HEADER_BYTES)
        timestamp = read_header(batch.data).log_append_time_ms
        if timestamp is None:
            timestamp = batch.base_timestamp + record.timestamp_delta
        return decode_marker(record.key, record.value, timestamp)
    except FormatError as error:
        raise InvalidRecordsError(f"the marker of producer {batch.producer_id} cannot be read: {error.message}") from error


def finish_append(producers: ProducerStateManager, batch: ValidBatch, pending: Pending, local: LocalLog) -> None:
    """Let a batch count that was written. Raises OSError where the transaction index cannot be written."""
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
    """The remembered batch with the same epoch and sequences, or None."""
    if batch.producer_epoch == entry.producer_epoch:
        last_sequence, delta = batch.last_sequence, batch.last_offset_delta
        for known in entry.batches:
            if known.last_sequence == last_sequence and known.offset_delta == delta:
                return known
    return None


def check_data_batch(entry: ProducerStateEntry, batch: ValidBatch, offset: int, origin: AppendOrigin) -> None:
    """Check a batch of records that is to get `offset`. Raises the errors of the table."""
    if origin is AppendOrigin.REPLICATION:
        return
    epoch, known_epoch = batch.producer_epoch, entry.producer_epoch
    if epoch < known_epoch:
        raise InvalidProducerEpochError(
            f"the epoch of producer {batch.producer_id} at offset {offset} is {epoch}, below its last one, {known_epoch}"
        )
    if origin is AppendOrigin.CLIENT:
        sequence = batch.base_sequence
        if epoch != known_epoch:
            if sequence != 0 and known_epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} begins epoch {epoch} at offset {offset} with sequence {sequence}, not 0"
                )
        else:
            last = entry.batches[-1].last_sequence if entry.batches else -1
            if sequence != last + 1 and not (sequence == 0 and last == INT32_MAX):
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sends sequence {sequence} for offset {offset}; the last one was {last}"
                )
    if entry.current_txn_first_offset is not None and not batch.is_transactional:
        raise InvalidTransactionStateError(
            f"producer {batch.producer_id} has a transaction open since offset {entry.current_txn_first_offset}, "
            f"and its batch for offset {offset} is not transactional"
        )


def check_marker(
    entry: ProducerStateEntry, batch: ValidBatch, marker: EndTransactionMarker, offset: int, transaction_version: int
) -> None:
    """Check a marker that is to get `offset`. Raises InvalidProducerEpochError and CoordinatorFencedError."""
    epoch, known_epoch = batch.producer_epoch, entry.producer_epoch
    if epoch < known_epoch or (transaction_version >= 2 and epoch == known_epoch):
        is_retry = epoch == known_epoch and (entry.current_txn_first_offset is None or epoch == _INT16_MAX)
        if not is_retry:
            raise InvalidProducerEpochError(
                f"the marker of producer {batch.producer_id} at offset {offset} has epoch {epoch}; "
                f"the producer's last one is {known_epoch}"
            )
    if entry.coordinator_epoch > marker.coordinator_epoch:
        raise CoordinatorFencedError(
            f"the marker of producer {batch.producer_id} at offset {offset} comes from coordinator epoch "
            f"{marker.coordinator_epoch}; the last one was {entry.coordinator_epoch}"
        )
