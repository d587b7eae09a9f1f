"""The open log of one partition: append, read, roll, truncate, close (Kafka: UnifiedLog).

    offset               meaning
    -------------------  ------------------------------------------------------------------------------------------------
    log_start_offset     the first offset that may be read; retention and DeleteRecords raise it
    recovery_point       all records below it are flushed to the device; recovery begins here
    high_watermark       all records below it are committed and may be read by consumers; always within [start, end]
    last_stable_offset   all transactions below it are decided: the limit of consumers with isolation level read_committed
    log_end_offset       the offset of the next record

    an append                                                                              module
    -------------------------------------------------------------------------------------  -------------------------------
    checks the batch: size, magic, CRC, counts                                             kcli.log.log_validator
    checks its records: encoding, timestamps, keys; compresses again, sets LogAppendTime   kcli.log.record_validator
    checks its producer: duplicates, gaps, epochs                                          kcli.log.append_paths
    writes base offset and leader epoch, which the CRC does not cover, into the batch
    rolls the segment if necessary, writes with one call, adds index entries               kcli.log.local_log
    updates the log end offset, the producer's state, the transaction index

If a check fails, nothing has changed. Nothing is flushed here: `needs_flush` returns whether flush.messages or flush.ms ask for
a flush now, `unflushed_paths` which files to flush, and the caller calls `mark_flushed` when that is done.

Retention (Kafka: UnifiedLog.deleteOldSegments) deletes segments from the oldest on.

    reason             a segment is deleted if                                         cleanup.policy
    -----------------  --------------------------------------------------------------  -----------------------------------
    log start offset   the next one begins at or before the log start offset           any
    retention.bytes    the log without it still has at least that many bytes           delete
    retention.ms       its largest timestamp, else the mtime of its file, is older     delete

A segment is deleted only if it ends at or below the high watermark and all earlier ones are deleted. An empty active segment is
kept; before all segments are deleted, the caller begins a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct

from kcli.format.batch_scan import PlainBatch
from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX, crc32c
from kcli.format.record_batch import LOG_OVERHEAD_BYTES, increment_sequence
from kcli.log.append_paths import LogAppendInfo, append_checked, append_replicated, check_carefully
from kcli.log.disk.port import join_path, parent_path
from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.local_log import EMPTY_FETCH, FetchDataInfo, LocalLog
from kcli.log.log_config import LogConfig
from kcli.log.log_segment import LogSegment
from kcli.log.log_validator import AppendOrigin
from kcli.log.producer_state_manager import BatchMetadata, ProducerStateEntry, ProducerStateManager
from kcli.log.rng import Random
from kcli.log.time_lookup import SegmentScan, largest_timestamp, scan_by_time, scan_for_largest

_BATCH_HEAD = Struct(">qii")
# The batch that was read last. All logs share it, because one thread uses them.
_PLAIN = PlainBatch()


class UnifiedLog:
    """The log of one partition, made by kcli.log.log_opener.open_log. Methods raise OSError as the disk does.

    After an OSError the caller takes the log directory offline (Kafka: KafkaStorageException). Only an append to a full disk
    leaves the log unchanged and usable.
    """

    __slots__ = (
        "_flushed_ms",
        "_local",
        "_rng",
        "cleaned_offset",
        "high_watermark",
        "is_topic_id_flushed",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_bounds",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
        "truncation_count",
    )

    def __init__(
        self,
        local: LocalLog,
        topic: str,
        partition: int,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochFileCache,
        *,
        log_start_offset: int,
        recovery_point: int,
        now_ms: int,
        topic_id: Uuid | None = None,
        rng: Random | None = None,
    ) -> None:
        self._local = local
        self._rng = rng
        self.on_bounds: Callable[[], None] = _nothing  # called when the log start offset has moved, or records were removed
        self._flushed_ms = now_ms
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.is_topic_id_flushed = False
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = local.end_offset
        self.recovery_point = recovery_point
        self.truncation_count = 0  # a flush that began before a truncation does not count for what is appended after it
        self.high_watermark = log_start_offset
        self.cleaned_offset: int | None = (
            None  # the first offset that the cleaner has not cleaned; None: it has not cleaned this log
        )

    def __repr__(self) -> str:
        return f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    # ------------------------------------------------------------------------------------------------------------ state

    @property
    def directory(self) -> str:
        """The path of the partition's directory."""
        return self._local.directory

    def path(self, name: str) -> str:
        """Return the path of a file of the partition's directory."""
        return join_path(self._local.directory, name)

    @property
    def config(self) -> LogConfig:
        """The topic's settings; a new value applies from the next append on."""
        return self._local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Apply other settings from the next append on."""
        self._local.config = config

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that read_committed consumers may read."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """The size of all `.log` files."""
        return sum(segment.size_bytes for segment in self._local.segments)

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._local.segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment, at or below the log start offset."""
        return self._local.bases[0]

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._local.bases[-1]

    @property
    def active_size_bytes(self) -> int:
        """The size of the active segment."""
        return self._local.active.segment.size_bytes

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offsets of all segments, ascending."""
        return tuple(self._local.bases)

    def offset_lag(self, offset: int) -> int:
        """Return by how much `offset` is below the log end offset, 0 if it is not."""
        return max(0, self.log_end_offset - offset)

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark, limited to [log start offset, log end offset]."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.producers.on_high_watermark(self.high_watermark)

    # --------------------------------------------------------------------------------------------------------- appending

    def append_as_leader(
        self,
        records: memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        is_hurried: bool = False,
    ) -> LogAppendInfo:
        """Check a batch, assign its offsets and append it; `records` must be writable and is changed in place.

        Raises AppendError. With `is_hurried` it raises LongCheckError for a batch whose check would take long; nothing has
        changed then, and the caller uses the two steps of kcli.log.append_paths.
        """
        batch, local, rules = _PLAIN, self._local, self._local.rules
        entry = None
        if (
            origin is not AppendOrigin.CLIENT
            or not batch.check(records, records, crc32c)
            or not rules.takes_plain
            or (size := batch.end_position) > rules.max_plain_bytes
            or (max_timestamp := batch.max_timestamp) > now_ms + rules.timestamp_after_max_ms
            or batch.base_timestamp + batch.records.smallest_delta < now_ms - rules.timestamp_before_max_ms
            or (batch.records.null_keys and rules.is_compacted)
            or (batch.producer_id >= 0 and (entry := self._next_in_sequence()) is None)
        ):
            checked = check_carefully(records, self.config, now_ms, origin, is_hurried=is_hurried)
            return append_checked(self, checked, leader_epoch, now_ms, origin, transaction_version)
        first_offset = self.log_end_offset
        delta = batch.last_offset  # its base offset is 0
        last_offset = first_offset + delta
        _BATCH_HEAD.pack_into(records, 0, first_offset, size - LOG_OVERHEAD_BYTES, leader_epoch)
        if leader_epoch != self.leader_epochs.written_epoch and leader_epoch >= 0:
            self.leader_epochs.assign(leader_epoch, first_offset)
        if local.active.must_roll(rules, size, last_offset, max_timestamp, now_ms):
            self.roll(now_ms)
        local.append((records,))
        local.active.add(rules, size, last_offset, max_timestamp)
        producers = self.producers
        producers.map_end_offset = self.log_end_offset = local.end_offset = last_offset + 1
        if entry is not None:
            last_sequence = increment_sequence(batch.base_sequence, delta)
            entry.batches.append(BatchMetadata(last_sequence, last_offset, delta, max_timestamp))
            entry.last_timestamp = max_timestamp
        return LogAppendInfo(
            first_offset, last_offset, max_timestamp, -1, self.log_start_offset, leader_epoch, False, size, delta + 1
        )

    def _next_in_sequence(self) -> ProducerStateEntry | None:
        """Return the producer of the batch in _PLAIN if the batch continues its sequence and no transaction is open."""
        entry = self.producers.producers.get(_PLAIN.producer_id)
        if (
            entry is None
            or entry.producer_epoch != _PLAIN.producer_epoch
            or not entry.batches
            or entry.batches[-1].last_sequence + 1 != _PLAIN.base_sequence
            or entry.current_txn_first_offset is not None
        ):
            return None
        return entry

    def append_as_follower(self, records: memoryview, now_ms: int, leader_epoch: int = INT32_MAX) -> LogAppendInfo:
        """Append a leader's batches with their offsets and epochs, up to the first batch of an epoch above `leader_epoch`.

        Of more bytes than a segment may have, the first batches are appended. Raises AppendError; nothing was appended then.
        """
        return append_replicated(self, records, now_ms, leader_epoch)

    def local_log(self) -> LocalLog:
        """Return the segments, for the modules of kcli.log."""
        return self._local

    # ----------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, min_one_message: bool = True) -> FetchDataInfo:
        """Read from the batch that contains `offset`: at most `max_bytes` of batches below `limit_offset`.

        With `min_one_message` the first batch is returned whole, whatever its size. Raises OffsetOutOfRangeError.
        """
        self.check_readable(offset)
        if offset >= limit_offset or offset == self.log_end_offset or (max_bytes <= 0 and not min_one_message):
            return EMPTY_FETCH
        return self._local.read(offset, max_bytes, limit_offset, min_one_message=min_one_message)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError if `offset` is neither in the log nor its end."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside of [{self.log_start_offset}, {self.log_end_offset}] "
                f"of {self.topic}-{self.partition}"
            )

    def are_in_other_segments(self, offset: int, later_offset: int) -> bool:
        """Return whether `offset` is in an older segment than `later_offset`."""
        return self._local.floor(offset) != self._local.floor(later_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions with records in [start_offset, end_offset)."""
        found: list[AbortedTxn] = []
        local = self._local
        for segment in local.segments[local.floor(start_offset) :]:
            aborted, is_complete = segment.aborted_transactions(local.disk, start_offset, end_offset)
            found += aborted
            if is_complete:
                break
        return found

    def scan_by_time(self, timestamp: int) -> SegmentScan | None:
        """Prepare the search for the first record with a timestamp (ms) of at least `timestamp`; None if there is none."""
        return scan_by_time(self._local, timestamp, self.log_start_offset)

    def scan_for_largest(self) -> SegmentScan | None:
        """Prepare the search for the first record with the largest timestamp; None if no record has a timestamp."""
        return scan_for_largest(self._local)

    # ----------------------------------------------------------------------------------------------------------- rolling

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Close the active segment and begin the next at the log end offset, or at `base_offset` if that is above it."""
        local, base = self._local, max(self.log_end_offset, base_offset or 0)
        if base == local.active.segment.base_offset:
            # An empty segment is full only if segment.index.bytes allows no index entry at all.
            return
        local.roll(base, now_ms, self._jitter())
        self.producers.map_end_offset = base
        snapshot = self.producers.take_snapshot(flushed=False)
        if snapshot is not None:
            local.new_paths[snapshot] = base + 1

    def skip_to(self, offset: int, now_ms: int) -> None:
        """Begin the next segment at `offset`, above the log end: the log that this one copies has no record in between."""
        self.roll(now_ms, offset)
        self._local.end_offset = offset
        self._set_end(offset)

    def _jitter(self) -> int:
        config = self._local.config
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return self._rng.randint(0, bound - 1) if self._rng is not None and bound > 0 else 0

    # ---------------------------------------------------------------------------------------------------------- flushing

    def begin_flush_interval(self, now_ms: int) -> None:
        """Start the interval of flush.ms at `now_ms`, which is on the clock of `needs_flush`."""
        self._flushed_ms = now_ms

    def needs_flush(self, now_ms: int) -> bool:
        """Return whether flush.messages or flush.ms ask for a flush now; if flush.ms does, its interval starts again."""
        if self.committable_offset() < self.log_end_offset:
            return True
        if self.log_end_offset <= self.recovery_point or now_ms - self._flushed_ms < self._local.config.flush_ms:
            return False
        self._flushed_ms = now_ms
        return True

    def committable_offset(self) -> int:
        """Return the end of the records that may be committed: the recovery point while flush.messages asks for a flush."""
        end_offset, flushed = self.log_end_offset, self.recovery_point
        return end_offset if end_offset - flushed < self._local.config.flush_messages else flushed

    def unflushed_paths(self) -> list[str]:
        """Return rolled segments from the recovery point on, then new files and directories, then the active segment.

        If they are flushed in this order, a crash between two flushes leaves no gap (a segment without the one before it), and
        recovery finds the records that are on the device, because file names and topic id are there, too.
        """
        local = self._local
        if self.recovery_point >= self.log_end_offset and not local.new_paths:
            return []
        paths = [segment.log_path for segment in local.segments[local.floor(self.recovery_point) :]]
        return [*paths[:-1], *(path for path in local.new_paths if path not in paths), *paths[-1:]]

    def add_unflushed(self, paths: Iterable[str]) -> None:
        """Add paths to the next flush: files that recovery needs in addition to the segments."""
        self._local.new_paths.update(dict.fromkeys(paths, self.log_end_offset))

    def unflushed_topic_id(self) -> list[str]:
        """Return what to flush so that partition.metadata is on the device: the file and its directories; nothing if it is."""
        metadata = join_path(self.directory, FileKind.PARTITION_METADATA.value)
        return [metadata, self.directory, parent_path(self.directory)] if metadata in self._local.new_paths else []

    @property
    def open_recovery_point(self) -> int:
        """The recovery point as its checkpoint has it while the log is open: one record lower.

        The last entries of a segment's indexes are written when the next segment begins. If all records before it were flushed
        already, only a flush of later ones includes these entries; until then a recovery must not pass the segment over.
        """
        return max(self.recovery_point - 1, min(self.recovery_point, self.log_start_offset))

    def mark_flushed(self, offset: int) -> None:
        """Raise the recovery point to `offset`: the `unflushed_paths` of the time when it was the log end are flushed."""
        self._local.flushed(offset)
        self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    # ---------------------------------------------------------------------------------------------------------- shrinking

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset (DeleteRecords, retention); return whether it has changed.

        Raises OffsetOutOfRangeError above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"cannot raise the log start offset to {offset}: it is above the high watermark, {self.high_watermark}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset, is_written=False)
        self.producers.on_log_start(offset)
        self.on_bounds()
        return True

    def delete_old_segments(self, now_ms: int, most: int | None = None) -> list[str]:
        """Apply retention to at most `most` segments: rename their files to `*.deleted` and return the new paths.

        The caller removes the files later. The list is empty if retention has nothing (more) to delete.
        """
        local = self._local
        deletable = breached_segments(local, self.high_watermark, self.log_start_offset, now_ms, most)
        if not deletable:
            return []
        if len(deletable) == len(local.segments):
            self.roll(now_ms)
        following = local.bases[len(deletable)]
        if following > self.log_start_offset:
            self.maybe_increment_log_start_offset(following)
        renamed = local.remove_segments(deletable)
        self.leader_epochs.segments_gone(following)
        return [*renamed, *self._set_aside_snapshots([segment.base_offset for segment in deletable])]

    def segment_in_future(self, now_ms: int) -> tuple[LogSegment, int] | None:
        """Return the oldest segment and its largest timestamp if that is in the future and retention.ms waits for it.

        The active segment does not count: a clock of a producer may be a little ahead. Raises OSError.
        """
        local = self._local
        if not local.config.is_retained or local.config.retention_ms < 0 or len(local.segments) < 2:
            return None
        oldest = local.segments[0]
        timestamp = largest_timestamp(local, oldest)
        return (oldest, timestamp) if timestamp > now_ms else None

    def _set_aside_snapshots(self, offsets: list[int]) -> list[str]:
        renamed = [path for path in map(self.producers.set_aside_snapshot, offsets) if path is not None]
        for path in renamed:
            self._local.new_paths.pop(path.removesuffix(FileState.DELETED.value), None)
        return renamed

    def replace_segments(self, news: Sequence[tuple[int, int]], olds: Sequence[LogSegment]) -> list[str]:
        """Replace segments by cleaned ones (see LocalLog.replace_segments); return the paths of the files to remove."""
        bases = [old.base_offset for old in olds]
        renamed = self._local.replace_segments(news, olds)
        return [*renamed, *self._set_aside_snapshots([base for base in bases if base not in self._local.bases])]

    def truncate_to(self, offset: int, now_ms: int) -> list[str]:
        """Remove all records from `offset` on; return the paths of the files that were renamed to `*.deleted`."""
        local = self._local
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            return []
        if offset < local.bases[0]:
            return self.truncate_fully_and_start_at(offset, now_ms)
        before = local.bases[:]
        renamed = local.truncate_to(offset, now_ms)
        renamed += self._set_aside_snapshots([base for base in before if base not in local.bases])
        self.leader_epochs.truncate_from_end(offset)
        self._set_end(offset)
        self.log_start_offset = min(offset, self.log_start_offset)
        local.rebuild_producers(self.producers, self.log_start_offset)
        self._forget_snapshots()
        self.update_high_watermark(self.high_watermark)
        self.on_bounds()
        return renamed

    def _forget_snapshots(self) -> None:
        """Drop removed snapshots from the paths to flush."""
        existing, new_paths = set(self.producers.snapshots.values()), self._local.new_paths
        suffix = "." + FileKind.PRODUCER_SNAPSHOT.value
        for path in [path for path in new_paths if path.endswith(suffix) and path not in existing]:
            del new_paths[path]

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> list[str]:
        """Remove all records and begin at `offset`; return the paths of the files that were renamed to `*.deleted`."""
        renamed = self._local.truncate_fully_and_start_at(offset, now_ms, self._jitter())
        self.leader_epochs.clear()
        self.producers.truncate_fully(offset)
        self._forget_snapshots()
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self._set_end(offset)
        self.high_watermark = offset
        self.on_bounds()
        return renamed

    def _set_end(self, offset: int) -> None:
        self.truncation_count += offset < self.log_end_offset
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, offset)

    # ----------------------------------------------------------------------------------------------------------- closing

    def close(self, *, is_epoch_file_written: bool = True) -> list[str]:
        """Write pending index entries, trim the indexes, take a producer snapshot and close the files.

        Return the paths that must be flushed before the log counts as cleanly closed. Without `is_epoch_file_written` the
        caller writes the leader epochs.
        """
        changed = self._local.close()
        if is_epoch_file_written:
            self.leader_epochs.catch_up()
        self.producers.map_end_offset = self.log_end_offset
        snapshot = self.producers.take_snapshot(flushed=False)
        return [*self.unflushed_paths(), *changed, *([] if snapshot is None else [snapshot, self.directory])]

    def close_files(self) -> None:
        """Close the files and change nothing: the directory will be renamed, or has failed."""
        self._local.close_files()

    def move(self, directory: str) -> None:
        """Follow a rename of the partition's directory to `directory`."""
        self._local.move(directory)
        self.producers.move(directory)
        self.leader_epochs.move_to(self._local.disk, directory)


Predicate = Callable[[LogSegment, LogSegment | None], bool]


def _nothing() -> None:
    """Do nothing: no part of the broker uses the bounds."""


def breached_segments(
    local: LocalLog, high_watermark: int, log_start_offset: int, now_ms: int, most: int | None = None
) -> list[LogSegment]:
    """Return at most `most` segments to delete now, the oldest first. Raises OSError."""
    found: list[LogSegment] = []
    for predicate in _predicates(local, log_start_offset, now_ms):
        # Each predicate continues at the first segment that the one before has kept.
        left = None if most is None else most - len(found)
        found += islice(_deletable(local, high_watermark, predicate, len(found)), left)
    return found


def _predicates(local: LocalLog, log_start_offset: int, now_ms: int) -> Iterator[Predicate]:
    config = local.config
    yield lambda segment, following: following is not None and following.base_offset <= log_start_offset
    if not config.is_retained:
        return
    if config.retention_bytes >= 0:
        excess = sum(segment.size_bytes for segment in local.segments) - config.retention_bytes
        ends = _ends(local)
        yield lambda segment, following: excess - ends[segment.base_offset] >= 0
    if config.retention_ms >= 0:
        yield lambda segment, following: now_ms - largest_timestamp(local, segment) > config.retention_ms


def _ends(local: LocalLog) -> dict[int, int]:
    """Return by base offset the size of all segments up to and including this one."""
    ends: dict[int, int] = {}
    total = 0
    for segment in local.segments:
        total += segment.size_bytes
        ends[segment.base_offset] = total
    return ends


def _deletable(local: LocalLog, high_watermark: int, predicate: Predicate, start: int) -> Iterator[LogSegment]:
    segments = local.segments
    for at in range(start, len(segments)):
        segment = segments[at]
        following = segments[at + 1] if at + 1 < len(segments) else None
        end_offset = local.end_offset if following is None else following.base_offset
        is_empty_active = following is None and not segment.size_bytes
        if high_watermark < end_offset or is_empty_active or not predicate(segment, following):
            return
        yield segment
