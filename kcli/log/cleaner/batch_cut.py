"""A usual batch cut down to the records that stay: check, inflate, scan, choose, copy.

Usual is a batch of format 2 with sound records, data of no aborted transaction or a marker, that need not stay for its producer
without a record. What is not is OTHER, and looked at with objects (kcli.log.cleaner.batch_filter, which has the rules): both
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
    size_bytes, codec, records     its own; no bytes where it is not whole, no records where it is a marker that goes
    last_offset                    its own
    max_timestamp, base_timestamp  those of what stays
    stay, tombstones               how many records stay, and how many of these are tombstones
    keyless, dropped_tombstones    how many of such go, where keys were looked up
    is_mapped                      whether live offsets tell of it, though maybe not in this window
    is_discarded                   whether it is a marker that goes
    sets_horizon                   whether it gets its delete horizon
    records_bytes                  of the records that stay in `out`; with a codec they are to be deflated yet

Which records stay is told by the bits of live offsets (kcli.log.cleaner.live_offsets) where they hold, else the records' keys
are looked up in the map. This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_cut.pxd.
"""

from array import array
from collections.abc import Callable

from kcli.format import record_copy
from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer
from kcli.log.cleaner import offset_map, stride_state
from kcli.log.cleaner.batch_strides import NEED_MORE, OTHER
from kcli.log.cleaner.offset_map import COUNT_SLOTS

# What a cut came to, beside NEED_MORE and OTHER.
GONE = 5  # nothing stays
WHOLE = 6  # all of it stays
CUT = 7  # some records stay, or their delete horizon is set, and they lie in `out`
FULL = 8  # they do not fit behind what lies in `out`


class BatchCutter:
    """Cuts batches of a round, one after the other, into `out`; see the head of this module."""

    def __init__(
        self,
        columns: "stride_state.StrideColumns",
        offsets: "offset_map.OffsetMap",
        live: "stride_state.LiveWindow",
        transactions: "stride_state.OpenTransactions",
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
        self.why = NEED_MORE
        self.codec = 0
        self.size_bytes = 0
        self.last_offset = 0
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
        self.size_bytes = 0
        self.why = NEED_MORE
        if limit - position < 61:
            return self.why
        size = read_int32(buffer, position + 8)
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        base_offset = read_int64(buffer, position)
        last_offset = base_offset + read_int32(buffer, position + 23)
        count = read_int32(buffer, position + 57)
        self.why = OTHER
        if (
            buffer[position + 16] != 2
            or size < 49
            or attributes & 0xFF80  # of no meaning
            or base_offset < 0
            or base_offset > 4611686018427387904
            or last_offset < base_offset
            or count <= 0
            or count > self.columns.room
        ):
            return self.why
        if size > limit - position - 12:
            self.why = NEED_MORE
            return self.why
        end = position + 12 + size
        stored = read_int32(buffer, position + 17)
        if stored < 0:
            stored += 4294967296
        if attributes & 48 and self.transactions.is_aborted(read_int64(buffer, position + 43), last_offset):
            return self.why
        computed = self.crc32c(view[position + 21 : end])
        if computed != stored:
            return self.why
        self.size_bytes = 12 + size
        self.last_offset = last_offset
        self.max_timestamp = read_int64(buffer, position + 35)
        self.base_timestamp = read_int64(buffer, position + 27)
        self.records = count
        self.codec = attributes & 7
        self.is_mapped = False
        self.is_discarded = False
        if attributes & 32:
            self._cut_marker(buffer, position, end, base_offset, attributes, start)
        else:
            if attributes & 16:
                self.transactions.note_open(read_int64(buffer, position + 43))
            if self.codec:
                payload = self.inflate(self.codec, view[position + 61 : end])
                if payload is None:
                    return self.why
                self._cut_records(payload, 0, len(payload), base_offset, attributes, start)
            else:
                self._cut_records(buffer, position + 61, end, base_offset, attributes, start)
        if self.why == CUT:
            self._write_header(buffer, position, attributes, start)
        return self.why

    def _cut_marker(self, buffer: Buffer, position: int, end: int, base_offset: int, attributes: int, start: int) -> int:
        """Cut a marker of no aborted transaction, buffer[position:end] -> 0."""
        if self.codec or self.records != 1:
            return 0
        marker = self.columns.scan_marker(buffer, position + 61, end, base_offset, self.base_timestamp)
        if marker < 0:
            return 0
        self.tombstones = 0
        self.keyless = 0
        self.dropped_tombstones = 0
        self.stay = 1
        producer_id = read_int64(buffer, position + 43)
        if end - position + 13 > len(self.out) - start:
            self.why = FULL
        elif marker == 1 and self.transactions.close_open(producer_id):
            self.why = WHOLE
        # No data of its transaction was read before it.
        elif not attributes & 64:
            self.kept[0] = 1
            self._copy(buffer, end, 1, attributes, 1, start)
        elif self.base_timestamp > self.now_ms:
            self.why = WHOLE
        elif self.last_offset < self.stop_offset and producer_id not in self.marker_ids:
            self.why = GONE
            self.records = 0
            self.stay = 0
            self.is_discarded = True
        return 0

    def _cut_records(self, buffer: Buffer, position: int, limit: int, base_offset: int, attributes: int, start: int) -> int:
        """Cut a batch of data of no aborted transaction, whose records are buffer[position:limit] -> 0."""
        keeps_tombstones = 1
        if attributes & 64 and self.base_timestamp <= self.now_ms:
            keeps_tombstones = 0
        if not self.columns.scan(buffer, position, limit, base_offset, self.base_timestamp, self.records):
            return 0
        self._choose(buffer, base_offset, keeps_tombstones)
        sets_horizon = 0
        if self.tombstones > 0 and not attributes & 64:
            sets_horizon = 1
        if self.stay == 0:
            if self.last_offset < self.stop_offset:
                self.why = GONE
        elif self.stay == self.records and not sets_horizon:
            self.why = WHOLE
        else:
            self._copy(buffer, limit, self.records, attributes, sets_horizon, start)
        return 0

    def _choose(self, buffer: Buffer, base_offset: int, keeps_tombstones: int) -> int:
        """Set `kept` of the scanned records that stay to 1, and count them -> 0."""
        columns = self.columns
        counts = self.counts
        self.is_mapped = self.live.is_mapped(base_offset, self.last_offset)
        if self.is_mapped and self.live.holds(base_offset, self.last_offset):
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

    def _copy(self, buffer: Buffer, limit: int, count: int, attributes: int, sets_horizon: int, start: int) -> int:
        """Copy the kept ones of `count` records, up to buffer[limit], behind the header's place -> 0; CUT where that went.

        Timestamps count from the delete horizon, where there is one, else from the time of the first one that stays.
        """
        timestamps = self.columns.timestamp
        positions = self.columns.position
        kept = self.kept
        index = 0
        if attributes & 8:
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
        elif attributes & 64:
            first = self.base_timestamp
        # Deltas near the bounds of 64 bits are left to whoever tells of them.
        if largest > 2305843009213693952 or smallest < -2305843009213693952:
            return 0
        if first > 2305843009213693952 or first < -2305843009213693952:
            return 0
        out = self.out[start + 61 :]
        if len(out) < limit - positions[0] + count * 13:
            self.why = FULL
            return 0
        if first == self.base_timestamp and not attributes & 8:
            self.records_bytes = record_copy.copy_unchanged(buffer, positions, limit, count, kept, out)
        else:
            self.records_bytes = record_copy.copy_rebased(
                buffer, positions, timestamps, limit, count, kept, first, out, self.counts
            )
        self.why = CUT
        self.max_timestamp = largest
        self.base_timestamp = first
        self.sets_horizon = sets_horizon != 0
        return 0

    def _write_header(self, buffer: Buffer, position: int, attributes: int, start: int) -> int:
        """Write the header of a batch that is CUT before its records -> 0; with a codec its size and CRC are to be told yet."""
        out = self.out
        out[start : start + 61] = buffer[position : position + 61]
        if self.sets_horizon:
            out[start + 22] = attributes & 255 | 64
        put_integer(out, start + 27, 8, self.base_timestamp)
        put_integer(out, start + 35, 8, self.max_timestamp)
        put_integer(out, start + 57, 4, self.stay)
        if not self.codec:
            put_integer(out, start + 8, 4, 49 + self.records_bytes)
            computed = self.crc32c(self.out_view[start + 21 : start + 61 + self.records_bytes])
            put_integer(out, start + 17, 4, computed)
        return 0


def put_integer(out: memoryview, position: int, size: int, value: int) -> int:
    """Write a big-endian integer of so many bytes at out[position] -> the position behind it."""
    index = position + size
    while index > position:
        index -= 1
        out[index] = value & 255
        value >>= 8
    return position + size
