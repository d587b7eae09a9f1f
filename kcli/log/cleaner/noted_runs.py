"""Where the runs of batches lie that the first half of a round has noted: what of them is dead need not be read again.

    of each run   bytes
    ------------  -----------------------------------------------------------------------
    segment       8: its base offset
    start, end    8 each: bytes of the file
    offsets       8 each: the base offset of its first batch, the last one of its last
    records       8

A run is what a stride of kcli.log.cleaner.batch_strides has noted, half a megabyte or so, so that 100 GB take 10 MB. Runs are
added, and asked for, in the order of the log.
"""

from __future__ import annotations

from array import array

_SLOTS = 6
_SEGMENT, _START, _END, _FIRST_OFFSET, _LAST_OFFSET, _RECORDS = range(_SLOTS)


class NotedRuns:
    """See the head of this module; `seek` moves to the run that others are asked about."""

    def __init__(self) -> None:
        self._runs = array("q")
        self._at = 0

    def add(self, segment: int, start: int, end: int, first_offset: int, last_offset: int, records: int) -> None:
        """Bytes [start, end) of a segment are data of no transaction and in order, and all of their records are noted."""
        self._runs.extend((segment, start, end, first_offset, last_offset, records))

    def seek(self, segment: int, position: int) -> int | None:
        """Move to the run that begins at a byte of a segment, or behind it -> where it begins, None for none there."""
        runs, at = self._runs, self._at
        while at < len(runs) and (runs[at], runs[at + _START]) < (segment, position):
            at += _SLOTS
        self._at = at
        return runs[at + _START] if at < len(runs) and runs[at] == segment else None

    @property
    def end(self) -> int:
        """The byte behind the run."""
        return self._runs[self._at + _END]

    @property
    def offsets(self) -> tuple[int, int]:
        """Its first and last offset."""
        return self._runs[self._at + _FIRST_OFFSET], self._runs[self._at + _LAST_OFFSET]

    @property
    def records(self) -> int:
        """How many records it has."""
        return self._runs[self._at + _RECORDS]
