"""Protects what is committed behind a failed flush of the metadata log. A system that fails a flush may drop what it should
have written and show it all the same, to the next process too; what that one commits must outlast a loss of power.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.metadata_batches import new_record
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault
from tests.server.raft.nodes import Follower, Surroundings, formatted, started_raft

DATA = Path("/data")
LIVES = 3


def names(follower: Follower) -> list[str]:
    """The topics that a follower was told of."""
    records = [record for batch in follower.batches for record in batch.records]
    return [record.name for record in records if record.STRUCT.name == "TopicRecord"]


def append_topic(raft: KafkaRaftClient, around: Surroundings, name: str) -> None:
    raft.append([new_record("TopicRecord", name=name, topic_id=random.Random(name).randbytes(16))], around.now_ms)


def started(disk: SimulatedDisk) -> tuple[KafkaRaftClient, Surroundings, Follower]:
    around, follower = Surroundings(disk=disk), Follower()
    raft = started_raft(DATA, around, follower)
    around.run()
    return raft, around, follower


@pytest.mark.parametrize("seed", range(20))
def test_what_is_committed_behind_a_failed_flush_stays(seed: int) -> None:
    """Each life commits a topic and fails to flush another, larger than a sector; the power goes after the last."""
    dice = random.Random(seed)
    disk = SimulatedDisk(dice)
    formatted(DATA, disk=disk)
    disk.flush("/")
    for life in range(LIVES):
        raft, around, _ = started(disk)
        append_topic(raft, around, f"kept-{life}")
        around.run()
        append_topic(raft, around, f"doubtful-{life}-" + "x" * dice.choice((1, 200, 2000)))
        fault = Fault("flush", f"{raft.config.directory}")
        disk.faults.append(fault)
        around.run()
        assert fault.count == 0
        assert not raft.is_leader
        disk.kill()
    raft, around, _ = started(disk)
    append_topic(raft, around, "last")
    around.run()
    disk.lose_power(dice)
    _, _, follower = started(disk)
    assert [name for name in names(follower) if not name.startswith("doubtful")] == ["kept-0", "kept-1", "kept-2", "last"]
