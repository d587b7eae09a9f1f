"""A principal in an Envelope, from broker to controller: its type and name (Kafka: DefaultPrincipalData).

part       bytes
---------  -----------------------------------------------------------
version    int16, 0
message    DefaultPrincipalData in that version, with tagged fields; tokenAuthenticated is written
           as false, since there are no tokens yet, and is ignored when read
"""

from __future__ import annotations

from kcli.format.primitives import Buffer
from kcli.protocol.catalog import message_type
from kcli.protocol.errors import DecodeError

_VERSION = 0


def encode_principal(principal: str) -> bytes:
    """ "User:name" -> bytes."""
    kind, _, name = principal.partition(":")
    type_ = message_type("control_records", "DefaultPrincipalData")
    return _VERSION.to_bytes(2, "big") + type_.encode(type_.new(type=kind, name=name), _VERSION)


def decode_principal(data: Buffer) -> str:
    """Bytes -> "User:name". Raises DecodeError."""
    if len(data) < 2 or int.from_bytes(data[:2], "big") != _VERSION:
        raise DecodeError("a principal of an unknown version", 0)
    message, _ = message_type("control_records", "DefaultPrincipalData").decode(data, _VERSION, 2)
    return f"{message.type}:{message.name}"
