"""Which offsets of a round's dirty part are live: those that its map holds, each the last one of its key.

The map tells it by key; here it is told by offset, as bits of a window of offsets, which are gathered from the map. A batch
without a bit goes unread: that is most of a log that is worth cleaning. It holds for batches of the dirty part of format 2
that are data, of no aborted transaction: all of their records were noted; and where all offsets went up. Elsewhere, and where
windows would be gathered more often than they are worth (offsets far apart), a record is looked up by its key.
"""

from __future__ import annotations

from kcli.format.record_batch import MAGIC, RecordBatch
from kcli.log.cleaner.batch_reader import LiveWindow
from kcli.log.cleaner.offset_map import OffsetMap

WINDOW_OFFSETS = 1 << 23
# So many slots of the map are gone through in a slice of gathering.
GATHERED_SLOTS = 1 << 16
# To look at a slot takes so much of the time of reading a record and looking it up.
SLOTS_OF_A_RECORD = 16


class LiveOffsets:
    """The live offsets of the part of a log from `start_offset` up to where a map ends; the map must be complete.

    Of these `window` holds some, of none at first.
    """

    def __init__(self, offsets: OffsetMap, start_offset: int) -> None:
        end_offset = offsets.latest_offset + 1 if offsets.is_in_order else start_offset
        self.window = LiveWindow(start_offset, end_offset)
        self.is_worth_it = end_offset > start_offset
        self._offsets = offsets
        self._gathered = 0
        self._is_first = True
        self._passed_records = 0

    def holds(self, header: RecordBatch) -> bool:
        """Whether the offsets of a batch's records tell what stays of it."""
        return (
            self.window.is_mapped(header.base_offset, header.last_offset)
            and header.base_offset <= header.last_offset
            and header.magic == MAGIC
            and not header.is_control
        )

    def has_none(self, first: int, last: int) -> bool:
        """Whether it is known that of the offsets from `first` to `last`, of batches that it holds for, none is live."""
        window = self.window
        return window.is_mapped(first, last) and window.holds(first, last) and not window.any_live(first, last)

    def passed(self, records: int) -> None:
        """So many records went unread thanks to the window."""
        self._passed_records += records

    def move(self, offset: int) -> bool:
        """Have the window begin at `offset`, a slice a call -> whether there is more to do; until then it must not be used.

        Where the one before was not worth it, neither is this one: `is_worth_it` says so.
        """
        slots = self._offsets.slots
        if not 0 < self._gathered < slots:
            if not self._is_first and self._passed_records * SLOTS_OF_A_RECORD < slots:
                self.is_worth_it = False
                return False
            self._is_first, self._gathered, self._passed_records = False, 0, 0
            self.window.begin(offset, min(WINDOW_OFFSETS, self.window.end_mapped - offset))
        end = min(self._gathered + GATHERED_SLOTS, slots)
        self.window.mark(self._offsets.table, 3 * self._gathered, 3 * end)
        self._gathered = end
        return end < slots
