"""Serializers: what makes bytes of a key or value (Kafka: org.apache.kafka.common.serialization).

    name     takes                bytes
    -------  -------------------  ----------------------------------------------
    bytes    bytes                as they are; also bytearray and memoryview
    string   str                  UTF-8
    short    int                  2 bytes, big-endian, signed
    integer  int                  4 bytes
    long     int                  8 bytes
    float    float                4 bytes, IEEE 754, big-endian
    double   float                8 bytes
    uuid     uuid.UUID or text    36 characters, as Java's UUID.toString
    void     None                 null

None is null in all of them. A serializer of one's own is a function of the value that returns bytes or None.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from kcli.client.errors import ConfigError, SerializationError

Serializer = Callable[[Any], "bytes | None"]


def _packed(layout: str) -> Serializer:
    pack = struct.Struct(layout).pack
    return lambda value: None if value is None else pack(value)


def to_bytes(value: Any) -> bytes | None:
    """Return bytes-like data as bytes. Raises TypeError for any other type."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"bytes are expected, not {type(value).__name__}: choose a serializer")


def _string(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _uuid(value: uuid.UUID | str | None) -> bytes | None:
    return None if value is None else str(uuid.UUID(str(value))).encode()


def _void(value: None) -> None:
    if value is not None:
        raise TypeError("the serializer void takes None only")


SERIALIZERS: dict[str, Serializer] = {
    "bytes": to_bytes,
    "string": _string,
    "short": _packed(">h"),
    "integer": _packed(">i"),
    "long": _packed(">q"),
    "float": _packed(">f"),
    "double": _packed(">d"),
    "uuid": _uuid,
    "void": _void,
}


def find_serializer(serializer: Serializer | str | None) -> Serializer | None:
    """Return a serializer by its name; None and bytes need none. Raises ConfigError for a name that does not exist."""
    if serializer is None or serializer == "bytes":
        return None
    if not isinstance(serializer, str):
        return serializer
    if serializer not in SERIALIZERS:
        raise ConfigError(f"there is no serializer {serializer!r}: choose one of {', '.join(SERIALIZERS)}, or pass a function")
    return SERIALIZERS[serializer]


def serialize(serializer: Serializer | None, value: Any, what: str) -> bytes | None:
    """Return the bytes of a key or value. Raises SerializationError; its cause is what the serializer raised."""
    try:
        return to_bytes(value if serializer is None else serializer(value))
    except Exception as error:
        raise SerializationError(f"the {what} cannot be serialized: {error}") from error
