"""The configuration of a running node: its static configuration, and above it the ConfigRecords of the metadata log.

    layer, nearest first               ConfigRecords of
    ---------------------------------  ---------------------------------------------
    this broker's                      BROKER, its id
    the cluster's, for every broker    BROKER, ""
    static                             none: overrides and server.properties
    defaults                           none

`current` is a ServerConfig of all layers together, which is replaced when a layer changes.
A dynamic key overrides its synonyms (SYNONYMS), as in Kafka: log.retention.ms of the cluster overrides log.retention.hours of
a file. Invalid values in the log (they may come from another version) are ignored and logged, as are keys that cannot change
while a node runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcli.server.config.definitions import BROKER_DYNAMIC_KEYS, BROKER_KEYS, ConfigKey, UpdateMode
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.server_config import ConfigReader, ConfigSource, ServerConfig, StatedValue
from kcli.server.config.values import ConfigError, ConfigValue, parse_value
from kcli.server.log_lines import WarningLine
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ConfigResource

CLUSTER = ConfigResource("BROKER", "")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
# The synonymous keys of a key, nearest first, the key itself included.
SYNONYMS = {
    **dict.fromkeys(_RETENTION, _RETENTION),
    **dict.fromkeys(_ROLL, _ROLL),
    **dict.fromkeys(_JITTER, _JITTER),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
Watcher = Callable[[ServerConfig], None]


def base_key(name: str) -> ConfigKey | None:
    """Return the key that a name of a broker's dynamic configuration sets, for any listener; None for a plugin's name."""
    found = BROKER_KEYS.get(name) or BROKER_DYNAMIC_KEYS.get(name)
    if found is not None or not name.startswith(LISTENER_PREFIX):
        return found
    rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    if rest in BROKER_KEYS:
        return BROKER_KEYS[rest]
    behind_mechanism = rest.partition(".")[2]
    return BROKER_KEYS[behind_mechanism] if behind_mechanism.startswith("sasl.") and behind_mechanism in BROKER_KEYS else None


def is_dynamic(name: str) -> bool:
    """Return whether a name of a broker's configuration may change while it runs."""
    key = BROKER_KEYS.get(name)
    return key is None or key.update_mode != UpdateMode.READ_ONLY


def layered(static: ServerConfig, layers: Iterable[Mapping[str, str]]) -> ServerConfig:
    """Return the configuration with layers above it, the lowest first."""
    stated = dict(static.stated)
    for layer in layers:
        for name, text in layer.items():
            for synonym in SYNONYMS.get(name, ()):
                stated.pop(synonym, None)
            stated[name] = StatedValue(text, ConfigSource.DYNAMIC, "dynamic configuration")
    return ServerConfig(stated, static.file_name)


class DynamicConfig(ConfigReader):
    """A node's present configuration. `report` writes a line of the node's log."""

    def __init__(self, static: ServerConfig, report: Callable[[str], None] = lambda line: None) -> None:
        self.static = static
        self.node_id = static.node_id
        self.own: dict[str, str] = {}
        self.cluster: dict[str, str] = {}
        self._current = static
        self._report = report
        self._watchers: list[tuple[tuple[str, ...], Watcher]] = []

    def __getitem__(self, key: str) -> ConfigValue:
        """Return the present value of a key. Raises KeyError for an unknown key."""
        return self._current[key]

    @property
    def current(self) -> ServerConfig:
        """The present configuration of all layers; it is replaced by a change."""
        return self._current

    def watch(self, keys: Iterable[str], watcher: Watcher) -> None:
        """Have `watcher(current)` called after a change of the value of one of the keys."""
        self._watchers.append((tuple(keys), watcher))

    def follow(self, image: MetadataImage) -> list[str]:
        """Apply the layers of the image, call the watchers, and return the keys whose values have changed."""
        return self.update(
            image.configs.get(CLUSTER, {}),
            image.configs.get(ConfigResource("BROKER", str(self.node_id)), {}),
        )

    def update(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
        """Apply new layers, call the watchers, and return the keys whose values have changed."""
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
        """Return the part of a layer that can be applied; the rest is logged."""
        usable = {}
        whose = "of the cluster" if is_cluster else f"of broker {self.node_id}"
        for name, text in layer.items():
            key = base_key(name)
            if not is_dynamic(name):
                what = f"{name} cannot be changed while a broker runs"
                self._report(WarningLine(f"dynamic configuration {whose}: {what}; it is ignored", key=name, error=what))
                continue
            try:
                if key is not None:
                    parse_value(key, text)
            except ConfigError as error:
                self._report(WarningLine(f"dynamic configuration {whose}: {error}; it is ignored", key=name, error=error))
                continue
            usable[name] = text
        return usable
