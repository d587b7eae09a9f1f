"""Protects a partition's topic id from a failed flush. A system may drop what it should have written and show it all the same;
without its topic id a log with records is a stray at the next start but one."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from kcli.log.log_config import LogConfig
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, crash, flush

METADATA = "/data/t-0/partition.metadata"


@pytest.mark.parametrize("seed", range(20))
def test_a_log_whose_first_flush_failed_is_no_stray_later(seed: int) -> None:
    """The process dies of the failure, the next one flushes, then the power goes."""
    disk = SimulatedDisk(Random(seed), lambda: NOW_MS)
    disk.make_directory("/data")
    disk.flush_directory("/")
    node = Node(Path("/data"), Path("/other"), disk=disk)
    disk.make_directory("/other")
    disk.flush_directory("/")
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    disk.faults.append(Fault("flush", METADATA, errno.EIO, count=1))
    flush(manager)
    disk.faults.clear()
    assert log.log_end_offset == 0
    crash(manager)
    disk.kill()
    manager = node.started()
    again = manager.get_log("t", 0)
    assert again is not None
    again.append_as_leader(batch(), 0, NOW_MS)
    manager.flush_log(again)
    flush(manager)
    crash(manager)
    disk.lose_power(Random(seed))
    found = node.started().get_log("t", 0)
    assert found is not None and found.log_end_offset == 3
