"""A usual batch cut down to the records that stay: check, inflate, scan, choose, copy.

Usual is a batch of format 2 with sound records, data of no aborted transaction or a marker, that need not stay for its producer
without a record. What is not is OTHER, and looked at with objects (general_batch_filter, which has the rules): both
ways leave the same bytes.

    a cutter goes by               which is
    -----------------------------  -----------------------------------------------------------------------------------------
    columns                        where records are scanned to; a batch with more than they hold is OTHER
    offsets, live, transactions    the round's map, its live offsets, the transactions that were met
    now_ms, horizon_ms             the round's time, and the delete horizon that it sets
    marker_ids                     the producers whose last marker stays
    stop_offset                    a batch that reaches it is OTHER where nothing of it would stay
    crc32c, inflate                inflate(codec, bytes) gives None for what it does not inflate

    and tells of the last batch    which is
    -----------------------------  -----------------------------------------------------------------------------------------
    why                            what came of it
    head                           its header
    records                        its own; none where it is a marker that goes
    max_timestamp, base_timestamp  those of what stays
    stay, tombstones               how many records stay, and how many of these are tombstones
    keyless, dropped_tombstones    how many of such go, where keys were looked up
    is_mapped                      whether live offsets tell of it, though maybe not in this window
    is_discarded                   whether it is a marker that goes
    sets_horizon                   whether it gets its delete horizon
    records_bytes                  of the records that stay in `out`; with a codec they are to be deflated yet

Which records stay is told by the bits of live offsets (retained_offsets) where they hold, else the records' keys
are looked up in the map. This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_filter.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_copy, structs
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import batch_reader, offset_map
from kcli.log.cleaner.offset_map import COUNT_SLOTS


class BatchCutter:
    """Cuts batches of a round, one after the other, into `out`; see the head of this module."""

    def __init__(
        self,
        columns: "batch_reader.StrideColumns",
        offsets: "offset_map.OffsetMap",
        live: "batch_reader.LiveWindow",
        transactions: "batch_reader.OpenTransactions",
        now_ms: int,
        horizon_ms: int,
        marker_ids: frozenset[int],
        out: memoryview,
        crc32c: Callable[..., int],
        inflate: Callable[[int, memoryview], bytes | None],
    ) -> None:
        self.columns = columns
        self.offsets = offsets
        self.live = live
        self.transactions = transactions
        self.now_ms = now_ms
        self.horizon_ms = horizon_ms
        self.marker_ids = marker_ids
        self.stop_offset = 0
        self.out = out
        self.out_view = out
        self.crc32c = crc32c
        self.inflate = inflate
        self.kept = bytearray(columns.room)
        self.counts = array("q", bytes(8 * COUNT_SLOTS))
        self.head = batch_header.BatchHeader()
        self.why = loop_results.NEED_MORE
        self.max_timestamp = 0
        self.base_timestamp = 0
        self.records = 0
        self.stay = 0
        self.tombstones = 0
        self.keyless = 0
        self.dropped_tombstones = 0
        self.is_mapped = False
        self.is_discarded = False
        self.sets_horizon = False
        self.records_bytes = 0

    def cut(self, buffer: Buffer, view: memoryview, position: int, limit: int, start: int) -> int:
        """Cut the batch at buffer[position] -> `why`; a batch that is CUT lies in `out` from byte `start` on.

        `view` is a memoryview of `buffer`, which ends at `limit`.
        """
        head = self.head
        self.why = head.read(buffer, position, limit)
        if self.why != loop_results.USUAL:
            return self.why
        if head.end_position > limit:
            self.why = loop_results.NEED_MORE
            return self.why
        self.why = loop_results.OTHER
        if head.record_count == 0 or head.has_unknown_attributes:
            return self.why
        is_of_transaction = head.is_transactional or head.is_control
        if is_of_transaction and self.transactions.is_aborted(head.producer_id, head.last_offset):
            return self.why
        if not head.has_right_crc(view, self.crc32c):
            return self.why
        self.max_timestamp = head.max_timestamp
        self.base_timestamp = head.base_timestamp
        self.records = head.record_count
        self.is_mapped = False
        self.is_discarded = False
        if head.is_control:
            self._cut_marker(buffer, start)
        elif head.codec:
            payload = self.inflate(head.codec, view[head.records_position : head.end_position])
            if payload is None:
                return self.why
            self._cut_records(payload, 0, len(payload), start)
        else:
            self._cut_records(buffer, head.records_position, head.end_position, start)
        if head.is_transactional and not head.is_control and self.why != loop_results.OTHER:
            self.transactions.note_open(head.producer_id)
        if self.why == loop_results.CUT:
            self._write_header(buffer, start)
        return self.why

    def _cut_marker(self, buffer: Buffer, start: int) -> int:
        """Cut a marker of no aborted transaction -> 0."""
        head = self.head
        marker = self.columns.scan_marker(buffer, head)
        if marker < 0:
            return 0
        self.tombstones = 0
        self.keyless = 0
        self.dropped_tombstones = 0
        self.stay = 1
        producer_id = head.producer_id
        if head.end_position - head.position + 13 > len(self.out) - start:
            self.why = loop_results.FULL
        elif marker == 1 and self.transactions.close_open(producer_id):
            self.why = loop_results.WHOLE
        # No data of its transaction was read before it.
        elif not head.has_delete_horizon:
            self.kept[0] = 1
            self._copy(buffer, head.end_position, True, start)
        elif self.base_timestamp > self.now_ms:
            self.why = loop_results.WHOLE
        elif head.last_offset < self.stop_offset and producer_id not in self.marker_ids:
            self.why = loop_results.GONE
            self.records = 0
            self.stay = 0
            self.is_discarded = True
        return 0

    def _cut_records(self, buffer: Buffer, position: int, limit: int, start: int) -> int:
        """Cut a batch of data of no aborted transaction, whose records are buffer[position:limit] -> 0."""
        head = self.head
        if not self.columns.scan(buffer, position, limit, head, self.base_timestamp):
            return 0
        self._choose(buffer, 0 if head.has_delete_horizon and self.base_timestamp <= self.now_ms else 1)
        sets_horizon = self.tombstones > 0 and not head.has_delete_horizon
        if self.stay == 0:
            if head.last_offset < self.stop_offset:
                self.why = loop_results.GONE
        elif self.stay == self.records and not sets_horizon:
            self.why = loop_results.WHOLE
        else:
            self._copy(buffer, limit, sets_horizon, start)
        return 0

    def _choose(self, buffer: Buffer, keeps_tombstones: int) -> int:
        """Set `kept` of the scanned records that stay to 1, and count them -> 0."""
        columns = self.columns
        counts = self.counts
        head = self.head
        self.is_mapped = self.live.is_mapped(head.base_offset, head.last_offset)
        if self.is_mapped and self.live.holds(head.base_offset, head.last_offset):
            self.live.keep(columns, self.records, keeps_tombstones, self.kept, counts)
        else:
            self.offsets.keep_columns(
                buffer,
                columns.offset,
                columns.key_position,
                columns.key_size,
                columns.value_size,
                self.records,
                keeps_tombstones,
                self.kept,
                counts,
            )
        self.stay = counts[0]
        self.tombstones = counts[1]
        self.keyless = counts[2]
        self.dropped_tombstones = counts[3]
        return 0

    def _copy(self, buffer: Buffer, limit: int, sets_horizon: bool, start: int) -> int:
        """Copy the kept ones of the scanned records, up to buffer[limit], behind the header's place -> 0; CUT where that went.

        Timestamps count from the delete horizon, where there is one, else from the time of the first one that stays.
        """
        timestamps = self.columns.timestamp
        positions = self.columns.position
        kept = self.kept
        count = self.records
        has_append_time = self.head.is_log_append_time
        index = 0
        if has_append_time:
            while index < count:
                timestamps[index] = self.max_timestamp
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
        if sets_horizon:
            first = self.horizon_ms
        elif self.head.has_delete_horizon:
            first = self.base_timestamp
        # Deltas near the bounds of 64 bits are left to whoever tells of them.
        if largest > 2305843009213693952 or smallest < -2305843009213693952:
            return 0
        if first > 2305843009213693952 or first < -2305843009213693952:
            return 0
        out = self.out[start + structs.RECORD_BATCH_HEADER_BYTES :]
        if len(out) < limit - positions[0] + count * 13:
            self.why = loop_results.FULL
            return 0
        if first == self.base_timestamp and not has_append_time:
            self.records_bytes = record_copy.copy_unchanged(buffer, positions, limit, count, kept, out)
        else:
            self.records_bytes = record_copy.copy_rebased(
                buffer, positions, timestamps, limit, count, kept, first, out, self.counts
            )
        self.why = loop_results.CUT
        self.max_timestamp = largest
        self.base_timestamp = first
        self.sets_horizon = sets_horizon
        return 0

    def _write_header(self, buffer: Buffer, start: int) -> int:
        """Write the header of a batch that is CUT before its records -> 0; with a codec its size and CRC are to be told yet."""
        out = self.out
        head = self.head
        records_position = start + structs.RECORD_BATCH_HEADER_BYTES
        out[start:records_position] = buffer[head.position : head.records_position]
        if self.sets_horizon:
            out[start + structs.BATCH_ATTRIBUTES_AT + 1] |= 64
        put_integer(out, start + structs.BATCH_BASE_TIMESTAMP_AT, 8, self.base_timestamp)
        put_integer(out, start + structs.BATCH_MAX_TIMESTAMP_AT, 8, self.max_timestamp)
        put_integer(out, start + structs.BATCH_RECORD_COUNT_AT, 4, self.stay)
        if not head.codec:
            end_position = records_position + self.records_bytes
            put_integer(out, start + structs.BATCH_LENGTH_AT, 4, end_position - start - structs.LOG_OVERHEAD_BYTES)
            computed = self.crc32c(self.out_view[start + structs.BATCH_ATTRIBUTES_AT : end_position])
            put_integer(out, start + structs.BATCH_CRC_AT, 4, computed)
        return 0


def put_integer(out: memoryview, position: int, size: int, value: int) -> int:
    """Write a big-endian integer of so many bytes at out[position] -> the position behind it."""
    index = position + size
    while index > position:
        index -= 1
        out[index] = value & 255
        value >>= 8
    return position + size
