"""Sound batches: a command that counts records counts those of sound batches, and reports how many batches it left out.

bytes of a `.log`                                         counted
--------------------------------------------------------  -------------------------------------------------------------
a batch whose stored CRC is that of its bytes             yes, also if its records cannot be read
a batch with a wrong CRC, or with an impossible header    no: the number of records in its header cannot be trusted
the last batch, if the indexes contradict its offsets     no: its offsets are not known
zeros at the end                                          no, and nothing is left out
"""

from __future__ import annotations

from kcli.inspect.quantities import format_count
from kcli.log.reading.segment_reader import BAD_MAGIC, BAD_SIZE, SHORT_HEADER, TRUNCATED, Damage, LogBatch
from kcli.selecting.selected_log import BAD_CRC, BAD_OFFSETS

_DAMAGED_BATCHES = frozenset((BAD_CRC, BAD_OFFSETS, BAD_MAGIC, BAD_SIZE, SHORT_HEADER, TRUNCATED))


def is_left_out(found: LogBatch | Damage) -> bool:
    """Return True for a damaged batch, which a SegmentReader returns as a batch or as damage."""
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
        """Return a clause for stderr; at least one batch must have been added."""
        place = f"at byte {self._first_position}" if self.count == 1 else f"the first at byte {self._first_position}"
        return f"{format_count(self.count, 'damaged batch')} left out, {place}; kcli verify has the details"
