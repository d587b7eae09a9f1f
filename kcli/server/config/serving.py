"""What kcli does with the keys that a configuration states: serves them, says that it does not, or refuses to start.

A key that keeps something safe (GUARD: who may connect, who may do what, how it is encrypted, where tiered data lies) must
not be ignored: stated with another value than its default, it refuses the start. So do listeners that need TLS or SASL.
Keys whose part is to come (LATER) and keys to which nothing here corresponds (NO_MEANING) are named in one line each.
docs/configuration.md lists all keys by this.
"""

from __future__ import annotations

from kcli.server.config.definitions import Serving
from kcli.server.config.key_names import key_of
from kcli.server.config.server_config import ConfigSource, ServerConfig
from kcli.server.config.values import default_value, parse_value

# Keys whose default is not null and that a file may state without asking for anything that is not there.
_HARMLESS_VALUES = {
    "ssl.client.auth": ("none",),
    "security.inter.broker.protocol": ("PLAINTEXT",),
    "remote.log.storage.system.enable": (False,),
    "principal.builder.class": ("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
}


def guard_faults(config: ServerConfig) -> list[str]:
    """A sentence for each thing that guards and is not served yet. Raises ConfigError where listeners are not valid."""
    faults = []
    for listener in config.listeners:
        if not listener.is_plaintext:
            faults.append(
                f"listeners: {listener} is {listener.security_protocol}, which is not served yet; PLAINTEXT is"
                f"{config.where('listeners')}"
            )
    for name, value in config.stated.items():
        key = key_of(name)
        if key is None or key.serving != Serving.GUARD or value.source == ConfigSource.BUILT_IN:
            continue
        typed = parse_value(key, value.text)
        if typed not in ("", default_value(key), *_HARMLESS_VALUES.get(key.name, ())) and typed != []:
            faults.append(f"{name} is set, and what it guards is not served yet; remove it to start without ({value.where})")
    for role in {"broker", "controller"} - set(config["process.roles"]):
        faults.append(
            f"process.roles={','.join(config['process.roles'])}: a node that is no {role} is not served yet; "
            f"broker,controller is{config.where('process.roles')}"
        )
    if len(config.quorum_voters) > 1:
        where = config.where("controller.quorum.voters")
        faults.append(f"controller.quorum.voters: more than one voter is not served yet{where}")
    return faults


def serving_lines(config: ServerConfig) -> list[str]:
    """One line for the stated keys whose part is not served yet, one for those that have no meaning here."""
    names: dict[str, list[str]] = {Serving.LATER: [], Serving.NO_MEANING: []}
    for name, value in config.stated.items():
        key = key_of(name)
        if key is not None and key.serving in names and value.source != ConfigSource.BUILT_IN:
            names[key.serving].append(name)
    lines = []
    if names[Serving.NO_MEANING]:
        lines.append("Accepted, though nothing in kcli corresponds to them: " + ", ".join(names[Serving.NO_MEANING]))
    if names[Serving.LATER]:
        lines.append("Accepted, for parts that are not served yet: " + ", ".join(names[Serving.LATER]))
    return lines
