"""The offsets that the offset map contains, each the last one of its key, as bits of a window of offsets.

With them a batch whose records were all superseded is skipped without being read; that is most of a log that is worth cleaning.
They are known for data batches of format 2 in the dirty part, of no aborted transaction, since all of their records were put
into the map, and only if all offsets were in order. Elsewhere, and where offsets are so far apart that gathering the bits costs
more than it saves, a record is looked up in the map by its key.

This one source runs two ways, as kcli.format.record_scan does; its C types are in retained_offsets.pxd.
"""

from __future__ import annotations

from array import array

from kcli.log.cleaner import batch_reader, offset_map

WINDOW_OFFSETS = 1 << 23
# The slots of the map that a call of `move_window` reads.
GATHERED_SLOTS = 1 << 16
# Reading a record and looking it up takes the time of reading this many slots.
SLOTS_OF_A_RECORD = 16


class RetainedOffsets:
    """The retained offsets from `dirty_offset` to the end of a complete map. The window is empty at first."""

    def __init__(self, offsets: offset_map.OffsetMap, dirty_offset: int) -> None:
        self.mapped_start = dirty_offset  # the offsets [mapped_start, mapped_end) are known, in this window or another
        self.mapped_end = offsets.latest_offset + 1 if offsets.is_in_order else dirty_offset
        self.is_useful = self.mapped_end > dirty_offset  # skipping batches saves more than moving the window costs
        self.window_start = dirty_offset  # the window has the offsets [window_start, window_end)
        self.window_end = dirty_offset
        self.words = array("Q", (0,))  # a bit for each offset of the window, the lowest of a word first
        self.skipped_records = 0  # records that were skipped thanks to this window; the batch filter counts them
        self._offsets = offsets
        self._gathered = 0  # slots that were read for this window
        self._is_first_window = True

    def move_window(self, offset: int) -> bool:
        """Begin a window at `offset`, a part a call; return whether more is to do. Until then the window must not be used.

        If the last window was not useful, there is no new one: `is_useful` is False then.
        """
        slots = self._offsets.slots
        if not 0 < self._gathered < slots:
            if not self._is_first_window and self.skipped_records * SLOTS_OF_A_RECORD < slots:
                self.is_useful = False
                return False
            self._is_first_window = False
            self._gathered = 0
            self.skipped_records = 0
            words = (min(WINDOW_OFFSETS, self.mapped_end - offset) + 63) // 64
            self.words = array("Q", (0,)) * max(words, 1)
            self.window_start = offset
            self.window_end = offset + 64 * words
        end = min(self._gathered + GATHERED_SLOTS, slots)
        self._gather(self._offsets.table, 3 * self._gathered, 3 * end)
        self._gathered = end
        return bool(end < slots)

    def _gather(self, table: memoryview, start: int, end: int) -> None:
        """Set the bits of the offsets in words [start, end) of the map's table that are in the window."""
        bits = self.window_end - self.window_start
        words = self.words
        start += 2
        while start < end:
            bit = table[start]
            bit -= self.window_start + 1
            if 0 <= bit < bits:
                one = 1
                words[bit >> 6] |= one << (bit & 63)
            start += 3

    def is_mapped(self, first: int, last: int) -> bool:
        """Return whether it is known which of the offsets from `first` to `last` are retained, perhaps in another window."""
        return self.mapped_start <= first and last < self.mapped_end

    def is_in_window(self, first: int, last: int) -> bool:
        """Return whether the window contains the offsets from `first` to `last`."""
        return self.window_start <= first and last < self.window_end

    def has_any(self, first_offset: int, last_offset: int) -> bool:
        """Return whether one of the offsets from the first to the last is retained; they must be in the window."""
        words = self.words
        first = first_offset - self.window_start
        last = last_offset - self.window_start
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
        rest = last - first
        if rest < 63:
            one = 2
            mask &= (one << rest) - 1
        return bool(mask)

    def retain(
        self, batch: batch_reader.BatchReader, count: int, keeps_tombstones: bool, retained: offset_map.RetainedRecords
    ) -> None:
        """Write which of the scanned records are retained: those in the window, without a value only if `keeps_tombstones`."""
        offsets = batch.columns.offset_view
        value_sizes = batch.columns.value_size_view
        words = self.words
        flags = retained.c_flags
        bits = self.window_end - self.window_start
        kept = 0
        tombstones = 0
        index = 0
        while index < count:
            bit = offsets[index] - self.window_start
            flag = 0
            if 0 <= bit < bits:
                flag = words[bit >> 6] >> (bit & 63) & 1
            if value_sizes[index] < 0:
                flag = flag if keeps_tombstones else 0
                tombstones += flag
            flags[index] = flag
            kept += flag
            index += 1
        retained.count = kept
        retained.tombstones = tombstones
        retained.without_key = 0
        retained.dropped_tombstones = 0
