"""The persister of share groups: reads and writes the state of share partitions (KIP-932; Kafka: DefaultStatePersister).

The state of a share partition, (group, topic id, partition), is kept by a share coordinator: the leader of its partition of
__share_group_state. Any broker may be the client: leaders of the topic's partitions read and write the progress of deliveries,
and the group coordinator initializes, deletes and summarizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kcli.state.share_group_state import SharePartitionKey, StateBatch

ShareKey = SharePartitionKey


class ShareState(NamedTuple):
    """The state of a share partition. `start_offset` is -1 if it has none yet; batches are in the order of their offsets."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class ShareUpdateBatches(NamedTuple):
    """A change of the state of a share partition. `start_offset` -1 keeps the start offset, `delivery_complete_count` may be -1."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareSummary(NamedTuple):
    """The state of a share partition without its batches."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class SharePersister(Protocol):
    """What reads and writes the state of share partitions. `done` is called once, with an error code for a failure."""

    def read(self, key: ShareKey, leader_epoch: int, done: Callable[[ShareState | int], None]) -> None:
        """Read a state for the leader of the partition in `leader_epoch`; leaders of earlier epochs are fenced from then on."""
        ...

    def write(self, key: ShareKey, update: ShareUpdateBatches, done: Callable[[int], None]) -> None:
        """Write a change of a state; the code is NONE when it is committed."""
        ...

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, done: Callable[[int], None]) -> None:
        """Begin a state, or begin it again in a higher state epoch."""
        ...

    def delete(self, key: ShareKey, done: Callable[[int], None]) -> None:
        """Delete a state; NONE if there is none."""
        ...

    def read_summary(self, key: ShareKey, done: Callable[[ShareSummary | int], None]) -> None:
        """Read the start offset and the epochs of a state."""
        ...
