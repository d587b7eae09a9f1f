"""Variable-length integers and CRC-32C, and the errors of decoding Kafka's files.

Everything is big-endian. Variable-length integers are those of Protocol Buffers: seven bits a byte, low group first, the
high bit says that another byte follows; signed ones are zigzag-coded.

    ====================  =====================================  =========================================
    kind                  at most                                used by
    ====================  =====================================  =========================================
    unsigned varint       5 bytes, 32 bits                       compact lengths, tags, metadata framing
    varint                5 bytes, zigzag of an int32            records (format v2)
    varlong               10 bytes, zigzag of an int64           timestamp deltas of records
    ====================  =====================================  =========================================

kcli.format.layouts declares the layouts that have them. construct accepts more than Kafka does (varints without a bound, bytes
left over in a prefix), so the readers use the strict functions of this module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Callable

Buffer = bytes | bytearray | memoryview
# kcli.client.TopicPartition is such a pair with names, for applications.
TopicPartition = tuple[str, int]

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
_VARINT_NAMES = {MAX_VARINT_BYTES: "varint", MAX_VARLONG_BYTES: "varlong"}
UINT32_MASK = 0xFFFF_FFFF
UINT64_MASK = 0xFFFF_FFFF_FFFF_FFFF
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class FormatError(ValueError):
    """Bytes that cannot be decoded; the message is one sentence without the file's name.

    `position` is the index of the wrong byte in the decoded data, or None.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


class CorruptRecordError(FormatError):
    """A batch whose size, magic or CRC is wrong (Kafka: CorruptRecordException)."""


class InvalidRecordError(FormatError):
    """A batch whose records cannot be decoded (Kafka: InvalidRecordException)."""


class RecordTooLargeError(InvalidRecordError):
    """A record above MAX_RECORD_BYTES, which would have to be held in memory whole; it may be sound."""


class CorruptIndexError(FormatError):
    """A damaged index file (Kafka: CorruptIndexException)."""


class CorruptSnapshotError(FormatError):
    """A damaged producer snapshot (Kafka: CorruptSnapshotException)."""


class CorruptCheckpointError(FormatError):
    """A damaged text file of a log directory (Kafka's reader raises an IOException)."""


class InflationError(FormatError):
    """Compressed bytes that cannot be decompressed."""


class InflationLimitError(InflationError):
    """Compressed bytes that have more than the allowed size when decompressed."""


def _load_crc32c() -> Callable[..., int]:
    """Return the C function of the crc32c package, which is called with (data, crc=0) and returns the CRC.

    The package looks its own version up when imported, which costs 55 ms; the extension module inside does not.
    """
    package = importlib.util.find_spec("crc32c")
    if package is not None and package.submodule_search_locations is not None:
        spec = importlib.machinery.PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found: Callable[..., int] = module.crc32c
            return found
    from crc32c import crc32c as plain

    return plain  # type: ignore[no-any-return]


crc32c = _load_crc32c()


def zigzag_decode(raw: int) -> int:
    """Decode a zigzag integer, which was read as an unsigned one."""
    return (raw >> 1) ^ -(raw & 1)


def read_unsigned_varint(buffer: Buffer, position: int, end: int, most_bytes: int = MAX_VARINT_BYTES) -> tuple[int, int]:
    """Decode an unsigned varint of at most 32 bits, with MAX_VARLONG_BYTES one of 64; return it and the position after it.

    Raises FormatError if it runs past `end` or has more than `most_bytes`.
    """
    value = 0
    for shift in range(0, 7 * most_bytes, 7):
        if position >= end:
            raise FormatError(f"a {_VARINT_NAMES[most_bytes]} runs past the end of its bytes", position)
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (UINT32_MASK if most_bytes == MAX_VARINT_BYTES else UINT64_MASK), position
    raise FormatError(f"a {_VARINT_NAMES[most_bytes]} has more than {most_bytes} bytes", position)


def read_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decode a zigzag varint; return the int32 and the position after it. Raises FormatError as read_unsigned_varint does."""
    raw, position = read_unsigned_varint(buffer, position, end)
    return zigzag_decode(raw), position


def read_varlong(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decode a zigzag varlong; return the int64 and the position after it. Raises FormatError as read_unsigned_varint does."""
    raw, position = read_unsigned_varint(buffer, position, end, MAX_VARLONG_BYTES)
    return zigzag_decode(raw), position


_SHORT_VARINTS = [bytes((value,)) for value in range(0x80)]


def write_unsigned_varint(value: int) -> bytes:
    """Encode an unsigned integer of at most 64 bits in 1 to 10 bytes. Raises ValueError for a negative one."""
    if 0 <= value < 0x80:
        return _SHORT_VARINTS[value]
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varint(value: int) -> bytes:
    """Encode an int32 or int64 as zigzag varint or varlong, in 1 to 10 bytes."""
    return write_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)
