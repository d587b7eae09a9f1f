"""The tables beside `records`: what is read for each, and how a task makes their rows.

    table                 read from                                        a row for each
    --------------------  -----------------------------------------------  -------------------------------------------
    batches               segments, headers and CRCs                       batch, whatever its CRC
    corrupt               segments, records too                            place that cannot be read as it should
    internal_records      segments of internal topics                      record, key and value decoded to JSON
    offset_index          .index                                           entry
    time_index            .timeindex                                       entry
    aborted_transactions  .txnindex, markers where it is missing           aborted transaction
    producers             .snapshot of producers                           producer in a snapshot
    leader_epochs         leader-epoch-checkpoint                          leader epoch

`batches`, `corrupt` and the tables of other files show what lies on the disk: nothing is left out of them for being a control
batch, aborted, or below the log start offset. Options that choose topics, partitions and offsets hold for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs
from kcli.format.file_names import FileKind, parse_file_name
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk, base_name, parent_path
from kcli.log.files.log_directory import read_partition
from kcli.log.reading.segment_reader import LogBatch
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.spark import schema as tables
from kcli.spark.arrow_batches import arrow_schema
from kcli.spark.column_builders import compression_name, micros, timestamp_type
from kcli.spark.internal_rows import internal_rows, is_internal
from kcli.spark.options import FALSE, ReadOptions
from kcli.spark.partitions import LogPartition, find_partitions, plan_anew
from kcli.spark.planning import OffsetRange, RangeChoice, offset_ranges, plan_splits, ranges_now
from kcli.spark.pushdown import Pushed
from kcli.spark.range_walker import Fault, RangeWalker, is_aborted, records_fault
from kcli.spark.record_reader import read_records
from kcli.spark.session import usable_cores
from kcli.spark.splits import LogSplit, SegmentRange, pack

Row = dict[str, Any]

# Rows of these tables are made as objects, so fewer of them travel at a time; corrupt bytes may be many.
ROWS_AT_ONCE = 4096
CORRUPT_ROWS_AT_ONCE = 8
# Of a corrupt place at most so many bytes come along; `endPosition` tells how many there are.
MAX_CORRUPT_BYTES = 1024 * 1024

_OF_SEGMENTS = (tables.RECORDS, tables.INTERNAL_RECORDS, tables.BATCHES, tables.CORRUPT)


def plan_table(disk: Disk, options: ReadOptions, columns: set[str], pushed: Pushed) -> list[LogSplit]:
    """The splits that give a table's rows. Raises PlanError for paths and options that do not fit, OSError as the disk does."""
    return plan_anew(lambda: _plan(disk, options, columns, pushed))


def _plan(disk: Disk, options: ReadOptions, columns: set[str], pushed: Pushed) -> list[LogSplit]:
    partitions = [part for part in find_partitions(disk, options) if pushed.takes(part.topic, part.partition)]
    if options.table == tables.INTERNAL_RECORDS:
        partitions = [part for part in partitions if is_internal(part.topic)]
    if options.table not in _OF_SEGMENTS:
        return pack([found for part in partitions for found in _files(part, options.table)], options.max_partition_bytes)
    if options.table in (tables.BATCHES, tables.CORRUPT):
        options = options._replace(include_below_log_start=True, isolation="", stop_at_high_watermark=FALSE)
    wanted = [
        OffsetRange(part, max(first, pushed.first_offset), min(end, pushed.end_offset))
        for part, first, end in offset_ranges(partitions, options)
    ]
    if options.min_partitions is None:
        # Spark's default parallelism, as far as it is known where Spark plans: a worker without a session.
        options = options._replace(min_partitions=usable_cores())
    with_transactions = options.read_committed or "aborted" in columns
    choice = RangeChoice(with_transactions, least_timestamp_ms=pushed.least_timestamp_ms)
    return plan_splits(disk, wanted, options, choice)


def _files(part: LogPartition, table: str) -> Iterator[SegmentRange]:
    """The files that a table is read from, each a range of its own."""
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
            size = part.disk.size(path)
            yield SegmentRange(part.topic, part.partition, path, 0, 0, size, 0, INT64_MAX)


def read_split(partition: InputPartition, schema: StructType, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of what Spark hands to a task as Arrow batches; none for the empty partition of a table without splits.

    Raises as read_table does.
    """
    split = partition if isinstance(partition, LogSplit) else LogSplit([], 0)
    return read_table(OsDisk(), split, arrow_schema(schema), options)


def read_table(disk: Disk, split: LogSplit, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a split as Arrow batches of `schema`.

    Raises CorruptLogError for corrupt bytes where the job is to fail, OSError as the disk does.
    """
    if options.table == tables.RECORDS:
        yield from read_records(disk, split, schema, options)
        return
    walker = RangeWalker(disk, options)
    make = _ROWS[options.table]
    at_once = CORRUPT_ROWS_AT_ONCE if options.table == tables.CORRUPT else ROWS_AT_ONCE
    rows: list[Row] = []
    for planned in split.ranges:
        for part in ranges_now(disk, planned, options):
            for row in make(walker, part):
                rows.append({"topic": part.topic, "partition": part.partition, **row})
                if len(rows) == at_once:
                    yield _arrow(rows, schema)
                    rows = []
    if rows:
        yield _arrow(rows, schema)


def _arrow(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ------------------------------------------------------------------------------------------------------------ row makers


def _batch_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    for found in walker.entries(part):
        if isinstance(found, Fault) and found.batch is None:
            walker.fault(found)
        else:
            batch = found.batch if isinstance(found, Fault) else found
            assert batch is not None
            yield _batch_row(part, batch)


def _batch_row(part: SegmentRange, batch: LogBatch) -> Row:
    header = batch.header
    row: Row = {
        "segment": part.file,
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
        # What message formats 0 and 1 have not got.
        return row | dict.fromkeys(_V2_ONLY) | {"isTransactional": False, "isControl": False, "aborted": False}
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
        "aborted": is_aborted(part, header),
    }


_V2_ONLY = (
    "recordCount",
    "baseTimestamp",
    "deleteHorizon",
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "baseSequence",
    "lastSequence",
)


def _corrupt_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    disk = walker.disk
    for found in walker.entries(part):
        if isinstance(found, Fault):
            yield _corrupt_row(disk, found)
            continue
        error = walker.first_error(found)
        if error is not None:
            yield _corrupt_row(disk, records_fault(part, found, error))


def _corrupt_row(disk: Disk, fault: Fault) -> Row:
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


def _offset_index_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    index = OffsetIndex.decode(_read(walker, part), _base_offset(part.file))
    for number, entry in enumerate(index.entries()):
        yield {
            "segment": _log_of(part.file),
            "file": part.file,
            "entry": number,
            "offset": entry.offset,
            "position": entry.position,
        }


def _time_index_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    index = TimeIndex.decode(_read(walker, part), _base_offset(part.file))
    for number, entry in enumerate(index.entries()):
        yield {
            "segment": _log_of(part.file),
            "file": part.file,
            "entry": number,
            "timestamp": micros(entry.timestamp),
            "offset": entry.offset,
        }


def _aborted_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    directory = read_partition(walker.disk, parent_path(part.file))
    for txn in AbortedTransactions.for_partition(walker.disk, directory).aborted:
        yield {"producerId": txn.producer_id, "firstOffset": txn.first_offset, "lastOffset": txn.last_offset}


def _producer_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    try:
        snapshot = decode_producer_snapshot(_read(walker, part))
    except FormatError as error:
        walker.fault(Fault(part, error.position or 0, part.end_position, "bad-snapshot", error.message, None))
        return
    for entry in snapshot.entries:
        yield {
            "file": part.file,
            "snapshotOffset": _base_offset(part.file),
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": micros(entry.timestamp),
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_txn_first_offset,
        }


def _leader_epoch_rows(walker: RangeWalker, part: SegmentRange) -> Iterator[Row]:
    try:
        checkpoint = decode_leader_epochs(_read(walker, part))
    except FormatError as error:
        walker.fault(Fault(part, error.position or 0, part.end_position, "bad-checkpoint", error.message, None))
        return
    for entry in checkpoint.entries:
        yield {"file": part.file, "leaderEpoch": entry.epoch, "startOffset": entry.start_offset}


def _read(walker: RangeWalker, part: SegmentRange) -> bytes:
    return walker.disk.read_file(part.file, limits.MAX_INDEX_FILE_BYTES)


def _base_offset(path: str) -> int:
    return parse_file_name(base_name(path)).base_offset or 0


def _log_of(path: str) -> str:
    """The path of the segment that an index belongs to."""
    return path[: path.rindex(".")] + ".log"


_ROWS: dict[str, Callable[[RangeWalker, SegmentRange], Iterator[Row]]] = {
    tables.BATCHES: _batch_rows,
    tables.CORRUPT: _corrupt_rows,
    tables.INTERNAL_RECORDS: internal_rows,
    tables.OFFSET_INDEX: _offset_index_rows,
    tables.TIME_INDEX: _time_index_rows,
    tables.ABORTED_TRANSACTIONS: _aborted_rows,
    tables.PRODUCERS: _producer_rows,
    tables.LEADER_EPOCHS: _leader_epoch_rows,
}
