"""A batch of format 2 that is ready to be produced; before it is sent its header gets the producer's state.

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

from struct import Struct
from typing import NamedTuple

from kcli.format import structs
from kcli.format.primitives import crc32c
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
