"""Kafka's configuration: `load_config` reads server.properties and overrides into a ServerConfig, or raises ConfigError."""

from kcli.server.config.loading import load_config
from kcli.server.config.server_config import ServerConfig
from kcli.server.config.values import ConfigError

__all__ = ["ConfigError", "ServerConfig", "load_config"]
