"""A simulated administrator: topics come, grow, change and go, records are deleted; and it audits what the cluster says.

    does                     and afterwards
    -----------------------  -------------------------------------------------------------------------------------------
    CreateTopics             the topic stands, with its id, partitions and configs, after every restart
    CreatePartitions         the partitions stand
    IncrementalAlterConfigs  the config has the value
    DeleteTopics             the topic is gone for good; a new one of the name has another id
    DeleteRecords            the log does not begin below, as long as the node runs

What got no answer is in doubt and looked up later, as a person would do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

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
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import SimulationFailure, TopicFacts
from kcli.simulator.producer import RETRIABLE
from kcli.simulator.world import PAUSE_MS, World

MAX_TOPICS = 4
TOPIC_RESOURCE = 2
SET_OPERATION = 0
TOPIC_IDS_VERSION = 10
DELETE_BY_ID_VERSION = 6
# A name is used again when no request that was sent to the old topic can be under way any more.
REUSE_AFTER_MS = 20_000
AUDIT_PATIENCE = 40

ALTERABLE = {
    "compression.type": ("producer", "gzip", "lz4", "zstd", "snappy", "uncompressed"),
    "internal.segment.bytes": ("2000", "5000", "100000"),
    "index.interval.bytes": ("0", "100", "4096"),
    "segment.ms": ("2000", "60000", "604800000"),
    "max.message.bytes": ("1048588", "2000000"),
}


class Administrator:
    """The one administrator of a simulation."""

    name = "admin"
    topic_prefix = "topic"

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._client = world.client(self.name)
        self._topic_count = 0
        self._free_names: list[tuple[int, str]] = []

    def run(self) -> Task[None]:
        """Administer until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.greet(self._client)
        audited = 0
        while not world.is_ending:
            if audited != world.machine.start_count:
                audited = world.machine.start_count
                yield from self.audit()
            topics = world.ledger.live_topics()
            die = rng.random()
            if len(topics) < 2 or (die < 0.15 and len(topics) < MAX_TOPICS):
                yield from self._create()
            elif die < 0.3:
                yield from self._delete_records(rng.choice(topics))
            elif die < 0.5:
                yield from self._alter(rng.choice(topics))
            elif die < 0.6:
                yield from self._grow(rng.choice(topics))
            elif die < 0.65:
                yield from self._delete(rng.choice(topics))
            elif die < 0.8:
                yield from self.audit()
            yield rng.randrange(700) * world.pace

    # ----------------------------------------------------------------------------------------------------------- topics

    def _name(self) -> str:
        if self._free_names and self._free_names[0][0] < self._world.scheduler.now_ms:
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
        entries = [world.struct(CREATE_TOPICS, "CreatableTopicConfig", name=key, value=value) for key, value in configs.items()]
        wanted = world.struct(
            CREATE_TOPICS,
            "CreatableTopic",
            name=name,
            num_partitions=rng.choice((1, 1, 2, 4)),
            replication_factor=1,
            configs=entries,
        )
        version = world.version(rng, CREATE_TOPICS)
        world.trace.add(self.name, f"create {name} {wanted.num_partitions} {configs}")
        world.ledger.in_doubt[name] = facts, configs
        response = yield self._client.send(
            CREATE_TOPICS, version, world.request(CREATE_TOPICS, topics=[wanted], timeout_ms=1000)
        )
        if response is not None:
            code = response.topics[0].error_code
            # A broker that is about to stop takes no more replicas.
            if code and code not in (*RETRIABLE, error_codes.INVALID_REPLICATION_FACTOR):
                raise SimulationFailure(f"topic {name} was refused with error {code}: {response.topics[0].error_message}")
        yield from self.audit()

    def _delete(self, topic: TopicLedger) -> Task[None]:
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
        topic.deletion_asked = True
        world.trace.add(self.name, f"delete {topic.facts.name}")
        refusals = 0
        while refusals < AUDIT_PATIENCE:
            response = yield self._client.send(DELETE_TOPICS, version, request)
            if response is not None:
                code = response.responses[0].error_code
                if code in (error_codes.NONE, error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID):
                    break
                if code not in RETRIABLE:
                    raise SimulationFailure(f"deleting {topic.facts.name} was answered with error {code}")
                refusals += 1
            if world.is_ending:
                return
            yield PAUSE_MS
        else:
            raise SimulationFailure(f"topic {topic.facts.name} cannot be deleted")
        topic.is_deleted = True
        self._free_names.append((world.scheduler.now_ms + REUSE_AFTER_MS, topic.facts.name))

    def _grow(self, topic: TopicLedger) -> Task[None]:
        world = self._world
        count = len(topic.partitions) + 1
        if count > 6:
            return
        wanted = world.struct(CREATE_PARTITIONS, "CreatePartitionsTopic", name=topic.facts.name, count=count, assignments=None)
        request = world.request(CREATE_PARTITIONS, topics=[wanted], timeout_ms=1000, validate_only=False)
        response = yield self._client.send(CREATE_PARTITIONS, world.version(self._rng, CREATE_PARTITIONS), request)
        world.trace.add(self.name, f"grow {topic.facts.name} to {count}: {response and response.results[0].error_code}")
        if response is not None and response.results[0].error_code == error_codes.NONE:
            topic.grow(count)

    # -------------------------------------------------------------------------------------------------- records, configs

    def _delete_records(self, topic: TopicLedger) -> Task[None]:
        world, rng = self._world, self._rng
        if DELETE_RECORDS not in world.versions:
            return
        partition = rng.choice(topic.partitions)
        offset = rng.randrange(partition.acknowledged_end + 1)
        if not topic.facts.is_only_compacted:
            partition.deleted_end = max(partition.deleted_end, offset)
        life = world.machine.start_count
        wanted = world.struct(DELETE_RECORDS, "DeleteRecordsPartition", partition_index=partition.index, offset=offset)
        asked = world.struct(DELETE_RECORDS, "DeleteRecordsTopic", name=topic.facts.name, partitions=[wanted])
        request = world.request(DELETE_RECORDS, topics=[asked], timeout_ms=1000)
        world.trace.add(self.name, f"delete records of {partition} below {offset}")
        response = yield self._client.send(DELETE_RECORDS, world.version(rng, DELETE_RECORDS), request)
        if response is None or world.machine.start_count != life:
            return
        answer = response.topics[0].partitions[0]
        if answer.error_code == error_codes.NONE:
            if topic.facts.is_only_compacted:
                partition.fail(f"DeleteRecords below {offset} was accepted, but its topic is only compacted")
            if answer.low_watermark < offset:
                partition.fail(f"DeleteRecords below {offset} says that it begins at {answer.low_watermark}")
            partition.low_watermark = max(partition.low_watermark, answer.low_watermark)
        elif answer.error_code == error_codes.POLICY_VIOLATION and topic.facts.is_compacted:
            return
        elif answer.error_code not in (*RETRIABLE, error_codes.OFFSET_OUT_OF_RANGE):
            partition.fail(f"DeleteRecords was answered with error {answer.error_code}")

    def _alter(self, topic: TopicLedger) -> Task[None]:
        rng = self._rng
        name = rng.choice(sorted(ALTERABLE))
        yield from self._set(topic, name, rng.choice(ALTERABLE[name]))

    def _set(self, topic: TopicLedger, name: str, value: str) -> Task[None]:
        world, rng = self._world, self._rng
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
        topic.configs.pop(name, None)
        world.trace.add(self.name, f"alter {topic.facts.name}: {name}={value}")
        version = world.version(rng, INCREMENTAL_ALTER_CONFIGS)
        response = yield self._client.send(INCREMENTAL_ALTER_CONFIGS, version, request)
        if response is None or response.responses[0].error_code in RETRIABLE:
            return
        if response.responses[0].error_code:
            raise SimulationFailure(f"{name}={value} was refused: {response.responses[0].error_message}")
        topic.configs[name] = value

    # ------------------------------------------------------------------------------------------------------------ audits

    def audit(self) -> Task[None]:
        """Hold what the cluster says of its topics against the ledger. Raises SimulationFailure.

        A broker that has just started may lag behind its controller: it is asked again for a while.
        """
        problem = ""
        for _ in range(AUDIT_PATIENCE):
            version = self._world.versions[METADATA][1]
            request = self._world.request(METADATA, topics=None, allow_auto_topic_creation=False)
            response = yield self._client.send(METADATA, version, request)
            problem = "nobody answers" if response is None else self._compare(response)
            if not problem:
                yield from self._audit_configs()
                return
            yield PAUSE_MS
            if self._world.is_ending:
                return
        if self._world.machine.is_up and problem != "nobody answers":
            raise SimulationFailure(problem)

    def _compare(self, response: Message) -> str:
        """What is wrong with a Metadata response, or nothing; topics in doubt that are there are taken in."""
        ledger = self._world.ledger
        seen = {bytes(topic.topic_id): topic for topic in response.topics}
        for topic_id, found in seen.items():
            if topic_id not in ledger.topics and found.name in ledger.in_doubt:
                facts, configs = ledger.in_doubt.pop(found.name)
                topic = TopicLedger(topic_id, facts, len(found.partitions))
                topic.configs.update(configs)
                ledger.topics[topic_id] = topic
        for topic_id, topic in ledger.topics.items():
            if topic_id not in seen:
                if not topic.deletion_asked:
                    return f"topic {topic.facts.name} is gone"
            elif topic.is_deleted:
                return f"topic {topic.facts.name} is back"
            elif len(seen[topic_id].partitions) < len(topic.partitions):
                return f"topic {topic.facts.name} has {len(seen[topic_id].partitions)} partitions, not {len(topic.partitions)}"
        unknown = [found.name for topic_id, found in seen.items() if topic_id not in ledger.topics]
        return f"nobody made the topics {unknown}" if unknown else ""

    def _audit_configs(self) -> Task[None]:
        world = self._world
        topics = [topic for topic in world.ledger.live_topics() if topic.configs]
        if not topics or DESCRIBE_CONFIGS not in world.versions:
            return
        topic = self._rng.choice(topics)
        resource = world.struct(
            DESCRIBE_CONFIGS,
            "DescribeConfigsResource",
            resource_type=TOPIC_RESOURCE,
            resource_name=topic.facts.name,
            configuration_keys=None,
        )
        request = world.request(DESCRIBE_CONFIGS, resources=[resource])
        asked = dict(topic.configs)
        response = yield self._client.send(DESCRIBE_CONFIGS, world.version(self._rng, DESCRIBE_CONFIGS), request)
        if response is None or response.results[0].error_code in RETRIABLE:
            return
        found = {config.name: config.value for config in response.results[0].configs}
        for name, value in topic.configs.items():
            # Another administrator may have set it meanwhile. Kafka keeps internal configs to itself.
            if asked.get(name) == value and not name.startswith("internal.") and found.get(name) != value:
                raise SimulationFailure(f"{topic.facts.name} has {name}={found.get(name)}, not {value}")
