"""Protects the progress of a replay of many partitions in a file.

A run that saves it each second parses it only if another run wrote it, and encodes only what has changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.slices import finish
from kcli.replay.progress import FileProgress, LastBatch, PartitionProgress, check_alone
from kcli.replay.steps import ReplayError

PROGRESS = {
    ("t", number): PartitionProgress(7, 1, 100, 90, 95, 5, Uuid(b"t" * 16), Uuid(b"s" * 16), LastBatch(99, 3, 1234))
    for number in range(12)
}


def store(path: Path) -> FileProgress:
    return FileProgress(OsDisk(), str(path), "replay")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    run = store(path)
    finish(run.save(PROGRESS))
    changed = {("t", 3): PROGRESS["t", 3]._replace(source_offset=200, records=180)}
    finish(run.save(changed))
    finish(run.save({('a "b"\n', 0): PROGRESS["t", 0]}))
    wanted = {**PROGRESS, **changed, ('a "b"\n', 0): PROGRESS["t", 0]}
    assert finish(store(path).load(list(wanted))) == finish(run.load(list(wanted))) == wanted
    other = store(path)
    finish(other.load([("t", 3)]))
    finish(other.save({("t", 4): changed["t", 3]}))
    assert finish(store(path).load(list(wanted))) == {**wanted, ("t", 4): changed["t", 3]}


def test_a_file_that_only_this_run_writes_is_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store(tmp_path / "progress")
    finish(run.save(PROGRESS))
    encoded: list[object] = []
    dumps = json.dumps
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", lambda data: pytest.fail("the file is parsed"))
        patched.setattr(json, "dumps", lambda value: (encoded.append(value), dumps(value))[1])
        finish(check_alone(run, list(PROGRESS), 7))
        finish(run.save({("t", 0): PROGRESS["t", 0]}))
    assert len(encoded) == 2  # the head and the partition


def test_what_another_run_wrote_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    run = store(path)
    finish(run.save(PROGRESS))
    finish(check_alone(run, list(PROGRESS), 7))
    finish(store(path).save({where: one._replace(producer_id=8) for where, one in PROGRESS.items()}))
    with pytest.raises(ReplayError, match="has the progress of another run of this replay"):
        finish(check_alone(run, list(PROGRESS), 7))
