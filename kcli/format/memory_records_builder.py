"""Records encoded one by one into the buffer of a batch of format v2 (Kafka: MemoryRecordsBuilder).

    bytes of the buffer     contents
    ----------------------  ------------------------------------------------------------------------------------------
    0 to 60                 the batch header (kcli.format.record_batch), which `build` writes in place
    61 to position - 1      the records, not compressed; the table of their layout is in kcli.format.record_scan
    position to capacity    room for more

    state       what it takes
    ----------  ----------------------------------------------------------------------------------------------------------
    open        `append`, until a record does not fit into `write_limit`
    closed      `set_producer_state`, since an idempotent producer numbers a batch when it is sent; `build`

A batch is full when its estimated size reaches `full_size`, and takes records up to `write_limit`. For a codec the estimate
is the size of the records times the ratio that earlier batches had, times 1.05 (Kafka: COMPRESSION_RATE_ESTIMATION_FACTOR);
so the buffer may have to grow, for which `append` asks with NEEDS_MEMORY. All records are compressed in one call when the
batch is closed.

This one source runs two ways, as kcli.format.record_scan does; its C types are in memory_records_builder.pxd. A record of 100
bytes takes 0.1 us compiled, 2 us interpreted.
`size_varint` and `put_varint` are those of kcli.format.record_copy once more: calls into another compiled module would make a
record a tenth slower (0.084 us instead of 0.076).
"""

from kcli.format import byte_address
from kcli.format.compression import deflate
from kcli.format.primitives import Buffer, crc32c
from kcli.format.record_batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
)

Headers = tuple[tuple[bytes, bytes | None], ...]

NO_ROOM = 0  # the batch is full or closed
NEEDS_MEMORY = -1  # the record fits into the batch, but not into its buffer
BATCH_OVERHEAD = HEADER_BYTES
# Of a record without key, value and headers: attributes, and the longest varints of its length and deltas.
MOST_OVERHEAD = 21
ESTIMATION_FACTOR = 1.05


def size_varint(value: int) -> int:
    """Return how many bytes a zigzag integer of 64 bits takes."""
    raw = value << 1 if value >= 0 else -2 * (value + 1) + 1
    size = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


def put_varint(value: int, out: bytearray, position: int) -> int:
    """Write a zigzag integer of 64 bits at out[position]; return the position behind it."""
    raw = value << 1 if value >= 0 else -2 * (value + 1) + 1
    while raw > 127:
        out[position] = raw & 127 | 128
        raw >>= 7
        position += 1
    out[position] = raw
    return position + 1


def size_headers(headers: Headers) -> int:
    """Return the size of a record's headers in bytes, without their number."""
    total = 0
    for header in headers:
        # Not unpacked: for a tuple with names that allocates, and a finalizer that then runs could append to the same batch.
        key, value = header[0], header[1]
        total += size_varint(len(key)) + len(key)
        total += 1 if value is None else size_varint(len(value)) + len(value)
    return total


def estimate_size_upper_bound(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the most bytes that a batch of this one record takes, not compressed (Kafka: estimateSizeInBytesUpperBound)."""
    size = BATCH_OVERHEAD + MOST_OVERHEAD + size_varint(len(headers)) + size_headers(headers)
    size += 1 if key is None else size_varint(len(key)) + len(key)
    size += 1 if value is None else size_varint(len(value)) + len(value)
    return size


class MemoryRecordsBuilder:
    """One batch under construction; times are in ms, `codec` is the id of kcli.format.compression, and `level` its level."""

    def __init__(self, capacity: int, codec: int = 0, level: int | None = None, estimated_ratio: float = 1.0) -> None:
        self.buffer = bytearray(capacity)
        self.capacity = capacity
        self.full_size = self.write_limit = capacity
        self.position = BATCH_OVERHEAD
        self.record_count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.is_closed = False
        self.codec = codec
        self.level = level
        # In units of 2**-16: compiled code would make an object to round the product with a float, five times for a record.
        self._factor = int(estimated_ratio * ESTIMATION_FACTOR * 65536)
        self._built: bytearray | None = None
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_PRODUCER_EPOCH
        self._base_sequence = NO_SEQUENCE
        self._is_transactional = False

    # ----------------------------------------------------------------------------------------------------------- records

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Append a record; return its size in bytes, or NO_ROOM or NEEDS_MEMORY if it is not appended.

        The first record always fits. Raises ValueError for a negative timestamp.
        """
        if timestamp < 0:
            raise ValueError(f"the timestamp {timestamp} is negative; timestamps are milliseconds since 1970")
        if self.is_closed:
            return NO_ROOM
        base_timestamp = self.base_timestamp if self.record_count else timestamp
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        header_count = len(headers)
        body = 1 + size_varint(timestamp - base_timestamp) + size_varint(self.record_count)
        body += size_varint(key_size) + size_varint(value_size) + size_varint(header_count)
        if key_size > 0:
            body += key_size
        if value_size > 0:
            body += value_size
        if header_count:
            body += size_headers(headers)
        size = size_varint(body) + body
        # `write_limit` counts only after the first record, so a batch is never empty.
        if self.record_count and self.estimated_size() + size > self.write_limit:
            return NO_ROOM
        if self.position + size > self.capacity:
            return NEEDS_MEMORY
        self._put(body, timestamp - base_timestamp, key, key_size, value, value_size, headers, header_count)
        self.base_timestamp = base_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.record_count += 1
        return size

    def append_parts(
        self,
        timestamp: int,
        key: Buffer,
        key_start: int,
        key_size: int,
        value: Buffer,
        value_start: int,
        value_size: int,
    ) -> int:
        """Append a record without headers whose key and value are parts of buffers; a size of -1 is null.

        The result is that of `append`, and it raises the same errors. The parts must be inside of the buffers.
        """
        if timestamp < 0:
            raise ValueError(f"the timestamp {timestamp} is negative; timestamps are milliseconds since 1970")
        if self.is_closed:
            return NO_ROOM
        base_timestamp = self.base_timestamp if self.record_count else timestamp
        body = 2 + size_varint(timestamp - base_timestamp) + size_varint(self.record_count)
        body += size_varint(key_size) + size_varint(value_size)
        body += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        size = size_varint(body) + body
        if self.record_count and self.estimated_size() + size > self.write_limit:
            return NO_ROOM
        if self.position + size > self.capacity:
            return NEEDS_MEMORY
        out = byte_address.writable_bytearray(self.buffer)
        position = put_varint(body, out, self.position)
        out[position] = 0
        position = put_varint(timestamp - base_timestamp, out, position + 1)
        position = put_varint(self.record_count, out, position)
        position = put_varint(key_size, out, position)
        if key_size > 0:
            byte_address.copy_range(out, position, key, key_start, key_size)
            position += key_size
        position = put_varint(value_size, out, position)
        if value_size > 0:
            byte_address.copy_range(out, position, value, value_start, value_size)
            position += value_size
        out[position] = 0  # no headers
        self.position = position + 1
        self.base_timestamp = base_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.record_count += 1
        return size

    def _put(
        self,
        body: int,
        timestamp_delta: int,
        key: bytes | None,
        key_size: int,
        value: bytes | None,
        value_size: int,
        headers: Headers,
        header_count: int,
    ) -> None:
        """Write a record behind the last one; the sizes have been checked."""
        out = byte_address.writable_bytearray(self.buffer)
        position = put_varint(body, out, self.position)
        out[position] = 0
        position = put_varint(timestamp_delta, out, position + 1)
        position = put_varint(self.record_count, out, position)
        position = put_varint(key_size, out, position)
        if key is not None:
            byte_address.copy_bytes(out, position, key, key_size)
            position += key_size
        position = put_varint(value_size, out, position)
        if value is not None:
            byte_address.copy_bytes(out, position, value, value_size)
            position += value_size
        position = put_varint(header_count, out, position)
        self.position = position
        if header_count:
            self._put_headers(headers)

    def _put_headers(self, headers: Headers) -> None:
        out = byte_address.writable_bytearray(self.buffer)
        position = self.position
        for header in headers:
            key, value = header[0], header[1]
            position = put_varint(len(key), out, position)
            byte_address.copy_bytes(out, position, key, len(key))
            position += len(key)
            if value is None:
                position = put_varint(-1, out, position)
            else:
                position = put_varint(len(value), out, position)
                byte_address.copy_bytes(out, position, value, len(value))
                position += len(value)
        self.position = position

    def grow(self, capacity: int) -> None:
        """Give the buffer a larger capacity, in bytes; `write_limit` stays."""
        byte_address.resize(self.buffer, capacity)
        self.capacity = capacity

    def estimated_size(self) -> int:
        """Return the estimated size of the batch in bytes, header included; it is exact if nothing is compressed."""
        if self._built is not None:
            return len(self._built)
        if self.codec == 0:
            return self.position
        return BATCH_OVERHEAD + ((self.position - BATCH_OVERHEAD) * self._factor >> 16)

    def is_full(self) -> bool:
        """Return whether the batch should be sent without waiting for more records."""
        return self.is_closed or (self.record_count > 0 and self.estimated_size() >= self.full_size)

    # ------------------------------------------------------------------------------------------------- the finished batch

    def close_for_appends(self) -> None:
        """Accept no more records."""
        self.is_closed = True

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool) -> None:
        """Set the producer, its epoch and the sequence of the first record; a built batch is built again."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._is_transactional = is_transactional
        if self._built is not None:
            # A copy, since a connection may still send the batch as it was.
            self.buffer = self._built = bytearray(self._built)
            self._write_header(self._built)

    @property
    def producer_id(self) -> int:
        """The producer's id, -1 if none is set."""
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer's epoch, -1 if none is set."""
        return self._producer_epoch

    @property
    def base_sequence(self) -> int:
        """The sequence of the first record, -1 if none is set."""
        return self._base_sequence

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self._is_transactional

    def compression_ratio(self) -> float:
        """Return the size of the built batch, header included, by its size without compression."""
        return len(self.build()) / self.position

    def build(self) -> bytearray:
        """Close the batch, compress its records and return the batch with header and CRC; later calls return the same."""
        if self._built is None:
            self.is_closed = True
            del self.buffer[self.position :]
            if self.codec:
                records = deflate(self.codec, memoryview(self.buffer)[BATCH_OVERHEAD:], level=self.level)
                # Only the compressed records are kept. A split decompresses them.
                self.buffer = bytearray(BATCH_OVERHEAD)
                self.buffer += records
            self.capacity = len(self.buffer)
            self._write_header(self.buffer)
            self._built = self.buffer
        return self._built

    def _write_header(self, out: bytearray) -> None:
        HEADER.pack_into(
            out,
            0,
            0,
            len(out) - LOG_OVERHEAD_BYTES,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            self.codec | (TRANSACTIONAL_FLAG if self._is_transactional else 0),
            self.record_count - 1,
            self.base_timestamp,
            self.max_timestamp,
            self._producer_id,
            self._producer_epoch,
            self._base_sequence,
            self.record_count,
        )
        with memoryview(out) as view:
            out[CRC_START - 4 : CRC_START] = crc32c(view[CRC_START:]).to_bytes(4, "big")
