"""Protects the account of a log directory that cannot be used when a broker starts: one line, and the others are served."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.server.log_lines import WARN, level_of
from tests.server.whole_node import WholeNode, batch


@pytest.mark.parametrize("names", [("meta.properties",), ("meta.properties", ".lock")])
def test_an_unreadable_directory_is_reported_once_and_taken_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """It was reported by the reader of meta.properties and again by the log manager; and served where only the first failed."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    log_dirs = f"log.dirs={good},{bad}"
    WholeNode(good, log_dirs).stop()
    read_file, lock = OsDisk.read_file, OsDisk.lock

    def broken(path: str) -> None:
        if path.startswith(str(bad)) and path.endswith(names):
            raise OSError(errno.EIO, "Input/output error", path)

    def read(disk: OsDisk, path: str, *rest: int) -> bytes:
        broken(path)
        return read_file(disk, path, *rest)

    def locked(disk: OsDisk, path: str) -> object:
        broken(path)
        return lock(disk, path)

    monkeypatch.setattr(OsDisk, "read_file", read)
    monkeypatch.setattr(OsDisk, "lock", locked)
    node = WholeNode(good, log_dirs)
    (line,) = [line for line in node.lines if str(bad) in line]
    assert "Input/output error" in line and "the log directory is offline until the broker restarts" in line
    assert level_of(line) == WARN
    node.create_topic("t")
    assert node.produce("t", 0, batch(b"x")).result().responses[0].partition_responses[0].error_code == 0
    assert [log_dir.path for log_dir in node.broker.log_manager.online_dirs()] == [str(good)]
