"""Protects what was acknowledged: `kcli serve` killed under load, again and again, keeps each record that acks=all was told of.

Two clients send all the time, each to a topic of its own: librdkafka, idempotent, and kafka-python, which is not. The broker is
killed when some more were acknowledged, and started again without any help. At the end all is read: each acknowledged record
stands at the offset that its producer was told, offsets follow one another, and an idempotent producer's record stands once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from tests.conftest import ROOT
from tests.oracle.brokers import TOOL_SECONDS, KcliBroker
from tests.oracle.reading import TopicPartitionName, served_records

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

TOPICS = ("idempotent", "plain")
PARTITIONS = 3
ACKNOWLEDGED_A_ROUND = 300  # of each client, before the next kill
WAIT_SECONDS = 90


class Load:
    """A client that sends numbered values until it is told to stop, and keeps where each acknowledged one went."""

    def __init__(self, send: Callable[[Load], None]) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.stopping = threading.Event()
        self.fault: Exception | None = None
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(send,), daemon=True)
        self._thread.start()

    def _run(self, send: Callable[[Load], None]) -> None:
        try:
            send(self)
        except Exception as error:
            self.fault = error
        with self._grown:
            self._grown.notify_all()

    def acknowledge(self, partition: int, offset: int, value: bytes) -> None:
        """A record is said to stand at this offset. Raises AssertionError where another was said to stand there."""
        with self._grown:
            before = self.acknowledged.setdefault((partition, offset), value)
            assert before == value, f"offset {offset} of partition {partition} was given twice: {before!r}, {value!r}"
            self._grown.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Until so many more are acknowledged. Raises AssertionError where that takes too long, or the client gave up."""
        with self._grown:
            wanted = len(self.acknowledged) + count
            grown = self._grown.wait_for(lambda: self.fault or len(self.acknowledged) >= wanted, WAIT_SECONDS)
        assert self.fault is None, self.fault
        assert grown, f"{len(self.acknowledged)} of {wanted} records are acknowledged after {WAIT_SECONDS} s"

    def stop(self) -> None:
        """No more. Raises what went wrong."""
        self.stopping.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the client does not end"
        if self.fault is not None:
            raise self.fault


def librdkafka(bootstrap: str) -> Callable[[Load], None]:
    """An idempotent producer: what it sends stands once, however often it sends it."""

    def send(load: Load) -> None:
        # Delivered or not, a record is never given up while the broker is away.
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 1}
        quick = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200, "log_level": 0}
        producer = Producer({**settings, **quick})
        faults: list[object] = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                faults.append(error)
            else:
                load.acknowledge(message.partition(), message.offset(), message.value())  # type: ignore[attr-defined]

        number = 0
        while not load.stopping.is_set():
            producer.produce(TOPICS[0], b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
            number += 1
            producer.poll(0 if len(producer) < 500 else 0.05)
            if faults:
                raise KafkaException(faults[0])
        assert producer.flush(WAIT_SECONDS) == 0 and not faults, faults
        assert len(load.acknowledged) == number

    return send


def kafka_python(bootstrap: str) -> Callable[[Load], None]:
    """A producer that is not idempotent: what was not acknowledged may stand, or stand twice."""

    def send(load: Load) -> None:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=False,
            linger_ms=1,
            reconnect_backoff_max_ms=200,
            max_block_ms=WAIT_SECONDS * 1000,
            delivery_timeout_ms=WAIT_SECONDS * 1000,
        )
        number = 0
        try:
            while not load.stopping.is_set():
                values = [b"%d" % (number + index) for index in range(30)]
                sent = [producer.send(TOPICS[1], value, partition=int(value) % PARTITIONS) for value in values]
                for value, future in zip(values, sent, strict=True):
                    told = future.get(WAIT_SECONDS)
                    load.acknowledge(told.partition, told.offset, value)
                number += len(values)
        finally:
            producer.close(timeout=5)

    return send


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_what_is_acknowledged_outlives_kills(kcli_serves: None, rounds: int, tmp_path: Path) -> None:
    """Kill, start, and so on; segments of 1 MiB and indexes of every 100 bytes make recovery meet their ends, too."""
    broker = KcliBroker(tmp_path, "log.index.interval.bytes=100")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]).values():
        made.result()
    loads = [Load(librdkafka(broker.bootstrap)), Load(kafka_python(broker.bootstrap))]
    try:
        for _ in range(rounds):
            for load in loads:
                load.wait_for_more(ACKNOWLEDGED_A_ROUND)
            broker.kill()
            broker.start()
        for load in loads:
            load.wait_for_more(1)
    finally:
        for load in loads:
            load.stopping.set()
    for load in loads:
        load.stop()
    names = [TopicPartitionName(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    read = served_records(broker.bootstrap, names)
    for load, topic in zip(loads, TOPICS, strict=True):
        for (partition, offset), value in load.acknowledged.items():
            assert read[TopicPartitionName(topic, partition)][offset].value == value, (topic, partition, offset)
    for name, records in read.items():
        assert [record.offset for record in records] == list(range(len(records))), name
    values = Counter(record.value for name in names[:PARTITIONS] for record in read[name])
    assert not [value for value, count in values.items() if count > 1], "an idempotent producer's record stands twice"
    broker.stop()
    command = [sys.executable, "-m", "kcli", "verify", str(broker.data)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]
