"""Protects the group APIs of a whole node in all of their versions: what is committed is fetched, also after a restart.

Members of classic groups join, sync, send heartbeats and leave as clients of every version do.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.operation import Decision
from tests.server.whole_node import WholeNode

OVERRIDES = (
    "offsets.topic.num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
    "offsets.retention.minutes=1",
    "offsets.retention.check.interval.ms=40000",
)


def made(key: int, struct: str, /, **fields: Any) -> Message:
    """A struct of a request."""
    return API_KEYS[key].request.classes[struct](**fields)


class Groups:
    """A node with topic t, and requests to its coordinator."""

    def __init__(self, directory: Path, *, is_new: bool = True) -> None:
        self.node = WholeNode(directory, *OVERRIDES)
        if is_new:
            self.node.create_topic("t", 3)
            assert self.coordinator("g")[0] == error_codes.COORDINATOR_NOT_AVAILABLE
        self.node.until(lambda: self.coordinator("g")[0] == 0 and len(self.node.broker.groups.runtime.shards()) == 4)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        """The answer to a request, which comes within a second."""
        pending = self.node.send(key, version, API_KEYS[key].request.new(**fields))
        self.node.until(lambda: pending.answer is not None, 1_000)
        return pending.result()

    def coordinator(self, group: str) -> tuple[int, int]:
        """The error code and the node."""
        answer = self.ask(apis.FIND_COORDINATOR, 3, key=group, key_type=0)
        return answer.error_code, answer.node_id

    def commit(self, version: int, offsets: dict[int, int], *, group: str = "g", topic: str = "t", **fields: Any) -> list[int]:
        """Commit offsets -> the error codes."""
        parts = [
            made(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=index, committed_offset=offset, **fields)
            for index, offset in offsets.items()
        ]
        topic_id = self.node.broker.image.topic_ids.get(topic, ZERO_UUID)
        entry = made(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name=topic, topic_id=topic_id, partitions=parts)
        answer = self.ask(apis.OFFSET_COMMIT, version, group_id=group, topics=[entry])
        return [part.error_code for part in answer.topics[0].partitions]

    def fetch(self, version: int, *, group: str = "g", partitions: tuple[int, ...] | None = (0, 1, 2), topic: str = "t") -> Any:
        """Fetch offsets -> by partition (offset, metadata), or the error code of the group."""
        if version >= 8:
            topic_id = self.node.broker.image.topic_ids.get(topic, ZERO_UUID)
            wanted = made(
                apis.OFFSET_FETCH,
                "OffsetFetchRequestTopics",
                name=topic,
                topic_id=topic_id,
                partition_indexes=list(partitions or ()),
            )
            entry = made(
                apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=group, topics=None if partitions is None else [wanted]
            )
            answer = self.ask(apis.OFFSET_FETCH, version, groups=[entry]).groups[0]
        else:
            wanted = made(apis.OFFSET_FETCH, "OffsetFetchRequestTopic", name=topic, partition_indexes=list(partitions or ()))
            answer = self.ask(apis.OFFSET_FETCH, version, group_id=group, topics=None if partitions is None else [wanted])
        if answer.error_code:
            return answer.error_code
        return {
            part.partition_index: (part.committed_offset, part.metadata) for topic in answer.topics for part in topic.partitions
        }

    def listed(self) -> dict[str, str]:
        """The states of all groups."""
        return {group.group_id: group.group_state for group in self.ask(apis.LIST_GROUPS, 5).groups}


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    yield made
    made.node.stop()


@pytest.mark.parametrize("version", range(2, 11))
def test_what_is_committed_is_fetched_in_every_version(groups: Groups, version: int) -> None:
    assert groups.commit(version, {0: 5, 2: 7}, committed_metadata="m") == [0, 0]
    expected = {0: (5, "m"), 1: (-1, ""), 2: (7, "m")}
    for fetch_version in range(1, 11):
        assert groups.fetch(fetch_version) == expected, fetch_version
    for fetch_version in range(2, 11):
        assert groups.fetch(fetch_version, partitions=None) == {0: (5, "m"), 2: (7, "m")}, fetch_version
    assert groups.listed() == {"g": "Empty"}


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    for at in range(50):
        assert groups.commit(8, {at % 3: at}, group=f"g{at % 7}") == [0]
    before = {f"g{at}": groups.fetch(8, group=f"g{at}") for at in range(7)}
    groups.node.stop()
    groups = Groups(tmp_path, is_new=False)
    assert {f"g{at}": groups.fetch(8, group=f"g{at}") for at in range(7)} == before
    groups.node.stop()


def test_errors_of_single_partitions(groups: Groups) -> None:
    assert groups.commit(8, {0: 5, 9: 6}) == [0, error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    assert groups.commit(8, {0: 5}, topic="nope") == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    assert groups.commit(10, {0: 5}, topic="nope") == [error_codes.UNKNOWN_TOPIC_ID]
    too_long = "m" * 4097
    assert groups.commit(8, {1: 5}, committed_metadata=too_long) == [error_codes.OFFSET_METADATA_TOO_LARGE]
    emoji = "\U0001f600"  # two UTF-16 units, which Kafka counts
    assert groups.commit(8, {1: 5}, committed_metadata=emoji * 2049) == [error_codes.OFFSET_METADATA_TOO_LARGE]
    assert groups.commit(8, {0: 5}, committed_metadata=emoji * 2048) == [0]
    assert groups.commit(8, {0: 5}) == [0]
    assert groups.fetch(8) == {0: (5, ""), 1: (-1, ""), 2: (-1, "")}
    assert groups.fetch(8, group="other") == {0: (-1, ""), 1: (-1, ""), 2: (-1, "")}


def test_a_commit_with_a_generation_needs_the_group(groups: Groups) -> None:
    part = made(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1)
    for version, code in ((8, error_codes.ILLEGAL_GENERATION), (9, error_codes.GROUP_ID_NOT_FOUND)):
        topic = made(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="t", partitions=[part])
        answer = groups.ask(
            apis.OFFSET_COMMIT, version, group_id="new", generation_id_or_member_epoch=1, member_id="m", topics=[topic]
        )
        assert answer.topics[0].partitions[0].error_code == code
    assert groups.listed() == {}


def test_offsets_and_groups_are_deleted(groups: Groups) -> None:
    groups.commit(8, {0: 5, 1: 6})
    parts = [made(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=index) for index in (0, 2, 9)]
    topic = made(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", name="t", partitions=parts)
    answer = groups.ask(apis.OFFSET_DELETE, 0, group_id="g", topics=[topic])
    codes = [part.error_code for part in answer.topics[0].partitions]
    assert (answer.error_code, codes) == (0, [0, 0, error_codes.UNKNOWN_TOPIC_OR_PARTITION])
    assert groups.fetch(8) == {0: (-1, ""), 1: (6, ""), 2: (-1, "")}
    answer = groups.ask(apis.DELETE_GROUPS, 2, groups_names=["g", "none", "g"])
    assert [(one.group_id, one.error_code) for one in answer.results] == [("g", 0), ("none", error_codes.GROUP_ID_NOT_FOUND)]
    assert groups.listed() == {} and groups.fetch(8) == {0: (-1, ""), 1: (-1, ""), 2: (-1, "")}


def test_a_commit_without_an_accepted_offset_makes_the_group(groups: Groups) -> None:
    """Kafka makes the group before it checks the offsets: it can be deleted once, a member of it is unknown."""
    part = made(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1)
    topic = made(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="t", partitions=[part])

    def answers() -> tuple[int, int, int]:
        fields = {"generation_id_or_member_epoch": 1, "member_id": "m", "topics": [topic]}
        committed = groups.ask(apis.OFFSET_COMMIT, 9, group_id="new", **fields)
        deleted = groups.ask(apis.OFFSET_DELETE, 0, group_id="new", topics=[])
        removed = groups.ask(apis.DELETE_GROUPS, 2, groups_names=["new"])
        return committed.topics[0].partitions[0].error_code, deleted.error_code, removed.results[0].error_code

    def commit() -> None:
        assert groups.commit(9, {0: 1}, group="new", committed_metadata="m" * 5000) == [error_codes.OFFSET_METADATA_TOO_LARGE]

    unknown = (error_codes.GROUP_ID_NOT_FOUND,) * 3
    assert answers() == unknown
    commit()
    assert groups.listed() == {}
    assert answers() == (error_codes.UNKNOWN_MEMBER_ID, 0, 0)
    assert answers() == unknown
    commit()
    groups.node.advance(40_000)
    assert answers() == unknown


def test_offsets_of_an_empty_group_id_are_not_deleted(groups: Groups) -> None:
    """A consumer without group.id may commit; Kafka's OffsetDelete refuses the empty id."""
    assert groups.commit(8, {0: 5}, group="") == [0]
    part = made(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=0)
    topic = made(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", name="t", partitions=[part])
    answer = groups.ask(apis.OFFSET_DELETE, 0, group_id="", topics=[topic])
    assert (answer.error_code, answer.topics) == (error_codes.INVALID_GROUP_ID, [])
    assert groups.fetch(8, group="", partitions=(0,)) == {0: (5, "")}


def test_offsets_of_a_deleted_topic_are_deleted(groups: Groups) -> None:
    groups.node.create_topic("gone")
    groups.commit(8, {0: 5}, topic="gone")
    groups.commit(8, {0: 6})
    groups.node.delete_topic("gone")
    groups.node.advance(100)
    assert groups.fetch(8, partitions=None) == {0: (6, "")}


def test_offsets_of_a_deleted_topic_are_not_those_of_a_new_one(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that dies after the deletion has not written the tombstones, so that the old offset is there."""
    groups.node.create_topic("again")
    old = groups.node.broker.image.topic("again")
    groups.commit(10, {0: 5}, topic="again")
    with monkeypatch.context() as patch:
        patch.setattr(groups.node.broker.groups, "topic_removed", lambda topic: None)
        groups.node.delete_topic("again")
        groups.node.advance(100)
    groups.node.create_topic("again")
    assert groups.fetch(9, topic="again", partitions=(0,)) == {0: (5, "")}
    assert groups.fetch(10, topic="again", partitions=(0,)) == {0: (-1, "")}
    assert groups.commit(10, {0: 7}, topic="again") == [0]
    assert groups.fetch(10, topic="again", partitions=(0,)) == {0: (7, "")}
    assert old is not None
    groups.node.broker.groups.topic_removed(old)
    groups.node.advance(100)
    assert groups.fetch(10, topic="again", partitions=(0,)) == {0: (7, "")}, "only the offsets of the deleted topic are removed"
    groups.commit(8, {0: 8}, topic="again")
    groups.node.broker.groups.topic_removed(old)
    groups.node.advance(100)
    assert groups.fetch(10, topic="again", partitions=(0,)) == {0: (-1, "")}, "an offset without a topic id is of any topic"


def test_the_deletion_of_a_topic_deletes_offsets_that_an_earlier_one_has_left(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker had died before it had written the tombstones of the earlier one."""
    groups.node.create_topic("again")
    groups.commit(10, {0: 5}, topic="again")
    with monkeypatch.context() as patch:
        patch.setattr(groups.node.broker.groups, "topic_removed", lambda topic: None)
        groups.node.delete_topic("again")
        groups.node.advance(100)
    groups.node.create_topic("again")
    assert groups.fetch(9, topic="again", partitions=(0,)) == {0: (5, "")}
    groups.node.delete_topic("again")
    groups.node.advance(100)
    assert groups.fetch(8, partitions=None) == {}


def test_old_offsets_expire_and_so_does_a_group_without_offsets(groups: Groups) -> None:
    groups.commit(8, {0: 5})
    groups.node.advance(130_000)
    assert groups.listed() == {}


def test_offsets_of_a_group_whose_record_has_no_time_expire_by_their_commit(groups: Groups) -> None:
    """A GroupMetadata record of version 0 or 1 has no time of the state. A join makes the group known to the coordinator."""
    runtime, index = groups.node.broker.groups.runtime, groups.node.broker.groups.partition_for("g")
    record = CoordinatorRecord(
        message_type("group_records", "GroupMetadataKey").new(group="g"),
        message_type("group_records", "GroupMetadataValue").new(
            schema_version=1, protocol_type="consumer", generation=3, protocol=None, leader=None, members=[]
        ),
    )
    runtime.write(index, lambda shard: Decision(None, [record]), lambda response, now_ms: None)
    groups.commit(8, {0: 5})
    protocol = made(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    fields: dict[str, Any] = {"session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [protocol]}
    answer = groups.ask(apis.JOIN_GROUP, 9, group_id="g", **fields)
    assert answer.error_code == error_codes.MEMBER_ID_REQUIRED
    groups.node.advance(45_000)
    assert groups.fetch(8, partitions=None) == {0: (5, "")}
    groups.node.advance(45_000)
    assert groups.fetch(8, partitions=None) == {}


def test_offsets_with_a_retention_time_of_their_own(groups: Groups) -> None:
    part = made(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1)
    topic = made(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="t", partitions=[part])
    groups.ask(apis.OFFSET_COMMIT, 3, group_id="g", retention_time_ms=1000, topics=[topic])
    assert groups.fetch(8, partitions=None) == {0: (1, "")}
    groups.node.advance(50_000)
    assert groups.fetch(8, partitions=None) == {}


# ---------------------------------------------------------------------------------------------------------- classic groups


class Member:
    """A client of a classic group that knows its id and generation."""

    def __init__(self, groups: Groups, version: int, *, session_ms: int = 10_000) -> None:
        self.groups = groups
        self.version = version  # of JoinGroup
        self.session_ms = session_ms
        self.member_id = ""
        self.generation = -1
        self.joining: Any = None

    def join(self) -> None:
        """Send a join; a member that needs an id first joins again with it."""
        protocol = made(
            apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
        )
        request = API_KEYS[apis.JOIN_GROUP].request.new(
            group_id="g",
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=20_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        self.joining = self.groups.node.send(apis.JOIN_GROUP, self.version, request)
        if self.version >= 4 and not self.member_id:
            self.groups.node.until(lambda: self.joining.answer is not None, 1_000)
            answer = self.joining.result()
            assert answer.error_code == error_codes.MEMBER_ID_REQUIRED and answer.member_id.startswith("test-")
            self.member_id = answer.member_id
            self.join()

    def joined(self) -> Message:
        """The answer to the join."""
        self.groups.node.until(lambda: self.joining.answer is not None, 25_000)
        answer: Message = self.joining.result()
        assert answer.error_code == 0
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, assignment: dict[str, bytes] | None = None) -> Any:
        """Send a sync."""
        parts = [
            made(apis.SYNC_GROUP, "SyncGroupRequestAssignment", member_id=member, assignment=data)
            for member, data in (assignment or {}).items()
        ]
        request = API_KEYS[apis.SYNC_GROUP].request.new(
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=parts,
        )
        return self.groups.node.send(apis.SYNC_GROUP, min(self.version, 5), request)

    def heartbeat(self) -> int:
        """The error code of a heartbeat."""
        answer = self.groups.ask(
            apis.HEARTBEAT, min(self.version, 4), group_id="g", generation_id=self.generation, member_id=self.member_id
        )
        return int(answer.error_code)

    def leave(self, version: int) -> int:
        """The error code of the leave."""
        identity = made(apis.LEAVE_GROUP, "MemberIdentity", member_id=self.member_id)
        fields = {"members": [identity]} if version >= 3 else {"member_id": self.member_id}
        answer = self.groups.ask(apis.LEAVE_GROUP, version, group_id="g", **fields)
        return int(answer.members[0].error_code if version >= 3 and not answer.error_code else answer.error_code)


@pytest.mark.parametrize("version", range(10))
def test_two_members_of_a_classic_group(groups: Groups, version: int) -> None:
    first, second = Member(groups, version), Member(groups, version)
    first.join()
    assert first.joined().leader == first.member_id
    pending = first.sync({first.member_id: b"all"})
    groups.node.until(lambda: pending.answer is not None)
    assert bytes(pending.result().assignment) == b"all" and first.heartbeat() == 0
    second.join()
    groups.node.advance(10)
    assert first.heartbeat() == error_codes.REBALANCE_IN_PROGRESS
    first.join()
    answer = first.joined()
    assert second.joined().generation_id == answer.generation_id == 2
    assert sorted(member.member_id for member in answer.members) == sorted((first.member_id, second.member_id))
    waiting = second.sync()
    groups.node.advance(10)
    assert waiting.answer is None
    own = first.sync({first.member_id: b"1", second.member_id: b"2"})
    groups.node.until(lambda: waiting.answer is not None and own.answer is not None)
    assert (bytes(own.result().assignment), bytes(waiting.result().assignment)) == (b"1", b"2")
    (described,) = groups.ask(apis.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert {member.member_id: bytes(member.member_assignment) for member in described.members} == {
        first.member_id: b"1",
        second.member_id: b"2",
    }
    assert second.leave(min(version, 5)) == 0
    groups.node.advance(10)
    assert first.heartbeat() == error_codes.REBALANCE_IN_PROGRESS
    groups.node.advance(15_000)
    assert groups.listed() == {"g": "Empty"}, "the first member's session expired"


def test_members_go_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    member = Member(groups, 9)
    member.join()
    member.joined()
    pending = member.sync({member.member_id: b"all"})
    groups.node.until(lambda: pending.answer is not None)
    groups.node.stop()
    member.groups = groups = Groups(tmp_path, is_new=False)
    assert member.heartbeat() == 0 and groups.listed() == {"g": "Stable"}
    assert groups.ask(apis.DELETE_GROUPS, 2, groups_names=["g"]).results[0].error_code == error_codes.NON_EMPTY_GROUP
    groups.node.stop()


def test_requests_to_a_broker_that_stops_are_answered(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    first, second = Member(groups, 9), Member(groups, 9)
    first.join()
    first.joined()
    second.join()
    groups.node.stop()
    assert second.joining.answer is not None


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_offsets_are_loaded_once_by_a_start(tmp_path: Path, is_clean: bool) -> None:
    """After a crash the metadata names this broker as leader, and the registration makes it the leader again."""
    groups = Groups(tmp_path)
    assert groups.commit(8, {0: 7}) == [0]
    if is_clean:
        groups.node.stop()
    else:
        shutil.copytree(tmp_path, tmp_path / "crashed")
    again = Groups(tmp_path if is_clean else tmp_path / "crashed", is_new=False)
    assert again.fetch(8)[0] == (7, "")
    assert len([line for line in again.node.lines if "is loaded: 1 records" in line]) == 1
    average_ms, most_ms = again.node.broker.groups.runtime.load_times.take()
    assert 0 <= average_ms <= most_ms, "for metrics"
    assert all(map(isnan, again.node.broker.groups.runtime.load_times.take()))
