"""The pass over records that a broker makes before it takes them: are they what their batch says, in what range of time.

    out[slot]      meaning, on return
    -------------  ------------------------------------------------------------------------------------------------------
    SMALLEST       the smallest timestamp delta; a scan that goes on takes it into account
    LARGEST        the largest, likewise
    NULL_KEYS      how many records have no key, counted on
    RENUMBERED     1 where some record's offset delta is not its place in the batch
    END            the position behind the last whole record
    COUNTED        how many records were whole, counted on from what it was

`read_plain_batch` looks at a whole batch first, and leaves fields of its header in the slots from SIZE_BYTES on. PLAIN is what
nearly every batch of every client is; of anything else the caller finds out what it is, with objects and sentences:

    a plain batch    fills the buffer; magic 2, base offset 0, one offset a record, at least one record; no compression, no
                     LogAppendTime, no transaction, not control, no unknown attribute; a producer has sequences; maxTimestamp
                     is that of the records. The CRC is left to the caller.

It reads what kcli.format.record_scan reads, and finds the same faults (a property test pins them to each other), but keeps
nothing of a record. This one source runs two ways, as that one does; its C types stand in append_scan.pxd.
"""

from array import array

from kcli.format import batch_header, loop_results
from kcli.format.record_scan import read_zigzag, skip_headers

Buffer = bytes | bytearray | memoryview

SMALLEST = 0
LARGEST = 1
NULL_KEYS = 2
RENUMBERED = 3
END = 4
COUNTED = 5
SIZE_BYTES = 6
CRC = 7
LAST_OFFSET_DELTA = 8
BASE_TIMESTAMP = 9
MAX_TIMESTAMP = 10
PRODUCER_ID = 11
PRODUCER_EPOCH = 12
BASE_SEQUENCE = 13
SLOTS = 14

PLAIN = 0
NOT_PLAIN = 1
MOST_TIMESTAMP = 4611686018427387904  # 2**62: the sum with a delta is checked without an overflow


def new_counters() -> array:  # type: ignore[type-arg]
    """Counters for scans; before a first one COUNTED must be 0, the others may be anything."""
    return array("q", bytes(8 * SLOTS))


def read_plain_batch(buffer: Buffer, out: array, scratch: array) -> int:  # type: ignore[type-arg]
    """Look at the batch that `buffer` is -> PLAIN, with every slot of `out` set, or NOT_PLAIN; never raises."""
    size = len(buffer)
    header = batch_header.BatchHeader()
    if (
        header.read(buffer, 0, size) != loop_results.USUAL
        or header.end_position != size
        or header.base_offset != 0
        or header.attributes != 0
    ):
        return NOT_PLAIN
    count = header.record_count
    if count == 0 or header.last_offset != count - 1:
        return NOT_PLAIN
    base_timestamp = header.base_timestamp
    if (header.producer_id >= 0 and header.base_sequence < 0) or base_timestamp < 0 or base_timestamp > MOST_TIMESTAMP:
        return NOT_PLAIN
    out[5] = 0
    status = check_records(buffer, header.records_position, size, count, out, scratch)
    largest = header.max_timestamp - base_timestamp
    if status != 0 or out[4] != size or out[3] != 0 or out[1] != largest or out[0] < -base_timestamp:
        return NOT_PLAIN
    out[6] = size
    out[7] = header.crc
    out[8] = count - 1
    out[9] = base_timestamp
    out[10] = header.max_timestamp
    out[11] = header.producer_id
    out[12] = header.producer_epoch
    out[13] = header.base_sequence
    return PLAIN


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
    wrong_index = -1
    wrong_start = 0
    status = loop_results.COMPLETE
    try:
        while index < count:
            start = position
            if position >= limit:
                status = loop_results.NEED_MORE
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
                        status = loop_results.BAD_VARINT
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
                        status = loop_results.BAD_VARINT
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
                        status = loop_results.BAD_VARINT
                        break
                    size = scratch[0]
                if size < 0:
                    null_keys += 1
                else:
                    position += size
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
            if size > 0:
                position += size
                if position > end:
                    status = loop_results.BAD_LENGTH
                    break
            if buffer[position] == 0:
                position += 1
            else:
                position = read_zigzag(buffer, position, 5, scratch)
                if position < 0:
                    status = loop_results.BAD_VARINT
                    break
                size = scratch[0]
                if size < 0 or size > end - position:
                    status = loop_results.BAD_HEADERS
                    break
                position = skip_headers(buffer, position, end, size, scratch)
                if position < 0:
                    status = -position
                    break
            # Not a reason to stop at once: so the processor knows the next record from this one's length alone, and begins
            # with it while it still checks this one.
            if position != end and wrong_index < 0:
                wrong_index = index
                wrong_start = start
            position = end
            index += 1
    except IndexError:
        # Behind the last byte of the buffer: at the length itself more bytes may follow, inside a record they cannot.
        status = loop_results.NEED_MORE if start + 5 > limit else loop_results.BAD_LENGTH
    if wrong_index >= 0:
        index = wrong_index
        start = wrong_start
        status = loop_results.BAD_LENGTH
    out[0] = smallest
    out[1] = largest
    out[2] = null_keys
    out[3] = renumbered
    out[4] = position if status == loop_results.COMPLETE else start
    out[5] = index
    return status


def is_compiled() -> bool:
    """True where this module runs as compiled code, False where it is interpreted."""
    return not __file__.endswith(".py")
