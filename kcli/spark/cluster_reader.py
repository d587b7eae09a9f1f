"""Reading the records of a running cluster in a task: whole batches of Fetch, in windows that are read like segments.

    step        what happens
    ----------  --------------------------------------------------------------------------------------------------------
    fetch       Fetch of one partition (kcli.replay.fetching), up to 8 MB; the next one runs while a window is read
    window      the whole batches of an answer with wanted offsets, as a file of kcli.spark.range_reader
    aborted     the transactions that the answer lists; each ends with its marker, or after the window
    deleted     offsets that retention has removed since planning fail the task, or are reported as lost (failOnDataLoss=false)

Below the last stable offset the isolation level is read_committed for all reads, since only such an answer lists aborted
transactions; it has the same batches there. Above it, planning has found the transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from kcli.client.client_config import SCHEME
from kcli.client.consumer.completed_fetch import FetchedTransactions
from kcli.client.errors import ClientError
from kcli.client.shell.client_builder import Setting, property_texts
from kcli.format.primitives import INT64_MAX, TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk, DiskFile
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch
from kcli.log.reading.transaction_filter import AbortedTransaction, AbortedTransactions, is_abort
from kcli.replay.fetching import Aborted, FetchClient, Fetched, FetchedFile, FetchPosition, OffsetOutOfRangeError, batches_in
from kcli.replay.steps import topic_id
from kcli.spark.log_partitions import PlanError
from kcli.spark.read_options import ReadOptions
from kcli.spark.report import Report
from kcli.spark.splits import SegmentRange

CLIENT_SETTINGS: dict[str, Setting] = {
    "client.id": "kcli-to-parquet",
    "default.api.timeout.ms": 30_000,
    "allow.auto.create.topics": False,
}
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


def servers_of(file: str) -> str:
    """Return the bootstrap servers in the name of a cluster or of a partition in it."""
    return file.removeprefix(SCHEME).partition("/")[0]


class ClusterFetcher(FetchClient):
    """The client of a task. Raises ConfigError for servers that are no addresses, or settings that cannot be."""

    def __init__(self, servers: str, settings: Mapping[str, str]) -> None:
        super().__init__(property_texts({**CLIENT_SETTINGS, **settings, "bootstrap.servers": servers}))

    def check_topic(self, part: SegmentRange) -> None:
        """Raise PlanError if the topic is another one than that of the plan."""
        found = int.from_bytes(topic_id(self.network, part.topic))
        if part.file_id and found and found != part.file_id:
            raise PlanError(
                f"{part.file}: the topic was deleted and created again while the job ran; run the job again to read the new one"
            )


class FetchedWindow(NamedTuple):
    """Whole batches of an answer and their bytes, and the listed transactions.

    Offsets from `first_offset` on are wanted, which may be in the first batch; that begins at `base_offset`.
    """

    data: memoryview
    first_offset: int
    base_offset: int
    next_offset: int
    batches: list[LogBatch]
    aborted: Sequence[Aborted]


def fetch_windows(
    fetcher: ClusterFetcher, part: SegmentRange, stable_offset: int, lost: Callable[[int, int], None]
) -> Iterator[FetchedWindow]:
    """Yield the batches of a range; below `stable_offset` with the aborted transactions.

    Calls `lost(first, end)` for offsets that the cluster has deleted. Raises PlanError, ClientError.
    """
    key, end = (part.topic, part.partition), part.end_offset
    position = FetchPosition(part.first_offset, end)
    fetcher.connect(part.topic)
    fetcher.check_topic(part)

    def begin() -> Future[Fetched]:
        offset = position.offset
        return fetcher.fetch(key, offset, _READ_COMMITTED if offset < stable_offset else _READ_UNCOMMITTED)

    coming = begin()
    while not position.is_at_end:
        offset = position.offset
        try:
            fetched = coming.result()
        except OffsetOutOfRangeError:
            start = fetcher.first_offset(key)
            if start <= offset:
                raise PlanError(f"{part.file}: the log has no offset {offset} any more: it was truncated") from None
            lost(offset, min(start, end))
            position.offset = start
            coming = begin()
            continue
        fetcher.check_topic(part)
        window = _window(fetched, offset, end)
        if not position.go_on(fetched, offset if window is None else window.next_offset):
            raise PlanError(
                f"{part.file}: the log ends at offset {fetched.high_watermark} now, and was to be read up to {end}: it was "
                "truncated; run the job again"
            )
        if not position.is_at_end:
            coming = begin()
        if window is not None and window.batches:
            yield window


def _window(fetched: Fetched, offset: int, end: int) -> FetchedWindow | None:
    """Return the batches of an answer with offsets in [offset, end), None for an answer without a batch.

    A window without batches ends the range: all records of the answer are behind it.
    """
    batches: list[LogBatch] = []
    base, next_offset = offset, offset
    for batch in batches_in(fetched.records, offset):
        next_offset = batch.header.last_offset + 1
        if batch.header.base_offset >= end:
            next_offset = end
            break
        if not batches:
            base = batch.header.base_offset
        batches.append(batch)
    if next_offset == offset:
        return None
    if not batches:
        return FetchedWindow(memoryview(b""), offset, base, next_offset, [], ())
    data = fetched.records[batches[0].position : batches[-1].end_position]
    return FetchedWindow(data, offset, base, next_offset, batches, fetched.aborted)


def fetched_batches(fetcher: ClusterFetcher, key: TopicPartition, name: str, first: int, end: int) -> Iterator[LogBatch]:
    """Yield the batches with offsets in [first, end). Raises PlanError, also for a cluster that cannot be read."""
    part = SegmentRange(*key, name, first, 0, 0, first, end)
    try:
        for window in fetch_windows(fetcher, part, 0, lambda first, end: None):
            yield from window.batches
    except ClientError as error:
        raise PlanError(f"{name}: {error}") from None


class _WindowDisk(OsDisk):
    """The disk of a reader whose file is a window."""

    def __init__(self, path: str, data: memoryview) -> None:
        super().__init__()
        self._path = path
        self._data = data

    def open_file(self, path: str) -> DiskFile:
        """Open the window, or another file."""
        return FetchedFile(self._data) if path == self._path else super().open_file(path)


def window_ranges(part: SegmentRange, options: ReadOptions, report: Report) -> Iterator[tuple[Disk, SegmentRange]]:
    """Yield the disk and the range of each window of a planned range, for kcli.spark.range_reader. Raises PlanError."""
    known = part.transactions

    def lost(first: int, end: int) -> None:
        if options.fail_on_data_loss:
            raise PlanError(
                f"{part.file}: offsets {first} to {end - 1} were deleted while the job ran; "
                "option failOnDataLoss=false continues without them"
            )
        report.add_lost(part, first, end)

    stable_offset = 0 if known is None else known.last_stable_offset
    least_offset: int | None = None
    try:
        with ClusterFetcher(servers_of(part.file), options.client) as fetcher:
            for window in fetch_windows(fetcher, part, stable_offset, lost):
                transactions = None if known is None else _with_aborted(known, window)
                yield (
                    _WindowDisk(part.file, window.data),
                    part._replace(
                        least_offset=window.base_offset if least_offset is None else least_offset,
                        first_offset=window.first_offset,
                        position=0,
                        end_position=len(window.data),
                        transactions=transactions,
                    ),
                )
                least_offset = window.next_offset
    except ClientError as error:
        raise PlanError(f"{part.file}: {error}") from None


def _with_aborted(known: AbortedTransactions, window: FetchedWindow) -> AbortedTransactions:
    """Return the known transactions and those that the answer lists: each ends with its marker, or after the window."""
    if not window.aborted:
        return known
    scanner, listed, aborted = RecordScanner(1), FetchedTransactions(window.aborted), list(known.aborted)
    for batch in window.batches:
        header = batch.header
        listed.begin(header.last_offset)
        if isinstance(header, RecordBatch) and header.is_control and is_abort(batch, scanner):
            first_offset = listed.end(header.producer_id)
            if first_offset >= 0:
                aborted.append(AbortedTransaction(header.producer_id, first_offset, header.base_offset))
    aborted += (AbortedTransaction(producer_id, first_offset, INT64_MAX) for producer_id, first_offset in listed.left())
    return AbortedTransactions(aborted, known.open_transactions, known.log_end_offset, known.problems)
