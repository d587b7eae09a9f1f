"""Protects the APIs that only read state: their answers where the cluster is not as it should be, and page by page.

That they answer as Apache Kafka does where all is well is tests/oracle/test_raw_answers.py's affair.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.config import config_results
from kcli.server.config.definitions import BROKER_KEYS, Serving
from kcli.server.events import Connection
from kcli.state.metadata_values import DIRECTORY_LOST, Endpoint
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import Closed, WholeNode, batch

DTP = apis.DESCRIBE_TOPIC_PARTITIONS


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("a", 3)
    made.create_topic("b", 1)
    return made


def names_and_partitions(answer: Message) -> list[tuple[str, int]]:
    return [(topic.name, partition.partition_index) for topic in answer.topics for partition in topic.partitions]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_together_are_the_whole(node: WholeNode, limit: int) -> None:
    node.create_topic("c", 2)
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        answer = ask(node, DTP, 0, response_partition_limit=limit, cursor=cursor)
        page = names_and_partitions(answer)
        assert 0 < len(page) <= limit
        seen += page
        cursor = answer.next_cursor and struct(
            DTP, "Cursor", topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
        pages += 1
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]
    assert pages == -(-6 // limit)


def test_pages_are_no_larger_than_the_broker_allows(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data", "max.request.partition.size.limit=2")
    node.create_topic("a", 3)
    assert names_and_partitions(ask(node, DTP, 0, response_partition_limit=2000)) == [("a", 0), ("a", 1)]


def test_a_fenced_broker_leads_nothing(node: WholeNode) -> None:
    brokers = node.broker.image.brokers
    brokers[1] = brokers[1]._replace(is_fenced=True)
    (topic, _other) = ask(node, DTP, 0).topics
    assert {(found.leader_id, *found.offline_replicas) for found in topic.partitions} == {(-1, 1)}
    answer = ask(node, apis.METADATA, 12, topics=None)
    assert (answer.brokers, answer.controller_id) == ([], -1)
    first = answer.topics[0].partitions[0]
    assert (first.error_code, first.leader_id, first.offline_replicas) == (error_codes.LEADER_NOT_AVAILABLE, -1, [1])
    assert ask(node, apis.DESCRIBE_CLUSTER, 2).brokers == []
    (broker,) = ask(node, apis.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True).brokers
    assert broker.is_fenced


def test_a_leader_that_the_listener_does_not_reach(node: WholeNode) -> None:
    other = Connection(900, "ELSEWHERE", "127.0.0.1")
    for version, code in ((5, error_codes.LEADER_NOT_AVAILABLE), (6, error_codes.LISTENER_NOT_FOUND)):
        answer = ask(node, apis.METADATA, version, connection=other, topics=None)
        assert answer.brokers == []
        assert {partition.error_code for topic in answer.topics for partition in topic.partitions} == {code}
    node.broker.image.brokers[1].endpoints["ELSEWHERE"] = Endpoint("there", 7, "PLAINTEXT")
    answer = ask(node, apis.METADATA, 12, connection=other, topics=None)
    assert [(broker.host, broker.port) for broker in answer.brokers] == [("there", 7)]


def test_a_replica_in_a_lost_directory_is_offline(node: WholeNode) -> None:
    registration = node.broker.image.topics[node.broker.image.topic_ids["a"]]
    registration.partitions[0].directories = [DIRECTORY_LOST]
    registration.partitions[1].directories = [Uuid(b"a directory that")]
    (topic, _other) = ask(node, DTP, 0).topics
    assert [partition.offline_replicas for partition in topic.partitions] == [[1], [1], []]


def test_a_partition_of_another_broker(node: WholeNode) -> None:
    partition = node.broker.replica_manager.partition("a", 1)
    assert partition is not None
    partition.is_leader = False
    del node.broker.replica_manager.partitions["a", 2]
    for index in (1, 2):
        asked = struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=index, timestamp=-1)
        topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="a", partitions=[asked])
        answer = ask(node, apis.LIST_OFFSETS, 11, replica_id=-1, topics=[topic])
        assert answer.topics[0].partitions[0].error_code == error_codes.NOT_LEADER_OR_FOLLOWER
        wanted = struct(apis.DESCRIBE_PRODUCERS, "TopicRequest", name="a", partition_indexes=[index])
        answer = ask(node, apis.DESCRIBE_PRODUCERS, 0, topics=[wanted])
        assert answer.topics[0].partitions[0].error_code == error_codes.NOT_LEADER_OR_FOLLOWER
        assert answer.topics[0].partitions[0].error_message


def delete_records(node: WholeNode, topic: str, index: int, offset: int) -> Message:
    wanted = struct(apis.DELETE_RECORDS, "DeleteRecordsPartition", partition_index=index, offset=offset)
    named = struct(apis.DELETE_RECORDS, "DeleteRecordsTopic", name=topic, partitions=[wanted])
    (answer,) = ask(node, apis.DELETE_RECORDS, 2, topics=[named], timeout_ms=1000).topics[0].partitions
    return answer


def test_deleted_records_are_gone_at_once(node: WholeNode) -> None:
    node.produce("a", 0, batch(b"0", b"1", b"2"))
    assert delete_records(node, "a", 0, 2).low_watermark == 2
    assert delete_records(node, "a", 0, 1).low_watermark == 2
    assert delete_records(node, "a", 0, 4).error_code == error_codes.OFFSET_OUT_OF_RANGE
    pending = node.fetch({("a", 0): 1})
    node.until(lambda: pending.answer is not None)
    assert pending.result().responses[0].partitions[0].error_code == error_codes.OFFSET_OUT_OF_RANGE
    asked = struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, timestamp=-2)
    topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="a", partitions=[asked])
    assert ask(node, apis.LIST_OFFSETS, 11, replica_id=-1, topics=[topic]).topics[0].partitions[0].offset == 2
    assert delete_records(node, "a", 0, -1).low_watermark == 3


def test_an_offline_log_directory_is_told_of(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    node = WholeNode(first, f"log.dirs={first},{second}", f"metadata.log.dir={first}")
    node.create_topic("a", 4)
    before = ask(node, apis.DESCRIBE_LOG_DIRS, 4, topics=None).results
    lost = {partition.partition_index for topic in before[1].topics for partition in topic.partitions}
    assert lost
    assert all(result.total_bytes >= result.usable_bytes > 0 for result in before)
    node.broker.log_manager.take_offline(str(second), OSError(errno.EIO, "broken"))
    answer = ask(node, apis.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert [(result.log_dir, result.error_code) for result in answer.results] == [
        (str(first), 0),
        (str(second), error_codes.KAFKA_STORAGE_ERROR),
    ]
    assert (answer.results[1].topics, answer.results[1].total_bytes) == ([], -1)


def test_a_replica_moves_to_another_log_directory(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    node = WholeNode(first, f"log.dirs={first},{second}", f"metadata.log.dir={first}")
    node.create_topic("a", 1)
    node.produce("a", 0, batch(b"0", b"1"))
    log = node.broker.log_manager.logs["a", 0]
    target = second if log.directory.startswith(f"{first}/") else first
    topic = struct(apis.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirTopic", name="a", partitions=[0])
    directory = struct(apis.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDir", path=str(target), topics=[topic])
    (answer,) = ask(node, apis.ALTER_REPLICA_LOG_DIRS, 2, dirs=[directory]).results[0].partitions
    assert answer.error_code == 0
    results = {result.log_dir: result for result in ask(node, apis.DESCRIBE_LOG_DIRS, 4, topics=None).results}
    (moving,) = results[str(target)].topics[0].partitions
    assert moving.is_future_key


def test_names_of_configurations_choose(node: WholeNode) -> None:
    key = apis.DESCRIBE_CONFIGS
    resources = [
        struct(key, "DescribeConfigsResource", resource_type=2, resource_name="a", configuration_keys=["segment.bytes", "none"])
    ]
    (result,) = ask(node, key, 4, resources=resources).results
    assert [(entry.name, entry.value, entry.synonyms) for entry in result.configs] == [("segment.bytes", "1073741824", [])]
    (result,) = ask(node, key, 4, resources=resources, include_synonyms=True).results
    assert [synonym.name for synonym in result.configs[0].synonyms] == ["log.segment.bytes"]


@pytest.mark.parametrize("version", [3, 4])
def test_documentation_is_told_to_who_asks(node: WholeNode, version: int) -> None:
    key = apis.DESCRIBE_CONFIGS
    resources = [
        struct(key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((2, "a"), (4, "1"), (16, "subscription"), (32, "group"))
    ]
    plain = ask(node, key, version, resources=resources).results
    assert {entry.documentation for result in plain for entry in result.configs} == {None}
    told = ask(node, key, version, resources=resources, include_documentation=True).results
    topic, broker, metrics, group = ({entry.name: entry.documentation for entry in result.configs} for result in told)
    assert "size of a segment" in topic["segment.bytes"] and "size of a segment" in broker["log.segment.bytes"]
    assert all(topic.values()) and all(metrics.values()) and group and not any(group.values())
    assert {name for name, sentence in broker.items() if sentence} == {
        name for name in broker if BROKER_KEYS[name].serving == Serving.SERVED
    }


def configs_of(*topics: str) -> Message:
    key = apis.DESCRIBE_CONFIGS
    resources = [
        struct(key, "DescribeConfigsResource", resource_type=2, resource_name=name, configuration_keys=None) for name in topics
    ]
    return API_KEYS[key].request.new(resources=resources)


def test_long_answers_let_others_in_between(node: WholeNode) -> None:
    pending = node.send(apis.DESCRIBE_CONFIGS, 4, configs_of(*["a", "b", "none"] * 9))
    assert pending.answer is None
    assert ask(node, apis.DESCRIBE_CLUSTER, 0).error_code == 0
    assert pending.answer is None
    node.until(lambda: pending.answer is not None)
    results = pending.result().results
    assert [result.resource_name for result in results] == ["a", "b", "none"] * 9
    assert [bool(result.configs) for result in results] == [True, True, False] * 9
    assert node.send(apis.DESCRIBE_CONFIGS, 4, configs_of("a", "b")).answer is not None


def test_many_look_ups_by_time_let_others_in_between(node: WholeNode) -> None:
    node.create_topic("wide", 120)
    node.produce("wide", 119, batch(b"x"))
    wanted = [struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=at, timestamp=-3) for at in range(120)]
    topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="wide", partitions=wanted)
    request = API_KEYS[apis.LIST_OFFSETS].request.new(replica_id=-1, topics=[topic])
    pending = node.send(apis.LIST_OFFSETS, 11, request)
    assert pending.answer is None
    node.until(lambda: pending.answer is not None)
    found = pending.result().topics[0].partitions
    assert [answer.partition_index for answer in found] == list(range(120))
    assert [answer.offset for answer in found] == [-1] * 119 + [0]


def test_a_fault_in_a_later_slice_ends_one_answer_only(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = node.send(apis.DESCRIBE_CONFIGS, 4, configs_of(*["a"] * 30))
    monkeypatch.setattr(config_results, "describe", lambda *args: 1 // 0)
    node.until(lambda: pending.answer is not None)
    with pytest.raises(Closed):  # half an answer would pass for a whole one
        pending.result()
    assert [line for line in node.lines if "a fault of kcli in serving DescribeConfigs" in line]
    assert ask(node, apis.DESCRIBE_CLUSTER, 0).error_code == 0
