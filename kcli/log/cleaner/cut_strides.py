"""Strides of a cleaning round's second half: many usual batches a call, the dead ones passed over, the others cut.

Batches of which nothing stays are passed over unread where live offsets tell (kcli.log.cleaner.batch_strides.pass_dead). What
stays of the others (kcli.log.cleaner.batch_filter) is gathered in one buffer, with a row for each batch. Only to deflate a cut
batch the caller is asked.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in cut_strides.pxd.
"""

from array import array

from kcli.format import loop_results, structs
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import batch_filter, batch_strides
from kcli.log.cleaner.batch_strides import BATCH_WEIGHT, INFLATED_WEIGHT

# What a stride tells of each batch that is left.
ROW_SLOTS = 3  # its bytes, last offset and largest timestamp
STRIDE_ROWS = 512

# A stride ends behind so much work: in bytes, those of batches that are cut count twice, and what a batch costs however small.
STRIDE_BYTES = 512 * 1024
CUT_WEIGHT = 2
# To deflate a batch takes the time of so many bytes, and of each of its bytes so many times as long.
DEFLATED_BATCH_WEIGHT = 16_000
DEFLATED_WEIGHT = 8


class CutStride:
    """What the last stride came to: `why` it ended, and what it has left in out[:used_bytes], with `row_count` rows.

    `dead_records` were passed over, `records` read; of these `stay`, with `tombstones`, `keyless` went, and markers were
    `discarded`. `dropped_tombstones` go and were not counted when the map was built, less those that stay and were.
    `is_at_stop` where the last batch reaches the cutter's stop offset.
    """

    def __init__(self) -> None:
        self.passed = batch_strides.Stride()
        self.rows = array("q", bytes(8 * ROW_SLOTS * STRIDE_ROWS))
        self._row_words = self.rows
        self.begin()

    def begin(self) -> int:
        """Nothing was met yet -> 0."""
        self.why = loop_results.ENOUGH
        self.used_bytes = 0
        self.row_count = 0
        self.dead_records = 0
        self.records = 0
        self.stay = 0
        self.tombstones = 0
        self.keyless = 0
        self.dropped_tombstones = 0
        self.discarded = 0
        self.work_bytes = 0
        self.is_at_stop = False
        return 0

    def count(self, cutter: "batch_filter.BatchCutter") -> int:
        """Add the counts of the last batch to those of the stride -> 0."""
        self.records += cutter.records
        self.stay += cutter.stay
        self.tombstones += cutter.tombstones
        self.discarded += cutter.is_discarded
        if cutter.is_mapped:
            self.dropped_tombstones -= cutter.tombstones
        else:
            self.keyless += cutter.keyless
            self.dropped_tombstones += cutter.dropped_tombstones
        if cutter.head.last_offset >= cutter.stop_offset:
            self.is_at_stop = True
        return 0

    def add_row(self, size_bytes: int, last_offset: int, max_timestamp: int) -> int:
        """So many bytes more of `out` are of a batch that is left -> 0."""
        at = ROW_SLOTS * self.row_count
        self._row_words[at] = size_bytes
        self._row_words[at + 1] = last_offset
        self._row_words[at + 2] = max_timestamp
        self.row_count += 1
        self.used_bytes += size_bytes
        return 0


def clean_batches(
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    file_limit: int,
    passes_dead: int,
    cutter: "batch_filter.BatchCutter",
    stride: CutStride,
) -> int:
    """Clean usual batches from buffer[position] on -> where it ended, maybe behind `limit`; `stride` says why there.

    `view` is a memoryview of `buffer`. The segment ends at buffer[file_limit], were it so long; dead batches are passed over
    where `passes_dead` is not 0. What is left lies in the cutter's `out`; behind that, where the stride ended at a CUT, that
    batch with its records not deflated.
    """
    out = cutter.out
    head = cutter.head
    passed = stride.passed
    stride.begin()
    while stride.work_bytes < STRIDE_BYTES and stride.row_count < STRIDE_ROWS:
        if passes_dead:
            behind = batch_strides.pass_dead(
                buffer, position, limit, file_limit, cutter.stop_offset, cutter.live, cutter.transactions, passed
            )
            stride.dead_records += passed.records
            stride.work_bytes += behind - position
            position = behind
            if passed.why != loop_results.OTHER:
                stride.why = passed.why
                break
        used = stride.used_bytes
        why = cutter.cut(buffer, view, position, limit, used)
        size = head.end_position - position
        if why == loop_results.WHOLE and size > len(out) - used:
            why = loop_results.FULL
        if why == loop_results.FULL:
            stride.why = loop_results.ENOUGH if used else loop_results.OTHER
            break
        if why in (loop_results.NEED_MORE, loop_results.OTHER):
            stride.why = why
            break
        stride.count(cutter)
        if why == loop_results.CUT and head.codec:
            stride.work_bytes += DEFLATED_WEIGHT * size + DEFLATED_BATCH_WEIGHT
            stride.why = loop_results.CUT
            position += size
            break
        stride.work_bytes += size + (INFLATED_WEIGHT if head.codec else BATCH_WEIGHT)
        if why == loop_results.WHOLE:
            out[used : used + size] = buffer[position : position + size]
            stride.add_row(size, head.last_offset, cutter.max_timestamp)
        elif why == loop_results.CUT:
            stride.work_bytes += (CUT_WEIGHT - 1) * size
            stride.add_row(structs.RECORD_BATCH_HEADER_BYTES + cutter.records_bytes, head.last_offset, cutter.max_timestamp)
        position += size
        if stride.is_at_stop:
            break
    return position
