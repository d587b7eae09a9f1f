"""The tables other than `records`: the files that each is read from, and their rows.

    table                 read from                                        a row for each
    --------------------  -----------------------------------------------  -------------------------------------------
    batches               segments, headers and CRCs                       batch, whatever its CRC
    corrupt               segments, records too                            place that cannot be read
    internal_records      segments of internal topics                      record, key and value decoded to JSON
    offset_index          .index                                           entry
    time_index            .timeindex                                       entry
    aborted_transactions  .txnindex, markers if it is missing              aborted transaction
    producers             .snapshot of producers                           producer in a snapshot
    leader_epochs         leader-epoch-checkpoint                          leader epoch

`batches`, `corrupt` and the tables of other files have everything in the files, also control batches, aborted transactions and
offsets below the log start offset. Options that choose topics and partitions apply to all tables, those that choose offsets and
times to the tables that are read from segments; the others refuse them.

The records of Kafka's internal topics are decoded to JSON (`internal_records`):

    topic                                            key                 value
    -----------------------------------------------  ------------------  ------------------------------------------------
    __consumer_offsets, __transaction_state,         a message           a message; null deletes the key's entry
      __share_group_state
    __cluster_metadata, __remote_log_metadata        null                a message
    a control batch, with includeControl             null                its message; `valueType` is its type's name

`keyType` and `valueType` are the names of Kafka's messages; the versions are those that the record states. If a record cannot
be decoded, `error` has the reason, and key and value are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs
from kcli.format.file_names import FileKind, parse_file_name
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.java_text import json_text
from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk, base_name, parent_path
from kcli.log.files.log_directory import read_partition
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.protocol.control_records import decode_control_record
from kcli.protocol.internal_records import Decoder, decoder_for_topic
from kcli.protocol.json_values import to_dict
from kcli.protocol.message import Message
from kcli.spark import table_schemas as tables
from kcli.spark.arrow_spans import arrow_schema, read_records
from kcli.spark.column_builders import compression_name, micros, timestamp_type
from kcli.spark.log_partitions import LogPartition, retry_planning
from kcli.spark.planning import RangeChoice, find_partitions, offset_ranges, plan_splits
from kcli.spark.range_reader import CorruptRange, RangeReader, ranges_now
from kcli.spark.read_options import FALSE, ReadOptions
from kcli.spark.report import Report
from kcli.spark.session import usable_cores
from kcli.spark.splits import LogSplit, SegmentRange, pack

Row = dict[str, Any]
_Entry = TypeVar("_Entry")

# The rows of an Arrow batch: fewer than of `records`, since they are Python objects; corrupt bytes may be large.
ROWS_PER_BATCH = 4096
CORRUPT_ROWS_PER_BATCH = 8
# The column `bytes` has the first bytes of a corrupt place; `endPosition` has its whole extent.
MAX_CORRUPT_BYTES = 1024 * 1024


@retry_planning
def plan_table(disk: Disk, options: ReadOptions, columns: set[str]) -> list[LogSplit]:
    """Return the splits of a table. Raises PlanError for paths and options that do not fit, OSError as the disk does."""
    partitions = find_partitions(disk, options)
    if options.table == tables.INTERNAL_RECORDS:
        partitions = [part for part in partitions if decoder_for_topic(part.topic) is not None]
    if options.table in tables.OF_FILES:
        return pack([found for part in partitions for found in _files(part, options.table)], options.max_partition_bytes)
    if options.table in (tables.BATCHES, tables.CORRUPT):
        options = options._replace(include_below_log_start=True, isolation="", stop_at_high_watermark=FALSE)
    wanted = offset_ranges(partitions, options)
    if options.min_partitions is None:
        # Spark plans in a worker without a session, which does not know the default parallelism.
        options = options._replace(min_partitions=usable_cores())
    with_transactions = options.read_committed or "aborted" in columns
    return plan_splits(disk, wanted, options, RangeChoice(with_transactions))


def _files(part: LogPartition, table: str) -> Iterator[SegmentRange]:
    """Yield the files that a table is read from, each as a range."""
    paths: Iterable[str | None] = ()
    if table == tables.OFFSET_INDEX:
        paths = (segment.offset_index for segment in part.segments)
    elif table == tables.TIME_INDEX:
        paths = (segment.time_index for segment in part.segments)
    elif table == tables.PRODUCERS:
        paths = (file.path for file in part.directory.snapshots)
    elif table == tables.LEADER_EPOCHS:
        paths = (part.directory.file(FileKind.LEADER_EPOCH_CHECKPOINT),)
    elif table == tables.ABORTED_TRANSACTIONS:
        paths = (part.segments[0].log if part.segments else None,)
    for path in paths:
        if path is not None:
            yield SegmentRange(
                part.topic,
                part.partition,
                path,
                least_offset=0,
                position=0,
                end_position=part.disk.size(path),
                first_offset=0,
                end_offset=INT64_MAX,
            )


def read_split(partition: InputPartition, schema: StructType, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task as Arrow batches. Raises as read_table does.

    Spark reads a table without splits as one empty partition.
    """
    split = partition if isinstance(partition, LogSplit) else LogSplit([], 0)
    return read_table(OsDisk(), split, arrow_schema(schema), options)


def read_table(disk: Disk, split: LogSplit, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split as Arrow batches of `schema`.

    Raises CorruptLogError for corrupt bytes with onCorrupt=fail, OSError as the disk does.
    """
    if options.table == tables.RECORDS:
        yield from read_records(disk, split, schema, options)
        return
    report, scanner = Report(), RecordScanner()
    make = _ROWS[options.table]
    rows_per_batch = CORRUPT_ROWS_PER_BATCH if options.table == tables.CORRUPT else ROWS_PER_BATCH
    rows: list[Row] = []
    for planned in split.ranges:
        for part in ranges_now(disk, planned, options, report):
            for row in make(RangeReader(disk, part, options, report, scanner)):
                row["topic"], row["partition"] = part.topic, part.partition
                rows.append(row)
                if len(rows) == rows_per_batch:
                    yield _arrow(rows, schema)
                    rows = []
    if rows:
        yield _arrow(rows, schema)


def _arrow(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ------------------------------------------------------------------------------------------------------------ row makers


def _batch_rows(reader: RangeReader) -> Iterator[Row]:
    for found in reader.batches_and_faults():
        if isinstance(found, CorruptRange) and found.batch is None:
            reader.handle(found)
        else:
            batch = found.batch if isinstance(found, CorruptRange) else found
            assert batch is not None
            yield _batch_row(reader, batch)


_V2_FLAGS = ("isTransactional", "isControl", "aborted")


def _batch_row(reader: RangeReader, batch: LogBatch) -> Row:
    header = batch.header
    row: Row = {
        "segment": reader.part.file,
        "position": header.position,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "size": header.size_bytes,
        "magic": header.magic,
        "compression": compression_name(header),
        "timestampType": timestamp_type(header),
        "maxTimestamp": micros(header.max_timestamp),
        "crc": header.crc,
        "computedCrc": batch.computed_crc,
        "isValid": batch.is_valid,
    }
    if not isinstance(header, RecordBatch):
        return dict.fromkeys(tables.TABLES[tables.BATCHES]) | row | dict.fromkeys(_V2_FLAGS, False)
    return row | {
        "recordCount": header.record_count,
        "baseTimestamp": micros(header.base_timestamp),
        "deleteHorizon": None if header.delete_horizon_ms is None else micros(header.delete_horizon_ms),
        "leaderEpoch": header.partition_leader_epoch,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "aborted": reader.is_aborted(header),
    }


def _corrupt_rows(reader: RangeReader) -> Iterator[Row]:
    for found in reader.batches_and_faults():
        fault = found if isinstance(found, CorruptRange) else reader.records_fault(found)
        if fault is not None:
            yield _corrupt_row(reader.disk, fault)


def _corrupt_row(disk: Disk, fault: CorruptRange) -> Row:
    header = fault.batch.header if fault.batch is not None else None
    file = disk.open_file(fault.part.file)
    try:
        data = file.read_at(fault.position, min(max(fault.end_position - fault.position, 0), MAX_CORRUPT_BYTES))
    finally:
        file.close()
    return {
        "segment": fault.part.file,
        "position": fault.position,
        "endPosition": fault.end_position,
        "baseOffset": header.base_offset if header is not None else None,
        "lastOffset": header.last_offset if header is not None else None,
        "recordCount": header.record_count if isinstance(header, RecordBatch) else None,
        "kind": fault.kind,
        "message": fault.message,
        "bytes": data,
    }


_NO_CONTENTS: Row = dict.fromkeys(("keyType", "keyVersion", "key", "valueType", "valueVersion", "value", "error"))


def _internal_rows(reader: RangeReader) -> Iterator[Row]:
    decoder = decoder_for_topic(reader.part.topic)
    assert decoder is not None
    for batch in reader.batches():
        if reader.left_out(batch) is None:
            for window in reader.windows(batch):
                yield from _rows_of(reader, batch, window, decoder)


def _rows_of(reader: RangeReader, batch: LogBatch, window: RecordWindow, decoder: Decoder) -> Iterator[Row]:
    header, part = batch.header, reader.part
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
            "aborted": reader.is_aborted(header),
            "segment": part.file,
            "position": batch.position,
            **(_control_contents(key, value) if is_control else _contents(decoder, key, value)),
        }


def _contents(decoder: Decoder, key: bytes | None, value: bytes | None) -> Row:
    try:
        key_message, value_message = decoder.decode(key, value)
    except FormatError as error:
        return _NO_CONTENTS | {"error": error.message}
    return _NO_CONTENTS | _fields("key", key_message, decoder) | _fields("value", value_message, decoder)


def _fields(side: str, message: Message | None, decoder: Decoder) -> Row:
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
        return _NO_CONTENTS | {"error": error.message}
    text = None if record.message is None else json_text(to_dict(record.message))
    return _NO_CONTENTS | {"valueType": record.name, "value": text}


def _index_rows(reader: RangeReader) -> Iterator[Row]:
    file = reader.part.file
    data, base_offset = _read(reader), _base_offset(file)
    rows: Iterator[Row]
    if reader.options.table == tables.TIME_INDEX:
        times = TimeIndex.decode(data, base_offset)
        found = () if _is_preallocated(times.relative_offsets, times.timestamps) else times.entries()
        rows = ({"timestamp": micros(entry.timestamp), "offset": entry.offset} for entry in found)
    else:
        index = OffsetIndex.decode(data, base_offset)
        entries = () if _is_preallocated(index.relative_offsets, index.positions) else index.entries()
        rows = ({"offset": entry.offset, "position": entry.position} for entry in entries)
    segment = file[: file.rindex(".")] + ".log"
    for number, row in enumerate(rows):
        yield {"segment": segment, "file": file, "entry": number} | row


def _is_preallocated(relative_offsets: Sequence[int], others: Sequence[int]) -> bool:
    """Return True for the index of an active segment without entries: its zeros would look like an entry for the base offset.

    A closed time index may have one entry of zeros: the segment's only record has the timestamp 0.
    """
    return len(relative_offsets) > 1 and not any(relative_offsets[:2]) and not any(others[:2])


def _aborted_rows(reader: RangeReader) -> Iterator[Row]:
    directory = read_partition(reader.disk, parent_path(reader.part.file))
    for txn in AbortedTransactions.for_partition(reader.disk, directory).aborted:
        yield {"producerId": txn.producer_id, "firstOffset": txn.first_offset, "lastOffset": txn.last_offset}


def _entries(reader: RangeReader, decode: Callable[[bytes], Iterable[_Entry]], kind: str) -> Iterable[_Entry]:
    """Return the decoded entries of a file, or none if it is corrupt, which is handled as a fault of this kind."""
    try:
        return decode(_read(reader))
    except FormatError as error:
        reader.handle(CorruptRange(reader.part, error.position or 0, reader.part.end_position, kind, error.message, None))
        return ()


def _producer_rows(reader: RangeReader) -> Iterator[Row]:
    for entry in _entries(reader, lambda data: decode_producer_snapshot(data).entries, "bad-snapshot"):
        yield {
            "file": reader.part.file,
            "snapshotOffset": _base_offset(reader.part.file),
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": micros(entry.timestamp),
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_txn_first_offset,
        }


def _leader_epoch_rows(reader: RangeReader) -> Iterator[Row]:
    for entry in _entries(reader, lambda data: decode_leader_epochs(data).entries, "bad-checkpoint"):
        yield {"file": reader.part.file, "leaderEpoch": entry.epoch, "startOffset": entry.start_offset}


def _read(reader: RangeReader) -> bytes:
    return reader.disk.read_file(reader.part.file, limits.MAX_INDEX_FILE_BYTES)


def _base_offset(path: str) -> int:
    return parse_file_name(base_name(path)).base_offset or 0


_ROWS: dict[str, Callable[[RangeReader], Iterator[Row]]] = {
    tables.BATCHES: _batch_rows,
    tables.CORRUPT: _corrupt_rows,
    tables.INTERNAL_RECORDS: _internal_rows,
    tables.OFFSET_INDEX: _index_rows,
    tables.TIME_INDEX: _index_rows,
    tables.ABORTED_TRANSACTIONS: _aborted_rows,
    tables.PRODUCERS: _producer_rows,
    tables.LEADER_EPOCHS: _leader_epoch_rows,
}
