"""The scanner of batches: a stretch of a segment -> columns of batch headers, each CRC computed and each record checked.

What a verifier asks of every batch is asked here, without an object a batch: a batch that is as a broker writes it costs no
more than its CRC and a walk over its records. Whatever is odd in any way is only marked; the caller looks at it again, with
objects and sentences.

    a batch is taken in          magic 2, whole in the buffer, its CRC right, no negative offset, delta or count
    its fault is SOUND           it is empty; or it is not compressed, has as many records as it states and no byte more, their
                                 offsets go up within [base offset, last offset], their largest timestamp is maxTimestamp
    its fault is UNOPENED        it is compressed: the caller inflates it and calls `check_records`
    its fault is LOOK            it has attributes without meaning, or anything else; (LEGACY marks rows of format 0 and 1)

kcli.format.batch_passes goes over the columns in the same way: as long as all is usual.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_scan.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import record_scan

Buffer = bytes | bytearray | memoryview

SOUND = 0
LOOK = 1
UNOPENED = 2
LEGACY = 3

# Why a scan ended.
NEED_MORE = 0  # the buffer ends, or holds no whole batch any more
OTHER = 1  # the bytes are no sound batch of magic 2
FULL = 2  # the columns are full

HEADER_BYTES = 61
LOG_APPEND_TIME_BIT = 8


class BatchColumns:
    """Columns of up to `capacity` batches, each an array of int64; `position` counts in the file."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "capacity",
        "fault",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.position = array("q", zeros)
        self.size_bytes = array("q", zeros)
        self.base_offset = array("q", zeros)
        self.last_offset = array("q", zeros)
        self.leader_epoch = array("q", zeros)
        self.attributes = array("q", zeros)
        self.base_timestamp = array("q", zeros)
        self.max_timestamp = array("q", zeros)
        self.producer_id = array("q", zeros)
        self.producer_epoch = array("q", zeros)
        self.base_sequence = array("q", zeros)
        self.record_count = array("q", zeros)
        self.fault = array("q", zeros)


def read_int32(buffer: Buffer, position: int) -> int:
    """The big-endian int32 at buffer[position]. Raises IndexError behind the end of the buffer."""
    value = buffer[position]
    value = value << 24 | buffer[position + 1] << 16 | buffer[position + 2] << 8 | buffer[position + 3]
    return value - 4294967296 if value > 2147483647 else value


def read_int64(buffer: Buffer, position: int) -> int:
    """The big-endian int64 at buffer[position]. Raises IndexError behind the end of the buffer."""
    low = read_int32(buffer, position + 4)
    if low < 0:
        low += 4294967296
    return read_int32(buffer, position) * 4294967296 + low


def check_records(
    buffer: Buffer,
    position: int,
    limit: int,
    batches: BatchColumns,
    index: int,
    records: record_scan.RecordColumns,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Check the records in buffer[position:limit] against row `index` of `batches` -> SOUND or LOOK.

    `records` and `scratch` (two int64) are overwritten.
    """
    return check_into(
        buffer,
        position,
        limit,
        batches.base_offset[index],
        batches.last_offset[index],
        batches.base_timestamp[index],
        batches.max_timestamp[index],
        batches.attributes[index],
        batches.record_count[index],
        records.capacity,
        records.offset,
        records.timestamp,
        records.key_position,
        records.key_size,
        records.value_position,
        records.value_size,
        records.header_position,
        records.header_count,
        records.record_position,
        scratch,
    )


def check_into(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    wanted: int,
    capacity: int,
    offsets: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    record_positions: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """`check_records` with its columns, of `capacity` records, apart."""
    previous = base_offset - 1
    largest = 0
    done = 0
    while done < wanted:
        count = record_scan.scan_into(
            buffer,
            position,
            limit,
            base_offset,
            base_timestamp,
            wanted - done if wanted - done < capacity else capacity,
            offsets,
            timestamps,
            key_positions,
            key_sizes,
            value_positions,
            value_sizes,
            header_positions,
            header_counts,
            record_positions,
            scratch,
        )
        if scratch[1] != 0 or count == 0:
            return LOOK
        if done == 0:
            largest = timestamps[0]
        row = 0
        while row < count:
            offset = offsets[row]
            if offset <= previous:
                return LOOK
            previous = offset
            timestamp = timestamps[row]
            if timestamp > largest:
                largest = timestamp
            row += 1
        done += count
        position = scratch[0]
    if position != limit or previous > last_offset:
        return LOOK
    if largest != max_timestamp and not attributes & LOG_APPEND_TIME_BIT:
        return LOOK
    return SOUND


def summarise(records: record_scan.RecordColumns, count: int, previous_offset: int, out: array) -> int:  # type: ignore[type-arg]
    """The first of `count` records whose offset is not above the one before it -> its row, or -1.

    `previous_offset` is the one before the first. `out` (two int64) gets the smallest and the largest timestamp, both 0
    for no records.
    """
    offsets = records.offset
    timestamps = records.timestamp
    found = -1
    smallest = 0
    largest = 0
    if count > 0:
        smallest = timestamps[0]
        largest = timestamps[0]
    row = 0
    while row < count:
        if found < 0 and offsets[row] <= previous_offset:
            found = row
        previous_offset = offsets[row]
        timestamp = timestamps[row]
        if timestamp < smallest:
            smallest = timestamp
        if timestamp > largest:
            largest = timestamp
        row += 1
    out[0] = smallest
    out[1] = largest
    return found


def scan_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    file_position: int,
    crc32c: Callable[..., int],
    batches: BatchColumns,
    records: record_scan.RecordColumns,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Take in the batches of buffer[position:limit] -> how many; `view` is a memoryview of the same buffer.

    `file_position` is the byte of the file at buffer[0]. On return scratch[0] is the position in the buffer behind the last
    batch, scratch[1] why the scan ended, scratch[2] how many rows have a fault. Nothing is raised for bad bytes.
    """
    positions = batches.position
    sizes = batches.size_bytes
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    leader_epochs = batches.leader_epoch
    attribute_column = batches.attributes
    base_timestamps = batches.base_timestamp
    max_timestamps = batches.max_timestamp
    producer_ids = batches.producer_id
    producer_epochs = batches.producer_epoch
    base_sequences = batches.base_sequence
    record_counts = batches.record_count
    faults = batches.fault
    offsets = records.offset
    timestamps = records.timestamp
    key_positions = records.key_position
    key_sizes = records.key_size
    value_positions = records.value_position
    value_sizes = records.value_size
    header_positions = records.header_position
    header_counts = records.header_count
    record_positions = records.record_position
    record_capacity = records.capacity
    capacity = batches.capacity
    index = 0
    faulty = 0
    stop = FULL
    while index < capacity:
        if limit - position < 61:
            stop = NEED_MORE
            break
        size = read_int32(buffer, position + 8)
        if buffer[position + 16] != 2 or size < 49:
            stop = OTHER
            break
        if size > limit - position - 12:
            stop = NEED_MORE
            break
        end = position + 12 + size
        stored = read_int32(buffer, position + 17)
        if stored < 0:
            stored += 4294967296
        computed = crc32c(view[position + 21 : end])
        base_offset = read_int64(buffer, position)
        delta = read_int32(buffer, position + 23)
        record_count = read_int32(buffer, position + 57)
        if computed != stored or base_offset < 0 or base_offset > 4611686018427387904 or delta < 0 or record_count < 0:
            stop = OTHER
            break
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        positions[index] = file_position + position
        sizes[index] = size + 12
        base_offsets[index] = base_offset
        last_offsets[index] = base_offset + delta
        leader_epochs[index] = read_int32(buffer, position + 12)
        attribute_column[index] = attributes
        base_timestamp = read_int64(buffer, position + 27)
        max_timestamp = read_int64(buffer, position + 35)
        base_timestamps[index] = base_timestamp
        max_timestamps[index] = max_timestamp
        producer_ids[index] = read_int64(buffer, position + 43)
        epoch = buffer[position + 51] << 8 | buffer[position + 52]
        producer_epochs[index] = epoch - 65536 if epoch > 32767 else epoch
        base_sequences[index] = read_int32(buffer, position + 53)
        record_counts[index] = record_count
        fault = SOUND
        if attributes > 127:
            fault = LOOK
        elif record_count == 0:
            if size != 49:
                fault = LOOK
        elif attributes & 7:
            fault = UNOPENED
        else:
            fault = check_into(
                buffer,
                position + 61,
                end,
                base_offset,
                base_offset + delta,
                base_timestamp,
                max_timestamp,
                attributes,
                record_count,
                record_capacity,
                offsets,
                timestamps,
                key_positions,
                key_sizes,
                value_positions,
                value_sizes,
                header_positions,
                header_counts,
                record_positions,
                scratch,
            )
        faults[index] = fault
        if fault != SOUND:
            faulty += 1
        index += 1
        position = end
    scratch[0] = position
    scratch[1] = stop
    scratch[2] = faulty
    return index
