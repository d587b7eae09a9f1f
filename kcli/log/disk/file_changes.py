"""Carrying out a plan of file changes so that a crash at any moment leaves a log that a broker recovers by itself.

    phase  what                                                          a crash then leaves
    -----  ------------------------------------------------------------  -----------------------------------------------
    1      the bytes that will go are given to the keeper                all as it was
    2      rewritten files are written beside, as *.part; a complete     files that no broker looks at
             one becomes a *.tmp
    3      whole segments go, the last first                             the log ends earlier, without a hole
    4      files that follow from the log and change (indexes,           segments without indexes, which Kafka rebuilds
           snapshots), and leftovers, go to the keeper                     at its start, marked clean or not
    5      renames; *.tmp take the place of the files; truncations       each file as it was or as it shall be
    6      new files: snapshots, epochs, then .timeindex and .txnindex,  a segment without .index, which Kafka rebuilds
           .index last

Segments go before the indexes of the one that is cut: a broker that misses an index cuts that segment at once, and would then
see nothing wrong with those behind it.

At every moment the records that a plan keeps are in a file that is called *.log or in a complete *.log.tmp, which is what a
second repair goes by (kcli.inspect.repairing.misplaced_segments): segments that exchange their names lose the old ones first.

Files are flushed before they are renamed, the directory after each phase. The keeper decides what becomes of what goes:
`Discard` lets it go, a quarantine keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, WRITE, Change
from kcli.log.disk.planned_file import Content, PlannedFile
from kcli.log.disk.port import Disk, base_name, parent_path

_DERIVED = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT)
# Of one segment's new files these come last, in this order: only with the .index the segment counts as whole.
_LAST_WRITTEN = (FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.INDEX)
# Not .cleaned, which a broker would remove by itself: it makes it drop every *.swap that is waiting, too.
_UNFINISHED = FileState.PARTIAL.value
_PENDING = FileState.TEMPORARY.value


class Keeper(Protocol):
    """Takes what a plan removes. Its methods raise OSError as the disk does."""

    def keep_file(self, path: str) -> None:
        """Take a whole file away: afterwards it is no longer there."""
        ...

    def keep_copy(self, path: str) -> None:
        """Take a copy of a file that is about to be replaced."""
        ...

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Take copies of byte ranges [start, end) of a file that stays."""
        ...


class Discard:
    """A keeper that keeps nothing."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def keep_file(self, path: str) -> None:
        """Remove the file."""
        self._disk.remove(path)

    def keep_copy(self, path: str) -> None:
        """Nothing."""

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing."""


def apply_changes(disk: Disk, changes: Iterable[Change], keeper: Keeper) -> None:
    """Carry out the changes of a plan. Raises OSError as the disk does; what is done by then is described above."""
    _Application(disk, list(changes), keeper).run()


def kept_bytes(changes: Iterable[Change]) -> tuple[int, int]:
    """Return how many bytes a keeper is given of these changes: (as copies, as whole files that are moved)."""
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
        self.beside = {change.path + suffix for change in self.rewritten for suffix in (_UNFINISHED, _PENDING)}

    def _of(self, *kinds: str) -> list[Change]:
        return [change for change in self.changes if change.kind in kinds]

    def _flush_directories(self) -> None:
        for directory in self.directories:
            self.disk.flush_directory(directory)

    def run(self) -> None:
        self._keep_parts()
        self._write_beside()
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
                goes = not _is_log(change) and change.path not in self.beside
            else:
                goes = change.kind == WRITE and change.replaces and _is_derived(change)
            if goes:
                self.keeper.keep_file(change.path)
        self._flush_directories()

    def _write_beside(self) -> None:
        # A repair that died may have left files of these names, and records may be in nothing but such a *.tmp: it is
        # a source until all contents are written, and the new one takes its place in one step.
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
                    raise OSError(f"{path}: a file that it is made of shrank meanwhile")
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
            if change.path not in self.beside:  # else the rewritten file has taken its place
                self.disk.rename(change.path, change.target)
        for change in self.rewritten:
            self.disk.rename(change.path + _PENDING, change.path)
            self._restore_time(change)
        self._flush_directories()
        # Only now: of a segment that is split, what is cut off is on the device under its new name.
        for change in self._of(TRUNCATE):
            self.disk.truncate(change.path, change.size_bytes)
            self.disk.flush(change.path)
            self._restore_time(change)
        self._flush_directories()

    def _restore_time(self, change: Change) -> None:
        """Retention and the cleaner look at when a segment was last written to."""
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
    """Whether bytes of real files are in it."""
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
