"""Protects the state of groups: members and assignments of all four kinds, offsets inside and outside of transactions."""

from __future__ import annotations

import copy
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_types
from kcli.server.coordinator.group.offset_manager import OffsetManager
from kcli.state.group_state import _HANDLERS, GroupState, OffsetKey
from kcli.state.groups import ConsumerGroup, ShareGroup, StoredClassicGroup, StreamsGroup
from kcli.state.speculative_state import SpeculativeState
from kcli.state.state_error import StateError
from tests.state.given_topics import HAS_GIVEN, applied, directories, files, shown

TYPES = message_types("group_records")
TOPIC_ID = Uuid(b"topic".ljust(16))
OFFSET = OffsetKey("g", "t", 0)


def new(name: str, **fields: Any) -> Message:
    return TYPES[name].new(**fields)


def part(name: str, struct: str, **fields: Any) -> Message:
    return TYPES[name].classes[struct](**fields)


class Applier:
    """Applies records one after the other, each at the next offset."""

    def __init__(self) -> None:
        self.state = GroupState()
        self.offset = 0

    def __call__(self, name: str, key: dict[str, Any], value: dict[str, Any] | None, producer_id: int = -1) -> None:
        message = None if value is None else new(f"{name}Value", **value)
        self.state.apply(new(f"{name}Key", **key), message, self.offset, producer_id)
        self.offset += 1

    def commit(self, offset: int | None, producer_id: int = -1) -> None:
        value = None if offset is None else {"offset": offset}
        self("OffsetCommit", {"group": "g", "topic": "t"}, value, producer_id)

    def committed(self) -> int | None:
        found = self.state.committed_offsets.get(OFFSET)
        return None if found is None else found.offset


def applied_directory(given: Path) -> tuple[GroupState, list[Path]]:
    state, dumps = GroupState(), []
    for file, dump in files(given, "__consumer_offsets"):
        dumps.append(dump)
        for record in applied(file, dump, "__consumer_offsets"):
            if record.control is not None:
                state.apply_marker(record.batch.producer_id, record.control.name == "COMMIT")
            elif record.key is not None:
                producer_id = record.batch.producer_id if record.batch.is_transactional else -1
                state.apply(record.key, record.value, record.offset, producer_id)
    return state, dumps


def committed_by_the_dump(dump: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What is committed in the end, from Kafka's text alone: every record counts at its own offset or not at all."""
    lines = list(shown(dump))
    ends = [(line.offset, line.producer_id, line.control) for line in lines if line.control]
    last: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in lines:
        if line.key and line.key["type"] == "1":
            ended = [how for offset, producer_id, how in ends if producer_id == line.producer_id and offset > line.offset]
            if not line.is_transactional or (ended and ended[0] == "COMMIT"):
                data = line.key["data"]
                last[data["group"], data["topic"], data["partition"]] = line.payload and line.payload["data"]
    return {name: data for name, data in last.items() if data is not None}


@pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")
@pytest.mark.parametrize("given", directories(), ids=lambda given: given.parent.name)
def test_the_committed_offsets_of_the_given_directories(given: Path) -> None:
    state, dumps = applied_directory(given)
    expected = {name: data for dump in dumps for name, data in committed_by_the_dump(dump).items()}
    assert len(expected) > 5 and set(state.committed_offsets) == set(expected)
    for name, data in expected.items():
        found = state.committed_offsets[OffsetKey(*name)]
        assert (found.offset, found.leader_epoch, found.metadata, found.commit_timestamp_ms) == (
            data["offset"],
            data["leaderEpoch"],
            data["metadata"],
            data["commitTimestamp"],
        )
        assert str(found.topic_id) == data.get("topicId", "A" * 22)
    assert state.pending_offsets == {}


@pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")
@pytest.mark.parametrize("given", directories(), ids=lambda given: given.parent.name)
def test_the_groups_of_the_given_directories(given: Path) -> None:
    """Epochs and generations are those of the last record that Kafka's dump shows of each group."""
    state, dumps = applied_directory(given)
    lines = [line for dump in dumps for line in shown(dump) if line.key and line.key["type"] in ("2", "3", "11")]
    names = {"2": "classic", "3": "consumer", "11": "share"}
    last = {line.key["data"].get("groupId", line.key["data"].get("group")): line for line in lines}
    kept = {name: line for name, line in last.items() if line.payload is not None}
    holders = {name.group_id for name in state.committed_offsets} - set(kept)
    assert set(state.groups) - holders == set(kept) and len(kept) >= 4
    for name, line in kept.items():
        group = state.groups[name]
        assert group.kind == names[line.key["type"]]
        epoch = group.generation if isinstance(group, StoredClassicGroup) else group.group_epoch
        assert epoch == line.payload["data"].get("generation", line.payload["data"].get("epoch"))
        # The broker was stopped after all members had left.
        assert (group.members, group.state) == ({}, "Empty")


@pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")
@pytest.mark.parametrize("given", directories(), ids=lambda given: given.parent.name)
def test_a_consumer_groups_members_on_their_way(given: Path) -> None:
    """Each state in which Kafka's dump shows a member is the member's after that record."""
    count = 0
    for file, dump in files(given, "__consumer_offsets"):
        state = GroupState()
        for record, line in zip(applied(file, dump, "__consumer_offsets"), shown(dump), strict=True):
            if record.key is None:
                continue
            state.apply(record.key, record.value, record.offset)
            if line.key["type"] != "8" or line.payload is None:
                continue
            group = state.groups[line.key["data"]["groupId"]]
            assert isinstance(group, ConsumerGroup)
            member, data = group.members[line.key["data"]["memberId"]], line.payload["data"]
            assert (member.member_epoch, member.previous_member_epoch) == (data["memberEpoch"], data["previousMemberEpoch"])
            assert member.state == ["STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS"][data["state"]]
            for have, said in (
                (member.assigned_partitions, data["assignedPartitions"]),
                (member.partitions_pending_revocation, data["partitionsPendingRevocation"]),
            ):
                assert {str(topic): list(parts) for topic, parts in have.items()} == {
                    topic["topicId"]: topic["partitions"] for topic in said
                }
            assert member.subscribed_topic_names == ["orders"]
            count += 1
    assert count >= 5


def test_pending_offsets_count_from_the_commit_marker_on() -> None:
    apply = Applier()
    apply.commit(5)
    apply.commit(7, producer_id=3)
    assert apply.committed() == 5 and apply.state.pending_offsets[3][OFFSET].offset == 7
    apply.state.apply_marker(3, commit=True)
    assert apply.committed() == 7 and apply.state.pending_offsets == {}


def test_pending_offsets_are_dropped_at_the_abort_marker() -> None:
    apply = Applier()
    apply.commit(7, producer_id=3)
    apply.state.apply_marker(3, commit=False)
    assert apply.committed() is None
    apply.state.apply_marker(3, commit=True)
    assert apply.committed() is None


def test_a_later_plain_commit_outlives_the_transaction_that_ends_behind_it() -> None:
    apply = Applier()
    apply.commit(7, producer_id=3)
    apply.commit(5)
    apply.state.apply_marker(3, commit=True)
    assert apply.committed() == 5


def test_a_tombstone_removes_committed_and_pending_offsets() -> None:
    apply = Applier()
    apply.commit(5)
    apply.commit(7, producer_id=3)
    apply.commit(None)
    apply.state.apply_marker(3, commit=True)
    assert apply.committed() is None


class Scanned(dict[Any, Any]):
    """A map that must not be scanned."""

    def __iter__(self) -> Any:
        raise AssertionError("all open transactions are scanned")

    keys = values = items = __iter__


def test_pending_offsets_are_found_without_a_scan_of_all_transactions() -> None:
    apply = Applier()
    for producer_id in range(3):
        apply.commit(7, producer_id)
    state = apply.state
    state.pending_offsets = Scanned(state.pending_offsets)
    assert state.is_pending(*OFFSET) and not state.is_pending("g", "t", 1) and not state.is_pending("h", "t", 0)
    assert state.has_open_transaction("g") and not state.has_open_transaction("h")
    state.apply_marker(0, commit=False)
    assert state.is_pending(*OFFSET)
    apply.commit(None)
    assert not state.is_pending(*OFFSET) and not state.has_open_transaction("g") and not state.pending_producers
    assert OffsetManager(state, lambda: 0, lambda: 0).delete_all("g") == []


def pending_producers(state: GroupState) -> dict[str, dict[tuple[str, int], dict[int, None]]]:
    """Return what the index of pending offsets must be."""
    found: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
    for producer_id, pending in state.pending_offsets.items():
        for group_id, *where in pending:
            found.setdefault(group_id, {}).setdefault((where[0], where[1]), {})[producer_id] = None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_index_of_pending_offsets_is_reverted_with_them(seed: int) -> None:
    """Random records of transactions, commits and reverts, compared with the pending offsets themselves."""
    rng = random.Random(seed)
    state = GroupState()
    speculative = SpeculativeState[GroupState, Any](state, lambda record, offset: record(offset))
    kept: list[tuple[int, Any]] = [(0, (copy.deepcopy(state.pending_offsets), copy.deepcopy(state.pending_producers)))]
    committed = offset = 0
    for _ in range(200):
        key = new("OffsetCommitKey", group=rng.choice("ab"), topic=rng.choice("tu"), partition=0)
        producer_id = rng.randrange(3)
        if rng.random() < 0.2:
            record = partial(lambda producer_id, at: state.apply_marker(producer_id, at % 2 == 0), producer_id)
        else:
            value = new("OffsetCommitValue", offset=1) if rng.random() < 0.7 else None
            record = partial(
                lambda key, value, producer_id, at: state.apply(key, value, at, producer_id), key, value, producer_id
            )
        speculative.append(record, offset)
        offset += 1
        kept.append((offset, (copy.deepcopy(state.pending_offsets), copy.deepcopy(state.pending_producers))))
        if rng.random() < 0.1:
            offset = rng.randint(committed, offset)
            speculative.roll_back(offset)
            kept = [(at, one) for at, one in kept if at <= offset]
            assert (state.pending_offsets, state.pending_producers) == kept[-1][1]
        elif rng.random() < 0.1:
            committed = offset
            speculative.commit(offset - 1)
        assert state.pending_producers == pending_producers(state)
        for group in "ab":
            assert state.has_open_transaction(group) == any(
                key.group_id == group for one in state.pending_offsets.values() for key in one
            )
            assert state.is_pending(group, "t", 0) == any((group, "t", 0) in one for one in state.pending_offsets.values())


def test_legacy_commits_count_like_others() -> None:
    apply = Applier()
    apply("LegacyOffsetCommit", {"group": "g", "topic": "t"}, {"offset": 4, "metadata": "m", "commit_timestamp": 9})
    found = apply.state.committed_offsets[OFFSET]
    assert (found.offset, found.metadata, found.commit_timestamp_ms, found.leader_epoch) == (4, "m", 9, -1)


def test_a_group_that_only_holds_offsets_may_become_any_kind_and_others_may_not_change() -> None:
    apply = Applier()
    apply.commit(5)
    holder = apply.state.groups["g"]
    assert isinstance(holder, StoredClassicGroup) and holder.is_simple
    apply("ConsumerGroupMetadata", {"group_id": "g"}, {"epoch": 3})
    assert apply.state.groups["g"].kind == "consumer"
    with pytest.raises(StateError, match="is a consumer group but has records of a share group"):
        apply("ShareGroupMetadata", {"group_id": "g"}, {"epoch": 3})
    apply("GroupMetadata", {"group": "g"}, None)
    apply("ShareGroupMetadata", {"group_id": "g"}, {"epoch": 3})
    assert apply.state.groups["g"].kind == "share"


def test_a_classic_group_is_whole_in_one_record() -> None:
    apply = Applier()
    member = part("GroupMetadataValue", "MemberMetadata", member_id="m", session_timeout=30, subscription=b"s")
    apply("GroupMetadata", {"group": "g"}, {"protocol_type": "consumer", "generation": 4, "members": [member]})
    group = apply.state.groups["g"]
    assert isinstance(group, StoredClassicGroup)
    assert (group.state, group.generation, group.members["m"].rebalance_timeout_ms) == ("Stable", 4, 30)
    apply("GroupMetadata", {"group": "g"}, {"protocol_type": "consumer", "generation": 5})
    assert apply.state.groups["g"].state == "Empty"


def test_a_consumer_group_goes_through_its_states() -> None:
    apply = Applier()
    member = {"group_id": "g", "member_id": "m"}
    classic = part("ConsumerGroupMemberMetadataValue", "ClassicMemberMetadata", session_timeout_ms=9)
    target = part("ConsumerGroupTargetAssignmentMemberValue", "TopicPartition", topic_id=TOPIC_ID, partitions=[0, 1])
    current = part("ConsumerGroupCurrentMemberAssignmentValue", "TopicPartitions", topic_id=TOPIC_ID, partitions=[0, 1])
    states = []
    apply("ConsumerGroupMetadata", {"group_id": "g"}, {"epoch": 1, "metadata_hash": 7})
    group = apply.state.groups["g"]
    assert isinstance(group, ConsumerGroup)
    states.append(group.state)
    apply("ConsumerGroupMemberMetadata", member, {"classic_member_metadata": classic, "rack_id": "r"})
    states.append(group.state)
    apply("ConsumerGroupTargetAssignmentMember", member, {"topic_partitions": [target]})
    apply("ConsumerGroupTargetAssignmentMetadata", {"group_id": "g"}, {"assignment_epoch": 1, "assignment_timestamp": 8})
    states.append(group.state)
    apply("ConsumerGroupCurrentMemberAssignment", member, {"member_epoch": 1, "assigned_partitions": [current]})
    states.append(group.state)
    assert states == ["Empty", "Assigning", "Reconciling", "Stable"]
    found = group.members["m"]
    assert (found.rack_id, found.session_timeout_ms, found.classic_protocols) == ("r", 9, {})
    assert found.assigned_partitions == {TOPIC_ID: {0: 1, 1: 1}}
    assert group.target_assignment == {"m": {TOPIC_ID: [0, 1]}}

    apply("ConsumerGroupCurrentMemberAssignment", member, None)
    found = group.members["m"]
    assert (found.member_epoch, found.assigned_partitions) == (-1, {})
    apply("ConsumerGroupTargetAssignmentMember", member, None)
    apply("ConsumerGroupTargetAssignmentMetadata", {"group_id": "g"}, None)
    apply("ConsumerGroupMemberMetadata", member, None)
    assert (group.members, group.target_assignment, group.assignment_epoch) == ({}, {}, -1)
    apply("ConsumerGroupMetadata", {"group_id": "g"}, None)
    assert apply.state.groups == {}


def test_partitions_remember_the_epoch_in_which_they_were_assigned() -> None:
    apply = Applier()
    parts = [
        part("ConsumerGroupCurrentMemberAssignmentValue", "TopicPartitions", topic_id=TOPIC_ID, **fields)
        for fields in ({"partitions": [0, 1], "assignment_epochs": [4, 5]},)
    ]
    values = {"member_epoch": 6, "assigned_partitions": parts}
    apply("ConsumerGroupCurrentMemberAssignment", {"group_id": "g", "member_id": "m"}, values)
    group = apply.state.groups["g"]
    assert isinstance(group, ConsumerGroup) and group.members["m"].assigned_partitions == {TOPIC_ID: {0: 4, 1: 5}}


def test_regular_expressions_and_old_partition_metadata() -> None:
    apply = Applier()
    pattern = {"group_id": "g", "regular_expression": "a.*"}
    apply("ConsumerGroupRegularExpression", pattern, {"topics": ["ab"]})
    apply("ConsumerGroupPartitionMetadata", {"group_id": "g"}, {})
    group = apply.state.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert (group.resolved_regexes, group.has_partition_metadata) == ({"a.*": ["ab"]}, True)
    apply("ConsumerGroupRegularExpression", pattern, None)
    apply("ConsumerGroupPartitionMetadata", {"group_id": "g"}, None)
    assert (group.resolved_regexes, group.has_partition_metadata) == ({}, False)


def test_a_share_group() -> None:
    apply = Applier()
    member, name = {"group_id": "g", "member_id": "m"}, "ShareGroupCurrentMemberAssignmentValue"
    apply("ShareGroupMetadata", {"group_id": "g"}, {"epoch": 1})
    apply("ShareGroupMemberMetadata", member, {"subscribed_topic_names": ["t"]})
    assigned = [part(name, "TopicPartitions", topic_id=TOPIC_ID, partitions=[0])]
    apply("ShareGroupCurrentMemberAssignment", member, {"member_epoch": 1, "assigned_partitions": assigned})
    info = {"topic_id": TOPIC_ID, "topic_name": "t"}
    value = "ShareGroupStatePartitionMetadataValue"
    topics = {
        "initializing_topics": [part(value, "TopicPartitionsInfo", partitions=[1], **info)],
        "initialized_topics": [part(value, "TopicPartitionsInfo", partitions=[0], **info)],
        "deleting_topics": [part(value, "TopicInfo", **info)],
    }
    apply("ShareGroupStatePartitionMetadata", {"group_id": "g"}, topics)
    group = apply.state.groups["g"]
    assert isinstance(group, ShareGroup)
    assert (group.state, group.members["m"].assigned_partitions) == ("Stable", {TOPIC_ID: [0]})
    assert [(topic.status, topic.partitions) for topic in group.topics] == [
        ("initializing", [1]),
        ("initialized", [0]),
        ("deleting", []),
    ]
    apply("ShareGroupStatePartitionMetadata", {"group_id": "g"}, None)
    apply("ShareGroupMemberMetadata", member, None)
    assert (group.topics, group.state) == ([], "Empty")


def test_a_streams_group_goes_through_its_states() -> None:
    apply = Applier()
    member, states = {"group_id": "g", "member_id": "m"}, []
    apply("StreamsGroupMetadata", {"group_id": "g"}, {"epoch": 2, "validated_topology_epoch": 1})
    group = apply.state.groups["g"]
    assert isinstance(group, StreamsGroup)
    states.append(group.state)
    endpoint = part("StreamsGroupMemberMetadataValue", "Endpoint", host="h", port=9)
    tag = part("StreamsGroupMemberMetadataValue", "KeyValue", key="zone", value="a")
    apply("StreamsGroupMemberMetadata", member, {"user_endpoint": endpoint, "client_tags": [tag], "process_id": "p"})
    states.append(group.state)
    subtopology = part("StreamsGroupTopologyValue", "Subtopology", subtopology_id="0", source_topics=["in"])
    apply("StreamsGroupTopology", {"group_id": "g"}, {"epoch": 1, "subtopologies": [subtopology]})
    states.append(group.state)
    target = part("StreamsGroupTargetAssignmentMemberValue", "TaskIds", subtopology_id="0", partitions=[0, 1])
    apply("StreamsGroupTargetAssignmentMember", member, {"active_tasks": [target]})
    apply("StreamsGroupTargetAssignmentMetadata", {"group_id": "g"}, {"assignment_epoch": 2})
    states.append(group.state)
    name = "StreamsGroupCurrentMemberAssignmentValue"
    active = part(name, "TaskIds", subtopology_id="0", partitions=[0, 1], assignment_epochs=[1, 2])
    standby = part(name, "TaskIds", subtopology_id="0", partitions=[2])
    value = {"member_epoch": 2, "state": 1, "active_tasks": [active], "standby_tasks": [standby]}
    apply("StreamsGroupCurrentMemberAssignment", member, value)
    states.append(group.state)
    assert states == ["Empty", "NotReady", "Assigning", "Reconciling", "Stable"]
    found = group.members["m"]
    assert (found.user_endpoint, found.client_tags, found.process_id) == (("h", 9), {"zone": "a"}, "p")
    assert (found.assigned_tasks.active, found.assigned_tasks.standby) == ({"0": {0: 1, 1: 2}}, {"0": [2]})
    assert group.target_assignment["m"].active == {"0": [0, 1]}
    assert group.subtopologies["0"].source_topics == ["in"]
    for record in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
        apply(f"StreamsGroup{record}", member, None)
    for record in ("TargetAssignmentMetadata", "Topology"):
        apply(f"StreamsGroup{record}", {"group_id": "g"}, None)
    assert (group.members, group.target_assignment, group.topology_epoch, group.subtopologies) == ({}, {}, -1, {})
    apply("StreamsGroupMetadata", {"group_id": "g"}, None)
    assert apply.state.groups == {}


@pytest.mark.parametrize("name", sorted(_HANDLERS))
def test_tombstones_of_what_is_not_there_change_nothing(name: str) -> None:
    apply = Applier()
    key = new(name)
    apply.state.apply(key, None, 0)
    assert (apply.state.groups, apply.state.committed_offsets) == ({}, {})


def test_every_record_type_has_a_home() -> None:
    keys = {name for name in TYPES if name.endswith("Key")}
    assert keys == {*_HANDLERS, "OffsetCommitKey", "LegacyOffsetCommitKey"}
    with pytest.raises(StateError, match="is not a key of __consumer_offsets"):
        GroupState().apply(message_types("share_records")["ShareUpdateKey"].new(), None, 0)
