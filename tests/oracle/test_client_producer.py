"""Protects: what kcli's producer writes to a broker is what other clients read, with its transactions, and killed brokers.

The broker is kcli; in the slow tier it is Apache Kafka. The readers are librdkafka and kafka-python.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kcli.client import AsyncProducer, Producer
from kcli.client.cluster import Cluster
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    SerializationError,
    TransactionAbortableError,
)
from kcli.client.producer.producer import Record
from kcli.client.producer.producer_batch import RecordMetadata
from kcli.client.value_checks import OffsetAndMetadata
from kcli.protocol import error_codes
from tests.oracle.brokers import KcliBroker
from tests.oracle.conftest import Served

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

PATIENCE_S = 30
TIMESTAMP = 1_700_000_000_000


def create(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=configs)]).values():
        made.result(PATIENCE_S)
    return name


@pytest.fixture
def topic(served: Served) -> str:
    return create(served.bootstrap, f"t-{uuid.uuid4()}")


def read(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[Message]:
    """All records of a partition, by librdkafka."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "isolation.level": isolation}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            break
        found.append(message)
    consumer.close()
    return found


def settings(served: Served, **others: Any) -> dict[str, Any]:
    return {"bootstrap.servers": served.bootstrap, **{name.replace("_", "."): value for name, value in others.items()}}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_other_clients_read_the_records(served: Served, topic: str, codec: str) -> None:
    results: list[RecordMetadata] = []
    with Producer(settings(served, compression_type=codec)) as producer:
        for number in range(500):
            producer.send(
                topic,
                b"value %d " % number * 10 if number % 7 else None,
                b"key %d" % number if number % 3 else None,
                headers=[("name", b"%d" % number), (b"null", None)] if number % 2 else (),
                timestamp=TIMESTAMP + number,
                on_delivery=lambda found, error: results.append(error or found),
            )
    found = read(served.bootstrap, topic)
    assert [one.value() for one in found] == [b"value %d " % one * 10 if one % 7 else None for one in range(500)]
    assert [one.key() for one in found] == [b"key %d" % one if one % 3 else None for one in range(500)]
    assert [one.headers() for one in found] == [
        [("name", b"%d" % one), ("null", None)] if one % 2 else None for one in range(500)
    ]
    assert [one.timestamp() for one in found] == [(TIMESTAMP_CREATE_TIME, TIMESTAMP + one) for one in range(500)]
    assert [one.offset for one in results] == list(range(500))


def test_records_of_an_asynchronous_producer(served: Served, topic: str) -> None:
    async def run() -> None:
        async with AsyncProducer(settings(served), value_serializer="string", key_serializer="long") as producer:
            first = await producer.send_and_wait(topic, "first", 1)
            assert (first.offset, first.partition) == (0, 0)
            await asyncio.gather(*(producer.send(topic, f"{number}", number) for number in range(100)))
            await producer.flush()
            assert producer.metrics()["record-send-total"] == 101

    asyncio.run(run())
    found = read(served.bootstrap, topic)
    assert sorted((one.value(), one.key()) for one in found[1:]) == sorted(
        (b"%d" % number, number.to_bytes(8, "big")) for number in range(100)
    )


def test_serializers_interceptors_and_partitioners(served: Served) -> None:
    name = create(served.bootstrap, f"t-{uuid.uuid4()}", 3)
    seen: list[Any] = []

    class Upper:
        def on_send(self, record: Record) -> Record:
            return record._replace(value=(record.value or b"").upper())

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            seen.append(metadata or error)

    def last(topic: str, key: bytes | None, value: bytes | None, cluster: Cluster) -> int:
        return len(cluster.partitions_for_topic(topic)) - 1

    with Producer(settings(served), value_serializer=str.encode, partitioner=last, interceptors=[Upper()]) as producer:
        producer.send(name, "text")
        with pytest.raises(SerializationError):
            producer.send(name, 7)
        producer.send(name, "zero", partition=0)
    assert [one.value() for one in read(served.bootstrap, name, 2)] == [b"TEXT"]
    assert [one.value() for one in read(served.bootstrap, name, 0)] == [b"ZERO"]
    assert len(seen) == 2


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(served: Served, topic: str, acks: str) -> None:
    with Producer(settings(served, acks=acks)) as producer:
        found = producer.send_and_wait(topic, b"a")
        assert found.offset == (-1 if acks == "0" else 0)
    assert [one.value() for one in read(served.bootstrap, topic)] == [b"a"]


def test_threads_share_a_producer(served: Served, topic: str) -> None:
    with Producer(settings(served, buffer_memory=65536, batch_size=1000)) as producer:

        def send(name: int) -> None:
            for number in range(300):
                producer.send(topic, b"%d-%04d" % (name, number) + bytes(50))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [one.value() for one in read(served.bootstrap, topic)]
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d-" % name)]
        assert own == [b"%d-%04d" % (name, number) + bytes(50) for number in range(300)]


def test_transactions_as_kafka_python_reads_them(served: Served, topic: str) -> None:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    group = GroupMetadata(f"g-{topic}")
    expected = []
    with Producer(settings(served, transactional_id=topic, batch_size=200)) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            values = [b"%d-%d" % (number, index) for index in range(20)]
            for value in values:
                producer.send(topic, value)
            producer.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(number, metadata="m")}, group)
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += values
        producer.begin_transaction()
        producer.send(topic, b"never committed")
    consumer = KafkaConsumer(
        bootstrap_servers=served.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        group_id=group.group_id,
        enable_auto_commit=False,
    )
    partition = Partition(topic, 0)
    consumer.assign([partition])
    assert consumer.committed(partition) == 5
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    while len(found) < len(expected):
        batches = consumer.poll(PATIENCE_S * 1000).values()
        assert batches
        found += [record.value for batch in batches for record in batch]
    consumer.close()
    assert found == expected
    assert [one.value() for one in read(served.bootstrap, topic)] == expected
    assert read(served.bootstrap, topic, isolation="read_uncommitted")[-1].value() == b"never committed"


def test_a_fenced_producer_is_of_no_use(served: Served, topic: str) -> None:
    first = Producer(settings(served, transactional_id=topic))
    first.init_transactions()
    with pytest.raises(IllegalStateError):
        first.send(topic, b"outside")
    first.begin_transaction()
    first.send_and_wait(topic, b"old")
    with Producer(settings(served, transactional_id=topic)) as second:
        second.init_transactions()
        first.send(topic, b"late")
        with pytest.raises((TransactionAbortableError, ProducerFencedError)):
            first.commit_transaction()
        with pytest.raises(ProducerFencedError):
            first.abort_transaction()
        with pytest.raises(ProducerFencedError):
            first.begin_transaction()
        second.begin_transaction()
        second.send(topic, b"new")
        second.commit_transaction()
    first.close(0)
    assert [one.value() for one in read(served.bootstrap, topic)] == [b"new"]


def test_errors_of_records(served: Served) -> None:
    small = create(served.bootstrap, f"t-{uuid.uuid4()}", **{"max.message.bytes": "2000"})
    errors: list[Any] = []
    with Producer(settings(served, max_block_ms=2000)) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send(small, bytes(2_000_000))
        with pytest.raises(KafkaError) as caught:
            producer.send_and_wait(small, bytes(5000))
        assert caught.value.code == error_codes.MESSAGE_TOO_LARGE
        with pytest.raises(KafkaError) as caught:
            producer.send("not/a/name", b"a")
        assert caught.value.code == error_codes.INVALID_TOPIC_EXCEPTION
        with pytest.raises(KafkaTimeoutError):
            producer.send(small, b"a", partition=7)
        # A batch that is too large is split until its records fit.
        for number in range(50):
            producer.send(small, b"%02d" % number * 100, on_delivery=lambda found, error: errors.append(error))
        producer.flush()
        assert errors == [None] * 50 and producer.metrics()["batch-split-total"] > 0
    assert [one.value() for one in read(served.bootstrap, small)] == [b"%02d" % number * 100 for number in range(50)]


def test_callbacks_may_send_but_not_wait(served: Served, topic: str) -> None:
    errors: list[Exception] = []
    done = threading.Event()
    producer = Producer(settings(served))

    def again(found: Any, error: Exception | None) -> None:
        try:
            producer.send(topic, b"second", on_delivery=lambda found, error: done.set())
            producer.flush()
        except IllegalStateError as problem:
            errors.append(problem)

    producer.send(topic, b"first", on_delivery=again)
    assert done.wait(PATIENCE_S)
    producer.close()
    assert len(errors) == 1
    assert [one.value() for one in read(served.bootstrap, topic)] == [b"first", b"second"]


def test_callbacks_hold_no_lock(served: Served, topic: str) -> None:
    """An application may take its own lock in callbacks, and hold it while it sends."""
    own = threading.Lock()
    results: list[Any] = []

    def delivered(found: Any, error: Any) -> None:
        with own:
            results.append(error or found.offset)

    with Producer(settings(served, batch_size=100, linger_ms=0)) as producer:
        for number in range(2000):
            with own:
                producer.send(topic, b"%d" % number * 10, on_delivery=delivered)
        producer.flush()
        assert results == list(range(2000))


def test_a_broker_that_is_killed_while_records_are_sent(tmp_path: Path, kcli_serves: None) -> None:
    """Whatever the broker has written when it is killed, each record is there once, in order."""
    total = 3000
    with KcliBroker(tmp_path) as broker:
        create(broker.bootstrap, "t")
        results: list[Any] = []
        reached: Callable[[], bool] = lambda: len(results) >= total // 4  # noqa: E731
        half = threading.Event()

        def delivered(found: Any, error: Any) -> None:
            results.append(error or found.offset)
            if reached():
                half.set()

        with Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 500, "buffer.memory": 20_000}) as producer:

            def send() -> None:
                for number in range(total):
                    producer.send("t", b"%06d" % number * 10, on_delivery=delivered)

            thread = threading.Thread(target=send)
            thread.start()
            assert half.wait(PATIENCE_S)
            broker.kill()
            broker.start()
            thread.join()
            producer.flush()
        assert results == list(range(total))
        assert [one.value() for one in read(broker.bootstrap, "t")] == [b"%06d" % number * 10 for number in range(total)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_rows_of_an_arrow_table(served: Served, codec: str) -> None:
    pa = pytest.importorskip("pyarrow")
    name = create(served.bootstrap, f"t-{uuid.uuid4()}", 2)
    count = 30_000
    keys = [b"key %d" % number for number in range(count)]
    values = [b"value %d " % number * 5 for number in range(count)]
    places: list[Any] = []
    with Producer(settings(served, compression_type=codec, transactional_id=name, buffer_memory=3_000_000)) as producer:
        producer.init_transactions()
        for table in (pa.table({"key": keys, "value": values}), pa.table({"value": [b"aborted"] * 10})):
            producer.begin_transaction()
            producer.produce_arrow(name, table, on_delivery=lambda found, error: places.append(error or found))
            producer.commit_transaction() if table.num_rows == count else producer.abort_transaction()
    assert places and places[0].topic == name
    found = [read(served.bootstrap, name, partition) for partition in range(2)]
    expected = dict(zip(keys, values))
    assert {one.key(): one.value() for messages in found for one in messages} == expected
    for messages in found:
        numbers = [int((one.key() or b"").split()[1]) for one in messages]
        assert numbers == sorted(numbers) and len(numbers) > count // 3
