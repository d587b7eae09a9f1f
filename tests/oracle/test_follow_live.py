"""Protects dump-log --follow beside a real broker: every record once and in order, over rolls, while a producer sends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.oracle.brokers import TOOL_SECONDS, ask, new_broker
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

RECORDS = 30_000
LEAST_SEGMENT_BYTES = 1024 * 1024  # the smallest that a broker takes


def test_every_record_is_shown_once_while_a_broker_appends_and_rolls(kafka_peer: Peer, tmp_path: Path) -> None:
    """Follow from before the first record to the last; then end it as a person does, with an interrupt."""
    home = tmp_path / "broker"
    with new_broker(kafka_peer, home) as bootstrap:
        config = ("--config", f"segment.bytes={LEAST_SEGMENT_BYTES}")
        tool = (str(kafka_peer.script), bootstrap, "org.apache.kafka.tools.TopicCommand", "--create", "--topic", "followed")
        ask(*tool, "--partitions", "1", *config)
        partition = home / "data" / "followed-0"
        command = [sys.executable, "-m", "kcli", "dump-log", "--output", "json", "--follow", str(partition)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
            watchdog = threading.Timer(TOOL_SECONDS, follower.kill)
            watchdog.start()
            assert follower.stdout is not None and follower.stderr is not None
            shown = [json.loads(follower.stdout.readline())]  # it has begun
            ask(
                *(str(kafka_peer.script), bootstrap, "org.apache.kafka.tools.ProducerPerformance", "--topic", "followed"),
                *("--num-records", str(RECORDS), "--record-size", "200", "--throughput", "20000"),
            )
            while len(shown) < 10 * RECORDS and not is_last(shown[-1]):
                line = follower.stdout.readline()
                assert line, follower.stderr.read()
                shown.append(json.loads(line))
            follower.send_signal(signal.SIGINT)
            rest = [json.loads(line) for line in follower.stdout]
            code, told = follower.wait(TOOL_SECONDS), follower.stderr.read()
            watchdog.cancel()
        segments = sorted(path.name for path in partition.glob("*.log"))
    assert [row["offset"] for row in shown if row["type"] == "record"] == list(range(RECORDS))
    assert [Path(row["path"]).name for row in shown if row["type"] == "file"] == segments and len(segments) > 4
    assert not [row for row in shown if row["type"] in ("damage", "problem")]
    assert (code, told) == (0, b"") and [row["type"] for row in rest] == ["summary"]


def is_last(row: dict[str, object]) -> bool:
    return row["type"] == "record" and row["offset"] == RECORDS - 1
