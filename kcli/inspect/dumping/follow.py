"""Going on as a live broker appends, rolls and truncates (dump-log --follow). Nothing here waits or knows the time: `poll`
gives what there is, and the caller decides when to ask again.

    seen at the end of what was read             done
    -------------------------------------------  -----------------------------------------------------------------------
    nothing, or zeros (a preallocated file)      wait
    bytes that are no whole batch, or a batch    wait: a broker may be in the middle of writing it; damage is told once
      with a wrong CRC, nothing sound behind       something sound follows, or the segment is closed
    a later segment in the directory             read the rest of this one, then go on there
    the file is shorter, or the last batches     the log was truncated (a follower does that): a note, then on from the
      that were read are others now                last batch that is still the same
    the file is gone                             read what is left of it (it is still open), then the next segment
    the directory is gone                        the end

Under --isolation read_committed, and for --aborted, the walk stops at the last stable offset until transactions end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.record_batch import ENTRY_HEAD_BYTES, HEADER_BYTES
from kcli.inspect.dumping.selected_log import Event, Note, Selector
from kcli.log.disk.port import parent_path
from kcli.log.files.log_directory import read_partition
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk
    from kcli.log.files.log_directory import PartitionDirectory, Segment
    from kcli.log.reading.transaction_filter import AbortedTransactions

# How many of the last batches are remembered, to find out how far a truncation went.
REMEMBERED_BATCHES = 1024


class Followed(NamedTuple):
    """An event, and the path of the segment that it is from."""

    path: str
    event: Event


class Follower:
    """Follows one partition. `segment` and `position` (a byte) are where it is; `ended` is True once the log is gone."""

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
        self._suspect: int | None = None  # the first byte of the batch before, where its CRC is wrong
        self._recent: deque[tuple[int, int, bytes]] = deque(maxlen=REMEMBERED_BATCHES)  # (first byte, end, header)

    def poll(self) -> Iterator[Followed]:
        """Everything that has come since the last poll. Raises OSError as the disk does, but not for files that are gone."""
        try:
            yield from self._poll()
        except FileNotFoundError:
            return  # a segment went while it was looked at; the next poll knows

    def _poll(self) -> Iterator[Followed]:
        while not self.ended and not self._selector.budget.is_spent():
            following = self._following()
            yield from self._open()
            yield from self._read(is_closed=following is not None)
            if following is None or self._selector.budget.is_spent() or self._is_held():
                return
            self._move_to(following)

    def close(self) -> None:
        """Give the file back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _following(self) -> Segment | None:
        """The segment behind this one, if there is one; notices that the directory is gone."""
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
        """Have the file open as it is now, at a byte where a batch begins."""
        try:
            size = self._disk.size(self.segment.log)
            if self._reader is not None and size == self._seen_size and self._is_blank(self._reader, self.position):
                return
            reader = self._reopen()
        except FileNotFoundError:
            return  # gone; what is still open can be read
        self._seen_size = size
        if self._is_as_read(reader, size):
            return
        while self._recent and not self._is_as_read(reader, size):
            self._recent.pop()
        before, self.position = self.position, self._recent[-1][1] if self._recent else 0
        self._suspect = None
        yield Followed(self.segment.log, Note(f"the log was truncated: going on from byte {self.position} instead of {before}"))

    def _reopen(self) -> SegmentReader:
        """A reader that has not buffered anything yet. Raises FileNotFoundError, and keeps the one there is."""
        reader = SegmentReader(self._disk, self.segment.log)
        self.close()
        self._reader = reader
        return reader

    def _is_as_read(self, reader: SegmentReader, size: int) -> bool:
        """True where the last batch that is remembered is still there, and the file reaches as far as was read."""
        if not self._recent:
            return size >= self.position or self.position == 0
        first, end, header = self._recent[-1]
        return end <= size and reader.file.read_at(first, HEADER_BYTES) == header

    def _read(self, *, is_closed: bool) -> Iterator[Followed]:
        """The events of what lies behind `position`; of a closed segment all of it, damaged or not."""
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
        """What lies at `position`. Damage is looked at twice: a page may have been read before, its neighbour after a write."""
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
        """The next item; behind a batch with a wrong CRC the reader is shown that batch again, whose length may lie."""
        if self._suspect is None:
            return next(reader.batches(self.position), None)
        return _behind(reader, self._suspect)

    def _is_blank(self, reader: SegmentReader, position: int) -> bool:
        """True where nothing, or nothing but zeros, has been written at a byte."""
        return not any(reader.file.read_at(position, ENTRY_HEAD_BYTES))

    def _may_be_unfinished(self, found: LogBatch | Damage) -> bool:
        """True for what a broker may be writing just now: nothing sound lies behind it."""
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
            behind = _behind(other, found.position)
        return behind is None or (isinstance(behind, Damage) and behind.end_position >= file_end)

    def _is_withheld(self, found: LogBatch | Damage) -> bool:
        """True at the last stable offset, where that matters."""
        transactions = self._selector.filter.transactions
        if transactions is None or not isinstance(found, LogBatch) or not found.is_valid:
            return False
        return found.header.base_offset >= transactions.last_stable_offset

    def _is_held(self) -> bool:
        """True where the walk stands before a batch whose transaction has not ended."""
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


def _behind(reader: SegmentReader, position: int) -> LogBatch | Damage | None:
    """What the reader comes to behind the batch at byte `position`."""
    items = reader.batches(position)
    next(items, None)
    return next(items, None)


def follow(
    followers: Sequence[Follower], wait: Callable[[], bool], is_done: Callable[[], bool], pause: Callable[[], object]
) -> Iterator[Followed]:
    """The events of several partitions, until `wait` says False, all are gone, or `is_done`.

    `pause` is called when there is nothing new for now, before `wait`; both may take their time.
    """
    while True:
        for follower in followers:
            yield from follower.poll()
        pause()
        if is_done() or all(follower.ended for follower in followers) or not wait():
            return
