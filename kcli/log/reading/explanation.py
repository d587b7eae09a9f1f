"""The cheapest explanation of a damaged log: which batches belong to it, at which offsets, and with which leader epochs.

Everything that a directory shows is a witness: each batch as read, its neighbours, the names of the segments, the entries of
.index and .timeindex, leader-epoch-checkpoint, the names of snapshots, the checkpoints. No CRC covers a base offset, a leader
epoch or any of the other files, so where witnesses contradict each other, each of them may be the wrong one. Every damage that
is possible has a cost, and the repair takes the set of damages that explains all witnesses and costs the least:

    damage                                                            cost       in a cleaned log
    ----------------------------------------------------------------  ---------  -------------------------------------------
    one bit of a field (base offset, leader epoch, index entry), or   BIT        the same
      any of a base offset where another field of the header is
      wrong and was corrected: the same write damaged both
    one byte of a field                                               BYTE       the same
    more of a field                                                   FIELD      the same
    a sound batch that does not belong to the log: a copy, a          BATCH      the same
      leftover
    offsets missing between two batches of which no bytes are         GAP        CLEANED_GAP: the cleaner removes records
      missing, or before the next segment
    a gap of LARGE_GAP or more before the last batch, or before what  GAP_LARGE  0
      may be payload, whether bytes are missing or not
    a checkpoint or snapshot name that is not an end of the log:      LOG_END    the same
      each one below it; all above it together, which one loss of
      the last records explains
    an entry of .timeindex that is wrong; of leader-epoch-checkpoint  ENTRY      the same
      for offsets
    an entry of leader-epoch-checkpoint with another leader epoch     1 more than that of the difference
    offsets that overflow the segment's name                          OVERFLOW   the same
    a batch found behind damaged bytes is the payload of their last   PAYLOAD    the same
      record
    nothing is left of a batch, where the one before it states its    LOST       the same
      end and the next offset
    a segment that was renamed, or a file that is not a segment       FILE       the same
    each other file with the name of a file that is not a segment     COMPANION  the same
    a batch with a wrong CRC (DAMAGE); that its length is wrong as   DAMAGE     the same
      well: by a BIT more, SHIFTED in all if it is less than a       BIT
      header's size off (bytes are missing or were inserted),        SHIFTED
      OTHER_END in all for any other length; TORN if the end of      OTHER_END
      the file cuts it                                               TORN
    nothing of a damaged batch's header is used: FIELD, or DAMAGE    FIELD      the same
      and a BIT if its length is right; LOST_HEADER
      behind fewer than LONG_ENOUGH sound batches that follow        LOST_HEADER
      damage; SECTOR if a sector of zeros begins in it               SECTOR
    a sound batch behind damage that is payload; each further one    PAYLOAD    the same
      of a chain, up to LONG_ENOUGH, and up to LATER_CHAIN of a      1 more
      later chain in the same batch; PAYLOAD for all if the damaged
      batch states to end at a sound one, or behind the end of the
      file
    a further batch of a chain, of the log or payload, and its gap   1,         the same
                                                                     CLEANED_GAP
    payload that ends exactly where the file does                    EXACT_END  the same
    what looks like a header is in a damaged batch, and the path     HEADER     the same
      goes on before the end that it states, or right behind sound
      batches that are payload, or amid a chain of LATER_CHAIN;      BIT
      BIT if other fields of it are wrong
    a length that leads to a sound batch with the next offset is     LED        the same
      wrong, or no length
    a batch that the lengths of records enclose is that of the log   WALKED     the same
    bytes that were inserted between two batches                     INSERTED   the same
    a sound batch has another base offset than it states, behind     CORRECTED  the same
      damage: more by so much than its wrong bits, bytes or field,
      but not for a bit or byte behind LONG_ENOUGH sound batches
    a sound message of format 0 or 1 behind a batch of format 2,     OLDER_     the same
      which it does not follow with the next offset                  FORMAT

The reader of segments (resynchronise) compares ways through damaged bytes by the last eleven rows and those of fields and gaps.
Payload does not win by being long, nor does the log: a chain counts as much as its first LONG_ENOUGH batches.

A gap of offsets is free where bytes are missing or damaged, or where an earlier repair has lost the offsets. The first batch
after damage that no length and no index entry leads to may be the end of a record's value: the batch of that record is damaged.
It is taken for payload if something else contradicts it:

- a gap behind it, or one of LARGE_GAP before it;
- an offset that overflows the segment's name and that nothing follows;
- another leader epoch than leader-epoch-checkpoint has for its offset, or than the batches before and after it allow;
- after a clean stop, an offset above each checkpoint and snapshot;
- the damaged batch before it, which is not compressed, states another end, and the next offset is that of the found batch, so
  that no offset is left for the bytes between: the length is wrong, or nothing is left of the batch whose payload was found.

It is removed then, and --take-inner keeps it. The batch directly behind it may be payload of the same record, if it is
contradicted too. The next segment's name alone does not correct its offset.
The reader of segments decides with the segment and its index as the only witnesses, for dump-log, the Spark source and verify.

A batch's offset is a candidate if

- it is the stated one;
- one bit or byte of it is wrong, and the batch fills the gap between its neighbours exactly;
- one bit of it is wrong, and it follows the batch before or is followed by the next one, in a log that was not cleaned;
- a file names it: an index entry at its byte, the next snapshot, a checkpoint, the start of its leader epoch.

So a gap is never closed by a correction that nothing else explains.
Nothing inside of a batch with a right CRC is a candidate, and the bytes of a batch that is in the file twice are a copy.

The best choice is found by dynamic programming over the batches in the order of the file: the best choice that ends with a
candidate continues the best one that ends below its first offset. So no sound record is removed because of a wrong header next
to it. Of equal choices the one with smaller gaps stays, then the one with the offsets as read, or as an index entry has them if
the batch does not follow the one before: no index is rebuilt from what it contradicts as well. A plan names the others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.format.record_batch import MAGIC, NO_LEADER_EPOCH, RecordBatch

if TYPE_CHECKING:
    from kcli.format.checkpoint import EpochStart

BIT, BYTE, FIELD = 4, 6, 9
BATCH = 10
GAP, CLEANED_GAP = 5, 2
GAP_LARGE = 4
LARGE_GAP = 1 << 16
LOG_END = 3
ENTRY = 5
OVERFLOW = 5
PAYLOAD = 3
LOST = 5
FILE = 8
COMPANION = 1
SECTOR, SECTOR_BYTES = 4, 512
DAMAGE, SHIFTED, OTHER_END, TORN = 4, 9, 12, 6
LOST_HEADER, LONG_ENOUGH, LATER_CHAIN = 14, 8, 4
HEADER = 10
WALKED = 30
EXACT_END = 2
LED = 7
INSERTED = 2
CORRECTED = 8
OLDER_FORMAT = 10
OFFSET_BYTES = 8  # of the base offset
# Leader epochs in this order cannot be; runs of batches that are too long to be corrected may leave such an order.
_IMPOSSIBLE = 1 << 20
# Of how many corrected or removed batches choices of equal cost are searched, in segments of at most how many batches.
MOST_DOUBTED, MOST_SEARCHED = 4, 10_000
# In a segment of many batches two windows of this size are explained together, and the choice of the first one is kept: the
# memory for candidates is bounded.
WINDOW = 50_000
# What the batch of a row is worth that has to stay.
_FORCED = 1 << 30
# A run of batches may have the leader epoch of one of this number of runs before and after it.
_MOST_NEIGHBOURS = 6


def difference(stated: int, right: int) -> int:
    """Return the cost of a field that states one value where the right one is another."""
    bits = (stated ^ right) & (1 << 64) - 1
    if not bits:
        return 0
    if bits.bit_count() == 1:
        return BIT
    lowest = (bits & -bits).bit_length() - 1 & ~7
    return BYTE if bits >> lowest < 256 else FIELD


def is_thinned(header: RecordBatch) -> bool:
    """Return True if the cleaner was at a sound batch: it has fewer records than offsets, or a delete horizon."""
    return header.record_count != header.last_offset_delta + 1 or header.delete_horizon_ms is not None


class Batch(NamedTuple):
    """The bytes [position, end) of a batch, and its offsets; the leader epoch is -1 in formats 0 and 1.

    `is_thinned`: the cleaner was there, so that an index may have any of its offsets.
    """

    position: int
    end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int = MAGIC
    is_thinned: bool = False


class Batches:
    """Batches of a segment as columns with the names of Batch's fields: a segment may have millions."""

    def __init__(self) -> None:
        self.position = array("q")
        self.end = array("q")
        self.base_offset = array("q")
        self.last_offset = array("q")
        self.leader_epoch = array("q")
        self.magic = array("q")
        self.is_thinned = array("q")
        named = (self.position, self.end, self.base_offset, self.last_offset, self.leader_epoch, self.magic, self.is_thinned)
        self._columns = named

    def __len__(self) -> int:
        return len(self.position)

    def insert(self, index: int, batch: Batch) -> None:
        """Insert a batch before the one at `index`."""
        for column, value in zip(self._columns, batch, strict=True):
            column.insert(index, value)

    def rows(self) -> Iterator[Batch]:
        """Yield each batch."""
        return (Batch(*row) for row in zip(*self._columns, strict=True))

    def merge(self, found: Sequence[Batch]) -> None:
        """Add batches at their places in the file."""
        rows = sorted([*self.rows(), *found])
        for number, column in enumerate(self._columns):
            column[:] = array("q", (row[number] for row in rows))

    def pick(self, indexes: Sequence[int]) -> Batches:
        """Return the batches at `indexes`."""
        picked = Batches()
        for mine, theirs in zip(self._columns, picked._columns, strict=True):
            theirs.extend(mine[index] for index in indexes)
        return picked


class LogWitnesses(NamedTuple):
    """What the files next to the segments show.

    `known_ends` are offsets at which the log ended at some time. `epochs` are the entries of leader-epoch-checkpoint. `lost`
    has the offsets [first, end) that earlier repairs lost.
    `is_cleaned`: the cleaner may have made gaps. `has_all_epochs`: the log directory was stopped cleanly, so the file has the
    last epoch.
    """

    known_ends: Sequence[int] = ()
    epochs: Sequence[EpochStart] = ()
    is_cleaned: bool = False
    has_all_epochs: bool = False
    lost: Sequence[tuple[int, int]] = ()

    def epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of an offset, None before the first entry."""
        found = bisect_right(self.epochs, offset, key=lambda entry: entry.start_offset)
        return self.epochs[found - 1].epoch if found else None


class WrongLength(NamedTuple):
    """The damaged batch before the byte at which the log continues states another end; `cost` is that of its length.

    `next_offset` is the offset after the batch.
    """

    next_offset: int
    cost: int


class SegmentWitnesses(NamedTuple):
    """What is known of one segment: the offsets [first, end) that it may have, the offset in its name, its index entries.

    `entries` are the offsets of .index by byte, `times` those of .timeindex by timestamp. `is_end_sound`: no damaged bytes are
    after the last batch. `is_continued`: the log before the segment ends at the offset in its name. `end_offset` is INT64_MAX
    for the last segment. `searched` are the bytes at which the log continues after damage that does not state its end, with
    the header that states an earlier one, if it is readable. `corrected` are the bytes of batches of which another header field
    was corrected.
    """

    first_offset: int
    end_offset: int
    base_offset: int
    entries: Mapping[int, int] = {}
    times: Mapping[int, int] = {}
    is_end_sound: bool = True
    is_continued: bool = True
    searched: Mapping[int, WrongLength | None] = {}
    corrected: Container[int] = frozenset()


class Candidate(NamedTuple):
    """A batch with the offsets [base_offset, last_offset]; `cost` is that of the damages which it supposes.

    `is_free`: bytes before it are missing, so that a gap in the offsets costs nothing. `is_doubtful`: it may be payload of the
    damaged bytes before it; without it a gap before the next batch costs nothing.
    """

    base_offset: int
    last_offset: int
    cost: int = 0
    is_free: bool = False
    is_doubtful: bool = False


class Chosen(NamedTuple):
    """The batch of row `row` stays, with a base offset."""

    row: int
    base_offset: int


class Differing(NamedTuple):
    """The batch of row `row` has another base offset in a choice that costs as much as the chosen one; None: it is removed."""

    row: int
    base_offset: int | None


# ------------------------------------------------------------------------------------------------------------------ offsets


class OffsetExplanation:
    """The choice of the batches of one segment that stay, and of their base offsets.

    `batches` are all sound batches in the order of the file.
    """

    def __init__(self, batches: Batches, segment: SegmentWitnesses, log: LogWitnesses) -> None:
        self._batches = batches
        self._segment = segment
        self._log = log
        self._copies: frozenset[int] = frozenset()
        self._stated = array("q")  # ascending
        self._of_rows: list[list[Candidate]] = []
        self._timestamps: Mapping[int, int] = {}
        self._latest: Container[int] | None = None
        self._doubts: dict[int, bool] = {}
        self._agrees = self._index_agrees()
        self._is_cleaned = log.is_cleaned or self._has_gaps()
        self._gap = CLEANED_GAP if self._is_cleaned else GAP

    def is_needed(self) -> bool:
        """Return True if the batches as read contradict each other, the segment's bounds or the witnesses."""
        batches, segment = self._batches, self._segment
        if not len(batches):
            return False
        before, last = segment.first_offset - 1, len(batches) - 1
        for index in range(len(batches)):
            base_offset = batches.base_offset[index]
            is_gap = base_offset != before + 1 and not self._is_free(index)
            if base_offset <= before or (is_gap and (not self._is_cleaned or index == last)):
                return True
            before = batches.last_offset[index]
        is_beyond = before >= segment.end_offset or not all(self._agrees.values())
        searched = (bisect_left(batches.position, position) for position in segment.searched)
        is_doubtful = any(index <= last and self._is_contradicted(index) for index in searched)
        is_doubtful |= before + 1 != segment.end_offset < INT64_MAX and self._may_be_payload(last)
        return is_beyond or is_doubtful or (self._is_free(last) and len(self._named(last, [])) > 0)

    def contradicted(self) -> list[int]:
        """Return the rows of batches with an index entry that is neither theirs nor one of several batches."""
        return [index for index, agrees in self._agrees.items() if not agrees]

    def choose(
        self,
        copies: frozenset[int] = frozenset(),
        timestamps: Mapping[int, int] = {},
        latest: Container[int] | None = None,
    ) -> list[Chosen]:
        """Return the batches that stay, in the order of the file.

        `copies` are the indexes of batches that are there twice: their offsets are not corrected. `timestamps` are the largest
        ones (ms) of the contradicted batches and of the last one, by row; `latest` are the offsets, from its base offset on,
        that .timeindex may have for the last batch, None for any.
        """
        self._copies, self._timestamps, self._latest = copies, timestamps, latest
        self._stated = array("q", sorted(self._batches.base_offset))
        count, segment = len(self._batches), self._segment
        if count <= 2 * WINDOW:
            rows = [self._candidates_of(index) for index in range(count)]
            self._of_rows = rows if count <= MOST_SEARCHED else []
            return best_choice(rows, segment.first_offset, segment.end_offset, gap=self._gap)
        chosen, first_offset = list[Chosen](), segment.first_offset
        for start in range(0, count, WINDOW):
            end = min(start + 2 * WINDOW, count)
            rows = [self._candidates_of(index) for index in range(start, end)]
            rows = [[one for one in some if one.base_offset >= first_offset] for some in rows]
            end_offset = segment.end_offset if end == count else INT64_MAX
            for row, base_offset in best_choice(rows, first_offset, end_offset, gap=self._gap):
                if row < WINDOW or end == count:
                    chosen.append(Chosen(start + row, base_offset))
                    first_offset = base_offset + self._size(start + row)
            if end == count:
                break
        return chosen

    def alternatives(self, chosen: Sequence[Chosen]) -> list[list[Differing]]:
        """Return where other choices differ from the one that `choose` returned, if they cost the same.

        For each of the first MOST_DOUBTED batches that are corrected or removed the best choice without that is compared. Not
        for payload, which --take-inner keeps, and for copies.
        """
        if not self._of_rows:
            return []
        bases = {one.row: one.base_offset for one in chosen}
        stated = self._batches.base_offset
        doubted = [row for row in range(len(stated)) if bases.get(row) != stated[row] and row not in self._copies]
        doubted = [row for row in doubted if row in bases or not self._doubts.get(row, False)]
        bounds, found = (self._segment.first_offset, self._segment.end_offset, self._gap), list[list[Differing]]()
        points, _ = _best_choice(self._of_rows, *bounds)
        for row in doubted[:MOST_DOUBTED]:
            rows = list(self._of_rows)
            if row in bases:
                rows[row] = [one for one in rows[row] if one.base_offset != bases[row]]
            else:
                rows[row] = [one._replace(cost=one.cost - _FORCED) for one in rows[row]]
            others, choice = _best_choice(rows, *bounds)
            theirs = {one.row: one.base_offset for one in choice}
            differing = [Differing(one, theirs.get(one)) for one in range(len(stated)) if theirs.get(one) != bases.get(one)]
            if others - (0 if row in bases else _FORCED) == points and differing not in found:
                found.append(differing)
        return found

    def payload(self, chosen: Sequence[Chosen]) -> list[int]:
        """Return the rows of batches that are not chosen because they are taken for payload."""
        rows = {one.row for one in chosen}
        return [index for index, may_be in sorted(self._doubts.items()) if may_be and index not in rows]

    def _size(self, index: int) -> int:
        return self._batches.last_offset[index] - self._batches.base_offset[index] + 1

    def _is_free(self, index: int) -> bool:
        """Return True if bytes are missing or damaged before a batch, now or before an earlier repair."""
        batches = self._batches
        if batches.position[index] != (batches.end[index - 1] if index else 0):
            return True
        first = batches.last_offset[index - 1] + 1 if index else self._segment.first_offset
        return any(first <= start < end <= batches.base_offset[index] for start, end in self._log.lost)

    def _next_before(self, index: int) -> int:
        """Return the offset after the batch before one, as read."""
        return self._batches.last_offset[index - 1] + 1 if index else self._segment.first_offset

    def _is_far(self, index: int, first: int) -> bool:
        """Return True if a large gap is before offset `first` of a batch, and no file names the offset after the batch."""
        is_large = first - self._next_before(index) >= LARGE_GAP and not self._is_cleaned
        return is_large and first + self._size(index) not in self._log.known_ends

    def _may_be_payload(self, index: int) -> bool:
        """Return True if only its bytes show that a batch begins there, after damaged bytes, and the log goes on without it."""
        known = self._doubts.get(index)
        if known is None:
            known = self._doubts[index] = index not in self._agrees and (self._is_found(index) or self._is_next_payload(index))
        return known

    def _is_next_payload(self, index: int) -> bool:
        """Return True if the batch directly before one is taken for payload, and the same contradicts this one."""
        position = self._batches.position[index]
        if not index or not self._segment.searched or position in self._segment.searched or self._is_free(index):
            return False
        return self._doubts.get(index - 1, False) and self._is_contradicted(index - 1) and self._doubt(index) > PAYLOAD

    def _is_contradicted(self, index: int) -> bool:
        return self._may_be_payload(index) and (self._follows_nothing(index) or self._doubt(index) > PAYLOAD)

    def _doubt(self, index: int) -> int:
        """Return the cost of what contradicts a batch that may be payload."""
        batches, segment, log = self._batches, self._segment, self._log
        first, next_offset, epoch = batches.base_offset[index], batches.last_offset[index] + 1, batches.leader_epoch[index]
        is_last = index == len(batches) - 1 and segment.end_offset == INT64_MAX
        cost, known = 0, log.epoch_of(first)
        is_new = is_last and known is not None and not log.has_all_epochs and known == log.epochs[-1].epoch < epoch
        if known is not None and known != epoch and not is_new:
            cost += ENTRY
        elif known is None and epoch >= 0:
            least = batches.leader_epoch[index - 1] if index else epoch
            most = batches.leader_epoch[index + 1] if index + 1 < len(batches) else epoch
            cost += max(difference(epoch, least) if epoch < least else 0, difference(epoch, most) if 0 <= most < epoch else 0)
        cost += GAP_LARGE if self._is_far(index, first) else 0
        if is_last and log.has_all_epochs and log.known_ends and next_offset > max(log.known_ends):
            cost += LOG_END * log.known_ends.count(max(log.known_ends))
        length = segment.searched.get(batches.position[index])
        if length is not None and self._next_before(index) < length.next_offset == first:
            cost += max(length.cost - LOST, 0)
        return cost

    def _is_found(self, index: int) -> bool:
        batches, after = self._batches, index + 1
        is_found = batches.position[index] in self._segment.searched and self._is_free(index)
        if not is_found or after == len(batches):
            return is_found
        next_offset = batches.last_offset[after] + 1
        is_followed = after + 1 < len(batches) and batches.base_offset[after + 1] == next_offset
        return is_followed or self._agrees.get(after, False) or next_offset in self._log.known_ends

    def _follows_nothing(self, index: int) -> bool:
        """Return True if a batch may be payload, overflows the segment's name, and neither a batch nor a file goes on there."""
        batches = self._batches
        if not self._may_be_payload(index) or batches.last_offset[index] <= self._segment.base_offset + INT32_MAX:
            return False
        next_offset = batches.last_offset[index] + 1
        is_followed = index + 1 < len(batches) and batches.base_offset[index + 1] == next_offset
        ends = [*self._log.known_ends, *((self._segment.end_offset,) if self._segment.end_offset < INT64_MAX else ())]
        return not is_followed and all(end < next_offset for end in ends)

    def _has_gaps(self) -> bool:
        """Return True if ascending batches have a gap between them, without damage there; not before the last batch.

        Nor after a batch that may be payload.
        """
        bases, lasts = self._batches.base_offset, self._batches.last_offset
        return any(
            bases[index] > lasts[index - 1] + 1
            and not self._is_free(index)
            and lasts[index] < bases[index + 1]
            and not self._may_be_payload(index - 1)
            for index in range(1, len(bases) - 1)
        )

    def _index_agrees(self) -> dict[int, bool]:
        """Return for each batch with an index entry whether the two agree; nothing if most entries are of another log."""
        batches, found = self._batches, dict[int, bool]()
        for position, offset in self._segment.entries.items():
            index = bisect_left(batches.position, position)
            if index == len(batches) or batches.position[index] != position:
                continue
            # An entry of a follower before Kafka 4.0, or of the cleaner, has the last offset of an append of several batches.
            later = bisect_left(batches.last_offset, offset, index)
            is_end = later < len(batches) and batches.last_offset[later] == offset
            is_inside = later < len(batches) and bool(batches.is_thinned[later]) and batches.base_offset[later] <= offset
            is_named = (is_end or is_inside) and batches.base_offset[index] <= offset
            found[index] = batches.last_offset[index] == offset or is_named
        return found if 2 * sum(found.values()) >= len(found) else {}

    # ---------------------------------------------------------------------------------------------------- candidates

    def _is_stated(self, first: int) -> bool:
        """Return True if a batch states this base offset."""
        found = bisect_left(self._stated, first)
        return found < len(self._stated) and self._stated[found] == first

    def _before(self, index: int) -> list[int]:
        """Return the offsets that follow the one or two batches before one."""
        lasts = self._batches.last_offset
        if self._is_free(index):
            return []
        if not index:
            return [self._segment.first_offset]
        return [lasts[index - 1] + 1, *([lasts[index - 2] + 1] if index > 1 and not self._is_free(index - 1) else [])]

    def _behind(self, index: int) -> list[int]:
        """Return the offsets with which the next one or two batches begin."""
        bases, count = self._batches.base_offset, len(self._batches)
        if index == count - 1:
            is_closed = self._segment.end_offset < INT64_MAX and self._segment.is_end_sound
            return [self._segment.end_offset] if is_closed else []
        if self._is_free(index + 1):
            return []
        return [bases[index + 1], *([bases[index + 2]] if index + 2 < count and not self._is_free(index + 2) else [])]

    def _candidates_of(self, index: int) -> list[Candidate]:
        """Return the candidates of a batch; of equal explanations that of the last one is chosen.

        That is the one as read, unless an index entry contradicts it, and the batch does not follow the one before.
        """
        batches, segment, before, behind = self._batches, self._segment, self._before(index), self._behind(index)
        stated, size = batches.base_offset[index], self._size(index)
        values: dict[int, int] = {}
        is_doubtful = self._may_be_payload(index)
        # The name of the next segment alone does not correct what may be payload.
        is_fixed = is_doubtful and index == len(batches) - 1
        if index not in self._copies and batches.magic[index] == MAGIC and not is_fixed:
            for first in before:
                exact = first + size in behind
                # The name alone does not show the offset of a segment's first batch: the segment may have been renamed. But
                # an offset that is negative or overflows the name is wrong itself.
                if index or exact or segment.is_continued or not self._is_possible(stated):
                    self._add(values, index, first, exact=exact, is_last=index == len(batches) - 1)
            if not index and not self._is_possible(stated):
                values.setdefault(segment.base_offset, self._difference(index, segment.base_offset))
            for end in behind:
                self._add(values, index, end - size, exact=end - size in before, is_last=False)
            for first in self._named(index, before):
                values.setdefault(first, self._difference(index, first))
        # If another batch states an offset, the two are exchanged, or one is a copy.
        values = {first: cost for first, cost in values.items() if not self._is_stated(first)}
        values[stated] = 0
        if self._agrees.get(index) is False and stated not in before[:1]:
            values = dict(reversed(values.items()))
        fitting = {
            first: cost
            for first, cost in values.items()
            if segment.first_offset <= first and first + size <= segment.end_offset
        }
        # A batch that may be payload is worth PAYLOAD: as much as the damage costs that explains the log without it.
        common = BATCH - PAYLOAD if is_doubtful else 0
        common += self._doubt(index) + (OVERFLOW if self._follows_nothing(index) else 0) if is_doubtful else 0
        return [
            Candidate(
                first,
                first + size - 1,
                common + cost + (self._contradicted(index, first, values) if len(values) > 1 else 0),
                self._is_free(index),
                is_doubtful,
            )
            for first, cost in fitting.items()
        ]

    def _difference(self, index: int, first: int) -> int:
        """Return the cost of a batch's base offset being `first`: a BIT at most if another field was wrong as well."""
        cost = difference(self._batches.base_offset[index], first)
        return min(cost, BIT) if self._batches.position[index] in self._segment.corrected else cost

    def _add(self, values: dict[int, int], index: int, first: int, *, exact: bool, is_last: bool) -> None:
        """Add the base offset `first` if one bit or byte of the stated one is wrong and its neighbours explain it."""
        cost = self._difference(index, first)
        is_byte = cost == BYTE and is_last and self._batches.base_offset[index] - first >= LARGE_GAP
        if (exact and 0 < cost <= BYTE) or (not self._is_cleaned and (cost == BIT or is_byte)):
            values.setdefault(first, cost)

    def _is_possible(self, stated: int) -> bool:
        """Return True if a base offset is one that the segment's name allows."""
        return 0 <= stated <= self._segment.base_offset + INT32_MAX

    def _named(self, index: int, before: list[int]) -> list[int]:
        """Return the base offsets of a batch that other files name."""
        size, found = self._size(index), list[int]()
        # The offsets of indexes are relative to the name, which does not show that of the segment's first batch.
        is_relative = index > 0 or self._segment.is_continued
        offset = self._segment.entries.get(self._batches.position[index])
        if is_relative and offset is not None and self._agrees.get(index) is False:
            found.append(offset - size + 1)
        is_last = index == len(self._batches) - 1 and self._segment.end_offset == INT64_MAX
        stated, least = self._batches.base_offset[index], self._next_before(index)
        # After damage a log that was not stopped cleanly may have ended before the offsets that were lost.
        is_doubtful = stated not in before and (before or self._log.has_all_epochs or stated - least >= LARGE_GAP)
        if is_last and is_doubtful:
            ends = [end - size for end in self._log.known_ends]
            ends += [entry.start_offset for entry in self._log.epochs if entry.epoch == self._batches.leader_epoch[index]]
            ends += [last - size + 1 for last in self._segment.times.values()] if is_relative else []
            ends += [offset - size + 1] if is_relative and offset is not None else []
            is_named = {first for first in ends if ends.count(first) > 1 and (first > least or (first == least and not before))}
            found += [first for first in ends if first in before or first in is_named]
            named = self._segment.times.get(self._timestamps.get(index, -1))
            found += [first for first in before if is_relative and named is not None and named - first in (self._latest or ())]
        return found

    def _contradicted(self, index: int, first: int, values: Mapping[int, int]) -> int:
        """Return the cost of the witnesses that are wrong if a batch begins at offset `first`."""
        batches, segment = self._batches, self._segment
        size, cost = self._size(index), 0
        if index in self._agrees:
            offset = segment.entries[batches.position[index]]
            if first != batches.base_offset[index] or not self._agrees[index]:
                cost += difference(offset, first + size - 1)
        epoch = self._log.epoch_of(first)
        if epoch is not None and batches.leader_epoch[index] != epoch and not self._may_be_payload(index):
            cost += ENTRY
        if index == len(batches) - 1 and segment.end_offset == INT64_MAX:
            named_ends = [end for end in self._log.known_ends if end - size in values]
            cost += LOG_END * sum(end < first + size for end in named_ends)
            cost += LOG_END if any(end > first + size for end in named_ends) else 0
            cost += GAP_LARGE if self._is_far(index, first) else 0
            named = segment.times.get(self._timestamps.get(index, -1))
            latest = range(size) if self._latest is None else self._latest
            cost += 0 if named is None or named - first in latest else ENTRY
        elif index in self._timestamps:
            named = segment.times.get(self._timestamps[index], -1)
            # An entry below is of a batch before with the same timestamp.
            cost += ENTRY if named >= max(self._next_before(index), 0) and not first <= named < first + size else 0
        most = segment.base_offset + INT32_MAX
        if first + size - 1 > most and (not index or batches.last_offset[index - 1] <= most):
            cost += OVERFLOW
        return cost


class _Score(NamedTuple):
    """The score of a choice: what it saves, and how many offsets it has."""

    points: int = 0
    offsets: int = 0

    def with_batch(self, points: int, offsets: int) -> _Score:
        """Return the score of the choice and one more batch."""
        return _Score(self.points + points, self.offsets + offsets)


def best_choice(
    candidates: Sequence[Sequence[Candidate]], first_offset: int, end_offset: int, *, gap: int = GAP
) -> list[Chosen]:
    """Return the cheapest choice of one candidate or none for each batch, in the order of the file, with ascending offsets.

    A batch that stays saves BATCH, less its cost and that of a gap before it: a removed one costs BATCH and the gap that it
    leaves. The best choice that ends below an offset is found in log n steps, by a Fenwick tree of prefix maxima over the last
    offsets.
    """
    return _best_choice(candidates, first_offset, end_offset, gap)[1]


def _best_choice(
    candidates: Sequence[Sequence[Candidate]], first_offset: int, end_offset: int, gap: int
) -> tuple[int, list[Chosen]]:
    """Return the best choice and what it saves."""
    lasts = sorted({one.last_offset for some in candidates for one in some})
    nothing = (_Score(), -1)
    tree = [nothing] * (len(lasts) + 1)  # (score, node that the choice ends with)

    def best_below(base_offset: int) -> tuple[_Score, int]:
        best, slot = nothing, bisect_left(lasts, base_offset)
        while slot > 0:
            best = max(best, tree[slot])
            slot &= slot - 1
        return best

    ending_at = {first_offset - 1: nothing}
    nodes: list[tuple[Chosen, int]] = []  # and the node before it, -1 for none
    # Without what may be payload at the end, a gap before the next segment costs nothing.
    left_out = [end_offset < INT64_MAX and any(one.is_doubtful for one in some) for some in [*candidates, ()]]
    best_of_all, least = nothing, (gap if left_out[0] else 0, 0)
    without: list[tuple[_Score, int]] = []  # the best choice below each candidate, without a doubtful batch before it
    for index, some in enumerate(candidates):
        found: list[tuple[Candidate, _Score, int]] = []
        for one in some:
            best = best_below(one.base_offset)
            points = BATCH - gap - one.cost
            if one.is_free:
                points += gap
            else:
                joined = [ending_at[one.base_offset - 1]] if one.base_offset - 1 in ending_at else []
                joined += without[len(found) : len(found) + 1]
                best = max([best, *((score.with_batch(gap, 0), node) for score, node in joined)])
            found.append((one, best[0].with_batch(points, one.last_offset - one.base_offset + 1), best[1]))
        is_doubtful = any(one.is_doubtful for one in some) and index + 1 < len(candidates)
        without = [best_below(one.base_offset) for one in candidates[index + 1]] if is_doubtful else []
        for one, score, before in found:
            node = len(nodes)
            nodes.append((Chosen(index, one.base_offset), before))
            if score > ending_at.get(one.last_offset, nothing)[0]:
                ending_at[one.last_offset] = (score, node)
            slot = bisect_left(lasts, one.last_offset) + 1
            while slot <= len(lasts):
                tree[slot] = max(tree[slot], (score, node))
                slot += slot & -slot
            # Of the choices that end at one offset, the one with the most offsets has the smallest gaps.
            total = (
                score.points + (gap if one.last_offset + 1 == end_offset or left_out[index + 1] else 0),
                score.offsets - one.last_offset,
            )
            if (best_of_all[1] < 0 and not one.is_doubtful) or total >= least:
                best_of_all, least = (score, node), total
    return least[0], _path(nodes, best_of_all[1])


def _path(nodes: Sequence[tuple[Chosen, int]], node: int) -> list[Chosen]:
    """Return what is chosen up to a node, in the order of the file."""
    chosen: list[Chosen] = []
    while node >= 0:
        one, node = nodes[node]
        chosen.append(one)
    return chosen[::-1]


# ------------------------------------------------------------------------------------------------------------ leader epochs


class EpochRun(NamedTuple):
    """Successive batches of one leader epoch: the offset of the first one, their number, and whether they can be corrected."""

    epoch: int
    first_offset: int
    batches: int
    is_fixed: bool = False


def choose_epochs(runs: Sequence[EpochRun], log: LogWitnesses) -> list[int]:
    """Return the leader epochs of the runs of a log, which never go back: the cheapest explanation.

    The epoch of a run is the stated one, that of a neighbour, or that of leader-epoch-checkpoint for its first offset.
    """
    table = [[_EpochStep(0, 0, 0, NO_LEADER_EPOCH, -1)]]
    for index in range(len(runs)):
        row: list[_EpochStep] = []
        for epoch, cost in _epoch_costs(runs, index, log):
            steps = (
                _EpochStep(
                    before.cost + cost + (_IMPOSSIBLE if epoch < before.epoch else 0),
                    before.changes + (epoch != before.epoch),
                    before.total + epoch,
                    epoch,
                    slot,
                )
                for slot, before in enumerate(table[-1])
            )
            row.append(min(steps))
        table.append(row)
    chosen: list[int] = []
    slot = table[-1].index(min(table[-1]))
    for row in reversed(table[1:]):
        chosen.append(row[slot].epoch)
        slot = row[slot].slot_before
    return chosen[::-1]


class _EpochStep(NamedTuple):
    """The cheapest epochs of the runs up to one that has `epoch`; of equal ones those with fewer changes, then lower ones."""

    cost: int
    changes: int
    total: int
    epoch: int
    slot_before: int


def _epoch_costs(runs: Sequence[EpochRun], index: int, log: LogWitnesses) -> list[tuple[int, int]]:
    """Return the epochs that a run may have, each with its cost."""
    run = runs[index]
    known = log.epoch_of(run.first_offset)
    values = {run.epoch}
    if not run.is_fixed:
        near = runs[max(index - _MOST_NEIGHBOURS, 0) : index + _MOST_NEIGHBOURS + 1]
        values |= {one.epoch for one in near if one.epoch >= 0}
        values |= {known} if known is not None else set()
    # After a crash the file may lack the last leader epoch.
    is_new = index == len(runs) - 1 and not log.has_all_epochs and known is not None and run.epoch > known
    found: list[tuple[int, int]] = []
    for epoch in values:
        cost = run.batches * difference(run.epoch, epoch)
        if known is not None and epoch != known and not (is_new and epoch == run.epoch):
            cost += difference(known, epoch) + 1  # the file has a line for many batches: one batch alone is wrong sooner
        found.append((epoch, cost + (_IMPOSSIBLE if epoch < NO_LEADER_EPOCH else 0)))
    return found
