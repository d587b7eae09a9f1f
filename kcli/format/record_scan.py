"""The scanner of records: the bytes behind a batch header of format v2 -> columns, no object a record.

    ===================  ==========  ==================================================================
    field                type        notes
    ===================  ==========  ==================================================================
    length               varint      of what follows, in bytes
    attributes           int8        no bit has a meaning
    timestampDelta       varlong     added to the batch's base timestamp
    offsetDelta          varint      added to the batch's base offset
    keyLength, key       varint      negative: null
    valueLength, value   varint      negative: null
    headersCount         varint      not negative
      keyLength, key     varint      UTF-8, not null
      valueLength, value varint      negative: null
    ===================  ==========  ==================================================================

This one source runs two ways: interpreted (about 1 us a record) and compiled by Cython (about 10 ns), its C types in
record_scan.pxd. It is therefore plain: no objects inside the loop, every index checked, integers of 64 bits at most. A
property test pins it to kcli.format.layouts.RECORD, and both ways to each other.
"""

from array import array

from kcli.format import loop_results

Buffer = bytes | bytearray | memoryview

# The sentence for each way in which a scan ends before it is COMPLETE.
STATUS_TEXT = {
    loop_results.NEED_MORE: "the bytes end inside a record",
    loop_results.BAD_LENGTH: "the record's fields do not add up to its length",
    loop_results.BAD_VARINT: "a variable-length integer has more bytes than its type allows",
    loop_results.BAD_HEADERS: "the number of headers is negative or larger than the record",
    loop_results.BAD_HEADER_KEY: "a header key has a negative length",
    loop_results.OUT_OF_INT64: "an offset or timestamp does not fit into 64 bits",
}


class RecordColumns:
    """Columns of up to `capacity` records; each an array of int64, positions counted in the buffer that was scanned.

    `key_size` and `value_size` are -1 for null (their position is then meaningless), `header_position` is set where
    `header_count` is not 0. `end` is the position behind the last record scanned: each record ends where the next begins.
    """

    __slots__ = (
        "capacity",
        "end",
        "header_count",
        "header_position",
        "key_position",
        "key_size",
        "offset",
        "record_position",
        "timestamp",
        "value_position",
        "value_size",
    )

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.end = 0
        self.offset = array("q", zeros)
        self.timestamp = array("q", zeros)
        self.key_position = array("q", zeros)
        self.key_size = array("q", zeros)
        self.value_position = array("q", zeros)
        self.value_size = array("q", zeros)
        self.header_position = array("q", zeros)
        self.header_count = array("q", zeros)
        self.record_position = array("q", zeros)


def read_zigzag(buffer: Buffer, position: int, most_bytes: int, out: array) -> int:  # type: ignore[type-arg]
    """Decode a zigzag integer of at most `most_bytes` (5 or 10) bytes into out[0] -> the position after it, or -1.

    -1 says that the integer has more bytes. Raises IndexError behind the end of the buffer.
    """
    value = 0
    shift = 0
    while most_bytes > 0:
        most_bytes -= 1
        byte = buffer[position]
        position += 1
        if shift == 63:  # one bit is left of 64; Java drops the others too
            value |= (byte & 1) << shift
        else:
            value |= (byte & 127) << shift
        if byte < 128:
            if shift == 28 and most_bytes == 0:
                value &= 0xFFFFFFFF
            out[0] = -(value >> 1) - 1 if value & 1 else value >> 1
            return position
        shift += 7
    return -1


def skip_headers(buffer: Buffer, position: int, end: int, count: int, out: array) -> int:  # type: ignore[type-arg]
    """Walk over `count` headers that must end by `end` -> the position after them, or minus a status."""
    while count > 0:
        count -= 1
        position = read_zigzag(buffer, position, 5, out)
        if position < 0:
            return -loop_results.BAD_VARINT
        size = out[0]
        if size < 0:
            return -loop_results.BAD_HEADER_KEY
        if size > end - position:
            return -loop_results.BAD_LENGTH
        position += size
        position = read_zigzag(buffer, position, 5, out)
        if position < 0:
            return -loop_results.BAD_VARINT
        size = out[0]
        if size > 0:
            if size > end - position:
                return -loop_results.BAD_LENGTH
            position += size
    return position


def scan_records(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    base_timestamp: int,
    wanted: int,
    columns: RecordColumns,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Scan up to min(wanted, columns.capacity) records of buffer[position:limit] into columns -> how many were whole.

    `scratch` is an array of two int64: on return scratch[1] is the status (COMPLETE, NEED_MORE or what is wrong with the
    record at `columns.end`). Nothing is raised for bad bytes.
    """
    count = scan_into(
        buffer,
        position,
        limit,
        base_offset,
        base_timestamp,
        wanted if wanted < columns.capacity else columns.capacity,
        columns.offset,
        columns.timestamp,
        columns.key_position,
        columns.key_size,
        columns.value_position,
        columns.value_size,
        columns.header_position,
        columns.header_count,
        columns.record_position,
        scratch,
    )
    columns.end = scratch[0]
    return count


def scan_into(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    base_timestamp: int,
    wanted: int,
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
    """`scan_records` with its columns apart, so that a caller of many small batches has them at hand once.

    `wanted` must not be above the columns' length. On return scratch[0] is the position behind the last record.
    """
    if limit > len(buffer):
        limit = len(buffer)
    index = 0
    start = position
    status = loop_results.COMPLETE
    # Within these bounds only a delta that is read the general way can leave the range of int64.
    is_far = (
        base_offset > 4611686018427387904
        or base_offset < -4611686018427387904
        or base_timestamp > 4611686018427387904
        or base_timestamp < -4611686018427387904
    )
    try:
        while index < wanted:
            start = position
            if position >= limit:
                status = loop_results.NEED_MORE
                break
            # Each varint: one byte, two bytes, or the general way.
            byte = buffer[position]
            if byte < 128:
                size = byte >> 1
                position += 2  # the length and the attributes
            else:
                second = buffer[position + 1]
                if second < 128:
                    size = (byte & 127 | second << 7) >> 1
                    position += 3
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = loop_results.BAD_VARINT
                        break
                    size = scratch[0]
                    byte = 0 if size >= 0 else 1
                    position += 1
            if byte & 1:  # negative
                status = loop_results.BAD_LENGTH
                break
            end = position - 1 + size
            if end > limit:
                status = loop_results.NEED_MORE
                break
            record_positions[index] = start
            byte = buffer[position]
            if byte < 128:
                timestamp_delta = byte >> 1 if not byte & 1 else ~(byte >> 1)
                position += 1
            else:
                position = read_zigzag(buffer, position, 10, scratch)
                if position < 0:
                    status = loop_results.BAD_VARINT
                    break
                timestamp_delta = scratch[0]
                is_far = True
            timestamps[index] = base_timestamp + timestamp_delta
            byte = buffer[position]
            if byte < 128:
                offset_delta = byte >> 1 if not byte & 1 else ~(byte >> 1)
                position += 1
            else:
                second = buffer[position + 1]
                if second < 128:
                    raw = byte & 127 | second << 7
                    offset_delta = raw >> 1 if not raw & 1 else ~(raw >> 1)
                    position += 2
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = loop_results.BAD_VARINT
                        break
                    offset_delta = scratch[0]
            offsets[index] = base_offset + offset_delta
            if is_far and (
                (timestamp_delta >= 0) != (timestamps[index] >= base_timestamp)
                or (offset_delta >= 0) != (offsets[index] >= base_offset)
            ):
                status = loop_results.OUT_OF_INT64
                break
            byte = buffer[position]
            if byte == 1:
                key_sizes[index] = -1
                position += 1
            else:
                if byte < 128:
                    size = byte >> 1 if not byte & 1 else ~(byte >> 1)
                    position += 1
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = loop_results.BAD_VARINT
                        break
                    size = scratch[0]
                key_positions[index] = position
                if size < 0:
                    size = -1
                else:
                    position += size
                key_sizes[index] = size
                if position > end:
                    status = loop_results.BAD_LENGTH
                    break
            byte = buffer[position]
            if byte < 128:
                size = byte >> 1 if not byte & 1 else ~(byte >> 1)
                position += 1
            else:
                second = buffer[position + 1]
                if second < 128:
                    raw = byte & 127 | second << 7
                    size = raw >> 1 if not raw & 1 else ~(raw >> 1)
                    position += 2
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = loop_results.BAD_VARINT
                        break
                    size = scratch[0]
            value_positions[index] = position
            if size < 0:
                value_sizes[index] = -1
            else:
                value_sizes[index] = size
                position += size
                if position > end:
                    status = loop_results.BAD_LENGTH
                    break
            if buffer[position] == 0:
                position += 1
                header_counts[index] = 0
            else:
                position = read_zigzag(buffer, position, 5, scratch)
                if position < 0:
                    status = loop_results.BAD_VARINT
                    break
                size = scratch[0]
                if size < 0 or size > end - position:
                    status = loop_results.BAD_HEADERS
                    break
                header_positions[index] = position
                header_counts[index] = size
                position = skip_headers(buffer, position, end, size, scratch)
                if position < 0:
                    status = -position
                    break
            if position != end:
                status = loop_results.BAD_LENGTH
                break
            index += 1
    except IndexError:
        # Behind the last byte of the buffer: at the length itself more bytes may follow, inside a record they cannot.
        status = loop_results.NEED_MORE if start + 5 > limit else loop_results.BAD_LENGTH
    except OverflowError:
        status = loop_results.OUT_OF_INT64
    scratch[0] = position if status == loop_results.COMPLETE else start
    scratch[1] = status
    return index


def is_compiled() -> bool:
    """True where this module runs as compiled code, False where it is interpreted."""
    return not __file__.endswith(".py")
