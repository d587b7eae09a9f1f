"""Keys that must be consistent with each other: Kafka's rules (KafkaConfig.validateValues), with a sentence for each.

group                rules
-------------------  ----------------------------------------------------------------------------------------------
identity             node.id and broker.id are the same; a controller is one of its voters
listeners            see kcli.server.config.listeners; controllers' listeners are not advertised to clients
times and sizes      log.retention.*, log.roll.*, replica fetch waits, heartbeats below sessions, minimum below maximum
directories          cordoned.log.dirs are in log.dirs; kcli.recovery.quarantine.dir is in none of them
"""

from __future__ import annotations

from posixpath import normpath

from kcli.format.java_text import parse_integer
from kcli.server.config.listeners import UNROUTABLE_HOST, repeated_listeners
from kcli.server.config.server_config import NO_LIMIT, ServerConfig
from kcli.server.config.values import ConfigError, is_repeated, split_list

_MIB = 1 << 20
# The assignors of each kind of group; Kafka accepts Java classes, too.
ASSIGNORS = {
    "group.consumer.assignors": ("uniform", "range"),
    "group.share.assignors": ("simple",),
    "group.streams.assignors": ("sticky",),
}
_SELECTORS = "org.apache.kafka.common.replica."
RACK_AWARE_SELECTOR = f"{_SELECTORS}RackAwareReplicaSelector"
_SELECTOR_KEY, _LEADER_SELECTOR = "replica.selector.class", f"{_SELECTORS}LeaderSelector"
# A key of a feature that is not served. Kafka does not start if the class does not exist.
_CLASSES = ("group.share.dlq.manager.class.name",)
_KAFKAS_OWN = "org.apache.kafka."
_RACK_TAGS = "group.streams.rack.aware.assignment.tags"


def cross_faults(config: ServerConfig) -> list[str]:
    """Return a sentence for each rule that the stated keys break."""
    faults: list[str] = []
    for check in (_identity, _listeners, _connections, _times, _groups, _directories):
        try:
            faults += check(config)
        except ConfigError as error:
            faults += error.faults
    return list(dict.fromkeys(faults))


def _identity(config: ServerConfig) -> list[str]:
    faults = []
    broker_id = config.text("broker.id")
    if broker_id is not None and config.text("node.id") is not None and config.stated_value("broker.id") != config.node_id:
        faults.append(
            f"broker.id={broker_id}{config.where('broker.id')} and node.id={config.node_id}{config.where('node.id')} "
            "differ; set node.id only"
        )
    if config.text("zookeeper.connect") is not None and config.text("process.roles") is None:
        faults.append(
            f"zookeeper.connect{config.where('zookeeper.connect')}: ZooKeeper was removed in Kafka 4.0; "
            "set process.roles=broker,controller and node.id instead"
        )
    voters = config.quorum_voters
    if voters and config.is_controller and config.node_id not in voters:
        faults.append(
            f"controller.quorum.voters{config.where('controller.quorum.voters')}: node {config.node_id} is a controller but "
            f"not one of the voters {', '.join(map(str, voters))}"
        )
    if voters and not config.is_controller and config.node_id in voters:
        faults.append(
            f"controller.quorum.voters{config.where('controller.quorum.voters')}: node {config.node_id} is one of the voters, "
            "but process.roles does not contain controller"
        )
    return faults


def _listeners(config: ServerConfig) -> list[str]:
    faults = repeated_listeners("listeners", config.listeners, ports_too=True)
    if config.text("advertised.listeners") is not None:
        faults += repeated_listeners("advertised.listeners", config.advertised_listeners, ports_too=False)
    protocols = config.security_protocols
    names = config.controller_listener_names
    known = {listener.name for listener in config.listeners} | set(names)
    faults += [
        f"early.start.listeners: {name} is neither in listeners nor in controller.listener.names"
        for name in config.get_list("early.start.listeners")
        if name.upper() not in known
    ]
    if not config.is_broker:
        return faults + [
            f"listeners: {listener} is not in controller.listener.names, and process.roles does not contain broker"
            for listener in config.broker_listeners
        ]
    if not config.broker_listeners:
        faults.append(f"listeners{config.where('listeners')}: none is left for clients: all are in controller.listener.names")
        return faults
    if not config.is_controller and config.controller_listeners:
        faults.append(
            f"listeners: {config.controller_listeners[0]} is a controller's, but process.roles does not contain controller"
        )
    faults += [
        f"advertised.listeners: clients cannot connect to {listener}; set an address that they can reach"
        f"{config.where('advertised.listeners') or config.where('listeners')}"
        for listener in config.advertised_listeners
        if listener.host == UNROUTABLE_HOST
    ]
    faults += [
        f"controller.listener.names: {name} has no security protocol in listener.security.protocol.map"
        for name in names
        if name not in protocols
    ]
    return faults + _inter_broker_listener(config)


def _inter_broker_listener(config: ServerConfig) -> list[str]:
    key = "inter.broker.listener.name"
    name = config.inter_broker_listener_name
    advertised = [listener.name for listener in config.advertised_listeners]
    bound = [listener.name for listener in config.broker_listeners]
    faults = []
    if config.text(key) is not None and config.text("security.inter.broker.protocol") is not None:
        faults.append(f"{key} and security.inter.broker.protocol must not both be set")
    if name in config.controller_listener_names:
        faults.append(f"{key}={name}: that listener is in controller.listener.names{config.where(key)}")
    elif name not in advertised:
        faults.append(
            f"{key}={name}: no advertised listener has that name; they are {', '.join(advertised)}{config.where(key)}"
        )
    faults += [
        f"advertised.listeners: {name} is not in listeners, which are {', '.join(bound)}{config.where('advertised.listeners')}"
        for name in advertised
        if name not in bound
    ]
    return faults


def _times(config: ServerConfig) -> list[str]:
    faults = []
    for key, lowest in (("log.retention.ms", 1), ("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
        value = config.get_int(key)
        if value < lowest and not (key == "log.retention.ms" and value == NO_LIMIT):
            unlimited = ", or -1 for no limit" if key == "log.retention.ms" else ""
            faults.append(f"{key}={value} is not valid: it must be {lowest} or more{unlimited}{config.where(key)}")
    wait = config.get_int("replica.fetch.wait.max.ms")
    for key in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        faults += _at_most(config, "replica.fetch.wait.max.ms", wait, key, config.get_int(key))
    delay, idle = config.get_int("connection.failed.authentication.delay.ms"), config.get_int("connections.max.idle.ms")
    if 0 < idle <= delay:
        faults.append(f"connection.failed.authentication.delay.ms={delay} must be below connections.max.idle.ms={idle}")
    threads = config.get_int("log.cleaner.threads")
    if config.get_int("log.cleaner.dedupe.buffer.size") // max(threads, 1) <= _MIB:
        faults.append("log.cleaner.dedupe.buffer.size must be above 1 MiB for each of log.cleaner.threads")
    level = config.get_int("offsets.topic.compression.codec")
    if level not in range(5):
        faults.append(
            f"offsets.topic.compression.codec={level} is not valid: it must be 0 (none), 1 gzip, 2 snappy, 3 lz4 or 4 zstd"
        )
    return faults


def _at_most(config: ServerConfig, key: str, value: int, other: str, bound: int) -> list[str]:
    where = config.where(key) or config.where(other)
    return [f"{key}={value} must not be above {other}={bound}{where}"] if value > bound else []


# Pairs of group keys: the first must not be above the second.
_ORDERED = (
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms"),
    ("group.share.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.share.min.session.timeout.ms", "group.share.session.timeout.ms"),
    ("group.share.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.share.min.record.lock.duration.ms", "group.share.record.lock.duration.ms"),
    ("group.share.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"),
    ("group.share.delivery.count.limit", "group.share.max.delivery.count.limit"),
    ("group.share.partition.max.record.locks", "group.share.max.partition.max.record.locks"),
    ("group.share.max.size", "group.share.max.share.sessions"),
    ("group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"),
    ("group.streams.min.heartbeat.interval.ms", "group.streams.heartbeat.interval.ms"),
    ("group.streams.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"),
    ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    ("group.streams.min.session.timeout.ms", "group.streams.session.timeout.ms"),
    ("group.streams.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
)


def _groups(config: ServerConfig) -> list[str]:
    faults: list[str] = []
    for low, high in _ORDERED:
        if config.text(low) is not None or config.text(high) is not None:
            faults += _at_most(config, low, config.get_int(low), high, config.get_int(high))
    for kind in ("consumer", "share", "streams"):
        low, high = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if config.get_int(low) >= config.get_int(high):
            faults.append(f"{low}={config[low]} must be below {high}={config[high]}{config.where(low) or config.where(high)}")
    for key, known in ASSIGNORS.items():
        others = [name for name in config.get_list(key) if name not in known]
        if others:
            names = f"the assignor is {known[0]}" if len(known) == 1 else f"the assignors are {' and '.join(known)}"
            text = f"{others[0]} is not known, and a Java class cannot be loaded; {names}"
            faults.append(f"{key}: {text}{config.where(key)}")
    for key in _CLASSES:
        name = config.get_str(key)
        if name and not name.startswith(_KAFKAS_OWN):
            faults.append(f"{key}={name} is a Java class, which cannot be loaded; remove the key{config.where(key)}")
    if (selector := config.get_str(_SELECTOR_KEY)) not in ("", RACK_AWARE_SELECTOR, _LEADER_SELECTOR):
        text = f"is a Java class, which cannot be loaded; use {RACK_AWARE_SELECTOR}, or remove the key"
        faults.append(f"{_SELECTOR_KEY}={selector} {text}{config.where(_SELECTOR_KEY)}")
    if is_repeated(config.text(_RACK_TAGS) or ""):
        faults.append(f"{_RACK_TAGS} must not contain a tag twice{config.where(_RACK_TAGS)}")
    if "classic" not in config.get_list("group.coordinator.rebalance.protocols"):
        faults.append("group.coordinator.rebalance.protocols must contain classic")
    return faults


def _connections(config: ServerConfig) -> list[str]:
    faults = []
    key = "max.connections.per.ip.overrides"
    overrides = split_list(config.get_str(key))
    for item in overrides:
        host, _, limit = item.rpartition(":")
        if not host or parse_integer(limit, 32) is None:
            faults.append(f"{key}: {item!r} is not valid: it must be host:connections{config.where(key)}")
    if config["max.connections.per.ip"] == 0 and not overrides:
        faults.append(f"max.connections.per.ip=0 refuses all connections; set {key} for some hosts, or another number")
    queued, largest = config.get_int("queued.max.request.bytes"), config.get_int("socket.request.max.bytes")
    if 0 < queued < largest:
        faults.append(f"queued.max.request.bytes={queued} must not be below socket.request.max.bytes={largest}")
    return faults


def _directories(config: ServerConfig) -> list[str]:
    cordoned = config.get_list("cordoned.log.dirs")
    unknown = [path for path in cordoned if path != "*" and config.stated_log_dir(path) not in config.log_dirs]
    if "*" in cordoned and len(cordoned) > 1:
        where = config.where("cordoned.log.dirs")
        return [f"cordoned.log.dirs: * is all log directories and must be the only value; remove the others{where}"]
    return [
        f"cordoned.log.dirs: {path} is not in log.dirs, which are {', '.join(config.log_dirs)}"
        f"{config.where('cordoned.log.dirs')}"
        for path in unknown
    ] + _quarantine(config)


def _quarantine(config: ServerConfig) -> list[str]:
    """Refuse a quarantine directory in a log directory: a broker does not start with unknown directories there."""
    key = "kcli.recovery.quarantine.dir"
    place = config.get_str(key)
    inside = [path for path in (*config.log_dirs, config.metadata_log_dir) if place and _is_inside(place, path)]
    return [f"{key}={place} is in the log directory {path}; it must be outside{config.where(key)}" for path in inside[:1]]


def _is_inside(path: str, directory: str) -> bool:
    """Return whether a path is a directory or in it, by their names."""
    return f"{normpath(path)}/".startswith(f"{normpath(directory).rstrip('/')}/")
