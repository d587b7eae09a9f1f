"""--check: what the target has is read back and compared with the source, partition by partition.

    compared                                how
    --------------------------------------  --------------------------------------------------------------------------------
    batches of the replay, by their         the bytes of their records; if these differ (the target compresses them in
    producer id, in order                   another way, or sets other timestamps), record by record
    number of batches and of records        the source is read once more from its beginning

Batches of other producers are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import HEADER_BYTES, RecordBatch, read_header
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch
from kcli.replay.fetching import FetchedFile, OffsetOutOfRangeError, batches_in, fetch
from kcli.replay.outgoing_batch import OutgoingBatch
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.source import BatchStream, Source
from kcli.replay.steps import Steps, next_batch

MOST_DIFFERENCES = 20


class _Values(NamedTuple):
    """What a record is compared by."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class Checker:
    """Compares; `report` gets a sentence for each difference, at most MOST_DIFFERENCES."""

    def __init__(self, network: NetworkClient, source: Source, report: Callable[[str], object]) -> None:
        self.differences = 0
        self.records = 0
        self._network = network
        self._source = source
        self._report = report

    def steps(self, partitions: list[PartitionReplay]) -> Steps[None]:
        """Compare all partitions. Raises KafkaError, KafkaTimeoutError."""
        for partition in partitions:
            stream = self._source.open(partition.source, 0, [])
            try:
                yield from self._compare(partition, stream)
            except OffsetOutOfRangeError:
                self._differs(f"{partition.name}: the target has deleted records of the replay; they cannot be compared")
            finally:
                stream.close()

    def _differs(self, sentence: str) -> None:
        self.differences += 1
        if self.differences <= MOST_DIFFERENCES:
            self._report(sentence)

    def _compare(self, partition: PartitionReplay, stream: BatchStream) -> Steps[None]:
        progress = partition.progress
        offset = progress.start_offset
        left = progress.records
        while left > 0 and offset < progress.target_offset:
            fetched = yield from fetch(self._network, *partition.target, offset)
            before = offset
            for stored in batches_in(fetched.records, offset):
                header = stored.header
                offset = header.last_offset + 1
                if not isinstance(header, RecordBatch) or header.producer_id != progress.producer_id or left <= 0:
                    continue
                sent = yield from next_batch(stream)
                if sent is None or sent.record_count != header.last_offset_delta + 1:
                    what = "nothing" if sent is None else f"a batch of {sent.record_count} records"
                    self._differs(
                        f"{partition.name}: the target has a batch of {header.record_count} records at offset "
                        f"{header.base_offset}, the source has {what} there"
                    )
                    return
                left -= sent.record_count
                self.records += header.record_count
                self._compare_batch(partition, stored, sent)
            if offset == before:
                break
        if left > 0:
            self._differs(f"{partition.name}: {left} records of the replay are not in the target")

    def _compare_batch(self, partition: PartitionReplay, stored: LogBatch, sent: OutgoingBatch) -> None:
        assert stored.data is not None
        header = stored.header
        if stored.is_valid and _is_same(stored, sent):
            return
        file = FetchedFile(memoryview(sent.data))
        of_source = LogBatch(read_header(sent.data), memoryview(sent.data), 0, file)
        for index, (ours, theirs) in enumerate(zip_longest(_values(of_source), _values(stored))):
            if ours != theirs:
                fields = _Values._fields if ours is not None and theirs is not None else ("presence",)
                names = [name for name, one, other in zip(fields, ours or (1,), theirs or (2,), strict=False) if one != other]
                self._differs(
                    f"{partition.name}: the record at offset {header.base_offset + index} differs from the source in "
                    f"{', '.join(names)} (batch at offset {sent.first_offset} of {partition.source[0]}-{partition.source[1]})"
                )
                return


def _is_same(stored: LogBatch, sent: OutgoingBatch) -> bool:
    """Return whether codec, timestamps and the bytes of the records are those that were sent."""
    assert stored.data is not None
    other = read_header(sent.data)
    header = stored.header
    return (
        isinstance(header, RecordBatch)
        and header.codec == other.codec
        and header.base_timestamp == other.base_timestamp
        and not header.is_log_append_time
        and stored.data[HEADER_BYTES:] == memoryview(sent.data)[HEADER_BYTES:]
    )


def _values(batch: LogBatch) -> Iterator[_Values]:
    """Yield the records of a batch."""
    header = batch.header
    append_time = header.log_append_time_ms if isinstance(header, RecordBatch) else None
    for window in batch.windows(RecordScanner()):
        for index in range(window.count):
            timestamp = window.columns.timestamp[index] if append_time is None else append_time
            headers = tuple((one.key, one.value) for one in window.headers(index))
            yield _Values(timestamp, window.key(index), window.value(index), headers)
