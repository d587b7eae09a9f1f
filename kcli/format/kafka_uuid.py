"""Kafka's Uuid: 16 bytes that name a topic, a directory or an incarnation, written as 22 characters of base64url.

Zero means "no id"; one is the id of the metadata topic. `kcliKcliKcliKcliKcliKg` is an id as people see it.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

from kcli.format.primitives import FormatError

UUID_BYTES = 16
# From base64url to the two signs of base64 that binascii reads.
_TO_STANDARD = str.maketrans({"-": "+", "_": "/", "+": "*", "/": "*"})


class Uuid(bytes):
    """An id of 16 bytes: compares, hashes and encodes as those bytes, prints as Kafka prints it."""

    __slots__ = ()

    def __str__(self) -> str:
        """The 22 characters of base64url, without padding."""
        text = binascii.b2a_base64(self, newline=False).decode("ascii")
        return text.rstrip("=").replace("+", "-").replace("/", "_")

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> Uuid:
        """Parse the printed form. Raises FormatError if it is not base64url of 16 bytes."""
        try:
            standard = text.translate(_TO_STANDARD).encode("ascii")
            # Padding is there whole or not at all.
            padding = b"" if b"=" in standard else b"=" * (-len(standard) % 4)
            raw = binascii.a2b_base64(standard + padding, strict_mode=True)
        except ValueError as error:
            raise FormatError(f"{text[:40]!r} is not an id in base64url") from error
        if len(raw) != UUID_BYTES:
            raise FormatError(f"the id {text[:40]!r} has {len(raw)} bytes, not {UUID_BYTES}")
        return cls(raw)


TopicIdPartition = tuple[Uuid, int]  # the id of a topic, and a partition
ZERO_UUID = Uuid(UUID_BYTES)
# Below this number ids are Kafka's own: the metadata topic's, and the states of a replica's directory.
_RESERVED_IDS = 100


def random_uuid(random_bytes: Callable[[int], bytes]) -> Uuid:
    """Make an id as Kafka does, neither reserved nor printed with a leading "-"; `random_bytes` gets a size in bytes."""
    while True:
        raw = bytearray(random_bytes(UUID_BYTES))
        raw[6] = raw[6] & 0x0F | 0x40  # the version and the variant of a random UUID
        raw[8] = raw[8] & 0x3F | 0x80
        found = Uuid(raw)
        if int.from_bytes(found, "big") >= _RESERVED_IDS and not str(found).startswith("-"):
            return found
