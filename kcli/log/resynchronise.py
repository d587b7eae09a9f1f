"""Finding the next sound batch behind damage, in bounded time.

A candidate is a place where a header of format 2 (with `legacy`: a message of format 0 or 1) could begin: a regular
expression finds them at some 100 MB/s. A candidate whose fields are plausible and whose CRC is right is a batch. A search
costs what lies between the damage and the next sound batch: pieces grow as it goes on, holes of sparse files are passed over,
and bytes that were read in vain, because a length lied, count against a budget of the whole file (SearchBudget).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import error as StructError
from typing import TYPE_CHECKING

from kcli.format import limits
from kcli.format.primitives import FormatError, crc32c
from kcli.format.record_batch import (
    CRC_START,
    ENTRY_HEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    RecordBatch,
)
from kcli.log.disk import DiskFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch


def streamed_crc(file: DiskFile, header: RecordBatch | LegacyBatch) -> int | None:
    """The CRC of a batch that is too large to hold, or None where the file has shrunk."""
    function: Callable[..., int] = crc32c
    skip = CRC_START
    if not isinstance(header, RecordBatch):
        from zlib import crc32

        function, skip = crc32, MAGIC_POSITION
    position, end = header.position + skip, header.position + header.size_bytes
    buffer = memoryview(bytearray(limits.READ_CHUNK_BYTES))
    crc = 0
    while position < end:
        count = file.read_into(position, buffer[: min(len(buffer), end - position)])
        if count == 0:
            return None
        crc = function(buffer[:count], crc)
        position += count
    return crc


# A header of magic 2 seen from its magic byte on: crc, attributes below 0x80, counts and times that are not absurd.
_MAGIC_2 = re.compile(rb"\x02(?=.{4}\x00[\x00-\x7f][\x00-\x7f])", re.DOTALL)
# A message of format 0 or 1 seen from its offset on: offset and size not negative, size not below 14, known attributes.
_MAGIC_0_1 = re.compile(rb"[\x00-\x7f](?=.{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f].{7}[\x00\x01][\x00-\x0f])", re.DOTALL)
# How many bytes of a file may be read in vain, as a multiple of its size, and at least.
VAIN_FACTOR = 4
VAIN_BYTES = 1024 * 1024 * 1024
_FIRST_SEARCH_BYTES = 4 * 1024


class SearchBudget:
    """How many bytes of one file, `size` bytes large, may still be read in vain; without it lies could cost its square."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = max(VAIN_BYTES, VAIN_FACTOR * size)

    def take(self, count: int) -> bool:
        """Spend `count` bytes -> True, or False where there are not so many left."""
        if count > self.left:
            return False
        self.left -= count
        return True


def find_batch(
    file: DiskFile, position: int, end: int, *, legacy: bool = False, budget: SearchBudget | None = None
) -> int | None:
    """The first sound batch (size, magic and CRC) that begins at or behind byte `position` -> its position, or None.

    With `legacy` messages of format 0 and 1 count too. A candidate whose CRC the budget (None: a new one) does not pay for is
    passed over.
    """
    budget = budget or SearchBudget(end - position)
    overlap, wanted = HEADER_BYTES, _FIRST_SEARCH_BYTES
    while position < end - MIN_ENTRY_SIZE:
        chunk = file.read_at(position, min(wanted, end - position))
        if len(chunk) < ENTRY_HEAD_BYTES:
            return None
        behind = position + len(chunk)
        if chunk.count(0) == len(chunk):
            behind = max(behind, file.next_data(behind))
        else:
            for start in _candidates(chunk, legacy):
                size = int.from_bytes(chunk[start + 8 : start + 12], "big", signed=True)
                if not MIN_ENTRY_SIZE <= size <= end - position - start - LOG_OVERHEAD_BYTES or not budget.take(size):
                    continue
                if _is_sound(file, position + start):
                    budget.left += size
                    return position + start
        if behind >= end:
            return None
        position = max(behind - overlap, position + 1)
        wanted = min(2 * wanted, limits.READ_CHUNK_BYTES)
    return None


def zeros_follow(file: DiskFile, position: int, end: int) -> bool:
    """True where bytes [position, end) are zeros, as far as the file reaches; holes are not read."""
    wanted = _FIRST_SEARCH_BYTES
    while (position := file.next_data(position)) < end:
        chunk = file.read_at(position, min(wanted, end - position))
        if chunk.count(0) != len(chunk):
            return False
        if not chunk:
            return True
        position += len(chunk)
        wanted = min(2 * wanted, limits.READ_CHUNK_BYTES)
    return True


def _candidates(chunk: bytes, legacy: bool) -> list[int]:
    found = [match.start() - MAGIC_POSITION for match in _MAGIC_2.finditer(chunk, MAGIC_POSITION)]
    if legacy:
        found = sorted({*found, *(match.start() for match in _MAGIC_0_1.finditer(chunk))})
    return found


def _is_sound(file: DiskFile, position: int) -> bool:
    head = file.read_at(position, HEADER_BYTES)
    header: RecordBatch | LegacyBatch
    try:
        if head[MAGIC_POSITION] == 2:
            header = RecordBatch(position, *HEADER.struct.unpack_from(head))
            plausible = (
                header.base_offset >= 0
                and header.batch_length >= HEADER_BYTES - LOG_OVERHEAD_BYTES
                and header.last_offset_delta >= 0
                and header.record_count >= 0
                and header.max_timestamp >= -1
            )
        else:
            from kcli.format.legacy_message_set import read_legacy_header

            header = read_legacy_header(head, 0, position)
            plausible = header.base_offset >= 0
    except (IndexError, StructError, FormatError):
        return False
    return plausible and streamed_crc(file, header) == header.crc
