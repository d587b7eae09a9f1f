# cython: boundscheck=False
# (every line's room is checked before it is written; the scanner has checked the positions)
"""Records as lines of JSON or rows of CSV, straight from columns into a buffer; see record_lines for the ways it runs.

    piece               JSON                                  CSV
    ------------------  ------------------------------------  ------------------------------------------------
    before the offset   {"type":"record",...,"offset":        topic,partition,
    before the time     ,"timestamp":                         ,
    time                N                                     N, or ISO 8601 and nothing for -1
    before the key's    ,"timestampType":...,"keySize":       ,CreateTime,0,-1,-1,false,false,
      size
    before the value's  ,"valueSize":                         ,
      size
    sequence            ,"sequence":N, or nothing             ,N or ,-1
    key, value          ,"key":"...", or ,"key":null          ,...,utf8 or ,,
    end                 ,"headers":[]} and a newline          ,[], and CR LF

Pieces are what all records of a batch share; `RowForm` names them. A record that needs more (headers, bytes that are not
plain ASCII text, a time before 1970, a row longer than the buffer) is left to the caller, who writes it in Python and comes
back for the rest.
"""

from array import array
from typing import NamedTuple

from kcli.format.record_scan import RecordColumns
from kcli.inspect.dumping.record_lines import put_int, put_text
from kcli.inspect.instants import LAST_DATED_MS, format_day

Buffer = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

# What a row takes beside its pieces, key and value: five integers of at most 20 digits, quotes.
ROW_OVERHEAD_BYTES = 128
# A character takes at most so many times its byte: \u001f.
MOST_ESCAPED_BYTES = 6
SEQUENCE_MASK = 0x7FFFFFFF
SECONDS_PER_DAY = 86_400
# 2023-11-14T22:13:20
DATE_TIME_BYTES = 19
MOST_ISO_MS = LAST_DATED_MS


class RowForm(NamedTuple):
    """The constant pieces of a row; `is_json` says how keys and values are written, `is_iso` how timestamps are."""

    is_json: bool
    is_iso: bool
    before_offset: bytes
    before_timestamp: bytes
    before_key_size: bytes
    before_value_size: bytes
    before_sequence: bytes
    no_sequence: bytes
    key_open: bytes
    key_close: bytes
    key_null: bytes
    value_open: bytes
    value_close: bytes
    value_null: bytes
    end: bytes
    end_without_contents: bytes


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


def put_csv_field(out: memoryview, position: int, data: Buffer, start: int, end: int) -> int:
    """Write data[start:end] as a field of CSV -> the position behind it, or -1 where it is not plain text.

    Plain text is ASCII without control characters other than TAB, LF and CR. It is quoted where it holds a comma, a quote, CR
    or LF, as Python's csv module does.
    """
    shift = position - start
    special = 0
    for index in range(start, end):  # a loop that compilers turn into vector instructions
        byte = data[index]
        out[shift + index] = byte
        special |= (byte < 32) | (byte == 34) | (byte == 44) | (byte > 126)
    if special == 0:
        return position + end - start
    return put_quoted(out, position, data, start, end)


def put_quoted(out: memoryview, position: int, data: Buffer, start: int, end: int) -> int:
    """Write data[start:end], which has a character of a special kind, as put_csv_field does."""
    first = position
    out[position] = 34
    position += 1
    needs_quotes = 0
    for index in range(start, end):
        byte = data[index]
        out[position] = byte
        position += 1
        if byte > 44:
            if byte > 126:
                return -1
        elif byte == 34:
            out[position] = 34
            position += 1
            needs_quotes = 1
        elif byte == 44 or byte == 10 or byte == 13:
            needs_quotes = 1
        elif byte < 32 and byte != 9:
            return -1
    if needs_quotes:
        out[position] = 34
        return position + 1
    for index in range(start, end):  # nothing but TABs is special
        out[first + index - start] = data[index]
    return first + end - start


def put_two(out: memoryview, position: int, number: int) -> int:
    """Write `number`, 0 to 99, as two digits -> the position behind them."""
    out[position] = 48 + number // 10
    out[position + 1] = 48 + number % 10
    return position + 2


def put_time(out: memoryview, position: int, second_of_day: int) -> int:
    """Write a time of the day as T22:13:20 -> the position behind it."""
    out[position] = 84
    position = put_two(out, position + 1, second_of_day // 3600)
    out[position] = 58
    position = put_two(out, position + 1, second_of_day // 60 % 60)
    out[position] = 58
    return put_two(out, position + 1, second_of_day % 60)


def put_ms(out: memoryview, position: int, ms: int) -> int:
    """Write the milliseconds of a time as .000Z -> the position behind them."""
    out[position] = 46
    out[position + 1] = 48 + ms // 100
    position = put_two(out, position + 2, ms % 100)
    out[position] = 90
    return position + 1


def put_field(out: memoryview, position: int, is_json: bool, data: Buffer, start: int, size: int) -> int:
    """Write `size` bytes from data[start] as JSON or CSV -> the position behind them, or -1 where they are not plain."""
    if is_json:
        return put_json_string(out, position, data, start, start + size)
    return put_csv_field(out, position, data, start, start + size)


def put_rows(
    out: memoryview,
    data: Buffer,
    columns: RecordColumns,
    chosen: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    form: RowForm,
    fixed_timestamp: int,
    has_fixed_timestamp: bool,
    base_offset: int,
    base_sequence: int,
    with_contents: bool,
    place: array,  # type: ignore[type-arg]
) -> int:
    """Write the rows of records chosen[first:count] into `out`, from place[0] on -> how far in `chosen` it came.

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
    is_json = form.is_json
    is_iso = form.is_iso
    before_offset: bytes = form.before_offset
    before_timestamp: bytes = form.before_timestamp
    before_key_size: bytes = form.before_key_size
    before_value_size: bytes = form.before_value_size
    before_sequence: bytes = form.before_sequence
    no_sequence: bytes = form.no_sequence
    key_open: bytes = form.key_open
    key_close: bytes = form.key_close
    key_null: bytes = form.key_null
    value_open: bytes = form.value_open
    value_close: bytes = form.value_close
    value_null: bytes = form.value_null
    row_end: bytes = form.end if with_contents else form.end_without_contents
    position = place[0]
    room = len(out)
    overhead = ROW_OVERHEAD_BYTES + sum(map(len, form[2:]))
    second = day = -1
    time_start = 0
    day_text = b""
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
        position = put_text(out, position, before_offset)
        position = put_int(out, position, offsets[index])
        position = put_text(out, position, before_timestamp)
        timestamp = fixed_timestamp if has_fixed_timestamp else timestamps[index]
        if not is_iso:
            position = put_int(out, position, timestamp)
        elif timestamp != -1:
            if timestamp < 0 or timestamp > MOST_ISO_MS:
                position = start
                break
            if timestamp // 1000 == second:  # the text of the row before, up to its seconds
                for shift in range(DATE_TIME_BYTES):
                    out[position + shift] = out[time_start + shift]
                position += DATE_TIME_BYTES
            else:
                second = timestamp // 1000
                time_start = position
                if second // SECONDS_PER_DAY != day:
                    day = second // SECONDS_PER_DAY
                    day_text = format_day(day).encode()
                position = put_text(out, position, day_text)
                position = put_time(out, position, second % SECONDS_PER_DAY)
            position = put_ms(out, position, timestamp % 1000)
        position = put_text(out, position, before_key_size)
        position = put_int(out, position, key_size)
        position = put_text(out, position, before_value_size)
        position = put_int(out, position, value_size)
        if base_sequence >= 0:
            position = put_text(out, position, before_sequence)
            position = put_int(out, position, (base_sequence + offsets[index] - base_offset) & SEQUENCE_MASK)
        else:
            position = put_text(out, position, no_sequence)
        if with_contents:
            if key_size < 0:
                position = put_text(out, position, key_null)
            else:
                position = put_text(out, position, key_open)
                position = put_field(out, position, is_json, data, key_positions[index], key_size)
                if position < 0:
                    position = start
                    break
                position = put_text(out, position, key_close)
            if value_size < 0:
                position = put_text(out, position, value_null)
            else:
                position = put_text(out, position, value_open)
                position = put_field(out, position, is_json, data, value_positions[index], value_size)
                if position < 0:
                    position = start
                    break
                position = put_text(out, position, value_close)
        position = put_text(out, position, row_end)
        turn += 1
    place[0] = position
    return turn
