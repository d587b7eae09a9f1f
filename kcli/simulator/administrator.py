"""A simulated administrator: it creates, extends, alters and deletes topics, deletes records, and audits the cluster.

    request                  guarantee that is checked
    -----------------------  -------------------------------------------------------------------------------------------
    CreateTopics             the topic exists with its id, partitions and configs, also after every restart
    CreatePartitions         the partitions exist
    IncrementalAlterConfigs  the config has the value
    DeleteTopics             the topic does not come back; a new topic of the same name has another id
    DeleteRecords            the log does not start below the offset, as long as the node runs

After a request without a response, the administrator checks later whether it was carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
)
from kcli.simulator.client import Task
from kcli.simulator.ledger import TopicId, TopicLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure, TopicFacts
from kcli.simulator.producer import RETRIABLE
from kcli.simulator.world import PAUSE_MS, World

MAX_TOPICS = 4
TOPIC_RESOURCE = 2
SET_OPERATION = 0
TOPIC_IDS_VERSION = 10
DELETE_BY_ID_VERSION = 6
# A topic name is used again when no request to the old topic can be in flight any more.
REUSE_AFTER_MS = 20_000
MAX_ATTEMPTS = 40
NO_RESPONSE = "no response"

ALTERABLE = {
    "compression.type": ("producer", "gzip", "lz4", "zstd", "snappy", "uncompressed"),
    "internal.segment.bytes": ("2000", "5000", "100000"),
    "index.interval.bytes": ("0", "100", "4096"),
    "segment.ms": ("2000", "60000", "604800000"),
    "max.message.bytes": ("1048588", "2000000"),
}


class Answer(NamedTuple):
    """The answer to a request about one thing."""

    code: int
    message: str | None = None
    low_watermark: int = -1  # of DeleteRecords


class FoundTopic(NamedTuple):
    """A topic that the cluster has."""

    topic_id: TopicId
    name: str
    partition_count: int


class Administrator:
    """The administrator of a simulation."""

    name = "admin"
    topic_prefix = "topic"

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._client = world.client(self.name)
        self._topic_count = 0
        self._free_names: list[tuple[int, str]] = []

    def run(self) -> Task[None]:
        """Send requests until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from self._begin()
        audited_start = 0
        while not world.is_ending:
            if audited_start != world.start_count:
                audited_start = world.start_count
                yield from self.audit()
            topics = world.ledger.live_topics()
            choice = rng.random()
            if len(topics) < 2 or (choice < 0.15 and len(topics) < MAX_TOPICS):
                yield from self._create()
            elif choice < 0.3:
                yield from self._delete_records(rng.choice(topics))
            elif choice < 0.5:
                yield from self._alter(rng.choice(topics))
            elif choice < 0.6:
                yield from self._create_partition(rng.choice(topics))
            elif choice < 0.65:
                yield from self._delete(rng.choice(topics))
            elif choice < 0.8:
                yield from self.audit()
            yield rng.randrange(700) * world.pause_factor

        self._ended()

    def _begin(self) -> Task[None]:
        yield from self._world.negotiate_versions(self._client)

    def _ended(self) -> None:
        """Do nothing: the connections of a raw client stay."""

    # ----------------------------------------------------------------------------------------------------------- topics

    def _name(self) -> str:
        if self._free_names and self._free_names[0][0] < self._world.virtual_time.now_ms:
            return self._free_names.pop(0)[1]
        self._topic_count += 1
        return f"{self.topic_prefix}{self._topic_count}"

    def _configs(self) -> dict[str, str]:
        rng = self._rng
        choices = {
            "internal.segment.bytes": (None, "2000", "3000", "20000"),
            "flush.messages": (None, "1"),
            "retention.ms": (None, None, None, "5000"),
            "retention.bytes": (None, None, None, "4000"),
            "message.timestamp.type": (None, None, "LogAppendTime"),
            "compression.type": (None, None, "lz4", "uncompressed"),
            "index.interval.bytes": (None, "0", "200"),
            "file.delete.delay.ms": (None, "0", "500"),
        }
        chosen = {name: rng.choice(values) for name, values in choices.items()}
        return {name: value for name, value in chosen.items() if value is not None}

    def _facts(self, name: str, configs: Mapping[str, str]) -> TopicFacts:
        return TopicFacts(
            name,
            configs.get("flush.messages") == "1",
            "retention.ms" in configs or "retention.bytes" in configs,
            "message.timestamp.type" in configs,
        )

    def _create(self) -> Task[None]:
        world, rng = self._world, self._rng
        name, configs = self._name(), self._configs()
        facts = self._facts(name, configs)
        count = rng.choice((1, 1, 2, 4))
        world.trace.add(self.name, f"create {name} {count} {configs}")
        world.ledger.in_doubt[name] = facts, configs
        answer = yield from self._ask_to_create(name, count, configs)
        # A broker that is shutting down gets no new replicas.
        if answer is not None and answer.code not in (error_codes.NONE, *RETRIABLE, error_codes.INVALID_REPLICATION_FACTOR):
            raise SimulationFailure(f"topic {name} was refused with error {answer.code}: {answer.message}")
        yield from self.audit()

    def _ask_to_create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Task[Answer | None]:
        world = self._world
        entries = [world.struct(CREATE_TOPICS, "CreatableTopicConfig", name=key, value=value) for key, value in configs.items()]
        wanted = world.struct(
            CREATE_TOPICS,
            "CreatableTopic",
            name=name,
            num_partitions=partition_count,
            replication_factor=1,
            configs=entries,
        )
        request = world.request(CREATE_TOPICS, topics=[wanted], timeout_ms=1000)
        response = yield self._client.send(CREATE_TOPICS, world.version(self._rng, CREATE_TOPICS), request)
        return None if response is None else Answer(response.topics[0].error_code, response.topics[0].error_message)

    def _delete(self, topic: TopicLedger) -> Task[None]:
        world = self._world
        topic.deletion_requested = True
        world.trace.add(self.name, f"delete {topic.facts.name}")
        refusals = 0
        ask = self._asking_to_delete(topic)
        while refusals < MAX_ATTEMPTS:
            answer = yield from ask()
            if answer is not None:
                if answer.code in (error_codes.NONE, error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID):
                    break
                if answer.code not in RETRIABLE:
                    raise SimulationFailure(f"deleting {topic.facts.name} returned error {answer.code}")
                refusals += 1
            if world.is_ending:
                return
            yield PAUSE_MS
        else:
            raise SimulationFailure(f"topic {topic.facts.name} cannot be deleted")
        topic.is_deleted = True
        self._free_names.append((world.virtual_time.now_ms + REUSE_AFTER_MS, topic.facts.name))

    def _asking_to_delete(self, topic: TopicLedger) -> Callable[[], Task[Answer | None]]:
        """Return what sends one and the same request, by name or by id."""
        world = self._world
        version = world.version(self._rng, DELETE_TOPICS)
        if version >= DELETE_BY_ID_VERSION:
            by_name = self._rng.random() < 0.5
            state = world.struct(
                DELETE_TOPICS,
                "DeleteTopicState",
                name=topic.facts.name if by_name else None,
                topic_id=bytes(16) if by_name else topic.topic_id,
            )
            request = world.request(DELETE_TOPICS, topics=[state], timeout_ms=1000)
        else:
            request = world.request(DELETE_TOPICS, topic_names=[topic.facts.name], timeout_ms=1000)

        def ask() -> Task[Answer | None]:
            response = yield self._client.send(DELETE_TOPICS, version, request)
            return None if response is None else Answer(response.responses[0].error_code)

        return ask

    def _create_partition(self, topic: TopicLedger) -> Task[None]:
        world = self._world
        count = len(topic.partitions) + 1
        if count > 6:
            return
        answer = yield from self._ask_to_grow(topic, count)
        world.trace.add(self.name, f"grow {topic.facts.name} to {count}: {answer and answer.code}")
        if answer is not None and answer.code == error_codes.NONE:
            topic.grow(count)

    def _ask_to_grow(self, topic: TopicLedger, count: int) -> Task[Answer | None]:
        world = self._world
        wanted = world.struct(CREATE_PARTITIONS, "CreatePartitionsTopic", name=topic.facts.name, count=count, assignments=None)
        request = world.request(CREATE_PARTITIONS, topics=[wanted], timeout_ms=1000, validate_only=False)
        response = yield self._client.send(CREATE_PARTITIONS, world.version(self._rng, CREATE_PARTITIONS), request)
        return None if response is None else Answer(response.results[0].error_code)

    # -------------------------------------------------------------------------------------------------- records, configs

    def _delete_records(self, topic: TopicLedger) -> Task[None]:
        world, rng = self._world, self._rng
        if DELETE_RECORDS not in world.versions:
            return
        partition = rng.choice(topic.partitions)
        offset = rng.randrange(partition.acknowledged_end + 1)
        if not topic.facts.is_only_compacted:
            partition.deleted_end = max(partition.deleted_end, offset)
        start = world.start_count
        world.trace.add(self.name, f"delete records of {partition} below {offset}")
        answer = yield from self._ask_to_delete_records(topic, partition, offset)
        if answer is None or world.start_count != start:
            return
        if answer.code == error_codes.NONE:
            if topic.facts.is_only_compacted:
                partition.fail(f"DeleteRecords below {offset} was accepted, but its topic is only compacted")
            if answer.low_watermark < offset:
                partition.fail(f"DeleteRecords below {offset} returned the log start offset {answer.low_watermark}")
            partition.low_watermark = max(partition.low_watermark, answer.low_watermark)
        elif answer.code == error_codes.POLICY_VIOLATION and topic.facts.is_compacted:
            return
        elif answer.code not in (*RETRIABLE, error_codes.OFFSET_OUT_OF_RANGE):
            partition.fail(f"DeleteRecords returned error {answer.code}")

    def _ask_to_delete_records(self, topic: TopicLedger, partition: PartitionLedger, offset: int) -> Task[Answer | None]:
        world = self._world
        wanted = world.struct(DELETE_RECORDS, "DeleteRecordsPartition", partition_index=partition.index, offset=offset)
        of_topic = world.struct(DELETE_RECORDS, "DeleteRecordsTopic", name=topic.facts.name, partitions=[wanted])
        request = world.request(DELETE_RECORDS, topics=[of_topic], timeout_ms=1000)
        response = yield self._client.send(DELETE_RECORDS, world.version(self._rng, DELETE_RECORDS), request)
        if response is None:
            return None
        found = response.topics[0].partitions[0]
        return Answer(found.error_code, low_watermark=found.low_watermark)

    def _alter(self, topic: TopicLedger) -> Task[None]:
        rng = self._rng
        name = rng.choice(sorted(ALTERABLE))
        yield from self._set(topic, name, rng.choice(ALTERABLE[name]))

    def _set(self, topic: TopicLedger, name: str, value: str) -> Task[None]:
        topic.configs.pop(name, None)
        is_alone = not topic.unanswered_alterations[name]
        topic.alterations[name] += 1
        topic.unanswered_alterations[name] += 1
        number = topic.alterations[name]
        self._world.trace.add(self.name, f"alter {topic.facts.name}: {name}={value}")
        answer = yield from self._ask_to_alter(topic, name, value)
        if answer is None:
            return
        topic.unanswered_alterations[name] -= 1
        if answer.code in RETRIABLE:
            return
        if answer.code and not topic.deletion_requested:
            raise SimulationFailure(f"{name}={value} was refused: {answer.message}")
        # Which of two alterations under way at a time is applied last, is not known.
        if is_alone and number == topic.alterations[name]:
            topic.configs[name] = value

    def _ask_to_alter(self, topic: TopicLedger, name: str, value: str) -> Task[Answer | None]:
        world = self._world
        entry = world.struct(
            INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=name, config_operation=SET_OPERATION, value=value
        )
        resource = world.struct(
            INCREMENTAL_ALTER_CONFIGS,
            "AlterConfigsResource",
            resource_type=TOPIC_RESOURCE,
            resource_name=topic.facts.name,
            configs=[entry],
        )
        request = world.request(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
        version = world.version(self._rng, INCREMENTAL_ALTER_CONFIGS)
        response = yield self._client.send(INCREMENTAL_ALTER_CONFIGS, version, request)
        return None if response is None else Answer(response.responses[0].error_code, response.responses[0].error_message)

    # ------------------------------------------------------------------------------------------------------------ audits

    def audit(self) -> Task[None]:
        """Compare the topics of the cluster with the ledger. Raises SimulationFailure.

        A broker that has just started, or whose disk is slow, may lag behind its controller, so the requests are repeated.
        """
        problem = ""
        for _ in range(MAX_ATTEMPTS):
            before = {key: (topic.is_deleted, len(topic.partitions)) for key, topic in self._world.ledger.topics.items()}
            found = yield from self._ask_for_topics()
            problem = NO_RESPONSE if found is None else self._compare(found, before)
            problem = problem or (yield from self._audit_configs())
            if not problem:
                return
            yield PAUSE_MS
            if self._world.is_ending:
                return
        if all(machine.is_up for machine in self._world.machines) and problem != NO_RESPONSE:
            raise SimulationFailure(problem)

    def _ask_for_topics(self) -> Task[list[FoundTopic] | None]:
        version = self._world.versions[METADATA][1]
        request = self._world.request(METADATA, topics=None, allow_auto_topic_creation=False)
        response = yield self._client.send(METADATA, version, request)
        if response is None:
            return None
        return [FoundTopic(bytes(topic.topic_id), topic.name, len(topic.partitions)) for topic in response.topics]

    def _compare(self, topics: list[FoundTopic], before: Mapping[TopicId, tuple[bool, int]]) -> str:
        """Return what is wrong with the topics of the cluster, or ""; topics in doubt that exist are added to the ledger.

        `before` has what was known at the time of the request: whether a topic was deleted, and its number of partitions.
        """
        ledger = self._world.ledger
        seen = {topic.topic_id: topic for topic in topics}
        for topic_id, found in seen.items():
            if topic_id not in ledger.topics and found.name in ledger.in_doubt:
                facts, configs = ledger.in_doubt[found.name]
                if found.name not in ledger.may_be_created_again:
                    del ledger.in_doubt[found.name]
                topic = TopicLedger(topic_id, facts, found.partition_count)
                topic.configs.update(configs)
                ledger.topics[topic_id] = topic
        for topic_id, (was_deleted, count) in before.items():
            topic = ledger.topics[topic_id]
            if topic_id not in seen:
                if not topic.deletion_requested:
                    return f"topic {topic.facts.name} is missing"
            elif was_deleted:
                return f"topic {topic.facts.name} exists again after its deletion"
            elif seen[topic_id].partition_count < count:
                return f"topic {topic.facts.name} has {seen[topic_id].partition_count} partitions, not {count}"
        unknown = [found.name for topic_id, found in seen.items() if topic_id not in ledger.topics]
        return f"no client created the topics {unknown}" if unknown else ""

    def _audit_configs(self) -> Task[str]:
        """Return what is wrong with the configs of a topic, or ""."""
        world = self._world
        topics = [topic for topic in world.ledger.live_topics() if topic.configs]
        if not topics or DESCRIBE_CONFIGS not in world.versions:
            return ""
        topic = self._rng.choice(topics)
        before = dict(topic.configs)
        found = yield from self._ask_for_configs(topic)
        if found is None:
            return ""
        for name, value in topic.configs.items():
            # Another administrator may have changed a config while the request was in flight. Kafka hides internal configs.
            if before.get(name) == value and not name.startswith("internal.") and found.get(name) != value:
                return f"{topic.facts.name} has {name}={found.get(name)}, not {value}"
        return ""

    def _ask_for_configs(self, topic: TopicLedger) -> Task[dict[str, str | None] | None]:
        world = self._world
        resource = world.struct(
            DESCRIBE_CONFIGS,
            "DescribeConfigsResource",
            resource_type=TOPIC_RESOURCE,
            resource_name=topic.facts.name,
            configuration_keys=None,
        )
        request = world.request(DESCRIBE_CONFIGS, resources=[resource])
        response = yield self._client.send(DESCRIBE_CONFIGS, world.version(self._rng, DESCRIBE_CONFIGS), request)
        if response is None or response.results[0].error_code in RETRIABLE:
            return None
        return {config.name: config.value for config in response.results[0].configs}
