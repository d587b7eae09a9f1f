"""Protects describe: what it tells of the given directories is what Kafka's own dumps add up to."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kcli.format.file_names import parse_partition_directory
from kcli.inspect.description import segment_survey, topic_sections
from kcli.inspect.description.sources import DescriptionError
from kcli.protocol.message_types import message_type
from tests.conftest import FIXTURES, LogSet, every_log_set, log_sets
from tests.damage.layout import flip
from tests.inspect.described import by_partition, described, dumped_segment
from tests.log_builder import PartitionBuilder
from tests.state.given_topics import shown

MODERN = log_sets(FIXTURES)[0]


def log_files(given: LogSet) -> list[str]:
    return [path for path in given.dumped_paths() if path.endswith(".log")]


@pytest.mark.parametrize("given", every_log_set(), ids=lambda given: given.data.parent.name)
def test_segments_are_what_the_dumps_add_up_to(given: LogSet) -> None:
    """Batches, records, codecs with their bytes, offsets and times of every segment."""
    rows = described(given.data, show=frozenset(("segments",))).report["segments"]
    found = {f"{row['topic']}-{row['partition']}/{row['file']}": row for row in rows}
    assert sorted(found) == log_files(given)
    last_of: dict[str, str] = {path.rpartition("/")[0]: path for path in sorted(found)}
    for path, row in found.items():
        expected = dumped_segment(given, path)
        assert row["isComplete"], path
        assert (row["batches"], row["records"], row["controlRecords"]) == expected[:3], path
        assert {codec["name"]: codec["batches"] for codec in row["codecs"]} == expected.batches_by_codec, path
        assert row["sizeInBytes"] == (given.data / path).stat().st_size
        assert (row["firstTimestamp"], row["maxTimestamp"]) == expected[-2:], path
        if all(codec["batches"] for codec in row["codecs"]) and "magic" not in path:
            assert {codec["name"]: codec["sizeInBytes"] for codec in row["codecs"]} == expected.bytes_by_codec, path
        if last_of[path.rpartition("/")[0]] == path and expected.batches:
            assert row["endOffset"] == expected.end_offset, path


@pytest.mark.parametrize("given", every_log_set(), ids=lambda given: given.data.parent.name)
def test_partitions_end_where_the_dumps_end(given: LogSet) -> None:
    """Ends by the dumps; starts, high watermarks and cleaned offsets by the checkpoints' own text."""
    rows = by_partition(described(given.data).report["partitions"])
    assert rows.keys() == {path.split("/")[0] for path in log_files(given)}
    for name, row in rows.items():
        paths = [path for path in log_files(given) if path.startswith(f"{name}/")]
        assert row["logEndOffset"] == max(dumped_segment(given, path).end_offset for path in paths), name
        assert row["sizeInBytes"] == sum((given.data / path).stat().st_size for path in paths)
        assert row["segments"] == len(paths)
    for checkpoint, member in (
        ("replication-offset-checkpoint", "highWatermark"),
        ("cleaner-offset-checkpoint", "cleanedOffset"),
        ("recovery-point-offset-checkpoint", "recoveryPoint"),
        ("log-start-offset-checkpoint", "logStartOffset"),
    ):
        for line in (given.data / checkpoint).read_text().splitlines()[2:]:
            topic, partition, offset = line.split()
            if f"{topic}-{partition}" in rows:
                assert rows[f"{topic}-{partition}"][member] == int(offset), (checkpoint, line)


def test_the_last_stable_offset_and_the_open_transaction_by_its_coordinator() -> None:
    report = described(MODERN.data).report
    rows = by_partition(report["partitions"])
    assert (rows["open-transaction-0"]["lastStableOffset"], rows["open-transaction-0"]["openTransactions"]) == (0, 1)
    others = [row for name, row in rows.items() if name != "open-transaction-0"]
    assert all((row["lastStableOffset"], row["openTransactions"]) == (row["logEndOffset"], 0) for row in others)
    (txn,) = report["openTransactions"]
    assert (txn["topic"], txn["firstOffset"], txn["transactionalId"]) == ("open-transaction", 0, "never-ends")
    assert (txn["coordinatorState"], txn["isHanging"]) == ("Ongoing", False)


def test_producers_are_those_of_the_last_snapshots() -> None:
    """After a clean stop the last producer snapshot tells all; Kafka's dump of it is the judge."""
    rows = described(MODERN.data, show=frozenset(("producers",))).report["producers"]
    found = {(f"{row['topic']}-{row['partition']}", row["producerId"]): row for row in rows}
    snapshots = [path for path in MODERN.dumped_paths() if path.endswith(".snapshot")]
    last = {path.split("/")[0]: path for path in sorted(snapshots)}
    expected = {}
    for name, path in last.items():
        for line in MODERN.golden(path).decode().splitlines():
            if line.startswith("producerId: "):
                fields = dict(re.findall(r"(\w+): (\S+)", line))
                expected[name, int(fields["producerId"])] = fields
    assert len(expected) > 10 and found.keys() == expected.keys()
    for key, fields in expected.items():
        row = found[key]
        assert row["producerEpoch"] == int(fields["producerEpoch"])
        assert row["lastSequence"] == (int(fields["lastSequence"]) if "lastSequence" in fields else None)
        assert row["lastOffset"] == (int(fields["lastOffset"]) if "lastOffset" in fields else None)
        assert (-1 if row["coordinatorEpoch"] is None else row["coordinatorEpoch"]) == int(fields["coordinatorEpoch"])
        assert f"[{row['currentTxnFirstOffset']}]" in fields["currentTxnFirstOffset"] or (
            row["currentTxnFirstOffset"] is None and fields["currentTxnFirstOffset"] == "OptionalLong.empty"
        )


def test_without_snapshots_the_batches_tell_the_same_producers(tmp_path: Path) -> None:
    """Producers, transactions and stable offsets do not depend on which of their two sources is there."""
    copy = tmp_path / "data"
    shutil.copytree(MODERN.data, copy)
    for snapshot in copy.rglob("*.snapshot"):
        snapshot.unlink()
    before, after = described(MODERN.data, deep=True).report, described(copy, deep=True).report
    stable = [{name: row["lastStableOffset"] for name, row in by_partition(of["partitions"]).items()} for of in (before, after)]
    assert stable[0] == stable[1]
    assert after["openTransactions"] == before["openTransactions"]
    # The cleaner took batches that the snapshots remember; the broker forgot producers whose last batch was years ago.
    compacted = {"compacted", "compacted-now", "compacted-txn"}
    kept = [row for row in before["producers"] if row["topic"] not in compacted]
    assert len(kept) > 10 and all(row in after["producers"] for row in kept)


def committed_by_the_dumps(given: LogSet) -> dict[tuple[str, str, int], int]:
    """(group, topic, partition) -> committed offset, from Kafka's text alone: a record counts at its offset or never."""
    last: dict[tuple[str, str, int], int | None] = {}
    for path in log_files(given):
        if not path.startswith("__consumer_offsets-"):
            continue
        lines = list(shown(dump_of(given, path)))
        for line in lines:
            if line.key and line.key["type"] == "1":
                ends = [end.control for end in lines if end.control and end.producer_id == line.producer_id]
                if not line.is_transactional or ends:
                    behind = [end.control for end in lines if end.control and end.offset > line.offset]
                    if line.is_transactional and behind[0] != "COMMIT":
                        continue
                    data = line.key["data"]
                    last[data["group"], data["topic"], data["partition"]] = line.payload and line.payload["data"]["offset"]
    return {key: offset for key, offset in last.items() if offset is not None}


def dump_of(given: LogSet, path: str) -> Path:
    plain = given.dumps / f"{path}.txt"
    return plain if plain.exists() else given.dumps / f"{path}.txt.gz"


def test_groups_have_the_dumps_offsets_and_the_logs_lag() -> None:
    groups = described(MODERN.data, show=frozenset(("groups",))).report["groups"]
    found = {(group["groupId"], row["topic"], row["partition"]): row for group in groups for row in group["offsets"]}
    committed = {key: row["committedOffset"] for key, row in found.items() if "committedOffset" in row}
    assert committed == committed_by_the_dumps(MODERN)
    ends = {path.split("/")[0]: dumped_segment(MODERN, path).end_offset for path in sorted(log_files(MODERN))}
    for (_, topic, partition), row in found.items():
        assert row["logEndOffset"] == ends[f"{topic}-{partition}"]
        if "committedOffset" in row:
            assert row["lag"] == ends[f"{topic}-{partition}"] - row["committedOffset"]
    by_id = {group["groupId"]: group for group in groups}
    assert {name: group["kind"] for name, group in by_id.items()} == {
        "by-hand": "classic",
        "classic-group": "classic",
        "consumer-group": "consumer",
        "eos-group": "classic",
        "share-group": "share",
    }
    assert by_id["classic-group"]["totalLag"] == 50 and by_id["share-group"]["totalLag"] is None


def test_transactional_ids_are_the_last_records_of_the_dumps() -> None:
    rows = described(MODERN.data, show=frozenset(("transactions",))).report["transactions"]
    last: dict[str, Any] = {}
    for path in log_files(MODERN):
        if path.startswith("__transaction_state-"):
            last |= {line.key["data"]["transactionalId"]: line.payload for line in shown(dump_of(MODERN, path)) if line.key}
    assert [row["transactionalId"] for row in rows] == sorted(last) and len(rows) > 5
    for row in rows:
        data = last[row["transactionalId"]]["data"]
        assert (row["producerId"], row["producerEpoch"], row["timeoutMs"], row["startTimestamp"]) == (
            data["producerId"],
            data["producerEpoch"],
            data["transactionTimeoutMs"],
            data["transactionStartTimestampMs"],
        )


def metadata_records(given: LogSet) -> list[dict[str, Any]]:
    """The payloads of the metadata log and of its snapshots in Kafka's dumps, in no particular order."""
    lines = [
        line
        for path in given.dumped_paths()
        if path.startswith("__cluster_metadata-0/") and path.endswith((".log", ".checkpoint"))
        for line in given.golden(path).decode().split("\n")
    ]
    return [json.loads(found[1]) for line in lines if (found := re.search(r" payload: (\{.*\})$", line))]


def test_topics_and_the_cluster_are_what_the_metadata_log_says() -> None:
    report = described(MODERN.data).report
    records = metadata_records(MODERN)
    made = {record["data"]["name"]: record["data"]["topicId"] for record in records if record["type"] == "TOPIC_RECORD"}
    removed = {record["data"]["topicId"] for record in records if record["type"] == "REMOVE_TOPIC_RECORD"}
    topics = {row["name"]: row for row in report["topics"] if row["name"] != "__cluster_metadata"}
    assert {name: row["id"] for name, row in topics.items()} == {
        name: topic_id for name, topic_id in made.items() if topic_id not in removed
    }
    assert (topics["grown"]["partitions"], topics["grown"]["partitionsHere"], topics["grown"]["replicationFactor"]) == (3, 3, 1)
    (cluster,) = report["cluster"]
    assert cluster["clusterId"] == "kcliKcliKcliKcliKcliKg"
    assert (cluster["logDirectories"][0]["nodeId"], cluster["logDirectories"][0]["isCleanShutdown"]) == (1, True)
    assert {row["name"]: row["version"] for row in cluster["features"]}["metadata.version"] == "4.3-IV0"
    assert (cluster["quorum"]["leaderId"], [voter["id"] for voter in cluster["quorum"]["voters"]]) == (1, [1])
    assert [(row["id"], row["endpoints"][0]["port"]) for row in report["brokers"]] == [(1, 19092)]
    assert {(row["user"], row["mechanism"], row["iterations"]) for row in report["users"]} == {("anna", "SCRAM-SHA-256", 4096)}
    assert [(row["entity"], row["key"], row["value"]) for row in report["quotas"]] == [
        ({"user": "anna"}, "producer_byte_rate", 1048576.0)
    ]
    assert [(row["principal"], row["resourceName"], row["patternType"]) for row in report["acls"]] == [
        ("User:anna", "orders", "PREFIXED")
    ]
    assert report["problems"] == [] and report["unknowns"] == []


def test_configurations_are_the_last_records_of_each_name() -> None:
    rows = described(MODERN.data, show=frozenset(("configs",))).report["configs"]
    set_values = {
        (record["data"]["resourceName"], record["data"]["name"], record["data"]["value"])
        for record in metadata_records(MODERN)
        if record["type"] == "CONFIG_RECORD" and record["data"]["value"] is not None
    }
    found = {(row["resourceName"], row["name"], row["value"]) for row in rows}
    # orders' retention.ms was set and taken back.
    assert found == {row for row in set_values if row[:2] != ("orders", "retention.ms")}


# ------------------------------------------------------------------------------------------------------------ partial input


def test_a_metadata_log_elsewhere_tells_the_same(tmp_path: Path) -> None:
    """metadata.log.dir may be another directory: given both, nothing is lost."""
    data, metadata = tmp_path / "data", tmp_path / "metadata"
    shutil.copytree(MODERN.data, data)
    metadata.mkdir()
    shutil.move(data / "__cluster_metadata-0", metadata / "__cluster_metadata-0")
    shutil.copy(data / "meta.properties", metadata)
    whole, apart = described(MODERN.data).report, described(data, metadata).report
    for section in ("topics", "configs", "acls", "users", "quotas", "groups", "transactions", "brokers", "controllers"):
        assert apart[section] == whole[section], section
    alone = described(data).report
    assert [alone[section] for section in ("configs", "acls", "brokers", "users")] == [None] * 4
    assert any("__cluster_metadata-0 is not in the given directories" in sentence for sentence in alone["unknowns"])
    assert {row["name"]: row["id"] for row in alone["topics"]} == {
        row["name"]: row["id"] for row in whole["topics"] if row["replicasHere"] and row["name"] != "__cluster_metadata"
    }


def test_a_single_partition_is_told_with_the_checkpoints_beside_it() -> None:
    report = described(MODERN.data / "orders-0", show=None).report
    (row,) = report["partitions"]
    assert (row["logEndOffset"], row["highWatermark"], row["leader"]) == (150, 150, None)
    assert "groups" not in report and len(report["segments"]) == 1 and len(report["leaderEpochs"]) == 2


def test_a_coordinators_partition_alone_is_opened() -> None:
    report = described(MODERN.data / "__consumer_offsets-0", show=None).report
    groups = {group["groupId"]: group for group in report["groups"]}
    assert "eos-group" in groups and "consumer-group" not in groups
    (offset,) = groups["eos-group"]["offsets"]
    assert (offset["committedOffset"], offset["logEndOffset"], offset["lag"]) == (1257, None, None)


def test_a_directory_of_kafka_2_8_says_what_zookeeper_kept() -> None:
    report = described(log_sets(FIXTURES)[1].data).report
    assert {magic for row in report["segments"] for magic in row["formats"]} == {0, 1, 2}
    assert report["configs"] is None and any("ZooKeeper" in sentence for sentence in report["unknowns"])


def test_formatted_storage_tells_its_features(tmp_path: Path) -> None:
    for name in ("bootstrap.checkpoint", "meta.properties"):
        shutil.copy(MODERN.data / name, tmp_path)
    (cluster,) = described(tmp_path).report["cluster"]
    assert {row["name"] for row in cluster["features"]} >= {"metadata.version", "group.version"}
    assert cluster["metadata"]["isBootstrap"] and cluster["quorum"] is None


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="several clusters"):
        described(*(given.data for given in log_sets(FIXTURES)))
    with pytest.raises(DescriptionError, match="no such file"):
        described(tmp_path / "missing")


def test_replicas_of_two_nodes_count_once_where_one_answer_is_wanted(tmp_path: Path) -> None:
    """A follower that is behind does not change a group's lag."""
    behind = tmp_path / "other-node"
    behind.mkdir()
    follower = PartitionBuilder(behind / "orders-0")
    follower.append([(None, b"v")] * 5)
    follower.flush()
    report = described(behind, MODERN.data).report
    assert sorted(row["logEndOffset"] for row in report["partitions"] if row["path"].endswith("orders-0")) == [5, 150]
    group = next(row for row in report["groups"] if row["groupId"] == "classic-group")
    assert group["totalLag"] == 50
    orders = next(row for row in report["topics"] if row["name"] == "orders")
    assert (orders["partitionsHere"], orders["replicasHere"], orders["records"]) == (3, 4, 350)


# ------------------------------------------------------------------------------------------------------- built directories


def test_a_transaction_that_no_coordinator_will_end_is_hanging(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", *(f"__transaction_state-{number}" for number in range(3))):
        shutil.copytree(MODERN.data / name, tmp_path / name)
    orders = PartitionBuilder(tmp_path / "orders-0")
    orders.append([(b"k", b"v")])
    first = orders.append([(b"k", b"open")], producer=4242, transactional=True)
    orders.append([(b"k", b"v")])
    orders.flush()
    report = described(tmp_path).report
    found = {row["producerId"]: row for row in report["openTransactions"]}
    assert (found[4242]["firstOffset"], found[4242]["isHanging"], found[4242]["transactionalId"]) == (first, True, None)
    assert by_partition(report["partitions"])["orders-0"]["lastStableOffset"] == first
    shutil.rmtree(tmp_path / "__transaction_state-1")
    report = described(tmp_path).report
    assert [row["isHanging"] for row in report["openTransactions"] if row["producerId"] == 4242] == [None]
    assert any("Only 2 of the 3 partitions of __transaction_state" in sentence for sentence in report["unknowns"])


def large_partition(path: Path, batches: int) -> PartitionBuilder:
    builder = PartitionBuilder(path / "large-0")
    for number in range(batches):
        builder.append([(b"k", bytes(100))] * 3, codec=(0, 4)[number > batches // 2])
    builder.flush()
    builder.snapshot()
    return builder


def test_a_large_segment_is_sampled_and_read_whole_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sample tells is true, what it cannot tell is left out, and it costs no more than its share."""
    large_partition(tmp_path, 600)
    monkeypatch.setattr(topic_sections, "COST_PER_RUN", 300)
    (deep,) = described(tmp_path / "large-0", deep=True).report["segments"]
    sampled = described(tmp_path / "large-0").report
    (row,) = sampled["segments"]
    assert (deep["isComplete"], deep["batches"], deep["records"]) == (True, 600, 1800)
    assert (row["isComplete"], row["batches"], row["records"]) == (False, None, None)
    assert [codec["name"] for codec in row["codecs"]] == ["none", "zstd"] == [codec["name"] for codec in deep["codecs"]]
    assert [codec["batches"] for codec in row["codecs"]] == [None, None]
    for member in ("firstTimestamp", "maxTimestamp", "endOffset", "sizeInBytes"):
        assert row[member] == deep[member], member
    assert any("--deep" in sentence for sentence in sampled["unknowns"])


def test_a_segment_of_many_bytes_is_not_counted_by_headers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count is that of sound batches or none: without --deep the CRCs of a large segment would take too long."""
    builder = large_partition(tmp_path, 20)
    log = builder.path(".log")
    flip(log, log.stat().st_size // 2)
    (read,) = described(tmp_path / "large-0").report["segments"]
    monkeypatch.setattr(segment_survey, "BYTES_PER_RUN", log.stat().st_size - 1)
    monkeypatch.setattr(segment_survey, "LEAST_BYTES_PER_SEGMENT", 0)
    (row,) = described(tmp_path / "large-0").report["segments"]
    (deep,) = described(tmp_path / "large-0", deep=True).report["segments"]
    assert (row["isComplete"], row["batches"], row["records"]) == (False, None, None)
    assert read == deep and (deep["isComplete"], deep["batches"], deep["records"]) == (True, 19, 57)
    for member in ("firstTimestamp", "maxTimestamp", "endOffset", "sizeInBytes"):
        assert row[member] == deep[member], member


def test_the_largest_timestamp_of_a_closed_segment_is_its_time_indexs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it lies in the middle, which no sample meets."""
    builder = PartitionBuilder(tmp_path / "large-0")
    for number in range(300):
        builder.append([(b"k", b"v")], timestamp=1_700_000_000_000 + (9_999_999 if number == 150 else number))
    builder.roll()
    builder.append([(b"k", b"v")])
    builder.flush()
    monkeypatch.setattr(topic_sections, "COST_PER_RUN", 2)
    first, last = described(tmp_path / "large-0").report["segments"]
    assert (first["isComplete"], first["maxTimestamp"]) == (False, 1_700_009_999_999)
    assert last["isComplete"]


def test_the_budget_gives_what_is_left_to_those_to_come() -> None:
    budget = segment_survey.HeaderBudget(1000, 4)
    assert budget.share() == 250
    budget.spend(10)
    assert budget.share() == 330
    for _ in range(3):
        budget.spend(1000)
    assert budget.share() == segment_survey.LEAST_COST_PER_SEGMENT
    assert segment_survey.HeaderBudget(None, 4).share() is None


def test_the_budget_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What small segments leave goes to larger ones; each may read a little."""
    monkeypatch.setattr(segment_survey, "BYTES_PER_RUN", 1000)
    monkeypatch.setattr(segment_survey, "LEAST_BYTES_PER_SEGMENT", 20)
    budget = segment_survey.HeaderBudget(1000, 4)
    assert budget.may_read(250) and not budget.may_read(251)
    budget.spend(1, 10)
    assert budget.may_read(330) and not budget.may_read(331)
    budget.spend(1, 5000)
    assert budget.may_read(20) and not budget.may_read(21)
    assert segment_survey.HeaderBudget(None, 4).may_read(1 << 40)


def test_a_crash_leaves_producers_to_the_batches_behind_the_snapshot(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "orders-0")
    builder.append([(b"k", b"v")], producer=1, transactional=True)
    builder.snapshot()
    builder.end_transaction(1, commit=True)
    first = builder.append([(b"k", b"v")], producer=2, transactional=True)
    builder.flush()
    report = described(tmp_path / "orders-0").report
    found = {row["producerId"]: row["currentTxnFirstOffset"] for row in report["producers"]}
    assert found == {1: None, 2: first}
    assert report["partitions"][0]["lastStableOffset"] == first


def test_too_many_batches_behind_the_snapshot_leave_the_stable_offset_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kcli.inspect.description import partition_log

    builder = large_partition(tmp_path, 200)
    next(iter((tmp_path / "large-0").glob("*.snapshot"))).unlink()
    monkeypatch.setattr(partition_log, "PRODUCER_COST_PER_RUN", 20)
    report = described(tmp_path / "large-0").report
    (row,) = report["partitions"]
    assert (row["lastStableOffset"], row["openTransactions"], row["logEndOffset"]) == (None, None, builder.offset)
    assert any("producer snapshot" in sentence for sentence in report["unknowns"])
    assert described(tmp_path / "large-0", deep=True).report["partitions"][0]["lastStableOffset"] == builder.offset


def test_the_metadata_log_has_no_producers_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches it has: a controller writes them without producer ids."""
    from kcli.inspect.description import partition_log

    large_partition(tmp_path, 200)
    (tmp_path / "large-0").rename(tmp_path / "__cluster_metadata-0")
    next(iter((tmp_path / "__cluster_metadata-0").glob("*.snapshot"))).unlink()
    monkeypatch.setattr(partition_log, "PRODUCER_COST_PER_RUN", 20)
    report = described(tmp_path / "__cluster_metadata-0", show=frozenset(("partitions", "producers"))).report
    (row,) = report["partitions"]
    assert (row["lastStableOffset"], row["openTransactions"]) == (row["logEndOffset"], 0)
    assert not any("producer snapshot" in sentence for sentence in report["unknowns"])


def test_directories_on_their_way_are_told_by_their_state(tmp_path: Path) -> None:
    unique_id = "0123456789abcdef0123456789abcdef"
    for suffix in ("", f".{unique_id}-delete", f".{unique_id}-future", f".{unique_id}-stray"):
        builder = PartitionBuilder(tmp_path / f"orders-0{suffix}")
        builder.append([(b"k", b"v")])
        builder.flush()
    rows = described(tmp_path).report["partitions"]
    assert sorted(row["state"] for row in rows) == ["current", "delete", "future", "stray"]
    assert all(parse_partition_directory("orders-0").topic == row["topic"] for row in rows)


def test_secrets_never_come_out() -> None:
    """Neither those of SCRAM nor sensitive configurations, by no section."""
    from kcli.inspect.description.cluster_sections import config_rows, user_rows
    from kcli.inspect.description.describe_options import DescribeOptions
    from kcli.state.metadata_image import MetadataImage

    image = MetadataImage()
    config = message_type("metadata_records", "ConfigRecord")
    for name, value in (("listener.name.x.ssl.keystore.password", "hush-1"), ("sasl.jaas.config", "hush-2"), ("k", "told")):
        image.apply(config.new(resource_type=4, resource_name="1", name=name, value=value))
    scram = message_type("metadata_records", "UserScramCredentialRecord")
    secrets = {"salt": b"hush-3", "stored_key": b"hush-4", "server_key": b"hush-5"}
    image.apply(scram.new(name="anna", mechanism=2, iterations=4096, **secrets))
    rows = [*config_rows(image, DescribeOptions()), *user_rows(image)]
    assert "hush" not in repr(rows) and "told" in repr(rows)
    assert [row["isSensitive"] for row in rows[:3]] == [False, True, True]
    assert {"user": "anna", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows


def test_filters_keep_what_they_name() -> None:
    report = described(MODERN.data, topics=("ord*", "compacted-txn"), show=None).report
    assert {row["name"] for row in report["topics"]} == {"orders", "compacted-txn"}
    assert {row["topic"] for row in report["partitions"]} == {"orders", "compacted-txn"}
    assert {row["groupId"] for row in report["groups"]} == {"by-hand", "classic-group", "consumer-group", "share-group"}
    assert {row["resourceName"] for row in report["configs"]} == {"compacted-txn"}
    report = described(MODERN.data, groups=("*-group",), show=None).report
    assert {row["groupId"] for row in report["groups"]} == {"classic-group", "consumer-group", "eos-group", "share-group"}
    assert "topics" not in report and report["members"] == []
