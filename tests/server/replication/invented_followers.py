"""The host of a partition for tests, and fetches of followers that do not exist."""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.replica import IsrChange
from kcli.state.metadata_values import PartitionRegistration

MAX_LAG_MS = 30_000


class InventedHost:
    """A PartitionHost: `epochs` are the registered brokers, `changes` the proposed ISRs; the rest says what was called."""

    node_id = 1
    max_lag_ms = MAX_LAG_MS

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.epochs: dict[int, int] = {}
        self.changes: list[IsrChange] = []
        self.flushing: list[UnifiedLog] = []
        self.high_watermarks: list[int] = []
        self.low_watermarks: list[int] = []
        self.grown = 0
        self.counts: list[str] = []
        self.on_high_watermark: Callable[[Partition], None] = lambda partition: None

    @property
    def clock_ms(self) -> int:
        """The time of the test."""
        return self._clock()

    def begin_flush(self, partition: Partition, log: UnifiedLog) -> None:
        """Keep the flush."""
        self.flushing.append(log)

    def high_watermark_moved(self, partition: Partition) -> None:
        """Note it."""
        assert partition.log is not None
        self.high_watermarks.append(partition.log.high_watermark)
        self.on_high_watermark(partition)

    def low_watermark_moved(self, partition: Partition) -> None:
        """Note it."""
        assert partition.log is not None
        self.low_watermarks.append(partition.low_watermark(partition.log))

    def log_has_grown(self, partition: Partition) -> None:
        """Count it."""
        self.grown += 1

    def partition_changed(self, partition: Partition) -> None:
        """There are no fetch sessions."""

    def may_join_isr(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Return whether the broker is registered, with that epoch."""
        return broker_id in self.epochs and broker_epoch in (-1, self.epochs[broker_id])

    def is_live(self, broker_id: int) -> bool:
        """Return whether the broker is registered."""
        return broker_id in self.epochs

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Refuse an old epoch."""
        if -1 < broker_epoch < self.epochs.get(broker_id, -1):
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, "restarted since")

    def alter_isr(self, partition: Partition, change: IsrChange) -> None:
        """Keep the change for the test."""
        self.changes.append(change)

    def has_followers(self, partition: Partition) -> None:
        """Check nothing in the background."""

    def isr_changed(self, *, is_expansion: bool) -> None:
        """Note it."""
        self.counts.append("expand" if is_expansion else "shrink")

    def isr_change_failed(self) -> None:
        """Note it."""
        self.counts.append("failed")


def registration(
    leader_epoch: int,
    *,
    isr: tuple[int, ...] = (1,),
    replicas: tuple[int, ...] = (1, 2),
    leader: int = 1,
    partition_epoch: int | None = None,
) -> PartitionRegistration:
    """The registration of a partition; its epoch is the leader epoch if the test states none."""
    return PartitionRegistration(
        replicas=list(replicas),
        isr=list(isr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch if partition_epoch is None else partition_epoch,
        directories=[],
        removing_replicas=[],
        adding_replicas=[],
        leader_recovery_state="RECOVERED",
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


def fetched(partition: Partition, broker_id: int, offset: int, *, broker_epoch: int = -1, log_start_offset: int = 0) -> None:
    """Let a follower fetch from an offset."""
    follower = partition.follower(broker_id, partition.leader_epoch)
    partition.follower_fetched(follower, offset, log_start_offset, broker_epoch)
