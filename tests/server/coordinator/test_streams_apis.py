"""Protects the APIs of streams groups on a whole node: it creates the internal topics, lists, describes and deletes groups.

Committed offsets of members are checked by their epochs, also in transactions; what is committed survives a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from tests.server.whole_node import WholeNode

OVERRIDES = (
    "offsets.topic.num.partitions=2",
    "group.streams.initial.rebalance.delay.ms=0",
    "group.streams.assignment.interval.ms=0",
    "transaction.state.log.num.partitions=2",
)
BEAT = apis.STREAMS_GROUP_HEARTBEAT


def made(key: int, struct: str, /, **fields: Any) -> Message:
    """A struct of a request."""
    return API_KEYS[key].request.classes[struct](**fields)


class Streams:
    """A node with topic `in`, and requests to its coordinator of group `app`."""

    def __init__(self, directory: Path, *overrides: str, is_new: bool = True) -> None:
        self.node = WholeNode(directory, *OVERRIDES, *overrides)
        if is_new:
            self.node.create_topic("in", 3)
        self.node.until(lambda: not self.ask(apis.FIND_COORDINATOR, 3, key="app", key_type=0).error_code)
        self.node.until(lambda: len(self.node.broker.groups.runtime.shards()) == 2)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        """The answer to a request, which comes within a second."""
        pending = self.node.send(key, version, API_KEYS[key].request.new(**fields))
        self.node.until(lambda: pending.answer is not None, 1_000)
        return pending.result()

    def beat(self, member_id: str = "m1", epoch: int = 0, **fields: Any) -> Message:
        """Send a heartbeat; one that joins has a topology with a repartition topic and a changelog."""
        request: dict[str, Any] = {"group_id": "app", "member_id": member_id, "member_epoch": epoch}
        if epoch == 0:
            request |= {"rebalance_timeout_ms": 60_000, "process_id": member_id, "topology": topology()}
            request |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        return self.ask(BEAT, 0, **request | fields)

    def ready(self) -> int:
        """Let m1 join, and return its epoch when it has tasks."""
        epoch = self.beat().member_epoch
        self.node.until(lambda: self.node.broker.image.topic("app-store-changelog") is not None)
        return int(self.beat("m1", epoch).member_epoch)


def topology() -> Message:
    """Words are repartitioned and counted."""
    config = made(BEAT, "KeyValue", key="cleanup.policy", value="compact")
    parts = [
        made(BEAT, "Subtopology", subtopology_id="0", source_topics=["in"], repartition_sink_topics=["app-repartition"]),
        made(
            BEAT,
            "Subtopology",
            subtopology_id="1",
            repartition_source_topics=[made(BEAT, "TopicInfo", name="app-repartition")],
            state_changelog_topics=[made(BEAT, "TopicInfo", name="app-store-changelog", topic_configs=[config])],
        ),
    ]
    return made(BEAT, "Topology", epoch=0, subtopologies=parts)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    made = Streams(tmp_path)
    yield made
    made.node.stop()


def test_internal_topics_are_created(streams: Streams) -> None:
    """With the partitions of the source topic and the configs of the topology; then the tasks are assigned."""
    first = streams.beat()
    assert [status.status_code for status in first.status] == [3]
    streams.node.until(lambda: streams.node.broker.image.topic("app-store-changelog") is not None)
    image = streams.node.broker.image
    for name in ("app-repartition", "app-store-changelog"):
        topic = image.topic(name)
        assert topic is not None and len(topic.partitions) == 3
    assert image.configs_of("TOPIC")["app-store-changelog"] == {"cleanup.policy": "compact"}
    answer = streams.beat("m1", first.member_epoch)
    assert (answer.status, answer.member_epoch) == ([], 3)
    assert {tasks.subtopology_id: tasks.partitions for tasks in answer.active_tasks} == {"0": [0, 1, 2], "1": [0, 1, 2]}


def test_a_refused_heartbeat_does_not_end_an_empty_classic_group(streams: Streams) -> None:
    """A client that got a member id from the classic group joins with it; an accepted heartbeat ends the group."""
    protocols = [made(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")]
    fields = {"group_id": "app", "session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": protocols}
    member_id = streams.ask(apis.JOIN_GROUP, 9, **fields).member_id
    twice = [made(BEAT, "Subtopology", subtopology_id="0", source_topics=["in"])] * 2
    assert streams.beat(topology=made(BEAT, "Topology", epoch=0, subtopologies=twice)).error_code
    pending = streams.node.send(apis.JOIN_GROUP, 9, API_KEYS[apis.JOIN_GROUP].request.new(member_id=member_id, **fields))
    streams.node.until(lambda: pending.answer is not None)
    joined = pending.result()
    assert (joined.error_code, joined.member_id) == (0, member_id)
    leaving = [made(apis.LEAVE_GROUP, "MemberIdentity", member_id=member_id)]
    assert not streams.ask(apis.LEAVE_GROUP, 5, group_id="app", members=leaving).error_code
    assert streams.ask(apis.JOIN_GROUP, 9, **fields).error_code == error_codes.MEMBER_ID_REQUIRED
    assert not streams.beat().error_code
    groups = streams.node.broker.groups
    assert not groups.runtime.shard(groups.partition_for("app")).classic.groups


def test_topics_that_cannot_be_created_are_in_the_status(streams: Streams) -> None:
    """The controller's error is in the status until the broker tries again."""
    given = topology()
    given.subtopologies[1].state_changelog_topics[0].replication_factor = 5
    epoch = streams.beat(topology=given).member_epoch
    streams.node.until(lambda: streams.node.broker.image.topic("app-repartition") is not None)
    (status,) = streams.beat("m1", epoch).status
    assert status.status_detail.startswith(
        "Internal topics are missing: app-store-changelog; Creation failed: app-store-changelog ("
    )
    assert any("cannot be created automatically (streams group)" in line for line in streams.node.lines)


def test_groups_are_listed_described_and_deleted(streams: Streams) -> None:
    epoch = streams.ready()
    (listed,) = streams.ask(apis.LIST_GROUPS, 5, types_filter=["streams"]).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "app",
        "streams",
        "Stable",
        "streams",
    )
    (group,) = streams.ask(apis.STREAMS_GROUP_DESCRIBE, 0, group_ids=["app"]).groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", epoch, epoch)
    assert [part.subtopology_id for part in group.topology.subtopologies] == ["0", "1"]
    assert group.topology.subtopologies[1].state_changelog_topics[0].partitions == 3
    (member,) = group.members
    assert [(tasks.subtopology_id, tasks.partitions) for tasks in member.assignment.active_tasks] == [
        ("0", [0, 1, 2]),
        ("1", [0, 1, 2]),
    ]
    assert streams.ask(apis.DELETE_GROUPS, 2, groups_names=["app"]).results[0].error_code == error_codes.NON_EMPTY_GROUP
    assert streams.beat("m1", -1).error_code == 0
    assert streams.ask(apis.DELETE_GROUPS, 2, groups_names=["app"]).results[0].error_code == 0
    (group,) = streams.ask(apis.STREAMS_GROUP_DESCRIBE, 0, group_ids=["app"]).groups
    assert (group.error_code, group.error_message) == (error_codes.GROUP_ID_NOT_FOUND, "Group app not found.")


def commit(streams: Streams, member_id: str, epoch: int) -> int:
    """Commit an offset of a partition of `in`; return the error code."""
    partition = made(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=1, committed_offset=7)
    topic = made(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="in", partitions=[partition])
    fields = {"member_id": member_id, "generation_id_or_member_epoch": epoch, "topics": [topic]}
    answer = streams.ask(apis.OFFSET_COMMIT, 9, group_id="app", **fields)
    return int(answer.topics[0].partitions[0].error_code)


def test_offsets_need_the_epoch_of_the_member(streams: Streams) -> None:
    epoch = streams.ready()
    assert commit(streams, "m1", epoch) == error_codes.NONE
    assert commit(streams, "m1", epoch + 1) == error_codes.STALE_MEMBER_EPOCH
    assert commit(streams, "m9", epoch) == error_codes.UNKNOWN_MEMBER_ID
    wanted = made(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id="app", member_id="m1", member_epoch=epoch, topics=None)
    (group,) = streams.ask(apis.OFFSET_FETCH, 9, groups=[wanted]).groups
    assert [part.committed_offset for topic in group.topics for part in topic.partitions] == [7]
    wanted.member_epoch = epoch - 1
    (group,) = streams.ask(apis.OFFSET_FETCH, 9, groups=[wanted]).groups
    assert group.error_code == error_codes.STALE_MEMBER_EPOCH
    part = made(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=1)
    topic = made(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", name="in", partitions=[part])
    answer = streams.ask(apis.OFFSET_DELETE, 0, group_id="app", topics=[topic])
    assert answer.topics[0].partitions[0].error_code == error_codes.GROUP_SUBSCRIBED_TO_TOPIC


@pytest.mark.parametrize(
    ("member_id", "step", "code"), [("m1", 0, 0), ("m1", 1, "ILLEGAL_GENERATION"), ("m9", 0, "UNKNOWN_MEMBER_ID")]
)
def test_offsets_in_a_transaction(streams: Streams, member_id: str, step: int, code: int | str) -> None:
    """A stale epoch is ILLEGAL_GENERATION there."""
    epoch = streams.ready()
    streams.node.until(lambda: not streams.ask(apis.FIND_COORDINATOR, 3, key="t", key_type=1).error_code)
    fields = {"transactional_id": "t", "transaction_timeout_ms": 60_000}
    streams.node.until(lambda: not streams.ask(apis.INIT_PRODUCER_ID, 5, **fields).error_code)
    producer = streams.ask(apis.INIT_PRODUCER_ID, 5, **fields)
    partition = made(apis.TXN_OFFSET_COMMIT, "TxnOffsetCommitRequestPartition", partition_index=1, committed_offset=7)
    topic = made(apis.TXN_OFFSET_COMMIT, "TxnOffsetCommitRequestTopic", name="in", partitions=[partition])
    fields = {"transactional_id": "t", "group_id": "app", "producer_id": producer.producer_id, "topics": [topic]}
    fields |= {"producer_epoch": producer.producer_epoch, "generation_id_or_member_epoch": epoch + step, "member_id": member_id}
    answer = streams.ask(apis.TXN_OFFSET_COMMIT, 5, **fields)
    expected = code if isinstance(code, int) else getattr(error_codes, code)
    assert answer.topics[0].partitions[0].error_code == expected


def test_a_restart_keeps_the_group(tmp_path: Path) -> None:
    """Its member continues, with the tasks that it had."""
    before = Streams(tmp_path)
    epoch = before.ready()
    before.node.stop()
    streams = Streams(tmp_path, is_new=False)
    answer = streams.beat("m1", epoch)
    assert (answer.error_code, answer.member_epoch, answer.status, answer.active_tasks) == (0, epoch, [], None)
    streams.node.stop()


def test_a_broker_without_the_protocol(tmp_path: Path) -> None:
    """Both requests are refused."""
    streams = Streams(tmp_path, "group.coordinator.rebalance.protocols=classic,consumer")
    assert streams.beat().error_code == error_codes.UNSUPPORTED_VERSION
    (group,) = streams.ask(apis.STREAMS_GROUP_DESCRIBE, 0, group_ids=["app"]).groups
    assert group.error_code == error_codes.UNSUPPORTED_VERSION
    streams.node.stop()


def test_other_protocols_do_not_join(streams: Streams) -> None:
    """An id of a streams group with members is refused to others; that of an empty one is free for a classic group."""
    streams.ready()
    protocol = made(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    join = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [protocol]}
    code = streams.ask(apis.JOIN_GROUP, 5, group_id="app", **join).error_code
    assert code == error_codes.INCONSISTENT_GROUP_PROTOCOL
    consumer = {"member_id": "c", "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["in"], "topic_partitions": []}
    answer = streams.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id="app", **consumer)
    assert (answer.error_code, answer.error_message) == (error_codes.GROUP_ID_NOT_FOUND, "Group app is not a consumer group.")
    streams.beat("m1", -1)
    assert streams.ask(apis.JOIN_GROUP, 5, group_id="app", **join).error_code == error_codes.MEMBER_ID_REQUIRED
    assert streams.beat().error_code == 0
