"""What the managers of a shard's groups have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.log.rng import Random
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.group.classic_rebalances import Write
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.timing_wheel import Timer
from kcli.state.group_state import GroupState


class ShardParts(NamedTuple):
    """The parts of a shard and of its broker; `write` executes the operations of timers, `report` writes a log line."""

    state: GroupState
    config: ConfigReader
    metadata: MetadataCache
    hashes: TopicHashes
    timer: Timer
    rng: Random
    write: Write
    metrics: GroupMetrics
    report: Callable[[str], None]
