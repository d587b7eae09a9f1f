"""Protects the controller's index of partitions (Kafka's BrokersToIsrsTest and BrokersToElrsTest): it is what a scan of all
partitions would find, also after a resignation; and decisions reach the partitions of a broker, no others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.apis import API_KEYS, UNREGISTER_BROKER
from kcli.protocol.message import Message
from kcli.server.controller.controller_state import ControllerImage, ControllerState, PartitionIndex
from kcli.server.raft.metadata_batches import new_record
from kcli.state.speculative_state import SnapshottedState
from tests.server.controller.controllers import ControllerNode

BROKERS = (1, 2, 3)
TOPICS = [Uuid(bytes([number]) * 16) for number in range(1, 5)]


def scanned(image: ControllerImage) -> PartitionIndex:
    index = PartitionIndex()
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            index.follow((topic.topic_id, number), None, partition)
    return index


def contents(index: PartitionIndex) -> dict[str, Any]:
    return {
        "in sync": {broker: set(index.in_sync_on(broker)) for broker in BROKERS},
        "or eligible": {broker: set(index.in_sync_or_eligible_on(broker)) for broker in BROKERS},
        "leads": {broker: index.leads(broker) for broker in BROKERS},
        "others": (set(index.without_leader), set(index.imbalanced), set(index.moving)),
    }


def drawn(rng: random.Random, image: ControllerImage) -> Message:
    """A record that fits the image."""

    def some() -> list[int]:
        return rng.sample(BROKERS, rng.randint(0, 3))

    topic_id = rng.choice(TOPICS)
    topic = image.topics.get(topic_id)
    if topic is None:
        return new_record("TopicRecord", name=f"t{topic_id[0]}", topic_id=topic_id)
    number = rng.randrange(3)
    at = {"topic_id": topic_id, "partition_id": number, "leader": rng.choice((-1, 1, 2, 3))}
    if number not in topic.partitions:
        replicas = rng.sample(BROKERS, 3)
        return new_record("PartitionRecord", replicas=replicas, isr=some(), eligible_leader_replicas=some(), **at)
    return rng.choice(
        (
            new_record("PartitionChangeRecord", isr=some(), **at),
            new_record("PartitionChangeRecord", eligible_leader_replicas=some(), **at | {"leader": -2}),
            new_record("PartitionChangeRecord", adding_replicas=some(), replicas=rng.sample(BROKERS, 3), **at),
            new_record("PartitionChangeRecord", removing_replicas=[], adding_replicas=[], **at | {"leader": -2}),
            new_record("PartitionRecord", replicas=[1, 2, 3], isr=some(), **at),
            new_record("ClearElrRecord", topic_name=rng.choice(("", topic.name))),
            new_record("RemoveTopicRecord", topic_id=topic_id),
        )
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_index_is_what_a_scan_finds(seed: int) -> None:
    """After each record, each resignation, and with frozen copies, whose reverted records do not reach it."""
    rng = random.Random(seed)
    image = ControllerImage()
    state = SnapshottedState[ControllerImage, Any](image, image.apply_at)
    committed = 0
    for offset in range(300):
        state.append(drawn(rng, image), offset)
        draw = rng.random()
        if draw < 0.2:
            state.commit(committed := offset)
        elif draw < 0.3:
            state.roll_back()
        elif draw < 0.4:
            assert not any(state.committed().index.in_sync_on(broker) for broker in BROKERS)
        assert contents(image.index) == contents(scanned(image)), (offset, committed)


def test_decisions_reach_the_partitions_of_the_broker_alone(node: ControllerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fencing, unfencing, shutdown, a directory that fails and unregistering (Kafka: testFenceMultipleBrokers and others)."""
    for broker_id in (2, 3):
        node.register(broker_id, broker_id)
        node.beat(broker_id)
    node.create_topic("orders", 30, 1)
    reached: list[int] = []
    change = ControllerState.change

    def counted(state: ControllerState, topic: Any, index: int, **more: Any) -> Any:
        reached.append(index)
        return change(state, topic, index, **more)

    monkeypatch.setattr(ControllerState, "change", counted)

    def on(broker_id: int) -> list[int]:
        topic = node.core.state.image.topic("orders")
        assert topic is not None
        return sorted(index for index, partition in topic.partitions.items() if broker_id in partition.replicas)

    def decided(**changes: Any) -> list[int]:
        reached.clear()
        assert node.beat(2, **changes).error_code == 0
        return sorted(reached)

    assert decided() == []
    assert decided(want_fence=True) == on(2)
    assert decided() == on(2), "those without a leader"
    assert decided(offline_log_dirs=node.core.state.image.brokers[2].log_dirs) == on(2)
    assert decided(want_fence=True) == []
    reached.clear()
    assert node.ask(UNREGISTER_BROKER, API_KEYS[UNREGISTER_BROKER].request.new(broker_id=2)).error_code == 0
    assert sorted(reached) == on(2), "those that it is an eligible leader of"
    reached.clear()
    assert not node.beat(3, want_shut_down=True).should_shut_down
    assert sorted(reached) == on(3)
