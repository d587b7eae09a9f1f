"""The scanner of records: the bytes behind a batch header of format v2 -> columns, no object for each record.

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

One method, `RecordColumns.scan`, reads records for every part of kcli: it fills columns, and counts what a broker checks before
it appends a batch. A caller that needs only the counts has it keep no columns.

This one source runs two ways: interpreted (about 1 us a record) and compiled by Cython (about 10 ns), its C types in
record_scan.pxd. It is therefore plain: no objects inside the loop, every index checked, integers of 64 bits at most. A
property test holds it to kcli.format.layouts.RECORD, and both ways to each other.
"""

from array import array

from kcli.format import batch_header, loop_results
from kcli.format.primitives import Buffer

# The sentence for each way in which a scan ends before it is COMPLETE.
STATUS_TEXT = {
    loop_results.NEED_MORE: "the bytes end inside a record",
    loop_results.BAD_LENGTH: "the record's fields do not add up to its length",
    loop_results.BAD_VARINT: "a variable-length integer has more bytes than its type allows",
    loop_results.BAD_HEADERS: "the number of headers is negative or larger than the record",
    loop_results.BAD_HEADER_KEY: "a header key has a negative length",
    loop_results.OUT_OF_INT64: "an offset or timestamp does not fit into 64 bits",
}


# The row of a scan that fills no columns.
NO_ROWS = -1
# The smallest timestamp delta before the first record; the largest one is its complement.
NO_DELTA = 9223372036854775807


class RecordColumns:
    """Columns of up to `capacity` records, and the counts of the batch that is being scanned.

    Each column is an array of int64; positions count in the buffer that was scanned. `key_size` and `value_size` are -1 for
    null (the position then has no meaning); `header_position` is set if `header_count` is not 0. `end` is the position behind
    the last whole record: each record ends where the next one begins.

    The counts since `begin_batch`: `counted` records, `null_keys` of them without a key; `smallest_delta` and `largest_delta`
    of their timestamps; `last_delta`, the offset delta of the last one; `is_renumbered` if some record's offset delta is not
    its place in the batch; `is_rising` as long as each offset delta is above the one before, the first not negative.
    """

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.end = 0
        self.offset = self.offset_view = array("q", zeros)
        self.timestamp = self.timestamp_view = array("q", zeros)
        self.key_position = self.key_position_view = array("q", zeros)
        self.key_size = self.key_size_view = array("q", zeros)
        self.value_position = self.value_position_view = array("q", zeros)
        self.value_size = self.value_size_view = array("q", zeros)
        self.header_position = self.header_position_view = array("q", zeros)
        self.header_count = self.header_count_view = array("q", zeros)
        self.record_position = self.record_position_view = array("q", zeros)
        self.scratch = array("q", (0,))
        self.base_offset = 0
        self.base_timestamp = 0
        self.counted = 0
        self.null_keys = 0
        self.smallest_delta = NO_DELTA
        self.largest_delta = ~NO_DELTA
        self.last_delta = -1
        self.is_renumbered = False
        self.is_rising = True

    def begin_batch(self, base_offset: int, base_timestamp: int) -> None:
        """Let the next scan begin with the first record of a batch."""
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.counted = 0
        self.null_keys = 0
        self.smallest_delta = NO_DELTA
        self.largest_delta = ~NO_DELTA
        self.last_delta = -1
        self.is_renumbered = False
        self.is_rising = True

    def scan(self, buffer: Buffer, position: int, limit: int, wanted: int, row: int) -> int:
        """Scan up to `wanted` more records of the batch from buffer[position:limit]; return COMPLETE or why it ended early.

        They fill the columns from `row` on, up to `capacity`; with NO_ROWS they are only counted. After any other result than
        COMPLETE `end` is the position of the record that is not whole or not sound. Nothing is raised for bad bytes.
        """
        scratch = self.scratch
        if limit > len(buffer):
            limit = len(buffer)
        is_kept = row >= 0
        if is_kept and wanted > self.capacity - row:
            wanted = self.capacity - row
        counted = self.counted
        wanted += counted
        null_keys = self.null_keys
        smallest = self.smallest_delta
        largest = self.largest_delta
        last_delta = self.last_delta
        start = position
        wrong_counted = -1
        wrong_start = 0
        status = loop_results.COMPLETE
        try:
            while counted < wanted:
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
                byte = buffer[position]
                if byte < 128:
                    timestamp_delta = byte >> 1 if not byte & 1 else ~(byte >> 1)
                    position += 1
                else:
                    second = buffer[position + 1]
                    if second < 128:
                        raw = byte & 127 | second << 7
                        timestamp_delta = raw >> 1 if not raw & 1 else ~(raw >> 1)
                        position += 2
                    else:
                        position = read_zigzag(buffer, position, 10, scratch)
                        if position < 0:
                            status = loop_results.BAD_VARINT
                            break
                        timestamp_delta = scratch[0]
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
                byte = buffer[position]
                if byte == 1:
                    key_size = -1
                    key_position = position
                    position += 1
                else:
                    if byte < 128:
                        key_size = byte >> 1 if not byte & 1 else ~(byte >> 1)
                        position += 1
                    else:
                        position = read_zigzag(buffer, position, 5, scratch)
                        if position < 0:
                            status = loop_results.BAD_VARINT
                            break
                        key_size = scratch[0]
                    key_position = position
                    if key_size < 0:
                        key_size = -1
                    else:
                        position += key_size
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
                value_position = position
                if size > 0:
                    position += size
                    if position > end:
                        status = loop_results.BAD_LENGTH
                        break
                header_count = 0
                header_position = position
                if buffer[position] == 0:
                    position += 1
                else:
                    position = read_zigzag(buffer, position, 5, scratch)
                    if position < 0:
                        status = loop_results.BAD_VARINT
                        break
                    header_count = scratch[0]
                    if header_count < 0 or header_count > end - position:
                        status = loop_results.BAD_HEADERS
                        break
                    header_position = position
                    position = skip_headers(buffer, position, end, header_count, scratch)
                    if position < 0:
                        status = -position
                        break
                if is_kept:
                    if position != end:
                        status = loop_results.BAD_LENGTH
                        break
                    timestamp = self.base_timestamp + timestamp_delta
                    offset = self.base_offset + offset_delta
                    if (timestamp_delta >= 0) != (timestamp >= self.base_timestamp) or (offset_delta >= 0) != (
                        offset >= self.base_offset
                    ):
                        status = loop_results.OUT_OF_INT64
                        break
                    self.timestamp_view[row] = timestamp
                    self.offset_view[row] = offset
                    self.record_position_view[row] = start
                    self.key_position_view[row] = key_position
                    self.key_size_view[row] = key_size
                    self.value_position_view[row] = value_position
                    self.value_size_view[row] = size if size >= 0 else -1
                    self.header_position_view[row] = header_position
                    self.header_count_view[row] = header_count
                    row += 1
                elif position != end and wrong_counted < 0:
                    # Not a reason to stop at once: so the processor knows the next record from this one's length alone, and
                    # begins with it while it still checks this one.
                    wrong_counted = counted
                    wrong_start = start
                if timestamp_delta < smallest:
                    smallest = timestamp_delta
                if timestamp_delta > largest:
                    largest = timestamp_delta
                if offset_delta != counted:
                    self.is_renumbered = True
                if offset_delta <= last_delta:
                    self.is_rising = False
                last_delta = offset_delta
                if key_size < 0:
                    null_keys += 1
                position = end
                counted += 1
        except IndexError:
            # Behind the last byte of the buffer: at the length itself more bytes may follow, inside a record they cannot.
            status = loop_results.NEED_MORE if start + 5 > limit else loop_results.BAD_LENGTH
        except OverflowError:
            status = loop_results.OUT_OF_INT64
        if wrong_counted >= 0:
            counted = wrong_counted
            start = wrong_start
            status = loop_results.BAD_LENGTH
        self.counted = counted
        self.null_keys = null_keys
        self.smallest_delta = smallest
        self.largest_delta = largest
        self.last_delta = last_delta
        self.end = position if status == loop_results.COMPLETE else start
        return status

    def scan_batch(self, buffer: Buffer, start: int, end: int, header: "batch_header.BatchHeader") -> bool:
        """Scan buffer[start:end] into the columns; return True if it is the records that the header states, and nothing else.

        The columns must have room for them: without it the result is False, too.
        """
        if header.record_count > self.capacity:
            return False
        self.begin_batch(header.base_offset, header.base_timestamp)
        status = self.scan(buffer, start, end, header.record_count, 0)
        return status == loop_results.COMPLETE and self.end == end


def read_zigzag(buffer: Buffer, position: int, most_bytes: int, out: array) -> int:  # type: ignore[type-arg]
    """Decode a zigzag integer of at most `most_bytes` (5 or 10) bytes into out[0]; return the position after it, or -1.

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
    """Walk over `count` headers that must end by `end`; return the position after them, or minus a status."""
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


def is_compiled() -> bool:
    """Return whether this module runs as compiled code."""
    return not __file__.endswith(".py")
