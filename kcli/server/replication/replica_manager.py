"""The replicas that one broker hosts, and the requests that wait for them (Kafka: ReplicaManager).

    part                 contains or does
    -------------------  -----------------------------------------------------------------------------------------------
    partitions           the hosted partitions by topic and index; a partition without a log is in an offline directory
    produce purgatory    produce requests that wait until the high watermark has passed their records
    fetch purgatory      fetch requests that wait for bytes; those of followers and of share groups have one each
    delete purgatory     DeleteRecords requests that wait until all replicas have deleted the records
    ISR                  the changes that leaders propose; a check for followers that lag, each half of replica.lag.time.max.ms
    flushes              what the log manager wants flushed, and what keeps back the high watermark of a partition
    log directories      one that fails is taken offline with its partitions; the last one ends the node

What waits for the high watermark of a partition is checked whenever it has moved (`high_watermark_moved`): all purgatories, and
the coordinator of an internal topic (`watch_high_watermark`). The fetches of followers wait for the log end, which moves with
each append: they are checked once for all appends of the events at hand, so that one answer has the records of all of them.

The logs themselves are the LogManager's. Which partitions are hosted is decided by MetadataPublisher.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from functools import partial

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.flush_request import FlushRequest
from kcli.log.errors import AllLogDirsOfflineError, StorageError
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.log_lines import FailureLine, WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.outstanding import FlushCallback, Flushes
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import Purgatory
from kcli.server.replication.replica import NO_EPOCH, IsrChange
from kcli.state.metadata_values import BrokerRegistration, Topic

# Kafka's default of replica.lag.time.max.ms.
DEFAULT_MAX_LAG_MS = 30_000
NO_REPLICA = -1
# The process has too many files open, which is not a failure of the disk.
DESCRIPTORS_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class ReplicaManager:
    """The partitions of the broker `node_id`. `report` writes a line of the node's log."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataCache,
        log_manager: LogManager,
        timer: Timer,
        flushes: Flushes,
        report: Callable[[str], None],
        max_lag_ms: int = DEFAULT_MAX_LAG_MS,
    ) -> None:
        self.node_id = node_id
        self.max_lag_ms = max_lag_ms
        self.log_manager = log_manager
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.produce_purgatory = Purgatory(timer)
        self.fetch_purgatory = Purgatory(timer)
        self.follower_fetch_purgatory = Purgatory(timer)
        self.delete_purgatory = Purgatory(timer)
        self.share_fetch_purgatory = Purgatory(timer)
        self._committed_purgatories = self.produce_purgatory, self.fetch_purgatory, self.share_fetch_purgatory
        self.propose_isr: Callable[[Partition, IsrChange], None] = _nothing  # to the controller
        self.isr_expands = self.isr_shrinks = self.failed_isr_updates = 0
        self._leadership_watchers: list[Callable[[str, int], None]] = []
        self._high_watermark_watchers: dict[str, Callable[[Partition], None]] = {}  # by topic
        self._grown: dict[tuple[str, int], None] = {}  # with followers' fetches that are to be checked
        self._is_isr_checked = False  # there is a task that looks for followers that lag
        self._metadata = metadata
        self._timer = timer
        self._flushes = flushes
        self.report = report

    # ----------------------------------------------------------------------------------------------------- partitions

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition that this broker hosts, None for any other."""
        return self.partitions.get((topic, index))

    def missing_partition_code(self, topic: str, index: int) -> int:
        """Return the error code for a partition that this broker does not host."""
        found = self._metadata.image.topic(topic)
        is_elsewhere = found is not None and index in found.partitions
        return error_codes.NOT_LEADER_OR_FOLLOWER if is_elsewhere else error_codes.UNKNOWN_TOPIC_OR_PARTITION

    def create_partition(
        self, topic: Topic, index: int, config: LogConfig, directory_id: Uuid | None, now_ms: int, is_new: bool
    ) -> Partition:
        """Host a partition; its log is opened or made. One whose log cannot be opened is hosted as offline."""
        log = None
        try:
            log = self.log_manager.get_or_create_log(
                topic.name, index, topic.topic_id, config, now_ms=now_ms, directory_id=directory_id, is_new=is_new
            )
        except (OSError, StorageError) as error:
            text = f"cannot open the log of {topic.name}-{index}: {error}"
            self.report(FailureLine(text, topic=topic.name, partition=index, error=error))
        partition = Partition(self, topic.name, index, topic.topic_id, log)
        self.partitions[partition.key] = partition
        return partition

    def stop_partitions(self, partitions: Iterable[Partition]) -> None:
        """Stop hosting partitions: their topic is deleted, or they have moved. Their logs remain until `delete_logs`."""
        for partition in partitions:
            del self.partitions[partition.key]
            partition.is_leader = False
            partition.log = None
            partition.followers = {}
            self.partition_changed(partition)

    def delete_logs(self, reason: str, keys: list[tuple[str, int]], now_ms: int) -> None:
        """Fail the requests that wait for stopped partitions, and delete their logs; `reason` completes "the partition ...".

        The checkpoints still have them (LogManager.remove_deleted).
        """
        self.check_waiting(keys, now_ms)
        try:
            self.log_manager.delete_logs(keys, now_ms, with_checkpoints=False)
        except StorageError as error:
            topic, index = keys[0]
            self.report(WarningLine(f"{topic}-{index} {reason}, but {error}", topic=topic, partition=index, error=error))

    def check_waiting(self, keys: Iterable[tuple[str, int]], now_ms: int) -> None:
        """Check the requests that wait for partitions whose leadership or log has changed."""
        for key in keys:
            for watcher in self._leadership_watchers:
                watcher(*key)
            self.produce_purgatory.check(key, now_ms)
            self.delete_purgatory.check(key, now_ms)
            self.follower_fetch_purgatory.check(key, now_ms)
            self.records_appended(key, now_ms)

    def watch_leadership(self, watcher: Callable[[str, int], None]) -> None:
        """Have `watcher(topic, index)` called when this broker may have ceased to lead a partition."""
        self._leadership_watchers.append(watcher)

    def records_appended(self, key: tuple[str, int], now_ms: int) -> None:
        """Check the requests that wait for records of a partition that consumers may read."""
        self.fetch_purgatory.check(key, now_ms)
        self.share_fetch_purgatory.check(key, now_ms)

    def watch_high_watermark(self, topic: str, watcher: Callable[[Partition], None]) -> None:
        """Have `watcher(partition)` called when the high watermark of a partition of an internal topic has moved."""
        self._high_watermark_watchers[topic] = watcher

    # --------------------------------------------------------------------------------------- what partitions use (as host)

    @property
    def clock_ms(self) -> int:
        """The node's time."""
        return self._timer.clock_ms

    def high_watermark_moved(self, partition: Partition) -> None:
        """Check everything that waits for the high watermark of a partition; followers get it with their next answer."""
        key, now_ms = partition.key, self._timer.clock_ms
        if partition.followers:
            self.follower_fetch_purgatory.mark(key)
        watcher = self._high_watermark_watchers.get(partition.topic)
        if watcher is not None:
            watcher(partition)
        for purgatory in self._committed_purgatories:
            if purgatory.has_watchers:
                purgatory.check(key, now_ms)

    def low_watermark_moved(self, partition: Partition) -> None:
        """Check the DeleteRecords requests that wait for the log start offsets of followers."""
        self.delete_purgatory.check(partition.key, self._timer.clock_ms)

    def log_has_grown(self, partition: Partition) -> None:
        """Check the fetches of followers that wait for a partition's log end, after the events at hand; mark it at once."""
        if not self.follower_fetch_purgatory.mark(partition.key) or not self.follower_fetch_purgatory.size:
            return
        if not self._grown:
            self._timer.schedule(self._timer.clock_ms, self._check_grown)
        self._grown[partition.key] = None

    def partition_changed(self, partition: Partition) -> None:
        """Mark a partition in the fetch sessions that have it."""
        self.fetch_purgatory.mark(partition.key)
        self.follower_fetch_purgatory.mark(partition.key)

    def _check_grown(self, now_ms: int) -> None:
        grown, self._grown = self._grown, {}
        for key in grown:
            self.follower_fetch_purgatory.check(key, now_ms)

    def may_join_isr(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Return whether a broker is active, and the same as the one that has fetched with an epoch (KIP-903)."""
        broker = self._live_broker(broker_id)
        return broker is not None and not broker.is_in_controlled_shutdown and broker_epoch in (NO_EPOCH, broker.broker_epoch)

    def is_live(self, broker_id: int) -> bool:
        """Return whether a broker is registered and not fenced."""
        return self._live_broker(broker_id) is not None

    def _live_broker(self, broker_id: int) -> BrokerRegistration | None:
        broker = self._metadata.image.brokers.get(broker_id)
        return None if broker is None or broker.is_fenced else broker

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raise PartitionError for a fetch with an older broker epoch than that in the metadata."""
        broker = self._live_broker(broker_id)
        if broker is not None and NO_EPOCH < broker_epoch < broker.broker_epoch:
            text = f"broker {broker_id} fetched with broker epoch {broker_epoch}, and is registered with {broker.broker_epoch}"
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, text)

    def preferred_replica(self, partition: Partition, offset: int, rack: str, listener: str) -> int:
        """Return the replica in a consumer's rack that should serve it from an offset, NO_REPLICA for the leader (KIP-392).

        It is the most current follower in the ISR there (Kafka: RackAwareReplicaSelector), if the leader is in another rack.
        """

        def is_near(broker_id: int) -> bool:
            broker = self._live_broker(broker_id)
            return broker is not None and broker.rack == rack and listener in broker.endpoints

        if is_near(self.node_id):
            return NO_REPLICA
        near = [
            (replica.log_end_offset, replica.caught_up_ms, broker_id)
            for broker_id, replica in partition.followers.items()
            if broker_id in partition.isr
            and replica.log_start_offset <= offset <= replica.log_end_offset
            and is_near(broker_id)
        ]
        return max(near)[-1] if near else NO_REPLICA

    def alter_isr(self, partition: Partition, change: IsrChange) -> None:
        """Propose an ISR to the controller."""
        self.propose_isr(partition, change)

    def isr_changed(self, *, is_expansion: bool) -> None:
        """Count a change of an ISR."""
        if is_expansion:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1

    def isr_change_failed(self) -> None:
        """Count a change that the controller has refused."""
        self.failed_isr_updates += 1

    def has_followers(self, partition: Partition) -> None:
        """Begin to look for followers that lag, when this broker leads the first partition with followers."""
        if partition.followers and not self._is_isr_checked:
            self._is_isr_checked = True
            self._timer.schedule(self._timer.clock_ms + self.max_lag_ms // 2, self._check_isr)

    def _check_isr(self, now_ms: int) -> None:
        led = [partition for partition in self.partitions.values() if partition.followers]
        for partition in led:
            partition.maybe_shrink_isr()
            partition.maybe_advance_high_watermark()
        self._is_isr_checked = bool(led)
        if led:
            self._timer.schedule(now_ms + self.max_lag_ms // 2, self._check_isr)

    # -------------------------------------------------------------------------------------------------------- flushes

    def begin_log_tasks(self, now_ms: int) -> None:
        """Begin the periodic tasks on logs: retention, checkpoints, deletions (kcli.log.log_manager)."""
        self.log_manager.begin_tasks(now_ms, self._timer.schedule, self.take_log_flushes)

    def take_log_flushes(self, now_ms: int) -> None:
        """Flush what the log manager has queued."""
        for request in self.log_manager.take_flushes():
            self._flush(request)

    def flush_log(self, log: UnifiedLog, callback: FlushCallback, now_ms: int) -> None:
        """Make a log durable up to its present end, then call `callback(error, now_ms)`.

        What is appended while the flush runs waits for the next one.
        """
        end_offset = log.log_end_offset
        request = self.log_manager.flush_request(log)
        if request is None:
            callback(None, now_ms)
            return

        def flushed(error: OSError | None, now_ms: int) -> None:
            # An error that matters takes the log out of service. A file that was renamed or deleted while the flush ran does
            # not matter where another flush has done the work, nor does one that another write has replaced.
            is_durable = self.log_manager.is_live(log) or log.recovery_point >= end_offset
            callback(None if is_durable else error, now_ms)

        self._flush(request, flushed)

    def begin_flush(self, partition: Partition, log: UnifiedLog) -> None:
        """Make the log of a partition durable, so that its high watermark can move."""
        self.flush_log(log, partial(partition.flush_ended, log), self._timer.clock_ms)

    def _flush(self, request: FlushRequest, callback: FlushCallback | None = None) -> None:
        def flushed(error: OSError | None, now_ms: int) -> None:
            following = request.done(error)
            if error is not None:
                self._drop_offline_logs()
            if following is not None:
                self._flush(following, callback)
            elif callback is not None:
                callback(error, now_ms)
            self.take_log_flushes(now_ms)

        self._flushes.flush(request.paths, flushed)

    # ------------------------------------------------------------------------------------------------ log directories

    def handle_log_dir_failure(self, partition: Partition | None, error: OSError) -> None:
        """Take the log directory of a partition offline after an error of its disk. The last directory ends the node."""
        if partition is None or partition.log is None or error.errno in DESCRIPTORS_EXHAUSTED:
            return
        try:
            self.log_manager.take_offline(partition.log.directory, error)
        except AllLogDirsOfflineError as all_offline:
            self._timer.schedule(self._timer.clock_ms, partial(_raise, all_offline))
        self._drop_offline_logs()

    def _drop_offline_logs(self) -> None:
        """Drop the logs in offline directories. The requests that wait for them fail after the event that is being handled."""
        offline = [key for key in self.log_manager.offline_partitions if key in self.partitions]
        for key in offline:
            self.partitions[key].log = None
        if offline:
            self._timer.schedule(self._timer.clock_ms, partial(self._logs_are_offline, offline))

    def _logs_are_offline(self, keys: Iterable[tuple[str, int]], now_ms: int) -> None:
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None and partition.on_offline is not None:
                partition.on_offline()
        self.check_waiting(keys, now_ms)


def _nothing(partition: Partition, change: IsrChange) -> None:
    """Propose no ISR: there is no controller."""


def _raise(error: Exception, now_ms: int) -> None:
    raise error
