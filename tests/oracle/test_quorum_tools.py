"""Apache Kafka's tools judge the administration of a quorum: three controllers of kcli answer them as three of Kafka do.

A quorum of one (KIP-853) grows to three and shrinks by the tools, which ask the controllers (KIP-919): no broker runs. kcli's
own commands then ask both. What differs by nature is not compared: sentences of refusals, ports, ids, times, offsets, and which
controller leads. The tools are asked in steps, each of which begins when the quorum is in its state (`is_reached`): a tool
may ask any controller, and one that is behind answers with what was before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.client import Admin
from kcli.client.errors import ClientError
from kcli.commands.app import main as kcli
from kcli.format.metadata_files import decode_meta_properties
from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, METADATA
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.test_tools import LEVELS_OF_4_4, SENTENCES
from tests.server.live import LiveClient, wait_for
from tests.server.quorum_processes import CLUSTER_ID, Controller, Quorum, addresses, free_ports, kcli_command

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

ACLS = "org.apache.kafka.tools.AclCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
STORAGE = "kafka.tools.StorageTool"
TOPICS = "org.apache.kafka.tools.TopicCommand"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"

TOOL_SECONDS = 120
NODES = (1, 2, 3)
FIRST = "--standalone"
LATER = "--no-initial-controllers"
# On a busy machine a fetch may take longer than 2 s, Kafka's default, and another controller would be elected.
PATIENT = "controller.quorum.fetch.timeout.ms=60000"
RETENTION = "log.retention.ms"
BROKER_RESOURCE, CONTROLLER_ENDPOINTS = 4, 2  # in DescribeConfigs, in DescribeCluster


def formatted(peer: Peer | None, home: Path, ports: list[int]) -> list[Controller]:
    """Three controllers, of Kafka or of kcli (None); the first is the only voter."""
    command = kcli_command() if peer is None else [str(peer.script), "java", "kafka.Kafka"]
    found = [Controller(home, node_id, ports, command, PATIENT, is_dynamic=True) for node_id in NODES]
    options = [FIRST if one.node_id == 1 else LATER for one in found]
    if peer is None:
        for one, option in zip(found, options):
            one.format_by_kcli(option)
        return found
    formats = [("-c", str(one.properties), "-t", CLUSTER_ID, option) for one, option in zip(found, options)]
    outcomes = peer.run_tools([ToolCase(STORAGE, ("format", *words)) for words in formats])
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    return found


class Step(NamedTuple):
    """Cases that follow one another without a wait, and the state in which they begin."""

    voters: set[int]
    retention_ms: list[str]  # log.retention.ms of all brokers, if it is set
    cases: list[ToolCase]


def is_reached(step: Step, admin: Admin, ports: list[int]) -> bool:
    """Return whether the quorum has these voters, all follow its leader and lack nothing, and each has applied what it has."""
    with suppress(ClientError, OSError):
        quorum = admin.describe_metadata_quorum()
        followed = {one.replica_id: one.log_end_offset for one in (*quorum.voters, *quorum.observers)}
        return (
            {one.replica_id for one in quorum.voters} == step.voters
            and followed == dict.fromkeys(NODES, followed.get(quorum.leader_id))
            and all(applied(port) == ({*NODES}, step.retention_ms) for port in ports)
        )
    return False


def applied(port: int) -> tuple[set[int], list[str]]:
    """What one controller answers of the metadata that the cases change: the controllers, log.retention.ms of all brokers."""
    clusters, configs = API_KEYS[DESCRIBE_CLUSTER].request, API_KEYS[DESCRIBE_CONFIGS].request
    resource = configs.classes["DescribeConfigsResource"]
    default = resource(resource_type=BROKER_RESOURCE, resource_name="", configuration_keys=[RETENTION])
    with LiveClient(port) as client:
        cluster = client.ask(DESCRIBE_CLUSTER, 1, clusters.new(endpoint_type=CONTROLLER_ENDPOINTS))
        (found,) = client.ask(DESCRIBE_CONFIGS, 4, configs.new(resources=[default])).results
    return {one.broker_id for one in cluster.brokers}, [one.value for one in found.configs]


def tool_steps(controllers: list[Controller], ids: dict[int, str], bootstrap: str) -> list[Step]:
    """What the tools are asked, in this order."""
    where = ("--bootstrap-controller", bootstrap)
    brokers = ("--entity-type", "brokers")

    def quorum(*words: str) -> ToolCase:
        return ToolCase(QUORUM, (*where, *words))

    def added(node_id: int, *words: str) -> ToolCase:
        config = str(controllers[node_id - 1].properties)
        return ToolCase(QUORUM, (*where, "--command-config", config, "add-controller", *words))

    def removed(node_id: int, directory_id: str) -> ToolCase:
        return quorum("remove-controller", "--controller-id", str(node_id), "--controller-directory-id", directory_id)

    alone = [quorum("describe", "--status"), added(2, "--dry-run"), added(2)]
    two = [quorum("describe", "--status"), added(2), added(3)]
    three = [
        quorum("describe", "--status"),
        quorum("describe", "--replication"),
        removed(3, ids[2]),
        removed(9, ids[2]),
        removed(3, "AAAAAAAAAAAAAAAAAAAAAA"),
        removed(3, ids[3]),
    ]
    fewer = [
        quorum("describe", "--status"),
        ToolCase(FEATURES, (*where, "describe")),
        ToolCase(FEATURES, (*where, "upgrade", "--feature", "group.version=9")),
        ToolCase(FEATURES, (*where, "downgrade", "--feature", "share.version=0", "--dry-run")),
        ToolCase(CLUSTER, ("cluster-id", *where)),
        ToolCase(CLUSTER, ("list-endpoints", *where)),
        ToolCase(CLUSTER, ("list-endpoints", *where, "--include-fenced-brokers")),
        ToolCase(CLUSTER, ("unregister", *where, "--id", "9")),
        ToolCase(CONFIGS, (*where, "--describe", *brokers, "--entity-default")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-default", "--add-config", f"{RETENTION}=5")),
    ]
    altered = [
        ToolCase(CONFIGS, (*where, "--describe", *brokers, "--entity-default")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-name", "9", "--add-config", f"{RETENTION}=5")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-name", "1", "--add-config", f"{RETENTION}=6")),
        ToolCase(CONFIGS, (*where, "--describe", "--entity-type", "topics")),
        ToolCase(ACLS, (*where, "--list")),
        ToolCase(REASSIGN, (*where, "--list")),
    ]
    return [
        Step({1}, [], alone),
        Step({1, 2}, [], two),
        Step({1, 2, 3}, [], three),
        Step({1, 2}, [], fewer),
        Step({1, 2}, ["5"], altered),
    ]


Normal = Callable[[str], list[str]]


def directory_ids(controllers: list[Controller]) -> dict[int, str]:
    """The directory of each node, by node.id."""
    metas = {one.node_id: (one.home / "data/meta.properties").read_bytes() for one in controllers}
    return {node_id: str(decode_meta_properties(text).directory_id) for node_id, text in metas.items()}


def normalizer(controllers: list[Controller], ports: list[int]) -> Normal:
    """Return what makes lines of what a tool prints, without what differs by nature."""
    names = {directory_id: f"D{node_id}" for node_id, directory_id in directory_ids(controllers).items()}
    names |= {str(port): f"P{number}" for number, port in enumerate(ports, 1)}

    def normal(text: str) -> list[str]:
        text = text.replace(str(controllers[0].home.parent), "HOME")
        for name, other in names.items():
            text = re.sub(rf"\b{re.escape(name)}(?![\w-])", other, text)
        text = re.sub(r"(Could not \w+ [\w.]+ to \d+\.) .*", r"\1", text)
        text = re.sub(SENTENCES, r"\1", text)
        text = re.sub(
            r"(Configs: )(\S+)", lambda found: found[1] + ",".join(sorted(found[2].split(","))), text
        )  # of a hash map
        text = re.sub(r"(TopicId: )[\w-]{22}", r"\1ID", text)
        text = re.sub(LEVELS_OF_4_4, r"\1-\2", text)
        text = re.sub(
            r"((?:LeaderId|LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs): +|Epoch: )-?\d+", r"\1N", text
        )
        # A row of `describe --replication`: only the node, its directory and whether it is an observer.
        text = re.sub(
            r"^(\d)\s+(D\d)\s+\d+\s+\d+\s+-?\d+(?: ms ago)?\s+-?\d+(?: ms ago)?\s+(Leader|Follower|Observer)",
            r"\1 \2 \3",
            text,
            flags=re.M,
        )
        text = re.sub(r"(?<= )\[\{(.*)\}\]$", lambda found: str(sorted(found[1].split("}, {"))), text, flags=re.MULTILINE)
        # kafka-broker-api-versions: only the nodes, since test_tools.py compares the versions.
        text = re.sub(r"^\t\w+\(\d+\): .*\n", "", text, flags=re.MULTILINE)
        return sorted(line.replace("Leader", "Follower").rstrip() for line in text.splitlines())

    return normal


def ask(controllers: list[Controller], ports: list[int], admin: Admin, peer: Peer) -> list[object]:
    """What Kafka's tools end with and print, without what differs by nature."""
    asked: list[tuple[ToolCase, Outcome]] = []
    for step in tool_steps(controllers, directory_ids(controllers), addresses(ports)):
        wait_for(partial(is_reached, step, admin, ports))
        asked += zip(step.cases, peer.run_tools(step.cases, TOOL_SECONDS))
    return compared(asked, normalizer(controllers, ports))


def compared(asked: list[tuple[ToolCase, Outcome]], normal: Normal) -> list[object]:
    """What of outcomes is compared: of a refusal the error, since the sentences differ."""
    found: list[object] = []
    for case, outcome in asked:
        out, err = (stream if isinstance(stream, str) else stream.decode() for stream in (outcome.stdout, outcome.stderr))
        errors = set(re.findall(r"org\.apache\.kafka\.common\.errors\.(\w+)", out + err))
        tool, words = case.class_name.rpartition(".")[2], normal(" ".join(case.args[2:]))
        found.append((tool, words, outcome.exit_code, [] if errors else normal(out), sorted(errors)))
    return found


def assert_equal(answers: dict[str, list[object]]) -> None:
    """Compare what the two quorums said, case by case."""
    differing = [
        f"kcli:  {own}\nkafka: {kafkas}" for own, kafkas in zip(answers["kcli"], answers["kafka"], strict=True) if own != kafkas
    ]
    assert not differing, "\n".join(["", *differing])


def commands(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> list[object]:
    """What kcli's commands end with, and what they print of the nodes."""
    where = ("--bootstrap-controller", bootstrap, "--output", "json", "--timeout", "60")
    codes: list[object] = []
    for words in (
        ("cluster", "features"),
        ("cluster", "api-versions"),
        ("cluster", "unregister", "--id", "9"),
        ("configs", "describe", "--entity-type", "brokers"),
        ("configs", "describe", "--entity-type", "topics"),
    ):
        codes.append((words, kcli([*words, *where])))
    capfd.readouterr()
    assert kcli(["cluster", "nodes", *where]) == 0
    nodes = json.loads(capfd.readouterr().out)
    assert kcli(["cluster", "quorum", *where]) == 0
    replicas = json.loads(capfd.readouterr().out)["replicas"]
    states = [(row["node"], row["status"] == "observer") for row in replicas]
    return [*codes, nodes["clusterId"], [row["node"] for row in nodes["nodes"]], sorted(states)]


def test_tools_of_a_quorum(kafka_peer: Peer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answers = {}
    for who, peer in (("kafka", kafka_peer), ("kcli", None)):
        ports = free_ports(3)
        controllers = formatted(peer, tmp_path / who, ports)
        settings: dict[str, str | int] = {"bootstrap.controllers": addresses(ports), "default.api.timeout.ms": 60_000}
        with Quorum(controllers), Admin(settings, log=lambda line: None) as admin:
            asked = ask(controllers, ports, admin, kafka_peer)
            answers[who] = [*asked, *commands(addresses(ports), capfd)]
    assert_equal(answers)


def broker_steps(nodes: list[Controller], where: tuple[str, ...]) -> list[list[ToolCase]]:
    """What the tools are asked of three nodes that are brokers and controllers; between two lists all nodes catch up."""
    config = ("-c", str(nodes[1].properties))
    topic, broker, default = ("--entity-type", "topics", "--entity-name", "t"), ("--entity-type", "brokers"), "--entity-default"

    def on(tool: str, *words: str) -> ToolCase:
        return ToolCase(tool, (*where, *words))

    def named(node_id: int) -> tuple[str, ...]:
        return (*broker, "--entity-name", str(node_id))

    return [
        [
            ToolCase(STORAGE, ("info", *config)),
            ToolCase(STORAGE, ("format", *config, "-t", CLUSTER_ID, LATER)),
            ToolCase(STORAGE, ("format", *config, "-t", CLUSTER_ID, LATER, "--ignore-formatted")),
            ToolCase(STORAGE, ("format", *config, "-t", "otherOtherOtherOtherOg", LATER)),
            on(VERSIONS),
            on(FEATURES, "describe"),
            on(FEATURES, "upgrade", "--release-version", "4.3", "--dry-run"),
            on(FEATURES, "downgrade", "--feature", "group.version=0", "--dry-run"),
            on(FEATURES, "downgrade", "--feature", "metadata.version=7", "--dry-run"),
            on(FEATURES, "disable", "--feature", "share.version"),
            ToolCase(CLUSTER, ("cluster-id", *where)),
            ToolCase(CLUSTER, ("list-endpoints", *where)),
            ToolCase(CLUSTER, ("unregister", *where, "--id", "9")),
            on(QUORUM, "describe", "--status"),
            on(QUORUM, "describe", "--replication", "--human-readable"),
            on(TOPICS, "--create", "--topic", "t", "--replica-assignment", "1,2,3", "--config", "retention.ms=7"),
            on(TOPICS, "--create", "--topic", "spread", "--partitions", "9"),
            on(TOPICS, "--create", "--topic", "gone", "--replica-assignment", "3"),
            on(TOPICS, "--create", "--topic", "nowhere", "--replica-assignment", "7"),
            on(TOPICS, "--create", "--topic", "four", "--replication-factor", "4"),
        ],
        [
            on(TOPICS, "--list"),
            on(TOPICS, "--describe", "--topic", "t"),
            on(TOPICS, "--describe", "--topic", "gone"),
            on(TOPICS, "--describe", "--unavailable-partitions"),
            on(TOPICS, "--alter", "--topic", "t", "--partitions", "5", "--replica-assignment", "1,2,3,2,1"),
            on(TOPICS, "--alter", "--topic", "t", "--partitions", "2"),
            on(TOPICS, "--delete", "--topic", "gone"),
            on(CONFIGS, "--describe", *topic, "--all"),
            on(CONFIGS, "--alter", *topic, "--add-config", "segment.bytes=1048576,cleanup.policy=compact"),
            on(CONFIGS, "--alter", *topic, "--add-config", "cleanup.policy=none"),
            on(CONFIGS, "--alter", *broker, default, "--add-config", f"{RETENTION}=5"),
            on(CONFIGS, "--alter", *named(2), "--add-config", "log.cleaner.threads=2"),
            on(CONFIGS, "--alter", *named(3), "--add-config", "log.dirs=/elsewhere"),
            on(CONFIGS, "--alter", *named(7), "--add-config", "log.cleaner.threads=2"),
        ],
        [
            on(TOPICS, "--list"),
            on(TOPICS, "--describe", "--topic", "t"),
            on(TOPICS, "--describe", "--topics-with-overrides"),
            on(TOPICS, "--describe", "--topic", "gone"),
            on(CONFIGS, "--describe", *topic),
            *(on(CONFIGS, "--describe", *named(node_id), "--all") for node_id in NODES),
            on(CONFIGS, "--describe", *broker, default),
            on(CONFIGS, "--describe", *broker),
        ],
    ]


def test_tools_of_three_brokers(kafka_peer: Peer, tmp_path: Path) -> None:
    """Nodes of both roles, all formatted by Kafka's tool; topics, configurations and features are asked of any broker."""
    answers = {}
    ids = [outcome.stdout.decode().strip() for outcome in kafka_peer.run_tools([ToolCase(STORAGE, ("random-uuid",))] * 3)]
    for who, command in (("kafka", [str(kafka_peer.script), "java", "kafka.Kafka"]), ("kcli", kcli_command())):
        ports, broker_ports = free_ports(3), free_ports(3)
        nodes = [
            Controller(tmp_path / who, node_id, ports, command, PATIENT, is_dynamic=True, broker_port=broker_port)
            for node_id, broker_port in zip(NODES, broker_ports)
        ]
        voters = ",".join(f"{node_id}@127.0.0.1:{port}:{own}" for node_id, port, own in zip(NODES, ports, ids))
        formats = [("format", "-c", str(one.properties), "-t", CLUSTER_ID, "--initial-controllers", voters) for one in nodes]
        outcomes = kafka_peer.run_tools([ToolCase(STORAGE, words) for words in formats])
        assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
        where = ("--bootstrap-server", addresses(broker_ports))
        settings: dict[str, str | int] = {"bootstrap.servers": addresses(broker_ports), "default.api.timeout.ms": 60_000}
        asked: list[tuple[ToolCase, Outcome]] = []
        with Quorum(nodes), Admin(settings, log=lambda line: None) as admin:
            for step in broker_steps(nodes, where):
                wait_for(partial(are_brokers_equal, admin, broker_ports))
                asked += zip(step, kafka_peer.run_tools(step, TOOL_SECONDS))
            answers[who] = compared(asked, normalizer(nodes, [*ports, *broker_ports]))
    assert_equal(answers)


def are_brokers_equal(admin: Admin, ports: list[int]) -> bool:
    """Return whether all nodes are voters and brokers and lack nothing, and each broker shows the same topics."""
    with suppress(ClientError, OSError):
        quorum = admin.describe_metadata_quorum()
        ends = {one.replica_id: one.log_end_offset for one in quorum.voters}
        shown = []
        for port in ports:
            with LiveClient(port) as client:
                answer = client.ask(METADATA, 12, API_KEYS[METADATA].request.new(topics=None))
                leaders = [(topic.name, [one.leader_id for one in topic.partitions]) for topic in answer.topics]
                shown.append((sorted(leaders), sorted(one.node_id for one in answer.brokers)))
        return (
            ends == dict.fromkeys(NODES, ends.get(quorum.leader_id))
            and all(one == shown[0] for one in shown)
            and shown[0][1] == [*NODES]
            and all(-1 not in leaders for _, leaders in shown[0][0])
        )
    return False
