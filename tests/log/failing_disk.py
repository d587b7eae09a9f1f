"""A disk that dies: the n-th change fails, perhaps half done, and so does every one behind it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from kcli.log.disk.os_disk import OsDisk

_CHANGES = (
    "write_file",
    "append",
    "write_at",
    "truncate",
    "rename",
    "remove",
    "make_directory",
    "set_mtime_ms",
)


class FailingDisk(OsDisk):
    """Lets `changes_left` changes pass. Of the append that fails half of the bytes are written."""

    def __init__(self, changes_left: int) -> None:
        self.changes_left = changes_left

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._counted(name, found) if name in _CHANGES else found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.changes_left -= 1
            if self.changes_left < 0:
                if self.changes_left == -1 and name == "append":
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise OSError(errno.EIO, "the disk has died", args[0])
            return call(*args)

        return run
