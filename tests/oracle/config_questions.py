"""What a broker is asked about configurations, and how its answers are put down: a list of steps, the same for every broker.

    step                                   asks
    -------------------------------------  -------------------------------------------------------------------
    create(topic, {name: value})           CreateTopics, one partition
    change(type, name, (key, op, value)*)  IncrementalAlterConfigs of one resource
    replace(type, name, {key: value})      AlterConfigs of one resource
    describe(type, name, *keys)            DescribeConfigs with synonyms; no keys: all of them
    list_resources(*types)                 ListConfigResources

An answer is plain JSON, without the sentences: those are each broker's own. `ask_all` gives one answer a step. Python of its
own for the wire is not needed: kcli.protocol's messages are judged elsewhere.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any

from kcli.protocol.apis import (
    ALTER_CONFIGS,
    API_KEYS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from kcli.protocol.compiler import MessageType
from kcli.protocol.framing import SIZE_BYTES, encode_request, read_response_header
from kcli.protocol.message import Message

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SECONDS = 60
Step = dict[str, Any]
# What server.properties states beside what a broker needs.
STATIC_SETTINGS = (
    "log.retention.hours=100",
    "log.retention.minutes=7000",
    "log.roll.hours=200",
    "log.flush.scheduler.interval.ms=500000",
    "num.partitions=3",
    "compression.type=zstd",
    "message.max.bytes=2000000",
    "max.connections.per.ip=100",
    "listener.name.plaintext.max.connections=50",
    "ssl.keystore.password=hunter2",
    "ssl.truststore.type=PEM",
    "log.cleaner.min.cleanable.ratio=0.25",
    "metric.reporters=",
    "kcli.unknown.key=x",
    "unstable.api.versions.enable=false",
    "super.users=User:a",
    "broker.rack=r1",
)


def create(topic: str, configs: dict[str, str | None]) -> Step:
    """A step that makes a topic."""
    return {"ask": "create", "topic": topic, "configs": configs}


def change(resource_type: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False) -> Step:
    """A step that changes single configurations of a resource."""
    step: Step = {"ask": "change", "type": resource_type, "name": name, "operations": [list(one) for one in operations]}
    return {**step, "validate_only": True} if validate_only else step


def replace(resource_type: int, name: str, configs: dict[str, str | None]) -> Step:
    """A step that replaces all configurations of a resource."""
    return {"ask": "replace", "type": resource_type, "name": name, "configs": configs}


def describe(resource_type: int, name: str, *keys: str) -> Step:
    """A step that asks what a resource's configurations are."""
    return {"ask": "describe", "type": resource_type, "name": name, "keys": list(keys) or None}


def list_resources(*types: int) -> Step:
    """A step that asks which resources have configurations."""
    return {"ask": "list", "types": list(types)}


def ask_all(address: str, steps: list[Step], settle_seconds: float = 0.1) -> list[Any]:
    """A broker's answers, one a step; `settle_seconds` after a change that the broker knows, its configuration is settled."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        asker = _Asker(connection, settle_seconds)
        return [asker.answer(step) for step in steps]


class _Asker:
    def __init__(self, connection: socket.socket, settle_seconds: float) -> None:
        self._connection = connection
        self._settle_seconds = settle_seconds
        self._correlation_id = 0
        self._marks = 0

    def answer(self, step: Step) -> Any:
        answer: Any = getattr(self, f"_{step['ask']}")(step)
        if step["ask"] in ("create", "change", "replace"):
            self._wait_until_published()
        return answer

    def _exchange(self, key: int, version: int, request: Message) -> Message:
        api = API_KEYS[key]
        self._correlation_id += 1
        self._connection.sendall(encode_request(self._correlation_id, api, version, "config-questions", request))
        frame = self._read(int.from_bytes(self._read(SIZE_BYTES), "big"))
        correlation_id, position = read_response_header(frame, api, version)
        assert correlation_id == self._correlation_id
        return api.response.decode(frame, version, position)[0]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)

    def _create(self, step: Step) -> Any:
        message = API_KEYS[CREATE_TOPICS].request
        configs = [message.classes["CreatableTopicConfig"](name=name, value=value) for name, value in step["configs"].items()]
        topic = message.classes["CreatableTopic"](name=step["topic"], num_partitions=1, replication_factor=1, configs=configs)
        response = self._exchange(CREATE_TOPICS, 7, message.new(topics=[topic], timeout_ms=10_000))
        (result,) = response.topics
        shown = [
            [item.name, item.value, item.config_source, item.read_only, item.is_sensitive] for item in result.configs or ()
        ]
        return {"error": result.error_code, "configs": sorted(shown)}

    def _change(self, step: Step) -> Any:
        message = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
        configs = [
            message.classes["AlterableConfig"](name=name, config_operation=operation, value=value)
            for name, operation, value in step["operations"]
        ]
        resource = message.classes["AlterConfigsResource"](
            resource_type=step["type"], resource_name=step["name"], configs=configs
        )
        request = message.new(resources=[resource], validate_only=step.get("validate_only", False))
        response = self._exchange(INCREMENTAL_ALTER_CONFIGS, 1, request)
        return {"errors": [item.error_code for item in response.responses]}

    def _replace(self, step: Step) -> Any:
        message = API_KEYS[ALTER_CONFIGS].request
        configs = [message.classes["AlterableConfig"](name=name, value=value) for name, value in step["configs"].items()]
        resource = message.classes["AlterConfigsResource"](
            resource_type=step["type"], resource_name=step["name"], configs=configs
        )
        response = self._exchange(ALTER_CONFIGS, 2, message.new(resources=[resource], validate_only=False))
        return {"errors": [item.error_code for item in response.responses]}

    def _describe(self, step: Step) -> Any:
        response = self._describe_configs(step["type"], step["name"], step["keys"])
        (result,) = response.results
        entries = sorted(_entries(result.configs))
        return {"error": result.error_code, "configs": entries}

    def _describe_configs(self, resource_type: int, name: str, keys: list[str] | None) -> Message:
        message = API_KEYS[DESCRIBE_CONFIGS].request
        resource = message.classes["DescribeConfigsResource"](
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        return self._exchange(DESCRIBE_CONFIGS, 4, message.new(resources=[resource], include_synonyms=True))

    def _list(self, step: Step) -> Any:
        request = API_KEYS[LIST_CONFIG_RESOURCES].request.new(resource_types=step["types"])
        response = self._exchange(LIST_CONFIG_RESOURCES, 1, request)
        found = sorted([item.resource_type, item.resource_name] for item in response.config_resources)
        return {"error": response.error_code, "resources": found}

    def _wait_until_published(self) -> None:
        """The broker answers before it has read the metadata log; a mark behind the change tells when it has."""
        self._marks += 1
        mark = str(1000 + self._marks)
        self._change(change(METRICS, "mark", ("interval.ms", SET, mark)))
        until = time.monotonic() + SECONDS
        while not self._is_published(mark):
            assert time.monotonic() < until, "the broker does not get what the controller has changed"
            time.sleep(0.02)
        time.sleep(self._settle_seconds)  # Kafka's broker configuration follows its image by some milliseconds

    def _is_published(self, mark: str) -> bool:
        entries = self._describe_configs(METRICS, "mark", ["interval.ms"]).results[0].configs
        return bool(entries) and entries[0].value == mark


def _resource(message: MessageType, step: Step, configs: list[Message]) -> Message:
    fields = {"resource_type": step["type"], "resource_name": step["name"], "configs": configs}
    return message.classes["AlterConfigsResource"](**fields)


# Where kcli answers otherwise, and why.
_DIFFERENT = (
    # Kafka takes NaN for a ratio, with which nothing would ever be cleaned.
    ("min.cleanable.dirty.ratio", "NaN"),
    # Kafka calls an operation that it does not know an error of its own.
    ("retention.ms", 7),
    # Kafka looks for the class, kcli has no plugins.
    ("metric.reporters", APPEND),
)


def differences(pairs: Iterable[tuple[Step, Any, Any]]) -> list[Any]:
    """Of (step, Kafka's answer, another's), those that differ, without what differs on purpose."""
    return [
        (step, kafkas, other)
        for step, kafkas, other in pairs
        if json.loads(json.dumps(other)) != json.loads(json.dumps(kafkas)) and not _is_deliberate(step, kafkas)
    ]


def _is_deliberate(step: Step, kafkas: Any) -> bool:
    operations = [(name, word) for name, *words in step.get("operations", ()) for word in words]
    shown = [(entry[0], entry[1]) for entry in kafkas.get("configs", ())]
    return any(pair in operations or pair in shown for pair in _DIFFERENT)


def _entries(configs: list[Message]) -> Iterator[list[Any]]:
    """name, value, source, read only, sensitive, type, synonyms as [name, value, source]."""
    for entry in configs:
        synonyms = [[synonym.name, synonym.value, synonym.source] for synonym in entry.synonyms]
        yield [entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive, entry.config_type, synonyms]


# Values for single keys of a topic: each is tried, described, and taken back.
_TOPIC_VALUES = [
    ("retention.ms", "1000"), ("retention.ms", "-1"), ("retention.ms", "-2"), ("retention.ms", " 5 "),
    ("retention.ms", "+5"), ("retention.ms", "5.0"), ("retention.ms", ""), ("retention.ms", "9223372036854775808"),
    ("retention.bytes", "-7"), ("cleanup.policy", "compact"), ("cleanup.policy", "compact, delete"), ("cleanup.policy", ""),
    ("cleanup.policy", "delete,delete"), ("cleanup.policy", "DELETE"), ("cleanup.policy", "none"),
    ("cleanup.policy", "delete,"), ("compression.type", "lz4"), ("compression.type", "LZ4"), ("compression.type", "none"),
    ("compression.gzip.level", "0"), ("compression.gzip.level", "9"), ("compression.gzip.level", "-1"),
    ("compression.zstd.level", "23"), ("compression.lz4.level", "17"), ("segment.bytes", "1048575"),
    ("segment.bytes", "1048576"), ("segment.bytes", "2147483648"), ("segment.ms", "0"), ("segment.jitter.ms", "1"),
    ("segment.index.bytes", "3"), ("index.interval.bytes", "-1"), ("flush.messages", "0"), ("flush.ms", "0"),
    ("max.message.bytes", "0"), ("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "logappendtime"),
    ("message.timestamp.before.max.ms", "-1"), ("min.cleanable.dirty.ratio", "1.1"), ("min.cleanable.dirty.ratio", ".75"),
    ("min.cleanable.dirty.ratio", "1e-1"), ("min.cleanable.dirty.ratio", "NaN"), ("min.insync.replicas", "0"),
    ("min.insync.replicas", "2"), ("preallocate", "TRUE"), ("preallocate", "yes"), ("preallocate", ""),
    ("unclean.leader.election.enable", "true"), ("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "0"),
    ("leader.replication.throttled.replicas", "*"), ("leader.replication.throttled.replicas", "0:1,1:1"),
    ("leader.replication.throttled.replicas", "0-1"), ("follower.replication.throttled.replicas", ""),
    ("remote.storage.enable", "true"), ("remote.storage.enable", "false"), ("local.retention.ms", "-3"),
    ("local.retention.ms", "100"), ("internal.segment.bytes", "100"), ("file.delete.delay.ms", "-1"),
    ("message.format.version", "3.0"), ("no.such.key", "1"), ("log.retention.ms", "5"),
]  # fmt: skip
_BROKER_VALUES = [
    ("log.retention.ms", "2000"), ("log.retention.ms", "0"), ("log.retention.ms", "-1"), ("num.partitions", "4"),
    ("log.cleaner.threads", "2"), ("log.cleaner.threads", "3"), ("log.cleaner.threads", "-1"), ("num.io.threads", "9"),
    ("num.io.threads", "100"), ("num.network.threads", "4"), ("max.connections", "10"), ("max.connections", "-1"),
    ("message.max.bytes", "3000000"), ("log.cleanup.policy", "compact"), ("log.segment.bytes", "100"),
    ("min.insync.replicas", "2"), ("unclean.leader.election.enable", "true"), ("log.retention.hours", "3"),
    ("leader.replication.throttled.rate", "100"), ("leader.replication.throttled.rate", "-1"), ("no.such.key", "1"),
    ("listener.name.plaintext.max.connections", "5"), ("listener.name.other.ssl.keystore.type", "PEM"),
    ("listener.name.plaintext.ssl.keystore.password", "secret"), ("ssl.keystore.password", "secret"),
    ("listener.name.plaintext.no.such.key", "1"), ("advertised.listeners", "PLAINTEXT://h:1"), ("node.id", "2"),
    ("log.flush.interval.ms", "77"), ("compression.type", "gzip"), ("compression.type", "bad"), ("metric.reporters", ""),
    ("cordoned.log.dirs", ""), ("max.connections.per.ip.overrides", "127.0.0.1:3"), ("message.max.bytes", "x"),
    ("max.connection.creation.rate", "5"), ("background.threads", "11"), ("log.roll.ms", "0"), ("log.roll.hours", "1"),
    ("producer.id.expiration.ms", "5000"), ("transaction.partition.verification.enable", "false"),
    ("remote.log.reader.threads", "3"), ("replica.alter.log.dirs.io.max.bytes.per.second", "5"),
    ("group.consumer.assignment.interval.ms", "2000"), ("log.local.retention.ms", "100"), ("log.preallocate", "true"),
]  # fmt: skip
_GROUP_VALUES = [
    ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "1"),
    ("consumer.session.timeout.ms", "70000"), ("consumer.heartbeat.interval.ms", "6000"),
    ("consumer.heartbeat.interval.ms", "4000"), ("share.auto.offset.reset", "earliest"),
    ("share.auto.offset.reset", "none"), ("share.auto.offset.reset", "by_duration:PT1H"),
    ("share.auto.offset.reset", "by_duration:1h"), ("share.isolation.level", "read_committed"),
    ("share.isolation.level", "committed"), ("share.record.lock.duration.ms", "20000"),
    ("share.record.lock.duration.ms", "70000"), ("share.delivery.count.limit", "3"), ("share.delivery.count.limit", "11"),
    ("streams.num.standby.replicas", "1"), ("streams.num.standby.replicas", "3"), ("streams.session.timeout.ms", "46000"),
    ("share.partition.max.record.locks", "99"), ("no.such.key", "1"), ("share.session.timeout.ms", "44000"),
    ("share.heartbeat.interval.ms", "16000"), ("streams.heartbeat.interval.ms", "1"),
    ("consumer.assignment.interval.ms", "16000"), ("streams.initial.rebalance.delay.ms", "0"),
    ("share.renew.acknowledge.enable", "false"), ("share.renew.acknowledge.enable", "no"),
]  # fmt: skip
_METRICS_VALUES = [
    ("interval.ms", "100"), ("interval.ms", "99"), ("interval.ms", "3600000"), ("interval.ms", "3600001"),
    ("interval.ms", "x"), ("metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer."), ("metrics", "*"),
    ("metrics", ""), ("metrics", "a,a"), ("match", "client_id=b.*"),
    ("match", "client_software_name=x,client_software_version=1.*"), ("match", "client_id"), ("match", "who=b"),
    ("match", "client_id=["), ("match", "client_instance_id=b69cc35a-7a54-4790-aa69-cc2bd4ee4538"),
    ("match", "client_source_address=127.0.0.1"), ("match", "client_source_port=1,client_id=a=b"), ("match", ""),
    ("no.such.key", "1"),
]  # fmt: skip


def _try(resource_type: int, name: str, values: list[tuple[str, str]]) -> Iterator[Step]:
    for key, value in values:
        yield change(resource_type, name, (key, SET, value))
        if resource_type != BROKER:
            yield describe(resource_type, name, key)
        else:
            yield describe(BROKER, "1", key)
        yield change(resource_type, name, (key, DELETE, None))


def all_steps() -> list[Step]:
    """Everything that a new broker, started with STATIC_SETTINGS, is asked."""
    return [*_topics(), *_brokers(), *_others()]


def _topics() -> list[Step]:
    return [
        create("plain", {}),
        describe(TOPIC, "plain"),
        create("set", {"retention.ms": "5000", "cleanup.policy": "compact,delete", "segment.bytes": "2000000"}),
        create("bad-1", {"retention.ms": "x"}),
        create("bad-2", {"no.such.key": "1"}),
        create("bad-3", {"retention.ms": None}),
        create("bad-4", {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}),
        create("bad-5", {"retention.ms": "5", "local.retention.ms": "10"}),
        create("bad-6", {"remote.storage.enable": "true"}),
        create("bad-7", {"min.cleanable.dirty.ratio": "2"}),
        describe(TOPIC, "set"),
        describe(TOPIC, "set", "retention.ms", "no.such.key"),
        describe(TOPIC, "missing"),
        describe(TOPIC, ""),
        describe(TOPIC, "not/valid"),
        *_try(TOPIC, "plain", _TOPIC_VALUES),
        change(TOPIC, "missing", ("retention.ms", SET, "5")),
        change(TOPIC, "", ("retention.ms", SET, "5")),
        change(TOPIC, "plain", ("retention.ms", SET, None)),
        change(TOPIC, "plain", ("retention.ms", DELETE, "5")),
        change(TOPIC, "plain", ("retention.ms", SET, "5"), ("retention.ms", SET, "6")),
        change(TOPIC, "plain", ("retention.ms", SET, "5"), ("retention.bytes", SET, "x")),
        describe(TOPIC, "plain", "retention.ms"),
        change(TOPIC, "plain", ("retention.ms", APPEND, "5")),
        change(TOPIC, "plain", ("retention.ms", 7, "5")),
        change(TOPIC, "plain", ("retention.ms", SET, "5"), validate_only=True),
        change(TOPIC, "plain", ("retention.ms", SET, "x"), validate_only=True),
        change(TOPIC, "plain", ("cleanup.policy", APPEND, "compact")),
        describe(TOPIC, "plain", "cleanup.policy"),
        change(TOPIC, "plain", ("cleanup.policy", APPEND, "compact")),
        describe(TOPIC, "plain", "cleanup.policy"),
        change(TOPIC, "plain", ("cleanup.policy", SUBTRACT, "delete")),
        describe(TOPIC, "plain", "cleanup.policy"),
        change(TOPIC, "plain", ("cleanup.policy", SUBTRACT, "compact , delete")),
        describe(TOPIC, "plain", "cleanup.policy"),
        change(TOPIC, "plain", ("cleanup.policy", APPEND, "none")),
        change(TOPIC, "plain", ("cleanup.policy", APPEND, None)),
        change(TOPIC, "plain", ("cleanup.policy", DELETE, None)),
        change(TOPIC, "plain", ("leader.replication.throttled.replicas", APPEND, "0:1,1:1")),
        change(TOPIC, "plain", ("leader.replication.throttled.replicas", APPEND, "2:1,1:1")),
        describe(TOPIC, "plain", "leader.replication.throttled.replicas"),
        change(TOPIC, "plain", ("leader.replication.throttled.replicas", SUBTRACT, "0:1")),
        describe(TOPIC, "plain", "leader.replication.throttled.replicas"),
        replace(TOPIC, "plain", {"retention.ms": "77", "segment.ms": "88"}),
        describe(TOPIC, "plain"),
        replace(TOPIC, "plain", {"retention.ms": "x"}),
        replace(TOPIC, "plain", {"retention.ms": None}),
        replace(TOPIC, "plain", {"no.such.key": "5"}),
        replace(TOPIC, "missing", {"retention.ms": "5"}),
        replace(TOPIC, "plain", {}),
        change(TOPIC, "plain", ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
        change(TOPIC, "plain", ("segment.jitter.ms", SET, "10"), ("segment.ms", SET, "5")),
        change(TOPIC, "plain", ("retention.ms", SET, "5"), ("local.retention.ms", SET, "10")),
        change(TOPIC, "plain", ("retention.bytes", SET, "5"), ("local.retention.bytes", SET, "10")),
        change(TOPIC, "plain"),
        describe(TOPIC, "plain"),
    ]


def _brokers() -> list[Step]:
    return [
        describe(BROKER, "1"),
        describe(BROKER, ""),
        describe(BROKER, "2"),
        describe(BROKER, "x"),
        describe(BROKER, "1", "log.retention.ms", "log.retention.hours", "no.such.key"),
        *_try(BROKER, "1", _BROKER_VALUES),
        *_try(BROKER, "", _BROKER_VALUES),
        change(BROKER, "", ("log.retention.ms", SET, "600000"), ("message.max.bytes", SET, "1500000")),
        change(BROKER, "1", ("log.retention.ms", SET, "700000"), ("log.segment.bytes", SET, "3000000")),
        change(BROKER, "1", ("listener.name.plaintext.ssl.keystore.password", SET, "secret")),
        change(BROKER, "", ("leader.replication.throttled.rate", SET, "9000")),
        describe(BROKER, "1"),
        describe(BROKER, ""),
        describe(TOPIC, "set"),
        describe(TOPIC, "plain"),
        change(BROKER, "2", ("log.retention.ms", SET, "5")),
        change(BROKER, "x", ("log.retention.ms", SET, "5")),
        change(BROKER, "1", ("log.retention.ms", SET, None)),
        change(BROKER, "", ("metric.reporters", APPEND, "org.example.Nothing"), validate_only=True),
        change(BROKER, "", ("log.cleanup.policy", APPEND, "compact")),
        describe(BROKER, "", "log.cleanup.policy"),
        describe(TOPIC, "plain", "cleanup.policy"),
        replace(BROKER, "", {"log.retention.ms": "800000"}),
        describe(BROKER, ""),
        replace(BROKER, "1", {"num.partitions": "8"}),
        replace(BROKER, "1", {"log.retention.ms": "900000"}),
        describe(BROKER, "1", "log.retention.ms", "log.retention.minutes", "log.retention.hours", "log.segment.bytes"),
        change(BROKER, "1", ("log.segment.bytes", DELETE, None)),
        create("later", {"segment.ms": "5000"}),
        describe(TOPIC, "later"),
    ]


def _others() -> list[Step]:
    return [
        describe(GROUP, "g"),
        *_try(GROUP, "g", _GROUP_VALUES),
        change(GROUP, "", ("consumer.session.timeout.ms", SET, "50000")),
        change(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"), ("share.auto.offset.reset", SET, "earliest")),
        describe(GROUP, "g"),
        describe(GROUP, ""),
        describe(METRICS, "m"),
        *_try(METRICS, "m", _METRICS_VALUES),
        change(METRICS, "", ("interval.ms", SET, "1000")),
        change(METRICS, "m", ("interval.ms", SET, "1000"), ("metrics", APPEND, "a."), ("match", APPEND, "client_id=a")),
        change(METRICS, "m", ("metrics", APPEND, "b.")),
        describe(METRICS, "m"),
        describe(METRICS, ""),
        describe(LOGGER, "2"),
        describe(0, "x"),
        describe(7, "x"),
        change(0, "x", ("a", SET, "b")),
        change(7, "x", ("a", SET, "b")),
        list_resources(),
        list_resources(TOPIC),
        list_resources(BROKER, GROUP),
        list_resources(METRICS),
        list_resources(LOGGER),
        list_resources(3),
    ]
