"""The configuration of a running node: what was stated at its start, and above it what the metadata log says.

    layer, nearest first               ConfigRecords of
    ---------------------------------  ---------------------------------------------
    this broker's                      BROKER, its id
    the cluster's, for every broker    BROKER, ""
    static                             none: overrides and server.properties
    defaults                           none

`current` is a ServerConfig of all layers together, made anew when a layer changes: whoever holds an old one sees no change.
A key that is set dynamically takes the place of those that stand in for it (SYNONYMS), as in Kafka: log.retention.ms set for
the cluster stands over log.retention.hours of a file. Values in the log that are not valid here (they may come from another
version) are left out and told of; so are keys that cannot change while a node runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kcli.server.config.definitions import BROKER_DYNAMIC_KEYS, BROKER_KEYS, ConfigKey, UpdateMode
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.server_config import ConfigReader, ConfigSource, ServerConfig, StatedValue
from kcli.server.config.values import ConfigError, parse_value
from kcli.server.log_lines import WarningLine
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ConfigResource

CLUSTER = ConfigResource("BROKER", "")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
# The keys that stand in for one, nearest first, the key itself among them.
SYNONYMS = {
    **dict.fromkeys(_RETENTION, _RETENTION),
    **dict.fromkeys(_ROLL, _ROLL),
    **dict.fromkeys(_JITTER, _JITTER),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
Watcher = Callable[[ServerConfig], None]


def base_key(name: str) -> ConfigKey | None:
    """The key that a name of brokers' dynamic configuration sets, whatever listener it is for; None: a name of a plugin's."""
    found = BROKER_KEYS.get(name) or BROKER_DYNAMIC_KEYS.get(name)
    if found is not None or not name.startswith(LISTENER_PREFIX):
        return found
    rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    if rest in BROKER_KEYS:
        return BROKER_KEYS[rest]
    behind_mechanism = rest.partition(".")[2]
    return BROKER_KEYS[behind_mechanism] if behind_mechanism.startswith("sasl.") and behind_mechanism in BROKER_KEYS else None


def is_dynamic(name: str) -> bool:
    """Whether a name of a broker's configuration may change while it runs."""
    key = BROKER_KEYS.get(name)
    return key is None or key.update_mode != UpdateMode.READ_ONLY


def layered(static: ServerConfig, layers: Iterable[Mapping[str, str]]) -> ServerConfig:
    """The configuration with layers above it, the lowest first."""
    stated = dict(static.stated)
    for layer in layers:
        for name, text in layer.items():
            for synonym in SYNONYMS.get(name, ()):
                stated.pop(synonym, None)
            stated[name] = StatedValue(text, ConfigSource.DYNAMIC, "dynamic configuration")
    return ServerConfig(stated, static.file_name)


class DynamicConfig(ConfigReader):
    """A node's configuration as it is now. `tell` writes a line of the node's log."""

    def __init__(self, static: ServerConfig, tell: Callable[[str], None] = lambda line: None) -> None:
        self.static = static
        self.node_id = static.node_id
        self.own: dict[str, str] = {}
        self.cluster: dict[str, str] = {}
        self._current = static
        self._tell = tell
        self._watchers: list[tuple[tuple[str, ...], Watcher]] = []

    def __getitem__(self, key: str) -> Any:
        """The value of a key now. Raises KeyError where Kafka has no such key."""
        return self._current[key]

    @property
    def current(self) -> ServerConfig:
        """All layers as they are now; a later change makes a new one."""
        return self._current

    def watch(self, keys: Iterable[str], watcher: Watcher) -> None:
        """Have `watcher(current)` called whenever the value of one of the keys has changed."""
        self._watchers.append((tuple(keys), watcher))

    def follow(self, image: MetadataImage) -> list[str]:
        """Take the layers of the image -> the keys whose values have changed; watchers have been called."""
        return self.update(
            image.configs.get(CLUSTER, {}),
            image.configs.get(ConfigResource("BROKER", str(self.node_id)), {}),
        )

    def update(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
        """Take new layers -> the keys whose values have changed; watchers have been called."""
        if cluster == self.cluster and own == self.own:
            return []
        before, touched = self._current, {*self.cluster, *self.own, *cluster, *own}
        self.cluster, self.own = dict(cluster), dict(own)
        layers = [self._usable(self.cluster, is_cluster=True), self._usable(self.own, is_cluster=False)]
        after = self._current = layered(self.static, layers)
        touched.update(synonym for name in tuple(touched) for synonym in SYNONYMS.get(name, ()))
        changed = sorted(name for name in touched if self._differs(name, before, after))
        for keys, watcher in self._watchers:
            if not set(keys).isdisjoint(changed):
                watcher(after)
        return changed

    @staticmethod
    def _differs(name: str, before: ServerConfig, after: ServerConfig) -> bool:
        return before[name] != after[name] if name in BROKER_KEYS else before.text(name) != after.text(name)

    def _usable(self, layer: Mapping[str, str], *, is_cluster: bool) -> dict[str, str]:
        """The part of a layer that can be applied."""
        usable = {}
        whose = "of the cluster" if is_cluster else f"of broker {self.node_id}"
        for name, text in layer.items():
            key = base_key(name)
            if not is_dynamic(name):
                what = f"{name} cannot change while a broker runs"
                self._tell(WarningLine(f"dynamic configuration {whose}: {what}; it is left out", key=name, error=what))
                continue
            try:
                if key is not None:
                    parse_value(key, text)
            except ConfigError as error:
                self._tell(WarningLine(f"dynamic configuration {whose}: {error}; it is left out", key=name, error=error))
                continue
            usable[name] = text
        return usable
