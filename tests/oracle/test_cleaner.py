"""Kafka's Cleaner judges ours: the same log cleaned by both leaves the same batches, records and markers, round after round.

Each round begins with what our last one left. The batches' bytes may differ (codecs), what they say may not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kcli.log.cleaner.cleanable import log_to_clean
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
        self.done = log.clean()
        self.ours = list(batches_of(log.live.directory))
        self.faults = log.live.faults(is_compacted=True)


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
            twins[f"seed {seed}, round {number}"] = Twin(log, tmp_path / f"{seed}.{number}" / "t-0")
            log.now_ms += log.dice.choice((0, 500, 1500))
    (tmp_path / "cases").write_text("".join(twin.line for twin in twins.values()))
    ran = kafka_peer.run_java("CleanLog", [str(tmp_path / "cases")])
    assert ran.exit_code == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    for (name, twin), answer in zip(twins.items(), answers, strict=True):
        assert "exception" not in answer, (name, answer)
        assert twin.ours == list(batches_of(twin.copy)), name
        assert answer["end_offset"] == twin.done.end_offset, name
        counts = twin.done.counts
        assert (answer["messages_written"], answer["invalid_messages"]) == (counts.records_kept, counts.without_key), name
        assert twin.faults == [], name
