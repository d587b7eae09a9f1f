"""Protects a quorum of three controllers as users run it: processes, sockets and files, one of which is killed or stopped."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from kcli.format.primitives import FormatError
from kcli.server.raft.metadata_batches import decode_batches
from tests.server.live import wait_for
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command


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
