"""A throttle of replication: which replicas it has, and how many bytes a second they may have (Kafka: ReplicationQuotaManager).

    key                                    resource       value
    -------------------------------------  -------------  --------------------------------------------------------------
    <role>.replication.throttled.rate      broker         bytes a second, of all throttled replicas together
    <role>.replication.throttled.replicas  topic          * for all, or partition:broker of some
    replication.quota.window.size.seconds  static         the length of a window
    replication.quota.window.num           static         how many windows the rate is measured over, the present one included

The role is `leader` or `follower`. What a throttled replica copies is counted, and the next bytes wait while the rate is above
the limit. As in Kafka, the rate is that of the windows since the oldest one began, at least of a whole window.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from kcli.format.primitives import TopicPartition
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.server_config import NO_LIMIT, ServerConfig
from kcli.server.metadata_cache import MetadataCache
from kcli.state.metadata_values import ConfigResource

FOLLOWER = "follower"
SECOND_MS = 1000
_ALL = "*"


@lru_cache(1000)
def _partitions_of(text: str, broker_id: int) -> frozenset[int] | None:
    """Return the partitions of a broker in a list of throttled replicas, None for all."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if _ALL in entries:
        return None
    pairs = (entry.split(":") for entry in entries)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationQuota:
    """The throttle of one role of the broker `node_id`."""

    def __init__(self, role: str, node_id: int, config: DynamicConfig, metadata: MetadataCache) -> None:
        self._rate_key, self._replicas_key = (f"{role}.replication.throttled.{name}" for name in ("rate", "replicas"))
        self._node_id = node_id
        self._metadata = metadata
        self._window_ms = config.get_int("replication.quota.window.size.seconds") * SECOND_MS
        self._count = config.get_int("replication.quota.window.num")
        self._windows: deque[list[int]] = deque()  # the time at which each began, and its bytes
        self._limit = NO_LIMIT
        self._reconfigure(config.current)
        config.watch((self._rate_key,), self._reconfigure)

    def _reconfigure(self, config: ServerConfig) -> None:
        text = config.text(self._rate_key)
        self._limit = NO_LIMIT if text is None else int(text)

    def is_throttled(self, partition: TopicPartition) -> bool:
        """Return whether a partition's replica on this broker is throttled."""
        if self._limit == NO_LIMIT:
            return False
        text = self._metadata.image.configs.get(ConfigResource("TOPIC", partition[0]), {}).get(self._replicas_key, "")
        partitions = _partitions_of(text, self._node_id)
        return partitions is None or partition[1] in partitions

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes of a throttled replica."""
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, 0])
        self._windows[-1][1] += size_bytes

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether the rate of the last windows is above the limit."""
        while self._windows and self._windows[0][0] <= now_ms - self._count * self._window_ms:
            self._windows.popleft()
        if not self._windows:
            return False
        elapsed_ms = max(now_ms - self._windows[0][0], self._window_ms)
        return sum(size for _, size in self._windows) * SECOND_MS > self._limit * elapsed_ms
