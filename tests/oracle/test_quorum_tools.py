"""Apache Kafka's tools judge the administration of a quorum: three controllers of kcli answer them as three of Kafka do.

A quorum of one (KIP-853) grows to three and shrinks by the tools, which ask the controllers (KIP-919): no broker runs. kcli's
own commands then ask both. What differs by nature is not compared: sentences of refusals, ports, ids, times, offsets, and which
controller leads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kcli.client import Admin
from kcli.commands.app import main as kcli
from kcli.format.metadata_files import decode_meta_properties
from tests.oracle.peer import Peer, ToolCase
from tests.oracle.test_tools import LEVELS_OF_4_4
from tests.server.live import wait_for
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


def formatted(peer: Peer | None, home: Path, ports: list[int]) -> list[Controller]:
    """Three controllers, of Kafka or of kcli (None); the first is the only voter."""
    command = kcli_command() if peer is None else [str(peer.script), "java", "kafka.Kafka"]
    found = [Controller(home, node_id, ports, command, is_dynamic=True) for node_id in NODES]
    options = [FIRST if one.node_id == 1 else LATER for one in found]
    if peer is None:
        for one, option in zip(found, options):
            one.format_by_kcli(option)
        return found
    formats = [("-c", str(one.properties), "-t", CLUSTER_ID, option) for one, option in zip(found, options)]
    outcomes = peer.run_tools([ToolCase(STORAGE, ("format", *words)) for words in formats])
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    return found


def tool_cases(controllers: list[Controller], ids: dict[int, str], bootstrap: str) -> list[ToolCase]:
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

    return [
        quorum("describe", "--status"),
        added(2, "--dry-run"),
        added(2),
        added(3),
        added(2),
        quorum("describe", "--status"),
        quorum("describe", "--replication"),
        removed(3, ids[2]),
        removed(9, ids[2]),
        removed(3, "AAAAAAAAAAAAAAAAAAAAAA"),
        removed(3, ids[3]),
        quorum("describe", "--status"),
        ToolCase(FEATURES, (*where, "describe")),
        ToolCase(FEATURES, (*where, "upgrade", "--feature", "group.version=9")),
        ToolCase(FEATURES, (*where, "downgrade", "--feature", "share.version=0", "--dry-run")),
        ToolCase(CLUSTER, ("cluster-id", *where)),
        ToolCase(CLUSTER, ("list-endpoints", *where)),
        ToolCase(CLUSTER, ("list-endpoints", *where, "--include-fenced-brokers")),
        ToolCase(CLUSTER, ("unregister", *where, "--id", "9")),
        ToolCase(CONFIGS, (*where, "--describe", *brokers, "--entity-default")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-default", "--add-config", "log.retention.ms=5")),
        ToolCase(CONFIGS, (*where, "--describe", *brokers, "--entity-default")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-name", "9", "--add-config", "log.retention.ms=5")),
        ToolCase(CONFIGS, (*where, "--alter", *brokers, "--entity-name", "1", "--add-config", "log.retention.ms=6")),
        ToolCase(CONFIGS, (*where, "--describe", "--entity-type", "topics")),
        ToolCase(ACLS, (*where, "--list")),
        ToolCase(REASSIGN, (*where, "--list")),
    ]


def ask(controllers: list[Controller], bootstrap: str, peer: Peer) -> list[object]:
    """What Kafka's tools, and then kcli's commands, end with and print, without what differs by nature."""
    metas = {one.node_id: (one.home / "data/meta.properties").read_bytes() for one in controllers}
    ids = {node_id: str(decode_meta_properties(text).directory_id) for node_id, text in metas.items()}
    names = {directory_id: f"D{node_id}" for node_id, directory_id in ids.items()}
    names |= {text.rpartition(":")[2]: f"P{number}" for number, text in enumerate(bootstrap.split(","), 1)}

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
    cases = tool_cases(controllers, ids, bootstrap)
    for case, outcome in zip(cases, peer.run_tools(cases, TOOL_SECONDS)):
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
            wait_for(lambda admin=admin: len(admin.describe_cluster().nodes) == len(NODES))
            wait_for(lambda admin=admin: len(admin.describe_metadata_quorum().observers) == len(NODES) - 1)
            asked = ask(controllers, addresses(ports), kafka_peer)
            answers[who] = [*asked, *commands(addresses(ports), capfd)]
    differing = [(own, kafkas) for own, kafkas in zip(answers["kcli"], answers["kafka"]) if own != kafkas]
    assert differing == []
