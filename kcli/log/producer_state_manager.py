"""What a partition knows of its producers: their last batches, epochs and open transactions (KIP-98, KIP-360, KIP-890).

It is what batches applied one after the other leave behind:

    batch of a producer           its entry afterwards
    ----------------------------  ------------------------------------------------------------------------------------
    records                       + the batch (five are kept), its max timestamp; another epoch forgets the batches
      transactional, none open    + an open transaction that begins at the batch's base offset
      not transactional, one open refused: InvalidTxnStateError
    COMMIT or ABORT marker        no open transaction, the marker's coordinator epoch and timestamp; another epoch
                                  forgets the batches; the transaction is completed
    control batch of no records   unchanged (the cleaner took the marker with its whole transaction)

The first unstable offset is where the oldest transaction begins that is open, or whose marker lies at or behind the high
watermark; the last stable offset of a completed one is where the next open transaction begins, else behind its marker.

This is how a batch counts that is already in the log (Kafka: AppendOrigin.REPLICATION): recovered and replicated batches
were checked by the leader that took them, so neither sequences nor epochs are checked again. Producers never expire here.

Snapshots (`N.snapshot`) save the state up to offset N. Kafka writes them in the order of a Java HashMap, and so does this:
the same state gives the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.format import limits
from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.primitives import CorruptSnapshotError, FormatError
from kcli.format.producer_snapshot import ProducerEntry, decode_producer_snapshot, encode_producer_snapshot
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch
from kcli.log.disk.port import Disk, base_name, join_path

BATCHES_RETAINED = 5
NO_COORDINATOR_EPOCH = -1


class InvalidTxnStateError(FormatError):
    """A batch outside of a transaction while its producer has one open (Kafka: InvalidTxnStateException)."""


class BatchMetadata(NamedTuple):
    """One of a producer's last batches: last sequence, last offset, last offset delta, max timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class CompletedTxn(NamedTuple):
    """A transaction that a marker at `last_offset` ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class TxnMetadata:
    """A transaction by its first offset; `last_offset` is its marker's once that is there."""

    __slots__ = ("first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: int, first_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset: int | None = None


class ProducerStateEntry:
    """What is known of one producer; the epoch is -1 before its first batch, timestamps are in ms."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "last_timestamp", "producer_epoch", "producer_id")

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        current_txn_first_offset: int | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_RETAINED)

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        """Remember a batch; one of another epoch makes those before forgotten."""
        self.set_epoch(producer_epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def set_epoch(self, producer_epoch: int) -> None:
        """Take over an epoch; another one than before makes the batches forgotten."""
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def without_batches(self) -> ProducerStateEntry:
        """The same state with no batches."""
        return ProducerStateEntry(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
        )

    def update(self, later: ProducerStateEntry) -> None:
        """Take over a later state, whose batches come on top of those at hand."""
        self.set_epoch(later.producer_epoch)
        self.batches.extend(later.batches)
        self.coordinator_epoch = later.coordinator_epoch
        self.current_txn_first_offset = later.current_txn_first_offset
        self.last_timestamp = later.last_timestamp

    def to_snapshot(self) -> ProducerEntry:
        """The entry as a snapshot has it: of the batches only the last."""
        batch = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, -1, 0, self.last_timestamp)
        first_offset = self.current_txn_first_offset
        return ProducerEntry(
            self.producer_id,
            self.producer_epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            -1 if first_offset is None else first_offset,
        )

    @classmethod
    def from_snapshot(cls, entry: ProducerEntry) -> ProducerStateEntry:
        """The state that a snapshot's entry tells."""
        state = cls(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp,
            entry.open_txn_first_offset,
        )
        if entry.has_batch:
            batch = BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            state.add_batch(entry.producer_epoch, batch)
        return state


class ProducerAppendInfo:
    """Batches of one producer on their way into its entry: nothing counts before `ProducerStateManager.update`."""

    def __init__(self, current: ProducerStateEntry) -> None:
        self.updated = current.without_batches()
        self.started: list[TxnMetadata] = []

    def append(self, batch: RecordBatch, marker: EndTransactionMarker | None) -> CompletedTxn | None:
        """Apply a batch; of a control batch its first record is `marker`, None where it has no records.

        Returns the transaction that it completed. Raises InvalidTxnStateError.
        """
        if batch.is_control:
            return None if marker is None else self._end_transaction(batch, marker)
        first_offset, last_offset = batch.base_offset, batch.last_offset
        metadata = BatchMetadata(batch.last_sequence, last_offset, last_offset - first_offset, batch.max_timestamp)
        self.updated.add_batch(batch.producer_epoch, metadata)
        is_open = self.updated.current_txn_first_offset is not None
        if is_open and not batch.is_transactional:
            raise InvalidTxnStateError(
                f"the batch at offset {first_offset} is not transactional, though producer {batch.producer_id} has a "
                f"transaction open since offset {self.updated.current_txn_first_offset}",
                batch.position,
            )
        if batch.is_transactional and not is_open:
            self.updated.current_txn_first_offset = first_offset
            self.started.append(TxnMetadata(batch.producer_id, first_offset))
        return None

    def _end_transaction(self, batch: RecordBatch, marker: EndTransactionMarker) -> CompletedTxn | None:
        state = self.updated
        first_offset = state.current_txn_first_offset
        state.set_epoch(batch.producer_epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.current_txn_first_offset = None
        state.last_timestamp = marker.timestamp
        # A marker without records before it leaves no trace in the transaction index.
        if first_offset is None:
            return None
        return CompletedTxn(batch.producer_id, first_offset, batch.base_offset, marker.is_abort)


def _explain_nothing(path: str, why: str) -> None:
    """Where nobody asks for reasons."""


class ProducerStateManager:
    """The producers of one partition, and their snapshots in its directory.

    `map_end_offset` is the offset behind the last batch that was applied. `explain(path, why)` is told why a snapshot is
    written or removed, `on_damaged(path, why)` why a damaged one goes. Snapshots are found when it is made, unless their
    offsets, ascending, are given: raises FormatError for one without an offset in its name.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        explain: Callable[[str, str], None] = _explain_nothing,
        *,
        snapshot_offsets: Iterable[int] | None = None,
        on_damaged: Callable[[str, str], None] = _explain_nothing,
    ) -> None:
        self.producers: dict[int, ProducerStateEntry] = {}
        self.map_end_offset = 0
        self._disk = disk
        self._directory = directory
        self._explain = explain
        self._on_damaged = on_damaged
        self._open: dict[int, TxnMetadata] = {}  # by first offset
        self._unreplicated: dict[int, TxnMetadata] = {}  # completed, but the marker lies at or behind the high watermark
        self._last_snapshot_offset = 0
        self._most_producers = 0
        if snapshot_offsets is None:
            self._snapshots = self._list_snapshots()
        else:
            self._snapshots = {
                offset: join_path(directory, segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT))
                for offset in snapshot_offsets
            }

    # --------------------------------------------------------------------------------------------------- the state

    @property
    def is_empty(self) -> bool:
        """True where no producer and no transaction is known."""
        return not self.producers and not self._unreplicated

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is not decided below the high watermark; None: there is none."""
        if not self._open and not self._unreplicated:
            return None
        return min((*self._open, *self._unreplicated))

    def prepare_update(self, producer_id: int) -> ProducerAppendInfo:
        """Begin to apply batches of a producer."""
        return ProducerAppendInfo(self.producers.get(producer_id) or ProducerStateEntry(producer_id))

    def update(self, info: ProducerAppendInfo) -> None:
        """Let what was applied count."""
        updated = info.updated
        current = self.producers.get(updated.producer_id)
        if current is None:
            self.add(updated)
        else:
            current.update(updated)
        for txn in info.started:
            self._open[txn.first_offset] = txn

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """The last stable offset from a completed transaction's marker on."""
        others = (first for first, txn in self._open.items() if txn.producer_id != completed.producer_id)
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTxn) -> None:
        """Close a transaction. Raises FormatError where none began at its first offset."""
        txn = self._open.pop(completed.first_offset, None)
        if txn is None:
            raise FormatError(f"the transaction that ends at offset {completed.last_offset} did not begin")
        txn.last_offset = completed.last_offset
        self._unreplicated[completed.first_offset] = txn

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose markers lie below the high watermark."""
        if not self._unreplicated:
            return
        for first_offset, txn in list(self._unreplicated.items()):
            if txn.last_offset is not None and txn.last_offset < high_watermark:
                del self._unreplicated[first_offset]

    def add(self, entry: ProducerStateEntry) -> None:
        """Begin to know a producer."""
        self.producers[entry.producer_id] = entry
        self._most_producers = max(self._most_producers, len(self.producers))

    def on_log_start(self, log_start_offset: int) -> None:
        """The log starts behind: transactions before are forgotten; producers are kept, as Kafka does."""
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self._last_snapshot_offset = next(reversed(self._snapshots), log_start_offset)

    def remove_expired(self, now_ms: int, producer_id_expiration_ms: int) -> None:
        """Forget producers without an open transaction whose last batch is that old (producer.id.expiration.ms)."""
        expired = [
            entry.producer_id
            for entry in self.producers.values()
            if entry.current_txn_first_offset is None and now_ms - entry.last_timestamp >= producer_id_expiration_ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]

    def _clear(self) -> None:
        self.producers.clear()
        self._open.clear()
        self._unreplicated.clear()

    # --------------------------------------------------------------------------------------------------- snapshots

    def _list_snapshots(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for name in self._disk.list_directory(self._directory):
            parsed = parse_file_name(name)
            path = join_path(self._directory, name)
            if parsed.kind is not FileKind.PRODUCER_SNAPSHOT or parsed.state is not FileState.CURRENT:
                continue
            if not self._disk.is_regular(path):
                continue
            if parsed.base_offset is None:
                raise FormatError(f"{name}: no offset stands in the name of this snapshot")
            found[parsed.base_offset] = path
        return dict(sorted(found.items()))

    def use_disk(self, disk: Disk) -> None:
        """Snapshots are written through this disk from now on, and nobody is told why."""
        self._disk = disk
        self._explain = _explain_nothing

    def move(self, directory: str) -> None:
        """The partition's directory was renamed."""
        self._directory = directory
        self._snapshots = {offset: join_path(directory, base_name(path)) for offset, path in self._snapshots.items()}

    @property
    def snapshots(self) -> dict[int, str]:
        """The snapshots by offset, ascending -> their paths."""
        return dict(self._snapshots)

    def snapshot_entries(self) -> list[ProducerEntry]:
        """The producers in the order in which Kafka writes them."""
        ordered = hash_map_order(self.producers, self._most_producers)
        return [self.producers[producer_id].to_snapshot() for producer_id in ordered]

    def _describe_snapshot(self) -> str:
        count = len(self.producers)
        if not count:
            return f"an empty producer snapshot at offset {self.map_end_offset}"
        return f"the state of {count} {'producer' if count == 1 else 'producers'} up to offset {self.map_end_offset}"

    def take_snapshot(self, *, flushed: bool = True) -> str | None:
        """Write the state as the snapshot of its end offset -> its path; None where it has not moved since the last one.

        With `flushed=False` nobody waits for the device: a snapshot that a crash tears does not pass its CRC.
        """
        if self.map_end_offset <= self._last_snapshot_offset:
            return None
        name = segment_file_name(self.map_end_offset, FileKind.PRODUCER_SNAPSHOT)
        path = join_path(self._directory, name)
        self._explain(path, self._describe_snapshot())
        data = encode_producer_snapshot(self.snapshot_entries())
        if flushed:
            self._disk.write_file(path, data)
        else:
            if self._disk.exists(path):
                self._disk.remove(path)
            self._disk.append(path, data)
        self._snapshots = dict(sorted({**self._snapshots, self.map_end_offset: path}.items()))
        self._last_snapshot_offset = self.map_end_offset
        return path

    def remove_snapshot(self, offset: int, why: str) -> None:
        """Remove the snapshot of an offset where there is one."""
        path = self._snapshots.pop(offset, None)
        if path is not None and self._disk.exists(path):
            self._explain(path, why)
            self._disk.remove(path)

    def set_aside_snapshot(self, offset: int) -> str | None:
        """Rename the snapshot of an offset to `*.deleted` -> its new path, None where there is none."""
        path = self._snapshots.pop(offset, None)
        if path is None or not self._disk.exists(path):
            return None
        self._disk.rename(path, path + FileState.DELETED.value)
        return path + FileState.DELETED.value

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int], *, looked: bool = False) -> None:
        """Look for snapshots anew, unless just `looked`; remove those at which no segment starts.

        One behind the last segment's start is kept.
        """
        if not looked:
            self._snapshots = self._list_snapshots()
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._snapshots if offset not in bases]
        for offset in strays[:-1] if strays and (not bases or strays[-1] >= max(bases)) else strays:
            self.remove_snapshot(offset, "no segment starts at its offset")

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove the snapshots outside of (log start, log end], then load the last one left, unless the state is there."""
        for offset in list(self._snapshots):
            if offset > log_end_offset:
                self.remove_snapshot(offset, f"the log, as far as it is sound, ends before, at offset {log_end_offset}")
            elif offset <= log_start_offset:
                self.remove_snapshot(offset, f"the log starts behind, at offset {log_start_offset}")
        if log_end_offset != self.map_end_offset:
            self._clear()
            self._load_latest(log_start_offset)
            return
        self.on_log_start(log_start_offset)

    def _load_latest(self, log_start_offset: int) -> None:
        offset = log_start_offset
        while self._snapshots:
            offset, path = next(reversed(self._snapshots.items()))
            try:
                data = self._disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
                entries = decode_producer_snapshot(data).entries
            except CorruptSnapshotError as error:
                self._on_damaged(path, error.message)
                self.remove_snapshot(offset, error.message)
                offset = log_start_offset
                continue
            for entry in entries:
                self.add(ProducerStateEntry.from_snapshot(entry))
                if entry.open_txn_first_offset is not None:
                    first_offset = entry.open_txn_first_offset
                    self._open[first_offset] = TxnMetadata(entry.producer_id, first_offset)
            break
        self.map_end_offset = self._last_snapshot_offset = offset

    def truncate_fully(self, offset: int) -> None:
        """Forget everything, snapshots too, and start at `offset`."""
        self._clear()
        for snapshot_offset in list(self._snapshots):
            self.remove_snapshot(snapshot_offset, f"the log starts anew at offset {offset}")
        self._last_snapshot_offset = 0
        self.map_end_offset = offset


# Java's HashMap: its table begins with so many buckets, and doubles when more than 3/4 of them are taken.
_FIRST_TABLE = 16


def hash_map_order(keys: Iterable[int], most: int = 0) -> list[int]:
    """Keys (int64), put one after the other into a Java HashMap<Long, ...>, in the order in which it gives them out.

    `most` is how many it ever held, where that is more: the table never shrinks.
    """
    ordered = list(keys)
    table = _FIRST_TABLE
    while max(len(ordered), most) * 4 > table * 3:
        table *= 2

    def bucket(key: int) -> int:
        number = key & 0xFFFF_FFFF_FFFF_FFFF
        folded = (number ^ number >> 32) & 0xFFFF_FFFF
        return (folded ^ folded >> 16) & table - 1

    return sorted(ordered, key=bucket)
