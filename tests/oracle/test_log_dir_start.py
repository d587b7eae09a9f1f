"""A whole broker judges the start of our log manager: one broken log directory, started and stopped by Apache Kafka and by us.

tests/oracle/test_log_recovery.py tries every kind of damage on Kafka's loader alone; here a broker starts on a directory of
many partitions, as a crash left it: no mark of a clean stop, recovery points somewhere, a different damage in each partition.

    copy      what is done                                  what must hold
    --------  --------------------------------------------  ------------------------------------------------------------
    kafka     a broker starts, tells its offsets, stops
    own       our manager starts and stops, then            the same log start and log end offsets, the same sizes of
              `kcli verify`                                 .log files, no finding but those that Kafka's copy has
    own       then a broker starts, tells its offsets       the same, and it takes our mark of a clean stop: it recovers
                                                            nothing
    both      what they log of it                           we warn of each partition that Kafka warns of, at its level, with
                                                            its offset and byte
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.inspect.verification.finding_kinds import ERROR, INFO
from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.server.log_lines import fields_of, level_of
from tests.damage import DAMAGES
from tests.inspect.described import described
from tests.inspect.verified import verify
from tests.oracle.brokers import CLUSTER_ID, ask, broker_at, copy_of_given, running_broker
from tests.oracle.peer import Peer
from tests.oracle.test_broker_start import offsets

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

DAMAGED = {
    "codec-zstd-0": "flip_compressed_payload",
    "codec-lz4-0": "torn_tail_in_header",
    "codec-gzip-0": "lost_last_snapshot",
    "codec-none-0": "zero_tail",
    "many-segments-0": "torn_tail_in_records",
    "many-segments-1": "snapshot_flipped",
    "transactions-0": "lost_all_indexes",
    "compacted-0": "clean_half_swap",
    "append-time-0": "active_indexes_preallocated",
    "odd-records-0": "roll_with_snapshot",
    "orders-1": "garbage_tail",
    "compacted-txn-0": "index_zeroed_last",
}
# Above these the partitions are read again; of those not named all is.
RECOVERY_POINTS = {"many-segments-0": 7126, "orders-1": 1 << 40, "transactions-0": 10}


def damaged_copy(source: Path, data: Path) -> Path:
    """A copy as a crash left it."""
    copy_of_given(source, data)
    for name, kind in DAMAGED.items():
        DAMAGES[kind](data / name, random.Random(5))
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    lines = "".join(f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {at}\n" for name, at in RECOVERY_POINTS.items())
    (data / "recovery-point-offset-checkpoint").write_text(f"0\n{len(RECOVERY_POINTS)}\n{lines}")
    return data


def settings_of(topic: str) -> LogConfig:
    """The settings of the given topics that a load depends on, as its metadata log has them."""
    return LogConfig(index_interval_bytes=1024 if topic == "many-segments" else 4096)


def start_and_stop(data: Path, reports: list[str]) -> dict[str, tuple[int, int]]:
    """Start and stop our manager -> (log start offset, log end offset) by partition; its lines go to `reports`."""
    disk = OsDisk()
    manager = LogManager(disk, FileCache(disk), {str(data): Uuid(b"directory-of-us.")}, random.Random(1), report=reports.append)
    for _ in manager.start(settings_of, lambda topic_id, partition: True, 0):
        pass
    found = {
        f"{topic}-{partition}": (log.log_start_offset, log.log_end_offset) for (topic, partition), log in manager.logs.items()
    }
    for _ in manager.shutdown(3):
        pass
    return found


def told_by_a_broker(peer: Peer, home: Path, data: Path) -> dict[str, tuple[int, int]]:
    """Start a broker, ask it for the first and the last offsets, stop it."""
    with running_broker(peer, home, data) as bootstrap:
        tool = (str(peer.script), bootstrap, "org.apache.kafka.tools.GetOffsetShell", "--time")
        starts, ends = offsets(ask(*tool, "-2")), offsets(ask(*tool, "-1"))
    return {name: (starts[name], ends[name]) for name in starts}


def log_sizes(data: Path) -> dict[str, int]:
    """The bytes of every .log, but for those of the metadata log, which a broker goes on writing."""
    logs = [path for path in sorted(data.glob("*/*.log")) if not path.parent.name.startswith("__cluster_metadata")]
    return {str(path.relative_to(data)): path.stat().st_size for path in logs}


def findings(data: Path) -> set[tuple[str, str]]:
    """What a verifier warns of: (code, partition)."""
    return {
        (finding.code, str(Path(finding.file).relative_to(data).parent))
        for finding in verify(data).findings
        if finding.severity != INFO and "__cluster_metadata" not in finding.file
    }


def compare_lines(theirs: str, ours: list[str]) -> None:
    """Kafka's lines about damage against ours: the same partitions, levels, offsets and bytes.

    Of zeros behind the last batch Kafka warns, and we do not: no record was there.
    """
    cuts = {name: (segment, offset) for name, segment, offset in _CUT.findall(theirs)}
    positions = {Path(path).parent.name: position for path, position in _FOUND.findall(theirs)}
    own = {
        f"{fields_of(line)['topic']}-{fields_of(line)['partition']}": line
        for line in ours
        if "first_lost_offset" in fields_of(line)
    }
    assert cuts.keys() > own.keys() > set()
    for name, (segment, offset) in cuts.items():
        line = own.get(name) or next(line for line in ours if line.startswith(f"{name}: recovery cuts "))
        fields = fields_of(line)
        assert level_of(line) == ("INFO" if DAMAGED[name] == "zero_tail" else "WARN"), line
        assert int(Path(str(fields["path"])).stem) == int(segment)
        assert str(fields.get("first_lost_offset", offset)) == offset
        assert name not in positions or str(fields["position"]) == positions[name]
    lost = {Path(path).parent.name for path in _NO_INDEX.findall(theirs)}
    assert lost == {line.partition(":")[0] for line in ours if level_of(line) == "ERROR"} == {"transactions-0"}
    recovering = next(line for line in ours if "was not stopped cleanly" in line)
    assert [str(fields_of(recovering)["partitions"])] == _COUNT.findall(theirs)


_CUT = re.compile(r"WARN \[LogLoader partition=(\S+), dir=.*?\] Corruption found in segment (\d+), truncating to offset (\d+)")
_FOUND = re.compile(r"WARN Found invalid messages in log segment (\S+) at byte offset (\d+)")
_NO_INDEX = re.compile(r"ERROR .* Could not find offset index file corresponding to log file (\S+),")
_COUNT = re.compile(r"INFO Recovering (\d+) logs from ")


def test_a_broken_directory_comes_up_as_in_kafka(kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    given = shared / "kafka-logs" / "data"
    homes = {use: tmp_path / use for use in ("kafka", "own")}
    for home in homes.values():
        home.mkdir()
        damaged_copy(given, home / "data")
    theirs = told_by_a_broker(kafka_peer, homes["kafka"], homes["kafka"] / "data")
    reports: list[str] = []
    ours = start_and_stop(homes["own"] / "data", reports)
    assert not [line for line in reports if "topic" not in fields_of(line) and level_of(line) != "INFO"]
    compare_lines((homes["kafka"] / "broker.log").read_text(), reports)
    assert {name: ours[name] for name in theirs} == theirs
    assert log_sizes(homes["own"] / "data") == log_sizes(homes["kafka"] / "data")
    assert findings(homes["own"] / "data") <= findings(homes["kafka"] / "data")
    after = tmp_path / "after"
    shutil.copytree(homes["own"], after)
    assert told_by_a_broker(kafka_peer, after, after / "data") == theirs
    log = (after / "broker.log").read_text()
    recovered = [line for line in log.splitlines() if "Recovering" in line and "__cluster_metadata" not in line]
    assert "Skipping recovery of" in log and recovered == []
    assert log_sizes(after / "data") == log_sizes(homes["own"] / "data")


# A node of one process; its metadata log is in {data}.
NODE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
metadata.log.dir={data}
"""


@pytest.mark.parametrize("of_the_node", ["all log directories", "one of two"])
def test_no_broker_starts_without_meta_properties(of_the_node: str, kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    """Protects the severity of meta-properties-missing: a file in another log directory of the node does not help."""
    data, second = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data"), tmp_path / "second"
    second.mkdir()
    shutil.move(data / "orders-0", second / "orders-0")
    shutil.copy(data / "replication-offset-checkpoint", second)
    if of_the_node != "one of two":
        (data / "meta.properties").unlink()
    with (
        pytest.raises(AssertionError, match=r"meta\.properties.* found"),
        broker_at(kafka_peer, tmp_path / "home", f"{NODE}log.dirs={data},{second}\n", data),
    ):
        pass
    (finding,) = [one for one in verify(second).findings if one.code == "meta-properties-missing"]
    assert finding.severity == ERROR


def test_a_meta_properties_as_the_advice_has_it(kafka_peer: Peer, shared: Path, tmp_path: Path) -> None:
    """A broker starts with the ids that kcli says where to find, and leaves the file and the partitions as they are."""
    data = copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data")
    (data / "meta.properties").unlink()
    (broker,) = described(data, show=frozenset(["brokers"])).report["brokers"]
    (directory_id,) = broker["logDirs"]
    meta = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={broker['id']}\ndirectory.id={directory_id}\n"
    (data / "meta.properties").write_text(meta)
    partitions = {path.name for path in data.glob("*-[0-9]")}
    with running_broker(kafka_peer, tmp_path, data):
        pass
    assert (data / "meta.properties").read_text() == meta
    assert {path.name for path in data.glob("*-[0-9]")} == partitions
