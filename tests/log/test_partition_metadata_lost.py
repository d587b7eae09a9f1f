"""Protects a partition's topic id from failed flushes and lost power, and its records from a start that takes them for a stray.

A system may drop what it should have written and show it all the same; without its topic id a log with records is a stray at
the next start but one. A torn file is damage only if it was flushed: the checkpoints name a log above offset 0 only after that.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.log.errors import PartitionMetadataError
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault, SimulatedCrash
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, crash, device, flush

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


def empty_disk(seed: int) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed), lambda: NOW_MS)
    disk.make_directory("/data")
    disk.flush_directory("/")
    return disk


def started(disk: SimulatedDisk) -> LogManager:
    return Node(Path("/data"), disk=disk).started()


def commit(manager: LogManager, log: UnifiedLog) -> None:
    """Append a committed batch, and do what the task of the high watermarks does."""
    log.append_as_leader(batch(), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    manager.checkpoints.write_all(manager.log_dir_of(log), FileKind.REPLICATION_CHECKPOINT)
    manager.flush_topic_id(log)


def checkpointed(disk: SimulatedDisk, kind: FileKind = FileKind.REPLICATION_CHECKPOINT) -> int:
    """The offset that a checkpoint has for the log."""
    path = f"/data/{kind.value}"
    return decode_offset_checkpoint(disk.read_file(path, 1000)).offsets()["t", 0] if disk.exists(path) else 0


def flush_in_any_order(manager: LogManager, rng: Random) -> None:
    """Do what is to be flushed, as a device with several threads may."""
    waiting = manager.take_flushes()
    while waiting:
        request = waiting.pop(rng.randrange(len(waiting)))
        more = request.done(device(manager, request.paths))
        waiting += [*([] if more is None else [more]), *manager.take_flushes()]


def two_runs(disk: SimulatedDisk, rng: Random) -> None:
    """A log is made and gets records; its broker is killed, and the next one appends to it."""
    manager = started(disk)
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    for step in range(4):
        commit(manager, log)
        flush_in_any_order(manager, rng)
        if step == 1:
            crash(manager)
            manager = started(disk)
            log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS)
    crash(manager)


@pytest.mark.parametrize("seed", range(4))
def test_no_power_loss_refuses_the_next_start(seed: int) -> None:
    """Whatever call the process died in: what was never flushed may be torn, and the broker starts without it."""
    disk = empty_disk(seed)
    first = disk.changes
    two_runs(disk, Random(seed))
    for calls in range(disk.changes - first):
        disk = empty_disk(seed)
        disk.die_in(calls)
        with pytest.raises(SimulatedCrash):
            two_runs(disk, Random(seed))
        disk.lose_power(Random(calls))
        crash(started(disk))


def test_a_checkpoint_names_a_log_after_its_topic_id_is_on_the_device() -> None:
    """Also if the first flush is late, and after a kill before it."""
    disk = empty_disk(0)
    manager = started(disk)
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    manager.take_flushes()  # and none of them is made
    commit(manager, log)
    flush(manager)
    assert checkpointed(disk) == 0
    crash(manager)
    disk.kill()
    manager = started(disk)
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS)
    commit(manager, log)
    assert {METADATA, "/data/t-0", "/data"} <= {path for paths in flush(manager) for path in paths}
    assert checkpointed(disk) == 0
    commit(manager, log)
    assert not {METADATA} & {path for paths in flush(manager) for path in paths}
    assert checkpointed(disk) == log.high_watermark > 0
    crash(manager)


@pytest.mark.parametrize("content", [None, b"", bytes(43)])
def test_records_below_a_high_watermark_refuse_the_start(content: bytes | None) -> None:
    """After a kill the recovery point is 0 for a minute: the log became a stray, and an empty one was served."""
    disk = empty_disk(0)
    two_runs(disk, Random(0))
    disk.kill()
    assert checkpointed(disk, FileKind.RECOVERY_POINT_CHECKPOINT) == 0 < checkpointed(disk)
    disk.remove(METADATA)
    if content is not None:
        disk.append(METADATA, content)
    manager = Node(Path("/data"), disk=disk).manager()
    with pytest.raises(PartitionMetadataError):
        for _ in manager.start(
            lambda topic: LogConfig(), lambda topic_id, partition: True, NOW_MS, topic_id_of=lambda t: TOPIC_ID
        ):
            pass
