"""`kcli-uncleanable-partitions` of a log directory, while a broker runs on it.

when                                          what
--------------------------------------------  ------------------------------------------------------------------------
a start                                       the file goes: every start tries again
the cleaner gives up a log of the directory   written, with all that were given up and are still there
such a log is deleted or moved                written without it
a clean stop                                  what was still on its way is written; the file stays, to be described
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcli.format.file_names import FileKind
from kcli.format.uncleanable_partitions import UncleanablePartition, encode_uncleanable_partitions
from kcli.log.disk.flush_request import FlushRequest
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.whole_file import WholeFile

_NONE = encode_uncleanable_partitions(())


class UncleanableFile:
    """The file in the log directory `directory`."""

    __slots__ = ("_disk", "_file", "_wanted")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._file = WholeFile(disk, join_path(directory, FileKind.UNCLEANABLE_PARTITIONS.value))
        self._wanted = _NONE
        self._file.is_known_to_hold(_NONE)  # a file that is missing says as much

    def forget(self) -> None:
        """Take away what an earlier run has left. Raises OSError."""
        if self._disk.exists(self._file.path):
            self._disk.remove(self._file.path)

    def write(self, partitions: Iterable[UncleanablePartition], done: Callable[[OSError | None], None]) -> FlushRequest | None:
        """Begin to write; see WholeFile.write. Raises OSError."""
        self._wanted = encode_uncleanable_partitions(partitions)
        return self._file.write(self._wanted, done)

    def finish(self) -> None:
        """Write what is still on its way, and wait for the device. Raises OSError."""
        self._file.write_now(self._wanted)
