"""What a replay reads from: the partitions of a source, and the batches of each as a stream.

    source                 module
    ---------------------  -------------------------------------------------------
    files and directories  kcli.replay.directory_source
    a cluster              kcli.replay.cluster_source

A stream is not waited for: it has a batch now, or not yet, or has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from kcli.format.kafka_uuid import Uuid
from kcli.replay.outgoing_batch import OutgoingBatch

TopicPartition = tuple[str, int]


class SourceError(Exception):
    """A source that cannot be replayed; the message is one sentence."""


class SourceTopic(NamedTuple):
    """A topic of the source: the number of its partitions, and its own settings.

    `is_known` is False if the metadata of the topic are missing: then the number is that of the partitions that are there.
    """

    partitions: int
    configs: Mapping[str, str]
    is_known: bool = True


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition of the source."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str


class Bounds(NamedTuple):
    """The first offset of a partition's log, and the offset after its last."""

    start: int
    end: int


class BatchStream(Protocol):
    """The batches of one partition to send, in order."""

    @property
    def is_ended(self) -> bool:
        """Whether no batch comes any more."""
        ...

    @property
    def is_cut(self) -> bool:
        """Whether the stream has ended before the end of its partition, since the rest cannot be read now."""
        ...

    def peek(self) -> OutgoingBatch | None:
        """Return the next batch, None if there is none now."""
        ...

    def take(self) -> None:
        """Remove the batch that `peek` returned."""
        ...

    def close(self) -> None:
        """Close files."""
        ...


class EarlierRun(NamedTuple):
    """What is known of the batches that earlier runs have sent.

    The stream begins with the batch at `last_offset`, which was sent last (None: where the run continues).
    The first batches have `sent_counts` records, as they were sent. The others have at most `most_bytes` (None: no limit).
    """

    last_offset: int | None = None
    sent_counts: tuple[int, ...] = ()
    most_bytes: int | None = None


NO_RUN = EarlierRun()


class Source(Protocol):
    """Where the records are."""

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster that is read, None if it is none."""
        ...

    def topics(self) -> Mapping[str, SourceTopic]:
        """Return the topics of the partitions to replay, by name."""
        ...

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to replay, by topic and number."""
        ...

    def size_bytes(self, partition: TopicPartition) -> int:
        """Return how many bytes a partition has, about."""
        ...

    def topic_id(self, topic: str) -> Uuid:
        """Return the id of a topic, zero if it is not known."""
        ...

    def bounds(self, partition: TopicPartition) -> Bounds:
        """Return the offsets that a partition has."""
        ...

    def open(
        self, partition: TopicPartition, from_offset: int, watched: list[int], earlier: EarlierRun = NO_RUN
    ) -> BatchStream:
        """Return the batches of a partition that end above `from_offset`; `watched` are offsets to find (BatchMaker)."""
        ...
