"""Protects compacted topics under real clients and kills: who reads from offset 0 ends with the last value of each key.

An idempotent producer (acks=all) writes few keys, and tombstones, to segments of some KB, which the cleaner of `kcli serve`
goes through all the time; a reader reads from the start to the end, again and again. The broker is killed and started
again in between. Of each key the reader must have seen the last record that was acknowledged when it began, or a later one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import ROOT
from tests.oracle.brokers import TOOL_SECONDS, KcliBroker

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

TOPIC = "compacted"
PARTITIONS = 2
KEYS = 60
TOMBSTONES = 0.15
DELETE_RETENTION_MS = 1000
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "40000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "file.delete.delay.ms": "100",
}
# The broker's: a look every 50 ms, indexes with an entry every 100 bytes.
SETTINGS = ("log.cleaner.backoff.ms=50", "log.index.interval.bytes=100")
RECORDS_A_ROUND = 2000
WAIT_SECONDS = 90
READ_SECONDS = 60
QUICK: dict[str, Any] = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200, "log_level": 0}


class Writer(threading.Thread):
    """Writes numbered records; of key k those whose number is k modulo KEYS, in partition k modulo PARTITIONS.

    `acknowledged` is the last number of each key that was; `tombstones` are the numbers of those without a value.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 1}
        self._producer = Producer({**settings, **QUICK})
        self._dice = Random(7)
        self.number = 0
        self.acknowledged_count = 0
        self.acknowledged: dict[int, int] = {}
        self.tombstones: list[int] = []
        self.stopping = threading.Event()
        self.fault: object = None
        self.start()

    def run(self) -> None:
        try:
            while not self.stopping.is_set() and self.fault is None:
                self._send()
            assert self._producer.flush(WAIT_SECONDS) == 0, "not everything was delivered"
        except Exception as error:
            self.fault = error

    def _send(self) -> None:
        number, self.number = self.number, self.number + 1
        key = number % KEYS
        is_tombstone = self._dice.random() < TOMBSTONES
        if is_tombstone:
            self.tombstones.append(number)

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.fault = error
            self.acknowledged[key] = max(self.acknowledged.get(key, -1), number)
            self.acknowledged_count += 1

        self._producer.produce(
            TOPIC,
            None if is_tombstone else b"%d" % number,
            key=b"%d" % key,
            partition=key % PARTITIONS,
            headers={"number": b"%d" % number},
            on_delivery=delivered,
        )
        self._producer.poll(0 if len(self._producer) < 300 else 0.02)

    def stop(self) -> None:
        """No more. Raises AssertionError for what went wrong."""
        self.stopping.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive() and self.fault is None, self.fault


class Reading:
    """What a reader saw of each key who began at the start: the number of its last record; and how many records it read."""

    def __init__(self, bootstrap: str, writer: Writer) -> None:
        began = time.monotonic()
        self.expected = dict(writer.acknowledged)
        self.seen: dict[int, int] = {}
        self.records = 0
        self.holes = 0
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer({**settings, **QUICK})
        try:
            consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
            self._read(consumer)
        finally:
            consumer.close()
        self.took_ms = (time.monotonic() - began) * 1000

    def _read(self, consumer: Consumer) -> None:
        waiting, next_offsets = set(range(PARTITIONS)), dict.fromkeys(range(PARTITIONS), 0)
        until = time.monotonic() + READ_SECONDS
        while waiting:
            assert time.monotonic() < until, f"partitions {waiting} have no end after {READ_SECONDS} s"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                elif not error.retriable() and error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                    raise KafkaException(error)
                continue
            offset, partition = message.offset(), message.partition()
            assert offset >= next_offsets[partition], f"offset {offset} comes behind {next_offsets[partition] - 1}"
            self.holes += offset - next_offsets[partition]
            next_offsets[partition] = offset + 1
            self.records += 1
            number = int(dict(message.headers())["number"])
            assert message.value() in (None, b"%d" % number) and number % KEYS == int(message.key())
            assert number > self.seen.get(number % KEYS, -1), "the records of a key are out of order"
            self.seen[number % KEYS] = number

    def check(self, writer: Writer) -> None:
        """Hold it against what was acknowledged when it began. Raises AssertionError."""
        for key, expected in self.expected.items():
            seen = self.seen.get(key, -1)
            if seen >= expected:
                continue
            # Only a tombstone that stood for its time may be gone; who reads for longer may have seen what was before it.
            later = [number for number in writer.tombstones if number % KEYS == key and number >= expected]
            assert later, f"of key {key} record {expected} or a later one must be there, the last one seen is {seen}"
            assert seen < 0 or self.took_ms > DELETE_RETENTION_MS, f"key {key} was deleted, and record {seen} is there"


class Reader(threading.Thread):
    """Reads again and again until it is told to stop."""

    def __init__(self, bootstrap: str, writer: Writer) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._writer = writer
        self.readings = 0
        self.stopping = threading.Event()
        self.fault: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                Reading(self._address, self._writer).check(self._writer)
                self.readings += 1
        except Exception as error:
            self.fault = error

    def stop(self) -> None:
        """No more. Raises what went wrong."""
        self.stopping.set()
        self.join(2 * READ_SECONDS)
        assert not self.is_alive()
        if self.fault is not None:
            raise self.fault


def wait_for_more(writer: Writer, reader: Reader) -> None:
    """Until more was written and it was read once more."""
    records, readings = writer.acknowledged_count + RECORDS_A_ROUND, reader.readings + 1
    until = time.monotonic() + WAIT_SECONDS
    while writer.acknowledged_count < records or reader.readings < readings:
        assert writer.fault is None and reader.fault is None, (writer.fault, reader.fault)
        assert time.monotonic() < until, f"{writer.acknowledged_count} of {records} written, {reader.readings} readings"
        writer.join(0.02)


def reading_of_cleaned(broker: KcliBroker, writer: Writer) -> Reading:
    """Read until most offsets have no record any more; the cleaner may be behind a writer that has just ended."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        reading = Reading(broker.bootstrap, writer)
        reading.check(writer)
        if reading.records < writer.number / 2 and reading.holes > writer.number / 2:
            return reading
        assert time.monotonic() < until, f"{reading.records} of {writer.number} records are there: nobody has cleaned"


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_who_reads_from_the_start_ends_with_the_last_value_of_each_key(kcli_serves: None, kills: int, tmp_path: Path) -> None:
    """And there were cleaning rounds: most offsets have no record any more, in the lives between kills, too."""
    broker = KcliBroker(tmp_path, *SETTINGS)
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIGS)]).values():
        made.result()
    writer = Writer(broker.bootstrap)
    reader = Reader(broker.bootstrap, writer)
    try:
        for _ in range(kills):
            wait_for_more(writer, reader)
            broker.kill()
            broker.start()
        wait_for_more(writer, reader)
    finally:
        writer.stopping.set()
        reader.stopping.set()
    writer.stop()
    reader.stop()
    last = reading_of_cleaned(broker, writer)
    assert last.expected == {key: max(range(key, writer.number, KEYS)) for key in range(KEYS)}
    deleted = set(writer.tombstones)
    kept = {key: number for key, number in last.expected.items() if number not in deleted}
    assert {key: number for key, number in last.seen.items() if number not in deleted} == kept
    assert "not cleaned any more" not in broker.said() and "a fault of kcli" not in broker.said()
    broker.stop()
    command = [sys.executable, "-m", "kcli", "verify", str(broker.data)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]
