"""Protects kcli's consumer on a real broker: what it reads is what kafka-python and confluent-kafka read, in each form.

The broker is kcli, and in the slow tier Apache Kafka. Topics are written by kafka-python with every codec, and by
confluent-kafka in transactions, of which some are aborted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kcli.client.errors import KafkaTimeoutError, RecordDeserializationError
from kcli.client.shell.async_consumer import AsyncConsumer
from kcli.client.shell.consumer import Consumer
from kcli.client.value_checks import OffsetAndMetadata
from tests.oracle.conftest import Served

pytestmark = [pytest.mark.oracle, pytest.mark.ci]
BROKER_SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
)
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
EACH = 300
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def topic(served: Served) -> str:
    """A topic of one partition: EACH records of each codec, with headers, nulls and empty values."""
    kafka = pytest.importorskip("kafka")
    for codec in CODECS:
        producer = kafka.KafkaProducer(bootstrap_servers=served.bootstrap, compression_type=codec, linger_ms=5)
        for number in range(EACH):
            headers = [("name", b"%d" % number), ("", b"")] if number % 3 == 0 else []
            key = None if number % 2 else b"key-%d" % number
            producer.send(
                "codecs", key=key, value=None if number % 7 == 6 and key else b"v" * number, headers=headers, partition=0
            )
        producer.flush()
        producer.close()
    return "codecs"


def reader(served: Served, **settings: Any) -> Consumer:
    words = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer({"bootstrap.servers": served.bootstrap, "auto.offset.reset": "earliest", **words})


def read(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        records = consumer.poll(PATIENCE_S)
        assert records, f"{len(found)} of {count} records came"
        found += records
    return found


def as_tuple(record: Any) -> tuple[Any, ...]:
    return (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def by_kafka_python(served: Served, topic: str, count: int, **settings: Any) -> list[tuple[Any, ...]]:
    kafka = pytest.importorskip("kafka")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=served.bootstrap, auto_offset_reset="earliest", group_id=None, consumer_timeout_ms=30_000, **settings
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    records = [as_tuple(record) for _, record in zip(range(count), consumer)]
    consumer.close()
    return records


def test_records_of_each_codec_are_those_of_kafka_python(served: Served, topic: str) -> None:
    """Whatever the sizes of fetches and polls."""
    expected = by_kafka_python(served, topic, len(CODECS) * EACH)
    for settings in (
        {},
        {"max_poll_records": 7, "max_partition_fetch_bytes": 2000},
        {"fetch_max_bytes": 1, "check_crcs": False},
    ):
        with reader(served, **settings) as consumer:
            consumer.assign([(topic, 0)])
            assert [as_tuple(record) for record in read(consumer, len(expected))] == expected
            assert consumer.position((topic, 0)) == len(expected)


def test_arrow_batches_have_the_same_records(served: Served, topic: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    expected = by_kafka_python(served, topic, len(CODECS) * EACH)
    found: list[Any] = []
    with reader(served) as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < len(expected):
            batches = consumer.poll_arrow(PATIENCE_S, max_rows=400)
            table = pyarrow.table(batches)
            table.validate(full=True)
            assert table.num_rows == sum(pyarrow.record_batch(batch).num_rows for batch in batches) == batches.rows > 0
            found += table.to_pylist()
    assert {(row["topic"], row["partition"]) for row in found} == {(topic, 0)}
    for row, (offset, timestamp, key, value, headers) in zip(found, expected, strict=True):
        assert (row["offset"], row["key"], row["value"]) == (offset, key, value)
        assert round(row["timestamp"].timestamp() * 1000) == timestamp
        assert [(one["key"], one["value"]) for one in row["headers"]] == list(headers)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions_are_left_out(served: Served, isolation: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    name = f"transactions-{isolation}"
    producer = confluent.Producer({"bootstrap.servers": served.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for record in range(20):
            producer.produce(name, b"%d-%d" % (number, record), partition=0)
        producer.flush()
        producer.commit_transaction() if number % 3 else producer.abort_transaction()
    expected = by_kafka_python(served, name, 80 if isolation == "read_committed" else 120, isolation_level=isolation)
    with reader(served, isolation_level=isolation) as consumer:
        consumer.assign([(name, 0)])
        assert [as_tuple(record) for record in read(consumer, len(expected))] == expected
        assert consumer.end_offsets([(name, 0)]) == {(name, 0): 126}
        assert consumer.poll(0.5) == [] and consumer.position((name, 0)) == 126


def test_offsets_and_seeks(served: Served, topic: str) -> None:
    partition = (topic, 0)
    end = len(CODECS) * EACH
    with reader(served) as consumer:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: end}
        last = consumer.offsets_for_times({partition: 2**60})
        first = consumer.offsets_for_times({partition: 0})[partition]  # type: ignore[index]
        assert last == {partition: None} and first is not None and first.offset == 0
        consumer.seek(partition, 777)
        assert read(consumer, 1)[0].offset == 777
        consumer.seek_to_end()
        assert consumer.position(partition) == end
        consumer.seek_to_beginning([partition])
        assert read(consumer, 1)[0].offset == 0
        consumer.pause([partition])
        assert consumer.poll(0.2) == []
        consumer.resume([partition])
        assert read(consumer, 1)
        assert [one.partition for one in consumer.partitions_for(topic)] == [0] and topic in consumer.list_topics()
        with pytest.raises(KafkaTimeoutError, match="no-such-topic-0"):
            consumer.end_offsets([("no-such-topic", 0)], timeout=0.5)


def test_a_poison_record_can_be_passed(served: Served, topic: str) -> None:
    def refuse(value: bytes) -> str:
        if len(value) == 5:
            raise ValueError("five")
        return value.decode()

    with Consumer(
        {"bootstrap.servers": served.bootstrap, "auto.offset.reset": "earliest"}, value_deserializer=refuse
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.offset for record in read(consumer, 5)] == list(range(5))
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match=f"{topic}-0@5"):
                consumer.poll(PATIENCE_S)
        consumer.seek((topic, 0), 6)
        assert [record.offset for record in read(consumer, 2)][:2] == [6, 7]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_at_its_commits(served: Served, topic: str, protocol: str) -> None:
    """With the blocking and then with the asyncio consumer; the listener is called in between."""
    calls: list[str] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            calls.extend(["assigned"] if partitions else [])

        def on_partitions_revoked(self, partitions: Any) -> None:
            calls.extend(["revoked"] if partitions else [])

        def on_partitions_lost(self, partitions: Any) -> None:
            calls.extend(["lost"] if partitions else [])

    group = {"group_id": f"g-{protocol}", "group_protocol": protocol, "max_poll_records": 100, "enable_auto_commit": False}
    with reader(served, **group) as consumer:
        consumer.subscribe([topic], Listener())
        assert [record.offset for record in read(consumer, 100)] == list(range(100))
        consumer.commit_sync()
        assert consumer.committed([(topic, 0)]) == {(topic, 0): OffsetAndMetadata(100, 0)}
        consumer.unsubscribe()
        assert calls == ["assigned", "revoked"] and not consumer.assignment()
        consumer.subscribe([topic], Listener())
        assert read(consumer, 1)[0].offset == 100
    assert calls == ["assigned", "revoked"] * 2

    async def continued() -> list[int]:
        words = {name.replace("_", "."): value for name, value in group.items()}
        async with AsyncConsumer({"bootstrap.servers": served.bootstrap, **words}) as consumer:
            consumer.subscribe([topic], Listener())
            found = [record.offset for record in await consumer.poll(PATIENCE_S)]
            await consumer.unsubscribe()
            assert calls == ["assigned", "revoked"] * 3
            return found

    assert asyncio.run(continued()) == list(range(100, 200))
