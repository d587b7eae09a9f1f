"""The last N selected records of a partition, found from its end: what lies before them is never read.

a segment with a sound `.index`     stretches of about STRETCH_BYTES between entries, the last one first
a segment without                   one walk over it; of what was counted only the last N records' places are kept
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.inspect.dumping.selected_log import Selector
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.segment_reader import Damage, SegmentReader

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk
    from kcli.log.files.log_directory import Segment

STRETCH_BYTES = 1024 * 1024


class Start(NamedTuple):
    """Where a walk begins: a segment by its place in the list, a byte of it, and how many selected records to pass over."""

    segment: int
    position: int
    skip: int


def find_tail(disk: Disk, segments: Sequence[Segment], selector: Selector, wanted: int) -> Start:
    """Where the last `wanted` selected records of the segments (sorted) begin. Raises OSError as the disk does."""
    for slot in range(len(segments) - 1, -1, -1):
        with OffsetLookup(disk, segments[slot]) as lookup:
            for first, end in _stretches(lookup):
                places, total = _last_places(lookup.reader, first, end, selector, wanted)
                if total >= wanted:
                    position = places[0][0] if places else end
                    return Start(slot, position, total - wanted)
                wanted -= total
    return Start(0, 0, 0)


def _stretches(lookup: OffsetLookup) -> Iterator[tuple[int, int]]:
    """The parts [first, end) of a segment in bytes, from its end to its start; each begins with a batch."""
    end = lookup.reader.end_position()
    for first in reversed(lookup.boundaries(0, end, STRETCH_BYTES, by_headers=False)):
        yield first, end
        end = first
    yield 0, end


def _last_places(
    reader: SegmentReader, position: int, end: int, selector: Selector, wanted: int
) -> tuple[deque[tuple[int, int]], int]:
    """The last batches before `end` with at least `wanted` selected records together -> ((byte, count) of each, their sum)."""
    places: deque[tuple[int, int]] = deque()
    total = 0
    for found in reader.batches(position):
        if found.position >= end:
            break
        if isinstance(found, Damage):
            continue
        count = selector.count(found)
        if count:
            places.append((found.position, count))
            total += count
            while places and total - places[0][1] >= wanted:
                total -= places.popleft()[1]
    return places, total
