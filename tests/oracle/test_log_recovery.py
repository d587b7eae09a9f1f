"""Kafka judges how our log manager starts: broken directories, loaded and closed once by Kafka, once by us.

Every kind of damage is done to copies of a partition, a topic a kind, and they are started in these modes:

    mode                     .kafka_cleanshutdown   recovery point         log start offset
    -----------------------  ---------------------  ---------------------  ---------------------
    clean                    yes                    the log's end          -          (CONTRADICTS_CLEAN)
    nothing known            no                     no checkpoint          -
    last segment             no                     its base offset        -
    too high                 no                     far behind the end     -
    started later            no                     no checkpoint          in the middle of the log
    started beyond           no                     no checkpoint          far behind the end

Then the same bytes in every .log, the same log start and log end offsets, the same indexes, and a verifier finds in what we
leave what it finds in what Kafka leaves: nothing, wherever Kafka recovers. Where Kafka refuses to load a log, our log
directory is offline; REFUSED_LIKE_KAFKA and the exceptions below it are all there is.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.log.disk.os_disk import OsDisk
from kcli.log.errors import AllLogDirsOfflineError, PartitionMetadataError
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from tests.conftest import given_partition
from tests.damage import DAMAGES, NotApplicableError, copy_partition
from tests.oracle.peer import LoadCase, Peer, digests, stated

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

# Partition -> whether it belongs to the quick tiers.
PARTITIONS = {
    "transactions-0": True,
    "many-segments-0": False,
    "codec-zstd-0": False,
    "compacted-txn-0": False,
    "compacted-0": False,
    "open-transaction-0": False,
    "odd-records-0": False,
}
MODES = ("clean", "nothing known", "last segment", "too high", "started later", "started beyond")
SOUND = "none"
DIRECTORY_ID = Uuid(b"directory-of-us.")
# A broker does not look at partition.metadata when it loads a log, but right after: these become strays, in Kafka too; and of
# a file that a crash left empty Kafka dies, where we take it for missing.
STRAY = {"lost_partition_metadata", "partition_metadata_empty"}
# Of a log that was never flushed a lost power can have torn the file, because we do not flush it with its creation: a stray.
UNREADABLE = {kind for kind in DAMAGES if kind.startswith("partition_metadata_")} - STRAY
# Kafka believes that these logs were stopped cleanly, and appends behind bytes that nobody can read, or dies of them. We start
# as Kafka does after a crash, with all before the last segment flushed.
CONTRADICTS_CLEAN = {
    "active_indexes_preallocated",
    "roll_with_indexes",
    "torn_tail_in_prefix",
    "torn_tail_in_header",
    "torn_tail_in_records",
    "short_zero_tail",
    "zero_tail",
    "garbage_tail",
    "length_negative",
    "length_long",
    "lost_batch",
    "lost_marker",
    "index_torn_last",
    "index_zeroed_last",
    "index_garbage_last",
    "index_points_beyond",
    "index_shifted",
}


class Twin(NamedTuple):
    """One kind of damage: Kafka's copy with what it made of it, and ours."""

    kind: str
    kafka: Path
    own: Path
    answer: dict[str, Any]


class Start(NamedTuple):
    """How a log directory was left."""

    clean: bool
    recovery_point: int
    log_start_offset: int


def start_of(mode: str, source: Path) -> Start:
    end = max(int(path.name[:20]) for path in source.glob("*.snapshot"))
    last = max(int(path.name[:20]) for path in source.glob("*.log"))
    return {
        "clean": Start(True, end, 0),
        "nothing known": Start(False, 0, 0),
        "last segment": Start(False, last, 0),
        "too high": Start(False, end + 1_000, 0),
        "started later": Start(False, 0, end // 2 + 1),
        "started beyond": Start(False, 0, end + 1_000),
    }[mode]


def settings_of(name: str) -> LogConfig:
    return LogConfig(index_interval_bytes=1024 if name.startswith("many-segments") else 4096)


def write_root(directory: Path, start: Start) -> None:
    """The files of a log directory that say how it was left."""
    names = sorted(path.name.rpartition("-")[0] for path in directory.iterdir())
    if start.clean:
        (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    for file, offset in (
        ("recovery-point-offset-checkpoint", start.recovery_point),
        ("log-start-offset-checkpoint", start.log_start_offset),
    ):
        if offset:
            (directory / file).write_text(f"0\n{len(names)}\n" + "".join(f"{name} 0 {offset}\n" for name in names))


def start_and_stop(directory: Path, config: LogConfig) -> dict[str, tuple[int, int]]:
    """Let our manager start on a log directory and stop -> (log start offset, log end offset) by topic."""
    disk = OsDisk()
    manager = LogManager(disk, FileCache(disk), {str(directory): DIRECTORY_ID}, random.Random(1))
    try:
        for _ in manager.start(lambda topic: config, lambda topic_id, partition: True, 0):
            pass
        found = {topic: (log.log_start_offset, log.log_end_offset) for (topic, _), log in manager.logs.items()}
        for _ in manager.shutdown(8):
            pass
    finally:
        for log_dir in manager.dirs.values():
            log_dir.unlock()
    return found


def copy_with(source: Path, kind: str, target: Path) -> Path | None:
    """A copy of a partition with a kind of damage, named for it; None where the partition offers nothing for it."""
    copy = target / f"{kind}-0"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy_partition(source, target / "copies").rename(copy)
    if kind != SOUND:
        try:
            DAMAGES[kind](copy, random.Random(f"1 {kind}"))
        except NotApplicableError:
            shutil.rmtree(copy)
            return None
    return copy


def findings(directory: Path) -> set[str]:
    disk = OsDisk()
    found = verify_partition(disk, read_partition(disk, str(directory)), PartitionOptions(is_clean=True))
    return {finding.code for finding in found.findings if finding.severity != INFO}


def twins_of(peer: Peer, source: Path, mode: str, home: Path) -> list[Twin]:
    """All kinds of damage, Kafka's half of each loaded and closed."""
    start = start_of(mode, source)
    pairs = []
    for kind in (SOUND, *DAMAGES):
        kafka, own = (copy_with(source, kind, home / use) for use in ("kafka", "own"))
        if kafka is not None and own is not None and kind not in STRAY:
            pairs.append((kind, kafka, own))
        elif own is not None:
            shutil.rmtree(own)
    config = {"index.interval.bytes": str(settings_of(source.name).index_interval_bytes)}
    as_after_crash = start_of("last segment", source)
    starts = [as_after_crash if start.clean and kind in CONTRADICTS_CLEAN else start for kind, _, _ in pairs]
    cases = [LoadCase(pair[1], *given, config) for pair, given in zip(pairs, starts, strict=True)]
    answers = peer.load_logs(cases)
    return [Twin(*pair, answer) for pair, answer in zip(pairs, answers, strict=True)]


def refuse(directory: Path, kind: str, start: Start, config: LogConfig) -> None:
    """What we do with a log that Kafka refuses to load: the same, but for a partition.metadata that no flush has reached."""
    if kind in UNREADABLE and not start.clean and not start.recovery_point:
        assert start_and_stop(directory, config) == {}
        assert [path.name.rpartition("-")[2] for path in directory.glob(f"{kind}*")] == ["stray"]
        return
    error = PartitionMetadataError if kind in UNREADABLE else AllLogDirsOfflineError
    with pytest.raises(error, match="kcli verify --repair"):
        start_and_stop(directory, config)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if quick else pytest.mark.slow) for name, quick in PARTITIONS.items()]
)
@pytest.mark.parametrize("mode", MODES)
def test_a_start_makes_of_a_broken_directory_what_kafka_makes_of_it(
    kafka_peer: Peer, tmp_path: Path, name: str, mode: str
) -> None:
    source = given_partition(name)
    start, config = start_of(mode, source), settings_of(name)
    twins = twins_of(kafka_peer, source, mode, tmp_path)
    assert len(twins) > 60
    kept = [twin for twin in twins if "exception" not in twin.answer]
    for twin in twins:
        if "exception" in twin.answer:
            alone = tmp_path / "refused" / twin.kind
            alone.mkdir(parents=True)
            shutil.move(twin.own, alone)
            write_root(alone, start)
            refuse(alone, twin.kind, start, config)
    shutil.rmtree(tmp_path / "own" / "copies")
    write_root(tmp_path / "own", start)
    offsets = start_and_stop(tmp_path / "own", config)
    different = {}
    for twin in kept:
        log = twin.answer["log"]
        expected = stated(twin.answer)
        own = digests(twin.own)
        if offsets[twin.kind] != (log["start_offset"], log["end_offset"]):
            different[twin.kind] = f"offsets {offsets[twin.kind]}, Kafka's {log}"
        elif changed := sorted(file for file in own.keys() | expected.keys() if own.get(file) != expected.get(file)):
            different[twin.kind] = f"files {changed}"
        elif findings(twin.own) != findings(twin.kafka):
            different[twin.kind] = f"findings {findings(twin.own)}"
    assert different == {}
    assert (tmp_path / "own" / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":8}'
