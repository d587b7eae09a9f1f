"""Protects the disk's port: reads that tell the truth at every edge, changes that are whole or not at all, locks as Java's."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import CACHE_NEUTRAL_FILE_BYTES, OsDisk, OsFile, uncached_ranges
from tests.conftest import missing, open_descriptors

DISK = OsDisk()


@pytest.fixture(scope="module", params=["small", "large"])
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A file, and its bytes; the large one is read with an eye on the page cache."""
    path = tmp_path_factory.mktemp("disk") / "file"
    size = 5000 if request.param == "small" else CACHE_NEUTRAL_FILE_BYTES + 4097
    data = random.Random(1).randbytes(size)
    path.write_bytes(data)
    return path, data


def test_reads_tell_the_truth(sample: tuple[Path, bytes]) -> None:
    """From any place, of any size: what is there, less only at the end; cached or not makes no difference."""
    path, data = sample
    file = DISK.open_file(str(path))
    assert (file.name, file.size()) == (str(path), len(data))
    rng = random.Random(2)
    for _ in range(200):
        at, size = rng.choice((0, len(data) - 3, rng.randrange(len(data)))), rng.choice((0, 1, 4096, 70_000))
        buffer = bytearray(b"\xaa" * (size + 8))
        count = file.read_into(at, memoryview(buffer)[:size])
        assert count == min(size, len(data) - at)
        assert buffer[:count] == data[at : at + count] and buffer[count:] == b"\xaa" * (size + 8 - count)
        assert file.read_at(at, size) == data[at : at + size]
    assert file.read_at(len(data), 10) == file.read_at(len(data) + 10**6, 10) == b""
    assert file.read_into(len(data) + 5, memoryview(bytearray(5))) == 0
    file.close()
    file.close()


def test_uncached_pages_are_read_too(sample: tuple[Path, bytes]) -> None:
    """Pages that are not in the cache come from the device, and the bytes are the same."""
    path, data = sample
    with open(path, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file = OsFile(str(path))
    assert file.read_at(0, len(data)) == data
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not tell which pages are cached")
def test_a_partly_cached_file_stays_as_it_was(tmp_path: Path) -> None:
    """Whatever is read, and in whatever pieces: the pages that were cached are afterwards, and no others."""
    path, page = tmp_path / "file", mmap.PAGESIZE
    size = CACHE_NEUTRAL_FILE_BYTES + 4097
    path.write_bytes(random.Random(3).randbytes(size))
    end = -(-size // page) * page
    gaps = [(0, 3 * page), (4 * page, 500 * page), (900 * page, 4000 * page), (4001 * page, end)]
    with open(path, "rb", buffering=0) as opened:
        for _ in range(5):  # the system may drop or keep a page for its own reasons; a fault of ours shows each time
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if uncached_ranges(opened.fileno(), 0, size) != [(0, end)]:
                missing("this file system keeps every page")
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for start, stop in ((3, 4), (500, 900), (4000, 4001)):
                os.pread(opened.fileno(), (stop - start) * page, start * page)
            cached = uncached_ranges(opened.fileno(), 0, size)
            parts = [
                uncached_ranges(opened.fileno(), *part) for part in ((3 * page + 5, 5 * page + 1), (600 * page, 700 * page))
            ]
            file, rng = OsFile(str(path)), random.Random(4)
            for start in (0, 0, *(rng.randrange(size) for _ in range(50)), 0):
                for _ in range(20):
                    start += len(file.read_at(start, rng.choice((0, 61, 5000, 524_288))))
            file.close()
            if cached == uncached_ranges(opened.fileno(), 0, size) == gaps:
                break
        assert (cached, parts) == (gaps, [[(4 * page, 6 * page)], []])
        assert uncached_ranges(opened.fileno(), 0, size) == gaps


def test_a_file_that_grows_and_shrinks(tmp_path: Path) -> None:
    """Size and bytes are those of now, not of when it was opened."""
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    file = OsFile(str(path))
    DISK.append(str(path), b"def")
    assert file.size() == 6 and file.read_at(2, 100) == b"cdef"
    os.truncate(path, 2)
    assert file.size() == 2 and file.read_at(0, 100) == b"ab" and file.read_at(4, 1) == b""
    file.close()


def test_holes_are_passed_over(tmp_path: Path) -> None:
    """The next data behind a hole of 1 TB is found at once; behind the last there is the size."""
    path = tmp_path / "sparse"
    path.write_bytes(b"x" * 10_000)
    os.truncate(path, 1 << 40)
    file = OsFile(str(path))
    assert file.next_data(0) == 0
    assert 10_000 <= file.next_data(1 << 30) <= 1 << 40
    DISK.write_at(str(path), 1 << 39, b"y")
    found = file.next_data(1 << 30)
    assert 1 << 30 <= found <= 1 << 39 and (found == 1 << 30 or found > (1 << 39) - (1 << 20))
    assert file.next_data(1 << 41) == 1 << 41
    file.close()


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "missing", "loop"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """Opening it raises OSError with its path, without waiting for a writer."""
    path = tmp_path / "it"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
    for read in (DISK.open_file, lambda name: DISK.read_file(name, 10)):
        with pytest.raises(OSError) as refused:
            read(str(path))
        assert refused.value.filename == str(path)
    assert not DISK.is_regular(str(path))
    assert DISK.exists(str(path)) == (kind != "missing")
    assert DISK.is_directory(str(path)) == (kind == "directory")


def test_opening_leaves_no_descriptor(tmp_path: Path) -> None:
    """Neither a file that is closed nor one that is refused keeps one."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    before = open_descriptors()
    for _ in range(5):
        OsFile(str(path)).close()
        DISK.read_file(str(path), 5)
        with pytest.raises(OSError):
            OsFile(str(tmp_path))
    assert open_descriptors() == before


def test_reading_leaves_the_times(tmp_path: Path) -> None:
    """A read changes neither the time of modification nor, of one's own files, that of access."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    os.utime(path, ns=(10**18, 10**18))
    DISK.read_file(str(path), 100)
    status = path.stat()
    assert status.st_mtime_ns == 10**18 and DISK.mtime_ms(str(path)) == 10**12
    assert status.st_atime_ns == 10**18


def test_small_files_whole(tmp_path: Path) -> None:
    """Up to the limit, and not a byte above it."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert DISK.read_file(str(path), 5) == b"12345"
    with pytest.raises(OSError) as refused:
        DISK.read_file(str(path), 4)
    assert refused.value.errno == errno.EFBIG and refused.value.filename == str(path)


def test_changes(tmp_path: Path) -> None:
    """Each change does what its name says, to that file alone."""
    path, other = str(tmp_path / "a"), str(tmp_path / "b")
    DISK.write_file(path, b"first")
    DISK.write_file(path, b"second, longer")
    assert DISK.list_directory(str(tmp_path)) == ["a"]
    DISK.write_at(path, 2, b"XY")
    DISK.append(path, memoryview(b"!"))
    assert DISK.read_file(path, 100) == b"seXYnd, longer!"
    DISK.truncate(path, 4)
    DISK.set_mtime_ms(path, 1_700_000_000_123)
    assert DISK.read_file(path, 100) == b"seXY" and DISK.mtime_ms(path) == 1_700_000_000_123
    DISK.append(other, b"gone")
    DISK.rename(path, other)
    assert DISK.list_directory(str(tmp_path)) == ["b"] and DISK.size(other) == 4
    DISK.flush(other)
    DISK.flush_directory(str(tmp_path))
    DISK.flush_directory(str(tmp_path / "missing"))
    DISK.remove(other)
    DISK.make_directory(str(tmp_path / "c" / "d"))
    DISK.make_directory(str(tmp_path / "c" / "d"))
    DISK.remove_directory(str(tmp_path / "c" / "d"))
    assert DISK.list_directory(str(tmp_path / "c")) == [] and DISK.free_bytes(str(tmp_path)) > 0
    with pytest.raises(FileNotFoundError):
        DISK.write_at(path, 0, b"x")
    assert not DISK.exists(path)


@pytest.mark.parametrize("fault", ["full disk", "directory"])
def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Neither on a full disk, where the old file stays, nor for a path that cannot be replaced."""
    path = tmp_path / "file"
    if fault == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"old")
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(full))
    with pytest.raises(OSError):
        DISK.write_file(str(path), b"new")
    assert DISK.list_directory(str(tmp_path)) == ["file"]
    assert path.is_dir() or path.read_bytes() == b"old"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process holds the lock."""
    program = (
        "import sys; from kcli.log.disk.os_disk import OsDisk; release = OsDisk().lock(sys.argv[1]); "
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(path)]
    holder = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        yield
    finally:
        holder.communicate()


def test_a_lock_that_another_holds(tmp_path: Path) -> None:
    """It is seen, refused, and free when the other has ended; looking takes and creates nothing."""
    path = tmp_path / ".lock"
    assert not DISK.is_locked(str(path)) and not path.exists()
    with held(path):
        assert DISK.is_locked(str(path)) and DISK.lock(str(path)) is None
    assert not DISK.is_locked(str(path))
    release = DISK.lock(str(path))
    assert release is not None and path.exists()
    release()
