"""One batch of records of a partition, from its first record to the broker's response (Kafka: ProducerBatch).

    state      how it is entered                                    after it
    ---------  ---------------------------------------------------  -----------------------------------------------------
    open       made with its first record                           appends until nothing fits into it, or it is drained
    closed     drained, or another batch was begun                  sent, expired, aborted or split
    SUCCEEDED  `complete`: the broker's offset of the first record  final
    FAILED     `fail`: an error of the broker, or a timeout         a late `complete` or `fail` is ignored
    ABORTED    `abort`: a transaction or the producer has ended     the same
    SPLIT      `split`, after MESSAGE_TOO_LARGE                     its records are in `split_batches`

A retried batch is closed and keeps its bytes and its sequence: what a broker may have appended already must not change.

Times are in ms of the node's own clock (monotonic), apart from timestamps of records. This one source runs two ways, as
kcli.format.record_scan does; its C types are in producer_batch.pxd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kcli.client.cluster import NO_EPOCH
from kcli.client.producer import buffer_pool
from kcli.format import compression, limits, memory_records_builder, record_batch, record_scan, records

PENDING, SUCCEEDED, FAILED, ABORTED, SPLIT = range(5)
STATE_NAMES = ("PENDING", "SUCCEEDED", "FAILED", "ABORTED", "SPLIT")
NO_TIMESTAMP = record_batch.NO_TIMESTAMP
NO_OFFSET = -1
NEVER = -1
# A full batch waits for its request, and records come fast: it grows by this many times its size, in few steps.
FULL_GROWTH = 3

Headers = memory_records_builder.Headers


class RecordMetadata(NamedTuple):
    """Where a record is, as the broker reported it (Kafka: RecordMetadata); a size of -1 is that of null.

    The offset is -1 with acks=0.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key_size: int
    value_size: int


# (metadata, None) if the record was written, else (None, error)
# Text, since the C compiler warns of `|` between types, which it takes for numbers.
Callback = Callable[["RecordMetadata | None", "Exception | None"], object]


class ProducerBatch:
    """A batch; `reserved_bytes` is its share of buffer.memory."""

    def __init__(
        self,
        topic: str,
        partition: int,
        builder: memory_records_builder.MemoryRecordsBuilder,
        created_ms: int,
        reserved_bytes: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = builder
        self.created_ms = created_ms
        self.reserved_bytes = reserved_bytes
        self.last_attempt_ms = created_ms
        self.drained_ms = NEVER
        self.retry_at_ms = created_ms
        self.attempts = 0
        self.leader_epoch = NO_EPOCH
        self.is_split_batch = False
        self.is_sequence_reset = False
        self.state = PENDING
        self.split_batches: list[ProducerBatch] = []
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.error: Exception | None = None
        self._attempts_at_leader_change = 0
        self._record_errors: Mapping[int, Exception] = {}
        # By the index of the record; shorter than the batch if the last records have none.
        self._callbacks: list[Callback | None] = []

    def __repr__(self) -> str:
        state = STATE_NAMES[self.state]
        return f"ProducerBatch({self.topic}-{self.partition}, {self.record_count} records, attempts={self.attempts}, {state})"

    # ----------------------------------------------------------------------------------------------------------- records

    def try_append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        callback: Callback | None,
        pool: buffer_pool.BufferPool,
    ) -> bool:
        """Append a record; return False if the batch has no room for it, and close the batch then.

        `pool` has the memory that a batch grows by. Raises ValueError for a negative timestamp.
        """
        size = self.builder.append(timestamp, key, value, headers)
        if size <= 0:
            # The constant is an object for compiled code, so sizes are compared with it only if no record was appended.
            if size == memory_records_builder.NEEDS_MEMORY and self._grow(key, value, headers, pool):
                size = self.builder.append(timestamp, key, value, headers)
            if size <= 0:
                self.builder.close_for_appends()
                return False
        if callback is not None:
            while len(self._callbacks) < self.builder.record_count - 1:
                self._callbacks.append(None)
            self._callbacks.append(callback)
        return True

    def _grow(self, key: bytes | None, value: bytes | None, headers: Headers, pool: buffer_pool.BufferPool) -> bool:
        return self.grow_by(memory_records_builder.estimate_size_upper_bound(key, value, headers), pool)

    def grow_by(self, size: int, pool: buffer_pool.BufferPool) -> bool:
        """Take memory for `size` bytes more, and as much as there is; return False if that is too much.

        The buffer of a full batch has at most `write_limit` bytes, compressed or not.
        """
        capacity, limit = self.builder.capacity, self.builder.write_limit
        more = max(capacity, size)
        if not self.builder.codec or self.builder.is_full():
            if capacity + size > limit:
                return False
            more = min(max(FULL_GROWTH * capacity, size), limit - capacity)
        if not pool.allocate(more):
            return False
        self.reserved_bytes += more
        self.builder.grow(capacity + more)
        return True

    def set_first_callback(self, callback: Callback) -> None:
        """Set the callback of the first record, before any other is set."""
        self._callbacks = [callback]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.builder.record_count

    # ----------------------------------------------------------------------------------------------------------- sending

    @property
    def base_sequence(self) -> int:
        """The sequence of the first record, -1 if none is set."""
        return self.builder.base_sequence

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; meaningless without a sequence."""
        return record_batch.increment_sequence(self.builder.base_sequence, self.builder.record_count - 1)

    @property
    def producer_id(self) -> int:
        """The id of the producer, -1 if none is set."""
        return self.builder.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer, -1 if none is set."""
        return self.builder.producer_epoch

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool) -> None:
        """Number the batch, or number it again: what was sent before is in no log any more (Kafka: resetProducerState)."""
        self.is_sequence_reset = self.has_sequence
        self.builder.set_producer_state(producer_id, producer_epoch, base_sequence, is_transactional)

    @property
    def has_sequence(self) -> bool:
        """Whether an idempotent producer has numbered the batch."""
        return self.builder.base_sequence != record_batch.NO_SEQUENCE

    @property
    def was_never_sent(self) -> bool:
        """Whether no broker can have the records: the batch was not drained, nor was one that it is a part of numbered."""
        return self.drained_ms == NEVER and not self.has_sequence

    def close(self, pool: buffer_pool.BufferPool) -> int:
        """Compress the batch and write its header; return its size in bytes. What compression saves returns to `pool`."""
        size = len(self.builder.build())
        if self.builder.codec and size < self.reserved_bytes:
            pool.deallocate(self.reserved_bytes - size)
            self.reserved_bytes = size
        return size

    def encoded(self) -> bytearray:
        """Return the batch as it is sent. It must not be changed."""
        return self.builder.build()

    def update_leader_epoch(self, leader_epoch: int) -> None:
        """Note the leader epoch that the client knows. A retry to a newer leader does not wait for its backoff (KIP-951)."""
        if leader_epoch > self.leader_epoch:
            self._attempts_at_leader_change = self.attempts
            self.leader_epoch = leader_epoch

    def is_backing_off(self, now_ms: int) -> bool:
        """Return whether a retry has to wait."""
        if self.attempts == 0 or now_ms >= self.retry_at_ms:
            return False
        return self._attempts_at_leader_change != self.attempts

    def reenqueued(self, now_ms: int, backoff_ms: int) -> None:
        """Count a failed attempt; the next one is not before `backoff_ms` from now."""
        self.attempts += 1
        self.last_attempt_ms = max(self.last_attempt_ms, now_ms)
        self.retry_at_ms = self.last_attempt_ms + backoff_ms

    def has_reached_delivery_timeout(self, delivery_timeout_ms: int, now_ms: int) -> bool:
        """Return whether delivery.timeout.ms has passed since the first record was appended."""
        return now_ms - self.created_ms >= delivery_timeout_ms

    # ------------------------------------------------------------------------------------------------------------ the end

    @property
    def is_done(self) -> bool:
        """Whether all records have a result; a split batch is done when all its parts are."""
        if self.state == SPLIT:
            return all(part.is_done for part in self.split_batches)
        return self.state != PENDING

    def complete(self, base_offset: int, log_append_time_ms: int = NO_TIMESTAMP) -> bool:
        """Set the broker's result; return False if the batch had failed or was aborted before.

        Raises ValueError if it had succeeded.
        """
        if not self._end(SUCCEEDED):
            return False
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        return True

    def fail(self, error: Exception, record_errors: Mapping[int, Exception] | None = None) -> bool:
        """Set an error, and others for records by their index (KIP-467); return False if the batch had ended before.

        Raises ValueError if it had succeeded.
        """
        if not self._end(FAILED):
            return False
        self.error = error
        self._record_errors = record_errors or {}
        return True

    def abort(self, error: Exception) -> None:
        """Set the error of a batch that was not sent, or of which the response does not matter any more.

        Raises ValueError if the batch had ended before.
        """
        if self.state != PENDING:
            raise ValueError(f"a batch cannot be aborted twice: {self!r}")
        self.builder.close_for_appends()
        self.state = ABORTED
        self.error = error

    def _end(self, state: int) -> bool:
        if self.state in (SUCCEEDED, SPLIT):
            raise ValueError(f"a batch cannot become {STATE_NAMES[state]}: {self!r}")
        if self.state != PENDING:
            return False
        self.state = state
        return True

    def locate(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that has the record with this index, and its index there: after a split it is another batch."""
        batch: ProducerBatch = self
        while batch.state == SPLIT:
            for part in batch.split_batches:
                if index < part.record_count:
                    batch = part
                    break
                index -= part.record_count
        return batch, index

    def error_of(self, index: int) -> Exception | None:
        """Return the error of one record, None if it was written."""
        return self._record_errors.get(index, self.error)

    def offset_of(self, index: int) -> int:
        """Return the offset of one record, -1 if the broker reported none."""
        return NO_OFFSET if self.base_offset < 0 else self.base_offset + index

    def deliveries(self) -> Iterator[tuple[Callback, RecordMetadata | None, Exception | None]]:
        """Yield the callbacks of the records, in order, with their arguments. The caller calls them, once."""
        callbacks, self._callbacks = self._callbacks, []
        if self.state != SUCCEEDED:
            for index, callback in enumerate(callbacks):
                if callback is not None:
                    yield callback, None, self.error_of(index)
            return
        columns = self._columns(len(callbacks))
        timestamps, key_sizes, value_sizes = columns.timestamp, columns.key_size, columns.value_size
        has_time, has_offset = self.log_append_time_ms != NO_TIMESTAMP, self.base_offset >= 0
        make = tuple.__new__  # three times as fast as the class itself
        for index, callback in enumerate(callbacks):
            if callback is not None:
                timestamp = self.log_append_time_ms if has_time else timestamps[index]
                offset = self.base_offset + index if has_offset else NO_OFFSET
                sizes = key_sizes[index], value_sizes[index]
                yield callback, make(RecordMetadata, (self.topic, self.partition, offset, timestamp, *sizes)), None

    # ------------------------------------------------------------------------------------------------------------- splits

    def split(self, batch_size: int, estimated_ratio: float) -> list[ProducerBatch]:
        """Move the records to batches of at most `batch_size` bytes, or one record; return them, in order.

        They keep the creation time and the sequences, but are new in other respects: no attempt has been made. They have no
        share of buffer.memory, as in Kafka.
        """
        parts: list[ProducerBatch] = []
        callbacks = self._callbacks
        part: ProducerBatch | None = None
        pool = buffer_pool.BufferPool(0)
        for index, (timestamp, key, value, headers) in enumerate(self._records()):
            callback = callbacks[index] if index < len(callbacks) else None
            while part is None or not part.try_append(timestamp, key, value, headers, callback, pool):
                size = memory_records_builder.estimate_size_upper_bound(key, value, headers)
                builder = memory_records_builder.MemoryRecordsBuilder(
                    max(batch_size, size), self.builder.codec, self.builder.level, estimated_ratio
                )
                # Not the larger capacity, or two small records would never be split.
                builder.write_limit = batch_size
                part = ProducerBatch(self.topic, self.partition, builder, self.created_ms)
                part.is_split_batch = True
                parts.append(part)
        self._number(parts)
        self._callbacks = []
        self.state = SPLIT
        self.split_batches = parts
        return parts

    def _number(self, parts: list[ProducerBatch]) -> None:
        sequence = self.base_sequence
        for part in parts:
            part.builder.close_for_appends()
            if self.has_sequence:
                part.set_producer_state(
                    self.builder.producer_id, self.builder.producer_epoch, sequence, self.builder.is_transactional
                )
                sequence = record_batch.increment_sequence(sequence, part.record_count)

    def _records(self) -> Iterator[tuple[int, bytes | None, bytes | None, Headers]]:
        """Decode the records of the built batch: timestamp, key, value, headers."""
        for one in records.read_records(self._inflated(), self.record_count):
            headers = tuple((header.key, header.value) for header in one.headers)
            yield self.builder.base_timestamp + one.timestamp_delta, one.key, one.value, headers

    def _inflated(self) -> bytes | memoryview:
        """Return the records of the built batch, not compressed."""
        data = memoryview(self.builder.build())[record_batch.HEADER_BYTES :]
        codec = self.builder.codec
        return compression.inflate(codec, data, limit=limits.MAX_INFLATED_BATCH_BYTES) if codec else data

    def _columns(self, count: int) -> record_scan.RecordColumns:
        """Return timestamps and sizes of the first `count` records. They are not kept apart from the records."""
        columns = record_scan.RecordColumns(count)
        columns.begin_batch(0, self.builder.base_timestamp)
        if count:
            data = self._inflated()
            columns.scan(data, 0, len(data), count, 0)
        return columns
