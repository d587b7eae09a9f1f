"""The names that jmx_exporter gives Apache Kafka's MBeans: `python -m tests.oracle.metric_names` asks and writes the fixture.

Kafka runs with the exporter's agent (from Maven) and jmx-exporter-rules.yml, its usual rules for Kafka; what shows only once
it happened (batches refused, too large) is made to happen first. The fixture has a line for each name and set of labels. A
second one has those of controllers and raft on the leader and a follower of three controllers, before and after an election,
and those of the metadata on a node that is only a broker.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from kcli.protocol import apis
from tests.oracle.config_questions import ask_all, create
from tests.oracle.peer import Peer, free_ports
from tests.oracle.raw_requests import RawClient
from tests.server.quorum_processes import CLUSTER_ID, Controller, Quorum
from tests.server.quorum_processes import free_ports as ports_of_controllers

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "metrics" / "kafka-names.txt"
CONTROLLERS_FIXTURE = FIXTURE.with_name("kafka-controllers.txt")
# The metrics of controllers, of the metadata quorum and of brokers' metadata.
OF_METADATA = re.compile(
    "kafka_(controller_|server_(raft_metrics|metadataloader|snapshotemitter|broker_metadata_metrics|brokermetadatalistener)_)"
)
IS_RUNNING = "kafka_server_kafkaserver_brokerstate 3.0"
AGENT = "jmx_prometheus_javaagent"
AGENT_VERSION = "1.0.1"
RULES = Path(__file__).with_name("jmx-exporter-rules.yml")


def write_fixture() -> None:
    """Ask Apache Kafka anew and put the names down."""
    with tempfile.TemporaryDirectory() as folder:
        FIXTURE.parent.mkdir(parents=True, exist_ok=True)
        FIXTURE.write_text(names_of(exposition(Path(folder))))
    with tempfile.TemporaryDirectory() as folder:
        lines = controllers_expositions(Path(folder) / "controllers") + broker_exposition(Path(folder) / "broker")
        CONTROLLERS_FIXTURE.write_text("".join(sorted(lines)))


def names_of(text: str) -> str:
    """The names of an exposition with their labels, a line each."""
    found = set()
    for match in re.finditer(r"^(kafka_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.add((match[1], ",".join(sorted(re.findall(r'(\w+)="', match[2] or ""))) or "-"))
    return "".join(f"{name} {labels}\n" for name, labels in sorted(found))


def exposition(home: Path) -> str:
    """What the exporter shows of a new broker that has produced, fetched and refused."""
    script, port = str(Peer(home).script), free_ports()
    subprocess.run([script, "format", str(home / "broker"), str(port)], check=True, capture_output=True)
    agent = _agent(home, port + 2)
    subprocess.run(
        [script, "start", str(home / "broker")], check=True, env={**os.environ, "KAFKA_PEER_OPTS": f"-Xmx1g {agent}"}
    )
    try:
        _use(f"127.0.0.1:{port}")
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 2}/metrics") as answer:
            text: str = answer.read().decode()
        return text
    finally:
        subprocess.run([script, "stop", str(home / "broker")], check=True)


def _agent(home: Path, port: int) -> str:
    """The option of Java for the exporter's agent, which Maven brings."""
    coordinates = f"io.prometheus.jmx:{AGENT}:{AGENT_VERSION}"
    maven = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={home}"]
    subprocess.run(maven, check=True)
    return f"-javaagent:{home}/{AGENT}-{AGENT_VERSION}.jar={port}:{RULES}"


def controllers_expositions(home: Path) -> list[str]:
    """The lines of the fixture: role, name and labels."""
    script, ports = str(Peer(home).script), ports_of_controllers(6)
    controllers = []
    for node_id, metrics_port in zip((1, 2, 3), ports[3:]):
        controllers.append(_formatted(script, home, node_id, ports[:3], metrics_port))
    found: set[str] = set()
    with Quorum(controllers) as quorum:
        epoch = 0
        for is_last in (False, True):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            for controller in controllers:
                if controller.process is None:
                    continue
                role = "leader" if controller is leader else "follower"
                found |= _lines(role, _scrape(ports[2 + controller.node_id]))
            if not is_last:
                leader.end()
    return sorted(found)


def broker_exposition(home: Path) -> list[str]:
    """The lines of a node that is only a broker."""
    script, ports = str(Peer(home).script), ports_of_controllers(4)
    nodes = [
        _formatted(script, home, 1, ports[:1], ports[1]),
        _formatted(script, home, 2, ports[:1], ports[2], broker_port=ports[3]),
    ]
    with Quorum(nodes):
        text = ""
        while IS_RUNNING not in text:
            time.sleep(1)
            with suppress(OSError):
                text = _scrape(ports[2])
    return sorted(_lines("broker", text))


def _formatted(
    script: str, home: Path, node_id: int, ports: list[int], metrics_port: int, *, broker_port: int | None = None
) -> Controller:
    options = f"KAFKA_PEER_OPTS=-Xmx400m {_agent(home, metrics_port)}"
    node = Controller(home, node_id, ports, ["env", options, script, "java", "kafka.Kafka"], broker_port=broker_port)
    tool = [script, "java", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(node.properties)]
    subprocess.run(tool, check=True, capture_output=True)
    return node


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def _lines(role: str, text: str) -> set[str]:
    return {f"{role} {line}\n" for line in names_of(text).splitlines() if OF_METADATA.match(line)}


def _use(address: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError

    ask_all(address, [create("compacted", {"cleanup.policy": "compact"}), create("orders", {})])
    for topic, value in (("orders", b"x"), ("orders", bytes(1 << 21)), ("compacted", b"no key")):
        producer = KafkaProducer(bootstrap_servers=address, max_request_size=1 << 24)
        try:
            producer.send(topic, value).get(10)
        except KafkaError as error:
            print(topic, repr(error))
    consumer = KafkaConsumer(bootstrap_servers=address)
    partition = TopicPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    consumer.poll(3000)
    _share(address)


def _share(address: str) -> None:
    """Read and acknowledge as a member of a share group."""
    from confluent_kafka import ShareConsumer

    client = RawClient(address)
    struct, key = client.struct, apis.INCREMENTAL_ALTER_CONFIGS
    value = struct(key, "AlterableConfig", name="share.auto.offset.reset", config_operation=0, value="earliest")
    group = struct(key, "AlterConfigsResource", resource_type=32, resource_name="sharing", configs=[value])
    client.ask(key, 1, resources=[group], validate_only=False)
    client.close()
    sharing = ShareConsumer({"bootstrap.servers": address, "group.id": "sharing"})
    sharing.subscribe(["orders"])
    end = time.monotonic() + 30
    while not list(sharing.poll(1.0)) and time.monotonic() < end:
        pass
    sharing.commit_sync(10.0)
    sharing.close()


if __name__ == "__main__":
    write_fixture()
