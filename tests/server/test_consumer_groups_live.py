"""Protects that clients of librdkafka use the consumer protocol: members share a topic, and no record is read twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.serving import address_of, serving

confluent_kafka = pytest.importorskip("confluent_kafka")
admin_module = pytest.importorskip("confluent_kafka.admin")

RECORDS, PARTITIONS, SECONDS = 300, 6, 60
FAST = (
    *("--override", "group.consumer.min.heartbeat.interval.ms=100", "--override", "group.consumer.heartbeat.interval.ms=200"),
    *("--override", "group.consumer.assignment.interval.ms=0", "--override", "offsets.topic.replication.factor=1"),
)


class Members:
    """The members of a group; `got` are the records that any of them has read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.open: list[confluent_kafka.Consumer] = []
        self.got: list[tuple[int, int]] = []

    def join(self, topic: str) -> confluent_kafka.Consumer:
        """Add a member that is subscribed to a topic or a pattern."""
        settings = {"group.id": "group", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        member = confluent_kafka.Consumer({"bootstrap.servers": self._address, "enable.auto.commit": False, **settings})
        member.subscribe([topic])
        self.open.append(member)
        return member

    def leave(self, member: confluent_kafka.Consumer) -> None:
        """Commit and leave."""
        member.commit(asynchronous=False)
        self.open.remove(member)
        member.close()

    def read_until(self, is_so: Callable[[], bool]) -> None:
        """Read with all members until something is so."""
        end = time.monotonic() + SECONDS
        while not is_so():
            assert time.monotonic() < end, ([len(member.assignment()) for member in self.open], len(self.got))
            for member in self.open:
                for message in member.consume(50, 0.05):
                    assert message.error() is None, message.error()
                    self.got.append((message.partition(), message.offset()))

    def are_assigned(self, *sizes: int) -> bool:
        """Whether the members have this many partitions, and each partition has one member."""
        assigned = [part.partition for member in self.open for part in member.assignment()]
        return sorted(len(member.assignment()) for member in self.open) == sorted(sizes) and len(set(assigned)) == sum(sizes)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, "--override", f"log.dirs={tmp_path / 'data'}", *FAST) as lines:
        yield address_of(lines)


def produce(address: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce("orders", str(number), partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def test_members_share_a_topic(address: str) -> None:
    """Three members join and leave one by one; each record is read, and none again after it is committed."""
    admin = admin_module.AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([admin_module.NewTopic("orders", PARTITIONS, 1)]).values():
        made.result()
    produce(address)
    members = Members(address)
    first = members.join("orders")
    members.read_until(lambda: members.are_assigned(6) and len(members.got) >= RECORDS)
    assert len(members.got) == len(set(members.got)) == RECORDS
    first.commit(asynchronous=False)
    second = members.join("orders")
    members.read_until(lambda: members.are_assigned(3, 3))
    third = members.join("orders")
    members.read_until(lambda: members.are_assigned(2, 2, 2))
    described = admin.describe_consumer_groups(["group"])["group"].result()
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert described.type == confluent_kafka.ConsumerGroupType.CONSUMER
    assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [2, 2, 2]
    produce(address)
    members.read_until(lambda: len(members.got) >= 2 * RECORDS)
    assert len(members.got) == len(set(members.got)) == 2 * RECORDS
    for member in (first, second):
        members.leave(member)
    members.read_until(lambda: members.are_assigned(6))
    members.leave(third)
    admin.delete_consumer_groups(["group"])["group"].result()
    assert not admin.list_consumer_groups().result().valid
