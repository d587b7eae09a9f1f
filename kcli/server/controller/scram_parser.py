"""Parses the SCRAM credentials (RFC 5802) of `--add-scram` into records, as Kafka's ScramParser does.

    --add-scram 'SCRAM-SHA-256=[name=alice,password=secret]'
    --add-scram 'SCRAM-SHA-512=[name=alice,salt=<base64>,saltedpassword=<base64>,iterations=8192]'

    stored         is
    -------------  --------------------------------------------------------------
    salt           the given one, or a random one
    iterations     the given number, 4096 to 16384; 4096 by default
    stored key     H(HMAC(salted password, "Client Key"))
    server key     HMAC(salted password, "Server Key")

The password itself is not stored. H is SHA-256 or SHA-512; the salted password is its PBKDF2.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

from kcli.protocol.message import Message
from kcli.server.raft.metadata_batches import new_record
from kcli.state.metadata_values import SCRAM_MECHANISMS

LOWEST_ITERATIONS = 4096
HIGHEST_ITERATIONS = 16384
SALT_BYTES = 32
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_KEYS = frozenset(("name", "password", "salt", "saltedpassword", "iterations"))


class ScramError(ValueError):
    """A text that is not a credential; the message is one sentence without secrets."""


def scram_keys(mechanism: str, salted_password: bytes) -> tuple[bytes, bytes]:
    """Return the (stored key, server key) of a salted password with "SCRAM-SHA-256" or "SCRAM-SHA-512"."""
    import hashlib
    import hmac

    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return hashlib.new(name, client_key).digest(), hmac.digest(salted_password, b"Server Key", name)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return PBKDF2 of a password with the mechanism's hash."""
    import hashlib

    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def parse_scram(text: str, random_bytes: Callable[[int], bytes]) -> Message:
    """Return the UserScramCredentialRecord of an --add-scram text. Raises ScramError."""
    mechanism, _, rest = text.strip().partition("=")
    number = next((number for number, name in SCRAM_MECHANISMS.items() if name == mechanism), None)
    if number is None:
        raise ScramError(f"{mechanism!r} is not a SCRAM mechanism; use {' or '.join(SCRAM_MECHANISMS.values())}")
    if not (rest.startswith("[") and rest.endswith("]")):
        raise ScramError(f"{mechanism}= must be followed by [name=...,password=...], in brackets")
    parts = _parts(rest[1:-1])
    if "name" not in parts:
        raise ScramError(f"a credential of {mechanism} needs the name of its user: name=...")
    if ("password" in parts) == ("saltedpassword" in parts):
        raise ScramError(f"the credential of {parts['name']!r} needs either password=... or saltedpassword=...")
    if "saltedpassword" in parts and "salt" not in parts:
        raise ScramError(f"the credential of {parts['name']!r} has a saltedpassword and needs its salt=...")
    iterations = _iterations(parts)
    salt = _base64(parts, "salt") if "salt" in parts else random_bytes(SALT_BYTES)
    if "password" in parts:
        salted = salted_password(mechanism, parts["password"], salt, iterations)
    else:
        salted = _base64(parts, "saltedpassword")
    stored_key, server_key = scram_keys(mechanism, salted)
    return new_record(
        "UserScramCredentialRecord",
        name=parts["name"],
        mechanism=number,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=iterations,
    )


def _parts(text: str) -> dict[str, str]:
    parts = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in _KEYS:
            raise ScramError(f"a credential consists of {', '.join(sorted(_KEYS))}, each with =; {key!r} is not one of them")
        if len(value) > 1 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        parts[key] = value
    return parts


def _iterations(parts: dict[str, str]) -> int:
    text = parts.get("iterations", str(LOWEST_ITERATIONS))
    if not text.isdecimal() or not LOWEST_ITERATIONS <= int(text) <= HIGHEST_ITERATIONS:
        raise ScramError(f"iterations is {text!r}; it must be a number from {LOWEST_ITERATIONS} to {HIGHEST_ITERATIONS}")
    return int(text)


def _base64(parts: dict[str, str], key: str) -> bytes:
    try:
        return binascii.a2b_base64(parts[key], strict_mode=True)
    except (binascii.Error, ValueError):
        raise ScramError(f"{key} of {parts['name']!r} is not base64") from None
