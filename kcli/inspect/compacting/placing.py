"""Making true what was staged: in the partition's own directory, or in another one.

In place, each step is on the device before the next one begins:

    step                                                      a crash then leaves
    --------------------------------------------------------  ----------------------------------------------------------
    files other than new segments (snapshots, leader epochs,  the log as it was
      indexes of segments that stay) take their names
    new segments become `*.swap`, the last first              the log as it was: starts remove `*.cleaned`, and each
                                                                `*.swap` from the lowest `*.cleaned` on
    files of old segments that get no new bytes go            what it should become: starts remove all that lies in the
                                                                range of the `*.swap` and then give those their names
    the `*.swap` lose their suffix, the first first           the same
    snapshots of segments that are gone go                    the same

So all rounds over a partition come true at once. It rests on the rules of leftovers, which are Kafka's: the new
segments must cover all that lies between the first and the last of them.

Into another directory: new files get their names, all others are copied with their times, then all is flushed.
"""

from __future__ import annotations

from kcli.format import limits
from kcli.format.file_names import FileState, parse_file_name
from kcli.inspect.compacting.staged_disk import Outcome
from kcli.inspect.compacting.staged_files import SEGMENT_SUFFIXES
from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.port import LogDisk, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.leftovers import finish_leftovers

_LOG = SEGMENT_SUFFIXES[0]


def finish_before(disk: LogDisk, directory: str, indexes: IndexSettings) -> None:
    """Do what every start of a broker does first: what an earlier crash left goes, or comes true. Raises as that does."""
    names = disk.list_directory(directory)
    if any(name.endswith((FileState.CLEANED.value, FileState.SWAP.value, FileState.DELETED.value)) for name in names):
        finish_leftovers(LiveDisk(disk), directory, indexes)
        disk.flush_directory(directory)


def put_in_place(disk: LogDisk, directory: str, files: Outcome) -> None:
    """Let the outcome come true in the partition's own directory. Raises OSError."""
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
    """The `.log` comes first."""
    return next(rank for rank, suffix in enumerate(SEGMENT_SUFFIXES) if name.endswith(suffix))


def _check_range(disk: LogDisk, directory: str, bases: set[int], old: list[str]) -> None:
    """A crash behind this would remove what lies between the new segments: nothing may."""
    for name in disk.list_directory(directory):
        if name.endswith(_LOG) and bases and min(bases) <= _base(name) <= max(bases):
            assert _base(name) in bases or name in old, f"{directory}: {name} lies between the new segments"


def copy_into(disk: LogDisk, source: str, target: str, files: Outcome | None) -> None:
    """Make `target` the directory of a partition as it should become, its new files in it already. Raises OSError."""
    disk.make_directory(target)
    files = files or Outcome({}, {}, (), {})
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
    """Copy a file and its time; it is on the device then. Raises OSError."""
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
