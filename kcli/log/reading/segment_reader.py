"""The reader of `.log` files for dump-log, verify, the Spark source and the broker.

A `SegmentReader` yields, in file order, a `LogBatch` for each batch (of any format; its CRC is computed) and a `Damage` for
each range of bytes that is not a batch. After damage it continues where kcli.log.reading.resynchronise finds that the log does,
which is never inside bytes that may be the payload of a damaged batch:

    bytes                                           what the reader does                      what Kafka does
    ----------------------------------------------  ----------------------------------------  -------------------------------
    a complete batch, CRC correct                   LogBatch                                  the same
    the same, and the indexes contradict its        LogBatch, `is_valid` False, if asked for  the same as with a correct CRC
      offsets
    a complete batch, CRC wrong                     LogBatch, `is_valid` False; then Damage   the same, and continues at the
                                                      LOST_PLACE if no batch follows at         stated end
                                                      its stated end
    a complete batch, CRC correct for another       Damage BAD_SIZE                           the same as above
      length
    fewer than 17 bytes, or an entry that exceeds   Damage TRUNCATED                          treats it as the end of the log
      the file
    only zeros to the end of the file               Damage ZEROS (preallocated or sparse)     CorruptRecordException
    a size below 14                                 Damage BAD_SIZE                           CorruptRecordException
    a magic above 2                                 Damage BAD_MAGIC                          a batch of format 2: its CRC does
                                                                                                not cover the magic
    a negative magic                                Damage BAD_MAGIC                          a message of format 0 or 1, never
                                                                                                valid
    magic 2, but shorter than its header            Damage SHORT_HEADER                       a batch, never valid

`SegmentReader.batches` does the former; `SegmentReader.batches_as_kafka` the latter, for a caller that has to accept, stop and
fail where Kafka does.

Records are opened on request, as windows of columns (kcli.format.record_scan). A batch above STREAMED_BATCH_BYTES is never held
whole: its CRC is computed and its records are inflated in pieces, so that memory use does not depend on the file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.end_transaction_marker import EndTransactionMarker, UnreadableMarkerError, decode_marker
from kcli.format.primitives import (
    INT64_MAX,
    Buffer,
    CorruptRecordError,
    InvalidRecordError,
    RecordTooLargeError,
    crc32c,
)
from kcli.format.record_batch import (
    CRC_START,
    ENTRY_HEAD_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    MIN_ENTRY_SIZE_1,
    RecordBatch,
    entry_size,
    read_entry_header,
)
from kcli.log.disk.port import Disk, DiskFile, zeros_follow
from kcli.log.reading.batch_records import RecordScanner, RecordWindow, open_windows
from kcli.log.reading.batch_search import plausible_header, streamed_crc, torn_header
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.offset_witnesses import Contradiction, OffsetWitnesses

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.log.reading.explanation import LogWitnesses
    from kcli.log.reading.resynchronise import Continuation, Resynchroniser

TRUNCATED = "truncated"
ZEROS = "zeros"
BAD_SIZE = "bad-size"
BAD_MAGIC = "bad-magic"
SHORT_HEADER = "short-header"
LOST_PLACE = "lost-place"


class Damage(NamedTuple):
    """Bytes [position, end_position) of a file that are not a batch; the reader continues at `end_position`, or it is the end.

    A lenient read may continue before `position`, if the length of the previous batch, with a wrong CRC, had led past a batch.
    `header` is the header at `position`, if every field of it but the length is plausible.
    """

    position: int
    end_position: int
    kind: str
    message: str
    header: RecordBatch | None = None


class LogBatch:
    """One batch of a file, of any format. `data` are its bytes, valid until the next batch is read; None for a large batch.

    `header` is a RecordBatch for magic 2 and a LegacyBatch for magic 0 and 1; both have position, size_bytes, magic, crc,
    codec, max_timestamp, base_offset and last_offset. `contradiction` is what contradicts its offsets, a clause; see
    kcli.log.reading.offset_witnesses.
    """

    __slots__ = ("_file", "computed_crc", "contradiction", "data", "header")

    def __init__(self, header: RecordBatch | LegacyBatch, data: memoryview | None, crc: int, file: DiskFile) -> None:
        self.header = header
        self.data = data
        self.computed_crc = crc
        self.contradiction: str | None = None
        self._file = file

    @property
    def is_valid(self) -> bool:
        """True if the stored CRC equals the computed one, and nothing contradicts the offsets."""
        return self.computed_crc == self.header.crc and self.contradiction is None

    @property
    def is_valid_for_kafka(self) -> bool:
        """True if Kafka accepts the batch: its CRC is correct and it is not shorter than its header."""
        return self.is_valid and (not isinstance(self.header, RecordBatch) or self.header.size_bytes >= HEADER_BYTES)

    @property
    def position(self) -> int:
        """The position in the file."""
        return self.header.position

    @property
    def end_position(self) -> int:
        """The position in the file of the byte after the batch."""
        return self.header.position + self.header.size_bytes

    def read_whole(self) -> bytes:
        """Return all bytes of the batch.

        Raises RecordTooLargeError above MAX_RECORD_BYTES, CorruptRecordError if the file shrank.
        """
        if self.data is not None:
            return bytes(self.data)
        if self.header.size_bytes > limits.MAX_RECORD_BYTES:
            raise RecordTooLargeError(
                f"a message of {self.header.size_bytes} bytes is larger than is held at once ({limits.MAX_RECORD_BYTES})"
            )
        data = self._file.read_at(self.position, self.header.size_bytes)
        if len(data) != self.header.size_bytes:
            raise CorruptRecordError("the file shrank while it was read", self.position)
        return data

    def payload_chunks(self, start: int = HEADER_BYTES) -> Iterator[Buffer]:
        """Yield the batch's bytes from byte `start` on, in pieces of at most READ_CHUNK_BYTES if it is large.

        By default the bytes after the header of magic 2. Raises CorruptRecordError if the file shrank.
        """
        if self.data is not None:
            yield self.data[start:]
            return
        position, end = self.position + start, self.end_position
        while position < end:
            chunk = self._file.read_at(position, min(limits.READ_CHUNK_BYTES, end - position))
            if not chunk:
                raise CorruptRecordError("the file shrank while it was read", position)
            yield chunk
            position += len(chunk)

    def windows(
        self,
        scanner: RecordScanner,
        *,
        lenient: bool = False,
        skip_large: bool = False,
        large_bytes: int = limits.INFLATE_WINDOW_BYTES,
    ) -> Iterator[RecordWindow]:
        """Yield the records as windows of columns, none for an empty batch; an error is in the last window's `error`.

        For the parameters see open_windows.
        """
        return open_windows(self, scanner, lenient=lenient, skip_large=skip_large, large_bytes=large_bytes)

    def first_offset(self) -> int:
        """Return the offset of the first record; a compressed set of format 0 or 1 has to be inflated for it.

        For a set too large to inflate it is the last offset. Raises FormatError.
        """
        header = self.header
        if isinstance(header, RecordBatch) or not header.codec:
            return header.base_offset
        from kcli.format.legacy_message_set import iter_records

        try:
            return next((record.offset for record in iter_records(header, self.read_whole())), header.base_offset)
        except RecordTooLargeError:
            return header.base_offset

    def read_marker(self, scanner: RecordScanner) -> EndTransactionMarker | None:
        """Return the marker in a control batch of a producer, None for a batch without records.

        Raises InvalidRecordError if Kafka cuts the log there, UnreadableMarkerError if Kafka refuses to load it.
        """
        header = self.header
        if not isinstance(header, RecordBatch) or not header.is_control:
            raise ValueError("only a control batch of format 2 has a marker")
        window = next(self.windows(scanner), None)
        if window is None:
            return None
        # Kafka reads the first record only; in a compressed batch, and after a single record, the rest must be valid as well.
        if window.error is not None and (window.count == 0 or header.codec or header.record_count == 1):
            if isinstance(window.error, InvalidRecordError):
                raise window.error
            raise UnreadableMarkerError(f"a control batch does not inflate: {window.error.message}", header.position)
        timestamp = header.log_append_time_ms
        if timestamp is None:
            timestamp = window.columns.timestamp[0]
        return decode_marker(window.key(0), window.value(0), timestamp)


def _zeros(count: int) -> str:
    return "the last byte is zero" if count == 1 else f"the last {count} bytes are zeros"


class SegmentReader:
    """The reader of the first `end` bytes of a `.log` or `.checkpoint` file (None: of all bytes at the time of each read).

    `chunk_bytes` is how much `buffered` reads at once. `log` is what the other files of the partition show, for a repair.
    With `doubts_offsets` the indexes of the segment are witnesses of the offsets of its batches. `indexes` are those of the
    segment if the caller has them already.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        end: int | None = None,
        chunk_bytes: int = 0,
        log: LogWitnesses | None = None,
        doubts_offsets: bool = False,
        indexes: IndexPositions | None = None,
    ) -> None:
        self.path = path
        self._doubts: dict[int, Contradiction | None] = {}  # by the end of the bytes to read
        self._chunk_bytes = chunk_bytes or limits.READ_CHUNK_BYTES
        self.file = disk.open_file(path)
        self._end = end
        self._buffer = memoryview(bytearray())  # grows to the largest read so far
        self._start = 0  # position in the file of the start of the buffer
        self._filled = 0
        self._positions = IndexPositions(disk, path) if indexes is None else indexes
        self._witnesses = OffsetWitnesses(self.file, self._positions) if doubts_offsets else None
        self._log = log
        self._resynchroniser: Resynchroniser | None = None

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def end_position(self) -> int:
        """Return the end of the bytes to read."""
        size = self.file.size()
        return size if self._end is None else min(self._end, size)

    def batches(
        self, position: int = 0, *, resynchronise: bool = True, lenient: bool = False, floor: int = 0
    ) -> Iterator[LogBatch | Damage]:
        """Yield the batches from byte `position`, which must begin a batch, to the end. Raises OSError.

        `floor` is the next offset after the batch before `position`, if that is known.
        With `resynchronise=False` reading ends at the first Damage. With `lenient` a BAD_MAGIC or SHORT_HEADER entry is a batch
        of its stated size, as in Kafka: of format 2 if the magic is above 1, else of format 1; never valid. And after a batch
        with a wrong CRC reading continues at its stated end, as in Kafka, if an entry is there.
        """
        end = self.end_position()
        legacy = seen_legacy = False
        doubt: Contradiction | None = None
        looked_at = INT64_MAX if self._witnesses is None else position  # before this byte only `doubt` is contradicted
        suspect: int | None = None  # with `lenient`: the previous batch, if its CRC is wrong: its length may be wrong, too
        while position < end:
            if position < self._start or position + HEADER_BYTES > self._start + self._filled:
                self._fill(position, limits.READ_CHUNK_BYTES, end)
            index = position - self._start
            if position >= looked_at:
                assert self._witnesses is not None
                doubt = self._witnesses.of_read(self._buffer, index, self._filled, position)
                looked_at = (self._start + self._filled - HEADER_BYTES if doubt is None else doubt.position) + 1
            fault = self._entry_fault(position, index, end)
            if lenient and fault is not None and fault[0] in (BAD_MAGIC, SHORT_HEADER) and self._filled - index >= HEADER_BYTES:
                fault = None
            if fault is None:
                magic = self._buffer[index + MAGIC_POSITION]
                seen_legacy = seen_legacy or legacy
                legacy = magic < 2 or magic > 127
                header = read_entry_header(self._buffer, index, position)
                batch = self._load(header, index, end)
                if batch is not None:
                    if header.end_position == end and batch.is_valid:
                        doubt = self.last_contradiction(end) or doubt
                    if doubt is not None and doubt.position == position and batch.is_valid:
                        batch.contradiction = doubt.message
                    if batch.is_valid or lenient or not resynchronise or batch.contradiction is not None:
                        floor = batch.header.next_offset if batch.is_valid else floor
                        suspect = None if batch.is_valid else position
                        yield batch
                        position = header.end_position
                        continue
                    after = yield from self._invalid(batch, end, floor, legacy=legacy or seen_legacy or position == 0)
                    if after is None:
                        return
                    position = after
                    continue
                fault = (TRUNCATED, "the file shrank while it was read")
            kind, message = fault
            found, damaged = None, None
            if kind != ZEROS and resynchronise:
                entry = position if suspect is None else suspect
                found = self._behind(entry, end, floor, legacy=legacy or entry == 0).position
                suspect = None
                damaged = plausible_header(self.file, position) or torn_header(self.file, position)
            yield Damage(position, end if found is None else found, kind, message, damaged)
            if found is None:
                return
            position = found

    def last_contradiction(self, end: int | None = None) -> Contradiction | None:
        """Return what contradicts the offsets of the segment's last batch, up to byte `end`; None for nothing.

        Without `doubts_offsets`, or if more bytes follow, the result is None. Raises OSError.
        """
        if self._witnesses is None:
            return None
        end = self.end_position() if end is None else end
        if end not in self._doubts:
            self._doubts = {end: self._witnesses.of_last(end)}
        return self._doubts[end]

    def contradiction_in(self, buffer: Buffer, start: int, filled: int, position: int) -> Contradiction | None:
        """Return what contradicts the first contradicted batch in buffer[start:filled], which are the bytes from `position` on.

        Without `doubts_offsets` the result is None. Raises OSError.
        """
        if self._witnesses is None:
            return None
        found = self._witnesses.of_read(buffer, start, filled, position)
        end = self.end_position()
        last = self.last_contradiction(end) if found is None and position + filled - start >= end else None
        return last if last is not None and last.position >= position else found

    def batches_as_kafka(self, position: int = 0) -> Iterator[LogBatch]:
        """Yield the batches from byte `position` on, as Kafka reads them.

        Reading ends at 17 bytes or fewer, and at an entry that exceeds the file. Raises CorruptRecordError where Kafka does,
        and OSError.
        """
        for found in self.batches(position, resynchronise=False, lenient=True):
            if not isinstance(found, Damage):
                yield found
            elif found.kind in (ZEROS, BAD_SIZE) and self.end_position() - found.position > ENTRY_HEAD_BYTES:
                raise CorruptRecordError(found.message, found.position)

    def _invalid(
        self, batch: LogBatch, end: int, floor: int, *, legacy: bool
    ) -> Generator[LogBatch | Damage, None, int | None]:
        """Yield a batch with a wrong CRC, or the Damage that it is; return where the log continues, or None."""
        position, stated_end = batch.position, batch.end_position
        behind = self._behind(position, end, floor, legacy=legacy)
        if behind.is_proven and behind.position is not None and behind.position != stated_end:
            message = f"the batch states {batch.header.size_bytes} bytes, its CRC is that of {behind.position - position} bytes"
            yield Damage(position, behind.position, BAD_SIZE, message, plausible_header(self.file, position))
            return behind.position
        yield batch
        if behind.position != stated_end and stated_end < end:
            message = f"the log has no sign of where the next batch after the damaged one at byte {position} begins"
            yield Damage(stated_end, end if behind.position is None else behind.position, LOST_PLACE, message)
        return behind.position

    def buffered(self, position: int, *, fresh: bool = False) -> tuple[memoryview, int, int]:
        """Return a buffer with bytes from byte `position` on, and the start and end of these bytes in it.

        They are valid until the next read. Bytes that are in the buffer are used; with `fresh` a chunk is read again.
        """
        if fresh or position < self._start or position >= self._start + self._filled:
            self._fill(position, self._chunk_bytes, self.end_position())
        return self._buffer, position - self._start, self._filled

    def _behind(self, position: int, end: int, floor: int, *, legacy: bool) -> Continuation:
        """Return where the log continues after the unsound entry at byte `position`."""
        if self._resynchroniser is None:
            from kcli.log.reading.resynchronise import Resynchroniser

            self._resynchroniser = Resynchroniser(self.file, self._positions, self._has_keyless, self._log)
        return self._resynchroniser.behind(position, end, floor=floor, legacy=legacy)

    def _has_keyless(self, header: RecordBatch) -> bool:
        """Return True if one of the first records of a sound batch has no key; the buffer stays as it is."""
        size = header.size_bytes
        data = memoryview(self.file.read_at(header.position, size)) if size <= limits.STREAMED_BATCH_BYTES else None
        window = next(LogBatch(header, data, header.crc, self.file).windows(RecordScanner(), skip_large=True), None)
        return window is not None and any(window.columns.key_size[row] < 0 for row in range(window.count))

    def header_at(self, position: int, end: int | None = None) -> RecordBatch | LegacyBatch:
        """Return the header of the entry at byte `position`.

        Raises CorruptRecordError if no entry fits before byte `end`.
        """
        limit = self.end_position() if end is None else min(end, self.end_position())
        head = self.file.read_at(position, HEADER_BYTES)
        if len(head) <= ENTRY_HEAD_BYTES or position < 0:
            raise CorruptRecordError(f"no batch begins at byte {position}", position)
        size = entry_size(head) - LOG_OVERHEAD_BYTES
        if not MIN_ENTRY_SIZE <= size <= limit - position - LOG_OVERHEAD_BYTES:
            raise CorruptRecordError(f"the entry at byte {position} states {size} bytes, which do not fit", position)
        try:
            return read_entry_header(head, 0, position)
        except StructError:
            raise CorruptRecordError(f"the batch at byte {position} is shorter than its header", position) from None

    def batch_at(self, position: int) -> LogBatch | Damage | None:
        """Return the entry at byte `position`, None at the end."""
        return next(self.batches(position, resynchronise=False), None)

    def _fill(self, position: int, size: int, end: int) -> None:
        size = min(size, max(end - position, 0))
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._start = position
        self._filled = self.file.read_into(position, self._buffer[: max(size, 0)])

    def _entry_fault(self, position: int, index: int, end: int) -> tuple[str, str] | None:
        """Return (kind, message) if the bytes at `position` are not an entry, else None."""
        left = min(end - position, self._filled - index)
        if left <= ENTRY_HEAD_BYTES:
            if left < min(end - position, HEADER_BYTES):
                return TRUNCATED, "the file shrank while it was read"
            if not any(self._buffer[index : index + left]):
                return ZEROS, _zeros(end - position)
            return TRUNCATED, f"{left} bytes are too few for a batch"
        size = entry_size(self._buffer, index) - LOG_OVERHEAD_BYTES
        if size < MIN_ENTRY_SIZE:
            if size == 0 and zeros_follow(self.file, position, end):
                return ZEROS, _zeros(end - position)
            return BAD_SIZE, f"the batch states a size of {size} bytes, less than the least possible {MIN_ENTRY_SIZE}"
        if size > end - position - LOG_OVERHEAD_BYTES:
            return (
                TRUNCATED,
                f"the batch states {size + LOG_OVERHEAD_BYTES} bytes and {end - position} are left in the file",
            )
        magic = self._buffer[index + MAGIC_POSITION]
        if magic > 2:
            return BAD_MAGIC, f"the batch has magic {magic - ((magic & 0x80) << 1)}; 0, 1 and 2 are known"
        if magic == 1 and size < MIN_ENTRY_SIZE_1:
            return SHORT_HEADER, f"the message states {size} bytes, less than the least possible {MIN_ENTRY_SIZE_1} of format 1"
        if magic == 2 and size < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            return (
                SHORT_HEADER,
                f"the batch states {size + LOG_OVERHEAD_BYTES} bytes, less than its header of {HEADER_BYTES}",
            )
        return None

    def _load(self, header: RecordBatch | LegacyBatch, index: int, end: int) -> LogBatch | None:
        """Read the whole batch and compute its CRC; None if the file has shrunk."""
        size = header.size_bytes
        if size > limits.STREAMED_BATCH_BYTES:
            crc = streamed_crc(self.file, header)
            return None if crc is None else LogBatch(header, None, crc, self.file)
        if index + size > self._filled:
            self._fill(header.position, max(size, limits.READ_CHUNK_BYTES), end)
            index = 0
            if size > self._filled:
                return None
        data = self._buffer[index : index + size]
        if isinstance(header, RecordBatch):
            crc = crc32c(data[CRC_START:]) if size >= HEADER_BYTES else -1
            return LogBatch(header, data, crc, self.file)
        from kcli.format.legacy_message_set import legacy_crc

        return LogBatch(header, data, legacy_crc(data), self.file)
