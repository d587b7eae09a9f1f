"""Protects the promise that a running cluster moves from Apache Kafka to kcli and back, node by node, and loses nothing.

Three nodes are brokers and controllers. Each is stopped in order, and the other kind starts on its directory and its
server.properties, while clients produce to partitions of one replica on all nodes: those of the node wait. Then all go back.
Kafka's tools print the same at the beginning, when all nodes are of kcli, and at the end.
"""

from __future__ import annotations

import re
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kcli.client import Admin, Consumer, NewTopic, Producer
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.errors import ClientError
from kcli.format.kafka_uuid import Uuid
from tests.oracle.peer import Peer, ToolCase
from tests.server.live import PATIENCE_S, wait_for
from tests.server.quorum_processes import Controller, Quorum, addresses, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, read, send

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

NODES = (1, 2, 3)
PARTITIONS = 6
GROUP = "group"  # of `read`
DELIVERY_MS = 300_000
PAUSE_S = 0.02
TOOLS = "org.apache.kafka.tools."


class Sender:
    """Sends a record to each partition in turn until the end of a `with`; `acked` has those that were acknowledged."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.sent = 0
        self.acked: set[bytes] = set()
        self.errors: list[object] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        settings: dict[str, str | int] = {"bootstrap.servers": self.bootstrap, "delivery.timeout.ms": DELIVERY_MS}
        with Producer(settings) as producer:
            while not self._ends.wait(PAUSE_S):
                value = f"{self.name}-{self.sent}".encode()
                producer.send("t", value, partition=self.sent % PARTITIONS, on_delivery=partial(self._delivered, value))
                self.sent += 1
            producer.flush(PATIENCE_S)

    def _delivered(self, value: bytes, _: object, error: object) -> None:
        if error is None:
            self.acked.add(value)
        else:
            self.errors.append((value, error))


def cases(bootstrap: str) -> list[ToolCase]:
    """What is asked of the cluster."""
    where = ("--bootstrap-server", bootstrap)
    topic = ("--entity-type", "topics", "--entity-name", "kept")
    return [
        ToolCase(f"{TOOLS}TopicCommand", (*where, "--describe")),
        ToolCase("kafka.admin.ConfigCommand", (*where, "--describe", *topic)),
        ToolCase("kafka.admin.ConfigCommand", (*where, "--describe", "--entity-type", "brokers", "--entity-default")),
        ToolCase(f"{TOOLS}consumer.group.ConsumerGroupCommand", (*where, "--describe", "--group", GROUP)),
        ToolCase(f"{TOOLS}GetOffsetShell", (*where, "--topic", "kept")),
        ToolCase(f"{TOOLS}MetadataQuorumCommand", (*where, "describe", "--status")),
        ToolCase(f"{TOOLS}MetadataQuorumCommand", (*where, "describe", "--replication")),
        ToolCase(f"{TOOLS}FeatureCommand", (*where, "describe")),
        ToolCase(f"{TOOLS}ClusterTool", ("list-endpoints", *where)),
        ToolCase(f"{TOOLS}LogDirsCommand", (*where, "--describe", "--topic-list", "kept")),
    ]


def printed(peer: Peer, bootstrap: str) -> list[tuple[int, list[str]]]:
    """What Kafka's tools print and end with, without offsets of the metadata, epochs, times and who leads the quorum."""
    found = []
    for outcome in peer.run_tools(cases(bootstrap), 120):
        text = outcome.stdout.decode() + outcome.stderr
        text = re.sub(
            r"((?:LeaderId|LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs): +|Epoch: )-?\d+", r"\1N", text
        )
        text = re.sub(r"^(\d)\s+(\S{22})\s.*(Leader|Follower)\s*$", r"\1 \2", text, flags=re.M)
        text = re.sub(r"(SupportedMaxVersion: ).*(?= FinalizedVersionLevel)", r"\1N", re.sub(" +", " ", text))
        text = re.sub(
            r"(Configs: )(\S+)", lambda found: found[1] + ",".join(sorted(found[2].split(","))), text
        )  # of a hash map
        found.append((outcome.exit_code, sorted(line.rstrip() for line in text.splitlines())))
    return found


def all_lead(admin: Admin, topics: tuple[str, ...]) -> bool:
    """Return whether each partition has a leader."""
    leaders = [leader for topic in topics for leader in leaders_of(admin, topic).values()]
    return len(leaders) == PARTITIONS * len(topics) and set(leaders) == {*NODES}


def is_back(admin: Admin, node: Controller) -> bool:
    """Return whether a node that started is a broker and leads its partitions again."""
    with suppress(ClientError, OSError):
        return node.node_id in {one.node_id for one in admin.describe_cluster().nodes} and all_lead(admin, ("t", "kept"))
    return False


def read_all(bootstrap: str, count: int) -> list[bytes]:
    """All values of the topic, until there are so many."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "auto.offset.reset": "earliest"}
    values: list[bytes] = []
    with Consumer(settings) as consumer:
        consumer.subscribe(["t"])

        def has_all() -> bool:
            for record in consumer.poll(0.1):
                assert isinstance(record.value, bytes)
                values.append(record.value)
            return len(values) >= count

        wait_for(has_all)
    return values


def test_a_cluster_moves_to_kcli_and_back(each_kafka: Peer, tmp_path: Path) -> None:
    of_kafka = [str(each_kafka.script), "java", "kafka.Kafka"]
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, of_kafka, *BROKER, is_dynamic=True, broker_port=port)
        for node_id, port in zip(NODES, broker_ports)
    ]
    voters = ",".join(f"{node_id}@127.0.0.1:{port}:{Uuid(bytes([node_id]) * 16)}" for node_id, port in zip(NODES, ports))
    for node in nodes:
        node.format_by([str(each_kafka.script), "java", "kafka.tools.StorageTool", "format"], "--initial-controllers", voters)
    bootstrap = addresses(broker_ports)
    settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": 60_000}
    assignments = {partition: [NODES[partition % len(NODES)]] for partition in range(PARTITIONS)}
    seen = {}
    with Quorum(nodes) as quorum, Admin(settings, log=lambda line: None) as admin, Producer(settings) as producer:
        quorum.elected()
        wait_for(lambda: {node.node_id for node in admin.describe_cluster().nodes} == {*NODES})
        for topic in ("t", "kept"):
            value_of(admin.create_topics([NewTopic(topic, assignments=assignments)])[topic])
        for resource in (ConfigResource(ResourceType.TOPIC, "kept"), ConfigResource(ResourceType.BROKER, "")):
            key = "retention.ms" if resource.name else "log.retention.ms"
            value_of(
                admin.incremental_alter_configs({resource: [AlterConfigOp(key, AlterOperation.SET, "99999999")]})[resource]
            )
        wait_for(partial(all_lead, admin, ("t", "kept")))
        kept = send(producer, "kept", range(PARTITIONS), "kept")
        assert read(bootstrap, "kept", len(kept)) == kept
        seen["kafka"] = printed(each_kafka, bootstrap)
        with Sender(bootstrap, "first") as first, Sender(bootstrap, "second") as second:
            for kind, command in (("kcli", kcli_command()), ("kafka again", of_kafka)):
                for node in nodes:
                    node.end(signal.SIGTERM)
                    node.command = command
                    node.start()
                    wait_for(partial(is_back, admin, node))
                    before = len(first.acked)
                    wait_for(lambda before=before: len(first.acked) > before + 2 * PARTITIONS)  # type: ignore[misc]
                seen[kind] = printed(each_kafka, bootstrap)
        for sender in (first, second):
            assert sender.errors == []
            assert len(sender.acked) == sender.sent
        values = read_all(bootstrap, first.sent + second.sent)
        assert sorted(values) == sorted(first.acked | second.acked)
    for kind in ("kcli", "kafka again"):
        differing = [f"{own}\n{kafkas}" for own, kafkas in zip(seen[kind], seen["kafka"]) if own != kafkas]
        assert not differing, "\n".join(["", kind, *differing])
    assert [line for line in faults(nodes) if not line.startswith("[")] == []  # Kafka's lines begin so
