"""Protects the clients of a cluster of three nodes that are brokers and controllers: those of kcli, librdkafka and kafka-python
send to and read from partitions on all nodes while the leading controller is killed and stopped, and a broker is restarted.

Each record that was acknowledged is read, none that was not sent, and no client sees an election of controllers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.client import Admin, Consumer, NewTopic, Producer
from tests.server.live import PATIENCE_S, wait_for
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of

confluent = pytest.importorskip("confluent_kafka")
kafka_python = pytest.importorskip("kafka")

pytestmark = pytest.mark.slow

TOPIC, PARTITIONS = "spread", 6
PAUSE_S = 0.02  # between two records of a producer
DELIVERY_MS = 120_000
# Records of each producer before, between and after the events.
MORE = 60


class Clients:
    """The clients; `sent` and `acked` have the values of each producer, `read` those of each consumer."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.acked: dict[str, set[str]] = {}
        self.read: dict[str, list[str]] = {}
        self.sent: set[str] = set()
        self.errors: list[str] = []
        self.is_producing = threading.Event()
        self.is_reading = threading.Event()
        self.is_producing.set()
        self.is_reading.set()
        self._threads: list[threading.Thread] = []

    def run(self, what: Callable[[], None]) -> None:
        def body() -> None:
            try:
                what()
            except Exception as error:
                self.errors.append(f"{what.__name__}: {error!r}")

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _produce(self, name: str, send: Callable[[bytes, int, Callable[[object], None]], object]) -> None:
        acked, number, pause = self.acked.setdefault(name, set()), 0, threading.Event()
        while self.is_producing.is_set():
            value = f"{name}-{number}"

            def done(error: object, value: str = value) -> None:
                if error is None:
                    acked.add(value)
                else:
                    self.errors.append(f"{value}: {error}")

            self.sent.add(value)
            send(value.encode(), number % PARTITIONS, done)
            number += 1
            pause.wait(PAUSE_S)

    def produce_by_kcli(self) -> None:
        with Producer({"bootstrap.servers": self.bootstrap, "delivery.timeout.ms": DELIVERY_MS}) as producer:
            self._produce(
                "kcli",
                lambda value, partition, done: producer.send(
                    TOPIC, value, partition=partition, on_delivery=lambda _, error: done(error)
                ),
            )
            producer.flush(PATIENCE_S)

    def produce_by_librdkafka(self) -> None:
        producer = confluent.Producer({"bootstrap.servers": self.bootstrap, "message.timeout.ms": DELIVERY_MS})

        def send(value: bytes, partition: int, done: Callable[[object], None]) -> None:
            producer.produce(TOPIC, value, partition=partition, callback=lambda error, _: done(error))
            producer.poll(0)

        self._produce("librdkafka", send)
        assert producer.flush(PATIENCE_S) == 0

    def produce_by_kafka_python(self) -> None:
        producer = kafka_python.KafkaProducer(bootstrap_servers=self.bootstrap.split(","), delivery_timeout_ms=DELIVERY_MS)

        def send(value: bytes, partition: int, done: Callable[[object], None]) -> None:
            future = producer.send(TOPIC, value, partition=partition)
            future.add_callback(lambda _: done(None))
            future.add_errback(done)

        self._produce("kafka-python", send)
        producer.flush(PATIENCE_S)
        producer.close(PATIENCE_S)

    def read_by_kcli(self) -> None:
        values = self.read.setdefault("kcli", [])
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "kcli", "auto.offset.reset": "earliest"}
        with Consumer(settings) as consumer:
            consumer.subscribe([TOPIC])
            while self.is_reading.is_set():
                values += [record.value.decode() for record in consumer.poll(0.1) if record.value is not None]

    def read_by_librdkafka(self) -> None:
        values = self.read.setdefault("librdkafka", [])
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "librdkafka", "auto.offset.reset": "earliest"}
        consumer = confluent.Consumer(settings)
        consumer.subscribe([TOPIC])
        while self.is_reading.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
        consumer.close()

    def administer(self) -> None:
        """Create topics: each request is forwarded to the leading controller."""
        number, pause = 0, threading.Event()
        with Admin({"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": DELIVERY_MS}) as admin:
            while self.is_producing.is_set():
                (created,) = admin.create_topics([NewTopic(f"more-{number}", 2)]).values()
                if isinstance(created, Exception):
                    self.errors.append(f"more-{number}: {created!r}")
                number += 1
                pause.wait(10 * PAUSE_S)

    def let_send(self) -> None:
        """Wait until each producer has sent more records, all acknowledged up to now."""
        goal = {name: len(acked) + MORE for name, acked in self.acked.items()}
        wait_for(lambda: all(len(self.acked[name]) >= count for name, count in goal.items()))


def test_clients_of_a_cluster_whose_nodes_are_killed_and_restarted(tmp_path: Path) -> None:
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *BROKER, "broker.session.timeout.ms=3000", broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    clients = Clients(",".join(one.bootstrap for one in nodes))
    with Quorum([node.format_by_kcli() for node in nodes]) as quorum, Admin({"bootstrap.servers": clients.bootstrap}) as admin:
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])

        def is_spread() -> bool:
            return set(leaders_of(admin, TOPIC).values()) == {1, 2, 3}

        wait_for(is_spread)
        for client in (clients.produce_by_kcli, clients.produce_by_librdkafka, clients.produce_by_kafka_python):
            clients.run(client)
        for client in (clients.read_by_kcli, clients.read_by_librdkafka, clients.administer):
            clients.run(client)
        wait_for(lambda: len(clients.acked) == 3)
        clients.let_send()
        for how in (signal.SIGKILL, signal.SIGTERM):
            leader = quorum.elected()
            epoch = leader.election.leader_epoch
            leader.end(how)
            quorum.elected(epoch)
            leader.start()
            wait_for(is_spread)
            clients.let_send()
        leader = quorum.elected()
        broker = next(node for node in nodes if node is not leader)
        broker.end(signal.SIGTERM)
        broker.start()
        wait_for(is_spread)
        clients.let_send()
        clients.is_producing.clear()
        acked = set[str]()
        wait_for(lambda: sum(map(len, clients.acked.values())) == len(clients.sent))
        acked.update(*clients.acked.values())
        wait_for(lambda: all(acked <= set(values) for values in clients.read.values()))
        clients.is_reading.clear()
        clients.join()
    assert clients.errors == []
    assert all(set(values) == acked for values in clients.read.values())
    assert faults(nodes) == []
