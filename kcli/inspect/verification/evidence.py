"""Evidence: how far a partition's log once reached, and how early it began, by all files other than its batches.

    source                                            shows that the log reached              counts alone
    ------------------------------------------------  --------------------------------------  ------------------------------
    the high watermark, the recovery point            their offset                            unless the directory was stopped
    the last start in leader-epoch-checkpoint         its offset                                cleanly and the log's end is
                                                                                                sound
    a producer snapshot that can be read              the offset in its name                  if no segment is left, or if two
                                                                                                snapshots differ (see below)
    the header of a damaged batch at the log's end    the offset after it                     yes, if the header's count and
                                                                                                last offset agree, or the file
                                                                                                ends between the two
    a sound batch out of order that continues the     the offset after it                     yes
      log's last batch exactly
    the manifest of a repair that was interrupted     where that repair lets the log end      yes, until a broker has run
    an empty segment                                  the offset in its name                  yes: a log is rolled at its end
    a segment that has bytes and no sound batch, an   the offset in its name                  no
      index whose .log is missing
    a producer snapshot that cannot be read           the offset in its name                  if no segment is left
    the last entry of an .index or a .timeindex       the offset after it                     no
      (see below)
    the log start offset                              its offset                              if no segment is left; else it
                                                                                                only confirms other sources: a
                                                                                                wrong one deletes the log

A crash can lose the end of a log, so after a crash a checkpoint that is ahead of the log is believed. After a clean stop the
log and its checkpoints agree: one that does not agree is wrong, unless a second source reaches as far. A stop was not clean if
the recovery point is below the end of the batches, because a broker sets it to the log's end. Offsets below the evident end
were given to producers, and consumers may have read them. A broker that gives them out again hides new records from consumers
that have passed them. So what is missing below the evident end is named as lost, and a repair lets the log end there.

A source that does not count alone counts if a source in another file reaches as far or further: one index may be corrupt, and
one file may have been copied to a wrong name. So the log reached the largest offset on which two files agree, and the second
largest if all of them differ.

Of two producer snapshots beyond the batches, the later one counts alone if it has a batch after the offset of the earlier one.
A broker writes a snapshot of the log's end when it rolls a segment and when it stops, and removes later ones when it truncates
the log. So both offsets were the log's end once, unless one file is a copy under a wrong name: but a copy of the earlier
snapshot, or of one before it, has no batch after it. Without such a batch the earlier one counts.

If an index without a .log begins where the batches end, a segment was lost: then the log's end is not sound, even after a clean
stop.

The cleaner's checkpoint is not evidence: it is where the cleaner continues, and Kafka drops it if it is ahead of the log.

The start of a log is shown by an index whose .log is missing, and by the first start in leader-epoch-checkpoint, which a broker
moves when it removes a segment. This is true of cleaned logs too: the cleaner keeps the name of the first segment, even without
batches. It is not true if a *.deleted file of an earlier segment exists: then the broker stopped after it removed the segment
and before it moved the start.

No CRC covers the base offset of the last batch, and no batch after it contradicts one that is too high. A checkpoint or the
name of a snapshot does, if the end of the log that it has is in the gap before the batch, or in the batch: then the explanation
(kcli.log.reading.explanation) of the batch with the same witnesses as in a repair decides.

The last entries of .index and .timeindex files may outlast the batches.

an index is used if                               reason
------------------------------------------------  ------------------------------------------------------------------
its entries are whole and ascend, with no zeros   a broker cuts the file to its entries when it rolls the segment and
  after them                                        when it stops; while it runs, truncated entries stay in the file
its segment is the last one with batches, or is   the indexes of other segments end before the batches do
  after it, or its .log is missing
the .log does not begin below the base offset in  the offsets of an index are relative to its name: with a higher name
  the name                                          they are too large
an entry of .index points at a batch of the .log  otherwise the index of another segment was copied to this name
it is not a copy of another .timeindex, if its    the time indexes of two segments are never the same: timestamps
  .log is missing                                   ascend
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import EpochStart, decode_leader_epochs
from kcli.format.file_names import DirectoryState, FileKind, FileState
from kcli.format.index_entries import OffsetIndex, TimeIndex, ascends
from kcli.format.primitives import INT32_MAX, INT64_MAX, CorruptCheckpointError, CorruptRecordError, FormatError
from kcli.format.producer_snapshot import check_producer_snapshot, iter_producer_entries
from kcli.format.record_batch import MAGIC, RecordBatch
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.inspect.verification.facts import COMPACTED_TOPICS, PartitionOptions, SegmentFacts
from kcli.inspect.verification.small_file_checks import INDEX_KINDS
from kcli.log.disk.port import Disk, base_name
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, Segment, read_partition, read_topic_id
from kcli.log.files.quarantine import LostOffsets
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.batch_search import begins_below
from kcli.log.reading.explanation import Batch, Batches, LogWitnesses, OffsetExplanation, SegmentWitnesses, is_thinned
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# How many entries of an .index are compared with the .log, backwards from the last one that is within it.
_MOST_ENTRIES_COMPARED = 16


class IndexEnd(NamedTuple):
    """The index file at `path` shows that the log reached `offset`."""

    path: str
    offset: int


def find_index_ends(disk: Disk, partition: PartitionDirectory, batch_end: int) -> list[IndexEnd]:
    """Return the ends beyond `batch_end`, the offset after the last batch, that the indexes of a partition show."""
    first = max((one.base_offset for one in partition.segments if one.base_offset <= batch_end), default=0)
    found = [end for one in partition.segments if one.base_offset >= first for end in segment_index_ends(disk, one)]
    return [end for end in (*found, *ends_without_log(disk, partition)) if end.offset > batch_end]


def segment_index_ends(disk: Disk, segment: Segment) -> list[IndexEnd]:
    """Return the ends that the indexes of one segment show, also where its batches reach as far."""
    if _begins_below(disk, segment.log, segment.base_offset):
        return []
    found: list[IndexEnd] = []
    if segment.offset_index is not None:
        index = _read_offset_index(disk, segment.offset_index, segment.base_offset)
        if index is not None and _suits_log(disk, segment.log, index):
            found.append(IndexEnd(segment.offset_index, index.last_offset + 1))
    if segment.time_index is not None:
        found += _time_index_end(disk, segment.time_index, segment.base_offset)
    return found


def ends_without_log(disk: Disk, partition: PartitionDirectory) -> Iterator[IndexEnd]:
    """Yield the ends that indexes show whose .log is missing, unless a broker was removing the segment."""
    being_deleted = {file.base_offset for file in partition.others if file.state is not FileState.CURRENT}
    orphans = [
        file for file in partition.others if file.is_current and file.base_offset >= 0 and file.base_offset not in being_deleted
    ]
    time_indexes = [file for file in orphans if file.kind is FileKind.TIME_INDEX]
    paths = [segment.time_index for segment in partition.segments if segment.time_index is not None]
    copies = _copied_names(disk, time_indexes, paths) if time_indexes else set()
    for file in orphans:
        if file.base_offset in copies:
            continue
        if file.kind is FileKind.INDEX:
            index = _read_offset_index(disk, file.path, file.base_offset)
            if index is not None:
                yield IndexEnd(file.path, index.last_offset + 1)
        elif file.kind is FileKind.TIME_INDEX:
            yield from _time_index_end(disk, file.path, file.base_offset)


def _copied_names(disk: Disk, orphans: Sequence[FoundFile], paths: Iterable[str]) -> set[int]:
    """Return the base offsets of time indexes without a .log that have the content of another time index."""
    by_content: dict[bytes, set[str]] = {}
    sizes = {size for file in orphans if (size := _size(disk, file.path))}
    for path in (*paths, *(file.path for file in orphans)):
        if _size(disk, path) in sizes:
            by_content.setdefault(_read(disk, path), set()).add(path)
    return {file.base_offset for file in orphans for same in by_content.values() if file.path in same and len(same) > 1}


def _read_offset_index(disk: Disk, path: str, base_offset: int) -> OffsetIndex | None:
    """Return an .index that is complete and ascends, None if it is not or is empty."""
    data = _read(disk, path)
    index = OffsetIndex.decode(data, base_offset)
    if len(data) % OFFSET_INDEX_ENTRY.size or not len(index) or index.used_entries < len(index):
        return None
    columns = (index.relative_offsets, index.positions)
    if any(column[0] < 0 or not ascends(column) for column in columns):
        return None
    return None if len(index) == 1 and not index.positions[0] else index


def _time_index_end(disk: Disk, path: str, base_offset: int) -> list[IndexEnd]:
    """Return the end that a .timeindex shows, if it is complete and ascends."""
    data = _read(disk, path)
    index = TimeIndex.decode(data, base_offset)
    if len(data) % TIME_INDEX_ENTRY.size or not len(index) or index.used_entries < len(index) or index.timestamps[0] <= 0:
        return []
    offsets = index.relative_offsets
    if not ascends(index.timestamps) or offsets[0] < 0 or not ascends(offsets, strictly=False):
        return []
    return [IndexEnd(path, index.last_entry.offset + 1)]


def _begins_below(disk: Disk, log: str, base_offset: int) -> bool:
    """Return True if the segment had another name before."""
    try:
        with SegmentReader(disk, log) as reader:
            return begins_below(reader.file, base_offset)
    except OSError:
        return False


def _suits_log(disk: Disk, log: str, index: OffsetIndex) -> bool:
    """Return True if one of the last entries points to a batch of a .log, or none of the entries is within it."""
    try:
        size = disk.size(log)
        slots = [slot for slot, position in enumerate(index.positions) if position < size][-_MOST_ENTRIES_COMPARED:]
        with SegmentReader(disk, log) as reader:
            return not slots or any(_is_entry_of(reader, index, slot) for slot in slots)
    except OSError:
        return False


def _is_entry_of(reader: SegmentReader, index: OffsetIndex, slot: int) -> bool:
    """Return True if the batch at the entry's byte ends at its offset, or between the entry before and its offset.

    An entry of a follower before Kafka 4.0 has the last offset of an append of several batches.
    """
    offset, position = index.entry(slot)
    try:
        header = reader.header_at(position)
    except CorruptRecordError:
        return False
    before = index.entry(slot - 1).offset if slot else None
    return header.last_offset == offset or (before is not None and before < header.base_offset <= header.last_offset < offset)


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
    except OSError:
        return b""


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.size(path)
    except OSError:
        return 0


def index_name(end: IndexEnd) -> str:
    """Return what shows an end, as a part of a sentence."""
    return f"the last entry of {base_name(end.path)}"


class Claim(NamedTuple):
    """A source that shows that the log reached `offset`; `what` is its name in a sentence, `is_strong`: it counts alone.

    One that does not decide only confirms other claims. `file` is the path of a source that is a file: two claims of one file
    do not confirm each other.
    """

    offset: int
    what: str
    is_strong: bool = False
    decides: bool = True
    file: str = ""


class Evidence(NamedTuple):
    """The log reached `end_offset`, by the claims `sources`; they are empty if nothing is beyond the batches."""

    end_offset: int
    sources: tuple[Claim, ...] = ()

    def sentence(self) -> str:
        """Return the sources and their offsets as a clause."""
        named = [f"{claim.what} is {claim.offset}" for claim in self.sources[:4]]
        return ", ".join(named)


def collect_claims(
    disk: Disk,
    partition: PartitionDirectory,
    options: PartitionOptions,
    *,
    batch_end: int,
    is_end_damaged: bool,
    stated_end: int | None = None,
    moved_end: int | None = None,
    empty_names: Iterable[int] = (),
    unproven_names: Iterable[int] = (),
) -> list[Claim]:
    """Return the claims of the files of a partition and of its checkpoints.

    `batch_end` is the offset after the last batch. `is_end_damaged`: the last segment is damaged at its end or has no sound
    batch. `stated_end` is the offset after the damaged batch at the end, by its header, `moved_end` that after batches out of
    order. `empty_names` are base offsets of segments of 0 bytes, `unproven_names` those of other segments without sound
    batches.
    """
    was_clean = options.is_clean is True and (options.recovery_point is None or options.recovery_point >= batch_end)
    orphans = {file.base_offset: file.path for file in reversed(_orphans(partition))}
    is_strong = not was_clean or is_end_damaged or not partition.segments or batch_end in orphans
    claims = [
        Claim(offset, what, strong, decides)
        for offset, what, strong, decides in (
            (options.high_watermark, "the high watermark", is_strong, True),
            (options.recovery_point, "the recovery point", is_strong, True),
            (options.log_start_offset, "the log start offset", not partition.segments, not partition.segments),
            (stated_end, "the offset after the damaged batch at the end", True, True),
            (moved_end, "the offset after a batch that is out of order", True, True),
        )
        if offset is not None
    ]
    claims += _snapshot_claims(disk, partition, batch_end)
    epochs = read_epochs(disk, partition)
    if epochs:
        claims.append(Claim(epochs[-1].start_offset, "the start of the last leader epoch", is_strong))
    for offset in sorted({*orphans, *unproven_names}):
        claims.append(Claim(offset, "the offset in a segment's name", file=orphans.get(offset, "")))
    for end in find_index_ends(disk, partition, batch_end):
        claims.append(Claim(end.offset, index_name(end), file=end.path))
    for lost in lost_of(disk, options.lost, partition):
        if lost.planned_end is not None:
            claims.append(Claim(lost.planned_end, "the log end of a repair that was interrupted", True))
    for offset in empty_names:
        claims.append(Claim(offset, "the offset in the name of an empty segment", True))
    return claims


def _snapshot_claims(disk: Disk, partition: PartitionDirectory, batch_end: int) -> list[Claim]:
    """Return the claims of the producer snapshots; one beyond `batch_end` counts alone if it is surely later than another."""
    claims: list[Claim] = []
    before: FoundFile | None = None
    for file in partition.snapshots:
        end_offset = _producers_end(disk, file.path)
        if end_offset is None:
            claims.append(Claim(file.base_offset, f"the offset in the name of {file.name}", not partition.segments))
            continue
        is_later = before is not None and before.base_offset < end_offset <= file.base_offset
        claims.append(Claim(file.base_offset, f"the offset of {file.name}", is_later or not partition.segments))
        before = file if file.base_offset > batch_end else None
    return claims


def evident_end(claims: Iterable[Claim], log_end_offset: int) -> Evidence:
    """Find the largest offset that one strong claim, or two different files, show; `log_end_offset` if none is above it."""
    # Offsets of a segment are within 31 bits above its name: a log that lost one segment cannot have ended later.
    most = log_end_offset + INT32_MAX
    claims = (claim for claim in claims if log_end_offset < claim.offset <= most)
    beyond = sorted(claims, key=lambda claim: (-claim.offset, claim.decides))
    for index, claim in enumerate(beyond):
        is_confirmed = any(not claim.file or other.file != claim.file for other in beyond[:index])
        if claim.decides and (claim.is_strong or is_confirmed):
            return Evidence(claim.offset, tuple(one for one in beyond if one.offset >= claim.offset))
    return Evidence(log_end_offset)


def evident_start(disk: Disk, partition: PartitionDirectory, options: PartitionOptions, base_offset: int) -> int:
    """Find how early a log whose first segment begins at `base_offset` once began: at most there."""
    if is_being_deleted(partition, base_offset):
        return base_offset
    orphans = [file.base_offset for file in _orphans(partition)]
    starts = [offset for offset in orphans if 0 <= offset < base_offset]
    entries = read_epochs(disk, partition)
    log_start = options.log_start_offset
    if entries:
        epoch_start = max(entries[0].start_offset, log_start or 0)
        starts.append(epoch_start)
    return max(min([base_offset, *starts]), log_start or 0) if starts else base_offset


def is_being_deleted(partition: PartitionDirectory, base_offset: int) -> bool:
    """Return True if a broker was removing segments before `base_offset` when it stopped."""
    return any(file.state is FileState.DELETED and 0 <= file.base_offset < base_offset for file in partition.others)


def missing_log(disk: Disk, partition: PartitionDirectory, options: PartitionOptions) -> str | None:
    """Return a sentence on a partition that has no `.log`, though it once had records; None if nothing shows that."""
    if partition.segments or options.is_live or partition.state is DirectoryState.DELETE:
        return None
    start = (options.log_start_offset or 0) if options.is_clean is None else 0
    evidence = evident_end(collect_claims(disk, partition, options, batch_end=start, is_end_damaged=True), start)
    names = [file.name for file in _orphans(partition)]
    if evidence.end_offset > start:
        why = f"the log once reached offset {evidence.end_offset} ({evidence.sentence()})"
    elif names:
        why = f"{names[0]} is there"
    else:
        return None
    return f"the .log is missing, although {why}: no records can be shown or counted"


def _orphans(partition: PartitionDirectory) -> list[FoundFile]:
    """Return the index files whose `.log` is missing."""
    return [file for file in partition.others if file.is_current and file.kind in INDEX_KINDS]


def _producers_end(disk: Disk, path: str) -> int | None:
    """Return the offset after the last batch that a producer snapshot states (0: none), None if it cannot be read."""
    try:
        data = disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
        entries = iter_producer_entries(data, check_producer_snapshot(data))
    except (OSError, FormatError):
        return None
    return max((entry.last_offset + 1 for entry in entries), default=0)


def lost_of(disk: Disk, lost: Sequence[LostOffsets], partition: PartitionDirectory) -> list[LostOffsets]:
    """Return what the manifests of repairs have of one partition. Raises OSError."""
    of_name = [one for one in lost if one.partition == base_name(partition.path)]
    if not of_name:
        return []
    try:
        topic_id = read_topic_id(disk, partition)
    except CorruptCheckpointError:
        return []
    # A repair may have restored partition.metadata after it noted what was lost.
    return [one for one in of_name if one.topic_id in ("", str(topic_id))]


def read_epochs(disk: Disk, partition: PartitionDirectory) -> Sequence[EpochStart]:
    """Return the entries of leader-epoch-checkpoint, none if it is missing or cannot be read."""
    path = partition.file(FileKind.LEADER_EPOCH_CHECKPOINT)
    if path is None:
        return ()
    try:
        return decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
    except (OSError, FormatError):
        return ()


def start_by_epochs(disk: Disk, directory: str, end_offset: int) -> int:
    """Return the log start offset by the leader epochs, whose start a broker moves with it; 0 if they do not show it."""
    epochs = read_epochs(disk, read_partition(disk, directory))
    return epochs[0].start_offset if epochs and epochs[0].start_offset <= end_offset else 0


# ------------------------------------------------------------------------------------------------------- the last batch


class MovedBatch(NamedTuple):
    """The last batch, at byte `position`, states `base_offset`; the files `sources` show that it has `right_offset`."""

    position: int
    base_offset: int
    right_offset: int
    sources: tuple[Claim, ...]

    def sentence(self) -> str:
        """Return what contradicts the batch."""
        named = ", ".join(f"{claim.what} is {claim.offset}" for claim in self.sources[:4])
        return (
            f"the last batch states base offset {self.base_offset}; the batch before it and the files that have the end of the "
            f"log ({named}) show that it is {self.right_offset}"
        )


def find_moved_batch(
    disk: Disk, partition: PartitionDirectory, options: PartitionOptions, segment: Segment, facts: SegmentFacts, log_end: int
) -> MovedBatch | None:
    """Return the last batch of a log if the cheapest explanation gives it another base offset. Raises OSError.

    `segment` is the last one, `log_end` the offset after the segments before it. A gap must be before the batch, and a file
    must have an end of the log in it or in the batch: a gap alone shows nothing.
    """
    if facts.last_jump is None or facts.is_damaged:
        return None
    position, expected = facts.last_jump
    first_offset = max(log_end, segment.base_offset) if expected < 0 else expected
    ends = [claim for claim in _end_claims(partition, options) if first_offset < claim.offset < facts.end_offset]
    if not ends:
        return None
    log = log_witnesses(disk, partition, options)
    has_gaps = facts.gaps > (expected >= 0)
    log = log._replace(is_cleaned=log.is_cleaned or facts.is_thinned or has_gaps)
    with SegmentReader(disk, segment.log) as reader:
        found = reader.batch_at(position)
        header = found.header if isinstance(found, LogBatch) else None
        if not isinstance(header, RecordBatch) or header.base_offset <= first_offset:
            return None
        latest = latest_offsets(reader, header, RecordScanner())
        batches, epoch = Batches(), header.partition_leader_epoch
        batches.insert(0, Batch(0, header.size_bytes, header.base_offset, header.last_offset, epoch))  # alone in its segment
    indexes = IndexPositions(disk, segment.log)
    named = next((entry.offset for entry in indexes.as_read.entries() if entry.position == position), None)
    witnesses = SegmentWitnesses(
        first_offset,
        INT64_MAX,
        segment.base_offset,
        {} if named is None else {0: named},
        indexes.times,
        is_continued=expected >= 0 or log_end == segment.base_offset,
    )
    chosen = OffsetExplanation(batches, witnesses, log).choose(frozenset(), {0: header.max_timestamp}, latest)
    if not chosen or chosen[0].base_offset == header.base_offset:
        return None
    return MovedBatch(position, header.base_offset, chosen[0].base_offset, tuple(ends))


def _end_claims(partition: PartitionDirectory, options: PartitionOptions) -> list[Claim]:
    """Return the offsets at which the log ended at some time, by its checkpoints and the names of its snapshots."""
    checkpoints = ((options.recovery_point, "the recovery point"), (options.high_watermark, "the high watermark"))
    claims = [Claim(offset, what) for offset, what in checkpoints if offset is not None]
    return claims + [Claim(file.base_offset, f"the offset of {file.name}") for file in partition.snapshots]


def log_witnesses(disk: Disk, partition: PartitionDirectory, options: PartitionOptions) -> LogWitnesses:
    """Return what the files next to the segments show. Raises OSError."""
    is_cleaned = options.is_compacted or partition.topic in COMPACTED_TOPICS or bool(options.cleaner_offset)
    epochs: Sequence[EpochStart] = ()
    with suppress(FormatError):
        epochs = LeaderEpochFileCache(read_epochs(disk, partition)).entries
    ends = [claim.offset for claim in _end_claims(partition, options)]
    lost = [offsets for one in lost_of(disk, options.lost, partition) for offsets in one.offsets]
    return LogWitnesses(ends, epochs, is_cleaned, options.is_clean is True, lost)


def latest_offsets(reader: SegmentReader, header: RecordBatch, scanner: RecordScanner) -> set[int] | None:
    """Return the last offset of a batch and those of the records with its largest timestamp, relative to its base offset.

    None if any offset may be in .timeindex: the cleaner was there, or the records have no timestamps of their own.
    """
    if header.magic != MAGIC or is_thinned(header) or header.is_log_append_time:
        return None
    batch = reader.batch_at(header.position)
    found = {header.last_offset_delta}
    if not isinstance(batch, LogBatch):
        return None
    for window in batch.windows(scanner, skip_large=True):
        if window.error is not None:
            return None
        columns = window.columns
        latest = (row for row in range(window.count) if columns.timestamp[row] == header.max_timestamp)
        found.update(columns.offset[row] - header.base_offset for row in latest)
    return found
