"""Protects the loading of a log: out of the .log files alone everything that Kafka had written beside them comes back.

What Kafka itself makes of damaged logs, file by file, is in tests/oracle/test_repair.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcli.inspect.description.metadata_view import read_cluster_topics
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.log_loader import LoadSettings, load_log
from kcli.log.loading.recovering_segment import LogRefusedError
from tests.conftest import every_log_set

# Files that a rebuild cannot give back byte for byte, though both are right, and why:
#  "interval": a broker that was restarted, or took several messages of format 0 or 1 in one append, put its index entries
#      elsewhere; "expired": it had forgotten idle producers; "stop": a snapshot of an earlier stop, at which no segment starts;
#  "cleaned": the cleaner has since taken what the file still tells of.
DIFFERENT = {
    "__consumer_offsets-0": {"00000000000000000000.timeindex": "interval", "00000000000000000088.snapshot": "stop"},
    "__transaction_state-2": {
        "00000000000000000000.index": "interval",
        "00000000000000000000.timeindex": "interval",
        "00000000000000000038.snapshot": "stop",
    },
    "codec-none-0": {"00000000000000000402.snapshot": "stop"},
    "compacted-0": {
        "00000000000000015108.snapshot": "cleaned",
        "00000000000000022709.snapshot": "cleaned",
        "00000000000000024000.snapshot": "cleaned",
    },
    "compacted-txn-0": {"00000000000000000000.txnindex": "cleaned"},
    "many-segments-0": {"00000000000000012000.snapshot": "stop", "00000000000000012050.snapshot": "expired"},
    "orders-0": {
        "00000000000000000000.index": "interval",
        "00000000000000000000.timeindex": "interval",
        "00000000000000000100.snapshot": "stop",
        "00000000000000000150.snapshot": "expired",
    },
    "magic0-none-0": {"00000000000000000000.index": "interval"},
    "magic1-none-0": {"00000000000000000000.index": "interval", "00000000000000000000.timeindex": "interval"},
}
# The leader epochs of a clean stop may hold one that begins at the end, or have lost those of records that are gone.
NOT_COMPARED = ("leader-epoch-checkpoint", "partition.metadata")


def given_partitions() -> list[Path]:
    found = [path for log_set in every_log_set() for path in sorted(log_set.data.iterdir()) if path.is_dir()]
    return [path for path in found if path.name != "__cluster_metadata-0"]


def index_settings(partition: Path) -> IndexSettings:
    topics = read_cluster_topics(OsDisk(), str(partition.parent))
    return IndexSettings() if topics is None else topics.index_settings(partition.name.rpartition("-")[0])


@pytest.mark.parametrize("partition", given_partitions(), ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_all_beside_the_log_files_comes_back(partition: Path, tmp_path: Path) -> None:
    """Byte for byte: .index, .timeindex, .txnindex and the snapshots, but for the few that DIFFERENT explains."""
    copy = tmp_path / partition.name
    copy.mkdir()
    for log in partition.glob("*.log"):
        shutil.copy(log, copy)
    planned = PlannedDisk(OsDisk())
    load_log(planned, str(copy), LoadSettings(indexes=index_settings(partition)))
    different = set()
    for path in partition.iterdir():
        if path.suffix == ".log" or path.name in NOT_COMPARED:
            continue
        rebuilt = str(copy / path.name)
        if not planned.exists(rebuilt) or planned.read_file(rebuilt, 1 << 30) != path.read_bytes():
            different.add(path.name)
    assert different == set(DIFFERENT.get(partition.name, {}))
    assert sorted(path.name for path in copy.iterdir()) == sorted(log.name for log in partition.glob("*.log"))


@pytest.mark.parametrize("partition", given_partitions(), ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_a_clean_load_leaves_a_sound_log_alone(partition: Path) -> None:
    """But for epochs in which nothing is written yet, and snapshots of earlier stops, which Kafka drops as well."""
    end_offset = max((int(path.name[:20]) for path in partition.glob("*.snapshot")), default=0)
    planned = PlannedDisk(OsDisk())
    loaded = load_log(planned, str(partition), LoadSettings(True, 0, end_offset, index_settings(partition)))
    changed = {Path(change.path).name for change in planned.changes()}
    assert changed <= {"leader-epoch-checkpoint", *DIFFERENT.get(partition.name, {})}
    assert loaded.log_end_offset == loaded.recovery_point == end_offset


def make(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_bytes(b"")
    return directory


def load(directory: Path, **settings: int) -> tuple[list[str], int, int]:
    planned = PlannedDisk(OsDisk())
    loaded = load_log(planned, str(directory), LoadSettings(**settings))  # type: ignore[arg-type]
    return planned.list_directory(str(directory)), loaded.log_start_offset, loaded.log_end_offset


def test_an_empty_directory_becomes_an_empty_log(tmp_path: Path) -> None:
    """At the log start offset that the checkpoint tells."""
    names, start, end = load(make(tmp_path / "t-0"), log_start_offset=12)
    zero = "00000000000000000012"
    assert names == [f"{zero}.index", f"{zero}.log", f"{zero}.timeindex", "leader-epoch-checkpoint"]
    assert (start, end) == (12, 12)


def test_leftovers_by_their_suffixes(tmp_path: Path) -> None:
    """Deleted and cleaned files go; a swap from the lowest cleaned file on is not valid; orphan indexes go."""
    seg, later = "00000000000000000000", "00000000000000000009"
    names = [f"{seg}.log", f"{seg}.index.deleted", f"{later}.log.cleaned", f"{later}.log.swap", f"{later}.index.swap"]
    names += [f"{later}.timeindex", "00000000000000000005-0000000001.checkpoint.deleted", "note.txt"]
    left, _, _ = load(make(tmp_path / "t-0", *names))
    assert left == [
        f"{seg}.index",
        f"{seg}.log",
        f"{seg}.timeindex",
        "00000000000000000005-0000000001.checkpoint.deleted",
        "leader-epoch-checkpoint",
        "note.txt",
    ]


@pytest.mark.parametrize("name", ["backup.log", "backup.snapshot", "x.index", "y.log.swap", "z.log.cleaned"])
def test_a_name_without_an_offset_is_refused(tmp_path: Path, name: str) -> None:
    """And the refusal says which file it is."""
    with pytest.raises(LogRefusedError) as caught:
        load(make(tmp_path / "t-0", name))
    assert caught.value.path.endswith(name)


def test_a_log_that_ends_before_its_start_is_emptied(tmp_path: Path) -> None:
    """Kafka does so whether it was stopped cleanly or not."""
    for clean in (True, False):
        directory = make(tmp_path / f"t-{clean:d}", "00000000000000000003.log", "00000000000000000003.index")
        names, start, end = load(directory, log_start_offset=50, had_clean_shutdown=clean)
        assert (start, end) == (50, 50)
        assert "00000000000000000003.log" not in names
