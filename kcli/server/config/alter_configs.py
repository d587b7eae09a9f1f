"""AlterConfigs and IncrementalAlterConfigs as functions: from a request to the records of the metadata log.

    operation  effect on the key                              a null value is
    ---------  ---------------------------------------------  ---------------------
    SET        sets its value                                 refused
    DELETE     removes its value; the default applies         expected
    APPEND     adds the values that the list does not have    refused
    SUBTRACT   removes the values from the list               refused

    step                               checks
    ---------------------------------  ----------------------------------------------------------------------------------
    preprocess, at the broker          keys named twice, nulls; its own and the cluster's broker configuration, which it
                                       must be able to run with (see below)
    decide, at the active controller   lists, sizes, whether the resource exists, the rules of topics, groups and client
                                       metrics, min.insync.replicas if eligible leader replicas (ELR) depend on it;
                                       cordoned.log.dirs needs metadata.version 4.3-IV0 (KIP-1066)

APPEND and SUBTRACT start from the resource's own value, else from Kafka's default for the key; their operand is split at
commas, and blanks are kept. A change without effect writes no record, except for brokers: Kafka's brokers read their key
stores again after such a record. A change of min.insync.replicas while ELR is on clears the ELR of the topics concerned
(ClearElrRecord).

A change to a broker's dynamic configuration is checked one whole layer at a time (Kafka's DynamicBrokerConfig.validate):

    refused                                                   reason
    --------------------------------------------------------  ----------------------------------------------------------
    a key that is fixed while a broker runs (keys.txt)        it is read at the start
    a keystore's or truststore's key without a listener       each listener has its own: listener.name.<name>.<key>
    a per-broker key, or a listener's, for the whole cluster  it differs between brokers
    a value that is invalid, alone or with the others         as at the start
    threads below half or above twice the present number      Kafka resizes its pools in steps
    listeners and security keys, to another value             not served yet (Kafka accepts it)

Unknown names are accepted there: they may be a plugin's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kcli.protocol.error_codes import INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION
from kcli.protocol.message import Message
from kcli.server.config.checks import cross_faults
from kcli.server.config.client_metrics_config import check_client_metrics_config
from kcli.server.config.definitions import BROKER_KEYS, TOPIC_KEYS, ConfigKey, ConfigTable, Serving, UpdateMode
from kcli.server.config.dynamic_config import DynamicConfig, base_key, is_dynamic, layered
from kcli.server.config.group_config import check_group_config
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.request_errors import ConfigRequestError, invalid_config, invalid_request
from kcli.server.config.server_config import NO_LIMIT, ServerConfig
from kcli.server.config.topic_config import check_topic_config
from kcli.server.config.values import ConfigError, ConfigValue, default_value, parse_value, split_list
from kcli.state.image_records import CORDONED_LOG_DIRS_SINCE, new_record, number_of
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource

SET, DELETE, APPEND, SUBTRACT = range(4)
MAX_VALUE_CHARACTERS = 32767
ELR_FEATURE = "eligible.leader.replicas.version"
_MIN_ISR = "min.insync.replicas"
_CORDONED = "cordoned.log.dirs"
_LISTS: dict[str, ConfigTable] = {"BROKER": BROKER_KEYS, "TOPIC": TOPIC_KEYS}  # the only lists that Kafka accepts here
Changes = dict[str, str | None]
_OF_LISTENERS_ONLY = frozenset(
    (
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    )
)
# The keys of a listener that may be set for the whole cluster.
_CLUSTER_LISTENER_KEYS = frozenset(("max.connections", "max.connection.creation.rate", "num.network.threads"))
_THREADS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
# Kafka opens and closes listeners while it runs.
_FIXED_HERE = frozenset(("listeners", "listener.security.protocol.map"))
_SAME_AS_RETENTION = -2  # the value of log.local.retention.* for "the same as log.retention.*"


def check_broker_change(dynamic: DynamicConfig, layer: Mapping[str, str], *, is_cluster: bool) -> None:
    """Check a layer of this broker or of the cluster. Raises ConfigRequestError (INVALID_REQUEST)."""
    for name, text in layer.items():
        _check_name(name, is_cluster)
        key = base_key(name)
        if key is not None:
            try:
                value = parse_value(key._replace(name=name), text)
            except ConfigError as error:
                raise invalid_request(str(error)) from error
            _check_served(key, name, value, dynamic.static)
    after = layered(dynamic.static, [layer, dynamic.own] if is_cluster else [dynamic.cluster, layer])
    for fault in cross_faults(after):
        raise invalid_request(fault)
    _check_threads(dynamic.current, after)
    _check_local_retention(after)


def _check_name(name: str, is_cluster: bool) -> None:
    if not is_dynamic(name):
        raise invalid_request(f"{name} cannot be changed while a broker runs; set it in server.properties")
    if name in _OF_LISTENERS_ONLY:
        raise invalid_request(f"{name} can only be changed for one listener: {LISTENER_PREFIX}<name>.{name}")
    if not is_cluster:
        return
    of_listener = name.removeprefix(LISTENER_PREFIX).partition(".")[2] if name.startswith(LISTENER_PREFIX) else ""
    key = BROKER_KEYS.get(name)
    if (key is not None and key.update_mode == UpdateMode.PER_BROKER) or (
        name.startswith(LISTENER_PREFIX) and of_listener not in _CLUSTER_LISTENER_KEYS
    ):
        raise invalid_request(f"{name} differs between brokers; set it for a single broker")


def _check_served(key: ConfigKey, name: str, value: ConfigValue, static: ServerConfig) -> None:
    is_guard = key.serving == Serving.GUARD and name == key.name
    if (is_guard or name in _FIXED_HERE) and value not in (static.stated_value(name), default_value(key)):
        raise invalid_request(f"{name} cannot be changed while a broker runs: that is not served yet")


def _check_threads(before: ServerConfig, after: ServerConfig) -> None:
    for key in _THREADS:
        old, new = before.get_int(key), after.get_int(key)
        if new != old and not (new > 0 and old // 2 <= new <= 2 * old):
            raise invalid_request(f"{key}={new} is not valid: it must be between half and twice the present value {old}")


def _check_local_retention(after: ServerConfig) -> None:
    for unit in ("ms", "bytes"):
        local, whole = after.get_int(f"log.local.retention.{unit}"), after.get_int(f"log.retention.{unit}")
        is_above = local == NO_LIMIT or local > whole
        if local != _SAME_AS_RETENTION and whole != NO_LIMIT and is_above:
            raise invalid_request(f"log.local.retention.{unit}={local} must not be above log.retention.{unit}={whole}")


class Operation(NamedTuple):
    """One requested change; `operation` is SET, DELETE, APPEND or SUBTRACT."""

    name: str
    operation: int
    value: str | None


def resource_of(type_number: int, name: str) -> ConfigResource:
    """Return the resource that a request names. Raises ConfigRequestError for a type without configurations."""
    type_name = CONFIG_RESOURCE_TYPES.get(type_number)
    if type_name is None:
        raise invalid_request(f"resource type {type_number} has no configurations")
    return ConfigResource(type_name, name)


# ------------------------------------------------------------------------------------------------- the broker that is asked


def preprocess(resource: ConfigResource, operations: Sequence[Operation], image: MetadataImage, dynamic: DynamicConfig) -> None:
    """Check an IncrementalAlterConfigs of one resource before it is forwarded. Raises ConfigRequestError."""
    check_operations(operations)
    if resource.type == "BROKER":
        _check_broker_name(resource, dynamic.node_id)
        current = image.configs.get(resource, {})
        _check_broker_layer(resource, _apply(current, _changes(resource, operations, current)), dynamic)


def check_operations(operations: Sequence[Operation]) -> None:
    """Check what holds for resources of every type. Raises ConfigRequestError."""
    names = [operation.name for operation in operations]
    if len(set(names)) < len(names):
        raise invalid_request(f"a key is named twice in {', '.join(names)}")
    for name, operation, value in operations:
        if operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise invalid_request(f"operation {operation} for {name} is unknown")
        if value is None and operation != DELETE:
            raise invalid_request(f"the value of {name} is null, which only DELETE allows")


def preprocess_replacement(resource: ConfigResource, configs: Mapping[str, str | None], dynamic: DynamicConfig) -> None:
    """Check an AlterConfigs of one resource before it is forwarded. Raises ConfigRequestError."""
    values = {name: value for name, value in configs.items() if value is not None}
    if len(values) < len(configs):
        raise invalid_request(f"the value of {', '.join(name for name in configs if configs[name] is None)} is null")
    if resource.type == "BROKER":
        _check_broker_name(resource, dynamic.node_id)
        _check_broker_layer(resource, values, dynamic)


def _check_broker_name(resource: ConfigResource, node_id: int) -> None:
    if resource.name not in ("", str(node_id)):
        raise invalid_request(
            f"this is broker {node_id}: send the request to broker {resource.name}, or use an empty name for all brokers"
        )


def _check_broker_layer(resource: ConfigResource, layer: Mapping[str, str], dynamic: DynamicConfig) -> None:
    check_broker_change(dynamic, layer, is_cluster=resource.name == "")


# --------------------------------------------------------------------------------------------------- the active controller


def check_unforwarded(resource: ConfigResource, operations: Iterable[Operation], image: MetadataImage) -> None:
    """Check a change that a controller gets from a client, and no broker has checked. Raises ConfigRequestError."""
    if resource.type != "BROKER":
        return
    current = image.configs.get(resource, {})
    text = _changes(resource, (one for one in operations if one.name == _CORDONED), current).get(_CORDONED)
    if not {*split_list(text or "")} <= {*split_list(current.get(_CORDONED, ""))}:
        what = (
            f"{_CORDONED}={text} has other directories than now; a controller cannot check them: send the request to the broker"
        )
        raise ConfigRequestError(INVALID_CONFIG, what)


def decide(
    resource: ConfigResource, operations: Sequence[Operation], image: MetadataImage, config: ServerConfig
) -> list[Message]:
    """Return the records of an IncrementalAlterConfigs; `config` is the controller's. Raises ConfigRequestError."""
    current = image.configs.get(resource, {})
    return _records(resource, _changes(resource, operations, current), image, config)


def decide_replacement(
    resource: ConfigResource, configs: Mapping[str, str | None], image: MetadataImage, config: ServerConfig
) -> list[Message]:
    """Return the records of an AlterConfigs, which removes the keys that it does not name. Raises ConfigRequestError."""
    current = image.configs.get(resource, {})
    changes: Changes = {name: value for name, value in configs.items() if current.get(name) != value}
    changes.update(dict.fromkeys(name for name in current if name not in configs))
    return _records(resource, changes, image, config)


def config_record(resource: ConfigResource, name: str, value: str | None) -> Message:
    """Make a ConfigRecord; a null value removes the configuration."""
    number = number_of(CONFIG_RESOURCE_TYPES, resource.type)
    return new_record("ConfigRecord", resource_type=number, resource_name=resource.name, name=name, value=value)


def elr_safety_records(image: MetadataImage, config: ServerConfig) -> list[Message]:
    """Return the records that ELR needs: a min.insync.replicas of the cluster, and none of single brokers."""
    records = []
    for resource, configs in image.configs.items():
        if resource.type == "BROKER" and resource.name and _MIN_ISR in configs:
            records.append(config_record(resource, _MIN_ISR, None))
    cluster = ConfigResource("BROKER", "")
    if _MIN_ISR not in image.configs.get(cluster, {}):
        records.append(config_record(cluster, _MIN_ISR, str(config[_MIN_ISR])))
    return records


def is_elr_enabled(image: MetadataImage) -> bool:
    """Return whether eligible leader replicas (KIP-966) are on."""
    return image.features.get(ELR_FEATURE, 0) > 0


def _changes(resource: ConfigResource, operations: Iterable[Operation], current: Mapping[str, str]) -> Changes:
    """Return the changes of the resource's own configuration that have to be written."""
    changes: Changes = {}
    for name, operation, value in operations:
        if operation in (APPEND, SUBTRACT):
            value = _altered_list(resource, name, operation, value or "", current.get(name))
        elif operation == DELETE:
            value = None
        if resource.type == "BROKER" or value != current.get(name):
            changes[name] = value
    return changes


def _altered_list(resource: ConfigResource, name: str, operation: int, operand: str, current: str | None) -> str:
    key = _LISTS[resource.type].get(name) if resource.type in _LISTS else None
    if key is None or not key.is_list:
        raise invalid_config(f"{name} is not a list; use SET or DELETE")
    parts = split_list(current if current is not None else key.default or "")
    for part in operand.split(","):
        if operation == SUBTRACT and part in parts:
            parts.remove(part)
        elif operation == APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)


def _apply(current: Mapping[str, str], changes: Changes) -> dict[str, str]:
    return {name: value for name, value in {**current, **changes}.items() if value is not None}


def _records(resource: ConfigResource, changes: Changes, image: MetadataImage, config: ServerConfig) -> list[Message]:
    _check_elr(resource, changes, image)
    if resource.type == "BROKER" and _CORDONED in changes and image.metadata_version < CORDONED_LOG_DIRS_SINCE:
        raise ConfigRequestError(
            INVALID_CONFIG, f"{_CORDONED} needs metadata.version 4.3-IV0; upgrade it (kcli features upgrade)"
        )
    for name, value in changes.items():
        if value is not None and len(value) > MAX_VALUE_CHARACTERS:
            raise invalid_config(f"the value of {name} has {len(value)} characters; the limit is {MAX_VALUE_CHARACTERS}")
    _check_values(resource, _apply(image.configs.get(resource, {}), changes), config)
    if resource.type == "TOPIC" and resource.name not in image.topic_ids:
        raise ConfigRequestError(UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.name} does not exist")
    records = [config_record(resource, name, value) for name, value in changes.items()]
    if _MIN_ISR in changes and is_elr_enabled(image):
        # A topic's own value concerns that topic, a broker's all topics.
        topic_name = resource.name if resource.type == "TOPIC" else ""
        records.append(new_record("ClearElrRecord", topic_name=topic_name))
    return records


def _check_elr(resource: ConfigResource, changes: Changes, image: MetadataImage) -> None:
    if resource.type != "BROKER" or _MIN_ISR not in changes or not is_elr_enabled(image):
        return
    if resource.name:
        raise ConfigRequestError(INVALID_CONFIG, f"{_MIN_ISR} of a single broker cannot be changed while {ELR_FEATURE} is on")
    if changes[_MIN_ISR] is None:
        raise ConfigRequestError(INVALID_CONFIG, f"{_MIN_ISR} of the cluster cannot be removed while {ELR_FEATURE} is on")


def _check_values(resource: ConfigResource, values: Mapping[str, str], config: ServerConfig) -> None:
    """Check the whole configuration of a resource. Raises ConfigRequestError."""
    if resource.type == "BROKER":
        if resource.name and not (resource.name.isascii() and resource.name.isdigit()):
            raise invalid_request(f"{resource.name!r} is not a broker id")
        return
    if not resource.name:
        raise invalid_request(f"a resource {resource.type} needs a name; only brokers have cluster-wide configurations")
    if resource.type == "TOPIC":
        check_topic_config(config, values)
    elif resource.type == "GROUP":
        check_group_config(config, values)
    elif resource.type == "CLIENT_METRICS":
        check_client_metrics_config(values)
    else:
        raise invalid_request(f"resources of type {resource.type} have no configurations at the controller")
