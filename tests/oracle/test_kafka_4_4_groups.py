"""Protects what groups answer Kafka 4.4's clients: the same questions to Apache Kafka 4.4.0 and to kcli.

Offsets in transactions with ids of topics, for groups of each protocol; descriptions of the topologies of streams groups, which
Kafka gives to the plugin KeptTopologies.java and kcli keeps itself.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.brokers import answers, new_broker
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import BUSY, RawClient, plain, running_kcli, until, wait_for_metadata
from tests.oracle.test_streams_group_answers import BEAT, SIMPLE

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

SETTINGS = (
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "group.initial.rebalance.delay.ms=0",
    "group.streams.initial.rebalance.delay.ms=0",
    "group.streams.assignment.interval.ms=0",
    "offset.metadata.max.bytes=10",
)
TOPICS = {"in": 3, "out": 1, "gone": 1}
TRANSACTIONAL_ID = "x"
COMMIT = apis.TXN_OFFSET_COMMIT
UPDATE, DESCRIBE = apis.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, apis.STREAMS_GROUP_DESCRIBE
Notes = list[tuple[str, Any]]


def create_topics(client: RawClient) -> dict[str, bytes]:
    """Make the topics, and return their ids; one of them is deleted again."""
    made = [
        client.struct(apis.CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=count, replication_factor=1)
        for name, count in TOPICS.items()
    ]
    topics = client.ask(apis.CREATE_TOPICS, 7, topics=made, timeout_ms=10_000).topics
    for kind, key in ((0, "any"), (1, TRANSACTIONAL_ID)):
        found = {"key_type": kind, "coordinator_keys": [key]}
        until(lambda found=found: not client.ask(apis.FIND_COORDINATOR, 6, **found).coordinators[0].error_code)
    names = [client.struct(apis.DELETE_TOPICS, "DeleteTopicState", name="gone")]
    client.ask(apis.DELETE_TOPICS, 6, topics=names, timeout_ms=10_000)
    wait_for_metadata(client)
    time.sleep(1)  # Kafka's group coordinator hears of topics after the others
    return {topic.name: bytes(topic.topic_id) for topic in topics}


def when_ready(ask: Callable[[], Message]) -> Message:
    """Ask until the coordinator is loaded, and return the answer."""

    def answered() -> Message | None:
        answer = ask()
        return None if answer.error_code in BUSY else answer

    found: Message = until(answered)
    return found


def join_all(client: RawClient) -> dict[str, tuple[str, int]]:
    """Let a member join a group of each protocol; return its id and its epoch by the id of the group."""
    protocol = client.struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"")
    join = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer", "protocols": [protocol]}
    wanted = {"group_id": "classic", "group_instance_id": "i", **join}
    joined = when_ready(lambda: client.ask(apis.JOIN_GROUP, 9, member_id="", **wanted))
    part = client.struct(apis.SYNC_GROUP, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"all")
    of_member = {"generation_id": joined.generation_id, "member_id": joined.member_id, "group_instance_id": "i"}
    sync = {"protocol_type": "consumer", "protocol_name": "range", "assignments": [part], **of_member}
    assert client.ask(apis.SYNC_GROUP, 5, group_id="classic", **sync).error_code == 0
    found = {"classic": (joined.member_id, joined.generation_id)}
    fields: dict[str, Any] = {"subscribed_topic_names": ["in"], "topic_partitions": [], "rebalance_timeout_ms": 30_000}
    beat = {"group_id": "consumer", "member_id": "c1", "member_epoch": 0}
    found["consumer"] = ("c1", client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, **beat, **fields).member_epoch)
    fields = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "process_id": "p", "rebalance_timeout_ms": 30_000}
    beat = {"group_id": "streams", "member_id": "s1", "member_epoch": 0}
    found["streams"] = ("s1", client.ask(BEAT, 1, topology=SIMPLE, **beat, **fields).member_epoch)
    return found


class Transaction:
    """An open transaction, and the commits of offsets in it."""

    def __init__(self, client: RawClient, ids: dict[str, bytes]) -> None:
        self._client = client
        self._ids = ids | {"none": b"no topic has it.", "zero": bytes(16)}
        self._names = {topic_id: name for name, topic_id in self._ids.items()}
        fields = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout_ms": 60_000}
        self._producer = when_ready(lambda: client.ask(apis.INIT_PRODUCER_ID, 5, **fields))
        assert self._producer.error_code == 0

    def _stated(self) -> dict[str, Any]:
        producer = self._producer
        return {
            "transactional_id": TRANSACTIONAL_ID,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }

    def commit(self, version: int, topics: dict[str, list[int]], *, metadata: str = "m", **fields: Any) -> list[Any]:
        """Commit offsets of partitions of topics; return the name and the error of each one."""
        made = []
        for name, indexes in topics.items():
            parts = [
                self._client.struct(
                    COMMIT,
                    "TxnOffsetCommitRequestPartition",
                    partition_index=index,
                    committed_offset=10 * version + index,
                    committed_metadata=metadata,
                )
                for index in indexes
            ]
            how = {"topic_id": self._ids[name]} if version >= 6 else {"name": name}
            made.append(self._client.struct(COMMIT, "TxnOffsetCommitRequestTopic", partitions=parts, **how))
        answer = self._client.ask(COMMIT, version, topics=made, **self._stated() | fields)
        return sorted(
            (
                self._names[bytes(topic.topic_id)] if version >= 6 else topic.name,
                sorted((part.partition_index, part.error_code) for part in topic.partitions),
            )
            for topic in answer.topics
        )

    def end(self) -> int:
        """Commit the transaction, wait for its markers, which follow the answer, and return the error."""
        answer = self._client.ask(apis.END_TXN, 5, committed=True, **self._stated())
        self._producer.producer_epoch = answer.producer_epoch
        until(lambda: self._state() == "CompleteCommit")
        return int(answer.error_code)

    def _state(self) -> str:
        (found,) = self._client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[TRANSACTIONAL_ID]).transaction_states
        return str(found.transaction_state)


def commit_in_transactions(address: str) -> Notes:
    """The answers to commits of members, of others, and of members with another epoch; and what is then committed."""
    client = RawClient(address)
    ids = create_topics(client)
    members = join_all(client)
    transaction = Transaction(client, ids)
    notes: Notes = []
    for version in (5, 6):
        for group_id in ("classic", "consumer", "streams", "new"):
            member_id, epoch = members.get(group_id, ("n1", 3))
            member = {"group_id": group_id, "member_id": member_id, "generation_id_or_member_epoch": epoch}
            cases: dict[str, tuple[dict[str, list[int]], dict[str, Any]]] = {
                "the member": ({"in": [0, 1], "out": [0]}, {}),
                "without a member": ({"in": [2]}, {"member_id": "", "generation_id_or_member_epoch": -1}),
                "an unknown member": ({"in": [0]}, {"member_id": "mx"}),
                "a later epoch": ({"in": [0]}, {"generation_id_or_member_epoch": epoch + 1}),
                "an earlier epoch": ({"in": [0]}, {"generation_id_or_member_epoch": epoch - 1}),
                "an earlier epoch, other topics": ({"in": [0], "none": [0]}, {"generation_id_or_member_epoch": epoch - 1}),
                "an epoch below 0": ({"in": [0]}, {"generation_id_or_member_epoch": -1}),
                "its instance": ({"in": [0]}, {"group_instance_id": "i"}),
                "another instance": ({"in": [0]}, {"group_instance_id": "j"}),
                "long metadata": ({"in": [0], "out": [0]}, {"metadata": "longer than ten"}),
                "other topics": ({"in": [0, 7], "none": [0], "zero": [1], "gone": [0], "out": [1]}, {}),
                "only other topics": ({"none": [0, 1]}, {}),
                "no topics": ({}, {}),
            }
            for label, (topics, fields) in cases.items():
                notes.append((f"{version} {group_id} {label}", transaction.commit(version, topics, **member | fields)))
        notes.append((f"{version} no group", transaction.commit(version, {"in": [0], "none": [0]}, group_id="")))
        fenced = transaction.commit(version, {"in": [0], "none": [0]}, group_id="new", producer_epoch=99)
        notes.append((f"{version} another producer epoch", fenced))
        notes.append((f"{version} end", transaction.end()))
        for group_id in ("classic", "consumer", "streams", "new"):
            group = client.struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=group_id, topics=None)
            names = {topic_id: name for name, topic_id in ids.items()}
            fetched = client.ask(apis.OFFSET_FETCH, 10, groups=[group], require_stable=True).groups
            notes.append((f"{version} {group_id} committed", plain(fetched, names=names)))
    client.close()
    return notes


def assert_same(mine: Notes, kafkas: Notes) -> None:
    assert [label for label, _ in mine] == [label for label, _ in kafkas]
    assert [(own, other) for own, other in zip(mine, kafkas) if own != other] == []


def test_offsets_in_transactions(kafka_4_4: Peer, tmp_path: Path) -> None:
    """In version 6, which has ids of topics, and in version 5."""
    (tmp_path / "kafka").mkdir()
    with new_broker(kafka_4_4, tmp_path / "kafka", *SETTINGS) as address:
        kafkas = commit_in_transactions(address)
    with running_kcli(tmp_path / "kcli", *SETTINGS) as address:
        assert_same(commit_in_transactions(address), kafkas)


# ------------------------------------------------------------------------------------------------ descriptions of topologies


@contextmanager
def kafka_with_plugin(peer: Peer, home: Path) -> Iterator[str]:
    """Runs a new Kafka with the plugin, which is its main class, too -> its address."""
    home.mkdir()
    with new_broker(peer, home, *SETTINGS) as address:
        pass  # it is formatted, and has a free port
    properties = home / "server.properties"
    with properties.open("a") as file:
        file.write("group.streams.topology.description.plugin.class=KeptTopologies\n")
    with (home / "plugin.log").open("wb") as log:
        command = peer.java_command("KeptTopologies", [str(properties)])
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        port = int(address.rpartition(":")[2])
        end = time.monotonic() + 60
        while not answers(port):
            assert process.poll() is None and time.monotonic() < end, (home / "plugin.log").read_text()[-3000:]
        yield address
    finally:
        process.terminate()
        process.wait(60)


def node(name: str, kind: int, **fields: Any) -> Message:
    return RawClient.struct(UPDATE, "TopologyDescriptionNode", name=name, node_type=kind, **fields)


def description(*nodes: Message, stores: tuple[tuple[Message, Message], ...] = ()) -> Message:
    """A description with one subtopology; `stores` are the sources and processors of global stores."""
    struct = RawClient.struct
    parts = [struct(UPDATE, "TopologyDescriptionSubtopology", subtopology_id="0", nodes=list(nodes))]
    made = [
        struct(UPDATE, "TopologyDescriptionGlobalStore", source=source, processor=processor) for source, processor in stores
    ]
    return struct(UPDATE, "TopologyDescription", subtopologies=parts, global_stores=made)


NODES = (
    node("source", 1, source_topics=["in", "in"], successors=["processor", "processor"], stores=["ignored"]),
    node("processor", 2, stores=["store", "store"], successors=["sink"], source_topics=["ignored"], sink_topic="ignored"),
    node("sink", 3, sink_topic="out"),
    node("dynamic", 3),
)
GLOBAL = (node("global-source", 1, source_topics=["all"], successors=["global"]), node("global", 2, stores=["table"]))


def describe_topologies(address: str) -> Notes:
    """The answers to descriptions of topologies, and what is then described."""
    client = RawClient(address)
    create_topics(client)
    notes: Notes = []

    def beat(label: str, member_id: str, epoch: int = 0, version: int = 1) -> int:
        fields: dict[str, Any] = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
        if epoch == 0:
            fields |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
            fields |= {"topology": SIMPLE, "process_id": member_id, "rebalance_timeout_ms": 30_000}
        answer = when_ready(lambda: client.ask(BEAT, version, **fields))
        notes.append((label, (answer.error_code, answer.member_epoch, answer.topology_description_required)))
        return int(answer.member_epoch)

    def update(label: str, **fields: Any) -> None:
        stated = {"group_id": "g", "member_id": "m1", "topology_epoch": 0, "topology_description": description(*NODES)} | fields
        notes.append((label, plain(when_ready(lambda: client.ask(UPDATE, 0, **stated)))))

    def describe(label: str, *, with_topology: bool = True) -> None:
        fields = {"group_ids": ["g"], "include_topology_description": with_topology}
        (group,) = client.ask(DESCRIBE, 1, **fields).groups
        shown = (group.error_code, group.topology_description_status, plain(group.topology_description))
        notes.append((label, shown))

    update("no group")
    beat("joins in version 0", "m1", version=0)
    beat("joins", "m1")
    beat("is not asked twice", "m1", 2)
    describe("nothing is stored")
    update("an empty group id", group_id="")
    update("a blank group id", group_id=" ")
    update("no member id", member_id="")
    update("an unknown member", member_id="mx", topology_epoch=7)
    update("a later epoch", topology_epoch=5)
    update("a negative epoch", topology_epoch=-1)
    update("an unknown type", topology_description=description(node("x", 9)))
    update("a global store the wrong way", topology_description=description(stores=(GLOBAL[::-1],)))
    update("an unknown type in a global store", topology_description=description(stores=((node("x", 0), GLOBAL[1]),)))
    describe("nothing is stored yet")
    update("the description", topology_description=description(*NODES, stores=(GLOBAL,)))
    describe("it is stored")
    describe("it is not requested", with_topology=False)
    update("another description")
    describe("the other one is stored")
    epoch = beat("second", "m2")
    beat("second again", "m2", epoch)
    beat("leaves", "m1", -1)
    update("has left")
    describe("with the other member")
    beat("second leaves", "m2", -1)
    describe("without members")
    notes.append(("delete", plain(client.ask(apis.DELETE_GROUPS, 3, groups_names=["g"]))))
    describe("deleted")
    beat("a new group", "m1")
    describe("of the new group")
    client.close()
    return notes


def test_descriptions_of_topologies(kafka_4_4: Peer, tmp_path: Path) -> None:
    with kafka_with_plugin(kafka_4_4, tmp_path / "kafka") as address:
        kafkas = describe_topologies(address)
    setting = "group.streams.topology.description.plugin.class=KeptTopologies"
    with running_kcli(tmp_path / "kcli", *SETTINGS, setting) as address:
        assert_same(describe_topologies(address), kafkas)


@pytest.mark.parametrize("kind", ["kcli", "kafka"])
def test_java_sees_the_topology_of_a_static_member(kafka_4_4: Peer, tmp_path: Path, kind: str) -> None:
    """Kafka Streams sends the description that it is asked for, and administrators get it; the member comes back."""
    kafka_4_4.add_libraries("org.apache.kafka:kafka-streams:4.4.0")
    setting = "group.streams.topology.description.plugin.class=KeptTopologies"
    running = kafka_with_plugin(kafka_4_4, tmp_path / kind) if kind == "kafka" else running_kcli(tmp_path, *SETTINGS, setting)
    with running as address:
        ran = kafka_4_4.run_java("StreamsTopology", [address, str(tmp_path / "state")], timeout_seconds=120)
    assert ran.exit_code == 0, ran.stdout.decode() + ran.stderr[-3000:]
    names = "Processor:KSTREAM-FILTER-0000000005", "Processor:KSTREAM-KEY-SELECT-0000000001", "Sink:KSTREAM-SINK-0000000004"
    assert ran.stdout.decode().splitlines() == [
        "status AVAILABLE",
        f"part 0 [{', '.join(names)}, Source:KSTREAM-SOURCE-0000000000]",
        "part 1 [Processor:KSTREAM-AGGREGATE-0000000003, Source:KSTREAM-SOURCE-0000000006]",
        "store [all-STATE-STORE-0000000007]",
        "assignor sticky",
        "instance first-1",
        "members 1",
        "back 1",
    ]
