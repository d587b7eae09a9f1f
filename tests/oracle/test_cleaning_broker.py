"""A whole Kafka broker judges ours: the same log directory, cleaned by the cleaner of each, says the same then.

Every seed is a partition, grown and cleaned in some rounds before, and dirty again. A broker runs until its own
cleaner-offset-checkpoint says that all of it is cleaned. What the clock says is not compared (delete horizons), nor what lies
below a log's start.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.record_batch import DELETE_HORIZON_FLAG
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from tests.log.cleaner.random_logs import RandomLog, batches_of
from tests.oracle.brokers import DYNAMIC_QUORUM, NODE, KcliBroker, broker_at
from tests.oracle.peer import Peer

TOPIC = "seeds"
CLEAN_SECONDS = 120
HOUR_MS = 3_600_000
MANY_KEYS_BYTES = 24 * 1009
PROPERTIES = (
    NODE
    + DYNAMIC_QUORUM
    + """
log.retention.ms=-1
log.cleanup.policy=compact
log.cleaner.min.cleanable.ratio=0
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=4194304
"""
)
RESTING = PROPERTIES + "log.cleaner.enable=false\n"


class Partition(NamedTuple):
    """A generated log: up to where a broker is to clean it, from where on it may be read, what it says before."""

    end_offset: int
    log_start_offset: int
    before: list[tuple[Any, ...]]


def clock_free(directory: Path, log_start_offset: int) -> list[tuple[Any, ...]]:
    """All that matters of the batches from the log start on, without what a clock or the file says."""
    found = []
    for _, magic, base, last, facts, records in batches_of(directory):
        if last >= log_start_offset:
            told = list(facts)
            if told and told[1] & DELETE_HORIZON_FLAG:
                told[3] = "a delete horizon"
            found.append((magic, base, last, *told, records))
    return found


def write_checkpoint(path: Path, offsets: dict[int, int]) -> None:
    path.write_bytes(encode_offset_checkpoint(PartitionOffset(TOPIC, *line) for line in offsets.items()))


def create(bootstrap: str, partitions: int) -> None:
    """Create the topic, with a client that ends before the broker does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()


def generate(data: Path, work: Path, seeds: range) -> list[Partition]:
    """Put a log of each seed in the place of a partition's, as a clean stop leaves it."""
    ends, starts, cleaned, found = {}, {}, {}, []
    for number, seed in enumerate(seeds):
        log = RandomLog(work / str(seed), seed, int(time.time() * 1000) - HOUR_MS)
        log.memory_bytes = MANY_KEYS_BYTES
        for _ in range(seed % 3):
            log.grow()
            log.clean()
            log.now_ms += 700
        log.grow()
        while not log.is_dirty:
            log.grow()
        live = log.live.log
        live.config = log.compacted
        for path in live.delete_old_segments(log.now_ms):
            Path(path).unlink()  # those below the log start, whose data would tell of a marker whether it is needed
        end = log_to_clean(live, log.checkpoint, log.now_ms).first_uncleanable_offset
        live.close()
        target = data / f"{TOPIC}-{number}"
        for path in target.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        shutil.copytree(log.live.directory, target, dirs_exist_ok=True)
        found.append(Partition(end, live.log_start_offset, clock_free(target, live.log_start_offset)))
        ends[number], starts[number] = live.log_end_offset, live.log_start_offset
        cleaned |= {} if log.checkpoint is None else {number: log.checkpoint}
    write_checkpoint(data / "recovery-point-offset-checkpoint", ends)
    write_checkpoint(data / "replication-offset-checkpoint", ends)
    write_checkpoint(data / "log-start-offset-checkpoint", starts)
    write_checkpoint(data / "cleaner-offset-checkpoint", cleaned)
    return found


def await_cleaned(data: Path, partitions: list[Partition]) -> None:
    """Wait until a broker says that it has cleaned all that it may."""
    expected = {(TOPIC, number): partition.end_offset for number, partition in enumerate(partitions)}
    until = time.monotonic() + CLEAN_SECONDS
    while True:
        told = decode_offset_checkpoint((data / "cleaner-offset-checkpoint").read_bytes()).offsets()
        if told == expected:
            return
        assert time.monotonic() < until, {key: (told.get(key), end) for key, end in expected.items() if told.get(key) != end}
        time.sleep(0.05)  # a poll of another process, which gives no other sign


@pytest.mark.oracle
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(3), marks=pytest.mark.ci), pytest.param(range(3, 13), marks=pytest.mark.slow)]
)
def test_both_brokers_leave_the_same(kcli_serves: None, kafka_peer: Peer, seeds: range, tmp_path: Path) -> None:
    data = {name: tmp_path / name / "data" for name in ("kcli", "kafka")}
    making = KcliBroker(tmp_path / "kcli", properties=RESTING, data=data["kcli"])
    with making:
        create(making.bootstrap, len(seeds))
    partitions = generate(data["kcli"], tmp_path / "work", seeds)
    shutil.copytree(data["kcli"], data["kafka"])
    with KcliBroker(tmp_path / "kcli", properties=PROPERTIES, data=data["kcli"]):
        await_cleaned(data["kcli"], partitions)
    with broker_at(kafka_peer, tmp_path / "kafka", PROPERTIES, data["kafka"]):
        await_cleaned(data["kafka"], partitions)
    for number, partition in enumerate(partitions):
        ours, theirs = (clock_free(data[name] / f"{TOPIC}-{number}", partition.log_start_offset) for name in ("kcli", "kafka"))
        assert ours == theirs, f"seed {seeds[number]}"
        assert ours != partition.before, f"seed {seeds[number]}"
