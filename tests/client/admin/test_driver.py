"""Protects how calls of an administrator find their broker, are tried again, and end in time.

The brokers are scripts; that real ones answer so is the matter of tests/oracle/test_client_admin.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kcli.client import Admin
from kcli.client.admin import cluster, configs, groups, partitions, topics, transactions
from kcli.client.errors import (
    ClientError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RequestEncodingError,
    UnsupportedVersionError,
)
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
)
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import CLOSED, SILENT, ScriptedCluster, metadata


def created(*codes: int) -> Any:
    """An answerer of CreateTopics: these codes, one an answer."""
    kind = API_KEYS[CREATE_TOPICS].response
    left = iter(codes)

    def answer(node: int | None, version: int, request: Message) -> Message:
        code = next(left)
        found = [kind.classes["CreatableTopicResult"](name=one.name, error_code=code) for one in request.topics]
        return kind.new(topics=found)

    return answer


def coordinators(nodes: Iterator[int]) -> Any:
    """An answerer of FindCoordinator, of one key or several: the next node, -1 for COORDINATOR_NOT_AVAILABLE."""
    kind = API_KEYS[FIND_COORDINATOR].response

    def answer(asked: int | None, version: int, request: Message) -> Message:
        node = next(nodes)
        code = error_codes.COORDINATOR_NOT_AVAILABLE if node < 0 else 0
        address = {"node_id": node, "host": f"host{node}", "port": 9092, "error_code": code}
        if version < 4:
            return kind.new(**address)
        return kind.new(coordinators=[kind.classes["Coordinator"](key=key, **address) for key in request.coordinator_keys])

    return answer


def deleted(node: int | None, version: int, request: Message) -> Message:
    """An answer to DeleteGroups: broker 2 is the coordinator, the others are not."""
    kind = API_KEYS[DELETE_GROUPS].response
    code = 0 if node == 2 else error_codes.NOT_COORDINATOR
    results = [kind.classes["DeletableGroupResult"](group_id=name, error_code=code) for name in request.groups_names]
    return kind.new(results=results)


def test_the_controller_is_asked_and_looked_up_again_when_it_moved() -> None:
    controllers = iter((1, 3, 3, 3))
    script = ScriptedCluster(
        {
            METADATA: lambda *_: metadata(next(controllers)),
            CREATE_TOPICS: created(error_codes.NOT_CONTROLLER, error_codes.NONE),
        }
    )
    outcomes = script.execute(topics.create_topics([topics.NewTopic("one")]))
    assert isinstance(outcomes["one"], topics.CreatedTopic)
    assert [node for node, _ in script.requests(CREATE_TOPICS)] == [1, 3]
    assert script.now_ms >= 80, "there is a backoff"


def test_an_error_of_one_item_is_its_outcome() -> None:
    script = ScriptedCluster({CREATE_TOPICS: created(error_codes.TOPIC_ALREADY_EXISTS)})
    outcome = script.execute(topics.create_topics([topics.NewTopic("one")]))["one"]
    assert isinstance(outcome, KafkaError) and outcome.name == "TOPIC_ALREADY_EXISTS"
    assert str(outcome) == "TOPIC_ALREADY_EXISTS: there is a topic with this name"
    assert len(script.requests(CREATE_TOPICS)) == 1


def test_a_connection_that_ends_is_made_again() -> None:
    answers = iter((CLOSED, CLOSED))
    last = created(0)
    script = ScriptedCluster({CREATE_TOPICS: lambda *asked: next(answers, None) or last(*asked)})
    assert isinstance(script.execute(topics.create_topics([topics.NewTopic("one")]))["one"], topics.CreatedTopic)
    assert len(script.requests(CREATE_TOPICS)) == 3


def test_a_broker_that_does_not_answer_costs_the_timeout_and_no_more() -> None:
    script = ScriptedCluster({CREATE_TOPICS: lambda *_: SILENT}, timeout_ms=700)
    outcome = script.execute(topics.create_topics([topics.NewTopic("one")]))["one"]
    assert isinstance(outcome, KafkaTimeoutError) and script.now_ms == 700


def test_what_the_controller_does_not_answer_is_said_of_it() -> None:
    """The broker was said to have open connections and no answer: a lost quorum was not to be seen."""
    script = ScriptedCluster({CREATE_TOPICS: lambda *_: SILENT})
    outcome = script.execute(topics.create_topics([topics.NewTopic("t", 1)]))["t"]
    reason = "broker 1 at host1:9092 is connected, and waits for the controller: the quorum of controllers may have no leader"
    assert str(outcome) == f"no broker answered CreateTopics within 1000 ms: {reason}"
    assert [node for node, _ in script.requests(CREATE_TOPICS)] == [1]


def test_a_broker_that_knows_no_broker_is_not_one_that_cannot_be_reached() -> None:
    """A broker that starts while the quorum is lost answers so."""
    script = ScriptedCluster({METADATA: lambda *_: API_KEYS[METADATA].response.new()})
    with pytest.raises(KafkaTimeoutError, match=r"1000 ms: the broker that answered knows none that runs: the quorum may"):
        script.execute(cluster.reach_any_broker())


def test_an_error_that_stays_is_named_when_the_time_is_over() -> None:
    script = ScriptedCluster({METADATA: lambda *_: metadata(leaders={("none", 0): 1}, error=3)}, timeout_ms=700)
    outcome = script.execute(partitions.list_offsets({("none", 0): partitions.OffsetSpec.LATEST}))["none", 0]
    assert isinstance(outcome, KafkaTimeoutError) and "UNKNOWN_TOPIC_OR_PARTITION" in str(outcome)


def test_one_lookup_serves_all_groups_of_a_call() -> None:
    script = ScriptedCluster({FIND_COORDINATOR: coordinators(iter((2, 2))), DELETE_GROUPS: deleted})
    assert script.execute(groups.delete_groups(["a", "b"])) == {"a": None, "b": None}
    assert len(script.requests(FIND_COORDINATOR)) == len(script.requests(DELETE_GROUPS)) == 1


def test_an_old_broker_is_asked_for_one_coordinator_at_a_time() -> None:
    script = ScriptedCluster(
        {FIND_COORDINATOR: coordinators(iter((2, 2, 2))), DELETE_GROUPS: deleted}, versions={FIND_COORDINATOR: 3}
    )
    assert script.execute(groups.delete_groups(["a", "b", "c"])) == {"a": None, "b": None, "c": None}
    assert [request.key for _, request in script.requests(FIND_COORDINATOR)] == ["a", "b", "c"]


def test_a_coordinator_that_moved_or_is_not_there_yet_is_looked_up_again() -> None:
    script = ScriptedCluster({FIND_COORDINATOR: coordinators(iter((-1, 3, 2))), DELETE_GROUPS: deleted})
    assert script.execute(groups.delete_groups(["a"])) == {"a": None}
    assert [node for node, _ in script.requests(DELETE_GROUPS)] == [3, 2]


def test_the_leaders_are_asked_and_looked_up_again_after_an_election() -> None:
    leaders = iter((1, 2))
    kind = API_KEYS[LIST_OFFSETS].response

    def answer(node: int | None, version: int, request: Message) -> Message:
        code = 0 if node == 2 else error_codes.NOT_LEADER_OR_FOLLOWER
        part = kind.classes["ListOffsetsPartitionResponse"](partition_index=0, error_code=code, offset=7, leader_epoch=4)
        return kind.new(topics=[kind.classes["ListOffsetsTopicResponse"](name="t", partitions=[part])])

    def of_topics(node: int | None, version: int, request: Message) -> Message:
        return metadata(leaders={("t", 0): next(leaders)}) if request.topics else metadata()

    script = ScriptedCluster({METADATA: of_topics, LIST_OFFSETS: answer})
    outcomes = script.execute(partitions.list_offsets({("t", 0): partitions.OffsetSpec.LATEST}))
    assert outcomes == {("t", 0): partitions.ListedOffset(7, -1, 4)}


def test_each_broker_lists_its_groups_and_one_that_fails_is_named() -> None:
    kind = API_KEYS[LIST_GROUPS].response

    def answer(node: int | None, version: int, request: Message) -> Message:
        if node == 3:
            return kind.new(error_code=error_codes.GROUP_AUTHORIZATION_FAILED)
        group = kind.classes["ListedGroup"](group_id=f"of-{node}", group_state="Empty", group_type="classic")
        return kind.new(groups=[group])

    listed = ScriptedCluster({LIST_GROUPS: answer}).execute(groups.list_groups())
    assert [one.group_id for one in listed.groups] == ["of-1", "of-2"]
    assert list(listed.errors) == [3]


def test_a_broker_that_is_not_in_the_cluster_fails_at_once() -> None:
    script = ScriptedCluster({})
    outcome = script.execute(configs.describe_configs([configs.ConfigResource(configs.ResourceType.BROKER, "7")]))
    (error,) = outcome.values()
    assert isinstance(error, KafkaError) and error.code == error_codes.BROKER_ID_NOT_REGISTERED
    assert script.now_ms < 500 and not script.requests(DESCRIBE_CONFIGS)


def test_an_api_that_a_broker_does_not_have_is_an_error_and_not_a_wait() -> None:
    script = ScriptedCluster({}, versions={DELETE_GROUPS: -1, DESCRIBE_CLUSTER: -1})
    script.answers[FIND_COORDINATOR] = coordinators(iter((2, 2)))
    outcomes = script.execute(groups.delete_groups(["a", "b"]))
    assert all(isinstance(one, UnsupportedVersionError) for one in outcomes.values()) and len(outcomes) == 2
    described = script.execute(cluster.describe_cluster())
    assert [node.node_id for node in described.nodes] == [1, 2, 3], "Metadata replaces DescribeCluster"
    with pytest.raises(UnsupportedVersionError):
        script.execute(cluster.describe_cluster(include_fenced_brokers=True))


def test_fencing_waits_for_a_transaction_that_is_being_completed() -> None:
    codes = iter((error_codes.CONCURRENT_TRANSACTIONS, error_codes.COORDINATOR_LOAD_IN_PROGRESS, 0))
    kind = API_KEYS[INIT_PRODUCER_ID].response
    script = ScriptedCluster(
        {
            FIND_COORDINATOR: coordinators(iter((2,))),
            INIT_PRODUCER_ID: lambda *_: kind.new(error_code=next(codes), producer_id=5, producer_epoch=6),
        }
    )
    assert script.execute(transactions.fence_producers(["tx"])) == {"tx": transactions.FencedProducer(5, 6)}


def test_an_error_of_a_whole_operation_is_raised() -> None:
    kind = API_KEYS[DESCRIBE_CLUSTER].response
    script = ScriptedCluster({DESCRIBE_CLUSTER: lambda *_: kind.new(error_code=31, error_message="no", cluster_id="c")})
    with pytest.raises(ClientError, match="CLUSTER_AUTHORIZATION_FAILED: no"):
        script.execute(cluster.describe_cluster())


def test_what_is_under_way_at_the_close_ends_with_an_error() -> None:
    script = ScriptedCluster({CREATE_TOPICS: lambda *_: SILENT}, timeout_ms=60_000)
    found: list[Any] = []
    operation = topics.create_topics([topics.NewTopic("one")])
    script.core.start(operation, lambda result, now_ms: found.append(result), script.now_ms)
    script.core.close(script.now_ms)
    (outcome,) = found[0].values()
    assert isinstance(outcome, IllegalStateError)
    with pytest.raises(IllegalStateError):
        script.execute(topics.list_topics())


def test_a_blocked_caller_ends_at_the_close() -> None:
    """No server listens; the close comes from another thread."""
    admin = Admin({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 60_000})
    closing = threading.Timer(0.05, admin.close)
    closing.start()
    with pytest.raises(IllegalStateError):
        admin.list_topics()
    closing.join()
    with pytest.raises(IllegalStateError):
        admin.list_topics()
    admin.close()


def test_a_value_that_cannot_be_encoded_fails_alone_and_is_named() -> None:
    """It is not the broker that has no version for it."""
    codes = created(*[error_codes.NONE] * 2)
    script = ScriptedCluster({METADATA: lambda *_: metadata(1), CREATE_TOPICS: codes})
    outcomes = script.execute(topics.create_topics([topics.NewTopic("sound"), topics.NewTopic("large", 2**40)]))
    assert isinstance(outcomes["sound"], topics.CreatedTopic)
    error = outcomes["large"]
    assert isinstance(error, RequestEncodingError) and not error.is_retriable
    assert "numPartitions must be of type int32, not 1099511627776" in str(error)
