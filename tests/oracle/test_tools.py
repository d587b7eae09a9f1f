"""Protects what administrators have: Kafka's own tools work on kcli, and print and end as they do on Apache Kafka.

Both brokers are new and have the same settings; the same tools run on both, in the same order, in one JVM a broker. What
differs by nature (addresses, directories, ids, times, sizes of what holds times) is taken out before the two are compared.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.oracle.brokers import KcliBroker, new_broker
from tests.oracle.peer import Outcome, Peer, ToolCase

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

TOOLS = "org.apache.kafka.tools."
TOPICS, CONFIGS, OFFSETS = f"{TOOLS}TopicCommand", "kafka.admin.ConfigCommand", f"{TOOLS}GetOffsetShell"
FEATURES, QUORUM = f"{TOOLS}FeatureCommand", f"{TOOLS}MetadataQuorumCommand"
PRODUCER, CONSUMER = f"{TOOLS}ConsoleProducer", f"{TOOLS}consumer.ConsoleConsumer"
ELECTION, DUMP, CLUSTER = f"{TOOLS}LeaderElectionCommand", f"{TOOLS}DumpLogSegments", f"{TOOLS}ClusterTool"
PERFORMANCE_RECORDS = 20_000
LIMIT_SECONDS = 60
# The time specs of kafka-get-offsets; two of tiered storage answer with nothing.
TIMES = ("latest", "earliest", "max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload", "-1", "-2", "-3")
SENT = "h1:v1,h2:v2\tk1:one\nh1:v1\tk2:two\nh3:v3\tk3:three\n"
# Of both brokers; each is formatted for a dynamic quorum of one.
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=3
group.initial.rebalance.delay.ms=0
"""


# Numbers that differ by nature, with what stands before them.
NUMBERS = r"(HighWatermark: +|Epoch: |CreateTime:? ?|producerId: |crc: | size: |LeaderEpoch: +|MaxFollowerLagTimeMs: +)-?\d+"

# Features whose highest level is later in kcli, which serves those of Kafka 4.4, than in Kafka 4.3.1.
LEVELS_OF_4_4 = r"(Feature: (?:metadata|share)\.version +.* SupportedMaxVersion: ).*?( FinalizedVersionLevel)"

# What a broker says of a request that it refuses: each in its own words, behind the error's name.
SENTENCES = r"(Error while executing topic command :|org\.apache\.kafka\.common\.errors\.\w+:|Can not \w+ [\w.]+ to \d+\.) .*"


class Place(NamedTuple):
    """Where a broker is: what a case's words are made of."""

    bootstrap: str
    data: Path
    files: Path


Words = Callable[[Place], tuple[str, ...]]


def on(*words: str) -> Words:
    """The words of a tool that asks a broker."""
    return lambda place: ("--bootstrap-server", place.bootstrap, *words)


def controller_config(*words: str) -> Words:
    """The words of kafka-configs that asks the controller, whose listener has the port behind the broker's."""

    def words_at(place: Place) -> tuple[str, ...]:
        host, _, port = place.bootstrap.rpartition(":")
        return ("--bootstrap-controller", f"{host}:{int(port) + 1}", "--describe", *words)

    return words_at


def topic_config(*words: str) -> Words:
    return on(*words, "--entity-type", "topics", "--entity-name", "made")


def broker_config(*words: str) -> Words:
    return on(*words, "--entity-type", "brokers", "--entity-name", "1")


def logger_config(*words: str) -> Words:
    return on(*words, "--entity-type", "broker-loggers", "--entity-name", "1")


def deleting(name: str) -> Words:
    return lambda place: ("--bootstrap-server", place.bootstrap, "--offset-json-file", str(place.files / name))


# In the order in which they run: name -> class, words, stdin.
CASES: dict[str, tuple[str, Words, str]] = {
    "create": (TOPICS, on("--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=86400000"), ""),
    "create-one": (TOPICS, on("--create", "--topic", "one", "--partitions", "1", "--config", "compression.type=lz4"), ""),
    "create-again": (TOPICS, on("--create", "--topic", "made"), ""),
    "create-if-not-exists": (TOPICS, on("--create", "--if-not-exists", "--topic", "made"), ""),
    "create-invalid-name": (TOPICS, on("--create", "--topic", "not/valid"), ""),
    "create-replicas": (TOPICS, on("--create", "--topic", "three", "--replication-factor", "3"), ""),
    "create-invalid-config": (TOPICS, on("--create", "--topic", "bad", "--config", "cleanup.policy=none"), ""),
    "create-assigned": (TOPICS, on("--create", "--topic", "assigned", "--replica-assignment", "1,1"), ""),
    "create-collision": (TOPICS, on("--create", "--topic", "under_score"), ""),
    "create-collides": (TOPICS, on("--create", "--topic", "under.score"), ""),
    "describe": (TOPICS, on("--describe", "--topic", "made"), ""),
    "describe-all": (TOPICS, on("--describe", "--exclude-internal"), ""),
    "describe-overridden": (TOPICS, on("--describe", "--topics-with-overrides"), ""),
    "describe-under-replicated": (TOPICS, on("--describe", "--under-replicated-partitions"), ""),
    "add-partitions": (TOPICS, on("--alter", "--topic", "made", "--partitions", "4"), ""),
    "take-partitions": (TOPICS, on("--alter", "--topic", "made", "--partitions", "3"), ""),
    "list": (TOPICS, on("--list", "--exclude-internal"), ""),
    "console-producer": (
        PRODUCER,
        on(
            *("--topic", "one", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
            *("--reader-property", "parse.headers=true"),
        ),
        SENT,
    ),
    "console-consumer": (
        CONSUMER,
        on(
            *("--topic", "one", "--partition", "0", "--offset", "earliest", "--max-messages", "3", "--timeout-ms", "20000"),
            *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
            *("--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true"),
        ),
        "",
    ),
    "console-consumer-offset": (
        CONSUMER,
        on("--topic", "one", "--partition", "0", "--offset", "2", "--max-messages", "1", "--timeout-ms", "20000"),
        "",
    ),
    "perf": (
        f"{TOOLS}ProducerPerformance",
        on("--topic", "made", "--num-records", str(PERFORMANCE_RECORDS), "--record-size", "100", "--throughput", "-1"),
        "",
    ),
    "configs-topic": (CONFIGS, topic_config("--describe"), ""),
    "configs-topic-all": (CONFIGS, topic_config("--describe", "--all"), ""),
    "configs-topic-alter": (
        CONFIGS,
        topic_config("--alter", "--add-config", "retention.ms=100000,flush.ms=7000"),
        "",
    ),
    "configs-topic-delete": (CONFIGS, topic_config("--alter", "--delete-config", "retention.ms"), ""),
    "configs-topic-altered": (CONFIGS, topic_config("--describe"), ""),
    "configs-topic-invalid": (CONFIGS, topic_config("--alter", "--add-config", "retention.ms=none"), ""),
    "configs-topic-unknown": (CONFIGS, topic_config("--alter", "--add-config", "no.such.key=1"), ""),
    "configs-no-topic": (CONFIGS, on("--describe", "--entity-type", "topics", "--entity-name", "absent"), ""),
    "configs-broker-all": (CONFIGS, broker_config("--describe", "--all"), ""),
    "configs-broker-alter": (
        CONFIGS,
        broker_config("--alter", "--add-config", "log.cleaner.threads=2,num.io.threads=9"),
        "",
    ),
    "configs-broker-default": (
        CONFIGS,
        on("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=777777777"),
        "",
    ),
    "configs-broker-read-only": (CONFIGS, broker_config("--alter", "--add-config", "log.dirs=/elsewhere"), ""),
    "configs-broker-invalid": (CONFIGS, broker_config("--alter", "--add-config", "log.cleaner.threads=none"), ""),
    "configs-broker": (CONFIGS, broker_config("--describe"), ""),
    "configs-brokers-default": (CONFIGS, on("--describe", "--entity-type", "brokers", "--entity-default"), ""),
    "configs-by-controller": (CONFIGS, controller_config("--entity-type", "brokers", "--entity-name", "1", "--all"), ""),
    "configs-by-controller-default": (CONFIGS, controller_config("--entity-type", "brokers", "--entity-default"), ""),
    "configs-by-controller-brokers": (CONFIGS, controller_config("--entity-type", "brokers"), ""),
    "configs-by-controller-no-broker": (CONFIGS, controller_config("--entity-type", "brokers", "--entity-name", "7"), ""),
    "configs-topic-inherits": (CONFIGS, topic_config("--describe", "--all"), ""),
    "configs-logger": (CONFIGS, logger_config("--alter", "--add-config", "kafka.request.logger=ERROR,root=WARN"), ""),
    "configs-logger-back": (CONFIGS, logger_config("--alter", "--delete-config", "kafka.request.logger"), ""),
    "configs-logger-root": (CONFIGS, logger_config("--alter", "--delete-config", "root"), ""),
    "configs-logger-absent": (CONFIGS, logger_config("--alter", "--add-config", "no.such.logger=INFO"), ""),
    "configs-logger-level": (CONFIGS, logger_config("--alter", "--add-config", "root=LOUD"), ""),
    "configs-no-broker": (CONFIGS, on("--describe", "--entity-type", "brokers", "--entity-name", "7"), ""),
    "configs-client-metrics": (
        CONFIGS,
        on("--alter", "--entity-type", "client-metrics", "--entity-name", "m", "--add-config", "interval.ms=1000"),
        "",
    ),
    "configs-client-metrics-describe": (CONFIGS, on("--describe", "--entity-type", "client-metrics"), ""),
    **{f"offsets-{time}": (OFFSETS, on("--topic", "one", "--time", time), "") for time in TIMES},
    "offsets-by-time": (OFFSETS, on("--topic", "one", "--time", "1000"), ""),
    "offsets-future": (OFFSETS, on("--topic", "one", "--time", "9000000000000"), ""),
    "offsets-partition": (OFFSETS, on("--topic-partitions", "one:0"), ""),
    "offsets-absent": (OFFSETS, on("--topic", "absent"), ""),
    "delete-records": (f"{TOOLS}DeleteRecordsCommand", deleting("delete.json"), ""),
    "offsets-after-delete": (OFFSETS, on("--topic", "one", "--time", "earliest"), ""),
    "delete-records-too-high": (f"{TOOLS}DeleteRecordsCommand", deleting("too-high.json"), ""),
    "console-consumer-deleted": (
        CONSUMER,
        on("--topic", "one", "--partition", "0", "--offset", "earliest", "--max-messages", "2", "--timeout-ms", "20000"),
        "",
    ),
    "log-dirs": (f"{TOOLS}LogDirsCommand", on("--describe", "--topic-list", "one,made"), ""),
    "quorum-status": (QUORUM, on("describe", "--status"), ""),
    "quorum-replication": (QUORUM, on("describe", "--replication"), ""),
    "features": (FEATURES, on("describe"), ""),
    "features-upgrade": (FEATURES, on("upgrade", "--release-version", "4.3", "--dry-run"), ""),
    "features-too-high": (FEATURES, on("upgrade", "--feature", "group.version=9", "--dry-run"), ""),
    "features-downgrade": (FEATURES, on("downgrade", "--feature", "metadata.version=7", "--dry-run"), ""),
    "api-versions": (f"{TOOLS}BrokerApiVersionsCommand", on(), ""),
    "dump-log": (DUMP, lambda place: ("--print-data-log", "--files", str(place.data / "one-0" / f"{0:020}.log")), ""),
    "dump-index": (DUMP, lambda place: ("--index-sanity-check", "--files", str(place.data / "made-0" / f"{0:020}.index")), ""),
    "dump-metadata": (
        DUMP,
        lambda place: ("--cluster-metadata-decoder", "--files", str(place.data / "__cluster_metadata-0" / f"{0:020}.log")),
        "",
    ),
    "cluster-id": (CLUSTER, lambda place: ("cluster-id", "--bootstrap-server", place.bootstrap), ""),
    "cluster-endpoints": (CLUSTER, lambda place: ("list-endpoints", "--bootstrap-server", place.bootstrap), ""),
    "elect-preferred": (ELECTION, on("--election-type", "preferred", "--all-topic-partitions"), ""),
    "elect-unclean": (ELECTION, on("--election-type", "unclean", "--topic", "one", "--partition", "0"), ""),
    "elect-absent": (ELECTION, on("--election-type", "preferred", "--topic", "absent", "--partition", "0"), ""),
    "delete": (TOPICS, on("--delete", "--topic", "made"), ""),
    "describe-deleted": (TOPICS, on("--describe", "--topic", "made"), ""),
    "delete-absent": (TOPICS, on("--delete", "--topic", "made"), ""),
    "list-after": (TOPICS, on("--list", "--exclude-internal"), ""),
}
# Compared by a rule of their own below, since they tell what differs by nature.
OWN_RULE = ("perf", "api-versions", "log-dirs", "dump-metadata", "dump-index", "offsets-max-timestamp", "offsets--3")
DELETIONS = {
    "delete.json": [{"topic": "one", "partition": 0, "offset": 1}],
    "too-high.json": [{"topic": "one", "partition": 0, "offset": 1000}],
}


def run_all(peer: Peer, place: Place) -> dict[str, Outcome]:
    """Every case, in order, on one broker."""
    for name, partitions in DELETIONS.items():
        (place.files / name).write_text(json.dumps({"partitions": partitions, "version": 1}))
    cases = [ToolCase(tool, words(place), stdin) for tool, words, stdin in CASES.values()]
    outcomes = peer.run_tools(cases, LIMIT_SECONDS)
    return {
        name: Outcome(neutral(one.stdout.decode(), place).encode(), neutral(one.stderr, place), one.exit_code)
        for name, one in zip(CASES, outcomes, strict=True)
    }


def run_sorted(
    peer: Peer, place: Place, cases: dict[str, ToolCase], clean: Callable[[str, Place], str], limit_seconds: int
) -> dict[str, Outcome]:
    """Run tools in order; the lines of stdout are sorted, as the order of groups is that of a hash map."""
    found = {}
    for name, one in zip(cases, peer.run_tools(list(cases.values()), limit_seconds), strict=True):
        lines = sorted(clean(one.stdout.decode(), place).splitlines())
        found[name] = Outcome("\n".join(lines).encode(), clean(one.stderr, place), one.exit_code)
    return found


def assert_prints_the_same(kcli: Outcome, kafka: Outcome) -> None:
    """Compare exit code, stdout and the errors on stderr."""
    assert kcli.stdout.decode().splitlines() == kafka.stdout.decode().splitlines()
    assert (kcli.exit_code, kcli.stderr.splitlines()) == (kafka.exit_code, kafka.stderr.splitlines())


def neutral(printed: str, place: Place) -> str:
    """What a tool printed, without what differs by nature, and without stack traces."""
    port = int(place.bootstrap.split(":")[1])
    text = printed.replace(str(place.data), "DATA").replace(str(place.files), "FILES")
    text = re.sub(rf"\b{port}\b", "PORT", re.sub(rf"\b{port + 1}\b", "CONTROLLER", text))
    text = re.sub(r"(?m)^(\tat |Caused by: |\t\.\.\. ).*\n?", "", text)
    text = re.sub(r"(TopicId: |Cluster ID: |ClusterId: +|\"?directoryId\"?: )\"?[\w-]{22}\"?", r"\1ID", text)
    text = re.sub(r"\[(\d{4}-\d\d-\d\d [\d:,]+)\]", "[TIME]", text)
    text = re.sub(NUMBERS, r"\1N", text)
    text = re.sub(LEVELS_OF_4_4, r"\1MAX\2", text)
    text = re.sub(r"(?m)^(\d+ +\t)[\w-]{22}\t\d+ +\t", r"\1ID\tN\t", re.sub(r"\b1[5-9]\d{11}\b", "TIME_MS", text))
    return re.sub(SENTENCES, r"\1 SAID", text)


@pytest.fixture(scope="module")
def by_kafka(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    home, files = tmp_path_factory.mktemp("kafka"), tmp_path_factory.mktemp("kafka-files")
    with new_broker(kafka_peer, home, properties=SETTINGS) as bootstrap:
        return run_all(kafka_peer, Place(bootstrap, home / "data", files))


@pytest.fixture(scope="module", params=["kcli", pytest.param("kafka", marks=pytest.mark.slow)])
def by_kcli(request: pytest.FixtureRequest, kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What the tools say of kcli; in the slow tier also of another Kafka, which shows what differs by nature."""
    home, files = tmp_path_factory.mktemp("subject"), tmp_path_factory.mktemp("subject-files")
    if request.param == "kafka":
        with new_broker(kafka_peer, home, properties=SETTINGS) as bootstrap:
            return run_all(kafka_peer, Place(bootstrap, home / "data", files))
    request.getfixturevalue("kcli_serves")
    with KcliBroker(home, properties=SETTINGS) as broker:
        return run_all(kafka_peer, Place(broker.bootstrap, broker.data, files))


@pytest.mark.parametrize("name", [name for name in CASES if name not in OWN_RULE])
def test_a_tool_prints_what_it_prints_of_kafka(by_kcli: dict[str, Outcome], by_kafka: dict[str, Outcome], name: str) -> None:
    assert_prints_the_same(by_kcli[name], by_kafka[name])


def test_producer_performance_sends_all(by_kcli: dict[str, Outcome]) -> None:
    """kafka-producer-perf-test says that all its records were sent."""
    outcome = by_kcli["perf"]
    assert outcome.exit_code == 0 and f"{PERFORMANCE_RECORDS} records sent" in outcome.stdout.decode()


# What kcli serves of Kafka 4.4 and a tool of 4.3.1 does not know; tests/oracle/kafka_4_4.py asks Kafka 4.4 itself.
VERSIONS_OF_4_4 = {
    "ApiVersions(18): 0 to 5 [usable: 4]",
    "TxnOffsetCommit(28): 0 to 6 [usable: 5]",
    "DeleteGroups(42): 0 to 3 [usable: 2]",
    "StreamsGroupHeartbeat(88): 0 to 1 [usable: 0]",
    "StreamsGroupDescribe(89): 0 to 1 [usable: 0]",
}


def test_what_is_not_served_is_not_advertised(
    request: pytest.FixtureRequest, by_kcli: dict[str, Outcome], by_kafka: dict[str, Outcome]
) -> None:
    """Each API that kcli advertises has the versions that Kafka advertises; what the issue of this broker asks for is there."""
    is_kafka = "kafka" in request.node.callspec.id
    kcli, kafka = (
        {line.strip().rstrip(",") for line in outcomes["api-versions"].stdout.decode().splitlines() if "usable" in line}
        for outcomes in (by_kcli, by_kafka)
    )
    # Kafka advertises client telemetry only where a plug-in receives it.
    assert {line for line in kcli - kafka if "Telemetry" not in line} == (set() if is_kafka else VERSIONS_OF_4_4)
    keys = {int(re.findall(r"\((\d+)\)", line)[0]) for line in kcli}
    assert keys >= {0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 34, 35, 37, 43, 44, 55, 57, 60, 61, 74, 75}


def test_log_dirs(by_kcli: dict[str, Outcome], by_kafka: dict[str, Outcome]) -> None:
    """kafka-log-dirs tells the partitions of each directory; sizes depend on how records met in batches."""
    told = []
    for outcomes in (by_kcli, by_kafka):
        lines = outcomes["log-dirs"].stdout.decode().splitlines()
        broker = json.loads(lines[-1])["brokers"][0]
        for directory in broker["logDirs"]:
            sizes = {one["partition"]: one.pop("size") for one in directory["partitions"]}
            assert all(sizes.values()), sizes
            directory["partitions"].sort(key=lambda one: str(one["partition"]))
        told.append((lines[:-1], broker))
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["dump-metadata", "dump-index"])
def test_kafka_dumps_what_kcli_wrote(by_kcli: dict[str, Outcome], name: str) -> None:
    """Kafka's dump tool finds nothing wrong in a metadata log and in an offset index."""
    outcome = by_kcli[name]
    assert (outcome.exit_code, outcome.stderr) == (0, "") and outcome.stdout
    assert not re.search(r"isvalid: false|[Mm]ismatch|[Ee]rror|Found", outcome.stdout.decode())


@pytest.mark.parametrize("name", ["offsets-max-timestamp", "offsets--3"])
def test_the_offset_of_the_largest_timestamp(by_kcli: dict[str, Outcome], name: str) -> None:
    """It is one of the three, as the milliseconds went."""
    assert re.fullmatch(r"one:0:[012]\n", by_kcli[name].stdout.decode())


def test_verifiable_producer(kcli_serves: None, kafka_peer: Peer, tmp_path: Path) -> None:
    """kafka-verifiable-producer has all its records acknowledged."""
    with KcliBroker(tmp_path) as broker:
        words = [f"{TOOLS}VerifiableProducer", "--bootstrap-server", broker.bootstrap, "--topic", "verifiable"]
        command = [str(kafka_peer.script), "java", *words, "--max-messages", "500", "--throughput", "2000", "--acks", "-1"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    sent = [one for one in told if one["name"] == "producer_send_success"]
    assert (ran.returncode, len(sent)) == (0, 500), ran.stdout[-2000:] + ran.stderr[-2000:]
