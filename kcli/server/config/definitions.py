"""Every configuration key of Kafka 4.3: its type, default, valid values, importance and how it is served here.

    table                 keys of
    --------------------  ---------------------------------------------------------------------------------------------
    BROKER_KEYS           server.properties, and brokers' dynamic configuration
    BROKER_DYNAMIC_KEYS   brokers' dynamic configuration only (throttles of replication)
    TOPIC_KEYS            a topic's configuration; each with the broker keys of its default
    GROUP_KEYS            a group's configuration; each with the broker key of its default
    CLIENT_METRICS_KEYS   a client metrics subscription

They are declared once, in keys.txt, one line for each key (its head explains the columns). A line is parsed when its key is
first used, so that a start parses only the keys that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

REQUIRED = "REQUIRED"


class Serving:
    """What kcli does with a key; strings, because making an enumeration takes longer than reading the table."""

    SERVED = "served"
    LATER = "later"
    NO_MEANING = "no meaning"
    GUARD = "guard"


class UpdateMode:
    """Whether brokers' dynamic configuration may change a key."""

    READ_ONLY = "fixed"
    PER_BROKER = "broker"
    CLUSTER_WIDE = "cluster"


class ConfigKey(NamedTuple):
    """One key. `default` is text as in a file; None is Kafka's null."""

    name: str
    type: str
    default: str | None
    is_required: bool
    valid: str
    importance: str
    update_mode: str
    broker_keys: tuple[str, ...]
    serving: str
    is_internal: bool

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is a secret, which is never shown."""
        return self.type == "PASSWORD"

    @property
    def is_list(self) -> bool:
        """Whether its value is a list, so that APPEND and SUBTRACT work on it."""
        return self.type == "LIST"


class ConfigTable:
    """The keys of one kind, by name, in alphabetical order."""

    __slots__ = ("_keys", "_names", "_text")

    def __init__(self, block: str) -> None:
        self._text = f"\n{block}\n"
        self._names: dict[str, None] | None = None
        self._keys: dict[str, ConfigKey] = {}

    @property
    def names(self) -> dict[str, None]:
        """The names of all keys."""
        if self._names is None:
            self._names = {line.partition(" | ")[0]: None for line in self._text.strip().splitlines()}
        return self._names

    def __contains__(self, name: str) -> bool:
        return name in self._keys or f"\n{name} | " in self._text

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> ConfigKey:
        key = self._keys.get(name)
        if key is None:
            start = self._text.find(f"\n{name} | ")
            if start < 0:
                raise KeyError(name)
            key = self._keys[name] = _parse_line(self._text[start + 1 : self._text.index("\n", start + 1)])
        return key

    def get(self, name: str) -> ConfigKey | None:
        """Return the key of that name, or None."""
        try:
            return self[name]
        except KeyError:
            return None

    def definitions(self) -> list[ConfigKey]:
        """Return all keys, parsed."""
        return [self[name] for name in self.names]


def _parse_line(line: str) -> ConfigKey:
    name, type_name, default, valid, importance, where, serving, *flags = (cell.strip() for cell in line.split(" | "))
    is_mode = where in ("fixed", "broker", "cluster")
    return ConfigKey(
        name,
        type_name,
        None if default in ("null", REQUIRED) else default,
        default == REQUIRED,
        valid,
        importance,
        where if is_mode else UpdateMode.READ_ONLY,
        () if is_mode or where == "-" else tuple(where.split(" ")),
        serving,
        "internal" in flags,
    )


def _read_tables() -> dict[str, ConfigTable]:
    with open(__file__.removesuffix("definitions.py") + "keys.txt", encoding="utf-8") as file:
        blocks = file.read().split("\n[")[1:]
    return {title: ConfigTable(block) for title, _, block in (block.partition("]\n") for block in blocks)}


_TABLES = _read_tables()
BROKER_KEYS = _TABLES["broker"]
BROKER_DYNAMIC_KEYS = _TABLES["broker-dynamic"]
TOPIC_KEYS = _TABLES["topic"]
GROUP_KEYS = _TABLES["group"]
CLIENT_METRICS_KEYS = _TABLES["client-metrics"]
