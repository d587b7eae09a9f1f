"""What kafka-dump-log 4.3.1 prints, byte for byte (`--output kafka`): log segments and snapshots of the metadata.

    batch, format 2     baseOffset: B lastOffset: L count: C baseSequence: s lastSequence: t producerId: p producerEpoch: e
                        partitionLeaderEpoch: le isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty
                        position: P CreateTime: T size: S magic: 2 compresscodec: none crc: U isvalid: true
    batch, format 0, 1  offset: L position: P CreateTime: T size: S magic: 1 compresscodec: gzip crc: U isvalid: true
    record              | offset: O CreateTime: T keySize: k valueSize: v sequence: q headerKeys: [a,b] key: K payload: V

Kafka's tool stops at the first damage with a stack trace, and does not print the files after it. This one prints the same up to
there, says on stderr what is wrong and where, and continues. Its summary on stderr is Kafka's without three false alarms of
4.3.1: the pair "-1 is followed by N" of every segment that does not begin at 0; a timestamp of -1 for a batch that the cleaner
emptied; an index entry that points at the start of a message set of format 0 or 1.

`dump_as_kafka` prints each file by the suffix of its name, then the summary on stderr.

suffix                 printed by                     other files
---------------------  -----------------------------  ------------------------------------------------
.log, .checkpoint      LogDumper                      "Ignoring unknown file F" on stderr, as Kafka
.index, .timeindex     IndexDumper
.txnindex, .snapshot   IndexDumper

Lines of index files and producer snapshots:

    .index      offset: O position: P
    .timeindex  timestamp: T offset: O
    .txnindex   version: 0 producerId: p firstOffset: f lastOffset: l lastStableOffset: s
    .snapshot   producerId: p producerEpoch: e coordinatorEpoch: c currentTxnFirstOffset: OptionalLong[100] lastTimestamp: t
                and, if the producer has a batch, firstSequence: lastSequence: lastOffset: offsetDelta: timestamp:

Each entry of `.index` and `.timeindex` is compared with the log of the segment, as by Kafka's tool. Unlike that tool, this one
creates no missing files, and prints a file to its end even if an entry points nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcli.format import limits, loop_results
from kcli.format.compression import CODECS, inflate
from kcli.format.index_entries import NO_TIMESTAMP, OffsetIndex, TimeIndex, TransactionIndex
from kcli.format.java_text import decode_utf8
from kcli.format.limits import MAX_INDEX_FILE_BYTES
from kcli.format.primitives import INT32_MAX, INT64_MAX, Buffer, FormatError, crc32c
from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.format.record_scan import is_compiled
from kcli.inspect.dumping import batch_lines, record_lines
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import TRUNCATED, ZEROS, Damage, LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024
# The most batches that are printed one by one before the compiled code is tried again.
MOST_SLOW_BATCHES = 64
KAFKA_END_BYTES = 17  # to Kafka, this many bytes or fewer are the end of the log, not an entry


class ContentParser(Protocol):
    """Turns a record into the texts after `key:` and `payload:`."""

    def describe(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        """Return key and value as text, None if one is not printed. Raises FormatError if Kafka's decoder throws."""
        ...

    def describe_unreadable(self, offset: int, key: bytes | None, java_message: str) -> tuple[str | None, str | None]:
        """Return the same of a record whose value cannot be had, for the reason that Java's exception gives."""
        ...


class KafkaDumpOptions(NamedTuple):
    """kafka-dump-log's own options; see docs/dump-log.md. `parser` None: both texts by the StringDecoder."""

    print_data_log: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_bytes: int = INT32_MAX
    parser: ContentParser | None = None


class DumpSummary:
    """The summary that is printed on stderr at the end; keys are absolute paths, as Kafka prints them."""

    def __init__(self) -> None:
        self.index_mismatches: dict[str, dict[int, int]] = {}
        self.timestamp_mismatches: dict[str, list[tuple[int, int]]] = {}
        self.timestamps_out_of_order: dict[str, list[tuple[int, int]]] = {}
        self.offsets_not_found: dict[str, list[tuple[int, int]]] = {}
        self.non_consecutive: dict[str, dict[int, int]] = {}

    def lines(self) -> Iterable[str]:
        """Yield the lines of the summary in Kafka's order."""
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


class DamageReport:
    """Writes lines on damage to stderr; `damaged` is True after the first one."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self.damaged = False

    def damage(self, path: str, position: int | None, message: str) -> None:
        """Report damage in file `path` at byte `position` (None: of the whole file)."""
        self.damaged = True
        self.note(path, position, message)

    def note(self, path: str, position: int | None, message: str) -> None:
        """Report something that is not damage."""
        self._write_line(f"kcli: {path}: {message}" if position is None else f"kcli: {path}: byte {position}: {message}")

    def ignored(self, path: str) -> None:
        """Report a file that kafka-dump-log does not know, in Kafka's words."""
        self._write_line(f"Ignoring unknown file {path}")


class LogDumper:
    """Prints `.log` and `.checkpoint` files. `absolute` returns the path that the summary has for a file.

    Sound batches of format 2 are printed many at a time by kcli.inspect.dumping.batch_lines; the others, and those with records
    that need more than copying, one by one here. Tests hold both ways to the same bytes.
    """

    def __init__(
        self, disk: Disk, out: TextBuffer, options: KafkaDumpOptions, report: DamageReport, absolute: Callable[[str], str]
    ) -> None:
        self._disk = disk
        self._out = out
        self._options = options
        self._report = report
        self._absolute = absolute
        self._path = ""
        self._scanner = RecordScanner()
        self._deep = options.deep_iteration or options.print_data_log
        self._has_compiled_lines = options.parser is None and is_compiled()
        self._has_compiled_batches = is_compiled() and (options.parser is None or not self._deep)
        columns = self._scanner.columns
        self._gaps = record_lines.OffsetGaps(self._note_gap)
        self._lines = record_lines.RecordLines(columns, not options.skip_record_metadata, options.print_data_log)
        self._batches = batch_lines.BatchLines(out, columns, self._lines, self._gaps, crc32c, _inflate_window, self._deep)
        self.summary = DumpSummary()

    def dump(self, path: str) -> None:
        """Print the batches of one file. Raises OSError if it cannot be opened or read."""
        self._path = path
        self._gaps.begin_file()
        size, limit = self._disk.size(path), self._options.max_bytes
        end = min(size, limit) if limit < INT32_MAX else size
        with SegmentReader(self._disk, path, end=end) as reader:
            position, slow_batches, has_shrunk = 0, 1, False
            while position < end:
                if self._has_compiled_batches:
                    printed_to = self._print_compiled(reader, position, end)
                    slow_batches = 1 if printed_to > position else min(2 * slow_batches, MOST_SLOW_BATCHES)
                    position = printed_to
                position = self._print_slowly(reader, position, slow_batches if self._has_compiled_batches else None)
                if (left := reader.end_position()) < end:
                    end, has_shrunk = left, True
            if has_shrunk:
                self._report.damage(path, position, "the file shrank while it was read")

    def _print_compiled(self, reader: SegmentReader, position: int, end: int) -> int:
        """Print the batches from byte `position` that need no Python object; return the position after them."""
        is_fresh = False
        while position < end:
            buffer, start, filled = reader.buffered(position, fresh=is_fresh)
            printed_to = self._batches.put(buffer, buffer, start, filled, position - start)
            position += printed_to - start
            if self._batches.result == loop_results.NEED_MORE:
                if is_fresh and printed_to == start:
                    break
                is_fresh = True
            elif self._out.flush_if_half_full():
                is_fresh = False
            else:
                break
        return position

    def _print_slowly(self, reader: SegmentReader, position: int, count: int | None) -> int:
        """Print batches and damage from byte `position` one by one; return the position after the last one.

        With a `count` it ends with the first sound batch of format 2 after `count` - 1 batches.
        """
        for item in reader.batches(position, lenient=True):
            position = item.end_position
            if isinstance(item, Damage):
                self._damage(item, reader)
                continue
            self._batch(item)
            if count is not None:
                count -= 1
                if count <= 0 and item.is_valid and isinstance(item.header, RecordBatch):
                    return position
        return reader.end_position()

    def _batch(self, batch: LogBatch) -> None:
        """Print a batch and, if they are asked for, its records."""
        if not self._batch_line(batch):
            self._report.damage(self._path, batch.position, f"unknown compression type {batch.header.codec}")
            return
        if not batch.is_valid:
            message = f"the stored CRC is {batch.header.crc}, the computed one {batch.computed_crc & 0xFFFFFFFF}"
            self._report.damage(self._path, batch.position, message)
        if self._deep:
            self._records(batch)

    def _damage(self, damage: Damage, reader: SegmentReader) -> None:
        size = reader.file.size()
        left = reader.end_position() - damage.position
        if damage.kind in (TRUNCATED, ZEROS) and reader.end_position() < size and damage.end_position >= reader.end_position():
            return  # --max-bytes leaves out the rest
        if damage.kind == TRUNCATED or left <= KAFKA_END_BYTES:
            name = self._path.rsplit("/", 1)[-1]
            if self._options.max_bytes >= INT32_MAX:
                self._out.put(b"Found %d invalid bytes at the end of %s\n" % (left, name.encode(errors="surrogateescape")))
        if damage.kind == ZEROS:
            self._report.note(self._path, damage.position, f"{damage.message}: preallocated, or never written before a crash")
            return
        found = damage.end_position < reader.end_position()
        where = f"; continuing at byte {damage.end_position}" if found else "; no sound batch follows"
        self._report.damage(self._path, damage.position, damage.message + where)

    def _batch_line(self, batch: LogBatch) -> bool:
        """Print the line of a batch; return False for a codec that Kafka does not know: it then prints half of the line."""
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

    def _records(self, batch: LogBatch) -> None:
        """Print the records of a batch; of a compressed one of format 2 all or none: Kafka reads it to its end first."""
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
                self._report.damage(self._path, batch.position, fault)
                return
        for window in chain((first,), windows):
            count = window.count - (1 if window.leftover else 0)
            fault = self._window(batch, window, count)
            if fault is None and window.error is not None:
                fault = window.error.message
            if fault is not None:
                self._report.damage(self._path, batch.position, fault)
                return

    def _fault_within(self, batch: LogBatch) -> str | None:
        for window in batch.windows(self._scanner):
            if window.error is not None:
                return window.error.message
        return None

    def _window(self, batch: LogBatch, window: RecordWindow, count: int) -> str | None:
        """Print `count` records of a window; return the sentence on the fault that stopped it, or None."""
        header = batch.header
        self._gaps.add(window.columns.offset, count)
        is_compiled_here = self._has_compiled_lines and isinstance(header, RecordBatch) and not header.is_control
        if isinstance(header, RecordBatch):
            self._lines.begin_batch(header.base_offset, header.base_sequence, header.max_timestamp, header.is_log_append_time)
        fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
        label = b" %s: " % _time_name(header)
        index = 0
        while index < count:
            if is_compiled_here:
                index = self._lines.put(self._out, window.buffer, index, count)
                if index == count:
                    break
                if self._out.flush_if_half_full():
                    continue
            fault = self._record(batch, window, index, label, fixed)
            self._out.put(b"\n")
            if fault is not None:
                return fault
            index += 1
        return None

    def _record(self, batch: LogBatch, window: RecordWindow, index: int, label: bytes, fixed: int | None) -> str | None:
        """Print one record without its line end; return the sentence on the fault that stopped it, or None."""
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

    def _note_gap(self, previous: int, offset: int) -> None:
        self.summary.non_consecutive.setdefault(self._absolute(self._path), {})[previous] = offset

    def _control(self, window: RecordWindow, index: int) -> str | None:
        """Print the contents of a control record; return the sentence on the fault that stopped it, or None."""
        from kcli.protocol.control_records import control_suffix

        try:
            self._out.put(java_bytes(control_suffix(window.key(index), window.value(index))))
        except FormatError as error:
            return error.message
        return None

    def _contents(self, window: RecordWindow, index: int) -> tuple[str | None, str | None]:
        """Return the texts of key and value. Raises FormatError if Kafka's tool stops at them."""
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
    """Encode text as Java prints it under C.UTF-8: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace")


def describe_plain(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Decode key and value as Kafka's StringDecoder does."""
    return (None if key is None else decode_utf8(key)), (None if value is None else decode_utf8(value))


def _time_name(header: RecordBatch | LegacyBatch) -> bytes:
    if header.magic == 0:
        return b"NoTimestampType"
    return b"LogAppendTime" if header.is_log_append_time else b"CreateTime"


def _inflate_window(codec: int, data: Buffer) -> bytes | None:
    """Return the inflated bytes of a batch, or None if they are damaged or more than INFLATE_WINDOW_BYTES."""
    try:
        return inflate(codec, data, limit=limits.INFLATE_WINDOW_BYTES)
    except FormatError:
        return None


BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_CHECKPOINT_NAME = r"(\d{20})-(\d{10})((?:-.*)?\.checkpoint(?:\.part|\.deleted)?)"


def dump_as_kafka(
    disk: Disk,
    paths: Iterable[str],
    options: KafkaDumpOptions,
    write: Callable[[memoryview], object],
    report_line: Callable[[str], None],
    absolute: Callable[[str], str],
    unread: Callable[[str], object] = str,
) -> bool:
    """Print every file of `paths` as kafka-dump-log does; return True if all of them are sound.

    `write` takes bytes for stdout, `report_line` a line for stderr; `absolute` returns the path that the summary has for a
    file. `unread` is called with the path of each file that is missing or cannot be read; it is reported, and counts as damage.
    Raises what `write` raises.
    """
    out = TextBuffer(write)
    report = DamageReport(report_line)
    logs = LogDumper(disk, out, options, report, absolute)
    for path in paths:
        out.put(b"Dumping %s\n" % path.encode(errors="surrogateescape"))
        try:
            if disk.exists(path):
                _dump_file(disk, path, out, options, report, absolute, logs)
                continue
            from kcli.log.files.log_directory import why_missing

            _put_first_line(path, out)
            report.damage(path, None, why_missing(disk, path))
        except OSError as error:
            report.damage(path, None, f"cannot be read: {error.strerror or error}")
        unread(path)
    out.flush()
    for line in logs.summary.lines():
        report_line(line)
    return not report.damaged


def _dump_file(
    disk: Disk,
    path: str,
    out: TextBuffer,
    options: KafkaDumpOptions,
    report: DamageReport,
    absolute: Callable[[str], str],
    logs: LogDumper,
) -> None:
    name = path.rsplit("/", 1)[-1]
    suffix = name[name.rindex(".") :] if "." in name else ""
    if suffix == ".log":
        base_offset = _base_offset(path, name, report)
        if base_offset is not None:
            out.put(b"Log starting offset: %d\n" % base_offset)
        logs.dump(path)
    elif suffix == ".checkpoint":
        _put_checkpoint_name(path, name, out, report)
        logs.dump(path)
    elif suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        indexes = IndexDumper(disk, out, options, report, absolute, logs.summary)
        if suffix == ".snapshot":
            indexes.producer_snapshot(path)
            return
        base_offset = _base_offset(path, name, report) or 0
        dump = {".index": indexes.offset_index, ".timeindex": indexes.time_index, ".txnindex": indexes.transaction_index}
        dump[suffix](path, base_offset)
    else:
        report.ignored(path)


def _put_first_line(path: str, out: TextBuffer) -> None:
    """Print the line that Kafka's tool prints before it opens a log, also for a log that is missing."""
    name = path.rsplit("/", 1)[-1]
    if name.endswith(".log") and (base_offset := _base_offset(path, name, DamageReport(lambda sentence: None))) is not None:
        out.put(b"Log starting offset: %d\n" % base_offset)


def _base_offset(path: str, name: str, report: DamageReport) -> int | None:
    """Return the number before the first dot, parsed as by Java's Long.parseLong; None, and damage, if it is not one."""
    digits = name.split(".")[0]
    if re.fullmatch(r"[+-]?[0-9]+", digits) and -INT64_MAX - 1 <= int(digits) <= INT64_MAX:
        return int(digits)
    report.damage(path, None, "its name does not begin with an offset (Kafka's names have 20 digits); Kafka does not open it")
    return None


def _put_checkpoint_name(path: str, name: str, out: TextBuffer, report: DamageReport) -> None:
    found = re.fullmatch(_CHECKPOINT_NAME, name)
    if name == BOOTSTRAP_CHECKPOINT:
        out.put(b"KRaft bootstrap snapshot\n")
    elif found:
        out.put(b"Snapshot end offset: %d, epoch: %d\n" % (int(found[1]), int(found[2])))
    else:
        report.damage(
            path, None, "its name is not that of a metadata snapshot (OFFSET-EPOCH.checkpoint); Kafka does not open it"
        )


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
        from kcli.format.producer_snapshot import decode_producer_snapshot

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
