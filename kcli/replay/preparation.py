"""The steps before the first record: topics, progress, what the target already has, producer id.

    state of a partition                what happens
    ----------------------------------  ------------------------------------------------------------------------------------
    no progress is saved                it begins at offset 0 of the source
    the same, but the target's log has  the run ends without --append or --restart: the progress may have expired, and all
    records                             records would be there twice; with one of them, they are added after the last one
    the same, and other partitions      the run ends without --restart, for the same reason
    have progress
    progress of this replay             kcli.replay.recovery finds the records of the replay after it in the target
    progress, but the topic was         all records are sent again
    created again (another topic id)
    progress, but the source's topic    the run ends
    was created again
    with --restart                      all records are sent again, by a new producer

The progress of new partitions is saved before anything is sent: the next run could not find records without the producer id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcli.client.admin.topics import BROKER_DEFAULT
from kcli.client.network_client import NetworkClient
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.inspect.quantities import format_count
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.progress import PartitionProgress, ProgressStore
from kcli.replay.recovery import find_sent
from kcli.replay.replayer import Prepared
from kcli.replay.source import CommittedOffset, Source, TopicPartition
from kcli.replay.steps import RESTART, ReplayError, Steps
from kcli.replay.target import (
    MAX_MESSAGE_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
    WantedTopic,
    connect,
    create_topics,
    init_producer_id,
    list_offsets,
    missing_topics,
    read_configs,
    short_list,
    topic_id,
)

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"), (1, "millisecond"))


def _duration(ms: int) -> str:
    """Return a time in the largest unit that leaves no fraction."""
    size, unit = next((size, unit) for size, unit in _UNITS if ms % size == 0)
    return format_count(ms // size, unit)


class ReplayOptions(NamedTuple):
    """What the command line asks for, as far as the target is concerned."""

    may_create: bool = True
    replication: int = BROKER_DEFAULT
    is_restarted: bool = False
    may_append: bool = False


def wanted_topics(source: Source, names: Mapping[str, str]) -> dict[str, WantedTopic]:
    """Return the topics that the target needs, by their names there; `names` are those of the source and the target."""
    highest: dict[str, int] = {}
    for topic, partition in source.partitions():
        highest[topic] = max(partition, highest.get(topic, 0))
    topics = source.topics()
    return {names[topic]: WantedTopic(topic, topics[topic], highest[topic]) for topic in highest}


class Preparation:
    """The preparation of one run; `note` gets a sentence for what the user should know, `names` are as in `wanted_topics`."""

    def __init__(
        self,
        network: NetworkClient,
        source: Source,
        store: ProgressStore,
        names: Mapping[str, str],
        options: ReplayOptions,
        committed: Mapping[TopicPartition, list[CommittedOffset]],
        note: Callable[[str], object],
    ) -> None:
        self._network = network
        self._source = source
        self._store = store
        self._names = names
        self._options = options
        self._committed = committed
        self._note = note

    def steps(self) -> Steps[Prepared]:
        """Prepare the target. Raises ReplayError, KafkaError, KafkaTimeoutError."""
        configs = yield from self._prepare_topics()
        pairs = [(source, (self._names[source[0]], source[1])) for source in self._source.partitions()]
        targets = [target for _, target in pairs]
        loaded = {} if self._options.is_restarted else (yield from self._store.load(targets))
        known = {target: one for target, one in loaded.items() if self._is_of_topic(target, one)}
        self._check_source_topics(pairs, known)
        ends = yield from list_offsets(targets)
        self._check_lost([target for target in targets if target not in known and ends[target] > 0], loaded)
        producers = {(one.producer_id, one.producer_epoch) for one in known.values()}
        if len(producers) > 1:
            raise ReplayError(f"{self._store.where} has the progress of several producers; {RESTART}")
        producer = producers.pop() if producers else (yield from init_producer_id(self._network))
        new = {
            target: PartitionProgress(
                *producer,
                0,
                0,
                ends[target],
                ends[target],
                topic_id(self._network, target[0]),
                self._source.topic_id(source[0]),
            )
            for source, target in pairs
            if target not in known
        }
        if new:
            yield from self._store.save(new)
        first = {topic for topic, _ in new}  # an earlier run has reported the settings of the others
        self._note_settings({name: values for name, values in configs.items() if name in first})
        replays = []
        for source, target in pairs:
            watched = sorted({committed.offset for committed in self._committed.get(source, ())})
            replay = PartitionReplay(source, target, known.get(target) or new[target], watched)
            limits = {
                name: int(value)
                for name in (MAX_MESSAGE_BYTES, SEGMENT_BYTES)
                if (value := configs.get(target[0], {}).get(name, "")).isdecimal()
            }
            replay.max_message_bytes = limits.get(MAX_MESSAGE_BYTES)
            replay.most_joined_bytes = min(limits.values(), default=None)
            if target in known:
                replay.skip_found((yield from find_sent(self._network, target, known[target], ends[target])))
            replays.append(replay)
        if known:
            self._note(f"continuing with the progress in {self._store.where}")
        return Prepared(replays, *producer)

    def _check_lost(self, used: list[TopicPartition], loaded: Mapping[TopicPartition, PartitionProgress]) -> None:
        """Refuse partitions without progress whose logs have, or had, records; `used` are all without progress."""
        if not used or self._options.is_restarted:
            return
        where = self._store.where
        lost = [target for target in used if target not in loaded]
        names = short_list([f"{topic}-{partition}" for topic, partition in lost or used])
        if lost and loaded:
            raise ReplayError(
                f"{where} has the progress of other partitions, not that of {names}, where the target has records: the "
                f"progress may have expired; {RESTART}"
            )
        if not self._options.may_append:
            raise ReplayError(
                f"the target has records already in {names}, and {where} has no progress of this replay: if an earlier run "
                "sent these records, they would be in the target twice; to add the records of the source, use --append"
            )
        self._note(f"{where} has no progress of this replay; its records are added to those of {names} in the target")

    def _check_source_topics(
        self, pairs: list[tuple[TopicPartition, TopicPartition]], known: Mapping[TopicPartition, PartitionProgress]
    ) -> None:
        for source, target in pairs:
            if target not in known:
                continue
            now, then = self._source.topic_id(source[0]), known[target].source_topic_id
            if ZERO_UUID not in (now, then) and now != then:
                raise ReplayError(
                    f"the topic {source[0]!r} of the source has the id {now}, and had the id {then} when it was sent: it was "
                    f"deleted and created again; {RESTART}"
                )

    def _is_of_topic(self, target: TopicPartition, progress: PartitionProgress) -> bool:
        current = topic_id(self._network, target[0])
        return ZERO_UUID in (current, progress.topic_id) or current == progress.topic_id

    def _prepare_topics(self) -> Steps[dict[str, dict[str, str]]]:
        yield from connect(self._network, "target")
        own = [topic for topic, target in self._names.items() if topic == target]
        if own and self._source.cluster_id is not None and self._source.cluster_id == self._network.metadata.cluster_id:
            raise ReplayError(
                f"source and target are the same cluster, and the topic {own[0]!r} would be copied to itself; "
                "give it another name with --map"
            )
        wanted = wanted_topics(self._source, self._names)
        missing = yield from missing_topics(self._network, wanted)
        if missing:
            if not self._options.may_create:
                names = ", ".join(missing)
                raise ReplayError(f"the target does not have the topics {names}; create them, or leave out --no-create")
            for note in (yield from create_topics(self._network, missing, wanted, self._options.replication)):
                self._note(note)
        return (yield from read_configs(wanted))

    def _note_settings(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Report the settings of topics that change or delete what is sent to them."""
        by_retention: dict[int, list[str]] = {}
        for name, values in configs.items():
            if values.get(TIMESTAMP_TYPE) == "LogAppendTime":
                self._note(f"the topic {name!r} of the target has {TIMESTAMP_TYPE}=LogAppendTime: it replaces the timestamps")
            if int(values.get(RETENTION_MS, "-1")) >= 0:
                by_retention.setdefault(int(values[RETENTION_MS]), []).append(name)
        for retention_ms, topics in by_retention.items():
            servers = ",".join(self._network.config.bootstrap_servers)
            each = "" if len(topics) == 1 else "for each of them, "
            self._note(
                f"the target deletes records older than {_duration(retention_ms)} ({RETENTION_MS}) of "
                f"{format_count(len(topics), 'topic')} ({short_list(topics)}); to keep all records, {each}run: "
                f"kcli configs alter --bootstrap-server {servers} --topic {topics[0]} --add-config {RETENTION_MS}=-1"
            )
