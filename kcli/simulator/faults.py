"""How a simulated disk fails: calls that raise the errors of the system, and the death of the process that calls.

what            is
--------------  -------------------------------------------------------------------------------------
OSError         what a node must live with: it takes the directory offline and serves the rest
SimulatedCrash  the end of the node's process, in the midst of whatever it does
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
    """The process is dead. Not an Exception: nothing in the node may catch it and go on."""


class Fault:
    """Calls that fail: `call` by its name in the port ("" for any), on `path` and below; the first `skip` of them pass.

    `count` of them fail, or all that follow (-1), with `code`, an errno.
    """

    __slots__ = ("call", "code", "count", "path", "skip")

    def __init__(self, call: str, path: str, code: int = errno.EIO, *, skip: int = 0, count: int = 1) -> None:
        self.call = call
        self.path = path
        self.code = code
        self.skip = skip
        self.count = count

    def strikes(self, call: str, path: str) -> bool:
        """Whether this call fails; counted."""
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
    """Raise the OSError that the system raises."""
    raise OSError(code, _SENTENCES.get(code, "Injected fault"), path)
