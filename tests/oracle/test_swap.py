"""Protects the promise that a directory moves between Apache Kafka and kcli in both directions, and nothing of it is lost.

The way: kcli serves it, clients read all and append; Kafka (4.3.1, and 4.4.0) serves it, clients read all and append; kcli
serves it again. At each stop `kcli verify` and Kafka's dump tool find nothing wrong. Once it begins with a directory that Kafka
wrote, once with one that kcli formatted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kcli.commands.app import main as kcli_command
from tests.conftest import ROOT
from tests.oracle.brokers import (
    DYNAMIC_QUORUM,
    NODE,
    STATIC_QUORUM,
    TOOL_SECONDS,
    KcliBroker,
    broker_at,
    copy_of_given,
    release_options,
)
from tests.oracle.clients.plan import Record, consume, records_of, run_plan
from tests.oracle.peer import Peer
from tests.oracle.reading import (
    TopicPartitionName,
    log_start_offsets,
    offline_records,
    partitions_in,
    served_records,
)

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

Records = dict[TopicPartitionName, list[Record]]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Nothing expires, nothing is cleaned, so that what is read is what was there. Snapshots of the metadata are often.
KEEPING = (
    NODE
    + """
log.retention.ms=-1
log.cleaner.enable=false
offsets.retention.minutes=2000000
transaction.abort.timed.out.transaction.cleanup.interval.ms=100000000
transactional.id.expiration.ms=2000000000
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
metadata.log.max.record.bytes.between.snapshots=3000
"""
)
STATIC = KEEPING + STATIC_QUORUM
DYNAMIC = KEEPING + DYNAMIC_QUORUM


def append(bootstrap: str, expected: Records, names: Sequence[TopicPartitionName], label: str) -> None:
    """Sends records to each partition, with every codec and by an idempotent producer, and adds them to `expected`."""
    for codec in CODECS:
        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(settings)
        now_ms = int(time.time() * 1000)
        for name in names:
            for number in range(3):
                key, value = f"{label}-{number}".encode(), f"{label} {codec} {number} ".encode() * 20
                record = Record(-1, now_ms + number, key, value, (("by", label.encode()),))
                told, at_ms = partial(delivered, expected[name], record), record.timestamp_ms
                producer.produce(name.topic, value, key, name.partition, told, timestamp=at_ms, headers=list(record.headers))
        assert producer.flush(TOOL_SECONDS) == 0


def delivered(expected: list[Record], record: Record, error: object, message: Message) -> None:
    """Where the broker put a record."""
    assert error is None, error
    expected.append(record._replace(offset=message.offset()))


def create(bootstrap: str, expected: Records, topic: str, partitions: int) -> None:
    """Creates a topic that has a configuration of its own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"segment.bytes": "1048576"})])[topic].result()
    expected.update({TopicPartitionName(topic, partition): [] for partition in range(partitions)})


def assert_serves(bootstrap: str, expected: Records, committed: Records) -> None:
    """What clients read is what is expected, in both isolation levels."""
    read = served_records(bootstrap, expected)
    for name, records in expected.items():
        assert read[name] == records, name
    read = served_records(bootstrap, committed, "read_committed")
    for name, records in committed.items():
        assert read[name] == records, name


def assert_java_reads(peer: Peer, bootstrap: str, expected: Records) -> None:
    """The Java consumer reads the same."""
    steps = [
        consume(f"{name.topic}-{name.partition}", name.topic, len(records), partition=name.partition, offset=records[0].offset)
        for name, records in expected.items()
        if records
    ]
    answers = run_plan(peer.java_command("JavaClient"), bootstrap, steps)
    for name, records in expected.items():
        assert not records or records_of(answers[f"{name.topic}-{name.partition}"]) == records, name


def assert_sound(peer: Peer, data: Path) -> None:
    """`kcli verify` finds nothing, and Kafka's dump tool takes every segment."""
    command = [sys.executable, "-m", "kcli", "verify", str(data)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]
    logs = sorted(str(path) for path in data.glob("*/*.log"))
    (dump,) = peer.dump_many([["--deep-iteration", "--files", ",".join(logs)]])
    assert dump.exit_code == 0 and b"isvalid: false" not in dump.stdout, dump.stderr[-2000:]
    assert dump.stdout.count(b"Dumping ") == len(logs)


def metadata_of(data: Path) -> dict[str, list[str]]:
    """What the metadata log says, by section: kcli's own reader of snapshots and logs, which Kafka judges elsewhere."""
    sections = ("configs", "acls", "users", "quotas", "tokens", "topics")
    command = [sys.executable, "-m", "kcli", "describe", "--show", ",".join(sections), "--output", "json", str(data)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    told: dict[str, list[str]] = {}
    for line in ran.stdout.splitlines():
        row = json.loads(line)
        kept = {"topic": {key: row.get(key) for key in ("topic", "topicId")}}.get(row["type"], row)
        told.setdefault(row["type"], []).append(json.dumps(kept, sort_keys=True))
    return {kind: sorted(rows) for kind, rows in told.items() if kind not in ("schema", "summary")}


def assert_kept(before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
    """Whatever the metadata said, it says still."""
    for kind, rows in before.items():
        assert set(rows) <= set(after.get(kind, ())), kind


def test_a_directory_of_kafka(kcli_serves: None, each_kafka: Peer, shared: Path, tmp_path: Path) -> None:
    """The given one: every codec, odd records, transactions, compacted and trimmed partitions, groups, ACLs, SCRAM, quotas."""
    data = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data")
    starts = log_start_offsets(data)
    expected = {name: offline_records(path, starts.get(name, 0)) for name, path in partitions_in(data).items()}
    before = metadata_of(data)
    assert all(before.get(kind) for kind in ("acl", "config", "quota")), before.keys()
    plain = [name for name in expected if not name.topic.startswith(("__", "transactions", "open", "compacted", "append"))]
    kcli = KcliBroker(tmp_path / "kcli", properties=STATIC, data=data)
    with kcli:
        committed = served_records(kcli.bootstrap, expected, "read_committed")
        changed = dict.fromkeys(plain)
        assert_serves(kcli.bootstrap, expected, {})
        assert_java_reads(each_kafka, kcli.bootstrap, expected)
        create(kcli.bootstrap, expected, "made-by-kcli", 2)
        append(kcli.bootstrap, expected, [*plain, TopicPartitionName("made-by-kcli", 1)], "kcli")
    assert_sound(each_kafka, data)
    assert_kept(before, metadata_of(data))
    unchanged = {name: records for name, records in committed.items() if name not in changed}
    with broker_at(each_kafka, tmp_path / "kafka", STATIC, data) as bootstrap:
        assert_serves(bootstrap, expected, unchanged)
        append(bootstrap, expected, [*plain, TopicPartitionName("made-by-kcli", 0)], "kafka")
        create(bootstrap, expected, "made-by-kafka", 1)
    with kcli:
        assert_serves(kcli.bootstrap, {**expected}, unchanged)
        append(kcli.bootstrap, expected, [*plain, TopicPartitionName("made-by-kafka", 0)], "kcli again")
        assert_serves(kcli.bootstrap, expected, {})
    assert_sound(each_kafka, data)
    assert_kept(before, metadata_of(data))


def test_a_directory_of_kcli(kcli_serves: None, each_kafka: Peer, tmp_path: Path) -> None:
    """One that kcli formats for a dynamic quorum: by itself, or on command with the features of Kafka 4.4."""
    data = tmp_path / "data"
    expected: Records = {}
    kcli = KcliBroker(tmp_path / "kcli", properties=DYNAMIC, data=data)
    options = release_options(each_kafka)
    if options:
        assert kcli_command(["format", "--standalone", "-c", str(tmp_path / "kcli" / "server.properties"), *options]) == 0
    with kcli:
        create(kcli.bootstrap, expected, "first", 3)
        append(kcli.bootstrap, expected, list(expected), "kcli")
    assert_sound(each_kafka, data)
    before = metadata_of(data)
    with broker_at(each_kafka, tmp_path / "kafka", DYNAMIC, data) as bootstrap:
        assert_serves(bootstrap, expected, expected)
        create(bootstrap, expected, "second", 2)
        append(bootstrap, expected, list(expected), "kafka")
    with kcli:
        assert_serves(kcli.bootstrap, expected, expected)
        append(kcli.bootstrap, expected, list(expected), "kcli again")
        create(kcli.bootstrap, expected, "third", 1)
        assert_serves(kcli.bootstrap, expected, expected)
    assert_sound(each_kafka, data)
    assert_kept(before, metadata_of(data))
