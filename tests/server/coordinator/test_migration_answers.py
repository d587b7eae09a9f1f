"""Protects the migration of groups between the protocols: the answers and the records are those of Apache Kafka.

The fixture has Kafka's answers to the exchanges of tests/oracle/migration_exchanges.py; tests/oracle/test_migration_answers.py
asks Kafka anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from tests.oracle.migration_answers import as_json, load_fixture
from tests.oracle.migration_exchanges import EXCHANGES, SETTINGS, Answers, Exchange, hold, prepare
from tests.server.apis.asking import ask
from tests.server.whole_node import WholeNode


class NodeAsker:
    """A whole node in virtual time."""

    def __init__(self, node: WholeNode) -> None:
        self.node = node

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        return ask(self.node, key, version, **fields)

    def later(self, key: int, version: int, /, **fields: Any) -> Callable[[], Message]:
        pending = self.node.send(key, version, API_KEYS[key].request.new(**fields))

        def wait() -> Message:
            self.node.until(lambda: pending.answer is not None)
            return pending.result()

        return wait

    def pause(self) -> None:
        self.node.advance(10)


@pytest.fixture(scope="module")
def fixture() -> dict[str, Answers]:
    return load_fixture()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeAsker, dict[str, bytes]]]:
    made = WholeNode(tmp_path_factory.mktemp("migration") / "data", *SETTINGS)
    asker = NodeAsker(made)
    yield asker, prepare(asker)
    made.stop()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.__name__)
def test_answers(
    node: tuple[NodeAsker, dict[str, bytes]], fixture: dict[str, Answers], exchange: Callable[[Exchange], None]
) -> None:
    """One exchange, step by step."""
    found = as_json(hold(exchange, *node))
    expected = fixture[exchange.__name__]
    for mine, kafkas in zip(found, expected, strict=False):
        assert mine == kafkas
    assert len(found) == len(expected)
