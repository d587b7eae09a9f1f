"""dump-log --follow: shows the records that the partitions have, and then new ones of all of them.

Paths are directories of partitions, log directories, or segments; after a segment the next one is followed. Partitions that are
created later are not seen. When the file changes, a line with its name is printed, as by tail -f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kcli.inspect.dumping.dump import LOG_KINDS, Dump, DumpOptions
from kcli.inspect.dumping.follow import Follower, follow
from kcli.inspect.dumping.renderer import DumpResult, Renderer
from kcli.log.disk.port import parent_path
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, ResolvedPath, Segment, read_partition
from kcli.selecting.lookup import segments_in_range, start_position
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk


def dump_followed(
    paths: Iterable[str],
    selection: Selection,
    renderer: Renderer,
    options: DumpOptions,
    disk: Disk,
    wait: Callable[[], bool],
    *,
    report: Callable[[str], object],
    absolute: Callable[[str], str] = str,
) -> DumpResult:
    """Show the records of the paths, then new ones, until `wait` returns False, the limit is reached or all logs are deleted.

    `wait` is called if there is nothing new; it may take long. The other arguments are those of dump.dump.
    """
    return _FollowedDump(Dump(selection, renderer, options, disk, report, absolute)).run(paths, wait)


class _FollowedDump:
    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._shown = ""

    def run(self, paths: Iterable[str], wait: Callable[[], bool]) -> DumpResult:
        dump = self._dump
        followers = [follower for target in dump.resolve(paths) for follower in self._followers(target)]
        try:
            for path, event in follow(followers, wait, dump.is_done, dump.renderer.flush):
                self._show_file(path)
                dump.show(event, path)
        finally:
            for follower in followers:
                follower.close()
        if self._shown:
            dump.renderer.end_file()
        return dump.finish()

    def _show_file(self, path: str) -> None:
        if path == self._shown:
            return
        if self._shown:
            self._dump.renderer.end_file()
        self._dump.begin_file(path)
        self._shown = path

    def _followers(self, target: ResolvedPath) -> list[Follower]:
        if target.log_directory is not None:
            for path, message in target.log_directory.unreadable:
                self._dump.problem(path, message)
            partitions = target.log_directory.partitions
            return [follower for partition in partitions for follower in self._of_partition(partition, partition.segments)]
        if target.partition is not None:
            return self._of_partition(target.partition, target.partition.segments)
        if target.file is not None and target.file.kind in LOG_KINDS:
            return self._of_file(target.file)
        self._dump.problem(target.path, "not a log: --follow takes logs, partitions and log directories")
        return []

    def _of_file(self, file: FoundFile) -> list[Follower]:
        try:
            partition = read_partition(self._dump.disk, parent_path(file.path))
        except OSError as error:
            self._dump.problem(file.path, error.strerror or str(error))
            return []
        known = [segment for segment in partition.segments if segment.base_offset == file.base_offset]
        return self._of_partition(partition, known or [Segment(file.base_offset, file.path)])

    def _of_partition(self, partition: PartitionDirectory, segments: list[Segment]) -> list[Follower]:
        """Return a follower that begins at the first of the segments that the selection needs, or none without a segment."""
        dump = self._dump
        # Only the segments before the offsets asked for are left out: the others may still be written.
        needed = segments_in_range(segments, Range(dump.selection.offsets.first))
        if not needed:
            dump.problem(partition.path, "it has no segment to follow")
            return []
        try:
            selector, slot, position = dump.start(partition, needed)
            if position is None:
                position = start_position(dump.disk, needed[slot], dump.selection)
        except OSError as error:
            dump.problem(error.filename or needed[0].log, error.strerror or str(error))
            return []
        transactions = dump.transactions if dump.selection.needs_transactions else None
        return [Follower(dump.disk, needed[slot], position, selector, transactions)]
