"""Protects the script of docs/cluster.md that moves three nodes of Apache Kafka to kcli and back: it is run as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from tests.oracle.peer import Peer
from tests.server.quorum_processes import CLUSTER_ID, free_ports
from tests.test_cluster_page import run, scripts

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

KAFKA_PATIENCE_S = 180.0  # a start of three JVMs on two cores


def test_a_cluster_moves_to_kcli_and_back(each_kafka: Peer, tmp_path: Path) -> None:
    port, controller_port = free_ports(2)
    machines = tmp_path / "machines"
    hosts = {number: f"127.0.0.{number}" for number in (1, 2, 3)}
    voters = ",".join(f"{number}@{host}:{controller_port}:{Uuid(bytes([number]) * 16)}" for number, host in hosts.items())
    start = ""
    for number, host in hosts.items():
        for folder in ("etc/kafka", "var/lib/kafka"):
            (machines / host / folder).mkdir(parents=True)
        (machines / host / "etc/kafka/server.properties").write_text(
            "process.roles=broker,controller\n"
            f"node.id={number}\n"
            f"listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}\n"
            "controller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers={','.join(f'{one}:{controller_port}' for one in hosts.values())}\n"
            "log.dirs=var/lib/kafka\n"
            "default.replication.factor=3\n"
            "min.insync.replicas=2\n"
        )
        tool = f"{each_kafka.script} java kafka.tools.StorageTool format -c etc/kafka/server.properties"
        start += (
            f"ssh {host} {tool} --cluster-id {CLUSTER_ID} --initial-controllers {voters}\nssh {host} systemctl start kafka\n"
        )
    where = f"--bootstrap-server {hosts[1]}:{port}"
    start += f"until_prints orders kcli topics create --if-not-exists --topic orders --partitions 3 {where}\n"
    start += f"echo 'user-17:a book' | kcli produce --topic orders --key-separator : {where}\n"
    text = start + scripts("script with Kafka", port, controller_port)
    run(text, tmp_path / "work", machines, str(each_kafka.script), KAFKA_PATIENCE_S)
