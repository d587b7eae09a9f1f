"""Protects requests to other nodes against Apache Kafka: versions are negotiated with its broker and its controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.network.events import PeerAddress
from kcli.network.peer_request import PeerFailure
from kcli.protocol.apis import API_KEYS, API_VERSIONS, DESCRIBE_QUORUM, METADATA
from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer
from tests.server.shell.driven_node import DrivenNode, run

pytestmark = [pytest.mark.oracle, pytest.mark.ci]


def test_a_node_asks_apache_kafka(kafka_peer: Peer, tmp_path: Path) -> None:
    """After a stop of the broker what is sent is answered as disconnected; no API is asked in a version that Kafka lacks."""
    home = tmp_path / "kafka"
    home.mkdir()

    async def test() -> None:
        node = await DrivenNode(tmp_path / "kcli", 7).ready()
        with new_broker(kafka_peer, home) as bootstrap:
            host, _, port = bootstrap.partition(":")
            broker, controller = PeerAddress(host, int(port)), PeerAddress(host, int(port) + 1)
            software = {"client_software_name": "test", "client_software_version": "1"}
            offered = await node.ask(broker, "PLAINTEXT", API_VERSIONS, **software)
            assert not isinstance(offered, PeerFailure)
            versions = {api.api_key: (api.min_version, api.max_version) for api in offered.api_keys}
            assert versions[METADATA] == (API_KEYS[METADATA].lowest_version, API_KEYS[METADATA].highest_version)
            metadata = await node.ask(broker, "PLAINTEXT", METADATA, topics=[])
            assert not isinstance(metadata, PeerFailure)
            assert [(found.host, found.port) for found in metadata.brokers] == [broker]
            quorum = await node.ask(controller, "CONTROLLER", DESCRIBE_QUORUM)
            assert not isinstance(quorum, PeerFailure) and quorum.error_code == 0
            assert await node.ask(controller, "CONTROLLER", METADATA) is PeerFailure.UNSUPPORTED_VERSION
        assert await node.ask(broker, "PLAINTEXT", METADATA, topics=[]) is PeerFailure.DISCONNECTED
        node.kill()

    run(test)
