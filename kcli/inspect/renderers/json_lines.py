"""dump-log as JSON, one object a line. docs/json-output.md documents the schema; SCHEMA_VERSION grows when a field changes
its meaning or goes, not when one is added.

    type        one for each                                   beside it
    ----------  ---------------------------------------------  ------------------------------------------------------
    schema      run, the first line                            name, version
    file        file                                           path, kind, description, sizeInBytes, topic ...
    batch       batch                                          the fields of Kafka's own batch line, by Kafka's names
    record      record                                         topic, partition, offset, timestamp, key, value, headers
    (others)    entry of an index, snapshot, checkpoint ...    see kcli.inspect.small_files
    damage      stretch of bytes that is not what it should be path, position, endPosition, kind, message
    note        remark that is no damage                       path, message
    problem     path that could not be read                    path, message
    statistics  run with --stats                               see kcli.inspect.statistics
    summary     run, the last line                             counts; sound: true where nothing was damaged

Bytes are text where they are UTF-8, else base64 in a member of another name (key, keyBase64). Plain records, by far the most,
take a path without an object a record.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

from kcli.format import limits
from kcli.format.compression import CODECS
from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.inspect.json_record_lines import COMPILED, put_json_lines
from kcli.inspect.record_contents import Contents, decode_control
from kcli.inspect.record_filter import Indexes
from kcli.inspect.renderers.json_text import base64_text, bytes_member, dump, headers_array, path_member, quote
from kcli.inspect.renderers.renderer import DumpedFile, DumpResult, Entry, fixed_timestamp, timestamp_type
from kcli.inspect.selected_log import SelectedRecords
from kcli.inspect.text_buffer import TextBuffer
from kcli.log.log_reader import Damage, LogBatch

SCHEMA_NAME = "kcli.dump-log"
SCHEMA_VERSION = 1
_EVERY_INDEX = array("q", range(limits.SCAN_WINDOW_RECORDS))


class JsonLines:
    """The renderer of --output json. `write` takes bytes; `contents` False leaves keys, values and headers out."""

    shows_damage = True

    def __init__(self, write: Callable[[memoryview], object], *, contents: bool = True) -> None:
        self._out = TextBuffer(write)
        self._contents = contents
        self._file: DumpedFile | None = None
        self._path = ""
        self._log = ""  # the members that tell the partition, with a comma behind each
        self._put(f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}\n')

    def _put(self, text: str) -> None:
        self._out.put(text.encode("utf-8", "replace"))  # what is replaced is a path that is not UTF-8

    def begin_file(self, file: DumpedFile) -> None:
        """A line of type file."""
        self._file = file
        self._path = path_member(file.path)
        self._log = "" if file.topic is None else f'"topic":{quote(file.topic)},"partition":{dump(file.partition)},'
        base = "" if file.base_offset is None else f',"baseOffset":{file.base_offset}'
        self._put(
            f'{{"type":"file",{self._path},"kind":"{file.kind}","description":{quote(file.sentence)},{self._log}'
            f'"sizeInBytes":{file.size_bytes}{base}}}\n'
        )

    def batch(self, batch: LogBatch) -> None:
        """A line of type batch."""
        header = batch.header
        if isinstance(header, RecordBatch):
            horizon = header.delete_horizon_ms
            middle = (
                f'"baseOffset":{header.base_offset},"lastOffset":{header.last_offset},"count":{header.record_count},'
                f'"baseSequence":{header.base_sequence},"lastSequence":{header.last_sequence},'
                f'"producerId":{header.producer_id},"producerEpoch":{header.producer_epoch},'
                f'"partitionLeaderEpoch":{header.partition_leader_epoch},"isTransactional":{dump(header.is_transactional)},'
                f'"isControl":{dump(header.is_control)},"deleteHorizonMs":{dump(horizon)},'
            )
        else:
            middle = f'"lastOffset":{header.last_offset},'
        self._put(
            f'{{"type":"batch",{self._log}{middle}"position":{header.position},"maxTimestamp":{header.max_timestamp},'
            f'"timestampType":"{timestamp_type(batch)}","size":{header.size_bytes},"magic":{header.magic},'
            f'"compression":"{CODECS.get(header.codec, header.codec)}","crc":{header.crc},"isValid":{dump(batch.is_valid)}}}\n'
        )

    def records(self, selected: SelectedRecords) -> None:
        """Lines of type record."""
        header = selected.batch.header
        is_control = isinstance(header, RecordBatch) and header.is_control
        decoder = None if self._file is None else self._file.decoder
        if self._contents and (is_control or decoder is not None):
            self._put("".join(self._decoded_lines(selected, decode_control if is_control else None)))
        elif COMPILED:
            self._compiled_lines(selected)
        else:
            self._put("".join(self._plain_lines(selected, selected.indexes)))

    def _compiled_lines(self, selected: SelectedRecords) -> None:
        """Plain records through compiled code; what that leaves comes from _plain_lines, one by one."""
        window, indexes, out = selected.window, selected.indexes, self._out
        if isinstance(indexes, range):
            chosen, turn, count = _EVERY_INDEX, indexes.start, indexes.stop
        else:
            chosen, turn, count = array("q", indexes), 0, len(indexes)
        head, middle = (text.encode("utf-8", "replace") for text in self._constant_members(selected.batch))
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *_sequences(selected.batch)
        while turn < count:
            turn = put_json_lines(
                out.memory,
                window.buffer,
                window.columns,
                chosen,
                turn,
                count,
                head,
                middle,
                fixed or 0,
                fixed is not None,
                base_offset,
                base_sequence,
                self._contents,
                out.place,
            )
            if turn < count and out.place[0] > len(out.memory) // 2:
                out.flush()
            elif turn < count:
                self._put(self._plain_lines(selected, (chosen[turn],))[0])
                turn += 1

    def _plain_lines(self, selected: SelectedRecords, indexes: Indexes) -> list[str]:
        """The lines of records, in Python."""
        window, columns = selected.window, selected.window.columns
        buffer = window.buffer
        head, middle = self._constant_members(selected.batch)
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *_sequences(selected.batch)
        offsets, timestamps, header_counts = columns.offset, columns.timestamp, columns.header_count
        key_sizes, key_positions = columns.key_size, columns.key_position
        value_sizes, value_positions = columns.value_size, columns.value_position
        lines = []
        for index in indexes:
            offset, key_size, value_size = offsets[index], key_sizes[index], value_sizes[index]
            timestamp = timestamps[index] if fixed is None else fixed
            line = f'{head}"offset":{offset},"timestamp":{timestamp}{middle},"keySize":{key_size},"valueSize":{value_size}'
            if base_sequence >= 0:
                line = f'{line},"sequence":{base_sequence + offset - base_offset & INT32_MAX}'
            if self._contents:
                at = key_positions[index]
                key = None if key_size < 0 else buffer[at : at + key_size]
                at = value_positions[index]
                value = None if value_size < 0 else buffer[at : at + value_size]
                headers = headers_array(window.headers(index)) if header_counts[index] else "[]"
                line = f'{line},{bytes_member("key", key)},{bytes_member("value", value)},"headers":{headers}'
            lines.append(f"{line}}}\n")
        return lines

    def _decoded_lines(
        self, selected: SelectedRecords, control: Callable[[bytes | None, bytes | None], Contents] | None
    ) -> list[str]:
        window, columns = selected.window, selected.window.columns
        head, middle = self._constant_members(selected.batch)
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *_sequences(selected.batch)
        decoder = None if self._file is None else self._file.decoder
        lines = []
        for index in selected.indexes:
            offset, key, value = columns.offset[index], window.key(index), window.value(index)
            line = (
                f'{head}"offset":{offset},"timestamp":{columns.timestamp[index] if fixed is None else fixed}{middle},'
                f'"keySize":{columns.key_size[index]},"valueSize":{columns.value_size[index]}'
            )
            if base_sequence >= 0:
                line += f',"sequence":{increment_sequence(base_sequence, offset - base_offset)}'
            if control is not None:
                decoded = control(key, value)
                line += f',"control":{dump(decoded.value)}'
            else:
                decoded = Contents() if decoder is None else decoder.decode(offset, key, value)
                line += f',"keyDecoded":{dump(decoded.key)},"valueDecoded":{dump(decoded.value)}'
            if decoded.error is not None:
                line += f',"decodingError":{quote(decoded.error)}'
            raw = "".join(f',"{name}Base64":{dump(_base64_or_none(data))}' for name, data in (("key", key), ("value", value)))
            lines.append(f'{line}{raw},"headers":{headers_array(window.headers(index))}}}\n')
        return lines

    def _constant_members(self, batch: LogBatch) -> tuple[str, str]:
        """The members that all records of a batch share: those at the front, and those behind the timestamp."""
        header = batch.header
        middle = f',"timestampType":"{timestamp_type(batch)}"'
        if isinstance(header, RecordBatch):
            middle += f',"leaderEpoch":{header.partition_leader_epoch}'
            if header.has_producer:
                middle += f',"producerId":{header.producer_id},"producerEpoch":{header.producer_epoch}'
            if header.is_transactional:
                middle += ',"isTransactional":true'
            if header.is_control:
                middle += ',"isControl":true'
        return f'{{"type":"record",{self._log}', middle

    def entries(self, entries: Iterable[Entry]) -> None:
        """A line for each entry, of the entry's own type."""
        for kind, fields in entries:
            self._put(f'{{"type":"{kind}",{dump(fields)[1:]}\n' if fields else f'{{"type":"{kind}"}}\n')

    def damage(self, damage: Damage) -> None:
        """A line of type damage."""
        self._put(
            f'{{"type":"damage",{self._path},"position":{damage.position},"endPosition":{damage.end_position},'
            f'"kind":"{damage.kind}","message":{quote(damage.message)}}}\n'
        )

    def note(self, message: str) -> None:
        """A line of type note."""
        self._put(f'{{"type":"note",{self._path},"message":{quote(message)}}}\n')

    def end_file(self) -> None:
        """Nothing: the next line of type file tells."""

    def problem(self, path: str, message: str) -> None:
        """A line of type problem."""
        self._put(f'{{"type":"problem",{path_member(path)},"message":{quote(message)}}}\n')

    def statistics(self, report: dict[str, Any]) -> None:
        """A line of type statistics."""
        self._put(f'{{"type":"statistics",{dump(report)[1:]}\n')

    def end(self, result: DumpResult) -> None:
        """A line of type summary; all is written out."""
        self._put(f'{{"type":"summary",{dump(result._asdict())[1:-1]},"sound":{dump(result.is_sound)}}}\n')
        self.flush()

    def flush(self) -> None:
        """Write out what was collected."""
        self._out.flush()


def _sequences(batch: LogBatch) -> tuple[int, int]:
    """The base sequence of a batch, -1 where its records have none, and its base offset."""
    header = batch.header
    return (header.base_sequence, header.base_offset) if isinstance(header, RecordBatch) else (-1, 0)


def _base64_or_none(data: bytes | None) -> str | None:
    return None if data is None else base64_text(data)
