"""The configuration of a node as it was started: what is stated, where, and the value of every key.

    a key's text comes from, first found wins     source
    --------------------------------------------  ---------
    --override key=value                          override
    server.properties                             file
    BUILT_IN, where no file is given              built-in
    keys.txt                                      default

`config["num.partitions"]` is the typed value; get_int, get_str ... are the same with a type that a checker knows. These
keys, where nobody states them, follow others (Kafka's rules):

    node.id, broker.id                 each is the other; 1 where neither is stated
    log.dirs                           log.dir
    metadata.log.dir                   the first of log.dirs
    log.retention.ms                   log.retention.minutes, log.retention.hours; below zero: -1, no limit
    log.roll.ms, log.roll.jitter.ms    log.roll.hours, log.roll.jitter.hours
    log.flush.interval.ms              log.flush.scheduler.interval.ms
    advertised.listeners               listeners without those of controllers
    inter.broker.listener.name         security.inter.broker.protocol
    num.replica.alter.log.dirs.threads as many as log.dirs has

`listener.name.<name>.<key>` stands over <key> for one listener: `listener_value`. Dynamic configuration lies above all of
this: dynamic_config makes a ServerConfig of all layers anew with each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from kcli.server.config.definitions import BROKER_KEYS
from kcli.server.config.key_names import LISTENER_PREFIX
from kcli.server.config.listeners import SECURITY_PROTOCOLS, Listener, parse_listeners, parse_security_protocols
from kcli.server.config.values import default_value, format_value, parse_value

MS_PER_MINUTE = 60_000
MS_PER_HOUR = 60 * MS_PER_MINUTE
NO_LIMIT = -1
DEFAULT_NODE_ID = 1
# What a plain `kcli serve` runs with: one node that is all there is of its cluster, for this machine only.
BUILT_IN = {
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "./kcli-data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# What Kafka asks every file to state; kcli takes these where one does not.
REQUIRED_DEFAULTS = {
    "node.id": str(DEFAULT_NODE_ID),
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
}


class ConfigSource:
    """Who stated a key's value."""

    DEFAULT = "default"
    BUILT_IN = "built-in"
    FILE = "file"
    OVERRIDE = "override"
    DYNAMIC = "dynamic"


class StatedValue(NamedTuple):
    """A value as text, and where it stands: `where` is for sentences."""

    text: str
    source: str
    where: str


class ConfigReader:
    """Reads typed values: of a ServerConfig, or of a DynamicConfig, which changes; `current` is the ServerConfig of now."""

    def __getitem__(self, key: str) -> Any:
        """The value of a key. Raises KeyError where Kafka has no such key."""
        raise NotImplementedError

    @property
    def current(self) -> ServerConfig:
        """All that is in effect now; it never changes."""
        raise NotImplementedError

    def get_int(self, key: str) -> int:
        """The value of a key of type SHORT, INT or LONG that has one."""
        return int(self[key])

    def get_float(self, key: str) -> float:
        """The value of a key of type DOUBLE."""
        return float(self[key])

    def get_bool(self, key: str) -> bool:
        """The value of a key of type BOOLEAN."""
        return bool(self[key])

    def get_str(self, key: str) -> str:
        """The value of a key of type STRING, CLASS or PASSWORD; null is the empty text."""
        return str(self[key] or "")

    def get_list(self, key: str) -> list[str]:
        """The value of a key of type LIST; null is the empty list."""
        return list(self[key] or ())


class ServerConfig(ConfigReader):
    """A node's static configuration; made by `load_config`, which has checked it."""

    def __init__(self, stated: Mapping[str, StatedValue], file_name: str | None = None) -> None:
        self.stated = dict(stated)
        self.file_name = file_name
        self.warnings: list[str] = []
        # What others have made of this configuration, which never changes, by a name of theirs.
        self.derived: dict[str, dict[str, str]] = {}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """The value of a key. Raises KeyError where Kafka has no such key."""
        try:
            return self._values[key]
        except KeyError:
            follow = _FOLLOWERS.get(key)
            value = self._values[key] = self.stated_value(key) if follow is None else follow(self)
            return value

    @property
    def current(self) -> ServerConfig:
        """Itself."""
        return self

    def source(self, key: str) -> str:
        """Who stated the value of a key."""
        stated = self.stated.get(key)
        return ConfigSource.DEFAULT if stated is None else stated.source

    def where(self, key: str) -> str:
        """Where the value of a key stands, for a sentence: ` (server.properties, line 3)`; nothing for a default."""
        stated = self.stated.get(key)
        return f" ({stated.where})" if stated is not None else ""

    def text(self, key: str) -> str | None:
        """The text that was stated for a key, or None."""
        stated = self.stated.get(key)
        return None if stated is None else stated.text

    def stated_value(self, key: str) -> Any:
        """The value of a key by its own text or default, whatever other keys say. Raises KeyError, ConfigError."""
        definition, text = BROKER_KEYS[key], self.text(key)
        if text is not None:
            return parse_value(definition, text)
        if definition.is_required:
            return parse_value(definition, REQUIRED_DEFAULTS[key])
        return default_value(definition)

    def listener_value(self, listener_name: str, key: str) -> Any:
        """The value of a key for one listener: `listener.name.<name>.<key>` where that is stated, else the key's own."""
        text = self.text(f"{LISTENER_PREFIX}{listener_name.lower()}.{key}")
        return self[key] if text is None else parse_value(BROKER_KEYS[key], text)

    # ------------------------------------------------------------------------------------------------------- identity

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.get_int("node.id")

    @property
    def is_broker(self) -> bool:
        """Whether this node is a broker."""
        return "broker" in self["process.roles"]

    @property
    def is_controller(self) -> bool:
        """Whether this node is a controller."""
        return "controller" in self["process.roles"]

    @property
    def log_dirs(self) -> list[str]:
        """The directories that hold partitions, as they were typed."""
        return self.get_list("log.dirs")

    @property
    def metadata_log_dir(self) -> str:
        """The directory that holds the metadata log."""
        return self.get_str("metadata.log.dir")

    # ------------------------------------------------------------------------------------------------------ listeners

    @cached_property
    def security_protocols(self) -> dict[str, str]:
        """The protocol of each listener's name, those of controllers included. Raises ConfigError."""
        key = "listener.security.protocol.map"
        protocols = parse_security_protocols(key, self.get_str(key))
        if self.text(key) is None and not any(name in SECURITY_PROTOCOLS[1:] for name in self._all_listener_names()):
            protocols.update({name: "PLAINTEXT" for name in self.controller_listener_names if name not in protocols})
        return protocols

    def _all_listener_names(self) -> list[str]:
        names = [text.partition("://")[0].strip().upper() for text in self.get_list("listeners")]
        return names + self.controller_listener_names

    @property
    def controller_listener_names(self) -> list[str]:
        """The names of the listeners that controllers use; the first is the one that this node itself takes."""
        return [name.upper() for name in self.get_list("controller.listener.names")]

    @cached_property
    def listeners(self) -> list[Listener]:
        """Everything that this node binds. Raises ConfigError."""
        return parse_listeners("listeners", self.get_list("listeners"), self.security_protocols)

    @cached_property
    def broker_listeners(self) -> list[Listener]:
        """What this node binds for clients and brokers. Raises ConfigError."""
        return [listener for listener in self.listeners if listener.name not in self.controller_listener_names]

    @cached_property
    def controller_listeners(self) -> list[Listener]:
        """What this node binds for controllers; empty: the controller is reached inside this process. Raises ConfigError."""
        return [listener for listener in self.listeners if listener.name in self.controller_listener_names]

    @cached_property
    def advertised_listeners(self) -> list[Listener]:
        """What clients are told to connect to. Raises ConfigError."""
        texts = self.get_list("advertised.listeners")
        every = parse_listeners("advertised.listeners", texts, self.security_protocols)
        return [listener for listener in every if listener.name not in self.controller_listener_names]

    @cached_property
    def advertised_controller_listeners(self) -> list[Listener]:
        """What nodes are told of this controller: advertised.listeners, else what it binds. Raises ConfigError."""
        texts = self.get_list("advertised.listeners")
        told = {one.name: one for one in parse_listeners("advertised.listeners", texts, self.security_protocols)}
        return [told.get(listener.name, listener) for listener in self.controller_listeners]

    @property
    def inter_broker_listener_name(self) -> str:
        """The listener that brokers use among themselves."""
        return self.get_str("inter.broker.listener.name").upper()

    @property
    def quorum_voters(self) -> dict[int, tuple[str, int]]:
        """controller.quorum.voters: host and port by node id; empty where the quorum is dynamic."""
        voters = {}
        for text in self.get_list("controller.quorum.voters"):
            node_id, _, address = text.partition("@")
            host, _, port = address.rpartition(":")
            voters[int(node_id)] = (host.strip("[]"), int(port))
        return voters

    @property
    def quorum_bootstrap_servers(self) -> list[tuple[str, int]]:
        """controller.quorum.bootstrap.servers: host and port of each."""
        addresses = (text.rpartition(":") for text in self.get_list("controller.quorum.bootstrap.servers"))
        return [(host.strip("[]"), int(port)) for host, _, port in addresses]


# --------------------------------------------------------------------------------------------- keys that follow others


def _node_id(config: ServerConfig) -> int:
    """node.id and broker.id stand in for each other; a broker.id below zero states none."""
    for key in ("node.id", "broker.id"):
        if config.text(key) is not None and (value := int(config.stated_value(key))) >= 0:
            return value
    return DEFAULT_NODE_ID


def _first_stated(*keys_and_factors: tuple[str, int]) -> Callable[[ServerConfig], int]:
    """A rule: the first of the keys that has a value, times its factor."""

    def follow(config: ServerConfig) -> int:
        for key, factor in keys_and_factors:
            value = config.stated_value(key)
            if value is not None:
                return int(value) * factor
        raise AssertionError("the last of the keys has a default")

    return follow


_RETENTION = _first_stated(
    ("log.retention.ms", 1), ("log.retention.minutes", MS_PER_MINUTE), ("log.retention.hours", MS_PER_HOUR)
)


def _retention_ms(config: ServerConfig) -> int:
    value = _RETENTION(config)
    return NO_LIMIT if value < 0 else value


def _log_dirs(config: ServerConfig) -> list[str]:
    return list(config.stated_value("log.dirs") or config.stated_value("log.dir"))


def _metadata_log_dir(config: ServerConfig) -> str:
    return str(config.stated_value("metadata.log.dir") or config.log_dirs[0])


def _advertised_listeners(config: ServerConfig) -> list[str]:
    stated = config.stated_value("advertised.listeners")
    return list(stated) if stated is not None else [str(listener) for listener in config.broker_listeners]


def _inter_broker_listener_name(config: ServerConfig) -> str:
    return str(config.stated_value("inter.broker.listener.name") or config["security.inter.broker.protocol"])


def _alter_log_dirs_threads(config: ServerConfig) -> int:
    return int(config.stated_value("num.replica.alter.log.dirs.threads") or len(config.log_dirs))


_FOLLOWERS: dict[str, Callable[[ServerConfig], Any]] = {
    "node.id": _node_id,
    "broker.id": _node_id,
    "log.dirs": _log_dirs,
    "metadata.log.dir": _metadata_log_dir,
    "log.retention.ms": _retention_ms,
    "log.roll.ms": _first_stated(("log.roll.ms", 1), ("log.roll.hours", MS_PER_HOUR)),
    "log.roll.jitter.ms": _first_stated(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", MS_PER_HOUR)),
    "log.flush.interval.ms": _first_stated(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "advertised.listeners": _advertised_listeners,
    "inter.broker.listener.name": _inter_broker_listener_name,
    "num.replica.alter.log.dirs.threads": _alter_log_dirs_threads,
}


def effective_text(config: ServerConfig, key: str) -> str | None:
    """The value of a key as text, as `config[key]` has it."""
    return format_value(config[key])
