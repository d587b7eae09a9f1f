"""Strides of a cleaning round over the bytes of a segment: many usual batches a call, and never an object a batch.

    stride         takes                                              ends at
    -------------  -------------------------------------------------  ------------------------------------------------------
    note_batches   batches of format 2, data and markers, but of      a batch that is not such a one, or has a wrong CRC, or
                   aborted transactions                               whose records do not add up; no room in the map
    pass_dead      data of such batches of the dirty part none of     a batch with a live record, or that is not such a one,
                   whose records is the last of its key               or may have to stay for its producer

Whatever a stride ends at, the caller looks at with objects: what is odd is told of, or cleaned, there.

Live offsets are those in the map: each is the last one of its key. As bits of a window of offsets they tell of a whole batch at
once, with its records unread, whether anything of it may stay. The bits are gathered from the map, window by window.

Of transactions strides know what kcli.log.cleaner.transactions tells: from which offset on one was aborted that has not
begun yet, whose aborted ones are under way, and which producers had data since their last marker.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_strides.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import record_scan
from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer, RecordColumns
from kcli.log.cleaner import offset_map

# Why a stride ended; it stands in scratch[WHY].
NEED_MORE = 0  # the buffer ends, or holds no whole batch any more
OTHER = 1  # the batch is to be looked at
NO_ROOM = 2  # the records of the batch may not fit into the map
WINDOW = 3  # the batch has offsets outside of the window of live offsets
ENOUGH = 4  # others should have their turn

# The slots of `scratch`.
WHY = 1
RECORDS = 2  # how many records were passed over
KEYLESS = 3  # how many of them had no key, in batches that begin at the start offset or behind
TOMBSTONES = 4  # and how many of them had no value
LAST_OFFSET = 5  # the last offset of the last batch, as it was where there was none
WORK_BYTES = 6  # how many bytes were looked at, inflated ones where that is more, and the weight of the batches
IS_PLAIN = 7  # 1 where no batch was of a transaction
SCRATCH_SLOTS = 8

# The slots of `transactions`.
NEXT_ABORTED = 0  # the first offset of the next aborted transaction that has not begun yet
ABORTED = 1  # how many producers `aborted` has
OPEN = 2  # how many producers `open_ids` has: those with data since their last marker
TRANSACTION_SLOTS = 3

# A stride ends behind so many bytes that it has looked at; a batch counts for some more, one that is inflated for many.
STRIDE_BYTES = 512 * 1024
BATCH_WEIGHT = 500
INFLATED_WEIGHT = 4000


def note_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    start_offset: int,
    transactions: array,  # type: ignore[type-arg]
    aborted: array,  # type: ignore[type-arg]
    columns: RecordColumns,
    table: memoryview,
    state: array,  # type: ignore[type-arg]
    secret: array,  # type: ignore[type-arg]
    hashes: array,  # type: ignore[type-arg]
    rows: array,  # type: ignore[type-arg]
    places: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Note the keys of the batches of buffer[position:limit] that stand at `start_offset` or behind -> where it ended.

    `view` is a memoryview of the same buffer. `inflate` gives None for what it does not inflate.
    """
    offsets = columns.offset
    timestamps = columns.timestamp
    key_positions = columns.key_position
    key_sizes = columns.key_size
    value_positions = columns.value_position
    value_sizes = columns.value_size
    header_positions = columns.header_position
    header_counts = columns.header_count
    record_positions = columns.record_position
    work_bytes = 0
    records = 0
    keyless = 0
    tombstones = 0
    is_plain = 1
    why = NEED_MORE
    while True:
        if limit - position < 61:
            break
        size = read_int32(buffer, position + 8)
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        base_offset = read_int64(buffer, position)
        delta = read_int32(buffer, position + 23)
        if (
            buffer[position + 16] != 2
            or size < 49
            or (attributes & 48 and is_aborted(transactions, aborted, read_int64(buffer, position + 43), base_offset + delta))
        ):
            why = OTHER
            break
        if size > limit - position - 12:
            break
        if work_bytes >= STRIDE_BYTES:
            why = ENOUGH
            break
        end = position + 12 + size
        stored = read_int32(buffer, position + 17)
        if stored < 0:
            stored += 4294967296
        computed = crc32c(view[position + 21 : end])
        count = read_int32(buffer, position + 57)
        why = OTHER
        if computed != stored or base_offset < 0 or base_offset > 4611686018427387904 or delta < 0 or count <= 0:
            break
        base_timestamp = read_int64(buffer, position + 27)
        if attributes & 32:
            if attributes & 7 or count != 1:
                break
            marker = scan_marker(
                buffer, position + 61, end, base_offset, base_timestamp,
                offsets, timestamps, key_positions, key_sizes, value_positions, value_sizes, header_positions,
                header_counts, record_positions, scratch,
            )  # fmt: skip
            if marker < 0:
                break
            why = NEED_MORE
            work_bytes += size + BATCH_WEIGHT
            is_plain = 0
            scratch[5] = base_offset + delta
            position = end
            continue
        if state[1] + count > state[2]:
            why = NO_ROOM
            break
        if attributes & 7:
            payload = inflate(attributes & 7, view[position + 61 : end])
            if payload is None:
                break
            work_bytes += len(payload) + INFLATED_WEIGHT
            noted = note_batch(
                payload, 0, len(payload), base_offset, base_offset + delta, base_timestamp, count, start_offset,
                offsets, timestamps, key_positions, key_sizes, value_positions, value_sizes, header_positions,
                header_counts, record_positions, table, state, secret, hashes, rows, places, scratch,
            )  # fmt: skip
        else:
            work_bytes += size + BATCH_WEIGHT
            noted = note_batch(
                buffer, position + 61, end, base_offset, base_offset + delta, base_timestamp, count, start_offset,
                offsets, timestamps, key_positions, key_sizes, value_positions, value_sizes, header_positions,
                header_counts, record_positions, table, state, secret, hashes, rows, places, scratch,
            )  # fmt: skip
        if noted < 0:
            break
        why = NEED_MORE
        records += count
        if attributes & 16:
            is_plain = 0
        if base_offset >= start_offset:
            keyless += scratch[3]
            tombstones += scratch[4]
        scratch[5] = base_offset + delta
        position = end
    scratch[1] = why
    scratch[2] = records
    scratch[3] = keyless
    scratch[4] = tombstones
    scratch[6] = work_bytes
    scratch[7] = is_plain
    return position


def note_batch(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    wanted: int,
    start_offset: int,
    offsets: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    record_positions: array,  # type: ignore[type-arg]
    table: memoryview,
    state: array,  # type: ignore[type-arg]
    secret: array,  # type: ignore[type-arg]
    hashes: array,  # type: ignore[type-arg]
    rows: array,  # type: ignore[type-arg]
    places: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Note the records of a batch, buffer[position:limit] -> how many, -1 where they are odd and none was noted.

    How many have no key stands in scratch[KEYLESS], how many no value in scratch[TOMBSTONES].
    """
    if wanted > len(offsets):
        return -1
    count = record_scan.scan_into(
        buffer,
        position,
        limit,
        base_offset,
        base_timestamp,
        wanted,
        offsets,
        timestamps,
        key_positions,
        key_sizes,
        value_positions,
        value_sizes,
        header_positions,
        header_counts,
        record_positions,
        scratch,
    )
    if scratch[1] != 0 or count != wanted or scratch[0] != limit:
        return -1
    if offsets[0] < base_offset or offsets[count - 1] > last_offset:
        state[4] = 1
    offset_map.note_records(
        buffer,
        offsets,
        key_positions,
        key_sizes,
        0,
        count,
        start_offset,
        table,
        state,
        secret,
        hashes,
        rows,
        places,
    )
    keyless = 0
    tombstones = 0
    index = 0
    while index < count:
        if key_sizes[index] < 0:
            keyless += 1
        if value_sizes[index] < 0:
            tombstones += 1
        index += 1
    scratch[3] = keyless
    scratch[4] = tombstones
    return count


def scan_marker(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    base_timestamp: int,
    offsets: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    record_positions: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """The marker in the one record of a control batch, buffer[position:limit] -> 0 ABORT, 1 COMMIT, -1 where it is odd."""
    count = record_scan.scan_into(
        buffer,
        position,
        limit,
        base_offset,
        base_timestamp,
        1,
        offsets,
        timestamps,
        key_positions,
        key_sizes,
        value_positions,
        value_sizes,
        header_positions,
        header_counts,
        record_positions,
        scratch,
    )
    if scratch[1] != 0 or count != 1 or scratch[0] != limit or key_sizes[0] != 4 or value_sizes[0] != 6:
        return -1
    key = read_int32(buffer, key_positions[0])
    version = buffer[value_positions[0]]
    return key if (key == 0 or key == 1) and version < 128 else -1


def is_aborted(transactions: array, aborted: array, producer_id: int, last_offset: int) -> bool:  # type: ignore[type-arg]
    """Whether a batch may be of an aborted transaction: one begins up to its last offset, or its producer's is under way."""
    if last_offset >= transactions[0]:
        return True
    index = 0
    while index < transactions[1]:
        if aborted[index] == producer_id:
            return True
        index += 1
    return False


def find_open(transactions: array, open_ids: array, producer_id: int) -> int:  # type: ignore[type-arg]
    """Where a producer stands among those with data since their last marker, -1 where it does not."""
    index = transactions[2] - 1
    while index >= 0 and open_ids[index] != producer_id:
        index -= 1
    return int(index)


def note_open(transactions: array, open_ids: array, producer_id: int) -> bool:  # type: ignore[type-arg]
    """Have a producer stand among those with data since their last marker -> False where there is no room."""
    if find_open(transactions, open_ids, producer_id) >= 0:
        return True
    if transactions[2] >= len(open_ids):
        return False
    open_ids[transactions[2]] = producer_id
    transactions[2] += 1
    return True


def close_open(transactions: array, open_ids: array, producer_id: int) -> bool:  # type: ignore[type-arg]
    """Take a producer from those with data since their last marker -> whether it stood there."""
    index = find_open(transactions, open_ids, producer_id)
    if index < 0:
        return False
    transactions[2] -= 1
    open_ids[index] = open_ids[transactions[2]]
    return True


def mark_live(table: memoryview, start: int, end: int, first_offset: int, words: array) -> int:  # type: ignore[type-arg]
    """Set the bits of the offsets that stand in words [start, end) of a map's table -> how many.

    Bit 0 of words[0] is `first_offset`; what lies before or behind the words is left out.
    """
    marked = 0
    bits = 64 * len(words)
    start += 2
    while start < end:
        bit = table[start]
        bit -= first_offset + 1
        if 0 <= bit < bits:
            one = 1
            words[bit >> 6] |= one << (bit & 63)
            marked += 1
        start += 3
    return marked


def any_live(words: array, first: int, last: int) -> bool:  # type: ignore[type-arg]
    """Whether one of the bits [first, last] is set, which must lie within the words."""
    mask = words[first >> 6] >> (first & 63)
    word = first >> 6
    end = last >> 6
    while word < end:
        if mask:
            return True
        word += 1
        mask = words[word]
        first = 64 * word
    # The last word: the bits up to `last`.
    left = last - first
    if left < 63:
        one = 2
        mask &= (one << left) - 1
    return bool(mask)


def pass_dead(
    buffer: Buffer,
    position: int,
    limit: int,
    file_limit: int,
    first_mapped: int,
    stop_offset: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    transactions: array,  # type: ignore[type-arg]
    aborted: array,  # type: ignore[type-arg]
    open_ids: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Pass over the batches of buffer[position:limit] that have no live record -> where it ended, maybe behind `limit`.

    The segment ends at buffer[file_limit], were it so long. Taken are batches of offsets from `first_mapped` on, below
    `stop_offset`; bit 0 of words[0] is `first_offset`.
    """
    records = 0
    bits = 64 * len(words)
    why = NEED_MORE
    while True:
        if limit - position < 61:
            break
        size = read_int32(buffer, position + 8)
        base_offset = read_int64(buffer, position)
        last_offset = base_offset + read_int32(buffer, position + 23)
        if (
            buffer[position + 16] != 2
            or size < 49
            or size > file_limit - position - 12
            or buffer[position + 22] & 32
            or base_offset < first_mapped
            or last_offset < base_offset
            or last_offset >= stop_offset
        ):
            why = OTHER
            break
        if base_offset < first_offset or last_offset - first_offset >= bits:
            why = WINDOW
            break
        if any_live(words, base_offset - first_offset, last_offset - first_offset):
            why = OTHER
            break
        if buffer[position + 22] & 16:
            producer_id = read_int64(buffer, position + 43)
            if is_aborted(transactions, aborted, producer_id, last_offset) or not note_open(
                transactions, open_ids, producer_id
            ):
                why = OTHER
                break
        records += read_int32(buffer, position + 57)
        position += 12 + size
    scratch[1] = why
    scratch[2] = records
    return position
