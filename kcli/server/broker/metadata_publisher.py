"""Makes a broker be what the metadata log says: it applies the records, then looks at what they changed.

    records                                     what the broker does
    ------------------------------------------  ------------------------------------------------------------------------
    Topic, Partition, PartitionChange           opens or makes the logs of its replicas; leads or follows
    RemoveTopic                                 gives the topic's logs up to be deleted; waiting requests get their errors
    Config of a topic                           its logs go by the new settings from now on
    Config of this broker or of all brokers     the broker's own settings, as far as they can change while it runs

The first time, at start, everything in the image counts as changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.log.storage_errors import StorageError
from kcli.protocol.message import Message
from kcli.server.log_lines import FailureLine, WarningLine
from kcli.server.replication.partition import Partition
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource, Topic, name_of

# How many logs are opened or deleted before other events get their turn, and as how many of them counts one that is made, with
# five files: some milliseconds of work. As many changes of partitions whose logs are open cost as one log does.
SLICE_LOGS = 8
LOGS_A_NEW_ONE = 4
LOGS_DELETED_TOGETHER = 4
CHANGES_A_LOG = 50
# So many topics' logs get new settings at the cost of one log; each topic's settings are put together anew.
TOPICS_A_LOG = 15
# Does some of what records ask for -> as how many opened logs it counts.
Work = Callable[[int], int]
_PARTITION_RECORDS = frozenset(("PartitionRecord", "PartitionChangeRecord"))
PartitionKey = tuple[Uuid, int]


class MetadataPublisher:
    """Applies metadata to one broker, `broker`."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._is_started = False
        self._is_started_long_ago = False  # all partitions that come from now on are new
        self._work: deque[Work] = deque()
        self._is_working = False
        # What records have changed that is not yet published: partitions, topics removed, configurations.
        self._pending: tuple[dict[PartitionKey, None], list[Topic], dict[ConfigResource, None]] = ({}, [], {})

    @property
    def image(self) -> MetadataImage:
        """The metadata as the broker knows it."""
        image: MetadataImage = self._broker.image
        return image

    def apply(self, records: Iterable[Message], last_offset: int, now_ms: int) -> None:
        """Apply committed records up to `last_offset`, and do what they ask for. Raises StateError for what cannot be."""
        changed, removed, configs = self._pending
        image = self.image
        for record in records:
            kind = record.STRUCT.name
            if kind in _PARTITION_RECORDS:
                changed[record.topic_id, record.partition_id] = None
            elif kind == "RemoveTopicRecord" and record.topic_id in image.topics:
                removed.append(image.topics[record.topic_id])
            elif kind == "ClearElrRecord":
                changed.update(dict.fromkeys(self._partitions()))
            image.apply(record)
            if kind == "ConfigRecord":
                configs[ConfigResource(name_of(CONFIG_RESOURCE_TYPES, record.resource_type), record.resource_name)] = None
        self._broker.metadata_offset = last_offset
        # The records of a metadata transaction count when it ends.
        if self._is_started and image.pending_records is None:
            self._pending = ({}, [], {})
            self._publish(changed, removed, configs, now_ms)

    def start(self, now_ms: int, done: Callable[[int], None]) -> None:
        """Do what the image asks for as a whole, then `done(now_ms)`; the logs that are there have been loaded."""
        self._is_started = True
        self._pending = ({}, [], {})
        self._broker.reconfigure()
        # The logs were loaded with the settings of before, and with their topics' as of then.
        self._reconfigure_topics(list(self.image.topic_ids))
        self._publish(self._partitions(), [], {}, now_ms)

        def finish(now_ms: int) -> int:
            self._is_started_long_ago = True
            done(now_ms)
            return 1

        self._work.append(finish)
        self._run_work(now_ms)

    def end(self, now_ms: int, done: Callable[[int], None]) -> None:
        """Do what was asked for up to now and nothing more, then `done(now_ms)`: it closes the logs.

        A directory that is made or renamed while its log directory closes would spoil the marks of a stop in order.
        """

        def finish(now_ms: int) -> int:
            self._is_started = False
            self._work.clear()
            done(now_ms)
            return 1

        self._work.append(finish)
        if not self._is_working:
            self._run_work(now_ms)

    def _partitions(self) -> Iterator[PartitionKey]:
        """All that the image has."""
        return ((topic.topic_id, index) for topic in self.image.topics.values() for index in topic.partitions)

    def _publish(
        self, changed: Iterable[PartitionKey], removed: list[Topic], configs: dict[ConfigResource, None], now_ms: int
    ) -> None:
        for topic in removed:
            self._remove(topic, now_ms)
        self._update(changed, now_ms)
        if any(resource.type == "BROKER" for resource in configs) and self._broker.reconfigure():
            self._reconfigure_topics(list(self.image.topic_ids))
        else:
            self._reconfigure_topics([resource.name for resource in configs if resource.type == "TOPIC"])
        if not self._is_working:
            self._run_work(now_ms)

    def _reconfigure_topics(self, names: list[str]) -> None:
        """Let the logs of topics follow their present settings, at once where the topics are few."""
        if len(names) <= TOPICS_A_LOG:
            self._reconfigure(names, 0)
            return
        for start in range(0, len(names), TOPICS_A_LOG):
            self._work.append(partial(self._reconfigure, names[start : start + TOPICS_A_LOG]))

    def _reconfigure(self, names: Iterable[str], now_ms: int) -> int:
        for name in names:
            self._broker.reconfigure_topic(name)
        return 1

    def _run_work(self, now_ms: int) -> None:
        """Do a slice of the work that waits, in its order: a topic's old logs go before one of its name is made anew."""
        self._is_working = True
        left = SLICE_LOGS
        while left > 0 and self._work:
            left -= self._work.popleft()(now_ms)
        self._broker.take_log_flushes(now_ms)
        self._is_working = bool(self._work)
        if self._work:
            self._broker.timer.schedule(now_ms, self._run_work)

    def _update(self, changed: Iterable[PartitionKey], now_ms: int) -> None:
        """Have logs opened for partitions that are new here; the others go by their new states, at once where they are few."""
        broker, topics = self._broker, self.image.topics
        known: list[PartitionKey] = []
        for key in changed:
            topic_id, index = key
            topic = topics.get(topic_id)
            if topic is None or index not in topic.partitions or broker.node_id not in topic.partitions[index].replicas:
                continue
            partition = broker.partitions.get((topic.name, index))
            if partition is None or partition.topic_id != topic_id:
                self._work.append(partial(self._open, topic_id, index))
            else:
                known.append(key)
        if len(known) <= CHANGES_A_LOG:
            self._apply_all(known, now_ms)
            return
        for start in range(0, len(known), CHANGES_A_LOG):
            self._work.append(partial(self._apply_all, known[start : start + CHANGES_A_LOG]))

    def _apply_all(self, keys: Iterable[PartitionKey], now_ms: int) -> int:
        for topic_id, index in keys:
            topic = self.image.topics.get(topic_id)
            partition = None if topic is None else self._broker.partitions.get((topic.name, index))
            if topic is not None and partition is not None and partition.topic_id == topic_id:
                self._apply(topic, index, partition, now_ms)
        return 1

    def _apply(self, topic: Topic, index: int, partition: Partition, now_ms: int) -> None:
        was_leader = partition.is_leader
        partition.apply(topic.partitions[index])
        self._compare_directory(topic, index, partition, now_ms)
        if was_leader and not partition.is_leader:
            self._broker.produce_purgatory.check(partition.key, now_ms)
            self._broker.fetch_purgatory.check(partition.key, now_ms)

    def directory_of(self, topic_id: Uuid, index: int) -> Uuid | None:
        """The id of the log directory that the metadata puts this broker's replica in, or None."""
        topic = self.image.topics.get(topic_id)
        if topic is None or index not in topic.partitions or self._broker.node_id not in topic.partitions[index].replicas:
            return None
        return _directory(topic, index, self._broker.node_id)

    def _compare_directory(self, topic: Topic, index: int, partition: Partition, now_ms: int) -> None:
        """Tell the controller where the log really lies, if it believes otherwise; a replica on its way there is put there."""
        if partition.log is not None:
            directory_id = self._broker.log_manager.directory_id_of(partition.log)
            registered = _directory(topic, index, self._broker.node_id)
            if (
                directory_id is not None
                and directory_id != registered
                and not self._broker.moves.follow(partition, registered, now_ms)
            ):
                self._broker.assignments.assign(topic.topic_id, index, directory_id, now_ms)

    def _open(self, topic_id: Uuid, index: int, now_ms: int) -> int:
        """Open or make the log of a partition, if the metadata still has it."""
        broker = self._broker
        topic = self.image.topics.get(topic_id)
        if topic is None or index not in topic.partitions:
            return 1
        known = len(broker.log_manager.logs)
        log = None
        try:
            log = broker.log_manager.get_or_create_log(
                topic.name,
                index,
                topic_id,
                broker.topic_config(topic.name),
                now_ms=now_ms,
                directory_id=_directory(topic, index, broker.node_id),
                is_new=self._is_started_long_ago,
            )
        except (OSError, StorageError) as error:
            text = f"the log of {topic.name}-{index} cannot be opened: {error}"
            broker.tell(FailureLine(text, topic=topic.name, partition=index, error=error))
        partition = Partition(broker.node_id, topic.name, index, topic_id, log)
        broker.partitions[topic.name, index] = partition
        self._apply(topic, index, partition, now_ms)
        return LOGS_A_NEW_ONE if len(broker.log_manager.logs) > known else 1

    def _remove(self, topic: Topic, now_ms: int) -> None:
        broker = self._broker
        gone = []
        for index in topic.partitions:
            partition = broker.partitions.get((topic.name, index))
            if partition is None or partition.topic_id != topic.topic_id:
                continue
            del broker.partitions[topic.name, index]
            partition.is_leader = False
            partition.log = None
            gone.append(partition.key)
        broker.metrics.forget_topic(topic.name)
        for start in range(0, len(gone), LOGS_DELETED_TOGETHER):
            end = start + LOGS_DELETED_TOGETHER
            self._work.append(partial(self._delete, topic.name, gone[start:end], end >= len(gone)))

    def _delete(self, topic: str, keys: list[tuple[str, int]], is_last: bool, now_ms: int) -> int:
        for key in keys:
            self._broker.produce_purgatory.check(key, now_ms)
            self._broker.fetch_purgatory.check(key, now_ms)
        try:
            self._broker.log_manager.delete_logs(keys, now_ms, with_checkpoints=is_last)
        except StorageError as error:
            self._broker.tell(WarningLine(f"topic {topic} is deleted, but {error}", topic=topic, error=error))
        return len(keys)


def _directory(topic: Topic, index: int, node_id: int) -> Uuid | None:
    """The id of the log directory that the metadata puts a replica in, or None."""
    registration = topic.partitions[index]
    at = registration.replicas.index(node_id)
    return registration.directories[at] if at < len(registration.directories) else None
