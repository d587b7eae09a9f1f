"""Protects decide, append, apply: whatever is asked for in whatever order, the controller, the broker that follows it and a
reader of the log alone come to the same image, after each prefix of the log that a node may have been left with.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol.apis import (
    ALLOCATE_PRODUCER_IDS,
    API_KEYS,
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    UPDATE_FEATURES,
)
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted

STEPS = 40


def state_of(image: MetadataImage) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(image).items()
        if name not in ("_own_topics", "snapshot_timestamp_ms", "registration_offsets", "index")
    }


def apply(image: MetadataImage, batch: MetadataBatch) -> None:
    for control in batch.control_records:
        image.apply_control(control)
    for record in batch.records:
        image.apply(record)


def steps(node: ControllerNode, dice: random.Random) -> list[Callable[[], object]]:
    """What an administrator and brokers may do next; most of it is allowed, some is not."""

    def new(key: int, /, **fields: Any) -> Any:
        return API_KEYS[key].request.new(**fields)

    def struct(key: int, name: str, /, **fields: Any) -> Any:
        return API_KEYS[key].request.classes[name](**fields)

    name = f"topic-{dice.randrange(6)}"
    broker_id = dice.choice((1, 2))
    grown = struct(CREATE_PARTITIONS, "CreatePartitionsTopic", name=name, count=dice.randrange(1, 6), assignments=None)
    gone = struct(DELETE_TOPICS, "DeleteTopicState", name=name)
    key, value = dice.choice((("retention.ms", "5"), ("min.insync.replicas", "2"), ("cleanup.policy", "odd")))
    config = struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=key, config_operation=dice.choice((0, 1)), value=value)
    resource = struct(INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", resource_type=2, resource_name=name, configs=[config])
    level = dice.choice((0, 1))
    feature = struct(
        UPDATE_FEATURES, "FeatureUpdateKey", feature="group.version", max_version_level=level, upgrade_type=2 - level
    )

    def heartbeat() -> None:
        if broker_id in node.core.state.image.brokers:
            node.beat(broker_id, want_fence=dice.random() < 0.2, want_shut_down=dice.random() < 0.1)

    def producer_ids() -> None:
        if 1 in node.core.state.image.brokers:
            epoch = node.core.state.image.brokers[1].broker_epoch
            node.ask(ALLOCATE_PRODUCER_IDS, new(ALLOCATE_PRODUCER_IDS, broker_id=1, broker_epoch=epoch))

    return [
        lambda: node.create_topic(name, dice.randrange(1, 4), dice.choice((1, 1, 2))),
        lambda: node.ask(CREATE_PARTITIONS, new(CREATE_PARTITIONS, topics=[grown])),
        lambda: node.ask(DELETE_TOPICS, new(DELETE_TOPICS, topics=[gone])),
        lambda: node.ask(INCREMENTAL_ALTER_CONFIGS, new(INCREMENTAL_ALTER_CONFIGS, resources=[resource])),
        lambda: node.ask(UPDATE_FEATURES, new(UPDATE_FEATURES, feature_updates=[feature])),
        lambda: node.register(broker_id, dice.randrange(1, 4)),
        heartbeat,
        heartbeat,
        producer_ids,
        lambda: node.run(dice.choice((100, 4_000))),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_everybody_comes_to_the_same_image(tmp_path: Path, seed: int) -> None:
    """After each step, and for each prefix of the log; a node that starts again too; no step is a fault of ours."""
    dice = random.Random(seed)
    directory = formatted(tmp_path / "data")
    node = ControllerNode(directory).start_with_broker()
    for _ in range(STEPS):
        dice.choice(steps(node, dice))()
        assert state_of(node.core.state.image) == state_of(node.broker.image)
    assert not [line for line in node.lines if "fault" in line]
    log = node.core.raft.log
    image = MetadataImage()
    (voters, *_) = log.snapshot_batches(log.snapshots[0])
    apply(image, voters)
    for batch in log.batches(0, log.end_offset):
        apply(image, batch)
        if image.pending_records is None:
            again = MetadataImage()
            for record in image_records(image.frozen()):
                again.apply(record)
            for attribute in ("topics", "brokers", "configs", "features", "next_producer_id"):
                assert getattr(again, attribute) == getattr(image, attribute)
    assert state_of(image) == state_of(node.broker.image)
    expected = state_of(image)
    node.stop()
    restarted = ControllerNode(directory).start()
    found = state_of(restarted.core.state.image)
    for attribute in expected.keys() - {"controllers"}:
        assert found[attribute] == expected[attribute], attribute
    restarted.stop()
