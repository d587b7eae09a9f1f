"""Which leader epoch wrote from which offset on, for one partition: how replicas find the offset where they part (KIP-101).

    operation                          effect on the entries (epoch, start offset), which rise in both
    ---------------------------------  ----------------------------------------------------------------------------------
    assign(epoch, start)               nothing where the last entry is of that epoch and starts no later; else every last
                                       entry with an epoch or a start not below goes, and the new one is added
    truncate_from_end(offset)          entries that start at or behind the offset go
    truncate_from_start(offset)        entries that start at or before it go, but the last of these stays and starts there

The file `leader-epoch-checkpoint` follows every change. A file whose entries do not rise is read by assigning them one after
the other, as Kafka does, and stays as it is until something changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcli.format import limits
from kcli.format.checkpoint import EpochStart, decode_leader_epochs, encode_leader_epochs
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError
from kcli.log.disk import Disk
from kcli.log.log_directory import join_path

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochCache:
    """The leader epochs of one partition; `on_change` is called with all entries after each change."""

    def __init__(
        self,
        entries: Iterable[EpochStart] = (),
        on_change: Callable[[tuple[EpochStart, ...]], None] = lambda entries: None,
    ) -> None:
        self._entries: list[EpochStart] = []
        self._on_change = on_change
        for entry in entries:
            self._assign(entry)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch, or None where there is none."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Say that the leader of `epoch` wrote from `start_offset` on. Raises FormatError for a negative number."""
        if self._assign(EpochStart(epoch, start_offset)):
            self._on_change(self.entries)

    def _assign(self, entry: EpochStart) -> bool:
        if entry.epoch < 0 or entry.start_offset < 0:
            raise FormatError(f"leader epoch {entry.epoch} from offset {entry.start_offset} on cannot be: one is negative")
        if self._entries and entry.epoch == self._entries[-1].epoch and entry.start_offset >= self._entries[-1].start_offset:
            return False
        while self._entries and (
            self._entries[-1].epoch >= entry.epoch or self._entries[-1].start_offset >= entry.start_offset
        ):
            self._entries.pop()
        self._entries.append(entry)
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or behind `end_offset`; nothing for a negative one."""
        before = len(self._entries)
        while end_offset >= 0 and self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        if len(self._entries) != before:
            self._on_change(self.entries)

    def truncate_from_start(self, start_offset: int, *, is_written: bool = True) -> None:
        """Forget the epochs before `start_offset`; the one that it lies in starts there from now on.

        Without `is_written` the file keeps them until another change: it must not begin behind a log start offset that a
        crash may bring back, since that is only written to its checkpoint from time to time.
        """
        gone = sum(entry.start_offset <= start_offset for entry in self._entries)
        if gone > 1 or (gone and self._entries[0].start_offset != start_offset):
            self._entries[:gone] = [EpochStart(self._entries[gone - 1].epoch, start_offset)]
            if is_written:
                self._on_change(self.entries)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._on_change(())

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


def load_leader_epochs(disk: Disk, directory: str) -> LeaderEpochCache:
    """Read a partition's leader-epoch-checkpoint -> a cache that writes it at each change; Kafka creates a missing one.

    Raises CorruptCheckpointError, FormatError for a negative number, and OSError.
    """
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    if not disk.exists(path):
        disk.write_file(path, b"")
    return leader_epochs_in(disk, directory, decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries)


def leader_epochs_in(disk: Disk, directory: str, entries: Iterable[EpochStart]) -> LeaderEpochCache:
    """A cache of `entries` that writes a partition's leader-epoch-checkpoint at each change."""
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    return LeaderEpochCache(entries, lambda changed: disk.write_file(path, encode_leader_epochs(changed)))
