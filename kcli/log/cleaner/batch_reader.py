"""What strides of a cleaning round go by, batch for batch: columns for records, transactions, the offsets that are live.

    class              holds
    -----------------  ------------------------------------------------------------------------------------------------------
    StrideColumns      the columns that the records of a batch are scanned into
    OpenTransactions   of transaction_metadata what a batch is asked for: from which offset on one was aborted that
                       has not begun yet, whose aborted ones are under way, who had data since the last marker
    LiveWindow         of a window of offsets, as bits, which are the last of their keys

Live offsets are those in the map: each is the last one of its key. As bits they tell of a whole batch at once, with its records
unread, whether anything of it may stay.

This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_reader.pxd.
"""

from array import array
from collections.abc import Iterable

from kcli.format import batch_header, record_scan
from kcli.format.batch_header import read_int32
from kcli.format.primitives import INT64_MAX
from kcli.format.record_scan import Buffer, RecordColumns

# Producers that there is room for at first.
_PRODUCERS = 16
_NONE = -1


class StrideColumns:
    """The columns of a RecordColumns, for batches of up to `room` records; they hold those of the batch scanned last."""

    def __init__(self, columns: RecordColumns) -> None:
        self.room = columns.capacity
        self.offset = columns.offset
        self.timestamp = columns.timestamp
        self.key_position = columns.key_position
        self.key_size = columns.key_size
        self.value_position = columns.value_position
        self.value_size = columns.value_size
        self.header_position = columns.header_position
        self.header_count = columns.header_count
        self.position = columns.record_position
        self.scratch = array("q", bytes(16))  # where the scan ended, and why

    def scan(self, buffer: Buffer, start: int, end: int, head: "batch_header.BatchHeader", base_timestamp: int) -> bool:
        """Scan the records of the batch of a head, buffer[start:end] -> whether all that it states are there, and no more."""
        if head.record_count > self.room:
            return False
        count = record_scan.scan_into(
            buffer,
            start,
            end,
            head.base_offset,
            base_timestamp,
            head.record_count,
            self.offset,
            self.timestamp,
            self.key_position,
            self.key_size,
            self.value_position,
            self.value_size,
            self.header_position,
            self.header_count,
            self.position,
            self.scratch,
        )
        return count == head.record_count and self.scratch[1] == 0 and self.scratch[0] == end

    def scan_marker(self, buffer: Buffer, head: "batch_header.BatchHeader") -> int:
        """The marker in the one record of the control batch of a head -> 0 ABORT, 1 COMMIT, -1 where it is odd."""
        if head.codec or head.record_count != 1:
            return -1
        if not self.scan(buffer, head.records_position, head.end_position, head, head.base_timestamp):
            return -1
        if self.key_size[0] != 4 or self.value_size[0] != 6:
            return -1
        key = read_int32(buffer, self.key_position[0])
        version = buffer[self.value_position[0]]
        return key if (key == 0 or key == 1) and version < 128 else -1


class OpenTransactions:
    """`next_aborted` is the first offset of the next aborted transaction that has not begun; none has, and none is open."""

    def __init__(self) -> None:
        self.next_aborted = INT64_MAX
        self.aborted_count = 0
        self.aborted_ids = array("q", bytes(8 * _PRODUCERS))
        self.open_count = 0
        self.open_ids = array("q", bytes(8 * _PRODUCERS))

    def set_aborted(self, next_aborted: int, producer_ids: Iterable[int]) -> None:
        """The aborted transactions of these producers are under way."""
        listed = array("q", producer_ids)
        self.next_aborted = next_aborted
        self.aborted_count = len(listed)
        listed.append(_NONE)
        self.aborted_ids = listed

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Whether a batch may be of an aborted transaction: one begins up to its last offset, or its producer's goes on."""
        if last_offset >= self.next_aborted:
            return True
        index = 0
        while index < self.aborted_count:
            if self.aborted_ids[index] == producer_id:
                return True
            index += 1
        return False

    def find_open(self, producer_id: int) -> int:
        """Where a producer stands among those with data since their last marker, -1 where it does not."""
        index = self.open_count - 1
        while index >= 0 and self.open_ids[index] != producer_id:
            index -= 1
        return int(index)

    def note_open(self, producer_id: int) -> int:
        """Have a producer stand among those with data since their last marker -> 0."""
        if self.find_open(producer_id) >= 0:
            return 0
        if self.open_count == len(self.open_ids):
            listed = array("q", self.open_ids)
            listed.extend(self.open_ids)
            self.open_ids = listed
        self.open_ids[self.open_count] = producer_id
        self.open_count += 1
        return 0

    def close_open(self, producer_id: int) -> bool:
        """Take a producer from those with data since their last marker -> whether it stood there."""
        index = self.find_open(producer_id)
        if index < 0:
            return False
        self.open_count -= 1
        self.open_ids[index] = self.open_ids[self.open_count]
        return True


class LiveWindow:
    """Bits of the offsets [start_offset, end_offset); they tell of what lies in [first_mapped, end_mapped), and in the window.

    It begins with a window of no offsets.
    """

    def __init__(self, first_mapped: int, end_mapped: int) -> None:
        self.first_mapped = first_mapped
        self.end_mapped = end_mapped
        self.begin(first_mapped, 0)

    def begin(self, start_offset: int, offsets: int) -> None:
        """Be a window of at least so many offsets, none of them live."""
        self.start_offset = start_offset
        self.words = array("Q", (0,)) * max((offsets + 63) // 64, 1)
        self.end_offset = start_offset + 64 * ((offsets + 63) // 64)

    def mark(self, table: memoryview, start: int, end: int) -> int:
        """Set the bits of the offsets that stand in words [start, end) of a map's table -> how many; others are left out."""
        marked = 0
        bits = self.end_offset - self.start_offset
        words = self.words
        start += 2
        while start < end:
            bit = table[start]
            bit -= self.start_offset + 1
            if 0 <= bit < bits:
                one = 1
                words[bit >> 6] |= one << (bit & 63)
                marked += 1
            start += 3
        return marked

    def is_mapped(self, first: int, last: int) -> bool:
        """Whether live offsets tell of the offsets from `first` to `last`, though maybe not in this window."""
        return self.first_mapped <= first and last < self.end_mapped

    def holds(self, first: int, last: int) -> bool:
        """Whether the window has the offsets from `first` to `last`."""
        return self.start_offset <= first and last < self.end_offset

    def any_live(self, first_offset: int, last_offset: int) -> bool:
        """Whether one of the offsets from the first to the last is live; the window must hold them."""
        words = self.words
        first = first_offset - self.start_offset
        last = last_offset - self.start_offset
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

    def keep(
        self,
        columns: StrideColumns,
        count: int,
        keeps_tombstones: int,
        kept: bytearray,
        counts: array,  # type: ignore[type-arg]
    ) -> int:
        """Set kept[index] to 1 where a scanned record's offset is live, and it has a value or `keeps_tombstones` -> how many.

        Offsets that the window does not hold are not live. `counts` are those of the map's `keep`, without what goes.
        """
        offsets = columns.offset
        value_sizes = columns.value_size
        words = self.words
        bits = self.end_offset - self.start_offset
        stay = 0
        tombstones = 0
        index = 0
        while index < count:
            bit = offsets[index] - self.start_offset
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
