"""--check: what the target has is read back and compared with the source, partition by partition.

    compared                                how
    --------------------------------------  --------------------------------------------------------------------------------
    batches of the replay, by their         the bytes of their records; if these differ (the target compresses them in
    producer id, in order                   another way, or sets other timestamps), record by record
    batches that end at different records   record by record: --join made them in several runs
    number of batches and of records        the source is read once more from its beginning

Batches of other producers are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import HEADER_BYTES, RecordBatch, read_header
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch
from kcli.replay.fetching import FetchedFile, OffsetOutOfRangeError, batches_in, fetch_some
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.source import BatchStream, EarlierRun, OutgoingBatch, Source
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
            stream = self._source.open(partition.source, 0, [], EarlierRun(most_bytes=partition.most_joined_bytes))
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
        waiting: deque[_Values] = deque()  # records of a batch of the source that ends elsewhere than those of the target
        while left > 0 and offset < progress.target_offset:
            fetched = yield from fetch_some(self._network, *partition.target, offset)
            before, offset = offset, fetched.skip_missing(offset)
            for stored in batches_in(fetched.records, offset):
                header = stored.header
                offset = header.last_offset + 1
                if not isinstance(header, RecordBatch) or header.producer_id != progress.producer_id or left <= 0:
                    continue
                count = header.last_offset_delta + 1
                left -= count
                self.records += header.record_count
                sent = None if waiting else (yield from next_batch(stream))
                if sent is not None and sent.record_count == count:
                    self._compare_batch(partition, stored, sent)
                    continue
                # With --join, the batches of several runs end where each run ended.
                while True:
                    waiting.extend(() if sent is None else _values_sent(sent))
                    if len(waiting) >= count:
                        break
                    sent = yield from next_batch(stream)
                    if sent is None:
                        break
                ours = [waiting.popleft() for _ in range(min(count, len(waiting)))]
                if not self._compare_records(partition, header.base_offset, ours, _values(stored)):
                    return
            if offset == before:
                break
        if left > 0:
            self._differs(f"{partition.name}: {left} records of the replay are not in the target")

    def _compare_batch(self, partition: PartitionReplay, stored: LogBatch, sent: OutgoingBatch) -> None:
        assert stored.data is not None
        if stored.is_valid and _is_same(stored, sent):
            return
        self._compare_records(partition, stored.header.base_offset, _values_sent(sent), _values(stored))

    def _compare_records(
        self, partition: PartitionReplay, base_offset: int, ours: Iterable[_Values], theirs: Iterable[_Values]
    ) -> bool:
        """Report the first record of a batch of the target that differs; return whether all are the same."""
        topic, number = partition.source
        for index, (one, other) in enumerate(zip_longest(ours, theirs)):
            if one != other:
                fields = _Values._fields if one is not None and other is not None else ("presence",)
                names = [name for name, a, b in zip(fields, one or (1,), other or (2,), strict=False) if a != b]
                self._differs(
                    f"{partition.name}: the record at offset {base_offset + index} differs from {topic}-{number} of the "
                    f"source in {', '.join(names)}"
                )
                return False
        return True


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


def _values_sent(sent: OutgoingBatch) -> Iterator[_Values]:
    """Yield the records of a batch of the source."""
    file = FetchedFile(memoryview(sent.data))
    yield from _values(LogBatch(read_header(sent.data), memoryview(sent.data), 0, file))


def _values(batch: LogBatch) -> Iterator[_Values]:
    """Yield the records of a batch."""
    header = batch.header
    append_time = header.log_append_time_ms if isinstance(header, RecordBatch) else None
    for window in batch.windows(RecordScanner()):
        for index in range(window.count):
            timestamp = window.columns.timestamp[index] if append_time is None else append_time
            headers = tuple((one.key, one.value) for one in window.headers(index))
            yield _Values(timestamp, window.key(index), window.value(index), headers)
