"""What kafka-dump-log 4.3.1 prints, byte for byte (`--output kafka`): log segments and snapshots of the metadata.

    batch, format 2     baseOffset: B lastOffset: L count: C baseSequence: s lastSequence: t producerId: p producerEpoch: e
                        partitionLeaderEpoch: le isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty
                        position: P CreateTime: T size: S magic: 2 compresscodec: none crc: U isvalid: true
    batch, format 0, 1  offset: L position: P CreateTime: T size: S magic: 1 compresscodec: gzip crc: U isvalid: true
    record              | offset: O CreateTime: T keySize: k valueSize: v sequence: q headerKeys: [a,b] key: K payload: V

Kafka's tool dies at the first damage, with a stack trace, and leaves out the files behind it. This one prints what Kafka's
prints up to there, says on stderr what is wrong and where, and goes on. Its summary on stderr is Kafka's without three false
alarms of 4.3.1: the pair "-1 is followed by N" of every segment that does not begin at 0; a timestamp of -1 for a batch that
the cleaner emptied; an index entry that points at the start of a message set of format 0 or 1.

Index files and producer snapshots: kcli.inspect.dumping.kafka_text_indexes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcli.format import limits, loop_results
from kcli.format.compression import CODECS, inflate
from kcli.format.java_text import decode_utf8
from kcli.format.primitives import INT32_MAX, Buffer, FormatError, crc32c
from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.format.record_scan import is_compiled
from kcli.inspect.dumping import batch_lines
from kcli.inspect.dumping.record_lines import first_gap, put_record_lines
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import TRUNCATED, ZEROS, Damage, LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024
# So many batches at most are printed one by one before the compiled way is tried again.
MOST_STEPS = 64
KAFKA_END_BYTES = 17  # so many bytes or fewer are the end of the log to Kafka, not an entry


class ContentParser(Protocol):
    """Turns a record into the texts behind `key:` and `payload:`."""

    def describe(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        """Key and value as text, None for what is not printed. Raises FormatError where Kafka's decoder throws."""
        ...

    def describe_unreadable(self, offset: int, key: bytes | None, java_message: str) -> tuple[str | None, str | None]:
        """The same of a record whose value cannot be had, for the reason that Java's exception gives."""
        ...


class DumpOptions(NamedTuple):
    """kafka-dump-log's own options; see docs/dump-log.md. `parser` None: both texts by the StringDecoder."""

    print_data_log: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_bytes: int = INT32_MAX
    parser: ContentParser | None = None


class Summary:
    """What stands on stderr at the very end; keys are absolute paths, as Kafka prints them."""

    def __init__(self) -> None:
        self.index_mismatches: dict[str, dict[int, int]] = {}
        self.timestamp_mismatches: dict[str, list[tuple[int, int]]] = {}
        self.timestamps_out_of_order: dict[str, list[tuple[int, int]]] = {}
        self.offsets_not_found: dict[str, list[tuple[int, int]]] = {}
        self.non_consecutive: dict[str, dict[int, int]] = {}

    def lines(self) -> Iterable[str]:
        """The summary's lines, in Kafka's order of the kinds."""
        for path, offsets in self.index_mismatches.items():
            yield f"Mismatches in :{path}"
            for index_offset, log_offset in sorted(offsets.items(), reverse=True):
                yield f"  Index offset: {index_offset}, log offset: {log_offset}"
        for path, pairs in self.timestamp_mismatches.items():
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {index_ms}, log timestamp: {log_ms}" for index_ms, log_ms in pairs)
        for path, pairs in self.timestamps_out_of_order.items():
            yield f"Found out of order timestamp in :{path}"
            for index_ms, previous_ms in pairs:
                yield f"  Index timestamp: {index_ms}, Previously indexed timestamp: {previous_ms}"
        for path, pairs in self.offsets_not_found.items():
            yield f"The following indexed offsets are not found in :{path}"
            yield from (f"Indexed offset: {index_offset}, found log offset: {found}" for index_offset, found in pairs)
        for path, offsets in self.non_consecutive.items():
            yield f"Non-consecutive offsets in {path}"
            yield from (f"  {previous} is followed by {offset}" for previous, offset in sorted(offsets.items()))


class Report:
    """Where damage is told, one sentence each, and remembered for the exit code."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.damaged = False

    def damage(self, path: str, position: int | None, message: str) -> None:
        """Tell of damage in file `path` at byte `position` (None: of the file as a whole)."""
        self.damaged = True
        self.note(path, position, message)

    def note(self, path: str, position: int | None, message: str) -> None:
        """Tell of something that is no damage."""
        self._tell(f"kcli: {path}: {message}" if position is None else f"kcli: {path}: byte {position}: {message}")

    def ignored(self, path: str) -> None:
        """Tell, in Kafka's words, of a file that kafka-dump-log does not know."""
        self._tell(f"Ignoring unknown file {path}")


class LogDumper:
    """Prints `.log` and `.checkpoint` files. `absolute` gives the path that the summary names a file by."""

    def __init__(
        self, disk: Disk, out: TextBuffer, options: DumpOptions, report: Report, absolute: Callable[[str], str]
    ) -> None:
        self._disk = disk
        self._out = out
        self._options = options
        self._report = report
        self._absolute = absolute
        self._scanner = RecordScanner()
        self._fast = options.parser is None and is_compiled()
        self._deep = options.deep_iteration or options.print_data_log
        self._stretches = is_compiled() and (options.parser is None or not self._deep)
        self.summary = Summary()

    def dump(self, path: str) -> None:
        """Print one file, from its batches on. Raises OSError where it cannot be opened or read."""
        size, most = self._disk.size(path), self._options.max_bytes
        end = min(size, most) if most < INT32_MAX else size
        with SegmentReader(self._disk, path, end=end) as reader:
            self._consecutive = _Consecutive(self.summary, path, self._absolute)
            position, steps, has_shrunk = 0, 1, False
            while position < end:
                if self._stretches:
                    behind = self._stretch(reader, position, end)
                    steps = 1 if behind > position else min(2 * steps, MOST_STEPS)
                    position = behind
                position = self._step_by_step(reader, path, position, steps if self._stretches else None)
                if (left := reader.end_position()) < end:
                    end, has_shrunk = left, True
            if has_shrunk:
                self._report.damage(path, position, "the file shrank while it was read")

    def _stretch(self, reader: SegmentReader, position: int, end: int) -> int:
        """Print usual batches from byte `position` on, in compiled code -> the byte behind them."""
        out, options = self._out, self._options
        fresh = False
        while position < end:
            buffer, start, filled = reader.buffered(position, fresh=fresh)
            behind = batch_lines.put_batch_lines(
                out.memory,
                buffer,
                buffer,
                start,
                filled,
                position - start,
                crc32c,
                _inflate_window,
                self._consecutive.note,
                self._deep,
                not options.skip_record_metadata,
                options.print_data_log,
                self._scanner.columns,
                self._consecutive.state,
                out.place,
            )
            position += behind - start
            if self._consecutive.state[batch_lines.WHY] == loop_results.NEED_MORE:
                if fresh and behind == start:
                    break
                fresh = True
            elif out.place[0] > len(out.memory) // 2:
                out.flush()
                fresh = False
            else:
                break
        return position

    def _step_by_step(self, reader: SegmentReader, path: str, position: int, steps: int | None) -> int:
        """Print what lies from byte `position` on, one batch after the other -> the byte behind the last one.

        With `steps` it ends behind the first sound batch of format 2 after so many.
        """
        for item in reader.batches(position, lenient=True):
            position = item.end_position
            if isinstance(item, Damage):
                self._damage(path, item, reader)
                continue
            self._batch(path, item)
            if steps is not None:
                steps -= 1
                if steps <= 0 and item.is_valid and isinstance(item.header, RecordBatch):
                    return position
        return reader.end_position()

    def _batch(self, path: str, batch: LogBatch) -> None:
        """Print a batch and, where they are asked for, its records."""
        if not self._batch_line(batch):
            self._report.damage(path, batch.position, f"unknown compression type {batch.header.codec}")
            return
        if not batch.is_valid:
            message = f"the stored CRC is {batch.header.crc}, the computed one {batch.computed_crc & 0xFFFFFFFF}"
            self._report.damage(path, batch.position, message)
        if self._deep:
            self._records(path, batch)

    def _damage(self, path: str, damage: Damage, reader: SegmentReader) -> None:
        size = reader.file.size()
        left = reader.end_position() - damage.position
        if damage.kind in (TRUNCATED, ZEROS) and reader.end_position() < size and damage.end_position >= reader.end_position():
            return  # the rest was not asked for (--max-bytes)
        if damage.kind == TRUNCATED or left <= KAFKA_END_BYTES:
            name = path.rsplit("/", 1)[-1]
            if self._options.max_bytes >= INT32_MAX:
                self._out.put(b"Found %d invalid bytes at the end of %s\n" % (left, name.encode(errors="surrogateescape")))
        if damage.kind == ZEROS:
            self._report.note(path, damage.position, f"{damage.message}: preallocated, or never written before a crash")
            return
        found = damage.end_position < reader.end_position()
        where = f"; going on at byte {damage.end_position}" if found else "; no sound batch follows"
        self._report.damage(path, damage.position, damage.message + where)

    def _batch_line(self, batch: LogBatch) -> bool:
        """Print the line of a batch; False where Kafka knows no such codec, and prints half of it."""
        header = batch.header
        codec = CODECS.get(header.codec)
        if isinstance(header, RecordBatch):
            horizon = header.delete_horizon_ms
            self._out.put(
                b"baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d producerEpoch: %d "
                b"partitionLeaderEpoch: %d isTransactional: %s isControl: %s deleteHorizonMs: %s"
                % (
                    header.base_offset,
                    header.last_offset,
                    header.record_count,
                    header.base_sequence,
                    header.last_sequence,
                    header.producer_id,
                    header.producer_epoch,
                    header.partition_leader_epoch,
                    b"true" if header.is_transactional else b"false",
                    b"true" if header.is_control else b"false",
                    b"OptionalLong.empty" if horizon is None else b"OptionalLong[%d]" % horizon,
                )
            )
        else:
            self._out.put(b"offset: %d" % header.last_offset)
        if codec is None:
            self._out.put(b"\n")
            return False
        self._out.put(
            b" position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %s\n"
            % (
                header.position,
                _time_name(header),
                header.max_timestamp,
                header.size_bytes,
                header.magic,
                codec.encode(),
                header.crc,
                b"true" if batch.is_valid else b"false",
            )
        )
        return True

    def _records(self, path: str, batch: LogBatch) -> None:
        """Print the records of a batch; of a compressed one of format 2 all or none, since Kafka reads it to its end first."""
        windows = batch.windows(self._scanner, lenient=True)
        first = next(windows, None)
        if first is None:
            return
        if isinstance(batch.header, RecordBatch) and batch.header.codec:
            fault = first.error.message if first.error else None
            if fault is None and first.count != batch.header.record_count:
                fault = self._fault_within(batch)
                windows = batch.windows(self._scanner)
                first = next(windows)
            if fault is not None:
                self._report.damage(path, batch.position, fault)
                return
        for window in chain((first,), windows):
            count = window.count - (1 if window.leftover else 0)
            fault = self._window(batch, window, count)
            if fault is None and window.error is not None:
                fault = window.error.message
            if fault is not None:
                self._report.damage(path, batch.position, fault)
                return

    def _fault_within(self, batch: LogBatch) -> str | None:
        for window in batch.windows(self._scanner):
            if window.error is not None:
                return window.error.message
        return None

    def _window(self, batch: LogBatch, window: RecordWindow, count: int) -> str | None:
        """Print `count` records of a window -> what stopped it, or None."""
        header, columns, options = batch.header, window.columns, self._options
        self._consecutive.add(columns.offset, count)
        fast = self._fast and isinstance(header, RecordBatch) and not header.is_control
        fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
        label = b" %s: " % _time_name(header)
        index = 0
        while index < count:
            if fast and isinstance(header, RecordBatch):
                index = put_record_lines(
                    self._out.memory,
                    window.buffer,
                    columns,
                    index,
                    count,
                    label,
                    fixed or 0,
                    fixed is not None,
                    header.base_offset,
                    header.base_sequence,
                    not options.skip_record_metadata,
                    options.print_data_log,
                    self._out.place,
                )
                if index >= count:
                    break
                if self._out.place[0] > len(self._out.memory) // 2:
                    self._out.flush()
                    continue
            fault = self._record(batch, window, index, label, fixed)
            self._out.put(b"\n")
            if fault is not None:
                return fault
            index += 1
        return None

    def _record(self, batch: LogBatch, window: RecordWindow, index: int, label: bytes, fixed: int | None) -> str | None:
        """Print one record without its line's end, in Python -> what stopped it, or None."""
        is_control = isinstance(batch.header, RecordBatch) and batch.header.is_control
        prefix, fault = b"| ", None
        if not self._options.skip_record_metadata:
            prefix = b" "
            self._metadata(batch, window, index, label, fixed)
            fault = self._control(window, index) if is_control else None
        if fault is not None or is_control or not self._options.print_data_log:
            return fault
        try:
            key, value = self._contents(window, index)
        except FormatError as error:
            return error.message
        if key is not None:
            self._out.put(prefix + b"key: " + java_bytes(key))
            prefix = b" "
        if value is not None:
            self._out.put(prefix + b"payload: " + java_bytes(value))
        return None

    def _metadata(self, batch: LogBatch, window: RecordWindow, index: int, label: bytes, fixed: int | None) -> None:
        header, columns = batch.header, window.columns
        offset = columns.offset[index]
        timestamp = columns.timestamp[index] if fixed is None else fixed
        head = b"| offset: %d%s%d keySize: %d valueSize: %d"
        if isinstance(header, RecordBatch):
            sequence = -1
            if header.base_sequence >= 0:
                sequence = increment_sequence(header.base_sequence, offset - header.base_offset)
            keys = java_bytes(",".join(decode_utf8(item.key) for item in window.headers(index)))
            sizes = (columns.key_size[index], columns.value_size[index])
            self._out.put(head % (offset, label, timestamp, *sizes) + b" sequence: %d headerKeys: [%s]" % (sequence, keys))
        elif window.legacy is not None:
            record = window.legacy[index]
            rest = b" isValid: %s crc: %d" % (b"true" if record.is_valid else b"false", record.crc)
            self._out.put(head % (offset, label, timestamp, record.key_size, record.value_size) + rest)

    def _control(self, window: RecordWindow, index: int) -> str | None:
        """Print what a control record says -> what stopped it, or None."""
        from kcli.protocol.control_records import control_suffix

        try:
            self._out.put(java_bytes(control_suffix(window.key(index), window.value(index))))
        except FormatError as error:
            return error.message
        return None

    def _contents(self, window: RecordWindow, index: int) -> tuple[str | None, str | None]:
        """The texts of key and value. Raises FormatError where Kafka's tool dies of them."""
        parser, offset, key = self._options.parser, window.columns.offset[index], window.key(index)
        record = None if window.legacy is None else window.legacy[index]
        if record is not None and record.value_left is not None:
            if parser is None:
                raise FormatError(f"offset {offset}: the value states {record.value_size} bytes; {record.value_left} are left")
            return parser.describe_unreadable(offset, key, f"newLimit > capacity: ({record.value_size} > {record.value_left})")
        if parser is None:
            return describe_plain(key, window.value(index))
        return parser.describe(offset, key, window.value(index))


def java_bytes(text: str) -> bytes:
    """Text as Java prints it under C.UTF-8: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace")


def describe_plain(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Key and value by Kafka's StringDecoder."""
    return (None if key is None else decode_utf8(key)), (None if value is None else decode_utf8(value))


def _time_name(header: RecordBatch | LegacyBatch) -> bytes:
    if header.magic == 0:
        return b"NoTimestampType"
    return b"LogAppendTime" if header.is_log_append_time else b"CreateTime"


def _inflate_window(codec: int, data: Buffer) -> bytes | None:
    """The inflated bytes of a batch, or None where they are damaged or more than are held at once."""
    try:
        return inflate(codec, data, limit=limits.INFLATE_WINDOW_BYTES)
    except FormatError:
        return None


class _Consecutive:
    """Notes the pairs of neighbouring records whose offsets are not consecutive, as Kafka's summary lists them.

    `state` is that of kcli.inspect.dumping.batch_lines, where the last record's offset stands.
    """

    def __init__(self, summary: Summary, path: str, absolute: Callable[[str], str]) -> None:
        self._summary = summary
        self._path = path
        self._absolute = absolute
        self.state = array("q", (0, batch_lines.NO_OFFSET))

    def add(self, offsets: array[int], count: int) -> None:
        """Look at the first `count` offsets of a window."""
        if not count:
            return
        last = self.state[batch_lines.LAST_OFFSET]
        if last != batch_lines.NO_OFFSET and offsets[0] != last + 1:
            self.note(last, offsets[0])
        index = first_gap(offsets, count)
        while index < count:
            self.note(offsets[index - 1], offsets[index])
            index += first_gap(offsets[index:count], count - index)
        self.state[batch_lines.LAST_OFFSET] = offsets[count - 1]

    def note(self, previous: int, offset: int) -> None:
        """Remember one such pair."""
        self._summary.non_consecutive.setdefault(self._absolute(self._path), {})[previous] = offset
