"""Apache Kafka judges the quorum: one controller of kcli and two of Kafka elect leaders of both kinds and have the same log;
brokers of each follow controllers of the other.

Kafka halts a process that gets a message against the rules of KRaft; here none does. kcli waits longer than Kafka before an
election: the second to ask for pre-votes wins, since the first asks while the other still believes in the leader.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.server.raft.metadata_batches import decode_batches
from tests.oracle.peer import Peer
from tests.server.live import wait_for
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, read, send

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

KCLI = 1
# The most leaders that are killed until one of each kind has led.
MOST_ELECTIONS = 8


def of_kafka(
    peer: Peer, home: Path, node_id: int, ports: list[int], *settings: str, broker_port: int | None = None
) -> Controller:
    """A node of Kafka, formatted by Kafka's own tool."""
    command = [str(peer.script), "java", "kafka.Kafka"]
    controller = Controller(home, node_id, ports, command, *settings, broker_port=broker_port)
    return controller.format_by([str(peer.script), "java", "kafka.tools.StorageTool", "format"])


def test_a_quorum_of_both_kinds(each_kafka: Peer, tmp_path: Path) -> None:
    """Leaders are killed until both kinds have led; then the logs are equal byte by byte."""
    ports = free_ports(3)
    patience = "controller.quorum.fetch.timeout.ms=2500"
    own = Controller(tmp_path, KCLI, ports, kcli_command(), patience).format_by_kcli()
    controllers = [own, *(of_kafka(each_kafka, tmp_path, node_id, ports) for node_id in (2, 3))]
    with Quorum(controllers) as quorum:
        led, epoch = set(), 0
        for _ in range(MOST_ELECTIONS):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            led.add(leader is own)
            if led == {True, False}:
                break
            leader.end()
            quorum.elected(epoch)
            leader.start()
        assert led == {True, False}
    batches = list(decode_batches(quorum.common_log()))
    leaders = {batch.control_records[0].message.leader_id for batch in batches if batch.control_records}  # type: ignore[union-attr]
    assert KCLI in leaders
    assert leaders & {2, 3}
    assert faults([own]) == []


def check_broker(nodes: list[Controller]) -> None:
    """The last node, a broker, serves a client while the leading controller is killed, and has the same log as they."""
    broker = nodes[-1]
    settings = {"bootstrap.servers": broker.bootstrap}
    with Quorum(nodes) as quorum:
        leader = quorum.elected()
        epoch = leader.election.leader_epoch
        with Admin(settings) as admin, Producer(settings) as producer:
            admin.create_topics([NewTopic("t", 2)])
            wait_for(lambda: leaders_of(admin, "t") == {0: broker.node_id, 1: broker.node_id})
            sent = send(producer, "t", (0, 1), "first")
            assert read(broker.bootstrap, "t", len(sent)) == sent
            leader.end()
            later = send(producer, "t", (0, 1), "second")
            admin.create_topics([NewTopic("u", 1)])
            wait_for(lambda: leaders_of(admin, "u") == {0: broker.node_id})
            later |= send(producer, "t", (0, 1), "third")
            leader.start()
            quorum.elected(epoch)
            broker.end()
            broker.start()
            wait_for(lambda: leaders_of(admin, "t") == {0: broker.node_id, 1: broker.node_id})
            assert read(broker.bootstrap, "t", len(later)) == later
    quorum.common_log()


def test_a_broker_of_kcli_follows_controllers_of_kafka(each_kafka: Peer, tmp_path: Path) -> None:
    """It registers, is unfenced, forwards requests in envelopes and finds the leader again."""
    ports, broker_ports = free_ports(3), free_ports(1)
    nodes = [of_kafka(each_kafka, tmp_path, node_id, ports) for node_id in (1, 2, 3)]
    broker = Controller(tmp_path, 4, ports, kcli_command(), *BROKER, broker_port=broker_ports[0]).format_by_kcli()
    check_broker([*nodes, broker])
    assert faults([broker]) == []


def test_a_broker_of_kafka_follows_controllers_of_kcli(each_kafka: Peer, tmp_path: Path) -> None:
    """The controllers answer what a broker of Kafka asks, also after an election."""
    ports, broker_ports = free_ports(3), free_ports(1)
    nodes = [Controller(tmp_path, node_id, ports, kcli_command()).format_by_kcli() for node_id in (1, 2, 3)]
    broker = of_kafka(each_kafka, tmp_path, 4, ports, *BROKER, broker_port=broker_ports[0])
    check_broker([*nodes, broker])
    assert faults(nodes) == []
