"""Which batches count: where a command counts records, it counts those of sound batches, and says how many it left out.

bytes of a `.log`                                         counted
--------------------------------------------------------  -------------------------------------------------------------
a batch whose stored CRC is that of its bytes             yes, also if its records turn out to be unreadable
a batch with a wrong CRC, or with an impossible header    no: its header cannot be trusted to say how many records it has
zeros at the end                                          no, and nothing is left out
"""

from __future__ import annotations

from kcli.inspect.quantities import format_count
from kcli.log.reading.segment_reader import BAD_MAGIC, BAD_SIZE, SHORT_HEADER, TRUNCATED, Damage, LogBatch

# The kind of a Damage that is a whole batch with a wrong CRC, for those who report it so.
BAD_CRC = "bad-crc"
_DAMAGED_BATCHES = frozenset((BAD_CRC, BAD_MAGIC, BAD_SIZE, SHORT_HEADER, TRUNCATED))


def is_left_out(found: LogBatch | Damage) -> bool:
    """Return True for a damaged batch: one that a SegmentReader gives out, or what is reported of it."""
    return found.kind in _DAMAGED_BATCHES if isinstance(found, Damage) else not found.is_valid


class LeftOutBatches:
    """The damaged batches of one file that were not counted."""

    def __init__(self) -> None:
        self.count = 0
        self._first_position = 0

    def add(self, position: int) -> None:
        """Add the damaged batch at byte `position`."""
        if not self.count:
            self._first_position = position
        self.count += 1

    def sentence(self) -> str:
        """Return a clause for stderr; there must be such a batch."""
        place = f"at byte {self._first_position}" if self.count == 1 else f"the first at byte {self._first_position}"
        return f"{format_count(self.count, 'damaged batch')} left out, {place}; kcli verify has the details"
