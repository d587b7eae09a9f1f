"""Random damage to any bytes: what a disk, a cut copy or a bug leaves, with no knowledge of the format.

`mutate(data, rng)` does one kind of damage, once or a few times, near the start (where headers lie) or anywhere:

    ========  ==========================================================================================
    flip      one bit
    byte      one byte becomes another: 0, 1, 2, 127, 128, 255 or any
    cut       the rest is gone
    zero      a run of zeros: a field, a header, a sector
    splice    a piece of the same bytes is put in or over
    int       an int32 that lies: 0, 1, -1, the extremes, the least sizes of entries, the length of it all
    varint    four to ten bytes with their high bits set, then one that ends them
    random    a run of random bytes
    ========  ==========================================================================================

`reseal(name, data)` then makes the checksums fit, so that the lie gets behind them.
"""

from __future__ import annotations

import random
import struct

import crc32c

WAYS = ("flip", "flip", "flip", "byte", "cut", "zero", "splice", "int", "varint", "random")
_HEAD_BYTES = 80


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes, in a way that depends on them and the state of `rng` alone; the damaged bytes."""
    spoilt = bytearray(data)
    way = rng.choice(WAYS)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not spoilt:
            break
        at = rng.randrange(len(spoilt))
        if rng.random() < 0.3:
            at = min(at, rng.randrange(_HEAD_BYTES))
        _spoil(spoilt, way, at, rng)
    return bytes(spoilt)


def _spoil(data: bytearray, way: str, at: int, rng: random.Random) -> None:
    match way:
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
        case "byte":
            data[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        case "cut":
            del data[at:]
        case "zero":
            size_bytes = min(rng.choice((1, 4, 16, 61, 512)), len(data) - at)
            data[at : at + size_bytes] = bytes(size_bytes)
        case "splice":
            source, size_bytes = rng.randrange(len(data)), rng.choice((1, 5, 61, 100))
            data[at : at + rng.choice((0, size_bytes))] = data[source : source + size_bytes]
        case "int":
            lie = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 14, 22, 49, 61, len(data) % 2**31))
            data[at : at + 4] = lie.to_bytes(4, "big", signed=True)
        case "varint":
            data[at : at + 10] = b"\xff" * rng.choice((4, 5, 9, 10)) + bytes([rng.randrange(128)])
        case _:
            data[at : at + 64] = rng.randbytes(rng.randint(1, 64))


def reseal(name: str, data: bytes) -> bytes:
    """Give every batch of format 2 in a log, or a producer snapshot, the CRC that fits its bytes; other files as they are."""
    sealed = bytearray(data)
    if name.endswith(".snapshot") and len(data) > 6:
        struct.pack_into(">I", sealed, 2, crc32c.crc32c(data[6:]))
    position = 0
    while name.endswith((".log", ".checkpoint")) and position + 61 <= len(data):
        size_bytes = 12 + struct.unpack_from(">i", data, position + 8)[0]
        if size_bytes < 61 or position + size_bytes > len(data):
            break
        if data[position + 16] == 2:
            struct.pack_into(">I", sealed, position + 17, crc32c.crc32c(data[position + 21 : position + size_bytes]))
        position += size_bytes
    return bytes(sealed)
