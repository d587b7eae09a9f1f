"""Which segments are cleaned into one: neighbours, as long as what they have fits (Kafka: Cleaner.groupSegmentsBySize).

bound                          on
-----------------------------  -----------------------------------------------------------------------------------
segment.bytes                  the bytes of their `.log` files, before the cleaning
segment.index.bytes            those of their `.index` files, and those of their `.timeindex` files
2**31 - 1                      the last offset of the next one above the group's base offset; an empty one always fits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX


class SegmentSize(NamedTuple):
    """A segment by its base offset and the bytes of its files."""

    base_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    sizes: Sequence[SegmentSize], segment_bytes: int, segment_index_bytes: int, first_uncleanable_offset: int
) -> list[list[int]]:
    """The base offsets of each group, in order."""
    groups: list[list[int]] = []
    room = SegmentSize(0, 0, 0, 0)
    for slot, size in enumerate(sizes):
        following = sizes[slot + 1].base_offset if slot + 1 < len(sizes) else first_uncleanable_offset
        left = SegmentSize(
            room.base_offset,
            room.log_bytes - size.log_bytes,
            room.index_bytes - size.index_bytes,
            room.time_index_bytes - size.time_index_bytes,
        )
        is_far = size.log_bytes > 0 and following - 1 - room.base_offset > INT32_MAX
        if not groups or min(left[1:]) < 0 or is_far:
            groups.append([])
            left = SegmentSize(
                size.base_offset,
                segment_bytes - size.log_bytes,
                segment_index_bytes - size.index_bytes,
                segment_index_bytes - size.time_index_bytes,
            )
        groups[-1].append(size.base_offset)
        room = left
    return groups
