"""The results of a DescribeConfigs: the entries of kcli.server.config.describe_configs as messages.

Brokers and controllers give the same answers, as in Kafka. A request with a resource of an unknown type is refused as a whole.
Documentation, if it is requested, is kcli's sentence on a key; null for keys without effect here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_CONFIGS
from kcli.protocol.message import Message
from kcli.server.config.describe_configs import ConfigEntry, describe
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.log_lines import Loggers
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource

# The estimated time for an entry.
ENTRY_US = 25


def describe_results(
    request: Message,
    results: list[Message],
    image: MetadataImage,
    dynamic: DynamicConfig,
    loggers: Loggers,
    check_access: Callable[[ConfigResource], None],
) -> Iterator[None]:
    """Add the results of a request to `results`; a step is an entry. `check_access` raises ConfigRequestError."""
    unknown = [item.resource_type for item in request.resources if item.resource_type not in CONFIG_RESOURCE_TYPES]
    for item in request.resources:
        result = _new(
            "DescribeConfigsResult", error_message="", resource_type=item.resource_type, resource_name=item.resource_name
        )
        results.append(result)
        if unknown:
            result.error_code = error_codes.INVALID_REQUEST
            result.error_message = f"resource type {unknown[0]} has no configurations"
            continue
        resource = ConfigResource(CONFIG_RESOURCE_TYPES[item.resource_type], item.resource_name)
        try:
            check_access(resource)
            # An empty list of names means all, as in Kafka.
            for entry in describe(resource, item.configuration_keys or None, image, dynamic, loggers):
                result.configs.append(_entry(entry, request.include_synonyms))
                yield
        except ConfigRequestError as error:
            result.error_code, result.error_message = error.code, str(error)
            continue
        if request.include_documentation:
            _document(resource.type, result.configs)


def _new(struct: str, /, **fields: object) -> Message:
    return API_KEYS[DESCRIBE_CONFIGS].response.classes[struct](**fields)


def _document(resource_type: str, configs: list[Message]) -> None:
    from kcli.server.config.key_documentation import documentation_of  # texts that are seldom requested

    for config in configs:
        config.documentation = documentation_of(resource_type, config.name)


def _entry(entry: ConfigEntry, include_synonyms: bool) -> Message:
    synonyms = entry.synonyms if include_synonyms else ()
    return _new(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[_new("DescribeConfigsSynonym", **synonym._asdict()) for synonym in synonyms],
        config_type=entry.type,
        documentation=None,
    )
