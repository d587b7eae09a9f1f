"""Protects flushes of many logs together: each path once, each log gets its errors, a stop does not wait log by log."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.log.disk.flush_request import FlushGroup, FlushRequest, FlushSequence, begin_flushes
from kcli.log.disk.os_disk import MANY_PATHS, flush_paths
from kcli.log.log_config import LogConfig
from kcli.log.managing import log_registry
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, device

IO_ERROR = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "one")
    yield made


class Logs:
    """Sequences of logs in a group: two flushes each; `ends` has what became of them."""

    def __init__(self) -> None:
        self.alone: list[FlushRequest | None] = []
        self.group = FlushGroup(self.alone.append)
        self.ends: dict[str, OSError | None] = {}

    def add(self, name: str) -> None:
        self.group.add(self._flushes(name))

    def _flushes(self, name: str) -> FlushSequence[None]:
        try:
            yield (f"{name}/file", "shared")
            yield (name,)
        except OSError as error:
            self.ends[name] = error
        else:
            self.ends[name] = None


def ends(request: FlushRequest | None, error: OSError | None = None) -> FlushRequest | None:
    """End a request, and the time slices after it; return what is to be flushed next."""
    assert request is not None
    following = request.done(error)
    while following is not None and not following.paths:
        following = following.done(None)
    return following


def test_the_flushes_of_several_logs_are_one_and_a_shared_path_is_flushed_once() -> None:
    logs = Logs()
    logs.add("a")
    logs.add("b")
    first = logs.group.begin()
    assert first is not None and first.paths == ("a/file", "shared", "b/file")
    logs.add("c")
    assert logs.group.begin() is None  # it waits for the next
    second = ends(first)
    assert second is not None and second.paths == ("c/file", "shared", "a", "b")
    third = ends(second)
    assert logs.ends == {"a": None, "b": None}
    assert third is not None and third.paths == ("c",) and ends(third) is None
    assert logs.ends["c"] is None and not logs.alone and logs.group.begin() is None


def test_a_file_that_is_gone_has_each_log_flush_alone() -> None:
    logs = Logs()
    logs.add("a")
    logs.add("b")
    assert ends(logs.group.begin(), FileNotFoundError(errno.ENOENT, "gone")) is None
    first, second = logs.alone
    assert first is not None and second is not None
    assert (first.paths, second.paths) == (("a/file", "shared"), ("b/file", "shared"))
    gone = FileNotFoundError(errno.ENOENT, "gone")
    assert first.done(gone) is None and ends(ends(second)) is None
    assert logs.ends == {"a": gone, "b": None}


def test_an_error_of_the_device_is_that_of_every_log() -> None:
    """A system reports it once: a second flush of another log's file would succeed without its bytes."""
    logs = Logs()
    logs.add("a")
    logs.add("b")
    assert ends(logs.group.begin(), IO_ERROR) is None
    assert logs.ends == {"a": IO_ERROR, "b": IO_ERROR} and not logs.alone


def test_many_paths_are_flushed_and_the_error_of_the_device_counts_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / str(number)) for number in range(3 * MANY_PATHS)]
    for path in paths:
        Path(path).write_bytes(b"x")
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    assert flush_paths(paths) is None and sorted(flushed) == sorted(paths)
    os.remove(paths[0])
    missing = flush_paths(paths)
    assert isinstance(missing, FileNotFoundError) and missing.filename == paths[0]

    def fail_last(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == paths[-1]:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail_last)
    error = flush_paths(paths)
    assert error is not None and error.errno == errno.EIO and error.filename == paths[-1]


def test_a_stop_flushes_all_logs_together_and_their_leader_epochs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log once waited for the device by itself: 40,000 flushes for 10,000 partitions."""
    monkeypatch.setattr(log_registry, "FILES_PER_STEP", 1)
    manager = node.started()
    manager.epoch_writer.on_work(lambda due_ms: None)
    logs = [manager.get_or_create_log("t", index, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True) for index in range(10)]
    for log in logs:
        log.append_as_leader(batch(), 0, NOW_MS)
    manager.epoch_writer.run(NOW_MS)
    (held,) = (request for request in manager.take_flushes() if "leader-epoch" in str(request.paths))
    seen, request = [], begin_flushes(manager.shutdown(5))
    while request is not None:
        seen += [request.paths] if request.paths else []
        request = request.done(device(manager, request.paths))
    home = next(iter(node.dirs))
    assert set(seen[1]) == {log.directory for log in logs}
    assert {Path(path).suffix for path in seen[2]} == {".tmp"} and len(seen[2]) > 1, "checkpoints"
    assert seen[3:] == [(home,), (f"{home}/.kafka_cleanshutdown.tmp",), (home,)]
    assert ends(held) is None  # the write under way changes nothing any more
    for log in logs:
        assert Path(log.directory, "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
        assert not Path(log.directory, "leader-epoch-checkpoint.tmp").exists()
    assert Path(next(iter(node.dirs)), ".kafka_cleanshutdown").exists() and not node.reports
