"""A whole broker judges the repair, for a handful of damage at once: it starts on what is repaired and loses nothing of it.

UnifiedLog.create judges every kind of damage by itself (test_repair.py); each start of a broker changes a directory too, so
here are few. Three copies of the given directory get the same damage, a kind a partition, as if the machine had crashed:

    copy      what is done                       what must hold
    --------  ---------------------------------  ---------------------------------------------------------------------
    own       kcli verify --repair --apply       the broker starts, and states the offsets that kcli states; nothing of
                                                 the repaired logs is cut, and the directory is sound when it has stopped
    alike     the same with --like-kafka         the broker starts, with the logs and ends of the copy `kafka`
    kafka     nothing: the broker recovers it
"""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

import pytest

from kcli.commands.app import main as kcli
from kcli.commands.output import EXIT_HOLES
from kcli.inspect.verification.finding_kinds import HOLES, INFO
from tests.damage import DAMAGES
from tests.inspect.described import described
from tests.inspect.verified import verify
from tests.oracle.brokers import ask, copy_of_given, running_broker
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

DAMAGED = {
    "codec-zstd-0": "flip_compressed_payload",
    "many-segments-0": "torn_tail_in_records",
    "many-segments-1": "snapshot_flipped",
    "transactions-0": "lost_all_indexes",
    "compacted-0": "clean_half_swap",
    "orders-0": "lost_partition_metadata",
    "orders-1": "garbage_tail",
}
RESTORED = "orders-0"


def damaged_copy(source: Path, home: Path) -> Path:
    """A copy in `home` with the damage done, and without what says that the broker was stopped cleanly."""
    data = copy_of_given(source, home / "data")
    for name, kind in DAMAGED.items():
        DAMAGES[kind](data / name, random.Random(5))
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    return data


def repair(data: Path, *options: str) -> None:
    """Repair `data`, whose damage takes records: nothing stays damaged, and offsets are missing."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(kcli(["verify", "--repair", "--apply", *options, str(data)]))
    assert ended.value.code == EXIT_HOLES


def log_bytes(data: Path) -> dict[str, str]:
    """A digest of every .log file of the damaged partitions."""
    logs = sorted(path for name in DAMAGED for path in (data / name).glob("*.log"))
    return {str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest() for path in logs}


def offsets(text: str) -> dict[str, int]:
    """What GetOffsetShell prints, by partition."""
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in re.findall(r"(\S+):(\d+):(\d+)", text)}


def broker_offsets(peer: Peer, home: Path, data: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Start a broker, ask it for the first and the last offsets of the damaged partitions, stop it."""
    with running_broker(peer, home, data) as bootstrap:
        tool = (str(peer.tools.script), bootstrap, "org.apache.kafka.tools.GetOffsetShell", "--time")
        starts, ends = offsets(ask(*tool, "-2")), offsets(ask(*tool, "-1"))
    return {name: starts[name] for name in DAMAGED}, {name: ends[name] for name in DAMAGED}


def test_a_broker_starts_on_what_is_repaired(each_kafka: Peer, shared: Path, tmp_path: Path) -> None:
    """Our own repair: all that it kept is there, to the broker and behind it."""
    data = damaged_copy(shared / "kafka-logs" / "data", tmp_path)
    repair(data)
    before = log_bytes(data)
    rows = {f"{row['topic']}-{row['partition']}": row for row in described(data).report["partitions"]}
    starts, ends = broker_offsets(each_kafka, tmp_path, data)
    assert starts == {name: rows[name]["logStartOffset"] for name in DAMAGED}
    assert ends == {name: rows[name]["logEndOffset"] for name in DAMAGED}
    assert log_bytes(data) == before
    assert {finding.code for finding in verify(data).findings if finding.severity != INFO} == set(HOLES)


def test_like_kafka_is_what_a_broker_makes_of_it(each_kafka: Peer, shared: Path, tmp_path: Path) -> None:
    """--like-kafka and then a broker, and a broker alone: the same logs, the same offsets.

    But for the partition whose partition.metadata is lost: a broker takes it for a stray and begins an empty log; the repair
    restores the file, and then a broker keeps the log.
    """
    found, kept = {}, {}
    given = shared / "kafka-logs" / "data"
    for use in ("alike", "kafka"):
        home = tmp_path / use
        home.mkdir()
        data = damaged_copy(given, home)
        if use == "alike":
            repair(data, "--like-kafka")
        (_, ends), logs = broker_offsets(each_kafka, home, data), log_bytes(data)
        kept[use] = (ends.pop(RESTORED), [logs.pop(name) for name in list(logs) if name.startswith(f"{RESTORED}/")])
        found[use] = (ends, logs)
    assert found["alike"] == found["kafka"]
    assert kept["kafka"] == (0, [hashlib.sha256(b"").hexdigest()])
    assert kept["alike"] == (150, [hashlib.sha256((given / RESTORED / f"{0:020}.log").read_bytes()).hexdigest()])
