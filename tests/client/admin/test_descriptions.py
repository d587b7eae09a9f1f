"""Protects how descriptions are put together from the answers of brokers: pages of partitions, streams groups, old brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcli.client.admin import brokers, group_lag, group_reset, groups, log_dirs, streams, topics
from kcli.client.admin.operation import Operation, value_of
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DESCRIBE_TOPIC_PARTITIONS,
    FIND_COORDINATOR,
    METADATA,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
    STREAMS_GROUP_DESCRIBE,
)
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import ScriptedCluster, metadata
from tests.client.admin.test_driver import coordinators

PARTITIONS = {"a": 3, "b": 5, "c": 1}
PAGE = 2


def pages(node: int | None, version: int, request: Message) -> Message:
    """An answer to DescribeTopicPartitions: two partitions from the cursor on."""
    kind = API_KEYS[DESCRIBE_TOPIC_PARTITIONS].response
    of_topic, of_partition = (kind.classes[f"DescribeTopicPartitionsResponse{name}"] for name in ("Topic", "Partition"))
    first = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
    wanted = [(one.name, at) for one in request.topics for at in range(PARTITIONS[one.name]) if (one.name, at) >= first]
    found: dict[str, list[Message]] = {}
    for name, at in wanted[:PAGE]:
        found.setdefault(name, []).append(of_partition(partition_index=at, leader_id=1, replica_nodes=[1], isr_nodes=[1]))
    rest = wanted[PAGE:]
    cursor = kind.classes["Cursor"](topic_name=rest[0][0], partition_index=rest[0][1]) if rest else None
    return kind.new(topics=[of_topic(name=name, partitions=parts) for name, parts in found.items()], next_cursor=cursor)


def test_topics_come_in_pages() -> None:
    script = ScriptedCluster({DESCRIBE_TOPIC_PARTITIONS: pages})
    described = script.execute(topics.describe_topics(["c", "b", "a"]))
    assert {name: [one.partition for one in value_of(topic).partitions] for name, topic in described.items()} == {
        "c": [0],
        "b": [0, 1, 2, 3, 4],
        "a": [0, 1, 2],
    }
    assert len(script.requests(DESCRIBE_TOPIC_PARTITIONS)) == 5


def test_a_broker_without_pages_is_asked_for_metadata() -> None:
    script = ScriptedCluster({METADATA: lambda *_: metadata(leaders={("a", 0): 2})}, versions={DESCRIBE_TOPIC_PARTITIONS: -1})
    described = script.execute(topics.describe_topics(["a"]))
    (partition,) = value_of(described["a"]).partitions
    assert (partition.leader, partition.eligible_leader_replicas) == (2, None)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(topics.list_topics, ["a"]), (brokers.live_brokers, [1, 2, 3]), (lambda: topics.describe_topics(["a"]), ["a"])],
)
def test_metadata_with_an_error_are_asked_for_again(operation: Callable[[], Operation[Any]], expected: list[object]) -> None:
    """They have no topics and no brokers, which is not what the cluster has."""
    asked: list[Message] = []

    def answer(node: int | None, version: int, request: Message) -> Message:
        asked.append(request)
        refused = API_KEYS[METADATA].response.new(error_code=error_codes.REBOOTSTRAP_REQUIRED)
        return refused if len(asked) == 1 else metadata(leaders={("a", 0): 2})

    script = ScriptedCluster({METADATA: answer}, versions={DESCRIBE_TOPIC_PARTITIONS: -1})
    found = script.execute(operation())
    assert [one for one in found if not isinstance(found, dict) or not isinstance(found[one], ClientError)] == expected


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_broker_without_log_directories_refuses(version: int) -> None:
    """DescribeLogDirs has no error code before version 3: without an authorization the answer is empty."""
    script = ScriptedCluster(
        {DESCRIBE_LOG_DIRS: lambda *_: API_KEYS[DESCRIBE_LOG_DIRS].response.new()}, versions={DESCRIBE_LOG_DIRS: version}
    )
    replica = log_dirs.TopicPartitionReplica("t", 0, 1)
    error = script.execute(log_dirs.describe_replica_log_dirs([replica]))[replica]
    assert isinstance(error, KafkaError) and error.name == "CLUSTER_AUTHORIZATION_FAILED"


def test_a_streams_group() -> None:
    kind = API_KEYS[STREAMS_GROUP_DESCRIBE].response
    new = {
        name: kind.classes[name] for name in ("DescribedGroup", "Topology", "Subtopology", "Member", "Assignment", "TaskIds")
    }
    tasks = new["Assignment"](active_tasks=[new["TaskIds"](subtopology_id="0", partitions=[1, 2])])
    topology = new["Topology"](epoch=4, subtopologies=[new["Subtopology"](subtopology_id="0", source_topics=["in"])])
    endpoint = kind.classes["Endpoint"](host="h", port=60_000)
    member = new["Member"](
        member_id="m", assignment=tasks, target_assignment=new["Assignment"](), user_endpoint=endpoint, topology_epoch=4
    )
    group = new["DescribedGroup"](group_id="s", group_state="Stable", topology=topology, members=[member])
    script = ScriptedCluster(
        {FIND_COORDINATOR: coordinators(iter((2,))), STREAMS_GROUP_DESCRIBE: lambda *_: kind.new(groups=[group])}
    )
    described = value_of(script.execute(streams.describe_streams_groups(["s"]))["s"])
    assert (described.state, described.topology_epoch, described.subtopologies[0].source_topics) == ("Stable", 4, ("in",))
    (found,) = described.members
    assert (found.user_endpoint, found.assignment.active_tasks) == (("h", 60_000), {"0": (1, 2)})


def test_an_old_broker_answers_for_classic_groups_and_for_none() -> None:
    """Without ConsumerGroupDescribe, and with Dead for a group that does not exist."""
    kind = API_KEYS[DESCRIBE_GROUPS].response
    one = kind.classes["DescribedGroup"]
    answer = kind.new(groups=[one(group_id="dead", group_state="Dead"), one(group_id="g", group_state="Empty")])
    script = ScriptedCluster(
        {FIND_COORDINATOR: coordinators(iter((2, 2, 2, 2))), DESCRIBE_GROUPS: lambda *_: answer},
        versions={CONSUMER_GROUP_DESCRIBE: -1, DESCRIBE_GROUPS: 4},
    )
    found = script.execute(groups.describe_consumer_groups(["g", "dead"]))
    assert value_of(found["g"]).type == groups.CLASSIC
    error = found["dead"]
    assert isinstance(error, KafkaError) and error.name == "GROUP_ID_NOT_FOUND"


@pytest.mark.parametrize("broken", ["s", "k"])
def test_groups_of_one_type_do_not_use_up_the_time_of_the_others(broken: str) -> None:
    """The coordinator of a share group or of a streams group is not available; it was asked for before that of the classic
    group, and all the time went by."""

    def found(node: int | None, version: int, request: Message) -> Message:
        kind = API_KEYS[FIND_COORDINATOR].response
        code = error_codes.COORDINATOR_NOT_AVAILABLE
        return kind.new(
            coordinators=[
                kind.classes["Coordinator"](
                    key=key, node_id=2, host="host2", port=9092, error_code=code if key == broken else 0
                )
                for key in request.coordinator_keys
            ]
        )

    def empty(api_key: int, group: str) -> Message:
        kind = API_KEYS[api_key].response
        return kind.new(groups=[kind.classes["DescribedGroup"](group_id=group, group_state="Empty")])

    def offsets(api_key: int, struct: str, group: str) -> Message:
        kind = API_KEYS[api_key].response
        return kind.new(groups=[kind.classes[struct](group_id=group)])

    def fetched(node: int | None, version: int, request: Message) -> Message:
        return offsets(OFFSET_FETCH, "OffsetFetchResponseGroup", request.groups[0].group_id)

    script = ScriptedCluster(
        {
            FIND_COORDINATOR: found,
            DESCRIBE_GROUPS: lambda *_: empty(DESCRIBE_GROUPS, "c"),
            SHARE_GROUP_DESCRIBE: lambda *_: empty(SHARE_GROUP_DESCRIBE, "s"),
            STREAMS_GROUP_DESCRIBE: lambda *_: empty(STREAMS_GROUP_DESCRIBE, "k"),
            OFFSET_FETCH: fetched,
            DESCRIBE_SHARE_GROUP_OFFSETS: lambda *_: offsets(
                DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsetsResponseGroup", "s"
            ),
        },
        versions={CONSUMER_GROUP_DESCRIBE: -1},
    )
    types = {"c": groups.CLASSIC, "s": groups.SHARE, "k": groups.STREAMS}
    listings = [groups.GroupListing(name, group_type, "", "Empty") for name, group_type in types.items()]
    for operation in (group_lag.describe_groups, group_lag.describe_group_lags):
        before_ms = script.now_ms
        outcomes = script.execute(operation(listings))
        assert list(outcomes) == ["c", "s", "k"]
        assert [name for name, one in outcomes.items() if isinstance(one, KafkaTimeoutError)] == [broken]
        assert script.now_ms - before_ms == 1000


@pytest.mark.parametrize(
    ("code", "leader", "expected"),
    [
        (error_codes.NONE, -1, "LEADER_NOT_AVAILABLE"),
        (error_codes.TOPIC_AUTHORIZATION_FAILED, 1, "TOPIC_AUTHORIZATION_FAILED"),
        (error_codes.UNKNOWN_TOPIC_OR_PARTITION, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_plan_names_why_a_partition_cannot_be_reset(code: int, leader: int, expected: str) -> None:
    script = ScriptedCluster(
        {
            METADATA: lambda *_: metadata(leaders={("a", 0): leader}, error=code),
            FIND_COORDINATOR: coordinators(iter((2,))),
            OFFSET_FETCH: lambda *_: offsets,
        },
        versions={DESCRIBE_TOPIC_PARTITIONS: -1},
    )
    kind = API_KEYS[OFFSET_FETCH].response
    offsets = kind.new(groups=[kind.classes["OffsetFetchResponseGroup"](group_id="g")])
    error = script.execute(group_reset.plan_reset("g", [("a", 0)], group_reset.ResetTo.EARLIEST))["a", 0]
    assert isinstance(error, KafkaError) and error.name == expected


def test_a_group_without_a_coordinator_does_not_take_the_time_of_others() -> None:
    """A group of the classic protocol is asked for by two APIs; the second one does not wait for all answers of the first."""
    modern, classic = API_KEYS[CONSUMER_GROUP_DESCRIBE].response, API_KEYS[DESCRIBE_GROUPS].response

    def found(node: int | None, version: int, request: Message) -> Message:
        kind = API_KEYS[FIND_COORDINATOR].response
        one = kind.classes["Coordinator"]
        return kind.new(
            coordinators=[
                one(key=key, node_id=2, host="host2", port=9092)
                if key == "g"
                else one(key=key, error_code=error_codes.COORDINATOR_NOT_AVAILABLE)
                for key in request.coordinator_keys
            ]
        )

    def unknown(node: int | None, version: int, request: Message) -> Message:
        one = modern.classes["DescribedGroup"]
        code = error_codes.GROUP_ID_NOT_FOUND
        return modern.new(groups=[one(group_id=name, error_code=code) for name in request.group_ids])

    def described(node: int | None, version: int, request: Message) -> Message:
        return classic.new(
            groups=[classic.classes["DescribedGroup"](group_id=name, group_state="Empty") for name in request.groups]
        )

    script = ScriptedCluster({FIND_COORDINATOR: found, CONSUMER_GROUP_DESCRIBE: unknown, DESCRIBE_GROUPS: described})
    outcomes = script.execute(groups.describe_consumer_groups(["lost", "g"]))
    assert isinstance(outcomes["lost"], KafkaTimeoutError)
    assert value_of(outcomes["g"]).type == groups.CLASSIC
    assert script.now_ms == 1000
