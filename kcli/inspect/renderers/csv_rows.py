"""Records as CSV (RFC 4180): a header line, a row for each record, lines that end in CR LF, UTF-8.

    column                        contains
    ----------------------------  --------------------------------------------------------------------------------
    topic, partition              by the name of the directory; empty if it has no such name
    offset                        a number
    timestamp                     ISO 8601 in UTC, empty if there is none; with --timestamps ms, ms since 1970 and -1
    timestampType                 CreateTime, LogAppendTime or NoTimestampType
    leaderEpoch, producerId,      -1 if the batch has none
    producerEpoch
    isTransactional, isControl    true or false
    keySize, valueSize            bytes, -1 for null
    sequence                      -1 if the batch has none
    key, value                    text, or base64, as the next column says
    keyEncoding, valueEncoding    utf8, base64, json (an internal topic's or control record's, decoded), empty for null,
                                  leftOut for a record too large to be shown
    headers                       JSON: [{"key":"a","value":"b"}, ...]; keyBase64, valueBase64 for bytes that are not text
    headersEncoding               json, or jsonBase64 if one of them is in base64; empty without headers

Text is UTF-8 without control characters other than TAB, LF and CR. Other bytes are in base64, because programs that read CSV
stop at a NUL byte or drop it. Batches, files that are not logs, and damage have no rows: damage is reported on stderr
(`shows_damage` is False), and the records of a batch with a wrong CRC are left out, because a row cannot say that the CRC is
wrong. `statistics_rows` returns the rows of statistics.

The rows of statistics (kcli.inspect.dumping.statistics) have a name and a value.

name                            value
------------------------------  ----------------------------------------------------------------------------
records, keySize.p99            a number; the names are those of docs/json-output.md, with a dot before a member
codecs.zstd.batches             of codecs and partitions with their names
partitions.orders-0.records
topKeys.keys.1.count            of other lists with the number, from 1
firstTimestamp                  a time, as the renderer writes times; empty if there is none
topKeys.keys.1.keyBase64        a key that is not text; keyBase64 instead of key
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import TYPE_CHECKING

from kcli.format.record_batch import NO_TIMESTAMP, RecordBatch, increment_sequence
from kcli.inspect.dumping.record_contents import Contents, decode_control
from kcli.inspect.dumping.record_rows import RowForm
from kcli.inspect.dumping.renderer import DumpedFile, Renderer, fixed_timestamp, timestamp_type
from kcli.inspect.instants import InstantFormatter
from kcli.inspect.json_text import JsonObject, JsonValue, base64_text, dump, json_string
from kcli.inspect.renderers.plain_rows import put_plain_rows, sequences
from kcli.inspect.renderers.terminal_text import escape
from kcli.log.reading.segment_reader import LogBatch
from kcli.selecting.selected_log import SelectedRecords

if TYPE_CHECKING:
    from kcli.format.records import Header

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
    "headersEncoding",
)
STATISTICS_COLUMNS = ("name", "value")
# The encoding of a key and value that were too large to be shown.
LEFT_OUT = "leftOut"
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class CsvRows(Renderer):
    """The renderer of --output csv. `write` takes bytes.

    Timestamps are ISO 8601, or numbers if `iso_timestamps` is False. With `statistics` the rows are those of statistics.
    """

    shows_damage = False

    def __init__(self, write: Callable[[memoryview], object], *, iso_timestamps: bool = True, statistics: bool = False) -> None:
        super().__init__(write)
        self._is_iso = iso_timestamps
        self._format_time = InstantFormatter().format
        self._file: DumpedFile | None = None
        self._out.put(_row(STATISTICS_COLUMNS if statistics else COLUMNS))

    def begin_file(self, file: DumpedFile) -> None:
        """Write nothing: each row has its topic and partition."""
        self._file = file

    def records(self, selected: SelectedRecords) -> None:
        """Write a row for each record."""
        columns = selected.window.columns
        before, middle = self._constant_fields(selected.batch)
        fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *sequences(selected.batch)

        def row(index: int) -> bytes:
            offset = columns.offset[index]
            timestamp = columns.timestamp[index] if fixed is None else fixed
            sequence = -1 if base_sequence < 0 else increment_sequence(base_sequence, offset - base_offset)
            sizes = columns.key_size[index], columns.value_size[index]
            time = self._time(timestamp)
            return _row((*before, offset, time, *middle, *sizes, sequence, *self._payload(selected, index)))

        decoder = None if self._file is None else self._file.decoder
        if selected.window.left_out or self._is_control(selected.batch) or decoder is not None:
            for index in selected.indexes:
                self._out.put(row(index))
        else:
            put_plain_rows(self._out, selected, _row_form(before, middle, is_iso=self._is_iso), row)

    def _time(self, timestamp_ms: int) -> str:
        """Return the field of a timestamp."""
        if not self._is_iso:
            return str(timestamp_ms)
        return "" if timestamp_ms == NO_TIMESTAMP else self._format_time(timestamp_ms)

    def _constant_fields(self, batch: LogBatch) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Return the fields that all records of a batch share: those before the offset, and those after the timestamp."""
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

    def _payload(self, selected: SelectedRecords, index: int) -> tuple[str, ...]:
        """Return key, value and headers, each with its encoding."""
        if selected.window.left_out:
            return "", LEFT_OUT, "", LEFT_OUT, "", LEFT_OUT
        window = selected.window
        key, value = window.key(index), window.value(index)
        decoder = None if self._file is None else self._file.decoder
        decoded = Contents()
        if self._is_control(selected.batch):
            decoded = decode_control(key, value)
        elif decoder is not None:
            decoded = decoder.decode(window.columns.offset[index], key, value)
        return *_cell(key, decoded.key), *_cell(value, decoded.value), *_headers_cell(window.headers(index))

    def statistics(self, report: JsonObject) -> None:
        """Write a row for each number."""

        for name, value in statistics_rows(report, self._time):
            self._out.put(_row((name, value)))


def _row(fields: Iterable[object]) -> bytes:
    """Return a row with its line end. Only a path that is not UTF-8 has characters that cannot be encoded."""
    text = StringIO(newline="")
    csv.writer(text).writerow(fields)
    return text.getvalue().encode("utf-8", "replace")


def _row_form(before: Iterable[object], middle: Iterable[object], *, is_iso: bool) -> RowForm:
    """Return the pieces of the row of a plain record."""
    return RowForm(
        is_json=False,
        is_iso=is_iso,
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
        end=b",[],\r\n",
    )


def _cell(data: bytes | None, decoded: JsonValue) -> tuple[str, str]:
    """Return the text of a key or value, and its encoding."""
    if isinstance(decoded, str):
        data = decoded.encode("utf-8", "replace")
    elif decoded is not None:
        return dump(decoded), "json"
    if data is None:
        return "", ""
    text = text_of(data)
    return (base64_text(data), "base64") if text is None else (text, "utf8")


def _headers_cell(headers: Iterable[Header]) -> tuple[str, str]:
    """Return the headers as JSON, and their encoding: an array, because a key may occur twice."""
    members = [(_member("key", header.key), _member("value", header.value)) for header in headers]
    if not members:
        return "[]", ""
    text = ",".join([f"{{{key},{value}}}" for key, value in members])
    is_plain = not any(member.startswith(('"keyBase64"', '"valueBase64"')) for pair in members for member in pair)
    return f"[{text}]", "json" if is_plain else "jsonBase64"


def _member(name: str, data: bytes | None) -> str:
    """Return a header's key or value as a member of its object."""
    if data is None:
        return f'"{name}":null'
    text = text_of(data)
    return f'"{name}Base64":"{base64_text(data)}"' if text is None else f'"{name}":{json_string(text)}'


def text_of(data: bytes) -> str | None:
    """Return bytes as text, or None if they are not text as this module's docstring defines it."""
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS.search(text) else text


# Lists whose objects have a name of their own, and which member that is.
_NAMED = {"codecs": "name", "partitions": "partition"}
_TIMES = frozenset(("firstTimestamp", "lastTimestamp", "start"))


def statistics_rows(report: JsonObject, format_time: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each number of the report; `format_time` takes ms since 1970."""
    for name, value in report.items():
        yield from _rows(name, name, value, format_time)


def _rows(path: str, name: str, value: JsonValue, format_time: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the member called `name`, which is found at `path`."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _rows(f"{path}.{inner}", inner, part, format_time)
    elif isinstance(value, list):
        for number, part in enumerate(value, 1):
            own = _NAMED.get(path)
            rest = {inner: member for inner, member in part.items() if inner != own}
            yield from _rows(f"{path}.{number if own is None else escape(part[own])}", name, rest, format_time)
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")
        yield (path, value) if text_of(data) is not None else (f"{path}Base64", base64_text(data))
    elif value is None:
        yield path, ""
    else:
        yield path, format_time(value) if name in _TIMES else dump(value)
