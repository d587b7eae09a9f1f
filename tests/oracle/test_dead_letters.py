"""Protects the dead letter queues of share groups against Apache Kafka 4.4.0's (KIP-1191): the same records and answers.

Left out of the comparison: the times of the records, and in which batches they are.
"""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import pytest

from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol import apis
from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import raise_features
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import running_kcli, wait_for_metadata
from tests.oracle.reading import offline_records
from tests.oracle.test_share_fetch_answers import (
    ACCEPT,
    LOCK_S,
    REJECT,
    RELEASE,
    SETTINGS,
    Exchange,
    until,
)

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

ENABLE = "errors.deadletterqueue.group.enable"
ALL_SETTINGS = (*SETTINGS, "errors.deadletterqueue.auto.create.topics.enable=true")


class Letters(Exchange):
    """An exchange in which groups have a dead letter queue; `queues` are the topics of the letters."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.queues: list[str] = []

    def begin_with_queue(self, name: str, queue: str, *sizes: int, copies: bool = False, **configs: str) -> None:
        """Make a topic, a group with a queue, and load the share partition."""
        settings = {
            "errors.deadletterqueue.topic.name": queue,
            "errors.deadletterqueue.copy.record.enable": str(copies).lower(),
            "share.delivery.count.limit": "2",
        }
        self.begin(name, *sizes, configs=settings | configs)
        self.queues.append(queue)
        self.load(0, 1)

    def make_queue(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic for letters."""
        struct, key = self.client.struct, apis.CREATE_TOPICS
        values = {ENABLE: "true"} | configs
        made = [struct(key, "CreatableTopicConfig", name=config, value=value) for config, value in values.items()]
        topic = struct(key, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1, configs=made)
        created = self.client.ask(key, 7, topics=[topic], timeout_ms=10_000)
        assert created.topics[0].error_code == 0
        wait_for_metadata(self.client)

    def produce_values(self, *values: bytes, is_compressed: bool = False) -> None:
        """Produce a batch of records with keys to partition 0."""
        struct = self.client.struct
        body = encode_records(Record(index, 0, b"k%d" % index, value) for index, value in enumerate(values))
        body = gzip.compress(body) if is_compressed else body
        made = NewRecordBatch(0, len(values) - 1, 1, 1, len(values), body, int(is_compressed)).encode()
        part = struct(apis.PRODUCE, "PartitionProduceData", index=0, records=made)
        topic = struct(apis.PRODUCE, "TopicProduceData", name=self.name, partition_data=[part])
        answer = self.client.ask(apis.PRODUCE, 11, acks=-1, timeout_ms=10_000, topic_data=[topic])
        assert answer.responses[0].partition_responses[0].error_code == 0

    def summary(self, index: int) -> Any:
        """The state of a share partition, without its batches."""
        struct, key = self.client.struct, apis.READ_SHARE_GROUP_STATE_SUMMARY
        part = struct(key, "PartitionData", partition=index, leader_epoch=0)
        topic = struct(key, "ReadStateSummaryData", topic_id=self.topic_id, partitions=[part])
        found = self.client.ask(key, 1, group_id=self.group_id, topics=[topic]).results[0].partitions[0]
        return found.state_epoch, found.start_offset, found.delivery_complete_count

    def until_done(self, end_offset: int, index: int = 0) -> None:
        """Wait until the state says that all records below an offset are done."""
        until(lambda: sum(self.summary(index)[1:]) == end_offset)

    def finish(self, end_offset: int, index: int = 0) -> None:
        """Wait until all records are done, and leave."""
        self.until_done(end_offset, index)
        self.end()


def rejected(exchange: Letters) -> None:
    exchange.make_queue("dlq.rejected", 3)
    for copies in (False, True):
        exchange.begin_with_queue(f"rejected-{copies}", "dlq.rejected", 4, 4, copies=copies)
        exchange.fetch("first")
        kinds = [REJECT, ACCEPT, REJECT, REJECT]
        exchange.acknowledge("some of a batch", {0: [(0, 3, kinds)]})
        exchange.fetch("second", max_wait_ms=1000)
        exchange.fetch("all of a batch", {0: [(4, 7, [REJECT])]})
        exchange.until_done(8)
        exchange.produce(2, 1)
        exchange.fetch("of another partition", max_wait_ms=1000)
        exchange.acknowledge("of another partition", {1: [(0, 1, [REJECT])]})
        exchange.finish(2, 1)


def contents(exchange: Letters) -> None:
    """Compressed records, and records that are too large for the queue."""
    exchange.make_queue("dlq.contents", **{"max.message.bytes": "2000"})
    exchange.begin_with_queue("contents", "dlq.contents", copies=True)
    exchange.produce_values(b"a" * 700, b"b" * 900, b"c" * 2500, b"d" * 100)
    exchange.produce_values(b"e" * 1700)
    exchange.produce_values(b"f" * 300, b"g" * 400, b"h" * 200, is_compressed=True)
    for _ in range(3):
        exchange.fetch("fetched", max_wait_ms=1000, is_noted=False)
    exchange.acknowledge("all", {0: [(0, 7, [REJECT])]})
    exchange.finish(8)


def delivered_too_often(exchange: Letters) -> None:
    exchange.make_queue("dlq.often")
    exchange.begin_with_queue("released", "dlq.often", 3)
    for count in (1, 2):
        exchange.fetch(f"delivery {count}")
        exchange.acknowledge(f"release {count}", {0: [(0, 2, [RELEASE])]})
    exchange.finish(3)
    exchange.begin_with_queue("expired", "dlq.often", 2)
    exchange.fetch("delivery 1")
    time.sleep(LOCK_S + 0.5)
    exchange.fetch("delivery 2", max_wait_ms=2000)
    exchange.finish(2)
    exchange.begin_with_queue("closed", "dlq.often", 2)
    exchange.fetch("delivery 1")
    exchange.acknowledge("release 1", {0: [(0, 1, [RELEASE])]})
    exchange.fetch("delivery 2")
    exchange.end()
    exchange.until_done(2)


def topics(exchange: Letters) -> None:
    """A topic that is created, and those that cannot be the queue: their records are archived."""
    exchange.begin_with_queue("created", "dlq.created", 1)
    exchange.fetch("fetched")
    exchange.acknowledge("rejected", {0: [(0, 0, [REJECT])]})
    exchange.finish(1)
    struct, key = exchange.client.struct, apis.DESCRIBE_CONFIGS
    wanted = struct(key, "DescribeConfigsResource", resource_type=2, resource_name="dlq.created")
    (answer,) = exchange.client.ask(key, 4, resources=[wanted]).results
    exchange.answers.append(("configs", sorted((one.name, one.value) for one in answer.configs if one.config_source == 1)))
    exchange.make_queue("dlq.disabled", **{ENABLE: "false"})
    exchange.make_queue("other")
    for name, queue in (("disabled", "dlq.disabled"), ("prefix", "other")):
        exchange.begin_with_queue(name, queue, 2)
        exchange.fetch("fetched")
        exchange.acknowledge("rejected", {0: [(0, 1, [REJECT])]})
        exchange.finish(2)


PARTS = (rejected, contents, delivered_too_often, topics)


def letters_of(home: Path, topics: list[str]) -> dict[str, list[Any]]:
    """The records of the queues, by partition."""
    return {
        path.name: [(record.offset, record.key, record.value, record.headers) for record in offline_records(path)]
        for topic in topics
        for path in sorted((home / "data").glob(f"{topic}-[0-9]"))
    }


def test_letters(kafka_4_4: Peer, tmp_path: Path) -> None:
    """The whole exchange, with a group of its own for each part."""
    (tmp_path / "kafka").mkdir()
    with (
        new_broker(kafka_4_4, tmp_path / "kafka", *ALL_SETTINGS) as theirs,
        running_kcli(tmp_path / "kcli", *ALL_SETTINGS) as ours,
    ):
        raise_features(ours)
        mine, kafkas = Letters(ours), Letters(theirs)
        for part in PARTS:
            for exchange in (mine, kafkas):
                part(exchange)
            for (label, found), (_, expected) in zip(mine.answers, kafkas.answers, strict=True):
                assert found == expected, f"{part.__name__}: {label}"
        for exchange in (mine, kafkas):
            exchange.client.close()
    own, other = (letters_of(tmp_path / name, mine.queues) for name in ("kcli", "kafka"))
    assert own.keys() == other.keys() >= {"dlq.rejected-0", "dlq.rejected-1", "dlq.contents-0", "dlq.often-0", "dlq.created-0"}
    for name, found in other.items():
        assert own[name] == found, name
    assert {name for name, found in other.items() if not found} == {"dlq.rejected-2", "dlq.disabled-0", "other-0"}
