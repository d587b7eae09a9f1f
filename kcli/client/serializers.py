"""Serializers and deserializers: bytes of keys and values (Kafka: org.apache.kafka.common.serialization).

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
    json     what json.dumps has  JSON in UTF-8, without blanks

None is null in all of them. A serializer of one's own is a function of the value that returns bytes or None. The deserializer
of a name returns what its serializer takes (uuid: a UUID); one of one's own is a function of bytes that are not null.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kcli.client.errors import ConfigError, SerializationError

Serializer = Callable[[Any], "bytes | None"]
Deserializer = Callable[[bytes], object]


def _packed(layout: str) -> Serializer:
    pack = struct.Struct(layout).pack
    return lambda value: None if value is None else pack(value)


def to_bytes(value: Any) -> bytes | None:
    """Return bytes-like data as bytes. Raises TypeError for any other type."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"bytes are expected, not {type(value).__name__}")


def _string(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _uuid(value: uuid.UUID | str | None) -> bytes | None:
    return None if value is None else str(uuid.UUID(str(value))).encode()


def _void(value: None) -> None:
    if value is not None:
        raise TypeError("the serializer void takes None only")


def _json(value: Any) -> bytes | None:
    import json

    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


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
    "json": _json,
}


# The serializer that the message for a value without one proposes first.
_FITTING: dict[type, str] = {str: "string", int: "long", float: "double", uuid.UUID: "uuid"}


def find_serializer(serializer: Serializer | str | None) -> Serializer | None:
    """Return a serializer by its name; None and bytes need none. Raises ConfigError for what is neither name nor function."""
    if serializer is None or serializer == "bytes":
        return None
    return _found(SERIALIZERS, serializer, "serializer")


def _unpacked(layout: str) -> Deserializer:
    unpack = struct.Struct(layout).unpack
    return lambda data: unpack(data)[0]


def _from_void(data: bytes) -> None:
    raise ValueError("the deserializer void takes null only")


def _from_json(data: bytes) -> object:
    import json

    return json.loads(data)


DESERIALIZERS: dict[str, Deserializer] = {
    "bytes": lambda data: data,
    "string": lambda data: data.decode(),
    "short": _unpacked(">h"),
    "integer": _unpacked(">i"),
    "long": _unpacked(">q"),
    "float": _unpacked(">f"),
    "double": _unpacked(">d"),
    "uuid": lambda data: uuid.UUID(data.decode()),
    "void": _from_void,
    "json": _from_json,
}


def find_deserializer(deserializer: Deserializer | str | None) -> Deserializer | None:
    """Return a deserializer by its name; None and bytes need none. Raises ConfigError for what is neither name nor function."""
    if deserializer is None or deserializer == "bytes":
        return None
    return _found(DESERIALIZERS, deserializer, "deserializer")


_Function = TypeVar("_Function", bound=Callable[..., object])


def _found(known: Mapping[str, _Function], wanted: _Function | str, what: str) -> _Function:
    if not isinstance(wanted, str):
        if not callable(wanted):
            raise ConfigError(f"a {what} is a function, or one of {', '.join(known)}, not {wanted!r}")
        return wanted
    if wanted not in known:
        raise ConfigError(f"there is no {what} {wanted!r}: choose one of {', '.join(known)}, or pass a function")
    return known[wanted]


def serialize(serializer: Serializer | None, value: Any, what: str) -> bytes | None:
    """Return the bytes of a key or value (`what`). Raises SerializationError; its cause is what the serializer raised."""
    try:
        return to_bytes(value if serializer is None else serializer(value))
    except Exception as error:
        advice = ""
        if serializer is None:
            fitting = next((name for kind, name in _FITTING.items() if isinstance(value, kind)), "json")
            advice = f': pass {what}_serializer="{fitting}" to the producer, another of {", ".join(SERIALIZERS)}, or a function'
        raise SerializationError(f"the {what} cannot be serialized: {error}{advice}") from error
