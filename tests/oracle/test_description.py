"""Protects describe against a real broker: what Kafka's own tools say of a directory, kcli says out of its files alone.

A broker starts on a copy of the given directory, groups of all kinds are brought to life on it (LiveGroups.java), the tools are
asked, the broker stops; then the copy is described. Settings keep the broker from ageing the directory: its records and
transactions are years old.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.inspect.described import by_partition, described
from tests.oracle.brokers import TOOL_SECONDS, copy_of_given, running_broker
from tests.oracle.peer import Peer, ToolCase

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

Row = dict[str, Any]
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_TOOLS = {
    "ends": ("org.apache.kafka.tools.GetOffsetShell", "--time", "-1"),
    "starts": ("org.apache.kafka.tools.GetOffsetShell", "--time", "-2"),
    "offsets": (_GROUPS, "--describe", "--all-groups", "--offsets"),
    "groups": (_GROUPS, "--list", "--state", "--type"),
    "share": (_SHARE_GROUPS, "--describe", "--all-groups", "--offsets"),
    "transactions": (_TRANSACTIONS, "list"),
    "transaction": (_TRANSACTIONS, "describe", "--transactional-id", "never-ends"),
    "producers": (_TRANSACTIONS, "describe-producers", "--topic", "transactions-out", "--partition", "0"),
    "hanging": (_TRANSACTIONS, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"),
    "topics": ("org.apache.kafka.tools.TopicCommand", "--describe"),
    "topic configs": (_CONFIGS, "--describe", "--entity-type", "topics"),
    "group configs": (_CONFIGS, "--describe", "--entity-type", "groups"),
    "broker configs": (_CONFIGS, "--describe", "--entity-type", "brokers", "--entity-default"),
    "users": (_CONFIGS, "--describe", "--entity-type", "users"),
    "acls": ("org.apache.kafka.tools.AclCommand", "--list"),
    "sizes": ("org.apache.kafka.tools.LogDirsCommand", "--describe"),
    "features": ("org.apache.kafka.tools.FeatureCommand", "describe"),
    "quorum": ("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status"),
}


class Seen(NamedTuple):
    """What the tools printed, by the names in _TOOLS; the groups of LiveGroups, by id; and kcli's report of the
    directory while the broker was running, and behind it."""

    tools: dict[str, str]
    live: dict[str, Row]
    running: dict[str, Any]
    report: dict[str, Any]


@pytest.fixture(scope="module")
def seen(kafka_peer: Peer, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    home = tmp_path_factory.mktemp("broker")
    data = copy_of_given(shared / "kafka-logs" / "data", home / "data")
    with running_broker(kafka_peer, home, data) as bootstrap:
        ran = kafka_peer.run_java("LiveGroups", [bootstrap], timeout_seconds=TOOL_SECONDS)
        assert ran.exit_code == 0, ran.stderr[-2000:]
        live = [json.loads(line) for line in ran.stdout.decode().splitlines()]
        cases = [ToolCase(tool, ("--bootstrap-server", bootstrap, *arguments)) for tool, *arguments in _TOOLS.values()]
        tools = {}
        for name, printed in zip(_TOOLS, kafka_peer.run_tools(cases), strict=True):
            assert printed.exit_code == 0, printed
            tools[name] = printed.stdout.decode()
        running = described(data).report
    yield Seen(tools, {group["groupId"]: group for group in live}, running, described(data).report)


def table(text: str) -> list[list[str]]:
    """The rows of a table, split at white space, without its head."""
    return [line.split() for line in text.splitlines()[1:] if line.strip()]


def numbers(text: str) -> dict[str, int]:
    """`topic:partition:offset` lines."""
    found = (line.rsplit(":", 2) for line in text.splitlines() if line.count(":") >= 2)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in found}


def test_offsets(seen: Seen) -> None:
    """kafka-get-offsets: where every partition starts and ends."""
    rows = {name: row for name, row in by_partition(seen.report["partitions"]).items() if name != "__cluster_metadata-0"}
    ends, starts = numbers(seen.tools["ends"]), numbers(seen.tools["starts"])
    assert len(ends) > 30 and {name: row["logEndOffset"] for name, row in rows.items()} == ends
    assert {name: row["logStartOffset"] for name, row in rows.items()} == starts
    assert {name: row["highWatermark"] for name, row in rows.items()} == ends


def test_a_running_brokers_directory(seen: Seen) -> None:
    """Its indexes are preallocated, its producers not yet in a snapshot: the same is told, and that it is running."""
    assert seen.running["cluster"][0]["logDirectories"][0]["isLive"]
    assert any("A broker is running on" in sentence for sentence in seen.running["unknowns"])
    rows, ends = by_partition(seen.running["partitions"]), numbers(seen.tools["ends"])
    assert {name: rows[name]["logEndOffset"] for name in ends} == ends
    for section in ("groups", "members", "transactions", "openTransactions", "configs", "acls"):
        told, later = ([_less(row) for row in report[section]] for report in (seen.running, seen.report))
        assert told == later, section


def _less(row: Row) -> Row:
    """A row without what only a checkpoint tells: it follows some seconds later."""
    return {name: _less_high_watermarks(value) for name, value in row.items()}


def _less_high_watermarks(value: Any) -> Any:
    if isinstance(value, list):
        return [_less_high_watermarks(inner) for inner in value]
    if isinstance(value, dict):
        return {name: inner for name, inner in value.items() if name != "highWatermark"}
    return value


def test_committed_offsets_and_lag(seen: Seen) -> None:
    """kafka-consumer-groups --describe --offsets."""
    lines = (line.split() for line in seen.tools["offsets"].splitlines())
    told = {
        (words[0], f"{words[1]}-{words[2]}"): words[3:6]
        for words in lines
        if len(words) >= 9 and words[2].isdigit() and words[3] != "-"
    }
    ours = {
        (group["groupId"], f"{row['topic']}-{row['partition']}"): [
            str(row["committedOffset"]),
            str(row["logEndOffset"]),
            str(row["lag"]),
        ]
        for group in seen.report["groups"]
        if group["kind"] in ("classic", "consumer")
        for row in group["offsets"]
        if row["committedOffset"] is not None
    }
    assert len(told) > 12 and ours == told


def test_offsets_of_an_open_transaction_are_pending(seen: Seen) -> None:
    group = next(group for group in seen.report["groups"] if group["groupId"] == "eos-group")
    (row,) = [row for row in group["offsets"] if row["topic"] == "orders"]
    assert (row["committedOffset"], row["pendingOffset"]) == (None, 77)
    assert any(txn["transactionalId"] == "pending-offsets" for txn in seen.report["openTransactions"])


def test_groups(seen: Seen) -> None:
    """kafka-consumer-groups --list: type and state."""
    told = {name: (kind.lower(), state) for name, kind, state in table(seen.tools["groups"])}
    ours = {group["groupId"]: (group["kind"], group["state"]) for group in seen.report["groups"]}
    assert len(told) > 5 and {name: ours[name] for name in told} == told
    assert {name for name, (kind, _) in ours.items() if kind in ("classic", "consumer")} == set(told)


def test_share_groups(seen: Seen) -> None:
    """kafka-share-groups --describe --offsets: start offsets and lag, a dash where nothing was consumed."""
    told = {
        (words[0], f"{words[1]}-{words[2]}"): words[3:5]
        for words in (line.split() for line in seen.tools["share"].splitlines())
        if len(words) == 5 and words[2].isdigit()
    }
    ours = {
        (group["groupId"], f"{row['topic']}-{row['partition']}"): [
            "-" if row["startOffset"] is None else str(row["startOffset"]),
            "-" if row["lag"] is None else str(row["lag"]),
        ]
        for group in seen.report["groups"]
        if group["kind"] == "share"
        for row in group["offsets"]
    }
    assert len(told) == 6 and ours == told
    assert any(lag not in ("-", "0") for _, lag in told.values())


@pytest.mark.parametrize("group_id", ["live-classic", "live-consumer", "live-share", "live-streams"])
def test_members_and_what_they_are_assigned(seen: Seen, group_id: str) -> None:
    """Kafka's Admin client, of groups of all four kinds."""
    told = seen.live[group_id]
    group = next(group for group in seen.report["groups"] if group["groupId"] == group_id)
    assert (group["kind"], group["state"]) == (told["kind"].lower(), told["state"])
    ours = [row for row in seen.report["members"] if row["groupId"] == group_id]
    assert len(ours) == len(told["members"]) > 0
    for row, member in zip(ours, told["members"], strict=True):
        for name in ("memberId", "instanceId", "clientId", "clientHost"):
            assert row[name] == member[name], name
        assigned = [
            f"{part.get('topic', part.get('subtopology'))}-{number}"
            for part in row["assignment"]
            for number in part["partitions"]
        ]
        assert sorted(assigned) == member["assigned"]


def test_transactional_ids(seen: Seen) -> None:
    """kafka-transactions list and describe."""
    told = {words[0]: (int(words[2]), words[3]) for words in table(seen.tools["transactions"])}
    ours = {row["transactionalId"]: (row["producerId"], row["state"]) for row in seen.report["transactions"]}
    assert len(told) > 7 and ours == told
    (words,) = table(seen.tools["transaction"])
    row = next(row for row in seen.report["transactions"] if row["transactionalId"] == "never-ends")
    assert words[1:7] == [
        *("never-ends", str(row["producerId"]), str(row["producerEpoch"]), row["state"]),
        *(str(row["timeoutMs"]), str(row["startTimestamp"])),
    ]
    assert words[-1] == "open-transaction-0" and row["partitions"] == [{"topic": "open-transaction", "partitions": [0]}]


def test_producers(seen: Seen) -> None:
    """kafka-transactions describe-producers."""
    told = {int(words[0]): words[1:] for words in table(seen.tools["producers"])}
    ours = {
        row["producerId"]: [
            str(row["producerEpoch"]),
            str(-1 if row["coordinatorEpoch"] is None else row["coordinatorEpoch"]),
            str(-1 if row["lastSequence"] is None else row["lastSequence"]),
            str(row["lastTimestamp"]),
            "None" if row["currentTxnFirstOffset"] is None else str(row["currentTxnFirstOffset"]),
        ]
        for row in seen.report["producers"]
        if (row["topic"], row["partition"]) == ("transactions-out", 0)
    }
    assert len(told) > 3 and ours == told


def test_no_transaction_is_hanging(seen: Seen) -> None:
    """kafka-transactions find-hanging, which is told to take all that are open for candidates."""
    assert table(seen.tools["hanging"]) == []
    assert [row["isHanging"] for row in seen.report["openTransactions"]] == [False, False]


def test_topics(seen: Seen) -> None:
    """kafka-topics --describe: ids, partitions, replicas."""
    told = {
        found[1]: (found[2], int(found[3]), int(found[4]))
        for found in re.finditer(
            r"Topic: (\S+)\s+TopicId: (\S+)\s+PartitionCount: (\d+)\s+ReplicationFactor: (\d+)", seen.tools["topics"]
        )
    }
    ours = {
        row["name"]: (row["id"], row["partitions"], row["replicationFactor"])
        for row in seen.report["topics"]
        if row["name"] != "__cluster_metadata"
    }
    assert len(told) > 15 and ours == told
    replicas = re.findall(r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: \S+\s+Replicas: (\S+)", seen.tools["topics"])
    rows = by_partition(seen.report["partitions"])
    assert all(rows[f"{topic}-{number}"]["replicas"] == [int(nodes)] for topic, number, nodes in replicas)


@pytest.mark.parametrize(("tool", "resource_type"), [("topic configs", "TOPIC"), ("group configs", "GROUP")])
def test_configurations(seen: Seen, tool: str, resource_type: str) -> None:
    """kafka-configs --describe, of topics and groups."""
    told, name = set(), ""
    for line in seen.tools[tool].splitlines():
        if found := re.match(r"Dynamic configs for \w+ (\S+) are:", line):
            name = found[1]
        elif found := re.match(r"  (\S+?)=(\S*) sensitive=", line):
            told.add((name, found[1], found[2]))
    ours = {
        (row["resourceName"], row["name"], row["value"])
        for row in seen.report["configs"]
        if row["resourceType"] == resource_type
    }
    assert told and ours == told


def test_configurations_of_all_brokers(seen: Seen) -> None:
    told = set(re.findall(r"^  (\S+?)=(\S*) sensitive=", seen.tools["broker configs"], re.MULTILINE))
    ours = {
        (row["name"], row["value"])
        for row in seen.report["configs"]
        if (row["resourceType"], row["resourceName"]) == ("BROKER", "")
    }
    assert told and ours == told


def test_users_and_quotas(seen: Seen) -> None:
    """kafka-configs --describe --entity-type users."""
    lines = seen.tools["users"].splitlines()
    quotas = {
        f"Quota configs for user-principal '{row['entity']['user']}' are {row['key']}={row['value']}"
        for row in seen.report["quotas"]
    }
    users = {
        f"SCRAM credential configs for user-principal '{row['user']}' are {row['mechanism']}=iterations={row['iterations']}"
        for row in seen.report["users"]
    }
    assert quotas | users == {line for line in lines if "configs for" in line} and quotas and users


def test_acls(seen: Seen) -> None:
    """kafka-acls --list."""
    resource = re.findall(r"resourceType=(\w+), name=(\S+), patternType=(\w+)", seen.tools["acls"])
    entry = re.findall(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", seen.tools["acls"])
    ours = [
        (
            (row["resourceType"], row["resourceName"], row["patternType"]),
            (row["principal"], row["host"], row["operation"], row["permissionType"]),
        )
        for row in seen.report["acls"]
    ]
    assert list(zip(resource, entry, strict=True)) == ours and ours


def test_sizes(seen: Seen) -> None:
    """kafka-log-dirs --describe."""
    line = next(line for line in seen.tools["sizes"].splitlines() if line.startswith("{"))
    (directory,) = json.loads(line)["brokers"][0]["logDirs"]
    told = {part["partition"]: part["size"] for part in directory["partitions"]}
    rows = by_partition(seen.report["partitions"])
    assert len(told) > 30 and {name: rows[name]["sizeInBytes"] for name in told} == told


def test_features_and_quorum(seen: Seen) -> None:
    """kafka-features describe, kafka-metadata-quorum describe --status."""
    (cluster,) = seen.report["cluster"]
    found = re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", seen.tools["features"])
    told = {name: level for name, level in found if level != "0"}
    assert {row["name"]: row["version"] or str(row["level"]) for row in cluster["features"]} == told
    status = dict(re.findall(r"(\w+):\s+(\S+)", seen.tools["quorum"]))
    assert cluster["clusterId"] == status["ClusterId"]
    assert (cluster["quorum"]["leaderId"], cluster["quorum"]["leaderEpoch"]) == (
        int(status["LeaderId"]),
        int(status["LeaderEpoch"]),
    )
    assert [voter["id"] for voter in cluster["quorum"]["voters"]] == [1]
    # What the broker still wrote on its way down comes on top.
    assert cluster["metadata"]["endOffset"] >= int(status["HighWatermark"])
    assert seen.report["problems"] == []
