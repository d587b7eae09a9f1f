"""What the generated decoders, encoders and JSON printers call: the rare paths, and the errors with Kafka's own words for them.

A read past the end needs no check of its own in the generated code: struct and indexing refuse it, and the one place that
calls the decoder turns that into `past_the_end`. Lengths are checked before anything is sliced by them.
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
from kcli.protocol.errors import DecodeError, EncodeError

MAX_STRING_BYTES = 0x7FFF
_INT32_SIGN = 0x8000_0000
# Names of topics and ids come again and again: a short one is made an object once, whose hash then is known too.
MAX_INTERNED_BYTES = 249
REMEMBERED_NAMES = 4096
# A message of no more bytes than elements are allowed cannot have too many; those of a larger one are counted. An element
# costs some 150 bytes as an object, so nobody makes more than 50 MB of a message, whatever its size.
MAX_MESSAGE_ELEMENTS = 256 * 1024
# Arrays of integers up to this length have their struct ready.
MAX_READY_LIST = 64

interned_text = lru_cache(REMEMBERED_NAMES)(decode_utf8)
interned_uuid = lru_cache(REMEMBERED_NAMES)(Uuid)


class _ListStructs(dict[int, Callable[..., Any]]):
    """By the length of an array of one fixed type: the method of its struct."""

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
# The same behind one byte, a compact length.
COUNTED_LIST_PACKERS = {name: _ListStructs(code, "pack", "B") for name, code in _CODES.items()}
LIST_UNPACKERS = {name: _ListStructs(code, "unpack_from") for name, code in _CODES.items()}


class ElementBudget:
    """How many elements of arrays and tagged fields one message may have."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_MESSAGE_ELEMENTS

    def spend(self, count: int) -> None:
        """Take `count` of them. Raises DecodeError when there are not as many left."""
        if count > self.left:
            raise DecodeError(f"a message of more than {MAX_MESSAGE_ELEMENTS} elements")
        if count > 0:
            self.left -= count


def past_the_end(name: str, size_bytes: int) -> DecodeError:
    """The error for bytes that end inside the message `name`."""
    return DecodeError(f"the {size_bytes} bytes end before the {name} in them does", size_bytes, "null")


def read_int32_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Decode an unsigned varint -> (the int32 that Java keeps it in, position behind it).

    Raises DecodeError when a sixth byte would follow, and IndexError past the end.
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
        # Java's last byte keeps its high bit when it is shifted in, beyond the 32 that count.
        text = f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value:x}"
        raise DecodeError("a varint has more than 5 bytes", at, text)
    return (value ^ _INT32_SIGN) - _INT32_SIGN, at


def read_length(data: Buffer, at: int) -> tuple[int, int]:
    """Decode a compact length of three bytes or more, which is stored plus one -> (length or less than 0 for null, position).

    Raises DecodeError when a sixth byte would follow, and IndexError past the end.
    """
    third = data[at + 2]
    if third < 0x80:
        return (data[at] & 0x7F | (data[at + 1] & 0x7F) << 7 | third << 14) - 1, at + 3
    value, at = read_int32_varint(data, at)
    # One less than the least int32 is, in Java, the greatest.
    return (value - 1 if value > -_INT32_SIGN else _INT32_SIGN - 1), at


def read_unknown_tagged_fields(data: Buffer, at: int, end: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Decode the tagged fields of a struct that declares none -> (them as (tag, bytes) pairs, position behind them).

    Raises DecodeError for a field that is longer than what is left, and IndexError past the end.
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
    """Encode a compact length, the one already added, that needs three bytes or more."""
    if stored < 1 << 21:
        return bytes((stored & 0x7F | 0x80, stored >> 7 & 0x7F | 0x80, stored >> 14))
    return write_unsigned_varint(stored)


def null_refused(name: str, at: int) -> DecodeError:
    """The error for a null where the field `name` has none."""
    return DecodeError(f"non-nullable field {name} was serialized as null", at)


def bad_string(name: str, length: int, left: int, at: int) -> DecodeError:
    """The error for a string whose length no string has, or that is longer than what is left."""
    if length > MAX_STRING_BYTES:
        return DecodeError(f"string field {name} had invalid length {length}", at)
    return bad_bytes(length, left, at)


def bad_bytes(length: int, left: int, at: int) -> DecodeError:
    """The error for bytes that are longer than what is left, or of negative length."""
    if length < 0:
        return DecodeError(f"a length of {length} bytes", at, str(length))
    return DecodeError(f"Error reading byte array of {length} byte(s): only {left} byte(s) available", at)


def bad_records(length: int, left: int, at: int) -> DecodeError:
    """The error for records that are longer than what is left."""
    return DecodeError(f"records of {length} bytes where {left} are left", at, f"newLimit > capacity: ({length} > {left})")


def bad_count(count: int, left: int, at: int) -> DecodeError:
    """The error for an array of more elements than bytes are left."""
    text = f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
    return DecodeError(text, at)


def tag_refused(tag: int, version: int, at: int) -> DecodeError:
    """The error for a tag that means something, but not in this version."""
    return DecodeError(f"Tag {tag} is not valid for version {version}", at)


def encode_string(value: str, name: str) -> bytes:
    """Text as UTF-8. Raises EncodeError when it is None, no text, or longer than 32767 bytes."""
    if not isinstance(value, str):
        raise EncodeError(f"field {name} must be a string, not {value!r}")
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"field {name} holds half a character: {error.reason}") from error
    if len(raw) > MAX_STRING_BYTES:
        raise EncodeError(f"'{name}' field is too long to be serialized: {len(raw)} bytes")
    return raw


def encode_uuid(value: bytes, name: str) -> bytes:
    """The 16 bytes of an id. Raises EncodeError for anything else, which struct would cut or fill up."""
    if not isinstance(value, bytes) or len(value) != UUID_BYTES:
        raise EncodeError(f"field {name} must be an id of {UUID_BYTES} bytes, not {value!r}")
    return value


def quoted_base64(value: bytes) -> str:
    """Bytes as a JSON string of base64, with its quotes."""
    return f'"{binascii.b2a_base64(value, newline=False).decode("ascii")}"'


def not_in_version(name: str, version: int) -> EncodeError:
    """The error for a value that would be lost in `version`."""
    return EncodeError(f"Attempted to write a non-default {name} at version {version}")


def no_tags_in_version(version: int) -> EncodeError:
    """The error for tagged fields in a version that has none."""
    return EncodeError(f"Tagged fields were set, but version {version} of this message does not support them.")


class SplicedBuffer(bytearray):
    """A message under way whose records are not bytes at hand: `splices` has, by position, what goes in between."""

    __slots__ = ("splices",)

    splices: list[tuple[int, Sized]]  # set by who makes it: a Python __init__ would cost more than the buffer


_PLAIN_BYTES = frozenset((bytes, bytearray, memoryview))


def put_records(out: bytearray, records: Sized) -> None:
    """Append records to a message under way, or note where they go in where they are no bytes (a region of a file)."""
    if type(records) in _PLAIN_BYTES:
        out += records  # type: ignore[arg-type]
    else:
        out.splices.append((len(out), records))  # type: ignore[attr-defined]


def write_tagged_fields(out: bytearray, known: list[tuple[int, bytearray]], unknown: Sequence[tuple[int, bytes]]) -> None:
    """Append the tagged fields, in the order of their tags. Raises EncodeError when a tag is there twice."""
    fields: list[tuple[int, Buffer]] = sorted([*known, *unknown], key=lambda field: field[0])
    out += write_unsigned_varint(len(fields))
    before = -1
    for tag, payload in fields:
        if tag <= before:
            raise EncodeError(f"tag {tag} is there twice")
        before = tag
        out += write_unsigned_varint(tag)
        out += write_unsigned_varint(len(payload))
        out += payload
