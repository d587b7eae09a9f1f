"""Protects kcli's administration of running clusters: its answers are those of Kafka's tools and of confluent-kafka.

The same cluster, kcli's or Apache Kafka's, is asked by kcli.client.Admin, by `kcli topics` and the other commands, by
librdkafka's AdminClient and by Kafka's own tools. It has a group that reads, one that has read, an open transaction and
a hanging one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka import IsolationLevel as TheirIsolation
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from kcli.client import Admin, AsyncAdmin
from kcli.client.admin import cluster, configs, group_offsets, groups, log_dirs, partitions, security, topics
from kcli.client.admin.operation import value_of
from kcli.client.errors import KafkaError, UnsupportedVersionError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.commands.app import main
from tests.conftest import ROOT
from tests.oracle.brokers import new_broker
from tests.oracle.conftest import Served
from tests.oracle.peer import Peer, ToolCase
from tests.oracle.raw_requests import RawClient
from tests.oracle.transaction_answers import PAUSE_S, SETTINGS
from tests.oracle.transaction_exchanges import Exchange, prepare
from tests.server.live import wait_for

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SHARE_SETTINGS = tuple(f"share.coordinator.state.topic.{key}=1" for key in ("replication.factor", "min.isr", "num.partitions"))
BROKER_SETTINGS = (
    *SETTINGS,
    "transaction.partition.verification.enable=false",
    "group.initial.rebalance.delay.ms=0",
    *SHARE_SETTINGS,
)
PATIENCE_S = 30
RECORDS = 60
CLIENT_DEFAULT = ("--entity-type", "clients", "--entity-default")
TOOLS = "org.apache.kafka.tools."
GROUPS, TRANSACTIONS = f"{TOOLS}consumer.group.ConsumerGroupCommand", f"{TOOLS}TransactionsCommand"


class Place(NamedTuple):
    """A cluster with something in it, and two administrators of it."""

    kind: str
    bootstrap: str
    admin: Admin
    theirs: AdminClient


def joined(bootstrap: str, group: str) -> Consumer:
    """A consumer of `orders` that has read all of it and committed."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "client.id": f"of-{group}"}
    # A member that does not poll stays as long as the tests of this module take.
    consumer = Consumer({**settings, "enable.auto.commit": False, "max.poll.interval.ms": 3_600_000})
    consumer.subscribe(["orders"])
    read, until = 0, time.monotonic() + PATIENCE_S
    while read < RECORDS:
        assert time.monotonic() < until, f"{group} has read {read} records"
        read += sum(message.error() is None for message in consumer.consume(RECORDS - read, 0.2))
    consumer.commit(asynchronous=False)
    return consumer


@pytest.fixture(scope="module")
def place(served: Served) -> Iterator[Place]:
    bootstrap = served.bootstrap
    theirs = AdminClient({"bootstrap.servers": bootstrap})
    with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 20_000}) as admin:
        made = admin.create_topics([topics.NewTopic("orders", 3, 1, configs={"segment.bytes": "10000000"})])
        assert value_of(made["orders"]).num_partitions == 3
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number, partition=number % 3, timestamp=1_700_000_000_000 + number)
        assert producer.flush(PATIENCE_S) == 0
        client = RawClient(bootstrap)
        pause = partial(time.sleep, PAUSE_S)  # a poll of another process, which gives no other sign
        prepare(client.ask, pause)
        x = Exchange("admin", client.ask, pause, bumps=True)
        x.client("open").init().begin(0)
        hanging = x.client("hanging").init()
        assert x.send(hanging.produce_request(index=1, version=11)).responses[0].partition_responses[0].error_code == 0
        joined(bootstrap, "was").close()
        live = joined(bootstrap, "live")
        yield Place(served.kind, bootstrap, admin, theirs)
        live.close()
        client.close()


def ran(place: Place, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[Any], str]:
    """A command with --output json -> exit code, rows, what it said on stderr."""
    capfd.readouterr()
    code = main([*words, "--bootstrap-server", place.bootstrap, "--output", "json"])
    out, err = capfd.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def tool(peer: Peer, place: Place, name: str, *words: str) -> list[list[str]]:
    """The words of each line that a tool of Kafka prints."""
    (outcome,) = peer.run_tools([ToolCase(name, ("--bootstrap-server", place.bootstrap, *words))], 60)
    assert outcome.exit_code == 0, outcome
    return [line.split() for line in outcome.stdout.decode().splitlines() if line.strip()]


def below(lines: list[list[str]], first: str) -> list[list[str]]:
    """The lines below the one that begins with a word."""
    return lines[next(index for index, line in enumerate(lines) if line[0] == first) + 1 :]


# --------------------------------------------------------------------------------------------------------- with librdkafka


def test_topics_are_described_as_by_librdkafka(place: Place) -> None:
    listed = place.admin.list_topics(include_internal=True)
    assert set(listed) == set(place.theirs.list_topics(timeout=PATIENCE_S).topics)
    mine = value_of(place.admin.describe_topics(["orders"])["orders"])
    theirs = place.theirs.describe_topics(confluent_topics("orders"))["orders"].result(PATIENCE_S)
    assert (mine.name, mine.is_internal) == (theirs.name, theirs.is_internal)
    assert [(one.partition, one.leader, list(one.replicas), list(one.isr)) for one in mine.partitions] == [
        (one.id, one.leader.id, [node.id for node in one.replicas], [node.id for node in one.isr]) for one in theirs.partitions
    ]


def confluent_topics(*names: str) -> Any:
    from confluent_kafka import TopicCollection

    return TopicCollection(list(names))


REFUSED: dict[str, tuple[Any, Any]] = {
    "existing": (
        lambda admin: admin.create_topics([topics.NewTopic("orders", 1, 1)]),
        lambda admin: admin.create_topics([NewTopic("orders", 1, 1)]),
    ),
    "name": (
        lambda admin: admin.create_topics([topics.NewTopic("a/b", 1, 1)]),
        lambda admin: admin.create_topics([NewTopic("a/b", 1, 1)]),
    ),
    "replicas": (
        lambda admin: admin.create_topics([topics.NewTopic("three", 1, 3)]),
        lambda admin: admin.create_topics([NewTopic("three", 1, 3)]),
    ),
    "config": (
        lambda admin: admin.create_topics([topics.NewTopic("bad", 1, 1, configs={"cleanup.policy": "none"})]),
        lambda admin: admin.create_topics([NewTopic("bad", 1, 1, config={"cleanup.policy": "none"})]),
    ),
    "delete": (lambda admin: admin.delete_topics(["none"]), lambda admin: admin.delete_topics(["none"])),
    "fewer": (
        lambda admin: admin.create_partitions({"orders": topics.NewPartitions(2)}),
        lambda admin: admin.create_partitions([NewPartitions("orders", 2)]),
    ),
    "members": (lambda admin: admin.delete_groups(["live"]), lambda admin: admin.delete_consumer_groups(["live"])),
    "no group": (lambda admin: admin.delete_groups(["none"]), lambda admin: admin.delete_consumer_groups(["none"])),
    "subscribed": (
        lambda admin: admin.delete_consumer_group_offsets("live", [("orders", 0)]),
        lambda admin: None,  # librdkafka's deletion of offsets is not in its Python binding
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_kafkas_code(place: Place, name: str) -> None:
    mine, theirs = REFUSED[name]
    (error,) = mine(place.admin).values()
    assert isinstance(error, KafkaError)
    futures = theirs(place.theirs)
    if futures is None:
        assert error.name == "GROUP_SUBSCRIBED_TO_TOPIC"
        return
    (future,) = futures.values()
    with pytest.raises(KafkaException) as refused:
        future.result(PATIENCE_S)
    assert error.code == refused.value.args[0].code()


@pytest.mark.parametrize(("kind", "name"), [("TOPIC", "orders"), ("BROKER", "1")])
def test_configs_are_those_of_librdkafka(place: Place, kind: str, name: str) -> None:
    resource = configs.ConfigResource(configs.ResourceType[kind], name)
    mine = value_of(place.admin.describe_configs([resource])[resource])
    (future,) = place.theirs.describe_configs([ConfigResource(ConfigResource.Type[kind], name)]).values()
    theirs = future.result(PATIENCE_S)
    assert {one.name: (one.value, int(one.source), one.is_sensitive, one.is_read_only) for one in mine.values()} == {
        one.name: (one.value, int(one.source), one.is_sensitive, one.is_read_only) for one in theirs.values()
    }


def test_offsets_are_those_of_librdkafka(place: Place) -> None:
    specs = {
        partitions.OffsetSpec.EARLIEST: OffsetSpec.earliest(),
        partitions.OffsetSpec.LATEST: OffsetSpec.latest(),
        partitions.OffsetSpec.MAX_TIMESTAMP: OffsetSpec.max_timestamp(),
        1_700_000_000_015: OffsetSpec.for_timestamp(1_700_000_000_015),
    }
    for level in partitions.IsolationLevel:
        for mine, theirs in specs.items():
            wanted = {("orders", index): int(mine) for index in range(3)} | {("admin.new", 0): int(mine)}
            asked = {TopicPartition(topic, index): theirs for topic, index in wanted}
            found = place.admin.list_offsets(wanted, isolation_level=level)
            futures = place.theirs.list_offsets(asked, isolation_level=TheirIsolation(int(level)))
            answers = {(at.topic, at.partition): future.result(PATIENCE_S) for at, future in futures.items()}
            assert {at: (value_of(one).offset, value_of(one).timestamp) for at, one in found.items()} == {
                at: (one.offset, one.timestamp) for at, one in answers.items()
            }, (mine, level)


def test_groups_are_those_of_librdkafka(place: Place) -> None:
    listed = {one.group_id: one.state for one in place.admin.list_groups().groups}
    theirs = place.theirs.list_consumer_groups().result(PATIENCE_S)
    assert listed == {one.group_id: one.state.name.title() for one in theirs.valid}
    for group, future in place.theirs.describe_consumer_groups(["live", "was"]).items():
        mine, described = value_of(place.admin.describe_consumer_groups([group])[group]), future.result(PATIENCE_S)
        assert (mine.state, mine.assignor) == (described.state.name.title(), described.partition_assignor)
        assert [(one.member_id, one.client_id, one.host, set(one.assignment)) for one in mine.members] == [
            (
                one.member_id,
                one.client_id,
                one.host,
                {(at.topic, at.partition) for at in one.assignment.topic_partitions},
            )
            for one in described.members
        ]
    offsets = value_of(place.admin.list_consumer_group_offsets({"was": None})["was"])
    (future,) = place.theirs.list_consumer_group_offsets([ConsumerGroupTopicPartitions("was")]).values()
    assert {at: one.offset for at, one in offsets.items() if isinstance(one, OffsetAndMetadata)} == {
        (one.topic, one.partition): one.offset for one in future.result(PATIENCE_S).topic_partitions
    }


def test_the_cluster_is_that_of_librdkafka(place: Place) -> None:
    mine = place.admin.describe_cluster()
    theirs = place.theirs.describe_cluster().result(PATIENCE_S)
    assert mine.cluster_id == theirs.cluster_id
    assert [(one.node_id, one.host, one.port) for one in mine.nodes] == [(one.id, one.host, one.port) for one in theirs.nodes]


# ------------------------------------------------------------------------------------------------------ with Kafka's tools


def test_groups_describe_is_kafka_consumer_groups(place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]) -> None:
    for group in ("live", "was"):
        code, (described,), _ = ran(place, capfd, "groups", "describe", "--group", group)
        assert code == 0
        mine = sorted(
            [group, one["topic"], *(str(one[name]) for name in ("partition", "currentOffset", "logEndOffset", "lag"))]
            + [one[name] or "-" for name in ("memberId", "host", "clientId")]
            for one in described["partitions"]
        )
        lines = below(tool(kafka_peer, place, GROUPS, "--describe", "--group", group), "GROUP")
        assert mine == sorted(line[:6] + line[6:9] for line in lines)
    code, rows, _ = ran(place, capfd, "groups", "describe", "--group", "live", "--state")
    (line,) = below(tool(kafka_peer, place, GROUPS, "--describe", "--group", "live", "--state"), "GROUP")
    assert [rows[0][name] for name in ("group", "coordinator", "assignor", "state")] == [
        line[0],
        " ".join(line[1:3]),
        *line[3:5],
    ]


RESETS: dict[str, tuple[str, ...]] = {
    "earliest": ("--topic", "orders", "--to-earliest"),
    "latest": ("--topic", "orders:0,2", "--to-latest"),
    "current": ("--all-topics", "--to-current"),
    "offset": ("--topic", "orders", "--to-offset", "7"),
    "beyond": ("--topic", "orders", "--to-offset", "1000"),
    "before": ("--topic", "orders", "--shift-by", "-4"),
    "long before": ("--all-topics", "--shift-by", "-400"),
    "time": ("--topic", "orders", "--to-datetime", "2023-11-14T22:13:20.016"),
    "duration": ("--topic", "orders", "--by-duration", "PT1H"),
}


def test_reset_offsets_plans_what_kafka_plans(place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]) -> None:
    cases = [
        ToolCase(GROUPS, ("--bootstrap-server", place.bootstrap, "--reset-offsets", "--dry-run", "--group", "was", *words))
        for words in RESETS.values()
    ]
    for (name, words), outcome in zip(RESETS.items(), kafka_peer.run_tools(cases, 60), strict=True):
        lines = [line.split() for line in outcome.stdout.decode().splitlines() if line.strip()]
        code, rows, err = ran(place, capfd, "groups", "reset-offsets", "--group", "was", *words)
        mine = sorted([one["group"], one["topic"], str(one["partition"]), str(one["newOffset"])] for one in rows)
        assert (code, mine) == (0, sorted(below(lines, "GROUP"))), name
        assert "--execute" in err, name


def test_reset_offsets_sets_and_exports(place: Place, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What is executed is what librdkafka reads then; a group with members and one that is new are told apart."""
    words = ("--bootstrap-server", place.bootstrap)
    assert main(["groups", "reset-offsets", "--group", "was", "--all-topics", "--shift-by", "-3", "--export", *words]) == 0
    plan = tmp_path / "plan.csv"
    plan.write_text(capfd.readouterr().out)
    code, rows, _ = ran(place, capfd, "groups", "reset-offsets", "--group", "new", "--from-file", str(plan), "--execute")
    assert code == 0 and [one["newOffset"] for one in rows] == [RECORDS // 3 - 3] * 3
    (future,) = place.theirs.list_consumer_group_offsets([ConsumerGroupTopicPartitions("new")]).values()
    assert [one.offset for one in future.result(PATIENCE_S).topic_partitions] == [RECORDS // 3 - 3] * 3
    code, rows, err = ran(place, capfd, "groups", "reset-offsets", "--group", "live", "--topic", "orders", "--to-latest")
    assert (code, rows) == (1, []) and "NON_EMPTY_GROUP: group live is Stable and has 1 members" in err
    code, rows, _ = ran(place, capfd, "groups", "delete-offsets", "--group", "new", "--topic", "orders:0")
    assert (code, [one["partition"] for one in rows]) == (0, [0])
    code, rows, err = ran(place, capfd, "groups", "delete", "--group", "new", "--group", "live")
    assert (code, [one["group"] for one in rows]) == (1, ["new"]) and "live: NON_EMPTY_GROUP" in err


def test_transactions_are_those_of_kafka_transactions(
    place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = below(tool(kafka_peer, place, TRANSACTIONS, "list"), "TransactionalId")
    code, rows, _ = ran(place, capfd, "transactions", "list")
    names = ("transactionalId", "coordinator", "producerId", "state")
    assert code == 0 and [[str(one[name]) for name in names] for one in rows] == sorted(lines)

    (line,) = below(tool(kafka_peer, place, TRANSACTIONS, "describe", "--transactional-id", "admin.new.open"), "CoordinatorId")
    code, (row,), _ = ran(place, capfd, "transactions", "describe", "--transactional-id", "admin.new.open")
    names = ("coordinator", "transactionalId", "producerId", "producerEpoch", "state", "timeoutMs", "startTimestamp")
    assert [str(row[name]) for name in names] == line[:7] and row["partitions"] == line[8:]

    partition = ("--topic", "admin.new", "--partition", "1")
    (line,) = below(tool(kafka_peer, place, TRANSACTIONS, "describe-producers", *partition), "ProducerId")
    code, (row,), _ = ran(place, capfd, "transactions", "describe-producers", *partition)
    names = ("producerId", "producerEpoch", "coordinatorEpoch", "lastSequence", "timestamp", "transactionStartOffset")
    assert ["None" if word == "-1" else word for word in line[:6]][0:2] == [str(row[name]) for name in names[:2]]
    assert line[3:6] == [str(row[name]) for name in names[3:]]


def test_a_hanging_transaction_is_found_and_aborted(place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]) -> None:
    find = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    lines = below(tool(kafka_peer, place, TRANSACTIONS, *find), "Topic")
    code, rows, _ = ran(place, capfd, "transactions", *find)
    names = ("topic", "partition", "producerId", "producerEpoch")
    assert code == 0 and [[str(one[name]) for name in names] for one in rows] == [line[:4] for line in lines]
    assert [(one["topic"], one["partition"]) for one in rows] == [("admin.new", 1)]
    words = ("transactions", "abort", "--topic", "admin.new", "--partition", "1", "--start-offset")
    code, _, err = ran(place, capfd, *words, "77")
    assert code == 1 and "no open transaction of admin.new-1 begins at offset 77" in err
    for dry in (("--dry-run",), ()):
        code, (row,), _ = ran(place, capfd, *words, "0", *dry)
        assert (code, row["producerId"], row["aborted"]) == (0, rows[0]["producerId"], not dry)
    assert ran(place, capfd, "transactions", *find)[:2] == (0, [])
    assert below(tool(kafka_peer, place, TRANSACTIONS, *find), "Topic") == []


def test_force_terminate_ends_a_transaction(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("transactions", "force-terminate", "--transactional-id")
    code, (row,), _ = ran(place, capfd, *words, "admin.new.open")
    assert code == 0 and row["producerEpoch"] > 0
    code, (described,), _ = ran(place, capfd, "transactions", "describe", "--transactional-id", "admin.new.open")
    assert described["state"] in ("Empty", "CompleteAbort")
    code, rows, err = ran(place, capfd, *words, "nobody")
    assert (code, rows) == (1, []) and "TRANSACTIONAL_ID_NOT_FOUND" in err


def test_the_quorum_features_and_directories_are_those_of_kafkas_tools(
    place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = below(tool(kafka_peer, place, f"{TOOLS}MetadataQuorumCommand", "describe", "--replication"), "NodeId")
    code, (quorum,), _ = ran(place, capfd, "cluster", "quorum")
    replicas = quorum["replicas"]
    assert code == 0 and [[str(one["node"]), one["directoryId"], one["status"].title()] for one in replicas] == [
        [*line[:2], line[-1]] for line in lines
    ]
    lines = tool(kafka_peer, place, f"{TOOLS}FeatureCommand", "describe")
    code, rows, _ = ran(place, capfd, "cluster", "features")
    level = {line[1]: line for line in lines}
    assert set(level) == {one["feature"] for one in rows}
    for one in rows:
        words = level[one["feature"]]
        if one["feature"] != "metadata.version":  # Kafka's tool writes its levels as names
            assert str(one["finalizedVersion"]) == words[words.index("FinalizedVersionLevel:") + 1], words
    (line,) = (line for line in tool(kafka_peer, place, f"{TOOLS}LogDirsCommand", "--describe") if line[0].startswith("{"))
    theirs = json.loads(" ".join(line))["brokers"]
    code, rows, _ = ran(place, capfd, "cluster", "log-dirs")
    assert [(one["broker"], one["directory"]) for one in rows] == [
        (broker["broker"], directory["logDir"]) for broker in theirs for directory in broker["logDirs"]
    ]
    mine = {f"{one['topic']}-{one['partition']}": (one["offsetLag"], one["isFuture"]) for one in rows[0]["partitions"]}
    assert mine == {one["partition"]: (one["offsetLag"], one["isFuture"]) for one in theirs[0]["logDirs"][0]["partitions"]}


def test_topics_and_configs_by_command(place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]) -> None:
    """kafka-topics lists what was created, and kafka-configs shows what was set."""
    create = ("topics", "create", "--topic", "made.here", "--partitions", "2", "--config", "cleanup.policy=compact,delete")
    assert ran(place, capfd, *create, "--dry-run")[0] == 0
    assert ran(place, capfd, *create)[0] == 0
    assert ran(place, capfd, *create)[0] == 1 and ran(place, capfd, *create, "--if-not-exists")[0] == 0
    assert ran(place, capfd, "topics", "alter", "--topic", "made.here", "--partitions", "4")[0] == 0
    set_one = ("configs", "alter", "--topic", "made.here", "--add-config", "retention.ms=5,cleanup.policy=[delete,compact]")
    assert ran(place, capfd, *set_one)[0] == 0
    lines = tool(kafka_peer, place, f"{TOOLS}TopicCommand", "--describe", "--topic", "made.here")
    assert lines[0][lines[0].index("PartitionCount:") + 1] == "4"
    _, (row,), _ = ran(place, capfd, "topics", "describe", "--topic", "made.h*")
    assert (row["topicId"], row["partitionCount"]) == (lines[0][lines[0].index("TopicId:") + 1], 4)
    assert row["configs"] == {"cleanup.policy": "delete,compact", "retention.ms": "5"}
    printed = tool(kafka_peer, place, "kafka.admin.ConfigCommand", "--describe", "--topic", "made.here")
    _, (found,), _ = ran(place, capfd, "configs", "describe", "--topic", "made.here")
    theirs = {word.split("=")[0]: word.split("=", 1)[1] for word, *_ in printed if "=" in word}
    assert {one["name"]: one["value"] for one in found["configs"]} == theirs
    code, rows, _ = ran(place, capfd, "topics", "list", "--topic", "made.*", "--topic", "orders")
    assert [one["topic"] for one in rows] == ["made.here", "orders"]
    assert ran(place, capfd, "configs", "alter", "--topic", "made.here", "--delete-config", "retention.ms")[0] == 0
    assert ran(place, capfd, "configs", "alter", "--topic", "made.here", "--delete-config", "retention.ms")[0] == 1
    assert ran(place, capfd, "topics", "delete", "--topic", "made.here")[0] == 0
    code, rows, err = ran(place, capfd, "topics", "describe", "--topic", "ordrs")
    assert (code, rows) == (1, []) and "did you mean 'orders'?" in err


NO_PARTITION, NO_REPLICA = ("orders", 9), log_dirs.TopicPartitionReplica("orders", 0, 1)
METRICS = configs.ConfigResource(configs.ResourceType.CLIENT_METRICS, "slow")
FEATURE = {"none": cluster.FeatureUpdate(1), "group.version": cluster.FeatureUpdate(1)}
# What is asked, and Kafka's code of each item in the answer.
CODES: dict[str, tuple[Callable[[Admin], Any], list[str | None]]] = {
    "elect": (
        lambda admin: admin.elect_leaders(partitions.ElectionType.PREFERRED, [("orders", 0), NO_PARTITION]),
        ["ELECTION_NOT_NEEDED", "UNKNOWN_TOPIC_OR_PARTITION"],
    ),
    "elect all": (lambda admin: admin.elect_leaders(partitions.ElectionType.PREFERRED), []),
    "reassign": (
        lambda admin: admin.alter_partition_reassignments({("orders", 0): [1], ("orders", 1): [7], NO_PARTITION: [1]}),
        [None, "INVALID_REPLICA_ASSIGNMENT", "UNKNOWN_TOPIC_OR_PARTITION"],
    ),
    "cancel": (
        lambda admin: admin.alter_partition_reassignments({("orders", 0): None}),
        ["NO_REASSIGNMENT_IN_PROGRESS"],
    ),
    "reassignments": (lambda admin: admin.list_partition_reassignments([("orders", 0)]), []),
    "features": (lambda admin: admin.update_features(FEATURE, validate_only=True), ["INVALID_UPDATE_VERSION"] * 2),
    "directories": (lambda admin: admin.alter_replica_log_dirs({NO_REPLICA: "/none"}), ["LOG_DIR_NOT_FOUND"]),
    "metrics": (
        lambda admin: admin.incremental_alter_configs(
            {METRICS: [configs.AlterConfigOp("interval.ms", configs.AlterOperation.SET, "1000")]}
        ),
        [None],
    ),
    "members": (
        lambda admin: admin.remove_members_from_group(
            "live", [groups.MemberToRemove("none"), groups.MemberToRemove(member_id="none")]
        ),
        ["UNKNOWN_MEMBER_ID"] * 2,
    ),
    "fence": (lambda admin: admin.fence_producers(["fenced-1", "fenced-2"]), [None, None]),
}


@pytest.mark.parametrize("name", CODES)
def test_the_rest_has_kafkas_codes(place: Place, name: str) -> None:
    ask, codes = CODES[name]
    found = ask(place.admin)
    assert [one.name if isinstance(one, KafkaError) else None for one in found.values()] == codes, found
    until = time.monotonic() + PATIENCE_S
    while name == "metrics" and place.admin.list_client_metrics_resources() != ["slow"]:
        assert time.monotonic() < until  # a broker learns it from its controller


def test_static_and_all_members_are_removed(place: Place) -> None:
    # It sends no heartbeat after its removal, which would let it join again.
    times = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 30_000}
    settings = {"bootstrap.servers": place.bootstrap, "group.id": "leaving", **times}
    consumer = Consumer({**settings, "group.instance.id": "one", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    until = time.monotonic() + PATIENCE_S
    while not consumer.assignment():
        assert time.monotonic() < until
        consumer.poll(0.1)
    member = groups.MemberToRemove(instance_id="one")
    assert place.admin.remove_members_from_group("leaving") == {member: None}
    assert value_of(place.admin.describe_consumer_groups(["leaving"])["leaving"]).members == ()
    consumer.close()
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        place.admin.remove_members_from_group("no-group")
    with pytest.raises(KafkaError, match="BROKER_ID_NOT_REGISTERED"):
        place.admin.unregister_broker(9)


def test_records_are_deleted(place: Place) -> None:
    value_of(place.admin.create_topics([topics.NewTopic("short", 1, 1)])["short"])
    producer = Producer({"bootstrap.servers": place.bootstrap})
    for number in range(9):
        producer.produce("short", b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    assert place.admin.delete_records({("short", 0): 4}) == {("short", 0): 4}
    (future,) = place.theirs.list_offsets({TopicPartition("short", 0): OffsetSpec.earliest()}).values()
    assert future.result(PATIENCE_S).offset == 4
    (error,) = place.admin.delete_records({("short", 0): 40}).values()
    assert isinstance(error, KafkaError) and error.name == "OFFSET_OUT_OF_RANGE"


def test_what_a_broker_does_not_have_is_an_error(place: Place) -> None:
    """kcli has no security yet; Kafka without an authorizer has no ACLs."""
    with pytest.raises((UnsupportedVersionError, KafkaError)):
        place.admin.describe_acls()


def test_groups_of_all_types_are_those_of_the_java_client(
    place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Groups with members, of every type: members, assignments, offsets; and one whose transaction is open."""
    living = kafka_peer.run_java("LiveGroups", [place.bootstrap], timeout_seconds=120)
    assert living.exit_code == 0, living.stderr[-3000:]
    theirs = {one["groupId"]: one for one in map(json.loads, living.stdout.decode().splitlines())}
    assert len(theirs) == 4
    for group in ("live-classic", "live-consumer"):
        mine = value_of(place.admin.describe_consumer_groups([group])[group])
        offsets = value_of(place.admin.list_consumer_group_offsets({group: None})[group])
        committed = {f"{at[0]}-{at[1]}": one.offset for at, one in offsets.items() if isinstance(one, OffsetAndMetadata)}
        assert (mine.type, mine.state) == (theirs[group]["kind"], theirs[group]["state"])
        assert (members_of(mine.members), committed) == (theirs[group]["members"], theirs[group]["offsets"])
    shared = value_of(place.admin.describe_share_groups(["live-share"])["live-share"])
    starts = value_of(place.admin.list_share_group_offsets({"live-share": None})["live-share"])
    assert members_of(shared.members) == theirs["live-share"]["members"]
    assert theirs["live-share"]["offsets"] == {
        f"{at[0]}-{at[1]}": [one.start_offset, one.lag]
        for at, one in starts.items()
        if isinstance(one, group_offsets.SharePartitionOffset)
    }
    streaming = value_of(place.admin.describe_streams_groups(["live-streams"])["live-streams"])
    (member,) = streaming.members
    tasks = [f"{name}-{index}" for name, at in member.assignment.active_tasks.items() for index in at]
    (described,) = theirs["live-streams"]["members"]
    assert (member.member_id, member.client_id, sorted(tasks)) == tuple(
        described[name] for name in ("memberId", "clientId", "assigned")
    )
    unstable = value_of(
        place.admin.list_consumer_group_offsets({"eos-group": [("orders", 2)]}, require_stable=True)["eos-group"]
    )
    error = unstable["orders", 2]
    assert isinstance(error, KafkaError) and error.name == "UNSTABLE_OFFSET_COMMIT"
    code, rows, _ = ran(place, capfd, "groups", "describe", "--group", "live-*", "--members")
    assert code == 0
    assert {one["group"]: {each["memberId"] for each in one["members"]} for one in rows} == {
        group: {each["memberId"] for each in one["members"]} for group, one in theirs.items()
    }


def members_of(members: tuple[groups.GroupMember, ...]) -> list[dict[str, Any]]:
    """Members as LiveGroups prints them."""
    found = [
        {
            "memberId": one.member_id,
            "instanceId": one.instance_id,
            "clientId": one.client_id,
            "clientHost": one.host,
            "assigned": sorted(f"{topic}-{index}" for topic, index in one.assignment),
        }
        for one in members
    ]
    return sorted(found, key=lambda one: str(one["memberId"]))


def test_security_of_apache_kafka(kafka_peer: Peer, tmp_path: Path) -> None:
    """ACLs, SCRAM credentials and quotas are written by one administrator and read by the other."""
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
        ScramMechanism,
    )

    settings = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    )
    with new_broker(kafka_peer, tmp_path, *settings) as bootstrap, Admin({"bootstrap.servers": bootstrap}) as admin:
        theirs = AdminClient({"bootstrap.servers": bootstrap})
        acl = security.AclBinding(
            security.AclResource.TOPIC,
            "orders",
            security.PatternType.PREFIXED,
            "User:alice",
            "*",
            security.AclOperation.READ,
            security.Permission.ALLOW,
        )
        assert admin.create_acls([acl]) == {acl: None}
        # The controller answers a change before the broker knows of it.
        wait_for(lambda: admin.describe_acls() == [acl])
        anything = AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
        )
        (read,) = theirs.describe_acls(anything).result(PATIENCE_S)
        assert (read.name, read.principal, read.operation.name) == ("orders", "User:alice", "READ")
        every = security.AclBindingFilter(principal="User:alice")
        assert admin.delete_acls([every]) == {every: [acl]}
        wait_for(lambda: admin.describe_acls() == [])

        mechanism = security.ScramMechanism.SCRAM_SHA_256
        made = security.ScramUpsertion.of_password("bob", mechanism, b"secret", b"salt-of-bob", 5000)
        assert admin.alter_user_scram_credentials([made]) == {"bob": None}
        wait_for(lambda: "bob" in admin.describe_user_scram_credentials())
        (future,) = theirs.describe_user_scram_credentials(["bob"]).values()
        (info,) = future.result(PATIENCE_S).scram_credential_infos
        assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 5000)
        found = value_of(admin.describe_user_scram_credentials()["bob"])
        assert found == [security.ScramCredentialInfo(mechanism, 5000)]
        assert admin.alter_user_scram_credentials([security.ScramDeletion("bob", mechanism)]) == {"bob": None}
        wait_for(lambda: "bob" not in admin.describe_user_scram_credentials())
        (gone,) = admin.describe_user_scram_credentials(["bob"]).values()
        assert isinstance(gone, KafkaError) and gone.name == "RESOURCE_NOT_FOUND"

        entity = (("client-id", None), ("user", "alice"))
        assert admin.alter_client_quotas({entity: {"producer_byte_rate": 1000.0}}) == {entity: None}
        wait_for(lambda: admin.describe_client_quotas() == {entity: {"producer_byte_rate": 1000.0}})
        words = ("--bootstrap-server", bootstrap, "--describe", "--entity-type", "users", "--entity-name", "alice")
        (printed,) = kafka_peer.run_tools([ToolCase("kafka.admin.ConfigCommand", (*words, *CLIENT_DEFAULT))], 60)
        assert "producer_byte_rate=1000.0" in printed.stdout.decode()
        assert admin.alter_client_quotas({entity: {"producer_byte_rate": None}}) == {entity: None}
        wait_for(lambda: admin.describe_client_quotas() == {})
        with pytest.raises(KafkaError, match="DELEGATION_TOKEN"):
            admin.create_delegation_token()


def test_a_closed_pipe_is_no_error(place: Place) -> None:
    """As of `kcli configs describe ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["configs", "describe", "--broker", "1", "--all", "--bootstrap-server", place.bootstrap]
    command = [sys.executable, "-m", "kcli", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_asyncio_application_has_the_same(place: Place) -> None:
    """Several operations at a time over the same connections; an error of one is raised where it is awaited."""

    async def test() -> tuple[Any, ...]:
        async with AsyncAdmin({"bootstrap.servers": place.bootstrap, "default.api.timeout.ms": 20_000}) as admin:
            listing, described = admin.list_topics(include_internal=True), admin.describe_cluster()
            offsets = admin.list_consumer_group_offsets({"was": None})
            with pytest.raises((UnsupportedVersionError, KafkaError)):
                await admin.describe_acls()
            return await listing, await described, await offsets

    listed, described, offsets = asyncio.run(test())
    assert listed == place.admin.list_topics(include_internal=True)
    assert described == place.admin.describe_cluster()
    assert offsets == place.admin.list_consumer_group_offsets({"was": None})


def test_share_groups_are_those_of_kafka_share_groups(
    place: Place, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    """A share group has read; its offsets are described, reset and deleted."""
    share = ("configs", "alter", "--group", "shared", "--add-config", "share.auto.offset.reset=earliest")
    assert ran(place, capfd, *share)[0] == 0
    reading = ("--topic", "orders", "--group", "shared", "--max-messages", "5", "--timeout-ms", "30000")
    tool(kafka_peer, place, f"{TOOLS}consumer.ConsoleShareConsumer", *reading)
    shares = f"{TOOLS}consumer.group.ShareGroupCommand"
    code, rows, _ = ran(place, capfd, "groups", "list", "--type", "share", "--state", "empty")
    assert [(one["group"], one["type"], one["state"]) for one in rows] == [("shared", "Share", "Empty")]
    code, (described,), _ = ran(place, capfd, "groups", "describe", "--group", "shared")
    lines = below(tool(kafka_peer, place, shares, "--describe", "--group", "shared"), "GROUP")
    names = ("topic", "partition", "currentOffset", "lag")
    mine = [["-" if one[name] is None else str(one[name]) for name in names] for one in described["partitions"]]
    assert sorted(mine) == sorted(line[1:5] for line in lines)
    reset = ("groups", "reset-offsets", "--group", "shared", "--topic", "orders", "--to-earliest")
    code, rows, _ = ran(place, capfd, *reset, "--execute")
    assert code == 0 and [one["newOffset"] for one in rows] == [0, 0, 0]
    code, (described,), _ = ran(place, capfd, "groups", "describe", "--group", "shared")
    assert [one["currentOffset"] for one in described["partitions"]] == [0, 0, 0]
    assert ran(place, capfd, "groups", "reset-offsets", "--group", "shared", "--topic", "orders", "--to-offset", "1")[0] == 2
    code, rows, _ = ran(place, capfd, "groups", "delete-offsets", "--group", "shared", "--topic", "orders")
    assert (code, [one["topic"] for one in rows]) == (0, ["orders"])
    assert ran(place, capfd, "groups", "delete", "--group", "shared")[0] == 0
