"""Protects the first thing that the README's demo shows: a broker takes records, gives them back and leaves sound files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_of_the_broker() -> None:
    """It ends with 0, shows each record as fetched and as dumped, and the directory is sound."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve_demo"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "offset 3: b'it' = b'Buon giorno'" in ran.stdout
    assert "it  Buon giorno" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "sound"
