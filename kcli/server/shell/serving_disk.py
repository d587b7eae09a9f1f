"""The disk of a serving process: removing a large file does not delay clients.

    removing          takes
    ----------------  --------------------------------------------------------------------------------------------------
    a name            microseconds
    the last name     the time in which the file system frees the blocks: 45 to 200 ms for a segment of 1 GB (ext4)

The blocks of an open file are freed when it is closed. So a large file is opened, its name is removed at once, and a thread
closes it. If the process ends before that, the system closes the file; another hard link, of a snapshot, keeps the blocks.
"""

from __future__ import annotations

import os
import stat
from threading import Thread

from kcli.log.disk.os_disk import OsDisk

# Smaller files are freed in less time than starting a thread takes.
LARGE_BYTES = 4 * 1024 * 1024


class ServingDisk(OsDisk):
    """The operating system's disk, with removals of large files in a thread."""

    def remove(self, path: str) -> None:
        """Remove a file; the blocks of a large one are freed later."""
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
    """Open a large file and return its descriptor; None for any other file, and if it cannot be opened."""
    try:
        status = os.lstat(path)
        if status.st_size < LARGE_BYTES or not stat.S_ISREG(status.st_mode):
            return None
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
