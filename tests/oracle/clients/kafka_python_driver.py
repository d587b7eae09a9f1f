"""Drives kafka-python (see plan.py). Errors have the names of its classes."""

from __future__ import annotations

import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from tests.oracle.clients.driver import MAX_REQUEST_BYTES, Answer, RefusedError, Step, decode, encode, main

BOOTSTRAP = sys.argv[1]


def produce(step: Step) -> Answer:
    producer = KafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        acks=step["acks"] if step["acks"] == "all" else int(step["acks"]),
        enable_idempotence=step["idempotent"],
        compression_type=None if step["codec"] == "none" else step["codec"],
        linger_ms=20,
        max_request_size=MAX_REQUEST_BYTES,
        max_block_ms=step["seconds"] * 1000,
        delivery_timeout_ms=step["seconds"] * 1000,
        request_timeout_ms=step["seconds"] * 900,
    )
    try:
        sent = [
            producer.send(
                step["topic"],
                value=decode(value),
                key=decode(key),
                partition=step["partition"],
                timestamp_ms=timestamp_ms,
                headers=[(name, decode(held)) for name, held in headers],
            )
            for key, value, timestamp_ms, headers in step["records"]
        ]
        producer.flush(step["seconds"])
        told = [future.get(step["seconds"]).offset for future in sent]
        return {"offsets": [-1] * len(told) if step["acks"] == "0" else told}  # without acks it counts for itself
    finally:
        producer.close(timeout=1)


def consume(step: Step) -> Answer:
    consumer = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP, auto_offset_reset="none", enable_auto_commit=False, fetch_max_wait_ms=100
    )
    try:
        partition = TopicPartition(step["topic"], step["partition"])
        consumer.assign([partition])
        consumer.seek(partition, step["offset"])
        records = []
        until = time.monotonic() + step["seconds"]
        while len(records) < step["count"]:
            if time.monotonic() > until:
                raise RefusedError("TIMED_OUT", f"{len(records)} of {step['count']} records came")
            for record in consumer.poll(timeout_ms=500).get(partition, []):
                headers = [[name, encode(held)] for name, held in record.headers]
                records.append([record.offset, record.timestamp, encode(record.key), encode(record.value), headers])
        return {"records": records}
    finally:
        consumer.close()


def create(step: Step) -> Answer:
    topic = NewTopic(step["topic"], step["partitions"], step["replication_factor"], topic_configs=step["configs"])
    with KafkaAdminClient(bootstrap_servers=BOOTSTRAP) as admin:
        admin.create_topics([topic])
    return {}


if __name__ == "__main__":
    main({"produce": produce, "consume": consume, "create": create})
