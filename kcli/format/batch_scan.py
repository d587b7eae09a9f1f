"""The scanner of batches: bytes of a segment -> columns of batch headers, each CRC computed and each record checked.

A verifier checks every batch here, without an object for each: a batch that is as a broker writes it costs no more than its CRC
and a scan of its records. A batch that is unusual in any way is only marked; the caller checks it again, with objects and
sentences.

    a batch gets a row           magic 2, whole in the buffer, its CRC right, no negative offset, delta or count
    its fault is SOUND           it is empty; or it is not compressed, has as many records as it states and no byte more, their
                                 offsets rise within [base offset, last offset], their largest timestamp is maxTimestamp
    its fault is UNOPENED        it is compressed: the caller inflates it and calls `check_records`
    its fault is LOOK            it has attributes without meaning, or anything else; (LEGACY marks rows of format 0 and 1)

Passes over the rows of a scan compare neighbouring batches and index entries, and stop at the first that the caller has to
check:

    pass                 goes on while
    -------------------  ---------------------------------------------------------------------------------------------
    next_notable         offsets, leader epoch and some producer's sequence are continued, and no offset is missing
    match_offset_index   the entries of a `.index` name a batch's position and last offset
    match_headers        the same by the bytes of a segment, and for entries of several batches
    match_time_index     the entries of a `.timeindex` name a batch's largest timestamp

This one source runs two ways, as kcli.format.record_scan does; its C types are in batch_scan.pxd.

PlainBatch is the check that nearly every produce request passes: a batch that is read and checked by one compiled call.

    a plain batch    fills the buffer; magic 2, a right CRC, base offset 0, one offset for each record, at least one record; no
                     compression, no LogAppendTime, no transaction, not control, no unknown attribute; a producer has
                     sequences; maxTimestamp is that of the records

Any other batch is left to kcli.log.record_validator, which finds out what it is, with objects and sentences.
"""

from array import array
from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan, structs
from kcli.format.primitives import Buffer

SOUND = 0
LOOK = 1
UNOPENED = 2
LEGACY = 3

# The slots of the state of `next_notable`: what the next batch must have to be passed over, then what was passed over.
NEXT_OFFSET = 0
LEADER_EPOCH = 1
STOP_OFFSET = 2  # a batch that reaches this offset is notable
RECORDS = 3
LATEST_RUN = 4
STATE_SLOTS = 5

LOG_APPEND_TIME_BIT = 8
INT64_MAX = 9223372036854775807


class BatchColumns:
    """Columns of up to `capacity` batches, each an array of int64; `position` counts in the file."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "capacity",
        "fault",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.position = array("q", zeros)
        self.size_bytes = array("q", zeros)
        self.base_offset = array("q", zeros)
        self.last_offset = array("q", zeros)
        self.leader_epoch = array("q", zeros)
        self.attributes = array("q", zeros)
        self.base_timestamp = array("q", zeros)
        self.max_timestamp = array("q", zeros)
        self.producer_id = array("q", zeros)
        self.producer_epoch = array("q", zeros)
        self.base_sequence = array("q", zeros)
        self.record_count = array("q", zeros)
        self.fault = array("q", zeros)


class ProducerRuns:
    """Columns of up to `capacity` runs: batches of one producer, epoch and attributes, each next in its sequence.

    `used` runs are in use, in the order in which they began; a producer id of -1 means batches without a producer. Of the
    last batch there are `batch_offset`, `last_offset`, `last_sequence` and `max_timestamp`; `attributes` lack the codec.
    """

    __slots__ = (
        "attributes",
        "batch_offset",
        "batches",
        "capacity",
        "first_offset",
        "first_position",
        "first_sequence",
        "last_offset",
        "last_sequence",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "records",
        "used",
    )

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.used = 0
        self.producer_id = array("q", zeros)
        self.producer_epoch = array("q", zeros)
        self.attributes = array("q", zeros)
        self.first_position = array("q", zeros)
        self.first_offset = array("q", zeros)
        self.first_sequence = array("q", zeros)
        self.batch_offset = array("q", zeros)
        self.last_offset = array("q", zeros)
        self.last_sequence = array("q", zeros)
        self.max_timestamp = array("q", zeros)
        self.records = array("q", zeros)
        self.batches = array("q", zeros)


def check_records(
    buffer: Buffer,
    position: int,
    limit: int,
    batches: BatchColumns,
    index: int,
    records: "record_scan.RecordColumns",
) -> int:
    """Check the records in buffer[position:limit] against row `index` of `batches`; return SOUND or LOOK.

    The counts of `records` are overwritten, its columns are not.
    """
    records.begin_batch(batches.base_offset[index], batches.base_timestamp[index])
    return check_into(
        buffer,
        position,
        limit,
        batches.last_offset[index],
        batches.max_timestamp[index],
        batches.attributes[index],
        batches.record_count[index],
        records,
    )


def check_into(
    buffer: Buffer,
    position: int,
    limit: int,
    last_offset: int,
    max_timestamp: int,
    attributes: int,
    wanted: int,
    records: "record_scan.RecordColumns",
) -> int:
    """Check the records of the batch that `records` begins; return SOUND or LOOK."""
    if wanted <= 0:
        return SOUND if position == limit else LOOK
    if records.scan(buffer, position, limit, wanted, record_scan.NO_ROWS) != loop_results.COMPLETE or records.end != limit:
        return LOOK
    if not records.is_rising or records.last_delta > last_offset - records.base_offset:
        return LOOK
    base = records.base_timestamp
    if records.largest_delta > 0 and base > INT64_MAX - records.largest_delta:
        return LOOK
    if records.smallest_delta < 0 and base < ~INT64_MAX - records.smallest_delta:
        return LOOK
    if base + records.largest_delta != max_timestamp and not attributes & LOG_APPEND_TIME_BIT:
        return LOOK
    return SOUND


def summarise(records: record_scan.RecordColumns, count: int, previous_offset: int, out: array) -> int:  # type: ignore[type-arg]
    """Return the row of the first of `count` records whose offset is not above the one before it, -1 if there is none.

    `previous_offset` is the one before the first. `out` (two int64) gets the smallest and the largest timestamp, both 0
    for no records.
    """
    offsets = records.offset
    timestamps = records.timestamp
    found = -1
    smallest = 0
    largest = 0
    if count > 0:
        smallest = timestamps[0]
        largest = timestamps[0]
    row = 0
    while row < count:
        if found < 0 and offsets[row] <= previous_offset:
            found = row
        previous_offset = offsets[row]
        timestamp = timestamps[row]
        if timestamp < smallest:
            smallest = timestamp
        if timestamp > largest:
            largest = timestamp
        row += 1
    out[0] = smallest
    out[1] = largest
    return found


def fault_of(header: "batch_header.BatchHeader", buffer: Buffer, records: "record_scan.RecordColumns | None") -> int:
    """Return the fault of the batch of a header, all of which is in `buffer` and whose CRC is right."""
    if header.has_unknown_attributes:
        return LOOK
    if header.record_count == 0:
        return SOUND if header.end_position == header.records_position else LOOK
    if records is None:
        return SOUND
    if header.codec:
        return UNOPENED
    records.begin_batch(header.base_offset, header.base_timestamp)
    return check_into(
        buffer,
        header.records_position,
        header.end_position,
        header.last_offset,
        header.max_timestamp,
        header.attributes,
        header.record_count,
        records,
    )


def scan_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    file_position: int,
    crc32c: Callable[..., int],
    batches: BatchColumns,
    records: "record_scan.RecordColumns | None",
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Scan the batches of buffer[position:limit] and return their number; `view` is a memoryview of the same buffer.

    `records` is what the check of the records fills. If it is None, only headers and CRCs are checked, as by a broker that
    recovers a log: then every fault is SOUND or LOOK.
    `file_position` is the byte of the file at buffer[0]. On return scratch[0] is the position in the buffer behind the last
    batch, scratch[1] why the scan ended, scratch[2] how many rows have a fault. Nothing is raised for bad bytes.
    """
    positions = batches.position
    sizes = batches.size_bytes
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    leader_epochs = batches.leader_epoch
    attribute_column = batches.attributes
    base_timestamps = batches.base_timestamp
    max_timestamps = batches.max_timestamp
    producer_ids = batches.producer_id
    producer_epochs = batches.producer_epoch
    base_sequences = batches.base_sequence
    record_counts = batches.record_count
    faults = batches.fault
    capacity = batches.capacity
    header = batch_header.BatchHeader()
    index = 0
    faulty = 0
    stop = loop_results.FULL
    while index < capacity:
        stop = header.read(buffer, position, limit)
        if stop != loop_results.USUAL:
            break
        if header.end_position > limit:
            stop = loop_results.NEED_MORE
            break
        if not header.has_right_crc(view, crc32c):
            stop = loop_results.OTHER
            break
        stop = loop_results.FULL
        positions[index] = file_position + position
        sizes[index] = header.end_position - position
        base_offsets[index] = header.base_offset
        last_offsets[index] = header.last_offset
        leader_epochs[index] = header.leader_epoch
        attribute_column[index] = header.attributes
        base_timestamps[index] = header.base_timestamp
        max_timestamps[index] = header.max_timestamp
        producer_ids[index] = header.producer_id
        producer_epochs[index] = header.producer_epoch
        base_sequences[index] = header.base_sequence
        record_counts[index] = header.record_count
        fault = fault_of(header, buffer, records)
        faults[index] = fault
        if fault != SOUND:
            faulty += 1
        index += 1
        position = header.end_position
    scratch[0] = position
    scratch[1] = stop
    scratch[2] = faulty
    return index


def next_notable(batches: BatchColumns, index: int, count: int, state: array, runs: ProducerRuns) -> int:  # type: ignore[type-arg]
    """Pass over the rows [index, count) that continue the rows before; return the first that does not, or count.

    Such a row is SOUND, has every offset, is next in offset, of the same leader epoch, below STOP_OFFSET, and next in the
    sequence of one of the `runs`, with its producer, epoch and attributes. `state` holds what is expected and is updated, as
    the runs are; RECORDS grows.
    """
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    leader_epochs = batches.leader_epoch
    attributes = batches.attributes
    producer_ids = batches.producer_id
    producer_epochs = batches.producer_epoch
    base_sequences = batches.base_sequence
    max_timestamps = batches.max_timestamp
    record_counts = batches.record_count
    faults = batches.fault
    run_ids = runs.producer_id
    run_epochs = runs.producer_epoch
    run_attributes = runs.attributes
    run_batch_offsets = runs.batch_offset
    run_last_offsets = runs.last_offset
    run_last_sequences = runs.last_sequence
    run_timestamps = runs.max_timestamp
    run_records = runs.records
    run_batches = runs.batches
    used = runs.used
    next_offset = state[0]
    leader_epoch = state[1]
    stop_offset = state[2]
    run = state[4]
    passed = 0
    while index < count:
        last_offset = last_offsets[index]
        taken = last_offset - next_offset + 1
        if (
            base_offsets[index] != next_offset
            or faults[index] != 0
            or record_counts[index] != taken
            or leader_epochs[index] != leader_epoch
            or last_offset >= stop_offset
        ):
            break
        producer_id = producer_ids[index]
        if run >= used or run_ids[run] != producer_id:
            run = 0
            while run < used and run_ids[run] != producer_id:
                run += 1
            if run == used:
                break
        sequence = base_sequences[index]
        if producer_id >= 0:
            expected = run_last_sequences[run] + 1
            if expected > 2147483647:
                expected = 0
            last_sequence = sequence + taken - 1
            if last_sequence > 2147483647:
                last_sequence -= 2147483648
        else:
            expected = -1
            last_sequence = -1
        if sequence != expected or run_epochs[run] != producer_epochs[index] or run_attributes[run] != attributes[index] & -8:
            break
        run_last_sequences[run] = last_sequence
        run_batch_offsets[run] = next_offset
        run_last_offsets[run] = last_offset
        run_timestamps[run] = max_timestamps[index]
        run_records[run] += taken
        run_batches[run] += 1
        next_offset = last_offset + 1
        passed += taken
        index += 1
    state[0] = next_offset
    state[3] += passed
    state[4] = run
    return index


def match_offset_index(
    batches: BatchColumns,
    index: int,
    count: int,
    relative_offsets: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    slot: int,
    base_offset: int,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Pass over the entries of a `.index`, from `slot` on, that match a batch's position and last offset; return the next slot.

    On return scratch[0] is the row at which the next entry does not match, or `count` if that entry points after the rows
    [index, count).
    """
    row_positions = batches.position
    last_offsets = batches.last_offset
    slots = len(positions)
    while slot < slots:
        target = positions[slot]
        while index < count and row_positions[index] < target:
            index += 1
        if index == count or row_positions[index] != target or last_offsets[index] != base_offset + relative_offsets[slot]:
            break
        slot += 1
    scratch[0] = index
    return slot


def match_headers(
    buffer: Buffer,
    start: int,
    filled: int,
    file_position: int,
    relative_offsets: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    slot: int,
    base_offset: int,
) -> int:
    """Pass over the entries of a `.index`, from `slot` on, that the headers at their bytes bear out; return the next slot.

    buffer[start:filled] are bytes of the segment from `file_position` on. A header of magic 2 bears an entry out if it has the
    last offset, or a lower one and the batch behind does not begin above the entry: that is one of several batches.
    """
    slots = len(positions)
    while slot < slots:
        at = start + positions[slot] - file_position
        if at + structs.RECORD_BATCH_HEADER_BYTES > filled:
            break
        offset = base_offset + relative_offsets[slot]
        last = batch_header.read_int64(buffer, at + structs.BATCH_BASE_OFFSET_AT)
        last += batch_header.read_int32(buffer, at + structs.BATCH_LAST_OFFSET_DELTA_AT)
        if last != offset:
            behind = at + structs.LOG_OVERHEAD_BYTES + batch_header.read_int32(buffer, at + structs.BATCH_LENGTH_AT)
            if last > offset or behind < at + structs.RECORD_BATCH_HEADER_BYTES or behind + structs.ENTRY_SIZE_AT > filled:
                break
            if batch_header.read_int64(buffer, behind + structs.ENTRY_OFFSET_AT) > offset:
                break
        slot += 1
    return slot


def match_time_index(
    batches: BatchColumns,
    index: int,
    count: int,
    timestamps: array,  # type: ignore[type-arg]
    relative_offsets: array,  # type: ignore[type-arg]
    slot: int,
    base_offset: int,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Pass over the entries of a `.timeindex`, from `slot` on, that state a batch's largest timestamp; return the next slot.

    A right entry's offset is in a batch whose maxTimestamp it states, and no batch before has a larger one. scratch[1]
    is the largest timestamp of the rows before `index`, on call and on return; scratch[0] as in match_offset_index.
    """
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    max_timestamps = batches.max_timestamp
    slots = len(timestamps)
    largest = scratch[1]
    while slot < slots:
        target = base_offset + relative_offsets[slot]
        while index < count and last_offsets[index] < target:
            if max_timestamps[index] > largest:
                largest = max_timestamps[index]
            index += 1
        timestamp = timestamps[slot]
        if index == count or base_offsets[index] > target or max_timestamps[index] != timestamp or largest > timestamp:
            break
        slot += 1
    if slot == slots:
        while index < count:
            if max_timestamps[index] > largest:
                largest = max_timestamps[index]
            index += 1
    scratch[0] = index
    scratch[1] = largest
    return slot


MOST_TIMESTAMP = 4611686018427387904  # 2**62: the sum with a delta is checked without an overflow


class PlainBatch(batch_header.BatchHeader):
    """The header of the batch that was checked last, which is at position 0, and the counts of its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records = record_scan.RecordColumns(0)

    def check(self, buffer: Buffer, view: memoryview, crc32c: Callable[..., int]) -> bool:
        """Read the batch in `buffer`; return True if it is plain. It never raises. `view` is a memoryview of `buffer`."""
        records = self.records
        size = len(buffer)
        if (
            self.read(buffer, 0, size) != loop_results.USUAL
            or self.end_position != size
            or self.base_offset != 0
            or self.attributes != 0
            # The CRC before the scan: at full speed it loads the bytes into the cache; the scan, record by record, is slower.
            or not self.has_right_crc(view, crc32c)
        ):
            return False
        if (
            self.record_count == 0
            or self.last_offset != self.record_count - 1
            or (self.producer_id >= 0 and self.base_sequence < 0)
            or self.base_timestamp < 0
            or self.base_timestamp > MOST_TIMESTAMP
        ):
            return False
        records.begin_batch(0, self.base_timestamp)
        status = records.scan(buffer, self.records_position, size, self.record_count, record_scan.NO_ROWS)
        return (
            status == loop_results.COMPLETE
            and records.end == size
            and not records.is_renumbered
            and records.largest_delta == self.max_timestamp - self.base_timestamp
            and records.smallest_delta >= -self.base_timestamp
        )
