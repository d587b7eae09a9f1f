"""A producer's batch on its way into the log: what is checked before it is written, and what counts after.

    batch                     before the write                          after it
    ------------------------  ----------------------------------------  -------------------------------------------------------
    records, no transaction   a duplicate? epoch and sequence           the producer's entry remembers it
    records of a transaction  the same                                  and the transaction is open from its first batch on
    a marker                  its epoch and its coordinator's           the transaction is decided; aborted ones go into the
                                                                        transaction index of the active segment

The common case is the first; it makes no object but the remembered batch.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.end_transaction_marker import EndTransactionMarker, decode_marker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import FormatError
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES, read_header
from kcli.format.records import read_record
from kcli.log.append_errors import InvalidRecordsError, InvalidTransactionStateError
from kcli.log.local_log import LocalLog
from kcli.log.log_validator import AppendOrigin, ValidBatch
from kcli.log.producer_checks import check_data_batch, check_marker, find_duplicate
from kcli.log.producer_state_manager import (
    BatchMetadata,
    CompletedTxn,
    InvalidTxnStateError,
    ProducerAppendInfo,
    ProducerStateEntry,
    ProducerStateManager,
)


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

    Raises the errors of kcli.log.producer_checks, and InvalidRecordsError.
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
