"""The producers of a partition: their last batches, epochs and open transactions (KIP-98, KIP-360, KIP-890).

The state after a batch is applied:

    batch of a producer           its entry afterwards
    ----------------------------  ------------------------------------------------------------------------------------
    records                       the batch is added (five are kept) with its max timestamp; a new epoch removes the others
      transactional, none open    in addition a transaction is open from the batch's base offset on
      not transactional, one open refused with InvalidTxnStateError
    COMMIT or ABORT marker        the transaction is completed; the entry has the marker's coordinator epoch and timestamp; a
                                  new epoch removes the batches
    control batch, no records     unchanged (the cleaner has removed the marker together with its transaction)

The first unstable offset is the first offset of the oldest transaction that is open, or whose marker is at or above the high
watermark. The last stable offset of a completed transaction is the first offset of the next open one, else the offset after its
marker.

Sequences and epochs are not checked here, since recovered and replicated batches were checked by their leader (Kafka:
AppendOrigin.REPLICATION); kcli.log.append_paths checks the batches of clients.

Snapshots (`N.snapshot`) contain the state up to offset N, of each producer the last batch only; producer_appends finds the
earlier ones in the log when one of them comes again. tests/oracle compares their bytes with those of Kafka, which writes
the producers in the order of a Java HashMap: hence `long_map_order`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.format import limits
from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.java_text import long_map_order
from kcli.format.primitives import CorruptSnapshotError, FormatError
from kcli.format.producer_snapshot import ProducerEntry, decode_producer_snapshot, encode_producer_snapshot
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch
from kcli.log.disk.port import Disk, base_name, join_path

BATCHES_RETAINED = 5
NO_COORDINATOR_EPOCH = -1


class InvalidTxnStateError(FormatError):
    """A non-transactional batch of a producer with an open transaction (Kafka: InvalidTxnStateException)."""


class BatchMetadata(NamedTuple):
    """One of a producer's last five batches; `timestamp` is its max timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @classmethod
    def of(cls, batch: RecordBatch) -> BatchMetadata:
        """Return that of a batch in the log."""
        return cls(batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset, batch.max_timestamp)


class CompletedTxn(NamedTuple):
    """A transaction that the marker at `last_offset` has completed."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class VerificationStateEntry:
    """A producer without an open transaction here, whose transaction is being verified at its coordinator (KIP-890).

    The object is the guard of the verification: a batch may begin the transaction if the entry is still the same one then.
    `lowest_sequence` is that of the first batch that waits, so that no later one is appended before it; `is_epoch_bumped` says
    that the epoch is a new one with each transaction (transaction.version 2): a producer without a state begins with 0.
    """

    __slots__ = ("created_ms", "is_epoch_bumped", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, created_ms: int, lowest_sequence: int, *, is_epoch_bumped: bool) -> None:
        self.producer_epoch = producer_epoch
        self.created_ms = created_ms
        self.lowest_sequence = lowest_sequence
        self.is_epoch_bumped = is_epoch_bumped


class TxnMetadata:
    """A transaction; `last_offset` is the offset of its marker, None while it is open."""

    __slots__ = ("first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: int, first_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset: int | None = None


class ProducerStateEntry:
    """The state of one producer; its epoch is -1 before its first batch, timestamps are in ms.

    `may_have_earlier_batches`: the entry comes from a snapshot, which has the last batch only, so that the log may contain
    earlier batches of the epoch that belong to the last five.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "may_have_earlier_batches",
        "producer_epoch",
        "producer_id",
    )

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
        self.may_have_earlier_batches = False

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        """Add a batch; the first one of an epoch removes the others."""
        self.set_epoch(producer_epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def set_epoch(self, producer_epoch: int) -> None:
        """Set the epoch; a change removes the batches."""
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.may_have_earlier_batches = False
            self.producer_epoch = producer_epoch

    def without_batches(self) -> ProducerStateEntry:
        """Return a copy without the batches."""
        return ProducerStateEntry(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
        )

    def update(self, later: ProducerStateEntry) -> None:
        """Apply a later state; its batches are added to the present ones."""
        self.set_epoch(later.producer_epoch)
        self.batches.extend(later.batches)
        self.coordinator_epoch = later.coordinator_epoch
        self.current_txn_first_offset = later.current_txn_first_offset
        self.last_timestamp = later.last_timestamp

    def to_snapshot(self) -> ProducerEntry:
        """Convert to the entry of a snapshot, which has the last batch only."""
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
        """Convert from the entry of a snapshot."""
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
            state.may_have_earlier_batches = True
        return state


class ProducerAppendInfo:
    """Batches of one producer that `ProducerStateManager.update` will apply to its entry."""

    def __init__(self, current: ProducerStateEntry) -> None:
        self.updated = current.without_batches()
        self.started: list[TxnMetadata] = []

    def append(self, batch: RecordBatch, marker: EndTransactionMarker | None) -> CompletedTxn | None:
        """Apply a batch; `marker` is the record of a control batch, None if it has no records.

        Return the transaction that the batch has completed, if any. Raises InvalidTxnStateError.
        """
        if batch.is_control:
            return None if marker is None else self._end_transaction(batch, marker)
        first_offset = batch.base_offset
        self.updated.add_batch(batch.producer_epoch, BatchMetadata.of(batch))
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
        # A marker of a transaction without records is not in the transaction index.
        if first_offset is None:
            return None
        return CompletedTxn(batch.producer_id, first_offset, batch.base_offset, marker.is_abort)


def _ignore(path: str, why: str) -> None:
    """Ignore the reason of a change."""


class ProducerStateManager:
    """The producers of one partition, and their snapshots in its directory.

    `map_end_offset` is the offset after the last applied batch. `explain(path, why)` is called before a snapshot is written or
    removed, `on_damaged(path, why)` before a damaged one is removed. The constructor lists the snapshots of the directory,
    unless their offsets are given in ascending order; it raises FormatError for a name without an offset.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        explain: Callable[[str, str], None] = _ignore,
        *,
        snapshot_offsets: Iterable[int] | None = None,
        on_damaged: Callable[[str, str], None] = _ignore,
    ) -> None:
        self.producers: dict[int, ProducerStateEntry] = {}
        self.verifications: dict[int, VerificationStateEntry] = {}  # by producer id
        self.map_end_offset = 0
        self._disk = disk
        self._directory = directory
        self._explain = explain
        self._on_damaged = on_damaged
        # By ascending first offset; the first entry of a plain dict takes O(n) to find after deletions.
        self._open: OrderedDict[int, TxnMetadata] = OrderedDict()
        self._unreplicated: dict[int, TxnMetadata] = {}  # completed; the marker is at or above the high watermark
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
        """Whether there are no producers and no transactions."""
        return not self.producers and not self._unreplicated

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction without a marker below the high watermark, None if there is none."""
        first_open = next(iter(self._open), None)
        if not self._unreplicated:
            return first_open
        first_unreplicated = min(self._unreplicated)
        return first_unreplicated if first_open is None else min(first_open, first_unreplicated)

    def prepare_update(self, producer_id: int) -> ProducerAppendInfo:
        """Return the ProducerAppendInfo for new batches of a producer."""
        return ProducerAppendInfo(self.producers.get(producer_id) or ProducerStateEntry(producer_id))

    def update(self, info: ProducerAppendInfo) -> None:
        """Apply the batches of `info` to the producer's entry."""
        updated = info.updated
        current = self.producers.get(updated.producer_id)
        if current is None:
            self.add(updated)
        else:
            current.update(updated)
        for txn in info.started:
            self._open[txn.first_offset] = txn
        # What was verified before a marker does not hold after it.
        self.verifications.pop(updated.producer_id, None)

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """Return the last stable offset after the marker of a completed transaction."""
        others = (first for first, txn in self._open.items() if txn.producer_id != completed.producer_id)
        return next(others, completed.last_offset + 1)

    def complete(self, completed: CompletedTxn) -> None:
        """Complete a transaction. Raises FormatError if none is open at its first offset."""
        txn = self._open.pop(completed.first_offset, None)
        if txn is None:
            raise FormatError(f"the marker at offset {completed.last_offset} completes a transaction that is not open")
        txn.last_offset = completed.last_offset
        self._unreplicated[completed.first_offset] = txn

    def on_high_watermark(self, high_watermark: int) -> None:
        """Remove completed transactions with markers below the high watermark."""
        if not self._unreplicated:
            return
        for first_offset, txn in list(self._unreplicated.items()):
            if txn.last_offset is not None and txn.last_offset < high_watermark:
                del self._unreplicated[first_offset]

    def add(self, entry: ProducerStateEntry) -> None:
        """Add a producer."""
        self.producers[entry.producer_id] = entry
        self._most_producers = max(self._most_producers, len(self.producers))

    def on_log_start(self, log_start_offset: int) -> None:
        """Follow a raised log start offset: earlier transactions are removed, but no producers, as in Kafka."""
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self._last_snapshot_offset = next(reversed(self._snapshots), log_start_offset)

    def remove_expired(self, now_ms: int, producer_id_expiration_ms: int) -> None:
        """Remove producers without an open transaction whose last batch is older than producer.id.expiration.ms.

        Verifications of that age are removed, too.
        """
        expired = [
            entry.producer_id
            for entry in self.producers.values()
            if entry.current_txn_first_offset is None and now_ms - entry.last_timestamp >= producer_id_expiration_ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        self.verifications = {
            producer_id: guard
            for producer_id, guard in self.verifications.items()
            if now_ms - guard.created_ms < producer_id_expiration_ms
        }

    def _clear(self) -> None:
        self.producers.clear()
        self.verifications.clear()
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
                raise FormatError(f"{name}: the name of the producer snapshot does not begin with an offset")
            found[parsed.base_offset] = path
        return dict(sorted(found.items()))

    def use_disk(self, disk: Disk) -> None:
        """Write snapshots to another disk and without `explain` from now on."""
        self._disk = disk
        self._explain = _ignore

    def move(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        self._directory = directory
        self._snapshots = {offset: join_path(directory, base_name(path)) for offset, path in self._snapshots.items()}

    @property
    def snapshots(self) -> dict[int, str]:
        """The paths of the snapshots by ascending offset."""
        return dict(self._snapshots)

    def snapshot_entries(self) -> list[ProducerEntry]:
        """Return the producers in the order in which Kafka writes them."""
        ordered = long_map_order(self.producers, self._most_producers)
        return [self.producers[producer_id].to_snapshot() for producer_id in ordered]

    def _describe_snapshot(self) -> str:
        count = len(self.producers)
        if not count:
            return f"an empty producer snapshot at offset {self.map_end_offset}"
        return f"the state of {count} {'producer' if count == 1 else 'producers'} up to offset {self.map_end_offset}"

    def take_snapshot(self, *, flushed: bool = True) -> str | None:
        """Write a snapshot of the state and return its path, None if the end offset has not changed since the last one.

        With `flushed=False` it does not wait for the device: a snapshot that a crash tears fails its CRC check.
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
        """Remove the snapshot of an offset, if there is one."""
        path = self._snapshots.pop(offset, None)
        if path is not None and self._disk.exists(path):
            self._explain(path, why)
            self._disk.remove(path)

    def set_aside_snapshot(self, offset: int) -> str | None:
        """Rename the snapshot of an offset to `*.deleted`; return its new path, None if there is none."""
        path = self._snapshots.pop(offset, None)
        if path is None or not self._disk.exists(path):
            return None
        self._disk.rename(path, path + FileState.DELETED.value)
        return path + FileState.DELETED.value

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int], *, is_listed: bool = False) -> None:
        """List the snapshots, unless that `is_listed`, and remove those that are not at the base offset of a segment.

        The last one is kept if it is above all base offsets.
        """
        if not is_listed:
            self._snapshots = self._list_snapshots()
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._snapshots if offset not in bases]
        for offset in strays[:-1] if strays and (not bases or strays[-1] >= max(bases)) else strays:
            self.remove_snapshot(offset, "no segment starts at its offset")

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove snapshots outside of (log start, log end]; load the last one unless the state is at the log end already."""
        for offset in list(self._snapshots):
            if offset > log_end_offset:
                # Without a reason: during a recovery this is not the end of the log yet. A repair adds the reason later.
                self.remove_snapshot(offset, "")
            elif offset <= log_start_offset:
                self.remove_snapshot(offset, f"it is not above the log start offset, {log_start_offset}")
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
            opened = [(entry.open_txn_first_offset, entry.producer_id) for entry in entries]
            for first_offset, producer_id in sorted((first, owner) for first, owner in opened if first is not None):
                self._open[first_offset] = TxnMetadata(producer_id, first_offset)
            break
        self.map_end_offset = self._last_snapshot_offset = offset

    def truncate_fully(self, offset: int) -> None:
        """Remove all producers, transactions and snapshots, and begin at `offset`."""
        self._clear()
        for snapshot_offset in list(self._snapshots):
            self.remove_snapshot(snapshot_offset, f"the log begins again at offset {offset}")
        self._last_snapshot_offset = 0
        self.map_end_offset = offset
