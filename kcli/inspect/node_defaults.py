"""What a node's configuration says for all topics: asked of whoever knows configurations, which stand above this room.

    stands nearest                      from
    ----------------------------------  --------------------------------------------------------------------------------
    the command's options               its own
    the topic's own configuration       the metadata log
    the node's dynamic configuration    the metadata log (ConfigRecords of BROKER, its id), the id from meta.properties
    the cluster's                       the metadata log (BROKER, "")
    the node's static configuration     server.properties, where it is given
    Kafka's defaults                    kcli.log.log_config

`NodeLayers` is what a log directory knows of it, `NodeDefaults` what comes of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcli.log.cleaner.offset_map import LOAD_FACTOR

# Kafka's log.cleaner.dedupe.buffer.size.
MEMORY_BYTES = 128 * 1024 * 1024


class NodeLayers(NamedTuple):
    """A log directory, the id of the node it is of (None: not told), and brokers' dynamic configurations by id as text.

    Those of the cluster have the id "".
    """

    directory: str
    node_id: int | None
    brokers: Mapping[str, Mapping[str, str]]


class NodeDefaults(NamedTuple):
    """What holds for topics without a setting of their own, texts by topics' keys, and for the cleaner's memory."""

    topic_config: Mapping[str, str]
    memory_bytes: int = MEMORY_BYTES
    load_factor: float = LOAD_FACTOR


# Raises ValueError with a sentence where the configuration is not that node's.
DefaultsOf = Callable[[NodeLayers], NodeDefaults]


def kafkas_defaults(layers: NodeLayers) -> NodeDefaults:
    """Those of a node that has no configuration."""
    return NodeDefaults({})
