"""Logs that are short to write and to read out: keys are numbers, a batch a call, and what is left comes out as numbers.

What is told of records is what has a key and a value, as Kafka's tests of its cleaner tell it: markers count among the
offsets, since they have both, and tombstones do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kcli.format.index_entries import AbortedTxn
from kcli.format.record_batch import TRANSACTIONAL_FLAG, RecordBatch
from kcli.format.record_scan import Buffer, RecordColumns
from kcli.log.cleaner.cleanable import log_to_clean
from kcli.log.cleaner.cleaning_round import CleanedLog, CleaningRound
from kcli.log.cleaner.offset_map import FIRST_SLOTS, SLOT_BYTES, OffsetMap
from kcli.log.disk.os_disk import OsDisk
from kcli.log.log_config import DAY_MS, LogConfig
from kcli.log.log_slices import AppendInfo
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog
from tests.log.cleaner.random_logs import SECRET, finish
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch

COMPACTED = LogConfig(cleanup_policy=frozenset(("compact",)), segment_bytes=1024, segment_index_bytes=1024)
# Later than any horizon that a round of now sets.
LATER_MS = NOW_MS + DAY_MS + 1
_FAR_OFFSET = 1 << 60

Row = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp, key, value


def as_bytes(number: int) -> bytes:
    """A key or a value of a number."""
    return b"%d" % number


def read_batches(directory: Path) -> Iterator[tuple[Any, list[Row]]]:
    """Every batch of a partition's files with its records, in order; all must be sound."""
    for path in sorted(directory.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid, (path, batch)
                rows: list[Row] = []
                for window in batch.windows(RecordScanner()):
                    assert window.error is None, (path, window.error)
                    columns = window.columns
                    rows += [
                        (columns.offset[at], columns.timestamp[at], window.key(at), window.value(at))
                        for at in range(window.count)
                    ]
                yield batch.header, rows


def map_of(most_keys: int) -> OffsetMap:
    """A map that is full with so many keys."""
    slots = max(most_keys, 2) + 1
    return OffsetMap(slots * SLOT_BYTES, SECRET, (most_keys + 0.5) / slots)


class PretendedMap(OffsetMap):
    """A map that has these keys at an offset behind every record, whatever the log says."""

    def __init__(self, keys: Iterable[int]) -> None:
        super().__init__(FIRST_SLOTS * SLOT_BYTES, SECRET)
        listed = [as_bytes(key) for key in keys]
        columns, buffer = RecordColumns(max(len(listed), 1)), b"".join(listed)
        position = 0
        for index, key in enumerate(listed):
            columns.offset[index] = _FAR_OFFSET
            columns.key_position[index], columns.key_size[index] = position, len(key)
            position += len(key)
        super().note(buffer, columns, len(listed), 0)
        # It takes no key more, and which record stays is asked of its keys alone.
        self.most_used, self.is_in_order = 0, False

    def note(self, buffer: Buffer, columns: RecordColumns, count: int, start_offset: int, first: int = 0) -> int:
        return count


class Producer:
    """A producer of a log, whose sequence goes on by itself."""

    def __init__(self, log: CompactedLog, producer_id: int, *, transactional: bool) -> None:
        self._log = log
        self._id = producer_id
        self._attributes = TRANSACTIONAL_FLAG if transactional else 0
        self.sequence = 0

    def put(self, *keys: int, sequence: int | None = None) -> AppendInfo:
        """A batch of records with these keys, and values that are the same."""
        at = self.sequence if sequence is None else sequence
        self.sequence = at + len(keys)
        numbers = [as_bytes(key) for key in keys]
        batch = new_batch(numbers, keys=numbers, producer=(self._id, 0, at), attributes=self._attributes)
        return self._log.append(batch)

    def commit(self) -> None:
        self._log.live.append(marker(self._id, abort=False))

    def abort(self) -> None:
        self._log.live.append(marker(self._id, abort=True))


class CompactedLog:
    """A log of small segments; `settings` are fields of LogConfig."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.live = LiveLog(directory, COMPACTED._replace(**settings))
        self.directory = directory

    @property
    def log(self) -> UnifiedLog:
        """The log as it is open now."""
        return self.live.log

    @property
    def active(self) -> int:
        """Where the active segment begins."""
        return self.log.active_base_offset

    def set(self, **settings: Any) -> None:
        """Change settings."""
        self.live.config = self.log.config = self.log.config._replace(**settings)

    # -------------------------------------------------------------------------------------------------------- writing

    def append(self, batch: memoryview, epoch: int = 0, now_ms: int = NOW_MS) -> AppendInfo:
        """Append a batch, and let it be committed."""
        info = self.log.append_as_leader(batch, epoch, now_ms)
        self.log.update_high_watermark(self.log.log_end_offset)
        return info

    def put(self, key: int | None, value: int | bytes | None, now_ms: int = NOW_MS) -> AppendInfo:
        """A batch of one record; without a value a tombstone."""
        data = as_bytes(value) if isinstance(value, int) else value
        return self.append(new_batch([data], keys=[None if key is None else as_bytes(key)], timestamps=[now_ms]), now_ms=now_ms)

    def fill(self, segments: int, keys: int | None = None, now_ms: int = NOW_MS) -> None:
        """Put until there are so many segments; a key is the offset, of `keys` that modulo those. Values are offsets."""
        while self.log.segment_count < segments:
            end = self.log.log_end_offset
            self.put(end if keys is None else end % keys, end, now_ms)

    def follow(self, key: int, offset: int) -> None:
        """A record of a leader, at an offset that may leave a gap."""
        batch = new_batch([as_bytes(key)], keys=[as_bytes(key)], base_offset=offset, leader_epoch=0)
        self.log.append_as_follower(batch, NOW_MS)
        self.log.update_high_watermark(self.log.log_end_offset)

    def producer(self, producer_id: int, *, transactional: bool = False) -> Producer:
        """A new producer."""
        return Producer(self, producer_id, transactional=transactional)

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a segment."""
        self.log.roll(NOW_MS, base_offset)

    # ------------------------------------------------------------------------------------------------------- cleaning

    def round(
        self, first_dirty: int = 0, *, end: int | None = None, offsets: OffsetMap | None = None, now_ms: int = NOW_MS
    ) -> CleaningRound:
        """A round that has not begun, up to `end`, the active segment without it."""
        cleanable = log_to_clean(self.log, first_dirty, now_ms)._replace(
            first_dirty_offset=first_dirty, first_uncleanable_offset=self.active if end is None else end
        )
        return CleaningRound(self.log, cleanable, map_of(10_000) if offsets is None else offsets, now_ms)

    def clean(
        self, first_dirty: int = 0, *, end: int | None = None, offsets: OffsetMap | None = None, now_ms: int = NOW_MS
    ) -> CleanedLog:
        """A round -> what it did; the next one begins at its `end_offset`."""
        return finish(self.live, self.round(first_dirty, end=end, offsets=offsets, now_ms=now_ms))

    def clean_twice(self) -> None:
        """A round that sets horizons and one behind them."""
        self.clean()
        self.clean(now_ms=LATER_MS)

    # ---------------------------------------------------------------------------------------------------- reading out

    def batches(self) -> list[tuple[Any, list[Row]]]:
        """Every batch with its records."""
        return list(read_batches(self.directory))

    def base_offsets(self) -> list[int]:
        """The base offset of each batch."""
        return [header.base_offset for header, _ in self.batches()]

    def last_offsets(self) -> list[int]:
        """The last offset of each batch."""
        return [header.last_offset for header, _ in self.batches()]

    def offsets(self) -> list[int]:
        """Those of all records with a key and a value, markers too."""
        return [row[0] for _, rows in self.batches() for row in rows if row[2] is not None and row[3] is not None]

    def keys(self) -> list[int]:
        """Those of all records of clients with a key and a value."""
        return [
            int(row[2])
            for header, rows in self.batches()
            if not (isinstance(header, RecordBatch) and header.is_control)
            for row in rows
            if row[2] is not None and row[3] is not None
        ]

    def last_sequences(self) -> dict[int, int]:
        """Each producer's last sequence, by its last batch of data."""
        found: dict[int, int] = {}
        for header, _ in self.batches():
            if header.has_producer and not header.is_control:
                found[header.producer_id] = header.base_sequence + header.last_offset_delta
        return found

    def aborted(self) -> list[AbortedTxn]:
        """The entries of the transaction indexes."""
        return self.log.aborted_transactions(0, self.log.log_end_offset)

    def sizes(self) -> list[int]:
        """The bytes of each segment's `.log`, in order."""
        return [path.stat().st_size for path in sorted(self.directory.glob("*.log"))]
