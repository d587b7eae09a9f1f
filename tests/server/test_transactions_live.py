"""Protects exactly-once processing with a real client: what a transaction writes is read completely, or not at all.

The client is confluent_kafka (librdkafka); the broker is a `kcli serve` in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import address_of, serving

confluent = pytest.importorskip("confluent_kafka")
PATIENCE_S = 30


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, "--override", "group.initial.rebalance.delay.ms=0") as lines:
        yield address_of(lines)


def create(address: str, *topics: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(PATIENCE_S)


def transactional(address: str, transactional_id: str, **options: Any) -> Any:
    settings = {"bootstrap.servers": address, "transactional.id": transactional_id, **options}
    producer = confluent.Producer(settings)
    producer.init_transactions(PATIENCE_S)
    return producer


def consumer(address: str, group: str, isolation: str = "read_committed") -> Any:
    return confluent.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read(address: str, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """Return the values of a topic: as many as there should be, and what comes within a second after them."""
    reader = consumer(address, f"reader-{topic}-{isolation}", isolation)
    reader.subscribe([topic])
    values: list[bytes] = []
    idle = 0
    while idle < (1 if len(values) >= count else PATIENCE_S):
        messages = reader.consume(100, 1)
        idle = 0 if messages else idle + 1
        values += [message.value() for message in messages if not message.error()]
    reader.close()
    return sorted(values)


def test_committed_records_are_read_and_aborted_ones_are_not(address: str) -> None:
    create(address, "out")
    producer = transactional(address, "t")
    for number in range(6):
        producer.begin_transaction()
        for part in range(2):
            producer.produce("out", b"%d-%d" % (number, part), partition=part)
        producer.flush(PATIENCE_S)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = sorted(b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(2))
    assert read(address, "out", 6) == committed
    assert len(read(address, "out", 12, "read_uncommitted")) == 12


def test_a_new_instance_fences_the_old_one_and_aborts_its_transaction(address: str) -> None:
    create(address, "out")
    old = transactional(address, "t")
    old.begin_transaction()
    old.produce("out", b"lost", partition=0)
    old.flush(PATIENCE_S)
    new = transactional(address, "t")
    new.begin_transaction()
    new.produce("out", b"kept", partition=0)
    new.commit_transaction(PATIENCE_S)
    with pytest.raises(confluent.KafkaException):
        old.commit_transaction(PATIENCE_S)
    assert read(address, "out", 1) == [b"kept"]


def test_consume_transform_produce_is_exactly_once(address: str) -> None:
    create(address, "in", "out")
    plain = confluent.Producer({"bootstrap.servers": address})
    for number in range(100):
        plain.produce("in", b"%d" % number, partition=number % 2)
    assert plain.flush(PATIENCE_S) == 0
    done = 0
    for instance in range(2):  # the second instance continues where the committed offsets of the first are
        reader, producer = consumer(address, "g"), transactional(address, "t")
        reader.subscribe(["in"])
        rounds = 0
        while done < 100 and rounds < 6:
            messages = [message for message in reader.consume(10, 5) if not message.error()]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", message.value())
            offsets = {}
            for message in messages:
                where = confluent.TopicPartition("in", message.partition(), message.offset() + 1)
                offsets[message.partition()] = where
            producer.send_offsets_to_transaction(list(offsets.values()), reader.consumer_group_metadata(), PATIENCE_S)
            if instance == 0 and rounds == 5:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)
                done += len(messages)
            rounds += 1
            if instance:
                rounds = 0
        reader.close()
    assert read(address, "out", 100) == sorted(b"%d" % number for number in range(100))
