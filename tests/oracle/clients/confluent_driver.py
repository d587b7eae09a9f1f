"""Drives confluent-kafka, which is librdkafka (see plan.py). Errors have librdkafka's names."""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.clients.driver import MAX_REQUEST_BYTES, Answer, RefusedError, Step, decode, encode, main

BOOTSTRAP = {"bootstrap.servers": sys.argv[1], "topic.metadata.propagation.max.ms": 1000}


def refused(error: Any) -> RefusedError:
    return RefusedError(error.name().lstrip("_"), error.str())


def produce(step: Step) -> Answer:
    settings = {
        "message.timeout.ms": step["seconds"] * 1000,
        "message.max.bytes": MAX_REQUEST_BYTES,
        "compression.type": step["codec"],
        "acks": step["acks"],
        "enable.idempotence": step["idempotent"],
        "linger.ms": 20,
        "max.in.flight.requests.per.connection": 1,  # more, and librdkafka may reorder when it tries again
        "batch.num.messages": 8,
    }
    producer = Producer(BOOTSTRAP | settings)
    offsets: list[int] = []
    errors: list[Any] = []

    def delivered(error: Any, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offset = message.offset()
            offsets.append(-1 if offset is None or offset < 0 else offset)

    for key, value, timestamp_ms, headers in step["records"]:
        producer.produce(
            step["topic"],
            value=decode(value),
            key=decode(key),
            partition=step["partition"],
            timestamp=timestamp_ms,
            headers=[(name, decode(held)) for name, held in headers],
            on_delivery=delivered,
        )
    producer.flush(step["seconds"] + 3)
    if errors:
        raise refused(errors[0])
    return {"offsets": offsets}


def consume(step: Step) -> Answer:
    settings = {"group.id": "none", "auto.offset.reset": "error", "enable.auto.commit": False, "check.crcs": True}
    consumer = Consumer(BOOTSTRAP | settings)
    records: list[Any] = []
    try:
        consumer.assign([TopicPartition(step["topic"], step["partition"], step["offset"])])
        while len(records) < step["count"]:
            message = consumer.poll(step["seconds"])
            if message is None:
                raise RefusedError("TIMED_OUT", f"{len(records)} of {step['count']} records came")
            if message.error():
                raise refused(message.error())
            headers = [[name, encode(held)] for name, held in message.headers() or []]
            records.append([message.offset(), message.timestamp()[1], encode(message.key()), encode(message.value()), headers])
    finally:
        consumer.close()
    return {"records": records}


def create(step: Step) -> Answer:
    topic = NewTopic(step["topic"], step["partitions"], step["replication_factor"], config=step["configs"])
    try:
        admin = AdminClient({"bootstrap.servers": sys.argv[1]})  # kept: it takes its futures along
        admin.create_topics([topic], operation_timeout=step["seconds"])[step["topic"]].result()
    except KafkaException as error:
        raise refused(error.args[0]) from error
    return {}


if __name__ == "__main__":
    main({"produce": produce, "consume": consume, "create": create})
