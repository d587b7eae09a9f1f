"""Configurations of topics, brokers, groups and client metrics (Kafka: ConfigResource, ConfigEntry, AlterConfigOp).

operation                       API                      node
------------------------------  -----------------------  -------------------------------------------------------------
describe_configs                DescribeConfigs          the broker itself for BROKER and BROKER_LOGGER with a name,
incremental_alter_configs       IncrementalAlterConfigs  any broker for all others
list_config_resources           ListConfigResources      any broker
list_client_metrics_resources   ListConfigResources      any broker
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from kcli.client.admin.driver import refused
from kcli.client.admin.error_sentences import kafka_error
from kcli.client.admin.operation import ANY_BROKER, Call, Operation, Outcomes, RequestContext, Route, run, run_one
from kcli.client.errors import ClientError
from kcli.protocol.apis import API_KEYS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from kcli.protocol.message import Message


class ResourceType(IntEnum):
    """What has configurations."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from; of the sources that a resource has, the first in the order 8, 1, 7, 2, 3, 4, 6, 5 wins."""

    UNKNOWN = -1
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigType(IntEnum):
    """The type of a value."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class AlterOperation(IntEnum):
    """What happens to a value; APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    """Something with configurations; a BROKER with an empty name means the defaults of all brokers."""

    type: ResourceType
    name: str


class ConfigSynonym(NamedTuple):
    """A key that has an effect on a configuration, its value and where that comes from."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A configuration; the value is None if it is sensitive or not set."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_sensitive: bool = False
    is_read_only: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nothing sets it."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterConfigOp(NamedTuple):
    """A change of a configuration; `value` is ignored by DELETE."""

    name: str
    operation: AlterOperation
    value: str | None = None


def source_of(number: int) -> ConfigSource:
    """Return the source for a number, UNKNOWN for one that is newer than this client."""
    return ConfigSource(number) if number in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN


def _type_of(number: int) -> ConfigType:
    return ConfigType(number) if number in ConfigType._value2member_map_ else ConfigType.UNKNOWN


def _broker_of(resource: ConfigResource) -> int:
    """Return the broker that answers for a resource, ANY_BROKER for any."""
    is_of_node = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdigit()
    return int(resource.name) if is_of_node else ANY_BROKER


def _altering_controller_of(resource: ConfigResource) -> int:
    """Return the controller that changes a resource: the active one, but levels of loggers are those of one controller."""
    return _broker_of(resource) if resource.type == ResourceType.BROKER_LOGGER else ANY_BROKER


# ----------------------------------------------------------------------------------------------------------------- describe


def describe_configs(
    resources: Iterable[ConfigResource],
    *,
    names: Sequence[str] | None = None,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> Operation[Outcomes[ConfigResource, dict[str, ConfigEntry]]]:
    """Return the configurations of each resource by name, all or those with these names."""
    wanted = None if names is None else list(names)

    def request(keys: Sequence[ConfigResource], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_CONFIGS].request
        one = kind.classes["DescribeConfigsResource"]
        asked = [one(resource_type=key.type, resource_name=key.name, configuration_keys=wanted) for key in keys]
        return kind.new(resources=asked, include_synonyms=include_synonyms, include_documentation=include_documentation)

    return (yield from run(Call(DESCRIBE_CONFIGS, Route.BROKER, request, _read_configs, _broker_of), resources))


def _read_configs(
    _keys: Sequence[ConfigResource], answer: Message
) -> Iterator[tuple[ConfigResource, dict[str, ConfigEntry] | ClientError]]:
    for one in answer.results:
        key = ConfigResource(one.resource_type, one.resource_name)
        if one.error_code:
            yield key, kafka_error(one.error_code, one.error_message)
        else:
            yield key, {entry.name: _entry(entry) for entry in one.configs}


def _entry(one: Message) -> ConfigEntry:
    synonyms = tuple(ConfigSynonym(each.name, each.value, source_of(each.source)) for each in one.synonyms)
    return ConfigEntry(
        one.name,
        one.value,
        source_of(one.config_source),
        one.is_sensitive,
        one.read_only,
        synonyms,
        _type_of(one.config_type),
        one.documentation,
    )


# -------------------------------------------------------------------------------------------------------------------- alter


def incremental_alter_configs(
    changes: Mapping[ConfigResource, Sequence[AlterConfigOp]], *, validate_only: bool = False
) -> Operation[Outcomes[ConfigResource, None]]:
    """Change configurations; what is not named stays. `validate_only` checks and changes nothing."""

    def request(keys: Sequence[ConfigResource], _context: RequestContext) -> Message:
        kind = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
        resource, config = kind.classes["AlterConfigsResource"], kind.classes["AlterableConfig"]
        asked = [
            resource(
                resource_type=key.type,
                resource_name=key.name,
                configs=[config(name=op.name, config_operation=op.operation, value=op.value) for op in changes[key]],
            )
            for key in keys
        ]
        return kind.new(resources=asked, validate_only=validate_only)

    call = Call(INCREMENTAL_ALTER_CONFIGS, Route.BROKER, request, _read_altered, _broker_of)
    return (yield from run(call._replace(controller_place=_altering_controller_of), changes))


def _read_altered(_keys: Sequence[ConfigResource], answer: Message) -> Iterator[tuple[ConfigResource, ClientError | None]]:
    for one in answer.responses:
        error = kafka_error(one.error_code, one.error_message) if one.error_code else None
        yield ConfigResource(one.resource_type, one.resource_name), error


# --------------------------------------------------------------------------------------------------------------------- list


def list_config_resources(types: Iterable[ResourceType] = ()) -> Operation[list[ConfigResource]]:
    """Return the resources of some types that have configurations, of all types if none is named."""
    wanted = sorted(types)
    # Version 0 knows client metrics only, and has no field for types.
    is_metrics = wanted == [ResourceType.CLIENT_METRICS]

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        asked = [] if is_metrics and context.version == 0 else [int(one) for one in wanted]
        return API_KEYS[LIST_CONFIG_RESOURCES].request.new(resource_types=asked)

    call = Call[str, list[ConfigResource]](LIST_CONFIG_RESOURCES, Route.ANY, request, partial(_read_resources))
    return (yield from run_one(call, "resources"))


def _read_resources(keys: Sequence[str], answer: Message) -> Iterable[tuple[str, list[ConfigResource] | ClientError]]:
    if answer.error_code:
        return refused(keys, answer.error_code)
    known = ResourceType._value2member_map_
    found = [
        ConfigResource(ResourceType(one.resource_type), one.resource_name)
        for one in answer.config_resources
        if one.resource_type in known
    ]
    return [(keys[0], found)]


def list_client_metrics_resources() -> Operation[list[str]]:
    """Return the names of the client metrics subscriptions (KIP-714)."""
    found = yield from list_config_resources([ResourceType.CLIENT_METRICS])
    return [one.name for one in found]
