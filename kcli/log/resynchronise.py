"""Finding where the log goes on behind an entry that is not sound, in bounded time, and without taking payload for a batch.

A record's value may be a sound batch itself (a mirror, a dead letter queue, an attacker), so a batch that is found by its
bytes alone proves nothing where it lies inside of another one. The end of an unsound entry at byte p is, in this order:

    step      the entry ends                                         what shows it
    --------  -----------------------------------------------------  ------------------------------------------------------
    proven    where its stored CRC is right: at the stated length    the CRC. It does not cover the length and the magic, so
              (the magic is wrong), at that length with one bit      a batch with a wrong length is found to be whole
              flipped, at a sound batch, at a header with the next
              offset, at the file's end
    stated    at the stated length, if a header that continues the   two lengths that agree
              offsets exactly is there, or a chain of headers leads
              on to a batch that the .index points at
    resumed   at the first sound batch that is known to belong to    an entry of the segment's .index that points at it, or a
              the log                                                chain of headers from it

A chain of headers leads on if each begins where the one before ends, with a higher offset, up to a batch that the .index
points at, to the end of the file, or to zeros that were allocated ahead. Payload that is not the end of its batch has bytes of
its record behind it, which are not a header. Where nothing shows
that the log goes on, it does not: what looks like batches there is for people to decide about. The extent that an entry
states is passed over: the rest of the file if its length reaches behind that, nothing if it cannot be a batch header.

A candidate is a place where a header of format 2 (with `legacy`: a message of format 0 or 1) could begin, found by a regular
expression at some 100 MB/s; it is a batch if its fields are plausible and its CRC is right. A search reads larger pieces as it
goes on and skips holes of sparse files. Bytes read because of a wrong length count against a budget of the file (SearchBudget).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.primitives import INT32_MAX, FormatError, crc32c
from kcli.format.record_batch import (
    CRC_START,
    ENTRY_HEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    RecordBatch,
)
from kcli.log.disk import DiskFile
from kcli.log.header_walk import PROBE_BYTES, HeaderWalk
from kcli.log.index_places import IndexPlaces

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
# What a header of formats 0 to 2 has at most: attribute bits 0 to 6 (0 to 3 in formats 0 and 1), codec 4 (zstd).
MOST_ATTRIBUTES = 0x7F
MOST_LEGACY_ATTRIBUTES = 0x0F
MOST_CODEC = 4
# How many bytes of a file may be read in vain, as a multiple of its size, and at least.
VAIN_FACTOR = 4
VAIN_BYTES = 1024 * 1024 * 1024
_FIRST_SEARCH_BYTES = 4 * 1024
# What a place that looks like a sound batch costs of the budget, however small it is.
CANDIDATE_COST_BYTES = 64 * 1024
# Up to how far before the file's end it is always tried whether a batch ends there: what Kafka takes for a batch by default.
NEAR_END_BYTES = 2 * 1024 * 1024
# How far behind its first byte a batch may end: more than the 100 MiB that Kafka takes in a request by default.
FARTHEST_END_BYTES = 128 * 1024 * 1024


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


def _header_at(file: DiskFile, position: int) -> RecordBatch | LegacyBatch | None:
    """The header of format 0, 1 or 2 at a byte, whatever it states, or None where there are too few bytes for one."""
    head = file.read_at(position, HEADER_BYTES)
    try:
        if head[MAGIC_POSITION] >= MAGIC:
            return RecordBatch(position, *HEADER.struct.unpack_from(head))
        from kcli.format.legacy_message_set import read_legacy_header

        return read_legacy_header(head, 0, position)
    except (IndexError, StructError, FormatError):
        return None


def _can_be_header(header: RecordBatch | LegacyBatch) -> bool:
    """True where every field but the length is one that Kafka writes."""
    if header.base_offset < 0 or header.codec > MOST_CODEC:
        return False
    if not isinstance(header, RecordBatch):
        return header.magic in (0, 1) and 0 <= header.attributes <= MOST_LEGACY_ATTRIBUTES
    return (
        header.magic == MAGIC
        and 0 <= header.attributes <= MOST_ATTRIBUTES
        and header.last_offset_delta >= 0
        and 0 <= header.record_count <= header.last_offset_delta + 1
        and header.max_timestamp >= -1
        and header.producer_id >= -1
    )


def plausible_header(file: DiskFile, position: int) -> RecordBatch | None:
    """The header of format 2 at a byte where every field of it but the length is one that Kafka writes, else None."""
    header = _header_at(file, position)
    return header if isinstance(header, RecordBatch) and _can_be_header(header) else None


def stated_next_offset(header: RecordBatch, expected: int) -> int | None:
    """The offset behind a damaged batch that should begin at `expected`, or None where last offset and count do not agree."""
    if header.base_offset != expected or header.record_count != header.last_offset_delta + 1:
        return None
    return header.next_offset


def _least_size(header: RecordBatch | LegacyBatch) -> int:
    return HEADER_BYTES if isinstance(header, RecordBatch) else MIN_ENTRY_SIZE + LOG_OVERHEAD_BYTES


def _least_offset(header: RecordBatch | LegacyBatch) -> int:
    # The header of formats 0 and 1 states the last offset alone.
    return header.base_offset if isinstance(header, RecordBatch) else header.last_offset


def _is_sound(file: DiskFile, position: int) -> bool:
    header = _header_at(file, position)
    if header is None or header.magic not in (0, 1, MAGIC):
        return False
    if header.size_bytes < _least_size(header) or header.base_offset < 0:
        return False
    if isinstance(header, RecordBatch) and (
        header.last_offset_delta < 0 or header.record_count < 0 or header.max_timestamp < -1
    ):
        return False
    return streamed_crc(file, header) == header.crc


# ------------------------------------------------------------------------------------------- behind an unsound entry


class Continuation(NamedTuple):
    """Where the log goes on behind an unsound entry: at byte `position`, None where nothing shows that it does.

    `is_proven` is True where the entry's own CRC is right for the bytes up to there.
    """

    position: int | None
    is_proven: bool


class Resynchroniser:
    """Finds where one segment goes on behind entries that are not sound; see the module's head."""

    def __init__(self, file: DiskFile, places: IndexPlaces) -> None:
        self._file = file
        self._end = 0
        self._floor = 0
        self._places = places
        self._budget = SearchBudget(file.size())

    def behind(self, position: int, end: int, *, floor: int, legacy: bool) -> Continuation:
        """Where the log, which ends at byte `end`, goes on behind the unsound entry at byte `position`. Raises OSError.

        `floor` is the offset behind the last sound batch: a search passes over what begins below it.
        """
        self._end = end
        self._floor = floor
        header = _header_at(self._file, position)
        if header is None:
            return self._search(position, position + 1, legacy=legacy)
        stated = position + header.size_bytes
        fits = header.size_bytes >= _least_size(header) and stated <= self._end
        continues = fits and self._continues(header, stated, legacy=legacy)
        leads_on = fits and self._chain_end(stated, by_index=not continues) is None
        ends = self._likely_ends(header)
        if fits:
            ends.add(stated)
        followers: list[int] = []  # where headers with exactly the next offset are
        ends.update(self._next_offsets(header, position + _least_size(header), stated if fits else position))
        if not (continues and leads_on):
            # A length that is wrong in any way: the batches that it lies over, or those behind it, say where it ends.
            indexed = next((at for at, offset in self._places.behind(position) if self._begins(at, offset)), self._end)
            start, end = position + _least_size(header), min(self._end, position + FARTHEST_END_BYTES, indexed + 1)
            ends.update(self._sound_batches(start, end, legacy=legacy))
            followers = list(self._next_offsets(header, start, end))
            ends.update(followers)
        if not (continues and leads_on) or self._end - position < NEAR_END_BYTES:
            ends.add(self._end)
        proven = self._end_of_crc(header, sorted(end for end in ends if position + HEADER_BYTES <= end <= self._end))
        if proven is not None:
            return Continuation(proven, True)
        followers = [at for at in followers if at != stated and self._chain_end(at) is None]
        if (continues and leads_on) or any(self._passes(at, stated) for at in followers if at < stated):
            return Continuation(stated, False)
        if fits and self._overlaps(header, stated):
            passed = next((at for at in followers if at > stated and self._passes(stated, at)), None)
            if passed is not None:
                return Continuation(passed, False)
        # Another place with the next offset from which the log leads on: the stated length is not to be trusted.
        is_doubtful = fits and bool(followers)
        # A header with the next offset whose own length is impossible is judged when the walk comes to it.
        if not is_doubtful and (leads_on or (continues and self._chain_end(stated, may_be_torn=True) in (None, stated))):
            return Continuation(stated, False)
        can_be_batch = self._can_be_batch(header, legacy=legacy)
        self._floor = max(floor, header.base_offset + 1) if can_be_batch and fits else floor
        if fits and (can_be_batch or stated == self._end or self._may_begin(stated)):
            return self._search(position, self._chain_end(stated, by_index=True) or stated, legacy=legacy)
        if not can_be_batch:
            return self._search(position, position + 1, legacy=legacy)
        has_size = header.size_bytes >= _least_size(header)
        return self._search(position, self._end if has_size else position + 1, legacy=legacy)

    def _can_be_batch(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> bool:
        """True where an entry may be a damaged batch, whose payload must not be searched; formats 0 and 1 say little of it."""
        if isinstance(header, RecordBatch):
            return _can_be_header(header)
        return legacy and _can_be_header(header) and _least_size(header) <= header.size_bytes <= limits.MAX_RECORD_BYTES

    def _continues(self, header: RecordBatch | LegacyBatch, stated: int, *, legacy: bool) -> bool:
        """True where a header with exactly the next offset is at a byte; behind formats 0 and 1, one with a higher offset."""
        behind = _header_at(self._file, stated)
        if behind is None or not _can_be_header(behind):
            return False
        if not isinstance(header, RecordBatch):
            return behind.last_offset > header.last_offset
        if not legacy and not isinstance(behind, RecordBatch):
            return False
        # The last offset and the record count say the same, unless a cleaner was here; one of them may be wrong.
        return behind.base_offset in (header.next_offset, header.base_offset + header.record_count)

    def _overlaps(self, header: RecordBatch | LegacyBatch, stated: int) -> bool:
        """True where a batch at the stated end has offsets of the entry, whose last offset and record count agree."""
        if not isinstance(header, RecordBatch) or stated_next_offset(header, header.base_offset) is None:
            return False
        behind = plausible_header(self._file, stated)
        return behind is not None and behind.base_offset < header.next_offset

    def _passes(self, position: int, target: int) -> bool:
        """True where a header begins at byte `target` behind sound batches that follow each other from a byte on."""
        walk = HeaderWalk(self._file, position, self._end)
        for header in walk.headers():
            if header.position >= target:
                return header.position == target and _can_be_header(header)
            if not self._budget.take(PROBE_BYTES + max(header.size_bytes, 0)) or not _is_sound(self._file, header.position):
                return False
        return False

    def _chain_end(self, position: int, *, by_index: bool = False, may_be_torn: bool = False) -> int | None:
        """None where a chain of headers leads on from a byte, else where it breaks off.

        With `by_index` the end of the file does not count, unless nothing is there at all. With `may_be_torn` the chain may end
        in a header with the next offset whose batch reaches behind the file, or in a few zeros.
        """
        walk = HeaderWalk(self._file, position, self._end)
        expected = 0
        for header in walk.headers():
            if not _can_be_header(header) or _least_offset(header) < expected or not self._budget.take(PROBE_BYTES):
                return header.position
            if self._places.names(header):
                return None
            expected = header.next_offset
        left = self._end - walk.position
        is_end = left == 0 or ((left >= HEADER_BYTES or may_be_torn) and zeros_follow(self._file, walk.position, self._end))
        if is_end and (not by_index or walk.position == position):
            return None
        return None if may_be_torn and self._is_torn(walk.position, expected) else walk.position

    def _is_torn(self, position: int, expected: int) -> bool:
        """True where the first bytes of a batch that should begin at offset `expected` end with the file."""
        if self._end - position < HEADER_BYTES:
            head = self._file.read_at(position, 8)
            return expected.to_bytes(8, "big").startswith(head)
        torn = plausible_header(self._file, position)
        return torn is not None and torn.base_offset == expected and torn.end_position > self._end

    # ------------------------------------------------------------------------------------------------- the CRC's word

    def _likely_ends(self, header: RecordBatch | LegacyBatch) -> set[int]:
        """The bytes behind the entry if one bit of its length is flipped, as far as a header is there or the file ends."""
        ends = set()
        for bit in range(31):
            end = header.position + LOG_OVERHEAD_BYTES + (_stated_size(header) ^ (1 << bit))
            if end == self._end or (end < self._end and self._may_begin(end)):
                ends.add(end)
        return ends

    def _may_begin(self, position: int) -> bool:
        header = _header_at(self._file, position)
        return header is not None and _can_be_header(header) and header.size_bytes >= _least_size(header)

    def _sound_batches(self, position: int, end: int, *, legacy: bool) -> Iterator[int]:
        """The bytes in [position, end) at which something that looks like a sound batch begins, as far as the budget goes."""
        found = find_batch(self._file, position, self._end, legacy=legacy, budget=self._budget)
        while found is not None and found < end and self._budget.take(CANDIDATE_COST_BYTES):
            yield found
            header = _header_at(self._file, found)
            behind = found + 1 if header is None else found + header.size_bytes
            found = find_batch(self._file, behind, self._end, legacy=legacy, budget=self._budget)

    def _next_offsets(self, header: RecordBatch | LegacyBatch, start: int, end: int) -> Iterator[int]:
        """The bytes in [start, end) at which a header with exactly the next offset is, sound or not."""
        if not isinstance(header, RecordBatch) or not self._budget.take(end - start):
            return
        wanted = header.next_offset.to_bytes(8, "big", signed=True)
        while start < end:
            chunk = self._file.read_at(start, min(limits.READ_CHUNK_BYTES, end - start) + len(wanted) - 1)
            found = chunk.find(wanted)
            while found >= 0:
                if self._may_begin(start + found):
                    yield start + found
                found = chunk.find(wanted, found + 1)
            start += limits.READ_CHUNK_BYTES

    def _end_of_crc(self, header: RecordBatch | LegacyBatch, ends: Iterable[int]) -> int | None:
        """The first of the `ends`, ascending, up to which the entry's bytes have the CRC that it states."""
        rules: list[tuple[Callable[..., int], int, int]] = []  # function, first byte, stored CRC
        head = self._file.read_at(header.position, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            rules.append((crc32c, CRC_START, int.from_bytes(head[CRC_START - 4 : CRC_START], "big")))
        if not isinstance(header, RecordBatch):
            from zlib import crc32

            rules.append((crc32, MAGIC_POSITION, header.crc))
        ends = list(ends)
        for function, skip, stored in rules:
            position, crc = header.position + skip, 0
            for end in ends:
                if not self._budget.take(end - position):
                    break
                crc = _crc_on(self._file, function, crc, position, end)
                position = end
                if crc == stored:
                    return end
        return None

    # --------------------------------------------------------------------------------------------------- going on

    def _search(self, position: int, start: int, *, legacy: bool) -> Continuation:
        """Where the log goes on at or behind byte `start`, or where the index says so behind byte `position`."""
        indexed = next((at for at, offset in self._places.behind(position) if self._begins(at, offset)), None)
        end = self._end if indexed is None else min(indexed, self._end)
        # A sound batch that begins within what is passed over may reach beyond it: nothing inside of that one counts either.
        found = find_batch(self._file, position + 1, end, legacy=legacy, budget=self._budget) if start < end else None
        while found is not None:
            header = _header_at(self._file, found)
            behind = found + 1 if header is None else found + header.size_bytes
            if header is not None and found >= start and _least_offset(header) >= self._floor:
                behind = self._chain_end(found, may_be_torn=True) or 0
                if not behind and not self._is_within_torn(position, found):
                    return Continuation(found, False)
            found = find_batch(self._file, max(behind, found + 1), end, legacy=legacy, budget=self._budget)
        return Continuation(indexed, False)

    def _is_within_torn(self, position: int, found: int) -> bool:
        """True where a header between two bytes states a batch that reaches behind the file: a torn one, and what is in it."""
        start = position + 1
        while start < found and self._budget.take(limits.READ_CHUNK_BYTES):
            chunk = self._file.read_at(start, min(limits.READ_CHUNK_BYTES + HEADER_BYTES, found - start + HEADER_BYTES))
            for at in _candidates(chunk, False):
                header = plausible_header(self._file, start + at) if at >= 0 and start + at < found else None
                if header is None or not self._floor <= header.base_offset <= self._floor + INT32_MAX:
                    continue
                if header.end_position > self._end and header.record_count == header.last_offset_delta + 1:
                    return True
            start += limits.READ_CHUNK_BYTES
        return start < found  # the budget is spent, so that it is not known

    def _begins(self, position: int, offset: int) -> bool:
        """True where a sound batch begins at a byte whose offset fits the index entry that points at it."""
        header = _header_at(self._file, position)
        return header is not None and header.base_offset <= offset and position < self._end and _is_sound(self._file, position)


def _stated_size(header: RecordBatch | LegacyBatch) -> int:
    return (header.size_bytes - LOG_OVERHEAD_BYTES) & INT32_MAX


def _crc_on(file: DiskFile, function: Callable[..., int], crc: int, position: int, end: int) -> int:
    """Go on with a CRC over bytes [position, end) of a file."""
    while position < end:
        chunk = file.read_at(position, min(limits.READ_CHUNK_BYTES, end - position))
        if not chunk:
            return -1
        crc = function(chunk, crc)
        position += len(chunk)
    return crc
