"""A topic's configuration: its defaults, its effective values, and the checks of new values.

    where a topic key's value is looked up, in order     as
    ---------------------------------------------------  ------------------------------------------------------------
    the topic's own configuration (ConfigRecords)        text, kept as it was sent
    the broker keys of its default (keys.txt)            log.retention.ms|minutes|hours for retention.ms, ...
    keys.txt                                             its default

Rules for new values (Kafka's LogConfig.validate): each name must be known and each value valid, min.compaction.lag.ms must
not be above max.compaction.lag.ms, and remote.storage.enable needs tiered storage. Null values are refused before.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.log.log_config import LogConfig
from kcli.server.config.definitions import TOPIC_KEYS
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.request_errors import invalid_config, requested_value
from kcli.server.config.server_config import ConfigReader, ServerConfig
from kcli.server.config.values import as_int, format_value
from kcli.server.metadata_cache import MetadataCache
from kcli.state.metadata_values import ConfigResource


def topic_defaults(config: ConfigReader) -> dict[str, str]:
    """Return the values of the keys of a topic without a configuration of its own, as text."""
    derived = config.current.derived
    found = derived.get("topic defaults")
    if found is None:
        found = {}
        for key in TOPIC_KEYS.definitions():
            text = format_value(config[key.broker_keys[0]]) if key.broker_keys else key.default
            if text is not None:
                found[key.name] = text
        derived["topic defaults"] = found
    return dict(found)


def effective_topic_config(config: ConfigReader, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the effective values of a topic's keys, as text for LogConfig.of."""
    return {**topic_defaults(config), **overrides}


class TopicConfigs:
    """The settings of the logs of each topic, from the broker's present configuration and the metadata."""

    def __init__(self, config: DynamicConfig, metadata: MetadataCache) -> None:
        self._config = config
        self._metadata = metadata
        self._default: tuple[ServerConfig, LogConfig] | None = None

    def log_config(self, topic: str) -> LogConfig:
        """Return the settings of a topic's logs; topics without a configuration of their own share one object."""
        overrides = self._metadata.image.configs.get(ConfigResource("TOPIC", topic))
        if overrides:
            return LogConfig.of(effective_topic_config(self._config, overrides))
        current = self._config.current
        if self._default is None or self._default[0] is not current:
            self._default = current, LogConfig.of(effective_topic_config(self._config, {}))
        return self._default[1]


def check_topic_config(config: ConfigReader, overrides: Mapping[str, str]) -> None:
    """Check a topic's configuration. Raises ConfigRequestError (INVALID_CONFIG)."""
    effective = effective_topic_config(config, overrides)
    parsed = {name: requested_value(TOPIC_KEYS, "topics", name, text) for name, text in effective.items()}
    lowest, highest = as_int(parsed["min.compaction.lag.ms"]), as_int(parsed["max.compaction.lag.ms"])
    if lowest > highest:
        raise invalid_config(f"min.compaction.lag.ms={lowest} must not be above max.compaction.lag.ms={highest}")
    if parsed["remote.storage.enable"] and not config["remote.log.storage.system.enable"]:
        raise invalid_config("remote.storage.enable=true needs tiered storage, which this cluster does not have")
