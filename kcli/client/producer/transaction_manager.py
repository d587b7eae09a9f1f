"""Idempotence and transactions of one producer: its states, ids and epochs, and what errors mean (Kafka: TransactionManager).

    state            it follows                                     meaning
    ---------------  ---------------------------------------------  --------------------------------------------------------
    UNINITIALIZED    READY, ABORTABLE_ERROR                         has no producer id
    INITIALIZING     UNINITIALIZED, COMMITTING, ABORTING            InitProducerId is under way
    READY            INITIALIZING, COMMITTING, ABORTING             idempotent: sends; transactional: no transaction
    IN_TRANSACTION   READY                                          records and offsets may be sent
    COMMITTING       IN_TRANSACTION                                 waits for batches, then EndTxn
    ABORTING         IN_TRANSACTION, ABORTABLE_ERROR                the same; batches that were never sent are aborted
    ABORTABLE_ERROR  IN_TRANSACTION, COMMITTING, ABORTABLE_ERROR,   only abort_transaction is allowed
                     INITIALIZING
    FATAL_ERROR      any                                            nothing is allowed but close

    transaction.version  partitions are added by          a transaction ends with
    -------------------  -------------------------------  --------------------------------------------------------------------
    0, 1                 AddPartitionsToTxn,              the same epoch; after an error that lost sequences InitProducerId
                         AddOffsetsToTxn                  raises it (KIP-360)
    2 (KIP-890)          the first Produce or             the next epoch, which the answer to EndTxn has
                         TxnOffsetCommit

    a batch of an idempotent producer    then
    -----------------------------------  -------------------------------------------------------------------------------------
    OUT_OF_ORDER_SEQUENCE_NUMBER         sent again if an earlier one is not acknowledged; else the epoch rises, and what is in
                                         flight for the partition is numbered from 0 (transactional: the transaction fails)
    UNKNOWN_PRODUCER_ID                  the same: the broker has lost the producer's state
    failed for good, or expired with     the epoch rises for its partition: later batches must not look like a gap
    others behind it

The epoch rises without a request, except at its end: then InitProducerId gives another id. The requests are in
kcli.client.producer.transaction_requests.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kcli.client.errors import (
    ClientError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    UnsupportedVersionError,
)
from kcli.client.producer.producer_batch import NO_OFFSET, ProducerBatch
from kcli.client.producer.sender import PartitionResult
from kcli.client.producer.sequences import NO_PRODUCER, ProducerIdAndEpoch, Sequences
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes

MAX_EPOCH = 0x7FFF


class State(Enum):
    """The states of the module's table."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "unusable after an error"


_SOURCES = {
    State.UNINITIALIZED: {State.READY, State.ABORTABLE_ERROR},
    State.INITIALIZING: {State.UNINITIALIZED, State.COMMITTING, State.ABORTING},
    State.READY: {State.INITIALIZING, State.COMMITTING, State.ABORTING},
    State.IN_TRANSACTION: {State.READY},
    State.COMMITTING: {State.IN_TRANSACTION},
    State.ABORTING: {State.IN_TRANSACTION, State.ABORTABLE_ERROR},
    State.ABORTABLE_ERROR: {State.IN_TRANSACTION, State.COMMITTING, State.ABORTABLE_ERROR, State.INITIALIZING},
    State.FATAL_ERROR: set(State),
}
_FATAL_OF_A_BATCH = frozenset(
    (
        error_codes.CLUSTER_AUTHORIZATION_FAILED,
        error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        error_codes.PRODUCER_FENCED,
        error_codes.UNSUPPORTED_VERSION,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
    )
)


class TransactionManager:
    """The state of one producer; it is a BatchSequencer of the accumulator and SenderTransactions of the sender.

    `can_bump` says whether the coordinator has InitProducerId 3, with which a client raises its epoch.
    """

    def __init__(self, transactional_id: str | None, log: Callable[[str], None], can_bump: Callable[[], bool]) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.error: ClientError | None = None
        self.sequences = Sequences(transactional_id is not None)
        # Whether transaction.version is 2; it is taken between transactions only.
        self.is_version_2 = False
        self.must_bump_epoch = False
        self.has_started = False  # the coordinator may know of the transaction
        self.new_partitions: set[TopicPartition] = set()
        self.partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._to_renumber: set[TopicPartition] = set()
        # Whether records may be sent; `check_can_append` says why not.
        self.can_append = transactional_id is None
        self._log = log
        self._can_bump = can_bump

    # ------------------------------------------------------------------------------------------------------------ states

    @property
    def is_transactional(self) -> bool:
        """Whether the producer has a transactional id."""
        return self.transactional_id is not None

    @property
    def adds_partitions(self) -> bool:
        """Whether AddPartitionsToTxn adds partitions to a transaction (transaction.version 0 and 1)."""
        return not self.is_version_2

    @property
    def is_completing(self) -> bool:
        """Whether a transaction is being committed or aborted, which waits for its batches."""
        return self.state in (State.COMMITTING, State.ABORTING)

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer's id and epoch, NO_PRODUCER if it has none yet."""
        return self.sequences.producer

    def enter(self, state: State, error: ClientError | None = None) -> None:
        """Change the state. Raises IllegalStateError for a change that the table does not have."""
        if self.state not in _SOURCES[state]:
            raise IllegalStateError(f"the producer cannot be {state.value} after it was {self.state.value}")
        self.state, self.error = state, error
        self.can_append = state is State.IN_TRANSACTION if self.is_transactional else state is not State.FATAL_ERROR

    def check_usable(self) -> None:
        """Raise the error that forbids every call but abort_transaction and close.

        Raises TransactionAbortableError, or ProducerFencedError or another TransactionFatalError.
        """
        if self.state is State.ABORTABLE_ERROR:
            raise TransactionAbortableError(f"the transaction has failed and must be aborted: {self.error}") from self.error
        if self.state is State.FATAL_ERROR:
            raise self.fatal_error()

    def fatal_error(self) -> ClientError:
        """Return the error of a producer that is of no use any more."""
        if isinstance(self.error, TransactionFatalError):
            return self.error
        return TransactionFatalError(f"the producer must be closed: {self.error}")

    def check_can_append(self) -> None:
        """Raise an error if no record may be sent now.

        Raises IllegalStateError outside of a transaction if the producer is transactional, and as check_usable does.
        """
        self.check_usable()
        if self.is_transactional and self.state is not State.IN_TRANSACTION:
            what = "call init_transactions() first" if not self.producer.is_valid else "call begin_transaction() first"
            raise IllegalStateError(
                f"a transactional producer sends records in a transaction only: it is {self.state.value}; {what}"
            )

    def fail_abortable(self, error: ClientError) -> None:
        """Let the transaction be aborted only."""
        if self.state is State.ABORTING:
            return
        self._log(f"the transaction of {self.transactional_id} has failed and must be aborted: {error}")
        self.enter(State.ABORTABLE_ERROR, error)

    def record_failed(self, error: ClientError) -> None:
        """Take a record of the transaction that could not be appended (Kafka: maybeTransitionToErrorState)."""
        if self.state is State.IN_TRANSACTION:
            self._take_failure(error)

    def fail_abortable_if_possible(self, error: ClientError) -> None:
        """Let the transaction be aborted if the epoch can be raised afterwards; otherwise the error is fatal."""
        if not self._can_bump() and not self.is_version_2:
            self.fail_fatally(error)
            return
        self.must_bump_epoch |= not self.is_version_2
        self.fail_abortable(error)

    def fail_fatally(self, error: ClientError) -> None:
        """Let nothing be done any more."""
        self._log(f"the producer cannot be used any more: {error}")
        self.enter(State.FATAL_ERROR, error)

    def fail_fenced(self, error: ClientError) -> None:
        """Take the news that another producer has the transactional id."""
        self.fail_fatally(ProducerFencedError(f"another producer has taken over {self.transactional_id}: {error}"))

    # ------------------------------------------------------------------------------------------------ ids and partitions

    def initialized(self, producer: ProducerIdAndEpoch) -> None:
        """Take the id and epoch of InitProducerId."""
        self.sequences.producer = producer
        if self.is_transactional:
            self.sequences.forget()
        self._renumber()
        self.enter(State.READY)

    def add_partition(self, topic: str, partition: int) -> None:
        """Let a partition take part in the transaction."""
        key = topic, partition
        if self.is_version_2:
            self.partitions.add(key)
            self.has_started = True
        elif key not in self.partitions and key not in self._pending_partitions:
            self.new_partitions.add(key)

    def take_new_partitions(self) -> list[TopicPartition]:
        """Return the partitions for the next AddPartitionsToTxn; `partitions_added` or a failed transaction follows."""
        self._pending_partitions |= self.new_partitions
        self.new_partitions.clear()
        return sorted(self._pending_partitions)

    def partitions_added(self, added: list[TopicPartition]) -> None:
        """Take the coordinator's consent."""
        self._pending_partitions.difference_update(added)
        self.partitions.update(added)
        self.has_started = True

    def drop_pending_partitions(self) -> None:
        """Forget partitions that the coordinator did not add to a transaction that has failed."""
        self.new_partitions.clear()
        self._pending_partitions.clear()

    def ended(self, producer: ProducerIdAndEpoch | None) -> None:
        """Take the end of a transaction; with transaction.version 2 it brings the next epoch."""
        if producer is not None:
            self.sequences.producer = producer
            self.sequences.forget()
        is_init_due = self.must_bump_epoch or not self.producer.is_valid  # init_transactions may have failed
        self.enter(State.INITIALIZING if is_init_due else State.READY)
        self.must_bump_epoch = False
        self.has_started = False
        self.partitions.clear()
        self.new_partitions.clear()
        self._pending_partitions.clear()

    def take_version(self, level: int) -> None:
        """Take the level of transaction.version; the epoch has to rise with the first transaction of version 2."""
        is_version_2 = level >= 2
        if is_version_2 and not self.is_version_2 and self.state is not State.INITIALIZING:
            self.must_bump_epoch = True
        self.is_version_2 = is_version_2

    # ------------------------------------------------------------------------------------------ idempotent producers only

    def resolve(self) -> None:
        """Decide about unresolved partitions, and raise the epoch if that is due (Kafka: maybeResolveSequences)."""
        for key in self.sequences.take_lost():
            if not self.is_transactional:
                self._to_renumber.add(key)
                continue
            error = TransactionAbortableError(f"records of {key[0]}-{key[1]} expired, and were maybe written")
            if self.state in _SOURCES[State.ABORTABLE_ERROR]:
                self.fail_abortable_if_possible(error)
            else:
                self.must_bump_epoch |= not self.is_version_2
        if not self.is_transactional and self._to_renumber and self.producer.is_valid:
            self._bump_epoch()

    def _bump_epoch(self) -> None:
        producer_id, epoch = self.producer
        if epoch == MAX_EPOCH:
            self.sequences.producer = NO_PRODUCER
            if self.state is State.READY:
                self.enter(State.UNINITIALIZED)
            return
        self.sequences.producer = ProducerIdAndEpoch(producer_id, epoch + 1)
        self._renumber()

    def _renumber(self) -> None:
        for key in sorted(self._to_renumber):
            self.sequences.start_at_beginning(key)
        self._to_renumber.clear()

    # -------------------------------------------------------------------------------------------- for the accumulator

    def must_wait(self, batch: ProducerBatch) -> bool:
        """Return whether the first batch of a partition may not be sent now."""
        if self.state is State.FATAL_ERROR or not self.producer.is_valid:
            return True
        if self.is_transactional and (batch.topic, batch.partition) not in self.partitions:
            return True
        return self.sequences.must_wait(batch)

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Number a batch that is sent for the first time."""
        self.sequences.assign(batch)

    def add_in_flight_batch(self, batch: ProducerBatch) -> None:
        """Count a part of a split batch as in flight."""
        self.sequences.add_in_flight(batch)

    # -------------------------------------------------------------------------------------------------- for the sender

    def remove_in_flight_batch(self, batch: ProducerBatch) -> None:
        """Count a batch as in flight no longer."""
        self.sequences.remove_in_flight(batch)

    def completed(self, batch: ProducerBatch, result: PartitionResult) -> None:
        """Take a batch that a log has."""
        self.sequences.acknowledged(batch, result.base_offset)

    def mark_sequence_unresolved(self, batch: ProducerBatch) -> None:
        """Take a batch that expired after it was sent."""
        self.sequences.unresolved.add((batch.topic, batch.partition))

    def can_retry(self, batch: ProducerBatch, result: PartitionResult) -> bool:
        """Return whether a batch that failed may be sent again, maybe with another sequence."""
        key = batch.topic, batch.partition
        found = self.sequences.partition(batch)
        code = result.error_code
        is_current = (batch.producer_id, batch.producer_epoch) == self.producer
        if code == error_codes.UNKNOWN_PRODUCER_ID:
            if result.log_start_offset == NO_OFFSET or batch.is_sequence_reset:
                return True
            if self.is_transactional and found.last_acked_offset < result.log_start_offset:
                # Retention has removed all records of the producer, and its state with them.
                found.start(self.producer, True)
                return True
        elif code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self.state in (State.ABORTABLE_ERROR, State.ABORTING):
                return False  # the batch before it may be the one that failed: it would be out of order for ever
            # Also one that was numbered anew while it was under way: the answer is about the old sequence. A batch behind which
            # others are acknowledged may be in the log of a broker that was restarted and knows the last one only: with another
            # sequence it would be written twice.
            if key not in self.sequences.unresolved and (batch.is_sequence_reset or not found.is_next(batch.base_sequence)):
                return True
        else:
            return code in error_codes.RETRIABLE
        if self.is_transactional:
            return False
        if is_current:
            self._to_renumber.add(key)
        return True

    def failed(self, batch: ProducerBatch, error: ClientError, *, adjust_sequences: bool) -> None:
        """Take a batch that failed for good; `adjust_sequences` if no log has it."""
        self._take_failure(error)
        self.sequences.remove_in_flight(batch)
        if self.state is State.FATAL_ERROR or not batch.has_sequence:
            return
        code = error.code if isinstance(error, KafkaError) else error_codes.NONE
        if code == error_codes.UNKNOWN_PRODUCER_ID:
            self.sequences.reset_next(batch)
        elif not self.is_transactional:
            if adjust_sequences or code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._to_renumber.add((batch.topic, batch.partition))
        elif adjust_sequences and code != error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A log may have a batch that is out of order: a broker that was restarted knows the last one only. With its
            # sequence the next batch would be taken for it, and reported at its offset.
            self.sequences.adjust_for_failed(batch)

    def _take_failure(self, error: ClientError) -> None:
        code = error.code if isinstance(error, KafkaError) else error_codes.NONE
        if code == error_codes.PRODUCER_FENCED:
            self.fail_fenced(error)
        elif code in _FATAL_OF_A_BATCH or isinstance(error, UnsupportedVersionError):
            self.fail_fatally(error)
        elif self.is_transactional and self.state in _SOURCES[State.ABORTABLE_ERROR]:
            if not self.is_version_2 and self._can_bump() and not self.is_completing:
                self.must_bump_epoch = True
            self.fail_abortable(error)
