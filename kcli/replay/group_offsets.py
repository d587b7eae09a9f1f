"""Offsets of groups in the target: the progress of a replay, and the committed offsets that it brings along.

A commit is that of a client that is not a member (generation -1), which Kafka accepts of a group without members.
OffsetCommit and OffsetFetch name topics by their ids from version 10 on.

`place_earlier` finds the places in the target of offsets that an earlier run has passed: the consumers of the source have
continued since then.

    step                                  result
    ------------------------------------  ----------------------------------------------------------------------------------
    OffsetFetch of each group             the groups whose offset in the target may be too small; one that has reached the
                                          end of the replay is not
    the source is read from its start     the number of records of the replay below each offset, which is a sequence
    the target is read from the start of  the offset of the record with that sequence; if the target has deleted it, the
    the replay                            offset of the next one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kcli.client.admin.partitions import OffsetSpec, by_topic
from kcli.client.coordinator_lookup import GROUP_KEY, CoordinatorLookup
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message
from kcli.replay.fetching import batches_in, fetch_some
from kcli.replay.partition_replay import PartitionReplay, truncated
from kcli.replay.progress import PartitionProgress, Progress, decode_metadata, encode_metadata
from kcli.replay.source import SEQUENCES, CommittedOffset, Source
from kcli.replay.steps import RESTART, Pause, ReplayError, Steps, ToCoordinator, list_offsets, next_batch, refresh, topic_id

_IDS_FROM_VERSION = 10
_GROUPS_FROM_VERSION = 8


class Commit(NamedTuple):
    """An offset to commit, and its metadata."""

    offset: int
    metadata: str


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self, network: NetworkClient, group: str) -> None:
        self._network = network
        self._group = group
        self._lookup = CoordinatorLookup(network, GROUP_KEY, group)

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> Steps[None]:
        """Commit offsets. Raises KafkaError for the first that is refused, KafkaTimeoutError."""
        topics = by_topic(sorted(commits))
        kind = API_KEYS[OFFSET_COMMIT].request
        of_topic, of_partition = kind.classes["OffsetCommitRequestTopic"], kind.classes["OffsetCommitRequestPartition"]

        def request(version: int) -> Message:
            asked = []
            for name, partitions in topics.items():
                parts = []
                for partition in partitions:
                    offset, metadata = commits[name, partition]
                    parts.append(of_partition(partition_index=partition, committed_offset=offset, committed_metadata=metadata))
                asked.append(of_topic(**self._topic(name, version), partitions=parts))
            return kind.new(group_id=self._group, topics=asked)

        yield from self._ask(OFFSET_COMMIT, request, "cannot be committed")

    def fetch(self, partitions: list[TopicPartition] | None) -> Steps[dict[TopicPartition, Commit]]:
        """Return the committed offsets of partitions; of all that have one without `partitions`.

        Raises KafkaError, KafkaTimeoutError.
        """
        kind = API_KEYS[OFFSET_FETCH].request
        topics = None if partitions is None else by_topic(partitions)

        def request(version: int) -> Message:
            if version < _GROUPS_FROM_VERSION:
                of_topic = kind.classes["OffsetFetchRequestTopic"]
                asked = topics and [of_topic(name=name, partition_indexes=parts) for name, parts in topics.items()]
                return kind.new(group_id=self._group, topics=asked)
            of_topic = kind.classes["OffsetFetchRequestTopics"]
            asked = topics and [
                of_topic(**self._topic(name, version), partition_indexes=parts) for name, parts in topics.items()
            ]
            return kind.new(groups=[kind.classes["OffsetFetchRequestGroup"](group_id=self._group, topics=asked)])

        answer = yield from self._ask(OFFSET_FETCH, request, "cannot be read")
        names = self._network.metadata.topic_names
        return {
            (topic.name or names.get(topic.topic_id, ""), part.partition_index): Commit(
                part.committed_offset, part.metadata or ""
            )
            for topic in _answered_group(answer).topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }

    def _topic(self, name: str, version: int) -> dict[str, object]:
        """Return the field that names a topic in a version of OffsetCommit and OffsetFetch."""
        return {"topic_id": topic_id(self._network, name)} if version >= _IDS_FROM_VERSION else {"name": name}

    def _ask(self, api_key: int, request: Callable[[int], Message], failure: str) -> Steps[Message]:
        """Send a request to the coordinator until its answer has no error; `failure` says what was not possible in time."""
        network = self._network
        deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
        while True:
            answer: Message | ClientError = yield ToCoordinator(self._lookup, api_key, request)
            if isinstance(answer, ClientError):
                if isinstance(answer, KafkaError) and not answer.is_retriable:
                    raise KafkaError(answer.code, f"the coordinator of the group {self._group!r}")
                if not answer.is_retriable:
                    raise answer
                reason = f"the group {self._group!r} has no coordinator that answers: {answer}"
            else:
                codes = _error_codes(answer)
                if not codes:
                    return answer
                for code in codes:
                    self._lookup.check(code)
                fatal = codes - error_codes.RETRIABLE
                if fatal:
                    raise KafkaError(min(fatal), self._refusal(min(fatal)))
                reason = f"the offsets of the group {self._group!r} {failure}: {error_codes.NAMES[min(codes)]}"
            if network.timer.clock_ms >= deadline_ms:
                raise KafkaTimeoutError(reason)
            yield Pause(network.config.retry_backoff_ms)
            yield from refresh(network)

    def _refusal(self, code: int) -> str:
        if code in (error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION, error_codes.STALE_MEMBER_EPOCH):
            return f"the group {self._group!r} has members; stop its consumers before their offsets are replaced"
        return f"the offsets of the group {self._group!r}"


def _answered_group(answer: Message) -> Message:
    """Return the part of an answer to OffsetFetch that is about the group; of OffsetCommit it is the answer."""
    groups = getattr(answer, "groups", None)
    group: Message = groups[0] if groups else answer
    return group


def _error_codes(answer: Message) -> set[int]:
    """Return the error codes of an answer to OffsetCommit or OffsetFetch."""
    group = _answered_group(answer)
    codes = {getattr(group, "error_code", 0)}
    return (codes | {part.error_code for topic in group.topics for part in topic.partitions}) - {0}


class GroupProgress:
    """The progress as committed offsets of the group `group` of the target; that of another `identity` is refused.

    `older` are the groups and identities that older versions gave this replay: progress there is moved to `group`.
    """

    def __init__(self, network: NetworkClient, group: str, identity: str = "", older: Iterable[tuple[str, str]] = ()) -> None:
        self._network = network
        self._group = group
        self._offsets = GroupOffsets(network, group)
        self._identity = identity
        self._older = tuple(older)

    @property
    def where(self) -> str:
        """Name the group."""
        return f"the group {self._group} of the target"

    def load(self, partitions: list[TopicPartition]) -> Steps[dict[TopicPartition, PartitionProgress]]:
        """Fetch the offsets. Raises ReplayError if they are those of another replay."""
        for group in dict.fromkeys((self._group, *(group for group, _ in self._older))):
            commits = yield from GroupOffsets(self._network, group).fetch(partitions)
            found = ((where, decode_metadata(commit.offset, commit.metadata)) for where, commit in commits.items())
            loaded = {where: progress for where, progress in found if progress is not None}
            if not loaded:
                continue
            identities = {progress.replay for progress in loaded.values()}
            if not identities <= {"", self._identity, *(identity for _, identity in self._older)}:
                raise ReplayError(
                    f"{self.where} has the progress of another replay: its paths, selection, --map or --join differ; give "
                    f"another --name, or {RESTART}"
                )
            if group != self._group or self._identity not in identities:
                yield from self.save(loaded)  # all of it: the next run may not know the older names
            return loaded
        return {}

    def save(self, progress: Progress) -> Steps[None]:
        """Commit the offsets."""
        commits = {
            where: Commit(one.source_offset, encode_metadata(one._replace(replay=self._identity)))
            for where, one in progress.items()
        }
        yield from self._offsets.commit(commits)


def place_earlier(
    network: NetworkClient,
    source: Source,
    partition: PartitionReplay,
    committed: Iterable[CommittedOffset],
    problems: dict[str, str],
) -> Steps[list[str]]:
    """Place the offsets below the progress that the run began with; return the groups that are beyond the replay in the target.

    `problems` gets the errors of groups, which are then left out. Raises ClientError.
    """
    missing, beyond = set(), []
    for one in committed:
        if one.offset in partition.passed and one.group not in problems:
            try:
                own = (yield from GroupOffsets(network, one.group).fetch([partition.target])).get(partition.target)
            except ClientError as error:
                problems[one.group] = str(error)
                continue
            if own is None or own.offset < partition.progress.target_offset:
                missing.add(one.offset)
            elif own.offset > partition.progress.target_offset:
                beyond.append(one.group)
    if missing:
        sequences = yield from _sequences(source, partition, sorted(missing))
        yield from _find(network, partition, sequences)
    return beyond


def _sequences(source: Source, partition: PartitionReplay, offsets: list[int]) -> Steps[dict[int, int]]:
    """Return the number of records below each offset."""
    stream = source.open(partition.source, 0, offsets)
    found: dict[int, int] = {}
    records = 0
    while len(found) < len(offsets) and (batch := (yield from next_batch(stream))) is not None:
        for watched in batch.watched:
            found[watched.offset] = records + watched.slot
        records += batch.record_count
    stream.close()
    return found


def _find(network: NetworkClient, partition: PartitionReplay, sequences: dict[int, int]) -> Steps[None]:
    """Find the records with these numbers in the target."""
    progress = partition.progress
    starts = yield from list_offsets([partition.target], OffsetSpec.EARLIEST)
    offset = max(progress.start_offset, starts[partition.target])
    wraps, last_sequence = 0, 0
    while sequences and offset < progress.target_offset:
        fetched = yield from fetch_some(network, *partition.target, offset)
        before, offset = offset, fetched.skip_missing(offset)
        for batch in batches_in(fetched.records, offset):
            header = batch.header
            offset = header.last_offset + 1
            if not isinstance(header, RecordBatch) or header.producer_id != progress.producer_id:
                continue
            wraps += header.base_sequence < last_sequence
            last_sequence = header.base_sequence
            first = wraps * SEQUENCES + header.base_sequence
            for source_offset, sequence in list(sequences.items()):
                if sequence - first <= header.last_offset_delta:
                    partition.place(source_offset, header.base_offset + max(sequence - first, 0))
                    del sequences[source_offset]
        if offset == before:
            raise truncated(partition.target, offset, progress.target_offset)
    for source_offset in sequences:
        partition.place(source_offset, progress.target_offset)
