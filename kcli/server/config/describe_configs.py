"""DescribeConfigs and ListConfigResources as functions: the configurations of a resource, and their sources.

    resource                 shown                                                          sources
    -----------------------  -------------------------------------------------------------  --------------------------
    TOPIC                    every key but internal ones; those that are set                1, 2, 3, 4, 5
    BROKER, this one's id    every key but internal ones; everything stated, plugins' too   2, 3, 4, 5
    BROKER, ""               the values set for the cluster                                 3
    GROUP                    every key but internal ones; those that are set                8, 2, 3, 4, 5
    CLIENT_METRICS           every key                                                      7, 5
    BROKER_LOGGER, this id   the level of every logger (kcli.server.log_lines)              6

    source  5 Kafka's default, 4 overrides and server.properties (or BUILT_IN without a file), 3 dynamic, of the cluster,
            2 dynamic, of this broker, 1 the topic's own, 6 the logger's, 7 the subscription's own, 8 the group's own

Synonyms are all values of a key and of its synonymous keys, nearest source first. The values before the first one of the key
itself are omitted: a topic's retention.ms that comes from log.retention.hours has no synonyms and source 5, as in Kafka. The
value of an unknown name, which may be a plugin's secret, is null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kcli.protocol.error_codes import INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION
from kcli.server.config.definitions import BROKER_KEYS, CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, ConfigKey, UpdateMode
from kcli.server.config.dynamic_config import SYNONYMS, DynamicConfig, base_key
from kcli.server.config.group_config import group_defaults
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.request_errors import ConfigRequestError, invalid_request
from kcli.server.config.topic_config import topic_defaults
from kcli.server.config.values import default_value, format_value, parse_value
from kcli.server.log_lines import Loggers
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource
from kcli.state.topic_names import topic_name_fault

TOPIC_SOURCE = 1
BROKER_SOURCE = 2
CLUSTER_SOURCE = 3
STATIC_SOURCE = 4
DEFAULT_SOURCE = 5
LOGGER_SOURCE = 6
CLIENT_METRICS_SOURCE = 7
GROUP_SOURCE = 8
UNKNOWN_TYPE = 0
TYPE_NUMBERS = {
    "BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "CLASS": 8, "PASSWORD": 9,
}  # fmt: skip


class ConfigSynonym(NamedTuple):
    """One of the values of a configuration; the first one is in effect."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One configuration. A secret's value is None, in the synonyms too."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    type: int
    synonyms: list[ConfigSynonym]


def describe(
    resource: ConfigResource,
    names: Collection[str] | None,
    image: MetadataImage,
    dynamic: DynamicConfig,
    loggers: Loggers,
) -> Iterator[ConfigEntry]:
    """Yield the configurations of a resource, all or those named, in alphabetical order. Raises ConfigRequestError.

    A broker has hundreds: each is made when it is requested.
    """
    entries: Iterable[ConfigEntry] = ()
    if resource.type == "TOPIC":
        entries = _describe_topic(resource, image, dynamic)
    elif resource.type == "BROKER":
        return _describe_broker(resource, names, dynamic)
    elif resource.type == "GROUP":
        _need_name(resource)
        entries = _describe_group(image.configs.get(resource, {}), dynamic)
    elif resource.type == "CLIENT_METRICS":
        _need_name(resource)
        own = image.configs.get(resource, {})
        keys = CLIENT_METRICS_KEYS.definitions()
        entries = [_entry(key, own, CLIENT_METRICS_SOURCE, format_value(default_value(key)), []) for key in keys]
    elif resource.type == "BROKER_LOGGER":
        _need_own(resource, dynamic)
        levels = loggers.levels()
        entries = [ConfigEntry(name, levels[name], LOGGER_SOURCE, False, False, UNKNOWN_TYPE, []) for name in levels]
    else:
        raise invalid_request(f"resources of type {resource.type} have no configurations")
    shown = [entry for entry in entries if names is None or entry.name in names]
    return iter(sorted(shown, key=lambda entry: entry.name))


def list_config_resources(types: Iterable[int], image: MetadataImage) -> list[ConfigResource]:
    """Return the resources of those types (none: all types) that have configurations. Raises ConfigRequestError."""
    wanted = set(types) or set(CONFIG_RESOURCE_TYPES)
    if not wanted <= CONFIG_RESOURCE_TYPES.keys():
        raise ConfigRequestError(UNSUPPORTED_VERSION, f"resource type {min(wanted - CONFIG_RESOURCE_TYPES.keys())} is unknown")
    type_names = {CONFIG_RESOURCE_TYPES[number] for number in wanted}
    found = [ConfigResource("TOPIC", name) for name in image.topic_ids]
    found += [ConfigResource(kind, str(broker_id)) for kind in ("BROKER", "BROKER_LOGGER") for broker_id in image.brokers]
    found += [resource for resource in image.configs if resource.type in ("CLIENT_METRICS", "GROUP")]
    return [resource for resource in found if resource.type in type_names]


def _need_name(resource: ConfigResource) -> None:
    if not resource.name:
        raise invalid_request(f"a resource {resource.type} needs a name")


def _need_own(resource: ConfigResource, dynamic: DynamicConfig) -> None:
    if resource.name != str(dynamic.node_id):
        raise invalid_request(f"this is broker {dynamic.node_id}: send the request to broker {resource.name}")


# ------------------------------------------------------------------------------------------------------------------ brokers


def _describe_broker(resource: ConfigResource, wanted: Collection[str] | None, dynamic: DynamicConfig) -> Iterator[ConfigEntry]:
    cluster = dict(dynamic.cluster)
    if resource.name:
        _need_own(resource, dynamic)
        names = {key.name for key in BROKER_KEYS.definitions() if not key.is_internal}
        names.update(_static_texts(dynamic), cluster, dynamic.own)
    else:
        names = set(cluster)
    shown = sorted(names if wanted is None else names.intersection(wanted))
    return (_broker_entry(name, dynamic, None if resource.name else cluster[name]) for name in shown)


def _broker_entry(name: str, dynamic: DynamicConfig, cluster_text: str | None = None) -> ConfigEntry:
    """Make an entry of this broker, or of the cluster with the value `cluster_text`."""
    key, own_key = base_key(name), BROKER_KEYS.get(name)
    is_sensitive = key is None or key.is_sensitive
    names = (name,) if key is None or not name.startswith(LISTENER_PREFIX) else (name, key.name)
    synonyms = _synonyms(name, SYNONYMS.get(name, names), dynamic, is_sensitive)
    if cluster_text is not None:
        value: str | None = cluster_text
        synonyms = [synonym for synonym in synonyms if synonym.source == CLUSTER_SOURCE]
    elif own_key is not None:
        value = format_value(dynamic.node_id if name == "broker.id" else dynamic.current.stated_value(name))
    else:
        value = dynamic.current.text(name)
    is_read_only = own_key.update_mode == UpdateMode.READ_ONLY if own_key is not None else key is None or key.name != name
    return ConfigEntry(
        name,
        None if is_sensitive else value,
        synonyms[0].source if synonyms else DEFAULT_SOURCE,
        is_read_only,
        is_sensitive,
        UNKNOWN_TYPE if key is None else TYPE_NUMBERS[key.type],
        synonyms,
    )


def _static_texts(dynamic: DynamicConfig) -> dict[str, str]:
    """Return the static texts; node.id and broker.id are both included, as in Kafka."""
    texts = {name: stated.text for name, stated in dynamic.static.stated.items()}
    return {**texts, "node.id": str(dynamic.node_id), "broker.id": str(dynamic.node_id)}


def _synonyms(name: str, names: Iterable[str], dynamic: DynamicConfig, is_sensitive: bool) -> list[ConfigSynonym]:
    """Return all values of the names, nearest source first, from the first one of `name` itself."""
    names = tuple(names)
    found = []
    for texts, source in (
        (dynamic.own, BROKER_SOURCE),
        (dynamic.cluster, CLUSTER_SOURCE),
        (_static_texts(dynamic), STATIC_SOURCE),
    ):
        found += [ConfigSynonym(one, texts[one], source) for one in names if one in texts]
    for one in names:
        key = BROKER_KEYS.get(one)
        if key is not None and key.default is not None:
            found.append(ConfigSynonym(one, key.default, DEFAULT_SOURCE))
    first = next((index for index, synonym in enumerate(found) if synonym.name == name), len(found))
    return [synonym._replace(value=None) if is_sensitive else synonym for synonym in found[first:]]


# ------------------------------------------------------------------------------------------------------------------- topics


def _describe_topic(resource: ConfigResource, image: MetadataImage, dynamic: DynamicConfig) -> list[ConfigEntry]:
    fault = topic_name_fault(resource.name)
    if fault:
        raise ConfigRequestError(INVALID_TOPIC_EXCEPTION, fault)
    if resource.name not in image.topic_ids:
        raise ConfigRequestError(UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.name} does not exist")
    own, defaults = image.configs.get(resource, {}), topic_defaults(dynamic.current)
    return [
        _topic_entry(key, own, defaults.get(key.name), dynamic)
        for key in TOPIC_KEYS.definitions()
        if key.name in own or not key.is_internal
    ]


def _topic_entry(key: ConfigKey, own: Mapping[str, str], default: str | None, dynamic: DynamicConfig) -> ConfigEntry:
    synonyms = []
    if key.broker_keys:
        broker_key = key.broker_keys[0]
        synonyms = _synonyms(broker_key, SYNONYMS.get(broker_key, (broker_key,)), dynamic, is_sensitive=False)
    return _entry(key, own, TOPIC_SOURCE, default, synonyms)


def _entry(
    key: ConfigKey, own: Mapping[str, str], own_source: int, default: str | None, synonyms: list[ConfigSynonym]
) -> ConfigEntry:
    """Make the entry of a key that is not a broker's: the resource's own value, else the default with its synonyms."""
    value = default
    if key.name in own:
        value = format_value(parse_value(key, own[key.name]))
        synonyms = [ConfigSynonym(key.name, value, own_source), *synonyms]
    source = synonyms[0].source if synonyms else DEFAULT_SOURCE
    return ConfigEntry(key.name, value, source, False, False, TYPE_NUMBERS[key.type], synonyms)


def describe_created_topic(own: Mapping[str, str], dynamic: DynamicConfig) -> list[ConfigEntry]:
    """Return the entries of a CreateTopics response: the same values, with the source of their key; no synonyms."""
    defaults = topic_defaults(dynamic.current)
    layers = ((dynamic.own, BROKER_SOURCE), (dynamic.cluster, CLUSTER_SOURCE), (_static_texts(dynamic), STATIC_SOURCE))
    entries = []
    for key in TOPIC_KEYS.definitions():
        if key.is_internal:
            continue
        value, source = defaults.get(key.name), DEFAULT_SOURCE
        if key.name in own:
            value, source = own[key.name], TOPIC_SOURCE
        else:
            source = next((number for texts, number in layers if any(one in texts for one in key.broker_keys)), source)
        entries.append(ConfigEntry(key.name, value, source, False, False, TYPE_NUMBERS[key.type], []))
    return entries


# ------------------------------------------------------------------------------------------------ groups


def _describe_group(own: Mapping[str, str], dynamic: DynamicConfig) -> list[ConfigEntry]:
    entries = []
    for name, value in group_defaults(dynamic.current).items():
        key = GROUP_KEYS[name]
        if key.is_internal and name not in own:
            continue
        if key.broker_keys:
            synonyms = _synonyms(key.broker_keys[0], key.broker_keys, dynamic, is_sensitive=False)
        else:
            synonyms = [ConfigSynonym(name, key.default, DEFAULT_SOURCE)]
        entries.append(_entry(key, own, GROUP_SOURCE, format_value(value), synonyms))
    return entries
