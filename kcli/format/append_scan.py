"""The pass over records that a broker makes before it takes them: are they what their batch says, in what range of time.

    out[slot]      meaning, on return
    -------------  ------------------------------------------------------------------------------------------------------
    SMALLEST       the smallest timestamp delta; a scan that goes on takes it into account
    LARGEST        the largest, likewise
    NULL_KEYS      how many records have no key, counted on
    RENUMBERED     1 where some record's offset delta is not its place in the batch
    END            the position behind the last whole record
    COUNTED        how many records were whole, counted on from what it was

It reads what kcli.format.record_scan reads, and finds the same faults (a property test pins them to each other), but keeps
nothing of a record. This one source runs two ways, as that one does; its C types stand in append_scan.pxd.
"""

from array import array

from kcli.format.record_scan import (
    BAD_HEADERS,
    BAD_LENGTH,
    BAD_VARINT,
    COMPLETE,
    NEED_MORE,
    read_zigzag,
    skip_headers,
)

Buffer = bytes | bytearray | memoryview

SMALLEST = 0
LARGEST = 1
NULL_KEYS = 2
RENUMBERED = 3
END = 4
COUNTED = 5
SLOTS = 6


def new_counters() -> array:  # type: ignore[type-arg]
    """Counters for scans; before a first one COUNTED must be 0, the others may be anything."""
    return array("q", bytes(8 * SLOTS))


def check_records(
    buffer: Buffer,
    position: int,
    limit: int,
    count: int,
    out: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Walk over records of buffer[position:limit] until out[COUNTED] is `count` -> a status of kcli.format.record_scan.

    `out` is of `new_counters`; where its COUNTED is not 0 this scan goes on with what the one before left. `scratch` is an
    array of two int64. Nothing is raised for bad bytes.
    """
    if limit > len(buffer):
        limit = len(buffer)
    index = out[5]
    if index == 0:
        out[0] = 9223372036854775807
        out[1] = ~9223372036854775807
        out[2] = 0
        out[3] = 0
    smallest = out[0]
    largest = out[1]
    null_keys = out[2]
    renumbered = out[3]
    start = position
    status = COMPLETE
    try:
        while index < count:
            start = position
            if position >= limit:
                status = NEED_MORE
                break
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
                        status = BAD_VARINT
                        break
                    size = scratch[0]
                    byte = 0 if size >= 0 else 1
                    position += 1
            if byte & 1:  # negative
                status = BAD_LENGTH
                break
            end = position - 1 + size
            if end > limit:
                status = NEED_MORE
                break
            byte = buffer[position]
            if byte < 128:
                delta = byte >> 1 if not byte & 1 else ~(byte >> 1)
                position += 1
            else:
                second = buffer[position + 1]
                if second < 128:
                    raw = byte & 127 | second << 7
                    delta = raw >> 1 if not raw & 1 else ~(raw >> 1)
                    position += 2
                else:
                    position = read_zigzag(buffer, position, 10, scratch)
                    if position < 0:
                        status = BAD_VARINT
                        break
                    delta = scratch[0]
            if delta < smallest:
                smallest = delta
            if delta > largest:
                largest = delta
            byte = buffer[position]
            if byte < 128:
                delta = byte >> 1 if not byte & 1 else ~(byte >> 1)
                position += 1
            else:
                second = buffer[position + 1]
                if second < 128:
                    raw = byte & 127 | second << 7
                    delta = raw >> 1 if not raw & 1 else ~(raw >> 1)
                    position += 2
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = BAD_VARINT
                        break
                    delta = scratch[0]
            if delta != index:
                renumbered = 1
            byte = buffer[position]
            if byte == 1:
                null_keys += 1
                position += 1
            else:
                if byte < 128:
                    size = byte >> 1 if not byte & 1 else ~(byte >> 1)
                    position += 1
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = BAD_VARINT
                        break
                    size = scratch[0]
                if size < 0:
                    null_keys += 1
                else:
                    position += size
                if position > end:
                    status = BAD_LENGTH
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
                        status = BAD_VARINT
                        break
                    size = scratch[0]
            if size > 0:
                position += size
                if position > end:
                    status = BAD_LENGTH
                    break
            if buffer[position] == 0:
                position += 1
            else:
                position = read_zigzag(buffer, position, 5, scratch)
                if position < 0:
                    status = BAD_VARINT
                    break
                size = scratch[0]
                if size < 0 or size > end - position:
                    status = BAD_HEADERS
                    break
                position = skip_headers(buffer, position, end, size, scratch)
                if position < 0:
                    status = -position
                    break
            if position != end:
                status = BAD_LENGTH
                break
            index += 1
    except IndexError:
        # Behind the last byte of the buffer: at the length itself more bytes may follow, inside a record they cannot.
        status = NEED_MORE if start + 5 > limit else BAD_LENGTH
    out[0] = smallest
    out[1] = largest
    out[2] = null_keys
    out[3] = renumbered
    out[4] = position if status == COMPLETE else start
    out[5] = index
    return status


def is_compiled() -> bool:
    """True where this module runs as compiled code, False where it is interpreted."""
    return not __file__.endswith(".py")
