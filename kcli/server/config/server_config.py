"""The static configuration of a node: the stated values, where they are stated, and the value of every key.

    where a key's text is looked up, in order     source
    --------------------------------------------  ---------
    --override key=value                          override
    server.properties                             file
    BUILT_IN, without a file                      built-in
    keys.txt                                      default

`config["num.partitions"]` is the typed value; get_int, get_str ... return it with a static type. The defaults of these keys
depend on other keys (Kafka's rules):

    node.id, broker.id                 each other; 1 if neither is stated
    log.dirs                           log.dir
    metadata.log.dir                   the first of log.dirs
    log.retention.ms                   log.retention.minutes, log.retention.hours; below zero: -1, no limit
    log.roll.ms, log.roll.jitter.ms    log.roll.hours, log.roll.jitter.hours
    log.flush.interval.ms              log.flush.scheduler.interval.ms
    advertised.listeners               listeners without those of controllers
    inter.broker.listener.name         security.inter.broker.protocol
    num.replica.alter.log.dirs.threads the number of log.dirs

Dynamic configuration overrides all of this: dynamic_config makes a new ServerConfig of all layers with each change.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from posixpath import realpath
from typing import Any, NamedTuple

from kcli.server.config.definitions import BROKER_KEYS
from kcli.server.config.listeners import SECURITY_PROTOCOLS, Listener, parse_listeners, parse_security_protocols
from kcli.server.config.values import ConfigValue, as_float, as_int, as_list, default_value, parse_value

MS_PER_MINUTE = 60_000
MS_PER_HOUR = 60 * MS_PER_MINUTE
NO_LIMIT = -1
DEFAULT_NODE_ID = 1
# The configuration of `kcli serve` without a file: a cluster of one node, for this machine only.
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
# Kafka requires these keys in a file; kcli assumes these values.
REQUIRED_DEFAULTS = {
    "node.id": str(DEFAULT_NODE_ID),
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
}


class ConfigSource:
    """Where a key's value was stated."""

    DEFAULT = "default"
    BUILT_IN = "built-in"
    FILE = "file"
    OVERRIDE = "override"
    DYNAMIC = "dynamic"


class StatedValue(NamedTuple):
    """A value as text, and where it was stated: `where` is for sentences."""

    text: str
    source: str
    where: str


class ConfigReader(ABC):
    """Typed access to a ServerConfig or to a DynamicConfig, which changes; `current` is the present ServerConfig."""

    @abstractmethod
    def __getitem__(self, key: str) -> ConfigValue:
        """Return the value of a key. Raises KeyError for an unknown key."""

    @property
    @abstractmethod
    def current(self) -> ServerConfig:
        """The present configuration; it is immutable."""

    def get_int(self, key: str) -> int:
        """Return the value of a key of type SHORT, INT or LONG, which must not be null."""
        return as_int(self[key])

    def get_float(self, key: str) -> float:
        """Return the value of a key of type DOUBLE."""
        return as_float(self[key])

    def get_bool(self, key: str) -> bool:
        """Return the value of a key of type BOOLEAN."""
        return bool(self[key])

    def get_str(self, key: str) -> str:
        """Return the value of a key of type STRING, CLASS or PASSWORD; the empty text for null."""
        return str(self[key] or "")

    def get_list(self, key: str) -> list[str]:
        """Return the value of a key of type LIST; the empty list for null."""
        return as_list(self[key])


class ServerConfig(ConfigReader):
    """A node's static configuration; `load_config` makes and checks it."""

    def __init__(self, stated: Mapping[str, StatedValue], file_name: str | None = None) -> None:
        self.stated = dict(stated)
        self.file_name = file_name
        self.warnings: list[str] = []
        # Values that other modules derive from this configuration, by a name of theirs.
        self.derived: dict[str, dict[str, str]] = {}
        self._values: dict[str, ConfigValue] = {}

    def __getitem__(self, key: str) -> ConfigValue:
        """Return the value of a key. Raises KeyError for an unknown key."""
        try:
            return self._values[key]
        except KeyError:
            follow = _FOLLOWERS.get(key)
            value = self._values[key] = self.stated_value(key) if follow is None else follow(self)
            return value

    @property
    def current(self) -> ServerConfig:
        """This configuration."""
        return self

    def source(self, key: str) -> str:
        """Return where the value of a key was stated, as a ConfigSource."""
        stated = self.stated.get(key)
        return ConfigSource.DEFAULT if stated is None else stated.source

    def where(self, key: str) -> str:
        """Return where a key was stated, for a sentence: ` (server.properties, line 3)`; nothing for a default."""
        stated = self.stated.get(key)
        return f" ({stated.where})" if stated is not None else ""

    def text(self, key: str) -> str | None:
        """Return the stated text of a key, or None."""
        stated = self.stated.get(key)
        return None if stated is None else stated.text

    def stated_value(self, key: str) -> ConfigValue:
        """Return the value of a key from its own text or default, without other keys. Raises KeyError, ConfigError."""
        definition, text = BROKER_KEYS[key], self.text(key)
        if text is not None:
            return parse_value(definition, text)
        if definition.is_required:
            return parse_value(definition, REQUIRED_DEFAULTS[key])
        return default_value(definition)

    # ------------------------------------------------------------------------------------------------------- identity

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.get_int("node.id")

    @property
    def is_broker(self) -> bool:
        """Whether this node is a broker."""
        return "broker" in self.get_list("process.roles")

    @property
    def is_controller(self) -> bool:
        """Whether this node is a controller."""
        return "controller" in self.get_list("process.roles")

    @cached_property
    def log_dirs(self) -> list[str]:
        """The directories of partitions, as they were stated; one that is stated by several paths has the first of them."""
        paths = [_as_java_file(path) for path in self.get_list("log.dirs")]
        return list({realpath(path): path for path in reversed(paths)}.values())[::-1]

    @cached_property
    def cordoned_log_dirs(self) -> list[str]:
        """The directories that get no new replicas (KIP-1066), by the same paths as in log_dirs; `*` is all of them."""
        stated = self.get_list("cordoned.log.dirs")
        return self.log_dirs if "*" in stated else [self.stated_log_dir(path) for path in stated]

    @cached_property
    def metadata_log_dir(self) -> str:
        """The directory of the metadata log; by the same path as in log_dirs if it is one of these."""
        return self.stated_log_dir(self.get_str("metadata.log.dir"))

    def stated_log_dir(self, path: str) -> str:
        """Return the path by which log_dirs has a directory; a directory that is not one of them is returned unchanged."""
        return next((known for known in self.log_dirs if realpath(known) == realpath(path)), _as_java_file(path))

    # ------------------------------------------------------------------------------------------------------ listeners

    @cached_property
    def security_protocols(self) -> dict[str, str]:
        """The protocol of each listener name, controllers' included. Raises ConfigError."""
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
        """The names of the controllers' listeners; this node itself connects to the first."""
        return [name.upper() for name in self.get_list("controller.listener.names")]

    @cached_property
    def listeners(self) -> list[Listener]:
        """All listeners that this node binds. Raises ConfigError."""
        return parse_listeners("listeners", self.get_list("listeners"), self.security_protocols)

    @cached_property
    def broker_listeners(self) -> list[Listener]:
        """The listeners for clients and brokers. Raises ConfigError."""
        return [listener for listener in self.listeners if listener.name not in self.controller_listener_names]

    @cached_property
    def controller_listeners(self) -> list[Listener]:
        """The listeners for controllers; without any, only this process reaches its controller. Raises ConfigError."""
        return [listener for listener in self.listeners if listener.name in self.controller_listener_names]

    @cached_property
    def advertised_listeners(self) -> list[Listener]:
        """The addresses for clients. Raises ConfigError."""
        texts = self.get_list("advertised.listeners")
        every = parse_listeners("advertised.listeners", texts, self.security_protocols)
        return [listener for listener in every if listener.name not in self.controller_listener_names]

    @cached_property
    def advertised_controller_listeners(self) -> list[Listener]:
        """The addresses of this controller for other nodes: advertised.listeners, else its listeners. Raises ConfigError."""
        texts = self.get_list("advertised.listeners")
        advertised = {one.name: one for one in parse_listeners("advertised.listeners", texts, self.security_protocols)}
        return [advertised.get(listener.name, listener) for listener in self.controller_listeners]

    @property
    def inter_broker_listener_name(self) -> str:
        """The name of the listener that brokers use for each other."""
        return self.get_str("inter.broker.listener.name").upper()

    @property
    def quorum_voters(self) -> dict[int, tuple[str, int]]:
        """controller.quorum.voters: host and port by node id; empty for a dynamic quorum."""
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
    """Return node.id or broker.id, whichever is stated; a negative broker.id counts as not stated."""
    for key in ("node.id", "broker.id"):
        if config.text(key) is not None and (value := as_int(config.stated_value(key))) >= 0:
            return value
    return DEFAULT_NODE_ID


def _first_stated(*keys_and_factors: tuple[str, int]) -> Callable[[ServerConfig], int]:
    """Return a rule: the first key with a value, times its factor."""

    def follow(config: ServerConfig) -> int:
        for key, factor in keys_and_factors:
            value = config.stated_value(key)
            if value is not None:
                return as_int(value) * factor
        raise AssertionError("the last of the keys has a default")

    return follow


_RETENTION = _first_stated(
    ("log.retention.ms", 1), ("log.retention.minutes", MS_PER_MINUTE), ("log.retention.hours", MS_PER_HOUR)
)


def _retention_ms(config: ServerConfig) -> int:
    value = _RETENTION(config)
    return NO_LIMIT if value < 0 else value


def _log_dirs(config: ServerConfig) -> list[str]:
    return as_list(config.stated_value("log.dirs")) or as_list(config.stated_value("log.dir"))


def _metadata_log_dir(config: ServerConfig) -> str:
    return str(config.stated_value("metadata.log.dir") or config.log_dirs[0])


def _advertised_listeners(config: ServerConfig) -> list[str]:
    stated = config.stated_value("advertised.listeners")
    return as_list(stated) if stated is not None else [str(listener) for listener in config.broker_listeners]


def _inter_broker_listener_name(config: ServerConfig) -> str:
    return str(config.stated_value("inter.broker.listener.name") or config["security.inter.broker.protocol"])


def _alter_log_dirs_threads(config: ServerConfig) -> int:
    return as_int(config.stated_value("num.replica.alter.log.dirs.threads") or len(config.log_dirs))


_FOLLOWERS: dict[str, Callable[[ServerConfig], ConfigValue]] = {
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


def cleaner_settings(config: ConfigReader) -> dict[str, Any]:
    """Return the cleaner's fields of kcli.log.managing.log_registry.LogManagerSettings."""
    return {
        "cleaner_threads": config.get_int("log.cleaner.threads"),
        "cleaner_dedupe_buffer_bytes": config.get_int("log.cleaner.dedupe.buffer.size"),
        "cleaner_io_buffer_bytes": config.get_int("log.cleaner.io.buffer.size"),
        "cleaner_load_factor": config.get_float("log.cleaner.io.buffer.load.factor"),
        "cleaner_max_bytes_per_second": config.get_float("log.cleaner.io.max.bytes.per.second"),
        "cleaner_backoff_ms": config.get_int("log.cleaner.backoff.ms"),
    }


def _as_java_file(path: str) -> str:
    """Return a path without repeated slashes and slashes at its end, as Kafka has it by java.io.File.

    The path of a partition's directory leads back to that of its log directory.
    """
    return re.sub("/{2,}", "/", path).rstrip("/") or path[:1]
