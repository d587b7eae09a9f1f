"""Load the log of a partition when a broker starts: complete interrupted work, recover segments, load the producer state.

    step                          files (Kafka: LogLoader.load)
    ----------------------------  --------------------------------------------------------------------------------------
    1  remove leftovers           *.deleted (but not of KRaft snapshots); *.cleaned; *.swap from the lowest *.cleaned on
    2  finish swaps               every file with an offset from the lowest .log.swap to the end of the highest is removed,
                                  then each *.swap loses its suffix
    3  load the segments          indexes without their .log are removed; a segment without .index, or with an invalid
                                  .txnindex, is recovered
    4  recover                    unless shut down cleanly: the segment of the recovery point and all later ones; if one is
                                  cut, all later ones are removed. A segment whose offsets overflow its indexes is split
    5  apply the log start offset a log that ends before it is emptied
    6  leader epochs              truncated to [log start offset, log end offset)
    7  producers                  snapshots not at the start of a segment are removed, except the last one; the state is
                                  loaded from the last remaining snapshot, or read from the batches, and saved at the log
                                  end offset

Recovering a segment needs the producers at its base offset: snapshots above it are removed, the last remaining one is loaded,
the batches from there on are read. A recovery therefore writes a snapshot for each segment; step 7 keeps those at the start of
a segment.

On a PlannedDisk `load_log` only plans: kcli.log.disk.file_changes applies its `changes()`. On a LiveDisk, at a broker's start,
it changes the files (kcli.log.disk.load_disk). It does what Kafka does, not what would be best; LogRefusedError is raised where
Kafka fails to load the log. There are two deliberate differences: producers do not expire, and *.deleted files do not wait for
file.delete.delay.ms. A broker of kcli differs in three more (LoadSettings.is_broker).

With `is_broker` the mark of a clean stop counts only if the files agree with it. If the last entry of the last `.index` is not
of a batch of its segment, if bytes follow the last batch, or if a snapshot, a leader epoch or a checkpoint is above the log end
offset, a file was cut, emptied or put back after the stop: the last segment is recovered, as after a crash. Kafka believes the
mark. It appends behind bytes that are not a batch, or at an offset that the index has at another position, so that records
which it has acknowledged cannot be read.

The producer state up to an offset is made from the last snapshot and the batches after it.

snapshots                          action (Kafka: UnifiedLog.rebuildProducerState)
---------------------------------  ----------------------------------------------------------------------------------
none, after a clean shutdown       no batch is read: the state is empty, with snapshots at the starts of the last two
                                   segments and at the offset (for logs older than snapshots)
some, or after an unclean one      those outside (log start, offset] are removed, the last remaining one is loaded, the
                                   batches from it on are applied; snapshots are taken at the starts of the last two
                                   segments and at the offset
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kcli.format import limits
from kcli.format.file_names import FileKind, FileName, FileState, parse_file_name, segment_file_name
from kcli.format.metadata_files import decode_partition_metadata
from kcli.format.primitives import INT32_MAX, CorruptIndexError, FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.load_disk import LoadDisk
from kcli.log.disk.planned_disk import slice_content
from kcli.log.disk.port import join_path
from kcli.log.files.indexes import IndexAppender, IndexSettings
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache, load_leader_epochs
from kcli.log.loading.leftovers import finish_leftovers_in_slices
from kcli.log.loading.recovering_segment import (
    LogRefusedError,
    MissingIndexError,
    OffsetOverflowError,
    OffsetsGoBackError,
    RecoveringSegment,
    refusing,
)
from kcli.log.loading.recovery_journal import LoadJournal, Truncation
from kcli.log.producer_state_manager import CompletedTxn, ProducerAppendInfo, ProducerStateManager
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.slices import Slices, finish

_INDEX_KINDS = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
_Result = TypeVar("_Result")
# A batch takes up to 20 microseconds.
BATCHES_PER_SLICE = 256


def rebuild_producer_state(
    producers: ProducerStateManager,
    segments: Mapping[int, RecoveringSegment],
    log_start_offset: int,
    end_offset: int,
) -> None:
    """Bring `producers` to `end_offset`; `segments` by base offset, ascending. Raises LogRefusedError and OSError."""
    finish(rebuild_in_slices(producers, segments, log_start_offset, end_offset))


def rebuild_in_slices(
    producers: ProducerStateManager,
    segments: Mapping[int, RecoveringSegment],
    log_start_offset: int,
    end_offset: int,
    *,
    reload_from_clean_shutdown: bool = False,
) -> Slices[None]:
    """Do the same in slices, for a broker that starts."""
    bases = list(segments)
    to_snapshot = [*bases[-2:], end_offset]
    if reload_from_clean_shutdown and not producers.snapshots:
        for offset in to_snapshot:
            producers.map_end_offset = offset
            producers.take_snapshot()
        return
    was_empty = producers.is_empty and producers.map_end_offset >= end_offset
    producers.truncate_and_reload(log_start_offset, end_offset)
    if end_offset > producers.map_end_offset and not was_empty:
        last = max((base for base in bases if base <= end_offset), default=None)
        for base in _bases_between(bases, producers.map_end_offset, end_offset):
            segment = segments[base]
            start_offset = max(base, producers.map_end_offset, log_start_offset)
            producers.map_end_offset = start_offset
            if base in to_snapshot:
                producers.take_snapshot()
            end_position = segment.size_bytes
            if base == last:
                found = segment.translate_offset(end_offset)
                end_position = end_position if found is None else found.position
            start = segment.translate_offset(start_offset)
            if start is not None:
                yield from _apply_batches(producers, segment, start.position, end_position)
    producers.map_end_offset = end_offset
    producers.take_snapshot()


def _bases_between(bases: list[int], start_offset: int, end_offset: int) -> list[int]:
    """Return the segments that may have offsets of [start, end)."""
    floor = max((base for base in bases if base <= start_offset), default=-(2**63))
    return [base for base in bases if floor <= base < end_offset]


def _apply_batches(
    producers: ProducerStateManager, segment: RecoveringSegment, position: int, end_position: int
) -> Slices[None]:
    """Apply bytes [position, end_position); the producers are updated after the last batch."""
    if end_position < position:
        raise LogRefusedError("the offsets of the segment do not rise", segment.log_path, end_position, segment.size_bytes)
    infos: dict[int, ProducerAppendInfo] = {}
    completed: list[CompletedTxn] = []
    scanner = RecordScanner(16)
    try:
        for number, batch in enumerate(segment.batches(position, end_position), 1):
            header = batch.header
            if number % BATCHES_PER_SLICE == 0:
                yield
            if not isinstance(header, RecordBatch) or not header.has_producer:
                continue
            info = infos.get(header.producer_id)
            if info is None:
                info = infos[header.producer_id] = producers.prepare_update(header.producer_id)
            with refusing(segment, batch):
                ended = info.append(header, batch.read_marker(scanner) if header.is_control else None)
            if ended is not None:
                completed.append(ended)
    except LogRefusedError:
        raise
    except FormatError as error:
        raise LogRefusedError(error.message, segment.log_path, error.position, segment.size_bytes) from error
    for info in infos.values():
        producers.update(info)
    for txn in completed:
        try:
            producers.complete(txn)
        except FormatError as error:
            raise LogRefusedError(error.message, segment.log_path, position, end_position) from error


class LoadSettings(NamedTuple):
    """How a log is loaded; the offsets are those in the checkpoint files of its log directory, 0 if they have none.

    `known_end` is the highest of them that the log has reached. With `is_broker` the producers read from the last segment keep
    five batches each, of which a snapshot has only the last. Kafka continues from the snapshot, and does not detect duplicates
    of a client's older batches in flight. And a batch with a torn offset is removed alone, not with its segment
    (RecoveringSegment.recover). And the mark of a clean stop is compared with the files.
    """

    had_clean_shutdown: bool = False
    log_start_offset: int = 0
    recovery_point: int = 0
    indexes: IndexSettings = IndexSettings()
    is_broker: bool = False
    known_end: int = 0


class LoadedLog(NamedTuple):
    """A loaded log; `segments` are base offsets.

    `recovery_point` is the offset below which it is on the device, `cut_segments` are the base offsets of segments that lost
    bytes or were removed.
    """

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    segments: tuple[int, ...]
    cut_segments: tuple[int, ...]
    producers: ProducerStateManager
    epochs: LeaderEpochFileCache


def load_log(disk: LoadDisk, directory: str, settings: LoadSettings = LoadSettings()) -> LoadedLog:  # noqa: B008
    """Load the log of a partition's directory as Kafka does; the changes are made on `disk`.

    Raises LogRefusedError where Kafka fails to load it, and OSError.
    """
    return finish(load_log_in_slices(disk, directory, settings))


def load_log_in_slices(
    disk: LoadDisk, directory: str, settings: LoadSettings, journal: LoadJournal | None = None
) -> Slices[LoadedLog]:
    """Do the same in slices, for a broker; `journal` is called before each removal."""
    return _LogLoader(disk, directory, settings, journal or LoadJournal()).load()


class _LogLoader:
    """All steps; `segments` by base offset, ascending."""

    def __init__(self, disk: LoadDisk, directory: str, settings: LoadSettings, journal: LoadJournal) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.journal = journal
        self.segments: dict[int, RecoveringSegment] = {}
        self.cut_segments: list[int] = []
        self.recovered: ProducerStateManager | None = None  # of the segment that was recovered last
        # For a broker, the next offset after each segment that has not changed since its recovery: it need not be read again.
        self._next_offsets: dict[int, int] = {}
        self.epochs = LeaderEpochFileCache()

    def load(self) -> Slices[LoadedLog]:
        """Execute all steps of the load."""
        epochs_path = join_path(self.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        self.disk.explain(epochs_path, "the leader epochs are those of the batches")
        try:
            self.epochs = load_leader_epochs(self.disk, self.directory)
        except FormatError as error:
            raise LogRefusedError(error.message, epochs_path) from error
        names = self.disk.list_directory(self.directory)
        self._check_snapshot_names(names)
        self.journal.begin(self.disk, names)
        yield from finish_leftovers_in_slices(self.disk, self.directory, self.settings.indexes, self.journal)
        yield from self._retry_on_overflow(self._load_segments)
        log_end_offset, recovery_point = yield from self._retry_on_overflow(self._recover_log)
        loaded = yield from self._finish(log_end_offset, recovery_point)
        self._check_partition_metadata()
        return loaded

    def _check_snapshot_names(self, names: Iterable[str]) -> None:
        for name in names:
            path = join_path(self.directory, name)
            parsed = parse_file_name(name)
            if parsed.kind is FileKind.PRODUCER_SNAPSHOT and parsed.state is FileState.CURRENT and parsed.base_offset is None:
                raise LogRefusedError("the name of this snapshot has no offset", path)

    def _check_partition_metadata(self) -> None:
        path = join_path(self.directory, FileKind.PARTITION_METADATA.value)
        if not self.disk.exists(path):
            return
        try:
            decode_partition_metadata(self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES))
        except FormatError as error:
            raise LogRefusedError(error.message, path) from error

    def _producer_state_manager(self) -> ProducerStateManager:
        return ProducerStateManager(self.disk, self.directory, self.disk.explain, on_damaged=self.journal.damaged)

    # -------------------------------------------------------------------------------------------------- 3: the segments

    def _load_segments(self) -> Slices[None]:
        self.segments.clear()
        for name in self.disk.list_directory(self.directory):
            path = join_path(self.directory, name)
            file = parse_file_name(name)
            if file.state is not FileState.CURRENT or not self.disk.is_regular(path):
                continue
            if file.kind in _INDEX_KINDS:
                self._drop_orphan(file, path)
            elif file.kind is FileKind.LOG:
                if file.base_offset is None:
                    raise LogRefusedError("the name of this segment has no offset", path)
                yield from self._load_segment(file.base_offset)

    def _drop_orphan(self, file: FileName, path: str) -> None:
        if file.base_offset is None:
            raise LogRefusedError("the name of this index has no offset", path)
        segment_path = join_path(self.directory, segment_file_name(file.base_offset, FileKind.LOG))
        if not self.disk.exists(segment_path) and self.disk.exists(path):
            self.journal.orphan(path)
            self.disk.explain(path, "its segment is missing")
            self.disk.remove(path)

    def _load_segment(self, base_offset: int) -> Slices[None]:
        segment = self._open(base_offset)
        has_time_index = self.disk.exists(segment.time_index_path)
        try:
            segment.sanity_check(has_time_index=has_time_index)
        except (MissingIndexError, CorruptIndexError) as error:
            if isinstance(error, CorruptIndexError):
                self.journal.damaged(segment.transaction_index_path, error.message)
            elif self.settings.had_clean_shutdown or base_offset < self.settings.recovery_point:
                self.journal.lost_index(segment.offset_index_path)
            yield from self._recover_segment_or_refuse(segment)
        self._add(segment)

    def _open(self, base_offset: int) -> RecoveringSegment:
        return RecoveringSegment(self.disk, self.directory, base_offset, self.settings.indexes, self.disk.explain)

    def _add(self, segment: RecoveringSegment) -> None:
        self.segments[segment.base_offset] = segment
        self.segments = dict(sorted(self.segments.items()))

    def _recover_segment(self, segment: RecoveringSegment, later: Sequence[RecoveringSegment] | None = None) -> Slices[int]:
        """Recover one segment; return the number of bytes cut off. A cut removes the segments `later`; None: they are kept."""

        def before_cut(position: int, next_offset: int, why: str) -> Slices[None]:
            yield from self._before_cut(Truncation(segment, position, next_offset, why), later)

        self.journal.recovering(segment)
        producers = self._producer_state_manager()
        log_start_offset = self.settings.log_start_offset
        yield from rebuild_in_slices(producers, self.segments, log_start_offset, segment.base_offset)
        keeps_order = self.settings.is_broker
        recovering = segment.recover(producers, self.epochs, keeps_order=keeps_order, before_cut=before_cut)
        truncated_bytes, _, next_offset = yield from recovering
        # So that recovering the next segment need not read this one again.
        producers.take_snapshot()
        self.recovered = producers
        segment.close()
        if self.settings.is_broker:
            self._next_offsets[segment.base_offset] = next_offset
        if truncated_bytes:
            self.cut_segments.append(segment.base_offset)
        return truncated_bytes

    def _before_cut(self, cut: Truncation, later: Sequence[RecoveringSegment] | None) -> Slices[None]:
        next_base = None
        if later is None:
            files = (parse_file_name(name) for name in self.disk.list_directory(self.directory))
            bases = (file.base_offset for file in files if file.kind is FileKind.LOG and file.state is FileState.CURRENT)
            next_base = min((base for base in bases if base is not None and base > cut.segment.base_offset), default=None)
        yield from self.journal.cut(cut, later or (), next_base)

    def _recover_segment_or_refuse(self, segment: RecoveringSegment) -> Slices[None]:
        try:
            yield from self._recover_segment(segment)
        except OffsetsGoBackError as error:
            raise LogRefusedError(error.message, segment.log_path, error.position, error.end_position) from error

    # -------------------------------------------------------------------------------------------------- 4, 5: recovering

    def _recover_log(self) -> Slices[tuple[int, int]]:
        """Recover the segments that may not be on the device; return the log end offset and the recovery point."""
        settings = self.settings
        if settings.had_clean_shutdown and settings.is_broker and self.segments and (why := self._contradiction()):
            self.journal.contradicted(self.directory, why)
            # What was written before the last segment was flushed long ago.
            recovery_point = max(settings.recovery_point, self._active.base_offset)
            self.settings = settings._replace(had_clean_shutdown=False, recovery_point=recovery_point)
        if not self.settings.had_clean_shutdown:
            yield from self._recover_segments()
        log_end_offset = yield from self._empty_if_it_ends_before_its_start()
        if not self.segments:
            self._add(self._open(self.settings.log_start_offset))
        if log_end_offset is not None and self.settings.had_clean_shutdown:
            return log_end_offset, log_end_offset
        if log_end_offset is None:
            log_end_offset = self._active.read_next_offset()
        return log_end_offset, min(self.settings.recovery_point, log_end_offset)

    def _contradiction(self) -> str:
        """Return which file cannot be of a clean stop at the end of the log, and why; "" if all can."""
        active = self._active
        try:
            end_offset = active.read_clean_end()
        except FormatError as error:
            return f"{active.log_path}: {error.message}"
        names = map(parse_file_name, self.disk.list_directory(self.directory))
        snapshots = (name.base_offset or 0 for name in names if name.kind is FileKind.PRODUCER_SNAPSHOT)
        epochs = (entry.start_offset for entry in self.epochs.entries)
        witnesses = (
            ("a checkpoint of the log directory", self.settings.known_end),
            ("the name of a snapshot", max(snapshots, default=0)),
            (FileKind.LEADER_EPOCH_CHECKPOINT.value, max(epochs, default=0)),
        )
        above = [f"{what} has offset {offset}" for what, offset in witnesses if offset > end_offset]
        return f"{active.log_path} ends at offset {end_offset}, and {' and '.join(above)}" if above else ""

    @property
    def _active(self) -> RecoveringSegment:
        return self.segments[max(self.segments)]

    def _recover_segments(self) -> Slices[None]:
        recovery_point = self.settings.recovery_point
        first = max((base for base in self.segments if base <= recovery_point), default=-(2**63))
        unflushed = [segment for base, segment in self.segments.items() if base >= first]
        for at, segment in enumerate(unflushed):
            later = unflushed[at + 1 :]
            try:
                truncated_bytes = yield from self._recover_segment(segment, later)
            except OffsetsGoBackError as error:
                truncated_bytes = yield from self._empty_segment(segment, error, later)
            if truncated_bytes:
                self._delete_segments(later, "the segment before it was cut: the log would have a gap")
                return

    def _empty_segment(
        self, segment: RecoveringSegment, error: OffsetsGoBackError, later: Sequence[RecoveringSegment]
    ) -> Slices[int]:
        """Cut a segment whose offsets go back at its base offset; return the number of bytes cut."""
        found = segment.translate_offset(segment.base_offset)
        if found is not None:
            yield from self._before_cut(Truncation(segment, found.position, segment.base_offset, error.message), later)
        self._next_offsets.pop(segment.base_offset, None)
        truncated_bytes = segment.truncate_to(segment.base_offset)
        segment.close()
        self.cut_segments.append(segment.base_offset)
        return truncated_bytes

    def _delete_segments(self, segments: Iterable[RecoveringSegment], why: str) -> None:
        producers = self._producer_state_manager()
        for segment in segments:
            self.cut_segments.append(segment.base_offset)
            del self.segments[segment.base_offset]
            self._next_offsets.pop(segment.base_offset, None)
            for path in segment.paths:
                if self.disk.exists(path):
                    self.disk.explain(path, why)
                    self.disk.remove(path)
            producers.remove_snapshot(segment.base_offset, why)

    def _empty_if_it_ends_before_its_start(self) -> Slices[int | None]:
        """Step 5: return the log end offset, None if no segment is left."""
        if not self.segments:
            return None
        active = self._active
        known = self._next_offsets.get(active.base_offset)
        log_end_offset = active.read_next_offset() if known is None else known
        log_start_offset = self.settings.log_start_offset
        if log_end_offset >= log_start_offset:
            return log_end_offset
        segments = list(self.segments.values())
        why = f"the log ends at offset {log_end_offset}, before its start at {log_start_offset}"
        yield from self.journal.emptying(segments, why)
        self._delete_segments(segments, why)
        self.epochs.clear()
        self._producer_state_manager().truncate_fully(log_start_offset)
        return None

    # ------------------------------------------------------------------------------------------- 4: offsets that overflow

    def _retry_on_overflow(self, step: Callable[[], Slices[_Result]]) -> Slices[_Result]:
        """Run a step; while a segment's offsets overflow its indexes, split the segment and run the step again."""
        while True:
            try:
                return (yield from step())
            except OffsetOverflowError as error:
                self._split(error)

    def _split(self, overflow: OffsetOverflowError) -> None:
        """Replace a segment by several whose offsets fit their base offsets."""
        segment = self._open(overflow.base_offset)
        refusal = LogRefusedError(overflow.message, segment.log_path, overflow.position, overflow.end_position)
        if not segment.has_overflow():
            raise refusal
        parts: dict[int, tuple[int, int]] = {}  # by base offset: bytes [start, end) of the segment
        base_offset = None
        for batch in segment.batches():
            first, last = batch.header.base_offset, batch.header.last_offset
            if base_offset is None or not 0 <= last - base_offset <= INT32_MAX:
                base_offset = first
                if base_offset in parts or last < first:
                    raise refusal
                parts[base_offset] = (batch.position, batch.position)
            parts[base_offset] = (parts[base_offset][0], batch.end_position)
        if max((end for _, end in parts.values()), default=0) != segment.size_bytes:
            raise refusal
        content = self.disk.content(segment.log_path)
        self.journal.split(segment.log_path, list(parts))
        self._delete_split(segment, keeps_snapshot=segment.base_offset in parts)
        for base_offset, (start, end) in parts.items():
            path = join_path(self.directory, segment_file_name(base_offset, FileKind.LOG))
            self.disk.explain(path, f"split off segment {segment.base_offset}, whose offsets overflowed its indexes")
            self.disk.put(path, slice_content(content, start, end))
            self._add(self._with_indexes(self._open(base_offset)))

    def _with_indexes(self, segment: RecoveringSegment) -> RecoveringSegment:
        """Write the indexes of a new segment."""
        appender = IndexAppender(segment.offset_index, segment.time_index, self.settings.indexes.interval_bytes)
        for batch in segment.batches():
            header = batch.header
            appender.add(batch.position, header.size_bytes, header.last_offset, header.max_timestamp)
        appender.close()
        segment.close()
        return segment

    def _delete_split(self, segment: RecoveringSegment, *, keeps_snapshot: bool) -> None:
        why = "its offsets overflowed its indexes: it was split"
        self.segments.pop(segment.base_offset, None)
        self._next_offsets.pop(segment.base_offset, None)
        for path in segment.paths:
            if self.disk.exists(path):
                self.disk.explain(path, why)
                self.disk.remove(path)
        if not keeps_snapshot:
            self._producer_state_manager().remove_snapshot(segment.base_offset, why)

    # ------------------------------------------------------------------------------------------ 6, 7: epochs, producers

    def _finish(self, log_end_offset: int, recovery_point: int) -> Slices[LoadedLog]:
        settings = self.settings
        self.epochs.truncate_from_end(log_end_offset)
        self.epochs.truncate_from_start(settings.log_start_offset)
        log_start_offset = max(settings.log_start_offset, min(self.segments))
        recovery_point = max(recovery_point, log_start_offset)
        kept = self.recovered if settings.is_broker else None
        producers = kept or self._producer_state_manager()
        producers.remove_stray_snapshots(self.segments)
        yield from rebuild_in_slices(
            producers,
            self.segments,
            log_start_offset,
            log_end_offset,
            reload_from_clean_shutdown=settings.had_clean_shutdown,
        )
        active = self._active
        if active.base_offset not in self._next_offsets:
            # A broker opens these indexes of the active segment to append, and closes them when it stops.
            _ = active.offset_index, active.time_index
        for segment in self.segments.values():
            segment.close()
        return LoadedLog(
            log_start_offset,
            log_end_offset,
            recovery_point,
            tuple(self.segments),
            tuple(sorted(set(self.cut_segments))),
            producers,
            self.epochs,
        )
