"""sasl.jaas.config: one entry of Java's login configuration, with the login modules of Kafka.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";

A value may be in double or single quotes, with backslashes before quotes in it. An error does not show the text, which has
a password.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kcli.client.errors import ConfigError

_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([=;])|([^\s=;"']+))""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_EXAMPLE = (
    "sasl.jaas.config is not one entry such as: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="USER" password="PASSWORD";'
)


class JaasEntry(NamedTuple):
    """A login module, by the last part of its name, and its options."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"<JaasEntry {self.module}>"


def parse_jaas(text: str) -> JaasEntry:
    """Return the entry of a text. Raises ConfigError."""
    tokens: list[tuple[str, bool]] = []  # with whether it is a sign
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ConfigError(_EXAMPLE)
        double, single, sign, word = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            tokens.append((re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted, flags=re.DOTALL), False))
        else:
            tokens.append((sign or word, sign is not None))
        position = found.end()
    if not tokens or tokens[-1] != (";", True):
        raise ConfigError(f"{_EXAMPLE} (it must end with a semicolon)")
    del tokens[-1]
    if (";", True) in tokens:
        raise ConfigError("sasl.jaas.config has several login modules: leave one of them")
    if len(tokens) < 2 or len(tokens) % 3 != 2 or tokens[1][0].lower() not in _FLAGS:
        raise ConfigError(_EXAMPLE)
    options = {}
    for start in range(2, len(tokens), 3):
        (name, name_is_sign), equals, (value, value_is_sign) = tokens[start : start + 3]
        if name_is_sign or equals != ("=", True) or value_is_sign:
            raise ConfigError(_EXAMPLE)
        options[name] = value
    return JaasEntry(tokens[0][0].rpartition(".")[2], options)
