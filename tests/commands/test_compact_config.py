"""Protects whose setting counts for `kcli compact` and describe: an option, the topic's, the node's, the cluster's, the file's.

Seen by what is done: a topic is compacted or not, segments are of a size, tombstones stay or go.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main
from kcli.format.kafka_uuid import Uuid
from kcli.inspect.compacting import partition_work
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.files.indexes import IndexAppender
from kcli.log.log_config import LogConfig
from kcli.server.raft.metadata_batches import encode_data_batch, encode_metadata_record, new_record
from tests.commands.test_compact import (
    active_base,
    last_of_each_key,
    log_bytes,
    make,
    reported,
    rows_in,
    run,
)
from tests.commands.test_repair_output import tree
from tests.inspect.verified import root_files
from tests.log.live_logs import LiveLog, new_batch

TOPIC, BROKER = 2, 4
USERS_ID = Uuid(b"\1" * 16)
LEAST_SEGMENT_BYTES = 1_048_576
Setting = tuple[int, str, str, str | None]


def metadata_log(root: Path, *settings: Setting, topic_id: Uuid = USERS_ID) -> None:
    """Write one that knows the topic `users`, and these settings."""
    topic = new_record("TopicRecord", name="users", topic_id=topic_id)
    records = [
        topic,
        *(
            new_record("ConfigRecord", resource_type=kind, resource_name=whose, name=name, value=value)
            for kind, whose, name, value in settings
        ),
    ]
    directory = root / "__cluster_metadata-0"
    directory.mkdir(exist_ok=True)
    data = encode_data_batch([encode_metadata_record(record) for record in records], 0, 1, 0)
    (directory / f"{0:020}.log").write_bytes(data)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory of node 1 with one topic of many small segments, about which a metadata log knows that it is there."""
    root = tmp_path / "logs"
    make(root, "users-0")
    (root / "users-0" / "partition.metadata").unlink()
    root_files(root, replication={"users-0": 180})
    metadata_log(root)
    return root


def properties(logs: Path, *lines: str) -> Path:
    path = logs.parent / "server.properties"
    path.write_text("\n".join(("process.roles=broker,controller", *lines, "")))
    return path


def is_compacted(logs: Path, *words: str | Path) -> bool:
    """Whether a run cleans the topic."""
    before = rows_in(logs / "users-0")
    kept = last_of_each_key(before, active_base(logs / "users-0"))
    run(*words, logs)
    after = rows_in(logs / "users-0")
    assert after in (before, kept)
    return after == kept


FILE = "log.cleanup.policy=compact"


NEAREST = pytest.mark.parametrize(
    ("line", "settings", "expected"),
    [
        ("", [], False),
        (FILE, [], True),
        ("", [(BROKER, "", "log.cleanup.policy", "compact")], True),
        ("", [(BROKER, "1", "log.cleanup.policy", "compact,delete")], True),
        ("", [(BROKER, "2", "log.cleanup.policy", "compact")], False),
        (FILE, [(BROKER, "", "log.cleanup.policy", "delete")], False),
        (FILE, [(BROKER, "", "log.cleanup.policy", "delete"), (BROKER, "1", "log.cleanup.policy", "compact")], True),
        ("", [(BROKER, "", "log.cleanup.policy", "compact"), (BROKER, "1", "log.cleanup.policy", "delete")], False),
        (FILE, [(TOPIC, "users", "cleanup.policy", "delete")], False),
        ("", [(BROKER, "1", "log.cleanup.policy", "delete"), (TOPIC, "users", "cleanup.policy", "compact")], True),
        (FILE, [(BROKER, "1", "log.cleanup.policy", "delete"), (BROKER, "1", "log.cleanup.policy", None)], True),
    ],
)


@NEAREST
def test_the_nearest_setting_counts(logs: Path, line: str, settings: list[Setting], expected: bool) -> None:
    metadata_log(logs, *settings)
    words = ["--config", properties(logs, "node.id=1", line)] if line else []
    assert is_compacted(logs, *words) is expected


def described(capfd: pytest.CaptureFixture[str], *words: str | Path) -> list[Any]:
    """What `kcli describe` tells of compacted partitions."""
    assert main(["describe", "--show", "compaction", "--output", "json", *map(str, words)]) == 0
    return [row for line in capfd.readouterr().out.splitlines() if (row := json.loads(line))["type"] == "compaction"]


@NEAREST
def test_describe_tells_of_what_would_be_compacted(
    logs: Path, line: str, settings: list[Setting], expected: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    metadata_log(logs, *settings)
    words = ["--config", properties(logs, "node.id=1", line)] if line else []
    assert len(described(capfd, *words, logs)) == expected
    assert len(described(capfd, *words, f"{logs}/users-0", logs / "__cluster_metadata-0")) == expected


def test_describe_goes_by_the_brokers_ratio_and_lag(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metadata_log(logs, (TOPIC, "users", "cleanup.policy", "compact"), (BROKER, "1", "log.cleaner.min.cleanable.ratio", "0.3"))
    config = properties(logs, "log.cleaner.min.cleanable.ratio=0.7", "log.cleaner.min.compaction.lag.ms=9000000000000000000")
    (young,), (all_of_it,) = described(capfd, "--config", config, logs), described(capfd, logs)
    assert young["minCleanableDirtyRatio"] == all_of_it["minCleanableDirtyRatio"] == 0.3
    assert young["dirtyBytes"] == 0 < all_of_it["dirtyBytes"]


def test_describe_refuses_another_nodes_file(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = properties(logs, "node.id=3")
    assert main(["describe", "--show", "compaction", "--config", str(config), str(logs)]) == 2
    assert f"node.id is 3 ({config}, line 2), and 1 in meta.properties of {logs}" in capfd.readouterr().err


def test_a_file_alone_does_not_tell_what_a_topic_is(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a metadata log the topic may have a policy of its own: it is not compacted by the default of all."""
    (logs / "__cluster_metadata-0" / f"{0:020}.log").unlink()
    (logs / "__cluster_metadata-0").rmdir()
    before = tree(logs)
    assert run("--config", properties(logs, FILE), logs) == 2
    assert "cleanup.policy is not known, since no metadata log of the node was named" in capfd.readouterr().err
    assert tree(logs) == before


def test_times_are_the_brokers(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Tombstones that it does not retain; an option stands above."""
    words = ["--config", properties(logs, FILE, "log.cleaner.delete.retention.ms=0"), "--dry-run", "--output", "json", logs]
    assert run(*words) == 1
    assert run(*words, "--delete-retention-ms", "86400000") == 1
    at_once, later = reported(capfd)["plan"]
    assert at_once["tombstonesLeft"] == 0 < later["tombstonesLeft"]


def test_a_segment_is_as_large_as_the_broker_has_it(logs: Path) -> None:
    """Re-compressed to none it grows; the default of 1 GiB has room, one of 1 MiB has not."""
    path = make(logs, "big-0", batches=2)
    for segment in path.glob("*"):
        segment.unlink()
    live = LiveLog(path, LogConfig())
    for _ in range(5):
        live.append(new_batch([bytes(300_000)], codec=4))
    live.log.close()
    assert run("--compression", "none", "--config", properties(logs, f"log.segment.bytes={LEAST_SEGMENT_BYTES}"), path) == 0
    assert len(list(path.glob("*.log"))) == 2 and log_bytes(path) > 1_500_000


def test_lags_are_the_brokers(logs: Path) -> None:
    """A least lag leaves what is young; a largest one has the active segment cleaned too, whose records are years old."""
    path = logs / "users-0"
    before = rows_in(path)
    century_ms = 100 * 365 * 86_400_000
    assert run("--config", properties(logs, FILE, f"log.cleaner.min.compaction.lag.ms={century_ms}"), logs) == 0
    assert rows_in(path) == before
    metadata_log(logs, (BROKER, "", "log.cleaner.max.compaction.lag.ms", "86400000"))
    assert run("--config", properties(logs, FILE), "--max-compaction-lag-ms", str(century_ms), logs) == 0
    assert rows_in(path) == last_of_each_key(before, active_base(path)) and rows_in(path)[-1] == before[-1]
    assert active_base(path) < before[-1][0]
    assert run("--config", properties(logs, FILE), logs) == 0
    assert rows_in(path) == last_of_each_key(before, before[-1][0] + 1)
    assert active_base(path) == before[-1][0] + 1


def test_memory_is_the_brokers(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--memory stands above it."""
    made = []

    class Noting(OffsetMap):
        def __init__(self, memory_bytes: int, secret: bytes, load_factor: float) -> None:
            made.append((memory_bytes, load_factor))
            super().__init__(memory_bytes, secret, load_factor)

    monkeypatch.setattr(partition_work, "OffsetMap", Noting)
    metadata_log(logs, (TOPIC, "users", "cleanup.policy", "compact"))
    run("--dry-run", logs)
    config = properties(logs, "log.cleaner.dedupe.buffer.size=3000000", "log.cleaner.io.buffer.load.factor=0.5")
    run("--dry-run", "--config", config, logs)
    run("--dry-run", "--config", config, "--memory", "100000", logs)
    assert made == [(128 * 1024 * 1024, 0.9), (3_000_000, 0.5), (100_000, 0.5)]


def test_indexes_are_as_dense_as_the_broker_has_them(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata_log(logs, (BROKER, "1", "log.index.interval.bytes", "77"))
    seen = set()
    add = IndexAppender.add

    def noting(self: IndexAppender, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        seen.add(self._interval_bytes)
        add(self, position, size_bytes, last_offset, max_timestamp)

    monkeypatch.setattr(IndexAppender, "add", noting)
    assert run("--config", properties(logs, FILE), "--processes", "1", logs) == 0
    assert seen == {77}


def test_a_configuration_that_is_none_is_reported_with_key_and_file(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = tree(logs)
    config = properties(logs, "log.cleaner.delete.retention.ms=soon")
    assert run("--config", config, logs) == 2
    assert f"{config}, line 2: log.cleaner.delete.retention.ms" in capfd.readouterr().err
    assert run("--config", logs / "none", logs) == 2
    assert f"cannot read {logs / 'none'}: No such file or directory" in capfd.readouterr().err
    assert run("--config", properties(logs, "node.id=3"), logs) == 2
    errors = capfd.readouterr().err
    assert f"node.id is 3 ({config}, line 2), and 1 in meta.properties of {logs}" in errors
    assert tree(logs) == before


def test_what_is_odd_is_reported_and_left_out(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key that is near to one of Kafka's, and a value in the metadata log that is none."""
    metadata_log(logs, (BROKER, "1", "log.segment.bytes", "-5"), (BROKER, "", "log.cleanup.policy", "compact"))
    assert run("--config", properties(logs, "log.cleaner.delete.retention=1"), logs) == 0
    err = capfd.readouterr().err
    assert "log.cleaner.delete.retention" in err and "log.cleaner.delete.retention.ms" in err
    assert "dynamic configuration of broker 1: " in err and "log.segment.bytes" in err and "it is ignored" in err


def test_a_node_that_the_directory_does_not_tell_is_the_files(logs: Path) -> None:
    """Partitions that were copied elsewhere have no meta.properties."""
    (logs / "meta.properties").unlink()
    metadata_log(logs, (BROKER, "7", "log.cleanup.policy", "compact"))
    assert not is_compacted(logs)
    assert is_compacted(logs, "--config", properties(logs, "node.id=7"))


def test_a_damaged_meta_properties_is_reported(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (logs / "meta.properties").write_text("version=9\n")
    assert run(logs) == 2
    assert f"{logs}/meta.properties: version is '9'" in capfd.readouterr().err
