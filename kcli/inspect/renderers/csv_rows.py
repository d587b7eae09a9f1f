"""Records as CSV (RFC 4180): a header line, one row a record, lines that end in CR LF, UTF-8.

    column                        holds
    ----------------------------  --------------------------------------------------------------------------------
    topic, partition              by the directory's name; empty where that tells none
    offset, timestamp             numbers; the timestamp in ms since 1970, -1 where there is none
    timestampType                 CreateTime, LogAppendTime or NoTimestampType
    key, value                    text, or base64, as the next column says
    keyEncoding, valueEncoding    utf8, base64, json (an internal topic's or control record's, decoded), empty for null
    headers                       JSON: [{"key":"a","value":"b"}, ...]; keyBase64, valueBase64 for what is not UTF-8
    producerId, producerEpoch,    -1 where the batch has none
    sequence, leaderEpoch
    isTransactional, isControl    true or false
    keySize, valueSize            bytes, -1 for null

Batches, files that are no logs, and damage have no place in rows: damage is told elsewhere (`shows_damage` is False).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any

from kcli.format.record_batch import RecordBatch, increment_sequence
from kcli.inspect.record_contents import Contents, decode_control
from kcli.inspect.renderers.json_text import base64_text, dump, headers_array
from kcli.inspect.renderers.renderer import DumpedFile, DumpResult, Entry, fixed_timestamp, timestamp_type
from kcli.inspect.selected_log import SelectedRecords
from kcli.inspect.text_buffer import TextBuffer
from kcli.log.log_reader import Damage, LogBatch

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "keyEncoding",
    "value",
    "valueEncoding",
    "headers",
    "producerId",
    "producerEpoch",
    "sequence",
    "leaderEpoch",
    "isTransactional",
    "isControl",
    "keySize",
    "valueSize",
)


class CsvRows:
    """The renderer of --output csv. `write` takes bytes; `contents` False leaves keys, values and headers empty."""

    shows_damage = False

    def __init__(self, write: Callable[[memoryview], object], *, contents: bool = True) -> None:
        self._out = TextBuffer(write)
        self._text = StringIO(newline="")
        self._rows = csv.writer(self._text)
        self._contents = contents
        self._file: DumpedFile | None = None
        self._rows.writerow(COLUMNS)

    def begin_file(self, file: DumpedFile) -> None:
        """Nothing is written: rows tell their topic and partition."""
        self._file = file

    def batch(self, batch: LogBatch) -> None:
        """Nothing: rows are records."""

    def records(self, selected: SelectedRecords) -> None:
        """A row for each record."""
        header, file = selected.batch.header, self._file
        columns = selected.window.columns
        topic, partition = ("", "") if file is None or file.topic is None else (file.topic, file.partition)
        kind, fixed = timestamp_type(selected.batch), fixed_timestamp(selected.batch)
        producer_id, producer_epoch, base_sequence, leader_epoch, base_offset = -1, -1, -1, -1, 0
        transactional, control = "false", "false"
        if isinstance(header, RecordBatch):
            producer_id, producer_epoch, base_sequence = header.producer_id, header.producer_epoch, header.base_sequence
            leader_epoch, base_offset = header.partition_leader_epoch, header.base_offset
            transactional, control = dump(header.is_transactional), dump(header.is_control)
        rows = []
        for index in selected.indexes:
            offset = columns.offset[index]
            sequence = -1 if base_sequence < 0 else increment_sequence(base_sequence, offset - base_offset)
            key, key_encoding, value, value_encoding, headers = self._payload(selected, index, control == "true")
            rows.append(
                (
                    topic,
                    partition,
                    offset,
                    columns.timestamp[index] if fixed is None else fixed,
                    kind,
                    key,
                    key_encoding,
                    value,
                    value_encoding,
                    headers,
                    producer_id,
                    producer_epoch,
                    sequence,
                    leader_epoch,
                    transactional,
                    control,
                    columns.key_size[index],
                    columns.value_size[index],
                )
            )
        self._rows.writerows(rows)
        self._hand_over()

    def _payload(self, selected: SelectedRecords, index: int, is_control: bool) -> tuple[str, str, str, str, str]:
        """Key, its encoding, value, its encoding, headers."""
        if not self._contents:
            return "", "", "", "", ""
        window = selected.window
        key, value = window.key(index), window.value(index)
        decoder = None if self._file is None else self._file.decoder
        decoded = Contents()
        if is_control:
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
        self._hand_over()
        self._out.flush()

    def _hand_over(self) -> None:
        self._out.put(self._text.getvalue().encode("utf-8", "replace"))
        self._text.seek(0)
        self._text.truncate()


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
