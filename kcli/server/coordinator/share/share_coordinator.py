"""The share coordinator: the share partitions of the partitions of __share_group_state that this broker leads (KIP-932).

Kafka: ShareCoordinatorService. The partition of a share partition is chosen by Java's hash of group:topic id:partition. What
the operations decide is in kcli.server.coordinator.share.share_shard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kcli.format.kafka_uuid import Uuid
from kcli.log.errors import OffsetOutOfRangeError
from kcli.network.timing_wheel import Timer
from kcli.protocol.internal_records import SHARE_GROUP_STATE
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.group.group_coordinator import coordinator_partition
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.server.coordinator.runtime import CoordinatorRuntime
from kcli.server.coordinator.share.share_shard import ShareShard
from kcli.server.log_lines import WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.replication.partition import PartitionError
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.share_persister import ShareKey
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_values import Topic

SHARE_STATE_TOPIC = SHARE_GROUP_STATE.topic
_KEY_PARTS = 3
_Response = TypeVar("_Response")


class ShareCoordinator:
    """The share coordinator of one broker. `report` writes a line of the node's log."""

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        replica_manager: ReplicaManager,
        timer: Timer,
        scheduler: Scheduler,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._report = report
        self.written_count = 0
        self.runtime = CoordinatorRuntime[ShareShard](
            SHARE_GROUP_STATE,
            lambda index: ShareShard(index, config, metadata, timer, self),
            replica_manager,
            timer,
            scheduler,
            report,
            linger_ms=config.get_int("share.coordinator.append.linger.ms"),
            write_timeout_ms=config.get_int("share.coordinator.write.timeout.ms"),
            codec=config.get_int("share.coordinator.state.topic.compression.codec"),
        )

    def partition_for(self, coordinator_key: str) -> int:
        """Return the partition of __share_group_state that has a share partition, which is given as FindCoordinator has it."""
        topic = self._metadata.image.topic(SHARE_STATE_TOPIC)
        if topic is None:
            count = self._config.get_int("share.coordinator.state.topic.num.partitions")
        else:
            count = len(topic.partitions)
        return coordinator_partition(coordinator_key, count)

    def node_for(self, key: ShareKey) -> int | None:
        """Return the broker that coordinates a share partition, None if there is none that can be reached."""
        image = self._metadata.image
        topic = image.topic(SHARE_STATE_TOPIC)
        partition = None if topic is None else topic.partitions.get(self.partition_for(coordinator_key(key)))
        leader = None if partition is None else image.brokers.get(partition.leader)
        return None if partition is None or leader is None or leader.is_fenced else partition.leader

    def write(self, key: ShareKey, operation: Callable[[ShareShard], Decision[_Response]], respond: Respond[_Response]) -> None:
        """Execute an operation on the shard of a share partition; see CoordinatorRuntime.write."""
        self.runtime.write(self.partition_for(coordinator_key(key)), operation, respond)

    def topic_removed(self, topic: Topic) -> None:
        """Delete the states of a topic that is deleted; unload all if it is __share_group_state."""
        if topic.name == SHARE_STATE_TOPIC:
            self.runtime.close()
            return
        for shard in self.runtime.shards():
            keys = [key for key in shard.state.partitions if key.topic_id == topic.topic_id]
            report = partial(self._report_failure, "states of a deleted topic")
            self.runtime.write_in_parts(shard.index, keys, ShareShard.delete_all, report)

    # ------------------------------------------------------------------------------------------------- periodic tasks

    def snapshot_cold_partitions(self, shard: ShareShard) -> None:
        """Write new snapshots of share partitions that have not changed for long."""
        report = partial(self._report_failure, "snapshots")
        self.runtime.write_in_parts(shard.index, shard.cold_partitions(), ShareShard.cold_snapshots, report)

    def prune(self, shard: ShareShard) -> None:
        """Delete the records that no share partition needs from the start of the log."""
        self.runtime.write(shard.index, ShareShard.redundant_offset, partial(self._prune, shard))

    def _prune(self, shard: ShareShard, offset: int | CoordinatorError, now_ms: int) -> None:
        partition = self._replica_manager.partition(SHARE_STATE_TOPIC, shard.index)
        if isinstance(offset, CoordinatorError) or offset <= 0 or offset == shard.pruned_below or partition is None:
            return
        try:
            partition.leader_log().maybe_increment_log_start_offset(offset)
            shard.pruned_below = offset
        except (OffsetOutOfRangeError, PartitionError) as error:
            self._report_failure("pruned records", CoordinatorError(0, str(error)), now_ms)
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(partition, error)

    def _report_failure(self, what: str, result: CoordinatorError | None, now_ms: int) -> None:
        if result is not None:
            text = f"cannot write the {what} of {SHARE_STATE_TOPIC}: {result.message}; it is tried again"
            self._report(WarningLine(text, topic=SHARE_STATE_TOPIC, error=result.message))


def parse_coordinator_key(text: str) -> str:
    """Return the key of FindCoordinator as partition_for takes it. Raises ValueError if it is not one of a share partition."""
    parts = text.split(":")
    while parts and not parts[-1]:
        del parts[-1]
    if len(parts) < _KEY_PARTS or not ":".join(parts[:-2]).strip():
        raise ValueError(f"{text!r} is not group:topic id:partition")
    return coordinator_key(ShareKey(":".join(parts[:-2]), Uuid.parse(parts[-2]), int(parts[-1])))


def coordinator_key(key: ShareKey) -> str:
    """Return the key by which FindCoordinator knows a share partition."""
    return f"{key.group_id}:{key.topic_id}:{key.partition}"
