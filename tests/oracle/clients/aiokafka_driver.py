"""Drives aiokafka (see plan.py). Errors have the names of its classes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

from tests.oracle.clients.driver import MAX_REQUEST_BYTES, Answer, RefusedError, Step, decode, encode, main

BOOTSTRAP = sys.argv[1]


async def produce(step: Step) -> Answer:
    producer = AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        acks=step["acks"] if step["acks"] == "all" else int(step["acks"]),
        enable_idempotence=step["idempotent"],
        compression_type=None if step["codec"] == "none" else step["codec"],
        linger_ms=20,
        max_request_size=MAX_REQUEST_BYTES,
        max_batch_size=MAX_REQUEST_BYTES,
        request_timeout_ms=step["seconds"] * 1000,
    )
    await producer.start()
    try:
        sent = []
        for key, value, timestamp_ms, headers in step["records"]:
            future = await producer.send(
                step["topic"],
                value=decode(value),
                key=decode(key),
                partition=step["partition"],
                timestamp_ms=timestamp_ms,
                headers=[(name, decode(held)) for name, held in headers],
            )
            sent.append(future)
        return {"offsets": [-1 if done is None else done.offset for done in [await future for future in sent]]}
    finally:
        await producer.stop()


async def consume(step: Step) -> Answer:
    consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="none", enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(step["topic"], step["partition"])
        consumer.assign([partition])
        consumer.seek(partition, step["offset"])
        records: list[Any] = []
        while len(records) < step["count"]:
            record = await asyncio.wait_for(consumer.getone(partition), step["seconds"])
            headers = [[name, encode(held)] for name, held in record.headers]
            records.append([record.offset, record.timestamp, encode(record.key), encode(record.value), headers])
        return {"records": records}
    finally:
        await consumer.stop()


async def create(step: Step) -> Answer:
    topic = NewTopic(step["topic"], step["partitions"], step["replication_factor"], topic_configs=step["configs"])
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    try:
        answer = await admin.create_topics([topic])
        for _, code, *message in answer.topic_errors:
            if code:
                raise RefusedError(for_code(code).__name__, str(message))
    finally:
        await admin.close()
    return {}


def blocking(handler: Callable[[Step], Coroutine[Any, Any, Answer]]) -> Callable[[Step], Answer]:
    return lambda step: asyncio.run(asyncio.wait_for(handler(step), step["seconds"] + 4))


if __name__ == "__main__":
    main({"produce": blocking(produce), "consume": blocking(consume), "create": blocking(create)})
