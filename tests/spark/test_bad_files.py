"""Protects `kcli to-parquet` as a program from bad files: a promised exit code, the file and the byte by name, no traceback, no
half-written table, nothing changed beside it. Few cases, since each starts a JVM; test_corruption has the many."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.bad_cases import state_of
from tests.conftest import ROOT
from tests.inspect.verified import batch, partition, root_files
from tests.test_bad_batches import LIES, bomb

pytestmark = [pytest.mark.ci, pytest.mark.spark]
LOG = f"{0:020d}.log"
SIZE = len(batch(0).encode())


def to_parquet(data: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it on one core -> how it went, with nothing of the input changed."""
    before = state_of(data)
    words = [sys.executable, "-m", "kcli", "to-parquet", str(data), "--out", str(out), "--master", "local[1]", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=out.parent, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stdout + done.stderr, done.stderr
    assert state_of(data) == before
    return done


def bad_directory(root: Path) -> dict[str, Path]:
    """Partitions that each hold two sound batches and something bad -> their logs by what is bad."""
    kinds = {
        "random": random.Random(1).randbytes(5000),
        "torn": batch(1).encode()[:-5],
        "bomb": bomb("zeros behind the record", 4, 100).encode(),
        "lie": LIES["value of 2147483647"],
        "varint": LIES["varint of ten bytes: value"],
    }
    logs = {kind: partition(root, f"{kind}-0", [batch(0), data, batch(2)]) / LOG for kind, data in kinds.items()}
    logs["empty"] = partition(root, "empty-0", []) / LOG
    logs["sparse"] = partition(root, "sparse-0", [batch(0), batch(2)]) / LOG
    os.truncate(logs["sparse"], 1 << 40)
    root_files(root)
    return logs


def test_bad_files_are_skipped_and_told(tmp_path: Path) -> None:
    """With skip each bad stretch is listed by file and byte, and all sound records around them are there."""
    data, out = tmp_path / "data", tmp_path / "out"
    logs = bad_directory(data)
    done = to_parquet(data, out, "--on-corrupt", "skip")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [(row["topic"], row["offset"]) for row in pq.read_table(out, columns=["topic", "offset"]).to_pylist()]
    for kind in logs:
        offsets = {offset for topic, offset in rows if topic == kind}
        assert offsets >= {0, 2} if kind != "empty" else not offsets, kind
    told = done.stdout + done.stderr
    assert re.search(rf"{logs['random']}\D+{SIZE}\b", told), told


@pytest.mark.parametrize("kind", ["random", "bomb", "sparse"])
def test_a_bad_file_fails_the_job(tmp_path: Path, kind: str) -> None:
    """By default the first one ends it, by file and byte, and no table is left."""
    data, out = tmp_path / "data", tmp_path / "out"
    log = bad_directory(data)[kind]
    done = to_parquet(log.parent, out)
    if kind == "sparse":
        assert done.returncode in (0, 1)
        return
    assert done.returncode == 1 and str(log) in done.stderr and re.search(rf"\b{SIZE}\b", done.stderr), done.stderr
    assert not out.exists() or not list(out.rglob("*.parquet"))
