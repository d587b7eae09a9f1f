"""Protects the dead letter queues of share groups on a whole node: which records come into them, and what happens to others.

What is expected follows Kafka 4.4.0; tests/oracle/test_dead_letters.py compares the records.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kcli.network.peer_request import PeerFailure
from kcli.server.replication.share.dead_letters import DELIVERED_TOO_OFTEN, MOST_ATTEMPTS, REJECTED
from kcli.server.replication.share_persister import ShareKey
from kcli.server.shell.group_samples import sample_shares
from kcli.state.metadata_values import ConfigResource
from tests.oracle.reading import offline_records
from tests.server.apis.asking import upgrade
from tests.server.apis.share_requests import ACCEPT, REJECT, RELEASE, ShareMember, acquired_of
from tests.server.apis.test_share_fetch import ShareNode
from tests.server.whole_node import WholeNode, batch

QUEUE = "dlq.group"
Letter = tuple[bytes | None, bytes | None, dict[str, str]]


class DeadLetterNode(ShareNode):
    """A node with the features of 4.4, whose group has a dead letter queue."""

    def __init__(self, directory: Path, *overrides: str, copies: str = "false", partitions: int = 1, **configs: str) -> None:
        super().__init__(directory, *overrides)
        self.directory = directory
        upgrade(self.node)
        if partitions:
            self.node.create_topic(QUEUE, partitions, errors_deadletterqueue_group_enable="true", **configs)
        self.set(topic_name=QUEUE, copy_record_enable=copies)

    def set(self, limit: int = 5, **values: str) -> None:
        """Set the group's configuration."""
        found = {f"errors.deadletterqueue.{name.replace('_', '.')}": value for name, value in values.items()}
        found["share.delivery.count.limit"] = str(limit)
        self.node.broker.image.configs[ConfigResource("GROUP", "group")] = found

    def start_offset(self, index: int = 0) -> int:
        """The start offset of the share partition, below which all records are done."""
        return self.node.broker.share_partitions.partitions[ShareKey("group", self.topic_id, index)].records.start_offset

    def until_done(self, start_offset: int, index: int = 0) -> None:
        """Wait until the start offset of the share partition is there."""
        self.node.until(lambda: self.start_offset(index) == start_offset, 300_000)

    def letters(self, index: int = 0) -> list[Letter]:
        """The records of the queue: key, value, and headers without their prefix."""
        (directory,) = self.directory.glob(f"**/{QUEUE}-{index}")
        found = []
        for record in offline_records(directory):
            headers = {name.removeprefix("__dlq.errors."): (value or b"").decode() for name, value in record.headers}
            found.append((record.key, record.value, headers))
        return found

    def reject(self, member: ShareMember, first: int, last: int, index: int = 0, kind: int = REJECT) -> None:
        """Acknowledge records."""
        member.acknowledge({(self.topic_id, index): [(first, last, [kind])]})


def headers(offset: int, count: int, message: str, partition: int = 0) -> dict[str, str]:
    """The headers of a letter."""
    return {
        "topic": "topic",
        "partition": str(partition),
        "offset": str(offset),
        "group": "group",
        "delivery.count": str(count),
        "message": message,
    }


@pytest.mark.parametrize("copies", ["false", "true"])
def test_rejected_records_are_in_the_queue(tmp_path: Path, copies: str) -> None:
    """With their keys and values if the group wants that; those that are accepted are not there."""
    shared = DeadLetterNode(tmp_path, copies=copies)
    member = shared.member()
    shared.produce(4)
    member.fetch(max_wait_ms=500)
    member.acknowledge({shared.first: [(0, 3, [REJECT, ACCEPT, REJECT, REJECT])]})
    shared.until_done(4)
    values = [b"value %d" % offset if copies == "true" else None for offset in (0, 2, 3)]
    assert shared.letters() == [
        (None, value, headers(offset, 1, REJECTED)) for offset, value in zip((0, 2, 3), values, strict=True)
    ]


@pytest.mark.parametrize("by_lock", [False, True])
def test_records_that_were_delivered_too_often_are_in_the_queue(tmp_path: Path, by_lock: bool) -> None:
    """Whether the member released them or its lock has expired."""
    shared = DeadLetterNode(tmp_path)
    shared.set(2, topic_name=QUEUE)
    member = shared.member()
    shared.produce(2)
    for delivery in (1, 2):
        assert acquired_of(member.fetch(max_wait_ms=500))[0] == [(0, 1, delivery)]
        if by_lock:
            shared.node.advance(31_000)
        else:
            shared.reject(member, 0, 1, kind=RELEASE)
    shared.until_done(2)
    assert shared.letters() == [(None, None, headers(offset, 2, DELIVERED_TOO_OFTEN)) for offset in (0, 1)]


def test_a_topic_is_created_if_the_brokers_allow_it(tmp_path: Path) -> None:
    shared = DeadLetterNode(tmp_path, "errors.deadletterqueue.auto.create.topics.enable=true", partitions=0)
    member = shared.member()
    shared.produce(1)
    member.fetch(max_wait_ms=500)
    shared.reject(member, 0, 0)
    shared.until_done(1)
    assert shared.letters() == [(None, None, headers(0, 1, REJECTED))]
    configs = shared.node.broker.image.configs_of("TOPIC")[QUEUE]
    assert configs == {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dlq.none", "topic dlq.none does not exist, and errors.deadletterqueue.auto.create.topics.enable=false"),
        ("topic", "topic topic does not have errors.deadletterqueue.group.enable=true"),
        ("other", "the name of topic other does not begin with errors.deadletterqueue.topic.name.prefix=dlq."),
    ],
)
def test_records_that_cannot_be_written_are_archived(tmp_path: Path, name: str, reason: str) -> None:
    """The log of the node says why."""
    shared = DeadLetterNode(tmp_path)
    shared.node.create_topic("other", errors_deadletterqueue_group_enable="true")
    shared.set(topic_name=name)
    member = shared.member()
    shared.produce(2)
    member.fetch(max_wait_ms=500)
    shared.reject(member, 0, 1)
    shared.until_done(2)
    assert shared.letters() == []
    text = f"records 0 to 1 of topic-0 cannot be written to the dead letter queue of share group group: {reason}"
    assert text in [str(line) for line in shared.node.lines]


def test_without_share_version_2_there_is_no_queue(tmp_path: Path) -> None:
    shared = ShareNode(tmp_path)
    shared.node.create_topic(QUEUE, errors_deadletterqueue_group_enable="true")
    configs = {"errors.deadletterqueue.topic.name": QUEUE}
    shared.node.broker.image.configs[ConfigResource("GROUP", "group")] = configs
    member = shared.member()
    shared.produce(1)
    member.fetch(max_wait_ms=500)
    member.acknowledge({shared.first: [(0, 0, [REJECT])]})
    partition = shared.node.broker.share_partitions.partitions[ShareKey("group", shared.topic_id, 0)]
    shared.node.until(lambda: partition.records.start_offset == 1)
    (directory,) = tmp_path.glob(f"**/{QUEUE}-0")
    assert offline_records(directory) == []


def test_large_records_need_several_batches(tmp_path: Path) -> None:
    """A batch of the queue has at most max.message.bytes; a record that is larger than that has only headers there."""
    shared = DeadLetterNode(tmp_path, copies="true", max_message_bytes="2000")
    member = shared.member()
    values = [b"a" * 700, b"b" * 900, b"c" * 2500, b"d" * 100, b"e" * 1700, b"f" * 1990]
    for some in (values[:3], values[3:]):
        pending = shared.node.produce("topic", 0, batch(*some))
        shared.node.until(lambda pending=pending: pending.answer is not None)
    for _ in range(2):
        member.fetch(max_wait_ms=500)
    shared.reject(member, 0, 5)
    shared.until_done(6)
    wanted = [value if len(value) < 1990 else None for value in values]
    assert [letter[:2] for letter in shared.letters()] == [(None, value) for value in wanted]


def test_each_partition_has_its_place_in_the_queue(tmp_path: Path) -> None:
    shared = DeadLetterNode(tmp_path, partitions=2)
    member = shared.member()
    shared.produce(1, 0)
    shared.produce(1, 1)
    for _ in range(2):
        member.fetch(max_wait_ms=500)
    for index in (0, 1):
        shared.reject(member, 0, 0, index)
        shared.until_done(1, index)
        assert shared.letters(index) == [(None, None, headers(0, 1, REJECTED, index))]


def test_a_successor_sends_what_was_archiving(tmp_path: Path) -> None:
    """The state says that the records are archiving; the share partition that reads it writes them again."""
    shared = DeadLetterNode(tmp_path)
    manager, key = shared.node.broker.share_partitions, ShareKey("group", shared.topic_id, 0)
    member = shared.member()
    shared.produce(3)
    member.fetch(max_wait_ms=500)
    partition = manager.partitions[key]
    partition._dead_letters = Lost()
    shared.reject(member, 0, 1)
    shared.node.advance(100)
    assert shared.letters() == []
    manager._remove(key)
    member.fetch(max_wait_ms=500)
    shared.until_done(2)
    assert shared.letters() == [(None, None, headers(offset, 1, REJECTED)) for offset in (0, 1)]


def test_records_of_a_member_that_has_left_are_archived(tmp_path: Path) -> None:
    """Although its group is empty then, and its share partitions are removed: the next member does not get them."""
    shared = DeadLetterNode(tmp_path)
    shared.set(2, topic_name=QUEUE)
    member = shared.member()
    shared.produce(2)
    member.fetch(max_wait_ms=500)
    shared.reject(member, 0, 1, kind=RELEASE)
    member.fetch(max_wait_ms=500)
    shared.node.close(member.connection)
    shared.node.advance(1_000)
    assert not shared.node.broker.share_partitions.partitions
    other = shared.member("other")
    assert shared.start_offset() == 2
    assert acquired_of(other.fetch(max_wait_ms=500)) == {}
    assert shared.letters() == [(None, None, headers(offset, 2, DELIVERED_TOO_OFTEN)) for offset in (0, 1)]


class Unreachable:
    """Peers that do not answer, and when they were asked."""

    def __init__(self, node: WholeNode) -> None:
        self.node = node
        self.asked_ms: list[int] = []

    def send(self, *arguments: Any) -> None:
        self.asked_ms.append(self.node.now_ms)
        callback = arguments[4]
        callback(PeerFailure.DISCONNECTED, self.node.now_ms)


def test_after_five_attempts_the_records_are_left_out(tmp_path: Path) -> None:
    """The pauses between the attempts grow from a second; the next record has five attempts of its own."""
    shared = DeadLetterNode(tmp_path)
    member = shared.member()
    shared.produce(3)
    member.fetch(max_wait_ms=500)
    manager = shared.node.broker.dead_letters
    peers, unreachable = manager._peers, Unreachable(shared.node)
    manager._peers = unreachable  # type: ignore[assignment]
    shared.reject(member, 0, 1)
    shared.until_done(2)
    pauses = [later - earlier for earlier, later in itertools.pairwise(unreachable.asked_ms)]
    assert [round(pause / (1_000 << attempt), 1) for attempt, pause in enumerate(pauses)] == pytest.approx([1] * 4, abs=0.21)
    text = "records 0 to 1 of topic-0 cannot be written to the dead letter queue of share group group: "
    assert f"{text}the request failed (DISCONNECTED) after {MOST_ATTEMPTS} attempts" in shared.node.lines
    assert counts(shared) == (0, 5, 1) and shared.letters() == []
    shared.reject(member, 2, 2)
    manager._peers = peers
    shared.until_done(3)
    assert shared.letters() == [(None, None, headers(2, 1, REJECTED))]
    assert counts(shared) == (1, 7, 1)


def counts(shared: DeadLetterNode) -> tuple[float, ...]:
    """The metrics of the group: written records, requests, failed requests."""
    found: dict[str, float] = {}

    def add(name: str, value: float, *labels: str) -> None:
        if "deadletterqueue" in name:
            assert labels == ("group",)
            found[name.removeprefix("kafka_server_sharegroupmetrics_deadletterqueue")] = value

    list(sample_shares(shared.node.broker, add))
    return tuple(found[name] for name in ("recordcount_count", "totalproducerequests_total", "failedproducerequests_total"))


def test_a_request_that_is_refused_is_not_sent_again(tmp_path: Path) -> None:
    """A queue whose topic takes no batch of that size."""
    shared = DeadLetterNode(tmp_path, max_message_bytes="100")
    member = shared.member()
    shared.produce(1)
    member.fetch(max_wait_ms=500)
    shared.reject(member, 0, 0)
    shared.until_done(1)
    assert counts(shared) == (0, 1, 1) and shared.letters() == []


class Lost:
    """A queue that is lost with its broker."""

    def is_enabled(self, group_id: str) -> bool:
        return True

    def enqueue(self, *_: object) -> None:
        """Do nothing."""
