"""Rows of the table `internal_records`: the records of Kafka's internal topics, key and value decoded to JSON.

    topic                                            key                 value
    -----------------------------------------------  ------------------  ------------------------------------------------
    __consumer_offsets, __transaction_state,         a message           a message, null: the key's entry is deleted
      __share_group_state
    __cluster_metadata, __remote_log_metadata        null                a message
    a control batch, with includeControl             null                what it says; `valueType` is its type's name

`keyType` and `valueType` are the names of Kafka's messages, the versions those that the record states. A record that cannot
be decoded keeps its row: `error` says why, key and value are null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcli.format.java_text import json_text
from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.reading.batch_records import RecordWindow
from kcli.log.reading.segment_reader import LogBatch
from kcli.protocol.control_records import decode_control_record
from kcli.protocol.internal_records import Decoder, decoder_for_topic
from kcli.protocol.json_values import to_dict
from kcli.protocol.message import Message
from kcli.spark.column_builders import micros
from kcli.spark.range_walker import RangeWalker, is_aborted
from kcli.spark.splits import SegmentRange

Row = dict[str, Any]

_EMPTY: Row = dict.fromkeys(("keyType", "keyVersion", "key", "valueType", "valueVersion", "value", "error"))


def is_internal(topic: str) -> bool:
    """True for a topic whose records can be decoded."""
    return decoder_for_topic(topic) is not None


def internal_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    """The rows of a range, but for topic and partition. Raises CorruptLogError as the walker does."""
    decoder = decoder_for_topic(part.topic)
    assert decoder is not None
    for batch in walker.batches(part):
        if walker.left_out(part, batch) is not None:
            continue
        for window in walker.windows(part, batch):
            yield from _rows_of(part, batch, window, decoder)


def _rows_of(part: SegmentRange, batch: LogBatch, window: RecordWindow, decoder: Decoder) -> Iterator[Row]:
    header = batch.header
    is_control = isinstance(header, RecordBatch) and header.is_control
    fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
    for index in range(window.count):
        offset = window.columns.offset[index]
        if not part.first_offset <= offset < part.end_offset:
            continue
        timestamp = window.columns.timestamp[index] if fixed is None else fixed
        key, value = window.key(index), window.value(index)
        yield {
            "offset": offset,
            "timestamp": micros(timestamp),
            "isTombstone": value is None,
            "aborted": is_aborted(part, header),
            "segment": part.file,
            "position": batch.position,
            **(_control_contents(key, value) if is_control else _contents(decoder, key, value)),
        }


def _contents(decoder: Decoder, key: bytes | None, value: bytes | None) -> Row:
    try:
        key_message, value_message = decoder.decode(key, value)
    except FormatError as error:
        return _EMPTY | {"error": error.message}
    return _EMPTY | _shown("key", key_message, decoder) | _shown("value", value_message, decoder)


def _shown(side: str, message: Message | None, decoder: Decoder) -> Row:
    if message is None:
        return {}
    return {
        f"{side}Type": message.STRUCT.name,
        f"{side}Version": message.schema_version,
        side: json_text(decoder.to_dict(message)),
    }


def _control_contents(key: bytes | None, value: bytes | None) -> Row:
    try:
        record = decode_control_record(key, value)
    except FormatError as error:
        return _EMPTY | {"error": error.message}
    text = None if record.message is None else json_text(to_dict(record.message))
    return _EMPTY | {"valueType": record.name, "value": text}
