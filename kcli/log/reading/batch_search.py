"""Recognise a batch by its bytes alone, and search a range of a damaged file for the next batch, in bounded time.

A candidate is a position where a header of format 2 (with `legacy`: a message of format 0 or 1) could begin, found by a regular
expression at about 100 MB/s; it is a batch if its fields are plausible and its CRC is correct. A search doubles the size of its
reads and skips holes of sparse files. Bytes read because of a wrong length count against a budget of the file (SearchBudget).
kcli.log.reading.resynchronise decides whether a batch found here belongs to the log or is the payload of a record.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from struct import error as StructError
from typing import TYPE_CHECKING

from kcli.format import limits
from kcli.format.primitives import FormatError, crc32c, read_varint, read_varlong
from kcli.format.record_batch import (
    CRC_START,
    ENTRY_HEAD_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    RecordBatch,
    entry_size,
    read_entry_header,
    read_header,
)
from kcli.log.disk.port import DiskFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch


_LAST_OFFSET_END = 27  # the end of the last offset delta in a header
# A record's length, attributes, two deltas, two lengths and header count, one byte each.
LEAST_RECORD_BYTES = 6
RECORD_PROBE_BYTES = 16
_RECORD_WINDOW_BYTES = 32 * 1024
# The length, the attributes, the timestamp delta and the offset delta of a record, at most.
_RECORD_HEAD_BYTES = 5 + 1 + 10 + 5


def streamed_crc(file: DiskFile, header: RecordBatch | LegacyBatch) -> int | None:
    """Compute the CRC of a batch that is too large to hold in memory; None if the file has shrunk."""
    function: Callable[..., int] = crc32c
    skip = CRC_START
    if not isinstance(header, RecordBatch):
        from zlib import crc32

        function, skip = crc32, MAGIC_POSITION
    position, end = header.position + skip, header.position + header.size_bytes
    buffer = memoryview(bytearray(max(0, min(end - position, limits.READ_CHUNK_BYTES))))
    crc = 0
    while position < end:
        count = file.read_into(position, buffer[: min(len(buffer), end - position)])
        if count == 0:
            return None
        crc = function(buffer[:count], crc)
        position += count
    return crc


# A header of magic 2 from its magic byte on: CRC, attributes below 0x80, a last offset delta that is not negative.
_MAGIC_2 = re.compile(rb"\x02(?=.{4}\x00[\x00-\x7f][\x00-\x7f])", re.DOTALL)
# A magic of 2 behind a base offset below 2^56, a length below 128 MiB and any leader epoch.
_SIZED = re.compile(rb"\x02(?<=\x00.{7}[\x00-\x07].{7}\x02)", re.DOTALL)
# A message of format 0 or 1 from its offset on: offset and size not negative, size at least 14, known attributes.
_MAGIC_0_1 = re.compile(rb"[\x00-\x7f](?=.{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f].{7}[\x00\x01][\x00-\x0f])", re.DOTALL)
# The largest valid values: attribute bits 0 to 6 (0 to 3 in formats 0 and 1), codec 4 (zstd).
MAX_ATTRIBUTES = 0x7F
MAX_LEGACY_ATTRIBUTES = 0x0F
MAX_CODEC = 4
# How many bytes of a file may be read because of wrong lengths: a multiple of its size, and at least a constant.
BUDGET_FACTOR = 32
MIN_BUDGET_BYTES = 1024 * 1024 * 1024
_FIRST_SEARCH_BYTES = 4 * 1024


class SearchBudget:
    """How many bytes of a file of `size` bytes may still be read because of wrong lengths; without it the cost is quadratic."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = max(MIN_BUDGET_BYTES, BUDGET_FACTOR * size)

    def take(self, count: int) -> bool:
        """Spend `count` bytes; return False if fewer are left."""
        if count > self.left:
            return False
        self.left -= count
        return True


def find_batch(
    file: DiskFile, position: int, end: int, *, legacy: bool = False, budget: SearchBudget | None = None
) -> int | None:
    """Return the position of the first sound batch (size, magic and CRC) at or after byte `position`, or None.

    With `legacy` messages of formats 0 and 1 count too. A candidate larger than the remaining budget (None: a new budget) is
    skipped.
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
            for start in candidates(chunk, legacy):
                size = entry_size(chunk, start) - LOG_OVERHEAD_BYTES
                if not MIN_ENTRY_SIZE <= size <= end - position - start - LOG_OVERHEAD_BYTES or not budget.take(size):
                    continue
                if is_sound(file, position + start):
                    budget.left += size
                    return position + start
        if behind >= end:
            return None
        position = max(behind - overlap, position + 1)
        wanted = min(2 * wanted, limits.READ_CHUNK_BYTES)
    return None


def candidates(chunk: bytes, legacy: bool) -> Iterator[int]:
    """Yield the positions in `chunk` where a header could begin, ascending."""
    found = (match.start() - MAGIC_POSITION for match in _MAGIC_2.finditer(chunk, MAGIC_POSITION))
    if legacy:
        return iter(sorted({*found, *(match.start() for match in _MAGIC_0_1.finditer(chunk))}))
    return found


def header_at(file: DiskFile, position: int) -> RecordBatch | LegacyBatch | None:
    """Return the header of format 0, 1 or 2 at a byte, with any values; None if there are too few bytes for a header."""
    head = file.read_at(position, HEADER_BYTES)
    try:
        return read_entry_header(head, 0, position)
    except (IndexError, StructError, FormatError):
        return None


def can_be_header(header: RecordBatch | LegacyBatch) -> bool:
    """Return True if every field but the length has a value that Kafka writes."""
    if header.base_offset < 0 or header.codec > MAX_CODEC:
        return False
    if not isinstance(header, RecordBatch):
        return header.magic in (0, 1) and 0 <= header.attributes <= MAX_LEGACY_ATTRIBUTES
    return (
        header.magic == MAGIC
        and 0 <= header.attributes <= MAX_ATTRIBUTES
        and header.last_offset_delta >= 0
        and 0 <= header.record_count <= header.last_offset_delta + 1
        and header.max_timestamp >= -1
        and header.producer_id >= -1
    )


def plausible_header(file: DiskFile, position: int) -> RecordBatch | None:
    """Return the header of format 2 at a byte if every field but the length has a value that Kafka writes, else None."""
    header = header_at(file, position)
    return header if isinstance(header, RecordBatch) and can_be_header(header) else None


def sized_headers(file: DiskFile, start: int, end: int, budget: SearchBudget) -> Iterator[RecordBatch | None]:
    """Yield what may be headers of format 2 between two bytes by base offset, length and magic; None if the budget is spent.

    The other fields may have any value.
    """
    while start < end:
        wanted = min(limits.READ_CHUNK_BYTES, end - start) + HEADER_BYTES
        if not budget.take(wanted):
            yield None
            return
        for match in _SIZED.finditer(file.read_at(start, wanted)):
            at = start + match.start() - MAGIC_POSITION
            header = header_at(file, at) if at < end else None
            if isinstance(header, RecordBatch) and header.size_bytes >= HEADER_BYTES:
                yield header
        start += limits.READ_CHUNK_BYTES


def torn_header(file: DiskFile, position: int) -> RecordBatch | None:
    """Return the header of format 2 that the end of the file cuts off after its last offset delta, else None.

    The missing record count is taken to equal the number of offsets.
    """
    head = file.read_at(position, HEADER_BYTES)
    if not _LAST_OFFSET_END <= len(head) < HEADER_BYTES:
        return None
    header = read_header(head[:_LAST_OFFSET_END] + bytes(HEADER_BYTES - _LAST_OFFSET_END), 0, position)
    header = header._replace(record_count=header.last_offset_delta + 1)
    return header if can_be_header(header) else None


def begins_below(file: DiskFile, base_offset: int) -> bool:
    """Return True if the first batches of a .log, torn or not, are below `base_offset` of its name: the name is wrong.

    The CRC does not cover the base offset: the second batch must confirm the first, or, if there is no second batch, more than
    one bit of the offset must differ. Raises OSError.
    """
    first = header_at(file, 0)
    if first is None or not can_be_header(first) or first.base_offset >= base_offset:
        return False
    second = header_at(file, first.size_bytes) if first.size_bytes > 0 else None
    if second is None or not can_be_header(second):
        return (first.base_offset ^ base_offset).bit_count() > 1
    return second.base_offset < base_offset


def stated_next_offset(header: RecordBatch, expected: int) -> int | None:
    """Return the next offset after a damaged batch that should begin at `expected`; None if last offset and count disagree."""
    if header.base_offset != expected or header.record_count != header.last_offset_delta + 1:
        return None
    return header.next_offset


def least_size(header: RecordBatch | LegacyBatch) -> int:
    """Return the size of a batch without records; for formats 0 and 1 a lower bound."""
    return HEADER_BYTES if isinstance(header, RecordBatch) else MIN_ENTRY_SIZE + LOG_OVERHEAD_BYTES


def least_offset(header: RecordBatch | LegacyBatch) -> int:
    """Return the first offset of a batch; for formats 0 and 1, whose header has only the last offset, the last one."""
    return header.base_offset if isinstance(header, RecordBatch) else header.last_offset


def is_sound(file: DiskFile, position: int) -> bool:
    """Return True if a batch with plausible fields and a correct CRC begins at a byte."""
    header = header_at(file, position)
    if header is None or header.magic not in (0, 1, MAGIC):
        return False
    if header.size_bytes < least_size(header) or header.base_offset < 0:
        return False
    if isinstance(header, RecordBatch) and (
        header.last_offset_delta < 0 or header.record_count < 0 or header.max_timestamp < -1
    ):
        return False
    return streamed_crc(file, header) == header.crc


def records_end(file: DiskFile, header: RecordBatch, budget: SearchBudget, stated: int | None = None) -> int | None:
    """Return the byte at which the records of a batch end by their own lengths; None if the lengths are not consistent.

    There must be as many records as the header states, with ascending offset deltas up to the last one; or, if `stated` is
    given, any number of records that ends exactly at that byte. The codec in the header is ignored, since it may be wrong:
    compressed records do not look like records.
    """
    at, before, count = header.position + HEADER_BYTES, -1, 0
    start, data = at, b""  # a window of the file
    while count < header.record_count or stated is not None:
        if not budget.take(_RECORD_HEAD_BYTES):
            return None
        if at + _RECORD_HEAD_BYTES > start + len(data):
            start, data = at, file.read_at(at, _RECORD_WINDOW_BYTES)
        head, end = at - start, min(at - start + _RECORD_HEAD_BYTES, len(data))
        try:
            length, behind = read_varint(data, head, end)
            _, delta_at = read_varlong(data, behind + 1, end)
            offset_delta, _ = read_varint(data, delta_at, end)
        except FormatError:
            return None
        if length < LEAST_RECORD_BYTES or data[behind] or offset_delta <= before:
            return None
        at, before, count = start + behind + length, offset_delta, count + 1
        if stated is not None and at >= stated:
            return at if at == stated else None
        if stated is None and offset_delta > header.last_offset_delta:
            return None
    return at if count and at <= file.size() else None


class RecordWalk:
    """The records behind a header by their own lengths, from one to the next and across the headers of batches.

    `end` is where the records of the batch end, if there are as many as its header states. `stated` is the end that its header
    states, -1 if it is not to be used.
    """

    def __init__(self, file: DiskFile, position: int, stated: int, end: int | None, budget: SearchBudget) -> None:
        self.end = end
        self._file = file
        self._budget = budget
        self._start = position
        self._at = position + HEADER_BYTES
        self._stated = stated
        self._is_over = False
        self._is_record = False
        self._known: dict[int, bool] = {}

    def encloses(self, position: int, end: int) -> bool:
        """Return True if the bytes [position, end) are inside of one record, and something shows that its length is right.

        Behind it another record, a header or the end of the file is, or it ends within the batch by the stated length.
        """
        known = self._known.get(position)
        if known is None:
            while not self._is_over and self._at < position:
                self._step()
            is_inside = self._is_record and self._start < position < self._at and end <= self._at
            known = self._known[position] = is_inside and self._is_confirmed()
        return known

    def _head(self, at: int) -> int | None:
        """Return the size of the record at a byte, None if no record can be there."""
        head = self._file.read_at(at, RECORD_PROBE_BYTES)
        try:
            length, behind = read_varint(head, 0, len(head))
        except FormatError:
            return None
        if length >= LEAST_RECORD_BYTES and head[behind : behind + 1] == b"\0":  # the attributes, which Kafka does not use
            return behind + length
        return None

    def _is_header(self, at: int) -> bool:
        return self._file.read_at(at + MAGIC_POSITION, 1) == bytes((MAGIC,))

    def _is_confirmed(self) -> bool:
        size = self._file.size()
        is_stated = self._at <= self._stated and (self._stated <= size or self._at > size)
        return (
            is_stated
            or self._at == size
            or (self._at < size and (self._head(self._at) is not None or self._is_header(self._at)))
        )

    def _step(self) -> None:
        size = self._head(self._at) if self._budget.take(RECORD_PROBE_BYTES) else None
        if size is not None:
            self._start, self._at, self._is_record = self._at, self._at + size, True
        elif self._is_record and self._is_header(self._at):
            self._start, self._at, self._is_record = self._at, self._at + HEADER_BYTES, False
        else:
            self._is_over, self._is_record = True, False


class FilePieces:
    """The bytes of a file up to the last of the `ends`, read once if the ends are close to each other."""

    def __init__(self, file: DiskFile, ends: Sequence[int]) -> None:
        self._file = file
        self._end = ends[-1] if ends else 0
        self._start = 0
        self._data = memoryview(b"")

    def between(self, position: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes [position, end), or fewer at the end of the file."""
        while position < end:
            if not self._start <= position < self._start + len(self._data):
                size = min(limits.READ_CHUNK_BYTES, self._end - position)
                self._start, self._data = position, memoryview(self._file.read_at(position, size))
            piece = self._data[position - self._start : end - self._start]
            if not piece:
                return
            yield piece
            position += len(piece)


class SoundBatches:
    """A cache of find_batch for one end of a file: a range between two sound batches is searched once."""

    def __init__(self, file: DiskFile, end: int, budget: SearchBudget, *, legacy: bool) -> None:
        self._file = file
        self._end = end
        self._budget = budget
        self._legacy = legacy
        # Ascending and disjoint: for any byte in [starts[i], found[i]] the next sound batch begins at byte found[i].
        self._starts: list[int] = []
        self._found: list[int] = []
        self._ends: list[int] = []

    def first(self, position: int) -> tuple[int, int] | None:
        """Return bytes [start, end) of the first sound batch at or after byte `position`, or None."""
        if position >= self._end:
            return None
        slot = bisect_left(self._found, position)
        if slot == len(self._found) or self._starts[slot] > position:
            found = find_batch(self._file, position, self._end, legacy=self._legacy, budget=self._budget)
            place = self._end if found is None else found
            if slot < len(self._found) and self._found[slot] <= place:
                self._starts[slot] = position
            else:
                header = header_at(self._file, place)
                self._starts.insert(slot, position)
                self._found.insert(slot, place)
                self._ends.insert(slot, place + 1 if header is None else place + header.size_bytes)
        return (self._found[slot], self._ends[slot]) if self._found[slot] < self._end else None
