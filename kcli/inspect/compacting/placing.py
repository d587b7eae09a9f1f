"""Puts staged changes in place, in the directory of the partition or in another one.

In place, each step is flushed to the device before the next one begins:

    step                                                      after a crash in this step
    --------------------------------------------------------  ----------------------------------------------------------
    files other than new segments (snapshots, leader epochs,  the log is as before
      indexes of segments that stay) get their names
    new segments are renamed to `*.swap`, the last one first  the log is as before: a start removes `*.cleaned`, and each
                                                                `*.swap` from the lowest `*.cleaned` on
    files of old segments without a replacement are removed   the log is completely compacted: a start removes all files in
                                                                the range of the `*.swap`, and then renames those
    `*.swap` lose their suffix, the first one first           the same
    snapshots of removed segments are removed                 the same

So all rounds over a partition take effect at once. This relies on the rules of leftovers, which are Kafka's: the
new segments must cover all offsets between the first and the last of them.

Into another directory: new files get their names, all others are copied with their times, then all are flushed.
"""

from __future__ import annotations

from kcli.format import limits
from kcli.format.file_names import FileState, parse_file_name
from kcli.inspect.compacting.staged_disk import StagedChanges
from kcli.inspect.compacting.staged_files import SEGMENT_SUFFIXES
from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.port import LogDisk, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.leftovers import finish_leftovers

_LOG = SEGMENT_SUFFIXES[0]


def finish_before(disk: LogDisk, directory: str, indexes: IndexSettings) -> None:
    """Finish or undo what an earlier crash interrupted, as a broker does at start. Raises FormatError, OSError."""
    names = disk.list_directory(directory)
    if any(name.endswith((FileState.CLEANED.value, FileState.SWAP.value, FileState.DELETED.value)) for name in names):
        finish_leftovers(LiveDisk(disk), directory, indexes)
        disk.flush_directory(directory)


def put_in_place(disk: LogDisk, directory: str, files: StagedChanges) -> None:
    """Carry out staged changes in the directory of the partition. Raises OSError."""
    assert not files.moved, "leftovers are finished before anything is staged"
    bases = {_base(name) for name in files.made if name.endswith(_LOG)}
    for name, data in files.written.items():
        disk.write_file(join_path(directory, name), data)
    swapped = [name for name in files.made if _base(name) in bases]
    for name in files.made:
        if name not in swapped:
            disk.rename(files.made[name], join_path(directory, name))
    disk.flush_directory(directory)
    swapped.sort(key=lambda name: (-_base(name), _rank(name)))
    for name in swapped:
        disk.rename(files.made[name], join_path(directory, name) + FileState.SWAP.value)
    disk.flush_directory(directory)
    old = [name for name in files.gone if name.endswith(SEGMENT_SUFFIXES)]
    _check_range(disk, directory, bases, old)
    for name in old:
        disk.remove(join_path(directory, name))
    disk.flush_directory(directory)
    for name in sorted(swapped, key=lambda name: (_base(name), _rank(name))):
        path = join_path(directory, name)
        disk.rename(path + FileState.SWAP.value, path)
    disk.flush_directory(directory)
    for name in files.gone:
        if name not in old:
            disk.remove(join_path(directory, name))
    disk.flush_directory(directory)


def _base(name: str) -> int:
    base = parse_file_name(name).base_offset
    return -1 if base is None else base


def _rank(name: str) -> int:
    """Return the order of a segment's files: the `.log` comes first."""
    return next(rank for rank, suffix in enumerate(SEGMENT_SUFFIXES) if name.endswith(suffix))


def _check_range(disk: LogDisk, directory: str, bases: set[int], old: list[str]) -> None:
    """Check that there are only old segments between the new ones: after a crash a start would remove all of them."""
    for name in disk.list_directory(directory):
        if name.endswith(_LOG) and bases and min(bases) <= _base(name) <= max(bases):
            assert _base(name) in bases or name in old, f"{directory}: {name} is between the new segments"


def copy_into(disk: LogDisk, source: str, target: str, files: StagedChanges | None) -> None:
    """Complete `target`, which has the new files of a partition already, with copies of all other files. Raises OSError."""
    disk.make_directory(target)
    files = files or StagedChanges({}, {}, (), {})
    for name, path in files.made.items():
        disk.rename(path, join_path(target, name))
    for name, data in files.written.items():
        disk.append(join_path(target, name), data)
        disk.flush(join_path(target, name))
    for name, path in files.moved.items():
        copy_file(disk, path, join_path(target, name))
    done = {*files.made, *files.written, *files.moved, *files.gone}
    for name in disk.list_directory(source):
        path = join_path(source, name)
        if name not in done and disk.is_regular(path):
            copy_file(disk, path, join_path(target, name))
    disk.flush_directory(target)


def copy_file(disk: LogDisk, source: str, target: str) -> None:
    """Copy a file and its modification time, and flush the copy. Raises OSError."""
    file = disk.open_file(source)
    try:
        position = 0
        disk.append(target, b"")
        while data := file.read_at(position, limits.READ_CHUNK_BYTES):
            disk.append(target, data)
            position += len(data)
    finally:
        file.close()
    disk.set_mtime_ms(target, disk.mtime_ms(source))
    disk.flush(target)
