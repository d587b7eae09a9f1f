# cython: boundscheck=False
# (the length of every line is checked before it is written; the scanner has checked the positions of keys and values)
"""Lines of records as kafka-dump-log prints them, from columns into the output buffer.

    | offset: O CreateTime: T keySize: K valueSize: V sequence: Q headerKeys: [] key: ... payload: ...

Compiled by Cython (C types in record_lines.pxd) a line takes some 40 ns and a copy of its payload. A record with headers, with
bytes that are not ASCII, or with a line longer than the buffer is left to the caller, who formats it in Python and calls again
for the next one. Interpreted, this is slower than formatting in Python; then the caller does not use it.
"""

from array import array
from collections.abc import Callable

from kcli.format import byte_address, record_scan
from kcli.format.primitives import Buffer
from kcli.inspect.dumping import text_buffer

# The length of a line without its key and value: labels and seven integers of at most 20 digits.
LINE_OVERHEAD_BYTES = 256
SEQUENCE_MASK = 0x7FFFFFFF
NO_OFFSET = -9223372036854775807


def put_text(out: memoryview, position: int, text: bytes) -> int:
    """Copy `text` to out[position] and return the position after it."""
    for index in range(len(text)):
        out[position + index] = text[index]
    return position + len(text)


def put_int(out: memoryview, position: int, value: int) -> int:
    """Write `value` in decimal to out[position] and return the position after it."""
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


def put_number(out: memoryview, position: int, label: bytes, value: int) -> int:
    """Write `label` and `value` to out[position] and return the position after them."""
    return put_int(out, put_text(out, position, label), value)


def copy_within(out: memoryview, position: int, start: int, end: int) -> int:
    """Copy out[start:end], which must be before `position`, to out[position] and return the position after it."""
    for index in range(end - start):
        out[position + index] = out[start + index]
    return position + end - start


def put_ascii(out: memoryview, position: int, data: Buffer, start: int, size: int) -> int:
    """Copy `size` bytes from data[start] to out[position] and return the position after them, or -1 if they are not ASCII."""
    seen = 0
    for index in range(size):  # compilers turn this loop into vector instructions
        byte = data[start + index]
        out[position + index] = byte
        seen |= byte
    return position + size if seen < 128 else -1


class CountingNumber:
    """A number that is mostly one more than in the line before: that text is then copied, and its last digit changed.

    The text of `value` is at [start, end) of the buffer; end 0 if there is none.
    """

    def __init__(self) -> None:
        self.value = 0
        self.start = 0
        self.end = 0

    def put(self, out: memoryview, position: int, value: int) -> int:
        """Write `value` to out[position] and return the position after it."""
        start = position
        if self.end != 0 and value == self.value + 1 and value > 0 and out[self.end - 1] != 57:
            position = copy_within(out, position, self.start, self.end)
            out[position - 1] += 1
        else:
            position = put_int(out, position, value)
        self.value = value
        self.start = start
        self.end = position
        return position


class OffsetGaps:
    """Finds neighbouring records of a file whose offsets are not consecutive, and passes both offsets to `note`."""

    def __init__(self, note: Callable[[int, int], None]) -> None:
        self.note = note
        self.last_offset = NO_OFFSET

    def begin_file(self) -> None:
        """Forget the last record: the next one is the first of a file."""
        self.last_offset = NO_OFFSET

    def add(self, offsets: array, count: int) -> None:  # type: ignore[type-arg]
        """Check the first `count` offsets, which follow those of the call before."""
        previous = self.last_offset
        for index in range(count):
            offset = offsets[index]
            if offset != previous + 1 and previous != NO_OFFSET:
                self.note(previous, offset)
            previous = offset
        self.last_offset = previous


class RecordLines:
    """Writes the lines of the records in `columns`, those of one batch after the other.

    Neighbours often have the same timestamp and sizes. The text from the timestamp's label to the sequence is then copied
    from the line before, where it is at [shared_start, shared_end) of the buffer.
    """

    def __init__(self, columns: "record_scan.RecordColumns", with_metadata: bool, with_contents: bool) -> None:
        self.columns = columns
        self.with_metadata = with_metadata
        self.with_contents = with_contents
        self.offset_text = CountingNumber()
        self.sequence_text = CountingNumber()
        self.shared_start = 0
        self.shared_timestamp = 0
        self.shared_key_size = 0
        self.shared_value_size = 0
        self.begin_batch(0, -1, 0, False)

    def begin_batch(self, base_offset: int, base_sequence: int, max_timestamp: int, is_log_append_time: bool) -> None:
        """Take what the records of the next batch share from its header."""
        self.base_offset = base_offset
        self.base_sequence = base_sequence
        self.max_timestamp = max_timestamp
        self.is_log_append_time = is_log_append_time
        self.shared_end = 0

    def put(self, out: "text_buffer.TextBuffer", data: Buffer, first: int, count: int) -> int:
        """Write the lines of the records first to count - 1, whose keys and values are in `data`.

        Returns the index of the first record that was not written: one that does not fit, or that is left to the caller.
        """
        columns = self.columns
        memory = out.memory
        contents = byte_address.readable(data)
        position = out.position
        self.shared_end = 0
        self.offset_text.end = 0
        self.sequence_text.end = 0
        index = first
        while index < count:
            if columns.header_count_view[index] != 0:
                break
            if self.base_sequence >= 0 and columns.offset_view[index] < self.base_offset:
                break  # only in a damaged batch: a record before the base offset has no sequence
            if self.line_bytes(index) > out.size - position:
                break
            end = position
            if self.with_metadata:
                end = self.put_metadata(memory, end, index)
            if self.with_contents:
                end = self.put_contents(memory, end, contents, index)
                if end < 0:
                    break
            memory[end] = 10
            position = end + 1
            index += 1
        out.position = position
        return index

    def line_bytes(self, index: int) -> int:
        """Return the most bytes that the line of a record may have."""
        size = LINE_OVERHEAD_BYTES
        if self.with_contents:
            if self.columns.key_size_view[index] > 0:
                size += self.columns.key_size_view[index]
            if self.columns.value_size_view[index] > 0:
                size += self.columns.value_size_view[index]
        return size

    def put_metadata(self, out: memoryview, position: int, index: int) -> int:
        """Write a record's line up to its header keys and return the position after them."""
        columns = self.columns
        offset = columns.offset_view[index]
        timestamp = self.max_timestamp if self.is_log_append_time else columns.timestamp_view[index]
        key_size = columns.key_size_view[index]
        value_size = columns.value_size_view[index]
        position = self.offset_text.put(out, put_text(out, position, b"| offset: "), offset)
        if (
            self.shared_end != 0
            and timestamp == self.shared_timestamp
            and key_size == self.shared_key_size
            and value_size == self.shared_value_size
        ):
            position = copy_within(out, position, self.shared_start, self.shared_end)
        else:
            self.shared_start = position
            position = put_number(
                out, position, b" LogAppendTime: " if self.is_log_append_time else b" CreateTime: ", timestamp
            )
            position = put_number(out, position, b" keySize: ", key_size)
            position = put_number(out, position, b" valueSize: ", value_size)
            position = put_text(out, position, b" sequence: ")
            self.shared_end = position
            self.shared_timestamp = timestamp
            self.shared_key_size = key_size
            self.shared_value_size = value_size
        if self.base_sequence >= 0:
            sequence = (self.base_sequence + offset - self.base_offset) & SEQUENCE_MASK
            position = self.sequence_text.put(out, position, sequence)
        else:
            position = put_text(out, position, b"-1")
        return put_text(out, position, b" headerKeys: []")

    def put_contents(self, out: memoryview, position: int, data: Buffer, index: int) -> int:
        """Write a record's key and value and return the position after them, or -1 if one is not ASCII."""
        columns = self.columns
        key_size = columns.key_size_view[index]
        value_size = columns.value_size_view[index]
        if not self.with_metadata and (key_size >= 0 or value_size >= 0):
            out[position] = 124
            position += 1
        if key_size >= 0:
            position = put_text(out, position, b" key: ")
            position = put_ascii(out, position, data, columns.key_position_view[index], key_size)
        if value_size >= 0 and position >= 0:
            position = put_text(out, position, b" payload: ")
            position = put_ascii(out, position, data, columns.value_position_view[index], value_size)
        return position
