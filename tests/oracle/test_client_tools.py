"""Protects the programs of Kafka's system tests: what they send, read and copy in transactions on kcli is all there.

They judge a broker themselves: a verifiable producer and consumer report each record and each rebalance, the message copier
reads, writes and commits in transactions of which it aborts some, and the compatibility test checks what a client is promised.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.conftest import Served
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.reading import TopicPartitionName, served_records

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

BROKER_SETTINGS = (
    "offsets.topic.replication.factor=1",
    "offsets.topic.num.partitions=2",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.num.partitions=2",
    "group.initial.rebalance.delay.ms=0",
)
TOOLS = "org.apache.kafka.tools."
CLIENTS = "org.apache.kafka.clients.consumer."
TOPICS = f"{TOOLS}TopicCommand"
LIMIT_SECONDS = 60
RECORDS = 500
PARTITIONS = 2
SOURCES = [TopicPartitionName("source", index) for index in range(PARTITIONS)]
READERS: dict[str, tuple[str, ...]] = {
    **{
        f"reader-{name}": ("--assignment-strategy", f"{CLIENTS}{name}Assignor")
        for name in ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
    },
    "reader-autocommit": ("--enable-autocommit",),
    "reader-static": ("--group-instance-id", "one", "--session-timeout", "10000"),
    "reader-consumer": ("--group-protocol", "consumer"),
    "reader-consumer-range": ("--group-protocol", "consumer", "--group-remote-assignor", "range"),
    "reader-consumer-static": ("--group-protocol", "consumer", "--group-instance-id", "one"),
}
COPIERS: dict[str, tuple[str, ...]] = {
    "copy": (),
    "copy-aborts": ("--enable-random-aborts",),
    "copy-group": ("--enable-random-aborts", "--group-mode"),
    "copy-metadata": ("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
}
PROMISES = ("offsets-for-times", "cluster-id", "create-topics", "describe-acls", "describe-configs", "idempotent-producer")


def produce(peer: Peer, bootstrap: str) -> None:
    """Send the records by kafka-verifiable-producer: a process of its own, as it is closed when its JVM ends."""
    words = [f"{TOOLS}VerifiableProducer", "--bootstrap-server", bootstrap, "--topic", "source", "--acks", "-1"]
    more = ["--max-messages", str(RECORDS), "--throughput", "5000", "--repeating-keys", "7"]
    command = [str(peer.script), "java", *words, *more]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    names = Counter(json.loads(line)["name"] for line in ran.stdout.splitlines() if line.startswith("{"))
    assert names["producer_send_success"] == RECORDS and names["producer_send_error"] == 0


def cases(bootstrap: str) -> dict[str, ToolCase]:
    """The tools, in the order in which they run."""
    server = ("--bootstrap-server", bootstrap)
    found: dict[str, ToolCase] = {}

    def add(name: str, tool: str, *words: str) -> None:
        found[name] = ToolCase(tool, words)

    for name, words in READERS.items():
        reader = ("--topic", "source", "--group-id", name, "--max-messages", str(RECORDS), "--verbose")
        add(name, f"{TOOLS}VerifiableConsumer", *server, *reader, *words)
    for name, words in COPIERS.items():
        copier = ("--broker-list", bootstrap, "--input-topic", "source", "--input-partition", "0", "--output-topic", name)
        more = ("--consumer-group", name, "--transactional-id", name, "--transaction-size", "40")
        add(name, f"{TOOLS}TransactionalMessageCopier", *copier, *more, *words)
    for protocol in ("classic", "consumer"):
        group = ("--group", f"performance-{protocol}", "--command-property", f"group.protocol={protocol}")
        add(
            f"performance-{protocol}",
            f"{TOOLS}ConsumerPerformance",
            *server,
            "--topic",
            "source",
            "--num-records",
            "400",
            *group,
        )
    add("latency", f"{TOOLS}EndToEndLatency", bootstrap, "latency", "50", "all", "100")
    promised = [word for name in PROMISES for word in (f"--{name}-supported", "True")]
    more = ("--expect-record-too-large-exception", "False", "--num-cluster-nodes", "1", "--topic", "promises")
    add("promises", f"{TOOLS}ClientCompatibilityTest", *server, *more, *promised)
    add("app", f"{TOOLS}VerifiableConsumer", *server, "--topic", "source", "--group-id", "app", "--max-messages", str(RECORDS))
    resetter = (f"{TOOLS}StreamsResetter", *server, "--application-id", "app", "--input-topics", "source")
    add("reset-dry-run", *resetter, "--dry-run")
    add("reset", *resetter)
    add("list", TOPICS, *server, "--list", "--exclude-internal")
    return found


@pytest.fixture(scope="module")
def ran(served: Served, kafka_peer: Peer) -> dict[str, Outcome]:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    # The message copier keeps the partition of a record.
    for name in ("source", "app-store-changelog", "promises", *COPIERS):
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(LIMIT_SECONDS)
    produce(kafka_peer, served.bootstrap)
    wanted = cases(served.bootstrap)
    return dict(zip(wanted, kafka_peer.run_tools(list(wanted.values()), LIMIT_SECONDS), strict=True))


def events_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The events that a program printed, one object a line."""
    return [json.loads(line) for line in outcome.stdout.decode().splitlines() if line.startswith("{")]


def test_all_end_well(ran: dict[str, Outcome]) -> None:
    assert {name: one for name, one in ran.items() if one.exit_code != 0} == {}


@pytest.mark.parametrize("name", READERS)
def test_a_consumer_reads_all_and_commits(served: Served, ran: dict[str, Outcome], name: str) -> None:
    """Each record once, in the order of its partition; the last commit is the end of each partition."""
    events = events_of(ran[name])
    read = [(one["partition"], one["offset"]) for one in events if one["name"] == "record_data"]
    sent = {one.partition: len(records) for one, records in served_records(served.bootstrap, SOURCES).items()}
    assert all(sent.values()) and sum(sent.values()) == RECORDS
    for index, count in sent.items():
        assert [offset for at, offset in read if at == index] == list(range(count))
    assigned = [part["partition"] for one in events if one["name"] == "partitions_assigned" for part in one["partitions"]]
    assert sorted(assigned) == list(range(PARTITIONS))
    committed = {}
    for one in events:
        if one["name"] == "offsets_committed":
            assert one["success"], one
            committed |= {part["partition"]: part["offset"] for part in one["offsets"]}
    assert committed == (sent if name != "reader-autocommit" else {})


@pytest.mark.parametrize("name", COPIERS)
def test_the_message_copier_copies_each_record_once(served: Served, ran: dict[str, Outcome], name: str) -> None:
    """In transactions, of which it aborts about one in three where it is asked to."""
    targets = [TopicPartitionName(name, index) for index in range(PARTITIONS)]
    read = served_records(served.bootstrap, [*SOURCES, *targets], "read_committed")
    for source, target in zip(SOURCES, targets, strict=True):
        is_copied = source.partition == 0 or "--group-mode" in COPIERS[name]
        expected = [record.value for record in read[source]] if is_copied else []
        assert [record.value for record in read[target]] == expected


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_performance_reads_what_it_is_to(ran: dict[str, Outcome], protocol: str) -> None:
    """kafka-consumer-perf-test: the fifth column is the number of records."""
    lines = ran[f"performance-{protocol}"].stdout.decode().splitlines()
    numbers = [word.strip() for word in lines[-1].split(",")]
    assert int(numbers[4]) >= 400, lines


def test_the_resetter_deletes_internal_topics(ran: dict[str, Outcome]) -> None:
    """kafka-streams-application-reset: the group's offsets go back, and the topics of its stores are gone."""
    assert ran["reset-dry-run"].stdout.decode().count("app-store-changelog") == 1
    for name in ("reset-dry-run", "reset"):
        said = ran[name].stdout.decode()
        assert all(f"Topic: source Partition: {index} Offset: 0" in said for index in range(PARTITIONS)), said
    assert "app-store-changelog" not in ran["list"].stdout.decode().split()
