"""Protects the limit of open files: the least recently used one is closed, and index caches have a limit, too."""

from __future__ import annotations

from pathlib import Path

from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache, OffsetIndexCache
from kcli.log.log_segment import LogSegment


def test_the_file_used_longest_ago_is_closed(tmp_path: Path) -> None:
    """With room for three, the fourth closes the one that was not asked for; what it held is read again."""
    files = FileCache(OsDisk(), max_open=3)
    paths = [str(tmp_path / name) for name in "abcd"]
    opened = [files.get(path, create=True) for path in paths[:3]]
    opened[1].append([b"kept"])
    assert files.get(paths[0]) is opened[0]
    files.get(paths[3], create=True)
    assert [file.fileno() >= 0 for file in opened] == [True, False, True]
    assert len(files) == 3
    assert files.get(paths[1]).read_at(0, 9) == b"kept"
    files.close_all()
    assert len(files) == 0
    assert opened[0].fileno() == -1


def test_a_file_that_is_touched_is_kept_and_a_closed_one_is_known(tmp_path: Path) -> None:
    files = FileCache(OsDisk(), max_open=2)
    paths = [str(tmp_path / name) for name in "abc"]
    first, second = (files.get(path, create=True) for path in paths[:2])
    assert files.touch(paths[0], first)
    files.get(paths[2], create=True)
    assert (first.fileno() >= 0, second.fileno() >= 0) == (True, False)
    assert not files.touch(paths[1], second)
    assert files.get(paths[1]) is not second
    assert not files.touch(paths[1], second), "another file is open at the path"


def test_indexes_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    """The last one asked for stays whatever its size; others go when there is no room."""
    segments = [LogSegment(str(tmp_path), base) for base in range(0, 300, 100)]
    for segment in segments:
        segment.size_bytes = 100  # entries behind the end of a segment are not used
        Path(segment.paths[1]).write_bytes(b"".join((at + 1).to_bytes(4, "big") * 2 for at in range(10)))
    cache = OffsetIndexCache(OsDisk(), max_bytes=170)
    first, second = cache.get(segments[0]), cache.get(segments[1])
    assert cache.get(segments[0]) is first
    cache.get(segments[2])
    assert cache.get(segments[0]) is first
    assert cache.get(segments[1]) is not second
    cache.forget(segments[1].log_path)
    cache.forget(segments[1].log_path)
    assert len(cache.get(segments[1])) == 10
