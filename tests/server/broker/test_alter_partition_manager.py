"""Protects how ISRs reach the controller: one request at a time, with all changes that wait, until each has its answer."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_PARTITION, API_KEYS
from kcli.protocol.message import Message
from kcli.server.broker.alter_partition_manager import RETRY_MS, AlterPartitionManager
from kcli.server.replication.replica import IsrAnswer, IsrChange

TOPICS = [Uuid(bytes([number]) * 16) for number in (1, 2)]


class Partition:
    """A led partition; `answers` is what it was told."""

    def __init__(self, topic_id: Uuid, index: int) -> None:
        self.topic_id, self.index = topic_id, index
        self.answers: list[IsrAnswer | int] = []

    def isr_answered(self, change: IsrChange, answer: IsrAnswer | int) -> None:
        """Take an answer."""
        self.answers.append(answer)


class Broker:
    """The manager with a channel whose requests the test answers, and a lifecycle with a broker epoch."""

    def __init__(self) -> None:
        self.timer = Timer(1000)
        self.broker_epoch = 7
        self.channels: list[str] = []
        self.sent: list[tuple[Message, Any]] = []
        parts: Any = (self, self)
        self.manager = AlterPartitionManager(1, *parts, self.timer)

    def separate(self, channel: str) -> Broker:
        """Be the channel, too."""
        self.channels.append(channel)
        return self

    def send(self, api_key: int, request: Message, callback: Any) -> None:
        """Take a request."""
        assert api_key == ALTER_PARTITION
        API_KEYS[ALTER_PARTITION].request.encode(request, 3)
        self.sent.append((request, callback))

    def propose(self, partition: Any, isr: list[tuple[int, int]] | None = None, partition_epoch: int = 5) -> None:
        """Propose an ISR."""
        members = isr or [(1, -1), (2, 20)]
        change = IsrChange(3, partition_epoch, members, frozenset(member for member, _ in members), True)
        self.manager.propose(partition, change)

    def advance(self, ms: int = 0) -> None:
        """Let time go by."""
        self.timer.advance(self.timer.clock_ms + ms)

    def answer(self, *parts: tuple[Partition, dict[str, Any]], error_code: int = 0) -> None:
        """Answer the request under way."""
        _, callback = self.sent.pop(0)
        classes = API_KEYS[ALTER_PARTITION].response.classes
        topics = [
            classes["TopicData"](
                topic_id=partition.topic_id, partitions=[classes["PartitionData"](partition_index=partition.index, **fields)]
            )
            for partition, fields in parts
        ]
        callback(API_KEYS[ALTER_PARTITION].response.new(error_code=error_code, topics=topics), self.timer.clock_ms)

    def asked(self) -> dict[tuple[Uuid, int], Message]:
        """The partitions of the request under way."""
        ((request, _),) = self.sent
        assert (request.broker_id, request.broker_epoch) == (1, self.broker_epoch)
        return {(topic.topic_id, one.partition_index): one for topic in request.topics for one in topic.partitions}


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def led() -> list[Partition]:
    return [Partition(TOPICS[0], 0), Partition(TOPICS[0], 1), Partition(TOPICS[1], 0)]


def test_changes_go_together_with_the_epochs_of_the_members(broker: Broker, led: list[Partition]) -> None:
    for partition in led:
        broker.propose(partition)
    assert broker.sent == [] and broker.channels == ["alter-partition"]
    broker.advance()
    found = broker.asked()
    assert list(found) == [(partition.topic_id, partition.index) for partition in led]
    one = found[TOPICS[0], 0]
    assert (one.leader_epoch, one.partition_epoch, one.leader_recovery_state) == (3, 5, 0)
    assert [(member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs] == [(1, 7), (2, 20)]
    broker.answer(
        (led[0], {"leader_epoch": 3, "partition_epoch": 6, "isr": [1, 2]}),
        (led[1], {"error_code": error_codes.INELIGIBLE_REPLICA}),
    )
    assert [partition.answers for partition in led] == [[IsrAnswer(3, 6, [1, 2])], [error_codes.INELIGIBLE_REPLICA], []]
    broker.advance()
    assert list(broker.asked()) == [(TOPICS[1], 0)], "what was not answered is sent again"


def test_one_request_is_under_way_and_one_change_of_a_partition(broker: Broker, led: list[Partition]) -> None:
    broker.propose(led[0])
    broker.advance()
    broker.propose(led[1])
    broker.propose(led[0], partition_epoch=6)
    broker.advance(1000)
    assert len(broker.sent) == 1 and led[0].answers == [error_codes.OPERATION_NOT_ATTEMPTED]
    broker.answer((led[0], {"leader_epoch": 3, "partition_epoch": 6, "isr": [1, 2]}))
    broker.advance()
    assert list(broker.asked()) == [(TOPICS[0], 1)]
    broker.propose(led[0], partition_epoch=6)
    broker.answer((led[1], {"leader_epoch": 3, "partition_epoch": 6, "isr": [1, 2]}))
    broker.advance()
    assert list(broker.asked()) == [(TOPICS[0], 0)]


@pytest.mark.parametrize("what", ["nothing", "an error", "another controller"])
def test_a_request_without_a_result_is_sent_again(broker: Broker, led: list[Partition], what: str) -> None:
    broker.propose(led[0])
    broker.advance()
    broker.propose(led[1])
    broker.broker_epoch = 8
    if what == "nothing":
        broker.sent.pop()[1](None, broker.timer.clock_ms)
    elif what == "an error":
        broker.answer(error_code=error_codes.STALE_BROKER_EPOCH)
    else:
        broker.answer((led[0], {"error_code": error_codes.NOT_CONTROLLER}))
    broker.advance(RETRY_MS - 1)
    assert broker.sent == [] and led[0].answers == []
    broker.advance(1)
    assert list(broker.asked()) == [(TOPICS[0], 0), (TOPICS[0], 1)]
