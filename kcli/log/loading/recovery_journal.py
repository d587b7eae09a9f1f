"""The removals of a log's load: each is kept in the quarantine, if that is configured, and logged before it is done.

    removal                                               level  kept  Kafka's line
    ----------------------------------------------------  -----  ----  ---------------------------------------------------
    the end of a segment                                  WARN   yes   Corruption found in segment, truncating to offset
      zeros, and no sign of lost records                  INFO   no    the same
    the segments after a cut                              WARN   yes   Deleting segments as part of log recovery (INFO)
    a log that ends before its start offset               WARN   yes   Deleting all segments because logEndOffset is smaller
    a *.swap or *.cleaned that alone has its records      WARN   yes   Deleting stray temporary file (INFO)
    other leftovers of deletions, cleanings and splits    INFO   no    the same
    a segment that is split, and loses nothing            INFO   no    Segment should be split
    an index without its segment                          WARN   no    Found an orphaned index file
    an .index that was lost (not one never written)       ERROR  no    Could not find offset index file
    a .txnindex or a .snapshot that is damaged            WARN   no    Found a corrupted index file; Failed to load snapshot

Files that contradict the mark of a clean stop are logged as WARN before the log is recovered.

A line has the partition, the segment's file, the position, the number of bytes, the lost offsets, and the reason. The lost
offsets begin after the last sound batch. They end at the next segment, else at the highest offset in the headers of the removed
bytes, the names of the snapshots, the high watermark and the recovery point.

Removed bytes are on the device of the quarantine (quarantine.Quarantine) before the load continues. If that fails the load
fails, and nothing is removed. Later segments are moved before the first one is cut: if they were still there after a segment
that is sound again, the next start would not detect the gap.

RecoveryProgress logs the recovery of a whole log directory:

    when                          line                                                     Kafka's
    ----------------------------  -------------------------------------------------------  ---------------------------------
    a directory without the mark  PATH was not stopped cleanly: recovering N partitions    Recovering N logs from DIR since no
    of a clean stop                                                                        clean shutdown file was found
    every PROGRESS_INTERVAL_MS    PATH: n of N partitions are recovered, with what was read  Remaining logs to recover (metric)
    all logs are open             PATH: N partitions are recovered in T ms, with what was    -
                                  read and removed

Nothing is logged for a directory without partitions or after a clean stop.

`offsets_in_tail` and `offsets_in_segment` find the offsets in removed bytes by the headers of their batches. Most of these
bytes are damaged, or were never written, so that their CRC is wrong. A header is trusted if something else confirms it:

    sign                                                        of a header of
    ----------------------------------------------------------  --------------------------
    it begins at the offset that follows, and its last offset   format 2, also of a batch that the end of the file cuts off
      delta is its record count less one
    the next header begins above its last offset                any format

A header below the next offset is a copy, or wrong. Only headers are read, and only those of the removed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, parse_file_name
from kcli.format.index_entries import OffsetIndex
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import HEADER_BYTES, MAGIC, RecordBatch, read_header
from kcli.log.disk.load_disk import LoadDisk
from kcli.log.disk.planned_disk import REMOVE, TRUNCATE, Change, is_zeros
from kcli.log.disk.port import Disk, DiskFile, base_name, parent_path, zeros_follow
from kcli.log.loading.recovering_segment import RecoveringSegment
from kcli.log.log_segment import LogSegment
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.report_line import FailureLine, Line, WarningLine
from kcli.log.slices import Slices

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.log.files.quarantine import Quarantine

QUARANTINE_KEY = "kcli.recovery.quarantine.dir"
_MAX_NAMES = 6
PROGRESS_INTERVAL_MS = 10_000


class KnownOffsets(NamedTuple):
    """The offsets of a log in the checkpoints of its log directory, 0 if missing."""

    high_watermark: int = 0
    recovery_point: int = 0


class Truncation(NamedTuple):
    """The end of a segment, from byte `position` on, that is to be cut; the log then ends at `next_offset`."""

    segment: RecoveringSegment
    position: int
    next_offset: int
    why: str


class LoadJournal:
    """A journal that does nothing: for a plan, whose changes are reported."""

    def begin(self, disk: LoadDisk, names: Iterable[str]) -> None:
        """Note that the load of a directory with these names begins on this disk; called again if it has to be planned."""

    def recovering(self, segment: RecoveringSegment) -> None:
        """Note that a segment is about to be read."""

    def cut(self, cut: Truncation, later: Sequence[RecoveringSegment], next_base: int | None) -> Slices[None]:
        """Note that a segment is about to be cut, and `later` removed with it; or that the one at `next_base` is kept."""
        yield from ()

    def emptying(self, segments: Sequence[RecoveringSegment], why: str) -> Slices[None]:
        """Note that all segments are about to be removed."""
        yield from ()

    def dropping(self, path: str, base_offset: int, why: str) -> Slices[None]:
        """Note that a file, not a segment but the only one with its records, is about to be removed."""
        yield from ()

    def leftovers(self, names: Sequence[str], what: str) -> None:
        """Note that files of interrupted work without records of their own are about to be removed or renamed."""

    def split(self, path: str, base_offsets: Sequence[int]) -> None:
        """Note that a segment is about to be split into several whose offsets fit their indexes."""

    def orphan(self, path: str) -> None:
        """Note that an index without its segment is about to be removed."""

    def lost_index(self, path: str) -> None:
        """Note that an .index that a broker had written is missing and about to be rebuilt."""

    def damaged(self, path: str, why: str) -> None:
        """Note that a damaged file is about to be rebuilt from the log."""

    def contradicted(self, directory: str, why: str) -> None:
        """Note that the last segment is about to be recovered, though the broker stopped cleanly."""


class RecoveryCounts:
    """The totals of the recovery of a log directory."""

    def __init__(self) -> None:
        self.segments = 0
        self.bytes_read = 0
        self.bytes_removed = 0


class RecoveryProgress:
    """The recovery of one log directory; `clock` returns the time in ms, `partitions` is their number."""

    def __init__(self, path: str, partitions: int, report: Callable[[str], None], clock: Callable[[], int]) -> None:
        self.counts = RecoveryCounts()
        self._path = path
        self._partitions = partitions
        self._report = report
        self._clock = clock
        self._began_ms = self._reported_ms = clock()
        self._opened = 0

    def begin(self) -> None:
        """Log that the recovery begins."""
        text = f"{self._path} was not stopped cleanly: recovering {_partitions(self._partitions)}"
        self._report(Line(text, path=self._path, partitions=self._partitions))

    def opened(self) -> None:
        """Count one more log as recovered."""
        self._opened += 1

    def step(self) -> None:
        """Log the progress if that is due; called after each slice of work."""
        now_ms = self._clock()
        if now_ms - self._reported_ms >= PROGRESS_INTERVAL_MS:
            self._reported_ms = now_ms
            text = f"{self._path}: {self._opened} of {_partitions(self._partitions)} are recovered"
            self._report(Line(f"{text}, {self._read()}", path=self._path, **self._fields()))

    def finish(self) -> None:
        """Log that all logs are recovered."""
        took_ms = self._clock() - self._began_ms
        is_one = "is" if self._opened == 1 else "are"
        text = f"{self._path}: {_partitions(self._opened)} {is_one} recovered in {took_ms} ms, {self._read()}"
        removed = f" and {self.counts.bytes_removed} bytes were removed" if self.counts.bytes_removed else ""
        self._report(Line(f"{text}{removed}", path=self._path, **self._fields(), took_ms=took_ms))

    def _read(self) -> str:
        counts = self.counts
        return f"{counts.bytes_read} bytes in {counts.segments} segment{'' if counts.segments == 1 else 's'} were read"

    def _fields(self) -> dict[str, object]:
        counts = self.counts
        return {
            "partitions": self._opened,
            "segments": counts.segments,
            "bytes_read": counts.bytes_read,
            "bytes_removed": counts.bytes_removed,
        }


class RecoveryJournal(LoadJournal):
    """The journal of one partition's load in a broker: `report` gets the lines, `quarantine` the removed bytes."""

    def __init__(
        self,
        topic: str,
        partition: int,
        known: KnownOffsets,
        report: Callable[[str], None],
        quarantine: Quarantine | None = None,
        counts: RecoveryCounts | None = None,
    ) -> None:
        self._name = f"{topic}-{partition}"
        self._fields: dict[str, object] = {"topic": topic, "partition": partition}
        self._known = known
        self._report = report
        self._quarantine = quarantine
        self._counts = counts or RecoveryCounts()
        self._disk: LoadDisk | None = None
        self._known_end = 0
        self._reported_end = 0  # end of the lost offsets that are reported

    def begin(self, disk: LoadDisk, names: Iterable[str]) -> None:
        """See LoadJournal. The name of a snapshot is an offset that the log had reached."""
        self._disk = disk
        files = (parse_file_name(name) for name in names)
        snapshots = (file.base_offset or 0 for file in files if file.kind is FileKind.PRODUCER_SNAPSHOT)
        self._known_end = max(self._known_end, *self._known, *snapshots)

    def recovering(self, segment: RecoveringSegment) -> None:
        """See LoadJournal."""
        self._counts.segments += 1
        self._counts.bytes_read += segment.size_bytes

    # --------------------------------------------------------------------------------------------------------- removals

    def cut(self, cut: Truncation, later: Sequence[RecoveringSegment], next_base: int | None) -> Slices[None]:
        """See LoadJournal. Raises OSError if the bytes cannot be kept."""
        segment, position, next_offset, why = cut
        path, size = segment.log_path, segment.size_bytes
        following = later[0].base_offset if later else next_base
        if following is not None and following >= next_offset:
            held = HeldOffsets(following, is_whole=True)
        else:
            held = self._at_log_end(offsets_in_tail(self._opened, path, segment.base_offset, position, next_offset))
        is_zero = is_zeros(self._opened, path, position, size)
        kept = "" if is_zero else (yield from self._keep_part(path, position, size, why))
        removal = (yield from self._removal(later, "they are after that cut", next_offset)) if later else None
        cut_bytes = f"{_bytes(size - position)}, all zeros" if is_zero else _bytes(size - position)
        text = f"{self._name}: recovery cuts {path} at byte {position}, {cut_bytes}: {why}"
        if is_zero and held.end_offset <= next_offset:
            self._report(Line(f"{text}; no offset is lost", path=path, position=position, **self._fields))
        else:
            ending = "" if next_base is not None else self._below(next_offset)
            ending = f"; {ending}" if ending else ""
            fields = self._fields_of_loss(path, size - position, why, next_offset, held, kept)
            self._report(WarningLine(f"{text}; {_lost(next_offset, held)}{ending}{_kept(kept)}", position=position, **fields))
        if removal is not None:
            self._report(removal)

    def emptying(self, segments: Sequence[RecoveringSegment], why: str) -> Slices[None]:
        """See LoadJournal. Raises OSError if the bytes cannot be kept."""
        self._report((yield from self._removal(segments, why, segments[0].base_offset)))

    def _removal(self, segments: Sequence[RecoveringSegment], why: str, log_end_offset: int) -> Slices[WarningLine]:
        """Keep segments that are about to be removed, the last one first; return the line. The log will end at that offset."""
        first, last = segments[0], segments[-1]
        lost_from = max(first.base_offset, log_end_offset)
        directory = parent_path(last.log_path)
        held = self._at_log_end(offsets_in_segment(self._opened, directory, last.base_offset))
        size = sum(segment.size_bytes for segment in segments)
        kept = yield from self._keep_files([segment.log_path for segment in segments], why, size)
        paths = (
            first.log_path if first is last else f"{first.log_path} to {base_name(last.log_path)} ({len(segments)} segments)"
        )
        text = f"{self._name}: recovery removes {paths}, {_bytes(size)}: {why}; {_lost(lost_from, held)}{_kept(kept)}"
        fields = self._fields_of_loss(first.log_path, size, why, lost_from, held, kept)
        return WarningLine(text, segments=len(segments), **fields)

    def dropping(self, path: str, base_offset: int, why: str) -> Slices[None]:
        """See LoadJournal. Raises OSError if the bytes cannot be kept."""
        held = offsets_in_tail(self._opened, path, base_offset, 0, base_offset)
        size = self._opened.size(path)
        kept = yield from self._keep_files([path], why, size)
        text = f"{self._name}: recovery removes {path}, {_bytes(size)}: {why}; {_lost(base_offset, held)}{_kept(kept)}"
        self._report(WarningLine(text, **self._fields_of_loss(path, size, why, base_offset, held, kept)))

    def _fields_of_loss(
        self, path: str, size: int, why: str, first_offset: int, held: HeldOffsets, kept: str
    ) -> dict[str, object]:
        self._counts.bytes_removed += size
        fields: dict[str, object] = {**self._fields, "path": path, "bytes": size, "error": why}
        if held.end_offset > first_offset:
            fields |= {"first_lost_offset": first_offset, "last_lost_offset": held.end_offset - 1}
        return fields | ({"kept_in": kept} if kept else {})

    # --------------------------------------------------------------------------------------------------------- keeping

    def _keep_part(self, path: str, start: int, end: int, why: str) -> Slices[str]:
        """Keep a byte range; return its path, "" without a quarantine."""
        if self._quarantine is None:
            return ""
        with self._must_keep(path, end - start, self._quarantine):
            self._quarantine.announce([Change(TRUNCATE, path, why, start, dropped=((start, end),))])
            return (yield from self._quarantine.copy_in_slices(self._opened, path, (start, end)))

    def _keep_files(self, paths: Sequence[str], why: str, size: int) -> Slices[str]:
        """Keep whole files, the last one first; return their path, "" without a quarantine."""
        if self._quarantine is None:
            return ""
        with self._must_keep(paths[0], size, self._quarantine):
            self._quarantine.announce([Change(REMOVE, path, why, self._opened.size(path)) for path in paths])
            kept = ""
            for path in reversed(paths):
                if self._opened.is_planned:
                    kept = yield from self._quarantine.copy_in_slices(self._opened, path)
                else:
                    kept = yield from self._quarantine.move_in_slices(self._opened, path)
            return kept if len(paths) == 1 else parent_path(kept)

    @staticmethod
    @contextmanager
    def _must_keep(path: str, size: int, quarantine: Quarantine) -> Iterator[None]:
        """Add the reason and the remedy to an error, with which the log directory fails."""
        try:
            yield
        except OSError as error:
            raise OSError(
                f"recovery has to remove {_bytes(size)} of {path} and cannot keep them in {quarantine.folder}: "
                f"{error.strerror or error}; nothing was removed: free space there, or change {QUARANTINE_KEY}"
            ) from error

    # -------------------------------------------------------------------------------------------------------- evidence

    @property
    def _opened(self) -> LoadDisk:
        if self._disk is None:
            raise ValueError("begin() was not called")
        return self._disk

    def _at_log_end(self, held: HeldOffsets) -> HeldOffsets:
        """Return the offsets in the last bytes of a log; the log is known to have had those up to `_known_end`."""
        self._reported_end = max(held.end_offset, self._known_end)
        return held if held.end_offset >= self._known_end else HeldOffsets(self._known_end, is_whole=False)

    def _below(self, end_offset: int) -> str:
        """Return the clause about the checkpoints above the end offset of the log; "" if there are none."""
        checkpoints = (("high watermark", "committed"), ("recovery point", "flushed"))
        above = [
            (f"the {name} {offset}", done)
            for (name, done), offset in zip(checkpoints, self._known, strict=True)
            if offset > end_offset
        ]
        if not above:
            return ""
        names, done = (" and ".join(words) for words in zip(*above, strict=True))
        return f"the log ends at offset {end_offset}, below {names}: records up to there had been {done}"

    def loaded(self, log_end_offset: int) -> None:
        """Report missing records if nothing was removed now: a file is lost, or ends early."""
        known_end = max(self._known_end, *self._known)
        if known_end <= max(log_end_offset, self._reported_end):
            return
        missing = _lost(log_end_offset, HeldOffsets(known_end, is_whole=False))
        named = f"the log ends at offset {log_end_offset}, below {known_end}, the offset in the name of a snapshot"
        fields = {**self._fields, "first_lost_offset": log_end_offset, "last_lost_offset": known_end - 1}
        self._report(WarningLine(f"{self._name}: {self._below(log_end_offset) or named}; {missing}", **fields))

    # ---------------------------------------------------------------------------------------- files without records

    def leftovers(self, names: Sequence[str], what: str) -> None:
        """See LoadJournal."""
        shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
        self._report(Line(f"{self._name}: {what}: {shown}", files=len(names), **self._fields))

    def split(self, path: str, base_offsets: Sequence[int]) -> None:
        """See LoadJournal."""
        parts = ", ".join(map(str, base_offsets))
        text = f"{self._name}: {path} is split, since its offsets overflowed its indexes, into the segments of offsets {parts}"
        self._report(Line(text, path=path, segments=len(base_offsets), **self._fields))

    def orphan(self, path: str) -> None:
        """See LoadJournal."""
        why = "its segment is missing"
        self._report(WarningLine(f"{self._name}: {path} is removed: {why}", path=path, error=why, **self._fields))

    def lost_index(self, path: str) -> None:
        """See LoadJournal."""
        why = "the offset index is missing"
        text = f"{self._name}: {path}: {why}: the segment is read, and its indexes are rebuilt"
        self._report(FailureLine(text, path=path, error=why, **self._fields))

    def damaged(self, path: str, why: str) -> None:
        """See LoadJournal."""
        text = f"{self._name}: {path} is damaged and is rebuilt from the log: {why}"
        self._report(WarningLine(text, path=path, error=why, **self._fields))

    def contradicted(self, directory: str, why: str) -> None:
        """See LoadJournal."""
        text = f"{self._name}: the files do not agree with the clean stop of the broker: {why}"
        self._report(WarningLine(f"{text}; recovering the log as after a crash", path=directory, error=why, **self._fields))


def quarantine_in(disk: Disk, folder: str, log_directory: str) -> Quarantine | None:
    """Return the quarantine for a log directory, None if no folder is configured."""
    if not folder:
        return None
    from kcli.log.files.quarantine import Quarantine

    return Quarantine(disk, folder, log_directory)


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _lost(first_offset: int, held: HeldOffsets) -> str:
    """Return the clause about the lost offsets in removed bytes."""
    last_offset = held.end_offset - 1
    if last_offset < first_offset:
        return "no offset is lost" if held.is_whole else f"the lost offsets, from {first_offset} on, are unknown"
    least = "" if held.is_whole else " at least"
    if last_offset == first_offset:
        return f"offset {first_offset}{least} is lost"
    return f"offsets {first_offset} to {last_offset}{least} are lost"


def _kept(place: str) -> str:
    return f"; kept in {place}" if place else ""


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


class HeldOffsets(NamedTuple):
    """The offsets of removed bytes are below `end_offset`; if not `is_whole` there may be more above it."""

    end_offset: int
    is_whole: bool


def offsets_in_tail(disk: Disk, path: str, base_offset: int, position: int, next_offset: int) -> HeldOffsets:
    """Return the offsets in bytes [position, end) of a segment, the first of which is `next_offset`. Raises OSError."""
    file = disk.open_file(path)
    try:
        return _read_offsets(file, position, next_offset, base_offset + INT32_MAX)
    finally:
        file.close()


def offsets_in_segment(disk: Disk, directory: str, base_offset: int) -> HeldOffsets:
    """Return the offsets of a segment: by its last index entry, if correct, and the headers after it. Raises OSError."""
    segment = LogSegment(directory, base_offset)
    index = OffsetIndex.of(base_offset)
    if disk.exists(segment.path(FileKind.INDEX)) and disk.size(segment.path(FileKind.INDEX)) <= limits.MAX_INDEX_FILE_BYTES:
        index = segment.read_offset_index(disk)
    file = disk.open_file(segment.log_path)
    try:
        if len(index):
            offset, position = index.entry(len(index) - 1)
            first = next(_headers(HeaderReader(file, position, file.size())), None) if position >= 0 else None
            if first is not None and base_offset <= first.base_offset <= first.last_offset == offset:
                return _read_offsets(file, position, first.base_offset, base_offset + INT32_MAX)
        return _read_offsets(file, 0, base_offset, base_offset + INT32_MAX)
    finally:
        file.close()


def _read_offsets(file: DiskFile, position: int, next_offset: int, max_offset: int) -> HeldOffsets:
    size = file.size()
    headers = HeaderReader(file, position, size)
    before: RecordBatch | LegacyBatch | None = None  # not yet confirmed
    for header in _headers(headers):
        if before is not None and next_offset <= before.base_offset <= before.last_offset < header.base_offset <= max_offset:
            next_offset = before.last_offset + 1
        before = None
        if _is_next(header, next_offset, max_offset):
            next_offset = header.last_offset + 1
        elif header.base_offset >= next_offset:
            before = header
    torn = _torn_header(file, headers.position, size)
    if torn is not None and _is_next(torn, next_offset, max_offset):
        # Its length may be wrong, and more batches may have been lost before they were written.
        return HeldOffsets(torn.last_offset + 1, is_whole=False)
    is_whole = before is None and zeros_follow(file, headers.position, size)
    return HeldOffsets(next_offset, is_whole)


def _headers(reader: HeaderReader) -> Iterator[RecordBatch | LegacyBatch]:
    """Yield the headers up to one that cannot be read."""
    with suppress(FormatError, StructError):
        yield from reader.headers()


def _is_next(header: RecordBatch | LegacyBatch, next_offset: int, max_offset: int) -> bool:
    """Return True if a header of format 2 begins at `next_offset` and has as many offsets as records."""
    return (
        isinstance(header, RecordBatch)
        and header.base_offset == next_offset
        and 0 <= header.last_offset_delta == header.record_count - 1
        and header.last_offset <= max_offset
    )


def _torn_header(file: DiskFile, position: int, size: int) -> RecordBatch | None:
    """Return the header at a byte where the file has no complete batch; None if it is not of a torn batch."""
    data = file.read_at(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data, 0, position)
    return header if header.magic == MAGIC and position + header.size_bytes > size else None
