"""Protects every answer about transactions: it is what Apache Kafka answered, and wrong requests change nothing.

The fixture holds Kafka's answers to the exchanges of tests/oracle/transaction_exchanges.py;
tests/oracle/test_transaction_answers.py asks Kafka anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.oracle.transaction_answers import SETTINGS, differences, load_fixture
from tests.oracle.transaction_exchanges import EXCHANGES, LEVELS, Answers, Exchange, hold, prepare, set_level
from tests.server.apis.asking import ask
from tests.server.whole_node import WholeNode


@pytest.fixture(scope="module")
def fixture() -> dict[str, Answers]:
    return load_fixture()


@pytest.fixture(scope="module", params=LEVELS, ids="transaction.version {}".format)
def level(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def node(level: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    made = WholeNode(tmp_path_factory.mktemp("transactions") / "data", *SETTINGS)
    prepare(partial(ask, made), partial(made.advance, 5))
    set_level(partial(ask, made), level)
    yield made
    made.stop()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.__name__)
def test_answers(node: WholeNode, level: int, fixture: dict[str, Answers], exchange: Callable[[Exchange], None]) -> None:
    mine = hold(exchange, level, partial(ask, node), partial(node.advance, 5))
    assert differences(mine, {name: fixture[name] for name in mine}) == []


def test_the_fixture_is_complete(fixture: dict[str, Answers]) -> None:
    kinds = [(level, kind) for level in LEVELS for kind in ("new", "old") if level or kind == "old"]
    names = {f"{exchange.__name__}-{level}.{kind}" for exchange in EXCHANGES for level, kind in kinds}
    assert set(fixture) == names
    assert sum(map(len, fixture.values())) > 1_000
