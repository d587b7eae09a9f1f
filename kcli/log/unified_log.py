"""The log of one partition, live: append, read, roll, cut, close (Kafka: UnifiedLog).

    offset               meaning
    -------------------  ------------------------------------------------------------------------------------------------
    log_start_offset     the first that may be read; raised by retention and DeleteRecords
    recovery_point       all below is on the device; a recovery begins there
    high_watermark       all below is committed: what consumers may read; never below the start, never behind the end
    last_stable_offset   all below is decided: what consumers of isolation read_committed may read
    log_end_offset       the offset that the next record gets

    an append                                                                              module
    -------------------------------------------------------------------------------------  -------------------------------
    checks the batch: size, magic, CRC, counts                                             kcli.log.log_validator
    checks its records: do they parse, timestamps, keys; another codec, LogAppendTime      kcli.log.record_validator
    checks its producer: duplicates, gaps, epochs                                          kcli.log.producer_checks
    patches base offset and leader epoch, which lie before the CRC's range, in place
    rolls the segment where need be, writes with one call, adds index entries              kcli.log.local_log
    then moves the log end, the producer's state, the transaction index

Where a check fails nothing has changed. Nothing is flushed here: `needs_flush` tells whether the topic wants it now,
`unflushed_paths` what a flush has to take, and `mark_flushed` is called when it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Protocol

from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn
from kcli.format.kafka_uuid import Uuid
from kcli.format.plain_batch import PlainBatch
from kcli.format.primitives import crc32c
from kcli.format.record_batch import LOG_OVERHEAD_BYTES, increment_sequence
from kcli.log.append_errors import OffsetOutOfRangeError
from kcli.log.append_paths import append_checked, append_replicated, check_carefully
from kcli.log.disk.port import join_path
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LogConfig
from kcli.log.log_segment import LogSegment
from kcli.log.log_slices import EMPTY_SLICE, AppendInfo, LogSlice
from kcli.log.log_validator import AppendOrigin
from kcli.log.producer_state_manager import BatchMetadata, ProducerStateEntry, ProducerStateManager
from kcli.log.retention import breached_segments
from kcli.log.time_lookup import SegmentScan, scan_by_time, scan_for_largest

_BATCH_HEAD = Struct(">qii")  # The batch that was read last; one for all logs, which are used by one thread.
_PLAIN = PlainBatch()


class Dice(Protocol):
    """A source of random numbers, which `random.Random` is."""

    def randint(self, a: int, b: int) -> int:
        """A number from a to b, both included."""
        ...


class UnifiedLog:
    """One partition's log, made by kcli.log.log_opener.open_log. Methods raise OSError as the disk does.

    After an OSError its log directory counts as failed (Kafka: KafkaStorageException), but for a full disk, which leaves
    the log as it was.
    """

    __slots__ = (
        "_flushed_ms",
        "_local",
        "_rng",
        "cleaned_offset",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
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
        rng: Dice | None = None,
    ) -> None:
        self._local = local
        self._rng = rng
        self._flushed_ms = now_ms
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = local.end_offset
        self.recovery_point = recovery_point
        self.high_watermark = log_start_offset
        self.cleaned_offset: int | None = None  # up to where the cleaner has been, None for nowhere

    def __repr__(self) -> str:
        return f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    # ----------------------------------------------------------------------------------------------------- what there is

    @property
    def directory(self) -> str:
        """The path of the partition's directory."""
        return self._local.directory

    def path(self, name: str) -> str:
        """The path of a file of the partition's directory."""
        return join_path(self._local.directory, name)

    @property
    def config(self) -> LogConfig:
        """The topic's settings; they may be set anew at any time."""
        return self._local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Go by other settings from now on."""
        self._local.config = config

    @property
    def last_stable_offset(self) -> int:
        """All below is decided."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size_bytes for segment in self._local.segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._local.segments)

    @property
    def first_base_offset(self) -> int:
        """Where the first segment begins: at the log start offset or before it."""
        return self._local.bases[0]

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins."""
        return self._local.bases[-1]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """Where each segment begins, ascending."""
        return tuple(self._local.bases)

    def offset_lag(self, offset: int) -> int:
        """How far `offset` is behind the log end (Kafka: DescribeLogDirs)."""
        return max(0, self.log_end_offset - offset)

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark; it is kept within [log start offset, log end offset]."""
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
    ) -> AppendInfo:
        """Check a batch, give it offsets and append it; `records` is writable and patched in place.

        Raises AppendError; where the caller `is_hurried`, LongCheckError for a batch whose check would take long: nothing has
        happened then, and kcli.log.append_paths checks and appends it in two steps.
        """
        batch, local, rules = _PLAIN, self._local, self._local.rules
        entry = None
        if (
            origin is not AppendOrigin.CLIENT
            or not batch.read(records, records, crc32c)
            or not rules.takes_plain
            or (size := batch.size_bytes) > rules.max_plain_bytes
            or (max_timestamp := batch.max_timestamp) > now_ms + rules.timestamp_after_max_ms
            or batch.smallest_timestamp < now_ms - rules.timestamp_before_max_ms
            or (batch.null_keys and rules.is_compacted)
            or (batch.producer_id >= 0 and (entry := self._next_in_sequence()) is None)
        ):
            checked = check_carefully(records, self.config, now_ms, origin, is_hurried=is_hurried)
            return append_checked(self, checked, leader_epoch, now_ms, origin, transaction_version)
        first_offset = self.log_end_offset
        delta = batch.last_offset_delta
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
        return AppendInfo(
            first_offset, last_offset, max_timestamp, -1, self.log_start_offset, leader_epoch, False, size, delta + 1
        )

    def _next_in_sequence(self) -> ProducerStateEntry | None:
        """The producer of the plain batch at hand, where the batch continues its sequence and nothing else is to be done."""
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

    def append_as_follower(self, records: memoryview, now_ms: int, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append batches that have their offsets and leader epochs; those of epochs above `leader_epoch` are left out.

        Raises AppendError; then nothing was appended.
        """
        return append_replicated(self, records, now_ms, leader_epoch)

    def local_log(self) -> LocalLog:
        """The segments, for the modules of this room."""
        return self._local

    # ----------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, min_one_message: bool = True) -> LogSlice:
        """Bytes from the batch that holds `offset` on, at most `max_bytes`, of batches below `limit_offset`.

        With `min_one_message` the first batch comes whole, however large. Raises OffsetOutOfRangeError.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside of [{self.log_start_offset}, {self.log_end_offset}] "
                f"of {self.topic}-{self.partition}"
            )
        if offset >= limit_offset or offset == self.log_end_offset or (max_bytes <= 0 and not min_one_message):
            return EMPTY_SLICE
        return self._local.read(offset, max_bytes, limit_offset, min_one_message=min_one_message)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [start_offset, end_offset)."""
        found: list[AbortedTxn] = []
        local = self._local
        for segment in local.segments[local.floor(start_offset) :]:
            aborted, is_complete = segment.aborted_transactions(local.disk, start_offset, end_offset)
            found += aborted
            if is_complete:
                break
        return found

    def scan_by_time(self, timestamp: int) -> SegmentScan | None:
        """How to find the first record with a timestamp (ms) of at least that, None where there is none."""
        return scan_by_time(self._local, timestamp, self.log_start_offset)

    def scan_for_largest(self) -> SegmentScan | None:
        """How to find the first record with the largest timestamp, None where no record has one."""
        return scan_for_largest(self._local)

    # ----------------------------------------------------------------------------------------------------------- rolling

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Close the active segment and begin the next at the log end offset, or at `base_offset` behind it."""
        local, base = self._local, max(self.log_end_offset, base_offset or 0)
        if base == local.active.segment.base_offset:
            # Nothing is in it; only an index of no entries at all (segment.index.bytes) makes it full.
            return
        local.roll(base, now_ms, self._jitter())
        self.producers.map_end_offset = base
        snapshot = self.producers.take_snapshot(flushed=False)
        if snapshot is not None:
            local.new_paths[snapshot] = base + 1

    def _jitter(self) -> int:
        config = self._local.config
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return self._rng.randint(0, bound - 1) if self._rng is not None and bound > 0 else 0

    # ---------------------------------------------------------------------------------------------------------- flushing

    def begin_flush_interval(self, now_ms: int) -> None:
        """Count flush.ms from now on, by the time that `needs_flush` is given."""
        self._flushed_ms = now_ms

    def needs_flush(self, now_ms: int, *, by_time: bool = True) -> bool:
        """Whether flush.messages or flush.ms of the topic want a flush now; the time counts from here on when they do.

        An append looks at the messages alone, as in Kafka: the time is for who looks from time to time.
        """
        config, unflushed = self._local.config, self.log_end_offset - self.recovery_point
        if unflushed >= config.flush_messages:
            return True
        if not by_time or unflushed <= 0 or now_ms - self._flushed_ms < config.flush_ms:
            return False
        self._flushed_ms = now_ms
        return True

    def unflushed_paths(self) -> list[str]:
        """The rolled segments from the recovery point on, files and directories that are new, then the active segment.

        In this order a crash between two of them leaves no hole (a segment's name without what lies before it), and records
        that are on the device can be found: with their names, and the topic's id.
        """
        local = self._local
        if self.recovery_point >= self.log_end_offset and not local.new_paths:
            return []
        paths = [segment.log_path for segment in local.segments[local.floor(self.recovery_point) :]]
        return [*paths[:-1], *(path for path in local.new_paths if path not in paths), *paths[-1:]]

    def add_unflushed(self, paths: Iterable[str]) -> None:
        """Have the next flush see these paths, too: what the log's directory needs besides to be found after a crash."""
        self._local.new_paths.update(dict.fromkeys(paths, self.log_end_offset))

    def mark_flushed(self, offset: int) -> None:
        """What `unflushed_paths` gave when `offset` was the log end is on the device: the recovery point moves there."""
        self._local.flushed(offset)
        self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    # ---------------------------------------------------------------------------------------------------------- shrinking

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset (DeleteRecords, retention) -> whether it rose.

        Raises OffsetOutOfRangeError above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(f"the log start offset cannot be {offset}: the high watermark is {self.high_watermark}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset, is_written=False)
        self.producers.on_log_start(offset)
        return True

    def delete_old_segments(self, now_ms: int, most: int | None = None) -> list[str]:
        """Apply retention: take segments out, at most so many, rename their files to `*.deleted` -> the new paths.

        They are to be removed later. None are left where there is nothing more to take out.
        """
        local = self._local
        doomed = breached_segments(local, self.high_watermark, self.log_start_offset, now_ms, most)
        if not doomed:
            return []
        if len(doomed) == len(local.segments):
            self.roll(now_ms)
        following = local.bases[len(doomed)]
        if following > self.log_start_offset:
            self.maybe_increment_log_start_offset(following)
        renamed = local.remove_segments(doomed)
        self.leader_epochs.segments_gone(following)
        return [*renamed, *self._set_aside_snapshots([gone.base_offset for gone in doomed])]

    def _set_aside_snapshots(self, offsets: list[int]) -> list[str]:
        renamed = [path for path in map(self.producers.set_aside_snapshot, offsets) if path is not None]
        for path in renamed:
            self._local.new_paths.pop(path.removesuffix(FileState.DELETED.value), None)
        return renamed

    def replace_segments(self, news: Sequence[tuple[int, int]], olds: Sequence[LogSegment]) -> list[str]:
        """Put cleaned segments in the place of others; see LocalLog.replace_segments -> the paths of files to be removed."""
        bases = [old.base_offset for old in olds]
        renamed = self._local.replace_segments(news, olds)
        return [*renamed, *self._set_aside_snapshots([base for base in bases if base not in self._local.bases])]

    def truncate_to(self, offset: int, now_ms: int) -> list[str]:
        """Cut everything from `offset` on -> the paths of files that were renamed to `*.deleted`."""
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
        return renamed

    def _forget_snapshots(self) -> None:
        """Have no flush look for snapshots that were removed."""
        standing, new_paths = set(self.producers.snapshots.values()), self._local.new_paths
        suffix = "." + FileKind.PRODUCER_SNAPSHOT.value
        for path in [path for path in new_paths if path.endswith(suffix) and path not in standing]:
            del new_paths[path]

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> list[str]:
        """Drop everything and begin at `offset` -> the paths of files that were renamed to `*.deleted`."""
        renamed = self._local.start_anew(offset, now_ms, self._jitter())
        self.leader_epochs.clear()
        self.producers.truncate_fully(offset)
        self._forget_snapshots()
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self._set_end(offset)
        self.high_watermark = offset
        return renamed

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, offset)

    # ----------------------------------------------------------------------------------------------------------- closing

    def close(self) -> list[str]:
        """Write what waits, cut the indexes to their entries, save the producers and give the files back.

        -> the files that no flush has seen, and which must be flushed before the log counts as cleanly closed.
        """
        changed = self._local.close()
        self.leader_epochs.catch_up()
        self.producers.map_end_offset = self.log_end_offset
        snapshot = self.producers.take_snapshot(flushed=False)
        return [*self.unflushed_paths(), *changed, *([] if snapshot is None else [snapshot, self.directory])]

    def close_files(self) -> None:
        """Give the files back and nothing else: the directory is about to be renamed, or has failed."""
        self._local.close_files()

    def move(self, directory: str) -> None:
        """The partition's directory was renamed to `directory`."""
        self._local.move(directory)
        self.producers.move(directory)
        self.leader_epochs.move_to(self._local.disk, directory)
