"""Find where a log continues after damage, in bounded time, and without mistaking payload for a batch.

A record's value may itself be a sound batch (a mirror, a dead letter queue, an attacker). A batch that is found by its bytes
alone therefore proves nothing: it may be inside the damaged one. The reader continues at another byte only if there is evidence
that the log does. Bytes inside the records after the damaged header, by the lengths of these records, are payload and never a
batch. These questions are asked in this order; the first yes decides:

    question                                                     yes: the log continues         why this is enough
    -----------------------------------------------------------  -----------------------------  --------------------------
    proven   Is the CRC of the damaged entry right for another   at that end                    the CRC does not cover the
             length? Tried are: the stated length (the magic     (the entry is complete)        length and the magic
             may be wrong), that length with one bit flipped,
             the file's end if it is near; then, if the stated
             length leads nowhere, the next sound batches, and
             headers with the next offset up to the last of them
    recorded Is the stated end inside of sound batches, from    there                          what is at the stated end
             exactly the next offset on, that lead on? Or skip   (the entry is lost)            is payload of that batch;
             record_count records by their length fields. Do                                    or two sources agree, or
             they end at the stated end? Or at a later sound                                    one of them is impossible
             batch, if the stated end is impossible or inside
             the records?
    stated   Is a header with exactly the next offset at the     at the stated end              length and offsets agree,
             stated end, or does a chain of headers lead on      (the entry is lost)            or length and .index do
             from there to a batch that the .index points at?
             Or do sound batches lead from there to a damaged
             one with the next offset, or, over gaps between
             their offsets, to the end of the file? Does the
             length with one bit flipped (or, if impossible, to
             the file's end)?
    resumed  Is there a sound batch behind the entry to which    there (all before it is        the batch is known to
             the .index points, or from which a chain of         lost)                          belong to the log
             headers leads on?
    between  Or a run of sound batches that ends at another         there                          the damaged header
             damaged batch, and is not cheaper as payload                                          behind the run shows it
             (kcli.log.reading.explanation)?
    none     There is no evidence that the log continues.        nowhere; the user decides

The answer is not "stated" if another position has a header with the next offset and a chain that leads on: then the length is
doubtful, unless the chain from that position reaches the stated end.

A chain of headers leads on if each begins where the previous batch ends, with a higher offset, up to a batch that the .index
points at, to the end of the file, or to preallocated zeros. Payload does not do that unless it is the end of its batch: it is
followed by the rest of its record, which is not a header. A search for "resumed" skips what a second damaged batch seems to
contain, and the extent that the entry states: to the file's end if its length exceeds the file; none if it cannot be a header.

A run between two damaged places is compared up to the next batch from which a chain leads on, or to the end of the search.

A batch that the log seems to continue with, elsewhere than at the stated end, may still be the end of the last record of the
damaged one: nothing in the file then leads to it. If offsets are missing behind it, in a segment that the cleaner has not
changed, the cheapest explanation (kcli.log.reading.explanation) decides whether it is payload. A reader that does not know the
topic takes the segment for cleaned unless records without keys are behind the gap, which the cleaner would have removed: a
repair decides with the topic's policy, and readers hide nothing that may be sound. This uses all of the file, so a part of a
segment that is read alone has the same batches.

Cost: in a file with many damaged batches the same questions are asked of the same bytes. The results are cached for one end of
the log: the ends of chains (header_chains), the sound batches (batch_search) and the ends of searches. Bytes read because of a
wrong length count against a budget of the file (SearchBudget); when it is spent, evidence that would need it counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.primitives import INT32_MAX, INT64_MAX, crc32c
from kcli.format.record_batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_POSITION, RecordBatch
from kcli.log.disk.port import DiskFile
from kcli.log.reading.batch_search import (
    FilePieces,
    SearchBudget,
    SoundBatches,
    can_be_header,
    find_batch,
    header_at,
    is_sound,
    is_within_record,
    least_offset,
    least_size,
    plausible_header,
    plausible_headers,
    records_end,
    sized_headers,
    stated_next_offset,
)
from kcli.log.reading.header_chains import HeaderChains, PositionCache
from kcli.log.reading.header_reader import PROBE_BYTES, HeaderReader
from kcli.log.reading.index_positions import IndexPositions

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.log.reading.explanation import LogWitnesses, SoundRun

# The cost in the budget of a position that looks like a sound batch, regardless of its size.
CANDIDATE_COST_BYTES = 1024
# How many sound batches behind an entry are tried as its end: the log's next one, and what may be payload before it.
MOST_ENDS = 64
# Within this distance of the file's end the end is always tried as the end of a batch: twice Kafka's default max.message.bytes.
NEAR_END_BYTES = 2 * 1024 * 1024
# The largest size of a batch that is tried: more than the 100 MiB of Kafka's default socket.request.max.bytes.
FARTHEST_END_BYTES = 128 * 1024 * 1024
OFFSET_BYTES = 8  # of the base offset
# How many batches from a doubtful one on are explained together: the next two show whether the log goes on without it.
EXPLAINED_BATCHES = 4
NEAR_BYTES = 64 * 1024


class Continuation(NamedTuple):
    """The byte `position` where the log continues after an unsound entry; None if there is no evidence that it does.

    `is_proven` is True if the entry's own CRC is correct for the bytes up to there.
    """

    position: int | None
    is_proven: bool


class _Search(NamedTuple):
    """The result of a search that skips batches that begin below offset `floor`: byte `found`, or None.

    It is the same for every floor up to `least`, the lowest first offset of the batches that were checked.
    """

    found: int | None
    floor: int
    least: int


class Resynchroniser:
    """The search for where one segment continues after entries that are not sound; see the module docstring.

    `has_keyless` reads a sound batch and returns True if a record has no key. `log` is what the other files of the partition
    show, None if only the segment and its index are to be used.
    """

    def __init__(
        self,
        file: DiskFile,
        positions: IndexPositions,
        has_keyless: Callable[[RecordBatch], bool],
        log: LogWitnesses | None = None,
    ) -> None:
        self._file = file
        self._has_keyless = has_keyless
        self._log = log
        self._floor = 0
        self._near_start, self._near = 0, b""  # bytes of the file from the entry on
        self._positions = positions
        self._budget = SearchBudget(file.size())
        self._run_budget = SearchBudget(file.size())
        self._start_over(0)

    def _start_over(self, end: int) -> None:
        """Clear the caches: the log ends at another byte now."""
        self._end = end
        self._chains = HeaderChains(self._file, end, self._budget, self._positions.points_at)
        self._batches = {legacy: SoundBatches(self._file, end, self._budget, legacy=legacy) for legacy in (False, True)}
        self._searches: dict[bool, tuple[int, PositionCache[_Search]]] = {}
        self._sound_to_end: PositionCache[bool] = PositionCache()
        self._cleaned: PositionCache[bool] = PositionCache()
        self._indexed: tuple[int, int | None] = (0, 0)

    def behind(self, position: int, end: int, *, floor: int, legacy: bool) -> Continuation:
        """Return where the log, which ends at byte `end`, continues after the unsound entry at byte `position`. Raises OSError.

        `floor` is the next offset after the last sound batch: a search skips batches that begin below it. The log never
        continues after the next sound batch that the .index points at: a reader that begins there sees the same batches.
        """
        if end != self._end:
            self._start_over(end)
        self._floor = floor
        found = self._explain(position, legacy=legacy)
        if found.is_proven:
            return found
        indexed = self._indexed_behind(position)
        if indexed is not None and (found.position is None or found.position > indexed):
            return Continuation(indexed, False)
        return self._without_payload(position, found)

    def _without_payload(self, position: int, found: Continuation) -> Continuation:
        """Return the byte after the batch where the log seems to continue, if the cheapest explanation takes it for payload."""
        header = header_at(self._file, position)
        start = found.position
        is_stated = header is not None and position + header.size_bytes == start
        if start is None or is_stated or not self._has_gap_behind(start):
            return found
        from kcli.log.reading.explanation import Batch, Batches, LogWitnesses, OffsetExplanation, SegmentWitnesses

        batches, headers = Batches(), list[RecordBatch]()
        for one in HeaderReader(self._file, start, self._file.size()).headers():
            if len(batches) == EXPLAINED_BATCHES or not isinstance(one, RecordBatch) or not self._is_whole(one, self._budget):
                break
            headers.append(one)
            row = Batch(one.position, one.end_position, one.base_offset, one.last_offset, one.partition_leader_epoch)
            batches.insert(len(batches), row)
        if len(batches) < 2:
            return found
        entries = dict(takewhile(lambda entry: entry[0] < batches.end[-1], self._positions.after(start - 1)))
        segment = SegmentWitnesses(0, INT64_MAX, batches.base_offset[0], entries, searched={start: None})
        log = LogWitnesses(is_cleaned=not any(map(self._never_cleaned, headers[1:]))) if self._log is None else self._log
        is_cleaned = log.is_cleaned or self._is_cleaned(0) or self._is_cleaned(batches.position[1])
        chosen = OffsetExplanation(batches, segment, log._replace(is_cleaned=is_cleaned)).choose()
        return Continuation(batches.position[1], False) if chosen and chosen[0].row == 1 else found

    def _never_cleaned(self, header: RecordBatch) -> bool:
        """Return True if the cleaner was not in the segment of a sound batch: it removes records without keys."""
        return not header.is_control and self._has_keyless(header)

    def _is_whole(self, header: RecordBatch, budget: SearchBudget) -> bool:
        """Return True if a sound batch has this header; False if the budget is spent."""
        return budget.take(max(header.size_bytes, 0)) and is_sound(self._file, header.position)

    def _has_gap_behind(self, position: int) -> bool:
        """Return True if offsets are missing between the batch at a byte and the next one."""
        header = plausible_header(self._file, position)
        behind = None if header is None else plausible_header(self._file, header.end_position)
        return header is not None and behind is not None and behind.base_offset > header.next_offset

    def _is_cleaned(self, position: int) -> bool:
        """Return True if the cleaner was in the batches from a byte up to the next damage: they lack offsets or records.

        A gap counts if sound batches are before and after it, and if the next batch confirms its end.
        """
        known = self._cleaned.get(position)
        if known is not None:
            return known
        from kcli.log.reading.explanation import is_thinned

        before: RecordBatch | None = None
        has_gap = found = False
        for header in HeaderReader(self._file, position, self._file.size()).headers():
            if not isinstance(header, RecordBatch) or not can_be_header(header) or not self._budget.take(PROBE_BYTES):
                break
            is_confirmed = has_gap and before is not None and header.base_offset > before.last_offset
            found = is_confirmed or (is_thinned(header) and self._is_whole(header, self._budget))
            if found:
                break
            is_gap = before is not None and header.base_offset > before.next_offset
            has_gap = (
                is_gap and before is not None and self._is_whole(before, self._budget) and self._is_whole(header, self._budget)
            )
            before = header
        self._cleaned.keep([(position, found)])
        return found

    def _explain(self, position: int, *, legacy: bool) -> Continuation:
        """Ask the questions of the module docstring about the entry at byte `position`."""
        floor = self._floor
        header = header_at(self._file, position)
        if header is None:
            return self._search(position, position + 1, legacy=legacy)
        stated = position + header.size_bytes
        fits = header.size_bytes >= least_size(header) and stated <= self._end
        continues = fits and self._continues(header, stated, legacy=legacy)
        leads_on = fits and self._chain_end(stated, by_index=not continues) is None
        proven = self._near_end_of_crc(header, [stated] if fits else [])
        around = self._batch_around(header, stated) if fits and proven is None else None
        followers: list[int] = []  # positions of headers with exactly the next offset
        if proven is None and (around is not None or not (continues and leads_on)):
            # The length is wrong: the batches that it extends over, or those after it, show where the entry ends.
            followers = self._followers(header, legacy=legacy)
            proven = self._far_end_of_crc(header, followers, legacy=legacy)
        if proven is not None:
            return Continuation(proven, True)
        lost = around or self._end_by_records(header, stated, fits=fits)
        if lost is None and not continues and can_be_header(header):
            lost = self._flipped_end(header, followers, fits=fits)
        if lost is not None:
            return Continuation(lost, False)
        followers = [at for at in followers if at != stated and self._chain_end(at) is None]
        is_stated = (continues and leads_on) or (fits and not followers and self._follows(header, stated))
        if is_stated or any(self._passes(at, stated) for at in followers if at < stated):
            return Continuation(stated, False)
        if fits and not continues and not followers and self._is_sound_to_end(header, stated):
            return Continuation(stated, False)
        if fits and self._overlaps(header, stated):
            passed = next((at for at in followers if at > stated and self._passes(stated, at)), None)
            if passed is not None:
                return Continuation(passed, False)
        # If the log leads on from another position with the next offset, the stated length is not trusted, unless that position
        # is inside the batch at the stated end, whose CRC is correct for another length than it states.
        whole = self._whole_end(stated, legacy=legacy) if continues and followers else None
        is_doubtful = fits and any(whole is None or not stated < at < whole for at in followers)
        # A header with the next offset whose own length is impossible is handled when the reader reaches it.
        is_end = continues and self._may_end_log(stated)
        if not is_doubtful and (leads_on or is_end or (continues and self._breaks_at_next(stated))):
            return Continuation(stated, False)
        can_be_batch = self._can_be_batch(header, legacy=legacy)
        self._floor = max(floor, header.base_offset + 1) if can_be_batch and fits else floor
        if fits and (can_be_batch or stated == self._end or self._may_begin(stated)):
            return self._search(position, self._chain_end(stated, by_index=True) or stated, legacy=legacy)
        if not can_be_batch:
            return self._search(position, position + 1, legacy=legacy)
        has_size = header.size_bytes >= least_size(header)
        return self._search(position, self._end if has_size else position + 1, legacy=legacy)

    def _end_by_records(self, header: RecordBatch | LegacyBatch, stated: int, *, fits: bool) -> int | None:
        """Return the end of the entry by the lengths of its records, or None if nothing confirms it.

        Either they agree with the stated length; or a sound batch begins where the records end, and no batch can begin at the
        stated end, or only one that is inside the records.
        """
        if not isinstance(header, RecordBatch):
            return None
        may_end = fits and (stated == self._end or self._may_begin(stated))
        if may_end and records_end(self._file, header, self._budget, stated) is not None:
            return stated
        end = records_end(self._file, header, self._budget)
        behind = None if end is None else header_at(self._file, end)
        least = min(header.next_offset, header.base_offset + header.record_count)
        if end is None or behind is None or behind.base_offset < least or not is_sound(self._file, end):
            return None
        other = header_at(self._file, stated) if fits and self._may_begin(stated) else None
        return end if other is None or stated + other.size_bytes <= end else None

    def _batch_around(self, header: RecordBatch | LegacyBatch, stated: int) -> int | None:
        """Return the byte of sound batches with exactly the next offset that begin before the stated end and end after it.

        They lead on, and are not inside the entry's records: then they are not payload, but the bytes at the stated end are.
        """
        for at in self._next_offsets(header, header.position + least_size(header), stated):
            if not self._crosses(at, stated) or is_within_record(self._file, header.position, at, self._budget):
                continue
            run = None if self._chain_end(at) is None else self._run(at, self._end)
            if run is None or self._is_of_log(run, self._end):
                return at
        return None

    def _crosses(self, position: int, target: int) -> bool:
        """Return True if consecutive sound batches lead from a byte to one that contains byte `target`, not as its first."""
        for header in HeaderReader(self._file, position, self._end).headers():
            if (
                header.position >= target
                or not self._budget.take(max(header.size_bytes, 0))
                or not is_sound(self._file, header.position)
            ):
                return False
            if header.end_position > target:
                return True
        return False

    def _can_be_batch(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> bool:
        """Return True if an entry may be a damaged batch, whose payload must not be searched; weak for formats 0, 1."""
        if isinstance(header, RecordBatch):
            return can_be_header(header)
        return legacy and can_be_header(header) and least_size(header) <= header.size_bytes <= limits.MAX_RECORD_BYTES

    def _continues(self, header: RecordBatch | LegacyBatch, stated: int, *, legacy: bool) -> bool:
        """Return True if a header with exactly the next offset is at a byte; after formats 0 and 1, with a higher offset."""
        behind = header_at(self._file, stated)
        if behind is None or not can_be_header(behind):
            return False
        if not isinstance(header, RecordBatch):
            return behind.last_offset > header.last_offset
        if not legacy and not isinstance(behind, RecordBatch):
            return False
        # The last offset and the record count agree unless the cleaner removed records; one of them may be wrong.
        return behind.base_offset in (header.next_offset, header.base_offset + header.record_count)

    def _follows(self, header: RecordBatch | LegacyBatch, stated: int) -> bool:
        """Return True if a sound batch at the stated end leads on and follows the entry with a corrected base offset: one bit
        is flipped, or it is the next offset after the last sound batch. The CRC does not cover the base offset."""
        behind = plausible_header(self._file, stated)
        if behind is None or not isinstance(header, RecordBatch) or self._chain_end(stated) is not None:
            return False
        expected = behind.base_offset - header.last_offset_delta - 1
        is_near = expected == self._floor or (expected > self._floor and (expected ^ header.base_offset).bit_count() == 1)
        return is_near and is_sound(self._file, stated)

    def _overlaps(self, header: RecordBatch | LegacyBatch, stated: int) -> bool:
        """Return True if a batch at the stated end has offsets of the entry, whose last offset and record count agree."""
        if not isinstance(header, RecordBatch) or stated_next_offset(header, header.base_offset) is None:
            return False
        behind = plausible_header(self._file, stated)
        return behind is not None and behind.base_offset < header.next_offset

    def _passes(self, position: int, target: int) -> bool:
        """Return True if consecutive sound batches lead from a byte to a header at byte `target`."""
        walk = HeaderReader(self._file, position, self._end)
        for header in walk.headers():
            if header.position >= target:
                return header.position == target and can_be_header(header)
            if not self._budget.take(PROBE_BYTES + max(header.size_bytes, 0)) or not is_sound(self._file, header.position):
                return False
        return False

    def _is_sound_to_end(self, header: RecordBatch | LegacyBatch, stated: int) -> bool:
        """Return True if sound batches with later offsets lead from the stated end to the end of the file.

        In a compacted log the next offset may be missing. Payload does not reach the end of the file unless it is the end of
        the last record.
        """
        behind = header_at(self._file, stated)
        # As in _continues, the last offset or the record count may be wrong.
        count = header.record_count if isinstance(header, RecordBatch) else 1
        least = max(self._floor, min(header.next_offset, header.base_offset + count))
        if behind is None or least_offset(behind) < least or self._chain_end(stated, may_be_torn=True) is not None:
            return False
        passed: list[int] = []
        known: bool | None = None
        for at in HeaderReader(self._file, stated, self._end).headers():
            known = self._sound_to_end.get(at.position)
            if known is not None:
                break
            passed.append(at.position)
            if not self._budget.take(at.size_bytes) or not is_sound(self._file, at.position):
                known = False
                break
        found = known is not False and (known is not None or bool(passed))
        self._sound_to_end.keep([(at, found) for at in passed])
        return found

    def _chain_end(
        self, position: int, *, by_index: bool = False, may_be_torn: bool = False, may_be_short: bool = False
    ) -> int | None:
        """Return None if a chain of headers leads on from a byte, else the byte where it ends.

        With `by_index` the end of the file does not count, unless the chain is empty. With `may_be_torn` the chain may end in a
        header with the next offset whose batch exceeds the file. With `may_be_short` fewer bytes than an offset has may
        be left, and zeros: after payload these may be the last byte of the record, its header count.
        """
        end, is_indexed, expected, is_zeros = self._chains.end_of(position)
        if is_indexed:
            return None
        if expected is None:
            return end
        left = self._end - end
        is_end = left == 0 or ((left >= HEADER_BYTES or may_be_short) and is_zeros)
        if is_end and (not by_index or end == position):
            return None
        is_short = left < OFFSET_BYTES and not may_be_short
        return None if may_be_torn and not is_short and self._is_torn(end, expected) else end

    def _may_end_log(self, position: int) -> bool:
        """Return True if no header follows the one at a byte, or the headers lead to the end or to one of impossible length."""
        chain_end = self._chain_end(position, may_be_torn=True, may_be_short=True)
        if chain_end is None or chain_end == position:
            return True
        expected = self._chains.end_of(position).expected
        header = plausible_header(self._file, chain_end)
        return header is not None and header.base_offset == expected

    def _breaks_at_next(self, position: int) -> bool:
        """Return True if consecutive sound batches lead from a byte to a damaged one that begins with the next offset.

        Payload would be followed by the rest of its record. The other fields of the damaged header may be wrong.
        """
        expected: int | None = None
        while self._budget.take(PROBE_BYTES):
            header = header_at(self._file, position)
            if not isinstance(header, RecordBatch) or (expected is not None and header.base_offset != expected):
                return False
            is_batch = can_be_header(header) and header.size_bytes >= least_size(header)
            if not is_batch or not is_sound(self._file, position):
                return expected is not None
            position, expected = header.end_position, header.next_offset
        return False

    def _is_torn(self, position: int, expected: int) -> bool:
        """Return True if the file ends within a batch that begins at offset `expected`."""
        if self._end - position < HEADER_BYTES:
            head = self._file.read_at(position, OFFSET_BYTES)
            return expected.to_bytes(OFFSET_BYTES, "big").startswith(head)
        torn = plausible_header(self._file, position)
        return torn is not None and torn.base_offset == expected and torn.end_position > self._end

    # ---------------------------------------------------------------------------------------------------- by the CRC

    def _near_end_of_crc(self, header: RecordBatch | LegacyBatch, stated: Sequence[int]) -> int | None:
        """Return the end that the entry's CRC proves among the cheap ones: near the stated one, and the file's end if near."""
        ends = self._likely_ends(header).union(stated)
        start = header.position + least_size(header)
        ends.update(self._next_offsets(header, start, stated[0] if stated else header.position))
        if self._end - header.position < NEAR_END_BYTES:
            ends.add(self._end)
        return self._end_of_crc(header, ends)

    def _far_end_of_crc(self, header: RecordBatch | LegacyBatch, followers: Sequence[int], *, legacy: bool) -> int | None:
        """Return the end that the entry's CRC proves: a sound batch, a header with the next offset, or the file's end."""
        sound, is_end = self._near_sound_batches(header, legacy=legacy)
        ends = {*sound, *followers}
        if is_end and self._end <= header.position + FARTHEST_END_BYTES:
            ends.add(self._end)
        return self._end_of_crc(header, ends)

    def _followers(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> list[int]:
        """Return the bytes of headers with exactly the next offset, regardless of the entry's length."""
        sound, is_end = self._near_sound_batches(header, legacy=legacy)
        start = header.position + least_size(header)
        return list(self._next_offsets(header, start, self._farthest(header) if is_end else sound[-1] + 1))

    def _near_sound_batches(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> tuple[list[int], bool]:
        """Return the first sound batches at which the entry may end; True if there are no more."""
        start, end = header.position + least_size(header), self._farthest(header)
        found = list(islice(self._sound_batches(start, end, legacy=legacy), MOST_ENDS))
        return found, len(found) < MOST_ENDS

    def _farthest(self, header: RecordBatch | LegacyBatch) -> int:
        """Return the byte before which the entry ends, regardless of its length."""
        indexed = self._indexed_behind(header.position)
        return min(header.position + FARTHEST_END_BYTES, self._end if indexed is None else indexed + 1)

    def _whole_end(self, position: int, *, legacy: bool) -> int | None:
        """Return the end that the CRC of the header at a byte proves, regardless of its length, or None."""
        header = header_at(self._file, position)
        if header is None:
            return None
        stated = position + header.size_bytes
        fits = header.size_bytes >= least_size(header) and stated <= self._end
        near = self._near_end_of_crc(header, [stated] if fits else [])
        if near is not None:
            return near
        return self._far_end_of_crc(header, self._followers(header, legacy=legacy), legacy=legacy)

    def _likely_ends(self, header: RecordBatch | LegacyBatch) -> set[int]:
        """Return the ends of the entry with one bit of its length flipped, if a header is there or the file ends there."""
        ends = set()
        self._near_start, self._near = header.position, self._file.read_at(header.position, NEAR_BYTES)
        for flip in (0, *(1 << bit for bit in range(31))):  # 0: without its sign
            end = header.position + LOG_OVERHEAD_BYTES + (_stated_size(header) ^ flip)
            # Too many bytes look like a header of formats 0 and 1, and a CRC over a long distance is expensive.
            is_far = end - header.position > NEAR_END_BYTES and end != self._end
            if is_far and (end - header.position > FARTHEST_END_BYTES or end > self._end):
                continue
            is_header = end < self._end and self._may_begin(end)
            if end == self._end or (is_header and (not is_far or plausible_header(self._file, end) is not None)):
                ends.add(end)
        return ends

    def _flipped_end(self, header: RecordBatch | LegacyBatch, followers: Sequence[int], *, fits: bool) -> int | None:
        """Return the only sound one of the `followers` at which the entry ends with one bit of its length flipped, or None."""
        ends = self._likely_ends(header)
        sound = [at for at in followers if at in ends and self._chain_end(at) is None and is_sound(self._file, at)]
        is_at_end = not followers and not fits and self._end in ends
        return sound[0] if len(sound) == 1 else self._end if is_at_end else None

    def _may_begin(self, position: int) -> bool:
        # Most positions are refused by the magic; those near the entry are read together.
        at = position - self._near_start
        if not 0 <= at < len(self._near) - HEADER_BYTES:
            head = self._file.read_at(position, HEADER_BYTES)
            if len(head) > MAGIC_POSITION and head[MAGIC_POSITION] > MAGIC:
                return False
        elif self._near[at + MAGIC_POSITION] > MAGIC:
            return False
        header = header_at(self._file, position)
        return header is not None and can_be_header(header) and header.size_bytes >= least_size(header)

    def _sound_batches(self, position: int, end: int, *, legacy: bool) -> Iterator[int]:
        """Yield the bytes in [position, end) at which sound batches begin, until the budget is spent."""
        batches = self._batches[legacy]
        found = batches.first(position)
        while found is not None and found[0] < end and self._budget.take(CANDIDATE_COST_BYTES):
            yield found[0]
            found = batches.first(found[1])

    def _next_offsets(self, header: RecordBatch | LegacyBatch, start: int, end: int) -> Iterator[int]:
        """Yield the bytes in [start, end) of headers with exactly the next offset, sound or not."""
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
        """Return the first of the `ends` up to which the entry's bytes have the stored CRC."""
        rules: list[tuple[Callable[..., int], int, int]] = []  # function, first byte, stored CRC
        head = self._file.read_at(header.position, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            rules.append((crc32c, CRC_START, int.from_bytes(head[CRC_START - 4 : CRC_START], "big")))
        if not isinstance(header, RecordBatch):
            from zlib import crc32

            rules.append((crc32, MAGIC_POSITION, header.crc))
        ends = sorted(end for end in ends if header.position + HEADER_BYTES <= end <= self._end)
        for function, skip, stored in rules:
            pieces, position, crc = FilePieces(self._file, ends), header.position + skip, 0
            for end in ends:
                if not self._budget.take(end - position):
                    break
                for piece in pieces.between(position, end):
                    crc = function(piece, crc)
                    position += len(piece)
                if position < end:
                    return None
                if crc == stored:
                    return end
        return None

    # -------------------------------------------------------------------------------------------------- by a search

    def _search(self, position: int, start: int, *, legacy: bool) -> Continuation:
        """Return where the log continues at or after byte `start`, or at an index entry after byte `position`."""
        indexed = self._indexed_behind(position)
        end = self._end if indexed is None else min(indexed, self._end)
        if start < end and self._budget.left >= CANDIDATE_COST_BYTES:
            # A sound batch that begins within the skipped bytes may extend beyond them: nothing inside it counts either.
            for found in chain(self._leading_on(position + 1, start, end, legacy=legacy), (None,)):
                run = self._run_before(position, start, end if found is None else found)
                if run is not None:
                    return Continuation(run, False)
                if found is not None and not self._is_payload(position, start, found, self._budget):
                    return Continuation(found, False)
        return Continuation(indexed, False)

    def _is_payload(self, position: int, start: int, found: int, budget: SearchBudget) -> bool:
        """Return True if byte `found` is in the records of the entry, of the batch at its stated end, or of a damaged one."""
        if any(is_within_record(self._file, at, found, budget) for at in (position, start)):
            return True
        return self._is_within_damaged(position, found, budget)

    def _run_before(self, position: int, start: int, end: int) -> int | None:
        """Return the byte in [start, end) of a run of sound batches that ends at another damaged place, and is of the log.

        `end` is where the log surely goes on, or the end of the search.
        """
        budget = self._run_budget
        found = find_batch(self._file, position + 1, end, budget=budget)
        while found is not None:
            run = self._run(found, end)
            is_of_log = run is not None and found >= start and self._is_of_log(run, end)
            if is_of_log and not self._is_payload(position, start, found, budget):
                return found
            header = header_at(self._file, found)
            behind = run.end if run is not None else found + 1 if header is None else found + header.size_bytes
            found = find_batch(self._file, max(behind, found + 1), end, budget=budget)
        return None

    def _run(self, position: int, end: int) -> SoundRun | None:
        """Return the consecutive sound batches of format 2 from a byte on, with ascending offsets, that end before `end`."""
        from kcli.log.reading.explanation import SoundRun

        run: SoundRun | None = None
        for header in HeaderReader(self._file, position, end).headers():
            if not isinstance(header, RecordBatch) or header.end_position > end or not can_be_header(header):
                break
            if (run is not None and header.base_offset < run.next_offset) or not self._is_whole(header, self._run_budget):
                break
            first, base_offset, continued = header.position, header.base_offset, 0
            if run is not None:
                first, base_offset = run.position, run.base_offset
                continued = run.continued + (header.base_offset == run.next_offset)
            epoch = header.partition_leader_epoch
            run = SoundRun(first, header.end_position, base_offset, header.next_offset, epoch, continued)
        return run

    def _is_of_log(self, run: SoundRun, end: int) -> bool:
        """Return True if the cheapest explanation takes a run for batches of the log; byte `end` is that of _run_before."""
        from kcli.log.reading.explanation import SECTOR_BYTES, Behind, is_of_log

        # The last byte of a batch is often a zero, as the next sector's first one may be.
        sector = (run.end - 1 + SECTOR_BYTES - 1) // SECTOR_BYTES * SECTOR_BYTES
        zeros = self._file.read_at(sector, SECTOR_BYTES)
        head = self._file.read_at(run.end, HEADER_BYTES)
        behind = Behind(head, max(sector - run.end, 0), len(zeros) > 0 and not any(zeros))
        # The file may have more than the part of it that is read.
        header = plausible_header(self._file, end)
        if header is not None:
            behind = behind._replace(end_offset=header.base_offset, leader_epoch=header.partition_leader_epoch)
        return is_of_log(run, self._floor, behind)

    def _leading_on(self, position: int, start: int, end: int, *, legacy: bool) -> Iterator[int]:
        """Yield the sound batches in [start, end) from which a chain leads on; the search begins at byte `position`."""
        kept_end, kept = self._searches.get(legacy, (-1, PositionCache[_Search]()))
        if kept_end != end:
            kept = PositionCache()
            self._searches[legacy] = (end, kept)
        passed: list[tuple[int, int]] = []  # the batches from which none leads on: position, least offset
        found = find_batch(self._file, position, end, legacy=legacy, budget=self._budget)
        while found is not None:
            header = header_at(self._file, found)
            behind = found + 1 if header is None else found + header.size_bytes
            if header is not None and found >= start and least_offset(header) >= self._floor:
                known = kept.get(found)
                if known is not None and known.floor <= self._floor <= known.least:
                    self._cache_search(kept, passed, known.found, known.least)
                    passed, found = [], known.found
                    continue
                chain_end = self._chain_end(found, may_be_torn=True)
                if chain_end is None:
                    self._cache_search(kept, passed, found, least_offset(header))
                    passed = []
                    yield found
                else:
                    passed.append((found, least_offset(header)))
                behind = chain_end or 0
            found = find_batch(self._file, max(behind, found + 1), end, legacy=legacy, budget=self._budget)
        self._cache_search(kept, passed, None, INT64_MAX)

    def _cache_search(self, kept: PositionCache[_Search], passed: list[tuple[int, int]], found: int | None, least: int) -> None:
        """Cache that a search that reaches one of the `passed` batches ends at byte `found`, or at None."""
        results: list[tuple[int, _Search]] = []
        for position, least_of_batch in reversed(passed):
            least = min(least, least_of_batch)
            results.append((position, _Search(found, self._floor, least)))
        kept.keep(results)

    def _is_within_damaged(self, position: int, found: int, budget: SearchBudget) -> bool:
        """Return True if a plausible header between two bytes has a batch that contains `found`, and is not payload itself.

        The batch exceeds the file, or a chain leads on from its end: `found` is then inside the records of a damaged batch.
        If other fields than the base offset, the length and the magic are damaged as well, its end must be that of the file, or
        a header with a later offset must be there, from which a chain leads on.
        """
        for header in sized_headers(self._file, position + 1, found, budget):
            if header is None:
                return True  # the budget is spent, and it is unknown
            is_around = header.end_position > found and self._encloses(header, found)
            if is_around and not is_within_record(self._file, position, header.position, budget):
                return True
        for header in plausible_headers(self._file, position + 1, found, budget):
            if header is None:
                return True  # the budget is spent, and it is unknown
            if header.end_position <= found or not self._floor <= header.base_offset <= self._floor + INT32_MAX:
                continue
            leads_on = header.end_position > self._end or self._chain_end(header.end_position) is None
            if leads_on and not is_within_record(self._file, position, header.position, budget):
                return True
        return False

    def _encloses(self, header: RecordBatch, found: int) -> bool:
        """Return True if a batch with a header of which fields are damaged contains the batch at byte `found` by its length."""
        inner, end = plausible_header(self._file, found), header.end_position
        if inner is None or not self._floor <= header.base_offset < inner.base_offset or end > self._end:
            return False
        behind = plausible_header(self._file, end)
        is_later = behind is not None and behind.base_offset > header.base_offset
        return end == self._end or (is_later and self._chain_end(end) is None)

    def _indexed_behind(self, position: int) -> int | None:
        """Return the first byte after `position` that the .index points at and where a sound batch begins, or None."""
        asked, found = self._indexed
        if not asked <= position < (self._end if found is None else found):
            found = next((at for at, offset in self._positions.after(position) if self._begins(at, offset)), None)
            self._indexed = (position, found)
        return found

    def _begins(self, position: int, offset: int) -> bool:
        """Return True if a sound batch begins at a byte and its offset fits the index entry that points at it."""
        header = header_at(self._file, position)
        return header is not None and header.base_offset <= offset and position < self._end and is_sound(self._file, position)


def _stated_size(header: RecordBatch | LegacyBatch) -> int:
    return (header.size_bytes - LOG_OVERHEAD_BYTES) & INT32_MAX
