"""A partition of a coordinator's topic that this broker leads: its state, its open batch, and the responses that wait."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

from kcli.format.record_batch import Producer
from kcli.network.timing_wheel import TimerTask
from kcli.server.coordinator.coordinator_record import EncodedRecord, ShardRecord
from kcli.server.coordinator.operation import CoordinatorShard, Respond
from kcli.server.replication.partition import Partition
from kcli.state.speculative_state import RevertibleState, SpeculativeState

# What the records of one operation and the header of a batch add to the sizes of keys and values, at most.
BATCH_OVERHEAD_BYTES = 128
RECORD_OVERHEAD_BYTES = 24

_Shard = TypeVar("_Shard", bound=CoordinatorShard)


class DeferredResponse(NamedTuple):
    """A response that waits until the high watermark is `end_offset`; an operation without records only reads."""

    end_offset: int
    response: Any
    respond: Respond[Any]
    has_records: bool


class OpenBatch:
    """Records that are applied and not appended yet; the first one will have `base_offset`."""

    __slots__ = ("base_offset", "producer", "records", "size_bytes")

    def __init__(self, base_offset: int, producer: Producer) -> None:
        self.base_offset = base_offset
        self.producer = producer
        self.records: list[EncodedRecord] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES


class LedPartition(Generic[_Shard]):
    """One partition that this broker leads; `next_offset` is that of the next record, `committed` the high watermark."""

    def __init__(self, partition: Partition, shard: _Shard) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.speculative = SpeculativeState[RevertibleState, ShardRecord](shard.state, shard.apply)
        self.is_loaded = False
        self.has_failed = False  # to be loaded
        self.is_closed = False
        self.is_appending = False
        self.next_offset = 0
        self.committed = 0
        self.batch: OpenBatch | None = None
        self.deferred: deque[DeferredResponse] = deque()
        self.linger: TimerTask | None = None
