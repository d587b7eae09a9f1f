"""Offsets of groups in the target: the progress of a replay, and the committed offsets that it brings along.

A commit is that of a client that is not a member (generation -1), which Kafka accepts of a group without members.
OffsetCommit and OffsetFetch name topics by their ids from version 10 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcli.client.errors import KafkaError, KafkaTimeoutError
from kcli.client.network_client import COORDINATOR, NetworkClient
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message
from kcli.replay.progress import PartitionProgress, Progress, decode_metadata, encode_metadata
from kcli.replay.source import TopicPartition
from kcli.replay.steps import Pause, ReplayError, Steps, ask
from kcli.replay.target import find_coordinator, refresh, topic_id

_IDS_FROM_VERSION = 10
_GROUPS_FROM_VERSION = 8
# After these the coordinator is looked for again.
_MOVED = frozenset(
    (error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.COORDINATOR_LOAD_IN_PROGRESS)
)


class Commit(NamedTuple):
    """An offset to commit, and its metadata."""

    offset: int
    metadata: str


def commit_offsets(network: NetworkClient, group: str, commits: Mapping[TopicPartition, Commit]) -> Steps[None]:
    """Commit offsets for a group. Raises KafkaError for the first that is refused, KafkaTimeoutError."""
    by_topic: dict[str, list[tuple[int, Commit]]] = {}
    for (topic, partition), commit in sorted(commits.items()):
        by_topic.setdefault(topic, []).append((partition, commit))
    kind = API_KEYS[OFFSET_COMMIT].request

    def request(version: int) -> Message:
        has_ids = version >= _IDS_FROM_VERSION
        topics = [
            kind.classes["OffsetCommitRequestTopic"](
                **({"topic_id": topic_id(network, name)} if has_ids else {"name": name}),
                partitions=[
                    kind.classes["OffsetCommitRequestPartition"](
                        partition_index=partition, committed_offset=commit.offset, committed_metadata=commit.metadata
                    )
                    for partition, commit in parts
                ],
            )
            for name, parts in by_topic.items()
        ]
        return kind.new(group_id=group, topics=topics)

    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        node_id = yield from find_coordinator(network, group)
        answer = yield from ask(network, OFFSET_COMMIT, request, node_id, COORDINATOR)
        codes = {part.error_code for topic in answer.topics for part in topic.partitions} - {0}
        if not codes:
            return
        fatal = codes - error_codes.RETRIABLE
        if fatal:
            raise KafkaError(min(fatal), _refusal(group, min(fatal)))
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"the offsets of the group {group!r} cannot be committed: {error_codes.NAMES[min(codes)]}")
        yield Pause(network.config.retry_backoff_ms)
        yield from refresh(network)


def _refusal(group: str, code: int) -> str:
    if code in (error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION, error_codes.STALE_MEMBER_EPOCH):
        return f"the group {group!r} has members; stop its consumers before their offsets are replaced"
    return f"the offsets of the group {group!r}"


def fetch_offsets(
    network: NetworkClient, group: str, partitions: list[TopicPartition] | None
) -> Steps[dict[TopicPartition, Commit]]:
    """Return the committed offsets of a group; of all its partitions without `partitions`.

    Raises KafkaError, KafkaTimeoutError.
    """
    kind = API_KEYS[OFFSET_FETCH].request
    by_topic: dict[str, list[int]] | None = None if partitions is None else {}
    for topic, partition in partitions or ():
        assert by_topic is not None
        by_topic.setdefault(topic, []).append(partition)

    def request(version: int) -> Message:
        if version < _GROUPS_FROM_VERSION:
            of_topic = kind.classes["OffsetFetchRequestTopic"]
            topics = by_topic and [of_topic(name=name, partition_indexes=parts) for name, parts in by_topic.items()]
            return kind.new(group_id=group, topics=topics)
        of_topic = kind.classes["OffsetFetchRequestTopics"]
        topics = by_topic and [
            of_topic(
                **({"topic_id": topic_id(network, name)} if version >= _IDS_FROM_VERSION else {"name": name}),
                partition_indexes=parts,
            )
            for name, parts in by_topic.items()
        ]
        return kind.new(groups=[kind.classes["OffsetFetchRequestGroup"](group_id=group, topics=topics)])

    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        node_id = yield from find_coordinator(network, group)
        answer = yield from ask(network, OFFSET_FETCH, request, node_id, COORDINATOR)
        found = answer.groups[0] if answer.groups else answer
        codes = {found.error_code, *(part.error_code for topic in found.topics for part in topic.partitions)} - {0}
        if not codes:
            return {
                (topic.name or network.metadata.topic_names.get(topic.topic_id, ""), part.partition_index): Commit(
                    part.committed_offset, part.metadata or ""
                )
                for topic in found.topics
                for part in topic.partitions
                if part.committed_offset >= 0
            }
        if not codes <= error_codes.RETRIABLE:
            raise KafkaError(min(codes - error_codes.RETRIABLE), f"the offsets of the group {group!r}")
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"the offsets of the group {group!r} cannot be read: {error_codes.NAMES[min(codes)]}")
        yield Pause(network.config.retry_backoff_ms)


class GroupProgress:
    """The progress as committed offsets of the group `group` of the target; that of another `identity` is refused."""

    def __init__(self, network: NetworkClient, group: str, identity: str = "") -> None:
        self._network = network
        self._group = group
        self._identity = identity

    @property
    def where(self) -> str:
        """Name the group."""
        return f"the group {self._group} of the target"

    def load(self, partitions: list[TopicPartition]) -> Steps[dict[TopicPartition, PartitionProgress]]:
        """Fetch the offsets. Raises ReplayError if they are those of another replay."""
        commits = yield from fetch_offsets(self._network, self._group, partitions)
        found = ((where, decode_metadata(commit.offset, commit.metadata)) for where, commit in commits.items())
        loaded = {where: progress for where, progress in found if progress is not None}
        if any(progress.replay not in ("", self._identity) for progress in loaded.values()):
            raise ReplayError(
                f"{self.where} has the progress of another replay: its paths, selection, --map or --join differ; give another "
                "--name, or --restart to begin anew"
            )
        return loaded

    def save(self, progress: Progress) -> Steps[None]:
        """Commit the offsets."""
        commits = {
            where: Commit(one.source_offset, encode_metadata(one._replace(replay=self._identity)))
            for where, one in progress.items()
        }
        yield from commit_offsets(self._network, self._group, commits)
