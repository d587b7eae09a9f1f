"""Kafka's configuration: `load_config` makes a ServerConfig of server.properties and overrides, or raises ConfigError."""

from kcli.server.config.loading import load_config
from kcli.server.config.server_config import ServerConfig
from kcli.server.config.values import ConfigError

__all__ = ["ConfigError", "ServerConfig", "load_config"]
