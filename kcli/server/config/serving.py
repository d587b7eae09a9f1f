"""What kcli does with the stated keys: it serves them, logs that it does not, or refuses to start.

A security key (GUARD: authentication, authorization, encryption, and tiered storage) must not be ignored: the start is refused
if its value is not the default. The same applies to listeners with TLS or SASL.
Keys of features that are not served yet (LATER), and keys without meaning in kcli (NO_MEANING), are listed in one line each.
docs/configuration.md lists all keys by these groups.

`not_served` is the same for a whole cluster before it moves to kcli (`kcli verify --can-serve`): the settings of its file, and
what its metadata has.

    effect      means
    ----------  ----------------------------------------------------------------------------------------------------------------
    refused     kcli does not start, or does not serve that topic
    ignored     kcli runs, and does not do what it says
    no meaning  kcli has no part that it could set, such as the threads of a JVM; nothing is lost
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kcli.server.config.definitions import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, ConfigKey, ConfigTable, Serving
from kcli.server.config.key_names import key_of
from kcli.server.config.server_config import ConfigSource, ServerConfig
from kcli.server.config.values import ConfigError, default_value, parse_value
from kcli.server.features import supported_features

# Values that differ from the default but need nothing that is not served.
_HARMLESS_VALUES = {
    "ssl.client.auth": ("none",),
    "security.inter.broker.protocol": ("PLAINTEXT",),
    "remote.log.storage.system.enable": (False,),
    "principal.builder.class": ("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
}


def guard_faults(config: ServerConfig) -> list[str]:
    """Return a sentence for each security setting that is not served yet. Raises ConfigError for invalid listeners."""
    faults = []
    for listener in config.listeners:
        if not listener.is_plaintext:
            faults.append(
                f"listeners: {listener} is {listener.security_protocol}, which is not served yet; use PLAINTEXT"
                f"{config.where('listeners')}"
            )
    for name, value in config.stated.items():
        key = key_of(name)
        if key is None or key.serving != Serving.GUARD or value.source == ConfigSource.BUILT_IN:
            continue
        typed = parse_value(key, value.text)
        if typed not in ("", default_value(key), *_HARMLESS_VALUES.get(key.name, ())) and typed != []:
            faults.append(f"{name} is set, but its feature is not served yet; remove it to start without it ({value.where})")
    voters = config.quorum_voters
    if not config.is_controller and not voters and not config.quorum_bootstrap_servers:
        roles = ",".join(config.get_list("process.roles"))
        faults.append(
            f"process.roles={roles}{config.where('process.roles')}: a node that is not a controller needs the addresses of the "
            "cluster's controllers: set controller.quorum.bootstrap.servers"
        )
    if config.is_controller and config.node_id in voters and len(voters) > 1 and not config.controller_listeners:
        names, others = ", ".join(config.controller_listener_names), sorted(voters.keys() - {config.node_id})
        faults.append(
            f"listeners{config.where('listeners')}: none is in controller.listener.names ({names}), so that the voters "
            f"{', '.join(map(str, others))} of controller.quorum.voters cannot reach this one"
        )
    return faults


def without_effect(keys: ConfigTable, names: Iterable[str]) -> list[str]:
    """Return those of the names of stated keys that kcli accepts, and that have no effect."""
    found = ((name, keys.get(name)) for name in names)
    return [name for name, key in found if key is not None and key.serving in (Serving.LATER, Serving.NO_MEANING)]


def serving_lines(config: ServerConfig) -> list[str]:
    """Return a line of the stated keys without meaning here, and one of those whose feature is not served yet."""
    names: dict[str, list[str]] = {Serving.LATER: [], Serving.NO_MEANING: []}
    for name, value in config.stated.items():
        key = key_of(name)
        if key is not None and key.serving in names and value.source != ConfigSource.BUILT_IN:
            names[key.serving].append(name)
    lines = []
    if names[Serving.NO_MEANING]:
        lines.append("Accepted, without meaning in kcli: " + ", ".join(names[Serving.NO_MEANING]))
    if names[Serving.LATER]:
        lines.append("Accepted, for features that are not served yet: " + ", ".join(names[Serving.LATER]))
    return lines


class Effect(StrEnum):
    """What becomes of something that kcli does not serve."""

    REFUSED = "refused"
    IGNORED = "ignored"
    NO_MEANING = "no meaning"


class NotServed(NamedTuple):
    """Something that a cluster uses and kcli does not serve; `of` is a setting, feature, topic, ..., and `name` its name."""

    effect: Effect
    of: str
    name: str
    sentence: str


class ClusterUse(NamedTuple):
    """What the metadata of a cluster has; a configuration is (resource type, name, key, value).

    `meta_versions` are the versions of meta.properties by directory.
    """

    features: Mapping[str, int]
    configs: Sequence[tuple[str, str, str, str]]
    acls: int = 0
    users: int = 0
    quotas: int = 0
    tokens: int = 0
    meta_versions: Mapping[str, int] = {}


_TABLES = {"TOPIC": TOPIC_KEYS, "GROUP": GROUP_KEYS, "CLIENT_METRICS": CLIENT_METRICS_KEYS}
# The ends of the names of keys whose values are Java classes.
_CLASS_KEYS = ("class", "class.name", "classes", "reporters", "interceptors", "providers")
_ZOOKEEPER_META_VERSION = 0


def not_served(config: ServerConfig, use: ClusterUse | None) -> list[NotServed]:
    """Return what kcli does not serve of a configuration, loaded without `serving`, and of the metadata, if it is given."""
    found = [NotServed(Effect.REFUSED, "setting", text.split()[0].rstrip(":"), text) for text in guard_faults(config)]
    found += (
        NotServed(Effect.IGNORED, "setting", text.split(": ")[1].split()[0], text) for text in config.warnings if ": " in text
    )
    for name, value in config.stated.items():
        key = key_of(name)
        if key is not None and key.serving != Serving.GUARD:
            found += _of_key("setting", name, key, value.text, f" ({value.where})")
    if use is not None:
        found += _of_metadata(use)
    return sorted(dict.fromkeys(found), key=lambda one: list(Effect).index(one.effect))


def _of_key(of: str, name: str, key: ConfigKey, text: str, where: str) -> Iterator[NotServed]:
    """Yield what there is to say about a value that is not the default."""
    try:
        typed = parse_value(key, text)
    except ConfigError as error:
        yield NotServed(Effect.REFUSED, of, name, f"{error}{where}")
        return
    if key.serving == Serving.SERVED or typed in ("", default_value(key)) or typed in _HARMLESS_VALUES.get(key.name, ()):
        return
    if key.serving == Serving.GUARD:
        yield NotServed(Effect.REFUSED, of, name, f"{name}={text}: its feature is not served yet{where}")
    elif key.name.endswith(_CLASS_KEYS):
        yield NotServed(Effect.IGNORED, of, name, f"{name}={text}: kcli loads no Java classes{where}")
    elif key.serving == Serving.NO_MEANING:
        yield NotServed(Effect.NO_MEANING, of, name, f"{name}={text} has no meaning in kcli{where}")
    else:
        yield NotServed(Effect.IGNORED, of, name, f"{name}={text} has no effect: its feature is not served yet{where}")


def _of_metadata(use: ClusterUse) -> Iterator[NotServed]:
    for path, version in use.meta_versions.items():
        if version == _ZOOKEEPER_META_VERSION:
            text = f"{path} belongs to a cluster with ZooKeeper: migrate it to KRaft with Kafka 3.9 first"
            yield NotServed(Effect.REFUSED, "directory", path, text)
    supported = supported_features()
    for name, level in use.features.items():
        levels = supported.get(name)
        if levels is None or not levels.lowest <= level <= levels.highest:
            has = "none of its levels" if levels is None else f"the levels {levels.lowest} to {levels.highest}"
            yield NotServed(Effect.REFUSED, "feature", name, f"the cluster has {name}={level}, and kcli has {has}")
    for resource_type, resource, name, text in use.configs:
        table = _TABLES.get(resource_type)
        key = key_of(name) if table is None else table.get(name)
        of = resource_type.lower().replace("_", " ")
        where = f" ({of} {resource or 'default'})"
        if key is None:
            yield NotServed(Effect.IGNORED, of, name, f"{name}={text} is a setting that kcli does not know{where}")
        else:
            yield from _of_key(of, name, key, text, where)
    for count, of, what in (
        (use.acls, "acls", "access control entries: {}, which are kept, and refuse nothing to any client"),
        (use.users, "users", "SCRAM credentials: {}, which are kept, and no listener asks for them"),
        (use.quotas, "quotas", "quotas of clients: {}, which are kept, and no client is throttled"),
        (use.tokens, "tokens", "delegation tokens: {}, which are kept, and no listener accepts them"),
    ):
        if count:
            yield NotServed(Effect.IGNORED, of, of, what.format(count))
