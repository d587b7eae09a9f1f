"""What a node's configuration sets for all topics. The caller passes a function for it: configurations are in a higher package.

    precedence, the highest first       source
    ----------------------------------  --------------------------------------------------------------------------------
    the command's options               the command line
    the topic's own configuration       the metadata log
    the node's dynamic configuration    the metadata log (ConfigRecords of BROKER, its id), the id from meta.properties
    the cluster's                       the metadata log (BROKER, "")
    the node's static configuration     server.properties, if it is given
    Kafka's defaults                    kcli.log.log_config

`NodeLayers` is what a log directory contains of it, `NodeDefaults` the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcli.log.cleaner.offset_map import LOAD_FACTOR

# Kafka's log.cleaner.dedupe.buffer.size.
MEMORY_BYTES = 128 * 1024 * 1024


class NodeLayers(NamedTuple):
    """A log directory, the id of its node (None: unknown), and the dynamic configurations of brokers by id as text.

    Those of the cluster have the id "".
    """

    directory: str
    node_id: int | None
    brokers: Mapping[str, Mapping[str, str]]


class NodeDefaults(NamedTuple):
    """The settings of topics that do not set them, by key, and those of the cleaner's memory."""

    topic_config: Mapping[str, str]
    memory_bytes: int = MEMORY_BYTES
    load_factor: float = LOAD_FACTOR


# Raises ValueError with a sentence if the configuration is that of another node.
DefaultsOf = Callable[[NodeLayers], NodeDefaults]


def kafkas_defaults(layers: NodeLayers) -> NodeDefaults:
    """Return the defaults of a node without a configuration."""
    return NodeDefaults({})
