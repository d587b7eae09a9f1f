"""A worker that reads, transforms and writes in transactions, with librdkafka or aiokafka; TransformClient.java does the same.

    python transform.py confluent|aiokafka BOOTSTRAP NAME SOURCE TARGET

`NAME` is its transactional id, its group and its instance id in the group, so that the next worker of this name takes over. It
prints "written" when the records of a transaction are in the target, and "committed" after the transaction. It ends with any
error, as a process does whose supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

BATCH = 7  # records a transaction, at most
SESSION_MS = 30_000
TRANSACTION_MS = 20_000
LIMIT_S = 20
PAUSE_S = 0.1  # between the records and the offsets of a transaction, so that a test can stop the worker there


def transformed(value: bytes) -> bytes:
    """What a worker makes of a record."""
    return b"t-" + value


def work_with_confluent(bootstrap: str, name: str, source: str, target: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    # By default librdkafka discards all brokers when it has lost the connections to all of them, and starts again from the
    # bootstrap servers. send_offsets_to_transaction then waits without end for the discarded group coordinator, in spite of its
    # timeout: librdkafka issue 5511, seen in 2.16.0 with kcli and with Apache Kafka 4.3.1.
    common: dict[str, Any] = {"bootstrap.servers": bootstrap, "metadata.recovery.strategy": "none"}
    group = {"group.id": name, "group.instance.id": name, "session.timeout.ms": SESSION_MS}
    reading = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**common, **group, **reading})
    producer = Producer({**common, "transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS})
    producer.init_transactions(LIMIT_S)
    consumer.subscribe([source])
    while True:
        messages = consumer.consume(BATCH, 0.3)
        if not messages:
            continue
        producer.begin_transaction()
        offsets: dict[int, Any] = {}
        for message in messages:
            assert message.error() is None, message.error()
            producer.produce(target, transformed(message.value()), partition=message.partition())
            offsets[message.partition()] = TopicPartition(source, message.partition(), message.offset() + 1)
        producer.flush(LIMIT_S)
        print("written", flush=True)
        time.sleep(PAUSE_S)
        producer.send_offsets_to_transaction(list(offsets.values()), consumer.consumer_group_metadata(), LIMIT_S)
        producer.commit_transaction(LIMIT_S)
        print("committed", flush=True)


async def work_with_aiokafka(bootstrap: str, name: str, source: str, target: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=name,
        group_instance_id=name,
        session_timeout_ms=SESSION_MS,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_MS)
    await asyncio.wait_for(producer.start(), LIMIT_S)
    await asyncio.wait_for(consumer.start(), LIMIT_S)
    while True:
        found = await consumer.getmany(timeout_ms=300, max_records=BATCH)
        if not found:
            continue
        await producer.begin_transaction()
        for where, messages in found.items():
            for message in messages:
                await producer.send(target, transformed(message.value), partition=where.partition)
        await producer.flush()
        print("written", flush=True)
        await asyncio.sleep(PAUSE_S)
        offsets = {where: messages[-1].offset + 1 for where, messages in found.items()}
        await asyncio.wait_for(producer.send_offsets_to_transaction(offsets, name), LIMIT_S)
        await asyncio.wait_for(producer.commit_transaction(), LIMIT_S)
        print("committed", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "confluent":
        work_with_confluent(*sys.argv[2:])
    else:
        asyncio.run(work_with_aiokafka(*sys.argv[2:]))
