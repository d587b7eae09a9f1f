"""Records as CSV (RFC 4180): a header line, one row a record, lines that end in CR LF, UTF-8.

    column                        holds
    ----------------------------  --------------------------------------------------------------------------------
    topic, partition              by the directory's name; empty where that tells none
    offset, timestamp             numbers; the timestamp in ms since 1970, -1 where there is none
    timestampType                 CreateTime, LogAppendTime or NoTimestampType
    leaderEpoch, producerId,      -1 where the batch has none
    producerEpoch
    isTransactional, isControl    true or false
    keySize, valueSize            bytes, -1 for null
    sequence                      -1 where the batch has none
    key, value                    text, or base64, as the next column says
    keyEncoding, valueEncoding    utf8, base64, json (an internal topic's or control record's, decoded), empty for null,
                                  leftOut for a record too large to be shown
    headers                       JSON: [{"key":"a","value":"b"}, ...]; keyBase64, valueBase64 for what is not UTF-8

Batches, files that are no logs, and damage have no place in rows: damage is told elsewhere (`shows_damage` is False).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any

from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.inspect.dumping.record_contents import Contents, decode_control
from kcli.inspect.dumping.record_rows import RowForm
from kcli.inspect.dumping.renderer import DumpedFile, DumpResult, Entry, fixed_timestamp, timestamp_type
from kcli.inspect.dumping.selected_log import SelectedRecords
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.inspect.json_text import base64_text, dump, headers_array
from kcli.inspect.renderers.plain_rows import put_plain_rows, sequences
from kcli.log.log_reader import Damage, LogBatch

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "isTransactional",
    "isControl",
    "keySize",
    "valueSize",
    "sequence",
    "key",
    "keyEncoding",
    "value",
    "valueEncoding",
    "headers",
)
# The encoding of a key and value that were too large to be shown.
LEFT_OUT = "leftOut"


class CsvRows:
    """The renderer of --output csv. `write` takes bytes; `contents` False leaves keys, values and headers empty."""

    shows_damage = False

    def __init__(self, write: Callable[[memoryview], object], *, contents: bool = True) -> None:
        self._out = TextBuffer(write)
        self._contents = contents
        self._file: DumpedFile | None = None
        self._out.put(_row(COLUMNS))

    def begin_file(self, file: DumpedFile) -> None:
        """Nothing is written: rows tell their topic and partition."""
        self._file = file

    def batch(self, batch: LogBatch) -> None:
        """Nothing: rows are records."""

    def records(self, selected: SelectedRecords) -> None:
        """A row for each record."""
        columns = selected.window.columns
        before, middle = self._constant_fields(selected.batch)
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *sequences(selected.batch)

        def row(index: int) -> bytes:
            offset = columns.offset[index]
            timestamp = columns.timestamp[index] if fixed is None else fixed
            sequence = -1 if base_sequence < 0 else increment_sequence(base_sequence, offset - base_offset)
            sizes = columns.key_size[index], columns.value_size[index]
            return _row((*before, offset, timestamp, *middle, *sizes, sequence, *self._payload(selected, index)))

        decoder = None if self._file is None else self._file.decoder
        if selected.window.left_out or (self._contents and (self._is_control(selected.batch) or decoder is not None)):
            for index in selected.indexes:
                self._out.put(row(index))
        else:
            put_plain_rows(self._out, selected, _row_form(before, middle), self._contents, row)

    def _constant_fields(self, batch: LogBatch) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """The fields that all records of a batch share: those before the offset, those behind the timestamp."""
        file, header = self._file, batch.header
        before = ("", "") if file is None or file.topic is None else (file.topic, file.partition)
        if not isinstance(header, RecordBatch):
            return before, (timestamp_type(batch), -1, -1, -1, "false", "false")
        flags = dump(header.is_transactional), dump(header.is_control)
        numbers = header.partition_leader_epoch, header.producer_id, header.producer_epoch
        return before, (timestamp_type(batch), *numbers, *flags)

    @staticmethod
    def _is_control(batch: LogBatch) -> bool:
        return isinstance(batch.header, RecordBatch) and batch.header.is_control

    def _payload(self, selected: SelectedRecords, index: int) -> tuple[str, str, str, str, str]:
        """Key, its encoding, value, its encoding, headers."""
        if selected.window.left_out:
            return "", LEFT_OUT, "", LEFT_OUT, ""
        if not self._contents:
            return "", "", "", "", ""
        window = selected.window
        key, value = window.key(index), window.value(index)
        decoder = None if self._file is None else self._file.decoder
        decoded = Contents()
        if self._is_control(selected.batch):
            decoded = decode_control(key, value)
        elif decoder is not None:
            decoded = decoder.decode(window.columns.offset[index], key, value)
        return *_cell(key, decoded.key), *_cell(value, decoded.value), headers_array(window.headers(index))

    def entries(self, entries: Iterable[Entry]) -> None:
        """Nothing: rows are records."""

    def damage(self, damage: Damage) -> None:
        """Nothing; see shows_damage."""

    def note(self, message: str) -> None:
        """Nothing; see shows_damage."""

    def end_file(self) -> None:
        """Nothing."""

    def problem(self, path: str, message: str) -> None:
        """Nothing; see shows_damage."""

    def statistics(self, report: dict[str, Any]) -> None:
        """Rows of another kind have no place here: the command refuses --stats with csv."""

    def end(self, result: DumpResult) -> None:
        """All is written out."""
        self.flush()

    def flush(self) -> None:
        """Write out what was collected."""
        self._out.flush()


def _row(fields: Iterable[object]) -> bytes:
    """A row with its line's end; what cannot be encoded is part of a path that is not UTF-8."""
    text = StringIO(newline="")
    csv.writer(text).writerow(fields)
    return text.getvalue().encode("utf-8", "replace")


def _row_form(before: Iterable[object], middle: Iterable[object]) -> RowForm:
    """The pieces of a plain record's row."""
    return RowForm(
        is_json=False,
        before_offset=_row(before)[:-2] + b",",
        before_timestamp=b",",
        before_key_size=b"," + _row(middle)[:-2] + b",",
        before_value_size=b",",
        before_sequence=b",",
        no_sequence=b",-1",
        key_open=b",",
        key_close=b",utf8",
        key_null=b",,",
        value_open=b",",
        value_close=b",utf8",
        value_null=b",,",
        end=b",[]\r\n",
        end_without_contents=b",,,,,\r\n",
    )


def _cell(data: bytes | None, decoded: Any) -> tuple[str, str]:
    """A key's or value's text and how it is encoded."""
    if isinstance(decoded, str):
        return decoded, "utf8"
    if decoded is not None:
        return dump(decoded), "json"
    if data is None:
        return "", ""
    try:
        return str(data, "utf-8"), "utf8"
    except UnicodeDecodeError:
        return base64_text(data), "base64"
