"""Applies committed metadata to a broker (Kafka: BrokerMetadataPublisher): first the records, then what they have changed.

    records                                     what the broker does
    ------------------------------------------  ------------------------------------------------------------------------
    Topic, Partition, PartitionChange           opens or makes the logs of its replicas; leads, or follows the leader of a new
                                                leader epoch (kcli.server.replication.replica_fetcher). A partition whose
                                                replica has moved to other brokers is stopped: requests that wait for it
                                                fail with NOT_LEADER_OR_FOLLOWER, and its log is deleted
    RemoveTopic                                 the same for all partitions; committed offsets of the topic are deleted
    Config of a topic                           applies the new settings to its logs
    Config of this broker or of all brokers     changes the broker's settings, as far as they can change while it runs
    Config of client metrics                    clients are asked for other metrics

A snapshot that arrives while the broker runs replaces the whole image: what differs between the two images counts as changed.
At the start, everything in the image counts as changed. The coordinators load their partitions when the controller has unfenced
this broker: until then the leaders in the image can be those before a crash, and the registration replaces them.
A log that was loaded for a replica which the metadata has removed or moved since then is deleted, too: a replica that came back
would serve its old records.

Work that takes long is done in slices, in the order of the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from kcli.format.kafka_uuid import TopicIdPartition, Uuid
from kcli.format.primitives import TopicPartition
from kcli.server.broker.assignments_manager import AssignmentsManager
from kcli.server.broker.replica_moves import ReplicaMoves
from kcli.server.config.definitions import BROKER_KEYS, TOPIC_KEYS
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.server_config import cleaner_settings
from kcli.server.config.serving import without_effect
from kcli.server.config.topic_config import TopicConfigs
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC, GroupCoordinator
from kcli.server.coordinator.share.share_coordinator import SHARE_STATE_TOPIC, ShareCoordinator
from kcli.server.coordinator.transaction.transaction_coordinator import TRANSACTION_TOPIC, TransactionCoordinator
from kcli.server.log_lines import Line, WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.broker_metrics import BrokerMetrics
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica_fetcher import ReplicaFetcherManager
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource, Topic, name_of

# The number of logs that are opened or deleted in one slice, which takes some milliseconds.
SLICE_LOGS = 8
# A log that is made, with five files, counts as this many that are opened.
LOGS_A_NEW_ONE = 4
LOGS_DELETED_TOGETHER = 4
# This many changes of partitions whose logs are open, or new settings of this many topics, count as one opened log.
CHANGES_A_LOG = 50
TOPICS_A_LOG = 15
# Does a piece of work at `now_ms` and returns the number of opened logs that it counts as.
Work = Callable[[int], int]
_END = object()
_PARTITION_RECORDS = frozenset(("PartitionRecord", "PartitionChangeRecord"))
# Groups are assigned again after these; a metadata transaction applies its records when it ends.
_TOPIC_RECORDS = frozenset(("TopicRecord", "PartitionRecord", "RemoveTopicRecord"))
_ALL_TOPICS_RECORDS = frozenset(("RegisterBrokerRecord", "EndTransactionRecord"))


class Coordinators(NamedTuple):
    """The coordinators of a broker; each has the partitions of one internal topic."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareCoordinator


class Replicas(NamedTuple):
    """The replicas of a broker: hosted ones, their fetchers, their moves between log directories, and the reports of these."""

    manager: ReplicaManager
    fetchers: ReplicaFetcherManager
    moves: ReplicaMoves
    assignments: AssignmentsManager


class MetadataPublisher:
    """Applies metadata to the parts of one broker. `report` writes a line of the node's log."""

    def __init__(
        self,
        config: DynamicConfig,
        metadata: MetadataCache,
        topic_configs: TopicConfigs,
        replicas: Replicas,
        coordinators: Coordinators,
        metrics: BrokerMetrics,
        scheduler: Scheduler,
        incarnation_id: Uuid,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._incarnation_id = incarnation_id
        self._topic_configs = topic_configs
        self._replica_manager, self._fetchers, self._moves, self._assignments = replicas
        self._log_manager = self._replica_manager.log_manager
        self._node_id = self._replica_manager.node_id
        self._metrics = metrics
        self._coordinators = coordinators
        self._leadership_changed = {
            GROUP_TOPIC: coordinators.groups.runtime.leadership_changed,
            TRANSACTION_TOPIC: coordinators.transactions.runtime.leadership_changed,
            SHARE_STATE_TOPIC: coordinators.shares.runtime.leadership_changed,
        }
        self._scheduler = scheduler
        self._report = report
        self._is_started = False
        self._loading: MetadataImage | None = None  # of a snapshot that is being delivered
        self._has_been_unfenced = False  # by the metadata
        self._is_initial_work_done = False  # all partitions that appear from now on are new
        self._work: deque[Work] = deque()
        self._is_working = False
        self._deletions = 0  # in the work, each of the logs of a topic
        # Changes that are not yet published: partitions, removed topics, configurations.
        self._pending: tuple[dict[TopicIdPartition, None], list[Topic], dict[ConfigResource, None]] = ({}, [], {})

    def begin_snapshot(self) -> None:
        """Begin a new image, which the batches of a snapshot fill; the present image is used until the last one."""
        self._loading = MetadataImage()

    def apply(self, batch: MetadataBatch, now_ms: int) -> None:
        """Apply the records of a committed batch, then their changes. Raises StateError for an impossible record."""
        if self._loading is not None:
            self._load(self._loading, batch, now_ms)
            return
        changed, removed, configs = self._pending
        image = self._metadata.image
        for control in batch.control_records:
            image.apply_control(control)
        for record in batch.records:
            kind = record.STRUCT.name
            if kind in _PARTITION_RECORDS:
                changed[record.topic_id, record.partition_id] = None
            elif kind == "RemoveTopicRecord" and record.topic_id in image.topics:
                removed.append(image.topics[record.topic_id])
            elif kind == "ClearElrRecord":
                changed.update(dict.fromkeys(self._all_partitions()))
            if kind != "NoOpRecord":
                self._metadata.changed()
            image.apply(record)
            if kind in _TOPIC_RECORDS or (kind == "PartitionChangeRecord" and record.replicas is not None):
                self._metadata.topic_changed(record.topic_id)
            elif kind in _ALL_TOPICS_RECORDS:
                self._metadata.topic_changed(None)
            if kind == "ConfigRecord":
                configs[ConfigResource(name_of(CONFIG_RESOURCE_TYPES, record.resource_type), record.resource_name)] = None
        self._take_pending(batch.last_offset, now_ms)

    def _take_pending(self, last_offset: int, now_ms: int) -> None:
        """Publish what has changed up to an offset; the records of a metadata transaction take effect when it ends."""
        self._metadata.offset = last_offset
        if self._is_started and self._metadata.image.pending_records is None:
            (changed, removed, configs), self._pending = self._pending, ({}, [], {})
            self._publish(changed, removed, configs, now_ms)

    def _load(self, image: MetadataImage, batch: MetadataBatch, now_ms: int) -> None:
        """Apply a batch of a snapshot to the new image; after the last one use it, and publish what differs."""
        for control in batch.control_records:
            image.apply_control(control)
        for record in batch.records:
            image.apply(record)
        if not batch.ends_snapshot:
            return
        self._loading = None
        old, self._metadata.image = self._metadata.image, image
        self._metadata.changed()
        self._metadata.topic_changed(None)
        changed, removed, configs = self._pending
        changed.update(dict.fromkeys(_changed_partitions(old, image)))
        removed += [topic for topic_id, topic in old.topics.items() if topic_id not in image.topics]
        resources = dict.fromkeys((*old.configs, *image.configs))
        configs.update(dict.fromkeys(one for one in resources if old.configs.get(one) != image.configs.get(one)))
        self._take_pending(batch.last_offset, now_ms)

    def knows_topic(self, topic_id: Uuid) -> bool:
        """Return whether the image has a topic, or a record that was applied before `start` removed it."""
        return topic_id in self._metadata.image.topics or any(topic.topic_id == topic_id for topic in self._pending[1])

    def start(self, now_ms: int, done: Callable[[int], None]) -> None:
        """Apply the whole image, then call `done(now_ms)`. The logs in the log directories have been loaded."""
        self._is_started = True
        self._pending = ({}, [], {})
        self._reconfigure_broker()
        self._metadata.client_metrics_changed()
        # The logs were loaded with the settings before that, and with those of their topics at the time.
        self._reconfigure_topics(list(self._metadata.image.topic_ids))
        loaded = ((log.topic_id, log.topic, log.partition) for log in self._log_manager.all_logs())
        gone = [
            (topic, index) for topic_id, topic, index in loaded if topic_id is not None and not self._is_placed(topic_id, index)
        ]
        self._stop(list(dict.fromkeys(gone)), "is not placed here any more")
        self._begin_coordinating(now_ms)
        self._work.append(partial(self._open_next, iter(list(self._all_partitions()))))

        def finish(now_ms: int) -> int:
            self._is_initial_work_done = True
            done(now_ms)
            return 1

        self._work.append(finish)
        self._begin_work(now_ms)

    def end(self, now_ms: int, done: Callable[[int], None]) -> None:
        """Finish the work so far and accept no more, then call `done(now_ms)`, which closes the logs.

        A directory that is made or renamed while its log directory closes would make the clean stop look unclean.
        """

        def finish(now_ms: int) -> int:
            self._is_started = False
            self._work.clear()
            done(now_ms)
            return 1

        self._work.append(finish)
        self._begin_work(now_ms)

    def _all_partitions(self) -> Iterator[TopicIdPartition]:
        return ((topic.topic_id, index) for topic in self._metadata.image.topics.values() for index in topic.partitions)

    def _publish(
        self, changed: Iterable[TopicIdPartition], removed: list[Topic], configs: dict[ConfigResource, None], now_ms: int
    ) -> None:
        for topic in removed:
            if topic.topic_id not in self._metadata.image.topics:  # the transaction that removed it may have been aborted
                self._remove(topic)
        self._update(changed, now_ms)
        self._begin_coordinating(now_ms)
        if any(resource.type == "CLIENT_METRICS" for resource in configs):
            self._metadata.client_metrics_changed()
        if any(resource.type == "BROKER" for resource in configs) and self._reconfigure_broker():
            self._reconfigure_topics(list(self._metadata.image.topic_ids))
        else:
            topics = [resource.name for resource in configs if resource.type == "TOPIC"]
            self._reconfigure_topics(topics)
            for name in topics:
                overrides = self._metadata.image.configs.get(ConfigResource("TOPIC", name), {})
                self._report_without_effect(f"topic {name}", without_effect(TOPIC_KEYS, overrides))
        self._begin_work(now_ms)

    # -------------------------------------------------------------------------------------------------- configurations

    def _reconfigure_broker(self) -> bool:
        """Apply the broker's present configuration to all but the logs; return whether it has changed."""
        changed = self._config.follow(self._metadata.image)
        if not changed:
            return False
        self._log_manager.change_settings(
            file_delete_delay_ms=self._config["log.segment.delete.delay.ms"],
            producer_id_expiration_ms=self._config["producer.id.expiration.ms"],
            **cleaner_settings(self._config),
        )
        keys = ", ".join(changed)
        self._report(Line(f"dynamic configuration: {keys} changed", keys=keys))
        self._report_without_effect("dynamic configuration", without_effect(BROKER_KEYS, changed))
        return True

    def _report_without_effect(self, what: str, names: list[str]) -> None:
        if names:
            keys = ", ".join(names)
            self._report(WarningLine(f"{what}: {keys} is accepted, and has no effect in kcli", keys=keys))

    def _reconfigure_topics(self, names: list[str]) -> None:
        """Apply the present settings of topics to their logs, at once for a few topics."""
        if len(names) <= TOPICS_A_LOG:
            self._reconfigure(names, 0)
            return
        for start in range(0, len(names), TOPICS_A_LOG):
            self._work.append(partial(self._reconfigure, names[start : start + TOPICS_A_LOG]))

    def _reconfigure(self, names: Iterable[str], now_ms: int) -> int:
        for name in names:
            topic = self._metadata.image.topic(name)
            if topic is not None:
                self._log_manager.update_topic_config(name, topic.partitions, self._topic_configs.log_config(name))
                for index in topic.partitions:
                    partition = self._replica_manager.partition(name, index)
                    if partition is not None and partition.followers:
                        partition.maybe_advance_high_watermark()  # min.insync.replicas may be lower
        return 1

    def _begin_work(self, now_ms: int) -> None:
        if not self._is_working:
            self._is_working = True
            self._scheduler.run(self._run_work(), now_ms)

    def _run_work(self) -> Iterator[None]:
        """Do the work that waits, in its order: logs of a deleted topic go before a new topic of its name."""
        while True:
            now_ms, left = self._scheduler.now_ms, SLICE_LOGS
            while left > 0 and self._work:
                left -= self._work.popleft()(now_ms)
            self._replica_manager.take_log_flushes(now_ms)
            if not self._work:
                break
            yield
        self._is_working = False

    # ------------------------------------------------------------------------------------------------------ partitions

    def _update(self, changed: Iterable[TopicIdPartition], now_ms: int) -> None:
        """Open the logs of partitions that are new here, and apply the state of the others, at once if there are few."""
        known: list[TopicIdPartition] = []
        moved_away: list[TopicPartition] = []
        for topic_id, index in changed:
            name = self._metadata.topic_name(topic_id)
            if name is None or self._metadata.partition(topic_id, index) is None:
                continue
            if not self._is_placed(topic_id, index):
                moved_away += [(name, index)] if self._is_here(topic_id, name, index) else []
            elif self._hosted(topic_id, index) is None:
                self._work.append(partial(self._open, topic_id, index))
            else:
                known.append((topic_id, index))
        self._move_away(moved_away, now_ms)
        if len(known) <= CHANGES_A_LOG:
            self._apply_all(known, now_ms)
            return
        for start in range(0, len(known), CHANGES_A_LOG):
            self._work.append(partial(self._apply_all, known[start : start + CHANGES_A_LOG]))

    def _begin_coordinating(self, now_ms: int) -> None:
        """Let the coordinators load the partitions that this broker leads, once it is unfenced."""
        registration = self._metadata.image.brokers.get(self._node_id)
        if self._has_been_unfenced or registration is None or registration.is_fenced:
            return
        if registration.incarnation_id == self._incarnation_id:
            self._has_been_unfenced = True
            for partition in list(self._replica_manager.partitions.values()):
                self._coordinate(partition, now_ms)

    def _coordinate(self, partition: Partition, now_ms: int) -> None:
        if self._has_been_unfenced and partition.topic in self._leadership_changed:
            self._leadership_changed[partition.topic](partition, now_ms)

    def _is_placed(self, topic_id: Uuid, index: int) -> bool:
        """Return whether the metadata has a partition and places a replica on this broker."""
        registration = self._metadata.partition(topic_id, index)
        return registration is not None and self._node_id in registration.replicas

    def _is_here(self, topic_id: Uuid, name: str, index: int) -> bool:
        """Return whether a partition is hosted, or has a log that was loaded and is not hosted yet."""
        partition = self._replica_manager.partition(name, index)
        if partition is not None:
            return partition.topic_id == topic_id
        logs = (logs.get((name, index)) for logs in (self._log_manager.logs, self._log_manager.future_logs))
        return any(log is not None and log.topic_id == topic_id for log in logs)

    def _hosted(self, topic_id: Uuid, index: int) -> Partition | None:
        """Return the hosted partition; one of a deleted topic of the same name does not count."""
        name = self._metadata.topic_name(topic_id)
        partition = None if name is None else self._replica_manager.partition(name, index)
        return partition if partition is not None and partition.topic_id == topic_id else None

    def _apply_all(self, keys: Iterable[TopicIdPartition], now_ms: int) -> int:
        for topic_id, index in keys:
            partition = self._hosted(topic_id, index)
            if partition is not None:
                self._apply(partition, now_ms)
        return 1

    def _apply(self, partition: Partition, now_ms: int) -> None:
        registration = self._metadata.partition(partition.topic_id, partition.index)
        assert registration is not None
        was_leader = partition.is_leader
        is_new_epoch = registration.leader_epoch > partition.leader_epoch
        if is_new_epoch:
            # Before this broker leads: what the earlier leader still answers must not be appended any more.
            self._fetchers.stop([partition.key])
        partition.apply(registration)
        if is_new_epoch:
            self._fetchers.follow(partition, now_ms)
        self._coordinate(partition, now_ms)
        self._compare_directory(partition, now_ms)
        if was_leader and not partition.is_leader:
            self._replica_manager.check_waiting([partition.key], now_ms)

    def _compare_directory(self, partition: Partition, now_ms: int) -> None:
        """Report the log's directory if the metadata names another one, unless the replica is moving there."""
        if partition.log is None:
            return
        directory_id = self._log_manager.directory_id_of(partition.log)
        registered = self._metadata.directory_of(partition.topic_id, partition.index, self._node_id)
        if directory_id in (None, registered) or self._moves.follow(partition, registered, now_ms):
            return
        assert directory_id is not None
        self._assignments.assign(partition.topic_id, partition.index, directory_id, now_ms)

    def _open(self, topic_id: Uuid, index: int, now_ms: int) -> int:
        """Open or make the log of a partition, if the metadata still has it; one that was opened before gets its new state."""
        topic = self._metadata.image.topics.get(topic_id)
        if topic is None or not self._is_placed(topic_id, index):
            return 1
        known = len(self._log_manager.logs)
        partition = self._hosted(topic_id, index) or self._replica_manager.create_partition(
            topic,
            index,
            self._topic_configs.log_config(topic.name),
            self._metadata.directory_of(topic_id, index, self._node_id),
            now_ms,
            is_new=self._is_initial_work_done,
        )
        self._apply(partition, now_ms)
        return LOGS_A_NEW_ONE if len(self._log_manager.logs) > known else 1

    def _open_next(self, keys: Iterator[TopicIdPartition], now_ms: int) -> int:
        """Open the log of the first of these partitions, and then those of the others, before any other work."""
        key = next(keys, None)
        if key is None:
            return 0
        self._work.appendleft(partial(self._open_next, keys))
        return self._open(*key, now_ms)

    def _remove(self, topic: Topic) -> None:
        here = [(topic.name, index) for index in topic.partitions if self._is_here(topic.topic_id, topic.name, index)]
        self._stop(here, "is deleted")
        self._metrics.forget_topic(topic.name)
        for coordinator in self._coordinators:
            coordinator.topic_removed(topic)

    def _move_away(self, keys: list[TopicPartition], now_ms: int) -> None:
        """Stop partitions whose replicas are on other brokers now."""
        for partition in self._stop(keys, "has moved to other brokers"):
            self._coordinate(partition, now_ms)
        for name in {name for name, _ in keys}:
            topic = self._metadata.image.topic(name)
            if topic is None or not any((name, index) in self._replica_manager.partitions for index in topic.partitions):
                self._metrics.forget_topic(name)

    def _stop(self, keys: list[TopicPartition], reason: str) -> list[Partition]:
        """Stop hosting partitions at once, and delete their logs as work that takes long; return those that were hosted."""
        partitions = [found for key in keys if (found := self._replica_manager.partition(*key)) is not None]
        self._fetchers.stop(keys)
        self._replica_manager.stop_partitions(partitions)
        for start in range(0, len(keys), LOGS_DELETED_TOGETHER):
            self._work.append(partial(self._delete, reason, keys[start : start + LOGS_DELETED_TOGETHER]))
        if keys:
            self._deletions += 1
            self._work.append(self._deleted)
        return partitions

    def _delete(self, reason: str, keys: list[TopicPartition], now_ms: int) -> int:
        """Delete logs, except those of partitions that came back and are hosted again."""
        gone = [key for key in keys if self._replica_manager.partition(*key) is None]
        self._replica_manager.delete_logs(reason, gone, now_ms)
        return len(keys)

    def _deleted(self, now_ms: int) -> int:
        """Write the checkpoints without the deleted logs, once for all deletions that wait: that visits all logs."""
        self._deletions -= 1
        return 0 if self._deletions else self._remove_deleted(self._log_manager.remove_deleted(), now_ms)

    def _remove_deleted(self, steps: Iterator[None], now_ms: int) -> int:
        """Do the next step, which ends the slice if there are more: a broker with a few hundred logs needs one."""
        if next(steps, _END) is _END:
            return 0
        self._work.appendleft(partial(self._remove_deleted, steps))
        return SLICE_LOGS


def _changed_partitions(old: MetadataImage, new: MetadataImage) -> Iterator[TopicIdPartition]:
    """Yield the partitions of an image that an earlier image does not have, or has in another state."""
    for topic_id, topic in new.topics.items():
        before = old.topics.get(topic_id)
        known = {} if before is None else before.partitions
        for index, registration in topic.partitions.items():
            if known.get(index) != registration:
                yield topic_id, index
