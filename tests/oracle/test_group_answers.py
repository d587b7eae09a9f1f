"""Protects group requests, right and wrong, against Apache Kafka's answers: the same exchange with both, step by step.

Member ids are chosen by the brokers: the table names them m1, m2 and so on, by the order in which they were given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient, plain, running_kcli

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    "offsets.topic.num.partitions=3",
    "offsets.topic.replication.factor=1",
    "group.initial.rebalance.delay.ms=0",
    "auto.create.topics.enable=false",
)
LEFT_OUT = frozenset(("error_message", "port", "client_host"))
RETRIED = (error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_LOAD_IN_PROGRESS)
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


class Broker:
    """One of the two brokers; `members` are the ids that it gave, by their names in the table."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = RawClient(address)
        self.topic_names: dict[bytes, str] = {}
        self.members: dict[str, str] = {}

    def set_up(self) -> None:
        """Make topic t and the coordinator's."""
        client = self.client
        topic = client.struct(apis.CREATE_TOPICS, "CreatableTopic", name="t", num_partitions=3, replication_factor=1)
        answer = client.ask(apis.CREATE_TOPICS, 7, topics=[topic], timeout_ms=10_000)
        self.topic_names[bytes(answer.topics[0].topic_id)] = "t"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = client.ask(apis.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["a"])
            if not found.coordinators[0].error_code:
                codes = {self.commit_code(f"warm-{at}") for at in range(20)}
                if codes == {0}:
                    return
        raise AssertionError("there is no coordinator")

    def commit_code(self, group: str) -> int:
        """Commit an offset of group `group`, as a consumer without a group does."""
        part = self.client.struct(apis.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=0)
        topic = self.client.struct(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", name="t", partitions=[part])
        answer = self.client.ask(apis.OFFSET_COMMIT, 8, group_id=group, topics=[topic])
        return int(answer.topics[0].partitions[0].error_code)

    def wait_for_state(self, group: str, state: str) -> None:
        """Ask until the group is in that state."""
        deadline = time.monotonic() + 10
        while self.client.ask(apis.DESCRIBE_GROUPS, 5, groups=[group]).groups[0].group_state != state:
            assert time.monotonic() < deadline, f"group {group} at {self.address} is not {state}"

    def named(self, value: Any) -> Any:
        """An answer with the table's names of members."""
        if isinstance(value, dict):
            return {key: self.named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return sorted((self.named(inner) for inner in value), key=repr)
        if isinstance(value, str) and value.startswith(("raw-", "i-")):
            known = {member_id: name for name, member_id in self.members.items()}
            if value not in known:
                self.members[f"m{len(self.members) + 1}"] = value
                return f"m{len(self.members)}"
            return known[value]
        return value

    def unnamed(self, value: Any) -> Any:
        """A request's value with the broker's ids of members."""
        if isinstance(value, str):
            return self.members.get(value, value)
        if isinstance(value, list):
            return [self.unnamed(inner) for inner in value]
        if isinstance(value, tuple):
            key, name, fields = value
            return self.client.struct(key, name, **{field: self.unnamed(inner) for field, inner in fields.items()})
        return value

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer to a request, as plain values."""
        answer = self.client.ask(key, version, **{name: self.unnamed(value) for name, value in fields.items()})
        return self.named(plain(answer, LEFT_OUT, self.topic_names))

    def ask_later(self, key: int, version: int, /, **fields: Any) -> Callable[[], Any]:
        """Send a request on a connection of its own -> its answer, once it is there."""
        client = RawClient(self.address)
        found: list[Message] = []
        values = {name: self.unnamed(value) for name, value in fields.items()}
        thread = threading.Thread(target=lambda: found.append(client.ask(key, version, **values)), daemon=True)
        thread.start()

        def wait() -> Any:
            thread.join(30)
            client.close()
            return self.named(plain(found[0], LEFT_OUT, self.topic_names))

        return wait


class Pair(NamedTuple):
    """The two brokers."""

    kcli: Broker
    kafka: Broker

    def same(self, key: int, version: int, /, **fields: Any) -> Any:
        """Both answer the same -> the answer."""
        mine, kafkas = (broker.ask(key, version, **fields) for broker in self)
        assert mine == kafkas, f"\n kcli {mine}\nKafka {kafkas}\nfor {fields}"
        return mine

    def same_later(self, key: int, version: int, /, **fields: Any) -> Callable[[], Any]:
        """Both get a request whose answer may wait -> what compares the answers."""
        waiting = [broker.ask_later(key, version, **fields) for broker in self]

        def wait() -> Any:
            mine, kafkas = (wait_one() for wait_one in waiting)
            assert mine == kafkas, f"\n kcli {mine}\nKafka {kafkas}\nfor {fields}"
            return mine

        return wait


@pytest.fixture(scope="module")
def brokers(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    homes = tmp_path_factory.mktemp("group-answers")
    (homes / "kafka").mkdir()
    with new_broker(kafka_peer, homes / "kafka", *SETTINGS) as theirs, running_kcli(homes / "kcli", *SETTINGS) as ours:
        yield ours, theirs


@pytest.fixture
def pair(brokers: tuple[str, str]) -> Iterator[Pair]:
    made = Pair(Broker(brokers[0]), Broker(brokers[1]))
    for broker in made:
        if broker.client.ask(apis.METADATA, 12, topics=None).topics:
            (topic,) = (found for found in broker.client.ask(apis.METADATA, 12, topics=None).topics if found.name == "t")
            broker.topic_names[bytes(topic.topic_id)] = "t"
        else:
            broker.set_up()
    yield made
    for broker in made:
        broker.client.close()


def protocols(*names: str) -> list[Any]:
    return [
        (apis.JOIN_GROUP, "JoinGroupRequestProtocol", {"name": name, "metadata": SUBSCRIPTION}) for name in names or ("range",)
    ]


def join(group: str, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": protocols(),
        **fields,
    }


def sync(group: str, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": 1,
        "member_id": "m1",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        **fields,
    }


def assigned(**members: bytes) -> list[Any]:
    return [
        (apis.SYNC_GROUP, "SyncGroupRequestAssignment", {"member_id": member, "assignment": data})
        for member, data in members.items()
    ]


def beat(group: str, **fields: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id": 1, "member_id": "m1", **fields}


def commit(
    group: str, version: int, *partitions: int, topic: str = "t", metadata: str | None = "", **fields: Any
) -> dict[str, Any]:
    parts = [
        (
            apis.OFFSET_COMMIT,
            "OffsetCommitRequestPartition",
            {"partition_index": index, "committed_offset": index + 10, "committed_metadata": metadata},
        )
        for index in partitions
    ]
    return {
        "group_id": group,
        "topics": [(apis.OFFSET_COMMIT, "OffsetCommitRequestTopic", {"name": topic, "partitions": parts})],
        **fields,
    }


def fetch(group: str, version: int, topics: dict[str, list[int]] | None, **fields: Any) -> dict[str, Any]:
    if version < 8:
        found = (
            None
            if topics is None
            else [
                (apis.OFFSET_FETCH, "OffsetFetchRequestTopic", {"name": name, "partition_indexes": indexes})
                for name, indexes in topics.items()
            ]
        )
        return {"group_id": group, "topics": found, **fields}
    named = (
        None
        if topics is None
        else [
            (apis.OFFSET_FETCH, "OffsetFetchRequestTopics", {"name": name, "partition_indexes": indexes})
            for name, indexes in topics.items()
        ]
    )
    return {"groups": [(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", {"group_id": group, "topics": named})], **fields}


def leave(group: str, *members: tuple[str, str | None], **fields: Any) -> dict[str, Any]:
    identities = [
        (apis.LEAVE_GROUP, "MemberIdentity", {"member_id": member, "group_instance_id": instance})
        for member, instance in members
    ]
    return {"group_id": group, "members": identities, **fields}


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(pair: Pair, version: int) -> None:
    if version >= 4:
        pair.same(apis.FIND_COORDINATOR, version, key_type=0, coordinator_keys=["a", "b", ""])
    else:
        pair.same(apis.FIND_COORDINATOR, version, key_type=0, key="a")


@pytest.mark.parametrize("version", range(10))
def test_joins_that_are_refused(pair: Pair, version: int) -> None:
    group = f"refused-{version}"
    for fields in (
        {"group_id": ""},
        {"session_timeout_ms": 1},
        {"session_timeout_ms": 2**31 - 1},
        {"member_id": "unknown"},
        {"protocols": []},
        {"protocol_type": ""},
    ):
        pair.same(apis.JOIN_GROUP, version, **join(group, **fields))
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.DESCRIBE_GROUPS, 6, groups=[group])


@pytest.mark.parametrize("version", range(10))
def test_the_life_of_a_group_of_one(pair: Pair, version: int) -> None:
    group = f"one-{version}"
    joined = pair.same(apis.JOIN_GROUP, version, **join(group))
    if joined["error_code"] == error_codes.MEMBER_ID_REQUIRED:
        joined = pair.same(apis.JOIN_GROUP, version, **join(group, member_id="m1"))
    assert (joined["error_code"], joined["member_id"], joined["generation_id"]) == (0, "m1", 1)
    sync_version = min(version, 5)
    pair.same(apis.HEARTBEAT, min(version, 4), **beat(group))
    pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, generation_id_or_member_epoch=1, member_id="m1"))
    for fields in (
        {"group_id": ""},
        {"group_id": "none"},
        {"generation_id": 0},
        {"generation_id": 2},
        {"member_id": "unknown"},
        {"member_id": ""},
        {"protocol_type": "connect"},
        {"protocol_name": "roundrobin"},
        {"protocol_type": None},
        {"protocol_name": None},
    ):
        if sync_version < 5 and set(fields) & {"protocol_type", "protocol_name"}:
            continue
        pair.same(apis.SYNC_GROUP, sync_version, **sync(group, **fields))
    assert pair.same(apis.SYNC_GROUP, sync_version, **sync(group, assignments=assigned(m1=b"all")))["error_code"] == 0
    pair.same(apis.SYNC_GROUP, sync_version, **sync(group))
    for fields in (
        {},
        {"group_id": ""},
        {"group_id": "none"},
        {"generation_id": 0},
        {"generation_id": 2},
        {"member_id": "unknown"},
    ):
        pair.same(apis.HEARTBEAT, min(version, 4), **beat(group, **fields))
    for describe_version in range(7):
        pair.same(apis.DESCRIBE_GROUPS, describe_version, groups=[group, "none"])
    pair.same(apis.DELETE_GROUPS, 2, groups_names=[group, "none", group])
    if version >= 3:
        pair.same(apis.LEAVE_GROUP, min(version, 5), **leave(group, ("unknown", None), ("", "nobody"), ("m1", "nobody")))
        assert pair.same(apis.LEAVE_GROUP, min(version, 5), **leave(group, ("m1", None)))["members"][0]["error_code"] == 0
        pair.same(apis.LEAVE_GROUP, min(version, 5), **leave("none", ("m1", None)))
        pair.same(apis.LEAVE_GROUP, min(version, 5), **leave("", ("m1", None)))
    else:
        for member in ("unknown", "m1", "m1"):
            pair.same(apis.LEAVE_GROUP, version, group_id=group, member_id=member)
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.DELETE_GROUPS, 2, groups_names=[group])
    pair.same(apis.DESCRIBE_GROUPS, 6, groups=[group])


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets(pair: Pair, version: int) -> None:
    group = f"offsets-{version}"
    pair.same(apis.OFFSET_COMMIT, version, **commit(group, version, 0, 1, 7, metadata="some"))
    pair.same(apis.OFFSET_COMMIT, version, **commit(group, version, 0, topic="none"))
    pair.same(apis.OFFSET_COMMIT, version, **commit(group, version, 2, metadata="m" * 4097))
    pair.same(apis.OFFSET_COMMIT, version, **commit(group, version, 2, metadata=None))
    for fields in (
        {"generation_id_or_member_epoch": 1},
        {"generation_id_or_member_epoch": 1, "member_id": "unknown"},
        {"member_id": "unknown"},
    ):
        pair.same(apis.OFFSET_COMMIT, version, **commit(group, version, 0, **fields))
        pair.same(apis.OFFSET_COMMIT, version, **commit(f"{group}-new", version, 0, **fields))
    for fetch_version in range(1, 10):
        pair.same(apis.OFFSET_FETCH, fetch_version, **fetch(group, fetch_version, {"t": [0, 1, 2, 7], "none": [0]}))
        pair.same(apis.OFFSET_FETCH, fetch_version, **fetch("none", fetch_version, {"t": [0]}))
        if fetch_version >= 2:
            pair.same(apis.OFFSET_FETCH, fetch_version, **fetch(group, fetch_version, None))
            pair.same(apis.OFFSET_FETCH, fetch_version, **fetch("none", fetch_version, None))
    parts = [(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", {"partition_index": index}) for index in (0, 2, 9)]
    topics = [(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", {"name": name, "partitions": parts}) for name in ("t", "none")]
    pair.same(apis.OFFSET_DELETE, 0, group_id=group, topics=topics)
    pair.same(apis.OFFSET_DELETE, 0, group_id="none", topics=topics)
    pair.same(apis.OFFSET_FETCH, 9, **fetch(group, 9, None))
    pair.same(apis.LIST_GROUPS, 5, states_filter=["nostate"], types_filter=[])
    pair.same(apis.DELETE_GROUPS, 2, groups_names=[group])


def test_offsets_of_a_member_and_of_others(pair: Pair) -> None:
    group = "of-a-member"
    pair.same(apis.JOIN_GROUP, 9, **join(group))
    pair.same(apis.JOIN_GROUP, 9, **join(group, member_id="m1"))
    member = {"generation_id_or_member_epoch": 1, "member_id": "m1"}
    for fields in (
        member,
        {},
        {**member, "generation_id_or_member_epoch": 0},
        {**member, "generation_id_or_member_epoch": 2},
        {**member, "member_id": "unknown"},
        {**member, "member_id": ""},
        {**member, "group_instance_id": "nobody"},
        {"generation_id_or_member_epoch": -1, "member_id": "m1"},
    ):
        pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, **fields))
    pair.same(apis.SYNC_GROUP, 5, **sync(group, assignments=assigned(m1=b"all")))
    for fields in (member, {}, {**member, "generation_id_or_member_epoch": 0}, {**member, "member_id": "unknown"}):
        pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, **fields))
    parts = [(apis.OFFSET_DELETE, "OffsetDeleteRequestPartition", {"partition_index": 0})]
    topics = [(apis.OFFSET_DELETE, "OffsetDeleteRequestTopic", {"name": "t", "partitions": parts})]
    pair.same(apis.OFFSET_DELETE, 0, group_id=group, topics=topics)
    pair.same(apis.LEAVE_GROUP, 5, **leave(group, ("m1", None)))
    pair.same(apis.OFFSET_DELETE, 0, group_id=group, topics=topics)


def test_two_members(pair: Pair) -> None:
    group = "two"
    both = {"protocols": protocols("b", "a")}
    pair.same(apis.JOIN_GROUP, 9, **join(group))
    pair.same(apis.JOIN_GROUP, 9, **join(group, member_id="m1", protocols=protocols("a", "b")))
    pair.same(apis.SYNC_GROUP, 5, **sync(group, protocol_name="a", assignments=assigned(m1=b"all")))
    pair.same(apis.JOIN_GROUP, 9, **join(group))
    pair.same(apis.JOIN_GROUP, 9, **join(group, **both))
    pair.same(apis.JOIN_GROUP, 9, **join(group, member_id="m2", protocols=protocols("c")))
    pair.same(apis.JOIN_GROUP, 9, **join(group, member_id="m2", protocol_type="connect"))
    second = pair.same_later(apis.JOIN_GROUP, 9, **join(group, member_id="m2", **both))
    for broker in pair:
        broker.wait_for_state(group, "PreparingRebalance")
    pair.same(apis.HEARTBEAT, 4, **beat(group))
    pair.same(apis.SYNC_GROUP, 5, **sync(group, protocol_name="a"))
    member = {"generation_id_or_member_epoch": 1, "member_id": "m1"}
    pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, **member))
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.DELETE_GROUPS, 2, groups_names=[group])
    assert pair.same(apis.JOIN_GROUP, 9, **join(group, member_id="m1", **both))["generation_id"] == 2
    second()
    for generation in (1, 2):
        of_it = {"generation_id_or_member_epoch": generation, "member_id": "m2"}
        pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, **of_it))
        pair.same(apis.HEARTBEAT, 4, **beat(group, generation_id=generation, member_id="m2"))
    pair.same(apis.SYNC_GROUP, 5, **sync(group, generation_id=2, member_id="m1", protocol_name="a"))
    first = {"generation_id": 2, "protocol_name": "b"}
    waiting = pair.same_later(apis.SYNC_GROUP, 5, **sync(group, member_id="m2", **first))
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.SYNC_GROUP, 5, **sync(group, **first, assignments=assigned(m1=b"1", m2=b"2")))
    assert waiting()["assignment"] == b"2"
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.LEAVE_GROUP, 5, **leave(group, ("m1", None), ("m2", None)))
    pair.same(apis.DESCRIBE_GROUPS, 6, groups=[group])


def test_static_members(pair: Pair) -> None:
    group = "static"
    assert pair.same(apis.JOIN_GROUP, 9, **join(group, group_instance_id="i"))["error_code"] == 0
    pair.same(apis.SYNC_GROUP, 5, **sync(group, group_instance_id="i", assignments=assigned(m1=b"all")))
    pair.same(apis.HEARTBEAT, 4, **beat(group, group_instance_id="i"))
    pair.same(apis.HEARTBEAT, 4, **beat(group, group_instance_id="other"))
    pair.same(apis.JOIN_GROUP, 9, **join(group, group_instance_id="i", member_id="unknown"))
    again = pair.same(apis.JOIN_GROUP, 9, **join(group, group_instance_id="i"))
    assert (again["error_code"], again["member_id"], again["generation_id"]) == (0, "m2", 1)
    for member in ("m1", "m2"):
        pair.same(apis.HEARTBEAT, 4, **beat(group, group_instance_id="i", member_id=member))
        pair.same(apis.SYNC_GROUP, 5, **sync(group, group_instance_id="i", member_id=member))
        fields = {"generation_id_or_member_epoch": 1, "member_id": member, "group_instance_id": "i"}
        pair.same(apis.OFFSET_COMMIT, 8, **commit(group, 8, 0, **fields))
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])
    pair.same(apis.LEAVE_GROUP, 5, **leave(group, ("m1", "i"), ("m2", "other"), ("", "other")))
    pair.same(apis.LEAVE_GROUP, 5, **leave(group, ("", "i")))
    pair.same(apis.DESCRIBE_GROUPS, 5, groups=[group])


@pytest.mark.parametrize("version", range(6))
def test_lists(pair: Pair, version: int) -> None:
    filters: list[dict[str, Any]] = [{}]
    if version >= 4:
        filters += [{"states_filter": states} for states in (["Empty"], ["empty", "Stable"], ["none"])]
    if version >= 5:
        filters += [{"types_filter": types} for types in (["classic"], ["Classic", "none"], ["consumer"], ["none"])]
    for broker in pair:
        broker.commit_code("listed")
    for fields in filters:
        mine, kafkas = (broker.client.ask(apis.LIST_GROUPS, version, **fields) for broker in pair)
        found = [
            {one["group_id"]: one for one in plain(answer, LEFT_OUT)["groups"] if one["group_id"] in ("listed", "warm-0")}
            for answer in (mine, kafkas)
        ]
        assert (mine.error_code, found[0]) == (kafkas.error_code, found[1]), fields
