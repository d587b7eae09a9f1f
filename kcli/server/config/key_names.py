"""Names that may stand in server.properties: Kafka's keys, a listener's own, plugins' and those of older Kafkas.

name                                        is
------------------------------------------  ------------------------------------------------------------------------
num.partitions                              a key of keys.txt
listener.name.<name>.<key>                  the key for one listener: what secures it or limits its connections
listener.name.<name>.<mechanism>.sasl.<...> the key for one listener and SASL mechanism
rlmm.config.*, super.users, ...             a plugin's, which Kafka hands on (PLUGIN_PREFIXES, PLUGIN_KEYS)
zookeeper.connect, ...                      a key that Kafka has no more (REMOVED_KEYS)
"""

from __future__ import annotations

from kcli.server.config.definitions import BROKER_DYNAMIC_KEYS, BROKER_KEYS, ConfigKey
from kcli.server.config.values import nearest_name

LISTENER_PREFIX = "listener.name."
# What Kafka hands to plugins, quotas' callbacks and metrics' reporters; it knows no names of them.
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
# Keys of 2.x and 3.x: what they are read as now.
REMOVED_KEYS = {
    "zookeeper.": "ZooKeeper went with Kafka 4.0; a node needs process.roles and node.id instead",
    "inter.broker.protocol.version": "it went with Kafka 4.0; the feature metadata.version took its place",
    "log.message.format.version": "it went with Kafka 4.0; batches are of format 2",
    "log.message.downconversion.enable": "it went with Kafka 4.0; batches are of format 2",
    "log.message.timestamp.difference.max.ms": (
        "it went with Kafka 4.0; log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms took its place"
    ),
    "broker.id.generation.enable": "it went with Kafka 4.0; state node.id",
    "reserved.broker.max.id": "it went with Kafka 4.0; state node.id",
    "control.plane.listener.name": "it went with Kafka 4.0; controllers use controller.listener.names",
    "password.encoder.": "it went with Kafka 4.0",
    "delegation.token.master.key": "it went with Kafka 4.0; delegation.token.secret.key took its place",
    "offsets.commit.required.acks": "it went with Kafka 4.0",
    "auto.include.jmx.reporter": "it went with Kafka 4.0; metric.reporters took its place",
}
# listener.name.<name>.<key>: the first parts of the keys that may stand behind the name, where a mechanism may stand between.
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
    """The key that a name in server.properties stands for, `listener.name.<name>.<key>` included; None: Kafka has none."""
    if name in BROKER_KEYS:
        return BROKER_KEYS[name]
    if not name.startswith(LISTENER_PREFIX):
        return BROKER_DYNAMIC_KEYS.get(name)
    _, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    if rest in LISTENER_KEYS or (rest in BROKER_KEYS and rest.startswith(LISTENER_KEY_PREFIXES)):
        return BROKER_KEYS[rest]
    # listener.name.<name>.<mechanism>.sasl.jaas.config and its like.
    _, _, behind_mechanism = rest.partition(".")
    is_sasl = behind_mechanism in BROKER_KEYS and behind_mechanism.startswith(("sasl.", "connections.max.reauth"))
    return BROKER_KEYS[behind_mechanism] if is_sasl else None


def is_plugin_key(name: str) -> bool:
    """Whether a name is one that Kafka hands on without knowing it."""
    return name in PLUGIN_KEYS or name.startswith(PLUGIN_PREFIXES)


def removed_key(name: str) -> str | None:
    """What became of a key of an older Kafka, as part of a sentence; None for any other name."""
    return next((why for old, why in REMOVED_KEYS.items() if name == old or (old[-1] == "." and name.startswith(old))), None)


def unknown_key(key: str) -> str:
    """A sentence for a name that Kafka does not know, with the nearest one that it does."""
    if key.startswith(LISTENER_PREFIX):
        return f"{key} is not known; listener.name.<name>.<key> takes the keys that secure a listener or limit its connections"
    return f"{key} is not known{nearest_name(key, BROKER_KEYS)}"
