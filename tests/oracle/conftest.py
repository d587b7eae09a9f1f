"""Fixtures of the tests that the real Kafka judges."""

from __future__ import annotations

import pytest

from tests.conftest import missing
from tests.oracle.peer import Peer, PeerMissingError


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a module run in one process, so that one broker and one JVM serve them and nobody fights for a port."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.get_closest_marker("oracle"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def kafka_peer(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """The real Kafka of this session; the test is skipped, with the reason, where it cannot be asked."""
    try:
        return Peer(tmp_path_factory.mktemp("kafka-peer"))
    except PeerMissingError as error:
        missing(str(error))
