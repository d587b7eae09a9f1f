"""What the kinds of damage stand on: where batches lie in a segment, by their headers alone, and the table of kinds.

It reads no more of the format than this, on purpose without kcli, whose reading of damaged files is what is tested:

    ==============  ======  ======  ======================================
    field           at      bytes
    ==============  ======  ======  ======================================
    base offset     0       8
    length          8       4       bytes behind it
    leader epoch    12      4
    magic           16      1       format 2 from here on
    crc             17      4       CRC-32C of all behind it
    attributes      21      2       bits 0-2 codec, 4 transactional, 5 control
    last offset     23      4       delta to the base offset
    base timestamp  27      8
    max timestamp   35      8
    producer id     43      8
    producer epoch  51      2
    base sequence   53      4
    record count    57      4
    records         61
    ==============  ======  ======  ======================================
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import crc32c

Damage = Callable[[Path, random.Random], None]

# Every kind by its name, in the order of their modules; each one's docstring says in a sentence what it does.
DAMAGES: dict[str, Damage] = {}

HEADER_BYTES = 61
PREFIX_BYTES = 17
HEADER_FIELDS: dict[str, tuple[int, int]] = {
    "base_offset": (0, 8),
    "length": (8, 4),
    "leader_epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "count": (57, 4),
}
CODEC_BITS = 0x07
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20


class NotApplicableError(Exception):
    """This partition has nothing that this kind of damage could be done to; the message says what is missing."""


class Batch(NamedTuple):
    """Where a batch lies: `position` and `size_bytes` in its file; the fields of its header as integers."""

    position: int
    size_bytes: int
    base_offset: int
    magic: int
    attributes: int
    last_offset: int
    max_timestamp: int
    producer_id: int

    @property
    def end(self) -> int:
        """The position of the byte behind it."""
        return self.position + self.size_bytes

    @property
    def is_control(self) -> bool:
        """Whether it holds markers instead of records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_plain_data(self) -> bool:
        """Whether it holds at least one uncompressed record of a producer."""
        return not self.attributes & (CONTROL_BIT | CODEC_BITS) and self.size_bytes > HEADER_BYTES


def damage(function: Damage) -> Damage:
    """Enter `function` into DAMAGES under its own name."""
    return register(function.__name__, function)


def register(name: str, function: Damage, sentence: str | None = None) -> Damage:
    """Enter `function` into DAMAGES as `name`; `sentence` becomes its docstring where it is made by a factory."""
    if name in DAMAGES:
        raise ValueError(f"there is a kind of damage called {name} already")
    if sentence is not None:
        function.__doc__ = sentence
    DAMAGES[name] = function
    return function


def segment_logs(partition_dir: Path) -> list[Path]:
    """Return the partition's .log files by base offset."""
    return sorted(partition_dir.glob("*.log"))


def sibling(log: Path, suffix: str) -> Path:
    """Return the file of the same segment with another suffix, such as `.index`."""
    return log.with_name(log.name.removesuffix(".log") + suffix)


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and the suffix."""
    return f"{offset:020d}{suffix}"


def base_offset_of(path: Path) -> int:
    """Return the offset that a segment's file is named by."""
    return int(path.name[:20])


def read_batches(log: Path) -> list[Batch]:
    """Return the batches of a sound segment. Raises NotApplicableError for message formats 0 and 1."""
    data = log.read_bytes()
    found: list[Batch] = []
    position = 0
    while position < len(data):
        base_offset, length, _, magic = struct.unpack_from(">qiib", data, position)
        if magic != 2:
            raise NotApplicableError(f"{log.name} is in message format {magic}")
        attributes, delta, _, max_timestamp, producer_id = struct.unpack_from(">hiqqq", data, position + 21)
        last_offset = base_offset + delta
        found.append(Batch(position, 12 + length, base_offset, magic, attributes, last_offset, max_timestamp, producer_id))
        position += 12 + length
    return found


def log_with_batches(partition_dir: Path, *, old: bool = False, at_least: int = 1) -> tuple[Path, list[Batch]]:
    """Return the last segment that has `at_least` so many batches (the first one, and not the last, if `old`)."""
    logs = segment_logs(partition_dir)
    for log in logs[:-1] if old else reversed(logs):
        batches = read_batches(log)
        if len(batches) >= at_least:
            return log, batches
    raise NotApplicableError(f"no {'older ' if old else ''}segment has {at_least} batches")


def middle_batch(batches: list[Batch], rng: random.Random) -> Batch:
    """Return one that is neither the first nor the last; one of two where there are only two."""
    return rng.choice(batches[1:-1] or batches)


def log_end_offset(partition_dir: Path) -> int:
    """Return the offset that the next record would get."""
    _, batches = log_with_batches(partition_dir)
    return batches[-1].last_offset + 1


def patch(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file in place."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, mask: int = 1) -> bytes:
    """Flip the bits of a mask in one byte of a file -> its new content; a negative position counts from its end."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)
    return bytes(data)


def cut(path: Path, size_bytes: int) -> None:
    """Cut a file to a size."""
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def append(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file."""
    with path.open("ab") as file:
        file.write(data)


def flip_bit(path: Path, position: int, size_bytes: int, rng: random.Random) -> None:
    """Flip one random bit of the `size_bytes` at `position`."""
    flip(path, position + rng.randrange(size_bytes), 1 << rng.randrange(8))


def get_field(log: Path, batch: Batch, field: str) -> int:
    """Return a header field as a signed integer."""
    at, size_bytes = HEADER_FIELDS[field]
    with log.open("rb") as file:
        file.seek(batch.position + at)
        return int.from_bytes(file.read(size_bytes), "big", signed=True)


def set_field(log: Path, batch: Batch, field: str, value: int, *, forge_crc: bool = False) -> None:
    """Set a header field; with `forge_crc` the batch gets the CRC that fits, so that only its meaning is wrong."""
    at, size_bytes = HEADER_FIELDS[field]
    patch(log, batch.position + at, value.to_bytes(size_bytes, "big", signed=True))
    if forge_crc:
        fix_crc(log, batch)


def fix_crc(log: Path, batch: Batch) -> None:
    """Give a batch the CRC that fits its bytes."""
    with log.open("rb") as file:
        file.seek(batch.position + 21)
        covered = file.read(batch.size_bytes - 21)
    patch(log, batch.position + 17, struct.pack(">I", crc32c.crc32c(covered)))
