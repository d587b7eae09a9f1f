"""Protects consumer groups (KIP-848): no partition has two members, groups settle and are balanced, and records are Kafka's.

Clients are models: they revoke what they are no longer assigned, late at times, and some answers are lost.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, NamedTuple

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.group.assignors import ASSIGNORS, MemberSpec
from kcli.server.coordinator.group.classic_group_manager import ClassicGroupManager
from kcli.server.coordinator.group.consumer_group_manager import ConsumerGroupManager, ConsumerHeartbeat, HeartbeatResult
from kcli.server.coordinator.group.consumer_members import validate_offset_fetch
from kcli.server.coordinator.group.current_assignment import Target, next_assignment
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.group_migration import GroupMigration
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.state.group_state import GroupState
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember, Partitions
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ConfigResource, Topic
from tests.server.coordinator.modern_groups import ModernGroups

GROUP = "group"
# Of a log that Apache Kafka 4.3.1 wrote: its topic `orders` with three partitions, and the hash in the records of a group.
ORDERS = Uuid.parse("iRUOBBUCTcicMC3Stf-rzg")
ORDERS_HASH = -2447262396106686275


class Groups(ModernGroups[ConsumerGroupManager]):
    """The consumer groups of one shard."""

    def _manager(self, parts: ShardParts) -> ConsumerGroupManager:
        return ConsumerGroupManager(parts, GroupMigration(parts, ClassicGroupManager(parts)))

    def check(self) -> None:
        """Check that no partition has two members."""
        check_owners(self.state)

    def heartbeat(self, member_id: str = "m1", epoch: int = 0, **fields: Any) -> HeartbeatResult:
        """Send a heartbeat; one that joins subscribes to `orders` unless `fields` say otherwise."""
        request: dict[str, Any] = {
            **dict.fromkeys(ConsumerHeartbeat._fields),
            "group_id": GROUP,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "may_describe": lambda topic: True,
        }
        if epoch == 0:
            request |= {"topic_names": ["orders"], "rebalance_timeout_ms": 60_000, "owned": {}}
        decision = self.manager.heartbeat(
            ConsumerHeartbeat(**request | {"member_id": member_id, "member_epoch": epoch} | fields)
        )
        self.apply(decision)
        return decision.response

    def group(self) -> ConsumerGroup:
        """Return the group."""
        return self.manager.find(GROUP)


def check_owners(state: GroupState) -> None:
    """Check that no partition has two members, and that the map of owners is that of the assignments."""
    for group in state.groups.values():
        assert isinstance(group, ConsumerGroup)
        owners: dict[tuple[Uuid, int], str] = {}
        for member in group.members.values():
            for part in (member.assigned_partitions, member.partitions_pending_revocation):
                for topic_id, indexes in part.items():
                    for index in indexes:
                        assert (topic_id, index) not in owners, f"{topic_id}-{index} has two members"
                        owners[topic_id, index] = member.member_id
        assert group.owners == owners


@pytest.fixture
def groups() -> Groups:
    """Groups of a cluster with the topic `orders`, which assign at once."""
    made = Groups("group.consumer.assignment.interval.ms=0")
    made.set_topic("orders", 3, ORDERS)
    return made


# ------------------------------------------------------------------------------------------------------------- records


def value_of(groups: Groups, name: str, member_id: str | None = None) -> Any:
    """The value of a record that the last operation wrote."""
    (found,) = [
        record.value
        for record in groups.written
        if record.key.STRUCT.name == f"ConsumerGroup{name}Key" and (member_id is None or record.key.member_id == member_id)
    ]
    return found


def test_records_are_those_of_kafka() -> None:
    """Two members join and leave as in a log that Apache Kafka 4.3.1 wrote, with its assignment interval of 1 s."""
    groups = Groups()
    groups.set_topic("orders", 3, ORDERS)
    first = groups.heartbeat("first", topic_regex=None)
    assert (first.member_epoch, first.assignment) == (2, {ORDERS: [0, 1, 2]})
    assert groups.kinds() == ["5", "3", "7", "6", "8"]
    assert [len(OFFSETS.encode(record.key, record.value)[1] or b"") for record in groups.written[1:]] == [17, 34, 17, 59]
    assert value_of(groups, "MemberMetadata").subscribed_topic_regex == ""
    assert value_of(groups, "Metadata").metadata_hash == ORDERS_HASH
    current = value_of(groups, "CurrentMemberAssignment")
    assert (current.member_epoch, current.previous_member_epoch, current.state) == (2, 0, 0)
    assert current.assigned_partitions[0].assignment_epochs == [2, 2, 2]
    groups.advance(39)
    second = groups.heartbeat("second")
    assert (second.member_epoch, second.assignment) == (2, {})
    assert groups.kinds() == ["5", "3", "8"]
    assert value_of(groups, "Metadata").epoch == 3
    groups.advance(5026)
    assert groups.heartbeat("second", 2).member_epoch == 3
    assert groups.kinds() == ["7", "7", "6", "8"]
    assert value_of(groups, "TargetAssignmentMember", "second").topic_partitions[0].partitions == [2]
    assert value_of(groups, "CurrentMemberAssignment").state == 2
    groups.advance(100)
    assert groups.heartbeat("first", 2).assignment == {ORDERS: [0, 1]}
    assert groups.kinds() == ["8"]
    current = value_of(groups, "CurrentMemberAssignment")
    assert (current.member_epoch, current.previous_member_epoch, current.state) == (2, 2, 1)
    assert current.partitions_pending_revocation[0].assignment_epochs == [2]
    assert groups.heartbeat("first", 2, owned={ORDERS: [0, 1]}).member_epoch == 3
    current = value_of(groups, "CurrentMemberAssignment")
    assert (current.member_epoch, current.previous_member_epoch, current.state) == (3, 2, 0)
    assert current.assigned_partitions[0].assignment_epochs == [2, 2]
    groups.heartbeat("second", -1)
    assert groups.kinds() == ["-8", "-7", "-5", "3"]
    assert (value_of(groups, "Metadata").epoch, value_of(groups, "Metadata").metadata_hash) == (4, ORDERS_HASH)
    groups.heartbeat("first", -1)
    assert groups.kinds() == ["-8", "-7", "-5", "3"]
    assert (value_of(groups, "Metadata").epoch, value_of(groups, "Metadata").metadata_hash) == (5, 0)
    groups.reload()


def test_a_hash_with_racks_is_that_of_kafka() -> None:
    """Kafka 4.3.1 wrote this hash for two topics of a broker with a rack, and a third one that does not exist."""
    groups = Groups()
    groups.set_topic("orders", 3, Uuid.parse("8-UQdQuXTjiFjTnavgOgpQ"))
    groups.set_topic("pay", 2, Uuid.parse("2DkXupffRbOmmr6moIWEDA"))
    broker = message_type("metadata_records", "RegisterBrokerRecord").new(broker_id=1, rack="r\u00c3\u00bcck-1")
    groups.metadata.image.apply(broker)
    assert TopicHashes(groups.metadata).group_hash(["pay", "orders", "no"]) == 4927973137845095759


def test_the_hash_has_the_racks_of_replicas(groups: Groups) -> None:
    """A group rebalances when a broker gets another rack, and when a topic that it waits for is made."""
    hashes = TopicHashes(groups.metadata)
    assert hashes.group_hash(["orders"]) == ORDERS_HASH
    assert hashes.group_hash(["missing"]) == 0
    seen = {ORDERS_HASH}
    for rack in ("a", "b", None):
        broker = message_type("metadata_records", "RegisterBrokerRecord").new(broker_id=1, rack=rack)
        groups.metadata.image.apply(broker)
        groups.metadata.topic_changed(None)
        seen.add(hashes.group_hash(["orders", "missing"]))
    assert len(seen) == 3


def test_only_topics_that_exist_and_have_changed_are_hashed(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may name any topics: names without a topic use no memory."""
    groups.set_topic("pay", 1)
    hashes = TopicHashes(groups.metadata)
    hashed: list[str] = []
    encode = TopicHashes._encode

    def counted(self: TopicHashes, topic: Topic) -> bytes:
        hashed.append(topic.name)
        return encode(self, topic)

    monkeypatch.setattr(TopicHashes, "_encode", counted)
    first = hashes.group_hash(["orders", "pay", *(f"missing-{at}" for at in range(100))])
    assert len(groups.metadata.topic_hashes) == 2
    groups.set_topic("pay", 2)
    assert hashes.group_hash(["orders", "pay"]) != first
    assert hashed == ["orders", "pay", "pay"]


def test_a_heartbeat_of_a_stable_member_writes_nothing(groups: Groups) -> None:
    """It is answered without an assignment, and in the same way after a restart."""
    epoch = groups.heartbeat().member_epoch
    for _ in range(2):
        assert groups.heartbeat("m1", epoch) == HeartbeatResult("m1", epoch, 5000)
        assert not groups.written
        groups.reload()


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_heartbeat_looks_up_the_settings_of_its_group_only(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a heartbeat does not depend on the number of configured topics."""
    groups.metadata.image.configs[ConfigResource("TOPIC", "orders")] = {"retention.ms": "1"}
    groups.metadata.image.configs[ConfigResource("GROUP", GROUP)] = {"consumer.heartbeat.interval.ms": "7000"}
    monkeypatch.delattr(MetadataImage, "configs_of")
    assert groups.heartbeat().heartbeat_interval_ms == 7_000
    assert groups.heartbeat("m1", 0, group_id="other").heartbeat_interval_ms == 5_000


class Wrong(NamedTuple):
    """A heartbeat that is refused, to a group with the member m1 and the static member s1 of the instance i1."""

    code: int
    fields: dict[str, Any]


WRONG = {
    "another group": Wrong(error_codes.GROUP_ID_NOT_FOUND, {"group_id": "other", "epoch": 3}),
    "another member": Wrong(error_codes.UNKNOWN_MEMBER_ID, {"member_id": "m2", "epoch": 3}),
    "another member leaves": Wrong(error_codes.UNKNOWN_MEMBER_ID, {"member_id": "m2", "epoch": -1}),
    "a later epoch": Wrong(error_codes.FENCED_MEMBER_EPOCH, {"epoch": 9}),
    "the last epoch without partitions": Wrong(error_codes.FENCED_MEMBER_EPOCH, {"epoch": 2}),
    "the last epoch with others' partitions": Wrong(
        error_codes.FENCED_MEMBER_EPOCH, {"epoch": 2, "owned": {ORDERS: [0, 1, 2]}}
    ),
    "an instance id in use": Wrong(error_codes.UNRELEASED_INSTANCE_ID, {"member_id": "s2", "instance_id": "i1"}),
    "an instance id of another member": Wrong(
        error_codes.FENCED_INSTANCE_ID, {"member_id": "m1", "epoch": 3, "instance_id": "i1"}
    ),
    "an unknown instance id": Wrong(error_codes.UNKNOWN_MEMBER_ID, {"member_id": "m1", "epoch": 3, "instance_id": "i9"}),
    "an unknown instance id leaves": Wrong(error_codes.UNKNOWN_MEMBER_ID, {"epoch": -2, "instance_id": "i9"}),
    "a bad pattern": Wrong(error_codes.INVALID_REGULAR_EXPRESSION, {"epoch": 3, "topic_regex": "(a"}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_refused_changes_nothing(groups: Groups, wrong: Wrong) -> None:
    """A wrong heartbeat gets Kafka's error, and no record is written."""
    groups.heartbeat("m1")
    groups.heartbeat("s1", instance_id="i1")
    assert groups.heartbeat("m1", 2).assignment == {ORDERS: [0, 1]}
    assert groups.heartbeat("m1", 2, owned={ORDERS: [0, 1]}).member_epoch == 3
    before = len(groups.log)
    with pytest.raises(CoordinatorError) as caught:
        groups.heartbeat(**wrong.fields)
    assert caught.value.code == wrong.code
    assert len(groups.log) == before


def test_members_that_come_and_go_are_logged(groups: Groups) -> None:
    """Joins and departures of all members; of refused heartbeats of fenced ones a line in a minute."""
    groups.heartbeat("m1")
    groups.heartbeat("m1", 2)
    groups.heartbeat("s1", instance_id="i1")
    groups.heartbeat("s1", -2, instance_id="i1")
    groups.heartbeat("s2", instance_id="i1")
    for epoch in (7, 8):
        with pytest.raises(CoordinatorError):
            groups.heartbeat("m1", epoch)
    groups.heartbeat("m1", -1)
    assert groups.lines == [
        "group group gets member m1 in epoch 2: client client at /127.0.0.1",
        "group group gets member s1 in epoch 3: client client at /127.0.0.1, instance id i1",
        "group group gets member s2 in epoch 3: client client at /127.0.0.1, instance id i1",
        "group group fences member m1: The consumer group member has a greater member epoch (7) than the one known by the "
        "group coordinator (2). The member must abandon all its partitions and rejoin.",
        "group group loses member m1: it has left",
    ]


def test_a_full_group() -> None:
    """Only members that it has are accepted."""
    groups = Groups("group.consumer.max.size=1")
    epoch = groups.heartbeat("m1").member_epoch
    for wrong_epoch in (0, epoch):
        with pytest.raises(CoordinatorError) as caught:
            groups.heartbeat("m2", wrong_epoch)
        assert caught.value.code == error_codes.GROUP_MAX_SIZE_REACHED
    assert groups.heartbeat("m1", epoch).member_epoch == epoch


def test_a_lost_answer_is_sent_again(groups: Groups) -> None:
    """A member that repeats its last epoch with its partitions is accepted."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    assert groups.heartbeat("m1", 2, owned={ORDERS: [0, 1]}).member_epoch == 3
    assert groups.heartbeat("m1", 2, owned={ORDERS: [0, 1]}).member_epoch == 3
    assert not groups.written


def test_a_revoked_partition_comes_back_in_the_same_heartbeat(groups: Groups) -> None:
    """Its new owner left before it had it: the member that reports the revocation is its owner again, and no time is lost."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    epoch = groups.heartbeat("m1", 2).member_epoch
    groups.heartbeat("m2", -1)
    back = groups.heartbeat("m1", epoch, owned={ORDERS: [0, 1]})
    assert back.assignment == {ORDERS: [0, 1, 2]}
    assert groups.group().members["m1"].state == "STABLE"


def test_of_two_assignors_with_as_many_votes_the_earlier_one_is_used(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka's maps are ordered: what had votes before the heartbeat is first; of both, uniform is (Kafka 4.3.1)."""
    chosen: list[str] = []

    def recorded(name: str, assign: Any, *args: Any) -> Any:
        chosen.append(name)
        return assign(*args)

    for name, assign in list(ASSIGNORS.items()):
        monkeypatch.setitem(ASSIGNORS, name, partial(recorded, name, assign))
    groups.heartbeat("m1", assignor="range")
    groups.heartbeat("m2", assignor="uniform")
    groups.heartbeat("m3")
    assert chosen == ["range", "range", "uniform"]


def test_a_member_that_joins_again_keeps_its_epoch(groups: Groups) -> None:
    """Epoch 0 is always accepted, with the whole assignment as the answer."""
    epoch = groups.heartbeat("m1").member_epoch
    assert groups.heartbeat("m1") == HeartbeatResult("m1", epoch, 5000, {ORDERS: [0, 1, 2]})
    assert not groups.written


def test_a_record_that_cannot_be_written_is_decided_again(groups: Groups) -> None:
    """A group that has missed a change of its topics compares itself again."""
    epoch = groups.heartbeat("m1").member_epoch
    groups.set_topic("orders", 4)
    groups.fails = True
    groups.heartbeat("m1", epoch)
    groups.fails = False
    assert groups.heartbeat("m1", epoch).assignment == {ORDERS: [0, 1, 2, 3]}


# ------------------------------------------------------------------------------------------------- members and timeouts


def test_sessions_end(groups: Groups) -> None:
    """A member without heartbeats is removed after the session timeout, in a group that was loaded, too."""
    epoch = groups.heartbeat("m1").member_epoch
    groups.advance(44_999)
    groups.heartbeat("m1", epoch)
    groups.advance(44_999)
    assert "m1" in groups.group().members
    groups.reload()
    groups.advance(45_000)
    assert not groups.group().members
    assert groups.group().state == "Empty"
    assert groups.kinds() == ["-8", "-7", "-5", "3"]


def test_a_member_must_revoke_in_time(groups: Groups) -> None:
    """A member that keeps its partitions beyond its rebalance timeout is removed, though its heartbeats come."""
    groups.heartbeat("m1", rebalance_timeout_ms=30_000)
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    for _ in range(3):
        groups.advance(9_999)
        groups.heartbeat("m1", 2, owned={ORDERS: [0, 1, 2]})
        groups.heartbeat("m2", 3)
    groups.advance(3)
    assert list(groups.group().members) == ["m2"]
    assert groups.heartbeat("m2", 3).assignment == {ORDERS: [0, 1, 2]}


def test_a_static_member_comes_back(groups: Groups) -> None:
    """Its partitions wait for it, and its place goes to the new member id without another group epoch."""
    groups.heartbeat("s1", instance_id="i1")
    assert groups.heartbeat("s1", -2, instance_id="i1").member_epoch == -2
    assert groups.kinds() == ["8"]
    groups.reload()
    result = groups.heartbeat("s2", instance_id="i1")
    assert (result.member_id, result.member_epoch, result.assignment) == ("s2", 2, {ORDERS: [0, 1, 2]})
    assert groups.kinds() == ["-8", "-7", "-5", "5", "7", "8", "8"]
    assert (list(groups.group().members), groups.group().group_epoch) == (["s2"], 2)
    groups.heartbeat("s2", -2, instance_id="i1")
    groups.advance(45_000)
    assert not groups.group().members


def test_patterns_follow_the_topics(groups: Groups) -> None:
    """A pattern finds topics that are made later, 10 s after the last look; its record goes with its last subscriber."""
    epoch = groups.heartbeat("m1", topic_names=[], topic_regex="ord.*|pay").member_epoch
    assert groups.kinds() == ["5", "3", "7", "6", "8"]
    groups.settle()
    assert groups.kinds() == ["16", "3"]
    result = groups.heartbeat("m1", epoch)
    assert (result.member_epoch, result.assignment) == (epoch + 1, {ORDERS: [0, 1, 2]})
    pay = groups.set_topic("pay", 1)
    groups.set_topic("payments", 1)
    groups.heartbeat("m1", epoch + 1)
    groups.settle()
    assert groups.heartbeat("m1", epoch + 1).assignment is None
    groups.advance(10_000)
    groups.heartbeat("m1", epoch + 1)
    groups.settle()
    assert groups.heartbeat("m1", epoch + 1).assignment == {ORDERS: [0, 1, 2], pay: [0]}
    assert groups.group().resolved_regexes == {"ord.*|pay": ["orders", "pay"]}
    groups.reload()
    result = groups.heartbeat("m1", epoch + 2, topic_names=["orders"], topic_regex="")
    assert groups.kinds()[:2] == ["5", "-16"]
    assert result.assignment == {ORDERS: [0, 1, 2]}


def test_a_changed_subscription_revokes_before_the_next_target() -> None:
    """Partitions of a topic that a member has unsubscribed from are revoked though the assignment interval is not over."""
    groups = Groups()
    groups.set_topic("orders", 3, ORDERS)
    pay = groups.set_topic("pay", 1)
    epoch = groups.heartbeat("m1", topic_names=["orders", "pay"]).member_epoch
    result = groups.heartbeat("m1", epoch, topic_names=["orders"])
    assert (result.member_epoch, result.assignment) == (epoch, {ORDERS: [0, 1, 2]})
    assert groups.group().members["m1"].partitions_pending_revocation == {pay: {0: 2}}


def test_a_clock_that_is_set_back_does_not_stop_assignments() -> None:
    """The time of the last assignment is later than now; a group that waited for it would have no partitions for hours."""
    groups = Groups()
    groups.set_topic("orders", 3, ORDERS)
    groups.timer.wall.off_ms = 3_600_000
    groups.heartbeat("m1")
    groups.timer.wall.off_ms = 0
    groups.heartbeat("m2")
    assert groups.group().assignment_epoch == groups.group().group_epoch == 3


def test_offsets_of_a_member(groups: Groups) -> None:
    """An older epoch may commit partitions that the member has had since then."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    groups.heartbeat("m1", 2, owned={ORDERS: [0, 1]})
    groups.heartbeat("m2", 3)
    group, validate = groups.group(), groups.manager.validate_offset_commit
    validate(group, "m1", None, 3, 9, [("orders", 2)])
    validate(group, "m1", None, 2, 9, [("orders", 1)])
    validate(group, "", None, -1, None, [("orders", 1)])
    for code, arguments in (
        (error_codes.STALE_MEMBER_EPOCH, ("m1", None, 2, 9, [("orders", 1), ("orders", 2)])),
        (error_codes.STALE_MEMBER_EPOCH, ("m2", None, 2, 9, [("orders", 2)])),
        (error_codes.STALE_MEMBER_EPOCH, ("m1", None, 4, 9, [])),
        (error_codes.UNKNOWN_MEMBER_ID, ("m3", None, 3, 9, [])),
        (error_codes.UNKNOWN_MEMBER_ID, ("", None, -1, 9, [])),
        (error_codes.UNSUPPORTED_VERSION, ("m1", None, 3, 8, [])),
    ):
        with pytest.raises(CoordinatorError) as caught:
            validate(group, *arguments)
        assert caught.value.code == code
    validate_offset_fetch(group, None, -1)
    for code, member_id, epoch in ((error_codes.STALE_MEMBER_EPOCH, "m1", 2), (error_codes.UNKNOWN_MEMBER_ID, "m3", 3)):
        with pytest.raises(CoordinatorError) as caught:
            validate_offset_fetch(group, member_id, epoch)
        assert caught.value.code == code


def test_only_empty_groups_are_deleted(groups: Groups) -> None:
    """The tombstones of a group leave nothing of it."""
    groups.heartbeat("m1")
    with pytest.raises(CoordinatorError) as caught:
        groups.manager.delete(groups.group())
    assert caught.value.code == error_codes.NON_EMPTY_GROUP
    groups.heartbeat("m1", -1)
    groups.apply(Decision(None, list(groups.manager.delete(groups.group()))))
    assert groups.state.groups == {}


# ----------------------------------------------------------------------------------------------------------- reconcile

T = Uuid(b"t" * 16)
OWNED, FREE = {(T, 3)}, frozenset[tuple[Uuid, int]]()


@pytest.mark.parametrize(
    ("state", "assigned", "revoking", "target", "reported", "expected"),
    [
        ("STABLE", [1, 2], [], [1, 2], None, ("STABLE", 5, [1, 2], [])),
        ("STABLE", [1, 2], [], [1, 4], None, ("UNREVOKED_PARTITIONS", 4, [1], [2])),
        ("STABLE", [1, 2], [], [1, 4], [1], ("STABLE", 5, [1, 4], [])),
        ("STABLE", [1], [], [1, 3], None, ("UNRELEASED_PARTITIONS", 5, [1], [])),
        ("STABLE", [1], [], [1, 3, 4], None, ("UNRELEASED_PARTITIONS", 5, [1, 4], [])),
        ("UNREVOKED_PARTITIONS", [1], [2], [1], None, ("UNREVOKED_PARTITIONS", 4, [1], [2])),
        ("UNREVOKED_PARTITIONS", [1], [2], [1], [1, 2], ("UNREVOKED_PARTITIONS", 4, [1], [2])),
        ("UNREVOKED_PARTITIONS", [1], [2], [1], [1], ("STABLE", 5, [1], [])),
        ("UNREVOKED_PARTITIONS", [1], [2], [4], [1], ("UNREVOKED_PARTITIONS", 4, [], [1])),
        ("UNRELEASED_PARTITIONS", [1], [], [1, 3], None, ("UNRELEASED_PARTITIONS", 5, [1], [])),
        ("UNRELEASED_PARTITIONS", [1], [], [1, 4], None, ("STABLE", 5, [1, 4], [])),
    ],
)
def test_steps_of_a_member(
    state: str, assigned: list[int], revoking: list[int], target: list[int], reported: list[int] | None, expected: Any
) -> None:
    """A member of epoch 4 goes to the target of epoch 5; partition 3 has another member."""
    member = ConsumerGroupMember("m", member_epoch=4, state=state)
    member.assigned_partitions = {T: dict.fromkeys(assigned, 4)}
    member.partitions_pending_revocation = {T: dict.fromkeys(revoking, 4)} if revoking else {}
    goal = Target(5, {T: target}, {T})
    moved = next_assignment(
        member, goal, lambda topic_id, index: (topic_id, index) in OWNED, None if reported is None else {T: reported}, False
    )
    found = (sorted(moved.assigned_partitions.get(T, {})), sorted(moved.partitions_pending_revocation.get(T, {})))
    assert (moved.state, moved.member_epoch, *found) == expected


# ------------------------------------------------------------------------------------------------------------ assignors


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("seed", range(30))
def test_assignors(name: str, seed: int) -> None:
    """Each partition has one subscriber; uniform is balanced and moves no more than it must."""
    rng = random.Random(seed)
    topics = [Uuid(bytes([number + 1] * 16)) for number in range(rng.randint(1, 5))]
    counts = {topic_id: rng.randint(1, 12) for topic_id in topics}
    is_mixed = rng.random() < 0.5
    subscriptions = [frozenset(rng.sample(topics, rng.randint(1, len(topics)))) for _ in range(rng.randint(1, 6))]
    if not is_mixed:
        subscriptions = [frozenset(topics)] * len(subscriptions)
    members = [MemberSpec(f"m{at}", None, topics, {}) for at, topics in enumerate(subscriptions)]
    for turn in range(4):
        targets = ASSIGNORS[name](members, counts)
        wanted = {topic_id for member in members for topic_id in member.topics}
        given = [(topic_id, index) for target in targets.values() for topic_id, found in target.items() for index in found]
        assert sorted(given) == sorted((topic_id, index) for topic_id in wanted for index in range(counts[topic_id]))
        assert all(targets[member.member_id].keys() <= member.topics for member in members)
        sizes = sorted(sum(map(len, target.values())) for target in targets.values())
        if name == "uniform" and not is_mixed:
            assert sizes[-1] - sizes[0] <= 1
            kept = sum(
                len(set(member.target.get(topic_id, ())) & set(targets[member.member_id].get(topic_id, ())))
                for member in members
                for topic_id in topics
            )
            quota = len(given) // len(members)
            assert kept >= sum(min(sum(map(len, member.target.values())), quota) for member in members)
        if name == "uniform":
            assert ASSIGNORS[name]([member._replace(target=targets[member.member_id]) for member in members], counts) == targets
        members = [member._replace(target=targets[member.member_id]) for member in members]
        if rng.random() < 0.5:
            members.append(MemberSpec(f"n{turn}", None, rng.choice(subscriptions), {}))
        elif len(members) > 1:
            members.pop(rng.randint(0, len(members) - 1))


def test_ranges_follow_instance_ids() -> None:
    """Static members come first, by their instance ids, so that a restart does not move partitions."""
    members = [MemberSpec("b", None, frozenset((T,)), {}), MemberSpec("z", "1", frozenset((T,)), {})]
    assert ASSIGNORS["range"](members, {T: 3}) == {"z": {T: [0, 1]}, "b": {T: [2]}}


# ---------------------------------------------------------------------------------------------------------- random runs


# A static member whose first answer is lost must wait for the end of its session, as with Kafka.
_ENDS = (error_codes.FENCED_MEMBER_EPOCH, error_codes.UNKNOWN_MEMBER_ID, error_codes.UNRELEASED_INSTANCE_ID)


class Client:
    """A member: it has `owned`, and is to have `wanted`, the last assignment that it got."""

    def __init__(self, member_id: str, instance_id: str | None, topics: list[str]) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.topics = topics
        self.epoch = 0
        self.owned: dict[Uuid, set[int]] = {}
        self.wanted: Partitions | None = None

    def beat(self, groups: Groups, rng: random.Random) -> None:
        """Revoke or take partitions, and send a heartbeat, whose answer may be lost."""
        if self.wanted is not None and rng.random() < 0.8:
            lost = {topic_id: found - set(self.wanted.get(topic_id, ())) for topic_id, found in self.owned.items()}
            if any(lost.values()):
                self.owned = {topic_id: found - lost[topic_id] for topic_id, found in self.owned.items()}
            else:
                self.owned, self.wanted = {topic_id: set(found) for topic_id, found in self.wanted.items()}, None
        owned = {topic_id: sorted(found) for topic_id, found in self.owned.items() if found}
        fields: dict[str, Any] = {"owned": owned, "instance_id": self.instance_id}
        try:
            if self.epoch == 0:
                self.owned, fields = {}, fields | {"owned": {}, "topic_names": self.topics, "rebalance_timeout_ms": 60_000}
            result = groups.heartbeat(self.member_id, self.epoch, **fields)
        except CoordinatorError as error:
            assert error.code in _ENDS, error
            self.owned, self.wanted, self.epoch = {}, None, 0
            return
        if rng.random() < 0.1 and self.wanted is None:  # the answer is lost
            if self.epoch == 0:
                return
            # The client states everything after a timeout, and so gets its whole assignment.
            fields |= {"topic_names": self.topics, "rebalance_timeout_ms": 60_000}
            result = groups.heartbeat(self.member_id, self.epoch, **fields)
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.wanted = result.assignment


def check_clients(clients: list[Client]) -> None:
    """Check that no two clients have a partition."""
    seen: set[tuple[Uuid, int]] = set()
    for client in clients:
        for topic_id, found in client.owned.items():
            for index in found:
                assert (topic_id, index) not in seen
                seen.add((topic_id, index))


@pytest.mark.parametrize("seed", range(40))
def test_random_runs(seed: int) -> None:
    """Members join, leave, die and change; topics grow. At the end each partition has one live member, and sizes are even."""
    rng = random.Random(seed)
    groups = Groups(
        f"group.consumer.assignment.interval.ms={rng.choice((0, 1000, 7000))}",
        f"group.consumer.assignors={rng.choice(('uniform,range', 'range'))}",
    )
    names = ["orders", "pay", "later"]
    for name in names[:2]:
        groups.set_topic(name, rng.randint(1, 8))
    is_mixed = rng.random() < 0.4
    clients: list[Client] = []
    made = 0
    for _ in range(rng.randint(50, 200)):
        action = rng.random()
        if action < 0.08 and len(clients) < 7:
            made += 1
            topics = rng.sample(names, rng.randint(1, 3)) if is_mixed else names
            clients.append(Client(f"m{made}", f"i{made}" if rng.random() < 0.3 else None, topics))
        elif action < 0.1 and clients:
            clients.pop(rng.randint(0, len(clients) - 1))  # it dies, and its session ends
        elif action < 0.12 and clients:
            client = clients.pop(rng.randint(0, len(clients) - 1))
            if client.epoch:
                groups.heartbeat(client.member_id, -1, instance_id=client.instance_id)
        elif action < 0.13 and clients:
            client = rng.choice(clients)
            if client.instance_id is not None and client.epoch:  # it starts again, with another member id
                groups.heartbeat(client.member_id, -2, instance_id=client.instance_id)
                made += 1
                client.member_id, client.epoch, client.owned, client.wanted = f"m{made}", 0, {}, None
        elif action < 0.15:
            name = rng.choice(names)
            topic = groups.metadata.image.topic(name)
            groups.set_topic(name, min(10, (0 if topic is None else len(topic.partitions)) + rng.randint(1, 2)))
        elif action < 0.16:
            groups.reload()
        else:
            for client in rng.sample(clients, len(clients)):
                client.beat(groups, rng)
                check_clients(clients)
        groups.advance(rng.randint(0, 5000))
    if not clients:
        return
    for _ in range(30):
        for client in clients:
            client.beat(groups, rng)
            check_clients(clients)
        groups.advance(5000)
    assert groups.group().state == "Stable"
    subscribed = {name for client in clients for name in client.topics}
    wanted = {
        (topic.topic_id, index)
        for name in subscribed
        if (topic := groups.metadata.image.topic(name)) is not None
        for index in topic.partitions
    }
    owned = [(topic_id, index) for client in clients for topic_id, found in client.owned.items() for index in found]
    assert sorted(owned) == sorted(wanted)
    sizes = sorted(sum(map(len, client.owned.values())) for client in clients)
    if not is_mixed and groups.manager.assignor_name(groups.group()) == "uniform":
        assert sizes[-1] - sizes[0] <= 1
