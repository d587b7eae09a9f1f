"""Protects a log from a crash amid the swap of segments: Kafka's LogCleanerTest.testRecoveryAfterCrash, state by state.

Every disk call of a round is a crash in tests/log/cleaner/test_crashes.py; here the states are set up by hand, as Kafka's
cleaner would have left them, so that its directories are taken over, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.file_names import FileState
from tests.log.cleaner.logs import CompactedLog, PretendedMap

CLEANED, SWAP, DELETED = (state.value for state in (FileState.CLEANED, FileState.SWAP, FileState.DELETED))
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex")


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of segments by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix in SEGMENT_FILES}


def same(name: str) -> str:
    """The name of a file that is in place."""
    return name


# What becomes of the names of new files and of old ones, and whether a start finds the new ones complete.
STATES = {
    "1: cleaned, none is a swap file": (lambda name: name + CLEANED, same, False),
    "2: some are swap files": (lambda name: name + (SWAP if name.endswith(".log") else CLEANED), same, False),
    "3: all are swap files": (lambda name: name + SWAP, same, True),
    "4: the old ones are set aside": (lambda name: name + SWAP, lambda name: name + DELETED, True),
    "5: some are in place": (lambda name: name + (SWAP if ".time" in name else ""), lambda name: name + DELETED, True),
    "6: all are in place": (same, lambda name: name + DELETED, True),
}


@pytest.mark.parametrize("state", STATES)
def test_recovery_after_crash(state: str, tmp_path: Path) -> None:
    """Before the last file is a swap file the log is as it was, from then on it is what it should become."""
    new_name, old_name, is_complete = STATES[state]
    log = CompactedLog(tmp_path / "t-0", segment_bytes=300, index_interval_bytes=1)
    log.fill(segments=10)
    before_keys = log.keys()
    log.live.stop()
    log.set(segment_bytes=1 << 20)
    log.live.config = log.log.config
    before = files_of(log.directory)
    log.clean(offsets=PretendedMap(range(1, len(before_keys), 2)))
    after_keys = log.keys()
    assert after_keys == [key for key in before_keys if key % 2 == 0 or key >= log.active] != before_keys
    after = files_of(log.directory)
    log.log.close()
    for name in after:
        (log.directory / name).unlink()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    replaced = {name for name in changed if not name.startswith(f"{log.active:020}")}
    for name in before.keys() - replaced:
        (log.directory / name).write_bytes(before[name])
    for name in replaced & before.keys():
        (log.directory / old_name(name)).write_bytes(before[name])
    for name in replaced & after.keys():
        (log.directory / new_name(name)).write_bytes(after[name])
    log.live.crash()
    assert log.keys() == (after_keys if is_complete else before_keys)
    assert log.log.log_end_offset == len(before_keys)
    assert not [path.name for path in log.directory.iterdir() if path.suffix in (CLEANED, SWAP)]
    assert log.live.faults(is_compacted=is_complete) == []
    log.fill(segments=log.log.segment_count + 1)
    log.clean(offsets=PretendedMap(range(1, log.log.log_end_offset, 2)))
    left = log.keys()
    assert [key for key in left if key < log.active] == list(range(0, log.active, 2))
