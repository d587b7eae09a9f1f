"""Apache Kafka judges `kcli compact`: what it leaves is what Kafka's cleaner leaves, Kafka's dump reads it, a broker serves it.

Of a directory that Kafka wrote, with groups, transactions and cleaned partitions; in place, elsewhere, killed, re-compressed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.compacting.compaction import Compaction, RunOptions
from kcli.inspect.compacting.jobs import CompactOptions
from kcli.inspect.compacting.partition_selection import asked_for
from kcli.inspect.description.metadata_view import read_cluster_topics
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import resolve_paths
from tests.commands.test_compact import CONFIG, KILLED, make, rows_in
from tests.inspect.verified import root_files
from tests.log.cleaner.random_logs import batches_of
from tests.log.live_logs import NOW_MS
from tests.oracle.brokers import broker_at, copy_of_given
from tests.oracle.clients.plan import Record
from tests.oracle.peer import Peer
from tests.oracle.reading import TopicPartitionName, log_start_offsets, offline_records, partitions_in, served_records
from tests.oracle.test_swap import STATIC, assert_sound

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

MEMORY_BYTES = 24 * 1009  # a prime number of slots, so that both have as many
COMPACTED = ("compacted-0", "compacted-now-0", "compacted-txn-0")
# What another codec changes in a line of Kafka's dump.
CODEC_DEPENDENT = re.compile(r"position: \d+|size: \d+|compresscodec: \w+|crc: \d+")

Records = dict[TopicPartitionName, list[Record]]


def records_in(data: Path) -> Records:
    starts = log_start_offsets(data)
    return {name: offline_records(path, starts.get(name, 0)) for name, path in partitions_in(data).items()}


def last_values(records: list[Record]) -> dict[bytes | None, bytes | None]:
    """The last value of each key that was not deleted."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


def is_compacted(name: TopicPartitionName) -> bool:
    return name.topic.startswith("compacted") or name.topic in ("__consumer_offsets", "__transaction_state")


def test_it_leaves_what_kafkas_cleaner_leaves(kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    """Partitions of many rounds of Kafka's own, cleaned once more from their start at a fixed time."""
    ours = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "ours")
    theirs = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "theirs")
    topics = read_cluster_topics(OsDisk(), str(ours))
    assert topics is not None
    lines = []
    # Producers are not expired then: Kafka forgets those of a day ago when it loads a log, kcli compact keeps what they need.
    now_ms = max(record.timestamp_ms for name in COMPACTED for record in offline_records(ours / name)) + 1000
    for name in COMPACTED:
        bases = sorted(int(path.stem) for path in (theirs / name).glob("*.log"))
        end = TopicPartitionName.of(theirs / name)
        log_end = max(record.offset for record in offline_records(theirs / name)) + 1
        log_end = max(log_end, max(int(path.stem) for path in (theirs / name).glob("*.snapshot")))
        config = ",".join(f"{key}={value.replace(',', ';')}" for key, value in topics.configs[end.topic].items())
        numbers = (bases[0], bases[0], bases[-1], log_end, now_ms, MEMORY_BYTES)
        lines.append("\t".join((str(theirs / name), config, *map(str, numbers))) + "\n")
    (tmp_path / "cases").write_text("".join(lines))
    ran = kafka_peer.run_java("CleanLog", [str(tmp_path / "cases")])
    assert ran.exit_code == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    targets, _ = resolve_paths(OsDisk(), [str(ours / name) for name in COMPACTED])
    asked, _ = asked_for(targets, ())
    options = CompactOptions(now_ms, os.urandom, MEMORY_BYTES, from_start=True)
    with Compaction(OsDisk(), asked, RunOptions(options, {})) as run:
        for outcome, answer in zip(list(run.outcomes(1, None)), answers, strict=True):
            assert outcome.problem is None and "exception" not in answer, answer
            assert outcome.plan.rounds == 1 and outcome.cleaned_offset == answer["end_offset"]
            assert outcome.plan.records_left == answer["messages_written"]
            run.place(outcome)
    for name in COMPACTED:
        assert list(batches_of(ours / name)) == list(batches_of(theirs / name)), name


def test_it_cleans_up_to_where_kafka_would_by_the_high_watermark(
    kafka_peer: Peer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Known, too low, too high, or none at all: Kafka starts a partition without one at the log start and cleans nothing.

    One beyond the log end Kafka lowers to it. After a clean stop the two agree: kcli takes it for damaged, and cleans nothing.
    """
    root, name = tmp_path / "logs", "__consumer_offsets-0"
    make(root, name)
    end = max(row[0] for row in rows_in(root / name)) + 1
    bases = sorted(int(path.stem) for path in (root / name).glob("*.log"))
    marks = ["none", -5, 0, 1, bases[1], bases[2] - 1, bases[2], bases[-1], end, end + 1000]
    shutil.copytree(root / name, tmp_path / "theirs" / name)
    words = [str(tmp_path / "theirs" / name), str(CONFIG.segment_bytes), "0", str(end), str(NOW_MS), *map(str, marks)]
    ran = kafka_peer.run_java("CleanableOffsets", words)
    assert ran.exit_code == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [answer["cleanable_bytes"] > 0 for answer in answers] == [False] * 4 + [True] * 6
    for mark, answer in zip(marks, answers, strict=True):
        root_files(root, replication={} if mark == "none" else {name: int(mark)})
        is_unknown = mark in ("none", end + 1000)
        assert main(["compact", "--dry-run", "--output", "json", str(root)]) == int(is_unknown or answer["cleanable_bytes"] > 0)
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        (plan,) = [line for line in lines if line["type"] == "plan"]
        expected = answer["first_uncleanable"] if answer["cleanable_bytes"] and not is_unknown else None
        assert plan["cleanedOffset"] == expected, mark
        assert bool(plan["reasons"]) is (expected is None), mark


def test_kafka_serves_a_compacted_directory(kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    """In place, and one made elsewhere; the last value of each key is there, all else is as it was."""
    data = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data")
    before = records_in(data)
    in_transactions = TopicPartitionName("compacted-txn", 0)
    with broker_at(kafka_peer, tmp_path / "kafka", STATIC, copy_of_given(data, tmp_path / "served")) as bootstrap:
        committed = served_records(bootstrap, [in_transactions], "read_committed")[in_transactions]
    elsewhere = tmp_path / "elsewhere"
    assert main(["compact", "--active", "--from-start", "--to", str(elsewhere), str(data)]) == 0
    assert records_in(data) == before
    assert main(["compact", "--apply", "--active", "--from-start", str(data)]) == 0
    for directory in (data, elsewhere):
        assert_sound(kafka_peer, directory)
        after = records_in(directory)
        for name, records in before.items():
            if not is_compacted(name):
                assert after[name] == records, name
            else:
                assert len(after[name]) < len(records), name
                assert name == in_transactions or last_values(after[name]) == last_values(records), name
        with broker_at(kafka_peer, tmp_path / f"kafka-{directory.name}", STATIC, directory) as bootstrap:
            assert served_records(bootstrap, after) == after
            kept = served_records(bootstrap, [in_transactions], "read_committed")[in_transactions]
            assert last_values(kept) == last_values(committed) and len(kept) < len(committed)
        assert_sound(kafka_peer, directory)


def test_kafka_serves_what_a_kill_leaves(kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    """SIGKILL while segments take their places: each partition is what it was or what it should become."""
    source = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "source")
    words = ["compact", "--apply", "--active", "--from-start"]
    whole = tmp_path / "whole"
    shutil.copytree(source, whole)
    command = [sys.executable, "-c", KILLED]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*command, "1000000", *words, str(whole)], env=environment, capture_output=True, check=True)
    calls = 1_000_000 - int(ran.stderr.split()[-1])
    old, new = records_in(source), records_in(whole)
    seen = set()
    for share in (0.8, 0.93):
        data = tmp_path / f"killed-{share}"
        shutil.copytree(source, data)
        killed = subprocess.run(
            [*command, str(int(calls * share)), *words, str(data)], env=environment, capture_output=True, check=False
        )
        assert killed.returncode == -9
        with broker_at(kafka_peer, tmp_path / f"kafka-{share}", STATIC, data) as bootstrap:
            served = served_records(bootstrap, old)
        for name, records in served.items():
            assert records in (old[name], new[name]), name
            seen.add(records == old[name] != new[name])
        assert_sound(kafka_peer, data)
    assert seen == {True, False}


@pytest.fixture(scope="module")
def given(kafka_peer: Peer, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Records, list[str]]:
    """The records of the given directory, and Kafka's dump of it."""
    data = copy_of_given(shared / "kafka-logs" / "data", tmp_path_factory.mktemp("given") / "data")
    return records_in(data), dump_of(kafka_peer, data)


@pytest.mark.parametrize("codec", ["zstd", "lz4:12", "snappy", "gzip", "none"])
def test_kafka_reads_the_same_behind_another_codec(
    kafka_peer: Peer, shared: Path, given: tuple[Records, list[str]], tmp_path: Path, codec: str
) -> None:
    """Kafka's dump says the same of every batch and record, but for the codec and what follows from it."""
    data = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data")
    before, dumped = given
    assert main(["compact", "--apply", "--compression", codec, str(data)]) == 0
    assert records_in(data) == before
    assert dump_of(kafka_peer, data) == dumped
    assert_sound(kafka_peer, data)
    if codec == "zstd":
        with broker_at(kafka_peer, tmp_path / "kafka", STATIC, data) as bootstrap:
            assert served_records(bootstrap, before) == before


@pytest.fixture(scope="module")
def given_legacy_rows(kafka_peer: Peer, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    data = copy_of_given(shared / "kafka-logs-legacy" / "data", tmp_path_factory.mktemp("legacy") / "data")
    return legacy_rows(kafka_peer, data)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_kafka_reads_the_same_of_formats_0_and_1(
    kafka_peer: Peer, shared: Path, given_legacy_rows: dict[str, list[str]], tmp_path: Path, codec: str
) -> None:
    """They are of format 2 then; Kafka's dump says the same offsets, timestamps, keys and values, and the log opens."""
    data = copy_of_given(shared / "kafka-logs-legacy" / "data", tmp_path / "data")
    before = given_legacy_rows
    assert main(["compact", "--apply", "--unclean", "--compression", codec, str(data)]) == 0
    assert {name: len(rows) for name, rows in before.items()} == {path.name: 300 for path in data.glob("magic*")}
    assert legacy_rows(kafka_peer, data) == before
    headers = [batch[1] for path in data.glob("magic*") if f"-{codec}-" not in path.name for batch in batches_of(path)]
    assert set(headers) == {2}
    index_checks = sorted(str(path) for path in data.glob("magic*/*.*index"))
    (dump,) = kafka_peer.dump_many([["--index-sanity-check", "--files", ",".join(index_checks)]])
    assert dump.exit_code == 0 and len(re.findall(b"(passed sanity check|is empty)\\.\n", dump.stdout)) == 28, dump.stdout


def legacy_rows(peer: Peer, data: Path) -> dict[str, list[str]]:
    """What Kafka's dump prints of each record, by partition, without what format 2 does not have, or has besides.

    Format 0 has no time.
    """
    partitions = sorted(data.glob("magic*"))
    files = [",".join(sorted(str(path) for path in partition.glob("*.log"))) for partition in partitions]
    dumps = peer.dump_many([["--deep-iteration", "--print-data-log", "--files", paths] for paths in files])
    odd = re.compile(r" (isValid: \w+|crc: \d+|sequence: -1|headerKeys: \[\])")
    found = {}
    for partition, dump in zip(partitions, dumps, strict=True):
        assert dump.exit_code == 0, dump.stderr[-2000:]
        lines = dump.stdout.decode("utf-8", "replace").replace("NoTimestampType: -1", "CreateTime: -1").splitlines()
        found[partition.name] = [odd.sub("", line) for line in lines if line.startswith("| ")]
    return found


def dump_of(peer: Peer, data: Path) -> list[str]:
    """What Kafka's dump prints of all data, without what a codec changes."""
    paths = sorted(path.relative_to(data) for path in data.glob("*/*.log") if not path.parent.name.startswith("__cluster"))
    (dump,) = peer.dump_many([["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, paths))]], data)
    assert dump.exit_code == 0, dump.stderr[-2000:]
    return [CODEC_DEPENDENT.sub("", line) for line in dump.stdout.decode("utf-8", "replace").splitlines()]
