"""Protects the bar of to-parquet: what tasks say of their bytes is added up once, also where a task begins again."""

from __future__ import annotations

from pathlib import Path
from threading import Event

from kcli.log.disk.os_disk import OsDisk
from kcli.spark.task_progress import STEP_BYTES, TaskProgress, watched


def test_each_byte_is_told_of_once(tmp_path: Path) -> None:
    """Two tasks; one of them fails and is repeated from its beginning."""
    told: list[int] = []
    has_halved = Event()

    def on_bytes(count: int) -> None:
        told.append(count)
        if sum(told) >= STEP_BYTES:
            has_halved.set()

    with watched(str(tmp_path), on_bytes):
        TaskProgress(OsDisk(), str(tmp_path), 0).reach(STEP_BYTES)
        assert has_halved.wait(60)
        repeated = TaskProgress(OsDisk(), str(tmp_path), 0)
        repeated.reach(0, is_end=True)
        repeated.reach(STEP_BYTES + 5, is_end=True)
        TaskProgress(OsDisk(), str(tmp_path), 1).reach(7, is_end=True)
    assert sum(told) == STEP_BYTES + 12


def test_a_task_says_little_and_only_where_it_is_asked(tmp_path: Path) -> None:
    """A file each few MiB, none without a folder."""
    progress = TaskProgress(OsDisk(), str(tmp_path), 3)
    progress.reach(STEP_BYTES - 1)
    TaskProgress(OsDisk(), None, 4).reach(STEP_BYTES, is_end=True)
    assert list(tmp_path.iterdir()) == []
    progress.reach(STEP_BYTES)
    assert [path.read_text() for path in tmp_path.iterdir()] == [f"{STEP_BYTES}\n"]
