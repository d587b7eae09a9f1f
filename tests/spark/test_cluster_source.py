"""Protects kafka://HOST:PORT as the input of Spark and to-parquet: a running cluster has the rows of its log directory.

The broker has the directory that Kafka wrote: all codecs, headers, transactions that were committed and aborted, and an open
one. The directory itself is the judge.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import OffsetSpec
from kcli.client.admin.topics import NewTopic
from kcli.client.shell.admin import Admin
from kcli.client.shell.producer import Producer
from kcli.commands.app import main
from kcli.log.disk.os_disk import OsDisk
from kcli.replay import fetching
from kcli.spark.data_source import KafkaLogDataSource
from kcli.spark.log_partitions import PlanError, UnknownTopicError
from kcli.spark.planning import OffsetRange, count_plan, find_partitions
from kcli.spark.read_options import OptionError, parse_options
from kcli.spark.table_schemas import TableError
from tests.certificates import Authority
from tests.client.secured_proxy import SecuredProxy
from tests.conftest import FIXTURES
from tests.server.live import LiveServer, wait_for
from tests.spark.source import rows_of, splits_of

ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
ALL = {"includeControl": "true", "includeAborted": "true", "includeOpen": "true"}


class Cluster:
    """A broker, and its directory."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.data = server.data
        self.servers = f"127.0.0.1:{server.port}"
        self.url = f"kafka://{self.servers}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster")
    shutil.copytree(FIXTURES / "kafka-logs" / "data", home / "data")
    (home / "data" / ".lock").unlink(missing_ok=True)
    # The open transaction of the directory stays open.
    with LiveServer(home, "log.cleaner.enable=false", f"{ABORT_INTERVAL}=3600000") as server:
        yield Cluster(server)


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in one order, without the columns of files."""
    return sorted(repr({name: value for name, value in row.items() if name not in ("segment", "position")}) for row in rows)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("options", [{}, ALL, {**ALL, "maxPartitionBytes": "20000"}, {"minPartitions": "7"}])
def test_a_cluster_has_the_rows_of_its_directory(cluster: Cluster, isolation: str, options: dict[str, str]) -> None:
    found = rows_of(cluster.url, kafka_isolation_level=isolation, **options)
    expected = rows_of(cluster.data, kafka_isolation_level=isolation, **options)
    assert len(expected) > 5_000
    assert comparable(found) == comparable(expected)


def test_windows_of_one_batch_have_the_same_rows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that reaches over many answers is known in each of them."""
    monkeypatch.setattr("kcli.replay.fetching.FETCH_BYTES", 1)
    options = {"subscribe": "transactions,open-transaction,orders"}
    for isolation in ("read_uncommitted", "read_committed"):
        found = rows_of(cluster.url, kafka_isolation_level=isolation, **options)
        assert comparable(found) == comparable(rows_of(cluster.data, kafka_isolation_level=isolation, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"orders":{"0":3,"1":-2,"2":-1}}', "endingOffsets": '{"orders":{"0":77,"1":-1,"2":-1}}'},
        {"startingTimestamp": "1", "endingTimestamp": "2"},
        {"columns": "offset,value"},
        {"includeHeaders": "false", "assign": '{"orders":[1]}'},
    ],
)
def test_choices_are_those_of_a_directory(cluster: Cluster, options: dict[str, str]) -> None:
    if "assign" not in options:
        options = {**options, "subscribe": "orders"}
    assert comparable(rows_of(cluster.url, **options)) == comparable(rows_of(cluster.data, **options))


def test_times_are_looked_up_by_the_cluster(cluster: Cluster) -> None:
    times = sorted(row["timestamp"] for row in rows_of(cluster.data, subscribe="orders"))
    middle_ms = str(int(times[len(times) // 2].timestamp() * 1000))
    options = {"subscribe": "orders", "startingTimestamp": middle_ms, "startingOffsetsByTimestampStrategy": "latest"}
    found = rows_of(cluster.url, **options)
    assert 0 < len(found) < len(times)
    assert comparable(found) == comparable(rows_of(cluster.data, **options))


def wait_for_end(cluster: Cluster, offset: int) -> None:
    """Wait until topic `open` ends at an offset: the end of a transaction is answered before its marker is written."""
    with Admin({"bootstrap.servers": cluster.servers}) as admin:
        key = ("open", 0)
        wait_for(lambda: value_of(admin.list_offsets({key: OffsetSpec.LATEST})[key]).offset == offset)


def test_an_open_transaction(cluster: Cluster) -> None:
    """What is behind the last stable offset is left out and counted; a transaction that was aborted there is known, too."""
    with Admin({"bootstrap.servers": cluster.servers}) as admin:
        admin.create_topics([NewTopic("open", 1)])
    settings = {"bootstrap.servers": cluster.servers, "transactional.id": "one"}
    with Producer(settings) as one, Producer(settings | {"transactional.id": "other"}) as other:
        for producer in (one, other):
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(3):
                producer.send("open", b"%d" % number)
            producer.flush()
        other.abort_transaction()
        wait_for_end(cluster, 7)
        counts = []
        for path in (cluster.url, str(cluster.data)):
            options = {"subscribe": "open", "stopAtHighWatermark": "false"}
            read = parse_options({"path": path, **options, "kafka.isolation.level": "read_committed"})
            ranges = [OffsetRange(part, 0, 1 << 62) for part in find_partitions(OsDisk(), read)]
            counts.append(count_plan(ranges, read, {}).left_out.left_out_of())
            assert rows_of(path, kafka_isolation_level="read_committed", **options) == []
            rows = rows_of(path, **options)
            assert [(row["value"], row["aborted"]) for row in rows] == [(b"%d" % (at % 3), at >= 3) for at in range(6)]
        assert counts == [{("open", 0): {"beyondLastStableOffset": 7}}] * 2
        one.commit_transaction()
    wait_for_end(cluster, 8)
    assert len(rows_of(cluster.url, subscribe="open", kafka_isolation_level="read_committed")) == 3


def test_splits_cover_each_offset_once(cluster: Cluster) -> None:
    _, splits = splits_of(cluster.url, subscribe="orders", minPartitions="10")
    ranges = sorted((part.partition, part.first_offset, part.end_offset) for split in splits for part in split.ranges)
    assert len(ranges) >= 9
    for (partition, _, end), (following, first, _) in pairwise(ranges):
        assert first == (end if partition == following else 0)


def test_new_records_are_read(cluster: Cluster) -> None:
    with Producer({"bootstrap.servers": cluster.servers}) as producer:
        producer.send("orders", b"new", partition=0)
    assert rows_of(cluster.url, subscribe="orders", startingOffsets='{"orders":{"0":150,"1":-1,"2":-1}}')[-1]["value"] == b"new"


def test_offsets_that_were_deleted_since_planning(cluster: Cluster) -> None:
    with Admin({"bootstrap.servers": cluster.servers}) as admin:
        _, splits = splits_of(cluster.url, subscribe="orders")
        admin.delete_records({("orders", 2): 40})
    reader, _ = splits_of(cluster.url, subscribe="orders")
    with pytest.raises(PlanError, match="orders-2: offsets 0 to 39 were deleted while the job ran"):
        list(reader.read(splits[0]))
    lenient, _ = splits_of(cluster.url, subscribe="orders", failOnDataLoss="false")
    offsets = [row["offset"] for batch in lenient.read(splits[0]) for row in batch.to_pylist() if row["partition"] == 2]
    assert offsets[0] == 40


def test_a_topic_that_was_made_again_ends_the_task(cluster: Cluster) -> None:
    """Its offsets would be read as those of the topic of the plan."""
    with Admin({"bootstrap.servers": cluster.servers}) as admin:
        admin.create_topics([NewTopic("again", 1)])
        with Producer({"bootstrap.servers": cluster.servers}) as producer:
            producer.send_and_wait("again", b"old")
        reader, splits = splits_of(cluster.url, subscribe="again")
        admin.delete_topics(["again"])
        admin.create_topics([NewTopic("again", 1)])
        with Producer({"bootstrap.servers": cluster.servers}) as producer:
            producer.send_and_wait("again", b"new")
    with pytest.raises(PlanError, match="again-0: the topic was deleted and created again while the job ran"):
        list(reader.read(splits[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "batches"}, "the table batches needs log directories"),
        ({"onCorrupt": "skip"}, r"onCorrupt=skip \(--on-corrupt skip\) needs log directories"),
        ({"includeBelowLogStart": "true"}, "includeBelowLogStart needs log directories"),
        ({"paths": '["/tmp"]'}, "must be the only path"),
        ({"columns": "segment"}, "has no column segment"),
        ({"subscribe": "ordres"}, "no partition of the topic ordres"),
    ],
)
def test_what_a_cluster_does_not_have_is_refused(cluster: Cluster, options: dict[str, str], message: str) -> None:
    with pytest.raises((PlanError, UnknownTopicError, TableError), match=message):
        splits_of(cluster.url, **options)


def test_a_cluster_is_not_streamed(cluster: Cluster) -> None:
    source = KafkaLogDataSource({"path": cluster.url})
    with pytest.raises(OptionError, match="use Spark's format kafka"):
        source.streamReader(source.schema())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka://", "names no broker"),
        ("kafka://nowhere", "'nowhere' is not an address"),
        ("kafka://127.0.0.1:1", "Connection refused"),
    ],
)
def test_a_cluster_that_cannot_be_reached(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcli.spark.cluster_partitions._PLANNING_TIMEOUT_MS", 300)
    with pytest.raises(PlanError, match=message):
        splits_of(url)


def test_a_log_that_was_cut_ends_the_task(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task does not wait for ever for records that are gone."""
    monkeypatch.setattr(fetching, "MOST_EMPTY_ANSWERS", 1)
    reader, splits = splits_of(cluster.url, subscribe="orders")
    planned = splits[0].ranges[0]._replace(partition=1, file=f"{cluster.url}/orders-1", first_offset=99, end_offset=10_000)
    splits[0].ranges[:] = [planned]
    with pytest.raises(PlanError, match="the log ends at offset 100 now, and was to be read up to 10000"):
        list(reader.read(splits[0]))


def test_offsets_without_records_at_the_end(tmp_path: Path) -> None:
    """A repair or the log cleaner may leave an empty active segment: the log end offset is its first one."""
    shutil.copytree(FIXTURES / "kafka-logs" / "data", tmp_path / "data")
    (tmp_path / "data" / "orders-1" / "00000000000000000200.log").touch()
    with LiveServer(tmp_path) as server:
        with Admin({"bootstrap.servers": f"127.0.0.1:{server.port}"}) as admin:
            assert value_of(admin.list_offsets({("orders", 1): OffsetSpec.LATEST})["orders", 1]).offset == 200
        url = f"kafka://127.0.0.1:{server.port}"
        assert [row["offset"] for row in rows_of(url, assign='{"orders":[1]}')] == list(range(100))


@pytest.mark.parametrize("name", ["kafka.securty.protocol", "kafka.security_protocol", "security.protocol"])
def test_a_misspelt_protocol_is_refused(name: str) -> None:
    """As an option of Spark's own source it would be ignored, and the connections would have no protection."""
    with pytest.raises(OptionError, match=f"there is no option '{name}'; did you mean kafka.security.protocol?"):
        parse_options({"path": "kafka://127.0.0.1:1", "kafka.bootstrap.servers": "x", name: "SSL"})


def test_a_cluster_with_tls_and_sasl(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The options kafka.security.*, kafka.ssl.* and kafka.sasl.* are those of the client, in planning and in tasks."""
    authority = Authority(tmp_path / "authority")
    with (
        SecuredProxy(authority.issue("broker"), {"alice": "hush"}) as proxy,
        LiveServer(tmp_path / "broker", f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}") as server,
    ):
        proxy.target = lambda: server.port
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(authority.pem),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "hush",
        }
        with Producer({"bootstrap.servers": f"127.0.0.1:{proxy.port}", **settings}) as producer:
            for number in range(10):
                producer.send_and_wait("secured", b"%d" % number)
        url, options = f"kafka://127.0.0.1:{proxy.port}", {f"kafka.{name}": value for name, value in settings.items()}
        assert [row["value"] for row in rows_of(url, **options)] == [b"%d" % number for number in range(10)]
        parsed = parse_options({"path": url, **options})
        assert parsed.client == settings and "hush" not in repr(parsed)
        with pytest.raises(PlanError, match="it refused the authentication of the user 'alice'") as raised:
            rows_of(url, **{**options, "kafka.sasl.password": "another"})
        assert "another" not in str(raised.value)
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in {**settings, "sasl.password": "another"}.items()))
        assert main(["to-parquet", url, "--out", str(tmp_path / "out"), "--command-config", str(file)]) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and "it refused the authentication of the user 'alice'" in err and "another" not in err


def test_settings_of_a_client_are_not_for_a_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An operator who gives them expects that they are used."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    assert main(["to-parquet", str(tmp_path), "--out", str(tmp_path / "out"), "--command-config", str(file)]) == 2
    assert "--command-config is for kafka://HOST:PORT; log directories are read without a client" in capfd.readouterr().err
