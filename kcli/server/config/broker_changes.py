"""Checks of a change to a broker's dynamic configuration (Kafka's DynamicBrokerConfig.validate), one whole layer at a time.

    refused                                                   reason
    --------------------------------------------------------  ----------------------------------------------------------
    a key that is fixed while a broker runs (keys.txt)        it is read at the start
    a keystore's or truststore's key without a listener       each listener has its own: listener.name.<name>.<key>
    a per-broker key, or a listener's, for the whole cluster  it differs between brokers
    a value that is invalid, alone or with the others         as at the start
    threads below half or above twice the present number      Kafka resizes its pools in steps
    listeners and security keys, to another value             not served yet (Kafka accepts it)

Unknown names are accepted: they may be a plugin's.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.server.config.checks import cross_faults
from kcli.server.config.definitions import BROKER_KEYS, ConfigKey, Serving, UpdateMode
from kcli.server.config.dynamic_config import DynamicConfig, base_key, is_dynamic, layered
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.request_errors import invalid_request
from kcli.server.config.server_config import NO_LIMIT, ServerConfig
from kcli.server.config.values import ConfigError, ConfigValue, default_value, parse_value

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
