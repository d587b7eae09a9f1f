"""Protects reads of damaged logs from a wrong beginning: by a time, in several splits, by a replay, the records are the same.

tests/fuzz/selected.py says what is compared; a failure names its seed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fuzz.__main__ import fast_directory
from tests.fuzz.damages import stray_copy
from tests.fuzz.directories import TWO_CLUSTERS
from tests.fuzz.selected import SelectedReads

FAST, CI, SLOW = range(8), range(8, 30), range(30, 900)


@pytest.mark.parametrize(
    "seeds", [FAST, pytest.param(CI, marks=pytest.mark.ci), pytest.param(SLOW, marks=pytest.mark.slow)], ids=str
)
def test_each_reader_shows_the_same_records(seeds: range) -> None:
    """A time behind damage, or a cut within it, skipped what follows without an error."""
    failures, kinds = [], set()
    for seed in seeds:
        with TemporaryDirectory(dir=fast_directory()) as parent:
            case = SelectedReads(Path(parent), seed)
            kinds.add(case.scene.kind)
            failures += [f"seed {seed}: {case.damages}: {fault}" for fault in case.check()]
    assert not failures, "\n".join(failures)
    assert TWO_CLUSTERS in kinds or seeds == FAST


@pytest.mark.parametrize(
    "seeds", [FAST, pytest.param(CI, marks=pytest.mark.ci), pytest.param(SLOW, marks=pytest.mark.slow)], ids=str
)
def test_a_stray_copy_of_a_segment_gives_nothing_twice(seeds: range) -> None:
    """dump-log and replay gave its records again, and its name was a bound for the Spark source."""
    failures = []
    for seed in seeds:
        with TemporaryDirectory(dir=fast_directory()) as parent:
            case = SelectedReads(Path(parent), seed, only=stray_copy)
            failures += [f"seed {seed}: {case.damages}: {fault}" for fault in case.check_copies()]
    assert not failures, "\n".join(failures)
