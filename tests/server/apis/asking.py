"""Requests to a whole node, and authorizers that refuse what a test says."""

from __future__ import annotations

from typing import Any

from kcli.protocol.apis import API_KEYS, UPDATE_FEATURES
from kcli.protocol.message import Message
from kcli.server.events import Connection
from kcli.server.features import LATEST_METADATA_VERSION, is_4_4
from tests.server.whole_node import WholeNode


def struct(key: int, struct_name: str, /, **fields: Any) -> Message:
    """A struct of a request."""
    return API_KEYS[key].request.classes[struct_name](**fields)


def ask(node: WholeNode, key: int, version: int, /, connection: Connection | None = None, **fields: Any) -> Message:
    """The answer to a request."""
    pending = node.send(key, version, API_KEYS[key].request.new(**fields), connection)
    node.until(lambda: pending.answer is not None)
    return pending.result()


class Refusing:
    """An authorizer that refuses these (operation, resource type, name)s and allows the rest; `asked` is what it was asked."""

    def __init__(self, *refused: tuple[str, str, str]) -> None:
        self.refused = set(refused)
        self.asked: set[tuple[str, str, str]] = set()

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        self.asked.add((operation, resource_type, resource_name))
        return (operation, resource_type, resource_name) not in self.refused

    def is_allowed_by_type(self, connection: Connection, operation: str, resource_type: str) -> bool:
        self.asked.add((operation, resource_type, "?"))
        return (operation, resource_type, "?") not in self.refused


def upgrade(node: WholeNode) -> None:
    """Give the cluster of a node the features of Kafka 4.4."""
    updates = [
        struct(UPDATE_FEATURES, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=1)
        for name, level in (("metadata.version", LATEST_METADATA_VERSION), ("share.version", 2))
    ]
    assert not ask(node, UPDATE_FEATURES, 2, timeout_ms=30_000, feature_updates=updates).error_code
    node.until(lambda: is_4_4(node.broker.metadata.image.features))
