"""The failures of a simulated disk: calls that raise errors of the operating system, and crashes of the calling process.

exception       meaning
--------------  -------------------------------------------------------------------------------------
OSError         an error that a node must handle: it takes the directory offline and serves the rest
SimulatedCrash  the node's process dies in the middle of the call
"""

from __future__ import annotations

import errno
from typing import NoReturn

_SENTENCES = {
    errno.ENOENT: "No such file or directory",
    errno.EIO: "Input/output error",
    errno.EBADF: "Bad file descriptor",
    errno.EEXIST: "File exists",
    errno.ENOTDIR: "Not a directory",
    errno.EISDIR: "Is a directory",
    errno.EINVAL: "Invalid argument",
    errno.ENOSPC: "No space left on device",
    errno.EROFS: "Read-only file system",
    errno.ENOTEMPTY: "Directory not empty",
}


class SimulatedCrash(BaseException):
    """The process is dead. It is not an Exception, so that no code of the node catches it and continues."""


class Fault:
    """A fault on order: calls of the disk method `call` ("" for any) on `path` or below it raise an OSError with `code`.

    The first `skip` matching calls succeed, then `count` of them fail (-1: all).
    """

    __slots__ = ("call", "code", "count", "path", "skip")

    def __init__(self, call: str, path: str, code: int = errno.EIO, *, skip: int = 0, count: int = 1) -> None:
        self.call = call
        self.path = path
        self.code = code
        self.skip = skip
        self.count = count

    def strikes(self, call: str, path: str) -> bool:
        """Count a call; return True if it fails."""
        if self.count == 0 or self.call not in ("", call):
            return False
        if self.path and path != self.path and not path.startswith(self.path.rstrip("/") + "/"):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= self.count > 0
        return True


def raise_error(code: int, path: str) -> NoReturn:
    """Raise the OSError that the operating system raises for this errno."""
    raise OSError(code, _SENTENCES.get(code, "Injected fault"), path)
