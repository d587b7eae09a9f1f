"""Protects records from the mark of a clean stop that is wrong: files that were cut, emptied or put back after the stop.

A log whose files contradict the mark must not acknowledge a record that no consumer can read. Each case changes one file
of a log that was closed cleanly, opens it as a broker does that found the mark, and fetches what it appends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.format.file_names import FileKind
from kcli.format.record_batch import read_header
from kcli.log.log_config import LogConfig
from tests.log.live_logs import NOW_MS, LiveLog, new_batch
from tests.log.log_nodes import TOPIC_ID, Node, batch, stop

RECORDS = 60
CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=300)


@pytest.fixture
def closed(tmp_path: Path) -> LiveLog:
    """A log of several segments with index entries, closed cleanly."""
    live = LiveLog(tmp_path / "t-0", CONFIG)
    for at in range(RECORDS):
        live.append(new_batch([b"v" * 200], timestamps=[NOW_MS + at]), epoch=1 if at < RECORDS // 2 else 2)
    live.log.close()
    assert len(live.sizes()) > 3
    assert all(path.stat().st_size for path in live.directory.glob("*.index"))
    return live


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def last(live: LiveLog, kind: FileKind, from_end: int = 1) -> Path:
    return sorted(live.directory.glob(f"*.{kind.value}"))[-from_end]


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def open_and_append(live: LiveLog) -> None:
    """Open the log as after a clean stop; what it appends can be read, and all its batches follow each other."""
    live.open(clean=True, recovery_point=RECORDS)
    before = live.log.log_end_offset
    first = live.append(*(new_batch([b"w" * 100]) for _ in range(10)), epoch=3)
    assert first == before and live.log.log_end_offset == first + 10
    offsets, offset = [], live.log.log_start_offset
    while data := live.read(offset, 1):
        header = read_header(data)
        assert header.base_offset >= offset
        offsets.append(header.base_offset)
        offset = header.next_offset
    assert offsets[-10:] == list(range(first, first + 10))
    live.stop()
    # Offsets that the cut file had are missing. Other faults are in an older segment, which the start does not change.
    wrong = [fault for fault in live.faults() if "code='offset-gap'" not in fault and "code='segment-gap'" not in fault]
    assert all(str(last(live, FileKind.LOG).with_suffix("")) not in fault for fault in wrong)


CASES: dict[str, Callable[[LiveLog], object]] = {
    "the active segment is empty": lambda live: cut(last(live, FileKind.LOG), 0),
    "the active index is of zeros": lambda live: zeros(last(live, FileKind.INDEX)),
    "the active index is cut in an entry": lambda live: cut(last(live, FileKind.INDEX), 5),
    "the active index is empty": lambda live: cut(last(live, FileKind.INDEX), 0),
    "the active index is missing": lambda live: last(live, FileKind.INDEX).unlink(),
    "the active time index is cut in an entry": lambda live: cut(last(live, FileKind.TIME_INDEX), 5),
    "zeros follow the last batch": lambda live: cut(last(live, FileKind.LOG), 6000),
    "the active segment is missing": lambda live: last(live, FileKind.LOG).unlink(),
    "an older index names a byte after its segment": lambda live: cut(last(live, FileKind.LOG, 3), 700),
    "an older segment is empty": lambda live: cut(last(live, FileKind.LOG, 3), 0),
    "an older index is of zeros": lambda live: zeros(last(live, FileKind.INDEX, 3)),
    "the epochs are missing": lambda live: (live.directory / "leader-epoch-checkpoint").unlink(),
    "the last snapshot is missing": lambda live: last(live, FileKind.PRODUCER_SNAPSHOT).unlink(),
    "the last snapshot is of zeros": lambda live: zeros(last(live, FileKind.PRODUCER_SNAPSHOT)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_acknowledged_after_a_wrong_mark_can_be_read(closed: LiveLog, case: str) -> None:
    CASES[case](closed)
    open_and_append(closed)


@pytest.mark.parametrize("missing_bytes", [1, 60, 268, 269, 300, 700, 1500, 2500])
def test_a_cut_of_the_last_segment_at_any_byte(closed: LiveLog, missing_bytes: int) -> None:
    """Between two batches, and in one, before and behind the last index entry."""
    path = last(closed, FileKind.LOG)
    cut(path, max(path.stat().st_size - missing_bytes, 0))
    open_and_append(closed)


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"])
def test_a_checkpoint_above_the_end_is_reported_and_the_log_is_recovered(node: Node, name: str) -> None:
    """The last segment was cut between two batches and its index put back: only a checkpoint says that records are lost."""
    log = (manager := node.started()).get_or_create_log("t", 0, TOPIC_ID, CONFIG, now_ms=NOW_MS, is_new=True)
    for _ in range(4):
        log.append_as_leader(batch(), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    directory = Path(log.directory)
    stop(manager)
    path = next(directory.glob("*.log"))
    cut(path, path.stat().st_size // 2)
    snapshot = next(directory.glob("*.snapshot"))
    snapshot.rename(directory / f"{6:020}.snapshot")
    for checkpoint in directory.parent.glob("*-checkpoint"):
        if checkpoint.name != name:
            checkpoint.write_text("0\n0\n")
    again = node.started().get_log("t", 0)
    assert again is not None and again.log_end_offset == 6
    lines = [line for line in node.reports if "do not agree with the clean stop" in line]
    assert lines and f"{path} ends at offset 6, and a checkpoint of the log directory has offset 12" in lines[0]
    assert any("offsets 6 to 11 at least are lost" in line for line in node.reports)
