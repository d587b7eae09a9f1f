"""Protects an administrator with bootstrap.controllers (KIP-919): the controllers are asked, the active one for changes, and
what controllers do not answer fails at once.

The controllers are scripts; real ones answer in tests/server/test_quorum_live.py and tests/oracle/test_quorum_tools.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from kcli.client import Admin, Producer
from kcli.client.admin import cluster, configs, groups, log_dirs, partitions, topics
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import Operation
from kcli.client.errors import ConfigError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    API_KEYS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    INCREMENTAL_ALTER_CONFIGS,
    UNREGISTER_BROKER,
)
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import BROKERS, CLOSED, ScriptedCluster, described_controllers


def unregistered(*outcomes: Any) -> Any:
    """An answerer of UnregisterBroker: these error codes or CLOSED, one an answer, then 0."""
    left = chain(outcomes, repeat(0))

    def answer(node: int | None, version: int, request: Message) -> Any:
        outcome = next(left)
        return outcome if outcome is CLOSED else API_KEYS[UNREGISTER_BROKER].response.new(error_code=outcome)

    return answer


def controllers(*leaders: int, answers: dict[int, Any] | None = None) -> ScriptedCluster:
    """Controllers that name these leaders, one in each answer; the last one stays."""
    left = chain(leaders, repeat(leaders[-1] if leaders else 1))
    return ScriptedCluster(
        {DESCRIBE_CLUSTER: lambda *_: described_controllers(next(left)), **(answers or {})}, controllers=True
    )


def test_the_nodes_are_the_controllers() -> None:
    """Only DescribeCluster is asked, with the endpoint type of controllers."""
    script = controllers(2)
    found = script.execute(cluster.describe_cluster())
    assert [node.node_id for node in found.nodes] == list(BROKERS)
    assert (found.controller_id, found.cluster_id) == (2, "id")
    assert {(key, message.endpoint_type) for _, key, message in script.asked} == {(DESCRIBE_CLUSTER, 2)}
    assert script.asked[0][0] is None and script.asked[-1][0] == 2


@pytest.mark.parametrize("moved", [error_codes.NOT_CONTROLLER, error_codes.NOT_LEADER_OR_FOLLOWER, CLOSED])
def test_the_active_controller_is_looked_up_again(moved: Any) -> None:
    """After an election the old leader refuses, or is gone."""
    script = controllers(1, 3, answers={UNREGISTER_BROKER: unregistered(moved)})
    script.execute(cluster.unregister_broker(9))
    assert [node for node, _ in script.requests(UNREGISTER_BROKER)] == [1, 3]


def test_an_election_is_waited_for() -> None:
    script = controllers(-1, -1, 2, answers={UNREGISTER_BROKER: unregistered()})
    script.execute(cluster.unregister_broker(9))
    assert [node for node, _ in script.requests(UNREGISTER_BROKER)] == [2]


def test_a_controller_that_starts_is_waited_for() -> None:
    """Until it knows the metadata.version it answers UNSUPPORTED_VERSION; that error stays if the version is below 3.7-IV0."""
    left = chain([error_codes.UNSUPPORTED_VERSION] * 2, repeat(0))
    script = ScriptedCluster({DESCRIBE_CLUSTER: lambda *_: described_controllers(2, next(left))}, controllers=True)
    assert script.execute(cluster.describe_cluster()).controller_id == 2
    older = described_controllers(2, error_codes.UNSUPPORTED_VERSION)
    older.error_message = "metadata.version is too low"
    script = ScriptedCluster({DESCRIBE_CLUSTER: lambda *_: older}, controllers=True)
    with pytest.raises(KafkaTimeoutError, match=r"metadata\.version is too low"):
        script.execute(cluster.describe_cluster())


def test_without_an_election_the_call_ends() -> None:
    with pytest.raises(KafkaTimeoutError, match="no controller at the moment"):
        controllers(-1).execute(cluster.unregister_broker(9))


@pytest.mark.parametrize("api", [DESCRIBE_QUORUM, ADD_RAFT_VOTER])
def test_quorum_requests_follow_the_leader(api: int) -> None:
    """Other controllers answer them with the error of a partition, not with NOT_CONTROLLER."""
    codes = chain([error_codes.NOT_LEADER_OR_FOLLOWER], repeat(error_codes.CLUSTER_AUTHORIZATION_FAILED))
    script = controllers(1, 2, answers={api: lambda *_: API_KEYS[api].response.new(error_code=next(codes))})
    operation: Operation[Any] = cluster.describe_metadata_quorum()
    if api == ADD_RAFT_VOTER:
        operation = cluster.add_raft_voter(3, ZERO_UUID, [])
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        script.execute(operation)
    assert [node for node, _ in script.requests(api)] == [1, 2]


def altered(node: int | None, version: int, request: Message) -> Message:
    kind = API_KEYS[INCREMENTAL_ALTER_CONFIGS].response
    one = kind.classes["AlterConfigsResourceResponse"]
    return kind.new(
        responses=[one(resource_type=key.resource_type, resource_name=key.resource_name) for key in request.resources]
    )


def described(node: int | None, version: int, request: Message) -> Message:
    kind = API_KEYS[DESCRIBE_CONFIGS].response
    one = kind.classes["DescribeConfigsResult"]
    return kind.new(
        results=[one(resource_type=key.resource_type, resource_name=key.resource_name) for key in request.resources]
    )


def test_which_controller_has_configs() -> None:
    """The active one changes configs, also those of a node; its levels of loggers, and what it has, a node itself."""
    script = controllers(2, answers={INCREMENTAL_ALTER_CONFIGS: altered, DESCRIBE_CONFIGS: described})
    broker, logger = ConfigResource(ResourceType.BROKER, "3"), ConfigResource(ResourceType.BROKER_LOGGER, "3")
    topic = ConfigResource(ResourceType.TOPIC, "t")
    changes = [AlterConfigOp("a", AlterOperation.SET, "1")]
    assert set(script.execute(configs.incremental_alter_configs({broker: changes, logger: changes})).values()) == {None}
    asked = {
        node: [one.resource_type for one in message.resources] for node, message in script.requests(INCREMENTAL_ALTER_CONFIGS)
    }
    assert asked == {2: [ResourceType.BROKER], 3: [ResourceType.BROKER_LOGGER]}
    script.execute(configs.describe_configs([broker, topic]))
    asked = {node: [one.resource_type for one in message.resources] for node, message in script.requests(DESCRIBE_CONFIGS)}
    assert asked == {2: [ResourceType.TOPIC], 3: [ResourceType.BROKER]}
    missing = ConfigResource(ResourceType.BROKER, "9")
    assert "the cluster has no controller 9" in str(script.execute(configs.describe_configs([missing]))[missing])


OTHERS: list[Callable[[], Operation[Any]]] = [
    topics.list_topics,
    groups.list_groups,
    configs.list_config_resources,
    lambda: topics.create_topics([topics.NewTopic("t")]),
    lambda: partitions.elect_leaders(partitions.ElectionType.PREFERRED),
    lambda: log_dirs.describe_log_dirs([1]),
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_controllers_do_not_answer(number: int) -> None:
    """As in Kafka's client, without a request: a controller would close the connection."""
    script = controllers()
    with pytest.raises(KafkaError, match=r"UNSUPPORTED_ENDPOINT_TYPE.*bootstrap\.servers"):
        for outcome in script.execute(OTHERS[number]()).values():
            raise outcome
    assert script.asked == []


def refusals() -> Iterator[tuple[ScriptedCluster, type[Exception], str]]:
    mismatched = {DESCRIBE_CLUSTER: lambda *_: described_controllers(error=error_codes.MISMATCHED_ENDPOINT_TYPE)}
    yield ScriptedCluster(mismatched, controllers=True), KafkaError, "not a controller"
    yield ScriptedCluster({}, versions={DESCRIBE_CLUSTER: 0}, controllers=True), UnsupportedVersionError, "before Kafka 3.7"
    yield ScriptedCluster({}, versions={DESCRIBE_CLUSTER: -1}, controllers=True), UnsupportedVersionError, "before Kafka 3.7"


@pytest.mark.parametrize("number", range(3))
def test_a_node_that_is_not_a_controller_ends_the_call(number: int) -> None:
    script, kind, text = list(refusals())[number]
    with pytest.raises(kind, match=text):
        script.execute(cluster.describe_cluster())
    assert script.now_ms < 1000


def test_settings() -> None:
    """One of the two; only administrators have the second."""
    with pytest.raises(ConfigError, match="cannot both be set"):
        Admin({"bootstrap.servers": "a:1", "bootstrap.controllers": "b:1"})
    with pytest.raises(ConfigError, match=r"there is no setting bootstrap\.controllers"):
        Producer({"bootstrap.controllers": "b:1"})
    Admin({"bootstrap.controllers": "b:1,c:1"}).close()
