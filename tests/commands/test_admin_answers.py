"""Protects what the commands for running clusters print of answers that are not whole: what a broker did not answer is
reported, in the exit code, too, and nothing is printed as empty that is not known.

The brokers are scripts; what the commands print of real clusters is judged by tests/oracle/test_client_admin.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from kcli.client.admin.operation import Operation
from kcli.client.errors import KafkaError
from kcli.commands import configs, groups, topics, transactions
from kcli.commands.app import main
from kcli.commands.client_options import client_errors
from kcli.protocol import error_codes as codes
from kcli.protocol.apis import (
    API_KEYS,
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DESCRIBE_TOPIC_PARTITIONS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
)
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import ScriptedCluster, described_controllers, metadata
from tests.client.admin.test_driver import coordinators, deleted

_Result = TypeVar("_Result")
Cluster = Callable[[ScriptedCluster], None]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Have the commands ask this cluster."""

    def use(script: ScriptedCluster) -> None:
        def ask(args: argparse.Namespace, operation: Operation[_Result]) -> _Result:
            with client_errors(passed_on=KafkaError):
                return script.execute(operation)

        for module in (configs, groups, topics, transactions):
            monkeypatch.setattr(module, "ask", ask)

    return use


def listed(node: int | None, version: int, request: Message) -> Message:
    """An answer to ListGroups: broker 1 has a group, broker 3 refuses."""
    kind = API_KEYS[LIST_GROUPS].response
    found = [kind.classes["ListedGroup"](group_id="here", group_type="classic")] if node == 1 else []
    return kind.new(groups=found, error_code=codes.UNKNOWN_SERVER_ERROR if node == 3 else 0)


def test_groups_that_a_broker_did_not_list(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """All groups are not all groups then."""
    cluster(
        ScriptedCluster(
            {LIST_GROUPS: listed, FIND_COORDINATOR: coordinators(iter((2,) * 9)), DELETE_GROUPS: deleted}, timeout_ms=9000
        )
    )
    assert main(["groups", "delete", "--all-groups", "--dry-run"]) == 1
    assert main(["groups", "delete", "--all-groups"]) == 1
    out, err = capfd.readouterr()
    assert out == "would delete group here\ndeleted group here\n" and "broker 3 did not list its groups" in err


def test_a_group_that_may_be_of_a_broker_that_did_not_list_is_not_reset(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its type decides what is reset, and whether it has members."""
    cluster(ScriptedCluster({LIST_GROUPS: listed}))
    assert main(["groups", "reset-offsets", "--group", "there", "--all-topics", "--to-earliest", "--execute"]) == 2
    assert "the type of group there is not known: broker 3 did not list its groups" in capfd.readouterr().err


def refused_configs(node: int | None, version: int, request: Message) -> Message:
    """An answer to DescribeConfigs of topic a."""
    kind = API_KEYS[DESCRIBE_CONFIGS].response
    code = codes.TOPIC_AUTHORIZATION_FAILED
    return kind.new(results=[kind.classes["DescribeConfigsResult"](error_code=code, resource_type=2, resource_name="a")])


def test_a_config_that_cannot_be_seen_is_not_one_that_is_not_set(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster(ScriptedCluster({DESCRIBE_CONFIGS: refused_configs}))
    assert main(["configs", "alter", "--topic", "a", "--delete-config", "retention.ms"]) == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in capfd.readouterr().err


def test_a_password_is_not_printed(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    kind = API_KEYS[INCREMENTAL_ALTER_CONFIGS].response
    answer = kind.new(responses=[kind.classes["AlterConfigsResourceResponse"](resource_type=4, resource_name="1")])
    cluster(ScriptedCluster({INCREMENTAL_ALTER_CONFIGS: lambda *_: answer}))
    pairs = "ssl.keystore.password=very-secret,num.io.threads=9"
    assert main(["configs", "alter", "--broker", "1", "--add-config", pairs, "--output", "json"]) == 0
    changes = json.loads(capfd.readouterr().out)["changes"]
    assert changes == {"ssl.keystore.password": "(hidden)", "num.io.threads": "9"}


def test_configs_that_are_not_known_are_not_empty(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster(
        ScriptedCluster(
            {METADATA: lambda *_: metadata(leaders={("a", 0): 1}), DESCRIBE_CONFIGS: refused_configs},
            versions={DESCRIBE_TOPIC_PARTITIONS: -1},
        )
    )
    assert main(["topics", "describe", "--output", "json"]) == 1
    out, err = capfd.readouterr()
    assert json.loads(out)["configs"] is None and "configs of a: TOPIC_AUTHORIZATION_FAILED" in err


@pytest.mark.parametrize("version", [-1, 0])
@pytest.mark.parametrize(("entities", "names"), [("topics", ["a"]), ("brokers", ["", "1", "2", "3"])])
def test_an_old_broker_lists_no_resources(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], entities: str, names: list[str], version: int
) -> None:
    """ListConfigResources is for client metrics only before Kafka 4.1: version 0, or none."""
    kind = API_KEYS[DESCRIBE_CONFIGS].response
    one = kind.classes["DescribeConfigsResult"]

    def described(node: int | None, version: int, request: Message) -> Message:
        resources = [(found.resource_type, found.resource_name) for found in request.resources]
        return kind.new(results=[one(resource_type=kind_of, resource_name=name) for kind_of, name in resources])

    script = ScriptedCluster(
        {METADATA: lambda *_: metadata(leaders={("a", 0): 1}), DESCRIBE_CONFIGS: described},
        versions={LIST_CONFIG_RESOURCES: version},
    )
    cluster(script)
    assert main(["configs", "describe", "--entity-type", entities, "--output", "json"]) == 0
    assert [json.loads(line)["entityName"] for line in capfd.readouterr().out.splitlines()] == names


def test_controllers_are_the_brokers_whose_configs_they_have(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """As kafka-configs --bootstrap-controller; they do not list topics, which are refused and not shown as none."""
    kind = API_KEYS[DESCRIBE_CONFIGS].response
    one = kind.classes["DescribeConfigsResult"]

    def described(node: int | None, version: int, request: Message) -> Message:
        found = [(each.resource_type, each.resource_name) for each in request.resources]
        assert {name for _, name in found} <= {"", str(node)}
        return kind.new(results=[one(resource_type=kind_of, resource_name=name) for kind_of, name in found])

    answers = {DESCRIBE_CLUSTER: lambda *_: described_controllers(2), DESCRIBE_CONFIGS: described}
    cluster(ScriptedCluster(answers, controllers=True))
    assert main(["configs", "describe", "--entity-type", "brokers", "--output", "json"]) == 0
    assert [json.loads(line)["entityName"] for line in capfd.readouterr().out.splitlines()] == ["", "1", "2", "3"]
    assert main(["configs", "describe", "--entity-type", "topics"]) == 1
    assert "UNSUPPORTED_ENDPOINT_TYPE" in capfd.readouterr().err


class DeletedTopics:
    """Answers of brokers of which `gone` is deleted after the list of all topics, and `going` after that; `here` has a
    transaction that hangs."""

    def metadata(self, node: int | None, version: int, request: Message) -> Message:
        answer = metadata(leaders={(name, 0): 1 for name in ("here", "going", "gone")})
        for topic in answer.topics:
            for one in topic.partitions:
                one.replica_nodes = [1]
        if request.topics:
            kind = API_KEYS[METADATA].response.classes["MetadataResponseTopic"]
            topics = {one.name: one for one in answer.topics if one.name != "gone"}
            missing = codes.UNKNOWN_TOPIC_OR_PARTITION
            answer.topics = [topics.get(one.name) or kind(name=one.name, error_code=missing) for one in request.topics]
        return answer

    def producers(self, node: int | None, version: int, request: Message) -> Message:
        kind = API_KEYS[DESCRIBE_PRODUCERS].response
        partition, state = kind.classes["PartitionResponse"], kind.classes["ProducerState"]
        producer = state(producer_id=7, producer_epoch=0, last_timestamp=1, current_txn_start_offset=5)
        parts = {
            "here": partition(active_producers=[producer]),
            "going": partition(error_code=codes.UNKNOWN_TOPIC_OR_PARTITION),
        }
        topic = kind.classes["TopicResponse"]
        return kind.new(topics=[topic(name=one.name, partitions=[parts[one.name]]) for one in request.topics])


@pytest.mark.parametrize("options", [("--broker-id", "1"), ("--topic", "going")])
def test_topics_that_are_deleted_while_hanging_transactions_are_searched(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """They do not hide what hangs in other topics, and are not waited for."""
    answers = DeletedTopics()
    script = ScriptedCluster(
        {
            METADATA: answers.metadata,
            DESCRIBE_PRODUCERS: answers.producers,
            LIST_TRANSACTIONS: lambda *_: API_KEYS[LIST_TRANSACTIONS].response.new(),
        },
        versions={DESCRIBE_TOPIC_PARTITIONS: -1},
    )
    cluster(script)
    assert main(["transactions", "find-hanging", *options, "--output", "json"]) == 0
    out, err = capfd.readouterr()
    is_all = options[0] == "--broker-id"
    assert [json.loads(line)["topic"] for line in out.splitlines()] == (["here"] if is_all else [])
    left_out = [line for line in err.splitlines() if line.endswith("is left out: it was deleted during the search")]
    assert len(left_out) == (2 if is_all else 1) and "topic going is" in err and script.now_ms == 0


def groups_with_refused_partitions() -> ScriptedCluster:
    """A classic group `c` and a share group `s`, whose offset of t-0 is refused; and the end of u-0 is refused."""
    kinds = {key: API_KEYS[key].response for key in (LIST_GROUPS, DESCRIBE_GROUPS, SHARE_GROUP_DESCRIBE, LIST_OFFSETS)}
    listing, classic = kinds[LIST_GROUPS].classes["ListedGroup"], kinds[DESCRIBE_GROUPS].classes["DescribedGroup"]
    share = kinds[SHARE_GROUP_DESCRIBE].classes["DescribedGroup"]
    named = [listing(group_id="c", group_type="classic"), listing(group_id="s", group_type="share")]
    refused, denied = {"error_code": codes.UNKNOWN_SERVER_ERROR}, {"error_code": codes.TOPIC_AUTHORIZATION_FAILED}

    fetched = API_KEYS[OFFSET_FETCH].response
    of_group, of_topic, of_partition = (
        fetched.classes[f"OffsetFetchResponse{name}"] for name in ("Group", "Topics", "Partitions")
    )
    committed = [
        of_topic(name="t", partitions=[of_partition(partition_index=0, committed_offset=-1, **refused)]),
        of_topic(name="u", partitions=[of_partition(partition_index=0, committed_offset=5)]),
    ]
    starts = API_KEYS[DESCRIBE_SHARE_GROUP_OFFSETS].response
    prefix = "DescribeShareGroupOffsetsResponse"
    share_group, share_topic, share_partition = (starts.classes[f"{prefix}{name}"] for name in ("Group", "Topic", "Partition"))
    started = [
        share_topic(topic_name="t", partitions=[share_partition(partition_index=0, start_offset=-1, **refused)]),
        share_topic(topic_name="v", partitions=[share_partition(partition_index=0, start_offset=2, lag=1)]),
    ]
    end_topic, end = (kinds[LIST_OFFSETS].classes[f"ListOffsets{name}Response"] for name in ("Topic", "Partition"))

    def ends(node: int | None, version: int, request: Message) -> Message:
        found = {name: end(partition_index=0, offset=9, **(denied if name == "u" else {})) for name in ("t", "u", "v")}
        topics = [end_topic(name=one.name, partitions=[found[one.name]]) for one in request.topics]
        return kinds[LIST_OFFSETS].new(topics=topics)

    return ScriptedCluster(
        {
            METADATA: lambda *_: metadata(leaders={(name, 0): 1 for name in ("t", "u", "v")}),
            LIST_GROUPS: lambda node, *_: kinds[LIST_GROUPS].new(groups=named if node == 1 else []),
            FIND_COORDINATOR: coordinators(iter((1,) * 9)),
            DESCRIBE_GROUPS: lambda *_: kinds[DESCRIBE_GROUPS].new(groups=[classic(group_id="c", group_state="Empty")]),
            SHARE_GROUP_DESCRIBE: lambda *_: kinds[SHARE_GROUP_DESCRIBE].new(groups=[share(group_id="s", group_state="Empty")]),
            OFFSET_FETCH: lambda *_: fetched.new(groups=[of_group(group_id="c", topics=committed)]),
            DESCRIBE_SHARE_GROUP_OFFSETS: lambda *_: starts.new(groups=[share_group(group_id="s", topics=started)]),
            LIST_OFFSETS: ends,
        },
        versions={DESCRIBE_TOPIC_PARTITIONS: -1, CONSUMER_GROUP_DESCRIBE: -1},
    )


@pytest.mark.parametrize(
    ("group", "rows"),
    [
        (
            "c",
            [
                ("t", None, 9, None, "UNKNOWN_SERVER_ERROR"),
                ("u", 5, None, None, "TOPIC_AUTHORIZATION_FAILED"),
            ],
        ),
        ("s", [("t", None, 9, None, "UNKNOWN_SERVER_ERROR"), ("v", 2, 9, 1, None)]),
    ],
)
def test_the_error_of_a_partition_is_not_one_without_an_offset(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], group: str, rows: list[tuple[object, ...]]
) -> None:
    cluster(groups_with_refused_partitions())
    assert main(["groups", "describe", "--group", group, "--output", "json"]) == 1
    shown = json.loads(capfd.readouterr().out)["partitions"]
    found = [(one["topic"], one["currentOffset"], one["logEndOffset"], one["lag"]) for one in shown]
    assert found == [row[:4] for row in rows]
    assert [one["error"] and one["error"].split(":")[0] for one in shown] == [row[4] for row in rows]
    cluster(groups_with_refused_partitions())
    assert main(["groups", "describe", "--group", group]) == 1
    assert "UNKNOWN_SERVER_ERROR" in capfd.readouterr().out
