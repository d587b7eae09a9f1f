"""Protects kcli's client in front of Apache Kafka when connections are cut, slow and silent at random.

The tests are those of tests/client/test_shells_through_faults.py, whose broker is kcli.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from tests.client.faulty_proxy import FaultyProxy
from tests.client.test_shells_through_faults import (
    BROKER_SETTINGS,
    Cluster,
    cluster,
    cluster_behind,
    test_a_blocking_consumer,
    test_a_blocking_producer,
    test_a_share_consumer,
    test_a_transactional_producer,
    test_an_administrator,
    test_an_asyncio_consumer,
    test_an_asyncio_producer,
    test_calls_end_in_their_time_when_nothing_is_answered,
    topic,
)
from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

__all__ = [
    "cluster",
    "test_a_blocking_consumer",
    "test_a_blocking_producer",
    "test_a_share_consumer",
    "test_a_transactional_producer",
    "test_an_administrator",
    "test_an_asyncio_consumer",
    "test_an_asyncio_producer",
    "test_calls_end_in_their_time_when_nothing_is_answered",
    "topic",
]


# The broker speaks to itself, for transactions and share groups, without the proxy.
PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{{port}},CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=CLIENTS://127.0.0.1:{proxy},PLAINTEXT://127.0.0.1:{{port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{{controller}}
log.dirs={{data}}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


@pytest.fixture(scope="module")
def running(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        clients: int = one.getsockname()[1]
    with FaultyProxy(random.Random(7)) as proxy:
        proxy.target = lambda: clients
        properties = PROPERTIES.format(clients=clients, proxy=proxy.port) + "\n".join(BROKER_SETTINGS)
        home = tmp_path_factory.mktemp("faults")
        with new_broker(kafka_peer, home, properties=properties):
            yield cluster_behind(proxy)
