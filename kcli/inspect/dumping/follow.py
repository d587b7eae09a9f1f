"""dump-log --follow shows the records that the partitions have, and then new ones of all of them. Nothing in a
Follower waits: `poll` yields the new events, and the caller decides when to poll again.

    after the last position that was read        action
    -------------------------------------------  -----------------------------------------------------------------------
    nothing, or zeros (a preallocated file)      wait
    bytes that are not a whole batch, or a       wait: a broker may be writing it; it is reported as damage once a sound
      batch with a wrong CRC, nothing sound after  batch follows, or the segment is closed
    a later segment in the directory             read the rest of this one, then continue there
    the file is shorter, or the last batches     the log was truncated, as by a follower: a note, then continue after the
      that were read have changed                  last batch that is still the same
    the file is deleted                          read the rest of it (it is still open), then the next segment
    the directory is deleted                     end

Under --isolation read_committed, and for --aborted, the walk stops at the last stable offset until transactions end.

Paths are directories of partitions, log directories, or segments; after a segment the next one is followed. Partitions that are
created later are not seen. When the file changes, a line with its name is printed, as by tail -f.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.record_batch import ENTRY_HEAD_BYTES, HEADER_BYTES
from kcli.inspect.dumping.dump import LOG_KINDS, Dump, DumpOptions
from kcli.inspect.dumping.renderer import DumpResult, Renderer
from kcli.log.disk.port import parent_path
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, ResolvedPath, Segment, read_partition
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.selecting.lookup import segments_in_range, start_position
from kcli.selecting.selected_log import Event, Note, Selector
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk
    from kcli.log.files.log_directory import PartitionDirectory, Segment
    from kcli.log.reading.transaction_filter import AbortedTransactions

# How many of the last batches are remembered, to find the end of what a truncation left.
REMEMBERED_BATCHES = 1024


class Followed(NamedTuple):
    """An event, and the path of its segment."""

    path: str
    event: Event


class Follower:
    """Follows one partition. The next read is at byte `position` of `segment`; `ended` is True once the log is deleted."""

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        position: int,
        selector: Selector,
        transactions: Callable[[PartitionDirectory], AbortedTransactions] | None = None,
    ) -> None:
        self.segment = segment
        self.position = position
        self.ended = False
        self._disk = disk
        self._selector = selector
        self._find_transactions = transactions
        self._reader: SegmentReader | None = None
        self._seen_size = -1
        self._suspect: int | None = None  # the first byte of the last batch, if its CRC is wrong
        self._recent: deque[tuple[int, int, bytes]] = deque(maxlen=REMEMBERED_BATCHES)  # (first byte, end, header)

    def poll(self) -> Iterator[Followed]:
        """Yield the events since the last poll. Raises OSError as the disk does, except for deleted files."""
        try:
            yield from self._poll()
        except FileNotFoundError:
            return  # a segment was deleted during the poll; the next poll sees that

    def _poll(self) -> Iterator[Followed]:
        while not self.ended and not self._selector.budget.is_spent():
            following = self._following()
            yield from self._open()
            yield from self._read(is_closed=following is not None)
            if following is None or self._selector.budget.is_spent() or self._is_held():
                return
            self._move_to(following)

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _following(self) -> Segment | None:
        """Return the next segment, if there is one; set `ended` if the directory is deleted."""
        directory = parent_path(self.segment.log)
        if not self._disk.is_directory(directory):
            self.ended = True
            return None
        partition = read_partition(self._disk, directory)
        if self._find_transactions is not None:
            self._selector.filter.transactions = self._find_transactions(partition)
        if self.segment.base_offset < 0:
            return None
        return next((segment for segment in partition.segments if segment.base_offset > self.segment.base_offset), None)

    def _move_to(self, segment: Segment) -> None:
        self.close()
        self.segment, self.position, self._seen_size, self._suspect = segment, 0, -1, None
        self._recent.clear()

    def _open(self) -> Iterator[Followed]:
        """Open the file again if it has changed, and find the position after a truncation."""
        try:
            size = self._disk.size(self.segment.log)
            if self._reader is not None and size == self._seen_size and self._is_blank(self._reader, self.position):
                return
            reader = self._reopen()
        except FileNotFoundError:
            return  # deleted; the open file can still be read
        self._seen_size = size
        if self._is_as_read(reader, size):
            return
        while self._recent and not self._is_as_read(reader, size):
            self._recent.pop()
        before, self.position = self.position, self._recent[-1][1] if self._recent else 0
        self._suspect = None
        yield Followed(self.segment.log, Note(f"the log was truncated: continuing at byte {self.position} instead of {before}"))

    def _reopen(self) -> SegmentReader:
        """Return a reader with an empty buffer. If it raises FileNotFoundError, the reader before stays open."""
        reader = SegmentReader(self._disk, self.segment.log)
        self.close()
        self._reader = reader
        return reader

    def _is_as_read(self, reader: SegmentReader, size: int) -> bool:
        """Return True if the last remembered batch is unchanged, and the file does not end before `position`."""
        if not self._recent:
            return size >= self.position or self.position == 0
        first, end, header = self._recent[-1]
        return end <= size and reader.file.read_at(first, HEADER_BYTES) == header

    def _read(self, *, is_closed: bool) -> Iterator[Followed]:
        """Yield the events after `position`; of a closed segment all, including damage at its end."""
        path = self.segment.log
        while self._reader is not None and not self._selector.budget.is_spent():
            if not is_closed and self._is_blank(self._reader, self.position):
                return
            found = self._next()
            if found is None or self._is_withheld(found) or (not is_closed and self._may_be_unfinished(found)):
                return
            self.position, self._suspect = found.end_position, None
            if isinstance(found, Damage):
                yield Followed(path, found)
                continue
            self._remember(found)
            if not found.is_valid:
                self._suspect = found.position
            for event in self._selector.events(found):
                yield Followed(path, event)

    def _next(self) -> LogBatch | Damage | None:
        """Return the batch or damage at `position`. Damage is read twice: a part of it may be from before a write."""
        if self._reader is None:
            return None
        found = self._look(self._reader)
        if isinstance(found, Damage) or (found is not None and not found.is_valid):
            try:
                found = self._look(self._reopen())
            except FileNotFoundError:
                pass
        return found

    def _look(self, reader: SegmentReader) -> LogBatch | Damage | None:
        """Return the next item; after a batch with a wrong CRC, read that batch again, because its length may be wrong."""
        if self._suspect is None:
            return next(reader.batches(self.position), None)
        return _following(reader, self._suspect)

    def _is_blank(self, reader: SegmentReader, position: int) -> bool:
        """Return True if only zeros, or nothing, is written at a byte."""
        return not any(reader.file.read_at(position, ENTRY_HEAD_BYTES))

    def _may_be_unfinished(self, found: LogBatch | Damage) -> bool:
        """Return True for a batch that a broker may be writing now: nothing sound follows it."""
        if self._reader is None:
            return False
        file_end = self._reader.end_position()
        if isinstance(found, Damage):
            return found.end_position >= file_end
        if found.is_valid:
            return False
        if self._is_blank(self._reader, found.end_position):
            return True
        with SegmentReader(self._disk, self.segment.log) as other:
            following = _following(other, found.position)
        return following is None or (isinstance(following, Damage) and following.end_position >= file_end)

    def _is_withheld(self, found: LogBatch | Damage) -> bool:
        """Return True for a batch at or after the last stable offset, if transactions are read."""
        transactions = self._selector.filter.transactions
        if transactions is None or not isinstance(found, LogBatch) or not found.is_valid:
            return False
        return found.header.base_offset >= transactions.last_stable_offset

    def _is_held(self) -> bool:
        """Return True if the next batch belongs to a transaction that has not ended."""
        if self._reader is None or self._selector.filter.transactions is None:
            return False
        found = self._reader.batch_at(self.position)
        return found is not None and self._is_withheld(found)

    def _remember(self, batch: LogBatch) -> None:
        if batch.data is not None:
            header = bytes(batch.data[:HEADER_BYTES])
        else:
            header = b"" if self._reader is None else self._reader.file.read_at(batch.position, HEADER_BYTES)
        self._recent.append((batch.position, batch.end_position, header))


def _following(reader: SegmentReader, position: int) -> LogBatch | Damage | None:
    """Return the batch or damage after the batch at byte `position`."""
    items = reader.batches(position)
    next(items, None)
    return next(items, None)


def follow(
    followers: Sequence[Follower], wait: Callable[[], bool], is_done: Callable[[], bool], pause: Callable[[], object]
) -> Iterator[Followed]:
    """Yield the events of several partitions, until `wait` returns False, all logs are deleted, or `is_done`.

    `pause` is called before `wait` if there is nothing new; both may take long.
    """
    while True:
        for follower in followers:
            yield from follower.poll()
        pause()
        if is_done() or all(follower.ended for follower in followers) or not wait():
            return


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
