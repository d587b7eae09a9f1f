"""Protects share groups on a whole node: membership, assignment after initialization, fencing, offsets and deletion.

What is expected follows Kafka 4.3.1; tests/oracle/test_share_group_answers.py compares answers with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.server.coordinator.group.assignors import MemberSpec
from kcli.server.coordinator.group.share_assignor import assign_shares
from kcli.server.coordinator.group.share_group_manager import Initialization, ShareGroupManager
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.replication.share_persister import DefaultStatePersister, ShareKey, ShareUpdateBatches
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import WholeNode, batch

NAMES = error_codes.NAMES
SETTINGS = (
    "share.coordinator.state.topic.num.partitions=1",
    "offsets.topic.num.partitions=1",
    "group.share.assignment.interval.ms=0",
)


def find(node: WholeNode, group_id: str = "g") -> None:
    """Ask for the group coordinator until there is one."""

    def is_found() -> bool:
        answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group_id])
        return not answer.coordinators[0].error_code

    node.until(is_found)
    node.advance(10)


class Member:
    """A member of share group g; `assigned` has the partitions of its last assignment, by topic id."""

    def __init__(self, node: WholeNode, name: str, *topics: str) -> None:
        self.node = node
        self.name = name
        self.topics = list(topics)
        self.epoch = 0
        self.assigned: dict[Uuid, list[int]] = {}

    def send(self, epoch: int | None = None, **fields: Any) -> Message:
        """Send a heartbeat with these fields."""
        fields = {"group_id": "g", "member_id": self.name, "member_epoch": self.epoch if epoch is None else epoch, **fields}
        answer = ask(self.node, apis.SHARE_GROUP_HEARTBEAT, 1, **fields)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {part.topic_id: part.partitions for part in answer.assignment.topic_partitions}
        return answer

    def join(self) -> Message:
        """Join with the member's topics."""
        return self.send(0, subscribed_topic_names=self.topics)

    def beat(self) -> Message:
        """Send a heartbeat in which nothing has changed."""
        return self.send()


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data", *SETTINGS)
    made.create_topic("t", 3)
    find(made)
    return made


def settled(node: WholeNode, *members: Member) -> None:
    """Send heartbeats until the members have what all of them subscribe to."""

    def is_settled() -> bool:
        epochs = {member.beat().member_epoch for member in members}
        return len(epochs) == 1 and all(member.assigned for member in members)

    node.until(is_settled)


def name_of(answer: Message) -> str:
    return NAMES[answer.error_code]


def describe(node: WholeNode, group_id: str = "g") -> Message:
    return ask(node, apis.SHARE_GROUP_DESCRIBE, 1, group_ids=[group_id]).groups[0]  # type: ignore[no-any-return]


def test_a_clock_that_was_set_back_does_not_stop_assignments(tmp_path: Path) -> None:
    """The last assignment is in the future then."""
    node = WholeNode(tmp_path / "data", *SETTINGS[:2])
    node.create_topic("t", 3)
    find(node)
    node.wall.off_ms += 3_600_000
    member = Member(node, "m", "t")
    member.join()
    node.wall.off_ms -= 3_600_000
    settled(node, member)
    assert member.assigned == {node.broker.image.topic_ids["t"]: [0, 1, 2]}


def test_a_member_gets_partitions_when_their_states_are_initialized(node: WholeNode) -> None:
    member, topic_id = Member(node, "m", "t"), node.broker.image.topic_ids["t"]
    first = member.join()
    assert (first.member_epoch, first.heartbeat_interval_ms, first.assignment.topic_partitions) == (2, 5000, [])
    settled(node, member)
    assert member.assigned == {topic_id: [0, 1, 2]}
    assert member.epoch == 3, "initialized partitions begin a group epoch"
    assert member.beat().assignment is None, "an assignment is sent when it changes"
    found = describe(node)
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == ("Stable", 3, 3, "simple")
    assert [part.partitions for part in found.members[0].assignment.topic_partitions] == [[0, 1, 2]]
    summary = node.broker.share_coordinator.runtime.shard(0).state.partitions[ShareKey("g", topic_id, 0)]
    assert (summary.state_epoch, summary.start_offset) == (2, -1)


def test_members_share_partitions_and_take_over_those_of_one_that_leaves(node: WholeNode) -> None:
    members = [Member(node, f"m{number}", "t") for number in range(4)]
    for member in members:
        member.join()
    settled(node, *members)
    owned = sorted(index for member in members for found in member.assigned.values() for index in found)
    assert all(owned.count(index) == 2 for index in range(3)) or len(owned) >= 4
    assert {0, 1, 2} == set(owned)
    assert node.broker.groups.metrics.share_rebalances >= 4
    for member in members[1:]:
        assert member.send(-1).member_epoch == -1
    members[0].beat()
    settled(node, members[0])
    assert list(members[0].assigned.values()) == [[0, 1, 2]]


def test_a_state_that_takes_long_to_be_made_is_made_once(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group repeats what takes long. Calls that waited behind one began states anew in which members had acknowledged
    records: they were delivered again."""
    member, real = Member(node, "m", "t"), DefaultStatePersister.initialize
    made: list[int] = []
    held: list[Callable[[], None]] = []

    def initialize(self: DefaultStatePersister, key: ShareKey, epoch: int, offset: int, done: Callable[[int], None]) -> None:
        made.append(key.partition)
        call = partial(real, self, key, epoch, offset, done)
        if key.partition == 0:
            held.append(call)
        else:
            call()

    monkeypatch.setattr(DefaultStatePersister, "initialize", initialize)
    member.join()
    for _ in range(10):  # 50 s; group.share.initialize.retry.interval.ms is 30 s
        node.advance(5_000)
        member.beat()
    assert (sorted(made), member.assigned) == ([0, 1, 2], {})
    for call in held:
        call()
    settled(node, member)
    assert (sorted(made), member.assigned) == ([0, 1, 2], {node.broker.image.topic_ids["t"]: [0, 1, 2]})


def test_a_new_partition_is_initialized_and_assigned(node: WholeNode) -> None:
    """It begins at offset 0, so that no record is skipped; the first partitions begin where share.auto.offset.reset says."""
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    key = apis.CREATE_PARTITIONS
    ask(node, key, 3, topics=[struct(key, "CreatePartitionsTopic", name="t", count=4, assignments=None)], timeout_ms=1000)
    node.until(lambda: len(node.broker.image.topic("t").partitions) == 4)  # type: ignore[union-attr]
    node.until(lambda: bool(member.beat() and list(member.assigned.values()) == [[0, 1, 2, 3]]))
    assert offsets(node) == [(0, -1, -1), (1, -1, -1), (2, -1, -1), (3, 0, 0)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, "INVALID_REQUEST"),
        ({"member_id": "x" * 37}, "INVALID_REQUEST"),
        ({"group_id": ""}, "INVALID_REQUEST"),
        ({"rack_id": ""}, "INVALID_REQUEST"),
        ({"subscribed_topic_names": None}, "INVALID_REQUEST"),
        ({"subscribed_topic_names": []}, "INVALID_REQUEST"),
        ({"member_epoch": -2}, "INVALID_REQUEST"),
        ({"member_epoch": 5}, "UNKNOWN_MEMBER_ID"),
        ({"member_epoch": 5, "group_id": "other"}, "GROUP_ID_NOT_FOUND"),
        ({"member_epoch": -1}, "UNKNOWN_MEMBER_ID"),
        ({"member_epoch": -1, "group_id": "other"}, "GROUP_ID_NOT_FOUND"),
    ],
)
def test_a_heartbeat_that_does_not_fit_is_refused(node: WholeNode, fields: dict[str, Any], error: str) -> None:
    Member(node, "m", "t").join()
    heartbeat = {"member_epoch": 0, "subscribed_topic_names": ["t"], **fields}
    assert name_of(Member(node, "n", "t").send(heartbeat.pop("member_epoch"), **heartbeat)) == error


def test_epochs_fence(node: WholeNode) -> None:
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    assert name_of(member.send(member.epoch + 1)) == "FENCED_MEMBER_EPOCH"
    assert name_of(member.send(member.epoch - 1)) == "NONE", "the answer to the previous epoch may be lost"
    assert name_of(member.send(1)) == "FENCED_MEMBER_EPOCH"
    assert name_of(member.join()) == "NONE", "a member may begin again"


def test_a_member_without_heartbeats_is_removed(node: WholeNode) -> None:
    first, second = Member(node, "a", "t"), Member(node, "b", "t")
    first.join()
    second.join()
    settled(node, first, second)
    for _ in range(10):
        node.advance(5_000)
        second.beat()
    assert name_of(first.beat()) == "UNKNOWN_MEMBER_ID"
    assert [member.member_id for member in describe(node).members] == ["b"]


def test_a_full_group_takes_no_more_members(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data", *SETTINGS, "group.share.max.size=1", "group.share.max.share.sessions=1")
    node.create_topic("t")
    find(node)
    member = Member(node, "a", "t")
    member.join()
    assert name_of(Member(node, "b", "t").join()) == "GROUP_MAX_SIZE_REACHED"
    assert name_of(member.beat()) == "NONE"


def test_groups_of_other_protocols_are_not_share_groups(node: WholeNode) -> None:
    key = apis.OFFSET_COMMIT
    part = struct(key, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1)
    ask(node, key, 8, group_id="c", topics=[struct(key, "OffsetCommitRequestTopic", name="t", partitions=[part])])
    answer = Member(node, "m", "t").send(0, group_id="c", subscribed_topic_names=["t"])
    assert (name_of(answer), answer.error_message) == ("GROUP_ID_NOT_FOUND", "Group c is not a share group.")
    Member(node, "m", "t").join()
    protocol = struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    joined = ask(
        node,
        apis.JOIN_GROUP,
        9,
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    assert name_of(joined) == "INCONSISTENT_GROUP_PROTOCOL"
    listed = ask(node, apis.LIST_GROUPS, 5, types_filter=["share"])
    found = [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in listed.groups]
    assert found == [("g", "share", "Stable", "share")]
    assert describe(node, "c").error_code == error_codes.GROUP_ID_NOT_FOUND


def test_a_restart_keeps_the_group(tmp_path: Path, node: WholeNode) -> None:
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    node.stop()
    member.node = again = WholeNode(tmp_path / "data", *SETTINGS)
    again.until(lambda: not again.broker.groups.runtime.loading_count() and bool(again.broker.groups.runtime.shards()))
    epoch = member.epoch
    assert name_of(member.beat()) == "NONE"
    assert member.epoch == epoch
    again.advance(46_000)
    assert not describe(again).members


def delete(node: WholeNode) -> str:
    return name_of(ask(node, apis.DELETE_GROUPS, 2, groups_names=["g"]).results[0])


def test_a_deleted_group_leaves_no_states(node: WholeNode) -> None:
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    assert delete(node) == "NON_EMPTY_GROUP"
    member.send(-1)
    assert describe(node).group_state == "Empty"
    node.advance(1_000_000)
    assert describe(node).group_state == "Empty", "share groups do not expire"
    assert delete(node) == "NONE"
    assert describe(node).error_code == error_codes.GROUP_ID_NOT_FOUND
    assert not node.broker.share_coordinator.runtime.shard(0).state.partitions
    assert delete(node) == "GROUP_ID_NOT_FOUND"


def offsets(node: WholeNode, *partitions: int, topic: str = "t") -> list[tuple[int, int, int]]:
    """The partition, start offset and lag of each described partition."""
    key = apis.DESCRIBE_SHARE_GROUP_OFFSETS
    topics = None
    if partitions:
        topics = [struct(key, "DescribeShareGroupOffsetsRequestTopic", topic_name=topic, partitions=list(partitions))]
    group = struct(key, "DescribeShareGroupOffsetsRequestGroup", group_id="g", topics=topics)
    (answer,) = ask(node, key, 1, groups=[group]).groups
    assert not answer.error_code
    return [(part.partition_index, part.start_offset, part.lag) for found in answer.topics for part in found.partitions]


def alter(node: WholeNode, *starts: tuple[int, int], topic: str = "t") -> Message:
    key = apis.ALTER_SHARE_GROUP_OFFSETS
    parts = [
        struct(key, "AlterShareGroupOffsetsRequestPartition", partition_index=at, start_offset=start) for at, start in starts
    ]
    return ask(
        node,
        key,
        0,
        group_id="g",
        topics=[struct(key, "AlterShareGroupOffsetsRequestTopic", topic_name=topic, partitions=parts)],
    )


def delete_offsets(node: WholeNode, *topics: str) -> tuple[str, list[tuple[str, str]]]:
    key = apis.DELETE_SHARE_GROUP_OFFSETS
    asked = [struct(key, "DeleteShareGroupOffsetsRequestTopic", topic_name=topic) for topic in topics]
    answer = ask(node, key, 0, group_id="g", topics=asked)
    return name_of(answer), [(topic.topic_name, name_of(topic)) for topic in answer.responses]


def test_offsets_are_described_altered_and_deleted(node: WholeNode) -> None:
    member, topic_id = Member(node, "m", "t"), node.broker.image.topic_ids["t"]
    member.join()
    settled(node, member)
    assert offsets(node) == [(0, -1, -1), (1, -1, -1), (2, -1, -1)], "no share partition has begun"
    assert name_of(alter(node, (0, 5))) == "NON_EMPTY_GROUP"
    assert delete_offsets(node, "t") == ("NON_EMPTY_GROUP", [])
    member.send(-1)
    pending = node.produce("t", 1, batch(b"a", b"b", b"c", b"d", b"e", b"f"))
    node.until(lambda: pending.answer is not None)
    answer = alter(node, (1, 2), (7, 0))
    parts = [(part.partition_index, name_of(part)) for part in answer.responses[0].partitions]
    assert parts == [(1, "NONE"), (7, "UNKNOWN_TOPIC_OR_PARTITION")]
    assert offsets(node, 1) == [(1, 2, 4)]
    done: list[int] = []
    change = ShareUpdateBatches(-1, 0, 3, 1, ())
    node.broker.share_persister.write(ShareKey("g", topic_id, 1), change, done.append)
    node.until(lambda: done == [0])
    assert offsets(node, 1) == [(1, 3, 2)], "one offset above the start is complete"
    assert delete_offsets(node, "t", "none") == ("NONE", [("none", "UNKNOWN_TOPIC_OR_PARTITION"), ("t", "NONE")])
    assert offsets(node) == []
    assert delete_offsets(node, "t")[1] == [("t", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert offsets(node, 0, topic="none") == [(0, -1, -1)]


def test_states_that_are_being_initialized_are_deleted_too(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An initialization that is repeated must not bring back what a deletion of the offsets has removed."""
    assert name_of(alter(node, (0, 7))) == "NONE"
    member = Member(node, "m", "t")
    with monkeypatch.context() as patch:
        patch.setattr(node.broker.share_persister, "_coordinator_of", lambda key: None)
        member.join()
        node.advance(50)
    member.send(-1)
    assert delete_offsets(node, "t") == ("NONE", [("t", "NONE")])
    node.advance(5_000)
    assert offsets(node) == []
    member.join()
    settled(node, member)
    assert offsets(node) == [(0, -1, -1), (1, -1, -1), (2, -1, -1)]


def test_offsets_are_set_when_the_group_has_taken_them(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer before that would be wrong if the coordinator is loaded again: the next member would begin elsewhere."""

    def fail(self: ShareGroupManager, done: Initialization) -> Decision[None]:
        raise CoordinatorError(error_codes.NOT_COORDINATOR, "the coordinator has moved")

    with monkeypatch.context() as patch:
        patch.setattr(ShareGroupManager, "complete_initialization", fail)
        answer = alter(node, (0, 7))
        assert (name_of(answer), list(answer.responses)) == ("NOT_COORDINATOR", [])
    assert name_of(alter(node, (0, 7))) == "NONE"
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    assert offsets(node, 0) == [(0, 7, -7)]


def test_offsets_of_a_new_group_can_be_set(node: WholeNode) -> None:
    assert not alter(node, (0, 7)).error_code
    assert offsets(node) == [(0, 7, -7)]
    member = Member(node, "m", "t")
    member.join()
    settled(node, member)
    node.until(lambda: bool(member.beat() and list(member.assigned.values()) == [[0, 1, 2]]))
    assert offsets(node)[0] == (0, 7, -7), "a state that exists is not begun again"


def test_the_features_level_decides(tmp_path: Path, node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(node.broker.image.features, "share.version", 0)
    assert name_of(Member(node, "m", "t").join()) == "UNSUPPORTED_VERSION"
    assert name_of(describe(node)) == "UNSUPPORTED_VERSION"
    assert name_of(alter(node, (0, 1))) == "UNSUPPORTED_VERSION"
    assert delete_offsets(node, "t")[0] == "UNSUPPORTED_VERSION"


A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)


def spec(name: str, *topics: Uuid, **target: list[int]) -> MemberSpec:
    found = {A: target.get("a", []), B: target.get("b", [])}
    return MemberSpec(name, None, frozenset(topics), {topic_id: indexes for topic_id, indexes in found.items() if indexes})


def test_members_with_one_subscription_share_all_partitions_evenly() -> None:
    targets = assign_shares([spec(f"m{number}", A) for number in range(5)], {A: [0, 1]})
    owners = [sum(index in target.get(A, ()) for target in targets.values()) for index in (0, 1)]
    assert owners == [3, 3] or sum(owners) >= 5
    assert all(target.get(A) for target in targets.values())


def test_members_keep_what_they_have() -> None:
    before = [spec("x", A, a=[0, 1]), spec("y", A, a=[2, 3])]
    assert assign_shares(before, {A: [0, 1, 2, 3]}) == {"x": {A: [0, 1]}, "y": {A: [2, 3]}}
    targets = assign_shares([*before, spec("z", A)], {A: [0, 1, 2, 3]})
    assert sorted(len(target.get(A, ())) for target in targets.values()) == [1, 1, 2]


def test_members_with_different_subscriptions_share_each_topic() -> None:
    targets = assign_shares([spec("x", A), spec("y", A, B), spec("z", B)], {A: [0, 1], B: [0]})
    assert len(targets["x"][A]) == len(targets["y"][A]) == 1
    assert targets["y"][B] == targets["z"][B] == [0]
    assert A not in targets["z"] and B not in targets["x"]
