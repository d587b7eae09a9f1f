"""A cluster as the source of a replay: kafka://HOST:PORT.

    part                      source
    ------------------------  ----------------------------------------------------------------------------------------------
    topics and settings       Metadata and DescribeConfigs: the settings that the topics themselves have
    records                   Fetch, whole batches, from the log start offset up to the end that the partition has when the run
                              begins; an answer begins with the whole batch that has the offset, so that the records below
                              the log start offset (DeleteRecords) are removed here, as consumers do
    aborted transactions      the list in each answer to Fetch, and the markers (Kafka: CompletedFetch)
    offsets of groups         ListGroups of each broker, OffsetFetch of each group

The reader is a client of its own, on a thread of its own: it fetches ahead, up to BUFFERED_BYTES of each partition, and the
replay takes batches from the queues (`ClusterStream`). The two threads share these queues only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from kcli.client.admin.configs import ConfigResource, ConfigSource, ResourceType, describe_configs
from kcli.client.admin.groups import list_groups
from kcli.client.admin.log_dirs import describe_log_dirs
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import IsolationLevel, OffsetSpec
from kcli.client.consumer.completed_fetch import FetchedTransactions
from kcli.client.errors import ClientError, KafkaError
from kcli.client.network_client import NetworkClient
from kcli.format.end_transaction_marker import UnreadableMarkerError
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import INT64_MAX, InvalidRecordError, TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.inspect.description.remarks import missing_name
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.replay.batch_maker import BatchMaker, Joining
from kcli.replay.directory_source import Problems
from kcli.replay.fetching import FetchPosition, OffsetOutOfRangeError, batches_in, fetch
from kcli.replay.group_offsets import GroupOffsets
from kcli.replay.progress import decode_metadata
from kcli.replay.source import NO_RUN, Bounds, CommittedOffset, EarlierRun, OutgoingBatch, SourceTopic
from kcli.replay.steps import (
    Done,
    Pause,
    ReplayError,
    StepRunner,
    Steps,
    as_client_error,
    connect,
    execute,
    list_offsets,
    refresh,
    topic_id,
)
from kcli.selecting.record_filter import RecordFilter
from kcli.selecting.selected_log import Budget
from kcli.selecting.selection import Range, Selection

BUFFERED_BYTES = 4 * 1024 * 1024
_FULL_PAUSE_MS = 2


class PassedTransactions(AbortedTransactions):
    """The transactions of the answers to Fetch for one partition: `take` gets their lists, `pass_batch` each batch in order."""

    def __init__(self) -> None:
        super().__init__([], [], INT64_MAX)
        self._listed = FetchedTransactions(())
        self._scanner = RecordScanner(1)

    def take(self, aborted: Sequence[tuple[int, int]]) -> None:
        """Take the list of an answer."""
        self._listed = FetchedTransactions(aborted)

    def pass_batch(self, batch: LogBatch) -> None:
        """Begin the transactions up to a batch, and end one if the batch is its marker."""
        header = batch.header
        self._listed.begin(header.last_offset)
        if isinstance(header, RecordBatch) and header.is_control and self._listed.is_aborted(header.producer_id):
            try:
                marker = batch.read_marker(self._scanner)
            except (InvalidRecordError, UnreadableMarkerError):
                return
            if marker is not None and marker.is_abort:
                self._listed.end(header.producer_id)

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return whether the batch that was passed last, of that producer, is aborted."""
        return self._listed.is_aborted(producer_id)


class ClusterStream:
    """The queue of one partition."""

    def __init__(self) -> None:
        self.queue: deque[OutgoingBatch] = deque()
        self.is_read = False  # the reader has put in all
        self.is_closed = False
        self.is_cut = False
        self.failure: ClientError | None = None

    @property
    def is_ended(self) -> bool:
        """Whether no batch comes any more."""
        return self.is_read and not self.queue

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait."""
        return sum(len(batch.data) for batch in tuple(self.queue))

    def peek(self) -> OutgoingBatch | None:
        """Return the next batch, None if there is none now. Raises ClientError if the partition cannot be read."""
        if self.queue:
            return self.queue[0]
        if self.failure is not None:
            raise self.failure
        return None

    def take(self) -> None:
        """Remove the batch that `peek` returned."""
        self.queue.popleft()

    def close(self) -> None:
        """Stop the reader."""
        self.is_closed = True


class _Reading(NamedTuple):
    """What reads one partition from an offset on into its queue."""

    partition: TopicPartition
    from_offset: int
    stream: ClusterStream
    transactions: PassedTransactions
    maker: BatchMaker


class ClusterSource:
    """The core of the reader, which a shell runs; `discover` comes before all else.

    `on_data` is called on the reader's thread when there is something new, `wake` on the replay's when a stream is opened.
    """

    def __init__(
        self,
        network: NetworkClient,
        selection: Selection,
        wants: Callable[[str], bool],
        problems: Problems,
        join_bytes: int = 0,
    ) -> None:
        self.network = network
        self.join_bytes = join_bytes
        self.selection = selection
        self._isolation = IsolationLevel.READ_COMMITTED if selection.read_committed else IsolationLevel.READ_UNCOMMITTED
        self.on_data: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self._wants = wants
        self._problems = problems
        self._runner = StepRunner(network)
        self._topics: dict[str, SourceTopic] = {}
        self._topic_ids: dict[str, Uuid] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._opened: deque[Steps[None]] = deque()

    def poll(self, now_ms: int) -> None:
        """Start to read the partitions that were opened."""
        while self._opened:
            self._runner.start(self._opened.popleft(), lambda result, now_ms: None)

    # --------------------------------------------------------------------------------------------------------- discovery

    def discover(self, done: Callable[[ClientError | None, int], None], now_ms: int) -> None:
        """Find topics, settings, offsets and sizes."""
        self._runner.start(self._discover(), done)

    def _discover(self) -> Steps[None]:
        metadata = self.network.metadata
        metadata.want_all_topics(True)
        yield from connect(self.network, "source")
        partitions = [(one.topic, one.partition) for one in metadata.cluster.partitions if self._wants(one.topic)]
        configs = yield from self._read_configs({topic for topic, _ in partitions})
        for topic in {topic for topic, _ in partitions}:
            self._topic_ids[topic] = topic_id(self.network, topic)
            self._topics[topic] = SourceTopic(len(metadata.cluster.partitions_for_topic(topic)), configs.get(topic, {}))
        self._starts = yield from list_offsets(partitions, OffsetSpec.EARLIEST)
        self._ends = yield from list_offsets(partitions, isolation=self._isolation)
        yield from self._read_sizes()

    def _read_configs(self, topics: set[str]) -> Steps[dict[str, dict[str, str]]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
        found = {}
        for resource, outcome in (yield from execute(describe_configs(resources))).items():
            if isinstance(outcome, KafkaError):
                raise KafkaError(outcome.code, f"the settings of the topic {resource.name!r}")
            entries = value_of(outcome).values()
            found[resource.name] = {
                one.name: one.value for one in entries if one.source is ConfigSource.TOPIC_CONFIG and one.value is not None
            }
        return found

    def _read_sizes(self) -> Steps[None]:
        """Find the sizes of the partitions; those of a broker that does not report them stay 0."""
        for directories in (yield from execute(describe_log_dirs(sorted(self.network.metadata.nodes)))).values():
            if not isinstance(directories, ClientError):
                for directory in directories.values():
                    for where, replica in directory.replicas.items():
                        self._sizes[where] = max(replica.size_bytes, self._sizes.get(where, 0))

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster."""
        return self.network.metadata.cluster_id

    def topics(self) -> Mapping[str, SourceTopic]:
        """Return the topics to replay."""
        return self._topics

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to replay, sorted."""
        return sorted(self._ends)

    def topic_id(self, topic: str) -> Uuid:
        """Return the id of a topic, zero if it is not known."""
        return self._topic_ids[topic]

    def _check_topic(self, topic: str) -> None:
        """Raise ReplayError if the topic is another one than when the run began: its records are not the next ones."""
        now, then = topic_id(self.network, topic), self._topic_ids[topic]
        if ZERO_UUID not in (now, then) and now != then:
            raise ReplayError(
                f"the topic {topic!r} of the source was deleted and created again during the run; to send the records of the "
                "new topic, use --restart"
            )

    def bounds(self, partition: TopicPartition) -> Bounds:
        """Return the offsets that a partition had when the run began."""
        return Bounds(self._starts[partition], self._ends[partition])

    def size_bytes(self, partition: TopicPartition) -> int:
        """Return the size of a replica."""
        return self._sizes.get(partition, 0)

    def find_committed(self, globs: Sequence[str]) -> Callable[[Done[list[CommittedOffset]], int], None]:
        """Return the operation that fetches the committed offsets of the groups (all without `globs`)."""
        return lambda done, now_ms: self._runner.start(self._find_committed(globs), done)

    def _find_committed(self, globs: Sequence[str]) -> Steps[list[CommittedOffset]]:
        listed = yield from execute(list_groups())
        for broker, error in listed.errors.items():
            if not isinstance(error, KafkaError):
                raise error
            self._problems.report(f"broker {broker} does not list its groups: {error}")
        groups = {group.group_id for group in listed.groups}
        for sentence in (missing_name("group", glob, groups) for glob in globs):
            if sentence is not None:
                raise ReplayError(sentence)
        found = []
        for group in sorted(groups):
            if globs and not any(fnmatchcase(group, glob) for glob in globs):
                continue
            try:
                offsets = yield from GroupOffsets(self.network, group).fetch(None)
            except KafkaError as error:
                self._problems.report(f"the offsets of the group {group!r} are left out: {error}")
                continue
            found += [
                CommittedOffset(group, *where, commit.offset, commit.metadata)
                for where, commit in sorted(offsets.items())
                if where in self._ends and decode_metadata(commit.offset, commit.metadata) is None
            ]
        return found

    # ----------------------------------------------------------------------------------------------------------- records

    def open(
        self, partition: TopicPartition, from_offset: int, watched: list[int], earlier: EarlierRun = NO_RUN
    ) -> ClusterStream:
        """Return the queue of a partition, which the reader fills from now on."""
        stream = ClusterStream()
        start = self._starts[partition]
        if 0 < from_offset < start:
            self._deleted(partition, from_offset, start)
        read_from = from_offset if earlier.last_offset is None else earlier.last_offset
        joining = Joining.after(earlier, from_offset, self.join_bytes)
        self._opened.append(self._read(partition, read_from, watched, stream, joining))
        self.wake()
        return stream

    def _read(
        self, partition: TopicPartition, from_offset: int, watched: list[int], stream: ClusterStream, joining: Joining
    ) -> Steps[None]:
        """Fill a queue to the end of its partition."""
        try:
            yield from self._fill(partition, from_offset, watched, stream, joining)
        except Exception as error:
            stream.failure = as_client_error(error)
        stream.is_read = stream.failure is None
        self.on_data()

    def _fill(
        self, partition: TopicPartition, from_offset: int, watched: list[int], stream: ClusterStream, joining: Joining
    ) -> Steps[None]:
        transactions = PassedTransactions()
        maker = BatchMaker(self._filter(self._starts[partition], transactions), Budget(), watched, joining)
        reading = _Reading(partition, from_offset, stream, transactions, maker)
        wanted = self.selection.offsets
        end = self._end(partition)
        position = FetchPosition(max(from_offset, self._starts[partition], wanted.first or 0), end)
        while not position.is_at_end and not stream.is_closed:
            offset = position.offset
            if stream.buffered_bytes >= BUFFERED_BYTES:
                yield Pause(_FULL_PAUSE_MS)
                continue
            try:
                fetched = yield from fetch(self.network, *partition, offset, self._isolation)
            except OffsetOutOfRangeError:
                yield from refresh(self.network)
                self._check_topic(partition[0])
                start = (yield from list_offsets([partition], OffsetSpec.EARLIEST))[partition]
                if start <= offset:
                    raise
                self._deleted(partition, offset, start)
                position.offset = start
                maker.filter = self._filter(start, transactions)
                continue
            self._check_topic(partition[0])
            transactions.take(fetched.aborted)
            if not position.go_on(fetched, self._make_all(reading, fetched.records, offset, end)):
                stream.is_cut = True
                self._problems.damages += 1
                self._problems.report(
                    f"{partition[0]}-{partition[1]}: the source ends at offset {fetched.end_offset} now, and ended at "
                    f"{self._ends[partition]} when the run began: it was truncated; the records after the end cannot be sent"
                )
                break
            self.on_data()
        stream.queue.extend(maker.finish())

    def _filter(self, log_start_offset: int, transactions: PassedTransactions) -> RecordFilter:
        """Return the selection without the records below the log start offset."""
        wanted = self.selection.offsets
        first = max(wanted.first or 0, log_start_offset)
        return RecordFilter(self.selection._replace(offsets=Range(first or None, wanted.end)), transactions)

    def _make_all(self, reading: _Reading, records: memoryview, offset: int, end: int) -> int:
        """Make the batches of an answer, from `offset` to `end`; return the offset after them."""
        maker, position = reading.maker, 0
        while True:
            position, made = maker.join_run(records, position, len(records), offset, end)
            reading.stream.queue.extend(made)
            offset = max(offset, maker.joined_offset)
            for batch in batches_in(records, offset, position):
                if batch.header.base_offset >= end:
                    return end
                offset = batch.header.last_offset + 1
                reading.transactions.pass_batch(batch)
                self._make(reading, batch)
                if maker.may_join_after(batch):
                    position = batch.end_position
                    break
            else:
                return offset

    def _end(self, partition: TopicPartition) -> int:
        """Return the offset where the selection of a partition ends."""
        wanted = self.selection.offsets.end
        return self._ends[partition] if wanted is None else min(self._ends[partition], wanted)

    def _deleted(self, partition: TopicPartition, first: int, start: int) -> None:
        """Report offsets that the source has deleted before they were read."""
        end = min(start, self._end(partition))
        if first < end:
            self._problems.damages += 1
            name = f"{partition[0]}-{partition[1]}"
            self._problems.report(f"{name}: the source has deleted the offsets {first} to {end - 1}; they are left out")

    def _make(self, reading: _Reading, batch: LogBatch) -> None:
        for made in reading.maker.make(batch):
            if isinstance(made, Damage):
                topic, number = reading.partition
                self._problems.damages += 1
                self._problems.report(f"{topic}-{number}: offset {batch.header.base_offset}: {made.message}; left out")
            elif made.next_offset > reading.from_offset:
                reading.stream.queue.append(made)
