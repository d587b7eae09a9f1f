"""Statistics of logs (dump-log --stats), counted while they are read, in memory that does not grow with the log.

    statistics of          kept                                                  bounded by
    ---------------------  ----------------------------------------------------  ---------------------------------
    batches, records       counts, bytes, by codec and by partition              8 codecs, MAX_PARTITIONS
    inflation              bytes before and after, of batches read as a whole
    sizes                  of batches, keys, values: least, most, quantiles      kcli.inspect.dumping.sketches
    time                   records and bytes by time                             512 buckets that widen
    keys                   the most frequent                                     KEY_CAPACITY, MAX_KEY_BYTES each
    producers              batches, records, sequences                           MAX_PRODUCERS; the smallest are dropped
    transactions           committed, aborted, open at the end                   MAX_PRODUCERS open ones

Only sound batches count (kcli.inspect.sound_batches). Keys, values and times are those of data records; control records are
counted separately. `report` returns a dict for JSON (docs/json-output.md), from which the text is made, too.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kcli.format.compression import CODECS
from kcli.format.record_batch import HEADER_BYTES, NO_TIMESTAMP, RecordBatch
from kcli.inspect.dumping.renderer import DumpedFile, fixed_timestamp
from kcli.inspect.dumping.sketches import HeavyHitters, SizeHistogram, TimeBuckets
from kcli.log.reading.batch_records import RecordWindow
from kcli.log.reading.segment_reader import LogBatch

if TYPE_CHECKING:
    from kcli.inspect.json_text import JsonObject
    from kcli.selecting.selected_log import SelectedRecords

KEY_CAPACITY = 4096
MAX_KEY_BYTES = 256
MAX_PRODUCERS = 10_000
MAX_PARTITIONS = 1000
TOP_ROWS = 20
_COMMIT = 1
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
# A key; of a longer one its beginning, its size and its digest.
CountedKey = bytes | tuple[bytes, int, bytes]


class _Codec:
    """Sums over the batches of one codec; compressed and inflated bytes only of batches whose records were all selected."""

    __slots__ = ("batches", "compressed_bytes", "inflated_bytes", "records", "size_bytes")

    def __init__(self) -> None:
        self.batches = self.records = self.size_bytes = self.compressed_bytes = self.inflated_bytes = 0


class _Producer:
    """Sums over the batches of one producer."""

    __slots__ = ("batches", "epoch", "last_sequence", "records", "size_bytes", "transactional")

    def __init__(self) -> None:
        self.batches = self.records = self.size_bytes = 0
        self.epoch = self.last_sequence = -1
        self.transactional = False


class _Partition:
    """Sums over one partition, or one file whose directory does not have a partition's name."""

    __slots__ = ("batches", "first_offset", "last_offset", "records", "size_bytes")

    def __init__(self) -> None:
        self.batches = self.records = self.size_bytes = 0
        self.first_offset = self.last_offset = -1


class Statistics:
    """The statistics of files: of their batches and, after each batch, its selected records."""

    def __init__(self) -> None:
        self.batches_left_out = 0  # damaged batches, which the caller counts (kcli.inspect.sound_batches)
        self.files = self.batches = self.records = self.control_records = self.size_bytes = 0
        self.null_keys = self.null_values = self.headers = self.records_with_headers = 0
        self.first_timestamp: int | None = None
        self.last_timestamp: int | None = None
        self.batch_sizes, self.batch_records = SizeHistogram(), SizeHistogram()
        self.key_sizes, self.value_sizes = SizeHistogram(), SizeHistogram()
        self.times = TimeBuckets()
        self.keys: HeavyHitters[CountedKey] = HeavyHitters(KEY_CAPACITY)
        self.codecs: dict[int, _Codec] = {}
        self.producers: dict[int, _Producer] = {}
        self.producers_left_out = 0
        self.partitions: dict[str, _Partition] = {}
        self.partitions_left_out = 0
        self.committed = self.aborted = 0
        self.open_transactions: dict[tuple[str, int], int] = {}
        self._partition_name = ""
        self._partition = _Partition()
        self._seen = self._inflated = 0
        self._bytes: bytes = b""
        self._bytes_of: object = None

    def begin_file(self, file: DumpedFile) -> None:
        """Begin a log file."""
        self.files += 1
        self._partition_name = file.path if file.topic is None else f"{file.topic}-{file.partition}"
        partition = self.partitions.get(self._partition_name)
        if partition is None:
            partition = _Partition()
            if len(self.partitions) < MAX_PARTITIONS:
                self.partitions[self._partition_name] = partition
            else:
                self.partitions_left_out += 1
        self._partition = partition

    def add_batch(self, batch: LogBatch) -> None:
        """Add a batch whose records follow."""
        header = batch.header
        self.batches += 1
        self.size_bytes += header.size_bytes
        self.batch_sizes.add(header.size_bytes)
        self._seen = self._inflated = 0
        codec = self.codecs.setdefault(header.codec, _Codec())
        codec.batches += 1
        codec.size_bytes += header.size_bytes
        self._partition.batches += 1
        self._partition.size_bytes += header.size_bytes
        if isinstance(header, RecordBatch):
            self.batch_records.add(max(header.record_count, 0))
            if header.has_producer and not header.is_control:
                self._add_producer(header)

    def _add_producer(self, header: RecordBatch) -> None:
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = _Producer()
        producer.batches += 1
        producer.records += max(header.record_count, 0)
        producer.size_bytes += header.size_bytes
        producer.epoch, producer.last_sequence = header.producer_epoch, header.last_sequence
        if header.is_transactional:
            producer.transactional = True
            if len(self.open_transactions) < MAX_PRODUCERS:
                self.open_transactions.setdefault((self._partition_name, header.producer_id), header.base_offset)
        if len(self.producers) > MAX_PRODUCERS:
            kept = _largest(self.producers, MAX_PRODUCERS // 2)
            self.producers_left_out += len(self.producers) - len(kept)
            self.producers = dict(kept)

    def add_records(self, selected: SelectedRecords) -> None:
        """Add selected records of the last batch."""
        batch, window, indexes = selected
        header, columns, count = batch.header, window.columns, len(indexes)
        codec, partition = self.codecs[header.codec], self._partition
        codec.records += count
        partition.records += count
        if partition.first_offset < 0:
            partition.first_offset = columns.offset[indexes[0]]
        partition.last_offset = columns.offset[indexes[-1]]
        self._add_inflation(batch, window, codec)
        if isinstance(header, RecordBatch) and header.is_control:
            self.control_records += count
            self._end_transactions(header, window, indexes)
            return
        self.records += count
        key_sizes, value_sizes = _chosen(columns.key_size, indexes), _chosen(columns.value_size, indexes)
        key_counts, value_counts = Counter(key_sizes), Counter(value_sizes)
        self.null_keys += key_counts.pop(-1, 0)
        self.null_values += value_counts.pop(-1, 0)
        self.key_sizes.add_counts(key_counts)
        self.value_sizes.add_counts(value_counts)
        header_counts = _chosen(columns.header_count, indexes)
        self.headers += sum(header_counts)
        self.records_with_headers += count - header_counts.count(0)
        self._add_times(fixed_timestamp(batch), _chosen(columns.timestamp, indexes), key_sizes, value_sizes)
        if not window.left_out:
            self._add_keys(window, indexes)

    def _add_inflation(self, batch: LogBatch, window: RecordWindow, codec: _Codec) -> None:
        """Add the sizes of a batch to its codec's ratio when all of its records were added."""
        header, columns = batch.header, window.columns
        self._seen += window.count
        if window.left_out:
            self._inflated += max(columns.key_size[0], 0) + max(columns.value_size[0], 0)
        self._inflated += columns.end - columns.record_position[0]
        if isinstance(header, RecordBatch) and self._seen == header.record_count:
            codec.compressed_bytes += header.size_bytes - HEADER_BYTES
            codec.inflated_bytes += self._inflated

    def _end_transactions(self, header: RecordBatch, window: RecordWindow, indexes: Iterable[int]) -> None:
        if not header.is_transactional:
            return
        for index in indexes:
            key = window.key(index) or b""
            if key[2:4] == _COMMIT.to_bytes(2, "big"):
                self.committed += 1
            else:
                self.aborted += 1
            self.open_transactions.pop((self._partition_name, header.producer_id), None)

    def _add_times(self, fixed: int | None, timestamps: array[int], key_sizes: array[int], value_sizes: array[int]) -> None:
        first, last = (min(timestamps), max(timestamps)) if fixed is None else (fixed, fixed)
        if last == NO_TIMESTAMP:
            return
        width = self.times.width_ms
        if first != NO_TIMESTAMP and first // width == last // width:
            nulls = key_sizes.count(-1) + value_sizes.count(-1)
            self.times.add(first, len(timestamps), sum(key_sizes) + sum(value_sizes) + nulls)
        else:
            by_bucket: dict[int, list[int]] = {}
            for timestamp, key_size, value_size in zip(timestamps, key_sizes, value_sizes, strict=True):
                if timestamp != NO_TIMESTAMP:
                    sums = by_bucket.setdefault(timestamp // width, [0, 0])
                    sums[0] += 1
                    sums[1] += max(key_size, 0) + max(value_size, 0)
            for bucket, (records, size_bytes) in by_bucket.items():
                self.times.add(bucket * width, records, size_bytes)
            first = min(timestamp for timestamp in timestamps if timestamp != NO_TIMESTAMP)
        self.first_timestamp = first if self.first_timestamp is None else min(first, self.first_timestamp)
        self.last_timestamp = last if self.last_timestamp is None else max(last, self.last_timestamp)

    def _add_keys(self, window: RecordWindow, indexes: Iterable[int]) -> None:
        if window.buffer is not self._bytes_of:
            self._bytes, self._bytes_of = bytes(window.buffer), window.buffer
        buffer, sizes, positions = self._bytes, window.columns.key_size, window.columns.key_position
        self.keys.add_counts(
            Counter(
                [
                    buffer[(at := positions[index]) : at + size]
                    if size <= MAX_KEY_BYTES
                    else _long_key(buffer, positions[index], size)
                    for index in indexes
                    if (size := sizes[index]) >= 0
                ]
            )
        )

    def report(self) -> JsonObject:
        """Return the statistics for JSON; sizes are in bytes, times in ms."""
        transactions = sorted(self.open_transactions.items(), key=lambda item: item[1])
        return {
            "files": self.files,
            "batches": self.batches,
            "batchesLeftOut": self.batches_left_out,
            "records": self.records,
            "controlRecords": self.control_records,
            "sizeInBytes": self.size_bytes,
            "firstTimestamp": self.first_timestamp,
            "lastTimestamp": self.last_timestamp,
            "codecs": [_codec_row(codec, sums) for codec, sums in sorted(self.codecs.items())],
            "batchSize": _sizes(self.batch_sizes),
            "recordsPerBatch": _sizes(self.batch_records),
            "keySize": _sizes(self.key_sizes) | {"nulls": self.null_keys},
            "valueSize": _sizes(self.value_sizes) | {"nulls": self.null_values},
            "headers": {"count": self.headers, "records": self.records_with_headers},
            "rates": {
                "bucketMs": self.times.width_ms,
                "buckets": [
                    {"start": start, "records": records, "sizeInBytes": size_bytes}
                    for start, records, size_bytes in self.times.rows()
                ],
            },
            "topKeys": {
                "countsMayBeTooLowBy": self.keys.error,
                "keys": [_key_row(key, count) for key, count in self.keys.top(TOP_ROWS)],
            },
            "producers": {
                "count": len(self.producers) + self.producers_left_out,
                "top": [_producer_row(*item) for item in _largest(self.producers, TOP_ROWS)],
            },
            "transactions": {
                "committed": self.committed,
                "aborted": self.aborted,
                "open": [
                    {"partition": partition, "producerId": producer_id, "firstOffset": first_offset}
                    for (partition, producer_id), first_offset in transactions[:TOP_ROWS]
                ],
                "openCount": len(transactions),
            },
            "partitions": [_partition_row(name, sums) for name, sums in self.partitions.items()],
            "partitionsLeftOut": self.partitions_left_out,
        }


def _chosen(column: array[int], indexes: Sequence[int]) -> array[int]:
    """Return a column's values at some indexes."""
    if isinstance(indexes, range):
        return column[indexes.start : indexes.stop]
    return array("q", [column[index] for index in indexes])


def _long_key(buffer: bytes, at: int, size: int) -> CountedKey:
    from hashlib import blake2b

    digest = blake2b(memoryview(buffer)[at : at + size], digest_size=16).digest()
    return buffer[at : at + MAX_KEY_BYTES // 2], size, digest


def _sizes(histogram: SizeHistogram) -> JsonObject:
    """Return a histogram as JSON."""
    count = histogram.count
    return {
        "count": count,
        "total": histogram.total,
        "min": histogram.least,
        "max": histogram.most,
        "mean": round(histogram.total / count, 1) if count else 0,
        **{name: histogram.quantile(share) for name, share in _QUANTILES},
        "doublings": [{"from": first, "count": times} for first, times in histogram.doublings()],
    }


def _codec_row(codec: int, sums: _Codec) -> JsonObject:
    ratio = round(sums.inflated_bytes / sums.compressed_bytes, 2) if sums.compressed_bytes else None
    return {
        "name": CODECS.get(codec, str(codec)),
        "batches": sums.batches,
        "records": sums.records,
        "sizeInBytes": sums.size_bytes,
        "compressedBytes": sums.compressed_bytes,
        "inflatedBytes": sums.inflated_bytes,
        "ratio": ratio,
    }


def _key_row(key: CountedKey, count: int) -> JsonObject:
    data, size = (key, len(key)) if isinstance(key, bytes) else key[:2]
    row: JsonObject = {"count": count, "keySize": size}
    try:
        return row | {"key": str(data, "utf-8")} | ({"isCut": True} if size > len(data) else {})
    except UnicodeDecodeError:
        from kcli.inspect.json_text import base64_text

        return row | {"keyBase64": base64_text(data)} | ({"isCut": True} if size > len(data) else {})


def _largest(producers: dict[int, _Producer], count: int) -> list[tuple[int, _Producer]]:
    return sorted(producers.items(), key=lambda item: -item[1].records)[:count]


def _producer_row(producer_id: int, sums: _Producer) -> JsonObject:
    return {
        "producerId": producer_id,
        "producerEpoch": sums.epoch,
        "batches": sums.batches,
        "records": sums.records,
        "sizeInBytes": sums.size_bytes,
        "lastSequence": sums.last_sequence,
        "isTransactional": sums.transactional,
    }


def _partition_row(name: str, sums: _Partition) -> JsonObject:
    return {
        "partition": name,
        "batches": sums.batches,
        "records": sums.records,
        "sizeInBytes": sums.size_bytes,
        "firstOffset": sums.first_offset,
        "lastOffset": sums.last_offset,
    }
