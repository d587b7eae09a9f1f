"""The generated tables of docs/configuration.md: every key, and what kcli does with it."""

from __future__ import annotations

from collections.abc import Iterable

from kcli.server.config.definitions import (
    BROKER_DYNAMIC_KEYS,
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    REQUIRED,
    TOPIC_KEYS,
    ConfigKey,
    Serving,
    UpdateMode,
)
from kcli.server.config.server_config import BUILT_IN
from kcli.server.config.values import valid_values

_SECTIONS = (
    ("Broker keys that are served", Serving.SERVED),
    ("Broker keys for security: not served yet, so the start is refused", Serving.GUARD),
    ("Broker keys that are accepted, for features that are not served yet", Serving.LATER),
    ("Broker keys that are accepted, without meaning in kcli", Serving.NO_MEANING),
)
_MODES = {
    UpdateMode.READ_ONLY: "start only",
    UpdateMode.PER_BROKER: "per broker",
    UpdateMode.CLUSTER_WIDE: "per broker or cluster",
}
_WORDS = {
    Serving.SERVED: "served",
    Serving.LATER: "not yet",
    Serving.NO_MEANING: "no meaning",
    Serving.GUARD: "not yet, refused",
}


def configuration_page() -> str:
    """Return the generated part of docs/configuration.md."""
    parts = []
    for title, serving in _SECTIONS:
        keys = [key for key in BROKER_KEYS.definitions() if key.serving == serving]
        parts.append(f"## {title}\n\n{_broker_table(keys)}")
    parts.append(f"## Keys of brokers' dynamic configuration only\n\n{_broker_table(BROKER_DYNAMIC_KEYS.definitions())}")
    for title, table in (("Topics", TOPIC_KEYS), ("Groups", GROUP_KEYS), ("Client metrics", CLIENT_METRICS_KEYS)):
        parts.append(f"## {title}\n\n{_table(table.definitions())}")
    return "\n" + "\n".join(parts)


def _default(key: ConfigKey) -> str:
    if key.is_required:
        return REQUIRED.lower()
    if key.default is None:
        return "none"
    return f"`{key.default}`" if key.default else "empty"


def _broker_table(keys: Iterable[ConfigKey]) -> str:
    lines = ["| key | default | valid | changes |", "|---|---|---|---|"]
    for key in keys:
        built_in = BUILT_IN.get(key.name)
        plain = f"; without a file `{built_in}`" if built_in is not None else ""
        lines.append(f"| `{key.name}` | {_default(key)}{plain} | {valid_values(key)} | {_MODES[key.update_mode]} |")
    return "\n".join(lines) + "\n"


def _table(keys: Iterable[ConfigKey]) -> str:
    lines = ["| key | default | valid | taken from | is |", "|---|---|---|---|---|"]
    for key in keys:
        behind = ", ".join(f"`{name}`" for name in key.broker_keys) or "-"
        lines.append(f"| `{key.name}` | {_default(key)} | {valid_values(key)} | {behind} | {_WORDS[key.serving]} |")
    return "\n".join(lines) + "\n"
