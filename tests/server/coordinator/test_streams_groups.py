"""Protects streams groups (KIP-1071): no task runs twice, groups settle and are balanced, and records are Kafka's.

Statuses, epochs and errors are those of Apache Kafka; tests/oracle/test_streams_group_answers.py compares them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, STREAMS_GROUP_HEARTBEAT, STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.current_tasks import OwnedTasks
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.group_records import topology_value
from kcli.server.coordinator.group.streams_group_manager import StreamsGroupManager
from kcli.server.coordinator.group.streams_heartbeat import (
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TaskOffset,
    TaskOffsets,
)
from kcli.server.coordinator.group.topology_descriptions import MAX_DESCRIPTION_BYTES
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.features import KAFKA_4_4_SINCE, METADATA_VERSION
from kcli.state.group_state import GroupState
from kcli.state.groups import StreamsGroup
from kcli.state.speculative_state import SpeculativeState
from tests.server.coordinator.modern_groups import ModernGroups

GROUP = "app"
CLASSES = API_KEYS[STREAMS_GROUP_HEARTBEAT].request.classes
NO_TASKS = OwnedTasks({}, {}, {})
AT_ONCE = ("group.streams.assignment.interval.ms=0", "group.streams.initial.rebalance.delay.ms=0")


def subtopology(name: str, sources: list[str], **fields: Any) -> Message:
    """A subtopology of a request; `stores` and `repartition` are names of topics."""
    stores, repartition = fields.pop("stores", ()), fields.pop("repartition", ())
    return CLASSES["Subtopology"](
        subtopology_id=name,
        source_topics=sources,
        state_changelog_topics=[CLASSES["TopicInfo"](name=topic) for topic in stores],
        repartition_source_topics=[CLASSES["TopicInfo"](name=topic) for topic in repartition],
        **fields,
    )


def topology(*parts: Message, epoch: int = 0) -> Message:
    return topology_value(CLASSES["Topology"](epoch=epoch, subtopologies=list(parts)))


SIMPLE = topology(subtopology("0", ["in"]))
STATEFUL = topology(subtopology("0", ["in"], stores=["app-store-changelog"]))


class Groups(ModernGroups[StreamsGroupManager]):
    """The streams groups of one shard."""

    def _manager(self, parts: ShardParts) -> StreamsGroupManager:
        return StreamsGroupManager(parts, _no_classic_group, _end_no_classic_group)

    def check(self) -> None:
        """Check that no task runs twice."""
        check_tasks(self.state)

    def configure(self, name: str, value: str) -> None:
        """Give the group a setting."""
        record = message_type("metadata_records", "ConfigRecord")
        self.metadata.image.apply(record.new(resource_type=32, resource_name=GROUP, name=name, value=value))

    def upgrade(self) -> None:
        """Give the cluster the features of Kafka 4.4."""
        record = message_type("metadata_records", "FeatureLevelRecord")
        self.metadata.image.apply(record.new(name=METADATA_VERSION, feature_level=KAFKA_4_4_SINCE))

    def heartbeat(self, member_id: str = "m1", epoch: int = 0, **fields: Any) -> StreamsHeartbeatResult:
        """Send a heartbeat; one that joins is of a process of its own unless `fields` say otherwise."""
        request: dict[str, Any] = {
            **dict.fromkeys(StreamsHeartbeat._fields),
            "group_id": GROUP,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "endpoint_epoch": 0,
            "shuts_down": False,
            "of_kafka_4_4": True,
        }
        if epoch == 0:
            request |= {"topology": SIMPLE, "rebalance_timeout_ms": 60_000, "owned": NO_TASKS, "process_id": f"of-{member_id}"}
        decision = self.manager.heartbeat(
            StreamsHeartbeat(**request | {"member_id": member_id, "member_epoch": epoch} | fields)
        )
        self.apply(decision)
        return decision.response

    def group(self) -> StreamsGroup:
        """Return the group."""
        return self.manager.find(GROUP)


def _no_classic_group(group_id: str) -> list[CoordinatorRecord]:
    raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")


def _end_no_classic_group(group_id: str) -> None:
    raise AssertionError(f"group {group_id} is not a classic group")


def check_tasks(state: GroupState) -> None:
    """Check that an active task has one member, no process has a task twice, and that the map of processes is right."""
    for group in state.groups.values():
        assert isinstance(group, StreamsGroup)
        processes: dict[tuple[str, str, int], set[str]] = {}
        for member in group.members.values():
            for part in (member.assigned_tasks, member.tasks_pending_revocation):
                for role, tasks in (("active", part.active), ("standby", part.standby), ("warmup", part.warmup)):
                    for key in ((name, index) for name, found in tasks.items() for index in found):
                        others = [processes.get((other, *key), set()) for other in ("active", "standby", "warmup")]
                        assert all(member.process_id not in found for found in others), f"{key} is twice in a process"
                        assert role != "active" or not others[0], f"{key} has two active members"
                        processes.setdefault((role, *key), set()).add(member.process_id)
        assert group.task_processes == processes


@pytest.fixture
def groups() -> Groups:
    """Groups of a cluster with the topic `in` of three partitions, which assign at once."""
    made = Groups(*AT_ONCE)
    made.set_topic("in", 3)
    return made


def active(result: StreamsHeartbeatResult) -> dict[str, list[int]] | None:
    """The active tasks of an answer."""
    return None if result.tasks is None else {key: sorted(found) for key, found in result.tasks.active.items()}


# ------------------------------------------------------------------------------------------------------------- records


def test_two_members_join_and_leave(groups: Groups) -> None:
    """Epochs, states and records are those of Apache Kafka 4.3.1 for the same exchange."""
    first = groups.heartbeat("first")
    assert (first.member_epoch, active(first), first.heartbeat_interval_ms, first.statuses) == (2, {"0": [0, 1, 2]}, 5000, ())
    assert groups.kinds() == ["19", "23", "17", "21", "20", "22"]
    assert groups.group().state == "Stable"
    group_value = groups.written[2].value
    assert group_value is not None
    configs = [(one.key, one.value) for one in group_value.last_assignment_configs]
    assert (group_value.epoch, group_value.validated_topology_epoch, configs) == (2, 0, [("num.standby.replicas", "0")])
    groups.advance(39)
    second = groups.heartbeat("second")
    assert (second.member_epoch, active(second)) == (3, {})
    assert groups.kinds() == ["19", "17", "21", "21", "20", "22"]
    assert groups.group().members["second"].state == "UNRELEASED_TASKS"
    assert active(groups.heartbeat("first", 2)) == {"0": [0, 1]}
    assert groups.kinds() == ["22"]
    member = groups.group().members["first"]
    assert (member.state, member.member_epoch, member.tasks_pending_revocation.active) == ("UNREVOKED_TASKS", 2, {"0": {2: 2}})
    assert active(groups.heartbeat("second", 3)) is None
    assert groups.heartbeat("first", 2, owned=OwnedTasks({"0": [0, 1]}, {}, {})).member_epoch == 3
    assert groups.group().members["first"].assigned_tasks.active == {"0": {0: 2, 1: 2}}
    groups.reload()
    assert active(groups.heartbeat("second", 3)) == {"0": [2]}
    assert groups.group().state == "Stable"
    assert groups.metrics.streams_rebalances == 2
    assert groups.heartbeat("second", -1).member_epoch == -1
    assert groups.kinds() == ["-22", "-21", "-19", "17"]
    groups.heartbeat("first", -1)
    assert (groups.group().state, groups.group().group_epoch) == ("Empty", 5)
    assert [record.value for record in groups.manager.delete(groups.group())] == [None] * 3
    groups.reload()


def test_a_heartbeat_of_a_stable_member_writes_nothing(groups: Groups) -> None:
    """It is answered without tasks, and in the same way after a restart."""
    epoch = groups.heartbeat().member_epoch
    for _ in range(2):
        assert groups.heartbeat("m1", epoch) == StreamsHeartbeatResult("m1", epoch, 5000, 60_000, 10_000)
        assert not groups.written
        groups.reload()


def test_what_is_reverted_is_as_before(groups: Groups) -> None:
    """A coordinator whose records cannot be appended takes them back, the map of processes too."""
    groups.heartbeat("m1", topology=STATEFUL)
    groups.set_topic("app-store-changelog", 3)
    records = groups.log[:]
    state = GroupState()
    speculative: SpeculativeState[GroupState, tuple[bytes, bytes | None]] = SpeculativeState(
        state,
        lambda record, offset: state.apply(*OFFSETS.decode(*record), offset),  # type: ignore[arg-type]
    )
    for at, record in enumerate(records):
        speculative.append(record, at)
    speculative.commit(len(records))
    groups.heartbeat("m1", 2)
    groups.heartbeat("m2", topology=STATEFUL)
    groups.heartbeat("m1", -1)
    later = groups.log[len(records) :]
    before = {key: dict(group.task_processes) for key, group in state.groups.items() if isinstance(group, StreamsGroup)}
    for at, record in enumerate(later, len(records)):
        speculative.append(record, at)
    speculative.roll_back(len(records))
    check_tasks(state)
    assert before == {key: group.task_processes for key, group in state.groups.items() if isinstance(group, StreamsGroup)}


# -------------------------------------------------------------------------------------------------------------- topics


def statuses(result: StreamsHeartbeatResult) -> list[tuple[int, str]]:
    return [tuple(status) for status in result.statuses]  # type: ignore[misc]


def test_internal_topics_are_requested_until_they_exist(groups: Groups) -> None:
    """A group is not ready without its changelog, which has a partition for each task."""
    result = groups.heartbeat("m1", topology=STATEFUL)
    assert statuses(result) == [(3, "Internal topics are missing: app-store-changelog")]
    assert [(topic.name, topic.partitions) for topic in result.missing_topics] == [("app-store-changelog", 3)]
    assert (active(result), groups.group().state) == ({}, "NotReady")
    assert groups.heartbeat("m1", 2).missing_topics == result.missing_topics
    groups.set_topic("app-store-changelog", 3)
    ready = groups.heartbeat("m1", 2)
    assert (statuses(ready), ready.member_epoch, active(ready)) == ([], 3, {"0": [0, 1, 2]})
    assert groups.kinds() == ["17", "21", "20", "22"]


def test_source_topics_must_exist(groups: Groups) -> None:
    """A topic that is made later makes the group ready."""
    result = groups.heartbeat("m1", topology=topology(subtopology("0", ["a", "b", "c", "d", "in"])))
    assert statuses(result) == [(1, "Source topics a, b, c and 1 additional topics are missing.")]
    for name in "abcd":
        groups.set_topic(name, 5)
    assert active(groups.heartbeat("m1", 2)) == {"0": [0, 1, 2, 3, 4]}


def test_partitions_of_repartition_topics(groups: Groups) -> None:
    """They follow the inputs of the subtopologies that write them, through several of them; changelogs follow their tasks."""
    groups.set_topic("wide", 7)
    parts = (
        subtopology("2", [], repartition=["r2"], stores=["c2"]),
        subtopology("1", ["in"], repartition=["r1"], repartition_sink_topics=["r2"]),
        subtopology("0", ["wide", "in"], repartition_sink_topics=["r1"]),
    )
    result = groups.heartbeat("m1", topology=topology(*parts))
    assert {topic.name: topic.partitions for topic in result.missing_topics} == {"r1": 7, "r2": 7, "c2": 7}


def test_copartitioned_topics(groups: Groups) -> None:
    """A repartition topic gets the number of a source topic; two sources with different numbers are a problem."""
    groups.set_topic("wide", 7)
    group = CLASSES["CopartitionGroup"](source_topics=[0], repartition_source_topics=[0])
    joined = subtopology("1", ["in"], repartition=["r"], copartition_groups=[group])
    result = groups.heartbeat("m1", topology=topology(subtopology("0", ["wide"], repartition_sink_topics=["r"]), joined))
    assert [(topic.name, topic.partitions) for topic in result.missing_topics] == [("r", 3)]
    groups.heartbeat("m1", -1)
    both = CLASSES["CopartitionGroup"](source_topics=[0, 1])
    given = topology(subtopology("0", ["wide", "in"], copartition_groups=[both]))
    result = groups.heartbeat("m1", group_id="other", topology=given)
    text = "Following topics do not have the same number of partitions: [{in=3, wide=7}]"
    assert statuses(result) == [(2, text)]


def test_an_internal_topic_with_another_number(groups: Groups) -> None:
    """A changelog of another application, or of the same one before its input grew, is a problem."""
    groups.set_topic("app-store-changelog", 2)
    result = groups.heartbeat("m1", topology=STATEFUL)
    text = "Existing topic app-store-changelog has different number of partitions: expected 3, found 2"
    assert (statuses(result), result.missing_topics) == ([(2, text)], ())


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            [subtopology("0", [], repartition=["r"], repartition_sink_topics=["r"])],
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved.",
        ),
        (
            [subtopology("0", [], repartition=["r"])],
            "Failed to compute number of partitions for all repartition topics, "
            "because a repartition source topic is never used as a sink topic.",
        ),
        ([subtopology("0", [])], "No source topics found for subtopology 0"),
    ],
    ids=["loop", "no writer", "no source"],
)
def test_impossible_topologies(groups: Groups, parts: list[Message], text: str) -> None:
    """They are errors, and nothing is written."""
    with pytest.raises(CoordinatorError) as caught:
        groups.heartbeat(topology=topology(*parts))
    assert (caught.value.code, caught.value.message) == (error_codes.STREAMS_INVALID_TOPOLOGY, text)
    assert not groups.log


# -------------------------------------------------------------------------------------------------------------- errors


LATER = topology(subtopology("0", ["in"]), epoch=1)
WRONG: dict[str, tuple[int, dict[str, Any]]] = {
    "another group": (error_codes.GROUP_ID_NOT_FOUND, {"group_id": "other", "epoch": 3}),
    "another group leaves": (error_codes.GROUP_ID_NOT_FOUND, {"group_id": "other", "epoch": -1}),
    "another member": (error_codes.UNKNOWN_MEMBER_ID, {"member_id": "m9", "epoch": 3}),
    "another member leaves": (error_codes.UNKNOWN_MEMBER_ID, {"member_id": "m9", "epoch": -1}),
    "a later epoch": (error_codes.FENCED_MEMBER_EPOCH, {"epoch": 9}),
    "an older epoch": (error_codes.FENCED_MEMBER_EPOCH, {"epoch": 1, "owned": NO_TASKS}),
    "the last epoch without tasks": (error_codes.FENCED_MEMBER_EPOCH, {"epoch": 2}),
    "the last epoch with others' tasks": (
        error_codes.FENCED_MEMBER_EPOCH,
        {"epoch": 2, "owned": OwnedTasks({"0": [2]}, {}, {})},
    ),
    "another topology": (error_codes.INVALID_REQUEST, {"member_id": "m9", "topology": STATEFUL}),
    "a later topology": (error_codes.INVALID_REQUEST, {"member_id": "m9", "topology": LATER}),
    "an unknown subtopology": (error_codes.INVALID_REQUEST, {"epoch": 3, "owned": OwnedTasks({"1": [0]}, {}, {})}),
    "a task that is not there": (error_codes.INVALID_REQUEST, {"epoch": 3, "owned": OwnedTasks({"0": [3]}, {}, {})}),
}


@pytest.mark.parametrize(("code", "fields"), WRONG.values(), ids=WRONG)
def test_what_is_refused_changes_nothing(groups: Groups, code: int, fields: dict[str, Any]) -> None:
    """A wrong heartbeat gets Kafka's error, and no record is written."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    assert groups.heartbeat("m1", 2, owned=OwnedTasks({"0": [0, 1]}, {}, {})).member_epoch == 3
    before = len(groups.log)
    with pytest.raises(CoordinatorError) as caught:
        groups.heartbeat(**fields)
    assert caught.value.code == code
    assert len(groups.log) == before
    assert groups.heartbeat("m1", 2, owned=OwnedTasks({"0": [0]}, {}, {})).member_epoch == 3


def test_a_full_group_refuses_new_members() -> None:
    """Not a member that it has, nor a static member that comes back, as Kafka 4.4."""
    groups = Groups("group.streams.max.size=1", *AT_ONCE)
    groups.set_topic("in", 3)
    epoch = groups.heartbeat("m1", instance_id="i").member_epoch
    for instance_id in (None, "j"):
        with pytest.raises(CoordinatorError) as caught:
            groups.heartbeat("m2", instance_id=instance_id)
        assert caught.value.code == error_codes.GROUP_MAX_SIZE_REACHED
    assert groups.heartbeat("m1").member_epoch == epoch
    groups.heartbeat("m1", -2, instance_id="i")
    assert groups.heartbeat("m2", instance_id="i").member_id == "m2"


def test_a_static_member_that_comes_back_has_its_tasks(groups: Groups) -> None:
    """Under a new id, also after a restart; another member does not get them, and the old id is fenced."""
    epoch = groups.heartbeat("m1", instance_id="i").member_epoch
    groups.heartbeat("m2", instance_id="j")
    groups.heartbeat("m1", epoch, owned=OwnedTasks({"0": [0, 1]}, {}, {}))
    groups.heartbeat("m2", epoch + 1)
    before = groups.group().members["m1"].assigned_tasks
    assert groups.heartbeat("m1", -2, instance_id="i").member_epoch == -2
    assert groups.group().state == "Reconciling"
    groups.reload()
    assert groups.heartbeat("m2", epoch + 1).tasks is None
    back = groups.heartbeat("m3", instance_id="i", process_id="of-m1")
    assert back.member_epoch == epoch + 1, "no group epoch begins"
    assert back.tasks is not None and set(back.tasks.active["0"]) == set(before.active["0"])
    assert set(groups.group().members) == {"m2", "m3"}
    groups.reload()
    with pytest.raises(CoordinatorError) as caught:
        groups.heartbeat("m1", epoch + 1, instance_id="i")
    assert caught.value.code == error_codes.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_loses_its_tasks(groups: Groups) -> None:
    """When its session ends."""
    groups.heartbeat("m1", instance_id="i")
    groups.heartbeat("m1", -2, instance_id="i")
    groups.advance(44_000)
    assert set(groups.group().members) == {"m1"}
    groups.advance(2_000)
    assert groups.group().state == "Empty"
    assert groups.group().assignment_epoch == groups.group().group_epoch
    with pytest.raises(CoordinatorError) as caught:
        groups.heartbeat("m1", -2, instance_id="i")
    assert caught.value.code == error_codes.UNKNOWN_MEMBER_ID


def test_offsets_of_tasks_are_those_that_a_member_stated_last(groups: Groups) -> None:
    """Each list on its own; they are lost with the member. Those of the heartbeat that makes the group are not kept."""
    epoch = groups.heartbeat("m1", task_offsets=(TaskOffset("0", 1, 1),)).member_epoch
    assert groups.manager.offsets(GROUP, "m1") == TaskOffsets()
    groups.heartbeat("m1", epoch, task_offsets=(TaskOffset("0", 1, 5),))
    groups.heartbeat("m1", epoch, task_end_offsets=(TaskOffset("0", 1, 9),))
    assert groups.manager.offsets(GROUP, "m1") == TaskOffsets((TaskOffset("0", 1, 5),), (TaskOffset("0", 1, 9),))
    groups.heartbeat("m1", epoch, task_offsets=())
    assert groups.manager.offsets(GROUP, "m1") == TaskOffsets((), (TaskOffset("0", 1, 9),))
    groups.heartbeat("m2")
    groups.heartbeat("m1", -1)
    assert groups.manager.offsets(GROUP, "m1") == TaskOffsets()


def described(*nodes: dict[str, Any], member_id: str = "m1", epoch: int = 0) -> Message:
    """A request with a description of one subtopology."""
    request = API_KEYS[STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE].request
    made = [request.classes["TopologyDescriptionNode"](**node) for node in nodes]
    part = request.classes["TopologyDescriptionSubtopology"](subtopology_id="0", nodes=made)
    description = request.classes["TopologyDescription"](subtopologies=[part])
    return request.new(group_id=GROUP, member_id=member_id, topology_epoch=epoch, topology_description=description)


def test_the_description_of_a_topology_is_asked_for_until_it_comes() -> None:
    """Of one member at a time, after longer and longer waits; again after a restart. Without a plugin of none."""
    plain = Groups(*AT_ONCE)
    plain.set_topic("in", 3)
    assert not plain.heartbeat().requires_description
    groups = Groups("group.streams.topology.description.plugin.class=any", "group.streams.session.timeout.ms=60000", *AT_ONCE)
    groups.set_topic("in", 3)
    assert not groups.heartbeat("m1", of_kafka_4_4=False).requires_description
    answer = groups.heartbeat("m1")
    assert answer.requires_description
    for wait_ms in (30_000, 60_000 - 10_000):
        assert not groups.heartbeat("m1", answer.member_epoch).requires_description
        groups.advance(wait_ms - 1)
        assert not groups.heartbeat("m1", answer.member_epoch).requires_description
        groups.advance(1)
        asks = groups.heartbeat("m1", answer.member_epoch).requires_description
        assert asks == (wait_ms == 30_000)
    request = described({"name": "source", "node_type": 1})
    groups.manager.describe_topology(request)
    assert groups.manager.descriptions.find(GROUP, 0) is request.topology_description
    assert groups.manager.descriptions.find(GROUP, 1) is None
    groups.advance(59_000)
    assert not groups.heartbeat("m1", answer.member_epoch).requires_description
    groups.reload()
    assert groups.heartbeat("m1", answer.member_epoch).requires_description


def test_a_description_that_is_too_large_is_not_asked_for_again() -> None:
    groups = Groups("group.streams.topology.description.plugin.class=any", *AT_ONCE)
    groups.set_topic("in", 3)
    epoch = groups.heartbeat("m1").member_epoch
    with pytest.raises(CoordinatorError) as caught:
        nodes = [{"name": "x" * 1024, "node_type": 1}] * (MAX_DESCRIPTION_BYTES // 1024)
        groups.manager.describe_topology(described(*nodes))
    assert caught.value.code == error_codes.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    groups.advance(31_000)
    assert not groups.heartbeat("m1", epoch).requires_description


def test_the_epochs_of_descriptions_that_kafka_has_stay_in_the_records(groups: Groups) -> None:
    """Its plugin has the description of that topology; kcli knows nothing of it and changes nothing."""
    epoch = groups.heartbeat("m1").member_epoch
    group = groups.group()
    group.stored_description_epoch, group.failed_description_epoch = 0, 7
    groups.heartbeat("m2")
    values = [record.value for record in groups.written if record.key.STRUCT.name == "StreamsGroupMetadataKey"]
    assert [(value.epoch, value.stored_description_topology_epoch) for value in values if value] == [(epoch + 1, 0)]
    assert [value.failed_description_topology_epoch for value in values if value] == [7]


def test_a_member_with_an_older_topology_is_told(groups: Groups) -> None:
    """It joins, with a status."""
    groups.heartbeat("m1", topology=topology(subtopology("0", ["in"]), epoch=2))
    result = groups.heartbeat("m2", topology=STATEFUL)
    assert statuses(result) == [(0, "The member's topology epoch 0 is behind the group's topology epoch 2.")]
    assert groups.group().topology_epoch == 2


# --------------------------------------------------------------------------------------------------- timers, settings


def test_the_first_assignment_waits() -> None:
    """Members that join within the delay get no tasks, in epoch 1; then the tasks are divided once."""
    groups = Groups("group.streams.assignment.interval.ms=0")
    groups.set_topic("in", 4)
    delayed = [(5, "Assignment delayed due to the configured initial rebalance delay.")]
    for member_id in ("m1", "m2"):
        result = groups.heartbeat(member_id)
        assert (result.member_epoch, active(result), statuses(result)) == (1, {}, delayed)
    groups.advance(2999)
    assert statuses(groups.heartbeat("m1", 1)) == delayed
    groups.advance(1)
    assert groups.kinds() == ["21", "21", "20"]
    assert [active(groups.heartbeat(member_id, 1)) for member_id in ("m1", "m2")] == [{"0": [1, 3]}, {"0": [0, 2]}]
    assert groups.group().state == "Stable"


def test_assignments_have_an_interval() -> None:
    """A change within the interval waits for a later heartbeat."""
    groups = Groups("group.streams.initial.rebalance.delay.ms=0")
    groups.set_topic("in", 2)
    groups.heartbeat("m1")
    groups.advance(999)
    delayed = [(5, "Assignment delayed due to the configured assignment interval.")]
    assert statuses(groups.heartbeat("m2")) == delayed
    groups.advance(1)
    result = groups.heartbeat("m2", 2)
    assert (result.member_epoch, statuses(result)) == (3, [])


def test_an_answer_that_was_lost_is_repeated() -> None:
    """A member that states fewer tasks than it has gets all of them again; one that states its tasks does not."""
    groups = Groups(*AT_ONCE)
    groups.set_topic("in", 2)
    epoch = groups.heartbeat("m1").member_epoch
    assert groups.heartbeat("m1", epoch).tasks is None
    result = groups.heartbeat("m1", epoch, owned=OwnedTasks({}, {}, {}))
    assert active(result) == {"0": [0, 1]}
    assert groups.heartbeat("m1", epoch, owned=OwnedTasks({"0": [0, 1]}, {}, {})).tasks is None


def test_a_clock_that_was_set_back_does_not_stop_assignments() -> None:
    """The last assignment is in the future then."""
    groups = Groups("group.streams.initial.rebalance.delay.ms=0")
    groups.set_topic("in", 2)
    groups.timer.wall.off_ms = 3_600_000
    groups.heartbeat("m1")
    groups.timer.wall.off_ms = 0
    assert statuses(groups.heartbeat("m2")) == []


def test_a_session_ends(groups: Groups) -> None:
    """A member that is silent is removed, also by the coordinator that has loaded the group."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    groups.advance(44_000)
    groups.heartbeat("m2", 3)
    groups.advance(1_000)
    assert list(groups.group().members) == ["m2"]
    groups.reload()
    groups.advance(44_999)
    assert groups.group().members
    groups.advance(1)
    assert not groups.group().members


def test_a_member_that_does_not_revoke_is_removed(groups: Groups) -> None:
    """The rebalance timeout of the member counts from the answer that asked for it."""
    groups.heartbeat("m1", rebalance_timeout_ms=7_000)
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    groups.advance(6_999)
    assert "m1" in groups.group().members
    groups.advance(1)
    assert "m1" not in groups.group().members
    assert any("has not revoked its tasks of epoch 2 within 7000 ms" in str(line) for line in groups.lines)


def test_standby_tasks_of_a_group_setting(groups: Groups) -> None:
    """Another streams.num.standby.replicas begins a group epoch; a standby is never in the process of its active task."""
    groups.set_topic("app-store-changelog", 3)
    groups.heartbeat("m1", topology=STATEFUL)
    groups.heartbeat("m2", topology=STATEFUL)
    groups.configure("streams.num.standby.replicas", "1")
    settle(groups)
    members = groups.group().members.values()
    assert groups.group().assignment_configs == {"num.standby.replicas": "1"}
    assert sorted(sum(map(len, member.assigned_tasks.standby.values())) for member in members) == [1, 2]


@pytest.mark.parametrize("is_4_4", [False, True])
def test_a_member_that_has_the_state_of_a_task_gets_it_as_a_standby_task(groups: Groups, is_4_4: bool) -> None:
    """As in Kafka 4.4: of two that report offsets the one with the higher offset."""
    if is_4_4:
        groups.upgrade()
    groups.set_topic("app-store-changelog", 3)
    for member_id in ("m1", "m2", "m3"):
        groups.heartbeat(member_id, topology=STATEFUL)
    settle(groups)
    homes = {index: key for key, member in groups.group().members.items() for index in member.assigned_tasks.active["0"]}
    assert sorted(homes) == [0, 1, 2]
    wanted = {}
    for index, home in homes.items():
        first, second = sorted({"m1", "m2", "m3"} - {home})
        wanted[index] = second if index % 2 else first
    for member_id in ("m1", "m2", "m3"):
        offsets = tuple(TaskOffset("0", index, 5 if key == member_id else 1) for index, key in wanted.items())
        groups.heartbeat(member_id, groups.group().members[member_id].member_epoch, task_offsets=offsets)
    groups.configure("streams.num.standby.replicas", "1")
    settle(groups)
    found = {
        index: key for key, member in groups.group().members.items() for index in member.assigned_tasks.standby.get("0", ())
    }
    assert (found == wanted) == is_4_4


def test_offsets_that_are_stated_twice_are_refused(groups: Groups) -> None:
    epoch = groups.heartbeat("m1").member_epoch
    for field in ("task_offsets", "task_end_offsets"):
        with pytest.raises(CoordinatorError) as caught:
            groups.heartbeat("m1", epoch, **{field: (TaskOffset("0", 1, 1), TaskOffset("0", 2, 1), TaskOffset("0", 1, 2))})
        assert (caught.value.code, "partition 1." in caught.value.message) == (error_codes.INVALID_REQUEST, True)
        assert groups.manager.offsets(GROUP, "m1") == TaskOffsets()


def test_client_tags_that_a_group_requires(groups: Groups) -> None:
    """They are a setting of the assignor: another value begins an epoch. A client of Kafka 4.4 learns which it lacks."""
    epoch = groups.heartbeat("m1", client_tags={"rack": "r"}).member_epoch
    groups.configure("streams.rack.aware.assignment.tags", "zone, rack,cluster")
    answer = groups.heartbeat("m1", epoch)
    assert answer.member_epoch == epoch + 1
    assert groups.group().assignment_configs == {"num.standby.replicas": "0", "rack.aware.assignment.tags": "zone,rack,cluster"}
    ((code, text),) = statuses(answer)
    assert (code, "assignment: [zone, cluster]." in text) == (6, True)
    assert statuses(groups.heartbeat("m1", epoch + 1, of_kafka_4_4=False)) == []
    assert statuses(groups.heartbeat("m1", client_tags=dict.fromkeys(("zone", "rack", "cluster"), "x"))) == []


def test_an_endpoint_that_changes(groups: Groups) -> None:
    """As in Kafka 4.4, whose members do not learn of a member that joins again with the same endpoint."""
    groups.upgrade()
    assert groups.heartbeat("m1", user_endpoint=("a", 1)).endpoint_epoch == 0  # no record has made the group yet
    groups.heartbeat("m2", user_endpoint=("b", 1))
    epoch = groups.heartbeat("m2", user_endpoint=("b", 1)).endpoint_epoch
    assert groups.heartbeat("m2", user_endpoint=("b", 1)).endpoint_epoch == epoch
    assert groups.heartbeat("m2", user_endpoint=("c", 1)).endpoint_epoch == epoch + 1


def test_shutdown_of_the_application(groups: Groups) -> None:
    """All members hear of it until the group is empty."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    text = "Streams group member m1 encountered a fatal error and requested a shutdown for the entire application."
    assert statuses(groups.heartbeat("m1", 2, shuts_down=True)) == [(4, text)]
    groups.heartbeat("m1", -1)
    assert statuses(groups.heartbeat("m2", 3)) == [(4, text)]
    groups.heartbeat("m2", -1)
    assert statuses(groups.heartbeat("m3")) == []


def test_endpoints(groups: Groups) -> None:
    """A member that does not know the present epoch gets the partitions of all endpoints."""
    groups.heartbeat("m1", user_endpoint=("a", 1))
    result = groups.heartbeat("m1", 2, endpoint_epoch=-1)
    assert result.endpoint_epoch == 0
    assert result.endpoints == [(("a", 1), [("in", [0, 1, 2])], [])]
    groups.heartbeat("m2", user_endpoint=("b", 2))
    result = groups.heartbeat("m1", 2, endpoint_epoch=0)
    assert result.endpoint_epoch == 2
    assert result.endpoints == [(("b", 2), [], []), (("a", 1), [("in", [0, 1])], [])]
    assert groups.heartbeat("m1", 2, endpoint_epoch=2).endpoints is None


# ------------------------------------------------------------------------------------------------------------- offsets


def test_offsets_of_a_member(groups: Groups) -> None:
    """An older epoch is accepted for the inputs of tasks that the member has had since then."""
    groups.heartbeat("m1")
    groups.heartbeat("m2")
    groups.heartbeat("m1", 2)
    groups.heartbeat("m1", 2, owned=OwnedTasks({"0": [0, 1]}, {}, {}))
    groups.heartbeat("m2", 3)
    group, validate = groups.group(), groups.manager.validate_offset_commit
    validate(group, "m1", None, 3, 9, [("other", 2)])
    validate(group, "m1", None, 2, 9, [("in", 1)])
    validate(group, "", None, -1, None, [("in", 1)])
    for code, arguments in (
        (error_codes.STALE_MEMBER_EPOCH, ("m1", None, 2, 9, [("in", 2)])),
        (error_codes.STALE_MEMBER_EPOCH, ("m1", None, 2, 9, [("other", 0)])),
        (error_codes.STALE_MEMBER_EPOCH, ("m2", None, 2, 9, [("in", 2)])),
        (error_codes.STALE_MEMBER_EPOCH, ("m1", None, 4, 9, [])),
        (error_codes.UNKNOWN_MEMBER_ID, ("m9", None, 3, 9, [])),
        (error_codes.UNKNOWN_MEMBER_ID, ("", None, -1, 9, [])),
        (error_codes.UNSUPPORTED_VERSION, ("m1", None, 3, 8, [])),
    ):
        with pytest.raises(CoordinatorError) as caught:
            validate(group, *arguments)
        assert caught.value.code == code
    assert groups.manager.subscribed_topics(group) == {"in"}
    with pytest.raises(CoordinatorError) as caught:
        groups.manager.delete(group)
    assert caught.value.code == error_codes.NON_EMPTY_GROUP


# -------------------------------------------------------------------------------------------------------------- groups


def settle(groups: Groups) -> None:
    """Let all members send heartbeats, and revoke what they no longer have, until nothing changes."""
    for _ in range(20):
        before = len(groups.log)
        for member_id, member in list(groups.group().members.items()):
            tasks = member.assigned_tasks
            owned = OwnedTasks({key: list(found) for key, found in tasks.active.items()}, tasks.standby, tasks.warmup)
            groups.heartbeat(member_id, member.member_epoch, owned=owned)
        if len(groups.log) == before:
            return
    raise AssertionError("the group does not settle")


@pytest.mark.parametrize("is_4_4", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_groups_settle(seed: int, is_4_4: bool) -> None:
    """Whatever members of whatever processes join and leave, each task is active once, and no member has far too many."""
    rng = random.Random(seed)
    standby = rng.randrange(3)
    groups = Groups(f"group.streams.num.standby.replicas={standby}", *AT_ONCE)
    if is_4_4:
        groups.upgrade()
    for name in ("in", "app-store-changelog"):
        groups.set_topic(name, 6)
    groups.set_topic("other", 5)
    given = topology(subtopology("0", ["in"], stores=["app-store-changelog"]), subtopology("1", ["other"]))
    members: list[str] = []
    for at in range(30):
        if not members or (len(members) < 7 and rng.random() < 0.6):
            members.append(f"m{at}")
            groups.heartbeat(members[-1], topology=given, process_id=f"p{rng.randrange(4)}")
        else:
            groups.heartbeat(members.pop(rng.randrange(len(members))), -1)
        if rng.random() < 0.3:
            groups.reload()
        if members and rng.random() < 0.7:
            settle(groups)
            check_balance(groups.group(), standby)


def check_balance(group: StreamsGroup, standby: int) -> None:
    """Check a settled group: all tasks are there, and no member has more than one above its share of the active ones."""
    found = [
        (key, index)
        for member in group.members.values()
        for key, tasks in member.assigned_tasks.active.items()
        for index in tasks
    ]
    assert sorted(found) == [("0", index) for index in range(6)] + [("1", index) for index in range(5)]
    processes = {member.process_id for member in group.members.values()}
    copies = min(standby, len(processes) - 1)
    count = sum(len(tasks) for member in group.members.values() for tasks in member.assigned_tasks.standby.values())
    assert count == 6 * copies
    if not standby:
        sizes = [sum(map(len, member.assigned_tasks.active.values())) for member in group.members.values()]
        assert max(sizes) <= -(-len(found) // len(sizes)) + 1


def test_members_that_come_and_go_are_logged(groups: Groups) -> None:
    groups.heartbeat("m1")
    with pytest.raises(CoordinatorError):
        groups.heartbeat("m1", 7)
    groups.heartbeat("m1", -1)
    assert [line.partition(": ")[0] for line in groups.lines] == [
        f"group {GROUP} gets member m1 in epoch 2",
        f"group {GROUP} fences member m1",
        f"group {GROUP} loses member m1",
    ]
