"""Strides of a cleaning round over the bytes of a segment: many usual batches a call, and never an object a batch.

    stride         takes                                              ends at
    -------------  -------------------------------------------------  ------------------------------------------------------
    note_batches   batches of format 2, data and markers, but of      a batch that is not such a one, or has a wrong CRC, or
                   aborted transactions                               whose records do not add up; no room in the map
    pass_dead      data of such batches of the dirty part none of     a batch with a live record, or that is not such a one,
                   whose records is the last of its key               or may have to stay for its producer

Whatever a stride ends at, the caller looks at with objects: what is odd is told of, or cleaned, there.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_strides.pxd.
"""

from collections.abc import Callable

from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import offset_map, stride_state

# Why a stride ended.
NEED_MORE = 0  # the buffer ends, or holds no whole batch any more
OTHER = 1  # the batch is to be looked at
NO_ROOM = 2  # the records of the batch may not fit into the map
WINDOW = 3  # the batch has offsets outside of the window of live offsets
ENOUGH = 4  # others should have their turn

# A stride ends behind so many bytes that it has looked at; a batch counts for some more, one that is inflated for many.
STRIDE_BYTES = 512 * 1024
BATCH_WEIGHT = 500
INFLATED_WEIGHT = 4000


class Stride:
    """What the last stride came to: `why` it ended, and how many `records` it has gone over.

    Of `note_batches` also: how many of the records were `keyless` and `tombstones`, in batches that begin at the start offset
    or behind; the `last_offset` of the last batch, as it was where there was none; `work_bytes`, how much was looked at:
    inflated ones where that is more, and the weight of the batches; whether it `is_plain`, of no transaction.
    """

    def __init__(self) -> None:
        self.why = NEED_MORE
        self.records = 0
        self.keyless = 0
        self.tombstones = 0
        self.last_offset = 0
        self.work_bytes = 0
        self.is_plain = True


def note_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    start_offset: int,
    transactions: "stride_state.OpenTransactions",
    columns: "stride_state.StrideColumns",
    offsets: "offset_map.OffsetMap",
    stride: Stride,
) -> int:
    """Note the keys of the batches of buffer[position:limit] that stand at `start_offset` or behind -> where it ended.

    `view` is a memoryview of the same buffer. `inflate` gives None for what it does not inflate.
    """
    stride.records = 0
    stride.keyless = 0
    stride.tombstones = 0
    stride.work_bytes = 0
    stride.is_plain = True
    stride.why = NEED_MORE
    while limit - position >= 61:
        size = read_int32(buffer, position + 8)
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        base_offset = read_int64(buffer, position)
        last_offset = base_offset + read_int32(buffer, position + 23)
        if (
            buffer[position + 16] != 2
            or size < 49
            or (attributes & 48 and transactions.is_aborted(read_int64(buffer, position + 43), last_offset))
        ):
            stride.why = OTHER
            break
        if size > limit - position - 12:
            break
        if stride.work_bytes >= STRIDE_BYTES:
            stride.why = ENOUGH
            break
        end = position + 12 + size
        stored = read_int32(buffer, position + 17)
        if stored < 0:
            stored += 4294967296
        computed = crc32c(view[position + 21 : end])
        count = read_int32(buffer, position + 57)
        stride.why = OTHER
        if (
            computed != stored
            or base_offset < 0
            or base_offset > 4611686018427387904
            or last_offset < base_offset
            or count <= 0
        ):
            break
        base_timestamp = read_int64(buffer, position + 27)
        if attributes & 32:
            if attributes & 7 or count != 1:
                break
            if columns.scan_marker(buffer, position + 61, end, base_offset, base_timestamp) < 0:
                break
            stride.work_bytes += size + BATCH_WEIGHT
        else:
            if not offsets.has_room(count):
                stride.why = NO_ROOM
                break
            if attributes & 7:
                payload = inflate(attributes & 7, view[position + 61 : end])
                if payload is None or not columns.scan(payload, 0, len(payload), base_offset, base_timestamp, count):
                    break
                stride.work_bytes += len(payload) + INFLATED_WEIGHT
                note_batch(payload, base_offset, last_offset, count, start_offset, columns, offsets, stride)
            else:
                if not columns.scan(buffer, position + 61, end, base_offset, base_timestamp, count):
                    break
                stride.work_bytes += size + BATCH_WEIGHT
                note_batch(buffer, base_offset, last_offset, count, start_offset, columns, offsets, stride)
        if attributes & 48:
            stride.is_plain = False
        stride.why = NEED_MORE
        stride.last_offset = last_offset
        position = end
    return position


def note_batch(
    buffer: Buffer,
    base_offset: int,
    last_offset: int,
    count: int,
    start_offset: int,
    columns: "stride_state.StrideColumns",
    offsets: "offset_map.OffsetMap",
    stride: Stride,
) -> int:
    """Note the `count` records of a batch, which were scanned in `buffer` -> 0."""
    key_sizes = columns.key_size
    value_sizes = columns.value_size
    if columns.offset[0] < base_offset or columns.offset[count - 1] > last_offset:
        offsets.is_in_order = False
    offsets.note_columns(buffer, columns.offset, columns.key_position, key_sizes, 0, count, start_offset)
    stride.records += count
    if base_offset < start_offset:
        return 0
    keyless = 0
    tombstones = 0
    index = 0
    while index < count:
        if key_sizes[index] < 0:
            keyless += 1
        if value_sizes[index] < 0:
            tombstones += 1
        index += 1
    stride.keyless += keyless
    stride.tombstones += tombstones
    return 0


def pass_dead(
    buffer: Buffer,
    position: int,
    limit: int,
    file_limit: int,
    stop_offset: int,
    live: "stride_state.LiveWindow",
    transactions: "stride_state.OpenTransactions",
    stride: Stride,
) -> int:
    """Pass over the batches of buffer[position:limit] that have no live record -> where it ended, maybe behind `limit`.

    The segment ends at buffer[file_limit], were it so long. Taken are batches that live offsets tell of, below `stop_offset`.
    """
    stride.records = 0
    stride.why = NEED_MORE
    while limit - position >= 61:
        size = read_int32(buffer, position + 8)
        base_offset = read_int64(buffer, position)
        last_offset = base_offset + read_int32(buffer, position + 23)
        stride.why = OTHER
        if (
            buffer[position + 16] != 2
            or size < 49
            or size > file_limit - position - 12
            or buffer[position + 22] & 32
            or last_offset < base_offset
            or last_offset >= stop_offset
            or not live.is_mapped(base_offset, last_offset)
        ):
            break
        if not live.holds(base_offset, last_offset):
            stride.why = WINDOW
            break
        if live.any_live(base_offset, last_offset):
            break
        if buffer[position + 22] & 16:
            producer_id = read_int64(buffer, position + 43)
            if transactions.is_aborted(producer_id, last_offset):
                break
            transactions.note_open(producer_id)
        stride.records += read_int32(buffer, position + 57)
        position += 12 + size
        stride.why = NEED_MORE
    return position
