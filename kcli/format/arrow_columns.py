# cython: boundscheck=False
# (each function checks before its loops what they will read and write)
"""The compiled loops of Arrow arrays: batches to spans, and scanned records to Arrow's buffers without an object a record.

    Arrow array              buffers that are filled here
    -----------------------  -------------------------------------------------------------------------------------------
    binary, string           validity bits, int32 offsets (one more than rows), data
    timestamp[us]            validity bits, int64
    int32                    int32
    list<struct<key, value>> validity bits, int32 offsets; the children are a string and a binary array

    a batch belongs to a span if                                                             because
    ---------------------------------------------------------------------------------------  --------------------------------
    it is scanned without a fault, or compressed and not inflated yet                        a fault needs an error message
    it has records, and the span has at most `max_records`                                   they share one window
    all its offsets are wanted                                                               a span is never cut
    its offsets are after those of the batch before; after a gap in the offsets, also before  the CRC does not cover them
      those of the next batch, which must have been scanned
    its attributes are those of the span's first batch, and have none of the `excluded` bits  they apply to the whole span

One source, interpreted or compiled by Cython (C types in arrow_columns.pxd): compiled, a record of 100 bytes costs some
20 ns. The caller allocates the buffers (`sum_of` returns the sizes); a call whose rows would not fit
raises IndexError before it writes. Columns come from kcli.format.record_scan and kcli.format.batch_scan; a size of -1 is null.
"""

from array import array

from kcli.format import byte_address, loop_results, record_scan
from kcli.format.batch_scan import SOUND, UNOPENED, BatchColumns
from kcli.format.primitives import Buffer
from kcli.format.record_batch import CODEC_MASK, LOG_APPEND_TIME_FLAG

# Milliseconds beyond these do not fit an Arrow timestamp in microseconds; such a timestamp becomes null.
MAX_TIMESTAMP_MS = 9223372036854775
MIN_TIMESTAMP_MS = -9223372036854775
INT32_MAX = 2147483647


def span_length(
    batches: BatchColumns,
    first: int,
    end: int,
    last_offset: int,
    first_offset: int,
    end_offset: int,
    bound_offset: int,
    excluded: int,
    max_records: int,
) -> int:
    """Return how many of the batches in rows [first, end) make a span, from row `first` on; see the module.

    `last_offset` is that of the batch before. Offsets in [first_offset, end_offset) are wanted, and no batch may reach
    `bound_offset`. Raises IndexError for rows outside of `batches`.
    """
    if first < 0 or end > batches.capacity:
        raise IndexError("batches outside their columns")
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    attributes = batches.attributes
    counts = batches.record_count
    faults = batches.fault
    records = 0
    row = first
    shared = 0
    if row < end:
        shared = attributes[row]
    if shared & excluded:
        return 0
    fault = UNOPENED if shared & CODEC_MASK else SOUND
    while row < end:
        base = base_offsets[row]
        last = last_offsets[row]
        if attributes[row] != shared or faults[row] != fault or base <= last_offset or last >= bound_offset:
            break
        if base < first_offset or last >= end_offset or counts[row] <= 0 or counts[row] > max_records - records:
            break
        if base > last_offset + 1 and (row + 1 >= end or base_offsets[row + 1] <= last):
            break
        records += counts[row]
        last_offset = last
        row += 1
    return row - first


def scan_span(
    buffer: Buffer,
    starts: array,  # type: ignore[type-arg]
    ends: array,  # type: ignore[type-arg]
    batches: BatchColumns,
    first: int,
    count: int,
    records: "record_scan.RecordColumns",
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Scan the records of `count` batches from row `first` on; return the number of batches before the first with a fault.

    The records of batch i are buffer[starts[i]:ends[i]]; they get the batch's timestamp if it is LogAppendTime. On return
    scratch[0] is the number of records. Raises IndexError for rows outside of `batches`, and for too many records.
    """
    if count < 0 or first < 0 or first + count > batches.capacity or count > len(starts) or count > len(ends):
        raise IndexError("batches outside their columns")
    if len(scratch) < 2:
        raise IndexError("too little space for the results")
    base_offsets = batches.base_offset
    base_timestamps = batches.base_timestamp
    max_timestamps = batches.max_timestamp
    attributes = batches.attributes
    counts = batches.record_count
    at = 0
    done = 0
    while done < count:
        row = first + done
        wanted = counts[row]
        if wanted < 0 or wanted > records.capacity - at:
            raise IndexError("too little space for the records")
        records.begin_batch(base_offsets[row], base_timestamps[row])
        status = records.scan(buffer, starts[done], ends[done], wanted, at)
        if status != loop_results.COMPLETE or records.end != ends[done]:
            break
        if attributes[row] & LOG_APPEND_TIME_FLAG:
            timestamp = max_timestamps[row]
            index = at
            while index < at + wanted:
                records.timestamp_view[index] = timestamp
                index += 1
        at += wanted
        done += 1
    scratch[0] = at
    return done


def check_rows(first: int, count: int, length: int) -> None:
    """Raise IndexError if rows [first, first + count) are not in a column of `length` rows."""
    if first < 0 or count < 0 or first + count > length:
        raise IndexError("rows outside their columns")


def sum_of(sizes: array, first: int, count: int) -> int:  # type: ignore[type-arg]
    """Return the sum of sizes[first:first + count], without negative ones. Raises IndexError if the column is shorter."""
    check_rows(first, count, len(sizes))
    total = 0
    index = first
    end = first + count
    while index < end:
        total += max(sizes[index], 0)
        index += 1
    return total


def put_binary(
    source: Buffer,
    positions: array,  # type: ignore[type-arg]
    sizes: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    data: memoryview,
    offsets: memoryview,
    validity: memoryview,
    row: int,
) -> int:
    """Append keys or values from row `row` on, to `data` from offsets[row] on; return how many of them are null.

    `data` and `validity` are bytes, those of `validity` zero from `row` on; `offsets` is int32. Raises IndexError for a record
    outside `source` and for too little space.
    """
    # With check_rows instead of these checks, the loop takes a sixth longer.
    if first < 0 or count < 0 or row < 0 or first + count > len(sizes) or first + count > len(positions):
        raise IndexError("records outside their columns")
    if row + count >= len(offsets) or row + count > 8 * len(validity):
        raise IndexError("too little space for the rows")
    at = offsets[row]
    space = min(len(data), INT32_MAX)
    available = len(source)
    nulls = 0
    index = 0
    while index < count:
        size = sizes[first + index]
        if size < 0:
            nulls += 1
        else:
            position = positions[first + index]
            if position < 0 or size > available - position or size > space - at:
                raise IndexError("a record outside its bytes, or too little space for it")
            byte_address.copy_part(data, at, source, position, size)
            at += size
            validity[(row + index) >> 3] |= 1 << ((row + index) & 7)
        index += 1
        offsets[row + index] = at
    return nulls


def put_micros(
    timestamps: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    out: memoryview,
    validity: memoryview,
    row: int,
) -> int:
    """Append timestamps (ms) as microseconds from row `row` of `out` (int64) on; return how many do not fit and are null."""
    check_rows(first, count, len(timestamps))
    check_rows(row, count, min(len(out), 8 * len(validity)))
    lowest = MIN_TIMESTAMP_MS
    highest = MAX_TIMESTAMP_MS
    nulls = 0
    index = 0
    while index < count:
        timestamp = timestamps[first + index]
        if timestamp > highest or timestamp < lowest:
            nulls += 1
            out[row + index] = 0
        else:
            out[row + index] = timestamp * 1000
            validity[(row + index) >> 3] |= 1 << ((row + index) & 7)
        index += 1
    return nulls


def put_sizes(sizes: array, first: int, count: int, out: memoryview, row: int) -> None:  # type: ignore[type-arg]
    """Append sizes, -1 for null, from row `row` of `out` (int32) on."""
    check_rows(first, count, len(sizes))
    check_rows(row, count, len(out))
    index = 0
    while index < count:
        out[row + index] = sizes[first + index]
        index += 1


def put_distances(positions: array, first: int, count: int, end: int, out: memoryview, row: int) -> None:  # type: ignore[type-arg]
    """Append the distances between positions, of the last one to `end`, from row `row` of `out` (int32) on."""
    check_rows(first, count, len(positions))
    check_rows(row, count, len(out))
    index = 0
    while index < count:
        if index + 1 < count:
            out[row + index] = positions[first + index + 1] - positions[first + index]
        else:
            out[row + index] = end - positions[first + index]
        index += 1


def put_sequences(
    offsets: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    base_offset: int,
    base_sequence: int,
    out: memoryview,
    row: int,
) -> None:
    """Append the producer's sequence of each record from row `row` of `out` (int32) on; -1 if the batch has none.

    The sequence is `base_sequence` plus the record's offset minus `base_offset`; it wraps from 2**31 - 1 to 0.
    Raises IndexError for records or rows outside their arrays.
    """
    check_rows(first, count, len(offsets))
    check_rows(row, count, len(out))
    index = 0
    while index < count:
        if base_sequence < 0:
            out[row + index] = -1
        else:
            sequence = base_sequence + (offsets[first + index] - base_offset)
            if sequence > INT32_MAX:
                sequence -= INT32_MAX + 1
            out[row + index] = sequence if 0 <= sequence <= INT32_MAX else -1
        index += 1


def put_repeated(
    values: array,  # type: ignore[type-arg]
    counts: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    out: memoryview,
    row: int,
) -> None:
    """Write each of values[first:first + count], as often as `counts` states, to `out` (int64) from row `row` on.

    Raises IndexError if they do not fit.
    """
    check_rows(first, count, min(len(values), len(counts)))
    check_rows(row, 0, len(out))
    done = first
    while done < first + count:
        value = values[done]
        if counts[done] < 0 or counts[done] > len(out) - row:
            raise IndexError("too little space for the rows")
        end = row + counts[done]
        while row < end:
            out[row] = value
            row += 1
        done += 1


def count_below(offsets: array, count: int, limit: int) -> int:  # type: ignore[type-arg]
    """Return how many of the first `count` offsets, which ascend, are below `limit`."""
    check_rows(0, count, len(offsets))
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if offsets[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


def read_size(source: Buffer, position: int, out: array) -> int:  # type: ignore[type-arg]
    """Decode a varint that the scanner checked to out[0]; return the position after it. Raises IndexError at the end."""
    raw = 0
    shift = 0
    while shift < 35:
        if position >= len(source):
            raise IndexError("a header outside its bytes")
        byte = source[position]
        position += 1
        raw |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    out[0] = (raw >> 1) ^ -(raw & 1)
    return position


def put_headers(
    source: Buffer,
    positions: array,  # type: ignore[type-arg]
    counts: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    lists: memoryview,
    list_validity: memoryview,
    row: int,
    key_data: memoryview,
    key_offsets: memoryview,
    value_data: memoryview,
    value_offsets: memoryview,
    value_validity: memoryview,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Append the records' headers from row `row` on, to the children from lists[row] on; return how many have none (null).

    `lists`, `key_offsets` and `value_offsets` are int32, the rest bytes, those of validity zero. scratch[1] is increased by the
    number of null values; scratch[2] is set to 1 if a key has bytes that are not ASCII. Raises IndexError for too little space.
    """
    check_rows(first, count, min(len(counts), len(positions)))
    check_rows(row, count, min(len(lists) - 1, 8 * len(list_validity)))
    child = lists[row]
    available = len(source)
    key_space = min(len(key_data), INT32_MAX)
    value_space = min(len(value_data), INT32_MAX)
    nulls = 0
    index = 0
    while index < count:
        headers = counts[first + index]
        if headers == 0:
            nulls += 1
        else:
            if child + headers >= len(key_offsets) or child + headers >= len(value_offsets):
                raise IndexError("too little space for the headers")
            list_validity[(row + index) >> 3] |= 1 << ((row + index) & 7)
            position = positions[first + index]
            while headers > 0:
                position = read_size(source, position, scratch)
                size = scratch[0]
                at = key_offsets[child]
                if size < 0 or size > available - position or size > key_space - at:
                    raise IndexError("a header key outside its bytes, or too little space for it")
                byte_address.copy_part(key_data, at, source, position, size)
                end = position + size
                while position < end:
                    if source[position] > 127:
                        scratch[2] = 1
                    position += 1
                key_offsets[child + 1] = at + size
                position = read_size(source, position, scratch)
                size = scratch[0]
                at = value_offsets[child]
                if size < 0:
                    scratch[1] += 1
                    size = 0
                else:
                    if size > available - position or size > value_space - at:
                        raise IndexError("a header value outside its bytes, or too little space for it")
                    byte_address.copy_part(value_data, at, source, position, size)
                    value_validity[child >> 3] |= 1 << (child & 7)
                    position += size
                value_offsets[child + 1] = at + size
                child += 1
                headers -= 1
        index += 1
        lists[row + index] = child
    return nulls
