"""Protects what the broker answers against Apache Kafka's own answers: the same requests, as bytes, to both.

Both have the same topics and records. Left out of the comparison: ids that each makes for itself, ports, free bytes, and
the words of messages (that there is an error says its code).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient, plain, running_kcli, until
from tests.protocol.random_messages import SINCE_KAFKA_4_4

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = ("telemetry.max.bytes=1000", "num.partitions=1", "auto.create.topics.enable=false")
# Not long ago, so that retention leaves them alone; the same for both.
NOW_MS = 4_000_000_000_000
TOPICS = {"a": 3, "b": 1, "c": 1, "compacted": 1}
NO_ID = bytes(16)
OTHER_ID = b"none has this id"
LEFT_OUT = frozenset(
    ("error_message", "port", "cluster_id", "total_bytes", "usable_bytes", "log_dir", "client_instance_id", "subscription_id")
)


class Pair(NamedTuple):
    """The two brokers, each with the names of its topics by their ids."""

    kcli: RawClient
    kafka: RawClient
    kcli_names: dict[bytes, str]
    kafka_names: dict[bytes, str]

    def same(self, ask: Callable[[RawClient], Message], left_out: frozenset[str] = LEFT_OUT) -> None:
        """Both answer the same."""
        mine = plain(ask(self.kcli), left_out, self.kcli_names)
        kafkas = plain(ask(self.kafka), left_out, self.kafka_names)
        assert mine == kafkas, f"{mine}\n{kafkas}"


def batch(timestamps: list[int], producer_id: int = -1) -> bytes:
    records = [Record(at, timestamp, b"k", b"v" * 10) for at, timestamp in enumerate(timestamps)]
    return NewRecordBatch(
        base_offset=0,
        last_offset_delta=len(records) - 1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + max(timestamps),
        record_count=len(records),
        records=encode_records(records),
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
    ).encode()


def set_up(client: RawClient) -> dict[bytes, str]:
    """The topics and their records -> their names by id."""
    config = client.struct(apis.CREATE_TOPICS, "CreatableTopicConfig", name="message.timestamp.after.max.ms", value=str(2**62))
    compact = client.struct(apis.CREATE_TOPICS, "CreatableTopicConfig", name="cleanup.policy", value="compact")
    topics = [
        client.struct(
            apis.CREATE_TOPICS,
            "CreatableTopic",
            name=name,
            num_partitions=count,
            replication_factor=1,
            configs=[config, compact] if name == "compacted" else [config],
        )
        for name, count in TOPICS.items()
    ]
    created = client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout_ms=10_000)
    assert {topic.name: topic.error_code for topic in created.topics} == dict.fromkeys(TOPICS, 0)
    wait_for_leaders(client)
    for name, timestamps, producer_id in (("a", [0], 0), ("b", [0, 5, 2], -1), ("b", [9, 7], -1)):
        partition = client.struct(apis.PRODUCE, "PartitionProduceData", index=0, records=batch(timestamps, producer_id))
        topic = client.struct(apis.PRODUCE, "TopicProduceData", name=name, partition_data=[partition])
        answer = client.ask(apis.PRODUCE, 9, acks=-1, timeout_ms=10_000, topic_data=[topic])
        assert answer.responses[0].partition_responses[0].error_code == 0
    found = client.ask(apis.METADATA, 12, topics=None)
    return {bytes(topic.topic_id): topic.name for topic in found.topics}


def wait_for_leaders(client: RawClient) -> None:
    """A broker takes over what the controller has made a moment later; it is asked until it has."""

    def is_leading() -> bool:
        wanted = [
            client.struct(
                apis.LIST_OFFSETS,
                "ListOffsetsTopic",
                name=name,
                partitions=[
                    client.struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=index, timestamp=-1)
                    for index in range(count)
                ],
            )
            for name, count in TOPICS.items()
        ]
        answer = client.ask(apis.LIST_OFFSETS, 6, replica_id=-1, topics=wanted)
        return not any(partition.error_code for topic in answer.topics for partition in topic.partitions)

    until(is_leading)


@pytest.fixture(scope="module")
def pair(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    homes = tmp_path_factory.mktemp("raw-answers")
    (homes / "kafka").mkdir()
    with new_broker(kafka_peer, homes / "kafka", *SETTINGS) as theirs, running_kcli(homes / "kcli", *SETTINGS) as ours:
        mine, kafkas = RawClient(ours), RawClient(theirs)
        try:
            yield Pair(mine, kafkas, set_up(mine), set_up(kafkas))
        finally:
            mine.close()
            kafkas.close()


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (0, {}),
        (0, {"include_cluster_authorized_operations": True}),
        *((1, {"endpoint_type": kind}) for kind in (0, 1, 2, 3)),
        (2, {"include_fenced_brokers": True, "include_cluster_authorized_operations": True}),
    ],
)
def test_describe_cluster(pair: Pair, version: int, fields: dict[str, Any]) -> None:
    pair.same(lambda client: client.ask(apis.DESCRIBE_CLUSTER, version, **fields))


@pytest.mark.parametrize("topics", [[], ["b", "a", "nope", "b", "bad name"], ["0", "aa", "b", "zz"], ["a"]], ids=str)
@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 3, 4, 2000])
@pytest.mark.parametrize("cursor", [None, ("a", 0), ("a", 2), ("a", 9), ("a", -1), ("aa", 1), ("zzz", 0)], ids=str)
def test_describe_topic_partitions(pair: Pair, topics: list[str], limit: int, cursor: tuple[str, int] | None) -> None:
    def ask(client: RawClient) -> Message:
        key = apis.DESCRIBE_TOPIC_PARTITIONS
        at = client.struct(key, "Cursor", topic_name=cursor[0], partition_index=cursor[1]) if cursor else None
        named = [client.struct(key, "TopicRequest", name=name) for name in topics]
        return client.ask(key, 0, topics=named, response_partition_limit=limit, cursor=at)

    pair.same(ask)


@pytest.mark.parametrize("version", range(14))
def test_metadata(pair: Pair, version: int) -> None:
    def ask(client: RawClient, names: list[str] | None, **fields: Any) -> Message:
        topics = None if names is None else [client.struct(apis.METADATA, "MetadataRequestTopic", name=name) for name in names]
        return client.ask(apis.METADATA, version, topics=topics, **fields)

    authorized = {"include_topic_authorized_operations": version >= 8}
    if 8 <= version <= 10:
        authorized["include_cluster_authorized_operations"] = True
    without = {"allow_auto_topic_creation": False} if version >= 4 else {}
    pair.same(lambda client: ask(client, [] if version == 0 else None, **authorized))
    pair.same(lambda client: ask(client, ["a", "a", "nope", "bad name", "b"], **authorized, **without))
    pair.same(lambda client: ask(client, ["a"]))


@pytest.mark.parametrize("version", range(10, 14))
@pytest.mark.parametrize(
    ("topic_id", "name"), [("a", None), ("a", "b"), (OTHER_ID, None), (OTHER_ID, "a"), (NO_ID, "a")], ids=str
)
def test_metadata_by_id(pair: Pair, version: int, topic_id: Any, name: str | None) -> None:
    def ask(client: RawClient) -> Message:
        names = pair.kcli_names if client is pair.kcli else pair.kafka_names
        found = next((known for known, topic in names.items() if topic == topic_id), topic_id)
        topic = client.struct(apis.METADATA, "MetadataRequestTopic", topic_id=found, name=name)
        return client.ask(apis.METADATA, version, topics=[topic], allow_auto_topic_creation=False)

    pair.same(ask)


TIMESTAMPS = (*range(-8, 1), NOW_MS, NOW_MS + 1, NOW_MS + 6, NOW_MS + 8, NOW_MS + 10, 2**63 - 1)


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_list_offsets(pair: Pair, version: int, isolation_level: int) -> None:
    def ask(client: RawClient, topic: str, index: int, timestamp: int, epoch: int = -1) -> Message:
        key = apis.LIST_OFFSETS
        wanted = client.struct(
            key, "ListOffsetsPartition", partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
        )
        named = client.struct(key, "ListOffsetsTopic", name=topic, partitions=[wanted])
        level = isolation_level if version >= 2 else 0
        return client.ask(key, version, replica_id=-1, isolation_level=level, topics=[named])

    for timestamp in TIMESTAMPS:
        for topic, index in (("b", 0), ("a", 0), ("c", 0)):
            pair.same(lambda client, at=(topic, index, timestamp): ask(client, *at))  # type: ignore[misc]
    for topic, index in (("a", 9), ("nope", 0), ("bad name", 0)):
        pair.same(lambda client, at=(topic, index): ask(client, *at, -1))  # type: ignore[misc]
    for epoch in (0, 3, -5):
        pair.same(lambda client, epoch=epoch: ask(client, "b", 0, -1, epoch))  # type: ignore[misc]


def test_list_offsets_of_a_partition_that_is_named_twice(pair: Pair) -> None:
    def ask(client: RawClient) -> Message:
        key = apis.LIST_OFFSETS
        wanted = [
            client.struct(key, "ListOffsetsPartition", partition_index=index, timestamp=timestamp)
            for index, timestamp in ((0, -1), (0, -2), (1, -1))
        ]
        return client.ask(key, 11, replica_id=-1, topics=[client.struct(key, "ListOffsetsTopic", name="a", partitions=wanted)])

    pair.same(ask)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("replica_id", [-2, -1, 1])
def test_offset_for_leader_epoch(pair: Pair, version: int, replica_id: int) -> None:
    def ask(client: RawClient, topic: str, partition: int, current: int, epoch: int) -> Message:
        key = apis.OFFSET_FOR_LEADER_EPOCH
        wanted = client.struct(
            key, "OffsetForLeaderPartition", partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [client.struct(key, "OffsetForLeaderTopic", topic=topic, partitions=[wanted])]
        return client.ask(key, version, replica_id=replica_id, topics=topics)

    for topic, partition in (("b", 0), ("c", 0), ("a", 9), ("nope", 0)):
        for current in (-5, -1, 0, 1):
            for epoch in (-1, 0, 1, 7):
                at = (topic, partition, current, epoch)
                pair.same(lambda client, at=at: ask(client, *at))  # type: ignore[misc]


def test_describe_producers(pair: Pair) -> None:
    def ask(client: RawClient) -> Message:
        key = apis.DESCRIBE_PRODUCERS
        wanted = {"a": [0, 1, 9], "b": [0], "nope": [0], "bad name": [0]}
        topics = [client.struct(key, "TopicRequest", name=name, partition_indexes=indexes) for name, indexes in wanted.items()]
        return client.ask(key, 0, topics=topics)

    pair.same(ask)


@pytest.mark.parametrize("version", range(1, 6))
@pytest.mark.parametrize("topics", [None, {}, {"a": [0, 7], "nope": [0]}], ids=str)
def test_describe_log_dirs(pair: Pair, version: int, topics: dict[str, list[int]] | None) -> None:
    def ask(client: RawClient) -> Message:
        key = apis.DESCRIBE_LOG_DIRS
        wanted = None
        if topics is not None:
            wanted = [
                client.struct(key, "DescribableLogDirTopic", topic=name, partitions=indexes) for name, indexes in topics.items()
            ]
        return client.ask(key, version, topics=wanted)

    pair.same(ask)


@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs(pair: Pair, version: int) -> None:
    def ask(client: RawClient, path: str) -> Message:
        key = apis.ALTER_REPLICA_LOG_DIRS
        wanted = {"a": [0, 9], "nope": [0]}
        topics = [client.struct(key, "AlterReplicaLogDirTopic", name=name, partitions=at) for name, at in wanted.items()]
        return client.ask(key, version, dirs=[client.struct(key, "AlterReplicaLogDir", path=path, topics=topics)])

    for path in ("/nowhere", "data"):
        pair.same(lambda client, path=path: ask(client, path))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("version", "types"), [(0, []), *((1, kinds) for kinds in ([], [2], [4, 8], [3], [16, 16], [32], [-1]))]
)
def test_list_config_resources(pair: Pair, version: int, types: list[int]) -> None:
    pair.same(lambda client: client.ask(apis.LIST_CONFIG_RESOURCES, version, resource_types=types))


RESOURCES = [
    (2, "a", ["retention.ms", "zz"]),
    (2, "nope", None),
    (2, "bad name", None),
    (2, "a", []),
    (4, "1", ["min.insync.replicas", "num.partitions"]),
    (4, "7", None),
    (4, "x", None),
    (8, "2", None),
    (16, "none", None),
    (16, "", None),
    (32, "g", ["consumer.session.timeout.ms"]),
    (32, "", None),
    (99, "a", None),
    (0, "a", None),
]


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("resource", RESOURCES, ids=str)
def test_describe_configs(pair: Pair, version: int, resource: tuple[int, str, list[str] | None]) -> None:
    def ask(client: RawClient) -> Message:
        key = apis.DESCRIBE_CONFIGS
        kind, name, keys = resource
        wanted = client.struct(key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys)
        # The last is another resource, to see that it is answered or refused by itself.
        other = client.struct(
            key, "DescribeConfigsResource", resource_type=2, resource_name="b", configuration_keys=["segment.bytes"]
        )
        return client.ask(key, version, resources=[wanted, other], include_synonyms=True)

    pair.same(ask)


def push(client: RawClient, instance_id: bytes, subscription_id: int, **fields: Any) -> int:
    code: int = client.ask(
        apis.PUSH_TELEMETRY, 0, client_instance_id=instance_id, subscription_id=subscription_id, **fields
    ).error_code
    return code


def test_telemetry(pair: Pair) -> None:
    def dialogue(client: RawClient) -> list[Any]:
        """The codes of a client's life that needs no waiting."""
        get = lambda instance_id: client.ask(apis.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=instance_id)  # noqa: E731
        first = get(NO_ID)
        assert first.client_instance_id != NO_ID
        mine, subscription = first.client_instance_id, first.subscription_id
        seen: list[Any] = [plain(first, LEFT_OUT), get(mine).error_code]
        seen.append(push(client, NO_ID, subscription, metrics=b""))
        seen.append(push(client, mine, subscription, metrics=b"x" * 1000))
        seen.append(push(client, mine, subscription, metrics=b"x"))
        for fields in ({"subscription_id": 1}, {"compression_type": 9}, {"metrics": b"x" * 1001}, {"terminating": True}):
            other = get(NO_ID)
            seen.append(
                push(client, other.client_instance_id, **{"subscription_id": other.subscription_id, "metrics": b"", **fields})
            )
        seen.append(push(client, mine, subscription, metrics=b"", terminating=True))
        seen.append(push(client, mine, subscription, metrics=b"", terminating=True))
        return seen

    assert dialogue(pair.kcli) == dialogue(pair.kafka)


@pytest.mark.parametrize(
    ("name", "version", "code"), [("kcli", "1.0", 0), ("", "1", 42), ("-x", "1", 42), ("a b", "1", 42), ("x", "", 42)]
)
def test_api_versions_judges_the_clients_software(pair: Pair, name: str, version: str, code: int) -> None:
    for client in (pair.kcli, pair.kafka):
        answer = client.ask(apis.API_VERSIONS, 4, client_software_name=name, client_software_version=version)
        assert answer.error_code == code


@pytest.mark.parametrize("version", range(5))
def test_api_versions_offers_what_kafka_offers(pair: Pair, version: int) -> None:
    """No API that Kafka lacks, but telemetry, which Kafka offers with a plugin; of each the same versions.

    What Kafka 4.4.0 offers beyond 4.3.1 is judged by tests/oracle/test_kafka_4_4.py.
    """
    mine, kafkas = (
        client.ask(apis.API_VERSIONS, version, client_software_name="x", client_software_version="1")
        for client in (pair.kcli, pair.kafka)
    )
    theirs = {api.api_key: (api.min_version, api.max_version) for api in kafkas.api_keys}
    for api in mine.api_keys:
        highest = min(api.max_version, SINCE_KAFKA_4_4.get(api.api_key, 99) - 1)
        if api.api_key not in (apis.GET_TELEMETRY_SUBSCRIPTIONS, apis.PUSH_TELEMETRY) and highest >= api.min_version:
            assert (api.min_version, highest) == theirs[api.api_key], api
    ranges = [{one.name: one.min_version for one in answer.supported_features} for answer in (mine, kafkas)]
    assert ranges[0] == ranges[1]


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_api_versions_of_an_unknown_version(pair: Pair, version: int) -> None:
    request = struct.pack(">ihhih", 12, apis.API_VERSIONS, version, 7, 1) + b"c\0"
    api = apis.API_KEYS[apis.API_VERSIONS]
    answers = [api.response.decode(client.exchange(request), 0, 4)[0] for client in (pair.kcli, pair.kafka)]
    left_out = frozenset(("max_version",))
    assert plain(answers[0], left_out) == plain(answers[1], left_out)
    assert answers[0].error_code == error_codes.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(-1, -1), (5, 3), (5, -1), (-1, 3), (-1, 0), (0, 0), (-5, -5)])
def test_init_producer_id_without_a_transaction(pair: Pair, version: int, producer_id: int, producer_epoch: int) -> None:
    """The ids are each broker's own; that there is one says that it is not -1."""
    fields = {"producer_id": producer_id, "producer_epoch": producer_epoch} if version >= 3 else {}
    answers = []
    for client in (pair.kcli, pair.kafka):

        def answered(client: RawClient = client) -> Message | None:
            """Kafka says that it loads until it has its first block of ids; it is asked again, as clients do."""
            answer = client.ask(apis.INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout_ms=7, **fields)
            return None if answer.error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS else answer

        answer = until(answered)
        answers.append((answer.error_code, answer.producer_id >= 0, answer.producer_epoch))
    assert answers[0] == answers[1]


def test_producer_ids_are_given_once(pair: Pair) -> None:
    """More than a block of them, and more than one was asked for at a time."""
    given = [
        pair.kcli.ask(apis.INIT_PRODUCER_ID, 5, transactional_id=None, transaction_timeout_ms=1000).producer_id
        for _ in range(2_500)
    ]
    assert len(set(given)) == len(given)


def test_delete_records(pair: Pair) -> None:
    """The last test, for it changes what the others see."""

    def ask(client: RawClient, topic: str, *offsets: tuple[int, int]) -> Message:
        key = apis.DELETE_RECORDS
        wanted = [client.struct(key, "DeleteRecordsPartition", partition_index=at, offset=offset) for at, offset in offsets]
        named = client.struct(key, "DeleteRecordsTopic", name=topic, partitions=wanted)
        return client.ask(key, 2, topics=[named], timeout_ms=5_000)

    for topic in ("a", "compacted", "nope", "bad name", "__cluster_metadata"):
        for offset in (-2, -1, 0, 1, 2):
            pair.same(lambda client, at=(topic, offset): ask(client, at[0], (0, at[1])))  # type: ignore[misc]
    for offsets in (((0, 3),), ((0, 2),), ((0, 6),), ((9, 0),), ((0, 4), (0, 5)), ((0, -1),)):
        pair.same(lambda client, offsets=offsets: ask(client, "b", *offsets))  # type: ignore[misc]
