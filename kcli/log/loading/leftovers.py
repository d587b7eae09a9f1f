"""Remove or complete the files of interrupted work in a partition's directory, before any segment is loaded.

    left by                  files                                            action (Kafka: LogLoader)
    -----------------------  -----------------------------------------------  ------------------------------------------
    a deletion               *.deleted, but not of KRaft snapshots            removed
    an unfinished cleaning   *.cleaned                                        removed, with every *.swap at or above the
      or split                                                                lowest of their offsets: their swap was not
                                                                              complete
    an unfinished swap       *.swap (complete: .cleaned files become .swap    every file with an offset from the lowest
                             only when all are written)                       .log.swap to the end of the highest is
                                                                              removed, then each loses the suffix

That range includes segments, indexes and producer snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.format.file_names import FileKind, FileName, FileState, parse_file_name
from kcli.format.java_text import parse_integer
from kcli.format.primitives import INT64_MAX
from kcli.log.disk.load_disk import LoadDisk
from kcli.log.disk.port import join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.recovering_segment import LogRefusedError, RecoveringSegment
from kcli.log.loading.recovery_journal import LoadJournal, offsets_in_segment
from kcli.log.slices import Slices, at_once


def finish_leftovers_in_slices(
    disk: LoadDisk, directory: str, settings: IndexSettings, journal: LoadJournal | None = None
) -> Slices[None]:
    """Remove temporary files and finish swaps. Raises LogRefusedError where Kafka fails to load the log, and OSError."""
    return _Leftovers(disk, directory, settings, journal or LoadJournal()).finish()


finish_leftovers = at_once(finish_leftovers_in_slices)


class _Leftovers:
    def __init__(self, disk: LoadDisk, directory: str, settings: IndexSettings, journal: LoadJournal) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.journal = journal
        self.removed: list[str] = []

    def finish(self) -> Slices[None]:
        swaps = yield from self._remove_temporary_files()
        if self.removed:
            self.journal.leftovers(self.removed, "files that a deletion, a cleaning or a split had left are removed")
        if not swaps:
            return
        lowest, end = self._range_of_swaps(swaps)
        names = self._names()
        for name in names:
            offset = parse_integer(name.partition(".")[0], 64) if "." in name else None
            if name not in swaps and offset is not None and lowest <= offset < end:
                why = "a cleaned segment, complete as *.swap, takes its place"
                if parse_file_name(name).kind is FileKind.LOG and self._ends_log_behind(offset, end, names):
                    yield from self.journal.dropping(join_path(self.directory, name), offset, f"{why} and ends before it")
                self._remove(name, why)
        for name in swaps:
            path = join_path(self.directory, name)
            self.disk.explain(path, "an interrupted swap is finished")
            self.disk.rename(path, path.removesuffix(FileState.SWAP.value))
        self.journal.leftovers(swaps, "an interrupted swap of cleaned or split segments is finished")

    def _bases(self, names: Iterable[str]) -> list[int]:
        """Return the base offsets of the segments among these names."""
        files = (parse_file_name(name) for name in names)
        bases = (file.base_offset for file in files if file.kind is FileKind.LOG and file.state is FileState.CURRENT)
        return [base for base in bases if base is not None]

    def _ends_log_behind(self, base_offset: int, end_offset: int, names: Iterable[str]) -> bool:
        """Return True if a segment is the last one and has records from `end_offset` on."""
        if base_offset < max(self._bases(names), default=base_offset):
            return False
        return offsets_in_segment(self.disk, self.directory, base_offset).end_offset > end_offset

    def _is_only_copy(self, file: FileName) -> bool:
        """Return True if a *.swap or *.cleaned is a segment whose offsets, by its name, are in no other segment."""
        offset = file.base_offset
        if file.kind is not FileKind.LOG or offset is None or not self.disk.size(join_path(self.directory, file.name)):
            return False
        floor = max((base for base in self._bases(self._names()) if base <= offset), default=None)
        if floor is None:
            return True
        return floor != offset and offsets_in_segment(self.disk, self.directory, floor).end_offset <= offset

    def _names(self) -> list[str]:
        listed = self.disk.list_directory(self.directory)
        return [name for name in listed if self.disk.is_regular(join_path(self.directory, name))]

    def _remove(self, name: str, why: str) -> None:
        path = join_path(self.directory, name)
        if self.disk.exists(path):
            self.disk.explain(path, why)
            self.disk.remove(path)

    def _remove_leftover(self, file: FileName, why: str) -> Slices[None]:
        if file.state is not FileState.DELETED and self._is_only_copy(file):
            yield from self.journal.dropping(join_path(self.directory, file.name), self._offset(file), why)
        else:
            self.removed.append(file.name)
        self._remove(file.name, why)

    def _remove_temporary_files(self) -> Slices[list[str]]:
        """Remove the temporary files; return the names of the *.swap files that remain."""
        parsed = [parse_file_name(name) for name in self._names()]
        for file in parsed:
            if file.name.endswith(FileState.DELETED.value) and not file.name.endswith(".checkpoint.deleted"):
                yield from self._remove_leftover(file, "it was about to be deleted")
        cleaned = [file for file in parsed if file.name.endswith(FileState.CLEANED.value)]
        lowest_cleaned = min((self._offset(file) for file in cleaned), default=None)
        swaps = []
        for file in parsed:
            if not file.name.endswith(FileState.SWAP.value):
                continue
            if lowest_cleaned is not None and self._offset(file) >= lowest_cleaned:
                why = "it belongs to a swap that was not complete: *.cleaned files are left"
                yield from self._remove_leftover(file, why)
            else:
                self._offset(file)
                swaps.append(file.name)
        for file in cleaned:
            yield from self._remove_leftover(file, "the cleaner was writing it")
        return swaps

    def _offset(self, file: FileName) -> int:
        offset = parse_integer(file.name.partition(".")[0], 64)
        if offset is None:
            path = join_path(self.directory, file.name)
            raise LogRefusedError("the name of this file has no offset", path)
        return offset

    def _range_of_swaps(self, swaps: Iterable[str]) -> tuple[int, int]:
        """Return the offsets [lowest, end) of the segments to be swapped in."""
        lowest, end = INT64_MAX, -INT64_MAX - 1
        for name in swaps:
            file = parse_file_name(name)
            if file.kind is FileKind.LOG:
                base_offset = self._offset(file)
                segment = RecoveringSegment(
                    self.disk, self.directory, base_offset, self.settings, self.disk.explain, FileState.SWAP
                )
                lowest, end = min(lowest, base_offset), max(end, segment.read_next_offset())
        return lowest, end
