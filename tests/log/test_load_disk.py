"""Protects the disk of a start: a rewritten snapshot keeps its file, and the directory is read once, but no change missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.quarantine import Quarantine
from kcli.log.slices import finish

NAME = "00000000000000000003.snapshot"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(b"producers")
    return path


def test_a_snapshot_that_is_written_again_keeps_its_file(snapshot: Path) -> None:
    """To remove and to make a file for each of 10,000 logs took a quarter of a start after a crash."""
    disk, inode = LiveDisk(OsDisk(), str(snapshot.parent)), snapshot.stat().st_ino
    disk.remove(str(snapshot))
    assert not disk.exists(str(snapshot)) and not disk.is_regular(str(snapshot))
    assert disk.list_directory(str(snapshot.parent)) == []
    for read in (disk.open_file, disk.size, lambda path: disk.read_file(path, 100)):
        with pytest.raises(FileNotFoundError):
            read(str(snapshot))
    disk.write_file(str(snapshot), b"producers")
    disk.finish()
    assert snapshot.read_bytes() == b"producers" and snapshot.stat().st_ino == inode
    assert list(disk.unflushed) == [str(snapshot)] and not disk.has_overwritten


def test_other_bytes_make_a_new_file(snapshot: Path) -> None:
    """Old and new bytes must not mix in a power failure."""
    disk = LiveDisk(OsDisk(), str(snapshot.parent))
    disk.remove(str(snapshot))
    disk.write_file(str(snapshot), b"others")
    disk.finish()
    assert snapshot.read_bytes() == b"others" and list(disk.unflushed) == [str(snapshot)]
    assert not disk.has_overwritten and not disk.has_cut


def test_it_is_gone_before_the_log_is_cut_and_at_the_end(snapshot: Path) -> None:
    """A snapshot above the end of a cut log would say that records are missing."""
    log = snapshot.with_suffix(".log")
    log.write_bytes(b"records")
    disk = LiveDisk(OsDisk(), str(snapshot.parent))
    disk.remove(str(snapshot))
    assert snapshot.exists()
    disk.truncate(str(log), 2)
    assert not snapshot.exists()
    snapshot.write_bytes(b"again")
    disk.remove(str(snapshot))
    disk.finish()
    assert not snapshot.exists()
    plain = LiveDisk(OsDisk())
    plain.remove(str(log))
    assert not log.exists()


class CountingDisk(OsDisk):
    """Counts the questions about names."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        self.calls.append("list")
        return super().list_directory(path)

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""
        self.calls.append("exists")
        return super().exists(path)

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file."""
        self.calls.append("is_regular")
        return super().is_regular(path)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        self.calls.append("size")
        return super().size(path)


def test_a_load_lists_the_directory_once_and_examines_each_file_once(tmp_path: Path) -> None:
    """A start of 10,000 logs after a crash asked the system some fifty times for each log."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"123")
    (tmp_path / "c").mkdir()
    counting = CountingDisk()
    disk = LiveDisk(counting, str(tmp_path))
    for _ in range(3):
        assert disk.list_directory(str(tmp_path)) == ["a", "b", "c"]
        assert [disk.exists(str(tmp_path / name)) for name in "abcd"] == [True, True, True, False]
        assert [disk.is_regular(str(tmp_path / name)) for name in "abcd"] == [True, True, False, False]
        assert disk.size(str(tmp_path / "a")) == 3
    assert sorted(counting.calls) == ["is_regular"] * 3 + ["list", "size"]
    outside = tmp_path / "c" / "a"
    assert not disk.exists(str(outside))
    outside.write_bytes(b"")
    assert disk.exists(str(outside)) and disk.is_regular(str(outside))


def test_each_change_of_a_load_is_seen_by_its_questions(tmp_path: Path) -> None:
    """What was read once must not outlive a change: a load decides by it what to remove and where the log ends."""
    log, index = str(tmp_path / "0.log"), str(tmp_path / "0.index")
    disk = LiveDisk(OsDisk(), str(tmp_path))
    assert disk.list_directory(str(tmp_path)) == [] and not disk.is_regular(log)
    disk.append(log, b"123")
    assert disk.exists(log) and disk.is_regular(log) and disk.size(log) == 3
    disk.append(log, b"4")
    assert disk.size(log) == 4
    disk.write_at(log, 4, b"56")
    assert disk.size(log) == 6
    disk.truncate(log, 2)
    assert disk.size(log) == 2
    for data in (b"entries", b"more entries", b"few"):
        disk.write_file(index, data)
        assert disk.list_directory(str(tmp_path)) == ["0.index", "0.log"] and disk.size(index) == len(data)
    disk.write_file(str(tmp_path / "epochs"), b"0")
    disk.rename(log, log + ".deleted")
    assert disk.list_directory(str(tmp_path)) == ["0.index", "0.log.deleted", "epochs"]
    assert not disk.exists(log) and disk.is_regular(log + ".deleted")
    disk.remove(log + ".deleted")
    assert not disk.exists(log + ".deleted") and disk.list_directory(str(tmp_path)) == ["0.index", "epochs"]
    snapshot = str(tmp_path / NAME)
    disk.write_file(snapshot, b"producers")
    disk.remove(snapshot)
    disk.append(log, b"")  # lists the directory again, in which the removed snapshot still is
    assert disk.list_directory(str(tmp_path)) == ["0.index", "0.log", "epochs"]
    disk.write_file(snapshot, b"other producers")
    assert disk.size(snapshot) == 15 and NAME in disk.list_directory(str(tmp_path))


def test_what_the_quarantine_takes_is_gone_for_the_load(tmp_path: Path) -> None:
    """The load would remove it once more, and the missing file would take the log directory offline."""
    log = tmp_path / "t-0" / "0.log"
    log.parent.mkdir()
    log.write_bytes(b"records")
    disk = LiveDisk(OsDisk(), str(log.parent))
    assert disk.exists(str(log)) and disk.size(str(log)) == 7
    kept = finish(Quarantine(OsDisk(), str(tmp_path / "kept"), str(tmp_path)).move_in_slices(disk, str(log)))
    assert not disk.exists(str(log)) and disk.list_directory(str(log.parent)) == []
    assert Path(kept).read_bytes() == b"records"
