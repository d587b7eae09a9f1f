"""Reads whole partitions, by kcli's offline reader and by a client, and says them in the same words, so that both compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from kcli.format.compression import inflate
from kcli.format.limits import MAX_RECORD_BYTES
from kcli.format.record_batch import HEADER_BYTES, RecordBatch
from kcli.format.records import read_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.oracle.clients.plan import Record

READ_SECONDS = 60


class TopicPartitionName(NamedTuple):
    """A partition as its directory names it."""

    topic: str
    partition: int

    @classmethod
    def of(cls, directory: Path) -> TopicPartitionName:
        topic, _, partition = directory.name.rpartition("-")
        return cls(topic, int(partition))


def partitions_in(data: Path) -> dict[TopicPartitionName, Path]:
    """The partitions of a log directory that clients may read, by name."""
    found = {TopicPartitionName.of(path): path for path in sorted(data.iterdir()) if (path / "partition.metadata").exists()}
    return {name: path for name, path in found.items() if name.topic != "__cluster_metadata"}


def log_start_offsets(data: Path) -> dict[TopicPartitionName, int]:
    """What log-start-offset-checkpoint says; partitions that it leaves out begin with their first segment."""
    lines = (data / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    return {TopicPartitionName(topic, int(partition)): int(offset) for topic, partition, offset in map(str.split, lines)}


def offline_records(directory: Path, start_offset: int = 0) -> list[Record]:
    """All records of a partition's files from `start_offset` on that a client gets: control batches are left out."""
    return [record for record in _all_records(directory) if record.offset >= start_offset]


def _all_records(directory: Path) -> Iterator[Record]:
    for path in sorted(directory.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid, batch
                assert isinstance(batch.header, RecordBatch)
                if not batch.header.is_control:
                    yield from _records_of(batch.header, batch.read_whole())


def _records_of(header: RecordBatch, data: bytes) -> Iterator[Record]:
    payload = inflate(header.codec, memoryview(data)[HEADER_BYTES:], limit=MAX_RECORD_BYTES)
    for record in read_records(payload, header.record_count):
        appended = header.log_append_time_ms
        yield Record(
            header.base_offset + record.offset_delta,
            header.base_timestamp + record.timestamp_delta if appended is None else appended,
            record.key,
            record.value,
            tuple((one.key.decode(), one.value) for one in record.headers),
        )


def served_records(
    bootstrap: str, names: Iterable[TopicPartitionName], isolation: str = "read_uncommitted"
) -> dict[TopicPartitionName, list[Record]]:
    """All records of these partitions from their beginning to their end, as librdkafka reads them from a broker."""
    wanted = set(names)
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "auto.offset.reset": "error",
    }
    read: dict[TopicPartitionName, list[Record]] = {name: [] for name in wanted}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(name.topic, name.partition, OFFSET_BEGINNING) for name in wanted])
        unfinished = set(wanted)
        while unfinished:
            message = consumer.poll(READ_SECONDS)
            assert message is not None, f"nothing came for {READ_SECONDS} s; unread: {sorted(unfinished)[:5]}"
            name = TopicPartitionName(message.topic(), message.partition())
            error = message.error()
            if error is None:
                headers = tuple(message.headers() or ())
                record = Record(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)
                read[name].append(record)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, f"{name}: {error}"
                unfinished.discard(name)
    finally:
        consumer.close()
    return read
