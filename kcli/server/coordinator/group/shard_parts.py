"""What the managers of a shard's groups have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.log.rng import Random
from kcli.network.timing_wheel import Timer
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.group.classic_rebalances import WriteShard
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.scheduler import Scheduler
from kcli.state.group_state import GroupState


class ShardParts(NamedTuple):
    """The parts of a shard and of its broker; `write` executes the operations of timers, `report` writes a log line.

    `limit` is that of the groups of the broker; `scheduler` runs long work in time slices.
    """

    state: GroupState
    config: ConfigReader
    metadata: MetadataCache
    hashes: TopicHashes
    timer: Timer
    rng: Random
    write: WriteShard
    metrics: GroupMetrics
    report: Callable[[str], None]
    limit: CoordinatorLimit
    scheduler: Scheduler

    def check_new(self, group_id: str) -> None:
        """Check that a group exists, or that one more may be made. Raises CoordinatorError: POLICY_VIOLATION."""
        if group_id not in self.state.groups:
            self.limit.check(f"the new group {group_id}")
