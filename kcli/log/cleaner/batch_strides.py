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

from kcli.format import batch_header, loop_results
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import batch_reader, offset_map

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
        self.head = batch_header.BatchHeader()
        self.why = loop_results.NEED_MORE
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
    transactions: "batch_reader.OpenTransactions",
    columns: "batch_reader.StrideColumns",
    offsets: "offset_map.OffsetMap",
    stride: Stride,
) -> int:
    """Note the keys of the batches of buffer[position:limit] that stand at `start_offset` or behind -> where it ended.

    `view` is a memoryview of the same buffer. `inflate` gives None for what it does not inflate.
    """
    head = stride.head
    stride.records = 0
    stride.keyless = 0
    stride.tombstones = 0
    stride.work_bytes = 0
    stride.is_plain = True
    while True:
        stride.why = head.read(buffer, position, limit)
        if stride.why != loop_results.USUAL:
            break
        if head.end_position > limit:
            stride.why = loop_results.NEED_MORE
            break
        if stride.work_bytes >= STRIDE_BYTES:
            stride.why = loop_results.ENOUGH
            break
        stride.why = loop_results.OTHER
        if head.record_count == 0 or head.has_unknown_attributes:
            break
        is_of_transaction = head.is_transactional or head.is_control
        if is_of_transaction and transactions.is_aborted(head.producer_id, head.last_offset):
            break
        if not head.has_right_crc(view, crc32c):
            break
        if head.is_control:
            if columns.scan_marker(buffer, head) < 0:
                break
            stride.work_bytes += head.end_position - position + BATCH_WEIGHT
        elif not offsets.has_room(head.record_count):
            stride.why = loop_results.NO_ROOM
            break
        elif head.codec:
            payload = inflate(head.codec, view[head.records_position : head.end_position])
            if payload is None or not columns.scan(payload, 0, len(payload), head, head.base_timestamp):
                break
            stride.work_bytes += len(payload) + INFLATED_WEIGHT
            note_batch(payload, start_offset, columns, offsets, stride)
        else:
            if not columns.scan(buffer, head.records_position, head.end_position, head, head.base_timestamp):
                break
            stride.work_bytes += head.end_position - position + BATCH_WEIGHT
            note_batch(buffer, start_offset, columns, offsets, stride)
        if is_of_transaction:
            stride.is_plain = False
        stride.last_offset = head.last_offset
        position = head.end_position
    return position


def note_batch(
    buffer: Buffer,
    start_offset: int,
    columns: "batch_reader.StrideColumns",
    offsets: "offset_map.OffsetMap",
    stride: Stride,
) -> int:
    """Note the records of the batch of the stride's head, which were scanned in `buffer` -> 0."""
    head = stride.head
    count = head.record_count
    key_sizes = columns.key_size
    value_sizes = columns.value_size
    if columns.offset[0] < head.base_offset or columns.offset[count - 1] > head.last_offset:
        offsets.is_in_order = False
    offsets.note_columns(buffer, columns.offset, columns.key_position, key_sizes, 0, count, start_offset)
    stride.records += count
    if head.base_offset < start_offset:
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
    live: "batch_reader.LiveWindow",
    transactions: "batch_reader.OpenTransactions",
    stride: Stride,
) -> int:
    """Pass over the batches of buffer[position:limit] that have no live record -> where it ended, maybe behind `limit`.

    The segment ends at buffer[file_limit], were it so long. Taken are batches that live offsets tell of, below `stop_offset`.
    """
    head = stride.head
    stride.records = 0
    while True:
        stride.why = head.read(buffer, position, limit)
        if stride.why != loop_results.USUAL:
            break
        stride.why = loop_results.OTHER
        if (
            head.end_position > file_limit
            or head.record_count == 0
            or head.has_unknown_attributes
            or head.is_control
            or head.last_offset >= stop_offset
            or not live.is_mapped(head.base_offset, head.last_offset)
        ):
            break
        if not live.holds(head.base_offset, head.last_offset):
            stride.why = loop_results.WINDOW
            break
        if live.any_live(head.base_offset, head.last_offset):
            break
        if head.is_transactional:
            producer_id = head.producer_id
            if transactions.is_aborted(producer_id, head.last_offset):
                break
            transactions.note_open(producer_id)
        stride.records += head.record_count
        position = head.end_position
    return position
