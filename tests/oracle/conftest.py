"""Fixtures of the tests that the real Kafka judges, and of those that a real Kafka and kcli both stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.commands.app import COMMANDS
from tests.conftest import missing
from tests.oracle.brokers import KcliBroker, new_broker
from tests.oracle.class_archive import class_archive
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
        peer = Peer(tmp_path_factory.mktemp("kafka-peer"))
    except PeerMissingError as error:
        missing(str(error))
    archive = class_archive(peer)
    if archive is not None:
        peer.use_class_archive(archive)
    return peer


@pytest.fixture(scope="session")
def kafka_4_4(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """Apache Kafka 4.4.0: its broker, StorageTool and Java clients; the other tools are those of 4.3.1."""
    try:
        return Peer(tmp_path_factory.mktemp("kafka-4.4"), "4.4.0", kafka_peer)
    except PeerMissingError as error:
        missing(str(error))


@pytest.fixture(params=["4.3.1", pytest.param("4.4.0", marks=pytest.mark.slow)])
def each_kafka(request: pytest.FixtureRequest) -> Peer:
    """Apache Kafka 4.3.1 and, in the slow tier, 4.4.0."""
    peer: Peer = request.getfixturevalue("kafka_peer" if request.param == "4.3.1" else "kafka_4_4")
    return peer


@pytest.fixture(scope="session")
def kcli_serves() -> None:
    """The test is skipped as long as kcli has no broker."""
    if "serve" not in COMMANDS:
        pytest.skip("kcli serve is not there yet")


class Served(NamedTuple):
    """A broker that answers: which one it is, where, and where its log directory lies."""

    kind: str
    bootstrap: str
    data: Path


@pytest.fixture(scope="module", params=["kcli", pytest.param("kafka", marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A new broker for the tests of a module, with the settings that its BROKER_SETTINGS lists: kcli, which counts.

    In the slow tier Apache Kafka too, which shows that what is asked of kcli is what Kafka does.
    """
    settings = getattr(request.module, "BROKER_SETTINGS", ())
    home = tmp_path_factory.mktemp(f"broker-{request.param}")
    if request.param == "kafka":
        with new_broker(request.getfixturevalue("kafka_peer"), home, *settings) as bootstrap:
            yield Served("kafka", bootstrap, home / "data")
    else:
        request.getfixturevalue("kcli_serves")
        with KcliBroker(home, *settings) as broker:
            yield Served("kcli", broker.bootstrap, broker.data)
