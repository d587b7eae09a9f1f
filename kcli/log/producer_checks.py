"""What a leader checks of a producer's batch before it takes it (Kafka: ProducerAppendInfo, ProducerStateEntry).

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

from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import NO_PRODUCER_EPOCH
from kcli.log.append_errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from kcli.log.log_validator import AppendOrigin, ValidBatch
from kcli.log.producer_state_manager import BatchMetadata, ProducerStateEntry

_INT16_MAX = 2**15 - 1


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
