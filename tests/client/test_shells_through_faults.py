"""Protects: over real sockets that are cut, slow and silent at random, no record is lost, none that an idempotent producer
writes is there twice, transactions are whole, commits remain, and each call ends.

The broker is `kcli serve` behind a proxy (tests.client.faulty_proxy). The tests of the cores, tests/client/*/test_*_faults.py,
have a fault at each request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kcli.client import (
    Admin,
    AlterConfigOp,
    AlterOperation,
    AsyncConsumer,
    AsyncProducer,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    ShareConsumer,
)
from kcli.client.admin.operation import value_of
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError, TransactionAbortableError
from kcli.client.shell.client_builder import Setting
from tests.client.faulty_proxy import FaultyProxy
from tests.server.live import LiveServer

pytestmark = [pytest.mark.ci]
SHARE = 0.08  # of the frames
EACH = 400  # records of a partition
PATIENCE_S = 120.0
SETTINGS: dict[str, Setting] = {
    "request.timeout.ms": 1000,
    "socket.connection.setup.timeout.ms": 1000,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.max.ms": 200,
}
MEMBER: dict[str, Setting] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 4000,
    "heartbeat.interval.ms": 300,
    "max.poll.interval.ms": 6000,
    "max.poll.records": 50,
    "max.partition.fetch.bytes": 250,  # many requests
}


BROKER_SETTINGS = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.heartbeat.interval.ms=300",
    "group.consumer.min.heartbeat.interval.ms=300",
    "group.consumer.session.timeout.ms=4000",
    "group.consumer.min.session.timeout.ms=4000",
    "group.share.heartbeat.interval.ms=500",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.min.record.lock.duration.ms=1000",
    "group.share.record.lock.duration.ms=3000",
)


class Cluster(NamedTuple):
    """A broker behind a proxy; `faulty` are the settings for clients."""

    proxy: FaultyProxy
    faulty: dict[str, Setting]

    def values(self, topic: str, **settings: Setting) -> dict[int, list[bytes]]:
        """Read a topic of two partitions to its end, without faults."""
        self.proxy.share = 0
        words = {name.replace("_", "."): value for name, value in settings.items()}
        found: dict[int, list[bytes]] = {0: [], 1: []}
        with Consumer({**self.faulty, "auto.offset.reset": "earliest", **words}) as consumer:
            both = [(topic, 0), (topic, 1)]
            consumer.assign(both)
            ends = consumer.end_offsets(both)
            while any(consumer.position(one) < ends[one] for one in both):
                for record in consumer.poll(5.0):
                    found[record.partition].append(record.value)
        return found


def cluster_behind(proxy: FaultyProxy) -> Cluster:
    return Cluster(proxy, {"bootstrap.servers": f"127.0.0.1:{proxy.port}", **SETTINGS})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with FaultyProxy(random.Random(7)) as proxy:
        settings = (f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}", *BROKER_SETTINGS)
        with LiveServer(tmp_path_factory.mktemp("faults") / "home", *settings) as server:
            proxy.target = lambda: server.port
            yield cluster_behind(proxy)


@pytest.fixture
def cluster(running: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with a topic of two partitions that has the name of the test."""
    running.proxy.share = 0
    with Admin(running.faulty) as admin:
        value_of(admin.create_topics([NewTopic(name_of(request), 2, 1)])[name_of(request)])
    running.proxy.counts.clear()
    running.proxy.share = SHARE
    yield running
    running.proxy.share = 0


def name_of(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return name_of(request)


def numbers(count: int = EACH) -> dict[int, list[bytes]]:
    return {partition: [b"%d" % number for number in range(count)] for partition in range(2)}


def fill(cluster: Cluster, topic: str) -> None:
    """Write numbers to both partitions, without faults."""
    cluster.proxy.share = 0
    with Producer({**cluster.faulty, "batch.size": 200}) as producer:
        for number in range(EACH):
            for partition in range(2):
                producer.send(topic, b"%d" % number, partition=partition)
    cluster.proxy.share = SHARE


def test_a_blocking_producer(cluster: Cluster, topic: str) -> None:
    errors: list[Any] = []
    with Producer({**cluster.faulty, "batch.size": 200, "linger.ms": 0}) as producer:
        for number in range(EACH):
            for partition in range(2):
                producer.send(
                    topic, b"%d" % number, partition=partition, on_delivery=lambda metadata, error: errors.append(error)
                )
        producer.flush(PATIENCE_S)
    assert errors == [None] * 2 * EACH
    assert cluster.proxy.counts
    assert cluster.values(topic) == numbers()


def test_an_asyncio_producer(cluster: Cluster, topic: str) -> None:
    errors: list[Any] = []

    async def run() -> None:
        async with AsyncProducer({**cluster.faulty, "batch.size": 200, "linger.ms": 0}) as producer:
            for number in range(EACH):
                for partition in range(2):
                    await producer.send(
                        topic, b"%d" % number, partition=partition, on_delivery=lambda metadata, error: errors.append(error)
                    )
            await producer.flush()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert errors == [None] * 2 * EACH and cluster.proxy.counts
    assert cluster.values(topic) == numbers()


def test_a_transactional_producer(cluster: Cluster, topic: str) -> None:
    """A transaction that fails for a time is aborted, and tried again, as Kafka's documentation says."""
    with Producer({**cluster.faulty, "transactional.id": topic, "max.block.ms": 30_000, "linger.ms": 0}) as producer:
        producer.init_transactions()
        for number in range(30):
            end = time.monotonic() + PATIENCE_S
            while not has_committed(producer, topic, number):
                assert time.monotonic() < end
    assert cluster.proxy.counts
    assert cluster.values(topic, isolation_level="read_committed") == numbers(30)


def has_committed(producer: Producer, topic: str, number: int) -> bool:
    producer.begin_transaction()
    try:
        for partition in range(2):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.commit_transaction()
    except TransactionAbortableError:
        producer.abort_transaction()
        return False
    return True


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_blocking_consumer(cluster: Cluster, topic: str, protocol: str) -> None:
    """Two members one after the other: the second one goes on after the last commit that succeeded."""
    fill(cluster, topic)
    settings = {**cluster.faulty, **MEMBER, "group.id": topic, "group.protocol": protocol}
    if protocol == "consumer":
        settings = {
            name: value for name, value in settings.items() if name not in ("session.timeout.ms", "heartbeat.interval.ms")
        }
    read: dict[int, list[bytes]] = {0: [], 1: []}
    committed: dict[int, int] = {0: 0, 1: 0}
    end = time.monotonic() + PATIENCE_S
    for share_of_all in (0.5, 1.0):
        with Consumer(settings) as consumer:
            consumer.subscribe([topic])
            seen: dict[int, int] = {}
            while sum(map(len, read.values())) < 2 * EACH * share_of_all:
                assert time.monotonic() < end, {partition: len(found) for partition, found in read.items()}
                for record in consumer.poll(1.0):
                    before = seen.setdefault(record.partition, record.offset)
                    assert before == record.offset and record.offset >= committed[record.partition]
                    seen[record.partition] += 1
                    del read[record.partition][record.offset :]  # it was read before, and not committed
                    read[record.partition].append(record.value)
                try:
                    consumer.commit_sync()
                    committed |= seen
                except ClientError as error:
                    assert error.is_retriable or "CommitFailed" in type(error).__name__, error
                    seen.clear()  # a rebalance may take the partitions away, and bring them back
    assert read == numbers()
    assert cluster.proxy.counts
    cluster.proxy.share = 0
    with Consumer(settings) as consumer:
        found = consumer.committed([(topic, 0), (topic, 1)])
    assert all((one.offset if one else 0) >= committed[partition.partition] for partition, one in found.items())


def test_an_asyncio_consumer(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)

    async def run() -> dict[int, list[bytes]]:
        read: dict[int, list[bytes]] = {0: [], 1: []}
        async with AsyncConsumer({**cluster.faulty, **MEMBER}) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            while sum(map(len, read.values())) < 2 * EACH:
                for record in await consumer.poll(1.0):
                    assert record.offset == len(read[record.partition])
                    read[record.partition].append(record.value)
        return read

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == numbers()
    assert cluster.proxy.counts


def test_a_share_consumer(cluster: Cluster, topic: str) -> None:
    """Each record is accepted; what was accepted with success does not come again."""
    cluster.proxy.share = 0
    with Admin(cluster.faulty) as admin:
        start_at_the_beginning(admin, topic)
    fill(cluster, topic)
    accepted: set[tuple[int, bytes]] = set()
    unsure: set[tuple[int, bytes]] = set()
    settings = {**cluster.faulty, "group.id": topic, "max.poll.records": 60, "share.acquire.mode": "record_limit"}
    end = time.monotonic() + PATIENCE_S
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        while len(accepted | unsure) < 2 * EACH:
            assert time.monotonic() < end, (len(accepted), len(unsure))
            found = {(one.partition, one.value) for one in consumer.poll(1.0)}
            assert not found & accepted
            errors = consumer.commit_sync()
            for partition, value in found:
                error = errors.get((topic, partition))
                if error is None:
                    accepted.add((partition, value))
                elif not isinstance(error, KafkaError):
                    unsure.add((partition, value))
    assert cluster.proxy.counts


def start_at_the_beginning(admin: Admin, group: str) -> None:
    change = AlterConfigOp("share.auto.offset.reset", AlterOperation.SET, "earliest")
    for outcome in admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, group): [change]}).values():
        value_of(outcome)


def test_an_administrator(cluster: Cluster, topic: str) -> None:
    """An operation that was executed twice says so; none lasts longer than default.api.timeout.ms."""
    with Admin({**cluster.faulty, "default.api.timeout.ms": 20_000}) as admin:
        for number in range(25):
            name = f"{topic}-{number}"
            begin = time.monotonic()
            made = admin.create_topics([NewTopic(name, 2, 1)])[name]
            assert not isinstance(made, ClientError) or (isinstance(made, KafkaError) and made.name == "TOPIC_ALREADY_EXISTS")
            end = time.monotonic() + PATIENCE_S
            while name not in admin.list_topics() or isinstance(admin.describe_topics([name])[name], ClientError):
                assert time.monotonic() < end  # the metadata of a broker may be a moment behind those of the controller
            assert len(value_of(admin.describe_topics([name])[name]).partitions) == 2
            assert value_of(admin.list_offsets({(name, 0): -1})[name, 0]).offset == 0
            gone = admin.delete_topics([name])[name]
            assert gone is None or (isinstance(gone, KafkaError) and gone.name == "UNKNOWN_TOPIC_OR_PARTITION")
            assert time.monotonic() - begin < 100
        assert topic in admin.list_topics()
    assert cluster.proxy.counts


def test_calls_end_in_their_time_when_nothing_is_answered(cluster: Cluster, topic: str) -> None:
    """With Kafka's error."""
    cluster.proxy.share = 1.0
    begin = time.monotonic()
    limited = {**cluster.faulty, "default.api.timeout.ms": 2000}
    waiting = {**cluster.faulty, "max.block.ms": 2000, "delivery.timeout.ms": 3000}
    with Producer(waiting) as producer, pytest.raises(KafkaTimeoutError):
        producer.partitions_for(topic)
    with Admin(limited) as admin, pytest.raises(KafkaTimeoutError):
        admin.list_topics()
    with Consumer({**limited, **MEMBER, "group.id": topic}) as consumer, pytest.raises(KafkaTimeoutError):
        consumer.committed([(topic, 0)])
    assert time.monotonic() - begin < 30
