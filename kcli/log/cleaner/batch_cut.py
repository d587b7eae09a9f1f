"""Usual batches cut down to the records that stay, many a call: check, inflate, scan, choose, copy.

Batches of which nothing stays are passed over unread where live offsets tell (kcli.log.cleaner.batch_strides.pass_dead). What
stays of the others is gathered in one buffer with a row for each batch. Only to deflate a cut batch the caller is asked.

Usual is a batch of format 2 that is data of no transaction, has sound records, and does not need a delete horizon set. What is
not is OTHER, and looked at with objects (kcli.log.cleaner.batch_filter, which has the rules): both ways leave the same bytes.

Which records stay is told by the bits of live offsets (kcli.log.cleaner.live_offsets) where they hold, else the records' keys
are looked up in the map. This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_cut.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import record_copy, record_scan
from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer, RecordColumns
from kcli.log.cleaner import batch_strides, offset_map
from kcli.log.cleaner.batch_strides import ENOUGH, NEED_MORE, OTHER

# What a cut came to, beside NEED_MORE and OTHER; a stride ends at a CUT that is to be deflated.
GONE = 5  # nothing stays
WHOLE = 6  # all of it stays
CUT = 7  # some records stay, and lie in `out`
FULL = 8  # they do not fit behind what lies in `out`

# The slots of `facts`, those of the last batch first.
WHY = 1
SIZE_BYTES = 2
LAST_OFFSET = 3
MAX_TIMESTAMP = 4  # of what stays
RECORDS = 5  # that the batch had
STAY = 6
TOMBSTONES = 7  # that stay
KEYLESS = 8  # that go, where keys were looked up
DROPPED_TOMBSTONES = 9  # the same
BASE_TIMESTAMP = 10  # of what stays
HELD = 11  # 1 where live offsets tell what stays, though maybe not in this window
CODEC = 12
RECORDS_BYTES = 13  # of what stays
# Those of a stride.
USED_BYTES = 14  # of `out` by the batches of the rows
ROWS = 15
DEAD_RECORDS = 16  # that were passed over
ALL_RECORDS = 17  # that were read
ALL_STAY = 18
ALL_TOMBSTONES = 19
ALL_KEYLESS = 20
ALL_DROPPED_TOMBSTONES = 21  # that go and were not counted when the map was built, less those that stay and were
ALL_WORK_BYTES = 22
IS_AT_STOP = 23  # 1 where the last batch reaches `stop_offset`
FACT_SLOTS = 24

# What a stride tells of each batch that is left.
ROW_SLOTS = 3  # its bytes, last offset and largest timestamp
STRIDE_ROWS = 512

HEADER_BYTES = 61
# A stride ends behind so much work; bytes of batches that are cut count for more, those that are to be deflated for most.
STRIDE_BYTES = 512 * 1024
CUT_WEIGHT = 2
DEFLATED_WEIGHT = 8


def clean_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    file_limit: int,
    passes_dead: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    now_ms: int,
    stop_offset: int,
    held_from: int,
    held_to: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    offsets: "offset_map.OffsetMap",
    columns: RecordColumns,
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    scratch: array,  # type: ignore[type-arg]
    out: memoryview,
    out_view: memoryview,
    rows: array,  # type: ignore[type-arg]
    facts: array,  # type: ignore[type-arg]
) -> int:
    """Clean usual batches from buffer[position] on -> where it ended, maybe behind `limit`; facts[WHY] says why there.

    `view` and `out_view` are memoryviews of `buffer` and `out`.

    The segment ends at buffer[file_limit], were it so long; dead batches are passed over where `passes_dead` is not 0. What is
    left lies in out[:facts[USED_BYTES]], with facts[ROWS] rows; behind that, where the stride ended at a CUT, that batch with
    its records not deflated. The others are those of `cut_batch`, and `scratch` is that of `pass_dead`.
    """
    slot = USED_BYTES
    while slot < FACT_SLOTS:
        facts[slot] = 0
        slot += 1
    dead_stop = held_to if held_to < stop_offset else stop_offset
    used = 0
    row = 0
    work_bytes = 0
    why = ENOUGH
    while work_bytes < STRIDE_BYTES and row < STRIDE_ROWS:
        if passes_dead:
            behind = batch_strides.pass_dead(
                buffer, position, limit, file_limit, held_from, dead_stop, words, first_offset, scratch
            )
            facts[16] += scratch[2]
            work_bytes += behind - position
            position = behind
            if scratch[1] != OTHER:
                why = scratch[1]
                break
        cut_batch(
            buffer, view, position, limit, crc32c, inflate, now_ms, stop_offset, held_from, held_to, words, first_offset,
            offsets, columns, kept, counts, out, out_view, used, facts,
        )  # fmt: skip
        why = facts[1]
        size = facts[2]
        if why == WHOLE and size > len(out) - used:
            why = FULL
        if why == FULL:
            why = ENOUGH if used else OTHER
            break
        if why in (NEED_MORE, OTHER):
            break
        count_cut(facts)
        is_whole = why == WHOLE
        if facts[3] >= stop_offset:
            facts[23] = 1
        if why == CUT and facts[12]:
            work_bytes += DEFLATED_WEIGHT * size
            position += size
            break
        work_bytes += size
        if is_whole:
            out[used : used + size] = buffer[position : position + size]
        position += size
        why = ENOUGH
        if facts[6] > 0:
            if not is_whole:
                work_bytes += (CUT_WEIGHT - 1) * size
                size = 61 + facts[13]
            rows[3 * row] = size
            rows[3 * row + 1] = facts[3]
            rows[3 * row + 2] = facts[4]
            row += 1
            used += size
        if facts[23]:
            break
    facts[1] = why
    facts[14] = used
    facts[15] = row
    facts[22] = work_bytes
    return position


def count_cut(facts: array) -> int:  # type: ignore[type-arg]
    """Add the counts of the last batch to those of the stride -> 0."""
    facts[17] += facts[5]
    facts[18] += facts[6]
    facts[19] += facts[7]
    if facts[11]:
        facts[21] -= facts[7]
    else:
        facts[20] += facts[8]
        facts[21] += facts[9]
    return 0


def cut_batch(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    now_ms: int,
    stop_offset: int,
    held_from: int,
    held_to: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    offsets: "offset_map.OffsetMap",
    columns: RecordColumns,
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    out: memoryview,
    out_view: memoryview,
    start: int,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """Cut the batch at buffer[position] -> facts[RECORDS_BYTES]; facts[WHY] says what came of it.

    `view` and `out_view` are those of a stride. A batch that is CUT lies in `out` from byte `start` on, with
    facts[RECORDS_BYTES] behind its header; where it has a codec its records are to be deflated yet, and its size and CRC told.

    Bits of live offsets hold from offset `held_from` up to, not with, `held_to`, where `words` have them; a batch that reaches
    `stop_offset` is OTHER where nothing of it would stay. `kept` has room for as many records as `columns`, `counts` for
    COUNT_SLOTS of the map; records that have no room are OTHER.
    """
    facts[1] = NEED_MORE
    facts[2] = 0
    if limit - position < 61:
        return 0
    size = read_int32(buffer, position + 8)
    attributes = buffer[position + 21] << 8 | buffer[position + 22]
    base_offset = read_int64(buffer, position)
    last_offset = base_offset + read_int32(buffer, position + 23)
    count = read_int32(buffer, position + 57)
    if (
        buffer[position + 16] != 2
        or size < 49
        or attributes & 0xFFB8  # LogAppendTime, transactional, control, of no meaning
        or base_offset < 0
        or base_offset > 4611686018427387904
        or last_offset < base_offset
        or count <= 0
        or count > len(kept)
    ):
        facts[1] = OTHER
        return 0
    if size > limit - position - 12:
        return 0
    facts[1] = OTHER
    end = position + 12 + size
    stored = read_int32(buffer, position + 17)
    if stored < 0:
        stored += 4294967296
    computed = crc32c(view[position + 21 : end])
    if computed != stored:
        return 0
    facts[2] = size + 12
    facts[3] = last_offset
    facts[4] = read_int64(buffer, position + 35)
    facts[5] = count
    facts[10] = read_int64(buffer, position + 27)
    facts[12] = attributes & 7
    first_held = -1
    facts[11] = 0
    if held_from <= base_offset and last_offset < held_to:
        facts[11] = 1
        if base_offset >= first_offset and last_offset - first_offset < 64 * len(words):
            first_held = first_offset
    keeps_tombstones = 1
    if attributes & 64 and facts[10] <= now_ms:
        keeps_tombstones = 0
    if attributes & 7:
        payload = inflate(attributes & 7, view[position + 61 : end])
        if payload is None:
            return 0
        done = cut_records(
            payload, 0, len(payload), base_offset, keeps_tombstones, attributes & 64, stop_offset, words, first_held, offsets,
            columns, kept, counts, out[start + 61 :], facts,
        )  # fmt: skip
    else:
        done = cut_records(
            buffer, position + 61, end, base_offset, keeps_tombstones, attributes & 64, stop_offset, words, first_held,
            offsets, columns, kept, counts, out[start + 61 :], facts,
        )  # fmt: skip
    if facts[1] != CUT:
        return 0
    facts[13] = done
    out[start : start + 61] = buffer[position : position + 61]
    put_integer(out, start + 27, 8, facts[10])
    put_integer(out, start + 35, 8, facts[4])
    put_integer(out, start + 57, 4, facts[6])
    if not attributes & 7:
        put_integer(out, start + 8, 4, 49 + done)
        computed = crc32c(out_view[start + 21 : start + 61 + done])
        put_integer(out, start + 17, 4, computed)
    return done


def put_integer(out: memoryview, position: int, size: int, value: int) -> int:
    """Write a big-endian integer of so many bytes at out[position] -> the position behind it."""
    index = position + size
    while index > position:
        index -= 1
        out[index] = value & 255
        value >>= 8
    return position + size


def cut_records(
    buffer: Buffer,
    position: int,
    limit: int,
    base_offset: int,
    keeps_tombstones: int,
    has_horizon: int,
    stop_offset: int,
    words: array,  # type: ignore[type-arg]
    first_held: int,
    offsets: "offset_map.OffsetMap",
    columns: RecordColumns,
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    out: memoryview,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """The records of `cut_batch`, buffer[position:limit]; `first_held` is the offset of bit 0 of words[0], -1 for none."""
    told = columns.offset
    timestamps = columns.timestamp
    key_sizes = columns.key_size
    value_sizes = columns.value_size
    positions = columns.record_position
    wanted = facts[5]
    base_timestamp = facts[10]
    count = record_scan.scan_into(
        buffer,
        position,
        limit,
        base_offset,
        base_timestamp,
        wanted,
        told,
        timestamps,
        columns.key_position,
        key_sizes,
        columns.value_position,
        value_sizes,
        columns.header_position,
        columns.header_count,
        positions,
        counts,
    )
    if counts[1] != 0 or count != wanted or counts[0] != limit:
        return 0
    if first_held >= 0:
        keep_live(told, value_sizes, count, words, first_held, keeps_tombstones, kept, counts)
    else:
        offset_map.keep_records(
            buffer,
            told,
            columns.key_position,
            key_sizes,
            value_sizes,
            count,
            offsets.latest_offset,
            keeps_tombstones,
            offsets.table,
            offsets.state,
            offsets.secret,
            offsets.hashes,
            offsets.rows,
            offsets.places,
            kept,
            counts,
        )
    stay = counts[0]
    facts[6] = stay
    facts[7] = counts[1]
    facts[8] = counts[2]
    facts[9] = counts[3]
    if stay == 0:
        if facts[3] < stop_offset:
            facts[1] = GONE
        return 0
    if counts[1] > 0 and not has_horizon:
        return 0  # it gets one
    if stay == count:
        facts[1] = WHOLE
        return 0
    index = 0
    while not kept[index]:
        index += 1
    first = timestamps[index]
    largest = first
    smallest = first
    while index < count:
        if kept[index]:
            if timestamps[index] > largest:
                largest = timestamps[index]
            if timestamps[index] < smallest:
                smallest = timestamps[index]
        index += 1
    # Deltas near the bounds of 64 bits are left to whoever tells of them.
    if largest > 4611686018427387904 or smallest < -4611686018427387904:
        return 0
    if len(out) < limit - position + count * 13:
        facts[1] = FULL
        return 0
    facts[1] = CUT
    facts[4] = largest
    if has_horizon or first == base_timestamp:
        return record_copy.copy_unchanged(buffer, positions, limit, count, kept, out)
    facts[10] = first
    return record_copy.copy_rebased(buffer, positions, timestamps, limit, count, kept, first, out, counts)


def keep_live(
    offsets: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    count: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    keeps_tombstones: int,
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
) -> int:
    """Set kept[index] to 1 where the record's offset is live, and it has a value or `keeps_tombstones` -> how many stay.

    `counts` are those of the map's `keep_records`, without what goes.
    """
    bits = 64 * len(words)
    stay = 0
    tombstones = 0
    index = 0
    while index < count:
        bit = offsets[index] - first_offset
        stays = 0
        if 0 <= bit < bits:
            stays = words[bit >> 6] >> (bit & 63) & 1
        if value_sizes[index] < 0:
            stays &= keeps_tombstones
            tombstones += stays
        kept[index] = stays
        stay += stays
        index += 1
    counts[0] = stay
    counts[1] = tombstones
    counts[2] = 0
    counts[3] = 0
    return stay
