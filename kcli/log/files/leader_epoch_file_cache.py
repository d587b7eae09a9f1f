"""The leader epochs of one partition and their start offsets, by which replicas find where they diverge (KIP-101).

    operation                          effect on the entries (epoch, start offset), which rise in both
    ---------------------------------  ----------------------------------------------------------------------------------
    assign(epoch, start)               none if the last entry has that epoch and no later start; else the last entries with an
                                       epoch or a start that is not lower are removed, and the new one is added
    truncate_from_end(offset)          entries that start at or after the offset are removed
    truncate_from_start(offset)        entries that start at or before it are removed, except the last of these, which then
                                       starts there

The file `leader-epoch-checkpoint` is written at every change, with one exception: an epoch without records is written at its
first record, so that a start or a new topic does not write a file for every partition; and that write may be deferred
(`defer`). A file whose entries do not rise is read by assigning them one after the other, as Kafka does, and is not rewritten
until the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcli.format import limits
from kcli.format.checkpoint import EpochStart, decode_leader_epochs, encode_leader_epochs
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError
from kcli.log.disk.port import Disk, join_path

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochFileCache:
    """The leader epochs of one partition; `on_change` writes the file and is called with all entries.

    `written_epoch` is the last epoch in the file or in a write in progress, or None: appending in another epoch assigns that
    first. `defer()` schedules the write after an append, or returns False: then the file is written at once. While it
    `is_unwritten`, `encoded` returns the contents to write; of several writes in progress only the latest `version` counts.
    """

    def __init__(
        self,
        entries: Iterable[EpochStart] = (),
        on_change: Callable[[tuple[EpochStart, ...]], None] = lambda entries: None,
    ) -> None:
        self._entries: list[EpochStart] = []
        # The entries of the file, if they differ from `_entries`, which were truncated without it.
        self._in_file: list[EpochStart] | None = None
        self._on_change = on_change
        self.defer: Callable[[], bool] = lambda: False
        self.is_unwritten = False
        self._when_written: list[Callable[[], None]] = []
        self.version = 0
        for entry in entries:
            _assign(self._entries, entry)
        self.written_epoch = self.latest_epoch

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All entries, ascending."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch, or None."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int, *, is_written: bool = True) -> None:
        """Add the epoch of a leader that writes from `start_offset` on; `is_written` is True if it has written a record.

        Raises FormatError for a negative number.
        """
        entry = EpochStart(epoch, start_offset)
        is_changed = _assign(self._entries, entry)
        if self._in_file is not None:
            _assign(self._in_file, entry)
        if is_written and (is_changed or self.written_epoch != epoch):
            self._write_or_defer()

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after `end_offset`; none for a negative offset."""
        if self._in_file is not None:
            _truncate_from_end(self._in_file, end_offset)
        if _truncate_from_end(self._entries, end_offset):
            self._write()

    def truncate_from_start(self, start_offset: int, *, is_written: bool = True) -> None:
        """Remove the epochs before `start_offset`; the epoch of that offset then starts there.

        Without `is_written` the file keeps them until `segments_gone`: it must not begin above the log start offset after a
        crash, and that is written to its checkpoint only periodically.
        """
        before = self._entries[:]
        if _truncate_from_start(self._entries, start_offset):
            if not is_written and self._in_file is None:
                self._in_file = before
            if is_written:
                self._in_file = None
                self._write()

    def segments_gone(self, start_offset: int) -> None:
        """Truncate the file, too: no crash can restore records before `start_offset`, whose segments are deleted."""
        if self._in_file is not None and _truncate_from_start(self._in_file, start_offset):
            if self._in_file == self._entries:
                self._in_file = None
            self._write_or_defer()

    def clear(self) -> None:
        """Remove all epochs."""
        self._entries.clear()
        self._in_file = None
        self._write()

    def move_to(self, disk: Disk, directory: str) -> None:
        """Write to the leader-epoch-checkpoint of another directory from now on. Raises OSError."""
        self._on_change = _writer(disk, directory)
        self.catch_up()

    def catch_up(self) -> None:
        """Write the file now if it is behind. Raises OSError."""
        if self.is_unwritten:
            self._write()

    def begin_write(self) -> int:
        """Return the version of a new write, which supersedes writes in progress."""
        self.version += 1
        return self.version

    def encoded(self) -> bytes:
        """Return the contents that the file should have."""
        return encode_leader_epochs(self._for_file())

    def written(self) -> None:
        """Note that the file is up to date on the device."""
        self.is_unwritten = False
        waiting, self._when_written = self._when_written, []
        for act in waiting:
            act()

    def when_written(self, act: Callable[[], None]) -> None:
        """Call `act` when the file is up to date, at once if it is; never if the disk fails before."""
        if self.is_unwritten:
            self._when_written.append(act)
        else:
            act()

    def _for_file(self) -> tuple[EpochStart, ...]:
        return self.entries if self._in_file is None else tuple(self._in_file)

    def _write_or_defer(self) -> None:
        """Write the file: later if `defer` accepts that, else now."""
        if self.defer():
            self.is_unwritten = True
            self.version += 1
            self.written_epoch = self.latest_epoch
        else:
            self._write()

    def _write(self) -> None:
        self.begin_write()
        self._on_change(self._for_file())
        self.written_epoch = self.latest_epoch
        self.written()

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of `offset`, None before the first epoch."""
        found = None
        for epoch, start_offset in self._entries:
            if start_offset > offset:
                break
            found = epoch
        return found

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the last epoch not above `epoch` and the end offset of that epoch; (-1, -1) if unknown.

        For an epoch before the first known one: `epoch` and the start of the first. It is the answer of OffsetForLeaderEpoch.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self._entries[-1].epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._entries[-1].epoch:
            return epoch, log_end_offset
        later = next(entry for entry in self._entries if entry.epoch > epoch)
        floor = max((entry.epoch for entry in self._entries if entry.epoch <= epoch), default=epoch)
        return floor, later.start_offset


def load_leader_epochs(disk: Disk, directory: str) -> LeaderEpochFileCache:
    """Read a partition's leader-epoch-checkpoint; the cache writes it at each change. A missing file is created, as by Kafka.

    Raises CorruptCheckpointError, FormatError for a negative number, and OSError.
    """
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    if not disk.exists(path):
        disk.write_file(path, b"")
    return leader_epochs_in(disk, directory, decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries)


def leader_epochs_in(disk: Disk, directory: str, entries: Iterable[EpochStart]) -> LeaderEpochFileCache:
    """Return a cache of `entries` that writes a partition's leader-epoch-checkpoint at each change."""
    return LeaderEpochFileCache(entries, _writer(disk, directory))


def _writer(disk: Disk, directory: str) -> Callable[[tuple[EpochStart, ...]], None]:
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    return lambda changed: disk.write_file(path, encode_leader_epochs(changed))


def _assign(entries: list[EpochStart], entry: EpochStart) -> bool:
    """Add an entry as in the module's table; return False if nothing changed. Raises FormatError."""
    if entry.epoch < 0 or entry.start_offset < 0:
        raise FormatError(f"leader epoch {entry.epoch} at start offset {entry.start_offset} is invalid: a number is negative")
    if entries and entry.epoch == entries[-1].epoch and entry.start_offset >= entries[-1].start_offset:
        return False
    while entries and (entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset):
        entries.pop()
    entries.append(entry)
    return True


def _truncate_from_start(entries: list[EpochStart], start_offset: int) -> bool:
    """Remove the entries before `start_offset`; return whether anything changed."""
    gone = sum(entry.start_offset <= start_offset for entry in entries)
    if gone == 0 or (gone == 1 and entries[0].start_offset == start_offset):
        return False
    entries[:gone] = [EpochStart(entries[gone - 1].epoch, start_offset)]
    return True


def _truncate_from_end(entries: list[EpochStart], end_offset: int) -> bool:
    """Remove the entries that start at or after the offset; return whether anything changed."""
    before = len(entries)
    while end_offset >= 0 and entries and entries[-1].start_offset >= end_offset:
        entries.pop()
    return len(entries) != before
