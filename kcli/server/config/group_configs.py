"""The settings of one group: those of the group, else those of the broker (Kafka: GroupConfig, GroupConfigManager).

The key of a group is that of the broker without `group.`: consumer.session.timeout.ms, group.consumer.session.timeout.ms.
"""

from __future__ import annotations

from kcli.server.config.definitions import GROUP_KEYS
from kcli.server.config.server_config import ConfigReader
from kcli.server.config.values import ConfigValue, as_int, as_list, default_value, parse_value
from kcli.server.metadata_cache import MetadataCache
from kcli.state.metadata_values import ConfigResource

_BROKER_PREFIX = "group."


class GroupConfigs:
    """The present settings of groups by the id of the group."""

    def __init__(self, config: ConfigReader, metadata: MetadataCache) -> None:
        self._config = config
        self._metadata = metadata

    def _value(self, group_id: str, name: str) -> ConfigValue | None:
        """Return the value that the group has set, None if it has not."""
        configs = self._metadata.image.configs.get(ConfigResource("GROUP", group_id))
        text = None if configs is None else configs.get(name)
        return None if text is None else parse_value(GROUP_KEYS[name], text)

    def get_int(self, group_id: str, broker_key: str) -> int:
        """Return a setting of the group, or the broker's, whose key begins with `group.`."""
        value = self._value(group_id, broker_key.removeprefix(_BROKER_PREFIX))
        return self._config.get_int(broker_key) if value is None else as_int(value)

    def get_list(self, group_id: str, broker_key: str) -> list[str]:
        """Return a setting of the group that is a list, or the broker's."""
        value = self._value(group_id, broker_key.removeprefix(_BROKER_PREFIX))
        return self._config.get_list(broker_key) if value is None else as_list(value)

    def own(self, group_id: str, name: str) -> ConfigValue:
        """Return a setting that only groups have, or its default."""
        value = self._value(group_id, name)
        return default_value(GROUP_KEYS[name]) if value is None else value
