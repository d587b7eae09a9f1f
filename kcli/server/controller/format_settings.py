"""The plan of `kcli format`: what it reads from a node's configuration, completed by its options.

key                                   states
------------------------------------  --------------------------------------------------------------------------
node.id                               the node that the directories belong to
process.roles                         "controller" among them: the metadata directory may hold voters
log.dirs, log.dir, metadata.log.dir   the directories; the metadata log is in the first unless the last names another
controller.listener.names             the first is the listener of the voters' endpoints
advertised.listeners, listeners       the endpoint of the voter, for --standalone
controller.quorum.voters              a static quorum; no option may name voters

The SCRAM credentials (RFC 5802) of `--add-scram` become records, as with Kafka's ScramParser.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcli.format.java_text import parse_integer
from kcli.format.kafka_uuid import random_uuid
from kcli.protocol.message import Message
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.formatting import FormatPlan, FormattingError
from kcli.server.features import METADATA_VERSION, SCRAM_SINCE, FeatureError, initial_features, metadata_version_name
from kcli.server.raft.metadata_batches import new_record
from kcli.server.raft.voter_set import VoterError, parse_dynamic_voters
from kcli.state.metadata_values import SCRAM_MECHANISMS, Voter


class FormatOptions(NamedTuple):
    """The options of `kcli format`; without `cluster_id`, that of formatted directories or a new one is used."""

    cluster_id: str | None = None
    is_standalone: bool = False
    has_no_initial_controllers: bool = False
    initial_controllers: str | None = None
    features: Sequence[str] = ()
    release: str | None = None
    scram: Sequence[str] = ()
    ignore_formatted: bool = False


def plan_format(config: ServerConfig, options: FormatOptions, random_bytes: Callable[[int], bytes]) -> FormatPlan:
    """Return the plan for a configuration and options. Raises FormattingError if they conflict."""
    is_static = bool(config.quorum_voters)
    try:
        voters = _initial_voters(config, options, random_bytes)
        features = initial_features(_requested_features(options.features), options.release, is_dynamic_quorum=not is_static)
        records = [parse_scram(text, random_bytes) for text in options.scram]
    except (VoterError, FeatureError, ScramError) as error:
        raise FormattingError(str(error)) from None
    if records and features[METADATA_VERSION] < SCRAM_SINCE:
        raise FormattingError(
            f"SCRAM credentials need metadata.version {metadata_version_name(SCRAM_SINCE)} or later; "
            f"it is {metadata_version_name(features[METADATA_VERSION])}"
        )
    return FormatPlan(
        cluster_id=options.cluster_id,
        node_id=config.node_id,
        directories=tuple(dict.fromkeys([*config.log_dirs, config.metadata_log_dir])),
        metadata_directory=config.metadata_log_dir,
        features=features,
        voters=voters,
        more_records=records,
        ignore_formatted=options.ignore_formatted,
        is_controller=config.is_controller,
    )


def _requested_features(texts: Sequence[str]) -> dict[str, int]:
    requested: dict[str, int] = {}
    for text in texts:
        name, _, level_text = text.partition("=")
        level = parse_integer(level_text.strip(), 16)
        if level is None:
            raise FeatureError(f"--feature needs NAME=LEVEL, such as group.version=1, not {text!r}")
        requested[name.strip()] = level
    return requested


def _initial_voters(config: ServerConfig, options: FormatOptions, random_bytes: Callable[[int], bytes]) -> list[Voter] | None:
    """Return the first voters of a dynamic quorum; None if the metadata directory gets none."""
    listener_name = config.controller_listener_names[0].upper()
    if config.quorum_voters and (options.is_standalone or options.initial_controllers is not None):
        raise FormattingError(
            "controller.quorum.voters makes the quorum static: remove either the key, or --standalone and --initial-controllers"
        )
    if options.initial_controllers is not None:
        return parse_dynamic_voters(options.initial_controllers, listener_name)
    if options.is_standalone:
        if not config.is_controller:
            raise FormattingError("--standalone is for a controller, and process.roles does not contain that role")
        if not config.advertised_controller_listeners:
            names = ", ".join(config.controller_listener_names)
            raise FormattingError(
                f"listeners has none of controller.listener.names ({names}), which --standalone needs for the voter's endpoint"
            )
        listener = config.advertised_controller_listeners[0]
        address = (listener.host or "localhost", listener.port)
        return [Voter(config.node_id, random_uuid(random_bytes), {listener_name: address})]
    if config.is_controller and not config.quorum_voters and not options.has_no_initial_controllers:
        raise FormattingError(
            "this controller has no controller.quorum.voters, so the first voters must be given: use --standalone, "
            "--initial-controllers or --no-initial-controllers"
        )
    return None


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
