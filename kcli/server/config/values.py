"""Values of configuration keys: text to value, value to text, and the valid values in words.

    type            text, spaces around it ignored              value
    --------------  ------------------------------------------  ---------------
    BOOLEAN         true or false, upper or lower case          bool
    SHORT INT LONG  a signed integer of 16, 32, 64 bits         int
    DOUBLE          a number as Java reads it                   float
    STRING CLASS    any                                         str
    PASSWORD        any; it is never shown                      str
    LIST            values between commas; may be empty         list of str, each once

A key's `valid` column restricts its type; see `_is_valid`. Kafka's rules (ConfigDef and its validators in 4.3): ranges include
both ends, the values of a list are not empty, and a repeated value counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from kcli.format.java_text import parse_integer
from kcli.server.config.definitions import ConfigKey

ConfigValue = bool | int | float | str | list[str] | None

_BITS = {"SHORT": 16, "INT": 32, "LONG": 64}
_BLANKS = " \t\n\x0b\f\r"
# Patterns that few starts need are not compiled: compiling one takes longer than reading the whole file.
# Java's Double.parseDouble, with a suffix f or d but without hexadecimal and NaN.
_DOUBLE = r"[+-]?(?:Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)"
_THROTTLED_REPLICA = r"\d+:\d+"
_VOTER = r"(\d+)@(.+):(\d{1,5})"
_SERVER = r".+:(\d{1,5})"
_DURATION = r"P(?=.)(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d{1,9})?S)?)?"
# The characters that Java's String.trim removes.
_TRIMMED = "".join(map(chr, range(33)))


class ConfigError(Exception):
    """An invalid configuration, with one sentence for each fault in `faults`."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def parse_value(key: ConfigKey, text: str) -> ConfigValue:
    """Parse the text of a key. Raises ConfigError, whose sentence names the key, the value and the valid values."""
    text = text.strip(_TRIMMED)
    value = _typed(key.type, text)
    if key.valid.startswith("list") and isinstance(value, list):
        value = list(dict.fromkeys(value))
    if value is None or (key.valid and not _is_valid(key.valid, value)):
        raise ConfigError(f"{key.name}{shown_value(key, text)} is not valid: it must be {valid_values(key)}")
    return value


def shown_value(key: ConfigKey, text: str) -> str:
    """Return `=text` for a sentence, nothing for a secret."""
    return "" if key.is_sensitive else f"={text}"


def default_value(key: ConfigKey) -> ConfigValue:
    """Return the default value of a key; None is Kafka's null."""
    return None if key.default is None else _typed(key.type, key.default)


def format_value(value: ConfigValue) -> str | None:
    """Format a value as Kafka shows it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        from kcli.format.java_text import double_text

        return double_text(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def as_int(value: ConfigValue) -> int:
    """Return the value of a key of type SHORT, INT or LONG, which must not be null."""
    assert isinstance(value, int)
    return value


def as_float(value: ConfigValue) -> float:
    """Return the value of a key of a numeric type, which must not be null."""
    assert isinstance(value, int | float)
    return value


def as_list(value: ConfigValue) -> list[str]:
    """Return a copy of the value of a key of type LIST; the empty list for null."""
    assert isinstance(value, list | None)
    return list(value or ())


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a sentence about an unknown name; nothing if no known name is similar."""
    from difflib import get_close_matches

    similar = get_close_matches(name, list(known), 1, 0.75)
    return f"; did you mean {similar[0]}?" if similar else ""


def split_list(text: str) -> list[str]:
    """Split the text of a list into its values."""
    text = text.strip(_TRIMMED)
    return [part.strip(_BLANKS) for part in text.split(",")] if text else []


def is_repeated(text: str) -> bool:
    """Return whether the text of a list contains a value twice."""
    parts = split_list(text)
    return len(set(parts)) < len(parts)


def _typed(type_name: str, text: str) -> ConfigValue:
    """Return the value, or None if the text is not of the type."""
    if type_name in _BITS:
        return parse_integer(text, _BITS[type_name])
    if type_name == "BOOLEAN":
        return {"true": True, "false": False}.get(text.lower())
    if type_name == "DOUBLE":
        return float(text.rstrip("fFdD")) if re.fullmatch(_DOUBLE, text) else None
    return split_list(text) if type_name == "LIST" else text


def _is_valid(valid: str, value: ConfigValue) -> bool:
    """Return whether a value of the right type satisfies the `valid` column."""
    if valid[0] == "[":
        low, high, or_minus_one = _range(valid)
        number = as_float(value)
        return (low <= number and (high is None or number <= high)) or (or_minus_one and number == -1)
    if valid.startswith("one of"):
        any_case = valid.startswith("one of (any case)")
        words = _words(valid)
        return str(value).lower() in map(str.lower, words) if any_case else value in words
    if valid.startswith("list"):
        words, parts = _words(valid), as_list(value)
        return (
            (bool(parts) or not valid.startswith("list, not empty"))
            and "" not in parts
            and (not words or all(part in words for part in parts))
        )
    return _CHECKS[valid](value)


@lru_cache(maxsize=256)
def _range(valid: str) -> tuple[float, float | None, bool]:
    span, _, or_minus_one = valid[1:].partition("]")
    low, _, high = span.partition(",...")
    return _number(low), _number(high[1:]) if high.startswith(",") else None, bool(or_minus_one)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _words(valid: str) -> list[str]:
    """Return the words that `one of a b` and `list of a b` allow; none means all."""
    return valid.replace("(any case) ", "").partition("of ")[2].split()


def _are_voters(value: list[str]) -> bool:
    matches = [re.fullmatch(_VOTER, text) for text in value]
    ids = [match[1] for match in matches if match is not None]
    return None not in matches and len(set(ids)) == len(ids) and all(int(match[3]) < 65536 for match in matches if match)


def _are_servers(value: list[str]) -> bool:
    return all((match := re.fullmatch(_SERVER, text)) is not None and int(match[1]) < 65536 for text in value)


def _are_throttled_replicas(value: list[str]) -> bool:
    return value == ["*"] or all(re.fullmatch(_THROTTLED_REPLICA, text) for text in value)


def _is_offset_reset(value: str) -> bool:
    name, _, duration = value.partition(":")
    return value in ("latest", "earliest") or (
        name == "by_duration" and re.fullmatch(_DURATION, duration, re.IGNORECASE) is not None
    )


_CHECKS: dict[str, Callable[..., bool]] = {
    "not empty": bool,
    "not null": lambda value: value is not None,
    "voters": _are_voters,
    "servers": _are_servers,
    "throttled replicas": _are_throttled_replicas,
    "offset reset": _is_offset_reset,
}
_CHECKS_IN_WORDS = {
    "not empty": "a text that is not empty",
    "not null": "any text",
    "voters": "a list of id@host:port with different ids",
    "servers": "a list of host:port",
    "throttled replicas": "* or a list of partition:broker",
    "offset reset": "latest, earliest, or by_duration: with an ISO 8601 duration (by_duration:PT1H)",
}
_TYPES_IN_WORDS = {
    "BOOLEAN": "true or false",
    "SHORT": "a 16-bit integer",
    "INT": "a 32-bit integer",
    "LONG": "a 64-bit integer",
    "DOUBLE": "a number",
    "STRING": "any text",
    "CLASS": "the name of a class",
    "PASSWORD": "any text",
    "LIST": "a comma-separated list",
}


def valid_values(key: ConfigKey) -> str:
    """Return the valid values of a key, as part of a sentence."""
    type_words, valid = _TYPES_IN_WORDS[key.type], key.valid
    if not valid:
        return type_words
    if valid[0] == "[":
        low, high, or_minus_one = _range(valid)
        span = f"of at least {low}" if high is None else f"from {low} to {high}"
        return f"{type_words} {span}{', or -1' if or_minus_one else ''}"
    words = ", ".join(_words(valid))
    if valid.startswith("one of"):
        return f"one of {words}{' (upper or lower case)' if '(any case)' in valid else ''}"
    if valid.startswith("list"):
        at_least_one = " with at least one value" if "not empty" in valid else ""
        return f"a list{at_least_one}{f' of {words}' if words else ''}"
    return _CHECKS_IN_WORDS[valid]
