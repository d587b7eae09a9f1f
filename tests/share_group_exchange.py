"""One exchange about share groups with a broker, right and wrong, whose answers can be compared with Apache Kafka's.

Covers the membership of share groups, the states of share partitions and the start offsets of groups. Left out of the
comparison: the order of groups, members, topics and partitions, ids of topics, and which partitions of a topic a member has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.raw_requests import BUSY

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "share_groups" / "answers.json"
SETTINGS = (
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "share.coordinator.state.topic.num.partitions=2",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "share.coordinator.snapshot.update.records.per.snapshot=2",
    "group.share.assignment.interval.ms=0",
    "group.share.max.size=3",
)
TOPICS = {"orders": 3, "pay": 2}
WAITS = 600
# Requests whose answer changed from Kafka 4.3.1 to 4.4.0, with both answers. In 4.4.0:
# - the target of a group that is now empty has the group's epoch;
# - a leader epoch below 0 is refused, so the state that is read once more does not have the batch of "without epochs";
# - an error has another text.
_FENCED = "The share coordinator rejected the request because the share-group state epoch did not match."
_NEGATIVE = "The leader epoch cannot be a negative number."
CHANGED_IN_4_4: list[tuple[str, Any, Any]] = [
    ("empty", [0, None, "Empty", 10, 7, "simple", 3400, []], [0, None, "Empty", 10, 10, "simple", 3400, []]),
    (
        "lower state epoch",  # of InitializeShareGroupState and of WriteShareGroupState
        [[0, 124, _FENCED], []],
        [[0, 124, "The coordinator rejected the request because the state epoch did not match."], []],
    ),
    ("without epochs", [[0, 0, None], []], [[0, 42, _NEGATIVE], []]),
    (
        "all",  # of ReadShareGroupState
        [
            [0, 0, None, 3, 13],
            [[13, 13, 2, 3], [14, 16, 4, 2], [17, 17, 0, 1], [18, 18, 0, 2], [19, 19, 0, 1]],
        ],
        [[0, 42, _NEGATIVE, 0, 0], []],
    ),
    ("once more", [[0, 0, None, 3, 18], [[18, 18, 0, 2], [19, 19, 0, 1]]], [[0, 0, None, 3, 18], [[18, 19, 0, 1]]]),
]


class Client(Protocol):
    """A client with one connection to a broker."""

    def struct(self, key: int, struct_name: str, /, **fields: Any) -> Message: ...

    def ask(self, key: int, version: int, /, **fields: Any) -> Message: ...


class Exchange:
    """The exchange with one broker; `answers` has a label and plain values for each request. `wait` lets time pass."""

    def __init__(self, client: Client, wait: Callable[[], None]) -> None:
        self.client = client
        self.wait = wait
        self.answers: list[tuple[str, Any]] = []
        created = client.ask(
            apis.CREATE_TOPICS,
            7,
            topics=[
                client.struct(apis.CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=count, replication_factor=1)
                for name, count in TOPICS.items()
            ],
            timeout_ms=10_000,
        )
        self.ids = {topic.name: topic.topic_id for topic in created.topics}
        self.names = {bytes(topic_id): name for name, topic_id in self.ids.items()}
        for group_id in ("g", "other", "classic", "new"):
            self.find(0, group_id)
        self.find(2, f"s:{self.ids['pay']}:0")

    def find(self, key_type: int, key: str) -> None:
        """Ask for a coordinator until there is one."""
        fields = {"key_type": key_type, "coordinator_keys": [key]}
        self.until(lambda: not self.client.ask(apis.FIND_COORDINATOR, 6, **fields).coordinators[0].error_code)

    def until(self, is_so: Callable[[], Any]) -> Any:
        """Ask until the answer is true, and return it."""
        for _ in range(WAITS):
            answer = is_so()
            if answer:
                return answer
            self.wait()
        raise AssertionError("the broker did not get there")

    def note(self, label: str, *values: Any) -> None:
        self.answers.append((label, values))

    # ------------------------------------------------------------------------------------------------------ membership

    def assigned(self, assignment: Message | None) -> Any:
        if assignment is None:
            return None
        # Kafka decides by the hashes of random topic ids which partitions a member gives up.
        return sorted((self.names[bytes(one.topic_id)], len(one.partitions)) for one in assignment.topic_partitions)

    def heartbeat(self, member: str, epoch: int, **fields: Any) -> Message:
        """The answer of a coordinator that is ready."""
        if epoch == 0:
            fields = {"subscribed_topic_names": ["orders"]} | fields
        request = {"group_id": "g", "member_id": member, "member_epoch": epoch} | fields

        def answered() -> Message | None:
            answer = self.client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **request)
            return None if answer.error_code in BUSY else answer

        return self.until(answered)  # type: ignore[no-any-return]

    def beat(self, label: str, member: str = "m1", epoch: int = 0, **fields: Any) -> None:
        """Send a heartbeat; one that joins subscribes to `orders` unless `fields` say otherwise."""
        answer = self.heartbeat(member, epoch, **fields)
        given = answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms
        self.note(label, answer.error_code, answer.error_message, *given, self.assigned(answer.assignment))

    def settle(self, label: str, *members: str, group_id: str = "g") -> list[int]:
        """Send heartbeats until all members have a target that does not change; note what they have."""
        epochs = {member: self.epoch_of(member, group_id) for member in members}
        quiet = 0
        while quiet < 6:
            before = dict(epochs)
            for member, epoch in before.items():
                epochs[member] = self.heartbeat(member, epoch, group_id=group_id).member_epoch
            quiet = quiet + 1 if epochs == before and len(set(epochs.values())) == 1 else 0
            self.wait()
            self.wait()
        self.describe(label, group_id)
        return list(epochs.values())

    def epoch_of(self, member: str, group_id: str) -> int:
        (group,) = self.client.ask(apis.SHARE_GROUP_DESCRIBE, 1, group_ids=[group_id]).groups
        return next(one.member_epoch for one in group.members if one.member_id == member)

    def describe(self, label: str, *group_ids: str) -> None:
        fields = {"group_ids": list(group_ids), "include_authorized_operations": True}
        for group in sorted(self.client.ask(apis.SHARE_GROUP_DESCRIBE, 1, **fields).groups, key=lambda one: one.group_id):
            members = sorted(
                (
                    *(member.member_id, member.rack_id or "", member.member_epoch, member.client_id, member.client_host),
                    *(sorted(member.subscribed_topic_names), self.assigned(member.assignment)),
                )
                for member in group.members
            )
            epochs = (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name)
            self.note(label, group.error_code, group.error_message, *epochs, group.authorized_operations, members)

    def list_groups(self, label: str, **fields: Any) -> None:
        answer = self.client.ask(apis.LIST_GROUPS, 5, **fields)
        found = sorted((one.group_id, one.protocol_type, one.group_state, one.group_type) for one in answer.groups)
        self.note(label, answer.error_code, found)

    def delete_groups(self, label: str, *group_ids: str) -> None:
        answer = self.client.ask(apis.DELETE_GROUPS, 2, groups_names=list(group_ids))
        self.note(label, sorted((one.group_id, one.error_code) for one in answer.results))

    # --------------------------------------------------------------------------------------------------------- offsets

    def offsets(self, label: str, group_id: str = "g", version: int = 1, **topics: list[int]) -> None:
        key, struct = apis.DESCRIBE_SHARE_GROUP_OFFSETS, self.client.struct
        asked: list[Message] | None = [
            struct(key, "DescribeShareGroupOffsetsRequestTopic", topic_name=name, partitions=found)
            for name, found in topics.items()
        ]
        group = struct(key, "DescribeShareGroupOffsetsRequestGroup", group_id=group_id, topics=asked or None)
        (answer,) = self.client.ask(key, version, groups=[group]).groups
        found = sorted(
            (
                *(topic.topic_name, part.partition_index, part.start_offset, part.leader_epoch, part.lag),
                *(part.error_code, part.error_message or ""),
            )
            for topic in answer.topics
            for part in topic.partitions
        )
        self.note(label, answer.error_code, answer.error_message, found)

    def alter(self, label: str, group_id: str, **topics: dict[int, int]) -> None:
        key, struct = apis.ALTER_SHARE_GROUP_OFFSETS, self.client.struct
        asked = [
            struct(
                key,
                "AlterShareGroupOffsetsRequestTopic",
                topic_name=name,
                partitions=[
                    struct(key, "AlterShareGroupOffsetsRequestPartition", partition_index=index, start_offset=start)
                    for index, start in starts.items()
                ],
            )
            for name, starts in topics.items()
        ]
        answer = self.client.ask(key, 0, group_id=group_id, topics=asked)
        found = sorted(
            (topic.topic_name, part.partition_index, part.error_code, part.error_message or "")
            for topic in answer.responses
            for part in topic.partitions
        )
        self.note(label, answer.error_code, answer.error_message, found)

    def delete_offsets(self, label: str, group_id: str, *topics: str) -> None:
        key = apis.DELETE_SHARE_GROUP_OFFSETS
        asked = [self.client.struct(key, "DeleteShareGroupOffsetsRequestTopic", topic_name=name) for name in topics]
        answer = self.client.ask(key, 0, group_id=group_id, topics=asked)
        found = sorted((topic.topic_name, topic.error_code, topic.error_message or "") for topic in answer.responses)
        self.note(label, answer.error_code, answer.error_message, found)

    # ---------------------------------------------------------------------------------------------------------- states

    def state(
        self, label: str, key: int, version: int, kind: str, topic: Any = "pay", partition: int = 0, **fields: Any
    ) -> None:
        """Ask for the state of one share partition of group s."""
        part = self.client.struct(key, "PartitionData", partition=partition, **fields)
        topic_id = self.ids.get(topic, topic)
        asked = self.client.struct(key, f"{kind}Data", topic_id=topic_id, partitions=[part])
        answer = self.client.ask(key, version, group_id="s", topics=[asked])
        (found,) = answer.results[0].partitions
        values = [getattr(found, name) for name in found.__slots__ if name not in ("state_batches", "unknown_tags")]
        batches = [
            (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
            for batch in getattr(found, "state_batches", ())
        ]
        self.note(label, values, batches)

    def initialize(self, label: str, epoch: int, start: int, **fields: Any) -> None:
        key = apis.INITIALIZE_SHARE_GROUP_STATE
        self.state(label, key, 0, "InitializeState", state_epoch=epoch, start_offset=start, **fields)

    def read(self, label: str, leader: int, **fields: Any) -> None:
        self.state(label, apis.READ_SHARE_GROUP_STATE, 0, "ReadState", leader_epoch=leader, **fields)

    def write(self, label: str, state: int, leader: int, start: int, *batches: tuple[int, ...], **fields: Any) -> None:
        key, struct = apis.WRITE_SHARE_GROUP_STATE, self.client.struct
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        found = [struct(key, "StateBatch", **dict(zip(names, batch))) for batch in batches]
        fields = {"state_epoch": state, "leader_epoch": leader, "start_offset": start, "state_batches": found} | fields
        self.state(label, key, 1, "WriteState", **({"delivery_complete_count": len(batches)} | fields))

    def summary(self, label: str, **fields: Any) -> None:
        self.state(label, apis.READ_SHARE_GROUP_STATE_SUMMARY, 1, "ReadStateSummary", leader_epoch=0, **fields)

    def delete(self, label: str, **fields: Any) -> None:
        self.state(label, apis.DELETE_SHARE_GROUP_STATE, 0, "DeleteState", **fields)


def invalid_heartbeats(exchange: Exchange) -> None:
    beat = exchange.beat
    beat("no member id", member="")
    beat("blank member id", member=" ")
    beat("long member id", member="x" * 37)
    beat("no group", group_id="")
    beat("empty rack", rack_id="")
    beat("no subscription", subscribed_topic_names=None)
    beat("empty subscription", subscribed_topic_names=[])
    beat("epoch -2", epoch=-2)
    beat("-1 of no group", epoch=-1)
    beat("epoch of no group", epoch=3)
    exchange.list_groups("no groups")
    exchange.describe("no group", "g", "other", "")
    exchange.delete_groups("no group", "g")
    exchange.offsets("no group")
    exchange.offsets("no group, by name", orders=[0, 2])
    exchange.delete_offsets("no group", "g", "orders")
    exchange.delete_offsets("no group id", "", "orders")
    exchange.alter("no group id", "", orders={0: 1})


def membership(exchange: Exchange) -> None:
    beat = exchange.beat
    beat("first", rack_id="r")
    exchange.describe("first", "g")
    (epoch,) = exchange.settle("one member", "m1")
    beat("nothing new", epoch=epoch)
    beat("full", epoch=epoch, subscribed_topic_names=["orders"])
    beat("previous epoch", epoch=epoch - 1)
    beat("earlier epoch", epoch=1)
    beat("later epoch", epoch=epoch + 1)
    beat("unknown member", member="m9", epoch=2)
    beat("unknown member leaves", member="m9", epoch=-1)
    beat("second", member="m2")
    epoch = exchange.settle("two members", "m1", "m2")[0]
    beat("two topics", epoch=epoch, subscribed_topic_names=["pay", "orders", "none"])
    exchange.settle("different subscriptions", "m1", "m2")
    beat("third", member="m3", subscribed_topic_names=["pay"])
    beat("too many", member="m4")
    exchange.list_groups("with members")
    exchange.list_groups("of a type", types_filter=["share"])
    exchange.list_groups("of a state", states_filter=["Stable"])
    exchange.delete_groups("with members", "g")
    exchange.alter("with members", "g", orders={0: 1})
    exchange.delete_offsets("with members", "g", "orders")
    exchange.offsets("with members")
    for member in ("m1", "m2", "m3"):
        beat(f"{member} leaves", member=member, epoch=-1)
    exchange.describe("empty", "g")
    beat("one begins again", member="m2")
    exchange.settle("begun again", "m2")
    beat("leaves again", member="m2", epoch=-1)


def conflicts(exchange: Exchange) -> None:
    struct, ask = exchange.client.struct, exchange.client.ask
    part = struct(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5)
    for group_id, label in (("classic", "classic"), ("g", "share")):
        topic = struct(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="orders", partitions=[part])
        answer = ask(apis.OFFSET_COMMIT, 8, group_id=group_id, topics=[topic])
        exchange.note(f"commit of a {label} group", answer.topics[0].partitions[0].error_code)
        wanted = struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=group_id, topics=None)
        (found,) = ask(apis.OFFSET_FETCH, 8, groups=[wanted]).groups
        exchange.note(f"fetch of a {label} group", found.error_code, len(found.topics))
        protocol = struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
        times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
        fields = {"group_id": group_id, "member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
        if group_id == "g":
            exchange.note("join of a share group", ask(apis.JOIN_GROUP, 9, **times, **fields).error_code)
            beat = {"member_id": "c", "member_epoch": 0, "rebalance_timeout_ms": 1000, "topic_partitions": []}
            answer = ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", subscribed_topic_names=["orders"], **beat)
            exchange.note("consumer heartbeat of a share group", answer.error_code, answer.error_message)
            answer = ask(apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups[0]
            exchange.note("consumer description of a share group", answer.error_code, answer.error_message)
            answer = ask(apis.DESCRIBE_GROUPS, 6, groups=["g"]).groups[0]
            exchange.note("classic description", answer.error_code, answer.error_message, answer.group_state)
    exchange.beat("heartbeat of a classic group", group_id="classic")
    exchange.describe("classic group", "classic")
    exchange.alter("classic group", "classic", orders={0: 1})
    exchange.delete_offsets("classic group", "classic", "orders")
    exchange.offsets("classic group", "classic")


def offsets(exchange: Exchange) -> None:
    exchange.offsets("empty group")
    exchange.offsets("version 0", version=0)
    exchange.alter("unknown topics and partitions", "g", orders={0: 4, 9: 1}, none={0: 1})
    exchange.offsets("altered", orders=[0, 1], none=[0])
    exchange.delete_offsets("some", "g", "orders", "none")
    exchange.offsets("deleted")
    exchange.delete_offsets("twice", "g", "orders")
    exchange.alter("new group", "new", pay={0: 0, 1: 0})
    exchange.offsets("new group", "new")
    exchange.describe("new group", "new")
    exchange.beat("joins the new group", group_id="new", member="n", subscribed_topic_names=["pay"])
    exchange.settle("new group settles", "n", group_id="new")
    exchange.offsets("new group settles", "new")
    exchange.delete_groups("both", "g", "new")
    exchange.describe("deleted", "g")
    exchange.list_groups("at the end")


def states(exchange: Exchange) -> None:
    exchange.summary("of none")
    exchange.read("of none", 0)
    exchange.write("of none", 0, 0, 0)
    exchange.delete("of none")
    exchange.initialize("negative partition", 0, 0, partition=-1)
    exchange.initialize("unknown partition", 0, 0, partition=2)
    exchange.initialize("unknown topic", 0, 0, topic=Uuid(b"\1" * 16))
    exchange.initialize("first", 2, -1)
    exchange.summary("first")
    exchange.initialize("lower state epoch", 1, 0)
    exchange.initialize("again", 3, 10)
    exchange.read("first", 4)
    exchange.summary("read in epoch 4")
    exchange.read("lower leader epoch", 3)
    exchange.write("lower leader epoch", 3, 3, -1)
    exchange.write("lower state epoch", 2, 4, -1)
    exchange.write("first", 3, 4, -1, (10, 14, 0, 1), (15, 15, 2, 1), (16, 19, 0, 1))
    exchange.write("overlap", 3, 4, -1, (12, 16, 4, 2))
    exchange.read("both", 4)
    exchange.write("start moves", 3, 5, 13, (13, 13, 2, 3))
    exchange.write("without epochs", -1, -1, -1, (18, 18, 0, 2))
    exchange.read("all", -1)
    exchange.summary("all")
    exchange.write("once more", 3, 4, 18)
    exchange.read("once more", 6)
    exchange.summary("once more")
    exchange.delete("all")
    exchange.summary("deleted")
    exchange.read("deleted", 6)
    for label, key in (("", ""), ("no parts", "g"), ("no number", f"g:{exchange.ids['pay']}:x"), ("no id", "g:x:1")):
        fields = {"key_type": 2, "coordinator_keys": [key]}
        (found,) = exchange.client.ask(apis.FIND_COORDINATOR, 6, **fields).coordinators
        exchange.note(f"coordinator of {label}", found.error_code, found.node_id)


STEPS = (invalid_heartbeats, membership, conflicts, offsets, states)


def exchanged(client: Client, wait: Callable[[], None]) -> list[Any]:
    """All answers of a broker, as JSON has them."""
    exchange = Exchange(client, wait)
    for step in STEPS:
        step(exchange)
    answers: list[Any] = json.loads(json.dumps(exchange.answers))
    return answers


def recorded(*, is_4_4: bool = False) -> list[Any]:
    """The answers of Apache Kafka 4.3.1 or, in a cluster with the features of 4.4, of 4.4.0."""
    answers: list[Any] = json.loads(FIXTURE.read_text())
    if not is_4_4:
        return answers
    changed = {json.dumps([name, before]): [name, after] for name, before, after in CHANGED_IN_4_4}
    found = [json.dumps(answer) for answer in answers]
    assert changed.keys() <= set(found)
    return [changed.get(text, answer) for text, answer in zip(found, answers)]
