"""What kafka-dump-log 4.3.1 prints of index files and producer snapshots (`--output kafka`).

    .index      offset: O position: P
    .timeindex  timestamp: T offset: O
    .txnindex   version: 0 producerId: p firstOffset: f lastOffset: l lastStableOffset: s
    .snapshot   producerId: p producerEpoch: e coordinatorEpoch: c currentTxnFirstOffset: OptionalLong[100] lastTimestamp: t
                and, if the producer has a batch, firstSequence: lastSequence: lastOffset: offsetDelta: timestamp:

Each entry of `.index` and `.timeindex` is compared with the log of the segment, as by Kafka's tool. Unlike that tool, this one
creates no missing files, and prints a file to its end even if an entry points nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.format.index_entries import NO_TIMESTAMP, OffsetIndex, TimeIndex, TransactionIndex
from kcli.format.limits import MAX_INDEX_FILE_BYTES
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.inspect.dumping.kafka_text import DamageReport, DumpSummary, KafkaDumpOptions
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader


class IndexDumper:
    """Prints `.index`, `.timeindex`, `.txnindex` and `.snapshot` files; arguments as kafka_text.LogDumper's."""

    def __init__(
        self,
        disk: Disk,
        out: TextBuffer,
        options: KafkaDumpOptions,
        report: DamageReport,
        absolute: Callable[[str], str],
        summary: DumpSummary,
    ) -> None:
        self._disk = disk
        self._out = out
        self._options = options
        self._report = report
        self._absolute = absolute
        self._summary = summary

    def offset_index(self, path: str, base_offset: int) -> None:
        """Print an `.index`. Raises OSError if it cannot be read."""
        index = OffsetIndex.decode(self._disk.read_file(path, MAX_INDEX_FILE_BYTES), base_offset)
        if self._is_settled(path, index):
            return
        mismatches: dict[int, int] = {}
        with _Log(self._disk, path, self._report) as log:
            for offset, position in index.entries():
                header = log.header_at(position, self._options.max_message_bytes)
                # Of a message set of format 0 or 1 the entry may name the first byte and the last offset.
                if isinstance(header, RecordBatch) and header.last_offset != offset:
                    mismatches[offset] = header.last_offset
                if not self._options.verify_index_only:
                    self._out.put(b"offset: %d position: %d\n" % (offset, position))
        if mismatches:
            self._summary.index_mismatches[self._absolute(path)] = mismatches
        self._trailing(path, index)

    def time_index(self, path: str, base_offset: int) -> None:
        """Print a `.timeindex`. Raises OSError if it cannot be read."""
        index = TimeIndex.decode(self._disk.read_file(path, MAX_INDEX_FILE_BYTES), base_offset)
        name = path.removesuffix(".timeindex") + ".index"
        offsets = OffsetIndex.of(base_offset)
        if self._disk.exists(name):
            offsets = OffsetIndex.decode(self._disk.read_file(name, MAX_INDEX_FILE_BYTES), base_offset)
        elif not self._options.index_sanity_check:
            self._report.note(path, None, f"{name} is missing; the log is searched from its start")
        if self._is_settled(path, index):
            return
        previous = NO_TIMESTAMP
        with _Log(self._disk, path, self._report) as log:
            for timestamp, offset in index.entries():
                self._check_time(path, log, offsets.lookup(offset).position, timestamp, offset, previous)
                if not self._options.verify_index_only:
                    self._out.put(b"timestamp: %d offset: %d\n" % (timestamp, offset))
                previous = timestamp
        self._trailing(path, index)

    def _check_time(self, path: str, log: _Log, position: int, timestamp: int, offset: int, previous: int) -> None:
        batch = log.batch_covering(position, offset)
        name = self._absolute(path)
        if batch is None or batch.header.last_offset != offset:
            found = -1 if batch is None else batch.header.last_offset
            self._summary.offsets_not_found.setdefault(name, []).append((offset, found))
            return
        latest = log.latest_timestamp(batch)
        if latest not in (None, timestamp):
            self._summary.timestamp_mismatches.setdefault(name, []).append((timestamp, latest or 0))
        if previous >= timestamp:
            self._summary.timestamps_out_of_order.setdefault(name, []).append((timestamp, previous))

    def transaction_index(self, path: str, base_offset: int) -> None:
        """Print a `.txnindex`. Raises OSError if it cannot be read."""
        index = TransactionIndex.decode(self._disk.read_file(path, MAX_INDEX_FILE_BYTES), base_offset)
        for txn in index.aborted:
            self._out.put(
                b"version: %d producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d\n"
                % (txn.kafka_version, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
            )
        try:
            index.check_versions(self._absolute(path))
        except FormatError as error:
            self._report.damage(path, None, error.message)
        self._trailing(path, index)

    def producer_snapshot(self, path: str) -> None:
        """Print a `.snapshot`. Raises OSError if it cannot be read."""
        try:
            entries = decode_producer_snapshot(self._disk.read_file(path, MAX_INDEX_FILE_BYTES)).entries
        except FormatError as error:
            self._report.damage(path, error.position, error.message)
            return
        for entry in entries:
            first = entry.open_txn_first_offset
            self._out.put(
                b"producerId: %d producerEpoch: %d coordinatorEpoch: %d currentTxnFirstOffset: %s lastTimestamp: %d"
                % (
                    entry.producer_id,
                    entry.producer_epoch,
                    entry.coordinator_epoch,
                    b"OptionalLong.empty" if first is None else b"OptionalLong[%d]" % first,
                    entry.timestamp,
                )
            )
            if entry.has_batch:
                self._out.put(
                    b" firstSequence: %d lastSequence: %d lastOffset: %d offsetDelta: %d timestamp: %d"
                    % (entry.first_sequence, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
                )
            self._out.put(b"\n")

    def _is_settled(self, path: str, index: OffsetIndex | TimeIndex) -> bool:
        """Return True if no entry is to be printed: an empty index, or one that is only checked."""
        shown = path.encode(errors="surrogateescape")
        if isinstance(index, OffsetIndex) and not len(index):
            self._out.put(shown + b" is empty.\n")
            return True
        if not self._options.index_sanity_check:
            return False
        try:
            index.sanity_check(self._absolute(path))
        except FormatError as error:
            self._report.damage(path, None, error.message)
        else:
            self._out.put(shown + b" passed sanity check.\n")
        return True

    def _trailing(self, path: str, index: OffsetIndex | TimeIndex | TransactionIndex) -> None:
        if index.trailing:
            self._report.damage(path, None, f"{len(index.trailing)} bytes are left after the last whole entry")


class _Log:
    """The log of an index, for single batches. If it is missing or damaged, methods return None."""

    def __init__(self, disk: Disk, index_path: str, report: DamageReport) -> None:
        directory, _, name = index_path.rpartition("/")
        name = name.split(".")[0] + ".log"
        self._path = f"{directory}/{name}" if directory or index_path.startswith("/") else name
        self._index_path = index_path
        self._report = report
        self._reader: SegmentReader | None = None
        self._scanner = RecordScanner()
        self._walk: Iterator[LogBatch | Damage] | None = None
        self._at: LogBatch | None = None
        try:
            self._reader = SegmentReader(disk, self._path)
        except OSError as error:
            report.damage(index_path, None, f"its log {self._path} cannot be read: {error.strerror}")

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def header_at(self, position: int, size: int) -> object:
        """Return the header of the entry at `position` if it ends within `size` bytes; else None, and damage is reported."""
        if self._reader is None:
            return None
        try:
            return self._reader.header_at(position, position + min(size, INT32_MAX))
        except FormatError as error:
            self._report.damage(self._index_path, None, f"an entry points into {self._path}, and there {error.message}")
            return None

    def batch_covering(self, position: int, offset: int) -> LogBatch | None:
        """Return the first batch from byte `position` that ends with `offset` or later; ascending calls continue one walk."""
        if self._reader is None:
            return None
        at = self._at
        if self._walk is None or at is None or at.position < position or at.header.last_offset > offset:
            self._walk = self._reader.batches(position, lenient=True)
            self._at = at = None
        while at is None or at.header.last_offset < offset:
            found = next(self._walk, None)
            if found is None:
                self._walk = self._at = None
                return None
            if isinstance(found, LogBatch):
                self._at = at = found
        return at

    def latest_timestamp(self, batch: LogBatch) -> int | None:
        """Return the latest timestamp of the batch's records; None for one without records, as the cleaner leaves them."""
        header = batch.header
        latest: int | None = None
        fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
        for window in batch.windows(self._scanner, lenient=True):
            if window.count:
                most = max(window.columns.timestamp[: window.count]) if fixed is None else fixed
                latest = most if latest is None else max(latest, most)
            if window.error is not None:
                self._report.damage(self._path, batch.position, window.error.message)
        return latest
