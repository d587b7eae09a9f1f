"""The last offset of each key: a cleaning round builds it first, and then looks up each record (Kafka: OffsetMap).

    per key    24 bytes: a hash of 128 bits and the offset, in an open table that grows by a quarter, up to the memory limit
    hash       SipHash-2-4 of 128 bits (Aumasson and Bernstein), keyed with a secret that is drawn for each round
    probing    from slot = (highest 32 bits of the hash * slots) >> 32 on, one slot after the other

Kafka (SkimpyOffsetMap) takes MD5 and does not compare keys either, so a client that makes two keys with one MD5 loses a record.
Without the secret a client can neither make two keys collide nor crowd one part of the table; by chance 2**32 keys collide with
a probability below 2**-64.

A larger table has its keys in the same order as a smaller one, so growing reads one and writes the other from front to back,
and frees the old one page by page: there is never memory for both. It grows in time slices, since no call may take above 10 ms.

A probe waits for memory. So the keys of many records are hashed first and their slots touched, so that the processor fetches
them in parallel; then the slots are compared.

A full map ends the round's range, between two records if necessary; the next round continues there. This one source runs
two ways, as kcli.format.record_scan does; its C types are in offset_map.pxd.
"""

from __future__ import annotations

import mmap
from array import array

from kcli.format import record_scan
from kcli.format.primitives import Buffer

SLOT_BYTES = 24
SECRET_BYTES = 16
FIRST_SLOTS = 1 << 12
MOST_SLOTS = (1 << 32) - 1
# The used part of the slots at which the table is full (log.cleaner.io.buffer.load.factor), or grows.
LOAD_FACTOR = 0.9
GROWING_LOAD_FACTOR = 0.85
ABSENT = -1

# The keys of this many records are hashed before their slots are compared: what was fetched is still in the cache.
HASHED_RECORDS = 256
# The slots that a call of `grow` moves.
MOVED_SLOTS = 1 << 14


class RetainedRecords:
    """Which of the records that were scanned last are retained: OffsetMap and RetainedOffsets write it, the filters read it."""

    def __init__(self, capacity: int) -> None:
        self.flags = bytearray(capacity)  # 1 for a record that is retained, else 0
        self.c_flags = self.flags  # the same for compiled code
        self.count = 0  # records that are retained
        self.tombstones = 0  # of these the ones without a value
        self.without_key = 0  # records that are dropped because they have no key; 0 where no key was looked up
        self.dropped_tombstones = 0  # records without a value that are dropped; 0 where no key was looked up


class OffsetMap:
    """The last offset of each key in at most `memory_bytes`; `secret` has SECRET_BYTES, drawn for this map."""

    def __init__(self, memory_bytes: int, secret: bytes, load_factor: float = LOAD_FACTOR) -> None:
        self._most_slots = min(max(memory_bytes // SLOT_BYTES, 3), MOST_SLOTS)
        self._load_factor = load_factor
        self.secret = sip_state(secret)
        self.slots = 0  # the size of the table
        self.used = 0  # slots with a key
        self.most_used = 0  # `used` at which the table is full or grows
        self.is_in_order = True  # each offset that was put was above the one before it, and was inside its batch
        self.latest_offset = ABSENT  # the last offset that the map accounts for; the offset map builder advances it
        self._last_offset = ABSENT  # of the record that was put last, with a key or not
        self.hashes = array("Q", bytes(16 * HASHED_RECORDS))  # of the records that are put or looked up now
        self.rows = array("q", bytes(8 * HASHED_RECORDS))  # their indexes in the columns
        self.places = array("q", bytes(8 * HASHED_RECORDS))  # their slots, as indexes in the table
        self._old: tuple[mmap.mmap, memoryview] | None = None  # the smaller table while the map grows
        self._moved = 0  # slots of it that were moved
        self._allocate(min(self._most_slots, FIRST_SLOTS))

    def __len__(self) -> int:
        """Return the number of keys."""
        return int(self.used)

    @property
    def memory_bytes(self) -> int:
        """The size of the table now."""
        return int(self.slots * SLOT_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether no record can be put any more."""
        return bool(self.slots == self._most_slots and self.used >= self.most_used)

    @property
    def may_grow(self) -> bool:
        """Whether a larger table is allowed."""
        return bool(self.slots < self._most_slots)

    def _allocate(self, slots: int) -> None:
        """Continue with an empty table."""
        self._memory = mmap.mmap(-1, slots * SLOT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.table = memoryview(self._memory).cast("Q")  # three words for each slot: the hash, and the offset plus one
        is_last = slots == self._most_slots
        load_factor = self._load_factor if is_last else min(self._load_factor, GROWING_LOAD_FACTOR)
        self.slots = slots
        self.most_used = min(int(slots * load_factor), slots - 1)

    def grow(self) -> bool:
        """Move a part of the keys to a larger table; return whether there are more. Until then the map must not be used."""
        if self._old is None:
            if self.slots == self._most_slots:
                return False
            self._old, self._moved = (self._memory, self.table), 0
            larger = int(self.slots) * 5 // 4
            self._allocate(larger if larger * 9 // 8 < self._most_slots else self._most_slots)
        memory, table = self._old
        end = min(self._moved + MOVED_SLOTS, len(table) // 3)
        move_slots(table, 3 * self._moved, 3 * end, self.table, self.slots)
        if hasattr(mmap, "MADV_DONTNEED"):
            start_byte, end_byte = (slot * SLOT_BYTES // mmap.PAGESIZE * mmap.PAGESIZE for slot in (self._moved, end))
            if end_byte > start_byte:
                memory.madvise(mmap.MADV_DONTNEED, start_byte, end_byte - start_byte)
        self._moved = end
        if end == len(table) // 3:
            self._old = None
        return self._old is not None

    def can_put(self, count: int) -> bool:
        """Return whether this many records can be put, even if each has another key."""
        return bool(self.used + count <= self.most_used)

    def put(self, buffer: Buffer, columns: record_scan.RecordColumns, count: int, start_offset: int, first: int = 0) -> int:
        """Put the keys of records [first, count) from `start_offset` on; return the index of the first that was not put.

        Less than `count` means that the map is full or must `grow`.
        """
        offsets = columns.offset_view
        key_positions = columns.key_position_view
        key_sizes = columns.key_size_view
        index = first
        table = self.table
        hashes = self.hashes
        rows = self.rows
        places = self.places
        slots = self.slots
        used = self.used
        limit = self.most_used
        latest = self._last_offset
        most_hashed = len(rows)
        end = 3 * slots
        while index < count and used < limit:
            hashed = 0
            while index < count and hashed < most_hashed:
                if offsets[index] <= latest:
                    self.is_in_order = False
                latest = offsets[index]
                if key_sizes[index] >= 0 and latest >= start_offset:
                    rows[hashed] = index
                    hashed += 1
                index += 1
            hash_keys(buffer, key_positions, key_sizes, rows, hashed, self.secret, hashes)
            find_slots(table, slots, hashes, hashed, places)
            done = 0
            while done < hashed and used < limit:
                # A key of this chunk may have taken the slot since, or be the same key.
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
            if done < hashed:
                index = rows[done]
                latest = offsets[index] - 1
        self.used = used
        self._last_offset = latest
        # Records without a key need no slot.
        while index < count and (key_sizes[index] < 0 or offsets[index] < start_offset):
            index += 1
        return index

    def retain(
        self, buffer: Buffer, columns: record_scan.RecordColumns, count: int, retained: RetainedRecords, keeps_tombstones: bool
    ) -> None:
        """Write which of the first `count` records are retained.

        These are records above `latest_offset`, and the last record of each key, without a value only if `keeps_tombstones`.
        """
        offsets = columns.offset_view
        key_positions = columns.key_position_view
        key_sizes = columns.key_size_view
        value_sizes = columns.value_size_view
        table = self.table
        rows = self.rows
        places = self.places
        flags = retained.c_flags
        latest_offset = self.latest_offset
        slots = self.slots
        kept = 0
        tombstones = 0
        dropped_tombstones = 0
        without_key = 0
        most_hashed = len(rows)
        index = 0
        while index < count:
            first = index
            hashed = 0
            while index < count and hashed < most_hashed:
                flags[index] = 0
                if offsets[index] > latest_offset:
                    flags[index] = 1
                elif key_sizes[index] < 0:
                    without_key += 1
                elif value_sizes[index] >= 0 or keeps_tombstones:
                    rows[hashed] = index
                    hashed += 1
                index += 1
            hash_keys(buffer, key_positions, key_sizes, rows, hashed, self.secret, self.hashes)
            find_slots(table, slots, self.hashes, hashed, places)
            done = 0
            while done < hashed:
                last = table[places[done] + 2]
                if offsets[rows[done]] + 1 >= last:
                    flags[rows[done]] = 1
                done += 1
            while first < index:
                kept += flags[first]
                if value_sizes[first] < 0:
                    tombstones += flags[first]
                    dropped_tombstones += 1 - flags[first]
                first += 1
        retained.count = kept
        retained.tombstones = tombstones
        retained.without_key = without_key
        retained.dropped_tombstones = dropped_tombstones

    def get(self, key: bytes) -> int:
        """Return the offset of a key, ABSENT if it has none."""
        hash_keys(key, array("q", (0,)), array("q", (len(key),)), array("q", (0,)), 1, self.secret, self.hashes)
        find_slots(self.table, self.slots, self.hashes, 1, self.places)
        return int(self.table[self.places[0] + 2]) - 1


def sip_state(secret: bytes) -> array[int]:
    """Return the four words that a hash begins with, from the 16 bytes of a secret."""
    low, high = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    # "somepseudorandomlygeneratedbytes", and the 0xEE that asks for 128 bits.
    words = (low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D ^ 0xEE, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573)
    return array("Q", words)


def hash_keys(
    buffer: Buffer,
    key_positions: array[int],
    key_sizes: array[int],
    rows: array[int],
    count: int,
    secret: array[int],
    out: array[int],
) -> None:
    """Write the SipHash-2-4 of 128 bits of the keys of rows[:count] to `out`, two words each; `secret` is from sip_state.

    Raises IndexError for a key after the end of the buffer.
    """
    one = 1
    mask = (one << 63) - 1 + (one << 63)  # only Python's integers need it
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


def find_slots(table: memoryview, slots: int, hashes: array[int], count: int, places: array[int]) -> None:
    """Write the slot of each of the first `count` hashed keys, or the slot that it would get, to `places`.

    A slot is the index of the first of its three words.
    """
    # All are fetched before one is compared: a wrong branch prediction would delay the fetches that follow.
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


def move_slots(old: memoryview, start: int, stop: int, table: memoryview, slots: int) -> None:
    """Copy the keys in words [start, stop) of a table to a larger one."""
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
        start += 3
