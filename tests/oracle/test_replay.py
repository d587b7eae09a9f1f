"""Protects `kcli replay` against Apache Kafka's broker: what arrives is what dump-log shows, killed or not, and offsets follow.

The source is also a broker, kcli's, on a log directory that Kafka wrote: with aborted and open transactions in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kcli.log.disk.os_disk import OsDisk
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.selecting.selection import Selection
from tests.conftest import SHARED
from tests.oracle.brokers import copy_of_given, new_broker
from tests.oracle.peer import Peer
from tests.replay.delivered import delivered, delivered_of_given
from tests.replay.runs import arrived, replay, replay_killed
from tests.server.live import LiveServer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]


class Target(NamedTuple):
    """A broker of Kafka, and its log directory."""

    bootstrap: str
    data: Path


@pytest.fixture(scope="module")
def target(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("target")
    with new_broker(kafka_peer, home, "log.retention.ms=-1", "log.cleaner.enable=false") as bootstrap:
        yield Target(bootstrap, home / "data")


def given(name: str) -> Path:
    data = SHARED / name / "data"
    if not data.is_dir():
        pytest.skip(f"../shared/{name} is not beside this checkout")
    return data


@pytest.mark.parametrize("name", ["kafka-logs", "kafka-logs-legacy"])
def test_what_arrives_is_what_dump_log_shows(target: Target, name: str) -> None:
    data = given(name)
    run = replay(data, "--to", target.bootstrap, "--map", r"(.*)=plain.\1", "--check")
    assert run.code == 0, run.messages
    expected = delivered_of_given(data)
    assert {where: rows for where, rows in arrived(target.data, "plain.").items() if where in expected} == expected


@pytest.mark.parametrize("kept", ["group", "file", "joined"])
def test_killed_at_random_moments(target: Target, tmp_path: Path, kept: str) -> None:
    data = given("kafka-logs")
    options = {"file": ["--progress", tmp_path / "progress"], "joined": ["--join", "4KiB"]}.get(kept, [])
    mapping = rf"(.*)={kept}.\1"
    run = replay_killed(20, 7, data, "--to", target.bootstrap, "--map", mapping, "--rate", "6K", "--check", *options)
    assert run.code == 0, run.messages
    assert arrived(target.data, f"{kept}.") == delivered_of_given(data)


def test_offsets_of_groups_point_at_the_same_records(target: Target) -> None:
    """A consumer of a group has as many records ahead of it in the target as in the source."""
    data = given("kafka-logs")
    run = replay(data, "--to", target.bootstrap, "--map", r"(.*)=groups.\1", "--groups")
    assert run.code == 0, run.messages
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    asked = [ConsumerGroupTopicPartitions("classic-group"), ConsumerGroupTopicPartitions("eos-group")]
    checked = 0
    for one in asked:
        found = admin.list_consumer_group_offsets([one])[one.group_id].result(60).topic_partitions
        for committed in (at for at in found if at.topic.startswith("groups.")):
            consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "ends"})
            _, end = consumer.get_watermark_offsets(TopicPartition(committed.topic, committed.partition), 60)
            consumer.close()
            topic = committed.topic.removeprefix("groups.")
            source = offset_in(data, one.group_id, topic, committed.partition)
            options = ("--isolation", "read_committed", "--offset", f"{source}..")
            ahead = delivered(data / f"{topic}-{committed.partition}", options=options)
            assert end - committed.offset == len(ahead.get((topic, committed.partition), [])), committed
            checked += 1
    assert checked > 3


def offset_in(data: Path, group: str, topic: str, partition: int) -> int:
    """The committed offset of a group in a log directory."""
    source = DirectorySource(OsDisk(), [str(data)], Selection(), lambda name: name == topic, Problems(lambda sentence: None))
    return next(one.offset for one in source.committed_offsets([group]) if one.partition == partition)


def test_from_a_cluster_with_aborted_transactions(target: Target, tmp_path: Path) -> None:
    data = copy_of_given(given("kafka-logs"), tmp_path / "copy")
    settings = ("node.id=1", "log.cleaner.enable=false")
    with LiveServer(tmp_path / "source", *settings, data=data) as source:
        run = replay(
            f"kafka://127.0.0.1:{source.port}", "--to", target.bootstrap, "--map", r"(.*)=cluster.\1", "--check", "--groups"
        )
        assert run.code == 0, run.messages
    expected = delivered(given("kafka-logs"))
    found = arrived(target.data, "cluster.")
    # A broker does not serve the records below the log start offset, which dump-log shows.
    trimmed = found.pop(("trimmed", 0))
    assert trimmed == expected.pop(("trimmed", 0))[-len(trimmed) :]
    assert found == expected
