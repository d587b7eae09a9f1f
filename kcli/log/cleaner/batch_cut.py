"""A usual batch cut down to the records that stay: check, inflate, scan, choose, copy.

Usual is a batch of format 2 with sound records, data of no aborted transaction or a marker, that need not stay for its producer
without a record. What is not is OTHER, and looked at with objects (kcli.log.cleaner.batch_filter, which has the rules): both
ways leave the same bytes.

Which records stay is told by the bits of live offsets (kcli.log.cleaner.live_offsets) where they hold, else the records' keys
are looked up in the map. This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_cut.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import record_copy, record_scan
from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import batch_strides, offset_map
from kcli.log.cleaner.batch_strides import NEED_MORE, OTHER

# What a cut came to, beside NEED_MORE and OTHER.
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
# Those of a stride (kcli.log.cleaner.cut_strides).
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
DISCARDED = 24  # markers that go
SETS_HORIZON = 25  # 1 where the last batch gets its delete horizon
FACT_SLOTS = 26


def cut_batch(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    now_ms: int,
    horizon_ms: int,
    stop_offset: int,
    held_from: int,
    held_to: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    offsets: "offset_map.OffsetMap",
    told: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    transactions: array,  # type: ignore[type-arg]
    aborted: array,  # type: ignore[type-arg]
    open_ids: array,  # type: ignore[type-arg]
    marker_ids: array,  # type: ignore[type-arg]
    out: memoryview,
    out_view: memoryview,
    start: int,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """Cut the batch at buffer[position] -> facts[RECORDS_BYTES]; facts[WHY] says what came of it.

    `view` and `out_view` are those of a stride. A batch that is CUT lies in `out` from byte `start` on, with
    facts[RECORDS_BYTES] behind its header; where it has a codec its records are to be deflated yet, and its size and CRC told.

    Bits of live offsets hold from offset `held_from` up to, not with, `held_to`, where `words` have them; a batch that reaches
    `stop_offset` is OTHER where nothing of it would stay. `told` to `positions` are the columns of a RecordColumns, `kept` has
    room for as many records, `counts` for COUNT_SLOTS of the map; records that have no room are OTHER. A delete horizon that is
    to be set is `horizon_ms`. Of transactions kcli.log.cleaner.transactions tells; `marker_ids` are producers whose last
    marker stays.
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
        or attributes & 0xFF80  # of no meaning
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
    producer_id = read_int64(buffer, position + 43)
    if attributes & 48 and batch_strides.is_aborted(transactions, aborted, producer_id, last_offset):
        return 0
    computed = crc32c(view[position + 21 : end])
    if computed != stored:
        return 0
    facts[2] = size + 12
    facts[3] = last_offset
    facts[4] = read_int64(buffer, position + 35)
    facts[5] = count
    facts[10] = read_int64(buffer, position + 27)
    facts[12] = attributes & 7
    facts[11] = 0
    if attributes & 32:
        return cut_marker(
            buffer, position, end, base_offset, attributes, now_ms, horizon_ms, stop_offset, told, timestamps, key_positions,
            key_sizes, value_positions, value_sizes, header_positions, header_counts, positions, kept, counts,
            transactions, open_ids, marker_ids, crc32c, out, out_view, start, facts,
        )  # fmt: skip
    if attributes & 16 and not batch_strides.note_open(transactions, open_ids, producer_id):
        return 0
    first_held = -1
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
            payload, 0, len(payload), base_offset, keeps_tombstones, attributes, horizon_ms, stop_offset, words, first_held,
            offsets, told, timestamps, key_positions, key_sizes, value_positions, value_sizes, header_positions,
            header_counts, positions, kept, counts, out[start + 61 :], facts,
        )  # fmt: skip
    else:
        done = cut_records(
            buffer, position + 61, end, base_offset, keeps_tombstones, attributes, horizon_ms, stop_offset, words, first_held,
            offsets, told, timestamps, key_positions, key_sizes, value_positions, value_sizes, header_positions,
            header_counts, positions, kept, counts, out[start + 61 :], facts,
        )  # fmt: skip
    if facts[1] != CUT:
        return 0
    return write_cut(buffer, position, attributes, done, crc32c, out, out_view, start, facts)


def write_cut(
    buffer: Buffer,
    position: int,
    attributes: int,
    done: int,
    crc32c: Callable[..., int],
    out: memoryview,
    out_view: memoryview,
    start: int,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """Write the header of a batch that is CUT before its `done` bytes of records -> these."""
    facts[13] = done
    out[start : start + 61] = buffer[position : position + 61]
    if facts[25]:
        out[start + 22] = attributes & 255 | 64
    put_integer(out, start + 27, 8, facts[10])
    put_integer(out, start + 35, 8, facts[4])
    put_integer(out, start + 57, 4, facts[6])
    if not attributes & 7:
        put_integer(out, start + 8, 4, 49 + done)
        computed = crc32c(out_view[start + 21 : start + 61 + done])
        put_integer(out, start + 17, 4, computed)
    return done


def cut_marker(
    buffer: Buffer,
    position: int,
    end: int,
    base_offset: int,
    attributes: int,
    now_ms: int,
    horizon_ms: int,
    stop_offset: int,
    told: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    transactions: array,  # type: ignore[type-arg]
    open_ids: array,  # type: ignore[type-arg]
    marker_ids: array,  # type: ignore[type-arg]
    crc32c: Callable[..., int],
    out: memoryview,
    out_view: memoryview,
    start: int,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """The `cut_batch` of a marker of no aborted transaction, buffer[position:end]."""
    if attributes & 7 or facts[5] != 1:
        return 0
    marker = batch_strides.scan_marker(
        buffer, position + 61, end, base_offset, facts[10], told, timestamps, key_positions,
        key_sizes, value_positions, value_sizes, header_positions, header_counts,
        positions, counts,
    )  # fmt: skip
    if marker < 0:
        return 0
    facts[7] = 0
    facts[8] = 0
    facts[9] = 0
    if end - position + 13 > len(out) - start:
        facts[1] = FULL
        return 0
    producer_id = read_int64(buffer, position + 43)
    if marker == 1 and batch_strides.close_open(transactions, open_ids, producer_id):
        facts[1] = WHOLE
        facts[6] = 1
        return 0
    # No data of its transaction was read before it.
    if attributes & 64:
        if facts[10] > now_ms:
            facts[1] = WHOLE
            facts[6] = 1
            return 0
        index = 0
        while index < len(marker_ids) and marker_ids[index] != producer_id:
            index += 1
        if index == len(marker_ids) and facts[3] < stop_offset:
            facts[1] = GONE
            facts[5] = 0
            facts[6] = 0
            facts[24] += 1
        return 0
    facts[6] = 1
    kept[0] = 1
    done = rebase(
        buffer, end, 1, attributes, 1, horizon_ms, timestamps, positions, kept, out[start + 61 :], counts,
        facts,
    )  # fmt: skip
    if facts[1] != CUT:
        return 0
    return write_cut(buffer, position, attributes, done, crc32c, out, out_view, start, facts)


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
    attributes: int,
    horizon_ms: int,
    stop_offset: int,
    words: array,  # type: ignore[type-arg]
    first_held: int,
    offsets: "offset_map.OffsetMap",
    told: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_positions: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    header_positions: array,  # type: ignore[type-arg]
    header_counts: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    out: memoryview,
    facts: array,  # type: ignore[type-arg]
) -> int:
    """The records of `cut_batch`, buffer[position:limit]; `first_held` is the offset of bit 0 of words[0], -1 for none."""
    wanted = facts[5]
    count = record_scan.scan_into(
        buffer,
        position,
        limit,
        base_offset,
        facts[10],
        wanted,
        told,
        timestamps,
        key_positions,
        key_sizes,
        value_positions,
        value_sizes,
        header_positions,
        header_counts,
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
            key_positions,
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
    sets_horizon = 0
    if counts[1] > 0 and not attributes & 64:
        sets_horizon = 1
    if stay == count and not sets_horizon:
        facts[1] = WHOLE
        return 0
    return rebase(buffer, limit, count, attributes, sets_horizon, horizon_ms, timestamps, positions, kept, out, counts, facts)


def rebase(
    buffer: Buffer,
    limit: int,
    count: int,
    attributes: int,
    sets_horizon: int,
    horizon_ms: int,
    timestamps: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    kept: bytearray,
    out: memoryview,
    counts: array,  # type: ignore[type-arg]
    facts: array,  # type: ignore[type-arg]
) -> int:
    """Copy the kept ones of `count` records, up to buffer[limit], to `out` -> their bytes; facts[WHY] is CUT where that went.

    Timestamps count from the delete horizon, where there is one, else from the time of the first one that stays.
    """
    index = 0
    if attributes & 8:
        while index < count:
            timestamps[index] = facts[4]
            index += 1
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
    base_timestamp = facts[10]
    if sets_horizon:
        first = horizon_ms
    elif attributes & 64:
        first = base_timestamp
    # Deltas near the bounds of 64 bits are left to whoever tells of them.
    facts[1] = OTHER
    if largest > 2305843009213693952 or smallest < -2305843009213693952:
        return 0
    if first > 2305843009213693952 or first < -2305843009213693952:
        return 0
    if len(out) < limit - positions[0] + count * 13:
        facts[1] = FULL
        return 0
    facts[1] = CUT
    facts[4] = largest
    facts[10] = first
    facts[25] = sets_horizon
    if first == base_timestamp and not attributes & 8:
        return record_copy.copy_unchanged(buffer, positions, limit, count, kept, out)
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
