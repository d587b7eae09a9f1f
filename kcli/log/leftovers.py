"""What crashes leave in a partition's directory, and what a broker does about it before it looks at any segment.

    left by                  files                                            what happens (Kafka: LogLoader)
    -----------------------  -----------------------------------------------  ------------------------------------------
    a deletion               *.deleted, but not of KRaft snapshots            removed
    an unfinished cleaning   *.cleaned                                        removed, and every *.swap from the lowest
      or split                                                                offset among them on: its swap had not
                                                                              become valid
    an unfinished swap       *.swap (complete: .cleaned files become .swap    every file whose offset lies from the
                             only when all are written)                       lowest .log.swap to the end of the highest
                                                                              goes, then each loses the suffix

Everything in the range goes: segments, indexes, and producer snapshots too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.format.file_names import FileKind, FileName, FileState, parse_file_name
from kcli.format.java_integers import parse_integer
from kcli.format.primitives import INT64_MAX
from kcli.log.indexes import IndexSettings
from kcli.log.load_disk import LoadDisk
from kcli.log.log_directory import join_path
from kcli.log.log_segment import LogRefusedError, LogSegment


def finish_leftovers(disk: LoadDisk, directory: str, settings: IndexSettings) -> None:
    """Remove temporary files and finish swaps. Raises LogRefusedError where Kafka refuses to, and OSError."""
    _Leftovers(disk, directory, settings).finish()


class _Leftovers:
    def __init__(self, disk: LoadDisk, directory: str, settings: IndexSettings) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings

    def finish(self) -> None:
        swaps = self._remove_temporary_files()
        lowest, end = self._range_of_swaps(swaps)
        for name in self._names():
            offset = parse_integer(name.partition(".")[0], 64) if "." in name else None
            if name not in swaps and offset is not None and lowest <= offset < end:
                self._remove(name, "a cleaned segment, complete as *.swap, takes its place")
        for name in swaps:
            path = join_path(self.directory, name)
            self.disk.explain(path, "an interrupted swap is finished")
            self.disk.rename(path, path.removesuffix(FileState.SWAP.value))

    def _names(self) -> list[str]:
        listed = self.disk.list_directory(self.directory)
        return [name for name in listed if self.disk.is_regular(join_path(self.directory, name))]

    def _remove(self, name: str, why: str) -> None:
        path = join_path(self.directory, name)
        self.disk.explain(path, why)
        self.disk.remove(path)

    def _remove_temporary_files(self) -> list[str]:
        """Step 1 -> the names of the *.swap files that are left."""
        parsed = [parse_file_name(name) for name in self._names()]
        for file in parsed:
            if file.name.endswith(FileState.DELETED.value) and not file.name.endswith(".checkpoint.deleted"):
                self._remove(file.name, "it was about to be deleted")
        cleaned = [file for file in parsed if file.name.endswith(FileState.CLEANED.value)]
        lowest_cleaned = min((self._offset(file) for file in cleaned), default=None)
        swaps = []
        for file in parsed:
            if not file.name.endswith(FileState.SWAP.value):
                continue
            if lowest_cleaned is not None and self._offset(file) >= lowest_cleaned:
                self._remove(file.name, "it belongs to a swap that was not complete: *.cleaned files are left")
            else:
                self._offset(file)
                swaps.append(file.name)
        for file in cleaned:
            self._remove(file.name, "the cleaner was writing it")
        return swaps

    def _offset(self, file: FileName) -> int:
        offset = parse_integer(file.name.partition(".")[0], 64)
        if offset is None:
            path = join_path(self.directory, file.name)
            raise LogRefusedError("no offset stands in the name of this file", path)
        return offset

    def _range_of_swaps(self, swaps: Iterable[str]) -> tuple[int, int]:
        """The offsets that the segments about to be swapped in stand for: [lowest, end)."""
        lowest, end = INT64_MAX, -INT64_MAX - 1
        for name in swaps:
            file = parse_file_name(name)
            if file.kind is FileKind.LOG:
                base_offset = self._offset(file)
                segment = LogSegment(self.disk, self.directory, base_offset, self.settings, self.disk.explain, FileState.SWAP)
                lowest, end = min(lowest, base_offset), max(end, segment.read_next_offset())
        return lowest, end
