"""Protects a quorum of three controllers as users run it: processes, sockets and files, one of which is killed or stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kcli.server.raft.metadata_batches import decode_batches
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command


@pytest.mark.ci
def test_controllers_elect_another_leader_when_one_is_killed(tmp_path: Path) -> None:
    """Each leader once, by SIGKILL and by SIGTERM; who comes back follows; at the end all have the same metadata log."""
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
    epochs = [batch.leader_epoch for batch in decode_batches(quorum.common_log())]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) >= 2
    assert faults(controllers) == []
