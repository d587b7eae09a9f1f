"""What a replay reads from, and the batches that it sends: the partitions of a source, each as a stream of batches.

    source                 module
    ---------------------  -------------------------------------------------------
    files and directories  kcli.replay.directory_source
    a cluster              kcli.replay.cluster_source

A stream is not waited for: it has a batch now, or not yet, or has ended. A batch is one of format 2 that is ready to be
produced. Before it is sent its header gets the producer's state:

    field of the header                   is
    ------------------------------------  --------------------------------------------------------------------------
    baseOffset, partitionLeaderEpoch      0 and -1, as a producer sends them
    attributes                            the codec only: no transaction, no LogAppendTime, no delete horizon
    producerId, producerEpoch             those of the replay
    baseSequence                          the number of records before it in the partition, modulo 2**31
    crc                                   computed anew
    all else, and the records             as they were

A base timestamp that is a delete horizon may stay: readers add the deltas of the records to it, and these count from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple, Protocol

from kcli.format import structs
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition, crc32c
from kcli.format.record_batch import CODEC_MASK, CRC_START, NO_LEADER_EPOCH

_HEAD = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_ATTRIBUTES = Struct(">h")
_PRODUCER = Struct(">qhi")
_CRC = Struct(">I")
SEQUENCES = 2**31
UNKNOWN_CRC = -1


class WatchedOffset(NamedTuple):
    """An offset of the source whose place in the target is asked for: that of record `slot` of the batch."""

    offset: int
    slot: int


class OutgoingBatch:
    """One batch. `first_offset` and `next_offset` are those of the source: the replay goes on at the latter.

    `timestamp` is that of its first record, `source_bytes` what it took in the source, `watched` the offsets of the source
    that lead to it. `is_recompressed` says that another version of a compression library may make other bytes.
    """

    __slots__ = (
        "data",
        "first_offset",
        "is_recompressed",
        "next_offset",
        "record_count",
        "source_bytes",
        "timestamp",
        "watched",
    )

    def __init__(
        self,
        data: bytearray,
        record_count: int,
        first_offset: int,
        next_offset: int,
        timestamp: int,
        source_bytes: int,
        watched: tuple[WatchedOffset, ...] = (),
        is_recompressed: bool = False,
    ) -> None:
        self.data = data
        self.record_count = record_count
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.timestamp = timestamp
        self.source_bytes = source_bytes
        self.watched = watched
        self.is_recompressed = is_recompressed

    @property
    def crc(self) -> int:
        """The CRC of a batch that has the state of the producer; UNKNOWN_CRC if a later run may make another one."""
        return UNKNOWN_CRC if self.is_recompressed else int(_CRC.unpack_from(self.data, structs.BATCH_CRC_AT)[0])

    def stamp(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """Write the state of the producer, and the CRC, into the header."""
        data = self.data
        _HEAD.pack_into(data, structs.BATCH_BASE_OFFSET_AT, 0)
        _LEADER_EPOCH.pack_into(data, structs.BATCH_PARTITION_LEADER_EPOCH_AT, NO_LEADER_EPOCH)
        _ATTRIBUTES.pack_into(data, structs.BATCH_ATTRIBUTES_AT, data[structs.BATCH_ATTRIBUTES_AT + 1] & CODEC_MASK)
        _PRODUCER.pack_into(data, structs.BATCH_PRODUCER_ID_AT, producer_id, producer_epoch, sequence)
        with memoryview(data) as view:
            _CRC.pack_into(data, structs.BATCH_CRC_AT, crc32c(view[CRC_START:]))


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence of the record that follows `count` records from `sequence` on."""
    return (sequence + count) % SEQUENCES


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
