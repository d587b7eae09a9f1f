"""dump-log as JSON, an object per line. docs/json-output.md documents the schema; SCHEMA_VERSION grows when the meaning of a
field changes or a field is removed, not when one is added.

    type        one for each                                   fields
    ----------  ---------------------------------------------  ------------------------------------------------------
    schema      run, the first line                            name, version
    file        file                                           path, kind, description, sizeInBytes, topic ...
    batch       batch                                          those of the batch line of Kafka's tool, with Kafka's names
    record      record                                         topic, partition, offset, timestamp, key, value, headers
    (others)    entry of an index, snapshot, checkpoint ...    see kcli.inspect.dumping.dump
    damage      range of bytes that is not as it should be     path, position, endPosition, kind, message
    note        remark that is not damage                      path, message
    problem     path that could not be read                    path, message
    statistics  run with --stats                               see kcli.inspect.dumping.statistics
    summary     run, the last line                             counts; sound: true if nothing was damaged

Bytes are text if they are UTF-8, else base64 in a member of another name (key, keyBase64). Records that are not decoded are
written by compiled code (kcli.inspect.renderers.plain_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcli.format.compression import CODECS
from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.inspect.dumping.record_contents import Contents, decode_control
from kcli.inspect.dumping.record_rows import RowForm
from kcli.inspect.dumping.renderer import DumpedFile, DumpResult, Entry, Renderer, fixed_timestamp, timestamp_type
from kcli.inspect.json_text import JsonObject, base64_text, bytes_member, dump, headers_array, json_string, path_member
from kcli.inspect.renderers.plain_rows import put_plain_rows, sequences
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.selecting.selected_log import SelectedRecords

SCHEMA_NAME = "kcli.dump-log"
SCHEMA_VERSION = 1


class JsonLines(Renderer):
    """The renderer of --output json. `write` takes bytes."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        super().__init__(write)
        self._file: DumpedFile | None = None
        self._path = ""
        self._log = ""  # the members topic and partition, each with a comma after it
        self._put(f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}\n')

    def _put(self, text: str) -> None:
        self._out.put(text.encode("utf-8", "replace"))  # only a path that is not UTF-8 has characters to replace

    def begin_file(self, file: DumpedFile) -> None:
        """Write a line of type file."""
        self._file = file
        self._path = path_member(file.path)
        self._log = "" if file.topic is None else f'"topic":{json_string(file.topic)},"partition":{dump(file.partition)},'
        base = "" if file.base_offset is None else f',"baseOffset":{file.base_offset}'
        if file.preallocated_bytes:
            base += f',"preallocatedBytes":{file.preallocated_bytes}'
        self._put(
            f'{{"type":"file",{self._path},"kind":"{file.kind}","description":{json_string(file.sentence)},{self._log}'
            f'"sizeInBytes":{file.size_bytes}{base}}}\n'
        )

    def batch(self, batch: LogBatch) -> None:
        """Write a line of type batch."""
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
        """Write lines of type record."""
        header = selected.batch.header
        is_control = isinstance(header, RecordBatch) and header.is_control
        decoder = None if self._file is None else self._file.decoder
        if (is_control or decoder is not None) and not selected.window.left_out:
            self._put("".join(self._decoded_lines(selected, decode_control if is_control else None)))
        else:
            self._plain_lines(selected)

    def _plain_lines(self, selected: SelectedRecords) -> None:
        """Write records whose keys and values are not decoded."""
        head, middle = self._constant_members(selected.batch)
        window, columns = selected.window, selected.window.columns
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *sequences(selected.batch)

        def line(index: int) -> bytes:
            offset = columns.offset[index]
            text = (
                f'{head}"offset":{offset},"timestamp":{columns.timestamp[index] if fixed is None else fixed}{middle},'
                f'"keySize":{columns.key_size[index]},"valueSize":{columns.value_size[index]}'
            )
            if base_sequence >= 0:
                text = f'{text},"sequence":{base_sequence + offset - base_offset & INT32_MAX}'
            if window.left_out:
                text += ',"contentsLeftOut":true'
            else:
                key, value = bytes_member("key", window.key(index)), bytes_member("value", window.value(index))
                text = f'{text},{key},{value},"headers":{headers_array(window.headers(index))}'
            return f"{text}}}\n".encode("utf-8", "replace")

        if window.left_out:
            self._out.put(line(0))
        else:
            put_plain_rows(self._out, selected, _row_form(head, middle), line)

    def _decoded_lines(
        self, selected: SelectedRecords, control: Callable[[bytes | None, bytes | None], Contents] | None
    ) -> list[str]:
        window, columns = selected.window, selected.window.columns
        head, middle = self._constant_members(selected.batch)
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *sequences(selected.batch)
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
                line += f',"decodingError":{json_string(decoded.error)}'
            raw = "".join(f',"{name}Base64":{dump(_base64_or_none(data))}' for name, data in (("key", key), ("value", value)))
            lines.append(f'{line}{raw},"headers":{headers_array(window.headers(index))}}}\n')
        return lines

    def _constant_members(self, batch: LogBatch) -> tuple[str, str]:
        """Return the members that all records of a batch share: those at the front, and those after the timestamp."""
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
        """Write a line for each entry, with the type of the entry."""
        for kind, fields in entries:
            self._put(f'{{"type":"{kind}",{dump(fields)[1:]}\n' if fields else f'{{"type":"{kind}"}}\n')

    def damage(self, damage: Damage) -> None:
        """Write a line of type damage."""
        self._put(
            f'{{"type":"damage",{self._path},"position":{damage.position},"endPosition":{damage.end_position},'
            f'"kind":"{damage.kind}","message":{json_string(damage.message)}}}\n'
        )

    def note(self, message: str) -> None:
        """Write a line of type note."""
        self._put(f'{{"type":"note",{self._path},"message":{json_string(message)}}}\n')

    def problem(self, path: str, message: str) -> None:
        """Write a line of type problem."""
        self._put(f'{{"type":"problem",{path_member(path)},"message":{json_string(message)}}}\n')

    def statistics(self, report: JsonObject) -> None:
        """Write a line of type statistics."""
        self._put(f'{{"type":"statistics",{dump(report)[1:]}\n')

    def end(self, result: DumpResult) -> None:
        """Write a line of type summary, and what was collected."""
        self._put(f'{{"type":"summary",{dump(result._asdict())[1:-1]},"sound":{dump(result.is_sound)}}}\n')
        self.flush()


def _row_form(head: str, middle: str) -> RowForm:
    """Return the pieces of the line of a plain record."""
    return RowForm(
        is_json=True,
        is_iso=False,
        before_offset=f'{head}"offset":'.encode("utf-8", "replace"),
        before_timestamp=b',"timestamp":',
        before_key_size=f'{middle},"keySize":'.encode(),
        before_value_size=b',"valueSize":',
        before_sequence=b',"sequence":',
        no_sequence=b"",
        key_open=b',"key":',
        key_close=b"",
        key_null=b',"key":null',
        value_open=b',"value":',
        value_close=b"",
        value_null=b',"value":null',
        end=b',"headers":[]}\n',
    )


def _base64_or_none(data: bytes | None) -> str | None:
    return None if data is None else base64_text(data)
