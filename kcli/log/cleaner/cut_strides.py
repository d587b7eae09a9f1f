"""Strides of a cleaning round's second half: many usual batches a call, the dead ones passed over, the others cut.

Batches of which nothing stays are passed over unread where live offsets tell (kcli.log.cleaner.batch_strides.pass_dead). What
stays of the others (kcli.log.cleaner.batch_cut) is gathered in one buffer, with a row for each batch. Only to deflate a cut
batch the caller is asked.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in cut_strides.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format.record_scan import Buffer, RecordColumns
from kcli.log.cleaner import batch_cut, batch_strides, offset_map
from kcli.log.cleaner.batch_cut import CUT, FACT_SLOTS, FULL, USED_BYTES, WHOLE
from kcli.log.cleaner.batch_strides import BATCH_WEIGHT, ENOUGH, INFLATED_WEIGHT, NEED_MORE, OTHER

# What a stride tells of each batch that is left.
ROW_SLOTS = 3  # its bytes, last offset and largest timestamp
STRIDE_ROWS = 512

# A stride ends behind so much work: in bytes, those of batches that are cut count twice, and what a batch costs however small.
STRIDE_BYTES = 512 * 1024
CUT_WEIGHT = 2
# To deflate a batch takes the time of so many bytes, and of each of its bytes so many times as long.
DEFLATED_BATCH_WEIGHT = 16_000
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
    horizon_ms: int,
    stop_offset: int,
    held_from: int,
    held_to: int,
    words: array,  # type: ignore[type-arg]
    first_offset: int,
    offsets: "offset_map.OffsetMap",
    columns: RecordColumns,
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
    transactions: array,  # type: ignore[type-arg]
    aborted: array,  # type: ignore[type-arg]
    open_ids: array,  # type: ignore[type-arg]
    marker_ids: array,  # type: ignore[type-arg]
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
    told = columns.offset
    timestamps = columns.timestamp
    key_positions = columns.key_position
    key_sizes = columns.key_size
    value_positions = columns.value_position
    value_sizes = columns.value_size
    header_positions = columns.header_position
    header_counts = columns.header_count
    positions = columns.record_position
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
                buffer, position, limit, file_limit, held_from, dead_stop, words, first_offset, transactions, aborted, open_ids,
                scratch,
            )  # fmt: skip
            facts[16] += scratch[2]
            work_bytes += behind - position
            position = behind
            if scratch[1] != OTHER:
                why = scratch[1]
                break
        batch_cut.cut_batch(
            buffer, view, position, limit, crc32c, inflate, now_ms, horizon_ms, stop_offset, held_from, held_to, words,
            first_offset, offsets, told, timestamps, key_positions, key_sizes, value_positions, value_sizes,
            header_positions, header_counts, positions, kept, counts, transactions, aborted, open_ids, marker_ids, out,
            out_view, used,
            facts,
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
            work_bytes += DEFLATED_WEIGHT * size + DEFLATED_BATCH_WEIGHT
            position += size
            break
        work_bytes += size + (INFLATED_WEIGHT if facts[12] else BATCH_WEIGHT)
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
