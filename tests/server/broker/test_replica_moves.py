"""Protects AlterReplicaLogDirs from request to end: records served all the way, the metadata told, restarts survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol.apis import ALTER_REPLICA_LOG_DIRS, API_KEYS, DESCRIBE_LOG_DIRS, OFFSET_FOR_LEADER_EPOCH
from tests.server.whole_node import WholeNode, batch, partitions_of


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def started(dirs: tuple[Path, Path]) -> WholeNode:
    return WholeNode(dirs[0], f"log.dirs={dirs[0]},{dirs[1]}")


def move(node: WholeNode, path: Path, topic: str = "t", index: int = 0) -> int:
    """Ask for a move -> the error code."""
    classes = API_KEYS[ALTER_REPLICA_LOG_DIRS].request.classes
    asked = classes["AlterReplicaLogDirTopic"](name=topic, partitions=[index])
    request = API_KEYS[ALTER_REPLICA_LOG_DIRS].request.new(dirs=[classes["AlterReplicaLogDir"](path=str(path), topics=[asked])])
    answer = node.send(ALTER_REPLICA_LOG_DIRS, 2, request).result()
    return int(answer.results[0].partitions[0].error_code)


def where(node: WholeNode) -> dict[str, list[bool]]:
    """What DescribeLogDirs says: for each directory, whether its replicas of `t` are future ones."""
    request = API_KEYS[DESCRIBE_LOG_DIRS].request.new(topics=None)
    answer = node.send(DESCRIBE_LOG_DIRS, 4, request).result()
    return {
        Path(found.log_dir).name: [part.is_future_key for topic in found.topics for part in topic.partitions]
        for found in answer.results
    }


def values_at(node: WholeNode, end: int) -> bytes:
    pending = node.fetch({("t", 0): 0})
    part = partitions_of(pending.result())["t", 0]
    assert (part.error_code, part.high_watermark) == (0, end)
    return bytes(part.records)


def test_a_replica_moves_and_the_metadata_knows(dirs: tuple[Path, Path]) -> None:
    node = started(dirs)
    topic_id = node.create_topic("t")
    for number in range(5):
        assert node.produce("t", 0, batch(b"%d" % number)).result().responses[0].partition_responses[0].error_code == 0
    before = values_at(node, 5)
    home = Path(node.broker.replica_manager.partition("t", 0).log.directory).parent  # type: ignore[union-attr]
    target = next(path for path in dirs if path != home)
    assert move(node, target) == 0
    assert where(node) == {home.name: [False], target.name: [True]}
    node.until(lambda: where(node) == {home.name: [], target.name: [False]})
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    assert log.directory == str(target / "t-0")
    assert values_at(node, 5) == before
    assert node.broker.metadata.directory_of(topic_id, 0, 1) == node.broker.log_manager.directory_id_of(log)
    assert node.produce("t", 0, batch(b"6")).result().responses[0].partition_responses[0].error_code == 0
    node.stop()
    again = started(dirs)
    assert values_at(again, 6).startswith(before)
    assert where(again) == {home.name: [], target.name: [False]}


def test_moving_where_it_is_or_nowhere(dirs: tuple[Path, Path]) -> None:
    node = started(dirs)
    node.create_topic("t")
    home = Path(node.broker.replica_manager.partition("t", 0).log.directory).parent  # type: ignore[union-attr]
    assert move(node, home) == 0
    assert move(node, home / "other") == 57
    assert sorted(where(node).values()) == [[], [False]]


def test_a_move_goes_on_after_a_restart(dirs: tuple[Path, Path]) -> None:
    node = started(dirs)
    node.create_topic("t")
    node.produce("t", 0, batch(b"one"))
    home = Path(node.broker.replica_manager.partition("t", 0).log.directory).parent  # type: ignore[union-attr]
    target = next(path for path in dirs if path != home)
    move(node, target)
    node.stop()
    again = started(dirs)
    again.until(lambda: where(again) == {home.name: [], target.name: [False]})
    assert b"one" in values_at(again, 1)


def epoch_end(node: WholeNode, epoch: int) -> tuple[int, int]:
    """What OffsetForLeaderEpoch says of an epoch of t-0."""
    type_ = API_KEYS[OFFSET_FOR_LEADER_EPOCH].request
    asked = type_.classes["OffsetForLeaderPartition"](partition=0, leader_epoch=epoch)
    request = type_.new(topics=[type_.classes["OffsetForLeaderTopic"](topic="t", partitions=[asked])])
    answer = node.send(OFFSET_FOR_LEADER_EPOCH, 4, request).result().topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


def test_the_present_epoch_is_known_where_a_replica_has_moved(dirs: tuple[Path, Path]) -> None:
    """Of an epoch without records nothing is copied; a consumer that asks for it would believe its records lost."""
    node = started(dirs)
    node.create_topic("t")
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None and partition.log is not None
    home = Path(partition.log.directory).parent
    target = next(path for path in dirs if path != home)
    assert epoch_end(node, partition.leader_epoch) == (partition.leader_epoch, 0)
    move(node, target)
    node.until(lambda: where(node) == {home.name: [], target.name: [False]})
    assert epoch_end(node, partition.leader_epoch) == (partition.leader_epoch, 0)


def test_a_replica_whose_directory_is_not_told_yet_moves(dirs: tuple[Path, Path]) -> None:
    """Telling the controller where it is must not undo telling it where it goes."""
    node = started(dirs)
    topic_id = node.create_topic("t")
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    home = Path(log.directory).parent
    target = next(path for path in dirs if path != home)
    assert node.broker.metadata.directory_of(topic_id, 0, 1) != node.broker.log_manager.directory_id_of(log)
    move(node, target)
    node.broker.moves.caught_up("t", 0, node.now_ms)
    assert node.broker.assignments._pending[topic_id, 0] == node.broker.log_manager.directory_id_of(log)
    node.until(lambda: where(node) == {home.name: [], target.name: [False]})


def test_a_start_with_only_the_future_directory_left_takes_it(dirs: tuple[Path, Path]) -> None:
    """A crash between two renames leaves it so: its records are the partition's, and no empty log is made in their place."""
    node = started(dirs)
    node.create_topic("t")
    for number in range(3):
        node.produce("t", 0, batch(b"%d" % number)).result()
    before = values_at(node, 3)
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    home, known = Path(log.directory), node.broker.log_manager.directory_id_of(log)
    node.until(lambda: node.broker.metadata.directory_of(log.topic_id, 0, 1) == known)
    node.stop()
    home.rename(home.with_name(f"t-0.{'0' * 32}-future"))
    again = started(dirs)
    again.until(lambda: again.broker.replica_manager.partition("t", 0) is not None)
    assert values_at(again, 3) == before
    assert home.is_dir() and not list(home.parent.glob("*-future"))
