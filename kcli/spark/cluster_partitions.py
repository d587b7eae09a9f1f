"""Partitions of a running cluster as the input of a read: kafka://HOST:PORT[,HOST:PORT...] instead of paths.

    value                                from
    -----------------------------------  --------------------------------------------------------------------------------
    topics, topic ids, cluster id        list_topics, describe_topics, describe_cluster of the admin client
    first offset                         ListOffsets, earliest
    end, last stable offset              ListOffsets, latest, of both isolation levels: a cluster shows no record at or above
                                           the high watermark
    offset of a time                     ListOffsets by time
    size                                 DescribeLogDirs of the leader, in proportion to the offsets that are wanted
    aborted transactions                 below the last stable offset the list of each answer to Fetch, which the tasks read;
                                           above it the markers, which planning reads

The rows are those that a read of the leader's directory has, without the columns `segment` and `position`. The tasks fetch
whole batches (kcli.spark.cluster_reader), so the executors must reach the brokers. A split is a range of offsets; the bytes of
its SegmentRange are an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import NO_OFFSET, IsolationLevel, OffsetSpec
from kcli.client.admin.topics import TopicDescription
from kcli.client.client_config import SCHEME
from kcli.client.errors import ClientError
from kcli.client.shell.admin import Admin
from kcli.client.shell.client_builder import Setting
from kcli.format.file_names import DirectoryState
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_dir_owner import Owner
from kcli.log.files.log_directory import PartitionDirectory
from kcli.log.reading.offset_lookup import SegmentEnd
from kcli.log.reading.segment_reader import LogBatch
from kcli.log.reading.transaction_filter import AbortedTransactions, TransactionTracker
from kcli.selecting.lookup import TimeOffset
from kcli.spark import table_schemas as tables
from kcli.spark.cluster_reader import CLIENT_SETTINGS, ClusterFetcher, fetched_batches, servers_of
from kcli.spark.log_partitions import LogPartition, PlanError, check_chosen, is_read
from kcli.spark.read_options import SKIP, ReadOptions
from kcli.spark.splits import SegmentRange

# The size of a record of which only the offset is known.
_ASSUMED_RECORD_BYTES = 100
# A cluster that cannot be reached is reported after this time.
_PLANNING_TIMEOUT_MS = 15_000


def cluster_url(options: ReadOptions) -> str:
    """Return the cluster that is read. Raises PlanError for options of log directories."""
    urls = [path for path in options.paths if path.startswith(SCHEME)]
    if len(options.paths) > 1:
        raise PlanError(f"{urls[0]} must be the only path: a cluster and log directories are not read together")
    if options.table != tables.RECORDS:
        raise PlanError(f"{urls[0]}: a cluster has the table records; the table {options.table} needs log directories")
    refused = {
        "onCorrupt=skip (--on-corrupt skip)": options.on_corrupt == SKIP,
        "includeBelowLogStart": options.include_below_log_start,
    }
    for option, is_given in refused.items():
        if is_given:
            raise PlanError(f"{urls[0]}: the option {option} needs log directories")
    if not servers_of(urls[0]):
        raise PlanError(f"{urls[0]} names no broker: write {SCHEME}HOST:PORT, such as {SCHEME}localhost:9092")
    return SCHEME + servers_of(urls[0])


class LogOffsets(NamedTuple):
    """The offsets of a partition at the time of planning."""

    first_offset: int
    last_stable_offset: int
    high_watermark: int


class ClusterPartition(LogPartition):
    """A partition of a cluster: its offsets at the time of planning, and its size."""

    def __init__(
        self,
        url: str,
        cluster_id: str | None,
        key: TopicPartition,
        topic_id: str,
        bounds: LogOffsets,
        size_bytes: int,
        settings: Mapping[str, str],
    ) -> None:
        topic, partition = key
        path = f"{url}/{topic}-{partition}"
        super().__init__(OsDisk(), PartitionDirectory(path, topic, partition, DirectoryState.CURRENT, True, [], [], [], [], []))
        self.url = url
        self._settings = settings
        self._cluster_id = cluster_id
        self._topic_id = topic_id
        self._first_offset, self._last_stable_offset, self._end = bounds
        self.high_watermark = self._end
        self._size_bytes = size_bytes

    @property
    def topic_id(self) -> str | None:
        """The topic's id."""
        return self._topic_id

    @property
    def owner(self) -> Owner:
        """The cluster."""
        return Owner(self.url, self._cluster_id)

    @property
    def first_offset(self) -> int:
        """The first offset that can be fetched."""
        return self._first_offset

    @property
    def known_high_watermark(self) -> int | None:
        """The high watermark."""
        return self._end

    @property
    def is_live(self) -> bool:
        """True: a broker has the log."""
        return True

    @property
    def log_end(self) -> SegmentEnd:
        """The high watermark: no more can be fetched."""
        return SegmentEnd(self._end, self._size_bytes, self._size_bytes, is_torn=False)

    @cached_property
    def transactions(self) -> AbortedTransactions:
        """The transactions above the last stable offset; the tasks add those below it."""
        tracker = TransactionTracker()
        if self._last_stable_offset < self._end:
            with ClusterFetcher(servers_of(self.url), self._settings) as fetcher:
                for batch in fetched_batches(fetcher, self.key, self.name, self._last_stable_offset, self._end):
                    tracker.apply(batch)
        return AbortedTransactions(tracker.aborted, list(tracker.open.values()), self._end)

    def find_time(self, timestamp_ms: int, from_offset: int) -> TimeOffset:
        """Return where a time begins, as the broker says. Raises PlanError."""
        try:
            with _admin(self.url, self._settings) as admin:
                offset = value_of(admin.list_offsets({self.key: timestamp_ms})[self.key]).offset
        except ClientError as error:
            raise PlanError(f"{self.name}: {error}") from None
        return TimeOffset(None if offset == NO_OFFSET else max(offset, from_offset))

    def size_of(self, first_offset: int, end_offset: int) -> int:
        """Estimate the bytes of offsets."""
        offsets = self._end - self._first_offset
        return self._size_bytes * max(end_offset - first_offset, 0) // offsets if offsets > 0 else 0

    def count_records(self, first_offset: int, end_offset: int) -> int:
        """Count the records with offsets in [first_offset, end_offset) by the headers of their batches."""
        with ClusterFetcher(servers_of(self.url), self._settings) as fetcher:
            batches = fetched_batches(fetcher, self.key, self.name, first_offset, end_offset)
            return sum(_count(batch, first_offset, end_offset) for batch in batches)

    def pieces(
        self, first_offset: int, end_offset: int, transactions: AbortedTransactions | None, target_bytes: int
    ) -> list[SegmentRange]:
        """Cut offsets into ranges of about `target_bytes`."""
        total = self.size_of(first_offset, end_offset)
        count = min(max(-(-total // target_bytes), 1), max(end_offset - first_offset, 1))
        cuts = [first_offset + (end_offset - first_offset) * at // count for at in range(count + 1)]
        return [
            SegmentRange(
                self.topic,
                self.partition,
                self.name,
                least_offset=first,
                position=0,
                end_position=total // count,
                first_offset=first,
                end_offset=end,
                transactions=transactions,
                file_id=int.from_bytes(Uuid.parse(self._topic_id)),
            )
            for first, end in pairwise(cuts)
            if first < end
        ]


def _count(batch: LogBatch, first_offset: int, end_offset: int) -> int:
    """Return how many records of a batch have offsets in [first_offset, end_offset); gaps count if it is not whole."""
    header = batch.header
    first, end = max(header.base_offset, first_offset), min(header.last_offset + 1, end_offset)
    is_whole = header.base_offset >= first_offset and header.last_offset < end_offset
    return header.record_count if isinstance(header, RecordBatch) and is_whole else end - first


def _admin(url: str, settings: Mapping[str, str]) -> Admin:
    own: dict[str, Setting] = {"bootstrap.servers": servers_of(url), "default.api.timeout.ms": _PLANNING_TIMEOUT_MS}
    return Admin({**CLIENT_SETTINGS, **settings, **own})


def find_cluster_partitions(options: ReadOptions) -> list[LogPartition]:
    """Return the partitions that the options choose, sorted by name. Raises PlanError, UnknownTopicError."""
    url = cluster_url(options)
    try:
        with _admin(url, options.client) as admin:
            return _find(admin, url, options)
    except ClientError as error:
        raise PlanError(f"{url}: {error}") from None


def _find(admin: Admin, url: str, options: ReadOptions) -> list[LogPartition]:
    cluster_id = admin.describe_cluster().cluster_id
    listed = admin.list_topics(include_internal=True)
    described = [value_of(found) for found in admin.describe_topics(sorted(listed)).values()]
    chosen = {
        (topic.name, part.partition): topic
        for topic in described
        for part in topic.partitions
        if is_read(topic.name, part.partition, options)
    }
    check_chosen(chosen, [url], options, frozenset(listed))
    keys = sorted(chosen)
    starts = admin.list_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    # In this order: the last stable offset never goes back, and is not above the end.
    latest = dict.fromkeys(keys, OffsetSpec.LATEST)
    stable = admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
    ends = admin.list_offsets(latest)
    sizes = _sizes(admin, chosen)
    found: list[LogPartition] = []
    for key in keys:
        bounds = LogOffsets(*(value_of(offsets[key]).offset for offsets in (starts, stable, ends)))
        size_bytes = sizes.get(key, (bounds.high_watermark - bounds.first_offset) * _ASSUMED_RECORD_BYTES)
        found.append(ClusterPartition(url, cluster_id, key, str(chosen[key].topic_id), bounds, size_bytes, options.client))
    return found


def _sizes(admin: Admin, chosen: dict[TopicPartition, TopicDescription]) -> dict[TopicPartition, int]:
    """Return the sizes of replicas; those that a broker may not or cannot describe are left out."""
    brokers = {one.leader for topic in chosen.values() for one in topic.partitions if one.leader >= 0}
    sizes: Counter[TopicPartition] = Counter()
    for directories in admin.describe_log_dirs(sorted(brokers), chosen).values():
        if isinstance(directories, ClientError):
            continue
        for directory in directories.values():
            for key, replica in directory.replicas.items():
                sizes[key] = max(sizes[key], replica.size_bytes)
    return dict(sizes)
