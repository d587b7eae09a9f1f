"""Apply a plan of file changes so that after a crash at any moment a broker recovers the log by itself.

    phase  action                                                        files after a crash
    -----  ------------------------------------------------------------  -----------------------------------------------
    1      the bytes to remove are passed to the keeper                  unchanged
    2      rewritten files are written to *.part; a complete one         files that a broker ignores
             becomes a *.tmp
    3      whole segments are removed, the last first                    the log ends earlier, without a gap
    4      derived files that change (indexes, snapshots), and           segments without indexes, which Kafka rebuilds
           leftovers, are moved to the keeper                              at its start, marked clean or not
    5      renames; *.tmp replace the files; truncations                 each file old or new
    6      new files: snapshots, epochs, then .timeindex and .txnindex,  a segment without .index, which Kafka rebuilds
           .index last

Segments are removed before the indexes of the segment that is cut: a broker cuts a segment without an index at once, and would
then not detect that the later ones do not follow it.

At every moment the records that a plan keeps are in a file named *.log or in a complete *.log.tmp, on which a second repair
relies (kcli.inspect.repairing.misplaced_segments): segments that exchange their names lose the old ones first.

Files are flushed before they are renamed, the directory after each phase. The keeper takes the removed bytes: `Discard` deletes
them, a quarantine keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, WRITE, Change, Content, PlannedFile
from kcli.log.disk.port import Disk, base_name, parent_path

_DERIVED = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT)
# The last of a segment's new files, in this order: a segment is complete only with its .index.
_LAST_WRITTEN = (FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.INDEX)
# Not .cleaned: a broker would remove it, and with it every *.swap.
_UNFINISHED = FileState.PARTIAL.value
_PENDING = FileState.TEMPORARY.value


class Keeper(Protocol):
    """A place for the files and bytes that a plan removes. The methods raise OSError."""

    def keep_file(self, path: str) -> None:
        """Move or remove a whole file."""
        ...

    def keep_copy(self, path: str) -> None:
        """Copy a file that is about to be replaced."""
        ...

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy byte ranges [start, end) of a file that stays."""
        ...


class Discard:
    """A keeper that deletes everything."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def keep_file(self, path: str) -> None:
        """Remove the file."""
        self._disk.remove(path)

    def keep_copy(self, path: str) -> None:
        """Do nothing."""

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing."""


def apply_changes(disk: Disk, changes: Iterable[Change], keeper: Keeper) -> None:
    """Apply the changes of a plan. Raises OSError; for the files at that point see the module docstring."""
    _Application(disk, list(changes), keeper).run()


def kept_bytes(changes: Iterable[Change]) -> tuple[int, int]:
    """Return how many bytes of these changes a keeper gets: (as copies, as whole files that are moved)."""
    copied = moved = 0
    for change in changes:
        dropped = sum(end - start for start, end in change.dropped)
        if change.kind == REMOVE:
            moved += change.size_bytes
        elif change.kind == WRITE and _is_derived(change):
            moved += dropped
        else:
            copied += dropped
    return copied, moved


class _Application:
    def __init__(self, disk: Disk, changes: list[Change], keeper: Keeper) -> None:
        self.disk = disk
        self.changes = changes
        self.keeper = keeper
        self.directories = sorted({parent_path(change.path) for change in changes})
        self.renamed = {change.target: change.path for change in self._of(RENAME)}
        self.times = {
            change.path: disk.mtime_ms(self.renamed.get(change.path, change.path))
            for change in self._of(REWRITE, TRUNCATE)
            if _is_log(change)
        }
        self.rewritten = [
            change
            for change in self.changes
            if change.kind == REWRITE or (change.kind == WRITE and _has_sources(change.content))
        ]
        self.temporary = {change.path + suffix for change in self.rewritten for suffix in (_UNFINISHED, _PENDING)}

    def _of(self, *kinds: str) -> list[Change]:
        return [change for change in self.changes if change.kind in kinds]

    def _flush_directories(self) -> None:
        for directory in self.directories:
            self.disk.flush_directory(directory)

    def run(self) -> None:
        self._keep_parts()
        self._write_temporary_files()
        self._remove_segments()
        self._remove_derived()
        self._move()
        self._write_new()

    def _keep_parts(self) -> None:
        for change in self._of(REWRITE, TRUNCATE):
            self.keeper.keep_ranges(self.renamed.get(change.path, change.path), change.dropped)
        for change in self._of(WRITE):
            if change.replaces and not _is_derived(change):
                self.keeper.keep_copy(change.path)

    def _remove_derived(self) -> None:
        for change in self.changes:
            if change.kind == REMOVE:
                goes = not _is_log(change) and change.path not in self.temporary
            else:
                goes = change.kind == WRITE and change.replaces and _is_derived(change)
            if goes:
                self.keeper.keep_file(change.path)
        self._flush_directories()

    def _write_temporary_files(self) -> None:
        # An interrupted repair may have left files of these names, and records may be only in such a *.tmp: it is a source
        # until all contents are written, and is then replaced in one step.
        for change in self.rewritten:
            unfinished = change.path + _UNFINISHED
            if self.disk.exists(unfinished):
                self.keeper.keep_file(unfinished)
            self._write_content(unfinished, change.content)
        for change in self.rewritten:
            pending = change.path + _PENDING
            if self.disk.exists(pending) and self.renamed.get(change.path) != pending:
                self.keeper.keep_copy(pending)
        self._flush_directories()
        for change in self.rewritten:
            self.disk.rename(change.path + _UNFINISHED, change.path + _PENDING)
        self._flush_directories()

    def _write_content(self, path: str, content: Content) -> None:
        file = PlannedFile(self.disk, path, content)
        try:
            position, size = 0, file.size()
            self.disk.append(path, b"")
            while position < size:
                chunk = file.read_at(position, limits.READ_CHUNK_BYTES)
                if not chunk:
                    raise OSError(f"{path}: one of its source files shrank concurrently")
                self.disk.append(path, chunk)
                position += len(chunk)
        finally:
            file.close()
        self.disk.flush(path)

    def _remove_segments(self) -> None:
        for change in sorted(self._of(REMOVE), key=lambda change: change.path, reverse=True):
            if _is_log(change):
                self.keeper.keep_file(change.path)
        self._flush_directories()

    def _move(self) -> None:
        for change in self._of(RENAME):
            if change.path not in self.temporary:  # else the rewritten file has replaced it
                self.disk.rename(change.path, change.target)
        for change in self.rewritten:
            self.disk.rename(change.path + _PENDING, change.path)
            self._restore_time(change)
        self._flush_directories()
        # Not earlier: the cut part of a segment that is split is now on the device under its new name.
        for change in self._of(TRUNCATE):
            self.disk.truncate(change.path, change.size_bytes)
            self.disk.flush(change.path)
            self._restore_time(change)
        self._flush_directories()

    def _restore_time(self, change: Change) -> None:
        """Restore the modification time, which retention and the cleaner use."""
        if change.path in self.times:
            self.disk.set_mtime_ms(change.path, self.times[change.path])

    def _write_new(self) -> None:
        for change in sorted(self._of(WRITE), key=_write_order):
            if not _has_sources(change.content):
                self.disk.write_file(change.path, b"".join(_bytes_of(change.content)))
        self._flush_directories()


def _is_log(change: Change) -> bool:
    name = parse_file_name(base_name(change.path))
    return name.kind is FileKind.LOG and name.state is FileState.CURRENT


def _is_derived(change: Change) -> bool:
    return parse_file_name(base_name(change.path)).kind in _DERIVED


def _has_sources(content: Content) -> bool:
    """Return True if it has bytes of real files."""
    return any(isinstance(extent.source, str) for extent in content)


def _bytes_of(content: Content) -> Iterable[bytes]:
    for extent in content:
        if isinstance(extent.source, bytes):
            yield extent.source[extent.start : extent.end]
        else:
            yield bytes(extent.end - extent.start)


def _write_order(change: Change) -> tuple[int, str]:
    kind = parse_file_name(base_name(change.path)).kind
    return (_LAST_WRITTEN.index(kind) + 1 if kind in _LAST_WRITTEN else 0, change.path)
