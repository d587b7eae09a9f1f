"""The loops over spans: several usual batches in a row, alike in their attributes, whose records are scanned as one window.

    a batch belongs to a span         scanned without a fault, or compressed and not opened; some records, not too many; wholly
                                      within the offsets wanted; offsets behind those of the batch before and, where some are
                                      missing between the two, before those of the next one, which must be at hand then
    it must be looked at by itself    anything else; attributes that the caller refuses (control batches, transactions)

A window of a span costs one call for each column, whatever the size of its batches. One source, interpreted or compiled by
Cython (C types in batch_spans.pxd). Rows are those of kcli.format.batch_scan.
"""

from array import array

from kcli.format import loop_results, record_scan
from kcli.format.batch_scan import BatchColumns

Buffer = bytes | bytearray | memoryview

COMPRESSED_BITS = 7
LOG_APPEND_TIME_BIT = 8
UNOPENED = 2


def usual_batches(
    batches: BatchColumns,
    first: int,
    rows: int,
    last_offset: int,
    first_offset: int,
    end_offset: int,
    bound_offset: int,
    refused: int,
    most_records: int,
) -> int:
    """How many batches from row `first` of `rows` on make a span of at most `most_records` records; see the module.

    `last_offset` is that of the batch before, [first_offset, end_offset) are wanted, none may reach `bound_offset`;
    `refused` are the attributes' bits that no batch of a span has. Raises IndexError for rows that are not there.
    """
    if first < 0 or rows > batches.capacity:
        raise IndexError("batches outside their columns")
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    attributes = batches.attributes
    counts = batches.record_count
    faults = batches.fault
    records = 0
    row = first
    alike = 0
    if row < rows:
        alike = attributes[row]
    if alike & refused:
        return 0
    wanted = UNOPENED if alike & COMPRESSED_BITS else 0
    while row < rows:
        base = base_offsets[row]
        last = last_offsets[row]
        if attributes[row] != alike or faults[row] != wanted or base <= last_offset or last >= bound_offset:
            break
        if base < first_offset or last >= end_offset or counts[row] <= 0 or counts[row] > most_records - records:
            break
        if base > last_offset + 1 and (row + 1 >= rows or base_offsets[row + 1] <= last):
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
    """Scan the records of `count` batches from row `first` on -> how many batches, those before the first with a fault.

    The records of the batch i lie in buffer[starts[i]:ends[i]]; their timestamps are the batch's where the broker gave them.
    On return scratch[0] is the number of records in `records`. Raises IndexError for batches or records without room.
    """
    if count < 0 or first < 0 or first + count > batches.capacity or count > len(starts) or count > len(ends):
        raise IndexError("batches outside their columns")
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
            raise IndexError("too little room for the records")
        records.begin_batch(base_offsets[row], base_timestamps[row])
        status = records.scan(buffer, starts[done], ends[done], wanted, at)
        if status != loop_results.COMPLETE or records.end != ends[done]:
            break
        if attributes[row] & LOG_APPEND_TIME_BIT:
            timestamp = max_timestamps[row]
            index = at
            while index < at + wanted:
                records.timestamp_view[index] = timestamp
                index += 1
        at += wanted
        done += 1
    scratch[0] = at
    return done


def put_repeated(
    values: array,  # type: ignore[type-arg]
    counts: array,  # type: ignore[type-arg]
    first: int,
    count: int,
    out: memoryview,
    row: int,
) -> None:
    """Write each of `count` values from values[first] on counts[...] times into `out` (int64), from row `row` on.

    Raises IndexError where they do not fit.
    """
    if first < 0 or count < 0 or row < 0 or first + count > len(values) or first + count > len(counts):
        raise IndexError("batches outside their columns")
    done = first
    while done < first + count:
        value = values[done]
        if counts[done] < 0 or counts[done] > len(out) - row:
            raise IndexError("too little room for the rows")
        end = row + counts[done]
        while row < end:
            out[row] = value
            row += 1
        done += 1
