"""Find where a log continues after damage: the cheapest explanation of the damaged bytes, in bounded time.

A record's value may itself be a sound batch (a mirror, a dead letter queue, an attacker). A batch that is found by its bytes
alone therefore proves nothing: it may be inside the damaged one. What decides is one comparison: of all ways to divide the
bytes behind the damage into batches of the log, the one whose damages cost the least, by the table of
kcli.log.reading.explanation.

The places where a batch of the log may begin:

- the damaged entry itself;
- each sound batch behind it (right CRC), and the end of each; the search skips what is inside of a sound batch;
- what looks like a header of a damaged batch, and the end that such a header states, if a header is there.

They reach from the damaged entry to where the log surely goes on: the next sound batch that the .index points at, whose offset
is right then; LONG_RUN sound batches that continue each other and end NEAR_END_BYTES behind the entry or later, for fewer bytes
may be one record; the end of the file. A sound batch inside of one of the entry's records is no place. Of adjacent batches
with ascending offsets those after the first LONG_RUN are one place, unless the entry states to end at one. After MOST_PLACES
sound batches, or MOST_RUNS chains of them with damage between, the explanation ends, too, or goes on near the stated end.

A path goes from place to place: over a sound batch to its end; from a damaged one to any later place. It costs what is then
wrong: of the damaged batch its length, its header, its records; the offsets on both sides of it; and everything on the way that
the path does not take for the log: sound batches, which are payload then, and headers that look right. If the lengths of its
records show that a batch is inside of one of them, it costs nothing to leave it out and WALKED to take it. A batch with a right
CRC is never divided: no place inside of it counts, unless it is inside of a record itself.
Of paths of equal cost the one with fewer batches is taken: bytes that may be payload are not.

Before, the entry's own CRC is tried for other lengths: with one bit flipped, up to the file's end if it is near, to the next
sound batches, to headers with the next offset. If it is right for one of them, the entry is complete, and only its length is
wrong ("proven"). An entry that states the right end, by LONG_RUN headers that continue each other or lead to an index entry or
to the end of the file, needs no comparison: no other path can be cheaper.

A reader that does not know the topic takes a segment for cleaned unless records without keys are behind a gap, which the
cleaner would have removed: a repair decides with the topic's policy, and readers hide nothing that may be sound. All of the
file is used, so a part of a segment that is read alone has the same batches.

Cost: the sound batches and the ends that CRCs prove are cached, and each decision, which depends on the entry's byte and the
offset before it only. Bytes read because of a wrong length count against a budget of the file (SearchBudget); when it is spent,
evidence that would need it counts as absent. After MOST_SEARCHES searches of a file the rest, up to an entry of .index, is one
damage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.primitives import INT32_MAX, INT64_MAX, crc32c
from kcli.format.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    RecordBatch,
)
from kcli.log.disk.port import DiskFile, zeros_follow
from kcli.log.reading.batch_search import (
    FilePieces,
    RecordWalk,
    SearchBudget,
    SoundBatches,
    can_be_header,
    header_at,
    is_sound,
    least_offset,
    least_size,
    plausible_header,
    records_end,
    sized_headers,
)
from kcli.log.reading.explanation import (
    BIT,
    BYTE,
    CLEANED_GAP,
    CORRECTED,
    DAMAGE,
    EXACT_END,
    FIELD,
    GAP,
    GAP_LARGE,
    HEADER,
    INSERTED,
    LARGE_GAP,
    LATER_CHAIN,
    LED,
    LONG_ENOUGH,
    LOST_HEADER,
    OFFSET_BYTES,
    OLDER_FORMAT,
    OTHER_END,
    OVERFLOW,
    PAYLOAD,
    SECTOR,
    SECTOR_BYTES,
    SHIFTED,
    TORN,
    WALKED,
    difference,
    is_thinned,
)
from kcli.log.reading.header_reader import PROBE_BYTES, HeaderReader
from kcli.log.reading.index_positions import IndexPositions

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.log.reading.explanation import LogWitnesses

    _Headers = dict[int, RecordBatch | LegacyBatch | None]

IMPOSSIBLE = 1 << 20  # the cost of a path that cannot be
# How many states of a place are followed; how many sound batches, and chains of them, are explained together.
MOST_STATES, MOST_PLACES, MOST_RUNS = 4, 64, 12
# After this number of sound batches that continue each other, which are too long for one record, the log surely goes on.
LONG_RUN = 16
LEAST_FAR = 64  # from this gap on the base offset behind it may be wrong by a bit
# How many decisions and checks of single bytes are cached.
MOST_CACHED = 64 * 1024
# The cost in the budget of a position that looks like a sound batch, regardless of its size.
CANDIDATE_COST_BYTES = 1024
# How many entries of a file are searched behind (0.1 ms each), at least, and for how many bytes one more; the steps of one.
MOST_SEARCHES, BYTES_OF_SEARCH, STEPS_OF_SEARCH = 100_000, 512, 40
# How many sound batches behind an entry are tried as its end: the log's next one, and what may be payload before it.
MOST_ENDS = 16
# Within this distance of the file's end the end is always tried as the end of a batch: twice Kafka's default max.message.bytes.
NEAR_END_BYTES = 2 * 1024 * 1024
# The largest size of a batch that is tried: more than the 100 MiB of Kafka's default socket.request.max.bytes.
FARTHEST_END_BYTES = 128 * 1024 * 1024
NEAR_BYTES = 64 * 1024
# To search bytes for an offset takes an eighth of the time to compute their CRC and to parse what looks like a batch.
FIND_SPEED = 8


class Continuation(NamedTuple):
    """The byte `position` where the log continues after an unsound entry; None if there is no evidence that it does.

    `is_proven` is True if the entry's own CRC is correct for the bytes up to there.
    """

    position: int | None
    is_proven: bool


class _Place(NamedTuple):
    """A byte at which a batch of the log may begin; `header` is None if the bytes there are not a header.

    `end` is the end of a sound batch, or of more than LONG_RUN that continue each other; else the stated one, or -1. `offset`
    is the first offset in the header, -1 if one of its fields cannot be right.
    """

    position: int
    end: int
    header: RecordBatch | LegacyBatch | None
    is_sound: bool
    offset: int

    @classmethod
    def of(cls, position: int, end: int, header: RecordBatch | LegacyBatch | None, *, is_sound: bool) -> _Place:
        """Return the place with the offset in its header."""
        can_be = header is not None and can_be_header(header)
        return cls(position, end, header, is_sound, least_offset(header) if header is not None and can_be else -1)


class _State(NamedTuple):
    """What the batches before a place say of the one there: its base offset is at least `low`, and one of `expected`.

    `expected` has (offset, cost), and nothing if the header before is lost. `is_adjacent`: the batch before is sound, so no
    bytes are missing. `epoch` is the last leader epoch, `floor` the next offset after the last sound batch as it states it,
    `run` the number of sound batches that continue each other up to here. `is_free`: bytes are missing before the place, so a
    gap is cheap. `is_new`: a batch of format 2 was before.
    """

    low: int
    expected: tuple[tuple[int, int], ...]
    is_adjacent: bool
    epoch: int
    floor: int
    run: int
    is_free: bool = False
    is_new: bool = False


class _Step(NamedTuple):
    """The cheapest way to a state of a place: its cost, the sound batches taken, and the state of the place before."""

    cost: int
    taken: int
    place: int
    state: _State | None


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
        self._legacy = False
        self._near_start, self._near = 0, b""  # bytes of the file from the entry on
        self._positions = positions
        self._budget = SearchBudget(file.size())
        self._searches = max(MOST_SEARCHES, file.size() // BYTES_OF_SEARCH)
        self._start_over(0)

    def _start_over(self, end: int) -> None:
        """Clear the caches: the file ends at another byte now."""
        self._end = end
        self._batches = {legacy: SoundBatches(self._file, end, self._budget, legacy=legacy) for legacy in (False, True)}
        self._cleaned: dict[int, bool] = {}
        self._indexed: tuple[int, int | None] = (0, 0)
        self._decided: dict[tuple[int, int, bool], int] = {}
        self._proven: dict[tuple[int, bool, bool], int | None] = {}
        self._walks: dict[int, RecordWalk] = {}

    def behind(self, position: int, end: int, *, floor: int, legacy: bool) -> Continuation:
        """Return where the log, which ends at byte `end`, continues after the unsound entry at byte `position`. Raises OSError.

        `floor` is the next offset after the last sound batch. The log never continues after the next sound batch that the
        .index points at: a reader that begins there sees the same batches.
        """
        if self._file.size() != self._end:
            self._start_over(self._file.size())
        found = self._behind(position, floor, legacy=legacy)
        return found if found.position is None or found.position <= end else Continuation(None, False)

    def _behind(self, position: int, floor: int, *, legacy: bool) -> Continuation:
        """Return the same with no regard to where the part of the file ends that is read."""
        self._legacy = legacy
        if self._searches <= 0:
            return Continuation(self._indexed_behind(position), False)
        self._searches -= 1
        header = header_at(self._file, position)
        stated = -1 if header is None else position + header.size_bytes
        fits = header is not None and header.size_bytes >= least_size(header) and stated <= self._end
        is_clear = False
        if header is not None:
            proven = self._near_end_of_crc(header, [stated] if fits else [])
            is_clear = proven is None and fits and self._is_clear(header, stated, legacy=legacy)
            if proven is None and not is_clear:
                proven = self._far_end_of_crc(header, self._followers(header, legacy=legacy), legacy=legacy)
            if proven is not None:
                return Continuation(proven, True)
        if is_clear:
            return Continuation(stated, False)
        found = self._decided.get((position, floor, legacy))
        if found is None:
            if len(self._decided) > MOST_CACHED:
                self._decided.clear()
            found = self._decided[position, floor, legacy] = self._explain(position, floor, legacy=legacy)
        return Continuation(found if found < self._end else None, False)

    def _is_clear(self, header: RecordBatch | LegacyBatch, stated: int, *, legacy: bool) -> bool:
        """Return True if no explanation can be cheaper than the stated length: the next offset is there, and is followed."""
        indexed = self._indexed_behind(header.position)
        if not isinstance(header, RecordBatch) or not can_be_header(header) or (indexed is not None and indexed < stated):
            return False
        expected = (header.next_offset, header.base_offset + header.record_count)
        found = self._batches[legacy].first(header.position + 1)
        while found is not None and found[1] <= stated:
            found = self._batches[legacy].first(found[1])
        if found is not None and found[0] < stated:
            return False
        if self._walk(_Place.of(header.position, stated, header, is_sound=False)).encloses(stated, stated):
            return False
        at = stated
        for _ in range(LONG_RUN):
            if at == indexed or (at == self._end and at > stated):
                return True
            behind = plausible_header(self._file, at)
            if behind is None or behind.base_offset not in expected or behind.size_bytes < HEADER_BYTES:
                return False
            expected, at = (behind.next_offset, behind.next_offset), behind.end_position
        return True

    # ------------------------------------------------------------------------------------------------------- the places

    def _places(self, position: int, *, legacy: bool) -> list[_Place]:
        """Return the places from a damaged byte to where the log surely goes on, or to the last one of too many."""
        indexed = self._indexed_behind(position)
        limit = self._end if indexed is None else indexed
        sound: dict[int, _Place] = {}
        headers: _Headers = {position: header_at(self._file, position)}
        sized: list[RecordBatch] = []
        runs, run, expected, at, behind = 0, 0, -1, position + 1, position + 1
        single: tuple[_Place, _Place] | None = None  # the place before the last batch was joined to it, and that of the batch
        most, most_runs, entry = MOST_PLACES, MOST_RUNS, headers[position]
        stated = -1 if entry is None else position + entry.size_bytes
        damaged = _Place.of(position, stated, entry, is_sound=False)
        walk, latest = self._walk(damaged), -1
        while True:
            found = self._batches[legacy].first(at)
            start = limit if found is None else min(found[0], limit)
            for one in sized_headers(self._file, behind, start, self._budget):
                if one is None or len(sized) >= MOST_PLACES:
                    break
                sized.append(one)
            if found is None or found[0] >= limit:
                break
            (start, at), before = found, at
            behind = at
            if walk.encloses(start, at):
                continue
            header = header_at(self._file, start)
            assert header is not None
            runs += start != before
            run = run + 1 if start == before and least_offset(header) >= expected else 0
            expected = header.next_offset
            if not run and start == before and single is not None:
                # The last one of the joined batches may have the wrong offset.
                (sound[latest], own), latest = single, single[1].position
                sound[latest] = own
            single = None
            joined = sound[latest].header if run > LONG_RUN and start != stated else None
            if isinstance(joined, RecordBatch):
                long = joined._replace(last_offset_delta=header.last_offset - joined.base_offset)
                single = sound[latest], _Place.of(start, at, header, is_sound=True)
                sound[latest] = _Place.of(latest, at, long, is_sound=True)
                del headers[start]
            else:
                latest, sound[start] = start, _Place.of(start, at, header, is_sound=True)
            headers[at] = header_at(self._file, at)
            is_sure = run >= LONG_RUN and at - position >= NEAR_END_BYTES
            is_most = len(sound) >= most or runs >= most_runs
            if is_most and at < stated - HEADER_BYTES < limit and entry is not None and entry.magic == MAGIC:
                at = behind = stated - HEADER_BYTES
                most, most_runs = len(sound) + MOST_PLACES, runs + MOST_RUNS
            elif is_sure or is_most:
                # The batch that the .index points at is a place in any case: it contradicts payload.
                limit = at if indexed is None or is_sure else indexed
                break
        headers |= {one.position: headers.get(one.position, one) for one in sized if self._may_be_place(one, sound)}
        return self._in_order(damaged, limit, indexed, headers, sound)

    def _may_be_place(self, one: RecordBatch, sound: Mapping[int, _Place]) -> bool:
        return can_be_header(one) or one.end_position in sound or one.end_position == self._end

    def _in_order(
        self, damaged: _Place, limit: int, indexed: int | None, headers: _Headers, sound: Mapping[int, _Place]
    ) -> list[_Place]:
        """Return the places of headers and sound batches in order, and the end of the search."""
        position, stated = damaged.position, damaged.end
        for end, there in self._stated_ends(position, limit, headers, sound):
            headers.setdefault(end, there)
        places, behind = list[_Place](), position
        for at in sorted(headers.keys() | sound):
            if at < behind or at >= limit:
                continue
            place = sound.get(at) or self._damaged(at, headers[at], limit, position, stated)
            behind = place.end if place.is_sound else behind
            places.append(place)
        last = header_at(self._file, limit) if limit == indexed else None
        places.append(_Place.of(limit, limit, last, is_sound=limit == indexed))
        return places

    def _stated_ends(
        self, position: int, limit: int, headers: _Headers, sound: Mapping[int, _Place]
    ) -> list[tuple[int, RecordBatch]]:
        """Return (byte, header) of the ends that headers state, if a header is there and no sound batch is around."""
        found, starts = [], sorted(sound)
        for header in headers.values():
            if isinstance(header, RecordBatch) and position < header.end_position < limit:
                around = bisect_left(starts, header.end_position) - 1
                there = plausible_header(self._file, header.end_position)
                if there is not None and (around < 0 or sound[starts[around]].end <= header.end_position):
                    found.append((header.end_position, there))
        return found

    def _damaged(self, at: int, header: RecordBatch | LegacyBatch | None, limit: int, entry: int, stated: int) -> _Place:
        """Return the place of what is not a sound batch; it is one if its CRC proves another length."""
        proven, key = None, (at, at == stated, self._legacy)
        if at > entry:
            if len(self._proven) > MOST_CACHED:
                self._proven.clear()
            if key not in self._proven:
                self._proven[key] = self._proven_end(header, is_stated=at == stated)
            proven = self._proven[key]
        if proven is not None and proven <= limit:
            return _Place.of(at, proven, header, is_sound=True)
        return _Place.of(at, -1 if header is None else at + header.size_bytes, header, is_sound=False)

    def _proven_end(self, header: RecordBatch | LegacyBatch | None, *, is_stated: bool) -> int | None:
        """Return the end that the CRC of a header behind the entry proves; `is_stated`: the entry states to end there."""
        if not isinstance(header, RecordBatch) or not can_be_header(header._replace(base_offset=0)):
            return None
        fits = header.size_bytes >= HEADER_BYTES and header.end_position <= self._end
        proven = self._near_end_of_crc(header, [header.end_position] if fits else [])
        if proven is None and is_stated and can_be_header(header):
            followers = self._followers(header, legacy=self._legacy)
            proven = self._far_end_of_crc(header, followers, legacy=self._legacy)
        return proven

    # ---------------------------------------------------------------------------------------------------- the cheapest path

    def _explain(self, position: int, floor: int, *, legacy: bool) -> int:
        """Return the byte at which the cheapest explanation ends the entry at byte `position`."""
        self._walks.clear()
        places = self._places(position, legacy=legacy)
        self._walks.clear()  # a walk goes forward only
        last = len(places) - 1
        self._searches -= len(places) ** 2 // STEPS_OF_SEARCH
        best: list[dict[_State, _Step]] = [{} for _ in places]
        best[0] = dict(self._beginnings(places[0], floor))
        for index in range(last):
            for state, step in _followed(best[index]):
                for target, cost, taken, after in self._steps(places, index, state):
                    new = _Step(step.cost + cost, step.taken + taken, index, state)
                    known = best[target].get(after)
                    if known is None or new[:2] < known[:2]:
                        best[target][after] = new
        ways = [
            (step.cost + self._cost_of_going_on(places[last], state), step.taken, state) for state, step in best[last].items()
        ]
        if not ways:
            return places[last].position
        index, state = last, min(ways, key=lambda way: way[:2])[2]
        behind = places[last].position
        while index > 0:
            step = best[index][state]
            assert step.state is not None
            behind, index, state = places[index].position, step.place, step.state
        return behind

    def _beginnings(self, place: _Place, floor: int) -> Iterator[tuple[_State, _Step]]:
        """Yield the states of the first place; the base offset of the sound batch before it may be the wrong one."""
        yield _State(floor, ((floor, 0),) if floor else (), False, NO_LEADER_EPOCH, floor, 0), _Step(0, 0, -1, None)
        header = place.header
        if isinstance(header, RecordBatch) and can_be_header(header) and header.base_offset < floor:
            base = header.base_offset
            yield _State(base, ((base, 0),), False, NO_LEADER_EPOCH, floor, 0), _Step(difference(base, floor), 0, -1, None)

    def _cost_of_going_on(self, place: _Place, state: _State) -> int:
        """Return the cost of the batch at the last place, if the .index points at it."""
        if not place.is_sound:
            return 0
        # The entry confirms the offset that the batch states: no other one can be right.
        assert place.header is not None
        costs = (cost for cost, after in self._enter(place, state) if after.low == place.header.next_offset)
        return min(costs, default=IMPOSSIBLE)

    def _steps(self, places: list[_Place], index: int, state: _State) -> Iterator[tuple[int, int, int, _State]]:
        """Yield (index, cost, sound batches taken, state) of the places to which a path goes from one."""
        place = places[index]
        if not place.is_sound:
            for target, cost, after in self._ends(places, index, state):
                yield target, cost, 0, after
            return
        target = bisect_left(places, place.end, key=lambda one: one.position)
        if target < len(places) and places[target].position == place.end:
            for cost, after in self._enter(place, state):
                yield target, cost, 1, after

    def _enter(self, place: _Place, state: _State) -> Iterator[tuple[int, _State]]:
        """Yield the cost and the state behind of a sound batch: as read, and with a corrected offset."""
        header = place.header
        assert header is not None
        base, next_offset, size = least_offset(header), header.next_offset, header.next_offset - least_offset(header)
        epoch = header.partition_leader_epoch if isinstance(header, RecordBatch) else -1
        run = min(state.run + 1, LONG_ENOUGH)
        is_new = isinstance(header, RecordBatch)
        more_for_header = difference(epoch, state.epoch) if 0 <= epoch < state.epoch else 0
        # Payload costs 1 more for each further batch, too: a chain does not count more than its first batches.
        more_for_header += state.run >= LONG_ENOUGH
        is_next = state.is_adjacent and any(base == one for one, _ in state.expected)
        if state.is_new and not is_new and not is_next:
            more_for_header += OLDER_FORMAT
        epoch = epoch if epoch >= 0 else state.epoch
        if base >= state.low:
            cost = self._offset_cost(place, base, state)
            if cost < IMPOSSIBLE:
                after = _State(next_offset, ((next_offset, 0),), True, epoch, next_offset, run, is_new=is_new)
                yield cost + more_for_header, after
        is_long = state.is_adjacent and state.run >= LONG_ENOUGH
        nearer = base ^ 1 << (base ^ state.low).bit_length() >> 1  # without the highest bit that is wrong
        if is_long and base >= state.low + LEAST_FAR and nearer >= state.low:
            low, more = nearer + size, BIT + (self._gap(place) if nearer > state.low else 0)
            yield more + more_for_header, _State(low, ((low, 0),), True, epoch, next_offset, run, is_new=is_new)
        for expected, more in state.expected:
            if expected != base and expected >= state.low:
                low = expected + size
                wrong = difference(base, expected)
                cost = more + (0 if is_long and wrong <= BYTE else CORRECTED) + wrong + more_for_header
                yield cost, _State(low, ((low, 0),), True, epoch, next_offset, run, is_new=is_new)

    def _offset_cost(self, place: _Place, base: int, state: _State) -> int:
        """Return the cost of the base offset of a sound batch as it states it."""
        is_over = OVERFLOW if base - state.low > INT32_MAX else 0
        if not state.expected:
            is_far = state.low > 0 and base - state.low >= LARGE_GAP
            return (INSERTED if base == state.low > 0 else 0) + (GAP_LARGE + is_over if is_far else 0)
        costs = []
        for expected, more in state.expected:
            if base == expected or (base > expected and self._is_lost(expected, base)):
                costs.append(more)
            elif base > expected:
                is_far = not state.is_adjacent and base - expected >= LARGE_GAP
                costs.append(
                    more + max(CLEANED_GAP if state.is_free else self._gap(place), GAP_LARGE + is_over if is_far else 0)
                )
            elif not state.is_adjacent:
                costs.append(more + BYTE)
        return min(costs, default=IMPOSSIBLE)

    def _ends(self, places: list[_Place], index: int, state: _State) -> Iterator[tuple[int, int, _State]]:
        """Yield (index, cost, state) of the places at which the damaged batch at one may end."""
        place, last = places[index], len(places) - 1
        is_last_of_file = places[last].position == self._end and not places[last].is_sound
        if is_last_of_file and self._is_zeros(place.position):
            yield last, 0, state
            return
        modes, walk = self._modes(place, state), self._walk(place)
        is_known = walk.end is not None and _is_place(places, walk.end)
        left_out, further, run_start, run_end, run_next, run, runs = 0, 0, -1, -1, -1, 0, 0
        hidden: list[tuple[int, int]] = []  # the ends and base offsets of headers on the way
        sound_end, is_last_inside = -1, False  # of the last sound batch on the way
        led = bisect_left(places, place.end, key=lambda one: one.position)
        is_led = index < led < last and places[led].position == place.end and places[led].is_sound
        is_led = is_led and place.header is not None and places[led].offset == place.header.next_offset
        for target in range(index + 1, last + 1):
            there = places[target]
            at, is_end = there.position, target == last and is_last_of_file
            is_inside = not is_end and walk.encloses(at, there.end if there.is_sound else at)
            is_divided = at < sound_end
            ends_exactly = EXACT_END if is_end and sound_end == at and not is_last_inside else 0
            going_on = min(run, LONG_ENOUGH) if at == sound_end and there.is_sound else 0
            is_cut = run >= LATER_CHAIN and there.is_sound and run_end == at and there.offset == run_next
            cost = (
                (HEADER if is_cut else 0)
                + (WALKED if is_inside or is_divided else 0)
                + (FIELD if is_known and walk.end != at else 0)
            )
            for is_header, cost_of_header, after in modes:
                skipped = left_out + (HEADER if hidden and any(end > at and base >= after.low for end, base in hidden) else 0)
                if not is_header and at == place.end:
                    cost_of_header = min(cost_of_header, DAMAGE + BIT)  # of the header the length is right, at least
                elif is_header:
                    cost_of_header, skipped, after = self._cost_of_length(place, there, left_out, skipped, after, is_end=is_end)
                cost_of_header += LED if is_led and at != place.end else 0
                is_torn = is_header and place.end > at and place.offset >= 0
                skipped += further + (0 if is_torn else ends_exactly)
                yield target, cost + cost_of_header + skipped, after._replace(run=going_on) if going_on else after
            header = there.header
            if there.is_sound and header is not None:
                sound_end, is_last_inside = there.end, is_inside
                if not is_inside:
                    is_next = run_end == at and least_offset(header) == run_next
                    run = run + 1 if run_end == at else 1
                    runs += run == 1
                    left_out += PAYLOAD if run == 1 else 1 if run <= (LATER_CHAIN if runs > 1 else LONG_ENOUGH) else 0
                    # As much as if it was of the log: no reason for either.
                    further += (run > LONG_ENOUGH) + (0 if is_next or run == 1 else CLEANED_GAP)
                    run_start = run_start if is_next else least_offset(header)
                    run_end, run_next = there.end, header.next_offset
            elif not is_inside and header is not None:
                if at == run_end and run_start > state.low and self._begins(header, run_next):
                    left_out += HEADER if there.offset >= 0 else BIT
                if isinstance(header, RecordBatch) and header.magic == MAGIC and header.size_bytes >= HEADER_BYTES:
                    is_over = there.end == self._end or (there.end > self._end and there.offset >= 0)
                    is_place = is_over or _is_place(places, there.end)
                    if is_place and state.low <= header.base_offset <= state.low + INT32_MAX:
                        hidden.append((there.end, header.base_offset))

    def _cost_of_length(
        self, place: _Place, there: _Place, left_out: int, skipped: int, after: _State, *, is_end: bool
    ) -> tuple[int, int, _State]:
        """Return the cost of a damaged batch with a header that ends at a place, that of what it skips, and the state there."""
        header, at = place.header, there.position
        assert header is not None
        stated = place.position + header.size_bytes
        length, right = header.size_bytes - LOG_OVERHEAD_BYTES, at - place.position - LOG_OVERHEAD_BYTES
        bits = (length ^ right) & (1 << 32) - 1
        is_next = there.offset >= 0 and any(there.offset == expected for expected, _ in after.expected)
        wrong = 0 if not bits else BIT if bits.bit_count() == 1 else OTHER_END
        if wrong > BIT and abs(at - stated) < HEADER_BYTES:
            wrong = SHIFTED - DAMAGE
        if is_end and place.position < stated <= at and self._is_zeros(stated):
            wrong = 0
        if wrong <= BIT and is_next:
            skipped = 0
            if not wrong:  # the length vouches for the format, and for a short chain
                after = after._replace(is_new=False, run=LONG_ENOUGH - 2)
        elif (wrong <= BIT and is_end) or (there.is_sound and (not wrong or (is_next and wrong == SHIFTED - DAMAGE))):
            skipped = min(left_out, PAYLOAD)
        elif not wrong:
            skipped = left_out
        if is_end and stated > at and wrong != BIT:
            wrong = TORN - DAMAGE if place.offset >= 0 else TORN
            # One torn write explains the end of the file and payload; a wrong length needs another damage under the CRC.
            if place.offset >= 0 and header.size_bytes <= NEAR_END_BYTES:
                skipped = min(left_out, PAYLOAD)
        is_free = not place.position < at <= stated
        return min(DAMAGE + wrong, OTHER_END), skipped, after._replace(is_free=True) if is_free else after

    def _begins(self, header: RecordBatch | LegacyBatch, expected: int) -> bool:
        """Return True if a damaged header has an offset, or looks like that of a batch with it, but for a byte of it."""
        wrong = difference(header.base_offset, expected)
        return isinstance(header, RecordBatch) and (not wrong or (header.magic == MAGIC and wrong <= BYTE))

    def _modes(self, place: _Place, state: _State) -> list[tuple[bool, int, _State]]:
        """Return (is the header used, cost, state behind) of the explanations of a damaged batch's header."""
        header = place.header
        unknown = _State(state.low, (), False, state.epoch, state.floor, 0, is_new=state.is_new)
        modes = [(False, self._cost_of_lost_header(place, state), unknown)]
        if isinstance(header, RecordBatch) and header.magic == MAGIC:
            base, count, delta = header.base_offset, header.record_count, header.last_offset_delta
            expected: dict[int, int] = {}
            if base >= state.low:
                gap = 0
                if state.expected and base not in (one for one, _ in state.expected):
                    gap = CLEANED_GAP
                if delta >= 0:
                    expected[base + delta + 1] = gap
                if 0 < count <= max(delta + 1, 0) or (delta < 0 < count):
                    expected.setdefault(base + count, gap)
            for one, more in state.expected:
                if delta >= 0 and one != base:
                    expected.setdefault(one + delta + 1, more + difference(base, one))
            is_next = base in (one for one, _ in state.expected)
            is_near = state.low <= base < state.low + LARGE_GAP and count == delta + 1
            if (is_next or is_near or (not state.expected and base >= state.low)) and can_be_header(header):
                modes.clear()
            low = base + 1 if is_next or (not state.expected and can_be_header(header)) else state.low
            is_new = state.is_new or can_be_header(header)
            after = _State(low, tuple(expected.items()), False, state.epoch, state.floor, 0, is_new=is_new)
            modes.append((True, 0, after))
        elif header is not None and self._can_be_message(header, state.low):
            after = _State(state.low, ((header.next_offset, 0),), False, state.epoch, state.floor, 0, is_new=state.is_new)
            modes.append((True, 0, after))
        return modes

    def _can_be_message(self, header: RecordBatch | LegacyBatch, low: int) -> bool:
        """Return True if an entry may be a damaged message of format 0 or 1."""
        is_sized = least_size(header) <= header.size_bytes <= limits.MAX_RECORD_BYTES
        return self._legacy and is_sized and can_be_header(header) and low <= header.last_offset <= low + LARGE_GAP

    def _cost_of_lost_header(self, place: _Place, state: _State) -> int:
        """Return the cost of a header that is not used: SECTOR if a sector of zeros begins in it."""
        if state.is_adjacent and state.expected:
            # The last byte of a batch is often a zero, as the next sector's first one may be.
            sector = (place.position - 1 + SECTOR_BYTES - 1) // SECTOR_BYTES * SECTOR_BYTES
            intact = max(min(sector, self._end) - place.position, 0)
            head = self._file.read_at(place.position, HEADER_BYTES)
            left = min(intact, OFFSET_BYTES)
            is_cut = intact < HEADER_BYTES and head[:left] == state.expected[0][0].to_bytes(OFFSET_BYTES, "big")[:left]
            zeros = self._file.read_at(sector, SECTOR_BYTES)
            if is_cut and ((zeros and not any(zeros)) or left == OFFSET_BYTES):
                return SECTOR
        if self._end - place.position < HEADER_BYTES:
            return max(OTHER_END, LOST_HEADER if 0 < state.run < LONG_ENOUGH else 0)
        return LOST_HEADER if 0 < state.run < LONG_ENOUGH else FIELD

    def _walk(self, place: _Place) -> RecordWalk:
        """Return the walk over the records of a damaged batch."""
        known = self._walks.get(place.position)
        if known is None:
            end = None
            if isinstance(place.header, RecordBatch):
                end = records_end(self._file, place.header, self._budget)
            around = self._batches[self._legacy].first(place.position + 1)
            while around is not None and around[1] <= place.end:
                around = self._batches[self._legacy].first(around[1])
            # Lengths of records that end exactly there confirm the stated end.
            is_crossed = around is not None and around[0] < place.end < around[1] and end != place.end
            if is_crossed and around is not None and place.header is not None:
                # Only a batch that may be the next one contradicts the stated end.
                crossing = header_at(self._file, around[0])
                is_crossed = crossing is not None and least_offset(crossing) > least_offset(place.header)
            known = self._walks[place.position] = RecordWalk(
                self._file, place.position, -1 if is_crossed or place.offset < 0 else place.end, end, self._budget
            )
        return known

    def _is_zeros(self, position: int) -> bool:
        """Return True if the file ends at a byte, or preallocated zeros begin there."""
        left = self._end - position
        return left == 0 or (left >= HEADER_BYTES and zeros_follow(self._file, position, self._end))

    def _is_lost(self, first: int, end: int) -> bool:
        """Return True if an earlier repair lost offsets between two."""
        return self._log is not None and any(first <= one[0] < one[1] <= end for one in self._log.lost)

    def _gap(self, place: _Place) -> int:
        """Return the cost of a gap before a sound batch behind another one."""
        log = self._log
        header = place.header
        if (log is not None and log.is_cleaned) or self._is_cleaned(0) or self._is_cleaned(place.position):
            return CLEANED_GAP
        if log is None and not self._begins_keyless and not (isinstance(header, RecordBatch) and self._never_cleaned(header)):
            return CLEANED_GAP
        return GAP

    @cached_property
    def _begins_keyless(self) -> bool:
        """True if the first batch of the file is sound, and the cleaner was not there."""
        header = plausible_header(self._file, 0)
        return header is not None and self._is_whole(header, self._budget) and self._never_cleaned(header)

    def _is_whole(self, header: RecordBatch, budget: SearchBudget) -> bool:
        """Return True if a sound batch has this header; False if the budget is spent."""
        return budget.take(max(header.size_bytes, 0)) and is_sound(self._file, header.position)

    def _never_cleaned(self, header: RecordBatch) -> bool:
        """Return True if the cleaner was not in the segment of a sound batch: it removes records without keys."""
        return not header.is_control and self._has_keyless(header)

    def _is_cleaned(self, position: int) -> bool:
        """Return True if the cleaner was in the batches from a byte up to the next damage: they lack offsets or records.

        A gap counts if sound batches are before and after it, and if the next batch confirms its end.
        """
        known = self._cleaned.get(position)
        if known is not None:
            return known
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
        if len(self._cleaned) > MOST_CACHED:
            self._cleaned.clear()
        self._cleaned[position] = found
        return found

    def _indexed_behind(self, position: int) -> int | None:
        """Return the first byte after `position` that the .index points at and where a sound batch begins, or None."""
        asked, found = self._indexed
        if not asked <= position < (self._end if found is None else found):
            found = next((at for at, offset in self._positions.after(position) if self._begins_sound(at, offset)), None)
            self._indexed = (position, found)
        return found

    def _begins_sound(self, position: int, offset: int) -> bool:
        """Return True if a sound batch begins at a byte and its offset fits the index entry that points at it."""
        header = header_at(self._file, position)
        return header is not None and header.base_offset <= offset and position < self._end and is_sound(self._file, position)

    # ---------------------------------------------------------------------------------------------------- by the CRC

    def _near_end_of_crc(self, header: RecordBatch | LegacyBatch, stated: Sequence[int]) -> int | None:
        """Return the end that the entry's CRC proves among the cheap ones: near the stated one, and the file's end if near."""
        ends = self._likely_ends(header).union(stated)
        start = header.position + least_size(header)
        ends.update(self._next_offsets(header, start, min(stated[0], header.position + NEAR_END_BYTES) if stated else 0))
        # With many sound batches behind the entry it does not end with the file.
        if self._end - header.position < NEAR_END_BYTES and self._near_sound_batches(header, legacy=self._legacy)[1]:
            ends.add(self._end)
        return self._end_of_crc(header, ends)

    def _far_end_of_crc(self, header: RecordBatch | LegacyBatch, followers: Sequence[int], *, legacy: bool) -> int | None:
        """Return the end that the entry's CRC proves: a sound batch, a header with the next offset, or the file's end."""
        sound, is_end = self._near_sound_batches(header, legacy=legacy)
        ends = {*sound, *followers}
        # Many sound batches before the end of the file may be payload.
        if self._end <= header.position + (FARTHEST_END_BYTES if is_end else NEAR_END_BYTES * can_be_header(header)):
            ends.add(self._end)
        return self._end_of_crc(header, ends)

    def _followers(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> list[int]:
        """Return the bytes of headers with exactly the next offset, regardless of the entry's length."""
        sound, is_end = self._near_sound_batches(header, legacy=legacy)
        start = header.position + least_size(header)
        end = self._farthest(header)
        if not is_end:  # those may be payload
            end = max(sound[-1] + 1, min(end, header.position + NEAR_END_BYTES * can_be_header(header)))
        return list(self._next_offsets(header, start, end))

    def _near_sound_batches(self, header: RecordBatch | LegacyBatch, *, legacy: bool) -> tuple[list[int], bool]:
        """Return the first sound batches at which the entry may end; True if there are no more."""
        start, end = header.position + least_size(header), self._farthest(header)
        found = list(islice(self._sound_batches(start, end, legacy=legacy), MOST_ENDS))
        return found, len(found) < MOST_ENDS

    def _farthest(self, header: RecordBatch | LegacyBatch) -> int:
        """Return the byte before which the entry ends, regardless of its length."""
        indexed = self._indexed_behind(header.position)
        return min(header.position + FARTHEST_END_BYTES, self._end if indexed is None else indexed + 1)

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
        if not isinstance(header, RecordBatch) or not self._budget.take(max(end - start, 0) // FIND_SPEED):
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


def _stated_size(header: RecordBatch | LegacyBatch) -> int:
    return (header.size_bytes - LOG_OVERHEAD_BYTES) & INT32_MAX


def _followed(ways: Mapping[_State, _Step]) -> Iterator[tuple[_State, _Step]]:
    """Yield the ways to a place that are followed: the cheapest, and the cheapest ones that have taken lower offsets only.

    Ways that differ in where payload begins do not push out one that has not taken any.
    """
    ranked = sorted(ways.items(), key=lambda item: item[1][:2])
    for is_adjacent in (True, False):
        followed, lowest = 0, INT64_MAX
        for state, step in ranked:
            if (
                state.is_adjacent == is_adjacent
                and (followed < MOST_STATES or state.low < lowest)
                and followed < 2 * MOST_STATES
            ):
                followed, lowest = followed + 1, min(lowest, state.low)
                yield state, step


def _is_place(places: list[_Place], position: int) -> bool:
    slot = bisect_left(places, position, key=lambda place: place.position)
    return slot < len(places) and places[slot].position == position
