"""Protects `kcli replay` as a command against kcli's own broker: what arrives is what dump-log shows, also after kills.

tests/oracle/test_replay.py does the same with Apache Kafka's broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SHARED
from tests.log_builder import PartitionBuilder
from tests.replay.delivered import delivered_of_given
from tests.replay.runs import arrived, replay, replay_killed
from tests.server.live import LiveServer

pytestmark = pytest.mark.ci


def given(name: str) -> Path:
    """A log directory that Kafka wrote."""
    data = SHARED / name / "data"
    if not data.is_dir():
        pytest.skip(f"../shared/{name} is not beside this checkout")
    return data


@pytest.fixture
def target(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "target") as server:
        yield server


def address(server: LiveServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("name", ["kafka-logs", "kafka-logs-legacy"])
def test_what_arrives_is_what_dump_log_shows(target: LiveServer, name: str) -> None:
    data = given(name)
    run = replay(data, "--to", address(target), "--check")
    assert run.code == 0, run.messages
    expected = delivered_of_given(data)
    assert arrived(target.data) == expected
    assert f"checked: all {sum(map(len, expected.values())):,} records" in run.messages
    assert replay(data, "--to", address(target)).code == 0
    assert arrived(target.data) == expected


@pytest.mark.parametrize("kept", ["group", "file"])
def test_killed_at_random_moments(target: LiveServer, tmp_path: Path, kept: str) -> None:
    """A few times; with Apache Kafka as the target, twenty times in each mode."""
    data = given("kafka-logs")
    options = ["--progress", tmp_path / "progress"] if kept == "file" else []
    run = replay_killed(8, 5, data, "--to", address(target), "--rate", "6K", "--check", *options)
    assert run.code == 0, run.messages
    assert arrived(target.data) == delivered_of_given(data)


def test_from_cluster_to_cluster(target: LiveServer, tmp_path: Path) -> None:
    data = given("kafka-logs-legacy")
    with LiveServer(tmp_path / "source") as source:
        assert replay(data, "--to", address(source)).code == 0
        run = replay(f"kafka://{address(source)}", "--to", address(target), "--map", r"(.*)=b.\1", "--check")
        assert run.code == 0, run.messages
    assert arrived(target.data, "b.") == delivered_of_given(data)


@pytest.mark.parametrize("options", [[], ["--name", "nightly"]], ids=str)
def test_a_cluster_is_known_by_its_id(target: LiveServer, tmp_path: Path, options: list[str]) -> None:
    """By another address it was another replay, and the only way on was to send all records twice."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for at in range(3):
        builder.append([(b"k", b"v%d" % at)])
    builder.flush()
    with LiveServer(tmp_path / "source") as source:
        assert replay(builder.directory, "--to", address(source)).code == 0
        for host in ("127.0.0.1", "localhost"):
            run = replay(f"kafka://{host}:{source.port}", "--to", address(target), "--map", "t=u", *options)
            assert run.code == 0, run.messages
    assert "continuing with the progress in the group kcli-replay-" in run.messages
    assert len(arrived(target.data)["u", 0]) == 3


def test_a_dry_run_sends_nothing(target: LiveServer) -> None:
    data = given("kafka-logs-legacy")
    run = replay(data, "--to", address(target), "--dry-run", "--topic", "magic2-*", "--map", "magic2-none=plain")
    assert run.code == 0 and "plain" in run.table and "magic1" not in run.table
    assert arrived(target.data) == {}


def test_bad_input(target: LiveServer, tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    for at in range(3):
        builder.append([(b"k", b"v%d" % at * 400)])
    builder.flush()
    log = builder.path(".log")
    good = log.read_bytes()
    log.write_bytes(good[:100] + b"\xff" + good[101:])
    run = replay(builder.directory, "--to", address(target))
    assert run.code == 1 and "byte 0: the stored CRC is" in run.messages and "left out" in run.messages
    assert len(arrived(target.data)["t", 0]) == 2
    log.write_bytes(good)
    with target.client() as client:
        client.create_topic("small", 1, max_message_bytes="500")
    run = replay(builder.directory, "--to", address(target), "--map", "t=small")
    assert run.code == 2 and "offset 0 of t-0 is larger than max.message.bytes=500" in run.messages
    run = replay(tmp_path / "none", "--to", address(target))
    assert run.code == 2 and "there is no such file or directory" in run.messages
    run = replay(builder.directory)
    assert run.code == 2 and "--to HOST:PORT" in run.messages


def test_a_target_that_is_not_there(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", b"v")])
    builder.flush()
    run = replay(builder.directory, "--to", "127.0.0.1:1", "--timeout", "1")
    assert run.code == 2 and "the target 127.0.0.1:1 cannot be reached: 127.0.0.1:1: Connection refused" in run.messages


def test_a_topic_is_not_copied_onto_itself(target: LiveServer) -> None:
    with target.client() as client:
        client.create_topic("t", 1)
    run = replay(f"kafka://{address(target)}", "--to", address(target))
    assert run.code == 2 and "the topic 't' would be copied to itself" in run.messages
    assert replay(f"kafka://{address(target)}", "--to", address(target), "--map", "t=u").code == 0
