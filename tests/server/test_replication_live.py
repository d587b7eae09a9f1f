"""Protects what was acknowledged with acks=all in a cluster of three brokers whose leaders are killed and come back."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.operation import value_of
from tests.server.live import wait_for
from tests.server.quorum_processes import Controller, Quorum, addresses, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, read, send

TOPIC = "replicated"
BROKERS = {1, 2, 3}
EARLY_FENCES = "broker.session.timeout.ms=3000"


def in_sync(admin: Admin, topic: str) -> set[frozenset[int]]:
    """The in-sync replicas of the partitions of a topic."""
    described = value_of(admin.describe_topics([topic])[topic])
    return {frozenset(one.isr) for one in described.partitions}


def log_of(node: Controller, topic: str, partition: int) -> bytes:
    """The batches of a replica."""
    segments = sorted((node.home / "data" / f"{topic}-{partition}").glob("*.log"))
    return b"".join(segment.read_bytes() for segment in segments)


def have_equal_logs(nodes: list[Controller], topic: str, partitions: int) -> bool:
    """Return whether the replicas have the same bytes, and some."""
    logs = [{log_of(node, topic, partition) for node in nodes} for partition in range(partitions)]
    return all(len(one) == 1 and one != {b""} for one in logs)


@pytest.mark.ci
def test_three_brokers_keep_what_was_acknowledged(tmp_path: Path) -> None:
    """Each leads and is killed, by SIGKILL and by SIGTERM; clients go on, and at the end the replicas have the same bytes."""
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *BROKER, EARLY_FENCES, broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum([node.format_by_kcli() for node in nodes]):
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        settings: dict[str, str | int] = {"bootstrap.servers": addresses(broker_ports)}
        with Admin(settings) as admin, Producer({**settings, "acks": "all"}) as producer:
            new = NewTopic(TOPIC, 3, 3, configs={"min.insync.replicas": "2"})
            value_of(admin.create_topics([new])[TOPIC])
            wait_for(lambda: set(leaders_of(admin, TOPIC).values()) == BROKERS)
            sent = send(producer, TOPIC, range(3), "first")
            wait_for(lambda: in_sync(admin, TOPIC) == {frozenset(BROKERS)})
            for number, (node, how) in enumerate(zip(nodes, (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL))):
                node.end(how)
                sent |= send(producer, TOPIC, range(3), f"while-{number}")
                assert node.node_id not in leaders_of(admin, TOPIC).values()
                node.start()
                wait_for(lambda: in_sync(admin, TOPIC) == {frozenset(BROKERS)})
            sent |= send(producer, TOPIC, range(3), "last")
            assert read(nodes[0].bootstrap, TOPIC, len(sent)) == sent
            wait_for(partial(have_equal_logs, nodes, TOPIC, 3))
    assert faults(nodes) == []


IN_THREE_COPIES = (
    *("offsets.topic.replication.factor=3", "offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0"),
    *(
        "transaction.state.log.replication.factor=3",
        "transaction.state.log.min.isr=2",
        "transaction.state.log.num.partitions=1",
    ),
)


@pytest.mark.ci
def test_groups_and_transactions_survive_the_brokers_that_coordinate_them(tmp_path: Path) -> None:
    """Committed offsets are there, and a transaction goes on, when the leader of their internal topic is killed."""
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *IN_THREE_COPIES, EARLY_FENCES, broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum([node.format_by_kcli() for node in nodes]) as quorum:
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        servers = addresses(broker_ports)
        settings: dict[str, str | int] = {"bootstrap.servers": servers, "acks": "all"}
        with Admin({"bootstrap.servers": servers}) as admin, Producer({**settings, "transactional.id": "x"}) as producer:
            new = NewTopic(TOPIC, 3, 3, configs={"min.insync.replicas": "2"})
            value_of(admin.create_topics([new])[TOPIC])
            wait_for(lambda: set(leaders_of(admin, TOPIC).values()) == BROKERS)
            producer.init_transactions()
            for number, topic in enumerate(("__consumer_offsets", "__transaction_state")):
                producer.begin_transaction()
                sent = send(producer, TOPIC, range(3), f"before-{number}")
                if number:
                    kill_leader(admin, quorum, topic)
                    sent |= send(producer, TOPIC, range(3), f"after-{number}")
                producer.commit_transaction()
                assert read(servers, TOPIC, len(sent)) == sent, "from what the group has committed on"
                if not number:
                    kill_leader(admin, quorum, topic)
    assert faults(nodes) == []


def kill_leader(admin: Admin, quorum: Quorum, topic: str) -> None:
    """Kill the broker that leads an internal topic, wait for the next leader, and start it again until all are in sync."""
    wait_for(lambda: in_sync(admin, topic) == {frozenset(BROKERS)})
    (leader,) = leaders_of(admin, topic).values()
    quorum.controllers[leader].end()
    wait_for(lambda: leaders_of(admin, topic)[0] not in (leader, -1))
    quorum.controllers[leader].start()
    wait_for(lambda: in_sync(admin, topic) == {frozenset(BROKERS)})


@pytest.mark.ci
def test_a_partition_moves_to_other_brokers_while_it_is_written(tmp_path: Path) -> None:
    """By AlterPartitionReassignments: the new replicas copy it, one of them leads, and the old broker deletes its log."""
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *BROKER, "log.segment.delete.delay.ms=0", broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum([node.format_by_kcli() for node in nodes]):
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        settings: dict[str, str | int] = {"bootstrap.servers": addresses(broker_ports)}
        with Admin(settings) as admin, Producer({**settings, "acks": "all"}) as producer:
            value_of(admin.create_topics([NewTopic(TOPIC, assignments={0: [1]})])[TOPIC])
            wait_for(lambda: leaders_of(admin, TOPIC) == {0: 1})
            sent = send(producer, TOPIC, [0], "before")
            value_of(admin.alter_partition_reassignments({(TOPIC, 0): [2, 3]})[TOPIC, 0])
            sent |= send(producer, TOPIC, [0], "meanwhile")
            wait_for(lambda: in_sync(admin, TOPIC) == {frozenset((2, 3))})
            wait_for(lambda: leaders_of(admin, TOPIC).get(0) in (2, 3))  # each question may go to another broker
            sent |= send(producer, TOPIC, [0], "after")
            assert read(nodes[0].bootstrap, TOPIC, len(sent)) == sent
            wait_for(partial(have_equal_logs, nodes[1:], TOPIC, 1))
            wait_for(lambda: log_of(nodes[0], TOPIC, 0) == b"")
    assert faults(nodes) == []
