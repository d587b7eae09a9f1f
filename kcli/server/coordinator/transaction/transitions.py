"""What a request makes of the entry of a transactional id (Kafka: TransactionMetadata, TransactionCoordinator).

    state                          request or event               next state
    -----------------------------  -----------------------------  --------------------------------------------------------
    (no entry)                     InitProducerId                 Empty, epoch 0
    Empty, Complete*               InitProducerId                 Empty, next epoch; with a new id if the epoch is exhausted
    Ongoing                        InitProducerId, timeout        PrepareAbort, next epoch (in Kafka by way of
                                                                  PrepareEpochFence, which is never in the log)
    Empty, Complete*, Ongoing      AddPartitionsToTxn,            Ongoing
                                   AddOffsetsToTxn
    Ongoing                        EndTxn                         PrepareCommit or PrepareAbort
    Empty, Complete*               EndTxn, abort, version 2       PrepareAbort: the client may not know that it wrote nothing
    PrepareCommit, PrepareAbort    all markers are written        CompleteCommit, CompleteAbort
    Empty, Complete*               id expired                     (no entry)

With transaction.version 2 (KIP-890) each end of a transaction increments the epoch. EXHAUSTED_EPOCH is the last epoch that a
client gets: the next end has epoch 32767 in its markers, and the producer goes on with a new id and epoch 0.

    error                        reason
    ---------------------------  -------------------------------------------------------------------------------------------
    INVALID_PRODUCER_ID_MAPPING  there is no entry, or it has another producer id
    PRODUCER_FENCED              the epoch is not the current one. InitProducerId: the id is another one, or the epoch is
                                 neither the current nor the previous one
    CONCURRENT_TRANSACTIONS      markers are being written; the client asks again
    INVALID_TXN_STATE            the end differs from the one before, or there is nothing to commit
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.transaction_state import TransactionMetadata

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT = "Empty", "Ongoing", "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT = "CompleteCommit", "CompleteAbort"
PREPARED = frozenset((PREPARE_COMMIT, PREPARE_ABORT))
# States in which there is no transaction; an id in one of them may expire.
IDLE = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))

MAX_EPOCH = 2**15 - 1
EXHAUSTED_EPOCH = MAX_EPOCH - 1
NO_TIMESTAMP = -1
# The timeout of a transaction that only its client ends (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1
EPOCH_BUMP_VERSION = 2  # of transaction.version


class NeedsProducerIdError(CoordinatorError):
    """A change that needs a new producer id; it is decided again when there is one."""

    def __init__(self) -> None:
        super().__init__(error_codes.COORDINATOR_LOAD_IN_PROGRESS, "a new producer id is needed")


class InitRequest(NamedTuple):
    """What InitProducerId asks for; `expected` is the id and epoch that the client has, None for a new client (KIP-360)."""

    timeout_ms: int
    expected: Producer | None


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Return the entry of an id without one, before its first InitProducerId is applied."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=EMPTY,
        partitions=frozenset(),
        last_update_timestamp_ms=now_ms,
        start_timestamp_ms=NO_TIMESTAMP,
        client_transaction_version=0,
    )


def init_producer_id(
    entry: TransactionMetadata, request: InitRequest, version: int, new_id: int | None, now_ms: int
) -> TransactionMetadata:
    """Return the entry with the next epoch, or aborted if a transaction is open; `version` is the level of transaction.version.

    Raises CoordinatorError, NeedsProducerIdError without the `new_id` that it needs.
    """
    expected = request.expected
    if entry.state in PREPARED:
        _refuse(error_codes.CONCURRENT_TRANSACTIONS, entry)
    if expected is not None and not _is_of_this_id(entry, expected):
        _refuse(error_codes.PRODUCER_FENCED, entry)
    if entry.state == ONGOING:
        return fence(entry, version, new_id, now_ms)
    if entry.state not in IDLE:
        _refuse(error_codes.UNKNOWN_SERVER_ERROR, entry)
    producer_id, epoch, last_epoch = entry.producer_id, entry.producer_epoch + 1, NO_PRODUCER_EPOCH
    if entry.producer_epoch >= EXHAUSTED_EPOCH:
        if expected is not None:
            if expected.producer_epoch != entry.producer_epoch:
                _refuse(error_codes.UNKNOWN_SERVER_ERROR, entry)
            last_epoch = entry.producer_epoch
        producer_id, epoch = _needed(new_id), 0
    elif expected is not None:
        if entry.producer_epoch in (NO_PRODUCER_EPOCH, expected.producer_epoch):
            last_epoch = entry.producer_epoch
        elif expected.producer_epoch == entry.last_producer_epoch:  # a retry: the client has not seen the answer
            epoch, last_epoch = entry.producer_epoch, entry.last_producer_epoch
        else:
            _refuse(error_codes.PRODUCER_FENCED, entry)
    return entry._replace(
        state=EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=entry.producer_id,
        last_producer_epoch=last_epoch,
        timeout_ms=request.timeout_ms,
        partitions=frozenset(),
        start_timestamp_ms=NO_TIMESTAMP,
        last_update_timestamp_ms=now_ms,
    )


def _is_of_this_id(entry: TransactionMetadata, expected: Producer) -> bool:
    return (
        entry.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == entry.producer_id
        or (expected.producer_id == entry.previous_producer_id and expected.producer_epoch >= EXHAUSTED_EPOCH)
    )


def fence(entry: TransactionMetadata, version: int, new_id: int | None, now_ms: int) -> TransactionMetadata:
    """Return the entry of an open transaction that the coordinator aborts, in an epoch that no client has."""
    if version >= EPOCH_BUMP_VERSION:
        return _prepare(entry, PREPARE_ABORT, version, new_id, now_ms)
    aborted = _prepare(entry, PREPARE_ABORT, version, None, now_ms)
    return aborted._replace(producer_epoch=min(entry.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH)


def add_partitions(
    entry: TransactionMetadata | None, producer: Producer, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> TransactionMetadata:
    """Return the entry with partitions added, or the same one; `version` is the client's. Raises CoordinatorError."""
    if entry is not None and entry.state in PREPARED:
        _refuse(error_codes.CONCURRENT_TRANSACTIONS, entry)
    entry = check_producer(entry, producer)
    added = entry.partitions.union(partitions)
    is_open = entry.state == ONGOING
    if is_open and added == entry.partitions:
        return entry
    if not is_open and entry.state not in IDLE:
        _refuse(error_codes.UNKNOWN_SERVER_ERROR, entry)
    return entry._replace(
        state=ONGOING,
        previous_producer_id=entry.producer_id,
        partitions=added,
        start_timestamp_ms=entry.start_timestamp_ms if is_open else now_ms,
        last_update_timestamp_ms=now_ms,
        client_transaction_version=version,
    )


def check_producer(entry: TransactionMetadata | None, producer: Producer) -> TransactionMetadata:
    """Return the entry if it has this producer id and epoch. Raises CoordinatorError."""
    if entry is None or entry.producer_id != producer.producer_id:
        _refuse(error_codes.INVALID_PRODUCER_ID_MAPPING, entry)
    if entry.producer_epoch != producer.producer_epoch:
        _refuse(error_codes.PRODUCER_FENCED, entry)
    return entry


def end_transaction(
    entry: TransactionMetadata | None, producer: Producer, is_commit: bool, version: int, new_id: int | None, now_ms: int
) -> TransactionMetadata:
    """Return the entry of an ending transaction; the same one for a retry of the last end. Raises CoordinatorError."""
    if version < EPOCH_BUMP_VERSION:
        return _end_without_bump(check_producer(entry, producer), is_commit, version, now_ms)
    if entry is None:
        _refuse(error_codes.INVALID_PRODUCER_ID_MAPPING, entry)
    if entry.state in PREPARED:
        _refuse(error_codes.CONCURRENT_TRANSACTIONS, entry)
    producer_id, epoch = producer
    is_overflow = entry.previous_producer_id == producer_id and epoch == EXHAUSTED_EPOCH and entry.producer_epoch == 0
    is_retry = is_overflow or entry.producer_epoch == epoch + 1
    if entry.producer_id != producer_id and not is_overflow:
        _refuse(error_codes.INVALID_PRODUCER_ID_MAPPING, entry)
    is_ended = entry.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    if epoch != entry.producer_epoch and not (is_retry and is_ended):
        _refuse(error_codes.PRODUCER_FENCED, entry)
    if is_retry and is_ended:
        if is_commit != (entry.state == COMPLETE_COMMIT):
            _refuse(error_codes.INVALID_TXN_STATE, entry)
        return entry
    if entry.state == ONGOING:
        return _prepare(entry, PREPARE_COMMIT if is_commit else PREPARE_ABORT, version, new_id, now_ms)
    if is_commit or entry.state not in IDLE:
        _refuse(error_codes.INVALID_TXN_STATE, entry)
    return _prepare(entry, PREPARE_ABORT, version, new_id, now_ms)._replace(start_timestamp_ms=now_ms)


def _end_without_bump(entry: TransactionMetadata, is_commit: bool, version: int, now_ms: int) -> TransactionMetadata:
    if entry.state in PREPARED:
        _refuse(error_codes.CONCURRENT_TRANSACTIONS, entry)
    if entry.state == (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):
        return entry
    if entry.state != ONGOING:
        _refuse(error_codes.INVALID_TXN_STATE, entry)
    return _prepare(entry, PREPARE_COMMIT if is_commit else PREPARE_ABORT, version, None, now_ms)


def _prepare(entry: TransactionMetadata, state: str, version: int, new_id: int | None, now_ms: int) -> TransactionMetadata:
    """Return the entry in the first stage of its end; version 2 increments the epoch, and needs an id if it is exhausted."""
    next_id, epoch, last_epoch = NO_PRODUCER_ID, entry.producer_epoch, entry.last_producer_epoch
    if version >= EPOCH_BUMP_VERSION:
        if epoch >= EXHAUSTED_EPOCH:
            next_id = _needed(new_id)
        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
    return entry._replace(
        state=state,
        producer_epoch=epoch,
        previous_producer_id=entry.producer_id,
        next_producer_id=next_id,
        last_producer_epoch=last_epoch,
        last_update_timestamp_ms=now_ms,
        client_transaction_version=version,
    )


def complete(entry: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the entry of a transaction whose markers are all written."""
    is_overflow = entry.client_transaction_version >= EPOCH_BUMP_VERSION and entry.next_producer_id != NO_PRODUCER_ID
    return entry._replace(
        state=COMPLETE_COMMIT if entry.state == PREPARE_COMMIT else COMPLETE_ABORT,
        producer_id=entry.next_producer_id if is_overflow else entry.producer_id,
        producer_epoch=0 if is_overflow else entry.producer_epoch,
        previous_producer_id=entry.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_timestamp_ms=now_ms,
    )


def _needed(new_id: int | None) -> int:
    if new_id is None:
        raise NeedsProducerIdError
    return new_id


def _refuse(code: int, entry: TransactionMetadata | None) -> NoReturn:
    if entry is None:
        raise CoordinatorError(code, "the transactional id is not known")
    raise CoordinatorError(
        code,
        f"transactional id {entry.transactional_id} is in state {entry.state} with producer id {entry.producer_id} "
        f"and epoch {entry.producer_epoch}",
    )
