"""Records that the iterator of a consumer has polled and not yielded yet.

Their partitions have positions after them. What an application sees and commits, and what is committed for it, is the offset of
the next record that it gets: `next_positions` has these.

    event                                        the held records
    -------------------------------------------  --------------------------------------------
    the next iteration, or poll                  are returned first
    seek, reset, or the loss of a partition      are dropped, those of this partition
    the revocation of a partition begins         are dropped, and its position is that of the first one again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcli.client.cluster import NO_EPOCH, TopicPartition
from kcli.client.consumer.consumer_record import ConsumerRecord


class HeldRecords:
    """The records of one poll; those before `_next` were yielded."""

    def __init__(self) -> None:
        self._records: Sequence[ConsumerRecord] = ()
        self._next = 0

    def __len__(self) -> int:
        return len(self._records) - self._next

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Hold the records of a poll, after all earlier ones were taken."""
        self._records, self._next = records, 0

    def take(self) -> ConsumerRecord | None:
        """Return the next record, which is consumed now, or None."""
        if self._next == len(self._records):
            return None
        record = self._records[self._next]
        self._next += 1
        return record

    def take_all(self) -> list[ConsumerRecord]:
        """Return all records, which are consumed now."""
        left = list(self._records[self._next :])
        self.put(())
        return left

    def next_positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset of the first record of each partition, and the leader epoch of the record before it, if known."""
        if not self:
            return {}
        found: dict[TopicPartition, tuple[int, int]] = {}
        epochs = {(one.topic, one.partition): one.leader_epoch for one in self._records[: self._next]}
        for record in self._records[self._next :]:
            partition = (record.topic, record.partition)
            if partition not in found:
                found[partition] = (record.offset, epochs.get(partition, NO_EPOCH))
        return found

    def keep(self, is_kept: Callable[[TopicPartition], bool]) -> None:
        """Drop the records of other partitions."""
        if self:
            left = self._records[self._next :]
            self.put([one for one in left if is_kept((one.topic, one.partition))])

    def drop(self, partition: TopicPartition) -> None:
        """Drop the records of a partition."""
        self.keep(lambda one: one != partition)
