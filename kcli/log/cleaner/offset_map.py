"""The last offset of each key: what a round of the cleaner gathers first, and asks of each record then.

    per key    24 bytes: a hash of 128 bits and the offset, in an open table that grows by a quarter, up to the bound
    hash       SipHash-2-4 of 128 bits (Aumasson and Bernstein), keyed with a secret that is drawn for each round
    probing    from slot = (highest 32 bits of the hash * slots) >> 32 on, one slot behind the other

Kafka (SkimpyOffsetMap) takes MD5 and does not compare keys either, so whoever makes two keys of one MD5 loses a record. Without
the secret nobody can make two keys collide here, or crowd one place of the table, and by chance 2**32 keys do with a
probability below 2**-64.

A larger table has its keys in the same order as a smaller one, so growing reads one and writes the other from front to back,
and gives the one back as it goes: there is never memory for both. It goes in slices, since nothing may take above 10 ms.

Memory is what a probe waits for. So the keys of many records are hashed first, each with a look at its slot, which has the
processor fetch them side by side; then the slots are compared.

A map that is full ends the round's range, between two records where need be; the next round goes on there. This one source
runs two ways, as kcli.format.record_scan does; its C types stand in offset_map.pxd.
"""

import mmap
from array import array

from kcli.format.record_scan import Buffer, RecordColumns

SLOT_BYTES = 24
SECRET_BYTES = 16
FIRST_SLOTS = 1 << 12
MOST_SLOTS = (1 << 32) - 1
# Of the slots so many are used before the table is full (log.cleaner.io.buffer.load.factor), or grows.
LOAD_FACTOR = 0.9
GROWING_LOAD_FACTOR = 0.85
ABSENT = -1

# What `keep_records` counts.
KEPT = 0
KEPT_TOMBSTONES = 1
WITHOUT_KEY = 2
DROPPED_TOMBSTONES = 3
COUNT_SLOTS = 4

# The keys of so many records are hashed before their slots are compared: what they have fetched still lies in the cache.
HASHED_RECORDS = 256
# So many slots are moved in a slice of growing, and their memory given back.
MOVED_SLOTS = 1 << 14


class OffsetMap:
    """The last offset of each key in at most `memory_bytes`; `secret` has SECRET_BYTES, drawn for this map.

    `latest_offset` is the last one that the map accounts for, -1 in a new one; whoever fills it moves it on. Of its `slots`,
    `used` are, and `most_used` may be before it grows or is full. It `is_in_order` where each offset that was noted was above
    the one before it, and lay in its batch.
    """

    def __init__(self, memory_bytes: int, secret: bytes, load_factor: float = LOAD_FACTOR) -> None:
        self._most_slots = min(max(memory_bytes // SLOT_BYTES, 3), MOST_SLOTS)
        self._load_factor = load_factor
        self.secret = sip_state(secret)
        self.used = 0
        self.is_in_order = True
        self.hashes = array("Q", bytes(16 * HASHED_RECORDS))
        self.rows = array("q", bytes(8 * HASHED_RECORDS))
        self.places = array("q", bytes(8 * HASHED_RECORDS))
        self.latest_offset = ABSENT
        self._last_met = ABSENT  # the last offset, whether it has a key or not
        self._old: tuple[mmap.mmap, memoryview] | None = None  # what the table grows from
        self._moved = 0
        self._use(min(self._most_slots, FIRST_SLOTS))

    def __len__(self) -> int:
        """How many keys it holds."""
        return int(self.used)

    @property
    def memory_bytes(self) -> int:
        """What its table takes now."""
        return int(self.slots * SLOT_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether not one more record may be noted."""
        return bool(self.slots == self._most_slots and self.used >= self.most_used)

    @property
    def may_grow(self) -> bool:
        """Whether there may be a larger table."""
        return bool(self.slots < self._most_slots)

    def _use(self, slots: int) -> None:
        """Go on with an empty table of so many slots."""
        self._memory = mmap.mmap(-1, slots * SLOT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.table = memoryview(self._memory).cast("Q")
        is_last = slots == self._most_slots
        load_factor = self._load_factor if is_last else min(self._load_factor, GROWING_LOAD_FACTOR)
        self.slots = slots
        self.most_used = min(int(slots * load_factor), slots - 1)

    def grow(self) -> bool:
        """Move to a larger table, a slice a call -> whether there is more to move; the map must not be used until then."""
        if self._old is None:
            if self.slots == self._most_slots:
                return False
            self._old, self._moved = (self._memory, self.table), 0
            larger = int(self.slots) * 5 // 4
            self._use(larger if larger * 9 // 8 < self._most_slots else self._most_slots)
        memory, table = self._old
        end = min(self._moved + MOVED_SLOTS, len(table) // 3)
        put_slots(table, 3 * self._moved, 3 * end, self.table, self.slots)
        if hasattr(mmap, "MADV_DONTNEED"):
            start_byte, end_byte = (slot * SLOT_BYTES // mmap.PAGESIZE * mmap.PAGESIZE for slot in (self._moved, end))
            if end_byte > start_byte:
                memory.madvise(mmap.MADV_DONTNEED, start_byte, end_byte - start_byte)
        self._moved = end
        if end == len(table) // 3:
            self._old = None
        return self._old is not None

    def has_room(self, count: int) -> bool:
        """Whether as many records may be noted, whatever their keys are."""
        return bool(self.used + count <= self.most_used)

    def note(self, buffer: Buffer, columns: RecordColumns, count: int, start_offset: int, first: int = 0) -> int:
        """Note the keys of records [first, count) of a window that stand at `start_offset` or behind -> where it needs room.

        That is the index of the first record that was not noted, `count` where all were: the map is full, or is to `grow`.
        """
        return self.note_columns(buffer, columns.offset, columns.key_position, columns.key_size, first, count, start_offset)

    def note_columns(
        self,
        buffer: Buffer,
        offsets: array,  # type: ignore[type-arg]
        key_positions: array,  # type: ignore[type-arg]
        key_sizes: array,  # type: ignore[type-arg]
        index: int,
        count: int,
        start_offset: int,
    ) -> int:
        """The loop of `note`; it ends where as many slots are used as may be."""
        table = self.table
        hashes = self.hashes
        rows = self.rows
        places = self.places
        slots = self.slots
        used = self.used
        limit = self.most_used
        latest = self._last_met
        room = len(rows)
        end = 3 * slots
        while index < count and used < limit:
            put = 0
            while index < count and put < room:
                if offsets[index] <= latest:
                    self.is_in_order = False
                latest = offsets[index]
                if key_sizes[index] >= 0 and latest >= start_offset:
                    rows[put] = index
                    put += 1
                index += 1
            hash_keys(buffer, key_positions, key_sizes, rows, put, self.secret, hashes)
            find_slots(table, slots, hashes, put, places)
            done = 0
            while done < put and used < limit:
                # A key of this chunk may have taken the slot by now, or be this one.
                at = places[done]
                while table[at + 2] != 0 and (table[at] != hashes[2 * done] or table[at + 1] != hashes[2 * done + 1]):
                    at += 3
                    if at == end:
                        at = 0
                if table[at + 2] == 0:
                    table[at] = hashes[2 * done]
                    table[at + 1] = hashes[2 * done + 1]
                    used += 1
                table[at + 2] = offsets[rows[done]] + 1
                done += 1
            if done < put:
                index = rows[done]
                latest = offsets[index] - 1
        self.used = used
        self._last_met = latest
        # What follows without a key does not need room.
        while index < count and (key_sizes[index] < 0 or offsets[index] < start_offset):
            index += 1
        return index

    def keep(
        self,
        buffer: Buffer,
        columns: RecordColumns,
        count: int,
        kept: bytearray,
        counts: array,  # type: ignore[type-arg]
        *,
        keeps_tombstones: bool,
    ) -> int:
        """Set kept[index] of the first `count` records of a window to 1 where a record stays, else 0 -> how many stay.

        A record stays that the map does not account for, and the last one of its key where it has a value, or
        `keeps_tombstones`. `counts` is filled: KEPT, KEPT_TOMBSTONES, WITHOUT_KEY (such go), DROPPED_TOMBSTONES.
        """
        tombstones = 1 if keeps_tombstones else 0
        offsets, positions, sizes = columns.offset, columns.key_position, columns.key_size
        return self.keep_columns(buffer, offsets, positions, sizes, columns.value_size, count, tombstones, kept, counts)

    def keep_columns(
        self,
        buffer: Buffer,
        offsets: array,  # type: ignore[type-arg]
        key_positions: array,  # type: ignore[type-arg]
        key_sizes: array,  # type: ignore[type-arg]
        value_sizes: array,  # type: ignore[type-arg]
        count: int,
        keeps_tombstones: int,
        kept: bytearray,
        counts: array,  # type: ignore[type-arg]
    ) -> int:
        """The loop of `keep`."""
        table = self.table
        rows = self.rows
        places = self.places
        latest_offset = self.latest_offset
        slots = self.slots
        stay = 0
        tombstones = 0
        dropped_tombstones = 0
        without_key = 0
        room = len(rows)
        index = 0
        while index < count:
            first = index
            put = 0
            while index < count and put < room:
                kept[index] = 0
                if offsets[index] > latest_offset:
                    kept[index] = 1
                elif key_sizes[index] < 0:
                    without_key += 1
                elif value_sizes[index] >= 0 or keeps_tombstones:
                    rows[put] = index
                    put += 1
                index += 1
            hash_keys(buffer, key_positions, key_sizes, rows, put, self.secret, self.hashes)
            find_slots(table, slots, self.hashes, put, places)
            done = 0
            while done < put:
                last = table[places[done] + 2]
                if offsets[rows[done]] + 1 >= last:
                    kept[rows[done]] = 1
                done += 1
            while first < index:
                stay += kept[first]
                if value_sizes[first] < 0:
                    tombstones += kept[first]
                    dropped_tombstones += 1 - kept[first]
                first += 1
        counts[0] = stay
        counts[1] = tombstones
        counts[2] = without_key
        counts[3] = dropped_tombstones
        return stay

    def get(self, key: bytes) -> int:
        """The offset of a key, ABSENT where it has none."""
        hash_keys(key, array("q", (0,)), array("q", (len(key),)), array("q", (0,)), 1, self.secret, self.hashes)
        find_slots(self.table, self.slots, self.hashes, 1, self.places)
        return int(self.table[self.places[0] + 2]) - 1


def sip_state(secret: bytes) -> array:  # type: ignore[type-arg]
    """The four words that a hash begins with, of the 16 bytes of a secret."""
    low, high = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    # "somepseudorandomlygeneratedbytes", and the 0xEE that asks for 128 bits.
    words = (low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D ^ 0xEE, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573)
    return array("Q", words)


def hash_keys(
    buffer: Buffer,
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    rows: array,  # type: ignore[type-arg]
    count: int,
    secret: array,  # type: ignore[type-arg]
    out: array,  # type: ignore[type-arg]
) -> int:
    """Put the SipHash-2-4 of 128 bits of the keys of rows[:count] into `out`, two words each -> 0; `secret` is of sip_state.

    Raises IndexError for a key behind the end of the buffer.
    """
    one = 1
    mask = (one << 63) - 1 + (one << 63)  # 64 bits: C has no more and leaves it out, Python needs it
    index = 0
    while index < count:
        position = key_positions[rows[index]]
        size = key_sizes[rows[index]]
        v0 = secret[0]
        v1 = secret[1]
        v2 = secret[2]
        v3 = secret[3]
        left = size
        finals = 0
        while finals < 2:
            rounds = 2
            if left >= 8:  # the next eight bytes of the key
                word = buffer[position]
                byte = buffer[position + 1]
                word |= byte << 8
                byte = buffer[position + 2]
                word |= byte << 16
                byte = buffer[position + 3]
                word |= byte << 24
                byte = buffer[position + 4]
                word |= byte << 32
                byte = buffer[position + 5]
                word |= byte << 40
                byte = buffer[position + 6]
                word |= byte << 48
                byte = buffer[position + 7]
                word |= byte << 56
                position += 8
            elif left >= 0:  # the last word: what is left, and the size in its highest byte
                byte = size & 255
                word = byte << 56
                shift = 0
                while shift < 8 * left:
                    byte = buffer[position]
                    word |= byte << shift
                    position += 1
                    shift += 8
            else:
                word = 0
                rounds = 4
            v3 ^= word
            while rounds > 0:
                rounds -= 1
                v0 = v0 + v1 & mask
                v1 = (v1 << 13 & mask | v1 >> 51) ^ v0
                v0 = v0 << 32 & mask | v0 >> 32
                v2 = v2 + v3 & mask
                v3 = (v3 << 16 & mask | v3 >> 48) ^ v2
                v0 = v0 + v3 & mask
                v3 = (v3 << 21 & mask | v3 >> 43) ^ v0
                v2 = v2 + v1 & mask
                v1 = (v1 << 17 & mask | v1 >> 47) ^ v2
                v2 = v2 << 32 & mask | v2 >> 32
            v0 ^= word
            if left < 0:
                out[2 * index + finals] = v0 ^ v1 ^ v2 ^ v3
                finals += 1
                v1 ^= 0xDD
            elif left < 8:
                left = -1
                v2 ^= 0xEE
            else:
                left -= 8
        index += 1
    return 0


def find_slots(table: memoryview, slots: int, hashes: array, count: int, places: array) -> int:  # type: ignore[type-arg]
    """Put where the first `count` of the hashed keys stand in the table, or where each would, into `places` -> 0.

    That is the index of the first word of three.
    """
    # All are fetched before one is compared: to guess wrong what a comparison gives would keep the processor from going on.
    touched = 0
    index = 0
    while index < count:
        at = 3 * ((hashes[2 * index] >> 32) * slots >> 32)
        places[index] = at
        touched |= table[at + 2]
        index += 1
    end = 3 * slots
    index = 0
    while index < count and touched != 0:
        at = places[index]
        while table[at + 2] != 0 and (table[at] != hashes[2 * index] or table[at + 1] != hashes[2 * index + 1]):
            at += 3
            if at == end:
                at = 0
        places[index] = at
        index += 1
    return 0


def put_slots(old: memoryview, start: int, stop: int, table: memoryview, slots: int) -> int:
    """Put every key that stands in words [start, stop) of a table into another one, which has room -> how many."""
    moved = 0
    end = 3 * slots
    while start < stop:
        if old[start + 2] != 0:
            at = 3 * ((old[start] >> 32) * slots >> 32)
            while table[at + 2] != 0:
                at += 3
                if at == end:
                    at = 0
            table[at] = old[start]
            table[at + 1] = old[start + 1]
            table[at + 2] = old[start + 2]
            moved += 1
        start += 3
    return moved
