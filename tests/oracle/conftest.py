"""Fixtures of the tests that the real Kafka judges."""

from __future__ import annotations

import pytest

from tests.oracle.peer import Peer, PeerMissingError


@pytest.fixture(scope="session")
def kafka_peer(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """The real Kafka of this session; the test is skipped, with the reason, where it cannot be asked."""
    try:
        return Peer(tmp_path_factory.mktemp("kafka-peer"))
    except PeerMissingError as missing:
        pytest.skip(str(missing))
