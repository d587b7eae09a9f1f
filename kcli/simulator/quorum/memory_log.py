"""A metadata log in memory (a ReplicatedLog), with what a loss of power leaves of it.

    part        what                                                               after a loss of power
    ----------  -----------------------------------------------------------------  ------------------------------------------
    durable     the log as of the last flush                                       is there
    unflushed   the log after each append and truncation since then                the log is as it was after any of them:
                                                                                   a tear is at the border of a batch
    snapshots   complete ones; they are flushed before they get their names        are there
    part        of a snapshot that is being fetched                                is removed

The death of the process alone loses only the part. All states are immutable tuples, so that a copy of a log shares them.

Each batch has the digest of all records up to its end (`chain`). Two logs with one digest at an offset have the same records
below it, even if one of them begins with a snapshot; a snapshot has the digest of the records that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from kcli.format.primitives import crc32c
from kcli.server.raft.messages import (
    AppendedControl,
    ControlEntry,
    EpochEnd,
    KRaftVersionEntry,
    Records,
    SnapshotId,
    VotersEntry,
)

# The size of each snapshot; FetchSnapshot may get it in several parts.
SNAPSHOT_BYTES = 100


class LogFault(Exception):
    """A use of the log that the port does not allow: a fault of the core."""


class Batch(NamedTuple):
    """A batch: `records` are control records, or the values that were appended; `chain` as in the head."""

    base_offset: int
    last_offset: int
    epoch: int
    is_control: bool
    records: tuple[object, ...]
    chain: int


class Snapshot(NamedTuple):
    """A complete snapshot, with the control records that it begins with."""

    id: SnapshotId
    control: tuple[ControlEntry, ...]
    chain: int


class SnapshotPart(NamedTuple):
    """Bytes of a snapshot; only their number matters."""

    snapshot: Snapshot
    position: int
    end_position: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.end_position - self.position


class LogState(NamedTuple):
    """A log: its batches from `start_offset` on; `start_epoch` and `start_chain` are of the record before."""

    start_offset: int = 0
    start_epoch: int = 0
    start_chain: int = 0
    batches: tuple[Batch, ...] = ()

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.batches[-1].last_offset + 1 if self.batches else self.start_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        return self.batches[-1].epoch if self.batches else self.start_epoch

    def chain_at(self, offset: int) -> int | None:
        """Return the digest of all records below `offset`; None if the log does not begin or end a batch there."""
        if offset == self.start_offset:
            return self.start_chain
        return next((batch.chain for batch in reversed(self.batches) if batch.last_offset + 1 == offset), None)

    def appended(self, epoch: int, is_control: bool, records: tuple[object, ...]) -> LogState:
        """Return the log with one more batch."""
        chain = self.batches[-1].chain if self.batches else self.start_chain
        chain = crc32c(repr((chain, epoch, records)).encode())
        end_offset = self.end_offset
        batch = Batch(end_offset, end_offset + len(records) - 1, epoch, is_control, records, chain)
        return self._replace(batches=(*self.batches, batch))

    def truncated(self, offset: int) -> LogState:
        """Return the log without the records from `offset` on."""
        return self._replace(batches=tuple(batch for batch in self.batches if batch.last_offset < offset))


class MemoryLog:
    """The log of one replica. `states` is the durable log and what became of it since; the last one is the log now."""

    __slots__ = ("flushing", "part", "snapshots", "states")

    def __init__(self, snapshots: tuple[Snapshot, ...] = ()) -> None:
        self.states: tuple[LogState, ...] = (LogState(),)
        self.snapshots = snapshots  # by ascending end offset
        self.part: tuple[SnapshotPart, ...] | None = None
        self.flushing: LogState | None = None

    def copy(self) -> MemoryLog:
        """Return a copy that shares the immutable states."""
        copied = MemoryLog(self.snapshots)
        copied.states, copied.part, copied.flushing = self.states, self.part, self.flushing
        return copied

    def digest(self) -> tuple[object, ...]:
        """Return the state as a tuple that can be compared and hashed."""
        return (self.states, self.snapshots, self.part, self.flushing)

    # ---------------------------------------------------------------------------------------------------------- durability

    @property
    def now(self) -> LogState:
        """The log as the process sees it."""
        return self.states[-1]

    @property
    def durable(self) -> LogState:
        """The log that survives every loss of power."""
        return self.states[0]

    @property
    def durable_end_offset(self) -> int:
        """The offset up to which the present log survives every loss of power."""
        return min(self._common_end(self._survivor(state)) for state in self.states)

    def _common_end(self, survivor: LogState) -> int:
        now = self.now
        for batch in reversed(now.batches):
            end_offset = batch.last_offset + 1
            if end_offset <= survivor.start_offset or survivor.chain_at(end_offset) == batch.chain:
                return end_offset
        return now.start_offset

    def _survivor(self, state: LogState) -> LogState:
        """Return what a start makes of a log: one that ends below the latest snapshot is emptied."""
        latest = self.snapshots[-1] if self.snapshots else None
        if latest is not None and latest.id.end_offset > state.end_offset:
            return LogState(latest.id.end_offset, latest.id.epoch, latest.chain)
        return state

    def begin_flush(self) -> None:
        """Begin to flush the log as it is."""
        self.flushing = self.now

    def end_flush(self) -> None:
        """Make the log durable as it was when the flush began."""
        if self.flushing is not None:
            last = max(number for number, state in enumerate(self.states) if state is self.flushing)
            self.states, self.flushing = self.states[last:], None

    def restart(self, survivor: int) -> None:
        """Keep the log as it was after `survivor` changes since the last flush (-1: all), as a start finds it."""
        state = self._survivor(self.states[survivor])
        self.states, self.part, self.flushing = (state,), None, None

    def _change(self, state: LogState) -> None:
        self.states = (*self.states, state)

    # ---------------------------------------------------------------------------------------------------------- the log

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self.now.start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.now.end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        return self.now.last_epoch

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch that is not above `epoch`, and its end."""
        now = self.now
        if epoch >= now.last_epoch:
            return EpochEnd(now.last_epoch, now.end_offset)
        found = EpochEnd(now.start_epoch, now.start_offset)
        for batch in now.batches:
            if batch.epoch > epoch:
                break
            found = EpochEnd(batch.epoch, batch.last_offset + 1)
        return found

    def control_entries(self) -> Sequence[AppendedControl]:
        """Return the control records of the latest snapshot and of the log behind it."""
        return [*self._control_below(self.end_offset, self.snapshots)]

    def _control_below(self, offset: int, snapshots: tuple[Snapshot, ...]) -> Iterator[AppendedControl]:
        latest_end = 0
        if snapshots:
            latest_end = snapshots[-1].id.end_offset
            yield from (AppendedControl(latest_end - 1, entry) for entry in snapshots[-1].control)
        for batch in self.now.batches:
            if batch.is_control and latest_end <= batch.base_offset < offset:
                yield from _controls(batch)

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: the epochs are those of the batches, and the leader appends next."""

    def append_control(self, epoch: int, entries: Sequence[ControlEntry], now_ms: int) -> int:
        """Append control records as one batch; return the offset of the first."""
        offset = self.end_offset
        self._append(epoch, True, tuple(entries))
        return offset

    def append_as_leader(self, epoch: int, records: Records, now_ms: int) -> int:
        """Append a tuple of values as one batch; return the offset of the last."""
        self._append(epoch, False, cast(tuple[object, ...], records))
        return self.end_offset - 1

    def _append(self, epoch: int, is_control: bool, records: tuple[object, ...]) -> None:
        if epoch < self.last_epoch:
            raise LogFault(f"a batch of epoch {epoch} is appended behind one of epoch {self.last_epoch}")
        self._change(self.now.appended(epoch, is_control, records))

    def append_as_follower(self, epoch: int, records: Records, now_ms: int) -> Sequence[AppendedControl]:
        """Append the batches of a leader and return their control records."""
        found: list[AppendedControl] = []
        for batch in cast(tuple[Batch, ...], records):
            if batch.epoch > epoch or batch.epoch < self.last_epoch or batch.base_offset != self.end_offset:
                break
            self._append(batch.epoch, batch.is_control, batch.records)
            found += _controls(batch)
        return found

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on. Raises LogFault."""
        if offset < self.start_offset:
            raise LogFault(f"the log is truncated to {offset}, below its start {self.start_offset}")
        self._change(self.now.truncated(offset))

    def update_high_watermark(self, offset: int) -> None:
        """Do nothing: the log does not keep the high watermark."""

    def read(self, offset: int, max_bytes: int) -> Records | None:
        """Return the batches from `offset` on, as many as `max_bytes` allows, one byte a record, at least one."""
        found: list[Batch] = []
        for batch in self.now.batches:
            if batch.base_offset < offset:
                continue
            max_bytes -= len(batch.records)
            if found and max_bytes < 0:
                break
            found.append(batch)
        return tuple(found) or None

    # ---------------------------------------------------------------------------------------------------------- snapshots

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The earliest snapshot."""
        return self.snapshots[0].id if self.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The latest snapshot."""
        return self.snapshots[-1].id if self.snapshots else None

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """Return the size of a snapshot, None if there is no such snapshot."""
        return SNAPSHOT_BYTES if any(one.id == snapshot for one in self.snapshots) else None

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Records:
        """Return bytes of a snapshot."""
        found = next(one for one in self.snapshots if one.id == snapshot)
        return SnapshotPart(found, position, min(SNAPSHOT_BYTES, position + max_bytes))

    def begin_snapshot(self, snapshot: SnapshotId) -> None:
        """Begin the part file of a snapshot."""
        self.part = ()

    def append_snapshot(self, snapshot: SnapshotId, data: Records) -> None:
        """Append to the part file. Raises LogFault."""
        part = cast(SnapshotPart, data)
        position = self.part[-1].end_position if self.part else 0
        if self.part is None or part.snapshot.id != snapshot or part.position != position:
            raise LogFault(f"a part of snapshot {part.snapshot.id} at {part.position} is appended to {self.part}")
        self.part = (*self.part, part)

    def drop_snapshot(self, snapshot: SnapshotId) -> None:
        """Remove the part file."""
        self.part = None

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        """Complete the snapshot that was received, and begin the log behind it. Raises LogFault."""
        if not self.part or self.part[-1].end_position != SNAPSHOT_BYTES:
            raise LogFault(f"snapshot {snapshot} is finished, but {self.part} is not the whole of it")
        received = self.part[-1].snapshot
        self.states = (LogState(received.id.end_offset, received.id.epoch, received.chain),)
        self.snapshots, self.part, self.flushing = (received,), None, None

    def snapshot_at(self, offset: int) -> Snapshot:
        """Return the snapshot that a node makes at a border of two batches. Raises LogFault."""
        last: dict[type[ControlEntry], ControlEntry] = {}
        for control in self._control_below(offset, self.snapshots):
            last[type(control.entry)] = control.entry
        chain = self.now.chain_at(offset)
        if chain is None:
            raise LogFault(f"a snapshot ends at offset {offset}, within a batch")
        epoch = next((batch.epoch for batch in reversed(self.now.batches) if batch.last_offset < offset), self.now.start_epoch)
        entries = (last[kind] for kind in (KRaftVersionEntry, VotersEntry) if kind in last)
        return Snapshot(SnapshotId(offset, epoch), tuple(entries), chain)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add a snapshot that this node has made, behind those that are there."""
        self.snapshots = (*self.snapshots, snapshot)

    def clean(self) -> None:
        """Remove the records below the latest snapshot, and earlier snapshots."""
        latest, now = self.snapshots[-1], self.now
        kept = tuple(batch for batch in now.batches if batch.base_offset >= latest.id.end_offset)
        self._change(LogState(latest.id.end_offset, latest.id.epoch, latest.chain, kept))
        self.snapshots = (latest,)


def _controls(batch: Batch) -> list[AppendedControl]:
    if not batch.is_control:
        return []
    return [AppendedControl(batch.base_offset + delta, cast(ControlEntry, one)) for delta, one in enumerate(batch.records)]
