"""Protects the consumer group protocol on the wire: heartbeats, descriptions, offsets of members, groups after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from kcli.protocol.message import Message
from tests.server.apis.asking import Refusing, ask, struct
from tests.server.whole_node import WholeNode

GROUP = "group"
OVERRIDES = ("offsets.topic.num.partitions=2", "offsets.topic.replication.factor=1")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WholeNode]:
    made = WholeNode(tmp_path / "data", *OVERRIDES)
    made.create_topic("orders", 3)
    find_coordinator(made)
    yield made
    made.stop()


def find_coordinator(node: WholeNode) -> None:
    """Wait until the group has a coordinator."""
    node.until(
        lambda: (
            not ask(node, FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[GROUP]).coordinators[0].error_code
            and not node.broker.groups.runtime.loading_count()
        )
    )


def beat(node: WholeNode, member_id: str = "m1", epoch: int = 0, version: int = 1, **fields: Any) -> Message:
    """Send a heartbeat; one that joins subscribes to `orders` unless `fields` say otherwise."""
    if epoch == 0:
        fields = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 60_000, "topic_partitions": []} | fields
    all_fields = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch} | fields
    return ask(node, CONSUMER_GROUP_HEARTBEAT, version, **all_fields)


def describe(node: WholeNode, group_id: str = GROUP) -> Message:
    (found,) = ask(node, CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group_id], include_authorized_operations=True).groups
    return found


def commit(node: WholeNode, member_id: str, epoch: int, version: int = 9) -> int:
    """Commit an offset -> the error code."""
    partition = struct(OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5)
    topic = struct(OFFSET_COMMIT, "OffsetCommitRequestTopic", name="orders", partitions=[partition])
    fields = {"group_id": GROUP, "member_id": member_id, "generation_id_or_member_epoch": epoch, "topics": [topic]}
    code = ask(node, OFFSET_COMMIT, version, **fields).topics[0].partitions[0].error_code
    assert isinstance(code, int)
    return code


def test_a_group_from_the_first_member_to_its_deletion(node: WholeNode) -> None:
    """A member joins, commits, and leaves; the group is listed and described, and deleted when it is empty."""
    joined = beat(node)
    (topic,) = joined.assignment.topic_partitions
    orders = node.broker.image.topic_ids["orders"]
    assert (joined.error_code, joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == (0, "m1", 2, 5000)
    assert (topic.topic_id, topic.partitions) == (orders, [0, 1, 2])
    assert beat(node, epoch=2).assignment is None
    found = describe(node)
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == ("Stable", 2, 2, "uniform")
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.client_id, member.client_host) == ("m1", 2, "test", "/127.0.0.1")
    assert (member.member_type, member.subscribed_topic_names, member.subscribed_topic_regex) == (1, ["orders"], "")
    assert member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].topic_name == "orders"
    assert found.authorized_operations > 0
    (listed,) = ask(node, LIST_GROUPS, 5, types_filter=["Consumer"], states_filter=["stable"]).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        GROUP,
        "consumer",
        "Stable",
        "consumer",
    )
    assert not ask(node, LIST_GROUPS, 5, types_filter=["classic"]).groups
    (classic,) = ask(node, DESCRIBE_GROUPS, 6, groups=[GROUP]).groups
    assert (classic.error_code, classic.group_state) == (error_codes.GROUP_ID_NOT_FOUND, "Dead")
    assert commit(node, "m1", 2) == 0
    delete = {"groups_names": [GROUP]}
    assert ask(node, DELETE_GROUPS, 2, **delete).results[0].error_code == error_codes.NON_EMPTY_GROUP
    assert beat(node, epoch=-1).member_epoch == -1
    assert describe(node).group_state == "Empty"
    assert ask(node, DELETE_GROUPS, 2, **delete).results[0].error_code == 0
    assert describe(node).error_code == error_codes.GROUP_ID_NOT_FOUND
    assert not ask(node, LIST_GROUPS, 5).groups


def test_a_group_continues_after_a_restart(tmp_path: Path) -> None:
    """The next start loads members, epochs and assignments; the members do not notice."""
    node = WholeNode(tmp_path / "data", *OVERRIDES)
    node.create_topic("orders", 3)
    find_coordinator(node)
    beat(node)
    before = describe(node)
    node.stop()
    node = WholeNode(tmp_path / "data", *OVERRIDES)
    find_coordinator(node)
    assert describe(node) == before
    assert beat(node, epoch=2).error_code == 0
    node.advance(45_001)
    assert describe(node).group_state == "Empty"
    node.stop()


def test_an_empty_group_changes_its_protocol(node: WholeNode) -> None:
    """A classic join takes over an empty consumer group with its offsets; an administrator removes members by LeaveGroup."""
    beat(node)
    beat(node, "s1", instance_id="i1")
    assert commit(node, "m1", 2) == 0
    names = [{"member_id": "m1"}, {"member_id": "", "group_instance_id": "i1"}, {"member_id": "m9"}]
    members = [struct(LEAVE_GROUP, "MemberIdentity", **name) for name in names]
    left = ask(node, LEAVE_GROUP, 5, group_id=GROUP, members=members).members
    assert [one.error_code for one in left] == [0, 0, error_codes.UNKNOWN_MEMBER_ID]
    assert describe(node).group_epoch == 4
    protocol = struct(JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    join = {"session_timeout_ms": 10_000, "member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
    assert ask(node, JOIN_GROUP, 9, group_id=GROUP, **join).error_code == error_codes.MEMBER_ID_REQUIRED
    (listed,) = ask(node, LIST_GROUPS, 5).groups
    assert listed.group_type == "classic"
    assert describe(node).error_message == f"Group {GROUP} is not a consumer group."
    assert beat(node).member_epoch == 2
    wanted = struct(OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=GROUP, topics=None)
    assert ask(node, OFFSET_FETCH, 9, groups=[wanted]).groups[0].topics[0].partitions[0].committed_offset == 5


def test_offsets_of_members(node: WholeNode) -> None:
    """A commit and a fetch name the member and its epoch; topics of the group are not deleted from it."""
    beat(node)
    assert commit(node, "m1", 2) == 0
    assert commit(node, "m1", 3) == error_codes.STALE_MEMBER_EPOCH
    assert commit(node, "m2", 2) == error_codes.UNKNOWN_MEMBER_ID
    assert commit(node, "m1", 2, version=8) == error_codes.UNSUPPORTED_VERSION
    for member_id, epoch, code in (
        ("m1", 2, 0),
        (None, -1, 0),
        ("m1", 1, error_codes.STALE_MEMBER_EPOCH),
        ("m2", 2, error_codes.UNKNOWN_MEMBER_ID),
    ):
        wanted = struct(
            OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=None
        )
        (found,) = ask(node, OFFSET_FETCH, 9, groups=[wanted]).groups
        assert found.error_code == code
        assert code or found.topics[0].partitions[0].committed_offset == 5
    partition = struct(OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=0)
    topic = struct(OFFSET_DELETE, "OffsetDeleteRequestTopic", name="orders", partitions=[partition])
    deleted = ask(node, OFFSET_DELETE, 0, group_id=GROUP, topics=[topic])
    assert deleted.topics[0].partitions[0].error_code == error_codes.GROUP_SUBSCRIBED_TO_TOPIC


def test_more_partitions_and_settings_of_the_group(node: WholeNode) -> None:
    """A topic that is made later is assigned by the next heartbeat; the group's own heartbeat interval is answered."""
    make = {"name": "consumer.heartbeat.interval.ms", "value": "6000", "config_operation": 0}
    config = struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", **make)
    group = struct(INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", resource_type=32, resource_name=GROUP, configs=[config])
    assert ask(node, INCREMENTAL_ALTER_CONFIGS, 1, resources=[group]).responses[0].error_code == 0
    joined = beat(node, subscribed_topic_names=["orders", "pay"])
    assert joined.heartbeat_interval_ms == 6000
    node.advance(1000)
    node.create_topic("pay", 2)
    assert len(beat(node, epoch=2).assignment.topic_partitions) == 2
    node.delete_topic("pay")
    node.advance(1000)
    (topic,) = beat(node, epoch=3).assignment.topic_partitions
    assert topic.topic_id == node.broker.image.topic_ids["orders"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no member id": ({"member_id": ""}, "MemberId can't be empty."),
    "no group": ({"group_id": ""}, "GroupId can't be empty."),
    "an empty instance id": ({"instance_id": " "}, "InstanceId can't be empty."),
    "an empty rack": ({"rack_id": ""}, "RackId can't be empty."),
    "no rebalance timeout": ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
    "partitions unknown": ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
    "no subscription": (
        {"subscribed_topic_names": None},
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    ),
    "static without an instance": ({"epoch": -2}, "InstanceId can't be null."),
    "a strange epoch": ({"epoch": -3}, "MemberEpoch is invalid."),
}


@pytest.mark.parametrize(("fields", "text"), WRONG.values(), ids=WRONG)
def test_impossible_heartbeats(node: WholeNode, fields: dict[str, Any], text: str) -> None:
    """Kafka's error and sentence, and no group."""
    answer = beat(node, **fields)
    assert (answer.error_code, answer.error_message) == (error_codes.INVALID_REQUEST, text)
    assert not ask(node, LIST_GROUPS, 5).groups


def test_member_ids_of_version_0_and_other_refusals(node: WholeNode) -> None:
    """A member of version 0 gets its id; unknown assignors and unauthorized topics are refused."""
    assert len(beat(node, member_id="", version=0).member_id) == 22
    assert beat(node, "m2", server_assignor="sticky").error_code == error_codes.UNSUPPORTED_ASSIGNOR
    assert describe(node, "other").error_message == "Group other not found."


def test_what_a_client_may_not_see(node: WholeNode) -> None:
    """Groups and topics that the client may not read or describe are refused."""
    beat(node)
    refuse = partial(setattr, node.broker.parts.authorizer, "is_allowed")
    refuse(Refusing(("DESCRIBE", "TOPIC", "orders")).is_allowed)
    assert beat(node, "m2").error_code == error_codes.TOPIC_AUTHORIZATION_FAILED
    hidden = describe(node)
    assert (hidden.error_code, hidden.members) == (error_codes.TOPIC_AUTHORIZATION_FAILED, [])
    refuse(Refusing(("READ", "GROUP", GROUP), ("DESCRIBE", "GROUP", GROUP)).is_allowed)
    assert beat(node, "m2").error_code == error_codes.GROUP_AUTHORIZATION_FAILED
    assert describe(node).error_code == error_codes.GROUP_AUTHORIZATION_FAILED


def test_without_the_feature(tmp_path: Path) -> None:
    """The protocol is refused as an unsupported version."""
    node = WholeNode(tmp_path / "data", *OVERRIDES, "group.coordinator.rebalance.protocols=classic")
    assert beat(node).error_code == error_codes.UNSUPPORTED_VERSION
    assert describe(node).error_code == error_codes.UNSUPPORTED_VERSION
    node.stop()
