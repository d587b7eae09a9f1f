"""Names in server.properties: Kafka's keys, those of listeners and plugins, and those of older versions.

name                                        is
------------------------------------------  ------------------------------------------------------------------------
num.partitions                              a key of keys.txt
listener.name.<name>.<key>                  the key for one listener: its security, or limits of its connections
listener.name.<name>.<mechanism>.sasl.<...> the key for one listener and SASL mechanism
rlmm.config.*, super.users, ...             a plugin's, which Kafka passes on (PLUGIN_PREFIXES, PLUGIN_KEYS)
zookeeper.connect, ...                      a key that Kafka has removed (REMOVED_KEYS)
"""

from __future__ import annotations

from kcli.server.config.definitions import BROKER_DYNAMIC_KEYS, BROKER_KEYS, ConfigKey
from kcli.server.config.values import nearest_name

LISTENER_PREFIX = "listener.name."
# Kafka passes these to plugins, quota callbacks and metrics reporters without checking them.
PLUGIN_PREFIXES = (
    "rlmm.config.",
    "rsm.config.",
    "remote.log.metadata.",
    "client.quota.callback.",
    "config.providers.",
    "metrics.",
    "confluent.",
    "cruise.control.",
    "broker.quota.",
    "controller.quota.",
    "authorizer.",
    "opa.authorizer.",
    "ranger.",
    "plugin.",
    "kafka.csv.metrics.",
)
PLUGIN_KEYS = frozenset(("super.users", "allow.everyone.if.no.acl.found"))
# Keys of 2.x and 3.x, and what replaces them.
REMOVED_KEYS = {
    "zookeeper.": (
        "ZooKeeper was removed in Kafka 4.0, so the key has no effect: remove it (process.roles and node.id replace it)"
    ),
    "inter.broker.protocol.version": "it was removed in Kafka 4.0; the feature metadata.version replaces it",
    "log.message.format.version": "it was removed in Kafka 4.0; batches are of format 2",
    "log.message.downconversion.enable": "it was removed in Kafka 4.0; batches are of format 2",
    "log.message.timestamp.difference.max.ms": (
        "it was removed in Kafka 4.0; log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms replace it"
    ),
    "broker.id.generation.enable": "it was removed in Kafka 4.0; set node.id",
    "reserved.broker.max.id": "it was removed in Kafka 4.0; set node.id",
    "control.plane.listener.name": "it was removed in Kafka 4.0; controllers use controller.listener.names",
    "password.encoder.": "it was removed in Kafka 4.0",
    "delegation.token.master.key": "it was removed in Kafka 4.0; delegation.token.secret.key replaces it",
    "offsets.commit.required.acks": "it was removed in Kafka 4.0",
    "auto.include.jmx.reporter": "it was removed in Kafka 4.0; metric.reporters replaces it",
}
# Prefixes of <key> in listener.name.<name>.<key>; a SASL mechanism may come between <name> and <key>.
LISTENER_KEY_PREFIXES = ("ssl.", "sasl.", "security.", "principal.")
LISTENER_KEYS = frozenset(
    (
        "connections.max.reauth.ms",
        "connection.failed.authentication.delay.ms",
        "max.connections",
        "max.connection.creation.rate",
        "principal.builder.class",
        "connections.max.idle.ms",
    )
)


def key_of(name: str) -> ConfigKey | None:
    """Return the key of a name in server.properties, `listener.name.<name>.<key>` included; None for an unknown name."""
    if name in BROKER_KEYS:
        return BROKER_KEYS[name]
    if not name.startswith(LISTENER_PREFIX):
        return BROKER_DYNAMIC_KEYS.get(name)
    _, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    if rest in LISTENER_KEYS or (rest in BROKER_KEYS and rest.startswith(LISTENER_KEY_PREFIXES)):
        return BROKER_KEYS[rest]
    # For example listener.name.<name>.<mechanism>.sasl.jaas.config.
    _, _, behind_mechanism = rest.partition(".")
    is_sasl = behind_mechanism in BROKER_KEYS and behind_mechanism.startswith(("sasl.", "connections.max.reauth"))
    return BROKER_KEYS[behind_mechanism] if is_sasl else None


def is_plugin_key(name: str) -> bool:
    """Return whether Kafka passes a name on to plugins without checking it."""
    return name in PLUGIN_KEYS or name.startswith(PLUGIN_PREFIXES)


def removed_key(name: str) -> str | None:
    """Return what replaces a key of an older Kafka, as part of a sentence; None for any other name."""
    return next((why for old, why in REMOVED_KEYS.items() if name == old or (old[-1] == "." and name.startswith(old))), None)


def unknown_key(key: str) -> str:
    """Return a sentence about an unknown name, with the most similar key."""
    if key.startswith(LISTENER_PREFIX):
        return f"{key} is unknown; listener.name.<name>.<key> takes keys of a listener's security and connection limits"
    return f"{key} is unknown{nearest_name(key, BROKER_KEYS)}"
