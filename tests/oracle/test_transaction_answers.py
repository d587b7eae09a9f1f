"""Protects the answers about transactions against Apache Kafka's: the exchanges of the fixture, held with both brokers live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.peer import Peer
from tests.oracle.raw_requests import running_kcli
from tests.oracle.transaction_answers import SETTINGS, ask_broker, ask_kafka, differences, load_fixture

pytestmark = pytest.mark.oracle


@pytest.mark.slow
def test_kafka_still_answers_the_same(kafka_peer: Peer, tmp_path: Path) -> None:
    assert differences(load_fixture(), ask_kafka(kafka_peer, tmp_path / "kafka")) == []


@pytest.mark.ci
def test_a_kcli_that_serves_answers_the_same(tmp_path: Path) -> None:
    """Through its socket, with a clock: the tests of tests/server hold the same exchanges without both."""
    with running_kcli(tmp_path / "kcli", *SETTINGS) as address:
        assert differences(ask_broker(address), load_fixture()) == []
