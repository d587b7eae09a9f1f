"""A broker's configuration for commands that run without a broker: server.properties, overridden by the metadata log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcli.commands.output import CannotRun, print_message

if TYPE_CHECKING:
    from kcli.inspect.node_defaults import DefaultsOf, NodeDefaults, NodeLayers
    from kcli.server.config.server_config import ServerConfig


def node_defaults(path: str | None) -> DefaultsOf:
    """Return a function from a node to its settings for all topics.

    `path` is a server.properties, or None. Raises CannotRun if it is not valid.
    """
    static = None if path is None else _load(path)

    def of(layers: NodeLayers) -> NodeDefaults:
        from kcli.inspect.node_defaults import kafkas_defaults

        # Most clusters have no dynamic broker configuration, and importing Kafka's configuration keys takes time.
        if static is None and not any(layers.brokers.values()):
            return kafkas_defaults(layers)
        return _defaults(static, layers)

    return of


def _load(path: str) -> ServerConfig:
    from kcli.server.config import ConfigError, load_config

    try:
        config = load_config(path, serving=False)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    for warning in config.warnings:
        print_message(warning)
    return config


def _defaults(static: ServerConfig | None, layers: NodeLayers) -> NodeDefaults:
    from kcli.inspect.node_defaults import NodeDefaults
    from kcli.server.config.dynamic_config import DynamicConfig
    from kcli.server.config.server_config import ServerConfig, cleaner_settings
    from kcli.server.config.topic_config import topic_defaults

    node_id = layers.node_id
    if static is not None and (static.text("node.id") or static.text("broker.id")):
        if node_id not in (None, static.node_id):
            where = static.where("node.id") or static.where("broker.id")
            raise ValueError(
                f"node.id is {static.node_id}{where}, and {node_id} in meta.properties of {layers.directory}: "
                f"that is the configuration of another node; name the one of this node"
            )
        node_id = static.node_id
    config = DynamicConfig(static or ServerConfig({}), lambda line: print_message(f"{layers.directory}: {line}"))
    config.node_id = -1 if node_id is None else node_id
    config.update(layers.brokers.get("", {}), layers.brokers.get(str(config.node_id), {}))
    cleaner = cleaner_settings(config)
    return NodeDefaults(topic_defaults(config), cleaner["cleaner_dedupe_buffer_bytes"], cleaner["cleaner_load_factor"])
