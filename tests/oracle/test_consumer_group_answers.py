"""Protects the answers to consumer groups' requests against Apache Kafka's own: the same exchange with both, right and wrong.

Left out of the comparison: the order of groups, members and topics, ids of topics, and the reason why a pattern is invalid.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import raise_features
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import BUSY, RawClient, running_kcli, until

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "group.consumer.max.size=3",
    "group.consumer.assignment.interval.ms=2000",  # the requests of "assigning" come within it, on a busy machine, too
)
TOPICS = {"orders": 3, "pay": 2}
INTERVAL_S = 2.2  # above group.consumer.assignment.interval.ms


class Exchange:
    """The exchange with one broker; `answers` has a label and plain values for each request."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
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
        for group_id in ("g", "static", "classic", "range", "empty"):
            key = {"key_type": 0, "coordinator_keys": [group_id]}
            until(lambda key=key: not client.ask(apis.FIND_COORDINATOR, 4, **key).coordinators[0].error_code)

    def note(self, label: str, *values: Any) -> None:
        self.answers.append((label, values))

    def assigned(self, assignment: Message | None) -> Any:
        if assignment is None:
            return None
        return sorted((self.names[bytes(one.topic_id)], sorted(one.partitions)) for one in assignment.topic_partitions)

    def beat(self, label: str, member: str = "m1", epoch: int = 0, version: int = 1, **fields: Any) -> None:
        """Send a heartbeat; one that joins subscribes to `orders` unless `fields` say otherwise."""
        if epoch == 0:
            fields = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 60_000, "owned": {}} | fields
        owned = fields.pop("owned", None)
        if owned is not None:
            struct, key = self.client.struct, apis.CONSUMER_GROUP_HEARTBEAT
            fields["topic_partitions"] = [
                struct(key, "TopicPartitions", topic_id=self.ids[name], partitions=found) for name, found in owned.items()
            ]
        request = {"group_id": "g", "member_id": member, "member_epoch": epoch} | fields

        def is_answered() -> Message | None:
            answer = self.client.ask(apis.CONSUMER_GROUP_HEARTBEAT, version, **request)
            return None if answer.error_code in BUSY else answer

        answer = until(is_answered)
        text = answer.error_message if answer.error_code != error_codes.INVALID_REGULAR_EXPRESSION else None
        given = (
            answer.member_id if version else len(answer.member_id or ""),
            answer.member_epoch,
            answer.heartbeat_interval_ms,
        )
        self.note(label, answer.error_code, text, *given, self.assigned(answer.assignment))

    def describe(self, label: str, *group_ids: str) -> None:
        fields = {"group_ids": list(group_ids), "include_authorized_operations": True}
        for group in sorted(self.client.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, **fields).groups, key=lambda one: one.group_id):
            members = sorted(
                (
                    *(member.member_id, member.instance_id or "", member.member_epoch, member.member_type),
                    *(sorted(member.subscribed_topic_names), member.subscribed_topic_regex),
                    *(self.assigned(member.assignment), self.assigned(member.target_assignment)),
                )
                for member in group.members
            )
            epochs = (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name)
            self.note(label, group.error_code, group.error_message, *epochs, group.authorized_operations, members)

    def list_groups(self, label: str, version: int = 5, **fields: Any) -> None:
        answer = self.client.ask(apis.LIST_GROUPS, version, **fields)
        found = sorted((one.group_id, one.protocol_type, one.group_state, one.group_type) for one in answer.groups)
        self.note(label, answer.error_code, found)

    def commit(self, label: str, member: str, epoch: int, index: int = 0, topic: str = "orders", version: int = 9) -> None:
        struct, key = self.client.struct, apis.OFFSET_COMMIT
        partition = struct(key, "OffsetCommitRequestPartition", partition_index=index, committed_offset=5)
        found = struct(key, "OffsetCommitRequestTopic", name=topic, topic_id=self.ids[topic], partitions=[partition])
        fields = {"group_id": "g", "member_id": member, "generation_id_or_member_epoch": epoch, "topics": [found]}
        answer = self.client.ask(key, version, **fields)
        self.note(label, answer.topics[0].partitions[0].error_code)

    def fetch(self, label: str, member: str | None, epoch: int, version: int = 9) -> None:
        wanted = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": None}
        group = self.client.struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", **wanted)
        (answer,) = self.client.ask(apis.OFFSET_FETCH, version, groups=[group]).groups
        self.note(label, answer.error_code, [[part.committed_offset for part in topic.partitions] for topic in answer.topics])


def invalid_heartbeats(exchange: Exchange) -> None:
    beat = exchange.beat
    beat("no member id", member="")
    beat("no group", group_id="")
    beat("empty instance", instance_id="")
    beat("blank instance", instance_id=" ")
    beat("empty rack", rack_id="")
    beat("no rebalance timeout", rebalance_timeout_ms=-1)
    beat("partitions unknown", owned=None, topic_partitions=None)
    beat("partitions of a new member", owned={"orders": [0]})
    beat("no subscription", subscribed_topic_names=None)
    beat("epoch -3", epoch=-3)
    beat("-2 without instance", epoch=-2)
    beat("-2 of no group", epoch=-2, instance_id="i")
    beat("-1 of no group", epoch=-1)
    beat("epoch of no group", epoch=3)
    beat("unknown assignor", server_assignor="x")
    beat("bad pattern", subscribed_topic_names=[], subscribed_topic_regex="(a")
    beat("version 0 without member id", version=0, member="", epoch=3)
    exchange.list_groups("no groups")
    exchange.describe("no group", "g", "other", "")


def members_come_and_go(exchange: Exchange) -> None:
    beat, describe = exchange.beat, exchange.describe
    beat("first")
    beat("first again")
    beat("nothing new", epoch=2)
    beat("later epoch", epoch=3)
    beat("earlier epoch", epoch=1)
    exchange.list_groups("by type", types_filter=["consumer"])
    exchange.list_groups("by another type", types_filter=["Classic"])
    exchange.list_groups("by state", states_filter=["Stable"])
    exchange.list_groups("version 4", version=4)
    beat("second", member="m2")
    describe("assigning", "g")
    time.sleep(INTERVAL_S)
    beat("second waits", member="m2", epoch=2)
    beat("first must revoke", epoch=2)
    describe("reconciling", "g")
    beat("second still waits", member="m2", epoch=3)
    beat("first has not revoked", epoch=2, owned={"orders": [0, 1, 2]})
    beat("first has revoked", epoch=2, owned={"orders": [0, 1]})
    beat("last epoch", epoch=2, owned={"orders": [0, 1]})
    beat("last epoch, too many partitions", epoch=2, owned={"orders": [0, 1, 2]})
    beat("last epoch, no partitions", epoch=2)
    beat("second gets", member="m2", epoch=3)
    describe("stable", "g")


def offsets(exchange: Exchange) -> None:
    commit, fetch = exchange.commit, exchange.fetch
    commit("present epoch", "m1", 3)
    commit("older epoch, own partition", "m1", 2)
    commit("older epoch, partition of another", "m1", 2, index=2)
    commit("older epoch, unassigned topic", "m1", 2, topic="pay")
    commit("older than the assignment", "m2", 2, index=2)
    commit("later epoch", "m1", 4)
    commit("unknown member", "mx", 3)
    commit("no member", "", -1)
    commit("negative epoch", "m1", -1)
    commit("version 8", "m1", 3, version=8)
    commit("version 10", "m1", 3, version=10)
    commit("version 10, older epoch", "m1", 2, version=10)
    fetch("of the member", "m1", 3)
    fetch("without member", None, -1)
    fetch("stale", "m1", 2)
    fetch("of an unknown member", "mx", 3)
    fetch("of an empty member id", "", -1)
    fetch("version 8", None, -1, version=8)


def subscriptions(exchange: Exchange) -> None:
    beat = exchange.beat
    beat("another topic", epoch=3, subscribed_topic_names=["pay"], owned={"orders": [0, 1]})
    exchange.describe("changed", "g")
    time.sleep(INTERVAL_S)
    beat("revoked", epoch=3, owned={})
    beat("after", epoch=4, owned={})
    exchange.describe("after", "g")
    beat("third", member="m3")
    beat("full", member="m4")
    beat("full, later epoch", member="m4", epoch=5)
    beat("full, static", member="s1", instance_id="i1")
    struct = exchange.client.struct
    part = struct(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=0)
    topics = [struct(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", name=name, partitions=[part]) for name in TOPICS]
    answer = exchange.client.ask(apis.OFFSET_DELETE, 0, group_id="g", topics=topics)
    codes = sorted((topic.name, topic.partitions[0].error_code) for topic in answer.topics)
    exchange.note("delete offsets", answer.error_code, codes)
    answer = exchange.client.ask(apis.DELETE_GROUPS, 2, groups_names=["g", "other", ""])
    exchange.note("delete", sorted((one.group_id, one.error_code) for one in answer.results))
    beat("unknown leaves", member="mx", epoch=-1)
    beat("third leaves", member="m3", epoch=-1)
    beat("first leaves", epoch=-1)
    beat("first is gone", epoch=4)


def static_members(exchange: Exchange) -> None:
    def beat(label: str, member: str = "s1", epoch: int = 0, instance_id: str | None = "i1") -> None:
        exchange.beat(label, member, epoch, group_id="static", instance_id=instance_id)

    beat("joins")
    beat("instance in use", member="s2")
    beat("joins again", member="s1")
    beat("another member", member="s2", epoch=2)
    beat("another instance", epoch=2, instance_id="i2")
    beat("another leaves for a time", member="s2", epoch=-2)
    beat("unknown leaves for a time", epoch=-2, instance_id="i9")
    beat("leaves for a time", epoch=-2)
    exchange.describe("left for a time", "static")
    beat("heartbeat after leaving", epoch=2)
    beat("successor", member="s3")
    exchange.describe("successor", "static")
    beat("predecessor", epoch=2)
    beat("successor continues", member="s3", epoch=2)
    beat("without instance", member="s3", epoch=2, instance_id=None)
    beat("leaves", member="s3", epoch=-1)
    exchange.describe("empty", "static")


def other_protocols(exchange: Exchange) -> None:
    client, group = exchange.client, {"group_id": "classic"}
    exchange.beat("consumer group", group_id="classic")
    for version in (5, 6):
        (found,) = client.ask(apis.DESCRIBE_GROUPS, version, groups=["classic"]).groups
        exchange.note("describe as classic", found.error_code, found.group_state, found.protocol_type, found.error_message)
    answer = client.ask(apis.HEARTBEAT, 4, **group, generation_id=2, member_id="m1")
    exchange.note("classic heartbeat", answer.error_code)
    fields = {"generation_id": 2, "member_id": "m1", "protocol_type": "consumer", "protocol_name": "range"}
    exchange.note("classic sync", client.ask(apis.SYNC_GROUP, 5, **group, **fields).error_code)
    members = [client.struct(apis.LEAVE_GROUP, "MemberIdentity", member_id=name) for name in ("m1", "m9")]
    answer = client.ask(apis.LEAVE_GROUP, 5, **group, members=members)
    exchange.note("classic leave", answer.error_code, [one.error_code for one in answer.members])
    exchange.describe("removed", "classic")
    protocol = client.struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "", "protocol_type": "consumer"}
    answer = client.ask(apis.JOIN_GROUP, 9, **group, **fields, protocols=[protocol])
    exchange.note("classic join of an empty consumer group", answer.error_code)
    time.sleep(INTERVAL_S)  # Kafka answers before the record is committed, and lists what is committed
    exchange.list_groups("after the change")
    exchange.beat("range", group_id="range", server_assignor="range", subscribed_topic_names=["orders", "pay", "none"])
    exchange.describe("range", "range")
    exchange.beat("empty subscription", group_id="empty", subscribed_topic_names=[])
    exchange.describe("empty subscription", "empty")


PARTS = (invalid_heartbeats, members_come_and_go, offsets, subscriptions, static_members, other_protocols)


def test_answers(each_kafka: Peer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The whole exchange, in one group of each kind after the other; Kafka 4.4.0 is compared with kcli with its features."""
    homes = tmp_path_factory.mktemp("consumer-groups")
    (homes / "kafka").mkdir()
    with new_broker(each_kafka, homes / "kafka", *SETTINGS) as theirs, running_kcli(homes / "kcli", *SETTINGS) as ours:
        if each_kafka.version == "4.4.0":
            raise_features(ours)
        mine, kafkas = Exchange(RawClient(ours)), Exchange(RawClient(theirs))
        for part in PARTS:
            for exchange in (mine, kafkas):
                part(exchange)
            assert [label for label, _ in mine.answers] == [label for label, _ in kafkas.answers]
            differing = [(own, other) for own, other in zip(mine.answers, kafkas.answers) if own != other]
            assert not differing, part.__name__
        mine.client.close()
        kafkas.client.close()
