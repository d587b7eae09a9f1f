"""The sequences of an idempotent producer: which number the next batch of a partition gets, and which are not acknowledged.

(Kafka: TxnPartitionMap, TxnPartitionEntry.)

    value of a partition      changes
    ------------------------  --------------------------------------------------------------------------------------------
    producer                  the id and epoch of its batches. A newer one of the producer is taken when nothing is in flight
    next_sequence             rises with each batch that is numbered
    last_acked                the sequence of the last record that a broker acknowledged
    last_acked_offset         the offset of that record
    in_flight                 batches that were numbered and have not ended, by their sequences; also those that wait for
                              another attempt

    event                     what is numbered anew
    ------------------------  --------------------------------------------------------------------------------------------
    `start_at_beginning`      the batches in flight get sequences from 0 on, with the current id and epoch
    `adjust_for_failed`       the batches behind one that failed get lower sequences (transactional producer, same epoch)

A broker without a state of a producer accepts any sequence. If it refused the first batch of a partition and accepted the
second one, it would refuse the first batch for ever. So the first batch of a partition is sent alone until a broker has
acknowledged a batch of this producer id.

A partition is unresolved while a batch of it that was sent has expired: whether a log has it is not known. Nothing new is sent
until nothing is in flight. Then the last acknowledged sequence shows whether it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.client.producer.producer_batch import NO_OFFSET, ProducerBatch
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, increment_sequence

_MASK = 0x7FFF_FFFF
_HALF = 0x4000_0000


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_valid(self) -> bool:
        """Whether a broker has given the id."""
        return self.producer_id > NO_PRODUCER_ID


NO_PRODUCER = ProducerIdAndEpoch()


class PartitionSequences:
    """The sequences of one partition."""

    __slots__ = ("in_flight", "last_acked", "last_acked_offset", "next_sequence", "producer")

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.next_sequence = 0
        self.last_acked = NO_SEQUENCE
        self.last_acked_offset = NO_OFFSET
        self.in_flight: list[ProducerBatch] = []

    def start(self, producer: ProducerIdAndEpoch, is_transactional: bool) -> None:
        """Begin at 0 with another id or epoch; the batches in flight are numbered anew."""
        sequence = 0
        for batch in self.in_flight:
            batch.set_producer_state(*producer, sequence, is_transactional)
            sequence = increment_sequence(sequence, batch.record_count)
        self.producer = producer
        self.next_sequence = sequence
        self.last_acked = NO_SEQUENCE

    def is_next(self, sequence: int) -> bool:
        """Return whether a sequence follows the last acknowledged one."""
        expected = 0 if self.last_acked == NO_SEQUENCE else increment_sequence(self.last_acked, 1)
        return sequence == expected


class Sequences:
    """The sequences of all partitions of one producer; `producer` is its newest id and epoch."""

    def __init__(self, is_transactional: bool) -> None:
        self.producer = NO_PRODUCER
        self.unresolved: set[TopicPartition] = set()
        self._is_transactional = is_transactional
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        # Partitions with a batch of the producer id `_known_id` that a broker has acknowledged; another epoch changes nothing.
        self._known: set[TopicPartition] = set()
        self._known_id = NO_PRODUCER_ID

    def partition(self, batch: ProducerBatch) -> PartitionSequences:
        """Return the sequences of a batch's partition; the first call makes them."""
        key = batch.topic, batch.partition
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionSequences(self.producer)
        return found

    def forget(self) -> None:
        """Begin all partitions at 0; nothing is in flight (Kafka: resetSequences)."""
        self._partitions.clear()
        self.unresolved.clear()

    # ------------------------------------------------------------------------------------------------- batches to be sent

    def must_wait(self, batch: ProducerBatch) -> bool:
        """Return whether the first batch of a partition has to wait for those in flight."""
        found = self.partition(batch)
        if not batch.has_sequence:
            key = batch.topic, batch.partition
            if key in self.unresolved:
                return True
            return bool(found.in_flight) and (found.producer != self.producer or not self._is_known(key))
        # A batch that is sent again: those with lower sequences are sent before it.
        return bool(found.in_flight) and found.in_flight[0].base_sequence != batch.base_sequence

    def _is_known(self, key: TopicPartition) -> bool:
        return key in self._known and self._known_id == self.producer.producer_id

    def assign(self, batch: ProducerBatch) -> None:
        """Number a batch and count it as in flight."""
        found = self.partition(batch)
        if found.producer != self.producer and not found.in_flight:
            found.start(self.producer, self._is_transactional)
        batch.set_producer_state(*found.producer, found.next_sequence, self._is_transactional)
        found.next_sequence = increment_sequence(found.next_sequence, batch.record_count)
        self.add_in_flight(batch)

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Count a batch that has a sequence as in flight."""
        in_flight = self.partition(batch).in_flight
        index = len(in_flight)
        while index and 0 < (in_flight[index - 1].base_sequence - batch.base_sequence & _MASK) < _HALF:
            index -= 1
        in_flight.insert(index, batch)

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        """Count a batch as in flight no longer."""
        in_flight = self.partition(batch).in_flight
        if batch in in_flight:
            in_flight.remove(batch)

    # ------------------------------------------------------------------------------------------------ batches that ended

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> None:
        """Take a batch that a log has."""
        found = self.partition(batch)
        self.remove_in_flight(batch)
        if batch.producer_id == self.producer.producer_id:
            if batch.producer_id != self._known_id:
                self._known_id = batch.producer_id
                self._known.clear()
            self._known.add((batch.topic, batch.partition))
        if (batch.producer_id, batch.producer_epoch) != found.producer:
            return  # a late answer to a batch that expired; the partition has begun anew since
        if found.last_acked == NO_SEQUENCE or 0 < (batch.last_sequence - found.last_acked & _MASK) < _HALF:
            found.last_acked = batch.last_sequence
        if base_offset != NO_OFFSET:
            found.last_acked_offset = max(found.last_acked_offset, base_offset + batch.record_count - 1)

    def start_at_beginning(self, key: TopicPartition) -> None:
        """Begin a partition at 0 with the current id and epoch (Kafka: startSequencesAtBeginning)."""
        found = self._partitions.get(key)
        if found is not None:
            found.start(self.producer, self._is_transactional)
        self.unresolved.discard(key)

    def reset_next(self, batch: ProducerBatch) -> None:
        """Give the next batch of a partition the sequence 0: the broker has no state of the producer."""
        found = self.partition(batch)
        found.next_sequence = 0
        found.last_acked = NO_SEQUENCE
        self._known.discard((batch.topic, batch.partition))

    def adjust_for_failed(self, batch: ProducerBatch) -> None:
        """Close the gap of a batch that no log has: those behind it get lower sequences."""
        found = self.partition(batch)
        count = batch.record_count
        found.next_sequence = found.next_sequence - count & _MASK
        for other in found.in_flight:
            if 0 < (other.base_sequence - batch.base_sequence & _MASK) < _HALF:
                lower = other.base_sequence - count & _MASK
                other.set_producer_state(other.producer_id, other.producer_epoch, lower, self._is_transactional)

    def take_lost(self) -> Iterator[TopicPartition]:
        """Yield the unresolved partitions of which a batch is lost; those of which all was written are resolved."""
        for key in sorted(self.unresolved):
            found = self._partitions.get(key)
            if found is not None and found.in_flight:
                continue
            self.unresolved.discard(key)
            if found is not None and not found.is_next(found.next_sequence):
                yield key
