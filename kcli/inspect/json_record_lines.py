# cython: boundscheck=False
# (every line's room is checked before it is written; the scanner has checked the positions)
"""Lines of records as --output json writes them, straight from columns into a buffer; see record_lines for the ways it runs.

    HEAD"offset":O,"timestamp":T MIDDLE,"keySize":K,"valueSize":V[,"sequence":S],"key":"...","value":"...","headers":[]}

HEAD and MIDDLE are what all records of a batch share. A record that needs more (headers, bytes that are not ASCII, a line
longer than the buffer) is left to the caller, who writes it in Python and comes back for the rest.
"""

from array import array

from kcli.format.record_scan import RecordColumns
from kcli.inspect.record_lines import put_int, put_text

Buffer = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

# What a line takes beside head, middle, key and value: labels and five integers of at most 20 digits.
LINE_OVERHEAD_BYTES = 256
# A character of JSON takes at most so many times its byte: \u001f.
MOST_ESCAPED_BYTES = 6
SEQUENCE_MASK = 0x7FFFFFFF


def put_json_string(out: memoryview, position: int, data: Buffer, start: int, end: int) -> int:
    """Write data[start:end] as a JSON string with its quotes -> the position behind it, or -1 where it is not plain ASCII.

    Escapes are those of Python's json module; DEL is not plain.
    """
    out[position] = 34
    position += 1
    shift = position - start
    special = 0
    for index in range(start, end):  # a loop that compilers turn into vector instructions
        byte = data[index]
        out[shift + index] = byte
        special |= (byte < 32) | (byte == 34) | (byte == 92) | (byte > 126)
    if special == 0:
        position += end - start
        out[position] = 34
        return position + 1
    index = start
    while index < end:
        byte = data[index]
        index += 1
        if byte > 126:
            return -1
        if byte >= 32 and byte != 34 and byte != 92:
            out[position] = byte
            position += 1
            continue
        out[position] = 92
        position += 1
        letter = byte
        if byte == 10:
            letter = 110
        elif byte == 13:
            letter = 114
        elif byte == 9:
            letter = 116
        elif byte == 8:
            letter = 98
        elif byte == 12:
            letter = 102
        elif byte < 32:
            position = put_text(out, position, b"u00")
            out[position] = 48 + (byte >> 4)
            low = byte & 15
            letter = 48 + low if low < 10 else 87 + low
            position += 1
        out[position] = letter
        position += 1
    out[position] = 34
    return position + 1


def put_json_lines(
    out: memoryview,
    data: Buffer,
    columns: RecordColumns,
    chosen: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    head: bytes,
    middle: bytes,
    fixed_timestamp: int,
    has_fixed_timestamp: bool,
    base_offset: int,
    base_sequence: int,
    with_contents: bool,
    place: array,  # type: ignore[type-arg]
) -> int:
    """Write the lines of records chosen[first:count] into `out`, from place[0] on -> how far in `chosen` it came.

    place[0] moves behind what was written. It stops early at a record that does not fit or that is not plain; the caller
    tells which by the room that is left.
    """
    offsets = columns.offset
    timestamps = columns.timestamp
    key_positions = columns.key_position
    key_sizes = columns.key_size
    value_positions = columns.value_position
    value_sizes = columns.value_size
    header_counts = columns.header_count
    position = place[0]
    room = len(out)
    overhead = LINE_OVERHEAD_BYTES + len(head) + len(middle)
    turn = first
    while turn < count:
        index = chosen[turn]
        key_size = key_sizes[index]
        value_size = value_sizes[index]
        needed = overhead
        if with_contents:
            if header_counts[index] != 0:
                break
            if key_size > 0:
                needed += MOST_ESCAPED_BYTES * key_size
            if value_size > 0:
                needed += MOST_ESCAPED_BYTES * value_size
        if needed > room - position:
            break
        start = position
        position = put_text(out, position, head)
        position = put_text(out, position, b'"offset":')
        position = put_int(out, position, offsets[index])
        position = put_text(out, position, b',"timestamp":')
        position = put_int(out, position, fixed_timestamp if has_fixed_timestamp else timestamps[index])
        position = put_text(out, position, middle)
        position = put_text(out, position, b',"keySize":')
        position = put_int(out, position, key_size)
        position = put_text(out, position, b',"valueSize":')
        position = put_int(out, position, value_size)
        if base_sequence >= 0:
            position = put_text(out, position, b',"sequence":')
            position = put_int(out, position, (base_sequence + offsets[index] - base_offset) & SEQUENCE_MASK)
        if with_contents:
            position = put_text(out, position, b',"key":')
            if key_size < 0:
                position = put_text(out, position, b"null")
            else:
                position = put_json_string(out, position, data, key_positions[index], key_positions[index] + key_size)
                if position < 0:
                    position = start
                    break
            position = put_text(out, position, b',"value":')
            if value_size < 0:
                position = put_text(out, position, b"null")
            else:
                position = put_json_string(out, position, data, value_positions[index], value_positions[index] + value_size)
                if position < 0:
                    position = start
                    break
            position = put_text(out, position, b',"headers":[]')
        position = put_text(out, position, b"}\n")
        turn += 1
    place[0] = position
    return turn
