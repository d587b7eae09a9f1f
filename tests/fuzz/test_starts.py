"""Protects a start of a damaged directory from a mark of a clean stop that lies, torn state files and lost indexes.

tests/fuzz/starts.py says what must hold; a failure names its seed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fuzz.__main__ import fast_directory
from tests.fuzz.starts import DamagedStart

FAST, CI, SLOW = range(12), range(12, 80), range(80, 1500)


@pytest.mark.parametrize(
    "seeds", [FAST, pytest.param(CI, marks=pytest.mark.ci), pytest.param(SLOW, marks=pytest.mark.slow)], ids=str
)
def test_what_is_acknowledged_after_a_start_can_be_read(seeds: range) -> None:
    """A log whose file had been cut after a clean stop took records that nobody could read."""
    failures = []
    for seed in seeds:
        with TemporaryDirectory(dir=fast_directory()) as parent:
            case = DamagedStart(Path(parent), seed)
            failures += [f"seed {seed}: {case.damages}: {fault}" for fault in case.check()]
    assert not failures, "\n".join(failures)
