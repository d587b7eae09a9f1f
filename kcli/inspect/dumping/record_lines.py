# cython: boundscheck=False
# (every line's room is checked before it is written; the scanner has checked the positions)
"""Lines of records as kafka-dump-log prints them, straight from columns into a buffer.

    | offset: O CreateTime: T keySize: K valueSize: V sequence: Q headerKeys: [] key: ... payload: ...

Compiled by Cython (C types in record_lines.pxd) a line costs some 40 ns and a copy of its payload. A record that needs more
than copying (headers, bytes that are not ASCII, a line longer than the buffer) is left to the caller, who formats it in
Python and comes back for the rest. Interpreted, this is slower than that way of the caller, who then never comes here.
"""

from array import array

from kcli.format.record_scan import RecordColumns

Buffer = bytes | bytearray | memoryview

# What a line takes beside its key and value: labels and seven integers of at most 20 digits.
LINE_OVERHEAD_BYTES = 256
INT32_MAX = 2147483647


def put_text(out: memoryview, position: int, text: bytes) -> int:
    """Copy `text` to out[position] -> the position behind it."""
    for byte in text:
        out[position] = byte
        position += 1
    return position


def put_int(out: memoryview, position: int, value: int) -> int:
    """Write `value` in decimal to out[position] -> the position behind it."""
    if value < 0:
        out[position] = 45
        position += 1
        rest = -value
    else:
        rest = value
    digits = 1
    bound = 10
    while digits < 19 and rest >= bound:
        bound *= 10
        digits += 1
    end = position + digits
    position = end
    while rest > 9:
        position -= 1
        out[position] = 48 + rest % 10
        rest = rest // 10
    out[position - 1] = 48 + rest
    return end


def put_again(out: memoryview, position: int, start: int, end: int) -> int:
    """Copy out[start:end] to out[position] -> the position behind it; the two do not overlap."""
    for index in range(end - start):
        out[position + index] = out[start + index]
    return position + end - start


def put_next(out: memoryview, position: int, value: int, start: int, end: int, is_next: bool) -> int:
    """Write `value` to out[position] -> the position behind it.

    With `is_next` it is the number that stands at out[start:end] plus one: often only the last digit differs.
    """
    if is_next and end != 0 and value > 0 and out[end - 1] != 57:
        position = put_again(out, position, start, end)
        out[position - 1] = out[position - 1] + 1
        return position
    return put_int(out, position, value)


def put_ascii(out: memoryview, position: int, data: Buffer, start: int, end: int) -> int:
    """Copy data[start:end] to out[position] if it is ASCII -> the position behind it, or -1 where it is not."""
    seen = 0
    for index in range(start, end):
        byte = data[index]
        out[position] = byte
        seen |= byte
        position += 1
    if seen > 127:
        return -1
    return position


def first_gap(offsets: array, count: int) -> int:  # type: ignore[type-arg]
    """The first index below `count` whose offset is not the one before plus one, or `count` where there is none."""
    for index in range(1, count):
        if offsets[index] != offsets[index - 1] + 1:
            return index
    return count


def put_record_lines(
    out: memoryview,
    data: Buffer,
    columns: RecordColumns,
    first: int,
    count: int,
    time_label: bytes,
    fixed_timestamp: int,
    has_fixed_timestamp: bool,
    base_offset: int,
    base_sequence: int,
    with_metadata: bool,
    with_contents: bool,
    place: array,  # type: ignore[type-arg]
) -> int:
    """Write lines of the records columns[first:count] into `out`, from place[0] on -> the index of the first not written.

    place[0] moves behind what was written. It stops early at a record that does not fit or that is not plain; the caller
    tells which by the room that is left.
    """
    return put_lines_from(
        out,
        data,
        columns.offset,
        columns.timestamp,
        columns.key_position,
        columns.key_size,
        columns.value_position,
        columns.value_size,
        columns.header_count,
        first,
        count,
        time_label,
        fixed_timestamp,
        has_fixed_timestamp,
        base_offset,
        base_sequence,
        with_metadata,
        with_contents,
        place,
    )


def put_lines_from(
    out: memoryview,
    data: Buffer,
    offsets: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    time_label: bytes,
    fixed_timestamp: int,
    has_fixed_timestamp: bool,
    base_offset: int,
    base_sequence: int,
    with_metadata: bool,
    with_contents: bool,
    place: array,  # type: ignore[type-arg]
) -> int:
    """`put_record_lines` with its columns apart, so that a caller of many small batches has them at hand once."""
    position = place[0]
    room = len(out)
    # Neighbours often share timestamp and sizes: the text from the timestamp's label on is then copied.
    shared_start = 0
    shared_end = 0
    shared_timestamp = 0
    shared_key_size = 0
    shared_value_size = 0
    last_line = 0
    last_offset = 0
    last_start = 0
    last_end = 0
    last_sequence = 0
    sequence_start = 0
    sequence_end = 0
    index = first
    while index < count:
        key_size = key_sizes[index]
        value_size = value_sizes[index]
        if header_counts[index] != 0:
            break
        if base_sequence >= 0 and offsets[index] < base_offset:
            break  # only damage has it: the sequence overflows
        needed = LINE_OVERHEAD_BYTES
        if with_contents:
            if key_size > 0:
                needed += key_size
            if value_size > 0:
                needed += value_size
        if needed > room - position:
            break
        start = position
        if with_metadata:
            timestamp = fixed_timestamp if has_fixed_timestamp else timestamps[index]
            offset = offsets[index]
            if last_end == 0:
                position = put_text(out, position, b"| offset: ")
            else:
                position = put_again(out, position, last_line, last_start)
            last_line = start
            start_of_number = position
            position = put_next(out, position, offset, last_start, last_end, offset == last_offset + 1)
            last_start = start_of_number
            last_end = position
            last_offset = offset
            if (
                shared_end != 0
                and timestamp == shared_timestamp
                and key_size == shared_key_size
                and value_size == shared_value_size
            ):
                position = put_again(out, position, shared_start, shared_end)
            else:
                shared_start = position
                position = put_text(out, position, time_label)
                position = put_int(out, position, timestamp)
                position = put_text(out, position, b" keySize: ")
                position = put_int(out, position, key_size)
                position = put_text(out, position, b" valueSize: ")
                position = put_int(out, position, value_size)
                position = put_text(out, position, b" sequence: ")
                if base_sequence < 0:
                    position = put_text(out, position, b"-1 headerKeys: []")
                shared_end = position
                shared_timestamp = timestamp
                shared_key_size = key_size
                shared_value_size = value_size
            if base_sequence >= 0:
                delta = offset - base_offset
                if base_sequence > INT32_MAX - delta:
                    sequence = delta - (INT32_MAX - base_sequence) - 1
                else:
                    sequence = base_sequence + delta
                start_of_number = position
                position = put_next(out, position, sequence, sequence_start, sequence_end, sequence == last_sequence + 1)
                sequence_start = start_of_number
                sequence_end = position
                last_sequence = sequence
                position = put_text(out, position, b" headerKeys: []")
        if with_contents:
            if not with_metadata and (key_size >= 0 or value_size >= 0):
                out[position] = 124
                position += 1
            if key_size >= 0:
                position = put_text(out, position, b" key: ")
                position = put_ascii(out, position, data, key_positions[index], key_positions[index] + key_size)
                if position < 0:
                    position = start
                    break
            if value_size >= 0:
                position = put_text(out, position, b" payload: ")
                position = put_ascii(out, position, data, value_positions[index], value_positions[index] + value_size)
                if position < 0:
                    position = start
                    break
        out[position] = 10
        position += 1
        index += 1
    place[0] = position
    return index
