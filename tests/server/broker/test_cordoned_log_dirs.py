"""Protects cordoned log directories (KIP-1066): they keep what they have and get no new replicas, and a broker whose
directories are all cordoned gets none. The situations are those of Kafka's CordonedLogDirsIntegrationTest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_REPLICA_LOG_DIRS,
    API_KEYS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
    UPDATE_FEATURES,
)
from kcli.protocol.message import Message
from kcli.server.events import Connection
from tests.server.raft.nodes import formatted
from tests.server.whole_node import WholeNode

KEY = "cordoned.log.dirs"


def answered(node: WholeNode, key: int, request: Message, connection: Connection | None = None) -> Message:
    pending = node.send(key, API_KEYS[key].highest_version, request, connection)
    node.until(lambda: pending.answer is not None)
    return pending.result()


def create(node: WholeNode, name: str) -> int:
    request = API_KEYS[CREATE_TOPICS].request
    topic = request.classes["CreatableTopic"](name=name, num_partitions=4, replication_factor=1)
    code: int = answered(node, CREATE_TOPICS, request.new(topics=[topic], timeout_ms=1000)).topics[0].error_code
    if not code:
        node.until(lambda: (name, 3) in node.broker.replica_manager.partitions)
    return code


def add_partitions(node: WholeNode, name: str) -> int:
    request = API_KEYS[CREATE_PARTITIONS].request
    topic = request.classes["CreatePartitionsTopic"](name=name, count=5, assignments=None)
    code: int = answered(node, CREATE_PARTITIONS, request.new(topics=[topic], timeout_ms=1000)).results[0].error_code
    return code


def cordon(node: WholeNode, value: str, name: str = "1", connection: Connection | None = None) -> int:
    """Set cordoned.log.dirs of a broker -> the error code; what the controller knows follows at once, not with the interval."""
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    config = request.classes["AlterableConfig"](name=KEY, config_operation=0, value=value)
    resource = request.classes["AlterConfigsResource"](resource_type=4, resource_name=name, configs=[config])
    answer = answered(node, INCREMENTAL_ALTER_CONFIGS, request.new(resources=[resource]), connection)
    code: int = answer.responses[0].error_code
    node.advance(10)
    return code


def raise_metadata_version(node: WholeNode) -> None:
    request = API_KEYS[UPDATE_FEATURES].request
    raised = request.classes["FeatureUpdateKey"](feature="metadata.version", max_version_level=30, upgrade_type=1)
    assert answered(node, UPDATE_FEATURES, request.new(feature_updates=[raised])).error_code == 0
    node.advance(10)


def described(node: WholeNode) -> list[tuple[str, bool, int]]:
    """The directories, whether each is cordoned, and its number of replicas."""
    results = answered(node, DESCRIBE_LOG_DIRS, API_KEYS[DESCRIBE_LOG_DIRS].request.new(topics=None)).results
    return [(Path(one.log_dir).name, one.is_cordoned, sum(len(topic.partitions) for topic in one.topics)) for one in results]


@pytest.fixture
def log_dirs(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("a", "b")]


def test_directories_are_cordoned_and_uncordoned(log_dirs: list[str]) -> None:
    """One: new partitions are made in the other. All: no new topic, no new partition. None again: as before."""
    first, second = log_dirs
    node = WholeNode(Path(first), f"log.dirs={first},{second}")
    assert cordon(node, second) == 0
    assert create(node, "one") == 0
    assert described(node) == [("a", False, 4), ("b", True, 0)]
    assert cordon(node, "*") == 0
    assert described(node) == [("a", True, 4), ("b", True, 0)]
    assert (create(node, "none"), add_partitions(node, "one")) == (error_codes.INVALID_REPLICATION_FACTOR,) * 2
    assert cordon(node, "") == 0
    assert (create(node, "two"), add_partitions(node, "one")) == (0, 0)
    assert [is_cordoned for _, is_cordoned, _ in described(node)] == [False, False]
    node.stop()


def test_a_controller_only_uncordons(log_dirs: list[str]) -> None:
    """It cannot check directories of a broker: what a client sends to it may only remove some, as in Kafka 4.3.1."""
    first, second = log_dirs
    node = WholeNode(Path(first), f"log.dirs={first},{second}")
    assert cordon(node, f"{first},{second}") == 0
    at = Connection(1001, "CONTROLLER", "127.0.0.1")
    for value, code in ((second, 0), (first, error_codes.INVALID_CONFIG), ("*", error_codes.INVALID_CONFIG), ("", 0)):
        assert cordon(node, value, connection=at) == code
    assert [is_cordoned for _, is_cordoned, _ in described(node)] == [False, False]
    node.stop()


def test_a_replica_is_not_moved_to_a_cordoned_directory(log_dirs: list[str]) -> None:
    """It is refused with INVALID_REPLICA_ASSIGNMENT, and accepted afterwards."""
    first, second = log_dirs
    node = WholeNode(Path(first), f"log.dirs={first},{second}", f"{KEY}={second}")
    assert create(node, "one") == 0
    request = API_KEYS[ALTER_REPLICA_LOG_DIRS].request
    topic = request.classes["AlterReplicaLogDirTopic"](name="one", partitions=[0])
    wanted = request.new(dirs=[request.classes["AlterReplicaLogDir"](path=second, topics=[topic])])

    def move() -> int:
        code: int = answered(node, ALTER_REPLICA_LOG_DIRS, wanted).results[0].partitions[0].error_code
        return code

    assert move() == error_codes.INVALID_REPLICA_ASSIGNMENT
    assert cordon(node, "") == 0
    assert move() == 0
    node.stop()


@pytest.mark.parametrize("static", ["", "*"])
def test_an_older_metadata_version_has_no_cordoned_directories(tmp_path: Path, static: str) -> None:
    """A static setting waits for the upgrade, a dynamic one is refused with INVALID_CONFIG."""
    directory = formatted(tmp_path / "data", release="4.2")
    node = WholeNode(directory, f"{KEY}={static}")
    assert create(node, "before") == 0
    assert [is_cordoned for _, is_cordoned, _ in described(node)] == [False]
    assert cordon(node, "") == error_codes.INVALID_CONFIG
    raise_metadata_version(node)
    assert [is_cordoned for _, is_cordoned, _ in described(node)] == [bool(static)]
    assert create(node, "after") == (error_codes.INVALID_REPLICATION_FACTOR if static else 0)
    node.stop()


def test_settings_that_are_refused(log_dirs: list[str]) -> None:
    """A path that is not in log.dirs, * with others, one value for all brokers."""
    node = WholeNode(Path(log_dirs[0]))
    for value, name in (("/other", "1"), (f"*,{log_dirs[0]}", "1"), (log_dirs[0], "")):
        assert cordon(node, value, name) == error_codes.INVALID_REQUEST
    assert [is_cordoned for _, is_cordoned, _ in described(node)] == [False]
    node.stop()
