"""Protects a quorum as users run it: processes of controllers and brokers, sockets, files; some are killed or stopped."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from kcli.client import Admin, Consumer, NewTopic, Producer
from kcli.client.admin.cluster import FeatureUpdate
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.cluster import NO_LEADER
from kcli.client.errors import ClientError, KafkaError
from kcli.commands.app import main
from kcli.format.metadata_files import decode_meta_properties
from kcli.format.primitives import FormatError
from kcli.server.raft.metadata_batches import decode_batches
from tests.conftest import FIXTURES
from tests.server.live import PATIENCE_S, wait_for
from tests.server.quorum_processes import Controller, Quorum, addresses, faults, free_ports, kcli_command


def registered(controller: Controller) -> set[int]:
    """The controllers that are registered in a metadata log; its end may be in the middle of an append."""
    with suppress(FormatError):
        records = [record for batch in decode_batches(controller.metadata_log) for record in batch.records]
        return {record.controller_id for record in records if record.STRUCT.name == "RegisterControllerRecord"}
    return set()


@pytest.mark.ci
def test_controllers_elect_another_leader_when_one_is_killed(tmp_path: Path) -> None:
    """Each leader once, by SIGKILL and by SIGTERM; all register; at the end all have the same metadata log."""
    ports = free_ports(3)
    controllers = [Controller(tmp_path, node_id, ports, kcli_command()).format_by_kcli() for node_id in (1, 2, 3)]
    with Quorum(controllers) as quorum:
        epoch = 0
        for how in (signal.SIGKILL, signal.SIGTERM):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            leader.end(how)
            assert quorum.elected(epoch) is not leader
            leader.start()
        quorum.elected(epoch)
        wait_for(lambda: registered(controllers[0]) == {1, 2, 3})
    epochs = [batch.leader_epoch for batch in decode_batches(quorum.common_log())]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) >= 2
    assert faults(controllers) == []


def is_added(admin: Admin, controller: Controller, where: list[str]) -> bool:
    """Return whether a controller is a voter, after a try to make it one: the leader may change at that moment."""
    with suppress(KafkaError):
        if controller.node_id in {voter.replica_id for voter in admin.describe_metadata_quorum().voters}:
            return True
    main(["cluster", "add-controller", "--config", str(controller.properties), *where])
    return False


@pytest.mark.ci
def test_controllers_are_administered_without_a_broker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A quorum of one grows to three by bootstrap.controllers (KIP-919); calls find the next leader when one is killed, and a
    voter is removed."""
    ports = free_ports(3)
    controllers = [Controller(tmp_path, node_id, ports, kcli_command(), is_dynamic=True) for node_id in (1, 2, 3)]
    for one in controllers:
        one.format_by_kcli("--standalone" if one.node_id == 1 else "--no-initial-controllers")
    where = ["--bootstrap-controller", addresses(ports), "--timeout", "60"]
    settings = {"bootstrap.controllers": addresses(ports), "default.api.timeout.ms": 60_000}
    with Quorum(controllers) as quorum, Admin(settings, log=lambda line: None) as admin:
        for one in controllers[1:]:
            wait_for(lambda one=one: is_added(admin, one, where))
        assert admin.describe_cluster().nodes
        before = admin.describe_metadata_quorum()
        assert [voter.replica_id for voter in before.voters] == [1, 2, 3]
        quorum.controllers[before.leader_id].end()
        default = ConfigResource(ResourceType.BROKER, "")
        changes = [AlterConfigOp("log.retention.ms", AlterOperation.SET, "5")]
        value_of(admin.incremental_alter_configs({default: changes})[default])
        after = admin.describe_metadata_quorum()
        assert after.leader_id != before.leader_id
        quorum.controllers[before.leader_id].start()
        (gone,) = (voter for voter in after.voters if voter.replica_id == before.leader_id)
        name = ["--controller-id", str(gone.replica_id), "--controller-directory-id", str(gone.directory_id)]
        assert main(["cluster", "remove-controller", *name, *where]) == 0
        assert main(["cluster", "remove-controller", *name, *where]) == 1
        assert "VOTER_NOT_FOUND" in capfd.readouterr().err
        assert value_of(admin.describe_configs([default])[default])["log.retention.ms"].value == "5"
        lines = "".join(one.log() for one in controllers)
    for node_id in (2, 3):
        assert lines.count(f"node {node_id} becomes a voter of the metadata quorum; its voters are 1, 2") == 1
    assert lines.count(f"node {before.leader_id} is no voter any more of the metadata quorum") == 1
    assert faults(controllers) == []


ONE_NODE = FIXTURES / "kcli-one-node"
OLD_OFFSETS = "offsets.retention.minutes=2000000000"  # those of the fixture


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_directory_of_one_node_grows_to_a_quorum(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    """A directory that kcli wrote when it had no quorums starts as it is; two controllers are added to it, and it is removed.

    A static quorum becomes a dynamic one by an upgrade of kraft.version first.
    """
    ports, broker_ports = free_ports(3), free_ports(1)
    first = Controller(
        tmp_path, 1, ports[:1], kcli_command(), *BROKER, OLD_OFFSETS, is_dynamic=kind == "dynamic", broker_port=broker_ports[0]
    )
    shutil.copytree(ONE_NODE / kind, first.home / "data")
    cluster_id = decode_meta_properties((first.home / "data/meta.properties").read_bytes()).cluster_id
    others = [Controller(tmp_path, node_id, ports, kcli_command(), is_dynamic=True) for node_id in (2, 3)]
    for one in others:
        one.format_by_kcli("--no-initial-controllers", cluster_id=cluster_id)
    nodes = [first, *others]
    where = ["--bootstrap-controller", addresses(ports), "--timeout", "60"]
    kept = {f"kept-{number}".encode() for number in range(10)}
    settings = {"default.api.timeout.ms": 60_000}
    controllers = Admin({"bootstrap.controllers": addresses(ports), **settings}, log=lambda line: None)
    with Quorum(nodes), controllers, Admin({"bootstrap.servers": first.bootstrap, **settings}) as admin:
        wait_for(lambda: "is ready" in first.log())
        committed = value_of(admin.list_consumer_group_offsets({"group": None})["group"])
        assert {partition: one.offset for (_, partition), one in committed.items()} == {0: 5, 1: 5}
        assert read(first.bootstrap, "kept", 10, "another group") == kept
        if kind == "static":
            add = ["cluster", "add-controller", "--config", str(others[0].properties), *where]
            assert main(add) == 1
            assert "kraft.version" in capfd.readouterr().err
            value_of(admin.update_features({"kraft.version": FeatureUpdate(1)})["kraft.version"])
        for one in others:
            wait_for(lambda one=one: is_added(controllers, one, where))
        first.end(signal.SIGTERM)
        first.start()
        assert read(first.bootstrap, "kept", 10, "a third group") == kept
        (own,) = (voter for voter in controllers.describe_metadata_quorum().voters if voter.replica_id == 1)
        name = ["--controller-id", "1", "--controller-directory-id", str(own.directory_id)]
        assert main(["cluster", "remove-controller", *name, *where]) == 0
        wait_for(lambda: controllers.describe_metadata_quorum().leader_id in (2, 3))
        assert [voter.replica_id for voter in controllers.describe_metadata_quorum().voters] == [2, 3]
        value_of(admin.create_topics([NewTopic("later", 1)])["later"])  # it is still a broker
        first.end(signal.SIGTERM)
        assert main(["cluster", "unregister", "--id", "1", *where]) == 0
        assert [node.node_id for node in controllers.describe_cluster().nodes] == [1, 2, 3]
    assert faults(nodes) == []


PARTITIONS, RECORDS = 6, 60
# The topics of groups and transactions have one replica, as all topics here.
BROKER = (
    *("offsets.topic.replication.factor=1", "offsets.topic.num.partitions=3", "group.initial.rebalance.delay.ms=0"),
    *(
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "transaction.state.log.num.partitions=3",
    ),
)


def leaders_of(admin: Admin, topic: str) -> dict[int, int]:
    """The leader of each partition, NO_LEADER for none; nothing on a broker that does not know the topic yet."""
    (described,) = admin.describe_topics([topic]).values()
    return {} if isinstance(described, ClientError) else {one.partition: one.leader for one in described.partitions}


def send(producer: Producer, topic: str, partitions: Iterable[int], prefix: str) -> set[bytes]:
    """Send records to partitions and return their values, all of which are acknowledged."""
    partitions = list(partitions)
    values = {f"{prefix}-{number}".encode(): partitions[number % len(partitions)] for number in range(RECORDS)}
    errors: list[object] = []
    for value, partition in values.items():
        producer.send(topic, value, partition=partition, on_delivery=lambda _, error: errors.append(error))
    producer.flush(PATIENCE_S)
    assert errors == [None] * RECORDS
    return set(values)


def read(bootstrap: str, topic: str, count: int, group: str = "group") -> set[bytes]:
    """Read as a group until there are so many values, and commit."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    settings["isolation.level"] = "read_committed"
    values: set[bytes] = set()
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])

        def has_all() -> bool:
            values.update(record.value for record in consumer.poll(0.1))
            return len(values) >= count

        wait_for(has_all)
        consumer.commit_sync()
    return values


@pytest.mark.ci
def test_a_controller_and_two_brokers(tmp_path: Path) -> None:
    """The brokers register from elsewhere, share partitions, groups and a transaction; one leaves in order and comes back."""
    ports, broker_ports = free_ports(1), free_ports(2)
    nodes = [Controller(tmp_path, 1, ports, kcli_command())]
    nodes += [Controller(tmp_path, 2 + n, ports, kcli_command(), *BROKER, broker_port=broker_ports[n]) for n in range(2)]
    with Quorum([node.format_by_kcli() for node in nodes]):
        controller, *brokers = nodes
        settings = {"bootstrap.servers": ",".join(one.bootstrap for one in brokers)}
        wait_for(lambda: all("is ready" in one.log() for one in brokers))
        with Admin(settings) as admin, Producer(settings) as producer:
            admin.create_topics([NewTopic("t", PARTITIONS)])
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {2, 3})
            sent = send(producer, "t", range(PARTITIONS), "first")
            with Producer({**settings, "transactional.id": "both"}) as transactional:
                transactional.init_transactions()
                transactional.begin_transaction()
                sent |= send(transactional, "t", range(PARTITIONS), "transaction")
                transactional.commit_transaction()
            assert read(brokers[0].bootstrap, "t", len(sent)) == sent
            brokers[1].end(signal.SIGTERM)
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {2, NO_LEADER})
            assert "has not approved" not in brokers[1].log()
            controller.end(signal.SIGKILL)
            controller.start()
            brokers[1].start()
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {2, 3})
            sent |= send(producer, "t", range(PARTITIONS), "second")
            assert read(brokers[1].bootstrap, "t", RECORDS) <= sent
    assert faults(nodes) == []


@pytest.mark.ci
def test_three_nodes_that_are_both(tmp_path: Path) -> None:
    """The leading controller is killed: the other two brokers serve on, and administrators do not see the election."""
    ports, broker_ports = free_ports(3), free_ports(3)
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *BROKER, "broker.session.timeout.ms=3000", broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum([node.format_by_kcli() for node in nodes]) as quorum:
        leader = quorum.elected()
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        others = [one for one in nodes if one is not leader]
        settings = {"bootstrap.servers": ",".join(one.bootstrap for one in others)}
        with Admin(settings) as admin, Producer(settings) as producer:
            admin.create_topics([NewTopic("t", PARTITIONS)])
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {1, 2, 3})
            sent = send(producer, "t", range(PARTITIONS), "first")
            kept = [partition for partition, node_id in leaders_of(admin, "t").items() if node_id != leader.node_id]
            leader.end(signal.SIGKILL)
            sent |= send(producer, "t", kept, "second")
            admin.create_topics([NewTopic("u", assignments={0: [others[0].node_id], 1: [others[1].node_id]})])
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {one.node_id for one in others} | {NO_LEADER})
            leader.start()
            wait_for(lambda: set(leaders_of(admin, "t").values()) == {1, 2, 3})
            sent |= send(producer, "t", range(PARTITIONS), "third")
            assert read(leader.bootstrap, "t", len(sent)) == sent
    assert faults(nodes) == []


@pytest.mark.ci
def test_a_leader_that_stops_serves_until_its_broker_has_stopped(tmp_path: Path) -> None:
    """New connections to its controller and its broker succeed while its shutdown is not approved. They were refused from the
    signal on: brokers that had no connection to a leader elected a moment ago were fenced, although they were healthy."""
    ports, broker_ports = free_ports(3), free_ports(3)
    settings = (*BROKER, "broker.session.timeout.ms=120000")  # the broker that is paused is not fenced
    nodes = [
        Controller(tmp_path, node_id, ports, kcli_command(), *settings, broker_port=port)
        for node_id, port in enumerate(broker_ports, 1)
    ]
    with Quorum([node.format_by_kcli() for node in nodes]) as quorum:
        leader = quorum.elected()
        wait_for(lambda: all("is ready" in one.log() for one in nodes))
        paused, other = (one for one in nodes if one is not leader)
        with Admin({"bootstrap.servers": other.bootstrap}) as admin:
            replicas = [leader.node_id, other.node_id]
            value_of(admin.create_topics([NewTopic("t", assignments={0: replicas})])["t"])
            wait_for(lambda: leaders_of(admin, "t") == {0: leader.node_id})
            assert paused.process is not None
            assert leader.process is not None
            paused.process.send_signal(signal.SIGSTOP)
            try:
                leader.process.send_signal(signal.SIGTERM)
                # The shutdown is not approved before the paused broker has applied that the partition has another leader.
                wait_for(lambda: leaders_of(admin, "t") == {0: other.node_id})
                where = addresses([ports[leader.node_id - 1]])
                with Admin({"bootstrap.controllers": where}) as new, Admin({"bootstrap.servers": leader.bootstrap}) as client:
                    assert new.describe_metadata_quorum().leader_id == leader.node_id
                    assert leaders_of(client, "t") == {0: other.node_id}
            finally:
                paused.process.send_signal(signal.SIGCONT)
            assert leader.ended()[0] == 0
        quorum.elected()  # of those that are left
    assert not any("is fenced" in one.log() for one in nodes)
    assert faults(nodes) == []


@pytest.mark.ci
def test_nodes_that_are_not_of_the_cluster_end(tmp_path: Path) -> None:
    """Formatted for another cluster, or with the node.id of a broker that runs: exit code 2 and a sentence; the others serve
    on. They waited for ever, and said too little."""
    other = "otherOtherOtherOtherOg"
    ports, broker_ports = free_ports(2), free_ports(3)
    nodes = [Controller(tmp_path, 1, ports[:1], kcli_command()).format_by_kcli()]
    nodes.append(Controller(tmp_path, 2, ports[:1], kcli_command(), *BROKER, broker_port=broker_ports[0]).format_by_kcli())
    limit = "initial.broker.registration.timeout.ms=1000"
    twin = Controller(tmp_path / "twin", 2, ports[:1], kcli_command(), limit, broker_port=broker_ports[1]).format_by_kcli()
    strange = Controller(tmp_path, 3, ports[:1], kcli_command(), broker_port=broker_ports[2]).format_by_kcli(cluster_id=other)
    # A controller that has node 1 among its voters.
    voter = Controller(tmp_path / "voter", 2, ports, kcli_command()).format_by_kcli(cluster_id=other)
    with Quorum(nodes):
        wait_for(lambda: "is ready" in nodes[1].log())
        for node, sentences in (
            (twin, ("DUPLICATE_BROKER_REGISTRATION (another broker with node.id=2 is running)",)),
            (strange, (f"belongs to cluster {other}", f"127.0.0.1:{ports[0]}", "kcli format --cluster-id")),
            (voter, (f"belongs to cluster {other}", f"127.0.0.1:{ports[0]}", "kcli format --cluster-id")),
        ):
            try:
                node.start()
                code, line = node.ended()
            finally:
                node.end()
            assert code == 2
            assert all(sentence in line for sentence in sentences), line
        with Admin({"bootstrap.servers": nodes[1].bootstrap}) as admin:
            (created,) = admin.create_topics([NewTopic("t", 1)]).values()
            assert not isinstance(created, ClientError)
    assert faults(nodes) == []
