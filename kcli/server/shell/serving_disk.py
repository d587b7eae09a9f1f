"""The disk of a process that serves: to remove a large file must not keep clients waiting.

    removing          takes
    ----------------  --------------------------------------------------------------------------------------------------
    a name            microseconds
    the last name     as long as it takes the file system to free its blocks: of a segment of 1 GB measured 45 to 200 ms
                      (ext4)

A file that is open is freed when it is closed. So a large one is opened, loses its name at once, and is closed by a thread. A
process that dies meanwhile has closed it; a name elsewhere, of a snapshot by hard links, stays what it was.
"""

from __future__ import annotations

import os
import stat
from threading import Thread

from kcli.log.disk.os_disk import OsDisk

# Smaller files are freed in less time than a thread is worth.
LARGE_BYTES = 4 * 1024 * 1024


class ServingDisk(OsDisk):
    """See the head of this module."""

    def remove(self, path: str) -> None:
        """Remove a file; the blocks of a large one are free a little later."""
        descriptor = _open_large(path)
        try:
            super().remove(path)
        except OSError:
            if descriptor is not None:
                os.close(descriptor)
            raise
        if descriptor is not None:
            Thread(target=os.close, args=(descriptor,), name="kcli-free").start()


def _open_large(path: str) -> int | None:
    """An open descriptor of a large file; None for any other, and where it cannot be opened."""
    try:
        status = os.lstat(path)
        if status.st_size < LARGE_BYTES or not stat.S_ISREG(status.st_mode):
            return None
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
