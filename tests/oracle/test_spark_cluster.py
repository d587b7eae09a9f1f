"""Protects kafka://HOST:PORT as the input of Spark against Apache Kafka: its broker has the rows of its log directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SHARED
from tests.oracle.brokers import copy_of_given, running_broker
from tests.oracle.peer import Peer
from tests.spark.source import rows_of
from tests.spark.test_cluster_source import ALL, comparable

pytestmark = [pytest.mark.oracle, pytest.mark.ci]


@pytest.fixture(scope="module")
def running(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    source = SHARED / "kafka-logs" / "data"
    if not source.is_dir():
        pytest.skip("../shared/kafka-logs is not beside this checkout")
    home = tmp_path_factory.mktemp("spark-cluster")
    data = copy_of_given(source, home / "data")
    with running_broker(kafka_peer, home, data) as bootstrap:
        yield f"kafka://{bootstrap}", data


@pytest.mark.parametrize(
    ("isolation", "options"),
    [("read_uncommitted", {}), ("read_committed", ALL), ("read_committed", {"maxPartitionBytes": "100000"})],
)
def test_kafkas_broker_has_the_rows_of_its_directory(
    running: tuple[str, Path], isolation: str, options: dict[str, str]
) -> None:
    url, data = running
    expected = rows_of(data, kafka_isolation_level=isolation, **options)
    assert len(expected) > 10_000
    assert comparable(rows_of(url, kafka_isolation_level=isolation, **options)) == comparable(expected)
