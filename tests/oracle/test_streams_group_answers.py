"""Protects the answers to streams groups' requests against Apache Kafka's own, and the records that both write.

One exchange with both has right and wrong requests: in version 0 with Kafka 4.3.1, in version 1 with Kafka 4.4.0.

Left out of the comparison: the order of groups, members, subtopologies and tasks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import raise_features
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import ANSWER_SECONDS, BUSY, RawClient, plain, running_kcli, until, wait_for_metadata
from tests.oracle.reading import offline_records

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "group.streams.max.size=3",
    "group.streams.initial.rebalance.delay.ms=0",
    "group.streams.assignment.interval.ms=0",
)
TOPICS = {"in": 3, "wide": 5}
BEAT, DESCRIBE = apis.STREAMS_GROUP_HEARTBEAT, apis.STREAMS_GROUP_DESCRIBE


def subtopology(name: str, sources: list[str], **fields: Any) -> Message:
    """A subtopology; `stores` and `repartition` are names of topics, or topics."""
    made = {
        field: [
            topic if isinstance(topic, Message) else RawClient.struct(BEAT, "TopicInfo", name=topic)
            for topic in fields.pop(name_of, ())
        ]
        for field, name_of in (("state_changelog_topics", "stores"), ("repartition_source_topics", "repartition"))
    }
    return RawClient.struct(BEAT, "Subtopology", subtopology_id=name, source_topics=sources, **made, **fields)


def topic_info(name: str, **fields: Any) -> Message:
    configs = [RawClient.struct(BEAT, "KeyValue", key=key, value=value) for key, value in fields.pop("configs", {}).items()]
    return RawClient.struct(BEAT, "TopicInfo", name=name, topic_configs=configs, **fields)


def copartition(**fields: list[int]) -> list[Message]:
    return [RawClient.struct(BEAT, "CopartitionGroup", **fields)]


def topology(*parts: Message, epoch: int = 0) -> Message:
    return RawClient.struct(BEAT, "Topology", epoch=epoch, subtopologies=list(parts))


SIMPLE = topology(subtopology("0", ["in"]))


class Exchange:
    """The exchange with one broker; `answers` has a label and plain values for each request."""

    def __init__(self, client: RawClient, version: int) -> None:
        self.client = client
        self.version = version
        self.answers: list[tuple[str, Any]] = []
        for group_id in ("g", "topics", "classic", "delayed", "loop", "streams", "endpoints", "static", "tagged", "described"):
            key = {"key_type": 0, "coordinator_keys": [group_id]}
            until(lambda key=key: not client.ask(apis.FIND_COORDINATOR, 4, **key).coordinators[0].error_code)
        self.create(TOPICS)

    def create(self, topics: dict[str, int]) -> None:
        struct, key = self.client.struct, apis.CREATE_TOPICS
        made = [struct(key, "CreatableTopic", name=name, num_partitions=n, replication_factor=1) for name, n in topics.items()]
        self.client.ask(key, 7, topics=made, timeout_ms=10_000)
        until(lambda: all(self.partitions(name) for name in topics))
        until(lambda: self.assigned_to_a_consumer(list(topics)) == sum(topics.values()))

    def assigned_to_a_consumer(self, topics: list[str]) -> int:
        """How many partitions the member of another group gets: Kafka's group coordinator hears of topics after the others."""
        key, group = apis.CONSUMER_GROUP_HEARTBEAT, {"group_id": "counting", "member_id": "counts"}
        fields = {"subscribed_topic_names": topics, "topic_partitions": [], "rebalance_timeout_ms": 60_000}
        answer = self.client.ask(key, 1, member_epoch=0, **group, **fields)
        if answer.error_code:
            assert answer.error_code in BUSY, answer
            return 0
        self.client.ask(key, 1, member_epoch=-1, **group)
        (deleted,) = self.client.ask(apis.DELETE_GROUPS, 2, groups_names=["counting"]).results
        assert not deleted.error_code, deleted
        return sum(len(one.partitions) for one in answer.assignment.topic_partitions) if answer.assignment else 0

    def partitions(self, name: str) -> int:
        """How many partitions a topic has, 0 without it."""
        wanted = [self.client.struct(apis.METADATA, "MetadataRequestTopic", name=name)]
        (topic,) = self.client.ask(apis.METADATA, 12, topics=wanted, allow_auto_topic_creation=False).topics
        return len(topic.partitions)

    def note(self, label: str, *values: Any) -> None:
        self.answers.append((label, values))

    def ask_beat(self, member: str = "m1", epoch: int = 0, **fields: Any) -> Message:
        """Send a heartbeat; one that joins has a process of its own."""
        struct = self.client.struct
        request: dict[str, Any] = {"group_id": "g", "endpoint_information_epoch": 0}
        if epoch == 0:
            request |= {"topology": SIMPLE, "rebalance_timeout_ms": 60_000, "process_id": f"of-{member}", "owned": {}}
        request |= {"member_id": member, "member_epoch": epoch} | fields
        owned = request.pop("owned", None)
        if owned is not None:
            for role in ("active", "standby", "warmup"):
                tasks = owned.get(role, {}).items()
                made = [struct(BEAT, "TaskIds", subtopology_id=key, partitions=found) for key, found in tasks]
                request.setdefault(f"{role}_tasks", made)
        if isinstance(request.get("user_endpoint"), tuple):
            host, port = request["user_endpoint"]
            request["user_endpoint"] = struct(BEAT, "Endpoint", host=host, port=port)

        def is_answered() -> Message | None:
            answer = self.client.ask(BEAT, self.version, **request)
            return None if answer.error_code in BUSY else answer

        return until(is_answered)

    def beat(self, label: str, member: str = "m1", epoch: int = 0, **fields: Any) -> None:
        self.note(label, plain(self.ask_beat(member, epoch, **fields)))

    def beat_until_ready(self, label: str, member: str = "m1", epoch: int = 0, **fields: Any) -> int:
        """Send heartbeats until no internal topic is missing; return the epoch, which depends on how many they were."""
        active, statuses = None, None
        end = time.monotonic() + ANSWER_SECONDS
        while statuses != []:
            answer = self.ask_beat(member, epoch, **fields)
            assert not answer.error_code and time.monotonic() < end
            epoch, statuses = answer.member_epoch, plain(answer.status)
            active = active if answer.active_tasks is None else plain(answer.active_tasks)
            time.sleep(0.05)
        self.note(label, active)
        return epoch

    def describe(self, label: str, *group_ids: str) -> None:
        fields = {"group_ids": list(group_ids), "include_authorized_operations": True}
        self.note(label, plain(self.client.ask(DESCRIBE, self.version, **fields)))

    def list_groups(self, label: str, **fields: Any) -> None:
        self.note(label, plain(self.client.ask(apis.LIST_GROUPS, 5, **fields)))

    def commit(self, label: str, member: str, epoch: int, index: int = 0, topic: str = "in", version: int = 9) -> None:
        struct, key = self.client.struct, apis.OFFSET_COMMIT
        partition = struct(key, "OffsetCommitRequestPartition", partition_index=index, committed_offset=5)
        found = struct(key, "OffsetCommitRequestTopic", name=topic, partitions=[partition])
        fields = {"group_id": "g", "member_id": member, "generation_id_or_member_epoch": epoch, "topics": [found]}
        self.note(label, self.client.ask(key, version, **fields).topics[0].partitions[0].error_code)

    def fetch(self, label: str, member: str | None, epoch: int, version: int = 9) -> None:
        wanted = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": None}
        group = self.client.struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", **wanted)
        self.note(label, plain(self.client.ask(apis.OFFSET_FETCH, version, groups=[group])))


def wait_for_group_configs(client: RawClient) -> None:
    """Wait until the coordinator has a change of configs: it gets it some milliseconds after the broker's metadata."""
    wait_for_metadata(client)
    time.sleep(0.5)  # nothing that can be asked has a sign of it


def invalid_heartbeats(exchange: Exchange) -> None:
    beat, struct = exchange.beat, exchange.client.struct
    tasks = [struct(BEAT, "TaskIds", subtopology_id="0", partitions=[0])]
    beat("no member id", member="")
    beat("blank member id", member=" ")
    beat("no group", group_id="")
    beat("empty rack", rack_id="")
    beat("no rebalance timeout", rebalance_timeout_ms=-1)
    for role in ("active", "standby"):
        beat(f"{role} tasks of a new member", **{f"{role}_tasks": tasks})
        beat(f"no {role} tasks", **{f"{role}_tasks": None})
    beat("no topology", topology=None)
    beat("topology of a later epoch", epoch=2, topology=SIMPLE)
    beat("tasks of one role", epoch=2, active_tasks=[])
    beat("epoch -3", epoch=-3)
    beat("-2 without instance", epoch=-2)
    beat("-1 of no group", epoch=-1)
    beat("epoch of no group", epoch=3)
    beat("a pattern", topology=topology(subtopology("0", ["in"], source_topic_regex=["a.*"])))
    beat("Kafka's topic", topology=topology(subtopology("0", ["in", "__consumer_offsets", "__transaction_state"])))
    beat("impossible topics", topology=topology(subtopology("0", ["a b"], repartition_sink_topics=["."], stores=["x" * 250])))
    beat("changelog with partitions", topology=topology(subtopology("0", ["in"], stores=[topic_info("c", partitions=3)])))
    beat("negative topology epoch", topology=topology(subtopology("0", ["in"]), epoch=-1))
    beat("no subtopologies", topology=topology())
    beat("no sources", group_id="loop", topology=topology(subtopology("0", [])))
    beat("loop", group_id="loop", topology=topology(subtopology("0", [], repartition=["r"], repartition_sink_topics=["r"])))
    beat("no writer", group_id="loop", topology=topology(subtopology("0", [], repartition=["r"])))
    exchange.describe("no group", "other", "")


def unsupported(exchange: Exchange) -> None:
    """What Kafka 4.3 refuses, whatever else is wrong."""
    beat, struct = exchange.beat, exchange.client.struct
    tasks = [struct(BEAT, "TaskIds", subtopology_id="0", partitions=[0])]
    offsets = [struct(BEAT, "TaskOffset", subtopology_id="0", partition=0, offset=1)]
    beat("an instance", instance_id="i")
    beat("empty instance", instance_id="")
    beat("warmup tasks", epoch=2, warmup_tasks=tasks)
    beat("offsets", task_offsets=offsets)
    beat("no offsets", task_offsets=[])
    beat("end offsets", task_end_offsets=offsets)
    beat("-2 with instance", epoch=-2, instance_id="i")


def members_come_and_go(exchange: Exchange) -> None:
    beat, describe = exchange.beat, exchange.describe
    beat("leaves the group of no subtopologies", epoch=-1)
    exchange.client.ask(apis.DELETE_GROUPS, 2, groups_names=["g"])
    tags = [exchange.client.struct(BEAT, "KeyValue", key=key, value="v") for key in ("zone", "cluster")]
    beat("first", rack_id="r1", client_tags=tags)
    beat("first again")
    beat("nothing new", epoch=2)
    beat("later epoch", epoch=4)
    beat("earlier epoch", epoch=1)
    describe("one member", "g")
    exchange.list_groups("by type", types_filter=["streams"])
    exchange.list_groups("by another type", types_filter=["consumer"])
    exchange.list_groups("by state", states_filter=["stable"])
    beat("second", member="m2")
    beat("unknown", member="m9", epoch=3)
    beat("second waits", member="m2", epoch=3)
    beat("first must revoke", epoch=2)
    describe("reconciling", "g")
    beat("first has not revoked", epoch=2, owned={"active": {"0": [0, 1, 2]}})
    beat("unknown subtopology", epoch=2, owned={"active": {"7": [0]}})
    beat("unknown task", epoch=2, owned={"active": {"0": [9]}})
    beat("negative task", epoch=2, owned={"standby": {"0": [-1]}})
    beat("first has revoked", epoch=2, owned={"active": {"0": [0, 1]}})
    beat("last epoch", epoch=2, owned={"active": {"0": [0, 1]}})
    beat("last epoch, too many tasks", epoch=2, owned={"active": {"0": [0, 1, 2]}})
    beat("last epoch, tasks of another role", epoch=2, owned={"standby": {"0": [0]}})
    beat("last epoch, no tasks", epoch=2)
    beat("second gets", member="m2", epoch=3)
    describe("stable", "g")
    beat("another topology", member="m3", topology=topology(subtopology("0", ["wide"])))
    beat("a later topology", member="m3", topology=topology(subtopology("0", ["in"]), epoch=1))


def offsets(exchange: Exchange) -> None:
    commit, fetch = exchange.commit, exchange.fetch
    commit("present epoch", "m1", 3)
    commit("present epoch, another topic", "m1", 3, topic="wide")
    commit("older epoch, own task", "m1", 2)
    commit("older epoch, task of another", "m1", 2, index=2)
    commit("older epoch, another topic", "m1", 2, topic="wide")
    commit("older than the assignment", "m2", 2, index=2)
    commit("later epoch", "m1", 4)
    commit("unknown member", "mx", 3)
    commit("no member", "", -1)
    commit("negative epoch", "m1", -1)
    commit("version 8", "m1", 3, version=8)
    fetch("of the member", "m1", 3)
    fetch("without member", None, -1)
    fetch("stale", "m1", 2)
    fetch("of an unknown member", "mx", 3)
    fetch("of an empty member id", "", -1)
    fetch("version 8", None, -1, version=8)
    struct = exchange.client.struct
    part = struct(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=0)
    topics = [struct(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", name=name, partitions=[part]) for name in TOPICS]
    exchange.note("delete offsets", plain(exchange.client.ask(apis.OFFSET_DELETE, 0, group_id="g", topics=topics)))


def full_and_other_protocols(exchange: Exchange) -> None:
    beat, client = exchange.beat, exchange.client
    beat("third", member="m3")
    beat("full", member="m4")
    if exchange.version:  # Kafka 4.3 refuses it
        beat("full, known member", member="m3")
    beat("consumer heartbeat", epoch=3, shutdown_application=True)
    beat("second hears", member="m2", epoch=3)
    for key, fields in (
        (apis.CONSUMER_GROUP_HEARTBEAT, {"member_id": "c", "subscribed_topic_names": ["in"], "topic_partitions": []}),
        (apis.CONSUMER_GROUP_HEARTBEAT, {"member_id": "c", "member_epoch": 1}),
    ):
        request = {"group_id": "g", "member_epoch": 0, "rebalance_timeout_ms": 1_000} | fields
        exchange.note("consumer member", plain(client.ask(key, 1, **request)))
    (found,) = client.ask(apis.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    exchange.note("described as classic", found.error_code, found.group_state, found.error_message)
    (found,) = client.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
    exchange.note("described as consumer", found.error_code, found.error_message)
    leaving = [client.struct(apis.LEAVE_GROUP, "MemberIdentity", member_id="m1")]
    exchange.note("classic leave", plain(client.ask(apis.LEAVE_GROUP, 5, group_id="g", members=leaving)))
    exchange.note("classic heartbeat", client.ask(apis.HEARTBEAT, 4, group_id="g", generation_id=3, member_id="m1").error_code)
    protocol = client.struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    join = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "", "protocol_type": "consumer"}
    exchange.note("classic join", client.ask(apis.JOIN_GROUP, 9, group_id="g", protocols=[protocol], **join).error_code)
    deleted = client.ask(apis.DELETE_GROUPS, 2, groups_names=["g"])
    exchange.note("delete", plain(deleted))
    for member in ("m1", "m2", "m3"):
        beat("leaves", member=member, epoch=-1)
    if exchange.version:  # in Kafka 4.3 the target keeps its epoch
        exchange.describe("empty", "g")
    exchange.commit("of the empty group", "", -1)
    answer = client.ask(apis.JOIN_GROUP, 9, group_id="g", protocols=[protocol], **join)
    exchange.note("classic join of the empty group", answer.error_code)
    time.sleep(0.5)  # Kafka answers before the record is committed, and describes what is committed
    exchange.describe("classic now", "g")
    exchange.note("delete", plain(client.ask(apis.DELETE_GROUPS, 2, groups_names=["g"])))
    beat("of no group", epoch=3)


def topics(exchange: Exchange) -> None:
    def beat(label: str, member: str, epoch: int = 0, **fields: Any) -> None:
        exchange.beat(label, member, epoch, group_id="topics", **fields)

    parts = (
        subtopology("0", ["in", "later"], repartition_sink_topics=["t-r"]),
        subtopology(
            "1",
            ["in"],
            repartition=[topic_info("t-r", configs={"cleanup.policy": "delete", "retention.ms": "-1"})],
            stores=[topic_info("t-c", configs={"cleanup.policy": "compact"})],
            copartition_groups=copartition(source_topics=[0], repartition_source_topics=[0]),
        ),
    )
    given = topology(*parts)
    beat("source is missing", "m1", topology=given)
    exchange.describe("not ready", "topics")
    exchange.create({"later": 7})
    epoch = exchange.beat_until_ready("internal topics are made", "m1", 2, group_id="topics")
    exchange.note("partitions", exchange.partitions("t-r"), exchange.partitions("t-c"))
    wanted = [
        exchange.client.struct(apis.DESCRIBE_CONFIGS, "DescribeConfigsResource", resource_type=2, resource_name=name)
        for name in ("t-r", "t-c")
    ]
    answer = exchange.client.ask(apis.DESCRIBE_CONFIGS, 4, resources=wanted)
    own = {(one.resource_name, two.name, two.value) for one in answer.results for two in one.configs if two.config_source == 1}
    exchange.note("configs", sorted(own))
    state = exchange.ask_beat("m1", epoch, group_id="topics", owned={})
    exchange.note("after", state.error_code, len(state.status))
    exchange.create({"x-c": 2})
    exchange.beat("other number", group_id="streams", topology=topology(subtopology("0", ["in"], stores=["x-c"])))
    both = topology(subtopology("0", ["in", "wide"], copartition_groups=copartition(source_topics=[0, 1])))
    exchange.ask_beat("m1", -1, group_id="streams")
    exchange.client.ask(apis.DELETE_GROUPS, 2, groups_names=["streams"])
    exchange.beat("copartitioned sources", group_id="streams", topology=both)
    exchange.ask_beat("m1", -1, group_id="streams")
    exchange.client.ask(apis.DELETE_GROUPS, 2, groups_names=["streams"])
    fixed = topology(
        subtopology("0", ["in"], repartition_sink_topics=["f-r"]),
        subtopology(
            "1",
            ["in"],
            repartition=[topic_info("f-r", partitions=2)],
            copartition_groups=copartition(source_topics=[0], repartition_source_topics=[0]),
        ),
    )
    exchange.beat("fixed repartition topic", group_id="streams", topology=fixed)
    wrong = topology(subtopology("0", ["in"], copartition_groups=copartition(source_topics=[5])))
    answer = exchange.ask_beat("m1", group_id="loop", topology=wrong)
    exchange.note("copartition index", answer.error_code)


def endpoints(exchange: Exchange) -> None:
    def beat(label: str, member: str, epoch: int = 0, **fields: Any) -> None:
        exchange.beat(label, member, epoch, group_id="endpoints", **fields)

    until(
        lambda: (
            not exchange.client.ask(apis.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["endpoints"])
            .coordinators[0]
            .error_code
        )
    )
    beat("missing source", "m1", user_endpoint=("a", 65535), topology=topology(subtopology("0", ["none"])))
    beat("joins", "m1", user_endpoint=("a", 65535))
    beat("knows nothing", "m1", 2, endpoint_information_epoch=-1)
    beat("second", "m2", user_endpoint=("b", 1))
    beat("first revokes", "m1", 2)
    beat("first has revoked", "m1", 2, owned={"active": {"0": [0, 1]}}, endpoint_information_epoch=2)
    beat("second gets", "m2", 3, endpoint_information_epoch=2)
    beat("first knows", "m1", 3, endpoint_information_epoch=3)
    exchange.describe("endpoints", "endpoints")


def settings_of_the_group(exchange: Exchange) -> None:
    def configure(**settings: int) -> None:
        struct, key = exchange.client.struct, apis.INCREMENTAL_ALTER_CONFIGS
        names = {f"streams.{name.replace('_', '.')}": value for name, value in settings.items()}
        configs = [struct(key, "AlterableConfig", name=name, value=str(value)) for name, value in names.items()]
        resource = struct(key, "AlterConfigsResource", resource_type=32, resource_name="delayed", configs=configs)
        exchange.note("configured", plain(exchange.client.ask(key, 1, resources=[resource])))
        wait_for_group_configs(exchange.client)

    def beat(label: str, member: str, epoch: int = 0, **fields: Any) -> None:
        exchange.beat(label, member, epoch, group_id="delayed", **fields)

    def is_assigned() -> bool:
        (group,) = exchange.client.ask(DESCRIBE, exchange.version, group_ids=["delayed"]).groups
        return bool(group.assignment_epoch == group.group_epoch)

    configure(initial_rebalance_delay_ms=3000)
    for member in ("m1", "m2"):
        beat(f"{member} joins", member)
        beat(f"{member} waits", member, 1)
    exchange.describe("delayed", "delayed")
    assert not is_assigned()
    until(is_assigned)
    exchange.describe("assigned", "delayed")
    for member in ("m1", "m2"):
        beat(f"{member} gets", member, 1)
    configure(num_standby_replicas=1)
    for member in ("m1", "m2"):
        beat(f"{member} with standby tasks", member, 2)
    configure(assignment_interval_ms=15_000)
    beat("third", "m3")
    beat("first waits", "m1", 3)
    exchange.describe("early", "delayed")


def static_members(exchange: Exchange) -> None:
    """Members with an instance id, and the offsets of their tasks.

    All come back with another process, which begins a group epoch. Otherwise Kafka 4.4.0 gives them no tasks until the next
    one, and kcli gives them those that they had.
    """

    def beat(label: str, member: str, epoch: int = 0, instance: str | None = "i", **fields: Any) -> None:
        exchange.beat(label, member, epoch, group_id="static", instance_id=instance, **fields)

    def describe(label: str) -> None:
        exchange.describe(label, "static")

    offsets = [exchange.client.struct(BEAT, "TaskOffset", subtopology_id="0", partition=0, offset=1)]
    beat("empty instance", "m1", instance="")
    beat("unknown group", "m1", -2)
    beat("joins", "m1", task_offsets=offsets)
    describe("joined")
    beat("without instance", "m1", 2, None)
    beat("another instance", "m1", 2, "j")
    beat("the instance of another", "m2", 2)
    beat("offsets", "m1", 2, task_offsets=offsets)
    beat("end offsets", "m1", 2, task_end_offsets=offsets)
    describe("offsets")
    beat("no offsets", "m1", 2, task_offsets=[])
    describe("no offsets")
    beat("another one joins", "m2")
    beat("joins again", "m1")
    beat("joins again without instance", "m1", instance=None)
    beat("second", "m5", instance="n")
    beat("another one leaves for a time", "m2", -2)
    beat("leaves for a time, another instance", "m1", -2, "z")
    beat("revokes", "m1", 2, owned={"active": {"0": [0, 1]}})
    beat("second gets", "m5", 3, "n")
    beat("leaves for a time", "m1", -2)
    describe("has left for a time")
    beat("was away", "m1", 3)
    beat("leaves again", "m1", -2)
    beat("comes back with another process", "m3")
    describe("has come back")
    beat("the old id", "m1", 3)
    beat("the old id leaves", "m1", -1)
    beat("leaves for a time again", "m3", -2)
    beat("comes back under the same id", "m3", process_id="another")
    beat("leaves for a time again", "m3", -2)
    beat("comes back under another id", "m4")
    beat("offsets", "m4", 6, task_offsets=offsets)
    beat("second shuts down", "m5", 3, "n", shutdown_application=True)
    beat("third", "m6", instance="o")
    beat("second leaves while it has to revoke", "m5", -2, "n")
    describe("second has left")
    beat("the group is full", "m8", instance="p")
    beat("second comes back", "m7", instance="n")
    describe("second has come back")
    beat("second leaves", "m7", -1, "n")
    beat("leaves without instance", "m4", -1, None)
    beat("leaves once more", "m4", -1)
    beat("third leaves", "m6", -1, "o")
    describe("empty")


def rack_tags(exchange: Exchange) -> None:
    """Client tags that a group requires, the assignor of a group, and endpoints of members that join again."""

    def configure(**settings: str) -> None:
        struct, key = exchange.client.struct, apis.INCREMENTAL_ALTER_CONFIGS
        names = {f"streams.{name.replace('_', '.')}": value for name, value in settings.items()}
        configs = [struct(key, "AlterableConfig", name=name, value=value) for name, value in names.items()]
        resource = struct(key, "AlterConfigsResource", resource_type=32, resource_name="tagged", configs=configs)
        (answer,) = exchange.client.ask(key, 1, resources=[resource]).responses
        exchange.note("configured", answer.error_code)
        wait_for_group_configs(exchange.client)

    def beat(label: str, member: str, epoch: int = 0, **fields: Any) -> None:
        exchange.beat(label, member, epoch, group_id="tagged", **fields)

    def tags(*keys: str) -> list[Message]:
        return [exchange.client.struct(BEAT, "KeyValue", key=key, value="v") for key in keys]

    for wrong in ({"assignor_name": "other"}, {"rack_aware_assignment_tags": "zone,rack,zone"}):
        configure(**wrong)
    configure(assignor_name="sticky")
    beat("no tags are required", "m1", user_endpoint=("a", 1))
    configure(rack_aware_assignment_tags="zone, rack", num_standby_replicas="1")
    beat("has none", "m1", 2)
    beat("has one", "m2", client_tags=tags("rack", "other"), user_endpoint=("b", 1))
    beat("has both", "m2", client_tags=tags("rack", "zone"), user_endpoint=("b", 1))
    exchange.describe("tagged", "tagged")
    beat("joins again with its endpoint", "m2", client_tags=tags("rack", "zone"), user_endpoint=("b", 1))
    beat("has another endpoint", "m2", client_tags=tags("rack", "zone"), user_endpoint=("c", 1))
    offset = exchange.client.struct(BEAT, "TaskOffset", subtopology_id="0", partition=0, offset=1)
    beat("an offset twice", "m1", 3, task_offsets=[offset, offset])
    beat("an end offset twice", "m1", 3, task_end_offsets=[offset, offset])
    configure(rack_aware_assignment_tags="")
    beat("none is required again", "m1", 3)


def topology_descriptions(exchange: Exchange) -> None:
    """No plugin is configured: nothing is requested or stored."""
    struct, key = exchange.client.struct, apis.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    for group_id in ("described", ""):
        description = struct(key, "TopologyDescription")
        fields = {"group_id": group_id, "member_id": "m1", "topology_epoch": 0, "topology_description": description}
        exchange.note("update", plain(exchange.client.ask(key, 0, **fields)))
    exchange.beat("joins", "m1", group_id="described")
    for group_id in ("described", "none"):
        fields = {"group_ids": [group_id], "include_topology_description": True}
        exchange.note("describe", plain(exchange.client.ask(DESCRIBE, 1, **fields)))


PARTS = (
    invalid_heartbeats,
    members_come_and_go,
    offsets,
    full_and_other_protocols,
    topics,
    endpoints,
    settings_of_the_group,
)
PARTS_OF_VERSION = ((unsupported,), (static_members, rack_tags, topology_descriptions))
COMPARED_RECORDS = ("g", "endpoints", "delayed", "static", "tagged")  # of `topics` there are as many as there were heartbeats


def records(data: Path, version: int) -> dict[str, list[Any]]:
    """The records of streams groups in a log directory, by group: without times, and hashes, which have ids of topics.

    In version 0 also without the epochs of targets: Kafka 4.3 writes none for a group that is now empty.
    """
    found: dict[str, list[Any]] = {group_id: [] for group_id in COMPARED_RECORDS}
    for directory in sorted(data.glob("__consumer_offsets-*")):
        for record in offline_records(directory):
            key, value = OFFSETS.decode(record.key or b"", record.value)
            if key is None or (not version and key.STRUCT.name == "StreamsGroupTargetAssignmentMetadataKey"):
                continue
            if key.STRUCT.name.startswith("StreamsGroup") and key.group_id in found:
                shown = plain(value, frozenset(("assignment_timestamp", "metadata_hash")))
                found[key.group_id].append((key.STRUCT.name, plain(key), shown))
    return found


def test_answers(each_kafka: Peer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The whole exchange, in one group of each kind after the other."""
    homes = tmp_path_factory.mktemp("streams-groups")
    (homes / "kafka").mkdir()
    with new_broker(each_kafka, homes / "kafka", *SETTINGS) as theirs, running_kcli(homes / "kcli", *SETTINGS) as ours:
        version = int(each_kafka.version == "4.4.0")
        if version:
            raise_features(ours)
        mine, kafkas = (Exchange(RawClient(address), version) for address in (ours, theirs))
        for part in (*PARTS, *PARTS_OF_VERSION[version]):
            for exchange in (mine, kafkas):
                exchange.answers.clear()
                part(exchange)
            assert [label for label, _ in mine.answers] == [label for label, _ in kafkas.answers]
            differing = [(own, other) for own, other in zip(mine.answers, kafkas.answers) if own != other]
            assert not differing, part.__name__
        mine.client.close()
        kafkas.client.close()
    own, other = records(homes / "kcli" / "data", version), records(homes / "kafka" / "data", version)
    for group_id in COMPARED_RECORDS[: 3 + 2 * version]:
        assert len(own[group_id]) > 10
        assert own[group_id] == other[group_id]
