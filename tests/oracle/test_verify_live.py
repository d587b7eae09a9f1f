"""Judges verify by brokers at work: fresh log directories are sound, while they are made and when they are done.

`make-logs` of the given inputs drives a real broker through all kinds of topics, with two starts and stops. While it does,
the directory is verified again and again: whatever a running broker has in flight must not be a finding. Between stop and
start nobody holds the directory, and a broker's own unfinished business may show; those moments do not count.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kcli.inspect.verification.finding_kinds import INFO
from tests.conftest import SHARED, missing
from tests.inspect.verified import codes, verify
from tests.oracle.peer import find_peer, free_ports

MAKE_LOGS = SHARED / "kafka-logs" / "make-logs"
SEEDS = (201, 202, 203, 204, 205)
MAKE_SECONDS = 600

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_at_work_and_its_directory_afterwards_are_sound(seed: int, tmp_path: Path) -> None:
    """No false alarm beside the running broker, none when it has stopped."""
    if not MAKE_LOGS.is_file() or find_peer() is None:
        missing("make-logs and the real Kafka, of ../shared, are not beside this checkout")
    out = tmp_path / "out"
    with (tmp_path / "make-logs.txt").open("wb") as log:
        maker = subprocess.Popen([str(MAKE_LOGS), str(out), str(seed), str(free_ports())], stdout=log, stderr=log)
        try:
            looks = look_until_done(maker, out / "data")
        finally:
            stop(maker, out)
    if maker.returncode:
        missing(f"make-logs did not make the directory: {(tmp_path / 'make-logs.txt').read_text()[-300:]}")
    assert looks > 3
    assert codes(verify(out / "data")) <= {"transaction-open"}


def look_until_done(maker: subprocess.Popen[bytes], data: Path) -> int:
    """Verify the directory again and again, as long as a broker holds it -> how often."""
    looks = 0
    for _ in range(MAKE_SECONDS):
        try:
            maker.wait(timeout=1)
            break
        except subprocess.TimeoutExpired:
            pass
        if not (data / "meta.properties").is_file():
            continue
        report = verify(data)
        if report.directories[0].is_live and verify(data).directories[0].is_live:
            looks += 1
            assert [finding for finding in report.findings if finding.severity != INFO] == []
    return looks


def stop(maker: subprocess.Popen[bytes], out: Path) -> None:
    """End make-logs, and the broker that it started, where they have not ended."""
    if maker.poll() is None:
        maker.terminate()
        maker.wait()
        peer = find_peer()
        assert peer is not None
        subprocess.run([str(peer), "stop", str(out)], capture_output=True, check=False)
