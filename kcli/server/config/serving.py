"""What kcli does with the stated keys: it serves them, logs that it does not, or refuses to start.

A security key (GUARD: authentication, authorization, encryption, and tiered storage) must not be ignored: the start is refused
if its value is not the default. The same applies to listeners with TLS or SASL.
Keys of features that are not served yet (LATER), and keys without meaning in kcli (NO_MEANING), are listed in one line each.
docs/configuration.md lists all keys by these groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.server.config.definitions import ConfigTable, Serving
from kcli.server.config.key_names import key_of
from kcli.server.config.server_config import ConfigSource, ServerConfig
from kcli.server.config.values import default_value, parse_value

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
