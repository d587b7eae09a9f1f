"""Protects the disk of a start: a snapshot that a recovery removes and writes again keeps its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.os_disk import OsDisk

NAME = "00000000000000000003.snapshot"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(b"producers")
    return path


def test_a_snapshot_that_is_written_again_keeps_its_file(snapshot: Path) -> None:
    """To remove and to make a file for each of 10,000 logs took a quarter of a start after a crash."""
    disk, inode = LiveDisk(OsDisk(), defers_removals=True), snapshot.stat().st_ino
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
    disk = LiveDisk(OsDisk(), defers_removals=True)
    disk.remove(str(snapshot))
    disk.write_file(str(snapshot), b"others")
    disk.finish()
    assert snapshot.read_bytes() == b"others" and list(disk.unflushed) == [str(snapshot)]
    assert not disk.has_overwritten and not disk.has_cut


def test_it_is_gone_before_the_log_is_cut_and_at_the_end(snapshot: Path) -> None:
    """A snapshot above the end of a cut log would say that records are missing."""
    log = snapshot.with_suffix(".log")
    log.write_bytes(b"records")
    disk = LiveDisk(OsDisk(), defers_removals=True)
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
