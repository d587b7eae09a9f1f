"""Protects a quorum of processes on bad days: a full disk, a minority, peers that send nonsense or have a voter's id."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from typing import Any

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.errors import ClientError
from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.server.live import LiveClient, wait_for
from tests.server.quorum_processes import CLUSTER_ID, Controller, Quorum, addresses, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, send

pytestmark = pytest.mark.ci

RETENTION = AlterConfigOp("log.retention.ms", AlterOperation.SET, "5")


def change(ports: list[int]) -> None:
    """Change the metadata by the controllers."""
    settings: dict[str, str | int] = {"bootstrap.controllers": addresses(ports), "default.api.timeout.ms": 60_000}
    with Admin(settings, log=lambda line: None) as admin:
        default = ConfigResource(ResourceType.BROKER, "")
        value_of(admin.incremental_alter_configs({default: [RETENTION]})[default])


def test_a_controller_whose_disk_is_full_ends_and_the_others_go_on(tmp_path: Path) -> None:
    """The leader, and then its successor's follower, cannot write the metadata log: exit code 2, the file and the reason."""
    ports = free_ports(3)
    nodes = [Controller(tmp_path, node_id, ports, kcli_command()).format_by_kcli() for node_id in (1, 2, 3)]
    with Quorum(nodes) as quorum:
        for role in ("leader", "follower"):
            leader = quorum.elected()
            full = leader if role == "leader" else next(node for node in nodes if node is not leader)
            assert full.process is not None
            limit = len(full.metadata_log) + 300  # a few of the records that an idle leader writes
            resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
            code, line = full.ended()
            assert (code, "__cluster_metadata-0" in line, "File too large" in line) == (2, True, True), line
            change(ports)
            full.start()
            quorum.elected()
            wait_for(lambda limit=limit: len({node.metadata_log[:limit] for node in nodes}) == 1)  # type: ignore[misc]
    quorum.common_log()
    lines = [line for line in faults(nodes) if "File too large" not in line]
    assert lines == []


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_minority_says_so_and_serves_what_it_may(tmp_path: Path, role: str) -> None:
    """Two of three nodes are away: records are produced and read, metadata is not changed, and the log has the reason."""
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *BROKER, broker_port=port).format_by_kcli()
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum(nodes) as quorum:
        leader = quorum.elected()
        last = leader if role == "leader" else next(node for node in nodes if node is not leader)
        wait_for(lambda: all("is ready" in node.log() for node in nodes))
        others = [node for node in nodes if node is not last]
        settings: dict[str, str | int] = {"bootstrap.servers": last.bootstrap, "default.api.timeout.ms": 60_000}
        with Admin(settings) as admin, Producer(settings) as producer:
            value_of(admin.create_topics([NewTopic("t", assignments={0: [last.node_id]})])["t"])
            wait_for(lambda: leaders_of(admin, "t") == {0: last.node_id})
            sent = send(producer, "t", (0,), "before")
            for node in others:
                node.end()
            wait_for(lambda: "1 of the 3 voters of the metadata quorum can be reached" in last.log())
            sent |= send(producer, "t", (0,), "alone")
            with Admin({**settings, "default.api.timeout.ms": 3000, "request.timeout.ms": 3000}) as hurried:
                (refused,) = hurried.create_topics([NewTopic("u", 1)]).values()
                assert isinstance(refused, ClientError)
            assert leaders_of(admin, "t") == {0: last.node_id}
            assert last.broker_port is not None
            with LiveClient(last.broker_port) as client:
                fetched = client.fetch({("t", 0): 0}, max_bytes=1 << 20, partition_max_bytes=1 << 20)["t", 0].records
                assert all(value in bytes(fetched) for value in sent)
            others[0].start()
            wait_for(lambda: not isinstance(admin.create_topics([NewTopic("v", 1)])["v"], ClientError))
    assert faults(nodes) == []


def nonsense(rng: random.Random, epoch: int) -> list[tuple[int, int, Message]]:
    """Requests of the quorum that no node sends: API, version and message."""
    odd = [-(2**31), -1, 0, 1, 9, epoch, 2**31 - 1]
    # Of the epoch that has a leader, or of the last one: an epoch in between would only begin an election.
    leader = {"leader_id": 9, "leader_epoch": rng.choice((epoch, 2**31 - 1))}
    vote = {"replica_epoch": 2**31 - 1, "replica_id": rng.choice(odd), "last_offset": rng.choice(odd)}
    fields: list[tuple[int, int, dict[str, Any]]] = [
        (apis.VOTE, 1, {**vote, "last_offset_epoch": rng.choice(odd)}),
        (apis.BEGIN_QUORUM_EPOCH, 0, leader),
        (apis.END_QUORUM_EPOCH, 0, {**leader, "preferred_successors": [rng.choice(odd)]}),
    ]
    made = []
    for key, version, values in fields:
        kind = apis.API_KEYS[key].request
        partition = kind.classes["PartitionData"](partition_index=rng.choice((0, 1)), **values)
        topic = kind.classes["TopicData"](topic_name="__cluster_metadata", partitions=[partition])
        made.append((key, version, kind.new(cluster_id=CLUSTER_ID, topics=[topic])))
    return made


def test_nonsense_at_a_controllers_listener(tmp_path: Path) -> None:
    """Random bytes, and requests of the quorum that contradict it: the leader and its epoch stay, and no node ends."""
    ports = free_ports(3)
    nodes = [Controller(tmp_path, node_id, ports, kcli_command()).format_by_kcli() for node_id in (1, 2, 3)]
    rng = random.Random(1)
    with Quorum(nodes) as quorum:
        leader = quorum.elected()
        epoch = leader.election.leader_epoch
        for port in ports:
            for _ in range(30):
                with LiveClient(port) as client:
                    frame = rng.randbytes(rng.randrange(1, 60))
                    client.send(len(frame).to_bytes(4, "big") + frame)
                for key, version, message in nonsense(rng, epoch):
                    with LiveClient(port) as client:
                        client.ask(key, version, message)
        change(ports)
        assert quorum.elected() is leader
        assert leader.election.leader_epoch == epoch
    quorum.common_log()
    assert faults(nodes) == []


def test_a_controller_that_claims_the_id_of_a_voter(tmp_path: Path) -> None:
    """With another directory and at another address: it has no vote and says what to do; the quorum stays as it is."""
    ports = free_ports(4)
    ids = {node_id: str(Uuid(bytes([node_id]) * 16)) for node_id in (1, 2, 3)}
    voters = ",".join(f"{node_id}@127.0.0.1:{ports[node_id - 1]}:{own}" for node_id, own in ids.items())
    nodes = [Controller(tmp_path, node_id, ports[:3], kcli_command(), is_dynamic=True) for node_id in (1, 2, 3)]
    for node in nodes:
        node.format_by_kcli("--initial-controllers", voters)
    own = f"listeners=CONTROLLER://127.0.0.1:{ports[3]}"
    twin = Controller(tmp_path / "twin", 2, ports[:3], kcli_command(), own, is_dynamic=True)
    twin.format_by_kcli("--no-initial-controllers")
    settings: dict[str, str | int] = {"bootstrap.controllers": addresses(ports[:3]), "default.api.timeout.ms": 60_000}
    with Quorum(nodes) as quorum, Admin(settings, log=lambda line: None) as admin:
        leader = quorum.elected()
        epoch = leader.election.leader_epoch
        try:
            twin.start()
            if leader.node_id == twin.node_id:  # who leads is drawn; the twin hears that it does
                wait_for(lambda: "Two nodes may have the same node.id" in twin.log())
            else:
                wait_for(lambda: "has no vote" in twin.log())
                assert "remove-controller --controller-id 2" in twin.log()
            change(ports[:3])
            described = admin.describe_metadata_quorum()
            assert {one.replica_id: str(one.directory_id) for one in described.voters} == ids
            assert (described.leader_id, described.leader_epoch) == (leader.node_id, epoch)
        finally:
            twin.end()
    assert faults([*nodes, twin]) == []
