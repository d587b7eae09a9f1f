"""The state of the share coordinator: the progress of share groups (KIP-932), from the records of __share_group_state.

A snapshot record has the whole state of a (group, topic id, partition), an update record the changes since then. The state
is a start offset, below which all records are processed, and batches of offsets above it with their delivery states:

    delivery state   0 Available   2 Acknowledged   3 Archiving   4 Archived     (1 Acquired is not written)

If batches of an update overlap older ones, the higher delivery count of an offset is kept, then the higher state.

What the share coordinator fences and writes by is kept next to the state (Kafka: ShareCoordinatorShard.replay): the highest
leader and state epochs that any record had, the number of updates after a snapshot, and the offset of the last snapshot record.
A snapshot resets the number only if it has reached its limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.state.speculative_state import MapsState
from kcli.state.state_error import StateError

_NO_CHANGE = -1  # of a start offset or leader epoch in an update
NO_OFFSET = -1
UPDATES_PER_SNAPSHOT = 500  # the default of share.coordinator.snapshot.update.records.per.snapshot


class StateBatch(NamedTuple):
    """The delivery state of the offsets first_offset..last_offset, both included."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class SharePartitionKey(NamedTuple):
    """The key of a partition's state in a share group."""

    group_id: str
    topic_id: Uuid
    partition: int


@dataclass(slots=True)
class ShareGroupOffset:
    """The progress of a share group in a partition; `delivery_complete_count` is -1 if not known, times are in ms."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp_ms: int
    write_timestamp_ms: int
    state_batches: list[StateBatch]


class ShareEpochs(NamedTuple):
    """The highest epochs of a share partition; requests with lower ones are fenced."""

    leader_epoch: int
    state_epoch: int | None


class ShareGroupState(MapsState):
    """The states of all share partitions. `updates_per_snapshot` returns how many updates are written after a snapshot."""

    def __init__(self, updates_per_snapshot: Callable[[], int] = lambda: UPDATES_PER_SNAPSHOT) -> None:
        super().__init__()
        self.partitions: dict[SharePartitionKey, ShareGroupOffset] = {}
        self.epochs: dict[SharePartitionKey, ShareEpochs] = {}
        self.update_counts: dict[SharePartitionKey, int] = {}
        self.snapshot_offsets: dict[SharePartitionKey, int] = {}
        self.last_tombstone_offset = NO_OFFSET
        self._updates_per_snapshot = updates_per_snapshot

    @property
    def redundant_below(self) -> int:
        """The offset below which no record of the log is needed, NO_OFFSET if none is known."""
        return min(self.snapshot_offsets.values(), default=self.last_tombstone_offset)

    def apply(self, key: Message, value: Message | None, record_offset: int = NO_OFFSET) -> None:
        """Apply one record that kcli.protocol.internal_records has decoded. Raises StateError for one of another topic."""
        name = key.STRUCT.name
        if name not in ("ShareSnapshotKey", "ShareUpdateKey"):
            raise StateError(f"{name} is not a key of __share_group_state")
        partition_key = SharePartitionKey(key.group_id, key.topic_id, key.partition)
        if name == "ShareUpdateKey":
            # In Kafka only a tombstone of the snapshot deletes the state.
            if value is not None:
                self._apply_update(partition_key, value)
        elif value is None:
            for mapping in (self.partitions, self.epochs, self.update_counts, self.snapshot_offsets):
                self._remove(mapping, partition_key)
            self._assign(self, "last_tombstone_offset", record_offset)
        else:
            self._apply_snapshot(partition_key, value, record_offset)

    def _apply_update(self, key: SharePartitionKey, value: Message) -> None:
        self._raise_epochs(key, value.leader_epoch, None)
        self._put(self.partitions, key, _updated(self.partitions.get(key), value))
        self._put(self.update_counts, key, self.update_counts.get(key, 0) + 1)

    def _apply_snapshot(self, key: SharePartitionKey, value: Message, record_offset: int) -> None:
        self._raise_epochs(key, value.leader_epoch, value.state_epoch)
        state = ShareGroupOffset(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            create_timestamp_ms=value.create_timestamp,
            write_timestamp_ms=value.write_timestamp,
            state_batches=_batches(value),
        )
        self._put(self.partitions, key, state)
        self._put(self.snapshot_offsets, key, record_offset)
        if self.update_counts.get(key, 0) >= self._updates_per_snapshot() and key in self.update_counts:
            self._put(self.update_counts, key, 0)

    def _raise_epochs(self, key: SharePartitionKey, leader_epoch: int, state_epoch: int | None) -> None:
        known = self.epochs.get(key)
        if known is not None:
            leader_epoch = max(known.leader_epoch, leader_epoch)
            if known.state_epoch is not None:
                state_epoch = known.state_epoch if state_epoch is None else max(known.state_epoch, state_epoch)
        self._put(self.epochs, key, ShareEpochs(leader_epoch, state_epoch))


def _batches(value: Message) -> list[StateBatch]:
    return [
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in value.state_batches
    ]


def _updated(before: ShareGroupOffset | None, value: Message) -> ShareGroupOffset:
    if before is None:
        # The cleaner has removed the snapshot, and the next one is not written yet.
        before = ShareGroupOffset(value.snapshot_epoch, 0, value.leader_epoch, value.start_offset, -1, 0, 0, [])
    start_offset = before.start_offset if value.start_offset == _NO_CHANGE else value.start_offset
    return ShareGroupOffset(
        snapshot_epoch=before.snapshot_epoch,
        state_epoch=before.state_epoch,
        leader_epoch=before.leader_epoch if value.leader_epoch == _NO_CHANGE else value.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp_ms=before.create_timestamp_ms,
        write_timestamp_ms=before.write_timestamp_ms,
        state_batches=combine_batches([*before.state_batches, *_batches(value)], start_offset),
    )


def combine_batches(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Merge overlapping batches into the smallest number of disjoint ones, from `start_offset` on (-1: from the first).

    The offsets at which a batch starts or ends split the range; in each part the batch with the highest delivery count and
    state is effective, which a heap keeps at its top.
    """
    kept = sorted(
        batch._replace(first_offset=max(batch.first_offset, start_offset)) if start_offset >= 0 else batch
        for batch in batches
        if batch.last_offset >= start_offset
    )
    edges = sorted({batch.first_offset for batch in kept} | {batch.last_offset + 1 for batch in kept})
    out: list[StateBatch] = []
    active: list[tuple[int, int, int]] = []  # delivery count and state, both negated, and last offset
    started = 0
    for first_offset, end_offset in pairwise(edges):
        while started < len(kept) and kept[started].first_offset <= first_offset:
            batch = kept[started]
            heapq.heappush(active, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            started += 1
        while active and active[0][2] < first_offset:
            heapq.heappop(active)
        if active:
            count, state, _ = active[0]
            _append(out, StateBatch(first_offset, end_offset - 1, -state, -count))
    return out


def _append(out: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch, or extend the last one if the new one is adjacent and has the same state."""
    if out and out[-1].last_offset + 1 == batch.first_offset and out[-1][2:] == batch[2:]:
        out[-1] = out[-1]._replace(last_offset=batch.last_offset)
    else:
        out.append(batch)
