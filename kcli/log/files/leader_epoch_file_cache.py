"""Which leader epoch wrote from which offset on, for one partition: how replicas find the offset where they part (KIP-101).

    operation                          effect on the entries (epoch, start offset), which rise in both
    ---------------------------------  ----------------------------------------------------------------------------------
    assign(epoch, start)               nothing where the last entry is of that epoch and starts no later; else every last
                                       entry with an epoch or a start not below goes, and the new one is added
    truncate_from_end(offset)          entries that start at or behind the offset go
    truncate_from_start(offset)        entries that start at or before it go, but the last of these stays and starts there

The file `leader-epoch-checkpoint` follows every change, but one: an epoch that has no record yet is written with its first, so
that neither a start nor a new topic writes a file for every partition; and that may be a little later (`defer`). A file whose
entries do not rise is read by assigning them one after the other, as Kafka does, and stays as it is until something changes.
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
    """The leader epochs of one partition; `on_change` is called with all entries where the file is to follow.

    `written_epoch` is the last epoch in the file, or on its way there, None where there is none: what is appended in another
    one is assigned first. `defer()` takes it on to have the file follow an append, or gives False: then it is written at once.
    While it `is_behind`, `encoded` is what it should hold; of several writes that are on their way the latest `version` counts.
    """

    def __init__(
        self,
        entries: Iterable[EpochStart] = (),
        on_change: Callable[[tuple[EpochStart, ...]], None] = lambda entries: None,
    ) -> None:
        self._entries: list[EpochStart] = []
        # What the file is to hold, where `_entries` were truncated without it.
        self._in_file: list[EpochStart] | None = None
        self._on_change = on_change
        self.defer: Callable[[], bool] = lambda: False
        self.is_behind = False
        self._when_followed: list[Callable[[], None]] = []
        self.version = 0
        for entry in entries:
            _assign(self._entries, entry)
        self.written_epoch = self.latest_epoch

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch, or None where there is none."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int, *, is_written: bool = True) -> None:
        """Say that the leader of `epoch` wrote from `start_offset` on; `is_written` once it has written something.

        Raises FormatError for a negative number.
        """
        entry = EpochStart(epoch, start_offset)
        is_changed = _assign(self._entries, entry)
        if self._in_file is not None:
            _assign(self._in_file, entry)
        if is_written and (is_changed or self.written_epoch != epoch):
            self._follow()

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or behind `end_offset`; nothing for a negative one."""
        if self._in_file is not None:
            _truncate_from_end(self._in_file, end_offset)
        if _truncate_from_end(self._entries, end_offset):
            self._write()

    def truncate_from_start(self, start_offset: int, *, is_written: bool = True) -> None:
        """Forget the epochs before `start_offset`; the one that it lies in starts there from now on.

        Without `is_written` the file keeps them for as long as this object lives: it must not begin behind a log start
        offset that a crash may bring back, since that is only written to its checkpoint from time to time.
        """
        before = self._entries[:]
        if _truncate_from_start(self._entries, start_offset):
            if not is_written and self._in_file is None:
                self._in_file = before
            if is_written:
                self._in_file = None
                self._write()

    def segments_gone(self, start_offset: int) -> None:
        """Have the file begin at `start_offset`, too: no segment before it is left, so that no crash can bring records back."""
        if self._in_file is not None and _truncate_from_start(self._in_file, start_offset):
            if self._in_file == self._entries:
                self._in_file = None
            self._follow()

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._in_file = None
        self._write()

    def move_to(self, disk: Disk, directory: str) -> None:
        """Write to the leader-epoch-checkpoint of another directory from now on."""
        self._on_change = _writer(disk, directory)
        self.catch_up()

    def catch_up(self) -> None:
        """Write the file now where it is behind. Raises OSError."""
        if self.is_behind:
            self._write()

    def begin_to_follow(self) -> int:
        """A new version for a new write: what is on its way to the file comes too late."""
        self.version += 1
        return self.version

    def encoded(self) -> bytes:
        """What the file is to hold."""
        return encode_leader_epochs(self._for_file())

    def followed(self) -> None:
        """The file holds what it was to hold, on the device."""
        self.is_behind = False
        waiting, self._when_followed = self._when_followed, []
        for act in waiting:
            act()

    def when_followed(self, act: Callable[[], None]) -> None:
        """Call `act` once the file holds all entries: at once where it does. Never where the disk fails before."""
        if self.is_behind:
            self._when_followed.append(act)
        else:
            act()

    def _for_file(self) -> tuple[EpochStart, ...]:
        return self.entries if self._in_file is None else tuple(self._in_file)

    def _follow(self) -> None:
        """Write the entries to the file: later if `defer` accepts that, else now."""
        if self.defer():
            self.is_behind = True
            self.version += 1
            self.written_epoch = self.latest_epoch
        else:
            self._write()

    def _write(self) -> None:
        self.begin_to_follow()
        self._on_change(self._for_file())
        self.written_epoch = self.latest_epoch
        self.followed()

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that wrote `offset`, or None before the first."""
        found = None
        for epoch, start_offset in self._entries:
            if start_offset > offset:
                break
            found = epoch
        return found

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Where `epoch` ended -> (the last epoch not above it, the offset behind its last record); (-1, -1) if unknown.

        Of an epoch before the first known one: itself, and the start of the first. What OffsetForLeaderEpoch answers.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self._entries[-1].epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._entries[-1].epoch:
            return epoch, log_end_offset
        later = next(entry for entry in self._entries if entry.epoch > epoch)
        floor = max((entry.epoch for entry in self._entries if entry.epoch <= epoch), default=epoch)
        return floor, later.start_offset


def load_leader_epochs(disk: Disk, directory: str) -> LeaderEpochFileCache:
    """Read a partition's leader-epoch-checkpoint -> a cache that writes it at each change; Kafka creates a missing one.

    Raises CorruptCheckpointError, FormatError for a negative number, and OSError.
    """
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    if not disk.exists(path):
        disk.write_file(path, b"")
    return leader_epochs_in(disk, directory, decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries)


def leader_epochs_in(disk: Disk, directory: str, entries: Iterable[EpochStart]) -> LeaderEpochFileCache:
    """A cache of `entries` that writes a partition's leader-epoch-checkpoint at each change."""
    return LeaderEpochFileCache(entries, _writer(disk, directory))


def _writer(disk: Disk, directory: str) -> Callable[[tuple[EpochStart, ...]], None]:
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    return lambda changed: disk.write_file(path, encode_leader_epochs(changed))


def _assign(entries: list[EpochStart], entry: EpochStart) -> bool:
    """Add an entry as the table above says -> False where nothing changed. Raises FormatError."""
    if entry.epoch < 0 or entry.start_offset < 0:
        raise FormatError(f"leader epoch {entry.epoch} from offset {entry.start_offset} on cannot be: one is negative")
    if entries and entry.epoch == entries[-1].epoch and entry.start_offset >= entries[-1].start_offset:
        return False
    while entries and (entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset):
        entries.pop()
    entries.append(entry)
    return True


def _truncate_from_start(entries: list[EpochStart], start_offset: int) -> bool:
    """Forget entries before `start_offset`, but for the one that it lies in -> whether anything changed."""
    gone = sum(entry.start_offset <= start_offset for entry in entries)
    if gone == 0 or (gone == 1 and entries[0].start_offset == start_offset):
        return False
    entries[:gone] = [EpochStart(entries[gone - 1].epoch, start_offset)]
    return True


def _truncate_from_end(entries: list[EpochStart], end_offset: int) -> bool:
    """Drop entries that start at or behind the offset -> False where there is none."""
    before = len(entries)
    while end_offset >= 0 and entries and entries[-1].start_offset >= end_offset:
        entries.pop()
    return len(entries) != before
