"""Functions for the generated decoders, encoders and JSON printers: rare cases, and errors with Kafka's messages.

The generated code does not check for reads past the end: struct and indexing raise an error, which the caller of the decoder
converts to `past_the_end`. Lengths are checked before they are used in slices.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache
from typing import Any

from kcli.format.java_text import decode_utf8
from kcli.format.kafka_uuid import UUID_BYTES, Uuid
from kcli.format.primitives import Buffer, write_unsigned_varint
from kcli.protocol.message_errors import DecodeError, EncodeError, NotInVersionError

MAX_STRING_BYTES = 0x7FFF
_INT32_SIGN = 0x8000_0000
# Topic names and ids occur often, so short ones are interned: one object each, which also caches its hash.
MAX_INTERNED_BYTES = 249
REMEMBERED_NAMES = 4096
# Elements are counted only in messages with more bytes than this, because smaller ones cannot have too many. An element is an
# object of about 150 bytes, so the limit keeps the objects of a message below 50 MB.
MAX_MESSAGE_ELEMENTS = 256 * 1024
# The structs of integer arrays up to this length are cached.
MAX_READY_LIST = 64

interned_text = lru_cache(REMEMBERED_NAMES)(decode_utf8)
interned_uuid = lru_cache(REMEMBERED_NAMES)(Uuid)


class _ListStructs(dict[int, Callable[..., Any]]):
    """The pack or unpack method of the struct for an array of one fixed type, by the length of the array."""

    def __init__(self, code: str, method: str, before: str = "") -> None:
        super().__init__()
        self.before = before
        self.code = code
        self.method = method

    def __missing__(self, length: int) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(struct.Struct(f">{self.before}{length}{self.code}"), self.method)
        if length <= MAX_READY_LIST:
            self[length] = found
        return found


_CODES = {"t": "?", "b": "b", "h": "h", "H": "H", "i": "i", "I": "I", "q": "q", "d": "d"}
LIST_PACKERS = {name: _ListStructs(code, "pack") for name, code in _CODES.items()}
# The same after one byte with the compact length.
COUNTED_LIST_PACKERS = {name: _ListStructs(code, "pack", "B") for name, code in _CODES.items()}
LIST_UNPACKERS = {name: _ListStructs(code, "unpack_from") for name, code in _CODES.items()}


class ElementBudget:
    """The number of array elements and tagged fields that one message may have."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_MESSAGE_ELEMENTS

    def spend(self, count: int) -> None:
        """Subtract `count` elements. Raises DecodeError if fewer are left."""
        if count > self.left:
            raise DecodeError(f"the message has more than {MAX_MESSAGE_ELEMENTS} elements")
        if count > 0:
            self.left -= count


def past_the_end(name: str, size_bytes: int) -> DecodeError:
    """Return the error for bytes that end inside the message `name`."""
    return DecodeError(f"the {size_bytes} bytes end before the {name} in them does", size_bytes, "null")


def read_int32_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Decode an unsigned varint; return its value as a Java int and the position after it.

    Raises DecodeError if it has more than five bytes, and IndexError past the end.
    """
    value = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    value &= 0xFFFF_FFFF
    if byte >= 0x80:
        # Kafka's message has the value with the bits of the fifth byte beyond 32 cut off.
        text = f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value:x}"
        raise DecodeError("a varint has more than 5 bytes", at, text)
    return (value ^ _INT32_SIGN) - _INT32_SIGN, at


def read_length(data: Buffer, at: int) -> tuple[int, int]:
    """Decode a compact length of three bytes or more, stored plus one; return it, negative for null, and the position.

    Raises DecodeError if it has more than five bytes, and IndexError past the end.
    """
    third = data[at + 2]
    if third < 0x80:
        return (data[at] & 0x7F | (data[at + 1] & 0x7F) << 7 | third << 14) - 1, at + 3
    value, at = read_int32_varint(data, at)
    # In Java, the lowest int minus one is the highest int.
    return (value - 1 if value > -_INT32_SIGN else _INT32_SIGN - 1), at


def read_unknown_tagged_fields(data: Buffer, at: int, end: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Decode the tagged fields of a struct that declares none; return (tag, bytes) pairs and the position after them.

    Raises DecodeError for a field that is longer than the remaining bytes, and IndexError past the end.
    """
    count, at = read_int32_varint(data, at)
    found = []
    for _ in range(count):
        tag, at = read_int32_varint(data, at)
        size, at = read_int32_varint(data, at)
        if size < 0 or size > end - at:
            raise bad_bytes(size, end - at, at)
        found.append((tag, bytes(data[at : at + size])))
        at += size
    return tuple(found), at


def write_length(stored: int) -> bytes:
    """Encode a compact length of three bytes or more; `stored` is the length plus one."""
    if stored < 1 << 21:
        return bytes((stored & 0x7F | 0x80, stored >> 7 & 0x7F | 0x80, stored >> 14))
    return write_unsigned_varint(stored)


def null_refused(name: str, at: int) -> DecodeError:
    """Return the error for a null in the field `name`, which is not nullable."""
    return DecodeError(f"non-nullable field {name} was serialized as null", at)


def bad_string(name: str, length: int, left: int, at: int) -> DecodeError:
    """Return the error for a string with an invalid length, or one that is longer than the remaining bytes."""
    if length > MAX_STRING_BYTES:
        return DecodeError(f"string field {name} had invalid length {length}", at)
    return bad_bytes(length, left, at)


def bad_bytes(length: int, left: int, at: int) -> DecodeError:
    """Return the error for bytes with a negative length, or a length above the number of remaining bytes."""
    if length < 0:
        return DecodeError(f"a length of {length} bytes", at, str(length))
    return DecodeError(f"Error reading byte array of {length} byte(s): only {left} byte(s) available", at)


def bad_records(length: int, left: int, at: int) -> DecodeError:
    """Return the error for records that are longer than the remaining bytes."""
    return DecodeError(f"records of {length} bytes where {left} are left", at, f"newLimit > capacity: ({length} > {left})")


def bad_count(count: int, left: int, at: int) -> DecodeError:
    """Return the error for an array with more elements than remaining bytes."""
    text = f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
    return DecodeError(text, at)


def tag_refused(tag: int, version: int, at: int) -> DecodeError:
    """Return the error for a known tag that is not valid in this version."""
    return DecodeError(f"Tag {tag} is not valid for version {version}", at)


def encode_string(value: str, name: str) -> bytes:
    """Encode text as UTF-8. Raises EncodeError if it is longer than 32767 bytes; TypeError if it is not a str."""
    if not isinstance(value, str):
        raise TypeError(f"field {name} must be a string, not {value!r}")
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"field {name} has a lone surrogate: {error.reason}") from error
    if len(raw) > MAX_STRING_BYTES:
        raise EncodeError(f"'{name}' field is too long to be serialized: {len(raw)} bytes")
    return raw


def encode_uuid(value: bytes, name: str) -> bytes:
    """Return the 16 bytes of an id. Raises TypeError for any other value, which struct would cut or pad."""
    if not isinstance(value, bytes) or len(value) != UUID_BYTES:
        raise TypeError(f"field {name} must be an id of {UUID_BYTES} bytes, not {value!r}")
    return value


def quoted_base64(value: bytes) -> str:
    """Return bytes as base64 in a quoted JSON string."""
    return f'"{binascii.b2a_base64(value, newline=False).decode("ascii")}"'


def not_in_version(name: str, version: int) -> NotInVersionError:
    """Return the error for a value that `version` cannot represent."""
    return NotInVersionError(f"Attempted to write a non-default {name} at version {version}")


def no_tags_in_version(version: int) -> NotInVersionError:
    """Return the error for tagged fields in a version that has none."""
    return NotInVersionError(f"Tagged fields were set, but version {version} of this message does not support them.")


class SplicedBuffer(bytearray):
    """A buffer for a message with records that are not in memory: `splices` has each position and what to insert there."""

    __slots__ = ("splices",)

    splices: list[tuple[int, Sized]]  # set by the caller: a Python __init__ would cost more than the buffer


_PLAIN_BYTES = frozenset((bytes, bytearray, memoryview))


def put_records(out: bytearray, records: Sized) -> None:
    """Append records to a message, or record a splice if they are not bytes (a region of a file)."""
    if type(records) in _PLAIN_BYTES:
        out += records  # type: ignore[arg-type]
    else:
        out.splices.append((len(out), records))  # type: ignore[attr-defined]


def write_tagged_fields(out: bytearray, known: list[tuple[int, bytearray]], unknown: Sequence[tuple[int, bytes]]) -> None:
    """Append the tagged fields in the order of their tags. Raises EncodeError for a duplicate tag."""
    fields: list[tuple[int, Buffer]] = sorted([*known, *unknown], key=lambda field: field[0])
    out += write_unsigned_varint(len(fields))
    before = -1
    for tag, payload in fields:
        if tag <= before:
            raise EncodeError(f"duplicate tag {tag}")
        before = tag
        out += write_unsigned_varint(tag)
        out += write_unsigned_varint(len(payload))
        out += payload
