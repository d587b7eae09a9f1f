"""Requests to a whole node, and authorizers that refuse what a test says."""

from __future__ import annotations

from typing import Any

from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.events import Connection
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
