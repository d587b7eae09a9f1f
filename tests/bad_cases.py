"""What the tests of bad files share: the commands, a server that runs them bounded, and what is demanded of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.forked_commands import CommandServer, Run

KAFKA = ("dump-log", "--output", "kafka", "--print-data-log")
TEXT = ("dump-log", "--output", "text")
JSON = ("dump-log", "--output", "json")
CSV = ("dump-log", "--output", "csv")
VERIFY = ("verify", "--processes", "1")
REPAIR = ("verify", "--repair")
DESCRIBE = ("describe", "--deep")
DUMPS = (KAFKA, TEXT, JSON, CSV)
COMMANDS = (*DUMPS, VERIFY, REPAIR, (*REPAIR, "--like-kafka"), DESCRIBE)
# The promise for dump-log and each process of verify, which describe keeps, too. A repair holds the batch that it copies or
# judges, compressed as it is.
MOST_RSS_BYTES = 100_000_000
MOST_REPAIR_RSS_BYTES = 256_000_000
_COMPARED_BYTES = 1024 * 1024

Check = Callable[[tuple[str, ...], Path], Run]


def state_of(directory: Path) -> dict[str, tuple[object, ...]]:
    """What a command may not change: kind, size, times of each file below a directory, and the bytes of small ones."""
    found: dict[str, tuple[object, ...]] = {}
    for path in directory.rglob("*"):
        status = path.lstat()
        small = path.is_file() and not path.is_symlink() and status.st_size <= _COMPARED_BYTES
        content = path.read_bytes() if small and status.st_mode & 0o400 else b""
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


def checker(server: CommandServer, root: Path, *, as_root: bool = True) -> Check:
    """A function that runs a command on a path, and demands of it what is demanded of all, and that all below `root` is as
    it was: a promised exit code, no traceback, bounded memory and (by the server) bounded time."""
    before = state_of(root)

    def check(command: tuple[str, ...], path: Path) -> Run:
        run = server.run(*command, path, as_root=as_root)
        where = f"{' '.join(command)} {path}: code {run.code}, told {run.err[-2000:]}"
        assert run.code in (0, 1, 2), where
        assert "Traceback" not in run.err and "out of memory" not in run.err, where
        most_rss_bytes = MOST_REPAIR_RSS_BYTES if command[:2] == REPAIR else MOST_RSS_BYTES
        assert run.max_rss_bytes < most_rss_bytes, f"{run.max_rss_bytes:,} bytes of memory: {where}"
        assert state_of(root) == before, f"changed on disk: {where}"
        return run

    return check


def names(run: Run, path: Path) -> bool:
    """True where the user is told of the file by its name."""
    return path.name in run.told


def names_byte(run: Run, byte: int | None = None) -> bool:
    """True where the user is told of a byte: of `byte`, or of any."""
    wanted = r"\d+" if byte is None else str(byte)
    return re.search(rf'byte {wanted}\b|bytes \[{wanted}, |"(position|byte)":{wanted}\b', run.told) is not None
