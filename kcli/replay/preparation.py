"""The steps before the first record: topics, progress, what the target already has, producer id.

topic in the target     then
----------------------  ------------------------------------------------------------------------------------------------
missing                 it is created with the partitions and settings of the source, except for
                        message.timestamp.type=LogAppendTime (records keep their timestamps), settings that name
                        brokers of the source, and those that the target refuses; an error with --no-create
has enough partitions   used as it is
has fewer partitions    refused, before anything is sent

setting of the topic            is used for
------------------------------  ---------------------------------------------------------------------------------------
max.message.bytes               a larger batch ends the run before it is sent; batches are not joined to larger ones
segment.bytes                   batches are not joined to larger ones
message.timestamp.type          a note if it is LogAppendTime: the target replaces the timestamps
retention.ms                    a note if it is below the age of the records: the target deletes them

state of a partition                what happens
----------------------------------  ------------------------------------------------------------------------------------
no progress is saved                it begins at offset 0 of the source
the same, but the target's log has  the run ends without --append or --restart: the progress may have expired, and all
records                             records would be there twice; with one of them, they are added after the last one
the same, and other partitions      the run ends without --restart, for the same reason
have progress
progress of this replay             `find_sent` finds the records of the replay after it in the target
progress, but the topic was         all records are sent again
created again (another topic id)
progress, but the source's topic    the run ends
was created again
with --restart                      all records are sent again, by a new producer

The progress of new partitions is saved before anything is sent: the next run could not find records without the producer id.

Which records the target has above the saved progress is found by the headers of its batches: those of the replay's producer id,
from the saved target offset on. That is what was sent since the progress was saved last, some seconds at most. A log that ends
below the saved target offset has lost records (a lost disk, an unclean election), and the run ends. If that part of the log was
deleted (retention), the leader's state of the producer has the last sequence (DescribeProducers); if that has expired too, the
run ends: it is not known what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kcli.client.admin import topics as admin_topics
from kcli.client.admin.configs import ConfigResource, ResourceType, describe_configs
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import describe_producers
from kcli.client.admin.topics import BROKER_DEFAULT, NewTopic
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.inspect.quantities import format_count
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, INIT_PRODUCER_ID
from kcli.replay.fetching import OffsetOutOfRangeError, batches_in, fetch_some
from kcli.replay.partition_replay import MAX_MESSAGE_BYTES, Found, FoundBatch, PartitionReplay, truncated
from kcli.replay.progress import PartitionProgress, ProgressStore, check_alone
from kcli.replay.replayer import Prepared
from kcli.replay.source import SEQUENCES, CommittedOffset, Source, SourceTopic
from kcli.replay.steps import RESTART, Pause, ReplayError, Steps, ask, connect, execute, list_offsets, refresh, topic_id

MOST_NAMES = 3
SEGMENT_BYTES = "segment.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_MS = "retention.ms"
_READ_CONFIGS = (MAX_MESSAGE_BYTES, SEGMENT_BYTES, TIMESTAMP_TYPE, RETENTION_MS)
_NOT_CREATED = frozenset(
    (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    )
)
# Settings of old topics that brokers no longer have.
_REMOVED = frozenset(("message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"))


class WantedTopic(NamedTuple):
    """A topic of the target: its name in the source, what the source says of it, and the highest partition with records."""

    source: str
    topic: SourceTopic
    highest_partition: int


def short_list(names: Sequence[str]) -> str:
    """Return the first names of a list."""
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def missing_topics(network: NetworkClient, wanted: Mapping[str, WantedTopic]) -> Steps[list[str]]:
    """Return the topics that the target does not have. Raises ReplayError for one with too few partitions."""
    for name in wanted:
        network.metadata.want_topic(name)
    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        yield from refresh(network)
        errors = network.metadata.topic_errors
        fatal = [name for name in wanted if (code := errors.get(name, 0)) and code not in error_codes.RETRIABLE]
        if fatal:
            raise KafkaError(errors[fatal[0]], f"the topic {fatal[0]!r} of the target")
        waiting = [name for name in wanted if errors.get(name) == error_codes.LEADER_NOT_AVAILABLE]
        if not waiting or network.timer.clock_ms >= deadline_ms:
            break
        yield Pause(network.config.retry_backoff_ms)
    for name, topic in wanted.items():
        count = len(network.metadata.cluster.partitions_for_topic(name))
        if 0 < count <= topic.highest_partition:
            raise ReplayError(
                f"the topic {name!r} of the target has {count} partitions, and partition {topic.highest_partition} of "
                f"{topic.source!r} has records; add partitions (kcli topics alter --topic {name} --partitions "
                f"{topic.highest_partition + 1}), or give it another name with --map"
            )
    return [name for name in wanted if not network.metadata.cluster.partitions_for_topic(name)]


def create_topics(
    network: NetworkClient, names: Sequence[str], wanted: Mapping[str, WantedTopic], replication: int
) -> Steps[list[str]]:
    """Create topics, wait for leaders, and return notes on settings that differ. Raises ReplayError, KafkaTimeoutError."""
    notes, topics = [], []
    unknown = [name for name in names if not wanted[name].topic.is_known]
    if unknown:
        notes.append(
            f"the paths have no metadata of {format_count(len(unknown), 'topic')} ({short_list(unknown)}), which are created "
            "with the partitions that the paths have, and the default settings of the target"
        )
    for name in names:
        configs = {key: value for key, value in wanted[name].topic.configs.items() if key not in _NOT_CREATED | _REMOVED}
        if configs.get(TIMESTAMP_TYPE) == "LogAppendTime":
            del configs[TIMESTAMP_TYPE]
            notes.append(
                f"the topic {name!r} is created with {TIMESTAMP_TYPE}=CreateTime, so that records keep their timestamps"
            )
        topics.append(NewTopic(name, wanted[name].topic.partitions, replication, configs=configs))
    by_name = {topic.name: topic for topic in topics}
    for name, outcome in (yield from execute(admin_topics.create_topics(topics))).items():
        if isinstance(outcome, KafkaError) and outcome.code == error_codes.INVALID_CONFIG:
            notes += yield from _create_without_refused_settings(by_name[name], outcome)
        elif not isinstance(outcome, KafkaError):
            value_of(outcome)
        elif outcome.code != error_codes.TOPIC_ALREADY_EXISTS:
            raise _not_created(name, outcome)
    yield from _wait_for_leaders(network, names)
    return notes


def _not_created(name: str, error: ClientError) -> ReplayError:
    return ReplayError(f"the topic {name!r} cannot be created in the target: {error}")


def _create_without_refused_settings(topic: NewTopic, refusal: KafkaError) -> Steps[list[str]]:
    """Create a topic without the settings that the target refuses, such as those that are newer than it; return notes."""
    refused: dict[str, KafkaError] = {}
    for key, value in (topic.configs or {}).items():
        alone = topic._replace(configs={key: value})
        outcome = (yield from execute(admin_topics.create_topics([alone], validate_only=True)))[topic.name]
        if isinstance(outcome, KafkaError) and outcome.code == error_codes.INVALID_CONFIG:
            refused[key] = outcome
    if not refused:
        raise _not_created(topic.name, refusal)
    kept = {key: value for key, value in (topic.configs or {}).items() if key not in refused}
    outcome = (yield from execute(admin_topics.create_topics([topic._replace(configs=kept)])))[topic.name]
    if isinstance(outcome, ClientError):
        raise _not_created(topic.name, outcome)
    return [
        f"the target refuses the setting {key} of the topic {topic.name!r}, which is created without it: {error}"
        for key, error in refused.items()
    ]


def _wait_for_leaders(network: NetworkClient, names: Iterable[str]) -> Steps[None]:
    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        yield from refresh(network)
        cluster = network.metadata.cluster
        leaderless = [
            name
            for name in names
            if not cluster.partitions_for_topic(name)
            or len(cluster.available_partitions_for_topic(name)) < len(cluster.partitions_for_topic(name))
        ]
        if not leaderless:
            return
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"the topic {leaderless[0]!r} of the target has partitions without a leader")
        yield Pause(network.config.retry_backoff_ms)


def read_configs(names: Iterable[str]) -> Steps[dict[str, dict[str, str]]]:
    """Return the settings of topics that a replay uses; a topic that may not be described has none."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found = {}
    for resource, outcome in (yield from execute(describe_configs(resources, names=_READ_CONFIGS))).items():
        if not isinstance(outcome, KafkaError):
            found[resource.name] = {one.name: one.value for one in value_of(outcome).values() if one.value is not None}
    return found


def init_producer_id(network: NetworkClient) -> Steps[tuple[int, int]]:
    """Return a new producer id and its epoch. Raises KafkaError, KafkaTimeoutError."""
    request = API_KEYS[INIT_PRODUCER_ID].request.new(transactional_id=None, transaction_timeout_ms=60_000)
    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        answer = yield from ask(network, INIT_PRODUCER_ID, request)
        if not answer.error_code:
            return answer.producer_id, answer.producer_epoch
        if answer.error_code not in error_codes.RETRIABLE:
            raise KafkaError(answer.error_code, "a producer id of the target")
        if network.timer.clock_ms >= deadline_ms:
            code = error_codes.NAMES[answer.error_code]
            raise KafkaTimeoutError(f"the target has given no producer id in time: InitProducerId was answered with {code}")
        yield Pause(network.config.retry_backoff_ms)


# The largest number of records that were sent since the progress was saved; sequences are compared modulo 2**31.
MOST_UNSAVED = 2**30


def find_sent(network: NetworkClient, where: TopicPartition, progress: PartitionProgress, end_offset: int) -> Steps[Found]:
    """Return what the target has above the saved progress, below `end_offset`. Raises ReplayError, KafkaError."""
    offset = progress.target_offset
    if end_offset < offset:
        raise truncated(where, end_offset, offset)
    found: list[FoundBatch] = []
    try:
        while offset < end_offset:
            fetched = yield from fetch_some(network, *where, offset)
            next_offset = fetched.skip_missing(offset)
            for batch in batches_in(fetched.records, offset):
                header = batch.header
                next_offset = header.last_offset + 1
                if isinstance(header, RecordBatch) and header.producer_id == progress.producer_id and not header.is_control:
                    count = header.last_offset_delta + 1
                    found.append(FoundBatch(header.base_sequence, count, header.base_offset))
            if next_offset == offset:
                raise truncated(where, offset, end_offset)
            offset = next_offset
    except OffsetOutOfRangeError:
        records = yield from _count_by_sequence(where, progress)
        return Found([], records)
    return Found(found)


def _count_by_sequence(where: TopicPartition, progress: PartitionProgress) -> Steps[int]:
    topic, partition = where
    outcome = (yield from execute(describe_producers([where])))[where]
    if isinstance(outcome, KafkaError):
        raise KafkaError(outcome.code, f"the producers of {topic}-{partition}")
    for producer in value_of(outcome):
        if producer.producer_id == progress.producer_id:
            count = int(producer.last_sequence + 1 - progress.records) % SEQUENCES
            if count <= MOST_UNSAVED:
                return count
            raise ReplayError(
                f"{topic}-{partition}: the target has fewer records of the replay (last sequence {producer.last_sequence}) "
                f"than the {progress.records} of the progress; {RESTART}"
            )
    raise ReplayError(
        f"{topic}-{partition}: the target has deleted records from offset {progress.target_offset} on, and it is not known "
        f"whether records of the replay were among them; {RESTART}"
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
            yield from check_alone(self._store, list(new), producer[0])
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
