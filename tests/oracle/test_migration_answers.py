"""Protects the fixture of tests/server/coordinator/test_migration_answers.py: Apache Kafka answers today as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.migration_answers import as_json, ask_kafka, load_fixture
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]


def test_kafka_answers_as_in_the_fixture(kafka_peer: Peer, tmp_path: Path) -> None:
    """All exchanges with a new Kafka."""
    fixture = load_fixture()
    for name, found in ask_kafka(kafka_peer, tmp_path / "kafka").items():
        assert as_json(found) == fixture[name], name
