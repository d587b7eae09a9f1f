"""Protects the loop of a broker from the removal of large files: their names go at once, their blocks in another thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kcli.server.shell import serving_disk
from kcli.server.shell.serving_disk import LARGE_BYTES, ServingDisk


@pytest.fixture
def closed_by(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that closed a descriptor for the disk, each when it has."""
    found: list[threading.Thread] = []
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        found.append(threading.current_thread())

    monkeypatch.setattr(serving_disk.os, "close", close)
    return found


def make(path: Path, size: int) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def join_all() -> None:
    for thread in threading.enumerate():
        if thread.name == "kcli-free":
            thread.join(10)


def test_a_large_file_is_closed_for_the_last_time_elsewhere(tmp_path: Path, closed_by: list[threading.Thread]) -> None:
    path = make(tmp_path / "large", LARGE_BYTES)
    ServingDisk().remove(str(path))
    assert not path.exists()
    join_all()
    assert len(closed_by) == 1 and closed_by[0] is not threading.current_thread()


def test_a_small_file_is_not_worth_a_thread(tmp_path: Path, closed_by: list[threading.Thread]) -> None:
    path = make(tmp_path / "small", LARGE_BYTES - 1)
    ServingDisk().remove(str(path))
    assert not path.exists() and closed_by == []


def test_another_name_of_the_file_keeps_all_of_it(tmp_path: Path) -> None:
    """Snapshots of log directories are made of hard links."""
    path = make(tmp_path / "large", LARGE_BYTES)
    os.link(path, tmp_path / "snapshot")
    ServingDisk().remove(str(path))
    join_all()
    assert not path.exists() and (tmp_path / "snapshot").stat().st_size == LARGE_BYTES


def test_what_cannot_be_removed_is_told_and_closed(
    tmp_path: Path, closed_by: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        ServingDisk().remove(str(tmp_path / "none"))
    path = make(tmp_path / "large", LARGE_BYTES)

    def refuse(_: str) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr("kcli.log.disk.os_disk.os.remove", refuse)
    with pytest.raises(PermissionError):
        ServingDisk().remove(str(path))
    assert closed_by == [threading.current_thread()] and path.exists()
