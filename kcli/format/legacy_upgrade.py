"""Messages of format 0 and 1 become a batch of format 2, as Kafka's cleaner writes them (MemoryRecordsBuilder).

    of the batch          is
    --------------------  ---------------------------------------------------------------------------------------------
    base offset           the offset of its first message (MemoryRecordsBuilder); gaps between messages remain
    base timestamp        that of its first message, unless it has a delete horizon
    timestamps            those of the messages, -1 in format 0; their type as it was (format 0 has none: CreateTime)
    leader epoch          -1: unknown
    producer, sequence    none

Of LogAppendTime the whole batch has one timestamp, so messages with another one do not belong in it. A timestamp too far from
the base for 64 bits wraps around, as in Kafka, where readers wrap it back; kcli's do not, so a caller begins another batch.
"""

from __future__ import annotations

from kcli.format.compression import deflate
from kcli.format.java_integers import wrap_int64
from kcli.format.legacy_message_set import LegacyRecord
from kcli.format.primitives import INT32_MAX, INT64_MAX, CorruptRecordError
from kcli.format.record_batch import LOG_APPEND_TIME_FLAG, NO_LEADER_EPOCH, NewRecordBatch
from kcli.format.records import Record, encode_record


class UpgradedBatch:
    """A batch in the making; `size_bytes` are its records' so far, before they are deflated.

    `base_timestamp` is that of a delete horizon, whose flag is in `flags`.
    """

    def __init__(self, *, is_log_append_time: bool, flags: int = 0, base_timestamp: int | None = None) -> None:
        self.count = 0
        self.base_offset = self.last_offset = self.max_timestamp = 0
        self._flags = flags | (LOG_APPEND_TIME_FLAG if is_log_append_time else 0)
        self._base_timestamp = base_timestamp
        self._records = bytearray()

    @property
    def size_bytes(self) -> int:
        """What its records take, before they are deflated."""
        return len(self._records)

    def holds(self, timestamp: int) -> bool:
        """Return True if the delta of a timestamp fits in 64 bits."""
        return self._base_timestamp is None or -INT64_MAX <= timestamp - self._base_timestamp <= INT64_MAX

    def add(self, record: LegacyRecord) -> None:
        """Add the next message. Raises CorruptRecordError if its offset cannot follow the others'."""
        if not self.count:
            self.base_offset, self.max_timestamp = record.offset, record.timestamp
        elif not self.last_offset < record.offset <= self.base_offset + INT32_MAX:
            raise CorruptRecordError(
                f"the message of offset {record.offset} behind that of offset {self.last_offset} does not fit into a batch of "
                f"format 2 from offset {self.base_offset} on"
            )
        if self._base_timestamp is None:
            self._base_timestamp = record.timestamp
        timestamp_delta = wrap_int64(record.timestamp - self._base_timestamp)
        self._records += encode_record(Record(record.offset - self.base_offset, timestamp_delta, record.key, record.value))
        self.last_offset = record.offset
        self.max_timestamp = max(self.max_timestamp, record.timestamp)
        self.count += 1

    def end_at(self, offset: int) -> None:
        """Extend the batch to `offset`. Raises CorruptRecordError if it does not fit."""
        if not self.last_offset <= offset <= self.base_offset + INT32_MAX:
            raise CorruptRecordError(f"its messages have the offsets {self.base_offset} to {self.last_offset}, it has {offset}")
        self.last_offset = offset

    def encode(self, codec: int, level: int | None = None) -> bytes:
        """Encode the batch; it must have a message."""
        assert self._base_timestamp is not None, "a batch of no messages"
        return NewRecordBatch(
            base_offset=self.base_offset,
            last_offset_delta=self.last_offset - self.base_offset,
            base_timestamp=self._base_timestamp,
            max_timestamp=self.max_timestamp,
            record_count=self.count,
            records=deflate(codec, self._records, level=level),
            attributes=self._flags | codec,
            partition_leader_epoch=NO_LEADER_EPOCH,
        ).encode()
