"""Exchanges about groups whose members use both protocols (KIP-848): upgrades, downgrades, and what is refused.

Each exchange is a function of `Exchange`, with a group of its own. Its answers are plain values with the names of members in
place of their ids, and it ends with the records of the group in __consumer_offsets, in the order of their offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import HEADER_BYTES, read_header
from kcli.format.records import read_records
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from tests.oracle.raw_requests import BUSY, until

SETTINGS = (
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=1",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.max.size=3",
    "auto.create.topics.enable=false",
)
TOPICS = {"orders": 6, "pay": 2}
Answers = list[Any]


class Asker(Protocol):
    """A broker: `ask` returns an answer, `later` a function that waits for it, `pause` lets a little time pass."""

    def ask(self, key: int, version: int, /, **fields: Any) -> Message: ...

    def later(self, key: int, version: int, /, **fields: Any) -> Callable[[], Message]: ...

    def pause(self) -> None: ...


class Joined(NamedTuple):
    """What a member of the classic protocol knows: its id, the generation, and the topics and partitions that it has."""

    member_id: str
    generation: int
    topics: Sequence[str] = ("orders",)
    instance_id: str | None = None


def struct(key: int, name: str, /, **fields: Any) -> Message:
    return API_KEYS[key].request.classes[name](**fields)


def subscription(topics: Sequence[str], owned: dict[str, list[int]], version: int = 3, **fields: Any) -> bytes:
    """The metadata of a consumer's protocol."""
    kind = message_type("control_records", "ConsumerProtocolSubscription")
    parts = [kind.classes["TopicPartition"](topic=name, partitions=found) for name, found in owned.items()]
    return version.to_bytes(2, "big") + kind.encode(kind.new(topics=list(topics), owned_partitions=parts, **fields), version)


def assignment(assigned: dict[str, list[int]], user_data: bytes | None = None, version: int = 3) -> bytes:
    kind = message_type("control_records", "ConsumerProtocolAssignment")
    parts = [kind.classes["TopicPartition"](topic=name, partitions=found) for name, found in assigned.items()]
    return version.to_bytes(2, "big") + kind.encode(kind.new(assigned_partitions=parts, user_data=user_data), version)


def prepare(asker: Asker) -> dict[str, bytes]:
    """Make the topics and the coordinator's; return the ids of topics."""
    topics = [
        struct(apis.CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=count, replication_factor=1)
        for name, count in TOPICS.items()
    ]
    asker.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout_ms=10_000)
    while asker.ask(apis.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]).coordinators[0].error_code:
        asker.pause()
    while asker.ask(apis.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m").error_code in (0, *BUSY):
        asker.pause()
    wanted = [struct(apis.METADATA, "MetadataRequestTopic", name=name) for name in (*TOPICS, "__consumer_offsets")]
    found = asker.ask(apis.METADATA, 12, topics=wanted).topics
    while any(topic.error_code for topic in found):  # the controller answers before the broker knows of them
        asker.pause()
        found = asker.ask(apis.METADATA, 12, topics=wanted).topics
    return {topic.name: topic.topic_id for topic in found}


class Exchange:
    """One exchange with one broker."""

    def __init__(self, asker: Asker, ids: dict[str, bytes], group_id: str) -> None:
        self.asker = asker
        self.ids = ids
        self.group_id = group_id
        self.answers: Answers = []
        self.topics = {bytes(topic_id): name for name, topic_id in ids.items()}
        self.members: dict[str, str] = {"": ""}
        self.counts_only = False

    def note(self, label: str, *values: Any) -> None:
        self.answers.append([label, *values])

    def name(self, member_id: str) -> str:
        """The name of a member, by the order in which their ids are seen."""
        return self.members.setdefault(member_id, f"member-{len(self.members)}")

    # ------------------------------------------------------------------------------------------------ classic protocol

    def join_fields(self, member: str, topics: Sequence[str], **fields: Any) -> dict[str, Any]:
        owned = fields.pop("owned", {})
        metadata = fields.pop("metadata", None) or subscription(topics, owned, fields.pop("subscription_version", 3))
        names = fields.pop("names", ("range", "cooperative-sticky"))
        protocols = [struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name=name, metadata=metadata) for name in names]
        return {
            "group_id": self.group_id,
            "member_id": member,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": protocols,
        } | fields

    def _joined(self, label: str, answer: Message, topics: Sequence[str], instance_id: str | None) -> Joined:
        members = sorted(self.name(one.member_id) for one in answer.members)
        self.note(
            *(label, answer.error_code, answer.generation_id, answer.protocol_type, answer.protocol_name),
            *(self.name(answer.leader), answer.skip_assignment, self.name(answer.member_id), members),
        )
        return Joined(answer.member_id, answer.generation_id, topics, instance_id)

    def join(
        self, label: str, member: str = "", topics: Sequence[str] = ("orders",), *, version: int = 9, **fields: Any
    ) -> Joined:
        answer = self.asker.ask(apis.JOIN_GROUP, version, **self.join_fields(member, topics, **fields))
        return self._joined(label, answer, topics, fields.get("group_instance_id"))

    def join_later(self, label: str, member: str = "", **fields: Any) -> Callable[[], Joined]:
        """Join a stable group: the answer comes when the other members have joined, too."""
        wait = self.asker.later(apis.JOIN_GROUP, 9, **self.join_fields(member, ("orders",), **fields))
        until(lambda: self._classic_state() == "PreparingRebalance")  # the join is there
        return lambda: self._joined(label, wait(), ("orders",), fields.get("group_instance_id"))

    def _classic_state(self) -> str:
        (group,) = self.asker.ask(apis.DESCRIBE_GROUPS, 6, groups=[self.group_id]).groups
        return str(group.group_state)

    def join_new(self, label: str, **fields: Any) -> Joined:
        """Join as a client of today does: the first join gets a member id."""
        return self.join(label, self.join(f"{label}: id", **fields).member_id, **fields)

    def sync_fields(self, joined: Joined, assigned: dict[str, bytes], **fields: Any) -> dict[str, Any]:
        parts = [
            struct(apis.SYNC_GROUP, "SyncGroupRequestAssignment", member_id=member, assignment=found)
            for member, found in assigned.items()
        ]
        return {
            "group_id": self.group_id,
            "generation_id": joined.generation,
            "member_id": joined.member_id,
            "group_instance_id": joined.instance_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": parts,
        } | fields

    def sync(self, label: str, joined: Joined, assigned: dict[str, bytes] | None = None, **fields: Any) -> dict[str, list[int]]:
        answer = self.asker.ask(apis.SYNC_GROUP, 5, **self.sync_fields(joined, assigned or {}, **fields))
        found: dict[str, list[int]] = {}
        version = -1
        if len(answer.assignment) > 3:  # else it is malformed
            data = bytes(answer.assignment)
            version = int.from_bytes(data[:2], "big")
            decoded = message_type("control_records", "ConsumerProtocolAssignment").decode(data, min(version, 3), 2)[0]
            found = {part.topic: sorted(part.partitions) for part in decoded.assigned_partitions}
        shown = sorted([name, self.partitions(indexes)] for name, indexes in found.items())
        self.note(label, answer.error_code, answer.protocol_type, answer.protocol_name, version, shown)
        return found

    def sync_later(self, joined: Joined) -> Callable[[], None]:
        wait = self.asker.later(apis.SYNC_GROUP, 5, **self.sync_fields(joined, {}))
        for _ in range(20):  # nothing that can be asked says that the request is there
            self.asker.pause()
        return lambda: self.note("waiting sync", wait().error_code)

    def beat(self, label: str, joined: Joined, **fields: Any) -> int:
        request = {"generation_id": joined.generation, "member_id": joined.member_id, "group_instance_id": joined.instance_id}
        code = self.asker.ask(apis.HEARTBEAT, 4, group_id=self.group_id, **request | fields).error_code
        self.note(label, code)
        return int(code)

    def leave(self, label: str, *members: tuple[str, str | None]) -> None:
        parts = [
            struct(apis.LEAVE_GROUP, "MemberIdentity", member_id=member, group_instance_id=instance)
            for member, instance in members
        ]
        answer = self.asker.ask(apis.LEAVE_GROUP, 5, group_id=self.group_id, members=parts)
        self.note(label, answer.error_code, [[self.name(one.member_id), one.error_code] for one in answer.members])

    def stable(self, assigned: Sequence[dict[str, list[int]]], **fields: Any) -> list[Joined]:
        """A stable classic group with a member for each assignment, the leader first."""
        first = self.join_new("first", **fields)
        found = [first]
        if len(assigned) > 1:
            self.sync("first alone", first, {first.member_id: assignment(assigned[0])})
            second_id = self.join("second: id", **fields).member_id
            waiting = self.join_later("second", second_id, **fields)
            self.beat("first must join", first)
            again = self.join("first again", first.member_id, **fields)
            found = [again, waiting()]
        parts = {member.member_id: assignment(part) for member, part in zip(found, assigned, strict=True)}
        for member in found:
            self.sync("sync", member, parts if member is found[0] else None)
        return found

    # ----------------------------------------------------------------------------------------------- consumer protocol

    def heartbeat(self, label: str, member: str, epoch: int = 0, **fields: Any) -> int:
        """Send a heartbeat; one that joins subscribes to `orders` unless `fields` say otherwise."""
        self.members.setdefault(member, member)
        if epoch == 0:
            fields = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 60_000, "owned": {}} | fields
        owned = fields.pop("owned", None)
        if owned is not None:
            key = apis.CONSUMER_GROUP_HEARTBEAT
            fields["topic_partitions"] = [
                struct(key, "TopicPartitions", topic_id=self.ids[name], partitions=found) for name, found in owned.items()
            ]
        request = {"group_id": self.group_id, "member_id": member, "member_epoch": epoch} | fields
        answer = self.asker.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, **request)
        text = self._without_ids(answer.error_message)
        self.note(label, answer.error_code, text, answer.member_epoch, self.assigned(answer.assignment))
        return int(answer.member_epoch)

    def _without_ids(self, text: str | None) -> str | None:
        for member_id, name in self.members.items():
            if text is not None and member_id:
                text = text.replace(member_id, name)
        return text

    def assigned(self, found: Message | None) -> Any:
        if found is None:
            return None
        return sorted([self.topics[bytes(one.topic_id)], self.partitions(one.partitions)] for one in found.topic_partitions)

    def partitions(self, found: Sequence[int]) -> Any:
        """Partitions as they are noted."""
        return len(found) if self.counts_only else sorted(found)

    # --------------------------------------------------------------------------------------------------------- offsets

    def commit(self, label: str, member: str, epoch: int, version: int = 9) -> None:
        partition = struct(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5)
        topic = struct(
            apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="orders", topic_id=self.ids["orders"], partitions=[partition]
        )
        request = {"group_id": self.group_id, "member_id": member, "generation_id_or_member_epoch": epoch}
        answer = self.asker.ask(apis.OFFSET_COMMIT, version, **request, topics=[topic])
        self.note(label, answer.topics[0].partitions[0].error_code)

    def fetch(self, label: str, member: str | None, epoch: int) -> None:
        wanted = {"group_id": self.group_id, "member_id": member, "member_epoch": epoch, "topics": None}
        group = struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", **wanted)
        (answer,) = self.asker.ask(apis.OFFSET_FETCH, 9, groups=[group]).groups
        self.note(label, answer.error_code, [[part.committed_offset for part in topic.partitions] for topic in answer.topics])

    # -------------------------------------------------------------------------------------------------------- describe

    def describe(self, label: str) -> None:
        """Describe the group in both ways, and as it is listed."""
        (group,) = self.asker.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[self.group_id]).groups
        members = sorted(
            [
                *(self.name(one.member_id), one.instance_id or "", one.member_epoch, one.member_type),
                *(sorted(one.subscribed_topic_names), one.subscribed_topic_regex or ""),
                *(self.assigned(one.assignment), self.assigned(one.target_assignment)),
            ]
            for one in group.members
        )
        epochs = (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name)
        self.note(label, group.error_code, *epochs, members)
        (group,) = self.asker.ask(apis.DESCRIBE_GROUPS, 6, groups=[self.group_id]).groups
        members = sorted(
            [self.name(one.member_id), one.group_instance_id or "", len(one.member_assignment)] for one in group.members
        )
        self.note(f"{label}: classic", group.error_code, group.group_state, group.protocol_type, group.protocol_data, members)
        listed = self.asker.ask(apis.LIST_GROUPS, 5).groups
        self.note(
            f"{label}: listed",
            [[one.protocol_type, one.group_state, one.group_type] for one in listed if one.group_id == self.group_id],
        )

    def records(self) -> None:
        """Note the records of the group, without times and member ids."""
        partition = struct(apis.FETCH, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
        topic = struct(apis.FETCH, "FetchTopic", topic_id=self.ids["__consumer_offsets"], partitions=[partition])
        answer = self.asker.ask(apis.FETCH, 13, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[topic])
        data = bytes(answer.responses[0].partitions[0].records)
        found: list[list[Any]] = []
        position = 0
        while position < len(data):
            batch = read_header(data, position)
            records = read_records(data[position + HEADER_BYTES : position + batch.size_bytes], batch.record_count)
            position += batch.size_bytes
            for record in records:
                key, value = OFFSETS.decode(record.key, record.value)
                assert key is not None
                group_id = getattr(key, "group", None) or getattr(key, "group_id", None)
                if group_id == self.group_id and not hasattr(key, "topic"):
                    member = self.name(getattr(key, "member_id", ""))
                    found.append([key.STRUCT.name, member, None if value is None else self._shown(OFFSETS.to_dict(value))])
        # The order of members is that of a hash map in Kafka.
        for kind, run in itertools.groupby(found, key=lambda one: (one[0], one[2] is None)):
            of_kind = list(run)
            self.answers += of_kind if kind[0] == "GroupMetadataKey" else sorted(of_kind, key=repr)

    def _shown(self, value: Any, name: str = "") -> Any:
        """A value of a record with what differs between brokers replaced."""
        match name, value:
            case "assignmentTimestamp" | "currentStateTimestamp" | "metadataHash", int():
                return value != 0
            case "topicId", str():
                return self.topics[bytes(Uuid.parse(value))]
            case "partitions", list():
                return self.partitions(value)
            case "assignmentEpochs", list() if self.counts_only:
                return len(value)
            case _, dict():
                return {key: self._shown(inner, key) for key, inner in value.items() if key != "clientId"}
            case _, list():
                return sorted((self._shown(inner) for inner in value), key=repr)
            case _, str():
                return self.members.get(value, value)
        return value


# --------------------------------------------------------------------------------------------------------------- exchanges


def upgrade(exchange: Exchange) -> None:
    """Two members of the classic protocol, a third one of the consumer protocol, and back."""
    first, second = exchange.stable(({"orders": [0, 1, 2]}, {"orders": [3, 4, 5]}))
    exchange.describe("classic")
    exchange.commit("before", first.member_id, first.generation, version=8)
    epoch = exchange.heartbeat("consumer joins", "c1")
    exchange.describe("upgraded")
    exchange.commit("last generation", first.member_id, first.generation, version=8)
    exchange.commit("another generation", first.member_id, first.generation + 1)
    exchange.commit("member of the consumer protocol, version 8", "c1", epoch, version=8)
    exchange.fetch("of a classic member", first.member_id, first.generation)
    exchange.fetch("another epoch", first.member_id, first.generation + 9)
    exchange.beat("first must join", first)
    exchange.beat("wrong generation", first, generation_id=9)
    exchange.beat("consumer's member", Joined("c1", epoch))
    exchange.beat("unknown", Joined("cx", epoch))
    exchange.sync("old generation", first)
    first = exchange.join("first revokes", first.member_id, owned={"orders": [0, 1, 2]})
    owned = exchange.sync("first revokes", first)
    exchange.beat("first must join again", first)
    exchange.describe("revoking")
    first = exchange.join("first has revoked", first.member_id, owned=owned)
    exchange.sync("protocol", first, protocol_name="sticky")
    exchange.sync("protocol type", first, protocol_type="connect")
    exchange.sync("generation", first._replace(generation=1))
    exchange.sync("unknown", first._replace(member_id="x"))
    exchange.sync("a member of the consumer protocol", first._replace(member_id="c1"))
    exchange.sync("first", first)
    exchange.beat("second must join", second)
    second = exchange.join("second revokes", second.member_id, owned={"orders": [3, 4, 5]})
    owned = exchange.sync("second", second)
    second = exchange.join("second has revoked", second.member_id, owned=owned)
    exchange.sync("second", second)
    exchange.beat("first", first)
    exchange.beat("second", second)
    epoch = exchange.heartbeat("consumer gets", "c1", epoch)
    exchange.describe("stable")
    exchange.join("full")
    exchange.counts_only = True  # which member gets which partition depends on the order of random member ids
    exchange.leave("second leaves", (second.member_id, None))
    exchange.describe("second has left")
    exchange.beat("first must join", first)
    first = exchange.join("first gets", first.member_id, owned={"orders": [0, 1]})
    exchange.sync("first", first)
    exchange.heartbeat("consumer leaves", "c1", -1)
    exchange.describe("downgraded")
    exchange.beat("classic again", first)
    first = exchange.join("classic again", first.member_id, owned={"orders": [0]})
    exchange.sync("classic again", first, {first.member_id: assignment({"orders": [0, 1, 2, 3, 4, 5]})})
    exchange.beat("stable", first)
    exchange.describe("classic at the end")


def joins(exchange: Exchange) -> None:
    """Members of the classic protocol join a consumer group, rightly and wrongly."""
    epoch = exchange.heartbeat("consumer", "c1")
    exchange.join("session timeout", session_timeout_ms=1)
    exchange.join("other protocol type", protocol_type="connect")
    exchange.join("no protocol", names=())
    exchange.join("no metadata", metadata=b"\0", version=3)
    exchange.join("negative version", metadata=b"\xff\xff\0\0\0\0\xff\xff\xff\xff", version=3)
    first = exchange.join("version 3", version=3, names=("range",))
    exchange.join("no common protocol", names=("sticky",), version=3)
    exchange.sync("first", first)
    exchange.beat("first waits", first)
    exchange.heartbeat("consumer revokes", "c1", epoch)
    exchange.beat("first waits still", first)
    epoch = exchange.heartbeat("consumer has revoked", "c1", epoch, owned={"orders": [0, 1, 2]})
    exchange.beat("first may join", first)
    first = exchange.join("first", first.member_id, names=("range",))
    exchange.sync("first", first)
    exchange.describe("two members")
    second = exchange.join("second with its own id", "mine", subscription_version=1)
    exchange.sync("second", second)
    exchange.describe("three members")
    exchange.commit("second commits", second.member_id, second.generation, version=7)
    exchange.heartbeat("first becomes a consumer", first.member_id, owned={})
    exchange.describe("one classic member")
    exchange.leave("second and others leave", (second.member_id, None), ("x", None), ("", "i9"))
    exchange.leave("consumer is removed", ("c1", None))
    exchange.describe("at the end")


def static_members(exchange: Exchange) -> None:
    """Static members are replaced by those of the other protocol."""
    epoch = exchange.heartbeat("consumer", "c1", instance_id="i1")
    exchange.heartbeat("another consumer", "c2", instance_id="i2")
    exchange.heartbeat("instance in use", "c3", instance_id="i1")
    static = exchange.join("classic replaces", "", names=("range",), group_instance_id="i1")
    exchange.sync("classic", static)
    exchange.describe("one classic member")
    exchange.heartbeat("replaced", "c1", epoch, instance_id="i1")
    exchange.beat("wrong id", static._replace(member_id="x"))
    exchange.beat("wrong instance", static._replace(instance_id="i9"))
    exchange.join("wrong id", "x", group_instance_id="i1")
    exchange.join("unknown instance", "x", group_instance_id="i9")
    exchange.heartbeat("consumer replaces the classic one", "c4", instance_id="i1")
    exchange.describe("no classic member")
    exchange.heartbeat("left for a time", "c4", -2, instance_id="i1")
    again = exchange.join("classic replaces one that has left", "", names=("range",), group_instance_id="i1")
    exchange.sync("classic", again)
    last = exchange.join("the last consumer is replaced", "", names=("range",), group_instance_id="i2")
    exchange.describe("downgraded")
    exchange.sync("last", last)
    exchange.beat("last", last)
    exchange.beat("first", again)
    exchange.leave("both leave", ("", "i1"), ("", "i2"))
    exchange.describe("empty")


def replaced_with_another_subscription(exchange: Exchange) -> None:
    """The last member of the consumer protocol is replaced by a static one with other topics: the group rebalances."""
    exchange.heartbeat("consumer", "c1", instance_id="i1")
    last = exchange.join("replaced", "", ("orders", "pay"), names=("range",), group_instance_id="i1")
    exchange.describe("downgraded")
    exchange.beat("must join", last)
    exchange.sync("sync", last)
    last = exchange.join("again", last.member_id, ("orders", "pay"), names=("range",), group_instance_id="i1")
    exchange.sync("leads", last, {last.member_id: assignment({"orders": [0, 1, 2, 3, 4, 5], "pay": [0, 1]})})
    exchange.describe("stable")


def refused(exchange: Exchange) -> None:
    """Groups that cannot be upgraded, and members that have no group."""
    first = exchange.join_new("connect", protocol_type="connect", metadata=b"x")
    exchange.heartbeat("not of consumers", "c1")
    exchange.leave("leaves", (first.member_id, None))
    exchange.heartbeat("empty", "c1")
    exchange.heartbeat("leaves", "c1", -1)
    exchange.join("known id, empty consumer group", "known")
    exchange.describe("after")


def malformed(exchange: Exchange) -> None:
    first = exchange.join_new("malformed", metadata=b"\0\0\0\0\0\1x")
    exchange.sync("malformed", first, {first.member_id: assignment({})})
    exchange.heartbeat("malformed subscription", "c1")


def user_data(exchange: Exchange) -> None:
    first = exchange.join_new("user data")
    exchange.sync("user data", first, {first.member_id: assignment({"orders": [0]}, b"mine")})
    exchange.heartbeat("user data", "c1")
    first = exchange.join("again", first.member_id)
    exchange.sync("malformed", first, {first.member_id: b"\0\0\0"})
    exchange.heartbeat("malformed assignment", "c1")
    first = exchange.join("again", first.member_id)
    exchange.sync("unknown topic", first, {first.member_id: assignment({"orders": [0], "gone": [1]}, b"")})
    exchange.heartbeat("unknown topic", "c1")


def waiting_members(exchange: Exchange) -> None:
    """An upgrade while members wait for a join and for a sync."""
    first, second = exchange.stable(({"orders": [0, 1, 2]}, {"orders": [3, 4, 5]}))
    waiting = exchange.join_later("first waits", first.member_id)
    exchange.heartbeat("consumer joins", "c1")
    waiting()
    exchange.describe("upgraded")
    exchange.beat("second", second)


def waiting_syncs(exchange: Exchange) -> None:
    first, second = exchange.stable(({"orders": [0, 1, 2]}, {"orders": [3, 4, 5]}))
    waiting = exchange.join_later("first joins", first.member_id)
    exchange.beat("second must join", second)
    second = exchange.join("second joins", second.member_id)
    waiting()
    synced = exchange.sync_later(second)
    exchange.heartbeat("consumer joins", "c1")
    synced()
    exchange.describe("upgraded")


def pending_member(exchange: Exchange) -> None:
    """A member id that a classic group has given out is used in the consumer group."""
    exchange.stable(({"orders": [0, 1, 2, 3, 4, 5]},))
    pending = exchange.join("pending").member_id
    exchange.heartbeat("consumer joins", "c1")
    exchange.join("pending joins", pending)
    exchange.describe("three")


EXCHANGES: tuple[Callable[[Exchange], None], ...] = (
    upgrade,
    joins,
    static_members,
    replaced_with_another_subscription,
    refused,
    malformed,
    user_data,
    waiting_members,
    waiting_syncs,
    pending_member,
)


def hold(exchange: Callable[[Exchange], None], asker: Asker, ids: dict[str, bytes]) -> Answers:
    """One exchange with a broker -> its answers and records."""
    made = Exchange(asker, ids, exchange.__name__)
    exchange(made)
    made.records()
    return made.answers
