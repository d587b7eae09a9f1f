"""The target cluster before the first record is sent: its topics, their settings, a producer id.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kcli.client.admin import partitions as admin_partitions
from kcli.client.admin import topics as admin_topics
from kcli.client.admin.configs import ConfigResource, ResourceType, describe_configs
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import IsolationLevel, OffsetSpec
from kcli.client.admin.topics import NewTopic
from kcli.client.client_config import FIRST_CONTACT_MS
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.inspect.quantities import format_count
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, INIT_PRODUCER_ID, METADATA
from kcli.replay.source import SourceTopic, TopicPartition
from kcli.replay.steps import Pause, ReplayError, Steps, ask, execute

MOST_NAMES = 3
MAX_MESSAGE_BYTES = "max.message.bytes"
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


def connect(network: NetworkClient, what: str) -> Steps[None]:
    """Ask for metadata for the first time; `what` names the cluster. Raises ReplayError if it cannot be reached in time."""
    limit_ms = min(FIRST_CONTACT_MS, network.config.default_api_timeout_ms)
    try:
        yield from refresh(network, limit_ms)
    except KafkaTimeoutError as error:
        servers = ",".join(network.config.bootstrap_servers)
        reason = error if isinstance(error, NoBrokersError) else network.failure_reason()
        raise ReplayError(f"the {what} {servers} cannot be reached: {reason}") from None


class NoBrokersError(KafkaTimeoutError):
    """Metadata that had no broker in any answer, such as those of a broker that is starting."""


def refresh(network: NetworkClient, limit_ms: int | None = None) -> Steps[None]:
    """Ask for the metadata of the topics that are wanted. Raises KafkaTimeoutError."""
    limit_ms = network.config.default_api_timeout_ms if limit_ms is None else limit_ms
    deadline_ms = network.timer.clock_ms + limit_ms
    while True:
        answer = yield from ask(network, METADATA, network.metadata.request, limit_ms=limit_ms)
        if answer.brokers:
            network.metadata.update(answer, network.timer.clock_ms)
            return
        if network.timer.clock_ms >= deadline_ms:
            code = f", but {error_codes.NAMES.get(answer.error_code, answer.error_code)}" if answer.error_code else ""
            raise NoBrokersError(f"the answers to Metadata had no brokers for {limit_ms} ms{code}")
        yield Pause(network.config.retry_backoff_ms)


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


def list_offsets(
    partitions: Iterable[TopicPartition],
    spec: OffsetSpec = OffsetSpec.LATEST,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Steps[dict[TopicPartition, int]]:
    """Return the first offsets or the ends of partitions. Raises KafkaError, KafkaTimeoutError."""
    wanted = dict.fromkeys(partitions, spec)
    found = {}
    for where, outcome in (yield from execute(admin_partitions.list_offsets(wanted, isolation_level=isolation))).items():
        if isinstance(outcome, KafkaError):
            raise KafkaError(outcome.code, f"{where[0]}-{where[1]}")
        found[where] = value_of(outcome).offset
    return found


def topic_id(network: NetworkClient, name: str) -> Uuid:
    """Return the id of a topic, zero if it is not known."""
    return Uuid(network.metadata.topic_ids.get(name, ZERO_UUID))
