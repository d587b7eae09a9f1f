"""Protects consumers and operators from an older segment that was cut while no broker ran.

The mark of a clean stop says nothing of it, the start reads the last segment only, and a recovery would remove all later
segments. So reads go on behind the cut, and a task that costs the start nothing reports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.log.log_config import LogConfig
from kcli.log.log_manager import Cancellable, ClosedSegmentCheck
from kcli.log.unified_log import UnifiedLog
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, flush, stop

BATCH = batch(3, b"v" * 2300).nbytes


@pytest.fixture
def stopped(tmp_path: Path) -> Node:
    """A clean stop of a log with three segments of two batches, each of three records."""
    node = Node(tmp_path)
    node.config = LogConfig(segment_bytes=BATCH * 2)
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, node.config, now_ms=NOW_MS, is_new=True)
    for _ in range(6):
        log.append_as_leader(batch(3, b"v" * 2300), 0, NOW_MS)
    flush(manager)
    stop(manager)
    return node


def older(node: Node) -> Path:
    return Path(next(iter(node.dirs)), "t-0", f"{6:020}.log")


def started(node: Node) -> tuple[UnifiedLog, list[str]]:
    """Start, and let the check of the closed segments run to its end -> the log and what was reported."""
    manager = node.started()
    assert not node.reports
    check = ClosedSegmentCheck(manager)
    while check.run(NOW_MS) < 2 * NOW_MS:
        pass
    log = manager.get_log("t", 0)
    assert log is not None
    stop(manager)
    return log, node.reports


def offsets_read(log: UnifiedLog, offset: int, most: int = 1 << 20) -> list[int]:
    """Read as a consumer does, which asks for what follows the last complete batch -> the base offsets."""
    found = []
    while offset < log.log_end_offset:
        data = log.read(offset, most, limit_offset=log.log_end_offset)
        assert data.file is not None and data.size >= BATCH, offset
        bytes_read = data.file.read_at(data.position, data.size)
        for position in range(0, len(bytes_read) - BATCH + 1, BATCH):
            base_offset = int.from_bytes(bytes_read[position : position + 8], "big")
            found.append(base_offset)
            offset = base_offset + 3
    return found


@pytest.mark.parametrize(
    ("size", "readable", "why"),
    [
        (BATCH * 2 - 1, [6], f"end at byte {BATCH} of {BATCH * 2 - 1} and at offset 9, the next segment begins at offset 12"),
        (BATCH + 30, [6], f"end at byte {BATCH} of {BATCH + 30} and at offset 9"),
        (
            BATCH,
            [6],
            f"end at byte {BATCH} of {BATCH} and at offset 9, the next segment begins at offset 12, and its offset index",
        ),
        (BATCH - 1, [], f"end at byte 0 of {BATCH - 1} and at offset 6"),
        (0, [], "end at byte 0 of 0 and at offset 6, the next segment begins at offset 12"),
    ],
)
def test_a_cut_older_segment_is_reported_and_reads_go_on_behind_it(
    stopped: Node, size: int, readable: list[int], why: str
) -> None:
    os.truncate(older(stopped), size)
    unchecked = stopped.started()
    at_once = unchecked.get_log("t", 0)
    assert at_once is not None and offsets_read(at_once, 0) == [0, 3, *readable, 12, 15]
    stop(unchecked)
    log, reports = started(stopped)
    assert len(reports) == 1
    assert reports[0].startswith(str(older(stopped))) and why in reports[0] and "kcli verify" in reports[0]
    for most in (1, BATCH + 100, 1 << 20):
        assert offsets_read(log, 0, most) == [0, 3, *readable, 12, 15]
    assert offsets_read(log, 9) == offsets_read(log, 11) == [12, 15]
    assert log.log_end_offset == 18


def test_sound_segments_and_what_a_cleaning_left_out_are_not_reported(stopped: Node) -> None:
    assert started(stopped)[1] == []
    os.truncate(older(stopped), BATCH)
    for kind in ("index", "timeindex"):
        older(stopped).with_suffix(f".{kind}").write_bytes(b"")
    stopped.config = LogConfig(segment_bytes=BATCH * 2, cleanup_policy=frozenset({"compact"}))
    assert started(stopped)[1] == []


def test_a_broker_checks_them_one_by_one_after_its_start(stopped: Node) -> None:
    os.truncate(older(stopped), BATCH)
    due: list[tuple[int, Callable[[int], None]]] = []

    class NotCancelled:
        def cancel(self) -> None:
            """Let the call come."""

    def schedule(at_ms: int, callback: Callable[[int], None]) -> Cancellable:
        due.append((at_ms, callback))
        return NotCancelled()

    manager = stopped.started()
    manager.begin_tasks(NOW_MS, schedule, lambda now_ms: None)
    while early := [one for one in due if one[0] < NOW_MS + 1000]:
        due.remove(early[0])
        early[0][1](early[0][0])
    assert [report for report in stopped.reports if report.startswith(str(older(stopped)))]
