"""Protects the operations of an administrator against kcli's own node, in one process and in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kcli.client.admin import cluster, configs, group_lag, group_offsets, group_reset, groups, log_dirs, partitions, topics
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation, value_of
from kcli.client.client_config import ClientConfig
from kcli.client.errors import ClientError, KafkaError
from kcli.client.network_client import NetworkClient
from kcli.client.value_checks import OffsetAndMetadata
from kcli.network.events import ClosePeer, ResponseReceived, SendRequest
from kcli.protocol.apis import LIST_OFFSETS, OFFSET_FETCH
from kcli.protocol.framing import read_request_header
from tests.server.whole_node import Pending, WholeNode, batch

_Result = TypeVar("_Result")


class AdminOfNode:
    """A core whose requests a node in this process answers; both have the node's time."""

    def __init__(self, directory: Path) -> None:
        self.node = WholeNode(directory, "offsets.topic.num.partitions=1")
        config = ClientConfig(bootstrap_servers=("127.0.0.1:19092",), default_api_timeout_ms=5000)
        self.network = NetworkClient(config, random.Random(1), lambda line: None, self.node.now_ms)
        self.core = AdminCore(self.network)
        self._pending: list[tuple[SendRequest, Pending]] = []
        self.asked: list[int] = []  # the API keys of all requests

    def execute(self, operation: Operation[_Result]) -> _Result:
        """Execute an operation to its end. Raises its ClientError."""
        found: list[Any] = []
        self.network.timer.observe(self.node.now_ms)
        self.core.start(operation, lambda result, now_ms: found.append(result), self.node.now_ms)
        self.node.until(lambda: self._exchange() or bool(found))
        if isinstance(found[0], ClientError):
            raise found[0]
        result: _Result = found[0]
        return result

    def _exchange(self) -> None:
        self.network.advance(self.node.now_ms)
        for effect in self.network.take_effects():
            if isinstance(effect, ClosePeer):
                continue
            key, version, *_ = read_request_header(effect.frame[4:])
            self.asked.append(key)
            self._pending.append((effect, self.node.send_frame(effect.frame[4:], key, version)))
        answered = [one for one in self._pending if one[1].frame is not None]
        self._pending = [one for one in self._pending if one[1].frame is None]
        for effect, pending in answered:
            assert pending.frame is not None
            self.network.handle(ResponseReceived(effect.request_id, pending.frame[4:]), self.node.now_ms)


@pytest.fixture(scope="module")
def of_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminOfNode]:
    admin = AdminOfNode(tmp_path_factory.mktemp("node"))
    made = admin.execute(topics.create_topics([topics.NewTopic("orders", 2, 1)]))
    assert value_of(made["orders"]).num_partitions == 2
    for index, count in enumerate((3, 5)):
        pending = admin.node.produce("orders", index, batch(*[b"value"] * count))
        admin.node.until(lambda pending=pending: pending.answer is not None)
    yield admin


def test_topics(of_node: AdminOfNode) -> None:
    assert list(of_node.execute(topics.list_topics())) == ["orders"]
    described = of_node.execute(topics.describe_topics(["orders", "none"]))
    assert [one.replicas for one in value_of(described["orders"]).partitions] == [(1,), (1,)]
    error = described["none"]
    assert isinstance(error, KafkaError) and error.name == "UNKNOWN_TOPIC_OR_PARTITION"
    made = of_node.execute(topics.create_topics([topics.NewTopic("given", assignments={0: [1], 1: [1]})]))
    topic_id = value_of(made["given"]).topic_id
    assert of_node.execute(topics.create_partitions({"given": topics.NewPartitions(3, [[1]])})) == {"given": None}
    assert of_node.execute(topics.delete_topics([topic_id])) == {topic_id: None}
    assert "given" not in of_node.execute(topics.list_topics())


def test_configs(of_node: AdminOfNode) -> None:
    resource = configs.ConfigResource(configs.ResourceType.TOPIC, "orders")
    change = configs.AlterConfigOp("retention.ms", configs.AlterOperation.SET, "5000")

    def value() -> configs.ConfigEntry:
        return value_of(of_node.execute(configs.describe_configs([resource]))[resource])["retention.ms"]

    assert of_node.execute(configs.incremental_alter_configs({resource: [change]}, validate_only=True)) == {resource: None}
    assert value().is_default
    assert of_node.execute(configs.incremental_alter_configs({resource: [change]})) == {resource: None}
    assert (value().value, value().source) == ("5000", configs.ConfigSource.TOPIC_CONFIG)
    undo = change._replace(operation=configs.AlterOperation.DELETE, value=None)
    assert of_node.execute(configs.incremental_alter_configs({resource: [undo]})) == {resource: None}
    assert value().is_default
    wrong = of_node.execute(configs.incremental_alter_configs({resource: [change._replace(value="soon")]}))[resource]
    assert isinstance(wrong, KafkaError) and wrong.name == "INVALID_CONFIG"
    assert resource in of_node.execute(configs.list_config_resources([configs.ResourceType.TOPIC]))


def test_offsets_of_partitions(of_node: AdminOfNode) -> None:
    found = of_node.execute(partitions.list_offsets({("orders", 0): -1, ("orders", 1): -2, ("orders", 2): -1}))
    assert value_of(found["orders", 0]).offset == 3 and value_of(found["orders", 1]).offset == 0
    assert isinstance(found["orders", 2], ClientError)
    assert of_node.execute(partitions.describe_producers([("orders", 0)])) == {("orders", 0): ()}


def test_offsets_of_groups(of_node: AdminOfNode) -> None:
    """A reset creates the group; its lag is what is left; it is deleted at the end."""
    both = [("orders", 0), ("orders", 1)]
    plan = of_node.execute(group_reset.plan_reset("readers", both, group_reset.ResetTo.OFFSET, 4))
    assert [(value_of(one).current, value_of(one).new) for one in plan.values()] == [(None, 3), (None, 4)]
    agreed = {at: value_of(one) for at, one in plan.items()}
    assert of_node.execute(group_reset.commit_plan("readers", agreed)) == dict.fromkeys(both)
    listed = of_node.execute(groups.list_groups(types=["classic"]))
    assert [(one.group_id, one.state) for one in listed.groups] == [("readers", "Empty")]
    assert of_node.execute(groups.list_groups(states=["Stable"])).groups == []
    lags = value_of(of_node.execute(group_lag.describe_group_lags(listed.groups))["readers"])
    assert [(one.current_offset, one.log_end_offset, one.lag) for one in lags.partitions] == [(3, 3, 0), (4, 5, 1)]
    shifted = of_node.execute(group_reset.plan_reset("readers", both, group_reset.ResetTo.SHIFT, -10))
    assert [value_of(one).new for one in shifted.values()] == [0, 0]
    assert of_node.execute(group_offsets.delete_consumer_group_offsets("readers", both[:1])) == {both[0]: None}
    left = value_of(of_node.execute(group_offsets.list_consumer_group_offsets({"readers": both}))["readers"])
    assert left == {both[0]: None, both[1]: OffsetAndMetadata(4)}
    unknown = of_node.execute(group_reset.plan_reset("readers", [("orders", 7)], group_reset.ResetTo.LATEST))
    assert isinstance(unknown["orders", 7], KafkaError)
    assert of_node.execute(groups.delete_groups(["readers"])) == {"readers": None}
    (gone,) = of_node.execute(groups.describe_consumer_groups(["readers"])).values()
    assert isinstance(gone, KafkaError) and gone.name == "GROUP_ID_NOT_FOUND"


def test_a_plan_of_many_offsets_asks_once(of_node: AdminOfNode) -> None:
    """A file has an offset of its own for each partition; the time for all of them is default.api.timeout.ms."""
    of_node.asked.clear()
    plan = of_node.execute(group_reset.plan_offsets("readers", {("orders", 1): 9, ("orders", 0): 1}))
    assert [(at, value_of(one).new) for at, one in plan.items()] == [(("orders", 0), 1), (("orders", 1), 5)]
    assert [of_node.asked.count(key) for key in (OFFSET_FETCH, LIST_OFFSETS)] == [1, 2]


def test_the_cluster(of_node: AdminOfNode) -> None:
    described = of_node.execute(cluster.describe_cluster())
    assert [(node.node_id, node.port) for node in described.nodes] == [(1, 19092)]
    assert "metadata.version" in of_node.execute(cluster.describe_features()).finalized
    quorum = of_node.execute(cluster.describe_metadata_quorum())
    assert (quorum.leader_id, [one.replica_id for one in quorum.voters]) == (1, [1])
    (dirs,) = value_of(of_node.execute(log_dirs.describe_log_dirs([1]))[1]).values()
    assert dirs.error is None and ("orders", 0) in dirs.replicas
    replica = log_dirs.TopicPartitionReplica("orders", 0, 1)
    place = value_of(of_node.execute(log_dirs.describe_replica_log_dirs([replica]))[replica])
    assert place.current_dir is not None and place.future_dir is None
