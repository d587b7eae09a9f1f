"""Protects a quorum of three controllers as users run it: processes, sockets and files, one of which is killed or stopped."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from kcli.client import Admin
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.errors import KafkaError
from kcli.commands.app import main
from kcli.format.primitives import FormatError
from kcli.server.raft.metadata_batches import decode_batches
from tests.server.live import wait_for
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
    assert faults(controllers) == []
