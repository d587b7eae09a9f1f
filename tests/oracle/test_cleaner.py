"""Kafka's Cleaner judges ours: the same log cleaned by both leaves the same batches, records and markers, round after round.

Each round begins with what our last one left. The batches' bytes may differ (codecs), what they say may not.

Two faults of Kafka's are not shared, and what they touch is left out:

    below the log start   Kafka takes the data of a transaction that was aborted for data that stays, and drops its entry of
                          the index, which comes to light where a crash brings an earlier log start back
    a round that begins   Kafka takes a producer whose transaction was aborted there before for one that is aborted still: what
      amid a segment      it commits from there on, up to its next marker, is not in the map, so that a tombstone of it goes
                          one day, and the value before it stays
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.unified_log import UnifiedLog
from tests.log.cleaner.logs import read_batches
from tests.log.cleaner.random_logs import RandomLog, batches_of
from tests.oracle.peer import Peer

ROUNDS = 4


class Twin:
    """A round of one seed: what Kafka is to do with a copy, and what we did."""

    def __init__(self, log: RandomLog, copy: Path) -> None:
        shutil.copytree(log.live.directory, copy)
        live = log.live.log
        cleanable = log_to_clean(live, log.checkpoint, log.now_ms)
        numbers = (
            live.log_start_offset,
            cleanable.first_dirty_offset,
            cleanable.first_uncleanable_offset,
            live.log_end_offset,
            log.now_ms,
            log.memory_bytes,
        )
        settings = ",".join(f"{key}={value}" for key, value in log.settings.items())
        self.line = "\t".join((str(copy), settings, *map(str, numbers))) + "\n"
        self.copy = copy
        self.is_misjudged = self._misjudges(live, copy, cleanable.first_dirty_offset)
        self.done = log.clean()
        self.log_start_offset = live.log_start_offset
        self.ours = list(self.readable(log.live.directory))
        self.faults = log.live.faults(is_compacted=True)

    @staticmethod
    def _misjudges(live: UnifiedLog, directory: Path, first_dirty_offset: int) -> bool:
        """Whether Kafka's map lacks records of a transaction for an abort that ended before the dirty part; see the head."""
        base_offset = max(base for base in live.base_offsets if base <= first_dirty_offset)
        aborted = live.aborted_transactions(base_offset, first_dirty_offset)
        suspects = {txn.producer_id for txn in aborted if txn.last_offset < first_dirty_offset}
        for header, _ in read_batches(directory):
            if header.last_offset >= first_dirty_offset and header.magic == 2 and header.is_transactional:
                if header.producer_id in suspects and not header.is_control:
                    return True
                suspects.discard(header.producer_id)
        return False

    def readable(self, directory: Path) -> Iterator[tuple[Any, ...]]:
        """The batches that a reader may get."""
        return (batch for batch in batches_of(directory) if batch[3] >= self.log_start_offset)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(40), marks=pytest.mark.ci), pytest.param(range(40, 400), marks=pytest.mark.slow)]
)
def test_both_leave_the_same(kafka_peer: Peer, seeds: range, tmp_path: Path) -> None:
    twins: dict[str, Twin] = {}
    for seed in seeds:
        log = RandomLog(tmp_path / f"{seed}" / "t-0", seed)
        for number in range(ROUNDS):
            log.grow()
            if log.is_dirty:
                twins[f"seed {seed}, round {number}"] = Twin(log, tmp_path / f"{seed}.{number}" / "t-0")
            log.now_ms += log.rng.choice((0, 500, 1500))
    (tmp_path / "cases").write_text("".join(twin.line for twin in twins.values()))
    ran = kafka_peer.run_java("CleanLog", [str(tmp_path / "cases")])
    assert ran.exit_code == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    for (name, twin), answer in zip(twins.items(), answers, strict=True):
        assert "exception" not in answer, (name, answer)
        assert twin.faults == [], name
        if twin.is_misjudged:
            continue
        assert twin.ours == list(twin.readable(twin.copy)), name
        assert answer["end_offset"] == twin.done.end_offset, name
        counts = twin.done.stats
        if not twin.log_start_offset:
            assert (answer["messages_written"], answer["invalid_messages"]) == (counts.records_kept, counts.without_key), name
    assert sum(twin.is_misjudged for twin in twins.values()) < len(twins) / 10
