"""Protects the generator of logs from not making what its head says: every kind of batch, in many seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kcli.format.record_batch import RecordBatch
from tests.log.cleaner.logs import read_batches
from tests.log.cleaner.random_logs import RandomLog

SEEDS = 25
# The fewest seeds of SEEDS that must have it, before some round.
WANTED = {
    "data of no producer": 20,
    "idempotent data": 20,
    "data of a transaction": 20,
    "no records": 10,
    "COMMIT": 20,
    "ABORT": 20,
    "control without records": 3,
    "a producer epoch above 0": 20,
    "a leader epoch above 0": 10,
    "a delete horizon": 20,
    "LogAppendTime": 2,
    "a gap in a batch": 20,
    "a gap before a batch": 20,
    "several windows": 2,
    "no key": 20,
    "tombstone": 20,
    "tombstone of format 0 or 1": 5,
    "a gap in a set": 3,
    "LogAppendTime of format 1": 2,
    **{f"format 2, codec {codec}": 20 for codec in range(5)},
    **{f"format {magic}, codec {codec}": 1 for magic in (0, 1) for codec in range(4)},
}


def kinds_of(header: RecordBatch, count: int) -> set[str]:
    """What a batch of format 2 is."""
    found = {"a delete horizon"} if header.delete_horizon_ms is not None else set()
    found |= {"LogAppendTime"} if header.is_log_append_time else set()
    found |= {"a producer epoch above 0"} if header.producer_epoch > 0 else set()
    found |= {"a leader epoch above 0"} if header.partition_leader_epoch > 0 else set()
    found |= {"several windows"} if count > 4096 else set()
    if header.is_control:
        return found | ({"control without records"} if not count else set())
    if not count:
        return found | {"no records"}
    found |= {"a gap in a batch"} if count <= header.last_offset_delta else set()
    if not header.has_producer:
        return found | {"data of no producer"}
    return found | {"data of a transaction" if header.is_transactional else "idempotent data"}


def kinds_in(directory: Path) -> set[str]:
    """All kinds that a log has."""
    found: set[str] = set()
    following = 0
    for header, rows in read_batches(directory):
        found.add(f"format {header.magic}, codec {header.codec}")
        found |= {"a gap before a batch"} if header.base_offset > following else set()
        following = header.last_offset + 1
        is_control = header.magic == 2 and header.is_control
        if is_control and rows:
            found.add("COMMIT" if rows[0][2] == b"\0\0\0\1" else "ABORT")
        if header.magic == 2:
            found |= kinds_of(header, len(rows))
        elif rows[-1][0] - rows[0][0] >= len(rows):
            found.add("a gap in a set")
        found |= {"LogAppendTime of format 1"} if header.magic == 1 and header.is_log_append_time else set()
        for _, _, key, value in rows if not is_control else ():
            found |= {"no key"} if key is None else set()
            if key is not None and value is None:
                found.add("tombstone" if header.magic == 2 else "tombstone of format 0 or 1")
    return found


def test_every_kind_is_made(tmp_path: Path) -> None:
    seeds_with: Counter[str] = Counter()
    for seed in range(SEEDS):
        log = RandomLog(tmp_path / f"{seed}" / "t-0", seed)
        found: set[str] = set()
        for _ in range(3):
            log.grow()
            found |= kinds_in(log.live.directory)
            log.clean()
            log.now_ms += log.rng.choice((0, 500, 1500))
        seeds_with.update(found)
    assert {kind: seeds_with[kind] for kind, fewest in WANTED.items() if seeds_with[kind] < fewest} == {}
