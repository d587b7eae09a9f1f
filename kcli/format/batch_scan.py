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

from kcli.format import batch_header, loop_results, record_scan

Buffer = bytes | bytearray | memoryview

SOUND = 0
LOOK = 1
UNOPENED = 2
LEGACY = 3

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
    header = batch_header.BatchHeader()
    index = 0
    faulty = 0
    stop = loop_results.FULL
    while index < capacity:
        stop = header.read(buffer, position, limit)
        if stop != loop_results.USUAL:
            break
        if header.end_position > limit:
            stop = loop_results.NEED_MORE
            break
        if not header.has_right_crc(view, crc32c):
            stop = loop_results.OTHER
            break
        stop = loop_results.FULL
        positions[index] = file_position + position
        sizes[index] = header.end_position - position
        base_offsets[index] = header.base_offset
        last_offsets[index] = header.last_offset
        leader_epochs[index] = header.leader_epoch
        attribute_column[index] = header.attributes
        base_timestamps[index] = header.base_timestamp
        max_timestamps[index] = header.max_timestamp
        producer_ids[index] = header.producer_id
        producer_epochs[index] = header.producer_epoch
        base_sequences[index] = header.base_sequence
        record_counts[index] = header.record_count
        fault = SOUND
        if header.has_unknown_attributes:
            fault = LOOK
        elif header.record_count == 0:
            if header.end_position != header.records_position:
                fault = LOOK
        elif header.codec:
            fault = UNOPENED
        else:
            fault = check_into(
                buffer,
                header.records_position,
                header.end_position,
                header.base_offset,
                header.last_offset,
                header.base_timestamp,
                header.max_timestamp,
                header.attributes,
                header.record_count,
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
        position = header.end_position
    scratch[0] = position
    scratch[1] = stop
    scratch[2] = faulty
    return index
