"""Protects that looking changes nothing: it works on a read-only mount, and leaves the page cache of large files as it was."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, missing

MIB = 1024 * 1024
COMMANDS = [
    ("dump-log", "--output", "kafka", "--deep-iteration", "DIR/orders-0"),
    ("dump-log", "--output", "json", "DIR"),
    ("dump-log", "--stats", "DIR/transactions-0"),
    ("verify", "DIR"),
    ("verify", "--repair", "DIR"),
    ("describe", "DIR"),
]


def run(*command: str) -> tuple[int, bytes, bytes]:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_read_only_mount_makes_no_difference(words: tuple[str, ...], fixtures: Path) -> None:
    """Every command that only looks: the same output and exit code where nothing can be written."""
    data = fixtures / "kafka-logs" / "data"
    command = [sys.executable, "-m", "kcli", *(word.replace("DIR", str(data)) for word in words)]
    read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/x" 2>/dev/null'
    if shutil.which("unshare") is None or run("unshare", "-m", "sh", "-c", read_only, str(data))[0] != 0:
        missing("this machine lets tests mount nothing")
    inside = run("unshare", "-m", "sh", "-c", f'{read_only} && shift 0 && exec "$@"', str(data), *command)
    assert inside == run(*command)
    assert inside[0] == 0


def resident_bytes(path: Path) -> int:
    """How much of a file is in the page cache."""
    size = path.stat().st_size
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))
        assert ctypes.CDLL(None, use_errno=True).mincore(start, ctypes.c_size_t(len(pages) * mmap.PAGESIZE), pages) == 0
        return sum(page & 1 for page in pages) * mmap.PAGESIZE


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not tell which pages are cached")
@pytest.mark.parametrize("words", [("dump-log", "--output", "kafka"), ("dump-log", "--stats"), ("verify",)], ids=" ".join)
def test_the_page_cache_of_a_large_file_stays_as_it_was(words: tuple[str, ...], fixtures: Path, tmp_path: Path) -> None:
    """What was not cached is not afterwards, and what was still is."""
    given = (fixtures / "kafka-logs" / "data" / "orders-0" / f"{0:020}.log").read_bytes()
    log = tmp_path / "large-0" / f"{0:020}.log"
    log.parent.mkdir()
    copies = 48 * MIB // len(given) + 1
    log.write_bytes(given * copies)
    evict(log)
    if resident_bytes(log) > MIB:
        missing("this file system keeps every page")
    command = [sys.executable, "-m", "kcli", *words, str(log)]
    run(*command)
    assert resident_bytes(log) <= MIB
    log.read_bytes()
    cached = resident_bytes(log)
    run(*command)
    # Two thirds: the kernel may take some of them for other processes.
    assert resident_bytes(log) > cached * 2 / 3
