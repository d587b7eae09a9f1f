"""The last offset of each key: what a round of the cleaner gathers first, and asks of each record then.

    per key    24 bytes: a hash of 128 bits and the offset, in an open table that doubles up to the memory it may have
    hash       SipHash-2-4 of 128 bits (Aumasson and Bernstein), keyed with a secret that is drawn for each round
    probing    slot = high % slots, step = 1 + low % (slots - 1); slots is prime, so all are visited

Kafka (SkimpyOffsetMap) takes MD5 and does not compare keys either, so whoever makes two keys of one MD5 loses a record. Without
the secret nobody can make two keys collide here, and by chance 2**32 keys do with a probability below 2**-64.

A map that is full ends the round's range, between two records where need be; the next round goes on there. This one source
runs two ways, as kcli.format.record_scan does; its C types stand in offset_map.pxd.
"""

from array import array

from kcli.format.record_scan import Buffer, RecordColumns

SLOT_BYTES = 24
SECRET_BYTES = 16
FIRST_SLOTS = 1 << 12
# Of the slots so many are used before the table grows, or is full (log.cleaner.io.buffer.load.factor).
LOAD_FACTOR = 0.9
ABSENT = -1

# The slots of the state that the loops share.
SLOTS = 0
USED = 1
LIMIT = 2
STATE_SLOTS = 3

# What `keep_records` counts.
KEPT = 0
KEPT_TOMBSTONES = 1
WITHOUT_KEY = 2
DROPPED_TOMBSTONES = 3
COUNT_SLOTS = 4


class OffsetMap:
    """The last offset of each key in at most `memory_bytes`; `secret` has SECRET_BYTES, drawn for this map.

    `latest_offset` is the last one that the map accounts for, -1 in a new one; whoever fills it moves it on.
    """

    def __init__(self, memory_bytes: int, secret: bytes, load_factor: float = LOAD_FACTOR) -> None:
        self._most_slots = prime_up_to(max(memory_bytes // SLOT_BYTES, 3))
        self._load_factor = load_factor
        self._secret = sip_state(secret)
        self._state = array("q", bytes(8 * STATE_SLOTS))
        self._hash = array("Q", bytes(16))
        self._table = array("Q")
        self.latest_offset = ABSENT
        self._use(min(self._most_slots, prime_up_to(FIRST_SLOTS)))

    def __len__(self) -> int:
        """How many keys it holds."""
        return self._state[USED]

    @property
    def memory_bytes(self) -> int:
        """What its table takes now."""
        return len(self._table) * self._table.itemsize

    @property
    def is_full(self) -> bool:
        """Whether not one more record may be noted."""
        return self._state[SLOTS] == self._most_slots and self._state[USED] >= self._state[LIMIT]

    def _use(self, slots: int) -> None:
        """Go on with a table of so many slots."""
        old, self._table = self._table, array("Q", (0,)) * (3 * slots)
        self._state[SLOTS] = slots
        self._state[LIMIT] = int(slots * self._load_factor)
        put_slots(old, self._table, slots, self._hash)

    def note(self, buffer: Buffer, columns: RecordColumns, count: int, start_offset: int, first: int = 0) -> int:
        """Note the keys of records [first, count) of a window that stand at `start_offset` or behind -> where it was full.

        That is the index of the first record that was not noted, `count` where all were.
        """
        index = first
        while True:
            index = note_records(
                buffer,
                columns.offset,
                columns.key_position,
                columns.key_size,
                index,
                count,
                start_offset,
                self._table,
                self._state,
                self._secret,
                self._hash,
            )
            if index == count or self._state[SLOTS] == self._most_slots:
                return index
            self._use(min(self._most_slots, prime_up_to(2 * self._state[SLOTS])))

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
        return keep_records(
            buffer,
            columns.offset,
            columns.key_position,
            columns.key_size,
            columns.value_size,
            count,
            self.latest_offset,
            1 if keeps_tombstones else 0,
            self._table,
            self._state,
            self._secret,
            self._hash,
            kept,
            counts,
        )

    def get(self, key: bytes) -> int:
        """The offset of a key, ABSENT where it has none."""
        hash_key(key, 0, len(key), self._secret, self._hash)
        return int(self._table[find_slot(self._table, self._state[SLOTS], self._hash) + 2]) - 1


def prime_up_to(number: int) -> int:
    """The largest prime that is not above `number`, which is at least 2."""
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number


def sip_state(secret: bytes) -> array:  # type: ignore[type-arg]
    """What a hash begins with, of the 16 bytes of a secret: four words, and the mask of 64 bits."""
    low, high = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    # "somepseudorandomlygeneratedbytes", and the 0xEE that asks for 128 bits.
    words = (low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D ^ 0xEE, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573)
    return array("Q", (*words, (1 << 64) - 1))


def hash_key(buffer: Buffer, position: int, size: int, secret: array, out: array) -> int:  # type: ignore[type-arg]
    """Put the SipHash-2-4 of 128 bits of buffer[position : position + size] into out -> 0; `secret` is of sip_state.

    Raises IndexError behind the end of the buffer.
    """
    v0 = secret[0]
    v1 = secret[1]
    v2 = secret[2]
    v3 = secret[3]
    mask = secret[4]
    left = size
    finals = 0
    while finals < 2:
        word = 0
        shift = 0
        if left >= 0:  # the next eight bytes of the key; the last word has fewer, and the size in its highest byte
            end = 64 if left >= 8 else 8 * left
            while shift < end:
                byte = buffer[position]
                word |= byte << shift
                position += 1
                shift += 8
            if left < 8:
                byte = size & 255
                word |= byte << 56
            rounds = 2
        else:
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
            out[finals] = v0 ^ v1 ^ v2 ^ v3
            finals += 1
            v1 ^= 0xDD
        elif left < 8:
            left = -1
            v2 ^= 0xEE
        else:
            left -= 8
    return 0


def find_slot(table: array, slots: int, key: array) -> int:  # type: ignore[type-arg]
    """Where the key of this hash stands in the table, or where it would: the index of its first word of three."""
    high = key[0]
    low = key[1]
    slot = high % slots
    step = 0
    while True:
        at: int = 3 * slot
        if table[at + 2] == 0 or (table[at] == high and table[at + 1] == low):
            return at
        if step == 0:
            step = 1 + low % (slots - 1)
        slot += step
        if slot >= slots:
            slot -= slots


def put_slots(old: array, table: array, slots: int, key: array) -> int:  # type: ignore[type-arg]
    """Put every key of a table into another one, which has room -> how many; `key` is where a hash may stand meanwhile."""
    moved = 0
    index = 0
    end = len(old)
    while index < end:
        if old[index + 2] != 0:
            key[0] = old[index]
            key[1] = old[index + 1]
            at = find_slot(table, slots, key)
            table[at] = old[index]
            table[at + 1] = old[index + 1]
            table[at + 2] = old[index + 2]
            moved += 1
        index += 3
    return moved


def note_records(
    buffer: Buffer,
    offsets: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    index: int,
    count: int,
    start_offset: int,
    table: array,  # type: ignore[type-arg]
    state: array,  # type: ignore[type-arg]
    secret: array,  # type: ignore[type-arg]
    key: array,  # type: ignore[type-arg]
) -> int:
    """The loop of `OffsetMap.note`; it ends where as many slots are used as may be."""
    slots = state[0]
    used = state[1]
    limit = state[2]
    while index < count:
        if key_sizes[index] >= 0 and offsets[index] >= start_offset:
            if used >= limit:
                break
            hash_key(buffer, key_positions[index], key_sizes[index], secret, key)
            at = find_slot(table, slots, key)
            if table[at + 2] == 0:
                table[at] = key[0]
                table[at + 1] = key[1]
                used += 1
            table[at + 2] = offsets[index] + 1
        index += 1
    state[1] = used
    return index


def keep_records(
    buffer: Buffer,
    offsets: array,  # type: ignore[type-arg]
    key_positions: array,  # type: ignore[type-arg]
    key_sizes: array,  # type: ignore[type-arg]
    value_sizes: array,  # type: ignore[type-arg]
    count: int,
    latest_offset: int,
    keeps_tombstones: int,
    table: array,  # type: ignore[type-arg]
    state: array,  # type: ignore[type-arg]
    secret: array,  # type: ignore[type-arg]
    key: array,  # type: ignore[type-arg]
    kept: bytearray,
    counts: array,  # type: ignore[type-arg]
) -> int:
    """The loop of `OffsetMap.keep`."""
    slots = state[0]
    stay = 0
    tombstones = 0
    without_key = 0
    dropped_tombstones = 0
    index = 0
    while index < count:
        stays = 0
        if offsets[index] > latest_offset:
            stays = 1
        elif key_sizes[index] < 0:
            without_key += 1
        elif value_sizes[index] >= 0 or keeps_tombstones:
            hash_key(buffer, key_positions[index], key_sizes[index], secret, key)
            at = find_slot(table, slots, key)
            last = table[at + 2]
            if offsets[index] + 1 >= last:
                stays = 1
        if value_sizes[index] < 0:
            tombstones += stays
            dropped_tombstones += 1 - stays
        kept[index] = stays
        stay += stays
        index += 1
    counts[0] = stay
    counts[1] = tombstones
    counts[2] = without_key
    counts[3] = dropped_tombstones
    return stay
