"""Apache Kafka's tools judge the administration of a quorum: three controllers of kcli answer them as three of Kafka do.

A quorum of one (KIP-853) grows to three and shrinks by the tools, which ask the controllers (KIP-919): no broker runs. kcli's
own commands then ask both. What differs by nature is not compared: sentences of refusals, ports, ids, times, offsets, and which
controller leads. The tools are asked in steps, each of which begins when the quorum is in its state (`is_reached`): a tool
may ask any controller, and one that is behind answers with what was before.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.client import Admin
from kcli.client.errors import ClientError
from kcli.commands.app import main as kcli
from kcli.format.metadata_files import decode_meta_properties
from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.test_tools import LEVELS_OF_4_4
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


def ask(controllers: list[Controller], ports: list[int], admin: Admin, peer: Peer) -> list[object]:
    """What Kafka's tools, and then kcli's commands, end with and print, without what differs by nature."""
    metas = {one.node_id: (one.home / "data/meta.properties").read_bytes() for one in controllers}
    ids = {node_id: str(decode_meta_properties(text).directory_id) for node_id, text in metas.items()}
    names = {directory_id: f"D{node_id}" for node_id, directory_id in ids.items()}
    names |= {str(port): f"P{number}" for number, port in enumerate(ports, 1)}

    def normal(text: str) -> list[str]:
        text = text.replace(str(controllers[0].home.parent), "HOME")
        for name, other in names.items():
            text = re.sub(rf"\b{re.escape(name)}(?![\w-])", other, text)
        text = re.sub(r"(Could not \w+ [\w.]+ to \d+\.) .*", r"\1", text)
        text = re.sub(LEVELS_OF_4_4, r"\1-\2", text)
        text = re.sub(
            r"((?:LeaderId|LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs): +|Epoch: )-?\d+", r"\1N", text
        )
        # A row of `describe --replication`: only the node, its directory and whether it is an observer.
        text = re.sub(r"^(\d)\s+(D\d)\s+\d+\s+\d+\s+-?\d+\s+-?\d+\s+(Leader|Follower|Observer)", r"\1 \2 \3", text, flags=re.M)
        text = re.sub(r"(?<=: )\[\{.*\}\]$", lambda found: str(sorted(found[0][1:-1].split("}, "))), text, flags=re.MULTILINE)
        return sorted(line.replace("Leader", "Follower").rstrip() for line in text.splitlines())

    found: list[object] = []
    asked: list[tuple[ToolCase, Outcome]] = []
    for step in tool_steps(controllers, ids, addresses(ports)):
        wait_for(partial(is_reached, step, admin, ports))
        asked += zip(step.cases, peer.run_tools(step.cases, TOOL_SECONDS))
    for case, outcome in asked:
        out, err = (stream if isinstance(stream, str) else stream.decode() for stream in (outcome.stdout, outcome.stderr))
        errors = set(re.findall(r"org\.apache\.kafka\.common\.errors\.(\w+)", out + err))
        printed = [] if errors else normal(out)
        found.append((case.class_name.rpartition(".")[2], case.args[2:], outcome.exit_code, printed, sorted(errors)))
    return [(tool, normal(" ".join(words)), *rest) for tool, words, *rest in found]  # type: ignore[misc]


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
        settings = {"bootstrap.controllers": addresses(ports), "default.api.timeout.ms": 60_000}
        with Quorum(controllers), Admin(settings, log=lambda line: None) as admin:
            asked = ask(controllers, ports, admin, kafka_peer)
            answers[who] = [*asked, *commands(addresses(ports), capfd)]
    differing = [(own, kafkas) for own, kafkas in zip(answers["kcli"], answers["kafka"]) if own != kafkas]
    assert differing == []
