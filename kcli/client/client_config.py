"""Settings of clients by Kafka's names (CommonClientConfigs), with the defaults of Apache Kafka 4.3.1.

A setting `retry.backoff.ms` is the field `retry_backoff_ms`. Each client has a NamedTuple of its own settings next to
`ClientConfig`, and `read_config` makes both from the same properties:

    common, own = read_config(ClientConfig, properties), read_config(ConsumerConfig, properties)
    refuse_unknown(properties, ClientConfig, ConsumerConfig)

The settings of TLS and SASL are those of kcli.client.security_config.

    type of the field  text                                       type of the field   text
    -----------------  -----------------------------------------  ------------------  ----------------------------------
    int                decimal digits, with a sign                str                 as it is
    float              a decimal number                           tuple[str, ...]     parts separated by commas, stripped
    bool               true, false in any case                    str | None          as it is; None if it is not given

A number whose field is `Annotated[int, Range(...)]` must be in the range.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from kcli.client.errors import ConfigError
from kcli.network.events import PeerAddress
from kcli.network.exponential_backoff import ExponentialBackoff

# Of a cluster that is named where a path may be: kafka://HOST:PORT,HOST:PORT
SCHEME = "kafka://"
MAX_PORT = 65535
PROTOCOL = "security.protocol"
# Of the names of settings of TLS and SASL.
SECURITY_PREFIXES = ("security.", "ssl.", "sasl.")
# How long a cluster may take to answer the first request of a command.
FIRST_CONTACT_MS = 10_000
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_Config = TypeVar("_Config")


class Range(NamedTuple):
    """The values that a whole number can have: `low` to `high`, and `others`."""

    low: int
    high: int = INT32_MAX
    others: tuple[int, ...] = ()

    def check(self, name: str, value: int) -> None:
        """Raise ConfigError for a value that the setting `name` cannot have."""
        if not self.low <= value <= self.high and value not in self.others:
            others = "".join(f"{other} or " for other in self.others)
            what = f"at least {self.low}" if self.high >= INT32_MAX >= value else f"from {self.low} to {self.high}"
            raise ConfigError(f"{name} must be {others}{what}, not {value}")


# The ranges of Kafka's types int and long.
Count = Annotated[int, Range(0)]
LongCount = Annotated[int, Range(0, INT64_MAX)]


class ClientConfig(NamedTuple):
    """The settings that all clients have; times are in ms."""

    bootstrap_servers: tuple[str, ...] = ()
    client_id: str = "kcli"
    client_rack: str = ""
    request_timeout_ms: Count = 30_000
    default_api_timeout_ms: Count = 60_000
    retry_backoff_ms: LongCount = 100
    retry_backoff_max_ms: LongCount = 1_000
    reconnect_backoff_ms: LongCount = 50
    reconnect_backoff_max_ms: LongCount = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: LongCount = 300_000
    metadata_recovery_strategy: str = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    allow_auto_create_topics: bool = True

    def retry_backoff(self) -> ExponentialBackoff:
        """Return the delays between the attempts of a request."""
        return ExponentialBackoff(self.retry_backoff_ms, self.retry_backoff_max_ms)


class AdminConfig(NamedTuple):
    """The settings that only administrators have: controllers to connect to, instead of brokers (KIP-919)."""

    bootstrap_controllers: tuple[str, ...] = ()


def property_name(field: str) -> str:
    """Return Kafka's name of a field."""
    return field.replace("_", ".")


def read_config(kind: type[_Config], properties: Mapping[str, str]) -> _Config:
    """Make a NamedTuple of settings from properties; those of other kinds are ignored. Raises ConfigError."""
    values = {}
    for field, annotation in get_type_hints(kind, include_extras=True).items():
        text = properties.get(property_name(field))
        if text is None:
            continue
        hint, *ranges = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        values[field] = value = _value(property_name(field), text, hint)
        for valid in ranges:
            assert isinstance(value, int)
            valid.check(property_name(field), value)
    return kind(**values)


def _value(name: str, text: str, hint: Any) -> object:
    text = text.strip()
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"
    if hint is int or hint is float:
        try:
            return int(text) if hint is int else float(text)
        except ValueError:
            kind = "a whole number" if hint is int else "a number"
            raise ConfigError(f"{name} must be {kind}, not {text!r}") from None
    if hint == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def refuse_unknown(properties: Mapping[str, str], *kinds: type[Any]) -> None:
    """Raise ConfigError for the first property that none of the kinds has; a name that is close to it is suggested.

    Settings of TLS and SASL are checked when they are read.
    """
    known = [property_name(field) for kind in kinds for field in get_type_hints(kind)]
    for name in properties:
        if name not in known and not name.startswith(SECURITY_PREFIXES):
            close = difflib.get_close_matches(name, known, 1)
            raise ConfigError(f"there is no setting {name}" + (f"; did you mean {close[0]}?" if close else ""))


def is_like_protocol(name: str) -> bool:
    """Return whether a name may be a misspelt security.protocol; no other setting of Kafka is so close to it."""
    return bool(difflib.get_close_matches(name.lower(), [PROTOCOL], 1, 0.85))


def parse_address(text: str) -> PeerAddress:
    """Return the address that `host:port` or `[IPv6]:port` names. Raises ConfigError.

    A listener's name before it is passed by, as by Kafka (PLAINTEXT://host:port): security.protocol decides.
    """
    listener, found, address = text.rpartition("://")
    if not found or not re.fullmatch(r"[0-9A-Za-z%._-]*", listener):
        address = text
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not colon
        or not re.fullmatch(r"[^\s/]+", host)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) <= MAX_PORT
    ):
        raise ConfigError(f"{text!r} is not an address: write HOST:PORT, such as localhost:9092")
    return PeerAddress(host, int(port))
